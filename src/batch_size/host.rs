//! What this machine has: memory that is free, the name of its processor, and how much memory a process has used. Linux
//! tells all of it in files; elsewhere the answer is none.

use std::fs;

/// Memory that a new process can have before something must go, in MiB: what the system calls available, within the limit of
/// the control group (a container's).
pub fn available_mib() -> Option<f64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let available = kib(&info, "MemAvailable:")? / 1024.0;
    Some(group_mib().map_or(available, |group| group.min(available)))
}

/// What the control group still allows; none without a limit.
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

/// The most memory that process `pid` has had resident, in MiB; none once it has ended.
pub fn peak_mib_of(pid: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(kib(&status, "VmHWM:")? / 1024.0)
}

/// The processor and how many threads compute on it.
pub fn cpu_name() -> String {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let name = name.map_or(std::env::consts::ARCH, |(_, name)| name.trim());
    format!("{name}, {threads} threads")
}

fn kib(text: &str, key: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
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
        assert!((peak - crate::execution::peak_mib().unwrap()).abs() < 64.0, "{peak}");
        assert_eq!(peak_mib_of(u32::MAX), None);
        assert!(cpu_name().contains(" threads"), "{}", cpu_name());
    }
}
