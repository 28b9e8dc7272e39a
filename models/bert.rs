//! BERT (Devlin et al. 2018), with Hugging Face's names: `transformers/models/bert/modeling_bert.py` is the reference.
//! Learned positions and token types, post-LayerNorm blocks, erf GELU, padding mask. RoBERTa and DistilBERT are variants:
//! what they do otherwise is asked of [`BertVariant`] here. The heads are in `heads.rs`.

use burn::module::Module;
use burn::tensor::activation::relu;
use burn::tensor::{Bool, Device, Int, Tensor};

use crate::compute::Compute;
use crate::config::BertConfig;
use crate::layers::{Activation, Embedding, LayerNorm, Linear};
use crate::ops::Ops;
use crate::ops::attention::{Attention, Mask, Qkv};
use crate::ops::dropout::dropout;
use crate::unread::FirstTokens;
use crate::variant::BertVariant;

/// The transformer body: token ids to hidden states, and the pooled first token where the head wants it.
#[derive(Module, Debug)]
pub struct BertModel {
    /// Word, position and token-type embeddings.
    pub embeddings: BertEmbeddings,
    encoder: BertEncoder,
    pooler: Option<BertPooler>,
    /// How the model computes.
    #[module(skip)]
    pub compute: Compute,
}

/// Sum of word, position and token-type embeddings, normalised.
#[derive(Module, Debug)]
pub struct BertEmbeddings {
    /// `[vocab_size, hidden_size]`; the masked language model head uses it again, transposed.
    pub word_embeddings: Embedding,
    position_embeddings: Embedding,
    token_type_embeddings: Option<Embedding>,
    layer_norm: LayerNorm,
    dropout: f64,
    /// RoBERTa's padding id: its row of the position table is padding's, the tokens' follow. None in the others.
    #[module(skip)]
    position_padding: Option<usize>,
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

/// `tanh(W h_0 + b)` of the first token. In the variants it is the first half of the classification head: RoBERTa's
/// drops out its input too, DistilBERT's has `relu` for `tanh`.
#[derive(Module, Debug)]
pub struct BertPooler {
    dense: Linear,
    dropout: f64,
    #[module(skip)]
    variant: BertVariant,
}

impl BertModel {
    /// Random weights as `transformers` draws them, `N(0, initializer_range)`; with a pooler where the head needs one.
    pub fn new(config: &BertConfig, with_pooler: bool, device: &Device) -> Self {
        let (d, std) = (config.hidden_size, config.initializer_range);
        let norm = || LayerNorm::new(d, config.layer_norm_eps, device);
        let linear = |d_in, d_out| Linear::new(d_in, d_out, true, std, device);
        let output = |d_in, dropout| BertOutput { dense: linear(d_in, d), layer_norm: norm(), dropout };
        let attention_output_dropout = match config.variant {
            BertVariant::Bert | BertVariant::Roberta => config.hidden_dropout_prob,
            BertVariant::DistilBert => 0.0,
        };
        let layer = |_| BertLayer {
            attention: BertAttention {
                self_: BertSelfAttention {
                    query: linear(d, d),
                    key: linear(d, d),
                    value: linear(d, d),
                    num_heads: config.num_attention_heads,
                    dropout: config.attention_probs_dropout_prob,
                },
                output: output(d, attention_output_dropout),
            },
            intermediate: BertIntermediate {
                dense: linear(d, config.intermediate_size),
                activation: config.activation(),
            },
            output: output(config.intermediate_size, config.hidden_dropout_prob),
        };
        let position_padding = config.padding_idx().filter(|_| config.variant == BertVariant::Roberta);
        let table = |rows, padding_idx| Embedding::new(rows, d, padding_idx, std, device);
        Self {
            embeddings: BertEmbeddings {
                word_embeddings: table(config.vocab_size, config.padding_idx()),
                position_embeddings: table(config.max_position_embeddings, position_padding),
                token_type_embeddings: config.variant.has_token_types().then(|| table(config.type_vocab_size, None)),
                layer_norm: norm(),
                dropout: config.hidden_dropout_prob,
                position_padding,
            },
            encoder: BertEncoder { layer: (0..config.num_hidden_layers).map(layer).collect() },
            pooler: with_pooler.then(|| BertPooler {
                dense: linear(d, d),
                dropout: match config.variant {
                    BertVariant::Bert | BertVariant::DistilBert => 0.0,
                    BertVariant::Roberta => config.classifier_dropout.unwrap_or(config.hidden_dropout_prob),
                },
                variant: config.variant,
            }),
            compute: Compute::default(),
        }
    }

    /// - `input_ids`: `[batch, seq]`
    /// - `attention_mask`: `[batch, seq]`, true = attend; none when nothing is padded
    /// - `token_type_ids`: `[batch, seq]`; none means all 0; DistilBERT reads none
    /// - returns `[batch * seq, hidden_size]`
    pub fn forward(
        &self,
        input_ids: Tensor<2, Int>,
        attention_mask: Option<Tensor<2, Bool>>,
        token_type_ids: Option<Tensor<2, Int>>,
        train: bool,
    ) -> Tensor<2> {
        let [batch, seq] = input_ids.dims();
        let mask = self.mask(seq, attention_mask, &input_ids.device());
        let mut x = self.embed(input_ids, token_type_ids, train);
        for index in 0..self.num_blocks() {
            x = self.block(index, x, batch, &mask, train);
        }
        x
    }

    /// How many layers there are.
    pub(crate) fn num_blocks(&self) -> usize {
        self.encoder.layer.len()
    }

    /// What the first layer reads: `[batch * seq, hidden_size]`.
    pub(crate) fn embed(
        &self,
        input_ids: Tensor<2, Int>,
        token_type_ids: Option<Tensor<2, Int>>,
        train: bool,
    ) -> Tensor<2> {
        self.embeddings.forward(input_ids, token_type_ids, train, self.compute.ops())
    }

    /// Which keys the tokens see.
    pub(crate) fn mask(&self, seq: usize, attention_mask: Option<Tensor<2, Bool>>, device: &Device) -> Mask {
        Mask::new(seq, false, attention_mask, device, self.compute.ops())
    }

    /// Layer `index`: `[batch * seq, hidden_size]` -> the same, or `[batch, hidden_size]` of the last layer where the mask asks
    /// for first tokens alone.
    pub(crate) fn block(&self, index: usize, x: Tensor<2>, batch: usize, mask: &Mask, train: bool) -> Tensor<2> {
        let (layer, compute) = (&self.encoder.layer[index], self.compute);
        let asked = mask.asked().filter(|_| index + 1 == self.num_blocks());
        let attended = layer.attention.forward(x, asked, batch, mask, train, compute);
        let inner = layer.intermediate.dense.activated(attended.clone(), layer.intermediate.activation, compute);
        layer.output.forward(inner, attended, train, compute)
    }

    /// The first tokens of the sequences pooled, `[batch, hidden_size]` -> the same; as they are when the model has no pooler.
    pub fn pooled(&self, first: Tensor<2>, train: bool) -> Tensor<2> {
        match &self.pooler {
            Some(pooler) => {
                let first = dropout(first, pooler.dropout, train, self.compute.ops());
                let y = pooler.dense.forward(first, self.compute);
                match pooler.variant {
                    BertVariant::Bert | BertVariant::Roberta => y.tanh(),
                    BertVariant::DistilBert => relu(y),
                }
            }
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
        let words = self.word_embeddings.forward(input_ids.clone().reshape([batch * seq]), ops); // [batch * seq, hidden]
        let x = match (&self.token_type_embeddings, token_type_ids) {
            (Some(table), Some(ids)) => words + table.forward(ids.reshape([batch * seq]), ops),
            (Some(table), None) => {
                let d = words.dims()[1];
                words + table.weight.val().slice([0..1, 0..d])
            }
            (None, _) => words,
        };
        let x = match self.position_padding {
            None => self.position_embeddings.positions(x, batch, 0),
            Some(padding) => {
                let positions = roberta_positions(input_ids, padding).reshape([batch * seq]);
                x + self.position_embeddings.forward(positions, ops)
            }
        };
        dropout(self.layer_norm.forward(x, ops), self.dropout, train, ops)
    }
}

/// `padding + 1 + i` for the `i`-th token of a row that is not padding, `padding` for padding itself
/// (`create_position_ids_from_input_ids`): `[batch, seq] -> [batch, seq]`.
fn roberta_positions(input_ids: Tensor<2, Int>, padding: usize) -> Tensor<2, Int> {
    let is_token = input_ids.not_equal_scalar(padding as i64).int();
    is_token.clone().cumsum(1) * is_token + padding as i64
}

impl BertAttention {
    /// `[batch * seq, hidden_size]` -> the same; `[batch, hidden_size]` where tokens are `asked` for.
    fn forward(
        &self,
        x: Tensor<2>,
        asked: Option<&FirstTokens>,
        batch: usize,
        mask: &Mask,
        train: bool,
        compute: Compute,
    ) -> Tensor<2> {
        let BertSelfAttention { query, key, value, num_heads: heads, dropout } = &self.self_;
        let project = |linear: &Linear, x: &Tensor<2>| compute.narrow(linear.forward(x.clone(), compute));
        let (key, value) = (project(key, &x), project(value, &x));
        let x = match asked {
            Some(first) => first.of(x, batch, compute.ops()),
            None => x,
        };
        let query = project(query, &x);
        let scale = 1.0 / ((query.dims()[1] / heads) as f64).sqrt();
        let attention = Attention { batch, heads: *heads, scale, dropout: *dropout, train };
        let context = attention.forward(Qkv::Separate { query, key, value }, mask);
        self.output.forward(context, x, train, compute)
    }
}

impl BertOutput {
    fn forward(&self, x: Tensor<2>, residual: Tensor<2>, train: bool, compute: Compute) -> Tensor<2> {
        let x = dropout(self.dense.forward(x, compute), self.dropout, train, compute.ops());
        self.layer_norm.forward_sum(x, residual, compute.ops())
    }
}
