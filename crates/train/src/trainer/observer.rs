//! The loop says here what its steps have taken. Who listens writes that down
//! ([`Laps`](super::laps::Laps)) or holds steps up until it is their turn; the loop itself knows of
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
    /// Reading values back (waiting for the device), writing the log row, and whatever is none of
    /// the other parts.
    Sync,
    /// Evaluation, no training time.
    Evaluation,
    /// Reading out and handing over a checkpoint, no training time.
    Save,
}

impl Part {
    /// Its name in `steps.jsonl` and in a profile.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Communicate => "communicate",
            Self::Update => "update",
            Self::Sync => "sync",
            Self::Evaluation => "evaluation",
            Self::Save => "save",
        }
    }
}

/// The time of a step by part, and what else of it is counted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spent {
    /// By the number of the part.
    pub(super) times: [Duration; Part::Save as usize + 1],
    /// Reads from the device, without those of evaluation and saving.
    pub device_reads: u64,
    /// Kernels launched while they were counted, without those of evaluation and saving.
    pub kernel_launches: u64,
}

impl Spent {
    /// The time of `part`, without that of others within it.
    pub fn time(&self, part: Part) -> Duration {
        self.times[part as usize]
    }
}

/// Hears of every step; every method does nothing unless it is written.
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

    /// The step is over and has taken `spent`. `read` says that a value of it has been read back.
    fn end_step(&mut self, progress: &Progress, spent: &Spent, read: bool) -> Result<()> {
        Ok(())
    }
}

/// Nobody.
impl Observer for () {}
