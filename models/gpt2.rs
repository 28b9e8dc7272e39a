//! GPT-2 (Radford et al. 2019), with Hugging Face's names:
//! `transformers/models/gpt2/modeling_gpt2.py` is the reference. Learned positions, pre-LayerNorm
//! blocks, tanh GELU, causal attention. GPT-Neo is a variant: what it does otherwise is asked of
//! [`Gpt2Variant`] here (`modeling_gpt_neo.py`). The heads are in `model.rs`.

use burn::module::Module;
use burn::tensor::{Bool, Device, Int, Tensor};
use kiln_core::model_config::{Activation, Gpt2Config, Gpt2Variant};

use crate::kv_cache::KvCache;
use crate::layers::{Conv1D, EachLinear, Embedding, EmbeddingNoise, LayerNorm, Linear, shared};
use crate::ops::attention::plain::{attention, merge_heads, split_heads};
use crate::ops::attention::{Qkv, Unseen};
use crate::ops::dropout::{Residual, Stream, dropout};
use crate::ops::{Operand, Pass, Reader};
use crate::rows::Rows;

/// The transformer body: token ids to hidden states. Reference: `GPT2Model`.
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
    #[module(skip)]
    pub(crate) noise: EmbeddingNoise,
    #[module(skip)]
    variant: Gpt2Variant,
    /// Tokens that a local layer attends to.
    #[module(skip)]
    window: Option<usize>,
}

/// One block: attention and feed-forward, each after a LayerNorm and added to its input. Reference:
/// `GPT2Block`.
#[derive(Module, Debug)]
pub struct Gpt2Block {
    ln_1: LayerNorm,
    attn: Gpt2Attention,
    ln_2: LayerNorm,
    mlp: Gpt2Mlp,
}

/// Causal self-attention. Reference: `GPT2Attention`, `GPTNeoSelfAttention`.
#[derive(Module, Debug)]
pub struct Gpt2Attention {
    projections: Projections,
    c_proj: Conv1D,
    is_local: bool,
    n_head: usize,
    scale: f64,
    attn_pdrop: f64,
    resid_pdrop: f64,
}

/// The projections to query, key and value. The names of tensors leave out the field that holds
/// this.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // there is one of these in a layer
enum Projections {
    /// GPT-2's: one.
    Packed(PackedProjection),
    /// GPT-Neo's: three.
    Separate(SeparateProjections),
}

#[derive(Module, Debug)]
struct PackedProjection {
    c_attn: Conv1D,
}

#[derive(Module, Debug)]
struct SeparateProjections {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
}

/// The feed-forward block. Reference: `GPT2MLP`.
#[derive(Module, Debug)]
pub struct Gpt2Mlp {
    c_fc: Conv1D,
    c_proj: Conv1D,
    #[module(skip)]
    activation: Activation,
    resid_pdrop: f64,
}

/// The positions of tokens.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant)] // there is one of these in a pass
pub enum Positions {
    /// Consecutive positions in each row, from this number on.
    From(usize),
    /// `[batch * seq]`
    At(Tensor<1, Int>),
}

impl Positions {
    /// `position_ids [batch, seq]`, or of each row those from the first.
    pub fn of(position_ids: Option<Tensor<2, Int>>) -> Self {
        position_ids.map_or(Self::From(0), |ids| Self::At(ids.flatten(0, 1)))
    }
}

impl Gpt2Model {
    /// Random weights as `transformers` draws them: `N(0, initializer_range)`, GPT-2's two
    /// projections that write to the residual stream scaled by `1 / sqrt(2 n_layer)`.
    pub fn new(config: &Gpt2Config, device: &Device) -> Self {
        let std = config.initializer_range;
        Self {
            wte: Embedding::new(config.vocab_size, config.n_embd, None, std, device),
            wpe: Embedding::new(config.n_positions, config.n_embd, None, std, device),
            h: config.layers_are_local().into_iter().map(|is_local| Gpt2Block::new(config, is_local, device)).collect(),
            ln_f: LayerNorm::new(config.n_embd, config.layer_norm_epsilon, device),
            embd_pdrop: config.embd_pdrop,
            noise: EmbeddingNoise::default(),
            variant: config.variant,
            window: (config.variant == Gpt2Variant::GptNeo).then_some(config.window_size),
        }
    }

    /// Which model of the family it is.
    pub fn variant(&self) -> Gpt2Variant {
        self.variant
    }

    /// The weights of a query that sees no key, in the attention that `transformers` has for the
    /// model by default: GPT-2's is PyTorch's `scaled_dot_product_attention`, GPT-Neo's a masked
    /// softmax of its own.
    pub(crate) fn unseen(&self) -> Unseen {
        match self.variant {
            Gpt2Variant::Gpt2 => Unseen::Nothing,
            Gpt2Variant::GptNeo => Unseen::Earlier,
        }
    }

    /// How many tokens the local layers attend to; none where no layer is local.
    pub(crate) fn window(&self) -> Option<usize> {
        self.window.filter(|_| self.h.iter().any(|block| block.attn.is_local))
    }

    /// The hidden states of whole sequences, before the last normalisation: `input_ids`,
    /// `position_ids` `[batch, seq]` (none means those of one document a row) -> `[batch * seq,
    /// n_embd]`.
    pub fn forward(
        &self,
        input_ids: Tensor<2, Int>,
        position_ids: Option<Tensor<2, Int>>,
        rows: &Rows,
        pass: Pass<'_>,
    ) -> Tensor<2> {
        pass.begin_stage(0);
        let mut x = Stream::from(self.embed(input_ids, Positions::of(position_ids), pass));
        for (index, block) in self.h.iter().enumerate() {
            pass.begin_stage(1 + index);
            x = block.forward(x, rows, pass);
        }
        pass.begin_stage(1 + self.h.len());
        x.rows()
    }

    /// The hidden states of tokens that continue those of `cache`, which takes up their keys and
    /// values, before the last normalisation: `input_ids [batch, seq]` -> `[batch * seq, n_embd]`.
    pub fn forward_cached(&self, input_ids: Tensor<2, Int>, cache: &mut KvCache, pass: Pass<'_>) -> Tensor<2> {
        let ([batch, seq], device) = (input_ids.dims(), input_ids.device());
        let [hidden, local] = cache.hidden_within(seq, self.window(), &device); // [batch or 1, 1, seq, past + seq]
        let positions = cache.positions(seq, self.wpe.weight.lazy_shape().dims::<2>()[0], &device);
        let positions = positions.map_or(Positions::From(cache.len()), Positions::At);
        let mut x = Stream::from(self.embed(input_ids, positions, pass));
        for (index, block) in self.h.iter().enumerate() {
            let hidden = local.as_ref().filter(|_| block.attn.is_local).or(hidden.as_ref());
            x = block.forward_cached(x, batch, hidden, cache, index, pass);
        }
        cache.advance(seq);
        x.rows()
    }

    /// Every embedding, that of the tokens first.
    pub(crate) fn embeddings(&mut self) -> Vec<&mut Embedding> {
        vec![&mut self.wte, &mut self.wpe]
    }

    /// Shows every linear layer to `each`.
    pub(crate) fn each_linear(&mut self, each: &mut EachLinear<'_>) {
        for Gpt2Block { attn, mlp, .. } in &mut self.h {
            match &mut attn.projections {
                Projections::Packed(PackedProjection { c_attn }) => c_attn.each_linear(each),
                Projections::Separate(SeparateProjections { q_proj, k_proj, v_proj }) => {
                    [q_proj, k_proj, v_proj].into_iter().for_each(|layer| layer.each_linear(each));
                }
            }
            for layer in [&mut attn.c_proj, &mut mlp.c_fc, &mut mlp.c_proj] {
                layer.each_linear(each);
            }
        }
    }

    /// The last normalisation: `[n, n_embd]` -> the same.
    pub fn normalised(&self, x: Tensor<2>, pass: Pass<'_>) -> Tensor<2> {
        self.ln_f.forward(x, pass.ops())
    }

    /// The input of the first block, for ids `[batch, seq]` at `positions`: `[batch * seq,
    /// n_embd]`.
    pub fn embed(&self, input_ids: Tensor<2, Int>, positions: Positions, pass: Pass<'_>) -> Tensor<2> {
        let [batch, seq] = input_ids.dims();
        let tokens = self.wte.tokens(input_ids.reshape([batch * seq]), pass); // [batch * seq, n_embd]
        let tokens = self.noise.added(tokens, seq, pass);
        let x = match positions {
            Positions::From(past) => self.wpe.positions(tokens, batch, past),
            Positions::At(ids) => tokens + self.wpe.forward(ids, pass.ops()),
        };
        dropout(x, self.embd_pdrop, pass.rng, pass.ops())
    }
}

impl Gpt2Block {
    fn new(config: &Gpt2Config, is_local: bool, device: &Device) -> Self {
        let (d, std) = (config.n_embd, config.initializer_range);
        let linear = || Linear::new(d, d, false, std, device);
        let (residual_std, projections) = match config.variant {
            Gpt2Variant::Gpt2 => {
                let c_attn = Conv1D::new(d, 3 * d, std, device);
                (std / (2.0 * config.n_layer as f64).sqrt(), Projections::Packed(PackedProjection { c_attn }))
            }
            Gpt2Variant::GptNeo => {
                let separate = SeparateProjections { q_proj: linear(), k_proj: linear(), v_proj: linear() };
                (std, Projections::Separate(separate))
            }
        };
        let norm = || LayerNorm::new(d, config.layer_norm_epsilon, device);
        Self {
            ln_1: norm(),
            attn: Gpt2Attention {
                projections,
                is_local,
                c_proj: Conv1D::new(d, d, residual_std, device),
                n_head: config.n_head,
                scale: config.scale(),
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

    /// `[batch * seq, n_embd]` -> the same, of whole sequences.
    pub fn forward(&self, x: impl Into<Stream>, rows: &Rows, pass: Pass<'_>) -> Stream {
        let pass = rows.pass(pass, false);
        let (normalised, residual) = self.ln_1.operand(x, pass.ops());
        let x = self.attn.forward(normalised, residual, rows, pass);
        let (normalised, residual) = self.ln_2.operand(x, pass.ops());
        self.mlp.forward(normalised, residual, pass)
    }

    /// The output of this block for tokens that continue those of `cache`;
    /// `hidden [batch or 1, 1, seq, past + seq]` is true where a key is hidden.
    fn forward_cached(
        &self,
        x: Stream,
        batch: usize,
        hidden: Option<&Tensor<4, Bool>>,
        cache: &mut KvCache,
        index: usize,
        pass: Pass<'_>,
    ) -> Stream {
        let (normalised, residual) = self.ln_1.operand(x, pass.ops());
        let attended = self.attn.forward_cached(normalised, batch, hidden, cache, index, pass);
        let x = self.attn.c_proj.onto_residual(attended, residual, self.attn.resid_pdrop, pass);
        let (normalised, residual) = self.ln_2.operand(x, pass.ops());
        self.mlp.forward(normalised, residual, pass)
    }
}

impl Gpt2Attention {
    /// `residual + dropout(c_proj(attention))`, with the attention from `x` to itself, both
    /// `[batch * seq, n_embd]`.
    fn forward(&self, x: Operand<'_>, residual: Residual, rows: &Rows, pass: Pass<'_>) -> Stream {
        let mask = rows.local_mask.as_ref().filter(|_| self.is_local).unwrap_or(&rows.mask);
        let attention = pass.attention(rows.batch, self.n_head, self.scale, self.attn_pdrop);
        let attended = attention.operand(self.projected(x, pass), mask);
        self.c_proj.onto_residual(attended, residual, self.resid_pdrop, pass)
    }

    /// Query, key and value, as attention multiplies them.
    fn projected(&self, x: Operand<'_>, pass: Pass<'_>) -> Qkv {
        match &self.projections {
            Projections::Packed(PackedProjection { c_attn }) => {
                Qkv::Packed(c_attn.forward_for(Reader::Product, x, pass)) // [batch * seq, 3 * n_embd]
            }
            Projections::Separate(SeparateProjections { q_proj, k_proj, v_proj }) => {
                let x = shared(x, &[q_proj, k_proj, v_proj], pass);
                let [query, key, value] =
                    [q_proj, k_proj, v_proj].map(|layer| layer.forward_for(Reader::Product, x.clone(), pass));
                Qkv::Separate { query, key, value } // [batch * seq, n_embd]
            }
        }
    }

    /// The input of `c_proj`, `[batch * seq, n_embd]`.
    fn forward_cached(
        &self,
        x: Operand<'_>,
        batch: usize,
        hidden: Option<&Tensor<4, Bool>>,
        cache: &mut KvCache,
        index: usize,
        pass: Pass<'_>,
    ) -> Tensor<2> {
        let parts = match self.projected(x, pass) {
            Qkv::Packed(qkv) => {
                let d = qkv.dims()[1] / 3;
                [0, 1, 2].map(|i| qkv.clone().slice_dim(1, i * d..(i + 1) * d))
            }
            Qkv::Separate { query, key, value } => [query, key, value],
        };
        let [query, key, value] = parts.map(|part| split_heads(part, batch, self.n_head));
        let (key, value) = cache.append(index, key, value); // [batch, heads, past + seq, head_dim]
        merge_heads(attention(
            query,
            key,
            value,
            hidden.cloned().map(Into::into),
            self.scale,
            self.attn_pdrop,
            pass.rng,
        ))
    }
}

impl Gpt2Mlp {
    /// `residual + dropout(c_proj(activation(c_fc(x))))`: `[n, n_embd]` -> the same.
    fn forward(&self, x: Operand<'_>, residual: Residual, pass: Pass<'_>) -> Stream {
        let inner = self.c_fc.activated(x, self.activation, pass); // [n, n_inner]
        self.c_proj.onto_residual(inner, residual, self.resid_pdrop, pass)
    }
}
