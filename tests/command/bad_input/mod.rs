//! Bad input, through the binary: every mistake is one clear error with a non-zero exit code. Each
//! names the key or the file, what was expected, what was found and what to do; none is a panic,
//! and none leaves a run folder behind when it is found before step 1.

mod config;
mod data;
mod model;
mod output;
mod weights;
mod words;
