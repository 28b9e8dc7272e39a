//! Folders of tokenizers and what `AutoTokenizer` of `transformers` 5.24 makes of them: every class that is implemented, from its own
//! files and from a `tokenizer.json`, every option that changes ids, and files that say one fact in two ways
//! (`tests/fixtures/make_tokenizer_classes.py`).
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::Deserialize;

use super::classes::{CLASSES, Class};
use super::*;

#[derive(Deserialize)]
struct Fixture {
    transformers: String,
    texts: Vec<String>,
    pair_texts: Vec<(String, String)>,
    long: String,
    files: BTreeMap<String, String>,
    outcomes: BTreeMap<String, Outcome>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    /// Files by name, as keys of [`Fixture::files`].
    folder: BTreeMap<String, String>,
    roles: BTreeMap<String, String>,
    tokens: usize,
    outcome: String,
}

#[derive(Deserialize)]
struct Outcome {
    ids: Vec<Vec<u32>>,
    pairs: Vec<(Vec<u32>, Vec<u8>)>,
    cut: Vec<u32>,
    decoded: Vec<String>,
}

/// What is different from `outcome`.
fn differences(fixture: &Fixture, case: &Case, tokenizer: &Tokenizer) -> Vec<String> {
    let outcome = &fixture.outcomes[&case.outcome];
    let mut found = Vec::new();
    for (text, ids) in fixture.texts.iter().zip(&outcome.ids) {
        let own = tokenizer.encode(text).unwrap();
        if own != *ids {
            found.push(format!("{text:?}: {own:?}, expected {ids:?}"));
        }
    }
    let encoder = tokenizer.row_encoder(64, RowKind::Pair, true).unwrap();
    for ((first, second), (ids, types)) in fixture.pair_texts.iter().zip(&outcome.pairs) {
        let row = encoder.encode(&[Row::of(first, Some(second))]).unwrap().remove(0);
        if (&row.ids, &row.types) != (ids, types) {
            found.push(format!("{first:?}, {second:?}: {:?} {:?}, expected {ids:?} {types:?}", row.ids, row.types));
        }
    }
    let encoder = tokenizer.row_encoder(6, RowKind::Single, true).unwrap();
    let cut = encoder.encode(&[Row::of(&fixture.long, None)]).unwrap().remove(0).ids;
    if cut != outcome.cut {
        found.push(format!("cut: {cut:?}, expected {:?}", outcome.cut));
    }
    for (ids, text) in outcome.ids.iter().zip(&outcome.decoded) {
        let own = tokenizer.decode(ids).unwrap();
        if own != *text {
            found.push(format!("text of {ids:?}: {own:?}, expected {text:?}"));
        }
    }
    let roles = tokenizer.roles().iter().cloned().collect::<BTreeMap<_, _>>();
    if roles != case.roles {
        found.push(format!("roles: {roles:?}, expected {:?}", case.roles));
    }
    if tokenizer.vocab_size() != case.tokens {
        found.push(format!("{} tokens, expected {}", tokenizer.vocab_size(), case.tokens));
    }
    found
}

#[test]
fn ids_are_those_of_auto_tokenizer() {
    let text = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tokenizer_classes.json")).unwrap();
    let fixture: Fixture = serde_json::from_slice(&text).unwrap();
    assert!(fixture.transformers.starts_with("5.24"));
    let (mut found, mut classes) = (Vec::new(), BTreeSet::new());
    for case in &fixture.cases {
        let folder = tempfile::tempdir().unwrap();
        for (file, key) in &case.folder {
            let text = &fixture.files[key];
            let bytes = match file.ends_with(".model") {
                true => BASE64_STANDARD.decode(text).unwrap(),
                false => text.clone().into_bytes(),
            };
            fs::write(folder.path().join(file), bytes).unwrap();
        }
        classes.extend(case.name.split_once(',').map(|(name, _)| name.to_owned()));
        match Tokenizer::load(folder.path()) {
            Ok(tokenizer) => {
                let of_case = differences(&fixture, case, &tokenizer);
                found.extend(of_case.into_iter().map(|found| format!("{}: {found}", case.name)));
            }
            // Transformers takes </s> for another token than the one that is listed as 2.
            Err(error) if case.name == "XLM-RoBERTa, own files, special_tokens_map beside added_tokens_decoder" => {
                let text = error.to_string();
                assert!(text.contains("the added token \"</s>\": expected the id 2 that its file states"), "{text}");
            }
            Err(error) => found.push(format!("{}: {error}", case.name)),
        }
    }
    assert!(found.is_empty(), "{} differences\n{}", found.len(), found.join("\n"));
    let missing =
        CLASSES.names.iter().filter(|entry| Class::of(entry.name).is_some_and(|class| class.kind().is_some()));
    let missing = missing.map(|entry| entry.name).filter(|name| !classes.contains(*name)).collect::<Vec<_>>();
    assert_eq!(missing, ["ElectraTokenizer"], "classes without a case");
}

#[test]
fn a_class_that_is_not_implemented_is_refused_by_its_name_whatever_lies_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("vocab.txt"), "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n").unwrap();
    fs::write(at("vocab.json"), r#"{"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}"#).unwrap();
    fs::write(at("merges.txt"), "#version: 0.2\na b\n").unwrap();
    fs::write(at("spiece.model"), "no model").unwrap();
    let refused = |name: &str| {
        let error = Tokenizer::load(folder.path()).unwrap_err();
        let text = error.to_string();
        assert!(error.exit_code() == 3 && text.contains(name) && text.contains("  help: "), "{name}: {text}");
        assert!(!Tokenizer::is_read(folder.path()));
    };
    let mut count = 0;
    for entry in CLASSES.names {
        let is_refused = matches!(entry.treatment, kiln_models::Treatment::Refused);
        assert_eq!(Class::of(entry.name).is_none(), is_refused, "{}", entry.name);
        for ending in ["", "Fast"] {
            let name = format!("{}{ending}", entry.name);
            let class = json!({"tokenizer_class": name}).to_string();
            fs::write(at("tokenizer_config.json"), &class).unwrap();
            if is_refused {
                refused(&name);
                count += 1;
            }
            fs::write(at("tokenizer_config.json"), "{}").unwrap();
            fs::write(at("config.json"), class).unwrap();
            if is_refused {
                refused(&name);
            }
            fs::remove_file(at("config.json")).unwrap();
        }
    }
    assert!(count > 100);
    fs::write(at("tokenizer_config.json"), r#"{"tokenizer_class": "MineTokenizer"}"#).unwrap();
    refused("MineTokenizer");
}
