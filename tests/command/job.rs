//! `kiln job` under a folder that stands for `/opt/ml`, laid out as a training platform lays it
//! out; and `kiln metrics` on what it prints.
#![cfg(unix)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::common::messages::{Messages, messages};
use crate::common::small_run::figures;
use crate::common::{ended, kiln, succeeds, text};

/// The root of a job.
pub(crate) struct Root {
    folder: tempfile::TempDir,
}

impl Root {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// A job that trains a small GPT-2 on a channel of text, without a config file.
    fn small(more: &Value) -> Self {
        let root = Self::new();
        let mut all = json!({
            "task": "clm", "kind": "gpt2", "n_layer": "1", "n_head": "2", "n_embd": "8", "n_positions": "16",
            "block_size": "8", "train_vocab_size": "270", "max_steps": "4", "per_device_train_batch_size": "2",
            "logging_steps": "1", "use_cpu": "True", "learning_rate": "1e-3",
        });
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        root.hyperparameters(&all);
        root.text("train");
        root
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub(crate) fn hyperparameters(&self, all: &Value) {
        self.write("input/config/hyperparameters.json", all.to_string());
    }

    /// A channel of two text files.
    fn text(&self, channel: &str) {
        for document in 0..2u32 {
            let words = (0..200u32)
                .map(|i| format!("{}{}", ["fn", "let", "use", "mod"][(i % 4) as usize], i * (document + 3) % 41));
            self.write(&format!("input/data/{channel}/{document}.txt"), words.collect::<Vec<_>>().join(" "));
        }
    }

    fn job(&self) -> Command {
        let mut command = kiln(self.folder.path());
        command.args(["job", "--root"]).arg(self.folder.path());
        command
    }

    pub(crate) fn succeeds(&self) -> String {
        let stdout = succeeds(&mut self.job());
        assert!(!self.path("output/failure").exists());
        stdout
    }

    /// It fails with this code, says each part in one message, and leaves that message where the
    /// platform reads it.
    pub(crate) fn fails(&self, code: i32, parts: &[&str]) -> String {
        let output = self.job().output().unwrap();
        let (all, stderr) = (text(&output), String::from_utf8_lossy(&output.stderr).into_owned());
        assert_eq!(output.status.code(), Some(code), "{all}");
        assert_eq!(stderr.matches("error: ").count(), 1, "{all}");
        let failure = self.read("output/failure");
        assert!(failure.chars().count() <= 1024, "{}", failure.chars().count());
        assert!(stderr.contains(failure.trim_end_matches("...").trim_end()), "{failure}\nis not what was said:\n{all}");
        parts.iter().for_each(|part| assert!(stderr.contains(part), "expected {part:?} in\n{all}"));
        stderr
    }

    /// [`Self::fails`], with the message recorded; what it says.
    pub(crate) fn refused(&self, messages: &Messages, code: i32) -> String {
        let stderr = self.fails(code, &[]);
        messages.given("hyperparameters.json", &self.read("input/config/hyperparameters.json"));
        messages.failed(&self.job(), code, &stderr);
        stderr
    }

    /// The config of the run.
    pub(crate) fn config(&self) -> toml::Table {
        self.read("output/data/config.toml").parse().unwrap()
    }
}

fn model(root: &Root) -> Vec<u8> {
    std::fs::read(root.path("model/model.safetensors")).unwrap()
}

#[test]
fn a_job_of_hyperparameters_and_channels_leaves_its_results() {
    let root = Root::small(&json!({
        "training_script": "\"run_clm.py\"", "sagemaker_program": "\"run_clm.py\"", "sagemaker_region": "\"us-east-1\"",
        "sagemaker_submit_directory": "\"s3://b/source.tar.gz\"", "sagemaker_container_log_level": "20", "n_gpus": "1",
        "sagemaker_training_compiler_enabled": "true", "sagemaker_training_compiler_debug_mode": "false",
        "output_dir": "/opt/ml/model", "overwrite_output_dir": "True", "do_train": "True", "do_eval": "True", "fp16": "False",
        "preprocessing_num_workers": "4", "evaluation_strategy": "\"no\"", "report_to": "null", "price_per_hour": "3.60",
    }));
    root.text("validation");
    let stdout = root.succeeds();
    for part in [
        "Found configuration for Training Compiler\nConfiguring SM Training Compiler...\n",
        "sagemaker_region = \"\\\"us-east-1\\\"\": no effect",
        "'train_runtime': ",
        "'eval_loss': ",
        "***** train metrics *****\n  epoch ",
        "***** eval metrics *****\n  epoch ",
        "\nTraining seconds: ",
        "\nBillable seconds: ",
        "\nCost: 0.00",
    ] {
        assert!(stdout.contains(part), "expected {part:?} in\n{stdout}");
    }
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        assert!(root.path("model").join(name).is_file(), "{name}");
    }
    for name in ["metrics.jsonl", "run.log", "report.html", "all_results.json", "plan.toml", "config.toml"] {
        assert!(root.path("output/data").join(name).is_file(), "{name}");
    }
    assert!(!root.path("output/data/model").exists() && !root.path("output/data/checkpoints").exists());
    let config = root.config();
    assert_eq!(config["data"]["train"][0].as_str(), Some("${SM_CHANNEL_TRAIN}"));
    assert_eq!(config["data"]["validation"][0].as_str(), Some("${SM_CHANNEL_VALIDATION}"));
    assert_eq!(config["compiler"]["enabled"].as_bool(), Some(true));
    // Once more: there is nothing left to do, and the results are as they were.
    let before = model(&root);
    std::fs::remove_dir_all(root.path("model")).unwrap();
    let stdout = root.succeeds();
    assert!(stdout.contains("complete after step 4, nothing to continue"), "{stdout}");
    assert!(model(&root) == before);
    let seconds = serde_json::from_str::<Value>(&root.read("checkpoints/job.json")).unwrap();
    assert_eq!(seconds["seconds"].as_array().unwrap().len(), 2);
    // The model of a job can be used where any model can.
    let out = succeeds(kiln(&root.path("")).args(["generate", "model", "--prompt", "fn", "--max-new-tokens", "2"]));
    assert!(!out.is_empty());
}

#[test]
fn a_tokenizer_config_that_is_no_json_is_told_before_its_limit_is_looked_for() {
    let messages = messages!();
    let root = Root::small(&json!({"training_script": "run_clm.py", "tokenizer_name": "/opt/ml/input/data/tokenizer"}));
    root.write("input/data/tokenizer/tokenizer_config.json", "{");
    root.refused(&messages, 3);
}

#[test]
fn values_are_read_as_the_texts_that_they_are() {
    let root = Root::small(&json!({
        "learning_rate": "5e-5", "trainer.weight_decay": ".1", "bf16": "False", "label_names": "null", "max_grad_norm": "None",
        "seed": "\"18446744073709551615\"", "run_name": "\"42\"", "lr_scheduler_type": "\"polynomial\"",
        "lr_scheduler_kwargs": "{\"power\": 2.0}", "freeze": "['*wte*', '*wpe*']", "save_steps": 2, "warmup_ratio": 0.25,
        "resid_pdrop": "0", "hidden_size": null, "adam_beta2": "\"0.95\"", "num_train_epochs": "\"1\"", "max_run": "3600",
        "save_strategy": "no", "dataloader_num_workers": "2", "n_embd": 16, "optim_args": "", "precision": "f32",
    }));
    root.succeeds();
    let config = root.config();
    let is = |key: &str, value: toml::Value| {
        let (section, key) = key.split_once('.').unwrap();
        assert_eq!(config[section][key], value, "{section}.{key}");
    };
    is("trainer.learning_rate", 5e-5.into());
    is("trainer.weight_decay", 0.1.into());
    is("trainer.max_grad_norm", 0.0.into());
    is("trainer.seed", "18446744073709551615".into());
    is("run.name", "42".into());
    is("trainer.lr_scheduler_type", "polynomial".into());
    is("trainer.freeze", vec!["*wte*", "*wpe*"].into());
    is("trainer.save_steps", 2.into());
    is("trainer.warmup_steps", 0.25.into());
    is("trainer.adam_beta2", 0.95.into());
    is("trainer.max_minutes", 60.0.into());
    is("model.n_embd", 16.into());
    is("model.resid_pdrop", 0.into());
    is("trainer.max_steps", 4.into());
    assert!(config["data"].get("label_names").is_none() && config["model"].get("hidden_size").is_none());
}

#[test]
fn what_is_not_known_or_cannot_be_read_is_refused_together() {
    let messages = messages!();
    let root = Root::small(&json!({
        "learning_rat": "1e-4", "n_layer": "two", "fp16": "maybe", "per_device_train_batch_size": "-1", "n_gpus": "four",
        "model.n_heads_": "1", "sagemaker_training_compiler_enable": "true", "save_steps": {"a": [1]}, "deepspeed": "ds.json",
        "max_run": "-3", "warmup_steps": "0x10", "line_by_line": "True", "push_to_hub_token": "hf_secret", "hub_tokn": "\u{1b}[2J",
    }));
    let stderr = root.refused(&messages, 2);
    assert!(!stderr.contains("secret") && !stderr.contains('\u{1b}'), "{stderr}");
    for made in ["checkpoints", "model", "output/data", "kiln-cache"] {
        assert!(!root.path(made).exists(), "{made} was made before the hyperparameters were read");
    }
    // A contradiction of two of them is told by their names.
    root.hyperparameters(
        &json!({"train_file": "a.txt", "task": "clm", "kind": "gpt2", "fp16": "True", "bf16": "True"}),
    );
    root.refused(&messages, 2);
    root.hyperparameters(&json!({"task": "clm", "learning_rate": "1", "trainer.learning_rate": "2"}));
    root.refused(&messages, 2);
    root.hyperparameters(&json!({"task": "clm", "kind": "gpt2", "train_file": "a.txt", "train_vocab_size": "270"}));
    let mut command = root.job();
    messages.fails(command.args(["--price-per-hour", "-1"]), 2);
    root.hyperparameters(&json!({"kind": "gpt2"}));
    root.refused(&messages, 2);
    root.hyperparameters(&json!({"task": "clm", "kind": "gpt2", "learning_rate": "-1", "train_vocab_size": "270"}));
    root.refused(&messages, 2);
}

#[test]
fn a_contract_that_cannot_be_read_is_refused() {
    let messages = messages!();
    let root = Root::small(&json!({}));
    for bytes in ["{\"task\": \"clm\", \"task\": \"mlm\"}", "[1]", "{\"task\": "] {
        root.write("input/config/hyperparameters.json", bytes);
        root.refused(&messages, 2);
    }
    let root = Root::small(&json!({}));
    root.write("input/config/inputdataconfig.json", "{\"train\": {\"TrainingInputMode\": \"Pipe\"}}");
    root.refused(&messages, 2);
    root.write("input/config/inputdataconfig.json", "{\"train\": {\"TrainingInputMode\": \"File\"}}");
    for current in ["", "\"current_host\": \"algo-3\", "] {
        root.write("input/config/resourceconfig.json", format!("{{{current}\"hosts\": [\"algo-2\", \"algo-1\"]}}"));
        root.refused(&messages, 2);
    }
    root.write("input/config/resourceconfig.json", "{\"current_host\": \"algo-1\", \"hosts\": [\"algo-1\"]}");
    root.write("input/data/a/a.toml", "");
    root.write("input/data/b/b.toml", "");
    root.refused(&messages, 2);
    let nowhere = root.path("nowhere");
    messages.fails(kiln(&root.path("")).args(["job", "--root"]).arg(&nowhere), 2);
    assert!(!nowhere.exists());
}

/// The rows of a small classification.
fn rows(from: usize) -> String {
    let row = |i: usize| format!("{},word{} word{}\n", i % 2, i % 7, i % 3);
    "label,text\n".to_owned() + &(from..from + 12).map(row).collect::<String>()
}

#[test]
fn channels_are_files_folders_models_and_configs() {
    let first = Root::small(&json!({"max_steps": "1"}));
    first.succeeds();
    // A channel with a config, one with a model, one that is a file elsewhere and one that is a
    // folder of CSV.
    let root = Root::new();
    let config = "[data]\ntask = \"sequence-classification\"\nformat = \"csv\"\ntrain = [\"${SM_CHANNEL_EXTRA}\"]\n\
                  validation = \"/opt/ml/input/data/held-out/rows.csv\"\n[model]\nfrom = \"${SM_CHANNEL_BASE_MODEL}\"\n\
                  [trainer]\nmax_steps = 9\ndo_eval = true\n[device]\nkind = \"cpu\"\n";
    root.write("input/data/config/job.toml", config);
    root.write("input/data/extra/deep/a.csv", rows(0));
    root.write("input/data/extra/b.csv", rows(1));
    root.write("input/data/extra/_SUCCESS", "");
    root.write("input/data/held-out/rows.csv", rows(2));
    root.hyperparameters(&json!({"max_steps": "2", "pad_token_id": "0"}));
    let mut command = root.job();
    command.env("SM_CHANNEL_BASE_MODEL", first.path("model")).env("SM_MODEL_DIR", root.path("elsewhere/model"));
    let stdout = succeeds(command.env("SM_OUTPUT_DATA_DIR", root.path("elsewhere/output")));
    assert!(stdout.contains("24 examples") && stdout.contains("'eval_loss'"), "{stdout}");
    assert!(root.path("elsewhere/model/config.json").is_file() && !root.path("model").exists());
    let written = root.read("elsewhere/output/config.toml").parse::<toml::Table>().unwrap();
    assert_eq!(written["trainer"]["max_steps"].as_integer(), Some(2));
    assert_eq!(written["data"]["validation"][0].as_str(), Some("${SM_CHANNEL_HELD-OUT}/rows.csv"));

    // Nothing but channels: the format is that of the files, and the model that of the channel.
    let root = Root::new();
    root.hyperparameters(
        &json!({"training_script": "run_glue.py", "max_steps": "1", "pad_token_id": "0", "use_cpu": "1"}),
    );
    root.write("input/data/training/a.csv", rows(0));
    root.write("input/data/unused/a.bin", "");
    std::fs::create_dir_all(root.path("input/data/model")).unwrap();
    let tar = root.path("input/data/model/model.tar.gz");
    succeeds(kiln(&root.path("")).arg("export").arg(first.path("model")).arg("--tar").arg(&tar));
    let stdout = root.succeeds();
    assert!(stdout.contains("channel unused: nothing reads it"), "{stdout}");
    let config = root.config();
    assert_eq!(
        (config["data"]["format"].as_str(), config["model"]["from"].as_str()),
        (Some("csv"), Some("${SM_CHANNEL_MODEL}"))
    );

    // Hyperparameters in variables, as SageMaker's toolkit has them.
    let root = Root::new();
    root.text("other");
    let hyperparameters = json!({
        "task": "clm", "kind": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 16, "block_size": 8,
        "train_vocab_size": 270, "max_steps": 1, "use_cpu": true,
    });
    let mut command = root.job();
    command.env("SM_HPS", hyperparameters.to_string()).env("SM_CHANNEL_TRAIN", root.path("input/data/other/0.txt"));
    succeeds(&mut command);
    assert_eq!(root.config()["data"]["train"][0].as_str(), Some("${SM_CHANNEL_TRAIN}"));
}

#[test]
fn variables_stand_in_every_path_of_a_config() {
    let messages = messages!();
    let root = Root::small(&json!({"max_steps": "1"}));
    root.succeeds();
    let folder = root.path("");
    let config = "[run]\noutput_dir = \"${RUNS}/a\"\n[data]\ntask = \"clm\"\ntrain = [\"${TEXTS}\"]\nblock_size = 8\n[model]\n\
                  from = \"${MODELS}/model\"\n[tokenizer]\nfrom = \"${TOKENIZERS:-model}\"\n[trainer]\nmax_steps = 1\n[device]\n\
                  kind = \"cpu\"\n";
    root.write("a.toml", config);
    let run = |command: &str, without: &str| {
        let mut command = {
            let mut kiln = kiln(&folder);
            kiln.args([command, "a.toml"]);
            kiln
        };
        for (name, value) in [("RUNS", "runs"), ("TEXTS", "input/data/train"), ("MODELS", ".")] {
            if name != without {
                command.env(name, value);
            }
        }
        command
    };
    let all = ["MODELS", "TEXTS", "RUNS"];
    // A proof has a folder of its own, and an evaluation reads the folder of the run alone.
    for (command, variables) in [("plan", &all[..]), ("train", &all), ("verify-resume", &all[..2]), ("eval", &all[2..])]
    {
        for variable in variables {
            messages.fails(run(command, variable), 2);
        }
    }
    succeeds(&mut run("plan", ""));
    succeeds(&mut run("train", ""));
    assert!(root.path("runs/a/model/config.json").is_file());
}

#[test]
fn every_failure_is_left_where_the_platform_reads_it() {
    let messages = messages!();
    let root = Root::small(&json!({"data.format": "csv"}));
    root.refused(&messages, 2);
    let root = Root::small(
        &json!({"task": "sequence-classification", "kind": "bert", "format": "csv", "n_layer": null, "n_head": null, "n_embd": null, "n_positions": null, "block_size": null}),
    );
    root.write("input/data/train/a.csv", "a,b\n1,2\n");
    let code = root.job().output().unwrap().status.code().unwrap();
    assert!([2, 3].contains(&code), "{code}");
    root.fails(code, &[]);
    // A job that is well takes the message away.
    let root = Root::small(&json!({"max_steps": "x"}));
    root.refused(&messages, 2);
    root.hyperparameters(
        &serde_json::from_str::<Value>(&Root::small(&json!({})).read("input/config/hyperparameters.json")).unwrap(),
    );
    root.succeeds();
    // The process that trains is killed, as the kernel does where memory runs out.
    let root = Root::small(&json!({"max_steps": "1000000", "save_strategy": "no"}));
    let (child, _) = started(&root);
    let children = Command::new("pgrep").args(["-P", &child.id().to_string()]).output().unwrap();
    let pid = String::from_utf8(children.stdout).unwrap();
    assert!(Command::new("kill").args(["-KILL", pid.trim()]).status().unwrap().success());
    let output = ended(child);
    assert_eq!(output.status.code(), Some(4), "{}", text(&output));
    assert!(root.read("output/failure").contains("SIGKILL"));
}

/// Starts a job and waits until its first row is printed.
fn started(root: &Root) -> (std::process::Child, String) {
    let mut child = root.job().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let found = lines.any(|line| {
        let line = line.unwrap();
        said += &format!("{line}\n");
        line.contains("'loss'")
    });
    assert!(found, "it ended before its first row: {said}");
    (child, said)
}

#[test]
fn a_job_that_a_signal_stops_continues_by_itself_to_the_bit() {
    let more = json!({"max_steps": "400", "save_steps": "50", "eval_strategy": "steps", "eval_steps": "100", "save_total_limit": "2"});
    let (straight, root) = (Root::small(&more), Root::small(&more));
    for root in [&straight, &root] {
        root.text("validation");
    }
    straight.succeeds();
    let mut stops = 0;
    loop {
        let (child, _) = started(&root);
        assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
        let output = ended(child);
        let all = text(&output);
        assert!(!root.path("output/failure").exists(), "{all}");
        if output.status.success() {
            break;
        }
        assert_eq!(output.status.code(), Some(143), "{all}");
        assert!(all.contains("Training seconds: ") && all.contains("SIGTERM"), "{all}");
        let way_on = "help: start the job again: it continues from its checkpoints";
        assert!(all.contains(way_on) && !all.contains("--resume"), "{all}");
        stops += 1;
        if stops == 3 {
            break;
        }
    }
    assert!(stops > 0, "it was faster than the signal");
    // The folder of checkpoints alone outlives the machine, and the next machine has another root.
    let next = Root::small(&more);
    next.text("validation");
    crate::common::small_run::copy(&root.path("checkpoints"), &next.path("checkpoints"));
    let stdout = next.succeeds();
    assert!(stops < 3 || stdout.contains("continuing after step "), "{stdout}");
    assert_eq!(figures(&straight.path("output/data")), figures(&next.path("output/data")));
    assert!(model(&straight) == model(&next), "the final weights differ");
}

#[test]
fn the_switch_of_the_compiler_is_that_of_the_platform() {
    let lines = "Found configuration for Training Compiler\nConfiguring SM Training Compiler...\n";
    let debug = "Training Compiler set to debug mode\n";
    for (enabled, mode, expected) in [
        ("true", "true", format!("{lines}{debug}")),
        ("\"true\"", "false", lines.to_owned()),
        ("false", "true", String::new()),
    ] {
        let root = Root::small(&json!({
            "sagemaker_training_compiler_enabled": enabled, "sagemaker_training_compiler_debug_mode": mode, "max_steps": "1",
        }));
        let stdout = root.succeeds();
        assert!(stdout.contains(&expected), "{stdout}");
        assert_eq!(stdout.contains("Training Compiler set to debug"), mode == "true" && enabled != "false", "{stdout}");
        assert_eq!(stdout.contains("Found configuration"), enabled != "false", "{stdout}");
    }
}

#[test]
fn metric_definitions_take_what_a_job_prints() {
    let messages = messages!();
    let root = Root::small(&json!({"do_eval": "True", "learning_rate": "4.9e-5", "lr_scheduler_type": "constant"}));
    root.text("validation");
    let stdout = root.succeeds();
    root.write("log.txt", &stdout);
    let rows = crate::common::rows(&root.path("output/data"));
    // The notebooks' form and the three of Hugging Face's page.
    let number = r"([0-9]+(.|e\-)[0-9]+),?";
    let definitions = json!([
        {"Name": "loss", "Regex": format!("'loss': {number}")},
        {"Name": "learning_rate", "Regex": format!("'learning_rate': {number}")},
        {"Name": "train_runtime", "Regex": r"train_runtime.*=\D*(.*?)$"},
        {"Name": "eval_accuracy", "Regex": r"eval_accuracy.*=\D*(.*?)$"},
        {"Name": "eval_loss", "Regex": r"eval_loss.*=\D*(.*?)$"},
        {"Name": "nothing", "Regex": "'nothing': (.*)"},
    ]);
    root.write("definitions.json", definitions.to_string());
    let folder = root.path("");
    let taken = |run: &Path| -> Value {
        let mut command = kiln(&folder);
        let out = succeeds(command.arg("metrics").arg(run).args(["--definitions", "definitions.json", "--json"]));
        serde_json::from_str(&out).unwrap()
    };
    for run in [root.path("output/data"), root.path("checkpoints/run"), root.path("log.txt")] {
        let taken = taken(&run);
        let values = |name: &str| -> Vec<f64> {
            let metric = taken.as_array().unwrap().iter().find(|metric| metric["Name"] == name).unwrap();
            metric["values"].as_array().unwrap().iter().map(|value| value["value"].as_f64().unwrap()).collect()
        };
        let of_rows = |name: &str| rows.iter().filter_map(|row| row[name].as_f64()).collect::<Vec<_>>();
        assert_eq!(values("loss"), of_rows("loss"));
        assert_eq!(values("learning_rate"), [4.9e-5; 4]);
        for name in ["train_runtime", "eval_accuracy", "eval_loss"] {
            assert_eq!(values(name), of_rows(name), "{name}");
        }
        assert!(values("nothing").is_empty());
    }
    let text = succeeds(kiln(&folder).args(["metrics", "log.txt", "--definitions", "definitions.json"]));
    let line = stdout.lines().position(|line| line.contains("'loss'")).unwrap() + 1;
    assert!(text.contains("loss: 4 values") && text.contains(&format!("  line {line}: {{'step': 1")), "{text}");
    assert!(text.contains("nothing: no line matches"), "{text}");
    // The shipped ones, from the rows alone too.
    std::fs::remove_file(root.path("output/data/run.log")).unwrap();
    let text = succeeds(kiln(&folder).args(["metrics", "output/data"]));
    assert!(text.contains("eval_loss: 1 value") && text.contains("train_runtime: 1 value"), "{text}");
    for file in ["definitions.json", "none.json"] {
        let run = if file == "none.json" { "output/data" } else { "nowhere" };
        messages.fails(kiln(&folder).args(["metrics", run, "--definitions", file]), 2);
    }
}

#[test]
fn arguments_are_hyperparameters_as_a_script_takes_them() {
    let messages = messages!();
    let root = Root::small(&json!({"learning_rate": "1e-3", "do_eval": "True"}));
    root.text("validation");
    let with = |arguments: &[&str]| {
        let mut job = root.job();
        job.args(arguments);
        job
    };
    // Some platforms say all of them twice.
    succeeds(&mut with(&[
        "train",
        "--weight_decay",
        "0.1",
        "--learning_rate=1e-3",
        "--do_eval",
        "--freeze",
        "*wte*",
        "*wpe*",
    ]));
    let config = root.config();
    assert_eq!(config["trainer"]["freeze"].as_array().unwrap().len(), 2);
    assert!(config["trainer"]["do_eval"].as_bool().unwrap());
    for arguments in [
        &["--learning_rate", "2e-3"][..],
        &["--seed", "1", "--seed", "2"],
        &["5e-5"],
        &["--learning_rat", "1"],
        &["none.json"],
    ] {
        messages.fails(with(arguments), 2);
    }
    // A file of all of them, as `HfArgumentParser` reads it.
    let all = root.read("input/config/hyperparameters.json");
    root.write("args.json", all);
    std::fs::remove_file(root.path("input/config/hyperparameters.json")).unwrap();
    std::fs::remove_dir_all(root.path("checkpoints")).unwrap();
    succeeds(&mut with(&["args.json"]));
    assert_eq!(root.config()["trainer"]["learning_rate"].as_float(), Some(1e-3));
    // The options of `kiln train`; what stands beside a file of arguments wins over it.
    std::fs::remove_dir_all(root.path("checkpoints")).unwrap();
    let options = ["--hf-args", "args.json", "--learning_rate", "2e-3", "--compiler", "native", "--precision", "bf16"];
    succeeds(&mut with(&options));
    let config = root.config();
    assert_eq!(config["trainer"]["learning_rate"].as_float(), Some(2e-3));
    assert!(config["trainer"]["do_eval"].as_bool().unwrap(), "of the file");
    assert_eq!((config["precision"].as_str(), config["compiler"]["enabled"].as_bool()), (Some("bf16"), Some(false)));
    messages.fails(with(&["--hf-args", "args.json", "more.json"]), 2);
    messages.fails(with(&["--compiler", "fast"]), 2);
}

/// A step of eight rows, whatever number of ranks shares it.
fn shared(more: &Value) -> Root {
    let mut all = json!({"batch.global_batch_size": 8, "max_steps": 12, "save_steps": 2});
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Root::small(&all)
}

#[test]
fn a_job_trains_in_the_ranks_that_it_is_given() {
    let messages = messages!();
    let straight = shared(&json!({}));
    straight.succeeds();
    let root = shared(&json!({"sagemaker_torch_distributed_enabled": "true"}));
    root.refused(&messages, 2);
    let root = shared(&json!({"n_gpus": "2", "num_gpus": 4}));
    root.refused(&messages, 2);
    let root = shared(&json!({"sagemaker_parameter_server_enabled": "true"}));
    root.refused(&messages, 2);
    // GPUs that are not there are not used in silence.
    let root = shared(&json!({}));
    let said = succeeds(root.job().env("SM_NUM_GPUS", "4"));
    assert!(
        said.contains("SM_NUM_GPUS = 4: the run computes on the CPU, in one process on each machine; n_gpus = 4"),
        "{said}"
    );
    let mut wrong = root.job();
    messages.fails(wrong.env("SM_NUM_GPUS", "four"), 2);

    let Some(_) = crate::common::ranks::mpirun() else { return };
    // Four ranks with one micro-batch each add as one process with four does.
    let four = json!({
        "n_gpus": "4", "sagemaker_program": "\"launch_sm_training_compiler.py\"", "training_script": "run_clm.py",
        "data.documents": "file", "document_end": "eos",
    });
    let root = shared(&four);
    let said = root.succeeds();
    assert!(said.contains("8 = 2 x 1 micro-batch x 4 devices"), "{said}");
    assert!(model(&root) == model(&straight));
    for (gpus, more) in [
        (Some("2"), json!({"sagemaker_distributed_dataparallel_enabled": "true"})),
        (Some("2"), json!({"sagemaker_pytorch_xla_multi_worker_enabled": "true"})),
        (None, json!({"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"})),
    ] {
        let root = shared(&more);
        let mut job = root.job();
        if let Some(gpus) = gpus {
            job.env("SM_NUM_GPUS", gpus);
        }
        let said = succeeds(&mut job);
        assert!(said.contains("8 = 2 x 2 micro-batches x 2 devices"), "{said}");
    }
    // The type of the machine says how many GPUs it has.
    let root = shared(&json!({"sagemaker_torch_distributed_enabled": "true"}));
    let machine = json!({"current_host": "algo-1", "hosts": ["algo-1"], "current_instance_type": "ml.g5.12xlarge"});
    root.write("input/config/resourceconfig.json", machine.to_string());
    let said = root.succeeds();
    assert!(said.contains("micro-batch x 4 devices"), "{said}");
    assert!(model(&root) == model(&straight));
}

/// Two machines that are one: each has a root of its own, and the ranks of both meet at the first.
/// A rank that is killed ends the job on both, and the next start continues it to the bits of an
/// undisturbed one.
#[test]
#[cfg(target_os = "linux")]
fn the_machines_of_a_job_train_together() {
    use std::time::{Duration, Instant};

    let Some(library) = crate::torchrun::library(&crate::torchrun::MPICH) else { return };
    let more = json!({"n_gpus": 2, "max_steps": 60});
    let straight = shared(&json!({"max_steps": 60}));
    straight.succeeds();
    // In the order of the sorted list, in which 127.0.0.1 is the first.
    let hosts = ["127.0.0.1", "localhost"];
    let roots = hosts.map(|host| {
        let root = shared(&more);
        let resources =
            json!({"current_host": host, "hosts": ["localhost", "127.0.0.1"], "network_interface_name": "eth0"});
        root.write("input/config/resourceconfig.json", resources.to_string());
        root
    });
    let start = || {
        let port = crate::torchrun::port();
        [0, 1].map(|host| {
            let root: &Root = &roots[host];
            let file = std::fs::File::create(root.path("said")).unwrap();
            let mut job = root.job();
            job.env("MASTER_PORT", &port).env("KILN_MPI", library).env("KILN_MPI_TIMEOUT", "60");
            job.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap()
        })
    };
    let said = |host: usize| roots[host].read("said");
    let ends = |jobs: [std::process::Child; 2]| jobs.map(|job| crate::torchrun::code_within(150, job));
    // A rank of the second machine is killed when there is a checkpoint.
    let jobs = start();
    let asked = Instant::now();
    let checkpoint = roots[0].path("checkpoints/run/checkpoints");
    let victim = loop {
        assert!(asked.elapsed() < Duration::from_secs(120), "{} {}", said(0), said(1));
        let is_saved = std::fs::read_dir(&checkpoint).is_ok_and(|entries| entries.count() > 0);
        let second = roots[1].path("output/data/config.toml").display().to_string();
        let found = Command::new("pgrep").args(["-f", &format!("kiln train {second}")]).output().unwrap();
        let found = String::from_utf8(found.stdout).unwrap();
        match found.lines().next_back() {
            Some(pid) if is_saved => break pid.to_owned(),
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    assert!(Command::new("kill").args(["-KILL", &victim]).status().unwrap().success());
    let codes = ends(jobs);
    if codes != [Some(0); 2] {
        assert!(codes.iter().all(|code| *code == Some(7)), "{codes:?} {} {}", said(0), said(1));
        assert!(roots[1].read("output/failure").contains("was ended by SIGKILL"), "{}", said(1));
    }
    assert_eq!(ends(start()), [Some(0); 2], "{} {}", said(0), said(1));
    assert!(said(0).contains("Training seconds: ") && !said(1).contains("Training seconds"), "{}", said(1));
    assert!(model(&roots[0]) == model(&straight), "the final weights differ");
    assert!(!roots[1].path("model/config.json").exists() && !roots[1].path("checkpoints/job.json").exists());
}

/// The hyperparameters of Hugging Face's and SageMaker's notebooks, whose models and data are on
/// the Hub: there is no network here, so that each job ends where it looks for them, with its
/// config written.
#[test]
fn hyperparameters_of_the_notebooks_are_a_config() {
    let clm = json!({
        "n_gpus": "1", "training_script": "\"run_clm.py\"", "model_name_or_path": "\"gpt2\"", "do_train": "true",
        "do_eval": "true", "fp16": "true", "dataset_name": "\"wikitext\"", "dataset_config_name": "\"wikitext-103-raw-v1\"",
        "per_device_train_batch_size": "20", "per_device_eval_batch_size": "20", "num_train_epochs": "2", "block_size": "512",
        "max_steps": "-1", "learning_rate": "3.125e-05", "evaluation_strategy": "\"no\"", "save_strategy": "\"no\"",
        "logging_strategy": "\"epoch\"", "overwrite_output_dir": "true", "output_dir": "\"/opt/ml/model\"",
        "dataloader_drop_last": "true", "sagemaker_training_compiler_enabled": "\"true\"",
        "sagemaker_training_compiler_debug_mode": "\"false\"", "sagemaker_job_name": "\"gpt2-512\"",
        "sagemaker_program": "\"launch_sm_training_compiler.py\"", "model_revision": "\"main\"",
    });
    let glue = json!({
        "sagemaker_program": "\"run_glue.py\"", "model_name_or_path": "\"bert-base-cased\"", "model_revision": "\"abc123\"",
        "task_name": "\"mrpc\"", "max_seq_length": "128", "pad_to_max_length": "\"True\"", "warmup_ratio": "0.1",
        "max_predict_samples": "10", "fp16": "False", "bf16": "False",
    });
    let imdb = json!({
        "epochs": "3", "train_batch_size": "12", "eval_batch_size": "24", "model_name": "\"distilbert-base-uncased\"",
        "dataset_name": "\"imdb\"", "task": "\"sequence-classification\"", "text_column_names": "text", "warmup_steps": "500",
        "model_dir": "s3://bucket/model", "do_regression": "false",
    });
    let qa = json!({
        "training_script": "run_qa.py", "train_file": "/opt/ml/input/data/train/train.json", "doc_stride": "128",
        "validation_file": "/opt/ml/input/data/dev-set/dev.json", "model_name_or_path": "/opt/ml/input/data/model",
        "max_seq_length": "384", "version_2_with_negative": "True", "pad_to_max_length": "False",
    });
    let config = |all: &Value, channels: &[&str]| {
        let root = Root::new();
        root.hyperparameters(all);
        channels.iter().for_each(|channel| root.write(&format!("input/data/{channel}"), "{}"));
        root.fails(3, &[]);
        root.config()
    };
    let text = |config: &toml::Table, key: &str| {
        let (section, key) = key.split_once('.').unwrap();
        config[section].get(key).map_or("none".to_owned(), |value| value.to_string().replace('"', ""))
    };
    let of = |config: toml::Table, expected: &[(&str, &str)]| {
        expected.iter().for_each(|(key, value)| assert_eq!(text(&config, key), *value, "{key}"));
    };
    let found = config(&clm, &[]);
    assert_eq!(found["precision"].as_str(), Some("f16"));
    of(
        found,
        &[
            ("model.from", "gpt2"),
            ("run.name", "gpt2-512"),
            ("data.task", "clm"),
            ("data.format", "parquet"),
            ("data.train", "[hf://datasets/Salesforce/wikitext/wikitext-103-raw-v1/train]"),
            ("data.validation", "[hf://datasets/Salesforce/wikitext/wikitext-103-raw-v1/validation]"),
            ("data.text_column", "none"),
            ("trainer.learning_rate", "0.00003125"),
            ("trainer.num_train_epochs", "2.0"),
            ("trainer.per_device_train_batch_size", "20"),
            ("trainer.dataloader_drop_last", "true"),
            ("compiler.enabled", "true"),
            ("compiler.debug", "false"),
        ],
    );
    of(
        config(&glue, &[]),
        &[
            ("model.from", "bert-base-cased@abc123"),
            ("data.task", "sequence-classification"),
            ("data.train", "[hf://datasets/nyu-mll/glue/mrpc/train]"),
            ("data.text_column", "sentence1"),
            ("data.text_pair_column", "sentence2"),
            ("data.max_length", "128"),
            ("data.padding", "max_length"),
        ],
    );
    of(
        config(&imdb, &[]),
        &[
            ("model.from", "distilbert-base-uncased"),
            ("data.validation", "[hf://datasets/stanfordnlp/imdb/plain_text/test]"),
            ("trainer.num_train_epochs", "3.0"),
            ("trainer.per_device_eval_batch_size", "24"),
            ("trainer.warmup_steps", "500"),
        ],
    );
    of(
        config(&qa, &["train/train.json", "dev-set/dev.json", "model/readme"]),
        &[
            ("data.task", "question-answering"),
            ("data.format", "squad"),
            ("data.train", "[${SM_CHANNEL_TRAIN}/train.json]"),
            ("data.validation", "[${SM_CHANNEL_DEV-SET}/dev.json]"),
            ("model.from", "${SM_CHANNEL_MODEL}"),
            ("data.max_length", "384"),
            ("data.padding", "longest"),
        ],
    );
    let root = Root::new();
    root.hyperparameters(
        &json!({"training_script": "run_qa.py", "dataset_name": "squad", "model_name_or_path": "bert-base-cased"}),
    );
    root.fails(3, &[]);
    of(
        root.config(),
        &[("data.dataset_name", "rajpurkar/squad"), ("data.format", "squad"), ("data.task", "question-answering")],
    );
    let ner = json!({"training_script": "run_ner.py", "model_name_or_path": "bert-base-cased"});
    let root = Root::new();
    root.hyperparameters(&ner);
    root.write("input/data/train/sample.json", "{\"words\": [\"He\", \"ran\"], \"ner\": [\"O\", \"O\"]}\n");
    root.fails(3, &[]);
    of(root.config(), &[("data.text_column", "words"), ("data.label_column", "ner"), ("data.format", "jsonl")]);
    let pos =
        json!({"training_script": "run_ner.py", "task_name": "pos", "train_file": "a.jsonl", "model_name": "bert"});
    of(config(&pos, &[]), &[("data.label_column", "pos_tags"), ("data.task", "token-classification")]);
    let swag = json!({"training_script": "run_swag.py", "train_file": "swag.csv", "model_name": "bert-base-cased"});
    of(
        config(&swag, &[]),
        &[
            ("data.task", "multiple-choice"),
            ("data.text_column", "sent1"),
            ("data.text_pair_column", "sent2"),
            ("data.choice_columns", "[ending0, ending1, ending2, ending3]"),
        ],
    );
    let root = Root::new();
    root.hyperparameters(&json!({
        "task": "clm", "dataset_name": "org/texts", "dataset_config_name": "en", "model_name_or_path": "gpt2",
    }));
    root.fails(3, &[]);
    of(
        root.config(),
        &[("data.dataset_name", "org/texts"), ("data.dataset_config_name", "en"), ("data.format", "parquet")],
    );
}
