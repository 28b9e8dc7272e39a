//! The settings that are one name out of a few: each an enum with its spelling in a file, the list of all spellings and
//! an error with the nearest one. Values that are known but that this version cannot do are refused here, with the
//! reason.

use crate::base::error::{Error, nearest};

/// Declares an enum whose values are names in a config file: `ALL`, `as_str`, `Display`, `FromStr` and serde, all from
/// one list. The optional function sees names that are not in the list: synonyms it maps, names with a reason it
/// refuses.
macro_rules! names {
    ($(#[$meta:meta])* $name:ident ($what:literal $(, $special:path)?) {
        $($(#[$value_meta:meta])* $value:ident = $text:literal),+ $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$value_meta])* $value),+ }

        impl $name {
            /// Every value, in the order in which messages list them.
            pub const ALL: &'static [Self] = &[$(Self::$value),+];

            /// The name as a config file writes it.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$value => $text),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::base::error::Error;

            fn from_str(given: &str) -> $crate::base::error::Result<Self> {
                if let Some(value) = Self::ALL.iter().find(|value| value.as_str() == given) {
                    return Ok(*value);
                }
                $(if let Some(special) = $special(given) {
                    return special;
                })?
                Err($crate::config::names::unknown_name($what, given, Self::ALL.iter().map(|value| value.as_str())))
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use names;

/// The error for a name that is not among `known`: lists them and suggests the nearest.
pub(crate) fn unknown_name<'a>(what: &str, given: &str, known: impl Iterator<Item = &'a str>) -> Error {
    let known: Vec<&str> = known.collect();
    let error = Error::config(format!("unknown {what} `{given}`: expected one of {}", known.join(", ")));
    match nearest(given, known) {
        Some(name) => error.help(format!("did you mean `{name}`?")),
        None => error,
    }
}

names! {
    /// The way in which a run treats a run folder that exists already.
    OnExisting("on_existing") {
        /// Stop with an error; nothing is touched.
        Fail = "fail",
        /// Remove what an earlier run left there.
        Overwrite = "overwrite",
        /// Continue the run from its newest whole checkpoint; from the start when the folder holds no checkpoint and no
        /// model.
        Resume = "resume",
    }
}

names! {
    /// How a run computes.
    CompilerMode("compiler") {
        /// Every operation eagerly, as Burn has it.
        Native = "native",
        /// With what the training compiler can activate on the device.
        Compiled = "compiled",
        /// The better of the two: training finds out by a short trial on its own data, other commands take `compiled` where
        /// the device has it.
        Auto = "auto",
    }
}

names! {
    /// The library that sums the gradients of several devices.
    DdpBackend("ddp_backend") {
        /// NVIDIA's NCCL, on the devices themselves, which are CUDA's.
        Nccl = "nccl",
        /// MPI, in the memory of the machine.
        Mpi = "mpi",
    }
}

names! {
    /// A part of the training compiler.
    Switch("setting") {
        /// Where the device has it.
        Auto = "auto",
        /// Everywhere; an error where the device lacks it.
        On = "on",
        /// Nowhere.
        Off = "off",
    }
}

names! {
    /// How much Burn tunes: how many candidates it times for how many sizes.
    AutotuneLevel("autotune level") {
        /// The level that the device wants: `balanced` on wgpu, `full` on CUDA.
        Auto = "auto",
        /// Few sizes, few candidates.
        Minimal = "minimal",
        /// Burn's own default.
        Balanced = "balanced",
        /// More sizes told apart.
        Extensive = "extensive",
        /// Every size by itself.
        Full = "full",
    }
}

names! {
    /// The model family, Hugging Face's `model_type`.
    ModelKind("model kind") {
        /// GPT-2: a decoder for causal language modelling and sequence classification.
        Gpt2 = "gpt2",
        /// GPT-Neo: GPT-2 in which every other layer attends to the last tokens only.
        GptNeo = "gpt_neo",
        /// BERT: an encoder for masked language modelling, classification, regression and question answering.
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
    }
}

names! {
    /// How the losses of the micro-batches of an optimizer step become its loss, in the tasks in which `transformers` takes
    /// the mean of each micro-batch.
    Accumulation("accumulation") {
        /// One sum over all micro-batches, divided once: how a step is cut makes no difference.
        Exact = "exact",
        /// The loss of the Trainer of `transformers` 5.24; see [`Reduction`](crate::task::Reduction). Its divisor of GPT-2's language
        /// model counts the first label of each row too, which nothing predicts.
        Transformers = "transformers",
    }
}

names! {
    /// How the data files are written.
    DataFormat("data format") {
        /// Plain UTF-8 text, tokenized here.
        Text = "text",
        /// Comma-separated columns; the first row names them, fields may stand in double quotes.
        Csv = "csv",
        /// Tab-separated columns; the first row names them, quotes mean nothing.
        Tsv = "tsv",
        /// A JSON object a line.
        Jsonl = "jsonl",
        /// Parquet files.
        Parquet = "parquet",
        /// The folders that `datasets.save_to_disk` writes, and their files.
        Arrow = "arrow",
        /// SQuAD's JSON, version 1.1 or 2.0, for question answering.
        Squad = "squad",
        /// JSON or JSONL rows of `input_ids`, `attention_mask`, `token_type_ids`, `labels`; -100 is the ignored label.
        Tokenized = "tokenized",
    }
}

impl DataFormat {
    /// The endings of the names of files in this format, in lower case: a folder of data stands for these files.
    pub fn endings(self) -> &'static [&'static str] {
        match self {
            Self::Text => &["txt", "text", "raw", "tokens"],
            Self::Csv => &["csv"],
            Self::Tsv => &["tsv"],
            Self::Jsonl | Self::Tokenized => &["jsonl", "ndjson", "json"],
            Self::Parquet => &["parquet"],
            Self::Arrow => &["arrow"],
            Self::Squad => &["json", "jsonl", "ndjson", "parquet", "arrow"],
        }
    }

    /// The format of a table whose file's name has this ending, in lower case; none for another ending.
    pub fn of_table(ending: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|format| format.is_table() && format.endings().contains(&ending))
    }

    /// Whether the files are tables, whose columns the config names.
    pub fn is_table(self) -> bool {
        matches!(self, Self::Csv | Self::Tsv | Self::Jsonl | Self::Parquet | Self::Arrow)
    }
}

names! {
    /// The token that follows a document of a text, in front of the next one.
    DocumentEnd("end of a document") {
        /// `eos` after files and lines, `none` after rows of a table.
        Auto = "auto",
        /// The tokenizer's end-of-text, once where the tokenizer puts it after every text already.
        Eos = "eos",
        /// Nothing but what the tokenizer puts around every text, as `run_clm.py` and `run_mlm.py` of `transformers` join rows.
        None = "none",
    }
}

names! {
    /// The unit of a text that is one document.
    Documents("kind of document") {
        /// A whole file.
        File = "file",
        /// A line; blank lines are none.
        Line = "line",
        /// A line, blank ones too, without its end, as `load_dataset("text")` reads rows for `run_mlm.py` of `transformers`.
        Row = "row",
        /// A line with its end, blank ones too, as `run_clm.py` of `transformers` keeps line breaks.
        RowWithBreak = "row_with_break",
    }
}

names! {
    /// To which length the rows of a batch are padded.
    PaddingStrategy("padding", no_padding) {
        /// The longest row of the batch.
        Longest = "longest",
        /// `max_length` for tables, else the longest example of the data: every batch has one shape.
        MaxLength = "max_length",
        /// The next of a few lengths that are chosen from the data.
        Buckets = "buckets",
    }
}

fn no_padding(given: &str) -> Option<Result<PaddingStrategy, Error>> {
    (given == "do_not_pad").then(|| {
        Err(Error::config("`do_not_pad` is not available: the rows of a batch have one length")
            .help("`longest` pads least"))
    })
}

names! {
    /// The order in which training samples are drawn.
    Sampler("sampler") {
        /// A new seeded permutation in every epoch.
        Random = "random",
        /// The order of the files.
        Sequential = "sequential",
        /// A random order in which the examples of a step have similar lengths, so that little is padding.
        GroupByLength = "group_by_length",
    }
}

names! {
    /// When the model is evaluated during training (Hugging Face's `eval_strategy`).
    EvalStrategy("evaluation strategy") {
        /// Never.
        No = "no",
        /// Every `eval_steps` optimizer steps.
        Steps = "steps",
        /// At the end of every epoch.
        Epoch = "epoch",
    }
}

names! {
    /// When a log row is written (Hugging Face's `logging_strategy`).
    LoggingStrategy("logging strategy") {
        /// Never; evaluations and the summary have their rows all the same.
        No = "no",
        /// Every `logging_steps` optimizer steps and at the end.
        Steps = "steps",
        /// At the end of every epoch and at the end.
        Epoch = "epoch",
    }
}

names! {
    /// How much `kiln train` says besides rows and errors (Hugging Face's `log_level`).
    LogLevel("log level") {
        /// Everything, as `info`.
        Detail = "detail",
        /// Everything, as `info`.
        Debug = "debug",
        /// The plan, what is loaded and written, and notices.
        Info = "info",
        /// Notices.
        Warning = "warning",
        /// Neither plan nor notices.
        Error = "error",
        /// As `error`.
        Critical = "critical",
        /// The default of the application, which is `info`.
        Passive = "passive",
    }
}

impl LogLevel {
    /// Whether the plan, what is loaded and what is written are said.
    pub fn informs(self) -> bool {
        matches!(self, Self::Detail | Self::Debug | Self::Info | Self::Passive)
    }

    /// Whether notices are said.
    pub fn warns(self) -> bool {
        self.informs() || self == Self::Warning
    }
}

names! {
    /// When a checkpoint is saved during training (Hugging Face's `save_strategy`).
    SaveStrategy("save strategy") {
        /// Never on a schedule; a run that is stopped before its end saves one all the same.
        No = "no",
        /// Every `save_steps` optimizer steps and at the end.
        Steps = "steps",
        /// At the end of every epoch and at the end.
        Epoch = "epoch",
        /// After every evaluation that is the best so far.
        Best = "best",
    }
}

names! {
    /// Who is told of the rows of a run, besides `metrics.jsonl` and stdout (Hugging Face's `report_to`).
    Integration("integration", integration_synonym) {
        /// TensorBoard event files in `tensorboard/` in the run folder.
        TensorBoard = "tensorboard",
    }
}

/// The rest of transformers.integrations' names: services and their clients.
pub(crate) const SERVICES: [&str; 12] = [
    "azure_ml",
    "clearml",
    "codecarbon",
    "comet_ml",
    "dagshub",
    "dvclive",
    "flyte",
    "mlflow",
    "neptune",
    "swanlab",
    "trackio",
    "wandb",
];

fn integration_synonym(given: &str) -> Option<Result<Integration, Error>> {
    SERVICES.contains(&given).then(|| {
        Err(Error::config(format!("Hugging Face's integration `{given}` is not supported by this version"))
            .help("metrics.jsonl in the run folder has every row; or use \"tensorboard\""))
    })
}

names! {
    /// Where the run computes.
    DeviceKind("device kind") {
        /// The best device that this build and machine offer.
        Auto = "auto",
        /// The processor.
        Cpu = "cpu",
        /// A GPU through WebGPU (Vulkan, Metal, DirectX 12).
        Wgpu = "wgpu",
        /// An NVIDIA GPU through CUDA.
        Cuda = "cuda",
    }
}

names! {
    /// The results that the backward pass computes again instead of keeping them from the forward pass. Gradients are the same, up to rounding.
    ActivationCheckpointing("activation checkpointing") {
        /// Nothing: everything is kept.
        None = "none",
        /// Element-wise operations, which cost little to compute and much to keep. Results of matrix products, sums and
        /// lookups are kept.
        Balanced = "balanced",
        /// Whole layers: between forward and backward pass only what passes from one to the next is kept.
        Blocks = "blocks",
    }
}

names! {
    /// The type of matrix products. Parameters, optimizer state, norms, softmax and losses are in f32 under all of them.
    Precision("precision", precision_synonym) {
        /// The best that the device computes in itself, with the reason printed.
        Auto = "auto",
        /// 32 bits.
        F32 = "f32",
        /// bfloat16: the range of f32 with 8 bits of precision.
        Bf16 = "bf16",
        /// IEEE half precision, with a dynamic loss scale.
        F16 = "f16",
    }
}

#[allow(clippy::derivable_impls)] // the macro derives no default
impl Default for DeviceKind {
    fn default() -> Self {
        Self::Auto
    }
}

#[allow(clippy::derivable_impls)] // as above
impl Default for Precision {
    fn default() -> Self {
        Self::F32
    }
}

fn precision_synonym(given: &str) -> Option<Result<Precision, Error>> {
    match given {
        "fp32" | "float32" | "no" => Some(Ok(Precision::F32)),
        "bfloat16" => Some(Ok(Precision::Bf16)),
        "fp16" | "float16" => Some(Ok(Precision::F16)),
        "tf32" => Some(Err(Error::config("`tf32` is no setting of Burn 0.22: it has no switch for it")
            .help("with `f32`, CUDA's matrix products are in TF32 wherever such a kernel wins; the plan says so"))),
        "fp8" | "int8" | "f64" | "float64" => {
            Some(Err(Error::config(format!("the precision `{given}` is not supported by this version"))
                .help("use f32, bf16, f16 or auto")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_name_reads_back_as_itself() {
        for value in OnExisting::ALL {
            assert_eq!(value.as_str().parse::<OnExisting>().unwrap(), *value);
        }
        for value in DeviceKind::ALL {
            assert_eq!(value.to_string().parse::<DeviceKind>().unwrap(), *value);
        }
        for (text, value) in [("fp32", Precision::F32), ("fp16", Precision::F16), ("auto", Precision::Auto)] {
            assert_eq!(text.parse::<Precision>().unwrap(), value);
        }
        assert_eq!("gpt2".parse::<ModelKind>().unwrap(), ModelKind::Gpt2);
        assert_eq!("tokenized".parse::<DataFormat>().unwrap(), DataFormat::Tokenized);
        assert_eq!("line".parse::<Documents>().unwrap(), Documents::Line);
        assert_eq!("max_length".parse::<PaddingStrategy>().unwrap(), PaddingStrategy::MaxLength);
        assert_eq!("sequential".parse::<Sampler>().unwrap(), Sampler::Sequential);
        assert_eq!("best".parse::<SaveStrategy>().unwrap(), SaveStrategy::Best);
        assert_eq!("epoch".parse::<EvalStrategy>().unwrap(), EvalStrategy::Epoch);
    }

    #[test]
    fn names_refused_with_a_reason_or_a_suggestion() {
        let refused = |error: Error, part: &str| assert!(error.to_string().contains(part), "{error}");
        refused("resumes".parse::<OnExisting>().unwrap_err(), "did you mean `resume`?");
        refused("tokenised".parse::<DataFormat>().unwrap_err(), "did you mean `tokenized`?");
        refused("do_not_pad".parse::<PaddingStrategy>().unwrap_err(), "`longest` pads least");
        refused("group_by_len".parse::<Sampler>().unwrap_err(), "did you mean `group_by_length`?");
        refused("gpt-2".parse::<ModelKind>().unwrap_err(), "did you mean `gpt2`?");
        refused("block".parse::<ActivationCheckpointing>().unwrap_err(), "did you mean `blocks`?");
        refused("bf32".parse::<Precision>().unwrap_err(), "did you mean");
        refused("tf32".parse::<Precision>().unwrap_err(), "no switch");
        refused("fp8".parse::<Precision>().unwrap_err(), "not supported");
        refused("gpu".parse::<DeviceKind>().unwrap_err(), "expected one of auto, cpu, wgpu, cuda");
    }
}
