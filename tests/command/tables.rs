//! Tables through the binary: training on each format, and what is said about tables that are
//! broken.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use crate::common::messages::messages;
use crate::common::{json, kiln, rows, succeeds};

const CONFIG: &str = r#"
[run]
output_dir = "run"
on_existing = "overwrite"
[model]
kind = "bert"
hidden_size = 16
initializer_range = 0.2                 # so small a model needs larger weights to begin with
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 32
max_position_embeddings = 16
[data]
task = "sequence-classification"
format = "csv"
train = ["train.csv"]
validation = ["validation.csv"]
[tokenizer]
from = "vocab.txt"
[trainer]
max_steps = 60
per_device_train_batch_size = 4
learning_rate = 1e-2
eval_strategy = "epoch"
[device]
kind = "cpu"
"#;

/// A folder with a config, word pieces, and tables in which `good` is praise.
pub(crate) fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("config.toml", CONFIG);
    write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\ngood\nbad\nfilm\nplay\n");
    for name in ["train", "validation"] {
        let (mut csv, mut tsv, mut jsonl) = ("text,label\n".to_string(), "label\ttext\n".to_string(), String::new());
        for i in 0..12 {
            let (word, label) = if i % 2 == 0 { ("good", "praise") } else { ("bad", "blame") };
            let text = format!("a {word} {}", ["film", "play", "film film"][i % 3]);
            writeln!(csv, "\"{text}\",{label}").unwrap();
            writeln!(tsv, "{label}\t{text}").unwrap();
            writeln!(jsonl, "{{\"text\": {text:?}, \"pair\": \"a film\", \"label\": {}}}", 1 - i % 2).unwrap();
        }
        write(&format!("{name}.csv"), &csv);
        write(&format!("{name}.tsv"), &tsv);
        write(&format!("{name}.jsonl"), &jsonl);
    }
    folder
}

pub(crate) fn train(folder: &Path, set: &[&str]) -> Command {
    let mut command = kiln(folder);
    command.args(["train", "config.toml"]);
    command.args(set.iter().flat_map(|set| ["--set", set]));
    command
}

fn of_format(format: &str) -> [String; 3] {
    let file = |key: &str, name: &str| format!("data.{key}=[\"{name}.{format}\"]");
    [format!("data.format={format}"), file("train", "train"), file("validation", "validation")]
}

#[test]
fn a_classifier_learns_from_every_text_format() {
    let folder = folder();
    for format in ["csv", "tsv", "jsonl"] {
        let set = of_format(format);
        succeeds(&mut train(folder.path(), &set.each_ref().map(String::as_str)));
        let run = folder.path().join("run");
        let evaluation = rows(&run).into_iter().rfind(|row| row.get("eval_loss").is_some()).unwrap();
        for name in ["eval_accuracy", "eval_f1", "eval_matthews_correlation"] {
            assert_eq!(evaluation[name].as_f64(), Some(1.0), "{format}: {evaluation}");
        }
        let labels = json(&run.join("model/config.json"))["id2label"].clone();
        let expected = if format == "jsonl" { ["0", "1"] } else { ["blame", "praise"] };
        assert_eq!(labels, serde_json::json!({"0": expected[0], "1": expected[1]}), "{format}");
        // plan.toml repeats the run.
        let mut again = kiln(folder.path());
        succeeds(again.args([
            "train",
            "run/plan.toml",
            "--set",
            "run.output_dir=again",
            "--set",
            "run.on_existing=overwrite",
            "--set",
            "trainer.max_steps=1",
        ]));
    }
}

/// A byte-order mark before a text of any format is no part of it; UTF-16 is refused by its name.
#[test]
fn a_byte_order_mark_is_passed_over() {
    let messages = messages!();
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let losses = |set: &[&str]| {
        succeeds(&mut train(folder.path(), &[set, &["trainer.max_steps=3"]].concat()));
        let rows = rows(&folder.path().join("run"));
        rows.iter().filter_map(|row| row["loss"].as_f64().or(row["eval_loss"].as_f64())).collect::<Vec<_>>()
    };
    let mark = |name: &str| {
        std::fs::write(at(name), [b"\xef\xbb\xbf", &std::fs::read(at(name)).unwrap()[..]].concat()).unwrap()
    };
    let utf16 = |name: &str, text: &str| {
        let units = text.encode_utf16().flat_map(u16::to_le_bytes);
        std::fs::write(at(name), [0xff, 0xfe].into_iter().chain(units).collect::<Vec<_>>()).unwrap();
    };
    let mlm = |format: &str, file: &str| {
        ["data.task=mlm", &format!("data.format={format}"), &format!("data.train=[{file:?}]"), "data.validation=none"]
            .map(String::from)
    };
    let mut cases =
        ["csv", "tsv", "jsonl"].map(|format| (format!("train.{format}"), of_format(format).to_vec())).to_vec();
    std::fs::write(at("text.txt"), "a good film\na bad play\n".repeat(12)).unwrap();
    let text = mlm("text", "text.txt")[..3].to_vec();
    let whole = |text: &[String]| {
        [text, &["data.validation=0.3".into(), "data.documents=line".into(), "data.block_size=4".into()]].concat()
    };
    cases.push(("text.txt".into(), whole(&text)));
    let row = "{\"input_ids\": [2, 5, 6, 8, 3], \"labels\": 1}";
    std::fs::write(at("rows.jsonl"), format!("{row}\n").repeat(8)).unwrap();
    std::fs::write(at("rows.json"), format!("[{}]", [row; 8].join(","))).unwrap();
    for name in ["rows.jsonl", "rows.json"] {
        let set = [
            "data.format=tokenized".into(),
            format!("data.train=[{name:?}]"),
            "data.validation=0.3".into(),
            "model.vocab_size=10".into(),
        ];
        cases.push((name.into(), set.to_vec()));
    }
    for (name, set) in cases {
        let set = set.iter().map(String::as_str).collect::<Vec<_>>();
        let plain = losses(&set);
        assert!(plain.len() > 1, "{name}");
        mark(&name);
        assert_eq!(losses(&set), plain, "{name}");
        utf16(&name, "text,label\n{\"text\": 1}");
        messages.fails(train(folder.path(), &set), 3);
    }
    mark("config.toml");
    std::fs::write(at("train.csv"), "text,label\na good film,praise\na bad film,blame\n").unwrap();
    succeeds(kiln(folder.path()).args(["plan", "config.toml"]));
    utf16("config.toml", CONFIG);
    messages.fails(kiln(folder.path()).args(["plan", "config.toml"]), 2);
}

/// A table that pyarrow has written; see `fixtures/make_tables.py`.
fn parquet(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/fixtures/tables").join(name))
        .unwrap()
}

#[test]
fn parquet_gives_what_csv_gives() {
    let folder = folder();
    let losses = |set: &[&str]| {
        succeeds(&mut train(folder.path(), set));
        let rows = rows(&folder.path().join("run"));
        rows.iter().filter_map(|row| row["loss"].as_f64().or(row["eval_loss"].as_f64())).collect::<Vec<_>>()
    };
    let of_csv = losses(&[]);
    for name in ["names.parquet", "numbers.parquet"] {
        std::fs::write(folder.path().join(name), parquet(name)).unwrap();
        let set = [
            "data.format=parquet".to_string(),
            format!("data.train=[{name:?}]"),
            format!("data.validation=[{name:?}]"),
        ];
        assert_eq!(losses(&set.each_ref().map(String::as_str)), of_csv, "{name}");
    }
}

#[test]
fn pairs_and_regression_work() {
    let folder = folder();
    let set = of_format("jsonl");
    let mut set = set.iter().map(String::as_str).collect::<Vec<_>>();
    set.extend(["data.text_pair_column=pair", "data.task=regression", "data.max_length=8", "data.validation=\"25%\""]);
    succeeds(&mut train(folder.path(), &set));
    let evaluation = rows(&folder.path().join("run")).into_iter().rfind(|row| row.get("eval_loss").is_some()).unwrap();
    assert_eq!(evaluation["eval_samples"], 3);
    assert!((evaluation["eval_mse"].as_f64().unwrap() - evaluation["eval_loss"].as_f64().unwrap()).abs() < 1e-5);
    assert!(evaluation.get("eval_pearson").is_some() && evaluation.get("eval_spearmanr").is_some());
    assert_eq!(json(&folder.path().join("run/model/config.json"))["problem_type"], "regression");
}

#[test]
fn broken_tables_are_refused() {
    let messages = messages!();
    let folder = folder();
    let path = folder.path();
    let with = |name: &str, bytes: &[u8]| {
        std::fs::write(path.join(name), bytes).unwrap();
        messages.given(name, std::str::from_utf8(bytes).unwrap_or("(no text)"));
    };
    messages.fails(train(path, &["data.label_column=stars"]), 3);
    let map = "data.label_names=[\"praise\", \"neutral\"]";
    messages.fails(train(path, &[map]), 3);
    with("validation.csv", b"text,label\na film,other\n");
    messages.fails(train(path, &[]), 3);
    with("validation.csv", b"text,label\n");
    messages.fails(train(path, &[]), 3);
    with("validation.csv", b"text,label\na film,praise\na film\n");
    messages.fails(train(path, &[]), 3);
    with("validation.csv", b"text,label\na f\xfflm,praise\n");
    messages.fails(train(path, &[]), 3);
    with("validation.csv", b"text,label\na film,praise\na play,blame\n");
    let whole = parquet("numbers.parquet");
    let of_parquet = |bytes: &[u8], set: &[&str]| {
        with("cut.parquet", bytes);
        let set = [&["data.format=parquet", "data.train=[\"cut.parquet\"]", "data.validation=\"25%\""], set].concat();
        messages.fails(train(path, &set), 3);
    };
    for cut in [0, 6, whole.len() / 2, whole.len() - 1] {
        of_parquet(&whole[..cut], &[]);
    }
    let mut damaged = whole.clone();
    damaged[4..60].fill(0xff);
    of_parquet(&damaged, &[]);
    of_parquet(&whole, &["data.text_column=label"]);
    of_parquet(&whole, &["data.text_column=tokens"]);
    of_parquet(&whole, &["data.label_column=stars", "data.task=regression"]);
    of_parquet(&whole, &["data.label_column=grade"]);
    messages.fails(train(path, &["data.max_length=17"]), 2);
    messages.fails(train(path, &["data.task=regression"]), 3);
    assert!(!path.join("run").exists());
}

/// Root may write everywhere but where the system makes the files up.
#[cfg(target_os = "linux")]
#[test]
fn a_cache_that_the_system_refuses() {
    let folder = folder();
    let mut read_only = train(folder.path(), &[]);
    messages!().fails(read_only.env("KILN_CACHE", "/proc/kiln"), 1);
    assert!(!folder.path().join("run").exists());
}
