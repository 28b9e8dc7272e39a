//! Training data that are read in order as they are needed, and kept nowhere: `data.streaming`, as
//! `load_dataset(streaming=True)` of `datasets`. They are shuffled in a buffer, by the rule of
//! `IterableDataset.shuffle`: once it is full, each example that is read takes the place of a
//! random one, which is handed out; at the end of the files what is left is shuffled. Then they
//! begin again.
//!
//! A [`Streamed`] is a dataset whose examples come in the order of their indices:
//! [`get`](Dataset::get) of the next one costs little, of one before it the reading of a buffer's
//! worth of examples. Its [position](Stream::position) in a checkpoint tells where each example of
//! the buffer stands in the files, so that a run goes on with the same examples without reading
//! what was before.

mod readers;

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kiln_core::dataset::Stream;
use kiln_core::error::{Error, Result};
use kiln_core::files::{hex, read_error};
use kiln_core::random::{seed_for, uniform};
use kiln_core::words::json_words;
pub use readers::{Encode, blocks, rows};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::masking::Masked;
use super::{Dataset, Example, Fingerprint};

/// The first and the last so many bytes of a file are part of the digest of a stream.
const DIGESTED: u64 = 1 << 16;

/// So many examples before the newest can be found again without reading the files from their
/// beginning.
const REMEMBERED: usize = 1 << 17;

/// A place in the files from which reading can begin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The number of the file.
    pub file: usize,
    /// The byte at which a piece of a file of text begins; of lines and rows, how many stand before
    /// it.
    pub at: u64,
    /// Tokens of it that belong to earlier examples.
    pub skip: u64,
}

/// Examples as they are read, each with the place from which it is read again.
pub type Examples = Box<dyn Iterator<Item = Result<(Mark, Example)>> + Send>;

/// Reads examples from a place on.
type Source = dyn Fn(Mark) -> Examples + Send + Sync;

/// Where a stream stands: `state.json` of a checkpoint has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StreamPosition {
    /// Examples handed out in all.
    index: u64,
    /// Passes over the files that are over.
    pass: u64,
    /// Examples of this pass that were handed out.
    drawn: u64,
    /// Examples of this pass that were read.
    read: u64,
    /// The files are at their end.
    ended: bool,
    /// By how many examples before `read` each place of the buffer was filled.
    #[serde(with = "numbers")]
    buffer: Vec<u64>,
    /// Where the first of them stands.
    oldest: Mark,
}

impl StreamPosition {
    fn start(index: u64, pass: u64) -> Self {
        Self { index, pass, drawn: 0, read: 0, ended: false, buffer: Vec::new(), oldest: Mark::default() }
    }
}

/// Numbers as one text: a list in indented JSON has a line for each.
mod numbers {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    #[allow(clippy::ptr_arg)] // serde's signature
    pub(super) fn serialize<S: Serializer>(numbers: &Vec<u64>, serializer: S) -> Result<S::Ok, S::Error> {
        let texts = numbers.iter().map(u64::to_string).collect::<Vec<_>>();
        serializer.serialize_str(&texts.join(" "))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.split_whitespace().map(|number| number.parse().map_err(D::Error::custom)).collect()
    }
}

/// Examples that are read as they are needed.
pub struct Streamed {
    source: Box<Source>,
    files: Vec<PathBuf>,
    /// SHA-256 of what decides the examples.
    digest: [u8; 32],
    shuffle: Shuffle,
    /// Tokens of the longest example.
    longest: usize,
    /// Whether every example has so many.
    is_exact: bool,
    /// Examples of the run.
    len: AtomicUsize,
    states: Mutex<States>,
}

/// The order of the examples.
#[derive(Debug, Clone, Copy)]
pub struct Shuffle {
    /// Examples of the buffer; with 1 they keep the order of the files.
    pub buffer: usize,
    /// The seed of the draws.
    pub seed: u64,
}

/// How the examples of a stream are made.
pub struct Made {
    /// From a place on.
    pub source: Box<Source>,
    /// The files that they are read from.
    pub files: Vec<PathBuf>,
    /// The settings that decide them, besides the files.
    pub settings: Sha256,
    /// Tokens of the longest.
    pub longest: usize,
    /// Whether every example has so many.
    pub is_exact: bool,
}

/// The readings of a stream: one that goes on, and one for examples before it, which checks of the
/// compiler ask for.
#[derive(Default)]
struct States {
    main: State,
    aside: State,
}

/// A reading of a stream.
#[derive(Default)]
struct State {
    cursor: Option<Cursor>,
    /// How to take back the last examples, the newest at the end.
    undo: VecDeque<Undo>,
}

/// An example of the buffer.
struct Slot {
    /// Its number in the pass.
    number: u64,
    mark: Mark,
    example: Example,
}

/// Where reading stands.
struct Cursor {
    index: u64,
    pass: u64,
    drawn: u64,
    read: u64,
    ended: bool,
    buffer: Vec<Slot>,
    examples: Examples,
}

/// The change that handing out an example makes to the position.
enum Undo {
    /// It stood in this place of the buffer, and another one came there.
    Replaced(usize, u64, Mark),
    /// It was the last of a buffer that is emptied.
    Popped(u64, Mark),
    /// It was the last of the buffer, which had just been shuffled because the files came to their
    /// end.
    Ended(u64, Mark),
    /// A pass had ended before it, with so many examples; then as the one in the box.
    Passed(u64, Box<Undo>),
}

impl Streamed {
    /// The examples that `made` makes, in the order of `shuffle`.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn new(made: Made, shuffle: Shuffle) -> Result<Self> {
        let Made { source, files, settings, longest, is_exact } = made;
        let mut hash = settings;
        hash.update(format!("buffer {} seed {}\n", shuffle.buffer, shuffle.seed));
        files.iter().try_for_each(|file| hash_ends(file, &mut hash))?;
        let digest = hash.finalize().into();
        let (len, states) = (AtomicUsize::new(1), Mutex::default());
        Ok(Self { source, files, digest, shuffle, longest, is_exact, len, states })
    }

    /// The stream that `data` is, or of which it masks the examples; none for other data.
    pub fn of<E: Fingerprint>(data: &dyn Dataset<E>) -> Option<&Self> {
        let data = data as &dyn Any;
        data.downcast_ref().or_else(|| Self::of(data.downcast_ref::<Masked>()?.inner()))
    }

    /// Takes `len` examples as the whole: those of a run.
    pub fn set_len(&self, len: usize) {
        self.len.store(len.max(1), Ordering::Relaxed);
    }

    /// Whether every example has as many tokens as the longest.
    pub fn is_exact(&self) -> bool {
        self.is_exact
    }

    fn states(&self) -> MutexGuard<'_, States> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at(&self, position: &StreamPosition) -> Result<State> {
        Ok(State { cursor: Some(self.cursor(position)?), undo: VecDeque::new() })
    }

    /// The reading at `position`.
    fn cursor(&self, position: &StreamPosition) -> Result<Cursor> {
        let StreamPosition { index, pass, drawn, read, ended, .. } = *position;
        let changed = || {
            Error::data(format!("{}: the files do not have the examples that they had", self.files[0].display()))
                .help("they have changed since the checkpoint was written")
        };
        // The number of each example of the buffer, and its place there.
        let wanted = position.buffer.iter().enumerate();
        let wanted = wanted.map(|(place, before)| Some((read.checked_sub(*before)?, place)));
        let wanted = wanted.collect::<Option<BTreeMap<_, _>>>().ok_or_else(changed)?;
        let mut examples = (self.source)(position.oldest);
        let mut buffer = (0..position.buffer.len()).map(|_| None).collect::<Vec<_>>();
        let first = wanted.first_key_value().map_or(read, |(number, _)| *number);
        for number in first..read {
            let (mark, example) = examples.next().ok_or_else(changed)??;
            if let Some(place) = wanted.get(&number) {
                buffer[*place] = Some(Slot { number, mark, example });
            }
        }
        let buffer = buffer.into_iter().collect::<Option<Vec<_>>>().ok_or_else(changed)?;
        Ok(Cursor { index, pass, drawn, read, ended, buffer, examples })
    }

    /// The next example of `state`.
    fn next(&self, state: &mut State) -> Result<Example> {
        let State { cursor, undo } = state;
        let cursor = match cursor {
            Some(cursor) => cursor,
            None => cursor.insert(self.cursor(&StreamPosition::start(0, 0))?),
        };
        let mut passed = None;
        let (slot, change) = loop {
            match cursor.draw(&self.shuffle) {
                Ok(Some(drawn)) => break drawn,
                Ok(None) if cursor.read == 0 => {
                    return Err(Error::data(format!("{}: the files have no example", self.files[0].display()))
                        .help("a block of a language model needs data.block_size tokens"));
                }
                Ok(None) => {
                    passed = Some(cursor.read);
                    let (index, pass) = (cursor.index, cursor.pass + 1);
                    *cursor = self.cursor(&StreamPosition::start(index, pass))?;
                }
                // The error loses the text that was read: who asks again begins again.
                Err(error) => {
                    *state = State::default();
                    return Err(error);
                }
            }
        };
        cursor.index += 1;
        cursor.drawn += 1;
        undo.push_back(match passed {
            Some(read) => Undo::Passed(read, Box::new(change)),
            None => change,
        });
        if undo.len() > REMEMBERED {
            undo.pop_front();
        }
        Ok(slot.example)
    }
}

impl Cursor {
    /// An example, and how to take it back; none at the end of the pass.
    fn draw(&mut self, shuffle: &Shuffle) -> Result<Option<(Slot, Undo)>> {
        let mut has_ended = false;
        while !self.ended {
            let Some(read) = self.examples.next() else {
                self.ended = true;
                has_ended = true;
                for (a, b) in tail_swaps(shuffle, self.pass, self.buffer.len()) {
                    self.buffer.swap(a, b);
                }
                break;
            };
            let (mark, example) = read?;
            let slot = Slot { number: self.read, mark, example };
            self.read += 1;
            if self.buffer.len() < shuffle.buffer {
                self.buffer.push(slot);
                continue;
            }
            let hash = seed_for(shuffle.seed, "stream", self.pass, self.drawn);
            let place = (uniform(hash) * self.buffer.len() as f64) as usize;
            let slot = std::mem::replace(&mut self.buffer[place], slot);
            let undo = Undo::Replaced(place, slot.number, slot.mark);
            return Ok(Some((slot, undo)));
        }
        Ok(self.buffer.pop().map(|slot| {
            let (number, mark) = (slot.number, slot.mark);
            (slot, if has_ended { Undo::Ended(number, mark) } else { Undo::Popped(number, mark) })
        }))
    }
}

/// The swaps that shuffle the last `len` examples of a pass (Fisher and Yates), in order.
fn tail_swaps(shuffle: &Shuffle, pass: u64, len: usize) -> Vec<(usize, usize)> {
    let swap = |last: usize| {
        let hash = seed_for(shuffle.seed, "stream's end", pass, last as u64);
        (last, (uniform(hash) * (last + 1) as f64) as usize)
    };
    (1..len).rev().map(swap).collect()
}

impl State {
    /// The index of the next example.
    fn index(&self) -> u64 {
        self.cursor.as_ref().map_or(0, |cursor| cursor.index)
    }

    /// The position before the example at `index`; none for one that is too far back.
    fn position(&self, index: u64, shuffle: &Shuffle) -> Option<StreamPosition> {
        let Some(cursor) = &self.cursor else { return (index == 0).then(|| StreamPosition::start(0, 0)) };
        let back = usize::try_from(cursor.index.checked_sub(index)?).ok()?;
        if back > self.undo.len() {
            return None;
        }
        let (mut pass, mut drawn, mut read, mut ended) = (cursor.pass, cursor.drawn, cursor.read, cursor.ended);
        let mut buffer = cursor.buffer.iter().map(|slot| (slot.number, slot.mark)).collect::<Vec<_>>();
        for undo in self.undo.iter().rev().take(back) {
            let (undo, passed) = match undo {
                Undo::Passed(read, undo) => (&**undo, Some(*read)),
                undo => (undo, None),
            };
            drawn -= 1;
            match undo {
                Undo::Replaced(place, number, mark) => {
                    read -= 1;
                    buffer[*place] = (*number, *mark);
                }
                Undo::Popped(number, mark) => buffer.push((*number, *mark)),
                Undo::Ended(number, mark) => {
                    ended = false;
                    buffer.push((*number, *mark));
                    for (a, b) in tail_swaps(shuffle, pass, buffer.len()).into_iter().rev() {
                        buffer.swap(a, b);
                    }
                }
                Undo::Passed(..) => return None,
            }
            if let Some(of_pass) = passed {
                (pass, drawn, read, ended) = (pass - 1, of_pass, of_pass, true);
                buffer.clear();
            }
        }
        if drawn == 0 {
            return Some(StreamPosition::start(index, pass));
        }
        let oldest = buffer.iter().min_by_key(|(number, _)| *number).map_or(Mark::default(), |(_, mark)| *mark);
        let buffer = buffer.into_iter().map(|(number, _)| read - number).collect();
        Some(StreamPosition { index, pass, drawn, read, ended, buffer, oldest })
    }
}

impl Stream for Streamed {
    /// SHA-256 of the settings that decide the examples and of the size, the beginning and the end
    /// of each file.
    fn digest(&self) -> String {
        hex(&self.digest)
    }

    fn position(&self, index: u64) -> Result<Value> {
        let mut states = self.states();
        let States { main, aside } = &mut *states;
        // Another process has had the examples in between.
        while main.index() < index {
            self.next(main)?;
        }
        let known = main.position(index, &self.shuffle).or_else(|| aside.position(index, &self.shuffle));
        // Of examples that are so far back the place is not known any more: they are read again
        // from the beginning.
        let position = known.unwrap_or_else(|| StreamPosition::start(0, 0));
        serde_json::to_value(position).map_err(|error| bad_position(&error))
    }

    fn seek(&self, position: &Value) -> Result<()> {
        let position = StreamPosition::deserialize(position).map_err(|error| bad_position(&error))?;
        let main = self.at(&position)?;
        *self.states() = States { main, aside: State::default() };
        Ok(())
    }
}

impl Dataset for Streamed {
    fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    fn get(&self, index: usize, epoch: u64) -> Result<Example> {
        let index = epoch * self.len() as u64 + index as u64;
        let mut states = self.states();
        let States { main, aside } = &mut *states;
        let state = if index >= main.index() {
            main
        } else {
            if aside.index() != index {
                let position = main.position(index, &self.shuffle).or_else(|| aside.position(index, &self.shuffle));
                match position {
                    Some(position) => *aside = self.at(&position)?,
                    None if aside.index() > index => *aside = State::default(),
                    None => {}
                }
            }
            aside
        };
        loop {
            let is_wanted = state.index() == index;
            let example = self.next(state)?;
            if is_wanted {
                return Ok(example);
            }
        }
    }

    /// For examples of several lengths the length of the longest.
    fn len_of(&self, _index: usize) -> usize {
        self.longest
    }

    fn max_len(&self) -> usize {
        self.longest
    }

    fn num_tokens(&self) -> u64 {
        if self.is_exact { self.len() as u64 * self.longest as u64 } else { 0 }
    }

    fn stream(&self) -> Option<&dyn Stream> {
        Some(self)
    }
}

fn bad_position(error: &serde_json::Error) -> Error {
    Error::data(format!("the position in the streamed files: {}", json_words(error)))
}

/// Adds the size of `file`, and its beginning and its end, to `hash`.
fn hash_ends(file: &Path, hash: &mut Sha256) -> Result<()> {
    use std::io::{Read, Seek, SeekFrom};
    let read = || -> std::io::Result<(u64, Vec<u8>)> {
        let mut opened = std::fs::File::open(file)?;
        let bytes = opened.metadata()?.len();
        let mut ends = Vec::new();
        (&mut opened).take(DIGESTED).read_to_end(&mut ends)?;
        opened.seek(SeekFrom::Start(bytes.saturating_sub(DIGESTED)))?;
        opened.take(DIGESTED).read_to_end(&mut ends)?;
        Ok((bytes, ends))
    };
    let (bytes, ends) = read().map_err(|error| read_error(file, &error))?;
    hash.update(bytes.to_le_bytes());
    hash.update(&ends);
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use super::*;
    use crate::blocks::Blocks;
    use crate::corpus::Corpus;
    use crate::settings::{DataFormat, Documents};
    use crate::table::{Columns, Table};
    use crate::tokenizer::Tokenizer;
    use crate::tokens::TokenStore;

    fn texts(folder: &Path) -> (PathBuf, PathBuf, PathBuf) {
        let document = |i: usize| format!("document {i} says hello world and 日本語, hello kiln. ").repeat(1 + i % 5);
        let (text, lines, csv) = (folder.join("text"), folder.join("lines.txt"), folder.join("rows.csv"));
        std::fs::create_dir_all(&text).unwrap();
        for i in 0..4 {
            std::fs::write(text.join(format!("{i}.txt")), document(i).repeat(6)).unwrap();
        }
        let all = (0..20).map(document).collect::<Vec<_>>();
        std::fs::write(&lines, all.join("\n\n")).unwrap();
        std::fs::write(&csv, format!("text\n\"{}\"\n", all.join("\"\n\""))).unwrap();
        (text, lines, csv)
    }

    fn corpora(folder: &Path) -> Vec<Corpus> {
        let (text, lines, csv) = texts(folder);
        let pattern = |path: &Path| [path.display().to_string()];
        let columns = Columns { text: "text".into(), ..Columns::default() };
        vec![
            Corpus::open(&pattern(&text), Documents::File).unwrap(),
            Corpus::open(&pattern(&lines), Documents::Line).unwrap(),
            Corpus::of_table(Table::open(&pattern(&csv), DataFormat::Csv, columns).unwrap()).unwrap().with_ends(true),
        ]
    }

    fn ids(data: &dyn Dataset, indices: impl Iterator<Item = usize>) -> Vec<Vec<i32>> {
        indices.map(|index| data.get(index, 0).unwrap().input_ids).collect()
    }

    #[test]
    fn in_order_a_stream_has_the_blocks_of_the_whole_over_and_over() {
        let folder = tempfile::tempdir().unwrap();
        for corpus in corpora(folder.path()) {
            let tokenizer = Arc::new(Tokenizer::train_bpe(&corpus, 300, 1).unwrap());
            let cache = folder.path().join("cache");
            let mut go_on = |_| std::ops::ControlFlow::Continue(());
            let store = TokenStore::build_or_open(&cache, &corpus, &tokenizer, &mut go_on).unwrap();
            let whole = Blocks::new(store, 16).unwrap();
            let made = blocks(corpus, tokenizer, 16).unwrap();
            let stream = Streamed::new(made, Shuffle { buffer: 1, seed: 0 }).unwrap();
            stream.set_len(3 * whole.len());
            let expected = ids(&whole, 0..whole.len());
            for pass in 0..3 {
                assert_eq!(ids(&stream, pass * whole.len()..(pass + 1) * whole.len()), expected, "pass {pass}");
            }
            assert_eq!((stream.max_len(), stream.num_tokens()), (16, 3 * 16 * whole.len() as u64));
        }
    }

    #[test]
    fn a_position_goes_on_with_the_same_examples() {
        let folder = tempfile::tempdir().unwrap();
        for corpus in corpora(folder.path()) {
            let tokenizer = Arc::new(Tokenizer::train_bpe(&corpus, 300, 1).unwrap());
            let stream = |buffer: usize| {
                let made = blocks(corpus.clone(), tokenizer.clone(), 16).unwrap();
                let stream = Streamed::new(made, Shuffle { buffer, seed: 7 }).unwrap();
                stream.set_len(1_000_000);
                stream
            };
            let pass = {
                let made = blocks(corpus.clone(), tokenizer.clone(), 16).unwrap();
                (made.source)(Mark::default()).count()
            };
            for buffer in [1, 5, pass + 9] {
                let whole = stream(buffer);
                let all = ids(&whole, 0..2 * pass + 12);
                let sorted = |part: &[Vec<i32>]| {
                    let mut part = part.to_vec();
                    part.sort();
                    part
                };
                assert_eq!(sorted(&all[..pass]), sorted(&all[pass..2 * pass]), "a pass has every example once");
                assert!(buffer == 1 || all[..pass] != all[pass..2 * pass], "and another order than the one before");
                for index in [0, 1, pass / 2, pass - 2, pass, pass + 1, 2 * pass, 2 * pass + 3] {
                    // Of a stream that has gone on, as the loader does, and of one that stands
                    // there.
                    let exact = stream(buffer);
                    let before = ids(&exact, 0..index);
                    assert_eq!(before, all[..index]);
                    let position = exact.position(index as u64).unwrap();
                    assert_eq!(whole.position(index as u64).unwrap(), position, "buffer {buffer}, example {index}");
                    let text = serde_json::to_string(&position).unwrap();
                    let next = stream(buffer);
                    next.seek(&serde_json::from_str(&text).unwrap()).unwrap();
                    assert_eq!(ids(&next, index..all.len()), all[index..], "buffer {buffer}, example {index}");
                    assert_eq!(ids(&next, index..index + 3), all[index..index + 3], "and back again");
                }
            }
        }
    }

    #[test]
    fn another_file_setting_or_order_is_another_stream() {
        let folder = tempfile::tempdir().unwrap();
        let corpus = corpora(folder.path()).remove(1);
        let tokenizer = Arc::new(Tokenizer::train_bpe(&corpus, 300, 1).unwrap());
        let digest = |block_size: usize, seed: u64| {
            let made = blocks(corpus.clone(), tokenizer.clone(), block_size).unwrap();
            Streamed::new(made, Shuffle { buffer: 4, seed }).unwrap().digest()
        };
        let first = digest(16, 1);
        assert_eq!(digest(16, 1), first);
        assert!(digest(8, 1) != first && digest(16, 2) != first);
        let mut bytes = std::fs::read(&corpus.files()[0]).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&corpus.files()[0], bytes).unwrap();
        assert_ne!(digest(16, 1), first);
    }

    #[test]
    fn files_without_a_block_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let corpus = corpora(folder.path()).remove(1);
        let tokenizer = Arc::new(Tokenizer::train_bpe(&corpus, 300, 1).unwrap());
        let made = blocks(corpus, tokenizer, 1 << 20).unwrap();
        let stream = Streamed::new(made, Shuffle { buffer: 4, seed: 0 }).unwrap();
        assert!(stream.get(0, 0).unwrap_err().to_string().contains("no example"));
    }
}
