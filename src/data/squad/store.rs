//! Windows in one memory-mapped file, so that only the questions stay in memory. Kept and guarded as the
//! [token store](crate::data::store): encoded on all cores, written as a stream under a key of everything it depends on, and
//! in the cache only when it is whole. What is predicted once goes through a file that nobody else sees.
//!
//! Layout: the header (`cache::mapped`) with `KILNWIN3`, 1 if windows have token types, the number of windows and the
//! number of their bytes; the windows, each question, tokens, first token of the context, tokens of the context, first and
//! last token of the answer (u32 each), the ids (u32), the token types (a byte each), first and one past the last character
//! of every token of the context (u32 each); where each window starts (u64).

use std::ops::ControlFlow;
use std::path::Path;

use sha2::{Digest, Sha256};
use tokenizers::parallelism::MaybeParallelIterator;

use super::read::Question;
use super::windows::{Window, WindowEncoder};
use crate::base::error::{Error, Result};
use crate::cache;
use crate::cache::mapped::{Key, Kind, Mapped, Writer, damaged, u32_at, u64_at};
use crate::data::store::{OnProgress, Progress, tell};

const KIND: Kind<3> = Kind { magic: b"KILNWIN3", name: "window store" };
const HEAD: usize = 24;

/// Questions are encoded in groups of so many, to use all cores while holding little at a time.
const GROUP: usize = 256;

/// Windows on disk.
#[derive(Debug)]
pub(super) struct WindowStore {
    map: Mapped<3>,
    has_types: bool,
    len: usize,
    /// Where the index starts.
    index: usize,
}

impl WindowStore {
    /// The windows of `questions`: from the cache, or encoded now.
    ///
    /// # Errors
    /// A question that leaves no room for its context; a cache that cannot be written; an interruption.
    pub(super) fn build_or_open(
        questions: &[Question],
        encoder: &WindowEncoder,
        progress: &mut OnProgress<'_>,
    ) -> Result<Self> {
        Self::build_or_open_in(&cache::folder()?.join(cache::WINDOWS), questions, encoder, progress)
    }

    /// As [`build_or_open`](Self::build_or_open), with the cache in `folder`.
    pub(super) fn build_or_open_in(
        folder: &Path,
        questions: &[Question],
        encoder: &WindowEncoder,
        progress: &mut OnProgress<'_>,
    ) -> Result<Self> {
        let key = key(questions, encoder);
        KIND.build_or_open(folder, &key, "windows", Self::open, |writer| write(writer, questions, encoder, progress))
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
        let io = |error: std::io::Error| Error::io("write a temporary file", &error);
        let file = tempfile::tempfile().map_err(io)?;
        KIND.write(&file, &[0; 32], &std::env::temp_dir(), &io, |writer| write(writer, questions, encoder, progress))?;
        let name = Path::new("a temporary file");
        Self::checked(KIND.map(&file, name)?, name)
    }

    /// Opens a store that is on disk.
    ///
    /// # Errors
    /// A file that is no window store, is cut short, has another's name, or does not match its digests.
    fn open(path: &Path) -> Result<Self> {
        Self::checked(KIND.open(path)?, path)
    }

    /// A mapped file whose windows are where its index says.
    fn checked(map: Mapped<3>, path: &Path) -> Result<Self> {
        let [has_types, len, index] = map.numbers;
        map.has_bytes(len.checked_mul(8).and_then(|bytes| bytes.checked_add(index)), path)?;
        let (has_types, len, index) = (has_types == 1, len as usize, index as usize);
        let store = Self { map, has_types, len, index };
        // Windows follow one another without gaps; a damaged index or length does not get past this.
        let mut expected = 0;
        for window in 0..len {
            let at = u64_at(&store.map, index + window * 8) as usize;
            if at != expected || at + HEAD > index {
                return Err(damaged(path, format!("damaged index at window {window}")));
            }
            let [_, tokens, _, context, _, _] = store.head(at);
            expected = at + HEAD + tokens * (4 + usize::from(has_types)) + context * 8;
        }
        if expected != index {
            return Err(damaged(path, "damaged index"));
        }
        Ok(store)
    }

    /// The six numbers before the ids of the window that starts at byte `at`.
    fn head(&self, at: usize) -> [usize; 6] {
        std::array::from_fn(|number| u32_at(&self.map, at + number * 4) as usize)
    }

    fn start(&self, window: usize) -> usize {
        u64_at(&self.map, self.index + window * 8) as usize
    }

    /// SHA-256 of the windows.
    pub(super) fn digest(&self) -> [u8; 32] {
        self.map.digest()
    }

    /// How many windows there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The question of a window.
    pub(super) fn question_of(&self, window: usize) -> usize {
        self.head(self.start(window))[0]
    }

    /// The tokens of a window.
    pub(super) fn len_of(&self, window: usize) -> usize {
        self.head(self.start(window))[1]
    }

    /// A window.
    pub(super) fn window(&self, window: usize) -> Window {
        let at = self.start(window);
        let [question, tokens, context_start, context, start, end] = self.head(at);
        let ids = at + HEAD;
        let types = ids + tokens * 4;
        let offsets = types + if self.has_types { tokens } else { 0 };
        let number = |at: usize| u32_at(&self.map, at);
        let character = |token: usize, side: usize| number(offsets + token * 8 + side * 4) as usize;
        Window {
            question,
            input_ids: (0..tokens).map(|token| number(ids + token * 4) as i32).collect(),
            token_type_ids: self
                .has_types
                .then(|| self.map[types..types + tokens].iter().map(|kind| i32::from(*kind)).collect()),
            context_start,
            offsets: (0..context).map(|token| (character(token, 0), character(token, 1))).collect(),
            start: start as i32,
            end: end as i32,
        }
    }
}

/// SHA-256 over everything the windows depend on.
fn key(questions: &[Question], encoder: &WindowEncoder) -> Key {
    let mut hash = Sha256::new();
    hash.update(KIND.magic);
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
    hash.finalize().into()
}

/// Writes the windows and their index; the numbers of the header.
fn write(
    writer: &mut Writer<'_>,
    questions: &[Question],
    encoder: &WindowEncoder,
    progress: &mut OnProgress<'_>,
) -> Result<[u64; 3]> {
    let size = |question: &Question| (question.text.len() + question.context.len()) as u64;
    let mut state = Progress { done_bytes: 0, total_bytes: questions.iter().map(size).sum(), tokens: 0 };
    let (mut len, mut at) = (0u64, 0u64);
    for (group, some) in questions.chunks(GROUP).enumerate() {
        let numbered = some.iter().enumerate().map(|(index, question)| (group * GROUP + index, question));
        let windows = numbered.collect::<Vec<_>>().into_maybe_par_iter();
        let windows = windows.map(|(index, question)| encoder.windows(index, question)).collect::<Result<Vec<_>>>()?;
        for window in windows.iter().flatten() {
            let bytes = bytes_of(window);
            writer.write(&bytes)?;
            writer.index(&at.to_le_bytes())?;
            len += 1;
            at += bytes.len() as u64;
            state.tokens += window.input_ids.len() as u64;
        }
        state.done_bytes += some.iter().map(size).sum::<u64>();
        tell(progress, state)?;
    }
    Ok([u64::from(encoder.has_types()), len, at])
}

fn bytes_of(window: &Window) -> Vec<u8> {
    let sizes = [window.question, window.input_ids.len(), window.context_start, window.offsets.len()];
    let mut bytes = Vec::new();
    let mut put = |number: u32| bytes.extend(number.to_le_bytes());
    sizes.into_iter().for_each(|size| put(size as u32));
    [window.start, window.end].iter().chain(&window.input_ids).for_each(|number| put(*number as u32));
    bytes.extend(window.token_type_ids.iter().flatten().map(|kind| *kind as u8));
    for (from, to) in &window.offsets {
        bytes.extend((*from as u32).to_le_bytes());
        bytes.extend((*to as u32).to_le_bytes());
    }
    bytes
}

/// Goes on unless a signal has come; for what shows no progress.
pub(super) fn until_signalled(_: Progress) -> ControlFlow<()> {
    if crate::base::signals::received().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;
    use crate::data::squad::Answer;
    use crate::data::tokenizer::Tokenizer;

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
            let built = WindowStore::build_or_open_in(&cache, &questions, &encoder, &mut |progress| {
                seen = progress.done_bytes;
                ControlFlow::Continue(())
            });
            let again = WindowStore::build_or_open_in(&cache, &questions, &encoder, &mut |_| ControlFlow::Break(()));
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
    fn a_damaged_cache_is_made_again_and_an_interruption_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (encoder, questions, cache) = (encoder(folder.path(), true), questions(), folder.path().join("cache"));
        let build = |flow| WindowStore::build_or_open_in(&cache, &questions, &encoder, &mut |_| flow);
        assert!(build(ControlFlow::Break(())).unwrap_err().to_string().contains("interrupted"));
        assert_eq!(fs::read_dir(&cache).unwrap().count(), 0);
        let whole = build(ControlFlow::Continue(())).unwrap();
        let file = fs::read_dir(&cache).unwrap().next().unwrap().unwrap().path();
        let bytes = fs::read(&file).unwrap();
        // In the header, in the length of the first window, in the index, and a file cut short.
        let changed = |at: usize| {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            changed
        };
        for damaged in
            [changed(17), changed(Kind::<3>::HEADER + 4), changed(bytes.len() - 8), bytes[..bytes.len() - 1].to_vec()]
        {
            fs::write(&file, damaged).unwrap();
            assert!(WindowStore::open(&file).is_err());
            let again = build(ControlFlow::Continue(())).unwrap();
            assert_eq!(again.window(3), whole.window(3));
        }
        // Another answer is another key.
        let mut other = questions.clone();
        other[0].answers[0].start = 8;
        assert_ne!(key(&other, &encoder), key(&questions, &encoder));
    }
}
