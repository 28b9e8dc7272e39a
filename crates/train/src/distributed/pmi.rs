//! A world for processes whose launcher starts no MPI: torchrun, or a cluster that sets its
//! variables for each process. They meet at `MASTER_ADDR`, where rank 0 is to a library of MPICH's
//! interface as the process manager of an mpirun: it answers the commands of the process management
//! interface (PMI-1), by which the ranks tell one another how they are reached. Open MPI has no
//! such way in.
//!
//! Source of the protocol: Flux RFC 13, "Simple Process Manager Interface v1"
//! (<https://flux-framework.readthedocs.io/projects/flux-rfc/en/latest/spec_13.html>).
//!
//! The library speaks through a socket of its own process; what it says goes to rank 0 over one
//! connection for each rank, and the answers come back over it. A rank whose connection ends before
//! it has said that it is done takes the others with it. One that fails before it has met them
//! meets them all the same, to tell them so ([`give_up`]).

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use kiln_core::error::{CONTINUE, Error, ErrorKind, Result};

use super::environment::{Place, TOKEN};
use super::watchdog;

/// How often a rank looks for rank 0.
const BETWEEN: Duration = Duration::from_millis(100);

/// A rank says after this time that it waits for rank 0.
const QUIET: Duration = Duration::from_secs(10);

/// The other side of a connection says within this time that it is Kiln's.
const GREETING: Duration = Duration::from_secs(10);

/// So long a rank waits for the greeting when it first looks for rank 0, and twice as long with
/// every look, up to [`GREETING`]: a program that takes connections and says nothing, at a port
/// before rank 0's, holds up no rank that has little time.
const FIRST_GREETING: Duration = Duration::from_millis(500);

/// So long a rank that ends before all have met waits for those who have not come, to tell them.
const PARTING: Duration = Duration::from_secs(30);

/// A rank that ends says why after this time at the latest, also where it has met nobody yet.
const LAST_WORD: Duration = Duration::from_secs(3);

/// No line of the protocol is longer, in bytes.
const LINE: u64 = 1 << 16;

/// The lengths of names, keys and values that the library may use, in bytes: those of Hydra.
const MAXIMA: &str = "kvsname_max=256 keylen_max=64 vallen_max=1024";

/// Where processes meet whose launcher starts no MPI: at rank 0's machine (`MASTER_ADDR`,
/// `MASTER_PORT`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Meeting {
    /// The name or address of the machine.
    host: String,
    /// A name that the processes of this start have in common, and those of another one have not;
    /// no space is in it.
    run: String,
    /// The first port that may be free there.
    port: u16,
}

impl Meeting {
    /// The meeting that the variables of the launcher tell (`MASTER_ADDR`, `MASTER_PORT`).
    ///
    /// # Errors
    /// A variable that is not set, and a port that is none.
    pub(super) fn find() -> Result<Self> {
        Self::found_in(|name| std::env::var(name).ok().filter(|value| !value.trim().is_empty()))
    }

    fn found_in(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let needed = |name: &str| {
            variable(name).ok_or_else(|| {
                Error::config(format!(
                    "RANK and WORLD_SIZE are set and {name} is not: the ranks do not know where to meet"
                ))
                .help(
                    "set it, as torchrun does; or unset RANK and WORLD_SIZE, and start with `kiln launch -n N -- train FILE`, mpirun or \
                     srun",
                )
            })
        };
        let (host, port) = (needed("MASTER_ADDR")?, needed("MASTER_PORT")?);
        let first = port
            .trim()
            .parse::<u16>()
            .ok()
            .filter(|port| *port > 0)
            .ok_or_else(|| Error::config(format!("MASTER_PORT: expected a port from 1 to 65535, got {port:?}")))?;
        // torchrun itself listens at its port.
        let is_taken = variable("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
        // Not the count of restarts, which each agent of torchrun has for itself.
        let token = variable(TOKEN).map_or_else(String::new, |token| format!("-{token}"));
        let run = format!("{first}-{}{token}", variable("TORCHELASTIC_RUN_ID").unwrap_or_default());
        let run = run.replace(char::is_whitespace, "_");
        Ok(Self { host: host.trim().into(), run, port: first.saturating_add(u16::from(is_taken)) })
    }

    /// The addresses at which rank 0 listens: those by which the other ranks reach it, and no
    /// others of its machine. All of them where they are not known here: a machine may know its own
    /// name as that of its loopback, by which ranks of other machines reach nobody, or stand behind
    /// a translation of addresses.
    fn addresses(&self, place: &Place) -> Vec<IpAddr> {
        let is_shared = place.local_size < place.size;
        let named = (self.host.as_str(), 0).to_socket_addrs().into_iter().flatten().map(|address| address.ip());
        let own = named.filter(|address| TcpListener::bind((*address, 0)).is_ok()).collect::<Vec<_>>();
        if own.is_empty() || (is_shared && own.iter().any(IpAddr::is_loopback)) {
            // With IPv6, on most systems for both.
            return vec![Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
        }
        own
    }

    /// The ports at which rank 0 may listen.
    fn ports(&self) -> impl Iterator<Item = u16> + use<> {
        self.port..=self.port.saturating_add(PORTS - 1)
    }
}

impl std::fmt::Display for Meeting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, ports {} to {}", self.host, self.port, self.port.saturating_add(PORTS - 1))
    }
}

/// So many ports are tried.
const PORTS: u16 = 8;

/// The connection of a rank to rank 0.
pub(super) struct Line {
    to_root: Mutex<TcpStream>,
    rank: usize,
    /// This rank ends the others, and is not ended by them.
    is_ending: Arc<AtomicBool>,
    /// On rank 0.
    manager: Option<Arc<Manager>>,
}

/// The variables by which the library finds its side of the line.
pub(super) type Variables = [(&'static str, String); 3];

impl Line {
    /// Meets the other ranks; returns the variables that the library has to be started with.
    ///
    /// # Errors
    /// No free port on rank 0, a rank 0 that does not answer as long as a rank waits for others,
    /// and the system's.
    pub(super) fn open(place: &Place, meeting: &Meeting) -> Result<(Self, Variables)> {
        let (manager, to_root) = match place.rank {
            0 => {
                let (manager, own) = Manager::start(place, meeting, None)?;
                let connected =
                    TcpStream::connect(own).and_then(|to| greet(&to, place, meeting, GREETING).map(|()| to));
                (Some(manager), connected.map_err(|error| Error::start("the connection of rank 0 to itself", &error))?)
            }
            _ => (None, meet(place, meeting, Duration::from_secs(watchdog::limit()?))?),
        };
        let failed = |error: io::Error| Error::start("the connection of MPI to rank 0", &error);
        let (own, of_library) = UnixStream::pair().map_err(failed)?;
        let (mut from_library, mut to_library) = (own.try_clone().map_err(failed)?, own);
        let (mut sender, receiver) = (to_root.try_clone().map_err(failed)?, to_root.try_clone().map_err(failed)?);
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            thread::Builder::new().name(name.into()).spawn(work).map(drop).map_err(failed)
        };
        // The other direction sees what ends the connection.
        spawn("kiln-pmi-out", Box::new(move || drop(io::copy(&mut from_library, &mut sender))))?;
        let is_ending = Arc::<AtomicBool>::default();
        let ends_others = is_ending.clone();
        let of_rank_0 = manager.clone();
        let before_end = move || of_rank_0.iter().for_each(|manager| manager.wait_for_late_ones());
        let listen = move || listen(BufReader::new(receiver), &mut to_library, &ends_others, &before_end);
        spawn("kiln-pmi-in", Box::new(listen))?;
        let variables = [
            ("PMI_FD", of_library.into_raw_fd().to_string()),
            ("PMI_RANK", place.rank.to_string()),
            ("PMI_SIZE", place.size.to_string()),
        ];
        Ok((Self { to_root: Mutex::new(to_root), rank: place.rank, is_ending, manager }, variables))
    }

    /// Tells all ranks to end with the exit code `code`. Not all libraries tell it, and their
    /// process may end before it has left.
    pub(super) fn abort(&self, code: u8) {
        self.is_ending.store(true, Ordering::SeqCst);
        match &self.manager {
            Some(manager) => {
                manager.end_others(self.rank, Some(code));
                manager.wait_for_late_ones();
            }
            None => {
                let mut line = self.to_root.lock().unwrap_or_else(PoisonError::into_inner);
                // Without a connection rank 0 is gone, and so are the others.
                let _ = line.write_all(format!("cmd=abort exitcode={code}\n").as_bytes());
            }
        }
    }

    /// Waits on rank 0 until all ranks have said that they are done: their last words are answered
    /// here.
    pub(super) fn close(&self) {
        if let Some(manager) = &self.manager {
            manager.wait_for_all();
        }
    }
}

/// Tells the other ranks of `meeting`, which this one has not met, that it ends with the exit code
/// `code`. `say` says why, before they are told: a launcher may end this process when one of them
/// has ended. It gets whether rank 0 ends for an error of its own, which may be the error of all.
pub(super) fn give_up(place: &Place, meeting: &Meeting, code: u8, say: impl FnOnce(bool)) {
    if place.rank == 0 {
        say(false);
        // Without a place to meet the others hear nothing of this rank.
        if let Ok((manager, _)) = Manager::start(place, meeting, Some(end_of(0, Some(code)))) {
            manager.wait_for_late_ones();
        }
        return;
    }
    let limit = watchdog::limit().map_or(PARTING, |seconds| PARTING.min(Duration::from_secs(seconds)));
    let mut say = Some(say);
    let mut say = |is_known| say.take().into_iter().for_each(|say| say(is_known));
    let met = meet(place, meeting, LAST_WORD.min(limit)).or_else(|_| {
        say(false);
        meet(place, meeting, limit.saturating_sub(LAST_WORD))
    });
    let Ok(mut stream) = met else { return };
    // Rank 0 answers a question, unless it has something to tell everybody.
    let asked = stream.write_all(b"cmd=get_appnum\n").and_then(|()| stream.set_read_timeout(Some(GREETING)));
    let answer = asked.and_then(|()| next_line(&mut BufReader::new(&stream)));
    let has_ended = answer.is_ok_and(|line| line.is_none_or(|line| command(&line) == Some("abort")));
    say(has_ended);
    if !has_ended {
        // Without a connection rank 0 is gone.
        let _ = stream.write_all(format!("cmd=abort exitcode={code}\n").as_bytes());
    }
}

/// Connects to rank 0 as soon as it listens, within `limit`.
fn meet(place: &Place, meeting: &Meeting, limit: Duration) -> Result<TcpStream> {
    let began = Instant::now();
    let mut is_quiet = true;
    let mut patience = FIRST_GREETING;
    while began.elapsed() < limit {
        for port in meeting.ports() {
            // A name may not be known yet, and a port be that of another program.
            for address in (meeting.host.as_str(), port).to_socket_addrs().into_iter().flatten() {
                // A program that takes the connection and says nothing does not hold the rank
                // beyond its limit.
                let left = limit.saturating_sub(began.elapsed()).clamp(BETWEEN, patience);
                if let Ok(stream) = TcpStream::connect_timeout(&address, left)
                    && greet(&stream, place, meeting, left).is_ok()
                {
                    return Ok(stream);
                }
            }
        }
        if is_quiet && began.elapsed() > QUIET {
            is_quiet = false;
            let _ = writeln!(io::stderr(), "rank {} waits for rank 0 at {meeting}", place.rank);
        }
        thread::sleep(BETWEEN);
        patience = GREETING.min(2 * patience);
    }
    Err(Error::device(format!("rank 0 has not answered at {meeting} for {} s", limit.as_secs()))
        .help("see what rank 0 says, and whether MASTER_ADDR names its machine for the others; KILN_MPI_TIMEOUT sets how long a rank waits"))
}

/// Tells rank 0 who this is, and hears within `limit` that it is Kiln.
fn greet(stream: &TcpStream, place: &Place, meeting: &Meeting, limit: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(limit))?;
    (&*stream).write_all(greeting(place.rank, place.size, &meeting.run).as_bytes())?;
    let mut answer = [0; WELCOME.len()];
    (&*stream).read_exact(&mut answer)?;
    if answer != *WELCOME {
        return Err(io::ErrorKind::InvalidData.into());
    }
    (&*stream).write_all(HERE)?;
    stream.set_read_timeout(None)
}

fn greeting(rank: usize, size: usize, run: &str) -> String {
    format!("kiln rank={rank} size={size} run={run}\n")
}

const WELCOME: &[u8; 8] = b"welcome\n";

/// The answer to it: a rank that has given up waiting for the other does not take its place.
const HERE: &[u8; 5] = b"here\n";

/// Hands the library what rank 0 answers. Ends the process, after `before_end`, where rank 0 says
/// so, or is gone before this rank is done.
fn listen(mut receiver: impl BufRead, to_library: &mut impl Write, is_ending: &AtomicBool, before_end: &impl Fn()) {
    let mut is_done = false;
    while let Ok(Some(line)) = next_line(&mut receiver) {
        if let Some(code) = command(&line).filter(|name| *name == "abort").and_then(|_| value(&line, "exitcode")) {
            let rank = value(&line, "rank").unwrap_or("?");
            if is_done || is_ending.load(Ordering::SeqCst) {
                return;
            }
            before_end();
            match code.parse() {
                Ok(code) => {
                    let help = match ErrorKind::of_exit_code(code) {
                        Some(ErrorKind::Config | ErrorKind::Data) => "its own message says what is wrong",
                        _ => CONTINUE,
                    };
                    end(format_args!("rank {rank} has ended the run with exit code {code}"), help, code)
                }
                Err(_) => lose(rank),
            }
        }
        is_done |= command(&line) == Some("finalize_ack");
        // The library closes its side when it is done.
        let _ = to_library.write_all(line.as_bytes()).and_then(|()| to_library.write_all(b"\n"));
    }
    if !is_done && !is_ending.load(Ordering::SeqCst) {
        lose("0");
    }
}

/// Ends this process because another one has left without a word.
fn lose(rank: &str) -> ! {
    let code = ErrorKind::Device.exit_code();
    end(format_args!("rank {rank} is gone, or the network to it is down"), CONTINUE, code.into())
}

fn end(because: std::fmt::Arguments<'_>, help: &str, code: i32) -> ! {
    let _ = writeln!(io::stderr(), "error: {because}\n  help: {help}");
    // Nothing that runs at an exit may wait for MPI, which waits for the others.
    signal_hook::low_level::exit(code)
}

/// The next line, without its end; none at the end of the connection.
fn next_line(from: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    from.by_ref().take(LINE).read_line(&mut line)?;
    Ok(line.strip_suffix('\n').map(str::to_owned))
}

/// The command of a line: `cmd=NAME key=value ..`.
fn command(line: &str) -> Option<&str> {
    line.strip_prefix("cmd=")?.split(' ').next()
}

/// The value of `key` in a line. That of the key `value` is last, and may have spaces.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    if key == "value" {
        return line.split_once(" value=").map(|(_, value)| value);
    }
    line.split(' ').find_map(|part| part.strip_prefix(key)?.strip_prefix('='))
}

/// Rank 0's side of all lines.
struct Manager {
    size: usize,
    ranks: Mutex<Ranks>,
    /// A rank has come, is done, or has ended.
    changed: Condvar,
}

#[derive(Default)]
struct Ranks {
    lines: BTreeMap<usize, TcpStream>,
    /// How the ranks are reached, by the names that the library gives it.
    values: BTreeMap<String, String>,
    /// Ranks that wait for all others.
    waiting: usize,
    /// Ranks that are done.
    done: usize,
    /// The line that all are told since a rank has ended before it was done.
    end: Option<String>,
}

impl Manager {
    /// With the address by which this process itself reaches it. Every rank that comes is told
    /// `end`, where rank 0 has failed.
    fn start(place: &Place, meeting: &Meeting, end: Option<String>) -> Result<(Arc<Self>, SocketAddr)> {
        let addresses = meeting.addresses(place);
        let bind = |port| addresses.iter().find_map(|address| TcpListener::bind((*address, port)).ok());
        let listener = meeting.ports().find_map(bind).ok_or_else(|| {
            Error::config(format!("no port for the ranks is free on this machine: tried {meeting}"))
                .help("choose another port: MASTER_PORT, `torchrun --master-port`")
        })?;
        let mut own = listener.local_addr().map_err(|error| Error::start("the place where the ranks meet", &error))?;
        if own.ip().is_unspecified() {
            own.set_ip(if own.is_ipv6() { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() });
        }
        let ranks = Mutex::new(Ranks { end, ..Ranks::default() });
        let manager = Arc::new(Self { size: place.size, ranks, changed: Condvar::new() });
        let (served, run) = (manager.clone(), meeting.run.clone());
        let accept = move || {
            for stream in listener.incoming().flatten() {
                let (manager, run) = (served.clone(), run.clone());
                let serve = move || drop(manager.serve(stream, &run));
                // Who is not served asks again.
                let _ = thread::Builder::new().name("kiln-pmi-rank".into()).spawn(serve);
            }
        };
        let started = thread::Builder::new().name("kiln-pmi".into()).spawn(accept);
        started.map_err(|error| Error::start("the thread at which the ranks meet", &error))?;
        Ok((manager, own))
    }

    fn ranks(&self) -> MutexGuard<'_, Ranks> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a rank until it is done.
    fn serve(&self, stream: TcpStream, run: &str) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(GREETING))?;
        let mut from = BufReader::new(stream.try_clone()?);
        let greeted = next_line(&mut from)?.unwrap_or_default();
        let rank = value(&greeted, "rank").and_then(|rank| rank.parse().ok()).filter(|rank| *rank < self.size);
        let Some(rank) = rank.filter(|rank| greeted == greeting(*rank, self.size, run).trim_end()) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let is_taken = || self.ranks().lines.contains_key(&rank);
        if is_taken() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        (&stream).write_all(WELCOME)?;
        if next_line(&mut from)?.is_none_or(|line| line.as_bytes() != HERE.trim_ascii_end()) || is_taken() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        stream.set_read_timeout(None)?;
        {
            let mut ranks = self.ranks();
            if let Some(end) = &ranks.end {
                (&stream).write_all(end.as_bytes())?;
            }
            ranks.lines.insert(rank, stream);
        }
        self.changed.notify_all();
        let mut is_done = false;
        while let Ok(Some(line)) = next_line(&mut from) {
            match command(&line) {
                Some("abort") => {
                    self.end_others(rank, value(&line, "exitcode").and_then(|code| code.parse().ok()));
                    return Ok(());
                }
                name => {
                    // A rank that is gone is noticed where it is listened to.
                    let _ = self.answer(rank, &line);
                    is_done |= name == Some("finalize");
                }
            }
        }
        if !is_done {
            self.end_others(rank, None);
        }
        Ok(())
    }

    fn answer(&self, rank: usize, line: &str) -> io::Result<()> {
        let mut ranks = self.ranks();
        let size = self.size;
        let answer = match command(line).unwrap_or_default() {
            "init" => "response_to_init rc=0 pmi_version=1 pmi_subversion=1".into(),
            "get_maxes" => format!("maxes rc=0 {MAXIMA}"),
            "get_appnum" => "appnum rc=0 appnum=0".into(),
            "get_my_kvsname" => "my_kvsname rc=0 kvsname=kiln".into(),
            "get_universe_size" => format!("universe_size rc=0 size={size}"),
            "put" => match value(line, "key").zip(value(line, "value")) {
                Some((key, value)) => {
                    ranks.values.insert(key.into(), value.into());
                    "put_result rc=0".into()
                }
                None => "put_result rc=-1 msg=no_key".into(),
            },
            "get" => match value(line, "key").and_then(|key| ranks.values.get(key)) {
                Some(value) => format!("get_result rc=0 msg=success value={value}"),
                None => "get_result rc=-1 msg=key_not_found".into(),
            },
            "barrier_in" => {
                ranks.waiting += 1;
                if ranks.waiting == size {
                    ranks.waiting = 0;
                    return ranks.tell(|_| true, "cmd=barrier_out rc=0\n");
                }
                return Ok(());
            }
            "finalize" => {
                ranks.done += 1;
                self.changed.notify_all();
                "finalize_ack rc=0".into()
            }
            other => format!("{other}_result rc=-1 msg=unknown_command"),
        };
        ranks.tell(|other| other == rank, &format!("cmd={answer}\n"))
    }

    /// Tells the other ranks, once, that `rank` has ended, and that they do with its exit code;
    /// none where it is gone without one.
    fn end_others(&self, rank: usize, code: Option<u8>) {
        let mut ranks = self.ranks();
        if ranks.end.is_none() {
            let line = end_of(rank, code);
            // Who does not hear it has ended.
            let _ = ranks.tell(|other| other != rank, &line);
            ranks.end = Some(line);
        }
        self.changed.notify_all();
    }

    fn wait_for_all(&self) {
        let is_open = |ranks: &mut Ranks| ranks.done < self.size && ranks.end.is_none();
        drop(self.changed.wait_while(self.ranks(), is_open));
    }

    /// Waits until the ranks besides 0 have come, so that all of them are told of an end: one that
    /// comes when rank 0 is gone would wait for it.
    fn wait_for_late_ones(&self) {
        let lacks_one = |ranks: &mut Ranks| (1..self.size).any(|rank| !ranks.lines.contains_key(&rank));
        drop(self.changed.wait_timeout_while(self.ranks(), PARTING, lacks_one));
    }
}

/// The line by which all hear that `rank` has ended, and that they do with its exit code; none
/// where it is gone without one.
fn end_of(rank: usize, code: Option<u8>) -> String {
    let code = code.map_or_else(|| "none".to_owned(), |code| code.to_string());
    format!("cmd=abort exitcode={code} rank={rank}\n")
}

impl Ranks {
    fn tell(&mut self, whom: impl Fn(usize) -> bool, line: &str) -> io::Result<()> {
        // Rank 0 last: it is this process, which may end by it.
        let told = self.lines.iter_mut().rev().filter(|(rank, _)| whom(**rank));
        // A rank that is gone is noticed by who listens to it; the others are told all the same.
        let results = told.map(|(_, stream)| stream.write_all(line.as_bytes())).collect::<Vec<_>>();
        results.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_ranks_of_torchrun_meet_beside_its_store() {
        let of = |variables: &[(&str, &str)]| {
            let all = variables.iter().copied().collect::<BTreeMap<_, _>>();
            Meeting::found_in(|name| all.get(name).map(|value| (*value).to_owned()))
        };
        let master = [("MASTER_ADDR", "node-0"), ("MASTER_PORT", "29500")];
        let meeting = of(&master).unwrap();
        assert_eq!((meeting.ports().min(), meeting.ports().max()), (Some(29500), Some(29507)));
        assert_eq!((meeting.run.as_str(), meeting.to_string()), ("29500-", "node-0, ports 29500 to 29507".into()));
        let more = [("TORCHELASTIC_USE_AGENT_STORE", "True"), ("TORCHELASTIC_RUN_ID", "a b")];
        let meeting = of(&[&master[..], &more].concat()).unwrap();
        assert_eq!((meeting.ports().min(), meeting.run.as_str()), (Some(29501), "29500-a_b"));
        assert_eq!(of(&[&master[..], &[(TOKEN, "secret word")]].concat()).unwrap().run, "29500--secret_word");
        assert_eq!(of(&[master[0], ("MASTER_PORT", "65535")]).unwrap().ports().collect::<Vec<_>>(), [65535]);
        for (variables, said) in [
            (&master[..1], "MASTER_PORT is not"),
            (&master[1..], "MASTER_ADDR is not"),
            (&[master[0], ("MASTER_PORT", "0")], "MASTER_PORT: expected a port"),
            (&[master[0], ("MASTER_PORT", "70000")], "got \"70000\""),
        ] {
            let error = of(variables).unwrap_err();
            assert!(error.exit_code() == 2 && error.to_string().contains(said), "{error}");
        }
    }

    fn free_port() -> String {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
    }

    fn meeting(port: &str) -> Meeting {
        Meeting::found_in(|name| match name {
            "MASTER_ADDR" => Some("127.0.0.1".into()),
            "MASTER_PORT" => Some(port.into()),
            _ => None,
        })
        .unwrap()
    }

    fn place(rank: usize) -> Place {
        Place { rank, size: 2, ..Place::ALONE }
    }

    /// A rank's side of its line.
    struct Rank(BufReader<TcpStream>);

    impl Rank {
        fn meet(rank: usize, meeting: &Meeting) -> Self {
            Self(BufReader::new(meet(&place(rank), meeting, Duration::from_secs(60)).unwrap()))
        }

        fn say(&mut self, line: &str) {
            self.0.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
        }

        fn hear(&mut self) -> Option<String> {
            next_line(&mut self.0).unwrap()
        }

        fn ask(&mut self, line: &str) -> String {
            self.say(line);
            self.hear().unwrap()
        }
    }

    fn two_ranks() -> (Arc<Manager>, [Rank; 2]) {
        let meeting = meeting(&free_port());
        let (manager, _) = Manager::start(&place(0), &meeting, None).unwrap();
        (manager, [0, 1].map(|rank| Rank::meet(rank, &meeting)))
    }

    #[test]
    fn ranks_tell_one_another_how_they_are_reached() {
        let (manager, [mut a, mut b]) = two_ranks();
        assert_eq!(
            a.ask("cmd=init pmi_version=1 pmi_subversion=1"),
            "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1"
        );
        assert!(b.ask("cmd=get_maxes").starts_with("cmd=maxes rc=0 kvsname_max=256"));
        assert_eq!(b.ask("cmd=get_universe_size"), "cmd=universe_size rc=0 size=2");
        assert_eq!(b.ask("cmd=get_my_kvsname"), "cmd=my_kvsname rc=0 kvsname=kiln");
        let address = "fi_sockaddr=10.0.0.1 port=7";
        assert_eq!(a.ask(&format!("cmd=put kvsname=kiln key=card-0 value={address}")), "cmd=put_result rc=0");
        a.say("cmd=barrier_in");
        b.say("cmd=barrier_in");
        assert_eq!([a.hear(), b.hear()].map(Option::unwrap), ["cmd=barrier_out rc=0"; 2]);
        assert!(b.ask("cmd=get kvsname=kiln key=card-0").ends_with(&format!(" value={address}")));
        assert!(b.ask("cmd=get kvsname=kiln key=PMI_process_mapping").contains("rc=-1"));
        assert!(b.ask("cmd=spawn").contains("rc=-1"));
        for rank in [&mut a, &mut b] {
            assert_eq!(rank.ask("cmd=finalize"), "cmd=finalize_ack rc=0");
        }
        manager.wait_for_all();
        drop(b);
        let ranks = manager.ranks();
        assert!(ranks.done == 2 && ranks.end.is_none());
    }

    #[test]
    fn rank_0_listens_where_it_is_reached_and_nowhere_else() {
        let meeting = |host: &str| Meeting { host: host.into(), ..meeting("29500") };
        let (alone, shared) = (Place { local_size: 2, ..place(0) }, place(0));
        let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST)];
        assert_eq!(meeting("127.0.0.1").addresses(&alone), loopback);
        let all = [IpAddr::from(Ipv6Addr::UNSPECIFIED), Ipv4Addr::UNSPECIFIED.into()];
        for (host, place) in [("127.0.0.1", shared), ("192.0.2.1", alone), ("no-such-name.invalid", alone)] {
            assert_eq!(meeting(host).addresses(&place), all, "{host}");
        }
        let meeting = self::meeting(&free_port());
        let (_manager, own) = Manager::start(&alone, &meeting, None).unwrap();
        assert!(own.ip().is_loopback());
        // Another address of this machine.
        assert!(TcpStream::connect(("127.0.0.2", own.port())).is_err());
        assert!(TcpStream::connect(own).is_ok());
    }

    #[test]
    fn a_rank_that_ends_takes_the_others_with_it() {
        let (manager, [mut a, mut b]) = two_ranks();
        b.say("cmd=abort exitcode=4");
        assert_eq!(a.hear().unwrap(), "cmd=abort exitcode=4 rank=1");
        drop(b);
        manager.wait_for_all();
        let (_manager, [a, mut b]) = two_ranks();
        drop(a);
        assert_eq!(b.hear().unwrap(), "cmd=abort exitcode=none rank=0");
    }

    #[test]
    fn a_rank_that_fails_before_the_meeting_tells_all_of_it() {
        let place = |rank| Place { size: 3, ..place(rank) };
        let fails = move |rank: usize, meeting: &Meeting, is_told_by_rank_0: bool| {
            let mut said = None;
            give_up(&place(rank), meeting, 2, |is_known| said = Some(is_known));
            assert_eq!(said, Some(is_told_by_rank_0), "rank {rank}");
        };
        let come = move |rank: usize, meeting: &Meeting| {
            let stream = meet(&place(rank), meeting, Duration::from_secs(60)).unwrap();
            next_line(&mut BufReader::new(stream)).unwrap().unwrap()
        };
        // Rank 1 fails; rank 2 comes when rank 0 has heard of it, which waits for it.
        let meeting = meeting(&free_port());
        let (manager, _) = Manager::start(&place(0), &meeting, None).unwrap();
        fails(1, &meeting, false);
        assert_eq!(come(0, &meeting), "cmd=abort exitcode=2 rank=1");
        let (began, late) = (Instant::now(), meeting.clone());
        let late = thread::spawn(move || {
            thread::sleep(BETWEEN);
            come(2, &late)
        });
        manager.wait_for_late_ones();
        assert!((BETWEEN..PARTING).contains(&began.elapsed()), "{:?}", began.elapsed());
        assert_eq!(late.join().unwrap(), "cmd=abort exitcode=2 rank=1");
        // Rank 0 fails, and rank 1 by itself: it knows that rank 0 says why.
        let meeting = self::meeting(&free_port());
        let (of_one, of_two) = (meeting.clone(), meeting.clone());
        let one = thread::spawn(move || fails(1, &of_one, true));
        let two = thread::spawn(move || come(2, &of_two));
        let began = Instant::now();
        fails(0, &meeting, false);
        assert!(began.elapsed() < PARTING, "{:?}", began.elapsed());
        one.join().unwrap();
        assert_eq!(two.join().unwrap(), "cmd=abort exitcode=2 rank=0");
    }

    #[test]
    fn ports_of_others_are_passed_over_and_strangers_sent_away() {
        let port = free_port();
        let (meeting, other) = (meeting(&port), TcpListener::bind(format!("0.0.0.0:{port}")).unwrap());
        let (manager, _) = Manager::start(&place(0), &meeting, None).unwrap();
        let ends = thread::spawn(move || drop(other.accept()));
        let mut rank = Rank::meet(1, &meeting);
        assert!(rank.ask("cmd=get_maxes").contains("rc=0"), "it has its place");
        ends.join().unwrap();
        let address = rank.0.get_ref().peer_addr().unwrap();
        assert!(meeting.ports().skip(1).any(|port| port == address.port()));
        for stranger in [
            "GET / HTTP/1.1\n".into(),
            greeting(2, 2, &meeting.run),
            greeting(1, 2, "other"),
            greeting(1, 2, &meeting.run),
        ] {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(stranger.as_bytes()).unwrap();
            assert_eq!(stream.read(&mut [0; 8]).unwrap_or(0), 0, "{stranger}");
        }
        let ranks = manager.ranks();
        assert!(ranks.lines.len() == 1 && ranks.end.is_none());
    }

    #[test]
    fn a_program_that_says_nothing_does_not_hold_a_rank_beyond_its_limit() {
        let port = free_port();
        // The system takes the connection, and nobody answers.
        let _silent = TcpListener::bind(format!("127.0.0.1:{port}")).unwrap();
        let (began, limit) = (Instant::now(), Duration::from_secs(1));
        let error = meet(&place(1), &meeting(&port), limit).unwrap_err();
        assert!(error.exit_code() == 7 && error.to_string().contains("for 1 s"), "{error}");
        // Without a limit of its own the answer of one port is waited for as long as a greeting may
        // take.
        assert!(began.elapsed() < GREETING, "{:?}", began.elapsed());
        // A rank that fails passes it over and tells rank 0 behind it.
        let meeting = meeting(&port);
        let (manager, _) = Manager::start(&place(0), &meeting, None).unwrap();
        let (began, mut said) = (Instant::now(), None);
        give_up(&place(1), &meeting, 2, |is_known| said = Some(is_known));
        assert_eq!(said, Some(false));
        assert!(began.elapsed() < LAST_WORD, "{:?}", began.elapsed());
        manager.wait_for_all();
        assert_eq!(manager.ranks().end.as_deref(), Some("cmd=abort exitcode=2 rank=1\n"));
    }

    #[test]
    fn a_place_where_nobody_can_meet_is_refused() {
        let taken = TcpListener::bind("0.0.0.0:65535");
        let error = Manager::start(&place(0), &meeting("65535"), None).err().unwrap();
        assert!(error.exit_code() == 2 && error.to_string().contains("ports 65535 to 65535"), "{error}");
        drop(taken);
    }
}
