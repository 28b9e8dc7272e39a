//! Estimates by arithmetic how much memory a run needs, so that a plan can say it before anything
//! is allocated. The measurement is `peak_mib` in the rows of the log;
//! `tests/command/plan_memory.rs` compares the estimate with it.
//!
//! A run's memory rises and falls within a step. Weights and the optimizer's state are always
//! there; above them the largest of three moments counts: the beginning of the backward pass (all
//! that the forward pass kept, and the first gradients on their way), the update (all gradients),
//! and a batch of an evaluation (its logits). `activations` counts the values that the forward pass
//! keeps.

mod activations;

use activations::{Activations, F32};
use burn::tensor::FloatDType;
use kiln_models::ops::Form;
use kiln_models::{Compute, ModelConfig, Operator};
use kiln_train::plan::BatchPlan;
use serde::{Deserialize, Serialize};

use crate::config::{ActivationCheckpointing, Task};
use crate::distributed::{PIECE, SHARD_PIECE};

/// The inputs of a memory estimate.
#[derive(Debug, Clone, Copy)]
pub struct MemoryInputs<'a> {
    /// The model.
    pub model: &'a ModelConfig,
    /// The task.
    pub task: Task,
    /// The numbers of parameters and of values of the optimizer's state.
    pub values: Values,
    /// The batch of a step.
    pub batch: &'a BatchPlan,
    /// Sequences of an example.
    pub sequences: usize,
    /// Whether a sequence is several documents, which a mask keeps apart.
    pub documents: bool,
    /// Examples a batch of an evaluation; 0 for a run without.
    pub eval_batch: usize,
    /// The form of the operators and the type of matrix products.
    pub compute: Compute,
    /// The activations that the backward pass computes again.
    pub checkpointing: ActivationCheckpointing,
    /// Whether adapters stand on the projections to query, key and value, and on no other layer.
    pub adapts_attention_alone: bool,
    /// Whether an update may be skipped (f16), so that the values before it have to be kept.
    pub skips: bool,
    /// Whether each device has a part of the optimizer's state.
    pub sharded: bool,
    /// Bytes that a fused operator's scores or logits have at a time; none on the CPU.
    pub bytes_at_a_time: Option<u64>,
    /// Sizes of a head whose fused attention in bf16 and f16 has no scores.
    pub flash_head_dims: &'a [usize],
    /// The other contents of the same memory (the program, and a checkpoint on its way to disk);
    /// none on a device with memory of its own.
    pub host: Option<Host>,
}

/// The numbers of parameters and of values of the optimizer's state, and the memory of the process
/// before training.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Values {
    /// Parameters of the model.
    pub parameters: usize,
    /// Trainable parameters.
    pub trained: usize,
    /// Frozen weights of linear layers under adapters: they do nothing but multiply, so they are
    /// kept in the type of matrix products.
    #[serde(default)]
    pub multiplying: usize,
    /// Values of a token that adapters with DoRA keep beside those of other adapters: a result of
    /// each layer, and with dropout three.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dora: usize,
    /// Values of the tables of the vocabulary that each pass computes anew beside the frozen one:
    /// for rows that learn alone, and for an adapter on the output.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tables: usize,
    /// Parameters of the largest trainable tensor.
    pub largest: usize,
    /// Values of the optimizer's state.
    pub state: usize,
    /// Bytes that the process has resident before it trains: the program, tokenizer and data.
    pub resident: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_zero(value: &usize) -> bool {
    *value == 0
}

/// The CPU's memory, where the run trains on the CPU: it also holds the program and checkpoints
/// that are being written.
#[derive(Debug, Clone, Copy)]
pub struct Host {
    /// Whether a checkpoint is written before the last step.
    pub saves: bool,
}

/// The estimated bytes of a run by their use, at the moment of the largest sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemoryEstimate {
    /// The moment of the largest sum.
    pub peak: Peak,
    /// Weights, f32.
    pub weights: u64,
    /// The optimizer's state on this device, f32.
    pub optimizer: u64,
    /// Gradients, f32.
    pub gradients: u64,
    /// At the beginning of the backward pass: the activations that the forward pass kept, with
    /// narrow copies of the weights and gradients on their way. In an evaluation: the memory of a
    /// batch. In an update: its working memory.
    pub activations: u64,
    /// A checkpoint on its way to disk, on the CPU.
    pub checkpoint: u64,
    /// The program, and memory between that is too small to be used again.
    pub program: u64,
}

/// The moment of a run that needs most memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Peak {
    /// Forward and backward pass.
    #[default]
    Backward,
    /// The sum of the gradients over the devices.
    Exchange,
    /// The update of the weights.
    Update,
    /// An evaluation.
    Evaluation,
}

impl Peak {
    /// The name in plans.
    pub fn name(self) -> &'static str {
        match self {
            Self::Backward => "backward pass",
            Self::Exchange => "sum over the devices",
            Self::Update => "update",
            Self::Evaluation => "evaluation",
        }
    }
}

/// Threads, the loader's batches and the working space of matrix products: measured with
/// `configs/tiny-bert.toml`.
const THREADS: u64 = 6 << 20;

/// One part in so many of what is in use lies between blocks that are, too small for the next, or
/// is working space: 6 % of a native step, 12 % of a compiled one, whose tensors are smaller.
/// Measured on the presets (benches/results/2026-11-21-plan-memory.md).
const BETWEEN: [u128; 2] = [16, 8];

impl MemoryEstimate {
    /// The estimate for `inputs`.
    pub fn new(inputs: &MemoryInputs<'_>) -> Self {
        let MemoryInputs { values, batch, host, compute, .. } = *inputs;
        let Values { parameters, trained, multiplying, largest, state, resident, .. } = values;
        let [weights, narrow, gradients, optimizer, largest] =
            [parameters, multiplying, trained, state, largest].map(|n| F32 * n as u128);
        let is_narrow = !compute.is_f32();
        let weights = if is_narrow { weights - narrow / 2 } else { weights };
        let (learning, saved) = (gradients, optimizer);
        let optimizer = if inputs.sharded { optimizer.div_ceil(batch.devices.count as u128) } else { optimizer };
        let activations = Activations::new(inputs);
        // Copies of the weights in the type of matrix products, which fused products on the CPU do
        // without; gradients that wait for those of the next micro-batch.
        let is_cast = is_narrow && (host.is_none() || compute.ops().form(Operator::Linear) == Form::Plain);
        let half = (weights - narrow / 2) / 2;
        let copies = if is_cast { half } else { 0 };
        // Those products keep the weights packed in bf16 while an evaluation goes on.
        let is_packed = compute.dtype() == FloatDType::BF16 && !is_cast && inputs.eval_batch > 0;
        let packed = if is_packed { half } else { 0 };
        // Captured steps of several devices, which are on a GPU, always sum in one place.
        let is_waiting = batch.accumulation > 1 || (host.is_none() && batch.devices.count > 1);
        let waiting = if is_waiting { gradients } else { 0 };
        // AdamW's kernel on a GPU writes copies beside the weights. They stay while an evaluation
        // makes its own.
        let is_written = host.is_none() && !inputs.skips && compute.ops().form(Operator::AdamW) == Form::Fused;
        let kept = if is_written { copies } else { 0 };
        let update = match (inputs.skips, compute.ops().form(Operator::AdamW)) {
            (true, _) => 4 * largest,
            (false, Form::Plain) => largest,
            (false, Form::Fused) => 0,
        };
        let first = Moment { peak: Peak::Backward, gradients: waiting, other: copies + activations.at_the_top() };
        let last = Moment {
            peak: Peak::Backward,
            gradients: waiting + gradients,
            other: copies + activations.at_the_bottom(),
        };
        // Gradients of a GPU are sent from the host's memory; or NCCL sums them in buffers, which
        // hold no more than the gradients that wait in the backward pass.
        let sent = if host.is_some() { sent(gradients, batch.devices.count, inputs.sharded) } else { 0 };
        let moments = [
            first,
            last,
            Moment { peak: Peak::Exchange, gradients, other: sent },
            Moment { peak: Peak::Update, gradients, other: copies + update },
            Moment {
                peak: Peak::Evaluation,
                gradients: 0,
                other: kept + copies + packed + activations.of_evaluation(),
            },
        ];
        let Moment { peak, gradients, other } =
            moments.into_iter().max_by_key(|moment| moment.gradients + moment.other).unwrap_or(first);
        // Its values, which go to the files as they lie there.
        let checkpoint = match host {
            // Adapters are saved without their base.
            Some(Host { saves: true }) if parameters > trained && multiplying > 0 => learning + saved,
            Some(Host { saves: true }) => weights + saved,
            _ => 0,
        };
        let is_fused = compute.ops().form(Operator::Attention) == Form::Fused;
        let used = weights + optimizer + gradients + other + checkpoint;
        let program = match host {
            Some(_) => u128::from(resident + THREADS) + used / BETWEEN[usize::from(is_fused)],
            None => 0,
        };
        // Sizes are multiplied in 128 bits, so that the largest that are allowed do not overflow on
        // their way to a number.
        let bytes = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
        Self {
            peak,
            weights: bytes(weights),
            optimizer: bytes(optimizer),
            gradients: bytes(gradients),
            activations: bytes(other),
            checkpoint: bytes(checkpoint),
            program: bytes(program),
        }
    }

    /// All of it, in bytes.
    pub fn total(&self) -> u64 {
        [self.optimizer, self.gradients, self.activations, self.checkpoint, self.program]
            .into_iter()
            .fold(self.weights, u64::saturating_add)
    }

    /// The estimate and its parts, for the plan.
    pub fn describe(&self) -> String {
        let mib = |bytes: u64| format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20));
        let parts = [
            ("weights", self.weights),
            ("optimizer", self.optimizer),
            ("gradients", self.gradients),
            (
                if matches!(self.peak, Peak::Update | Peak::Exchange) { "working space" } else { "activations" },
                self.activations,
            ),
            ("a checkpoint being written", self.checkpoint),
            ("program", self.program),
        ];
        let parts = parts.into_iter().filter(|(_, bytes)| *bytes > 0);
        let parts = parts.map(|(name, bytes)| format!("{name} {}", mib(bytes))).collect::<Vec<_>>();
        format!("about {} in the {} = {}", mib(self.total()), self.peak.name(), parts.join(" + "))
    }
}

/// The bytes that summing `gradients` bytes of gradients over `devices` takes beside them: what is
/// sent, and a piece of it twice; where the optimizer is `sharded`, the sums of a part besides.
pub fn sent(gradients: u128, devices: usize, sharded: bool) -> u128 {
    let f32s = |count: usize| F32 * count as u128;
    match (devices, sharded) {
        (1, _) => 0,
        (_, false) => gradients + 2 * f32s(PIECE).min(gradients),
        (count, true) => gradients.div_ceil(count as u128) + gradients + 2 * f32s(SHARD_PIECE).min(gradients),
    }
}

/// The bytes that are allocated at one moment besides weights and the optimizer's state.
#[derive(Clone, Copy)]
struct Moment {
    peak: Peak,
    gradients: u128,
    other: u128,
}
