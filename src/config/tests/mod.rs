//! Tests of the config file: what is accepted and what is refused, with the file and helpers that
//! both use.
#![allow(clippy::unwrap_used)]

mod accepted;
mod hf_args;
mod refused;

use super::*;

/// The shortest file that runs; [trainer] comes last so that tests can add keys to it.
const SMALL: &str = r#"[run]
output_dir = "runs/x"
[model]
kind = "gpt2"
[data]
task = "clm"
train = "a.txt"
validation = "b.txt"
[tokenizer]
train_vocab_size = 300
[trainer]
"#;

fn parse(lines: &str) -> Result<RunConfig> {
    RunConfig::parse(&format!("{SMALL}{lines}\n"), "a.toml")
}

fn with(overrides: &[&str]) -> Result<RunConfig> {
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    RunConfig::from_text(SMALL, "a.toml", None, None, &[], &overrides)
}

fn refused(result: Result<RunConfig>, parts: &[&str]) {
    let error = result.expect_err("must be refused");
    assert_eq!(error.exit_code(), 2, "{error}");
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
}
