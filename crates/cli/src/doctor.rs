//! `kiln doctor`: what this build and this machine offer and lack, each line with the command that
//! mends it, as a text for an issue. It asks no other machine and prints no secret.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kiln::build_info::{BURN_VERSION, COMMIT};
use kiln::config::DeviceKind;
use kiln::engine::device;
use kiln_core::error::{Error, Result};
use kiln_core::host::{self, Bound};
use kiln_core::process::{Child, Kind, scratch};
use kiln_core::words::thousands;
use kiln_data::hub::{CAN_PUSH, HubSettings};
use kiln_measure::engines::{Identity, Programs};
use kiln_train::distributed::mpi_library;

use super::say;

/// Python has this long to import transformers, which takes seconds on a cold disk.
const PATIENCE: Duration = Duration::from_secs(60);

/// A cache folder with less room than this, in bytes, does not hold the tokens of a small corpus.
const ROOM: u64 = 1 << 30;

/// A process with less memory than this, in MiB, trains no model of a common size.
const MEMORY_MIB: f64 = 512.0;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// It is as it should be.
    Ok,
    /// It is not there, and runs that do without it do not miss it.
    Missing,
    /// A command that needs it fails.
    Wrong,
}

/// One thing that was looked at.
struct Line {
    state: State,
    what: &'static str,
    found: String,
    /// How it is mended.
    help: Option<String>,
}

impl Line {
    fn ok(what: &'static str, found: impl Into<String>) -> Self {
        Self { state: State::Ok, what, found: found.into(), help: None }
    }

    fn missing(what: &'static str, found: impl Into<String>, help: impl Into<String>) -> Self {
        Self { state: State::Missing, what, found: found.into(), help: Some(help.into()) }
    }

    fn wrong(what: &'static str, error: &Error) -> Self {
        let help = error.help_line().map(str::to_owned);
        Self { state: State::Wrong, what, found: error.message().to_owned(), help }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Ok => "ok",
            State::Missing => "missing",
            State::Wrong => "wrong",
        };
        write!(f, "{state:<8} {:<12} {}", self.what, self.found)?;
        self.help.iter().try_for_each(|help| write!(f, "\n{:22}help: {help}", ""))
    }
}

/// Prints what was found.
///
/// # Errors
/// Something that is wrong.
pub(super) fn run_doctor() -> Result<()> {
    let mut lines = vec![build(), cpu(), memory()];
    lines.extend(devices());
    lines.extend(engines());
    lines.push(mpi());
    lines.extend(cache());
    lines.extend(hub());
    lines.push(python());
    lines.iter().try_for_each(say)?;
    let wrong = lines.iter().filter(|line| line.state == State::Wrong).map(|line| line.what).collect::<Vec<_>>();
    if wrong.is_empty() {
        return Ok(());
    }
    Err(Error::config(format!("wrong here: {}", wrong.join(", "))).help("the lines above say how each is mended"))
}

fn build() -> Line {
    let Identity { engine, devices, .. } = Identity::this();
    let is_slow = cfg!(debug_assertions);
    let kind = if is_slow { "debug" } else { "release" };
    let found = format!(
        "kiln {} (commit {COMMIT}) on Burn {BURN_VERSION}, {kind} build, {engine} engine, for {}, {} {}",
        env!("CARGO_PKG_VERSION"),
        devices.join(", "),
        std::env::consts::OS,
        std::env::consts::ARCH
    );
    if is_slow {
        Line::missing("build", found, "checks of a debug build slow every step: build with `cargo build --release`")
    } else {
        Line::ok("build", found)
    }
}

fn cpu() -> Line {
    match device::select(DeviceKind::Cpu, 0).and_then(|cpu| cpu.check()) {
        Ok(unit) => {
            let unit = unit.map_or_else(String::new, |unit| format!("; {unit}"));
            Line::ok("cpu", format!("{}{unit}", host::cpu_name()))
        }
        Err(error) => Line::wrong("cpu", &error),
    }
}

fn memory() -> Line {
    let mib = |mib: f64| thousands(mib.round().max(0.0) as u64);
    let Some(room) = host::room(1) else {
        return Line::ok("memory", "the system does not tell");
    };
    let bound = match room.bound {
        Bound::Machine => "what other processes leave",
        Bound::Group => "the limit of the control group",
        Bound::AddressSpace => "the limit of the address space (`ulimit -v`)",
    };
    let all = host::memory_mib().map_or_else(String::new, |all| format!(" of {} MiB", mib(all)));
    let found = format!("{} MiB{all} for a run, by {bound}", mib(room.mib));
    if room.mib < MEMORY_MIB {
        let help = "end other processes, or raise the limit; `kiln plan FILE` says what a run needs";
        return Line::missing("memory", found, help);
    }
    Line::ok("memory", found)
}

/// The devices besides the CPU, and a GPU that this build cannot use.
fn devices() -> Vec<Line> {
    let gpus = device::available().into_iter().filter(|device| device.kind != DeviceKind::Cpu);
    let gpus = gpus.collect::<Vec<_>>();
    let mut lines = Vec::new();
    for gpu in &gpus {
        let name = format!("{} {}: {}", gpu.kind, gpu.index, gpu.name);
        let checked = gpu.check().and_then(|found| device::probe(&gpu.device).map(|()| found));
        lines.push(match checked {
            Ok(found) => Line::ok("device", found.map_or(name.clone(), |found| format!("{name}; {found}"))),
            Err(error) => Line::wrong("device", &error.at(name)),
        });
    }
    let has = |kind: DeviceKind| gpus.iter().any(|gpu| gpu.kind == kind);
    if lines.iter().any(|line| line.state == State::Ok) {
        return lines;
    }
    if let Some(driver) = host::gpu_driver().filter(|_| !has(DeviceKind::Cuda)) {
        let help = if cfg!(feature = "cuda") {
            "`nvidia-smi` says what the driver sees; in a container the GPU has to be passed on"
        } else {
            "build for it in a checkout with `.cargo/install-engines cuda`"
        };
        lines.push(Line::missing("device", format!("{driver}, and this kiln finds no CUDA device"), help));
    } else if gpus.is_empty() {
        let help = "for a GPU build in a checkout with `.cargo/install-engines wgpu` (or cuda)";
        lines.push(Line::missing("device", "no GPU that this build can use", help));
    }
    lines
}

/// The other engine, for each kind of GPU that this one is built for.
fn engines() -> Vec<Line> {
    let kinds = [(DeviceKind::Wgpu, cfg!(feature = "wgpu")), (DeviceKind::Cuda, cfg!(feature = "cuda"))];
    let built = kinds.into_iter().filter(|(_, is_built)| *is_built);
    built
        .map(|(kind, _)| match Programs::find(kind) {
            Ok(_) => Line::ok("engines", format!("native and compiled for {kind}")),
            // One that a variable names is meant to be there.
            Err(error) if ["KILN_NATIVE", "KILN_COMPILED"].into_iter().any(|name| std::env::var_os(name).is_some()) => {
                Line::wrong("engines", &error)
            }
            Err(error) => Line { state: State::Missing, ..Line::wrong("engines", &error) },
        })
        .collect()
}

fn mpi() -> Line {
    const HELP: &str = "several ranks need both: `apt-get install openmpi-bin`; KILN_MPI names a library elsewhere";
    match (mpi_library(), on_path("mpirun")) {
        (Ok(Some(library)), Some(launcher)) => Line::ok("mpi", format!("{library}; {}", launcher.display())),
        (Ok(Some(library)), None) => Line::missing("mpi", format!("{library}, and no mpirun"), HELP),
        (Ok(None), _) => Line::missing("mpi", "no library of Open MPI or MPICH", HELP),
        (Err(error), _) => Line::wrong("mpi", &error),
    }
}

/// The program `name` on the search path.
fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Kiln's cache, and Hugging Face's.
fn cache() -> Vec<Line> {
    let own =
        kiln_core::cache::folder().map_or_else(|error| Line::wrong("cache", &error), |path| writable("cache", &path));
    let hub = match HubSettings::from_env() {
        Err(error) => Line::wrong("hub-cache", &error),
        // Nothing comes to it.
        Ok(settings) if settings.offline && settings.cache.is_dir() => {
            Line::ok("hub-cache", format!("{}, which is only read", settings.cache.display()))
        }
        Ok(settings) => writable("hub-cache", &settings.cache),
    };
    vec![own, hub]
}

/// Whether a process can write to `folder`, or make it, and the room there.
fn writable(what: &'static str, folder: &Path) -> Line {
    let folder = &std::path::absolute(folder).unwrap_or_else(|_| folder.into());
    let shown = folder.display();
    let Some(there) = folder.ancestors().find(|folder| folder.exists()) else {
        let error = Error::config(format!("{shown}: no folder above it exists"));
        return Line::wrong(what, &error.help("let KILN_CACHE or HF_HOME name a folder that can be made"));
    };
    if let Err(error) = tempfile::tempfile_in(there) {
        let owner = owner(there);
        let error = Error::io(format!("write to {}{owner}", there.display()), &error);
        return Line::wrong(what, &error.help("let KILN_CACHE (of the Hub HF_HOME) name a folder of yours"));
    }
    let found = if folder == there { shown.to_string() } else { format!("{shown}, which is made when it is needed") };
    match free(there) {
        Some(bytes) if bytes < ROOM => {
            let found = format!("{found}, with {} MiB free, which a large corpus exceeds", thousands(bytes >> 20));
            Line::missing(what, found, "make room (`kiln cache clear`), or name a folder with more")
        }
        Some(bytes) => Line::ok(what, format!("{found}, {} MiB free", thousands(bytes >> 20))),
        None => Line::ok(what, found),
    }
}

/// Whose `folder` is, where that is somebody else.
#[cfg(unix)]
fn owner(folder: &Path) -> String {
    use std::os::unix::fs::MetadataExt;
    let own = rustix::process::getuid().as_raw();
    let owner = std::fs::metadata(folder).map(|found| found.uid()).ok().filter(|owner| *owner != own);
    owner.map_or_else(String::new, |owner| format!(" (of user {owner}, and this process is of user {own})"))
}

#[cfg(not(unix))]
fn owner(_folder: &Path) -> String {
    String::new()
}

/// Bytes that this user may still write at `folder`, where the system tells.
#[cfg(unix)]
fn free(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    found.f_bavail.checked_mul(found.f_frsize)
}

#[cfg(not(unix))]
fn free(_folder: &Path) -> Option<u64> {
    None
}

/// The Hub's address and whether there is a token, which is not printed.
fn hub() -> Option<Line> {
    // Settings that cannot be read are told by the line of the Hub's cache.
    let settings = HubSettings::from_env().ok()?;
    let token = if settings.token.is_some() { "with a token" } else { "without a token" };
    let asked = if settings.offline {
        ", and HF_HUB_OFFLINE keeps Kiln from asking it"
    } else {
        "; the settings are checked, and the Hub is not asked"
    };
    let pushes = if CAN_PUSH { "" } else { "; `kiln push` needs a build with the feature push" };
    Some(Line::ok("hub", format!("{}, {token}{asked}{pushes}", settings.shown_endpoint())))
}

/// The Python that `KILN_PYTHON` names, or else `python3`, with transformers.
fn python() -> Line {
    let help = "nothing in Kiln needs it; recipes of the guide do: `pip install transformers torch`";
    let named = std::env::var("KILN_PYTHON").ok().filter(|name| !name.is_empty());
    let Some(program) = named.map(PathBuf::from).or_else(|| on_path("python3")) else {
        return Line::missing("python", "no python3", help);
    };
    match versions(&program) {
        Some(versions) => Line::ok("python", format!("{}, {versions}", program.display())),
        None => Line::missing("python", format!("{} without transformers", program.display()), help),
    }
}

/// The versions of Python and of transformers; none where it has none, or does not answer in time.
fn versions(program: &Path) -> Option<String> {
    let folder = scratch().ok()?;
    let said = folder.path().join("said");
    let ask = "import sys, importlib.metadata as m; print(sys.version.split()[0], 'with transformers', m.version('transformers'))";
    let mut command = Command::new(program);
    command.args(["-c", ask]).stdin(Stdio::null()).stdout(std::fs::File::create(&said).ok()?);
    let child = Child::start(&mut command, &folder.path().join("stderr"), Kind::Foreign).ok()?;
    let exit = child.wait(Some(Instant::now() + PATIENCE), "stopped").ok()?;
    exit.error().is_none().then(|| std::fs::read_to_string(&said).ok().map(|text| text.trim().to_owned())).flatten()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_folder_is_looked_at_where_it_is_or_would_be_made() {
        let place = tempfile::tempdir().unwrap();
        let line = writable("cache", place.path());
        assert!(line.state == State::Ok && line.found.ends_with("MiB free"), "{line}");
        let line = writable("cache", &place.path().join("a/b"));
        assert!(line.state == State::Ok && line.found.contains("which is made when it is needed"), "{line}");
        let file = place.path().join("file");
        std::fs::write(&file, "").unwrap();
        let line = writable("cache", &file.join("a"));
        assert!(line.state == State::Wrong && line.to_string().contains("help: let KILN_CACHE"), "{line}");
    }

    #[test]
    fn a_python_that_is_none_is_missing_and_no_fault() {
        assert_eq!(versions(Path::new("/dev/null")), None);
        assert_eq!(versions(Path::new("/no/such/python")), None);
    }
}
