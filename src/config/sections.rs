//! The sections of a config file except `[trainer]`: one struct each, one entry per key, as
//! [`kiln_core::keys!`] has it.

use std::ops::Bound;
use std::path::Path;

use kiln_core::choices;
use kiln_core::choices::unknown_name_near;
use kiln_core::complaint::{Checked, Complaint, MAX_BATCH, not_empty};
use kiln_core::ranges::{ABOVE_0, ABOVE_0_TO_1, FROM_0, Seed, number, text, texts, whole};
use kiln_core::saved_dataset::is_saved;
use kiln_core::values::{count, seed, some_count, strings};
use kiln_core::variables::expand_text;
use kiln_data::settings::{DataFormat, DocumentEnd, Documents, Errors};
use kiln_data::table;
use serde::{Deserialize, Deserializer, Serialize};
use toml::Table;

use super::values::Validation;
use crate::config::Task;

choices! {
    /// The model family, Hugging Face's `model_type`.
    ModelKind("model kind") {
        /// GPT-2: a decoder for causal language modelling and sequence classification.
        Gpt2 = "gpt2",
        /// GPT-Neo: GPT-2 in which every other layer attends to the last tokens only.
        GptNeo = "gpt_neo",
        /// BERT: an encoder for masked language modelling, classification, regression and question
        /// answering.
        Bert = "bert",
        /// RoBERTa: BERT with positions of its own and no use for token types.
        Roberta = "roberta",
        /// CamemBERT: RoBERTa for French.
        Camembert = "camembert",
        /// XLM-RoBERTa: RoBERTa for a hundred languages.
        XlmRoberta = "xlm-roberta",
        /// DistilBERT: half of BERT's layers, no token types.
        DistilBert = "distilbert",
        /// ELECTRA: BERT with small embeddings; the published discriminators are fine-tuned.
        Electra = "electra",
        /// ALBERT: BERT with small embeddings and one layer that is used many times.
        Albert = "albert",
        /// Llama: a decoder with rotary positions; Llama 2 and 3, TinyLlama and SmolLM2.
        Llama = "llama",
        /// Mistral: Llama whose layers may attend to the last tokens only.
        Mistral = "mistral",
        /// Qwen 2 and 2.5: Llama with biases of query, key and value.
        Qwen2 = "qwen2",
        /// Qwen 3: Llama with normalised queries and keys.
        Qwen3 = "qwen3",
        /// SmolLM3: Llama with layers that have no positions.
        SmolLm3 = "smollm3",
    }
}

kiln_core::keys! {
    /// `[model]`: which model, and where its weights come from.
    #[serde(default)]
    pub struct ModelSection in "model" {
        /// The family. Required unless `from` is given, whose `config.json` says it.
        #[serde(skip_serializing_if = "Option::is_none")]
        kind: Option<ModelKind> = None, Bound;
        /// A pretrained folder (`~` and `${VAR:-default}` are expanded), or a hub id as `ID` or
        /// `ID@REVISION`. Default: weights are drawn at random. Not with `size`.
        #[serde(skip_serializing_if = "Option::is_none")]
        from: Option<String> = None, Bound, text;
        /// A preset of the family, such as `small` or `base`. Default: Hugging Face's default shape
        /// of the family.
        #[serde(skip_serializing_if = "Option::is_none")]
        size: Option<String> = None, Bound, text;
        /// Whether tensors of a head that have another size in `from` are replaced by new ones with
        /// random weights, as `from_pretrained` of `transformers` does with all tensors; the run's
        /// first lines name them. Labels of the data that the pretrained model does not have then
        /// take the place of its own. The head of an adapter keeps its size. Default: false.
        ignore_mismatched_sizes: bool = false, Bound;
        /// Whether the embedding of `from` grows to the tokenizer's vocabulary where that is
        /// larger, or to `vocab_size`. New rows are the mean of the old ones, to which
        /// `transformers` adds noise with 1e-9 of their covariance, and 0 in a bias of the output.
        /// Not with `[lora]`, whose base stays as it is. Default: false.
        resize_token_embeddings: bool = false, Bound;
        /// The embedding grows to a multiple of this, with `resize_token_embeddings`. Default: 1.
        #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
        pad_to_multiple_of: Option<usize> = None, Bound, whole(1..=MAX_BATCH);
        /// Every other key of the section, in the order of the file: fields of the model's Hugging
        /// Face `config.json`, which override the preset or the pretrained folder. Their names and
        /// types are checked where the model is built.
        #[serde(flatten)]
        fields: Table = Table::new();
    }
}

impl ModelSection {
    /// A model of this family with random weights.
    pub fn new(kind: ModelKind) -> Self {
        Self { kind: Some(kind), ..Self::default() }
    }

    /// The pretrained model in a folder, or on the hub as `ID` or `ID@REVISION`.
    pub fn from_pretrained(from: impl Into<String>) -> Self {
        Self { from: Some(from.into()), ..Self::default() }
    }

    /// Chooses a preset of the family.
    #[must_use]
    pub fn with_size(mut self, size: impl Into<String>) -> Self {
        self.size = Some(size.into());
        self
    }

    /// Sets a field of the model's Hugging Face config, such as `n_layer`.
    #[must_use]
    pub fn with(mut self, field: impl Into<String>, value: impl Into<toml::Value>) -> Self {
        self.fields.insert(field.into(), value.into());
        self
    }
}

kiln_core::keys! {
    /// `[data]`: what is learned from.
    #[serde(default)]
    pub struct DataSection in "data" {
        /// The task that the model learns. Required in a file.
        #[serde(deserialize_with = "task")]
        task: Task = Task::Clm, Bound;
        /// How the files are written. With `dataset_name` the default is `parquet`, or `arrow` for
        /// a folder that `datasets.save_to_disk` has written, or `squad` for question answering.
        format: DataFormat = DataFormat::Text, Bound;
        /// A dataset of the Hub, as the scripts of `transformers` name it: `ID`, `ID@REVISION`, or
        /// a folder with such files or one that `datasets.save_to_disk` has written, whose format
        /// is known. A card (`README.md`) that names files is followed. Its split `train` is the
        /// training data, and its split `validation`, if it has one, the validation data where
        /// `validation` is left out. Not with `train`. Default: none.
        #[serde(skip_serializing_if = "Option::is_none")]
        dataset_name: Option<String> = None, Bound, text;
        /// The configuration of `dataset_name`, such as `sst2` of `nyu-mll/glue`. Default: the only
        /// one, or `default`.
        #[serde(skip_serializing_if = "Option::is_none")]
        dataset_config_name: Option<String> = None, Bound, text;
        /// The training data: paths, globs, folders (their files that end as those of `format`),
        /// `~`, `${VAR:-default}`; a list, or one string. Files may be archives of gzip or zstd.
        /// Required without `dataset_name`.
        #[serde(deserialize_with = "strings")]
        train: Vec<String> = Vec::new(), Bound, texts;
        /// The validation data: files likewise, or a share of the training documents such as `"2%"`
        /// or `0.02`, which the seed draws; of one text file the last blocks. `"train[:5%]"` are
        /// the first rows of a text or table, so many of 100, as `run_clm.py` takes them. Default:
        /// none.
        #[serde(skip_serializing_if = "Option::is_none")]
        validation: Option<Validation> = None, Bound, validation;
        /// Tokens per sample. Default: the model's number of positions, at most 1024.
        #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
        block_size: Option<usize> = None, Bound, whole(1..=usize::MAX);
        /// The column with the text, for tables (`csv`, `tsv`, `jsonl`, `parquet`). For
        /// `token-classification` a list of words, which `csv` and `tsv` separate by spaces.
        /// Default: `text`; `tokens` for `token-classification`.
        #[serde(skip_serializing_if = "Option::is_none")]
        text_column: Option<String> = None, Bound, text;
        /// The column with the second text of a pair, for tables. Default: none, rows are single
        /// texts.
        #[serde(skip_serializing_if = "Option::is_none")]
        text_pair_column: Option<String> = None, Bound, text;
        /// The column with the label, for tables. For `token-classification` a list with one label
        /// for each word; for `multi-label-classification` a list of those that apply; for
        /// `multiple-choice` the number of the right choice, from 0. Default: `label`; `ner_tags`
        /// for `token-classification`.
        #[serde(skip_serializing_if = "Option::is_none")]
        label_column: Option<String> = None, Bound, text;
        /// The columns with the choices, for `multiple-choice` on tables. Each choice is read as a
        /// pair of the text and the choice; where there is a `text_pair_column`, its text stands
        /// before each choice, as `sent2` of SWAG does. Required there.
        #[serde(skip_serializing_if = "Option::is_none")]
        choice_columns: Option<Vec<String>> = None, Bound;
        /// The column with conversations, for the task `clm` on `jsonl` and `parquet`: each a list
        /// of messages with `role` and `content`, or `from` and `value`, which the tokenizer's chat
        /// template writes as text. Not with `completion_column`. Default: none.
        #[serde(skip_serializing_if = "Option::is_none")]
        messages_column: Option<String> = None, Bound, text;
        /// The column with prompts, for the task `clm` on tables: texts, or lists of messages.
        /// Default: `prompt` where there is a `completion_column`.
        #[serde(skip_serializing_if = "Option::is_none")]
        prompt_column: Option<String> = None, Bound, text;
        /// The column with completions, of the same kind as the prompts. End-of-text follows a
        /// completion that is a text. Default: none.
        #[serde(skip_serializing_if = "Option::is_none")]
        completion_column: Option<String> = None, Bound, text;
        /// The file with the Jinja template of conversations, which the trained model keeps as
        /// `chat_template.jinja`. Default: that of the tokenizer: `chat_template.jinja`, or
        /// `chat_template` in its `tokenizer_config.json`.
        #[serde(skip_serializing_if = "Option::is_none")]
        chat_template_path: Option<String> = None, Bound, text;
        /// Whether the loss counts completions and not their prompts. Default: true where there is
        /// a `completion_column`.
        #[serde(skip_serializing_if = "Option::is_none")]
        completion_only_loss: Option<bool> = None, Bound;
        /// Whether the loss counts the words of the assistant alone, where there is a
        /// `messages_column`: what a template encloses in `{% generation %}`, or what the messages
        /// of the role `assistant` add, but for those with `weight` 0 or `train` false. Default:
        /// false.
        assistant_only_loss: bool = false, Bound;
        /// Whether several rows of `messages_column` or `completion_column` stand in one sample of
        /// at most `max_length` tokens, each with attention and positions of its own. Default:
        /// false.
        packing: bool = false, Bound;
        /// The labels in the order of their ids. Default: the pretrained model's `id2label`, else
        /// the ClassLabel of `datasets` in parquet or Arrow, else those of the training data,
        /// sorted.
        #[serde(skip_serializing_if = "Option::is_none")]
        label_names: Option<Vec<String>> = None, Bound;
        /// Whether rows whose label says that there is none are left out, for tables: an empty
        /// field, null, NaN, -1, -100, and what pandas reads as missing, such as `N/A`. For
        /// `token-classification` words are ignored by such a label. A label that `label_names`
        /// names is a class. Default: false, such a row is an error.
        skip_unlabeled: bool = false, Bound;
        /// Tokens that a row of a table or a window of `squad` is cut to, special ones included.
        /// Default: the model's number of positions, at most 512 (384 for `squad`, 1024 for
        /// instructions).
        #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
        max_length: Option<usize> = None, Bound;
        /// The unit that is a document of plain text, for `text`; a row of a table always is one.
        /// Default: `file`.
        documents: Documents = Documents::File, Bound;
        /// The token that follows a document, for the tasks `clm` and `mlm` on text and tables:
        /// `eos`, the tokenizer's end-of-text, or `none`: documents run on, as `run_clm.py` and
        /// `run_mlm.py` of `transformers` join rows. `[CLS]`, `[SEP]` and whatever else a tokenizer
        /// puts around every text stay.
        document_end: DocumentEnd = DocumentEnd::Auto, Bound;
        /// The treatment of bytes that are not UTF-8, for `text`, `csv`, `tsv` and `jsonl`, as
        /// `errors` of Python's `open`: `strict` refuses them, and `replace` reads each sequence of
        /// them as U+FFFD and counts them. Default: `strict`.
        errors: Errors = Errors::Strict, Bound;
        /// The share of tokens that the task `mlm` masks and predicts. Default: 0.15.
        mlm_probability: f64 = 0.15, Bound, number("a share above 0 and at most 1", SHARE);
        /// Masks all pieces of a word together, for the task `mlm`. Default: false.
        whole_word_mask: bool = false, Bound;
        /// Tokens that two neighbouring windows of a context share, for `squad`. Default: 128.
        #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
        doc_stride: Option<usize> = None, Bound;
        /// So many best starts are paired with so many best ends when answers are looked for, for
        /// `squad`. Default: 20.
        #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
        n_best_size: Option<usize> = None, Bound, whole(1..=usize::MAX);
        /// The longest answer in tokens, for `squad`. Default: 30.
        #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
        max_answer_length: Option<usize> = None, Bound, whole(1..=usize::MAX);
        /// No answer is given when its score is more than this above the best answer's, for SQuAD
        /// 2.0. Default: 0.0.
        #[serde(skip_serializing_if = "Option::is_none")]
        null_score_diff_threshold: Option<f64> = None, Bound, number("a number", ..);
        /// Whether "no answer" may be the answer to every question, for `squad`. Files of SQuAD
        /// 2.0, and rows of which one has no answer, say so themselves. Default: false.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        version_2_with_negative: bool = false, Free;
        /// Trains on the first so many examples only. Default: all.
        #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
        max_train_samples: Option<usize> = None, Bound, whole(1..=usize::MAX);
        /// Evaluates on the first so many validation examples only. Default: all.
        #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
        max_eval_samples: Option<usize> = None, Free, whole(1..=usize::MAX);
        /// Whether training data are read and tokenised as they are needed, over and over, and kept
        /// nowhere: for data that do not fit the disk. Files are read in order; with `sampler =
        /// "random"` examples are shuffled in a buffer. Needs `trainer.max_steps`. Default: false.
        streaming: bool = false, Bound;
        /// Examples of the buffer in which `streaming` shuffles, as `buffer_size` of
        /// `IterableDataset.shuffle`. Default: 1000.
        #[serde(deserialize_with = "count")]
        shuffle_buffer_size: usize = 1000, Bound, whole(1..=MAX_BATCH);
    }
}

impl DataSection {
    /// Text files for `task`: paths, globs, `~`, `${VAR:-default}`.
    pub fn text<S: Into<String>>(task: Task, train: impl IntoIterator<Item = S>) -> Self {
        Self { task, train: train.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Whether `dataset_name` is a folder that `datasets.save_to_disk` has written.
    pub(crate) fn is_saved_dataset(&self) -> bool {
        let folder = self.dataset_name.as_deref().and_then(|name| expand_text(name).ok());
        folder.is_some_and(|folder| is_saved(Path::new(&folder)))
    }

    /// Tables in `format` for `task`, with the columns `text` and `label`.
    pub fn table<S: Into<String>>(task: Task, format: DataFormat, train: impl IntoIterator<Item = S>) -> Self {
        Self { format, ..Self::text(task, train) }
    }

    /// The tables that `patterns` name, written as the training data are.
    ///
    /// # Errors
    /// Patterns that name no files.
    pub(crate) fn open_table(
        &self,
        patterns: &[String],
        columns: table::Columns,
    ) -> kiln_core::error::Result<table::Table> {
        Ok(table::Table::open(patterns, self.format, columns)?.with_errors(self.errors))
    }

    /// Whether rows are instructions: conversations, or prompts with completions.
    pub fn has_instructions(&self) -> bool {
        self.messages_column.is_some() || self.completion_column.is_some()
    }

    /// Whether end-of-text follows every document.
    pub fn marks_ends(&self) -> bool {
        match self.document_end {
            DocumentEnd::Auto => !self.format.is_table(),
            DocumentEnd::Eos => true,
            DocumentEnd::None => false,
        }
    }

    /// JSON or JSONL files of token ids for `task`.
    pub fn tokenized<S: Into<String>>(task: Task, train: impl IntoIterator<Item = S>) -> Self {
        Self { format: DataFormat::Tokenized, ..Self::text(task, train) }
    }
}

/// A share that may be all.
const SHARE: (Bound<f64>, Bound<f64>) = (Bound::Excluded(0.0), Bound::Included(1.0));

/// Validation data that are some of the training data and not all, or files.
fn validation(key: &str, value: &Option<Validation>) -> Checked {
    match value {
        Some(Validation::Share(share)) if !(*share > 0.0 && *share < 1.0) => {
            Err(Complaint::new(key, format!("expected a share between 0 and 1, got {share}")))
        }
        Some(Validation::First(percent)) if !(*percent > 0.0 && *percent < 100.0) => {
            Err(Complaint::new(key, format!("expected a percentage between 0 and 100, got {percent}")))
        }
        Some(Validation::Files(files)) if files.is_empty() => {
            Err(Complaint::new(key, "expected files or a share, got an empty list").help("remove the key"))
        }
        Some(Validation::Files(files)) => files.iter().try_for_each(|path| not_empty(key, Some(path))),
        _ => Ok(()),
    }
}

/// Reads a task by its name, with a suggestion for one that does not exist.
fn task<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Task, D::Error> {
    let given = String::deserialize(deserializer)?;
    let unknown = || unknown_name_near("task", &given, &Task::ALL.map(Task::name), Task::nearest(&given));
    Task::from_name(&given).map_err(|_| serde::de::Error::custom(unknown()))
}

kiln_core::keys! {
    /// `[tokenizer]`: how text becomes ids. Default: the tokenizer in the folder of `model.from`.
    #[serde(default)]
    pub struct TokenizerSection in "tokenizer" {
        /// A folder or hub id with `tokenizer.json`, `vocab.json` + `merges.txt`, `vocab.txt` or a
        /// model of SentencePiece. Not with `train_vocab_size`.
        #[serde(skip_serializing_if = "Option::is_none")]
        from: Option<String> = None, Bound, text;
        /// Learns a byte-level BPE of this many tokens from the training text.
        #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
        train_vocab_size: Option<usize> = None, Bound;
    }
}

impl TokenizerSection {
    /// The tokenizer in a folder or on the hub.
    pub fn from_pretrained(from: impl Into<String>) -> Self {
        Self { from: Some(from.into()), train_vocab_size: None }
    }

    /// A byte-level BPE of `vocab_size` tokens, learned from the training text.
    pub fn train(vocab_size: usize) -> Self {
        Self { from: None, train_vocab_size: Some(vocab_size) }
    }
}

kiln_core::keys! {
    /// `[generation]`: samples of text, written when training ends and, with `every`, on the way;
    /// only for causal language models. Left out: none. Names and defaults are those of Hugging
    /// Face's `GenerationConfig`, except that Kiln samples unless the temperature is 0, and that
    /// `max_new_tokens`, which has no default there, has one. They are the defaults of `kiln
    /// generate` too.
    #[serde(default)]
    pub struct GenerationSection in "generation" {
        /// The text to continue, or a list of texts, which are continued together. Required.
        #[serde(deserialize_with = "strings")]
        prompt: Vec<String> = Vec::new(), Free;
        /// Also writes samples after every so many steps, into `samples.jsonl`. Default: at the end
        /// alone.
        #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
        every: Option<usize> = None, Free, whole(1..=usize::MAX);
        /// How many tokens to write at most. Default: 100.
        #[serde(deserialize_with = "count")]
        max_new_tokens: usize = 100, Free, whole(1..=usize::MAX);
        /// The divisor of the logits before sampling; 0 takes the most likely token always.
        /// Default: 1.0.
        temperature: f64 = 1.0, Free, FROM_0;
        /// Samples among this many most likely tokens; 0 means all. Default: 50.
        #[serde(deserialize_with = "count")]
        top_k: usize = 50, Free;
        /// Samples among the most likely tokens that have this much probability together; 1.0 means
        /// all. Default: 1.0.
        top_p: f64 = 1.0, Free, ABOVE_0_TO_1;
        /// Seed of the sampling. Every prompt draws as if it were alone. Default: 42.
        #[serde(with = "seed")]
        seed: u64 = 42, Free, Seed;
        /// Divides the logits of tokens that the text has where they are positive, and multiplies
        /// them where they are negative; above 1.0 the model repeats itself less. Default: 1.0.
        repetition_penalty: f64 = 1.0, Free, ABOVE_0;
        /// No sequence of so many tokens comes twice; 0 allows all. Default: 0.
        #[serde(deserialize_with = "count")]
        no_repeat_ngram_size: usize = 0, Free;
        /// The end-of-text token is not chosen before so many tokens. Default: 0.
        #[serde(deserialize_with = "count")]
        min_new_tokens: usize = 0, Free;
        /// A text, or a list of texts: generation ends with the first of them, which stays in the
        /// sample. Default: none.
        #[serde(deserialize_with = "strings", skip_serializing_if = "Vec::is_empty")]
        stop_strings: Vec<String> = Vec::new(), Free;
    }
}

impl GenerationSection {
    /// A continuation of `prompt`.
    pub fn new(prompt: impl Into<String>) -> Self {
        Self { prompt: vec![prompt.into()], ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::ModelKind;

    #[test]
    fn a_kind_of_model_is_read_by_its_name() {
        assert_eq!("gpt2".parse::<ModelKind>().unwrap(), ModelKind::Gpt2);
        let error = "gpt-2".parse::<ModelKind>().unwrap_err();
        assert!(error.to_string().contains("did you mean `gpt2`?"), "{error}");
    }
}
