//! A run and the memory of this machine: one that needs more than there is begins with a smaller
//! micro-batch, and one that is refused a block begins again with half of it, from its newest
//! checkpoint.

use std::ffi::OsString;
use std::path::Path;

use kiln::config::DeviceKind;
use kiln::distributed::World;
use kiln::plan::{BatchPlan, TrainPlan};
use kiln::session::Session;
use kiln::session::model_folder::PLAN_TOML;
use kiln::session::shortage::Shortage;
use kiln::trainer::Callback;
use kiln_core::error::Result;
use kiln_core::host::{self, Room};

use super::faults;

/// The hidden option of a process that has begun again, with the batch that was too large.
const WAS: &str = "--out-of-memory";

/// The room of a process of `session`'s run on this machine.
pub(super) fn room(session: &Session) -> Option<Room> {
    host::room(session.plan().batch.devices.of_a_node())
}

/// `session` with the largest micro-batch that fits into this machine's memory and trains the same,
/// and a line about that; with a line alone where no such batch fits. The rank with the least room
/// decides for all.
pub(super) fn fitted(world: &World, session: Session) -> Result<(Session, Option<String>)> {
    let rooms = world.gather(&[room(&session).map_or(f64::INFINITY, |room| room.mib)])?;
    let least = rooms.iter().flatten().copied().fold(f64::INFINITY, f64::min);
    let room = room(&session).map(|room| Room { mib: least, ..room });
    let shortage = if world.is_root() { Shortage::of(&session, room)? } else { None };
    let smaller = shortage.as_ref().and_then(|shortage| shortage.smaller.clone());
    let smaller = world.made_by_root(|| Ok(smaller))?;
    let Some(batch) = smaller else { return Ok((session, shortage.map(|shortage| shortage.to_string()))) };
    let line = shortage.map(|shortage| {
        let (now, was) = (batch.arithmetic(), session.plan().batch.arithmetic());
        format!("{shortage}; it begins with a smaller micro-batch and the same global batch: {now}, was {was}")
    });
    Ok((session.with_batch(&batch)?, line))
}

/// The notice of a process that has begun again after one whose batch `was` too large.
pub(super) fn notice(batch: &BatchPlan, was: &str) -> String {
    format!(
        "out of memory: the system had no more for this process; back to the newest checkpoint, or the start, with half the micro-batch and the same \
         global batch: {}, was {was}",
        batch.arithmetic()
    )
}

/// Keeps ready what is told of a run that is refused memory, and what begins one again with half
/// its micro-batch, which a process alone can do.
pub(super) struct BeginsAgain {
    pub(super) is_alone: bool,
    /// The options of this process that its plan does not have.
    pub(super) options: Vec<OsString>,
}

impl<M> Callback<M> for BeginsAgain {
    fn on_train_begin(&mut self, plan: &TrainPlan) {
        let folder = plan.run.expanded_output_dir().ok();
        // A run that a stated checkpoint begins would begin there again.
        let can_begin = self.is_alone && plan.run.resume_from_checkpoint.is_none();
        let smaller = plan.smaller_batch().filter(|_| can_begin && plan.engine.device.kind == DeviceKind::Cpu);
        let arguments = folder.as_ref().zip(smaller).map(|(folder, batch)| {
            let told = again(folder, &batch, &plan.batch.arithmetic());
            std::env::args_os().take(1).chain(told).chain(self.options.clone()).collect()
        });
        faults::begins_again(folder, arguments);
    }
}

/// The arguments that continue the run in `folder`, as its plan has it, with `batch`. The config is
/// not read again: it may be another one by now, or gone.
fn again(folder: &Path, batch: &BatchPlan, was: &str) -> Vec<OsString> {
    let mut arguments = vec!["train".into(), folder.join(PLAN_TOML).into_os_string(), WAS.into(), was.into()];
    let sets = [
        "run.on_existing=resume".to_owned(),
        format!("trainer.per_device_train_batch_size={}", batch.micro),
        format!("trainer.gradient_accumulation_steps={}", batch.accumulation),
    ];
    arguments.extend(sets.into_iter().flat_map(|set| ["--set".into(), set.into()]));
    arguments
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_process_begins_again_from_the_plan_of_its_run() {
        let batch =
            BatchPlan { micro: 4, accumulation: 2, devices: Default::default(), global: 8, seq_len: 4, note: None };
        let told = [
            "train",
            "a b/plan.toml",
            WAS,
            "8 = 8 x 1",
            "--set",
            "run.on_existing=resume",
            "--set",
            "trainer.per_device_train_batch_size=4",
            "--set",
            "trainer.gradient_accumulation_steps=2",
        ];
        assert_eq!(again(Path::new("a b"), &batch, "8 = 8 x 1"), told.map(OsString::from));
    }
}
