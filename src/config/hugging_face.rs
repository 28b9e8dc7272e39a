//! Every argument of Hugging Face's `TrainingArguments`, in one table: what it sets here, that it
//! has no effect here, or what to use instead. The table of the documentation is written from it.
//! Those that are names of the Trainer's arguments here too follow from their entries there. The
//! list is that of transformers 5.23 and 4.57, with the names of earlier releases that a script may
//! still carry.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::LazyLock;

use serde_json::Value as Json;
use toml::{Table, Value};

use kiln_core::complaint::Complaint;

use crate::arguments::{Key, TrainingArguments};

/// The treatment of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is a key of the config, or sets one.
    Honoured,
    /// Every value is taken and changes nothing.
    NoEffect,
    /// A value that asks for nothing is taken, any other one is refused.
    Refused,
}

/// The releases that have an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Releases {
    /// 5.23 and 4.57.
    Both,
    /// 5.23 alone.
    New,
    /// 4.57 alone.
    Old,
    /// Neither of the two.
    Older,
}

impl Releases {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Both => "4.57, 5.23",
            Self::New => "5.23",
            Self::Old => "4.57",
            Self::Older => "older",
        }
    }
}

/// A kind of values of an argument, by its annotation in `TrainingArguments`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A switch: true or false, or a spelling that `HfArgumentParser` reads as one.
    Flag,
    Whole,
    Number,
    Text,
    /// One text or a list of them.
    Names,
    Table,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Flag => "true or false",
            Self::Whole => "a whole number",
            Self::Number => "a number",
            Self::Text => "text",
            Self::Names => "text or a list of texts",
            Self::Table => "a table",
        }
    }

    fn has(self, value: &Json) -> bool {
        match self {
            Self::Flag => value.is_boolean(),
            Self::Whole => {
                value.is_u64() || value.is_i64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
            }
            Self::Number => value.is_number(),
            Self::Text => value.is_string(),
            Self::Names => value.is_string() || value.as_array().is_some_and(|list| list.iter().all(Json::is_string)),
            Self::Table => value.is_object(),
        }
    }
}

/// An argument of `TrainingArguments`.
#[derive(Debug, Clone)]
pub(crate) struct Argument {
    pub(crate) name: &'static str,
    releases: Releases,
    kinds: &'static [Kind],
    pub(crate) standing: Standing,
    /// The values that ask for nothing, as a JSON list; null is always one.
    neutral: &'static str,
    /// A note for the user: the keys that it sets, why it has no effect, or what to use instead.
    pub(crate) note: Cow<'static, str>,
}

impl Argument {
    /// Parses `value` as a boolean, in the spellings of `HfArgumentParser` (its `string_to_bool`)
    /// or as a number of Python's; none for an argument that takes more than a boolean, and for
    /// other values.
    pub(crate) fn switched(&self, value: &Json) -> Option<bool> {
        let text = match value {
            _ if *self.kinds != [Kind::Flag] => return None,
            Json::String(text) => text.to_ascii_lowercase(),
            value => value.to_string(),
        };
        match text.as_str() {
            "true" | "yes" | "t" | "y" | "1" => Some(true),
            "false" | "no" | "f" | "n" | "0" => Some(false),
            _ => None,
        }
    }

    /// Whether `value` is of a kind that the argument takes.
    pub(crate) fn takes(&self, value: &Json) -> bool {
        value.is_null() || self.switched(value).is_some() || self.kinds.iter().any(|kind| kind.has(value))
    }

    /// Whether values of `kind` are among those that it takes.
    pub(crate) fn takes_a(&self, kind: Kind) -> bool {
        self.kinds.contains(&kind)
    }

    /// The kinds that it takes, for a message.
    pub(crate) fn kinds(&self) -> String {
        self.kinds.iter().map(|kind| kind.as_str()).collect::<Vec<_>>().join(", or ")
    }

    /// Whether `value` asks for nothing: it is a default, or as good as one.
    pub(crate) fn is_neutral(&self, value: &Json) -> bool {
        let neutral: Json = serde_json::from_str(self.neutral).unwrap_or_default();
        let value = &self.switched(value).map_or_else(|| value.clone(), Json::from);
        let same = |known: &Json| match (known.as_f64(), value.as_f64()) {
            (Some(known), Some(value)) => known == value,
            _ => known == value,
        };
        value.is_null() || neutral.as_array().is_some_and(|neutral| neutral.iter().any(same))
    }
}

/// The argument of this name.
pub(crate) fn argument(name: &str) -> Option<&'static Argument> {
    ARGUMENTS.iter().find(|argument| argument.name == name)
}

/// Puts a key of `[section]` under its present name, in the section where it belongs.
pub(crate) fn place<'a>(section: &'a str, key: &'a str, value: Value) -> Result<(&'a str, &'a str, Value), Complaint> {
    match (section, key) {
        ("lora", "alpha") => return Ok((section, "lora_alpha", value)),
        ("lora", "dropout") => return Ok((section, "lora_dropout", value)),
        ("trainer", _) => {}
        _ => return Ok((section, key, value)),
    }
    Ok(match key {
        "evaluation_strategy" => (section, "eval_strategy", value),
        "per_gpu_train_batch_size" => (section, "per_device_train_batch_size", value),
        "per_gpu_eval_batch_size" => (section, "per_device_eval_batch_size", value),
        "train_sampling_strategy" => ("data", "sampler", value),
        "ddp_backend" => ("distributed", "ddp_backend", value),
        "optim_args" => match value {
            Value::String(text) => {
                let table = table_of(&text).map_err(|problem| Complaint::new("trainer.optim_args", problem))?;
                (section, key, Value::Table(table))
            }
            other => (section, key, other),
        },
        _ => match keys_of_trainer().find(|entry| entry.field == key).and_then(|entry| entry.name.split_once('.')) {
            Some((section, key)) => (section, key, value),
            None => (section, key, value),
        },
    })
}

/// The keys whose names are arguments of `TrainingArguments`.
fn keys_of_trainer() -> impl Iterator<Item = &'static Key> {
    TrainingArguments::KEYS.iter().filter(|key| key.is_hugging_face)
}

/// A switch of `TrainingArguments` that sets a key of another name when it is true, and asks for
/// nothing when it is false.
pub(crate) struct Switch {
    pub(crate) name: &'static str,
    /// Section and key; keys above the sections have none.
    pub(crate) target: (&'static str, &'static str),
    /// The key's value.
    pub value: &'static str,
    /// It wins over the key itself in the same place, as it does in Hugging Face.
    pub(crate) wins: bool,
}

const fn switch(name: &'static str, section: &'static str, key: &'static str, value: &'static str) -> Switch {
    Switch { name, target: (section, key), value, wins: false }
}

/// The switches, those that older spellings name first.
pub(crate) const SWITCHES: &[Switch] = &[
    switch("no_cuda", "device", "kind", "cpu"),
    switch("use_cpu", "device", "kind", "cpu"),
    switch("fp16", "", "precision", "f16"),
    switch("bf16", "", "precision", "bf16"),
    switch("gradient_checkpointing", "trainer", "activation_checkpointing", "blocks"),
    switch("evaluate_during_training", "trainer", "eval_strategy", "steps"),
    switch("overwrite_output_dir", "run", "on_existing", "overwrite"),
    switch("torch_compile", "compiler", "enabled", "compiled"),
    Switch { name: "group_by_length", target: ("data", "sampler"), value: "group_by_length", wins: true },
    Switch { name: "adafactor", target: ("trainer", "optim"), value: "adafactor", wins: true },
];

/// The table of all arguments of `TrainingArguments` and what becomes of them here, in Markdown. It
/// is this:
#[doc = include_str!("hugging_face_arguments.md")]
pub fn hugging_face_arguments() -> String {
    let count = |standing| ARGUMENTS.iter().filter(|argument| argument.standing == standing).count();
    let mut text = format!(
        "# Arguments of `TrainingArguments`\n\nKiln takes them in `[trainer]`, by `--set trainer.NAME=VALUE`, and from a file \
         that `TrainingArguments.to_json_string()` wrote, by `--hf-args`. {} are honoured. {} have no effect here: every value \
         is taken, and the plan lists them in one line. {} are refused unless their value asks for nothing.\n\n\
         | Argument | transformers | In Kiln | |\n|---|---|---|---|\n",
        count(Standing::Honoured),
        count(Standing::NoEffect),
        count(Standing::Refused),
    );
    for Argument { name, releases, standing, note, .. } in ARGUMENTS.iter() {
        let standing = match standing {
            Standing::Honoured => "honoured",
            Standing::NoEffect => "no effect",
            Standing::Refused => "refused",
        };
        writeln!(text, "| `{name}` | {} | {standing} | {note} |", releases.as_str())
            .expect("writing to a String cannot fail");
    }
    text
}

/// The kinds of values of an argument.
type Kinds = &'static [Kind];

const fn honoured(name: &'static str, releases: Releases, kinds: Kinds, note: &'static str) -> Argument {
    Argument { name, releases, kinds, standing: Standing::Honoured, neutral: "[]", note: Cow::Borrowed(note) }
}

const fn no_effect(
    name: &'static str,
    releases: Releases,
    kinds: Kinds,
    neutral: &'static str,
    note: &'static str,
) -> Argument {
    Argument { name, releases, kinds, standing: Standing::NoEffect, neutral, note: Cow::Borrowed(note) }
}

const fn refused(
    name: &'static str,
    releases: Releases,
    kinds: Kinds,
    neutral: &'static str,
    note: &'static str,
) -> Argument {
    Argument { name, releases, kinds, standing: Standing::Refused, neutral, note: Cow::Borrowed(note) }
}

const FLAG: Kinds = &[Kind::Flag];
const WHOLE: Kinds = &[Kind::Whole];
const NUMBER: Kinds = &[Kind::Number];
const TEXT: Kinds = &[Kind::Text];
const NAMES: Kinds = &[Kind::Names];
const TABLE: Kinds = &[Kind::Table];
const WHOLE_OR_TEXT: Kinds = &[Kind::Whole, Kind::Text];
const NUMBER_OR_TEXT: Kinds = &[Kind::Number, Kind::Text];
const FLAG_OR_TEXT: Kinds = &[Kind::Flag, Kind::Text];
const FLAG_OR_NAMES: Kinds = &[Kind::Flag, Kind::Names];
const TABLE_OR_TEXT: Kinds = &[Kind::Table, Kind::Text];

const SAME: &str = "the key of the same name in `[trainer]`";
const PYTORCH: &str = "it belongs to PyTorch";
const ONE_PROCESS: &str = "data is read ahead in a thread of the one process";
const ONE_DEVICE: &str = "`kiln launch` starts the processes of a run, and they need no such setting";
const HUB_TOKEN: &str =
    "the token is that of `HF_TOKEN` or of `hf auth login`, so that no file has it; refused with `push_to_hub`";
const LAUNCHER: &str = "leave it out: a run of several processes has the whole model in each (`kiln launch`)";
const NO_TRACKER: &str = "rows go to `metrics.jsonl`, to stdout, and with `report_to` to TensorBoard or MLflow";
const TOKENS: &str = "every log row has `tokens` and `tokens_per_s`";
const EVALUATION: &str = "an evaluation keeps sums and predictions, never all logits";
const FSDP: &str = "it belongs to `fsdp`";
const NONE_FALSE: &str = "[false]";

/// Notes on keys of the same name that behave otherwise than Hugging Face's.
const NOTES: &[(&str, &str)] = &[
    ("max_steps", "the key of the same name in `[trainer]`; wins over `num_train_epochs`"),
    ("lr_scheduler_type", "the key of the same name in `[trainer]`; not `reduce_lr_on_plateau` or `greedy`"),
    ("warmup_steps", "the key of the same name in `[trainer]`; not used by the schedule `constant`"),
    ("optim", "the key of the same name in `[trainer]`; an optimizer that Kiln lacks is refused with the nearest"),
    (
        "report_to",
        "the key of the same name in `[trainer]`; a service besides MLflow in an `--hf-args` file has no effect, and MLflow has none without `MLFLOW_TRACKING_URI`",
    ),
    (
        "push_to_hub",
        "the key of the same name in `[trainer]`; true needs a build with the Cargo feature `push` and a token, by `HF_TOKEN` or `hf auth login`",
    ),
    ("hub_strategy", "the key of the same name in `[trainer]`; `all_checkpoints` is refused with `push_to_hub`"),
    (
        "full_determinism",
        "the key of the same name in `[trainer]`; on the CPU every run is deterministic, elsewhere it is refused",
    ),
    (
        "do_train",
        "the key of the same name in `[trainer]`; false in an `--hf-args` file that asks for nothing else is the default of `TrainingArguments`, and trains",
    ),
];

/// All arguments: those that are names of the Trainer's arguments here too, then the others.
pub(crate) static ARGUMENTS: LazyLock<Vec<Argument>> =
    LazyLock::new(|| keys_of_trainer().map(of_key).chain(OTHERS.iter().cloned()).collect());

/// The argument that sets `key`.
fn of_key(key: &Key) -> Argument {
    let name = key.field;
    let kind = key.kind.strip_prefix("Option<").and_then(|kind| kind.strip_suffix('>')).unwrap_or(key.kind);
    let kinds = match kind {
        "bool" => FLAG,
        "usize" => WHOLE,
        "f64" => NUMBER,
        "Interval" => NUMBER_OR_TEXT,
        // A number of more than 63 bits is written as text.
        "u64" | "TrainBatchSize" => WHOLE_OR_TEXT,
        "OptimArgs" | "SchedulerKwargs" => TABLE_OR_TEXT,
        _ if kind.starts_with("Vec<") => NAMES,
        _ => TEXT,
    };
    let note = match NOTES.iter().find(|(of, _)| *of == name) {
        Some((_, note)) => Cow::Borrowed(*note),
        None if key.name.starts_with("trainer.") => SAME.into(),
        None => format!("sets `{}`", key.name).into(),
    };
    Argument { note, ..honoured(name, Releases::Both, kinds, SAME) }
}

/// The arguments that are no keys of the same name: in the order of 5.23, then those of 4.57 alone,
/// then older ones.
const OTHERS: &[Argument] = {
    use Releases::{Both, New, Old, Older};
    &[
        refused(
            "optim_target_modules",
            Both,
            NAMES,
            "[]",
            "leave it out: it belongs to GaLore and APOLLO, which Kiln does not have",
        ),
        no_effect("average_tokens_across_devices", Both, FLAG, "[true, false]", ONE_DEVICE),
        honoured("bf16", Both, FLAG, "true sets `precision = \"bf16\"`"),
        honoured("fp16", Both, FLAG, "true sets `precision = \"f16\"`"),
        refused(
            "bf16_full_eval",
            Both,
            FLAG,
            NONE_FALSE,
            "no effect beside `precision = \"bf16\"`, since evaluation computes as training does",
        ),
        refused(
            "fp16_full_eval",
            Both,
            FLAG,
            NONE_FALSE,
            "no effect beside `precision = \"f16\"`, since evaluation computes as training does",
        ),
        no_effect(
            "tf32",
            Both,
            FLAG,
            "[]",
            "Burn has no switch; with `precision = \"f32\"` CUDA's matrix products are in TF32 where such a kernel wins, and nowhere else",
        ),
        honoured(
            "activation_checkpointing",
            New,
            FLAG_OR_TEXT,
            "true sets `trainer.activation_checkpointing = \"blocks\"`, whose other values are Kiln's",
        ),
        no_effect(
            "activation_checkpointing_kwargs",
            New,
            TABLE_OR_TEXT,
            "[{}]",
            "the layers of `trainer.activation_checkpointing` are computed again as they are",
        ),
        honoured("gradient_checkpointing", Both, FLAG, "true sets `trainer.activation_checkpointing = \"blocks\"`"),
        no_effect(
            "gradient_checkpointing_kwargs",
            Both,
            TABLE_OR_TEXT,
            "[{}]",
            "the layers of `trainer.activation_checkpointing` are computed again as they are",
        ),
        honoured("torch_compile", Both, FLAG, "true sets `compiler.enabled = true`"),
        no_effect("torch_compile_backend", Both, TEXT, "[]", "the settings of Kiln's compiler stand in `[compiler]`"),
        no_effect("torch_compile_mode", Both, TEXT, "[]", "the settings of Kiln's compiler stand in `[compiler]`"),
        no_effect("use_liger_kernel", Both, FLAG, NONE_FALSE, PYTORCH),
        no_effect("liger_kernel_config", Both, TABLE, "[{}]", PYTORCH),
        no_effect("use_cache", New, FLAG, NONE_FALSE, "training keeps no keys and values"),
        no_effect("torch_empty_cache_steps", Both, WHOLE, "[]", PYTORCH),
        honoured(
            "auto_find_batch_size",
            Both,
            FLAG,
            "with or without it, a micro-batch that does not fit in memory is halved at the same global batch; `per_device_train_batch_size = \"auto\"` searches for the largest one",
        ),
        no_effect("log_on_each_node", Both, FLAG, "[true, false]", ONE_DEVICE),
        no_effect("logging_nan_inf_filter", Both, FLAG, "[true]", "a loss that is not finite ends the run"),
        no_effect("include_num_input_tokens_seen", Both, FLAG_OR_TEXT, "[\"no\", false]", TOKENS),
        no_effect("log_level_replica", Both, TEXT, "[\"warning\"]", ONE_DEVICE),
        no_effect("disable_tqdm", Both, FLAG, "[true, false]", "the progress bar shows on a terminal only"),
        no_effect("project", Both, TEXT, "[\"huggingface\"]", NO_TRACKER),
        no_effect("trackio_space_id", Both, TEXT, "[\"trackio\"]", NO_TRACKER),
        no_effect("trackio_bucket_id", New, TEXT, "[]", NO_TRACKER),
        no_effect("trackio_static_space_id", New, FLAG_OR_TEXT, "[]", NO_TRACKER),
        no_effect("prediction_loss_only", Both, FLAG, NONE_FALSE, "an evaluation always has its task's figures"),
        no_effect("eval_do_concat_batches", Both, FLAG, "[true]", EVALUATION),
        no_effect("eval_use_gather_object", Both, FLAG, NONE_FALSE, ONE_DEVICE),
        no_effect("eval_accumulation_steps", Both, WHOLE, "[]", EVALUATION),
        no_effect("include_for_metrics", Both, NAMES, "[[]]", "the figures of an evaluation are those of the task"),
        no_effect("batch_eval_metrics", Both, FLAG, NONE_FALSE, EVALUATION),
        no_effect("save_on_each_node", Both, FLAG, NONE_FALSE, ONE_DEVICE),
        no_effect(
            "enable_jit_checkpoint",
            New,
            FLAG,
            NONE_FALSE,
            "a run that a signal stops always saves a checkpoint",
        ),
        no_effect("hub_token", Both, TEXT, "[\"<HUB_TOKEN>\"]", HUB_TOKEN),
        no_effect(
            "hub_always_push",
            Both,
            FLAG,
            NONE_FALSE,
            "one upload goes on at a time, and the last one is always made",
        ),
        no_effect(
            "ignore_data_skip",
            Both,
            FLAG,
            NONE_FALSE,
            "a resumed run goes on in the data where it stood, at no cost",
        ),
        no_effect(
            "restore_callback_states_from_checkpoint",
            Both,
            FLAG,
            NONE_FALSE,
            "a resumed run always goes on where it stood",
        ),
        honoured("use_cpu", Both, FLAG, "true sets `device.kind = \"cpu\"`"),
        no_effect(
            "accelerator_config",
            Both,
            TABLE_OR_TEXT,
            "[{}, {\"split_batches\": false, \"dispatch_batches\": null, \"even_batches\": true, \"use_seedable_sampler\": \
             true, \"non_blocking\": false, \"gradient_accumulation_kwargs\": null}]",
            ONE_DEVICE,
        ),
        refused("parallelism_config", Both, TABLE, "[{}]", LAUNCHER),
        no_effect("dataloader_num_workers", Both, WHOLE, "[0]", ONE_PROCESS),
        no_effect("dataloader_pin_memory", Both, FLAG, "[true, false]", ONE_PROCESS),
        no_effect("dataloader_persistent_workers", Both, FLAG, NONE_FALSE, ONE_PROCESS),
        no_effect("dataloader_prefetch_factor", Both, WHOLE, "[]", ONE_PROCESS),
        no_effect("dataloader_multiprocessing_context", New, TEXT, "[]", ONE_PROCESS),
        no_effect("dataloader_in_order", New, FLAG, "[true]", ONE_PROCESS),
        no_effect(
            "remove_unused_columns",
            Both,
            FLAG,
            "[true]",
            "the columns that `[data]` names are read, and no others",
        ),
        no_effect("label_names", Both, NAMES, "[]", "`data.label_column` names the label"),
        honoured("train_sampling_strategy", New, TEXT, "sets `data.sampler`"),
        no_effect(
            "length_column_name",
            Both,
            TEXT,
            "[\"length\"]",
            "the sampler `group_by_length` knows how many tokens a row has",
        ),
        no_effect("ddp_find_unused_parameters", Both, FLAG, "[]", ONE_DEVICE),
        no_effect("ddp_bucket_cap_mb", Both, WHOLE, "[]", ONE_DEVICE),
        no_effect("ddp_broadcast_buffers", Both, FLAG, "[]", ONE_DEVICE),
        no_effect("ddp_static_graph", New, FLAG, "[]", ONE_DEVICE),
        honoured(
            "ddp_backend",
            Both,
            TEXT,
            "sets `distributed.ddp_backend`; `nccl`, `mpi`, or `gloo`, which is read as `mpi`",
        ),
        no_effect("ddp_timeout", Both, WHOLE, "[1800]", ONE_DEVICE),
        refused("fsdp", Both, FLAG_OR_NAMES, "[\"\", [], false]", LAUNCHER),
        no_effect(
            "fsdp_config",
            Both,
            TABLE_OR_TEXT,
            "[{}, {\"min_num_params\": 0, \"xla\": false, \"xla_fsdp_v2\": false, \"xla_fsdp_grad_ckpt\": false}]",
            FSDP,
        ),
        refused("deepspeed", Both, &[Kind::Flag, Kind::Table, Kind::Text], "[\"\", {}, false]", LAUNCHER),
        no_effect(
            "debug",
            Both,
            NAMES,
            "[\"\", []]",
            "a loss that is not finite ends the run, and `fault/` says where",
        ),
        no_effect("skip_memory_metrics", Both, FLAG, "[true]", "every log row has `peak_mib` and `reserved_mib`"),
        honoured(
            "resume_from_checkpoint",
            Both,
            FLAG_OR_TEXT,
            "true sets `run.on_existing = \"resume\"`; a path also sets `run.resume_from_checkpoint`",
        ),
        refused("local_rank", Both, WHOLE, "[-1, 0]", LAUNCHER),
        refused(
            "_n_gpu",
            Old,
            WHOLE,
            "[-1, 0, 1]",
            "`kiln launch -n N -- train FILE` starts a process for each device",
        ),
        honoured("adafactor", Old, FLAG, "true sets `trainer.optim = \"adafactor\"`"),
        refused(
            "fp16_backend",
            Old,
            TEXT,
            "[\"auto\", \"cuda_amp\", \"cpu_amp\", \"amp\"]",
            "leave it out: `precision`, above the sections, is all there is to set",
        ),
        no_effect("fp16_opt_level", Old, TEXT, "[\"O1\"]", "it belongs to NVIDIA's Apex"),
        no_effect("fsdp_min_num_params", Old, WHOLE, "[0]", FSDP),
        no_effect("fsdp_transformer_layer_cls_to_wrap", Old, TEXT, "[]", FSDP),
        honoured("group_by_length", Old, FLAG, "true sets `data.sampler = \"group_by_length\"`"),
        refused(
            "half_precision_backend",
            Old,
            TEXT,
            "[\"auto\", \"cuda_amp\", \"cpu_amp\", \"amp\"]",
            "leave it out: `precision`, above the sections, is all there is to set",
        ),
        no_effect(
            "include_inputs_for_metrics",
            Old,
            FLAG,
            NONE_FALSE,
            "the figures of an evaluation are those of the task",
        ),
        no_effect("include_tokens_per_second", Old, FLAG, NONE_FALSE, TOKENS),
        no_effect("jit_mode_eval", Old, FLAG, NONE_FALSE, PYTORCH),
        no_effect("logging_dir", Old, TEXT, "[]", "TensorBoard's files lie in `tensorboard/` of the run folder"),
        refused("mp_parameters", Old, TABLE_OR_TEXT, "[\"\", {}]", LAUNCHER),
        honoured("no_cuda", Old, FLAG, "true sets `device.kind = \"cpu\"`; today's name is `use_cpu`"),
        honoured("overwrite_output_dir", Old, FLAG, "true sets `run.on_existing = \"overwrite\"`"),
        refused("past_index", Old, WHOLE, "[-1]", "leave it out: it belongs to models that Kiln does not have"),
        honoured("per_gpu_eval_batch_size", Old, WHOLE, "sets `trainer.per_device_eval_batch_size`, today's name"),
        honoured(
            "per_gpu_train_batch_size",
            Old,
            WHOLE_OR_TEXT,
            "sets `trainer.per_device_train_batch_size`, today's name",
        ),
        refused("push_to_hub_model_id", Old, TEXT, "[]", "today's name is `hub_model_id`, with the organization in it"),
        refused("push_to_hub_organization", Old, TEXT, "[]", "write `hub_model_id = \"ORGANIZATION/NAME\"`"),
        no_effect("push_to_hub_token", Old, TEXT, "[\"<PUSH_TO_HUB_TOKEN>\"]", HUB_TOKEN),
        no_effect("ray_scope", Old, TEXT, "[\"last\"]", "it belongs to a search of hyperparameters"),
        no_effect("save_safetensors", Old, FLAG, "[true]", "weights are always written as safetensors"),
        no_effect("torchdynamo", Old, TEXT, "[]", "today's name is `torch_compile`, which is honoured"),
        no_effect("tpu_metrics_debug", Old, FLAG, NONE_FALSE, "there are no TPUs"),
        refused("tpu_num_cores", Old, WHOLE, "[]", "set `device.kind`: there are no TPUs"),
        no_effect("use_legacy_prediction_loop", Old, FLAG, NONE_FALSE, EVALUATION),
        no_effect("use_mps_device", Old, FLAG, NONE_FALSE, "set `device.kind`"),
        honoured(
            "warmup_ratio",
            Old,
            NUMBER,
            "sets `trainer.warmup_steps`, where a value below 1 is a ratio, unless steps are given too",
        ),
        no_effect("dispatch_batches", Older, FLAG, "[]", ONE_DEVICE),
        honoured("evaluate_during_training", Older, FLAG, "true sets `trainer.eval_strategy = \"steps\"`"),
        honoured("evaluation_strategy", Older, TEXT, "sets `trainer.eval_strategy`, today's name"),
        refused(
            "n_gpu",
            Older,
            WHOLE,
            "[-1, 0, 1]",
            "`kiln launch -n N -- train FILE` starts a process for each device",
        ),
        refused("sharded_ddp", Older, FLAG_OR_NAMES, "[\"\", [], false]", LAUNCHER),
        no_effect("split_batches", Older, FLAG, NONE_FALSE, ONE_DEVICE),
        no_effect("use_ipex", Older, FLAG, NONE_FALSE, PYTORCH),
        no_effect("xpu_backend", Older, TEXT, "[]", "set `device.kind`"),
    ]
};

/// Hugging Face's `"key=value,key=value"` as a table; values are read as TOML, `True` and `False`
/// as Python writes them.
///
/// # Errors
/// A part without `=`, and a key that comes twice.
fn table_of(text: &str) -> Result<Table, String> {
    let mut table = Table::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').ok_or_else(|| format!("expected key=value, got `{part}`"))?;
        let value = match value.trim() {
            "True" => Value::Boolean(true),
            "False" => Value::Boolean(false),
            text => text.parse::<Value>().unwrap_or_else(|_| Value::String(text.to_owned())),
        };
        if table.insert(key.trim().to_owned(), value).is_some() {
            return Err(format!("`{}` is given twice", key.trim()));
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn fixture(release: &str) -> Json {
        let path = format!("{}/tests/fixtures/training_arguments_{release}.json", env!("CARGO_MANIFEST_DIR"));
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn the_table_has_every_argument_of_both_releases() {
        let has = |release: &str| -> Vec<String> {
            fixture(release)["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().into()).collect()
        };
        let (new, old) = (has("5.23"), has("4.57"));
        assert_eq!((new.len(), old.len()), (114, 133));
        for name in new.iter().chain(&old) {
            let found = argument(name).unwrap_or_else(|| panic!("{name} is not in the table"));
            let expected = match (new.contains(name), old.contains(name)) {
                (true, true) => Releases::Both,
                (true, false) => Releases::New,
                _ => Releases::Old,
            };
            assert_eq!(found.releases, expected, "{name}");
        }
        let mut names = ARGUMENTS.iter().map(|argument| argument.name).collect::<Vec<_>>();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count, "an argument is listed twice");
    }

    #[test]
    fn every_default_is_neutral() {
        for release in ["5.23", "4.57"] {
            for (name, value) in fixture(release)["cases"]["defaults"].as_object().unwrap() {
                let argument = argument(name).unwrap();
                let neutral = argument.is_neutral(value) || argument.standing == Standing::Honoured;
                // It names the moment and the machine.
                assert!(neutral || name == "logging_dir", "{name} = {value}");
            }
        }
        for argument in ARGUMENTS.iter() {
            assert!(serde_json::from_str::<Json>(argument.neutral).unwrap().is_array(), "{}", argument.name);
        }
    }

    /// The file in the documentation is what the table gives; `KILN_WRITE_DOCS=1` writes it.
    #[test]
    fn the_table_in_the_documentation_is_this_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/config/hugging_face_arguments.md");
        if std::env::var_os("KILN_WRITE_DOCS").is_some() {
            std::fs::write(path, hugging_face_arguments()).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap();
        assert!(written == hugging_face_arguments(), "{path} is stale: run this test with KILN_WRITE_DOCS=1");
    }

    #[test]
    fn arguments_of_an_optimizer_are_read_from_text() {
        let read = table_of("momentum=0.9, nesterov=True,adjust_lr_fn=original").unwrap();
        assert_eq!(read, toml::from_str("momentum = 0.9\nnesterov = true\nadjust_lr_fn = 'original'").unwrap());
        assert!(table_of("momentum").unwrap_err().contains("expected key=value"));
        assert!(table_of("momentum=1,momentum=2").unwrap_err().contains("twice"));
        assert!(table_of("").unwrap().is_empty());
    }
}
