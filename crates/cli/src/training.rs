//! `kiln init`, `kiln train`, `kiln plan`, `kiln eval` and `kiln verify-resume`: what takes a
//! config file. The hidden `kiln resume-part` is what `verify-resume` runs in processes of their
//! own.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{IsTerminal, Write};
use std::num::{NonZeroU64, NonZeroUsize};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use console::Term;
use indicatif::HumanBytes;
use kiln::Trainer;
use kiln::config::{
    CheckedConfig, CompilerMode, DataFormat, OnExisting, Precision, RunConfig, SCHEMA_FILE, Switch, Task, Validation,
    json_schema,
};
use kiln::distributed::World;
use kiln::engine::compiler::decision::Decision;
use kiln::inference::evaluate_folder::{evaluate_folder, evaluate_untrained};
use kiln::inference::predict::{PredictOptions, format_of};
use kiln::plan::{RunPlan, RunSettings};
use kiln::push;
use kiln::run_folder::runs::{Run, repeat_command};
use kiln::run_folder::{PAGE, PREDICTIONS, RunFolder, RunStatus, Status};
use kiln::session::evaluation::{self, EvaluationSession};
use kiln::session::model_folder::{ModelFolder, PLAN_TOML};
use kiln::session::samples::samples;
use kiln::session::shortage::Shortage;
use kiln::session::{OpenSession, Session, outline};
use kiln::trainer::run_log::RunLog;
use kiln::trainer::{Activity, StopAfter, TrainOutput};
use kiln_core::error::{Error, ErrorKind, Result};
use kiln_core::files::{write_json, write_whole};
use kiln_core::process::{shell_quoted, this_program};
use kiln_core::signal::Signal;
use kiln_core::words::thousands;
use kiln_core::{signals, variables};
use kiln_data::hub::{self, HubSettings, near_model};
use kiln_data::store::Doing;
use kiln_data::table::Columns;
use kiln_data::{paths, store};
use kiln_measure::engines;
use kiln_measure::proof::verify_resume;
use kiln_measure::proof::verify_resume::{Part, Resumed, across_modes, verify, with_micro_batch};
use kiln_measure::report;
use kiln_measure::runner::in_a_process;

use super::ask::{answer, tell, until_read};
use super::compiler::{Worth, choose, verify_start, worth_of_compiling};
use super::predict::predict_to_file;
use super::ranks::{self, Ranks};
use super::terminal::{LogFormat, Printer, Spinner, Talk, runs};
use super::{faults, finite, memory, say, tuning};
use crate::init::{Data, Purpose, RANDOM, check_model, columns, columns_of, random_weights, template};

#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    /// The config file (TOML). For `eval` a run folder, too, whose plan.toml and model are taken,
    /// and for `train --resume` the folder of the run that is continued
    pub(super) file: PathBuf,
    #[command(flatten)]
    layers: Layers,
}

/// The layers over a config file, of which a later one wins over an earlier one.
#[derive(Debug, Args)]
pub(super) struct Layers {
    /// Lay Hugging Face's arguments over the file: JSON that TrainingArguments.to_json_string()
    /// wrote. They win over FILE, and --set wins over them; null asks for nothing. The plan lists
    /// arguments that have no effect
    #[arg(long, value_name = "ARGS.json")]
    pub(super) hf_args: Option<PathBuf>,
    /// Override a key of the file; the value is TOML, anything else is taken as text
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// native, compiled or auto, whatever [compiler] says
    #[arg(long, value_name = "MODE")]
    pub(super) compiler: Option<CompilerMode>,
    /// f32, bf16, f16 or auto; the same as --set precision=...
    #[arg(long)]
    pub(super) precision: Option<Precision>,
}

impl ConfigArgs {
    /// The config: the file, and [`Layers`] over it.
    pub(super) fn load(&self) -> Result<CheckedConfig> {
        self.layers.load(&self.file, |_| Ok(()))
    }

    /// [`load`](Self::load) for a command that chooses the mode itself, for the reason `why`.
    pub(super) fn load_for_modes(&self, why: &str) -> Result<CheckedConfig> {
        self.layers.refuse_compiler(why)?;
        self.load()
    }
}

impl Layers {
    /// The config: the file, Hugging Face's arguments over it, overrides over both, the mode, the
    /// precision and the command's own `change` over all.
    pub(super) fn load(&self, file: &Path, change: impl FnOnce(&mut RunConfig) -> Result<()>) -> Result<CheckedConfig> {
        RunConfig::load_layers(file, self.hf_args.as_deref(), &self.overrides(), |config| {
            if let Some(mode) = self.compiler {
                config.trainer.set_compiler(mode);
            }
            change(config)
        })
    }

    /// The overrides of keys, the precision among them.
    pub(super) fn overrides(&self) -> Vec<String> {
        let precision = self.precision.map(|precision| format!("precision={precision}"));
        self.set.iter().cloned().chain(precision).collect()
    }

    /// Refuses a mode where the command chooses it, for the reason `why`.
    pub(super) fn refuse_compiler(&self, why: &str) -> Result<()> {
        match self.compiler {
            None => Ok(()),
            Some(_) => Err(Error::config(format!("--compiler: {why}")).help("leave it out")),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct PlanArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print the plan as JSON, as plan.json in a run folder has it
    #[arg(long)]
    json: bool,
    /// Also print the first N training examples as they train: text, token ids, segments, and what
    /// the loss counts, a line for each token
    #[arg(long, value_name = "N", conflicts_with = "json")]
    samples: Option<NonZeroUsize>,
}

#[derive(Debug, Args)]
pub(super) struct VerifyResumeArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Also resume in the other mode, native after compiled and compiled after native
    #[arg(long)]
    modes: bool,
    /// Resume with this micro-batch at the same global batch, and say how far the weights are apart
    #[arg(long, value_name = "N", conflicts_with = "modes")]
    micro_batch: Option<usize>,
}

#[derive(Debug, Args)]
pub(super) struct PartArgs {
    /// The config file
    file: PathBuf,
    /// Stop where verify-resume stops; without it, at the end of what it compares
    #[arg(long)]
    before_stop: bool,
    /// Drop nothing out
    #[arg(long)]
    without_dropout: bool,
}

#[derive(Debug, Args)]
pub(super) struct TrainArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Continue from the newest checkpoint in the run folder; an error where it holds none. --set
    /// run.on_existing=resume begins a run there
    #[arg(long)]
    resume: bool,
    /// Continue from this checkpoint: one of the run folder, or for a new folder one of another
    /// run; the same as --resume with --set run.resume_from_checkpoint=...
    #[arg(long, value_name = "CHECKPOINT")]
    resume_from: Option<PathBuf>,
    /// Keep Burn's fusion from fusing, in the compiled engine, to debug it; the same as --set
    /// compiler.fusion=off
    #[arg(long)]
    unfused: bool,
    /// The form of the rows on stdout
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    /// Show the whole plan before step 1 in a terminal, too; plan.toml in the run folder has it
    #[arg(long)]
    verbose: bool,
    /// Show the run live, as kiln watch does; q leaves the page, and the run goes on
    #[cfg(unix)]
    #[arg(long)]
    watch: bool,
    /// Also write steps.jsonl: the time of every step by part
    #[arg(long)]
    step_times: bool,
    /// End after this many steps; the learning rate stays that of the whole run
    #[arg(long, value_name = "N")]
    stop_after: Option<NonZeroU64>,
    /// The run is that of a job, which continues it when it is started again
    #[arg(long, hide = true)]
    of_job: bool,
    /// The mode that a trial of both engines has chosen, handed over by the engine that made the
    /// trial
    #[arg(long, hide = true)]
    decision: Option<String>,
    /// The batch of the process that has begun again as this one, since it was refused memory
    #[arg(long, hide = true)]
    out_of_memory: Option<String>,
}

impl TrainArgs {
    /// The options that the plan of the run does not have.
    fn beside_the_plan(&self) -> Vec<OsString> {
        let mut options = Vec::new();
        if let Some(format) = self.log_format.and_then(|format| format.to_possible_value()) {
            options.push(format!("--log-format={}", format.get_name()));
        }
        options.extend(self.stop_after.map(|steps| format!("--stop-after={steps}")));
        let flags = [(self.verbose, "--verbose"), (self.step_times, "--step-times"), (self.of_job, "--of-job")];
        options.extend(flags.into_iter().filter(|(given, _)| *given).map(|(_, flag)| flag.to_owned()));
        #[cfg(unix)]
        options.extend(self.watch.then(|| "--watch".to_owned()));
        options.into_iter().map(OsString::from).collect()
    }
}

#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// clm, mlm, sequence-classification, multi-label-classification, regression,
    /// token-classification, multiple-choice or question-answering, or chat for conversations;
    /// asked for when it is left out
    task: Option<String>,
    /// The pretrained model: a folder or a Hub id, or `random` for a small GPT-2 with random
    /// weights; asked for when it is left out
    model: Option<String>,
    /// The training data: files, globs or an address of the Hub. Their ending tells the format
    #[arg(long, value_name = "FILES", num_args = 1..)]
    train: Vec<String>,
    /// The validation data: files likewise, or a share such as 10%
    #[arg(long, value_name = "FILES", num_args = 1.., requires = "train")]
    validation: Vec<String>,
    /// The column with the text, or with the messages of a conversation; `text`, or `messages`,
    /// when it is left out
    #[arg(long, value_name = "COLUMN", requires = "train")]
    text_column: Option<String>,
    /// The column with the second text of a pair
    #[arg(long, value_name = "COLUMN", requires = "train")]
    text_pair_column: Option<String>,
    /// The columns with the choices of a multiple choice, separated by commas; those of SWAG,
    /// `ending0` to `ending3`, when they are left out
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',', requires = "train")]
    choice_columns: Vec<String>,
    /// The column with the label; `label` when it is left out
    #[arg(long, value_name = "COLUMN", requires = "train")]
    label_column: Option<String>,
    /// The file to write; TASK.toml when it is left out
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl InitArgs {
    /// The data that were named, or names to be replaced, for a model of so many positions.
    fn data(&self, purpose: Purpose, positions: Option<usize>) -> Result<Data> {
        let task = purpose.task();
        if self.train.is_empty() {
            return Ok(match purpose {
                Purpose::Task(task) => Data::placeholder(task),
                Purpose::Chat => Data::conversations_placeholder(),
            });
        }
        let validation = match &self.validation[..] {
            [] => None,
            [one] if one.parse::<f64>().is_ok() && !Path::new(one).exists() => {
                let number = one.parse::<f64>().unwrap_or_default();
                let percent = if number < 1.0 { (1e6 * number).round() / 1e4 } else { number };
                let error = Error::config(format!("--validation {one}: expected files, or a share such as 10%"));
                let is_share = percent > 0.0 && percent < 100.0;
                return Err(if is_share { error.help(format!("did you mean {percent}%?")) } else { error });
            }
            [one] => {
                let read = toml::Value::from(one.as_str()).try_into::<Validation>();
                Some(read.map_err(|error| Error::config(format!("--validation {one}: {}", error.message())))?)
            }
            files => Some(Validation::Files(files.to_vec())),
        };
        if purpose == Purpose::Chat {
            return Data::conversations(&self.train, validation, self.text_column.as_deref());
        }
        let is_choice = task == Task::MultipleChoice;
        match &self.choice_columns[..] {
            [_, ..] if !is_choice => {
                return Err(Error::config(format!("--choice-columns: the task {task} has no choices")));
            }
            [one] => return Err(Error::config(format!("--choice-columns: expected two columns or more, got {one:?}"))),
            _ => {}
        }
        let [text, pair, label] = [&self.text_column, &self.text_pair_column, &self.label_column].map(Option::clone);
        let columns = columns(task, text, pair, &self.choice_columns, label);
        let named = |columns| Data::named(task, self.train.clone(), validation.clone(), columns, positions);
        match named(columns.clone()) {
            // The second text of SWAG is taken where it is there.
            Err(_) if is_choice && self.text_pair_column.is_none() => named(Columns { text_pair: None, ..columns }),
            data => data,
        }
    }

    /// The file to write for `purpose`.
    fn path(&self, purpose: Purpose) -> PathBuf {
        self.out.clone().unwrap_or_else(|| PathBuf::from(format!("{purpose}.toml")))
    }

    /// Purpose, positions of the model, and data as the arguments name them.
    fn named(&self, purpose: &str, model: &str) -> Result<(Purpose, Option<usize>, Data)> {
        let purpose = Purpose::from_name(purpose)?;
        check_free(&self.path(purpose))?;
        let positions = positions(purpose, model)?;
        Ok((purpose, positions, self.data(purpose, positions)?))
    }

    /// Purpose, positions and data as in [`named`](Self::named), asked for at the terminal where
    /// the arguments name none. The answers become arguments.
    fn asked(&mut self) -> Result<(Purpose, Option<usize>, Data)> {
        let term = Term::stderr();
        if !std::io::stdin().is_terminal() || !term.is_term() {
            return Err(Error::config("kiln init: expected TASK and MODEL; it asks for them on a terminal alone")
                .help(
                    "as in `kiln init sequence-classification distilbert/distilbert-base-uncased --train reviews.csv`",
                ));
        }
        let tasks = "Task: clm (continue text), chat (answer in conversations), mlm (fill gaps), sequence-classification, \
             multi-label-classification, regression, token-classification, multiple-choice or question-answering";
        let purpose = until_read(&term, (tasks, None), self.task.as_deref(), Purpose::from_name)?;
        check_free(&self.path(purpose))?;
        let task = purpose.task();
        let (usual, random) = match purpose {
            Purpose::Chat => ("HuggingFaceTB/SmolLM2-135M-Instruct", ", with a chat template"),
            Purpose::Task(Task::Clm) => ("distilbert/distilgpt2", "; random for a small GPT-2 with random weights"),
            Purpose::Task(_) => (
                "distilbert/distilbert-base-uncased",
                " (random weights are for clm, whose tokenizer is learned from the text)",
            ),
        };
        let models = format!("Pretrained model: a folder or an id of the Hugging Face Hub{random}");
        let models = (models.as_str(), Some(usual));
        let (model, positions) = until_read(&term, models, self.model.as_deref(), |model| {
            Ok((model.to_owned(), positions(purpose, model)?))
        })?;
        self.model = Some(model);
        if self.train.is_empty() {
            let files = ("Training data: a file or a glob; nothing to name it later in the config", Some(""));
            self.train = until_read(&term, files, None, |files| match files {
                "" => Ok(Vec::new()),
                files => paths::resolve(&[files.to_owned()], DataFormat::Text).map(|_| vec![files.to_owned()]),
            })?;
        }
        let is_table =
            self.train.first().is_some_and(|file| format_of(Path::new(file)).is_ok_and(DataFormat::is_table));
        // A table with the usual columns needs no question.
        let data = loop {
            match self.data(purpose, positions) {
                Err(error) if is_table => tell(&term, &error)?,
                data => break data?,
            }
            let there = columns_of(&self.train).join(", ");
            let there = if there.is_empty() { there } else { format!(" ({there})") };
            let ask = |question: &str, usual: Option<&str>| answer(&term, &format!("{question}{there}"), usual);
            self.text_column = Some(ask("Column with the text", self.text_column.as_deref())?);
            if task == Task::MultipleChoice {
                let usual = Some(self.choice_columns.join(",")).filter(|columns| !columns.is_empty());
                let choices = ask("Columns with the choices, separated by commas", usual.as_deref())?;
                self.choice_columns = choices.split(',').map(|column| column.trim().to_owned()).collect();
            }
            if !task.is_language_model() {
                self.label_column = Some(ask("Column with the label", self.label_column.as_deref())?);
            }
        };
        Ok((purpose, positions, data))
    }
}

/// The longest sequence of the model `model`, where its configuration can be read. Warns where it
/// cannot.
fn positions(purpose: Purpose, model: &str) -> Result<Option<usize>> {
    if model == RANDOM {
        return match purpose {
            Purpose::Task(task) => random_weights(task).map(Some),
            Purpose::Chat => Err(Error::config(format!("{RANDOM}: expected a pretrained model with a chat template"))
                .help(
                    "name one, for example HuggingFaceTB/SmolLM2-135M-Instruct, or a folder that transformers opens",
                )),
        };
    }
    let checked = check_model(purpose.task(), model, &HubSettings::from_env()?)?;
    if let Some(reason) = &checked.unchecked {
        let near = near_model(model).map_or_else(String::new, |near| format!("; did you mean {near}?"));
        tracing::warn!("{model} is not checked: {}{near}", reason.message());
    }
    Ok(checked.positions)
}

/// Refuses to write to `path` where something is there, before more is asked for.
fn check_free(path: &Path) -> Result<()> {
    if std::fs::symlink_metadata(path).is_ok() { Err(is_taken(path)) } else { Ok(()) }
}

fn is_taken(path: &Path) -> Error {
    Error::config(format!("{}: there is a file of this name, which kiln init leaves as it is", path.display()))
        .help("give the name of a file that does not exist: --out FILE")
}

pub(super) fn run_init(mut args: InitArgs) -> Result<()> {
    let (purpose, positions, data) = match (&args.task, &args.model) {
        (Some(purpose), Some(model)) => args.named(purpose, model)?,
        _ => args.asked()?,
    };
    let path = args.path(purpose);
    let model = args.model.unwrap_or_default();
    if model == RANDOM {
        data.check_learns_tokenizer()?;
    }
    let name = path.file_stem().map_or_else(|| purpose.to_string(), |name| name.to_string_lossy().into_owned());
    // The one that is there may belong to other config files.
    let beside = path.with_file_name(SCHEMA_FILE);
    let has_schema = beside.exists();
    let file = OpenOptions::new().write(true).create_new(true).open(&path);
    let written =
        file.and_then(|mut file| file.write_all(template(purpose, &name, &model, positions, &data).as_bytes()));
    written.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => is_taken(&path),
        _ => Error::io(format!("write {}", path.display()), &error),
    })?;
    let next = if data.is_named { "" } else { "set [data], then " };
    let mut schema = "";
    if !has_schema {
        match write_json(&beside, &json_schema()) {
            Ok(()) => schema = " and kiln.schema.json",
            Err(error) => tracing::warn!("{error}: `kiln schema` prints what the first line of the config names"),
        }
    }
    let (path, quoted) = (path.display(), shell_quoted(&path.display().to_string()).into_owned());
    say(format!("wrote {path}{schema}; next: {next}`kiln plan {quoted}`, then `kiln train {quoted}`"))
}

#[derive(Debug, Args)]
pub(super) struct EvalArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// The model folder; model/ in the run folder when it is left out
    #[arg(long, value_name = "MODEL_DIR")]
    model: Option<String>,
    /// Also write the figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(super) fn run_eval(args: &EvalArgs) -> Result<()> {
    let ConfigArgs { file, layers } = &args.config;
    let mut config =
        RunConfig::from(if file.is_dir() { of_run(&args.config, |_| Ok(()))? } else { args.config.load()? });
    if layers.compiler.is_none() && config.trainer.compiler.is_none() {
        config.trainer.set_compiler(CompilerMode::Auto);
    }
    engines::hand_over(config.trainer.compiler.as_ref(), config.trainer.device.kind)?;
    let world = ranks::world(&mut config)?;
    let open = |config: &CheckedConfig| world.first_of_a_machine_first(|| open_evaluation(config));
    let figures = evaluating(|told| evaluate_folder(&world, config, args.model.as_deref(), &open, told))?;
    if !world.is_root() {
        return Ok(());
    }
    if let Some(out) = &args.out {
        write_whole(out, (figures.to_json() + "\n").as_bytes())?;
    }
    figures.lines().iter().try_for_each(say)?;
    say(figures.record.to_dict())?;
    finite("eval_loss", figures.record.get("eval_loss").unwrap_or(0.0))
}

/// The config of the run whose folder `args` names in place of a config file, with `change` made to
/// it.
fn of_run(args: &ConfigArgs, change: impl FnOnce(&mut RunConfig) -> Result<()>) -> Result<CheckedConfig> {
    let (folder, plan) = (&args.file, args.file.join(PLAN_TOML));
    if !plan.is_file() {
        return Err(Error::config(format!(
            "{}: expected a config file, or a run folder with {PLAN_TOML}, got another folder",
            folder.display()
        ))
        .help("name the config file, and the model by --model"));
    }
    let Layers { hf_args, set, .. } = &args.layers;
    args.layers.load(&plan, |config| {
        if !set.iter().any(|set| set.trim_start().starts_with("run.output_dir")) {
            if let Some(laid_over) = hf_args
                && config.trainer.output_dir != *folder
                && config.trainer.output_dir != RunConfig::load(&plan)?.trainer.output_dir
            {
                let output_dir = config.trainer.output_dir.display();
                tracing::warn!(
                    "{}: output_dir = \"{output_dir}\" has no effect, since the run folder is named by {}; --set \
                     run.output_dir=.. names another one",
                    laid_over.display(),
                    folder.display()
                );
            }
            // The folder may have been moved since the plan was written.
            config.trainer.output_dir.clone_from(folder);
        }
        change(config)
    })
}

/// The config of a training, which a run folder stands for where its run is to be continued, and
/// whether it is `--resume` alone that continues the run.
fn of_training(args: &TrainArgs) -> Result<(CheckedConfig, bool)> {
    let (folder, plan) = (&args.config.file, args.config.file.join(PLAN_TOML));
    let mut is_continued = false;
    let change = |config: &mut RunConfig| {
        // A config that begins a run where there is none does so with --resume, too.
        is_continued = args.resume && args.resume_from.is_none() && config.trainer.on_existing != OnExisting::Resume;
        if args.resume || args.resume_from.is_some() {
            config.trainer.on_existing = OnExisting::Resume;
        }
        if let Some(checkpoint) = &args.resume_from {
            config.trainer.resume_from_checkpoint = Some(checkpoint.clone());
        }
        if !args.unfused {
            return Ok(());
        }
        let compiled = config.trainer.compiler.as_mut().filter(|compiler| compiler.enabled == CompilerMode::Compiled);
        let Some(compiler) = compiled else {
            return Err(Error::config("--unfused: the native engine has no fusion to switch off")
                .help("--unfused is for debugging the compiled engine: --compiler compiled --unfused"));
        };
        compiler.fusion = Switch::Off;
        Ok(())
    };
    if !plan.is_file() {
        return Ok((args.config.layers.load(folder, change)?, is_continued));
    }
    if args.resume || args.resume_from.is_some() {
        return Ok((of_run(&args.config, change)?, is_continued));
    }
    let (shown, again) = (folder.display(), repeat_command(folder).unwrap_or_default());
    let quoted = shell_quoted(&shown.to_string()).into_owned();
    Err(Error::config(format!("{shown}: expected a config file, got a run folder"))
        .help(format!("`kiln train {quoted} --resume` continues the run, and `{again}` makes it once more")))
}

/// The config of `args`, in the engine that it asks for.
fn load(args: &ConfigArgs) -> Result<CheckedConfig> {
    let config = args.load()?;
    engines::hand_over(config.trainer.compiler.as_ref(), config.trainer.device.kind)?;
    Ok(config)
}

/// The plan of `config`; a signal stops tokenising.
pub(super) fn resolve(config: CheckedConfig) -> Result<RunPlan> {
    open(config)?.run_plan()
}

/// Opens `config`; a signal stops tokenising.
pub(super) fn open(config: CheckedConfig) -> Result<Session> {
    tokenising("before the first step", |progress| Session::open_with_progress(config, progress))
}

/// Opens `config` for an evaluation alone; a signal stops tokenising.
fn open_evaluation(config: &CheckedConfig) -> Result<EvaluationSession> {
    tokenising("before the first batch", |progress| evaluation::open(config, progress))
}

/// Shows how far an evaluation has come in `evaluate`.
fn evaluating<E>(evaluate: impl FnOnce(&mut dyn FnMut(u64, u64)) -> Result<E>) -> Result<E> {
    let spinner = Spinner::new("evaluating");
    evaluate(&mut |done, batches| spinner.show(Activity::Evaluating { done, batches }.to_string()))
}

/// Shows what is done in `open`, and how far tokenising has come. A signal stops it; `when` says in
/// the error before what.
fn tokenising<S>(when: &str, open: impl FnOnce(&mut store::OnProgress<'_>) -> Result<S>) -> Result<S> {
    signals::install()?;
    let spinner = Spinner::new("opening model and data");
    let session = open(&mut |store::Preparation { doing, done_bytes, total_bytes, .. }: store::Preparation| {
        spinner.show(match doing {
            Doing::Reading(1) => "reading 1 file".to_owned(),
            Doing::Reading(files) => format!("reading {} files", thousands(files as u64)),
            Doing::Learning(tokens) => format!("learning a tokenizer of {} tokens", thousands(tokens as u64)),
            Doing::Tokenising => format!("tokenising {}/{}", HumanBytes(done_bytes), HumanBytes(total_bytes)),
        });
        if signals::received().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    drop(spinner);
    match signals::received() {
        Some(signal) => Err(signal.error(format_args!("stopped {when}"))),
        None => session,
    }
}

pub(super) fn plan(args: &PlanArgs) -> Result<()> {
    let (config, Ranks { world, .. }) = ranks::join(load(&args.config)?)?;
    world.by_root(|| show_plan(config, args)).map(drop)
}

fn show_plan(config: CheckedConfig, args: &PlanArgs) -> Result<()> {
    let opened = open(config.clone()).and_then(|session| Ok((session.run_plan()?, session)));
    let (plan, session) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            let stopped = matches!(error.kind(), ErrorKind::Interrupted(_));
            if let Some(text) = outline(&config).filter(|_| !stopped && !args.json) {
                say(text)?;
            }
            return Err(error);
        }
    };
    if args.json {
        let text = serde_json::to_string_pretty(&plan).map_err(|error| Error::data(format!("plan: {error}")))?;
        return say(text);
    }
    // A folder that is not known is no folder that would be refused.
    plan.train.output_dir()?;
    say(plan.describe())?;
    if let Some(shortage) = Shortage::of(&session, memory::room(&session))? {
        say(format!("does not fit: {shortage}"))?;
    }
    if let Err(error) = RunFolder::check(&plan.train.run) {
        say(format!("`kiln train` would refuse: {error}"))?;
    }
    args.samples.map_or(Ok(()), |count| say(format!("\n{}", samples(&session, count.get())?)))
}

pub(super) fn train(args: &TrainArgs) -> Result<()> {
    let (config, is_continued) = of_training(args)?;
    #[cfg(unix)]
    if args.watch {
        ranks::refuse("train --watch")?;
        let code = super::terminal::watch::train(&config.trainer.expanded_output_dir()?, args.log_format.is_some())?;
        std::process::exit(code.into());
    }
    engines::hand_over(config.trainer.compiler.as_ref(), config.trainer.device.kind)?;
    let talk = Talk::new(args.log_format, config.trainer.log_level);
    let (mut config, Ranks { world, other }) = ranks::join(config)?;
    if !config.trainer.do_train {
        return world.by_root(|| without_training(config, talk)).map(drop);
    }
    // Rank 0 alone has the run folder.
    let check = if is_continued && world.is_root() { RunFolder::check_continued } else { RunFolder::check };
    check(&RunSettings::of(&config.trainer))?;
    test_file(&config)?;
    // Rank 0 alone uploads, and may be the only one with a token.
    world.by_root(|| push::check(&config.trainer))?;
    // The others have the micro-batch of rank 0: theirs might be another one.
    let found = world.made_by_root(|| tuning::size_of(&config))?;
    if let Some(micro) = found.filter(|_| !world.is_root()) {
        config = config.with(|config| config.trainer.per_device_train_batch_size = micro.into())?;
    }
    // The files that one rank of a machine has tokenised are in the cache for the others.
    let session = world.first_of_a_machine_first(|| open(config))?;
    let session = choose_together(&world, session, args.decision.as_deref())?;
    let (session, short) = memory::fitted(&world, session)?;
    talk.plan(&session.run_plan()?, args.verbose)?;
    let again = args.out_of_memory.as_ref().map(|was| memory::notice(&session.plan().batch, was));
    let said = again.into_iter().chain(short).collect::<Vec<_>>();
    said.iter().try_for_each(|line| talk.warn(line))?;
    match worth_of_compiling(&session.plan().engine) {
        Some(Worth::Warning(line)) => talk.warn(&line)?,
        // Who asks for the native mode by name knows that there is another one.
        Some(Worth::Hint(line)) if args.config.layers.compiler != Some(CompilerMode::Native) => talk.inform(line)?,
        _ => {}
    }
    world.describe().iter().try_for_each(|line| talk.inform(line))?;
    let verified = world.made_by_root(|| verify_start(&session))?;
    let trainer = Trainer::from_session(session)?.with_world(world.clone());
    let trainer = if verified { trainer.with_verified_start() } else { trainer };
    let loaded = trainer.load_report().map_or_else(Vec::new, |report| {
        std::iter::once(format!("loaded {} tensors", report.loaded)).chain(report.lines()).collect()
    });
    let trainer = if args.step_times { trainer.with_step_times() } else { trainer };
    let trainer = said.into_iter().fold(trainer, Trainer::with_said);
    let mut trainer = trainer.with_callback(Printer::new(talk, loaded)).with_page(report::page_of_run);
    if world.is_root() {
        trainer = push::with_push(kiln::mlflow::with_reporters(trainer)?)?
            .with_callback(memory::BeginsAgain { is_alone: !world.is_shared(), options: args.beside_the_plan() });
    }
    if args.of_job {
        trainer = trainer.with_way_on("start the job again: it continues from its checkpoints");
    }
    if let Some(steps) = args.stop_after {
        trainer = trainer.with_callback(StopAfter(steps.get()));
    }
    if let Some(other) = &other {
        trainer = trainer.with_callback(other.callback());
    }
    let waiting = world.is_root().then(|| acknowledging(trainer.plan().output_dir().ok()));
    let output = trainer.train();
    drop(waiting);
    if let Err(error) = &output {
        faults::begin_again_after(error);
    }
    faults::trains_no_more();
    let output = output?;
    // The results of the other ranks are those of rank 0, which writes them.
    world.by_root(|| end_training(&trainer, output, talk)).map(drop)
}

/// Says of the first signal that it has come, while the step goes on after which it stops the run:
/// to people, and in the log of the run in `folder`.
fn acknowledging(folder: Option<PathBuf>) -> signals::Waiting {
    signals::on_first(move |signal| {
        let name = signal.name();
        let again = if signal == Signal::Interrupt { "Ctrl-C" } else { "signal" };
        faults::complain(format_args!(
            "{name}: the run stops after the current step, with a checkpoint if it has made one; a second {again} ends the process at once"
        ));
        // Before the run has taken its folder, that may hold another one.
        let is_ours = |folder: &PathBuf| {
            let status = Status::read(folder).ok().flatten();
            status.is_some_and(|status| status.status == RunStatus::InProgress)
        };
        if let Some(folder) = folder.filter(is_ours) {
            RunLog::new(&folder).told_to_stop(signal);
        }
    })
}

/// Tells where the results of a run lie, and predicts where that is asked for.
fn end_training(trainer: &Trainer, output: TrainOutput, talk: Talk) -> Result<()> {
    let folder = trainer.plan().output_dir()?;
    if output.was_complete {
        let stopped = Status::read(&folder)?.filter(|status| status.status == RunStatus::Stopped);
        talk.inform(match stopped.and_then(|status| status.message) {
            Some(message) => format!("nothing to continue: {message}"),
            None => format!("complete after step {}, nothing to continue: {}", output.step, folder.display()),
        })?;
        return talk.record(&output.summary);
    }
    let run = Run::read(&folder)?;
    if let Some(message) = run.as_ref().and_then(|run| run.status.message.as_ref()) {
        talk.inform(message)?;
    }
    talk.samples("sample", &output.samples)?;
    if let Some(model) = run.as_ref().and_then(runs::model) {
        talk.inform(format!("model: {model}"))?;
    }
    let page = folder.join(PAGE);
    if page.is_file() {
        talk.inform(format!("page: {}", page.display()))?;
    }
    repeat_command(&folder).iter().try_for_each(|command| talk.inform(format!("again: {command}")))?;
    predict_test(trainer.session(), &folder.join("model").display().to_string(), talk)?;
    match signals::received() {
        Some(signal) => Err(signal.error("the run was complete, so nothing is lost but the rest of its sample")),
        None => Ok(()),
    }
}

/// [`choose`] by rank 0 for all ranks.
fn choose_together(world: &World, session: Session, handed: Option<&str>) -> Result<Session> {
    if !world.is_shared() {
        return choose(session, handed);
    }
    let mut chosen = None;
    let decision = world.made_by_root(|| {
        let session = choose(session.clone(), handed)?;
        let decision = session.plan().engine.decision.as_ref().map(Decision::to_json).transpose()?;
        chosen = Some(session);
        Ok(decision)
    })?;
    match (chosen, decision) {
        (Some(chosen), _) => Ok(chosen),
        (None, decision) => choose(session, decision.as_deref()),
    }
}

/// `trainer.do_train = false`: evaluates, or predicts, or both.
fn without_training(config: CheckedConfig, talk: Talk) -> Result<()> {
    let trained = config.trainer.expanded_output_dir()?.join("model");
    let trained = (config.model.from.is_none() && trained.is_dir()).then(|| trained.display().to_string());
    let trainer = &config.trainer;
    let predicts_with = match test_file(&config)? {
        None => None,
        Some(_) => Some(config.model.from.clone().or(trained.clone()).ok_or_else(|| {
            Error::config("trainer.do_predict: there is no model to predict with, and trainer.do_train is false")
                .help("set model.from, or train first")
        })?),
    };
    config.trainer.no_effect.iter().try_for_each(|line| talk.inform(format!("no effect: {line}")))?;
    if trainer.do_eval || !trainer.do_predict {
        let what = config.model.from.as_ref().or(trained.as_ref()).map_or("random weights", String::as_str);
        talk.inform(format!("trainer.do_train = false: no training; evaluating {what}"))?;
        let figures = match &trained {
            Some(model) => evaluating(|told| {
                evaluate_folder(&World::alone(), config.clone().into(), Some(model), &open_evaluation, told)
            })?,
            None => {
                let session = open(config.clone())?;
                evaluating(|told| evaluate_untrained(session, told))?
            }
        };
        figures.lines().iter().try_for_each(|line| talk.tell(line))?;
        talk.record(&figures.record)?;
        talk.blocks(None, Some(&figures.record))?;
        finite("eval_loss", figures.record.get("eval_loss").unwrap_or(0.0))?;
    }
    match predicts_with {
        Some(model) => predict_test(&open(config)?, &model, talk),
        None => Ok(()),
    }
}

/// The file whose rows are to be predicted, where `trainer.do_predict` asks for it.
fn test_file(config: &RunConfig) -> Result<Option<PathBuf>> {
    let Some(test) = config.trainer.test.as_ref().filter(|_| config.trainer.do_predict) else { return Ok(None) };
    let path = variables::expand(test)?;
    if path.is_dir() || hub::is_dataset(test) {
        let files =
            paths::resolve(std::slice::from_ref(test), config.data.format).map_err(|error| error.at("data.test"))?;
        return match &files[..] {
            [file] => Ok(Some(file.clone())),
            files => Err(Error::config(format!("data.test: {} holds {} files", path.display(), files.len()))
                .help("name the one whose rows are to be predicted")),
        };
    }
    if path.is_file() {
        Ok(Some(path))
    } else {
        Err(Error::data(format!("data.test: {}: no such file", path.display()))
            .help("paths are relative to where kiln is started"))
    }
}

/// Predicts the rows of `data.test`, where that is asked for, with the model `model` (a folder or a
/// Hub id), into the run folder.
fn predict_test(session: &Session, model: &str, talk: Talk) -> Result<()> {
    let plan = session.plan();
    let (config, folder, task) = (session.config()?, plan.output_dir()?, session.task.task.kind());
    let Some(input) = test_file(&config)? else { return Ok(()) };
    let options = PredictOptions {
        format: Some(config.data.format),
        ..PredictOptions::of(&config.data, task, input, plan.evaluation.batch_size)
    };
    let device = &session.device;
    let model = ModelFolder::open_frozen(model, task, device, plan.engine.compute())?;
    std::fs::create_dir_all(&folder).map_err(|error| Error::io(format!("create {}", folder.display()), &error))?;
    let out = folder.join(PREDICTIONS);
    let count = predict_to_file(&model, task, &options, device, &out).map_err(|error| error.at("data.test"))?;
    talk.inform(format!("wrote {count} predictions to {}", out.display()))
}

pub(super) fn run_verify_resume(args: &VerifyResumeArgs) -> Result<()> {
    if args.modes {
        let config = args.config.load_for_modes("has no effect with --modes, which resumes in both modes")?;
        return across_modes(&config, &part_in_a_process)?
            .iter()
            .try_for_each(|(modes, report)| shown(&format!("{modes}: "), report));
    }
    let config = args.config.load()?;
    let Some(micro) = args.micro_batch else { return shown("", &verify(&config, &part_in_a_process)?) };
    let report = with_micro_batch(&config, micro, &part_in_a_process)?;
    shown(&format!("micro-batch {micro}: "), &report)?;
    say(match report.apart {
        0.0 => "the weights are the same to the bit".into(),
        apart => format!("the weights are apart by rounding, by {apart:.1e} of their norm"),
    })
}

/// Trains a part, for the process that asked for it.
pub(super) fn run_part(args: &PartArgs) -> Result<()> {
    let config = RunConfig::load(&args.file)?;
    engines::hand_over(config.trainer.compiler.as_ref(), config.trainer.device.kind)?;
    let PartArgs { before_stop, without_dropout, .. } = *args;
    verify_resume::train(&Part { config, before_stop, without_dropout }, &open)
}

/// Runs `kiln resume-part` on `part`.
fn part_in_a_process(part: &Part) -> Result<()> {
    let mut flags = Vec::new();
    flags.extend(part.before_stop.then_some("--before-stop"));
    flags.extend(part.without_dropout.then_some("--without-dropout"));
    let what = format!("the {} run", part.config.trainer.compiler_mode());
    in_a_process(&this_program()?, "resume-part", &part.config, &what, |work| work.with(flags)).map(drop)
}

fn shown(modes: &str, report: &Resumed) -> Result<()> {
    let Resumed { before, after, tensors, rows, within, differences, .. } = report;
    if differences.is_empty() {
        return say(format!(
            "{modes}{} steps equal {before} steps, a stop and {after} steps: {tensors} tensors of weights and moments and \
             {rows} rows are the same, {within}",
            before + after
        ));
    }
    let shown = differences.iter().take(6).map(String::as_str).collect::<Vec<_>>().join("\n  ");
    Err(Error::differs(format!(
        "{modes}{} steps do not equal {before} steps, a stop and {after} steps; {} differences:\n  {shown}",
        before + after,
        differences.len()
    ))
    .help("on the CPU this is a defect of Kiln; a GPU may add in another order each time"))
}
