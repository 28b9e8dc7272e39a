//! Kiln as a library: tests that train in their own process, with callbacks, datasets and faults of
//! their own.
//!
//! The device's random generator and the hook for panics belong to the process, so a test that
//! trains in it holds [`one_at_a_time`]. Tests that only start the command need not.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod compute_copies;
mod config_reference;
mod direction;
mod guard;
mod operators;
mod other_files;
mod out_of_memory;
mod own_model;
mod parity;
mod plan;
mod saving;
mod schema;
mod snapshots;
mod words;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the top of this file.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TRAINS: Mutex<()> = Mutex::new(());
    TRAINS.lock().unwrap_or_else(PoisonError::into_inner)
}
