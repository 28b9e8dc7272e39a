//! The settings that must not change between the processes of one run, so that N steps, a stop and
//! M steps equal N + M steps. Every setting belongs to it unless its entry
//! ([`Resume`](crate::arguments::Resume)) says that it is free, so a setting that is new is on the
//! safe side.
//!
//! Free are settings that change what is reported, saved or measured but no weight: where the run
//! writes, logging, evaluation and its data (a change of these is said), saving, early stopping,
//! `max_minutes`, the text sample, which device of a kind, and how devices share the work. Free,
//! too, is the compiler: it computes the same function, so a run may change to it and back, though
//! not bit for bit.
//!
//! Two settings may change with a notice, and the run is another one from there on. Its **length**:
//! the schedule is that of the new length from the next step on, entered at the step that the run
//! has come to, as in `transformers`' Trainer, which makes the schedule anew and puts the count of
//! steps back (its first step still has the rate that the old schedule left). Its **global batch**:
//! progress is counted in examples. The run goes on with the next example, and in the schedule it
//! stands where it would stand if all examples so far had come in batches of the new size; it ends
//! when the planned examples are seen. An order by length follows from the global batch, which then
//! must stay. The steps of a warm-up that is given as a share of the run, in samples or in tokens,
//! and a learning rate that `[learning_rate]` scales with the batch follow both, as long as the
//! settings that they are derived from stay. Everything else is refused by name, with the reason.
//!
//! The micro-batch is free at the same number of examples in an optimizer step, unless the loss of
//! a step depends on how it is cut (`trainer.accumulation = "transformers"`). Sums are then added
//! in another order, so that losses differ by rounding (f32: some 1e-6 relative a step), and
//! dropout, which is drawn for each micro-batch, draws anew.

use std::collections::BTreeMap;

use kiln_core::dataset::digest::digest;
use kiln_core::error::{Error, Result};
use kiln_core::files::hex;
use kiln_models::Operator;
use kiln_models::ops::Form;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::arguments::{Resume, TrainingArguments};
use crate::engine::settings::Precision;
use crate::optim::OptimizerConfig;
use crate::optim::loss::Reduction;
use crate::session::Session;
use crate::task::TrainingTask;
use kiln_core::dataset::Sampler;

const LENGTH: &str = "total steps";

const EXAMPLES: &str = "training examples";

const STEP_EXAMPLES: &str = "examples in an optimizer step";

const WARMUP: &str = "trainer.warmup_steps";

const RATE: &str = "trainer.learning_rate";
/// The instructions that multiply bf16 operands.
const PRODUCTS: &str = "products of bf16";
/// The values that fused operators round in a run in bf16 on the CPU, whichever operators are
/// fused: another version of Kiln may round more or fewer of them.
const ROUNDED: &str = "values rounded to bf16";
/// A part of that in the checkpoints of an older Kiln, which lack the former.
const ROUNDED_BEFORE: &str = "products of attention";

const SAMPLER: &str = "data.sampler";

/// Settings that follow from the length and the global batch, each with the keys that it is derived
/// from.
const FOLLOWING: [(&str, &[&str]); 2] = [
    (WARMUP, &[WARMUP]),
    (RATE, &[RATE, "learning_rate.scaling", "learning_rate.reference_batch", "learning_rate.scope"]),
];

/// Why a setting must stay: the beginning of its key, and the reason.
const REASONS: &[(&str, &str)] = &[
    ("model", "the weights and moments of the checkpoint have the old shape"),
    ("lora", "the weights and moments of the checkpoint have the old shape"),
    ("tokenizer", "the examples would be others than those that were learned from"),
    ("content of", "the place in the data is counted in the old examples"),
    ("training ", "the place in the data is counted in the old examples"),
    ("examples of", "the place in the data is counted in the old examples"),
    (STEP_EXAMPLES, "data.sampler = \"group_by_length\" makes its order from the old global batch"),
    ("data.", "the place in the data is counted in the old examples"),
    ("trainer.data_seed", "the order of the examples follows from it"),
    ("trainer.seed", "dropout and the order of the examples follow from it"),
    ("trainer.optim", "the moments of the checkpoint belong to the old optimizer"),
    ("trainer.adam", "the moments of the checkpoint belong to the old optimizer"),
    ("trainer.learning_rate", "the steps so far followed the old learning rate"),
    ("trainer.lr_scheduler", "the steps so far followed the old schedule"),
    ("trainer.warmup", "the steps so far followed the old warm-up"),
    ("device.kind", "another kind of device rounds otherwise"),
    ("precision", "the steps so far were rounded otherwise"),
    (PRODUCTS, "other instructions add in another order; KILN_CPU_PRODUCTS chooses lower ones"),
    (ROUNDED, "fused operators of the steps so far rounded otherwise, in an older Kiln"),
];

/// Settings of a config file with their defaults, which a program's run had in checkpoints of Kiln
/// up to 0.1.0, when a config file was a part of every run.
const OF_A_FILE: &[(&str, &str)] = &[
    ("data.assistant_only_loss", "false"),
    ("data.document_end", "\"auto\""),
    ("data.documents", "\"file\""),
    ("data.format", "\"text\""),
    ("data.mlm_probability", "0.15"),
    ("data.packing", "false"),
    ("data.shuffle_buffer_size", "1000"),
    ("data.skip_unlabeled", "false"),
    ("data.streaming", "false"),
    ("data.task", "\"clm\""),
    ("data.train", "[]"),
    ("data.whole_word_mask", "false"),
    ("model.ignore_mismatched_sizes", "false"),
    ("model.resize_token_embeddings", "false"),
];

/// The settings and facts that must stay, by key.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Promise {
    /// SHA-256 of the settings: equal promises have equal fingerprints.
    pub fingerprint: String,
    settings: BTreeMap<String, Value>,
    /// The digest of the validation data, where there are any.
    validation: Option<String>,
    /// The config's values for each of [`FOLLOWING`]. A checkpoint of an older Kiln does not know.
    #[serde(default)]
    given: BTreeMap<String, Value>,
    /// The settings of a run in which nothing is set: a setting that a checkpoint of an older Kiln
    /// does not know has its default there.
    #[serde(skip)]
    defaults: BTreeMap<String, Value>,
}

impl Promise {
    /// The promise of a run.
    ///
    /// # Errors
    /// Training data that cannot be read.
    pub fn of<T: TrainingTask>(session: &Session<T>) -> Result<Self> {
        let plan = session.plan();
        let mut settings = BTreeMap::new();
        let mut defaults = BTreeMap::new();
        let description = session.description()?;
        flatten("", &description.settings, &mut settings);
        flatten("", &description.defaults, &mut defaults);
        let given = FOLLOWING.iter().map(|(key, from)| {
            let values = from.iter().map(|key| settings.get(*key).cloned()).collect::<Vec<_>>();
            ((*key).to_owned(), json!(values))
        });
        let given = given.collect();
        settings.retain(|key, _| {
            let entry = TrainingArguments::KEYS.iter().chain(description.keys).find(|entry| entry.has(key));
            entry.is_none_or(|entry| entry.resume == Resume::Bound)
        });
        flatten("model", &session.task.config(), &mut settings);
        let precision = plan.engine.precision.precision;
        if precision != Precision::F32 {
            settings.insert("precision".into(), json!(precision.as_str()));
        }
        let is_fused = |operator: &Operator| plan.engine.ops.form(*operator) == Form::Fused;
        let multiplies = [Operator::Linear, Operator::Attention, Operator::CrossEntropy].iter().any(is_fused);
        if let Some(unit) = plan.engine.device.bf16_products.filter(|_| precision == Precision::Bf16 && multiplies) {
            settings.insert(PRODUCTS.into(), json!(unit.name()));
            settings.insert(ROUNDED.into(), json!("operands of products, arguments of activations"));
        }
        settings.insert(LENGTH.into(), json!(plan.steps.total));
        settings.insert(WARMUP.into(), json!(plan.optimizer.schedule.warmup_steps()));
        settings.insert(RATE.into(), json!(plan.optimizer.learning_rate.rate));
        if let OptimizerConfig::Own(own) = &plan.optimizer.config {
            settings.insert("trainer.optim".into(), json!(own.name()));
        }
        if plan.optimizer.schedule.is_own() {
            settings.insert("trainer.lr_scheduler_type".into(), json!(plan.optimizer.schedule.name()));
        }
        settings.insert("trainer.data_seed".into(), json!(plan.data.seed));
        let micro = plan.batch.micro;
        settings.insert(STEP_EXAMPLES.into(), json!(plan.batch.global));
        if plan.data.drop_last {
            // The examples that an epoch leaves out depend on the micro-batch.
            settings.insert("examples of an epoch".into(), json!(plan.data.examples_of_epoch(&plan.batch)));
        }
        if plan.optimizer.loss.reduction != Reduction::Exact {
            settings.insert("trainer.accumulation".into(), json!(plan.optimizer.accumulation.as_str()));
            settings.insert("trainer.per_device_train_batch_size".into(), json!(micro));
        }
        settings.insert("device.kind".into(), json!(plan.engine.device.kind.as_str()));
        // Of a stream, as many as the length of the run needs.
        if session.train().stream().is_none() {
            settings.insert(EXAMPLES.into(), json!(plan.data.train_examples));
            settings.insert("training tokens".into(), json!(plan.data.train_tokens));
        }
        settings.insert("content of the training data".into(), json!(digest(&**session.train())?));
        let mut hash = Sha256::new();
        for (key, value) in &settings {
            hash.update(format!("{key}={value}\n"));
        }
        let validation = session.validation().map(|data| digest(&**data)).transpose()?;
        Ok(Self { fingerprint: hex(&hash.finalize()), settings, validation, given, defaults })
    }

    /// The digest of the validation data, where there are any.
    pub fn validation(&self) -> Option<&str> {
        self.validation.as_deref()
    }

    /// The number of training examples.
    pub fn training_examples(&self) -> Option<u64> {
        self.settings.get(EXAMPLES).and_then(Value::as_u64)
    }

    /// The examples of an optimizer step.
    pub fn step_examples(&self) -> Option<u64> {
        self.settings.get(STEP_EXAMPLES).and_then(Value::as_u64)
    }

    fn differs(&self, now: &Self, key: &str) -> bool {
        !same(self.settings.get(key), now.settings.get(key))
    }

    /// Notices for when a run with the promise `self`, now at `step`, continues as `now`, although
    /// it may.
    pub fn notices(&self, now: &Self, step: u64) -> Vec<String> {
        let changed = now.validation.is_some() && self.validation.is_some() && self.validation != now.validation;
        let validation = changed.then(|| {
            "the validation data have changed since the run began: evaluations before and after this point, and the best of \
             them, do not compare"
                .to_owned()
        });
        let value = |of: &Self, key: &str| of.settings.get(key).map_or_else(String::new, Value::to_string);
        let batch = self.differs(now, STEP_EXAMPLES).then(|| {
            format!(
                "the run goes on after step {step} with {} examples in an optimizer step, which were {}: progress is counted in \
                 examples, and the rest of the schedule of {} steps follows",
                value(now, STEP_EXAMPLES),
                value(self, STEP_EXAMPLES),
                value(now, LENGTH)
            )
        });
        let length = (batch.is_none() && self.differs(now, LENGTH)).then(|| {
            let (was, is) = (value(self, LENGTH), value(now, LENGTH));
            let rest = if now.settings.get(LENGTH).and_then(Value::as_u64) == Some(step) {
                ", which it has made".to_owned()
            } else {
                format!(": from step {} on the learning rate follows the schedule of the new length", step + 1)
            };
            format!("the run was to end after {was} steps and is to end after {is}{rest}")
        });
        [validation, batch, length].into_iter().flatten().collect()
    }

    /// Whether the setting `key` may become that of `now`.
    fn may_change(&self, now: &Self, key: &str) -> bool {
        let batch = self.differs(now, STEP_EXAMPLES);
        let has_products = |promise: &Self| promise.settings.contains_key(PRODUCTS);
        match key {
            LENGTH => true,
            // Of the compiled mode, which a run may begin or leave.
            PRODUCTS | ROUNDED => !(has_products(self) && has_products(now)),
            ROUNDED_BEFORE => true,
            STEP_EXAMPLES => now.settings.get(SAMPLER) != Some(&json!(Sampler::GroupByLength.as_str())),
            WARMUP | RATE => self.given.contains_key(key) && self.given.get(key) == now.given.get(key),
            "examples of an epoch" | "trainer.per_device_train_batch_size" => batch,
            _ => false,
        }
    }

    /// Whether a run with the promise `self`, now at `step`, which is step `scheduled` of the
    /// schedule of `now`, may continue as `now`.
    ///
    /// # Errors
    /// The settings that differ, with both values and the reason why they must stay.
    pub fn kept_by(&self, now: &Self, step: u64, scheduled: u64) -> Result<()> {
        let mut broken = Vec::new();
        for (key, was, is) in self.differences(now).filter(|(key, ..)| !self.may_change(now, key)) {
            let reason = REASONS.iter().find(|(of, _)| key.starts_with(of)).map(|(_, reason)| format!(" ({reason})"));
            broken.push(format!("{key} was {was} and is {is}{}", reason.unwrap_or_default()));
        }
        let total = now.settings[LENGTH].as_u64().unwrap_or_default();
        if broken.is_empty() && scheduled > total {
            broken.push(format!("the run has made {scheduled} steps and is to end after {total}"));
        }
        if broken.is_empty() {
            return Ok(());
        }
        Err(Error::config(format!("the checkpoint of step {step} is of another run: {}", broken.join("; "))).help(
            "of what decides about the weights a resumed run may change its length and its global batch: set the rest back, or \
             start a new run (run.output_dir, or run.on_existing = \"overwrite\"); model.from begins one with these weights",
        ))
    }

    /// Whether a rank with the promise `now` makes the same run as rank 0, whose promise is `self`.
    ///
    /// # Errors
    /// The settings that differ, with both values.
    pub fn is_that_of(&self, now: &Self, rank: usize) -> Result<()> {
        let differences = self.differences(now).map(|(key, root, own)| format!("{key} is {own} and not {root}"));
        let mut differences = differences.collect::<Vec<_>>();
        if self.validation != now.validation {
            differences.push("its validation data are others".into());
        }
        if differences.is_empty() {
            return Ok(());
        }
        Err(Error::config(format!("rank {rank} has another run than rank 0: {}", differences.join("; ")))
            .help("every machine needs the same config, the same model and the same data"))
    }

    /// Whether one of two runs does not know the setting `key`, and the other one has its default.
    fn is_default(&self, key: &str, was: Option<&Value>, now: &Self, is: Option<&Value>) -> bool {
        match (was, is) {
            (None, Some(is)) => now.defaults.get(key) == Some(is),
            (Some(was), None) => {
                let was = was.to_string();
                OF_A_FILE.contains(&(key, was.as_str()))
            }
            _ => false,
        }
    }

    /// The settings of which `self` and `now` have different values, with both.
    fn differences<'a>(&'a self, now: &'a Self) -> impl Iterator<Item = (&'a str, String, String)> {
        let keys = self.settings.keys().chain(now.settings.keys().filter(|key| !self.settings.contains_key(*key)));
        let shown = |value: Option<&Value>| value.map_or("not given".into(), Value::to_string);
        let values = |key: &'a String| (key, self.settings.get(key), now.settings.get(key));
        keys.map(values)
            .filter(|(key, was, is)| !same(*was, *is) && !self.is_default(key, *was, now, *is))
            .map(move |(key, was, is)| (key.as_str(), shown(was), shown(is)))
    }
}

/// Whether two values are the same. A number that was read from JSON may differ from itself in the
/// last place.
fn same(a: Option<&Value>, b: Option<&Value>) -> bool {
    match (a, b) {
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(Some(a), Some(b)))
        }
        (Some(Value::Number(a)), Some(Value::Number(b))) if a.is_f64() && b.is_f64() => {
            let (a, b) = (a.as_f64().unwrap_or(f64::NAN), b.as_f64().unwrap_or(f64::NAN));
            (a - b).abs() <= 2.0 * f64::EPSILON * a.abs()
        }
        (a, b) => a == b,
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
        Promise { settings: map, ..Promise::default() }
    }

    #[test]
    fn what_changed_is_named_with_both_values() {
        let was = promise(json!({"trainer": {"seed": 1}, "model": {"n_layer": 2}, LENGTH: 9}));
        let now = promise(json!({"trainer": {"seed": 2}, "model": {"n_head": 2}, LENGTH: 9}));
        let error = was.kept_by(&now, 3, 3).unwrap_err().to_string();
        for part in [
            "trainer.seed was 1 and is 2 (dropout and the order of the examples follow from it)",
            "model.n_layer was 2 and is not given",
            "model.n_head was not given",
        ] {
            assert!(error.contains(part), "{error}");
        }
        was.kept_by(&was, 3, 3).unwrap();
        let rate = |rate: f64| promise(json!({RATE: rate, LENGTH: 9}));
        rate(0.0013543242950814507).kept_by(&rate(0.0013543242950814509), 3, 3).unwrap();
        assert!(rate(0.00135432).kept_by(&rate(0.00135433), 3, 3).is_err());
    }

    #[test]
    fn a_setting_that_one_side_does_not_know_has_its_default() {
        let was = promise(json!({LENGTH: 9, "data": {"task": "clm", "train": []}}));
        let knows = |flag: bool| Promise {
            defaults: promise(json!({"trainer": {"new": false}})).settings,
            ..promise(json!({LENGTH: 9, "trainer": {"new": flag}}))
        };
        was.kept_by(&knows(false), 3, 3).unwrap();
        let error = was.kept_by(&knows(true), 3, 3).unwrap_err().to_string();
        assert!(error.contains("trainer.new was not given and is true"), "{error}");
        let other = promise(json!({LENGTH: 9, "data": {"task": "mlm"}}));
        let error = other.kept_by(&knows(false), 3, 3).unwrap_err().to_string();
        assert!(error.contains("data.task was \"mlm\" and is not given"), "{error}");
    }

    #[test]
    fn length_and_batch_may_change_and_settings_that_follow_from_them() {
        // A warm-up of a tenth of the run, and a learning rate of 0.1 for 8 examples.
        let of = |total: u64, batch: u64, warmup: u64, rate: f64| {
            let promise = promise(json!({LENGTH: total, STEP_EXAMPLES: batch, WARMUP: warmup, RATE: rate}));
            let given = [(WARMUP, json!([0.1])), (RATE, json!([0.1, "linear", 8, "global"]))];
            Promise { given: given.map(|(key, value)| (key.into(), value)).into(), ..promise }
        };
        let giving = |promise: Promise, key: &str, value: Value| {
            let mut given = promise.given.clone();
            given.insert(key.into(), value);
            Promise { given, ..promise }
        };
        let was = of(9, 8, 1, 0.1);
        was.kept_by(&of(20, 8, 2, 0.1), 9, 9).unwrap();
        was.kept_by(&of(5, 8, 1, 0.1), 4, 4).unwrap();
        was.kept_by(&of(9, 16, 2, 0.2), 4, 2).unwrap();
        // The same steps of warm-up, given otherwise.
        was.kept_by(&giving(of(9, 8, 1, 0.1), WARMUP, json!([1])), 4, 4).unwrap();
        let followed = "trainer.warmup_steps was 1 and is 2 (the steps so far followed the old warm-up)";
        for (now, why) in [
            (of(3, 8, 1, 0.1), "the run has made 4 steps and is to end after 3"),
            (giving(of(9, 8, 2, 0.1), WARMUP, json!([2])), followed),
            (giving(of(20, 8, 2, 0.1), WARMUP, json!([2])), followed),
            (
                giving(of(9, 16, 1, 6.4), RATE, json!([3.2, "linear", 8, "global"])),
                "trainer.learning_rate was 0.1 and is 6.4 (the steps so far followed the old learning rate)",
            ),
            (giving(of(9, 16, 1, 0.2), RATE, json!([0.1, "linear", 4, "global"])), "trainer.learning_rate was 0.1"),
        ] {
            for was in [was.clone(), Promise { given: BTreeMap::new(), ..was.clone() }] {
                let error = was.kept_by(&now, 4, 4).unwrap_err().to_string();
                assert!(error.contains(why), "{error}");
            }
        }
        let by_length = |batch: u64| {
            let mut promise = of(9, batch, 1, 0.1);
            promise.settings.insert(SAMPLER.into(), json!("group_by_length"));
            promise
        };
        let error = by_length(8).kept_by(&by_length(16), 4, 2).unwrap_err().to_string();
        assert!(error.contains("examples in an optimizer step was 8 and is 16 (data.sampler = "), "{error}");
        assert!(was.notices(&was, 4).is_empty());
        assert!(was.notices(&of(20, 8, 2, 0.1), 4)[0].contains("after 9 steps and is to end after 20: from step 5 on"));
        assert!(was.notices(&of(4, 8, 2, 0.1), 4)[0].ends_with("is to end after 4, which it has made"));
        assert!(was.notices(&of(5, 16, 1, 0.1), 4)[0].contains("with 16 examples in an optimizer step, which were 8"));
    }

    #[test]
    fn a_compiled_run_in_bf16_goes_on_as_it_rounded() {
        let of = |products: &str, rounded: &str, value: &str| {
            promise(json!({PRODUCTS: products, rounded: value, LENGTH: 9}))
        };
        let (native, now) = (promise(json!({LENGTH: 9})), of("f32", ROUNDED, "operands"));
        let older = [promise(json!({PRODUCTS: "f32", LENGTH: 9})), of("f32", ROUNDED_BEFORE, "bf16")];
        let other = of("amx-bf16", ROUNDED, "operands");
        now.kept_by(&now, 3, 3).unwrap();
        for compiled in older.iter().chain([&now, &other]) {
            compiled.kept_by(&native, 3, 3).unwrap();
            native.kept_by(compiled, 3, 3).unwrap();
        }
        for older in &older {
            let error = older.kept_by(&now, 3, 3).unwrap_err().to_string();
            let told = "another run: values rounded to bf16 was not given and is \"operands\" (fused operators";
            assert!(error.contains(told) && !error.contains(ROUNDED_BEFORE), "{error}");
        }
        let error = other.kept_by(&now, 3, 3).unwrap_err().to_string();
        assert!(error.contains("products of bf16 was \"amx-bf16\" and is \"f32\""), "{error}");
    }
}
