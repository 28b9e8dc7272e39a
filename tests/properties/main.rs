//! Hostile input of every kind that Kiln reads: files that were cut, flipped and edited, names and
//! values that nobody would write. No input makes Kiln panic; the exit code is one of the
//! documented, an error is one line that is not empty, nothing reaches the terminal but text, and
//! nothing outside the folder of the run changes.
//!
//! Each property tries a few cases, the same ones each time. By hand, `PROPTEST_CASES=10000 cargo
//! test --test properties config` tries so many of each property, others every time;
//! `PROPTEST_RNG_SEED` repeats a search.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../command/hub/server.rs"]
#[allow(dead_code)] // its own tests use all of it
mod server;

mod cache;
mod checkpoints;
mod config;
mod edits;
mod hub;
mod protocol;
mod report;
mod rows;
mod tokenizer;
mod weights;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestCaseError};

/// The exit codes that the guide documents, but for those of signals.
const CODES: [i32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

/// So many cases of a property, or what `PROPTEST_CASES` says.
fn cases(few: u32) -> Config {
    let by_hand = std::env::var_os("PROPTEST_CASES").is_some();
    let mut config = Config { failure_persistence: None, max_shrink_iters: 300, ..Config::default() };
    if !by_hand {
        config.cases = few;
        if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
            config.rng_seed = RngSeed::Fixed(18);
        }
    }
    config
}

/// Every property of a text that goes to a terminal.
fn printable(text: &str) -> Result<(), TestCaseError> {
    let raw = text.chars().find(|c| c.is_control() && !matches!(c, '\n' | '\t'));
    prop_assert!(raw.is_none(), "a control character {raw:?} reaches the terminal: {text:?}");
    Ok(())
}

/// Every property of an error of the library.
fn is_said(error: &kiln::Error) -> Result<(), TestCaseError> {
    prop_assert!(CODES[1..].contains(&i32::from(error.exit_code())), "{error}");
    prop_assert!(!error.to_string().trim().is_empty(), "an error says nothing");
    prop_assert!(!error.to_string().trim_end().ends_with(':'), "an error breaks off: {error}");
    Ok(())
}

/// Runs `command` for a minute at most.
fn ends(command: &mut Command) -> Result<Output, TestCaseError> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Both are read while it runs, so that no full pipe holds it up.
    let read = |mut pipe: Box<dyn std::io::Read + Send>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).map(|_| bytes).unwrap()
        })
    };
    let out = read(Box::new(child.stdout.take().unwrap()));
    let err = read(Box::new(child.stderr.take().unwrap()));
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            child.wait().unwrap();
            return Err(TestCaseError::fail(format!("does not end: {command:?}")));
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    Ok(Output { status, stdout: out.join().unwrap(), stderr: err.join().unwrap() })
}

/// Runs `command`, which ends with one of `codes`, and with an error in one line where that is
/// not 0. The code and the output.
fn behaves(command: &mut Command, codes: &[i32]) -> Result<(i32, String), TestCaseError> {
    let output = ends(command)?;
    let said = common::text(&output);
    prop_assert!(!said.contains("panicked at"), "{command:?}\n{said}");
    let Some(code) = output.status.code() else {
        return Err(TestCaseError::fail(format!("{command:?} ended by {}\n{said}", output.status)));
    };
    prop_assert!(codes.contains(&code), "{command:?}: exit code {code}\n{said}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let errors = stderr.lines().filter(|line| line.starts_with("error:")).collect::<Vec<_>>();
    prop_assert_eq!(errors.len(), usize::from(code != 0), "{:?}\n{}", command, said);
    let is_told = errors.iter().all(|error| error.len() > "error: x".len());
    prop_assert!(is_told, "{command:?}: the error says nothing\n{said}");
    printable(&said)?;
    Ok((code, said))
}

/// Every file below `folder` but in the folders called `but`: its bytes, or where a link points.
fn snapshot(folder: &Path, but: &[&str]) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut pending = vec![folder.to_path_buf()];
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap()) {
            let path = entry.path();
            if but.iter().any(|but| entry.file_name() == **but) {
                continue;
            }
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => pending.push(path),
                kind if kind.is_symlink() => {
                    let target = std::fs::read_link(&path).unwrap();
                    found.insert(path, target.into_os_string().into_encoded_bytes());
                }
                _ => drop(found.insert(path.clone(), std::fs::read(path).unwrap())),
            }
        }
    }
    found
}
