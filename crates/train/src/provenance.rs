//! `provenance.json` of a run folder: by which program, on which machine and at how much arithmetic
//! a run was made, so that runs can be compared later and their differences named. It says nothing
//! about what the run did: that is `plan.toml`.

use std::path::{Path, PathBuf};

use kiln_core::error::Result;
use kiln_core::files::{read_json_if_there, write_json};
use kiln_core::host;
use kiln_models::Ops;
use serde::{Deserialize, Serialize};

use crate::build_info::{BURN_VERSION, COMMIT};
use crate::engine::operators;
use crate::engine::settings::{CompilerMode, DeviceKind, Precision};
use crate::session::Session;
use crate::task::TrainingTask;

/// The file's name.
pub const FILE: &str = "provenance.json";

/// See the top of this file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// Kiln's version.
    pub kiln: String,
    /// [`COMMIT`]; none in runs of an earlier Kiln.
    #[serde(default)]
    pub commit: Option<String>,
    /// The version of Burn that computes.
    pub burn: String,
    /// `release`, or `debug` for a build with debug assertions.
    pub build: String,
    /// `native` or `compiled`: what the run computed with.
    pub mode: String,
    /// Whether any of Kiln's fused operators was on.
    pub fused_ops: bool,
    /// Which of them; none in runs of an earlier Kiln.
    #[serde(default)]
    pub fused_operators: Option<Vec<String>>,
    /// The type of matrix products.
    #[serde(default)]
    pub precision: Precision,
    /// Kind, index and name of the device.
    pub device: String,
    /// The version of the GPU's driver, where the system tells; the CPU has none.
    #[serde(default)]
    pub driver: Option<String>,
    /// The processor's name, where the system tells.
    pub cpu: Option<String>,
    /// Threads that the process may use.
    pub threads: usize,
    /// The machine's memory in MiB, where the system tells.
    pub memory_mib: Option<f64>,
    /// Operating system and architecture.
    pub system: String,
    /// SHA-256 of `plan.toml` without `[run]`, so that equal plans are recognised.
    pub config_sha256: String,
    /// The digest of the validation data; none where there are none, and in runs of an earlier
    /// Kiln.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_sha256: Option<String>,
    /// The checkpoint of another run from which this one was begun; none for a run that began at
    /// step 0, and in runs of an earlier Kiln.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun_from: Option<PathBuf>,
    /// The folder in which the process that took the run up was started: relative paths of its plan
    /// begin there. None where its name is no text, and in runs of an earlier Kiln.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_in: Option<String>,
    /// Whether training drops out anything of which each mode draws masks of its own, so that the
    /// losses of two modes differ by more than rounding.
    #[serde(alias = "dropout")]
    pub own_masks: bool,
    /// Parameters of the model, tied ones counted once.
    pub parameters: u64,
    /// Floating-point operations that training on a token takes. None for a model that Kiln does
    /// not know.
    #[serde(default)]
    pub flops_per_token: Option<f64>,
}

impl Provenance {
    /// The provenance of the run of `session` by this process, without the digest of its validation
    /// data, for which all of them are read, and without the checkpoint that it was begun from.
    ///
    /// # Errors
    /// A value that cannot be written.
    pub fn of<T: TrainingTask>(session: &Session<T>) -> Result<Self> {
        let (plan, description) = (session.plan(), session.description()?);
        let mode = match plan.engine.mode {
            CompilerMode::Auto if plan.engine.ops == Ops::Plain => CompilerMode::Native,
            mode => mode,
        };
        let fused = plan.engine.ops.fused_operators().into_iter().map(|operator| operator.name().to_owned());
        let fused = fused.collect::<Vec<_>>();
        let is_cpu = plan.engine.device.kind == DeviceKind::Cpu;
        Ok(Self {
            kiln: env!("CARGO_PKG_VERSION").into(),
            commit: Some(COMMIT.into()),
            burn: BURN_VERSION.into(),
            build: if cfg!(debug_assertions) { "debug" } else { "release" }.into(),
            mode: plan.engine.device.engine_of(mode).name().into(),
            fused_ops: !fused.is_empty(),
            fused_operators: Some(fused),
            precision: plan.engine.precision.precision,
            device: plan.engine.device.describe(),
            driver: if is_cpu { None } else { host::gpu_driver() },
            cpu: host::cpu(),
            threads: host::threads(),
            memory_mib: host::memory_mib(),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            config_sha256: description.sha256,
            validation_sha256: None,
            begun_from: None,
            started_in: std::env::current_dir().ok().and_then(|folder| folder.to_str().map(str::to_owned)),
            own_masks: session.task.drops() && !operators::drop_alike(plan.engine.device.kind),
            parameters: plan.model.num_parameters as u64,
            flops_per_token: description.flops_per_token,
        })
    }

    /// Writes `provenance.json` into the run folder.
    ///
    /// # Errors
    /// The operating system's.
    pub fn write(&self, folder: &Path) -> Result<()> {
        write_json(&folder.join(FILE), self)
    }

    /// Reads it; none for a run folder without it.
    ///
    /// # Errors
    /// A file that is no such file, and the operating system's.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        read_json_if_there(&folder.join(FILE))
    }
}

/// The folder in which the run in `folder` was started, where it is there and is not the current
/// one.
pub(crate) fn started_elsewhere(folder: &Path) -> Option<PathBuf> {
    let started_in = PathBuf::from(Provenance::read(folder).ok().flatten()?.started_in?);
    let [there, here] = [started_in.canonicalize().ok()?, std::env::current_dir().ok()?.canonicalize().ok()?];
    (there != here).then_some(there)
}

/// The checkpoint of another run from which the run in `folder` was begun; none where nothing says
/// so.
pub(crate) fn begun_from(folder: &Path) -> Option<PathBuf> {
    Provenance::read(folder).ok().flatten()?.begun_from
}
