//! The world of a run: the processes (ranks) that a launcher has started for it, one for each
//! device, and what they tell one another. The engine is MPI, which is loaded when a launcher has
//! started more than one process ([`environment`], `mpi`); without a launcher nothing is loaded,
//! and the world is this process alone. NCCL sums the gradients of CUDA devices (`nccl`).
//!
//! Sums are made in the order of the ranks, whatever the library and the size: each rank adds a
//! part of the values of all ranks and hands its sums to the others (a reduce-scatter by an
//! all-to-all exchange, and an all-gather). So every rank has the same bits, and `N` ranks with one
//! value each have those of one process that adds `N` values one after the other.

pub mod environment;
pub mod launch;
mod gradients;
mod mpi;
#[cfg(feature = "cuda")]
mod nccl;
mod overlap;
#[cfg(unix)]
mod pmi;
mod shard;
mod watchdog;

use std::ops::Range;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use environment::{Hosts, Launcher, Place};
pub use gradients::{sum_gradients, sum_loss, weights_checksum};
use kiln_core::error::{Error, Result};
use kiln_core::host;
use kiln_core::signals::{self, Signal};
use mpi::Mpi;
pub use mpi::library as mpi_library;
pub use overlap::Overlap;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
pub use shard::{Shard, ShardGradients};

/// So many values are summed at a time, which bounds the memory that it takes: 64 MiB of f32.
pub const PIECE: usize = 1 << 24;

/// How often a rank that works while others wait for it tells them that it goes on.
const BEAT: Duration = Duration::from_millis(500);

/// So many values at a time go to the ranks whose part they are, or come from them: 16 MiB of f32,
/// since who divides its values wants to save memory.
pub const SHARD_PIECE: usize = 1 << 22;

/// The devices that a run computes on: one process each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Devices {
    /// How many.
    pub count: usize,
    /// On so many machines.
    pub nodes: usize,
}

impl Default for Devices {
    fn default() -> Self {
        Self { count: 1, nodes: 1 }
    }
}

impl Devices {
    /// The most of them that are on one machine.
    pub fn of_a_node(self) -> usize {
        self.count.div_ceil(self.nodes)
    }
}

impl std::fmt::Display for Devices {
    /// `4 devices (2 nodes x 2)`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { count, nodes } = *self;
        let unit = if count == 1 { "device" } else { "devices" };
        match (nodes, count % nodes) {
            (1, _) => write!(f, "{count} {unit}"),
            (_, 0) => write!(f, "{count} {unit} ({nodes} nodes x {})", count / nodes),
            _ => write!(f, "{count} {unit} ({nodes} nodes)"),
        }
    }
}

/// The processes of a run, seen from one of them.
#[derive(Debug, Clone)]
pub struct World {
    place: Place,
    nodes: usize,
    /// Each process of this machine sees other devices.
    sees_own_devices: bool,
    mpi: Option<Arc<Mpi>>,
    /// Sums leave the processor to other threads while they wait.
    is_patient: bool,
    /// Sums gradients where they lie on CUDA devices.
    #[cfg(feature = "cuda")]
    nccl: Option<Arc<nccl::Nccl>>,
}

/// The world that this process has joined: MPI can be joined once.
static JOINED: OnceLock<World> = OnceLock::new();

impl Default for World {
    fn default() -> Self {
        Self::alone()
    }
}

impl World {
    /// This process alone.
    pub fn alone() -> Self {
        Self {
            place: Place::ALONE,
            nodes: 1,
            sees_own_devices: false,
            mpi: None,
            is_patient: false,
            #[cfg(feature = "cuda")]
            nccl: None,
        }
    }

    /// The world that a launcher (`kiln launch`, mpirun, srun) has made this process a part of;
    /// this process alone where none has. Joining again gives the same world.
    ///
    /// # Errors
    /// A config error for variables that contradict one another, an MPI that cannot be found or is
    /// unknown, one that finds another world than the launcher's variables tell of, and a job of
    /// several machines that no launcher has begun.
    pub fn join() -> Result<Self> {
        if let Some(joined) = JOINED.get() {
            return Ok(joined.clone());
        }
        let world = match environment::find()? {
            None => {
                Hosts::check_alone()?;
                Self::alone()
            }
            Some(found) => {
                watchdog::start()?;
                let mpi = Arc::new(Mpi::start(&found)?);
                let joined = Self { place: found.place, mpi: Some(mpi), ..Self::alone() };
                // Who is on which machine is told by names: launchers do not all tell it.
                let hosts = joined.gather_text(&environment::host())?;
                let own = &hosts[found.place.rank];
                let on_own = |ranks: &[String]| ranks.iter().filter(|host| *host == own).count();
                let place =
                    Place { local_rank: on_own(&hosts[..found.place.rank]), local_size: on_own(&hosts), ..found.place };
                let nodes = hosts.iter().collect::<std::collections::BTreeSet<_>>().len();
                let devices = joined.gather_text(&environment::visible_devices())?;
                let here = hosts.iter().zip(&devices).filter(|(host, _)| *host == own).map(|(_, devices)| devices);
                let sees_own_devices = place.local_size > 1 && environment::are_disjoint(here);
                signals::take_user_signals()?;
                Self { place, nodes, sees_own_devices, ..joined }
            }
        };
        Ok(JOINED.get_or_init(|| world).clone())
    }

    /// The world that [`join`](Self::join) has joined; none before.
    pub fn joined() -> Option<&'static Self> {
        JOINED.get()
    }

    /// The number of this process, from 0.
    pub fn rank(&self) -> usize {
        self.place.rank
    }

    /// How many processes there are.
    pub fn size(&self) -> usize {
        self.place.size
    }

    /// The number of this process among those of its machine, from 0.
    pub fn local_rank(&self) -> usize {
        self.place.local_rank
    }

    /// How many processes this machine has.
    pub fn local_size(&self) -> usize {
        self.place.local_size
    }

    /// Whether the launcher lets each process of this machine see devices of its own
    /// (`CUDA_VISIBLE_DEVICES`).
    pub fn sees_own_devices(&self) -> bool {
        self.sees_own_devices
    }

    /// This world, for a thread beside one that computes: [sums](Self::sum) leave the processor to
    /// others while they wait.
    pub(super) fn patient(&self) -> Self {
        Self { is_patient: true, ..self.clone() }
    }

    /// This world, whose gradients NCCL sums where they lie on CUDA devices, of which `index` is
    /// this rank's; all ranks call it.
    ///
    /// # Errors
    /// A config error where there is no NCCL; NCCL's, MPI's and the driver's.
    #[cfg(feature = "cuda")]
    pub fn with_nccl(self, index: usize) -> Result<Self> {
        let nccl = nccl::Nccl::start(&self, index)?;
        Ok(Self { nccl: Some(Arc::new(nccl)), ..self })
    }

    /// The name and version of the NCCL that sums gradients.
    #[cfg(feature = "cuda")]
    pub fn nccl(&self) -> Option<String> {
        self.nccl.as_ref().map(|nccl| nccl.name())
    }

    /// Whether there are other processes.
    pub fn is_shared(&self) -> bool {
        self.mpi.is_some()
    }

    /// Whether this is rank 0, which alone writes.
    pub fn is_root(&self) -> bool {
        self.place.rank == 0
    }

    /// The devices of the world: one a process.
    pub fn devices(&self) -> Devices {
        Devices { count: self.size(), nodes: self.nodes }
    }

    /// `2 ranks by libmpi.so.40, 2 on this machine with 1 thread each`; none for a process alone.
    pub fn describe(&self) -> Option<String> {
        let mpi = self.mpi.as_ref()?;
        let set = std::env::var("RAYON_NUM_THREADS").ok().and_then(|threads| threads.parse().ok());
        let threads: usize = set.filter(|threads| *threads > 0).unwrap_or_else(host::threads);
        let unit = if threads == 1 { "thread" } else { "threads" };
        let (size, own) = (self.size(), self.local_size());
        Some(format!("{size} ranks by {}, {own} on this machine with {threads} {unit} each", mpi.name()))
    }

    /// Adds up `values` over the ranks, in the order of the ranks, on each of them. All ranks call
    /// it with as many values.
    ///
    /// # Errors
    /// MPI's.
    pub fn sum(&self, values: &mut [f32]) -> Result<()> {
        let Some(mpi) = &self.mpi else { return Ok(()) };
        let size = self.size();
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        for piece in values.chunks_mut(PIECE) {
            let part = piece.len().div_ceil(size);
            sent.clear();
            sent.extend_from_slice(piece);
            sent.resize(part * size, 0.0);
            received.resize(part * size, 0.0);
            if self.is_patient {
                mpi.all_to_all_patiently(&sent, &mut received)?;
                mpi.all_gather_patiently(summed(&mut received, part), &mut sent)?;
            } else {
                mpi.all_to_all(&sent, &mut received)?;
                mpi.all_gather(summed(&mut received, part), &mut sent)?;
            }
            piece.copy_from_slice(&sent[..piece.len()]);
        }
        Ok(())
    }

    /// The part of `len` values that is rank `rank`'s: the parts are equally long and lie one after
    /// the other in the order of the ranks; the last ones may be shorter, or empty.
    pub fn part(&self, rank: usize, len: usize) -> Range<usize> {
        let part = len.div_ceil(self.size());
        (rank * part).min(len)..((rank + 1) * part).min(len)
    }

    /// The sums over the ranks, in their order, of this rank's [`part`](Self::part) of `values`:
    /// the bits of [`sum`](Self::sum). All ranks call it with as many values.
    ///
    /// # Errors
    /// MPI's.
    pub fn reduce_scatter(&self, values: &[f32]) -> Result<Vec<f32>> {
        let Some(mpi) = &self.mpi else { return Ok(values.to_vec()) };
        let (size, len) = (self.size(), values.len());
        let part = len.div_ceil(size);
        let mut sums = Vec::with_capacity(part);
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        while sums.len() < part {
            let (start, length) = (sums.len(), (SHARD_PIECE / size).max(1).min(part - sums.len()));
            sent.clear();
            for rank in 0..size {
                let begin = (rank * part + start).min(len);
                sent.extend_from_slice(&values[begin..(begin + length).min(len)]);
                sent.resize((rank + 1) * length, 0.0);
            }
            received.resize(length * size, 0.0);
            mpi.all_to_all(&sent, &mut received)?;
            sums.extend_from_slice(summed(&mut received, length));
        }
        sums.truncate(self.part(self.rank(), len).len());
        Ok(sums)
    }

    /// The values of all ranks one after the other, on each of them; this one has `own`, and rank
    /// `i` has `lengths[i]` values.
    ///
    /// # Errors
    /// MPI's.
    pub fn all_gather(&self, own: &[f32], lengths: &[usize]) -> Result<Vec<f32>> {
        let Some(mpi) = &self.mpi else { return Ok(own.to_vec()) };
        self.joined_by(own, lengths, |sent, received| mpi.all_gather(sent, received))
    }

    /// [`all_gather`](Self::all_gather) for rank 0 alone; the others get nothing.
    ///
    /// # Errors
    /// MPI's.
    pub fn gather_at_root(&self, own: &[f32], lengths: &[usize]) -> Result<Vec<f32>> {
        let Some(mpi) = &self.mpi else { return Ok(own.to_vec()) };
        self.joined_by(own, lengths, |sent, received| mpi.gather(sent, received))
    }

    /// Joins lists piece by piece: `gather` puts the pieces of all ranks one after the other, or
    /// leaves nothing where this rank gets none.
    fn joined_by(
        &self,
        own: &[f32],
        lengths: &[usize],
        gather: impl Fn(&[f32], &mut Vec<f32>) -> Result<()>,
    ) -> Result<Vec<f32>> {
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let within = |list: usize, start: usize, length: usize| start.min(list)..(start + length).min(list);
        let most = (SHARD_PIECE / self.size()).max(1);
        let (mut all, mut sent) = (Vec::new(), Vec::new());
        for start in (0..longest).step_by(most) {
            let length = most.min(longest - start);
            sent.clear();
            sent.extend_from_slice(&own[within(own.len(), start, length)]);
            sent.resize(length, 0.0);
            let mut received = vec![0.0; length * self.size()];
            gather(&sent, &mut received)?;
            if received.is_empty() {
                continue;
            }
            all.resize(lengths.iter().sum(), 0.0);
            let mut begin = 0;
            for (piece, list) in received.chunks(length).zip(lengths) {
                let place = within(*list, start, length);
                all[begin + place.start..begin + place.end].copy_from_slice(&piece[..place.len()]);
                begin += list;
            }
        }
        Ok(all)
    }

    /// The `values` of each rank, in the order of the ranks, on each of them. All ranks call it
    /// with as many values.
    ///
    /// # Errors
    /// MPI's.
    pub fn gather(&self, values: &[f64]) -> Result<Vec<Vec<f64>>> {
        let Some(mpi) = &self.mpi else { return Ok(vec![values.to_vec()]) };
        let mut all = vec![0.0; values.len() * self.size()];
        mpi.all_gather(values, &mut all)?;
        match values.len() {
            0 => Ok(vec![Vec::new(); self.size()]),
            length => Ok(all.chunks(length).map(<[f64]>::to_vec).collect()),
        }
    }

    /// [`gather`](Self::gather) of lists whose lengths may differ.
    ///
    /// # Errors
    /// MPI's.
    pub fn gather_lists(&self, values: Vec<f64>) -> Result<Vec<Vec<f64>>> {
        if !self.is_shared() {
            return Ok(vec![values]);
        }
        let lengths = self.gather(&[values.len() as f64])?;
        let lengths = lengths.iter().map(|length| length[0] as usize).collect::<Vec<_>>();
        let mut padded = values;
        padded.resize(lengths.iter().copied().max().unwrap_or(0), 0.0);
        let mut all = self.gather(&padded)?;
        all.iter_mut().zip(lengths).for_each(|(list, length)| list.truncate(length));
        Ok(all)
    }

    /// `text` of each rank, in their order.
    ///
    /// # Errors
    /// MPI's.
    pub(crate) fn gather_text(&self, text: &str) -> Result<Vec<String>> {
        let lists = self.gather_lists(text.bytes().map(f64::from).collect())?;
        let text = |list: Vec<f64>| list.into_iter().map(|byte| byte as u8).collect::<Vec<_>>();
        Ok(lists.into_iter().map(|list| String::from_utf8_lossy(&text(list)).into_owned()).collect())
    }

    /// The sums of `values` over the ranks, in their order.
    ///
    /// # Errors
    /// MPI's.
    pub fn totals<const N: usize>(&self, values: [f64; N]) -> Result<[f64; N]> {
        let mut totals = values;
        if self.is_shared() {
            totals = [0.0; N];
            for of_rank in self.gather(&values)? {
                totals.iter_mut().zip(of_rank).for_each(|(total, value)| *total += value);
            }
        }
        Ok(totals)
    }

    /// The value of rank 0, on each rank.
    ///
    /// # Errors
    /// MPI's.
    pub fn of_root(&self, value: f64) -> Result<f64> {
        Ok(self.gather(&[value])?[0][0])
    }

    /// The signal that any of the ranks has received, the same on each of them.
    ///
    /// # Errors
    /// MPI's.
    pub fn received(&self) -> Result<Option<Signal>> {
        let own = signals::received();
        if !self.is_shared() {
            return Ok(own);
        }
        let code = own.map_or(0.0, |signal| f64::from(signal.exit_code()));
        let all = self.gather(&[code])?;
        let code = all.iter().map(|code| code[0] as i32).max().unwrap_or(0);
        Ok(Signal::of_exit_code(code))
    }

    /// The bytes of rank 0, on each rank.
    ///
    /// # Errors
    /// MPI's.
    pub fn broadcast(&self, bytes: &mut Vec<u8>) -> Result<()> {
        let Some(mpi) = &self.mpi else { return Ok(()) };
        let mut length = (bytes.len() as u64).to_le_bytes();
        mpi.broadcast(&mut length)?;
        bytes.resize(u64::from_le_bytes(length) as usize, 0);
        bytes.chunks_mut(4 * PIECE).try_for_each(|piece| mpi.broadcast(piece))
    }

    /// The value that rank 0 has made with `make`, on each rank. The others wait for as long as
    /// rank 0 works.
    ///
    /// # Errors
    /// The error of `make`, and MPI's.
    pub fn made_by_root<T: Serialize + DeserializeOwned>(&self, make: impl FnOnce() -> Result<T>) -> Result<T> {
        let own = self.by_root(make)?;
        let text = |error| Error::data(format!("what rank 0 tells the others: {error}"));
        let mut bytes = own.as_ref().map_or(Ok(Vec::new()), serde_json::to_vec).map_err(text)?;
        self.broadcast(&mut bytes)?;
        match own {
            Some(own) => Ok(own),
            None => serde_json::from_slice(&bytes).map_err(text),
        }
    }

    /// Does `work` on rank 0 alone, while the others wait for as long as it takes; its result, on
    /// rank 0.
    ///
    /// # Errors
    /// The error of `work`, and MPI's.
    pub fn by_root<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        if self.is_root() { self.working(work).map(Some) } else { self.wait().map(|()| None) }
    }

    /// Does `work` on the first rank of each machine, and then on the others, which find what it
    /// has left on that machine.
    ///
    /// # Errors
    /// The error of `work`, and MPI's.
    pub fn first_of_a_machine_first<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.local_rank() != 0 {
            self.wait()?;
            return work();
        }
        self.working(work)
    }

    /// Does `work` while other ranks [`wait`](Self::wait), who are told that it goes on; so the
    /// watchdog tells long work from a rank that is gone. Returns when no rank works any more.
    fn working<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if !self.is_shared() {
            return work();
        }
        let (done, heard) = channel();
        let world = self.clone();
        let tell = move || loop {
            match heard.recv_timeout(BEAT) {
                Ok(()) => return world.wait(),
                Err(RecvTimeoutError::Timeout) => {
                    world.nobody_works(true)?;
                }
                // The work has failed, which ends all ranks.
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        };
        let teller = thread::Builder::new().name("kiln-ranks".into()).spawn(tell);
        let teller = teller.map_err(|error| Error::start("the thread that talks to the other ranks", &error))?;
        let made = work()?;
        // A teller that has ended says why.
        let _ = done.send(());
        teller.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(made)
    }

    /// Waits until no rank works any more.
    fn wait(&self) -> Result<()> {
        while !self.nobody_works(false)? {}
        Ok(())
    }

    /// Tells all ranks whether this one `works`, and asks whether any does.
    fn nobody_works(&self, works: bool) -> Result<bool> {
        let all = self.gather(&[f64::from(u8::from(works))])?;
        Ok(all.iter().all(|works| works[0] == 0.0))
    }

    /// Leaves the world at the end of a process that has done its part, as all others have.
    ///
    /// # Errors
    /// MPI's.
    pub fn leave(&self) -> Result<()> {
        self.mpi.as_ref().map_or(Ok(()), |mpi| mpi.finish())
    }

    /// Whether this process has left the world, as all others have.
    pub fn is_left(&self) -> bool {
        self.mpi.as_ref().is_some_and(|mpi| mpi.is_finished())
    }

    /// Whether this process is in a call of MPI. It allocates nothing and takes no lock.
    pub fn waits() -> bool {
        watchdog::waits()
    }

    /// Whether MPI is starting in this process. It allocates nothing and takes no lock.
    pub fn is_starting() -> bool {
        mpi::is_starting()
    }

    /// Tells the ranks of the launcher, which this process has not [joined](Self::join), that it
    /// ends with the exit code `code`; an mpirun ends them by itself. `say` says why it ends, and
    /// gets whether rank 0 may end for the same reason, and say so.
    pub fn give_up(code: u8, say: impl FnOnce(bool)) {
        let Ok(Some(found)) = environment::find() else { return say(false) };
        let is_other = found.place.rank > 0;
        match found.launcher {
            #[cfg(unix)]
            Launcher::Torchrun if !mpi::has_begun() => match pmi::Meeting::find() {
                Ok(meeting) => pmi::give_up(&found.place, &meeting, code, say),
                Err(_) => say(is_other),
            },
            // srun waits for the others, which wait in MPI.
            Launcher::Slurm if !mpi::has_begun() => {
                say(is_other);
                if let Ok(mpi) = watchdog::start().and_then(|()| Mpi::start(&found)) {
                    mpi.abort(code);
                }
            }
            _ => say(is_other),
        }
    }

    /// Ends all processes of the world with the exit code `code`. Returns where there are no
    /// others.
    pub fn abort(&self, code: u8) {
        if let Some(mpi) = &self.mpi {
            mpi.abort(code);
        }
    }
}

/// The sums of parts of `part` values that the ranks have sent, in the order of the ranks.
fn summed(received: &mut [f32], part: usize) -> &[f32] {
    let (own, others) = received.split_at_mut(part);
    for other in others.chunks(part) {
        own.iter_mut().zip(other).for_each(|(sum, value)| *sum += value);
    }
    own
}
