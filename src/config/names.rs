//! The settings that are one name out of a few: each an enum with its spelling in a file, the list
//! of all spellings and an error with the nearest one. Values that are known but that this version
//! cannot do are refused here, with the reason.

use kiln_core::choices;
use kiln_core::error::Error;

choices! {
    /// The way in which a run treats a run folder that exists already.
    OnExisting("on_existing") {
        /// Stop with an error; nothing is touched.
        Fail = "fail",
        /// Remove what an earlier run left there.
        Overwrite = "overwrite",
        /// Continue the run from its newest whole checkpoint; from the start when the folder holds
        /// no checkpoint and no model.
        Resume = "resume",
    }
}

choices! {
    /// How a run computes.
    CompilerMode("compiler") {
        /// Every operation eagerly, as Burn has it.
        Native = "native",
        /// With what the training compiler can activate on the device.
        Compiled = "compiled",
        /// The better of the two: training finds out by a short trial on its own data, other
        /// commands take `compiled` where the device has it.
        Auto = "auto",
    }
}

choices! {
    /// The library that sums the gradients of several devices.
    DdpBackend("ddp_backend") {
        /// NVIDIA's NCCL, on the devices themselves, which are CUDA's.
        Nccl = "nccl",
        /// MPI, in the memory of the machine.
        Mpi = "mpi",
    }
}

choices! {
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

choices! {
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
    }
}

choices! {
    /// How the losses of the micro-batches of an optimizer step become its loss, in the tasks in
    /// which `transformers` takes the mean of each micro-batch.
    Accumulation("accumulation") {
        /// One sum over all micro-batches, divided once: how a step is cut makes no difference.
        Exact = "exact",
        /// The loss of the Trainer of `transformers` 5.24; see
        /// [`Reduction`](crate::task::Reduction). Its divisor of GPT-2's language model counts the
        /// first label of each row too, which nothing predicts.
        Transformers = "transformers",
    }
}

choices! {
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

choices! {
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

choices! {
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
        /// Neither plan nor notices.
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

choices! {
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

choices! {
    /// Who is told of the rows of a run, besides `metrics.jsonl` and stdout (Hugging Face's
    /// `report_to`).
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

choices! {
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

choices! {
    /// The results that the backward pass computes again instead of keeping them from the forward
    /// pass. Gradients are the same, up to rounding.
    ActivationCheckpointing("activation checkpointing") {
        /// Nothing: everything is kept.
        None = "none",
        /// Element-wise operations, which cost little to compute and much to keep. Results of
        /// matrix products, sums and lookups are kept.
        Balanced = "balanced",
        /// Whole layers: between forward and backward pass only what passes from one to the next is
        /// kept.
        Blocks = "blocks",
    }
}

choices! {
    /// The type of matrix products. Parameters, optimizer state, norms, softmax and losses are in
    /// f32 under all of them.
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
        assert_eq!("best".parse::<SaveStrategy>().unwrap(), SaveStrategy::Best);
        assert_eq!("epoch".parse::<EvalStrategy>().unwrap(), EvalStrategy::Epoch);
    }

    #[test]
    fn names_refused_with_a_reason_or_a_suggestion() {
        let refused = |error: Error, part: &str| assert!(error.to_string().contains(part), "{error}");
        refused("resumes".parse::<OnExisting>().unwrap_err(), "did you mean `resume`?");
        refused("gpt-2".parse::<ModelKind>().unwrap_err(), "did you mean `gpt2`?");
        refused("block".parse::<ActivationCheckpointing>().unwrap_err(), "did you mean `blocks`?");
        refused("bf32".parse::<Precision>().unwrap_err(), "did you mean");
        refused("tf32".parse::<Precision>().unwrap_err(), "no switch");
        refused("fp8".parse::<Precision>().unwrap_err(), "not supported");
        refused("gpu".parse::<DeviceKind>().unwrap_err(), "expected one of auto, cpu, wgpu, cuda");
    }
}
