//! The cache gives a run the same examples that the run would make anew: every setting and every
//! file that can change an example is changed, one after the other, and a run with a warm cache is
//! compared with one whose cache is empty. The settings are those of the config reference, and the
//! files and the arguments those of Kiln's tables: one that no case changes has to stand in
//! [`CHANGES_NOTHING`] or [`NOT_READ`].

mod inert;
mod labelled;
mod language;
mod sources;
mod tokenizers;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use kiln::data::tokenizer::{CONFIG_NAMES, FILES, SPECIAL_NAMES};
use kiln_core::names::{NameTable, Treatment};
use serde_json::{Value, json};

use inert::{CHANGES_NOTHING, NOT_READ};
use labelled::{
    classes_of_gpt2, classes_of_llama, classes_of_neo, rows_of_lists, rows_of_tables, tokenized_rows,
    windows_of_questions,
};
use language::{TEMPLATE, conversations, masked_texts, prompts, texts};
use sources::{classes_in_parquet, dataset_cards, pretrained, saved_datasets, streams};
use tokenizers::{byte_level, classes_of_tokenizers, gpt2_tokenizer, learned_tokenizers};

use crate::common::{json as read_json, kiln, rows, succeeds};

/// A file by its name, and its content; none for a file that is not there.
type File = (String, Option<Vec<u8>>);

/// One thing that is different: files, and settings for `--set`.
#[derive(Clone)]
struct Change {
    name: String,
    files: Vec<File>,
    settings: Vec<String>,
}

/// A run by its files, and the changes that are tried one by one. Each has to give another outcome
/// than all others.
struct Case {
    base: Vec<File>,
    changes: Vec<Change>,
}

/// Content of a file.
trait Content {
    fn bytes(self) -> Vec<u8>;
}

impl Content for String {
    fn bytes(self) -> Vec<u8> {
        self.into_bytes()
    }
}

impl Content for &str {
    fn bytes(self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }
}

impl Content for Value {
    fn bytes(self) -> Vec<u8> {
        self.to_string().into_bytes()
    }
}

impl Content for &[u8] {
    fn bytes(self) -> Vec<u8> {
        self.to_vec()
    }
}

fn at(name: &str, content: impl Content) -> File {
    (name.to_owned(), Some(content.bytes()))
}

fn file(name: &str, content: impl Content) -> Change {
    let content = content.bytes();
    let shown = String::from_utf8_lossy(&content).chars().take(300).collect::<String>();
    Change { name: format!("{name}: {shown}"), files: vec![(name.to_owned(), Some(content))], settings: Vec::new() }
}

fn set(settings: &[&str]) -> Change {
    let settings = settings.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
    Change { name: settings.join(", "), files: Vec::new(), settings }
}

fn both(file: Change, settings: &[&str]) -> Change {
    Change { settings: set(settings).settings, name: format!("{} with {settings:?}", file.name), ..file }
}

/// Losses of a run in `folder` with the cache `cache`, and the digest of its training data.
fn outcome(folder: &Path, cache: &str, settings: &[String]) -> [String; 2] {
    let mut command = kiln(folder);
    command.env("KILN_CACHE", folder.join(cache)).args(["train", "config.toml"]);
    for setting in settings {
        command.args(["--set", setting]);
    }
    succeeds(&mut command);
    let run = folder.join("run");
    let losses = rows(&run).iter().map(|row| json!([row["loss"], row["eval_loss"]])).collect::<Vec<_>>();
    let checkpoints = fs::read_dir(run.join("checkpoints")).unwrap().map(|entry| entry.unwrap().path());
    let state = checkpoints.map(|folder| folder.join("state.json")).find(|state| state.is_file()).unwrap();
    let text = read_json(&state).to_string();
    let digest = text.split("content of the training data").nth(1).unwrap().chars().take(80).collect::<String>();
    [json!(losses).to_string(), digest]
}

fn write(folder: &Path, (name, content): &File) {
    let path = folder.join(name);
    match content {
        Some(content) => {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        None => fs::remove_file(path).unwrap(),
    }
}

/// Tries every change of a case, each alone.
fn tried(Case { base, changes }: Case) {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    base.iter().for_each(|file| write(folder, file));
    let first = outcome(folder, "kept", &[]);
    assert_eq!(outcome(folder, "kept", &[]), first, "the cache gives what was kept");
    let mut seen = BTreeMap::from([(first.clone(), "the run without a change".to_owned())]);
    let mut silent = Vec::new();
    for (index, change) in changes.into_iter().enumerate() {
        change.files.iter().for_each(|file| write(folder, file));
        let kept = outcome(folder, "kept", &change.settings);
        let fresh = outcome(folder, &format!("fresh-{index}"), &change.settings);
        assert_eq!(kept, fresh, "{}: another outcome from the cache than without", change.name);
        if let Some(other) = seen.insert(fresh, change.name.clone()) {
            silent.push(format!("{}\n  gives what this gives: {other}", change.name));
        }
        for (name, content) in change.files {
            match base.iter().find(|(other, _)| *other == name) {
                Some(before) => write(folder, before),
                None if content.is_some() => fs::remove_file(folder.join(name)).unwrap(),
                None => {}
            }
        }
    }
    assert_eq!(outcome(folder, "kept", &[]), first, "as it was again");
    assert!(silent.is_empty(), "{}", silent.join("\n"));
}

fn config(model: &str, data: &str, trainer: &str) -> String {
    format!(
        "[run]\noutput_dir = \"run\"\non_existing = \"overwrite\"\n[model]\n{model}\n[tokenizer]\nfrom = \"tok\"\n[data]\n{data}\n\
         sampler = \"sequential\"\n[trainer]\nmax_steps = 1\nlogging_steps = 1\nlearning_rate = 1e-9\n{trainer}\n[device]\nkind = \"cpu\"\n"
    )
}

const GPT2: &str = "kind = \"gpt2\"\nn_layer = 1\nn_head = 1\nn_embd = 8\nn_positions = 48\nvocab_size = 300\nresid_pdrop = 0.0\n\
                    embd_pdrop = 0.0\nattn_pdrop = 0.0\ninitializer_range = 0.5";
const NEO: &str = "kind = \"gpt_neo\"\nnum_layers = 1\nnum_heads = 1\nhidden_size = 8\nmax_position_embeddings = 48\nvocab_size = 300\n\
                   resid_dropout = 0.0\nembed_dropout = 0.0\nattention_dropout = 0.0\ninitializer_range = 0.5\n\
                   attention_types = [[[\"local\"], 1]]";
const LLAMA: &str = "kind = \"llama\"\nnum_hidden_layers = 1\nnum_attention_heads = 2\nhidden_size = 8\nintermediate_size = 8\n\
                     max_position_embeddings = 48\nvocab_size = 300\npad_token_id = 0\ninitializer_range = 0.5";
const BERT: &str = "kind = \"bert\"\nnum_hidden_layers = 1\nnum_attention_heads = 1\nhidden_size = 8\nintermediate_size = 8\n\
                    max_position_embeddings = 48\nvocab_size = 100\nhidden_dropout_prob = 0.0\nattention_probs_dropout_prob = 0.0\n\
                    initializer_range = 0.5";

const CLASSES: &str = "task = \"sequence-classification\"\nformat = \"csv\"\ntrain = \"rows.csv\"\nvalidation = \"rows.csv\"\n\
                       text_column = \"a\"\nlabel_column = \"label\"";

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        const CASES: &[(&str, fn() -> Case)] = &[$((stringify!($name), $name)),*];

        mod from_the_cache {
            $(#[test]
            fn $name() {
                super::tried(super::$name());
            })*
        }
    };
}

cases!(
    conversations,
    prompts,
    texts,
    masked_texts,
    learned_tokenizers,
    rows_of_tables,
    rows_of_lists,
    classes_of_gpt2,
    classes_of_neo,
    classes_of_llama,
    tokenized_rows,
    windows_of_questions,
    classes_of_tokenizers,
    classes_in_parquet,
    saved_datasets,
    dataset_cards,
    streams,
    pretrained,
);

fn key(setting: &str) -> String {
    setting.split('=').next().unwrap().trim().to_owned()
}

#[test]
fn every_setting_and_file_is_tried_or_changes_nothing() {
    let (mut settings, mut names) = (BTreeSet::new(), BTreeSet::new());
    for (_, case) in CASES {
        let Case { base, changes } = case();
        for change in changes {
            settings.extend(change.settings.iter().map(|setting| key(setting)));
            for (path, content) in &change.files {
                let file = path.rsplit('/').next().unwrap().to_owned();
                let object = |content: &Option<Vec<u8>>| -> Value {
                    content.as_ref().and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or_default()
                };
                if ["tokenizer_config.json", "special_tokens_map.json"].contains(&file.as_str()) {
                    let before = base.iter().find(|(name, _)| name == path).map(|(_, content)| object(content));
                    let of_file = object(content);
                    let changed = of_file.as_object().unwrap().iter().filter(|(name, value)| {
                        before.as_ref().is_none_or(|before| before.get(name.as_str()) != Some(*value))
                    });
                    names.extend(changed.map(|(name, _)| format!("{file}: {name}")));
                }
                names.insert(file);
            }
        }
    }
    let mut section = "";
    let reference = include_str!("../../../src/guide/config_reference.md").lines().filter_map(|line| {
        if let Some(title) = line.strip_prefix("## ") {
            section = title.strip_prefix("`[").and_then(|title| title.split(']').next()).unwrap_or_default();
        }
        let name = line.strip_prefix("- **`")?.split('`').next()?;
        ["data", "tokenizer", "model"].contains(&section).then(|| format!("{section}.{name}"))
    });
    let reference = reference.collect::<BTreeSet<_>>();
    assert!(reference.len() > 70 && reference.contains("data.train"), "{reference:?}");
    let inert = CHANGES_NOTHING.iter().map(|(setting, ..)| key(setting)).collect::<BTreeSet<_>>();
    let neither = reference.iter().filter(|key| !settings.contains(*key) && !inert.contains(*key));
    assert_eq!(
        neither.collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "these settings are neither tried nor named as harmless"
    );
    assert_eq!(inert.difference(&reference).collect::<Vec<_>>(), Vec::<&String>::new(), "these are no settings");

    let honoured = |table: &'static NameTable| {
        let names = table.names.iter().filter(|name| matches!(name.treatment, Treatment::Honoured));
        names.map(|name| (name.name, format!("{}: {}", table.file, name.name)))
    };
    let files = FILES.iter().map(|name| (*name, (*name).to_owned()));
    for (name, shown) in files.chain(honoured(&CONFIG_NAMES)).chain(honoured(&SPECIAL_NAMES)) {
        let harmless = NOT_READ.iter().any(|(other, _)| *other == name);
        // Roles stand in both files: those of one that have a change of their own speak for the
        // other.
        let tried = names.contains(&shown)
            || shown.starts_with(SPECIAL_NAMES.file) && names.contains(&format!("{}: {name}", CONFIG_NAMES.file));
        assert!(tried != harmless, "{shown}: tried {tried}, named as harmless {harmless}");
    }
}

#[test]
fn what_changes_nothing_gives_the_same_examples() {
    for (name, case) in CASES {
        let place = tempfile::tempdir().unwrap();
        let all = CHANGES_NOTHING.iter().filter(|inert| inert.1 == *name);
        all.clone().take(1).flat_map(|_| case().base).for_each(|file| write(place.path(), &file));
        let mut digests = BTreeMap::new();
        for (setting, _, needed, why) in all {
            let needed = needed.iter().map(|needed| (*needed).to_owned()).collect::<Vec<_>>();
            let without = digests
                .entry(needed.clone())
                .or_insert_with_key(|needed| outcome(place.path(), "kept", needed)[1].clone());
            let with = [needed, vec![(*setting).to_owned()]].concat();
            assert_eq!(outcome(place.path(), "kept", &with)[1], *without, "{setting}, of which is said: {why}");
        }
    }
}

#[test]
fn what_depends_on_the_clock_is_not_kept() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let data = "task = \"clm\"\nformat = \"jsonl\"\ntrain = \"rows.jsonl\"\nmessages_column = \"messages\"";
    let row = json!({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]});
    for (name, content) in [
        ("config.toml", config(GPT2, data, "")),
        ("rows.jsonl", row.to_string() + "\n"),
        ("tok/tokenizer.json", byte_level(["t", "h"]).to_string()),
        ("tok/tokenizer_config.json", gpt2_tokenizer(json!({}))),
        ("tok/chat_template.jinja", format!("{{{{ strftime_now('%Y %f') }}}}{TEMPLATE}")),
    ] {
        write(folder, &at(name, content));
    }
    let runs = (0..3).map(|_| outcome(folder, "kept", &[])).collect::<BTreeSet<_>>();
    assert_eq!(runs.len(), 3, "each run has the microseconds of its own");
    assert!(!folder.join("kept/rows").exists() || fs::read_dir(folder.join("kept/rows")).unwrap().next().is_none());
}
