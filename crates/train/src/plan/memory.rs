//! The memory that is known of any model before its run: weights, gradients and the optimizer's
//! state, by their numbers. The activations that the forward pass keeps for the backward pass
//! depend on the model and are measured in the first steps.

use super::TrainPlan;

/// Bytes of a value.
const F32: u64 = 4;

/// Bytes on each device that every step needs at once, f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownMemory {
    /// Weights.
    pub weights: u64,
    /// Gradients.
    pub gradients: u64,
    /// The optimizer's state.
    pub optimizer: u64,
}

impl KnownMemory {
    /// All of it, in MiB.
    pub fn mib(&self) -> f64 {
        mib(self.weights + self.gradients + self.optimizer)
    }

    /// The sum and its parts, for the plan.
    pub fn describe(&self) -> String {
        let parts = [("weights", self.weights), ("gradients", self.gradients), ("optimizer", self.optimizer)];
        let parts = parts.into_iter().filter(|(_, bytes)| *bytes > 0);
        let parts = parts.map(|(name, bytes)| format!("{name} {}", shown(mib(bytes)))).collect::<Vec<_>>();
        format!(
            "at least {} = {}; what the forward pass of this model keeps, batches, a checkpoint being written and the \
             program are not counted",
            shown(self.mib()),
            parts.join(" + ")
        )
    }
}

impl TrainPlan {
    /// The memory that is known before the first step.
    pub fn known_memory(&self) -> KnownMemory {
        let bytes = |values: usize| F32.saturating_mul(values as u64);
        let optimizer = bytes(self.optimizer.state_values);
        let parts = if self.distributed.optimizer_sharding { self.batch.devices.count.max(1) as u64 } else { 1 };
        KnownMemory {
            weights: bytes(self.model.num_parameters),
            gradients: bytes(self.model.num_trainable),
            optimizer: optimizer.div_ceil(parts),
        }
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// MiB for people, with a digit after the point where there are few.
pub(crate) fn shown(mib: f64) -> String {
    if mib < 10.0 { format!("{mib:.1} MiB") } else { format!("{mib:.0} MiB") }
}
