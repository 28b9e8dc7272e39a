//! Using a trained model: evaluation, prediction, and one batch forward for comparison with another
//! framework.

pub mod evaluate;
pub mod evaluate_folder;
pub mod forward;
pub mod predict;
