//! The warm-up stage: before step 1 of a compiled run every batch shape that its plan can produce
//! goes through forward, backward and update once, and every shape of its evaluations through a
//! forward pass, so that kernels are compiled, tuned and kept before training is timed. It is the
//! training loop itself, on a model and an optimizer of its own in a temporary folder, so it does
//! what the run will do and leaves no trace in it: every step of a run seeds its own random
//! numbers.
//!
//! Which shapes: those of the first epoch (its first 4096 batches), and where batches have one of
//! few lengths, full ones of each of these with and without padding, as far as the data has rows
//! for it. Where every batch has a length of its own there may be hundreds of shapes, most of them
//! seen once: then the 12 most frequent and the largest are warmed, and what is left out is said.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kiln_core::dataset::padding::{Batches, Padding};
use kiln_core::dataset::sampler::Order;
use kiln_core::dataset::subset::Subset;
use kiln_core::dataset::{Dataset, Fingerprint};
use kiln_core::error::{ErrorKind, Result};
use kiln_core::metrics::Record;
use kiln_core::process::scratch;
use kiln_core::signals;
use kiln_core::words::duration;
use kiln_models::Ops;

use crate::arguments::{BatchArguments, EvalStrategy, LearningRateScaling};
use crate::description::Weights;
use crate::distributed::Devices;
use crate::engine::device::release_memory;
use crate::engine::settings::{CompilerMode, Switch};
use crate::session::Session;
use crate::task::{Batch as _, TrainingTask};
use crate::trainer::{Callback, Control, Progress, Purpose, Shape, StopAfter, TrainOutput, Trainer};
use kiln_core::dataset::Sampler;

/// Shapes that are warmed at most where every batch has a length of its own.
pub const MOST: usize = 12;

/// Hears what the stage says.
pub type Say = Rc<dyn Fn(&str)>;

/// Trains to the end: [`Trainer::train`], which calls this stage and is handed to it.
pub type Train<T> = fn(&mut Trainer<T>) -> Result<TrainOutput>;

/// The result of the warm-up.
#[derive(Debug, Clone)]
pub struct Warmed {
    /// The shapes of training batches that went through it.
    pub(crate) shapes: Vec<Shape>,
    /// How long it took.
    pub elapsed: Duration,
}

/// Runs the stage for `session`, whose steps `training_loop` makes.
///
/// # Errors
/// Any error of the steps that the warm-up computes; a signal that asks the process to stop.
pub fn run<T: TrainingTask>(session: &Session<T>, say: &Say, training_loop: Train<T>) -> Result<Warmed> {
    let plan = session.plan();
    let started = Instant::now();
    let task = &session.task;
    let train = batches(task, session.train(), plan.data.drawn(&plan.batch), &plan.data.padding)?;
    let loader = Batches { size: plan.evaluation.batch_size, order: Order::SEQUENTIAL, drop_last: false };
    let evaluation = match session.validation().filter(|_| plan.evaluation.is_on()) {
        Some(data) => Some(batches(task, data, loader, &plan.data.padding)?),
        None => None,
    };
    for (what, found) in [("training", Some(&train)), ("evaluation", evaluation.as_ref())] {
        if let Some(found) = found.filter(|found| found.left_out > 0) {
            say(&format!(
                "warm-up: {} of {} {what} shapes, the most frequent and the largest: each batch is padded to its longest row, \
                 so most shapes come once (data.padding = \"buckets\" has few)",
                found.batches.len(),
                found.batches.len() + found.left_out
            ));
        }
    }

    let folder = scratch()?;
    // Once more the first: what adds a step to those before it is launched from the second on.
    let steps = train.batches.len() + 1;
    // With accumulation, gradients are also added to those of a batch before.
    let accumulation = match plan.captures() {
        // So it does in a captured step of several devices.
        Ok(()) => plan.batch.micro_batches(),
        Err(_) => plan.batch.accumulation,
    }
    .min(2);
    let picked = Arc::new(picks(session.train(), &train.batches, accumulation, plan.batch.micro));
    let evaluated = evaluation.as_ref().zip(session.validation()).map(|(found, data)| {
        Arc::new(picks(data, &found.batches, 1, plan.evaluation.batch_size)) as Arc<dyn Dataset<T::Example>>
    });
    // Weights that are thrown away need not be read.
    let warm = rehearsal(session, plan.engine.ops, folder.path())?.with_weights(Weights::Random);
    let warm = warm.derive(|trainer, _| {
        (trainer.sampler, trainer.batch) = (Sampler::Sequential, BatchArguments::default());
        trainer.devices = Devices::default();
        // The rate of the run, whatever its batch has to do with it.
        trainer.learning_rate_scaling = LearningRateScaling::default();
        trainer.learning_rate = plan.optimizer.learning_rate.rate;
        (trainer.per_device_train_batch_size, trainer.gradient_accumulation_steps) =
            (plan.batch.micro.into(), accumulation);
        trainer.dataloader_drop_last = false;
        trainer.max_steps = Some(plan.steps.total.max(steps));
        if evaluated.is_some() {
            (trainer.eval_strategy, trainer.eval_steps) = (EvalStrategy::Steps, Some(steps.into()));
        }
        Ok(())
    })?;
    let warm = warm.with_examples(picked, evaluated)?;
    let shapes = train.batches.iter().map(|batch| batch.shape).collect::<Vec<_>>();
    let evaluated = evaluation.map_or(0, |found| found.batches.len());
    let lines = Lines { say: say.clone(), shapes: shapes.clone(), evaluated };
    let done = Trainer::build(warm).and_then(|trainer| {
        let trainer = trainer.with_purpose(Purpose::Rehearsal).with_callback(lines);
        training_loop(&mut trainer.with_callback(StopAfter(steps as u64)))
    });
    // Pages that only other shapes need go back.
    release_memory(&session.device);
    match done {
        Err(error) => Err(match (error.kind(), signals::received()) {
            (ErrorKind::Interrupted(_), Some(signal)) => signal.error("stopped in the warm-up, before the first step"),
            _ => error.at("warm-up"),
        }),
        Ok(_) => {
            let elapsed = started.elapsed();
            say(&format!(
                "warm-up: {} training and {evaluated} evaluation shapes in {}",
                shapes.len(),
                duration(elapsed.as_secs_f64())
            ));
            Ok(Warmed { shapes, elapsed })
        }
    }
}

/// Batches of different shapes.
struct Found {
    /// The largest first, one that is not full last.
    batches: Vec<PickedBatch>,
    /// Shapes that were seen and are not among them.
    left_out: usize,
}

/// A batch of one shape, by its examples.
struct PickedBatch {
    shape: Shape,
    examples: Vec<usize>,
}

/// One batch of every shape; see the top of this file.
fn batches<T: TrainingTask>(
    task: &T,
    data: &Arc<dyn Dataset<T::Example>>,
    draw: Batches,
    padding: &Padding,
) -> Result<Found> {
    let shape_of = |examples: &[usize]| -> Result<Shape> {
        let examples = examples.iter().map(|index| data.get(*index, 0)).collect::<Result<Vec<_>>>()?;
        Ok(Shape::of(&task.batch(&examples, draw.size)?.size()))
    };
    // By rows, length and whether rows are shorter, which the lengths tell; what a mask hides
    // besides, the batch itself.
    let mut seen: BTreeMap<(usize, usize, bool), (Vec<usize>, usize)> = BTreeMap::new();
    for examples in draw.of_first_epoch(&**data) {
        note(&mut seen, data, padding, draw.size, examples);
    }
    for examples in of_every_length(data, draw.size, padding) {
        note(&mut seen, data, padding, draw.size, examples);
    }
    let all = seen.len();
    let mut kept = seen.into_values().collect::<Vec<_>>();
    if !padding.is_fixed() && all > MOST {
        // The largest shape, by rows and tokens, is the last; one that is not full has to come
        // first to be kept, too.
        let largest = kept.pop();
        kept.sort_by_key(|(examples, times)| std::cmp::Reverse((*times, examples.len())));
        kept.truncate(MOST - 1);
        kept.extend(largest);
    }
    let mut batches: BTreeMap<Shape, PickedBatch> = BTreeMap::new();
    for (examples, _) in kept {
        let shape = shape_of(&examples)?;
        // Of two batches of a shape the full one: only one that is not full can be the last.
        let fuller = batches.get(&shape).is_none_or(|other| other.examples.len() < examples.len());
        if fuller {
            batches.insert(shape, PickedBatch { shape, examples });
        }
    }
    let mut batches = batches.into_values().collect::<Vec<_>>();
    let left_out = if padding.is_fixed() { 0 } else { all.saturating_sub(batches.len().max(MOST)) };
    batches.sort_by_key(|batch| {
        std::cmp::Reverse((batch.examples.len() == draw.size, batch.shape.rows * batch.shape.seq_len, batch.shape))
    });
    Ok(Found { batches, left_out })
}

/// Counts a batch among those of its shape.
fn note<E: Fingerprint>(
    seen: &mut BTreeMap<(usize, usize, bool), (Vec<usize>, usize)>,
    data: &Arc<dyn Dataset<E>>,
    padding: &Padding,
    size: usize,
    examples: Vec<usize>,
) {
    let lengths = || examples.iter().map(|index| data.len_of(*index));
    let length = padding.length(lengths().max().unwrap_or(0));
    let rows = if padding.is_fixed() { size } else { examples.len() };
    let padded = examples.len() < rows || lengths().any(|own| own < length);
    let entry = seen.entry((rows, length, padded)).or_insert_with(|| (examples.clone(), 0));
    if entry.0.len() < examples.len() {
        entry.0 = examples;
    }
    entry.1 += 1;
}

/// For each length of batches, where these are few, a full batch with and without padding, where
/// the data has rows for it.
fn of_every_length<E: Fingerprint>(data: &Arc<dyn Dataset<E>>, size: usize, padding: &Padding) -> Vec<Vec<usize>> {
    let shortest = (0..data.len()).min_by_key(|index| data.len_of(*index));
    // By length: a row that fills it, and one that does not.
    let mut rows: BTreeMap<usize, [Option<usize>; 2]> = BTreeMap::new();
    for index in 0..data.len() {
        if rows.len() > MOST {
            return Vec::new();
        }
        let own = data.len_of(index);
        let length = padding.length(own);
        rows.entry(length).or_default()[usize::from(own < length)].get_or_insert(index);
    }
    let mut found = Vec::new();
    for (length, [full, shorter]) in rows {
        found.extend(full.map(|full| vec![full; size]));
        let beside = shortest.filter(|index| size > 1 && data.len_of(*index) < length);
        match (shorter, full, beside) {
            (Some(shorter), ..) => found.push(vec![shorter; size]),
            (None, Some(full), Some(beside)) => {
                found.push([vec![full], vec![beside; size - 1]].concat());
            }
            _ => {}
        }
    }
    found
}

/// The examples of `batches` one after the other: each full batch `times` times; one of fewer than
/// `size` examples, the last, once.
fn picks<E: Fingerprint>(data: &Arc<dyn Dataset<E>>, batches: &[PickedBatch], times: usize, size: usize) -> Subset<E> {
    let all = batches.iter().flat_map(|batch| {
        let times = if batch.examples.len() == size { times } else { 1 };
        std::iter::repeat_n(&batch.examples, times).flatten().copied()
    });
    Subset::select(data.clone(), all.collect())
}

/// Tells how far the stage has come: every step of it is a shape, but for the last.
struct Lines {
    say: Say,
    shapes: Vec<Shape>,
    evaluated: usize,
}

impl<M> Callback<M> for Lines {
    fn on_log(&mut self, progress: &Progress, row: &Record) {
        let (at, of) = (progress.step as usize, self.shapes.len());
        if let Some(shape) = at.checked_sub(1).and_then(|index| self.shapes.get(index)) {
            let seconds = row.get("step_ms").unwrap_or(f64::NAN) / 1e3;
            (self.say)(&format!("warm-up: shape {at} of {of}, {shape}: {}", duration(seconds)));
        }
    }

    fn on_evaluate(&mut self, _progress: &Progress, row: &Record, _control: &mut Control) {
        let seconds = row.get("eval_runtime").unwrap_or(f64::NAN);
        (self.say)(&format!("warm-up: evaluation, {} shapes: {}", self.evaluated, duration(seconds)));
    }
}

/// `session` as a run that only trains, computing in the form `ops`: a row for every step, no
/// evaluation, checkpoint or sample, and all that it writes below `folder`. It has the steps and
/// the warm-up of the run, whatever examples it is given. Of the compiler's settings what would
/// look at the rehearsal itself is left out.
///
/// # Errors
/// Settings that contradict one another.
pub fn rehearsal<T: TrainingTask>(session: &Session<T>, ops: Ops, folder: &Path) -> Result<Session<T>> {
    let plan = session.plan();
    session.derive(|trainer, _| {
        *trainer = trainer.training_only(folder.join("probe"), 1);
        (trainer.max_steps, trainer.num_train_epochs, trainer.max_tokens) = (Some(plan.steps.total), None, None);
        trainer.warmup_steps = plan.optimizer.schedule.warmup_steps().into();
        (trainer.fast_dev_run, trainer.overfit_one_batch) = (false, false);
        let Some(compiler) = &mut trainer.compiler else { return Ok(()) };
        (compiler.debug, compiler.warmup) = (false, Switch::Off);
        // The form is chosen already.
        if compiler.enabled == CompilerMode::Auto {
            compiler.enabled = CompilerMode::Compiled;
        }
        if ops == Ops::Plain {
            (compiler.fused_ops, compiler.graph) = (Switch::Off.into(), Switch::Auto);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use burn::module::Module;
    use burn::tensor::{Device, Int, Tensor};
    use kiln_core::dataset::collate::Collator;
    use kiln_core::dataset::lengths::Lengths;
    use kiln_core::dataset::{Example, PaddedBatch, PaddingStrategy};
    use kiln_models::layers::Embedding;
    use kiln_models::weights::StateDict;
    use kiln_models::{Compute, Pass};

    use super::*;
    use crate::arguments::{Interval, LrScaling, TrainingArguments};
    use crate::engine::settings::{DeviceArguments, DeviceKind};
    use crate::plan::TrainPlan;
    use crate::task::BatchSize;

    #[derive(Module, Debug)]
    struct Table {
        embedding: Embedding,
    }
    impl StateDict for Table {}

    /// A task on tokens, of which nothing but its batches is asked.
    #[derive(Clone)]
    struct Tokens(Padding);

    struct Rows(PaddedBatch);

    impl crate::task::Batch for Rows {
        type OnDevice = Tensor<1, Int>;

        fn size(&self) -> BatchSize {
            let PaddedBatch { rows, seq_len, num_tokens, .. } = self.0;
            let padded = self.0.attention_mask.is_some();
            BatchSize { rows, seq_len, padded, tokens: num_tokens as u64, labels: 1.0 }
        }

        fn to_device(&self, device: &Device) -> Result<Tensor<1, Int>> {
            Ok(Tensor::arange(0..1, device))
        }
    }

    impl TrainingTask for Tokens {
        type Model = Table;
        type Example = Example;
        type Batch = Rows;

        const PADS_BY_PLAN: bool = true;

        fn model(&self, _: Compute, device: &Device) -> Result<Table> {
            Ok(Table { embedding: Embedding::new(4, 4, None, 0.1, device) })
        }

        fn planned(&self, plan: &TrainPlan) -> Self {
            Self(plan.data.padding.clone())
        }

        fn batch(&self, examples: &[Example], rows: usize) -> Result<Rows> {
            Collator { pad_id: 0, padding: self.0.clone(), rows }.collate(examples).map(Rows)
        }

        fn loss(&self, model: &Table, batch: &Tensor<1, Int>, pass: Pass<'_>) -> Result<Tensor<1>> {
            Ok(model.embedding.forward(batch.clone(), pass.ops()).sum())
        }
    }

    fn tokens(padding: &Padding) -> Tokens {
        Tokens(padding.clone())
    }

    fn found(lengths: &[usize], size: usize, padding: &Padding) -> (Vec<(usize, usize, bool)>, usize) {
        let data: Arc<dyn Dataset> = Arc::new(Lengths(lengths.to_vec()));
        let draw = Batches { size, order: Order::SEQUENTIAL, drop_last: false };
        let found = batches(&tokens(padding), &data, draw, padding).unwrap();
        let shapes = found.batches.iter().map(|batch| batch.shape);
        (shapes.map(|shape| (shape.rows, shape.seq_len, shape.padded)).collect(), found.left_out)
    }

    #[test]
    fn a_rehearsal_has_the_rates_and_the_padding_of_the_run_on_a_few_examples() {
        let folder = tempfile::tempdir().unwrap();
        let arguments = TrainingArguments {
            num_train_epochs: Some(4.0),
            per_device_train_batch_size: 4.into(),
            warmup_steps: Interval::Samples(24),
            padding: PaddingStrategy::Buckets,
            batch: BatchArguments { global_batch_size: Some(8), ..Default::default() },
            learning_rate_scaling: LearningRateScaling {
                scaling: LrScaling::Linear,
                reference_batch: Some(4),
                ..Default::default()
            },
            device: DeviceArguments { kind: DeviceKind::Cpu, index: 0 },
            compiler: Some(CompilerMode::Compiled.into()),
            ..TrainingArguments::new("run")
        };
        let data = Lengths((0..40).map(|i| 2 + i % 7).collect());
        let session = Session::new(arguments, tokens(&Padding::default()), data).unwrap();
        let of_run = session.plan();
        assert_eq!((of_run.steps.total, of_run.optimizer.schedule.warmup_steps()), (20, 3));
        let warm = rehearsal(&session, of_run.engine.ops, folder.path()).unwrap();
        let rest = |plan: &TrainPlan| (plan.batch.clone(), plan.steps.total, plan.optimizer.clone(), plan.data.clone());
        assert_eq!(rest(warm.plan()), rest(of_run));
        let few = warm.with_examples(Arc::new(Subset::first(session.train().clone(), 8)), None).unwrap();
        let plan = few.plan();
        assert_eq!((plan.data.train_examples, plan.steps.per_epoch, plan.steps.total), (8, 1, 20));
        assert_eq!((&plan.optimizer, &plan.data.padding), (&of_run.optimizer, &of_run.data.padding));
        assert_eq!((few.train().len(), of_run.data.train_examples), (8, 40), "the run's own plan is what it was");
    }

    #[test]
    fn blocks_have_one_shape_and_that_of_the_last_batch() {
        assert_eq!(found(&[8; 10], 4, &Padding::default()), (vec![(4, 8, false), (2, 8, false)], 0));
        assert_eq!(found(&[8; 8], 4, &Padding::default()), (vec![(4, 8, false)], 0));
    }

    #[test]
    fn buckets_come_with_and_without_padding_whatever_the_first_epoch_drew() {
        // The first epoch has 2 x 8 with padding alone: its other shapes are those that another
        // order would have.
        let (shapes, left_out) = found(&[3, 8, 8, 3], 2, &Padding::of(&[4, 8]));
        assert_eq!((shapes, left_out), (vec![(2, 8, true), (2, 8, false), (2, 4, true)], 0));
        let (shapes, _) = found(&[5, 5, 5], 2, &Padding::of(&[8]));
        assert_eq!(shapes, [(2, 8, true)], "the last batch is filled up, so it has the same shape");
        assert_eq!(found(&[8, 8, 8], 2, &Padding::of(&[8])).0, [(2, 8, false), (2, 8, true)]);
    }

    #[test]
    fn of_many_lengths_the_frequent_and_the_largest_are_taken() {
        let lengths = (0..60).map(|i| if i % 3 == 0 { 5 } else { 6 + i % 30 }).collect::<Vec<_>>();
        let (shapes, left_out) = found(&lengths, 1, &Padding::default());
        assert_eq!((shapes.len(), left_out), (MOST, 21 - MOST));
        assert_eq!(shapes[0], (1, 35, false), "the largest first");
        assert!(shapes.contains(&(1, 5, false)), "a third of all batches");
    }

    #[test]
    fn a_batch_that_is_not_full_ends_the_picks() {
        let data: Arc<dyn Dataset> = Arc::new(Lengths(vec![8; 10]));
        let draw = Batches { size: 4, order: Order::SEQUENTIAL, drop_last: false };
        let task = tokens(&Padding::default());
        let found = batches(&task, &data, draw, &Padding::default()).unwrap();
        let picks = picks(&data, &found.batches, 2, 4);
        assert_eq!((picks.len(), picks.max_len()), (4 + 4 + 2, 8));
        let without = Batches { drop_last: true, ..draw };
        assert_eq!(batches(&task, &data, without, &Padding::default()).unwrap().batches.len(), 1);
    }
}
