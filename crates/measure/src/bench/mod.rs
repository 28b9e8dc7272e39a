//! `kiln bench`: where the time of a step goes, in both modes and beside peers of other frameworks,
//! on suites of fixed models or on a config of one's own. It is the engineer's tool: step time by
//! part, single operators, peak memory, raw samples. Whether compiling pays for a run is
//! [`crate::compare`]'s question.
//!
//! Every arm is a process of its own that stays alive and makes a few steps when it is its turn
//! ([`crate::interleaved`]), so that all of them meet the same machine. [`run`](mod@run) drives
//! them and checks that their losses are equal before any ratio is made.

pub mod case;
mod judge;
pub mod report;
pub mod run;
pub mod suite;
pub mod table;
