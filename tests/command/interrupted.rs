//! Runs that are stopped: killed at random moments, asked to stop by a signal or by the clock, or
//! two at once in one folder. A resumed run ends with the same bits as the undisturbed run.
#![cfg(unix)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::common::place::Place;
use crate::common::small_run::{figures, train, write};
use crate::common::{ended, fails, json, kiln, succeeds, text};

fn model(folder: &Path, run: &str) -> Vec<u8> {
    std::fs::read(folder.join(run).join("model/model.safetensors")).unwrap()
}

fn same_end(folder: &Path, a: &str, b: &str) {
    assert_eq!(figures(&folder.join(a)), figures(&folder.join(b)));
    assert!(model(folder, a) == model(folder, b), "the final weights differ");
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

/// A run that goes on until somebody stops it.
fn endless(folder: &Path, more: &[&str]) -> Command {
    let mut command = train(folder, "run", &["--set", "trainer.max_steps=100000", "--set", "trainer.warmup_steps=0"]);
    command.args(["--set", "trainer.lr_scheduler_type=constant", "--set", "trainer.save_strategy=no"]).args(more);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Starts it and waits until its first row is printed.
fn started(mut command: Command) -> Child {
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("'loss'")), "it ended before its first row");
    child
}

/// Ten times here; `KILN_KILLS=50` for more.
#[test]
fn killed_at_random_moments_it_continues() {
    let kills = std::env::var("KILN_KILLS").map_or(10, |kills| kills.parse::<u64>().unwrap());
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "sequence-classification");
    let steps = format!("trainer.max_steps={}", 40 * kills);
    let set = ["--set", "trainer.save_steps=1", "--set", "trainer.save_total_limit=3", "--set", &steps];
    succeeds(&mut train(folder.path(), "straight", &set));

    let mut random = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();
    let (mut killed, mut furthest) = (0, 0);
    while killed < kills {
        let mut command = train(folder.path(), "run", &set);
        command.args(["--set", "run.on_existing=resume"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // A busy machine needs longer to its first checkpoint.
        let most = if furthest == 0 { 250 * killed.max(1) } else { 250 };
        std::thread::sleep(Duration::from_millis(u64::from(random >> 16) % most));
        signal(&child, "-KILL");
        let output = ended(child);
        let all = text(&output);
        if output.status.success() {
            break; // it was faster than the signal
        }
        assert!(output.status.code().is_none(), "it ended by itself: {all}");
        killed += 1;
        let step =
            all.split("continuing after step ").nth(1).map(|rest| rest.split(' ').next().unwrap().parse().unwrap());
        let begun: u64 = step.unwrap_or(furthest);
        assert!(begun >= furthest, "it continued after step {begun}, but step {furthest} was saved before: {all}");
        furthest = begun;
    }
    assert!(killed > kills / 2, "only {killed} kills met the run");
    assert!(furthest > 0, "no restart continued");
    let stdout = succeeds(train(folder.path(), "run", &set).arg("--resume"));
    assert!(stdout.contains("continuing after step"), "{stdout}");
    same_end(folder.path(), "straight", "run");
}

/// Killed before it has anything to lose, a run begins again in its folder, however that is to be
/// taken, and leaves nothing of the attempts behind. Twelve times here; `KILN_KILLS=200` for more.
#[test]
fn killed_at_its_beginning_it_begins_again() {
    let kills = std::env::var("KILN_KILLS").map_or(12, |kills| kills.parse::<u64>().unwrap());
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let set = ["--set", "trainer.max_steps=100000", "--set", "trainer.logging_steps=100000"];
    let set = [&set[..], &["--set", "trainer.warmup_steps=0", "--set", "trainer.eval_strategy=no"]].concat();
    let set = [&set[..], &["--set", "trainer.save_strategy=no", "--set", "trainer.report_to=tensorboard"]].concat();
    let names = || {
        let entries = std::fs::read_dir(folder.path().join("run")).into_iter().flatten();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect::<std::collections::BTreeSet<_>>()
    };
    let mut states = std::collections::BTreeMap::new();
    for kill in 0..kills {
        let how = format!("run.on_existing={}", ["fail", "resume", "overwrite"][kill as usize % 3]);
        let mut command = train(folder.path(), "run", &set);
        let mut child = command.args(["--set", &how]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // The plan is printed just before the run takes its folder.
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        let planned = lines.any(|line| line.unwrap().starts_with("output "));
        std::thread::sleep(Duration::from_micros(kill * 700 % 14_000));
        signal(&child, "-KILL");
        let output = ended(child);
        assert!(planned && output.status.code().is_none(), "{how}: {:?}: {}", names(), text(&output));
        *states
            .entry(names().iter().map(|name| name.rsplit('.').next().unwrap().to_owned()).collect::<Vec<_>>().join(" "))
            .or_insert(0) += 1;
        if kill % 7 == 6 {
            // From an empty place again.
            let _ = std::fs::remove_dir_all(folder.path().join("run"));
        }
    }
    println!("{states:#?}");
    let end = ["--set", "trainer.max_steps=3"];
    succeeds(&mut train(folder.path(), "run", &[&set[..], &end].concat()));
    let hidden = names().into_iter().filter(|name| name.starts_with('.')).collect::<Vec<_>>();
    assert_eq!(hidden, [".lock"], "leftovers");
}

#[test]
fn a_signal_saves_and_the_run_continues() {
    for (name, code) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "clm");
        let child = started(endless(folder.path(), &[]));
        signal(&child, name);
        let output = ended(child);
        let all = text(&output);
        assert_eq!(output.status.code(), Some(code), "{all}");
        assert!(all.contains("stopped after step") && all.contains("--resume"), "{all}");
        let step = json(&folder.path().join("run/status.json"))["step"].as_u64().unwrap();
        assert!(step > 0 && !folder.path().join("run/model").exists());
        assert_eq!(json(&folder.path().join("run/status.json"))["status"], "Stopped");

        let length = format!("trainer.max_steps={}", step + 5);
        let stdout = succeeds(endless(folder.path(), &["--resume", "--set", &length]).stdout(Stdio::piped()));
        assert!(stdout.contains(&format!("continuing after step {step} from")), "{stdout}");
        succeeds(
            endless(folder.path(), &["--set", &length, "--set", "run.output_dir=straight"]).stdout(Stdio::piped()),
        );
        same_end(folder.path(), "straight", "run");
    }
}

/// A terminal that is closed: SIGHUP, and nowhere to say anything.
#[test]
fn a_terminal_that_is_gone_leaves_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let mut child = started(endless(folder.path(), &[]));
    drop((child.stdout.take(), child.stderr.take()));
    signal(&child, "-HUP");
    assert_eq!(ended(child).status.code(), Some(129));
    assert_eq!(json(&folder.path().join("run/status.json"))["status"], "Stopped");
    assert_eq!(std::fs::read_dir(folder.path().join("run/checkpoints")).unwrap().count(), 1);
}

#[test]
fn nohup_outlives_its_terminal() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let run = train(folder.path(), "run", &["--set", "trainer.max_steps=400", "--set", "trainer.save_strategy=no"]);
    // This ignores SIGHUP as `nohup` does, without its redirections.
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(run.get_program()).args(run.get_args());
    shell.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir(folder.path());
    shell.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = started(shell);
    signal(&child, "-HUP");
    let output = ended(child);
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(json(&folder.path().join("run/status.json"))["status"], "Completed");
}

#[test]
fn a_signal_in_an_evaluation_leaves_it_to_the_resumed_run() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    // Ten thousand rows take a while; nothing but the evaluation after step 3 can be under way.
    let rows = (0..10_000).map(|i| format!("{{\"input_ids\": [{}, 2, 3]}}\n", i % 30)).collect::<String>();
    std::fs::write(folder.path().join("validation.jsonl"), rows).unwrap();
    let set = ["--set", "data.validation=[\"validation.jsonl\"]", "--set", "trainer.max_steps=4"];
    let mut command = train(folder.path(), "run", &set);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("{'step': 3,")));
    signal(&child, "-INT");
    let output = ended(child);
    assert_eq!(output.status.code(), Some(130), "{}", text(&output));
    let state = json(&folder.path().join("run/checkpoints/step-000003/state.json"));
    assert_eq!(state["pending_evaluation"], true);
    succeeds(train(folder.path(), "run", &set).arg("--resume"));
    succeeds(&mut train(folder.path(), "straight", &set));
    same_end(folder.path(), "straight", "run");
}

#[test]
fn a_signal_while_rows_are_read_leaves_no_half_cache() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    std::fs::write(folder.path().join("data.jsonl"), "{\"input_ids\": [1, 2, 3, 4, 5, 6, 7, 8]}\n".repeat(200_000))
        .unwrap();
    let cache = folder.path().join("kiln-cache/tokenized");
    let files = || std::fs::read_dir(&cache).map_or(0, |files| files.count());
    let mut command = train(folder.path(), "run", &[]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while files() == 0 {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it wrote");
        std::thread::sleep(Duration::from_millis(1));
    }
    signal(&child, "-INT");
    let output = ended(child);
    assert_eq!(output.status.code(), Some(130), "{}", text(&output));
    assert!(text(&output).contains("stopped before the first step"), "{}", text(&output));
    assert_eq!(files(), 0);
    assert!(!folder.path().join("run").exists());
}

/// Longer than the machine's other work holds a process up, and shorter than what a signal ends.
const SOON: Duration = Duration::from_secs(10);

/// Sends SIGTERM to `command` half a second after it began and expects that it is gone soon after,
/// with nothing left of it.
fn terminated_soon(folder: &Path, mut command: Command) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none(), "it ended before the signal");
    let asked = Instant::now();
    signal(&child, "-TERM");
    let output = ended(child);
    assert_eq!(output.status.code(), Some(143), "{}", text(&output));
    assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
    assert!(text(&output).contains("SIGTERM"), "{}", text(&output));
    assert!(!folder.join("run").exists());
}

#[test]
fn a_signal_stops_the_learning_of_a_tokenizer() {
    let place = Place::new();
    // Words that all differ, so that there are many pairs to count and many merges to make.
    let text = (0..1_500_000u64).map(|i| format!("{:x} ", i.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect::<String>();
    place.write("text/large.txt", text);
    terminated_soon(&place.path(""), place.config("plan", "text.toml", &["tokenizer.train_vocab_size=60000"]));
    assert_eq!(place.listing("kiln-cache/tokenizers"), [""; 0]);
}

#[test]
fn a_signal_stops_the_reading_of_a_table() {
    let place = Place::new();
    // Texts without a visible character are read to their end in search of one.
    place.write("rows.csv", format!("text,label\n{}", " ,1\n".repeat(20_000_000)));
    let set = ["data.format=csv", "data.train=rows.csv"];
    terminated_soon(&place.path(""), place.config("plan", "text.toml", &set));
    place.write("classes.toml", CLASSES);
    place.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n");
    place.write("rows.csv", format!("text,label\n{}", "a,1\nb,0\n".repeat(10_000_000)));
    terminated_soon(&place.path(""), place.config("plan", "classes.toml", &[]));
}

const CLASSES: &str = r#"
[run]
output_dir = "run"
[model]
kind = "bert"
hidden_size = 8
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 8
max_position_embeddings = 16
[data]
task = "sequence-classification"
format = "csv"
train = ["rows.csv"]
[tokenizer]
from = "vocab.txt"
[device]
kind = "cpu"
[trainer]
max_steps = 2
"#;

/// A product of two large matrices takes seconds in a debug build, and nothing can stop it.
#[test]
fn a_signal_stops_the_measuring_of_matrix_products() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let mut command = kiln(folder.path());
    command.args(["compare", "config.toml", "--steps", "12", "--repeats", "2"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("measuring the device's matrix products")));
    let asked = Instant::now();
    signal(&child, "-TERM");
    let output = ended(child);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(143), "{said}");
    assert!(asked.elapsed() < SOON, "{:?}: {said}", asked.elapsed());
    assert!(said.contains("stopped while the device's matrix products were measured"), "{said}");
    assert!(!folder.path().join("run-compare").exists());
}

#[test]
fn a_second_signal_leaves_at_once_and_the_last_checkpoint_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let child =
        started(endless(folder.path(), &["--set", "trainer.save_strategy=steps", "--set", "trainer.save_steps=1"]));
    let asked = Instant::now();
    signal(&child, "-INT");
    signal(&child, "-INT");
    let output = ended(child);
    assert_eq!(output.status.code(), Some(130));
    assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
    let resume = ["--set", "run.on_existing=resume", "--set", "trainer.max_steps=90000"];
    let stop = endless(folder.path(), &resume).args(["--set", "trainer.max_minutes=0.001"]).output().unwrap();
    assert!(stop.status.success(), "{}", text(&stop));
    assert!(!text(&stop).contains("damaged"), "{}", text(&stop));
}

/// While a step goes on, the first signal is acknowledged at once; of what the second one leaves,
/// the log tells why it ended.
#[test]
fn a_signal_in_a_long_step_is_acknowledged_and_a_second_one_is_told_by_describe() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let rows = "{\"input_ids\": [1, 2, 3, 4, 5, 6, 7, 8]}\n".repeat(60_000);
    std::fs::write(folder.path().join("data.jsonl"), rows).unwrap();
    let long = ["--set", "trainer.gradient_accumulation_steps=20000", "--set", "trainer.eval_strategy=no"];
    for (name, word, end, why) in [
        ("-INT", "SIGINT", "a second Ctrl-C ends the process", "interrupted by the user (SIGINT), and ended before"),
        ("-TERM", "SIGTERM", "a second signal ends the process", "told to stop by SIGTERM, and ended before"),
    ] {
        let mut command = train(folder.path(), word, &long);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let log = folder.path().join(word).join("run.log");
        while !std::fs::read_to_string(&log).is_ok_and(|text| text.contains(" begins\n")) {
            assert!(child.try_wait().unwrap().is_none(), "it ended before its first step");
            std::thread::sleep(Duration::from_millis(5));
        }
        signal(&child, name);
        let mut lines = BufReader::new(child.stderr.as_mut().unwrap()).lines();
        let said = lines.find(|line| line.as_ref().unwrap().starts_with(word)).unwrap().unwrap();
        assert!(
            said.contains("the run stops after the current step, with a checkpoint") && said.contains(end),
            "{said}"
        );
        while !std::fs::read_to_string(&log).unwrap().contains(&format!("told to stop by {word}")) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(child.try_wait().unwrap().is_none(), "it did not finish its step");
        signal(&child, name);
        assert_eq!(ended(child).status.code(), Some(if word == "SIGINT" { 130 } else { 143 }));
        let told = succeeds(kiln(folder.path()).args(["describe", word]));
        assert!(told.contains("Failed") && told.contains(why), "{told}");
    }
}

#[test]
fn a_time_limit_saves_and_the_run_continues() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let stdout = succeeds(endless(folder.path(), &["--set", "trainer.max_minutes=0.002"]).stdout(Stdio::piped()));
    let status = json(&folder.path().join("run/status.json"));
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("trainer.max_minutes is over") && stdout.contains(message), "{message}\n{stdout}");
    assert_eq!(status["status"], "Stopped");
    let described = succeeds(kiln(folder.path()).args(["describe", "run"]));
    let command = quoted(message);
    assert_eq!(command, "kiln train run/plan.toml --resume --set trainer.max_minutes=0.004");
    assert!(described.contains(message) && described.contains(&format!("continue       {command}\n")), "{described}");
    let state = json(&folder.path().join("run/trainer_state.json"));
    let step = state["global_step"].as_u64().unwrap();
    assert!(folder.path().join("run/model/config.json").is_file());
    let said = succeeds(&mut in_a_shell(folder.path(), command));
    assert!(said.contains(&format!("continuing after step {step} from")), "{said}");
    let step = json(&folder.path().join("run/status.json"))["step"].as_u64().unwrap();
    let length = format!("trainer.max_steps={}", step + 5);
    succeeds(endless(folder.path(), &["--resume", "--set", &length]).stdout(Stdio::piped()));
    succeeds(endless(folder.path(), &["--set", &length, "--set", "run.output_dir=straight"]).stdout(Stdio::piped()));
    same_end(folder.path(), "straight", "run");
}

/// The first text between backticks.
fn quoted(said: &str) -> &str {
    said.split('`').nth(1).unwrap_or_else(|| panic!("no command is quoted: {said}"))
}

/// `command`, as a message gives it, pasted into a shell.
fn in_a_shell(folder: &Path, command: &str) -> Command {
    let (settings, mut shell) = (kiln(folder), Command::new("sh"));
    let rest = command.strip_prefix("kiln ").unwrap_or_else(|| panic!("no command of kiln: {command}"));
    shell.args(["-c", &format!("exec \"$0\" {rest}"), env!("CARGO_BIN_EXE_kiln")]).current_dir(folder);
    shell.envs(settings.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell
}

/// The run folder is not that of the config file, and its name needs quotes.
#[test]
fn the_commands_that_a_stopped_run_names_work_as_they_stand() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let run = "my runs/ann's $run";
    let output_dir = format!("run.output_dir={run}");
    let child = started(endless(folder.path(), &["--set", &output_dir, "--set", "trainer.save_strategy=steps"]));
    signal(&child, "-INT");
    let output = ended(child);
    let (all, status) = (text(&output), json(&folder.path().join(run).join("status.json")));
    assert_eq!(output.status.code(), Some(130), "{all}");
    let command = quoted(&all);
    assert_eq!(command, r#"kiln train 'my runs/ann'"'"'s $run/plan.toml' --resume"#, "{all}");
    let step = status["step"].as_u64().unwrap();
    let shorter = format!("{command} --set trainer.max_steps={}", step + 2);
    let said = succeeds(&mut in_a_shell(folder.path(), &shorter));
    assert!(said.contains(&format!("continuing after step {step} from")), "{said}");

    // The command that makes the run once more.
    let again = said.lines().find_map(|line| line.strip_prefix("again: ")).unwrap();
    let said = succeeds(&mut in_a_shell(folder.path(), again));
    assert!(said.contains(&format!("model: {run}-again/model")), "{said}");
    same_end(folder.path(), run, &format!("{run}-again"));

    // The run folder stands for the run, also where it has been moved.
    std::fs::rename(folder.path().join(run), folder.path().join("moved")).unwrap();
    let train = |more: &[&str]| {
        let mut command = kiln(folder.path());
        command.args(["train", "moved"]).args(more);
        command
    };
    let parts = ["moved: expected a config file, got a run folder", "`kiln train moved --resume` continues the run"];
    fails(&mut train(&[]), 2, &parts);
    assert!(succeeds(&mut train(&["--resume"])).contains("nothing to continue: moved"));
    let longer = format!("trainer.max_steps={}", step + 3);
    let said = succeeds(&mut train(&["--resume", "--set", &longer]));
    assert!(said.contains(&format!("continuing after step {} from moved/", step + 2)), "{said}");
    let checkpoint = format!("moved/checkpoints/step-{step:06}");
    let said = succeeds(&mut train(&["--resume-from", &checkpoint, "--set", "run.output_dir=other"]));
    assert!(said.contains("model: other/model"), "{said}");
    fails(kiln(folder.path()).args(["train", "my runs", "--resume"]), 2, &["expected a config file, got a folder"]);
}

/// The limit is one of the run, not of each process that takes it up.
#[test]
fn a_time_limit_counts_over_continuations() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let run = |minutes: f64| {
        let limit = format!("trainer.max_minutes={minutes}");
        let stdout = succeeds(&mut endless(folder.path(), &["--set", "run.on_existing=resume", "--set", &limit]));
        let status = json(&folder.path().join("run/status.json"));
        assert_eq!(status["status"], "Stopped");
        (status["seconds"].as_f64().unwrap(), status["step"].as_u64().unwrap(), stdout)
    };
    let (seconds, steps, _) = run(4.0 / 60.0);
    assert!(seconds >= 4.0, "{seconds}");
    // Nothing is left of the limit: the run stays as it is.
    let files = || {
        ["metrics.jsonl", "all_results.json", "status.json"]
            .map(|f| std::fs::read(folder.path().join("run").join(f)).unwrap())
    };
    let before = files();
    let (_, same, stdout) = run(4.0 / 60.0);
    assert_eq!(same, steps);
    assert!(stdout.contains("nothing to continue: stopped after step"), "{stdout}");
    assert!(stdout.contains("trainer.max_minutes is over") && stdout.contains("'train_runtime'"), "{stdout}");
    assert!(files() == before);
    // Half a second more is half a second more.
    let (longer, more, _) = run((seconds + 0.5) / 60.0);
    assert!(more > steps && longer >= seconds + 0.5 && longer < seconds + 3.5, "{seconds} and {longer}");
}

#[test]
fn a_folder_belongs_to_one_process() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let child = started(endless(folder.path(), &[]));
    for how in ["resume", "overwrite", "fail"] {
        let on_existing = format!("run.on_existing={how}");
        fails(
            &mut train(folder.path(), "run", &["--set", &on_existing]),
            2,
            &["another process is writing to", "wait"],
        );
    }
    let stdout = succeeds(kiln(folder.path()).args(["describe", "run"]));
    assert!(stdout.contains("InProgress"), "{stdout}");
    signal(&child, "-KILL");
    ended(child);
    let stdout = succeeds(kiln(folder.path()).args(["describe", "run"]));
    assert!(stdout.contains("Failed") && stdout.contains("killed"), "{stdout}");
    succeeds(&mut train(folder.path(), "run", &["--set", "run.on_existing=overwrite"]));
    let stdout = succeeds(kiln(folder.path()).args(["describe", "run"]));
    assert!(stdout.contains("Completed") && stdout.contains("14 of 14"), "{stdout}");
    let stdout = succeeds(kiln(folder.path()).args(["runs", "."]));
    assert!(stdout.contains("Completed") && stdout.contains("gpt2 clm"), "{stdout}");
    fails(kiln(folder.path()).args(["describe", "."]), 3, &["no run of Kiln's"]);
    std::fs::write(folder.path().join("file.toml"), "").unwrap();
    let parts = ["file.toml: expected the folder of a run, got a file", "`kiln plan FILE`"];
    fails(kiln(folder.path()).args(["describe", "file.toml"]), 3, &parts);
}

/// The processes that `pid` has started, and theirs.
#[cfg(target_os = "linux")]
fn descendants(pid: u32) -> Vec<u32> {
    let parent = |entry: std::fs::DirEntry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        (fields.next()? != "Z").then_some((pid, fields.next()?.parse::<u32>().ok()?))
    };
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| parent(entry.unwrap())).collect::<Vec<_>>();
    let (mut found, mut next) = (Vec::new(), vec![pid]);
    while let Some(above) = next.pop() {
        let children = all.iter().filter(|(_, parent)| *parent == above).map(|(child, _)| *child);
        next.extend(children.clone());
        found.extend(children);
    }
    found
}

#[cfg(target_os = "linux")]
#[test]
fn a_driver_that_is_stopped_leaves_no_process_and_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let many = ["--set", "trainer.max_steps=1000000"];
    let drivers: [&[&str]; 6] = [
        &["parity", "config.toml", "--steps", "100000", "--set", "trainer.max_steps=1000000"],
        &["bisect", "config.toml", "--steps", "100000", "--set", "trainer.max_steps=1000000"],
        &["tune-batch", "config.toml", "--steps-per-trial", "100000", "--max", "2"],
        &["bench", "config.toml", "--steps", "1000", "--rounds", "100", "--out", "bench.json"],
        &["bench", "--suite", "smoke", "--peer", "peer=./peer.sh", "--out", "bench.json"],
        &["compare", "config.toml", "--steps", "100000", "--arms", "native,compiled"],
    ];
    std::fs::write(folder.path().join("peer.sh"), "#!/bin/sh\nexec sleep 600\n").unwrap();
    assert!(Command::new("chmod").args(["+x", "peer.sh"]).current_dir(&folder).status().unwrap().success());
    let temporary = folder.path().join("temporary");
    std::fs::create_dir(&temporary).unwrap();
    for driver in drivers {
        for name in ["-TERM", "-INT", "-HUP", "-KILL"] {
            let mut command = kiln(folder.path());
            command.args(driver).args(if driver[0] == "bench" && driver[1] == "config.toml" { &many[..] } else { &[] });
            // A child that has not ended yet may still write into the folder of the one before.
            let compared = format!("compared{name}");
            let out = ["--out", compared.as_str()];
            command.args(if driver[0] == "compare" { &many[..] } else { &[] });
            command.args(if driver[0] == "compare" { &out[..] } else { &[] });
            command.env("TMPDIR", &temporary).stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = command.spawn().unwrap();
            // A peer takes its turn when Kiln's own contestants have made theirs.
            let is_peer = driver.contains(&"peer=./peer.sh");
            let is_sleep =
                |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n");
            let mut theirs = descendants(child.id());
            while theirs.is_empty() || is_peer && !theirs.iter().any(is_sleep) {
                assert!(child.try_wait().unwrap().is_none(), "{driver:?} ended by itself");
                std::thread::sleep(Duration::from_millis(10));
                theirs = descendants(child.id());
            }
            signal(&child, name);
            let code = ended(child).status.code();
            match name {
                "-TERM" => assert_eq!(code, Some(143), "{driver:?}"),
                "-INT" => assert_eq!(code, Some(130), "{driver:?}"),
                _ => {}
            }
            let asked = Instant::now();
            let lives = |pid: &u32| {
                std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
            };
            let left = || std::fs::read_dir(&temporary).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
            // Where no kiln is left to remove the folder of a killed one, the next that makes such
            // a folder does so.
            let is_left = is_peer && ["-HUP", "-KILL"].contains(&name);
            while theirs.iter().any(lives) || !is_left && !left().is_empty() {
                let alive = theirs.iter().filter(|pid| lives(pid)).collect::<Vec<_>>();
                // Long enough for a machine that does much else.
                assert!(asked.elapsed() < Duration::from_secs(60), "{driver:?} {name}: {alive:?}, {:?}", left());
                std::thread::sleep(Duration::from_millis(20));
            }
            if is_left {
                let next = ["parity", "config.toml", "--steps", "1"];
                succeeds(kiln(folder.path()).args(next).env("TMPDIR", &temporary));
                assert!(left().is_empty(), "{:?}", left());
            }
        }
    }
}
