//! The command line of Kiln: the arguments and the output of each command. The crates `kiln` and
//! `kiln-measure` do the work. An error ends the process with the exit code of its kind.

mod init;
mod advice;
mod ask;
mod bench;
mod compare;
mod compiler;
mod doctor;
mod faults;
mod folders;
mod help;
mod job;
mod kernel_archive;
mod memory;
mod metrics;
mod models;
mod predict;
mod ranks;
#[cfg(unix)]
mod submit;
mod sweep;
mod terminal;
mod training;
mod tuning;

use std::path::PathBuf;
use std::time::Duration;

use bench::{BenchArgs, WorkerArgs};
use clap::{Parser, Subcommand};
use compare::{CompareArgs, ReportArgs};
use compiler::{ParityArgs, ProbeArgs};
pub use faults::Allocator;
use folders::CacheCommand;
use help::{CompletionArgs, HelpArgs};
use indicatif::{ProgressBar, ProgressStyle};
use job::JobArgs;
use kiln::engine::handover::Engine;
use kiln::engine::{device, operators};
use kiln_core::error::{Error, ErrorKind, Result, printable};
use kiln_core::files::json_text;
use kiln_core::process;
use kiln_measure::engines::Identity;
use kiln_models::Ops;
use metrics::MetricsArgs;
use models::{ExportArgs, ForwardArgs, GenerateArgs, MergeArgs, PushArgs};
use predict::PredictArgs;
use ranks::LaunchArgs;
use sweep::SweepArgs;
use terminal::show;
use training::{ConfigArgs, EvalArgs, InitArgs, PartArgs, PlanArgs, TrainArgs, VerifyResumeArgs};
use tuning::{TrialArgs, TuneArgs};

/// Trains GPT-2, BERT and Llama from a config file.
#[derive(Debug, Parser)]
#[command(name = "kiln", version, about, arg_required_else_help = true, disable_help_subcommand = true)]
#[command(help_template = help::template(), after_help = help::chapters())]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write a commented config for a task and a model
    Init(InitArgs),
    /// Train the model that a config file describes
    Train(TrainArgs),
    /// Start a command in several processes that train together, one for each device: `kiln launch
    /// -n 2 -- train FILE`
    Launch(LaunchArgs),
    /// Print what a config file would do, without training
    Plan(PlanArgs),
    /// Find the largest batch that trains on this machine
    TuneBatch(TuneArgs),
    /// One trial of tune-batch
    #[command(hide = true)]
    TrialBatch(TrialArgs),
    /// Search over keys of a config: a grid or random draws, each combination a run, with early
    /// stopping, in one mode or both
    Sweep(SweepArgs),
    /// Evaluate a model on the validation data of a config file
    Eval(EvalArgs),
    /// Show on a config that a run which is stopped and resumed ends where an undisturbed one ends
    VerifyResume(VerifyResumeArgs),
    /// One part of a run of verify-resume
    #[command(hide = true)]
    ResumePart(PartArgs),
    /// Compare the first steps of a run in native and compiled mode: loss, gradients, weight
    /// changes
    Parity(ParityArgs),
    /// Find the part of the compiler that makes compiled differ from native, or makes it slower
    Bisect(ParityArgs),
    /// The steps of one mode, for parity and bisect
    #[command(hide = true)]
    Probe(ProbeArgs),
    /// Run one batch through a model and write logits, loss and gradients
    Forward(ForwardArgs),
    /// Continue a text with a trained language model
    Generate(GenerateArgs),
    /// Predict labels, numbers or answers for the rows of a file
    Predict(PredictArgs),
    /// Merge a LoRA adapter into the weights of its base, as a model folder of its own
    Merge(MergeArgs),
    /// Pack a model folder into model.tar.gz
    Export(ExportArgs),
    /// Upload the model of a run to the Hugging Face Hub, in one commit that is checked by digest
    Push(PushArgs),
    /// Measure whether compiling pays for the run that a config file describes
    Compare(CompareArgs),
    /// Make the page of a run, or the report of a comparison or of finished runs, without running
    /// anything
    Report(ReportArgs),
    /// Measure the steps of a config or of a suite by part, in both modes, and single operators
    Bench(BenchArgs),
    /// Trains by turns, for bench and compare
    #[command(hide = true)]
    Worker(WorkerArgs),
    /// List the runs in a folder: how each stands, how far it came, and why it ended
    Runs {
        /// The folder of the runs
        #[arg(default_value = "runs")]
        folder: PathBuf,
        /// Print JSON, for programs; a figure that is no number is a text such as "NaN"
        #[arg(long)]
        json: bool,
    },
    /// Tell how a run stands and why it ended, from its folder alone
    Describe {
        /// The run folder
        run: PathBuf,
        /// Print JSON, for programs; a figure that is no number is a text such as "NaN"
        #[arg(long)]
        json: bool,
    },
    /// Show what metric definitions, pairs of a name and a regular expression, take from what a run
    /// printed
    Metrics(MetricsArgs),
    /// Show a run or a comparison live: curves, speed, memory, log. Reads the folder alone; q
    /// leaves the page, not the run
    #[cfg(unix)]
    Watch {
        /// The run folder, or the folder of a comparison; the newest run in `runs` if it is left
        /// out
        run: Option<PathBuf>,
    },
    /// Train as the entry point of a container: hyperparameters, channels and results of a job
    /// under /opt/ml
    Job(JobArgs),
    /// Run a job of a job.toml in a container or a process of this machine, or print the request
    /// that starts it on SageMaker
    #[cfg(unix)]
    Submit(submit::SubmitArgs),
    /// Show a local job: its log, also while it goes on, and its metrics as a table
    #[cfg(unix)]
    Attach(submit::AttachArgs),
    /// Stop a local job: it saves a checkpoint, from which the next `kiln submit` of it goes on
    #[cfg(unix)]
    Stop(submit::LocalJob),
    /// Compile and tune the kernels of a run and keep them, without training
    Pretune(ConfigArgs),
    /// List, clear, export or import what is kept between runs: tokenised text, sizes of batches,
    /// kernels
    #[command(subcommand)]
    Cache(CacheCommand),
    /// List what this build and this machine offer
    Devices,
    /// Look at what Kiln needs here, from the build to the cache, and say what mends what is
    /// missing
    Doctor,
    /// Print the JSON Schema of config files, by which editors complete and check their keys
    Schema,
    /// Print the help of a command, or a chapter of the guide
    Help(HelpArgs),
    /// Print the script that makes a shell complete kiln's commands
    Completions(CompletionArgs),
    /// Say which engine this is, as JSON, for the other engine
    #[command(hide = true)]
    Engine,
}

impl Cli {
    /// Runs the command.
    ///
    /// # Errors
    /// Any error of the command; the message is complete.
    pub fn run(self) -> Result<()> {
        if !self.command.knows_ranks() {
            ranks::refuse(&command_name())?;
        }
        match self.command {
            Command::Init(args) => training::run_init(args),
            Command::Schema => say(json_text(&kiln::config::json_schema()).expect("a schema is JSON").trim_end()),
            Command::Train(args) => training::train(&args),
            Command::Launch(args) => ranks::run_launch(&args),
            Command::Plan(args) => training::plan(&args),
            Command::TuneBatch(args) => tuning::run_tune(&args),
            Command::TrialBatch(args) => tuning::run_trial(&args),
            Command::Sweep(args) => sweep::run_sweep(&args),
            Command::Eval(args) => training::run_eval(&args),
            Command::VerifyResume(args) => training::run_verify_resume(&args),
            Command::ResumePart(args) => training::run_part(&args),
            Command::Parity(args) => compiler::run_parity(&args),
            Command::Bisect(args) => compiler::run_bisect(&args),
            Command::Probe(args) => compiler::run_probe(&args),
            Command::Job(args) => job::run_job(&args),
            Command::Pretune(args) => compiler::run_pretune(&args),
            Command::Forward(args) => models::run_forward(&args),
            Command::Generate(args) => models::run_generate(&args),
            Command::Predict(args) => predict::run_predict(&args),
            Command::Merge(args) => models::run_merge(&args),
            Command::Export(args) => models::run_export(&args),
            Command::Push(args) => models::run_push(&args),
            Command::Compare(args) => compare::run_compare(&args),
            Command::Report(args) => compare::run_report(&args),
            Command::Bench(args) => bench::run_bench(&args),
            Command::Worker(args) => bench::run_worker(&args),
            Command::Runs { folder, json } => folders::runs(&folder, json),
            Command::Describe { run, json } => folders::describe(&run, json),
            Command::Metrics(args) => metrics::run_metrics(&args),
            #[cfg(unix)]
            Command::Watch { run } => terminal::watch::watch(&run.map_or_else(terminal::watch::newest, Ok)?),
            #[cfg(unix)]
            Command::Submit(args) => submit::run_submit(&args),
            #[cfg(unix)]
            Command::Attach(args) => submit::run_attach(&args),
            #[cfg(unix)]
            Command::Stop(job) => submit::run_stop(&job),
            Command::Cache(command) => folders::cache(&command),
            Command::Devices => devices(),
            Command::Doctor => doctor::run_doctor(),
            Command::Help(args) => help::run_help(&args),
            Command::Completions(args) => help::run_completions(&args),
            Command::Engine => {
                let identity = serde_json::to_string(&Identity::this());
                say(identity.expect("names and versions are JSON"))
            }
        }
    }
}

impl Command {
    /// Whether several processes of a launcher may do it together, or each for itself: it writes
    /// nothing then.
    fn knows_ranks(&self) -> bool {
        matches!(self, Self::Bench(args) if args.collectives)
            || matches!(
                self,
                Self::Train(_)
                    | Self::Plan(_)
                    | Self::Eval(_)
                    | Self::Launch(_)
                    | Self::Devices
                    | Self::Engine
                    | Self::Schema
                    | Self::Help(_)
                    | Self::Completions(_)
            )
    }
}

/// The name of the command that this process was started for.
fn command_name() -> String {
    std::env::args().nth(1).unwrap_or_default()
}

/// Prints a line to stdout, without anything that has power over a terminal.
fn say(line: impl std::fmt::Display) -> Result<()> {
    show(printable(&line.to_string()))
}

/// A bar on stderr when that is a terminal, nothing otherwise.
fn progress_bar(template: &str) -> ProgressBar {
    if !terminal::is_seen(&std::io::stderr()) {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template).expect("the templates of this file are valid");
    ProgressBar::new(0).with_style(style)
}

/// Draws `bar` again and again, so that its seconds advance whatever the program is at.
fn keep_moving(bar: &ProgressBar) {
    if !bar.is_hidden() {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
}

fn devices() -> Result<()> {
    say(format!(
        "kiln {} built for: cpu{}{}, {} engine",
        env!("CARGO_PKG_VERSION"),
        if cfg!(feature = "wgpu") { ", wgpu" } else { "" },
        if cfg!(feature = "cuda") { ", cuda" } else { "" },
        Engine::this(),
    ))?;
    for device in device::available() {
        let note = if device.is_software { " (software, not chosen by \"auto\")" } else { "" };
        say(format!("{} {}: {}{note}", device.kind, device.index, device.name))?;
        match device.check() {
            Ok(found) => found.iter().try_for_each(|found| say(format!("  {found}")))?,
            Err(error) => say(format!("  cannot be used: {}", error.message()))?,
        }
        if Ops::fused(&device.device).is_ok() {
            for line in operators::defaults(device.kind) {
                say(format!("  {line}"))?;
            }
        }
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

/// A length of time, as in 90s, 25m, 1h 30m: at most ten years, which a clock can tell.
fn time(text: &str) -> Result<Duration> {
    const MOST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
    let refused = |why: String| Error::config(format!("expected a length of time such as 90s or 25m{why}"));
    match humantime::parse_duration(text) {
        Ok(time) if time <= MOST => Ok(time),
        Ok(_) => Err(refused(", up to ten years".into())),
        Err(error) => Err(refused(format!(": {error}"))),
    }
}

/// Parses the arguments, runs the command, prints an error if there is one, and returns the exit
/// code.
pub fn main() -> std::process::ExitCode {
    faults::keep_freed_memory();
    faults::install();
    terminal::settle_colors();
    let ended = faults::caught(|| match Cli::try_parse() {
        Ok(cli) => process::end_with_driver().and_then(|()| cli.run()).and_then(|()| ranks::leave()),
        Err(told) if told.use_stderr() => {
            let told = advice::advised(told, &std::env::args_os().collect::<Vec<_>>());
            let text = told.to_string();
            ranks::give_up(ErrorKind::Config.exit_code(), || {
                process::tell(&Error::config(text.trim_start_matches("error: ").trim_end()));
                faults::complain(text.trim_end());
            });
            std::process::exit(told.exit_code())
        }
        // Help and version.
        Err(told) => say(told.to_string().trim_end()),
    });
    match ended {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            ranks::fail(&error);
            faults::end(&error)
        }
    }
}

/// Refuses a loss that is no finite number, when all that was computed has been written.
fn finite(what: &str, loss: f64) -> Result<()> {
    if loss.is_finite() {
        return Ok(());
    }
    Err(Error::non_finite(format!("{what} is {loss}; expected a finite number")).help(
        "look for NaN and infinity in the weights of the model; a model that computes in f16 may need --precision f32",
    ))
}
