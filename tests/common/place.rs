//! A folder with a small text, tokenised rows and configs that train the smallest models on them in
//! milliseconds: what the tests of bad input and of the run folder start from and spoil.

use std::borrow::BorrowMut;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::messages::Messages;
use super::{kiln, succeeds};

/// A causal language model on `text/*.txt`: 6 documents, blocks of 8 tokens, a tokenizer of 270
/// tokens.
pub const TEXT: &str = r#"
[run]
output_dir = "run"
[model]
kind = "gpt2"
n_layer = 1
n_head = 2
n_embd = 8
n_positions = 16
[data]
task = "clm"
train = ["text/*.txt"]
block_size = 8
[tokenizer]
train_vocab_size = 270
[device]
kind = "cpu"
[trainer]
per_device_train_batch_size = 4
max_steps = 2
"#;

/// A causal language model on `rows.jsonl`: 10 rows of 4 tokens, batches of 2.
pub const ROWS: &str = r#"
[run]
output_dir = "run"
[model]
kind = "gpt2"
n_layer = 1
n_head = 2
n_embd = 8
n_positions = 16
vocab_size = 32
[data]
task = "clm"
format = "tokenized"
train = ["rows.jsonl"]
[device]
kind = "cpu"
[trainer]
per_device_train_batch_size = 2
max_steps = 2
"#;

/// A BERT of the smallest size that tells the classes of [`REVIEWS`] in `rows.csv` by the [`WORDS`]
/// in `words/vocab.txt`.
pub const CLASSES: &str = r#"
[run]
output_dir = "run"
[model]
kind = "bert"
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 16
max_position_embeddings = 16
[data]
task = "sequence-classification"
format = "csv"
train = ["rows.csv"]
[tokenizer]
from = "words"
[trainer]
max_steps = 2
per_device_train_batch_size = 4
[device]
kind = "cpu"
"#;

/// Word pieces, as `vocab.txt` has them.
pub const WORDS: &str = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\ngood\nbad\nfilm\nplay\nwhere\nis\nthe\ncat\nin\nbox\n";

/// Rows of two classes.
pub const REVIEWS: &str = "text,label\na good film,praise\na bad film,blame\ngood play,praise\nbad play,blame\n\
                    the good film,praise\nthe bad play,blame\n";

/// Bytes of a file whose content is not told.
const LONG: usize = 1000;

/// See the top of this file.
pub struct Place {
    folder: tempfile::TempDir,
    messages: Option<Messages>,
}

impl Place {
    pub fn new() -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap(), messages: None };
        for document in 0..6u32 {
            let words = (0..60u32)
                .map(|i| format!("{}{}", ["fn", "let", "use", "mod"][(i % 4) as usize], i * (document + 3) % 41));
            place.write(&format!("text/{document}.txt"), words.collect::<Vec<_>>().join(" "));
        }
        let row = |i: u32| format!("{{\"input_ids\": [{}, {}, {}, {}]}}\n", i, (i * 7) % 32, (i * 5 + 1) % 32, 31 - i);
        place.write("rows.jsonl", (0..10).map(row).collect::<String>());
        place.write("text.toml", TEXT);
        place.write("rows.toml", ROWS);
        place
    }

    /// Files that are written from now on, and the messages of commands that fail, are recorded.
    pub fn recording(self, messages: Messages) -> Self {
        Self { messages: Some(messages), ..self }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let text = std::str::from_utf8(bytes.as_ref()).ok().filter(|text| text.len() <= LONG);
        self.write_as(name, &bytes, text.unwrap_or("(long, or no text)"));
    }

    /// [`Self::write`], where `told` is told of the content.
    pub fn write_as(&self, name: &str, bytes: impl AsRef<[u8]>, told: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
        self.messages.iter().for_each(|messages| messages.given(name, told));
    }

    /// `kiln` in this folder.
    pub fn kiln(&self, args: &[&str]) -> Command {
        let mut command = kiln(self.folder.path());
        command.args(args);
        command
    }

    /// `kiln train FILE --set ...`
    pub fn config(&self, command: &str, file: &str, sets: &[&str]) -> Command {
        let mut command = self.kiln(&[command, file]);
        command.args(sets.iter().flat_map(|set| ["--set", set]));
        command
    }

    /// Trains, and expects success; stdout.
    pub fn train(&self, file: &str, sets: &[&str]) -> String {
        succeeds(&mut self.config("train", file, sets))
    }

    /// See [`Messages::fails`].
    pub fn fails(&self, command: impl BorrowMut<Command>, code: i32) {
        self.messages.as_ref().expect("a place that records").fails(command, code);
    }

    /// Neither a plan nor a run comes of it, and no run folder is made.
    pub fn refused(&self, file: &str, sets: &[&str], code: i32) {
        self.fails(self.config("plan", file, sets), code);
        self.untrained(file, sets, code);
    }

    /// A plan may be made, but no run comes of it, and no run folder is made.
    pub fn untrained(&self, file: &str, sets: &[&str], code: i32) {
        self.fails(self.config("train", file, sets), code);
        assert!(!self.path("run").exists(), "{sets:?} left a run folder");
    }

    /// Neither a plan nor a run comes of a config file with `lines` after `[trainer]` or in later
    /// sections, and no run folder is made.
    pub fn refused_lines(&self, lines: &str) {
        self.write_as("bad.toml", format!("{TEXT}{lines}\n"), &format!("...\n{lines}"));
        self.refused("bad.toml", &[], 2);
    }

    /// Files of a folder, sorted; empty when there is none.
    pub fn listing(&self, name: &str) -> Vec<String> {
        listing(&self.path(name))
    }
}

pub fn listing(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect::<Vec<_>>();
    names.sort();
    names
}
