//! Files of rows: text, CSV, TSV, JSON lines, parquet, SQuAD and rows of ids.

use std::ops::ControlFlow;
use std::path::Path;

use kiln::config::Task;
use kiln::config::{DataFormat, Documents};
use kiln::data::corpus::Corpus;
use kiln::data::squad;
use kiln::data::table::{Columns, Table};
use kiln::data::tokenized::TokenizedData;
use kiln::{Error, Result};
use proptest::prelude::*;

use crate::edits::{edited, edits};
use crate::{cases, is_said};

const CSV: &str = "text,pair,label\n\"a, \"\"b\"\"\nc\",d,1\nplain,pair,0\n\"x\",,2\n";
const TSV: &str = "label\ttext\tpair\n1\tone \"text\t two\n0\tanother\t\n";
const JSONL: &str =
    "{\"text\": \"a b\", \"pair\": \"c\", \"label\": 1}\n{\"label\": 0, \"pair\": null, \"text\": \"\\u00e9\"}\n\n";
const TEXT: &str = "A line.\n\n  Another, of 中文 and é.\r\nThe last one";
const IDS: &str = "{\"input_ids\": [1, 2, 3], \"attention_mask\": [1, 1, 0], \"token_type_ids\": [0, 0, 1], \"labels\": [1, -100, 3]}\n\
                   {\"input_ids\": [4], \"attention_mask\": [1], \"token_type_ids\": [0], \"labels\": [2]}\n";
const SQUAD: &str = r#"{"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": "The é is in the house.", "qas": [
    {"id": "1", "question": "Where?", "answers": [{"text": "in the house", "answer_start": 9}], "is_impossible": false},
    {"id": "2", "question": "Why?", "answers": [], "is_impossible": true}]}]}]}"#;

fn parquet(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/fixtures/tables").join(name))
        .unwrap()
}

fn saved(name: &str) -> Vec<u8> {
    std::fs::read(
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/fixtures/files/saved").join(name),
    )
    .unwrap()
}

fn said<T>(result: Result<T>) -> std::result::Result<(), TestCaseError> {
    result.map_or_else(|error: Error| is_said(&error), |_| Ok(()))
}

/// Every row of a table, up to the first that is refused.
fn table(bytes: &[u8], format: DataFormat, columns: [&str; 2]) -> std::result::Result<(), TestCaseError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table");
    std::fs::write(&path, bytes).unwrap();
    let patterns = [path.display().to_string()];
    let columns = || Columns { text: columns[0].into(), label: Some(columns[1].into()), ..Columns::default() };
    let opened = Table::open(&patterns, format, columns());
    said(opened.and_then(|table| table.rows().collect::<Result<Vec<_>>>()))?;
    said(Table::open(&patterns, format, columns()).and_then(Corpus::of_table))
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn csv(edits in edits()) {
        table(&edited(CSV.as_bytes(), &edits), DataFormat::Csv, ["text", "label"])?;
    }

    #[test]
    fn tsv(edits in edits()) {
        table(&edited(TSV.as_bytes(), &edits), DataFormat::Tsv, ["text", "label"])?;
    }

    #[test]
    fn jsonl(edits in edits()) {
        table(&edited(JSONL.as_bytes(), &edits), DataFormat::Jsonl, ["text", "label"])?;
    }

    #[test]
    fn parquet_of_text(edits in edits()) {
        table(&edited(&parquet("names.parquet"), &edits), DataFormat::Parquet, ["text", "label"])?;
    }

    #[test]
    fn arrow(edits in edits()) {
        table(&edited(&saved("train/data-00000-of-00002.arrow"), &edits), DataFormat::Arrow, ["text", "label"])?;
    }

    #[test]
    fn json_list(edits in edits()) {
        let list = format!("{{\"data\": [{}]}}", JSONL.trim().replace('\n', ", "));
        table(&edited(list.as_bytes(), &edits), DataFormat::Jsonl, ["text", "label"])?;
    }

    #[test]
    fn parquet_of_numbers(edits in edits()) {
        table(&edited(&parquet("numbers.parquet"), &edits), DataFormat::Parquet, ["text", "label"])?;
    }

    #[test]
    fn text(edits in edits(), by_line in any::<bool>()) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        std::fs::write(&path, edited(TEXT.as_bytes(), &edits)).unwrap();
        let documents = if by_line { Documents::Line } else { Documents::File };
        let corpus = Corpus::open(&[path.display().to_string()], documents);
        said(corpus.and_then(|corpus| corpus.documents().collect::<Result<Vec<_>>>()))?;
    }

    #[test]
    fn questions(edits in edits()) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("squad.json");
        std::fs::write(&path, edited(SQUAD.as_bytes(), &edits)).unwrap();
        said(squad::read(std::slice::from_ref(&path)))?;
        said(squad::read_unanswered(&[path]))?;
    }

    #[test]
    fn rows_of_ids(edits in edits(), task in prop::sample::select(&Task::ALL[..]), is_array in any::<bool>()) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.jsonl");
        let text = if is_array { format!("[{}]", IDS.trim_end().replace('\n', ",\n")) } else { IDS.to_owned() };
        std::fs::write(&path, edited(text.as_bytes(), &edits)).unwrap();
        said(TokenizedData::open(&folder.path().join("cache"), &[path], task, &mut |_| ControlFlow::Continue(())))?;
    }
}
