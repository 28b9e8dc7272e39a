//! The two engines behind one command. A process of one engine that is asked for the other becomes
//! that one ([`hand_over`]), and a driver of both finds their [executables](Programs). On the CPU
//! both modes are one binary, and a process stays what it is.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kiln::build_info::{BURN_VERSION, COMMIT};
use kiln::config::{CompilerMode, DeviceKind, TrainingCompilerConfig};
use kiln::engine::device;
use kiln::engine::handover::{Engine, settle};
use kiln_core::error::{Error, ErrorKind, Result};
use kiln_core::process::{Kind, scratch, this_program};
use serde::{Deserialize, Serialize};

use crate::runner::Work;

/// A kiln says within this what it is.
const PATIENCE: Duration = Duration::from_secs(20);

/// The variable that names the executable of `engine`.
const fn variable(engine: Engine) -> &'static str {
    match engine {
        Engine::Native => "KILN_NATIVE",
        Engine::Compiled => "KILN_COMPILED",
    }
}

/// The command that builds `engine` for `kind` in a checkout; an alias of `.cargo/config.toml`.
fn build_command(engine: Engine, kind: DeviceKind) -> String {
    format!("cargo {kind}-{engine}")
}

/// The identity of a build of kiln; a process asks the other engine for it before it hands a run
/// over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Kiln's version.
    pub kiln: String,
    /// Burn's version.
    pub burn: String,
    /// The commit of its sources, see [`COMMIT`]; none of an earlier Kiln.
    #[serde(default)]
    pub commit: Option<String>,
    /// Which engine.
    pub engine: Engine,
    /// The kinds of devices it was built for.
    pub devices: Vec<String>,
}

impl Identity {
    /// This build's.
    pub fn this() -> Self {
        let kinds = [(DeviceKind::Cpu, true), (DeviceKind::Wgpu, cfg!(feature = "wgpu"))];
        let kinds = kinds.into_iter().chain([(DeviceKind::Cuda, cfg!(feature = "cuda"))]);
        let devices = kinds.filter(|(_, built)| *built).map(|(kind, _)| kind.to_string()).collect();
        Self {
            kiln: env!("CARGO_PKG_VERSION").into(),
            burn: BURN_VERSION.into(),
            commit: Some(COMMIT.into()),
            engine: Engine::this(),
            devices,
        }
    }

    /// The identity of the executable `path`.
    fn of(path: &Path) -> Result<Self> {
        let folder = scratch()?;
        let work = Work { kind: Kind::Foreign, stdout: Stdio::piped, ..Work::of(path, folder.path().join("stderr")) };
        let mut said = None;
        let exit = work.with(["engine"]).start().and_then(|mut child| {
            said = child.take_output();
            child.wait(Some(Instant::now() + PATIENCE), "stopped before the first step")
        });
        let refused = |why: &str| {
            Error::config(format!("{}: expected a kiln that says what it is (`kiln engine`){why}", path.display()))
        };
        match exit.map(|exit| exit.error()) {
            Ok(None) => said.and_then(|said| serde_json::from_reader(said).ok()).ok_or_else(|| refused("")),
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted(_)) => Err(error),
            Ok(Some(error)) | Err(error) => Err(refused(&format!(": {}", error.message()))),
        }
    }

    /// Refuses to be the sibling of this build: `wanted` for `kind` of the same versions and
    /// sources.
    fn check(&self, path: &Path, wanted: Engine, kind: DeviceKind) -> Result<()> {
        let (this, shown) = (Self::this(), path.display());
        let build = format!("build it again with `{}`", build_command(wanted, kind));
        if self.engine != wanted {
            return Err(Error::config(format!(
                "{shown}: expected the {wanted} engine, got the {} engine",
                self.engine
            ))
            .help(format!("let {} name the {wanted} engine, or {build}", variable(wanted))));
        }
        if (&self.kiln, &self.burn) != (&this.kiln, &this.burn) {
            return Err(Error::config(format!(
                "{shown}: expected kiln {} on Burn {}, as this engine is, got kiln {} on Burn {}",
                this.kiln, this.burn, self.kiln, self.burn
            ))
            .help(build));
        }
        let commits = (self.commit.as_deref(), this.commit.as_deref());
        if let (Some(other), Some(own)) = commits
            && other != own
            && ![other, own].contains(&"unknown")
        {
            return Err(Error::config(format!(
                "{shown}: expected a build of commit {own}, as this engine is, got one of {other}"
            ))
            .help(build));
        }
        if !self.devices.contains(&kind.to_string()) {
            let built = self.devices.join(", ");
            return Err(Error::config(format!("{shown}: expected a build for {kind}, got one for {built}")).help(build));
        }
        Ok(())
    }
}

/// Becomes the other engine if `compiler` asks for it on a device of kind `kind`: the executable of
/// that build takes the process over with the same arguments, so terminal, signals and exit code
/// are its own. Says so on stderr. Returns where this build is the right one.
///
/// # Errors
/// A sibling that is not there, is another engine, of another version or without the device; each
/// with the way out.
pub fn hand_over(compiler: Option<&TrainingCompilerConfig>, kind: DeviceKind) -> Result<()> {
    settle(compiler, kind)?;
    become_engine(Engine::wanted(compiler), kind, &[])
}

/// Becomes the engine `wanted` on a device of kind `kind`, as [`hand_over`] does; `more` follows
/// the name of the command in its arguments.
///
/// # Errors
/// An executable of the other engine that is missing, is another engine, of another version or
/// without the device; each with the way out.
pub fn become_engine(wanted: Engine, kind: DeviceKind, more: &[String]) -> Result<()> {
    if wanted == Engine::this() {
        return Ok(());
    }
    let kind = match kind {
        DeviceKind::Auto if cfg!(any(feature = "wgpu", feature = "cuda")) => device::select(kind, 0)?.kind,
        DeviceKind::Wgpu if cfg!(feature = "wgpu") => kind,
        DeviceKind::Cuda if cfg!(feature = "cuda") => kind,
        _ => return Ok(()), // what this build lacks is refused where the device is looked for
    };
    if kind == DeviceKind::Cpu {
        return Ok(());
    }
    let sibling = sibling(wanted, kind)?;
    tracing::info!("{wanted} engine: {}", sibling.display());
    let mut arguments = std::env::args_os().skip(1);
    let mut command = Command::new(&sibling);
    command.args(arguments.next()).args(more).args(arguments);
    Err(become_process(&mut command, &sibling))
}

/// The executables of the two modes, for a driver that runs both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    native: PathBuf,
    compiled: PathBuf,
}

impl Programs {
    /// The executables for a device of kind `kind`: on the CPU this program is both; elsewhere the
    /// other engine is looked for as [`hand_over`] does, and asked what it is.
    ///
    /// # Errors
    /// An executable of the other engine that is missing, is another engine, of another version or
    /// without the device; each with the way out.
    pub fn find(kind: DeviceKind) -> Result<Self> {
        let of = |wanted| {
            if kind == DeviceKind::Cpu || wanted == Engine::this() { this_program() } else { sibling(wanted, kind) }
        };
        Ok(Self { native: of(Engine::Native)?, compiled: of(Engine::Compiled)? })
    }

    /// These executables, with `program` for the compiled mode, whatever it is.
    #[must_use]
    pub fn with_compiled(self, program: PathBuf) -> Self {
        Self { compiled: program, ..self }
    }

    /// The executable of a mode.
    pub fn of(&self, mode: CompilerMode) -> &Path {
        match mode {
            CompilerMode::Native => &self.native,
            CompilerMode::Compiled | CompilerMode::Auto => &self.compiled,
        }
    }
}

/// The executable of the engine `wanted` for `kind`, which has said that it is that.
fn sibling(wanted: Engine, kind: DeviceKind) -> Result<PathBuf> {
    let sibling = find(&this_program()?, wanted, kind)?;
    Identity::of(&sibling)?.check(&sibling, wanted, kind)?;
    Ok(sibling)
}

/// Where the executable of the engine `wanted` should be.
fn find(this: &Path, wanted: Engine, kind: DeviceKind) -> Result<PathBuf> {
    let build = build_command(wanted, kind);
    if let Some(path) = std::env::var_os(variable(wanted)).filter(|path| !path.is_empty()).map(PathBuf::from) {
        return if path.is_file() {
            Ok(path)
        } else {
            Err(Error::config(format!("{}: no file {}", variable(wanted), path.display()))
                .help(format!("let it name the {wanted} engine, or unset it; `{build}` builds one")))
        };
    }
    let places = places(this, wanted);
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| {
        let places = places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>();
        Error::config(format!(
            "this build of kiln is the {} engine, and the {wanted} engine for {kind} was not found; looked for {}",
            Engine::this(),
            places.join(", ")
        ))
        .help(format!("build it in a checkout with `{build}`, or name it in {}", variable(wanted)))
    })
}

/// Where the engine `wanted` may be: beside this executable, or in its target folder of the
/// checkout.
fn places(this: &Path, wanted: Engine) -> Vec<PathBuf> {
    let ending = std::env::consts::EXE_SUFFIX;
    let folder = this.parent().unwrap_or(Path::new("."));
    let mut places = vec![folder.join(format!("kiln-{wanted}{ending}"))];
    // CHECKOUT/target*/PROFILE/kiln
    if let Some(checkout) = folder.parent().and_then(Path::parent).filter(|path| path.join("Cargo.toml").is_file()) {
        let target = checkout.join(format!("target-{wanted}"));
        places.extend(["release", "debug"].map(|profile| target.join(profile).join(format!("kiln{ending}"))));
    }
    places
}

#[cfg(unix)]
fn become_process(command: &mut Command, sibling: &Path) -> Error {
    use std::os::unix::process::CommandExt;
    Error::io(format!("run {}", sibling.display()), &command.exec())
}

/// Without `exec` the sibling is a child; a console's Ctrl-C reaches both.
#[cfg(not(unix))]
fn become_process(command: &mut Command, sibling: &Path) -> Error {
    match command.status() {
        Ok(status) => std::process::exit(status.code().unwrap_or(1)),
        Err(error) => Error::io(format!("run {}", sibling.display()), &error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_sibling_of_another_kind_is_refused() {
        let (path, this) = (Path::new("/kiln"), Identity::this());
        let other = if Engine::this() == Engine::Native { Engine::Compiled } else { Engine::Native };
        let sibling = Identity { engine: other, devices: vec!["cpu".into(), "wgpu".into()], ..this.clone() };
        sibling.check(path, other, DeviceKind::Wgpu).unwrap();
        let says = |identity: &Identity, part: &str| {
            let error = identity.check(path, other, DeviceKind::Wgpu).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("cargo wgpu-"), "{error}");
        };
        says(&this, "expected the");
        says(&Identity { kiln: "0.0.9".into(), ..sibling.clone() }, "got kiln 0.0.9");
        says(&Identity { burn: "0.21.0".into(), ..sibling.clone() }, "on Burn 0.21.0");
        // A build that is not of a checkout does not know its commit, and is not asked for it.
        let elsewhere = Identity { commit: Some("0123456789ab".into()), ..sibling.clone() };
        if COMMIT != "unknown" {
            says(&elsewhere, "got one of 0123456789ab");
        }
        let unknown = Identity { commit: Some("unknown".into()), ..sibling.clone() };
        unknown.check(path, other, DeviceKind::Wgpu).unwrap();
        says(&Identity { devices: vec!["cpu".into()], ..sibling }, "expected a build for wgpu, got one for cpu");
    }

    #[cfg(unix)]
    #[test]
    fn a_program_is_asked_what_it_is() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let program = |name: &str, script: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            Identity::of(&path)
        };
        let this = serde_json::to_string(&Identity::this()).unwrap();
        assert_eq!(program("kiln", &format!("[ \"$*\" = engine ] && echo '{this}'")).unwrap(), Identity::this());
        let error = |name: &str, script: &str| program(name, script).unwrap_err().to_string();
        assert!(error("silent", "exit 0").ends_with("silent: expected a kiln that says what it is (`kiln engine`)"));
        let failed = error("failed", "echo no such command >&2; exit 2");
        assert!(failed.contains("(`kiln engine`): ") && failed.contains("no such command"), "{failed}");
    }

    #[test]
    fn siblings_are_beside_the_executable_or_in_the_checkout() {
        let checkout = tempfile::tempdir().unwrap();
        std::fs::write(checkout.path().join("Cargo.toml"), "").unwrap();
        let this = checkout.path().join("target-compiled/debug/kiln");
        let places = places(&this, Engine::Native);
        let found = places.iter().map(|place| place.strip_prefix(checkout.path()).unwrap().display().to_string());
        let ending = std::env::consts::EXE_SUFFIX;
        let expected = ["target-compiled/debug/kiln-native", "target-native/release/kiln", "target-native/debug/kiln"];
        assert_eq!(found.collect::<Vec<_>>(), expected.map(|place| format!("{place}{ending}")));
        let error = find(Path::new("/nowhere/bin/kiln"), Engine::Compiled, DeviceKind::Cuda).unwrap_err().to_string();
        assert!(error.contains("/nowhere/bin/kiln-compiled") && error.contains("`cargo cuda-compiled`"), "{error}");
    }
}
