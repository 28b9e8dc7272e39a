//! Measuring above the training loop: benchmarks, native against compiled, the largest batch, and reports.

pub mod bench;
pub mod compare;
pub mod report;
pub mod tune_batch;
pub mod turns;
