//! `kiln predict`: a trained model on new rows, in their order: labels with probabilities, numbers,
//! answers, tokens for masks, or scores of texts. Rows are read as they are needed, so the input
//! may be larger than memory (SQuAD's JSON is read whole).

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use kiln_core::error::{Error, Result};
use kiln_core::files::ending;
use kiln_core::saved_dataset::is_saved;
use kiln_core::signals;
use kiln_data::collate::collate;
use kiln_data::labels::{check_label_names, label_names};
use kiln_data::padding::Padding;
use kiln_data::squad::{Prediction, Question, SpanLogits, SpanOptions, SquadData, WindowEncoder, read_unanswered};
use kiln_data::table::{Columns, Row, Table};
use kiln_data::tokenizer::{Encoded, RowEncoder, Tokenizer};
use kiln_data::{Dataset, Example, IGNORED, Label};
use kiln_models::ops::threads;
use kiln_models::{Copies, Pass};
use serde_json::{Map, Value, json};

use crate::config::{DataFormat, DataSection, Errors, Task};
use crate::reads::read_values;
use crate::session::inputs::squad::span_options;
use crate::session::inputs::table::{encoder, pad_id};
use crate::session::model_folder::ModelFolder;
use crate::task::{DeviceBatch, model_task, span_logits};

/// The rows and the options of a prediction.
#[derive(Debug, Clone)]
pub struct PredictOptions {
    /// The file with the rows.
    pub input: PathBuf,
    /// How it is written; by its ending when none is given.
    pub format: Option<DataFormat>,
    /// How bytes that are not UTF-8 are treated.
    pub errors: Errors,
    /// The column with the text, or with the question.
    pub text_column: String,
    /// The column with the second text of a pair, or with the context of a question.
    pub text_pair_column: Option<String>,
    /// The columns with the choices of a multiple choice.
    pub choice_columns: Vec<String>,
    /// Columns of the table whose values stand in the predictions, each once.
    pub keep: Vec<String>,
    /// Rows of a forward pass.
    pub batch_size: usize,
    /// Tokens that a row, or a window of a context, is cut to; the model's positions, at most 512
    /// (384), when none.
    pub max_length: Option<usize>,
    /// Tokens that two neighbouring windows of a context share; those of `run_qa.py` when none.
    pub doc_stride: Option<usize>,
    /// How answers are looked for.
    pub spans: SpanOptions,
    /// So many tokens stand for a mask.
    pub top_k: usize,
    /// Rows whose text has no token are left out, and the others keep their index; else such a row
    /// is an error.
    pub skip_empty: bool,
}

/// Tokens for a mask, as in the pipeline `fill-mask` of transformers.
pub const DEFAULT_TOP_K: usize = 5;

/// Tokens of a text whose logits, each as many as the vocabulary has tokens, are there at a time.
const TOKENS_AT_A_TIME: usize = 128;

/// The logits of so many tokens of a row, from one on.
type LogitsOf<'a> = dyn Fn(usize, usize) -> Tensor<2> + 'a;

impl PredictOptions {
    /// The rows of `input`, predicted as a run of `task` on `data` evaluates, in batches of
    /// `batch_size`.
    pub fn of(data: &DataSection, task: Task, input: PathBuf, batch_size: usize) -> Self {
        Self {
            input,
            format: None,
            errors: data.errors,
            text_column: data.text_column.clone().unwrap_or_else(|| task.columns().0.into()),
            text_pair_column: data.text_pair_column.clone(),
            choice_columns: data.choice_columns.clone().unwrap_or_default(),
            keep: Vec::new(),
            batch_size,
            max_length: data.max_length,
            doc_stride: data.doc_stride,
            spans: span_options(data),
            top_k: DEFAULT_TOP_K,
            skip_empty: false,
        }
    }
}

/// Predicts every row with the model of `folder` and hands the predictions to `write` in the order
/// of the rows:
/// - classification: `{"index", "label", "score", "probabilities": {label: probability}}`
/// - regression: `{"index", "value"}`
/// - token classification: `{"index", "labels", "scores"}`, a label and its probability for each
///   word; null for words beyond the maximum length
/// - multi-label classification: `{"index", "labels", "probabilities": {label: probability}}`, the
///   labels with more than 0.5
/// - multiple choice: `{"index", "choice", "score", "probabilities"}`, the number of the best
///   choice, from 0
/// - question answering: `{"id", "answer", "score", "start", "end"}`, the last two in characters of
///   the context, null for no answer
/// - masked language modelling: `{"index", "masks": [[{"score", "token", "token_str"}]]}`, for each
///   mask of the text the most likely tokens, by their ids
/// - causal language modelling: `{"index", "tokens", "loss", "perplexity"}`, the mean of the
///   negative log-likelihoods of the tokens after the first one and how many these are; null for
///   a text of one token
///
/// The columns to [keep](PredictOptions::keep) follow the first of these, each once. Before a name
/// that the prediction has itself, and before `probabilities` and `probabilities.NAME` for every
/// task, `input_` is put until no other column has the name.
///
/// Returns how many there were. On the CPU this thread is one of those that compute from then on
/// ([`threads::compute_here`]).
///
/// # Errors
/// A task without predictions of rows, an input that cannot be read, and what `write` meets.
pub fn predict(
    folder: &ModelFolder,
    task: Task,
    options: &PredictOptions,
    device: &Device,
    write: &mut dyn FnMut(&Value) -> Result<()>,
) -> Result<usize> {
    let format = match (options.format, format_of(&options.input)) {
        (Some(given), _) => given,
        // JSON of other tasks is a list of rows.
        (None, Ok(DataFormat::Squad)) if task != Task::QuestionAnswering => DataFormat::Jsonl,
        (None, told) => told?,
    };
    let positions = folder.config.max_positions();
    let longest = match task {
        Task::QuestionAnswering => WindowEncoder::DEFAULT_MAX_LENGTH,
        Task::Clm | Task::Mlm => positions,
        _ => RowEncoder::DEFAULT_MAX_LENGTH,
    };
    let max_length = options.max_length.unwrap_or(positions.min(longest));
    if max_length == 0 || max_length > positions {
        return Err(Error::config(format!(
            "data.max_length = {max_length}: expected 1 to the model's {positions} positions"
        ))
        .help(format!("set data.max_length to at most {positions}")));
    }
    let mut options = options.clone();
    let mut seen = BTreeSet::new();
    options.keep.retain(|name| seen.insert(name.clone()));
    let predictor = Predictor {
        folder,
        tokenizer: folder.tokenizer()?,
        task,
        format,
        max_length,
        options: &options,
        device,
        copies: Copies::of_frozen(),
    };
    let vocabulary = folder.config.vocab_size();
    if task == Task::Mlm && !(1..=vocabulary).contains(&options.top_k) {
        return Err(Error::config(format!("--top-k: expected 1 to {vocabulary} tokens, got {}", options.top_k)));
    }
    threads::compute_here(device);
    match task {
        Task::QuestionAnswering if options.skip_empty => {
            Err(Error::config("--skip-empty: every question has an answer or none, so no row is left out")
                .help("leave --skip-empty out"))
        }
        Task::QuestionAnswering => predictor.answers(write),
        Task::Clm
        | Task::Mlm
        | Task::SequenceClassification
        | Task::Regression
        | Task::TokenClassification
        | Task::MultiLabelClassification
        | Task::MultipleChoice => predictor.rows(write),
    }
}

/// A prediction with the fields of those that [`predict`] hands on, where it has any; the values
/// mean nothing.
///
/// # Errors
/// A model whose labels have no names that can be told apart.
pub fn fields(folder: &ModelFolder, task: Task, options: &PredictOptions) -> Result<Value> {
    let labels = if task.has_label_names() { label_names(folder.config.labels())? } else { Vec::new() };
    let (logits, name) = (vec![0.0; labels.len()], |class: usize| labels[class].clone());
    let prediction = match task {
        Task::Regression => valued(0, 0.0),
        Task::TokenClassification => tagged(0, 0, std::iter::empty(), &name),
        Task::MultiLabelClassification => several(0, &logits, &name),
        Task::MultipleChoice => chosen(0, &[0.0]),
        Task::QuestionAnswering => answered(&Prediction::default()),
        Task::SequenceClassification => classified(0, &logits, &name),
        Task::Clm => scored(0, &[]),
        Task::Mlm => filled(0, Vec::new()),
    };
    Ok(with(options.keep.iter().map(|name| (name.clone(), Value::Null)).collect(), prediction))
}

/// The format that the ending of a file names, or that of a folder of `datasets`.
pub fn format_of(path: &Path) -> Result<DataFormat> {
    if is_saved(path) {
        return Ok(DataFormat::Arrow);
    }
    match ending(path).as_deref() {
        Some("csv") => Ok(DataFormat::Csv),
        Some("tsv") => Ok(DataFormat::Tsv),
        Some("jsonl" | "ndjson") => Ok(DataFormat::Jsonl),
        Some("parquet") => Ok(DataFormat::Parquet),
        Some("arrow") => Ok(DataFormat::Arrow),
        Some("json") => Ok(DataFormat::Squad),
        _ => Err(Error::config(format!("{}: the ending tells no format", path.display()))
            .help("give --format csv, tsv, jsonl, parquet, arrow, squad or text")),
    }
}

/// The advice about a row without a token.
pub const LEAVE_OUT: &str = "leave out rows without a token";

/// Keeps those of `all` for which `chosen` is true.
fn choose<T>(all: &mut Vec<T>, chosen: &[bool]) {
    let mut chosen = chosen.iter();
    all.retain(|_| chosen.next() == Some(&true));
}

/// The settings that hold for all rows.
struct Predictor<'a> {
    folder: &'a ModelFolder,
    tokenizer: Tokenizer,
    task: Task,
    format: DataFormat,
    max_length: usize,
    options: &'a PredictOptions,
    device: &'a Device,
    /// Where the model's weights are kept as products take them.
    copies: Copies,
}

impl Predictor<'_> {
    /// Labels or numbers for the rows of a table.
    fn rows(&self, write: &mut dyn FnMut(&Value) -> Result<()>) -> Result<usize> {
        let Self { folder, task, options, .. } = *self;
        let columns = Columns {
            text: options.text_column.clone(),
            words: task == Task::TokenClassification,
            json: false,
            beside: options.keep.clone(),
            text_pair: options.text_pair_column.clone(),
            choices: options.choice_columns.clone(),
            label: None,
            class_names: false,
        };
        if task == Task::MultipleChoice && columns.choices.len() < 2 {
            return Err(Error::config("the task multiple-choice needs the columns with the choices")
                .help("give --choice-columns ending0,ending1,ending2,ending3"));
        }
        let encoder = encoder(&self.tokenizer, task, &columns, self.max_length, &folder.config)?;
        let table =
            Table::open(&[options.input.display().to_string()], self.format, columns)?.with_errors(options.errors);
        let names = if task.has_label_names() { label_names(folder.config.labels())? } else { Vec::new() };
        if task == Task::SequenceClassification {
            check_label_names(&names)?;
        }
        let name = |class: usize| names[class].clone();
        let (mut read, mut written) = (0, 0);
        let mut flush = |rows: &mut Vec<Row>, kept: &mut Vec<Kept>| -> Result<()> {
            let mut encoded = encoder.encode(rows)?;
            let has_token = encoded.iter().map(|encoded| !encoded.ids.is_empty()).collect::<Vec<_>>();
            if let Some((row, _)) =
                rows.iter().zip(&has_token).find(|(_, has_token)| !**has_token && !options.skip_empty)
            {
                return Err(Error::data(format!("{}: the text has no token", row.place)).help(LEAVE_OUT));
            }
            let mut indices = (read..).take(rows.len()).collect::<Vec<usize>>();
            read += rows.len();
            choose(&mut indices, &has_token);
            choose(rows, &has_token);
            choose(kept, &has_token);
            choose(&mut encoded, &has_token);
            written += rows.len();
            if rows.is_empty() {
                return Ok(());
            }
            let examples = encoded.iter().map(|row| Example {
                input_ids: row.ids.iter().map(|id| *id as i32).collect(),
                attention_mask: None,
                token_type_ids: encoder.has_types().then(|| row.types.iter().map(|kind| i32::from(*kind)).collect()),
                position_ids: None,
                label: match task {
                    Task::MultipleChoice => Label::Choice { lens: row.lens.clone(), answer: IGNORED },
                    _ => Label::None,
                },
            });
            let batch = self.batch(&examples.collect::<Vec<_>>())?;
            let pass = self.pass();
            if task.is_language_model() {
                let computed = folder.model.rows(&batch.input, pass);
                let hidden = folder.model.hidden(&batch.input, &computed, pass);
                let tokens = hidden.dims()[0] / rows.len();
                for (at, (encoded, kept)) in encoded.iter().zip(kept.drain(..)).enumerate() {
                    // A row of logits is as long as the vocabulary: few are there at a time.
                    let logits = |from: usize, count: usize| {
                        let own = hidden.clone().narrow(0, at * tokens + from, count);
                        folder.model.head(own, &batch.input, &computed, pass)
                    };
                    let prediction = match task {
                        Task::Clm => self.score(indices[at], &encoded.ids, &logits)?,
                        _ => self.fill(indices[at], &rows[at], encoded, &logits)?,
                    };
                    write(&with(kept, prediction))?;
                }
                rows.clear();
                return Ok(());
            }
            let logits = folder.model.logits(&batch.input, pass);
            let width = logits.dims()[1];
            let values = read_values(logits)?;
            let of_row = values.len() / rows.len();
            for ((((values, row), encoded), index), kept) in
                values.chunks(of_row).zip(rows.iter()).zip(&encoded).zip(indices).zip(kept.drain(..))
            {
                finite(values, &format_args!("row {index}"))?;
                let prediction = match task {
                    Task::Regression => valued(index, values[0]),
                    Task::TokenClassification => {
                        let tokens = values.chunks(width).zip(&encoded.words);
                        tagged(index, row.parts.len(), tokens, &name)
                    }
                    Task::MultiLabelClassification => several(index, values, &name),
                    Task::MultipleChoice => chosen(index, values),
                    _ => classified(index, values, &name),
                };
                write(&with(kept, prediction))?;
            }
            rows.clear();
            Ok(())
        };
        let (mut pending, mut kept) = (Vec::new(), Vec::new());
        for row in table.rows() {
            if let Some(signal) = signals::received() {
                return Err(signal.error("stopped while predicting"));
            }
            let mut row = row?;
            kept.push(options.kept(&mut row)?);
            pending.push(row);
            if pending.len() == options.batch_size {
                flush(&mut pending, &mut kept)?;
            }
        }
        if !pending.is_empty() {
            flush(&mut pending, &mut kept)?;
        }
        match read - written {
            0 => {}
            1 => tracing::warn!("1 row has no token and is left out"),
            empty => tracing::warn!("{empty} rows have no token and are left out"),
        }
        Ok(written)
    }

    /// The score of a text of the tokens `ids` by the logits of each.
    fn score(&self, index: usize, ids: &[u32], logits: &LogitsOf<'_>) -> Result<Value> {
        let targets = ids[1..].iter().map(|id| *id as i32).collect::<Vec<_>>();
        let mut likelihoods = Vec::with_capacity(targets.len());
        for targets in targets.chunks(TOKENS_AT_A_TIME) {
            let logits = logits(likelihoods.len(), targets.len());
            let targets = TensorData::new(targets.to_vec(), [targets.len(), 1]);
            let targets = Tensor::<2, Int>::from_data(targets, self.device);
            likelihoods.extend(read_values(log_softmax(logits, 1).gather(1, targets))?);
        }
        finite(&likelihoods, &format_args!("row {index}"))?;
        Ok(scored(index, &likelihoods))
    }

    /// The most likely tokens for each mask of `row`, whose tokens are `encoded`, by the logits of
    /// each token.
    fn fill(&self, index: usize, row: &Row, encoded: &Encoded, logits: &LogitsOf<'_>) -> Result<Value> {
        let Some(mask) = self.tokenizer.mask_id() else {
            return Err(Error::config("the tokenizer has no token for a mask"));
        };
        let (place, written) = (&row.place, self.tokenizer.token(mask).unwrap_or_default());
        let masks = encoded.ids.iter().filter(|id| **id == mask).count();
        if encoded.is_cut && masks < row.text.matches(&*written).count() {
            return Err(Error::data(format!(
                "{place}: the text is cut to {} tokens, and a {written} of it is cut off",
                encoded.ids.len()
            ))
            .help("shorten the text"));
        }
        let masks = encoded.ids.iter().enumerate().filter(|(_, id)| **id == mask).map(|(at, _)| at);
        let fill = |at: usize| {
            let logits = read_values(logits(at, 1))?;
            finite(&logits, &format_args!("row {index}"))?;
            let (_, probabilities) = softmax(&logits);
            let mut order = (0..probabilities.len()).collect::<Vec<_>>();
            order.sort_by(|a, b| probabilities[*b].total_cmp(&probabilities[*a]));
            let tokens = order.into_iter().take(self.options.top_k).map(|token| {
                let text = self.tokenizer.decode_with_special(&[token as u32])?;
                Ok(json!({ "score": probabilities[token], "token": token, "token_str": text }))
            });
            tokens.collect::<Result<Value>>()
        };
        let masks = masks.map(fill).collect::<Result<Vec<_>>>()?;
        if masks.is_empty() {
            return Err(Error::data(format!("{place}: the text has no {written}")).help(format!(
                "write {written} where a token is to be found; a text may have several; leave a row without one out"
            )));
        }
        Ok(filled(index, masks))
    }

    fn pass(&self) -> Pass<'_> {
        self.folder.model.pass(false).with_copies(&self.copies)
    }

    /// A batch of examples on the device.
    fn batch(&self, examples: &[Example]) -> Result<DeviceBatch> {
        let Self { folder, task, device, .. } = *self;
        let vocabulary = folder.config.vocab_size();
        if let Some(&id) = examples.iter().flat_map(|example| &example.input_ids).find(|id| **id as usize >= vocabulary)
        {
            return Err(Error::data(format!(
                "the token {:?} has the id {id}, but the model's vocabulary has {vocabulary} tokens",
                self.tokenizer.token(id as u32).unwrap_or_default()
            ))
            .help("the tokenizer does not belong to this model"));
        }
        let pad_id = pad_id(&folder.config, &self.tokenizer);
        let batch = collate(examples, pad_id.unwrap_or(0), &Padding::default(), examples.len())?;
        DeviceBatch::new(&*model_task(task), &batch, device)
    }

    /// Answers to the questions of a file.
    fn answers(&self, write: &mut dyn FnMut(&Value) -> Result<()>) -> Result<usize> {
        let Self { folder, max_length, options, .. } = *self;
        let (questions, kept) = match self.format {
            DataFormat::Squad if !options.keep.is_empty() => {
                return Err(Error::config("data.keep: SQuAD's JSON has no columns").help("give a table of questions"));
            }
            DataFormat::Squad => (read_unanswered(std::slice::from_ref(&options.input))?, Vec::new()),
            format => table_questions(format, options)?,
        };
        let encoder = self.tokenizer.window_encoder(
            max_length,
            options.doc_stride.unwrap_or(WindowEncoder::default_stride(max_length)),
            folder.config.type_vocab_size().is_some_and(|types| types > 1),
        )?;
        let data = SquadData::new(questions, &encoder, options.spans)?;
        let mut logits = Vec::new();
        for first in (0..data.len()).step_by(options.batch_size) {
            if let Some(signal) = signals::received() {
                return Err(signal.error("stopped while predicting"));
            }
            let examples = (first..data.len().min(first + options.batch_size)).map(|index| {
                let example = data.get(index, 0)?;
                Ok(Example { label: Label::None, ..example })
            });
            let examples = examples.collect::<Result<Vec<_>>>()?;
            let both = folder.model.logits(&self.batch(&examples)?.input, self.pass());
            let column = |column| read_values(span_logits(both.clone(), examples.len(), column));
            let (start, end) = (column(0)?, column(1)?);
            finite(&start, &format_args!("a window from number {first} on"))
                .and_then(|()| finite(&end, &format_args!("a window from number {first} on")))?;
            let tokens = start.len() / examples.len();
            let each = start.chunks(tokens).zip(end.chunks(tokens));
            logits.extend(each.map(|(start, end)| SpanLogits { start: start.to_vec(), end: end.to_vec() }));
        }
        let answers = data.answers(&logits);
        let kept = kept.into_iter().chain(std::iter::repeat_with(Kept::new));
        for (answer, kept) in answers.iter().zip(kept) {
            write(&with(kept, answered(answer)))?;
        }
        Ok(answers.len())
    }
}

/// A prediction from logits that are no numbers would only look like one.
fn finite(logits: &[f32], place: &dyn Display) -> Result<()> {
    match logits.iter().find(|logit| !logit.is_finite()) {
        Some(logit) => Err(Error::non_finite(format!("{place}: the model gives {logit}; expected finite numbers"))
            .help("the model's weights are damaged, or its training diverged")),
        None => Ok(()),
    }
}

/// The most likely label and the probabilities of all: the softmax of the logits, in f64.
fn classified(index: usize, logits: &[f32], name: &dyn Fn(usize) -> String) -> Value {
    let (best, all) = softmax(logits);
    let probabilities = all.iter().enumerate().map(|(class, probability)| (name(class), json!(probability)));
    let probabilities = probabilities.collect::<Map<_, _>>();
    json!({ "index": index, "label": name(best), "score": all[best], "probabilities": probabilities })
}

/// The number that a regression gives.
fn valued(index: usize, value: f32) -> Value {
    json!({ "index": index, "value": value })
}

/// The most likely choice and the probabilities of all.
fn chosen(index: usize, logits: &[f32]) -> Value {
    let (best, probabilities) = softmax(logits);
    json!({ "index": index, "choice": best, "score": probabilities[best], "probabilities": probabilities })
}

/// The score of a text by the log-likelihoods of its tokens.
fn scored(index: usize, likelihoods: &[f32]) -> Value {
    let count = likelihoods.len();
    let loss = (count > 0).then(|| -likelihoods.iter().copied().map(f64::from).sum::<f64>() / count as f64);
    json!({ "index": index, "tokens": count, "loss": loss, "perplexity": loss.map(f64::exp) })
}

/// The tokens for the masks of a text.
fn filled(index: usize, masks: Vec<Value>) -> Value {
    json!({ "index": index, "masks": masks })
}

/// The answer to a question.
fn answered(answer: &Prediction) -> Value {
    let (start, end) = (answer.span.map(|span| span.0), answer.span.map(|span| span.1));
    json!({ "id": answer.id, "answer": answer.text, "score": answer.probability, "start": start, "end": end })
}

/// The class with the largest of `logits`, and the probabilities of all, in f64.
fn softmax(logits: &[f32]) -> (usize, Vec<f64>) {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights = logits.iter().map(|logit| f64::from(logit - top).exp()).collect::<Vec<_>>();
    let total = weights.iter().sum::<f64>();
    let best = logits.iter().position(|logit| *logit == top).unwrap_or(0);
    (best, weights.into_iter().map(|weight| weight / total).collect())
}

/// The most likely label of each of `words` words, which its first token has.
fn tagged<'a>(
    index: usize,
    words: usize,
    tokens: impl Iterator<Item = (&'a [f32], &'a Option<u32>)>,
    name: &dyn Fn(usize) -> String,
) -> Value {
    let (mut labels, mut scores) = (vec![Value::Null; words], vec![Value::Null; words]);
    for (logits, word) in tokens {
        let Some(word) = word.map(|word| word as usize).filter(|word| labels[*word].is_null()) else { continue };
        let (best, probabilities) = softmax(logits);
        (labels[word], scores[word]) = (name(best).into(), probabilities[best].into());
    }
    json!({ "index": index, "labels": labels, "scores": scores })
}

/// The labels that apply, and the probabilities of all: the logistic function of the logits, in
/// f64.
fn several(index: usize, logits: &[f32], name: &dyn Fn(usize) -> String) -> Value {
    let probabilities = logits.iter().map(|logit| 1.0 / (1.0 + f64::from(-logit).exp())).collect::<Vec<_>>();
    // The probability is above one half, as an evaluation asks it.
    let labels = logits.iter().enumerate().filter(|(_, logit)| **logit > 0.0);
    let labels = labels.map(|(label, _)| name(label)).collect::<Vec<_>>();
    let named = probabilities.iter().enumerate().map(|(label, probability)| (name(label), json!(probability)));
    json!({ "index": index, "labels": labels, "probabilities": named.collect::<Map<_, _>>() })
}

/// The values of a row that are kept, by the names of their columns.
type Kept = Map<String, Value>;

impl PredictOptions {
    /// The values of `row` that are kept; the part that holds them is taken from it.
    fn kept(&self, row: &mut Row) -> Result<Kept> {
        if self.keep.is_empty() {
            return Ok(Kept::new());
        }
        let rest = row.parts.pop().unwrap_or_default();
        let mut rest: Kept =
            serde_json::from_str(&rest).map_err(|error| Error::data(format!("{}: {error}", row.place)))?;
        let of_texts = |name: &String| {
            let choice = self.choice_columns.iter().position(|choice| choice == name);
            if *name == self.text_column {
                // Of a list of words the text is empty.
                Some(if row.text.is_empty() && !row.parts.is_empty() && self.choice_columns.is_empty() {
                    json!(row.parts)
                } else {
                    json!(row.text)
                })
            } else if self.text_pair_column.as_ref() == Some(name) {
                Some(json!(row.text_pair))
            } else {
                choice.map(|choice| json!(row.parts[choice]))
            }
        };
        let mut kept = Kept::new();
        for name in &self.keep {
            let Some(value) = of_texts(name).or_else(|| rest.get_mut(name).map(Value::take)) else {
                let there = rest.keys().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
                let error = Error::data(format!("data.keep: {}: there is no column {name:?}", row.place));
                return Err(match there.is_empty() {
                    true => error.help("the row has no column beside the texts"),
                    false => error.help(format!("beside the texts there are {there}")),
                });
            };
            kept.insert(name.clone(), value);
        }
        Ok(kept)
    }
}

/// `prediction` with the values `kept` behind its first one, `input_` before names that it has.
/// `probabilities`, and the columns that a table makes of it, are the prediction's for every task.
fn with(kept: Kept, prediction: Value) -> Value {
    let Value::Object(prediction) = prediction else { return prediction };
    let is_predicted = |name: &str| prediction.contains_key(name) || name.split('.').next() == Some("probabilities");
    let free = |name: &String| {
        let mut free = name.clone();
        while is_predicted(&free) || (free != *name && kept.contains_key(&free)) {
            free.insert_str(0, "input_");
        }
        free
    };
    let names = kept.keys().map(free).collect::<Vec<_>>();
    let mut fields = prediction.into_iter();
    let mut all = fields.by_ref().take(1).collect::<Kept>();
    all.extend(names.into_iter().zip(kept.into_values()));
    all.extend(fields);
    Value::Object(all)
}

/// Questions and contexts from two columns of a table, with what is kept of each row; the id is the
/// number of the row.
fn table_questions(format: DataFormat, options: &PredictOptions) -> Result<(Vec<Question>, Vec<Kept>)> {
    let Some(context) = &options.text_pair_column else {
        return Err(Error::config("question answering needs the column with the context")
            .help("give --text-column question --text-pair-column context, or SQuAD's JSON"));
    };
    let columns = Columns {
        text: options.text_column.clone(),
        text_pair: Some(context.clone()),
        beside: options.keep.clone(),
        ..Columns::default()
    };
    let table = Table::open(&[options.input.display().to_string()], format, columns)?.with_errors(options.errors);
    let question = |(index, row): (usize, Result<Row>)| {
        let mut row = row?;
        let kept = options.kept(&mut row)?;
        let question = Question {
            id: index.to_string(),
            text: row.text,
            context: row.text_pair.unwrap_or_default().into(),
            answers: Vec::new(),
            may_be_unanswerable: false,
        };
        Ok((question, kept))
    };
    table.rows().enumerate().map(question).collect()
}
