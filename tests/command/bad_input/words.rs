//! Errors of libraries about a file that they cannot read reach no user in their wording: each
//! message names the file and what was expected in Kiln's own words, whichever library read it.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use crate::common::place::{CLASSES, REVIEWS, WORDS};
use crate::common::{fixture, kiln, text};

/// Words of Rust and of its libraries that say nothing to a user.
const OF_RUST: [&str; 26] = [
    "at line 1 column",
    "invalid type:",
    "invalid value: ",
    "invalid length",
    "missing field `",
    "Disabled feature",
    "UnexpectedEof",
    "Os {",
    "ParseIntError",
    "expected value",
    "EOF",
    "untagged enum",
    "called `Option",
    "Custom {",
    "Error(",
    "JsonError",
    "Utf8Error",
    "did not contain valid UTF-8",
    "invalid utf-8 sequence",
    "Parquet error",
    "TOML parse error",
    "trailing characters",
    "key must be a string",
    "usize",
    "struct ",
    "InvalidHeader",
];

/// The classifier's config with the model in `folder`.
fn from(folder: &str) -> String {
    let section = CLASSES.find("[model]").unwrap()..CLASSES.find("[data]").unwrap();
    let mut config = CLASSES.to_owned();
    config.replace_range(section, &format!("[model]\nfrom = \"{folder}\"\n"));
    config
}

/// A folder with a classifier's config, its rows and its words.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("config.toml", CLASSES), ("words/vocab.txt", WORDS), ("rows.csv", REVIEWS)] {
        write(folder.path(), name, text.as_bytes());
    }
    folder
}

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// The fault in the answer of `command` to the file `name`, which cannot be used; none where the
/// answer is in order.
fn failure(command: &mut Command, name: &str) -> Option<String> {
    let output = command.output().unwrap();
    let said = text(&output);
    let of_rust = OF_RUST.iter().find(|words| said.contains(**words));
    // A report leaves out what cannot be read, and says so.
    let is_told = command.get_args().any(|arg| arg == "report") && output.status.success();
    let is_refused = output.status.code().is_some_and(|code| (1..=3).contains(&code)) && said.contains("error: ");
    let is_refused = is_refused || is_told;
    let file = name.rsplit('/').next().unwrap_or(name);
    (of_rust.is_some() || !is_refused || !said.contains(file))
        .then(|| format!("{name}: {of_rust:?}, refused {is_refused}\n{said}"))
}

/// Asserts that each of these files, with these settings or this command, is refused in Kiln's
/// words.
fn refused(cases: &[(&str, &[u8], &[&str])]) {
    let failures = cases.iter().filter_map(|(name, bytes, args)| {
        let folder = folder();
        write(folder.path(), name, bytes);
        let mut command = kiln(folder.path());
        match args.first() {
            Some(first) if !first.contains('=') => command.args(*args),
            _ => command.args(["plan", "config.toml"]).args(args.iter().flat_map(|set| ["--set", *set])),
        };
        failure(&mut command, name)
    });
    let failures = failures.collect::<Vec<_>>();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), cases.len(), failures.join("\n----\n"));
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut archive = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    archive.write_all(bytes).unwrap();
    archive.finish().unwrap()
}

#[test]
fn configs_and_arguments() {
    let hf = ["plan", "config.toml", "--hf-args", "args.json"];
    let sweep = ["sweep", "sweep.toml"];
    let metrics = ["metrics", "rows.csv", "--definitions", "regex.json"];
    refused(&[
        ("config.toml", b"no plan", &[]),
        ("config.toml", b"[run\noutput_dir = 1", &[]),
        ("config.toml", b"[run]\noutput_dir = \"run", &[]),
        ("config.toml", b"[run]\noutput_dir = run", &[]),
        ("config.toml", b"[run]\nname = \"a\"\nname = \"b\"\n", &[]),
        ("config.toml", b"[trainer]\nseed = 99999999999999999999\n", &[]),
        ("config.toml", &[CLASSES.as_bytes(), b"logging_steps = [1]\n"].concat(), &[]),
        ("config.toml", b"\xff\xfea", &[]),
        ("args.json", b"{", &hf),
        ("args.json", b"{seed: 1}", &hf),
        ("args.json", b"{\"seed\": 1,}", &hf),
        ("args.json", b"[]", &hf),
        ("sweep.toml", b"no sweep", &sweep),
        ("sweep.toml", b"[sweep]\ntrials = \"two\"\n", &sweep),
        ("regex.json", b"[{\"Name\": \"a\"}]", &metrics),
        ("regex.json", b"[{\"Name\": 1, \"Regex\": \"(a)\"}]", &metrics),
        ("regex.json", b"{", &metrics),
        ("regex.json", b"[{\"Name\": \"a\", \"Regex\": \"(a\"}]", &metrics),
        ("job.toml", b"no job", &["submit", "job.toml", "--local"]),
        ("job.toml", b"max_run = \"1h\"\n", &["submit", "job.toml", "--local"]),
        ("opt/input/config/hyperparameters.json", b"{", &["job", "--root", "opt"]),
        ("opt/input/config/resourceconfig.json", b"{\"hosts\": 1}", &["job", "--root", "opt"]),
        ("run/status.json", b"{", &["describe", "run"]),
        ("run/status.json", b"{\"status\": \"so\"}", &["describe", "run"]),
        ("kernels.tar.gz", b"no archive", &["cache", "import", "kernels.tar.gz"]),
    ]);
}

#[test]
fn tables_texts_and_questions() {
    let jsonl = ["data.format=jsonl", "data.train=rows.jsonl"];
    let tokenized = ["data.format=tokenized", "data.train=rows.json", "model.vocab_size=32"];
    let squad = ["data.format=squad", "data.task=question-answering", "data.train=squad.json"];
    let parquet = ["data.format=parquet", "data.train=rows.parquet"];
    let whole =
        std::fs::read(concat!(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."), "/tests/fixtures/tables/names.parquet"))
            .unwrap();
    let footer = [&whole[..whole.len() - 60], &[7; 52], &whole[whole.len() - 8..]].concat();
    let archive = gzipped(REVIEWS.as_bytes());
    let of = |text: &str| format!(r#"{{"data": [{{"paragraphs": [{{"context": "the cat", "qas": [{text}]}}]}}]}}"#);
    let [no_question, no_id, no_start] = [
        of(r#"{"id": "a"}"#),
        of(r#"{"question": "where", "answers": [{"text": "cat", "answer_start": 4}]}"#),
        of(r#"{"id": "a", "question": "where", "answers": [{"text": "cat", "answer_start": "x"}]}"#),
    ];
    refused(&[
        ("rows.jsonl", b"{\"text\": \"a\", \"label\": \"b\"}\n{\"text\": ", &jsonl),
        ("rows.jsonl", b"{\"text\": \"a\", \"label\": }", &jsonl),
        ("rows.jsonl", b"{text: 1}", &jsonl),
        ("rows.jsonl", b"{\"text\": \"a\"} {}", &jsonl),
        ("rows.jsonl", b"{\"text\": \"\xff\"}", &jsonl),
        ("rows.json", b"[{\"input_ids\": [1]}", &tokenized),
        ("rows.json", b"[{\"input_ids\": [1], \"labels\": 1}] x", &tokenized),
        ("rows.json", b"{\"input_ids\": 1, \"labels\": 1}", &tokenized),
        ("rows.json", b"{\"input_ids\": [-1], \"labels\": 1}", &tokenized),
        ("rows.json", b"{\"labels\": 1}", &tokenized),
        ("squad.json", b"{\"data\": [", &squad),
        ("squad.json", b"{\"data\": 1}", &squad),
        ("squad.json", b"{\"version\": \"1\"}", &squad),
        ("squad.json", b"{\"data\": [{}]}", &squad),
        ("squad.json", no_question.as_bytes(), &squad),
        ("squad.json", no_id.as_bytes(), &squad),
        ("squad.json", no_start.as_bytes(), &squad),
        ("rows.csv", b"text,label\na\xff,b\n", &[]),
        ("rows.csv", b"text,label\na,b,c\n", &[]),
        ("rows.csv", b"", &[]),
        ("rows.parquet", b"no parquet", &parquet),
        ("rows.parquet", b"PAR1PAR1PAR1", &parquet),
        ("rows.parquet", &whole[..whole.len() / 2], &parquet),
        ("rows.parquet", &footer, &parquet),
        ("rows.csv.gz", b"no archive", &["data.train=rows.csv.gz"]),
        ("rows.csv.gz", &archive[..archive.len() / 2], &["data.train=rows.csv.gz"]),
        ("rows.csv.zst", b"no archive", &["data.train=rows.csv.zst"]),
        ("rows.csv.zst", b"\x28\xb5\x2f\xfd\x01\x02\x03", &["data.train=rows.csv.zst"]),
    ]);
}

#[test]
fn tokenizers() {
    let json = ["tokenizer.from=tok"];
    refused(&[
        ("tok/tokenizer.json", b"{", &json),
        ("tok/tokenizer.json", b"{}", &json),
        ("tok/tokenizer.json", b"[]", &json),
        ("tok/tokenizer.json", b"{\"model\": {\"type\": \"Fast\"}}", &json),
        ("tok/tokenizer.json", b"{\"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": [\"a\"]}}", &json),
        ("tok/tokenizer.json", b"{\"model\": {\"type\": \"WordLevel\", \"vocab\": {\"a\": \"b\"}, \"unk_token\": \"a\"}}", &json),
        ("tok/tokenizer.json", b"{\"normalizer\": {\"type\": \"Odd\"}, \"model\": {\"type\": \"WordLevel\", \"vocab\": {\"a\": 0}, \"unk_token\": \"a\"}}", &json),
        ("tok/tokenizer.json", b"{\"added_tokens\": [{\"id\": \"x\"}], \"model\": {\"type\": \"WordLevel\", \"vocab\": {\"a\": 0}, \"unk_token\": \"a\"}}", &json),
        ("words/tokenizer_config.json", b"{", &[]),
        ("words/tokenizer_config.json", b"[1]", &[]),
        ("words/special_tokens_map.json", b"{\"pad_token\": ", &[]),
        ("words/added_tokens.json", b"{\"a\": \"b\"}", &[]),
        ("words/vocab.txt", b"[PAD]\n\xff\n", &[]),
    ]);
    // Two files that belong together, of which one is damaged.
    for (vocabulary, merges, name) in [
        ("{", "#version: 0.2\n", "vocab.json"),
        ("{\"a\": \"b\"}", "#version: 0.2\n", "vocab.json"),
        ("{\"a\": 0}", "a\n", "tok"),
    ] {
        let folder = folder();
        write(folder.path(), "tok/vocab.json", vocabulary.as_bytes());
        write(folder.path(), "tok/merges.txt", merges.as_bytes());
        let found = failure(kiln(folder.path()).args(["plan", "config.toml", "--set", "tokenizer.from=tok"]), name);
        assert!(found.is_none(), "{}", found.unwrap());
    }
    let folder = folder();
    write(folder.path(), "tok/config.json", b"{\"model_type\": \"albert\"}");
    write(folder.path(), "tok/spiece.model", b"no model");
    let found =
        failure(kiln(folder.path()).args(["plan", "config.toml", "--set", "tokenizer.from=tok"]), "spiece.model");
    assert!(found.is_none(), "{}", found.unwrap());
}

#[test]
fn models_adapters_and_runs() {
    let trained = folder();
    let at = |name: &str| trained.path().join(name);
    let train = kiln(trained.path()).args(["train", "config.toml", "--set", "trainer.save_steps=1"]).output().unwrap();
    assert!(train.status.success(), "{}", text(&train));
    let weights = std::fs::read(at("run/model/model.safetensors")).unwrap();
    let plan = std::fs::read(at("run/plan.json")).unwrap();
    write(trained.path(), "from.toml", from("run/model").as_bytes());
    let (plans, train) = (["plan", "from.toml"], ["train", "from.toml", "--set", "run.output_dir=other"]);
    let predict = ["predict", "run", "--input", "rows.csv"];
    let header = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let cases: &[(&str, &[u8], &[&str])] = &[
        ("run/model/config.json", b"{", &plans),
        ("run/model/config.json", b"[]", &plans),
        ("run/model/config.json", b"{\"model_type\": \"bert\", \"hidden_size\": \"x\"}", &plans),
        ("run/model/config.json", b"{\"model_type\": \"bert\", \"hidden_size\": -1}", &plans),
        ("run/model/model.safetensors", b"no", &train),
        ("run/model/model.safetensors", b"no safetensors", &train),
        ("run/model/model.safetensors", &weights[..weights.len() / 2], &train),
        ("run/model/model.safetensors", &header("{\"a\": 1}"), &train),
        ("run/model/model.safetensors", &header("no JSON"), &train),
        ("run/plan.toml", b"no plan", &predict),
        ("run/plan.json", b"{", &["report", "run", "--out", "page"]),
        ("run/plan.json", &plan[..plan.len() / 2], &["report", "run", "--out", "page"]),
        ("run/steps.jsonl", b"{", &["report", "run", "--out", "page"]),
        (
            "run/checkpoints/step-000002/state.json",
            b"{",
            &["train", "config.toml", "--resume-from", "run/checkpoints/step-000002"],
        ),
    ];
    let mut failures = Vec::new();
    for (name, bytes, args) in cases {
        let kept = std::fs::read(at(name)).ok();
        write(trained.path(), name, bytes);
        failures.extend(failure(kiln(trained.path()).args(*args), name));
        match kept {
            Some(kept) => write(trained.path(), name, &kept),
            None => std::fs::remove_file(at(name)).unwrap(),
        }
        std::fs::remove_dir_all(at("other")).ok();
    }
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), cases.len(), failures.join("\n----\n"));

    // Weights in other files, and an adapter.
    let model = |name: &str, bytes: &[u8]| {
        let folder = folder();
        std::fs::create_dir_all(folder.path().join("model")).unwrap();
        std::fs::copy(fixture("bert-classification/model/config.json"), folder.path().join("model/config.json"))
            .unwrap();
        write(folder.path(), name, bytes);
        write(folder.path(), "from.toml", from("model").as_bytes());
        failure(kiln(folder.path()).args(["train", "from.toml"]), name)
    };
    for (name, bytes) in [
        ("model/pytorch_model.bin", &b"no checkpoint"[..]),
        ("model/pytorch_model.bin", b"PK\x03\x04 no zip"),
        ("model/model.safetensors.index.json", b"{"),
        ("model/model.safetensors.index.json", b"{\"weight_map\": 1}"),
    ] {
        let found = model(name, bytes);
        assert!(found.is_none(), "{}", found.unwrap());
    }
    for (name, bytes) in [
        ("adapter_config.json", &b"{"[..]),
        ("adapter_config.json", b"[]"),
        ("adapter_config.json", b"{\"peft_type\": \"LORA\", \"r\": \"x\", \"target_modules\": [\"query\"]}"),
        ("adapter_model.safetensors", b"no safetensors"),
    ] {
        let folder = folder();
        for file in ["adapter_config.json", "adapter_model.safetensors"] {
            let from = fixture("lora-bert-classification/adapter").join(file);
            std::fs::copy(from, folder.path().join(file)).unwrap();
        }
        write(folder.path(), name, bytes);
        let found = failure(kiln(folder.path()).args(["merge", ".", "--out", "merged"]), name);
        assert!(found.is_none(), "{}", found.unwrap());
    }
}
