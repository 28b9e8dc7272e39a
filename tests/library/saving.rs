//! When checkpoints are saved and removed, which model is the best, when a run stops early, what
//! stands in the files of the run folder, and the order of the events.

use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::common::small_run::{copy, train, write};
use crate::common::{fails, json, kiln, rows, succeeds};
use kiln::OpenSession;
use kiln::core::metrics::Record;
use kiln::plan::TrainPlan;
use kiln::trainer::{Callback, Control, Progress};
use kiln::{RunConfig, Session, Trainer};

fn steps(run: &Path) -> Vec<u64> {
    let all = kiln::run_folder::checkpoint::list(&run.join("checkpoints")).unwrap();
    all.into_iter().map(|(step, _)| step).collect()
}

#[test]
fn strategies_and_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "sequence-classification");
    // 20 training rows in batches of 3, two a step: four steps an epoch, the last of them one
    // smaller batch.
    for (name, set, expected) in [
        ("no", vec!["trainer.save_strategy=no"], vec![]),
        ("steps", vec!["trainer.save_steps=5"], vec![5, 10, 14]),
        ("ratio", vec!["trainer.save_steps=0.5"], vec![7, 14]),
        ("default", vec!["trainer.save_steps=500"], vec![14]),
        ("epoch", vec!["trainer.save_strategy=epoch"], vec![4, 8, 12, 14]),
        ("limit", vec!["trainer.save_steps=3", "trainer.save_total_limit=2"], vec![12, 14]),
    ] {
        let mut command = train(folder.path(), name, &[]);
        for set in set {
            command.args(["--set", set]);
        }
        succeeds(&mut command);
        assert_eq!(steps(&folder.path().join(name)), expected, "{name}");
    }
    // A checkpoint opens as a model folder.
    let batch = folder.path().join("batch.json");
    std::fs::write(&batch, r#"{"input_ids": [[1, 2, 3]], "labels": [1]}"#).unwrap();
    let mut forward = kiln(folder.path());
    forward.args(["forward", "steps/checkpoints/step-000005", "--batch", "batch.json"]);
    succeeds(forward.args(["--task", "sequence-classification", "--out", "out.safetensors"]));
}

#[test]
fn the_best_model_is_kept_and_loaded() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "sequence-classification");
    // A rate that makes the loss worse in the end, so that the best evaluation is not the last.
    let set =
        ["--set", "trainer.learning_rate=0.2", "--set", "trainer.eval_steps=2", "--set", "trainer.warmup_steps=0"];
    let best = ["--set", "trainer.load_best_model_at_end=true", "--set", "trainer.save_total_limit=1"];
    succeeds(train(folder.path(), "run", &set).args(best).args(["--set", "trainer.save_steps=2"]));
    let run = folder.path().join("run");
    let losses = rows(&run)
        .iter()
        .filter_map(|row| Some((row.get("eval_loss")?.as_f64()?, row["step"].as_u64()?)))
        .collect::<Vec<_>>();
    let (loss, step) = losses.iter().copied().min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    assert!(step < 14, "the test needs a best model before the end: {losses:?}");
    let state = json(&run.join("trainer_state.json"));
    assert_eq!((state["best_global_step"].as_u64(), state["best_metric"].as_f64()), (Some(step), Some(loss)));
    assert!(state["best_model_checkpoint"].as_str().unwrap().ends_with(&format!("step-{step:06}")));
    assert_eq!(steps(&run), [step, 14], "the best one stays beside the newest");
    let file = |path: &str| std::fs::read(run.join(path).join("model.safetensors")).unwrap();
    assert!(file("model") == file(&format!("checkpoints/step-{step:06}")));
    assert!(file("model") != file("checkpoints/step-000014"));

    succeeds(train(folder.path(), "best", &set).args(["--set", "trainer.save_strategy=best"]));
    assert_eq!(steps(&folder.path().join("best")).last(), Some(&step));
}

/// A resumed run has left the checkpoints after its start behind, the suspect ones too: whatever
/// the limit, they do not count, they go, and the newest good one never does.
#[test]
fn suspect_checkpoints_never_take_the_place_of_good_ones() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let set = ["--set", "trainer.save_steps=1"];
    succeeds(&mut train(folder.path(), "whole", &set));
    for limit in 1..=3 {
        let name = format!("limit-{limit}");
        let run = folder.path().join(&name);
        copy(&folder.path().join("whole"), &run);
        let checkpoint = |step: u64| run.join(format!("checkpoints/step-{step:06}"));
        (9..=14).for_each(|step| std::fs::write(checkpoint(step).join("suspect.txt"), "a fault\n").unwrap());
        let limit = format!("trainer.save_total_limit={limit}");
        let resume = |more: &[&str]| {
            let mut command = train(folder.path(), &name, &[&set[..], &["--resume", "--set", &limit], more].concat());
            succeeds(&mut command)
        };
        // One step, after which the suspect ones of five later steps would still be there.
        assert!(resume(&["--stop-after", "9"]).contains("continuing after step 8 from"));
        let first = (10 - limit[limit.len() - 1..].parse::<u64>().unwrap()..=9).collect::<Vec<_>>();
        assert_eq!(steps(&run), first, "{limit}");
        assert!(first.iter().all(|step| !checkpoint(*step).join("suspect.txt").exists()), "{limit}");
        let entries = std::fs::read_dir(run.join("checkpoints")).unwrap().count();
        assert_eq!(entries, first.len(), "what was left behind is gone");
        resume(&[]);
        assert_eq!(steps(&run).last(), Some(&14));
        let file = |run: &Path| std::fs::read(run.join("model/model.safetensors")).unwrap();
        assert!(file(&run) == file(&folder.path().join("whole")), "{limit}");
    }
}

#[test]
fn early_stopping_ends_the_run_and_stays_ended() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "regression");
    let set = ["--set", "trainer.early_stopping_patience=2", "--set", "trainer.early_stopping_threshold=1e9"];
    succeeds(&mut train(folder.path(), "run", &set));
    let run = folder.path().join("run");
    assert_eq!(
        json(&run.join("trainer_state.json"))["global_step"],
        9,
        "the third evaluation is the second without gain"
    );
    assert_eq!(json(&run.join("status.json"))["status"], "Completed");
    let before = rows(&run).len();
    succeeds(train(folder.path(), "run", &set).arg("--resume"));
    assert_eq!(rows(&run).len(), before);
    // With more patience it goes on.
    succeeds(train(folder.path(), "run", &set).args(["--resume", "--set", "trainer.early_stopping_patience=9"]));
    assert_eq!(json(&run.join("trainer_state.json"))["global_step"], 14);
}

#[test]
fn a_figure_that_evaluation_does_not_give_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let mut command = train(folder.path(), "run", &["--set", "trainer.metric_for_best_model=bleu"]);
    fails(&mut command, 2, &["an evaluation of clm has no `bleu`", "it has loss, perplexity, accuracy"]);
    assert!(!folder.path().join("run").exists());
    let near = ["--set", "trainer.metric_for_best_model=eval_perplexty"];
    fails(&mut train(folder.path(), "run", &near), 2, &["did you mean `perplexity`?"]);
    let set = ["--set", "trainer.load_best_model_at_end=true", "--set", "trainer.save_steps=4"];
    fails(&mut train(folder.path(), "other", &set), 2, &["save_steps is 4", "eval_steps is 3"]);
}

#[test]
fn the_files_of_a_run() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    succeeds(&mut train(folder.path(), "run", &[]));
    let run = folder.path().join("run");
    let state = json(&run.join("trainer_state.json"));
    assert_eq!(state["log_history"].as_array().unwrap(), &rows(&run));
    assert_eq!((state["global_step"].as_u64(), state["max_steps"].as_u64()), (Some(14), Some(14)));
    let results = json(&run.join("all_results.json"));
    for name in ["train_loss", "train_runtime", "save_seconds", "eval_loss", "eval_perplexity"] {
        assert!(results[name].as_f64().is_some_and(|value| value > 0.0), "{name}: {results}");
    }
    let state = json(&run.join("checkpoints/step-000007/state.json"));
    assert_eq!((state["step"].as_u64(), state["format_version"].as_u64()), (Some(7), Some(2)));
    assert!(state["files"]["model.safetensors"]["sha256"].as_str().is_some_and(|sum| sum.len() == 64));
    let entries = std::fs::read_dir(run.join("checkpoints")).unwrap().count();
    assert_eq!(entries, 2, "nothing half written is left");
}

#[test]
fn a_config_can_be_verified() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "mlm");
    let stdout = succeeds(kiln(folder.path()).args(["verify-resume", "config.toml"]));
    assert!(stdout.contains("6 steps equal 3 steps, a stop and 3 steps") && stdout.contains("6 rows"), "{stdout}");
    assert!(!folder.path().join("run").exists());
    // The device that `auto` finds in this build is the CPU, where the promise is every bit.
    // Six examples a step in micro-batches of three, then of two, whose sums have another order.
    let other = ["verify-resume", "config.toml", "--micro-batch"];
    let stdout = succeeds(kiln(folder.path()).args(other).arg("2"));
    assert!(stdout.starts_with("micro-batch 2: 6 steps equal 3 steps, a stop and 3 steps"), "{stdout}");
    let apart = stdout.split("by rounding, by ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    // Rounding and nothing more: eps of f32 is 6e-8.
    assert!((1e-9..1e-5).contains(&apart.parse::<f64>().unwrap()), "{stdout}");
    for micro in ["3", "4", "0"] {
        fails(kiln(folder.path()).args(other).arg(micro), 2, &["--micro-batch: expected a divisor of 6 other than 3"]);
    }
    let auto = ["verify-resume", "config.toml", "--set", "device.kind=auto"];
    assert!(succeeds(kiln(folder.path()).args(auto)).contains("the same, bit for bit"));
    let one = ["verify-resume", "config.toml", "--set", "trainer.max_steps=1", "--set", "trainer.warmup_steps=0"];
    fails(kiln(folder.path()).args(one), 2, &["one step"]);
}

/// Writes down what is called, and asks for an evaluation and a checkpoint after step 2 and for the
/// end after step 5.
struct Events(Arc<Mutex<Vec<String>>>);

impl Events {
    fn note(&self, name: &str, step: u64) {
        self.0.lock().unwrap().push(format!("{name} {step}"));
    }
}

impl Callback for Events {
    fn on_train_begin(&mut self, _: &TrainPlan) {
        self.note("train_begin", 0);
    }
    fn on_epoch_begin(&mut self, progress: &Progress) {
        self.note("epoch_begin", progress.step);
    }
    fn on_step_begin(&mut self, progress: &Progress) {
        self.note("step_begin", progress.step);
    }
    fn on_step_end(&mut self, progress: &Progress, control: &mut Control) {
        self.note("step_end", progress.step);
        (control.should_evaluate, control.should_save) = (progress.step == 2, progress.step == 2);
        control.should_training_stop = progress.step == 5;
    }
    fn on_epoch_end(&mut self, progress: &Progress, _: &mut Control) {
        self.note("epoch_end", progress.step);
    }
    fn on_log(&mut self, progress: &Progress, _: &Record) {
        self.note("log", progress.step);
    }
    fn on_evaluate(&mut self, progress: &Progress, row: &Record, _: &mut Control) {
        assert!(row.get("eval_loss").is_some());
        self.note("evaluate", progress.step);
    }
    fn on_save(&mut self, progress: &Progress, checkpoint: &Path) {
        assert!(checkpoint.ends_with(format!("step-{:06}", progress.step)));
        self.note("save", progress.step);
    }
    fn on_train_end(&mut self, progress: &Progress, _: &Record) {
        self.note("train_end", progress.step);
    }
}

#[test]
fn events_come_in_order_and_the_control_is_heard() {
    let _alone = crate::one_at_a_time();
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "clm");
    let data = folder.path().join("data.jsonl").display().to_string();
    let run = folder.path().join("run");
    let set = [
        format!("data.train={data}"),
        format!("run.output_dir={}", run.display()),
        "trainer.logging_steps=4".into(),
        "trainer.eval_steps=100".into(),
        "trainer.save_strategy=no".into(),
    ];
    let config = RunConfig::load_with(&path, &set).unwrap();
    let events = Arc::new(Mutex::new(Vec::new()));
    let mut trainer =
        Trainer::from_session(Session::open(config).unwrap()).unwrap().with_callback(Events(events.clone()));
    assert_eq!(trainer.train().unwrap().step, 5);
    let expected = "train_begin 0, epoch_begin 0, step_begin 0, step_end 1, step_begin 1, step_end 2, evaluate 2, save 2, \
                    step_begin 2, step_end 3, step_begin 3, step_end 4, epoch_end 4, log 4, epoch_begin 4, step_begin 4, \
                    step_end 5, log 5, evaluate 5, train_end 5";
    assert_eq!(events.lock().unwrap().join(", "), expected);
    assert_eq!(steps(&run), [2]);
}

#[test]
fn the_log_and_the_curves_of_tensorboard() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let run = folder.path().join("run");
    let board = ["--set", "trainer.report_to=tensorboard"];
    succeeds(train(folder.path(), "run", &board).args(["--set", "trainer.max_steps=7"]));
    let log = std::fs::read_to_string(run.join("run.log")).unwrap();
    for part in ["Z parameters", "'step': 7, ", "'eval_loss': ", "saving ", "'train_runtime': "] {
        assert!(log.contains(part), "{part} in {log}");
    }
    let events = || std::fs::read_dir(run.join("tensorboard")).unwrap().map(|entry| entry.unwrap().path());
    let first = events().next().unwrap();
    assert!(first.file_name().unwrap().to_str().unwrap().starts_with("events.out.tfevents."));
    let bytes = std::fs::read(first).unwrap();
    for tag in ["train/loss", "train/learning_rate", "eval/perplexity"] {
        assert!(bytes.windows(tag.len()).any(|window| window == tag.as_bytes()), "{tag}");
    }
    // A run that is not asked for curves draws none, and one that is replaced leaves none behind.
    succeeds(
        train(folder.path(), "run", &["--set", "run.on_existing=overwrite"]).args(["--set", "trainer.max_steps=3"]),
    );
    assert!(!run.join("tensorboard").exists());
    fails(&mut train(folder.path(), "run", &["--set", "trainer.report_to=wandb"]), 2, &["`wandb` is not supported"]);
}

#[test]
fn a_model_is_packed_and_the_cache_is_listed_and_cleared() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    succeeds(&mut train(folder.path(), "run", &["--set", "trainer.max_steps=3"]));
    let stdout = succeeds(kiln(folder.path()).args(["export", "run", "--tar", "model.tar.gz"]));
    assert!(stdout.contains("config.json") && stdout.contains("wrote model.tar.gz"), "{stdout}");
    assert!(std::fs::metadata(folder.path().join("model.tar.gz")).unwrap().len() > 1000);
    fails(kiln(folder.path()).args(["export", "run", "--tar", "model.tar.gz"]), 2, &["the file exists"]);
    fails(kiln(folder.path()).args(["export", "none", "--tar", "a.tar.gz"]), 3, &["no config.json", "help: "]);
    fails(kiln(folder.path()).args(["export", "run", "--tar", "none/a.tar.gz"]), 1, &["cannot write none/a.tar.gz"]);

    // The rows of the run above, which were written once for training and validation.
    let listed = succeeds(kiln(folder.path()).args(["cache", "list"]));
    assert!(listed.contains(".rows  written") && listed.contains("  tokenized/"), "{listed}");
    assert!(succeeds(kiln(folder.path()).args(["cache", "clear"])).contains("removed 1 entries"));
    let tokens = folder.path().join("cache/tokens");
    std::fs::create_dir_all(&tokens).unwrap();
    std::fs::write(tokens.join("abc.tokens"), [0; 2048]).unwrap();
    let cache = |what: &str| succeeds(kiln(folder.path()).env("KILN_CACHE", "cache").args(["cache", what]));
    assert!(cache("list").contains("2.00 KiB  tokens/abc.tokens  written"));
    assert!(cache("clear").contains("removed 1 entries, 2.00 KiB"));
    assert!(cache("list").contains("0 entries"));
}

#[test]
fn the_best_model_is_saved_also_when_no_save_was_due() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "sequence-classification");
    // A rate that makes the loss worse, so that the best evaluation is an early one.
    let sets = [
        "trainer.learning_rate=30",
        "trainer.lr_scheduler_type=constant",
        "trainer.warmup_steps=0",
        "trainer.eval_steps=1",
        "trainer.save_steps=4",
        "trainer.max_steps=5",
        "trainer.load_best_model_at_end=true",
    ];
    succeeds(train(folder.path(), "run", &[]).args(sets.iter().flat_map(|set| ["--set", set])));
    let run = folder.path().join("run");
    let losses =
        rows(&run).into_iter().filter_map(|row| Some((row.get("eval_loss")?.as_f64()?, row["step"].as_u64()?)));
    let best = losses.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap().1;
    assert!(best < 4, "the best evaluation is not one whose step is saved anyway: {best}");
    let file = |path: &str| std::fs::read(run.join(path)).unwrap();
    assert!(file("model/model.safetensors") == file(&format!("checkpoints/step-{best:06}/model.safetensors")));
}

#[test]
fn files_of_a_pretrained_models_folder_stand_in_every_folder_as_they_came() {
    use crate::common::place::{Place, TEXT};
    let place = Place::new();
    place.train("text.toml", &["run.output_dir=first"]);
    let said = json(&place.path("first/model/tokenizer_config.json"));
    assert_eq!(
        (&said["tokenizer_class"], &said["model_max_length"]),
        (&serde_json::json!("GPT2Tokenizer"), &serde_json::json!(16))
    );
    assert_eq!(said["model_input_names"], serde_json::json!(["input_ids", "attention_mask"]));
    assert_eq!(json(&place.path("first/checkpoints/step-000002/tokenizer_config.json")), said);

    // As people leave a folder: spaces of their own, a template, settings of generation.
    let config =
        "{\"tokenizer_class\": \"GPT2Tokenizer\",\t\"padding_side\": \"left\", \"pad_token\": \"<|endoftext|>\"}\n\n";
    for (name, text) in [
        ("tokenizer_config.json", config),
        ("special_tokens_map.json", "{\"eos_token\": \"<|endoftext|>\"}"),
        ("chat_template.jinja", "{{ messages }}"),
        ("additional_chat_templates/tools.jinja", "{{ tools }}"),
        ("generation_config.json", "{ \"eos_token_id\": [0, 7] }"),
    ] {
        place.write(&format!("first/model/{name}"), text);
    }
    let files = [
        "additional_chat_templates/tools.jinja",
        "chat_template.jinja",
        "generation_config.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    // Three runs, each from a folder that the one before wrote: its model, then its checkpoint.
    for (from, to) in
        [("first/model", "second"), ("second/model", "third"), ("third/checkpoints/step-000002", "fourth")]
    {
        let text =
            TEXT.replace("[model]\nkind = \"gpt2\"\nn_layer = 1\nn_head = 2\nn_embd = 8\nn_positions = 16\n", "");
        let text = text.replace("[tokenizer]\ntrain_vocab_size = 270\n", &format!("[model]\nfrom = \"{from}\"\n"));
        place.write("again.toml", text);
        place.train("again.toml", &[&format!("run.output_dir={to}")]);
        succeeds(&mut place.kiln(&["export", to, "--tar", &format!("{to}.tar.gz")]));
        let archive = std::fs::File::open(place.path(&format!("{to}.tar.gz"))).unwrap();
        tar::Archive::new(flate2::read::GzDecoder::new(archive)).unpack(place.path(&format!("{to}-unpacked"))).unwrap();
        for folder in [format!("{to}/model"), format!("{to}/checkpoints/step-000002"), format!("{to}-unpacked")] {
            for file in files {
                let read = |folder: &str| std::fs::read(place.path(&format!("{folder}/{file}"))).ok();
                assert!(read(&folder).is_some() && read(&folder) == read("first/model"), "{folder}/{file}");
            }
        }
    }
    // Such a checkpoint is whole to a run that is resumed. One whose files have changed is damaged,
    // those in a folder of their own included.
    let sets = ["run.output_dir=fourth", "run.on_existing=resume"];
    let said = succeeds(&mut place.config("train", "again.toml", &sets));
    assert!(said.contains("complete after step 2"), "{said}");
    place.write("fourth/checkpoints/step-000002/additional_chat_templates/tools.jinja", "{{ other }}");
    fails(&mut place.config("train", "again.toml", &sets), 3, &["tools.jinja does not match its checksum"]);

    // An id of generation_config.json that is none of the model's is refused by name.
    place.write("second/model/generation_config.json", "{\"eos_token_id\": 4294967301}");
    let parts = ["generation_config.json", "eos_token_id: expected ids below vocab_size (270), got 4294967301"];
    fails(&mut place.kiln(&["generate", "second/model", "--prompt", "let"]), 3, &parts);

    // A task that the family has no head for is told before anything is written.
    fails(&mut place.kiln(&["init", "clm", "bert-base-uncased"]), 2, &["mlm, sequence-classification, regression"]);
    assert!(!place.path("clm.toml").exists());
}

/// Figures of one's own: here the accuracy again, and how many examples there were.
#[test]
fn figures_of_ones_own_stand_in_the_log_and_choose_the_best_model() {
    use kiln::task::evaluator::{ComputeMetrics, EvalPrediction};

    for task in ["sequence-classification", "token-classification", "multiple-choice", "multi-label-classification"] {
        let folder = tempfile::tempdir().unwrap();
        let path = write(folder.path(), task);
        let keys = "save_steps = 3\nload_best_model_at_end = true\nmetric_for_best_model = \"own_accuracy\"\n\
                    greater_is_better = true";
        let place = |name: &str| format!("{:?}", folder.path().join(name));
        let text = std::fs::read_to_string(&path).unwrap().replace("save_steps = 7", keys);
        let text = text.replace("\"data.jsonl\"", &place("data.jsonl")).replace("\"run\"", &place("run"));
        std::fs::write(&path, text).unwrap();
        let config = RunConfig::load(&path).unwrap();
        let compute = |seen: &EvalPrediction| {
            let best = |logits: &Vec<f32>| (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
            let several = |(logits, values): (&Vec<f32>, &Vec<f32>)| {
                logits.iter().zip(values).all(|(logit, value)| (*logit > 0.0) == (*value > 0.5))
            };
            let ids = seen.predictions.iter().zip(&seen.label_ids);
            let right = ids.filter(|(logits, id)| best(logits) == **id as usize).count();
            let right = right + seen.predictions.iter().zip(&seen.label_values).filter(|pair| several(*pair)).count();
            Ok(vec![right as f64 / seen.predictions.len() as f64, seen.predictions.len() as f64])
        };
        let metrics = ComputeMetrics::new(&["own_accuracy", "own_count"], compute);
        let session = Session::open_with_metrics(config, metrics).unwrap();
        Trainer::from_session(session).unwrap().train().unwrap();
        let all = rows(&folder.path().join("run"));
        let of_eval = all.iter().filter(|row| row.get("eval_loss").is_some()).collect::<Vec<_>>();
        assert!(of_eval.len() >= 2, "{task}");
        for row in of_eval {
            let figure = |name: &str| row[name].as_f64().unwrap();
            assert!((figure("eval_own_accuracy") - figure("eval_accuracy")).abs() < 1e-6, "{task}: {row}");
            assert!(figure("eval_own_count") >= figure("eval_samples"), "{task}: {row}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "sequence-classification");
    let data = format!("{:?}", folder.path().join("data.jsonl"));
    std::fs::write(&path, std::fs::read_to_string(&path).unwrap().replace("\"data.jsonl\"", &data)).unwrap();
    let config = RunConfig::load(&path).unwrap();
    for (names, part) in [
        (&["accuracy"][..], "has the figure \"accuracy\" already"),
        (&["own", "samples"], "\"eval_samples\" already"),
        (&["runtime"], "\"eval_runtime\" already"),
        (&["own", "own"], "\"own\" comes twice"),
        (&["a b"], "got \"a b\""),
    ] {
        let known = ComputeMetrics::new(names, |_| Ok(vec![1.0]));
        let error = Session::open_with_metrics(config.clone(), known).map(drop).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
