//! A corpus as token ids in one memory-mapped file. Written as a stream, so memory does not grow with the corpus; kept in
//! the cache under a key of everything it depends on, so the same text is tokenised once. A file appears in the cache only
//! when it is whole.
//!
//! Layout, little-endian: `KILNTOK1`, width of an id in bytes (u32: 2 or 4), zero (u32), number of ids (u64), number of
//! documents (u64), SHA-256 of these 32 bytes, then the ids.

use std::fs::{self, File};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use sha2::{Digest, Sha256};

use super::corpus::Corpus;
use super::tokenizer::Tokenizer;
use crate::error::{Error, Result};

const MAGIC: &[u8; 8] = b"KILNTOK1";
const HEADER: usize = 64;

/// Documents are handed to the tokenizer in groups of about this many bytes, to use all cores on small documents while
/// holding little text at a time.
const GROUP_BYTES: usize = 1 << 20;

/// How far tokenising has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of text done.
    pub done_bytes: u64,
    /// Bytes of text in all.
    pub total_bytes: u64,
    /// Tokens so far.
    pub tokens: u64,
}

/// Told about progress; may interrupt.
pub type OnProgress<'a> = dyn FnMut(Progress) -> ControlFlow<()> + 'a;

/// Token ids of a corpus, each document followed by end-of-text.
#[derive(Debug)]
pub struct TokenStore {
    map: Mmap,
    width: usize,
    len: usize,
    documents: u64,
}

impl TokenStore {
    /// The ids of `corpus` under `tokenizer`: from the cache, or tokenised now.
    ///
    /// # Errors
    /// Text that cannot be read, a cache that cannot be written, an interruption.
    pub fn build_or_open(corpus: &Corpus, tokenizer: &Tokenizer, progress: &mut OnProgress<'_>) -> Result<Self> {
        Self::build_or_open_in(&cache_folder()?.join("tokens"), corpus, tokenizer, progress)
    }

    /// As [`build_or_open`](Self::build_or_open), with the cache in `folder`.
    ///
    /// # Errors
    /// As [`build_or_open`](Self::build_or_open).
    pub fn build_or_open_in(
        folder: &Path,
        corpus: &Corpus,
        tokenizer: &Tokenizer,
        progress: &mut OnProgress<'_>,
    ) -> Result<Self> {
        let path = folder.join(format!("{}.tokens", key(corpus, tokenizer)?));
        if path.is_file() {
            match Self::open(&path) {
                Ok(store) => return Ok(store),
                // A damaged cache is no reason to fail: the text is still there.
                Err(error) => eprintln!("warning: {error}; tokenising again"),
            }
        }
        fs::create_dir_all(folder).map_err(|error| cache_error(folder, &error))?;
        build(&path, folder, corpus, tokenizer, progress)?;
        Self::open(&path)
    }

    /// Opens a store that is on disk.
    ///
    /// # Errors
    /// A file that is no token store, is cut short, or whose header does not match its checksum.
    pub fn open(path: &Path) -> Result<Self> {
        let io = |error: &std::io::Error| Error::io(format!("read {}", path.display()), error);
        let bad = |what: &str| Error::data(format!("{}: {what}", path.display()));
        let file = File::open(path).map_err(|error| io(&error))?;
        // SAFETY: the map is read-only, and the file was renamed into place whole; nothing of Kiln's writes to it again.
        // As with every mapped file, whoever truncates it from outside stops this process.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(&file) }.map_err(|error| io(&error))?;
        if map.len() < HEADER || &map[..8] != MAGIC {
            return Err(bad("not a token store of this version"));
        }
        if Sha256::digest(&map[..32])[..] != map[32..HEADER] {
            return Err(bad("damaged header"));
        }
        let u64_at = |at: usize| u64::from_le_bytes(map[at..at + 8].as_chunks().0[0]);
        let width = u64_at(8) as u32 as usize;
        let (len, documents) = (u64_at(16) as usize, u64_at(24));
        if map.len() != HEADER + len * width {
            return Err(bad(&format!("expected {} bytes, got {}", HEADER + len * width, map.len())));
        }
        Ok(Self { map, width, len, documents })
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no ids.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of documents.
    pub fn num_documents(&self) -> u64 {
        self.documents
    }

    /// The ids of `range`, which lies within [`len`](Self::len).
    pub fn tokens(&self, range: Range<usize>) -> Vec<i32> {
        let bytes = &self.map[HEADER + range.start * self.width..HEADER + range.end * self.width];
        match self.width {
            2 => bytes.as_chunks().0.iter().map(|id| i32::from(u16::from_le_bytes(*id))).collect(),
            _ => bytes.as_chunks().0.iter().map(|id| i32::from_le_bytes(*id)).collect(),
        }
    }
}

/// Kiln's cache: `$KILN_CACHE`, else `$XDG_CACHE_HOME/kiln`, else `~/.cache/kiln`.
///
/// # Errors
/// None of them can be told.
pub fn cache_folder() -> Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = variable("KILN_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|folder| folder.join("kiln")))
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache/kiln")));
    folder.ok_or_else(|| Error::config("no folder for the cache").help("set the environment variable KILN_CACHE"))
}

/// SHA-256 over everything the ids depend on.
fn key(corpus: &Corpus, tokenizer: &Tokenizer) -> Result<String> {
    let mut hash = Sha256::new();
    hash.update(MAGIC);
    hash.update(tokenizer.content_hash());
    for document in corpus.documents() {
        let document = document?;
        hash.update((document.len() as u64).to_le_bytes());
        hash.update(document.as_bytes());
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn build(
    path: &Path,
    folder: &Path,
    corpus: &Corpus,
    tokenizer: &Tokenizer,
    progress: &mut OnProgress<'_>,
) -> Result<()> {
    let io = |error: std::io::Error| cache_error(folder, &error);
    let width: usize = if tokenizer.vocab_size() <= 1 << 16 { 2 } else { 4 };
    let end_of_text = tokenizer.eot_id();
    let mut aside = tempfile::NamedTempFile::new_in(folder).map_err(io)?;
    let mut writer = BufWriter::with_capacity(1 << 20, aside.as_file_mut());
    writer.write_all(&[0; HEADER]).map_err(io)?;
    let mut state = Progress { done_bytes: 0, total_bytes: corpus.num_bytes(), tokens: 0 };
    let mut group = Vec::<String>::new();
    let mut flush = |group: &mut Vec<String>, state: &mut Progress| -> Result<()> {
        for ids in tokenizer.encode_batch(group)? {
            for id in ids.into_iter().chain(end_of_text) {
                writer.write_all(&id.to_le_bytes()[..width]).map_err(io)?;
                state.tokens += 1;
            }
        }
        state.done_bytes += group.iter().map(|text| text.len() as u64).sum::<u64>();
        group.clear();
        match progress(*state) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::data("tokenising was interrupted").help("nothing was kept")),
        }
    };
    for document in corpus.documents() {
        group.push(document?);
        if group.iter().map(String::len).sum::<usize>() >= GROUP_BYTES {
            flush(&mut group, &mut state)?;
        }
    }
    flush(&mut group, &mut state)?;
    writer.seek(SeekFrom::Start(0)).map_err(io)?;
    let mut header = MAGIC.to_vec();
    header.extend((width as u64).to_le_bytes());
    header.extend(state.tokens.to_le_bytes());
    header.extend((corpus.num_documents() as u64).to_le_bytes());
    header.extend(Sha256::digest(&header));
    writer.write_all(&header).and_then(|()| writer.flush()).map_err(io)?;
    drop(writer);
    aside.as_file().sync_all().map_err(io)?;
    aside.persist(path).map_err(|error| io(error.error))?;
    Ok(())
}

pub(super) fn cache_error(folder: &Path, error: &std::io::Error) -> Error {
    Error::io(format!("write the cache {}", folder.display()), error)
        .help("set KILN_CACHE to a folder that can be written and has room")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    struct Fixture {
        folder: tempfile::TempDir,
        corpus: Corpus,
        tokenizer: Tokenizer,
    }

    fn fixture() -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("text")).unwrap();
        for i in 0..5 {
            let text = format!("document {i} says hello world, hello kiln. ").repeat(3);
            fs::write(folder.path().join(format!("text/{i}.txt")), text).unwrap();
        }
        let corpus = Corpus::open(&[format!("{}/text/*.txt", folder.path().display())]).unwrap();
        let tokenizer = Tokenizer::train_bpe(&corpus, 280, 1).unwrap();
        Fixture { folder, corpus, tokenizer }
    }

    fn go_on(_: Progress) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    #[test]
    fn ids_are_those_of_the_documents_with_end_of_text_between() {
        let Fixture { folder, corpus, tokenizer } = fixture();
        let store = TokenStore::build_or_open_in(folder.path(), &corpus, &tokenizer, &mut go_on).unwrap();
        let expected = corpus.documents().flat_map(|document| {
            tokenizer.encode(&document.unwrap()).unwrap().into_iter().chain(tokenizer.eot_id()).collect::<Vec<_>>()
        });
        let expected = expected.map(|id| id as i32).collect::<Vec<_>>();
        assert_eq!(store.tokens(0..store.len()), expected);
        assert_eq!(store.num_documents(), 5);
        assert_eq!(store.tokens(3..7), expected[3..7]);
    }

    #[test]
    fn the_cache_is_used_and_a_damaged_one_is_made_again() {
        let Fixture { folder, corpus, tokenizer } = fixture();
        let cache = folder.path().join("cache");
        let mut calls = 0;
        let mut count = |_| {
            calls += 1;
            ControlFlow::Continue(())
        };
        let len = TokenStore::build_or_open_in(&cache, &corpus, &tokenizer, &mut count).unwrap().len();
        let file = fs::read_dir(&cache).unwrap().next().unwrap().unwrap().path();
        TokenStore::build_or_open_in(&cache, &corpus, &tokenizer, &mut count).unwrap();
        assert_eq!(calls, 1, "the second time nothing was tokenised");
        let whole = fs::read(&file).unwrap();
        fs::write(&file, &whole[..whole.len() - 1]).unwrap();
        assert!(TokenStore::open(&file).unwrap_err().to_string().contains("expected"));
        assert_eq!(TokenStore::build_or_open_in(&cache, &corpus, &tokenizer, &mut go_on).unwrap().len(), len);
        let mut lying = whole.clone();
        lying[16] ^= 1;
        fs::write(&file, &lying).unwrap();
        assert!(TokenStore::open(&file).unwrap_err().to_string().contains("damaged header"));
    }

    #[test]
    fn an_interrupted_build_leaves_nothing() {
        let Fixture { folder, corpus, tokenizer } = fixture();
        let cache = folder.path().join("cache");
        let error = TokenStore::build_or_open_in(&cache, &corpus, &tokenizer, &mut |_| ControlFlow::Break(()));
        assert!(error.unwrap_err().to_string().contains("interrupted"));
        assert_eq!(fs::read_dir(&cache).unwrap().count(), 0);
    }

    #[test]
    fn other_text_is_another_key() {
        let Fixture { folder, corpus, tokenizer } = fixture();
        let before = key(&corpus, &tokenizer).unwrap();
        fs::write(folder.path().join("text/0.txt"), "other").unwrap();
        assert_ne!(key(&corpus, &tokenizer).unwrap(), before);
    }
}
