//! The command line that starts the ranks of a run: mpirun of Open MPI or of MPICH, on this machine
//! or over several.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::path::PathBuf;
use std::process::Command;

use kiln_core::error::{Error, Result};
use kiln_core::{host, process};

use super::environment::TOKEN;
use super::{mpi, watchdog};

/// The ranks that are to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// How many, on all machines.
    pub ranks: usize,
    /// The machines; none for this one alone.
    pub hosts: Vec<String>,
    /// The program mpirun.
    pub mpirun: PathBuf,
}

/// The ranks of one machine of several where no mpirun starts those of all: they meet at the
/// machine of rank 0 by the variables of torchrun, and the library has to be one of MPICH's
/// interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// How many ranks there are on all machines.
    pub ranks: usize,
    /// How many machines there are.
    pub nodes: usize,
    /// The number of this one, from 0.
    pub node_rank: usize,
    /// The machine of rank 0.
    pub master_addr: String,
    /// The port at which the ranks meet there, or one of the seven after it.
    pub master_port: u16,
}

impl Node {
    /// The ranks of this machine, each with the command that starts `program` with `args` as that
    /// rank.
    ///
    /// # Errors
    /// Ranks that do not fill the machines evenly, a number of this machine that is none, and too
    /// little memory for a rank.
    pub fn commands(&self, program: &std::path::Path, args: &[String]) -> Result<Vec<(usize, Command)>> {
        mpi::check_memory()?;
        if self.node_rank >= self.nodes {
            return Err(Error::config(format!(
                "--node-rank {}: expected a number below that of the machines, --nnodes {}",
                self.node_rank, self.nodes
            )));
        }
        let per_node = per_machine(self.ranks, self.nodes)?;
        let threads = (host::threads() / per_node).max(1).to_string();
        // Ranks of other machines would not know it.
        let token = (self.nodes == 1 && std::env::var_os(TOKEN).is_none()).then(random_word);
        let command = |local_rank: usize| {
            let rank = self.node_rank * per_node + local_rank;
            let mut command = Command::new(program);
            command.args(args);
            let numbers = [
                ("RANK", rank),
                ("WORLD_SIZE", self.ranks),
                ("LOCAL_RANK", local_rank),
                ("LOCAL_WORLD_SIZE", per_node),
            ];
            command.envs(numbers.map(|(name, number)| (name, number.to_string())));
            command.env("MASTER_ADDR", &self.master_addr).env("MASTER_PORT", self.master_port.to_string());
            if !threads_are_set() {
                command.env("RAYON_NUM_THREADS", &threads);
            }
            if let Some(token) = &token {
                command.env(TOKEN, token);
            }
            process::without_driver(&mut command);
            (rank, command)
        };
        Ok((0..per_node).map(command).collect())
    }
}

/// A word of 128 bits that nobody guesses: the keys of the standard library's hashers are random
/// numbers of the system.
fn random_word() -> String {
    let half = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", half(), half())
}

/// The ranks of each of `machines`, which share `ranks` of them evenly.
fn per_machine(ranks: usize, machines: usize) -> Result<usize> {
    if ranks == 0 || !ranks.is_multiple_of(machines) {
        return Err(Error::config(format!(
            "-n {ranks}: expected a number of ranks that {machines} machines share evenly"
        ))
        .help(format!("-n {}", ranks.max(1).next_multiple_of(machines))));
    }
    Ok(ranks / machines)
}

/// Whose mpirun it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Open MPI, of this major version.
    OpenMpi(u32),
    Hydra,
}

impl Launch {
    /// The command that starts `program` with `args` on every rank.
    ///
    /// # Errors
    /// Ranks that do not fill the machines evenly, an mpirun that is missing or unknown, and too
    /// little memory for one.
    pub fn command(&self, program: &std::path::Path, args: &[String]) -> Result<Command> {
        mpi::check_memory()?;
        let mut command = Command::new(&self.mpirun);
        let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| is_owned_by_root(&own));
        let kind = self.kind()?;
        command.args(self.options(kind, is_root, host::threads(), threads_are_set())?);
        if matches!(kind, Kind::OpenMpi(_)) && !self.hosts.is_empty() {
            // Of other machines; Hydra passes on all variables.
            command.args(keepalive(watchdog::limit()?));
            let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
            command.args(names.filter(|name| is_for_ranks(name)).flat_map(|name| ["-x".to_owned(), name]));
        }
        command.arg(program).args(args);
        process::without_driver(&mut command);
        Ok(command)
    }

    fn kind(&self) -> Result<Kind> {
        let name = self.mpirun.display();
        let install = "install one (Debian, Ubuntu: `apt-get install openmpi-bin`; Red Hat: `dnf install openmpi`), or name it: \
                       `kiln launch --mpirun PROGRAM`";
        let asked = Command::new(&self.mpirun).arg("--version").output();
        let output = asked.map_err(|error| Error::config(format!("cannot start {name}: {error}")).help(install))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        kind_of(&text).ok_or_else(|| {
            let first = text.lines().next().unwrap_or_default();
            Error::config(format!("{name}: expected the mpirun of Open MPI or MPICH, got {first:?}")).help(install)
        })
    }

    fn options(&self, kind: Kind, is_root: bool, threads: usize, threads_are_set: bool) -> Result<Vec<String>> {
        let ranks = self.ranks;
        let per_machine = per_machine(ranks, self.hosts.len().max(1))?;
        let mut options = Vec::new();
        let mut add = |more: &[&str]| options.extend(more.iter().map(|option| (*option).to_owned()));
        let count = ranks.to_string();
        // The threads of a machine are shared by its ranks; a rank that is bound to a core would
        // have one of them alone.
        let per_rank = (threads / per_machine).max(1).to_string();
        match kind {
            Kind::OpenMpi(version) => {
                add(&["-np", &count, "--bind-to", "none"]);
                if is_root {
                    add(&["--allow-run-as-root"]);
                }
                match &self.hosts[..] {
                    [] => add(&["--oversubscribe"]),
                    hosts => {
                        let hosts = hosts.iter().map(|host| format!("{host}:{per_machine}")).collect::<Vec<_>>();
                        add(&["-H", &hosts.join(",")]);
                        // With one connection of TCP the messages by which two ranks agree on an
                        // exchange wait behind the values of the exchange before, and the two
                        // directions of the link take turns.
                        add(&["--mca", "btl_tcp_links", "2"]);
                    }
                }
                if version <= 4 {
                    // Ranks that wait for others leave them the processor.
                    add(&["--mca", "mpi_yield_when_idle", "1"]);
                }
                if !threads_are_set {
                    add(&["-x", &format!("RAYON_NUM_THREADS={per_rank}")]);
                }
            }
            Kind::Hydra => {
                add(&["-n", &count]);
                if !self.hosts.is_empty() {
                    add(&["-hosts", &self.hosts.join(","), "-ppn", &per_machine.to_string()]);
                }
                if !threads_are_set {
                    add(&["-genv", "RAYON_NUM_THREADS", &per_rank]);
                }
            }
        }
        Ok(options)
    }
}

/// Options with which the helpers of Open MPI 4 on the machines end where nothing has come over a
/// link for about `seconds`, the time that a rank waits: by its default they notice after eight
/// minutes. Open MPI 5 does not know them and passes over them.
fn keepalive(seconds: u64) -> Vec<String> {
    let (probes, between) = (3, (seconds / 10).max(1));
    let values = [
        ("time", seconds.saturating_sub(probes * between).clamp(1, 300)),
        ("intvl", between.min(20)),
        ("probes", probes),
    ];
    let option =
        |(name, value): (&str, u64)| ["--mca".to_owned(), format!("oob_tcp_keepalive_{name}"), value.to_string()];
    values.into_iter().flat_map(option).collect()
}

/// How a rank ended that was the first to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By a signal.
    Signal(i32),
    /// With an exit code.
    Code(i32),
}

/// The stderr of an mpirun: the output of the ranks, and notices of its own, of which those that
/// tell how ranks ended are taken out.
#[derive(Debug, Default)]
pub struct Said {
    /// The line that has begun.
    line: Vec<u8>,
    /// So much of it has been passed on.
    passed: usize,
    /// The notice that has begun.
    notice: Option<Vec<u8>>,
    /// The rank that ended first, and how.
    pub ended: Option<(usize, Ended)>,
    /// A rank has told an error.
    pub has_error: bool,
    /// A rank has told the error that ends it.
    pub has_last_words: bool,
}

/// No notice is longer, in bytes.
const NOTICE: usize = 1 << 14;

impl Said {
    /// Takes what mpirun has written; returns what is for people.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut shown = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend(part);
            if part.ends_with(b"\n") {
                self.end_line(&mut shown);
            } else if self.notice.is_none() && (self.passed > 0 || !is_rule(&self.line, 1)) {
                shown.extend(&self.line[self.passed..]);
                self.passed = self.line.len();
            }
        }
        shown
    }

    /// The bytes that were held back as a notice without an end.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = self.notice.take().unwrap_or_default();
        rest.extend(self.line.drain(std::mem::take(&mut self.passed)..));
        rest
    }

    fn end_line(&mut self, shown: &mut Vec<u8>) {
        let (line, passed) = (std::mem::take(&mut self.line), std::mem::take(&mut self.passed));
        let is_rule = passed == 0 && is_rule(&line, RULE);
        match (&mut self.notice, is_rule) {
            (None, true) => self.notice = Some(line),
            (None, false) => {
                let text = String::from_utf8_lossy(&line);
                self.has_error |= text.contains("error:");
                self.has_last_words |= is_last_words(&text);
                if !is_count_of_notices(&text) {
                    shown.extend(&line[passed..]);
                }
            }
            (Some(notice), is_end) => {
                notice.extend(line);
                if is_end || notice.len() > NOTICE {
                    let notice = self.notice.take().unwrap_or_default();
                    match end_in(&String::from_utf8_lossy(&notice)) {
                        Some(ended) => self.ended = self.ended.or(ended),
                        None => shown.extend(notice),
                    }
                }
            }
        }
    }
}

/// Hyphens of the line above and below a notice; Open MPI has 74.
const RULE: usize = 60;

/// Whether `line` is such a line of `least` hyphens or more.
fn is_rule(line: &[u8], least: usize) -> bool {
    let line = line.trim_ascii_end();
    line.len() >= least && line.iter().all(|byte| *byte == b'-')
}

/// Whether a line begins the error that ends a rank: `error: ..`, on a rank besides 0 behind `rank
/// 1 of 2: `.
fn is_last_words(line: &str) -> bool {
    let of_rank = line.strip_prefix("rank ").and_then(|rest| rest.split_once(": ")).map(|(_, text)| text);
    of_rank.unwrap_or(line).starts_with("error: ")
}

/// Whether a line only counts the notices that more than one rank had.
fn is_count_of_notices(line: &str) -> bool {
    line.contains("has sent help message")
        || line.contains("have sent help message")
        || line.contains("orte_base_help_aggregate")
}

/// The rank of which a notice tells that it ended, and how, where the notice names it; none where
/// it tells of anything else.
fn end_in(notice: &str) -> Option<Option<(usize, Ended)>> {
    fn after<T: std::str::FromStr>(text: &str, words: &str) -> Option<T> {
        let rest = text.split_once(words)?.1.trim_start();
        rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse().ok()
    }
    let notice = notice.split_whitespace().collect::<Vec<_>>().join(" ");
    if notice.contains("exited on signal") {
        return Some(after(&notice, "process rank ").zip(after(&notice, "on signal ").map(Ended::Signal)));
    }
    if notice.contains("exited with non-zero status") {
        // `Process name: [[51213,1],1]`, in Open MPI 5 `[prterun-host-1@1,1]`.
        let name =
            notice.split_once("Process name: ").and_then(|(_, name)| name.split_once("] ")).map(|(name, _)| name);
        let rank = name.and_then(|name| name.rsplit_once(',')).and_then(|(_, rank)| rank.parse().ok());
        return Some(rank.zip(after(&notice, "Exit code: ").map(Ended::Code)));
    }
    ["MPI_ABORT was invoked", "Primary job terminated normally"].iter().any(|it| notice.contains(it)).then_some(None)
}

/// Whether the ranks on other machines need the variable `name` of this process.
fn is_for_ranks(name: &str) -> bool {
    let begins =
        ["KILN_", "HF_", "SM_", "NCCL_", "RAYON_", "BURN_", "CUBECL_"].iter().any(|begin| name.starts_with(begin));
    (begins && !process::is_drivers(name)) || name == "LD_LIBRARY_PATH"
}

fn threads_are_set() -> bool {
    std::env::var_os("RAYON_NUM_THREADS").is_some()
}

#[cfg(unix)]
fn is_owned_by_root(file: &std::fs::Metadata) -> bool {
    std::os::unix::fs::MetadataExt::uid(file) == 0
}

#[cfg(not(unix))]
fn is_owned_by_root(_: &std::fs::Metadata) -> bool {
    false
}

/// Whose mpirun answers `version` to `--version`.
fn kind_of(version: &str) -> Option<Kind> {
    let first = version.lines().next()?;
    if version.contains("HYDRA") || version.contains("Intel(R) MPI") {
        return Some(Kind::Hydra);
    }
    // `mpirun (Open MPI) 4.1.4`, and Debian's `mpirun.openmpi (OpenRTE) 4.1.4`.
    let is_open = first.contains("Open MPI") || first.contains("OpenRTE") || first.contains("PRRTE");
    let number = first.rsplit_once(") ").map_or(first, |(_, number)| number);
    let major = number.split('.').next()?.trim().parse().ok();
    is_open.then(|| Kind::OpenMpi(major.unwrap_or(4)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn options(ranks: usize, hosts: &[&str], kind: Kind) -> Result<String> {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        Launch { ranks, hosts, mpirun: "mpirun".into() }.options(kind, true, 8, false).map(|options| options.join(" "))
    }

    #[test]
    fn the_mpirun_is_known_by_its_version() {
        assert_eq!(kind_of("mpirun (Open MPI) 5.0.3\n\nReport bugs"), Some(Kind::OpenMpi(5)));
        assert_eq!(kind_of("mpirun.openmpi (OpenRTE) 4.1.4\n"), Some(Kind::OpenMpi(4)));
        assert_eq!(kind_of("HYDRA build details:\n    Version: 4.0.2\n"), Some(Kind::Hydra));
        assert_eq!(kind_of("GNU bash, version 5\n"), None);
    }

    const LINE: &str = "--------------------------------------------------------------------------\n";

    #[test]
    fn the_notices_of_an_mpirun_tell_which_rank_ended_and_how() {
        let of = |notices: &[&str]| {
            let text = notices.iter().map(|notice| format!("{LINE}{notice}\n{LINE}")).collect::<String>();
            let mut said = Said::default();
            let shown = said.take(
                format!("warning: one\n{text}[vm:1] 1 more process has sent help message a / b\ntwo\n").as_bytes(),
            );
            (String::from_utf8(shown).unwrap(), said.ended, said.has_error)
        };
        let killed = "mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed).";
        let primary = "Primary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, the \
                       job has been aborted.";
        let shown = "warning: one\ntwo\n".to_owned();
        assert_eq!(of(&[primary, killed]), (shown.clone(), Some((1, Ended::Signal(9))), false));
        let code = "mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be \
                    terminated. The first process to do so was:\n\n  Process name: [[51213,1],3]\n  Exit code:    4";
        assert_eq!(of(&[code]), (shown.clone(), Some((3, Ended::Code(4))), false));
        let prte = "prterun detected that one or more processes exited with non-zero status, thus causing\nthe job to be \
                    terminated. The first process to do so was:\n\n   Process name: [prterun-vm-70@1,2] \n   Exit code:    7";
        assert_eq!(of(&[prte]).1, Some((2, Ended::Code(7))));
        let abort = "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD\nwith errorcode 5.";
        assert_eq!(of(&[abort]), (shown, None, false));
        let slots = "There are not enough slots available in the system to satisfy the 3 slots\nthat were requested.";
        assert!(of(&[slots]).0.contains("not enough slots"), "a notice of another kind is shown");
    }

    #[test]
    fn what_ranks_say_is_passed_on_as_it_comes() {
        let mut said = Said::default();
        assert_eq!(said.take(b"error: half"), b"error: half");
        assert_eq!(said.take(b" and half\n--"), b" and half\n");
        assert_eq!(said.take(b" a list\n---\n"), b"-- a list\n---\n");
        assert!(said.has_error && said.ended.is_none());
        assert_eq!(said.take(format!("{LINE}no end").as_bytes()), b"");
        assert_eq!(said.rest(), format!("{LINE}no end").as_bytes());
        let long = format!("{LINE}{}", "a table of its own\n".repeat(NOTICE / 19 + 1));
        assert_eq!(said.take(long.as_bytes()), long.as_bytes());
    }

    #[test]
    fn ranks_of_other_machines_have_the_variables_of_kiln() {
        let given = [
            "KILN_MPI_TIMEOUT",
            "NCCL_DEBUG",
            "KILN_CHILD",
            "KILN_ANSWER",
            "HF_HOME",
            "SM_CHANNEL_TRAIN",
            "HOME",
            "LD_LIBRARY_PATH",
        ];
        let names = given.into_iter().filter(|name| is_for_ranks(name)).collect::<Vec<_>>();
        assert_eq!(names, ["KILN_MPI_TIMEOUT", "NCCL_DEBUG", "HF_HOME", "SM_CHANNEL_TRAIN", "LD_LIBRARY_PATH"]);
    }

    #[test]
    fn the_ranks_of_one_machine_share_a_word_that_others_do_not_know() {
        let tokens = |nodes| {
            let node = Node { ranks: 2, nodes, node_rank: 0, master_addr: "localhost".into(), master_port: 29500 };
            let commands = node.commands("kiln".as_ref(), &[]).unwrap();
            let token = |(_, command): &(usize, Command)| {
                let set = command.get_envs().find(|(name, _)| *name == TOKEN)?.1?;
                Some(set.to_str().unwrap().to_owned())
            };
            commands.iter().map(token).collect::<Vec<_>>()
        };
        let (one, other) = (tokens(1), tokens(1));
        assert!(one[0] == one[1] && one[0].as_ref().is_some_and(|token| token.len() == 32), "{one:?}");
        assert_ne!(one, other);
        assert_eq!(tokens(2), [None]);
    }

    #[test]
    fn a_lost_link_is_noticed_when_the_watchdog_does() {
        let named = |seconds| keepalive(seconds).join(" ").replace("--mca oob_tcp_keepalive_", "");
        assert_eq!(named(5), "time 2 intvl 1 probes 3");
        assert_eq!(named(600), "time 300 intvl 20 probes 3");
    }

    #[test]
    fn threads_are_shared_by_the_ranks_of_a_machine() {
        let text = options(4, &[], Kind::OpenMpi(4)).unwrap();
        assert!(text.starts_with("-np 4 ") && text.contains("--oversubscribe"), "{text}");
        assert!(text.contains("-x RAYON_NUM_THREADS=2"), "{text}");
        let text = options(4, &["a", "b"], Kind::OpenMpi(4)).unwrap();
        assert!(text.contains("-H a:2,b:2") && text.contains("RAYON_NUM_THREADS=4"), "{text}");
        assert!(text.contains("--mca btl_tcp_links 2"), "{text}");
        let text = options(4, &["a", "b"], Kind::Hydra).unwrap();
        assert_eq!(text, "-n 4 -hosts a,b -ppn 2 -genv RAYON_NUM_THREADS 4");
        let error = options(3, &["a", "b"], Kind::Hydra).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains("-n 4"), "{error}");
    }
}
