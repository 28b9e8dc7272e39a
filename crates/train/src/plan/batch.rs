//! The batch of an optimizer step, derived: how many examples a forward pass takes, how often
//! gradients are added up, and what the learning rate makes of it. Arithmetic only.

use kiln_core::dataset::padding::Batches;
use kiln_core::dataset::sampler::Order;
use kiln_core::error::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::arguments::{BatchScaling, CheckedArguments, TrainBatchSize, TrainingArguments};
use crate::distributed::Devices;
use crate::plan::FoundBatch;

/// How a global batch is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchPlan {
    /// Examples a forward pass.
    pub micro: usize,
    /// Forward and backward passes an optimizer step, on each device.
    pub accumulation: usize,
    /// The devices that share the micro-batches of a step.
    #[serde(default)]
    pub devices: Devices,
    /// Examples an optimizer step: `micro * accumulation * devices`.
    pub global: usize,
    /// Longest example in tokens.
    pub seq_len: usize,
    /// Where a micro-batch comes from that the config does not state.
    pub note: Option<String>,
}

impl BatchPlan {
    /// The batch that `trainer` asks for, with the micro-batch `found` where it leaves that open;
    /// `seq_len` is for the plan to fill in.
    ///
    /// # Errors
    /// A micro-batch that is not known yet, or one that the global batch is no multiple of.
    pub fn of(trainer: &CheckedArguments, found: Option<&FoundBatch>) -> Result<Self> {
        let (micro, note) = match (trainer.per_device_train_batch_size, found) {
            (TrainBatchSize::Size(micro), _) => (micro, None),
            (TrainBatchSize::Auto, Some(found)) => (found.micro, Some(found.because.clone())),
            (TrainBatchSize::Auto, None) => return Err(Error::config(
                "trainer.per_device_train_batch_size = \"auto\": no size has been found for this run on this machine",
            )
            .help("`kiln tune-batch FILE` finds one")),
        };
        let accumulation = match trainer.batch.global_batch_size {
            None => trainer.gradient_accumulation_steps,
            Some(global) => accumulation(global, micro, trainer.devices, trainer.gradient_accumulation_steps)?,
        };
        let devices = trainer.devices;
        let global = micro.saturating_mul(accumulation).saturating_mul(devices.count);
        Ok(Self { micro, accumulation, devices, global, seq_len: 0, note })
    }

    /// How the training data is drawn under `trainer`, a micro-batch each.
    pub fn drawn(&self, trainer: &TrainingArguments) -> Batches {
        let (sampler, seed) = (trainer.sampler, trainer.data_seed());
        let order = Order { sampler, seed, step: self.global };
        Batches { size: self.micro, order, drop_last: trainer.dataloader_drop_last }
    }

    /// This batch with the next smaller micro-batch that divides it, at most half of this one; none
    /// at a micro-batch of 1.
    pub fn halved(&self) -> Option<Self> {
        let per_device = self.global / self.devices.count;
        let micro = largest_divisor(per_device, self.micro / 2)?;
        Some(Self { micro, accumulation: per_device / micro, ..self.clone() })
    }

    /// The micro-batches of an optimizer step, of all devices.
    pub fn micro_batches(&self) -> usize {
        self.accumulation * self.devices.count
    }

    /// `480 = 12 x 10 micro-batches x 4 devices (2 nodes x 2)`
    pub fn arithmetic(&self) -> String {
        let batches = if self.accumulation == 1 { "micro-batch" } else { "micro-batches" };
        format!("{} = {} x {} {batches} x {}", self.global, self.micro, self.accumulation, self.devices)
    }
}

/// How often `micro` goes into each device's part of the stated global batch. `given` is the
/// accumulation that the config states; 1, its default, leaves it to be derived.
fn accumulation(global: usize, micro: usize, devices: Devices, given: usize) -> Result<usize> {
    let count = devices.count;
    if count > 1 && !global.is_multiple_of(micro.saturating_mul(count)) {
        let near = largest_divisor(global / count, micro).filter(|_| global.is_multiple_of(count));
        let error = Error::config(format!(
            "batch.global_batch_size = {global} is no multiple of trainer.per_device_train_batch_size = {micro} x {devices}"
        ));
        let round = global.next_multiple_of(micro * count);
        return Err(error.help(match near {
            Some(near) => {
                format!("set trainer.per_device_train_batch_size = {near}, or batch.global_batch_size = {round}")
            }
            None => format!("set batch.global_batch_size = {round}, or start another number of processes"),
        }));
    }
    if !global.is_multiple_of(micro) {
        let near = largest_divisor(global, micro).unwrap_or(1);
        return Err(Error::config(format!(
            "batch.global_batch_size = {global} is no multiple of trainer.per_device_train_batch_size = {micro}"
        ))
        .help(format!(
            "set trainer.per_device_train_batch_size = {near}, or batch.global_batch_size = {}",
            global.next_multiple_of(micro)
        )));
    }
    let derived = global / micro / count;
    if given != 1 && given != derived {
        return Err(Error::config(format!(
            "batch.global_batch_size = {global}, but {micro} x {given} micro-batches (trainer.gradient_accumulation_steps){} \
             are {}",
            if count == 1 { String::new() } else { format!(" x {devices}") },
            micro * given * count
        ))
        .help(format!("leave trainer.gradient_accumulation_steps out: {derived} follows from the global batch")));
    }
    Ok(derived)
}

/// The largest number up to `most` that divides `global`; none below 1.
fn largest_divisor(global: usize, most: usize) -> Option<usize> {
    (1..=most.min(global)).rev().find(|size| global.is_multiple_of(*size))
}

/// The examples of a stated global batch that each device has in a step; none where it is not
/// stated.
pub fn part_of_device(trainer: &TrainingArguments) -> Option<usize> {
    trainer.batch.global_batch_size.map(|global| global / trainer.devices.count)
}

/// The micro-batch for a device on which `fits` examples fit: all of them where the batch grows,
/// else the largest number that divides its part of the global batch.
pub fn micro_batch(trainer: &TrainingArguments, fits: usize) -> usize {
    match (trainer.batch.scaling, part_of_device(trainer)) {
        (BatchScaling::Fixed, Some(part)) => largest_divisor(part, fits).unwrap_or(1),
        _ => fits,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::arguments::BatchArguments;

    fn config(micro: usize, accumulation: usize, global: Option<usize>) -> TrainingArguments {
        TrainingArguments {
            per_device_train_batch_size: micro.into(),
            gradient_accumulation_steps: accumulation,
            batch: BatchArguments { global_batch_size: global, ..Default::default() },
            ..TrainingArguments::new("run")
        }
    }

    fn batch(arguments: &TrainingArguments) -> Result<BatchPlan> {
        BatchPlan::of(&arguments.clone().checked()?, None)
    }

    #[test]
    fn the_global_batch_is_stated_or_follows() {
        let plan = batch(&config(12, 1, Some(480))).unwrap();
        assert_eq!((plan.micro, plan.accumulation, plan.global), (12, 40, 480));
        assert_eq!(plan.arithmetic(), "480 = 12 x 40 micro-batches x 1 device");
        // plan.toml states all three.
        assert_eq!(batch(&config(12, 40, Some(480))).unwrap(), plan);
        let plan = batch(&config(8, 2, None)).unwrap();
        assert_eq!((plan.micro, plan.accumulation, plan.global), (8, 2, 16));
        assert_eq!(batch(&config(8, 1, None)).unwrap().arithmetic(), "8 = 8 x 1 micro-batch x 1 device");
    }

    #[test]
    fn contradictions_are_refused_with_the_way_out() {
        let refused =
            |micro, accumulation, global| batch(&config(micro, accumulation, Some(global))).unwrap_err().to_string();
        let error = refused(7, 1, 480);
        assert!(error.contains("480 is no multiple of trainer.per_device_train_batch_size = 7"), "{error}");
        assert!(error.contains("per_device_train_batch_size = 6, or batch.global_batch_size = 483"), "{error}");
        assert!(refused(12, 4, 480).contains("12 x 4 micro-batches (trainer.gradient_accumulation_steps) are 48"));
        assert!(
            refused(16, 1, 8).contains("set trainer.per_device_train_batch_size = 8"),
            "smaller than one micro-batch"
        );
        let mut auto = config(1, 1, Some(480));
        auto.per_device_train_batch_size = TrainBatchSize::Auto;
        assert!(batch(&auto).unwrap_err().to_string().contains("kiln tune-batch"));
    }

    #[test]
    fn halving_keeps_the_global_batch() {
        let mut plan = batch(&config(12, 1, Some(480))).unwrap();
        let mut seen = Vec::new();
        while let Some(half) = plan.halved() {
            assert_eq!((half.micro * half.accumulation, half.global), (480, 480));
            let order = |plan: &BatchPlan| plan.drawn(&TrainingArguments::default()).order;
            assert_eq!((order(&half), order(&half).step), (order(&plan), 480), "the same examples in every step");
            seen.push(half.micro);
            plan = half;
        }
        assert_eq!(seen, [6, 3, 1]);
        let odd = batch(&config(9, 2, None)).unwrap().halved().unwrap();
        assert_eq!((odd.micro, odd.accumulation), (3, 6));
    }

    #[test]
    fn what_fits_becomes_a_divisor_or_the_batch() {
        let mut trainer = config(1, 1, Some(480));
        assert_eq!([1, 13, 47, 500].map(|fits| micro_batch(&trainer, fits)), [1, 12, 40, 480]);
        trainer.devices = Devices { count: 4, nodes: 2 };
        let sizes = [1, 13, 47, 500].map(|fits| micro_batch(&trainer, fits));
        assert_eq!(sizes, [1, 12, 40, 120], "each of 4 devices has 120 of 480 examples");
        for micro in sizes {
            trainer.per_device_train_batch_size = micro.into();
            assert_eq!(batch(&trainer).unwrap().global, 480);
        }
        trainer.batch = BatchArguments { scaling: BatchScaling::Grow, global_batch_size: None };
        assert_eq!(micro_batch(&trainer, 13), 13);
    }
}
