//! `kiln forward`, `kiln generate`, `kiln predict`, `kiln merge` and `kiln export`: what takes a model folder.

use std::io::{BufWriter, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use clap::Args;
use kiln_models::{Compute, WholeFile};

use super::{finite, say};
use crate::base::error::{Error, Result, printable};
use crate::base::signals;
use crate::config::Task;
use crate::config::{CompilerMode, DataFormat, DeviceKind, GenerationSection, Precision, TrainingCompilerConfig};
use crate::config::{DataSection, GenerateOptions, RunConfig};
use crate::data::tokenized::{Limits, read_batch};
use crate::engine::device;
use crate::engine::handover;
use crate::inference::forward::forward_to_file;
use crate::inference::predict::{PredictOptions, predict};
use crate::precision::PrecisionPlan;
use crate::session::adapter::task_of_architecture;
use crate::session::export::export;
use crate::session::merge::merge;
use crate::session::model_folder::{ModelFolder, described};
use crate::task::generate::generate;

#[derive(Debug, Args)]
struct DeviceArgs {
    /// auto, cpu, wgpu or cuda
    #[arg(long, default_value = "auto")]
    device: String,
    /// Which device of that kind, from 0
    #[arg(long, default_value_t = 0)]
    device_index: usize,
    /// native, compiled, or auto: compiled where the device has it
    #[arg(long, value_name = "MODE", default_value = "native")]
    compiler: CompilerMode,
    /// f32, bf16, f16 or auto
    #[arg(long, default_value_t)]
    precision: Precision,
}

#[derive(Debug, Args)]
pub(super) struct ForwardArgs {
    /// A model folder in Hugging Face's form, a run folder, or a Hub id
    model: String,
    /// JSON with input_ids, attention_mask, token_type_ids and labels as nested lists
    #[arg(long)]
    batch: PathBuf,
    /// clm, mlm, sequence-classification, multi-label-classification, regression, token-classification, multiple-choice or
    /// question-answering
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
    /// The text to continue
    #[arg(long)]
    prompt: String,
    /// At most this many tokens
    #[arg(long, default_value_t = GenerationSection::default().max_new_tokens)]
    max_new_tokens: usize,
    /// 0 takes the most likely token every time
    #[arg(long, default_value_t = GenerationSection::default().temperature)]
    temperature: f64,
    /// Keep only the K most likely tokens; 0 keeps all
    #[arg(long, default_value_t = GenerationSection::default().top_k)]
    top_k: usize,
    /// Keep the most likely tokens that reach probability P together
    #[arg(long, default_value_t = GenerationSection::default().top_p)]
    top_p: f64,
    /// Seed of the draws
    #[arg(long, default_value_t = GenerationSection::default().seed)]
    seed: u64,
    #[command(flatten)]
    device: DeviceArgs,
}

#[derive(Debug, Args)]
pub(super) struct PredictArgs {
    /// A model folder in Hugging Face's form, a run folder, or a Hub id
    model: String,
    /// The rows: .csv, .tsv, .jsonl, .parquet, or SQuAD's .json
    #[arg(long)]
    input: PathBuf,
    /// Any task but clm and mlm, such as token-classification; what the model was trained for when it is left out
    #[arg(long)]
    task: Option<String>,
    /// The JSONL file to write; stdout when it is left out
    #[arg(long)]
    out: Option<PathBuf>,
    /// csv, tsv, jsonl, parquet or squad, when the ending of the file does not tell
    #[arg(long)]
    format: Option<String>,
    /// The column with the text, or with the question; that of the run, else `text`, when it is left out
    #[arg(long)]
    text_column: Option<String>,
    /// The column with the second text of a pair, or with the context of a question; that of the run when neither is given
    #[arg(long)]
    text_pair_column: Option<String>,
    /// The columns with the choices of a multiple choice, separated by commas; those of the run when they are left out
    #[arg(long, value_delimiter = ',')]
    choice_columns: Vec<String>,
    /// Whether "no answer" may be the answer to a question, as in SQuAD 2.0
    #[arg(long)]
    version_2_with_negative: bool,
    /// Rows of a forward pass
    #[arg(long, default_value_t = 8)]
    batch_size: usize,
    /// Tokens that a row is cut to
    #[arg(long)]
    max_length: Option<usize>,
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

/// The device, and in which form and which type the model computes there.
fn device(args: &DeviceArgs) -> Result<(Device, Compute)> {
    let kind = args.device.parse::<DeviceKind>().map_err(|error| error.at("--device"))?;
    let compiler = TrainingCompilerConfig { enabled: args.compiler, ..TrainingCompilerConfig::default() };
    handover::hand_over(Some(&compiler), kind)?;
    let found = device::select(kind, args.device_index)?;
    let facts = found.facts();
    let ops = device::ops(Some(&compiler), &facts)?;
    let dtype = PrecisionPlan::new(args.precision, &facts)?.dtype();
    Ok((found.device, Compute::new(ops, dtype)))
}

pub(super) fn run_forward(args: &ForwardArgs) -> Result<()> {
    let task = Task::from_name(&args.task)?;
    let (device, compute) = device(&args.device)?;
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

pub(super) fn run_generate(args: &GenerateArgs) -> Result<()> {
    let (device, compute) = device(&args.device)?;
    let folder = ModelFolder::open(&args.model, Task::Clm, &device)?.with_compute(compute);
    let tokenizer = folder.tokenizer()?;
    let prompt = tokenizer.encode(&args.prompt)?;
    let stop = folder.stop_ids(&tokenizer)?;
    let options = GenerateOptions {
        max_new_tokens: args.max_new_tokens,
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        seed: args.seed,
        stop,
    };
    // Nothing is shown before the first token, so that what is refused leaves no half line. A token may end in the middle
    // of a character: text is shown as far as it is whole.
    let (mut tokens, mut shown, mut failed) = (Vec::new(), 0, None);
    generate(&folder.model, &folder.config, &device, &prompt, &options, |token| {
        tokens.push(token);
        let text = format!("{}{}", args.prompt, tokenizer.decode(&tokens).unwrap_or_default());
        let whole = text.trim_end_matches(char::REPLACEMENT_CHARACTER).len().max(shown);
        match stream(text.get(shown..whole).unwrap_or_default()) {
            Ok(reader) => {
                shown = whole;
                reader
            }
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    let rest = format!("{}{}", args.prompt, tokenizer.decode(&tokens)?);
    stream(&format!("{}\n", rest.get(shown..).unwrap_or_default())).map(drop)
}

/// Writes text as it comes, to a terminal without control characters; breaks when the reader has gone away.
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
const PREDICT_NAMES: [(&str, &str); 7] = [
    ("data.text_column, data.text_pair_column and data.label_column", "--text-column and --text-pair-column"),
    ("data.text_column", "--text-column"),
    ("data.text_pair_column", "--text-pair-column"),
    ("data.choice_columns", "--choice-columns"),
    ("data.max_length", "--max-length"),
    ("data.doc_stride", "--max-length"),
    ("data.format", "--format"),
];

pub(super) fn run_predict(args: &PredictArgs) -> Result<()> {
    predict_with(args).map_err(|error| error.in_terms_of(&PREDICT_NAMES))
}

fn predict_with(args: &PredictArgs) -> Result<()> {
    signals::install()?;
    let task = args.task.as_deref().map_or_else(|| trained_task(&args.model), Task::from_name)?;
    let trained = trained_columns(&args.model)?;
    let (text_column, text_pair_column) = match (&args.text_column, &args.text_pair_column) {
        (None, None) => (trained.text_column, trained.text_pair_column),
        (text, pair) => (text.clone(), pair.clone()),
    };
    let choice_columns = match args.choice_columns.as_slice() {
        [] => trained.choice_columns.unwrap_or_default(),
        given => given.to_vec(),
    };
    let format = args.format.as_deref().map(str::parse::<DataFormat>).transpose().map_err(|e| e.at("--format"))?;
    if args.batch_size == 0 {
        return Err(Error::config("--batch-size: expected 1 or more, got 0"));
    }
    let options = PredictOptions {
        input: args.input.clone(),
        format,
        text_column: text_column.unwrap_or_else(|| task.columns().0.into()),
        text_pair_column,
        choice_columns,
        version_2_with_negative: args.version_2_with_negative,
        batch_size: args.batch_size,
        max_length: args.max_length,
    };
    let (device, compute) = device(&args.device)?;
    let folder = ModelFolder::open(&args.model, task, &device)?.with_compute(compute);
    let Some(out) = &args.out else {
        return predict(&folder, task, &options, &device, &mut |prediction| say(prediction)).map(drop);
    };
    folder.notes.iter().try_for_each(say)?;
    let count = predict_to_file(&folder, task, &options, &device, out)?;
    say(format!("wrote {count} predictions to {}", out.display()))
}

/// The keys of `[data]` of the run whose folder, or whose folder `model`, `model` is; the defaults where there is none.
fn trained_columns(model: &str) -> Result<DataSection> {
    let folder = Path::new(model);
    let parent = || if folder.is_dir() { folder.canonicalize().ok()?.parent().map(Path::to_path_buf) } else { None };
    let plan = [Some(folder.to_path_buf()), parent()].into_iter().flatten().map(|folder| folder.join("plan.toml"));
    match plan.into_iter().find(|plan| plan.is_file()) {
        Some(plan) => RunConfig::load(&plan).map(|config| config.data),
        None => Ok(DataSection::default()),
    }
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

/// Writes predictions to the JSONL file `out`, which appears when it is whole; how many there were.
pub(super) fn predict_to_file(
    folder: &ModelFolder,
    task: Task,
    options: &PredictOptions,
    device: &Device,
    out: &Path,
) -> Result<usize> {
    let io = |error: std::io::Error| Error::io(format!("write {}", out.display()), &error);
    let mut writer = BufWriter::new(WholeFile::create(out).map_err(io)?);
    let count = predict(folder, task, options, device, &mut |prediction| {
        // Labels and answers are foreign text, and the file is for terminals too.
        writeln!(writer, "{}", printable(&prediction.to_string())).map_err(io)
    })?;
    writer.into_inner().map_err(|error| io(error.into_error()))?.commit().map_err(io)?;
    Ok(count)
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

    #[test]
    fn a_text_is_written_as_at_the_end_of_a_run() {
        let args = Generate::try_parse_from(["generate", "model", "--prompt", "a"]).unwrap().args;
        let section = GenerationSection::default();
        assert_eq!((args.max_new_tokens, args.top_k, args.seed), (section.max_new_tokens, section.top_k, section.seed));
        assert_eq!((args.temperature, args.top_p), (section.temperature, section.top_p));
        assert_eq!((args.top_k, args.top_p, args.temperature), (50, 1.0, 1.0));
    }
}
