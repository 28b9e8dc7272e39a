//! Interleaved runs: a run in a process of its own that is held up before a step until it is its
//! turn, so that several runs that are to be compared live side by side and meet the same machine
//! within the same seconds. [`crate::compare`] and [`crate::bench`] drive them (`trials`); the
//! process itself is the trainer's own loop with a gate in it ([`worker`], the hidden `kiln
//! worker`); [`protocol`] is what the two say to one another.

pub mod protocol;
mod trials;
pub mod worker;

pub(crate) use trials::{Arm, ArmProcess, Interleaved};
