//! When a compiled run checks itself against native (`compiler.verify`), as its settings have it.

use kiln_core::error::{Error, Result};

use crate::engine::compiler::settings::{TrainingCompilerConfig, Verify};
use crate::engine::settings::{CompilerMode, DeviceKind};

/// When a run under `compiler` checks itself: never where nothing was asked for, and never a native
/// one.
pub fn of(compiler: Option<&TrainingCompilerConfig>) -> Verify {
    let compiler = compiler.filter(|compiler| compiler.enabled != CompilerMode::Native);
    compiler.and_then(|compiler| compiler.verify).unwrap_or(Verify::Off)
}

/// Refuses what cannot be checked on a device of kind `kind`.
///
/// # Errors
/// Checks in the middle of a run on a device where each mode has an engine of its own.
pub fn allowed(compiler: Option<&TrainingCompilerConfig>, kind: DeviceKind) -> Result<()> {
    match (of(compiler), kind) {
        (_, DeviceKind::Cpu) | (Verify::Off | Verify::Start, _) => Ok(()),
        (Verify::Every(steps), kind) => Err(Error::config(format!(
            "compiler.verify = {steps}: on {kind} each mode has an engine of its own, so a run cannot check itself on the way"
        ))
        .help("set compiler.verify = \"start\"; `kiln parity FILE` checks at any time")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_check_on_the_way_is_for_the_cpu() {
        let with = |verify| TrainingCompilerConfig { verify: Some(verify), ..TrainingCompilerConfig::default() };
        assert!(allowed(Some(&with(Verify::Every(5))), DeviceKind::Cpu).is_ok());
        assert!(allowed(Some(&with(Verify::Start)), DeviceKind::Cuda).is_ok());
        let error = allowed(Some(&with(Verify::Every(5))), DeviceKind::Wgpu).unwrap_err().to_string();
        assert!(error.contains("compiler.verify = 5") && error.contains("kiln parity"), "{error}");
        let native = TrainingCompilerConfig { enabled: CompilerMode::Native, ..with(Verify::Start) };
        assert_eq!(
            (of(None), of(Some(&native)), of(Some(&with(Verify::Start)))),
            (Verify::Off, Verify::Off, Verify::Start)
        );
    }
}
