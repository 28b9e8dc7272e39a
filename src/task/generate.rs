//! Text generation with a key/value cache: one forward pass over the prompt, then one token at a time. Greedy when the
//! temperature is 0, else sampling with temperature, top-k and top-p, by Hugging Face's names and order of filters.

use std::ops::ControlFlow;

use burn::tensor::{Device, Int, Tensor, TensorData};
use kiln_models::{Copies, KvCache, Model, ModelConfig};

use crate::base::error::{Error, Result};
use crate::base::random::{seed_for, uniform};
use crate::base::reads::read_values;
use crate::config::GenerateOptions;

/// Continues `prompt` (token ids) and hands each new token to `on_token`, which may end the generation. Stops at
/// `max_new_tokens`, at a stop token, or when the model has no more positions. Returns the new tokens.
///
/// # Errors
/// An empty prompt, one longer than the model's positions, ids outside the vocabulary, or a model without a language model
/// head.
pub fn generate(
    model: &Model,
    config: &ModelConfig,
    device: &Device,
    prompt: &[u32],
    options: &GenerateOptions,
    on_token: impl FnMut(u32) -> ControlFlow<()>,
) -> Result<Vec<u32>> {
    options.validate()?;
    if !model.generates() {
        return Err(no_head());
    }
    if prompt.is_empty() {
        return Err(Error::data("the prompt has no tokens; expected at least one"));
    }
    if let Some(id) = prompt.iter().find(|&&id| id as usize >= config.vocab_size()) {
        let vocab = config.vocab_size();
        return Err(Error::data(format!(
            "the prompt has token id {id}, but the model's vocabulary has {vocab} tokens"
        ))
        .help("the tokenizer does not belong to this model"));
    }
    if prompt.len() >= config.max_positions() {
        return Err(Error::data(format!(
            "the prompt has {} tokens; the model has {} positions, and at least one is needed for the answer",
            prompt.len(),
            config.max_positions()
        )));
    }
    continued(model, config, device, prompt, options, on_token)
}

fn no_head() -> Error {
    Error::config("this model has no language model head").help("generation needs a GPT-2 model")
}

/// [`generate`], after its checks.
fn continued(
    model: &Model,
    config: &ModelConfig,
    device: &Device,
    prompt: &[u32],
    options: &GenerateOptions,
    mut on_token: impl FnMut(u32) -> ControlFlow<()>,
) -> Result<Vec<u32>> {
    let (mut cache, copies) = (KvCache::default(), Copies::default());
    let pass = model.pass(false).with_copies(&copies);
    let mut generated = Vec::new();
    let mut input = prompt.to_vec();
    while generated.len() < options.max_new_tokens && cache.len() + input.len() <= config.max_positions() {
        let seq = input.len();
        let ids = input.iter().map(|&id| id as i32).collect::<Vec<_>>();
        let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [1, seq]), device);
        let logits = model.forward_cached(ids, &mut cache, pass); // [seq, vocab]
        let Some(logits) = logits else { return Err(no_head()) };
        let last = read_values(logits.slice([seq - 1..seq, 0..config.vocab_size()]))?;
        let token = choose(&last, options, generated.len() as u64)?;
        if options.stop.contains(&token) {
            break;
        }
        generated.push(token);
        if on_token(token).is_break() {
            break;
        }
        input = vec![token];
    }
    Ok(generated)
}

/// Chooses a token from logits `[vocab]`.
fn choose(logits: &[f32], options: &GenerateOptions, position: u64) -> Result<u32> {
    if let Some(bad) = logits.iter().find(|logit| !logit.is_finite()) {
        return Err(Error::non_finite(format!("the model's logits contain {bad}; its weights are not usable")));
    }
    let mut ranked = logits.iter().copied().enumerate().collect::<Vec<_>>();
    // Ties go to the lower id, so that the result does not depend on the sort.
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if options.temperature == 0.0 {
        return Ok(ranked[0].0 as u32);
    }
    if options.top_k > 0 {
        ranked.truncate(options.top_k);
    }
    let top = f64::from(ranked[0].1);
    let mut weights =
        ranked.iter().map(|(_, logit)| ((f64::from(*logit) - top) / options.temperature).exp()).collect::<Vec<_>>();
    let total: f64 = weights.iter().sum();
    let mut cumulative = 0.0;
    let kept = weights.iter().position(|weight| {
        cumulative += weight / total;
        cumulative >= options.top_p
    });
    weights.truncate(kept.map_or(weights.len(), |last| last + 1));
    // 53 random bits in [0, 1).
    let draw = uniform(seed_for(options.seed, "generate", position, 0));
    let mut left = draw * weights.iter().sum::<f64>();
    let chosen = weights.iter().position(|weight| {
        left -= weight;
        left < 0.0
    });
    Ok(ranked[chosen.unwrap_or(weights.len() - 1)].0 as u32)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn options(temperature: f64, top_k: usize, top_p: f64) -> GenerateOptions {
        GenerateOptions { max_new_tokens: 1, temperature, top_k, top_p, seed: 1, stop: Vec::new() }
    }

    fn counts(options: &GenerateOptions, logits: &[f32], draws: u64) -> Vec<usize> {
        let mut counts = vec![0; logits.len()];
        for position in 0..draws {
            counts[choose(logits, options, position).unwrap() as usize] += 1;
        }
        counts
    }

    #[test]
    fn temperature_zero_is_greedy_and_ties_go_to_the_lower_id() {
        assert_eq!(choose(&[0.0, 3.0, 3.0], &options(0.0, 0, 1.0), 0).unwrap(), 1);
    }

    #[test]
    fn sampling_follows_the_softmax() {
        // Probabilities 0.25, 0.75; 4 standard deviations of 10,000 draws are 0.0173.
        let counts = counts(&options(1.0, 0, 1.0), &[0.0, 3.0f32.ln()], 10_000);
        assert!((counts[1] as f64 / 10_000.0 - 0.75).abs() < 0.0173, "{counts:?}");
    }

    #[test]
    fn top_k_and_top_p_cut_the_tail() {
        let logits = [0.0, 1.0, 2.0, 3.0];
        assert_eq!(counts(&options(1.0, 2, 1.0), &logits, 500)[..2], [0, 0]);
        // Softmax: 0.032, 0.087, 0.237, 0.644. The most likely alone reaches 0.6, two are needed for 0.7.
        assert_eq!(counts(&options(1.0, 0, 0.6), &logits, 500)[..3], [0, 0, 0]);
        let counts = counts(&options(1.0, 0, 0.7), &logits, 500);
        assert!(counts[2] > 0 && counts[..2] == [0, 0], "{counts:?}");
    }

    #[test]
    fn bad_options_and_logits_are_refused() {
        assert!(options(-1.0, 0, 1.0).validate().is_err());
        assert!(options(f64::NAN, 0, 1.0).validate().is_err());
        assert!(options(1.0, 0, 0.0).validate().is_err());
        assert!(choose(&[0.0, f32::NAN], &options(1.0, 0, 1.0), 0).is_err());
    }
}
