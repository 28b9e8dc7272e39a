//! The memory that a run needs beside the memory that there is, and what lowers it: every way is a
//! plan of its own, whose estimate says how far.

use std::fmt;

use kiln_core::error::Result;
use kiln_core::host::{Bound, Room};
use kiln_core::words::thousands;

use super::{OpenSession, Session};
use crate::config::{ActivationCheckpointing, CompilerMode, DeviceKind, Precision};
use crate::plan::{BatchPlan, RunPlan};

/// A way is worth its name from this part of the estimate on that it takes away.
const WORTH: f64 = 0.05;

/// A run on the CPU that needs more memory than there is.
#[derive(Debug, Clone)]
pub struct Shortage {
    needs: f64,
    room: Room,
    /// Settings with the MiB that the run needs with them.
    ways: Vec<(String, f64)>,
    /// The largest micro-batch that fits and trains the same.
    pub smaller: Option<BatchPlan>,
}

impl Shortage {
    /// The shortage of the run of `session` in `room`; none where it fits, and where its need is
    /// not known.
    ///
    /// # Errors
    /// A session that no config describes.
    pub fn of(session: &Session, room: Option<Room>) -> Result<Option<Self>> {
        let plan = session.run_plan()?;
        let (Some(needs), Some(room)) = (mib(&plan), room) else { return Ok(None) };
        if plan.train.engine.device.kind != DeviceKind::Cpu || needs <= room.mib {
            return Ok(None);
        }
        let halved = |plan: &RunPlan| Some(plan.with_memory_of(&plan.train.smaller_batch()?));
        let fits = |plan: &RunPlan| mib(plan).is_some_and(|mib| mib <= room.mib);
        let mut cut = halved(&plan);
        while let Some(smaller) = cut.as_ref().filter(|plan| !fits(plan)).and_then(halved) {
            cut = Some(smaller);
        }
        let of_batch = |plan: &RunPlan| {
            let (micro, accumulation) = (plan.train.batch.micro, plan.train.batch.accumulation);
            let name = format!(
                "trainer.per_device_train_batch_size = {micro} with gradient_accumulation_steps = {accumulation}"
            );
            Some((name, mib(plan)?))
        };
        let mut ways = cut.as_ref().and_then(of_batch).into_iter().collect::<Vec<_>>();
        ways.extend(settings(session, &plan));
        ways.retain(|(_, mib)| *mib < (1.0 - WORTH) * needs);
        // Ways that suffice come first, the one that costs least before the others; among the rest
        // the one that helps most comes first.
        let (fit, mut short): (Vec<_>, Vec<_>) = ways.into_iter().partition(|(_, mib)| *mib <= room.mib);
        short.sort_by(|a, b| a.1.total_cmp(&b.1));
        let ways = fit.into_iter().chain(short).collect();
        let smaller = cut.filter(fits).map(|plan| plan.train.batch.clone());
        Ok(Some(Self { needs, room, ways, smaller }))
    }
}

/// The other settings that lower the memory of the run of `session`, each with what is needed then.
fn settings(session: &Session, plan: &RunPlan) -> Vec<(String, f64)> {
    type Change = fn(&mut crate::TrainingArguments);
    let engine = &plan.train.engine;
    let changes: [(&str, bool, Change); 3] = [
        ("compiler.enabled = true", engine.mode == CompilerMode::Native, |trainer| {
            trainer.set_compiler(CompilerMode::Compiled);
        }),
        (
            "trainer.activation_checkpointing = \"blocks\"",
            engine.activation_checkpointing != ActivationCheckpointing::Blocks,
            |trainer| trainer.activation_checkpointing = ActivationCheckpointing::Blocks,
        ),
        ("precision = \"bf16\"", engine.precision.precision == Precision::F32, |trainer| {
            trainer.precision = Precision::Bf16;
        }),
    ];
    let changed = changes.into_iter().filter(|(_, applies, _)| *applies).filter_map(|(name, _, change)| {
        // Settings that contradict the rest of the config are no way.
        let plan = session.with(change).and_then(|session| session.run_plan()).ok()?;
        Some((name.to_owned(), mib(&plan)?))
    });
    let adapters = || {
        let facts = session.run_facts().ok()?;
        plan.architecture.as_ref().filter(|it| it.lora.is_none() && it.from.is_some())?;
        Some(("[lora] with r = 8".to_owned(), mib(&plan.with_adapters(&facts, 8))?))
    };
    let evaluation = (plan.train.evaluation.batch_size > 1 && plan.train.evaluation.is_on()).then(|| {
        let of_one = session.with(|trainer| trainer.per_device_eval_batch_size = 1);
        let plan = of_one.and_then(|session| session.run_plan()).ok()?;
        Some(("trainer.per_device_eval_batch_size = 1".to_owned(), mib(&plan)?))
    });
    changed.chain(adapters()).chain(evaluation.flatten()).collect()
}

/// The MiB that the run of `plan` needs.
fn mib(plan: &RunPlan) -> Option<f64> {
    Some(plan.memory.estimate.as_ref()?.total() as f64 / f64::from(1 << 20))
}

impl fmt::Display for Shortage {
    /// `the run needs about 2,853 MiB, and 1,000 MiB are left by the limit of the address space
    /// (ulimit -v); it fits with trainer.per_device_train_batch_size = 2 with ... (812 MiB)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |mib: f64| thousands(mib.round() as u64);
        let bound = match self.room.bound {
            Bound::Machine => "are available on this machine",
            Bound::Group => "are left by the limit of the control group (the container's)",
            Bound::AddressSpace => "are left by the limit of the address space (ulimit -v)",
        };
        write!(f, "the run needs about {} MiB, and {} MiB {bound}", number(self.needs), number(self.room.mib))?;
        let list = |fits: bool| {
            let ways = self.ways.iter().filter(|(_, mib)| (*mib <= self.room.mib) == fits);
            ways.map(|(name, mib)| format!("{name} ({} MiB)", number(*mib))).collect::<Vec<_>>().join(", or ")
        };
        match (list(true), list(false)) {
            (fit, _) if !fit.is_empty() => write!(f, "; it fits with {fit}"),
            (_, short) if !short.is_empty() => {
                write!(f, "; no setting alone makes it fit, and these lower it: {short}")
            }
            _ => write!(f, "; a smaller model or shorter sequences lower it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_the_limit_and_what_fits_before_what_lowers_it() {
        let ways = |ways: &[(&str, f64)]| ways.iter().map(|(name, mib)| ((*name).to_owned(), *mib)).collect();
        let of = |bound, given: &[(&str, f64)]| {
            let room = Room { mib: 1000.0, bound };
            Shortage { needs: 2853.4, room, ways: ways(given), smaller: None }.to_string()
        };
        assert_eq!(
            of(Bound::AddressSpace, &[("a = 1", 812.0), ("b = 2", 999.9), ("c = 3", 1200.0)]),
            "the run needs about 2,853 MiB, and 1,000 MiB are left by the limit of the address space (ulimit -v); it fits \
             with a = 1 (812 MiB), or b = 2 (1,000 MiB)"
        );
        assert_eq!(
            of(Bound::Machine, &[("c = 3", 1200.0)]),
            "the run needs about 2,853 MiB, and 1,000 MiB are available on this machine; no setting alone makes it fit, and \
             these lower it: c = 3 (1,200 MiB)"
        );
        assert_eq!(
            of(Bound::Group, &[]),
            "the run needs about 2,853 MiB, and 1,000 MiB are left by the limit of the control group (the container's); a \
             smaller model or shorter sequences lower it"
        );
    }
}
