//! Extractive question answering on SQuAD's JSON (Rajpurkar et al. 2016, 2018), versions 1.1 and 2.0: reading it, cutting
//! long contexts into overlapping windows, finding the best span among the windows' logits, and scoring it as the official
//! script does. What is trained is an ordinary example with a start and an end; see [`SquadData`].

mod read;
mod score;
mod spans;
mod windows;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

pub use read::{Answer, Question, read, read_unanswered};
pub use score::{Scores, exact_match, f1, scores};
pub use spans::{Prediction, SpanLogits, SpanOptions, best_answers};
pub use windows::{Window, WindowEncoder};

use crate::data::{Dataset, Example, Label};
use crate::error::{Error, Result};
use crate::signals;

/// Questions and the windows they were cut into. A window is an example.
#[derive(Debug, Clone)]
pub struct SquadData {
    questions: Arc<[Question]>,
    windows: Arc<[Window]>,
    options: SpanOptions,
}

impl SquadData {
    /// Reads `files` and encodes every question with its context.
    ///
    /// # Errors
    /// As [`read`]; a question that leaves no room for its context.
    pub fn open(files: &[PathBuf], encoder: &WindowEncoder, options: SpanOptions) -> Result<Self> {
        Self::new(read(files)?, encoder, options)
    }

    /// Encodes `questions`, of which there is at least one.
    ///
    /// # Errors
    /// A question that leaves no room for its context.
    pub fn new(questions: Vec<Question>, encoder: &WindowEncoder, options: SpanOptions) -> Result<Self> {
        let mut windows = Vec::new();
        for (index, question) in questions.iter().enumerate() {
            if let Some(signal) = signals::received() {
                return Err(signal.error("stopped before the first step"));
            }
            windows.extend(encoder.windows(index, question)?);
        }
        Ok(Self { questions: questions.into(), windows: windows.into(), options })
    }

    /// The part of the questions for which `wanted` holds, with all their windows.
    fn part(&self, wanted: impl Fn(usize) -> bool) -> Self {
        let kept = (0..self.questions.len()).filter(|index| wanted(*index)).collect::<Vec<_>>();
        let places = kept.iter().enumerate().map(|(new, old)| (*old, new)).collect::<BTreeMap<_, _>>();
        let windows = self.windows.iter().filter_map(|window| {
            places.get(&window.question).map(|place| Window { question: *place, ..window.clone() })
        });
        Self {
            questions: kept.iter().map(|index| self.questions[*index].clone()).collect(),
            windows: windows.collect(),
            options: self.options,
        }
    }

    /// The first `count` questions, or all if there are fewer.
    pub fn first(&self, count: usize) -> Self {
        self.part(|index| index < count)
    }

    /// Splits off `share` of the contexts for validation: `(rest, validation)`. Questions about one context stay together.
    ///
    /// # Errors
    /// Too few contexts for both sides to have one.
    pub fn split(&self, share: f64, seed: u64) -> Result<(Self, Self)> {
        let mut contexts = BTreeMap::new();
        for question in self.questions.iter() {
            let next = contexts.len();
            contexts.entry(question.context.as_ptr()).or_insert(next);
        }
        let chosen = crate::data::corpus::split_off(contexts.len(), share, seed).ok_or_else(|| {
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

    /// The best answer to every question, in order. `logits` has one entry a window, in the order of the examples.
    pub fn answers(&self, logits: &[SpanLogits]) -> Vec<Prediction> {
        best_answers(&self.questions, &self.windows, logits, &self.options)
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
        let window = &self.windows[index];
        Ok(Example {
            input_ids: window.input_ids.clone(),
            attention_mask: None,
            token_type_ids: window.token_type_ids.clone(),
            label: Label::Span { start: window.start, end: window.end },
        })
    }

    fn len_of(&self, index: usize) -> usize {
        self.windows[index].input_ids.len()
    }

    fn max_len(&self) -> usize {
        self.windows.iter().map(|window| window.input_ids.len()).max().unwrap_or(0)
    }

    fn squad(&self) -> Option<&SquadData> {
        Some(self)
    }
}
