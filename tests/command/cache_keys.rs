//! What a run keeps in the cache is what it would make anew: every setting and every file that can change an example is changed,
//! one after the other, and a run with a warm cache is compared with one whose cache is empty.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::common::{json as read_json, kiln, rows, succeeds};

/// A change of a file: its name and what it holds then.
type File<'a> = (&'a str, String);

/// One thing that is different: files, and settings for `--set`.
struct Change<'a> {
    name: &'a str,
    files: Vec<File<'a>>,
    settings: Vec<String>,
}

fn file<'a>(name: &'a str, content: impl ToString) -> Change<'a> {
    Change { name, files: vec![(name, content.to_string())], settings: Vec::new() }
}

fn setting(value: &str) -> Change<'_> {
    Change { name: value, files: Vec::new(), settings: vec![value.to_owned()] }
}

/// Losses of a run in `folder` with the cache `cache`, and the digest of its training data.
fn outcome(folder: &Path, cache: &str, settings: &[String]) -> String {
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
    json!([losses, digest]).to_string()
}

/// Tries every change of a run whose files are `base`, each alone.
fn tried(base: &[File<'_>], changes: &[Change<'_>]) {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let write = |(name, content): &File<'_>| {
        fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
        fs::write(folder.join(name), content).unwrap();
    };
    base.iter().for_each(write);
    let first = outcome(folder, "kept", &[]);
    assert_eq!(outcome(folder, "kept", &[]), first, "the cache gives what was kept");
    let (mut seen, mut silent) = (BTreeSet::from([first.clone()]), Vec::new());
    for (index, change) in changes.iter().enumerate() {
        change.files.iter().for_each(write);
        let kept = outcome(folder, "kept", &change.settings);
        let fresh = outcome(folder, &format!("fresh-{index}"), &change.settings);
        assert_eq!(kept, fresh, "{}: another outcome from the cache than without", change.name);
        if !seen.insert(fresh) {
            silent.push(change.name);
        }
        for (name, _) in &change.files {
            match base.iter().find(|(other, _)| other == name) {
                Some(before) => write(before),
                None => fs::remove_file(folder.join(name)).unwrap(),
            }
        }
    }
    assert_eq!(outcome(folder, "kept", &[]), first, "as it was again");
    assert!(silent.is_empty(), "these change nothing: {silent:?}");
}

fn config(model: &str, data: &str, trainer: &str) -> String {
    format!(
        "[run]\noutput_dir = \"run\"\non_existing = \"overwrite\"\n[model]\n{model}\n[tokenizer]\nfrom = \"tok\"\n[data]\n{data}\n\
         sampler = \"sequential\"\n[trainer]\nmax_steps = 1\nlogging_steps = 1\nlearning_rate = 1e-9\n{trainer}\n[device]\nkind = \"cpu\"\n"
    )
}

const GPT2: &str = "kind = \"gpt2\"\nn_layer = 1\nn_head = 1\nn_embd = 8\nn_positions = 48\nvocab_size = 300\nresid_pdrop = 0.0\n\
                    embd_pdrop = 0.0\nattn_pdrop = 0.0\ninitializer_range = 0.5";
const BERT: &str = "kind = \"bert\"\nnum_hidden_layers = 1\nnum_attention_heads = 1\nhidden_size = 8\nintermediate_size = 8\n\
                    max_position_embeddings = 48\nvocab_size = 100\nhidden_dropout_prob = 0.0\nattention_probs_dropout_prob = 0.0\n\
                    initializer_range = 0.5";

/// A byte-level BPE with four special tokens and the merge of `pair`.
fn byte_level(pair: [&str; 2]) -> Value {
    let special = ["<|endoftext|>", "<one>", "<two>", "<three>"];
    let printable = ('!'..='~').chain('¡'..='¬').chain('®'..='ÿ');
    let bytes = printable.chain((0x100..0x144).filter_map(char::from_u32)).map(String::from);
    let tokens = special.map(String::from).into_iter().chain(bytes).chain([pair.concat()]);
    let vocab = tokens.zip(0..).map(|(token, id)| (token, Value::from(id))).collect::<serde_json::Map<_, _>>();
    let added = special.iter().zip(0..).map(|(token, id)| {
        json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})
    });
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(), "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": [pair]}
    })
}

/// `tokenizer_config.json` of GPT-2's class with `more` over it.
fn gpt2_tokenizer(more: Value) -> String {
    let mut config = json!({"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>",
                            "unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config.to_string()
}

const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }}\
                        {{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{{ unk_token }}{{ pad_token }}{{ image_token }}{% endif %}{% endfor %}";

#[test]
fn conversations() {
    let rows = |word: &str| {
        let messages =
            json!([{"role": "user", "content": word}, {"role": "assistant", "content": "yes, the end of it"}]);
        let row = json!({"messages": messages, "other": [{"role": "assistant", "content": "other"}]});
        row.to_string() + "\n"
    };
    let data = "task = \"clm\"\nformat = \"jsonl\"\ntrain = \"rows.jsonl\"\nvalidation = \"rows.jsonl\"\nmessages_column = \"messages\"";
    let base = [
        ("config.toml", config(GPT2, data, "do_eval = true")),
        ("rows.jsonl", rows("hi")),
        ("other.jsonl", rows("ho")),
        ("other.jinja", TEMPLATE.replace("m.role }}: ", "m.role }}= ")),
        ("tok/tokenizer.json", byte_level(["t", "h"]).to_string()),
        ("tok/tokenizer_config.json", gpt2_tokenizer(json!({}))),
        ("tok/chat_template.jinja", TEMPLATE.to_owned()),
    ];
    let tokenizer = |more: Value| file("tok/tokenizer_config.json", gpt2_tokenizer(more));
    let mut changes = vec![
        file("rows.jsonl", rows("ha")),
        file("tok/chat_template.jinja", TEMPLATE.replace("m.role }}: ", "m.role }}; ")),
        file("tok/tokenizer.json", byte_level(["h", "e"])),
        file("tok/special_tokens_map.json", json!({"bos_token": "<three>", "pad_token": "<two>"})),
        file("tok/added_tokens.json", json!({"end": 261})),
        tokenizer(json!({"bos_token": "<one>"})),
        tokenizer(json!({"bos_token": "<two>"})),
        tokenizer(json!({"eos_token": "<one>"})),
        tokenizer(json!({"unk_token": "<one>"})),
        tokenizer(json!({"pad_token": "<two>"})),
        tokenizer(json!({"image_token": "<three>"})),
        tokenizer(json!({"extra_special_tokens": {"image_token": "<one>"}})),
        tokenizer(json!({"extra_special_tokens": ["the"]})),
        tokenizer(json!({"split_special_tokens": true})),
        tokenizer(json!({"add_prefix_space": true})),
        tokenizer(json!({"tokenizer_class": "OpenAIGPTTokenizer"})),
        tokenizer(json!({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": null})),
    ];
    for value in [
        "data.messages_column = \"other\"",
        "data.chat_template_path = \"other.jinja\"",
        "data.assistant_only_loss = true",
        "data.max_length = 20",
        "data.train = \"other.jsonl\"",
        "data.validation = \"other.jsonl\"",
    ] {
        changes.push(setting(value));
    }
    tried(&base, &changes);
}

#[test]
fn texts_and_completions() {
    let data = "task = \"clm\"\nformat = \"text\"\ntrain = \"a.txt\"\nvalidation = \"b.txt\"\nblock_size = 8";
    let base = [
        ("config.toml", config(GPT2, data, "do_eval = true")),
        ("a.txt", "the cat\n\nthe hat\n".repeat(9)),
        ("b.txt", "the bat\n\nthe mat\n".repeat(9)),
        ("tok/tokenizer.json", byte_level(["t", "h"]).to_string()),
        ("tok/tokenizer_config.json", gpt2_tokenizer(json!({}))),
    ];
    let learned = |size: usize| {
        let config = config(&GPT2.replace("300", "270"), data, "do_eval = true");
        file("config.toml", config.replace("from = \"tok\"", &format!("train_vocab_size = {size}")))
    };
    tried(
        &base,
        &[
            file("a.txt", "the rat\n\nthe hat\n".repeat(9)),
            file("b.txt", "the rat\n\nthe hat\n".repeat(9)),
            file("tok/tokenizer.json", byte_level(["h", "e"])),
            file("tok/tokenizer_config.json", gpt2_tokenizer(json!({"eos_token": "<one>"}))),
            file("tok/tokenizer_config.json", gpt2_tokenizer(json!({"add_prefix_space": true}))),
            file("tok/tokenizer_config.json", gpt2_tokenizer(json!({"additional_special_tokens": ["the"]}))),
            setting("data.block_size = 9"),
            setting("data.documents = \"line\""),
            setting("data.document_end = \"none\""),
            setting("data.train = \"b.txt\""),
            learned(262),
            learned(264),
        ],
    );
}

/// `vocab.txt` of BERT's word pieces, `words` after the special tokens.
fn word_pieces(words: &str) -> String {
    let letters = ('a'..='z').map(String::from).chain(('a'..='z').map(|letter| format!("##{letter}")));
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].map(String::from).into_iter();
    let all = special.chain(words.split(' ').map(str::to_owned)).chain(letters);
    all.map(|piece| piece + "\n").collect()
}

fn bert_tokenizer(more: Value) -> String {
    let mut config = json!({"tokenizer_class": "BertTokenizer"});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config.to_string()
}

#[test]
fn rows_of_tables() {
    let table = |first: &str| {
        let rows = ["die Öfen 中文,gut,good,bad\nSchlecht [end]", "rain,weg,bad,good\nnett", "so,ja,good,none\n"];
        format!("a,b,c,label,other\n{first},{}", rows.join(","))
    };
    let words = |tag: &str| {
        json!({"tokens": ["The", "Öfen"], "tags": [tag, "O"], "others": ["O", "B"]}).to_string()
            + "\n"
            + &json!({"tokens": ["a"], "tags": ["O"], "others": ["B"]}).to_string()
            + "\n"
    };
    let data = "task = \"sequence-classification\"\nformat = \"csv\"\ntrain = \"rows.csv\"\nvalidation = \"rows.csv\"\n\
                text_column = \"a\"\nlabel_column = \"label\"";
    let base = [
        ("config.toml", config(BERT, data, "do_eval = true")),
        ("rows.csv", table("Sehr gute Filme")),
        ("other.csv", table("Gute Filme")),
        ("words.jsonl", words("B")),
        ("tok/vocab.txt", word_pieces("gute film the")),
        ("tok/tokenizer_config.json", bert_tokenizer(json!({}))),
    ];
    let tokenizer = |more: Value| file("tok/tokenizer_config.json", bert_tokenizer(more));
    let with = |settings: &'static [&'static str]| Change {
        name: settings[settings.len() - 1],
        files: Vec::new(),
        settings: settings.iter().map(|one| (*one).to_owned()).collect(),
    };
    tried(
        &base,
        &[
            file("rows.csv", table("Nette Filme")),
            file("rows.csv", table("Sehr gute Filme").replace("gut,good", "gut,bad").replace("weg,bad", "weg,good")),
            file("tok/vocab.txt", word_pieces("film gute the")),
            file("tok/added_tokens.json", json!({"[end]": 60})),
            file("tok/special_tokens_map.json", json!({"cls_token": "[MASK]"})),
            tokenizer(json!({"do_lower_case": false})),
            tokenizer(json!({"strip_accents": false, "do_lower_case": false, "unk_token": "[MASK]"})),
            tokenizer(json!({"truncation_side": "left", "cls_token": "[PAD]"})),
            tokenizer(json!({"sep_token": "[MASK]"})),
            tokenizer(
                json!({"added_tokens_decoder": {"60": {"content": "Filme", "special": false, "normalized": false}}}),
            ),
            tokenizer(json!({"additional_special_tokens": ["gut"]})),
            with(&["data.text_column = \"c\""]),
            with(&["data.text_pair_column = \"b\""]),
            with(&["data.label_column = \"other\""]),
            with(&["data.label_names = [\"good\", \"bad\", \"none\"]"]),
            with(&["data.train = \"other.csv\""]),
            with(&["data.validation = \"other.csv\""]),
            with(&["data.max_length = 5"]),
            with(&["model.type_vocab_size = 1", "data.text_pair_column = \"b\""]),
            with(&["data.text_pair_column = \"b\"", "data.max_length = 9"]),
            with(&[
                "data.task = \"token-classification\"",
                "data.format = \"jsonl\"",
                "data.train = \"words.jsonl\"",
                "data.validation = \"words.jsonl\"",
                "data.text_column = \"tokens\"",
                "data.label_column = \"tags\"",
            ]),
            with(&[
                "data.task = \"token-classification\"",
                "data.format = \"jsonl\"",
                "data.train = \"words.jsonl\"",
                "data.validation = \"words.jsonl\"",
                "data.text_column = \"tokens\"",
                "data.label_column = \"others\"",
            ]),
        ],
    );
}

#[test]
fn windows_of_questions() {
    let rows = |answer: &str| {
        let context = "the cat sat on a mat and the dog sat on a hat, all day long";
        let question = |id: &str, answer: &str| {
            let answers = json!([{"text": answer, "answer_start": context.find(answer).unwrap()}]);
            json!({"id": id, "question": "who sat there", "answers": answers})
        };
        let questions = json!([question("1", answer), question("2", "cat")]);
        json!({"version": "1.1", "data": [{"title": "", "paragraphs": [{"context": context, "qas": questions}]}]})
            .to_string()
    };
    let data = "task = \"question-answering\"\nformat = \"squad\"\ntrain = \"q.json\"\nvalidation = \"q.json\"\nmax_length = 24\n\
                doc_stride = 4";
    let base = [
        ("config.toml", config(BERT, data, "do_eval = true")),
        ("q.json", rows("dog")),
        ("other.json", rows("hat")),
        ("tok/vocab.txt", word_pieces("cat sat mat")),
        ("tok/tokenizer_config.json", bert_tokenizer(json!({}))),
    ];
    tried(
        &base,
        &[
            file("q.json", rows("mat")),
            file("tok/vocab.txt", word_pieces("cat mat sat")),
            file("tok/tokenizer_config.json", bert_tokenizer(json!({"sep_token": "[MASK]"}))),
            file("tok/tokenizer_config.json", bert_tokenizer(json!({"additional_special_tokens": ["sat on"]}))),
            setting("data.max_length = 28"),
            setting("data.doc_stride = 6"),
            setting("data.train = \"other.json\""),
            setting("model.type_vocab_size = 1"),
        ],
    );
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
        fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
        fs::write(folder.join(name), content).unwrap();
    }
    let runs = (0..3).map(|_| outcome(folder, "kept", &[])).collect::<BTreeSet<_>>();
    assert_eq!(runs.len(), 3, "each run has the microseconds of its own");
    assert!(!folder.join("kept/rows").exists() || fs::read_dir(folder.join("kept/rows")).unwrap().next().is_none());
}
