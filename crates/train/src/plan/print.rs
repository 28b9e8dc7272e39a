//! A plan for people, every number with its arithmetic.

use std::fmt::Write as _;

use kiln_core::error::one_line;
use kiln_core::words::thousands;

use super::{EnginePlan, ModelPlan, OptimizerPlan, RunSettings, TrainPlan};
use crate::arguments::{DdpBackend, EvalStrategy, Integration, LoggingStrategy, SaveStrategy};
use crate::engine::settings::{CompilerMode, DeviceKind};
use crate::optim::OptimizerConfig;
use crate::optim::arguments::OptimizerName;
use crate::optim::backward::ActivationCheckpointing;
use crate::optim::loss::{Accumulation, Reduction};

/// Lines of a plan: a name in a column of its own, and what there is to say.
#[derive(Default)]
pub struct Lines(String);

impl Lines {
    /// Adds a line; without a name it belongs to the one above.
    pub fn line(&mut self, name: &str, value: impl AsRef<str>) {
        // Names of folders and fields may hold anything, and `plan.toml` has these lines as
        // comments.
        writeln!(self.0, "{name:<14} {}", one_line(value.as_ref())).expect("writing to a String cannot fail");
    }

    /// The lines as text.
    pub fn into_text(self) -> String {
        self.0
    }
}

/// Writes lines of a plan.
pub type Writer<'a> = Box<dyn Fn(&mut Lines) + 'a>;

/// Lines about a run besides its training, each where it stands in the plan.
#[derive(Default)]
pub struct Remarks<'a> {
    /// The model, its task and its origin.
    pub model: Option<Writer<'a>>,
    /// The adapters, and what is not known.
    pub adapters: Option<Writer<'a>>,
    /// The examples.
    pub data: Vec<String>,
    /// The batch.
    pub batch: Option<&'static str>,
    /// The estimate of memory.
    pub memory: Option<String>,
}

impl TrainPlan {
    /// The plan in lines, every number with its arithmetic.
    pub fn describe(&self) -> String {
        self.describe_with(&Remarks::default())
    }

    /// The plan in lines, with what `remarks` says of the run besides its training.
    pub fn describe_with(&self, remarks: &Remarks) -> String {
        let mut text = Lines::default();
        self.run.describe(&mut text);
        match &remarks.model {
            Some(model) => model(&mut text),
            None => text.line("model", format!("{} with a loss of its own", self.model.kind)),
        }
        self.model.describe(&mut text);
        if let Some(adapters) = &remarks.adapters {
            adapters(&mut text);
        }
        self.describe_data(&mut text);
        remarks.data.iter().for_each(|remark| text.line("", remark));
        self.describe_batch(&mut text);
        remarks.batch.iter().for_each(|remark| text.line("", remark));
        if self.data.train_tokens > 0 {
            text.line("padding", self.describe_padding());
        }
        let steps = &self.steps;
        text.line("steps", format!("{} ({}), {} an epoch", steps.total, steps.because, steps.per_epoch));
        if steps.tokens > 0 {
            text.line("tokens", format!("about {}", thousands(steps.tokens)));
        }
        if let Some(limit) = steps.max_duration {
            text.line("time limit", format!("{} minutes", limit.as_secs_f64() / 60.0));
        }
        text.line("learning rate", self.optimizer.schedule.describe());
        if let Some(because) = &self.optimizer.learning_rate.because {
            text.line("", format!("peak {because}"));
        }
        self.optimizer.describe(&mut text);
        if self.distributed.optimizer_sharding && self.batch.devices.count > 1 {
            text.line("", format!("its moments are divided among {} (ZeRO, stage 1)", self.batch.devices));
        }
        if self.engine.device.kind == DeviceKind::Cuda && self.batch.devices.count > 1 {
            text.line(
                "",
                match self.distributed.backend(DeviceKind::Cuda) {
                    DdpBackend::Nccl => "NCCL sums the gradients of the devices where they lie",
                    DdpBackend::Mpi => "MPI sums the gradients of the devices in the memory of the machine",
                },
            );
        }
        let estimate = remarks.memory.clone().unwrap_or_else(|| self.known_memory().describe());
        let of_each = if self.batch.devices.count > 1 { "of each device: " } else { "" };
        text.line("memory", format!("{of_each}{estimate}"));
        self.engine.describe(&mut text, self.run.seed);
        self.describe_work(&mut text);
        if let Some(test) = &self.run.test {
            text.line("", format!("the rows of {test} are predicted"));
        }
        self.run.describe_end(&mut text);
        text.into_text()
    }

    /// The line about validation data on which the run never evaluates.
    pub fn idle_validation(&self) -> Option<String> {
        let is_idle = self.run.trains && !self.evaluation.is_on();
        let examples = self.data.validation_examples.filter(|_| is_idle)?;
        Some(format!(
            "{} validation examples, and no evaluation: trainer.eval_strategy = \"epoch\" or \"steps\" makes some",
            thousands(examples as u64)
        ))
    }

    fn describe_data(&self, text: &mut Lines) {
        let data = &self.data;
        let validation = data.validation_examples;
        let validation =
            validation.map_or("none".into(), |examples| format!("{} examples", thousands(examples as u64)));
        text.line(
            "data",
            match thousands(data.train_examples as u64) {
                examples if data.train_tokens == 0 => format!("{examples} examples; validation {validation}"),
                examples => format!(
                    "{examples} examples of up to {} tokens, {} tokens; validation {validation}",
                    self.batch.seq_len,
                    thousands(data.train_tokens)
                ),
            },
        );
    }

    fn describe_batch(&self, text: &mut Lines) {
        let batch = &self.batch;
        let tokens = thousands(batch.global.saturating_mul(batch.seq_len) as u64);
        let up_to = if batch.seq_len == 0 { String::new() } else { format!(" = up to {tokens} tokens/step") };
        text.line("batch", format!("{}{up_to}", batch.arithmetic()));
        if let Some(note) = &batch.note {
            text.line("", note);
        }
        let accumulation = self.optimizer.accumulation;
        if batch.micro_batches() > 1 || accumulation != Accumulation::Exact {
            let loss = match self.optimizer.loss.reduction {
                Reduction::Exact => "the sum over all micro-batches, divided once by their labels",
                Reduction::SumOfMeans => "the sum of the micro-batches' means",
                Reduction::MeanOfMeans => "the mean of the micro-batches' means",
            };
            text.line("", format!("loss of a step: {loss} (trainer.accumulation = \"{accumulation}\")"));
        }
    }

    fn describe_padding(&self) -> String {
        let (strategy, cost) = (self.data.padding_strategy, self.data.padding_cost);
        let lengths = self.data.padding.lengths().iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let to = match (lengths.is_empty(), self.data.padding.multiple()) {
            (true, 1) => "the longest row of a batch".into(),
            (true, multiple) => format!("the longest row of a batch, rounded up to a multiple of {multiple}"),
            (false, _) => format!("{lengths} tokens"),
        };
        let shapes = if cost.shapes == 1 { "shape" } else { "shapes" };
        format!("{strategy}: to {to}; {:.1} % of positions are padding, {} {shapes}", cost.waste * 100.0, cost.shapes)
    }

    /// When the run evaluates, logs and saves.
    fn describe_work(&self, text: &mut Lines) {
        let (evaluation, logging, saving) = (&self.evaluation, &self.logging, &self.saving);
        let delay = match (evaluation.delay, evaluation.strategy) {
            (0.0, _) | (_, EvalStrategy::No) => String::new(),
            (delay, EvalStrategy::Steps) => format!(", not before step {delay}"),
            (delay, EvalStrategy::Epoch) => format!(", not before epoch {delay}"),
        };
        let evaluates = match evaluation.strategy {
            EvalStrategy::Steps => format!("every {} steps and at the end{delay}", evaluation.steps),
            EvalStrategy::Epoch => format!("every epoch and at the end{delay}"),
            EvalStrategy::No if evaluation.at_end => "at the end".into(),
            EvalStrategy::No => "never".into(),
        };
        let logs = match logging.strategy {
            LoggingStrategy::Steps => format!("every {} steps", logging.steps),
            LoggingStrategy::Epoch => "every epoch and at the end".into(),
            LoggingStrategy::No => "never".into(),
        };
        let also = logging.report_to.iter().map(|integration| match integration {
            Integration::TensorBoard => ", also as TensorBoard's event files",
            Integration::Mlflow => ", also on the MLflow server",
        });
        text.line("logs", format!("{logs}{}; evaluation: {evaluates}", also.collect::<String>()));
        if let Some(idle) = self.idle_validation() {
            text.line("", idle);
        }
        if !self.steps.intervals.is_empty() {
            text.line("", format!("in steps: {}", self.steps.intervals.join("; ")));
        }
        let kept = saving.total_limit.map_or(String::new(), |limit| format!(", the last {limit} kept"));
        let content = if saving.only_model { ", without what continues the run" } else { "" };
        let metric = &saving.metric;
        text.line(
            "checkpoints",
            match saving.strategy {
                SaveStrategy::No => "only when the run is stopped".into(),
                SaveStrategy::Steps => format!("every {} steps and at the end{kept}{content}", saving.steps),
                SaveStrategy::Epoch => format!("every epoch and at the end{kept}{content}"),
                SaveStrategy::Best => format!("when {metric} is the best so far{kept}{content}"),
            },
        );
        if let Some(patience) = saving.early_stopping_patience {
            let by = match saving.early_stopping_threshold {
                0.0 => String::new(),
                threshold => format!(" by more than {threshold}"),
            };
            text.line("early stopping", format!("after {patience} evaluations in a row without a better {metric}{by}"));
        }
        if saving.load_best_at_end {
            let best = if saving.greater_is_better { "greatest" } else { "least" };
            text.line("at the end", format!("the weights with the {best} {metric} are loaded"));
        }
        if let Some(push) = &saving.push {
            text.line("hub", push.describe());
        }
    }
}

impl ModelPlan {
    /// The lines about its parameters.
    pub fn describe(&self, text: &mut Lines) {
        text.line("parameters", thousands(self.num_parameters as u64));
        if self.num_trainable < self.num_parameters {
            let frozen = thousands((self.num_parameters - self.num_trainable) as u64);
            let share = 100.0 * self.num_trainable as f64 / self.num_parameters as f64;
            text.line(
                "",
                format!("{} learn ({share:.3} %), {frozen} are frozen", thousands(self.num_trainable as u64)),
            );
        }
    }
}

impl RunSettings {
    /// The lines at the top.
    pub fn describe(&self, text: &mut Lines) {
        if let Some(name) = &self.name {
            text.line("name", name);
        }
        if !self.trains {
            let none = "none (trainer.do_train = false); what follows of batch, steps and learning rate is not used";
            text.line("training", none);
        }
    }

    /// The lines at the end.
    pub fn describe_end(&self, text: &mut Lines) {
        text.line("output", self.output_dir.display().to_string());
        for (index, unused) in self.no_effect.iter().enumerate() {
            text.line(if index == 0 { "no effect" } else { "" }, unused);
        }
    }
}

impl OptimizerPlan {
    fn describe(&self, text: &mut Lines) {
        let factors = self.groups.lr_factors();
        if !factors.is_empty() {
            let factors = factors.into_iter().map(|(name, factor)| format!("{name} {factor:.4}"));
            text.line("", format!("by layer, times {}", factors.collect::<Vec<_>>().join(", ")));
        }
        text.line("optimizer", update(self.name, &self.config, self.groups.stated_weight_decay(), self.max_grad_norm));
        if let Some(outliers) = &self.outliers {
            text.line("outliers", outliers.describe());
        }
        if let Some(alpha) = self.neftune_noise_alpha {
            text.line(
                "noise",
                format!("NEFTune on the token embedding: within {alpha} / sqrt(tokens of a row x width)"),
            );
        }
        if !self.loss.is_plain() {
            let weights = self.loss.class_weights.as_ref().map_or("none".into(), |weights| format!("{weights:?}"));
            let smoothing = self.loss.label_smoothing;
            text.line(
                "loss",
                format!("label smoothing {smoothing}, in eval_loss too; class weights {weights}, not in eval_loss"),
            );
        }
    }
}

/// An optimizer in words.
pub fn update(name: OptimizerName, config: &OptimizerConfig, decay: f64, clip: Option<f64>) -> String {
    let clip = clip.map_or("nothing".into(), |norm| norm.to_string());
    let name = if matches!(config, OptimizerConfig::Own(_)) { "" } else { &format!("{name} ") };
    format!("{name}{}, weight decay {decay} (not on biases and norms), clipping at {clip}", config.describe())
}

impl EnginePlan {
    /// The lines about the device, the precision and the compiler.
    pub fn describe(&self, text: &mut Lines, seed: u64) {
        match self.activation_checkpointing {
            ActivationCheckpointing::None => {}
            ActivationCheckpointing::Balanced => {
                text.line("", "the backward pass computes element-wise operations again (balanced)");
            }
            ActivationCheckpointing::Blocks => text.line("", "the backward pass computes every layer again (blocks)"),
        }
        text.line("device", self.device.describe());
        text.line("precision", self.precision.describe());
        let mode = self.mode;
        text.line(
            "active",
            format!(
                "{} engine, Kiln's fused operators {}, seed {seed}",
                self.device.engine_of(mode),
                if self.ops.fused_operators().is_empty() { "off" } else { "on" },
            ),
        );
        for (index, part) in self.parts.iter().enumerate() {
            text.line(if index == 0 { "compiler" } else { "" }, part.to_string());
        }
        match &self.decision {
            Some(decision) => text.line("", decision.to_string()),
            None if mode == CompilerMode::Auto => {
                text.line("", "compiler auto: a trial before step 1 chooses the mode");
            }
            None => {}
        }
    }
}
