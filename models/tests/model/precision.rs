//! The values that stay in f32 when matrix products are bf16 or f16 are ones that a narrow type
//! cannot hold: 65,504 is the largest number of f16, and above 256 bf16 no longer counts by one.

use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use kiln_models::layers::{LayerNorm, Linear};
use kiln_models::ops::attention::plain::attention;
use kiln_models::ops::dropout::DropoutRng;
use kiln_models::{Activation, Compute, Ops, Pass};

const NARROW: [FloatDType; 2] = [FloatDType::BF16, FloatDType::F16];

fn compute(dtype: FloatDType) -> Compute {
    Compute::new(Ops::Plain, dtype)
}

fn pass(dtype: FloatDType) -> Pass<'static> {
    Pass::new(compute(dtype), true)
}

fn read<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.try_into_vec_as::<f32>().unwrap()
}

fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), device)
}

#[test]
fn gradients_are_sums_over_any_number_of_rows() {
    const ROWS: usize = 100_000;
    let device = Device::flex().autodiff();
    for dtype in NARROW {
        let layer = Linear::new(2, 3, true, 0.02, &device);
        let x = tensor(vec![0.5; ROWS * 2], [ROWS, 2], &device);
        let grads = layer.forward(x, pass(dtype)).sum().backward();
        let bias = layer.bias.as_ref().unwrap().val().grad(&grads).unwrap();
        assert_eq!(bias.dtype(), FloatDType::F32.into());
        assert_eq!(read(bias), [ROWS as f32; 3], "{dtype:?}");
        let weight = layer.weight.val().grad(&grads).unwrap();
        assert_eq!(weight.dtype(), FloatDType::F32.into(), "gradients of f32 weights are f32");
        for value in read(weight) {
            // The product itself is of the narrow type: bf16 has 8 bits. Added up in it, it would
            // stop at 128 (bf16) or 1,024 (f16).
            assert!((value / 50_000.0 - 1.0).abs() < 4e-3, "{dtype:?}: {value}");
        }
    }
}

#[test]
fn a_variance_of_1e_8_is_not_zero() {
    let device = Device::flex();
    let norm = LayerNorm::new(4, 1e-12, &device);
    for dtype in [FloatDType::F32, FloatDType::BF16, FloatDType::F16] {
        let x = tensor(vec![1e-4, -1e-4, 1e-4, -1e-4], [1, 4], &device).cast(dtype);
        let y = norm.forward(x, Ops::Plain);
        assert_eq!(y.dtype(), dtype.into());
        for (y, expected) in read(y.cast(FloatDType::F32)).into_iter().zip([1.0, -1.0, 1.0, -1.0]) {
            // Epsilon is 1e-4 of the variance, and so 5e-5 of y.
            assert!((y - expected).abs() < 1e-3, "{dtype:?}: {y}");
        }
    }
}

#[test]
fn attention_takes_the_largest_scores() {
    let device = Device::flex();
    // Scores of 1e5 and 9.6e4 in bf16, of 6e4 and 5.8e4 in f16: their exponentials are far outside
    // both types and f32.
    for (dtype, query, keys) in [(FloatDType::BF16, 400.0, [250.0, 240.0]), (FloatDType::F16, 300.0, [200.0, 193.0])] {
        let of = |values: Vec<f32>| {
            let len = values.len();
            tensor(values, [1, 1, len, 1], &device).cast(dtype)
        };
        let y = attention(of(vec![query]), of(keys.to_vec()), of(vec![3.0, 5.0]), None, 1.0, 0.0, DropoutRng::Off);
        assert_eq!(y.dtype(), dtype.into());
        assert_eq!(read(y.cast(FloatDType::F32)), [3.0], "{dtype:?}: the larger score takes all");
    }
}

#[test]
fn activations_bear_inputs_whose_cube_is_no_number() {
    let device = Device::flex().autodiff();
    for dtype in NARROW {
        for activation in [Activation::GeluTanh, Activation::GeluErf] {
            let layer = Linear::new(1, 1, true, 0.0, &device);
            let x = tensor(vec![1000.0, -1000.0], [2, 1], &device).require_grad();
            let weight = tensor(vec![1.0], [1, 1], &device).require_grad();
            let layer = Linear { weight: burn::module::Param::from_tensor(weight), ..layer };
            let y = layer.activated(x.clone(), activation, pass(dtype)).wide();
            let grads = y.clone().sum().backward();
            assert_eq!(read(y), [1000.0, 0.0], "{dtype:?} {activation:?}");
            assert_eq!(read(x.grad(&grads).unwrap()), [1.0, 0.0], "{dtype:?} {activation:?}");
        }
    }
}

#[test]
fn products_round_their_operands_and_their_result_alone() {
    let device = Device::flex();
    // 1 + 2^-9 is 1 in bf16, 1 + 2^-12 is 1 in f16; 257 and 2049 lie between two numbers of theirs.
    for (dtype, small, odd, even) in
        [(FloatDType::BF16, 2f32.powi(-9), 257.0, 256.0), (FloatDType::F16, 2f32.powi(-12), 2049.0, 2048.0)]
    {
        let product = |a: Vec<f32>, b: Vec<f32>| {
            let n = a.len();
            read(compute(dtype).product(tensor(a, [1, n], &device), tensor(b, [n, 1], &device)))
        };
        assert_eq!(product(vec![1.0 + small], vec![1.0]), [1.0]);
        assert_eq!(product(vec![even, 1.0], vec![1.0, 1.0]), [even], "{odd} is rounded to even");
        // Between operands and result nothing is rounded: each 1 alone would be lost next to
        // `even`.
        assert_eq!(product([vec![even], vec![1.0; 64]].concat(), vec![1.0; 65]), [even + 64.0]);
    }
}
