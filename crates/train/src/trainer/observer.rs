//! The loop says here which part of a step it has come to. Who listens measures steps
//! ([`Laps`](super::laps::Laps)) or holds them up until it is their turn; the loop itself knows of
//! neither.

use std::path::Path;
use std::time::Duration;

use kiln_core::error::Result;

use super::callback::Progress;
use super::shapes::Shape;

/// A part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Waiting for a batch and moving it to the device.
    Data,
    /// The model and its loss.
    Forward,
    /// Gradients, and their accumulation.
    Backward,
    /// Exchanges with the other ranks and waiting for them, with what brings gradients and weights
    /// to the host for it.
    Communicate,
    /// Gradient norm, clipping, optimizer.
    Update,
    /// Reading values back (waiting for the device) and writing the log row.
    Sync,
    /// Evaluation, no training time.
    Evaluation,
    /// Reading out and handing over a checkpoint, no training time.
    Save,
}

/// Hears of the parts of every step; every method does nothing unless it is written.
#[allow(unused_variables)]
pub trait Observer {
    /// The loop begins at `progress`, in the run folder `folder`. `is_synchronous` says that the
    /// device has ended every operation when its call returns.
    fn begin(&mut self, folder: &Path, progress: &Progress, is_synchronous: bool) -> Result<()> {
        Ok(())
    }

    /// A step is about to begin. Returns how long the step was held up, which is no time of the
    /// run.
    fn before_step(&mut self, progress: &Progress) -> Duration {
        Duration::ZERO
    }

    /// A batch of this shape begins.
    fn batch(&mut self, shape: Shape) {}

    /// The time since the last call was spent on `part`.
    fn part(&mut self, part: Part) {}

    /// The step is over. `read` says that a value of it has been read back.
    fn end_step(&mut self, progress: &Progress, read: bool) -> Result<()> {
        Ok(())
    }
}

/// Nobody.
impl Observer for () {}
