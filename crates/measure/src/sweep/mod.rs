//! A search over keys of a config: each combination is a trial, each trial a run like any other, in
//! a process and a folder of its own, in one mode or in both. `kiln sweep` is built on it. Its
//! results are kept in `sweep.json` after every step of the search, so that a search which was
//! stopped or killed goes on where it stood.

mod halving;
pub mod space;

use std::convert::Infallible;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use halving::Standing;
use kiln::config::toml_words::toml_error;
use kiln::config::{CompilerMode, RunConfig, SaveStrategy, movable};
use kiln::run_folder::{RunStatus, Status};
use kiln::task::model_task;
use kiln_core::error::{Error, ErrorKind, Result, nearest};
use kiln_core::files::{read_json, read_regular_text, write_json, write_whole};
use kiln_core::process::{Kind, OnSignal, scratch};
use kiln_core::words::duration;
use kiln_core::{metrics, signals};
use serde::{Deserialize, Serialize};
use space::{Direction, Modes, Parameters, SweepSection};

use crate::runner::{Failure, Work};

/// The file of a search, in its folder.
pub const FILE: &str = "sweep.json";

/// The config whose keys are searched, in the folder of the search.
const CONFIG: &str = "config.toml";

/// Hugging Face's arguments that are laid over it, in the same folder.
const HF_ARGS: &str = "hf_args.json";

/// The folder of the runs, in that of the search.
const TRIALS: &str = "trials";

/// The figures of the rows of training by which trials can be ranked.
const OF_TRAINING: &[&str] = &[
    "loss",
    "train_loss",
    "grad_norm",
    "step_ms",
    "tokens_per_s",
    "peak_mib",
    "reserved_mib",
    "data_wait",
    "communicate_ms",
    "train_runtime",
    "train_samples_per_second",
    "train_steps_per_second",
    "steady_step_ms",
    "steady_tokens_per_second",
    "steady_communicate_ms",
    "warmup_seconds",
    "eval_seconds",
    "save_seconds",
    "save_wait_seconds",
    "verify_seconds",
    "loss_scale",
    "found_inf",
    "skipped_steps",
    "outlier_steps",
    "step",
    "epoch",
    "samples",
    "tokens",
    "learning_rate",
];

/// The figures of every evaluation, without `eval_`, beside those of the task.
const OF_EVERY_EVALUATION: &[&str] = &["samples", "runtime", "samples_per_second", "steps_per_second"];

const SCHEMA: &str = "kiln-sweep/1";

/// A run whose driver has gone ends within this.
const LINGERING: Duration = Duration::from_secs(10);

/// The options of a search.
#[derive(Debug, Clone)]
pub struct Options {
    /// The file with the section `[sweep]`.
    pub file: PathBuf,
    /// Hugging Face's arguments, which are laid over the config in every trial.
    pub hf_args: Option<PathBuf>,
    /// Overrides of keys of the config, which hold for every trial.
    pub set: Vec<String>,
    /// The folder of the search; the section's when none.
    pub out: Option<PathBuf>,
    /// The modes; the section's when none.
    pub mode: Option<Modes>,
    /// The `kiln` that trains.
    pub program: PathBuf,
}

/// A search: what was asked, and what is known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    schema: String,
    /// The file with the section.
    pub title: String,
    section: SweepSection,
    /// The config, and the overrides that hold for every trial.
    config: String,
    set: Vec<String>,
    /// The text of the file of Hugging Face's arguments, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hf_args: Option<String>,
    /// The figure by which trials are ranked.
    pub metric: String,
    /// The smaller figure is better.
    pub minimizes: bool,
    /// The modes in which a trial is made; the first one's figures decide.
    pub modes: Vec<CompilerMode>,
    /// The trials.
    pub trials: Vec<Trial>,
}

/// A combination and its runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// From 1.
    pub number: usize,
    /// The keys with their values, as they are written in TOML.
    pub parameters: Parameters,
    /// Its run in each mode.
    pub arms: Vec<TrialArm>,
}

/// The run of a trial in a mode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialArm {
    /// The mode.
    pub mode: CompilerMode,
    /// The run folder.
    pub run: PathBuf,
    /// Its figures at each rung.
    pub rungs: Vec<Rung>,
    /// It has made all of its steps.
    pub is_complete: bool,
    /// How it failed.
    pub failure: Option<Failure>,
}

/// The figures of a run when it has come to a rung.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rung {
    /// Optimizer steps made.
    pub step: u64,
    /// The metric.
    pub value: f64,
    /// Seconds that the run has taken so far, over all its processes.
    pub seconds: f64,
}

impl Trial {
    /// The last figures of the run whose figures decide.
    pub fn last(&self) -> Option<Rung> {
        self.arms.first()?.rungs.last().copied()
    }

    /// Whether its runs have made all of their steps.
    pub fn is_complete(&self) -> bool {
        self.arms.iter().all(|arm| arm.is_complete)
    }

    /// How it failed in some mode.
    pub fn failure(&self) -> Option<&Failure> {
        self.arms.iter().find_map(|arm| arm.failure.as_ref())
    }

    /// Its parameters, as a config has them.
    pub fn described(&self) -> String {
        let all = self.parameters.iter().map(|(key, value)| format!("{key} = {value}"));
        all.collect::<Vec<_>>().join(", ")
    }

    /// The seconds of its run in `mode`.
    pub fn seconds(&self, mode: CompilerMode) -> Option<f64> {
        Some(self.arms.iter().find(|arm| arm.mode == mode)?.rungs.last()?.seconds)
    }
}

impl Sweep {
    /// The trials that have not failed and have a figure, the best first: the complete ones by
    /// their figure, then the others, of which those that came farther stand before the rest.
    pub fn ranked(&self) -> Vec<&Trial> {
        let known = |trial: &&Trial| trial.failure().is_none() && trial.last().is_some();
        let mut trials = self.trials.iter().filter(known).collect::<Vec<_>>();
        // A complete trial may have fewer steps than another: the batch and the epochs can be
        // searched.
        let key = |trial: &Trial| {
            let (step, value) = trial.last().map_or((0, 0.0), |last| (last.step, last.value));
            (if trial.is_complete() { u64::MAX } else { step }, self.score(value))
        };
        trials.sort_by(|a, b| {
            let ((a_steps, a_score), (b_steps, b_score)) = (key(a), key(b));
            b_steps.cmp(&a_steps).then(a_score.total_cmp(&b_score))
        });
        trials
    }

    /// The numbers of the trials that none is better than, in the order of
    /// [`ranked`](Self::ranked): several where their figures are equal.
    pub fn best(&self) -> Vec<usize> {
        let ranked = self.ranked();
        let key = |trial: &Trial| {
            let last = trial.last().map(|last| (last.value, if trial.is_complete() { 0 } else { last.step }));
            (trial.is_complete(), last)
        };
        let first = ranked.first().copied().map(key);
        ranked.into_iter().take_while(|trial| Some(key(trial)) == first).map(|trial| trial.number).collect()
    }

    /// The steps and figures of `trial` in the first mode: those of its rows, and of the rungs. The
    /// evaluation at a rung is no row of a run that went on from there, whose rows are those of a
    /// run that never stopped.
    ///
    /// # Errors
    /// Rows that cannot be read; a run that was removed has its rungs alone.
    pub fn curve(&self, trial: &Trial) -> Result<Vec<(f64, f64)>> {
        let Some(arm) = trial.arms.first() else { return Ok(Vec::new()) };
        let rows = if arm.run.is_dir() { metrics::read(&arm.run)? } else { Vec::new() };
        let mut points =
            rows.iter().filter_map(|row| Some((row.get("step")?, row.get(&self.metric)?))).collect::<Vec<_>>();
        let is_row = |step: f64| points.iter().any(|(at, _)| *at == step);
        let rungs = arm.rungs.iter().map(|rung| (rung.step as f64, rung.value));
        let rungs = rungs.filter(|(step, _)| !is_row(*step)).collect::<Vec<_>>();
        points.extend(rungs);
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Ok(points)
    }

    /// The seconds of all trials that were made in both modes, native and compiled; none for a
    /// search in one mode.
    pub fn seconds_of_modes(&self) -> Option<(f64, f64)> {
        let both = |trial: &Trial| Some((trial.seconds(CompilerMode::Native)?, trial.seconds(CompilerMode::Compiled)?));
        let all = self.trials.iter().filter(|trial| trial.failure().is_none()).filter_map(both);
        let (native, compiled): (Vec<f64>, Vec<f64>) = all.unzip();
        (!native.is_empty()).then(|| (native.iter().sum(), compiled.iter().sum()))
    }

    /// The figure as a number of which less is better.
    fn score(&self, value: f64) -> f64 {
        if self.minimizes { value } else { -value }
    }

    fn standing(&self, trial: &Trial) -> Standing {
        let rungs = trial.arms.iter().map(|arm| arm.rungs.len()).min().unwrap_or(0);
        let scores = trial.arms.first().into_iter().flat_map(|arm| &arm.rungs).take(rungs);
        Standing {
            scores: scores.map(|rung| self.score(rung.value)).collect(),
            is_complete: trial.is_complete(),
            has_failed: trial.failure().is_some(),
        }
    }

    /// Whether this search, which was kept, is that of `asked`, of which nothing is known yet.
    fn is_of(&self, asked: &Self) -> Result<bool> {
        let mut kept = self.clone();
        kept.title.clone_from(&asked.title);
        for arm in kept.trials.iter_mut().flat_map(|trial| &mut trial.arms) {
            (arm.rungs, arm.is_complete, arm.failure) = (Vec::new(), false, None);
        }
        // A number may differ from itself in the last place once it was read from JSON.
        let json = |error: serde_json::Error| Error::data(format!("{FILE}: {error}"));
        let asked: Self = serde_json::from_str(&serde_json::to_string(asked).map_err(json)?).map_err(json)?;
        Ok(kept == asked)
    }
}

/// A file with a search. Its other sections are those of a config.
#[derive(Deserialize)]
struct Searching {
    sweep: SweepSection,
}

/// The section `[sweep]` of `file`, and the text of the config that it searches.
fn read(file: &Path) -> Result<(SweepSection, String)> {
    let text = |path: &Path| {
        read_regular_text(path).map_err(|error| {
            let error_text = Error::config(format!("{}: {error}", path.display()));
            if error.kind() == std::io::ErrorKind::NotFound {
                error_text.help("paths are relative to where kiln is started")
            } else {
                error_text
            }
        })
    };
    let at = |error: &dyn std::fmt::Display| Error::config(format!("{}: {error}", file.display()));
    let whole = text(file)?;
    let mut document: toml::Table = whole.parse().map_err(|error| toml_error(file.display(), &whole, &error))?;
    if document.remove("sweep").is_none() {
        return Err(at(&"the section [sweep] is missing")
            .help("for example: [sweep] and [sweep.parameters] with \"trainer.learning_rate\" = [1e-4, 1e-3]"));
    }
    // Read from the text, whose places an error names.
    let Searching { sweep: section } = toml::from_str(&whole).map_err(|error: toml::de::Error| {
        let told = toml_error(file.display(), &whole, &error);
        // The list of what [sweep] has is that of no section in it.
        if error.message().starts_with("unknown field") && error.message().contains("`parameters`") {
            return told.help(
                "[sweep.parameters] has the values of each key, as in \"trainer.learning_rate\" = [1e-4, 1e-3], and \
                 sweep.method is \"grid\" or \"random\"",
            );
        }
        told
    })?;
    let config = match &section.config {
        None => movable(toml::to_string(&document).map_err(|error| at(&error))?, file)?,
        Some(path) if document.is_empty() => movable(text(path)?, path)?,
        Some(path) => {
            let names = document.keys().cloned().collect::<Vec<_>>().join(", ");
            return Err(at(&format!(
                "sweep.config names {}, and the file has sections of a config: {names}",
                path.display()
            ))
            .help("leave out one of them; --set overrides a key of the config"));
        }
    };
    Ok((section, config))
}

/// The folder of a search whose file is called `stem`.
fn folder_of(stem: &str) -> PathBuf {
    let ending = if stem.ends_with("sweep") { "" } else { "-sweep" };
    PathBuf::from("runs").join(format!("{stem}{ending}"))
}

/// The search that `options` ask for, with nothing known yet, and its folder.
fn asked(options: &Options) -> Result<(Sweep, PathBuf)> {
    let (section, config) = read(&options.file)?;
    for (key, help) in space::SET_BY_THE_SEARCH {
        if options.set.iter().any(|set| set.split('=').next().is_some_and(|name| name.trim() == key)) {
            return Err(Error::config(format!("--set {key}: a search sets it for each of its runs")).help(help));
        }
    }
    let stem = options.file.file_stem().unwrap_or_default().to_string_lossy();
    let out = options.out.clone().or_else(|| section.output_dir.clone());
    let out = out.unwrap_or_else(|| folder_of(&stem));
    let trials = section.parameters_of_trials().map_err(|error| error.at(options.file.display()))?;
    for set in &options.set {
        let key = set.split('=').next().unwrap_or_default().trim();
        let spellings: &[&str] =
            if key == "precision" { &["precision", "trainer.bf16", "trainer.fp16"] } else { &[key] };
        if let Some(searched) = spellings.iter().find(|key| trials[0].contains_key(**key)) {
            let given = match set.strip_prefix("precision=") {
                Some(precision) => format!("--precision {precision}"),
                None => format!("--set {set}"),
            };
            let message = format!("{given}: the search gives {searched} a value in each of its runs");
            return Err(Error::config(message).help("leave it out, or take the key out of [sweep.parameters]"));
        }
    }
    // Every combination is a config that can be read: nothing is trained before a mistake in the
    // last one is found.
    let folder = scratch()?;
    let file = folder.path().join(CONFIG);
    write_whole(&file, config.as_bytes())?;
    let load = |parameters: &Parameters| {
        let set = [&options.set[..], &overrides(parameters, &folder.path().join("run"))].concat();
        RunConfig::load_layers(&file, options.hf_args.as_deref(), &set, |_| Ok(())).map_err(|error| {
            let written = |(key, value): (&String, &String)| {
                let here = format!("{}: [sweep.parameters]: {key} = {value}", options.file.display());
                (format!("--set {key}={value}"), here)
            };
            let of_search = parameters.iter().map(written).collect::<Vec<_>>();
            let of_search = of_search.iter().map(|(set, here)| (set.as_str(), here.as_str())).collect::<Vec<_>>();
            let config = file.display().to_string();
            error.in_terms_of(&[&of_search[..], &[(config.as_str(), "the config")]].concat())
        })
    };
    let first = load(&trials[0])?;
    trials[1..].iter().try_for_each(|trial| load(trial).map(drop))?;
    let hf_args = options
        .hf_args
        .as_ref()
        .map(|path| fs::read_to_string(path).map_err(|error| Error::io(format!("read {}", path.display()), &error)));
    let hf_args = hf_args.transpose()?;
    let keeps = matches!(first.trainer.save_strategy, SaveStrategy::Steps | SaveStrategy::Epoch);
    if section.asha.is_some() && (!keeps || first.trainer.save_only_model) {
        return Err(Error::config("sweep.asha: a trial that goes on needs the checkpoint of its last rung")
            .help("set trainer.save_strategy = \"steps\" or \"epoch\", and leave out trainer.save_only_model"));
    }
    if first.trainer.push_to_hub {
        return Err(Error::config("trainer.push_to_hub = true: all trials of a search would be uploaded to one place")
            .help("--set trainer.push_to_hub=false, and `kiln push` for the trial that is chosen"));
    }
    let modes = match options.mode.or(section.mode) {
        Some(modes) => modes.list(),
        None => match first.trainer.compiler_mode() {
            CompilerMode::Auto => Modes::Both.list(),
            mode => vec![mode],
        },
    };
    let metric = section.metric.clone().unwrap_or_else(|| {
        let evaluates = first.trainer.evaluates() || first.trainer.do_eval;
        if first.data.validation.is_some() && evaluates { "eval_loss" } else { "loss" }.into()
    });
    check_metric(&metric, &first)
        .map_err(|error| error.at(format_args!("{}: sweep.metric", options.file.display())))?;
    let minimizes = match section.direction {
        Some(direction) => direction == Direction::Minimize,
        None => metric.ends_with("loss") || metric.ends_with("perplexity"),
    };
    let digits = trials.len().to_string().len().max(3);
    let trial = |(index, parameters)| {
        let number = index + 1;
        let arm = |mode: &CompilerMode| {
            let run = out.join(TRIALS).join(format!("{number:0digits$}-{mode}"));
            TrialArm { mode: *mode, run, rungs: Vec::new(), is_complete: false, failure: None }
        };
        Trial { number, parameters, arms: modes.iter().map(arm).collect() }
    };
    let sweep = Sweep {
        schema: SCHEMA.into(),
        title: options.file.display().to_string(),
        trials: trials.into_iter().enumerate().map(trial).collect(),
        section,
        config,
        set: options.set.clone(),
        hf_args,
        metric,
        minimizes,
        modes,
    };
    Ok((sweep, out))
}

/// Whether the rows of a run of `config` have a figure called `metric`.
///
/// # Errors
/// They have none, or none without an evaluation.
fn check_metric(metric: &str, config: &RunConfig) -> Result<()> {
    let of_evaluation =
        model_task(config.data.task).figures().iter().chain(OF_EVERY_EVALUATION).map(|name| format!("eval_{name}"));
    let of_evaluation = of_evaluation.collect::<Vec<_>>();
    // Whether a dataset of the Hub has a split for validation is known once it is opened.
    let has_data = config.data.validation.is_some() || config.data.dataset_name.is_some();
    let evaluates = has_data && config.trainer.evaluates();
    if of_evaluation.iter().any(|name| name == metric) {
        if evaluates {
            return Ok(());
        }
        return Err(Error::config(format!("{metric} is a figure of an evaluation, and the trials make none"))
            .help("set data.validation and trainer.eval_strategy, or rank by \"loss\""));
    }
    if OF_TRAINING.contains(&metric) {
        return Ok(());
    }
    let known = of_evaluation.iter().filter(|_| evaluates).map(String::as_str).chain(OF_TRAINING.iter().copied());
    let near = nearest(metric, known).map_or_else(String::new, |near| format!("did you mean `{near}`? "));
    let of_task =
        model_task(config.data.task).figures().iter().filter(|_| evaluates).map(|name| format!("eval_{name}, "));
    let of_task = of_task.collect::<String>();
    Err(Error::config(format!("expected a figure of the rows of a trial, got {metric:?}"))
        .help(format!("{near}they have {of_task}loss, train_loss and the other figures of metrics.jsonl")))
}

/// The settings that override the config in a trial of `parameters` whose run folder is `run`.
fn overrides(parameters: &Parameters, run: &Path) -> Vec<String> {
    let own = parameters.iter().map(|(key, value)| format!("{key}={value}"));
    let run = toml::Value::String(run.display().to_string());
    own.chain([format!("run.output_dir={run}"), "run.on_existing=resume".into()]).collect()
}

/// Makes the search, or goes on with the one that is in its folder; `say` is told how far it is.
/// Returns the search, its folder, and the error that it should end with although it has results:
/// that of a search of which every trial failed.
///
/// # Errors
/// A file that describes no search, a config that cannot be read in some trial, a folder with
/// something else in it; a mistake that every trial would meet (config, data, files), and a signal.
pub fn run(options: &Options, say: &mut dyn FnMut(String) -> Result<()>) -> Result<(Sweep, PathBuf, Option<Error>)> {
    signals::install()?;
    let (mut sweep, out) = asked(options)?;
    let file = out.join(FILE);
    if let Some(kept) = kept(&out)? {
        if !kept.is_of(&sweep)? {
            return Err(Error::config(format!(
                "{} holds another search than {} describes",
                out.display(),
                sweep.title
            ))
            .help("give the search a folder of its own: --out FOLDER, or sweep.output_dir"));
        }
        sweep = kept;
        say(format!("going on with the search in {}", out.display()))?;
    }
    fs::create_dir_all(out.join(TRIALS)).map_err(|error| Error::io(format!("create {}", out.display()), &error))?;
    write_whole(&out.join(CONFIG), sweep.config.as_bytes())?;
    if let Some(text) = &sweep.hf_args {
        write_whole(&out.join(HF_ARGS), text.as_bytes())?;
    }
    write_json(&file, &sweep)?;
    let factor = sweep.section.asha.map(|asha| asha.reduction_factor);
    say(format!("{} trials by {} in {}", sweep.trials.len(), sweep.metric, out.display()))?;
    loop {
        let standings = sweep.trials.iter().map(|trial| sweep.standing(trial)).collect::<Vec<_>>();
        let Some(index) = halving::next(&standings, factor) else { break };
        let rung = standings[index].scores.len();
        let mut order = (0..sweep.modes.len()).collect::<Vec<_>>();
        // Neither mode always comes first.
        if (index + rung) % 2 == 1 {
            order.reverse();
        }
        for arm in order {
            if sweep.trials[index].arms[arm].rungs.len() > rung {
                continue; // known before the search was stopped
            }
            advance(options, &mut sweep, &out, (index, arm, rung))?;
            write_json(&file, &sweep)?;
            let (trial, arm) = (&sweep.trials[index], &sweep.trials[index].arms[arm]);
            let found = match (&arm.failure, arm.rungs.last()) {
                (Some(failure), _) => format!("failed: {}", failure.message),
                (None, Some(Rung { step, value, seconds })) => {
                    format!("{} {value:.6} after {step} steps, {}", sweep.metric, duration(*seconds))
                }
                (None, None) => "nothing is known".into(),
            };
            say(format!(
                "trial {} of {} ({}): {}: {found}",
                trial.number,
                sweep.trials.len(),
                arm.mode,
                trial.described()
            ))?;
            if arm.failure.is_some() {
                break;
            }
        }
    }
    let failure = sweep.trials.iter().find_map(Trial::failure).filter(|_| sweep.ranked().is_empty());
    let error = failure.map(|failure| failure.error("every trial failed; the first"));
    Ok((sweep, out, error))
}

/// The search that the folder `out` keeps, if there is one.
///
/// # Errors
/// Another folder's content, and a file that cannot be read.
pub fn kept(out: &Path) -> Result<Option<Sweep>> {
    let file = out.join(FILE);
    if file.is_file() {
        return read_json(&file).map(Some);
    }
    let is_used = fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_some());
    if is_used {
        Err(Error::config(format!("{} is not empty and holds no search", out.display()))
            .help("give the search a folder of its own: --out FOLDER, or sweep.output_dir"))
    } else {
        Ok(None)
    }
}

/// Brings a run of the search to rung `rung`: (trial, arm, rung).
fn advance(options: &Options, sweep: &mut Sweep, out: &Path, (trial, arm, rung): (usize, usize, usize)) -> Result<()> {
    let (parameters, TrialArm { run, mode, .. }) = (&sweep.trials[trial].parameters, &sweep.trials[trial].arms[arm]);
    let target = sweep.section.asha.map_or(u64::MAX, |asha| asha.steps(rung));
    let has_come = |status: &Status| status.step >= target.min(status.total_steps);
    // The run of a search that was killed ends a moment after it.
    let asked = Instant::now();
    let mut before = Status::read(run)?;
    while before.as_ref().is_some_and(|status| status.status == RunStatus::InProgress) && asked.elapsed() < LINGERING {
        std::thread::sleep(Duration::from_millis(50));
        before = Status::read(run)?;
    }
    let mut failure = None;
    // It may have come there before the search was stopped.
    if !before.is_some_and(|status| status.status == RunStatus::Completed && has_come(&status)) {
        let folder = scratch()?;
        let work = Work::of(&options.program, folder.path().join("stderr"));
        let sets = overrides(parameters, run);
        let sets = sweep.set.iter().chain(&sets).flat_map(|set| ["--set", set.as_str()]);
        let stop = (target != u64::MAX).then(|| format!("--stop-after={target}"));
        let work = work.with([OsStr::new("train"), out.join(CONFIG).as_os_str()]);
        let args_file = out.join(HF_ARGS);
        let hf_args = sweep.hf_args.as_ref().map(|_| [OsStr::new("--hf-args"), args_file.as_os_str()]);
        let work = work.with(["--compiler", mode.as_str()]).with(hf_args.into_iter().flatten()).with(sets).with(stop);
        // A signal to this process ends the run with a checkpoint.
        let stopped = "stopped; the same command goes on with the search";
        let child = Work { kind: Kind::Apart, ..work }.start()?;
        let Ok(exit) = child.watch(OnSignal::PassOn, stopped, |_| None::<Infallible>)?;
        match exit.error() {
            None => {}
            // Another combination may well do: it needs too much memory, or it diverges.
            Some(error)
                if matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::NonFinite | ErrorKind::Device) =>
            {
                failure = Some(Failure::from(&error));
            }
            Some(error) => return Err(error.at(format!("trial {}", sweep.trials[trial].number))),
        }
    }
    let found = match failure {
        Some(failure) => Err(failure),
        None => known(run, &sweep.metric)?,
    };
    let arm = &mut sweep.trials[trial].arms[arm];
    match found {
        Ok((rung, is_complete)) => {
            arm.rungs.push(rung);
            arm.is_complete = is_complete;
        }
        Err(failure) => arm.failure = Some(failure),
    }
    Ok(())
}

/// The figures of the run in the folder `run`, and whether it has made all of its steps; or why
/// that is no result.
fn known(run: &Path, metric: &str) -> Result<std::result::Result<(Rung, bool), Failure>> {
    let status = Status::read(run)?.ok_or_else(|| Error::data(format!("{}: there is no run in it", run.display())))?;
    let rows = metrics::read(run)?;
    let Some(value) = rows.iter().rev().find_map(|row| row.get(metric)) else {
        let names =
            rows.iter().flat_map(|row| row.fields().map(|(name, _)| name)).collect::<std::collections::BTreeSet<_>>();
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        return Err(Error::config(format!("sweep.metric: the rows of {} have no {metric}", run.display()))
            .help(format!("they have {names}; a figure of the validation data needs data.validation")));
    };
    if !value.is_finite() {
        return Ok(Err(Failure::from(&Error::non_finite(format!("{metric} is {value}")))));
    }
    let rung = Rung { step: status.step, value, seconds: status.seconds };
    Ok(Ok((rung, status.step >= status.total_steps)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_folder_of_a_search_has_its_name_once() {
        let folders = ["sweep", "lora-sweep", "lora"].map(folder_of);
        assert_eq!(folders, ["runs/sweep", "runs/lora-sweep", "runs/lora-sweep"].map(PathBuf::from));
    }

    #[test]
    fn a_dataset_of_the_hub_may_have_the_split_that_a_search_ranks_by() {
        let mut config = RunConfig::default();
        config.trainer.do_eval = true;
        assert!(check_metric("eval_loss", &config).is_err(), "no data are evaluated");
        config.data.dataset_name = Some("org/name".into());
        assert!(check_metric("eval_loss", &config).is_ok());
        assert!(check_metric("eval_los", &config).unwrap_err().to_string().contains("did you mean `eval_loss`?"));
    }

    fn arm(run: &Path, rungs: &[(u64, f64)]) -> TrialArm {
        let rung = |&(step, value): &(u64, f64)| Rung { step, value, seconds: 1.0 };
        let rungs = rungs.iter().map(rung).collect();
        TrialArm { mode: CompilerMode::Native, run: run.into(), rungs, is_complete: true, failure: None }
    }

    fn trial(number: usize, arm: TrialArm) -> Trial {
        Trial { number, parameters: Parameters::new(), arms: vec![arm] }
    }

    fn sweep(trials: Vec<Trial>) -> Sweep {
        Sweep {
            schema: SCHEMA.into(),
            title: String::new(),
            section: toml::from_str("parameters = {}").unwrap(),
            config: String::new(),
            set: Vec::new(),
            hf_args: None,
            metric: "eval_loss".into(),
            minimizes: true,
            modes: vec![CompilerMode::Native],
            trials,
        }
    }

    #[test]
    fn trials_of_equal_figures_are_best_together() {
        let of = |values: &[f64]| {
            let trials = values.iter().enumerate().map(|(index, value)| {
                let mut arm = arm(Path::new("none"), &[(10, *value)]);
                arm.is_complete = index != 3;
                trial(index + 1, arm)
            });
            sweep(trials.collect()).best()
        };
        assert_eq!(of(&[2.0, 1.0, 1.5]), [2]);
        assert_eq!(of(&[1.0, 1.0, 1.5]), [1, 2]);
        assert_eq!(of(&[1.0, 1.0, 1.0, 1.0]), [1, 2, 3], "one that was stopped early is not equal");
        assert!(of(&[]).is_empty());
    }

    #[test]
    fn a_curve_has_the_rungs_that_are_no_rows() {
        let run = tempfile::tempdir().unwrap();
        let row = |step: u64, key: &str, value: f64| format!("{{\"step\": {step}, \"{key}\": {value}}}\n");
        let rows = [row(3, "loss", 9.0), row(5, "eval_loss", 2.0), row(10, "eval_loss", 1.0)].concat();
        fs::write(run.path().join(metrics::FILE), rows).unwrap();
        let trial = |run: &Path| trial(1, arm(run, &[(2, 4.0), (6, 1.5), (10, 1.0)]));
        let sweep = sweep(Vec::new());
        let whole = [(2.0, 4.0), (5.0, 2.0), (6.0, 1.5), (10.0, 1.0)];
        assert_eq!(sweep.curve(&trial(run.path())).unwrap(), whole);
        let removed = sweep.curve(&trial(&run.path().join("none"))).unwrap();
        assert_eq!(removed, [(2.0, 4.0), (6.0, 1.5), (10.0, 1.0)], "a run that was removed");
    }
}
