//! Messages in tests: the inputs of a test stand in its code, and all that is printed for them
//! stands in one file, which a reader of a change reads as prose. `CONTRIBUTING.md` has the command
//! that writes the files anew.
#![allow(dead_code, unused_imports, unused_macros, clippy::unwrap_used)] // every test binary uses a part of it

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use kiln_core::process::shell_quoted;
use snapbox::Data;
use snapbox::assert::{Action, DEFAULT_ACTION_ENV};

/// Columns of a line that are kept: a hostile input can be of any length.
const COLUMNS: usize = 2000;

/// How a snapshot is written anew.
const ANEW: &str = "SNAPSHOTS=overwrite writes the snapshot anew";

/// The answers to the inputs of one test, in their order. When it is dropped they are compared with
/// the file of the test, so a test cannot forget that.
pub struct Messages {
    /// The path of the test's function.
    test: &'static str,
    /// Files of the next input, with their lines.
    given: Mutex<Vec<(String, String)>>,
    /// The lines of inputs, and the answer to each of them.
    entries: Mutex<Vec<(Vec<String>, String)>>,
}

/// The [`Messages`] of the test in whose function it stands.
macro_rules! messages {
    () => {
        $crate::messages::Messages::of(snapbox::fn_path!())
    };
}
pub(crate) use messages;

impl Messages {
    pub fn of(test: &'static str) -> Self {
        Self { test, given: Mutex::default(), entries: Mutex::default() }
    }

    /// A part of the next input: a file with this content.
    pub fn given(&self, file: &str, content: &str) {
        let lines = content.lines().map(|line| format!("\n    {line}")).collect();
        let mut given = self.given.lock().unwrap();
        given.retain(|(other, _)| other != file);
        given.push((file.to_owned(), lines));
    }

    /// Records the answer to `input`. Inputs that follow each other and get one answer stand
    /// together.
    pub fn add(&self, input: impl Display, answer: impl Display) {
        let given = std::mem::take(&mut *self.given.lock().unwrap());
        let files = given.iter().map(|(name, lines)| format!("{name}:{lines}\n")).collect::<String>();
        let [input, answer] = [format!("{files}{input}"), answer.to_string()].map(normal);
        let inputs = input.lines().map(|line| shown(&format!("> {line}")));
        let answer = answer.lines().map(|line| shown(line) + "\n").collect::<String>();
        let mut entries = self.entries.lock().unwrap();
        match entries.last_mut() {
            Some(last) if last.1 == answer && given.is_empty() => last.0.extend(inputs),
            _ => entries.push((inputs.collect(), answer)),
        }
    }

    /// Records the error that `input` gets.
    pub fn refused<T>(&self, input: impl Display, result: Result<T, impl Display>) {
        let Err(error) = result else { panic!("{input} is accepted") };
        self.add(input, error);
    }

    fn path(&self) -> PathBuf {
        repository().join("tests/snapshots").join(self.test.replace("::", "/")).with_extension("txt")
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let entries = std::mem::take(self.entries.get_mut().unwrap())
            .into_iter()
            .map(|(inputs, answer)| inputs.join("\n") + "\n" + &answer);
        let (text, path) = (entries.collect::<Vec<_>>().join("\n"), self.path());
        assert!(!text.is_empty(), "{} has recorded no message", self.test);
        if Action::with_env_var(DEFAULT_ACTION_ENV) == Some(Action::Overwrite) {
            Data::text(text).write_to_path(&path).unwrap();
            return;
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(text == expected, "{}:\n{}{ANEW}", path.display(), difference(&expected, &text));
    }
}

/// `text` without what differs between machines: folders, ports, digests and the words of the
/// operating system.
fn normal(mut text: String) -> String {
    for folders in spellings(&std::env::temp_dir()) {
        let start = folders.join(".tmp").display().to_string();
        if shell_quoted(&start) != start {
            text = without_quotes(&text, &start);
        }
        text = without_drawn(&text, &start, "FOLDER");
    }
    let program = option_env!("CARGO_BIN_EXE_kiln").map(|path| (Path::new(path), "kiln"));
    for (path, name) in program.into_iter().chain([(repository(), "REPOSITORY")]) {
        for path in spellings(path) {
            text = text.replace(&path.display().to_string(), name);
        }
    }
    text = without_drawn(&text, "127.0.0.1:", "127.0.0.1:PORT");
    text = text.lines().map(without_system).collect::<Vec<_>>().join("\n");
    let words = text
        .split(|c: char| !c.is_ascii_hexdigit())
        .filter(|word| [32, 40, 64].contains(&word.len()))
        .map(str::to_owned);
    words.collect::<Vec<_>>().iter().fold(text, |text, digest| text.replace(digest, "DIGEST"))
}

/// Both spellings of a path, of which a message may have either.
fn spellings(path: &Path) -> impl Iterator<Item = PathBuf> {
    path.canonicalize().into_iter().chain([path.to_owned()])
}

/// `text` with `name` for each `start` with the letters and digits that follow it.
fn without_drawn(text: &str, start: &str, name: &str) -> String {
    let mut parts = text.split(start);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + name + part.trim_start_matches(char::is_alphanumeric))
}

/// `text` in which the words of a shell that begin with `start` have no quotes where only `start`
/// needs them: the folder of tests may have any name.
fn without_quotes(text: &str, start: &str) -> String {
    let quoted = format!("'{start}");
    let mut parts = text.split(&quoted);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| match part.split_once('\'') {
        Some((rest, after)) if rest.is_empty() || shell_quoted(rest) == rest => text + start + rest + after,
        _ => text + "'" + start + part,
    })
}

/// `line` without the reason that the operating system gives.
fn without_system(line: &str) -> String {
    let Some((before, after)) = line.split_once(" (os error ") else { return line.to_owned() };
    let kilns = before.rsplit_once(": ").map_or("", |(kilns, _)| kilns);
    let rest = after.split_once(')').map_or("", |(_, rest)| rest);
    format!("{kilns}: SYSTEM'S REASON{rest}")
}

/// The entries that only one of two snapshots has.
fn difference(expected: &str, text: &str) -> String {
    let only = |mark: char, of: &str, other: &str| {
        let others = other.trim_end().split("\n\n").collect::<Vec<_>>();
        let entries = of.trim_end().split("\n\n").filter(|entry| !others.contains(entry));
        entries.flat_map(str::lines).map(|line| format!("{mark} {line}\n")).collect::<String>()
    };
    only('-', expected, text) + &only('+', text, expected)
}

fn repository() -> &'static Path {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    folders.find(|folder| folder.join("Cargo.lock").is_file()).unwrap()
}

/// A line whose control characters are escaped, without the end of a very long one.
fn shown(line: &str) -> String {
    let escaped = |c: char| if c.is_control() { c.escape_default().collect() } else { c.to_string() };
    let line = line.trim_end().chars().map(escaped).collect::<String>();
    match line.chars().count() {
        ..=COLUMNS => line,
        count => line.chars().take(COLUMNS / 10).collect::<String>() + &format!("[{count} characters]"),
    }
}
