//! Folders of tokenizers and what `AutoTokenizer` of `transformers` 5.24 makes of them: every class
//! that is implemented, from its own files and from a `tokenizer.json`, every option that changes
//! ids, and files that say one fact in two ways (`tests/fixtures/make_tokenizer_classes.py`).
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use kiln_core::error::Result;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::classes::{CLASSES, Class};
use super::*;
use crate::table::Row;

/// Parts of the names of cases in which two files contradict each other and Kiln may name both,
/// where `transformers` takes one without a word or, for `unk_token`, fails; and what the message
/// says.
const REFUSED: [(&str, &str); 10] = [
    ("added_tokens.json and the vocabulary", "that added_tokens.json states"),
    ("added_tokens.json and a gap after the vocabulary", "that added_tokens.json states"),
    ("its added_tokens and added_tokens.json", "that added_tokens.json states"),
    ("added_tokens_decoder and the vocabulary", "that tokenizer_config.json states"),
    ("another token in added_tokens_decoder", "that tokenizer_config.json states"),
    // The own files of these classes have other ids than the tokenizer.json that the case takes its
    // ids from.
    ("own files, special_tokens_map beside added_tokens_decoder", "that tokenizer_config.json states"),
    ("own files: special_tokens_map.json beside added_tokens_decoder", "that tokenizer_config.json states"),
    ("own files: added_tokens.json and a role", "that added_tokens.json states"),
    ("own files: added_tokens_decoder and a role", "that tokenizer_config.json states"),
    ("its unk_token", "unk_token = \"<n>\": expected a token of this vocabulary, as tokenizer_config.json"),
];

/// A folder at which `transformers` fails with a `TypeError` of its own.
const READ: &str = "AlbertTokenizer, tokenizer.json: its post_processor and roles";

#[derive(Deserialize)]
struct Fixture {
    transformers: String,
    texts: Vec<String>,
    pair_texts: Vec<(String, String)>,
    long: String,
    files: BTreeMap<String, Value>,
    outcomes: BTreeMap<String, Value>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    /// Files by name, as keys of [`Fixture::files`].
    folder: BTreeMap<String, String>,
    /// Types of the model, with each of which the outcome is the same.
    #[serde(default)]
    types: Vec<String>,
    /// A key of [`Fixture::outcomes`]; none where `AutoTokenizer` refuses the folder.
    outcome: Option<String>,
}

/// The entry `key` of `entries`: a list says what is different from another entry.
fn whole(entries: &BTreeMap<String, Value>, key: &str) -> Value {
    let Value::Array(change) = &entries[key] else { return entries[key].clone() };
    let (mut all, lists) =
        (whole(entries, change[0].as_str().unwrap()), change[1..].iter().map(|it| it.as_array().unwrap()));
    let [set, left_out] = lists.collect::<Vec<_>>()[..] else { panic!("{key}: expected a key and two lists") };
    for path in left_out {
        let (name, above) = path.as_array().unwrap().split_last().unwrap();
        at(&mut all, above).as_object_mut().unwrap().shift_remove(name.as_str().unwrap()).unwrap();
    }
    for path in set {
        let [above @ .., name, value] = &path.as_array().unwrap()[..] else {
            panic!("{key}: expected a path and a value")
        };
        match (at(&mut all, above), name) {
            (Value::Array(list), name) if name.as_u64() == Some(list.len() as u64) => list.push(value.clone()),
            (Value::Object(object), Value::String(name)) => drop(object.insert(name.clone(), value.clone())),
            (place, name) => *at(place, std::slice::from_ref(name)) = value.clone(),
        }
    }
    all
}

/// The place in `value` to which a path of names and numbers leads.
fn at<'a>(value: &'a mut Value, path: &[Value]) -> &'a mut Value {
    path.iter().fold(value, |value, name| match name {
        Value::String(name) => &mut value[name.as_str()],
        number => &mut value[number.as_u64().unwrap() as usize],
    })
}

/// The folder of a case.
fn folder(fixture: &Fixture, case: &Case) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (file, key) in &case.folder {
        let bytes = match whole(&fixture.files, key) {
            Value::String(text) if file.ends_with(".model") => BASE64_STANDARD.decode(text).unwrap(),
            Value::String(text) => text.into_bytes(),
            json => json.to_string().into_bytes(),
        };
        fs::write(folder.path().join(file), bytes).unwrap();
    }
    folder
}

/// All that the fixture says of a tokenizer.
fn outcome(fixture: &Fixture, folder: &Path) -> Result<Map<String, Value>> {
    let tokenizer = Tokenizer::load(folder)?;
    let mut all = Map::new();
    let ids = fixture.texts.iter().map(|text| tokenizer.encode(text)).collect::<Result<Vec<_>>>()?;
    all.extend(ids.iter().enumerate().map(|(n, ids)| (format!("ids {n}"), json!(ids))));
    let encoder = tokenizer.row_encoder(64, RowKind::Pair, true)?;
    for (n, (first, second)) in fixture.pair_texts.iter().enumerate() {
        let row = encoder.encode(&[Row::of(first, Some(second))])?.remove(0);
        all.insert(format!("pair {n}"), json!([row.ids, row.types]));
    }
    let encoder = tokenizer.row_encoder(6, RowKind::Single, true)?;
    let cut = encoder.encode(&[Row::of(&fixture.long, None)])?.remove(0).ids;
    all.insert("cut".into(), json!(cut));
    for (n, ids) in ids.iter().take(4).enumerate() {
        all.insert(format!("decoded {n}"), json!(tokenizer.decode(ids)?));
    }
    all.extend(tokenizer.roles().iter().map(|(role, token)| (role.clone(), json!(token))));
    all.insert("tokens".into(), json!(tokenizer.vocab_size()));
    Ok(all)
}

/// Differences between two outcomes.
fn differences(own: &Map<String, Value>, expected: &Map<String, Value>) -> Vec<String> {
    let names = own.keys().chain(expected.keys()).collect::<BTreeSet<_>>();
    let differ = names.into_iter().filter(|name| own.get(*name) != expected.get(*name));
    let shown = |value: Option<&Value>| value.map_or("none".into(), Value::to_string);
    differ.map(|name| format!("{name}: {}, expected {}", shown(own.get(name)), shown(expected.get(name)))).collect()
}

/// Differences between Kiln and `AutoTokenizer` for a folder of `case`.
fn disagreements(fixture: &Fixture, case: &Case, folder: &Path) -> Vec<String> {
    let refusal = REFUSED.iter().find(|(part, _)| case.name.contains(part));
    match (outcome(fixture, folder), &case.outcome) {
        (Ok(own), Some(key)) => {
            let of_case = differences(&own, whole(&fixture.outcomes, key).as_object().unwrap());
            of_case.into_iter().map(|found| format!("{}: {found}", case.name)).collect()
        }
        (Ok(_), None) if case.name == READ => Vec::new(),
        (Ok(_), None) => vec![format!("{}: AutoTokenizer refuses the folder", case.name)],
        (Err(error), _) => {
            let text = error.to_string();
            let is_told = refusal.is_some_and(|(_, says)| text.contains(says));
            let is_right = is_told && error.exit_code() == 3 && text.contains("  help: ");
            if is_right { Vec::new() } else { vec![format!("{}: {text}", case.name)] }
        }
    }
}

#[test]
fn ids_are_those_of_auto_tokenizer() {
    let text = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/tokenizer_classes.json")).unwrap();
    let fixture: Fixture = serde_json::from_slice(&text).unwrap();
    assert!(fixture.transformers.starts_with("5.24"));
    let mut found = Vec::new();
    // The cases of each class about two sources of one fact.
    let mut pairs = BTreeMap::<&str, BTreeSet<&str>>::new();
    for case in &fixture.cases {
        if let Some((class, pair)) = case.name.split_once(", ").filter(|(_, pair)| pair.contains(": ")) {
            pairs.entry(class).or_default().insert(pair);
        }
        let folder = folder(&fixture, case);
        for config in
            case.types.iter().map(|kind| Some(json!({"model_type": kind}))).chain(case.types.is_empty().then_some(None))
        {
            if let Some(config) = config {
                fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
            }
            found.extend(disagreements(&fixture, case, folder.path()));
        }
    }
    assert!(found.is_empty(), "{} differences\n{}", found.len(), found.join("\n"));
    let classes = CLASSES.names.iter().filter(|entry| Class::of(entry.name).is_some()).map(|entry| entry.name);
    for class in classes {
        let of_class = |name: &str| name.split(' ').next().is_some_and(|name| name.trim_end_matches("Fast") == class);
        let pairs = pairs.iter().filter(|(name, _)| of_class(name)).flat_map(|(_, pairs)| pairs).collect::<Vec<_>>();
        let of_json = pairs.iter().filter(|pair| pair.starts_with("tokenizer.json")).count();
        let is_whole = of_json >= 32
            && (Class::of(class).is_none_or(|class| class.kind().is_none() || !class.has_other_files())
                || pairs.len() - of_json >= 15);
        assert!(is_whole, "{class}: {of_json} of {} pairs are about tokenizer.json", pairs.len());
    }
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
        let is_refused = entry.is_refused();
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
