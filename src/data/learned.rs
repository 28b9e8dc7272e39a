//! A tokenizer that is learned from the training text, and kept: learning takes seconds, and every start of a run needs it.

use std::io::Write;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::corpus::Corpus;
use super::tokenizer::{Tokenizer, training_text};
use crate::cache;
use crate::cache::mapped::{cache_error, hex};
use crate::error::Result;

/// [`Tokenizer::train_bpe`], or what it gave for the same text, size and seed before.
///
/// # Errors
/// As there; a cache that cannot be written.
pub fn learned_bpe(corpus: &Corpus, vocab_size: usize, seed: u64) -> Result<Tokenizer> {
    learned_bpe_in(&cache::folder()?.join(cache::TOKENIZERS), corpus, vocab_size, seed)
}

/// As [`learned_bpe`], with the cache in `folder`.
///
/// # Errors
/// As [`learned_bpe`].
pub fn learned_bpe_in(folder: &Path, corpus: &Corpus, vocab_size: usize, seed: u64) -> Result<Tokenizer> {
    let path = folder.join(format!("{}.json", key(corpus, vocab_size, seed)?));
    // A file that is damaged is made again, as one that is missing.
    if let Ok(kept) = Tokenizer::load(&path) {
        return Ok(kept);
    }
    let tokenizer = Tokenizer::train_bpe(corpus, vocab_size, seed)?;
    let io = |error: std::io::Error| cache_error(folder, &error);
    std::fs::create_dir_all(folder).map_err(io)?;
    let mut file = tempfile::Builder::new().prefix(".tokenizer-").tempfile_in(folder).map_err(io)?;
    file.write_all(tokenizer.to_json()?.as_bytes()).map_err(io)?;
    file.persist(&path).map_err(|error| io(error.error))?;
    Ok(tokenizer)
}

/// SHA-256 over everything the tokenizer depends on.
fn key(corpus: &Corpus, vocab_size: usize, seed: u64) -> Result<String> {
    let mut hash = Sha256::new();
    // The library that learns, too, comes with this version.
    hash.update(format!("kiln {} learns a byte-level BPE of {vocab_size}\n", env!("CARGO_PKG_VERSION")));
    for text in training_text(corpus, seed) {
        let text = text?;
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    }
    Ok(hex(hash))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::Documents;

    #[test]
    fn what_was_learned_is_kept_for_the_same_text() {
        let place = tempfile::tempdir().unwrap();
        let (text, kept) = (place.path().join("a.txt"), place.path().join("kept"));
        std::fs::write(&text, "the cat and the hat and the bat\n".repeat(20)).unwrap();
        let learn = |size: usize| {
            let corpus = Corpus::open(&[text.display().to_string()], Documents::File).unwrap();
            let fresh = Tokenizer::train_bpe(&corpus, size, 1).unwrap().content_hash();
            assert_eq!(learned_bpe_in(&kept, &corpus, size, 1).unwrap().content_hash(), fresh);
            std::fs::read_dir(&kept).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
        };
        let files = learn(264);
        assert_eq!((files.len(), learn(264)), (1, files.clone()), "nothing but the file, which is found again");
        let corpus = Corpus::open(&[text.display().to_string()], Documents::File).unwrap();
        let other = Tokenizer::train_bpe(&corpus, 260, 1).unwrap();
        std::fs::write(&files[0], other.to_json().unwrap()).unwrap();
        let read = learned_bpe_in(&kept, &corpus, 264, 1).unwrap();
        assert_eq!(read.content_hash(), other.content_hash(), "what is kept is read, not learned");
        std::fs::write(&files[0], "{\"model\": ").unwrap();
        assert_eq!(learn(264), files, "a damaged one is made again");
        assert_eq!((learn(262).len(), learn(264).len()), (2, 2), "another size is another tokenizer");
        std::fs::write(&text, "and the cat has a hat, and that is that\n".repeat(20)).unwrap();
        assert_eq!(learn(264).len(), 3, "as is another text");
    }
}
