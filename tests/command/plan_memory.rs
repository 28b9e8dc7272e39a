//! The plan's estimate of memory against the `peak_mib` of a run's last row, in both modes, in
//! bf16, and with layers that are computed again.
#![cfg(target_os = "linux")] // elsewhere no row has a peak

use std::path::Path;

use crate::common::skip::skip;
use crate::common::{kiln, succeeds, text, train_rows};

/// The part of the measured peak by which the estimate may be off. The bytes that a step allocates
/// are the same every time, and the estimate counts them to a few per cent; the size of the C
/// library's heap differs from run to run by up to a tenth.
const TOLERANCE: f64 = 0.2;

/// Layers, width and heads, vocabulary, sequences of how many tokens.
#[derive(Clone, Copy)]
struct Size {
    layers: usize,
    width: usize,
    heads: usize,
    vocabulary: usize,
    batch: usize,
    seq: usize,
}

const SMALL: Size = Size { layers: 2, width: 64, heads: 4, vocabulary: 500, batch: 4, seq: 64 };
const MIDDLE: Size = Size { layers: 4, width: 192, heads: 4, vocabulary: 4096, batch: 8, seq: 128 };
/// The last gradient of a step has its peak: that of the table of the vocabulary.
const OF_VOCABULARY: Size = Size { layers: 1, width: 192, heads: 4, vocabulary: 50_000, batch: 1, seq: 32 };

fn write(folder: &Path, size: Size) {
    let Size { layers, width, heads, vocabulary, batch, seq } = size;
    let row = |i: usize| {
        let ids = (0..seq).map(|j| ((i * 31 + j * 7) % (vocabulary - 1) + 1).to_string()).collect::<Vec<_>>();
        format!("{{\"input_ids\": [{}]}}\n", ids.join(","))
    };
    std::fs::write(folder.join("data.jsonl"), (0..5 * batch).map(row).collect::<String>()).unwrap();
    let config = format!(
        "[run]\noutput_dir = \"run\"\n[model]\nkind = \"gpt2\"\nn_layer = {layers}\nn_embd = {width}\nn_head = {heads}\n\
         n_positions = {seq}\nvocab_size = {vocabulary}\n[data]\ntask = \"clm\"\nformat = \"tokenized\"\ntrain = \
         \"data.jsonl\"\nvalidation = \"20%\"\n[trainer]\nmax_steps = 3\nlogging_steps = 1\neval_strategy = \"steps\"\n\
         eval_steps = 2\nsave_strategy = \"no\"\nper_device_train_batch_size = {batch}\n[device]\nkind = \"cpu\"\n"
    );
    std::fs::write(folder.join("config.toml"), config).unwrap();
}

/// The plan's estimate and the `peak_mib` of the run's last row, in MiB, and the plan's line on
/// memory.
fn planned_and_measured(folder: &Path, mode: &str, more: &[&str]) -> (f64, f64, String) {
    let mut command = kiln(folder);
    command.args(["train", "config.toml", "--compiler", mode, "--set", "run.on_existing=overwrite"]);
    let said = succeeds(command.args(more));
    let line = said.lines().find(|line| line.starts_with("memory ")).unwrap();
    let planned = line.split_whitespace().nth(2).unwrap().parse::<f64>().unwrap();
    let measured = train_rows(&folder.join("run")).last().unwrap()["peak_mib"].as_f64().unwrap();
    (planned, measured, line.to_owned())
}

#[test]
fn the_estimate_is_the_measured_peak_to_a_fifth() {
    let mut of_middle = Vec::new();
    let all: &[&[&str]] = &[
        &[],
        &["--set", "trainer.activation_checkpointing=blocks"],
        &["--precision", "bf16"],
        &["--set", "trainer.activation_checkpointing=balanced"],
    ];
    for (size, name, variants) in
        [(SMALL, "small", all), (MIDDLE, "middle", &all[..1]), (OF_VOCABULARY, "vocabulary", &all[..1])]
    {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), size);
        for mode in ["native", "compiled"] {
            for more in variants {
                let (planned, measured, line) = planned_and_measured(folder.path(), mode, more);
                println!("{name} {mode} {more:?}: {planned} planned, {measured:.1} measured; {line}");
                let off = planned / measured - 1.0;
                assert!(off.abs() < TOLERANCE, "{name} {mode} {more:?}: off by {off:.2}: {measured} measured; {line}");
                if name == "middle" && more.is_empty() {
                    of_middle.push(planned);
                }
            }
        }
    }
    assert!(of_middle[1] < 0.6 * of_middle[0], "the estimate knows the mode: {of_middle:?}");
}

#[test]
fn of_a_decoder_with_a_gate_and_shared_heads() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), MIDDLE);
    let config = std::fs::read_to_string(folder.path().join("config.toml")).unwrap();
    let of_gpt2 = config.split("[model]\n").nth(1).unwrap().split("[data]").next().unwrap();
    let of_qwen3 = "kind = \"qwen3\"\nnum_hidden_layers = 4\nhidden_size = 192\nnum_attention_heads = 4\n\
                    num_key_value_heads = 2\nhead_dim = 64\nintermediate_size = 512\nmax_position_embeddings = 128\n\
                    vocab_size = 4096\n";
    std::fs::write(folder.path().join("config.toml"), config.replace(of_gpt2, of_qwen3)).unwrap();
    for mode in ["native", "compiled"] {
        for more in [&[][..], &["--set", "trainer.activation_checkpointing=blocks"]] {
            let (planned, measured, line) = planned_and_measured(folder.path(), mode, more);
            println!("{mode} {more:?}: {planned} planned, {measured:.1} measured; {line}");
            let off = planned / measured - 1.0;
            assert!(off.abs() < TOLERANCE, "{mode} {more:?}: off by {off:.2}: {measured} measured; {line}");
        }
    }
}

#[test]
fn of_a_last_layer_that_computes_first_tokens_alone() {
    let folder = tempfile::tempdir().unwrap();
    let row = |i: usize| {
        let ids = (0..128).map(|j| ((i * 31 + j * 7) % 499 + 1).to_string()).collect::<Vec<_>>();
        format!("{{\"input_ids\": [{}], \"labels\": {}}}\n", ids.join(","), i % 2)
    };
    std::fs::write(folder.path().join("data.jsonl"), (0..80).map(row).collect::<String>()).unwrap();
    let config = "[run]\noutput_dir = \"run\"\n[model]\nkind = \"bert\"\nnum_hidden_layers = 2\nhidden_size = 256\n\
                  num_attention_heads = 4\nintermediate_size = 1024\nvocab_size = 500\n[data]\ntask = \
                  \"sequence-classification\"\nformat = \"tokenized\"\ntrain = \"data.jsonl\"\n[trainer]\nmax_steps = 3\n\
                  logging_steps = 1\nsave_strategy = \"no\"\nper_device_train_batch_size = 16\n[device]\nkind = \"cpu\"\n";
    std::fs::write(folder.path().join("config.toml"), config).unwrap();
    for mode in ["native", "compiled"] {
        let (planned, measured, line) = planned_and_measured(folder.path(), mode, &[]);
        println!("{mode}: {planned} planned, {measured:.1} measured; {line}");
        let off = planned / measured - 1.0;
        assert!(off.abs() < TOLERANCE, "{mode}: off by {off:.2}: {measured} measured; {line}");
    }
}

/// `kiln` with `arguments` under a limit of the address space in MiB: what it said, and its exit
/// code.
fn limited(folder: &Path, mib: usize, arguments: &str) -> (String, Option<i32>) {
    let program = kiln(folder).get_program().to_owned();
    let script = format!("ulimit -v {}; exec \"$0\" {arguments}", mib * 1024);
    let output = std::process::Command::new("sh").args(["-c", &script]).arg(program).current_dir(folder).output();
    let output = output.unwrap();
    (text(&output), output.status.code())
}

/// A run that needs more than a limit leaves is told before it begins, with settings whose
/// estimates are lower, and it trains the same with a smaller micro-batch.
#[test]
fn a_run_above_the_limit_of_memory_begins_with_a_smaller_micro_batch() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), Size { layers: 4, width: 128, heads: 4, vocabulary: 4096, batch: 32, seq: 128 });
    let of =
        "config.toml --compiler native --set model.resid_pdrop=0 --set model.attn_pdrop=0 --set model.embd_pdrop=0";
    succeeds(kiln(folder.path()).arg("train").args(of.split(' ')).args(["--set", "run.output_dir=whole"]));
    let whole = train_rows(&folder.path().join("whole"));
    let (said, code) = limited(folder.path(), 700, "plan config.toml");
    let line = said.lines().find(|line| line.starts_with("does not fit: ")).unwrap_or_else(|| panic!("{said}"));
    assert_eq!(code, Some(0), "{said}");
    for part in [
        "the run needs about ",
        " MiB are left by the limit of the address space (ulimit -v); it fits with ",
        "trainer.per_device_train_batch_size = ",
        " with gradient_accumulation_steps = ",
        "compiler.enabled = true (",
    ] {
        assert!(line.contains(part), "expected {part:?} in {line}");
    }
    let (said, code) = limited(folder.path(), 700, &format!("train {of}"));
    assert_eq!(code, Some(0), "{said}");
    let begins = "it begins with a smaller micro-batch and the same global batch: 32 = ";
    assert!(said.contains(begins) && said.contains("was 32 = 32 x 1 micro-batch"), "{said}");
    let log = std::fs::read_to_string(folder.path().join("run/run.log")).unwrap();
    assert!(log.contains(begins), "{log}");
    let rows = train_rows(&folder.path().join("run"));
    assert_eq!(rows.len(), whole.len());
    for (a, b) in whole.iter().zip(&rows) {
        let (x, y) = (a["loss"].as_f64().unwrap(), b["loss"].as_f64().unwrap());
        assert!((x / y - 1.0).abs() < 1e-5, "{a} against {b}");
    }
    // Without a limit there is no such line.
    let said = succeeds(kiln(folder.path()).args(["plan", "config.toml"]));
    assert!(!said.contains("does not fit"), "{said}");
}

/// Each thread of the C library would reserve addresses for a heap of its own, as far as a limit
/// lets it: a run that fits under a limit fits under a higher one.
#[test]
#[cfg(target_env = "gnu")]
fn a_run_that_fits_under_a_limit_fits_under_a_higher_one() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), Size { layers: 2, width: 128, heads: 2, vocabulary: 300, batch: 32, seq: 64 });
    let train =
        "train config.toml --set trainer.max_steps=4 --set trainer.save_strategy=steps --set trainer.save_steps=1";
    for mib in [200, 220, 280] {
        let (said, code) = limited(folder.path(), mib, &format!("{train} --set run.output_dir=under-{mib}"));
        assert_eq!(code, Some(0), "{mib} MiB: {said}");
        let rows = train_rows(&folder.path().join(format!("under-{mib}")));
        let steps = rows.iter().map(|row| row["step"].as_u64().unwrap()).collect::<Vec<_>>();
        assert_eq!(steps, [1, 2, 3, 4], "{mib} MiB: every step has one row");
    }
}

/// Memory that is refused in the middle of a run, here to the logits of a step, takes it back to
/// its newest checkpoint with half the micro-batch; where nothing can be halved, the folder says
/// why it ended.
#[test]
fn a_run_that_is_refused_memory_begins_again_with_half_the_micro_batch() {
    use std::process::{Command, Stdio};

    let folder = tempfile::tempdir().unwrap();
    if Command::new("prlimit").arg("--version").stdout(Stdio::null()).status().is_err() {
        return skip!("prlimit", "no prlimit: install util-linux");
    }
    // Three logits of 64 MiB, which are mapped in each step anew.
    write(folder.path(), Size { layers: 1, width: 64, heads: 2, vocabulary: 16_384, batch: 16, seq: 64 });
    let halved = ["trainer.save_strategy=steps", "trainer.save_steps=2"];
    // Logits as large of a single row.
    let alone = ["trainer.save_strategy=no", "trainer.per_device_train_batch_size=1", "model.vocab_size=262144"];
    for (run, more) in [("halved", &halved[..]), ("ended", &alone[..])] {
        let output = format!("run.output_dir={run}");
        let set = [&[&output[..], "trainer.max_steps=16", "trainer.eval_strategy=no"], more].concat();
        let mut command = kiln(folder.path());
        command.args(["train", "config.toml", "--compiler", "native"]).args(set.iter().flat_map(|set| ["--set", set]));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let rows = folder.path().join(run).join("metrics.jsonl");
        while !std::fs::read_to_string(&rows).is_ok_and(|rows| rows.lines().count() > 4) {
            assert!(child.try_wait().unwrap().is_none(), "it has ended");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).unwrap();
        let kib = peak.split_whitespace().next().unwrap().parse::<u64>().unwrap();
        let limit = format!("--as={}", (kib - (96 << 10)) * 1024);
        let limited = Command::new("prlimit").args(["--pid", &child.id().to_string(), &limit]).status().unwrap();
        assert!(limited.success());
        let output = child.wait_with_output().unwrap();
        let said = text(&output);
        let log = std::fs::read_to_string(folder.path().join(run).join("run.log")).unwrap();
        if run == "halved" {
            assert_eq!(output.status.code(), Some(0), "{said}");
            assert!(said.contains("which begins again with half the micro-batch"), "{said}");
            let notice = "with half the micro-batch and the same global batch: 16 = ";
            assert!(said.contains(notice) && log.contains(notice), "{said}");
            assert!(log.contains("continuing after step "), "{log}");
            let rows = train_rows(&folder.path().join(run));
            let steps = rows.iter().map(|row| row["step"].as_u64().unwrap()).collect::<Vec<_>>();
            assert_eq!(steps, (1..=16).collect::<Vec<_>>(), "every step has one row");
        } else {
            assert_eq!(output.status.code(), Some(4), "{said}");
            let why = "out of memory: the system has no more for this process";
            assert!(log.contains(&format!("ended: {why}")), "{log}");
            let described = succeeds(kiln(folder.path()).args(["describe", run]));
            assert!(described.contains("Failed") && described.contains(why), "{described}");
        }
    }
}

/// Pages that the system made for the process of a command, without reading a file.
#[cfg(target_env = "gnu")]
#[allow(clippy::zombie_processes)] // `wait4` waits for it
fn pages(command: &mut std::process::Command) -> i64 {
    let child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    // SAFETY: the process is a child that nobody else waits for, and both structures are plain data
    // that the call fills.
    #[allow(unsafe_code)]
    let (status, usage) = unsafe {
        let (mut status, mut usage) = (0, std::mem::zeroed::<libc::rusage>());
        assert!(libc::wait4(child.id() as libc::pid_t, &raw mut status, 0, &raw mut usage) > 0);
        (status, usage)
    };
    assert_eq!(status, 0, "{command:?}");
    usage.ru_minflt
}

/// The tensors of a step lie where those of the step before it were: memory that is freed is kept.
#[test]
#[cfg(target_env = "gnu")] // whose allocator is told so
fn a_step_finds_the_memory_of_the_one_before_it() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), Size { layers: 2, width: 128, heads: 2, vocabulary: 4096, batch: 4, seq: 128 });
    let pages_of = |steps: usize| {
        let mut command = kiln(folder.path());
        command.args(["train", "config.toml", "--compiler", "compiled", "--precision", "bf16"]);
        command.args(["--set", "trainer.eval_strategy=no", "--set", "run.on_existing=overwrite"]);
        pages(command.args(["--set", &format!("trainer.max_steps={steps}")]))
    };
    pages_of(1); // the data are kept from now on
    let (few, many) = (pages_of(4), pages_of(24));
    // About 2,400 a step where the memory is given back.
    assert!((many - few) / 20 < 400, "{few} pages in 4 steps, {many} in 24");
}
