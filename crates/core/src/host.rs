//! Facts of this machine: its memory, memory that is free, the name of its processor, and how much
//! memory a process has used. Linux tells all of it in files; elsewhere the answer is none.

use std::fs;

/// Memory that a new process can have before something must go, in MiB: what the system calls
/// available, within the limit of the control group (a container's).
pub fn available_mib() -> Option<f64> {
    let available = mib("/proc/meminfo", "MemAvailable")?;
    Some(group_mib().map_or(available, |group| group.min(available)))
}

/// The memory that the control group still allows; none without a limit.
fn group_mib() -> Option<f64> {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<f64>().ok();
    let (limit, used, stat) = match number("/sys/fs/cgroup/memory.max") {
        Some(limit) => (limit, number("/sys/fs/cgroup/memory.current")?, "/sys/fs/cgroup/memory.stat"),
        None => (
            number("/sys/fs/cgroup/memory/memory.limit_in_bytes")?,
            number("/sys/fs/cgroup/memory/memory.usage_in_bytes")?,
            "/sys/fs/cgroup/memory/memory.stat",
        ),
    };
    // Pages of files that nobody has used for a while make room.
    let stat = fs::read_to_string(stat).unwrap_or_default();
    let cached = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.trim().parse::<f64>().ok());
    Some((limit - used + cached.unwrap_or(0.0)) / f64::from(1 << 20))
}

/// The limit that a process meets first when it asks for more memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// The machine's memory and swap, without what other processes have.
    Machine,
    /// The limit of the control group, as that of a container.
    Group,
    /// The limit of the address space, `ulimit -v`.
    AddressSpace,
}

/// The memory that a process can have in all, and what keeps it from more.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Room {
    /// MiB, with those that it has.
    pub mib: f64,
    /// The limit that is met first.
    pub bound: Bound,
}

/// Addresses that a thread which computes takes and hardly fills: an arena of glibc and the stack.
const OF_THREAD_MIB: f64 = 66.0;

/// The room of this process, which shares the machine with `sharers` like it, itself among them;
/// none where the system does not tell.
pub fn room(sharers: usize) -> Option<Room> {
    let resident = resident_mib()?;
    let shared = |mib: f64| mib / sharers as f64 + resident;
    let swap = mib("/proc/meminfo", "SwapFree").unwrap_or(0.0);
    let machine = mib("/proc/meminfo", "MemAvailable").map(|mib| (shared(mib + swap), Bound::Machine));
    let group = group_mib().map(|mib| (shared(mib), Bound::Group));
    let threads = threads() as f64 * OF_THREAD_MIB;
    let taken = addresses_mib()? - resident + threads;
    let addresses = address_space_mib().map(|limit| ((limit - taken).max(0.0), Bound::AddressSpace));
    let least = machine.into_iter().chain(group).chain(addresses).min_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(Room { mib: least.0, bound: least.1 })
}

/// The limit of this process's address space (`ulimit -v`); none without one.
fn address_space_mib() -> Option<f64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    Some(line.split_whitespace().next()?.parse::<f64>().ok()? / f64::from(1 << 20))
}

/// The machine's memory in MiB.
pub fn memory_mib() -> Option<f64> {
    mib("/proc/meminfo", "MemTotal")
}

/// The most memory that process `pid` has had resident, in MiB; none once it has ended.
pub fn peak_mib_of(pid: u32) -> Option<f64> {
    mib(&format!("/proc/{pid}/status"), "VmHWM")
}

/// The most memory that this process has had resident, in MiB.
pub fn peak_mib() -> Option<f64> {
    mib("/proc/self/status", "VmHWM")
}

/// The memory that this process has resident, in MiB.
pub fn resident_mib() -> Option<f64> {
    mib("/proc/self/status", "VmRSS")
}

/// The addresses that this process has taken, filled or not, in MiB.
pub fn addresses_mib() -> Option<f64> {
    mib("/proc/self/status", "VmSize")
}

/// Gives the memory that this process has freed back to the system, where the C library is glibc,
/// whose heap keeps it. Whoever needs it again waits for the pages.
pub fn return_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[allow(unsafe_code)]
    // SAFETY: it touches no memory that is in use, and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// A process that is refused a block of this size, twice the stack of a thread, counts as one
/// without memory.
const PROBE: usize = 16 << 20;

/// Whether the system refuses this process more memory. It allocates nothing, so that a handler of
/// a signal may ask.
pub fn lacks_memory() -> bool {
    refuses(PROBE)
}

/// Whether the system refuses this process `bytes` of memory in one piece.
#[cfg(unix)]
#[allow(unsafe_code)]
pub fn refuses(bytes: usize) -> bool {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping anywhere, which nobody uses, and its end.
    unsafe {
        let place = libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0);
        place == libc::MAP_FAILED || libc::munmap(place, bytes) != 0
    }
}

/// Whether the system refuses this process `bytes` of memory: here it does not tell.
#[cfg(not(unix))]
pub fn refuses(_bytes: usize) -> bool {
    false
}

/// The version of NVIDIA's kernel driver, as it calls itself; none where there is none.
pub fn gpu_driver() -> Option<String> {
    let text = fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

/// The processor's name.
pub fn cpu() -> Option<String> {
    first_value("/proc/cpuinfo", "model name")
}

/// Processes that wanted to run in the mean of the last minute (the load average).
pub fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// Threads that this process may use.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The processor and how many threads compute on it.
pub fn cpu_name() -> String {
    format!("{}, {} threads", cpu().unwrap_or_else(|| std::env::consts::ARCH.into()), threads())
}

/// A number of kB in a file of `/proc`, in MiB.
fn mib(file: &str, key: &str) -> Option<f64> {
    let kib: f64 = first_value(file, key)?.split_whitespace().next()?.parse().ok()?;
    Some(kib / 1024.0)
}

/// The value of the first line `key : value` of a file of `/proc`.
fn first_value(file: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_machine_tells() {
        let free = available_mib().unwrap();
        assert!(free > 1.0 && free < 1e8, "{free}");
        let peak = peak_mib_of(std::process::id()).unwrap();
        assert!((peak - peak_mib().unwrap()).abs() < 64.0, "{peak}");
        assert_eq!(peak_mib_of(u32::MAX), None);
        assert!(resident_mib().unwrap() <= peak_mib().unwrap() && memory_mib().unwrap() >= free);
        let (alone, shared) = (room(1).unwrap(), room(4).unwrap());
        assert!(alone.mib > resident_mib().unwrap() * 0.5 && shared.mib <= alone.mib * 1.1, "{alone:?} {shared:?}");
        assert!(load().unwrap() >= 0.0);
        assert!(cpu_name().contains(" threads"), "{}", cpu_name());
    }
}
