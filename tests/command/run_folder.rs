//! The files and the output of a run, through the binary: rows of `metrics.jsonl`, dict lines on
//! stdout, `plan.toml` that repeats the run, the arithmetic of steps and epochs, and the text that
//! a trained model writes.

use crate::common::messages::messages;
use crate::common::place::Place;
use crate::common::{json, rows, succeeds, train_rows};
use serde_json::Value;

/// Every row, and steps that see the same data on any machine.
const EVERY: &str = "trainer.logging_steps=1";

fn keys(row: &Value) -> Vec<&str> {
    row.as_object().unwrap().keys().map(String::as_str).collect()
}

fn numbers(rows: &[Value], name: &str) -> Vec<f64> {
    rows.iter().map(|row| row[name].as_f64().unwrap()).collect()
}

fn eval_steps(place: &Place) -> Vec<u64> {
    let rows = rows(&place.path("run"));
    rows.iter().filter(|row| row.get("eval_loss").is_some()).map(|row| row["step"].as_u64().unwrap()).collect()
}

fn weights(place: &Place, run: &str) -> Vec<u8> {
    std::fs::read(place.path(run).join("model/model.safetensors")).unwrap()
}

#[test]
fn rows_have_the_keys_that_are_promised() {
    let place = Place::new();
    let sets =
        ["trainer.max_steps=4", EVERY, "data.validation=20%", "trainer.eval_strategy=steps", "trainer.eval_steps=2"];
    place.train("text.toml", &sets);
    let rows = rows(&place.path("run"));
    let kinds = rows.iter().map(|row| keys(row)[2]).collect::<Vec<_>>();
    assert_eq!(
        kinds,
        ["samples", "samples", "eval_loss", "samples", "samples", "eval_loss", "train_samples_per_second"]
    );
    let train = [
        "step",
        "epoch",
        "samples",
        "tokens",
        "loss",
        "grad_norm",
        "learning_rate",
        "step_ms",
        "tokens_per_s",
        "data_wait",
        "peak_mib",
        "reserved_mib",
    ];
    assert_eq!(keys(&rows[0]), train);
    assert_eq!(keys(&rows[2])[..5], ["step", "epoch", "eval_loss", "eval_perplexity", "eval_accuracy"]);
    let summary = rows.last().unwrap();
    let hugging_face = ["train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "epoch"];
    for key in hugging_face.into_iter().chain(["steady_step_ms", "steady_tokens_per_second", "warmup_seconds"]) {
        assert!(summary[key].as_f64().unwrap() > 0.0, "{key} in {summary}");
    }

    let train = train_rows(&place.path("run"));
    assert_eq!(numbers(&train, "step"), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(numbers(&train, "samples"), [4.0, 8.0, 12.0, 16.0]);
    assert_eq!(numbers(&train, "tokens"), [32.0, 64.0, 96.0, 128.0]);
    assert!(train.iter().all(|row| row["step_ms"].as_f64().unwrap() > 0.0));
    let mean = numbers(&train, "loss").iter().sum::<f64>() / 4.0;
    assert!((summary["train_loss"].as_f64().unwrap() - mean).abs() < 1e-5, "f32 sums of 4 losses: {summary}");
    for row in [&rows[2], &rows[5]] {
        let (loss, perplexity) = (row["eval_loss"].as_f64().unwrap(), row["eval_perplexity"].as_f64().unwrap());
        assert!((loss.exp() / perplexity - 1.0).abs() < 1e-12);
        assert!((0.0..=1.0).contains(&row["eval_accuracy"].as_f64().unwrap()));
    }
    assert_eq!(
        place.listing("run"),
        [
            ".lock",
            "all_results.json",
            "checkpoints",
            "metrics.jsonl",
            "model",
            "plan.json",
            "plan.toml",
            "provenance.json",
            "report.html",
            "run.log",
            "status.json",
            "trainer_state.json"
        ]
    );
    let model = [
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(place.listing("run/model"), model);
}

/// The number after `'name': ` as the metric regex `'name': ([0-9.]*)` reads it.
fn by_regex(stdout: &str, name: &str) -> Option<f64> {
    let start = stdout.find(&format!("'{name}': "))? + name.len() + 4;
    let text = &stdout[start..];
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text[..end].parse().ok()
}

#[test]
fn stdout_has_dict_lines_that_metric_regexes_read() {
    let place = Place::new();
    let stdout = place.train("rows.toml", &["trainer.max_steps=3", EVERY]);
    let rows = rows(&place.path("run"));
    let summary = rows.last().unwrap();
    for name in ["train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss"] {
        let (read, row) = (by_regex(&stdout, name).unwrap(), summary[name].as_f64().unwrap());
        assert!((read / row - 1.0).abs() < 1e-12, "{name} in\n{stdout}"); // serde_json rounds to within a last digit
    }
    assert!(by_regex(&stdout, "loss").unwrap() > 2.0);
    let lines = stdout.lines().filter(|line| line.starts_with("{'") && line.ends_with('}')).count();
    assert_eq!(lines, rows.len(), "{stdout}");
    // The line of active parts comes before the first step, the command that repeats the run after
    // the last.
    assert!(stdout.find("active ").unwrap() < stdout.find("{'step': 1,").unwrap());
    assert!(stdout.contains("again: kiln train run/plan.toml --set run.output_dir="), "{stdout}");
}

#[test]
fn warm_up_starts_at_zero() {
    let place = Place::new();
    let sets = ["trainer.max_steps=6", "trainer.warmup_steps=2", "trainer.learning_rate=0.01", EVERY];
    place.train("rows.toml", &sets);
    let rates = numbers(&train_rows(&place.path("run")), "learning_rate");
    assert_eq!(rates, [0.0, 0.005, 0.01, 0.0075, 0.005, 0.0025]);
}

#[test]
fn a_plan_repeats_the_run_bit_for_bit() {
    let place = Place::new();
    let sets = [
        "trainer.max_steps=5",
        EVERY,
        "data.validation=0.2",
        "trainer.eval_strategy=steps",
        "trainer.eval_steps=2",
        "trainer.gradient_accumulation_steps=2",
        "trainer.learning_rate=0.01",
        "trainer.warmup_steps=0.2",
    ];
    place.train("text.toml", &sets);
    let losses = |run: &str| {
        let rows = rows(&place.path(run));
        let pick = |row: &Value| {
            let value = ["loss", "eval_loss", "train_loss"].into_iter().find_map(|name| row.get(name)).unwrap().clone();
            (value, row.get("grad_norm").cloned(), row.get("learning_rate").cloned())
        };
        rows.iter().map(pick).collect::<Vec<_>>()
    };
    for (file, run, sets) in [
        ("run/plan.toml", "again", &["run.output_dir=again"][..]),
        ("text.toml", "same", &[&sets[..], &["run.output_dir=same"]].concat()),
    ] {
        place.train(file, sets);
        assert_eq!(losses(run), losses("run"), "{run}");
        assert!(weights(&place, run) == weights(&place, "run"), "{run} has other weights");
    }
    place.train("run/plan.toml", &["run.output_dir=other", "trainer.seed=43"]);
    assert_ne!(losses("other"), losses("run"));
    assert!(weights(&place, "other") != weights(&place, "run"));
    // A plan of a plan is the plan.
    let config = |run: &str| {
        let text = std::fs::read_to_string(place.path(run).join("plan.toml")).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.starts_with("output_dir"));
        lines.map(String::from).collect::<Vec<_>>()
    };
    assert_eq!(config("again"), config("run"));
}

#[test]
fn a_run_folder_is_kept_or_replaced() {
    let messages = messages!();
    let place = Place::new();
    place.train("rows.toml", &[]);
    place.write("run/notes.txt", "mine");
    messages.fails(place.config("train", "rows.toml", &[]), 2);
    let before = weights(&place, "run");
    place.train("rows.toml", &["run.on_existing=overwrite", "trainer.seed=7"]);
    assert!(weights(&place, "run") != before);
    assert_eq!(rows(&place.path("run")).len(), 3, "rows of the run before are gone");
    assert_eq!(std::fs::read_to_string(place.path("run/notes.txt")).unwrap(), "mine");
    // An empty folder is free.
    std::fs::create_dir(place.path("empty")).unwrap();
    place.train("rows.toml", &["run.output_dir=empty"]);
}

/// `overwrite` removes what Kiln has written and nothing else, also in the folders that it writes
/// to; and a model is not written over somebody's own.
#[test]
fn what_kiln_has_not_written_is_never_removed() {
    let messages = messages!();
    let place = Place::new();
    let board = ["trainer.report_to=tensorboard", "trainer.save_steps=1"];
    place.train("rows.toml", &board);
    let mine = [
        "run/notes.txt",
        "run/model/README.md",
        "run/model/onnx/model.onnx",
        "run/checkpoints/best.txt",
        "run/checkpoints/step-000001/notes.txt",
        "run/fault/ticket.txt",
        "run/compiler/ir.txt",
        "run/tensorboard/mine.tfevents",
    ];
    for file in mine {
        std::fs::create_dir_all(place.path(file).parent().unwrap()).unwrap();
        place.write(file, file);
    }
    let stays = || {
        for file in mine {
            assert_eq!(std::fs::read_to_string(place.path(file)).unwrap_or_default(), file);
        }
    };
    let before = weights(&place, "run");
    let overwrite = ["run.on_existing=overwrite", "trainer.seed=7", "trainer.lr_scheduler_type=constant"];
    let output = place.config("train", "rows.toml", &overwrite).output().unwrap();
    let text = crate::common::text(&output);
    assert!(output.status.success() && text.contains("kept, since Kiln has not written them: "), "{text}");
    stays();
    assert!(weights(&place, "run") != before);
    assert_eq!(place.listing("run/tensorboard"), ["mine.tfevents"], "curves of the run before are gone");
    assert_eq!(place.listing("run/model/onnx"), ["model.onnx"]);
    // A model that takes the place of another leaves what was added to that.
    place.train("rows.toml", &[&["run.on_existing=resume", "trainer.max_steps=3"], &overwrite[1..]].concat());
    assert_eq!(train_rows(&place.path("run")).len(), 3);
    stays();

    // Also where somebody has removed the list.
    std::fs::remove_file(place.path("run/.lock")).unwrap();
    place.train("rows.toml", &[&["run.on_existing=resume", "trainer.max_steps=4"], &overwrite[1..]].concat());
    stays();
    assert_eq!(place.listing("run/model").len(), 5, "a file of the model before is taken for somebody's");

    // A folder with somebody's model is no run, whatever else is in it.
    place.write("own.toml", "");
    for (folder, file) in [("own", "own/model/config.json"), ("other", "other/plan.toml"), ("third", "third/.lock")] {
        std::fs::create_dir_all(place.path(file).parent().unwrap()).unwrap();
        place.write(file, "mine");
        for how in ["fail", "resume", "overwrite"] {
            let (out, how) = (format!("run.output_dir={folder}"), format!("run.on_existing={how}"));
            messages.fails(place.config("train", "rows.toml", &[&out, &how]), 2);
            assert_eq!(std::fs::read_to_string(place.path(file)).unwrap(), "mine");
        }
    }
    // Nor is a model in a run that has not written one yet, nor a run of which nobody knows the
    // files.
    std::fs::rename(place.path("run/model"), place.path("elsewhere")).unwrap();
    let list = std::fs::read_to_string(place.path("run/.lock")).unwrap();
    let list = list.lines().filter(|line| !line.starts_with("model/")).map(|line| format!("{line}\n"));
    place.write("run/.lock", list.collect::<String>());
    std::fs::create_dir(place.path("run/model")).unwrap();
    place.write("run/model/config.json", "mine");
    for how in ["resume", "overwrite"] {
        let how = format!("run.on_existing={how}");
        messages.fails(place.config("train", "rows.toml", &[&how]), 2);
    }
    place.write("run/.lock", "");
    messages.fails(place.config("train", "rows.toml", &overwrite), 2);
    assert_eq!(std::fs::read_to_string(place.path("run/model/config.json")).unwrap(), "mine");
}

#[test]
fn evaluation_by_steps_by_epoch_and_on_start() {
    let steps = |sets: &[&str]| {
        let place = Place::new();
        place.train("rows.toml", &[&["data.validation=[\"rows.jsonl\"]", "trainer.max_steps=7"], sets].concat());
        eval_steps(&place)
    };
    assert_eq!(steps(&["trainer.eval_strategy=no"]), [0u64; 0]);
    assert_eq!(steps(&["trainer.eval_strategy=steps", "trainer.eval_steps=3"]), [3, 6, 7]);
    assert_eq!(steps(&["trainer.eval_strategy=epoch"]), [5, 7], "an epoch has 5 steps");
    assert_eq!(steps(&["trainer.eval_strategy=steps", "trainer.eval_steps=7", "trainer.eval_on_start=true"]), [0, 7]);
}

#[test]
fn the_length_of_a_run() {
    let last = |sets: &[&str]| {
        let place = Place::new();
        place.train("rows.toml", &[&["trainer.max_steps=-1", EVERY], sets].concat());
        let row = train_rows(&place.path("run")).pop().unwrap();
        (row["step"].as_u64().unwrap(), row["epoch"].as_f64().unwrap())
    };
    // 10 rows in batches of 2 are 5 steps an epoch.
    assert_eq!(last(&["trainer.num_train_epochs=2"]), (10, 2.0));
    assert_eq!(last(&["trainer.num_train_epochs=0.5"]), (3, 0.6), "2.5 steps, rounded up");
    assert_eq!(last(&["trainer.num_train_epochs=1.2"]), (6, 1.2));
    assert_eq!(last(&[]), (15, 3.0), "Hugging Face's default is 3 epochs");
    assert_eq!(last(&["trainer.max_tokens=24"]), (3, 0.6), "8 tokens a step");
    assert_eq!(last(&["trainer.max_tokens=25"]), (4, 0.8));
    assert_eq!(
        last(&["trainer.num_train_epochs=2", "trainer.max_minutes=1e-9"]),
        (1, 0.2),
        "the time is up after a step"
    );
}

#[test]
fn batches_that_do_not_divide_the_data() {
    let samples = |sets: &[&str]| {
        let place = Place::new();
        let epochs = ["trainer.max_steps=-1", "trainer.num_train_epochs=2", EVERY];
        place.train("rows.toml", &[&epochs, sets].concat());
        let rows = train_rows(&place.path("run"));
        (numbers(&rows, "samples"), numbers(&rows, "epoch"))
    };
    // 5 batches of 2 in windows of 2: the third window of an epoch holds one batch.
    let (seen, epochs) = samples(&["trainer.gradient_accumulation_steps=2"]);
    assert_eq!((seen, epochs), (vec![4.0, 8.0, 10.0, 14.0, 18.0, 20.0], vec![0.4, 0.8, 1.0, 1.4, 1.8, 2.0]));
    // Batches of 4: the third of an epoch holds 2 rows, or is dropped.
    let (seen, _) = samples(&["trainer.per_device_train_batch_size=4"]);
    assert_eq!(seen, [4.0, 8.0, 10.0, 14.0, 18.0, 20.0]);
    let (seen, _) = samples(&["trainer.per_device_train_batch_size=4", "trainer.dataloader_drop_last=true"]);
    assert_eq!(seen, [4.0, 8.0, 12.0, 16.0]);
}

/// One batch of 4 rows, or two micro-batches with these rows, make the same step of a model. Sums
/// of f32 in another order differ by rounding.
#[test]
fn accumulation_computes_the_same_step() {
    let place = Place::new();
    let step = |run: &str, micro: usize, accumulation: usize| {
        let out = format!("run.output_dir={run}");
        let (micro, accumulation) = (
            format!("trainer.per_device_train_batch_size={micro}"),
            format!("trainer.gradient_accumulation_steps={accumulation}"),
        );
        let dropout = ["model.resid_pdrop=0", "model.embd_pdrop=0", "model.attn_pdrop=0", "data.sampler=sequential"];
        place.train("rows.toml", &[&dropout[..], &[&out, &micro, &accumulation, EVERY]].concat());
        let row = train_rows(&place.path(run)).remove(0);
        (row["loss"].as_f64().unwrap(), row["grad_norm"].as_f64().unwrap())
    };
    let (whole, parts) = (step("whole", 4, 1), step("parts", 2, 2));
    assert!((whole.0 / parts.0 - 1.0).abs() < 1e-5 && (whole.1 / parts.1 - 1.0).abs() < 1e-5, "{whole:?} {parts:?}");
}

#[test]
fn logging_steps_and_the_first_step() {
    let steps = |sets: &[&str]| {
        let place = Place::new();
        place.train("rows.toml", &[&["trainer.max_steps=7"], sets].concat());
        numbers(&train_rows(&place.path("run")), "step")
    };
    assert_eq!(steps(&["trainer.logging_steps=3"]), [3.0, 6.0, 7.0]);
    assert_eq!(steps(&["trainer.logging_steps=3", "trainer.logging_first_step=true"]), [1.0, 3.0, 6.0, 7.0]);
    assert_eq!(steps(&["trainer.logging_steps=0.5"]), [4.0, 7.0], "a ratio of the run, rounded up");
}

#[test]
fn a_plan_writes_nothing_but_its_cache_and_shows_the_arithmetic() {
    let place = Place::new();
    let listing = || place.listing(".").into_iter().filter(|name| name != "kiln-cache").collect::<Vec<_>>();
    let before = listing();
    let sets = ["trainer.max_steps=12", "trainer.gradient_accumulation_steps=3", "trainer.warmup_steps=4"];
    let plan = succeeds(&mut place.config("plan", "rows.toml", &sets));
    assert_eq!(listing(), before);
    for part in [
        "parameters",
        "6 = 2 x 3 micro-batches",
        "steps          12 (max_steps = 12), 2 an epoch",
        "warm-up 4 steps",
        "0.000e0 at step 1",
        "memory",
        "cpu 0",
        "native engine, Kiln's fused operators off",
        "output         run",
    ] {
        assert!(plan.contains(part), "{part} in\n{plan}");
    }
    assert!(!plan.contains("'loss'"));
    // Text is tokenised into the cache, and nowhere else.
    succeeds(&mut place.config("plan", "text.toml", &[]));
    assert_eq!(place.listing("."), [&["kiln-cache".to_string()], &before[..]].concat());
}

#[test]
fn the_plan_is_saved_as_it_was_made() {
    let place = Place::new();
    let sets = ["trainer.max_steps=4", "trainer.gradient_accumulation_steps=2", "learning_rate.scaling=linear"];
    let sets = [&sets[..], &["learning_rate.reference_batch=12", "trainer.learning_rate=3e-4"]].concat();
    place.train("text.toml", &sets);
    let saved: Value = serde_json::from_slice(&std::fs::read(place.path("run/plan.json")).unwrap()).unwrap();
    let printed =
        succeeds(place.config("plan", "text.toml", &sets).args(["--json", "--set", "run.on_existing=overwrite"]));
    let printed: Value = serde_json::from_str(&printed).unwrap();
    for section in ["model", "data", "batch", "steps", "optimizer", "engine", "evaluation", "logging", "saving"] {
        assert!(saved[section].is_object(), "{section} in {saved}");
        assert_eq!(saved[section], printed[section]);
    }
    assert_eq!((&saved["batch"]["global"], &saved["steps"]["total"]), (&8.into(), &4.into()));
    let rate = saved["optimizer"]["learning_rate"]["rate"].as_f64().unwrap();
    assert!((rate / 2e-4 - 1.0).abs() < 1e-12, "{rate}");
    assert_eq!(saved["engine"]["fused_operators"], serde_json::json!([]));
    let described = succeeds(&mut place.kiln(&["describe", "run"]));
    assert!(described.contains("batch          8 = 4 x 2 micro-batches x 1 device"), "{described}");
    assert!(described.contains("learning rate  linear, warm-up 0 steps: 2.000e-4 at step 1"), "{described}");
}

/// `kiln plan` prints the settings that do not depend on the missing inputs, and the missing
/// inputs; its error is the same as that of `kiln train`.
#[test]
fn a_plan_without_its_inputs_says_what_it_can() {
    let place = Place::new();
    let outline = |file: &str, sets: &[&str], parts: &[&str]| {
        let output = place.config("plan", file, sets).output().unwrap();
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        for part in parts {
            assert!(stdout.contains(part), "{part} in\n{stdout}\n{stderr}");
        }
        let train = place.config("train", file, sets).output().unwrap();
        assert_eq!(train.status.code(), output.status.code());
        assert!(stderr.starts_with("error: ") && train.stderr == output.stderr, "the same error: {stderr}");
        stdout.into_owned()
    };
    let sets = ["data.train=nowhere/*.txt", "data.validation=gone.txt", "trainer.warmup_steps=1"];
    let text = outline(
        "text.toml",
        &sets,
        &[
            "model          gpt2 for clm",
            "parameters     depend on the tokenizer",
            "batch          4 = 4 x 1 micro-batch x 1 device",
            "steps          2 (max_steps = 2)",
            "learning rate  linear, warm-up 1 steps: 0.000e0 at step 1",
            "optimizer      adamw_torch betas (0.9, 0.999)",
            "precision      f32",
            "device         cpu 0",
            "captured step          not available",
            "logs           every 1 steps; evaluation: never",
            "lacks          data.train: ",
            "nowhere",
            "data.validation: ",
            "gone.txt",
        ],
    );
    assert!(!text.contains("tokens;"), "nothing is said of data that is not there: {text}");
    // A model of which everything is known has its parameters; how long it trains follows from the
    // data.
    let sets = ["data.train=nowhere.jsonl", "trainer.num_train_epochs=2", "trainer.max_steps=-1"];
    let parts = ["vocabulary 32, positions 16", "parameters     1,2", "depend on the data: 2 epochs", "peak 5.000e-5"];
    outline("rows.toml", &sets, &parts);
    // The learning rate follows the batch, whatever the data.
    let sets = ["data.train=nowhere.jsonl", "learning_rate.scaling=linear", "learning_rate.reference_batch=4"];
    outline("rows.toml", &sets, &["peak 5e-5 / 4 x 2 (global) = 2.5e-5"]);
    // Several inputs are missing: model folder, tokenizer and data.
    let all = "[run]\noutput_dir = \"run\"\n[model]\nfrom = \"./no-model\"\n[data]\ntask = \"clm\"\ntrain = \"nowhere.txt\"\n\
               [tokenizer]\nfrom = \"./no-tokenizer\"\n[device]\nkind = \"cpu\"\n";
    place.write("all.toml", all);
    outline(
        "all.toml",
        &[],
        &["model          not known, for clm", "no-model", "no-tokenizer", "nowhere", "optimizer  "],
    );
    // An error of another kind has no outline.
    for set in ["trainer.warmup_steps=9", "model.n_head=3"] {
        let output = place.config("plan", "rows.toml", &[set]).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{set}");
    }
}

#[test]
fn text_is_split_by_document_deterministically() {
    let place = Place::new();
    let examples = |sets: &[&str]| {
        let plan = succeeds(&mut place.config("plan", "text.toml", sets));
        plan.lines().find(|line| line.starts_with("data")).unwrap().to_string()
    };
    let whole = examples(&[]);
    let split = examples(&["data.validation=34%"]);
    assert_ne!(whole, split);
    assert!(whole.ends_with("validation none") && split.contains("validation ") && !split.ends_with("none"), "{split}");
    assert_eq!(split, examples(&["data.validation=34%"]));
}

#[test]
fn a_trained_model_writes_text() {
    let place = Place::new();
    let sampling = ["generation.prompt=let", "generation.max_new_tokens=6", "generation.temperature=0"];
    let stdout =
        place.train("text.toml", &[&["trainer.max_steps=30", "trainer.learning_rate=0.02"], &sampling[..]].concat());
    let sample = stdout.split("--- sample ---\n").nth(1).unwrap().split("\n--------------").next().unwrap();
    assert!(sample.starts_with("let") && sample.len() > 3, "{sample:?}");

    let generate = |args: &[&str]| {
        let args = [&["generate", "run/model", "--prompt", "let", "--max-new-tokens", "6"], args].concat();
        succeeds(&mut place.kiln(&args))
    };
    // Greedy: the same every time, whatever the seed, and what the run wrote at its end.
    let greedy = generate(&["--temperature", "0"]);
    assert_eq!(greedy, generate(&["--temperature", "0", "--seed", "9"]));
    assert_eq!(greedy.trim_end_matches('\n'), sample.trim_end_matches('\n'), "streamed text is the text");
    // Sampling: a seed gives one text, and some other seed another.
    let drawn = generate(&["--seed", "1"]);
    assert_eq!(drawn, generate(&["--seed", "1"]));
    assert!((2..12).any(|seed| generate(&["--seed", &seed.to_string()]) != drawn));
    assert_eq!(generate(&["--top-k", "1", "--seed", "3"]), greedy, "of one token there is no choice");
}

#[test]
fn the_model_folder_describes_the_model() {
    let place = Place::new();
    place.train("text.toml", &[]);
    let config = json(&place.path("run/model/config.json"));
    for (name, value) in [("n_layer", 1), ("n_head", 2), ("n_embd", 8), ("n_positions", 16), ("vocab_size", 270)] {
        assert_eq!(config[name], value, "{name}");
    }
    assert_eq!(config["architectures"][0], "GPT2LMHeadModel");
    // It can be trained on, and its tokenizer comes with it.
    place.write(
        "on.toml",
        "[run]\noutput_dir = \"on\"\n[model]\nfrom = \"run/model\"\n[data]\ntask = \"clm\"\ntrain = [\"text/*.txt\"]\n\
        [trainer]\nmax_steps = 1\nlearning_rate = 1e-12\n[device]\nkind = \"cpu\"\n",
    );
    let stdout = place.train("on.toml", &[]);
    assert!(stdout.contains("loaded 16 tensors"), "{stdout}");
    let (before, after) = (
        crate::common::tensors(&place.path("run/model/model.safetensors")),
        crate::common::tensors(&place.path("on/model/model.safetensors")),
    );
    for (name, (shape, values)) in &before {
        assert_eq!(&after[name].0, shape);
        // One step of AdamW moves a weight by at most the learning rate; f32 rounds that away or to
        // one last digit.
        assert!(values.iter().zip(&after[name].1).all(|(a, b)| (a - b).abs() <= 1e-6), "{name}");
    }
}

#[test]
fn the_model_has_a_card_that_nobody_replaces_once_it_is_changed() {
    let place = Place::new();
    let evaluated = ["data.validation=20%", "trainer.eval_strategy=steps", "trainer.eval_steps=2", EVERY];
    let train = |steps: usize, more: &[&str]| {
        let steps = format!("trainer.max_steps={steps}");
        place.train("text.toml", &[&evaluated[..], &[&*steps], more].concat());
        std::fs::read_to_string(place.path("run/model/README.md")).unwrap()
    };
    let card = train(4, &[]);
    let front = card.strip_prefix("---\n").unwrap().split("\n---\n").next().unwrap();
    for line in ["library_name: transformers", "pipeline_tag: text-generation", "- kiln", "    - type: accuracy"] {
        assert!(front.lines().any(|found| found == line), "{line}: {card}");
    }
    let last = rows(&place.path("run")).into_iter().rfind(|row| row.get("eval_loss").is_some()).unwrap();
    let loss = format!("| loss | {:.4} |", last["eval_loss"].as_f64().unwrap());
    assert!(card.contains(&loss) && card.contains("evaluated after step 4"), "{card}");
    assert!(card.contains("### Curves\n") && card.contains("| 2 | "), "{card}");
    assert!(!card.contains(place.path("").to_str().unwrap()), "it names no folder of the machine: {card}");

    // A run that goes on writes its card anew, unless somebody has changed it.
    let resume = ["run.on_existing=resume"];
    let longer = train(6, &resume);
    assert!(longer.contains("evaluated after step 6") && longer != card, "{longer}");
    let own = longer.replacen("## Training", "## Ours", 1);
    std::fs::write(place.path("run/model/README.md"), &own).unwrap();
    assert_eq!(train(8, &resume), own);
    // An `overwrite` that ends early leaves it, and a run that goes on takes the folder all the
    // same.
    let stopped = ["--set", "run.on_existing=overwrite", "--set", "trainer.max_steps=6", "--stop-after", "2"];
    succeeds(place.config("train", "text.toml", &evaluated).args(stopped));
    assert_eq!(std::fs::read_to_string(place.path("run/model/README.md")).unwrap(), own);
    assert_eq!(train(9, &resume), own);
    // Where there is none, the run writes one.
    std::fs::remove_file(place.path("run/model/README.md")).unwrap();
    assert!(train(10, &resume).contains("evaluated after step 10"));
}
