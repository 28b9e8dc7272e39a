//! Measuring above the training loop: benchmarks, native against compiled, the largest batch,
//! searches, and reports.
//!
//! All of them use the parts that lie beside them: programs that train by turns ([`turns`]), the
//! record of the measurements ([`figures`]), the comparison of two participants by time ([`stats`])
//! and by loss ([`loss_parity`]), and the forms of a report ([`report`]).

pub mod engines;
pub mod proof;
pub mod bench;
pub mod collectives;
pub mod compare;
pub mod figures;
pub mod gemm;
pub mod loss_parity;
mod output;
pub mod report;
pub mod runner;
pub mod scaling;
pub mod stats;
pub mod sweep;
pub mod tune_batch;
pub mod turns;

/// The samples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
