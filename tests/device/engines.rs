//! The two engines behind one command: which executable a run is handed to, that its output, exit
//! code and signals are passed through, and what is refused. The sibling is a script, so no device
//! is needed: it is chosen by its kind.
#![cfg(unix)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::small_run::{train, write};
use crate::common::{fails, kiln, text};
use crate::device;

const THIS: &str = if cfg!(feature = "compiler") { "compiled" } else { "native" };
const OTHER: &str = if cfg!(feature = "compiler") { "native" } else { "compiled" };
const VARIABLE: &str = if cfg!(feature = "compiler") { "KILN_NATIVE" } else { "KILN_COMPILED" };

/// An executable that says it is what `identity` says, and otherwise runs `script`.
fn sibling(folder: &Path, identity: &str, script: &str) -> PathBuf {
    let path = folder.join("sibling");
    let text = format!("#!/bin/sh\nif [ \"$1\" = engine ]; then\n  echo '{identity}'\nelse\n  {script}\nfi\n");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// The output of `kiln engine` of this binary, with the other engine's name.
fn identity(folder: &Path) -> String {
    let output = kiln(folder).arg("engine").output().unwrap();
    text(&output).trim().replace(&format!("\"{THIS}\""), &format!("\"{OTHER}\""))
}

/// A run on the device that asks for the other engine.
fn other_run(folder: &Path) -> Command {
    write(folder, "clm");
    train(folder, "run", &["--compiler", OTHER, "--set", &format!("device.kind={}", device())])
}

#[test]
fn a_run_is_the_siblings() {
    let folder = tempfile::tempdir().unwrap();
    let path = sibling(folder.path(), &identity(folder.path()), "echo \"got $*\"; exit 7");
    let output = other_run(folder.path()).env(VARIABLE, &path).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", text(&output));
    let stdout = String::from_utf8(output.stdout).unwrap();
    let expected =
        format!("got train config.toml --set run.output_dir=run --compiler {OTHER} --set device.kind={}\n", device());
    assert_eq!(stdout, expected);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr, format!("{OTHER} engine: {}\n", path.display()));
}

#[test]
fn a_signal_reaches_the_sibling() {
    let folder = tempfile::tempdir().unwrap();
    let path = sibling(folder.path(), &identity(folder.path()), "trap 'exit 42' TERM; echo ready; sleep 60 & wait");
    let mut child = other_run(folder.path()).env(VARIABLE, &path).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
    assert_eq!(line, "ready\n");
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(42));
}

#[test]
fn what_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refuses = |path: &Path, parts: &[&str]| {
        fails(other_run(folder.path()).env(VARIABLE, path), 2, parts);
        assert!(!folder.path().join("run").exists());
    };
    let own = identity(folder.path());
    let device = device();
    let build = format!("`cargo {device}-{OTHER}`");
    refuses(Path::new("/nowhere/kiln"), &[VARIABLE, "no file /nowhere/kiln", &build]);
    let with = |identity: &str| sibling(folder.path(), identity, "exit 0");
    refuses(&with(&own.replace(OTHER, THIS)), &["expected the", "engine, got the", &build]);
    refuses(&with(&own.replace(env!("CARGO_PKG_VERSION"), "0.0.1")), &["got kiln 0.0.1", &build]);
    let for_another = own.replace(&format!("\"{device}\""), "\"metal\"");
    refuses(&with(&for_another), &[&format!("expected a build for {device}"), &build]);
    refuses(&with("hello"), &["a kiln that says what it is"]);
}

#[test]
fn the_cpu_needs_no_sibling() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let run = train(folder.path(), "run", &["--compiler", OTHER]).env(VARIABLE, "/nowhere/kiln").output().unwrap();
    assert!(run.status.success(), "{}", text(&run));
}
