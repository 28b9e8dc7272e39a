//! A job on this machine: `/opt/ml` laid out in a folder, the job run in a container where one can
//! be run, else as a process, its log followed, its end kept.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kiln::run_folder::{RunStatus, Status};
use kiln::session::export::{export, pack};
use kiln_core::error::{Error, Result};
use kiln_core::files::{read_error, write_json};
use kiln_core::process::this_program;
use kiln_core::signals::{self, Signal};
use kiln_core::variables::expand;
use serde_json::{Map, Value, json};

use super::job_file::{Channel, JobFile, is_address, text_of};
use super::jobs::{Follower, JobFolder, JobStatus};
use super::sagemaker::{self, Wrong};
use crate::job::contract::LOOPBACK;
use crate::metrics::Definition;

/// The engines of containers, in the order in which they are asked.
const ENGINES: [&str; 2] = ["docker", "podman"];

/// How often the seconds of training are written while the job goes on.
const COUNT: Duration = Duration::from_secs(1);

/// How often the job is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// A job that `max_run` ends has this long to save before it is killed, as on SageMaker.
const GRACE: Duration = Duration::from_secs(120);

/// No file of a failure is read further, in bytes: SageMaker shows its first 1024 characters.
const REASON: usize = 1024;

/// No job has more machines here.
const MOST: i64 = 64;

/// The archives of a job's results, by SageMaker's names: the model, and all else.
const ARCHIVES: [&str; 2] = ["model.tar.gz", "output.tar.gz"];

/// The program or the container that runs the job.
#[derive(Debug)]
enum Runner {
    /// A kiln.
    Process(PathBuf),
    /// An engine and an image.
    Container(&'static str, String),
}

/// A channel whose files are there: its name, its folder, and the file in it where it is one.
#[derive(Debug)]
struct Source {
    name: String,
    path: PathBuf,
}

/// Runs the job in its folder below `jobs`, and returns the exit code that the job had. With
/// `process` it is run as a process whatever its image.
///
/// # Errors
/// All of what keeps the job from being run, in one message; a job of this name that is going on or
/// complete; the operating system's.
pub(super) fn run(job: &JobFile, jobs: &Path, process: bool) -> Result<(JobStatus, u8)> {
    let (sources, definitions) = check(job)?;
    let folder = JobFolder::of(jobs, &job.name);
    let there = fs::read_dir(&folder.0).is_ok_and(|mut entries| entries.next().is_some());
    let before = folder.status()?;
    if there && before.is_none() && !folder.0.join("opt/ml").is_dir() {
        return Err(Error::config(format!("{} is not empty and holds no job of Kiln's", folder.0.display()))
            .help("name another folder with --jobs-dir FOLDER, or the job with --name NAME"));
    }
    fs::create_dir_all(folder.root())
        .map_err(|error| Error::io(format!("make {}", folder.root().display()), &error))?;
    let Some(_working) = folder.lock()? else {
        return Err(Error::config(format!("the job {} is going on", job.name))
            .help(format!("`kiln attach {}` shows it; name another one with --name NAME", job.name)));
    };
    folder.forget_stop();
    if before.as_ref().is_some_and(|before| before.status == RunStatus::Completed) {
        return Err(Error::config(format!("the job {} is complete", job.name))
            .help(format!("`kiln attach {}` shows it; name another one with --name NAME", job.name)));
    }
    let (starts, trained, transitions) =
        before.map_or((0, 0.0, Vec::new()), |before| (before.starts, before.training_seconds, before.transitions));
    let limit = Duration::from_secs(job.max_run.cast_unsigned()).saturating_sub(Duration::from_secs_f64(trained));
    if limit.is_zero() {
        return Err(Error::config(format!(
            "max_run: the {starts} starts of the job {} have used its {} s of training",
            job.name, job.max_run
        ))
        .help("raise max_run to continue it"));
    }
    let target = target(job, &folder)?;
    if let Some(archive) = ARCHIVES.map(|name| target.join(name)).iter().find(|archive| starts == 0 && archive.exists())
    {
        return Err(Error::config(format!(
            "output_path: {} exists, and is of no start of this job",
            archive.display()
        ))
        .help("name another folder, or the job with --name NAME"));
    }
    let runner = runner(job, process)?;
    signals::install()?;
    let mut status = JobStatus {
        name: job.name.clone(),
        status: RunStatus::InProgress,
        secondary_status: String::new(),
        message: None,
        exit_code: None,
        runner: match &runner {
            Runner::Process(_) => "process".into(),
            Runner::Container(engine, _) => (*engine).into(),
        },
        starts: starts + 1,
        training_seconds: trained,
        max_run: job.max_run.cast_unsigned(),
        written_at: 0.0,
        transitions,
        metric_definitions: definitions,
    };
    let offset = fs::metadata(folder.log()).map_or(0, |log| log.len());
    let again =
        if starts > 0 { format!(", start {}, after {trained:.0} s of training", starts + 1) } else { String::new() };
    folder.enter(&mut status, "Starting", format!("Starting the training job {}{again}", job.name))?;
    let mut follower = Follower::new(&folder.log(), offset)?;
    let ended = start(job, &runner, &sources, &folder, &mut status, &mut follower, limit);
    let (code, reason) = match ended {
        Ok(ended) => ended,
        // A job that could not be started has failed.
        Err(error) => {
            status.status = RunStatus::Failed;
            status.exit_code = Some(error.exit_code());
            status.message = Some(error.to_string());
            folder.enter(&mut status, "Failed", error.message())?;
            follower.print(true)?;
            return Err(error);
        }
    };
    status.message = reason;
    status.exit_code = Some(code);
    let uploaded = upload(&target, &folder, &mut status, &mut follower);
    status.status = match (code, Signal::of_exit_code(code.into())) {
        (0, _) if status.message.is_some() => RunStatus::Stopped,
        (0, _) => RunStatus::Completed,
        (_, Some(_)) => RunStatus::Stopped,
        _ => RunStatus::Failed,
    };
    let first = status.message.as_deref().and_then(|message| message.lines().next()).unwrap_or_default().to_owned();
    match (status.status, &uploaded) {
        (_, Err(error)) => {
            status.status = RunStatus::Failed;
            folder.enter(&mut status, "Failed", error.message())?;
        }
        (RunStatus::Completed, _) => folder.enter(&mut status, "Completed", "Training job completed")?,
        (RunStatus::Stopped, _) => folder.enter(&mut status, "Stopped", first)?,
        _ => folder.enter(&mut status, "Failed", first)?,
    }
    follower.print(true)?;
    uploaded.map(|()| (status, code))
}

/// The channels' sources and the metric definitions, when nothing is wrong with the job.
fn check(job: &JobFile) -> Result<(Vec<Source>, Vec<Definition>)> {
    let mut wrong = Wrong::default();
    let definitions = job.metric_definitions().unwrap_or_else(|error| {
        wrong.add(error.message().to_owned());
        Vec::new()
    });
    sagemaker::name(job, &mut wrong);
    sagemaker::times(job, &mut wrong);
    if !(1..=MOST).contains(&job.instance_count) {
        wrong.add(format!(
            "instance_count: the job is run in as many processes of this machine, expected 1 to {MOST}, got {}",
            job.instance_count
        ));
    }
    for twice in job.given_twice() {
        wrong.add(format!("hyperparameters.{twice}: [compiler] gives it, too; remove one"));
    }
    for name in job.environment.keys().filter(|name| !sagemaker::is_variable(name)) {
        wrong.add(format!("environment.{name}: expected a name of letters, digits and `_`, no digit first"));
    }
    let channels = job.channels().unwrap_or_else(|found| {
        wrong.0.extend(found);
        Vec::new()
    });
    wrong.count("channels", channels.len(), 20);
    let mut sources = Vec::new();
    for (name, channel) in channels {
        if !sagemaker::is_channel(&name) || name.starts_with('.') {
            wrong.add(format!("channels.{name}: expected a name of 1 to 64 letters, digits, `.`, `-` and `_`"));
        }
        match source(&channel) {
            Ok(path) => sources.push(Source { name, path }),
            Err(error) => wrong.add(format!("channels.{name}: {}", error.message())),
        }
    }
    wrong.into_result("the job cannot be run here")?;
    Ok((sources, definitions))
}

/// The file or folder that a channel reads, as an absolute path.
fn source(channel: &Channel) -> Result<PathBuf> {
    let Some(local) = &channel.local else {
        let address = channel.s3.as_deref().unwrap_or_default();
        return Err(Error::config(format!(
            "{address} is not on this machine: copy it and name the copy, local = \"FOLDER\""
        )));
    };
    let path = expand(local)?;
    path.canonicalize().map_err(|error| read_error(&path, &error))
}

/// The runner of the job: a container where an image is named and an engine works, else a process.
fn runner(job: &JobFile, process: bool) -> Result<Runner> {
    let own = || job.binary.as_ref().map_or_else(this_program, |binary| expand(&binary.display().to_string()));
    let Some(image) = job.image_uri.as_ref().filter(|_| !process) else { return own().map(Runner::Process) };
    let works = |engine: &&&str| {
        let asked =
            Command::new(engine).arg("info").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        asked.is_ok_and(|status| status.success())
    };
    match ENGINES.iter().find(works) {
        Some(engine) => Ok(Runner::Container(engine, image.clone())),
        None => {
            tracing::warn!("neither Docker nor Podman works here: the job runs as a process, and not in {image}");
            own().map(Runner::Process)
        }
    }
}

/// Lays out the input, runs the job to its end, and returns its exit code and why it did not
/// complete.
fn start(
    job: &JobFile,
    runner: &Runner,
    sources: &[Source],
    folder: &JobFolder,
    status: &mut JobStatus,
    follower: &mut Follower,
    limit: Duration,
) -> Result<(u8, Option<String>)> {
    follower.print(false)?;
    let linked = sources.iter().map(|source| format!("{} from {}", source.name, source.path.display()));
    let linked = linked.collect::<Vec<_>>().join(", ");
    let input = if linked.is_empty() { "no channels".into() } else { format!("{linked}, read in place") };
    folder.enter(status, "Downloading", format!("Preparing the input: {input}"))?;
    lay_out(job, runner, sources, folder)?;
    let mut command = command(job, runner, sources, folder)?;
    let log = File::options().append(true).open(folder.log());
    let log = log.and_then(|log| Ok((log.try_clone()?, log)));
    let (log, errors) = log.map_err(|error| Error::io(format!("write {}", folder.log().display()), &error))?;
    // Ctrl-C reaches this process alone, which passes it on. Where this one is killed, the job
    // saves and stops.
    command.stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);
    #[cfg(target_os = "linux")]
    kiln_core::process::end_with_parent(&mut command, rustix::process::Signal::TERM);
    let how = match runner {
        Runner::Process(program) => format!("as a process of {}", program.display()),
        Runner::Container(engine, image) => format!("in {image} by {engine}"),
    };
    folder.enter(status, "Training", format!("Training in progress {how}"))?;
    follower.print(false)?;
    let offset = fs::metadata(folder.log()).map_or(0, |log| log.len());
    let began = Instant::now();
    let before = status.training_seconds;
    let child = command.spawn().map_err(|error| Error::start(command.get_program().display(), &error))?;
    // Of a launcher that is killed, this much is known.
    let mut count = |seconds: f64| {
        status.training_seconds = before + seconds;
        folder.write(status)
    };
    let ended = watch(child, follower, began, limit, &|| folder.is_to_stop(), &mut count);
    count(began.elapsed().as_secs_f64())?;
    let (code, cause) = ended?;
    if job.use_spot_instances && code == 0 {
        // The line of SageMaker's Python SDK. Nothing is cheaper on this machine.
        let line = File::options().append(true).open(folder.log());
        line.and_then(|mut log| writeln!(log, "Managed Spot Training savings: 0.0%"))
            .map_err(|error| Error::io(format!("write {}", folder.log().display()), &error))?;
    }
    let said = || {
        let file = fs::read(folder.root().join("output/failure")).ok()?;
        let text = String::from_utf8_lossy(&file[..file.len().min(REASON)]).trim().to_owned();
        Some(text).filter(|text| !text.is_empty())
    };
    let resumed = "submit the job again to continue it from its checkpoints";
    // The run itself stops where its own limit of time is over, and that is no error.
    let run = || Status::read(&folder.root().join("output/data")).ok().flatten();
    let reason = match (code, cause) {
        (0, _) => run().filter(|run| run.status == RunStatus::Stopped).and_then(|run| run.message),
        (_, Some(Cause::MaxRun)) => {
            Some(format!("MaxRuntimeExceeded: the {} s of max_run are over; raise it and {resumed}", status.max_run))
        }
        (_, _) if Signal::of_exit_code(code.into()).is_some() => {
            let signal = Signal::of_exit_code(code.into()).map_or("a signal", Signal::name);
            Some(format!("{signal}: {resumed}"))
        }
        _ => Some(said().unwrap_or_else(|| {
            let last = last_line(&folder.log(), offset).map_or(String::new(), |line| format!(": {line}"));
            format!("the job ended with exit code {code}{last}")
        })),
    };
    Ok((code, reason))
}

/// The last line that the job has written to its log after `offset`.
fn last_line(log: &Path, offset: u64) -> Option<String> {
    let log = fs::read(log).ok()?;
    let said = String::from_utf8_lossy(log.get(usize::try_from(offset).ok()?..)?).into_owned();
    said.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

/// Why the launcher ended a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Signal,
    MaxRun,
}

/// Follows the job to its end: passes a signal on, ends it when `limit` is over or `is_to_stop`
/// says so, and tells `count` its seconds now and then. Returns its exit code.
fn watch(
    mut child: Child,
    follower: &mut Follower,
    began: Instant,
    limit: Duration,
    is_to_stop: &dyn Fn() -> bool,
    count: &mut dyn FnMut(f64) -> Result<()>,
) -> Result<(u8, Option<Cause>)> {
    let (mut cause, mut counted) = (None, Instant::now());
    loop {
        if counted.elapsed() >= COUNT {
            counted = Instant::now();
            count(began.elapsed().as_secs_f64())?;
        }
        let ended = child.try_wait().map_err(|error| Error::io("wait for the job", &error))?;
        follower.print(false)?;
        if let Some(status) = ended {
            let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
            // A kill after the time was over is its end, too.
            let code = if cause == Some(Cause::MaxRun) && code == 137 { 143 } else { code };
            return Ok((u8::try_from(code).unwrap_or(1), cause));
        }
        let (signal, why) = match (signals::received(), began.elapsed() >= limit) {
            (Some(signal), _) => (Some(signal), Cause::Signal),
            (None, true) => (Some(Signal::Terminate), Cause::MaxRun),
            (None, false) => (is_to_stop().then_some(Signal::Terminate), Cause::Signal),
        };
        if let (Some(signal), None) = (signal, cause) {
            send(&child, signal.number());
            cause = Some(why);
        }
        if cause == Some(Cause::MaxRun) && began.elapsed() >= limit + GRACE {
            let _ = child.kill();
        }
        std::thread::sleep(LOOK);
    }
}

/// Sends the job a signal. One that has just ended needs none.
fn send(child: &Child, number: i32) {
    let pid = rustix::process::Pid::from_raw(child.id().cast_signed());
    if let (Some(pid), Some(signal)) = (pid, rustix::process::Signal::from_named_raw(number)) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Writes `/opt/ml/input` anew and empties the folders of results, as a new machine finds them;
/// checkpoints stay.
fn lay_out(job: &JobFile, runner: &Runner, sources: &[Source], folder: &JobFolder) -> Result<()> {
    let root = folder.root();
    let io = |path: &Path| {
        let path = path.display().to_string();
        move |error: std::io::Error| Error::io(format!("make {path}"), &error)
    };
    for name in ["input", "model", "output"] {
        let path = root.join(name);
        if path.exists() {
            fs::remove_dir_all(&path).map_err(|error| Error::io(format!("remove {}", path.display()), &error))?;
        }
    }
    for name in ["input/config", "input/data", "model", "output/data", "checkpoints"] {
        let path = root.join(name);
        fs::create_dir_all(&path).map_err(io(&path))?;
    }
    for source in sources {
        let target = root.join("input/data").join(&source.name);
        match (runner, source.path.is_dir()) {
            // Mounted there.
            (Runner::Container(..), true) => fs::create_dir(&target).map_err(io(&target))?,
            (Runner::Process(_), true) => std::os::unix::fs::symlink(&source.path, &target).map_err(io(&target))?,
            (_, false) => {
                fs::create_dir(&target).map_err(io(&target))?;
                let file = target.join(source.path.file_name().unwrap_or_default());
                match runner {
                    Runner::Container(..) => File::create(&file).map(drop).map_err(io(&file))?,
                    Runner::Process(_) => std::os::unix::fs::symlink(&source.path, &file).map_err(io(&file))?,
                }
            }
        }
    }
    let channel = json!({
        "TrainingInputMode": "File", "S3DistributionType": "FullyReplicated", "RecordWrapperType": "None" });
    let channels = sources.iter().map(|source| (source.name.clone(), channel.clone())).collect::<Map<_, _>>();
    let hyperparameters = job.hyperparameters().into_iter().map(|(name, value)| (name, Value::from(value)));
    let machine = job.instance_type.as_deref().unwrap_or("local");
    let config = root.join("input/config");
    let hosts = (1..=job.instance_count).map(|number| format!("algo-{number}")).collect::<Vec<_>>();
    write_json(&config.join("hyperparameters.json"), &hyperparameters.collect::<Map<_, _>>())?;
    write_json(&config.join("inputdataconfig.json"), &channels)?;
    write_json(
        &config.join("resourceconfig.json"),
        &json!({
            "current_host": "algo-1", "current_instance_type": machine, "current_group_name": "homogeneousCluster",
            "hosts": hosts, "network_interface_name": LOOPBACK, "instance_groups": [{
                "instance_group_name": "homogeneousCluster", "instance_type": machine, "hosts": hosts }] }),
    )
}

/// The command that is the job.
fn command(job: &JobFile, runner: &Runner, sources: &[Source], folder: &JobFolder) -> Result<Command> {
    let root = folder.root();
    let root = root.canonicalize().map_err(|error| read_error(&root, &error))?;
    let variables = job.environment.iter().map(|(name, value)| (name.clone(), text_of(value)));
    let variables = variables.chain([("TRAINING_JOB_NAME".to_owned(), job.name.clone())]);
    match runner {
        Runner::Process(program) => {
            let mut command = Command::new(program);
            // Those of a job that this process is part of are not the job's own.
            for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SM_")) {
                command.env_remove(name);
            }
            command.arg("job").arg("--root").arg(root).envs(variables);
            Ok(command)
        }
        Runner::Container(engine, image) => {
            let mut command = Command::new(engine);
            let mount = |from: &Path, to: &str, more: &str| {
                // A value of a list with commas, in which quotes are doubled.
                let source = format!("source={}", from.display()).replace('"', "\"\"");
                format!("type=bind,\"{source}\",target={to}{more}")
            };
            command.args(["run", "--rm", "--mount"]).arg(mount(&root, "/opt/ml", ""));
            for source in sources {
                let target = format!("/opt/ml/input/data/{}", source.name);
                let file = source.path.file_name().filter(|_| !source.path.is_dir());
                let target = file.map_or(target.clone(), |file| format!("{target}/{}", file.to_string_lossy()));
                command.arg("--mount").arg(mount(&source.path, &target, ",readonly"));
            }
            // The files that it writes are the user's.
            let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
            command.arg("--user").arg(format!("{user}:{group}"));
            if job.instance_type.as_deref() == Some("local_gpu") {
                command.args(["--gpus", "all"]);
            }
            for (name, value) in variables {
                command.arg("--env").arg(format!("{name}={value}"));
            }
            command.arg(image).arg("train");
            Ok(command)
        }
    }
}

/// The folder that the archives of the results go to.
fn target(job: &JobFile, folder: &JobFolder) -> Result<PathBuf> {
    match &job.output_path {
        Some(path) if !is_address(path) => Ok(expand(path)?.join(&job.name).join("output")),
        _ => Ok(folder.0.join("output")),
    }
}

/// Packs what the job has left in its folders of results; a job that has left nothing has nothing
/// to pack.
fn upload(target: &Path, folder: &JobFolder, status: &mut JobStatus, follower: &mut Follower) -> Result<()> {
    let root = folder.root();
    let has_model = root.join("model/config.json").is_file();
    let has_output = fs::read_dir(root.join("output/data")).is_ok_and(|mut entries| entries.next().is_some());
    if !has_model && !has_output {
        return Ok(());
    }
    folder.enter(status, "Uploading", format!("Uploading the results to {}", target.display()))?;
    follower.print(false)?;
    fs::create_dir_all(target).map_err(|error| Error::io(format!("make {}", target.display()), &error))?;
    let [model, output] = ARCHIVES.map(|name| target.join(name));
    for archive in [&model, &output] {
        // Of an earlier start of this job.
        if archive.exists() {
            fs::remove_file(archive).map_err(|error| Error::io(format!("remove {}", archive.display()), &error))?;
        }
    }
    if has_model {
        export(&root.join("model"), &model)?;
    }
    if has_output {
        pack(&root.join("output/data"), &output)?;
    }
    Ok(())
}
