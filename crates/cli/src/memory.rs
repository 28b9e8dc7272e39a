//! A run and the memory of this machine: one that needs more than there is begins with a smaller
//! micro-batch, and one that is refused a block begins again with half of it, from its newest
//! checkpoint.

use std::ffi::OsString;

use kiln::config::DeviceKind;
use kiln::distributed::World;
use kiln::plan::{BatchPlan, TrainPlan};
use kiln::session::Session;
use kiln::session::shortage::Shortage;
use kiln::trainer::Callback;
use kiln_core::error::Result;
use kiln_core::host::{self, Room};

use super::faults;

/// The hidden option that ends the arguments of a process which has begun again, before what its
/// batch is set to.
pub(super) const WAS: &str = "--out-of-memory";

/// The room of a process of `session`'s run on this machine.
pub(super) fn room(session: &Session) -> Option<Room> {
    let devices = session.plan().batch.devices;
    host::room(devices.count.div_ceil(devices.nodes))
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
}

impl<M> Callback<M> for BeginsAgain {
    fn on_train_begin(&mut self, plan: &TrainPlan) {
        // A run that a stated checkpoint begins would begin there again.
        let can_begin = self.is_alone && plan.run.resume_from_checkpoint.is_none();
        let smaller = plan.smaller_batch().filter(|_| can_begin && plan.engine.device.kind == DeviceKind::Cpu);
        let arguments = smaller.map(|batch| again(std::env::args_os(), &batch, &plan.batch.arithmetic()));
        faults::begins_again(plan.run.expanded_output_dir().ok(), arguments);
    }
}

/// The `arguments` of this program, changed to continue the same run with `batch`.
fn again(arguments: impl Iterator<Item = OsString>, batch: &BatchPlan, was: &str) -> Vec<OsString> {
    let mut arguments = arguments.take_while(|argument| argument != WAS).collect::<Vec<_>>();
    let sets = [
        "run.on_existing=resume".to_owned(),
        format!("trainer.per_device_train_batch_size={}", batch.micro),
        format!("trainer.gradient_accumulation_steps={}", batch.accumulation),
    ];
    arguments.extend([WAS.into(), was.into()]);
    arguments.extend(sets.into_iter().flat_map(|set| ["--set".into(), set.into()]));
    arguments
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_process_that_begins_again_twice_states_its_batch_once() {
        let batch = |micro, accumulation| BatchPlan {
            micro,
            accumulation,
            devices: Default::default(),
            global: 8,
            seq_len: 4,
            note: None,
        };
        let words = ["kiln", "train", "a b.toml", "--set", "run.name=x"].map(OsString::from);
        let once = again(words.clone().into_iter(), &batch(4, 2), "8 = 8 x 1");
        let twice = again(once.clone().into_iter(), &batch(2, 4), "8 = 4 x 2");
        assert_eq!((&once[..5], &twice[..5]), (&words[..], &words[..]));
        let told = [
            WAS,
            "8 = 4 x 2",
            "--set",
            "run.on_existing=resume",
            "--set",
            "trainer.per_device_train_batch_size=2",
            "--set",
            "trainer.gradient_accumulation_steps=4",
        ];
        assert_eq!(twice[5..], told.map(OsString::from));
    }
}
