//! The rows of training.

use std::time::Duration;

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use kiln_core::error::Result;
use kiln_core::metrics::Record;

use super::after::{After, StepValues};
use super::callback::{Callback, DeviceValues};
use super::debug;
use super::guard::{Guard, Reading};
use super::run::Training;
use super::setup::Trainer;
use super::step_closures::{StepClosures, When};
use crate::optim::scaler::{MIN_SCALE, Scaling};
use crate::run_folder::RunFolder;
use crate::task::TrainingTask;

/// [`StepValues`] on the host.
struct ReadValues {
    loss: f64,
    /// Sum of the losses since the last row.
    window: f64,
    grad_norm: f64,
    scaling: Option<Scaling<f64>>,
    reading: Reading,
}

impl StepValues {
    /// Shows the callbacks what is still on the device.
    pub(super) fn show<M>(&self, callbacks: &mut [Box<dyn Callback<M>>], run: &mut Training) {
        let values = DeviceValues { loss: &self.loss, grad_norm: &self.grad_norm };
        callbacks.iter_mut().for_each(|callback| callback.on_step_values(&run.progress, values, &mut run.closures));
    }

    /// Reads loss, gradient norm, loss scale, the losses since the last row, what the guard of
    /// `run` wants to know and what `closures` wait for, in one transfer.
    #[track_caller]
    fn read<M: Module>(
        &self,
        run: &mut Training,
        model: Option<&M>,
        closures: StepClosures<'static>,
    ) -> Result<ReadValues> {
        let (mut figures, mut scaling, mut reading) = ([f64::NAN; 3], None, Guard::reading(&[]));
        let mut closures: StepClosures<'_> = closures;
        let window = run.losses.window().unwrap_or_else(|| self.loss.zeros_like());
        closures.add(When::AtLog, [self.loss.clone(), self.grad_norm.clone(), window], |values| {
            figures.copy_from_slice(values);
        });
        if let Some(of_scaler) = self.scaling.clone() {
            closures.add(When::AtLog, of_scaler.into_values(), |values| scaling = Scaling::from_values(values));
        }
        closures.add(When::AtLog, run.guard.values(model), |values| reading = Guard::reading(values));
        closures.end_step(true)?;
        drop(closures);
        let [loss, grad_norm, window] = figures;
        Ok(ReadValues { loss, window, grad_norm, scaling, reading })
    }

    /// A checkpoint of a run that learns nothing any more would only be in the way.
    #[track_caller]
    pub(super) fn read_finite(&self, run: &mut Training) -> Result<()> {
        self.read(run, None::<&Param<Tensor<1>>>, StepClosures::default())?.check_finite(run)
    }
}

impl ReadValues {
    /// Whether the step was skipped because its gradients overflowed, as a loss scale may have it:
    /// not one at its end.
    fn is_skipped(&self) -> bool {
        self.scaling.as_ref().is_some_and(|scaling| scaling.found_inf > 0.0 && scaling.loss_scale >= MIN_SCALE)
    }

    fn check_finite(&self, run: &mut Training) -> Result<()> {
        // The figures of a skipped step are no numbers, and that is no fault.
        let (loss, grad_norm) = if self.is_skipped() { (0.0, 0.0) } else { (self.loss, self.grad_norm) };
        run.guard.check_finite(&run.progress, loss, grad_norm, self.reading)
    }
}

impl<T: TrainingTask> Trainer<T> {
    /// Reads the values of the step and writes its row. `waited` is how long batches have been
    /// waited for in all.
    pub(super) fn log(
        &mut self,
        folder: &mut RunFolder,
        run: &mut Training,
        after: &After,
        waited: Duration,
    ) -> Result<()> {
        let values = &after.values;
        let closures = std::mem::take(&mut run.closures);
        let read = values.read(run, Some(&self.state.model), closures)?;
        let loss = run.losses.close(read.window);
        let communicated = self.spans.take_communicated();
        let row = run.clock.close_window(&run.progress, [loss, read.grad_norm, values.lr], waited, communicated);
        let new_shapes = run.shapes.new_since_last_row();
        let row = new_shapes.into_iter().fold(row, |row, new| row.with("new_shapes", new));
        let news = run.kernels.since_last_row(run.progress.step, new_shapes.unwrap_or(0));
        let row = news.iter().fold(row, |row, news| row.with("new_kernels", news.kernels));
        let outliers = self.state.outliers.iter();
        let row = outliers.fold(row, |row, outliers| row.with("outlier_steps", outliers.state.skipped));
        let row = self.labelled(read.scaling.iter().fold(row, |row, scaling| scaling.record(row)));
        if run.logging.writes() {
            folder.metrics.append(&row)?;
            self.callbacks.iter_mut().for_each(|callback| callback.on_log(&run.progress, &row));
        }
        if let Some(said) = news.and_then(|news| news.said) {
            self.notice(&said);
        }
        read.check_finite(run)?;
        if !read.is_skipped() {
            let figures = [read.loss, read.grad_norm, values.lr];
            run.guard.check_progress(&run.progress, figures, read.reading)?;
        }
        run.guard.trust(run.progress.step);
        Ok(())
    }

    /// `row`, marked where Burn's fusion was held off or the compiler was looked at: its times are
    /// those of no engine.
    pub(super) fn labelled(&self, row: Record) -> Record {
        let engine = &self.session.plan().engine;
        let row = if engine.unfused { row.with("unfused", 1u64) } else { row };
        if engine.debug { row.with(debug::MARK, 1u64) } else { row }
    }
}
