//! The ground floor: errors and their exit codes, signals, files that are written whole, variables in paths, processes, rows of metrics, medians, seeds,
//! reads from a device, and facts about the machine and the build. It knows nothing of training.

pub mod distributed;
pub mod build_info;
mod caught;
pub(crate) mod clock;
pub mod error;
pub mod files;
pub mod host;
pub mod metrics;
pub mod panics;
pub mod process;
pub mod random;
pub mod reads;
pub mod saved_dataset;
pub mod signals;
pub mod stats;
pub(crate) mod told;
pub mod variables;

pub(crate) use caught::caught;
