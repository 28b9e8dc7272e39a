//! The dynamic loss scale of f16 (Micikevicius et al. 2018), by the rules and with the constants of
//! `torch.amp.GradScaler`: losses are multiplied by a scale, so that small gradients do not vanish
//! in f16; a step whose gradients overflowed is skipped and halves the scale; 2,000 good steps in a
//! row double it.
//!
//! All of it is decided on the device: nothing is read by the host to know whether a step counts.
//! The host reads it for log rows and checkpoints.

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use kiln_core::error::{Error, Result};
use kiln_core::metrics::Record;
use serde::{Deserialize, Serialize};

use crate::reads::read_scalars;

/// How the scale moves. The defaults are GradScaler's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalerConfig {
    /// The first scale.
    pub init_scale: f64,
    /// The factor of the scale after `growth_interval` good steps.
    pub growth_factor: f64,
    /// The factor of the scale after an overflow.
    pub backoff_factor: f64,
    /// Good steps in a row before it grows.
    pub growth_interval: u64,
}

impl Default for ScalerConfig {
    fn default() -> Self {
        Self { init_scale: 65536.0, growth_factor: 2.0, backoff_factor: 0.5, growth_interval: 2000 }
    }
}

/// Below this scale gradients overflow for another reason than the scale (fairseq's
/// `min_loss_scale`).
pub const MIN_SCALE: f64 = 1e-4;

/// The state of a scaler, as checkpoints keep it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ScalerState {
    /// The scale of the next step.
    pub scale: f64,
    /// Good steps since the scale last changed.
    pub growth_tracker: u64,
    /// Steps skipped so far.
    pub skipped: u64,
    /// Steps that were not skipped: the optimizer's own count.
    pub applied: u64,
}

/// The scale with its counters, each `[1]` on the device, without autodiff.
#[derive(Debug, Clone)]
pub struct LossScaler {
    config: ScalerConfig,
    scale: Tensor<1>,
    growth_tracker: Tensor<1, Int>,
    skipped: Tensor<1, Int>,
    applied: Tensor<1, Int>,
}

/// Whether a step is skipped, as the optimizer is told it; `[1]` each, on the device.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// True if the gradients overflowed: weights and moments stay what they were.
    pub overflow: Tensor<1, Bool>,
    /// The number that this update has if it is not skipped, from 1.
    pub update: Tensor<1, Int>,
}

impl LossScaler {
    /// A scaler at its start.
    pub fn new(config: ScalerConfig, device: &Device) -> Self {
        let state = ScalerState { scale: config.init_scale, growth_tracker: 0, skipped: 0, applied: 0 };
        Self::restored(config, state, device)
    }

    /// A scaler where a checkpoint has left it.
    pub fn restored(config: ScalerConfig, state: ScalerState, device: &Device) -> Self {
        let count = |count: u64| Tensor::from_data(TensorData::from([count as i32]), device);
        Self {
            config,
            scale: Tensor::from_floats([state.scale as f32], device),
            growth_tracker: count(state.growth_tracker),
            skipped: count(state.skipped),
            applied: count(state.applied),
        }
    }

    /// The state for a checkpoint, read from the device.
    ///
    /// # Errors
    /// The device's.
    pub fn state(&self) -> Result<ScalerState> {
        let counts = [&self.growth_tracker, &self.skipped, &self.applied].map(|count| count.clone().float());
        let values = read_scalars([self.scale.clone()].into_iter().chain(counts).collect())?;
        let [scale, growth_tracker, skipped, applied] = values[..] else {
            return Err(Error::device("the loss scaler has four values"));
        };
        let [growth_tracker, skipped, applied] = [growth_tracker, skipped, applied].map(|count| count as u64);
        Ok(ScalerState { scale, growth_tracker, skipped, applied })
    }

    /// The scale of this step, `[1]`.
    pub fn scale(&self) -> Tensor<1> {
        self.scale.clone()
    }

    /// `loss / divisor`, `[1]`, times the scale, for the backward pass.
    pub fn scaled(&self, loss: Tensor<1>, divisor: f64) -> Tensor<1> {
        let scale = Tensor::from_inner(self.scale());
        let scale = match loss.gradient_checkpointing_strategy() {
            Some(strategy) => scale.with_gradient_checkpointing_strategy(strategy),
            None => scale,
        };
        loss * (scale * (1.0 / divisor))
    }

    /// How many steps have been skipped, `[1]`.
    pub fn skipped(&self) -> Tensor<1> {
        self.skipped.clone().float()
    }

    /// Decides about a step whose gradients have the global norm `norm`, `[1]`: it is infinite or
    /// NaN exactly if one of them is, since gradients that were f16 are far from where their
    /// squares leave f32.
    pub fn judge(&self, norm: Tensor<1>) -> Verdict {
        Verdict { overflow: norm.is_finite().bool_not(), update: self.next_update() }
    }

    /// The number of the next update if it is not skipped, `[1]`, from 1.
    pub fn next_update(&self) -> Tensor<1, Int> {
        self.applied.clone() + 1
    }

    /// Moves the scale after a step, as `GradScaler.update` does, and returns what there is to log
    /// of it.
    pub fn update(&mut self, verdict: &Verdict) -> Scaling<Tensor<1>> {
        let loss_scale = self.scale();
        let overflow = || verdict.overflow.clone();
        let tracker = self.growth_tracker.clone() + 1;
        let grows = tracker.clone().equal_scalar(self.config.growth_interval as i64);
        let grown = self.scale.clone() * self.config.growth_factor;
        let grows_to = grown.clone().mask_where(grown.is_finite().bool_not(), self.scale.clone());
        let backed_off = self.scale.clone() * self.config.backoff_factor;
        self.scale = self.scale.clone().mask_where(grows.clone(), grows_to).mask_where(overflow(), backed_off);
        self.growth_tracker = tracker.mask_fill(grows, 0).mask_fill(overflow(), 0);
        self.skipped = self.skipped.clone() + overflow().int();
        self.applied = self.applied.clone() + overflow().bool_not().int();
        Scaling { loss_scale, skipped_steps: self.skipped(), found_inf: overflow().float() }
    }
}

/// The loss scale as a log row shows it: tensors of `[1]` on the device, or the numbers read from
/// them.
#[derive(Debug, Clone)]
pub struct Scaling<T> {
    /// The scale of the step.
    pub loss_scale: T,
    /// Steps skipped so far.
    pub skipped_steps: T,
    /// 1 if the step was skipped.
    pub found_inf: T,
}

impl<T> Scaling<T> {
    /// Scale, skipped steps, and whether the step was skipped.
    pub fn into_values(self) -> [T; 3] {
        [self.loss_scale, self.skipped_steps, self.found_inf]
    }
}

impl Scaling<f64> {
    /// [`into_values`](Self::into_values), read from the device.
    pub fn from_values(values: &[f64]) -> Option<Self> {
        let [loss_scale, skipped_steps, found_inf] = *values else { return None };
        Some(Self { loss_scale, skipped_steps, found_inf })
    }

    /// `row` with `loss_scale`, `skipped_steps` and `found_inf`.
    pub fn record(&self, row: Record) -> Record {
        row.with("loss_scale", self.loss_scale)
            .with("skipped_steps", self.skipped_steps as u64)
            .with("found_inf", self.found_inf as u64)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[derive(Deserialize)]
    struct Fixture {
        torch: String,
        cases: Vec<Case>,
    }

    #[derive(Deserialize)]
    struct Case {
        init_scale: f64,
        growth_factor: f64,
        backoff_factor: f64,
        growth_interval: u64,
        overflows: Vec<bool>,
        /// After every step.
        scale: Vec<f64>,
        growth_tracker: Vec<u64>,
    }

    #[test]
    fn the_scale_goes_where_torchs_does() {
        let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/grad_scaler.json"));
        let fixture: Fixture = serde_json::from_str(text).unwrap();
        assert!(fixture.torch.starts_with("2.") && fixture.cases.len() >= 4);
        let device = Device::flex();
        for case in fixture.cases {
            let Case { init_scale, growth_factor, backoff_factor, growth_interval, .. } = case;
            let config = ScalerConfig { init_scale, growth_factor, backoff_factor, growth_interval };
            let mut scaler = LossScaler::new(config, &device);
            let mut skipped = 0;
            for (step, overflows) in case.overflows.iter().enumerate() {
                let norm = if *overflows { [f32::INFINITY, f32::NAN][step % 2] } else { 1.0 };
                let verdict = scaler.judge(Tensor::from_floats([norm], &device));
                scaler.update(&verdict);
                skipped += u64::from(*overflows);
                let expected = ScalerState {
                    scale: case.scale[step],
                    growth_tracker: case.growth_tracker[step],
                    skipped,
                    applied: step as u64 + 1 - skipped,
                };
                let state = scaler.state().unwrap();
                assert_eq!(state, expected, "step {step}");
                scaler = LossScaler::restored(config, state, &device); // a checkpoint loses nothing
            }
        }
    }

    #[test]
    fn the_constants_are_grad_scalers() {
        let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/grad_scaler.json"));
        let defaults = &serde_json::from_str::<serde_json::Value>(text).unwrap()["defaults"];
        let ScalerConfig { init_scale, growth_factor, backoff_factor, growth_interval } = ScalerConfig::default();
        assert_eq!(
            defaults,
            &serde_json::json!([init_scale, growth_factor, backoff_factor, growth_interval]),
            "init, growth, backoff, interval"
        );
    }
}
