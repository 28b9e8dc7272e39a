//! GPT-2 (Radford et al. 2019), with Hugging Face's names: `transformers/models/gpt2/modeling_gpt2.py` is the reference.
//! Learned positions, pre-LayerNorm blocks, tanh GELU, causal attention. The heads are in `heads.rs`.

use burn::module::Module;
use burn::tensor::{Bool, Device, Int, Tensor};

use crate::compute::Compute;
use crate::config::Gpt2Config;
use crate::layers::{Activation, Conv1D, Embedding, LayerNorm, attention, causal_mask, merge_heads, split_heads};
use crate::ops::attention::{Attention, Mask, Qkv};
use crate::ops::dropout::dropout;

/// The transformer body: token ids to normalised hidden states.
#[derive(Module, Debug)]
pub struct Gpt2Model {
    /// Token embedding `[vocab_size, n_embd]`; the language model head uses it again, transposed.
    pub wte: Embedding,
    /// Position embedding `[n_positions, n_embd]`
    pub wpe: Embedding,
    /// The blocks.
    pub h: Vec<Gpt2Block>,
    /// The last normalisation.
    pub ln_f: LayerNorm,
    embd_pdrop: f64,
    /// How the model computes.
    #[module(skip)]
    pub compute: Compute,
}

/// One block: attention and feed-forward, each after a LayerNorm and added to its input.
#[derive(Module, Debug)]
pub struct Gpt2Block {
    ln_1: LayerNorm,
    attn: Gpt2Attention,
    ln_2: LayerNorm,
    mlp: Gpt2Mlp,
}

/// Causal self-attention with one projection for query, key and value.
#[derive(Module, Debug)]
pub struct Gpt2Attention {
    c_attn: Conv1D,
    c_proj: Conv1D,
    n_head: usize,
    scale: f64,
    attn_pdrop: f64,
    resid_pdrop: f64,
}

/// The feed-forward block.
#[derive(Module, Debug)]
pub struct Gpt2Mlp {
    c_fc: Conv1D,
    c_proj: Conv1D,
    #[module(skip)]
    activation: Activation,
    resid_pdrop: f64,
}

/// Keys and values of the tokens seen so far, for generation: one pair `[batch, heads, seen, head_dim]` a layer.
#[derive(Debug, Default)]
pub struct KvCache {
    layers: Vec<(Tensor<4>, Tensor<4>)>,
}

impl KvCache {
    /// How many tokens the cache holds.
    pub fn len(&self) -> usize {
        self.layers.first().map_or(0, |(key, _)| key.dims()[2])
    }

    /// Whether no token has been seen.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Appends the keys and values of layer `index` and returns all of that layer's.
    fn append(&mut self, index: usize, key: Tensor<4>, value: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        let pair = match self.layers.get(index) {
            Some((k, v)) => (Tensor::cat(vec![k.clone(), key], 2), Tensor::cat(vec![v.clone(), value], 2)),
            None => (key, value),
        };
        if index == self.layers.len() {
            self.layers.push(pair.clone());
        } else {
            self.layers[index] = pair.clone();
        }
        pair
    }
}

impl Gpt2Model {
    /// Random weights as `transformers` draws them: `N(0, initializer_range)`, the two projections that write to the
    /// residual stream scaled by `1 / sqrt(2 n_layer)`.
    pub fn new(config: &Gpt2Config, device: &Device) -> Self {
        let std = config.initializer_range;
        Self {
            wte: Embedding::new(config.vocab_size, config.n_embd, None, std, device),
            wpe: Embedding::new(config.n_positions, config.n_embd, None, std, device),
            h: (0..config.n_layer).map(|_| Gpt2Block::new(config, device)).collect(),
            ln_f: LayerNorm::new(config.n_embd, config.layer_norm_epsilon, device),
            embd_pdrop: config.embd_pdrop,
            compute: Compute::default(),
        }
    }

    /// - `input_ids`: `[batch, seq]`
    /// - `attention_mask`: `[batch, seq]`, true = attend; none when nothing is padded (and always none with a cache)
    /// - returns `[batch * seq, n_embd]`
    pub fn forward(
        &self,
        input_ids: Tensor<2, Int>,
        attention_mask: Option<Tensor<2, Bool>>,
        mut cache: Option<&mut KvCache>,
        train: bool,
    ) -> Tensor<2> {
        let [batch, seq] = input_ids.dims();
        let device = input_ids.device();
        let past = cache.as_ref().map_or(0, |cache| cache.len());
        let mut x = self.embed(input_ids, past, train);
        let (hidden, mask);
        let visible = match cache {
            Some(_) => {
                hidden = causal_mask(seq, past, &device); // [1, 1, seq, past + seq]
                Visible::Cached(&hidden)
            }
            None => {
                mask = self.mask(seq, attention_mask, &device);
                Visible::Whole(&mask)
            }
        };
        for (index, block) in self.h.iter().enumerate() {
            let cache = cache.as_deref_mut().map(|cache| (cache, index));
            x = block.forward(x, batch, visible, cache, train, self.compute);
        }
        self.normalised(x)
    }

    /// What the heads read of what the last block gave: `[n, n_embd]` -> the same.
    pub(crate) fn normalised(&self, x: Tensor<2>) -> Tensor<2> {
        self.ln_f.forward(x, self.compute.ops())
    }

    /// What the first block reads, for ids `[batch, seq]` that follow `past` others: `[batch * seq, n_embd]`.
    pub(crate) fn embed(&self, input_ids: Tensor<2, Int>, past: usize, train: bool) -> Tensor<2> {
        let ([batch, seq], ops) = (input_ids.dims(), self.compute.ops());
        let tokens = self.wte.forward(input_ids.reshape([batch * seq]), ops); // [batch * seq, n_embd]
        dropout(self.wpe.positions(tokens, batch, past), self.embd_pdrop, train, ops)
    }

    /// Which keys the tokens of whole sequences see.
    pub(crate) fn mask(&self, seq: usize, attention_mask: Option<Tensor<2, Bool>>, device: &Device) -> Mask {
        Mask::new(seq, true, attention_mask, device, self.compute.ops())
    }

    /// Block `index` on whole sequences: `[batch * seq, n_embd]` -> the same.
    pub(crate) fn block(&self, index: usize, x: Tensor<2>, batch: usize, mask: &Mask, train: bool) -> Tensor<2> {
        self.h[index].forward(x, batch, Visible::Whole(mask), None, train, self.compute)
    }
}

/// Which keys the tokens of a forward pass see.
#[derive(Clone, Copy)]
enum Visible<'a> {
    /// The pass holds whole sequences.
    Whole(&'a Mask),
    /// The tokens continue those of a cache: true where a key is hidden.
    Cached(&'a Tensor<4, Bool>),
}

impl Gpt2Block {
    fn new(config: &Gpt2Config, device: &Device) -> Self {
        let (d, std) = (config.n_embd, config.initializer_range);
        let residual_std = std / (2.0 * config.n_layer as f64).sqrt();
        let norm = || LayerNorm::new(d, config.layer_norm_epsilon, device);
        Self {
            ln_1: norm(),
            attn: Gpt2Attention {
                c_attn: Conv1D::new(d, 3 * d, std, device),
                c_proj: Conv1D::new(d, d, residual_std, device),
                n_head: config.n_head,
                scale: if config.scale_attn_weights { 1.0 / ((d / config.n_head) as f64).sqrt() } else { 1.0 },
                attn_pdrop: config.attn_pdrop,
                resid_pdrop: config.resid_pdrop,
            },
            ln_2: norm(),
            mlp: Gpt2Mlp {
                c_fc: Conv1D::new(d, config.inner(), std, device),
                c_proj: Conv1D::new(config.inner(), d, residual_std, device),
                activation: config.activation(),
                resid_pdrop: config.resid_pdrop,
            },
        }
    }

    /// `x`: `[batch * seq, n_embd]`
    fn forward(
        &self,
        x: Tensor<2>,
        batch: usize,
        visible: Visible<'_>,
        cache: Option<(&mut KvCache, usize)>,
        train: bool,
        compute: Compute,
    ) -> Tensor<2> {
        let ops = compute.ops();
        let attended = self.attn.forward(self.ln_1.forward(x.clone(), ops), batch, visible, cache, train, compute);
        let x = self.attn.c_proj.onto_residual(attended, x, self.attn.resid_pdrop, train, compute);
        let inner = self.mlp.c_fc.activated(self.ln_2.forward(x.clone(), ops), self.mlp.activation, compute);
        self.mlp.c_proj.onto_residual(inner, x, self.mlp.resid_pdrop, train, compute) // inner: [batch * seq, n_inner]
    }
}

impl Gpt2Attention {
    /// What `c_proj` projects, `[batch * seq, n_embd]`, in the compute type.
    fn forward(
        &self,
        x: Tensor<2>,
        batch: usize,
        visible: Visible<'_>,
        cache: Option<(&mut KvCache, usize)>,
        train: bool,
        compute: Compute,
    ) -> Tensor<2> {
        let [rows, d] = x.dims();
        let qkv = compute.narrow(self.c_attn.forward(x, compute)); // [batch * seq, 3 * n_embd]
        let hidden = match visible {
            Visible::Cached(hidden) => hidden.clone(),
            Visible::Whole(mask) => {
                let Self { n_head: heads, scale, attn_pdrop: dropout, .. } = *self;
                return Attention { batch, heads, scale, dropout, train }.forward(Qkv::Packed(qkv), mask);
            }
        };
        let part = |i: usize| split_heads(qkv.clone().slice([0..rows, i * d..(i + 1) * d]), batch, self.n_head);
        let (query, mut key, mut value) = (part(0), part(1), part(2)); // [batch, heads, seq, head_dim]
        if let Some((cache, index)) = cache {
            (key, value) = cache.append(index, key, value);
        }
        merge_heads(attention(query, key, value, Some(hidden), self.scale, self.attn_pdrop, train))
    }
}
