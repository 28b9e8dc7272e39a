//! Hugging Face's names in `[trainer]`: spellings of earlier releases that become today's, arguments that have their
//! place in another section, and arguments that this version does not honour, each refused with the way out. The list
//! is `TrainingArguments` of transformers 5.23, and of 4.x where a script may still carry a name from there.

use toml::Value;

use super::document::Complaint;
use super::optimizer::table_of;

/// Where a key of the file belongs, with its value there; `None` for a setting that asks for nothing.
pub(crate) type Placed<'a> = Option<(&'a str, &'a str, Value)>;

/// Puts a key of `[section]` under its present name.
pub(crate) fn place<'a>(section: &'a str, key: &'a str, value: Value) -> Result<Placed<'a>, Complaint> {
    if section != "trainer" {
        return Ok(Some((section, key, value)));
    }
    Ok(Some(match key {
        "evaluation_strategy" => ("trainer", "eval_strategy", value),
        "per_gpu_train_batch_size" => ("trainer", "per_device_train_batch_size", value),
        "per_gpu_eval_batch_size" => ("trainer", "per_device_eval_batch_size", value),
        "warmup_ratio" => match number(&value) {
            Some(ratio) if (0.0..1.0).contains(&ratio) => ("trainer", "warmup_steps", Value::Float(ratio)),
            _ => {
                return Err(Complaint::new(
                    "trainer.warmup_ratio",
                    format!("expected a ratio from 0 to below 1, got {value}"),
                ));
            }
        },
        "train_sampling_strategy" => ("data", "sampler", value),
        "group_by_length" => return when_true(key, &value, "data", "sampler", "group_by_length"),
        "use_cpu" | "no_cuda" => return when_true(key, &value, "device", "kind", "cpu"),
        "adafactor" => return when_true(key, &value, "trainer", "optim", "adafactor"),
        "gradient_checkpointing" => return when_true(key, &value, "trainer", "activation_checkpointing", "blocks"),
        "fp16" => return when_true(key, &value, "", "precision", "f16"),
        "bf16" => return when_true(key, &value, "", "precision", "bf16"),
        "optim_args" => match value {
            Value::String(text) => {
                let table = table_of(&text).map_err(|problem| Complaint::new("trainer.optim_args", problem))?;
                ("trainer", key, Value::Table(table))
            }
            other => ("trainer", key, other),
        },
        _ => ("trainer", key, value),
    }))
}

/// A switch that asks for `setting` of `[section]` when it is true, and for nothing when it is false.
fn when_true<'a>(
    key: &str,
    value: &Value,
    section: &'static str,
    name: &'static str,
    setting: &str,
) -> Result<Placed<'a>, Complaint> {
    match value {
        Value::Boolean(true) => Ok(Some((section, name, Value::from(setting)))),
        Value::Boolean(false) => Ok(None),
        other => {
            let place = match section {
                "" => format!("{name}, above the sections"),
                _ => format!("{section}.{name}"),
            };
            Err(Complaint::new(&format!("trainer.{key}"), format!("expected true or false, got {other}"))
                .help(format!("or set {place}")))
        }
    }
}

/// The older spellings and the arguments that live in another section, for tests and messages.
#[cfg(test)]
pub(crate) const PLACED: [&str; 12] = [
    "adafactor",
    "bf16",
    "fp16",
    "gradient_checkpointing",
    "evaluation_strategy",
    "per_gpu_train_batch_size",
    "per_gpu_eval_batch_size",
    "warmup_ratio",
    "train_sampling_strategy",
    "group_by_length",
    "use_cpu",
    "no_cuda",
];

fn number(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|value| value as f64))
}

/// What to do instead of a `TrainingArguments` field that this version does not honour; `None` for any other key.
pub(crate) fn way_out(key: &str) -> Option<&'static str> {
    UNSUPPORTED.iter().find_map(|(keys, help)| keys.contains(&key).then_some(*help))
}

/// Arguments of `TrainingArguments` that are refused, with the way out.
pub(crate) const UNSUPPORTED: &[(&[&str], &str)] = &[
    (&["output_dir", "logging_dir"], "set run.output_dir; metrics.jsonl lies in the same folder"),
    (&["run_name"], "name the run by run.output_dir"),
    (&["overwrite_output_dir"], "set run.on_existing = \"overwrite\" (or \"resume\" or \"fail\")"),
    (
        &["resume_from_checkpoint"],
        "set run.on_existing = \"resume\" or use `kiln train FILE --resume`: the run continues from its newest checkpoint",
    ),
    (
        &["ignore_data_skip", "restore_callback_states_from_checkpoint"],
        "remove it: a resumed run continues where it stood, in the data and in its counters",
    ),
    (
        &["do_train", "do_eval", "do_predict"],
        "remove it: `kiln train` trains, and evaluates as trainer.eval_strategy and data.validation say",
    ),
    (
        &["bf16_full_eval", "fp16_full_eval"],
        "remove it: evaluation computes as training does, in `precision`, which stands above the sections",
    ),
    (
        &["half_precision_backend", "fp16_opt_level", "fp16_backend"],
        "remove it: set precision = \"f16\" or \"bf16\", above the sections",
    ),
    (
        &["tf32"],
        "remove it: Burn has no switch; with precision = \"f32\" CUDA's matrix products are in TF32 where such a kernel wins",
    ),
    (
        &["save_only_model", "save_safetensors", "save_on_each_node", "enable_jit_checkpoint"],
        "remove it: a checkpoint holds all that continues the run, as safetensors; trainer.save_strategy says when",
    ),
    (&["optim_target_modules"], "remove it: it belongs to GaLore and APOLLO, which Kiln does not have"),
    (&["neftune_noise_alpha"], "remove it: Kiln adds no noise to embeddings; dropout is the model's"),
    (&["length_column_name"], "remove it: data.sampler = \"group_by_length\" knows how many tokens a row has"),
    (
        &["gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"],
        "remove it: trainer.activation_checkpointing has no arguments",
    ),
    (&["auto_find_batch_size"], "set trainer.per_device_train_batch_size"),
    (
        &[
            "torch_compile",
            "torch_compile_backend",
            "torch_compile_mode",
            "jit_mode_eval",
            "torchdynamo",
            "use_ipex",
            "use_liger_kernel",
            "liger_kernel_config",
            "torch_empty_cache_steps",
            "use_cache",
        ],
        "remove it: it belongs to PyTorch",
    ),
    (&["use_mps_device", "xpu_backend"], "set device.kind"),
    (&["logging_strategy", "log_on_each_node"], "set trainer.logging_steps"),
    (&["logging_nan_inf_filter"], "remove it: Kiln writes NaN as it is"),
    (
        &["include_num_input_tokens_seen", "include_tokens_per_second"],
        "remove it: every log row has tokens and tokens_per_s",
    ),
    (&["log_level", "log_level_replica", "disable_tqdm"], "remove it: the progress bar shows on a terminal only"),
    (
        &["project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"],
        "remove it: metrics go to metrics.jsonl and stdout, and with trainer.report_to = \"tensorboard\" to event files",
    ),
    (
        &[
            "eval_delay",
            "eval_do_concat_batches",
            "eval_use_gather_object",
            "eval_accumulation_steps",
            "include_for_metrics",
            "include_inputs_for_metrics",
            "batch_eval_metrics",
            "prediction_loss_only",
            "evaluate_during_training",
        ],
        "remove it: trainer.eval_strategy, eval_steps and eval_on_start say when to evaluate",
    ),
    (
        &[
            "push_to_hub",
            "push_to_hub_model_id",
            "push_to_hub_organization",
            "push_to_hub_token",
            "hub_token",
            "hub_private_repo",
            "hub_model_id",
            "hub_strategy",
            "hub_always_push",
            "hub_revision",
        ],
        "upload the folder model/ of the finished run; transformers opens it",
    ),
    (&["full_determinism"], "remove it: on the CPU the same config gives the same run"),
    (
        &[
            "dataloader_num_workers",
            "dataloader_pin_memory",
            "dataloader_persistent_workers",
            "dataloader_prefetch_factor",
            "dataloader_multiprocessing_context",
            "dataloader_in_order",
        ],
        "remove it: Kiln reads data in its own process",
    ),
    (
        &["remove_unused_columns", "label_names"],
        "remove it: `tokenized` rows have input_ids, attention_mask, token_type_ids, labels",
    ),
    (
        &[
            "accelerator_config",
            "parallelism_config",
            "average_tokens_across_devices",
            "ddp_find_unused_parameters",
            "ddp_bucket_cap_mb",
            "ddp_broadcast_buffers",
            "ddp_static_graph",
            "ddp_backend",
            "ddp_timeout",
            "fsdp",
            "fsdp_config",
            "fsdp_min_num_params",
            "fsdp_transformer_layer_cls_to_wrap",
            "deepspeed",
            "local_rank",
            "split_batches",
            "tpu_num_cores",
            "tpu_metrics_debug",
            "sharded_ddp",
            "mp_parameters",
            "past_index",
            "ray_scope",
        ],
        "remove it: this version trains on one device",
    ),
    (&["debug", "skip_memory_metrics"], "remove it: every log row has peak_mib and reserved_mib"),
];
