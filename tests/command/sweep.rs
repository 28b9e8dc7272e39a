//! `kiln sweep`: grids, draws, successive halving, both modes, and a search that is stopped and
//! goes on.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common::messages::messages;
use crate::common::small_run::write;
use crate::common::{fails, json, kiln, succeeds};

/// Writes `sweep.toml` with the section of `text`, beside the config of `small_run`.
fn place(text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let more = "[sweep]\nconfig = \"config.toml\"\noutput_dir = \"search\"\n";
    std::fs::write(folder.path().join("sweep.toml"), format!("{more}{text}")).unwrap();
    folder
}

/// The plots that each mode would draw of its own.
const NO_DROPOUT: [&str; 3] = ["model.attn_pdrop=0.0", "model.resid_pdrop=0.0", "model.embd_pdrop=0.0"];

fn sweep(folder: &Path, args: &[&str]) -> Command {
    let mut command = kiln(folder);
    command.args(["sweep", "sweep.toml"]);
    for set in NO_DROPOUT {
        command.args(["--set", set]);
    }
    command.args(args);
    command
}

fn kept(folder: &Path) -> Value {
    json(&folder.join("search/sweep.json"))
}

/// The metric of each rung of each trial, in the first mode.
fn values(kept: &Value) -> Vec<Vec<f64>> {
    let rungs = |trial: &Value| {
        let rungs = trial["arms"][0]["rungs"].as_array().unwrap().iter();
        rungs.map(|rung| rung["value"].as_f64().unwrap()).collect()
    };
    kept["trials"].as_array().unwrap().iter().map(rungs).collect()
}

/// The lines that tell of a run that came to a rung.
fn trials_made(out: &str) -> usize {
    out.lines().filter(|line| line.starts_with("trial ") && line.contains("eval_loss ")).count()
}

/// The config of a search lies in its folder, away from the files that it includes.
#[test]
fn a_config_that_includes_others_is_searched() {
    let folder = place("[sweep.parameters]\n\"trainer.seed\" = [1]\n");
    let path = folder.path();
    std::fs::rename(path.join("config.toml"), path.join("base.toml")).unwrap();
    std::fs::write(path.join("config.toml"), "include = \"base.toml\"\n[trainer]\nmax_steps = 4\n").unwrap();
    succeeds(&mut sweep(path, &[]));
    let plan = std::fs::read_to_string(path.join("search/trials/001-native/plan.toml")).unwrap();
    assert!(plan.contains("\n# includes ") && plan.contains("base.toml; keys of the config file win"), "{plan}");
    assert!(plan.contains("\nmax_steps = 4\n") && !plan.contains("\ninclude"), "{plan}");
    // It repeats the run wherever it stands.
    let again = path.join("elsewhere");
    std::fs::create_dir(&again).unwrap();
    std::fs::write(again.join("plan.toml"), plan.replace("data.jsonl", "../data.jsonl")).unwrap();
    let mut train = kiln(&again);
    succeeds(train.args(["train", "plan.toml", "--set", "run.output_dir=run"]));
    let losses =
        |run: &Path| crate::common::rows(run).iter().filter_map(|row| row["loss"].as_f64()).collect::<Vec<_>>();
    let found = losses(&path.join("search/trials/001-native"));
    assert_eq!((found.len(), losses(&again.join("run"))), (4, found));
    // The folder of a search is that of no run, and its trials are runs.
    let listed = succeeds(kiln(path).args(["runs", "search"]));
    assert!(listed.contains("search/trials/001-native"), "{listed}");
    fails(
        kiln(path).args(["describe", "search"]),
        3,
        &["search: expected the folder of a run, got that of a search", "kiln runs search"],
    );
}

#[test]
fn a_grid_in_both_modes_has_a_table_a_page_and_what_compiling_saved() {
    let messages = messages!();
    let folder = place(
        "mode = \"both\"\n[sweep.parameters]\n\"trainer.learning_rate\" = [1e-5, 1e-2]\ntrainer.weight_decay.values = [0.0, 0.1]\n",
    );
    let out = succeeds(&mut sweep(folder.path(), &["--set", "trainer.max_steps=9"]));
    assert_eq!(trials_made(&out), 8, "{out}");
    assert!(out.contains("Best: trial ") && out.contains("over the whole search"), "{out}");
    let kept = kept(folder.path());
    let values = values(&kept);
    // Every trial is a run like any other: what it found is what the same run finds alone.
    let mut alone = kiln(folder.path());
    alone.args(["train", "config.toml", "--set", "run.output_dir=alone", "--set", "trainer.max_steps=9"]);
    for set in NO_DROPOUT.iter().chain(&["trainer.learning_rate=1e-2", "trainer.weight_decay=0.1"]) {
        alone.args(["--set", set]);
    }
    succeeds(&mut alone);
    let rows = crate::common::rows(&folder.path().join("alone"));
    let last = rows.iter().rev().find_map(|row| row["eval_loss"].as_f64()).unwrap();
    assert_eq!(kept["trials"][3]["parameters"]["trainer.learning_rate"], "0.01");
    // Every figure of a row can rank the trials: here of both kinds of rows.
    let figures =
        rows.iter().flat_map(|row| row.as_object().unwrap().keys()).collect::<std::collections::BTreeSet<_>>();
    let text = std::fs::read_to_string(folder.path().join("sweep.toml")).unwrap();
    let other = folder.path().join("other.toml");
    for figure in figures {
        let of_figure = text.replace("[sweep]\n", &format!("[sweep]\nmetric = {figure:?}\n"));
        std::fs::write(&other, of_figure).unwrap();
        let args = ["sweep", "other.toml", "--set", "trainer.max_steps=9"];
        fails(kiln(folder.path()).args(args), 2, &["search holds another search"]);
    }
    assert!((values[3][0] - last).abs() <= 1e-9, "{values:?} {last}");
    assert!(folder.path().join("search/trials/004-native/model/model.safetensors").is_file());
    for trial in kept["trials"].as_array().unwrap() {
        let [native, compiled] = [0, 1].map(|arm| trial["arms"][arm]["rungs"][0]["value"].as_f64().unwrap());
        assert!((native - compiled).abs() <= 1e-4 * native, "{native} {compiled}");
    }
    let page = std::fs::read_to_string(folder.path().join("search/report.html")).unwrap();
    for part in ["Best: trial", "over the whole search"] {
        assert!(page.contains(part), "{part}");
    }
    // The curves, and each key against the figure: four dots each, the best in colour.
    for title in ["Trials", "trainer.learning_rate", "trainer.weight_decay"] {
        let chart = drawing(&page, title);
        assert!(chart.contains("\neval_loss\n</text>"), "{title} names its axis: {chart}");
        if title != "Trials" {
            let dots = |look: &str| chart.split("<circle ").skip(1).filter(|circle| circle.contains(look)).count();
            assert_eq!((dots("cx"), dots("r=\"9\""), dots("#0072B2")), (4, 1, 1), "{title}: {chart}");
        }
    }
    // Made again from the folder alone, and a search that is complete does nothing.
    std::fs::remove_file(folder.path().join("search/report.html")).unwrap();
    let shown = succeeds(kiln(folder.path()).args(["report", "search"]));
    assert!(shown.contains("Best: trial ") && folder.path().join("search/report.html").is_file());
    let again = succeeds(&mut sweep(folder.path(), &["--set", "trainer.max_steps=9"]));
    assert!(again.contains("going on with the search") && !again.contains("trial 1 of 4"), "{again}");
    // Another search has a folder of its own.
    messages.fails(sweep(folder.path(), &["--set", "trainer.max_steps=8"]), 2);
}

/// The drawing of a chart of a page.
fn drawing<'a>(page: &'a str, title: &str) -> &'a str {
    let chart =
        page.split_once(&format!("<svg role=\"img\" aria-label=\"{title}\"")).unwrap_or_else(|| panic!("{title}")).1;
    chart.split_once("</svg>").unwrap().0
}

const HALVING: &str = "method = \"random\"\ntrials = 9\nmode = \"native\"\n[sweep.parameters]\n\
     \"trainer.learning_rate\" = { min = 1e-6, max = 3e-2, log = true }\n[sweep.asha]\nmin_steps = 2\nreduction_factor = 3\n";

#[test]
fn halving_stops_what_is_behind_and_a_killed_search_comes_to_the_same_end() {
    let whole = place(HALVING);
    succeeds(&mut sweep(whole.path(), &[]));
    let kept_whole = kept(whole.path());
    let expected = values(&kept_whole);
    // Rungs at 2, 6 and 14 steps, the end, of 18: those of 9 trials that were behind made 2 or 6
    // steps.
    let mut steps = Vec::new();
    for trial in kept_whole["trials"].as_array().unwrap() {
        let arm = &trial["arms"][0];
        let last = arm["rungs"].as_array().unwrap().last().unwrap()["step"].as_u64().unwrap();
        assert_eq!(arm["is_complete"], last == 14);
        steps.push(last);
    }
    assert!(steps.iter().all(|step| [2, 6, 14].contains(step)), "{steps:?}");
    let at_least = |least: u64| steps.iter().filter(|step| **step >= least).count();
    assert!((3..=5).contains(&at_least(6)) && (1..=3).contains(&at_least(14)), "{steps:?}");
    // The page has every rung of every trial, those of trials that went on too.
    let page = std::fs::read_to_string(whole.path().join("search/report.html")).unwrap();
    let chart = drawing(&page, "Trials");
    for (trial, rungs) in expected.iter().enumerate() {
        for (value, step) in rungs.iter().zip([2, 6, 14]) {
            let place = chart.split("<title>").find(|said| said.starts_with(&format!("step {step}\n"))).unwrap();
            let value = format!("\ntrial {} {value:.3}", trial + 1);
            assert!(place.split_once("</title>").unwrap().0.contains(&value), "{value} at step {step}: {place}");
        }
    }
    // Of the first rung the best has gone on.
    let first = (0..9).min_by(|a, b| expected[*a][0].total_cmp(&expected[*b][0])).unwrap();
    assert!(steps[first] >= 6, "{steps:?} {expected:?}");

    // Killed after some trials, it goes on and ends as the other one.
    let killed = place(HALVING);
    let mut child = sweep(killed.path(), &[]).stdout(std::process::Stdio::null()).spawn().unwrap();
    let file = killed.path().join("search/sweep.json");
    let is_begun = || file.is_file() && values(&json(&file)).iter().filter(|rungs| !rungs.is_empty()).count() >= 3;
    while !is_begun() {
        assert!(child.try_wait().unwrap().is_none(), "it ended too soon");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let known = values(&json(&file)).concat().len();
    assert!(known < expected.concat().len());
    let out = succeeds(&mut sweep(killed.path(), &[]));
    assert!(out.contains("going on with the search"), "{out}");
    assert_eq!(trials_made(&out), expected.concat().len() - known, "nothing is done twice");
    for (killed, whole) in values(&kept(killed.path())).iter().zip(&expected) {
        assert_eq!(killed.len(), whole.len());
        assert!(killed.iter().zip(whole).all(|(a, b)| (a - b).abs() <= 1e-9), "{killed:?} {whole:?}");
    }
}

#[test]
fn a_trial_that_fails_is_left_and_mistakes_are_told_before_anything_is_trained() {
    let messages = messages!();
    let folder = place("mode = \"native\"\n[sweep.parameters]\n\"trainer.learning_rate\" = [1e30, 1e-3]\n");
    let out =
        succeeds(&mut sweep(folder.path(), &["--set", "trainer.max_steps=9", "--set", "trainer.max_grad_norm=0"]));
    assert!(out.contains("trial 1 of 2 (native): trainer.learning_rate = 1e30: failed: "), "{out}");
    assert!(out.contains("Best: trial 2"), "{out}");
    let few = ["--set", "trainer.max_steps=4"];
    for text in [
        "[sweep.parameters]\n\"trainer.learning_rat\" = [1.0]",
        "[sweep.parameters]\n\"trainer.learning_rate\" = [1e-3, -1.0]",
        "methods = \"grid\"\n[sweep.parameters]\n\"a.b\" = [1]",
        "[sweep.grid]\n\"trainer.learning_rate\" = [1e-3]",
        "[sweep.parameters]\n\"a.b\" = [1]\n[sweep.asha]\nsteps = 2",
        "[sweep.parameters]\n\"trainer.save_strategy\" = [\"no\"]\n[sweep.asha]\nmin_steps = 2",
    ] {
        messages.given("sweep.toml", text);
        messages.fails(sweep(place(text).path(), &few), 2);
    }
    for (metric, set) in [
        ("eval_f1", "trainer.max_steps=4"),
        ("eval_los", "trainer.max_steps=4"),
        ("eval_loss", "trainer.eval_strategy=no"),
    ] {
        let text = format!("metric = {metric:?}\n[sweep.parameters]\n\"trainer.learning_rate\" = [1e-3]");
        let other = place(&text);
        messages.given("sweep.toml", &text);
        messages.fails(sweep(other.path(), &["--set", set]), 2);
        assert!(!other.path().join("search").exists(), "told before the first trial");
    }
    // What is searched is set nowhere else.
    let searched = "[sweep.parameters]\n\"precision\" = [\"f32\", \"bf16\"]\n\"trainer.seed\" = [1]";
    messages.given("sweep.toml", searched);
    for args in [["--precision", "bf16"], ["--set", "trainer.seed=2"]] {
        messages.fails(sweep(place(searched).path(), &args), 2);
    }
    // The file of a search is no config of one run.
    for command in ["plan", "train"] {
        messages.fails(kiln(folder.path()).args([command, "sweep.toml"]), 2);
    }
    std::fs::write(folder.path().join("sweep.toml"), "[model]\nkind = \"gpt2\"\n").unwrap();
    messages.fails(sweep(folder.path(), &[]), 2);
    std::fs::create_dir(folder.path().join("mine")).unwrap();
    std::fs::write(folder.path().join("mine/file"), "").unwrap();
    let own = place("[sweep.parameters]\n\"trainer.learning_rate\" = [1e-3]\n");
    std::fs::write(own.path().join("search"), "").unwrap();
    messages.fails(sweep(own.path(), &[]), 1);
    let full = place("[sweep.parameters]\n\"trainer.learning_rate\" = [1e-3]\n");
    std::fs::create_dir(full.path().join("search")).unwrap();
    std::fs::write(full.path().join("search/mine"), "").unwrap();
    messages.fails(sweep(full.path(), &[]), 2);
    assert_eq!(std::fs::read_dir(full.path().join("search")).unwrap().count(), 1);
}

#[test]
fn trials_of_equal_figures_are_not_called_the_best() {
    let folder = place("mode = \"native\"\n[sweep.parameters]\n\"trainer.learning_rate\" = [1e-3, 1e-3]\n");
    let out = succeeds(&mut sweep(folder.path(), &["--set", "trainer.max_steps=4"]));
    let said = out.lines().find(|line| line.contains("single best")).unwrap_or_else(|| panic!("{out}"));
    assert!(
        said.starts_with("No single best: 2 of 2 trials are equal, eval_loss ") && said.ends_with(": trials 1, 2."),
        "{said}"
    );
    assert!(!out.contains("Best: "), "{out}");
    let page = std::fs::read_to_string(folder.path().join("search/report.html")).unwrap();
    assert!(page.contains("No single best: 2 of 2") && page.contains("trial 2, equal"), "{page}");
}

#[test]
#[cfg(unix)]
fn a_signal_ends_the_trial_with_a_checkpoint_and_the_search_goes_on() {
    let folder = place("mode = \"native\"\n[sweep.parameters]\n\"trainer.learning_rate\" = [1e-3, 1e-2]\n");
    let long = ["--set", "trainer.max_steps=3000"];
    let mut child = sweep(folder.path(), &long).stdout(std::process::Stdio::null()).spawn().unwrap();
    let rows = folder.path().join("search/trials/001-native/metrics.jsonl");
    while !std::fs::metadata(&rows).is_ok_and(|file| file.len() > 500) {
        assert!(child.try_wait().unwrap().is_none(), "it ended too soon");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    succeeds(Command::new("kill").args(["-INT", &child.id().to_string()]));
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let status = json(&folder.path().join("search/trials/001-native/status.json"));
    assert_eq!(status["status"], "Stopped", "{status}");
    let step = status["step"].as_u64().unwrap();
    assert!(folder.path().join(format!("search/trials/001-native/checkpoints/step-{step:06}")).is_dir());
    assert_eq!(values(&kept(folder.path())), [vec![], Vec::<f64>::new()]);
}
