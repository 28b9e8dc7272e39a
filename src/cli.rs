//! The command line: arguments, and what each command prints. All work is done by the library; an error ends the process
//! with the exit code of its kind.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use kiln_models::Ops;

use crate::config::{CompilerMode, DeviceKind, OnExisting, RunConfig, TrainingCompilerConfig};
use crate::data::store;
use crate::data::tokenized::{Limits, read_batch};
use crate::error::{Error, Result};
use crate::execution;
use crate::forward::forward_to_file;
use crate::generate::{GenerateOptions, generate};
use crate::metrics::Record;
use crate::model_folder::ModelFolder;
use crate::plan::RunPlan;
use crate::runs;
use crate::signals;
use crate::task::Task;
use crate::trainer::{Callback, Control, Progress, RunFolder, Trainer};
use crate::verify_resume::{Report, verify};

/// Trains GPT-2 and BERT from a config file.
#[derive(Debug, Parser)]
#[command(name = "kiln", version, about, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train the model that a config file describes
    Train(TrainArgs),
    /// Print what a config file would do, without training
    Plan(ConfigArgs),
    /// Show on a config that a run which is stopped and resumed ends where an undisturbed one ends
    VerifyResume(ConfigArgs),
    /// Run one batch through a model and write logits, loss and gradients
    Forward(ForwardArgs),
    /// Continue a text with a trained GPT-2
    Generate(GenerateArgs),
    /// List the runs in a folder with their status
    Runs {
        /// The folder of the runs
        #[arg(default_value = "runs")]
        folder: PathBuf,
    },
    /// Tell how a run stands, from its folder alone
    Describe {
        /// The run folder
        run: PathBuf,
    },
    /// List what this build and this machine offer
    Devices,
}

#[derive(Debug, Args)]
struct ConfigArgs {
    /// The config file (TOML)
    file: PathBuf,
    /// Override a key of the file; the value is TOML, anything else is taken as text
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
}

#[derive(Debug, Args)]
struct TrainArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Continue from the newest checkpoint in the run folder; the same as --set run.on_existing=resume
    #[arg(long)]
    resume: bool,
    /// native or compiled, whatever [compiler] says
    #[arg(long, value_name = "MODE")]
    compiler: Option<CompilerMode>,
}

#[derive(Debug, Args)]
struct DeviceArgs {
    /// auto, cpu, wgpu or cuda
    #[arg(long, default_value = "auto")]
    device: String,
    /// Which device of that kind, from 0
    #[arg(long, default_value_t = 0)]
    device_index: usize,
    /// native or compiled
    #[arg(long, value_name = "MODE", default_value = "native")]
    compiler: CompilerMode,
}

#[derive(Debug, Args)]
struct ForwardArgs {
    /// A model folder in Hugging Face's form, or a Hub id
    model: String,
    /// JSON with input_ids, attention_mask, token_type_ids and labels as nested lists
    #[arg(long)]
    batch: PathBuf,
    /// clm, mlm, sequence-classification, regression or question-answering
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
struct GenerateArgs {
    /// A model folder in Hugging Face's form, or a Hub id
    model: String,
    /// The text to continue
    #[arg(long)]
    prompt: String,
    /// At most this many tokens
    #[arg(long, default_value_t = 100)]
    max_new_tokens: usize,
    /// 0 takes the most likely token every time
    #[arg(long, default_value_t = 1.0)]
    temperature: f64,
    /// Keep only the K most likely tokens; 0 keeps all
    #[arg(long, default_value_t = 0)]
    top_k: usize,
    /// Keep the most likely tokens that reach probability P together
    #[arg(long, default_value_t = 1.0)]
    top_p: f64,
    /// Seed of the draws
    #[arg(long, default_value_t = 42)]
    seed: u64,
    #[command(flatten)]
    device: DeviceArgs,
}

impl Cli {
    /// Runs the command.
    ///
    /// # Errors
    /// Whatever the command meets; the message is complete.
    pub fn run(self) -> Result<()> {
        match self.command {
            Command::Train(args) => train(&args),
            Command::Plan(args) => plan(&args),
            Command::VerifyResume(args) => run_verify_resume(&args),
            Command::Forward(args) => run_forward(&args),
            Command::Generate(args) => run_generate(&args),
            Command::Runs { folder } => runs::list(&folder).and_then(|runs| say(runs::table(&runs).trim_end())),
            Command::Describe { run } => runs::describe(&run).and_then(|text| say(text.trim_end())),
            Command::Devices => devices(),
        }
    }
}

/// Prints a line to stdout. A reader that has gone away (`kiln plan FILE | head`) is no error of ours; a full disk is one.
fn say(line: impl std::fmt::Display) -> Result<()> {
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Error::io("write to stdout", &error)),
        _ => Ok(()),
    }
}

fn load_plan(args: &ConfigArgs) -> Result<RunPlan> {
    resolve(RunConfig::load_with(&args.file, &args.set)?)
}

/// The plan of `config`; a signal stops tokenising.
fn resolve(config: RunConfig) -> Result<RunPlan> {
    signals::install()?;
    let bar = progress_bar("{spinner} {msg} {bytes}/{total_bytes}");
    let plan = config.plan_with_progress(&mut |progress: store::Progress| {
        bar.set_message("tokenising");
        bar.set_length(progress.total_bytes);
        bar.set_position(progress.done_bytes);
        if signals::received().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    match signals::received() {
        Some(signal) => Err(signal.error("stopped before the first step")),
        None => plan,
    }
}

/// A bar on stderr when that is a terminal, nothing otherwise.
fn progress_bar(template: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template).expect("the templates of this file are valid");
    ProgressBar::new(0).with_style(style)
}

fn plan(args: &ConfigArgs) -> Result<()> {
    say(load_plan(args)?.describe())
}

fn train(args: &TrainArgs) -> Result<()> {
    let mut config = RunConfig::load_with(&args.config.file, &args.config.set)?;
    if args.resume {
        config.run.on_existing = OnExisting::Resume;
    }
    if let Some(mode) = args.compiler {
        config.set_compiler(mode);
    }
    RunFolder::check(&config)?;
    if config.compiler.as_ref().is_some_and(|compiler| compiler.enabled) {
        // Amazon SageMaker Training Compiler's lines, which scripts look for.
        say("Found configuration for Training Compiler")?;
        say("Configuring SM Training Compiler...")?;
    }
    let plan = resolve(config)?;
    say(plan.describe())?;
    let folder = plan.config.output_dir()?;
    let trainer = Trainer::new(plan)?;
    if let Some(report) = trainer.load_report() {
        say(format!("loaded {} tensors", report.loaded))?;
        report.lines().iter().try_for_each(say)?;
    }
    let output = trainer.with_callback(Printer::new()).train()?;
    if let Some(sample) = &output.sample {
        say(format!("\n--- sample ---\n{sample}\n--------------\n"))?;
    }
    say(format!("model: {}", folder.join("model").display()))?;
    say(format!("again: {}", repeat_command(&folder)))
}

fn run_verify_resume(args: &ConfigArgs) -> Result<()> {
    let report = verify(&RunConfig::load_with(&args.file, &args.set)?, &resolve)?;
    let Report { before, after, tensors, rows, differences } = &report;
    if differences.is_empty() {
        return say(format!(
            "{} steps equal {before} steps, a stop and {after} steps: {tensors} tensors of weights and moments and {rows} \
             rows are the same, bit for bit",
            before + after
        ));
    }
    let shown = differences.iter().take(6).map(String::as_str).collect::<Vec<_>>().join("\n  ");
    Err(Error::device(format!(
        "{} steps do not equal {before} steps, a stop and {after} steps; {} differences:\n  {shown}",
        before + after,
        differences.len()
    ))
    .help("on the CPU this is a defect of Kiln; a GPU may add in another order each time"))
}

/// The command that repeats a run into a folder of its own.
fn repeat_command(folder: &Path) -> String {
    let (plan, next) = (folder.join("plan.toml"), format!("{}-again", folder.display()));
    format!("kiln train {} --set run.output_dir={next}", plan.display())
}

/// Prints rows as dict lines on stdout, with a progress bar on stderr when that is a terminal.
struct Printer {
    bar: ProgressBar,
}

impl Printer {
    fn new() -> Self {
        Self { bar: progress_bar("{elapsed_precise} [{bar:40}] step {pos}/{len} {msg} ETA {eta}") }
    }

    fn row(&self, row: &Record) {
        // A row that cannot be shown is in metrics.jsonl all the same: no reason to end the training.
        let _ = self.bar.suspend(|| say(row.to_dict()));
    }
}

impl Callback for Printer {
    fn on_resume(&mut self, progress: &Progress, checkpoint: &Path) {
        let _ =
            self.bar.suspend(|| say(format!("continuing after step {} from {}", progress.step, checkpoint.display())));
        self.bar.set_position(progress.step);
    }

    fn on_train_begin(&mut self, plan: &RunPlan) {
        self.bar.set_length(plan.steps.total as u64);
    }

    fn on_step_end(&mut self, progress: &Progress, _control: &mut Control) {
        self.bar.set_position(progress.step);
    }

    fn on_log(&mut self, _progress: &Progress, row: &Record) {
        if let Some(loss) = row.get("loss") {
            self.bar.set_message(format!("loss {loss:.4}"));
        }
        self.row(row);
    }

    fn on_evaluate(&mut self, _progress: &Progress, row: &Record, _control: &mut Control) {
        self.row(row);
    }

    fn on_train_end(&mut self, _progress: &Progress, summary: &Record) {
        self.bar.finish_and_clear();
        self.row(summary);
    }
}

/// The device, and in which form the model computes there.
fn device(args: &DeviceArgs) -> Result<(Device, Ops)> {
    let kind = args.device.parse::<DeviceKind>().map_err(|error| error.at("--device"))?;
    let found = execution::select(kind, args.device_index)?;
    let compiler = (args.compiler == CompilerMode::Compiled).then(TrainingCompilerConfig::default);
    let ops = execution::ops(compiler.as_ref(), &found)?;
    Ok((found.device, ops))
}

fn run_forward(args: &ForwardArgs) -> Result<()> {
    let task = Task::from_name(&args.task)?;
    let (device, ops) = device(&args.device)?;
    let device = if args.gradients { device.autodiff() } else { device };
    let folder = ModelFolder::open(&args.model, task, &device)?.with_ops(ops);
    folder.notes.iter().try_for_each(say)?;
    let batch = read_batch(&args.batch, task, &Limits::of(&folder.config))?;
    let out = forward_to_file(&folder, task, &batch, args.gradients, &device, &args.out)?;
    for tensor in out.iter().filter(|tensor| !tensor.name.starts_with("grad.")) {
        match tensor.data[..] {
            [value] => say(format!("{}: {value}", tensor.name))?,
            _ => say(format!("{}: {:?}", tensor.name, tensor.shape))?,
        }
    }
    say(format!("wrote {} tensors to {}", out.len(), args.out.display()))
}

fn run_generate(args: &GenerateArgs) -> Result<()> {
    let (device, ops) = device(&args.device)?;
    let folder = ModelFolder::open(&args.model, Task::Clm, &device)?.with_ops(ops);
    let tokenizer = folder.tokenizer()?;
    let prompt = tokenizer.encode(&args.prompt)?;
    let mut stop = folder.config.eos_token_ids();
    stop.extend(tokenizer.eot_id());
    let options = GenerateOptions {
        max_new_tokens: args.max_new_tokens,
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        seed: args.seed,
        stop,
    };
    if stream(&args.prompt)?.is_break() {
        return Ok(());
    }
    // A token may end in the middle of a character: text is shown as far as it is whole.
    let (mut tokens, mut shown, mut failed) = (Vec::new(), 0, None);
    generate(&folder.model, &folder.config, &device, &prompt, &options, |token| {
        tokens.push(token);
        let text = tokenizer.decode(&tokens).unwrap_or_default();
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
    let rest = tokenizer.decode(&tokens)?;
    say(rest.get(shown..).unwrap_or_default())
}

/// Writes text as it comes; breaks when the reader has gone away.
fn stream(text: &str) -> Result<ControlFlow<()>> {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(error) => Err(Error::io("write to stdout", &error)),
    }
}

fn devices() -> Result<()> {
    say(format!(
        "kiln {} built for: cpu{}{}, {} engine",
        env!("CARGO_PKG_VERSION"),
        if cfg!(feature = "wgpu") { ", wgpu" } else { "" },
        if cfg!(feature = "cuda") { ", cuda" } else { "" },
        execution::engine(),
    ))?;
    for device in execution::available() {
        let note = if device.is_software { " (software, not chosen by \"auto\")" } else { "" };
        say(format!("{} {}: {}{note}", device.kind, device.index, device.name))?;
    }
    say(format!("cpu threads: {}", std::thread::available_parallelism().map_or(1, usize::from)))?;
    #[cfg(target_arch = "x86_64")]
    say(format!(
        "cpu vector units: avx2 {}, avx512f {}",
        std::arch::is_x86_feature_detected!("avx2"),
        std::arch::is_x86_feature_detected!("avx512f")
    ))?;
    Ok(())
}

/// Parses the arguments, runs the command, prints an error if there is one, and returns the exit code.
pub fn main() -> std::process::ExitCode {
    match Cli::parse().run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::from(error.exit_code())
        }
    }
}

impl From<kiln_models::Error> for Error {
    fn from(error: kiln_models::Error) -> Self {
        match &error {
            kiln_models::Error::Config(message) => Self::config(message),
            kiln_models::Error::NoSuchHead { .. } => Self::config(error.to_string()),
            kiln_models::Error::Io { action, path, source } => {
                Self::io(format_args!("{action} {}", path.display()), source)
            }
            _ => Self::data(error.to_string()),
        }
    }
}
