//! The rules that [`TrainingArguments`] keep whatever the model and the data turn out to be:
//! arguments that exclude or need each other. The range of an argument stands in its entry. Keys
//! are those of a config file.

use std::ops::Deref;

use kiln_core::complaint::{Checked, Complaint, two_ways};

use super::{
    BatchScaling, BatchScope, DdpBackend, DistributedArguments, EvalStrategy, Interval, LrScaling, OnExisting,
    SaveStrategy, TrainBatchSize, TrainingArguments,
};
use crate::engine::settings::CompilerMode;
use crate::optim::scheduler::SchedulerType;

/// Arguments that keep the rules. A plan is derived from no others, and
/// [`TrainingArguments::checked`] is the only way to them.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedArguments(TrainingArguments);

impl Deref for CheckedArguments {
    type Target = TrainingArguments;

    fn deref(&self) -> &TrainingArguments {
        &self.0
    }
}

impl TrainingArguments {
    /// These arguments, as far as they alone can tell whether a run can have them.
    ///
    /// # Errors
    /// The first rule that they break, with the key.
    pub fn checked(self) -> Result<CheckedArguments, Complaint> {
        self.check_ranges()?;
        self.padding_rule().check()?;
        run(&self)?;
        trainer(&self)?;
        batch(&self)?;
        learning_rate(&self)?;
        distributed(&self.distributed)?;
        saving(&self)?;
        Ok(CheckedArguments(self))
    }
}

fn run(run: &TrainingArguments) -> Checked {
    match run.resume_from_checkpoint {
        Some(_) if run.on_existing != OnExisting::Resume => {
            let message = format!("has no effect with run.on_existing = \"{}\"", run.on_existing);
            Err(Complaint::new("run.resume_from_checkpoint", message).help("set run.on_existing = \"resume\""))
        }
        _ => Ok(()),
    }
}

fn distributed(distributed: &DistributedArguments) -> Checked {
    let DistributedArguments { optimizer_sharding, overlap_communication, ddp_backend } = *distributed;
    if optimizer_sharding && overlap_communication {
        let message =
            "has no effect with distributed.optimizer_sharding = true, which sums the gradients of all blocks at once";
        return Err(Complaint::new("distributed.overlap_communication", message).help("set one of them"));
    }
    if ddp_backend == Some(DdpBackend::Nccl) && (optimizer_sharding || overlap_communication) {
        let message = "\"nccl\" sums all gradients at once and on every device, so that neither distributed.optimizer_sharding nor \
                       distributed.overlap_communication can be true";
        return Err(
            Complaint::new("distributed.ddp_backend", message).help("set it to \"mpi\", or the other key to false")
        );
    }
    Ok(())
}

fn trainer(trainer: &TrainingArguments) -> Checked {
    let lengths = [
        ("trainer.max_steps", trainer.max_steps.is_some()),
        // As in Hugging Face's Trainer, steps win over epochs.
        ("trainer.num_train_epochs", trainer.num_train_epochs.is_some() && trainer.max_steps.is_none()),
        ("trainer.max_tokens", trainer.max_tokens.is_some()),
    ];
    let mut given = lengths.iter().filter_map(|(key, given)| given.then_some(*key));
    if let (Some(first), Some(second)) = (given.next(), given.next()) {
        let help = "both set the length of the run; -1 takes one back, also by --set (max_minutes may join either)";
        return Err(two_ways(second, first, help));
    }
    if let (Some(total), Interval::Steps(warmup)) = (trainer.max_steps, trainer.warmup_steps)
        && warmup > total
    {
        return Err(Complaint::new(
            "trainer.warmup_steps",
            format!("the warm-up of {warmup} steps is longer than the run of {total} steps (trainer.max_steps)"),
        )
        .help("lower warmup_steps, or give it as a ratio below 1"));
    }
    if trainer.lr_scheduler_type == SchedulerType::Constant && trainer.warmup_steps != Interval::Steps(0) {
        return Err(Complaint::new("trainer.warmup_steps", "the schedule `constant` has no warm-up")
            .help("use lr_scheduler_type = \"constant_with_warmup\""));
    }
    // A default may stand, since plan.toml writes them all.
    let default = TrainingArguments::default();
    for (key, value, default) in [
        ("adam_beta1", trainer.adam_beta1, default.adam_beta1),
        ("adam_beta2", trainer.adam_beta2, default.adam_beta2),
        ("adam_epsilon", trainer.adam_epsilon, default.adam_epsilon),
    ] {
        if value != default && !trainer.optim.adam_settings().contains(&key) {
            let message = format!("the optimizer `{}` does not use it, got {value}", trainer.optim);
            return Err(Complaint::new(&format!("trainer.{key}"), message).help("remove it"));
        }
    }
    trainer.optim_args.check(trainer.optim).map_err(|error| Complaint::of("trainer.optim_args", error))?;
    trainer
        .lr_scheduler_kwargs
        .check(trainer.lr_scheduler_type, trainer.learning_rate)
        .map_err(|error| Complaint::of("trainer.lr_scheduler_kwargs", error))
}

/// `[batch]`, and how it goes with the micro-batch.
fn batch(arguments: &TrainingArguments) -> Checked {
    let (batch, size) = (&arguments.batch, arguments.per_device_train_batch_size);
    let stated = batch.global_batch_size;
    if size == TrainBatchSize::Auto && arguments.compiler_mode() == CompilerMode::Auto {
        return Err(Complaint::new(
            "trainer.per_device_train_batch_size",
            "with compiler.enabled = \"auto\", it is not known for which mode \"auto\" would be the size",
        )
        .help("set one of the two; `kiln tune-batch FILE --mode both` finds the sizes of both modes"));
    }
    match (batch.scaling, size, stated) {
        (BatchScaling::Grow, _, Some(global)) => Err(Complaint::new(
            "batch.global_batch_size",
            format!("{global} is a batch that stays, and batch.scaling = \"grow\" lets it grow"),
        )
        .help("leave one of the two out")),
        (BatchScaling::Fixed, TrainBatchSize::Auto, None) => Err(Complaint::new(
            "trainer.per_device_train_batch_size",
            "with \"auto\", what an optimizer step sees would depend on the memory of the machine",
        )
        .help("set batch.global_batch_size to the examples of a step, or batch.scaling = \"grow\" to let it follow")),
        (BatchScaling::Fixed, TrainBatchSize::Auto, Some(_)) if arguments.gradient_accumulation_steps != 1 => {
            Err(Complaint::new(
                "trainer.gradient_accumulation_steps",
                "it follows from batch.global_batch_size and the size that fits",
            )
            .help("leave it out"))
        }
        _ => Ok(()),
    }
}

/// `[learning_rate]`.
fn learning_rate(arguments: &TrainingArguments) -> Checked {
    let section = &arguments.learning_rate_scaling;
    match (section.scaling, section.reference_batch) {
        (LrScaling::None, Some(_)) => {
            Err(Complaint::new("learning_rate.reference_batch", "has no effect with learning_rate.scaling = \"none\"")
                .help("remove it, or set learning_rate.scaling to \"linear\" or \"sqrt\""))
        }
        (LrScaling::None, None) if section.scope != BatchScope::Global => {
            Err(Complaint::new("learning_rate.scope", "has no effect with learning_rate.scaling = \"none\"")
                .help("remove it, or set learning_rate.scaling to \"linear\" or \"sqrt\""))
        }
        (LrScaling::Linear | LrScaling::Sqrt, None) => Err(Complaint::new(
            "learning_rate.reference_batch",
            format!("required with learning_rate.scaling = \"{}\", and not given", section.scaling),
        )
        .help("set it to the batch that trainer.learning_rate was chosen for, for example 32")),
        _ => Ok(()),
    }
}

/// When the best model can be known, and when it is on disk. The rules are those of
/// `TrainingArguments`.
fn saving(trainer: &TrainingArguments) -> Checked {
    if trainer.early_stopping_threshold > 0.0 && trainer.early_stopping_patience.is_none() {
        return Err(Complaint::new("trainer.early_stopping_threshold", "says nothing without early_stopping_patience")
            .help("set trainer.early_stopping_patience, or remove it"));
    }
    let best = trainer.save_strategy == SaveStrategy::Best;
    let needs = [
        ("trainer.save_strategy", best),
        ("trainer.load_best_model_at_end", trainer.load_best_model_at_end),
        ("trainer.early_stopping_patience", trainer.early_stopping_patience.is_some()),
        ("trainer.metric_for_best_model", trainer.metric_for_best_model.is_some()),
        ("trainer.greater_is_better", trainer.greater_is_better.is_some()),
    ];
    if trainer.eval_strategy == EvalStrategy::No {
        return match needs.into_iter().find(|(_, asked)| *asked) {
            Some((key, _)) => {
                Err(Complaint::new(key, "the best model is found by evaluating, and eval_strategy is `no`")
                    .help("set trainer.eval_strategy = \"steps\" or \"epoch\""))
            }
            None => Ok(()),
        };
    }
    if !trainer.load_best_model_at_end || best {
        return Ok(());
    }
    // The best model must be on disk: every saved step is an evaluated one.
    let (save, eval) = (trainer.save_strategy, trainer.eval_strategy);
    if save.as_str() != eval.as_str() {
        let message = format!("saves by `{save}` and evaluates by `{eval}`; the best model would not be on disk");
        return Err(Complaint::new("trainer.load_best_model_at_end", message)
            .help(format!("set trainer.save_strategy = \"best\" or \"{eval}\"")));
    }
    Ok(())
}
