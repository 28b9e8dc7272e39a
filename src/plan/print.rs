//! A plan for people: what `kiln plan` prints and every run shows before step 1, and the `plan.toml` that repeats it.

use std::fmt::Write as _;

use super::RunPlan;
use super::parts;
use crate::base::error::{Result, one_line};
use crate::config::Task;
use crate::config::{
    Accumulation, ActivationCheckpointing, CompilerMode, DataFormat, EvalStrategy, LoggingStrategy, SaveStrategy,
};
use crate::engine::handover::Engine;
use crate::task::Reduction;

impl RunPlan {
    /// The plan in lines, every number with its arithmetic.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            // Names of folders and fields may hold anything, and `plan.toml` has these lines as comments.
            writeln!(text, "{name:<14} {}", one_line(&value)).expect("writing to a String cannot fail");
        };
        if let Some(name) = &self.config.run.name {
            line("name", name.clone());
        }
        if !self.config.trainer.do_train {
            line(
                "training",
                "none (trainer.do_train = false); what follows of batch, steps and learning rate is not used".into(),
            );
        }
        let (width, layers, heads, inner) = self.model_config.shape();
        let from = self.model_from.as_ref().map_or("random weights".into(), |path| path.display().to_string());
        line("model", format!("{} for {}, from {from}", self.model_config.model_type(), self.task));
        line(
            "",
            format!(
                "{layers} layers x {width} wide x {heads} heads, feed-forward {inner}, vocabulary {}, positions {}",
                self.model_config.vocab_size(),
                self.model_config.max_positions()
            ),
        );
        line("parameters", thousands(self.num_parameters as u64));
        if self.num_trainable < self.num_parameters {
            let frozen = thousands((self.num_parameters - self.num_trainable) as u64);
            line("", format!("{} learn, {frozen} are frozen", thousands(self.num_trainable as u64)));
        }
        if !self.unknown_model_fields.is_empty() {
            line("", format!("not known, not used: config.json {}", self.unknown_model_fields.join(", ")));
        }
        let validation = self
            .validation_examples
            .map_or("none".into(), |examples| format!("{} examples", thousands(examples as u64)));
        line(
            "data",
            format!(
                "{} examples of up to {} tokens, {} tokens; validation {validation}",
                thousands(self.steps.train_examples as u64),
                self.batch.seq_len,
                thousands(self.steps.train_tokens)
            ),
        );
        if let Some(rule) = self.describe_documents() {
            line("", rule);
        }
        let batch = &self.batch;
        let limits = self.describe_limits();
        if !limits.is_empty() {
            line("", limits.join(", "));
        }
        line(
            "batch",
            format!(
                "{} = up to {} tokens/step",
                batch.arithmetic(),
                thousands(batch.global.saturating_mul(batch.seq_len) as u64)
            ),
        );
        if let Some(note) = &self.batch_note {
            line("", note.clone());
        }
        let accumulation = self.config.trainer.accumulation;
        if self.batch.accumulation > 1 || accumulation != Accumulation::Exact {
            let loss = match self.loss.reduction {
                Reduction::Exact => "the sum over all micro-batches, divided once by their labels",
                Reduction::SumOfMeans => "the sum of the micro-batches' means",
                Reduction::MeanOfMeans => "the mean of the micro-batches' means",
            };
            line("", format!("loss of a step: {loss} (trainer.accumulation = \"{accumulation}\")"));
            if self.task == Task::QuestionAnswering
                && self.config.data.padding != crate::config::PaddingStrategy::MaxLength
            {
                let padded = "the softmax over positions takes padding in, as in transformers, so the loss also depends on the \
                              lengths that micro-batches are padded to (data.padding = \"max_length\" has one)";
                line("", padded.into());
            }
        }
        line("padding", self.describe_padding());
        line("steps", format!("{} ({}), {} an epoch", self.steps.total, self.steps.because, self.steps.per_epoch));
        line("tokens", format!("about {}", thousands(self.steps.tokens)));
        if let Some(limit) = self.steps.max_duration {
            line("time limit", format!("{} minutes", limit.as_secs_f64() / 60.0));
        }
        line(
            "learning rate",
            format!("{}, warm-up {} steps: {}", self.schedule.kind(), self.schedule.warmup_steps(), self.curve()),
        );
        if let Some(because) = &self.learning_rate.because {
            line("", format!("peak {because}"));
        }
        let factors = self.groups.lr_factors();
        if !factors.is_empty() {
            let factors = factors.into_iter().map(|(name, factor)| format!("{name} {factor:.4}"));
            line("", format!("by layer, times {}", factors.collect::<Vec<_>>().join(", ")));
        }
        let trainer = &self.config.trainer;
        line(
            "optimizer",
            format!(
                "{} {}, weight decay {} (not on biases and norms), clipping at {}",
                trainer.optim,
                self.optimizer.describe(),
                trainer.weight_decay,
                if trainer.max_grad_norm > 0.0 { trainer.max_grad_norm.to_string() } else { "nothing".into() }
            ),
        );
        if !self.loss.is_plain() {
            let weights = self.loss.class_weights.as_ref().map_or("none".into(), |weights| format!("{weights:?}"));
            let smoothing = self.loss.label_smoothing;
            line(
                "loss",
                format!("label smoothing {smoothing}, in eval_loss too; class weights {weights}, not in eval_loss"),
            );
        }
        line("memory", self.memory.describe());
        match trainer.activation_checkpointing {
            ActivationCheckpointing::None => {}
            ActivationCheckpointing::Balanced => {
                line("", "the backward pass computes element-wise operations again (balanced)".into());
            }
            ActivationCheckpointing::Blocks => line("", "the backward pass computes every layer again (blocks)".into()),
        }
        line("device", self.device.describe());
        line("precision", self.precision.describe());
        let mode = match &self.decision {
            Some(decision) => decision.mode,
            None => self.config.compiler_mode(),
        };
        line(
            "active",
            format!(
                "{} engine, Kiln's fused operators {}, seed {}",
                if mode == CompilerMode::Native { Engine::this() } else { Engine::Compiled },
                if self.ops.fused_operators().is_empty() { "off" } else { "on" },
                trainer.seed
            ),
        );
        let parts = parts(self.compiler().as_ref(), &self.device, self.precision.dtype, self.ops, self.captures());
        for (index, part) in parts.iter().enumerate() {
            line(if index == 0 { "compiler" } else { "" }, part.to_string());
        }
        match &self.decision {
            Some(decision) => line("", decision.to_string()),
            None if mode == CompilerMode::Auto => {
                line("", "compiler auto: a trial before step 1 chooses the mode".into())
            }
            None => {}
        }
        let delay = match (trainer.eval_delay, trainer.eval_strategy) {
            (0.0, _) | (_, EvalStrategy::No) => String::new(),
            (delay, EvalStrategy::Steps) => format!(", not before step {delay}"),
            (delay, EvalStrategy::Epoch) => format!(", not before epoch {delay}"),
        };
        let evaluation = match trainer.eval_strategy {
            EvalStrategy::Steps => format!("every {} steps and at the end{delay}", self.eval_steps),
            EvalStrategy::Epoch => format!("every epoch and at the end{delay}"),
            EvalStrategy::No if trainer.do_eval => "at the end".into(),
            EvalStrategy::No => "never".into(),
        };
        let logs = match trainer.logging_strategy {
            LoggingStrategy::Steps => format!("every {} steps", self.logging_steps),
            LoggingStrategy::Epoch => "every epoch and at the end".into(),
            LoggingStrategy::No => "never".into(),
        };
        let board = if trainer.report_to.is_empty() { "" } else { ", also as TensorBoard's event files" };
        line("logs", format!("{logs}{board}; evaluation: {evaluation}"));
        if !self.intervals.is_empty() {
            line("", format!("in steps: {}", self.intervals.join("; ")));
        }
        let kept = trainer.save_total_limit.map_or(String::new(), |limit| format!(", the last {limit} kept"));
        let content = if trainer.save_only_model { ", without what continues the run" } else { "" };
        line(
            "checkpoints",
            match trainer.save_strategy {
                SaveStrategy::No => "only when the run is stopped".into(),
                SaveStrategy::Steps => format!("every {} steps and at the end{kept}{content}", self.save_steps),
                SaveStrategy::Epoch => format!("every epoch and at the end{kept}{content}"),
                SaveStrategy::Best => format!("when {} is the best so far{kept}{content}", trainer.best_metric()),
            },
        );
        let metric = trainer.best_metric();
        if let Some(patience) = trainer.early_stopping_patience {
            let by = match trainer.early_stopping_threshold {
                0.0 => String::new(),
                threshold => format!(" by more than {threshold}"),
            };
            line("early stopping", format!("after {patience} evaluations in a row without a better {metric}{by}"));
        }
        if trainer.load_best_model_at_end {
            let best = if trainer.best_is_greatest() { "greatest" } else { "least" };
            line("at the end", format!("the weights with the {best} {metric} are loaded"));
        }
        if let Some(test) = &self.config.data.test {
            line("", format!("the rows of {test} are predicted"));
        }
        line("output", self.config.run.output_dir.display().to_string());
        for (index, unused) in self.config.no_effect.iter().enumerate() {
            line(if index == 0 { "no effect" } else { "" }, unused.clone());
        }
        text
    }

    /// What keeps the run from using all of its data.
    /// How documents are joined; none where examples are rows.
    fn describe_documents(&self) -> Option<String> {
        let data = &self.config.data;
        let script = match data.task {
            Task::Clm => "run_clm.py",
            Task::Mlm => "run_mlm.py",
            _ => return None,
        };
        let unit = match data.format {
            DataFormat::Tokenized | DataFormat::Squad => return None,
            DataFormat::Text => data.documents.as_str(),
            _ => "row",
        };
        Some(match data.marks_ends() {
            true => format!("a {unit} is a document, and end-of-text follows each (data.document_end)"),
            false => format!("{unit}s are joined without end-of-text, as {script} joins rows (data.document_end)"),
        })
    }

    fn describe_limits(&self) -> Vec<String> {
        let (data, trainer) = (&self.config.data, &self.config.trainer);
        let limit = |name: &str, limit: Option<usize>| limit.map(|limit| format!("{name} = {limit}"));
        let flag = |name: &str, on: bool| on.then(|| name.to_owned());
        let limits = [
            limit("max_train_samples", data.max_train_samples),
            limit("max_eval_samples", data.max_eval_samples),
            flag("overfit_one_batch: the examples of the first step over and over", trainer.overfit_one_batch),
            flag("fast_dev_run: one step and one evaluation batch", trainer.fast_dev_run),
        ];
        limits.into_iter().flatten().collect()
    }

    fn describe_padding(&self) -> String {
        let (strategy, cost) = (self.config.data.padding, self.padding_cost);
        let lengths = self.padding.lengths().iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let to = if lengths.is_empty() { "the longest row of a batch".into() } else { format!("{lengths} tokens") };
        let shapes = if cost.shapes == 1 { "shape" } else { "shapes" };
        format!("{strategy}: to {to}; {:.1} % of positions are padding, {} {shapes}", cost.waste * 100.0, cost.shapes)
    }

    /// The learning rate at the first, the peak and the last step, and at quarters.
    fn curve(&self) -> String {
        let total = self.steps.total;
        let mut steps =
            vec![0, self.schedule.warmup_steps(), total / 4, total / 2, total * 3 / 4, total.saturating_sub(1)];
        steps.retain(|step| *step < total);
        steps.sort_unstable();
        steps.dedup();
        let points = steps.iter().map(|step| format!("{:.3e} at step {}", self.schedule.lr(*step), step + 1));
        points.collect::<Vec<_>>().join(", ")
    }

    /// The text of `plan.toml`: a config file with every default explicit, from which the run can be repeated, under a
    /// comment with what was derived from it.
    ///
    /// # Errors
    /// A value that TOML cannot hold.
    pub fn to_toml(&self) -> Result<String> {
        let mut text =
            String::from("# What this run does, resolved. A config file: `kiln train` repeats the run from it.\n");
        for line in self.describe().lines() {
            writeln!(text, "# {line}").expect("writing to a String cannot fail");
        }
        writeln!(text, "# kiln {}\n", env!("CARGO_PKG_VERSION")).expect("writing to a String cannot fail");
        Ok(text + &self.config.to_toml()?)
    }
}

/// `1234567` as `1,234,567`.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::thousands;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
    }
}
