//! Files of tokenizers, with settings and arguments that only some of them have.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};

use super::{BERT, CLASSES, Case, Change, File, GPT2, at, both, config, file, set};

/// A byte-level BPE with four special tokens and the merge of `pair`.
pub(super) fn byte_level(pair: [&str; 2]) -> Value {
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
pub(super) fn gpt2_tokenizer(more: Value) -> String {
    let mut config = json!({"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>",
                            "unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config.to_string()
}

pub(super) fn learned_tokenizers() -> Case {
    let data = "task = \"clm\"\nformat = \"text\"\ntrain = \"a.txt\"\nvalidation = \"b.txt\"\nblock_size = 8";
    let config = config(&GPT2.replace("vocab_size = 300\n", ""), data, "do_eval = true");
    let base = vec![
        at("config.toml", config.replace("from = \"tok\"", "train_vocab_size = 261")),
        at("a.txt", "the cat and a hen\nthe hat and an owl\n".repeat(9)),
        at("b.txt", "the bat\nthe mat\n".repeat(9)),
    ];
    let changes = vec![
        file("a.txt", "the rat and a pig\nthe hat and an elk\n".repeat(9)),
        file("b.txt", "the rat\nthe hat\n".repeat(9)),
        set(&["tokenizer.train_vocab_size = 262"]),
        set(&["tokenizer.train_vocab_size = 264"]),
        set(&["data.documents = \"line\""]),
        set(&["data.train = [\"a.txt\", \"b.txt\"]"]),
        set(&["data.validation = \"50%\"", "data.documents = \"line\""]),
        set(&["data.validation = \"50%\"", "data.documents = \"line\"", "trainer.seed = 5"]),
        // A run without a size takes the vocabulary of its tokenizer, and one with a size has rows
        // to spare.
        set(&["model.vocab_size = 270"]),
    ];
    Case { base, changes }
}

/// `vocab.txt` of BERT's word pieces, `words` after the special tokens.
pub(super) fn word_pieces(words: &str) -> String {
    let letters = ('a'..='z').map(String::from).chain(('a'..='z').map(|letter| format!("##{letter}")));
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].map(String::from).into_iter();
    let all = special.chain(words.split(' ').map(str::to_owned)).chain(letters);
    all.map(|piece| piece + "\n").collect()
}

pub(super) fn bert_tokenizer(more: Value) -> String {
    let mut config = json!({"tokenizer_class": "BertTokenizer"});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config.to_string()
}

/// A tokenizer of `fixtures/tokenizer_classes.json` in the folder `to`.
fn tokenizer_of(name: &str, to: &str) -> Vec<File> {
    let fixture: Value = serde_json::from_str(include_str!("../../fixtures/tokenizer_classes.json")).unwrap();
    let case = fixture["cases"].as_array().unwrap().iter().find(|case| case["name"] == name).unwrap();
    let files = case["folder"].as_object().unwrap().iter().map(|(file, key)| {
        let content = match &fixture["files"][key.as_str().unwrap()] {
            Value::String(model) if file.ends_with(".model") => BASE64_STANDARD.decode(model).unwrap(),
            Value::String(text) => text.clone().into_bytes(),
            object @ Value::Object(_) => object.to_string().into_bytes(),
            other => panic!("{name}: {file}: {other}"),
        };
        (format!("{to}/{file}"), Some(content))
    });
    files.collect()
}

/// Arguments and files that belong to one class of tokenizers or to a few.
pub(super) fn classes_of_tokenizers() -> Case {
    let text = "It rains on the CHÂTEAU, the dog. quoted <extra_id_0> <extra_id_2> sat; at";
    let mut base = vec![
        at("config.toml", config(&BERT.replace("vocab_size = 100", "vocab_size = 400"), CLASSES, "do_eval = true")),
        at("rows.csv", format!("a,label\n\"{text}\",x\nthe hat,y\n")),
        at("answers.json", {
            let answers = json!([{"text": " rains", "answer_start": 2}]);
            json!({"data": [{"context": text, "id": 1, "question": "what", "answers": answers}]})
        }),
    ];
    let of = |class: &str, to: &str| {
        let files = tokenizer_of(class, to);
        files.into_iter().filter(|(name, _)| !name.ends_with("/config.json")).collect::<Vec<_>>()
    };
    base.extend(of("AlbertTokenizer, its own files", "tok"));
    base.extend(of("DebertaV2Tokenizer, as saved", "pieces"));
    for (class, to) in [
        ("T5Tokenizer", "t5"),
        ("DebertaV2Tokenizer", "deberta"),
        ("RobertaTokenizer", "roberta"),
        ("CamembertTokenizer", "camembert"),
        ("Qwen2Tokenizer", "qwen"),
    ] {
        base.extend(of(&format!("{class}, its own files"), to));
    }
    base.extend(of("LlamaTokenizer as saved", "llama"));
    // The letter t is another one.
    let rescored = |name: &str| {
        let (_, content) = base.iter().find(|(other, _)| other == name).unwrap();
        let mut content = content.clone().unwrap();
        let piece = content.windows(4).position(|bytes| bytes == b"\x0a\x01t\x15").unwrap();
        content[piece + 2] = b'~';
        file(name, &content[..])
    };
    let argument = |class: &str, to: &str, more: Value| {
        let mut config = json!({"tokenizer_class": class});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let set: &[&str] = if to == "tok" { &[] } else { &[&format!("tokenizer.from = {to:?}")] };
        both(file(&format!("{to}/tokenizer_config.json"), config), set)
    };
    let questions = [
        "data.task = \"question-answering\"",
        "data.format = \"squad\"",
        "data.train = \"answers.json\"",
        "data.validation = \"answers.json\"",
        "tokenizer.from = \"roberta\"",
    ];
    let of_questions = |change: Change| {
        let config = String::from_utf8(base[0].1.clone().unwrap()).unwrap();
        let config = config.replace("text_column = \"a\"\nlabel_column = \"label\"", "");
        Change { files: [change.files, vec![at("config.toml", config)]].concat(), ..change }
    };
    let changes = vec![
        rescored("tok/spiece.model"),
        argument("AlbertTokenizer", "tok", json!({"keep_accents": true})),
        argument("AlbertTokenizer", "tok", json!({"do_lower_case": false})),
        set(&["tokenizer.from = \"t5\""]),
        argument("T5Tokenizer", "t5", json!({"extra_ids": 2})),
        set(&["tokenizer.from = \"deberta\""]),
        both(rescored("deberta/spm.model"), &["tokenizer.from = \"deberta\""]),
        argument("DebertaV2Tokenizer", "deberta", json!({"split_by_punct": true})),
        argument("DebertaV2Tokenizer", "pieces", json!({"unk_token": "<none>"})),
        argument("DebertaV2Tokenizer", "pieces", json!({"unk_token": "<none>", "unk_id": 4})),
        set(&["tokenizer.from = \"camembert\""]),
        both(rescored("camembert/sentencepiece.bpe.model"), &["tokenizer.from = \"camembert\""]),
        set(&["tokenizer.from = \"qwen\""]),
        argument("Qwen2Tokenizer", "qwen", json!({"add_bos_token": true, "bos_token": "t"})),
        argument("Qwen2Tokenizer", "qwen", json!({"add_eos_token": true, "eos_token": "h"})),
        // A special token within a word, behind which a text begins again.
        argument("LlamaTokenizer", "llama", json!({"legacy": true, "extra_special_tokens": ["rain"]})),
        argument("LlamaTokenizer", "llama", json!({"legacy": false, "extra_special_tokens": ["rain"]})),
        of_questions(set(&questions)),
        of_questions(both(
            file(
                "roberta/tokenizer_config.json",
                json!({"tokenizer_class": "RobertaTokenizer", "trim_offsets": false}),
            ),
            &questions,
        )),
    ];
    Case { base, changes }
}
