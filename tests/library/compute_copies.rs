//! Narrow copies of the weights: a step casts a weight once, however many products use it, and
//! computes to the bit what it computes when every product casts its own.

use std::collections::BTreeSet;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use kiln::config::{ActivationCheckpointing, Task};
use kiln::data::{BatchLabels, PaddedBatch};
use kiln::inference::forward::forward;
use kiln::optim::backward::GradientPass;
use kiln::optim::gradient::{global_norm, scale_and_norm};
use kiln::optim::{Optimizer, OptimizerConfig, ParameterGroups};
use kiln::reads::read_values;
use kiln::session::model_folder::ModelFolder;
use kiln::session::{TrainingTask, TransformerTask};
use kiln::task::{DeviceBatch, model_task};
use kiln::trainer::gradients::gradients;
use kiln_core::model_config::ModelType;
use kiln_data::tokenized::{Limits, read_batch};
use kiln_models::ops::copies::{Copies, Counts};
use kiln_models::ops::dropout::DropoutRng;
use kiln_models::ops::products::unit;
use kiln_models::weights::NamedTensor;
use kiln_models::{Compute, KvCache, Model, ModelConfig, Ops};
use serde_json::json;

use crate::common::fixture;

const STEPS: u64 = 3;
const MICRO_BATCHES: u64 = 2;

#[derive(Clone, Copy, Debug)]
struct Case {
    kind: ModelType,
    task: Task,
    ops: Ops,
    dtype: FloatDType,
    checkpointing: ActivationCheckpointing,
}

fn task(case: Case) -> TransformerTask {
    let fields = match case.kind {
        ModelType::Gpt2 => json!({"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 32, "n_positions": 8}),
        _ => json!({"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 32,
            "intermediate_size": 32, "max_position_embeddings": 8}),
    };
    TransformerTask::new(
        model_task(case.task),
        ModelConfig::from_fields(case.kind, fields.as_object().unwrap()).unwrap(),
    )
}

fn batch(case: Case, device: &Device) -> DeviceBatch {
    let ids = (0..24).map(|i| i * 7 % 31).collect::<Vec<_>>();
    let labels = match case.task {
        Task::SequenceClassification => BatchLabels::Classes(vec![0, 1, 1]),
        _ => BatchLabels::Tokens(ids.clone()),
    };
    let (attention_mask, token_type_ids) = (None, None);
    let batch = PaddedBatch {
        rows: 3,
        examples: 3,
        seq_len: 8,
        input_ids: ids,
        attention_mask,
        token_type_ids,
        position_ids: None,
        labels,
        num_tokens: 24,
    };
    DeviceBatch::new(&*model_task(case.task), &batch, device).unwrap()
}

struct Read(Vec<Vec<f32>>);

impl ModuleVisitor for Read {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.push(read_values(param.val()).unwrap());
    }
}

/// Losses and final weights of a few steps, and what the copies were good for.
fn train(case: Case, with_copies: bool) -> (Vec<Vec<f32>>, Counts) {
    let device = match case.checkpointing {
        ActivationCheckpointing::Balanced => Device::flex().autodiff().gradient_checkpointing(),
        _ => Device::flex().autodiff(),
    };
    let task = task(case);
    device.seed(3);
    let mut model = task.model(Compute::new(case.ops, case.dtype), &device).unwrap();
    model.visit(&mut Read(Vec::new())); // draws the weights
    let mut optimizer =
        Optimizer::new(OptimizerConfig::default(), &ParameterGroups::new(0.01), &model).with_ops(model.ops());
    let batch = batch(case, &device);
    let mut values = Vec::new();
    for step in 0..STEPS {
        let mut accumulator = GradientsAccumulator::new();
        for micro in 0..MICRO_BATCHES {
            let pass = GradientPass {
                rng: DropoutRng::Device,
                seed: step * MICRO_BATCHES + micro,
                checkpointing: case.checkpointing,
                compute: model.compute(),
                device: &device,
                copies: with_copies.then(|| optimizer.copies()),
            };
            let (loss, grads) = gradients(&task, &model, &batch, &pass, |loss| loss).unwrap();
            values.push(read_values(loss).unwrap());
            accumulator.accumulate(&model, grads);
        }
        let grads: GradientsParams = accumulator.grads();
        let (scale, _) = scale_and_norm(global_norm(&model, &grads, model.ops()), 48.0, Some(1.0));
        model = optimizer.step(model, grads, &scale, 1e-2);
    }
    let mut read = Read(values);
    model.visit(&mut read);
    (read.0, optimizer.copies().counts())
}

#[test]
fn a_step_casts_a_weight_once_and_computes_the_same() {
    let _alone = crate::one_at_a_time();
    let fused = Ops::fused(&Device::flex()).unwrap();
    for (kind, task) in [
        (ModelType::Gpt2, Task::Clm),
        (ModelType::Bert, Task::Mlm),
        (ModelType::Bert, Task::SequenceClassification),
        (ModelType::Albert, Task::SequenceClassification),
    ] {
        for ops in [Ops::Plain, fused] {
            for dtype in [FloatDType::BF16, FloatDType::F16] {
                for checkpointing in
                    [ActivationCheckpointing::None, ActivationCheckpointing::Balanced, ActivationCheckpointing::Blocks]
                {
                    let case = Case { kind, task, ops, dtype, checkpointing };
                    let ((plain, none), (kept, counts)) = (train(case, false), train(case, true));
                    assert!(plain == kept, "{case:?}: losses or weights differ");
                    assert_eq!(none, Counts::default());
                    // Products with a weight: GPT-2 has 4 a layer and the tied vocabulary; BERT 6 a
                    // layer, the transform and the tied vocabulary of masked words, or pooler and
                    // classifier. ALBERT projects the embeddings, and its two layers have one set
                    // of weights.
                    let (in_layers, others, shared) = match kind {
                        ModelType::Gpt2 => (2 * 4, 1, 0),
                        ModelType::Albert => (2 * 6, 3, 6),
                        _ => (2 * 6, 2, 0),
                    };
                    let matrices = in_layers + others;
                    if ops != Ops::Plain {
                        assert_eq!(counts, Counts::default(), "{case:?}: fused products round the weights themselves");
                        continue;
                    }
                    assert_eq!(counts.casts, STEPS * (matrices - shared), "{case:?}");
                    let again = if checkpointing == ActivationCheckpointing::Blocks { in_layers } else { 0 };
                    assert_eq!(counts.uses, STEPS * MICRO_BATCHES * (matrices + again), "{case:?}");
                }
            }
        }
    }
}

/// The last logits of `model` for a batch, of a pass without gradients.
fn logits(model: &Model, copies: Option<&Copies>) -> Vec<f32> {
    let device = Device::flex();
    let ids = Tensor::<2, Int>::from_data(
        TensorData::new((0..24).map(|i| i * 7 % 31).collect::<Vec<i32>>(), [3, 8]),
        &device,
    );
    let mut pass = model.pass(false);
    pass.copies = copies;
    read_values(model.next_logits(ids, &mut KvCache::default(), pass).unwrap()).unwrap()
}

/// Where nothing learns fused products on the CPU keep the weights that they have packed, until
/// they are told of others.
#[test]
fn passes_without_gradients_pack_a_weight_once() {
    let _alone = crate::one_at_a_time();
    let (ops, checkpointing) = (Ops::fused(&Device::flex()).unwrap(), ActivationCheckpointing::None);
    let case = Case { kind: ModelType::Gpt2, task: Task::Clm, ops, dtype: FloatDType::BF16, checkpointing };
    let model = |seed| {
        let device = Device::flex();
        device.seed(seed);
        let model = task(case).model(Compute::new(ops, case.dtype), &device).unwrap();
        model.visit(&mut Read(Vec::new())); // draws the weights
        model
    };
    let (first, copies) = (model(3), Copies::default());
    let expected = logits(&first, None);
    for _ in 0..2 {
        assert!(logits(&first, Some(&copies)) == expected);
    }
    // The same parameters with other values: what is packed is used until it is cleared.
    let other = first.clone().map(&mut Halved);
    let of_other = logits(&other, None);
    assert!(of_other != expected);
    let is_packed = unit().unwrap().is_faster_than_f32();
    assert_eq!(logits(&other, Some(&copies)) != of_other, is_packed);
    copies.clear();
    assert!(logits(&other, Some(&copies)) == of_other);
}

/// A model that does not learn keeps weights that only multiply in the type of its products, and
/// computes to the bit what it computes with all of them in f32.
#[test]
fn a_frozen_model_computes_what_it_computes_of_weights_in_f32() {
    let _alone = crate::one_at_a_time();
    let device = Device::flex();
    for (case, task, is_narrow) in [
        ("bert-classification/model", Task::SequenceClassification, true),
        ("bert-mlm/model", Task::Mlm, true),
        ("bert-qa/model", Task::QuestionAnswering, true),
        ("distilbert-choice/model", Task::MultipleChoice, true),
        ("electra-classification/model", Task::SequenceClassification, true),
        ("gpt2-lm/model", Task::Clm, true),
        ("gpt-neo-lm/model", Task::Clm, true),
        ("llama-lm/model", Task::Clm, true),
        ("llama-token/model", Task::TokenClassification, true),
        ("qwen3-lm/model", Task::Clm, true),
        ("lora-llama-lm/adapter", Task::Clm, true),
        ("lora-bert-classification/adapter", Task::SequenceClassification, true),
        ("lora-gpt2-dora/adapter", Task::Clm, false),
    ] {
        let path = fixture(case);
        let limits = |folder: &ModelFolder| Limits::of(&folder.config, task);
        for ops in [Ops::default(), Ops::fused(&device).unwrap()] {
            for dtype in [FloatDType::F32, FloatDType::BF16, FloatDType::F16] {
                let (spec, compute) = (path.display().to_string(), Compute::new(ops, dtype));
                let wide = ModelFolder::open(&spec, task, &device).unwrap().with_compute(compute);
                let frozen = ModelFolder::open_frozen(&spec, task, &device, compute).unwrap();
                let batch = read_batch(&path.with_file_name("batch.json"), task, &limits(&wide)).unwrap();
                let [expected, got] = [&wide, &frozen].map(|folder| forward(folder, task, &batch, false, &device));
                let values = |out: kiln::Result<Vec<NamedTensor>>| {
                    out.unwrap().into_iter().map(|tensor| (tensor.name, tensor.data)).collect::<Vec<_>>()
                };
                assert!(values(got) == values(expected), "{case} {ops:?} {dtype:?}");
                let mut types = Types(BTreeSet::new());
                frozen.model.visit(&mut types);
                let ids = Tensor::from_data(TensorData::new(vec![3, 1, 4], [1, 3]), &device);
                let next = |folder: &ModelFolder, copies: &Copies| {
                    let (model, mut cache) = (&folder.model, KvCache::default());
                    let logits = model.next_logits(ids.clone(), &mut cache, model.pass(false).with_copies(copies));
                    logits.map(|logits| read_values(logits).unwrap())
                };
                let (once, of_frozen) = (Copies::default(), Copies::of_frozen());
                let expected = next(&wide, &once);
                assert!(next(&frozen, &of_frozen) == expected && next(&frozen, &of_frozen) == expected, "{case}");
                assert_eq!(expected.is_some(), task == Task::Clm);
                let expected = if is_narrow { vec![DType::F32, dtype.into()] } else { vec![DType::F32] };
                assert_eq!(
                    types.0,
                    expected.iter().map(|dtype: &DType| format!("{dtype:?}")).collect(),
                    "{case} {dtype:?}"
                );
            }
        }
    }
}

/// The types of parameters.
struct Types(BTreeSet<String>);

impl ModuleVisitor for Types {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.insert(format!("{:?}", param.val().dtype()));
    }
}

struct Halved;

impl ModuleMapper for Halved {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| value * 0.5)
    }
}
