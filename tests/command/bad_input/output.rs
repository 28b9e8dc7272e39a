//! Where a run cannot write, or cannot compute: run folders, full disks, devices, and losses that
//! are no numbers.

use std::process::Command;

use crate::common::messages::messages;
use crate::common::place::{Place, listing};
use crate::common::{fails, fixture, succeeds};

#[test]
fn a_run_folder_that_exists() {
    let place = Place::new().recording(messages!());
    place.train("rows.toml", &[]);
    let metrics = std::fs::read(place.path("run/metrics.jsonl")).unwrap();
    place.fails(place.config("train", "rows.toml", &[]), 2);
    assert_eq!(std::fs::read(place.path("run/metrics.jsonl")).unwrap(), metrics, "the run in it is as it was");
    // A folder that is no run of Kiln's is not replaced.
    place.write("letters/a.txt", "dear");
    let sets = ["run.output_dir=letters", "run.on_existing=overwrite"];
    place.fails(place.config("train", "rows.toml", &sets), 2);
    assert_eq!(place.listing("letters"), ["a.txt"]);
}

#[test]
fn a_run_folder_that_is_a_file_or_cannot_be_made() {
    let place = Place::new().recording(messages!());
    place.write("taken", "a file");
    for on_existing in ["fail", "overwrite"] {
        let on_existing = format!("run.on_existing={on_existing}");
        let train =
            |folder: &str| place.config("train", "rows.toml", &[&format!("run.output_dir={folder}"), &on_existing]);
        place.fails(train("taken"), 2);
        place.fails(train("taken/run"), 2);
    }
    assert_eq!(std::fs::read_to_string(place.path("taken")).unwrap(), "a file");
    place.fails(place.config("train", "rows.toml", &["run.output_dir="]), 2);
    place.fails(place.config("train", "rows.toml", &["run.output_dir=${KILN_NOT_SET}/run"]), 2);
    let out = ["forward", "--task", "clm", "--batch", "batch.json", "--out", "taken/out.safetensors"];
    place.write("batch.json", "{\"input_ids\": [[1, 2]]}");
    let mut forward = place.kiln(&out);
    place.fails(forward.arg(fixture("gpt2-lm").join("model")), 1);
}

/// Root may write everywhere but where the system makes the files up.
#[cfg(target_os = "linux")]
#[test]
fn a_run_folder_that_the_system_refuses() {
    let place = Place::new().recording(messages!());
    place.fails(place.config("train", "rows.toml", &["run.output_dir=/proc/kiln-run"]), 1);
}

/// The command under a limit on the size of files, the nearest thing to a full disk that needs no
/// rights: writes past it fail. Blocks are of 512 bytes (POSIX `ulimit -f`).
#[cfg(target_os = "linux")]
fn limited(command: Command, blocks: usize) -> Command {
    let mut shell = Command::new("sh");
    // The signal would end the process before the write could fail.
    shell.arg("-c").arg(format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\""));
    shell.arg(command.get_program()).args(command.get_args());
    shell.current_dir(command.get_current_dir().unwrap());
    for (name, value) in command.get_envs() {
        shell.env(name, value.unwrap());
    }
    shell
}

#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_is_full_leaves_nothing_half_written() {
    let place = Place::new();
    let full = "File too large";

    // The cache of token ids.
    fails(&mut limited(place.config("plan", "text.toml", &[]), 1), 1, &["cannot write", "kiln-cache", full]);
    assert_eq!(place.listing("kiln-cache/tokens"), [""; 0]);
    succeeds(&mut place.config("plan", "text.toml", &[]));

    // plan.toml
    fails(&mut limited(place.config("train", "text.toml", &[]), 1), 1, &["cannot write run/plan.toml", full]);
    assert_eq!(place.listing("run"), [".lock"]);

    // metrics.jsonl: rows that were written are whole, the one that failed is not there.
    let long = ["trainer.max_steps=40", "trainer.logging_steps=1"];
    let again = "raise the limit of the size of files (`ulimit -f`); no checkpoint is there to continue from; begin again with `kiln train \
                 run/plan.toml --set run.on_existing=overwrite`";
    let parts = ["cannot write run/metrics.jsonl", full, again];
    fails(&mut limited(place.config("train", "rows.toml", &long), 12), 1, &parts);
    assert_eq!(
        place.listing("run"),
        [".lock", "metrics.jsonl", "plan.json", "plan.toml", "provenance.json", "run.log", "status.json"]
    );
    let metrics = std::fs::read_to_string(place.path("run/metrics.jsonl")).unwrap();
    assert!(metrics.ends_with("}\n"), "{metrics}");
    let rows = crate::common::rows(&place.path("run"));
    assert!(rows.len() > 5 && rows.len() < 40, "{}", rows.len());

    // A checkpoint.
    fails(
        &mut limited(place.config("train", "text.toml", &["run.on_existing=overwrite"]), 12),
        1,
        &["cannot write run/checkpoints/", full],
    );
    assert_eq!(place.listing("run/checkpoints"), [""; 0]);

    // The tokenizer, then the weights.
    for (file, sets, name) in [
        (
            "text.toml",
            &["run.on_existing=overwrite", "trainer.save_strategy=no", "tokenizer.train_vocab_size=299"][..],
            "tokenizer.json",
        ),
        (
            "rows.toml",
            &["run.on_existing=overwrite", "trainer.save_strategy=no", "model.vocab_size=600"],
            "model.safetensors",
        ),
    ] {
        succeeds(&mut place.config("plan", file, sets)); // fills the caches
        fails(
            &mut limited(place.config("train", file, sets), 12),
            1,
            &["run/model: cannot write", name, full, "help: raise the limit of the size of files"],
        );
        assert_eq!(
            place.listing("run"),
            [".lock", "metrics.jsonl", "plan.json", "plan.toml", "provenance.json", "run.log", "status.json"],
            "{name}"
        );
    }
    // The same run goes through when there is room again.
    place.train("rows.toml", &["run.on_existing=overwrite"]);
    assert_eq!(
        place.listing("run"),
        [
            ".lock",
            "all_results.json",
            "checkpoints",
            "metrics.jsonl",
            "model",
            "plan.json",
            "plan.toml",
            "provenance.json",
            "report.html",
            "run.log",
            "status.json",
            "trainer_state.json"
        ]
    );

    // kiln forward
    place.write("batch.json", "{\"input_ids\": [[1, 2, 3, 4, 5, 6, 7, 8]]}");
    let mut forward = place.kiln(&["forward", "--task", "clm", "--batch", "batch.json", "--out", "out/o.safetensors"]);
    std::fs::create_dir(place.path("out")).unwrap();
    forward.arg(fixture("gpt2-lm").join("model"));
    fails(&mut limited(forward, 4), 1, &["cannot write out/o.safetensors", full]);
    assert_eq!(place.listing("out"), [""; 0]);
}

#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_printed_is_an_error() {
    let place = Place::new();
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for mut command in [place.config("plan", "rows.toml", &[]), place.kiln(&["devices"])] {
        let output = command.stdout(full()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.starts_with("error: cannot write to stdout"), "{stderr}");
    }
}

#[cfg(not(any(feature = "wgpu", feature = "cuda")))]
#[test]
fn devices_that_this_build_lacks() {
    let place = Place::new().recording(messages!());
    for kind in ["wgpu", "cuda"] {
        place.refused("rows.toml", &[&format!("device.kind={kind}")], 2);
        place.fails(place.kiln(&["generate", "none", "--prompt", "a", "--device", kind]), 2);
    }
}

#[test]
fn devices_that_this_machine_lacks() {
    let place = Place::new().recording(messages!());
    place.refused("rows.toml", &["device.index=7"], 2);
    place.refused("rows.toml", &["device.index=-1"], 2);
    place.fails(place.kiln(&["generate", "none", "--prompt", "a", "--device", "cpu", "--device-index", "3"]), 2);
}

#[test]
fn a_loss_that_is_no_number_stops_the_run() {
    let place = Place::new();
    let sets =
        ["trainer.learning_rate=1e30", "trainer.max_grad_norm=0", "trainer.max_steps=20", "trainer.logging_steps=1"];
    let output = place.config("train", "rows.toml", &sets).output().unwrap();
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(5), "{stderr}");
    assert!(stderr.starts_with("error: step ") && stderr.contains("expected finite numbers"), "{stderr}");
    assert!(stderr.contains("help: lower trainer.learning_rate") && !stderr.contains("panicked"), "{stderr}");
    let metrics = std::fs::read_to_string(place.path("run/metrics.jsonl")).unwrap();
    let last = metrics.lines().last().unwrap();
    assert!(last.contains("\"loss\": NaN") && last.ends_with('}'), "{last}");
    assert!(stdout.contains("'loss': nan"), "{stdout}");
    assert!(!metrics.contains("train_runtime"), "a failed run has no summary");
    assert_eq!(
        listing(&place.path("run")),
        [
            ".lock",
            "fault",
            "metrics.jsonl",
            "plan.json",
            "plan.toml",
            "provenance.json",
            "report.html",
            "run.log",
            "status.json"
        ]
    );
}

/// The file that `--out` names is written as a shell's `>` would write it: links are followed,
/// pipes and devices are written into, modes stay, and nothing else is touched.
#[cfg(target_os = "linux")]
#[test]
fn what_a_user_names_is_written_into_and_keeps_its_mode() {
    use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
    type Run<'a> = &'a dyn Fn(&str) -> Command;
    let place = Place::new();
    place.write("batch.json", "{\"input_ids\": [[1, 2]]}");
    place.write("kiln-cache/kernels/tune.db", "kernels");
    let model = fixture("gpt2-lm").join("model").display().to_string();
    let forward = |out: &str| place.kiln(&["forward", &model, "--task", "clm", "--batch", "batch.json", "--out", out]);
    let export = |out: &str| place.kiln(&["export", &model, "--tar", out]);
    let kernels = |out: &str| place.kiln(&["cache", "export", out]);
    let commands: [(&str, Run); 3] = [("forward", &forward), ("export", &export), ("cache", &kernels)];
    succeeds(&mut forward("plain"));
    let default = std::fs::metadata(place.path("plain")).unwrap().mode();
    for (name, command) in commands {
        let run = |out: &str| succeeds(&mut command(out));
        run("/dev/null");
        assert!(std::fs::symlink_metadata("/dev/null").unwrap().file_type().is_char_device());
        fails(&mut command("/dev/full"), 1, &["/dev/full: No space left"]);
        fails(&mut command("no/such/folder"), 1, &["cannot write no/such/folder: No such file or directory"]);

        // A link to nothing yet, whose end then has the mode of any new file.
        let (link, end) = (format!("{name}.link"), format!("{name}.end"));
        symlink(&end, place.path(&link)).unwrap();
        run(&link);
        assert!(place.path(&link).is_symlink() && place.path(&end).is_file());
        let whole = std::fs::read(place.path(&end)).unwrap();
        assert_eq!(std::fs::metadata(place.path(&end)).unwrap().mode(), default);

        let pipe = format!("{name}.pipe");
        assert!(Command::new("mkfifo").arg(place.path(&pipe)).status().unwrap().success());
        let path = place.path(&pipe);
        let reader = std::thread::spawn(move || std::fs::read(path).unwrap());
        run(&pipe);
        assert!(reader.join().unwrap() == whole, "{name}");
        assert!(std::fs::symlink_metadata(place.path(&pipe)).unwrap().file_type().is_fifo());

        // With stdout in a file, `--out /dev/stdout` writes to that file, and the messages on
        // stdout follow.
        let shared = std::fs::File::create(place.path("shared")).unwrap();
        assert!(command("/dev/stdout").stdout(shared).status().unwrap().success());
        let shared = std::fs::read(place.path("shared")).unwrap();
        let said = shared.strip_prefix(&whole[..]).or_else(|| {
            let at = shared.windows(whole.len()).position(|part| part == whole)?;
            shared.get(at + whole.len()..)
        });
        assert!(said.is_some_and(|said| !said.is_empty()), "{name}");
    }
    std::fs::set_permissions(place.path("plain"), std::fs::Permissions::from_mode(0o640)).unwrap();
    succeeds(&mut forward("plain"));
    assert_eq!(std::fs::metadata(place.path("plain")).unwrap().mode() & 0o7777, 0o640);
    std::fs::create_dir(place.path("folder")).unwrap();
    fails(&mut forward("folder"), 1, &["cannot write folder: it is a folder"]);
    assert_eq!(place.listing("folder"), [""; 0]);
    assert!(!listing(&place.path("")).iter().any(|name| name.ends_with(".part")));
}

#[test]
fn nothing_that_is_read_has_power_over_the_terminal() {
    const HOSTILE: &str = "evil\u{1b}[31m\u{9b}2J\u{202e}](javascript:alert(1))\u{7}";
    let place = Place::new();
    let shown = |command: &mut Command| {
        let output = command.output().unwrap();
        let all = crate::common::text(&output);
        assert!(
            !all.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t')) && !all.contains('\u{202e}'),
            "{all:?}"
        );
        (output.status.code(), all)
    };
    let train = |more: &[&str]| {
        let output_dir = format!("run.output_dir={HOSTILE}");
        place.config("train", "rows.toml", &[&[output_dir.as_str()], more].concat())
    };
    for (more, expected) in
        [(&[][..], 0), (&["run.on_existing=overwrite"], 0), (&[], 2), (&["trainer.no\u{1b}such=1"], 2)]
    {
        let (code, all) = shown(&mut train(more));
        assert_eq!(code, Some(expected), "{all}");
    }
    // The plan of such a run is a config, and what the run leaves can be shown.
    let plan = format!("{HOSTILE}/plan.toml");
    for file in ["plan.toml", "trainer_state.json", "status.json", "provenance.json"] {
        let text = std::fs::read_to_string(place.path(HOSTILE).join(file)).unwrap();
        assert!(text.contains("evil") || file != "plan.toml", "{file}: {text}");
        assert!(!text.contains(|c: char| c.is_control() && c != '\n' || c == '\u{202e}'), "{file}: {text:?}");
    }
    let (code, all) = shown(&mut place.kiln(&["train", &plan, "--set", "run.output_dir=again"]));
    assert_eq!(code, Some(0), "{all}");
    assert_eq!(shown(&mut place.kiln(&["plan", &format!("no{HOSTILE}.toml")])).0, Some(2));

    // One run that is broken hides no other; what stands in one is text.
    let status = std::fs::read_to_string(place.path("again/status.json")).unwrap();
    let mut hostile = serde_json::from_str::<serde_json::Value>(&status).unwrap();
    (hostile["model"], hostile["message"]) = (HOSTILE.into(), format!("a\n{HOSTILE}").into());
    place.write("hostile/status.json", hostile.to_string());
    place.write("broken/status.json", "{\"status\": \"Completed\", \u{1b}");
    place.write("two\nlines/status.json", &status);
    std::fs::create_dir_all(place.path("folder/status.json")).unwrap();
    let (code, all) = shown(&mut place.kiln(&["runs", "."]));
    assert_eq!(code, Some(0), "{all}");
    let line = |name: &str| all.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{name} in {all}"));
    assert!(line("./again").contains("Completed") && line("./hostile").contains(r"\u001b[31m"), "{all}");
    assert!(line("./broken").contains("Unreadable") && line("./broken").contains("broken/status.json: "), "{all}");
    assert!(line("./folder").contains("Unreadable") && line("./two lines").contains("Completed"), "{all}");
    assert_eq!(all.lines().count(), 1 + 6, "{all}");
    assert_eq!(shown(&mut place.kiln(&["describe", "hostile"])).0, Some(0));
    assert_eq!(shown(&mut place.kiln(&["describe", "broken"])).0, Some(3));
    assert_eq!(shown(&mut place.kiln(&["init", "clm", HOSTILE])).0, Some(0));

    // Reports hold the same values as text.
    assert_eq!(shown(&mut place.kiln(&["report", HOSTILE, "again", "--out", "report"])).0, Some(0));
    for name in ["report.json", "report.md", "report.html"] {
        let text = std::fs::read_to_string(place.path("report").join(name)).unwrap();
        let raw = text.chars().find(|c| c.is_control() && *c != '\n' || *c == '\u{202e}');
        assert!(raw.is_none() && text.contains("evil"), "{raw:?} in {name}");
    }
    let report = crate::common::json(&place.path("report/report.json"));
    assert!(
        report["arms"][0]["name"].as_str().is_some_and(|name| name.contains(HOSTILE)),
        "{}",
        report["arms"][0]["name"]
    );
}

#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_said_ends_nothing_and_what_cannot_be_shown_is_an_error() {
    use std::process::Stdio;

    let place = Place::new();
    let full = || Stdio::from(std::fs::File::options().write(true).open("/dev/full").unwrap());
    // The news and the errors go to stderr: without room for them the exit code still tells.
    let code = |command: &mut Command| command.output().unwrap().status.code();
    assert_eq!(code(place.config("train", "none.toml", &[]).stderr(full())), Some(2));
    assert_eq!(code(place.kiln(&["trian"]).stderr(full())), Some(2));
    assert_eq!(code(place.config("train", "rows.toml", &[]).stderr(full())), Some(0));
    // A checkpoint that is skipped is a warning.
    let save = ["trainer.save_steps=1", "trainer.lr_scheduler_type=constant", "run.output_dir=saved"];
    place.train("rows.toml", &[&save[..], &["trainer.max_steps=3"]].concat());
    let damaged = place.path("saved/checkpoints/step-000003/model.safetensors");
    std::fs::write(damaged, "x").unwrap();
    let more = [&save[..], &["trainer.max_steps=4", "run.on_existing=resume"]].concat();
    let output = place.config("train", "rows.toml", &more).stderr(full()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.contains("continuing after step 2"), "{said}");
    // Output that the user asked for goes to stdout, so a full stdout is an error.
    for args in [&["plan", "rows.toml"][..], &["--help"], &["devices"], &["runs", "."]] {
        let output = place.kiln(args).stdout(full()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
        assert!(stderr.starts_with("error: cannot write to stdout"), "{args:?}: {stderr}");
    }
    // A reader that has seen enough is no error.
    let mut child = place.kiln(&["plan", "rows.toml"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

/// The library says what it has to say by `tracing` and leaves it to the program where that goes.
#[test]
fn the_library_prints_nothing() {
    fn printing(folder: &std::path::Path, found: &mut Vec<String>) {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                printing(&path, found);
                continue;
            }
            if path.extension().is_none_or(|ending| ending != "rs") {
                continue; // the samples of the guide print
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let lines = text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
            // Text of a fixture is no statement.
            let is_macro = |line: &str, at: usize| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let prints = |line: &str| {
                let names = ["print!(", "println!(", "eprint!(", "eprintln!("];
                names.iter().any(|name| line.match_indices(name).any(|(at, _)| is_macro(line, at)))
            };
            let lines = lines.filter(|(_, line)| prints(line) && !line.contains("\"fn main"));
            found.extend(lines.map(|(number, _)| format!("{}:{}", path.display(), number + 1)));
        }
    }
    let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut found = Vec::new();
    for library in ["src", "models", "crates/core/src", "crates/data/src", "crates/measure/src"] {
        printing(&root.join(library), &mut found);
    }
    found.retain(|place| !place.contains("/models/tests/") && !place.contains("/tests.rs:"));
    assert!(found.is_empty(), "the library prints in {found:?}");
}

/// A pipe or a device in place of a file may have no end: it is refused, or read up to the most
/// bytes of such a file. A pipe from the shell as a config (`<(command)`, `/dev/stdin`) is read.
#[cfg(target_os = "linux")]
#[test]
fn what_has_no_end_is_not_read_for_ever() {
    use std::process::Stdio;
    let place = Place::new().recording(messages!());
    place.train("text.toml", &[]);
    place.train("text.toml", &["run.output_dir=other"]);
    let limited = |args: &str| {
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("ulimit -v 3000000; exec timeout -k 1 60 \"$0\" {args}")]);
        shell.arg(place.kiln(&[]).get_program()).current_dir(place.path("")).stdin(Stdio::null());
        shell.env("KILN_CACHE", place.path("kiln-cache")).env("HF_HUB_OFFLINE", "1");
        shell
    };
    let zero = "cat text.toml | sed s/output_dir.*/output_dir=\\\"piped\\\"/";
    for args in [
        format!("plan <({zero})"),
        format!("plan /dev/stdin < <({zero})"),
        "plan text.toml --hf-args <(echo '{}')".into(),
    ] {
        succeeds(&mut limited(&args));
    }
    let made = |name: &str| assert!(Command::new("mkfifo").arg(place.path(name)).status().unwrap().success());
    place.fails(limited("plan /dev/zero"), 2);
    place.fails(limited("plan text.toml --hf-args /dev/zero"), 2);
    place.fails(limited("forward run/model --batch /dev/zero --task clm --out o.json"), 3);
    place.fails(limited("eval text.toml --model run/model --set data.validation=/dev/zero"), 2);
    for file in ["run/model/config.json", "run/model/tokenizer.json", "run/model/tokenizer_config.json"] {
        let text = std::fs::read(place.path(file)).unwrap();
        std::fs::remove_file(place.path(file)).unwrap();
        made(file);
        let output = limited("generate run/model --prompt let --max-new-tokens 2").output().unwrap();
        // The tokenizer's config may be missing.
        assert!([0, 3].contains(&output.status.code().unwrap()), "{file}: {}", crate::common::text(&output));
        std::fs::remove_file(place.path(file)).unwrap();
        place.write(file, text);
    }
    for file in [
        "plan.json",
        "plan.toml",
        "provenance.json",
        "compiler.json",
        "trainer_state.json",
        "report.json",
        "status.json",
        "metrics.jsonl",
        ".lock",
    ] {
        let file = format!("run/{file}");
        let text = std::fs::read(place.path(&file)).ok();
        let _ = std::fs::remove_file(place.path(&file));
        made(&file);
        for command in ["report run other --out rep", "runs .", "describe run"] {
            let output = limited(command).output().unwrap();
            let code = output.status.code().unwrap();
            assert!([0, 2, 3].contains(&code), "{command}, {file}: {code}, {}", crate::common::text(&output));
        }
        std::fs::remove_file(place.path(&file)).unwrap();
        if let Some(text) = text {
            place.write(&file, text);
        }
    }
}
