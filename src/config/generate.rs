//! How a text is continued: the settings of `[generation]` and of `kiln generate`.

use serde::{Deserialize, Serialize};

use crate::base::error::{Error, Result};

/// How the next token is chosen and when to stop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GenerateOptions {
    /// At most this many tokens after the prompt.
    pub max_new_tokens: usize,
    /// Logits are divided by it; 0 takes the most likely token.
    pub temperature: f64,
    /// Keep only the `top_k` most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the fewest most likely tokens whose probabilities sum to at least `top_p`; 1 keeps all.
    pub top_p: f64,
    /// Seed of the draws.
    pub seed: u64,
    /// Generation ends before any of these tokens.
    pub stop: Vec<u32>,
}

impl GenerateOptions {
    /// # Errors
    /// A value outside its range.
    pub fn validate(&self) -> Result<()> {
        if !self.temperature.is_finite() || self.temperature < 0.0 {
            return Err(Error::config(format!("temperature: expected a number >= 0, got {}", self.temperature)));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(Error::config(format!("top_p: expected a number in (0, 1], got {}", self.top_p)));
        }
        if self.max_new_tokens == 0 {
            return Err(Error::config("max_new_tokens: expected at least 1, got 0"));
        }
        Ok(())
    }
}
