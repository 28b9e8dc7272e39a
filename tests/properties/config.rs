//! Config files and `--set`.

use kiln::{ErrorKind, RunConfig};
use proptest::prelude::*;

use crate::common::place::{Place, ROWS, TEXT};
use crate::edits::{TOKENS, edited, edits};
use crate::{behaves, cases, is_said};

/// A config with most of the keys that take a table, a list, text or a number.
const LONG: &str = r#"
precision = "f32"
[run]
output_dir = "run"
on_existing = "overwrite"
[model]
kind = "bert"
id2label = { 0 = "a", 1 = "b" }
hidden_size = 16
[data]
task = "sequence-classification"
format = "csv"
train = ["a.csv", "b.csv"]
validation = "2%"
label_names = ["a", "b"]
[tokenizer]
from = "bert"
[trainer]
max_steps = 3
learning_rate = 1e-3
optim = "adamw"
optim_args = "eps=1e-3"
lr_scheduler_type = "cosine"
lr_scheduler_kwargs = { num_cycles = 2 }
class_weights = [1.0, 2.0]
warmup_steps = "10 samples"
fp16 = false
eval_strategy = "steps"
eval_steps = 0.5
[batch]
global_batch_size = 4
[device]
kind = "cpu"
[compiler]
enabled = "native"
[generation]
prompt = "a"
"#;

/// Reads `text` with `overrides`: a config or an error of the config.
fn reads(text: &str, overrides: &[String]) -> Result<(), TestCaseError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    std::fs::write(&path, text).unwrap();
    match RunConfig::load_with(&path, overrides) {
        // A config that is read can be written and read again.
        Ok(config) => {
            let text = config.to_toml();
            prop_assert!(text.is_ok(), "{text:?}");
            let again = RunConfig::parse(text.as_ref().unwrap(), "again").and_then(|again| again.to_toml());
            prop_assert!(
                again.as_ref().is_ok_and(|again| Ok(again) == text.as_ref().map_err(drop)),
                "{again:?}\n{text:?}"
            );
        }
        Err(error) => {
            prop_assert_eq!(error.kind(), ErrorKind::Config, "{}", error);
            is_said(&error)?;
        }
    }
    Ok(())
}

/// Keys as they are, one level too deep, with parts that are missing, quoted or of no alphabet.
fn key() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        8 => prop::sample::select(vec![
            "precision", "run", "output_dir", "model", "kind", "id2label", "hidden_size", "data", "task", "train", "validation",
            "label_names", "format", "tokenizer", "from", "trainer", "max_steps", "optim_args", "lr_scheduler_kwargs",
            "warmup_steps", "warmup_ratio", "fp16", "class_weights", "betas", "num_cycles", "batch", "device", "compiler",
            "enabled", "generation", "prompt", "x", "0", "1",
        ]).prop_map(str::to_owned),
        1 => Just(String::new()),
        1 => prop::sample::select(vec!["\"a.b\"", "'q'", "é", "中", "a b", "\u{1b}[31m", "=", "[", "]", "\\", "\t"])
            .prop_map(str::to_owned),
        1 => "\\PC{0,8}",
    ];
    prop::collection::vec(part, 1..5).prop_map(|parts| parts.join("."))
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(&TOKENS[..]).prop_map(str::to_owned),
        3 => prop::sample::select(vec![
            "text", "a,b", "[1, 2]", "{x = 1}", "{x = {y = 1}}", "[[1], {a = 2}]", "2025-01-31", "12:00:00", "'''a'''", "inf",
            "-inf", "nan", "0x10", "1_000", "2%", "10 samples", "1e3 tokens", "\"", "{", "[", "adamw", "bf16", "true",
        ]).prop_map(str::to_owned),
        1 => "\\PC{0,12}",
    ]
}

/// A `--set`.
fn set() -> impl Strategy<Value = String> {
    let sign = prop_oneof![8 => Just("="), 1 => Just(" = "), 1 => Just("")];
    (key(), sign, value()).prop_map(|(key, sign, value)| format!("{key}{sign}{value}"))
}

fn base() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![TEXT, ROWS, LONG])
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn edited_files_are_read_or_refused(base in base(), edits in edits()) {
        if let Ok(text) = String::from_utf8(edited(base.as_bytes(), &edits)) {
            reads(&text, &[])?;
        }
    }

    #[test]
    fn every_set_is_taken_or_refused(base in base(), sets in prop::collection::vec(set(), 1..4)) {
        reads(base, &sets)?;
    }

    #[test]
    fn sets_go_on_top_of_edited_files(base in base(), edits in edits(), sets in prop::collection::vec(set(), 1..3)) {
        if let Ok(text) = String::from_utf8(edited(base.as_bytes(), &edits)) {
            reads(&text, &sets)?;
        }
    }
}

proptest! {
    #![proptest_config(cases(12))]

    #[test]
    fn the_binary_says_one_line(base in base(), edits in edits(), sets in prop::collection::vec(set(), 0..3)) {
        let place = Place::new();
        place.write("config.toml", edited(base.as_bytes(), &edits));
        let sets = sets.iter().map(|set| set.replace('\0', "")).collect::<Vec<_>>();
        let sets = sets.iter().map(String::as_str).collect::<Vec<_>>();
        behaves(&mut place.config("plan", "config.toml", &sets), &[0, 1, 2, 3])?;
    }
}
