//! The settings of the training compiler (`[compiler]`): its start-up lines, the columns of its
//! table that can be switched off one by one ([`columns`]), when a run checks itself ([`checks`]),
//! and the choice that `enabled = "auto"` has come to ([`decision`]). The operators themselves are
//! `kiln_models::ops`; [`operators`](crate::engine::operators) says which of them are fused.

pub mod columns;
pub mod checks;
pub mod decision;
pub mod settings;
#[cfg(feature = "compiler")]
pub(crate) mod observe;
#[cfg(feature = "compiler")]
pub(crate) mod records;

use crate::engine::compiler::settings::TrainingCompilerConfig;
use crate::engine::handover::Engine;
use crate::engine::settings::{CompilerMode, DeviceKind, Switch};

/// Amazon SageMaker Training Compiler's start-up lines, which scripts look for in the log of a job,
/// in its order; none for a native run.
pub fn start_up_lines(compiler: Option<&TrainingCompilerConfig>) -> &'static [&'static str] {
    const LINES: [&str; 3] = [
        "Found configuration for Training Compiler",
        "Configuring SM Training Compiler...",
        "Training Compiler set to debug mode",
    ];
    match compiler {
        None | Some(TrainingCompilerConfig { enabled: CompilerMode::Native, .. }) => &[],
        Some(TrainingCompilerConfig { debug: false, .. }) => &LINES[..2],
        Some(_) => &LINES,
    }
}

/// Whether `compiler.warmup` comes to "on" for a compiled run on `kind`: `auto` where something is
/// compiled or tuned.
pub fn warms_up(warmup: Switch, kind: DeviceKind) -> bool {
    match warmup {
        Switch::On => true,
        Switch::Off => false,
        Switch::Auto => kind != DeviceKind::Cpu && Engine::this() == Engine::Compiled,
    }
}
