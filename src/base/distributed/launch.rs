//! The command line that starts the ranks of a run: mpirun of Open MPI or of MPICH, on this machine or over several.

use std::path::PathBuf;
use std::process::Command;

use crate::base::error::{Error, Result};
use crate::base::host;

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

/// Whose mpirun it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Of a major version.
    OpenMpi(u32),
    Hydra,
}

impl Launch {
    /// The command that starts `program` with `args` on every rank.
    ///
    /// # Errors
    /// Ranks that do not fill the machines evenly, and an mpirun that is missing or unknown.
    pub fn command(&self, program: &std::path::Path, args: &[String]) -> Result<Command> {
        let mut command = Command::new(&self.mpirun);
        let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| is_owned_by_root(&own));
        command.args(self.options(self.kind()?, is_root, host::threads(), threads_are_set())?).arg(program).args(args);
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
        let (ranks, machines) = (self.ranks, self.hosts.len().max(1));
        if ranks == 0 || !ranks.is_multiple_of(machines) {
            return Err(Error::config(format!(
                "-n {ranks}: expected a number of ranks that {machines} machines share evenly"
            ))
            .help(format!("-n {}", ranks.max(1).next_multiple_of(machines))));
        }
        let per_machine = ranks / machines;
        let mut options = Vec::new();
        let mut add = |more: &[&str]| options.extend(more.iter().map(|option| (*option).to_owned()));
        let count = ranks.to_string();
        // The threads of a machine are shared by its ranks; a rank that is bound to a core would have one of them alone.
        let per_rank = (threads / per_machine).max(1).to_string();
        match kind {
            Kind::OpenMpi(version) => {
                add(&["-np", &count, "--bind-to", "none", "--quiet"]);
                if is_root {
                    add(&["--allow-run-as-root"]);
                }
                match &self.hosts[..] {
                    [] => add(&["--oversubscribe"]),
                    hosts => {
                        let hosts = hosts.iter().map(|host| format!("{host}:{per_machine}")).collect::<Vec<_>>();
                        add(&["-H", &hosts.join(",")]);
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

    #[test]
    fn threads_are_shared_by_the_ranks_of_a_machine() {
        let text = options(4, &[], Kind::OpenMpi(4)).unwrap();
        assert!(text.starts_with("-np 4 ") && text.contains("--oversubscribe"), "{text}");
        assert!(text.contains("-x RAYON_NUM_THREADS=2"), "{text}");
        let text = options(4, &["a", "b"], Kind::OpenMpi(4)).unwrap();
        assert!(text.contains("-H a:2,b:2") && text.contains("RAYON_NUM_THREADS=4"), "{text}");
        let text = options(4, &["a", "b"], Kind::Hydra).unwrap();
        assert_eq!(text, "-n 4 -hosts a,b -ppn 2 -genv RAYON_NUM_THREADS 4");
        let error = options(3, &["a", "b"], Kind::Hydra).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains("-n 4"), "{error}");
    }
}
