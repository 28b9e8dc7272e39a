//! `kiln job`: the entry point of a container that trains. It reads the contract of the platform
//! ([`contract`]), makes a config of it, trains in a process of its own that continues from the
//! job's checkpoints, and leaves the results where the platform looks for them ([`results`]).

pub(super) mod contract;
mod hyperparameters;
mod results;
mod rules;
mod scripts;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;
use contract::{Channel, Contract, ROOT};
use flate2::read::GzDecoder;
use hyperparameters::{Asked, Hyperparameters};
use kiln::config::settings::Setting;
use kiln::config::{self, DeviceKind, OnExisting, RunConfig, Task, Validation};
use kiln::engine::compiler::start_up_lines;
use kiln::engine::device;
use kiln_core::error::{Error, Result};
use kiln_core::files::write_whole;
use kiln_core::process::{Child, Kind, scratch, this_program};
use kiln_core::signals;
use kiln_data::paths;
use results::{Clock, Failure};
use rules::Known;
use toml::{Table, Value};

use super::say;

/// The config of the job's run, among its results.
const CONFIG: &str = "config.toml";

/// The run folder, in the folder of checkpoints.
pub(crate) const RUN: &str = "run";

/// How often the process that trains is looked at.
const POLL: Duration = Duration::from_millis(20);

#[derive(Debug, Args)]
pub(super) struct JobArgs {
    /// The folder that stands for /opt/ml
    #[arg(long, value_name = "DIR", default_value = ROOT)]
    root: PathBuf,
    /// Price of an hour of this machine; the cost of the job is then said at the end. The variable
    /// KILN_PRICE_PER_HOUR and the hyperparameter price_per_hour say it too
    #[arg(long, value_name = "PRICE", allow_hyphen_values = true)]
    price_per_hour: Option<String>,
    /// Hyperparameters as a script takes them: --learning_rate 5e-5 --do_eval, or one file
    /// args.json; --hf-args, --compiler and --precision are taken as by `kiln train`. Options of
    /// kiln stand before them; the word `train`, which platforms put behind the entry point of a
    /// container, means nothing
    #[arg(value_name = "ARGUMENTS", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// A price of an hour.
///
/// # Errors
/// A text that is no such price.
fn price(text: &str) -> Result<f64> {
    let number = text.trim().parse::<f64>().ok().filter(|price| price.is_finite() && *price >= 0.0);
    number.ok_or_else(|| Error::config(format!("expected a price, a number that is not negative, got {text:?}")))
}

/// How the training ended.
struct Ended {
    error: Option<Error>,
    /// The process that trained has said it.
    is_said: bool,
}

pub(super) fn run_job(args: &JobArgs) -> Result<()> {
    let root = std::path::absolute(&args.root).map_err(|error| Error::io("find the current folder", &error))?;
    let failure = Failure::at(&root)?;
    match job(args, &root) {
        Ok(Ended { error: None, .. }) => Ok(()),
        Ok(Ended { error: Some(error), is_said }) => {
            failure.write(&error)?;
            if is_said {
                std::process::exit(error.exit_code().into());
            }
            Err(error)
        }
        Err(error) => {
            failure.write(&error)?;
            Err(error)
        }
    }
}

fn job(args: &JobArgs, root: &Path) -> Result<Ended> {
    let variables =
        std::env::vars_os().map(|(name, value)| [name, value].map(|text| text.to_string_lossy().into_owned()));
    let variables = variables.map(|[name, value]| (name, value)).filter(|(name, _)| name.starts_with("SM_"));
    let mut contract = Contract::read(root, &variables.collect::<BTreeMap<_, _>>())?;
    contract.add(&args.arguments)?;
    let own = contract.own()?;
    let folder = scratch()?;
    for channel in &mut contract.channels {
        if let Some(model) = unpacked(channel, folder.path())? {
            channel.path = model;
        }
    }
    let (config, Hyperparameters { mut left, price: hyper, ranks: asked, .. }) = config_of(&contract)?;
    let ranks = ranks(&contract, &config, &asked, &mut left)?;
    let of_variable = std::env::var("KILN_PRICE_PER_HOUR").ok().filter(|text| !text.is_empty());
    let price = match (&args.price_per_hour, of_variable) {
        (Some(text), _) => Some(price(text).map_err(|error| error.at("--price-per-hour"))?),
        (None, Some(text)) if hyper.is_none() => Some(price(&text).map_err(|error| error.at("KILN_PRICE_PER_HOUR"))?),
        _ => hyper,
    };
    let make = |path: &Path| {
        std::fs::create_dir_all(path).map_err(|error| Error::io(format!("create {}", path.display()), &error))
    };
    [&contract.output, &contract.model, &contract.checkpoints].into_iter().try_for_each(|path| make(path))?;
    let file = contract.output.join(CONFIG);
    write_whole(&file, config.to_toml()?.as_bytes())?;
    left.iter().chain(&config.trainer.no_effect).try_for_each(|line| say(format!("hyperparameters: {line}")))?;
    if own == 0 {
        start_up_lines(config.trainer.compiler.as_ref()).iter().try_for_each(say)?;
    }
    // The folder of checkpoints is that of the first machine: rank 0 alone writes.
    let mut clock = Clock::start((own == 0).then_some(&contract.checkpoints))?;
    let ended = train(&contract, own, ranks, &file, folder.path(), &mut clock);
    let published = match &ended {
        Ok(Ended { error: None, .. }) => results::publish(&contract, &config.trainer.output_dir),
        _ => {
            // The error of the training is the one to tell.
            if let Err(error) = results::publish(&contract, &config.trainer.output_dir) {
                tracing::warn!("{error}");
            }
            Ok(())
        }
    };
    clock.stop()?;
    if own == 0 {
        clock.lines(price, contract.hosts.len().max(1)).into_iter().try_for_each(say)?;
    }
    published.and(ended)
}

/// The processes of each machine: as many as hyperparameters ask for, else one for each GPU of the
/// machine. Adds what people should know to `said`.
///
/// # Errors
/// A switch that asks for one for each GPU, where nothing tells how many there are.
fn ranks(contract: &Contract, config: &RunConfig, asked: &Asked, said: &mut Vec<String>) -> Result<usize> {
    match (&asked.per_machine, asked.switch, &contract.gpus) {
        (Some((1, by)), _, Some((gpus @ 2.., given))) => {
            said.push(format!("{by}: the run takes one device, although {given}; n_gpus = {gpus} takes all"));
            Ok(1)
        }
        (Some((count, _)), ..) => Ok(*count),
        (None, Some(_), Some((gpus, _))) => Ok((*gpus).max(1)),
        (None, Some(name), None) => Err(Error::config(format!(
            "hyperparameter {name} asks for a process for each GPU, and neither SM_NUM_GPUS nor the instance's type tells how many there \
             are"
        ))
        .help("give the number for each machine by the hyperparameter n_gpus")),
        (None, None, Some((gpus @ 2.., given))) => {
            let device = device::select(config.trainer.device.kind, config.trainer.device.index)?.kind;
            if device != DeviceKind::Cpu {
                return Ok(*gpus);
            }
            said.push(format!(
                "{given}: the run computes on the CPU, in one process on each machine; n_gpus = {gpus} asks for as many processes"
            ));
            Ok(1)
        }
        (None, None, _) => Ok(1),
    }
}

/// Trains in a process of its own, so that no end of it goes untold: on the machine numbered `own`
/// of the job, in `ranks` processes on each.
fn train(
    contract: &Contract,
    own: usize,
    ranks: usize,
    config: &Path,
    folder: &Path,
    clock: &mut Clock,
) -> Result<Ended> {
    signals::install()?;
    let mut command = Command::new(this_program()?);
    let machines = contract.hosts.len().max(1);
    let all = ranks * machines;
    if all > 1 {
        command.args(["launch", "-n", &all.to_string()]);
        match machines {
            1 => &mut command,
            // All of them are this one.
            _ if contract.is_local => command.args(["--hosts", "localhost"]),
            _ => command
                .args(["--nnodes", &machines.to_string(), "--node-rank", &own.to_string()])
                .args(["--master-addr", &contract.hosts[0]]),
        };
        command.arg("--");
    }
    if let Some(current) = contract.hosts.get(own) {
        let hosts = serde_json::to_string(&contract.hosts).expect("names are JSON");
        command.env("SM_HOSTS", hosts).env("SM_CURRENT_HOST", current);
    }
    command.arg("train").arg(config).args(["--of-job", "--log-format", "dict"]).envs(contract.variables());
    let mut child = Child::start(&mut command, &folder.join("said"), Kind::Aloud)?;
    let mut is_told = false;
    let exit = loop {
        if let Some(signal) = signals::received().filter(|_| !is_told) {
            child.signal(signal);
            is_told = true;
        }
        if let Some(exit) = child.try_exit()? {
            break exit;
        }
        clock.tick()?;
        std::thread::sleep(POLL);
    };
    Ok(Ended { error: exit.error(), is_said: exit.told().is_some() })
}

/// The folder below `folder` into which the model in `channel` is unpacked, where that is an
/// archive, the form in which jobs leave their models; none for any other channel.
fn unpacked(channel: &Channel, folder: &Path) -> Result<Option<PathBuf>> {
    const ARCHIVE: &str = "model.tar.gz";
    let archive = if channel.path.ends_with(ARCHIVE) { channel.path.clone() } else { channel.path.join(ARCHIVE) };
    if !archive.is_file() || channel.path.join("config.json").is_file() {
        return Ok(None);
    }
    let target = folder.join(channel.variable().replace('/', "_"));
    let unpack = || {
        std::fs::create_dir_all(&target)?;
        tar::Archive::new(GzDecoder::new(File::open(&archive)?)).unpack(&target)
    };
    match unpack() {
        Ok(()) => Ok(Some(target)),
        Err(error) => Err(Error::data(format!("the channel {}: {}: {error}", channel.name, archive.display()))
            .help("expected a model as `kiln export` packs it")),
    }
}

/// The config of the job: the config file that it names, hyperparameters over it, and channels
/// where neither says where data and model are.
fn config_of(contract: &Contract) -> Result<(RunConfig, Hyperparameters)> {
    let base = hyperparameters::base(contract)?;
    let (text, origin) = match &base {
        Some(path) => (config::read(path)?, path.display().to_string()),
        None => (String::new(), "the job".to_owned()),
    };
    // Mistakes in the file itself are told when it is read as a config.
    let table = text.parse::<Table>().unwrap_or_default();
    let mut found = hyperparameters::read(contract, &table)?;
    let channels = of_channels(contract, &table, &found.settings)?;
    found.settings.extend(channels);
    if let Some(script) = found.script {
        let known = Known { contract, base: &table, given: found.settings.clone() };
        let (settings, said) = rules::settings(script, found.glue, known)?;
        found.settings.extend(settings);
        found.left.extend(said);
    }
    let run = contract.checkpoints.join(RUN);
    found.settings.push(Setting::new("run.output_dir", run.display().to_string(), "the job"));
    found.settings.push(Setting::new("run.on_existing", OnExisting::Resume.as_str(), "the job"));
    let config = RunConfig::with_settings(&text, &origin, &found.settings).map_err(|error| match base {
        // There is no file in which a section could be added.
        None if error.message().contains("data.task: required") => Error::config("the job has no task").help(format!(
            "give the hyperparameter task ({}), or a config by kiln_config or in a channel",
            Task::ALL.map(|task| task.to_string()).join(", ")
        )),
        _ => error,
    })?;
    let mut config = RunConfig::from(config);
    relocate(&mut config, contract);
    unread(contract, &config)?;
    Ok((config, found))
}

/// Data and model from channels, where nothing else says where they are; and the format of data
/// that are named outside of the config file.
fn of_channels(contract: &Contract, base: &Table, given: &[Setting]) -> Result<Vec<Setting>> {
    let known = Known { contract, base, given: given.to_vec() };
    let set = |section: &str, key: &str| known.setting(section, key);
    let is_set = |section: &str, key: &str| known.is_set(section, key);
    let mut settings = Vec::new();
    let mut take = |key: &str, names: &[&str]| {
        let (section, name) = key.split_once('.').unwrap_or(("", key));
        let channel = contract.channel(names).filter(|_| !is_set(section, name))?;
        let origin = format!("the channel {}", channel.name);
        settings.push(Setting::new(key, channel.in_config(), &origin));
        Some(channel)
    };
    if !is_set("data", "dataset_name") {
        take("data.train", &["train", "training"]);
    }
    let predicts = known.is_true("trainer", "do_predict");
    // Scripts for SageMaker evaluate on the channel `test`; those of Hugging Face predict its rows.
    let others = if predicts { &[][..] } else { &["test"] };
    take("data.validation", &[&["validation", "valid", "val", "eval", "evaluation"][..], others].concat());
    if predicts {
        take("data.test", &["test", "predict"]);
    }
    if !is_set("model", "kind") {
        take("model.from", &["model", "pretrained"]);
    }
    let train = settings.iter().find(|setting| setting.path == ["data", "train"]).or(set("data", "train"));
    if let Some(train) = train.filter(|_| !is_set("data", "format")) {
        let is_answering = known.task() == Some(Task::QuestionAnswering);
        let pattern = match &train.value {
            Value::Array(patterns) => patterns.first().and_then(Value::as_str),
            value => value.as_str(),
        };
        let path = pattern.map(|pattern| contract.expand(pattern)).transpose()?;
        if let Some(format) = path.as_ref().map(|path| paths::format_of(path, is_answering)).transpose()?.flatten() {
            let origin = format!("the files of {}", train.origin);
            settings.push(Setting::new("data.format", format.as_str(), &origin));
        }
    }
    Ok(settings)
}

/// Puts the paths of the config under the root of the job.
fn relocate(config: &mut RunConfig, contract: &Contract) {
    let place = |text: &mut String| *text = contract.relocated(text);
    config.data.train.iter_mut().for_each(place);
    if let Some(Validation::Files(files)) = &mut config.data.validation {
        files.iter_mut().for_each(place);
    }
    let paths = [&mut config.trainer.test, &mut config.model.from, &mut config.tokenizer.from];
    paths.into_iter().flatten().for_each(place);
}

/// Says which channels nothing reads, but for those of the config and of the code.
fn unread(contract: &Contract, config: &RunConfig) -> Result<()> {
    let text = config.to_toml()?;
    let is_read = |channel: &Channel| {
        channel.is_named_in(&text)
            || text.contains(&channel.path.display().to_string())
            || ["config", "code"].contains(&channel.name.as_str())
            || std::fs::read_dir(&channel.path)
                .into_iter()
                .flatten()
                .flatten()
                .any(|entry| entry.path().extension().is_some_and(|ending| ending == "toml"))
    };
    let unread = contract.channels.iter().filter(|channel| !is_read(channel));
    unread.into_iter().try_for_each(|channel| {
        say(format!("channel {}: nothing reads it; a config names it as {}", channel.name, channel.in_config()))
    })
}
