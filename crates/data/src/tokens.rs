//! A corpus as token ids on disk: the [store](super::store) of the ids of all documents, one after
//! another. Text goes to the tokenizer in groups, so memory does not grow with the corpus.

use std::ops::Range;
use std::path::Path;

use kiln_core::error::{Error, Result};
use sha2::{Digest, Sha256};

use super::corpus::Corpus;
use super::store::{Column, Format, OnProgress, Store, Writer};
use super::text_chunks::{PIECE_BYTES, TextChunk};
use super::tokenizer::Tokenizer;
use crate::cache::mapped::Kind;
use crate::cache::sources::Sources;

const FORMAT: Format = Format {
    kind: Kind { magic: b"KILNTOK4", name: "token store", extension: "tokens" },
    columns: &["input_ids", "replaced"],
};

const INPUT_IDS: Column = Column(0);

/// One number: the sequences of bytes of the whole text that were not UTF-8 and were replaced.
const REPLACED: Column = Column(1);

/// Text is handed to the tokenizer in groups of about this many bytes, to use all cores while
/// holding little at a time.
const GROUP_BYTES: usize = 4 << 20;

/// Token ids of a corpus, each document followed by end-of-text where the corpus says so.
#[derive(Debug)]
pub struct TokenStore(Store);

impl TokenStore {
    /// The ids of `corpus` under `tokenizer`: from the cache in `folder`, or tokenised now.
    ///
    /// # Errors
    /// Text that cannot be read or that changes meanwhile, a tokenizer without an end-of-text that
    /// the corpus asks for, a cache that cannot be written, an interruption.
    pub fn build_or_open(
        folder: &Path,
        corpus: &Corpus,
        tokenizer: &Tokenizer,
        progress: &mut OnProgress<'_>,
    ) -> Result<Self> {
        let sources = Sources::of(corpus.files())?;
        let key = key(&sources, corpus, tokenizer)?;
        let store = FORMAT.build_or_open(folder, key, progress, |writer| {
            write(writer, corpus, tokenizer)?;
            sources.are_unchanged()
        });
        store.map(Self)
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        self.0.len(INPUT_IDS)
    }

    /// Whether there are no ids.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many sequences of bytes of the text were not UTF-8 and are read as U+FFFD.
    pub fn replaced(&self) -> u64 {
        self.0.number(REPLACED, 0) as u64
    }

    /// The ids of `range`, which lies within [`len`](Self::len).
    pub fn tokens(&self, range: Range<usize>) -> Vec<i32> {
        self.0.numbers(INPUT_IDS, range, |id| id as i32)
    }
}

/// The hash of everything the ids depend on.
fn key(sources: &Sources<'_>, corpus: &Corpus, tokenizer: &Tokenizer) -> Result<Sha256> {
    let mut hash = FORMAT.key();
    hash.update(tokenizer.content_hash());
    hash.update(corpus.describe());
    sources.hash_into(&mut hash)?;
    Ok(hash)
}

/// The ids before and after each document of `corpus`.
///
/// # Errors
/// A tokenizer without an end-of-text that the corpus asks for.
pub(super) fn ends(tokenizer: &Tokenizer, corpus: &Corpus) -> Result<(Vec<u32>, Vec<u32>)> {
    let (before, mut after) = tokenizer.around()?;
    if corpus.marks_ends() {
        // BERT's [SEP] is both what ends a text and what separates documents: once is enough.
        let end = tokenizer.eot_id().ok_or_else(|| {
            Error::config("the tokenizer has no token that ends a document (<|endoftext|>, </s> or [SEP])")
                .help("set data.document_end = \"none\", so that documents run on")
        })?;
        after.extend((after.last() != Some(&end)).then_some(end));
    }
    Ok((before, after))
}

/// Writes the ids.
fn write(writer: &mut Writer<'_, '_>, corpus: &Corpus, tokenizer: &Tokenizer) -> Result<()> {
    let (before, after) = ends(tokenizer, corpus)?;
    writer.state.total_bytes = corpus.num_bytes();
    let mut starts_document = true;
    let mut flush = |group: &mut Vec<TextChunk>| -> Result<()> {
        let texts = group.iter().map(|piece| piece.text.as_str()).collect::<Vec<_>>();
        for (piece, ids) in group.iter().zip(tokenizer.encode_pieces(&texts)?) {
            let before = if starts_document { &before[..] } else { &[] };
            let after = if piece.ends_document { &after[..] } else { &[] };
            writer.numbers(INPUT_IDS, before.iter().chain(&ids).chain(after).copied())?;
            let state = &mut writer.state;
            state.tokens += (before.len() + ids.len() + after.len()) as u64;
            // Of a compressed table there is more text than bytes.
            state.done_bytes = (state.done_bytes + piece.text.len() as u64).min(state.total_bytes);
            starts_document = piece.ends_document;
        }
        group.clear();
        writer.tell()
    };
    let (mut group, mut bytes, mut replaced) = (Vec::new(), 0, 0);
    for piece in corpus.pieces(PIECE_BYTES) {
        let piece = piece?;
        // An empty document is not free either: it is counted as one byte, so that many of them do
        // not pile up.
        bytes += piece.text.len().max(1);
        replaced += piece.replaced;
        group.push(piece);
        if bytes >= GROUP_BYTES {
            flush(&mut group)?;
            bytes = 0;
        }
    }
    flush(&mut group)?;
    writer.numbers(REPLACED, [replaced as i64])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::ops::ControlFlow;

    use super::*;
    use crate::settings::Documents;
    use crate::store::Preparation;

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
        let corpus = Corpus::open(&[format!("{}/text/*.txt", folder.path().display())], Documents::File).unwrap();
        let tokenizer = Tokenizer::train_bpe(&corpus, 280, 1).unwrap();
        Fixture { folder, corpus, tokenizer }
    }

    fn go_on(_: Preparation) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    #[test]
    fn ids_are_those_of_the_documents_with_end_of_text_between() {
        let Fixture { folder, corpus, tokenizer } = fixture();
        let store = TokenStore::build_or_open(folder.path(), &corpus, &tokenizer, &mut go_on).unwrap();
        let expected = corpus.documents().flat_map(|document| {
            tokenizer.encode(&document.unwrap()).unwrap().into_iter().chain(tokenizer.eot_id()).collect::<Vec<_>>()
        });
        let expected = expected.map(|id| id as i32).collect::<Vec<_>>();
        assert_eq!(store.tokens(0..store.len()), expected);
        assert_eq!(store.tokens(3..7), expected[3..7]);
    }

    #[test]
    fn text_that_changes_while_it_is_read_is_not_kept() {
        let Fixture { folder, corpus, tokenizer } = fixture();
        let cache = folder.path().join("cache");
        let file = folder.path().join("text/4.txt");
        let before = fs::read(&file).unwrap();
        let error = TokenStore::build_or_open(&cache, &corpus, &tokenizer, &mut |_| {
            fs::write(&file, "something else that is not what the key is made of").unwrap();
            // As it was when the key was made, whenever somebody looks.
            fs::write(&file, &before).unwrap();
            ControlFlow::Continue(())
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("4.txt: the file changed while it was read"), "{error}");
        assert_eq!(fs::read_dir(&cache).unwrap().count(), 0);
    }

    /// Text with what makes cutting hard: runs of spaces, blank lines, contractions, no spaces at
    /// all, wide characters.
    fn awkward(bytes: usize) -> String {
        let parts = [
            "fn main() {",
            " let x = 1;",
            "\n\n",
            "\t  ",
            "it's",
            " don't",
            "日本語",
            "🦀",
            "\r\n",
            "  ",
            "é",
            "  x",
            "\n",
        ];
        let mut text = String::new();
        for i in 0.. {
            if text.len() >= bytes {
                break;
            }
            text.push_str(parts[kiln_core::random::seed_for(3, "awkward", i, 0) as usize % parts.len()]);
        }
        text
    }

    #[test]
    fn a_document_larger_than_a_piece_has_the_ids_of_the_whole() {
        let Fixture { folder, tokenizer, .. } = fixture();
        let text = folder.path().join("large");
        fs::create_dir(&text).unwrap();
        fs::write(text.join("0.txt"), "").unwrap();
        fs::write(text.join("1.txt"), awkward(5 * PIECE_BYTES + 77)).unwrap();
        fs::write(text.join("2.txt"), awkward(PIECE_BYTES)).unwrap();
        let corpus = Corpus::open(&[format!("{}/*.txt", text.display())], Documents::File).unwrap();
        let pieces =
            "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nfn\nmain\nlet\nx\n1\nit\ndon\nt\ns\n'\n(\n)\n;\n=\n{\ne\n##x\n";
        fs::write(folder.path().join("vocab.txt"), pieces).unwrap();
        let bert = Tokenizer::load(&folder.path().join("vocab.txt")).unwrap();
        for (name, tokenizer, separator) in [("bpe", tokenizer, Some(0)), ("bert", bert, None)] {
            let cache = folder.path().join(name);
            let store = TokenStore::build_or_open(&cache, &corpus, &tokenizer, &mut go_on).unwrap();
            let expected = corpus.documents().flat_map(|document| {
                tokenizer.encode(&document.unwrap()).unwrap().into_iter().chain(separator).collect::<Vec<_>>()
            });
            let expected = expected.map(|id| id as i32).collect::<Vec<_>>();
            assert!(store.tokens(0..store.len()) == expected, "{name}: the ids differ");
        }
    }

    #[test]
    fn progress_ends_at_the_whole() {
        let Fixture { folder, corpus, tokenizer } = fixture();
        let mut last = None;
        let mut progress = |progress| {
            last = Some(progress);
            ControlFlow::Continue(())
        };
        let store = TokenStore::build_or_open(folder.path(), &corpus, &tokenizer, &mut progress).unwrap();
        let bytes = corpus.num_bytes();
        assert_eq!(
            last,
            Some(Preparation {
                done_bytes: bytes,
                total_bytes: bytes,
                tokens: store.len() as u64,
                ..Preparation::default()
            })
        );
    }

    #[test]
    fn text_that_is_not_utf8_leaves_no_cache() {
        let Fixture { folder, corpus, tokenizer } = fixture();
        fs::write(folder.path().join("text/3.txt"), b"good \xfe bad").unwrap();
        let cache = folder.path().join("cache");
        let error = TokenStore::build_or_open(&cache, &corpus, &tokenizer, &mut go_on).unwrap_err().to_string();
        assert!(error.contains("3.txt") && error.contains("0xfe at offset 5"), "{error}");
        assert_eq!(fs::read_dir(&cache).unwrap().count(), 0);
    }

    #[test]
    fn other_text_is_another_key() {
        let Fixture { folder, corpus, tokenizer } = fixture();
        let key = |corpus: &Corpus, tokenizer: &Tokenizer| {
            key(&Sources::of(corpus.files()).unwrap(), corpus, tokenizer).unwrap().finalize()
        };
        let before = key(&corpus, &tokenizer);
        fs::write(folder.path().join("text/0.txt"), "other").unwrap();
        assert_ne!(key(&corpus, &tokenizer), before);
        // Where one document ends and the next begins counts too.
        let key_of = |first: &str, second: &str| {
            fs::write(folder.path().join("text/0.txt"), first).unwrap();
            fs::write(folder.path().join("text/1.txt"), second).unwrap();
            key(&corpus, &tokenizer)
        };
        assert_ne!(key_of("ab", "c"), key_of("a", "bc"));
        let other = Tokenizer::train_bpe(&corpus, 262, 1).unwrap();
        assert_ne!(key(&corpus, &other), key(&corpus, &tokenizer));
    }
}
