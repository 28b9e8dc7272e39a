//! Labels of tables: one value means the same in every format, what is no label is none, and names
//! come from where they stand. `fixtures/make_labels.py` writes the tables, and what pandas and
//! datasets read in them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use kiln::config::{DataFormat, Task};
use kiln::data::Label;
use kiln::data::labels::{LabelReader, LabelRule, MISSING};
use kiln::data::rows::Scan;
use kiln::data::squad;
use kiln::data::table::{Columns, Row, Table};
use serde_json::{Value, json};

use crate::common::{fails, json as read_json, kiln, rows, succeeds};

const FORMATS: [(&str, DataFormat); 4] = [
    ("csv", DataFormat::Csv),
    ("tsv", DataFormat::Tsv),
    ("jsonl", DataFormat::Jsonl),
    ("parquet", DataFormat::Parquet),
];

fn fixtures() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/fixtures/labels")
}

/// The label of every row of `column` by its name or number, none for a row that is left out; or
/// the beginning of the error.
type Outcome = Result<Vec<Option<String>>, String>;

fn outcome(ending: &str, format: DataFormat, column: &str, task: Task, skip_unlabeled: bool) -> Outcome {
    let words = task == Task::TokenClassification;
    let columns = Columns {
        text: if words { "tokens" } else { "text" }.into(),
        words,
        label: Some(column.into()),
        class_names: true,
        ..Columns::default()
    };
    let table = Table::open(&[fixtures().join(format!("values.{ending}")).display().to_string()], format, columns);
    let table = table.map_err(|error| error.to_string())?;
    let scan = Scan::new(&table, task.has_label_names()).map_err(|error| error.to_string())?;
    let names = || scan.labels.names(skip_unlabeled);
    let rule = match task {
        Task::SequenceClassification => names().map(LabelRule::Classes),
        Task::TokenClassification => names().map(LabelRule::Tags),
        Task::MultiLabelClassification => names().map(LabelRule::Several),
        Task::MultipleChoice => Ok(LabelRule::Choice),
        _ => Ok(LabelRule::Values),
    };
    // Without the place, and without the spelling of the value, which is that of the format.
    let beginning = |message: String| {
        let message = message.lines().next().unwrap_or_default();
        let message =
            message.split_once(": ").filter(|(place, _)| place.contains("values.")).map_or(message, |cut| cut.1);
        message.split(": ").next().unwrap_or_default().to_owned()
    };
    let rule = rule.map_err(|error| beginning(error.to_string()))?;
    let listed = match &rule {
        LabelRule::Classes(names) | LabelRule::Tags(names) | LabelRule::Several(names) => names.names().to_vec(),
        _ => Vec::new(),
    };
    let name = |id: &i32| usize::try_from(*id).map_or("none", |id| &listed[id]);
    let reader = LabelReader { rule, skip_unlabeled };
    let label = |row: kiln::Result<Row>| {
        Ok(reader.read(row?.label.as_ref())?.map(|label| match label {
            Label::Class(id) if listed.is_empty() => id.to_string(),
            Label::Class(id) => name(&id).to_owned(),
            Label::Value(value) => value.to_string(),
            Label::Tokens(tags) => tags.iter().map(name).collect::<Vec<_>>().join(" "),
            other => format!("{other:?}"),
        }))
    };
    table.rows().map(label).collect::<kiln::Result<_>>().map_err(|error| beginning(error.to_string()))
}

/// The question that is read from the file `q.ENDING` with this content: id, question, context and
/// first answer, or the beginning of the error, without the place and without the spelling of the
/// value.
fn question(ending: &str, content: &[u8]) -> Result<Value, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(format!("q.{ending}"));
    std::fs::write(&file, content).unwrap();
    let error = match squad::read(&[file]) {
        Ok(read) => {
            let question = &read[0];
            let answer = question.answers.first().map(|answer| json!([answer.start, answer.text]));
            return Ok(json!([question.id, question.text, &*question.context, answer]));
        }
        Err(error) => error.to_string(),
    };
    let is_place = |part: &&str| part.contains("/q.") || part.starts_with("question ") || part.starts_with("item ");
    let message =
        error.lines().next().unwrap_or_default().split(": ").skip_while(is_place).collect::<Vec<_>>().join(": ");
    Err(message.split(", got").next().unwrap_or_default().to_owned())
}

#[test]
fn a_value_of_a_question_is_the_same_in_every_format() {
    let answers = read_json(&fixtures().join("questions.json"));
    let mut refused = BTreeMap::new();
    for (name, case) in answers["cases"].as_object().unwrap() {
        let written = case["written"].as_object().unwrap();
        let mut files = written.iter().map(|(ending, content)| {
            let content = content.as_str().unwrap();
            let content = if ending == "parquet" { BASE64_STANDARD.decode(content).unwrap() } else { content.into() };
            (ending.as_str(), content)
        });
        let mut files = files.by_ref().collect::<Vec<_>>();
        // NaN is Python's, and no JSON.
        if let Ok(mut row) = serde_json::from_str::<Value>(written["jsonl"].as_str().unwrap()) {
            files.push(("json", json!([row]).to_string().into_bytes()));
            let context = row.as_object_mut().unwrap().remove("context");
            let articles = json!({"version": "2.0", "data": [{"paragraphs": [{"context": context, "qas": [row]}]}]});
            files.push(("json", articles.to_string().into_bytes()));
        }
        let read = files.iter().map(|(ending, content)| question(ending, content)).collect::<Vec<_>>();
        let own = read.last().unwrap();
        for ((ending, _), other) in files.iter().zip(&read) {
            assert_eq!(other, own, "{name}: {ending} and {}", files.last().unwrap().0);
        }
        // run_qa.py takes rows from `datasets`, which has no lists in CSV.
        let peer = &case["datasets"]["jsonl"];
        assert_eq!(*peer, case["datasets"]["parquet"], "{name}: datasets");
        let agrees = own.as_ref().map_or(peer == "error", |own| own == peer);
        let why = case.get("differs").and_then(Value::as_str);
        assert_eq!(!agrees, why.is_some(), "{name}: {own:?}, and run_qa.py learns {peer}: {why:?}");
        if let Err(error) = own {
            refused.entry(error.clone()).or_insert_with(Vec::new).push(name.clone());
        }
    }
    let expected: [(&str, &[&str]); 13] = [
        (
            "answers.answer_start: expected the number of a character",
            &[
                "answer_start, boolean",
                "answer_start, blank",
                "answer_start, fraction",
                "answer_start, name",
                "answer_start, list",
            ],
        ),
        (
            "answers.answer_start: expected the number of a character, and there is none",
            &["answer_start, null", "answer_start, NaN"],
        ),
        ("answers.answer_start: expected the place of \"city\"", &["answer_start, minus one"]),
        ("answers.text: expected a text", &["answers, text is a number"]),
        (
            "answers: expected texts with the places where they start",
            &[
                "answers, number",
                "answers, boolean",
                "answers, text",
                "answers, list of texts",
                "answers, JSON as text",
                "answers, Python as text",
                "answers, other lengths",
            ],
        ),
        ("context: expected a text", &["context, number", "context, boolean", "context, list"]),
        ("context: expected a text, and there is none", &["context, null", "context, NaN"]),
        ("id: expected a text or a number", &["id, boolean", "id, list"]),
        ("id: expected a text or a number, and there is none", &["id, null", "id, NaN"]),
        (
            "is_impossible: expected true or false",
            &["is_impossible, two", "is_impossible, name", "is_impossible, list", "is_impossible, list as text"],
        ),
        ("question: expected a text", &["question, number", "question, boolean", "question, list"]),
        ("question: expected a text, and there is none", &["question, null", "question, NaN"]),
        (
            "the answer \"city\" is not in its context at character 13; there stands \"ity \"; it stands at character 12",
            &["answer_start, other place"],
        ),
    ];
    let expected =
        expected.map(|(error, names)| (error.to_owned(), names.iter().map(|name| (*name).to_owned()).collect()));
    assert_eq!(refused, BTreeMap::from(expected));
}

/// The texts of `column` by row, or the beginning of the error.
fn texts(ending: &str, format: DataFormat, columns: Columns) -> Result<Vec<String>, String> {
    let table =
        Table::open(&[fixtures().join(format!("values.{ending}")).display().to_string()], format, columns).unwrap();
    let text = |row: kiln::Result<Row>| row.map(|row| row.texts().collect::<Vec<_>>().join("|"));
    let read = table.rows().map(text).collect::<kiln::Result<_>>();
    read.map_err(|error| error.to_string().split(", got").next().unwrap().rsplit(": ").next().unwrap().to_owned())
}

/// CSV and TSV hold texts alone, so a column of them is one of texts whatever they spell. A number,
/// a boolean and a list are no text in the formats that have them.
#[test]
fn a_text_is_the_same_in_every_format_and_no_other_value_is_one() {
    let peers = read_json(&fixtures().join("peers.json"));
    let tags = peers["tags"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
    let (mut no_texts, mut no_words) = (Vec::new(), Vec::new());
    let every = peers["columns"].as_object().unwrap().keys().map(String::as_str).chain(tags).collect::<Vec<_>>();
    for column in every.iter().copied() {
        let one = Columns { text: column.into(), ..Columns::default() };
        let pair = Columns { text_pair: Some(column.into()), text: "text".into(), ..Columns::default() };
        let choice = Columns { choices: vec![column.into()], ..Columns { text_pair: None, ..pair.clone() } };
        let words = Columns { words: true, ..one.clone() };
        for (kind, columns, others) in [
            ("text", one, &mut no_texts),
            ("pair", pair, &mut Vec::new()),
            ("choice", choice, &mut Vec::new()),
            ("words", words, &mut no_words),
        ] {
            let [csv, tsv, jsonl, parquet] = FORMATS.map(|(ending, format)| texts(ending, format, columns.clone()));
            assert_eq!((&csv, &jsonl), (&tsv, &parquet), "{column} as {kind}");
            match &jsonl {
                Ok(_) => assert_eq!(csv, jsonl, "{column} as {kind}"),
                Err(error) => {
                    assert!(
                        error.starts_with("expected text") || error == "expected a list of words",
                        "{column} as {kind}: {error}"
                    );
                    others.push(column.to_owned());
                }
            }
        }
    }
    let expected = [
        "ints",
        "whole_floats",
        "floats_with_gap",
        "nan",
        "exponents",
        "scores",
        "narrow_floats",
        "large",
        "large_floats",
        "minus_one",
        "minus_hundred",
        "minus_one_float",
        "booleans",
        "booleans_lower",
        "tags",
        "tags_ints",
        "tags_floats",
        "tags_ignored",
        "tags_missing",
        "tags_scores",
    ];
    assert_eq!(no_texts, expected);
    // A word is a text by itself in a list, and CSV writes a list of words as one text.
    let lists = every.iter().filter(|column| !["tags", "tags_missing"].contains(column));
    assert_eq!(no_words, lists.copied().collect::<Vec<_>>());
}

/// For each row the first row with the same label; none where it has none.
fn partition(labels: &[Option<String>]) -> Vec<Option<usize>> {
    labels.iter().map(|label| label.as_ref().and(labels.iter().position(|other| other == label))).collect()
}

#[test]
fn a_value_is_the_same_label_in_every_format() {
    use Task::{MultipleChoice, Regression, SequenceClassification};
    let peers = read_json(&fixtures().join("peers.json"));
    assert_eq!(peers["missing"], json!(MISSING), "what pandas reads as missing");
    let same = |column: &str, task: Task, skip: bool| {
        let mut each = FORMATS.map(|(ending, format)| (ending, outcome(ending, format, column, task, skip)));
        let first = each[0].1.clone();
        for (ending, other) in &mut each {
            assert_eq!(*other, first, "{column} as label of {task}, skip {skip}: {ending} and csv");
        }
        first
    };
    let mut seen = BTreeMap::new();
    for (column, peer) in peers["columns"].as_object().unwrap() {
        for task in [SequenceClassification, Regression, MultipleChoice] {
            let (whole, skipped) = (same(column, task, false), same(column, task, true));
            assert!(whole.is_err() || skipped == whole, "{column}: nothing is left out where every row has a label");
            seen.insert((column.as_str(), task.to_string()), whole);
        }
        // pandas reads types in CSV and keeps them elsewhere, so CSV is what it says that a text
        // means.
        let classes = same(column, SequenceClassification, true).map(|labels| partition(&labels));
        let pandas = &peer["pandas"]["csv"];
        let agrees = classes.as_ref().is_ok_and(|classes| json!(classes) == *pandas);
        let why = peer.get("differs").and_then(Value::as_str);
        assert_eq!(!agrees, why.is_some(), "{column}: {classes:?}, and pandas reads {pandas}: {why:?}");
    }
    let seen = |column: &str, task: Task| seen[&(column, task.to_string())].clone();
    let is = |column: &str, task: Task, expected: Result<&str, &str>| {
        let got = seen(column, task).map(|labels| labels.into_iter().flatten().collect::<Vec<_>>().join(" "));
        assert_eq!(got.as_deref().map_err(String::as_str), expected, "{column} as label of {task}");
    };
    for column in ["ints", "whole_floats", "ints_as_text", "floats_as_text"] {
        for task in [SequenceClassification, Regression, MultipleChoice] {
            is(column, task, Ok("0 1 2 10 1 0"));
        }
    }
    is("exponents", SequenceClassification, Ok("1 20 1 20 1 20"));
    is("scores", SequenceClassification, Err("expected a class, got the number 0.37"));
    is("scores", Regression, Ok("0.37 0.5 1 0.37 0.5 1"));
    is("narrow_floats", SequenceClassification, Err("expected a class, got the number 0.1"));
    is("narrow_floats", Regression, Ok("0.1 2 0.1 2 0.1 2"));
    is("large_floats", SequenceClassification, Err("expected a class, got the number 100000000000000000"));
    for column in ["booleans", "booleans_lower"] {
        is(column, SequenceClassification, Ok("True False True True False False"));
        is(column, Regression, Err("expected a finite number as label for the task regression, got True"));
    }
    is("booleans_as_text", SequenceClassification, Ok("True True False True False False"));
    is("booleans_and_numbers", SequenceClassification, Err("labels are both booleans and numbers"));
    is("names_with_blanks", SequenceClassification, Ok("yes yes no no yes no"));
    for column in ["blank", "spaces", "null", "nan", "floats_with_gap", "missing_texts"] {
        is(column, SequenceClassification, Err("the row has no label"));
    }
    for column in ["minus_one", "minus_hundred", "minus_one_float"] {
        is(column, SequenceClassification, Err("the row has no label"));
        assert!(seen(column, Regression).is_ok(), "{column} are numbers");
    }
    is("thousands", Regression, Err("expected a finite number as label for the task regression, got \"1,000\""));
    is("decimal_commas", Regression, Err("expected a finite number as label for the task regression, got \"0,5\""));
    for column in ["list_as_text", "numbers_list_as_text", "object_as_text"] {
        is(column, SequenceClassification, Err("expected one label, got a list or an object written as text"));
    }

    let tags = |column: &str, skip: bool, expected: Result<&str, &str>| {
        let got = same(column, Task::TokenClassification, skip);
        let got = got.map(|labels| labels.into_iter().flatten().collect::<Vec<_>>().join(", "));
        assert_eq!(got.as_deref().map_err(String::as_str), expected, "{column}");
    };
    tags("tags", false, Ok("O B-PER, O O, B-PER O, O O, O B-PER, O O"));
    tags("tags_ints", false, Ok("0 1, 0 0, 2 0, 0 10, 0 1, 0 0"));
    tags("tags_floats", false, Ok("0 1, 0 0, 2 0, 0 10, 0 1, 0 0"));
    tags("tags_ignored", false, Err("the word has no label"));
    tags("tags_ignored", true, Ok("0 1, 0 none, 1 0, 0 0, 0 1, 0 0"));
    tags("tags_missing", true, Ok("O B-PER, O none, B-PER O, O O, O B-PER, O O"));
    tags("tags_scores", false, Err("expected a class, got the number 0.5"));
    tags("list_as_text", false, Err("expected one label, got a list or an object written as text"));
    for (ending, format) in FORMATS {
        // A list that says twice "O" names a label twice.
        let several = outcome(ending, format, "tags", Task::MultiLabelClassification, false).unwrap_err();
        let is_text = matches!(format, DataFormat::Csv | DataFormat::Tsv);
        let expected = if is_text {
            "expected a list of labels, got \"O B-PER\""
        } else {
            "the label \"O\" stands twice in the list"
        };
        assert_eq!(several, expected, "{ending}");
    }
}

const CONFIG: &str = r#"
[run]
output_dir = "run"
on_existing = "overwrite"
[model]
kind = "bert"
hidden_size = 8
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 8
max_position_embeddings = 16
[data]
task = "sequence-classification"
format = "csv"
train = ["train.csv"]
[tokenizer]
from = "vocab.txt"
[trainer]
max_steps = 2
per_device_train_batch_size = 4
[device]
kind = "cpu"
"#;

/// A folder with a config, word pieces and the tables of the fixtures.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(fixtures()).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
        }
        let place = Self(folder);
        place.write("config.toml", CONFIG);
        place.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\ngood\nbad\nfilm\nplay\n");
        place
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }

    /// Rows of `text,label` with these labels, two of each.
    fn csv(&self, name: &str, labels: &[&str]) {
        let rows = labels.iter().chain(labels).map(|label| format!("a film,{label}\n")).collect::<String>();
        self.write(name, &format!("text,label\n{rows}"));
    }

    fn command(&self, set: &[&str]) -> std::process::Command {
        let mut command = kiln(self.0.path());
        command.args(["train", "config.toml"]);
        command.args(set.iter().flat_map(|set| ["--set", set]));
        command
    }

    /// Trains, and returns what it says and the labels of the model in the order of their ids.
    fn trains(&self, set: &[&str]) -> (String, Vec<String>) {
        let mut command = self.command(set);
        let done = command.output().unwrap();
        let says = String::from_utf8_lossy(&done.stderr).into_owned() + &String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "{set:?}: {says}");
        let map = read_json(&self.0.path().join("run/model/config.json"))["id2label"].clone();
        let names = (0..map.as_object().unwrap().len()).map(|id| map[id.to_string()].as_str().unwrap().to_owned());
        (says, names.collect())
    }

    fn refuses(&self, code: i32, set: &[&str], parts: &[&str]) {
        fails(&mut self.command(set), code, parts);
    }
}

#[test]
fn rows_without_a_label_are_refused_or_left_out() {
    let place = Place::new();
    let skip = "data.skip_unlabeled=true";
    for (label, says) in [
        ("-1", "line 3: the row has no label: -1 says that there is none"),
        ("-100", "line 3: the row has no label: -100 says that there is none"),
        ("N/A", "line 3: the row has no label: \"N/A\" says that there is none"),
        ("null", "line 3: the row has no label: \"null\" says that there is none"),
        ("", "line 3: the row has no label"),
    ] {
        place.csv("train.csv", &["1.0", label, "10", "2"]);
        place.refuses(3, &[], &["data.train", "train.csv", says, "data.skip_unlabeled = true"]);
    }
    place.csv("train.csv", &["1.0", "", "10", "2", "-1.0"]);
    let (says, names) = place.trains(&[skip]);
    assert_eq!(names, ["1", "2", "10"]);
    assert!(says.contains("4 of 10 rows have no label and are left out"), "{says}");
    // The rows that were left out are no rows of a run without the key.
    place.refuses(3, &[], &["line 3: the row has no label"]);
    // What the message advises where the label is a class.
    place.csv("train.csv", &["1", "-1", "0"]);
    assert_eq!(place.trains(&["data.label_names=[\"-1\", \"0\", \"1\"]"]).1, ["-1", "0", "1"]);
    place.csv("train.csv", &["None", "some"]);
    assert_eq!(place.trains(&["data.label_names=[\"some\", \"None\"]"]).1, ["some", "None"]);
    place.csv("validation.csv", &["", "-1"]);
    let validation = ["data.label_names=[\"some\", \"None\"]", "data.validation=[\"validation.csv\"]", skip];
    place.refuses(3, &validation, &["validation.csv: no row has a label", "data.label_column"]);
    let stream = [skip, "data.streaming=true", "data.label_names=[\"some\", \"None\"]"];
    place.csv("train.csv", &["some", "", "None"]);
    let (says, names) = place.trains(&stream);
    assert_eq!(names, ["some", "None"]);
    assert!(says.contains("train.csv line 3: the row has no label and is left out"), "{says}");
    place.write(
        "train.jsonl",
        "{\"text\": \"a\", \"label\": [\"b\", \"c\"]}\n{\"text\": \"a\", \"label\": [\"b\", null]}\n",
    );
    let several = ["data.task=multi-label-classification", "data.format=jsonl", "data.train=[\"train.jsonl\"]", skip];
    place.refuses(3, &several, &["train.jsonl line 2: nothing in the list is no label", "take it out of the list"]);
    place.csv("train.csv", &["0.5", "N/A", "-1"]);
    let regression = ["data.task=regression", "data.skip_unlabeled=true"];
    let mut command = place.command(&regression);
    let done = command.output().unwrap();
    let says = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success() && says.contains("2 of 6 rows have no label"), "{says}");
    place.refuses(3, &regression[..1], &["line 3", "\"N/A\" says that there is none"]);
    place.refuses(2, &["data.task=mlm", skip], &["data.skip_unlabeled: has no effect with task = \"mlm\""]);
}

#[test]
fn numbers_are_ids_where_names_are_given() {
    let place = Place::new();
    place.csv("train.csv", &["neg", "pos"]);
    place.csv("validation.csv", &["0", "1.0"]);
    let validation = "data.validation=[\"validation.csv\"]";
    place.refuses(
        3,
        &[validation],
        &["validation.csv line 2: the label \"0\" is outside the map; there are \"neg\", \"pos\""],
    );
    place.trains(&[validation, "data.label_names=[\"neg\", \"pos\"]"]);
    place.csv("train.csv", &["1.0", "2.0", "10.0"]);
    place.csv("train.csv", &["1.0", "02", "10"]);
    assert!(place.trains(&[]).0.contains("line 3: the label \"02\" is read as the number 2"));
    place.csv("validation.csv", &["1", "02", "1e1"]);
    assert_eq!(place.trains(&[validation]).1, ["1", "2", "10"]);
    place.csv("validation.csv", &["0"]);
    place.refuses(3, &[validation], &["the label \"0\" is outside the map; there are \"1\", \"2\", \"10\""]);
    place.csv("train.csv", &["yes", "yes ", "Yes", "3"]);
    let (says, names) = place.trains(&[]);
    assert_eq!(names, ["3", "Yes", "yes"]);
    for part in [
        "line 3: the label \"yes \" is read without the blanks around it",
        "the labels \"Yes\" and \"yes\" differ in case or in characters that are not seen alone",
        "the label 3 is a number, and \"yes\" at",
    ] {
        assert!(says.contains(part), "{part}: {says}");
    }
    place.refuses(2, &["data.label_names=[\"0\", \"0.0\"]"], &["data.label_names: \"0\" and \"0.0\" are one label"]);
    // A text without words trains as its special tokens, as in transformers, and is told.
    place.write("train.csv", "text,label\na film,1\n  ,2\n");
    let (says, _) = place.trains(&[]);
    assert!(says.contains("1 of 2 rows have no text, the first at train.csv line 3"), "{says}");
    // Numbers of sections are names where they are named, by their spelling.
    place.csv("train.csv", &["3.1", "3.10", "3.2"]);
    place.refuses(3, &[], &["expected a class, got the number 3.1", "data.label_names"]);
    assert_eq!(place.trains(&["data.label_names=[\"3.1\", \"3.10\", \"3.2\"]"]).1, ["3.1", "3.10", "3.2"]);
}

#[test]
fn a_plan_counts_labels_and_rows() {
    let place = Place::new();
    let plan = |set: &[&str], more: &[&str]| {
        let mut command = kiln(place.0.path());
        command.args(["plan", "config.toml"]).args(more).args(set.iter().flat_map(|set| ["--set", set]));
        let done = command.output().unwrap();
        let [says, warns] = [done.stdout, done.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(done.status.success(), "{set:?}: {warns}");
        (says, warns)
    };
    let has = |text: &str, parts: &[&str]| parts.iter().for_each(|part| assert!(text.contains(part), "{part}: {text}"));
    let rows = |label: &str, count: usize| format!("a film,{label}\n").repeat(count);
    let table = |parts: &[String]| "text,label\n".to_owned() + &parts.concat();
    let odd = "a good film a bad film,billing\n \u{a0},technical\n".to_owned();
    let train = table(&[rows("billing", 4), rows("legal", 1), rows("technical", 3), odd]);
    place.write("train.csv", &train);
    place.write("validation.csv", &table(&[rows("billing", 2), rows("technical", 1)]));

    let cut = "data.max_length=5";
    let (says, warns) = plan(&[cut, "data.validation=[\"validation.csv\"]"], &[]);
    has(
        &says,
        &[
            "1 of 10 rows is cut to 5 tokens (validation: 0 of 3)\n",
            "1 of 10 rows has no text (validation: 0 of 3)\n",
            "3 labels with training (validation) rows: billing: 5 (2), technical: 4 (1), legal: 1 (0)\n",
        ],
    );
    has(
        &warns,
        &[
            "data.train: the label \"legal\" has one row\n",
            "data.validation: the label \"legal\" has no row, so no score tells how well it is learned\n",
        ],
    );
    // The same from the cache, and of the rows that a run has.
    assert!(plan(&[cut], &[]).0.contains("3 labels with rows: billing: 5, technical: 4, legal: 1\n"));
    let (says, warns) = plan(&["data.max_train_samples=4"], &[]);
    has(&says, &["3 labels with rows: billing: 4, legal: 0, technical: 0\n"]);
    has(&warns, &["data.train: the labels \"legal\", \"technical\" have no row\n"]);
    let split: Value = serde_json::from_str(&plan(&[cut, "data.validation=0.3"], &["--json"]).0).unwrap();
    let counts = &split["data"]["counts"];
    let sum =
        |key: &str| counts["labels"].as_array().unwrap().iter().map(|label| label[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("train"), sum("validation"), counts["labels"][0]["name"].as_str()), (7, 3, Some("billing")));
    let side = |key: &str, count: &str| counts[key][count].as_u64().unwrap();
    for (count, all) in [("rows", 10), ("cut", 1), ("blank", 1)] {
        assert_eq!(side("train", count) + side("validation", count), all, "{count}");
    }
    // A run of one batch is no run whose labels count.
    assert!(!plan(&["trainer.fast_dev_run=true"], &[]).1.contains("has one row"));

    let ids = (0..6).map(|id| format!("a film,{id}\n")).collect::<String>();
    place.write("ids.csv", &table(&[ids]));
    let (_, warns) = plan(&["data.train=[\"ids.csv\"]"], &[]);
    has(
        &warns,
        &["data.train: 6 of 6 labels have one row each, of which nothing can be learned; if they are no classes"],
    );

    let streamed = ["data.streaming=true", "data.label_names=[\"billing\", \"legal\", \"technical\"]"];
    let (says, warns) = plan(&streamed, &[]);
    has(
        &says,
        &["3 labels: billing, legal, technical; not counted, since the training data are read as they are needed\n"],
    );
    assert!(!warns.contains("legal"), "{warns}");

    place.write("tokenized.jsonl", &"{\"input_ids\": [2, 5, 3], \"labels\": 1}\n".repeat(3));
    let (says, _) = plan(&["data.format=tokenized", "data.train=[\"tokenized.jsonl\"]", "model.vocab_size=10"], &[]);
    has(&says, &["2 labels with rows: LABEL_1: 3, LABEL_0: 0\n"]);
    place.write("tags.jsonl", "{\"tokens\": [\"a\", \"film\"], \"ner_tags\": [\"O\", \"B-X\"]}\n");
    let (says, _) = plan(&["data.task=token-classification", "data.format=jsonl", "data.train=[\"tags.jsonl\"]"], &[]);
    has(&says, &["2 labels with words: B-X: 1, O: 1\n"]);

    // The header of a run in the table has the labels, too.
    let mut train = place.command(&[cut]);
    has(
        &succeeds(train.args(["--log-format", "table"])),
        &["10 examples, 1 cut, ", "        3 labels with rows: billing: 5"],
    );
}

#[test]
fn class_labels_of_datasets_are_the_names() {
    let place = Place::new();
    let parquet = |name: &str, validation: &str| {
        [
            "data.format=parquet".to_owned(),
            format!("data.train=[\"{name}.parquet\"]"),
            format!("data.validation=[\"{validation}.parquet\"]"),
            "trainer.do_eval=true".to_owned(),
        ]
    };
    let classes = parquet("classes", "classes");
    let classes = classes.each_ref().map(String::as_str);
    assert_eq!(place.trains(&classes).1, ["neg", "pos"]);
    let loss = || rows(&place.0.path().join("run")).iter().rev().find_map(|row| row["eval_loss"].as_f64()).unwrap();
    let own = loss();
    let other = parquet("classes", "other_order");
    assert_eq!(place.trains(&other.each_ref().map(String::as_str)).1, ["neg", "pos"]);
    assert_eq!(loss(), own, "the ids of the other file are read by its names");
    let tags = [&classes[..], &["data.task=token-classification"]].concat();
    assert_eq!(place.trains(&tags).1, ["O", "B-PER"]);
    // A stream knows the names before it has read the rows.
    let stream = ["data.format=parquet", "data.train=[\"classes.parquet\"]", "data.streaming=true"];
    assert_eq!(place.trains(&stream).1, ["neg", "pos"]);
    let unlabeled = parquet("classes", "unlabeled");
    let unlabeled = unlabeled.each_ref().map(String::as_str);
    place.refuses(3, &unlabeled, &["unlabeled.parquet row 1: the row has no label: -1 says that there is none"]);

    // Two sources of the names: both are named, and what the message advises works.
    let given = |names| [&classes[..], &[names]].concat();
    place.refuses(
        2,
        &given("data.label_names=[\"bad\", \"good\"]"),
        &[
            "data.label_names has [\"bad\", \"good\"]",
            "the ClassLabel of classes.parquet has [\"neg\", \"pos\"]",
            "\"neg\" is not among",
        ],
    );
    assert_eq!(place.trains(&given("data.label_names=[\"pos\", \"neg\"]")).1, ["pos", "neg"]);
    let model = |names: [&str; 2]| format!("model.id2label={{\"0\" = {:?}, \"1\" = {:?}}}", names[0], names[1]);
    let [bad, turned, placeholders] = [["bad", "good"], ["pos", "neg"], ["LABEL_0", "LABEL_1"]].map(model);
    place.refuses(2, &given(&bad), &["the id2label of the model has [\"bad\", \"good\"]", "ClassLabel"]);
    assert_eq!(place.trains(&given(&turned)).1, ["pos", "neg"]);
    assert_eq!(place.trains(&given(&placeholders)).1, ["neg", "pos"]);
    place.refuses(
        3,
        &given("data.text_column=picture"),
        &["column \"picture\": the type Image of datasets is refused"],
    );
    place.refuses(
        3,
        &given("data.task=regression"),
        &["classes.parquet row 1: expected a finite number", "got \"pos\""],
    );
    succeeds(&mut place.command(&given("data.label_names=[\"neg\", \"pos\"]")));
}
