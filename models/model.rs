//! A model: a transformer body with the head of a task on it (language model, masked language
//! model, sequence classification, regression, which is a classification with one label, span,
//! token classification and multiple choice). [`Model::forward`] gives logits and nothing else; the
//! loss belongs to the trainer.

use std::collections::{BTreeSet, HashMap};

use burn::module::{Module, Param};
use burn::tensor::{Bool, Device, Distribution, Int, Shape, Tensor};
use kiln_core::model_config::{
    Activation, BertConfig, BertVariant, ELECTRA_SUMMARY_DROPOUT, Gpt2Variant, Head, LlamaConfig, ModelConfig,
};

use crate::bert::BertModel;
use crate::error::{Error, Result};
use crate::gpt2::{Gpt2Model, Positions};
use crate::kv_cache::KvCache;
use crate::layers::{
    EachLinear, Embedding, EmbeddingLora, EmbeddingNoise, LayerNorm, Linear, LinearParts, Lora, uninitialized,
};
use crate::llama::LlamaModel;
use crate::lora::LoraConfig;
use crate::ops::attention::Mask;
use crate::ops::dropout::dropout;
use crate::ops::products::Operands;
use crate::ops::{Compute, Form, Operator, Ops, Pass};
use crate::rows::{FirstTokens, Rows};
use crate::weights::{ADAPTER_FILE, MODEL_FILE, StateDict, TRANSPOSED, parameters};

/// A body with its head.
#[derive(Module, Debug)]
pub struct Model {
    body: Body,
    head: HeadLayers,
    #[module(skip)]
    compute: Compute,
    #[module(skip)]
    lora: Option<LoraConfig>,
    /// Whether files of the whole model may leave out the output of a language model, which is then
    /// the embedding.
    #[module(skip)]
    is_tied: bool,
}

/// The transformer body, whose type knows its variant.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // there is one of these in a process
pub enum Body {
    /// GPT-2
    Gpt2(Gpt2Model),
    /// BERT and its variants
    Bert(BertModel),
    /// Llama and its variants
    Llama(LlamaModel),
}

/// The layers of a head. The fields carry Hugging Face's names.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // there is one of these in a process
enum HeadLayers {
    /// `GPT2LMHeadModel`, `LlamaForCausalLM`
    CausalLm(CausalLmHead),
    /// `GPT2ForSequenceClassification`, `LlamaForSequenceClassification`
    LastToken(LastTokenHead),
    /// `LlamaForTokenClassification`
    LlamaTokens(LlamaTokensHead),
    /// `BertForMaskedLM`
    BertMlm(BertMlmHead),
    /// `BertForSequenceClassification`
    BertClassification(BertClassificationHead),
    /// `BertForQuestionAnswering`
    BertSpan(BertSpanHead),
    /// `BertForTokenClassification`
    BertTokens(BertClassificationHead),
    /// `BertForMultipleChoice`
    BertChoice(BertClassificationHead),
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
    /// `[batch, seq]`, for a causal language model on rows of several documents: the position of
    /// each token in its document. A document begins at position 0 and attends to itself alone,
    /// padding behind it too, which `attention_mask` then need not hide. None means that a row is
    /// one document. Rows that are padded on the left have them too, one document each: with them,
    /// a query that sees no key computes what it computes in `transformers`.
    pub position_ids: Option<Tensor<2, Int>>,
}

/// The factors of a language model's logits, `logits = x weight^T + bias`, in the type of matrix
/// products, or in f32 where these round their operands themselves.
#[derive(Debug, Clone)]
pub struct VocabularyProjection {
    /// Hidden states, `[batch * seq, width]`.
    pub x: Tensor<2>,
    /// `[vocab_size, width]`, where ELECTRA's and ALBERT's width is that of the embeddings.
    pub weight: Tensor<2>,
    /// `[vocab_size]`
    pub bias: Option<Tensor<1>>,
    /// How fused products take them; the transpose of `weight` is the right factor.
    pub operands: Operands,
    /// Whether `weight` is the table that the tokens are looked up in.
    pub is_tied: bool,
}

/// The head of a causal language model. Reference: `GPT2LMHeadModel.lm_head`,
/// `LlamaForCausalLM.lm_head`.
#[derive(Module, Debug)]
struct CausalLmHead {
    lm_head: OutputEmbedding,
}

/// The output of a language model. Reference: `get_output_embeddings`.
#[derive(Module, Debug)]
struct OutputEmbedding {
    /// `[vocab_size, width]`; none where it is the weight of the embedding.
    weight: Option<Param<Tensor<2>>>,
    /// The adapter that learns beside a frozen weight, if there is one.
    lora: Option<Lora>,
}

/// A linear classifier on the rightmost token that is not padding by its id. Reference:
/// `GPT2ForSequenceClassification`, `GenericForSequenceClassification`.
#[derive(Module, Debug)]
struct LastTokenHead {
    score: Linear,
    #[module(skip)]
    pad_token_id: Option<u32>,
}

/// A linear classifier on every token of a Llama. Reference: `GenericForTokenClassification`.
#[derive(Module, Debug)]
struct LlamaTokensHead {
    score: Linear,
    dropout: f64,
}

/// The head of a masked language model. Reference: `BertForMaskedLM.cls`.
#[derive(Module, Debug)]
struct BertMlmHead {
    cls: BertOnlyMlmHead,
}

/// The level `predictions` of the tensor names. Reference: `BertOnlyMLMHead`.
#[derive(Module, Debug)]
struct BertOnlyMlmHead {
    predictions: BertLmPredictionHead,
}

/// Transform, then the word embedding transposed or a weight of its own, then a bias per word.
/// Reference: `BertLMPredictionHead`.
#[derive(Module, Debug)]
struct BertLmPredictionHead {
    transform: BertPredictionHeadTransform,
    decoder: OutputEmbedding,
    bias: Param<Tensor<1>>,
}

/// Dense, activation, LayerNorm. Reference: `BertPredictionHeadTransform`.
#[derive(Module, Debug)]
struct BertPredictionHeadTransform {
    dense: Linear,
    layer_norm: LayerNorm,
    #[module(skip)]
    activation: Activation,
}

/// A linear classifier: on the pooled first token, or on every token. Reference: `classifier` of
/// `BertForSequenceClassification`, `BertForTokenClassification` and `BertForMultipleChoice`.
#[derive(Module, Debug)]
struct BertClassificationHead {
    classifier: Linear,
    dropout: f64,
}

/// A start and an end logit for every token. Reference: `BertForQuestionAnswering.qa_outputs`.
#[derive(Module, Debug)]
struct BertSpanHead {
    qa_outputs: Linear,
    dropout: f64,
}

impl Model {
    /// A model with random weights, drawn when they are first used.
    ///
    /// # Errors
    /// A head that the family does not have.
    pub fn new(config: &ModelConfig, head: Head, device: &Device) -> Result<Self> {
        if matches!(head, Head::SequenceClassification | Head::TokenClassification) {
            config.labels().check()?;
        }
        let is_tied = config.ties_word_embeddings();
        let (body, head) = match (config, head) {
            (ModelConfig::Gpt2(config), Head::CausalLm) => {
                let shape = [config.vocab_size, config.n_embd];
                let head = CausalLmHead::new(is_tied, shape, config.initializer_range, device);
                (Body::Gpt2(Gpt2Model::new(config, device)), HeadLayers::CausalLm(head))
            }
            (ModelConfig::Gpt2(config), Head::SequenceClassification) => {
                let body = Body::Gpt2(Gpt2Model::new(config, device));
                let sizes = [config.n_embd, config.labels.num_labels()];
                let head = LastTokenHead::new(sizes, config.initializer_range, config.pad_token_id, device);
                (body, HeadLayers::LastToken(head))
            }
            (ModelConfig::Llama(config), Head::CausalLm) => {
                let shape = [config.vocab_size, config.hidden_size];
                let head = CausalLmHead::new(is_tied, shape, config.initializer_range, device);
                (Body::Llama(LlamaModel::new(config, device)), HeadLayers::CausalLm(head))
            }
            (ModelConfig::Llama(config), Head::SequenceClassification) => {
                let body = Body::Llama(LlamaModel::new(config, device));
                let sizes = [config.hidden_size, config.labels.num_labels()];
                let head = LastTokenHead::new(sizes, config.initializer_range, config.pad_token_id, device);
                (body, HeadLayers::LastToken(head))
            }
            (ModelConfig::Llama(config), Head::TokenClassification) => {
                let body = Body::Llama(LlamaModel::new(config, device));
                (body, HeadLayers::LlamaTokens(LlamaTokensHead::new(config, device)))
            }
            (ModelConfig::Bert(config), Head::MaskedLm) => {
                let body = Body::Bert(BertModel::new(config, None, device));
                (body, HeadLayers::BertMlm(BertMlmHead::new(config, device)))
            }
            (ModelConfig::Bert(config), Head::SequenceClassification) => {
                let dropout = config.classifier_dropout.unwrap_or(config.hidden_dropout_prob);
                let of_pooler = if config.variant.has_layer_in_head() { dropout } else { 0.0 };
                let body = Body::Bert(BertModel::new(config, Some(of_pooler), device));
                let labels = config.labels.num_labels();
                (body, HeadLayers::BertClassification(BertClassificationHead::new(config, labels, dropout, device)))
            }
            (ModelConfig::Bert(config), Head::TokenClassification) => {
                let dropout = config.classifier_dropout.filter(|_| config.variant != BertVariant::DistilBert);
                let dropout = dropout.unwrap_or(config.hidden_dropout_prob);
                let body = Body::Bert(BertModel::new(config, None, device));
                let labels = config.labels.num_labels();
                (body, HeadLayers::BertTokens(BertClassificationHead::new(config, labels, dropout, device)))
            }
            (ModelConfig::Bert(config), Head::MultipleChoice) => {
                let dropout = match config.variant {
                    BertVariant::Electra => Some(ELECTRA_SUMMARY_DROPOUT),
                    variant => config.classifier_dropout.filter(|_| !variant.counts_from_padding()),
                };
                let dropout = dropout.unwrap_or(config.hidden_dropout_prob);
                let body = Body::Bert(BertModel::new(config, Some(0.0), device));
                (body, HeadLayers::BertChoice(BertClassificationHead::new(config, 1, dropout, device)))
            }
            (ModelConfig::Bert(config), Head::QuestionAnswering) => {
                let body = Body::Bert(BertModel::new(config, None, device));
                (body, HeadLayers::BertSpan(BertSpanHead::new(config, device)))
            }
            (config, head) => {
                let kind = config.model_type();
                let (model_type, tasks) = (kind.name(), kind.tasks());
                return Err(Error::NoSuchHead { model_type, task: head.task(), tasks });
            }
        };
        Ok(Self { body, head, compute: Compute::default(), lora: None, is_tied })
    }

    /// `config` for this model: where it asks for all linear layers, with their names.
    pub fn settled(&self, config: LoraConfig) -> LoraConfig {
        let all = parameters(self);
        config.settled(&all.iter().map(|parameter| (parameter.name.as_str(), parameter.in_linear)).collect::<Vec<_>>())
    }

    /// The names of the layers that get an adapter by `config`.
    ///
    /// # Errors
    /// The errors of [`with_lora`](Self::with_lora).
    pub fn lora_targets(&self, config: &LoraConfig) -> Result<BTreeSet<String>> {
        config.check()?;
        let all = parameters(self);
        let named = all.iter().map(|parameter| (parameter.name.as_str(), parameter.in_linear)).collect::<Vec<_>>();
        config.targets(&named, self.output_module().as_deref())
    }

    /// This model with new adapters beside its layers, as `config` says. Only what learns is saved
    /// of it: the adapters, and the modules and rows of the embedding that `config` names beside
    /// them. A language model whose embedding or output is among these modules has an output of its
    /// own from then on, as `peft` copies the module that it saves and leaves the other one.
    ///
    /// # Errors
    /// A target or a module to save that the model does not have, and what
    /// [`check`](LoraConfig::check) finds.
    pub fn with_lora(mut self, config: &LoraConfig) -> Result<Self> {
        if self.tied_pair().is_some_and(|pair| pair.iter().any(|module| config.saves_module(module))) {
            self.untie(|shape, device| Tensor::zeros(shape, device)); // a file has its values
        }
        let targets = self.lora_targets(config)?;
        let module = |parameter: &crate::weights::Parameter| {
            let module = parameter.name.strip_suffix(".weight").filter(|module| targets.contains(*module))?;
            Some((parameter.id, module.to_owned()))
        };
        let modules = parameters(&self).iter().filter_map(module).collect::<HashMap<_, _>>();
        self.each_linear(&mut |LinearParts { weight, lora, .. }| {
            if let Some(module) = modules.get(&weight.id) {
                *lora = Some(Lora::new(config, module, weight.lazy_shape().dims(), &weight.lazy_device()));
            }
        });
        for embedding in self.embeddings() {
            let weight = &embedding.weight;
            if let Some(module) = modules.get(&weight.id) {
                let adapter = EmbeddingLora::new(config, module, weight.lazy_shape().dims(), &weight.lazy_device());
                embedding.lora = Some(adapter);
            }
        }
        if let Some(module) = self.output_module().filter(|module| targets.contains(module)) {
            let [rows, width] = self.table().weight.lazy_shape().dims();
            let adapter = Lora::new(config, &module, [width, rows], &self.table().weight.lazy_device());
            if let Some(output) = self.output_mut() {
                output.lora = Some(adapter);
            }
        }
        self.adapt_rows(config)?;
        self.lora = Some(config.clone());
        Ok(self)
    }

    /// Lets the rows of the embedding learn that `config` names.
    fn adapt_rows(&mut self, config: &LoraConfig) -> Result<()> {
        let Some(indices) = &config.trainable_token_indices else { return Ok(()) };
        let refused = |what: &str| Err(kiln_core::Error::config(format!("trainable_token_indices: {what}")).into());
        let module = self.table_module();
        let rows = indices.rows(&module, self.table().weight.lazy_shape().dims::<2>()[0])?;
        if config.saves_module(&module) || config.adapts(&module) {
            return refused(&format!("rows of {module} cannot learn beside the whole of it or an adapter on it"));
        }
        if self.tied_pair().is_some_and(|[_, output]| config.adapts(&output)) {
            return refused(
                "the output is the embedding again, and has an adapter of its own, which PEFT leaves out then",
            );
        }
        if self.tied_pair().is_some() && matches!(self.head, HeadLayers::BertMlm(_)) {
            return refused(
                "PEFT leaves the bias of the tied output of a masked language model out, and Kiln does not",
            );
        }
        self.table_mut().adapt_rows(rows);
        Ok(())
    }

    /// The embedding of the tokens.
    fn table(&self) -> &Embedding {
        match &self.body {
            Body::Gpt2(body) => &body.wte,
            Body::Bert(body) => &body.embeddings.word_embeddings,
            Body::Llama(body) => &body.embed_tokens,
        }
    }

    fn table_mut(&mut self) -> &mut Embedding {
        match &mut self.body {
            Body::Gpt2(body) => &mut body.wte,
            Body::Bert(body) => &mut body.embeddings.word_embeddings,
            Body::Llama(body) => &mut body.embed_tokens,
        }
    }

    /// Every embedding.
    fn embeddings(&mut self) -> Vec<&mut Embedding> {
        match &mut self.body {
            Body::Gpt2(body) => body.embeddings(),
            Body::Bert(body) => body.embeddings(),
            Body::Llama(body) => vec![&mut body.embed_tokens],
        }
    }

    /// The output of a language model.
    fn output(&self) -> Option<&OutputEmbedding> {
        match &self.head {
            HeadLayers::CausalLm(head) => Some(&head.lm_head),
            HeadLayers::BertMlm(head) => Some(&head.cls.predictions.decoder),
            _ => None,
        }
    }

    fn output_mut(&mut self) -> Option<&mut OutputEmbedding> {
        match &mut self.head {
            HeadLayers::CausalLm(head) => Some(&mut head.lm_head),
            HeadLayers::BertMlm(head) => Some(&mut head.cls.predictions.decoder),
            _ => None,
        }
    }

    /// The Hugging Face name of the embedding of the tokens.
    fn table_module(&self) -> String {
        self.module_at(match &self.body {
            Body::Gpt2(_) => "body.wte.",
            Body::Bert(_) => "body.embeddings.word_embeddings.",
            Body::Llama(_) => "body.embed_tokens.",
        })
    }

    /// The Hugging Face name of the output of a language model.
    fn output_module(&self) -> Option<String> {
        match &self.head {
            HeadLayers::CausalLm(_) => Some(self.module_at("head.lm_head.")),
            HeadLayers::BertMlm(_) => Some(self.module_at("head.cls.predictions.decoder.")),
            _ => None,
        }
    }

    /// The Hugging Face name of the module at `path`.
    fn module_at(&self, path: &str) -> String {
        self.key(format!("{path}weight")).trim_end_matches(".weight").to_owned()
    }

    /// The Hugging Face names of the modules of a language model whose output is the embedding
    /// again: the embedding, the output.
    fn tied_pair(&self) -> Option<[String; 2]> {
        let output = self.output_module().filter(|_| !self.has_own_output())?;
        Some([self.table_module(), output])
    }

    /// Gives a language model an output of its own, with the values of `init`.
    fn untie(&mut self, init: impl FnOnce(Shape, &Device) -> Tensor<2> + Send + Sync + 'static) {
        let embedding = &self.table().weight;
        let own = uninitialized(embedding.lazy_shape().dims::<2>(), &embedding.lazy_device(), init);
        if let Some(output) = self.output_mut() {
            output.weight = Some(own);
        }
    }

    /// Whether it is a language model.
    pub fn has_vocabulary_output(&self) -> bool {
        self.output().is_some()
    }

    /// Whether it is a language model with an output of its own.
    pub fn has_own_output(&self) -> bool {
        self.output().is_some_and(|output| output.weight.is_some())
    }

    /// The settings of its adapters, if it has any.
    pub fn lora(&self) -> Option<&LoraConfig> {
        self.lora.as_ref()
    }

    /// This model with its adapters merged into its weights: it computes the same, up to rounding.
    /// A language model with an adapter on its embedding or its output has an output of its own
    /// from then on.
    ///
    /// # Errors
    /// An adapter that no weights without one compute.
    pub fn merged(mut self) -> Result<Self> {
        let mut merged = Ok(());
        let is_adapted = self.table().lora.is_some() || self.output().is_some_and(|output| output.lora.is_some());
        if is_adapted && self.tied_pair().is_some() {
            let table = self.table().weight.val();
            self.untie(move |_, _| table);
        }
        let (output, mut bias) = match &mut self.head {
            HeadLayers::CausalLm(head) => (Some(&mut head.lm_head), None),
            HeadLayers::BertMlm(BertMlmHead { cls: BertOnlyMlmHead { predictions } }) => {
                (Some(&mut predictions.decoder), Some(&mut predictions.bias))
            }
            _ => (None, None),
        };
        if let Some(OutputEmbedding { weight: Some(weight), lora }) = output
            && let Some(lora) = lora.take()
        {
            let (sum, bias_sum) = lora.merged(weight.val().transpose(), bias.as_ref().map(|bias| bias.val()))?;
            *weight = Param::initialized(weight.id, sum.transpose());
            if let (Some(bias), Some(sum)) = (bias.as_mut(), bias_sum) {
                **bias = Param::initialized(bias.id, sum);
            }
        }
        self.embeddings().into_iter().for_each(Embedding::merge);
        self.each_linear(&mut |LinearParts { weight, bias, lora }| {
            let Some(lora) = lora.take() else { return };
            match lora.merged(weight.val(), bias.as_ref().map(|bias| bias.val())) {
                Ok((sum, bias_sum)) => {
                    *weight = Param::initialized(weight.id, sum);
                    if let (Some(bias), Some(sum)) = (bias, bias_sum) {
                        *bias = Param::initialized(bias.id, sum);
                    }
                }
                Err(error) => merged = Err(error),
            }
        });
        self.lora = None;
        merged.map(|()| self)
    }

    /// Adapters that nobody has trained yet, beside weights that are loaded: with DoRA each begins
    /// with the lengths of its layer's columns, and rows of the embedding that learn begin as they
    /// are.
    #[must_use]
    pub fn with_begun_adapters(mut self) -> Self {
        self.embeddings().into_iter().for_each(Embedding::begin);
        if let Some(OutputEmbedding { weight, lora: Some(_) }) = self.output() {
            let weight = weight.as_ref().unwrap_or(&self.table().weight).val().transpose();
            if let Some(lora) = self.output_mut().and_then(|output| output.lora.as_mut()) {
                lora.begin(&weight);
            }
        }
        self.each_linear(&mut |LinearParts { weight, lora, .. }| {
            if let Some(lora) = lora {
                lora.begin(&weight.val());
            }
        });
        self
    }

    fn each_linear(&mut self, each: &mut EachLinear<'_>) {
        match &mut self.body {
            Body::Gpt2(body) => body.each_linear(each),
            Body::Bert(body) => body.each_linear(each),
            Body::Llama(body) => body.each_linear(each),
        }
        match &mut self.head {
            HeadLayers::CausalLm(_) => {}
            HeadLayers::LastToken(head) => head.score.each_linear(each),
            HeadLayers::LlamaTokens(head) => head.score.each_linear(each),
            HeadLayers::BertMlm(head) => head.cls.predictions.transform.dense.each_linear(each),
            HeadLayers::BertClassification(head) | HeadLayers::BertTokens(head) | HeadLayers::BertChoice(head) => {
                head.classifier.each_linear(each);
            }
            HeadLayers::BertSpan(head) => head.qa_outputs.each_linear(each),
        }
    }

    /// The logits of a batch, in f32 whatever the type of matrix products:
    /// - language models: `[batch * seq, vocab_size]`
    /// - sequence classification and regression: `[batch, num_labels]`
    /// - span: `[batch * seq, 2]`, start and end
    /// - token classification: `[batch * seq, num_labels]`
    /// - multiple choice: `[batch, 1]`, where each choice is a sequence of the batch
    ///
    /// `train` switches dropout on; it draws from the device's generator.
    pub fn forward(&self, input: ModelInput, train: bool) -> Tensor<2> {
        self.logits(&input, self.pass(train))
    }

    /// [`forward`](Self::forward) as `pass` says, which is one of [`pass`](Self::pass).
    pub fn logits(&self, input: &ModelInput, pass: Pass<'_>) -> Tensor<2> {
        let rows = self.rows(input, pass);
        let x = self.hidden(input, &rows, pass);
        self.head(x, input, &rows, pass)
    }

    /// The hidden states after the last block: `[batch * seq, width]`, or those that `rows` has the
    /// last layer compute.
    pub fn hidden(&self, input: &ModelInput, rows: &Rows, pass: Pass<'_>) -> Tensor<2> {
        let ids = input.input_ids.clone();
        match &self.body {
            Body::Gpt2(body) => body.forward(ids, input.position_ids.clone(), rows, pass),
            Body::Bert(body) => body.forward(ids, input.token_type_ids.clone(), rows, pass),
            Body::Llama(body) => body.forward(ids, rows, pass),
        }
    }

    /// The logits of a causal language model for tokens that continue those of `cache`: `[batch,
    /// seq]` -> `[batch * seq, vocab_size]`; none for another model.
    pub fn forward_cached(&self, input_ids: Tensor<2, Int>, cache: &mut KvCache, pass: Pass<'_>) -> Option<Tensor<2>> {
        let x = self.hidden_cached(input_ids, cache, pass)?;
        Some(self.vocabulary_logits(self.projection(x, pass)?, pass))
    }

    /// [`forward_cached`](Self::forward_cached) for the last token of each sequence alone: `[batch,
    /// seq]` -> `[batch, vocab_size]`.
    pub fn next_logits(&self, input_ids: Tensor<2, Int>, cache: &mut KvCache, pass: Pass<'_>) -> Option<Tensor<2>> {
        let [batch, seq] = input_ids.dims();
        let x = self.hidden_cached(input_ids, cache, pass)?;
        let d = x.dims()[1];
        let last = x.reshape([batch, seq, d]).slice_dim(1, seq - 1..seq).reshape([batch, d]);
        Some(self.vocabulary_logits(self.projection(last, pass)?, pass))
    }

    fn hidden_cached(&self, input_ids: Tensor<2, Int>, cache: &mut KvCache, pass: Pass<'_>) -> Option<Tensor<2>> {
        match (&self.body, &self.head) {
            (Body::Gpt2(body), HeadLayers::CausalLm(_)) => Some(body.forward_cached(input_ids, cache, pass)),
            (Body::Llama(body), HeadLayers::CausalLm(_)) => Some(body.forward_cached(input_ids, cache, pass)),
            _ => None,
        }
    }

    /// Whether [`forward_cached`](Self::forward_cached) has logits.
    pub fn generates(&self) -> bool {
        matches!(self.head, HeadLayers::CausalLm(_))
    }

    /// The rows of `input` that the layers compute in `pass`, and the keys that each attends to.
    pub fn rows(&self, input: &ModelInput, pass: Pass<'_>) -> Rows {
        let (shape, device) = (input.input_ids.dims(), input.input_ids.device());
        let mask = input.attention_mask.clone();
        let (window, angles, unseen) = match &self.body {
            Body::Gpt2(body) => (body.window(), None, Some(body.unseen())),
            Body::Llama(body) => {
                let angles = body.angles(shape[1], input.position_ids.clone(), &device, pass);
                (body.window(), Some(angles), Some(body.unseen()))
            }
            Body::Bert(_) => (None, None, None),
        };
        if let (Some(positions), Some(unseen)) = (&input.position_ids, unseen) {
            return Rows { angles, ..Rows::documents(positions.clone(), mask, window, unseen, pass) };
        }
        let reads_first_tokens = matches!(self.head, HeadLayers::BertClassification(_) | HeadLayers::BertChoice(_));
        match self.ops().form(Operator::Attention) {
            Form::Fused if reads_first_tokens => Rows::first_tokens(shape, mask, &device, self.ops()),
            _ => {
                let local_mask = window.map(|window| Mask::local(shape[1], window, mask.clone(), &device, self.ops()));
                let is_causal = !matches!(self.body, Body::Bert(_));
                let all = Rows::all(shape, is_causal, mask.clone(), &device, self.ops());
                let all = Rows { local_mask, angles, ..all };
                if reads_first_tokens && pass.drops() {
                    all.numbered_as_first_tokens(shape, mask, &device)
                } else {
                    all
                }
            }
        }
    }

    /// How many blocks there are.
    pub fn num_blocks(&self) -> usize {
        match &self.body {
            Body::Gpt2(body) => body.h.len(),
            Body::Bert(body) => body.num_layers(),
            Body::Llama(body) => body.layers.len(),
        }
    }

    /// The input of the first block: `[rows, width]`.
    pub fn embed(&self, input: &ModelInput, rows: &Rows, pass: Pass<'_>) -> Tensor<2> {
        let ids = input.input_ids.clone();
        match &self.body {
            Body::Gpt2(body) => body.embed(ids, Positions::of(input.position_ids.clone()), pass),
            Body::Bert(body) => body.embed(ids, input.token_type_ids.clone(), rows, pass),
            Body::Llama(body) => body.embed(ids, pass),
        }
    }

    /// Block `index` alone, as [`hidden`](Self::hidden) computes it: for a backward pass that
    /// computes blocks again.
    ///
    /// # Panics
    /// For a block that the model does not have.
    pub fn block(&self, index: usize, x: Tensor<2>, rows: &Rows, pass: Pass<'_>) -> Tensor<2> {
        match &self.body {
            Body::Gpt2(body) => body.h[index].forward(x, rows, pass).rows(),
            Body::Bert(body) => body.layer(index, x, rows, pass).rows(),
            Body::Llama(body) => body.layers[index].forward(x, rows, pass),
        }
    }

    /// The logits of [`forward`](Self::forward) from the hidden states `x` of
    /// [`hidden`](Self::hidden).
    pub fn head(&self, x: Tensor<2>, input: &ModelInput, rows: &Rows, pass: Pass<'_>) -> Tensor<2> {
        match (&self.body, &self.head) {
            (_, HeadLayers::CausalLm(_) | HeadLayers::BertMlm(_)) => {
                let projection = self.projection(x, pass).expect("a language model has a vocabulary projection");
                self.vocabulary_logits(projection, pass)
            }
            (Body::Gpt2(body), HeadLayers::LastToken(head)) => {
                head.score.forward(head.read(body.normalised(x, pass), input), pass)
            }
            (Body::Llama(body), HeadLayers::LastToken(head)) => {
                head.score.forward(head.read(body.normalised(x, pass), input), pass)
            }
            (Body::Llama(body), HeadLayers::LlamaTokens(head)) => {
                let x = dropout(body.normalised(x, pass), head.dropout, pass.rng, pass.ops());
                head.score.forward(x, pass)
            }
            (Body::Bert(body), HeadLayers::BertClassification(head) | HeadLayers::BertChoice(head)) => {
                let first = match &rows.last_layer {
                    Some(_) => x,
                    None => FirstTokens::EVENLY.of(x, rows.batch, pass.ops()),
                };
                let pooled = dropout(body.pooled(first, pass), head.dropout, pass.rng, pass.ops());
                head.classifier.forward(pooled, pass)
            }
            (Body::Bert(_), HeadLayers::BertSpan(head)) => {
                head.qa_outputs.forward(dropout(x, head.dropout, pass.rng, pass.ops()), pass)
            }
            (Body::Bert(_), HeadLayers::BertTokens(head)) => {
                head.classifier.forward(dropout(x, head.dropout, pass.rng, pass.ops()), pass)
            }
            (Body::Bert(_), HeadLayers::LastToken(_))
            | (Body::Gpt2(_) | Body::Bert(_), HeadLayers::LlamaTokens(_))
            | (
                Body::Gpt2(_) | Body::Llama(_),
                HeadLayers::BertClassification(_)
                | HeadLayers::BertSpan(_)
                | HeadLayers::BertTokens(_)
                | HeadLayers::BertChoice(_),
            ) => {
                unreachable!("`Model::new` gives a body a head of its family")
            }
        }
    }

    /// The factors of a language model's logits, for a loss that never holds them all
    /// ([`CrossEntropy`](crate::ops::cross_entropy::CrossEntropy)), from the hidden states `x` of
    /// [`hidden`](Self::hidden); none for the other heads.
    pub fn projection(&self, x: Tensor<2>, pass: Pass<'_>) -> Option<VocabularyProjection> {
        match (&self.body, &self.head) {
            (Body::Gpt2(body), HeadLayers::CausalLm(head)) => {
                Some(head.lm_head.projection(body.normalised(x, pass), &body.wte, None, pass))
            }
            (Body::Llama(body), HeadLayers::CausalLm(head)) => {
                Some(head.lm_head.projection(body.normalised(x, pass), &body.embed_tokens, None, pass))
            }
            (Body::Bert(body), HeadLayers::BertMlm(head)) => {
                let predictions = &head.cls.predictions;
                let (x, bias) = (predictions.transformed(x, pass), Some(predictions.bias.val()));
                Some(predictions.decoder.projection(x, &body.embeddings.word_embeddings, bias, pass))
            }
            _ => None,
        }
    }

    fn vocabulary_logits(&self, projection: VocabularyProjection, pass: Pass<'_>) -> Tensor<2> {
        let logits = pass.compute.product_of(projection.operands, projection.x, projection.weight.transpose());
        match projection.bias {
            Some(bias) => logits + bias.unsqueeze(),
            None => logits,
        }
    }

    /// The class of `transformers` that opens a folder with this model.
    pub fn architecture(&self) -> String {
        let class = match &self.body {
            Body::Gpt2(_) if self.is_gpt_neo() => "GPTNeo",
            Body::Gpt2(_) => "GPT2",
            Body::Bert(body) => body.variant().class(),
            Body::Llama(body) => body.variant().class(),
        };
        let head = match &self.head {
            HeadLayers::CausalLm(_) if class == "GPT2" => "LMHeadModel",
            HeadLayers::CausalLm(_) => "ForCausalLM",
            HeadLayers::BertMlm(_) => "ForMaskedLM",
            HeadLayers::LastToken(_) | HeadLayers::BertClassification(_) => "ForSequenceClassification",
            HeadLayers::BertSpan(_) => "ForQuestionAnswering",
            HeadLayers::BertTokens(_) | HeadLayers::LlamaTokens(_) => "ForTokenClassification",
            HeadLayers::BertChoice(_) => "ForMultipleChoice",
        };
        format!("{class}{head}")
    }

    fn is_gpt_neo(&self) -> bool {
        matches!(&self.body, Body::Gpt2(body) if body.variant() == Gpt2Variant::GptNeo)
    }

    /// A forward pass of this model, computing as [`compute`](Self::compute) says; `train` switches
    /// dropout on.
    pub fn pass(&self, train: bool) -> Pass<'static> {
        Pass::new(self.compute, train)
    }

    /// How the model computes: plain operators in f32 until [`with_compute`](Self::with_compute)
    /// changes it.
    pub fn compute(&self) -> Compute {
        self.compute
    }

    /// In which form the model computes.
    pub fn ops(&self) -> Ops {
        self.compute.ops()
    }

    /// This model, computing in the form `ops`, which its device must have (see [`Ops::fused`]).
    #[must_use]
    pub fn with_ops(self, ops: Ops) -> Self {
        let dtype = self.compute.dtype();
        self.with_compute(Compute::new(ops, dtype))
    }

    /// This model with noise on the output of its token embedding in training; see
    /// [`EmbeddingNoise`].
    #[must_use]
    pub fn with_embedding_noise(mut self, noise: EmbeddingNoise) -> Self {
        match &mut self.body {
            Body::Gpt2(body) => body.noise = noise,
            Body::Bert(body) => body.embeddings.noise = noise,
            Body::Llama(body) => body.noise = noise,
        }
        self
    }

    /// This model, computing as `compute` says: in a form and a type that its device must have.
    /// Parameters stay in f32.
    #[must_use]
    pub fn with_compute(mut self, compute: Compute) -> Self {
        self.compute = compute;
        self
    }
}

/// Hugging Face's spelling of field names that Rust cannot have or would not have.
const SPELLINGS: &[(&str, &str)] = &[
    ("layer_norm", "LayerNorm"),
    ("self_", "self"),
    ("lora_a", "lora_A"),
    ("lora_b", "lora_B"),
    ("lora_embedding_a", "lora_embedding_A"),
    ("lora_embedding_b", "lora_embedding_B"),
];

impl StateDict for Model {
    /// Some fields are spelled otherwise, the body's field is `transformer`, `bert` or `model`, the
    /// head's has no name, and a variant of BERT has names of its own.
    fn key(&self, path: String) -> String {
        let body = match &self.body {
            Body::Gpt2(_) => "transformer.",
            Body::Bert(_) => "bert.",
            Body::Llama(_) => "model.",
        };
        let spelled = |field| SPELLINGS.iter().find(|(ours, _)| *ours == field).map_or(field, |(_, theirs)| *theirs);
        let parts = path.split('.').filter(|field| *field != "projections");
        let path = parts.map(spelled).collect::<Vec<_>>().join(".");
        let name = match (path.strip_prefix("body."), path.strip_prefix("head.")) {
            (Some(inner), _) => format!("{body}{inner}"),
            // The bias of an output of its own is that of this output, where the class has another
            // one beside it.
            (_, Some("cls.predictions.bias")) if self.has_own_output() => "cls.predictions.decoder.bias".into(),
            (_, Some(inner)) => inner.to_owned(),
            _ => path,
        };
        match &self.body {
            Body::Gpt2(body) => body.variant().tensor(name),
            Body::Bert(body) => body.variant().tensor(name, matches!(self.head, HeadLayers::BertClassification(_))),
            Body::Llama(_) => name,
        }
    }

    /// GPT-Neo's weights are all those of torch's `Linear`.
    fn stores_transposed(&self, container: &str) -> bool {
        TRANSPOSED.contains(&container) || (container == "Struct:Conv1D" && self.is_gpt_neo())
    }

    fn file(&self) -> &'static str {
        if self.lora.is_some() { ADAPTER_FILE } else { MODEL_FILE }
    }

    fn base_is_tied(&self) -> bool {
        self.is_tied
    }

    /// `BertLMPredictionHead` and its like keep the bias of the output twice.
    fn also_saved_as(&self, name: &str) -> Option<String> {
        let other = format!("{}.bias", name.strip_suffix(".decoder.bias").filter(|_| self.has_own_output())?);
        match &self.lora {
            Some(lora) => lora.saved_as(&other),
            None => Some(other),
        }
    }

    /// With adapters, what is frozen is the base's.
    fn saved_as(&self, name: &str) -> Option<String> {
        match &self.lora {
            Some(lora) => lora.saved_as(name),
            None => Some(name.to_owned()),
        }
    }
}

impl CausalLmHead {
    fn new(is_tied: bool, shape: [usize; 2], std: f64, device: &Device) -> Self {
        Self { lm_head: OutputEmbedding::new(is_tied, shape, std, device) }
    }
}

impl LlamaTokensHead {
    fn new(config: &LlamaConfig, device: &Device) -> Self {
        let labels = config.labels.num_labels();
        let score = Linear::new(config.hidden_size, labels, true, config.initializer_range, device);
        Self { score, dropout: config.classifier_dropout.unwrap_or(TOKENS_DROPOUT) }
    }
}

/// The dropout before the classifier of tokens where a configuration states none
/// (`GenericForTokenClassification`).
const TOKENS_DROPOUT: f64 = 0.1;

impl LastTokenHead {
    fn new([width, labels]: [usize; 2], std: f64, pad_token_id: Option<u32>, device: &Device) -> Self {
        Self { score: Linear::new(width, labels, false, std, device), pad_token_id }
    }

    /// The token of each sequence that the classifier reads, `[batch * seq, width] -> [batch,
    /// width]`: the rightmost one whose id is not `pad_token_id`, or the first where all are.
    /// Without a `pad_token_id`, for which `transformers` reads the last token of a single sequence
    /// and refuses several, it is the last one that is attended to.
    fn read(&self, x: Tensor<2>, input: &ModelInput) -> Tensor<2> {
        let ([batch, seq], d, device) = (input.input_ids.dims(), x.dims()[1], x.device());
        let shown = match self.pad_token_id {
            Some(pad) => Some(input.input_ids.clone().not_equal_elem(pad as i64)),
            None => input.attention_mask.clone(),
        };
        let Some(shown) = shown else {
            return x.reshape([batch, seq, d]).slice([0..batch, seq - 1..seq, 0..d]).reshape([batch, d]);
        };
        let places = Tensor::<1, Int>::arange(0..seq as i64, &device).reshape([1, seq]).expand([batch, seq]);
        let last = (places * shown.int()).max_dim(1).reshape([batch]);
        x.select(0, Tensor::<1, Int>::arange(0..batch as i64, &device) * seq as i64 + last)
    }
}

impl OutputEmbedding {
    /// Weights from `N(0, std)` where it is not tied to the embedding.
    fn new(is_tied: bool, shape: [usize; 2], std: f64, device: &Device) -> Self {
        let draw = move |shape, device: &Device| Tensor::random(shape, Distribution::Normal(0.0, std), device);
        Self { weight: (!is_tied).then(|| uninitialized(shape, device, draw)), lora: None }
    }

    /// The factors of the logits of rows `x [n, width]`.
    fn projection(
        &self,
        x: Tensor<2>,
        embedding: &Embedding,
        bias: Option<Tensor<1>>,
        pass: Pass<'_>,
    ) -> VocabularyProjection {
        let weight = self.weight.as_ref().unwrap_or(&embedding.weight);
        let has_rows = self.weight.is_none() && embedding.token_adapter.is_some();
        let (x, weight, bias, operands) = match &self.lora {
            Some(lora) => {
                let (x, weight, bias) = lora.factors(x, weight.val(), bias, pass);
                let (x, weight, operands) = pass.factors_of(x, weight);
                (x, weight, bias, operands)
            }
            None if has_rows => {
                let (x, weight, operands) = pass.factors_of(x, embedding.table());
                (x, weight, bias, operands)
            }
            None => {
                let (x, weight, operands) = pass.factors(x, weight);
                (x, weight, bias, operands)
            }
        };
        let is_tied = self.weight.is_none() && self.lora.is_none();
        VocabularyProjection { x, weight, bias, operands, is_tied }
    }
}

impl BertMlmHead {
    fn new(config: &BertConfig, device: &Device) -> Self {
        let (d, embedding_size) = (config.hidden_size, config.embedding_size());
        let predictions = BertLmPredictionHead {
            transform: BertPredictionHeadTransform {
                dense: Linear::new(d, embedding_size, true, config.initializer_range, device),
                layer_norm: LayerNorm::new(embedding_size, config.layer_norm_eps, device),
                activation: match config.variant {
                    BertVariant::Bert | BertVariant::DistilBert | BertVariant::Albert => config.activation(),
                    // Whatever `hidden_act` is.
                    BertVariant::Roberta | BertVariant::Camembert | BertVariant::XlmRoberta | BertVariant::Electra => {
                        Activation::GeluErf
                    }
                },
            },
            decoder: OutputEmbedding::new(
                config.tie_word_embeddings,
                [config.vocab_size, embedding_size],
                config.initializer_range,
                device,
            ),
            bias: uninitialized([config.vocab_size], device, |shape, device| Tensor::zeros(shape, device)),
        };
        Self { cls: BertOnlyMlmHead { predictions } }
    }
}

impl BertLmPredictionHead {
    /// The input of the output embedding: `[n, hidden_size] -> [n, embedding_size]`
    fn transformed(&self, x: Tensor<2>, pass: Pass<'_>) -> Tensor<2> {
        let x = self.transform.dense.activated(x, self.transform.activation, pass).wide();
        self.transform.layer_norm.forward(x, pass.ops())
    }
}

impl BertClassificationHead {
    fn new(config: &BertConfig, outputs: usize, dropout: f64, device: &Device) -> Self {
        let classifier = Linear::new(config.hidden_size, outputs, true, config.initializer_range, device);
        Self { classifier, dropout }
    }
}

impl BertSpanHead {
    fn new(config: &BertConfig, device: &Device) -> Self {
        Self {
            qa_outputs: Linear::new(config.hidden_size, 2, true, config.initializer_range, device),
            dropout: config.qa_dropout,
        }
    }
}
