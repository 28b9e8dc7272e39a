//! `kiln predict`: a trained model on the rows of a file, on texts, or on standard input; what it
//! takes from the run of the model, and the forms of its predictions.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use clap::Args;
use kiln::config::{CompilerMode, DataFormat, Errors, Precision, RunConfig, Task};
use kiln::inference::predict::{DEFAULT_TOP_K, LEAVE_OUT, PredictOptions, fields, format_of, predict};
use kiln::session::adapter::task_of_architecture;
use kiln::session::model_folder::{ModelFolder, described, run_of};
use kiln_core::error::{Error, Result, printable};
use kiln_core::files::ending;
use kiln_core::process::{Scratch, scratch};
use kiln_core::signals;
use kiln_core::whole_file::WholeFile;
use kiln_core::words::thousands;
use kiln_data::text_lines::TextLines;
use serde_json::{Value, json};

use super::models::{DeviceArgs, device};
use super::say;
use super::terminal::{Spinner, fitted, is_seen, width};

#[derive(Debug, Args)]
pub(super) struct PredictArgs {
    /// A model folder in Hugging Face's form, a run folder, or a Hub id
    model: String,
    /// The rows: .csv, .tsv, .jsonl, .json, .parquet, SQuAD's .json, or a folder that save_to_disk
    /// of `datasets` wrote; - is standard input, which is read to its end first. Blank lines are
    /// left out
    #[arg(long, required_unless_present = "text")]
    input: Option<PathBuf>,
    /// A text, or a question, in place of a file; given again, another one. Words are separated by
    /// spaces
    #[arg(long, conflicts_with = "input", allow_hyphen_values = true)]
    text: Vec<String>,
    /// The second text of each --text, or the context of each question
    #[arg(long, requires = "text", allow_hyphen_values = true)]
    text_pair: Vec<String>,
    /// Columns whose values stand in the predictions, separated by commas; `input_` is put before a
    /// name that a prediction has itself
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',', conflicts_with = "text")]
    keep: Vec<String>,
    /// The task, such as token-classification; what the model was trained for when it is left out.
    /// clm scores each text, mlm fills each mask in it
    #[arg(long)]
    task: Option<String>,
    /// The file to write: CSV where its name ends in .csv, else lines of JSON; stdout when it is
    /// left out or -
    #[arg(long)]
    out: Option<PathBuf>,
    /// csv, tsv, jsonl, parquet, arrow or squad, when the ending of the file does not tell, or
    /// text: each line is a text, and blank lines are left out
    #[arg(long)]
    format: Option<String>,
    /// The column with the text, or with the question; that of the run (as all settings below),
    /// else `text`, when it is left out
    #[arg(long)]
    text_column: Option<String>,
    /// The column with the second text of a pair, or with the context of a question; that of the
    /// run when neither is given
    #[arg(long)]
    text_pair_column: Option<String>,
    /// The columns with the choices of a multiple choice, separated by commas; those of the run
    /// when they are left out
    #[arg(long, value_delimiter = ',')]
    choice_columns: Vec<String>,
    /// Whether "no answer" may be the answer to a question, as in SQuAD 2.0; where the file or the
    /// run says so when it is left out
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    version_2_with_negative: Option<bool>,
    /// Rows of a forward pass; `per_device_eval_batch_size` of the run, else 8, when it is left out
    #[arg(long)]
    batch_size: Option<usize>,
    /// Tokens that a row, or a window of a context, is cut to
    #[arg(long)]
    max_length: Option<usize>,
    /// Tokens that two neighbouring windows of a context share
    #[arg(long)]
    doc_stride: Option<usize>,
    /// So many best starts are paired with so many best ends when an answer is looked for
    #[arg(long)]
    n_best_size: Option<usize>,
    /// The longest answer in tokens
    #[arg(long)]
    max_answer_length: Option<usize>,
    /// No answer is given when its score is more than this above the best answer's
    #[arg(long, allow_negative_numbers = true)]
    null_score_diff_threshold: Option<f64>,
    /// Tokens for a mask
    #[arg(long, value_name = "N", default_value_t = DEFAULT_TOP_K)]
    top_k: usize,
    /// Leave out rows whose text has no token, in place of an error; the others keep their index.
    /// An empty text has one where the tokenizer adds special tokens, and is predicted
    #[arg(long)]
    skip_empty: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

/// The settings of a config that `kiln predict` takes as arguments.
const PREDICT_NAMES: [(&str, &str); 12] = [
    (LEAVE_OUT, "give --skip-empty to leave out rows without a token"),
    ("data.text_column, data.text_pair_column and data.label_column", "--text-column and --text-pair-column"),
    ("data.text_column", "--text-column"),
    ("data.text_pair_column", "--text-pair-column"),
    ("data.choice_columns", "--choice-columns"),
    ("data.max_length", "--max-length"),
    ("data.doc_stride", "--doc-stride"),
    ("data.format = ", "--format "),
    ("data.format", "--format"),
    ("data.keep", "--keep"),
    (", or the folder in data.dataset_name", ""),
    ("set --", "give --"),
];

pub(super) fn run_predict(args: &PredictArgs) -> Result<()> {
    predict_with(args).map_err(|error| error.in_terms_of(&PREDICT_NAMES))
}

fn predict_with(args: &PredictArgs) -> Result<()> {
    signals::install()?;
    args.out.as_deref().map_or(Ok(()), check_ending)?;
    let task = args.task.as_deref().map_or_else(|| trained_task(&args.model), Task::from_name)?;
    // Nothing is taken of a run of another task.
    let run = run_of(&args.model)?.filter(|(_, config)| config.data.task == task);
    let config = run.as_ref().map(|(_, config)| config);
    let is_paired = config.is_some_and(|config| config.data.text_pair_column.is_some());
    let errors = config.map_or(Errors::Strict, |config| config.data.errors);
    let input = Input::of(args, task, is_paired, errors)?;
    let file = input.path.display().to_string();
    let in_terms = |error: Error| match input.name {
        Some(name) => error.in_terms_of(&[(&file, name)]),
        None => error,
    };
    let (options, precision, taken) = args.options(task, config, &input).map_err(in_terms)?;
    if let Some((plan, _)) = &run {
        let taken = if taken.is_empty() { "nothing, since arguments say all".to_owned() } else { taken.join(", ") };
        tracing::info!("from {}: {taken}", plan.display());
    }
    let (device, compute) = device(&args.device, CompilerMode::Auto, precision)?;
    let folder = ModelFolder::open_frozen(&args.model, task, &device, compute)?;
    let Some(out) = args.out.as_ref().filter(|out| out.as_os_str() != "-") else {
        let mut table = is_seen(&std::io::stdout()).then(Aligned::default);
        let mut show = |prediction: &Value| match &mut table {
            Some(table) => table.add(prediction).iter().try_for_each(say),
            None => say(prediction),
        };
        let predicted = predict(&folder, task, &options, &device, &mut show).map_err(in_terms);
        // Also those before an error.
        table.iter_mut().flat_map(Aligned::rest).try_for_each(say)?;
        return predicted.map(drop);
    };
    folder.notes.iter().try_for_each(say)?;
    let count = predict_to_file(&folder, task, &options, &device, out).map_err(in_terms)?;
    say(format!("wrote {count} predictions to {}", out.display()))
}

/// The rows of a prediction: a file, which may be a temporary one.
struct Input {
    path: PathBuf,
    /// The format of a temporary file that has been written here.
    format: Option<DataFormat>,
    /// The columns in it.
    columns: Option<(String, Option<String>)>,
    /// The name of a temporary file for people.
    name: Option<&'static str>,
    _folder: Option<Scratch>,
}

impl Input {
    /// The rows that `args` name for `task`; `is_paired` where the run's texts are pairs. Bytes of
    /// lines of text that are not UTF-8 are treated as `errors` says.
    fn of(args: &PredictArgs, task: Task, is_paired: bool, errors: Errors) -> Result<Self> {
        let is_text = args.format.as_deref() == Some("text");
        let path = match &args.input {
            Some(path) if path.as_os_str() != "-" && !is_text => {
                return Ok(Self { path: path.clone(), format: None, columns: None, name: None, _folder: None });
            }
            path => path.as_deref(),
        };
        let folder = scratch()?;
        let is_stdin = path.is_some_and(|path| path.as_os_str() == "-");
        let name = match path {
            None => "--text",
            Some(_) if is_stdin => "standard input",
            Some(_) => "--input",
        };
        let file = folder.path().join("rows");
        if is_stdin {
            let io = |error: &std::io::Error| Error::io("read standard input", error);
            let mut to = File::create(&file).map_err(|error| io(&error))?;
            let read = signals::leaving(move || std::io::copy(&mut std::io::stdin().lock(), &mut to));
            read.map_err(|signal| signal.error("stopped while standard input was read"))?
                .map_err(|error| io(&error))?;
            if !is_text {
                return Ok(Self { path: file, format: None, columns: None, name: Some(name), _folder: Some(folder) });
            }
        }
        let lines = match path {
            None => args.text.clone(),
            Some(path) => {
                let path = if is_stdin { &file } else { path };
                let texts = TextLines::open(path)
                    .and_then(|lines| lines.with_errors(errors).map(|line| Ok(line?.text)).collect::<Result<_>>());
                // The file of standard input is a temporary one.
                let shown = file.display().to_string();
                texts.map_err(|error| error.in_terms_of(&[(&shown, name)]))?
            }
        };
        let pairs = &args.text_pair;
        if task == Task::MultipleChoice {
            return Err(Error::config(format!("{name}: a multiple choice has a text and its choices"))
                .help("give a table by --input"));
        }
        let needs_pair = is_paired || task == Task::QuestionAnswering;
        if pairs.len() != lines.len() && (needs_pair || !pairs.is_empty()) {
            let (texts, pairs) = (lines.len(), pairs.len());
            return Err(Error::config(format!(
                "{name}: expected a second text for each of {texts} texts, got {pairs}"
            ))
            .help("give --text-pair for each --text, in their order, or a table by --input"));
        }
        let rows = lines.iter().enumerate().map(|(index, text)| {
            let text = match task {
                Task::TokenClassification => json!(text.split_whitespace().collect::<Vec<_>>()),
                _ => json!(text),
            };
            json!({ "text": text, "text_pair": pairs.get(index) }).to_string() + "\n"
        });
        let path = folder.path().join("rows.jsonl");
        std::fs::write(&path, rows.collect::<String>())
            .map_err(|error| Error::io(format!("write {}", path.display()), &error))?;
        let columns = Some(("text".into(), (!pairs.is_empty()).then(|| "text_pair".into())));
        Ok(Self { path, format: Some(DataFormat::Jsonl), columns, name: Some(name), _folder: Some(folder) })
    }
}

impl PredictArgs {
    /// Whether the columns of the texts are named; those of the run would be another table's.
    fn names_columns(&self) -> bool {
        self.text_column.is_some() || self.text_pair_column.is_some()
    }

    /// The settings and the precision: those of the command line, else those of the run `config`,
    /// which are listed as `name = value`, else the defaults.
    fn options(
        &self,
        task: Task,
        config: Option<&RunConfig>,
        input: &Input,
    ) -> Result<(PredictOptions, Precision, Vec<String>)> {
        let (of_run, mut taken) = (config.map(|config| &config.data), Vec::new());
        let mut data = of_run.cloned().unwrap_or_default();
        if let Some((text, pair)) = &input.columns {
            (data.text_column, data.text_pair_column) = (Some(text.clone()), pair.clone());
        } else if self.names_columns() {
            (data.text_column, data.text_pair_column) = (self.text_column.clone(), self.text_pair_column.clone());
        } else {
            taken.extend(data.text_column.as_ref().map(|name| format!("text_column = {name:?}")));
            taken.extend(data.text_pair_column.as_ref().map(|name| format!("text_pair_column = {name:?}")));
        }
        let choices = Some(self.choice_columns.clone()).filter(|choices| !choices.is_empty());
        let quoted = |choices: &Vec<String>| format!("choice_columns = {choices:?}");
        data.choice_columns = given_or(choices, data.choice_columns, quoted, &mut taken);
        // A stride belongs to its length.
        let stride = data.doc_stride.filter(|_| self.max_length.is_none());
        let mut number = |given: Option<usize>, of_run: Option<usize>, name: &str| {
            given_or(given, of_run, |value| format!("{name} = {value}"), &mut taken)
        };
        data.max_length = number(self.max_length, data.max_length, "max_length");
        data.doc_stride = number(self.doc_stride, stride, "doc_stride");
        data.n_best_size = number(self.n_best_size, data.n_best_size, "n_best_size");
        data.max_answer_length = number(self.max_answer_length, data.max_answer_length, "max_answer_length");
        data.null_score_diff_threshold = given_or(
            self.null_score_diff_threshold,
            data.null_score_diff_threshold,
            |value| format!("null_score_diff_threshold = {value}"),
            &mut taken,
        );
        let negative = (data.version_2_with_negative && task == Task::QuestionAnswering).then_some(true);
        let negative = given_or(
            self.version_2_with_negative,
            negative,
            |value| format!("version_2_with_negative = {value}"),
            &mut taken,
        );
        data.version_2_with_negative = negative.unwrap_or(false);
        let batch_size = config.map(|config| config.trainer.per_device_eval_batch_size);
        let batch_size =
            given_or(self.batch_size, batch_size, |size| format!("per_device_eval_batch_size = {size}"), &mut taken)
                .unwrap_or(8);
        let precision = config.map(|config| config.trainer.precision);
        let precision = given_or(self.device.precision, precision, |value| format!("precision = {value}"), &mut taken)
            .unwrap_or(Precision::F32);
        let counts = [
            ("--batch-size", Some(batch_size)),
            ("--n-best-size", data.n_best_size),
            ("--max-answer-length", data.max_answer_length),
        ];
        if let Some((name, _)) = counts.into_iter().find(|(_, count)| *count == Some(0)) {
            return Err(Error::config(format!("{name}: expected 1 or more, got 0")));
        }
        let format = self.format.as_deref().map(str::parse::<DataFormat>).transpose();
        let format = input.format.or(format.map_err(|error| error.at("--format"))?);
        let format = format.or_else(|| self.format_of_run(&input.path, config?.data.format));
        // SQuAD has no columns that could be named.
        let has_columns = self.names_columns() && ending(&input.path).as_deref() == Some("json");
        let format = format.or(has_columns.then_some(DataFormat::Jsonl));
        // Written as a list: `--keep "id, message"`.
        let keep = self.keep.iter().map(|name| name.trim().to_owned()).collect();
        let options = PredictOptions {
            format,
            keep,
            top_k: self.top_k,
            skip_empty: self.skip_empty,
            ..PredictOptions::of(&data, task, input.path.clone(), batch_size)
        };
        Ok((options, precision, taken))
    }

    /// The format of the rows by that of the run's data, where it fits the ending of the file, or
    /// the ending tells none.
    fn format_of_run(&self, input: &Path, format: DataFormat) -> Option<DataFormat> {
        let fits = match ending(input) {
            Some(ending) if format.endings().contains(&&*ending) => {
                format != DataFormat::Squad || !self.names_columns()
            }
            _ => format_of(input).is_err(),
        };
        (fits && (format.is_table() || format == DataFormat::Squad)).then_some(format)
    }
}

/// The value that an argument has given, else that of a run, which `taken` lists as `show` writes
/// it.
fn given_or<T>(
    given: Option<T>,
    of_run: Option<T>,
    show: impl FnOnce(&T) -> String,
    taken: &mut Vec<String>,
) -> Option<T> {
    if given.is_none() {
        taken.extend(of_run.as_ref().map(show));
    }
    given.or(of_run)
}

/// The task whose head the model `model` (a folder or a Hub id) says it was saved with.
fn trained_task(model: &str) -> Result<Task> {
    let (config, stated) = described(model)?;
    if let Some(task) = stated.filter(|task| *task != Task::Clm) {
        return Ok(task);
    }
    let architecture = config.architecture().unwrap_or("no class");
    match task_of_architecture(&config) {
        Some(task) => Ok(task),
        None => Err(Error::config(format!(
            "{model}: its config.json names {architecture}, which has no prediction for a row"
        ))
        .help("give --task where the model has a head for it, or fine-tune it first")),
    }
}

/// Writes predictions to the file `out`, which appears when it is whole: CSV where its name ends
/// so, else lines of JSON. Returns how many there were.
pub(super) fn predict_to_file(
    folder: &ModelFolder,
    task: Task,
    options: &PredictOptions,
    device: &Device,
    out: &Path,
) -> Result<usize> {
    let io = |error: std::io::Error| Error::io(format!("write {}", out.display()), &error);
    let mut writer = BufWriter::new(WholeFile::create(out).map_err(io)?);
    let is_csv = ending(out).as_deref() == Some("csv");
    if is_csv {
        // The names stand there, too, where no row follows.
        let cells = cells(&fields(folder, task, options)?, &Value::to_string);
        writeln!(writer, "{}", csv_row(cells.iter().map(|(name, _)| name))).map_err(io)?;
    }
    let (spinner, mut done) = (Spinner::new("predicting"), 0);
    let count = predict(folder, task, options, device, &mut |prediction| {
        done += 1;
        spinner.show(format!("predicting, {} done", thousands(done)));
        if !is_csv {
            // Labels and answers are foreign text, and the file is for terminals too.
            return writeln!(writer, "{}", printable(&prediction.to_string())).map_err(io);
        }
        let cells = cells(prediction, &Value::to_string);
        writeln!(writer, "{}", csv_row(cells.iter().map(|(_, cell)| cell))).map_err(io)
    })?;
    writer.into_inner().map_err(|error| io(error.into_error()))?.commit().map_err(io)?;
    Ok(count)
}

/// The values of a prediction as the cells of a row, with the names of their columns:
/// `probabilities.NAME` for the prediction's own probabilities by name (no kept column is called
/// so), JSON for other objects and lists, nothing for null, and a number as `number` writes it.
fn cells(prediction: &Value, number: &dyn Fn(&Value) -> String) -> Vec<(String, String)> {
    let cell = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Number(_) => number(value),
        other => other.to_string(),
    };
    let fields = prediction.as_object().into_iter().flatten();
    let cells = fields.flat_map(|(name, value)| match value {
        Value::Object(fields) if name == "probabilities" => {
            fields.iter().map(|(of, value)| (format!("{name}.{of}"), cell(value))).collect()
        }
        _ => vec![(name.clone(), cell(value))],
    });
    cells.collect()
}

/// A row of CSV by RFC 4180.
fn csv_row<'a>(cells: impl Iterator<Item = &'a String>) -> String {
    let quoted = |cell: &String| match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.clone(),
    };
    cells.map(quoted).collect::<Vec<_>>().join(",")
}

/// Refuses a file whose name says a form that predictions are not written in.
fn check_ending(out: &Path) -> Result<()> {
    match ending(out).as_deref() {
        Some(other @ ("tsv" | "xlsx" | "xls" | "ods" | "parquet" | "arrow" | "feather")) => {
            Err(Error::config(format!("--out {}: predictions are not written as {other}", out.display()))
                .help("name a file that ends in .csv, for CSV, or in .jsonl, for lines of JSON"))
        }
        _ => Ok(()),
    }
}

/// Predictions as a table for people, whose columns have the widths of its first rows and grow with
/// what others hold: shares with four digits, long texts cut.
#[derive(Default)]
struct Aligned {
    widths: Vec<usize>,
    /// The names of the columns and the first rows, until the widths are settled.
    waiting: Vec<Vec<String>>,
}

impl Aligned {
    /// The most characters of a cell.
    const WIDEST: usize = 40;

    /// So many rows settle the widths of the columns.
    const SETTLING: usize = 64;

    /// Takes `prediction`; the lines that can be shown by now.
    fn add(&mut self, prediction: &Value) -> Vec<String> {
        let number = |value: &Value| match value.as_f64() {
            Some(number) if value.is_f64() => format!("{number:.4}"),
            _ => value.to_string(),
        };
        let cells = cells(prediction, &number).into_iter().map(|(name, cell)| {
            let cut = |text: &str| fitted(text, Some(Self::WIDEST));
            (cut(&name), cut(&cell))
        });
        let (names, cells) = cells.unzip::<_, _, Vec<_>, Vec<_>>();
        let is_settled = !self.widths.is_empty() && self.waiting.is_empty();
        if self.widths.is_empty() {
            self.widths.resize(cells.len(), 0);
            self.waiting.push(names);
        }
        self.waiting.push(cells);
        if is_settled || self.waiting.len() > Self::SETTLING { self.rest() } else { Vec::new() }
    }

    /// The lines of the rows that wait.
    fn rest(&mut self) -> Vec<String> {
        for cells in &self.waiting {
            for (width, cell) in self.widths.iter_mut().zip(cells) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |cells: Vec<String>| {
            let cells = cells.iter().zip(&self.widths).map(|(cell, width)| format!("{cell:<width$}"));
            fitted(cells.collect::<Vec<_>>().join("  ").trim_end(), width())
        };
        std::mem::take(&mut self.waiting).into_iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rows_of_a_table_settle_its_widths() {
        let mut table = Aligned::default();
        assert!(table.add(&json!({ "index": 0, "label": "a", "score": 0.5 })).is_empty());
        assert!(table.add(&json!({ "index": 1, "label": "longer", "score": 1.0 })).is_empty());
        assert_eq!(table.rest(), ["index  label   score", "0      a       0.5000", "1      longer  1.0000"]);
        assert_eq!(table.add(&json!({ "index": 2, "label": "b", "score": 0.25 })), ["2      b       0.2500"]);
        let mut long = Aligned::default();
        let lines = (0..100).map(|index| long.add(&json!({ "index": index })).len()).collect::<Vec<_>>();
        assert_eq!((lines.iter().sum::<usize>(), long.rest().len()), (101, 0), "{lines:?}");
    }
}
