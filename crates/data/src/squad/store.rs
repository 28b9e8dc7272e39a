//! Windows on disk, so that only the questions stay in memory: the [store](crate::store) of what a
//! window has. Questions are encoded on all cores; those that are predicted once go through a file
//! that nobody else sees.

use std::path::Path;

use kiln_core::error::Result;
use sha2::{Digest, Sha256};
use tokenizers::parallelism::MaybeParallelIterator;

use super::read::Question;
use super::windows::{Window, WindowEncoder};
use crate::cache::mapped::Kind;
use crate::store::{Column, Format, OnProgress, Store, Writer};

const FORMAT: Format = Format {
    kind: Kind { magic: b"KILNWIN4", name: "window store", extension: "windows" },
    columns: &["question", "input_ids", "token_type_ids", "context_start", "offsets", "start", "end"],
};

const QUESTION: Column = Column(0);
const INPUT_IDS: Column = Column(1);
/// Empty lists where windows have no token types.
const TOKEN_TYPE_IDS: Column = Column(2);
const CONTEXT_START: Column = Column(3);
/// First and one past the last character of each token of the context, one after the other.
const OFFSETS: Column = Column(4);
const START: Column = Column(5);
const END: Column = Column(6);

/// Questions are encoded in groups of so many, to use all cores while holding little at a time.
const GROUP: usize = 256;

/// Windows on disk.
#[derive(Debug)]
pub(super) struct WindowStore(Store);

impl WindowStore {
    /// The windows of `questions`: from the cache in `folder`, or encoded now.
    ///
    /// # Errors
    /// A question that leaves no room for its context; a cache that cannot be written; an
    /// interruption.
    pub(super) fn build_or_open(
        folder: &Path,
        questions: &[Question],
        encoder: &WindowEncoder,
        progress: &mut OnProgress<'_>,
    ) -> Result<Self> {
        let key = key(questions, encoder);
        FORMAT.build_or_open(folder, key, progress, |writer| write(writer, questions, encoder)).map(Self)
    }

    /// The windows of `questions` in a file that goes away with this.
    ///
    /// # Errors
    /// A question that leaves no room for its context; the operating system's; an interruption.
    pub(super) fn temporary(
        questions: &[Question],
        encoder: &WindowEncoder,
        progress: &mut OnProgress<'_>,
    ) -> Result<Self> {
        FORMAT.temporary(progress, |writer| write(writer, questions, encoder)).map(Self)
    }

    /// How many windows there are.
    pub(super) fn len(&self) -> usize {
        self.0.len(QUESTION)
    }

    /// The question of a window.
    pub(super) fn question_of(&self, window: usize) -> usize {
        self.0.number(QUESTION, window) as usize
    }

    /// The tokens of a window.
    pub(super) fn len_of(&self, window: usize) -> usize {
        self.0.bounds(INPUT_IDS, window).len()
    }

    /// A window.
    pub(super) fn window(&self, window: usize) -> Window {
        let offsets = self.0.list(OFFSETS, window, |character| character as usize);
        Window {
            question: self.question_of(window),
            input_ids: self.0.list(INPUT_IDS, window, |id| id as i32),
            token_type_ids: self.0.some_list(TOKEN_TYPE_IDS, window, |kind| kind as i32),
            context_start: self.0.number(CONTEXT_START, window) as usize,
            offsets: offsets.as_chunks().0.iter().map(|[first, end]| (*first, *end)).collect(),
            start: self.0.number(START, window) as i32,
            end: self.0.number(END, window) as i32,
        }
    }
}

/// The hash of everything the windows depend on.
fn key(questions: &[Question], encoder: &WindowEncoder) -> Sha256 {
    let mut hash = FORMAT.key();
    hash.update(encoder.content_hash());
    for question in questions {
        for text in [question.text.as_str(), &question.context] {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
        // The first answer alone is learned.
        hash.update(
            question.answers.first().map_or(String::new(), |answer| format!("{}:{}\n", answer.start, answer.text)),
        );
    }
    hash
}

/// Writes the windows.
fn write(writer: &mut Writer<'_, '_>, questions: &[Question], encoder: &WindowEncoder) -> Result<()> {
    let size = |question: &Question| (question.text.len() + question.context.len()) as u64;
    writer.state.total_bytes = questions.iter().map(size).sum();
    for (group, some) in questions.chunks(GROUP).enumerate() {
        let numbered = some.iter().enumerate().map(|(index, question)| (group * GROUP + index, question));
        let windows = numbered.collect::<Vec<_>>().into_maybe_par_iter();
        let windows = windows.map(|(index, question)| encoder.windows(index, question)).collect::<Vec<_>>();
        // Of several bad questions the first is told.
        let windows = windows.into_iter().collect::<Result<Vec<_>>>()?;
        for window in windows.into_iter().flatten() {
            writer.state.tokens += window.input_ids.len() as u64;
            writer.numbers(QUESTION, [window.question as i64])?;
            writer.list(INPUT_IDS, window.input_ids)?;
            writer.list(TOKEN_TYPE_IDS, window.token_type_ids.into_iter().flatten())?;
            writer.numbers(CONTEXT_START, [window.context_start as i64])?;
            writer.list(OFFSETS, window.offsets.iter().flat_map(|(first, end)| [*first as i64, *end as i64]))?;
            writer.numbers(START, [window.start])?;
            writer.numbers(END, [window.end])?;
        }
        writer.state.done_bytes += some.iter().map(size).sum::<u64>();
        writer.tell()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::ops::ControlFlow;

    use super::*;
    use crate::squad::Answer;
    use crate::tokenizer::Tokenizer;

    fn encoder(folder: &Path, types: bool) -> WindowEncoder {
        fs::write(folder.join("vocab.txt"), "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\n").unwrap();
        Tokenizer::load(folder).unwrap().window_encoder(12, 2, types).unwrap()
    }

    fn questions() -> Vec<Question> {
        let question = |i: usize| Question {
            id: i.to_string(),
            text: "c a".into(),
            context: "a b c ".repeat(1 + i % 7).into(),
            answers: vec![Answer { text: "b".into(), start: 2 }],
            may_be_unanswerable: false,
        };
        (0..600).map(question).collect()
    }

    #[test]
    fn windows_come_back_as_they_were_encoded() {
        let folder = tempfile::tempdir().unwrap();
        for types in [true, false] {
            let (encoder, questions) = (encoder(folder.path(), types), questions());
            let cache = folder.path().join(types.to_string());
            let mut seen = 0;
            let built = WindowStore::build_or_open(&cache, &questions, &encoder, &mut |progress| {
                seen = progress.done_bytes;
                ControlFlow::Continue(())
            });
            let again = WindowStore::build_or_open(&cache, &questions, &encoder, &mut |_| ControlFlow::Break(()));
            let temporary = WindowStore::temporary(&questions, &encoder, &mut |_| ControlFlow::Continue(()));
            let expected = questions.iter().enumerate().flat_map(|(i, q)| encoder.windows(i, q).unwrap());
            let expected = expected.collect::<Vec<_>>();
            assert!(expected.len() > questions.len() && seen > 0);
            for store in [built.unwrap(), again.unwrap(), temporary.unwrap()] {
                let windows = (0..store.len()).map(|window| store.window(window)).collect::<Vec<_>>();
                assert_eq!(windows, expected);
                let last = expected.len() - 1;
                let tail = (store.question_of(last), store.len_of(last));
                assert_eq!(tail, (599, expected[last].input_ids.len()));
            }
        }
    }

    #[test]
    fn another_answer_is_another_key() {
        let folder = tempfile::tempdir().unwrap();
        let (encoder, questions) = (encoder(folder.path(), true), questions());
        let mut other = questions.clone();
        other[0].answers[0].start = 8;
        assert_ne!(key(&other, &encoder).finalize(), key(&questions, &encoder).finalize());
    }
}
