//! A trial from the inside: the process that trains a few real steps at one size. The data are the
//! longest examples there are, the optimizer has its state, a checkpoint is written beside the next
//! step where the run saves any, and one batch is evaluated. Trained by the trainer itself, in a
//! folder that is thrown away. [`super::process`] starts it and watches.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use burn::optim::GradientsParams;
use kiln::config::{
    BatchArguments, DeviceKind, LearningRateScaling, OnExisting, RunConfig, Sampler, SaveStrategy, SchedulerKwargs,
    SchedulerType, TokenizerSection,
};
use kiln::distributed::World;
use kiln::inference::evaluate::evaluate;
use kiln::plan::memory::sent;
use kiln::session::{OpenSession, Session};
use kiln::trainer::{Callback, Progress, Trainer};
use kiln_core::error::{Error, Result};
use kiln_core::host::peak_mib;
use kiln_data::stream::Streamed;
use kiln_data::tokenizer::write_files;
use kiln_data::{Dataset, Example};
use serde::{Deserialize, Serialize};

/// The report of a trial that trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialReport {
    /// The most memory that the process had resident, in MiB, where the system tells.
    pub peak_mib: Option<f64>,
    /// The median time of a step after the first, in milliseconds.
    pub step_ms: Option<f64>,
    /// The loss of the evaluated batch, which depends on the updated weights: reading it proves
    /// that the steps were made.
    pub loss: f64,
}

/// The least steps of a trial: the second runs beside the optimizer's state, and its loss depends
/// on the first update.
pub const MIN_STEPS: usize = 2;

/// The config of a trial of `session`'s run with `batch` samples: the same model, task, optimizer
/// and mode; nothing that only the length of a run or its reports need.
pub fn trial_config(
    session: &Session,
    batch: usize,
    steps: usize,
    accumulates: bool,
    folder: &Path,
) -> Result<RunConfig> {
    let config = session.config()?;
    let given = &config.trainer;
    let mut config = config.training_only(folder.join("run"), 1);
    config.trainer.on_existing = OnExisting::Overwrite;
    if let (Some(tokenizer), Some(_)) = (&session.task.tokenizer, config.tokenizer.train_vocab_size) {
        // Learned once, not in every trial.
        let learned = folder.join("tokenizer");
        if !learned.exists() {
            std::fs::create_dir(&learned).map_err(|error| Error::io(format!("make {}", learned.display()), &error))?;
            write_files(&learned, &tokenizer.files(session.run_plan()?.model_and_task()?.0, None)?)?;
        }
        config.tokenizer = TokenizerSection::from_pretrained(learned.to_string_lossy());
    }
    (config.trainer.batch, config.trainer.learning_rate_scaling) =
        (BatchArguments::default(), LearningRateScaling::default());
    let trainer = &mut config.trainer;
    trainer.per_device_train_batch_size = batch.into();
    trainer.gradient_accumulation_steps = if accumulates { 2 } else { 1 };
    (trainer.max_steps, trainer.num_train_epochs, trainer.max_tokens) = (Some(steps), None, None);
    (trainer.fast_dev_run, trainer.overfit_one_batch) = (false, false);
    // A rate that is not 0 in the first step, so that weights change.
    (trainer.lr_scheduler_type, trainer.lr_scheduler_kwargs) = (SchedulerType::Constant, SchedulerKwargs::default());
    trainer.warmup_steps = 0.into();
    if given.save_strategy != SaveStrategy::No {
        (trainer.save_strategy, trainer.save_steps, trainer.save_total_limit) =
            (SaveStrategy::Steps, (steps - 1).into(), Some(1));
        trainer.save_only_model = given.save_only_model;
    }
    (trainer.sampler, trainer.dataloader_drop_last) = (Sampler::Sequential, false);
    (config.data.max_train_samples, config.data.max_eval_samples) = (None, None);
    Ok(config)
}

/// Trains the trial that `file` describes (what [`trial_config`] gave, written). On the CPU each
/// step also takes the memory in which a run of `devices` sums its gradients.
///
/// # Errors
/// Any error of the training, out of memory included; a loss after it that is no number.
pub fn run_trial(file: &Path, devices: usize) -> Result<TrialReport> {
    // If memory has to be found somewhere, the kernel should end this process first. Where it
    // cannot be told: so be it.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let session = Session::open(RunConfig::load(file)?)?;
    if Streamed::of(&**session.train()).is_some_and(|streamed| !streamed.is_exact()) {
        return Err(Error::config(
            "data.streaming: the longest rows, which decide what fits, are not known before they are read",
        )
        .help("set trainer.per_device_train_batch_size to a number"));
    }
    let evaluated = session.validation().cloned().unwrap_or_else(|| session.train().clone());
    let plan = session.plan();
    let eval_batch = plan.evaluation.batch_size;
    let evaluated = Arc::new(Longest::new(evaluated, eval_batch, 1));
    let train = Longest::new(session.train().clone(), plan.batch.micro, plan.batch.accumulation);
    let gradients = 4 * plan.model.num_trainable as u128;
    let sent = match plan.engine.device.kind {
        DeviceKind::Cpu => sent(gradients, devices, plan.distributed.optimizer_sharding),
        _ => 0,
    };
    let mut trainer = Trainer::from_session(session.with_examples(Arc::new(train), None)?)?;
    if sent > 0 {
        trainer = trainer.with_callback(Exchange(usize::try_from(sent).unwrap_or(usize::MAX)));
    }
    let output = trainer.train()?;
    let evaluation =
        evaluate(&World::alone(), &trainer.session().evaluation(evaluated), trainer.model(), &mut |_, _| {})?;
    let loss = evaluation.metric("loss").unwrap_or(f64::NAN);
    if !loss.is_finite() {
        return Err(Error::non_finite(format!("after the trial's steps the loss is {loss}"))
            .help("lower trainer.learning_rate"));
    }
    Ok(TrialReport { peak_mib: peak_mib(), step_ms: output.summary.get("steady_step_ms"), loss })
}

/// The memory of so many bytes in which gradients are summed over devices, for as long as a step
/// has all of them.
struct Exchange(usize);

impl<M> Callback<M> for Exchange {
    fn sees_gradients(&self) -> bool {
        true
    }

    fn on_pre_optimizer_step(&mut self, _progress: &Progress, _model: &M, _gradients: &GradientsParams) {
        // Memory is the process's when it is written to.
        drop(black_box(vec![1_u8; self.0]));
    }
}

/// The longest examples of a dataset, as many as a batch has and the same for each of its batches.
/// Where lengths differ, one is shorter, by as little as can be, so that there is padding and a
/// mask for it.
struct Longest {
    data: Arc<dyn Dataset>,
    indices: Vec<usize>,
    repeats: usize,
}

impl Longest {
    fn new(data: Arc<dyn Dataset>, batch: usize, repeats: usize) -> Self {
        let (longest, mut shorter) = (data.max_len(), None);
        let mut heap = BinaryHeap::new(); // the shortest of those that are kept on top
        for index in 0..data.len() {
            let length = data.len_of(index);
            if length < longest {
                shorter = shorter.max(Some((length, index)));
            }
            heap.push(Reverse((length, index)));
            if heap.len() > batch {
                heap.pop();
            }
            let full = heap.len() == batch && heap.peek().is_some_and(|Reverse((least, _))| *least == longest);
            if full && index >= batch + SAME {
                break;
            }
        }
        let mut kept = heap.into_iter().map(|Reverse((length, index))| (Reverse(length), index)).collect::<Vec<_>>();
        kept.sort_unstable();
        // Fewer examples than a batch has: they come again.
        let mut indices = kept.iter().map(|(_, index)| *index).cycle().take(batch).collect::<Vec<_>>();
        if let ([_, .., last], Some((_, shorter))) = (&mut indices[..], shorter)
            && data.len_of(*last) == longest
        {
            *last = shorter;
        }
        Self { data, indices, repeats }
    }
}

/// After so many examples of one length more, all are taken to have it.
const SAME: usize = 4096;

impl Dataset for Longest {
    fn len(&self) -> usize {
        self.indices.len() * self.repeats
    }

    fn get(&self, index: usize, epoch: u64) -> Result<Example> {
        self.data.get(self.indices[index % self.indices.len()], epoch)
    }

    fn len_of(&self, index: usize) -> usize {
        self.data.len_of(self.indices[index % self.indices.len()])
    }

    fn max_len(&self) -> usize {
        self.data.max_len()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use kiln_data::lengths::Lengths;

    use super::*;

    fn lengths(data: &[usize], batch: usize, repeats: usize) -> Vec<usize> {
        let longest = Longest::new(Arc::new(Lengths(data.to_vec())), batch, repeats);
        (0..longest.len()).map(|index| longest.get(index, 0).unwrap().input_ids.len()).collect()
    }

    #[test]
    fn the_longest_come_with_one_that_is_padded() {
        assert_eq!(lengths(&[3, 9, 5, 9, 8, 2], 2, 1), [9, 8]);
        assert_eq!(lengths(&[3, 9, 5, 9, 8, 2], 4, 2), [9, 9, 8, 5, 9, 9, 8, 5]);
        assert_eq!(lengths(&[3, 9, 5], 1, 1), [9]);
        assert_eq!(lengths(&[3, 9, 5], 7, 1), [9, 5, 3, 9, 5, 3, 5], "they come again");
    }

    #[test]
    fn blocks_of_one_length_are_all_the_same() {
        assert_eq!(lengths(&[7; 5], 3, 2), [7; 6]);
        assert_eq!(lengths(&vec![7; 10_000], 3, 1), [7; 3]);
    }
}
