//! Values of a step that somebody wants on the host: queued where they are computed, read later and
//! all at once, and handed to a closure. A read in the middle of a step makes the device wait for
//! the host; here nobody waits until the step, or the steps up to the next log row, are done, and
//! then one transfer brings the values of everybody who asked. The Trainer's own log rows are read
//! this way; [`Callback::on_step_values`](crate::trainer::Callback::on_step_values) and loops of
//! one's own may queue theirs.
//!
//! (PyTorch/XLA has `add_step_closure` for the same purpose.)
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use kiln_train::trainer::step_closures::{StepClosures, When};
//!
//! let device = Device::flex();
//! let mut closures = StepClosures::default();
//! for step in 1..=4 {
//!     let loss = Tensor::<1>::from_floats([1.0 / step as f32], &device); // on the device, and it stays there
//!     closures.add(When::AtLog, [loss], move |values| println!("step {step}: loss {:.4}", values[0]));
//!     closures.end_step(step % 2 == 0)?; // one read for the losses of two steps
//! }
//! # Ok::<(), kiln_train::Error>(())
//! ```

use std::fmt;

use burn::tensor::Tensor;
use kiln_core::error::Result;

use crate::reads::read_scalars;

/// When a closure is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// When the step at hand ends. Costs a read of the device in that step.
    AfterStep,
    /// When the next log row is written; after the last step at the latest.
    AtLog,
}

/// Called with the values it was queued with.
type Closure<'a> = Box<dyn FnOnce(&[f64]) + 'a>;

/// Closures that wait for values.
#[derive(Default)]
pub struct StepClosures<'a> {
    waiting: Vec<Waiting<'a>>,
}

struct Waiting<'a> {
    when: When,
    values: Vec<Tensor<1>>,
    closure: Closure<'a>,
}

impl<'a> StepClosures<'a> {
    /// Queues `values`, f32 of any length, with or without autodiff. `closure` gets them one after
    /// the other in their order; closures are called in the order in which they were queued.
    pub fn add(&mut self, when: When, values: impl IntoIterator<Item = Tensor<1>>, closure: impl FnOnce(&[f64]) + 'a) {
        let values = values.into_iter().collect();
        self.waiting.push(Waiting { when, values, closure: Box::new(closure) });
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Ends a step: calls what is due, which is everything where `logs` says that a log row is
    /// written now. The values of all of them are read in one transfer; where nobody is due nothing
    /// is read.
    ///
    /// # Errors
    /// The device's: execution errors surface when a value is read. The closures that were due are
    /// gone then.
    #[track_caller]
    pub fn end_step(&mut self, logs: bool) -> Result<()> {
        let all = std::mem::take(&mut self.waiting);
        let (due, later) = all.into_iter().partition(|waiting| logs || waiting.when == When::AfterStep);
        self.waiting = later;
        call(due)
    }
}

#[track_caller]
fn call(due: Vec<Waiting<'_>>) -> Result<()> {
    let count = |waiting: &Waiting<'_>| waiting.values.iter().map(|values| values.dims()[0]).sum::<usize>();
    let counts = due.iter().map(count).collect::<Vec<_>>();
    let (values, closures): (Vec<_>, Vec<_>) = due.into_iter().map(|waiting| (waiting.values, waiting.closure)).unzip();
    let values = read_scalars(values.into_iter().flatten().collect())?;
    let mut rest = &values[..];
    for (closure, count) in closures.into_iter().zip(counts) {
        let (own, after) = rest.split_at(count);
        closure(own);
        rest = after;
    }
    Ok(())
}

impl fmt::Debug for StepClosures<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepClosures").field("waiting", &self.waiting.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::RefCell;
    use std::sync::{Mutex, PoisonError};

    use burn::tensor::Device;

    use super::*;
    use crate::reads::DeviceReads;

    fn value<const N: usize>(values: [f32; N]) -> Tensor<1> {
        Tensor::from_floats(values, &Device::flex())
    }

    /// Reads are counted for the whole process, so the tests that read take turns.
    static READS: Mutex<()> = Mutex::new(());

    #[test]
    fn values_of_several_steps_come_in_one_read() {
        let _turn = READS.lock().unwrap_or_else(PoisonError::into_inner);
        let told = RefCell::new(Vec::new());
        let mut closures = StepClosures::default();
        let before = DeviceReads::now();
        for step in 1..=3u8 {
            let step_value = f32::from(step);
            let values = [value([step_value]), value([10.0, 20.0])];
            closures.add(When::AtLog, values, |values: &[f64]| told.borrow_mut().push(values.to_vec()));
            if step < 3 {
                closures.end_step(false).unwrap();
            }
        }
        let here = || DeviceReads::now().since(&before).sites().into_iter().filter(|(site, _)| site.contains(file!()));
        assert!(told.borrow().is_empty());
        assert_eq!(here().count(), 0);
        closures.add(When::AtLog, [], |values: &[f64]| assert!(values.is_empty()));
        closures.end_step(true).unwrap();
        assert_eq!(*told.borrow(), [[1.0, 10.0, 20.0], [2.0, 10.0, 20.0], [3.0, 10.0, 20.0]]);
        assert_eq!(here().map(|(_, count)| count).sum::<u64>(), 1);
        assert!(closures.is_empty());
    }

    #[test]
    fn those_after_the_step_do_not_take_the_others_along() {
        let _turn = READS.lock().unwrap_or_else(PoisonError::into_inner);
        let told = RefCell::new(Vec::new());
        let mut closures = StepClosures::default();
        closures.add(When::AtLog, [value([1.0])], |values: &[f64]| told.borrow_mut().push(values[0]));
        let tracked = Tensor::<1>::from_floats([2.0f32], &Device::flex().autodiff()).require_grad();
        closures.add(When::AfterStep, [tracked], |values: &[f64]| told.borrow_mut().push(values[0]));
        closures.end_step(false).unwrap();
        assert_eq!(*told.borrow(), [2.0]);
        closures.end_step(false).unwrap();
        closures.end_step(true).unwrap();
        assert_eq!(*told.borrow(), [2.0, 1.0]);
    }
}
