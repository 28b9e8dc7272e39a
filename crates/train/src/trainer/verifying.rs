//! `compiler.verify`: the compiler is compared with native before the first step, and every so many
//! steps.

use std::path::Path;

use kiln_core::error::{Error, Result};

use super::after::After;
use crate::engine::compiler::settings::Verify;
use crate::plan::TrainPlan;
use crate::session::Session;
use crate::task::TrainingTask;

/// Compares the modes of the compiler, for `compiler.verify`.
pub trait Verifier<T: TrainingTask> {
    /// Whether compiled computes what native does in the first steps of `session`, after `step`
    /// steps of the run whose weights are in the folder `weights`, or from those that the run
    /// begins with. Returns the verdict for people.
    ///
    /// # Errors
    /// A difference, and what the steps meet.
    fn verify(&self, session: &Session<T>, weights: Option<&Path>, step: u64) -> Result<String>;
}

/// When the compiler is checked, and who does it.
pub(super) struct Verifying<T: TrainingTask> {
    /// Before the first step.
    pub(super) at_start: bool,
    /// After every so many steps.
    every: Option<u64>,
    /// The step up to which the compiler is known to compute what native does, where checks are
    /// repeated.
    pub(super) verified: u64,
    pub(super) verifier: Option<Box<dyn Verifier<T>>>,
}

impl<T: TrainingTask> Verifying<T> {
    pub(super) fn new(plan: &TrainPlan) -> Self {
        let (at_start, every) = match plan.engine.verify {
            Verify::Off => (false, None),
            Verify::Start => (true, None),
            Verify::Every(steps) => (true, Some(steps)),
        };
        Self { at_start, every, verified: 0, verifier: None }
    }

    /// The check before the first step has been made elsewhere.
    pub(super) fn start_is_verified(&mut self) {
        self.at_start = false;
    }

    /// Whether a check follows a step.
    pub(super) fn due(&self, after: &After) -> bool {
        self.every.is_some_and(|steps| after.step.is_multiple_of(steps))
    }

    /// The step of the last check that passed, or of the start; none where no check follows it.
    pub(super) fn good_until(&self) -> Option<u64> {
        self.every.map(|_| self.verified)
    }

    pub(super) fn verifier(&self) -> Result<&dyn Verifier<T>> {
        self.verifier.as_deref().ok_or_else(|| {
            Error::config("compiler.verify: this trainer has nobody who compares the modes")
                .help("make it with Trainer::new or Trainer::from_session, or set compiler.verify = \"off\"")
        })
    }
}
