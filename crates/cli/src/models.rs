//! `kiln forward`, `kiln generate`, `kiln predict`, `kiln merge` and `kiln export`: what takes a
//! model folder.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use clap::Args;
use kiln::config::{
    CompilerMode, DataFormat, DeviceKind, Errors, GenerateOptions, GenerationSection, Precision, RunConfig, Task,
    TrainingCompilerConfig,
};
use kiln::engine::device;
use kiln::engine::precision::PrecisionPlan;
use kiln::inference::forward::forward_to_file;
use kiln::inference::predict::{PredictOptions, format_of, predict};
use kiln::session::adapter::task_of_architecture;
use kiln::session::export::export;
use kiln::session::generation_config;
use kiln::session::merge::merge;
use kiln::session::model_folder::{ModelFolder, described, run_of};
use kiln::task::generate::Generator;
use kiln_core::error::{Error, Result, printable};
use kiln_core::files::{ending, read_regular_text};
use kiln_core::process::{Scratch, scratch};
use kiln_core::signals;
use kiln_core::whole_file::WholeFile;
use kiln_data::text_lines::TextLines;
use kiln_data::tokenized::{Limits, read_batch};
use kiln_data::tokenizer::Tokenizer;
use kiln_measure::engines;
use kiln_models::Compute;
use serde_json::{Value, json};

use super::terminal::{fitted, is_seen, width};
use super::{finite, say};

#[derive(Debug, Args)]
struct DeviceArgs {
    /// auto, cpu, wgpu or cuda
    #[arg(long, default_value = "auto")]
    device: String,
    /// Which device of that kind, from 0
    #[arg(long, default_value_t = 0)]
    device_index: usize,
    /// native, compiled, or auto: compiled where the device has it. When it is left out, `forward`
    /// computes natively, as the reference does, and `generate` and `predict` with auto
    #[arg(long, value_name = "MODE")]
    compiler: Option<CompilerMode>,
    /// f32, bf16, f16 or auto; f32 when it is left out, and for `predict` that of the run
    #[arg(long)]
    precision: Option<Precision>,
}

#[derive(Debug, Args)]
pub(super) struct ForwardArgs {
    /// A model folder in Hugging Face's form, a run folder, or a Hub id
    model: String,
    /// JSON with input_ids, attention_mask, token_type_ids and labels as nested lists
    #[arg(long)]
    batch: PathBuf,
    /// clm, mlm, sequence-classification, multi-label-classification, regression,
    /// token-classification, multiple-choice or question-answering
    #[arg(long)]
    task: String,
    /// The safetensors file to write
    #[arg(long)]
    out: PathBuf,
    /// Also write grad.<tensor name> of the loss
    #[arg(long)]
    gradients: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

#[derive(Debug, Args)]
pub(super) struct GenerateArgs {
    /// A model folder in Hugging Face's form, a run folder, or a Hub id
    model: String,
    /// The text to continue; given again, another one
    #[arg(long, required_unless_present = "prompts")]
    prompt: Vec<String>,
    /// A file with a prompt on every line; lines without a character are skipped, and `index`
    /// counts the prompts
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Write a line of JSON for every prompt: index, prompt, text, token_ids (the new ones).
    /// Several prompts and those of --prompts are always written so
    #[arg(long)]
    json: bool,
    /// Prompts that are continued together
    #[arg(long, default_value_t = 8)]
    batch_size: usize,
    /// At most this many tokens
    #[arg(long, help = stated("At most this many tokens", GenerationSection::default().max_new_tokens))]
    max_new_tokens: Option<usize>,
    /// 0 takes the most likely token every time
    #[arg(long, help = stated("0 takes the most likely token every time", GenerationSection::default().temperature))]
    temperature: Option<f64>,
    /// Keep only the K most likely tokens; 0 keeps all
    #[arg(long, help = stated("Keep only the K most likely tokens; 0 keeps all", GenerationSection::default().top_k))]
    top_k: Option<usize>,
    /// Keep the most likely tokens that reach probability P together
    #[arg(long, help = stated("Keep the most likely tokens that reach probability P together", GenerationSection::default().top_p))]
    top_p: Option<f64>,
    /// Above 1, tokens that the text has become less likely
    #[arg(long, help = stated("Above 1, tokens that the text has become less likely", GenerationSection::default().repetition_penalty))]
    repetition_penalty: Option<f64>,
    /// No sequence of N tokens comes twice; 0 allows all
    #[arg(long, value_name = "N", help = stated("No sequence of N tokens comes twice; 0 allows all", GenerationSection::default().no_repeat_ngram_size))]
    no_repeat_ngram_size: Option<usize>,
    /// No end of the text before so many tokens
    #[arg(long, help = stated("No end of the text before so many tokens", GenerationSection::default().min_new_tokens))]
    min_new_tokens: Option<usize>,
    /// Stop after this text, which is written; given again, another one
    #[arg(long, value_name = "TEXT")]
    stop_strings: Vec<String>,
    /// Seed of the draws; every prompt draws as if it were alone
    #[arg(long, default_value_t = GenerationSection::default().seed)]
    seed: u64,
    #[command(flatten)]
    device: DeviceArgs,
}

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
    /// Any task but clm and mlm, such as token-classification; what the model was trained for when
    /// it is left out
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
    #[command(flatten)]
    device: DeviceArgs,
}

#[derive(Debug, Args)]
pub(super) struct MergeArgs {
    /// A PEFT folder with an adapter, a run folder whose model/ is one, or a Hub id
    adapter: String,
    /// The folder to write
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    /// A model folder in Hugging Face's form, or a run folder, whose model/ is taken
    model: PathBuf,
    /// The archive to write, as a rule model.tar.gz
    #[arg(long, value_name = "FILE")]
    tar: PathBuf,
}

/// The device, and in which form and which type the model computes there: in `mode` and in
/// `precision` where the arguments name none.
fn device(args: &DeviceArgs, mode: CompilerMode, precision: Precision) -> Result<(Device, Compute)> {
    let kind = args.device.parse::<DeviceKind>().map_err(|error| error.at("--device"))?;
    let compiler =
        TrainingCompilerConfig { enabled: args.compiler.unwrap_or(mode), ..TrainingCompilerConfig::default() };
    engines::hand_over(Some(&compiler), kind)?;
    let found = device::select(kind, args.device_index)?;
    let facts = found.facts();
    let ops = device::ops(Some(&compiler), &facts)?;
    let precision = PrecisionPlan::new(args.precision.unwrap_or(precision), &facts, ops)?;
    Ok((found.device, Compute::new(precision.ops(ops, facts.kind), precision.dtype())))
}

pub(super) fn run_forward(args: &ForwardArgs) -> Result<()> {
    let task = Task::from_name(&args.task)?;
    let (device, compute) = device(&args.device, CompilerMode::Native, Precision::F32)?;
    let device = if args.gradients { device.autodiff() } else { device };
    let folder = ModelFolder::open(&args.model, task, &device)?.with_compute(compute);
    folder.notes.iter().try_for_each(say)?;
    let batch = read_batch(&args.batch, task, &Limits::of(&folder.config, task))?;
    let out = forward_to_file(&folder, task, &batch, args.gradients, &device, &args.out)?;
    for tensor in out.iter().filter(|tensor| !tensor.name.starts_with("grad.")) {
        match tensor.data[..] {
            [value] => say(format!("{}: {value}", tensor.name))?,
            _ => say(format!("{}: {:?}", tensor.name, tensor.shape))?,
        }
    }
    say(format!("wrote {} tensors to {}", out.len(), args.out.display()))?;
    let loss = out.iter().find(|tensor| tensor.name == "loss").map_or(0.0, |tensor| f64::from(tensor.data[0]));
    finite("the loss of the batch", loss)
}

/// The help of an argument whose default a model may state.
fn stated(help: &str, default: impl std::fmt::Display) -> String {
    format!("{help} [default: the model's generation_config.json, else {default}]")
}

impl GenerateArgs {
    /// The texts to continue.
    fn prompts(&self) -> Result<Vec<String>> {
        let mut prompts = self.prompt.clone();
        if let Some(path) = &self.prompts {
            let text =
                read_regular_text(path).map_err(|error| Error::io(format!("read {}", path.display()), &error))?;
            let lines = text.lines().map(str::to_owned).filter(|line| !line.is_empty());
            prompts.extend(lines);
        }
        if prompts.is_empty() {
            return Err(Error::data("--prompts: the file has no line with text; expected a prompt on every line"));
        }
        Ok(prompts)
    }

    /// The settings: those of the command line, else those of `defaults`.
    fn options(&self, defaults: GenerateOptions) -> GenerateOptions {
        let max_new_tokens = self.max_new_tokens.unwrap_or(defaults.max_new_tokens);
        GenerateOptions {
            max_new_tokens,
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            seed: self.seed,
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            no_repeat_ngram_size: self.no_repeat_ngram_size.unwrap_or(defaults.no_repeat_ngram_size),
            // A model's own least number yields to the largest that is asked for.
            min_new_tokens: self.min_new_tokens.unwrap_or(defaults.min_new_tokens.min(max_new_tokens)),
            stop: defaults.stop,
            stop_strings: if self.stop_strings.is_empty() { defaults.stop_strings } else { self.stop_strings.clone() },
        }
    }
}

pub(super) fn run_generate(args: &GenerateArgs) -> Result<()> {
    if args.batch_size == 0 {
        return Err(Error::config("--batch-size: expected 1 or more, got 0"));
    }
    let prompts = args.prompts()?;
    let (device, compute) = device(&args.device, CompilerMode::Auto, Precision::F32)?;
    let folder = ModelFolder::open(&args.model, Task::Clm, &device)?.with_compute(compute);
    let tokenizer = folder.tokenizer()?;
    let (defaults, unused) = generation_config::defaults(&folder, &tokenizer)?;
    unused.iter().for_each(|line| tracing::warn!("{line}"));
    let options = args.options(defaults);
    let generator =
        Generator { model: &folder.model, config: &folder.config, device: &device, tokenizer: Some(&tokenizer) };
    match &prompts[..] {
        [prompt] if !args.json && args.prompts.is_none() => streamed(&generator, &tokenizer, prompt, &options),
        prompts => {
            let ids = prompts.iter().map(|prompt| tokenizer.encode(prompt)).collect::<Result<Vec<_>>>()?;
            let together = prompts.chunks(args.batch_size).zip(ids.chunks(args.batch_size));
            let mut index = 0;
            for (prompts, ids) in together {
                let continued = generator.generate(ids, &options, |_, _| ControlFlow::Continue(()))?;
                for (prompt, tokens) in prompts.iter().zip(continued) {
                    let text = format!("{prompt}{}", tokenizer.decode(&tokens)?);
                    say(json!({ "index": index, "prompt": prompt, "text": text, "token_ids": tokens }))?;
                    index += 1;
                }
            }
            Ok(())
        }
    }
}

/// Writes the continuation of one prompt as it comes.
fn streamed(generator: &Generator<'_>, tokenizer: &Tokenizer, prompt: &str, options: &GenerateOptions) -> Result<()> {
    // Nothing is shown before the first token, so that what is refused leaves no half line.
    let (mut text, mut failed) = (TextStream { tokenizer, tokens: Vec::new(), context: 0, shown: 0 }, None);
    generator.generate(&[tokenizer.encode(prompt)?], options, |_, token| {
        let head = if text.tokens.is_empty() { prompt } else { "" };
        text.push(token).and_then(|text| stream(&format!("{head}{text}"))).unwrap_or_else(|error| {
            failed = Some(error);
            ControlFlow::Break(())
        })
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    let head = if text.tokens.is_empty() { prompt } else { "" };
    stream(&format!("{head}{}\n", text.rest()?)).map(drop)
}

/// The text of tokens that come one by one. A token may end in the middle of a character: text is
/// shown as far as it is whole. The text of a few tokens depends on those before them (a space at
/// the beginning), so the last ones that were shown are decoded again with the new ones, and no
/// more of them.
struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    tokens: Vec<u32>,
    /// The first token that is decoded.
    context: usize,
    /// How many tokens have been shown.
    shown: usize,
}

/// The tokens that may stay unshown.
const UNSHOWN: usize = 8;

impl TextStream<'_> {
    /// The text that `token` makes whole.
    fn push(&mut self, token: u32) -> Result<String> {
        self.tokens.push(token);
        let (text, count) = (self.rest()?, self.tokens.len());
        if !text.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(if text.is_empty() { text } else { self.show(text, count) });
        }
        if count - self.shown <= UNSHOWN {
            return Ok(String::new());
        }
        // A model that has learned little writes many tokens that are no characters. A character
        // has four bytes at most, so all tokens but the last three are decided; special tokens,
        // which have no text, do not count.
        let has_text =
            |index: &usize| self.tokenizer.decode(&self.tokens[*index..=*index]).is_ok_and(|text| !text.is_empty());
        let Some(decided) = (self.shown + 1..count).rev().filter(has_text).nth(2) else {
            return Ok(String::new());
        };
        let first = self.text(decided)?;
        Ok(if text.starts_with(&first) { self.show(first, decided) } else { String::new() })
    }

    /// The text that has not been shown.
    fn rest(&self) -> Result<String> {
        self.text(self.tokens.len())
    }

    fn text(&self, end: usize) -> Result<String> {
        new_text(self.tokenizer, &self.tokens[self.context..end], self.shown - self.context)
    }

    /// Counts the tokens before `end`, which have `text`, as shown.
    fn show(&mut self, text: String, end: usize) -> String {
        (self.context, self.shown) = (self.shown, end);
        text
    }
}

/// The text that `tokens` have beyond that of their first `known`.
fn new_text(tokenizer: &Tokenizer, tokens: &[u32], known: usize) -> Result<String> {
    let (before, text) = (tokenizer.decode(&tokens[..known])?, tokenizer.decode(tokens)?);
    Ok(text.get(before.len()..).unwrap_or_default().to_owned())
}

/// Writes text as it comes, to a terminal without control characters; breaks when the reader has
/// gone away.
fn stream(text: &str) -> Result<ControlFlow<()>> {
    let mut out = std::io::stdout();
    let text = if out.is_terminal() { printable(text) } else { text.into() };
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(error) => Err(Error::io("write to stdout", &error)),
    }
}

/// The settings of a config that `kiln predict` takes as arguments.
const PREDICT_NAMES: [(&str, &str); 11] = [
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
    let folder = ModelFolder::open(&args.model, task, &device)?.with_compute(compute);
    let Some(out) = args.out.as_ref().filter(|out| out.as_os_str() != "-") else {
        let mut table = is_seen(&std::io::stdout()).then(Aligned::default);
        let mut show = |prediction: &Value| match &mut table {
            Some(table) => table.lines(prediction).iter().try_for_each(say),
            None => say(prediction),
        };
        return predict(&folder, task, &options, &device, &mut show).map(drop).map_err(in_terms);
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
                let lines = TextLines::open(path)?.with_errors(errors);
                lines.map(|line| Ok(line?.text)).collect::<Result<_>>()?
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
        let keep = self.keep.clone();
        let options =
            PredictOptions { format, keep, ..PredictOptions::of(&data, task, input.path.clone(), batch_size) };
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
        Some(task) if !task.is_language_model() => Ok(task),
        _ => Err(Error::config(format!(
            "{model}: its config.json names {architecture}, which has no prediction for a row"
        ))
        .help(
            "`kiln generate` continues a text; give --task where the model has a head for it, or fine-tune it first",
        )),
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
    let mut names = Vec::<String>::new();
    let count = predict(folder, task, options, device, &mut |prediction| {
        if !is_csv {
            // Labels and answers are foreign text, and the file is for terminals too.
            return writeln!(writer, "{}", printable(&prediction.to_string())).map_err(io);
        }
        let cells = cells(prediction, &Value::to_string);
        if names.is_empty() {
            names.extend(cells.iter().map(|(name, _)| name.clone()));
            writeln!(writer, "{}", csv_row(&names)).map_err(io)?;
        }
        let mut cells = cells.into_iter().collect::<BTreeMap<_, _>>();
        let row = names.iter().map(|name| cells.remove(name).unwrap_or_default()).collect::<Vec<_>>();
        if let Some(name) = cells.keys().next() {
            return Err(Error::data(format!("{}: the first row has no column {name:?}", out.display()))
                .help("write lines of JSON: give --out a name that does not end in .csv"));
        }
        writeln!(writer, "{}", csv_row(&row)).map_err(io)
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
fn csv_row(cells: &[String]) -> String {
    let quoted = |cell: &String| match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.clone(),
    };
    cells.iter().map(quoted).collect::<Vec<_>>().join(",")
}

/// Predictions as a table for people, whose columns grow with what they hold: shares with four
/// digits, long texts cut.
#[derive(Default)]
struct Aligned {
    widths: Vec<usize>,
}

impl Aligned {
    /// The most characters of a cell.
    const WIDEST: usize = 40;

    /// The line of `prediction`, after that of the names for the first one.
    fn lines(&mut self, prediction: &Value) -> Vec<String> {
        let number = |value: &Value| match value.as_f64() {
            Some(number) if value.is_f64() => format!("{number:.4}"),
            _ => value.to_string(),
        };
        let cells = cells(prediction, &number).into_iter().map(|(name, cell)| {
            let cut = |text: &str| fitted(text, Some(Self::WIDEST));
            (cut(&name), cut(&cell))
        });
        let (names, cells) = cells.unzip::<_, _, Vec<_>, Vec<_>>();
        let is_first = self.widths.is_empty();
        self.widths.resize(cells.len(), 0);
        for (width, (name, cell)) in self.widths.iter_mut().zip(names.iter().zip(&cells)) {
            *width = (*width).max(name.chars().count()).max(cell.chars().count());
        }
        let line = |cells: &[String]| {
            let cells = cells.iter().zip(&self.widths).map(|(cell, width)| format!("{cell:<width$}"));
            fitted(cells.collect::<Vec<_>>().join("  ").trim_end(), width())
        };
        is_first.then(|| line(&names)).into_iter().chain([line(&cells)]).collect()
    }
}

pub(super) fn run_merge(args: &MergeArgs) -> Result<()> {
    let written = merge(&args.adapter, &args.out)?;
    say(format!("wrote {} to {}", written.join(", "), args.out.display()))
}

pub(super) fn run_export(args: &ExportArgs) -> Result<()> {
    let exported = export(&args.model, &args.tar)?;
    exported.iter().try_for_each(|(name, bytes)| say(format!("{bytes:>12}  {name}")))?;
    say(format!("wrote {}", args.tar.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Generate {
        #[command(flatten)]
        args: GenerateArgs,
    }

    /// Also where the tokens are bytes of no characters, of which no more than a few wait to be
    /// shown.
    #[test]
    fn text_that_is_shown_as_it_comes_is_the_text_of_all_tokens() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/run_clm/gpt2");
        let tokenizer = Tokenizer::load(Path::new(folder)).unwrap();
        let mut ids = tokenizer.encode("Ärger 日本語 🦀🐕! the").unwrap();
        let random = |i: u64| kiln_core::random::uniform(kiln_core::random::seed_for(1, "ids", i, 0));
        ids.extend((0..600).map(|i| (random(i) * 260.0) as u32));
        ids.extend(tokenizer.encode("🦀 日本 a").unwrap());
        ids.extend(vec![ids[1]; 200]);
        let mut text = TextStream { tokenizer: &tokenizer, tokens: Vec::new(), context: 0, shown: 0 };
        let mut shown = String::new();
        for id in &ids {
            shown.push_str(&text.push(*id).unwrap());
            assert!(text.tokens.len() - text.shown <= UNSHOWN + 3);
        }
        shown.push_str(&text.rest().unwrap());
        assert_eq!(shown, tokenizer.decode(&ids).unwrap());
    }

    /// Special tokens have no text, wherever they stand.
    #[test]
    fn special_tokens_within_a_character_lose_nothing_of_it() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/run_clm/gpt2");
        let tokenizer = Tokenizer::load(Path::new(folder)).unwrap();
        let [first, second, third] = tokenizer.encode("日").unwrap()[..] else {
            panic!("a token for each of three bytes")
        };
        let end_of_text = 0;
        let mut ids = vec![first; 12];
        ids.extend([first, second, end_of_text, end_of_text, end_of_text, third]);
        let mut text = TextStream { tokenizer: &tokenizer, tokens: Vec::new(), context: 0, shown: 0 };
        let mut shown = ids.iter().map(|id| text.push(*id).unwrap()).collect::<String>();
        shown.push_str(&text.rest().unwrap());
        assert!(shown.ends_with('日'), "{shown}");
        assert_eq!(shown, tokenizer.decode(&ids).unwrap());
    }

    #[test]
    fn the_command_line_overrides_the_model_which_overrides_the_defaults_of_a_run() {
        let args = Generate::try_parse_from(["generate", "model", "--prompt", "a", "--top-k", "3"]).unwrap().args;
        let section = GenerationSection { temperature: 0.5, ..GenerationSection::default() };
        let options = args.options(GenerateOptions::of(&section, vec![7]));
        assert_eq!(options, GenerateOptions { top_k: 3, ..GenerateOptions::of(&section, vec![7]) });
        let section = GenerationSection { min_new_tokens: 10, ..GenerationSection::default() };
        let least = |args: &[&str]| {
            let args = Generate::try_parse_from([&["generate", "model", "--prompt", "a"], args].concat()).unwrap().args;
            args.options(GenerateOptions::of(&section, vec![7])).min_new_tokens
        };
        assert_eq!((least(&["--max-new-tokens", "5"]), least(&[])), (5, 10), "the model's own number yields");
        assert_eq!(least(&["--max-new-tokens", "5", "--min-new-tokens", "6"]), 6, "and that of the user is refused");
        let default = GenerationSection::default();
        assert_eq!((default.top_k, default.top_p, default.temperature), (50, 1.0, 1.0));
    }
}
