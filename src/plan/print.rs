//! A run's plan for people: what `kiln plan` prints and every run shows before step 1, and the
//! `plan.toml` that repeats it.

use std::fmt::Write as _;

use kiln_core::error::Result;
use kiln_data::hub;
use kiln_models::{LoraBias, LoraConfig};
use kiln_train::plan::{Lines, Remarks};

use super::{Architecture, RunPlan};
use crate::config::{Accumulation, OnExisting, PaddingStrategy, RunConfig, Task};

impl RunPlan {
    /// The plan in lines, every number with its arithmetic.
    pub fn describe(&self) -> String {
        let (architecture, train) = (self.architecture.as_ref(), &self.train);
        let is_cut = train.batch.micro_batches() > 1 || train.optimizer.accumulation != Accumulation::Exact;
        let answers = architecture.is_some_and(|it| it.task == Task::QuestionAnswering);
        let depends = is_cut && answers && train.data.padding_strategy != PaddingStrategy::MaxLength;
        let limits = Some(self.examples.limits.join(", ")).filter(|limits| !limits.is_empty());
        let rows = self.examples.counts.describe_rows(self.examples.max_length);
        let labels = architecture.and_then(|it| self.examples.counts.describe_labels(it.task));
        let plan = train.describe_with(&Remarks {
            model: architecture.map(|it| Box::new(|text: &mut Lines| it.describe(&train.model.kind, text)) as _),
            adapters: architecture.map(|it| Box::new(|text: &mut Lines| it.describe_adapters(text)) as _),
            data: rows.into_iter().chain(labels).chain(self.examples.documents.clone()).chain(limits).collect(),
            batch: depends.then_some(PADDED),
            memory: self.memory.estimate.as_ref().map(|estimate| estimate.describe()),
        });
        if self.included.is_empty() {
            return plan;
        }
        let mut text = Lines::default();
        text.line("includes", format!("{}; keys of the config file win over theirs", self.included.join(", ")));
        text.into_text() + &plan
    }

    /// The text of `plan.toml` for the run of `config`: a config file with every default explicit,
    /// from which the run can be repeated, under a comment with what was derived from it.
    ///
    /// # Errors
    /// A value that TOML cannot hold.
    pub fn to_toml(&self, config: &RunConfig) -> Result<String> {
        let mut text = String::from(
            "# All settings of this run, resolved. A config file: `kiln train` repeats the run from it.\n",
        );
        for line in self.describe().lines() {
            writeln!(text, "# {line}").expect("writing to a String cannot fail");
        }
        writeln!(text, "# kiln {}\n", env!("CARGO_PKG_VERSION")).expect("writing to a String cannot fail");
        let mut resolved = self.resolved(config);
        // How a folder was treated belongs to a call, too: from here it would switch off the guard
        // of `--resume`.
        resolved.trainer.on_existing = OnExisting::Fail;
        Ok(text + &resolved.to_toml()?)
    }
}

/// A remark on the loss of question answering.
const PADDED: &str = "the softmax over positions takes padding in, as in transformers, so the loss also depends on the \
                      lengths that micro-batches are padded to (data.padding = \"max_length\" has one)";

impl Architecture {
    /// Where its weights come from: the pretrained model by its id on the Hub or its folder, or
    /// `random weights`.
    pub fn origin(&self) -> String {
        self.from.as_deref().map_or_else(|| "random weights".into(), hub::name_of)
    }

    pub(super) fn describe(&self, kind: &str, text: &mut Lines) {
        let (width, layers, heads, inner) = self.config.shape();
        text.line("model", format!("{kind} for {}, from {}", self.task, self.origin()));
        text.line(
            "",
            format!(
                "{layers} layers x {width} wide x {heads} heads, feed-forward {inner}, vocabulary {}, positions {}",
                self.config.vocab_size(),
                self.config.max_positions()
            ),
        );
    }

    pub(super) fn describe_adapters(&self, text: &mut Lines) {
        if let Some(lora) = &self.lora {
            let (new, from) = match &self.adapter {
                None => ("new ", String::new()),
                Some(path) => ("", format!("from {}, ", path.display())),
            };
            let targets = match lora.target_modules.len() {
                0..=8 => lora.target_modules.join(", "),
                many => format!("{many} layers"),
            };
            let (r, scaling, dropout) = (lora.r, lora.default_scaling(), lora.lora_dropout);
            let kind = if lora.use_dora { "DoRA" } else { "LoRA" };
            text.line(
                "adapters",
                format!("{new}{kind} of rank {r} on {targets}; {from}scaled by {scaling}, dropout {dropout}"),
            );
            let ranks = lora.rank_pattern.iter().map(|(pattern, r)| format!("rank {r} for {pattern}"));
            let alphas = lora.alpha_pattern.iter().map(|(pattern, alpha)| format!("lora_alpha {alpha} for {pattern}"));
            let patterns = ranks.chain(alphas).collect::<Vec<_>>();
            if !patterns.is_empty() {
                text.line("", patterns.join(", "));
            }
            let biases = match lora.bias {
                LoraBias::None => None,
                LoraBias::All => Some("all biases"),
                LoraBias::LoraOnly => Some("the biases of these layers"),
            };
            let absent = LoraConfig::absent_head(self.config.model_type(), self.task.head());
            let saved = lora.modules_to_save.iter().map(String::as_str).filter(|module| *module != absent);
            let tokens = lora.trainable_token_indices.as_ref().map(|tokens| match tokens.len() {
                1 => "the row of one token".to_owned(),
                tokens => format!("the rows of {tokens} tokens"),
            });
            let whole = saved.chain(biases).map(str::to_owned).chain(tokens).collect::<Vec<_>>();
            if !whole.is_empty() {
                text.line("", format!("beside them learn {}", whole.join(", ")));
            }
        }
        if !self.unknown_fields.is_empty() {
            text.line("", format!("not known, not used: config.json {}", self.unknown_fields.join(", ")));
        }
    }
}
