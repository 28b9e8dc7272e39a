//! The table of fused forms against the operators themselves: every form that it names runs and is
//! a kernel of its own, in every type that it names, and a form that it denies is refused or left
//! plain.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{FloatDType, Int, Tensor, TensorData};
use kiln_models::ops::adamw::{Parameters, Update};
use kiln_models::ops::attention::{Attention, Mask, Qkv};
use kiln_models::ops::cross_entropy::CrossEntropy;
use kiln_models::ops::dropout::{DropoutRng, dropout};
use kiln_models::ops::embedding::embedding;
use kiln_models::ops::gelu::bias_gelu;
use kiln_models::ops::layer_norm::layer_norm;
use kiln_models::ops::linear::linear;
use kiln_models::ops::rms_norm::rms_norm;
use kiln_models::ops::rotary::rotary;
use kiln_models::ops::swiglu::swiglu;
use kiln_models::ops::{Availability, DTYPES, FUSED, Form, Operator, Target};
use kiln_models::{Activation, Compute, Ops};

use crate::{close, device, generator, input, read, tensor, vector, wide};

/// The result of a call of `operator` in the form `ops`, forward and backward, on `[4, 6]`: the
/// operands of matrix products are in `factors`, all else in `others`.
fn call(operator: Operator, ops: Ops, factors: FloatDType, others: FloatDType) -> Vec<f32> {
    let device = device().autodiff();
    let x = tensor(&input(4, 6, 1.0, 1), &device).require_grad();
    let row_f32 = |seed| vector(tensor(&input(1, 6, 1.0, seed), &device));
    let row = |seed| row_f32(seed).cast(others);
    let square = tensor(&input(6, 6, 1.0, 2), &device).cast(factors);
    let ids = Tensor::<1, Int>::from_ints([0, 3, 1, 3], &device);
    let (narrow, wide) = (x.clone().cast(factors), x.clone().cast(others));
    let y = match operator {
        Operator::Embedding => vector(embedding(wide, ids, None, ops)),
        Operator::Dropout => vector(dropout(wide, 0.0, DropoutRng::Device, ops)),
        Operator::LayerNorm => vector(layer_norm(wide, None, row_f32(3), row_f32(4), 1e-5, ops)),
        Operator::RmsNorm => vector(rms_norm(wide, row_f32(3), 1e-5, ops)),
        Operator::Linear => {
            let weight = tensor(&input(6, 6, 1.0, 2), &device).cast(others);
            vector(linear(wide, weight, Some(row_f32(3)), factors, ops))
        }
        Operator::Rotary => {
            let [cos, sin] = [3, 4].map(|seed| tensor(&input(2, 3, 1.0, seed), &device));
            vector(rotary(wide, cos, sin, 1, ops))
        }
        Operator::Attention => {
            let of = Attention {
                batch: 2,
                heads: 1,
                scale: 0.5,
                dropout: 0.0,
                rng: DropoutRng::Off,
                products: FloatDType::F32,
            };
            vector(of.forward(Qkv::Packed(narrow), &Mask::new(2, true, None, &device, ops)))
        }
        Operator::Gelu => vector(bias_gelu(wide, row(3), Activation::GeluErf, ops)),
        Operator::Swiglu => vector(swiglu(wide, tensor(&input(4, 6, 1.0, 3), &device).cast(others), ops)),
        Operator::CrossEntropy => {
            let of = CrossEntropy {
                x: narrow,
                weight: square,
                bias: None,
                target: ids,
                row_weight: None,
                label_smoothing: 0.0,
                operands: factors.into(),
            };
            of.sum(ops)
        }
        Operator::AdamW => {
            let (value, grad) = (x.clone().inner(), x.clone().inner().cast(others));
            let moments = [1.0, 2.0].map(|fill| Tensor::full([24], fill, &value.device()));
            let mut parameters = Parameters::default();
            parameters.push(value, moments, grad, 0);
            let update = Update { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, lr: 0.1, weight_decay: 0.0, step: 1 };
            let scale = Tensor::from_data(TensorData::new(vec![1.0f32], [1]), &device.clone().inner());
            let (value, ..) = parameters.update(&[update], &scale).take::<2>().unwrap();
            return read(vector(value));
        }
    };
    let gradient = read(x.grad(&y.clone().cast(FloatDType::F32).sum().backward()).unwrap());
    read(y.inner().cast(FloatDType::F32)).into_iter().chain(gradient).collect()
}

#[test]
fn every_form_of_the_table_runs_and_is_a_kernel_of_its_own() {
    let _generator = generator();
    let target = if crate::on_cpu() { Target::Cpu } else { Target::Wgpu };
    for row in FUSED {
        let operator = row.operator;
        assert_eq!(operator.on(target), Availability::Default, "{}", row.name);
        let fused = Ops::fused(&device()).unwrap();
        for (dtype, tolerance) in DTYPES.into_iter().zip([1e-5, 5e-2, 1e-2]) {
            if operator.within(dtype) != Availability::Default || !device().supports_dtype(dtype) {
                continue;
            }
            let what = format!("{} in {dtype:?}", row.name);
            let got = call(operator, fused, dtype, FloatDType::F32);
            assert!(got.iter().all(|value| value.is_finite()), "{what}: {got:?}");
            if operator != Operator::AdamW {
                close(&what, &got, &wide(&call(operator, Ops::Plain, dtype, FloatDType::F32)), tolerance);
            }
        }
        // Kernels are written for f32, or for narrow factors: nothing but the fused form asks for
        // that.
        if crate::on_cpu() {
            let other = |ops| catch_unwind(AssertUnwindSafe(|| call(operator, ops, FloatDType::F64, FloatDType::F64)));
            assert!(other(fused).is_err(), "{}: fused and took f64", row.name);
            assert!(operator == Operator::AdamW || other(Ops::Plain).is_ok(), "{}: plain and refused f64", row.name);
        }
    }
}

#[test]
fn a_form_that_the_table_denies_is_not_used() {
    for dtype in DTYPES {
        let fused = Compute::new(Ops::Fused, dtype).ops();
        for operator in Operator::ALL {
            let denied = matches!(operator.within(dtype), Availability::Missing(_));
            assert_eq!(fused.form(operator) == Form::Plain, denied, "{} in {dtype:?}", operator.name());
        }
    }
    assert_eq!(Compute::new(Ops::Fused, FloatDType::F64).ops(), Ops::Plain);
}

#[test]
fn a_choice_of_none_is_plain_and_of_all_is_fused() {
    assert_eq!(Ops::Fused.only([]), Ops::Plain);
    assert_eq!(Ops::Fused.only(Operator::ALL), Ops::Fused);
    assert_eq!(Ops::Fused.only([Operator::Gelu]).fused_operators(), [Operator::Gelu]);
    assert_eq!(Ops::Plain.only(Operator::ALL), Ops::Plain);
}
