//! SQuAD's files: its JSON with articles, paragraphs and questions, and the rows of parquet and JSON lines that the Hub has
//! of it, each a question with `id`, `question`, `context` and `answers`. `answer_start` counts characters (Unicode code points),
//! as Python does.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use crate::base::error::{Error, Result};
use crate::base::files::{Decoded, ending};
use crate::config::DataFormat;
use crate::data::table::{Columns, Row, Table};
use crate::data::text_chunks::{MARK, not_utf8, utf16};

/// An answer in a context.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Answer {
    /// The text, as it stands in the context.
    pub text: String,
    /// Its first character in the context.
    #[serde(rename = "answer_start")]
    pub start: usize,
}

/// A question about a context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The question's id in the file.
    pub id: String,
    /// The text of the question.
    pub text: String,
    /// Where the answer is looked for.
    pub context: Arc<str>,
    /// Accepted answers; none for a question that its context does not answer.
    pub answers: Vec<Answer>,
    /// Whether the file is of version 2.0, in which "no answer" may be right. Rows do not say so: they are of version 2.0 where one
    /// of them has no answer.
    pub may_be_unanswerable: bool,
}

#[derive(Deserialize)]
struct File {
    data: Vec<Article>,
    version: Option<String>,
}

#[derive(Deserialize)]
struct Article {
    paragraphs: Vec<Paragraph>,
}

#[derive(Deserialize)]
struct Paragraph {
    context: String,
    qas: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    id: String,
    question: String,
    #[serde(default)]
    answers: Vec<Answer>,
    is_impossible: Option<bool>,
}

/// The answers of a row.
#[derive(Deserialize)]
#[serde(untagged)]
enum Answers {
    /// A list for each field, as the Hub's parquet files have them.
    Columns { text: Vec<String>, answer_start: Vec<usize> },
    /// An object for each answer.
    Rows(Vec<Answer>),
}

/// The questions of `files`, in order.
///
/// # Errors
/// A file that cannot be read or is no SQuAD; an answer that is not in its context at the place it names; no
/// question.
pub fn read(files: &[PathBuf]) -> Result<Vec<Question>> {
    read_as(files, true)
}

/// As [`read`], for answers that are yet to be found: those in the files are not looked at.
///
/// # Errors
/// A file that cannot be read or is no SQuAD JSON; no question.
pub fn read_unanswered(files: &[PathBuf]) -> Result<Vec<Question>> {
    read_as(files, false)
}

fn read_as(files: &[PathBuf], answered: bool) -> Result<Vec<Question>> {
    let (mut questions, mut contexts) = (Vec::new(), HashSet::new());
    let mut rows = Vec::new();
    for file in files {
        let first = questions.len();
        let format = match ending(file).as_deref() {
            Some("parquet") => DataFormat::Parquet,
            Some("jsonl" | "ndjson") => DataFormat::Jsonl,
            _ => {
                read_file(file, answered, &mut contexts, &mut questions)?;
                continue;
            }
        };
        read_rows(file, format, answered, &mut contexts, &mut questions)?;
        rows.extend(first..questions.len());
    }
    if answered && rows.iter().any(|row| questions[*row].answers.is_empty()) {
        rows.iter().for_each(|row| questions[*row].may_be_unanswerable = true);
    }
    if questions.is_empty() {
        let first = files.first().map(|file| file.display().to_string()).unwrap_or_default();
        return Err(Error::data(format!("{first}: expected questions, found none")));
    }
    Ok(questions)
}

/// A context, of which one copy is kept: questions about the same one belong together.
fn shared(contexts: &mut HashSet<Arc<str>>, context: &str) -> Arc<str> {
    if let Some(known) = contexts.get(context) {
        return known.clone();
    }
    let context: Arc<str> = context.into();
    contexts.insert(context.clone());
    context
}

/// The questions of a file of rows.
fn read_rows(
    path: &Path,
    format: DataFormat,
    answered: bool,
    contexts: &mut HashSet<Arc<str>>,
    questions: &mut Vec<Question>,
) -> Result<()> {
    let names = ["question", "context", "answers"].into_iter().take(if answered { 3 } else { 2 });
    let choices = names.map(str::to_owned).collect();
    let columns = Columns { text: "id".into(), json: true, choices, ..Columns::default() };
    for row in Table::of(vec![path.to_owned()], format, columns).rows() {
        let row = row.map_err(|error| match error.message().contains("there is no column") {
            true => error.help("rows of SQuAD have the columns id, question, context and answers"),
            false => error,
        })?;
        questions.push(question(&row, contexts).map_err(|error| error.at(&row.place))?);
    }
    Ok(())
}

fn question(row: &Row, contexts: &mut HashSet<Arc<str>>) -> Result<Question> {
    let value = |text: &str| -> Result<Value> {
        serde_json::from_str(text).map_err(|error| Error::data(format!("malformed JSON: {error}")))
    };
    let text = |name: &str, json: &str| match value(json)? {
        Value::String(text) => Ok(text),
        other => Err(Error::data(format!("column {name:?}: expected text, got {other}"))),
    };
    let id = match value(&row.text)? {
        Value::String(id) => id,
        other => other.to_string(),
    };
    let context = shared(contexts, &text("context", &row.parts[1])?);
    let answers = match row.parts.get(2).map(|json| value(json)).transpose()? {
        None | Some(Value::Null) => Vec::new(),
        Some(found) => {
            let shown = found.to_string();
            let wrong = || {
                Error::data(format!("column \"answers\": expected texts with the places where they start, got {shown}"))
                    .help("expected {\"text\": [..], \"answer_start\": [..]}, two lists of one length")
            };
            match serde_json::from_value(found).map_err(|_| wrong())? {
                Answers::Columns { text, answer_start } if text.len() == answer_start.len() => {
                    text.into_iter().zip(answer_start).map(|(text, start)| Answer { text, start }).collect()
                }
                Answers::Columns { .. } => return Err(wrong()),
                Answers::Rows(answers) => answers,
            }
        }
    };
    for answer in &answers {
        check(answer, &context).map_err(|error| error.at(format_args!("question {id}")))?;
    }
    Ok(Question { id, text: text("question", &row.parts[0])?, context, answers, may_be_unanswerable: false })
}

fn read_file(
    path: &Path,
    answered: bool,
    contexts: &mut HashSet<Arc<str>>,
    questions: &mut Vec<Question>,
) -> Result<()> {
    let shown = path.display();
    let io = |error: std::io::Error| Error::io(format!("read {shown}"), &error);
    let mut opened = BufReader::new(Decoded::open(path).map_err(io)?);
    let head = opened.fill_buf().map_err(io)?;
    if let Some(byte) = head.first().filter(|byte| utf16(0, **byte).is_some()) {
        return Err(not_utf8(path, 0, *byte));
    }
    let mark = if head.starts_with(MARK.encode_utf8(&mut [0; 3]).as_bytes()) { MARK.len_utf8() } else { 0 };
    opened.consume(mark);
    // As a stream: what is no SQuAD shows at its beginning, however large it is.
    let file: File = serde_json::from_reader(opened).map_err(|error| {
        if error.is_io() {
            return io(error.into());
        }
        Error::data(format!("{shown}: no SQuAD JSON: {error}"))
            .help("expected {\"version\": .., \"data\": [{\"paragraphs\": [{\"context\": .., \"qas\": [..]}]}]}")
    })?;
    let paragraphs = || file.data.iter().flat_map(|article| &article.paragraphs);
    let states = |entry: &Entry| entry.is_impossible.is_some();
    let version_2 = file.version.as_deref().is_some_and(|version| version.trim_start_matches('v').starts_with('2'))
        || paragraphs().any(|paragraph| paragraph.qas.iter().any(states));
    for paragraph in paragraphs() {
        let context = shared(contexts, &paragraph.context);
        for entry in &paragraph.qas {
            let impossible = entry.is_impossible.unwrap_or(false);
            let answers = if impossible || !answered { Vec::new() } else { entry.answers.clone() };
            if answers.is_empty() && answered && !version_2 {
                return Err(Error::data(format!("{shown}: question {}: it has no answer", entry.id))
                    .help("questions without an answer are marked `\"is_impossible\": true` (SQuAD 2.0)"));
            }
            for answer in &answers {
                check(answer, &context).map_err(|error| error.at(format_args!("{shown}: question {}", entry.id)))?;
            }
            questions.push(Question {
                id: entry.id.clone(),
                text: entry.question.clone(),
                context: context.clone(),
                answers,
                may_be_unanswerable: version_2,
            });
        }
    }
    Ok(())
}

/// An answer has to stand where it says: a span learned from it would be another text.
fn check(answer: &Answer, context: &str) -> Result<()> {
    let found = context.chars().skip(answer.start).take(answer.text.chars().count()).collect::<String>();
    if found == answer.text && !answer.text.is_empty() {
        return Ok(());
    }
    Err(Error::data(format!(
        "the answer {:?} is not in its context at character {}; there stands {found:?}",
        answer.text, answer.start
    ))
    .help("answer_start counts characters (not bytes) of the context from 0"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(json: &str) -> Result<Vec<Question>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("squad.json");
        std::fs::write(&path, json).unwrap();
        read(&[path])
    }

    fn file(qas: &str) -> String {
        format!(r#"{{"data": [{{"title": "t", "paragraphs": [{{"context": "Zürich is a city.", "qas": [{qas}]}}]}}]}}"#)
    }

    #[test]
    fn both_versions() {
        let one = r#"{"id": "1", "question": "Which?", "answers": [{"text": "city", "answer_start": 12}]}"#;
        let questions = parse(&file(one)).unwrap();
        assert_eq!(questions[0].answers, [Answer { text: "city".into(), start: 12 }]);
        assert!(!questions[0].may_be_unanswerable);
        let two = r#"{"id": "2", "question": "Who?", "answers": [], "is_impossible": true}"#;
        let questions = parse(&file(&format!("{one}, {two}"))).unwrap();
        assert!(questions.iter().all(|question| question.may_be_unanswerable) && questions[1].answers.is_empty());
    }

    #[test]
    fn rows_are_read_as_the_articles_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("squad.jsonl");
        let answers = [r#"{"text": ["city"], "answer_start": [12]}"#, r#"[{"text": "city", "answer_start": 12}]"#];
        let row = |id: &str, answers: &str| {
            format!(r#"{{"id": "{id}", "question": "Which?", "context": "Zürich is a city.", "answers": {answers}}}"#)
        };
        let rows = |rows: &[String]| {
            std::fs::write(&path, rows.join("\n")).unwrap();
            read(std::slice::from_ref(&path))
        };
        let one = r#"{"id": "1", "question": "Which?", "answers": [{"text": "city", "answer_start": 12}]}"#;
        for answers in answers {
            assert_eq!(rows(&[row("1", answers)]).unwrap(), parse(&file(one)).unwrap());
        }
        let empty = r#"{"text": [], "answer_start": []}"#;
        let both = rows(&[row("1", answers[0]), row("2", empty)]).unwrap();
        assert!(both.iter().all(|question| question.may_be_unanswerable) && both[1].answers.is_empty());
        assert!(Arc::ptr_eq(&both[0].context, &both[1].context));
        let refused = |answers: &str, part: &str| {
            let error = rows(&[row("q9", answers)]).unwrap_err().to_string();
            assert!(error.contains("line 1") && error.contains(part), "{error}");
        };
        refused(r#"{"text": ["city"], "answer_start": []}"#, "two lists of one length");
        refused("3", "got 3");
        refused(
            r#"{"text": ["city"], "answer_start": [13]}"#,
            "question q9: the answer \"city\" is not in its context",
        );
    }

    /// tests/fixtures/make_tables.py writes both, the first with pyarrow.
    #[test]
    fn the_parquet_of_the_hub_has_the_questions_of_the_json() {
        let file =
            |name: &str| [PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tables")).join(name)];
        let questions = read(&file("squad.parquet")).unwrap();
        assert_eq!(questions, read(&file("squad.json")).unwrap());
        assert_eq!(questions.len(), 4);
        let unanswered = read_unanswered(&file("squad.parquet")).unwrap();
        assert!(unanswered.iter().all(|question| question.answers.is_empty()));
    }

    #[test]
    fn what_is_refused() {
        let refused = |json: &str, part: &str| {
            let error = parse(json).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        let bytes = r#"{"id": "q7", "question": "W?", "answers": [{"text": "city", "answer_start": 13}]}"#;
        refused(
            &file(bytes),
            "question q7: the answer \"city\" is not in its context at character 13; there stands \"ity.\"",
        );
        refused(&file(r#"{"id": "q8", "question": "W?", "answers": []}"#), "question q8: it has no answer");
        refused("{\"data\": []}", "found none");
        refused("[1]", "no SQuAD JSON");
        refused("{\"data\": [{}]}", "missing field `paragraphs`");
    }
}
