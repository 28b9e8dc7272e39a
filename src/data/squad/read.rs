//! SQuAD's JSON files: articles, paragraphs, questions with their answers. `answer_start` counts characters (Unicode code
//! points), as Python does.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use crate::base::error::{Error, Result};
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
    /// Whether the file is of version 2.0, in which "no answer" may be right.
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

/// The questions of `files`, in order.
///
/// # Errors
/// A file that cannot be read or is no SQuAD JSON; an answer that is not in its context at the place it names; no
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
    let mut questions = Vec::new();
    for file in files {
        read_file(file, answered, &mut questions)?;
    }
    if questions.is_empty() {
        let first = files.first().map(|file| file.display().to_string()).unwrap_or_default();
        return Err(Error::data(format!("{first}: expected questions, found none")));
    }
    Ok(questions)
}

fn read_file(path: &Path, answered: bool, questions: &mut Vec<Question>) -> Result<()> {
    let shown = path.display();
    let io = |error: std::io::Error| Error::io(format!("read {shown}"), &error);
    let mut opened = BufReader::new(std::fs::File::open(path).map_err(io)?);
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
        let context: Arc<str> = paragraph.context.as_str().into();
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
