//! The two engines, and what the training compiler is told. On wgpu and CUDA the mode is a property
//! of the build: with Cargo's feature `compiler` it is the compiled engine, without it the native
//! one. What the compiled engine may do besides (how much it tunes, whether Burn's fusion is on,
//! where what it finds is kept) is settled once, before the first use of a device ([`settle`]). On
//! the CPU both modes are one binary, and nothing here does anything.

use std::fmt;

use kiln_core::error::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::engine::compiler::settings::TrainingCompilerConfig;
use crate::engine::settings::{AutotuneLevel, CompilerMode, DeviceKind, Switch};

/// Which of the two a build is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// Eager: every operation by itself.
    Native,
    /// With Burn's fusion and autotune, and Kiln's kernels for wgpu and CUDA.
    Compiled,
}

impl Engine {
    /// The one that this build is.
    pub const fn this() -> Self {
        if cfg!(feature = "compiler") { Self::Compiled } else { Self::Native }
    }

    /// The one that `compiler` asks for; `auto` is content with this one until a trial has chosen.
    pub fn wanted(compiler: Option<&TrainingCompilerConfig>) -> Self {
        match compiler.map(|compiler| compiler.enabled) {
            Some(CompilerMode::Compiled) => Self::Compiled,
            Some(CompilerMode::Auto) => Self::this(),
            Some(CompilerMode::Native) | None => Self::Native,
        }
    }

    /// `native` or `compiled`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Compiled => "compiled",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Settings of Burn in the compiled engine, apart from the model's own mathematics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Burn's fusion explores; off is `--unfused`.
    pub fusion: bool,
    /// At most so many sequences of operations.
    pub max_explorations: Option<usize>,
    /// How much Burn tunes.
    pub autotune: AutotuneLevel,
}

/// The settings that `compiler` asks for on `kind`; none where Burn neither fuses nor tunes: in the
/// native engine and on the CPU.
///
/// # Errors
/// A setting that is asked for by name and that the device lacks.
pub fn settings(compiler: Option<&TrainingCompilerConfig>, kind: DeviceKind) -> Result<Option<Settings>> {
    let Some(compiler) = compiler.filter(|compiler| compiler.enabled != CompilerMode::Native) else { return Ok(None) };
    let max_explorations = compiler.max_explorations;
    if max_explorations == Some(0) || (max_explorations.is_some() && compiler.fusion == Switch::Off) {
        return Err(Error::config("compiler.max_explorations: expected 1 or more, with compiler.fusion on")
            .help("compiler.fusion = \"off\" explores nothing; leave max_explorations out"));
    }
    if kind == DeviceKind::Cpu {
        let refused = match (compiler.fusion, compiler.graph, compiler.autotune) {
            (Switch::On, ..) => Some("fusion = \"on\"".to_string()),
            (_, Switch::On, _) => Some("graph = \"on\"".to_string()),
            (.., AutotuneLevel::Auto) => max_explorations.map(|most| format!("max_explorations = {most}")),
            (.., level) => Some(format!("autotune = \"{level}\"")),
        };
        return match refused {
            None => Ok(None),
            Some(key) => Err(Error::config(format!("compiler.{key}: Burn does not fuse, tune or capture on the CPU"))
                .help("set it to \"auto\" or leave it out, or choose a device of kind wgpu or cuda")),
        };
    }
    let autotune = match compiler.autotune {
        AutotuneLevel::Auto => AutotuneLevel::Balanced,
        level => level,
    };
    Ok(Some(Settings { fusion: compiler.fusion != Switch::Off, max_explorations, autotune }))
}

/// Whether `compiler` holds Burn's fusion off on `kind`, as `--unfused` does.
pub fn is_unfused(compiler: Option<&TrainingCompilerConfig>, kind: DeviceKind) -> bool {
    Engine::wanted(compiler) == Engine::Compiled
        && matches!(settings(compiler, kind), Ok(Some(Settings { fusion: false, .. })))
}

/// Tells Burn and CubeCL what [`settings`] says, before a device is used. Native engine and CPU:
/// nothing to tell.
///
/// # Errors
/// A setting that is asked for by name and that the device lacks, and a process that has been
/// settled otherwise: Burn reads its settings once.
pub fn settle(compiler: Option<&TrainingCompilerConfig>, kind: DeviceKind) -> Result<()> {
    let Some(settings) = settings(compiler, kind)? else { return Ok(()) };
    #[cfg(feature = "compiler")]
    compiled::settle(settings)?;
    let _ = settings;
    Ok(())
}

/// Burn's and CubeCL's settings of this process.
#[cfg(feature = "compiler")]
mod compiled {
    use std::sync::Mutex;

    use burn::BurnConfig;
    use burn::cubecl::config::{CubeClRuntimeConfig, RuntimeConfig, autotune, cache::CacheConfig};
    use cubecl_environment::stream::{StreamPolicy, set_policy};
    use kiln_core::cache;
    use kiln_core::error::{Error, Result};
    use serde_json::json;

    use super::Settings;
    use crate::build_info::BURN_VERSION;
    use crate::engine::settings::AutotuneLevel;

    static SETTLED: Mutex<Option<Settings>> = Mutex::new(None);

    pub(super) fn settle(settings: Settings) -> Result<()> {
        let mut settled = SETTLED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(before) = *settled {
            return if before == settings { Ok(()) } else { Err(too_late(&format!("{before:?}"))) };
        }
        let mut cubecl = CubeClRuntimeConfig::default();
        cubecl.autotune.level = match settings.autotune {
            AutotuneLevel::Minimal => autotune::AutotuneLevel::Minimal,
            AutotuneLevel::Auto | AutotuneLevel::Balanced => autotune::AutotuneLevel::Balanced,
            AutotuneLevel::Extensive => autotune::AutotuneLevel::Extensive,
            AutotuneLevel::Full => autotune::AutotuneLevel::Full,
        };
        cubecl.compilation.cache = true;
        cubecl.environment.path = CacheConfig::Directory(cache::folder()?.join(cache::KERNELS));
        // Within the file CubeCL tells devices, drivers' features and builds of kiln apart; but
        // devices of CUDA by their number, and a cache may be shared by machines with different
        // ones.
        #[cfg(feature = "cuda")]
        let model = crate::engine::cuda::model().map_or_else(String::new, |model| format!("-{model}"));
        #[cfg(not(feature = "cuda"))]
        let model = "";
        cubecl.environment.name = format!("kiln-{}-burn-{BURN_VERSION}{model}", env!("CARGO_PKG_VERSION"));
        let most = if settings.fusion { settings.max_explorations } else { Some(0) };
        let fusion = json!({ "fusion": { "beam_search": { "max_explorations": most } } });
        let burn: BurnConfig = serde_json::from_value(fusion).expect("Burn has this field, which may be none");
        if !CubeClRuntimeConfig::try_set(cubecl.override_from_env()) || !BurnConfig::try_set(burn.override_from_env()) {
            return Err(too_late("Burn's own"));
        }
        // Streams of their own for threads would be ordered by when memory was allocated, and not
        // by when it was last written: captured steps write in place.
        set_policy(StreamPolicy::Single);
        *settled = Some(settings);
        Ok(())
    }

    fn too_late(before: &str) -> Error {
        Error::config(format!("the training compiler of this process has its settings already: {before}"))
            .help("a process keeps one setting of compiler.fusion, max_explorations and autotune: start another one")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_asked_for_by_name_and_not_there_is_refused() {
        let of = |change: fn(&mut TrainingCompilerConfig), kind| {
            let mut compiler = TrainingCompilerConfig::default();
            change(&mut compiler);
            settings(Some(&compiler), kind).map_err(|error| error.to_string())
        };
        assert_eq!(of(|_| {}, DeviceKind::Cpu), Ok(None));
        assert_eq!(of(|c| c.fusion = Switch::Off, DeviceKind::Cpu), Ok(None));
        assert!(of(|c| c.fusion = Switch::On, DeviceKind::Cpu).unwrap_err().contains("compiler.fusion"));
        assert!(of(|c| c.autotune = AutotuneLevel::Full, DeviceKind::Cpu).unwrap_err().contains("\"full\""));
        let capped = |c: &mut TrainingCompilerConfig| c.max_explorations = Some(7);
        assert!(of(capped, DeviceKind::Cpu).unwrap_err().contains("compiler.max_explorations = 7"));
        assert_eq!(of(capped, DeviceKind::Cuda).unwrap().unwrap().max_explorations, Some(7));
        let none = |c: &mut TrainingCompilerConfig| c.max_explorations = Some(0);
        assert!(of(none, DeviceKind::Wgpu).unwrap_err().contains("expected 1 or more"));
        assert!(of(|c| c.graph = Switch::On, DeviceKind::Cpu).unwrap_err().contains("compiler.graph"));
        let balanced = Settings { fusion: true, max_explorations: None, autotune: AutotuneLevel::Balanced };
        assert_eq!(of(|_| {}, DeviceKind::Wgpu), Ok(Some(balanced)));
        let unfused = Settings { fusion: false, ..balanced };
        assert_eq!(of(|c| c.fusion = Switch::Off, DeviceKind::Cuda), Ok(Some(unfused)));
        let off = TrainingCompilerConfig { enabled: CompilerMode::Native, ..TrainingCompilerConfig::default() };
        assert_eq!(settings(Some(&off), DeviceKind::Wgpu).unwrap(), None);
    }
}
