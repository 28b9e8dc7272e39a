//! `kiln plan --samples`: examples as they train. The snapshot has a table for each kind of label.

use crate::common::messages::messages;
use crate::common::{fails, kiln, succeeds};

const CONFIG: &str = r#"
[run]
output_dir = "run"
[model]
kind = "bert"
hidden_size = 8
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 8
max_position_embeddings = 16
[data]
task = "sequence-classification"
format = "jsonl"
train = ["rows.jsonl"]
[tokenizer]
from = "vocab.txt"
[trainer]
max_steps = 2
per_device_train_batch_size = 2
[device]
kind = "cpu"
"#;

/// Two rows that have a column for each task.
const ROWS: &str = r#"{"text": "a good film", "pair": "bad play", "label": "praise", "score": 4.5, "several": ["praise", "blame"], "tokens": ["a", "filmplay"], "ner_tags": ["O", "B-X"], "zero": "a film", "one": "play", "right": 1}
{"text": "a bad play\n\u001b[2J", "pair": "", "label": "blame", "score": -1, "several": [], "tokens": ["good"], "ner_tags": ["O"], "zero": "bad", "one": "good", "right": 0}
"#;

#[test]
fn examples_are_shown_as_they_train() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("config.toml", CONFIG);
    let gpt2 = CONFIG.split_once("[data]").unwrap().1;
    let model = "[model]\nkind = \"gpt2\"\nn_embd = 8\nn_layer = 1\nn_head = 2\nn_positions = 16\n";
    let gpt2 = format!("[run]\noutput_dir = \"run\"\n{model}[data]{gpt2}");
    write("gpt2.toml", &gpt2);
    write("plain.toml", &gpt2.replace("[tokenizer]\nfrom = \"vocab.txt\"\n", ""));
    write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\ngood\nbad\nfilm\nplay\n##play\n");
    write("rows.jsonl", ROWS);
    write("text.txt", &"a good film a bad play ".repeat(6));
    write(
        "tokenized.jsonl",
        "{\"input_ids\": [2, 5, 6, 0], \"attention_mask\": [1, 1, 1, 0], \"labels\": [2, -100, 6, -100]}\n",
    );
    write(
        "squad.jsonl",
        "{\"id\": \"1\", \"question\": \"good film\", \"context\": \"a bad play\", \"answers\": {\"text\": [\"bad play\"], \"answer_start\": [2]}}\n",
    );
    let messages = messages!();
    let text = ["data.format=text", "data.train=text.txt", "data.block_size=8"];
    write(
        "prompts.jsonl",
        "{\"prompt\": \"a film\", \"completion\": \"good\"}\n{\"prompt\": \"a\", \"completion\": \"bad play\"}\n",
    );
    let prompts = ["data.task=clm", "data.train=prompts.jsonl", "data.completion_column=completion"];
    let plain = ["data.format=tokenized", "data.train=tokenized.jsonl", "model.vocab_size=10"];
    let squad = ["data.task=question-answering", "data.format=squad", "data.train=squad.jsonl", "data.max_length=12"];
    let cases: [(&str, &str, &[&str]); 13] = [
        ("config.toml", "2", &["data.text_pair_column=pair"]),
        // No more than there are, those of the longer text cut.
        ("config.toml", "9", &["data.max_length=4"]),
        ("config.toml", "1", &["data.task=regression", "data.label_column=score"]),
        (
            "config.toml",
            "2",
            &["data.task=multi-label-classification", "data.label_column=several", "data.max_length=3"],
        ),
        ("config.toml", "1", &["data.task=token-classification"]),
        (
            "config.toml",
            "1",
            &["data.task=multiple-choice", "data.choice_columns=[\"zero\", \"one\"]", "data.label_column=right"],
        ),
        ("config.toml", "1", &squad),
        ("config.toml", "1", &[&text[..], &["data.task=mlm", "data.mlm_probability=0.5"]].concat()),
        ("gpt2.toml", "1", &[&text[..], &["data.task=clm"]].concat()),
        ("gpt2.toml", "1", &prompts),
        ("gpt2.toml", "1", &[&prompts[..], &["data.packing=true"]].concat()),
        ("plain.toml", "1", &[&plain[..], &["data.task=clm"]].concat()),
        ("config.toml", "1", &["data.streaming=true", "data.label_names=[\"praise\", \"blame\"]"]),
    ];
    for (config, count, set) in cases {
        let mut command = kiln(folder.path());
        command.args(["plan", config, "--samples", count]).args(set.iter().flat_map(|set| ["--set", set]));
        let says = succeeds(&mut command);
        let (plan, samples) = says.split_once("\nsample 1 of ").unwrap();
        assert!(plan.starts_with("model "), "{plan}");
        messages.add(format!("{config} --samples {count} {}", set.join(" ")), format!("sample 1 of {samples}"));
    }
    let refused = |more: &[&str], part: &str| {
        fails(kiln(folder.path()).args(["plan", "config.toml"]).args(more), 2, &[part]);
    };
    refused(&["--samples", "0"], "--samples");
    refused(&["--samples", "1", "--json"], "--json");
}
