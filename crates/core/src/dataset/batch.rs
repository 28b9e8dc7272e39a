//! Examples of tokens with their labels, and batches of them.

/// Labels with this value are ignored (PyTorch's `ignore_index`).
pub const IGNORED: i32 = -100;

/// One micro-batch on the host, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct PaddedBatch {
    /// Number of sequences.
    pub rows: usize,
    /// How many of them are examples. Rows that only fill the batch up follow; nothing of them is
    /// attended or counted.
    pub examples: usize,
    /// Tokens of each sequence, padding included.
    pub seq_len: usize,
    /// `[rows * seq_len]`
    pub input_ids: Vec<i32>,
    /// `[rows * seq_len]`, true = attend; none when nothing is padded.
    pub attention_mask: Option<Vec<bool>>,
    /// `[rows * seq_len]`
    pub token_type_ids: Option<Vec<i32>>,
    /// `[rows * seq_len]`, where a row has several documents: each begins at position 0, and
    /// attends to itself alone. None means that a row is one document.
    pub position_ids: Option<Vec<i32>>,
    /// The targets of the loss.
    pub labels: BatchLabels,
    /// Attended tokens.
    pub num_tokens: usize,
}

/// The labels of a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum BatchLabels {
    /// No labels.
    None,
    /// One a token, `[rows * seq_len]`; -100 is ignored.
    Tokens(Vec<i32>),
    /// One class a sequence, `[rows]`; -100 is ignored.
    Classes(Vec<i32>),
    /// One number a sequence, `[rows]`; 0 in rows that are no examples.
    Values(Vec<f32>),
    /// For every label of a sequence 1 where it applies and 0 where it does not, `[rows * labels]`;
    /// 0 in rows that are no examples.
    Multi(Vec<f32>),
    /// The right one of several sequences, which stand as rows one after the other.
    Choices {
        /// How many choices an example has.
        choices: usize,
        /// `[rows / choices]`; -100 is ignored.
        answers: Vec<i32>,
    },
    /// First and last token of the answer, `[rows]` each; 0 in rows that are no examples.
    Spans {
        /// First token.
        start: Vec<i32>,
        /// Last token.
        end: Vec<i32>,
    },
}

/// One example, unpadded.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// Token ids.
    pub input_ids: Vec<i32>,
    /// True = attend; none means all.
    pub attention_mask: Option<Vec<bool>>,
    /// Token types, where the data has them.
    pub token_type_ids: Option<Vec<i32>>,
    /// Positions, where the example is several documents: each begins at position 0. None means one
    /// document.
    pub position_ids: Option<Vec<i32>>,
    /// The label that is to be predicted.
    pub label: Label,
}

impl Example {
    /// Tokens of its longest sequence: of the longest choice, where it has several.
    pub fn longest(&self) -> usize {
        match &self.label {
            Label::Choice { lens, .. } => lens.iter().copied().max().unwrap_or(0),
            _ => self.input_ids.len(),
        }
    }

    /// Its sequences, unlabelled: the choices of a multiple choice, else itself.
    pub fn sequences(&self) -> Vec<Self> {
        let Label::Choice { lens, .. } = &self.label else { return vec![self.clone()] };
        let mut begin = 0;
        let sequence = |len: &usize| {
            let range = begin..begin + len;
            begin = range.end;
            Self {
                input_ids: self.input_ids[range.clone()].to_vec(),
                attention_mask: self.attention_mask.as_ref().map(|mask| mask[range.clone()].to_vec()),
                token_type_ids: self.token_type_ids.as_ref().map(|types| types[range].to_vec()),
                position_ids: None,
                label: Label::None,
            }
        };
        lens.iter().map(sequence).collect()
    }
}

/// The label of an example.
#[derive(Debug, Clone, PartialEq)]
pub enum Label {
    /// No label.
    None,
    /// One a token, as long as the example; -100 is ignored.
    Tokens(Vec<i32>),
    /// One class.
    Class(i32),
    /// One number.
    Value(f32),
    /// For every label, 1 where it applies and 0 where it does not.
    Multi(Vec<f32>),
    /// The right one of several sequences, which stand in the example one after the other.
    Choice {
        /// Tokens of each sequence.
        lens: Vec<usize>,
        /// The number of the right one, from 0; -100 where it is not known.
        answer: i32,
    },
    /// First and last token of the answer.
    Span {
        /// First token.
        start: i32,
        /// Last token.
        end: i32,
    },
}

impl PaddedBatch {
    /// How many labels are valid. For a causal model these are more than the terms of the loss: the
    /// first token of a row has a label, but nothing before it predicts it.
    pub fn num_labels(&self) -> usize {
        match &self.labels {
            BatchLabels::None => 0,
            BatchLabels::Tokens(labels)
            | BatchLabels::Classes(labels)
            | BatchLabels::Choices { answers: labels, .. } => valid_labels(labels),
            BatchLabels::Multi(values) => values.len() / self.rows.max(1) * self.examples,
            BatchLabels::Values(_) | BatchLabels::Spans { .. } => self.examples,
        }
    }

    /// Sequences of an example: the choices of a multiple choice, else 1.
    pub fn sequences(&self) -> usize {
        if let BatchLabels::Choices { choices, .. } = &self.labels { *choices } else { 1 }
    }
}

/// How many of `labels` are not ignored.
pub fn valid_labels(labels: &[i32]) -> usize {
    labels.iter().filter(|&&label| label != IGNORED).count()
}

/// Labels moved one position to the left within each row; the last position predicts nothing.
pub fn shifted(labels: &[i32], seq_len: usize) -> Vec<i32> {
    let rows = labels.chunks(seq_len);
    rows.flat_map(|row| row[1..].iter().copied().chain([IGNORED])).collect()
}
