//! Windows in one memory-mapped file, so that only the questions stay in memory. Kept and guarded as the
//! [token store](crate::data::store): encoded on all cores, written as a stream under a key of everything it depends on, and
//! in the cache only when it is whole. What is predicted once goes through a file that nobody else sees.
//!
//! Layout, little-endian: `KILNWIN1`, 1 if windows have token types (u32), zero (u32), number of windows (u64), number of
//! bytes of the windows (u64), SHA-256 of these 32 bytes; the windows, each question, tokens, first token of the context,
//! tokens of the context, first and last token of the answer (u32 each), the ids (u32), the token types (a byte each), first
//! and one past the last character of every token of the context (u32 each); where each window starts (u64).

use std::fs::{self, File};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::Path;

use memmap2::Mmap;
use sha2::{Digest, Sha256};
use tokenizers::parallelism::MaybeParallelIterator;

use super::read::Question;
use super::windows::{Window, WindowEncoder};
use crate::cache;
use crate::data::store::{OnProgress, Progress, cache_error};
use crate::error::{Error, Result};

const MAGIC: &[u8; 8] = b"KILNWIN1";
const HEADER: usize = 64;
const HEAD: usize = 24;

/// Questions are encoded in groups of so many, to use all cores while holding little at a time.
const GROUP: usize = 256;

/// Windows on disk.
#[derive(Debug)]
pub(super) struct WindowStore {
    map: Mmap,
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
        let path = folder.join(format!("{}.windows", key(questions, encoder)));
        if path.is_file() {
            match Self::open(&path) {
                Ok(store) => return Ok(store),
                // A damaged cache is no reason to fail: the questions are still there.
                Err(error) => eprintln!("warning: {error}; tokenising again"),
            }
        }
        let io = |error: std::io::Error| cache_error(folder, &error);
        fs::create_dir_all(folder).map_err(io)?;
        let aside = tempfile::NamedTempFile::new_in(folder).map_err(io)?;
        write(aside.as_file(), questions, encoder, progress, &io)?;
        aside.as_file().sync_all().map_err(io)?;
        aside.persist(&path).map_err(|error| io(error.error))?;
        Self::open(&path)
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
        write(&file, questions, encoder, progress, &io)?;
        Self::map(&file, Path::new("a temporary file"))
    }

    /// Opens a store that is on disk.
    ///
    /// # Errors
    /// A file that is no window store, is cut short, or does not match its checksum.
    fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|error| Error::io(format!("read {}", path.display()), &error))?;
        Self::map(&file, path)
    }

    fn map(file: &File, path: &Path) -> Result<Self> {
        let bad = |what: &str| Error::data(format!("{}: {what}", path.display()));
        // SAFETY: the map is read-only, and nothing of Kiln's writes to the file again. As with every mapped file, whoever
        // truncates it from outside stops this process.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(file) };
        let map = map.map_err(|error| Error::io(format!("read {}", path.display()), &error))?;
        if map.len() < HEADER || &map[..8] != MAGIC {
            return Err(bad("not a window store of this version"));
        }
        if Sha256::digest(&map[..32])[..] != map[32..HEADER] {
            return Err(bad("damaged header"));
        }
        let (has_types, len) = (u64_at(&map, 8) == 1, u64_at(&map, 16) as usize);
        let index = HEADER + u64_at(&map, 24) as usize;
        if map.len() != index + len * 8 {
            return Err(bad(&format!("expected {} bytes, got {}", index + len * 8, map.len())));
        }
        let store = Self { map, has_types, len, index };
        // Windows follow one another without gaps; a damaged index or length does not get past this.
        let mut expected = HEADER;
        for window in 0..len {
            let at = u64_at(&store.map, index + window * 8) as usize;
            if at != expected || at + HEAD > index {
                return Err(bad(&format!("damaged index at window {window}")));
            }
            let [_, tokens, _, context, _, _] = store.head(at);
            expected = at + HEAD + tokens * (4 + usize::from(has_types)) + context * 8;
        }
        if expected != index {
            return Err(bad("damaged index"));
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

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].as_chunks().0[0])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].as_chunks().0[0])
}

/// SHA-256 over everything the windows depend on.
fn key(questions: &[Question], encoder: &WindowEncoder) -> String {
    let mut hash = Sha256::new();
    hash.update(MAGIC);
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
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn write(
    file: &File,
    questions: &[Question],
    encoder: &WindowEncoder,
    progress: &mut OnProgress<'_>,
    io: &dyn Fn(std::io::Error) -> Error,
) -> Result<()> {
    let size = |question: &Question| (question.text.len() + question.context.len()) as u64;
    let mut state = Progress { done_bytes: 0, total_bytes: questions.iter().map(size).sum(), tokens: 0 };
    let mut writer = BufWriter::with_capacity(1 << 20, file);
    writer.write_all(&[0; HEADER]).map_err(io)?;
    let (mut starts, mut at) = (Vec::<u64>::new(), HEADER as u64);
    for (group, some) in questions.chunks(GROUP).enumerate() {
        let numbered = some.iter().enumerate().map(|(index, question)| (group * GROUP + index, question));
        let windows = numbered.collect::<Vec<_>>().into_maybe_par_iter();
        let windows = windows.map(|(index, question)| encoder.windows(index, question)).collect::<Result<Vec<_>>>()?;
        for window in windows.iter().flatten() {
            let bytes = bytes_of(window);
            writer.write_all(&bytes).map_err(io)?;
            starts.push(at);
            at += bytes.len() as u64;
            state.tokens += window.input_ids.len() as u64;
        }
        state.done_bytes += some.iter().map(size).sum::<u64>();
        if progress(state).is_break() {
            return Err(Error::data("tokenising was interrupted").help("nothing was kept"));
        }
    }
    for start in &starts {
        writer.write_all(&start.to_le_bytes()).map_err(io)?;
    }
    let mut header = MAGIC.to_vec();
    header.extend(u64::from(encoder.has_types()).to_le_bytes());
    header.extend((starts.len() as u64).to_le_bytes());
    header.extend((at - HEADER as u64).to_le_bytes());
    header.extend(Sha256::digest(&header));
    writer.seek(SeekFrom::Start(0)).and_then(|_| writer.write_all(&header)).map_err(io)?;
    writer.flush().map_err(io)
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
    if crate::signals::received().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::data::tokenizer::Tokenizer;
    use crate::squad::Answer;

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
        for damaged in [changed(17), changed(HEADER + 4), changed(bytes.len() - 8), bytes[..bytes.len() - 1].to_vec()] {
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
