//! Llama (Touvron et al. 2023), with Hugging Face's names:
//! `transformers/models/llama/modeling_llama.py` is the reference. Rotary positions, pre-RMSNorm
//! blocks, heads of keys that several heads of queries share, a feed-forward block with a gate.
//! Mistral, Qwen 2 and 3 and SmolLM3 are variants: what they do otherwise is in [`LlamaConfig`]
//! (`modeling_mistral.py` and its like). The heads are in `model.rs`.

use std::f64::consts::PI;

use burn::module::Module;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use kiln_core::model_config::{LlamaConfig, LlamaVariant};

use crate::gpt2::Positions;
use crate::kv_cache::KvCache;
use crate::layers::{EachLinear, Embedding, EmbeddingNoise, Linear, Lora, RmsNorm, shared};
use crate::ops::attention::plain::{attention, merge_heads, split_heads};
use crate::ops::attention::{Qkv, Unseen};
use crate::ops::device::DeviceKernels;
use crate::ops::dropout::Residual;
use crate::ops::embedding::embedding;
use crate::ops::rotary::{Angles, rotary};
use crate::ops::swiglu::swiglu;
use crate::ops::{Operand, Operator, Pass, Reader};
use crate::rows::Rows;

/// The transformer body: token ids to hidden states. Reference: `LlamaModel`.
#[derive(Module, Debug)]
pub struct LlamaModel {
    /// Token embedding `[vocab_size, hidden_size]`; a language model head that is tied uses it
    /// again, transposed.
    pub embed_tokens: Embedding,
    /// The layers.
    pub layers: Vec<LlamaDecoderLayer>,
    /// The last normalisation.
    pub norm: RmsNorm,
    #[module(skip)]
    pub(crate) noise: EmbeddingNoise,
    #[module(skip)]
    positions: RotaryPositions,
    #[module(skip)]
    variant: LlamaVariant,
    /// Tokens that a local layer attends to.
    #[module(skip)]
    window: Option<usize>,
}

/// One layer: attention and feed-forward, each after a normalisation and added to its input.
/// Reference: `LlamaDecoderLayer`.
#[derive(Module, Debug)]
pub struct LlamaDecoderLayer {
    self_attn: LlamaAttention,
    mlp: LlamaMlp,
    input_layernorm: RmsNorm,
    post_attention_layernorm: RmsNorm,
}

/// Causal self-attention. Reference: `LlamaAttention`.
#[derive(Module, Debug)]
pub struct LlamaAttention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    /// Qwen 3's, of each head.
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
    heads: usize,
    kv_heads: usize,
    dropout: f64,
    has_positions: bool,
    is_local: bool,
}

/// The feed-forward block: `down(silu(gate(x)) * up(x))`. Reference: `LlamaMLP`.
#[derive(Module, Debug)]
pub struct LlamaMlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

/// The angles by which positions turn the halves of a head, and the factor of what is turned.
/// Reference: `LlamaRotaryEmbedding`, `modeling_rope_utils.py`.
#[derive(Debug, Clone)]
struct RotaryPositions {
    /// The angle of one position, of each pair of elements, `[head_dim / 2]`.
    frequencies: Vec<f32>,
    /// 1 but for `yarn`.
    factor: f64,
}

impl RotaryPositions {
    fn new(config: &LlamaConfig) -> Self {
        let rope = &config.rope_parameters;
        let dim = config.head_dim();
        // In f32, as PyTorch computes them.
        let powers = (0..dim).step_by(2).map(|i| (rope.rope_theta as f32).powf(i as f32 / dim as f32));
        let powers = powers.collect::<Vec<_>>();
        let plain = || powers.iter().map(|power| 1.0 / power);
        let original = config.original_positions() as f64;
        let factor = rope.factor.unwrap_or(1.0);
        match rope.rope_type.as_str() {
            "linear" => Self { frequencies: plain().map(|it| it / factor as f32).collect(), factor: 1.0 },
            "llama3" => {
                let (low, high) = (rope.low_freq_factor.unwrap_or(1.0), rope.high_freq_factor.unwrap_or(4.0));
                let scaled = |frequency: f32| {
                    let wavelength = 2.0 * PI as f32 / frequency;
                    if wavelength < (original / high) as f32 {
                        frequency
                    } else if wavelength > (original / low) as f32 {
                        frequency / factor as f32
                    } else {
                        let smooth = (original as f32 / wavelength - low as f32) / (high - low) as f32;
                        (1.0 - smooth) * frequency / factor as f32 + smooth * frequency
                    }
                };
                Self { frequencies: plain().map(scaled).collect(), factor: 1.0 }
            }
            "yarn" => {
                let [fast, slow] = [(rope.beta_fast, 32.0), (rope.beta_slow, 1.0)]
                    .map(|(stated, default)| stated.filter(|beta| *beta > 0.0).unwrap_or(default));
                // The dimension whose wavelength turns so often in the original length.
                let dimension =
                    |turns: f64| dim as f64 * (original / (turns * 2.0 * PI)).ln() / (2.0 * rope.rope_theta.ln());
                let (mut first, mut last) = (dimension(fast), dimension(slow));
                if rope.truncate.unwrap_or(true) {
                    (first, last) = (first.floor(), last.ceil());
                }
                let (first, last) = (first.max(0.0), last.min(dim as f64 - 1.0));
                let width = if first == last { 0.001 } else { last - first };
                let scaled = |(i, power): (usize, &f32)| {
                    let ramp = ((i as f32 - first as f32) / width as f32).clamp(0.0, 1.0);
                    let kept = 1.0 - ramp;
                    1.0 / (factor as f32 * power) * (1.0 - kept) + 1.0 / power * kept
                };
                let scale = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
                let by_factor = match (rope.mscale, rope.mscale_all_dim) {
                    (Some(one), Some(all)) if one > 0.0 && all > 0.0 => scale(one) / scale(all),
                    _ => scale(1.0),
                };
                Self {
                    frequencies: powers.iter().enumerate().map(scaled).collect(),
                    factor: rope.attention_factor.unwrap_or(by_factor),
                }
            }
            _ => Self { frequencies: plain().collect(), factor: 1.0 },
        }
    }

    /// The angles of the positions up to `end`, or of the positions that are given, which
    /// are below `end`. The CPU looks the latter up among all; elsewhere nothing is sent to the
    /// device, so that the steps of a GPU can be recorded.
    fn angles(&self, positions: Positions, end: usize, device: &Device, pass: Pass<'_>) -> Angles {
        if !DeviceKernels::on(device).are_on_host {
            let positions = match positions {
                Positions::From(start) => Tensor::arange(start as i64..end as i64, device),
                Positions::At(positions) => positions,
            };
            let one = |frequency: &f32| Tensor::<2>::full([1, 1], *frequency, device);
            let frequencies = Tensor::cat(self.frequencies.iter().map(one).collect(), 1);
            let angles = positions.float().unsqueeze_dim::<2>(1) * frequencies;
            return Angles { cos: angles.clone().cos() * self.factor, sin: angles.sin() * self.factor };
        }
        let start = if let Positions::From(start) = positions { start } else { 0 };
        let angles = (start..end).flat_map(|at| self.frequencies.iter().map(move |it| at as f32 * it));
        let angles = angles.collect::<Vec<_>>();
        let table = |turn: fn(f32) -> f32| {
            let values = angles.iter().map(|angle| turn(*angle) * self.factor as f32).collect::<Vec<_>>();
            Tensor::from_data(TensorData::new(values, [end - start, self.frequencies.len()]), device)
        };
        let [cos, sin] = [table(f32::cos), table(f32::sin)].map(|table: Tensor<2>| match &positions {
            Positions::From(_) => table,
            Positions::At(positions) => embedding(table, positions.clone(), None, pass.ops()),
        });
        Angles { cos, sin }
    }
}

impl LlamaModel {
    /// Random weights as `transformers` draws them: `N(0, initializer_range)`, biases zero.
    pub fn new(config: &LlamaConfig, device: &Device) -> Self {
        let padding = config.padding_row().map(|id| id as usize);
        let layers = config.layers_are_local().into_iter().enumerate();
        Self {
            embed_tokens: Embedding::new(
                config.vocab_size,
                config.hidden_size,
                padding,
                config.initializer_range,
                device,
            ),
            layers: layers.map(|(layer, is_local)| LlamaDecoderLayer::new(config, layer, is_local, device)).collect(),
            norm: RmsNorm::new(config.hidden_size, config.rms_norm_eps, device),
            noise: EmbeddingNoise::default(),
            positions: RotaryPositions::new(config),
            variant: config.variant,
            window: config.window(),
        }
    }

    /// Which model of the family it is.
    pub fn variant(&self) -> LlamaVariant {
        self.variant
    }

    /// The weights of a query that sees no key, in the attention that `transformers` has for the
    /// family by default, PyTorch's `scaled_dot_product_attention`.
    pub(crate) fn unseen(&self) -> Unseen {
        Unseen::Nothing
    }

    /// How many tokens the local layers attend to; none where no layer is local.
    pub(crate) fn window(&self) -> Option<usize> {
        self.window.filter(|_| self.layers.iter().any(|layer| layer.self_attn.is_local))
    }

    /// The angles of the positions of sequences of `seq` tokens; `position_ids [batch, seq]` are
    /// those of tokens in their documents where a row has several.
    pub(crate) fn angles(
        &self,
        seq: usize,
        position_ids: Option<Tensor<2, Int>>,
        device: &Device,
        pass: Pass<'_>,
    ) -> Angles {
        self.positions.angles(Positions::of(position_ids), seq, device, pass)
    }

    /// The hidden states of whole sequences, before the last normalisation: `input_ids [batch,
    /// seq]` -> `[batch * seq, hidden_size]`.
    pub fn forward(&self, input_ids: Tensor<2, Int>, rows: &Rows, pass: Pass<'_>) -> Tensor<2> {
        pass.begin_stage(0);
        let mut x = self.embed(input_ids, pass);
        for (index, layer) in self.layers.iter().enumerate() {
            pass.begin_stage(1 + index);
            x = layer.forward(x, rows, pass);
        }
        pass.begin_stage(1 + self.layers.len());
        x
    }

    /// The hidden states of tokens that continue those of `cache`, which takes up their keys and
    /// values, before the last normalisation: `input_ids [batch, seq]` -> `[batch * seq,
    /// hidden_size]`.
    pub fn forward_cached(&self, input_ids: Tensor<2, Int>, cache: &mut KvCache, pass: Pass<'_>) -> Tensor<2> {
        let ([batch, seq], device) = (input_ids.dims(), input_ids.device());
        let [hidden, local] = cache.hidden_within(seq, self.window(), &device); // [batch or 1, 1, seq, past + seq]
        let end = cache.len() + seq;
        let positions = cache.positions(seq, end, &device).map_or(Positions::From(cache.len()), Positions::At);
        let angles = self.positions.angles(positions, end, &device, pass);
        let mut x = self.embed(input_ids, pass);
        for (index, layer) in self.layers.iter().enumerate() {
            let hidden = local.as_ref().filter(|_| layer.self_attn.is_local).or(hidden.as_ref());
            let (normalised, residual) = layer.input_layernorm.operand(x, pass.ops());
            let attended = layer.self_attn.forward_cached(normalised, batch, &angles, hidden, cache, index, pass);
            x = layer.mlp_onto(layer.self_attn.o_proj.added_to(residual, attended, pass), pass);
        }
        cache.advance(seq);
        x
    }

    /// Shows every linear layer to `each`.
    pub(crate) fn each_linear(&mut self, each: &mut EachLinear<'_>) {
        for LlamaDecoderLayer { self_attn, mlp, .. } in &mut self.layers {
            let LlamaAttention { q_proj, k_proj, v_proj, o_proj, .. } = self_attn;
            let LlamaMlp { gate_proj, up_proj, down_proj } = mlp;
            for layer in [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj] {
                layer.each_linear(each);
            }
        }
    }

    /// The last normalisation: `[n, hidden_size]` -> the same.
    pub fn normalised(&self, x: Tensor<2>, pass: Pass<'_>) -> Tensor<2> {
        self.norm.forward(x, pass.ops())
    }

    /// The input of the first layer, for ids `[batch, seq]`: `[batch * seq, hidden_size]`.
    pub fn embed(&self, input_ids: Tensor<2, Int>, pass: Pass<'_>) -> Tensor<2> {
        let seq = input_ids.dims()[1];
        self.noise.added(self.embed_tokens.tokens(input_ids.flatten(0, 1), pass), seq, pass)
    }
}

impl LlamaDecoderLayer {
    fn new(config: &LlamaConfig, layer: usize, is_local: bool, device: &Device) -> Self {
        let (d, inner, std) = (config.hidden_size, config.intermediate_size, config.initializer_range);
        let (heads, kv_heads, head_dim) = (config.num_attention_heads, config.kv_heads(), config.head_dim());
        let [qkv_bias, o_bias] = config.attention_biases();
        let linear = |d_in, d_out, bias| Linear::new(d_in, d_out, bias, std, device);
        let norm = |width| RmsNorm::new(width, config.rms_norm_eps, device);
        let head_norm = || config.variant.has_head_norms().then(|| norm(head_dim));
        let mlp_bias = config.has_mlp_bias();
        Self {
            self_attn: LlamaAttention {
                q_proj: linear(d, heads * head_dim, qkv_bias),
                k_proj: linear(d, kv_heads * head_dim, qkv_bias),
                v_proj: linear(d, kv_heads * head_dim, qkv_bias),
                o_proj: linear(heads * head_dim, d, o_bias),
                q_norm: head_norm(),
                k_norm: head_norm(),
                heads,
                kv_heads,
                dropout: config.attention_dropout,
                has_positions: config.has_positions(layer),
                is_local,
            },
            mlp: LlamaMlp {
                gate_proj: linear(d, inner, mlp_bias),
                up_proj: linear(d, inner, mlp_bias),
                down_proj: linear(inner, d, mlp_bias),
            },
            input_layernorm: norm(d),
            post_attention_layernorm: norm(d),
        }
    }

    /// `[batch * seq, hidden_size]` -> the same, of whole sequences.
    pub fn forward(&self, x: Tensor<2>, rows: &Rows, pass: Pass<'_>) -> Tensor<2> {
        let pass = rows.pass(pass, false);
        let (normalised, residual) = self.input_layernorm.operand(x, pass.ops());
        let x = self.self_attn.forward(normalised, residual, rows, pass);
        self.mlp_onto(x, pass)
    }

    /// The feed-forward half of the layer.
    fn mlp_onto(&self, x: Tensor<2>, pass: Pass<'_>) -> Tensor<2> {
        let (normalised, residual) = self.post_attention_layernorm.operand(x, pass.ops());
        self.mlp.forward(normalised, residual, pass)
    }
}

impl LlamaAttention {
    /// `residual + o_proj(attention)`, with the attention from `x` to itself, both `[batch * seq,
    /// hidden_size]`.
    fn forward(&self, x: Operand<'_>, residual: Residual, rows: &Rows, pass: Pass<'_>) -> Tensor<2> {
        let mask = rows.local_mask.as_ref().filter(|_| self.is_local).unwrap_or(&rows.mask);
        let angles = rows.angles.as_ref().expect("`Model::rows` gives the rows of a Llama their angles");
        let [query, key, value] = self.projected(x, angles, pass);
        let attention = pass.attention(rows.batch, self.heads, self.scale(&query), self.dropout);
        self.o_proj.added_to(residual, attention.operand(Qkv::Separate { query, key, value }, mask), pass)
    }

    /// The input of `o_proj` for tokens that continue those of `cache`, `[batch * seq, heads *
    /// head_dim]`; `hidden [batch or 1, 1, seq, past + seq]` is true where a key is hidden.
    #[allow(clippy::too_many_arguments)] // of one token's way through the cache
    fn forward_cached(
        &self,
        x: Operand<'_>,
        batch: usize,
        angles: &Angles,
        hidden: Option<&Tensor<4, Bool>>,
        cache: &mut KvCache,
        index: usize,
        pass: Pass<'_>,
    ) -> Tensor<2> {
        let [query, key, value] = self.projected(x, angles, pass);
        let scale = self.scale(&query);
        let query = split_heads(query, batch, self.heads);
        let [key, value] = [key, value].map(|part| split_heads(part, batch, self.kv_heads));
        let (key, value) = cache.append(index, key, value); // [batch, kv_heads, past + seq, head_dim]
        let hidden = hidden.cloned().map(Into::into);
        merge_heads(attention(query, key, value, hidden, scale, self.dropout, pass.rng))
    }

    /// Query, key and value, of which positions turn the first two, as attention multiplies them:
    /// `[batch * seq, heads * head_dim]`, keys and values with fewer heads.
    fn projected(&self, x: Operand<'_>, angles: &Angles, pass: Pass<'_>) -> [Tensor<2>; 3] {
        let Self { q_proj, k_proj, v_proj, .. } = self;
        let x = shared(x, &[q_proj, k_proj, v_proj], pass);
        let placed = |layer: &Linear, norm: Option<&RmsNorm>, heads: usize| {
            let x = match norm {
                Some(norm) => norm.heads_for(Operator::Rotary.into(), layer.forward(x.clone(), pass), heads, pass),
                None => layer.forward_for(Operator::Rotary, x.clone(), pass),
            };
            pass.compute.narrow(match self.has_positions {
                true => rotary(x, angles.cos.clone(), angles.sin.clone(), heads, pass.ops()),
                false => x,
            })
        };
        [
            placed(q_proj, self.q_norm.as_ref(), self.heads),
            placed(k_proj, self.k_norm.as_ref(), self.kv_heads),
            v_proj.forward_for(Reader::Product, x.clone(), pass),
        ]
    }

    /// The factor of the scores of `query [n, heads * head_dim]`.
    fn scale(&self, query: &Tensor<2>) -> f64 {
        ((query.dims()[1] / self.heads) as f64).powf(-0.5)
    }
}

impl LlamaMlp {
    /// `residual + down(silu(gate(x)) * up(x))`: `[n, hidden_size]` -> the same.
    fn forward(&self, x: Operand<'_>, residual: Residual, pass: Pass<'_>) -> Tensor<2> {
        let layers = [&self.gate_proj, &self.up_proj];
        let x = shared(x, &layers, pass);
        // What an adapter gives is f32, and both factors have one type.
        let is_adapted = layers.iter().any(|layer| layer.lora.is_some());
        let reader = if is_adapted { Reader::Wide } else { Operator::Swiglu.into() };
        let [gate, up] = layers.map(|layer| layer.forward_for(reader, x.clone(), pass));
        let inner = if layers.iter().any(|layer| layer.lora.as_ref().is_some_and(Lora::has_magnitude)) {
            swiglu(gate, up, pass.ops()).into()
        } else {
            Operand::swiglu(gate, up, pass.ops())
        };
        self.down_proj.added_to(residual, inner, pass)
    }
}
