//! Batches in order, prepared ahead on a worker thread. A position is a value: reading it costs
//! nothing and seeking to it is immediate. Only host memory is touched here; tensors are made on
//! the training thread.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::panics;
use serde::{Deserialize, Serialize};

use super::sampler::{Order, Walk};
use super::{Dataset, Example, Fingerprint, PaddedBatch};

/// How batches are made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoaderOptions {
    /// Examples a batch.
    pub batch_size: usize,
    /// Order of the examples.
    pub order: Order,
    /// Leave out the last batch of an epoch when it is smaller.
    pub drop_last: bool,
    /// Batches prepared ahead; 0 prepares each when it is asked for.
    pub prefetch: usize,
    /// Go on with the next epoch, without end.
    pub repeat: bool,
    /// The part of the batches that this loader makes.
    pub share: Share,
}

/// The part of the batches that one of several loaders makes, which take turns: of `of` batches,
/// one after the other, the `turn`-th, from 0. Every loader walks over all of them, so that all
/// stand at the same position. At the end of an epoch some have no batch: they collate no examples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// This loader's.
    pub turn: usize,
    /// How many loaders there are.
    pub of: usize,
}

impl Share {
    /// One loader makes all.
    pub const ALL: Self = Self { turn: 0, of: 1 };
}

/// Where a loader stands: `index` examples of epoch `epoch` have been handed out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Examples of this epoch that are gone.
    pub index: u64,
}

/// A batch and where it came from.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedBatch<B = PaddedBatch> {
    /// The batch.
    pub batch: B,
    /// Examples in it, and in those of the other loaders' turns.
    pub examples: usize,
    /// Passes over the data after this batch, with fraction.
    pub epoch_progress: f64,
    /// No batch of this epoch follows.
    pub last_in_epoch: bool,
    /// Where the loader stands after this batch.
    pub position_after: Position,
}

/// Hands out batches.
pub struct Loader<E: Fingerprint = Example, B = PaddedBatch> {
    source: Source<E, B>,
    position: Position,
    ahead: Option<Ahead<B>>,
    waited: Duration,
}

/// Makes one batch of examples, on any thread.
type Collate<E, B> = dyn Fn(&[E]) -> Result<B> + Send + Sync;

/// Everything that a worker needs to make any batch.
struct Source<E: Fingerprint, B> {
    dataset: Arc<dyn Dataset<E>>,
    collate: Arc<Collate<E, B>>,
    options: LoaderOptions,
    walk: Walk,
}

/// Batches that a worker thread prepares. Dropping the receiver ends the thread.
struct Ahead<B> {
    receiver: Receiver<Result<Option<LoadedBatch<B>>>>,
    worker: Option<JoinHandle<()>>,
}

impl<E: Fingerprint, B> Clone for Source<E, B> {
    fn clone(&self) -> Self {
        Self {
            dataset: self.dataset.clone(),
            collate: self.collate.clone(),
            options: self.options,
            walk: self.walk.clone(),
        }
    }
}

impl<E: Fingerprint + 'static, B: Send + 'static> Loader<E, B> {
    /// A loader at the start of epoch 0, whose batches `collate` makes
    /// ([`Collator`](super::collate::Collator)).
    ///
    /// # Errors
    /// A batch size of 0, or `drop_last` with fewer examples than one batch.
    pub fn new(
        dataset: Arc<dyn Dataset<E>>,
        collate: impl Fn(&[E]) -> Result<B> + Send + Sync + 'static,
        options: LoaderOptions,
    ) -> Result<Self> {
        let len = dataset.len();
        if options.batch_size == 0 || len == 0 || (options.drop_last && len < options.batch_size) {
            return Err(Error::data(format!("{len} examples give no batch of {}", options.batch_size)));
        }
        Ok(Self {
            source: Source { dataset, collate: Arc::new(collate), walk: options.order.walk(), options },
            position: Position::default(),
            ahead: None,
            waited: Duration::ZERO,
        })
    }

    /// The next batch; none after the last one of a loader that does not repeat.
    ///
    /// # Errors
    /// Data that cannot be read; a worker that failed.
    pub fn next_batch(&mut self) -> Result<Option<LoadedBatch<B>>> {
        let started = Instant::now();
        let next = self.take();
        self.waited += started.elapsed();
        if let Ok(Some(loaded)) = &next {
            self.position = loaded.position_after;
        }
        next
    }

    fn take(&mut self) -> Result<Option<LoadedBatch<B>>> {
        if self.source.options.prefetch == 0 {
            return self.source.batch_at(self.position);
        }
        let ahead = match &mut self.ahead {
            Some(ahead) => ahead,
            None => self.ahead.insert(Ahead::start(self.source.clone(), self.position)?),
        };
        let next = match ahead.receiver.recv() {
            Ok(next) => next,
            Err(_) => Err(ahead.failure()),
        };
        if !matches!(next, Ok(Some(_))) {
            // The worker has ended. Who asks again gets what a loader without one answers: a fresh
            // look at this position.
            self.ahead = None;
        }
        next
    }

    /// Where the loader stands.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Continues at `position`.
    pub fn seek(&mut self, position: Position) {
        self.ahead = None;
        self.position = position;
    }

    /// How long callers have waited for batches.
    pub fn data_wait(&self) -> Duration {
        self.waited
    }
}

impl<E: Fingerprint, B> Source<E, B> {
    /// The batch at `position`, a pure function of it.
    fn batch_at(&mut self, mut position: Position) -> Result<Option<LoadedBatch<B>>> {
        let options = &self.options;
        let len = self.dataset.len() as u64;
        let size = options.batch_size as u64;
        let usable = if options.drop_last { len - len % size } else { len };
        if position.index >= usable {
            position = Position { epoch: position.epoch + 1, index: 0 };
        }
        if !options.repeat && position.epoch > 0 {
            return Ok(None);
        }
        let Share { turn, of } = options.share;
        let end = (position.index + size * of as u64).min(usable);
        let own = (position.index + size * turn as u64).min(end);
        let examples = (own..(own + size).min(end)).map(|place| {
            let index = self.walk.index(&*self.dataset, position.epoch, place);
            self.dataset.get(index, position.epoch)
        });
        let batch = (self.collate)(&examples.collect::<Result<Vec<_>>>()?)?;
        let last_in_epoch = end == usable;
        Ok(Some(LoadedBatch {
            batch,
            examples: (end - position.index) as usize,
            epoch_progress: position.epoch as f64 + end as f64 / usable as f64,
            last_in_epoch,
            position_after: if last_in_epoch {
                Position { epoch: position.epoch + 1, index: 0 }
            } else {
                Position { index: end, ..position }
            },
        }))
    }
}

impl<B: Send + 'static> Ahead<B> {
    fn start<E: Fingerprint + 'static>(mut source: Source<E, B>, mut position: Position) -> Result<Self> {
        let (sender, receiver) = sync_channel(source.options.prefetch);
        let worker = std::thread::Builder::new().name("kiln-loader".into()).spawn(move || {
            loop {
                let made = source.batch_at(position);
                let next = match &made {
                    Ok(Some(loaded)) => Some(loaded.position_after),
                    _ => None,
                };
                if sender.send(made).is_err() {
                    return; // nobody listens any more
                }
                match next {
                    Some(next) => position = next,
                    None => return,
                }
            }
        });
        let worker = worker.map_err(|error| Error::start("the thread that prepares batches", &error))?;
        Ok(Self { receiver, worker: Some(worker) })
    }

    /// Why the worker ended without an answer: it panicked.
    fn failure(&mut self) -> Error {
        let panic = self.worker.take().and_then(|worker| worker.join().err());
        let text = panic.map_or_else(|| "no message".into(), |panic| panics::message(&*panic));
        Error::data(format!("the thread that prepares batches failed: {text}")).help("this is a defect of Kiln")
    }
}

impl<B> Drop for Ahead<B> {
    fn drop(&mut self) {
        // Closing the channel makes the worker's next send fail; then it ends and can be waited
        // for.
        let (_, closed) = sync_channel(0);
        self.receiver = closed;
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::dataset::collate::Collator;
    use crate::dataset::padding::Padding;
    use crate::dataset::sampler::Sampler;
    use crate::dataset::{Example, Label};

    struct Numbers(usize);

    impl Dataset for Numbers {
        fn len(&self) -> usize {
            self.0
        }
        fn len_of(&self, index: usize) -> usize {
            index % 3 + 1
        }
        fn get(&self, index: usize, _epoch: u64) -> Result<Example> {
            if index == 99 {
                return Err(Error::data("example 99 is broken"));
            }
            assert!(index != 199, "example 199 panics");
            let input_ids = vec![index as i32; index % 3 + 1];
            Ok(Example {
                input_ids,
                attention_mask: None,
                token_type_ids: None,
                position_ids: None,
                label: Label::Class(index as i32),
            })
        }
        fn max_len(&self) -> usize {
            3
        }
    }

    fn options(prefetch: usize, repeat: bool) -> LoaderOptions {
        LoaderOptions {
            batch_size: 4,
            order: Order { sampler: Sampler::Random, seed: 5, step: 4 },
            drop_last: false,
            prefetch,
            repeat,
            share: Share::ALL,
        }
    }

    fn load(len: usize, padding: Padding, options: LoaderOptions) -> Result<Loader> {
        let collator = Collator { pad_id: 0, padding, rows: options.batch_size };
        Loader::new(Arc::new(Numbers(len)), move |examples| collator.collate(examples), options)
    }

    fn take(loader: &mut Loader, n: usize) -> Vec<LoadedBatch> {
        (0..n).map(|_| loader.next_batch().unwrap().unwrap()).collect()
    }

    #[test]
    fn prefetching_changes_nothing() {
        let batches = |prefetch| take(&mut load(10, Padding::default(), options(prefetch, true)).unwrap(), 7);
        assert_eq!(batches(0), batches(3));
    }

    #[test]
    fn an_epoch_ends_with_a_smaller_batch_and_the_next_begins() {
        let mut loader = load(10, Padding::default(), options(2, true)).unwrap();
        let batches = take(&mut loader, 4);
        assert_eq!(batches.iter().map(|b| b.batch.rows).collect::<Vec<_>>(), [4, 4, 2, 4]);
        assert_eq!(batches.iter().map(|b| b.last_in_epoch).collect::<Vec<_>>(), [false, false, true, false]);
        assert_eq!(batches[2].epoch_progress, 1.0);
        assert_eq!(loader.position(), Position { epoch: 1, index: 4 });
    }

    #[test]
    fn with_a_fixed_shape_the_last_batch_is_filled_up() {
        let batches = take(&mut load(10, Padding::of(&[4]), options(0, false)).unwrap(), 3);
        assert_eq!(batches.iter().map(|b| (b.batch.rows, b.batch.seq_len)).collect::<Vec<_>>(), [(4, 4); 3]);
        assert_eq!(batches.iter().map(|b| b.batch.examples).collect::<Vec<_>>(), [4, 4, 2]);
    }

    #[test]
    fn one_pass_sees_every_example_once_and_ends() {
        let mut loader = load(10, Padding::default(), options(2, false)).unwrap();
        let mut seen = Vec::new();
        while let Some(loaded) = loader.next_batch().unwrap() {
            let crate::dataset::BatchLabels::Classes(classes) = loaded.batch.labels else { panic!("classes expected") };
            seen.extend(classes);
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..10).collect::<Vec<_>>());
        assert!(load(10, Padding::default(), options(0, false)).unwrap().next_batch().unwrap().is_some());
    }

    #[test]
    fn seeking_continues_exactly() {
        for sampler in [Sampler::Random, Sampler::GroupByLength] {
            let order = Order { sampler, ..options(2, true).order };
            let start = || load(39, Padding::default(), LoaderOptions { order, ..options(2, true) }).unwrap();
            let all = take(&mut start(), 22);
            for cut in 0..21 {
                let mut resumed = start();
                if cut > 0 {
                    resumed.seek(all[cut - 1].position_after);
                }
                assert_eq!(take(&mut resumed, 22 - cut), all[cut..]);
            }
        }
    }

    #[test]
    fn loaders_that_take_turns_make_what_one_makes() {
        let all = take(&mut load(26, Padding::default(), options(0, true)).unwrap(), 14);
        for of in [2, 3, 4] {
            let mut loaders = (0..of).map(|turn| {
                let collator = Collator { pad_id: 0, padding: Padding::default(), rows: 4 };
                let share = Share { turn, of };
                let collate = move |examples: &[Example]| match examples {
                    [] => Ok(None),
                    examples => collator.collate(examples).map(Some),
                };
                Loader::new(Arc::new(Numbers(26)), collate, LoaderOptions { share, ..options(2, true) }).unwrap()
            });
            let mut loaders = loaders.by_ref().collect::<Vec<_>>();
            let (mut made, mut position) = (Vec::new(), Position::default());
            while made.len() < 14 {
                let round = loaders.iter_mut().map(|loader| loader.next_batch().unwrap().unwrap()).collect::<Vec<_>>();
                assert!(round.iter().all(|loaded| loaded.position_after == round[0].position_after));
                let rows = round.iter().filter_map(|loaded| Some(loaded.batch.as_ref()?.rows)).sum::<usize>();
                assert_eq!(round[0].examples, rows);
                position = round[0].position_after;
                made.extend(round.into_iter().filter_map(|loaded| loaded.batch));
            }
            // An epoch has seven batches: the last round of each is not full.
            assert_eq!((made.len(), position), (14, Position { epoch: 2, index: 0 }));
            assert_eq!(made, all.iter().map(|loaded| loaded.batch.clone()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn drop_last_drops_the_remainder_only() {
        let mut loader = load(10, Padding::default(), LoaderOptions { drop_last: true, ..options(0, true) }).unwrap();
        let batches = take(&mut loader, 3);
        assert!(batches.iter().all(|loaded| loaded.batch.rows == 4));
        assert!(batches[1].last_in_epoch && batches[2].position_after.epoch == 1);
        let tiny = LoaderOptions { drop_last: true, ..options(0, true) };
        assert!(load(3, Padding::default(), tiny).is_err());
    }

    #[test]
    fn an_error_of_the_worker_arrives() {
        let mut loader = load(100, Padding::default(), options(2, false)).unwrap();
        let error = loop {
            match loader.next_batch() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("example 99 was never read"),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("example 99"));
    }
    #[test]
    fn after_the_end_there_is_still_nothing() {
        for prefetch in [0, 1, 3] {
            let mut loader = load(5, Padding::default(), options(prefetch, false)).unwrap();
            take(&mut loader, 2);
            for _ in 0..3 {
                assert_eq!(loader.next_batch().unwrap(), None, "prefetch {prefetch}");
            }
            loader.seek(Position::default());
            assert_eq!(take(&mut loader, 2).len(), 2, "a loader at its end can be sent back");
        }
    }

    #[test]
    fn an_error_stays_where_it_is() {
        for prefetch in [0, 2] {
            let sequential = LoaderOptions { order: Order::SEQUENTIAL, ..options(prefetch, false) };
            let mut loader = load(100, Padding::default(), sequential).unwrap();
            take(&mut loader, 24);
            for _ in 0..2 {
                assert!(loader.next_batch().unwrap_err().to_string().contains("example 99"), "prefetch {prefetch}");
            }
            assert_eq!(loader.position(), Position { epoch: 0, index: 96 });
        }
    }

    #[test]
    fn a_panic_of_the_worker_is_an_error_with_its_message() {
        let sequential = LoaderOptions { order: Order::SEQUENTIAL, ..options(2, false) };
        let mut loader = load(200, Padding::default(), sequential).unwrap();
        loader.seek(Position { epoch: 0, index: 196 });
        let error = loader.next_batch().unwrap_err().to_string();
        assert!(error.contains("example 199 panics"), "{error}");
    }

    #[test]
    fn dropping_the_loader_ends_its_thread() {
        let dataset: Arc<dyn Dataset> = Arc::new(Numbers(10));
        let collator = Collator { pad_id: 0, padding: Padding::default(), rows: 4 };
        let collate = move |examples: &[Example]| collator.collate(examples);
        let mut loader = Loader::new(dataset.clone(), collate, options(2, true)).unwrap();
        take(&mut loader, 1);
        assert_eq!(Arc::strong_count(&dataset), 3, "here, the loader and its thread");
        drop(loader);
        assert_eq!(Arc::strong_count(&dataset), 1);
    }

    #[test]
    fn what_gives_no_batch_is_refused() {
        assert!(load(0, Padding::default(), options(0, true)).is_err());
        assert!(load(4, Padding::default(), LoaderOptions { batch_size: 0, ..options(0, true) }).is_err());
    }
}
