//! Every optimizer against numbers of PyTorch, transformers or its paper
//! (`tests/fixtures/make_optimizers.py`), its state out and in again, and which parameters learn.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, TensorData};
use kiln_models::Ops;
use kiln_models::layers::Linear;
use kiln_models::weights::{NamedTensor, Parameter, StateDict, export, parameters};

use super::gradient::global_norm;
use super::{Optimizer, OptimizerConfig, ParameterGroups};
use crate::arguments::TrainingArguments;
use crate::optim::arguments::OptimizerName;
use crate::optim::scaler::{LossScaler, ScalerConfig};

type Values = BTreeMap<String, Vec<f64>>;

#[derive(serde::Deserialize)]
struct Fixture {
    torch: String,
    transformers: String,
    lr: Vec<f64>,
    initial: Values,
    grads: Vec<Values>,
    cases: Vec<Case>,
}

#[derive(serde::Deserialize)]
struct Case {
    name: String,
    steps: Vec<Values>,
    #[serde(flatten)]
    trainer: TrainingArguments,
}

/// The layers of the fixture: 3 -> 5 -> 2.
#[derive(Module, Debug)]
struct Layers {
    h: Vec<Linear>,
}

impl StateDict for Layers {}

fn layers(device: &Device) -> Layers {
    Layers { h: vec![Linear::new(3, 5, true, 1.0, device), Linear::new(5, 2, true, 1.0, device)] }
}

fn fixture() -> Fixture {
    let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/optimizers.json"));
    let fixture: Fixture = serde_json::from_str(text).unwrap();
    assert!(fixture.torch.starts_with("2.15") && fixture.transformers.starts_with("5.24"));
    fixture
}

/// A tensor of the fixture in Kiln's layout.
fn tensor<const D: usize>(parameter: &Parameter, values: &[f64], device: &Device) -> Tensor<D> {
    let values = values.iter().map(|value| *value as f32).collect::<Vec<_>>();
    let tensor = Tensor::<D>::from_data(TensorData::new(values, parameter.shape.clone()), device);
    if parameter.transposed { tensor.swap_dims(0, 1) } else { tensor }
}

struct Set<'a> {
    parameters: Vec<Parameter>,
    values: &'a Values,
    device: Device,
}

impl Set<'_> {
    fn of<const D: usize>(&self, param: &Param<Tensor<D>>) -> Tensor<D> {
        let parameter = self.parameters.iter().find(|parameter| parameter.id == param.id).unwrap();
        tensor(parameter, &self.values[&parameter.name], &self.device)
    }
}

impl ModuleMapper for Set<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let value = self.of(&param);
        Param::initialized(param.id, Tensor::from_inner(value).set_require_grad(true))
    }
}

struct Gradients<'a> {
    set: Set<'a>,
    grads: GradientsParams,
}

impl ModuleVisitor for Gradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.grads.register(param.id, self.set.of(param));
    }
}

/// The layers with the fixture's values.
fn initial(fixture: &Fixture) -> Layers {
    let device = Device::flex();
    let model = layers(&device.clone().autodiff());
    let parameters = parameters(&model);
    model.map(&mut Set { parameters, values: &fixture.initial, device })
}

fn step(optimizer: &mut Optimizer, model: Layers, grads: &Values, lr: f64) -> Layers {
    let (grads, scale) = gradients(&model, grads);
    optimizer.step(model, grads, &scale, lr)
}

/// One step of `optimizer`, of which the device decides by `scaler` whether it counts.
fn step_unless(optimizer: &mut Optimizer, scaler: &mut LossScaler, model: Layers, grads: &Values, lr: f64) -> Layers {
    let (grads, scale) = gradients(&model, grads);
    let verdict = scaler.judge(global_norm(&model, &grads, Ops::Plain));
    let model = optimizer.step_unless(&verdict, model, grads, &scale, lr);
    scaler.update(&verdict);
    model
}

fn gradients(model: &Layers, grads: &Values) -> (GradientsParams, Tensor<1>) {
    let device = Device::flex();
    // Twice the gradients at half the scale, so that the scale counts.
    let doubled: Values =
        grads.iter().map(|(name, values)| (name.clone(), values.iter().map(|v| v * 2.0).collect())).collect();
    let set = Set { parameters: parameters(model), values: &doubled, device: device.clone() };
    let mut gradients = Gradients { set, grads: GradientsParams::new() };
    model.visit(&mut gradients);
    (gradients.grads, Tensor::from_floats([0.5], &device))
}

fn optimizer(trainer: &TrainingArguments, model: &Layers) -> Optimizer {
    Optimizer::new(trainer.into(), &ParameterGroups::of(trainer, &parameters(model)).unwrap(), model)
}

#[test]
fn every_optimizer_equals_its_reference() {
    let fixture = fixture();
    let tried = fixture.cases.iter().map(|case| case.trainer.optim.as_str()).collect::<BTreeSet<_>>();
    assert_eq!(tried.len(), OptimizerName::ALL.len(), "{tried:?}");
    for case in &fixture.cases {
        case.trainer.optim_args.check(case.trainer.optim).unwrap();
        let mut model = initial(&fixture);
        let mut optimizer = optimizer(&case.trainer, &model);
        for (i, (lr, grads)) in fixture.lr.iter().zip(&fixture.grads).enumerate() {
            model = step(&mut optimizer, model, grads, *lr);
            for NamedTensor { name, data, .. } in export(&model).unwrap() {
                for (value, expected) in data.iter().zip(&case.steps[i][&name]) {
                    // The reference is in f64. Weights and steps are below 2, where f32 has 1e-7;
                    // an update passes through about ten roundings (3e-7 was seen at most).
                    // PyTorch's own Muon has 8 bits, of which five iterations leave 5 % of an
                    // update of up to lr.
                    let tolerance = match case.name.as_str() {
                        "muon-bf16" => 0.05 * fixture.lr[..=i].iter().sum::<f64>(),
                        _ => 1e-6,
                    };
                    let difference = (f64::from(*value) - expected).abs();
                    assert!(difference <= tolerance, "{} step {} {name}: {value} is not {expected}", case.name, i + 1);
                }
            }
        }
    }
}

/// With every optimizer that can skip: nothing is another bit than in the plain update when nothing
/// overflows; a step that overflows leaves weights and state as they were, and what follows is as
/// if it had never been made.
#[test]
fn skipped_updates_leave_no_trace() {
    let fixture = fixture();
    for case in fixture.cases.iter().filter(|case| OptimizerConfig::from(&case.trainer).can_skip()) {
        for overflow_at in [None, Some(0), Some(2)] {
            let (mut plain, mut skipping) = (initial(&fixture), initial(&fixture));
            let (mut one, mut two) = (optimizer(&case.trainer, &plain), optimizer(&case.trainer, &skipping));
            let mut scaler = LossScaler::new(ScalerConfig::default(), &Device::flex());
            for (i, (lr, grads)) in fixture.lr.iter().zip(&fixture.grads).enumerate() {
                if overflow_at == Some(i) {
                    let mut bad = grads.clone();
                    bad.get_mut("h.0.weight").unwrap()[1] = f64::INFINITY;
                    bad.get_mut("h.1.bias").unwrap()[0] = f64::NAN;
                    let before = export(&skipping).unwrap();
                    skipping = step_unless(&mut two, &mut scaler, skipping, &bad, *lr);
                    assert_eq!(export(&skipping).unwrap(), before, "{} step {i}", case.name);
                    assert_eq!(scaler.state().unwrap().scale, 32768.0);
                }
                plain = step(&mut one, plain, grads, *lr);
                skipping = step_unless(&mut two, &mut scaler, skipping, grads, *lr);
                let what = format!("{} step {i}, overflow at {overflow_at:?}", case.name);
                assert_eq!(export(&plain).unwrap(), export(&skipping).unwrap(), "{what}");
                assert_eq!(one.export(&plain).unwrap(), two.export(&skipping).unwrap(), "{what}");
            }
            let skipped = u64::from(overflow_at.is_some());
            let state = scaler.state().unwrap();
            assert_eq!((state.skipped, state.applied), (skipped, fixture.grads.len() as u64));
        }
    }
}

#[test]
fn state_goes_out_and_in_again() {
    let fixture = fixture();
    for case in &fixture.cases {
        let mut straight = initial(&fixture);
        let mut one = optimizer(&case.trainer, &straight);
        let (first, rest) = fixture.grads.split_at(3);
        for (grads, lr) in first.iter().zip(&fixture.lr) {
            straight = step(&mut one, straight, grads, *lr);
        }
        // A new process: other parameter ids, the same weights.
        let saved = one.export(&straight).unwrap();
        let weights = export(&straight).unwrap();
        let values = weights.into_iter().map(|t| (t.name, t.data.iter().map(|v| f64::from(*v)).collect())).collect();
        let mut resumed = initial(&Fixture { initial: values, ..self::fixture() });
        let mut two = optimizer(&case.trainer, &resumed);
        two.import(&resumed, 3, saved.clone(), &Device::flex()).unwrap();
        for (grads, lr) in rest.iter().zip(&fixture.lr[3..]) {
            straight = step(&mut one, straight, grads, *lr);
            resumed = step(&mut two, resumed, grads, *lr);
        }
        assert_eq!(export(&straight).unwrap(), export(&resumed).unwrap(), "{}", case.name);
        assert_eq!(one.export(&straight).unwrap(), two.export(&resumed).unwrap(), "{}", case.name);

        if saved.is_empty() {
            assert_eq!(case.name, "sgd");
            continue;
        }
        let refused = |tensors: Vec<NamedTensor>, part: &str| {
            let error = two.clone().import(&resumed, 3, tensors, &Device::flex()).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        let mut short = saved.clone();
        short[0].data.pop();
        refused(short, "does not fit: expected");
        let mut foreign = saved.clone();
        foreign[0].name = "h.0.weight.thing".into();
        foreign.truncate(1);
        refused(foreign, "h.0.weight.thing, which the model does not have");
    }
}

#[test]
fn the_state_has_the_names_of_the_reference() {
    let parameters = parameters(&layers(&Device::flex()));
    let weight = parameters.iter().find(|parameter| parameter.name == "h.0.weight").unwrap();
    let bias = parameters.iter().find(|parameter| parameter.name == "h.0.bias").unwrap();
    let state = |name: &str, args: &str, parameter: &Parameter| {
        let text = format!("optim = \"{name}\"\n[optim_args]\n{args}");
        OptimizerConfig::from(&toml::from_str::<TrainingArguments>(&text).unwrap()).state(parameter)
    };
    assert_eq!(state("adamw_torch", "", weight), [("exp_avg", 15), ("exp_avg_sq", 15)]);
    assert_eq!(state("rmsprop", "", weight), [("square_avg", 15)]);
    let all = [("square_avg", 5), ("grad_avg", 5), ("momentum_buffer", 5)];
    assert_eq!(state("rmsprop", "centered = true\nmomentum = 0.5", bias), all);
    assert_eq!(state("adagrad", "", bias), [("sum", 5)]);
    assert_eq!(state("adafactor", "", weight), [("exp_avg_sq_row", 3), ("exp_avg_sq_col", 5)]);
    assert_eq!(state("adafactor", "beta1 = 0.9", bias), [("exp_avg_sq", 5), ("exp_avg", 5)]);
    assert_eq!(state("muon", "", weight), [("momentum_buffer", 15)]);
    assert_eq!(state("muon", "", bias), [("exp_avg", 5), ("exp_avg_sq", 5)]);
    assert!(state("sgd", "", weight).is_empty());
    assert_eq!(state("sgd", "momentum = 0.9", weight), [("momentum_buffer", 15)]);
    assert_eq!(state("lion_32bit", "", weight), [("exp_avg", 15)]);
}

/// Parameters of a BERT of two layers with a classifier.
fn bert() -> Vec<Parameter> {
    use kiln_core::model_config::BertConfig;
    use kiln_models::{Head, Model, ModelConfig};
    let config = BertConfig { hidden_size: 8, num_hidden_layers: 2, num_attention_heads: 2, ..Default::default() };
    parameters(&Model::new(&ModelConfig::Bert(config), Head::SequenceClassification, &Device::flex()).unwrap())
}

#[test]
fn rates_fall_from_the_head_to_the_embeddings() {
    let trainer = TrainingArguments { layer_wise_lr_decay: Some(0.5), ..Default::default() };
    let parameters = bert();
    let groups = ParameterGroups::of(&trainer, &parameters).unwrap();
    for (name, factor) in [
        ("classifier.weight", 1.0),
        ("bert.pooler.dense.bias", 1.0),
        ("bert.encoder.layer.1.output.dense.weight", 0.5),
        ("bert.encoder.layer.0.attention.self.query.bias", 0.25),
        ("bert.embeddings.LayerNorm.weight", 0.125),
        ("bert.embeddings.word_embeddings.weight", 0.125),
    ] {
        let parameter = parameters.iter().find(|parameter| parameter.name == name).unwrap();
        assert_eq!(groups.lr_factor(parameter), factor, "{name}");
    }
    let shown = groups.lr_factors();
    let shown = shown.iter().map(|(name, factor)| (name.as_str(), *factor)).collect::<Vec<_>>();
    assert_eq!(shown, [("head", 1.0), ("layer 1", 0.5), ("layer 0", 0.25), ("embeddings", 0.125)]);
    assert!(ParameterGroups::new(0.1).lr_factors().is_empty());
}

#[test]
fn what_is_frozen_and_what_cannot_be() {
    let parameters = bert();
    let of = |lines: &str| ParameterGroups::of(&toml::from_str(lines).unwrap(), &parameters);
    let learning = |lines: &str| {
        let groups = of(lines).unwrap();
        parameters.iter().filter(|p| groups.learns(p)).map(|p| p.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(learning("").len(), parameters.len());
    assert!(learning("freeze = '*embeddings*'").iter().all(|name| !name.contains("embeddings")));
    let above = learning("freeze_layers = 2");
    assert_eq!(above, ["bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias"]);
    assert_eq!(learning("freeze_layers = 2\nfreeze = ['*pooler*']"), ["classifier.weight", "classifier.bias"]);
    let one = learning("freeze_layers = 1");
    assert!(one.iter().any(|name| name.contains("layer.1.")) && !one.iter().any(|name| name.contains("layer.0.")));
    for (lines, part) in [
        ("freeze = ['bert.embedding.*']", "no tensor of the model fits \"bert.embedding.*\""),
        ("freeze = ['a[']", "is no pattern"),
        ("freeze = ['*']", "every tensor of the model is frozen"),
        ("freeze_layers = 3", "the model has 2 layers, got 3"),
    ] {
        let error = of(lines).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_layer_moves_by_its_own_rate() {
    let fixture = fixture();
    let trainer: TrainingArguments = toml::from_str("optim = 'sgd'\nlayer_wise_lr_decay = 0.5").unwrap();
    let model = initial(&fixture);
    let mut optimizer = optimizer(&trainer, &model);
    let model = step(&mut optimizer, model, &fixture.grads[0], 0.1);
    for NamedTensor { name, data, .. } in export(&model).unwrap() {
        let rate = if name.starts_with("h.1.") { 0.1 * 0.5 } else { 0.1 * 0.25 };
        let (before, grads) = (&fixture.initial[&name], &fixture.grads[0][&name]);
        for ((value, before), grad) in data.iter().zip(before).zip(grads) {
            // One rounding of a weight below 2.
            assert!((f64::from(*value) - (before - rate * grad)).abs() < 2e-7, "{name}");
        }
    }
}

struct Learning<'a> {
    grads: &'a GradientsParams,
    with_gradient: BTreeSet<burn::module::ParamId>,
}

impl ModuleVisitor for Learning<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.grads.get::<D>(param.id).is_some() {
            self.with_gradient.insert(param.id);
        }
    }
}

#[test]
fn frozen_parameters_get_no_gradient() {
    use kiln_core::model_config::BertConfig;
    use kiln_models::{Head, Model, ModelConfig, ModelInput};
    let device = Device::flex().autodiff();
    let config = BertConfig {
        vocab_size: 10,
        hidden_size: 8,
        intermediate_size: 16,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        ..Default::default()
    };
    let model = Model::new(&ModelConfig::Bert(config), Head::SequenceClassification, &device).unwrap();
    let parameters = parameters(&model);
    let groups = ParameterGroups::of(&toml::from_str("freeze_layers = 1\nfreeze = '*bias'").unwrap(), &parameters);
    let groups = groups.unwrap();
    let model = groups.freeze(model);
    let input_ids = Tensor::from_data(TensorData::new(vec![1, 2, 3, 4, 5, 6], [2, 3]), &device);
    let input = ModelInput { input_ids, attention_mask: None, token_type_ids: None, position_ids: None };
    let grads = GradientsParams::from_grads(model.forward(input, true).sum().backward(), &model);
    let mut visitor = Learning { grads: &grads, with_gradient: BTreeSet::new() };
    model.visit(&mut visitor);
    for parameter in &parameters {
        let has = visitor.with_gradient.contains(&parameter.id);
        assert_eq!(has, groups.learns(parameter), "{}", parameter.name);
    }
}
