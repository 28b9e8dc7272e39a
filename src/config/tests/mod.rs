//! Tests of the config file: what is accepted and what is refused, with the file and helpers that
//! both use.
#![allow(clippy::unwrap_used)]

mod accepted;
mod hf_args;
mod includes;
mod refused;

use std::fmt::{Debug, Display};
use std::path::Path;

use kiln_core::error::Result;

use super::document::Document;
use super::*;
use crate::messages::{Messages, messages};

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
    RunConfig::parse(&format!("{SMALL}{lines}\n"), "a.toml").map(RunConfig::from)
}

fn with(overrides: &[&str]) -> Result<RunConfig> {
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    from_text(SMALL, "a.toml", None, &overrides)
}

/// The config in `text` with `hf_args` and `overrides` over it.
fn from_text(text: &str, origin: &str, hf_args: Option<(&str, &str)>, overrides: &[String]) -> Result<RunConfig> {
    let document = Document::layered(text, origin, None, hf_args, &[], overrides)?;
    RunConfig::of_document(document, None, |_| Ok(())).map(RunConfig::from)
}

/// The messages of a test; each input is refused as a mistake of the user.
struct Refused(Messages);

impl Refused {
    fn add(&self, input: impl Display, result: Result<impl Debug>) {
        let error = result.expect_err("must be refused");
        assert_eq!(error.exit_code(), 2, "{error}");
        self.0.add(input, error);
    }

    /// Each of these in [`parse`].
    fn lines(&self, each: &[&str]) {
        each.iter().for_each(|lines| self.add(lines, parse(lines)));
    }

    /// Each of these in [`with`], by itself.
    fn set(&self, each: &[&str]) {
        each.iter().for_each(|set| self.together(&[set]));
    }

    /// All of these in [`with`].
    fn together(&self, overrides: &[&str]) {
        let input = overrides.iter().map(|set| format!("--set {set}")).collect::<Vec<_>>();
        self.add(input.join(" "), with(overrides));
    }

    /// Each of these as a whole file.
    fn file(&self, each: &[impl AsRef<str>]) {
        each.iter().for_each(|text| self.add(text.as_ref(), RunConfig::parse(text.as_ref(), "a.toml")));
    }
}
