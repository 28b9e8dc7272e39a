//! Tokenising streams: how much the peak memory of the process rises while a large text becomes a token store.
//!
//!     cargo bench --bench tokenize_memory            1024 MiB of text
//!     cargo bench --bench tokenize_memory -- 256     as many MiB
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::ops::ControlFlow;
use std::time::Instant;

use kiln::data::corpus::Corpus;
use kiln::data::store::TokenStore;
use kiln::data::tokenizer::Tokenizer;
use kiln::execution::{peak_mib, seed_for};

/// Size of one document.
const DOCUMENT_MIB: usize = 4;

fn main() {
    let mib = std::env::args().skip(1).find_map(|argument| argument.parse::<usize>().ok()).unwrap_or(1024);
    let folder = tempfile::tempdir().unwrap();
    let mut draw = 0u64;
    for document in 0..mib / DOCUMENT_MIB {
        let file = std::fs::File::create(folder.path().join(format!("{document:05}.txt"))).unwrap();
        let mut file = std::io::BufWriter::new(file);
        let mut written = 0;
        while written < DOCUMENT_MIB << 20 {
            draw += 1;
            // Words of 2 to 9 letters, some of them seen again and again.
            let random = seed_for(7, "word", draw, 0);
            let word = if random.is_multiple_of(3) { random } else { seed_for(7, "common", random % 5000, 0) };
            let letters = (0..2 + word % 8).map(|i| char::from(b'a' + ((word >> (i * 5)) % 26) as u8));
            let mut word = letters.collect::<String>();
            word.push(if random.is_multiple_of(11) { '\n' } else { ' ' });
            file.write_all(word.as_bytes()).unwrap();
            written += word.len();
        }
        file.flush().unwrap();
    }
    let corpus = Corpus::open(&[format!("{}/*.txt", folder.path().display())]).unwrap();
    let before = peak_mib().unwrap_or(f64::NAN);
    let start = Instant::now();
    let tokenizer = Tokenizer::train_bpe(&corpus, 8192, 1).unwrap();
    let trained = (start.elapsed().as_secs_f64(), peak_mib().unwrap_or(f64::NAN) - before);
    let start = Instant::now();
    let cache = folder.path().join("cache");
    let store = TokenStore::build_or_open_in(&cache, &corpus, &tokenizer, &mut |_| ControlFlow::Continue(())).unwrap();
    let seconds = start.elapsed().as_secs_f64();
    let size = corpus.num_bytes() as f64 / f64::from(1 << 20);
    println!("learning the vocabulary: {:.1} s, peak memory +{:.0} MiB", trained.0, trained.1);
    println!(
        "tokenising {size:.0} MiB: {} tokens, {seconds:.1} s, {:.1} MiB/s, peak memory of both +{:.0} MiB",
        store.len(),
        size / seconds,
        peak_mib().unwrap_or(f64::NAN) - before
    );
}
