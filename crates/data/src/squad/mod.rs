//! Extractive question answering on SQuAD's JSON (Rajpurkar et al. 2016, 2018), versions 1.1 and
//! 2.0: reading it, cutting long contexts into overlapping windows, finding the best span among the
//! windows' logits, and scoring it as the official script does. A window is an ordinary training
//! example whose label is a start and an end; see [`SquadData`].

mod read;
mod score;
mod spans;
mod store;
mod windows;

#[cfg(test)]
mod tests;

use std::any::Any;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kiln_core::error::{Error, Result};
use kiln_core::signals;
pub use read::{Answer, Question, read, read_unanswered};
pub use score::{Scores, exact_match, f1, scores};
pub use spans::{Prediction, SpanLogits, SpanOptions, best_answers};
use store::WindowStore;
pub use windows::{Window, WindowEncoder};

use crate::store::{OnProgress, until_signalled};
use crate::{Dataset, Example, Label};

/// Questions and the windows they were cut into. A window is an example. The questions are in
/// memory, the windows on disk.
#[derive(Debug, Clone)]
pub struct SquadData {
    questions: Arc<[Question]>,
    store: Arc<WindowStore>,
    /// The windows that belong to `questions`, with the places of theirs among these.
    windows: Arc<[(usize, usize)]>,
    options: SpanOptions,
}

impl SquadData {
    /// Reads `files` and encodes every question with its context, or takes the windows from the
    /// cache in `folder`. `progress` is told how far encoding has come and may interrupt it.
    ///
    /// # Errors
    /// A file that cannot be read or is no SQuAD; an answer that is not in its context at the place
    /// it names; no question; a question that leaves no room for its context; a cache that cannot
    /// be written.
    pub fn open(
        folder: &Path,
        files: &[PathBuf],
        encoder: &WindowEncoder,
        options: SpanOptions,
        progress: &mut OnProgress<'_>,
    ) -> Result<Self> {
        let questions = read(files)?;
        let store = WindowStore::build_or_open(folder, &questions, encoder, progress)?;
        Ok(Self::whole(questions, store, options))
    }

    /// Encodes `questions`, of which there is at least one, past the cache.
    ///
    /// # Errors
    /// A question that leaves no room for its context; the operating system's; a signal.
    pub fn new(questions: Vec<Question>, encoder: &WindowEncoder, options: SpanOptions) -> Result<Self> {
        let store = WindowStore::temporary(&questions, encoder, &mut until_signalled);
        let store = store.map_err(|error| match signals::received() {
            Some(signal) => signal.error("stopped before the first window"),
            None => error,
        })?;
        Ok(Self::whole(questions, store, options))
    }

    /// All questions with their windows. Where one may have no answer, each may, as `run_qa.py` has
    /// one setting for all.
    fn whole(mut questions: Vec<Question>, store: WindowStore, options: SpanOptions) -> Self {
        if options.version_2_with_negative || questions.iter().any(|question| question.may_be_unanswerable) {
            questions.iter_mut().for_each(|question| question.may_be_unanswerable = true);
        }
        let windows = (0..store.len()).map(|window| (window, store.question_of(window))).collect();
        Self { questions: questions.into(), store: Arc::new(store), windows, options }
    }

    /// The part of the questions for which `wanted` holds, with all their windows.
    fn part(&self, wanted: impl Fn(usize) -> bool) -> Self {
        let kept = (0..self.questions.len()).filter(|index| wanted(*index)).collect::<Vec<_>>();
        let places = kept.iter().enumerate().map(|(new, old)| (*old, new)).collect::<BTreeMap<_, _>>();
        let windows = self.windows.iter();
        Self {
            questions: kept.iter().map(|index| self.questions[*index].clone()).collect(),
            store: self.store.clone(),
            windows: windows.filter_map(|(window, of)| Some((*window, *places.get(of)?))).collect(),
            options: self.options,
        }
    }

    /// The questions of which `data` has the windows; none for other data, a choice of their
    /// windows included.
    pub fn of(data: &dyn Dataset) -> Option<&Self> {
        (data as &dyn Any).downcast_ref()
    }

    /// The first `count` questions, or all if there are fewer.
    pub fn first(&self, count: usize) -> Self {
        self.part(|index| index < count)
    }

    /// Splits off `share` of the contexts for validation: `(rest, validation)`. Questions about one
    /// context stay together.
    ///
    /// # Errors
    /// Too few contexts for both sides to have one.
    pub fn split(&self, share: f64, seed: u64) -> Result<(Self, Self)> {
        let mut contexts = BTreeMap::new();
        for question in self.questions.iter() {
            let next = contexts.len();
            contexts.entry(question.context.as_ptr()).or_insert(next);
        }
        let chosen = crate::corpus::split_off(contexts.len(), share, seed).ok_or_else(|| {
            Error::data(format!("data.validation = {share}: {} context(s) cannot be split", contexts.len()))
                .help("name validation files instead")
        })?;
        let in_validation = |index: usize| chosen[contexts[&self.questions[index].context.as_ptr()]];
        Ok((self.part(|index| !in_validation(index)), self.part(in_validation)))
    }

    /// The questions, in the order of the files.
    pub fn questions(&self) -> &[Question] {
        &self.questions
    }

    /// The best answer to every question, in order. `logits` has one entry a window, in the order
    /// of the examples.
    pub fn answers(&self, logits: &[SpanLogits]) -> Vec<Prediction> {
        let window = |(window, question): &(usize, usize)| Window { question: *question, ..self.store.window(*window) };
        best_answers(&self.questions, self.windows.iter().map(window), logits, &self.options)
    }

    /// Scores the answers that `logits` give, as the official script does.
    pub fn scores(&self, logits: &[SpanLogits]) -> Scores {
        scores(&self.questions, &self.answers(logits))
    }
}

impl Dataset for SquadData {
    fn len(&self) -> usize {
        self.windows.len()
    }

    fn get(&self, index: usize, _epoch: u64) -> Result<Example> {
        let window = self.store.window(self.windows[index].0);
        Ok(Example {
            input_ids: window.input_ids,
            attention_mask: None,
            token_type_ids: window.token_type_ids,
            position_ids: None,
            label: Label::Span { start: window.start, end: window.end },
        })
    }

    fn len_of(&self, index: usize) -> usize {
        self.store.len_of(self.windows[index].0)
    }

    fn max_len(&self) -> usize {
        (0..self.len()).map(|index| self.len_of(index)).max().unwrap_or(0)
    }
}
