//! Folders of runs, what goes on in them, and where it is computed.
use super::Do::{Args, Env, Run, Set, Unset, Write};
use super::{CLASSES, Do, REVIEWS, TRAIN, all, case, joined};

#[test]
fn run_folders_and_continuations() {
    let with = |more: &[Do]| joined(&[Run(&["train", "config.toml", "--set", "trainer.save_steps=1"])], more);
    let exists = &[
        "set run.output_dir to another folder, --resume to continue the run in it, or run.on_existing = \"overwrite\"",
    ];
    all(&[
        case(CLASSES, with(&[TRAIN]), exists, &[Set("run.output_dir", "\"other\"")]),
        case(CLASSES, with(&[TRAIN]), exists, &[Args(&["train", "config.toml", "--resume"])]),
        case(CLASSES, with(&[TRAIN]), exists, &[Set("run.on_existing", "\"overwrite\"")]),
        case(
            CLASSES,
            with(&[Set("trainer.learning_rate", "0.5"), Args(&["train", "config.toml", "--resume"])]),
            &["set the rest back, or start a new run (run.output_dir, or run.on_existing = \"overwrite\")"],
            &[Unset("trainer.learning_rate")],
        ),
        case(
            CLASSES,
            with(&[Set("trainer.learning_rate", "0.5"), Args(&["train", "config.toml", "--resume"])]),
            &["model.from begins one with these weights"],
            &[Set("model", "{ from = \"run/model\" }"), Set("run.output_dir", "\"other\"")],
        ),
        case(
            CLASSES,
            with(&[Set("run.resume_from_checkpoint", "\"run/checkpoints/step-000001\""), TRAIN]),
            &["set run.on_existing = \"resume\""],
            &[Set("run.on_existing", "\"resume\"")],
        ),
        case(
            CLASSES,
            with(&[Args(&["train", "config.toml", "--resume-from", "run/model"])]),
            &["run.resume_from_checkpoint", "expected a checkpoint of this run"],
            &[Args(&["train", "config.toml", "--resume-from", "run/checkpoints/step-000001"])],
        ),
        case(
            CLASSES,
            &[
                Run(&["train", "config.toml", "--set", "trainer.save_strategy=no"]),
                Args(&["train", "config.toml", "--resume", "--set", "trainer.max_steps=4"]),
            ],
            &[
                "no whole checkpoint to continue from",
                "to train on from its weights, set model.from; else set run.output_dir",
            ],
            &[
                Set("model", "{ from = \"run/model\" }"),
                Args(&["train", "config.toml", "--set", "run.output_dir=other"]),
            ],
        ),
        case(
            CLASSES,
            &[Set("run.output_dir", "\"rows.csv\""), TRAIN],
            &["set run.output_dir to a folder that does not exist"],
            &[Set("run.output_dir", "\"other\"")],
        ),
        case(
            CLASSES,
            &[Set("run.output_dir", "\"rows.csv/run\""), TRAIN],
            &["set run.output_dir to a folder that does not exist"],
            &[Set("run.output_dir", "\"new/run\"")],
        ),
        case(
            CLASSES,
            with(&[Args(&["describe", "words"])]),
            &["`kiln runs FOLDER` lists the runs in a folder"],
            &[Args(&["runs", "."])],
        ),
        case(
            CLASSES,
            &[Args(&[
                "init",
                "sequence-classification",
                "bert-base-uncased",
                "--out",
                "config.toml",
                "--train",
                "rows.csv",
            ])],
            &["give the name of a file that does not exist: --out FILE"],
            &[Args(&[
                "init",
                "sequence-classification",
                "bert-base-uncased",
                "--out",
                "new.toml",
                "--train",
                "rows.csv",
            ])],
        ),
        case(
            CLASSES,
            &[
                Write("rows.data", REVIEWS),
                Args(&["init", "sequence-classification", "bert-base-uncased", "--train", "rows.data"]),
            ],
            &["rename the file to .csv, .tsv, .jsonl or .parquet"],
            &[Args(&["init", "sequence-classification", "bert-base-uncased", "--train", "rows.csv"])],
        ),
        case(
            CLASSES,
            with(&[
                Write("regex.json", "[{\"Name\": \"loss\", \"Regex\": \"'loss': [0-9.]+\"}]"),
                Args(&["metrics", "run", "--definitions", "regex.json"]),
            ]),
            &["put the number in parentheses: 'loss': ([0-9.]+)"],
            &[Write("regex.json", "[{\"Name\": \"loss\", \"Regex\": \"'loss': ([0-9.]+)\"}]")],
        ),
    ]);
}

#[test]
fn modes_devices_and_processes() {
    all(&[
        case(
            CLASSES,
            &[Set("compiler", "{ enabled = true, fusion = \"on\" }")],
            &["set it to \"auto\" or leave it out"],
            &[Unset("compiler.fusion")],
        ),
        case(
            CLASSES,
            &[Set("compiler", "{ enabled = true, graph = \"on\" }")],
            &["compiler.graph"],
            &[Set("compiler.graph", "\"auto\"")],
        ),
        case(
            CLASSES,
            &[Args(&["train", "config.toml", "--unfused"])],
            &["--compiler compiled --unfused"],
            &[Args(&["train", "config.toml", "--compiler", "compiled", "--unfused"])],
        ),
        case(
            CLASSES,
            &[Set("device.kind", "\"cuda\""), TRAIN],
            &["or set device.kind = \"cpu\""],
            &[Set("device.kind", "\"cpu\"")],
        ),
        case(
            CLASSES,
            &[Set("device.index", "7"), TRAIN],
            &["`kiln devices` lists what this build and this machine offer"],
            &[Args(&["devices"])],
        ),
        case(CLASSES, &[TRAIN, Env("RANK", "0")], &["unset RANK to train in one process"], &[Env("RANK", "")]),
        case(
            CLASSES,
            &[TRAIN, Env("OMPI_COMM_WORLD_RANK", "zero"), Env("OMPI_COMM_WORLD_SIZE", "2")],
            &["unset it to train in one process"],
            &[Env("OMPI_COMM_WORLD_RANK", ""), Env("OMPI_COMM_WORLD_SIZE", "")],
        ),
        case(
            CLASSES,
            &[Set("trainer.per_device_train_batch_size", "\"auto\""), Set("compiler.enabled", "\"auto\""), TRAIN],
            &["set one of the two"],
            &[Set("trainer.per_device_train_batch_size", "4")],
        ),
        case(
            CLASSES,
            &[Args(&["sweep", "config.toml"])],
            &["the section [sweep] is missing", "[sweep.parameters] with \"trainer.learning_rate\" = [1e-4, 1e-3]"],
            &[Set("sweep", "{ parameters = { \"trainer.learning_rate\" = [1e-4, 1e-3] } }")],
        ),
        case(CLASSES, &[Args(&["help", "clasifier"])], &["did you mean", "`kiln help` lists both"], &[Args(&["help"])]),
    ]);
}
