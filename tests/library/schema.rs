//! The JSON Schema of config files, as a validator that is not Kiln's reads it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kiln::RunConfig;
use kiln::config::{SCHEMA_FILE, SCHEMA_LINE, json_schema};
use kiln_core::files::json_text;
use serde_json::{Value, json};

use crate::common::skip::skip;

fn configs() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs")).to_owned()
}

/// The texts of the shipped configs, by name.
fn shipped() -> Vec<(String, String)> {
    let files = std::fs::read_dir(configs()).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|file| file.extension().is_some_and(|extension| extension == "toml"));
    files.map(|file| (file.display().to_string(), std::fs::read_to_string(file).unwrap())).collect()
}

/// `KILN_WRITE_DOCS=1` writes it.
#[test]
fn the_schema_beside_the_shipped_configs_is_that_of_the_keys() {
    let (path, text) = (configs().join(SCHEMA_FILE), json_text(&json_schema()).unwrap());
    if std::env::var_os("KILN_WRITE_DOCS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(written == text, "{} is stale: run this test with KILN_WRITE_DOCS=1", path.display());
    assert_eq!(SCHEMA_LINE, format!("#:schema ./{SCHEMA_FILE}"));
    for (name, text) in shipped() {
        assert_eq!(text.lines().next(), Some(SCHEMA_LINE), "{name}");
    }
}

/// Reads the schema and files from stdin, and prints for each file the key of a mistake in it, or
/// null.
const VALIDATOR: &str = "
import json, sys, tomllib
from jsonschema import Draft7Validator
given = json.load(sys.stdin)
Draft7Validator.check_schema(given['schema'])
validator = Draft7Validator(given['schema'])
def first(text):
    for error in validator.iter_errors(tomllib.loads(text)):
        return '.'.join(str(part) for part in error.absolute_path) + ': ' + error.message
print(json.dumps([first(text) for text in given['files']]))
";

/// The answers of Python's `jsonschema` for `files`; none where it is not installed.
fn validated(files: &[String]) -> Option<Vec<Option<String>>> {
    let python = std::env::var("KILN_PYTHON").unwrap_or_else(|_| "python3".into());
    let found = Command::new(&python).args(["-c", "import jsonschema, tomllib"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        skip!("jsonschema", "{python} has no jsonschema: pip install jsonschema, or name another with KILN_PYTHON");
        return None;
    }
    let mut command = Command::new(python);
    let mut child = command.args(["-c", VALIDATOR]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let given = json!({ "schema": json_schema(), "files": files });
    child.stdin.take().unwrap().write_all(given.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "the validator failed");
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    Some(said.as_array().unwrap().iter().map(|error| error.as_str().map(str::to_owned)).collect())
}

#[test]
fn an_independent_validator_takes_every_shipped_config() {
    let (names, files): (Vec<_>, Vec<_>) = shipped().into_iter().unzip();
    assert!(files.len() >= 14, "{names:?}");
    for (name, error) in names.iter().zip(validated(&files).unwrap_or_default()) {
        assert_eq!(error, None, "{name}");
    }
}

/// A config in which `line` stands in `[section]`, or above the sections.
fn with(section: &str, line: &str) -> String {
    let sections = [
        ("run", "output_dir = \"runs/x\""),
        ("model", "from = \"model\""),
        ("data", "task = \"clm\"\ntrain = \"a.txt\"\nvalidation = \"b.txt\""),
        ("trainer", "eval_strategy = \"steps\""),
    ];
    let mut text = if section.is_empty() { format!("{line}\n") } else { String::new() };
    for (name, lines) in sections {
        let key = line.split(" = ").next().unwrap();
        let kept = lines.lines().filter(|own| section != name || own.split(" = ").next() != Some(key));
        text += &format!("[{name}]\n{}\n", kept.collect::<Vec<_>>().join("\n"));
        if section == name {
            text += &format!("{line}\n");
        }
    }
    if !section.is_empty() && sections.iter().all(|(name, _)| *name != section) {
        text += &format!("[{section}]\n{line}\n");
    }
    text
}

#[test]
fn spellings_that_kiln_reads_are_in_the_schema() {
    let files = [
        ("", "precision = \"fp32\""),
        ("model", "n_layer = 2"),
        ("model", "resid_pdrop = 0.0"),
        ("model", "initializer_range = 1"),
        ("data", "validation = \"2%\""),
        ("data", "validation = 0.02"),
        ("data", "train = [\"a.txt\", \"b/*.txt\"]"),
        ("data", "padding = \"buckets\"\nbuckets = [32, 64]"),
        ("data", "padding = \"buckets\"\nbuckets = 3"),
        ("trainer", "max_steps = -1"),
        ("trainer", "max_steps = 1e3"),
        ("trainer", "max_tokens = 2e6"),
        ("trainer", "max_tokens = -1"),
        ("trainer", "max_steps = 100\nwarmup_steps = \"10%\""),
        ("trainer", "warmup_steps = \"1000 samples\"\nsave_steps = \"2e6 tokens\"\nlogging_steps = \"12.5 %\""),
        ("trainer", "warmup_steps = 0"),
        ("trainer", "save_steps = 0.25"),
        ("trainer", "per_device_train_batch_size = 16.0"),
        ("trainer", "report_to = \"all\""),
        ("trainer", "report_to = [\"tensorboard\"]"),
        ("trainer", "optim = \"adamw\""),
        ("trainer", "optim = \"sgd\"\noptim_args = \"momentum=0.9\""),
        ("trainer", "optim = \"sgd\"\noptim_args = { momentum = 0.9 }"),
        ("trainer", "lr_scheduler_type = \"cosine_with_min_lr\"\nlr_scheduler_kwargs = { min_lr_rate = 0.1 }"),
        ("trainer", "activation_checkpointing = true"),
        ("trainer", "seed = \"18446744073709551615\""),
        ("trainer", "fp16_opt_level = \"O1\"\ndataloader_num_workers = 4"),
        ("trainer", "run_name = \"a\"\nddp_backend = \"gloo\""),
        ("distributed", "ddp_backend = \"gloo\""),
        ("batch", "global_batch_size = 64"),
        ("lora", "alpha = 16\nbias = \"lora_only\"\ninit_lora_weights = false\nrank_pattern = { \"c_proj\" = 4 }"),
        ("compiler", "enabled = \"auto\""),
        ("compiler", "enabled = true\nfused_ops = [\"linear\"]\nverify = 50"),
        ("generation", "prompt = \"Once\"\ntemperature = 0\nstop_strings = [\"a\"]"),
    ];
    let texts = files.map(|(section, line)| with(section, line));
    let said = validated(&texts);
    for (at, text) in texts.iter().enumerate() {
        RunConfig::parse(text, "a.toml").unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(said.as_ref().and_then(|said| said[at].clone()), None, "{text}");
    }
}

#[test]
fn mistakes_are_refused_by_the_schema_and_by_kiln() {
    let mistakes = [
        ("", "precision = \"bf32\"", "precision"),
        ("", "learning_rate = 1e-3", "learning_rate"),
        ("trainerr", "max_steps = 3", ""),
        ("run", "name = 3", "run.name"),
        ("run", "on_existing = \"replace\"", "run.on_existing"),
        ("model", "kind = \"gpt3\"", "model.kind"),
        ("model", "pad_to_multiple_of = 0\nresize_token_embeddings = true", "model.pad_to_multiple_of"),
        ("data", "task = \"lm\"", "data.task"),
        ("data", "format = \"txt\"", "data.format"),
        ("data", "block_size = 0", "data.block_size"),
        ("data", "mlm_probability = 1.5", "data.mlm_probability"),
        ("data", "mlm_probability = 0", "data.mlm_probability"),
        ("data", "train = 3", "data.train"),
        ("data", "validation = 1.5", "data.validation"),
        ("data", "shuffle_buffer_size = 2.5", "data.shuffle_buffer_size"),
        ("tokenizer", "train_vocab_size = \"many\"", "tokenizer.train_vocab_size"),
        ("trainer", "learning_rte = 1e-3", "trainer"),
        ("trainer", "learning_rate = \"1e-3\"", "trainer.learning_rate"),
        ("trainer", "learning_rate = 0", "trainer.learning_rate"),
        ("trainer", "max_steps = 0", "trainer.max_steps"),
        ("trainer", "max_tokens = 0", "trainer.max_tokens"),
        ("trainer", "weight_decay = -0.1", "trainer.weight_decay"),
        ("trainer", "adam_beta1 = 1.0", "trainer.adam_beta1"),
        ("trainer", "layer_wise_lr_decay = 1.5", "trainer.layer_wise_lr_decay"),
        ("trainer", "optim = \"adamm\"", "trainer.optim"),
        ("trainer", "optim = \"sgd\"\noptim_args = { momentum = 2 }", "trainer.optim_args"),
        ("trainer", "lr_scheduler_kwargs = { num_cycle = 1 }", "trainer.lr_scheduler_kwargs"),
        ("trainer", "per_device_train_batch_size = 0", "trainer.per_device_train_batch_size"),
        ("trainer", "per_device_train_batch_size = \"most\"", "trainer.per_device_train_batch_size"),
        ("trainer", "logging_steps = 0", "trainer.logging_steps"),
        ("trainer", "save_steps = \"3 epochs\"", "trainer.save_steps"),
        ("trainer", "save_strategy = \"never\"", "trainer.save_strategy"),
        ("trainer", "report_to = \"wandbb\"", "trainer.report_to"),
        ("trainer", "do_eval = \"maybe\"", "trainer.do_eval"),
        ("batch", "global_batch_size = -8", "batch.global_batch_size"),
        ("learning_rate", "scaling = \"cubic\"", "learning_rate.scaling"),
        ("device", "kind = \"gpu\"", "device.kind"),
        ("device", "index = -1", "device.index"),
        ("distributed", "overlap_communication = \"yes\"", "distributed.overlap_communication"),
        ("compiler", "fused_ops = [\"matmul\"]", "compiler.fused_ops"),
        ("compiler", "verify = 0", "compiler.verify"),
        ("lora", "r = 0", "lora.r"),
        ("lora", "lora_dropout = 1.0", "lora.lora_dropout"),
        ("generation", "prompt = \"a\"\ntop_p = 0", "generation.top_p"),
    ];
    let texts = mistakes.map(|(section, line, _)| with(section, line));
    let said = validated(&texts);
    for (at, text) in texts.iter().enumerate() {
        let key = mistakes[at].2;
        let error = RunConfig::parse(text, "a.toml").expect_err(text);
        assert!(error.to_string().contains(key), "{text}\n{error}");
        if let Some(said) = &said {
            let error = said[at].as_deref().unwrap_or_else(|| panic!("the schema takes\n{text}"));
            assert!(error.starts_with(&format!("{key}: ")) || error.starts_with(&format!("{key}.")), "{text}\n{error}");
        }
    }
}
