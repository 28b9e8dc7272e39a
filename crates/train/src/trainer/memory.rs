//! The lines about the memory of a run whose activations nobody has counted: before it begins,
//! where the part that is known does not fit, and once its steps have shown all that one needs.

use kiln_core::host;

use super::after::After;
use super::run::Training;
use super::setup::{Purpose, Trainer};
use crate::engine::device::memory_use;
use crate::engine::settings::DeviceKind;
use crate::plan::shown;
use crate::task::TrainingTask;

/// The first step that has the optimizer's state in memory beside its activations: the update of
/// the step before has made it.
const WHOLE_STEP: u64 = 2;

impl<T: TrainingTask> Trainer<T> {
    /// Tells of a run on the CPU that the machine has no room for, whatever its activations are.
    pub(super) fn warn_of_shortage(&mut self) {
        let plan = self.session.plan();
        if !self.tells_memory() || plan.engine.device.kind != DeviceKind::Cpu {
            return;
        }
        let needs = plan.known_memory().mib();
        let room = host::room(plan.batch.devices.of_a_node()).filter(|room| room.mib < needs);
        if let Some(room) = room {
            self.notice(&format!(
                "does not fit: weights, gradients and the optimizer take {}, and there are {} for a run",
                shown(needs),
                shown(room.mib)
            ));
        }
    }

    fn tells_memory(&self) -> bool {
        !T::HAS_MEMORY_ESTIMATE && self.purpose == Purpose::Train && self.world.is_root()
    }

    /// Tells what the process has measured, once it has made a whole step.
    pub(super) fn tell_memory(&mut self, run: &Training, after: &After) {
        let steps = run.clock.steps(&run.progress);
        let is_due = steps == WHOLE_STEP || (after.is_last && steps < WHOLE_STEP);
        if !self.tells_memory() || !is_due {
            return;
        }
        let known = self.session.plan().known_memory().mib();
        let Some(peak) = memory_use(&self.session.device).peak_mib.filter(|peak| *peak > known) else { return };
        self.notice(&format!(
            "memory: {} at most up to step {}, {} of it weights, gradients and the optimizer; the rest is what the forward \
             pass keeps, batches and the program",
            shown(peak),
            after.step,
            shown(known)
        ));
    }
}
