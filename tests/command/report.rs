//! The page of a run: what `kiln train` leaves in the run folder, and what `kiln report RUN` makes
//! of any run.

use std::fs::File;
use std::process::Command;

use serde_json::{Value, json};

use super::common::messages::messages;
use super::common::place::Place;
use super::common::{fails, json, kiln, rows, small_run, succeeds, text};

const NAME: &str = "</title><script>alert(1)</script>\"'&";

fn report(place: &Place, args: &[&str]) -> Command {
    let mut command = kiln(&place.path(""));
    command.arg("report").args(args);
    command
}

fn page(place: &Place, run: &str) -> String {
    std::fs::read_to_string(place.path(run).join("report.html")).unwrap()
}

/// One file that loads nothing and runs nothing; every chart has a table.
fn is_whole(page: &str) {
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"), "{page}");
    assert!(!page.contains("<script") && !page.contains('\u{1b}'), "{page}");
    for outside in ["src=", "href=\"http", "url(", "@import"] {
        assert!(!page.contains(outside), "{outside}");
    }
    let others = page.replace("http://www.w3.org/2000/svg", "");
    assert!(!others.contains("http:") && !others.contains("https:"), "it names an address");
    let charts = page.matches("<figure>").count();
    assert_eq!(page.matches("</summary><div class=\"wide\" tabindex=\"0\">").count(), charts);
    assert!(page.contains("prefers-color-scheme: dark") && page.contains("@media print"));
}

fn chart(page: &str, title: &str) -> bool {
    page.contains(&format!("<svg role=\"img\" aria-label=\"{title}\""))
}

/// The cell beside the name of a row.
fn cell<'a>(page: &'a str, name: &str) -> Option<&'a str> {
    let name = name.replace('/', "&#x2f;");
    let heads = ["", " class=\"part\""].map(|class| format!("<tr><th scope=\"row\"{class}>{name}</th><td>"));
    let after = heads.iter().find_map(|head| Some(page.split_once(head.as_str())?.1))?;
    after.split_once("</td>").map(|(cell, _)| cell)
}

#[test]
fn a_finished_run_of_a_classifier_has_a_page() {
    let place = Place::new();
    small_run::write(&place.path(""), "sequence-classification");
    let name = format!("run.name={}", json!(NAME));
    succeeds(&mut small_run::train(&place.path(""), "a <b>&'", &["--set", &name, "--step-times"]));
    let page = page(&place, "a <b>&'");
    is_whole(&page);
    assert!(
        page.contains("&lt;script&gt;") && page.contains("class=\"answer good\">Completed: 14 steps in "),
        "{page}"
    );
    let titles = ["Loss", "Scores", "Learning rate", "Gradient norm", "Throughput", "Memory", "Step time"];
    for title in titles.iter().chain(&["Time of a step", "Time of the run"]) {
        assert!(chart(&page, title), "{title}");
    }
    // Figures are those of the rows.
    let rows = rows(&place.path("a <b>&'"));
    let last = |name: &str| rows.iter().rev().find_map(|row| row[name].as_f64()).unwrap();
    assert_eq!(cell(&page, "steps"), Some("14 of 14"));
    assert_eq!(cell(&page, "last loss").unwrap(), format!("{:.3}", last("loss")));
    assert_eq!(cell(&page, "validation loss").unwrap(), format!("{:.3}", last("eval_loss")));
    for row in ["step ms, median", "step ms, p95", "step ms, max", "forward", "model GFLOP/s", "peak memory MiB"] {
        assert!(cell(&page, row).is_some(), "{row}");
    }
    assert_eq!(cell(&page, "of the measured peak"), None, "the end of a run measures nothing");
    // Every example of the last evaluation is in the matrix.
    let kept: Value = json(&place.path("a <b>&'").join("confusion_matrix.json"));
    let counts = kept["counts"].as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap());
    assert_eq!(counts.map(|count| count.as_f64().unwrap()).sum::<f64>(), last("eval_samples"));
    assert_eq!((&kept["step"], kept["labels"].as_array().unwrap().len()), (&json!(14), 3));
    assert!(page.contains("<h2>Confusion matrix</h2>") && page.contains("Predictions after step 14"));
    for part in ["learning_rate = 0.001", "warm-up 3 steps", "bert for sequence-classification"] {
        assert!(page.contains(part), "{part}");
    }
    // The page is the run's own file.
    let listed = std::fs::read_to_string(place.path("a <b>&'/.lock")).unwrap();
    assert!(["report.html", "confusion_matrix.json", "samples.jsonl"].iter().all(|file| listed.contains(file)));
}

#[test]
fn the_model_that_was_kept_is_named_with_its_figures() {
    let place = Place::new();
    small_run::write(&place.path(""), "sequence-classification");
    let kept = ["trainer.load_best_model_at_end=true", "trainer.save_steps=3"];
    let train = |more: &[&str]| {
        let mut command = small_run::train(&place.path(""), "run", more);
        succeeds(command.args(kept.iter().flat_map(|set| ["--set", set])))
    };
    train(&["--stop-after", "9"]);
    let said = train(&["--resume"]);
    let evaluations = rows(&place.path("run")).into_iter().filter(|row| row["eval_loss"].is_number());
    let loss = |row: &Value| row["eval_loss"].as_f64().unwrap();
    let best = evaluations.min_by(|a, b| loss(a).total_cmp(&loss(b))).unwrap();
    let step = best["step"].as_u64().unwrap();
    assert!(step < 14, "the last evaluation is no other one: {best}");

    let model = format!("run/model (step {step}, eval_loss {:.3}, the best)", loss(&best));
    assert!(said.contains(&format!("\nmodel: {model}\n")), "{said}");
    // The last digit may be another one after it was read.
    let is_best = |value: f64| (value - loss(&best)).abs() < 1e-12;
    let block = said.split_once("***** eval metrics *****").unwrap().1;
    let line = block.lines().find(|line| line.starts_with("  eval_loss ")).unwrap();
    assert!(is_best(line.split_once("= ").unwrap().1.trim().parse().unwrap()), "{said}");
    assert!(is_best(loss(&json(&place.path("run/all_results.json")))));
    let described = succeeds(kiln(&place.path("")).args(["describe", "run"]));
    assert!(described.contains(&format!("evaluation     step {step}: ")) && described.contains(&model), "{described}");
    assert!(described.contains("step 14 after ") && described.contains("s from step 9 on: "), "{described}");
    let described: Value =
        serde_json::from_str(&succeeds(kiln(&place.path("")).args(["describe", "run", "--json"]))).unwrap();
    assert_eq!(described["best_model"], json!({ "step": step, "metric": "eval_loss" }));
    assert_eq!(described["evaluation"]["step"], step);

    let page = page(&place, "run");
    let headline = format!("; model of step {step}, the best: validation loss {:.3}.</p>", loss(&best));
    assert!(page.contains(&headline), "{page}");
    assert_eq!(cell(&page, "validation loss").unwrap(), format!("{:.3}", loss(&best)));
    assert_eq!(cell(&page, "model").unwrap(), format!("of step {step}, the best by validation loss"));
    // A continued run: the time is that of all starts, and figures of the last start say so.
    assert!(cell(&page, "time of all starts").is_some() && cell(&page, "time").is_none(), "{page}");
    for figure in ["samples/s", "tokens/s, steady", "warm-up", "evaluation", "saving"] {
        assert!(cell(&page, &format!("{figure}, from step 9 on")).is_some(), "{figure}: {page}");
        // A chart has a table with these two parts of the time.
        assert!(["evaluation", "saving"].contains(&figure) || cell(&page, figure).is_none(), "{figure}: {page}");
    }
    assert!(page.contains("evaluating and saving, from step 9 on."), "{page}");
    assert!(page.contains(&format!("Predictions after step {step}:")), "{page}");
    let counts = json(&place.path("run/confusion_matrix.json"))["counts"].clone();
    let right = (0..3).map(|class| counts[class][class].as_u64().unwrap()).sum::<u64>() as f64;
    assert_eq!(right / best["eval_samples"].as_f64().unwrap(), best["eval_accuracy"].as_f64().unwrap());
    // The figures are those of the folder.
    let mut eval = kiln(&place.path(""));
    let out = place.path("figures.json");
    succeeds(eval.args(["eval", "config.toml", "--set", "run.output_dir=run", "--out"]).arg(&out));
    assert!(is_best(loss(&json(&out))), "{best}");
}

#[test]
fn of_two_runs_the_better_one_is_named_first() {
    let place = Place::new();
    small_run::write(&place.path(""), "sequence-classification");
    let train = |run: &str, sets: &[&str]| {
        let mut command = small_run::train(&place.path(""), run, &[]);
        succeeds(command.args(sets.iter().flat_map(|set| ["--set", set])));
    };
    train("slow", &["trainer.learning_rate=1e-6"]);
    train("short", &["trainer.learning_rate=1e-2", "trainer.max_steps=9"]);
    let out = succeeds(&mut report(&place, &["short", "slow"]));
    let evaluation = |run: &str, step: u64| {
        let mut rows = rows(&place.path(run)).into_iter();
        rows.find(|row| row["step"] == step && row["eval_loss"].is_number()).unwrap()
    };
    let loss = |run: &str, step: u64| evaluation(run, step)["eval_loss"].as_f64().unwrap();
    // One moment that both were evaluated at, then the ends.
    let said = out.lines().find(|line| line.starts_with("Which is better? ")).unwrap_or_else(|| panic!("{out}"));
    let (equal, end) = ([loss("slow", 9), loss("short", 9)], [loss("slow", 14), loss("short", 9)]);
    assert!(equal[0] < equal[1] && end[0] < end[1], "{out}");
    for (when, both) in [("after 9 steps each", equal), ("at the end, after 14 and 9 steps", end)] {
        let [slow, short] = both.map(|loss| if loss < 1.0 { format!("{loss:.4}") } else { format!("{loss:.3}") });
        let part = format!("{when} (validation loss {slow} against {short}, ");
        assert!(said.contains(&part), "{part} in {said}");
    }
    assert!(said.starts_with("Which is better? slow, after") && said.contains(", accuracy "), "{said}");
    let time = out.find("slow against short: ").unwrap_or_else(|| panic!("{out}"));
    // They did not run by turns: no verdict on the speed, in no colour.
    let said = &out[time..].lines().next().unwrap();
    assert!(
        said.contains("x as fast, 98 % interval ") && said.contains("the times come from different starts"),
        "{said}"
    );
    assert!(!["faster", "slower", "measurable"].iter().any(|word| said.contains(word)), "{said}");
    assert!(out.find("Which is better?").unwrap() < time, "time comes after it: {out}");
    assert!(out.contains("validation loss") && out.contains("after 9 steps"), "{out}");
    let page = page(&place, "report/short-slow");
    is_whole(&page);
    let (before, _) = page.split_once("slow against short: ").unwrap();
    let element = &before[before.rfind('<').unwrap()..];
    assert!(!["good", "bad"].iter().any(|tone| element.contains(tone)), "{element}");
    assert!(page.contains("Which is better? slow") && chart(&page, "Validation loss"), "{page}");
    let learned = json(&place.path("report/short-slow/report.json"))["comparisons"][0]["learned"].clone();
    assert_eq!((&learned["reason"], &learned["end"]["steps"]), (&Value::Null, &json!([14, 9])));
    let values = learned["equal_steps"]["figures"][0]["values"].as_array().unwrap();
    assert!(values.iter().zip(equal).all(|(value, loss)| (value.as_f64().unwrap() - loss).abs() < 1e-12), "{learned}");

    // The best model is what its run has learned.
    train("kept", &["trainer.save_steps=3", "trainer.load_best_model_at_end=true", "trainer.learning_rate=1e-2"]);
    let step = json(&place.path("kept/status.json"))["best_model"]["step"].as_u64().unwrap();
    assert!(step < 14);
    succeeds(&mut report(&place, &["slow", "kept"]));
    let learned = json(&place.path("report/slow-kept/report.json"))["comparisons"][0]["learned"].clone();
    assert_eq!(learned["end"]["steps"], json!([step, 14]));

    // Other data, and no data at all.
    train("other", &["data.validation=40%"]);
    let out = succeeds(&mut report(&place, &["slow", "other"]));
    let why = "Which is better? This cannot be said: their validation data differ: 10 against 5 examples; data.validation 0.4 \
               against 0.2.";
    assert!(out.contains(why), "{out}");
    assert!(!out.contains("which this one replaces"), "each pair has a folder of its own: {out}");
    assert!(place.path("report/short-slow/report.html").is_file() && place.path("report/slow-kept").is_dir());
    let out = succeeds(&mut report(&place, &["slow", "short", "other", "--out", "three"]));
    assert!(out.contains("Which is better? slow, by the validation loss at the end: slow "), "{out}");
    assert!(out.contains("Left out: other against slow: their validation data differ"), "{out}");
    // The loss of another label smoothing does not compare: a score of all decides.
    train("smooth", &["trainer.label_smoothing_factor=0.1"]);
    let out = succeeds(&mut report(&place, &["slow", "short", "smooth", "--out", "three"]));
    assert!(out.starts_with("three held the report of slow, short, other, which this one replaces\n"), "{out}");
    let said = out.lines().find(|line| line.starts_with("Which is better? ")).unwrap_or_else(|| panic!("{out}"));
    let (_, ranked) = said.split_once(", by the validation accuracy at the end: ").unwrap_or_else(|| panic!("{out}"));
    assert!(
        ["slow ", "short ", "smooth "].iter().all(|run| ranked.contains(run)) && !said.contains("Left out"),
        "{out}"
    );
    train("blind", &["trainer.eval_strategy=no"]);
    let out = succeeds(&mut report(&place, &["slow", "blind"]));
    assert!(out.contains("This cannot be said: blind was not evaluated."), "{out}");
    let task = Place::new();
    small_run::write(&task.path(""), "token-classification");
    let tokens = task.path("tokens").display().to_string();
    succeeds(&mut small_run::train(&task.path(""), &tokens, &[]));
    let out = succeeds(&mut report(&place, &["slow", &tokens]));
    assert!(out.contains("their tasks differ: token-classification against sequence-classification"), "{out}");
}

#[test]
fn the_page_of_any_run_is_made_again() {
    let messages = messages!();
    let place = Place::new();
    place.train("text.toml", &["generation.prompt=fn", "generation.max_new_tokens=4", "data.validation=20%"]);
    assert!(page(&place, "run").contains("<h2>Samples</h2>"));
    let sample: Value =
        serde_json::from_str(&std::fs::read_to_string(place.path("run/samples.jsonl")).unwrap()).unwrap();
    assert_eq!((&sample["step"], &sample["prompt"]), (&json!(2), &json!("fn")));
    // The share of the peak is measured now; the terminal shows the same document.
    let out = succeeds(&mut report(&place, &["run"]));
    assert!(
        out.contains("Completed: 2 steps") && out.contains("last loss") && out.contains("report: run/report.html"),
        "{out}"
    );
    let first = page(&place, "run");
    is_whole(&first);
    assert!(cell(&first, "of the measured peak").is_some_and(|share| share.ends_with(" %")), "{first}");
    // Options that need a comparison are refused for one run, and no file of the user's is
    // replaced.
    messages.fails(report(&place, &["run", "--gate", "speedup>=1"]), 2);
    messages.fails(report(&place, &["nowhere"]), 3);
    place.write("mine/report.html", "<p>mine</p>");
    messages.fails(report(&place, &["run", "--out", "mine"]), 2);
    assert_eq!(page(&place, "mine"), "<p>mine</p>");
    succeeds(&mut report(&place, &["run", "--out", "elsewhere"]));
    is_whole(&page(&place, "elsewhere"));
    // A run of an earlier Kiln has less in its folder; one of another machine has no peak here.
    for file in ["plan.json", "provenance.json", "samples.jsonl", "run.log"] {
        std::fs::remove_file(place.path("run").join(file)).unwrap();
    }
    succeeds(&mut report(&place, &["run"]));
    let older = page(&place, "run");
    is_whole(&older);
    assert!(older.contains("gpt2 for clm, from random weights"), "the head of plan.toml tells the plan: {older}");
    assert!(!older.contains("<h2>Samples</h2>") && cell(&older, "model GFLOP/s").is_none());
    std::fs::remove_file(place.path("run/plan.toml")).unwrap();
    std::fs::remove_file(place.path("run/metrics.jsonl")).unwrap();
    succeeds(&mut report(&place, &["run"]));
    is_whole(&page(&place, "run"));
}

#[test]
fn a_run_that_died_or_goes_on_has_a_page() {
    let place = Place::new();
    let diverges =
        ["--set", "trainer.learning_rate=1e30", "--set", "trainer.logging_steps=1", "--set", "trainer.max_steps=9"];
    let mut train = kiln(&place.path(""));
    train.args(["train", "rows.toml"]).args(diverges);
    fails(&mut train, 5, &["step"]);
    let died = page(&place, "run");
    is_whole(&died);
    assert!(died.contains("class=\"answer bad\">Failed after step "), "{died}");
    assert!(died.contains("<li class=\"bad\">"), "a value that is no number is a warning: {died}");
    assert!(died.contains("<h2>Log</h2>") && died.contains("ended: "), "{died}");

    place.train("text.toml", &["run.output_dir=on", "trainer.logging_steps=1"]);
    let mut status: Value = json(&place.path("on/status.json"));
    (status["status"], status["message"], status["total_steps"]) = (json!("InProgress"), Value::Null, json!(100));
    place.write("on/status.json", status.to_string());
    // The row that it is writing is half there.
    let half = std::fs::read_to_string(place.path("on/metrics.jsonl")).unwrap();
    let half = half.lines().take(2).collect::<Vec<_>>().join("\n") + "\n{\"step\": 3, \"lo";
    place.write("on/metrics.jsonl", half);
    let lock = File::open(place.path("on/.lock")).unwrap();
    lock.lock().unwrap();
    succeeds(&mut report(&place, &["on"]));
    let on = page(&place, "on");
    is_whole(&on);
    assert!(on.contains("Going on when this page was made: step 2 of 100") && !on.contains("cannot be read"), "{on}");
    assert_eq!(cell(&on, "of the measured peak"), None, "nothing is measured beside a run");
    drop(lock);
    // Nobody holds the folder: the run was killed, and half a row is worth a word.
    let output = report(&place, &["on"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let killed = page(&place, "on");
    assert!(
        killed.contains("Failed after step 2 of 100") && killed.contains("1 of 3 lines cannot be read"),
        "{killed}"
    );
}

/// Values that a disk or a person has spoilt are no reason to fail.
#[test]
fn rows_of_any_values_make_a_page() {
    let place = Place::new();
    place.train("rows.toml", &[]);
    std::fs::remove_file(place.path("run/provenance.json")).unwrap(); // so that no peak is measured
    let big = ["1e308", "-1e308", "1e-320", "NaN", "-Infinity", "18446744073709551615", "null", "-0.0"];
    let row = |(index, value): (usize, &&str)| {
        let [step, other] = [big[(index + 3) % big.len()], big[(index + 5) % big.len()]];
        format!(
            "{{\"step\": {step}, \"loss\": {value}, \"eval_loss\": {other}, \"grad_norm\": {value}, \"learning_rate\": {other}, \
             \"tokens_per_s\": {value}, \"step_ms\": {other}, \"peak_mib\": {value}, \"data_wait\": {step}, \
             \"eval_<script>\": {value}}}\n"
        )
    };
    let rows = big.iter().enumerate().map(row).collect::<String>();
    let plain = |step: u64| format!("{{\"step\": {step}, \"loss\": 1e{step}, \"step_ms\": 2.5}}\n");
    place.write("run/metrics.jsonl", rows.repeat(3) + &(0..700).rev().map(plain).collect::<String>());
    let step = |ms: &str| {
        format!(
            "{{\"step\":1,\"samples\":0,\"tokens\":0,\"step_ms\":{ms},\"data_ms\":{ms},\"forward_ms\":-1,\"backward_ms\":0,\
             \"update_ms\":0,\"sync_ms\":0,\"synced\":true}}\n"
        )
    };
    place.write("run/steps.jsonl", ["1e308", "-1e308", "0", "1e-320"].map(step).concat());
    for (counts, is_shown) in [("[[1,2],[3,18446744073709551615]]", true), ("[[1],[2]]", false), ("7", false)] {
        place.write(
            "run/confusion_matrix.json",
            format!("{{\"step\":1,\"labels\":[\"<b>\",\"\"],\"counts\":{counts}}}"),
        );
        succeeds(&mut report(&place, &["run"]));
        let page = page(&place, "run");
        is_whole(&page);
        assert_eq!(page.contains("<h2>Confusion matrix</h2>"), is_shown, "{counts}");
    }
}

#[test]
fn a_run_that_is_continued_has_the_page_of_the_whole() {
    let place = Place::new();
    small_run::write(&place.path(""), "clm");
    succeeds(&mut small_run::train(&place.path(""), "run", &["--stop-after", "5", "--step-times"]));
    assert!(cell(&page(&place, "run"), "steps").is_some_and(|steps| steps.starts_with("5 of ")));
    succeeds(&mut small_run::train(&place.path(""), "run", &["--resume", "--step-times"]));
    let whole = page(&place, "run");
    is_whole(&whole);
    assert_eq!(cell(&whole, "steps"), Some("14 of 14"));
    assert!(whole.contains("continuing after step 5 from "), "{whole}");
    let loss = whole.split_once("aria-label=\"Loss\"").unwrap().1.split_once("</figure>").unwrap().0;
    for step in 1..=14 {
        assert!(loss.contains(&format!("<th scope=\"row\">{step}</th>")), "step {step}: {loss}");
    }
}
