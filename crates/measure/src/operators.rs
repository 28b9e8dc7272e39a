//! Single operators, forward and backward, at the sizes of a model: each in the form that the mode
//! of the arm has and with products in the type of the run, so that a fused operator can be seen
//! against its composition and against another framework's. AdamW is not among them: it is the part
//! `update` of a step.

use std::time::Instant;

use burn::tensor::{Bool, Device, Distribution, Int, Tensor};
use kiln::config::Task;
use kiln_core::error::{Error, Result};
use kiln_core::random::zipf;
use kiln_models::ops::attention::{Attention, Mask, Qkv};
use kiln_models::ops::cross_entropy::CrossEntropy;
use kiln_models::ops::dropout::DropoutRng;
use kiln_models::ops::{dropout, embedding, gelu, layer_norm, linear, rms_norm, rotary, swiglu, threads};
use kiln_models::{Activation, Compute, ModelConfig};
use serde::{Deserialize, Serialize};

/// Rank of the adapter in its measurement, PEFT's default.
const RANK: usize = 8;

/// Probability of dropout in its measurement.
const DROPOUT: f64 = 0.1;

/// The sizes of the operators of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shapes {
    /// Rows of a batch.
    pub batch: usize,
    /// Tokens of a row.
    pub length: usize,
    /// Width of the model.
    pub width: usize,
    /// Attention heads.
    pub heads: usize,
    /// Width of the feed-forward block.
    pub inner: usize,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Queries see no later key.
    pub causal: bool,
    /// The GELU is the tanh form; else the erf form.
    pub gelu_tanh: bool,
    /// The model predicts tokens.
    pub predicts_tokens: bool,
    /// Widths of all queries and of all keys of a token, in a model with Llama's operators; none in
    /// others, where both are the model's width.
    #[serde(default)]
    pub llama: Option<[usize; 2]>,
}

/// The times of one operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperatorTimes {
    /// Its name, as in `compiler.fused_ops`; `lora` is `linear` with an adapter.
    pub name: String,
    /// Its sizes, for people.
    pub shape: String,
    /// The arithmetic of its matrix products, forward and backward, in 10^9 operations, where it
    /// consists of them: an addition and a multiplication are two, and scores that no query sees
    /// are not counted.
    #[serde(default)]
    pub gflop: Option<f64>,
    /// Milliseconds of forward and backward, one a repeat.
    pub ms: Vec<f64>,
}

impl Shapes {
    /// The sizes of the operators of `config` for batches of `batch` x `length` tokens.
    pub fn new(config: &ModelConfig, task: Task, batch: usize, length: usize) -> Self {
        let (width, _, heads, inner) = config.shape();
        Self {
            batch,
            length,
            width,
            heads,
            inner,
            vocabulary: config.vocab_size(),
            causal: config.is_decoder(),
            gelu_tanh: config.activation() == Some(Activation::GeluTanh),
            predicts_tokens: task.is_language_model(),
            llama: matches!(config, ModelConfig::Llama(_)).then(|| config.attention_widths()),
        }
    }

    /// Makes every operator `repeats` times as `compute` says. The gradient that comes from above
    /// is all ones (for cross-entropy the mean's), so nothing but the operator and that filling is
    /// timed, and what it leaves is freed.
    ///
    /// # Errors
    /// The device's.
    pub fn measure(&self, compute: Compute, device: &Device, repeats: usize) -> Result<Vec<OperatorTimes>> {
        let Self { batch, length, width, heads, inner, vocabulary, .. } = *self;
        let (ops, dtype) = (compute.ops(), compute.dtype());
        threads::compute_here(device); // as training does
        let tokens = batch * length;
        let device = &device.clone().autodiff();
        let matrix = |rows: usize, columns: usize| {
            Tensor::<2>::random([rows, columns], Distribution::Normal(0.0, 0.5), device).require_grad()
        };
        let vector = |size: usize| Tensor::<1>::random([size], Distribution::Normal(0.0, 0.5), device).require_grad();
        let ids = || {
            // Ids are as frequent as those of a text; the steps of the golden ratio fill the range
            // evenly.
            let id = |i: usize| zipf((i as f64 * 0.618_033_988_749_895).fract(), vocabulary as u64) as i32;
            let ids = (0..tokens).map(id).collect::<Vec<_>>();
            Tensor::<1, Int>::from_ints(&ids[..], device)
        };
        let (x, residual, wide) = (matrix(tokens, width), matrix(tokens, width), matrix(tokens, inner));
        let (table, weight) = (matrix(vocabulary, width), matrix(width, inner));
        let low_rank = [matrix(width, RANK), matrix(RANK, inner)];
        let (frozen, frozen_bias) = (weight.clone().detach(), vector(inner).detach());
        let (small, large, ids) = (vector(width), vector(inner), ids());
        let activation = if self.gelu_tanh { Activation::GeluTanh } else { Activation::GeluErf };
        let [queries, keys_width] = self.llama.unwrap_or([width; 2]);
        let head_dim = queries / heads;
        let qkv = [matrix(tokens, queries), matrix(tokens, keys_width), matrix(tokens, keys_width)];
        let keys = (!self.causal).then(|| Tensor::<2, Bool>::full([batch, length], true, device));
        let mask = Mask::new(length, self.causal, keys, device, ops);
        let attention = Attention {
            batch,
            heads,
            scale: (head_dim as f64).powf(-0.5),
            dropout: 0.0,
            rng: DropoutRng::Device,
            products: dtype,
        };
        let up = matrix(tokens, inner);
        let angles = Tensor::<2>::random([length, head_dim / 2], Distribution::Uniform(0.0, 6.0), device);
        type Make<'a> = Box<dyn Fn() -> Tensor<2> + 'a>;
        let mut all: Vec<(&str, String, Make<'_>)> = vec![
            (
                "embedding",
                format!("{tokens} of {vocabulary} x {width}"),
                Box::new(|| embedding::embedding(table.clone(), ids.clone(), None, ops)),
            ),
            (
                "dropout",
                format!("{tokens} x {width}, bias, residual"),
                Box::new(|| {
                    dropout::bias_dropout_residual(
                        x.clone(),
                        small.clone(),
                        residual.clone(),
                        DROPOUT,
                        DropoutRng::Device,
                        ops,
                    )
                }),
            ),
            (
                "layer_norm",
                format!("{tokens} x {width}, residual"),
                Box::new(|| {
                    let (weight, bias) = (small.clone(), small.clone());
                    layer_norm::layer_norm(x.clone(), Some(residual.clone()), weight, bias, 1e-5, ops)
                }),
            ),
            (
                "linear",
                format!("{tokens} x {width} x {inner}"),
                Box::new(|| linear::linear(x.clone(), weight.clone(), Some(large.clone()), dtype, ops)),
            ),
            (
                "lora",
                format!("{tokens} x {width} x {inner}, rank {RANK}, frozen weight"),
                Box::new(|| {
                    let (weight, [a, b]) = (frozen.clone(), low_rank.clone());
                    let layer = linear::Adapted { weight, a, b, scaling: 1.0, dropout: 0.0, operands: dtype.into() };
                    linear::adapted(x.clone(), layer, Some(frozen_bias.clone()), DropoutRng::Device, ops)
                }),
            ),
            (
                "attention",
                match keys_width / head_dim {
                    all if all == heads => format!("{batch} x {heads} heads x {length} x {head_dim}"),
                    shared => format!("{batch} x {heads} heads on {shared} x {length} x {head_dim}"),
                },
                Box::new(|| {
                    let [query, key, value] = qkv.clone().map(|part| compute.narrow(part));
                    attention.forward(Qkv::Separate { query, key, value }, &mask)
                }),
            ),
            (
                "gelu",
                format!("{tokens} x {inner}, bias"),
                Box::new(|| gelu::bias_gelu(wide.clone(), large.clone(), activation, ops)),
            ),
        ];
        if self.llama.is_some() {
            all.retain(|(name, ..)| !["dropout", "layer_norm", "gelu"].contains(name));
            all.push((
                "rms_norm",
                format!("{tokens} x {width}"),
                Box::new(|| rms_norm::rms_norm(x.clone(), small.clone(), 1e-5, ops)),
            ));
            all.push((
                "rotary",
                format!("{tokens} x {heads} heads x {head_dim}"),
                Box::new(|| {
                    let (cos, sin) = (angles.clone().cos(), angles.clone().sin());
                    rotary::rotary(qkv[0].clone(), cos, sin, heads, ops)
                }),
            ));
            all.push((
                "swiglu",
                format!("{tokens} x {inner}"),
                Box::new(|| swiglu::swiglu(wide.clone(), up.clone(), ops)),
            ));
        }
        if self.predicts_tokens {
            all.push((
                "cross_entropy",
                format!("{tokens} x {width} x {vocabulary}"),
                Box::new(|| {
                    let entropy = CrossEntropy {
                        x: compute.narrow(x.clone()),
                        weight: compute.narrow(table.clone()),
                        bias: None,
                        target: ids.clone(),
                        row_weight: None,
                        label_smoothing: 0.0,
                        operands: dtype.into(),
                    };
                    (entropy.sum(ops) / tokens as f64).unsqueeze()
                }),
            ));
        }
        let failed = |error: &dyn std::fmt::Display| Error::device(format!("the device failed: {error}"));
        let timed = all.into_iter().map(|(name, shape, make)| {
            let mut ms = Vec::with_capacity(repeats);
            for _ in 0..repeats {
                device.sync().map_err(|error| failed(&error))?;
                let start = Instant::now();
                drop(make().backward());
                device.sync().map_err(|error| failed(&error))?;
                ms.push(start.elapsed().as_secs_f64() * 1e3);
            }
            Ok(OperatorTimes { name: name.into(), shape, gflop: self.gflop(name), ms })
        });
        timed.collect()
    }

    /// [`OperatorTimes::gflop`] of operator `name`: a product of its forward pass has two
    /// gradients, which are products of the same size, but for a frozen weight, which has none.
    fn gflop(&self, name: &str) -> Option<f64> {
        let [tokens, length, width, inner, vocabulary] =
            [self.batch * self.length, self.length, self.width, self.inner, self.vocabulary].map(|n| n as f64);
        let multiplications = match name {
            "linear" => 3.0 * tokens * width * inner,
            "lora" => 2.0 * tokens * width * inner + 3.0 * tokens * RANK as f64 * (width + inner),
            // Scores, and their product with the values.
            "attention" => {
                let queries = self.llama.map_or(width, |[queries, _]| queries as f64);
                3.0 * 2.0 * tokens * if self.causal { (length + 1.0) / 2.0 } else { length } * queries
            }
            "cross_entropy" => 3.0 * tokens * width * vocabulary,
            _ => return None,
        };
        Some(2.0 * multiplications / 1e9)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use kiln_models::ops::DTYPES;
    use kiln_models::{ModelType, Ops};
    use serde_json::json;

    use super::*;

    #[test]
    fn every_operator_runs_in_both_forms() {
        let fields = json!({"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 32, "n_positions": 8});
        let config = ModelConfig::from_fields(ModelType::Gpt2, fields.as_object().unwrap()).unwrap();
        let shapes = Shapes::new(&config, Task::Clm, 2, 8);
        assert_eq!((shapes.inner, shapes.causal, shapes.gelu_tanh), (64, true, true));
        for (ops, dtype) in [Ops::Plain, Ops::Fused].into_iter().flat_map(|ops| DTYPES.map(|dtype| (ops, dtype))) {
            let times = shapes.measure(Compute::new(ops, dtype), &Device::flex(), 2).unwrap();
            let names = times.iter().map(|it| it.name.as_str()).collect::<Vec<_>>();
            let all = ["embedding", "dropout", "layer_norm", "linear", "lora", "attention", "gelu", "cross_entropy"];
            assert_eq!(names, all);
            assert!(times.iter().all(|it| it.ms.len() == 2 && it.ms.iter().all(|ms| *ms > 0.0)));
            // 16 tokens, 16 x 64 weights: three products of 16,384 multiplications.
            assert_eq!(times[3].gflop, Some(6.0 * 16_384.0 / 1e9));
            // A query sees 4.5 keys in the mean.
            assert_eq!(times[5].gflop, Some(12.0 * 16.0 * 4.5 * 16.0 / 1e9));
            assert_eq!(times[6].gflop, None);
        }
        let shapes = Shapes { causal: false, predicts_tokens: false, ..shapes };
        assert_eq!(shapes.measure(Compute::new(Ops::Fused, DTYPES[0]), &Device::flex(), 1).unwrap().len(), 7);
    }

    #[test]
    fn operators_of_llama_with_heads_of_keys_that_queries_share() {
        let fields = json!({
            "num_hidden_layers": 1, "hidden_size": 18, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
            "intermediate_size": 40, "vocab_size": 32,
        });
        let config = ModelConfig::from_fields(ModelType::Qwen3, fields.as_object().unwrap()).unwrap();
        let shapes = Shapes::new(&config, Task::Clm, 2, 8);
        assert_eq!(shapes.llama, Some([24, 12]));
        for (ops, dtype) in [Ops::Plain, Ops::Fused].into_iter().flat_map(|ops| DTYPES.map(|dtype| (ops, dtype))) {
            let times = shapes.measure(Compute::new(ops, dtype), &Device::flex(), 1).unwrap();
            let names = times.iter().map(|it| it.name.as_str()).collect::<Vec<_>>();
            let all = ["embedding", "linear", "lora", "attention", "rms_norm", "rotary", "swiglu", "cross_entropy"];
            assert_eq!(names, all);
            assert_eq!((&*times[3].shape, &*times[5].shape), ("2 x 4 heads on 2 x 8 x 6", "16 x 4 heads x 6"));
            assert_eq!(times[3].gflop, Some(12.0 * 16.0 * 4.5 * 24.0 / 1e9), "by the heads of the queries");
        }
    }
}
