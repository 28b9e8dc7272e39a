//! The training loop: one optimizer step after the other, and what is due after each.

use std::panic::{AssertUnwindSafe, catch_unwind};

use kiln_core::dataset::loader::{Loader, LoaderOptions};
use kiln_core::device_error::device_error;
use kiln_core::error::{CONTINUE, Error, ErrorKind, Result};
use kiln_core::{clock, panics};
use kiln_models::ops::threads;

use super::after::After;
use super::callback::Activity;
use super::run::{Training, finish_saving, write_trainer_state};
use super::run_log::RunLog;
use super::setup::{Purpose, TrainOutput, Trainer};
use super::stopping::Stopping;
use super::tensorboard::TensorBoard;
use super::{fault, recover};
use crate::arguments::Integration;
use crate::description::Outcome;
use crate::engine::settings::DeviceKind;
use crate::evaluation::figures;
use crate::plan::check_metric;
use crate::run_folder::{RunFolder, checkpoint::Checkpoint, runs};
use crate::task::TrainingTask;

/// The advice how to go on with the run of a program, which no command continues.
const CONTINUE_PROGRAM: &str = "run the program again with `on_existing = OnExisting::Resume`";

impl<T: TrainingTask> Trainer<T> {
    /// Trains to the end of the plan, writes the run folder, and returns the summary. With
    /// `run.on_existing = "resume"` it begins where the newest checkpoint stands; of a run that was
    /// complete already it reads the model that the run has written. On the CPU this thread is one
    /// of those that compute from then on ([`threads::compute_here`]).
    ///
    /// # Errors
    /// Memory that does not suffice for a micro-batch of 1 (a larger one is halved, from the last
    /// good state on); data that cannot be read, a loss or gradient norm that is not finite, a
    /// device or a disk that fails, a checkpoint or a model of another run; a signal that stopped
    /// the run after a checkpoint was saved.
    pub fn train(&mut self) -> Result<TrainOutput> {
        self.check_world()?;
        self.session.plan().check_evaluation()?;
        self.check_figures()?;
        self.check_reporters()?;
        if !self.world.is_root() {
            self.callbacks.retain(|callback| callback.reports_to().is_none() && !callback.pushes_to_hub());
        }
        threads::compute_here(&self.session.device);
        #[cfg(feature = "cuda")]
        self.connect_devices()?;
        let Some((mut folder, checkpoint)) = self.open_folder()? else {
            self.is_unread = true;
            self.end_run(None);
            return Ok(TrainOutput::of_other_rank(0));
        };
        if let Some(summary) = folder.complete.take() {
            // The other ranks have no folder to read the weights from, and ranks evaluate together.
            self.is_unread = self.world.is_shared();
            if !self.is_unread {
                self.load_weights(&folder.model())?;
            }
            // The process that came to the end may have ended before this was done.
            self.end_run(Some(&folder));
            return Ok(TrainOutput { step: folder.status.step, summary, samples: Vec::new(), was_complete: true });
        }
        let mut log = RunLog::new(folder.path());
        std::mem::take(&mut self.said).into_iter().for_each(|line| log.say(line));
        self.callbacks.push(Box::new(log));
        #[cfg(feature = "cuda")]
        if let Some(name) = self.world.nccl() {
            self.notice(&format!("gradients are summed by {name}"));
        }
        if self.session.plan().logging.report_to.contains(&Integration::TensorBoard) {
            self.callbacks.push(Box::new(TensorBoard::create(folder.path())?));
        }
        if let Some(decision) = &self.session.plan().engine.decision {
            decision.write(folder.path())?;
        }
        self.warn_of_shortage();
        let mut output = self.attempt(&mut folder, checkpoint.as_ref());
        while let Err(error) = &output
            && self.purpose == Purpose::Train
            // The other ranks do not know of it, and end with this one.
            && !self.world.is_shared()
            && let Some(smaller) = recover::smaller_batch(self.session.plan(), error)
        {
            let error = error.to_string();
            let recovered = self.recover(&mut folder, smaller, &error);
            output = recovered.and_then(|checkpoint| self.attempt(&mut folder, checkpoint.as_ref()));
        }
        let output = output.map_err(|error| self.advised(&folder, error));
        if let Err(error) = &output {
            RunLog::new(folder.path()).say(format_args!("ended: {error}"));
        }
        folder.status.end(output.as_ref().err());
        let written = folder.status.write(folder.path());
        self.write_page(&folder);
        // Reporters wait for their servers when they are dropped, and keep nobody from the results.
        self.callbacks.retain(|callback| callback.reports_to().is_none());
        if output.is_ok() {
            self.end_run(Some(&folder));
        }
        output.and_then(|output| written.map(|()| output))
    }

    /// Lets the callbacks of rank 0 do what follows a run that came to its end in `folder`, while
    /// the others wait.
    fn end_run(&mut self, folder: Option<&RunFolder>) {
        if self.purpose != Purpose::Train || self.session.plan().saving.push.is_none() {
            return;
        }
        let (world, callbacks) = (self.world.clone(), &mut self.callbacks);
        let end = || {
            let ended =
                folder.map(|folder| callbacks.iter_mut().flat_map(|callback| callback.on_run_end(folder.path())));
            Ok(ended.into_iter().flatten().collect::<Vec<_>>())
        };
        match world.by_root(end) {
            Ok(lines) => lines.iter().flatten().for_each(|line| self.notice(line)),
            Err(error) => tracing::warn!("{error}"),
        }
    }

    /// `error` with the advice how to go on with this run, where it leaves a run to go on with.
    fn advised(&self, folder: &RunFolder, error: Error) -> Error {
        // The folder of another rank, or of a measurement, goes with its process.
        if self.purpose != Purpose::Train || !self.world.is_root() {
            return error;
        }
        let way = self.way_on.clone().or_else(|| runs::way_on(folder.path()));
        let mut way = way.unwrap_or_else(|| CONTINUE_PROGRAM.into());
        if self.world.is_shared() && self.way_on.is_none() {
            way += &format!(" in {} ranks", self.world.size());
        }
        match (error.kind(), error.help_line()) {
            (ErrorKind::Io, None) => {
                let help = error.remedy().map_or(way.clone(), |remedy| format!("{remedy}; {way}"));
                error.help(help)
            }
            _ => error.in_terms_of(&[(CONTINUE, &way)]),
        }
    }

    /// Refuses a run that is to report to a service or to upload its model, and has no callback
    /// that does.
    fn check_reporters(&self) -> Result<()> {
        let pushes = self.session.plan().saving.push.is_some() && self.purpose == Purpose::Train;
        if pushes && self.world.is_root() && !self.callbacks.iter().any(|callback| callback.pushes_to_hub()) {
            return Err(Error::config("trainer.push_to_hub = true: no callback uploads the model")
                .help("add one whose `pushes_to_hub` is true: `kiln::push::with_push(trainer)` adds Kiln's"));
        }
        let report_to = &self.session.plan().logging.report_to;
        let is_missing = |integration: &Integration| {
            *integration != Integration::TensorBoard
                && self.callbacks.iter().all(|callback| callback.reports_to() != Some(*integration))
        };
        match report_to
            .iter()
            .find(|integration| self.purpose == Purpose::Train && self.world.is_root() && is_missing(integration))
        {
            Some(missing) => {
                Err(Error::config(format!("trainer.report_to = \"{missing}\": no callback reports to it"))
                    .help("add one whose `reports_to` names it: `kiln::mlflow::with_reporters(trainer)` adds Kiln's"))
            }
            None => Ok(()),
        }
    }

    /// Refuses a run whose best model is to be found by a figure that its evaluations do not have.
    /// The figures of a task that does not tell them before are those of one batch.
    fn check_figures(&self) -> Result<()> {
        let (task, plan) = (&self.session.task, self.session.plan());
        let Some(validation) = self.session.validation() else { return Ok(()) };
        if task.metrics().is_some() {
            return Ok(());
        }
        let session = self.session.evaluation(validation.clone());
        match figures(&session, &self.state.model)? {
            Some(figures) => check_metric(&plan.saving.metric, &figures, task.task_name().unwrap_or(&plan.model.kind)),
            None => Ok(()),
        }
    }

    /// The run from its start, or from where `checkpoint` stands, to the end of the plan, or to
    /// what stops it.
    fn attempt(&mut self, folder: &mut RunFolder, checkpoint: Option<&Checkpoint>) -> Result<TrainOutput> {
        let mut run = self.begin(folder, checkpoint, Self::train)?;
        // Some failures of a device come as panics of this thread.
        let output = catch_unwind(AssertUnwindSafe(|| self.run(folder, &mut run))).unwrap_or_else(|payload| {
            let (step, message) = (run.progress.step + 1, panics::message(&*payload));
            let panicked = Error::panicked(format_args!("step {step}"), &message);
            let is_on_host = self.session.plan().engine.device.kind == DeviceKind::Cpu;
            Err(if is_on_host && panicked.kind() == ErrorKind::Device {
                // No device has failed, and no memory is lost.
                panicked.help(format!("look at the shapes and the labels of the batch, and at callbacks; {CONTINUE}"))
            } else if run.guard.panics().is_empty() {
                panicked.help(format!("what the device holds is lost; {CONTINUE}"))
            } else {
                device_error(&message).at(format_args!("step {step}"))
            })
        });
        if let Some(notice) =
            output.as_ref().err().and_then(|error| fault::report(self.session.plan(), folder, &mut run, error))
        {
            self.notice(&notice);
        }
        if output.is_err() {
            folder.status.advance(run.progress.step, run.progress.total_steps, run.clock.start.elapsed().as_secs_f64());
        }
        if let Some(watch) = run.watch.take() {
            match watch.finish(&self.session, folder.path(), &run.shapes, run.progress.step) {
                Ok(lines) => lines.iter().for_each(|line| self.notice(line)),
                // The run is what it is without its debug folder.
                Err(error) => tracing::warn!("{error}"),
            }
        }
        output
    }

    /// The training loop: an iteration computes one optimizer step, counts it, and lets every part
    /// do what is due.
    fn run(&mut self, folder: &mut RunFolder, run: &mut Training) -> Result<TrainOutput> {
        let mut executor = self.executor()?;
        let mut loader = self.train_loader()?;
        loader.seek(run.position);
        self.begin_training(folder, run)?;

        while run.goes_on() {
            self.begin_step(run);
            let began = self.spans.counted_until();
            if let Some(profile) = &run.profile {
                profile.begin_step(run.progress.step + 1, &self.spans);
            }
            // Forward and backward of the micro-batches, and the update.
            let stepped = self.step(&mut *executor, &mut loader, run)?;
            let after = self.end_step(run, stepped, loader.position())?;

            let logs = run.logging.due(&after);
            if logs {
                self.log(folder, run, &after, loader.data_wait())?;
            } else {
                run.closures.end_step(false)?;
            }
            self.tell_memory(run, &after);
            self.tell_status(folder, run);
            let evaluates = run.evaluating.due(&after) || run.control.should_evaluate;
            if evaluates {
                self.evaluate_and_record(folder, run)?;
            }
            if self.samples_are_due(after.step, run.progress.total_steps) {
                self.show_samples(folder, run)?;
            }
            if self.verifying.due(&after) {
                self.verify(run)?;
            }
            let limit = self.session.plan().steps.max_duration;
            let stopping = Stopping::of(&after, run, folder, limit);
            let stopping = self.exchange(|world| stopping.agreed(world))?;
            if run.saver.due(&after, stopping.is_end(), run.evaluating.is_best)
                || run.control.should_save
                || stopping.saves(self.purpose)
            {
                self.save(folder, run, &after, stopping)?;
            }
            self.observer.end_step(&run.progress, &self.spans.end_step(), logs)?;
            let ends = !run.goes_on() || stopping.is_end() || stopping.is_continued(run);
            if let Some(profile) = &mut run.profile
                && let Some(notice) = profile.end_step(after.step, began, &self.spans, ends, folder.path())?
            {
                self.notice(&notice);
            }
            stopping.check_signal(&self.world, run, self.purpose)?;
            (run.control.should_evaluate, run.control.should_save) = (false, false);
            if stopping.ends_early(run, folder, limit) {
                // The end of this process. It follows the checkpoint, since a run that is continued
                // has no end here.
                let end = After { is_last: true, ..after };
                if !logs {
                    self.log(folder, run, &end, loader.data_wait())?;
                }
                if !evaluates && run.evaluating.due(&end) {
                    self.evaluate_and_record(folder, run)?;
                }
                if let Some(why) = folder.status.message.as_deref().filter(|_| self.world.is_root()) {
                    self.callbacks.iter_mut().for_each(|callback| callback.on_early_end(&run.progress, why));
                }
                break;
            }
        }
        self.tell_moments();
        let written = self.world.clone().by_root(|| self.end_training(folder, run))?;
        Ok(written.unwrap_or_else(|| TrainOutput::of_other_rank(run.progress.step)))
    }

    /// Writes `status.json` now and then, so that whoever looks knows how far the run has come.
    fn tell_status(&self, folder: &mut RunFolder, run: &Training) {
        const EVERY_SECONDS: f64 = 5.0;
        if self.purpose != Purpose::Train || clock::seconds() - folder.status.written_at < EVERY_SECONDS {
            return;
        }
        folder.status.advance(run.progress.step, run.progress.total_steps, run.clock.start.elapsed().as_secs_f64());
        // A disk that is full ends the run where its work is written.
        let _ = folder.status.write(folder.path());
    }

    /// Writes the model, the summary and the results after the last step.
    fn end_training(&mut self, folder: &mut RunFolder, run: &mut Training) -> Result<TrainOutput> {
        self.tell(&run.progress, Activity::Saving);
        let saving = finish_saving(run)?;
        if self.session.plan().saving.load_best_at_end {
            self.load_best(folder, run)?;
        }
        let summary = self.labelled(run.clock.summary(&run.progress, run.losses.mean(run.progress.step)?, saving));
        folder.metrics.append(&summary)?;
        if self.purpose.writes_model() {
            self.tell(&run.progress, Activity::WritingModel);
            let mut beside = self.session.task.files(&self.state.model)?;
            let rows = runs::rows(folder.path());
            let step = folder.status.best_model.as_ref().map_or(run.progress.step, |best| best.step) as f64;
            // An evaluation of another step is one of other weights.
            let evaluation = run.evaluating.last.as_ref().filter(|row| row.get("step") == Some(step));
            let outcome = Outcome { evaluation, summary: &summary, rows: &rows };
            beside.extend(self.session.card(&outcome)?.and_then(|card| folder.card(&card)));
            folder.write_model(&self.state.model, &beside)?;
        }
        folder.write_results(run.evaluating.last.as_ref(), &summary)?;
        write_trainer_state(folder, self.session.plan(), run, true)?;
        folder.status.advance(run.progress.step, run.progress.total_steps, run.clock.start.elapsed().as_secs_f64());
        self.callbacks.iter_mut().for_each(|callback| callback.on_train_end(&run.progress, &summary));
        let samples = self.sample(folder, run)?;
        Ok(TrainOutput { step: run.progress.step, summary, samples, was_complete: false })
    }

    /// The batches of this rank; none where the other ranks have the last of an epoch.
    fn train_loader(&self) -> Result<Loader<T::Example, Option<T::Batch>>> {
        let task = self.session.task.clone();
        let batches = self.session.plan().data.drawn(&self.session.plan().batch);
        Loader::new(
            self.session.train().clone(),
            move |examples| match examples {
                [] => Ok(None),
                examples => task.batch(examples, batches.size).map(Some),
            },
            LoaderOptions {
                batch_size: batches.size,
                order: batches.order,
                drop_last: batches.drop_last,
                prefetch: 2,
                repeat: true,
                share: self.share(),
            },
        )
    }
}
