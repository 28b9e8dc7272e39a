//! Measuring above the training loop: benchmarks, native against compiled, the largest batch,
//! searches, and reports.
//!
//! An **arm** is what takes part in a measurement. All questions use the same parts: processes
//! ([`runner`]) that train by turns ([`interleaved`]), the record of the measurements
//! ([`figures`]), the comparison of two arms by time ([`stats`]) and by loss ([`loss_parity`]), the
//! [`verdict`], and the forms of a report ([`report`]).

pub mod engines;
pub mod proof;
pub mod stats;
pub mod verdict;
pub mod figures;
pub mod loss_parity;
pub mod gemm;
pub mod operators;
mod output;
mod table;
pub mod collectives;
pub mod runner;
pub mod measured;
pub mod interleaved;
pub mod tune_batch;
pub mod compare;
pub mod bench;
pub mod scaling;
pub mod sweep;
pub mod report;

/// The samples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
