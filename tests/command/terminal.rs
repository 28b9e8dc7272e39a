//! The output of a run: for people at a terminal, and for programs through a pipe.
#![cfg(unix)]

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common::place::Place;
use crate::common::pty::Pty;
use crate::common::small_run::{train, write};
use crate::common::{kiln, rows, succeeds, text};

/// The output of `command` at a terminal of 100 columns, when it has ended well.
fn at_terminal(command: &mut Command) -> String {
    let mut pty = Pty::start(command, 100, 30);
    let status = pty.ended();
    assert!(status.success(), "{}", pty.text());
    pty.text()
}

/// `text` without what moves the cursor and styles.
fn plain(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_ascii_alphabetic()).map_or(part.len(), |at| at + 1);
        plain += &part[end..];
    }
    plain.replace('\r', "\n")
}

#[test]
fn a_terminal_shows_a_header_and_aligned_rows() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let raw = at_terminal(
        train(folder.path(), "run", &["--set", "trainer.lr_scheduler_type=constant"]).env_remove("NO_COLOR"),
    );
    let shown = plain(&raw);
    let lines = shown.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect::<Vec<_>>();
    let at =
        lines.iter().position(|line| line.starts_with("model   gpt2 for clm, ")).unwrap_or_else(|| panic!("{shown}"));
    for (line, name) in lines[at..].iter().zip(["model", "data", "batch", "steps", "device"]) {
        assert!(line.starts_with(&format!("{name:<8}")), "{name} in {shown}");
    }
    assert!(lines[at + 4].contains("native mode") && !shown.contains("optimizer  "), "{shown}");
    // The warning about what has no effect stands out.
    assert!(raw.contains("\u{1b}[33m! no effect: "), "{raw}");
    let names = lines.iter().find(|line| line.trim_start().starts_with("step ")).unwrap_or_else(|| panic!("{shown}"));
    let end_of = |name: &str| names.find(name).unwrap() + name.len();
    for row in rows(&folder.path().join("run")).iter().filter(|row| row["loss"].is_number()) {
        let (step, loss) = (row["step"].to_string(), format!("{:.3}", row["loss"].as_f64().unwrap()));
        let found = lines.iter().any(|line| {
            let cell = |name: &str| line.get(..end_of(name)).and_then(|line| line.split_whitespace().next_back());
            cell("step") == Some(&step) && cell(" loss") == Some(&loss)
        });
        assert!(found, "step {step} with {loss} in {shown}");
    }
    assert!(!shown.contains("{'"), "{shown}");
    assert!(shown.contains(" left") && shown.contains("step 14 after "), "{shown}");
    assert!(shown.contains("again: kiln train run/plan.toml"), "{shown}");
}

#[test]
fn a_terminal_without_colours_gets_none_and_the_plan_on_request() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let mut command = train(folder.path(), "run", &["--verbose", "--set", "trainer.max_steps=3"]);
    let raw = at_terminal(command.env("NO_COLOR", "1"));
    let has_style = raw
        .split("\u{1b}[")
        .skip(1)
        .any(|part| part.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with('m'));
    assert!(!has_style, "{raw:?}");
    assert!(raw.contains("optimizer      ") && raw.contains("checkpoints    "), "{raw}");
    // At a terminal the dicts are to be had, too.
    let raw = at_terminal(
        train(folder.path(), "dicts", &["--log-format", "dict", "--set", "trainer.max_steps=3"]).env("NO_COLOR", "1"),
    );
    assert!(raw.contains("{'step': 3, 'epoch': ") && raw.contains("optimizer      "), "{raw}");
}

/// The rows of the progress line that `shown` has, with what stands after `name` up to a space.
fn told<'a>(shown: &'a str, name: &str) -> Vec<&'a str> {
    let parts = shown.split(name).skip(1);
    parts.filter_map(|part| part.split([' ', '\n']).next()).collect()
}

#[test]
fn the_progress_line_tells_what_is_done_between_steps() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let row = |at: usize| format!("{{\"input_ids\": [{}, 2, 3, 4]}}\n", at % 29 + 1);
    std::fs::write(folder.path().join("other.jsonl"), (0..2000).map(row).collect::<String>()).unwrap();
    let sets = [
        "data.validation=other.jsonl",
        "trainer.per_device_eval_batch_size=1",
        "trainer.eval_steps=7",
        "trainer.save_steps=5",
    ];
    let mut command = train(folder.path(), "run", &[]);
    let shown = plain(&at_terminal(command.args(sets.iter().flat_map(|set| ["--set", set]))));
    let batches = told(&shown, " evaluating ");
    assert!(batches.len() > 3 && batches.iter().all(|batch| batch.ends_with("/2000")), "{batches:?}");
    let done = batches.iter().map(|batch| batch.trim_end_matches("/2000").parse::<u64>().unwrap()).collect::<Vec<_>>();
    assert!(done.iter().any(|done| *done > 0 && *done < 2000), "{done:?}");
    // The evaluation after step 7 is forecast with the one after step 14.
    assert!(shown.contains(" left"), "{shown}");
    assert!(shown.contains("reading 2 files"), "{shown}");
    // `kiln eval` tells it, too.
    let mut command = kiln(folder.path());
    command.args(["eval", "config.toml", "--set", "data.validation=other.jsonl"]);
    command.args(["--set", "trainer.per_device_eval_batch_size=1"]);
    let shown = plain(&at_terminal(&mut command));
    assert!(told(&shown, " evaluating ").iter().any(|batch| batch.ends_with("/2000")), "{shown}");
}

#[test]
fn a_tokenizer_that_is_learned_is_announced() {
    let place = Place::new();
    let shown = plain(&at_terminal(kiln(&place.path("")).args(["plan", "text.toml"])));
    assert!(shown.contains("reading 6 files") && shown.contains("learning a tokenizer of 270 tokens"), "{shown}");
    let again = plain(&at_terminal(kiln(&place.path("")).args(["plan", "text.toml"])));
    assert!(!again.contains("learning a tokenizer"), "it is kept: {again}");
}

#[test]
fn json_rows_are_those_of_the_file_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let output = train(folder.path(), "run", &["--log-format", "json"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let file = std::fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), file);
    assert!(String::from_utf8(output.stderr).unwrap().contains("again: kiln train"));
    let output = train(folder.path(), "other", &["--log-format", "yaml"]).output().unwrap();
    assert!(
        output.status.code() == Some(2) && text(&output).contains("[possible values: dict, json, table]"),
        "{}",
        text(&output)
    );
}

#[test]
fn a_pipe_gets_dicts_and_the_table_on_request() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let dicts = succeeds(&mut train(folder.path(), "run", &[]));
    assert!(dicts.starts_with("model          gpt2 for clm") && dicts.contains("{'step': 14, 'epoch': "), "{dicts}");
    let table = succeeds(&mut train(folder.path(), "table", &["--log-format", "table"]));
    assert!(table.contains("step   epoch      loss  val loss") && !table.contains("{'"), "{table}");
    assert!(!table.contains('\u{1b}'), "{table:?}");
    let forced = succeeds(
        train(folder.path(), "forced", &["--log-format", "table"]).env_remove("NO_COLOR").env("CLICOLOR_FORCE", "1"),
    );
    assert!(forced.contains("\u{1b}[1m"), "{forced:?}");
}

fn json_of(folder: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&succeeds(kiln(folder).args(args))).unwrap()
}

#[test]
fn programs_read_how_runs_stand() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    succeeds(&mut train(folder.path(), "whole", &[]));
    succeeds(&mut train(folder.path(), "part", &["--stop-after", "5"]));
    // A row that no JSON can hold, and a run that nobody can read.
    let metrics = folder.path().join("part/metrics.jsonl");
    let rows = std::fs::read_to_string(&metrics).unwrap();
    std::fs::write(&metrics, rows + "{\"step\": 5, \"loss\": NaN}\n").unwrap();
    std::fs::create_dir_all(folder.path().join("broken/status.json")).unwrap();

    let whole = json_of(folder.path(), &["describe", "whole", "--json"]);
    assert_eq!((&whole["run"], &whole["status"], &whole["step"]), (&"whole".into(), &"Completed".into(), &14.into()));
    assert_eq!(whole["reason"], "all of its 14 steps are made");
    assert_eq!(whole["checkpoints"], serde_json::json!([7, 14]));
    assert!(whole["last_row"]["loss"].is_number() && whole["summary"]["train_runtime"].is_number(), "{whole}");
    assert_eq!(whole["model_folder"], "whole/model");
    let runs = json_of(folder.path(), &["runs", ".", "--json"]);
    let run = |name: &str| {
        let found = runs.as_array().unwrap().iter().find(|run| run["run"] == name);
        found.unwrap_or_else(|| panic!("{name} in {runs}"))
    };
    assert_eq!((&run("./part")["last_row"]["loss"], &run("./part")["step"]), (&"NaN".into(), &5.into()));
    assert!(run("./broken")["error"].as_str().unwrap().contains("status.json"), "{runs}");
    assert_eq!(run("./whole")["last_row"], whole["last_row"]);

    let table = succeeds(kiln(folder.path()).args(["runs", "."]));
    let line =
        |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} in {table}"));
    assert!(
        line("./whole").contains(" 14/14 ") && line("./whole").ends_with("all of its 14 steps are made"),
        "{table}"
    );
    assert!(line("./part").contains(" nan ") && line("./broken").contains("Unreadable"), "{table}");
    let narrow = at_terminal(kiln(folder.path()).args(["runs", "."]).env("NO_COLOR", "1"));
    assert!(narrow.lines().all(|line| line.trim_end().chars().count() <= 100), "{narrow}");
    let described = succeeds(kiln(folder.path()).args(["describe", "part"]));
    assert!(described.contains("last row       step 5: loss nan"), "{described}");
}

#[test]
fn a_chapter_is_filled_to_the_terminal_and_shown_by_the_pager() {
    let folder = tempfile::tempdir().unwrap();
    let shown = |pager: &str, columns: u16| {
        let mut command = kiln(folder.path());
        command.args(["help", "precision"]).env("PAGER", pager);
        let mut pty = Pty::start(&mut command, columns, 24);
        assert!(pty.ended().success(), "{}", pty.text());
        pty.text()
    };
    for columns in [60, 80, 100] {
        let text = shown("", columns);
        let longest = text.lines().filter(|line| !line.starts_with("    ")).map(|line| line.trim_end().chars().count());
        let longest = longest.max().unwrap();
        assert!((columns as usize - 12..=columns as usize).contains(&longest), "{longest} of {columns}\n{text}");
    }
    let paged = shown("sed 3q", 80);
    assert!(paged.lines().count() <= 4 && paged.contains("Precision"), "{paged}");
    assert!(shown("no-such-pager", 80).contains("The loss scale of f16"));
}
