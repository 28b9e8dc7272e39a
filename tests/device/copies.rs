//! Copies of the weights in bf16 and f16 on the device: AdamW's kernel writes them, whatever else
//! changes a weight has them made anew, and those of frozen weights stay. Losses and weights are to
//! the bit those of a run whose copies are forgotten after every step.

use std::sync::Arc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsAccumulator;
use burn::tensor::{Device, FloatDType, Tensor};
use kiln::config::ActivationCheckpointing;
use kiln::data::{BatchLabels, PaddedBatch};
use kiln::optim::backward::GradientPass;
use kiln::optim::gradient::{global_norm, scale_and_norm};
use kiln::optim::{Optimizer, OptimizerConfig, ParameterGroups};
use kiln::reads::read_values;
use kiln::session::{TrainingTask, TransformerTask};
use kiln::task::{CausalLm, DeviceBatch};
use kiln::trainer::gradients::gradients;
use kiln_core::model_config::ModelType;
use kiln_models::ops::dropout::DropoutRng;
use kiln_models::{Compute, ModelConfig, Ops};
use serde_json::json;

const STEPS: u64 = 4;
const MICRO_BATCHES: u64 = 2;

/// An event between the second step and the third.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    Nothing,
    /// State and weights are put back, as a resumed run and the best model are.
    Loaded,
    /// The blocks are frozen.
    Frozen,
}

struct Read(Vec<Vec<f32>>);

impl ModuleVisitor for Read {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.push(read_values(param.val()).unwrap());
    }
}

struct Halved;

impl ModuleMapper for Halved {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| Tensor::from_inner(value.inner() * 0.5).require_grad())
    }
}

/// The matrices of the blocks, no longer trained.
struct FrozenMatrices;

impl ModuleMapper for FrozenMatrices {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let is_of_block = D == 2 && param.val().dims()[0].is_multiple_of(48);
        if is_of_block { param.set_require_grad(false) } else { param }
    }
}

/// Losses and weights of a run of a tied GPT-2, and how often a weight was cast.
fn train(dtype: FloatDType, event: Event, keeps: bool) -> (Vec<Vec<f32>>, u64) {
    let inner = match super::device().as_str() {
        #[cfg(feature = "cuda")]
        "cuda" => Device::cuda(0),
        #[cfg(feature = "wgpu")]
        _ => Device::wgpu(burn::tensor::DeviceKind::Cpu),
        #[cfg(not(feature = "wgpu"))]
        other => panic!("no {other} in this build"),
    };
    let device = inner.clone().autodiff();
    let fields = json!({"n_layer": 1, "n_embd": 48, "n_head": 2, "vocab_size": 41, "n_positions": 8,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0});
    let config = ModelConfig::from_fields(ModelType::Gpt2, fields.as_object().unwrap()).unwrap();
    let task = TransformerTask::new(Arc::new(CausalLm), config);
    device.seed(3);
    let mut model = task.model(Compute::new(Ops::fused(&inner).unwrap(), dtype), &device).unwrap();
    model.visit(&mut Read(Vec::new())); // draws the weights
    let groups = ParameterGroups::new(0.01);
    let mut optimizer = Optimizer::new(OptimizerConfig::default(), &groups, &model).with_ops(model.ops());
    let ids = (0..24).map(|i| i * 7 % 31).collect::<Vec<_>>();
    let batch = PaddedBatch {
        rows: 3,
        examples: 3,
        seq_len: 8,
        input_ids: ids.clone(),
        attention_mask: None,
        token_type_ids: None,
        position_ids: None,
        labels: BatchLabels::Tokens(ids),
        num_tokens: 24,
    };
    let batch = DeviceBatch::new(&CausalLm, &batch, &device).unwrap();
    let mut values = Vec::new();
    for step in 0..STEPS {
        if step == 2 && event == Event::Loaded {
            let state = optimizer.export(&model).unwrap();
            model = model.map(&mut Halved);
            optimizer.import(&model, step, state, &inner).unwrap();
        }
        if step == 2 && event == Event::Frozen {
            model = model.map(&mut FrozenMatrices);
        }
        let mut accumulator = GradientsAccumulator::new();
        for micro in 0..MICRO_BATCHES {
            let pass = GradientPass {
                rng: DropoutRng::Off,
                seed: step * MICRO_BATCHES + micro,
                checkpointing: ActivationCheckpointing::None,
                compute: model.compute(),
                device: &device,
                copies: Some(optimizer.copies()),
            };
            let (loss, grads) = gradients(&task, &model, &batch, &pass, |loss| loss).unwrap();
            values.push(read_values(loss).unwrap());
            accumulator.accumulate(&model, grads);
        }
        let grads = accumulator.grads();
        let (scale, _) = scale_and_norm(global_norm(&model, &grads, model.ops()), 48.0, Some(1.0));
        model = optimizer.step(model, grads, &scale, 1e-2);
        if !keeps {
            optimizer.copies().clear();
        }
    }
    let casts = optimizer.copies().counts().casts;
    let mut read = Read(values);
    model.visit(&mut read);
    (read.0, casts)
}

#[test]
fn copies_follow_every_writer_of_the_weights() {
    // Products with a weight: 4 of the layer and the tied vocabulary.
    const MATRICES: u64 = 5;
    for dtype in [FloatDType::BF16, FloatDType::F16] {
        if dtype == FloatDType::BF16 && super::device() == "wgpu" {
            continue; // WGSL has no bf16
        }
        for event in [Event::Nothing, Event::Loaded, Event::Frozen] {
            let ((kept, casts), (forgotten, all)) = (train(dtype, event, true), train(dtype, event, false));
            assert!(kept == forgotten, "{dtype:?}, {event:?}: losses or weights differ");
            assert_eq!(all, STEPS * MATRICES, "{dtype:?}, {event:?}");
            let expected = match (dtype, event) {
                (FloatDType::BF16, Event::Loaded) => 2 * MATRICES,
                (FloatDType::BF16, _) => MATRICES,
                // An update that may be skipped has no kernel: copies are made in every step, those
                // of frozen weights once more after the last update that changed them.
                (_, Event::Frozen) => 3 * MATRICES + 1,
                _ => STEPS * MATRICES,
            };
            assert_eq!(casts, expected, "{dtype:?}, {event:?}");
        }
    }
}
