//! What stands on the transformer bodies: language model, masked language model, sequence classification (and
//! regression, which is one label), span. [`Model`] is the body with its head; it gives logits and nothing else, the loss
//! is the trainer's business.

use burn::module::{Module, Param};
use burn::tensor::{Bool, Device, Int, Tensor};

use crate::bert::BertModel;
use crate::compute::Compute;
use crate::config::{BertConfig, Gpt2Config, ModelConfig};
use crate::error::{Error, Result};
use crate::gpt2::{Gpt2Model, KvCache};
use crate::layers::{Activation, LayerNorm, Linear, dropout, uninitialized};
use crate::ops::Ops;
use crate::unread::FirstTokens;
use crate::variant::BertVariant;

/// Which head stands on the body. The names of the classes are Hugging Face's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head {
    /// Next-token logits (`GPT2LMHeadModel`).
    CausalLm,
    /// Logits of every position's own token (`BertForMaskedLM`).
    MaskedLm,
    /// One vector of `num_labels` logits a sequence (`...ForSequenceClassification`); one label is regression.
    SequenceClassification,
    /// A start and an end logit a token (`BertForQuestionAnswering`).
    QuestionAnswering,
}

/// A body with its head. RoBERTa and DistilBERT are BERT's types under variants of their own, which decide the tensor
/// names.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // there is one of these in a process
pub enum Model {
    /// `GPT2LMHeadModel`
    Gpt2Lm(Gpt2LmHeadModel),
    /// `GPT2ForSequenceClassification`
    Gpt2Classification(Gpt2ForSequenceClassification),
    /// `BertForMaskedLM`
    BertMlm(BertForMaskedLm),
    /// `BertForSequenceClassification`
    BertClassification(BertForSequenceClassification),
    /// `BertForQuestionAnswering`
    BertSpan(BertForQuestionAnswering),
    /// `RobertaForMaskedLM`
    RobertaMlm(BertForMaskedLm),
    /// `RobertaForSequenceClassification`
    RobertaClassification(BertForSequenceClassification),
    /// `RobertaForQuestionAnswering`
    RobertaSpan(BertForQuestionAnswering),
    /// `DistilBertForMaskedLM`
    DistilBertMlm(BertForMaskedLm),
    /// `DistilBertForSequenceClassification`
    DistilBertClassification(BertForSequenceClassification),
    /// `DistilBertForQuestionAnswering`
    DistilBertSpan(BertForQuestionAnswering),
}

/// One batch as the model sees it.
#[derive(Debug, Clone)]
pub struct ModelInput {
    /// `[batch, seq]`
    pub input_ids: Tensor<2, Int>,
    /// `[batch, seq]`, true = attend; none when nothing is padded.
    pub attention_mask: Option<Tensor<2, Bool>>,
    /// `[batch, seq]`; none means all 0. GPT-2 has none.
    pub token_type_ids: Option<Tensor<2, Int>>,
    /// `[batch]`: index of the last valid token of each sequence, which GPT-2's classification head reads; none means the
    /// last position.
    pub last_token: Option<Tensor<1, Int>>,
}

/// A body, whichever it is.
pub(crate) enum Body<'a> {
    Gpt2(&'a Gpt2Model),
    Bert(&'a BertModel),
}

/// What a language model's logits are the product of: `logits = x weight^T + bias`, the factors in the type of matrix products.
#[derive(Debug, Clone)]
pub struct VocabularyProjection {
    /// Hidden states, `[batch * seq, width]`.
    pub x: Tensor<2>,
    /// `[vocab_size, width]`
    pub weight: Tensor<2>,
    /// `[vocab_size]`
    pub bias: Option<Tensor<1>>,
}

/// GPT-2 with the language model head, which is the token embedding again.
#[derive(Module, Debug)]
pub struct Gpt2LmHeadModel {
    transformer: Gpt2Model,
}

/// GPT-2 with a linear classifier on the last valid token.
#[derive(Module, Debug)]
pub struct Gpt2ForSequenceClassification {
    transformer: Gpt2Model,
    score: Linear,
}

/// BERT with the masked language model head.
#[derive(Module, Debug)]
pub struct BertForMaskedLm {
    bert: BertModel,
    cls: BertOnlyMlmHead,
}

/// Holds the predictions, as Hugging Face nests them.
#[derive(Module, Debug)]
pub struct BertOnlyMlmHead {
    predictions: BertLmPredictionHead,
}

/// Transform, then the word embedding transposed (tied), then a bias per word.
#[derive(Module, Debug)]
pub struct BertLmPredictionHead {
    transform: BertPredictionHeadTransform,
    bias: Param<Tensor<1>>,
}

/// Dense, activation, LayerNorm.
#[derive(Module, Debug)]
pub struct BertPredictionHeadTransform {
    dense: Linear,
    layer_norm: LayerNorm,
    #[module(skip)]
    activation: Activation,
}

/// BERT with a linear classifier on the pooled first token.
#[derive(Module, Debug)]
pub struct BertForSequenceClassification {
    bert: BertModel,
    classifier: Linear,
    dropout: f64,
}

/// BERT with a start and an end logit for every token.
#[derive(Module, Debug)]
pub struct BertForQuestionAnswering {
    bert: BertModel,
    qa_outputs: Linear,
    dropout: f64,
}

impl Model {
    /// A model with random weights, drawn when they are first used. `head` must be one that the family has.
    pub fn new(config: &ModelConfig, head: Head, device: &Device) -> Result<Self> {
        Ok(match (config, head) {
            (ModelConfig::Gpt2(config), Head::CausalLm) => {
                Self::Gpt2Lm(Gpt2LmHeadModel { transformer: Gpt2Model::new(config, device) })
            }
            (ModelConfig::Gpt2(config), Head::SequenceClassification) => {
                Self::Gpt2Classification(Gpt2ForSequenceClassification::new(config, device))
            }
            (ModelConfig::Bert(config), Head::MaskedLm) => {
                let model = BertForMaskedLm::new(config, device);
                match config.variant {
                    BertVariant::Bert => Self::BertMlm(model),
                    BertVariant::Roberta => Self::RobertaMlm(model),
                    BertVariant::DistilBert => Self::DistilBertMlm(model),
                }
            }
            (ModelConfig::Bert(config), Head::SequenceClassification) => {
                let model = BertForSequenceClassification::new(config, device);
                match config.variant {
                    BertVariant::Bert => Self::BertClassification(model),
                    BertVariant::Roberta => Self::RobertaClassification(model),
                    BertVariant::DistilBert => Self::DistilBertClassification(model),
                }
            }
            (ModelConfig::Bert(config), Head::QuestionAnswering) => {
                let model = BertForQuestionAnswering::new(config, device);
                match config.variant {
                    BertVariant::Bert => Self::BertSpan(model),
                    BertVariant::Roberta => Self::RobertaSpan(model),
                    BertVariant::DistilBert => Self::DistilBertSpan(model),
                }
            }
            (config, head) => return Err(Error::NoSuchHead { kind: config.model_type(), head }),
        })
    }

    /// The logits of a batch:
    /// - language models: `[batch * seq, vocab_size]`
    /// - sequence classification and regression: `[batch, num_labels]`
    /// - span: `[batch * seq, 2]`, start and end
    ///
    /// in f32 whatever the type of matrix products. `train` switches dropout on.
    pub fn forward(&self, input: ModelInput, train: bool) -> Tensor<2> {
        self.head(self.hidden(&input, train), &input, train)
    }

    /// What [`forward`](Self::forward) would multiply to get the logits of a language model, for a loss that never holds
    /// them all ([`CrossEntropy`](crate::ops::cross_entropy::CrossEntropy)); none for the other heads.
    pub fn vocabulary_projection(&self, input: ModelInput, train: bool) -> Option<VocabularyProjection> {
        self.has_vocabulary_projection().then(|| self.head_projection(self.hidden(&input, train))).flatten()
    }

    /// What the last block gives, before the head.
    fn hidden(&self, input: &ModelInput, train: bool) -> Tensor<2> {
        let [batch, _] = input.input_ids.dims();
        let mask = self.mask(input);
        let x = self.embed(input, train);
        (0..self.num_blocks()).fold(x, |x, index| self.block(index, x, batch, &mask, train))
    }

    /// The head on what the last block gave, `x [batch * seq, width]` or `[batch, width]` as [`block`](Self::block) has it: the
    /// logits of [`forward`](Self::forward).
    pub fn head(&self, x: Tensor<2>, input: &ModelInput, train: bool) -> Tensor<2> {
        let [batch, seq] = input.input_ids.dims();
        match self {
            Self::Gpt2Lm(model) => model.logits(model.transformer.normalised(x)),
            Self::Gpt2Classification(model) => {
                let x = model.transformer.normalised(x);
                let d = x.dims()[1];
                let last = match &input.last_token {
                    Some(index) => {
                        let first = Tensor::<1, Int>::arange(0..batch as i64, &index.device()) * seq as i64;
                        x.select(0, first + index.clone())
                    }
                    None => x.reshape([batch, seq, d]).slice([0..batch, seq - 1..seq, 0..d]).reshape([batch, d]),
                };
                model.score.forward(last, model.transformer.compute)
            }
            Self::BertMlm(model) | Self::RobertaMlm(model) | Self::DistilBertMlm(model) => {
                let x = model.cls.predictions.transformed(x, model.bert.compute);
                let words = model.bert.compute.weight(&model.bert.embeddings.word_embeddings.weight);
                model.bert.compute.product(x, words.transpose()) + model.cls.predictions.bias.val().unsqueeze()
            }
            Self::BertClassification(model)
            | Self::RobertaClassification(model)
            | Self::DistilBertClassification(model) => {
                let first = match self.asks_first_tokens() {
                    true => {
                        assert_eq!(
                            x.dims()[0],
                            batch,
                            "rows of the last block, under the mask of this model and input"
                        );
                        x
                    }
                    false => FirstTokens::EVENLY.of(x, batch, self.ops()),
                };
                let pooled = dropout(model.bert.pooled(first, train), model.dropout, train);
                model.classifier.forward(pooled, model.bert.compute)
            }
            Self::BertSpan(model) | Self::RobertaSpan(model) | Self::DistilBertSpan(model) => {
                model.qa_outputs.forward(dropout(x, model.dropout, train), model.bert.compute)
            }
        }
    }

    /// Whether the head reads the first token of each sequence and nothing else.
    pub(crate) fn reads_first_tokens(&self) -> bool {
        matches!(self, Self::BertClassification(_) | Self::RobertaClassification(_) | Self::DistilBertClassification(_))
    }

    fn has_vocabulary_projection(&self) -> bool {
        matches!(self, Self::Gpt2Lm(_) | Self::BertMlm(_) | Self::RobertaMlm(_) | Self::DistilBertMlm(_))
    }

    /// [`vocabulary_projection`](Self::vocabulary_projection) of what the last block gave, `x [batch * seq, width]`.
    pub fn head_projection(&self, x: Tensor<2>) -> Option<VocabularyProjection> {
        let compute = self.compute();
        match self {
            Self::Gpt2Lm(model) => Some(VocabularyProjection {
                x: compute.narrow(model.transformer.normalised(x)),
                weight: compute.weight(&model.transformer.wte.weight),
                bias: None,
            }),
            Self::BertMlm(model) | Self::RobertaMlm(model) | Self::DistilBertMlm(model) => Some(VocabularyProjection {
                x: compute.narrow(model.cls.predictions.transformed(x, compute)),
                weight: compute.weight(&model.bert.embeddings.word_embeddings.weight),
                bias: Some(model.cls.predictions.bias.val()),
            }),
            _ => None,
        }
    }

    /// The body that the head stands on.
    pub(crate) fn body(&self) -> Body<'_> {
        match self {
            Self::Gpt2Lm(model) => Body::Gpt2(&model.transformer),
            Self::Gpt2Classification(model) => Body::Gpt2(&model.transformer),
            Self::BertMlm(model) | Self::RobertaMlm(model) | Self::DistilBertMlm(model) => Body::Bert(&model.bert),
            Self::BertClassification(model)
            | Self::RobertaClassification(model)
            | Self::DistilBertClassification(model) => Body::Bert(&model.bert),
            Self::BertSpan(model) | Self::RobertaSpan(model) | Self::DistilBertSpan(model) => Body::Bert(&model.bert),
        }
    }

    /// How the model computes: plain operators in f32 until [`with_compute`](Self::with_compute)
    /// changes it.
    pub fn compute(&self) -> Compute {
        match self.body() {
            Body::Gpt2(model) => model.compute,
            Body::Bert(model) => model.compute,
        }
    }

    fn compute_mut(&mut self) -> &mut Compute {
        match self {
            Self::Gpt2Lm(model) => &mut model.transformer.compute,
            Self::Gpt2Classification(model) => &mut model.transformer.compute,
            Self::BertMlm(model) | Self::RobertaMlm(model) | Self::DistilBertMlm(model) => &mut model.bert.compute,
            Self::BertClassification(model)
            | Self::RobertaClassification(model)
            | Self::DistilBertClassification(model) => &mut model.bert.compute,
            Self::BertSpan(model) | Self::RobertaSpan(model) | Self::DistilBertSpan(model) => &mut model.bert.compute,
        }
    }

    /// In which form the model computes.
    pub fn ops(&self) -> Ops {
        self.compute().ops()
    }

    /// The same model, computing in the form `ops`, which its device must have (see [`Ops::fused`]).
    #[must_use]
    pub fn with_ops(mut self, ops: Ops) -> Self {
        *self.compute_mut() = Compute::new(ops, self.compute().dtype());
        self
    }

    /// The same model, computing as `compute` says: a form and a type that its device must have. Parameters stay in f32.
    #[must_use]
    pub fn with_compute(mut self, compute: Compute) -> Self {
        *self.compute_mut() = compute;
        self
    }
}

impl Gpt2LmHeadModel {
    /// `[batch, seq] -> [batch * seq, vocab_size]`; with a cache the ids continue the tokens it has seen.
    pub fn forward(
        &self,
        input_ids: Tensor<2, Int>,
        attention_mask: Option<Tensor<2, Bool>>,
        cache: Option<&mut KvCache>,
        train: bool,
    ) -> Tensor<2> {
        self.logits(self.transformer.forward(input_ids, attention_mask, cache, train))
    }

    /// `[n, n_embd]`, normalised -> `[n, vocab_size]`
    fn logits(&self, x: Tensor<2>) -> Tensor<2> {
        let compute = self.transformer.compute;
        compute.product(x, compute.weight(&self.transformer.wte.weight).transpose())
    }
}

impl Gpt2ForSequenceClassification {
    fn new(config: &Gpt2Config, device: &Device) -> Self {
        Self {
            transformer: Gpt2Model::new(config, device),
            score: Linear::new(config.n_embd, config.labels.num_labels(), false, config.initializer_range, device),
        }
    }
}

impl BertForMaskedLm {
    fn new(config: &BertConfig, device: &Device) -> Self {
        let d = config.hidden_size;
        let predictions = BertLmPredictionHead {
            transform: BertPredictionHeadTransform {
                dense: Linear::new(d, d, true, config.initializer_range, device),
                layer_norm: LayerNorm::new(d, config.layer_norm_eps, device),
                activation: match config.variant {
                    BertVariant::Bert | BertVariant::DistilBert => config.activation(),
                    BertVariant::Roberta => Activation::GeluErf, // whatever `hidden_act` is
                },
            },
            bias: uninitialized([config.vocab_size], device, |shape, device| Tensor::zeros(shape, device)),
        };
        Self { bert: BertModel::new(config, false, device), cls: BertOnlyMlmHead { predictions } }
    }
}

impl BertLmPredictionHead {
    /// What the words are compared with: `[n, hidden_size] -> [n, hidden_size]`
    fn transformed(&self, x: Tensor<2>, compute: Compute) -> Tensor<2> {
        let x = self.transform.dense.activated(x, self.transform.activation, compute);
        self.transform.layer_norm.forward(x, compute.ops())
    }
}

impl BertForSequenceClassification {
    fn new(config: &BertConfig, device: &Device) -> Self {
        let labels = config.labels.num_labels();
        Self {
            bert: BertModel::new(config, true, device),
            classifier: Linear::new(config.hidden_size, labels, true, config.initializer_range, device),
            dropout: config.classifier_dropout.unwrap_or(config.hidden_dropout_prob),
        }
    }
}

impl BertForQuestionAnswering {
    fn new(config: &BertConfig, device: &Device) -> Self {
        Self {
            bert: BertModel::new(config, false, device),
            qa_outputs: Linear::new(config.hidden_size, 2, true, config.initializer_range, device),
            dropout: config.qa_dropout,
        }
    }
}
