//! Tokenising streams: how much the peak memory of a process rises while a large text becomes a
//! token store. Half of the text is one file, the rest files of 4 MiB. The vocabulary is learned
//! from a sample by another process, so that the memory it frees does not hide what tokenising
//! takes. Fails when the rise is 300 MB or more.
//!
//!     cargo bench --bench tokenize_memory            1024 MiB of text
//!     cargo bench --bench tokenize_memory -- 256     as many MiB
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use kiln::config::Documents;
use kiln::core::host::peak_mib;
use kiln::core::random::seed_for;
use kiln::data::corpus::Corpus;
use kiln::data::tokenizer::Tokenizer;
use kiln::data::tokens::TokenStore;

/// Size of one of the small documents.
const DOCUMENT_MIB: usize = 4;

/// Tells the second process where the text lies.
const FOLDER: &str = "TOKENIZE_MEMORY_FOLDER";

/// The rise that is promised to stay below, in bytes.
const PROMISE: f64 = 300e6;

fn main() -> ExitCode {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return measure(Path::new(&folder));
    }
    let mib = std::env::args().skip(1).find_map(|argument| argument.parse::<usize>().ok()).unwrap_or(1024);
    let folder = tempfile::tempdir().unwrap();
    let large = mib / 2;
    let mut draw = 0;
    write_words(&folder.path().join("large.txt"), large << 20, &mut draw);
    for document in 0..(mib - large) / DOCUMENT_MIB {
        write_words(&folder.path().join(format!("{document:05}.txt")), DOCUMENT_MIB << 20, &mut draw);
    }
    let sample = folder.path().join("sample");
    std::fs::create_dir(&sample).unwrap();
    write_words(&sample.join("sample.txt"), 1 << 20, &mut draw);
    let sample = Corpus::open(&[format!("{}/sample.txt", sample.display())], Documents::File).unwrap();
    let learned = Tokenizer::train_bpe(&sample, 8192, 1).unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), learned.to_json().unwrap()).unwrap();
    let status = Command::new(std::env::current_exe().unwrap()).env(FOLDER, folder.path()).status().unwrap();
    if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Words of 2 to 9 letters, two thirds of them out of 5000.
fn write_words(path: &Path, bytes: usize, draw: &mut u64) {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    let mut written = 0;
    while written < bytes {
        *draw += 1;
        let random = seed_for(7, "word", *draw, 0);
        let word = if random.is_multiple_of(3) { random } else { seed_for(7, "common", random % 5000, 0) };
        let letters = (0..2 + word % 8).map(|i| char::from(b'a' + ((word >> (i * 5)) % 26) as u8));
        let mut word = letters.collect::<String>();
        word.push(if random.is_multiple_of(11) { '\n' } else { ' ' });
        file.write_all(word.as_bytes()).unwrap();
        written += word.len();
    }
    file.flush().unwrap();
}

fn measure(folder: &Path) -> ExitCode {
    let corpus = Corpus::open(&[format!("{}/*.txt", folder.display())], Documents::File).unwrap();
    let tokenizer = Tokenizer::load(folder).unwrap();
    let before = peak_mib();
    let start = Instant::now();
    let mut go_on = |_| ControlFlow::Continue(());
    let store = TokenStore::build_or_open(&folder.join("cache"), &corpus, &tokenizer, &mut go_on).unwrap();
    let seconds = start.elapsed().as_secs_f64();
    let size = corpus.num_bytes() as f64 / f64::from(1 << 20);
    println!("tokenising {size:.0} MiB: {} tokens, {seconds:.1} s, {:.1} MiB/s", store.len(), size / seconds);
    let (Some(before), Some(after)) = (before, peak_mib()) else {
        println!("this system does not tell the peak memory of a process");
        return ExitCode::SUCCESS;
    };
    println!("peak memory: {before:.0} MiB before, {after:.0} MiB after, +{:.0} MiB", after - before);
    if (after - before) * f64::from(1 << 20) < PROMISE { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
