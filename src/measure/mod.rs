//! Measuring above the training loop: benchmarks, native against compiled, the largest batch, and reports.
//!
//! What they share stands here: programs that train by turns ([`turns`]), the record of what was measured ([`figures`]), the
//! comparison of two participants by time ([`stats`]) and by loss ([`parity`]), and the forms of a report ([`report`]).

pub mod bench;
pub mod compare;
pub mod figures;
pub(crate) mod gemm;
pub mod parity;
pub mod report;
pub mod stats;
pub mod tune_batch;
pub mod turns;
