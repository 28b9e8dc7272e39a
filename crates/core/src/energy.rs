//! Energy of the processors and their memory, by the counters that the kernel shows below
//! `/sys/class/powercap`: RAPL, of Intel and AMD.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The folder of the counters, and the variable that names another one.
const FOLDER: (&str, &str) = ("/sys/class/powercap", "KILN_POWERCAP");

/// Counters of energy, and what they have counted.
#[derive(Debug)]
pub struct Counters(Vec<Counter>);

#[derive(Debug)]
struct Counter {
    file: PathBuf,
    /// Above this it begins at 0 again.
    range: Option<u64>,
    /// Microjoules.
    last: u64,
}

impl Counters {
    /// The counters of this machine, from now on.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn open() -> Result<Self, String> {
        let folder = std::env::var_os(FOLDER.1).filter(|folder| !folder.is_empty());
        Self::below(&folder.map_or_else(|| PathBuf::from(FOLDER.0), PathBuf::from))
    }

    fn below(folder: &Path) -> Result<Self, String> {
        let mut counters = Vec::new();
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            // `intel-rapl:0` is a processor, and `intel-rapl:0:1` a part of it. Memory alone is no
            // part of what the processor counts.
            let is_rapl = entry.file_name().to_string_lossy().starts_with("intel-rapl:");
            let text = |name: &str| fs::read_to_string(entry.path().join(name)).map(|text| text.trim().to_owned());
            let name = text("name").unwrap_or_default();
            if !is_rapl || !(name.starts_with("package") || name == "dram") {
                continue;
            }
            let file = entry.path().join("energy_uj");
            match read(&file) {
                Ok(last) => {
                    let range = text("max_energy_range_uj").ok().and_then(|range| range.parse().ok());
                    counters.push(Counter { file, range, last });
                }
                Err(ErrorKind::PermissionDenied) => {
                    return Err(format!("only root may read the counters in {}", folder.display()));
                }
                Err(_) => {}
            }
        }
        if counters.is_empty() {
            return Err(format!("{} has no counter of a processor", folder.display()));
        }
        Ok(Self(counters))
    }

    /// The joules since the last call, or since the counters were opened; none where one cannot be
    /// read any more.
    pub fn take(&mut self) -> Option<f64> {
        let micros = self.0.iter_mut().map(Counter::take).collect::<Option<Vec<_>>>()?;
        Some(micros.into_iter().sum::<u64>() as f64 / 1e6)
    }
}

impl Counter {
    fn take(&mut self) -> Option<u64> {
        let now = read(&self.file).ok()?;
        let last = std::mem::replace(&mut self.last, now);
        // Begun again: what was left up to the range, and what has come since.
        Some(now.checked_sub(last).unwrap_or_else(|| self.range.unwrap_or(last).saturating_sub(last) + now))
    }
}

fn read(file: &Path) -> Result<u64, ErrorKind> {
    let text = fs::read_to_string(file).map_err(|error| error.kind())?;
    text.trim().parse().map_err(|_| ErrorKind::InvalidData)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn counters_of_processors_and_memory_are_added_up_and_begin_again_at_their_range() {
        let folder = tempfile::tempdir().unwrap();
        let place = |zone: &str, name: &str, micros: &str| {
            let zone = folder.path().join(zone);
            fs::create_dir_all(&zone).unwrap();
            fs::write(zone.join("name"), format!("{name}\n")).unwrap();
            fs::write(zone.join("max_energy_range_uj"), "1000000\n").unwrap();
            fs::write(zone.join("energy_uj"), format!("{micros}\n")).unwrap();
        };
        assert!(Counters::below(folder.path()).unwrap_err().ends_with("has no counter of a processor"));
        place("intel-rapl:0", "package-0", "900000");
        place("intel-rapl:0:0", "core", "5");
        place("intel-rapl:0:1", "dram", "100");
        place("intel-rapl:1", "psys", "7");
        place("intel-rapl-mmio:0", "package-0", "900000");
        let mut counters = Counters::below(folder.path()).unwrap();
        assert_eq!(counters.take(), Some(0.0));
        place("intel-rapl:0", "package-0", "950000");
        place("intel-rapl:0:0", "core", "999");
        place("intel-rapl:0:1", "dram", "350100");
        assert_eq!(counters.take(), Some(0.4));
        place("intel-rapl:0", "package-0", "250000");
        assert_eq!(counters.take(), Some(0.3), "it has begun again");
        fs::remove_file(folder.path().join("intel-rapl:0/energy_uj")).unwrap();
        assert_eq!(counters.take(), None);
    }
}
