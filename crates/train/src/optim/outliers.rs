//! Steps that are not applied because their loss or their gradient norm is an outlier: the detector
//! of llm.c (`llmc/outlier_detector.h`, options `-sl` and `-sg`). A value is compared with the last
//! [`WINDOW`] ones, itself among them, by its z-score, `(value - mean) / standard deviation`; until
//! there are so many before it, nothing is an outlier. Values of steps that are not applied stay in
//! the windows, and such steps count as updates, as there.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// The values that a mean and a standard deviation are taken of.
pub const WINDOW: usize = 128;

/// The z-scores above which a step is not applied; none for those that are not looked at.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OutlierLimits {
    /// Largest z-score of the loss.
    pub loss: Option<f64>,
    /// Largest z-score of the gradient norm before clipping.
    pub grad_norm: Option<f64>,
}

impl OutlierLimits {
    /// In words, for the plan.
    pub fn describe(&self) -> String {
        let of = |name: &str, limit: Option<f64>| limit.map(|limit| format!("its {name} has a z-score above {limit}"));
        let either = of("loss", self.loss).into_iter().chain(of("gradient norm", self.grad_norm)).collect::<Vec<_>>();
        format!("a step is not applied where {}, over {WINDOW} steps", either.join(" or "))
    }
}

/// The values that steps are compared with, as a checkpoint keeps them: oldest first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OutlierState {
    /// Losses.
    pub loss: VecDeque<f32>,
    /// Gradient norms before clipping.
    pub grad_norm: VecDeque<f32>,
    /// Steps that were not applied so far.
    pub skipped: u64,
}

impl OutlierState {
    /// Whether it can be one of a run that has made `steps` steps.
    ///
    /// # Errors
    /// The field that such a run cannot have, with its value.
    pub fn check(&self, steps: u64) -> Result<(), String> {
        for (name, window) in [("loss", &self.loss), ("grad_norm", &self.grad_norm)] {
            if window.len() > WINDOW || window.iter().any(|value| !value.is_finite()) {
                return Err(format!("outliers.{name}: expected at most {WINDOW} finite numbers"));
            }
        }
        if self.skipped > steps {
            Err(format!("outliers.skipped: expected at most {steps}, got {}", self.skipped))
        } else {
            Ok(())
        }
    }
}

/// Finds the outliers of a run.
#[derive(Debug, Clone)]
pub struct Outliers {
    limits: OutlierLimits,
    /// The values so far.
    pub state: OutlierState,
}

impl Outliers {
    /// At the start of a run.
    pub fn new(limits: OutlierLimits) -> Self {
        Self { limits, state: OutlierState::default() }
    }

    /// Takes up the loss and the gradient norm of a step. Returns why it is not to be applied, if
    /// it is an outlier. A value that is no finite number is not taken up: in f16 it is the loss
    /// scale's business, and otherwise it ends the run.
    pub fn judge(&mut self, loss: f64, grad_norm: f64) -> Option<String> {
        let Self { limits, state } = self;
        let found = [
            ("loss", "trainer.skip_update_lossz", loss, limits.loss, &mut state.loss),
            ("gradient norm", "trainer.skip_update_gradz", grad_norm, limits.grad_norm, &mut state.grad_norm),
        ]
        .map(|(name, key, value, limit, window)| {
            let score = z_score(window, value as f32)?;
            let limit = limit.filter(|limit| score > *limit)?;
            Some(format!(
                "its {name} {value:.4} has the z-score {score:.1} among those of the last {WINDOW} steps, above {key} = {limit}"
            ))
        });
        let why = found.into_iter().flatten().next();
        state.skipped += u64::from(why.is_some());
        why
    }
}

/// Adds `value` to `window` and returns its z-score there; none while the window was not full
/// before it.
fn z_score(window: &mut VecDeque<f32>, value: f32) -> Option<f64> {
    if !value.is_finite() {
        return None;
    }
    let is_full = window.len() >= WINDOW;
    if is_full {
        window.pop_front();
    }
    window.push_back(value);
    if !is_full {
        return None;
    }
    let n = WINDOW as f64;
    let mean = window.iter().map(|value| f64::from(*value)).sum::<f64>() / n;
    let variance = window.iter().map(|value| (f64::from(*value) - mean).powi(2)).sum::<f64>() / n;
    Some(if variance == 0.0 { 0.0 } else { (f64::from(value) - mean) / variance.sqrt() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[derive(Deserialize)]
    struct Fixture {
        values: Vec<f32>,
        /// None before the window is full.
        scores: Vec<Option<f64>>,
    }

    #[test]
    fn scores_are_those_of_a_sliding_window_in_numpy() {
        let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/outliers.json"));
        let Fixture { values, scores } = serde_json::from_str(text).unwrap();
        assert!(values.len() == scores.len() && values.len() > 2 * WINDOW);
        let mut window = VecDeque::new();
        for (step, (value, expected)) in values.into_iter().zip(scores).enumerate() {
            let score = z_score(&mut window, value);
            let apart = score.zip(expected).map_or(0.0, |(score, expected)| (score - expected).abs());
            assert!(score.is_some() == expected.is_some() && apart < 1e-9, "step {step}: {score:?}, not {expected:?}");
        }
    }

    #[test]
    fn a_spike_is_an_outlier_and_the_state_goes_through_json() {
        let limits = OutlierLimits { loss: Some(3.0), grad_norm: None };
        let mut outliers = Outliers::new(limits);
        let wave = |step: usize| 2.0 + 0.1 * (step as f64).sin();
        for step in 0..WINDOW {
            assert_eq!(outliers.judge(if step == 5 { 99.0 } else { wave(step) }, 1.0), None, "the window is not full");
        }
        // The spike of step 5 is still in the window, so another one of its size stands out less.
        for step in WINDOW..2 * WINDOW {
            let stored = serde_json::to_string(&outliers.state).unwrap();
            outliers.state = serde_json::from_str(&stored).unwrap();
            assert_eq!(serde_json::to_string(&outliers.state).unwrap(), stored);
            assert_eq!(outliers.judge(wave(step), 1e9), None, "gradient norms are not looked at");
        }
        assert_eq!((outliers.judge(f64::NAN, 1.0), outliers.state.loss.len()), (None, WINDOW));
        let why = outliers.judge(9.0, 1.0).unwrap();
        assert!(why.contains("loss 9.0000") && why.contains("above trainer.skip_update_lossz = 3"), "{why}");
        assert_eq!(outliers.state.skipped, 1);
        assert!(outliers.state.check(0).is_err() && outliers.state.check(1).is_ok());
    }
}
