//! The losses of a run's steps, for the `loss` of log rows and the `train_loss` of the summary: as
//! in Hugging Face's Trainer they are added up on the device and read once a row, which shows the
//! mean over the steps since the row before it.

use burn::tensor::{Device, Tensor};
use kiln_core::error::Result;

use crate::optim::scaler::Verdict;
use crate::reads::read_scalars;
use crate::run_folder::checkpoint::LossSums;

/// Sums of the losses of all steps so far.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Sum of the losses of the steps up to the last log row.
    logged: f64,
    /// Sum of the losses of the steps since the last log row, `[1]`, f32, on the device; none
    /// before the first of these steps.
    window: Option<Tensor<1>>,
    /// Steps since the last row.
    steps: u64,
}

impl Losses {
    /// The sums that a checkpoint holds, on `device`.
    pub(super) fn restored(state: LossSums, device: &Device) -> Self {
        // It was read from an f32, so it goes back without loss.
        let window = (state.steps > 0).then(|| Tensor::from_floats([state.window as f32], device));
        Self { logged: state.logged, window, steps: state.steps }
    }

    /// The state for a checkpoint, read from the device.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn state(&self) -> Result<LossSums> {
        let window = self.window.clone().map_or(Ok(vec![0.0]), |window| read_scalars(vec![window]))?[0];
        Ok(LossSums { logged: self.logged, window, steps: self.steps })
    }

    /// Adds the loss of a step, `[1]`. A step that was skipped because it overflowed counts with
    /// its loss all the same, or, where that is no number, with what `transformers` takes in its
    /// place (`logging_nan_inf_filter`): the window's sum by the number of its steps and this one.
    pub(super) fn add(&mut self, loss: &Tensor<1>, verdict: Option<&Verdict>) {
        let loss = match (verdict, &self.window) {
            (None, _) => loss.clone(),
            // Without a finite loss there is no finite gradient, so that such a step was skipped.
            (Some(_), Some(window)) => {
                loss.clone().mask_where(loss.clone().is_finite().bool_not(), window.clone() / (self.steps + 1) as f64)
            }
            (Some(_), None) => loss.clone().mask_fill(loss.clone().is_finite().bool_not(), 0.0),
        };
        self.window = Some(match self.window.take() {
            Some(window) => window + loss,
            None => loss,
        });
        self.steps += 1;
    }

    /// The sum since the last row, to be read with the values of the step.
    pub(super) fn window(&self) -> Option<Tensor<1>> {
        self.window.clone()
    }

    /// Ends the window, whose sum has been read to be `sum`; returns the mean of its steps.
    pub(super) fn close(&mut self, sum: f64) -> f64 {
        let mean = sum / self.steps as f64;
        self.logged += sum;
        (self.window, self.steps) = (None, 0);
        mean
    }

    /// The mean over all `steps` of the run; NaN before the first.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn mean(&self, steps: u64) -> Result<f64> {
        let LossSums { logged, window, .. } = self.state()?;
        Ok((logged + window) / steps as f64)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use burn::tensor::{Bool, Int, TensorData};

    fn value(value: f64) -> Tensor<1> {
        Tensor::from_floats([value as f32], &Device::flex())
    }

    /// Adds the losses of steps, as those of a run without a loss scale.
    fn add(losses: &mut Losses, steps: &[f64]) {
        steps.iter().for_each(|loss| losses.add(&value(*loss), None));
    }

    fn read(losses: &Losses) -> f64 {
        read_scalars(vec![losses.window().unwrap()]).unwrap()[0]
    }

    #[test]
    fn a_row_has_the_mean_of_its_steps_and_the_run_that_of_all() {
        let mut losses = Losses::default();
        assert!(losses.mean(0).unwrap().is_nan());
        add(&mut losses, &[4.0, 2.0, 3.0]);
        let sum = read(&losses);
        assert_eq!(losses.close(sum), 3.0);
        add(&mut losses, &[1.0, 0.5]);
        assert_eq!(losses.mean(5).unwrap(), 10.5 / 5.0);
        let sum = read(&losses);
        assert_eq!(losses.close(sum), 0.75);
        assert!(losses.window().is_none(), "nothing is left to be read");
        assert_eq!(losses.mean(5).unwrap(), 10.5 / 5.0);
    }

    #[test]
    fn a_checkpoint_in_the_middle_of_a_window_changes_no_bit() {
        let steps = [0.1, 1e-7, 7.3, 2.0 / 3.0, 1e5];
        let (mut straight, mut stopped) = (Losses::default(), Losses::default());
        add(&mut straight, &steps);
        add(&mut stopped, &steps[..3]);
        let state = serde_json::to_string(&stopped.state().unwrap()).unwrap();
        let mut resumed = Losses::restored(serde_json::from_str(&state).unwrap(), &Device::flex());
        add(&mut resumed, &steps[3..]);
        assert_eq!(resumed.state().unwrap(), straight.state().unwrap());
    }

    /// `Trainer._inner_training_loop` counts a step whose loss is not finite by
    /// `tr_loss += tr_loss / (1 + global_step - _globalstep_last_logged)`.
    #[test]
    fn a_skipped_step_counts_as_in_transformers() {
        let device = Device::flex();
        let verdict = |overflow: bool| Verdict {
            overflow: Tensor::<1, Bool>::from_data(TensorData::from([overflow]), &device),
            update: Tensor::<1, Int>::from_data(TensorData::from([1i32]), &device),
        };
        let mut losses = Losses::default();
        let mut expected: f64 = 0.0;
        // The second step is skipped and has a loss; the first and the last have none.
        for (step, (loss, overflow)) in
            [(f64::NAN, true), (2.0, true), (3.0, false), (4.0, false), (f64::INFINITY, true)].into_iter().enumerate()
        {
            losses.add(&value(loss), Some(&verdict(overflow)));
            expected += if loss.is_finite() { loss } else { expected / (1 + step) as f64 };
        }
        assert!((read(&losses) - expected).abs() < 1e-6, "{} is not {expected}", read(&losses));
        assert_eq!(losses.state().unwrap().steps, 5);
    }
}
