//! Folders of runs, what goes on in them, and where it is computed.
use super::Do::{Args, Env, Run, Set, Unset, Write};
use super::{CLASSES, Do, REVIEWS, TRAIN, all, case, joined, later};
use crate::common::messages::messages;

#[test]
fn run_folders_and_continuations() {
    let with = |more: &[Do]| joined(&[Run(&["train", "config.toml", "--set", "trainer.save_steps=1"])], more);
    all(
        messages!(),
        &[
            case(CLASSES, with(&[TRAIN]), &[Set("run.output_dir", "\"other\"")]),
            case(CLASSES, with(&[TRAIN]), &[Args(&["train", "config.toml", "--resume"])]),
            case(CLASSES, with(&[TRAIN]), &[Set("run.on_existing", "\"overwrite\"")]),
            case(
                CLASSES,
                with(&[Set("trainer.learning_rate", "0.5"), Args(&["train", "config.toml", "--resume"])]),
                &[Unset("trainer.learning_rate")],
            ),
            case(
                CLASSES,
                with(&[Set("trainer.learning_rate", "0.5"), Args(&["train", "config.toml", "--resume"])]),
                &[Set("model", "{ from = \"run/model\" }"), Set("run.output_dir", "\"other\""), TRAIN],
            ),
            case(
                CLASSES,
                &[Args(&["train", "config.toml", "--resume"])],
                &[Set("run.on_existing", "\"resume\""), TRAIN],
            ),
            case(CLASSES, with(&[Args(&["train", "run"])]), &[Args(&["train", "run", "--resume"])]),
            case(
                CLASSES,
                with(&[Set("run.resume_from_checkpoint", "\"run/checkpoints/step-000001\""), TRAIN]),
                &[Set("run.on_existing", "\"resume\"")],
            ),
            case(
                CLASSES,
                with(&[Args(&["train", "config.toml", "--resume-from", "run/model"])]),
                &[Args(&["train", "config.toml", "--resume-from", "run/checkpoints/step-000001"])],
            ),
            case(
                CLASSES,
                &[
                    Run(&["train", "config.toml", "--set", "trainer.save_strategy=no"]),
                    Args(&["train", "config.toml", "--resume", "--set", "trainer.max_steps=4"]),
                ],
                &[
                    Set("model", "{ from = \"run/model\" }"),
                    Args(&["train", "config.toml", "--set", "run.output_dir=other"]),
                ],
            ),
            case(CLASSES, &[Set("run.output_dir", "\"rows.csv\""), TRAIN], &[Set("run.output_dir", "\"other\"")]),
            case(CLASSES, &[Set("run.output_dir", "\"rows.csv/run\""), TRAIN], &[Set("run.output_dir", "\"new/run\"")]),
            case(CLASSES, with(&[Args(&["describe", "words"])]), &[Args(&["runs", "."])]),
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
                &[Args(&["init", "sequence-classification", "bert-base-uncased", "--train", "rows.csv"])],
            ),
            case(
                CLASSES,
                with(&[
                    Write("regex.json", "[{\"Name\": \"loss\", \"Regex\": \"'loss': [0-9.]+\"}]"),
                    Args(&["metrics", "run", "--definitions", "regex.json"]),
                ]),
                &[Write("regex.json", "[{\"Name\": \"loss\", \"Regex\": \"'loss': ([0-9.]+)\"}]")],
            ),
        ],
    );
}

/// Mistaken commands, options and keys lead to those that were meant.
#[test]
fn commands_options_and_keys_by_other_names() {
    const SCRIPT: Do = Write(
        "args.json",
        "{\"learning_rate\": 1e-4, \"model_name_or_path\": \"bert-base-uncased\", \"train_file\": \"rows.csv\", \
         \"max_seq_length\": 16, \"use_fast_tokenizer\": true}",
    );
    let trained = Run(&["train", "config.toml", "--stop-after", "1"]);
    all(
        messages!(),
        &[
            case(CLASSES, &[Args(&["trian", "config.toml"])], &[TRAIN]),
            case(CLASSES, &[Args(&["config.toml"])], &[TRAIN]),
            case(CLASSES, &[Args(&["missing.toml"])], &[TRAIN]),
            case(CLASSES, joined(&[trained], &[Args(&["resume"])]), &[Args(&["train", "config.toml", "--resume"])]),
            case(CLASSES, joined(&[trained], &[Args(&["run"])]), &[Args(&["describe", "run"])]),
            case(
                CLASSES,
                &[Args(&["train", "config.toml", "--learning_rate", "1e-4"])],
                &[Args(&["train", "config.toml", "--set", "trainer.learning_rate=1e-4"])],
            ),
            case(
                CLASSES,
                &[Args(&["plan", "config.toml", "--max-length=16"])],
                &[Args(&["plan", "config.toml", "--set", "data.max_length=16"])],
            ),
            case(
                CLASSES,
                &[Args(&["train", "config.toml", "--device", "cpu"])],
                &[Args(&["train", "config.toml", "--set", "device.kind=cpu"])],
            ),
            case(
                CLASSES,
                &[Args(&["plan", "config.toml", "--set", "learning_rate=1e-4"])],
                &[Args(&["plan", "config.toml", "--set", "trainer.learning_rate=1e-4"])],
            ),
            later(
                CLASSES,
                &[Args(&["plan", "config.toml", "--set", "kind=bert"])],
                &[Args(&["plan", "config.toml", "--set", "device.kind=bert"])],
            ),
            case(
                CLASSES,
                &[Args(&["plan", "config.toml", "--set", "train_file=rows.csv"])],
                &[Args(&["plan", "config.toml", "--set", "data.train=rows.csv"])],
            ),
            case(
                CLASSES,
                &[Args(&["plan", "config.toml", "--set", "max_seq_length=16"])],
                &[Args(&["plan", "config.toml", "--set", "data.max_length=16"])],
            ),
            case(
                CLASSES,
                &[Args(&["plan", "config.toml", "--set", "data.validation_file=rows.csv"])],
                &[Args(&["plan", "config.toml", "--set", "data.validation=rows.csv"])],
            ),
            case(
                CLASSES,
                &[SCRIPT, Args(&["plan", "config.toml", "--hf-args", "args.json"])],
                &[Write("args.json", "{\"learning_rate\": 1e-4}"), Set("data.max_length", "16")],
            ),
            case(CLASSES, joined(&[trained], &[Args(&["runs"])]), &[Args(&["runs", "."])]),
            case(CLASSES, &[Args(&["plan", "confg.toml"])], &[Args(&["plan", "config.toml"])]),
        ],
    );
}

#[test]
fn modes_devices_and_processes() {
    all(
        messages!(),
        &[
            case(CLASSES, &[Set("compiler", "{ enabled = true, fusion = \"on\" }")], &[Unset("compiler.fusion")]),
            case(
                CLASSES,
                &[Set("compiler", "{ enabled = true, graph = \"on\" }")],
                &[Set("compiler.graph", "\"auto\"")],
            ),
            case(
                CLASSES,
                &[Args(&["train", "config.toml", "--unfused"])],
                &[Args(&["train", "config.toml", "--compiler", "compiled", "--unfused"])],
            ),
            case(CLASSES, &[Set("device.kind", "\"cuda\""), TRAIN], &[Set("device.kind", "\"cpu\"")]),
            case(CLASSES, &[Set("device.index", "7"), TRAIN], &[Args(&["devices"])]),
            case(CLASSES, &[TRAIN, Env("RANK", "0")], &[Env("RANK", "")]),
            case(
                CLASSES,
                &[TRAIN, Env("OMPI_COMM_WORLD_RANK", "zero"), Env("OMPI_COMM_WORLD_SIZE", "2")],
                &[Env("OMPI_COMM_WORLD_RANK", ""), Env("OMPI_COMM_WORLD_SIZE", "")],
            ),
            case(
                CLASSES,
                &[Set("trainer.per_device_train_batch_size", "\"auto\""), Set("compiler.enabled", "\"auto\""), TRAIN],
                &[Set("trainer.per_device_train_batch_size", "4")],
            ),
            case(
                CLASSES,
                &[Args(&["sweep", "config.toml"])],
                &[Set("sweep", "{ parameters = { \"trainer.learning_rate\" = [1e-4, 1e-3] } }")],
            ),
            case(CLASSES, &[Args(&["help", "clasifier"])], &[Args(&["help"])]),
        ],
    );
}
