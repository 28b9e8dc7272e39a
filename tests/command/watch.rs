//! The page of `kiln watch` and of `kiln train --watch`, at a pseudo-terminal.
#![cfg(unix)]

use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::messages::messages;
use crate::common::pty::Pty;
use crate::common::small_run::{train, write};
use crate::common::{json, kiln, succeeds};

/// The control sequences that give the terminal back when the page ends: the cursor is shown, the
/// alternate screen is left.
const LEFT: &str = "\u{1b}[?25h\u{1b}[?1049l";

/// A run that lasts until it is stopped, and evaluates seldom.
const ENDLESS: [&str; 6] =
    ["--set", "trainer.max_steps=5000000", "--set", "trainer.eval_steps=100000", "--set", "trainer.save_steps=5000000"];

fn watch(folder: &Path) -> Command {
    let mut command = kiln(folder);
    command.args(["watch", "run"]);
    command
}

fn status(folder: &Path) -> String {
    json(&folder.join("run/status.json"))["status"].as_str().unwrap().to_owned()
}

#[test]
fn a_run_of_yesterday_is_shown_until_somebody_leaves() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    succeeds(&mut train(folder.path(), "run", &["--step-times"]));
    for key in ["q", "\u{1b}", "\u{3}"] {
        let mut pty = Pty::start(&mut watch(folder.path()), 100, 30);
        for part in ["Completed", "14/14", "validation", "grad", "forward", "tokens/s"] {
            pty.wait_for(part);
        }
        assert!(!pty.is_restored(), "keys come at once");
        pty.press(key);
        assert!(pty.ended().success(), "{}", pty.text());
        assert!(pty.is_restored() && pty.text().ends_with(LEFT), "{:?}", pty.text());
    }
    // Signals end it as they end every command, and leave the terminal whole.
    for (signal, code) in [("-TERM", 143), ("-INT", 130)] {
        let mut pty = Pty::start(&mut watch(folder.path()), 80, 24);
        pty.wait_for("Completed");
        pty.signal(signal);
        assert_eq!(pty.ended().code(), Some(code), "{}", pty.text());
        assert!(pty.is_restored() && pty.text().contains(LEFT) && pty.text().contains("the run is not touched"));
    }
}

#[test]
fn the_newest_run_is_shown_where_none_is_named() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let unnamed = || {
        let mut command = kiln(folder.path());
        command.arg("watch");
        Pty::start(&mut command, 100, 30)
    };
    let mut pty = unnamed();
    assert_eq!(pty.ended().code(), Some(2), "{}", pty.text());
    assert!(pty.text().contains("there is no run in the folder runs"), "{}", pty.text());
    for run in ["runs/b-first", "runs/a-second"] {
        succeeds(&mut train(folder.path(), run, &[]));
    }
    let mut pty = unnamed();
    pty.wait_for("runs/a-second");
    pty.press("q");
    assert!(pty.ended().success(), "{}", pty.text());
}

#[test]
fn a_page_needs_a_terminal_and_a_run() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let mut pty = Pty::start(&mut watch(folder.path()), 80, 24);
    assert_eq!(pty.ended().code(), Some(3), "{}", pty.text());
    assert!(pty.text().contains("run: there is no run of Kiln's in this folder"), "{}", pty.text());
    assert!(!pty.text().contains("\u{1b}[?1049h") && pty.is_restored());
    messages.fails(train(folder.path(), "run", &["--watch"]).stdin(Stdio::null()), 2);
    assert!(!folder.path().join("run").exists());
    messages.fails(watch(folder.path()).stdin(Stdio::null()), 2);
}

#[test]
fn a_run_that_goes_on_is_followed_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let mut run = train(folder.path(), "run", &ENDLESS);
    let mut run = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !folder.path().join("run/metrics.jsonl").exists() {
        assert!(run.try_wait().unwrap().is_none());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let mut pty = Pty::start(&mut watch(folder.path()), 80, 24);
    pty.wait_for("InProgress");
    pty.press("q");
    assert!(pty.ended().success());
    assert!(run.try_wait().unwrap().is_none(), "the run goes on");
    // The page follows the run to its end.
    let mut pty = Pty::start(&mut watch(folder.path()), 80, 24);
    pty.wait_for("InProgress");
    Command::new("kill").args(["-TERM", &run.id().to_string()]).status().unwrap();
    run.wait().unwrap();
    pty.wait_for("Stopped");
    pty.press("q");
    assert!(pty.ended().success());
}

#[test]
fn a_run_behind_its_page_goes_on_without_it() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    // Rows and status of an earlier run in the folder are not shown as those of the present run.
    succeeds(&mut train(folder.path(), "run", &[]));
    let more = ["--watch", "--set", "run.on_existing=overwrite"];
    let mut pty = Pty::start(&mut train(folder.path(), "run", &[&more[..], &ENDLESS].concat()), 100, 30);
    pty.wait_for("InProgress");
    assert!(!pty.text().contains("Completed") && !pty.text().contains(LEFT), "{}", pty.text());
    pty.wait_for("q or Ctrl-C leaves the page");
    pty.press("\u{3}");
    // A line says how to stop the run, now that the key has left the page alone. The output that
    // was held back is printed, then new rows.
    pty.wait_for(LEFT);
    pty.wait_for("the run goes on here; Ctrl-C now stops it with a checkpoint");
    pty.wait_for("gpt2 for clm, ");
    pty.wait_for("step   epoch");
    let text = pty.text();
    let after = text.split(LEFT).nth(1).unwrap_or_else(|| panic!("{text}"));
    assert!(pty.is_restored() && after.contains("gpt2 for clm, "), "{after}");
    assert_eq!(status(folder.path()), "InProgress");
    pty.signal("-TERM");
    assert_eq!(pty.ended().code(), Some(143), "{}", pty.text());
    assert!(pty.text().contains("SIGTERM"), "{}", pty.text());
    assert_eq!(status(folder.path()), "Stopped");
}

#[test]
fn a_page_ends_with_its_run_and_has_its_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let mut pty = Pty::start(&mut train(folder.path(), "run", &["--watch"]), 100, 30);
    assert_eq!(pty.ended().code(), Some(0), "{}", pty.text());
    let text = pty.text();
    let after = text.split(LEFT).nth(1).unwrap_or_else(|| panic!("{text}"));
    assert!(after.contains("step 14 after ") && after.contains("again: kiln train"), "{after}");
    assert!(pty.is_restored());
    let more = ["--watch", "--set", "trainer.learning_rate=1e30", "--set", "run.output_dir=other"];
    let mut pty = Pty::start(&mut train(folder.path(), "other", &more), 100, 30);
    assert_eq!(pty.ended().code(), Some(5), "{}", pty.text());
    assert!(pty.text().contains("error:") && pty.is_restored(), "{}", pty.text());
    // A kill leaves no page behind.
    let more = [&["--watch"][..], &ENDLESS].concat();
    let mut pty = Pty::start(&mut train(folder.path(), "killed", &more), 100, 30);
    pty.wait_for("InProgress");
    let lock = folder.path().join("killed");
    let of_parent = Command::new("pgrep").args(["-P", &pty.id().to_string()]).output().unwrap();
    let child = String::from_utf8(of_parent.stdout).unwrap();
    assert!(lock.is_dir() && Command::new("kill").args(["-KILL", child.trim()]).status().unwrap().success());
    assert_eq!(pty.ended().code(), Some(137), "{}", pty.text());
    assert!(pty.is_restored() && pty.text().contains(LEFT));
}
