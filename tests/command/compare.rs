//! `kiln compare` and `kiln report` through the binary, on a tiny model: what they write, that
//! faults planted in the compiled arm get the right verdict and exit code, and what is refused. The
//! faults are planted by a script that stands in for the compiled engine (`--compiled-program`):
//! the product knows nothing of them. No assertion depends on how fast anything is.
#![cfg(unix)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::messages::messages;
use crate::common::small_run::write;
use crate::common::{fails, json, kiln, succeeds};
use serde_json::Value;

/// No dropout, and one shape for all batches.
const SETS: [&str; 5] = [
    "model.resid_pdrop=0",
    "model.embd_pdrop=0",
    "model.attn_pdrop=0",
    "data.padding=max_length",
    "trainer.dataloader_drop_last=true",
];

fn sets() -> impl Iterator<Item = &'static str> {
    SETS.into_iter().flat_map(|set| ["--set", set])
}

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "clm");
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `kiln compare config.toml` with as few runs as are allowed.
    fn compare(&self, more: &[&str]) -> Command {
        self.compare_repeats("2", more)
    }

    fn compare_repeats(&self, repeats: &str, more: &[&str]) -> Command {
        let mut command = kiln(self.0.path());
        command.args(["compare", "config.toml", "--steps", "10", "--repeats", repeats]).args(sets()).args(more);
        command
    }

    fn report(&self, args: &[&str]) -> Command {
        let mut command = kiln(self.0.path());
        command.arg("report").args(args);
        command
    }

    /// A comparison whose compiled arm is run by this script; `$run` is the run folder, `train`
    /// trains.
    fn with_fault(&self, name: &str, lines: &str) -> Command {
        let script = self.path(&format!("{name}.sh"));
        let text = format!("#!/bin/sh\nrun=\"${{2%.toml}}\"\ntrain() {{ \"$KILN\" \"$@\" || exit $?; }}\n{lines}\n");
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        // Four runs: fewer leave room for any noise.
        let mut command = self.compare_repeats("4", &["--out", name]);
        command.arg("--compiled-program").arg(script).env("KILN", env!("CARGO_BIN_EXE_kiln"));
        command
    }

    fn verdict(&self, folder: &str) -> (String, String) {
        let report = json(&self.path(folder).join("report.json"));
        let comparison = &report["comparisons"][0];
        let text = |name: &str| comparison[name].as_str().unwrap_or_default().to_owned();
        (text("verdict"), text("reason"))
    }
}

/// Equal, with numbers up to the last digits, which JSON's reader does not keep.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            (a - b).abs() <= 1e-12 * a.abs().max(b.abs())
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, value)| b.get(key).is_some_and(|other| same(value, other)))
        }
        _ => a == b,
    }
}

#[test]
fn a_comparison_is_measured_written_and_made_again() {
    let place = Place::new();
    // A counter of energy that goes on, and begins again at its range.
    let zone = place.path("powercap/intel-rapl:0");
    std::fs::create_dir_all(&zone).unwrap();
    for (file, text) in [("name", "package-0"), ("max_energy_range_uj", "200000"), ("energy_uj", "0")] {
        std::fs::write(zone.join(file), text).unwrap();
    }
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let out = std::thread::scope(|scope| {
        scope.spawn(|| {
            for tick in 0u64.. {
                if is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                // Whole at once, as the kernel's file is.
                std::fs::write(zone.join("next"), (tick * 700 % 200_000).to_string()).unwrap();
                std::fs::rename(zone.join("next"), zone.join("energy_uj")).unwrap();
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
        });
        let mut command = place.compare(&["--ablate", "--compiled-batch", "5", "--price-per-hour", "3.6"]);
        let output = command.env("KILN_POWERCAP", place.path("powercap")).output().unwrap();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(output.status.success(), "{}", crate::common::text(&output));
        String::from_utf8(output.stdout).unwrap()
    });
    let parts = [
        "native-again",
        "compiled-large",
        "native-large",
        "compiled-no-fused-ops against compiled: ",
        "Loss parity",
        "passed",
        "noise:",
        "billable s, whole run",
        "energy Wh, whole run",
        "energy: that of processors and memory (RAPL) in the steps of each arm",
        "at step 10",
    ];
    for part in parts {
        assert!(out.contains(part), "expected {part:?} in\n{out}");
    }
    // The CPU launches nothing, and what the answer says is not said again.
    assert!(!out.contains("kernel launches a step"), "{out}");
    let answer = out.lines().find(|line| line.starts_with("Should I compile? ")).unwrap();
    assert!(answer.contains("98 % interval ") && answer.contains("20 losses differ by"), "{answer}");
    let rest = out.split_once(answer).unwrap().1;
    assert!(!rest.contains("Loss parity, compiled against native:"), "{rest}");
    let verdict = rest.lines().find(|line| line.starts_with("compiled against native: "));
    assert!(verdict.is_none_or(|line| !line.contains("interval")), "{rest}");
    let folder = place.path("run-compare");
    let report = json(&folder.join("report.json"));
    assert_eq!(report["schema"], "kiln.report/2");
    let arm = |name: &str| report["arms"].as_array().unwrap().iter().find(|arm| arm["name"] == name).unwrap().clone();
    for name in ["native", "compiled", "native-large", "compiled-large"] {
        let arm = arm(name);
        let number = |key: &str| arm[key].as_f64().unwrap_or_else(|| panic!("{name} has no {key}: {arm}"));
        // 10 steps: one with a new shape and three without make the warm-up; steps 6 and 10 may
        // follow the turns of others.
        assert_eq!(number("repeats"), 2.0, "{name}");
        assert!((8.0..=12.0).contains(&number("windows")), "{name}: {}", number("windows"));
        assert!(number("step_ms_p50") <= number("step_ms_p95") && number("step_ms_p95") <= number("step_ms_max"));
        let parts =
            ["data", "forward", "backward", "update", "sync"].map(|part| arm["budget_ms"][part].as_f64().unwrap());
        let sum = parts.iter().sum::<f64>();
        assert!(parts.iter().all(|ms| *ms >= 0.0) && sum <= number("step_ms_max") * 5.0, "{name}: {parts:?}");
        assert!(number("evaluation_seconds") > 0.0 && number("save_seconds") > 0.0 && number("peak_mib") > 1.0);
        assert!(number("device_reads_per_step") >= 1.0, "every step is logged");
        let cost = number("billable_seconds") / 3600.0 * 3.6;
        assert!((number("cost") / cost - 1.0).abs() < 1e-9);
        // At most what the counter can have counted in the time of the steps.
        let (energy, joules) = (number("energy_wh"), number("joules_per_sample"));
        let samples = report["whole"]["samples"].as_f64().unwrap();
        assert!(joules > 0.0 && (energy / (joules * samples / 3600.0) - 1.0).abs() < 1e-9, "{name}: {energy} Wh");
        for (moment, key) in [("steps", "step"), ("tokens", "tokens"), ("seconds", "seconds")] {
            // The mean of the last 5 rows up to the moment.
            let until = report["derived"]["equal"][moment].as_f64().unwrap();
            let rows = arm["loss"].as_array().unwrap().iter().filter(|row| row[key].as_f64().unwrap() <= until);
            let losses = rows.map(|row| row["loss"].as_f64().unwrap()).collect::<Vec<_>>();
            if losses.is_empty() {
                // A slow arm had made no step when a fast one had made all.
                assert!(moment == "seconds" && arm["loss_at_equal"][moment].is_null(), "{name} at {moment}");
                continue;
            }
            let last = &losses[losses.len().saturating_sub(5)..];
            let mean = last.iter().sum::<f64>() / last.len() as f64;
            assert!((arm["loss_at_equal"][moment].as_f64().unwrap() - mean).abs() < 1e-9, "{name} at {moment}");
        }
        let provenance = &arm["provenance"];
        let commit = provenance["commit"].as_str().unwrap();
        assert!(commit == "unknown" || commit.trim_end_matches("-modified").len() == 12, "{commit}");
        let fused = provenance["fused_operators"].as_array().unwrap().len();
        assert_eq!(fused, if name.starts_with("compiled") { kiln_models::Operator::ALL.len() } else { 0 }, "{name}");
    }
    assert_eq!(arm("compiled-no-fused-ops")["provenance"]["fused_ops"], false);
    assert_eq!(
        (arm("native")["micro_batch"].as_u64(), arm("native-large")["micro_batch"].as_u64()),
        (Some(3), Some(5))
    );
    let of =
        |name: &str| report["comparisons"].as_array().unwrap().iter().find(|one| one["arm"] == name).unwrap().clone();
    let parity = &of("compiled")["parity"];
    assert!(parity["passed"].as_bool().unwrap() && parity["losses"] == 20 && parity["by_mean"] == false, "{parity}");
    assert!(of("compiled-large")["parity"].is_null(), "losses of another batch cannot be equal");
    let (total, derived) = (of("compiled-large")["speedup"]["ratio"].as_f64().unwrap(), &report["derived"]);
    let product = derived["compiler_share"].as_f64().unwrap() * derived["batch_share"].as_f64().unwrap();
    assert!((product / total - 1.0).abs() < 1e-9, "shares multiply to the whole");
    let saved = of("compiled-large")["time_saved_percent"].as_f64().unwrap();
    assert!((saved - (1.0 - 1.0 / total) * 100.0).abs() < 1e-9, "time saved is no throughput gained");

    let saved = of("compiled")["billable_saved_percent"].as_f64().unwrap();
    let billable = |name: &str| arm(name)["billable_seconds"].as_f64().unwrap();
    assert!((saved - (1.0 - billable("compiled") / billable("native")) * 100.0).abs() < 1e-9);

    // Raw samples stay, weights do not.
    let run = folder.join("arms/compiled/repeat-2");
    assert!(run.join("steps.jsonl").exists() && !run.join("model").exists() && !run.join("checkpoints").exists());
    // The page needs nothing but itself.
    let html = std::fs::read_to_string(folder.join("report.html")).unwrap();
    assert!(html.contains("<svg") && !html.contains("<script") && !html.contains("src=") && !html.contains("@import"));
    // The answer comes before the evidence.
    let at = |text: &str| html.find(text).unwrap_or_else(|| panic!("{text}"));
    assert!(at("Should I compile? ") < at("<h2>Verdicts</h2>") && at("<h2>Verdicts</h2>") < at("<svg"));
    assert!(out.find("Should I compile? ").unwrap() < out.find("learning rate, peak").unwrap(), "{out}");
    let markdown = std::fs::read_to_string(folder.join("report.md")).unwrap();
    for chart in ["throughput", "loss-steps", "loss-tokens", "loss-seconds", "time-budget", "memory"] {
        let svg = std::fs::read_to_string(folder.join(format!("charts/{chart}.svg"))).unwrap();
        assert!(svg.starts_with("<svg ") && svg.contains("sans-serif"), "{chart}: {svg}");
        assert!(markdown.contains(&format!("](charts/{chart}.svg)")), "{markdown}");
    }
    assert!(
        std::fs::read_dir(folder.join("charts"))
            .unwrap()
            .all(|entry| { entry.unwrap().path().extension().is_some_and(|extension| extension == "svg") })
    );

    // Made again from the folder: the same figures.
    std::fs::remove_file(folder.join("report.html")).unwrap();
    succeeds(&mut place.report(&["run-compare"]));
    let mut again = json(&folder.join("report.json"));
    again["made_at"] = report["made_at"].clone();
    assert!(same(&again, &report), "{again}\n{report}");
    assert!(folder.join("report.html").exists());
    // A chart that this report has not is that of an earlier one.
    let stale = folder.join("charts/batch-scan.svg");
    let png = folder.join("charts/throughput.png");
    std::fs::write(&stale, "<svg/>").unwrap();
    std::fs::write(&png, "a picture").unwrap();
    std::fs::write(folder.join("charts/mine.txt"), "mine").unwrap();
    succeeds(&mut place.report(&["run-compare"]));
    assert!(!stale.exists() && !png.exists() && folder.join("charts/mine.txt").exists());
    fails(&mut place.report(&["run-compare", "--about", "device"]), 2, &["--about device: a comparison knows"]);
    // A comparison that was interrupted.
    let experiment = folder.join("experiment.json");
    let whole = std::fs::read_to_string(&experiment).unwrap();
    std::fs::write(&experiment, whole.replace("\"is_complete\": true", "\"is_complete\": false")).unwrap();
    fails(&mut place.report(&["run-compare"]), 3, &["the comparison did not come to its end", "make it again"]);
    std::fs::write(&experiment, whole).unwrap();
    // A folder that holds a comparison is nobody else's.
    fails(&mut place.compare(&[]), 2, &["run-compare holds a comparison already", "--out"]);
    // Gates name what fails.
    succeeds(&mut place.report(&["run-compare", "--gate", "speedup>0,loss_delta<=1e-3"]));
    // A saved plan that cannot be read takes its own arm out of the report, and says so.
    let path = folder.join(arm("compiled")["runs"][0].as_str().unwrap()).join("plan.json");
    let good = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, good.replace("\"micro\"", "\"macro\"")).unwrap();
    let out = succeeds(&mut place.report(&["run-compare"]));
    assert!(
        out.contains("plan.json: the run is damaged: the field `micro` is missing") && out.contains("remove it"),
        "{out}"
    );
    let partly = json(&folder.join("report.json"));
    let arms = partly["arms"].as_array().unwrap().iter().filter(|arm| !arm["failure"].is_null());
    assert_eq!(arms.map(|arm| arm["name"].as_str().unwrap()).collect::<Vec<_>>(), ["compiled"]);
    assert_eq!(partly["arms"][0]["step_ms_p50"], report["arms"][0]["step_ms_p50"]);
    std::fs::write(&path, good).unwrap();
    let gate = ["run-compare", "--gate", "speedup>0,speedup>=1000"];
    fails(&mut place.report(&gate), 6, &["the gate fails: speedup>=1000: it is"]);
}

#[test]
fn finished_runs_are_compared_with_their_differences() {
    let messages = messages!();
    let place = Place::new();
    let train = |name: &str, more: &[&str]| {
        let mut command = kiln(place.0.path());
        command.args(["train", "config.toml", "--set", &format!("run.output_dir={name}")]).args(sets()).args(more);
        succeeds(&mut command);
    };
    train("a", &[]);
    train("b", &["--compiler", "compiled", "--step-times"]);
    train("c", &["--set", "model.n_layer=1"]);
    train("d", &["--set", "trainer.per_device_train_batch_size=4", "--set", "trainer.learning_rate=2e-3"]);
    // A name that XML would take for a tag.
    train("e <&>", &["--set", "data.max_train_samples=12"]);
    let out = succeeds(&mut place.report(&["a", "b", "c", "d", "e <&>", "--out", "shown"]));
    for part in [
        "c against a: not comparable (they differ in model.n_layer: 2 against 1",
        "Differs: a against c: model.n_layer",
        "Differs: a against d: trainer.per_device_train_batch_size: 3 against 4",
        "Differs: a against d: trainer.learning_rate: 0.001 against 0.002",
        "e <&> against a: not comparable (they differ in data.max_train_samples",
    ] {
        assert!(out.contains(part), "expected {part:?} in\n{out}");
    }
    let report = json(&place.path("shown/report.json"));
    assert!(
        report["comparisons"][0]["parity"]["passed"].as_bool().unwrap(),
        "native against compiled: the same losses"
    );
    assert!(report["comparisons"][1]["speedup"].is_null(), "no speed-up of another model");
    // Another batch and learning rate: they are what runs are compared for, so they are labelled;
    // no loss can be equal.
    let labelled = &report["comparisons"][2];
    assert!(labelled["speedup"]["ratio"].as_f64().unwrap() > 0.0 && labelled["parity"].is_null(), "{labelled}");
    assert!(labelled["billable_saved_percent"].is_null(), "they did not learn from as many examples");
    assert!(report["arms"][0]["billable_seconds"].as_f64().unwrap() > 0.0);
    for (page, name) in [
        ("report.html", "e &lt;&amp;&gt;"),
        ("charts/throughput.svg", "e &lt;&amp;&gt;"),
        ("report.md", "e &lt;&amp;&gt;"),
    ] {
        let text = std::fs::read_to_string(place.path("shown").join(page)).unwrap();
        assert!(text.contains(name) && !text.contains("e <&>"), "{page}");
    }
    // Runs of different days say so.
    let status = std::fs::read_to_string(place.path("d/status.json")).unwrap();
    let started = |line: &str| {
        if line.trim_start().starts_with("\"started_at\"") {
            "\"started_at\": 1600000000.5,".to_owned()
        } else {
            line.to_owned()
        }
    };
    let earlier = status.lines().map(started).collect::<Vec<_>>().join("\n");
    std::fs::write(place.path("d/status.json"), earlier).unwrap();
    let out = succeeds(&mut place.report(&["a", "d", "--out", "days"]));
    assert!(out.contains(" against 2020-09-13") && !out.contains("not comparable"), "{out}");
    // Values from a run folder are shown as plain text: no control characters, no markup.
    let provenance = json(&place.path("d/provenance.json"));
    let mut hostile = provenance.clone();
    hostile["cpu"] = "x](javascript:alert(1)) <b> `c` \u{1b}[31m\u{202e}| y\n# z".into();
    std::fs::write(place.path("d/provenance.json"), hostile.to_string()).unwrap();
    let out = succeeds(&mut place.report(&["a", "d", "--out", "hostile"]));
    for (name, text) in [("stdout", out), ("report.md", String::new()), ("report.html", String::new())] {
        let file = || std::fs::read_to_string(place.path("hostile").join(name)).unwrap();
        let text = if text.is_empty() { file() } else { text };
        assert!(!text.contains(['\u{1b}', '\u{202e}']) && !text.contains("\n# z"), "{name}: {text}");
        assert!(name == "stdout" || text.contains("u001b"), "{name}: {text}");
        assert!(name != "report.md" || text.contains(r"x\](javascript:alert(1)) &lt;b&gt; \`c\`"), "{text}");
    }
    std::fs::write(place.path("d/provenance.json"), provenance.to_string()).unwrap();
    // `--about` names the properties that may differ.
    let about = ["a", "e <&>", "--out", "about", "--about", "data."];
    let out = succeeds(&mut place.report(&about));
    assert!(
        out.contains("Differs: a against e <&>: data.max_train_samples") && !out.contains("not comparable"),
        "{out}"
    );
    let wrong = ["a", "d", "--out", "x", "--about", "device"];
    messages.fails(place.report(&wrong), 2);
    messages.fails(place.report(&["a", "d", "--target-loss", "nan"]), 2);
    assert!(!place.path("x").exists(), "nothing is written of what is refused");
    messages.fails(place.report(&["a", "c", "--out", "x", "--gate", "speedup>=1"]), 6);
    messages.fails(place.report(&["x"]), 3);
    messages.fails(place.report(&["a", "nowhere"]), 3);

    // A run that is not complete, and runs with damaged files.
    let damage = |file: &str, damaged: &str, change: &dyn Fn(&str) -> String| {
        let path = place.path("b").join(file);
        let good = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, change(&good)).unwrap();
        messages.given(&format!("b/{file}"), damaged);
        messages.fails(place.report(&["a", "b", "--out", "y"]), 3);
        std::fs::write(&path, good).unwrap();
    };
    damage("metrics.jsonl", "three lines", &|text| text.lines().take(3).collect::<Vec<_>>().join("\n"));
    damage("metrics.jsonl", "half a row before the first", &|text| format!("{{\"step\": 1, \"lo\n{text}"));
    damage("steps.jsonl", "three lines", &|text| text.lines().take(3).collect::<Vec<_>>().join("\n"));
    damage("plan.toml", "no equals sign", &|text| text.replace('=', " "));
    damage("plan.json", "no colon", &|text| text.replace(':', " "));
    damage("plan.json", "no micro", &|text| text.replace("\"micro\"", "\"macro\""));
    // A report derives nothing: it shows the plan that was saved, or nothing.
    let (path, good) = (place.path("b/plan.json"), std::fs::read_to_string(place.path("b/plan.json")).unwrap());
    let rate = |name: &str| {
        succeeds(&mut place.report(&["a", "b", "--out", name]));
        json(&place.path(name).join("report.json"))["arms"][1]["learning_rate"].clone()
    };
    assert_eq!(rate("planned").as_f64(), Some(1e-3));
    let mut changed: Value = serde_json::from_str(&good).unwrap();
    changed["optimizer"]["learning_rate"]["rate"] = 0.125.into();
    std::fs::write(&path, changed.to_string()).unwrap();
    assert_eq!(rate("changed").as_f64(), Some(0.125));
    // A plan of another form is that of an earlier build.
    let older = good.replace("\"micro\"", "\"macro\"").replace(changed["schema"].as_str().unwrap(), "kiln.plan/1");
    std::fs::write(&path, older).unwrap();
    assert!(rate("form").is_null());
    std::fs::remove_file(&path).unwrap();
    assert!(rate("older").is_null());
    std::fs::write(&path, good).unwrap();
    damage("provenance.json", "no colon", &|text| text.replace(':', " "));
    damage("status.json", "20 bytes", &|text| text[..20].to_owned());
    // A run that a signal has stopped.
    let mut long = kiln(place.0.path());
    long.args(["train", "config.toml", "--set", "run.output_dir=f", "--set", "trainer.max_steps=1000000"]).args(sets());
    let mut child = long.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
    let metrics = place.path("f/metrics.jsonl");
    while !std::fs::read_to_string(&metrics).is_ok_and(|text| text.lines().count() > 5) {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    fails(&mut place.report(&["a", "f", "--out", "y"]), 3, &["f: the run is InProgress", "kiln describe"]);
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(143));
    fails(&mut place.report(&["a", "f", "--out", "y"]), 3, &["f: the run is Stopped after step", "a complete one"]);
    assert!(!place.path("y").exists(), "nothing is half written");
    let occupied = ["a", "b", "--out", "a"];
    messages.fails(place.report(&occupied), 2);
}

#[test]
fn a_slower_arm_is_called_slower() {
    let place = Place::new();
    // Every step takes months longer, in the raw samples.
    let slow = "train \"$@\"\nsed -i 's/\"step_ms\":/\"step_ms\":9000000000/' \"$run/steps.jsonl\"";
    succeeds(&mut place.with_fault("slow", slow));
    assert_eq!(place.verdict("slow").0, "slower");
    let gate = ["slow", "--gate", "speedup>=1"];
    fails(&mut place.report(&gate), 6, &["the gate fails: speedup>=1: it is ", "e-"]);
}

#[test]
fn another_loss_is_not_comparable() {
    let place = Place::new();
    let other = "train \"$@\"\nsed -i 's/\"loss\": /\"loss\": 1/' \"$run/metrics.jsonl\"";
    fails(&mut place.with_fault("loss", other), 6, &["compiled is not comparable with native: parity failed"]);
    let (verdict, reason) = place.verdict("loss");
    assert_eq!(verdict, "not comparable");
    assert!(reason.contains("the losses at equal steps differ"), "{reason}");
    let report: Value = json(&place.path("loss/report.json"));
    assert!(report["comparisons"][0]["speedup"].is_null() && report["derived"]["compiler_share"].is_null());
    // Another setting, which no arm is about.
    let differs = "train \"$@\" --set trainer.learning_rate=0.5";
    fails(&mut place.with_fault("set", differs), 6, &["they differ in trainer.learning_rate: 0.001 against 0.5"]);
}

#[test]
fn an_arm_that_crashes_or_runs_out_of_memory_ends_the_comparison_so() {
    let place = Place::new();
    fails(&mut place.with_fault("crash", "echo 'gone' >&2; kill -SEGV $$"), 7, &["arm compiled: it crashed"]);
    assert_eq!(place.verdict("crash").0, "not comparable");
    fails(&mut place.with_fault("panic", "exit 101"), 7, &["arm compiled: it crashed"]);
    fails(&mut place.with_fault("killed", "kill -KILL $$"), 4, &["arm compiled: out of memory: the kernel killed"]);
    let allocation = "echo 'memory allocation of 8589934592 bytes failed' >&2; kill -ABRT $$";
    fails(
        &mut place.with_fault("allocation", allocation),
        4,
        &["arm compiled: out of memory: memory allocation of 8589934592"],
    );
    let (verdict, reason) = place.verdict("allocation");
    assert!(verdict == "not comparable" && reason.contains("compiled: out of memory"), "{verdict} ({reason})");
    // A child of a process may outlive the process and hold its stdout.
    let left = "sleep 120 & kill -SEGV $$";
    let asked = std::time::Instant::now();
    fails(&mut place.with_fault("left", left), 7, &["arm compiled: it crashed (signal: 11"]);
    assert!(asked.elapsed().as_secs() < 110, "it was waited for");
    fails(
        &mut place.with_fault("silent", "exit 3"),
        3,
        &["arm compiled: it failed (exit status: 3), and said nothing"],
    );
    // The error of an arm whose loss is not finite is passed on.
    let nan = "train \"$@\" --set trainer.learning_rate=1e30";
    fails(&mut place.with_fault("nan", nan), 5, &["arm compiled: step", "the loss is"]);
}

#[test]
fn on_the_cpu_this_program_is_both_engines() {
    let place = Place::new();
    let script = place.path("other.sh");
    std::fs::write(&script, format!("#!/bin/sh\ntouch {}\nexit 3\n", place.path("ran").display())).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = place.compare(&["--arms", "native,compiled"]);
    command.env("KILN_COMPILED", &script).env("KILN_NATIVE", &script);
    let out = succeeds(command.env("KILN_POWERCAP", place.path("none")));
    assert_eq!(out.matches("energy: not counted: ").count(), 1, "{out}");
    assert!(out.contains("/none has no counter of a processor") && !out.contains("energy Wh"), "{out}");
    assert!(!place.path("ran").exists(), "a program that nobody has checked was run");
}

#[test]
fn what_is_refused() {
    let messages = messages!();
    let place = Place::new();
    let refused = |more: &[&str]| {
        messages.fails(place.compare(more), 2);
        assert!(!place.path("run-compare").exists(), "{more:?} left a folder");
    };
    let gate = |text: &str, parts: &[&str]| {
        let output = place.compare(&["--gate", text]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        parts.iter().for_each(|part| assert!(stderr.contains(part), "expected {part:?} in {stderr}"));
    };
    gate("sped>=1", &["unknown measure `sped`", "did you mean `speedup`?"]);
    gate("speedup", &["expected MEASURE>=NUMBER"]);
    refused(&["--arms", "native,compild"]);
    refused(&["--arms", "native,compiled-large"]);
    refused(&["--arms", "native,native"]);
    refused(&["--sweep", "batch=2,4,2"]);
    refused(&["--target-loss", "inf"]);
    refused(&["--ablate", "--arms", "native,compiled-large", "--compiled-batch", "5"]);
    refused(&["--ablate", "--set", "compiler.fused_ops=off"]);
    // The cross-entropy is plain in f16, so there is nothing to switch off.
    let narrow = ["--ablate=operators", "--set", "compiler.fused_ops=[\"cross_entropy\"]", "--set", "precision=f16"];
    refused(&narrow);
    // Settings with which only one of the modes can run.
    refused(&["--set", "compiler.fusion=on"]);
    refused(&["--set", "compiler.autotune=full"]);
    refused(&["--compiled-batch", "0"]);
    refused(&["--price-per-hour", "nan"]);
    refused(&["--sweep", "block=512"]);
    let occupied = Path::new("text");
    std::fs::create_dir(place.path("text")).unwrap();
    std::fs::write(place.path("text/mine.txt"), "mine").unwrap();
    refused(&["--out", occupied.to_str().unwrap()]);
    // The folder of a run, of this model or another, is no place for a comparison, and no config.
    let mut train = kiln(place.0.path());
    succeeds(train.args(["train", "config.toml", "--set", "model.n_layer=1", "--set", "trainer.max_steps=4"]));
    let metrics = std::fs::read(place.path("run/metrics.jsonl")).unwrap();
    messages.fails(place.compare(&["--out", "run"]), 2);
    assert_eq!(std::fs::read(place.path("run/metrics.jsonl")).unwrap(), metrics);
    let mut folder = kiln(place.0.path());
    messages.fails(folder.args(["compare", "run"]), 2);
    let mut folder = kiln(place.0.path());
    folder.args(["compare", "text"]);
    messages.fails(&mut folder, 2);
    let mut few = kiln(place.0.path());
    messages.fails(few.args(["compare", "config.toml", "--steps", "3"]), 2);
    let mut few = kiln(place.0.path());
    messages.fails(few.args(["compare", "config.toml", "--repeats", "1"]), 2);
}
