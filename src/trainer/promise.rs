//! The settings that must not change between the processes of one run, so that N steps, a stop and M steps equal N + M steps.
//! Every setting belongs to it unless it is listed here as free, so a setting that is new is on the safe side.
//!
//! Free are settings that change what is reported, saved or measured but no weight: where the run writes, logging,
//! evaluation and its data (a change of these is said), saving, early stopping, `max_minutes`, the text sample, and which
//! device of a kind. Free, too, is the
//! compiler: it computes the same function, so a run may change to it and back, though not bit for bit. The length of the run is
//! free when the schedule does not depend on it. Everything else is refused by name.
//!
//! The micro-batch is free at the same number of examples in an optimizer step, unless the loss of a step depends on how it
//! is cut (`trainer.accumulation = "transformers"`). Sums are then added in another order, so that losses differ by rounding
//! (f32: some 1e-6 relative a step), and dropout, which is drawn for each micro-batch, draws anew.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::base::error::{Error, Result};
use crate::base::files::hex;
use crate::config::{Precision, SchedulerType};
use crate::data::digest::digest;
use crate::session::{Session, TrainingTask};
use crate::task::Reduction;

/// Keys (or, with a dot at the end, sections) that may change.
const FREE: &[&str] = &[
    "run.",
    "generation.",
    "compiler.",
    "batch.",
    "device.index",
    "data.max_eval_samples",
    "data.test",
    "trainer.do_train",
    "trainer.do_eval",
    "trainer.do_predict",
    "trainer.full_determinism",
    "trainer.max_minutes",
    "trainer.per_device_eval_batch_size",
    "trainer.log_level",
    "trainer.logging_strategy",
    "trainer.logging_steps",
    "trainer.logging_first_step",
    "trainer.report_to",
    "trainer.eval_strategy",
    "trainer.eval_steps",
    "trainer.eval_delay",
    "trainer.eval_on_start",
    "trainer.save_only_model",
    "trainer.save_strategy",
    "trainer.save_steps",
    "trainer.save_total_limit",
    "trainer.load_best_model_at_end",
    "trainer.metric_for_best_model",
    "trainer.greater_is_better",
    "trainer.early_stopping_patience",
    "trainer.early_stopping_threshold",
];

/// Keys that are compared by what they come to, so that a ratio equals the steps it stands for.
const DERIVED: &[&str] = &[
    "precision",
    "trainer.max_steps",
    "trainer.num_train_epochs",
    "trainer.max_tokens",
    "trainer.warmup_steps",
    "trainer.data_seed",
    "trainer.per_device_train_batch_size",
    "trainer.gradient_accumulation_steps",
    "trainer.accumulation",
    "trainer.learning_rate",
    "learning_rate.scaling",
    "learning_rate.reference_batch",
    "learning_rate.scope",
    "device.kind",
    "generation",
];

const LENGTH: &str = "total steps";

const EXAMPLES: &str = "training examples";

/// The settings and facts that must stay, by key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Promise {
    /// SHA-256 of the settings: equal promises have equal fingerprints.
    pub fingerprint: String,
    settings: BTreeMap<String, Value>,
    /// The digest of the validation data, where there are any.
    validation: Option<String>,
}

impl Promise {
    /// The promise of a run.
    ///
    /// # Errors
    /// Training data that cannot be read.
    pub fn of<T: TrainingTask>(session: &Session<T>) -> Result<Self> {
        let plan = session.plan();
        let mut settings = BTreeMap::new();
        let config = session.config();
        let config = serde_json::to_value(&config).map_err(|error| Error::config(error.to_string()))?;
        flatten("", &config, &mut settings);
        settings.retain(|key, _| {
            let free = |name: &str| key == name || (name.ends_with('.') && key.starts_with(name));
            !FREE.iter().any(|name| free(name)) && !DERIVED.contains(&key.as_str())
        });
        flatten("model", &session.task.config(), &mut settings);
        let precision = plan.engine.precision.precision;
        if precision != Precision::F32 {
            settings.insert("precision".into(), json!(precision.as_str()));
        }
        settings.insert(LENGTH.into(), json!(plan.steps.total));
        settings.insert("trainer.warmup_steps".into(), json!(plan.optimizer.schedule.warmup_steps()));
        settings.insert("trainer.learning_rate".into(), json!(plan.optimizer.learning_rate.rate));
        settings.insert("trainer.data_seed".into(), json!(plan.data.seed));
        let (micro, accumulation) = (plan.batch.micro, plan.batch.accumulation);
        settings.insert("examples in an optimizer step".into(), json!(micro * accumulation));
        if plan.data.drop_last {
            // The examples that an epoch leaves out depend on the micro-batch.
            settings.insert("examples of an epoch".into(), json!(plan.data.train_examples / micro * micro));
        }
        if plan.optimizer.loss.reduction != Reduction::Exact {
            settings.insert("trainer.accumulation".into(), json!(plan.optimizer.accumulation.as_str()));
            settings.insert("trainer.per_device_train_batch_size".into(), json!(micro));
        }
        settings.insert("device.kind".into(), json!(plan.engine.device.kind.as_str()));
        settings.insert(EXAMPLES.into(), json!(plan.data.train_examples));
        settings.insert("training tokens".into(), json!(plan.data.train_tokens));
        settings.insert("content of the training data".into(), json!(digest(&**session.train())?));
        let mut hash = Sha256::new();
        for (key, value) in &settings {
            hash.update(format!("{key}={value}\n"));
        }
        let validation = session.validation().map(|data| digest(&**data)).transpose()?;
        Ok(Self { fingerprint: hex(&hash.finalize()), settings, validation })
    }

    /// The number of training examples.
    pub fn training_examples(&self) -> Option<u64> {
        self.settings.get(EXAMPLES).and_then(Value::as_u64)
    }

    /// A notice for when a run with the promise `self` continues as `now`, although it may.
    pub fn notice(&self, now: &Self) -> Option<&'static str> {
        let changed = now.validation.is_some() && self.validation.is_some() && self.validation != now.validation;
        changed.then_some(
            "the validation data have changed since the run began: evaluations before and after this point, and the best \
             of them, do not compare",
        )
    }

    /// Whether a run with the promise `self`, now at `step`, may continue as `now`.
    ///
    /// # Errors
    /// The settings that differ, with both values.
    pub fn kept_by(&self, now: &Self, step: u64) -> Result<()> {
        let keys = self.settings.keys().chain(now.settings.keys().filter(|key| !self.settings.contains_key(*key)));
        let mut broken = Vec::new();
        for key in keys {
            let (was, is) = (self.settings.get(key), now.settings.get(key));
            if was == is || (key == LENGTH && now.length_is_free()) {
                continue;
            }
            let shown = |value: Option<&Value>| value.map_or("not given".into(), Value::to_string);
            broken.push(format!("{key} was {} and is {}", shown(was), shown(is)));
        }
        let total = now.settings[LENGTH].as_u64().unwrap_or_default();
        if broken.is_empty() && step > total {
            broken.push(format!("the run has made {step} steps and is to end after {total}"));
        }
        if broken.is_empty() {
            return Ok(());
        }
        Err(Error::config(format!("the checkpoint of step {step} is of another run: {}", broken.join("; "))).help(
            "a resumed run continues exactly as it began: set these back, or start a new run (run.output_dir, or \
             run.on_existing = \"overwrite\")",
        ))
    }

    /// Whether the learning rate of a step does not depend on how many steps follow.
    fn length_is_free(&self) -> bool {
        let kinds = [SchedulerType::Constant, SchedulerType::ConstantWithWarmup, SchedulerType::InverseSqrt];
        let kind = self.settings.get("trainer.lr_scheduler_type").and_then(Value::as_str);
        kinds.iter().any(|free| Some(free.as_str()) == kind)
    }
}

/// `{"a": {"b": 1}}` as `a.b = 1`; lists stay whole.
fn flatten(prefix: &str, value: &Value, into: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                let full = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flatten(&full, value, into);
            }
        }
        Value::Object(_) | Value::Null => {}
        other => {
            into.insert(prefix.into(), other.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn promise(settings: Value) -> Promise {
        let mut map = BTreeMap::new();
        flatten("", &settings, &mut map);
        Promise { fingerprint: String::new(), settings: map, validation: None }
    }

    #[test]
    fn what_changed_is_named_with_both_values() {
        let was = promise(json!({"trainer": {"seed": 1}, "model": {"n_layer": 2}, LENGTH: 9}));
        let now = promise(json!({"trainer": {"seed": 2}, "model": {"n_head": 2}, LENGTH: 9}));
        let error = was.kept_by(&now, 3).unwrap_err().to_string();
        for part in
            ["trainer.seed was 1 and is 2", "model.n_layer was 2 and is not given", "model.n_head was not given"]
        {
            assert!(error.contains(part), "{error}");
        }
        was.kept_by(&was, 3).unwrap();
    }

    #[test]
    fn the_length_is_free_where_the_schedule_is() {
        let of = |kind: &str, total: u64| promise(json!({"trainer": {"lr_scheduler_type": kind}, LENGTH: total}));
        of("constant", 9).kept_by(&of("constant", 20), 9).unwrap();
        assert!(of("constant", 9).kept_by(&of("constant", 5), 9).is_err());
        assert!(of("linear", 9).kept_by(&of("linear", 20), 9).is_err());
    }
}
