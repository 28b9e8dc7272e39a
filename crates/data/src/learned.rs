//! A tokenizer that is learned from the training text, and kept: learning takes seconds, and every
//! start of a run needs it.

use std::path::Path;

use kiln_core::error::Result;
use kiln_core::signals;
use sha2::{Digest, Sha256};

use super::corpus::Corpus;
use super::store::{Doing, OnProgress, Preparation};
use super::tokenizer::{Tokenizer, training_text};
use crate::cache::mapped::{Key, Kind, Mapped, damaged, interrupted};
use crate::cache::sources::Sources;

const KIND: Kind = Kind { magic: b"KILNBPE1", name: "learned tokenizer", extension: "tokenizer" };

/// [`Tokenizer::train_bpe`], or what it gave for the same text, size and seed before, from the
/// cache in `folder`. `progress` is told when one is learned.
///
/// # Errors
/// Text that cannot be read or changes meanwhile; a `vocab_size` below 257; a cache that cannot be
/// written; a signal.
pub fn learned_bpe(
    folder: &Path,
    corpus: &Corpus,
    vocab_size: usize,
    seed: u64,
    progress: &mut OnProgress<'_>,
) -> Result<Tokenizer> {
    let sources = Sources::of(corpus.files())?;
    let key = key(corpus, vocab_size, seed)?;
    KIND.build_or_open(folder, &key, open, |body| {
        // A signal ends learning itself.
        let _ = progress(Preparation::begins(Doing::Learning(vocab_size)));
        let tokenizer = learn(corpus, vocab_size, seed)?;
        sources.are_unchanged()?;
        body.write(tokenizer.to_json()?.as_bytes())
    })
}

fn open(map: Mapped, path: &Path) -> Result<Tokenizer> {
    let json = std::str::from_utf8(&map).map_err(|error| damaged(path, error))?;
    Tokenizer::from_json(json).map_err(|error| error.at(path.display()))
}

/// [`Tokenizer::train_bpe`]: the library cannot be stopped while it learns.
fn learn(corpus: &Corpus, vocab_size: usize, seed: u64) -> Result<Tokenizer> {
    let corpus = corpus.clone();
    signals::leaving(move || Tokenizer::train_bpe(&corpus, vocab_size, seed)).unwrap_or_else(|_| Err(interrupted()))
}

/// SHA-256 over everything the tokenizer depends on.
fn key(corpus: &Corpus, vocab_size: usize, seed: u64) -> Result<Key> {
    let mut hash = Sha256::new();
    // The library that learns, too, comes with this version.
    hash.update(format!("kiln {} learns a byte-level BPE of {vocab_size}\n", env!("CARGO_PKG_VERSION")));
    for text in training_text(corpus, seed) {
        let text = text?;
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    }
    Ok(hash.finalize().into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::ops::ControlFlow;

    use super::*;
    use crate::settings::Documents;

    #[test]
    fn what_was_learned_is_kept_for_the_same_text() {
        let place = tempfile::tempdir().unwrap();
        let (text, kept) = (place.path().join("a.txt"), place.path().join("kept"));
        std::fs::write(&text, "the cat and the hat and the bat\n".repeat(20)).unwrap();
        let learn = |size: usize, learned: &[Doing]| {
            let corpus = Corpus::open(&[text.display().to_string()], Documents::File).unwrap();
            let fresh = Tokenizer::train_bpe(&corpus, size, 1).unwrap().content_hash();
            let mut told = Vec::new();
            let mut progress = |progress: Preparation| {
                told.push(progress.doing);
                ControlFlow::Continue(())
            };
            assert_eq!(learned_bpe(&kept, &corpus, size, 1, &mut progress).unwrap().content_hash(), fresh);
            assert_eq!(told, learned, "it is told when one is learned");
            std::fs::read_dir(&kept).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
        };
        let files = learn(264, &[Doing::Learning(264)]);
        assert_eq!((files.len(), learn(264, &[])), (1, files.clone()), "nothing but the file, which is found again");
        let made = std::fs::metadata(&files[0]).unwrap().modified().unwrap();
        assert_eq!(learn(264, &[]), files);
        assert_eq!(
            std::fs::metadata(&files[0]).unwrap().modified().unwrap(),
            made,
            "what is kept is read, not learned"
        );
        let mut damaged = std::fs::read(&files[0]).unwrap();
        // A digit of an id: still a tokenizer, but another one.
        let digit = damaged.iter().rposition(u8::is_ascii_digit).unwrap();
        damaged[digit] ^= 1;
        std::fs::write(&files[0], damaged).unwrap();
        assert_eq!(learn(264, &[Doing::Learning(264)]), files, "a damaged one is made again");
        let other = learn(262, &[Doing::Learning(262)]).len();
        assert_eq!((other, learn(264, &[]).len()), (2, 2), "another size is another tokenizer");
        std::fs::write(&text, "and the cat has a hat, and that is that\n".repeat(20)).unwrap();
        assert_eq!(learn(264, &[Doing::Learning(264)]).len(), 3, "as is another text");
    }
}
