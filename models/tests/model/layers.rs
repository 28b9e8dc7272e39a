//! The shared layers against finite differences and against what they promise: GELU, LayerNorm,
//! attention, dropout.

use burn::tensor::{Bool, Device, Tensor, TensorData};
use kiln_models::layers::LayerNorm;
use kiln_models::ops::attention::plain::attention;
use kiln_models::ops::dropout::{DropoutRng, plain as dropout};
use kiln_models::ops::gelu::activate;
use kiln_models::{Activation, Ops};

/// Central differences of fourth order: `f' = (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h`. The
/// formula is off by about `h^4 f^(5) / 30 ~ 1e-7`; the values are f32, whose rounding (6e-8 of
/// values up to 3) is divided by `h`: about 5e-6.
const H: f32 = 0.05;
const GELU_TOLERANCE: f64 = 5e-5;
/// A sum of 12 such values.
const NORM_TOLERANCE: f64 = 2e-4;

fn vector(values: &[f32], device: &Device) -> Tensor<1> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), device)
}

fn read<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.try_into_vec_as::<f32>().unwrap()
}

fn difference(f: impl Fn(f32) -> f64) -> f64 {
    (8.0 * (f(H) - f(-H)) - (f(2.0 * H) - f(-2.0 * H))) / (12.0 * f64::from(H))
}

fn gelu_gradient(activation: Activation, points: &[f32]) -> Vec<f32> {
    let x = vector(points, &Device::flex().autodiff()).require_grad();
    let grads = activate(x.clone(), activation).sum().backward();
    read(x.grad(&grads).unwrap())
}

#[test]
fn gelu_gradients_are_those_of_their_own_forward() {
    let points = [-4.0, -3.0, -2.0, -1.0, -0.3, 0.0, 0.3, 1.0, 2.0, 3.0, 4.0];
    for activation in [Activation::GeluTanh, Activation::GeluErf] {
        let gradients = gelu_gradient(activation, &points);
        for (x, gradient) in points.iter().zip(gradients) {
            let value = |dx: f32| f64::from(read(activate(vector(&[x + dx], &Device::flex()), activation))[0]);
            let expected = difference(value);
            assert!(
                (f64::from(gradient) - expected).abs() < GELU_TOLERANCE,
                "{activation:?} at {x}: {gradient}, {expected}"
            );
        }
    }
}

/// The two forms' derivatives, computed in f64 from their formulas, are 3.6e-4 apart at +-3: far
/// more than f32's rounding. So an erf GELU with the derivative of the tanh form would be found
/// here.
#[test]
fn the_derivative_of_the_erf_form_is_not_that_of_the_tanh_form() {
    let (erf, tanh) = (1.011_945_647_204_184, 1.011_584_166_630_969_5);
    for (activation, expected) in [(Activation::GeluErf, erf), (Activation::GeluTanh, tanh)] {
        let gradients = gelu_gradient(activation, &[3.0, -3.0]);
        for (gradient, expected) in gradients.into_iter().zip([expected, 1.0 - expected]) {
            assert!((f64::from(gradient) - expected).abs() < 2e-6, "{activation:?}: {gradient}, {expected}");
        }
    }
}

#[test]
fn layer_norm_gradients_are_those_of_its_forward() {
    let device = Device::flex().autodiff();
    let x: Vec<f32> = (0..12).map(|i| (i as f32 * 0.9).sin() * 1.5 + 0.2).collect();
    let weight: Vec<f32> = (0..6).map(|i| 0.5 + 0.2 * i as f32).collect();
    let bias: Vec<f32> = (0..6).map(|i| 0.1 * i as f32 - 0.2).collect();
    let factors: Vec<f64> = (0..12).map(|i| f64::from(i * 7 % 5) * 0.4 - 0.7).collect();
    let norm = |weight: &[f32], bias: &[f32], device: &Device| {
        let mut norm = LayerNorm::new(6, 1e-5, device);
        norm.weight = norm.weight.map(|_| vector(weight, device).require_grad());
        norm.bias = norm.bias.map(|_| vector(bias, device).require_grad());
        norm
    };
    let rows = |x: &[f32], device: &Device| Tensor::<2>::from_data(TensorData::new(x.to_vec(), [2, 6]), device);
    // Summed in f64, so that only the values are rounded to f32.
    let loss = |x: &[f32], weight: &[f32], bias: &[f32]| {
        let y = read(norm(weight, bias, &device).forward(rows(x, &device), Ops::Plain).inner());
        y.iter().zip(&factors).map(|(y, c)| f64::from(*y) * c).sum::<f64>()
    };

    let (input, layer) = (rows(&x, &device).require_grad(), norm(&weight, &bias, &device));
    let c = rows(&factors.iter().map(|c| *c as f32).collect::<Vec<_>>(), &device);
    let grads = (layer.forward(input.clone(), Ops::Plain) * c).sum().backward();
    let found = [
        read(input.grad(&grads).unwrap()),
        read(layer.weight.val().grad(&grads).unwrap()),
        read(layer.bias.val().grad(&grads).unwrap()),
    ];
    for (which, gradients) in found.iter().enumerate() {
        for (i, gradient) in gradients.iter().enumerate() {
            let expected = difference(|d| {
                let mut values = [x.clone(), weight.clone(), bias.clone()];
                values[which][i] += d;
                loss(&values[0], &values[1], &values[2])
            });
            let off = (f64::from(*gradient) - expected).abs();
            assert!(off < NORM_TOLERANCE, "input {which}, element {i}: {gradient}, {expected}");
        }
    }
}

#[test]
fn a_row_that_may_see_nothing_is_finite_and_uniform() {
    let device = Device::flex().autodiff();
    let tensor = |seed: f32| {
        let values: Vec<f32> = (0..6).map(|i| (i as f32 + seed).cos()).collect();
        Tensor::<4>::from_data(TensorData::new(values, [1, 1, 3, 2]), &device).require_grad()
    };
    let (query, key, value) = (tensor(0.0), tensor(1.0), tensor(2.0));
    let hidden = [true, true, true, false, true, true, false, false, false].to_vec();
    let hidden = Tensor::<4, Bool>::from_data(TensorData::new(hidden, [1, 1, 3, 3]), &device);
    let out = attention(query.clone(), key, value.clone(), Some(hidden.into()), 0.7, 0.0, DropoutRng::Off);
    let (rows, values) = (read(out.clone().inner()), read(value.clone().inner()));
    assert!(rows.iter().all(|x| x.is_finite()), "{rows:?}");
    for d in 0..2 {
        let mean = (values[d] + values[2 + d] + values[4 + d]) / 3.0;
        assert!((rows[d] - mean).abs() < 1e-6, "the mean of all values: {rows:?}");
        assert_eq!(rows[2 + d], values[d], "one visible key has all the weight");
    }
    let grads = out.sum().backward();
    for gradient in [query.grad(&grads).unwrap(), value.grad(&grads).unwrap()] {
        assert!(read(gradient).iter().all(|x| x.is_finite()));
    }
}

#[test]
fn dropout_keeps_its_share_scales_it_and_is_off_in_evaluation() {
    let device = Device::flex();
    device.seed(7);
    let x = Tensor::<1>::ones([100_000], &device);
    for p in [0.1, 0.5] {
        let values = read(dropout(x.clone(), p, DropoutRng::Device));
        let scale = (1.0 / (1.0 - p)) as f32;
        let kept = values.iter().filter(|value| **value != 0.0).count() as f64 / values.len() as f64;
        assert!(values.iter().all(|value| *value == 0.0 || (value - scale).abs() < 1e-6));
        // 5 standard deviations of a share of 100,000 draws.
        assert!((kept - (1.0 - p)).abs() < 5.0 * (p * (1.0 - p) / 1e5).sqrt(), "{kept} kept of {p}");
        assert_eq!(read(dropout(x.clone(), p, DropoutRng::Off)), read(x.clone()));
    }
    assert_eq!(read(dropout(x.clone(), 0.0, DropoutRng::Device)), read(x));
}
