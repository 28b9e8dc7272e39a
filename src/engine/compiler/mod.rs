//! The training compiler: what a run asks for and what its device and build make of it ([`parts`]), the choice between the
//! modes by measurement ([`auto`]), how the modes are compared ([`probe`], [`figures`], [`parity`], [`bisect`]), the stage before
//! step 1 ([`warmup`]), its check of itself ([`verify`]), and what is told of it
//! all ([`debug`]). The operators themselves are `kiln_models::ops`, the decision which of them compute is [`crate::engine::device::ops`].

pub mod columns;
pub mod checks;
pub mod decision;
#[cfg(feature = "compiler")]
mod observe;
#[cfg(feature = "compiler")]
mod records;

use crate::config::{CompilerMode, DeviceKind, Switch, TrainingCompilerConfig};
use crate::engine::handover::Engine;

/// Amazon SageMaker Training Compiler's start-up lines, which scripts look for, in its order; none for a native run.
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

/// Whether `compiler.warmup` comes to "on" for a compiled run on `kind`: `auto` where something is compiled or tuned.
pub fn warms_up(warmup: Switch, kind: DeviceKind) -> bool {
    match warmup {
        Switch::On => true,
        Switch::Off => false,
        Switch::Auto => kind != DeviceKind::Cpu && Engine::this() == Engine::Compiled,
    }
}
