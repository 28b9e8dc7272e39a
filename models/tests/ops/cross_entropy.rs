//! Projection and cross-entropy in chunks of rows.

use burn::tensor::{DType, FloatDType, Int, Tensor, TensorData};
use kiln_models::Ops;
use kiln_models::ops::cross_entropy::CrossEntropy;

use crate::skip::skip;
use crate::{Input, agrees_with_host, agrees_with_plain, close, input, of_products, run, weights, wide};

/// One case: sizes, and what the rows count.
#[derive(Clone)]
struct Case {
    rows: usize,
    features: usize,
    classes: usize,
    bias: bool,
    row_weight: Option<Vec<f32>>,
    label_smoothing: f64,
}

impl Case {
    fn targets(&self) -> Vec<i32> {
        (0..self.rows).map(|i| ((i * 7 + 3) % self.classes) as i32).collect()
    }

    fn inputs(&self) -> Vec<Input> {
        let mut inputs = vec![input(self.rows, self.features, 2.0, 1), input(self.classes, self.features, 1.0, 2)];
        inputs.extend(self.bias.then(|| input(1, self.classes, 1.0, 3)));
        inputs
    }

    fn op(&self) -> impl Fn(Vec<Tensor<2>>, Ops) -> Tensor<1> {
        let case = self.clone();
        move |inputs, ops| {
            let device = inputs[0].device();
            let mut inputs = inputs.into_iter();
            let (x, weight) = (inputs.next().unwrap(), inputs.next().unwrap());
            let loss = CrossEntropy {
                x,
                weight,
                bias: inputs.next().map(crate::vector),
                target: Tensor::<1, Int>::from_data(TensorData::new(case.targets(), [case.rows]), &device),
                row_weight: case
                    .row_weight
                    .clone()
                    .map(|weight| Tensor::from_data(TensorData::new(weight, [case.rows]), &device)),
                label_smoothing: case.label_smoothing,
                operands: FloatDType::F32.into(),
            };
            loss.sum(ops)
        }
    }

    fn host(&self) -> impl Fn(&[Vec<f64>]) -> Vec<f64> {
        let case = self.clone();
        move |values| {
            let (d, classes, s) = (case.features, case.classes, case.label_smoothing);
            let mut total = 0.0;
            for (row, target) in case.targets().into_iter().enumerate() {
                let logit = |c: usize| {
                    let product = (0..d).map(|k| values[0][row * d + k] * values[1][c * d + k]).sum::<f64>();
                    product + values.get(2).map_or(0.0, |bias| bias[c])
                };
                let logits = (0..classes).map(logit).collect::<Vec<_>>();
                let lse = logits.iter().map(|x| x.exp()).sum::<f64>().ln();
                let mean = logits.iter().sum::<f64>() / classes as f64;
                let weight = case.row_weight.as_ref().map_or(1.0, |weight| f64::from(weight[row]));
                total += weight * (lse - (1.0 - s) * logits[target as usize] - s * mean);
            }
            vec![total]
        }
    }
}

fn case(rows: usize, features: usize, classes: usize) -> Case {
    Case { rows, features, classes, bias: false, row_weight: None, label_smoothing: 0.0 }
}

/// Every third row is ignored.
fn some_ignored(rows: usize) -> Option<Vec<f32>> {
    Some((0..rows).map(|i| f32::from(u8::from(i % 3 != 1))).collect())
}

/// Sums over rows of logarithms and of products of order 10, each rounded to 6e-8.
const ROUNDING: f64 = 5e-6;

#[test]
fn values_and_gradients() {
    for (rows, features, classes) in [(1, 1, 2), (3, 5, 7), (4, 3, 33), (5, 17, 31)] {
        for bias in [false, true] {
            for row_weight in [None, some_ignored(rows)] {
                for label_smoothing in [0.0, 0.1] {
                    let row_weight = row_weight.clone();
                    let case = Case { bias, row_weight, label_smoothing, ..case(rows, features, classes) };
                    let what = format!("[{rows}, {features}] x [{classes}], bias {bias}, smoothing {label_smoothing}");
                    agrees_with_host(&what, &case.inputs(), &case.op(), &case.host(), ROUNDING);
                    agrees_with_plain(&what, &case.inputs(), &case.op(), ROUNDING);
                }
            }
        }
    }
}

#[test]
fn chunks_that_do_not_divide_the_rows() {
    // A chunk has 128 rows: three, of which the last has 45 (or 30 less after ignoring).
    for (bias, row_weight) in [(false, None), (true, some_ignored(301))] {
        let case = Case { bias, row_weight, ..case(301, 13, 1009) };
        agrees_with_plain("chunks", &case.inputs(), &case.op(), of_products(2e-5));
    }
}

/// For a device of little memory (`FAKE_CUDA_MEMORY=64M`), since others have so many rows at a time
/// that this takes minutes.
#[test]
fn more_rows_than_have_their_logits_at_a_time() {
    let Some(bytes) = kiln_models::ops::bytes_at_a_time(&crate::device()).filter(|bytes| *bytes <= 4 << 20) else {
        return skip!("little-memory", "the device has much memory: FAKE_CUDA_MEMORY=64M makes an emulated one small");
    };
    let classes = 4099;
    let rows = bytes as usize / size_of::<f32>() / classes + 45;
    let case = Case { bias: true, ..case(rows, 3, classes) };
    let in_two = |inputs: Vec<Tensor<2>>, ops: Ops| {
        let part = |first: usize, last: usize| {
            let targets = case.targets()[first..last].to_vec();
            let loss = CrossEntropy {
                x: inputs[0].clone().slice(first..last),
                weight: inputs[1].clone(),
                bias: Some(crate::vector(inputs[2].clone())),
                target: Tensor::<1, Int>::from_data(TensorData::new(targets, [last - first]), &inputs[0].device()),
                row_weight: None,
                label_smoothing: 0.0,
                operands: FloatDType::F32.into(),
            };
            loss.sum(ops)
        };
        part(0, 31) + part(31, rows)
    };
    let (expected, gradients) = run(&case.inputs(), &in_two, Ops::Fused);
    let (got, of_all) = run(&case.inputs(), &case.op(), Ops::Fused);
    close("loss", &got, &wide(&expected), of_products(1e-5));
    for (got, expected) in of_all.iter().zip(&gradients) {
        close("gradient", got, &wide(expected), of_products(1e-5));
    }
}

#[test]
fn a_large_vocabulary_that_is_padded() {
    // To 4352 columns on a GPU. The classes behind the last must not count, in the bias least of
    // all.
    for (bias, row_weight) in [(false, None), (true, some_ignored(5))] {
        let case = Case { bias, row_weight, label_smoothing: 0.1, ..case(5, 3, 4099) };
        agrees_with_plain("padded", &case.inputs(), &case.op(), of_products(1e-5));
    }
}

/// Rows that many units of a GPU share, in vectors and, with a vocabulary of 1,013, which is not
/// padded, in single logits.
#[test]
fn losses_and_gradients_of_long_rows_are_those_of_f64() {
    for (classes, bias, label_smoothing) in [(1013, true, 0.1), (5003, false, 0.0), (10_007, true, 0.1)] {
        let (rows, features) = (3, 5);
        let case = Case { bias, label_smoothing, row_weight: some_ignored(rows), ..case(rows, features, classes) };
        let inputs = case.inputs();
        let values = inputs.iter().map(|input| wide(&input.values)).collect::<Vec<_>>();
        let upstream = f64::from(weights(1)[0]);
        let (mut dx, mut dweight) = (vec![0.0; rows * features], vec![0.0; classes * features]);
        let mut dbias = vec![0.0; classes];
        for (row, target) in case.targets().into_iter().enumerate() {
            let x = &values[0][row * features..][..features];
            let logit = |class: usize| {
                let weight = &values[1][class * features..][..features];
                x.iter().zip(weight).map(|(x, weight)| x * weight).sum::<f64>()
                    + values.get(2).map_or(0.0, |it| it[class])
            };
            let exps = (0..classes).map(|class| logit(class).exp()).collect::<Vec<_>>();
            let sum = exps.iter().sum::<f64>();
            let by = upstream * f64::from(case.row_weight.as_ref().unwrap()[row]);
            for (class, exp) in exps.iter().enumerate() {
                let right = if class == target as usize { 1.0 - label_smoothing } else { 0.0 };
                let dlogit = by * (exp / sum - right - label_smoothing / classes as f64);
                dbias[class] += dlogit;
                for (k, x) in x.iter().enumerate() {
                    dx[row * features + k] += dlogit * values[1][class * features + k];
                    dweight[class * features + k] += dlogit * x;
                }
            }
        }
        let (loss, grads) = run(&inputs, &case.op(), Ops::Fused);
        let what = |name: &str| format!("{name} of {classes} classes");
        close(&what("loss"), &loss, &case.host()(&values), of_products(ROUNDING));
        // Sums of thousands of products, whose factors are rounded.
        for (got, (name, expected)) in grads.iter().zip([("x", dx), ("weight", dweight), ("bias", dbias)]) {
            close(&what(name), got, &expected, of_products(2e-5));
        }
    }
}

#[test]
fn of_factors_in_bf16_the_loss_and_its_gradients_are_f32() {
    let dtype = FloatDType::BF16;
    if !crate::device().supports_dtype(dtype) {
        return skip!("bf16", "the device has no bf16, as WGSL has none");
    }
    for (bias, row_weight) in [(false, None), (true, some_ignored(301))] {
        let case = Case { bias, row_weight, ..case(301, 13, 109) };
        let mut inputs = case.inputs();
        // Numbers of 6 bits are themselves in bf16.
        inputs.iter_mut().take(2).flat_map(|input| &mut input.values).for_each(|x| *x = (*x * 16.0).round() / 16.0);
        let op = case.op();
        let narrow = move |inputs: Vec<Tensor<2>>, ops: Ops| {
            let inputs = inputs.into_iter().enumerate();
            let loss = op(inputs.map(|(i, input)| if i < 2 { input.cast(dtype) } else { input }).collect(), ops);
            assert_eq!(loss.dtype(), DType::F32);
            loss
        };
        // The plain form rounds logits and every product to 8 bits.
        agrees_with_plain("plain", &inputs, &narrow, 2e-2);
        let (loss, grads) = run(&inputs, &narrow, Ops::Fused);
        let (expected, expected_grads) = run(&inputs, &case.op(), Ops::Fused);
        // On a GPU logits and products are rounded to 8 bits.
        let tolerance = if crate::on_cpu() { 1e-6 } else { 1e-2 };
        close("loss", &loss, &wide(&expected), tolerance);
        for (got, expected) in grads.iter().zip(&expected_grads) {
            close("gradient", got, &wide(expected), tolerance);
        }
    }
}

#[test]
fn nothing_counts() {
    let case = Case { bias: true, row_weight: Some(vec![0.0; 3]), ..case(3, 5, 7) };
    let (loss, grads) = run(&case.inputs(), &case.op(), Ops::Fused);
    assert_eq!(loss, [0.0]);
    assert!(grads.iter().flatten().all(|g| *g == 0.0), "{grads:?}");
}

#[test]
fn large_logits_do_not_overflow() {
    let mut inputs = case(3, 5, 7).inputs();
    inputs[0].values.iter_mut().for_each(|x| *x *= 1e3);
    // Logits of order 5e3 are rounded to 5e-4; the host's exponential would overflow, so plain is
    // the reference.
    agrees_with_plain("large", &inputs, &case(3, 5, 7).op(), 1e-5);
}
