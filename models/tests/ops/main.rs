//! The fused operators against their plain compositions, and against f64 arithmetic on the host
//! with derivatives by central differences, on sizes that fit no vector: 1, primes, one more and
//! one less than a vector.
#![allow(clippy::unwrap_used)]

mod adamw;
mod attention;
mod contract;
mod cross_entropy;
mod decoder;
mod dropout;
mod embedding;
mod feed_forward;
mod fused;
mod gelu;
mod layer_norm;
mod linear;
mod operands;
mod rms_norm;
mod rotary;
#[path = "../../../tests/common/skip.rs"]
mod skip;
mod swiglu;

use burn::tensor::{Device, Tensor, TensorData};
use kiln_models::Ops;

/// The device under test: the CPU, or what `KILN_TEST_DEVICE` names: `wgpu`, which is its software
/// device, or `cuda`.
pub(crate) fn device() -> Device {
    match std::env::var("KILN_TEST_DEVICE").as_deref() {
        #[cfg(feature = "wgpu")]
        Ok("wgpu") => Device::wgpu(burn::tensor::DeviceKind::Cpu),
        #[cfg(feature = "cuda")]
        Ok("cuda") => Device::cuda(0),
        Err(_) | Ok("cpu") => Device::flex(),
        Ok(other) => {
            panic!("KILN_TEST_DEVICE={other}: this test was built for other devices; see the features of the crate")
        }
    }
}

/// Whether [`device`] is the CPU.
pub(crate) fn on_cpu() -> bool {
    matches!(std::env::var("KILN_TEST_DEVICE").as_deref(), Err(_) | Ok("cpu"))
}

/// The tolerance of products, `f32` where they are in f32: on CUDA from capability 8.0 on those
/// that fit tensor cores are in TF32, which rounds operands to 11 bits, and which form's do depends
/// on the layout of its operands.
pub(crate) fn of_products(f32: f64) -> f64 {
    if matches!(std::env::var("KILN_TEST_DEVICE").as_deref(), Ok("cuda")) { 1e-3 } else { f32 }
}

/// One input: its values, `[rows, cols]`. A vector is one row.
#[derive(Clone)]
pub(crate) struct Input {
    pub(crate) values: Vec<f32>,
    pub(crate) shape: [usize; 2],
}

/// An operator of several inputs; its result is flattened.
pub(crate) type Op<'a> = &'a dyn Fn(Vec<Tensor<2>>, Ops) -> Tensor<1>;

/// An operator computed in f64 on the host, with its inputs in the order of [`Op`].
pub(crate) type Host<'a> = &'a dyn Fn(&[Vec<f64>]) -> Vec<f64>;

/// Numbers in `[-1, 1)` that depend on `seed` (SplitMix64).
pub(crate) fn noise(n: usize, seed: u64) -> Vec<f32> {
    let value = |i: u64| {
        let mut z = (seed * 1_000_003 + i).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n as u64).map(value).collect()
}

pub(crate) fn input(rows: usize, cols: usize, scale: f32, seed: u64) -> Input {
    Input { values: noise(rows * cols, seed).into_iter().map(|x| x * scale).collect(), shape: [rows, cols] }
}

pub(crate) fn tensor(input: &Input, device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(input.values.clone(), input.shape), device)
}

pub(crate) fn read<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.try_into_vec_as::<f32>().unwrap()
}

/// The device has one random generator for the whole process: tests that seed it hold this.
pub(crate) fn generator() -> std::sync::MutexGuard<'static, ()> {
    static GENERATOR: std::sync::Mutex<()> = std::sync::Mutex::new(());
    GENERATOR.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A row as a vector.
pub(crate) fn vector(x: Tensor<2>) -> Tensor<1> {
    let [rows, cols] = x.dims();
    x.reshape([rows * cols])
}

/// The weights of the scalar whose gradient is taken: `sum(weights * result)`.
pub(crate) fn weights(n: usize) -> Vec<f32> {
    noise(n, 99)
}

/// The result and the gradient of every input.
pub(crate) fn run(inputs: &[Input], op: Op<'_>, ops: Ops) -> (Vec<f32>, Vec<Vec<f32>>) {
    let device = device().autodiff();
    let leaves = inputs.iter().map(|input| tensor(input, &device).require_grad()).collect::<Vec<_>>();
    let result = op(leaves.clone(), ops);
    let n = result.dims()[0];
    let weights = Tensor::<1>::from_data(TensorData::new(weights(n), [n]), &device);
    let grads = (result.clone() * weights).sum().backward();
    let grads = leaves.iter().map(|leaf| read(leaf.grad(&grads).unwrap())).collect();
    (read(result.inner()), grads)
}

/// `|got - expected| <= tolerance * max(largest |expected|, floor)` for every element.
#[track_caller]
pub(crate) fn close(what: &str, got: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(1e-3f64, |a, b| a.max(b.abs()));
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        let off = (f64::from(*got) - expected).abs() / largest;
        assert!(off <= tolerance, "{what}[{i}]: {got} against {expected}, {off:.2e} of the largest, {largest:.2e}");
    }
}

pub(crate) fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

/// Fused equals plain in value and every gradient.
#[track_caller]
pub(crate) fn agrees_with_plain(what: &str, inputs: &[Input], op: Op<'_>, tolerance: f64) {
    let (plain, plain_grads) = run(inputs, op, Ops::Plain);
    let (fused, fused_grads) = run(inputs, op, Ops::Fused);
    close(&format!("{what}: value"), &fused, &wide(&plain), tolerance);
    for (i, (fused, plain)) in fused_grads.iter().zip(&plain_grads).enumerate() {
        close(&format!("{what}: gradient {i}"), fused, &wide(plain), tolerance);
    }
    // Without autodiff the operator takes another path through the backend.
    let device = device();
    let untracked = op(inputs.iter().map(|input| tensor(input, &device)).collect(), Ops::Fused);
    assert_eq!(read(untracked), fused, "{what}: with and without autodiff");
}

/// Fused equals f64 arithmetic in value, and its gradients equal central differences of that.
#[track_caller]
pub(crate) fn agrees_with_host(what: &str, inputs: &[Input], op: Op<'_>, host: Host<'_>, tolerance: f64) {
    let (fused, grads) = run(inputs, op, Ops::Fused);
    let mut values = inputs.iter().map(|input| wide(&input.values)).collect::<Vec<_>>();
    close(&format!("{what}: value"), &fused, &host(&values), tolerance);
    let weights = wide(&weights(fused.len()));
    let scalar = |values: &[Vec<f64>]| host(values).iter().zip(&weights).map(|(y, w)| y * w).sum::<f64>();
    for i in 0..inputs.len() {
        let mut expected = Vec::new();
        for j in 0..values[i].len() {
            const STEP: f64 = 1e-5; // leaves an error of the order of STEP^2
            let x = values[i][j];
            values[i][j] = x + STEP;
            let above = scalar(&values);
            values[i][j] = x - STEP;
            let below = scalar(&values);
            values[i][j] = x;
            expected.push((above - below) / (2.0 * STEP));
        }
        close(&format!("{what}: gradient {i}"), &grads[i], &expected, tolerance);
    }
}
