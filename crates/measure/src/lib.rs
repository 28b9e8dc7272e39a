//! This crate measures trainings: benchmarks, comparisons of native with compiled, the largest
//! batch, searches, and reports.
//!
//! An **arm** is one of the things that a measurement compares: a mode with its settings, another
//! program, or a number of devices. All measurements use the same modules: [`runner`] starts
//! processes, [`interleaved`] lets them train by turns, [`figures`] has the record of the
//! measurements, [`stats`] compares two arms by time and [`loss_parity`] by loss, [`verdict`] gives
//! the answer, and [`report`] writes it.

pub mod runner;
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
