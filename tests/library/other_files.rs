//! The tables of names of other programs' files: each holds every name that the other program
//! itself defines (`tests/fixtures/peers.json`, written by `make_peers.py`), and the chapter of the
//! guide shows them. With `KILN_WRITE_DOCS=1` the test writes the chapter; without it, a chapter
//! that is stale fails.

use std::collections::BTreeMap;

use kiln_core::names::Treatment;
use serde::Deserialize;

const CHAPTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../src/guide/other_files.md");
const PEERS: &str = include_str!("../fixtures/peers.json");

/// Names that one library defines in a kind of file.
#[derive(Deserialize)]
struct Peer {
    /// Name and version: `peft 0.21.0`.
    source: String,
    /// The names in the library's own files of this kind.
    names: Vec<String>,
}

/// Names that the libraries define, by the file of [`kiln::guide::other_files_tables`].
fn peers() -> BTreeMap<String, Peer> {
    serde_json::from_str(PEERS).expect("peers.json is a map from a file to its names")
}

#[test]
fn every_name_that_the_other_program_defines_is_in_the_table() {
    let peers = peers();
    for table in kiln::guide::other_files_tables() {
        let peer = peers.get(table.file).unwrap_or_else(|| panic!("peers.json has no names of {}", table.file));
        assert!(!peer.names.is_empty(), "peers.json: {} has no names", table.file);
        assert!(
            peer.source.starts_with(table.source),
            "{}: the table names {}, the list {}",
            table.file,
            table.source,
            peer.source
        );
        let missing = peer.names.iter().filter(|name| table.get(name).is_none()).collect::<Vec<_>>();
        assert!(missing.is_empty(), "{}: the table lacks {missing:?}", table.file);
        let twice =
            table.names.iter().filter(|one| table.names.iter().filter(|other| other.name == one.name).count() > 1);
        assert_eq!(
            twice.map(|name| name.name).collect::<Vec<_>>(),
            Vec::<&str>::new(),
            "{}: names stand twice",
            table.file
        );
    }
    let tables = kiln::guide::other_files_tables();
    for file in peers.keys() {
        assert!(tables.iter().any(|table| table.file == file), "no table is held against the names of {file}");
    }
}

#[test]
fn the_chapter_shows_the_tables() {
    let text = std::fs::read_to_string(CHAPTER).expect("the chapter is there");
    let introduction = text.split("\n## ").next().expect("a text has a first part").trim_end();
    let mut wanted = format!("{introduction}\n");
    for table in kiln::guide::other_files_tables() {
        wanted += &format!("\n## `{}` ({})\n\n{}", table.file, table.source, table.markdown());
    }
    if std::env::var_os("KILN_WRITE_DOCS").is_some() {
        std::fs::write(CHAPTER, &wanted).expect("the chapter can be written");
    }
    let text = std::fs::read_to_string(CHAPTER).expect("the chapter is there");
    assert!(text == wanted, "{CHAPTER} is stale: KILN_WRITE_DOCS=1 cargo test --test library other_files writes it");
}

/// Kiln honours each field that changes the logits of transformers, or refuses it by its name.
#[test]
fn no_field_of_a_config_that_changes_logits_is_passed_over() {
    let found = include_str!("../fixtures/config_fields.json");
    let found: BTreeMap<String, Vec<String>> = serde_json::from_str(found).expect("a map from a file to names");
    assert_eq!(found.len(), 11);
    for (file, names) in found {
        let table = kiln::guide::other_files_tables().into_iter().find(|table| table.file == file).expect("a table");
        for name in names {
            let does = table.get(&name).unwrap_or_else(|| panic!("{file}: {name} is not in the table")).treatment;
            let passed_over = matches!(does, Treatment::Inert | Treatment::Told | Treatment::ToldUnless(_));
            assert!(!passed_over, "{file}: {name} changes the logits of transformers, and Kiln passes it over");
        }
    }
}
