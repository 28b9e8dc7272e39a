//! Cross-entropy as training may want it: with label smoothing (Szegedy et al. 2016; Hugging Face's
//! `label_smoothing_factor`) and with a weight for every class. The numbers are those of
//! `torch.nn.functional.cross_entropy` with `label_smoothing` and `weight`. Evaluation smooths too,
//! as Hugging Face's Trainer does, and has no weights. Here is also what the losses of several
//! micro-batches come to.

use burn::tensor::{Device, Tensor, TensorData};
use kiln_core::error::{Error, Result};
use kiln_core::model_config::Labels;
use kiln_data::labels::LabelNames;
use kiln_models::ops::Form;
use kiln_models::ops::cross_entropy::{self, CrossEntropy};
use kiln_models::ops::embedding::TiedTable;
use kiln_models::{Model, ModelConfig, ModelType, Operator, Ops, Pass, Rows};

use super::batch::{DeviceBatch, LossSum, Targets, by_target, in_f32};
use super::model_task::ModelTask;
use crate::config::{Accumulation, ClassWeights, Task, TrainingArguments};
use crate::optim::loss::{LossOptions, Reduction};

/// The options of `[trainer]`, for `model` with a `task`.
///
/// # Errors
/// A task whose loss is no cross-entropy over classes, another number of weights than classes,
/// and weights of labels that the model does not have.
pub fn loss_options(trainer: &TrainingArguments, task: &dyn ModelTask, model: &ModelConfig) -> Result<LossOptions> {
    let kind = task.kind();
    let label_smoothing = trainer.label_smoothing_factor;
    if label_smoothing > 0.0 && !task.predicts_classes() {
        return Err(Error::config(format!(
            "trainer.label_smoothing_factor = {label_smoothing}: the task {kind} has no labels that could be smoothed"
        ))
        .help("it is for clm, mlm, sequence-classification, token-classification and multiple-choice; remove it"));
    }
    let class_weights = match &trainer.class_weights {
        None => None,
        Some(_) if !task.weighs_classes() => {
            return Err(Error::config(format!(
                "trainer.class_weights: Kiln has no weights of classes for the task {kind}"
            ))
            .help("it is for sequence-classification; remove it"));
        }
        Some(weights) => Some(in_order(weights, model.labels())?),
    };
    let as_in_transformers = trainer.accumulation == Accumulation::Transformers;
    let reduction = if as_in_transformers { task.reduction_of_transformers(label_smoothing) } else { Reduction::Exact };
    // `GPT2LMHeadModel` has no `loss_type` by which the Trainer would know that its labels are
    // shifted; GPT-Neo's has.
    let counts_first_labels = as_in_transformers && kind == Task::Clm && model.model_type() == ModelType::Gpt2;
    Ok(LossOptions { label_smoothing, class_weights, reduction, counts_first_labels })
}

/// The weights in the order of the label ids.
fn in_order(weights: &ClassWeights, labels: &Labels) -> Result<Vec<f64>> {
    let num_labels = labels.num_labels();
    let weights = match weights {
        ClassWeights::ById(weights) if weights.len() == num_labels => return Ok(weights.clone()),
        ClassWeights::ById(weights) => {
            return Err(Error::config(format!(
                "trainer.class_weights: expected {num_labels} weights, one a class in the order of the labels, got {}",
                weights.len()
            )));
        }
        ClassWeights::ByName(weights) => weights,
    };
    let Some(names) = LabelNames::of_model(labels)? else {
        return Err(Error::config("trainer.class_weights: the labels have no names here")
            .help(format!("give a list of {num_labels} numbers in the order of the label ids")));
    };
    let known = names.names().join(", ");
    if let Some(other) = weights.keys().find(|name| !names.names().contains(name)) {
        return Err(Error::config(format!("trainer.class_weights: there is no label `{other}`"))
            .help(format!("the labels are {known}")));
    }
    let weight = |name: &String| {
        weights.get(name).copied().ok_or_else(|| {
            Error::config(format!("trainer.class_weights: no weight for the label `{name}`"))
                .help(format!("give one for each of {known}"))
        })
    };
    names.names().iter().map(weight).collect()
}

impl DeviceBatch {
    /// The loss sum of this batch under `model` with `options`, in one forward `pass`. The same
    /// function as [`training_loss`](Self::training_loss) of [`Model::logits`]; a language model
    /// that computes in the fused form never holds its logits.
    ///
    /// # Errors
    /// A batch without labels.
    pub fn loss_of(&self, model: &Model, pass: Pass<'_>, options: &LossOptions) -> Result<LossSum> {
        let rows = model.rows(&self.input, pass);
        let tied = TiedTable::default();
        let pass = Pass { tied: Some(&tied), ..pass };
        let x = model.hidden(&self.input, &rows, pass);
        self.loss_of_hidden(model, x, &rows, pass, options)
    }

    /// [`loss_of`](Self::loss_of) from the hidden states `x` of this batch ([`Model::hidden`]).
    ///
    /// # Errors
    /// A batch without labels.
    pub fn loss_of_hidden(
        &self,
        model: &Model,
        x: Tensor<2>,
        rows: &Rows,
        pass: Pass<'_>,
        options: &LossOptions,
    ) -> Result<LossSum> {
        if let (Form::Fused, None, Some(Targets::Classes { index, weight })) =
            (pass.ops().form(Operator::CrossEntropy), &options.class_weights, &self.targets)
            && let Some(projection) = model.projection(x.clone(), pass)
        {
            let loss = CrossEntropy {
                x: projection.x,
                weight: projection.weight,
                bias: projection.bias,
                target: index.clone(),
                row_weight: weight.clone(),
                label_smoothing: options.label_smoothing,
                operands: projection.operands,
            };
            let tied = pass.tied.filter(|_| projection.is_tied);
            return Ok(LossSum { sum: loss.tied_sum(tied, Ops::Fused), count: self.count });
        }
        self.training_loss(model.head(x, &self.input, rows, pass), options)
    }

    /// The loss sum of `logits` with `options`, which is to be divided by
    /// [`total_weight`](super::total_weight).
    ///
    /// # Errors
    /// A batch without labels.
    pub fn training_loss(&self, logits: Tensor<2>, options: &LossOptions) -> Result<LossSum> {
        let Some(Targets::Classes { index, weight }) = self.targets.as_ref().filter(|_| !options.is_plain()) else {
            return self.loss(logits);
        };
        let moved = |weights: &Vec<f64>| match &self.class_weights {
            Some(there) => there.clone(),
            None => on_device(weights, &logits.device()),
        };
        let class_weights = options.class_weights.as_ref().map(moved);
        let loss = cross_entropy::plain(
            by_target(in_f32(logits), index),
            index.clone(),
            options.label_smoothing,
            class_weights,
        );
        let sum = match weight {
            Some(weight) => (loss * weight.clone()).sum(),
            None => loss.sum(),
        };
        Ok(LossSum { sum, count: self.count })
    }
}

impl DeviceBatch {
    /// Puts the class weights of `options` on `device` beside the batch. They would otherwise be
    /// copied when the loss is computed, which a captured step cannot do.
    #[must_use]
    pub fn with_class_weights(self, options: &LossOptions, device: &Device) -> Self {
        Self { class_weights: options.class_weights.as_ref().map(|weights| on_device(weights, device)), ..self }
    }
}

/// The weights of the classes on `device`, `[C]`.
fn on_device(weights: &[f64], device: &Device) -> Tensor<1> {
    let weights = weights.iter().map(|weight| *weight as f32).collect::<Vec<_>>();
    let classes = weights.len();
    Tensor::from_data(TensorData::new(weights, [classes]), device)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use kiln_data::{BatchLabels, IGNORED, PaddedBatch};

    use super::*;
    use crate::reads::{read_scalars, read_values};
    use crate::task::{SequenceClassification, model_task, total_weight};

    #[derive(serde::Deserialize)]
    struct Fixture {
        torch: String,
        cases: Vec<Case>,
    }

    #[derive(serde::Deserialize)]
    struct Case {
        task: Task,
        logits: Vec<Vec<f32>>,
        labels: Vec<i32>,
        label_smoothing: f64,
        class_weights: Option<Vec<f64>>,
        loss: f64,
        gradient: Vec<f32>,
    }

    #[test]
    fn losses_and_gradients_equal_torch() {
        let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/losses.json"));
        let fixture: Fixture = serde_json::from_str(text).unwrap();
        assert!(fixture.torch.starts_with("2.15") && fixture.cases.len() >= 6);
        let device = Device::flex().autodiff();
        for case in fixture.cases {
            let (rows, classes) = (case.logits.len(), case.logits[0].len());
            let (batch_rows, seq_len, labels) = match case.task {
                Task::SequenceClassification => (rows, 1, BatchLabels::Classes(case.labels)),
                _ => (1, rows, BatchLabels::Tokens(case.labels)),
            };
            let batch = PaddedBatch {
                rows: batch_rows,
                examples: batch_rows,
                seq_len,
                input_ids: vec![0; rows],
                attention_mask: None,
                token_type_ids: None,
                position_ids: None,
                labels,
                num_tokens: rows,
            };
            let (label_smoothing, class_weights) = (case.label_smoothing, case.class_weights);
            let options = LossOptions { label_smoothing, class_weights, ..Default::default() };
            let on_device = DeviceBatch::new(&*model_task(case.task), &batch, &device).unwrap();
            let logits = TensorData::new(case.logits.concat(), [rows, classes]);
            let logits = Tensor::<2>::from_data(logits, &device).require_grad();
            let loss = on_device.training_loss(logits.clone(), &options).unwrap();
            let mean = loss.sum * (1.0 / total_weight(&options, &*model_task(case.task), &batch));
            let value = read_scalars(vec![mean.clone()]).unwrap()[0];
            // f32 against f64: a dozen roundings of numbers of order 1.
            assert!((value - case.loss).abs() < 2e-6 * case.loss.abs().max(1.0), "{value} is not {}", case.loss);
            let gradient = read_values(logits.grad(&mean.backward()).unwrap()).unwrap();
            for (value, expected) in gradient.iter().zip(&case.gradient) {
                assert!((value - expected).abs() < 1e-6, "{options:?}: {value} is not {expected}");
            }
        }
    }

    /// Logits that f16 cannot hold, and whose exponentials no type can.
    #[test]
    fn logits_of_1e5_have_a_loss() {
        let device = Device::flex().autodiff();
        for label_smoothing in [0.0, 0.1] {
            let batch = PaddedBatch {
                rows: 2,
                examples: 2,
                seq_len: 1,
                input_ids: vec![0; 2],
                attention_mask: None,
                token_type_ids: None,
                position_ids: None,
                labels: BatchLabels::Classes(vec![0, 1]),
                num_tokens: 2,
            };
            let on_device = DeviceBatch::new(&SequenceClassification, &batch, &device).unwrap();
            let logits = Tensor::<2>::from_floats([[1e5f32, -1e5], [1e5, -1e5]], &device).require_grad();
            let options = LossOptions { label_smoothing, ..Default::default() };
            let loss = on_device.training_loss(logits.clone(), &options).unwrap().sum;
            // Right: (1 - e) 0 + e/2 (0 + 2e5); wrong: (1 - e) 2e5 + e/2 2e5.
            let expected = label_smoothing * 1e5 + (1.0 - label_smoothing) * 2e5 + label_smoothing * 1e5;
            let value = read_scalars(vec![loss.clone()]).unwrap()[0];
            assert!((value / expected - 1.0).abs() < 1e-6, "{value} is not {expected}");
            let gradient = read_values(logits.grad(&loss.backward()).unwrap()).unwrap();
            let half = label_smoothing as f32 / 2.0;
            for (value, expected) in gradient.iter().zip([half, -half, 1.0 - half, half - 1.0]) {
                assert!((value - expected).abs() < 1e-6, "{gradient:?}");
            }
        }
    }

    /// `Trainer._get_num_items_in_batch` of `transformers` 5.24 counts `labels[..., 1:]` where it
    /// knows by the model's `loss_type` that the labels are shifted, and `GPT2LMHeadModel` has
    /// none.
    #[test]
    fn the_divisor_counts_what_is_predicted_or_what_the_trainer_counts() {
        let batch = PaddedBatch {
            rows: 2,
            examples: 2,
            seq_len: 3,
            input_ids: vec![0; 6],
            attention_mask: None,
            token_type_ids: None,
            position_ids: None,
            labels: BatchLabels::Tokens(vec![5, 6, 7, IGNORED, 8, IGNORED]),
            num_tokens: 6,
        };
        for (kind, accumulation, task, divisor) in [
            (ModelType::Gpt2, "exact", Task::Clm, 3.0),
            (ModelType::Gpt2, "transformers", Task::Clm, 4.0),
            (ModelType::GptNeo, "transformers", Task::Clm, 3.0),
            (ModelType::Bert, "exact", Task::Mlm, 4.0),
        ] {
            let model = ModelConfig::from_fields(kind, &serde_json::Map::new()).unwrap();
            let trainer = toml::from_str(&format!("accumulation = {accumulation:?}")).unwrap();
            let options = loss_options(&trainer, &*model_task(task), &model).unwrap();
            assert_eq!(total_weight(&options, &*model_task(task), &batch), divisor, "{kind}, {accumulation}");
        }
    }

    #[test]
    fn settings_that_do_not_fit_the_task() {
        let of = |lines: &str, task| {
            let labels = LabelNames::new(["bad", "fair", "good"].map(String::from).to_vec()).unwrap();
            let mut model = ModelConfig::from_fields(ModelType::Gpt2, &serde_json::Map::new()).unwrap();
            *model.labels_mut() = labels.to_model(task);
            loss_options(&toml::from_str(lines).unwrap(), &*model_task(task), &model).map_err(|error| error.to_string())
        };
        assert!(of("", Task::Regression).unwrap().is_plain());
        let weights = of("class_weights = [1, 2.5, 1]", Task::SequenceClassification).unwrap();
        let batch = PaddedBatch {
            rows: 4,
            examples: 4,
            seq_len: 1,
            input_ids: vec![0; 4],
            attention_mask: None,
            token_type_ids: None,
            position_ids: None,
            labels: BatchLabels::Classes(vec![0, 1, IGNORED, 1]),
            num_tokens: 4,
        };
        assert_eq!(total_weight(&weights, &SequenceClassification, &batch), 6.0);
        let named = of("class_weights = { good = 1, fair = 2.5, bad = 1 }", Task::SequenceClassification).unwrap();
        assert_eq!(named, weights);
        for (lines, task, part) in [
            ("label_smoothing_factor = 0.1", Task::Regression, "no labels that could be smoothed"),
            ("label_smoothing_factor = 0.1", Task::QuestionAnswering, "no labels that could be smoothed"),
            ("class_weights = [1, 1, 1]", Task::Clm, "no weights of classes for the task clm"),
            ("class_weights = [1, 1]", Task::SequenceClassification, "expected 3 weights"),
            ("class_weights = { good = 1, bad = 1 }", Task::SequenceClassification, "no weight for the label `fair`"),
            ("class_weights = { good = 1, evil = 1 }", Task::SequenceClassification, "there is no label `evil`"),
        ] {
            let error = of(lines, task).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
