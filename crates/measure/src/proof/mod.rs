//! Evidence that the modes of the compiler compute the same and which of them pays: parity,
//! bisection, the choice of `compiler.enabled = "auto"` between engines, and proof that a resumed
//! run equals an undisturbed one.

pub mod auto;
pub mod bisect;
pub mod parity;
pub mod verify_resume;
