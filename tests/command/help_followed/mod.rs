//! Help leads somewhere: for each mistake here the advice of the message is carried out as it
//! stands, and the next answer is success, or the refusal of a later stage. A message that names a
//! key, a command or a file as the remedy belongs into these tables.

use std::path::Path;
use std::process::Command;

use Do::{Args, Call, Env, Remove, Run, Set, Unset, Write};

use crate::common::messages::Messages;
use crate::common::place::{CLASSES, REVIEWS, TEXT, WORDS};
use crate::common::{kiln, line_of, text};

mod builds;
mod config;
mod data;
mod hub;
mod models;
#[cfg(target_os = "linux")]
mod ranks;
mod runs;

/// A change that a user makes to the config, the files, the command or the environment.
#[derive(Clone, Copy)]
enum Do {
    /// Sets `section.key` to a value of TOML.
    Set(&'static str, &'static str),
    /// Leaves out `section.key`, or the section.
    Unset(&'static str),
    /// Writes a file, in folders that are made.
    Write(&'static str, &'static str),
    /// Removes a file or a folder.
    Remove(&'static str),
    /// Runs another command, which succeeds.
    Run(&'static [&'static str]),
    /// Gives the command these arguments; without, it is `kiln plan config.toml`. After `mpirun`,
    /// the word `kiln` is the program.
    Args(&'static [&'static str]),
    /// Sets a variable of the environment of the command; an empty one is taken away.
    Env(&'static str, &'static str),
    /// Changes something outside the folder.
    Call(fn()),
}

/// The command that trains.
const TRAIN: Do = Args(&["train", "config.toml"]);

/// A mistake, and the remedy that the message tells of, carried out.
struct Case {
    base: &'static str,
    mistake: &'static [Do],
    /// Parts of a message that is not recorded, because machines differ in the rest.
    says: &'static [&'static str],
    advice: &'static [Do],
    /// Whether the remedy leads to the refusal of a later stage.
    is_refused_later: bool,
}

/// A case that ends well.
const fn case(base: &'static str, mistake: &'static [Do], advice: &'static [Do]) -> Case {
    Case { base, mistake, says: &[], advice, is_refused_later: false }
}

/// A case that ends with another error.
const fn later(base: &'static str, mistake: &'static [Do], advice: &'static [Do]) -> Case {
    Case { is_refused_later: true, ..case(base, mistake, advice) }
}

impl Case {
    const fn saying(self, says: &'static [&'static str]) -> Self {
        Self { says, ..self }
    }
}

/// Questions about contexts.
const ANSWERS: &str = r#"
[run]
output_dir = "run"
[model]
kind = "bert"
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 16
max_position_embeddings = 32
[data]
task = "question-answering"
format = "squad"
train = ["squad.json"]
[tokenizer]
from = "words/vocab.txt"
[trainer]
max_steps = 2
per_device_train_batch_size = 4
[device]
kind = "cpu"
"#;

const SQUAD: &str = r#"{"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": "the cat is in the box", "qas":
    [{"id": "q0", "question": "where is the cat", "answers": [{"text": "box", "answer_start": 18}]}]}]}]}"#;

fn folder(base: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| apply(folder.path(), &Write(leak(name), leak(text)));
    write("config.toml", base);
    write("words/vocab.txt", WORDS);
    write("rows.csv", REVIEWS);
    write("squad.json", SQUAD);
    write("text/text.txt", &"the cat is in the box and the film is a good play\n".repeat(40));
    folder
}

fn leak(text: &str) -> &'static str {
    Box::leak(text.to_owned().into_boxed_str())
}

/// Changes the folder as `change` says; what changes the command changes nothing here.
fn apply(folder: &Path, change: &Do) {
    let config = folder.join("config.toml");
    let edited = |key: &str, value: Option<toml::Value>| {
        let mut all = std::fs::read_to_string(&config).unwrap().parse::<toml::Table>().unwrap();
        let (section, key) = key.split_once('.').map_or((None, key), |(section, key)| (Some(section), key));
        let table = match section {
            Some(section) => {
                let section = all.entry(section).or_insert_with(|| toml::Value::Table(toml::Table::new()));
                section.as_table_mut().unwrap()
            }
            None => &mut all,
        };
        match value {
            Some(value) => drop(table.insert(key.into(), value)),
            None => drop(table.remove(key)),
        }
        std::fs::write(&config, toml::to_string(&all).unwrap()).unwrap();
    };
    match *change {
        Set(key, value) => {
            let value = format!("value = {value}").parse::<toml::Table>().unwrap()["value"].clone();
            edited(key, Some(value));
        }
        Unset(key) => edited(key, None),
        Write(name, text) => {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Remove(name) => {
            let path = folder.join(name);
            if path.is_dir() {
                std::fs::remove_dir_all(path).unwrap();
            } else {
                std::fs::remove_file(path).unwrap();
            }
        }
        Run(args) => {
            let output = kiln(folder).args(args).output().unwrap();
            assert!(output.status.success(), "{args:?}: {}", text(&output));
        }
        Call(change) => change(),
        Args(_) | Env(..) => {}
    }
}

/// The command after `changes`.
fn command(folder: &Path, changes: &[Do]) -> Command {
    let args = changes.iter().rev().find_map(|change| if let Args(args) = change { Some(*args) } else { None });
    let mut command = kiln(folder);
    match args {
        Some(["mpirun", args @ ..]) => {
            let under = std::mem::replace(&mut command, Command::new("mpirun"));
            let program = |arg: &&str| if *arg == "kiln" { under.get_program().to_owned() } else { (*arg).into() };
            command.args(args.iter().map(program)).current_dir(folder);
            command.envs(under.get_envs().filter_map(|(name, value)| Some((name, value?))));
        }
        args => drop(command.args(args.unwrap_or(&["plan", "config.toml"]))),
    }
    for change in changes {
        if let Env(name, value) = change {
            if value.is_empty() {
                command.env_remove(name);
            } else {
                command.env(name, value);
            }
        }
    }
    command
}

/// The changes and the command, a line each.
fn told(changes: &[Do], command: &Command) -> String {
    let told = |change: &Do| match *change {
        Set(key, value) => format!("{key} = {value}"),
        Unset(key) => format!("no {key}"),
        Write(name, text) => format!("{name}: {text}"),
        Remove(name) => format!("rm {name}"),
        Run(args) => format!("kiln {}", args.join(" ")),
        Env(name, value) => format!("{name}={value}"),
        Call(_) => "a change outside of the folder".into(),
        Args(_) => String::new(),
    };
    changes.iter().map(told).chain([line_of(command)]).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(
        "
",
    )
}

/// The output of a case that does not go as it says; none where it does.
fn failure(messages: Option<&Messages>, case: &Case) -> Option<String> {
    let folder = folder(case.base);
    let folder = folder.path();
    case.mistake.iter().for_each(|change| apply(folder, change));
    let mut wrong = command(folder, case.mistake);
    let output = wrong.output().unwrap();
    let first = String::from_utf8_lossy(&output.stderr).into_owned();
    let lacks = case.says.iter().find(|part| !first.contains(**part));
    if output.status.success() || lacks.is_some() {
        return Some(format!(
            "expected {lacks:?} of {:?}
{}",
            case.says,
            text(&output)
        ));
    }
    case.advice.iter().for_each(|change| apply(folder, change));
    let mut right = command(folder, &[case.mistake, case.advice].concat());
    let output = right.output().unwrap();
    let second = String::from_utf8_lossy(&output.stderr);
    let goes_on = output.status.success() != case.is_refused_later && second != first;
    if let (Some(messages), true) = (messages, goes_on) {
        messages.add(told(case.mistake, &wrong), &first);
        let answer = if case.is_refused_later { &second } else { "it succeeds" };
        messages.add(
            format!(
                "The advice, followed:
{}",
                told(case.advice, &right)
            ),
            answer,
        );
    }
    (!goes_on).then(|| {
        format!(
            "{first}
and after the advice
{}",
            text(&output)
        )
    })
}

/// The changes of `first`, then those of `more`.
fn joined(first: &[Do], more: &[Do]) -> &'static [Do] {
    Box::leak([first, more].concat().into_boxed_slice())
}

/// Every case goes as it says, and the messages are those of the test's file.
fn all(messages: Messages, cases: &[Case]) {
    go(cases.iter().filter_map(|case| failure(Some(&messages), case)));
}

fn unrecorded(cases: &[Case]) {
    go(cases.iter().filter_map(|case| failure(None, case)));
}

fn go(failures: impl Iterator<Item = String>) {
    let failures = failures.collect::<Vec<_>>();
    assert!(failures.is_empty(), "{} failures:\n\n{}", failures.len(), failures.join("\n----\n"));
}
