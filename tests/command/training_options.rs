//! Settings of `[trainer]` for the update and the loss, through the binary: every optimizer trains
//! and continues from a checkpoint bit for bit, frozen parameters keep their values, class weights
//! and label smoothing change the loss of training and of no evaluation. The formulas are tested in
//! `crates/train/src/optim/tests.rs` and `src/task/loss.rs`. Then Hugging Face's arguments: the
//! effect of each on a run, and whole files of them.

use std::path::Path;

use crate::common::messages::messages;
use crate::common::small_run::{SPIKE, copy, figures, train, write, write_with_a_spike};
use crate::common::{kiln, rows, succeeds, tensors, train_rows};

/// Every name of `trainer.optim`, with arguments where it takes some, and a learning rate that
/// suits it.
const OPTIMIZERS: [(&str, &str, &str); 8] = [
    ("adamw_torch", "", "1e-2"),
    ("adam", "", "1e-2"),
    ("sgd", "", "0.5"),
    ("sgd", "momentum=0.9,nesterov=true", "0.1"),
    ("adafactor", "scale_parameter=true,beta1=0.9", "0.1"),
    ("lion", "", "2e-3"),
    ("lamb", "", "5e-2"),
    ("muon", "adjust_lr_fn=original", "1e-2"),
];

fn bytes(run: &Path, file: &str) -> Vec<u8> {
    std::fs::read(run.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn every_optimizer_learns_and_continues_exactly() {
    let messages = messages!();
    for (optim, args, lr) in OPTIMIZERS {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "clm");
        let settings = [format!("trainer.optim={optim}"), format!("trainer.learning_rate={lr}")];
        let mut more = settings.iter().flat_map(|setting| ["--set", setting]).collect::<Vec<_>>();
        let args = format!("trainer.optim_args={args}");
        more.extend(["--set", "model.resid_pdrop=0.0", "--set", &args]);
        succeeds(&mut train(folder.path(), "run", &more));
        let run = folder.path().join("run");
        let losses = train_rows(&run).iter().map(|row| row["loss"].as_f64().unwrap()).collect::<Vec<_>>();
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        let (first, last) = (mean(&losses[..4]), mean(&losses[10..]));
        assert!(last < first, "{optim} {args}: {first} to {last}");

        let crashed = folder.path().join("crashed");
        copy(&run, &crashed);
        std::fs::remove_dir_all(crashed.join("checkpoints/step-000014")).unwrap();
        std::fs::remove_dir_all(crashed.join("model")).unwrap();
        more.push("--resume");
        let stdout = succeeds(&mut train(folder.path(), "crashed", &more));
        assert!(stdout.contains("continuing after step 7"), "{stdout}");
        for file in ["model/model.safetensors", "checkpoints/step-000014/optimizer.safetensors"] {
            assert!(bytes(&run, file) == bytes(&crashed, file), "{optim} {args}: {file}");
        }
        let other = ["--resume", "--set", "trainer.optim=adamw", "--set", "trainer.optim_args={}"];
        if optim != "adamw_torch" {
            messages.fails(train(folder.path(), "crashed", &other), 2);
        }
    }
}

#[test]
fn frozen_tensors_stay_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "sequence-classification");
    let more = [
        "--set",
        "trainer.freeze_layers=1",
        "--set",
        "trainer.freeze=[\"*pooler*\"]",
        "--set",
        "trainer.layer_wise_lr_decay=0.5",
        "--set",
        "trainer.save_steps=1",
    ];
    let stdout = succeeds(&mut train(folder.path(), "run", &more));
    assert!(stdout.contains("are frozen"), "{stdout}");
    assert!(stdout.contains("head 1.0000, layer 1 0.5000, layer 0 0.2500, embeddings 0.1250"), "{stdout}");
    let run = folder.path().join("run");
    let of = |step: usize| tensors(&run.join(format!("checkpoints/step-{step:06}/model.safetensors")));
    // The warm-up's first step has rate 0, so nothing has moved after it.
    let (first, last) = (of(1), of(14));
    for (name, values) in &first {
        let frozen = ["embeddings", "layer.0.", "pooler"].iter().any(|part| name.contains(part));
        assert_eq!(values == &last[name], frozen, "{name}");
    }
    let state = tensors(&run.join("checkpoints/step-000014/optimizer.safetensors"));
    assert!(state.contains_key("classifier.weight.exp_avg"));
    assert!(state.keys().all(|name| !["embeddings", "layer.0.", "pooler"].iter().any(|part| name.contains(part))));

    // Frozen stays frozen when the run is taken up again.
    std::fs::remove_dir_all(run.join("checkpoints/step-000014")).unwrap();
    std::fs::remove_dir_all(run.join("model")).unwrap();
    succeeds(train(folder.path(), "run", &more).arg("--resume"));
    assert_eq!(of(14), last);
}

#[test]
fn noise_on_embeddings_is_the_same_in_both_modes_and_after_a_stop() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let noisy = ["--set", "trainer.neftune_noise_alpha=5", "--set", "model.embd_pdrop=0.0"];
    let losses = |run: &str, more: &[&str]| {
        let stdout = succeeds(&mut train(folder.path(), run, &[&noisy, more].concat()));
        let rows = rows(&folder.path().join(run));
        let of = |name: &str| rows.iter().filter_map(|row| row.get(name)?.as_f64()).collect::<Vec<_>>();
        (of("loss"), of("eval_loss"), stdout)
    };
    let (native, _, stdout) = losses("native", &[]);
    assert!(stdout.contains("NEFTune on the token embedding: within 5 / sqrt("), "{stdout}");
    let (compiled, ..) = losses("compiled", &["--compiler", "compiled"]);
    // f32 sums in another order, over 14 updates.
    assert!(
        native.iter().zip(&compiled).all(|(one, other)| (one - other).abs() < 1e-4 * one),
        "{native:?} {compiled:?}"
    );
    let (none, ..) = losses("none", &["--set", "trainer.neftune_noise_alpha=0"]);
    assert!(native.iter().zip(&none).all(|(one, other)| one != other), "{native:?} {none:?}");
    // Nothing is learned in a step with rate 0, and evaluation sees no noise.
    let first = ["--set", "trainer.max_steps=1", "--set", "trainer.warmup_steps=1"];
    let (_, evaluated, _) = losses("first", &first);
    assert_eq!(evaluated, losses("plain", &[&first[..], &["--set", "trainer.neftune_noise_alpha=0"]].concat()).1);

    let run = folder.path().join("native");
    let weights = bytes(&run, "model/model.safetensors");
    std::fs::remove_dir_all(run.join("checkpoints/step-000014")).unwrap();
    std::fs::remove_dir_all(run.join("model")).unwrap();
    succeeds(train(folder.path(), "native", &noisy).arg("--resume"));
    assert!(bytes(&run, "model/model.safetensors") == weights);
    messages.fails(train(folder.path(), "native", &["--resume", "--set", "trainer.neftune_noise_alpha=1"]), 2);
}

#[test]
fn the_loss_of_training_is_weighted_and_smoothed_and_that_of_evaluation_is_smoothed() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "sequence-classification");
    // The first step: nothing has been learned, so evaluation after a step with rate 0 sees the
    // same weights.
    let first = |run: &str, set: &str| {
        let base = ["--set", "trainer.max_steps=1", "--set", "trainer.warmup_steps=1", "--set", "model.num_labels=3"];
        let mut command = train(folder.path(), run, &base);
        let stdout = succeeds(command.args(["--set", set]));
        let rows = rows(&folder.path().join(run));
        let number = |key: &str| rows.iter().find_map(|row| row.get(key)).unwrap().as_f64().unwrap();
        (number("loss"), number("eval_loss"), stdout)
    };
    let (plain, evaluated, _) = first("plain", "trainer.label_smoothing_factor=0.0");
    let (doubled, same, _) = first("doubled", "trainer.class_weights=[2, 2, 2]");
    // Every term and the divisor twice: the same but for the order of roundings.
    assert!((plain - doubled).abs() < 1e-6 * plain, "{plain} is not {doubled}");
    assert_eq!(evaluated, same);
    let (weighted, same, stdout) = first("weighted", "trainer.class_weights=[1, 5, 0.1]");
    assert!((plain - weighted).abs() > 1e-4, "{plain} {weighted}");
    assert_eq!(evaluated, same);
    assert!(stdout.contains("class weights [1.0, 5.0, 0.1], not in eval_loss"), "{stdout}");
    let (smoothed, other, _) = first("smoothed", "trainer.label_smoothing_factor=0.5");
    assert!((plain - smoothed).abs() > 1e-4, "{plain} {smoothed}");
    assert!((evaluated - other).abs() > 1e-4, "{evaluated} {other}");
    for set in ["trainer.class_weights=[1, 2]", "trainer.class_weights=[1, 2, 0]", "trainer.label_smoothing_factor=1"] {
        let labels = ["--set", "model.num_labels=3", "--set", set];
        messages.fails(train(folder.path(), "no", &labels), 2);
    }
}

/// Perplexity is the exponential of the negative log-likelihood, which smoothing is not; and `kiln
/// eval` computes what a run does.
#[test]
fn the_perplexity_of_a_smoothed_model_is_that_of_its_text() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let evaluation = |run: &str, smoothing: &str| {
        // The only step has rate 0.
        let smoothing = format!("trainer.label_smoothing_factor={smoothing}");
        let sets = ["--set", "trainer.max_steps=1", "--set", "trainer.warmup_steps=1", "--set", &smoothing];
        succeeds(&mut train(folder.path(), run, &sets));
        let mut eval = kiln(folder.path());
        let model = folder.path().join(run).join("model");
        eval.args([
            "eval",
            "--compiler",
            "native",
            "config.toml",
            "--out",
            "eval.json",
            "--set",
            &smoothing,
            "--model",
        ])
        .arg(model);
        succeeds(&mut eval);
        let rows = rows(&folder.path().join(run));
        let row = rows.into_iter().find(|row| row.get("eval_loss").is_some()).unwrap();
        let again = crate::common::json(&folder.path().join("eval.json"));
        ["eval_loss", "eval_perplexity"].map(|name| {
            assert_eq!(row[name], again[name], "{name}");
            row[name].as_f64().unwrap()
        })
    };
    let ([plain, perplexity], [smoothed, same]) = (evaluation("plain", "0.0"), evaluation("smoothed", "0.3"));
    assert!((plain - smoothed).abs() > 1e-4, "{plain} {smoothed}");
    assert_eq!(perplexity, same);
}

#[test]
fn what_does_not_fit_is_refused() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    for set in [
        "trainer.optim=adamx",
        "trainer.optim=lion_8bit",
        "trainer.optim_args=momentum=0.9",
        "trainer.optim_args=momentm=0.9",
        "trainer.optim_args=0.9",
        "trainer.optim_args=fast",
        "trainer.freeze=transformer.hh.*",
        "trainer.freeze_layers=3",
        "trainer.layer_wise_lr_decay=1.5",
    ] {
        messages.fails(train(folder.path(), "run", &["--set", set]), 2);
        assert!(!folder.path().join("run").exists(), "{set}");
    }
}

/// The events of `trace.json` lie in one another, and the parts of a step add up to it.
#[test]
fn a_profile_of_some_steps_shows_parts_and_operators() {
    for compiler in ["native", "compiled"] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "clm");
        let profile = ["--compiler", compiler, "--set", "trainer.profile_steps=[3, 4]"];
        let said = succeeds(&mut train(folder.path(), "run", &profile));
        assert!(said.contains("profile of steps 3 to 4: run/trace.json"), "{said}");
        let trace = crate::common::json(&folder.path().join("run/trace.json"));
        let events = trace["traceEvents"].as_array().unwrap();
        // In whole nanoseconds.
        let span = |event: &serde_json::Value| {
            let nanos = |name: &str| (event[name].as_f64().unwrap() * 1e3).round() as i64;
            (nanos("ts"), nanos("ts") + nanos("dur"))
        };
        let of = |category: &str| {
            let of_category = events.iter().filter(|event| event["cat"] == category);
            of_category.map(|event| (event["name"].as_str().unwrap(), span(event))).collect::<Vec<_>>()
        };
        let (steps, parts, calls) = (of("step"), of("part"), of("operator"));
        assert_eq!(steps.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["step 3", "step 4"]);
        let within = |(from, to): (i64, i64), (outer_from, outer_to): (i64, i64)| outer_from <= from && to <= outer_to;
        let apart = |a: (i64, i64), b: (i64, i64)| a.1 <= b.0 || b.1 <= a.0;
        let all = [&steps[..], &parts, &calls].concat();
        for (index, (name, one)) in all.iter().enumerate() {
            for (other_name, other) in &all[index + 1..] {
                let nested = within(*one, *other) || within(*other, *one) || apart(*one, *other);
                assert!(nested, "{name} {one:?} and {other_name} {other:?} overlap");
            }
        }
        for (_, step) in &steps {
            let inner = |spans: &[(&str, (i64, i64))]| {
                spans
                    .iter()
                    .filter(|(_, span)| within(*span, *step))
                    .map(|(name, span)| ((*name).to_owned(), *span))
                    .collect::<Vec<_>>()
            };
            let (parts, calls) = (inner(&parts), inner(&calls));
            for name in ["data", "forward", "backward", "update"] {
                assert!(parts.iter().any(|(part, _)| part == name), "{name} of {parts:?}");
            }
            // The events that lie in no other one, and the time between them, are the step.
            let outer =
                parts.iter().filter(|(_, span)| !parts.iter().any(|(_, other)| other != span && within(*span, *other)));
            let sum = outer.map(|(_, (from, to))| to - from).sum::<i64>();
            assert!(sum > 0 && sum <= step.1 - step.0, "{sum} of {step:?}");
            // The plain loss is no operator of its own.
            let loss = (compiler == "compiled").then_some("cross_entropy");
            for name in ["embedding", "layer_norm", "linear", "attention"].into_iter().chain(loss) {
                let call = calls.iter().find(|(call, _)| *call == name);
                let (_, span) = call.unwrap_or_else(|| panic!("{name} of {calls:?}"));
                assert!(parts.iter().any(|(_, part)| within(*span, *part)), "{name} lies in a part");
            }
        }
        let backward = events.iter().filter(|event| event["args"]["pass"] == "backward").count();
        assert_eq!(backward > 0, compiler == "compiled", "operators of the fused form have a backward of their own");
        // Overwriting the run takes the file away with it.
        succeeds(&mut train(folder.path(), "run", &["--set", "run.on_existing=overwrite"]));
        assert!(!folder.path().join("run/trace.json").exists());
    }
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    for window in ["[4, 3]", "[0, 3]", "[1]", "[15, 16]"] {
        let window = format!("trainer.profile_steps={window}");
        messages.fails(train(folder.path(), "run", &["--set", &window]), 2);
    }
}

fn set<'a>(settings: &[&'a str]) -> Vec<&'a str> {
    settings.iter().flat_map(|setting| ["--set", *setting]).collect()
}

/// The steps of rows that have `name`, but not of the summary.
fn steps_with(run: &Path, name: &str) -> Vec<u64> {
    let found = rows(run).into_iter().filter(|row| row.get(name).is_some() && row.get("train_runtime").is_none());
    found.map(|row| row["step"].as_u64().unwrap()).collect()
}

/// Four optimizer steps are an epoch of `small_run`: 20 rows in micro-batches of 3, accumulated by
/// two.
#[test]
fn rows_and_evaluations_come_when_they_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let run = |name: &str, settings: &[&str]| {
        let stdout = succeeds(&mut train(folder.path(), name, &set(settings)));
        (folder.path().join(name), stdout)
    };
    let (by_epoch, _) = run("epoch", &["trainer.logging_strategy=epoch", "trainer.eval_delay=7"]);
    assert_eq!(steps_with(&by_epoch, "loss"), [4, 8, 12, 14]);
    assert_eq!(steps_with(&by_epoch, "eval_loss"), [9, 12, 14]);
    let (silent, stdout) =
        run("no", &["trainer.logging_strategy=no", "trainer.eval_strategy=epoch", "trainer.eval_delay=2"]);
    assert!(steps_with(&silent, "loss").is_empty() && !stdout.contains("'loss'"), "{stdout}");
    assert_eq!(steps_with(&silent, "eval_loss"), [8, 12, 14]);
    let (once, _) = run("once", &["trainer.eval_strategy=no", "trainer.do_eval=true", "trainer.max_steps=3"]);
    assert_eq!(steps_with(&once, "eval_loss"), [3]);
    let (_, never) = run("never", &["trainer.eval_strategy=no", "trainer.max_steps=3"]);
    assert!(never.contains(" validation examples, and no evaluation: trainer.eval_strategy = \"epoch\""), "{never}");
    let (late, _) = run("late", &["trainer.eval_delay=20", "trainer.max_steps=3"]);
    assert!(steps_with(&late, "eval_loss").is_empty());

    let (_, quiet) = run("quiet", &["trainer.log_level=error", "trainer.max_steps=3", "trainer.run_name=one"]);
    assert!(quiet.lines().all(|line| line.starts_with('{')), "{quiet}");
    let described = succeeds(kiln(folder.path()).args(["describe", "quiet"]));
    assert!(described.contains("name           one"), "{described}");
    let again = ["trainer.overwrite_output_dir=true", "trainer.max_steps=4", "trainer.output_dir=quiet"];
    let (quiet, _) = run("quiet", &again);
    assert_eq!(steps_with(&quiet, "loss"), [1, 2, 3, 4]);
    let constant = ["trainer.lr_scheduler_type=constant", "trainer.max_steps=3"];
    let (flat, stdout) = run("flat", &constant);
    assert!(stdout.contains("warmup_steps = 3: the schedule `constant` has no warm-up"), "{stdout}");
    assert!(train_rows(&flat).iter().all(|row| row["learning_rate"] == 1e-3));
    let (_, compiled) = run("compiled", &["trainer.torch_compile=true", "trainer.max_steps=3"]);
    assert!(compiled.contains("compiled engine"), "{compiled}");
}

#[test]
fn without_training_a_model_is_evaluated_and_rows_are_predicted() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let only = set(&["trainer.do_train=false"]);
    let untrained = succeeds(&mut train(folder.path(), "run", &only));
    assert!(untrained.contains("no training; evaluating random weights") && untrained.contains("'eval_loss'"));
    assert!(!folder.path().join("run").exists(), "an evaluation writes nothing");
    succeeds(&mut train(folder.path(), "run", &[]));
    let before = bytes(&folder.path().join("run"), "metrics.jsonl");
    let trained = succeeds(&mut train(folder.path(), "run", &only));
    assert!(trained.contains("evaluating run/model"), "{trained}");
    let last = rows(&folder.path().join("run")).into_iter().rfind(|row| row.get("eval_loss").is_some()).unwrap();
    assert!(trained.contains(&format!("'eval_loss': {}", last["eval_loss"])), "{trained}");
    assert!(bytes(&folder.path().join("run"), "metrics.jsonl") == before);

    let table: String = (0..8).map(|row| format!("{} words,{}\n", ["good", "bad"][row % 2], row % 2)).collect();
    std::fs::write(folder.path().join("train.csv"), format!("text,label\n{table}")).unwrap();
    std::fs::write(folder.path().join("test.csv"), "text\ngood\nbad\ngood words\n").unwrap();
    let tokenizer = folder.path().join("tokenizer");
    std::fs::create_dir(&tokenizer).unwrap();
    std::fs::write(tokenizer.join("vocab.txt"), "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ngood\nbad\nwords\n").unwrap();
    let config = "[model]\nkind = \"bert\"\nnum_hidden_layers = 1\nnum_attention_heads = 2\nhidden_size = 8\n\
                  intermediate_size = 16\nmax_position_embeddings = 16\n[data]\ntask = \"sequence-classification\"\n\
                  format = \"csv\"\ntrain = \"train.csv\"\ntest = \"test.csv\"\n[tokenizer]\nfrom = \"tokenizer\"\n\
                  [trainer]\nmax_steps = 2\ndo_predict = true\n[device]\nkind = \"cpu\"\n";
    std::fs::write(folder.path().join("config.toml"), config).unwrap();
    messages.fails(train(folder.path(), "labels", &only), 2);
    messages.fails(train(folder.path(), "labels", &set(&["data.test=none.csv"])), 3);
    succeeds(&mut train(folder.path(), "labels", &[]));
    let predicted = bytes(&folder.path().join("labels"), "predict_results.jsonl");
    assert_eq!(String::from_utf8_lossy(&predicted).lines().count(), 3);
    succeeds(
        kiln(folder.path())
            .args(["predict", "--compiler", "native", "labels", "--input", "test.csv", "--out", "p.jsonl"])
            .args(["--task", "sequence-classification"]),
    );
    assert!(bytes(folder.path(), "p.jsonl") == predicted);
    succeeds(&mut train(folder.path(), "labels", &only));
    assert!(bytes(&folder.path().join("labels"), "predict_results.jsonl") == predicted);
}

#[test]
fn a_checkpoint_can_be_named_and_may_hold_the_model_alone() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let run = folder.path().join("run");
    succeeds(&mut train(folder.path(), "run", &[]));
    let model = bytes(&run, "model/model.safetensors");
    let from = |path: &str| format!("trainer.resume_from_checkpoint={path}");
    let stdout = succeeds(&mut train(folder.path(), "run", &set(&[&from("run/checkpoints/step-000007")])));
    assert!(stdout.contains("continuing after step 7"), "{stdout}");
    assert!(bytes(&run, "model/model.safetensors") == model);
    let plan = std::fs::read_to_string(run.join("plan.toml")).unwrap();
    assert!(!plan.contains("resume_from_checkpoint"), "{plan}");
    for path in ["run/checkpoints/step-000005", "data.jsonl"] {
        messages.fails(train(folder.path(), "run", &set(&[&from(path)])), 2);
    }

    let small = ["trainer.save_only_model=true", "trainer.save_steps=4", "trainer.load_best_model_at_end=true"];
    let small = [&small[..], &["trainer.eval_steps=4"]].concat();
    succeeds(&mut train(folder.path(), "small", &set(&small)));
    let step = folder.path().join("small/checkpoints/step-000004");
    assert!(step.join("model.safetensors").is_file() && !step.join("optimizer.safetensors").exists());
    let path = from("small/checkpoints/step-000004");
    let named = [&small[..], &[&path]].concat();
    messages.fails(train(folder.path(), "small", &set(&named)), 3);
    let resumed = [set(&small), vec!["--resume"]].concat();
    messages.fails(train(folder.path(), "small", &resumed), 3);
    // Its weights are there to begin another run with.
    let weights = ["model.from=small/checkpoints/step-000004", "trainer.max_steps=3"];
    let other = std::fs::read_to_string(folder.path().join("config.toml")).unwrap();
    let model = other.find("kind = \"gpt2\"").unwrap()..other.find("[data]").unwrap();
    std::fs::write(folder.path().join("config.toml"), other.replace(&other[model], "")).unwrap();
    succeeds(&mut train(folder.path(), "other", &set(&weights)));
    std::fs::write(folder.path().join("config.toml"), other).unwrap();

    // A run that is stopped can go on all the same.
    let stopped = [set(&small), vec!["--stop-after", "6"]].concat();
    succeeds(&mut train(folder.path(), "stopped", &stopped));
    assert!(folder.path().join("stopped/checkpoints/step-000006/optimizer.safetensors").is_file());
    let stdout = succeeds(&mut train(folder.path(), "stopped", &resumed));
    assert!(stdout.contains("continuing after step 6"), "{stdout}");
}

/// The files that transformers 5.23 and 4.57 wrote, whole.
#[test]
fn files_of_hugging_faces_arguments_are_taken_whole() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    let config = write(folder.path(), "clm");
    for release in ["5.23", "4.57"] {
        let path = format!(
            "{}/tests/fixtures/training_arguments_{release}.json",
            concat!(env!("CARGO_MANIFEST_DIR"), "/../..")
        );
        let cases = &crate::common::json(Path::new(&path))["cases"];
        for (case, args) in cases.as_object().unwrap() {
            let (file, run) = (format!("{case}.json"), format!("trainer.output_dir={case}-{release}"));
            std::fs::write(folder.path().join(&file), serde_json::to_string_pretty(args).unwrap()).unwrap();
            let mut plan = kiln(folder.path());
            let plan = succeeds(plan.args(["plan"]).arg(&config).args(["--hf-args", &file]));
            assert!(plan.contains("output         out\nno effect"), "{plan}");
            assert!(plan.contains("arguments that ask for nothing"), "{plan}");
            let mut train = kiln(folder.path());
            train.args(["train"]).arg(&config).args(["--hf-args", &file, "--set", &run]);
            succeeds(&mut train);
        }
    }
    let clm = folder.path().join("run_clm-5.23");
    assert_eq!(steps_with(&clm, "loss"), [2, 4, 6]);
    assert_eq!(steps_with(&clm, "eval_loss"), [3, 6]);
    assert!(!clm.join("checkpoints/step-000003/optimizer.safetensors").exists());
    let glue = folder.path().join("run_glue-4.57");
    assert!(glue.join("tensorboard").is_dir());
    assert_eq!(steps_with(&glue, "eval_loss"), [5, 10]);

    std::fs::write(folder.path().join("bad.json"), "{\n  \"tpu_num_cores\": 8\n}").unwrap();
    let bad = ["plan", "config.toml", "--hf-args", "bad.json"];
    messages.fails(kiln(folder.path()).args(bad), 2);
    messages.fails(kiln(folder.path()).args(["plan", "config.toml", "--hf-args", "."]), 2);
}

/// Whatever takes a config takes what is laid over it.
#[test]
fn arguments_mode_and_precision_are_laid_over_every_config() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    std::fs::write(folder.path().join("args.json"), "{\"learning_rate\": 2e-3, \"max_steps\": 4}").unwrap();
    std::fs::write(
        folder.path().join("sweep.toml"),
        "[sweep]\nconfig = \"config.toml\"\noutput_dir = \"search\"\n[sweep.parameters]\n\"trainer.seed\" = [1]\n",
    )
    .unwrap();
    let kiln = |args: &str| {
        let mut command = kiln(folder.path());
        command.args(args.split(' '));
        command
    };
    let over = "--hf-args args.json --compiler compiled --precision bf16";
    let plan = succeeds(&mut kiln(&format!("plan config.toml {over} --json")));
    let plan = serde_json::from_str::<serde_json::Value>(&plan).unwrap();
    let laid_over = |plan: &serde_json::Value| {
        assert_eq!(plan["optimizer"]["learning_rate"]["rate"], 2e-3);
        assert_eq!(plan["steps"]["total"], 4);
        assert_eq!(plan["engine"]["precision"]["precision"], "bf16");
        assert_eq!(plan["engine"]["mode"], "compiled");
    };
    laid_over(&plan);
    succeeds(&mut kiln(&format!("sweep sweep.toml {over}")));
    laid_over(&crate::common::json(&folder.path().join("search/trials/001-compiled/plan.json")));
    let sizes = succeeds(&mut kiln(&format!("tune-batch config.toml {over} --max 2")));
    assert!(sizes.starts_with("compiled: ") && sizes.contains(", bf16\n"), "{sizes}");
    let same =
        succeeds(&mut kiln("verify-resume config.toml --precision bf16 --compiler compiled --hf-args args.json"));
    assert!(same.contains("are the same, bit for bit"), "{same}");
    for command in ["compare", "bench", "parity", "bisect", "pretune", "verify-resume --modes"] {
        messages.fails(kiln(&format!("{command} config.toml --compiler native")), 2);
    }
    messages.fails(kiln("tune-batch config.toml --compiler native --mode both"), 2);
    messages.fails(kiln("bench --suite smoke --hf-args args.json"), 2);
}

/// Step 140 has a batch of tokens that no other step has. The z-scores are computed again here from
/// the rows of the run.
#[test]
fn steps_that_are_outliers_are_not_applied_also_after_a_resume() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write_with_a_spike(folder.path());
    let same = [&SPIKE[..], &["trainer.eval_steps=1", "trainer.save_steps=135"]].concat();
    let run = |name: &str, more: &[&str]| {
        let sets = same.iter().chain(more).flat_map(|set| ["--set", *set]).collect::<Vec<_>>();
        succeeds(&mut train(folder.path(), name, &sets))
    };
    // The z-score of every step from 129 on in the window of the 128 steps up to it.
    let scores = |name: &str, figure: &str| {
        let rows = train_rows(&folder.path().join(name));
        let values = rows.iter().map(|row| row[figure].as_f64().unwrap()).collect::<Vec<_>>();
        let score = |window: &[f64]| {
            let mean = window.iter().sum::<f64>() / 128.0;
            let variance = window.iter().map(|value| value * value).sum::<f64>() / 128.0 - mean * mean;
            (window[127] - mean) / variance.sqrt()
        };
        (129..=values.len()).map(|step| (step, score(&values[step - 128..step]))).collect::<Vec<_>>()
    };
    let losses = |name: &str| {
        let rows = rows(&folder.path().join(name));
        rows.iter().filter_map(|row| row["eval_loss"].as_f64()).collect::<Vec<_>>()
    };
    let plain = run("plain", &[]);
    assert!(!plain.contains("is not applied") && losses("plain")[139] != losses("plain")[138]);
    for (name, key, figure, words) in [
        ("of-loss", "trainer.skip_update_lossz=4", "loss", "its loss "),
        ("of-norm", "trainer.skip_update_gradz=4", "grad_norm", "its gradient norm "),
    ] {
        let stdout = run(name, &[key]);
        let outliers = scores(name, figure).into_iter().filter(|(_, score)| *score > 4.0).collect::<Vec<_>>();
        let [(140, score)] = outliers[..] else { panic!("{name}: {outliers:?}") };
        assert_eq!(stdout.matches("is not applied: ").count(), 1, "{stdout}");
        assert!(stdout.contains(&format!("step 140 is not applied: {words}")), "{stdout}");
        assert!(stdout.contains(&format!("has the z-score {score:.1} among")), "{stdout}");
        let evaluations = losses(name);
        assert_eq!(evaluations[..139], losses("plain")[..139], "up to there it is the run without");
        assert_eq!(evaluations[139], evaluations[138], "{name}: no weight moved");
        assert_ne!(evaluations[140], evaluations[139]);
        let counts =
            train_rows(&folder.path().join(name)).iter().map(|row| row["outlier_steps"].as_u64().unwrap()).sum::<u64>();
        assert_eq!(counts, 6, "one step from 140 to 145");

        let resumed = format!("{name}-resumed");
        copy(&folder.path().join(name), &folder.path().join(&resumed));
        std::fs::remove_dir_all(folder.path().join(&resumed).join("checkpoints/step-000145")).unwrap();
        std::fs::remove_dir_all(folder.path().join(&resumed).join("model")).unwrap();
        let changed = [key.replace("=4", "=5"), "run.on_existing=resume".into()];
        let sets = same.iter().copied().chain(changed.iter().map(String::as_str)).flat_map(|set| ["--set", set]);
        let sets = sets.collect::<Vec<_>>();
        messages.fails(train(folder.path(), &resumed, &sets), 2);
        let stdout = run(&resumed, &[key, "run.on_existing=resume"]);
        assert!(stdout.contains("continuing after step 135") && stdout.contains("step 140 is not applied"), "{stdout}");
        assert_eq!(figures(&folder.path().join(&resumed)), figures(&folder.path().join(name)));
        let weights = |name: &str| bytes(&folder.path().join(name), "model/model.safetensors");
        assert!(weights(&resumed) == weights(name), "{name}");
    }
    let negative = ["--set", "trainer.skip_update_lossz=-1"];
    messages.fails(train(folder.path(), "no", &negative), 2);
}
