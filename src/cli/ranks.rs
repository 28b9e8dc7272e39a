//! The ranks of a run as the commands see them: `kiln launch` starts them, and a command that knows of ranks joins their world.
//! Rank 0 talks to people. The output of another rank goes to its log in the run folder, and only the error that ends it to the
//! stderr that it was started with.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use clap::Args;

use super::faults;
use crate::base::distributed::World;
use crate::base::distributed::environment::{self, Hosts};
use crate::base::distributed::launch::Launch;
use crate::base::error::{Error, Result};
use crate::base::process::{Scratch, scratch, this_program};
use crate::base::signals;
use crate::config::{OnExisting, RunConfig};
use crate::plan::{RunPlan, RunSettings};
use crate::trainer::{Callback, log_of};

#[derive(Debug, Args)]
pub(super) struct LaunchArgs {
    /// Processes, on all machines; with SageMaker's variables by default one for each of SM_NUM_GPUS of each machine
    #[arg(short = 'n', long = "ranks", value_name = "N")]
    ranks: Option<usize>,
    /// The machines, with a shell (ssh) and Kiln at the same path on each; SM_HOSTS by default, and else this one
    #[arg(long, value_name = "HOST,...", value_delimiter = ',')]
    hosts: Vec<String>,
    /// The launcher: mpirun of Open MPI or MPICH
    #[arg(long, value_name = "PROGRAM", default_value = "mpirun")]
    mpirun: PathBuf,
    /// Seconds that the ranks have to save a checkpoint when they are told to stop; a second signal ends them at once
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    grace: u64,
    /// The command of kiln and its arguments, after --
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl LaunchArgs {
    fn launch(&self) -> Result<Launch> {
        let sagemaker = Hosts::of_sagemaker()?.filter(|hosts| self.hosts.is_empty() && hosts.all.len() > 1);
        if let Some(hosts) = sagemaker.as_ref().filter(|hosts| hosts.own > 0) {
            let (own, first) = (&hosts.all[hosts.own], &hosts.all[0]);
            return Err(Error::config(format!(
                "SM_CURRENT_HOST = {own}: `kiln launch` is for {first}, the first of SM_HOSTS"
            ))
            .help("mpirun starts the ranks of this machine from there, over ssh"));
        }
        let hosts = sagemaker.map_or_else(|| self.hosts.clone(), |hosts| hosts.all);
        let gpus = std::env::var("SM_NUM_GPUS").ok().and_then(|text| text.parse::<usize>().ok());
        let ranks = match (self.ranks, gpus) {
            (Some(ranks), _) => ranks,
            (None, Some(gpus)) => gpus.max(1) * hosts.len().max(1),
            (None, None) => {
                return Err(Error::config("kiln launch: expected the number of processes")
                    .help("as in `kiln launch -n 2 -- train FILE`"));
            }
        };
        Ok(Launch { ranks, hosts, mpirun: self.mpirun.clone() })
    }
}

/// Starts the ranks and waits for them. Ends this process with their exit code.
pub(super) fn run_launch(args: &LaunchArgs) -> Result<()> {
    if let Some(found) = environment::find()? {
        return Err(Error::config(format!("kiln launch: {} has started this process already", found.variables))
            .help("leave `launch -n N --` out: mpirun and srun start `kiln train FILE` themselves"));
    }
    let launch = args.launch()?;
    let mut command = launch.command(&this_program()?, &args.command)?;
    signals::install()?;
    let code = watch_over(&mut command, Duration::from_secs(args.grace))?;
    // The ranks have said why.
    std::process::exit(code)
}

/// Runs `command`, passes a signal on to it, whose ranks have `grace` then, and returns the exit code of this process.
#[cfg(unix)]
fn watch_over(command: &mut std::process::Command, grace: Duration) -> Result<i32> {
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::Stdio;
    use std::time::Instant;

    use rustix::process::{Pid, Signal, kill_process, kill_process_group};

    // A group of its own: a terminal's signals reach it once, through this process. It reads nothing.
    command.process_group(0).stdin(Stdio::null());
    #[cfg(target_os = "linux")]
    crate::base::process::end_with_parent(command, Signal::TERM);
    let spawned = command.spawn();
    let mut child = spawned.map_err(|error| Error::start(command.get_program().display(), &error))?;
    let pid = Pid::from_raw(child.id().cast_signed());
    /// After that, an mpirun that is to end its ranks is killed itself.
    const KILLED_AFTER: Duration = Duration::from_secs(5);

    let (mut told, mut is_ending): (Option<(signals::Signal, Instant)>, bool) = (None, false);
    loop {
        let ended = child.try_wait().map_err(|error| Error::io("wait for mpirun", &error))?;
        if let Some(status) = ended {
            let signal = |signal| 128 + signal;
            let code = status.code().unwrap_or_else(|| status.signal().map_or(1, signal));
            return Ok(told.map_or(code, |(signal, _)| i32::from(signal.exit_code())));
        }
        match (told, signals::received(), pid) {
            (None, Some(signal), Some(pid)) => {
                told = Some((signal, Instant::now()));
                let _ = kill_process(pid, Signal::USR1);
            }
            // Ranks that hear nothing are ended.
            (Some((_, since)), _, Some(pid)) if since.elapsed() > grace + KILLED_AFTER => {
                let _ = kill_process_group(pid, Signal::KILL);
            }
            (Some((_, since)), _, Some(pid)) if since.elapsed() > grace && !is_ending => {
                is_ending = true;
                let _ = kill_process(pid, Signal::TERM);
            }
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(not(unix))]
fn watch_over(command: &mut std::process::Command, _grace: Duration) -> Result<i32> {
    let status = command.status().map_err(|error| Error::start(command.get_program().display(), &error))?;
    Ok(status.code().unwrap_or(1))
}

/// The place of a command in its world.
pub(super) struct Ranks {
    pub(super) world: World,
    /// Redirections that rank 0 does not need.
    pub(super) other: Option<OtherRank>,
}

/// A rank besides 0.
pub(super) struct OtherRank {
    /// Its own run folder is in it, and its log until the run folder is there.
    scratch: Scratch,
    /// Its log in the run folder.
    log: PathBuf,
}

/// Joins the world of the launcher, if there is one, for a run of `config`, which is told the devices. On a rank besides 0 it gets
/// a temporary run folder.
///
/// # Errors
/// Those of [`World::join`].
pub(super) fn join(config: &mut RunConfig) -> Result<Ranks> {
    let world = World::join()?;
    config.devices = world.devices();
    if world.is_root() {
        return Ok(Ranks { world, other: None });
    }
    // A message for people comes from rank 0; a path that it refuses, it refuses for all.
    let folder = RunSettings::of(config).expanded_output_dir()?;
    let scratch = scratch()?;
    divert(&scratch.path().join("log"))?;
    config.run.output_dir = scratch.path().join("run");
    config.run.on_existing = OnExisting::Resume;
    config.run.resume_from_checkpoint = None;
    let log = folder.join(log_of(world.rank()));
    Ok(Ranks { world, other: Some(OtherRank { scratch, log }) })
}

impl OtherRank {
    /// Goes on with the log in the run folder from when training begins: then rank 0 has made the folder.
    pub(super) fn callback(&self) -> impl Callback<kiln_models::Model> + use<> {
        MoveLog { from: self.scratch.path().join("log"), to: self.log.clone() }
    }
}

struct MoveLog {
    from: PathBuf,
    to: PathBuf,
}

impl MoveLog {
    fn make(&self) -> Result<()> {
        let io = |error: std::io::Error| Error::io(format!("write {}", self.to.display()), &error);
        let said = std::fs::read(&self.from).map_err(io)?;
        std::fs::create_dir_all(self.to.parent().unwrap_or(Path::new("."))).map_err(io)?;
        let mut log = OpenOptions::new().create(true).append(true).open(&self.to).map_err(io)?;
        log.write_all(&said).map_err(io)?;
        divert(&self.to)
    }
}

impl<M> Callback<M> for MoveLog {
    fn on_train_begin(&mut self, _plan: &RunPlan) {
        // A log that cannot be written ends no training.
        if let Err(error) = self.make() {
            tracing::warn!("{error}");
        }
    }
}

/// The stderr that a rank besides 0 was started with.
static STDERR: OnceLock<File> = OnceLock::new();

/// From now on stdout and stderr are the file `log`.
#[cfg(unix)]
fn divert(log: &Path) -> Result<()> {
    let io = |error: std::io::Error| Error::io(format!("write {}", log.display()), &error);
    let file = OpenOptions::new().create(true).append(true).open(log).map_err(io)?;
    if STDERR.get().is_none() {
        let kept = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3).map_err(|error| io(error.into()))?;
        let _ = STDERR.set(kept.into());
    }
    rustix::stdio::dup2_stdout(&file).and_then(|()| rustix::stdio::dup2_stderr(&file)).map_err(|error| io(error.into()))
}

#[cfg(not(unix))]
fn divert(_: &Path) -> Result<()> {
    Ok(())
}

/// How long a rank besides 0 waits with the error that ends it: where it is an error of all, rank 0 says it, and the launcher ends
/// this rank.
const RANK_0_FIRST: Duration = Duration::from_millis(1500);

/// Whether rank 0 is ending this rank.
fn is_ended_by_rank_0() -> bool {
    let before = signals::received();
    let asked = std::time::Instant::now();
    while asked.elapsed() < RANK_0_FIRST {
        if before.is_none() && signals::received().is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// Says with what error this process ends, and ends the other ranks with it.
pub(super) fn fail(error: &Error) {
    let Some(world) = World::joined().filter(|world| world.is_shared()) else {
        if environment::find().is_ok_and(|found| found.is_some_and(|found| found.place.rank > 0)) {
            // There is no world yet that could be ended: the launcher does it when rank 0 has ended for the same reason.
            std::thread::sleep(2 * RANK_0_FIRST);
        }
        return faults::complain_last(error);
    };
    if world.is_root() {
        faults::complain_last(error);
    } else {
        let is_known = is_ended_by_rank_0();
        let line = format!("rank {} of {}: {error}", world.rank(), world.size());
        faults::complain_last(&line);
        if let Some(mut stderr) = STDERR.get().filter(|_| !is_known) {
            let _ = writeln!(stderr, "error: {}", crate::base::error::printable(&line));
        }
    }
    world.abort(error.exit_code());
}

/// Leaves the world that this process has joined, when its work is done; waits for the other ranks.
pub(super) fn leave() -> Result<()> {
    World::joined().map_or(Ok(()), World::leave)
}

/// Refuses a command that knows nothing of ranks where a launcher has started several.
pub(super) fn refuse(command: &str) -> Result<()> {
    match environment::find()? {
        None => Ok(()),
        Some(found) => {
            Err(Error::config(format!("kiln {command} works in one process, and {} tell of several", found.variables))
                .help("start it without mpirun, srun or kiln launch; train, plan and eval know of ranks"))
        }
    }
}
