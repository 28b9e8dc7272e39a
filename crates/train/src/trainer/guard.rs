//! The silent-failure guard: what goes wrong in a training without anybody saying so. Always on,
//! and without a read of the device between log steps: a flag is accumulated there and read with
//! the loss.
//!
//! It stops a run
//! - when a thread of the device or of Kiln has panicked, which Burn catches (burn#5352);
//! - when the loss or the gradient norm of any step was no finite number, also of a step that was
//!   not logged;
//! - when loss and gradient norm are the same to the bit in [`ROWS`] log rows one after the other
//!   although the data change and the learning rate is not nothing;
//! - when not one of the weights that are sampled (16 of every tensor that learns) has moved in
//!   [`ROWS`] - 1 log windows one after the other at a learning rate that is not nothing.
//!
//! [`super::fault`] acts on it.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Tensor};
use kiln_core::device_error::device_error;
use kiln_core::error::{Error, ErrorKind, Result};
use kiln_core::panics;
use kiln_core::panics::{Panic, Watch};
use kiln_models::Operator;
use kiln_models::ops::Form;
use kiln_models::ops::adamw::{SAMPLED, sample};
use kiln_models::ops::list::TensorList;

use super::callback::Progress;
use crate::plan::TrainPlan;
use crate::reads::read_scalars;

/// So many equal rows are no chance: f32 sums over other batches differ in their last bits.
const ROWS: u32 = 4;

/// A learning rate below this part of the schedule's highest counts as nothing: the last steps of a
/// decay may move no weight by its last bit.
const NOTHING: f64 = 1e-3;

/// Looks after one run.
#[derive(Debug)]
pub(super) struct Guard {
    watch: Watch,
    /// Steps since the first one, inclusive, whose loss or gradient norm was not finite, `[1]` on
    /// the device; 0 for none.
    bad_steps: Option<Tensor<1>>,
    /// A loss that stays the same is no fault where every step sees the same examples.
    data_changes: bool,
    lr_floor: f64,
    /// Fused, the weights are sampled in one launch; plain, each tensor by itself.
    form: Form,
    frozen: Streak,
    still: Streak,
    row: Option<[u64; 2]>,
    sample: Option<Tensor<1>>,
    /// The step up to which nothing found later makes a checkpoint suspect: that of the last log
    /// row, or of the last check of the compiler that passed.
    trusted: u64,
    /// The first step that the fault found may have spoiled.
    first_suspect: Option<u64>,
}

/// Log rows one after the other of which the same is true.
#[derive(Debug, Default, Clone, Copy)]
struct Streak {
    rows: u32,
    /// The step of the row before the first of them.
    since: u64,
}

impl Streak {
    fn count(&mut self, holds: bool, last_row: u64) {
        if !holds {
            *self = Self::default();
        } else {
            if self.rows == 0 {
                self.since = last_row;
            }
            self.rows += 1;
        }
    }
}

/// The values that the guard reads from the device at a log step, in the one transfer of that step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Reading {
    /// Steps since the first bad one, inclusive; 0 for none.
    pub(super) bad_steps: f64,
    /// The largest change of a sampled weight since the last log step; none at the first.
    pub(super) moved: Option<f64>,
}

impl Guard {
    /// A guard for the run of `plan`, which has made `step` steps.
    pub(super) fn new(plan: &TrainPlan, step: u64) -> Self {
        let steps = [0, plan.optimizer.schedule.warmup_steps(), plan.steps.total / 2];
        let peak = steps.into_iter().map(|step| plan.optimizer.schedule.lr(step)).fold(0.0, f64::max);
        let form = plan.engine.compute().ops().form(Operator::AdamW);
        Self { trusted: step, form, ..Self::with(plan.steps.per_epoch > 1, peak * NOTHING) }
    }

    fn with(data_changes: bool, lr_floor: f64) -> Self {
        Self {
            watch: Watch::start(),
            bad_steps: None,
            data_changes,
            lr_floor,
            form: Form::Plain,
            frozen: Streak::default(),
            still: Streak::default(),
            row: None,
            sample: None,
            trusted: 0,
            first_suspect: None,
        }
    }

    /// Notes a step's loss and gradient norm, `[1]` each, on the device.
    pub(super) fn step(&mut self, loss: &Tensor<1>, grad_norm: &Tensor<1>) {
        // 0 x infinity and 0 x NaN are NaN; 0 x a number is 0.
        let bad = ((loss.clone() + grad_norm.clone()) * 0.0).is_nan().float();
        self.bad_steps = Some(match self.bad_steps.take() {
            // Once a step was bad, every later one counts.
            Some(before) => before.clone() + bad.max_pair(before.clamp_max(1.0)),
            None => bad,
        });
    }

    /// A panic of a device's or Kiln's thread stops the run at the next step. Without one nothing
    /// is read from the device; with one the `loss` of the step is, since a device that has run out
    /// of memory may panic at what follows, and says so there.
    pub(super) fn check_threads(&mut self, progress: &Progress, loss: &Tensor<1>) -> Result<()> {
        match self.watch.panics().first() {
            None => Ok(()),
            Some(panic) => {
                self.first_suspect = Some(self.trusted + 1);
                if let Err(error) = read_scalars(vec![loss.clone()])
                    && error.kind() == ErrorKind::OutOfMemory
                {
                    return Err(error);
                }
                if panics::of_driver().is_some() {
                    return Err(device_error(&panic.message).at(format_args!("step {}", progress.step)));
                }
                Err(Error::device(format!("step {}: {panic}", progress.step)).help(
                    "values after it were perhaps never computed; run again, and with --compiler native if it comes back",
                ))
            }
        }
    }

    /// The values to be read with those of the step: the flag alone, or with the movement of
    /// `model`'s weights.
    pub(super) fn values<M: Module>(&mut self, model: Option<&M>) -> Vec<Tensor<1>> {
        let mut values = self.bad_steps.iter().cloned().collect::<Vec<_>>();
        if let Some(model) = model {
            let mut weights = Sample { form: self.form, together: TensorList::default(), alone: Vec::new() };
            model.visit(&mut weights);
            let Sample { together, mut alone, .. } = weights;
            if !together.is_empty() {
                alone.push(sample(together));
            }
            if !alone.is_empty() {
                let sample = Tensor::cat(alone, 0);
                if let Some(before) = self.sample.replace(sample.clone()) {
                    values.push((sample - before).abs().max());
                }
            }
        }
        values
    }

    /// The meaning of the numbers of [`values`](Self::values).
    pub(super) fn reading(values: &[f64]) -> Reading {
        Reading { bad_steps: values.first().copied().unwrap_or(0.0), moved: values.get(1).copied() }
    }

    /// A loss or gradient norm that is no number, of this step or one before it.
    pub(super) fn check_finite(
        &mut self,
        progress: &Progress,
        loss: f64,
        grad_norm: f64,
        reading: Reading,
    ) -> Result<()> {
        if loss.is_finite() && grad_norm.is_finite() && reading.bad_steps == 0.0 {
            return Ok(());
        }
        let first = (progress.step + 1).saturating_sub(reading.bad_steps as u64).clamp(1, progress.step);
        // The weights that gave it are those of the step before.
        self.first_suspect = Some(first - 1);
        let step = progress.step;
        let now = format!("the loss is {loss} and the gradient norm {grad_norm}");
        Err(Error::non_finite(match (loss.is_finite() && grad_norm.is_finite(), first < step) {
            (true, _) => {
                format!("step {first}: the loss or the gradient norm was no finite number; found at step {step}, where {now}")
            }
            (false, true) => format!("step {step}: {now}; it began at step {first}; expected finite numbers"),
            (false, false) => format!("step {step}: {now}; expected finite numbers"),
        })
        .help(if first == 1 {
            "no weight had changed yet: look for numbers that are not finite in the data and in the weights that training \
             begins with; with precision = \"f16\", try \"f32\""
        } else {
            "lower trainer.learning_rate, raise trainer.warmup_steps, or set trainer.max_grad_norm"
        }))
    }

    /// A run that goes through the motions.
    pub(super) fn check_progress(
        &mut self,
        progress: &Progress,
        [loss, grad_norm, lr]: [f64; 3],
        reading: Reading,
    ) -> Result<()> {
        let learns = lr > 0.0 && lr >= self.lr_floor && grad_norm > 0.0;
        let row = [loss, grad_norm].map(f64::to_bits);
        self.frozen.count(learns && self.data_changes && self.row == Some(row), self.trusted);
        self.still.count(learns && reading.moved == Some(0.0), self.trusted);
        self.row = Some(row);
        let (streak, what) = if self.frozen.rows >= ROWS - 1 {
            (self.frozen, format!("loss {loss} and gradient norm {grad_norm} are the same to the bit"))
        } else if self.still.rows >= ROWS - 1 {
            (self.still, format!("no weight has moved at a learning rate of {lr}"))
        } else {
            return Ok(());
        };
        self.first_suspect = Some(streak.since + 1);
        Err(Error::device(format!("step {}: {what} since step {}", progress.step, streak.since)).help(
            "the run learns nothing: the device has stopped computing, or trainer.learning_rate is too small for f32; try \
             another device or --compiler native, or raise the learning rate",
        ))
    }

    /// The row of `step` has been read, and nothing was found.
    pub(super) fn trust(&mut self, step: u64) {
        self.trusted = step;
    }

    /// The compiler computes something else than native, which it did not up to `step`.
    pub(super) fn distrust_after(&mut self, step: u64) {
        self.trusted = self.trusted.min(step);
    }

    /// The first step that a fault may have spoiled: where what was found began, and else the first
    /// that has not been looked at.
    pub(super) fn first_suspect(&self) -> u64 {
        self.first_suspect.unwrap_or(self.trusted + 1)
    }

    /// The step up to which a checkpoint must not be rotated away: while rows look frozen, the one
    /// after which they do.
    pub(super) fn good_until(&self) -> u64 {
        let doubtful = [self.frozen, self.still].into_iter().filter(|streak| streak.rows > 0);
        doubtful.map(|streak| streak.since).fold(self.trusted, u64::min)
    }

    /// The panics that were seen.
    pub(super) fn panics(&self) -> Vec<Panic> {
        self.watch.panics()
    }
}

/// The tensors that learn, or the first weights of each.
struct Sample {
    form: Form,
    /// Tensors that are sampled by one operator, in f32.
    together: TensorList,
    /// The first weights of the others.
    alone: Vec<Tensor<1>>,
}

impl ModuleVisitor for Sample {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        if value.is_require_grad() {
            let (n, value) = (value.shape().num_elements(), value.inner());
            if self.form == Form::Fused && value.dtype() == DType::F32 {
                self.together.push(value);
            } else {
                self.alone.push(value.reshape([n]).slice(0..n.min(SAMPLED)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use burn::tensor::Device;

    use super::*;
    use crate::reads::read_scalars;

    fn at(step: u64) -> Progress {
        Progress { step, total_steps: 99, samples: 0, tokens: 0, epoch: 0.0 }
    }

    #[test]
    fn the_first_bad_step_of_many_is_found_with_one_read() {
        let device = Device::flex();
        let value = |value: f32| Tensor::<1>::from_floats([value], &device);
        for (bad, steps, first) in [(f32::NAN, 9, 4), (f32::INFINITY, 4, 4), (f32::NEG_INFINITY, 5, 4)] {
            let mut guard = Guard::with(true, 0.0);
            for step in 1..=steps {
                let norm = if step == 4 { bad } else { 1.0 };
                guard.step(&value(2.0), &value(norm));
            }
            let reading = Guard::reading(&read_scalars(guard.values(None::<&Param<Tensor<1>>>)).unwrap());
            let error = guard.check_finite(&at(steps), 2.0, 1.0, reading).unwrap_err();
            assert_eq!(error.exit_code(), 5);
            assert!(
                error.to_string().starts_with("step 4: the loss or the gradient norm was no finite number"),
                "{error}"
            );
            assert_eq!(guard.first_suspect, Some(first - 1));
        }
        let mut guard = Guard::with(true, 0.0);
        let reading = Reading { bad_steps: 3.0, moved: None };
        let error = guard.check_finite(&at(6), f64::NAN, 1.0, reading).unwrap_err().to_string();
        assert!(error.starts_with("step 6: the loss is NaN and the gradient norm 1; it began at step 4;"), "{error}");
        // Before the first update no learning rate is to blame.
        let error = guard.check_finite(&at(1), f64::NAN, 1.0, Reading { bad_steps: 1.0, moved: None }).unwrap_err();
        assert!(error.help_line().is_some_and(|help| help.contains("in the data")), "{error}");
        let mut guard = Guard::with(true, 0.0);
        (0..7).for_each(|_| guard.step(&value(2.0), &value(3.0)));
        let reading = Guard::reading(&read_scalars(guard.values(None::<&Param<Tensor<1>>>)).unwrap());
        guard.check_finite(&at(7), 2.0, 3.0, reading).unwrap();
    }

    #[test]
    fn equal_rows_are_a_fault_only_where_something_should_have_changed() {
        let rows = |data_changes: bool, lr: f64, norm: f64, moved: Option<f64>| {
            let mut guard = Guard::with(data_changes, 1e-6);
            let reading = Reading { bad_steps: 0.0, moved };
            let found = (1..=9).find_map(|row| {
                let found = guard.check_progress(&at(row * 10), [2.5, norm, lr], reading).err();
                guard.trust(row * 10);
                found
            });
            (found.map(|error| error.to_string()), guard.first_suspect)
        };
        let (error, first) = rows(true, 1e-3, 1.0, Some(0.1));
        let error = error.unwrap();
        assert!(
            error.contains("step 40: loss 2.5 and gradient norm 1 are the same to the bit since step 10"),
            "{error}"
        );
        assert_eq!(first, Some(11));
        let (error, first) = rows(false, 1e-3, 1.0, Some(0.0));
        assert!(error.unwrap().contains("step 30: no weight has moved"));
        assert_eq!(first, Some(1));
        for (changes, lr, norm, moved) in [
            (false, 1e-3, 1.0, Some(0.1)), // one batch, over and over
            (true, 0.0, 1.0, Some(0.0)),   // nothing is to be learned
            (true, 1e-7, 1.0, Some(0.0)),  // the end of a decay
            (true, 1e-3, 0.0, Some(0.0)),  // everything is learned
        ] {
            assert_eq!(rows(changes, lr, norm, moved), (None, None));
        }
    }
}
