//! From gradients to new weights: which parameters learn and how fast, the learning rate of a step,
//! what is done to gradients, and the update itself. [`Optimizer`] is the one type that trains; a
//! file each says what an optimizer computes.
//!
//! All of them are Kiln's own and not `burn-optim`'s: there the epsilon of AdamW and its decay are
//! others than PyTorch's, Adafactor, Lion and LAMB are missing, and the state has no names under
//! which a checkpoint could hold it.

pub mod arguments;
pub mod backward;
pub mod gradient;
pub mod groups;
pub mod loss;
pub mod outliers;
pub mod scaler;
pub mod schedule;
pub mod scheduler;

mod adafactor;
mod adagrad;
mod adam;
#[cfg(feature = "compiler")]
pub mod in_place;
mod lamb;
mod lion;
mod muon;
mod optimizer;
mod own;
mod rmsprop;
mod sgd;
mod skip;
mod step;

#[cfg(test)]
mod tests;

pub use adafactor::AdafactorConfig;
pub use adagrad::AdagradConfig;
pub use adam::AdamConfig;
pub use groups::ParameterGroups;
pub use lion::LionConfig;
pub use muon::MuonConfig;
pub use optimizer::{Optimizer, OptimizerConfig};
pub use own::{LambdaLr, OwnOptimizer, ParameterUpdate, UpdateRule};
pub use rmsprop::RmsPropConfig;
pub use sgd::SgdConfig;

use burn::tensor::Tensor;

/// One update of one parameter, as every optimizer gets it. Tensors are flat, `[n]`, f32, without
/// autodiff.
struct Update<'a, 'b> {
    /// The parameter, `[n]`.
    value: Tensor<1>,
    /// The gradient of the loss, divided and clipped, `[n]`.
    grad: Tensor<1>,
    /// The parameter's shape, as Kiln lays it out.
    shape: &'a [usize],
    /// The parameter's shape, as Hugging Face stores it: transposed for torch's `Linear`.
    hf_shape: &'a [usize],
    /// The learning rate of this parameter in this step.
    lr: f64,
    /// Its weight decay.
    weight_decay: f64,
    /// Number of this update, from 1; the most it can be when updates may be skipped.
    step: u64,
    /// Whether it counts, where that is the device's to say.
    skip: Option<&'a mut skip::Skip<'b>>,
}

/// The tensors that an optimizer keeps for one parameter, in the order of its `state` names; empty
/// before the first update.
type State = Vec<Tensor<1>>;
