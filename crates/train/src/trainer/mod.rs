//! The only training loop of Kiln: [`Trainer::train`] opens the [run folder](crate::run_folder)
//! around it, and makes micro-batches smaller where memory runs out. After each step the loop asks
//! its parts (logging, evaluation, verification, saving, the reasons to stop) whether they are due;
//! each decides for itself. The steps are computed by an executor, operation by operation or as
//! recordings.
//!
//! Parts, such as `clock` and `logging`, know neither the run nor the trainer. `run` holds those of
//! a run, `setup` defines the [`Trainer`], and the files of its methods (`begin`, `step`, `log`,
//! `evaluate`, `save`, `training_loop`) use both.

pub mod debug;
pub mod gradients;
pub mod step_closures;
pub mod warmup;
mod after;
mod begin;
mod callback;
#[cfg(feature = "compiler")]
mod captured;
mod clock;
mod eager;
mod evaluate;
mod evaluating;
mod executor;
mod fault;
mod guard;
mod kernels;
pub mod laps;
mod log;
mod logging;
mod losses;
mod memory;
pub mod observer;
mod profile;
mod ranks;
mod recover;
mod run;
pub mod run_log;
mod samples;
mod save;
mod saver;
mod setup;
mod shapes;
mod spans;
mod state;
mod step;
mod stopping;
mod sums;
mod tensorboard;
#[cfg(test)]
mod tests;
mod training_loop;
mod verify;
mod verifying;

pub use callback::{Activity, Callback, Control, DeviceValues, PrinterCallback, Progress, StopAfter};
pub use setup::{Purpose, TrainOutput, Trainer};
pub use shapes::{Shape, Shapes};
pub use verifying::Verifier;

pub use crate::evaluation::Evaluation;
