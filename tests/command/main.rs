//! The command `kiln` as its users run it: every test starts it as a child process and looks at its
//! output, its exit code and its files. A few read a config or a table with the library as well;
//! none trains in this process.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
use common::messages;

// Data, models and the Hub.
mod cache_keys;
mod files;
mod generation;
mod heads;
mod hub;
mod init;
mod language_models;
mod lora;
mod predict;
mod push;
mod recipes;
mod predict_agrees;
mod labels;
mod samples;
mod tables;
mod streaming;
mod variants;

// Training: batches, options, precision, memory.
mod activation_checkpointing;
mod batch;
mod configs;
mod quoted;
mod old_runs;
mod plan_memory;
mod precision;
mod training_options;

// The folder of a run, stops and continuations.
mod interrupted;
mod resume;
mod run_again;
mod mlflow;
mod run_folder;

// Several processes.
mod ranks;
mod torchrun;

// Jobs in containers.
mod job;
mod scripts;

// The terminal, and the machine.
mod doctor;
mod terminal;
mod watch;

// The compiled mode.
mod compiler;
mod compiler_debug;
mod kernel_cache;
mod verify;
mod warmup;

// Jobs.
mod submit;

// Measurements.
mod bench;
mod compare;
mod report;
mod sweep;
mod tune_batch;

// Mistakes of the user.
mod bad_input;
mod help_followed;
