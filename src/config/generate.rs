//! How a text is continued: the settings of `[generation]` and of `kiln generate`.

use kiln_core::error::{Error, Result};
use serde::{Deserialize, Serialize};

use super::GenerationSection;

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
    /// Logits of tokens that the text has, the prompt included, are divided by it where they are
    /// positive and multiplied by it where they are negative (Keskar et al. 2019, CTRL); 1 changes
    /// nothing.
    pub repetition_penalty: f64,
    /// No sequence of so many tokens comes twice, the prompt included; 0 allows all.
    pub no_repeat_ngram_size: usize,
    /// No token of `stop` before so many tokens after the prompt.
    pub min_new_tokens: usize,
    /// Generation ends before any of these tokens (`eos_token_id`).
    pub stop: Vec<u32>,
    /// Generation ends with the token that completes one of these texts, which stays in the result,
    /// as in `transformers`.
    pub stop_strings: Vec<String>,
}

impl GenerateOptions {
    /// The options of `section`; generation ends before the tokens `stop`.
    pub fn of(section: &GenerationSection, stop: Vec<u32>) -> Self {
        Self {
            max_new_tokens: section.max_new_tokens,
            temperature: section.temperature,
            top_k: section.top_k,
            top_p: section.top_p,
            seed: section.seed,
            repetition_penalty: section.repetition_penalty,
            no_repeat_ngram_size: section.no_repeat_ngram_size,
            min_new_tokens: section.min_new_tokens,
            stop,
            stop_strings: section.stop_strings.clone(),
        }
    }

    /// # Errors
    /// A value outside its range.
    pub fn validate(&self) -> Result<()> {
        if !self.temperature.is_finite() || self.temperature < 0.0 {
            return Err(Error::config(format!("temperature: expected a number >= 0, got {}", self.temperature)));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(Error::config(format!("top_p: expected a number in (0, 1], got {}", self.top_p)));
        }
        if !self.repetition_penalty.is_finite() || self.repetition_penalty <= 0.0 {
            let got = self.repetition_penalty;
            return Err(Error::config(format!("repetition_penalty: expected a finite number above 0, got {got}")));
        }
        if self.max_new_tokens == 0 {
            return Err(Error::config("max_new_tokens: expected at least 1, got 0"));
        }
        if self.min_new_tokens > self.max_new_tokens {
            return Err(Error::config(format!(
                "min_new_tokens: expected at most max_new_tokens ({}), got {}",
                self.max_new_tokens, self.min_new_tokens
            )));
        }
        if self.stop_strings.iter().any(String::is_empty) {
            return Err(Error::config("stop_strings: expected texts, got an empty string"));
        }
        Ok(())
    }
}
