//! Shared code of the tests of the binary: running it, and comparing its files with the fixtures.
#![allow(dead_code, clippy::unwrap_used)] // every test binary uses a part of it

pub mod messages;
pub mod place;
pub mod pty;
#[cfg(unix)]
pub mod ranks;
pub mod skip;
pub mod small_run;

use std::borrow::BorrowMut;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};

use serde_json::Value;

use messages::Messages;

/// The binary, with a cache of its own so that tests do not see the user's, and no network.
pub fn kiln(folder: &Path) -> Command {
    #[cfg(unix)]
    hear_hangup();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command.current_dir(folder).env("KILN_CACHE", folder.join("kiln-cache"));
    command.env("HF_HOME", folder.join("hf-home")).env("HF_HUB_OFFLINE", "1");
    command
}

/// Where `nohup` has started the tests, the programs that they start would ignore SIGHUP with them.
/// A signal that this process catches has its default in those, and ends this process no more than
/// before.
#[cfg(unix)]
fn hear_hangup() {
    static HEARD: std::sync::Once = std::sync::Once::new();
    HEARD.call_once(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        if ignored & 1 == 1 {
            let caught = std::sync::Arc::<std::sync::atomic::AtomicBool>::default();
            signal_hook::flag::register(signal_hook::consts::SIGHUP, caught).unwrap();
        }
    });
}

/// The output of `child` once it has ended. A child that has not ended after five minutes is
/// killed, and the test fails.
pub fn ended(child: Child) -> Output {
    let pid = child.id().to_string();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    if let Ok(output) = receiver.recv_timeout(std::time::Duration::from_secs(300)) {
        return output.unwrap();
    }
    let _ = Command::new("kill").args(["-KILL", &pid]).status();
    panic!("the process {pid} had not ended after five minutes: {}", text(&receiver.recv().unwrap().unwrap()));
}

/// The kind of device of the tests that run on any: what `KILN_TEST_DEVICE` says, the CPU
/// otherwise. On wgpu the binary is of one engine and finds the other in `KILN_NATIVE` or
/// `KILN_COMPILED`, and kernels are kept from test to test, since a software device compiles and
/// tunes them for minutes.
pub fn device() -> String {
    std::env::var("KILN_TEST_DEVICE").unwrap_or_else(|_| "cpu".into())
}

/// [`kiln`] for a test that runs on [`device`].
pub fn kiln_on_device(folder: &Path) -> Command {
    let mut command = kiln(folder);
    if device() != "cpu" {
        command.env("KILN_CACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels"));
    }
    command
}

/// Runs the binary and expects success; its stdout.
pub fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}\n{}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the binary and expects an error: the exit code, every part of the message, no panic; its
/// stderr.
pub fn fails(command: &mut Command, code: i32, parts: &[&str]) -> String {
    let output = command.output().unwrap();
    let all = text(&output);
    assert_eq!(output.status.code(), Some(code), "{command:?}\n{all}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    // A run that another engine takes over says so first, a prediction what it takes from its run,
    // and a rank of a launcher that another rank has ended, and that SIGTERM reaches, that it has.
    let is_launched = command.get_args().any(|argument| argument == "launch")
        || !command.get_program().to_string_lossy().contains("kiln");
    let is_news = |line: &&str| {
        let news = ["warning: ", "native engine: ", "compiled engine: ", "from "];
        news.iter().any(|start| line.starts_with(start))
            || is_launched && line.starts_with("SIGTERM: the run stops after ")
    };
    let first = stderr.lines().find(|line| !is_news(line)).unwrap_or_default();
    assert!(first.starts_with("error: "), "{command:?}\n{all}");
    assert!(!stderr.contains("panicked"), "{command:?}\n{all}");
    for part in parts {
        assert!(stderr.contains(part), "{command:?}\nexpected {part:?} in\n{all}");
    }
    stderr
}

impl Messages {
    /// [`fails`], with what is said recorded.
    pub fn fails(&self, mut command: impl BorrowMut<Command>, code: i32) {
        let command = command.borrow_mut();
        let stderr = fails(command, code, &[]);
        self.failed(command, code, &stderr);
    }

    /// The program has failed with this code, and has said this.
    pub fn failed(&self, command: &Command, code: i32, stderr: &str) {
        self.add(line_of(command), format!("exit code {code}\n{stderr}"));
    }
}

/// `command` as it is typed.
pub fn line_of(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap().to_string_lossy().into_owned();
    let quoted = |word: &str| {
        let is_plain = |c: char| c.is_alphanumeric() || "-_=./:,%".contains(c);
        if !word.is_empty() && word.chars().all(is_plain) { word.to_owned() } else { format!("'{word}'") }
    };
    let words = command.get_args().map(|word| quoted(&word.to_string_lossy()));
    std::iter::once(program).chain(words).collect::<Vec<_>>().join(" ")
}

pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

pub fn fixture(case: &str) -> PathBuf {
    // Other cases of the same form can be tried by naming their folder.
    let own = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/fixtures/oracle");
    std::env::var_os("KILN_ORACLE").map_or(own, PathBuf::from).join(case)
}

pub fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Every tensor of a safetensors file, with its shape, as f32.
pub fn tensors(path: &Path) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let bytes = std::fs::read(path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let read = |view: safetensors::tensor::TensorView<'_>| {
        let values = view.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        (view.shape().to_vec(), values)
    };
    file.tensors().into_iter().map(|(name, view)| (name, read(view))).collect()
}

/// Rows of a run's `metrics.jsonl`, in which everything is a number.
pub fn rows(run: &Path) -> Vec<Value> {
    rows_of(&std::fs::read_to_string(run.join("metrics.jsonl")).unwrap())
}

/// Rows of a run whose loss is scaled: the gradient norm of a skipped step, which is no number, is
/// null.
pub fn rows_with_skips(run: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    rows_of(&text.replace("-Infinity", "null").replace("Infinity", "null").replace("NaN", "null"))
}

fn rows_of(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// Rows of the training steps alone.
pub fn train_rows(run: &Path) -> Vec<Value> {
    rows(run).into_iter().filter(|row| row.get("loss").is_some()).collect()
}

pub fn l2(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// `|a - b| / |b|` in the L2 norm.
pub fn relative_l2(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    l2(a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b))) / l2(b.iter().map(|b| f64::from(*b))).max(1e-30)
}
