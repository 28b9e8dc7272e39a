//! Text generation with a key/value cache: one forward pass over the prompts, then one token of
//! each at a time. Greedy when the temperature is 0, else sampling. Names, the order of processors
//! and filters, and stop strings are those of `generate` in `transformers`.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use burn::tensor::{Device, Int, Tensor, TensorData};
use kiln_core::error::{Error, Result};
use kiln_core::random::{seed_for, uniform};
use kiln_data::tokenizer::Tokenizer;
use kiln_models::ops::threads;
use kiln_models::{Copies, KvCache, Model, ModelConfig};

use crate::config::GenerateOptions;
use crate::reads::read_values;

/// A language model that continues texts.
#[derive(Clone, Copy)]
pub struct Generator<'a> {
    /// The model, without autodiff.
    pub model: &'a Model,
    /// Its configuration.
    pub config: &'a ModelConfig,
    /// Where it is.
    pub device: &'a Device,
    /// Its tokenizer, which stop strings need.
    pub tokenizer: Option<&'a Tokenizer>,
    /// Where weights of `model`, and of no other, are kept as products take them, from one call to
    /// the next. They are to be [cleared](Copies::clear) when its weights change.
    pub copies: &'a Copies,
}

/// A text that is being continued.
struct Row {
    /// The prompt and the new tokens.
    tokens: Vec<u32>,
    /// Each of them once.
    distinct: BTreeSet<u32>,
    prompt: usize,
    is_done: bool,
}

impl Row {
    fn new(prompt: &[u32]) -> Self {
        let distinct = prompt.iter().copied().collect();
        Self { tokens: prompt.to_vec(), distinct, prompt: prompt.len(), is_done: false }
    }

    fn push(&mut self, token: u32) {
        self.tokens.push(token);
        self.distinct.insert(token);
    }
}

impl Generator<'_> {
    /// Continues every text of `prompts` (token ids) and hands each new token, with the number of
    /// its prompt, to `on_token`, which may end the generation. A text ends at `max_new_tokens`,
    /// before a stop token, with a stop string, or when the model has no more positions. Returns
    /// the new tokens of each: those that it would have alone, whatever the other prompts are and
    /// however long. On the CPU this thread is one of those that compute from then on
    /// ([`threads::compute_here`]).
    ///
    /// # Errors
    /// An empty prompt, one longer than the model's positions, ids outside the vocabulary, a model
    /// without a language model head, stop strings without a tokenizer, and settings that leave no
    /// token to choose.
    pub fn generate(
        &self,
        prompts: &[Vec<u32>],
        options: &GenerateOptions,
        mut on_token: impl FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<Vec<u32>>> {
        options.validate()?;
        self.check(prompts, options)?;
        let Self { model, config, device, .. } = *self;
        threads::compute_here(device);
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let padding = prompts.iter().map(|prompt| longest - prompt.len()).collect::<Vec<_>>();
        let mut input = Vec::with_capacity(prompts.len() * longest);
        for (prompt, padding) in prompts.iter().zip(&padding) {
            input.extend(std::iter::repeat_n(0, *padding));
            input.extend(prompt.iter().map(|id| *id as i32));
        }
        let mut rows = prompts.iter().map(|prompt| Row::new(prompt)).collect::<Vec<_>>();
        let mut cache = KvCache::left_padded(padding);
        let pass = model.pass(false).with_copies(self.copies);
        'tokens: while !rows.iter().all(|row| row.is_done) {
            let seq = input.len() / rows.len();
            let ids = Tensor::<2, Int>::from_data(TensorData::new(input, [rows.len(), seq]), device);
            let logits = model.next_logits(ids, &mut cache, pass).ok_or_else(no_head)?; // [prompts, vocab]
            let mut logits = read_values(logits)?;
            for (index, (row, logits)) in rows.iter_mut().zip(logits.chunks_mut(config.vocab_size())).enumerate() {
                if row.is_done {
                    continue;
                }
                let token = choose(logits, row, options)?;
                if options.stop.contains(&token) {
                    row.is_done = true;
                    continue;
                }
                row.push(token);
                row.is_done = row.tokens.len() - row.prompt == options.max_new_tokens
                    || row.tokens.len() > config.max_positions()
                    || self.completes_stop_string(&row.tokens, &options.stop_strings)?;
                if on_token(index, token).is_break() {
                    break 'tokens;
                }
            }
            // A text that has ended goes on for the device's sake, and nobody reads it.
            input =
                rows.iter().map(|row| if row.is_done { 0 } else { row.tokens[row.tokens.len() - 1] as i32 }).collect();
        }
        Ok(rows.into_iter().map(|mut row| row.tokens.split_off(row.prompt)).collect())
    }

    fn check(&self, prompts: &[Vec<u32>], options: &GenerateOptions) -> Result<()> {
        let (vocab, positions) = (self.config.vocab_size(), self.config.max_positions());
        if !self.model.generates() {
            return Err(no_head());
        }
        if !options.stop_strings.is_empty() && self.tokenizer.is_none() {
            return Err(Error::config("stop_strings: they need a tokenizer, and there is none"));
        }
        for prompt in prompts {
            if prompt.is_empty() {
                return Err(Error::data("the prompt has no tokens; expected at least one"));
            }
            if let Some(id) = prompt.iter().find(|&&id| id as usize >= vocab) {
                return Err(Error::data(format!(
                    "the prompt has token id {id}, but the model's vocabulary has {vocab} tokens"
                ))
                .help("the tokenizer does not belong to this model"));
            }
            if prompt.len() >= positions {
                return Err(Error::data(format!(
                    "the prompt has {} tokens; the model has {positions} positions, and at least one is needed for the answer",
                    prompt.len()
                )));
            }
        }
        Ok(())
    }

    /// Whether the last of `tokens` completes one of `stops`, as `StopStringCriteria` of
    /// `transformers` has it: a part of the text that equals a stop string ends within that token.
    /// The prompt counts too.
    fn completes_stop_string(&self, tokens: &[u32], stops: &[String]) -> Result<bool> {
        let (Some(tokenizer), Some(longest)) = (self.tokenizer, stops.iter().map(String::len).max()) else {
            return Ok(false);
        };
        // A token has a byte at least. Special ones count with their text, which may be a stop
        // string.
        let tail = &tokens[tokens.len().saturating_sub(longest + 1)..];
        let text = |tokens: &[u32]| tokenizer.decode_with_special(tokens);
        let (before, text) = (text(&tail[..tail.len() - 1])?, text(tail)?);
        let shared = before.bytes().zip(text.bytes()).take_while(|(a, b)| a == b).count();
        Ok(stops.iter().any(|stop| text.rmatch_indices(stop.as_str()).any(|(at, _)| at + stop.len() > shared)))
    }
}

fn no_head() -> Error {
    Error::config("this model has no language model head").help("generation needs a GPT-2 model")
}

/// Chooses the token that follows those of `row` from logits `[vocab]`.
fn choose(logits: &mut [f32], row: &Row, options: &GenerateOptions) -> Result<u32> {
    if let Some(bad) = logits.iter().find(|logit| !logit.is_finite()) {
        return Err(Error::non_finite(format!("the model's logits contain {bad}; its weights are not usable")));
    }
    process(logits, row, options);
    let mut ranked =
        logits.iter().copied().enumerate().filter(|(_, logit)| *logit > f32::NEG_INFINITY).collect::<Vec<_>>();
    // Ties go to the lower id, so that the result does not depend on the sort.
    let order = |a: &(usize, f32), b: &(usize, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    let Some(best) = ranked.iter().copied().min_by(order) else {
        return Err(Error::config(
            "no_repeat_ngram_size, min_new_tokens: they leave no token of the vocabulary to choose",
        ));
    };
    if options.temperature == 0.0 {
        return Ok(best.0 as u32);
    }
    if options.top_k > 0 && options.top_k < ranked.len() {
        ranked.select_nth_unstable_by(options.top_k, order);
        ranked.truncate(options.top_k);
    }
    ranked.sort_unstable_by(order);
    let top = f64::from(best.1);
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
    let draw = uniform(seed_for(options.seed, "generate", (row.tokens.len() - row.prompt) as u64, 0));
    let mut left = draw * weights.iter().sum::<f64>();
    let chosen = weights.iter().position(|weight| {
        left -= weight;
        left < 0.0
    });
    Ok(ranked[chosen.unwrap_or(weights.len() - 1)].0 as u32)
}

/// Changes logits as the processors of `transformers` do, in their order:
/// `RepetitionPenaltyLogitsProcessor`, `NoRepeatNGramLogitsProcessor`,
/// `MinNewTokensLengthLogitsProcessor`. A token that must not come gets minus infinity.
fn process(logits: &mut [f32], row: &Row, options: &GenerateOptions) {
    let Row { tokens, distinct, prompt, .. } = row;
    if options.repetition_penalty != 1.0 {
        let penalty = options.repetition_penalty as f32;
        for token in distinct {
            let logit = &mut logits[*token as usize];
            *logit = if *logit < 0.0 { *logit * penalty } else { *logit / penalty };
        }
    }
    let size = options.no_repeat_ngram_size;
    if size > 0 && tokens.len() + 1 >= size {
        let last = &tokens[tokens.len() + 1 - size..];
        for window in tokens.windows(size).filter(|window| window[..size - 1] == *last) {
            logits[window[size - 1] as usize] = f32::NEG_INFINITY;
        }
    }
    if tokens.len() - *prompt < options.min_new_tokens {
        for id in &options.stop {
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::GenerationSection;

    fn options(temperature: f64, top_k: usize, top_p: f64) -> GenerateOptions {
        let section = GenerationSection { max_new_tokens: 1, temperature, top_k, top_p, seed: 1, ..Default::default() };
        GenerateOptions::of(&section, Vec::new())
    }

    /// The token that follows a prompt of one token and `position` others.
    fn chosen(logits: &[f32], options: &GenerateOptions, position: u64) -> Result<u32> {
        let mut row = Row::new(&[0]);
        (0..position).for_each(|_| row.push(0));
        choose(&mut logits.to_vec(), &row, options)
    }

    fn counts(options: &GenerateOptions, logits: &[f32], draws: u64) -> Vec<usize> {
        let mut counts = vec![0; logits.len()];
        for position in 0..draws {
            counts[chosen(logits, options, position).unwrap() as usize] += 1;
        }
        counts
    }

    #[test]
    fn repeated_tokens_are_penalised_by_their_sign_and_repeated_ngrams_and_early_ends_are_excluded() {
        let with = |change: &dyn Fn(&mut GenerateOptions)| {
            let mut options = GenerateOptions { max_new_tokens: 9, ..options(0.0, 0, 1.0) };
            change(&mut options);
            let mut logits = [2.0, -1.0, 1.5, 1.0];
            let mut row = Row::new(&[0, 1, 2]);
            [0, 1].into_iter().for_each(|token| row.push(token));
            process(&mut logits, &row, &options);
            logits
        };
        assert_eq!(with(&|options| options.repetition_penalty = 2.0), [1.0, -2.0, 0.75, 1.0]);
        let none = f32::NEG_INFINITY;
        assert_eq!(with(&|options| options.no_repeat_ngram_size = 3), [2.0, -1.0, none, 1.0], "0 1 2 has come");
        assert_eq!(with(&|options| options.no_repeat_ngram_size = 1), [none, none, none, 1.0]);
        let early = |options: &mut GenerateOptions, least| (options.min_new_tokens, options.stop) = (least, vec![3]);
        assert_eq!(with(&|options| early(options, 3)), [2.0, -1.0, 1.5, none]);
        assert_eq!(with(&|options| early(options, 2)), [2.0, -1.0, 1.5, 1.0]);
    }

    #[test]
    fn temperature_zero_is_greedy_and_ties_go_to_the_lower_id() {
        assert_eq!(chosen(&[0.0, 3.0, 3.0], &options(0.0, 0, 1.0), 0).unwrap(), 1);
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
        // Softmax: 0.032, 0.087, 0.237, 0.644. The most likely alone reaches 0.6, two are needed
        // for 0.7.
        assert_eq!(counts(&options(1.0, 0, 0.6), &logits, 500)[..3], [0, 0, 0]);
        let counts = counts(&options(1.0, 0, 0.7), &logits, 500);
        assert!(counts[2] > 0 && counts[..2] == [0, 0], "{counts:?}");
    }

    #[test]
    fn bad_options_and_logits_are_refused() {
        assert!(options(-1.0, 0, 1.0).validate().is_err());
        assert!(options(f64::NAN, 0, 1.0).validate().is_err());
        assert!(options(1.0, 0, 0.0).validate().is_err());
        assert!(chosen(&[0.0, f32::NAN], &options(1.0, 0, 1.0), 0).is_err());
    }
}
