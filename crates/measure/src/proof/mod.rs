//! Evidence that the modes of the compiler compute the same and which of them pays: parity,
//! bisection, the checks of `compiler.verify`, the choice of `compiler.enabled = "auto"`, and proof
//! that a resumed run equals an undisturbed one.

pub mod auto;
pub mod bisect;
pub mod figures;
pub mod parity;
pub mod probe;
pub mod verify;
pub mod verify_resume;

pub use auto::trainer;
