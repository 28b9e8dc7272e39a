//! The ranks of a run as the commands see them: `kiln launch` starts them, and a command that knows
//! of ranks joins their world. Rank 0 talks to people. The output of another rank goes to its log
//! in the run folder, and only the error that ends it to the stderr that it was started with.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use clap::Args;
use kiln::config::{CheckedConfig, CompilerMode, DeviceKind, OnExisting, RunConfig};
use kiln::distributed::World;
use kiln::distributed::environment::{self, Hosts};
#[cfg(unix)]
use kiln::distributed::launch::{Ended, Said};
use kiln::distributed::launch::{Launch, Node};
use kiln::engine::device;
use kiln::plan::TrainPlan;
use kiln::run_folder::log_of;
use kiln::trainer::Callback;
#[cfg(unix)]
use kiln_core::error::ErrorKind;
use kiln_core::error::{Error, Result};
use kiln_core::process::{Scratch, scratch, this_program};
use kiln_core::{process, signals};

use super::faults;

#[derive(Debug, Args)]
pub(super) struct LaunchArgs {
    /// Processes, on all machines; with SageMaker's variables by default one for each of
    /// SM_NUM_GPUS of each machine
    #[arg(short = 'n', long = "ranks", value_name = "N")]
    ranks: Option<usize>,
    /// The machines, with a shell (ssh) and Kiln at the same path on each; SM_HOSTS by default, and
    /// else this one
    #[arg(long, value_name = "HOST,...", value_delimiter = ',')]
    hosts: Vec<String>,
    /// The launcher: mpirun of Open MPI or MPICH
    #[arg(long, value_name = "PROGRAM", default_value = "mpirun")]
    mpirun: PathBuf,
    /// The number of machines, each of which starts its own ranks by such a command. They need no
    /// shell between them, but MPICH's library, whose ranks meet at --master-addr
    #[arg(long, value_name = "N", requires_all = ["node_rank", "master_addr"], conflicts_with = "hosts")]
    nnodes: Option<usize>,
    /// The number of this machine among those of --nnodes, from 0
    #[arg(long, value_name = "N", requires = "nnodes")]
    node_rank: Option<usize>,
    /// The machine of --nnodes that has the number 0
    #[arg(long, value_name = "HOST", requires = "nnodes")]
    master_addr: Option<String>,
    /// The port at which ranks meet there, or one of the seven ports after it; MASTER_PORT by
    /// default, and else 29500
    #[arg(long, value_name = "PORT", requires = "nnodes")]
    master_port: Option<u16>,
    /// Seconds that the ranks have to save a checkpoint when they are told to stop; a second signal
    /// ends them at once
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
            .help(
                "leave `launch -n N --` out: mpirun and srun start `kiln train FILE` themselves; where no launcher has set these \
                 variables, unset them",
            ));
    }
    if let (Some(nodes), Some(node_rank), Some(master_addr)) = (args.nnodes, args.node_rank, &args.master_addr) {
        let node = Node {
            ranks: args.ranks.unwrap_or(nodes),
            nodes,
            node_rank,
            master_addr: master_addr.clone(),
            master_port: match (args.master_port, std::env::var("MASTER_PORT")) {
                (Some(port), _) => port,
                (None, Ok(text)) => text.trim().parse().map_err(|_| {
                    Error::config(format!("MASTER_PORT: expected a port from 1 to 65535, got {text:?}"))
                        .help("unset it, or give --master-port")
                })?,
                (None, Err(_)) => 29500,
            },
        };
        signals::install()?;
        let commands = node.commands(&this_program()?, &args.command)?;
        std::process::exit(watch_over_all(commands, Duration::from_secs(args.grace))?);
    }
    let launch = args.launch()?;
    let mut command = launch.command(&this_program()?, &args.command)?;
    signals::install()?;
    let is_over_hosts = !launch.hosts.is_empty();
    std::process::exit(watch_over(&mut command, Duration::from_secs(args.grace), is_over_hosts)?)
}

/// Runs `command`, an mpirun, passes a signal on to it, whose ranks have `grace` then, says what no
/// rank has said of the end, and returns the exit code of this process. An mpirun that stays when
/// its ranks have ended is killed: Open MPI's does where a rank ends before it has connected, and
/// where the link to another machine is lost. With `is_over_hosts` its children are shells of other
/// machines instead of ranks, and the last words of a rank tell the end.
#[cfg(unix)]
fn watch_over(command: &mut std::process::Command, grace: Duration, is_over_hosts: bool) -> Result<i32> {
    use std::io::Read;
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::Stdio;
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
    use std::time::Instant;

    use rustix::process::{Pid, Signal, kill_process, kill_process_group};

    // A group of its own: a terminal's signals reach it once, through this process. It reads
    // nothing.
    command.process_group(0).stdin(Stdio::null()).stderr(Stdio::piped());
    #[cfg(target_os = "linux")]
    process::end_with_parent(command, Signal::TERM);
    let spawned = command.spawn();
    let mut child = spawned.map_err(|error| Error::start(command.get_program().display(), &error))?;
    let pid = Pid::from_raw(child.id().cast_signed());
    let said = Arc::new(Mutex::new(Said::default()));
    fn locked(said: &Mutex<Said>) -> MutexGuard<'_, Said> {
        said.lock().unwrap_or_else(PoisonError::into_inner)
    }
    let listener = child.stderr.take().map(|mut stream| {
        let said = said.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 8192];
            // Whoever cannot be written to misses it.
            while let Ok(count @ 1..) = stream.read(&mut bytes) {
                let shown = locked(&said).take(&bytes[..count]);
                let _ = std::io::stderr().write_all(&shown);
            }
        })
    });
    /// After that, an mpirun that is to end its ranks is killed itself.
    const KILLED_AFTER: Duration = Duration::from_secs(5);

    let (mut told, mut is_ending): (Option<(signals::Signal, Instant)>, bool) = (None, false);
    let mut life = Life::default();
    loop {
        let ended = child.try_wait().map_err(|error| Error::io("wait for mpirun", &error))?;
        if ended.is_none() && life.is_over_for(STAYS, child.id(), is_over_hosts && locked(&said).has_last_words) {
            if let Some(pid) = pid {
                let _ = kill_process_group(pid, Signal::KILL);
            }
            let _ = child.wait();
            let _ = std::io::stderr().write_all(&locked(&said).rest());
            let said = locked(&said);
            if !said.has_error {
                faults::complain_last(
                    &Error::device("the ranks have ended without a word, and mpirun has not: it was killed")
                        .help(CONTINUE),
                );
            }
            return Ok(match (said.ended, said.has_error) {
                (Some((_, Ended::Code(code))), _) => code,
                (Some((_, Ended::Signal(signal))), _) => 128 + signal,
                (None, true) => ErrorKind::Device.exit_code().into(),
                (None, false) => 137,
            });
        }
        if let Some(status) = ended {
            // Something that a rank has started may hold its stderr.
            let asked = Instant::now();
            while listener.as_ref().is_some_and(|it| !it.is_finished()) && asked.elapsed() < LISTENED {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = std::io::stderr().write_all(&locked(&said).rest());
            let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
            let end = End { code, told: told.map(|(signal, _)| signal), is_ended: is_ending };
            let said = locked(&said);
            if let Some(error) = end.unsaid(said.ended, said.has_error) {
                faults::complain_last(&error);
            }
            return Ok(end.exit_code(said.has_error));
        }
        match (told, signals::received(), pid) {
            (None, Some(signal), Some(pid)) => {
                told = Some((signal, Instant::now()));
                let number = match signal.number_for_ranks() {
                    number if catches(child.id(), number) => number,
                    _ => signals::Signal::Terminate.number_for_ranks(),
                };
                if let Some(number) = Signal::from_named_raw(number) {
                    let _ = kill_process(pid, number);
                }
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

/// Runs `commands`, each a rank by its number, passes a signal on to them, after which they have
/// `grace`, says what no rank has said of the end, and returns the exit code of the first that
/// failed, or of one that a signal ended. The others end by themselves when they hear of it; those
/// that do not are ended.
#[cfg(unix)]
fn watch_over_all(commands: Vec<(usize, std::process::Command)>, grace: Duration) -> Result<i32> {
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::{Child, ExitStatus, Stdio};
    use std::time::Instant;

    use rustix::process::{Pid, Signal, kill_process};

    /// Ranks that have been told to end are killed after that.
    const KILLED_AFTER: Duration = Duration::from_secs(5);
    fn send(children: &mut [(usize, Child)], number: i32) {
        for (_, child) in children {
            let pid = Pid::from_raw(child.id().cast_signed());
            // The number of one that has ended may be another's.
            if let (Ok(None), Some(pid), Some(signal)) = (child.try_wait(), pid, Signal::from_named_raw(number)) {
                let _ = kill_process(pid, signal);
            }
        }
    }
    let mut children = Vec::new();
    for (rank, mut command) in commands {
        // A group of its own: a terminal's signals reach it once, through this process.
        command.process_group(0).stdin(Stdio::null());
        #[cfg(target_os = "linux")]
        process::end_with_parent(&mut command, Signal::TERM);
        match command.spawn() {
            Ok(child) => children.push((rank, child)),
            Err(error) => {
                send(&mut children, signals::Signal::Terminate.number());
                return Err(Error::start(command.get_program().display(), &error));
            }
        }
    }
    let (mut told, mut failed, mut is_ending) = (None, None::<(usize, ExitStatus, Instant)>, false);
    loop {
        let mut lives = false;
        for (rank, child) in &mut children {
            match child.try_wait().map_err(|error| Error::io("wait for a rank", &error))? {
                None => lives = true,
                Some(status) if !status.success() && failed.is_none() => failed = Some((*rank, status, Instant::now())),
                // Another rank can end of its loss before this one is seen to have been ended.
                Some(status) if status.signal().is_some() && told.is_none() && !is_ending => {
                    failed = failed.map(|(first, said, since)| match said.signal() {
                        None => (*rank, status, since),
                        Some(_) => (first, said, since),
                    });
                }
                Some(_) => {}
            }
        }
        if !lives {
            break;
        }
        if let (None, Some(signal)) = (told, signals::received()) {
            told = Some((signal, Instant::now()));
            send(&mut children, signal.number());
        }
        // A rank that is left alone hears of it within seconds, unless it waits for one that has
        // never come.
        let over = [told.map(|(_, since)| since + grace), failed.map(|(_, _, since)| since + 2 * STAYS)];
        if let Some(over) = over.into_iter().flatten().min().filter(|over| Instant::now() > *over) {
            if !is_ending {
                send(&mut children, signals::Signal::Terminate.number());
            } else if Instant::now() > over + KILLED_AFTER {
                send(&mut children, Signal::KILL.as_raw());
            }
            is_ending = true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let Some((rank, status, _)) = failed else { return Ok(0) };
    if let Some(signal) = status.signal() {
        let end = End { code: 128 + signal, told: told.map(|(signal, _)| signal), is_ended: is_ending };
        if let Some(error) = end.unsaid(Some((rank, Ended::Signal(signal))), false) {
            faults::complain_last(&error);
        }
    }
    Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}

#[cfg(not(unix))]
fn watch_over_all(_commands: Vec<(usize, std::process::Command)>, _grace: Duration) -> Result<i32> {
    Err(Error::config("--nnodes: ranks meet so on Unix alone"))
}

/// Whether the process `pid` has a handler for the signal `number`; true where the system does not
/// tell. Hydra has none for SIGUSR2 and passes on SIGUSR1 alone, for which its ranks stop as for
/// SIGTERM.
#[cfg(unix)]
fn catches(pid: u32, number: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_none_or(|mask| mask >> (number - 1) & 1 == 1)
}

/// So long what an mpirun that has ended wrote is waited for.
#[cfg(unix)]
const LISTENED: Duration = Duration::from_secs(2);

/// So long an mpirun may stay when its ranks have ended.
#[cfg(unix)]
const STAYS: Duration = Duration::from_secs(4);

#[cfg(unix)]
const CONTINUE: &str = "the same command with --resume continues the run";

/// Whether the ranks of an mpirun live.
#[cfg(unix)]
#[derive(Default)]
struct Life {
    looked: Option<std::time::Instant>,
    has_lived: bool,
    over_since: Option<std::time::Instant>,
}

#[cfg(unix)]
impl Life {
    /// Whether no process that `pid` started has lived for `time`, although one did before, or
    /// `is_told`, for as long, that a rank has ended.
    fn is_over_for(&mut self, time: Duration, pid: u32, is_told: bool) -> bool {
        if self.looked.is_none_or(|looked| looked.elapsed() > Duration::from_millis(200)) {
            self.looked = Some(std::time::Instant::now());
            let lives = has_live_child(pid);
            self.has_lived |= lives == Some(true);
            let is_over = is_told || (self.has_lived && lives == Some(false));
            self.over_since = is_over.then(|| self.over_since.unwrap_or_else(std::time::Instant::now));
        }
        self.over_since.is_some_and(|since| since.elapsed() > time)
    }
}

/// Whether a process that `pid` started still lives; none where the system does not tell.
#[cfg(unix)]
fn has_live_child(pid: u32) -> Option<bool> {
    let mut children = String::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        children += &std::fs::read_to_string(thread.ok()?.path().join("children")).ok()?;
    }
    Some(children.split_whitespace().any(|child| {
        // Its state follows its name, which is in brackets.
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    }))
}

/// The end of an mpirun.
#[cfg(unix)]
#[derive(Debug, Clone, Copy)]
struct End {
    /// Its exit code, or 128 and the number of the signal that ended it.
    code: i32,
    /// The signal that was passed on to its ranks.
    told: Option<signals::Signal>,
    /// It has been told to end them.
    is_ended: bool,
}

#[cfg(unix)]
impl End {
    /// The exit code of the cause. Hydra tells a signal by its bare number, which no error of
    /// Kiln's has; a code above that of any signal is mpirun's own, which has lost a machine.
    fn cause(self) -> i32 {
        match self.code {
            code @ 8..=64 => 128 + code,
            193.. => ErrorKind::Device.exit_code().into(),
            code => code,
        }
    }

    /// The exit code of the launcher: that of the cause. A run that was complete before the signal
    /// came is complete; Hydra sometimes ends with 0 where its ranks have not.
    fn exit_code(self, has_error: bool) -> i32 {
        match (self.cause(), self.told) {
            (0, Some(signal)) if has_error => signal.exit_code().into(),
            (0, _) => 0,
            (code @ 1..=7, Some(_)) if has_error && !self.is_ended => code,
            (_, Some(signal)) => signal.exit_code().into(),
            (code, None) => code,
        }
    }

    /// The error that no rank has told, where mpirun tells which one `ended` first.
    fn unsaid(self, ended: Option<(usize, Ended)>, has_error: bool) -> Option<Error> {
        let by =
            |signal: i32| signal_hook::low_level::signal_name(signal).map_or(format!("signal {signal}"), str::to_owned);
        let of_signal = |signal: i32| match signal {
            9 => format!("nobody ends a rank so, unless by hand, but the kernel for lack of memory; {CONTINUE}"),
            _ => CONTINUE.to_owned(),
        };
        let told = self.told.filter(|_| self.cause() != 0);
        match (told, ended, self.cause()) {
            (Some(_), ..) if has_error => None,
            (Some(signal), ..) => Some(signal.error("the ranks have ended without a word").help(CONTINUE)),
            (None, _, 0) => None,
            (None, Some((rank, Ended::Signal(signal))), _) => {
                Some(Error::device(format!("rank {rank} was ended by {}", by(signal))).help(of_signal(signal)))
            }
            (None, ..) if has_error => None,
            (None, Some((rank, Ended::Code(code))), _) => Some(
                Error::device(format!("rank {rank} ended with exit code {code} and said nothing here"))
                    .help(format!("{} in the run folder may have its last words", log_of(rank).display())),
            ),
            (None, None, code @ 129..) => {
                Some(Error::device(format!("a rank was ended by {}", by(code - 128))).help(of_signal(code - 128)))
            }
            (None, None, code) => {
                Some(Error::device(format!("the ranks ended with exit code {code} and said nothing")))
            }
        }
    }
}

#[cfg(not(unix))]
fn watch_over(command: &mut std::process::Command, _grace: Duration, _is_over_hosts: bool) -> Result<i32> {
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

/// The world of the launcher, if there is one, with the device that this process of it has for
/// `config`.
///
/// # Errors
/// An error of [`World::join`], and fewer devices than ranks of a machine.
pub(super) fn world(config: &mut RunConfig) -> Result<World> {
    let world = World::join()?;
    config.trainer.device.index =
        device::index_of_rank(config.trainer.device.kind, config.trainer.device.index, &world)?;
    Ok(world)
}

/// Refuses a trial of the modes in ranks on a device of `kind` where each mode is an engine of its
/// own: a process that MPI knows cannot become the other one.
fn check_mode(mode: CompilerMode, kind: DeviceKind) -> Result<()> {
    if mode != CompilerMode::Auto || kind == DeviceKind::Cpu {
        return Ok(());
    }
    Err(Error::config(format!(
        "compiler.enabled = \"auto\": on {kind} the modes are tried by one process before there are ranks"
    ))
    .help(
        "`kiln compare FILE` tells which mode pays; then start the ranks with --compiler native or --compiler compiled",
    ))
}

/// Joins the world of the launcher, if there is one, for a run of `config`, which is told the
/// devices. On a rank besides 0 it gets a temporary run folder.
///
/// # Errors
/// A world that cannot be joined, fewer devices than ranks of a machine, and a mode that ranks
/// cannot choose.
pub(super) fn join(config: CheckedConfig) -> Result<(CheckedConfig, Ranks)> {
    if environment::find()?.is_none() {
        return Ok((config, Ranks { world: World::join()?, other: None }));
    }
    if config.trainer.compiler_mode() == CompilerMode::Auto {
        check_mode(CompilerMode::Auto, device::select(config.trainer.device.kind, config.trainer.device.index)?.kind)?;
    }
    let mut config = RunConfig::from(config);
    let world = world(&mut config)?;
    config.trainer.devices = world.devices();
    if world.is_root() {
        return Ok((config.checked()?, Ranks { world, other: None }));
    }
    // A message for people comes from rank 0; a path that it refuses, it refuses for all.
    let folder = config.trainer.expanded_output_dir()?;
    let scratch = scratch()?;
    divert(&scratch.path().join("log"))?;
    if config.trainer.push_to_hub {
        // Its default is the name of the run folder.
        config.trainer.hub_model_id = Some(config.trainer.hub_id());
    }
    config.trainer.output_dir = scratch.path().join("run");
    config.trainer.on_existing = OnExisting::Resume;
    config.trainer.resume_from_checkpoint = None;
    let log = folder.join(log_of(world.rank()));
    Ok((config.checked()?, Ranks { world, other: Some(OtherRank { scratch, log }) }))
}

impl OtherRank {
    /// Goes on with the log in the run folder from when training begins: then rank 0 has made the
    /// folder.
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
    fn on_train_begin(&mut self, _plan: &TrainPlan) {
        // A log that cannot be written ends no training.
        if let Err(error) = self.make() {
            tracing::warn!("{error}");
        }
    }
}

/// The stderr that a rank besides 0 was started with, and the beginning of what it says there.
static STDERR: OnceLock<(File, String)> = OnceLock::new();

/// The stderr of the launcher and the beginning of what is said there, for a rank whose own stderr
/// is its log.
#[cfg(unix)]
pub(super) fn stderr() -> Option<(&'static File, &'static str)> {
    STDERR.get().map(|(stderr, begin)| (stderr, begin.as_str()))
}

/// The beginning of what this rank of `world` says to people.
fn begin(world: &World) -> String {
    format!("rank {} of {}: ", world.rank(), world.size())
}

/// From now on stdout and stderr of this rank are the file `log`.
#[cfg(unix)]
fn divert(log: &Path) -> Result<()> {
    let io = |error: std::io::Error| Error::io(format!("write {}", log.display()), &error);
    let file = OpenOptions::new().create(true).append(true).open(log).map_err(io)?;
    if STDERR.get().is_none() {
        let kept = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3).map_err(|error| io(error.into()))?;
        let _ = STDERR.set((kept.into(), World::joined().map_or(String::new(), begin)));
    }
    rustix::stdio::dup2_stdout(&file).and_then(|()| rustix::stdio::dup2_stderr(&file)).map_err(|error| io(error.into()))
}

#[cfg(not(unix))]
fn divert(_: &Path) -> Result<()> {
    Ok(())
}

/// How long a rank besides 0 waits with the error that ends it: where it is an error of all, rank 0
/// says it, and the launcher ends this rank.
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

/// The commands that join a world.
const OF_RANKS: [&str; 4] = ["train", "plan", "eval", "bench"];

/// Tells the ranks that wait for this process, which has joined no world, that it ends with the
/// exit code `code`. `say` says why.
pub(super) fn give_up(code: u8, say: impl FnOnce()) {
    let say = |is_known| {
        if is_known {
            // The launcher ends this rank when rank 0 has ended for the same reason.
            std::thread::sleep(2 * RANK_0_FIRST);
        }
        say();
    };
    if OF_RANKS.contains(&&*super::command_name()) {
        World::give_up(code, say);
    } else {
        say(environment::find().is_ok_and(|found| found.is_some_and(|found| found.place.rank > 0)));
    }
}

/// Says with what error this process ends, and ends the other ranks with it.
pub(super) fn fail(error: &Error) {
    let Some(world) = World::joined().filter(|world| world.is_shared()) else {
        return give_up(error.exit_code(), || faults::complain_last(error));
    };
    if world.is_root() {
        faults::complain_last(error);
    } else {
        // All ranks leave the world for the same reason.
        let is_known = is_ended_by_rank_0() || world.is_left();
        let line = begin(world) + &error.to_string();
        faults::complain_last_to_people(&line);
        if !is_known {
            process::tell(&Error::of_text(error.kind(), &line));
        }
        if let Some((stderr, _)) = STDERR.get().filter(|_| !is_known) {
            let mut stderr: &File = stderr;
            let _ = writeln!(stderr, "error: {}", kiln_core::error::printable(&line));
        }
    }
    faults::ends_with(error);
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
        Some(found) => Err(Error::config(format!(
            "kiln {command} works in one process, and {} tell of several",
            found.variables
        ))
        .help("start it without mpirun, srun or kiln launch; train, plan, eval and bench --collectives know of ranks")),
    }
}

#[cfg(all(test, unix))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use kiln_core::signals::Signal;

    use super::*;

    const NONE: End = End { code: 0, told: None, is_ended: false };

    #[test]
    fn the_exit_code_is_that_of_the_cause() {
        let code = |code, told, has_error| End { code, told, ..NONE }.exit_code(has_error);
        assert_eq!((code(0, None, false), code(3, None, true), code(137, None, false)), (0, 3, 137));
        assert_eq!(code(205, None, true), 7, "Open MPI has lost a machine");
        assert_eq!(code(9, None, false), 137, "Hydra tells the bare number of a signal");
        let told = Some(Signal::Interrupt);
        assert_eq!(code(0, told, false), 0, "the run was complete");
        assert_eq!(code(0, told, true), 130, "Hydra has lost the exit code");
        assert_eq!((code(130, told, true), code(143, told, true), code(138, told, false)), (130, 130, 130));
        assert_eq!(code(1, told, true), 1, "a disk that was full when the checkpoint was saved");
        assert_eq!(End { code: 1, told, is_ended: true }.exit_code(true), 130);
    }

    #[test]
    fn what_no_rank_has_said_the_launcher_says() {
        let unsaid = |code, told, ended, has_error| {
            let error = End { code, told, ..NONE }.unsaid(ended, has_error);
            error.map_or(String::new(), |error| error.message().to_owned())
        };
        let killed = Some((1, Ended::Signal(9)));
        assert_eq!(unsaid(137, None, killed, false), "rank 1 was ended by SIGKILL");
        assert_eq!(
            unsaid(137, None, killed, true),
            "rank 1 was ended by SIGKILL",
            "another has said that it was left alone"
        );
        assert_eq!(unsaid(9, None, None, false), "a rank was ended by SIGKILL");
        assert_eq!(unsaid(4, None, Some((1, Ended::Code(4))), true), "");
        assert!(unsaid(4, None, Some((1, Ended::Code(4))), false).starts_with("rank 1 ended with exit code 4"));
        assert_eq!(
            (unsaid(0, None, None, false), unsaid(143, Some(Signal::Terminate), None, true)),
            Default::default()
        );
        assert!(unsaid(138, Some(Signal::Terminate), killed, false).starts_with("SIGTERM: "));
    }

    /// Stands in for an mpirun whose ranks have ended.
    #[cfg(target_os = "linux")]
    #[test]
    fn an_mpirun_that_stays_without_ranks_is_killed() {
        let ends = |script: &str, is_over_hosts| {
            let begun = std::time::Instant::now();
            let mut command = std::process::Command::new("sh");
            command.args(["-c", script]);
            let code = watch_over(&mut command, Duration::from_secs(60), is_over_hosts).unwrap();
            assert!(begun.elapsed() < Duration::from_secs(30), "{script}");
            code
        };
        assert_eq!(ends("sleep 1; exec sleep 60", false), 137);
        assert_eq!(ends("echo 'rank 1 of 2: error: no word' >&2; sleep 60; true", true), 7);
        assert_eq!(ends("echo 'error: told by a rank, whose mpirun ends' >&2; sleep 6; exit 3", false), 3);
    }

    #[test]
    fn ranks_choose_no_engine() {
        assert!(
            check_mode(CompilerMode::Auto, DeviceKind::Cpu).is_ok()
                && check_mode(CompilerMode::Compiled, DeviceKind::Cuda).is_ok()
        );
        let error = check_mode(CompilerMode::Auto, DeviceKind::Wgpu).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains("--compiler compiled"), "{error}");
    }
}
