//! BERT (Devlin et al. 2018), with Hugging Face's names:
//! `transformers/models/bert/modeling_bert.py` is the reference. Learned positions and token types,
//! post-LayerNorm blocks, erf GELU, padding mask. RoBERTa, DistilBERT, ELECTRA and ALBERT are
//! variants: what they do otherwise is asked of [`BertVariant`] here. The heads are in `model.rs`.

use burn::module::Module;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor};
use kiln_core::model_config::{Activation, BertConfig, BertVariant};

use crate::layers::{EachLinear, Embedding, EmbeddingNoise, LayerNorm, Linear, branch, shared};
use crate::ops::attention::Qkv;
use crate::ops::dropout::{Residual, dropout};
use crate::ops::{Operand, Pass, PostNorm, Reader};
use crate::rows::{FirstTokens, Rows};

/// The transformer body: token ids to hidden states, and the pooled first token where the head
/// wants it. Reference: `BertModel`.
#[derive(Module, Debug)]
pub struct BertModel {
    /// Word, position and token-type embeddings.
    pub embeddings: BertEmbeddings,
    /// To `hidden_size`, where the embeddings have another width. Reference:
    /// `ElectraModel.embeddings_project`, `AlbertTransformer.embedding_hidden_mapping_in`.
    embeddings_project: Option<Linear>,
    encoder: BertEncoder,
    pooler: Option<BertPooler>,
    #[module(skip)]
    variant: BertVariant,
}

/// Sum of word, position and token-type embeddings, normalised. Reference: `BertEmbeddings`.
#[derive(Module, Debug)]
pub struct BertEmbeddings {
    /// `[vocab_size, embedding_size]`; the masked language model head uses it again, transposed.
    pub word_embeddings: Embedding,
    position_embeddings: Embedding,
    token_type_embeddings: Option<Embedding>,
    layer_norm: LayerNorm,
    dropout: f64,
    #[module(skip)]
    pub(crate) noise: EmbeddingNoise,
    /// RoBERTa's padding id: its row of the position table is padding's, the tokens' follow. None
    /// in the others.
    #[module(skip)]
    position_padding: Option<usize>,
}

/// The stack of layers. Reference: `BertEncoder`, and `AlbertTransformer`, which passes through its
/// one layer many times.
#[derive(Module, Debug)]
pub struct BertEncoder {
    layer: Vec<BertLayer>,
    num_layers: usize,
}

/// One layer: attention and feed-forward, each added to its input and then normalised. Reference:
/// `BertLayer`.
#[derive(Module, Debug)]
pub struct BertLayer {
    attention: BertAttention,
    intermediate: BertIntermediate,
    output: BertOutput,
}

/// Self-attention with its output projection. Reference: `BertAttention`.
#[derive(Module, Debug)]
pub struct BertAttention {
    self_: BertSelfAttention,
    output: BertOutput,
}

/// The three input projections of self-attention. Reference: `BertSelfAttention`.
#[derive(Module, Debug)]
pub struct BertSelfAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    num_heads: usize,
    dropout: f64,
}

/// The widening half of the feed-forward block. Reference: `BertIntermediate`.
#[derive(Module, Debug)]
pub struct BertIntermediate {
    dense: Linear,
    #[module(skip)]
    activation: Activation,
}

/// A projection back to `hidden_size`, added to the residual and normalised. Reference:
/// `BertSelfOutput` and `BertOutput`.
#[derive(Module, Debug)]
pub struct BertOutput {
    dense: Linear,
    layer_norm: LayerNorm,
    dropout: f64,
}

/// `tanh(W h_0 + b)` of the first token. In the variants it is the first half of the classification
/// head: RoBERTa's drops out its input too (not for multiple choice), DistilBERT's has `relu` for
/// `tanh`, and ELECTRA's does both, with `gelu`. Reference: `BertPooler`,
/// `RobertaClassificationHead.dense`, `DistilBertForSequenceClassification.pre_classifier`,
/// `ElectraClassificationHead.dense` and `ElectraSequenceSummary`.
#[derive(Module, Debug)]
pub struct BertPooler {
    dense: Linear,
    dropout: f64,
    #[module(skip)]
    variant: BertVariant,
}

impl BertModel {
    /// Which model of the family it is.
    pub fn variant(&self) -> BertVariant {
        self.variant
    }

    /// Random weights as `transformers` draws them, `N(0, initializer_range)`; with a pooler where
    /// the head needs one, which drops out its input with the probability `pooler`.
    pub fn new(config: &BertConfig, pooler: Option<f64>, device: &Device) -> Self {
        let (d, std, variant) = (config.hidden_size, config.initializer_range, config.variant);
        let embedding_size = config.embedding_size();
        let norm = |width| LayerNorm::new(width, config.layer_norm_eps, device);
        let linear = |d_in, d_out| Linear::new(d_in, d_out, true, std, device);
        let output = |d_in, dropout| BertOutput { dense: linear(d_in, d), layer_norm: norm(d), dropout };
        let dropout_unless = |none: BertVariant| if variant == none { 0.0 } else { config.hidden_dropout_prob };
        let layer = |_| BertLayer {
            attention: BertAttention {
                self_: BertSelfAttention {
                    query: linear(d, d),
                    key: linear(d, d),
                    value: linear(d, d),
                    num_heads: config.num_attention_heads,
                    dropout: config.attention_probs_dropout_prob,
                },
                output: output(d, dropout_unless(BertVariant::DistilBert)),
            },
            intermediate: BertIntermediate {
                dense: linear(d, config.intermediate_size),
                activation: config.activation(),
            },
            output: output(config.intermediate_size, dropout_unless(BertVariant::Albert)),
        };
        let position_padding = config.padding_idx().filter(|_| variant.counts_from_padding());
        let table = |rows, padding_idx| Embedding::new(rows, embedding_size, padding_idx, std, device);
        let projects = embedding_size != d || variant == BertVariant::Albert;
        let num_layers = config.num_hidden_layers;
        Self {
            embeddings: BertEmbeddings {
                word_embeddings: table(config.vocab_size, config.padding_idx()),
                position_embeddings: table(config.max_position_embeddings, position_padding),
                token_type_embeddings: variant.has_token_types().then(|| table(config.type_vocab_size, None)),
                layer_norm: norm(embedding_size),
                dropout: config.hidden_dropout_prob,
                noise: EmbeddingNoise::default(),
                position_padding,
            },
            embeddings_project: projects.then(|| linear(embedding_size, d)),
            encoder: BertEncoder {
                layer: (0..if variant.shares_layers() { 1 } else { num_layers }).map(layer).collect(),
                num_layers,
            },
            pooler: pooler.map(|dropout| BertPooler { dense: linear(d, d), dropout, variant }),
            variant,
        }
    }

    /// The hidden states: `input_ids`, `token_type_ids` `[batch, seq]` (none means all 0;
    /// DistilBERT reads none) -> one row for each that `rows` has the last layer compute, `[batch *
    /// seq, hidden_size]` where that is all of them.
    pub fn forward(
        &self,
        input_ids: Tensor<2, Int>,
        token_type_ids: Option<Tensor<2, Int>>,
        rows: &Rows,
        pass: Pass<'_>,
    ) -> Tensor<2> {
        pass.begin_stage(0);
        let mut x = self.embed(input_ids, token_type_ids, rows, pass).into();
        for index in 0..self.num_layers() {
            pass.begin_stage(1 + index);
            x = self.layer(index, x, rows, pass);
        }
        pass.begin_stage(1 + self.num_layers());
        x.rows()
    }

    /// How many layers there are.
    pub fn num_layers(&self) -> usize {
        self.encoder.num_layers
    }

    /// Every embedding, that of the words first.
    pub(crate) fn embeddings(&mut self) -> Vec<&mut Embedding> {
        let BertEmbeddings { word_embeddings, position_embeddings, token_type_embeddings, .. } = &mut self.embeddings;
        [word_embeddings, position_embeddings].into_iter().chain(token_type_embeddings).collect()
    }

    /// Shows every linear layer to `each`.
    pub(crate) fn each_linear(&mut self, each: &mut EachLinear<'_>) {
        if let Some(project) = &mut self.embeddings_project {
            project.each_linear(each);
        }
        for BertLayer { attention: BertAttention { self_, output: projection }, intermediate, output } in
            &mut self.encoder.layer
        {
            let BertSelfAttention { query, key, value, .. } = self_;
            for layer in [query, key, value, &mut projection.dense, &mut intermediate.dense, &mut output.dense] {
                layer.each_linear(each);
            }
        }
        if let Some(pooler) = &mut self.pooler {
            pooler.dense.each_linear(each);
        }
    }

    /// The input of the first layer: `[batch, seq]` ids -> the computed `rows`, `[rows,
    /// hidden_size]`.
    pub fn embed(
        &self,
        input_ids: Tensor<2, Int>,
        token_type_ids: Option<Tensor<2, Int>>,
        rows: &Rows,
        pass: Pass<'_>,
    ) -> Tensor<2> {
        let x = rows.of(self.embeddings.forward(input_ids, token_type_ids, pass), pass.ops()); // [rows, embedding_size]
        match &self.embeddings_project {
            Some(project) => project.forward(x, rows.pass(pass, false)),
            None => x,
        }
    }

    /// Layer `index`: `[rows, hidden_size]` -> the same; the last layer gives the rows that `rows`
    /// wants of it.
    pub fn layer(&self, index: usize, x: impl Into<PostNorm>, rows: &Rows, pass: Pass<'_>) -> PostNorm {
        let is_last = index + 1 == self.num_layers();
        let only = rows.last_layer.as_ref().filter(|_| is_last);
        let pass = rows.pass(pass, is_last);
        let BertEncoder { layer, num_layers } = &self.encoder;
        layer[if layer.len() == *num_layers { index } else { 0 }].forward(x.into(), rows, only, pass)
    }

    /// The first tokens of the sequences pooled, `[batch, hidden_size]` -> the same; as they are
    /// when the model has no pooler.
    pub fn pooled(&self, first: Tensor<2>, pass: Pass<'_>) -> Tensor<2> {
        match &self.pooler {
            Some(pooler) => {
                let first = dropout(first, pooler.dropout, pass.rng, pass.ops());
                match pooler.variant {
                    BertVariant::Electra => pooler.dense.activated(first, Activation::GeluErf, pass).wide(),
                    BertVariant::DistilBert => relu(pooler.dense.forward(first, pass)),
                    _ => pooler.dense.forward(first, pass).tanh(),
                }
            }
            None => first,
        }
    }
}

impl BertEmbeddings {
    fn forward(&self, input_ids: Tensor<2, Int>, token_type_ids: Option<Tensor<2, Int>>, pass: Pass<'_>) -> Tensor<2> {
        let ([batch, seq], ops) = (input_ids.dims(), pass.ops());
        let words = self.word_embeddings.tokens(input_ids.clone().reshape([batch * seq]), pass); // [batch * seq, width]
        let words = self.noise.added(words, seq, pass);
        let x = match (&self.token_type_embeddings, token_type_ids) {
            (Some(table), Some(ids)) => words + table.forward(ids.reshape([batch * seq]), ops),
            (Some(table), None) => words + table.rows(0, 1),
            (None, _) => words,
        };
        let x = match self.position_padding {
            None => self.position_embeddings.positions(x, batch, 0),
            Some(padding) => {
                let positions = roberta_positions(input_ids, padding).reshape([batch * seq]);
                x + self.position_embeddings.forward(positions, ops)
            }
        };
        dropout(self.layer_norm.forward(x, ops), self.dropout, pass.rng, ops)
    }
}

/// `padding + 1 + i` for the `i`-th token of a row that is not padding, `padding` for padding
/// itself (`create_position_ids_from_input_ids`): `[batch, seq] -> [batch, seq]`.
fn roberta_positions(input_ids: Tensor<2, Int>, padding: usize) -> Tensor<2, Int> {
    let is_token = input_ids.not_equal_scalar(padding as i64).int();
    is_token.clone().cumsum(1) * is_token + padding as i64
}

impl BertLayer {
    /// `[rows, hidden_size]` -> the same, or `[batch, hidden_size]` where it computes `only` the
    /// first tokens.
    fn forward(&self, x: PostNorm, rows: &Rows, only: Option<&FirstTokens>, pass: Pass<'_>) -> PostNorm {
        let attended = self.attention.forward(x, rows, only, pass);
        let BertIntermediate { dense, activation } = &self.intermediate;
        let (attended, residual) = branch(attended, &[dense], pass);
        let inner = dense.activated(attended, *activation, pass); // [n, intermediate_size]
        self.output.forward(inner, residual, pass)
    }
}

impl BertAttention {
    /// `[rows, hidden_size]` -> the same, or `[batch, hidden_size]` where it computes `only` the
    /// first tokens.
    fn forward(&self, x: PostNorm, rows: &Rows, only: Option<&FirstTokens>, pass: Pass<'_>) -> PostNorm {
        let BertSelfAttention { query, key, value, num_heads: heads, dropout } = &self.self_;
        let layers = [query, key, value];
        let (read, residual) = match only {
            Some(_) => PostNorm::from(x.rows()).branch(pass.compute), // the first tokens are read as well
            None => branch(x, &layers, pass),
        };
        let read = shared(read, &layers, pass);
        let of_keys = rows.pass(pass, false);
        let [key, value] = [key, value].map(|layer| layer.forward_for(Reader::Product, read.clone(), of_keys));
        let (query, residual) = match only {
            Some(first) => {
                let x = first.of(residual.rows(), rows.batch, pass.ops());
                (query.forward_for(Reader::Product, x.clone(), pass), x.into())
            }
            None => (query.forward_for(Reader::Product, read, pass), residual),
        };
        let scale = 1.0 / ((query.dims()[1] / heads) as f64).sqrt();
        let attention = pass.attention(rows.batch, *heads, scale, *dropout);
        let context = attention.operand(Qkv::Separate { query, key, value }, &rows.mask);
        self.output.forward(context, residual, pass)
    }
}

impl BertOutput {
    /// `layer_norm(dropout(x W + b) + residual)`: `[n, in]`, `[n, hidden_size]` -> `[n,
    /// hidden_size]`.
    fn forward(&self, x: Operand<'_>, residual: Residual, pass: Pass<'_>) -> PostNorm {
        // The kernel that adds bias and residual reads what a narrow product gives.
        if pass.compute.adds_narrow(&residual.device()) {
            let sum = self.dense.onto_residual(x, residual, self.dropout, pass);
            return self.layer_norm.after(sum, pass.ops());
        }
        let x = dropout(self.dense.forward(x, pass), self.dropout, pass.rng, pass.ops());
        self.layer_norm.forward_sum(x, residual.rows(), pass.ops()).into()
    }
}
