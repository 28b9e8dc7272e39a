//! Tokenizer files: a library reads them, which was not written for files from strangers.

use std::path::Path;

use kiln::data::tokenizer::Tokenizer;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::edits::{TOKENS, edited, edits};
use crate::{cases, is_said};

const WORD_PIECES: &str = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\ngood\nbad\nfilm\n##s\n##é\n中\n";
const MERGES: &str = "#version: 0.2\nh e\nl l\nhe ll\nhell o\n";

fn byte_level() -> Value {
    json!({"h": 0, "e": 1, "l": 2, "o": 3, "he": 4, "ll": 5, "hell": 6, "hello": 7, "<|endoftext|>": 8, "Ġ": 9})
}

/// A `tokenizer.json` of each kind of model, with every part that such a file may have.
fn whole(kind: &str) -> Value {
    let added = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
               "special": true})
    };
    let common = |model: Value| {
        json!({"version": "1.0", "truncation": {"direction": "Right", "max_length": 12, "strategy": "LongestFirst", "stride": 2},
               "padding": {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": 2, "pad_id": 0,
                           "pad_type_id": 0, "pad_token": "[PAD]"},
               "added_tokens": [added(0, "[PAD]"), added(1, "[UNK]"), added(2, "[CLS]"), added(3, "[SEP]")],
               "normalizer": {"type": "Sequence", "normalizers": [
                   {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
                    "lowercase": true},
                   {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}, {"type": "NFKC"}]},
               "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                   {"type": "Split", "pattern": {"Regex": "\\s+|\\w+"}, "behavior": "Removed", "invert": false},
                   {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}]},
               "post_processor": {"type": "TemplateProcessing",
                   "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                   "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                   "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}}},
               "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
               "model": model})
    };
    match kind {
        "BPE" => common(json!({"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": byte_level(), "merges": [["h", "e"], ["l", "l"], ["he", "ll"], ["hell", "o"]]})),
        "WordPiece" => common(json!({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "good": 4, "##s": 5}})),
        "Unigram" => common(json!({"type": "Unigram", "unk_id": 1, "byte_fallback": false,
            "vocab": [["[PAD]", 0.0], ["[UNK]", -1.0], ["good", -2.0], ["s", -3.0], ["é", -4.5]]})),
        _ => common(json!({"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"[PAD]": 0, "[UNK]": 1, "good": 2}})),
    }
}

/// The texts that a tokenizer meets first: of every length, script and kind.
const TEXTS: [&str; 6] =
    ["", " ", "hello good films", "é中🦀\u{301}\u{202e}", "[CLS] [SEP] <|endoftext|>", "\0\u{1}\u{fffd}\r\n"];

/// Loads what is in `folder` and uses it for everything that Kiln does with a tokenizer.
fn used(folder: &Path) -> Result<(), TestCaseError> {
    let tokenizer = match Tokenizer::load(folder) {
        Ok(tokenizer) => tokenizer,
        Err(error) => {
            // The exit code is that of a model file.
            prop_assert_eq!(error.exit_code(), 3, "{}", error);
            return is_said(&error);
        }
    };
    for text in TEXTS {
        match tokenizer.encode(text).and_then(|ids| tokenizer.decode(&ids)) {
            Ok(_) => {}
            Err(error) => is_said(&error)?,
        }
    }
    let texts = TEXTS.map(str::to_owned);
    tokenizer.encode_batch(&texts).map_or_else(|error| is_said(&error), |_| Ok(()))?;
    tokenizer.encode_pieces(&TEXTS).map_or_else(|error| is_said(&error), |_| Ok(()))?;
    let _ = (tokenizer.vocab_size(), tokenizer.mask_id(), tokenizer.eot_id(), tokenizer.special_ids());
    let _ = (tokenizer.continuations(), tokenizer.content_hash());
    tokenizer.around().map_or_else(|error| is_said(&error), |_| Ok(()))?;
    tokenizer.to_json().map_or_else(|error| is_said(&error), |_| Ok(()))
}

/// One value somewhere in a JSON document is another, or gone.
fn another(value: &mut Value, mut at: usize, new: Option<&Value>) -> Option<usize> {
    if at == 0 {
        *value = new.cloned().unwrap_or(Value::Null);
        return None;
    }
    at -= 1;
    let mut go = |child: &mut Value| match another(child, at, new) {
        Some(left) => {
            at = left;
            false
        }
        None => true,
    };
    let done = match value {
        Value::Array(values) => values.iter_mut().any(&mut go),
        Value::Object(fields) => fields.values_mut().any(&mut go),
        _ => false,
    };
    (!done).then_some(at)
}

fn kind() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["BPE", "WordPiece", "Unigram", "WordLevel"])
}

fn json_value() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        prop::sample::select(&TOKENS[..]).prop_filter_map("no JSON", |token| serde_json::from_str(token).ok()),
        prop::sample::select(vec![
            json!("[CLS]"),
            json!(["a"]),
            json!([["a", "b"]]),
            json!({"a": 4294967295u64}),
            json!("("),
            json!("a{1000000}"),
            json!("Prepend"),
            json!("ByteFallback"),
            json!(4294967296u64),
            json!(1.5),
            json!({"Regex": "("}),
            json!(""),
        ]),
    ];
    text.boxed()
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn a_value_of_tokenizer_json_is_another(kind in kind(), changes in prop::collection::vec((0usize..150, json_value()), 1..3)) {
        let folder = tempfile::tempdir().unwrap();
        let mut whole = whole(kind);
        for (at, new) in &changes {
            another(&mut whole, *at, Some(new));
        }
        std::fs::write(folder.path().join("tokenizer.json"), whole.to_string()).unwrap();
        used(folder.path())?;
    }

    #[test]
    fn bytes_of_tokenizer_json_are_others(kind in kind(), edits in edits()) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tokenizer.json"), edited(whole(kind).to_string().as_bytes(), &edits)).unwrap();
        used(folder.path())?;
    }

    #[test]
    fn word_pieces(edits in edits(), config in edits()) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("vocab.txt"), edited(WORD_PIECES.as_bytes(), &edits)).unwrap();
        let settings = edited(br#"{"do_lower_case": false, "model_max_length": 12}"#, &config);
        std::fs::write(folder.path().join("tokenizer_config.json"), settings).unwrap();
        used(folder.path())?;
    }

    #[test]
    fn vocabulary_and_merges(edits in edits(), merges in edits()) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("vocab.json"), edited(byte_level().to_string().as_bytes(), &edits)).unwrap();
        std::fs::write(folder.path().join("merges.txt"), edited(MERGES.as_bytes(), &merges)).unwrap();
        used(folder.path())?;
    }
}

#[test]
fn whole_files_are_read() {
    for kind in ["BPE", "WordPiece", "Unigram", "WordLevel"] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tokenizer.json"), whole(kind).to_string()).unwrap();
        assert!(Tokenizer::load(folder.path()).is_ok(), "{kind}: {:?}", Tokenizer::load(folder.path()).err());
        let (mut count, mut copy) = (0, whole(kind));
        while another(&mut copy, count, Some(&Value::Null)).is_none() {
            (count, copy) = (count + 1, whole(kind));
        }
        assert!(count > 60, "{kind}: {count} values");
    }
}
