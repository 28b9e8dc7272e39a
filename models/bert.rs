//! BERT (Devlin et al. 2018), with Hugging Face's names: `transformers/models/bert/modeling_bert.py` is the reference.
//! Learned positions and token types, post-LayerNorm blocks, erf GELU, padding mask. The heads are in `heads.rs`.

use burn::module::Module;
use burn::tensor::{Bool, Device, Int, Tensor};

use crate::config::BertConfig;
use crate::layers::{Activation, Embedding, LayerNorm, Linear};
use crate::ops::Ops;
use crate::ops::attention::{Attention, Mask, Qkv};
use crate::ops::dropout::dropout;

/// The transformer body: token ids to hidden states, and the pooled first token where the head wants it.
#[derive(Module, Debug)]
pub struct BertModel {
    /// Word, position and token-type embeddings.
    pub embeddings: BertEmbeddings,
    encoder: BertEncoder,
    pooler: Option<BertPooler>,
    /// In which form the model computes.
    #[module(skip)]
    pub ops: Ops,
}

/// Sum of word, position and token-type embeddings, normalised.
#[derive(Module, Debug)]
pub struct BertEmbeddings {
    /// `[vocab_size, hidden_size]`; the masked language model head uses it again, transposed.
    pub word_embeddings: Embedding,
    position_embeddings: Embedding,
    token_type_embeddings: Embedding,
    layer_norm: LayerNorm,
    dropout: f64,
}

/// The stack of layers.
#[derive(Module, Debug)]
pub struct BertEncoder {
    layer: Vec<BertLayer>,
}

/// One layer: attention and feed-forward, each added to its input and then normalised.
#[derive(Module, Debug)]
pub struct BertLayer {
    attention: BertAttention,
    intermediate: BertIntermediate,
    output: BertOutput,
}

/// Self-attention with its output projection.
#[derive(Module, Debug)]
pub struct BertAttention {
    self_: BertSelfAttention,
    output: BertOutput,
}

/// The three input projections of self-attention.
#[derive(Module, Debug)]
pub struct BertSelfAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    num_heads: usize,
    dropout: f64,
}

/// The widening half of the feed-forward block.
#[derive(Module, Debug)]
pub struct BertIntermediate {
    dense: Linear,
    #[module(skip)]
    activation: Activation,
}

/// A projection back to `hidden_size`, added to the residual and normalised.
#[derive(Module, Debug)]
pub struct BertOutput {
    dense: Linear,
    layer_norm: LayerNorm,
    dropout: f64,
}

/// `tanh(W h_0 + b)` of the first token.
#[derive(Module, Debug)]
pub struct BertPooler {
    dense: Linear,
}

impl BertModel {
    /// Random weights as `transformers` draws them, `N(0, initializer_range)`; with a pooler where the head needs one.
    pub fn new(config: &BertConfig, with_pooler: bool, device: &Device) -> Self {
        let (d, std) = (config.hidden_size, config.initializer_range);
        let norm = || LayerNorm::new(d, config.layer_norm_eps, device);
        let linear = |d_in, d_out| Linear::new(d_in, d_out, true, std, device);
        let output =
            |d_in| BertOutput { dense: linear(d_in, d), layer_norm: norm(), dropout: config.hidden_dropout_prob };
        let layer = |_| BertLayer {
            attention: BertAttention {
                self_: BertSelfAttention {
                    query: linear(d, d),
                    key: linear(d, d),
                    value: linear(d, d),
                    num_heads: config.num_attention_heads,
                    dropout: config.attention_probs_dropout_prob,
                },
                output: output(d),
            },
            intermediate: BertIntermediate {
                dense: linear(d, config.intermediate_size),
                activation: config.activation(),
            },
            output: output(config.intermediate_size),
        };
        Self {
            embeddings: BertEmbeddings {
                word_embeddings: Embedding::new(config.vocab_size, d, config.padding_idx(), std, device),
                position_embeddings: Embedding::new(config.max_position_embeddings, d, None, std, device),
                token_type_embeddings: Embedding::new(config.type_vocab_size, d, None, std, device),
                layer_norm: norm(),
                dropout: config.hidden_dropout_prob,
            },
            encoder: BertEncoder { layer: (0..config.num_hidden_layers).map(layer).collect() },
            pooler: with_pooler.then(|| BertPooler { dense: linear(d, d) }),
            ops: Ops::Plain,
        }
    }

    /// - `input_ids`: `[batch, seq]`
    /// - `attention_mask`: `[batch, seq]`, true = attend; none when nothing is padded
    /// - `token_type_ids`: `[batch, seq]`; none means all 0
    /// - returns `[batch * seq, hidden_size]`
    pub fn forward(
        &self,
        input_ids: Tensor<2, Int>,
        attention_mask: Option<Tensor<2, Bool>>,
        token_type_ids: Option<Tensor<2, Int>>,
        train: bool,
    ) -> Tensor<2> {
        let ([batch, seq], ops) = (input_ids.dims(), self.ops);
        let mask = Mask::new(seq, false, attention_mask, &input_ids.device(), ops);
        let mut x = self.embeddings.forward(input_ids, token_type_ids, train, ops);
        for layer in &self.encoder.layer {
            let attended = layer.attention.forward(x, batch, &mask, train, ops);
            let inner = layer.intermediate.dense.activated(attended.clone(), layer.intermediate.activation, ops);
            x = layer.output.forward(inner, attended, train, ops);
        }
        x
    }

    /// The pooled first token of each sequence, `[batch * seq, hidden_size] -> [batch, hidden_size]`; the first token
    /// as it is when the model has no pooler.
    pub fn pooled(&self, x: Tensor<2>, batch: usize) -> Tensor<2> {
        let [rows, d] = x.dims();
        let first = x.reshape([batch, rows / batch, d]).slice([0..batch, 0..1, 0..d]).reshape([batch, d]);
        match &self.pooler {
            Some(pooler) => pooler.dense.forward(first, self.ops).tanh(),
            None => first,
        }
    }
}

impl BertEmbeddings {
    fn forward(
        &self,
        input_ids: Tensor<2, Int>,
        token_type_ids: Option<Tensor<2, Int>>,
        train: bool,
        ops: Ops,
    ) -> Tensor<2> {
        let [batch, seq] = input_ids.dims();
        let words = self.word_embeddings.forward(input_ids.reshape([batch * seq]), ops); // [batch * seq, hidden]
        let types = match token_type_ids {
            Some(ids) => self.token_type_embeddings.forward(ids.reshape([batch * seq]), ops),
            None => {
                let d = words.dims()[1];
                self.token_type_embeddings.weight.val().slice([0..1, 0..d])
            }
        };
        let x = self.position_embeddings.positions(words + types, batch, 0);
        dropout(self.layer_norm.forward(x, ops), self.dropout, train, ops)
    }
}

impl BertAttention {
    fn forward(&self, x: Tensor<2>, batch: usize, mask: &Mask, train: bool, ops: Ops) -> Tensor<2> {
        let BertSelfAttention { query, key, value, num_heads: heads, dropout } = &self.self_;
        let project = |linear: &Linear| linear.forward(x.clone(), ops); // [batch * seq, hidden]
        let (query, key, value) = (project(query), project(key), project(value));
        let scale = 1.0 / ((query.dims()[1] / heads) as f64).sqrt();
        let attention = Attention { batch, heads: *heads, scale, dropout: *dropout, train };
        let context = attention.forward(Qkv::Separate { query, key, value }, mask);
        self.output.forward(context, x, train, ops)
    }
}

impl BertOutput {
    fn forward(&self, x: Tensor<2>, residual: Tensor<2>, train: bool, ops: Ops) -> Tensor<2> {
        let x = dropout(self.dense.forward(x, ops), self.dropout, train, ops);
        self.layer_norm.forward_sum(x, residual, ops)
    }
}
