//! Files of a tokenizer with one or several values spoiled: whatever becomes of them, it is an
//! error or a tokenizer that can be used, and never a panic. The long form is run by hand:
//! `KILN_MUTATIONS=20000 cargo test -p kiln-data --lib mutations::at_random -- --ignored`.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use kiln_core::error::Result;
use kiln_core::model_config::{ModelConfig, ModelType};
use serde_json::{Map, Value, json};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use crate::masking::Masking;
use crate::squad::Question;
use crate::table::Row;
use crate::tokenizer::*;

/// Number of entries that are replaced in a long object. The entries after them stay: they are read
/// in the same way.
const ENTRIES: usize = 4;

/// Values in the place of others.
fn spoils() -> Vec<Value> {
    let long = "é".repeat(300);
    vec![
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(1),
        json!(-1),
        json!(4_294_967_295u32),
        json!(4_294_967_296u64),
        json!(u64::MAX),
        json!(1e308),
        json!(0.5),
        json!(""),
        json!("x"),
        json!(long),
        json!("("),
        json!([]),
        json!([0]),
        json!(["a", "b"]),
        json!({}),
        json!({"type": "x"}),
        json!({"": 0}),
    ]
}

/// Tokenizers of every kind of part that the library has.
fn samples() -> Vec<(&'static str, Value)> {
    let added = |tokens: &[(&str, u32)]| {
        let token = |(content, id): &(&str, u32)| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        };
        Value::from(tokens.iter().map(token).collect::<Vec<_>>())
    };
    let whole = |tokens: &[(&str, u32)], parts: [Value; 5]| {
        let [normalizer, pre_tokenizer, post_processor, decoder, model] = parts;
        json!({"version": "1.0", "truncation": {"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0},
               "padding": {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
                           "pad_type_id": 0, "pad_token": "[PAD]"},
               "added_tokens": added(tokens), "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
               "post_processor": post_processor, "decoder": decoder, "model": model})
    };
    let byte_level =
        || json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let alphabet = || ByteLevel::alphabet().into_iter().collect::<BTreeSet<_>>();
    let bpe = |special: &[&str]| {
        let tokens = special.iter().map(ToString::to_string).chain(alphabet().into_iter().map(String::from));
        let tokens = tokens.chain(["he", "hel", "Ġw"].map(String::from));
        let vocab = tokens.zip(0..).map(|(token, id)| (token, Value::from(id))).collect::<Map<_, _>>();
        json!({"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
               "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
               "vocab": vocab, "merges": [["h", "e"], ["he", "l"], ["Ġ", "w"]]})
    };
    let pieces = json!({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "hello": 5, "wor": 6, "##ld": 7});
    let bert = [("[PAD]", 0), ("[UNK]", 1), ("[CLS]", 2), ("[SEP]", 3), ("[MASK]", 4)];
    let template = json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                   {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
        "pair": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                 {"SpecialToken": {"id": "[SEP]", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}},
                 {"SpecialToken": {"id": "[SEP]", "type_id": 1}}],
        "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                           "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}});
    let sequence = |name: &str, parts: Value| json!({"type": "Sequence", name: parts});
    vec![
        (
            "byte-level BPE",
            whole(&[(END_OF_TEXT, 0)], [json!(null), byte_level(), byte_level(), byte_level(), bpe(&[END_OF_TEXT])]),
        ),
        (
            "RoBERTa",
            whole(
                &[("<s>", 0), ("<pad>", 1), ("</s>", 2), ("<mask>", 3)],
                [
                    json!(null),
                    byte_level(),
                    json!({"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": true,
                           "add_prefix_space": false}),
                    byte_level(),
                    bpe(&["<s>", "<pad>", "</s>", "<mask>"]),
                ],
            ),
        ),
        (
            "BERT",
            whole(
                &bert,
                [
                    json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                           "strip_accents": null, "lowercase": true}),
                    json!({"type": "BertPreTokenizer"}),
                    json!({"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}),
                    json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
                    json!({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                           "max_input_chars_per_word": 100, "vocab": pieces}),
                ],
            ),
        ),
        (
            "sequences of parts",
            whole(
                &bert,
                [
                    sequence(
                        "normalizers",
                        json!([{"type": "NFKC"}, {"type": "Lowercase"}, {"type": "StripAccents"},
                               {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "},
                               {"type": "Replace", "pattern": {"String": "``"}, "content": "\""},
                               {"type": "Prepend", "prepend": "▁"},
                               {"type": "Strip", "strip_left": true, "strip_right": true}]),
                    ),
                    sequence(
                        "pretokenizers",
                        json!([{"type": "Split", "pattern": {"Regex": " ?\\p{L}+| ?\\p{N}+|\\s+"}, "behavior": "Isolated",
                                "invert": false},
                               {"type": "Whitespace"}, {"type": "Punctuation", "behavior": "Isolated"},
                               {"type": "Digits", "individual_digits": true},
                               {"type": "CharDelimiterSplit", "delimiter": "-"},
                               {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
                               {"type": "FixedLength", "length": 5}]),
                    ),
                    template.clone(),
                    sequence(
                        "decoders",
                        json!([{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
                               {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                               {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0},
                               {"type": "CTC", "pad_token": "[PAD]", "word_delimiter_token": "|", "cleanup": true}]),
                    ),
                    json!({"type": "WordLevel", "unk_token": "[UNK]", "vocab": pieces}),
                ],
            ),
        ),
        (
            "Unigram",
            whole(
                &[("[CLS]", 2), ("[SEP]", 3)],
                [
                    json!({"type": "Prepend", "prepend": "▁"}),
                    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
                    sequence("processors", json!([template, byte_level()])),
                    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
                    json!({"type": "Unigram", "unk_id": 0, "byte_fallback": false,
                           "vocab": [["<unk>", 0.0], ["▁", -1.0], ["[CLS]", -2.0], ["[SEP]", -2.0], ["hello", -2.5]]}),
                ],
            ),
        ),
    ]
}

/// `tokenizer_config.json` beside them, with the things that Kiln reads of it.
fn config() -> Value {
    json!({"tokenizer_class": "BertTokenizer", "do_lower_case": true, "strip_accents": null, "add_prefix_space": false,
           "tokenize_chinese_chars": true, "truncation_side": "left", "model_max_length": 16, "mask_token": "[MASK]",
           "model_input_names": ["input_ids", "attention_mask"], "pad_token": "[PAD]", "eos_token": {"content": "</s>", "lstrip": false},
           "additional_special_tokens": ["<extra>"], "extra_special_tokens": {"image_token": "<image>"},
           "added_tokens_decoder": {"1": {"content": "[UNK]", "special": true, "normalized": false}}})
}

/// The place of every value in `value`, as keys and indices from the top.
fn places(value: &Value) -> Vec<Vec<String>> {
    let children: Vec<(String, &Value)> = match value {
        Value::Object(map) => {
            map.iter().take(ENTRIES.max(16 - map.len().min(12))).map(|(k, v)| (k.clone(), v)).collect()
        }
        Value::Array(list) => list.iter().take(8).enumerate().map(|(i, v)| (i.to_string(), v)).collect(),
        _ => Vec::new(),
    };
    let below = children.into_iter().flat_map(|(key, child)| {
        places(child).into_iter().map(move |place| std::iter::once(key.clone()).chain(place).collect())
    });
    std::iter::once(Vec::new()).chain(below).collect()
}

/// Every place of `value` with every third of the values that may stand there, another third at the
/// next place: all of them together take minutes on a small machine.
fn all_spoiled(value: &Value) -> Vec<(Vec<String>, Option<Value>)> {
    let by = || spoils().into_iter().map(Some).chain([None]).enumerate();
    let each = |(n, place): (usize, Vec<String>)| {
        by().filter(move |(index, _)| (index + n) % 3 == 0).map(move |(_, by)| (place.clone(), by))
    };
    places(value).into_iter().enumerate().flat_map(each).collect()
}

/// `value` with what is at `place` replaced, or taken away.
fn spoiled(value: &Value, place: &[String], by: Option<&Value>) -> Value {
    let mut value = value.clone();
    let Some((last, above)) = place.split_last() else { return by.cloned().unwrap_or_default() };
    let mut holder = &mut value;
    for key in above {
        holder = match holder {
            Value::Object(map) => match map.get_mut(key) {
                Some(child) => child,
                None => return value,
            },
            Value::Array(list) => match key.parse::<usize>().ok().and_then(|index| list.get_mut(index)) {
                Some(child) => child,
                None => return value,
            },
            _ => return value,
        };
    }
    match (holder, by) {
        (Value::Object(map), Some(by)) => drop(map.insert(last.clone(), by.clone())),
        (Value::Object(map), None) => drop(map.shift_remove(last)),
        (Value::Array(list), by) => {
            if let Some(index) = last.parse::<usize>().ok().filter(|index| *index < list.len()) {
                match by {
                    Some(by) => list[index] = by.clone(),
                    None => drop(list.remove(index)),
                }
            }
        }
        _ => {}
    }
    value
}

/// The outcome for a folder.
#[derive(Debug, Default)]
struct Count {
    tries: usize,
    usable: usize,
    refused: usize,
    /// Panics of the library that became errors.
    caught: usize,
}

/// Loads the tokenizer in `folder` and does everything with it that a run does.
fn use_all(folder: &Path) -> Result<()> {
    let tokenizer = Tokenizer::load(folder)?;
    let texts = ["", "Hello world, 你好 naïve 123 -- [MASK] <s>x</s>", "\u{0}\u{feff} é<|endoftext|>\n"];
    let mut ids = Vec::new();
    for text in texts {
        ids.extend(tokenizer.encode(text)?);
    }
    tokenizer.encode_pieces(&texts)?;
    tokenizer.encode_batch(&texts.map(String::from))?;
    tokenizer.decode(&ids)?;
    tokenizer.decode(&[0, 3, u32::MAX])?;
    for pairs in [false, true] {
        let encoder = tokenizer.row_encoder(9, if pairs { RowKind::Pair } else { RowKind::Single }, pairs)?;
        encoder.encode(&[Row::of(texts[1], pairs.then_some(texts[2])), Row::of("a", pairs.then_some("b"))])?;
    }
    let question = Question {
        id: "1".into(),
        text: "who?".into(),
        context: texts[1].into(),
        answers: Vec::new(),
        may_be_unanswerable: false,
    };
    // A question may leave no room for its context, which is an error of its own.
    let windows = tokenizer.window_encoder(24, 4, true).and_then(|encoder| encoder.windows(0, &question));
    if let Err(error) = windows
        && error.to_string().contains("failed on it")
    {
        return Err(error);
    }
    for whole_words in [false, true] {
        let _ = Masking::new(&tokenizer, 0.15, whole_words);
    }
    for kind in [ModelType::Gpt2, ModelType::Bert, ModelType::Roberta] {
        let size = if kind == ModelType::Gpt2 { "small" } else { "base" };
        tokenizer.files(&ModelConfig::preset(kind, size).unwrap(), None)?;
    }
    assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()), "an id above the vocabulary");
    Ok(())
}

fn try_one(folder: &Path, tokenizer: &Value, config: &Value, what: &dyn std::fmt::Display, count: &mut Count) {
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
    count.tries += 1;
    let done = catch_unwind(AssertUnwindSafe(|| use_all(folder)));
    match done.unwrap_or_else(|_| panic!("panic with {what}\n{tokenizer}\n{config}")) {
        Ok(()) => count.usable += 1,
        Err(error) => {
            assert!(matches!(error.exit_code(), 2 | 3), "{what}: {error}");
            count.refused += 1;
            if error.to_string().contains("failed on it") {
                count.caught += 1;
            }
        }
    }
}

#[test]
fn no_value_in_a_tokenizers_files_makes_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let mut count = Count::default();
    for (name, sample) in samples() {
        fs::write(folder.path().join("tokenizer.json"), sample.to_string()).unwrap();
        fs::write(folder.path().join("tokenizer_config.json"), "{}").unwrap();
        use_all(folder.path()).unwrap_or_else(|error| panic!("{name} is whole: {error}"));
        let before = count.usable;
        for (place, by) in all_spoiled(&sample) {
            let what = format!("{name}: {} = {by:?}", place.join("/"));
            try_one(folder.path(), &spoiled(&sample, &place, by.as_ref()), &json!({}), &what, &mut count);
        }
        assert!(count.usable > before, "{name}: some values do no harm");
    }
    let (_, sample) = samples().swap_remove(2);
    for (place, by) in all_spoiled(&config()) {
        let what = format!("tokenizer_config.json: {} = {by:?}", place.join("/"));
        try_one(folder.path(), &sample, &spoiled(&config(), &place, by.as_ref()), &what, &mut count);
    }
    assert!(count.tries > 2000 && count.caught > 0, "{count:?}");
}

#[test]
#[ignore = "run by hand, for as many cases as KILN_MUTATIONS says"]
fn at_random() {
    let cases: usize = std::env::var("KILN_MUTATIONS").map_or(2000, |count| count.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let (samples, spoils, mut count, mut state) = (samples(), spoils(), Count::default(), 1u64);
    let mut draw = |below: usize| {
        // Knuth's MMIX generator: the high bits are good enough to choose by.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for case in 0..cases {
        let (name, mut tokenizer) = samples[draw(samples.len())].clone();
        let (mut config, mut what) = (if draw(4) == 0 { config() } else { json!({}) }, format!("case {case}, {name}"));
        for _ in 0..1 + draw(4) {
            let target = if draw(5) == 0 { &mut config } else { &mut tokenizer };
            let all = places(target);
            let place = &all[draw(all.len())];
            // Values from elsewhere in the samples, too: they have the right type more often.
            let by = match draw(3) {
                0 => None,
                1 => Some(spoils[draw(spoils.len())].clone()),
                _ => {
                    let (_, other) = &samples[draw(samples.len())];
                    let all = places(other);
                    let pointer: String = all[draw(all.len())]
                        .iter()
                        .map(|key| format!("/{}", key.replace('~', "~0").replace('/', "~1")))
                        .collect();
                    other.pointer(&pointer).cloned()
                }
            };
            what += &format!(
                "; {} = {}",
                place.join("/"),
                by.as_ref().map_or("nothing".into(), |by| by.to_string().chars().take(60).collect::<String>())
            );
            *target = spoiled(target, place, by.as_ref());
        }
        try_one(folder.path(), &tokenizer, &config, &what, &mut count);
    }
    assert!(count.usable > 0 && count.refused > 0 && count.tries == cases, "{count:?}");
}
