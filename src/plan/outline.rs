//! The part of a plan that follows from what has been found, when not all is there that the config
//! names.

use kiln_core::words::thousands;
use kiln_train::engine::device::DeviceFacts;
use kiln_train::plan::{BatchPlan, EnginePlan, Lines, ModelFacts, RunSettings, automatic_logging, update};

use super::Architecture;
use crate::config::{
    CheckedConfig, EvalStrategy, Interval, LoggingStrategy, RunConfig, RunLength, SaveStrategy, StepSize,
};
use crate::optim::schedule::Schedule;
use crate::optim::{OptimizerConfig, ParameterGroups};

/// The facts about the inputs of a run that could be determined, and the reasons why others could
/// not.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// The model and its architecture, where its configuration is known.
    pub model: Option<(ModelFacts, Architecture)>,
    /// The missing input that the model's vocabulary or labels depend on, such as `the tokenizer`.
    pub unsettled: Option<&'static str>,
    /// The device.
    pub device: Option<DeviceFacts>,
    /// The missing inputs, each with the reason.
    pub lacks: Vec<String>,
}

/// The lines of the plan of `config` that follow from what has been `found`.
pub fn outline(config: &CheckedConfig, found: &Found) -> String {
    let mut text = Lines::default();
    let trainer = config.checked_arguments();
    let run = RunSettings::of(trainer);
    run.describe(&mut text);
    match (&found.model, found.unsettled) {
        (Some((model, architecture)), None) => {
            architecture.describe(&model.kind, &mut text);
            let groups = ParameterGroups::of(trainer, &model.parameters).ok();
            model.plan(groups.as_ref()).describe(&mut text);
            architecture.describe_adapters(&mut text);
        }
        (Some((model, architecture)), Some(unsettled)) => {
            text.line("model", format!("{} for {}", model.kind, config.data.task));
            let (width, layers, heads, inner) = architecture.config.shape();
            text.line("", format!("{layers} layers x {width} wide x {heads} heads, feed-forward {inner}"));
            text.line("parameters", format!("depend on {unsettled}"));
        }
        (None, _) => text.line("model", format!("not known, for {}", config.data.task)),
    }
    let batch = BatchPlan::of(trainer, None).ok();
    match &batch {
        Some(batch) => text.line("batch", batch.arithmetic()),
        None => text.line("batch", "depends on what fits into memory (trainer.per_device_train_batch_size = \"auto\")"),
    }
    let steps = match trainer.length() {
        _ if trainer.fast_dev_run => Some((1, "fast_dev_run".to_owned())),
        RunLength::Steps(steps) => Some((steps, format!("max_steps = {steps}"))),
        RunLength::Epochs(_) | RunLength::Tokens(_) => None,
    };
    match (&steps, trainer.length()) {
        (Some((steps, because)), _) => text.line("steps", format!("{steps} ({because})")),
        (None, RunLength::Tokens(tokens)) => {
            text.line("steps", format!("depend on the data: {} tokens", thousands(tokens)));
        }
        (None, RunLength::Epochs(epochs)) => text.line("steps", format!("depend on the data: {epochs} epochs")),
        (None, RunLength::Steps(_)) => {}
    }
    if let Some(minutes) = trainer.max_minutes {
        text.line("time limit", format!("{minutes} minutes"));
    }
    describe_rate(config, batch.as_ref(), steps.as_ref().map(|(steps, _)| *steps), &mut text);
    let clip = (trainer.max_grad_norm > 0.0).then_some(trainer.max_grad_norm);
    text.line("optimizer", update(trainer.optim, &OptimizerConfig::from(&**trainer), trainer.weight_decay, clip));
    if let Some(engine) = found.device.as_ref().and_then(|device| EnginePlan::of(trainer, device, None).ok()) {
        engine.describe(&mut text, trainer.seed);
    }
    let total = steps.map(|(steps, _)| steps);
    let every = |strategy: Option<Option<Interval>>, epochs: bool| match (strategy, epochs) {
        (Some(Some(interval)), _) => format!("every {interval}{}", steps_unit(interval)),
        (Some(None), _) => match total {
            Some(total) => format!("every {} steps", automatic_logging(total)),
            None => "depends on the number of steps".into(),
        },
        (None, true) => "every epoch and at the end".into(),
        (None, false) => "never".into(),
    };
    let logs = match trainer.logging_strategy {
        LoggingStrategy::Steps => every(Some(trainer.logging_steps), false),
        other => every(None, other == LoggingStrategy::Epoch),
    };
    let evaluates = match trainer.eval_strategy {
        EvalStrategy::Steps => every(Some(trainer.eval_steps.or(trainer.logging_steps)), false),
        EvalStrategy::No if trainer.do_eval => "at the end".into(),
        other => every(None, other == EvalStrategy::Epoch),
    };
    text.line("logs", format!("{logs}; evaluation: {evaluates}"));
    let saves = match trainer.save_strategy {
        SaveStrategy::No => "only when the run is stopped".into(),
        SaveStrategy::Steps => every(Some(Some(trainer.save_steps)), false),
        SaveStrategy::Epoch => every(None, true),
        SaveStrategy::Best => format!("when {} is the best so far", trainer.best_metric()),
    };
    text.line("checkpoints", saves);
    run.describe_end(&mut text);
    for (index, lack) in found.lacks.iter().enumerate() {
        text.line(if index == 0 { "lacks" } else { "" }, lack);
    }
    text.into_text()
}

/// The word after a number of steps; a ratio, samples and tokens say themselves what they are.
fn steps_unit(interval: Interval) -> &'static str {
    match interval {
        Interval::Steps(_) => " steps",
        Interval::Ratio(_) => " of the run",
        Interval::Samples(_) | Interval::Tokens(_) => "",
    }
}

/// The peak, and where the number of steps is known also the schedule, unless its warm-up depends
/// on the data.
fn describe_rate(config: &RunConfig, batch: Option<&BatchPlan>, steps: Option<usize>, text: &mut Lines) {
    let trainer = &config.trainer;
    let scales = config.trainer.learning_rate_scaling.reference_batch.is_some();
    let peak = match batch {
        Some(batch) => config.trainer.learning_rate_scaling.scaled(
            trainer.learning_rate,
            batch.global / batch.devices.count,
            batch.devices,
        ),
        None if scales => {
            return text.line("learning rate", format!("{}, its peak follows the batch", trainer.lr_scheduler_type));
        }
        None => config.trainer.learning_rate_scaling.scaled(trainer.learning_rate, 1, config.trainer.devices),
    };
    let warmup = match (trainer.warmup_steps, steps, batch) {
        (Interval::Steps(steps), ..) => Some(steps),
        (Interval::Tokens(_), ..) | (Interval::Ratio(_), None, _) | (Interval::Samples(_), _, None) => None,
        (interval, total, batch) => {
            let samples = batch.map_or(1, |batch| batch.global);
            Some(interval.resolve(StepSize { total_steps: total.unwrap_or(0), samples, tokens: 0.0 }))
        }
    };
    let schedule = warmup.zip(steps).and_then(|(warmup, steps)| {
        Schedule::new(trainer.lr_scheduler_type, peak.rate, warmup, steps, &trainer.lr_scheduler_kwargs).ok()
    });
    let (kind, rate) = (trainer.lr_scheduler_type, peak.rate);
    match (schedule, warmup) {
        (Some(schedule), _) => text.line("learning rate", schedule.describe()),
        (None, Some(warmup)) => text.line("learning rate", format!("{kind}, warm-up {warmup} steps, peak {rate:.3e}")),
        (None, None) => text.line("learning rate", format!("{kind}, peak {rate:.3e}; the warm-up depends on the data")),
    }
    if let Some(because) = &peak.because {
        text.line("", format!("peak {because}"));
    }
}
