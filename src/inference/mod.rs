//! Using a trained model: evaluation, prediction, and one batch forward for comparison with another
//! framework.

pub use kiln_train::evaluation as evaluate;
pub mod evaluate_folder;
pub mod forward;
pub mod predict;
