//! SQuAD's files: its JSON with articles, paragraphs and questions, as Haystack and cdQA write it
//! too, and rows that are each a question with `id`, `question`, `context` and `answers`: in a
//! table, a JSON list, or the `data` of an object, as `run_qa.py` takes them. `answer_start` counts
//! characters (Unicode code points), as Python does.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kiln_core::error::{Error, Result, expected};
use kiln_core::files::{Decoded, MARK_BYTES, ending, read_error, utf16};
use kiln_core::words::json_words_in_line;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use crate::labels::Kind;
use crate::settings::DataFormat;
use crate::table::{Columns, Row, Table, cell};
use crate::text_chunks::not_utf8;

/// An answer in a context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The text, as it stands in the context.
    pub text: String,
    /// Its first character in the context.
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
    /// Whether the file is of version 2.0, in which "no answer" may be right. Rows do not say so:
    /// they are of version 2.0 where one of them has no answer.
    pub may_be_unanswerable: bool,
}

#[derive(Deserialize)]
struct File {
    data: Vec<Item>,
    #[serde(default)]
    version: Value,
}

/// An article, or a question by itself.
#[derive(Deserialize)]
struct Item {
    paragraphs: Option<Vec<Paragraph>>,
    #[serde(default)]
    context: Value,
    #[serde(default)]
    id: Value,
    #[serde(default)]
    question: Value,
    #[serde(default)]
    answers: Value,
    #[serde(default)]
    is_impossible: Value,
    /// The answers of a task of Label Studio, which is refused.
    annotations: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Paragraph {
    #[serde(default)]
    context: Value,
    qas: Vec<Entry>,
}

/// The fields of a question in a file.
#[derive(Deserialize, Default)]
struct Entry {
    #[serde(default)]
    id: Value,
    #[serde(default)]
    question: Value,
    #[serde(default)]
    answers: Value,
    #[serde(default)]
    is_impossible: Value,
}

/// The questions of `files`, in order.
///
/// # Errors
/// A file that cannot be read or is no SQuAD; an answer that is not in its context at the place it
/// names; no question.
pub fn read(files: &[PathBuf]) -> Result<Vec<Question>> {
    read_as(files, true)
}

/// The questions of `files`, in order, without answers: those in the files are not looked at.
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
        let table = ending(file).filter(|ending| ending != "json");
        let Some(format) = table.and_then(|ending| DataFormat::of_table(&ending)) else {
            rows.extend(read_file(file, answered, &mut contexts, &mut questions)?);
            continue;
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
    let beside = vec!["is_impossible".to_owned()];
    let columns = Columns { text: "id".into(), json: true, choices, beside, ..Columns::default() };
    for row in Table::of(vec![path.to_owned()], format, columns).rows() {
        let row = row.map_err(|error| {
            if error.message().contains("there is no column") {
                error.help("rows of SQuAD have the columns id, question, context and answers")
            } else {
                error
            }
        })?;
        let read = of_row(&row, answered, contexts).map_err(|error| error.at(&row.place))?;
        questions.push(read);
    }
    Ok(())
}

fn of_row(row: &Row, answered: bool, contexts: &mut HashSet<Arc<str>>) -> Result<Question> {
    let value = |text: &str| -> Result<Value> {
        serde_json::from_str(text)
            .map_err(|error| Error::data(format!("malformed JSON: {}", json_words_in_line(&error))))
    };
    let part = |index: usize| row.parts.get(index).map_or(Ok(Value::Null), |text| value(text));
    let mut beside = match row.parts.last().map(|text| value(text)).transpose()? {
        Some(Value::Object(columns)) => columns,
        _ => Map::new(),
    };
    let entry = Entry {
        id: value(&row.text)?,
        question: part(0)?,
        answers: if answered { part(2)? } else { Value::Null },
        is_impossible: beside.remove("is_impossible").unwrap_or_default(),
    };
    let context = context(&part(1)?, contexts)?;
    question(entry, context, answered)
}

fn context(value: &Value, contexts: &mut HashSet<Arc<str>>) -> Result<Arc<str>> {
    Ok(shared(contexts, text_of("context", value)?))
}

fn text_of<'a>(name: &str, value: &'a Value) -> Result<&'a str> {
    value.as_str().ok_or_else(|| expected(name, "a text", value))
}

/// The kind of `value`, in whatever format it stands; none for an object.
fn kind(value: &Value) -> Option<Kind> {
    cell("", value.clone()).ok().map(|cell| Kind::of(&cell))
}

/// The question of `entry` about `context`; whether its file is of version 2.0 is for the caller to
/// say.
fn question(entry: Entry, context: Arc<str>, answered: bool) -> Result<Question> {
    let id = match &entry.id {
        Value::String(id) => id.clone(),
        Value::Number(id) => id.to_string(),
        other => return Err(expected("id", "a text or a number", other)),
    };
    let at = |error: Error| error.at(format_args!("question {id}"));
    let text = text_of("question", &entry.question).map_err(at)?.to_owned();
    let is_impossible = match kind(&entry.is_impossible) {
        Some(Kind::Missing | Kind::Boolean(false) | Kind::Whole(0)) => false,
        Some(Kind::Boolean(true) | Kind::Whole(1)) => true,
        _ => return Err(at(expected("is_impossible", "true or false", &entry.is_impossible))),
    };
    let answers = if answered && !is_impossible { answers(&entry.answers, &context).map_err(at)? } else { Vec::new() };
    Ok(Question { id, text, context, answers, may_be_unanswerable: false })
}

/// The answers of `value`: a list of texts and one of places, as `datasets` has them, an object for
/// each answer, or one alone. A text that is empty or null is no answer.
fn answers(value: &Value, context: &str) -> Result<Vec<Answer>> {
    let wrong = || {
        expected("answers", "texts with the places where they start", value).help(match value {
            Value::String(_) => {
                "write the rows as .jsonl or .parquet, which hold objects and lists; CSV and TSV do not"
            }
            _ => "expected {\"text\": [..], \"answer_start\": [..]}, two lists of one length",
        })
    };
    let of = |object: &Value| -> Result<Vec<(Value, Value)>> {
        match (object.get("text"), object.get("answer_start")) {
            (Some(Value::Array(texts)), Some(Value::Array(starts))) if texts.len() == starts.len() => {
                Ok(texts.iter().cloned().zip(starts.iter().cloned()).collect())
            }
            (Some(text @ (Value::String(_) | Value::Null)), Some(start)) if !start.is_array() => {
                Ok(vec![(text.clone(), start.clone())])
            }
            _ => Err(wrong()),
        }
    };
    let pairs = match value {
        Value::Null | Value::String(_) if kind(value) == Some(Kind::Missing) => Vec::new(),
        Value::Array(answers) => answers.iter().map(of).collect::<Result<Vec<_>>>()?.concat(),
        answers => of(answers)?,
    };
    let mut answers = Vec::new();
    for (text, start) in pairs {
        let is_blank = text.is_null() || text.as_str().is_some_and(|text| text.trim().is_empty());
        if !is_blank {
            answers.push(found(text_of("answers.text", &text)?, &start, context)?);
        }
    }
    Ok(answers)
}

/// The answer `text`, which is said to start at character `start` of `context`. It has to stand
/// there, but for the kind and the number of white space: a span learned from another place would
/// be another text.
fn found(text: &str, start: &Value, context: &str) -> Result<Answer> {
    let Some(Kind::Whole(named)) = kind(start) else {
        return Err(expected("answers.answer_start", "the number of a character", start));
    };
    // The place of a text that stands in the context once can be told.
    let elsewhere = || {
        let once = context.find(text).filter(|at| context.rfind(text) == Some(*at));
        once.map_or_else(String::new, |at| format!("; it stands at character {}", context[..at].chars().count()))
    };
    let Ok(start) = usize::try_from(named) else {
        return Err(Error::data(format!(
            "answers.answer_start: expected the place of {text:?}, got {named}{}",
            elsewhere()
        ))
        .help(
            "a question without an answer has no text; otherwise answer_start counts characters of the context from 0",
        ));
    };
    let tail = context.char_indices().nth(start).map_or("", |(at, _)| &context[at..]);
    if let Some((before, len)) = matched(tail, text) {
        let text = tail.chars().skip(before).take(len).collect();
        return Ok(Answer { text, start: start + before });
    }
    let stands = tail.chars().take(text.chars().count()).collect::<String>();
    Err(Error::data(format!(
        "the answer {text:?} is not in its context at character {start}; there stands {stands:?}{}",
        elsewhere()
    ))
    .help("answer_start counts characters (not bytes) of the context from 0"))
}

/// How many characters of white space precede `text` at the beginning of `tail`, and how many of
/// `tail` it has, if it stands there exactly, or with other white space.
fn matched(tail: &str, text: &str) -> Option<(usize, usize)> {
    if tail.starts_with(text) {
        return Some((0, text.chars().count()));
    }
    let before = tail.chars().take_while(|c| c.is_whitespace()).count();
    let (mut tail, mut text) = (tail.chars().skip(before).peekable(), text.trim().chars().peekable());
    let mut len = 0;
    while let Some(c) = text.next() {
        let other = tail.next()?;
        len += 1;
        if c.is_whitespace() && other.is_whitespace() {
            while text.next_if(|c| c.is_whitespace()).is_some() {}
            while tail.next_if(|c| c.is_whitespace()).is_some() {
                len += 1;
            }
        } else if c != other {
            return None;
        }
    }
    Some((before, len))
}

fn read_file(
    path: &Path,
    answered: bool,
    contexts: &mut HashSet<Arc<str>>,
    questions: &mut Vec<Question>,
) -> Result<Vec<usize>> {
    let shown = path.display();
    let io = |error: std::io::Error| read_error(path, &error);
    let mut opened = BufReader::new(Decoded::open(path).map_err(io)?);
    let head = opened.fill_buf().map_err(io)?;
    if let Some(byte) = head.first().filter(|byte| utf16(0, **byte).is_some()) {
        return Err(not_utf8(path, 0, *byte));
    }
    let mark = if head.starts_with(&MARK_BYTES) { MARK_BYTES.len() } else { 0 };
    let is_list = head[mark..].iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    opened.consume(mark);
    // As a stream: what is no SQuAD shows at its beginning, however large it is.
    let read = if is_list {
        serde_json::from_reader(opened).map(|data| File { data, version: Value::Null })
    } else {
        serde_json::from_reader(opened)
    };
    let file: File = read.map_err(|error| {
        let place = format!("{shown} line {}, column {}", error.line(), error.column());
        match error.classify() {
            serde_json::error::Category::Io => io(error.into()),
            serde_json::error::Category::Data => Error::data(format!("{place}: no SQuAD JSON"))
                .help("expected {\"version\": .., \"data\": [{\"paragraphs\": [{\"context\": .., \"qas\": [..]}]}]}, or a list of \
                       objects with id, question, context and answers"),
            serde_json::error::Category::Eof => {
                Error::data(format!("{place}: malformed JSON, which ends there")).help("is the file whole?")
            }
            serde_json::error::Category::Syntax => {
                let words = json_words_in_line(&error);
                Error::data(format!("{shown} line {}, {words}", error.line())).help(
                    "correct the file there; for NaN and Infinity, which Python's json writes and JSON does not have, \
                     write null, or write a row in each line of a .jsonl",
                )
            }
        }
    })?;
    let (first, mut of_version_2) = (questions.len(), is_version_2(&file.version));
    let mut rows = Vec::new();
    for (index, item) in file.data.into_iter().enumerate() {
        if let Some(paragraphs) = item.paragraphs {
            for paragraph in paragraphs {
                let context = context(&paragraph.context, contexts).map_err(|error| error.at(&shown))?;
                for entry in paragraph.qas {
                    of_version_2 |= !entry.is_impossible.is_null();
                    questions.push(question(entry, context.clone(), answered).map_err(|error| error.at(&shown))?);
                }
            }
            continue;
        }
        let place = format!("{shown}: item {}", index + 1);
        if item.annotations.is_some() {
            return Err(Error::data(format!("{place}: it is a task of Label Studio, with annotations")).help(
                "write each annotated question as an object with id, question, context and answers = \
                       {\"text\": [..], \"answer_start\": [..]}; value.start of Label Studio is answer_start",
            ));
        }
        let Item { id, question: text, answers, is_impossible, .. } = item;
        of_version_2 |= !is_impossible.is_null();
        rows.push(questions.len());
        let entry = Entry { id, question: text, answers, is_impossible };
        let context = context(&item.context, contexts).map_err(|error| {
            error.at(&place).help("an article has paragraphs; a question has id, question, context and answers")
        })?;
        questions.push(question(entry, context, answered).map_err(|error| error.at(&place))?);
    }
    for (index, question) in questions.iter_mut().enumerate().skip(first) {
        question.may_be_unanswerable = of_version_2;
        if answered && !of_version_2 && question.answers.is_empty() && rows.binary_search(&index).is_err() {
            return Err(Error::data(format!("{shown}: question {}: it has no answer", question.id))
                .help("questions without an answer are marked `\"is_impossible\": true` (SQuAD 2.0)"));
        }
    }
    Ok(rows)
}

/// Whether the `version` of a file is 2.0: `"v2.0"`, `"2"` or `2.0`.
fn is_version_2(version: &Value) -> bool {
    match version {
        Value::String(version) => version.trim_start_matches(['v', 'V']).starts_with('2'),
        Value::Number(version) => version.as_f64().is_some_and(|version| (2.0..3.0).contains(&version)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::messages::messages;

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
    fn an_answer_of_another_alphabet_is_found_and_its_place_is_told() {
        let messages = messages!();
        for (context, text, start) in
            [("the Élodie film", "Élodie", 4), ("in 東京 today", "東京", 3), ("a £5 note", "£5", 2)]
        {
            let found = |start: usize| found(text, &start.into(), context);
            assert_eq!(found(start).unwrap(), Answer { text: text.into(), start });
            messages.refused(format!("{text} at {} of {context}", start + 2), found(start + 2));
        }
        messages.refused("é at 9 of é and é, twice", found("é", &9.into(), "é and é, twice"));
    }

    #[test]
    fn rows_are_read_as_the_articles_are() {
        let messages = messages!();
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
        for answers in [r#"{"text": ["city"], "answer_start": []}"#, "3", r#"{"text": ["city"], "answer_start": [13]}"#]
        {
            messages.refused(answers, rows(&[row("q9", answers)]));
        }
    }

    #[test]
    fn forms_of_other_programs_are_read() {
        let messages = messages!();
        let one = parse(&file(r#"{"id": "1", "question": "W?", "answers": [{"text": "city", "answer_start": 12}]}"#))
            .unwrap();
        // Numbers as ids, one answer by itself, whole numbers with a fraction, keys of Haystack.
        for entry in [
            r#"{"id": 1, "question": "W?", "answers": {"text": "city", "answer_start": 12.0}}"#,
            r#"{"id": 1, "question": "W?", "answers": {"text": ["city"], "answer_start": [12]}, "is_impossible": null}"#,
            r#"{"id": 1, "question": "W?", "answers": [{"answer_id": 4, "text": "city", "answer_start": 12, "answer_end": 16}]}"#,
        ] {
            assert_eq!(parse(&file(entry)).unwrap(), one, "{entry}");
        }
        // Rows in a list, and in `data` as run_qa.py takes them.
        let row = |answers: &str| {
            format!(r#"{{"id": 1, "question": "W?", "context": "Zürich is a city.", "answers": {answers}}}"#)
        };
        let answered = row(r#"{"text": ["city"], "answer_start": [12]}"#);
        assert_eq!(parse(&format!("[{answered}]")).unwrap(), one);
        assert_eq!(parse(&format!(r#"{{"version": 1.1, "data": [{answered}]}}"#)).unwrap(), one);
        // No answer is no text, wherever it is said to start; a file of articles must be of version
        // 2.0.
        for nothing in [r#"{"text": [], "answer_start": []}"#, r#"{"text": [""], "answer_start": [-1]}"#, "null"] {
            let both = parse(&format!("[{answered}, {}]", row(nothing))).unwrap();
            assert!(
                both.iter().all(|question| question.may_be_unanswerable) && both[1].answers.is_empty(),
                "{nothing}"
            );
            let entry = format!(r#"{{"id": 1, "question": "W?", "answers": {nothing}}}"#);
            messages.refused(&entry, parse(&file(&entry)));
            for version in ["2.0", "2", "\"v2.0\""] {
                let of_version = file(&entry).replacen('{', &format!("{{\"version\": {version}, "), 1);
                assert!(parse(&of_version).unwrap()[0].may_be_unanswerable, "{version}");
            }
        }
        let impossible = row("[]").replacen('{', "{\"is_impossible\": 1, ", 1);
        assert!(parse(&format!("[{impossible}]")).unwrap()[0].may_be_unanswerable);
    }

    #[test]
    fn an_answer_with_other_white_space_is_that_of_the_context() {
        for (context, text, start, found) in [
            ("in New\u{a0} York.", "New York", 3, Some((3, "New\u{a0} York"))),
            ("in New York.", " New\nYork ", 2, Some((3, "New York"))),
            ("in New York.", "New York", 2, Some((3, "New York"))),
            ("in New York.", "NewYork", 3, None),
            ("in New", "New York", 3, None),
            ("in New York.", " New", 2, Some((2, " New"))),
        ] {
            let answer = super::found(text, &Value::from(start), context).ok();
            let expected = found.map(|(start, text)| Answer { text: text.into(), start });
            assert_eq!(answer, expected, "{text:?} in {context:?}");
        }
    }

    /// tests/fixtures/make_tables.py writes both, the first with pyarrow.
    #[test]
    fn the_parquet_of_the_hub_has_the_questions_of_the_json() {
        let file = |name: &str| {
            [PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/tables")).join(name)]
        };
        let questions = read(&file("squad.parquet")).unwrap();
        assert_eq!(questions, read(&file("squad.json")).unwrap());
        assert_eq!(questions.len(), 4);
        let unanswered = read_unanswered(&file("squad.parquet")).unwrap();
        assert!(unanswered.iter().all(|question| question.answers.is_empty()));
    }

    #[test]
    fn what_is_refused() {
        let messages = messages!();
        for text in [
            "[1]",
            r#"{"data": []}"#,
            r#"{"data": [{}]}"#,
            r#"{"data": ["#,
            "{\"data\": [\n",
            "{\"data\": [\n{\"score\": NaN}]}",
            r#"[{"id": 1, "annotations": [], "data": {"text": "a"}}]"#,
        ] {
            messages.refused(text, parse(text));
        }
        for question in [
            r#"{"id": "q7", "question": "W?", "answers": [{"text": "city", "answer_start": 13}]}"#,
            r#"{"id": "q8", "question": "W?", "answers": []}"#,
            r#"{"id": 7, "question": "W?", "answers": [{"text": "city", "answer_start": -1}]}"#,
            r#"{"id": 7, "question": "W?", "answers": [{"text": "city", "answer_start": 1.5}]}"#,
            r#"{"id": 7, "question": "W?", "answers": [{"text": "city", "answer_start": 10}]}"#,
            r#"{"id": 7, "question": "W?", "answers": [{"text": 3, "answer_start": 11}]}"#,
            r#"{"id": 7, "question": "W?", "answers": [{"text": "city"}]}"#,
            r#"{"id": 7, "question": "W?", "answers": [], "is_impossible": "no"}"#,
            r#"{"question": "W?", "answers": []}"#,
            r#"{"id": "x", "answers": []}"#,
        ] {
            messages.refused(question, parse(&file(question)));
        }
    }
}
