//! Memory that runs out: in the middle of a run an injected fault takes the run back to its last
//! good state with half the micro-batch, and it ends where an undisturbed run ends; a process that
//! the system gives no more ends with exit code 4.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::small_run::write;
use crate::common::{kiln, text, train_rows};
use kiln::OpenSession;
use kiln::data::{Dataset, Example};
use kiln::trainer::Callback;
use kiln::{Error, ErrorKind, RunConfig, Session, Trainer};

/// Fails at the `at`th example, for lack of memory: once, or from then on.
struct Fails {
    data: Arc<dyn Dataset>,
    seen: AtomicUsize,
    at: usize,
    times: usize,
}

impl Dataset for Fails {
    fn len(&self) -> usize {
        self.data.len()
    }
    fn get(&self, index: usize, epoch: u64) -> kiln::Result<Example> {
        let seen = self.seen.fetch_add(1, Ordering::SeqCst);
        if (self.at..self.at.saturating_add(self.times)).contains(&seen) {
            return Err(Error::out_of_memory("the device ran out of memory: injected").help("less"));
        }
        self.data.get(index, epoch)
    }
    fn len_of(&self, index: usize) -> usize {
        self.data.len_of(index)
    }
    fn max_len(&self) -> usize {
        self.data.max_len()
    }
}

#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<String>>>);

impl Callback for Said {
    fn on_notice(&mut self, notice: &str) {
        self.0.lock().unwrap().push(notice.into());
    }
}

/// Trains with a global batch of 4 = 4 x 1 and without dropout, with the fault at example `at`, and
/// returns the notices.
fn run(folder: &Path, task: &str, name: &str, at: usize, times: usize) -> kiln::Result<Vec<String>> {
    run_with("exact", folder, task, name, at, times)
}

/// Trains like [`run`], with a value for `trainer.accumulation`.
fn run_with(
    accumulation: &str,
    folder: &Path,
    task: &str,
    name: &str,
    at: usize,
    times: usize,
) -> kiln::Result<Vec<String>> {
    let mut sets = vec![
        format!("trainer.accumulation={accumulation}"),
        format!("run.output_dir={}", folder.join(name).display()),
        format!("data.train={}", folder.join("data.jsonl").display()),
        "trainer.per_device_train_batch_size=4".into(),
        "trainer.gradient_accumulation_steps=1".into(),
    ];
    let dropout = match task {
        "clm" => &["resid_pdrop", "embd_pdrop", "attn_pdrop"][..],
        _ => &["hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"],
    };
    sets.extend(dropout.iter().map(|name| format!("model.{name}=0.0")));
    let session = Session::open(RunConfig::load_with(write(folder, task), &sets)?)?;
    let data = Fails { data: session.train().clone(), seen: AtomicUsize::new(0), at, times };
    let session = session.with_examples(Arc::new(data), None)?;
    let said = Said::default();
    Trainer::from_session(session)?.with_callback(said.clone()).train()?;
    let said = said.0.lock().unwrap().clone();
    Ok(said)
}

#[test]
fn half_the_micro_batch_ends_where_the_undisturbed_run_ends() {
    let _alone = crate::one_at_a_time();
    for task in ["clm", "sequence-classification"] {
        let folder = tempfile::tempdir().unwrap();
        assert!(run(folder.path(), task, "whole", usize::MAX, 1).unwrap().is_empty());
        let whole = train_rows(&folder.path().join("whole"));
        // A promise reads 20 examples before the first step; checkpoints follow steps 7 and 14 of 4
        // examples each.
        for (name, at, back_to) in [("early", 28, "the start"), ("late", 20 + 40, "step 7")] {
            let said = run(folder.path(), task, name, at, 1).unwrap();
            let [message] = &said[..] else { panic!("{said:?}") };
            for part in ["injected", back_to, "4 = 2 x 2 micro-batches x 1 device, was 4 = 4 x 1 micro-batch"] {
                assert!(message.contains(part), "expected {part:?} in {message}");
            }
            let run = folder.path().join(name);
            let log = std::fs::read_to_string(run.join("run.log")).unwrap();
            assert!(log.contains(message), "{log}");
            let rows = train_rows(&run);
            assert_eq!(rows.len(), whole.len(), "{name}: every step has one row");
            for (a, b) in whole.iter().zip(&rows) {
                for key in ["step", "samples", "tokens", "learning_rate"] {
                    assert_eq!(a[key], b[key], "{name}: {key}");
                }
                // Sums of the micro-batches in another order, through 14 updates.
                let (x, y) = (a["loss"].as_f64().unwrap(), b["loss"].as_f64().unwrap());
                assert!((x / y - 1.0).abs() < 1e-5, "{task}, {name}: {a} against {b}");
            }
            let plan = std::fs::read_to_string(run.join("plan.toml")).unwrap();
            assert!(plan.contains("\nper_device_train_batch_size = 2\n"), "{plan}");
            assert!(plan.contains("# batch          4 = 2 x 2 micro-batches"), "{plan}");
        }
    }
}

/// Half the micro-batch would be another loss.
#[test]
fn a_batch_that_the_loss_depends_on_is_not_halved() {
    let _alone = crate::one_at_a_time();
    let folder = tempfile::tempdir().unwrap();
    let error = run_with("transformers", folder.path(), "sequence-classification", "run", 28, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    // That of a causal language model does not.
    assert_eq!(run_with("transformers", folder.path(), "clm", "clm", 28, 1).unwrap().len(), 1);
}

#[test]
fn halving_ends_at_one() {
    let _alone = crate::one_at_a_time();
    let folder = tempfile::tempdir().unwrap();
    let error = run(folder.path(), "clm", "run", 28, usize::MAX - 100).unwrap_err();
    assert_eq!((error.kind(), error.exit_code()), (ErrorKind::OutOfMemory, 4));
    let log = std::fs::read_to_string(folder.path().join("run/run.log")).unwrap();
    let halvings = log.lines().filter(|line| line.contains("half the micro-batch")).collect::<Vec<_>>();
    assert_eq!(halvings.len(), 2, "4 to 2, 2 to 1: {log}");
    assert!(std::fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap().is_empty());
}

/// Under every limit the command does its work or says that memory ran out, with exit code 4 and
/// one message.
#[cfg(target_os = "linux")]
#[test]
fn a_process_without_memory_says_so() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    // Text from which a tokenizer is learned, by threads and hash tables.
    let words = (0..60_000u64).map(|i| format!("{:x} ", i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40));
    std::fs::write(folder.path().join("text.txt"), words.collect::<String>()).unwrap();
    let config = "[run]\noutput_dir = \"run\"\n[model]\nkind = \"gpt2\"\nn_layer = 1\nn_head = 2\nn_embd = 16\n\
                  n_positions = 32\n[data]\ntask = \"clm\"\ntrain = [\"text.txt\"]\nblock_size = 16\n[tokenizer]\n\
                  train_vocab_size = 600\n[trainer]\nmax_steps = 2\n[device]\nkind = \"cpu\"\n";
    std::fs::write(folder.path().join("text.toml"), config).unwrap();
    let program = kiln(folder.path()).get_program().to_owned();
    let (mut without, mut with) = (0, 0);
    for limit in [46, 48, 50, 52, 55, 58, 60, 64, 70, 75, 80, 90, 100, 4000] {
        for file in ["text.toml", "config.toml"] {
            let mut command = std::process::Command::new("/bin/sh");
            let script = format!("ulimit -v {}; exec \"$0\" plan {file}", limit * 1024);
            command.args(["-c", &script]).arg(&program).current_dir(folder.path());
            let output = command.env("KILN_CACHE", folder.path().join(format!("cache-{limit}"))).output().unwrap();
            let said = text(&output);
            match output.status.code() {
                Some(0) => with += 1,
                // The program itself does not fit: the system's loader says so, or ends by a signal
                // before the program begins.
                Some(127) => assert!(said.contains("error while loading"), "{said}"),
                None if without + with == 0 && said.trim().is_empty() => {}
                Some(4) => {
                    without += 1;
                    let stderr = String::from_utf8_lossy(&output.stderr);
                    assert!(stderr.contains("error: ") && stderr.contains("help: "), "{limit} MiB: {stderr}");
                    assert_eq!(stderr.matches("error: ").count(), 1, "{limit} MiB: {stderr}");
                    assert_eq!(stderr.lines().count(), 2, "{limit} MiB: {stderr}");
                }
                _ => panic!("{limit} MiB, {file}: {:?} {said}", output.status),
            }
        }
    }
    assert!(without > 0 && with > 0, "{without} ended without memory, {with} with it");
}

/// An abort where the system has no more memory, as that of a library which knows no other end, is
/// a lack of memory; any other abort stays one, and so does a fault that is sent: Rust takes the
/// first away, and the second ends the process.
#[cfg(target_os = "linux")]
#[test]
fn an_abort_without_memory_is_a_lack_of_memory() {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    use crate::common::skip::skip;

    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    if Command::new("prlimit").arg("--version").stdout(Stdio::null()).status().is_err() {
        return skip!("prlimit", "no prlimit: install util-linux");
    }
    for (run, lacks_memory, signal) in [("without", true, 6), ("with", false, 6), ("fault", false, 11)] {
        let output = format!("run.output_dir={run}");
        let set = [&output[..], "trainer.max_steps=100000", "trainer.save_strategy=no"];
        let mut command = kiln(folder.path());
        command.args(["train", "config.toml"]).args(set.iter().flat_map(|set| ["--set", set]));
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let rows = folder.path().join(run).join("metrics.jsonl");
        while !std::fs::read_to_string(&rows).is_ok_and(|rows| rows.lines().count() > 5) {
            assert!(child.try_wait().unwrap().is_none(), "it has ended");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let script = if lacks_memory {
            format!("prlimit --pid {0} --as=1000000 && kill -ABRT {0}", child.id())
        } else if signal == 6 {
            format!("kill -ABRT {}", child.id())
        } else {
            format!("kill -SEGV {0} && sleep 1 && kill -SEGV {0}", child.id())
        };
        assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        let said = text(&output);
        if lacks_memory {
            assert_eq!(output.status.code(), Some(4), "{said}");
            assert!(said.contains("error: out of memory: the system has no more"), "{said}");
        } else {
            assert_eq!(output.status.signal(), Some(signal), "{said}");
        }
    }
}
