//! Arguments that do not fit together: every operator refuses each of them by name before a kernel
//! sees it, in both forms, forward with and without autodiff. A kernel would leave parts of its
//! result unwritten, or on a GPU read beyond its inputs.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{Bool, FloatDType, Int, Tensor, TensorData};
use kiln_models::ops::adamw::{Parameters, Update, norm};
use kiln_models::ops::attention::{Attention, Mask, Qkv};
use kiln_models::ops::cross_entropy::CrossEntropy;
use kiln_models::ops::dropout::{DropoutRng, DropoutSeeds, bias_dropout_residual, dropout};
use kiln_models::ops::embedding::embedding;
use kiln_models::ops::gelu::bias_gelu;
use kiln_models::ops::layer_norm::layer_norm;
use kiln_models::ops::linear::{FeedForward, feed_forward, linear};
use kiln_models::ops::list::TensorList;
use kiln_models::ops::products::Operands;
use kiln_models::ops::rms_norm::rms_norm;
use kiln_models::ops::rotary::rotary;
use kiln_models::ops::swiglu::swiglu;
use kiln_models::{Activation, Ops};

use crate::{device, read};

const F32: FloatDType = FloatDType::F32;
const FORMS: [Ops; 2] = [Ops::Plain, Ops::Fused];

/// The words of the panic of `f`.
#[track_caller]
fn panics<T>(f: impl FnOnce() -> T) -> String {
    let Err(payload) = catch_unwind(AssertUnwindSafe(f)) else { panic!("the call was not refused") };
    payload.downcast_ref::<String>().cloned().unwrap_or_else(|| (*payload.downcast::<&str>().unwrap()).to_string())
}

/// `f` is refused in the words of the contract: operator, argument, what was expected and what was
/// given.
#[track_caller]
fn refused<T>(operator: &str, argument: &str, f: impl FnOnce() -> T) {
    let words = panics(f);
    let start = format!("{operator}: {argument}: expected ");
    assert!(words.starts_with(&start) && words.contains(", got "), "{words:?} where {start:?} is expected");
}

/// Tracked, so that what comes after would be a backward too.
fn matrix([rows, cols]: [usize; 2]) -> Tensor<2> {
    let values = TensorData::new(vec![0.5f32; rows * cols], [rows, cols]);
    Tensor::from_data(values, &device().autodiff()).require_grad()
}

fn vector(n: usize) -> Tensor<1> {
    Tensor::from_data(TensorData::new(vec![0.5f32; n], [n]), &device().autodiff()).require_grad()
}

fn ids(ids: &[i32]) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::new(ids.to_vec(), [ids.len()]), &device().autodiff())
}

/// `n` as it is not: shorter, longer, none, one (which would be broadcast).
fn others(n: usize) -> Vec<usize> {
    [n - 1, n + 1, 2 * n, 0, 1].into_iter().filter(|other| *other != n).collect()
}

/// The shapes that differ from `[rows, cols]` in one of them.
fn other_shapes([rows, cols]: [usize; 2]) -> Vec<[usize; 2]> {
    others(rows).into_iter().map(|rows| [rows, cols]).chain(others(cols).into_iter().map(|cols| [rows, cols])).collect()
}

#[test]
fn bias_gelu_asks() {
    for ops in FORMS {
        for kind in [Activation::GeluTanh, Activation::GeluErf] {
            let call = |x, bias| bias_gelu(matrix(x), vector(bias), kind, ops);
            assert_eq!(call([3, 8], 8).dims(), [3, 8]);
            assert_eq!(call([0, 8], 8).dims(), [0, 8]);
            for bias in others(8) {
                refused("bias_gelu", "bias", || call([3, 8], bias));
            }
            refused("bias_gelu", "x", || call([3, 0], 0));
        }
    }
    if crate::on_cpu() {
        let narrow = || bias_gelu(matrix([3, 8]).cast(FloatDType::BF16), vector(8), Activation::GeluErf, Ops::Fused);
        refused("bias_gelu", "x", narrow);
    }
}

#[test]
fn layer_norm_asks() {
    for ops in FORMS {
        let call = |x, weight, bias| layer_norm(matrix(x), None, vector(weight), vector(bias), 1e-5, ops);
        let sum = |x, residual| layer_norm(matrix(x), Some(matrix(residual)), vector(x[1]), vector(x[1]), 1e-5, ops);
        assert_eq!(call([3, 8], 8, 8).dims(), [3, 8]);
        assert_eq!(sum([3, 8], [3, 8]).dims(), [3, 8]);
        assert_eq!(call([0, 8], 8, 8).dims(), [0, 8]);
        for other in others(8) {
            refused("layer_norm", "weight", || call([3, 8], other, 8));
            refused("layer_norm", "bias", || call([3, 8], 8, other));
            refused("layer_norm", "weight", || call([3, 8], other, other));
        }
        for residual in other_shapes([3, 8]) {
            refused("layer_norm", "residual", || sum([3, 8], residual));
        }
        refused("layer_norm", "x", || call([3, 0], 0, 0));
    }
    let weight = || vector(8).cast(FloatDType::F16);
    refused("layer_norm", "weight", || layer_norm(matrix([3, 8]), None, weight(), vector(8), 1e-5, Ops::Fused));
}

#[test]
fn rms_norm_asks() {
    for ops in FORMS {
        let call = |x, weight| rms_norm(matrix(x), vector(weight), 1e-5, ops);
        assert_eq!(call([3, 8], 8).dims(), [3, 8]);
        assert_eq!(call([0, 8], 8).dims(), [0, 8]);
        for weight in others(8) {
            refused("rms_norm", "weight", || call([3, 8], weight));
        }
        refused("rms_norm", "x", || call([3, 0], 0));
    }
    let narrow = || matrix([3, 8]).cast(FloatDType::F16);
    refused("rms_norm", "x", || rms_norm(narrow(), vector(8), 1e-5, Ops::Fused));
}

#[test]
fn swiglu_asks() {
    for ops in FORMS {
        let call = |gate, up| swiglu(matrix(gate), matrix(up), ops);
        assert_eq!(call([3, 8], [3, 8]).dims(), [3, 8]);
        assert_eq!(call([0, 8], [0, 8]).dims(), [0, 8]);
        for up in other_shapes([3, 8]) {
            refused("swiglu", "up", || call([3, 8], up));
        }
        refused("swiglu", "gate", || call([3, 0], [3, 0]));
    }
    let narrow = || matrix([3, 8]).cast(FloatDType::F16);
    refused("swiglu", "up", || swiglu(matrix([3, 8]), narrow(), Ops::Fused));
}

#[test]
fn rotary_asks() {
    for ops in FORMS {
        let call = |x, cos, sin, heads| rotary(matrix(x), matrix(cos), matrix(sin), heads, ops);
        for rows in [1, 2, 3, 6] {
            assert_eq!(call([6, 8], [rows, 2], [rows, 2], 2).dims(), [6, 8]);
        }
        assert_eq!(call([0, 8], [3, 2], [3, 2], 2).dims(), [0, 8]);
        for rows in [0, 4, 5, 7, 12] {
            refused("rotary", "cos", || call([6, 8], [rows, 2], [rows, 2], 2));
        }
        for width in others(2) {
            refused("rotary", "cos", || call([6, 8], [3, width], [3, width], 2));
            refused("rotary", "sin", || call([6, 8], [3, 2], [3, width], 2));
        }
        refused("rotary", "sin", || call([6, 8], [3, 2], [6, 2], 2));
        for heads in [0, 3, 5, 8, 16] {
            refused("rotary", "x", || call([6, 8], [3, 2], [3, 2], heads));
        }
        refused("rotary", "x", || call([6, 0], [3, 0], [3, 0], 1));
    }
    let narrow = || matrix([3, 2]).cast(FloatDType::F16);
    refused("rotary", "cos", || rotary(matrix([3, 4]), narrow(), matrix([3, 2]), 1, Ops::Fused));
}

#[test]
fn linear_and_product_ask() {
    for ops in FORMS {
        let call = |x, weight, bias| linear(matrix(x), matrix(weight), Some(vector(bias)), F32, ops);
        assert_eq!(call([3, 4], [4, 8], 8).dims(), [3, 8]);
        assert_eq!(call([0, 4], [4, 8], 8).dims(), [0, 8]);
        for rows in others(4) {
            refused("linear", "weight", || call([3, 4], [rows, 8], 8));
            refused("product", "weight", || linear(matrix([3, 4]), matrix([rows, 8]), None, F32, ops));
        }
        for bias in others(8) {
            refused("linear", "bias", || call([3, 4], [4, 8], bias));
        }
        refused("linear", "x", || call([3, 0], [0, 8], 8));
        refused("linear", "weight", || call([3, 4], [4, 0], 0));
        refused("product", "x", || linear(matrix([3, 0]), matrix([0, 8]), None, F32, ops));
    }
    let other = || matrix([4, 8]).cast(if crate::on_cpu() { FloatDType::F64 } else { FloatDType::BF16 });
    refused("linear", "weight", || linear(matrix([3, 4]), other(), Some(vector(8)), F32, Ops::Fused));
    refused("product", "weight", || linear(matrix([3, 4]), other(), None, F32, Ops::Fused));
    let narrow = || matrix([3, 4]).cast(FloatDType::BF16);
    refused("linear", "x", || linear(narrow(), matrix([4, 8]), Some(vector(8)), F32, Ops::Fused));
}

#[test]
fn feed_forward_asks() {
    for ops in FORMS {
        let call = |x, first, inner_bias, second, bias| {
            let block = FeedForward {
                weights: [matrix(first), matrix(second)],
                inner_bias: vector(inner_bias),
                bias: Some(vector(bias)),
                activation: Activation::GeluTanh,
                operands: [FloatDType::BF16, FloatDType::BF16].map(Operands::from),
            };
            feed_forward(matrix(x), block, ops)
        };
        assert_eq!(call([3, 4], [4, 8], 8, [8, 2], 2).dims(), [3, 2]);
        assert_eq!(call([0, 4], [4, 8], 8, [8, 2], 2).dims(), [0, 2]);
        for other in others(8) {
            refused("feed_forward", "inner_bias", || call([3, 4], [4, 8], other, [8, 2], 2));
            refused("feed_forward", "weight", || call([3, 4], [4, 8], 8, [other, 2], 2));
        }
        for other in others(4) {
            refused("feed_forward", "weight", || call([3, 4], [other, 8], 8, [8, 2], 2));
        }
        for bias in others(2) {
            refused("feed_forward", "bias", || call([3, 4], [4, 8], 8, [8, 2], bias));
        }
        refused("feed_forward", "x", || call([3, 0], [0, 8], 8, [8, 2], 2));
    }
}

#[test]
fn dropout_asks() {
    for ops in FORMS {
        for rng in [DropoutRng::Off, DropoutRng::Device] {
            let call =
                |x, bias, residual, p| bias_dropout_residual(matrix(x), vector(bias), matrix(residual), p, rng, ops);
            assert_eq!(call([3, 8], 8, [3, 8], 0.1).dims(), [3, 8]);
            assert_eq!(call([0, 8], 8, [0, 8], 0.1).dims(), [0, 8]);
            for bias in others(8) {
                refused("bias_dropout_residual", "bias", || call([3, 8], bias, [3, 8], 0.1));
            }
            for residual in other_shapes([3, 8]) {
                refused("bias_dropout_residual", "residual", || call([3, 8], 8, residual, 0.1));
            }
            refused("bias_dropout_residual", "x", || call([3, 0], 0, [3, 0], 0.1));
            refused("dropout", "x", || dropout(matrix([3, 0]), 0.1, rng, ops));
            for p in [-0.1, 1.0, 2.0, f64::NAN, f64::INFINITY] {
                refused("dropout", "p", || dropout(matrix([3, 8]), p, rng, ops));
                refused("bias_dropout_residual", "p", || call([3, 8], 8, [3, 8], p));
            }
        }
    }
    for n in [0, 1, 3] {
        refused("DropoutSeeds::new", "base", || DropoutSeeds::new(ids(&vec![1; n])));
    }
}

#[test]
fn embedding_asks() {
    for ops in FORMS {
        let call = |table, of: &[i32], padding| embedding(matrix(table), ids(of), padding, ops);
        assert_eq!(call([4, 8], &[0, 3], Some(3)).dims(), [2, 8]);
        assert_eq!(call([4, 8], &[], None).dims(), [0, 8]);
        if crate::on_cpu() {
            for wrong in [4, 5, -1, i32::MIN, i32::MAX] {
                refused("embedding", "ids", || call([4, 8], &[0, wrong], None));
            }
            refused("embedding", "ids", || call([0, 8], &[0], None));
        }
        refused("embedding", "table", || call([4, 0], &[0], None));
        refused("embedding", "padding_idx", || call([4, 8], &[0], Some(4)));
    }
}

#[test]
fn cross_entropy_asks() {
    #[derive(Clone)]
    struct Sizes {
        x: [usize; 2],
        weight: [usize; 2],
        bias: Option<usize>,
        target: Vec<i32>,
        row_weight: Option<usize>,
        label_smoothing: f64,
    }
    let right = Sizes {
        x: [3, 4],
        weight: [5, 4],
        bias: Some(5),
        target: vec![0, 4, 2],
        row_weight: Some(3),
        label_smoothing: 0.1,
    };
    let call = |sizes: &Sizes, ops| {
        let entropy = CrossEntropy {
            x: matrix(sizes.x),
            weight: matrix(sizes.weight),
            bias: sizes.bias.map(vector),
            target: ids(&sizes.target),
            row_weight: sizes.row_weight.map(|n| Tensor::ones([n], &device().autodiff())),
            label_smoothing: sizes.label_smoothing,
            operands: FloatDType::F32.into(),
        };
        entropy.sum(ops)
    };
    for ops in FORMS {
        let wrong = |argument: &str, sizes: Sizes| refused("cross_entropy", argument, || call(&sizes, ops));
        assert!(read(call(&right, ops))[0].is_finite());
        for n in others(4) {
            wrong("weight", Sizes { weight: [5, n], ..right.clone() });
        }
        for n in others(5) {
            wrong("bias", Sizes { bias: Some(n), ..right.clone() });
        }
        for n in others(3) {
            wrong("target", Sizes { target: vec![0; n], ..right.clone() });
            wrong("row_weight", Sizes { row_weight: Some(n), ..right.clone() });
        }
        wrong("x", Sizes { x: [3, 0], weight: [5, 0], ..right.clone() });
        wrong("weight", Sizes { weight: [0, 4], bias: Some(0), ..right.clone() });
        for label_smoothing in [-0.1, 1.1, f64::NAN] {
            wrong("label_smoothing", Sizes { label_smoothing, ..right.clone() });
        }
        if crate::on_cpu() {
            for class in [5, -1, -100, i32::MAX] {
                wrong("target", Sizes { target: vec![0, class, 0], ..right.clone() });
            }
        }
    }
    let two_types = || CrossEntropy {
        x: matrix([3, 4]).cast(FloatDType::BF16),
        weight: matrix([5, 4]),
        bias: None,
        target: ids(&[0, 1, 2]),
        row_weight: None,
        label_smoothing: 0.0,
        operands: FloatDType::BF16.into(),
    };
    refused("cross_entropy", "weight", || two_types().sum(Ops::Fused));
}

#[test]
fn attention_asks() {
    let attention = |batch, heads, dropout| Attention {
        batch,
        heads,
        scale: 0.5,
        dropout,
        rng: DropoutRng::Device,
        products: FloatDType::F32,
    };
    let separate = |query, key, value| Qkv::Separate { query: matrix(query), key: matrix(key), value: matrix(value) };
    let keys = |shape: [usize; 2]| Tensor::<2, Bool>::full(shape, true, &device());
    for ops in FORMS {
        for padded in [false, true] {
            let mask = Mask::new(3, false, padded.then(|| keys([2, 3])), &device(), ops);
            let causal = Mask::new(3, true, padded.then(|| keys([2, 3])), &device(), ops);
            let call = |qkv, mask: &Mask| attention(2, 2, 0.0).forward(qkv, mask);
            let right = [6, 4];
            assert_eq!(call(separate(right, right, right), &causal).dims(), [6, 4]);
            assert_eq!(call(separate([2, 4], right, right), &mask).dims(), [2, 4]);
            assert_eq!(call(Qkv::Packed(matrix([6, 12])), &mask).dims(), [6, 4]);
            // A key of half the width has one head for both of the queries.
            assert_eq!(call(separate(right, [6, 2], [6, 2]), &causal).dims(), [6, 4]);
            assert_eq!(call(separate([6, 8], right, right), &mask).dims(), [6, 8]);
            for wrong in other_shapes(right) {
                refused("attention", "value", || call(separate(right, right, wrong), &mask));
            }
            refused("attention", "value", || call(separate(right, [6, 2], right), &mask));
            for wrong in [0, 1, 3, 5] {
                refused("attention", "query", || call(separate([6, wrong], right, right), &mask));
                refused("attention", "key", || call(separate(right, [6, wrong], [6, wrong]), &mask));
            }
            // Four heads of keys, and three halves of a head.
            refused("attention", "key", || call(separate(right, [6, 8], [6, 8]), &mask));
            refused("attention", "key", || call(separate([6, 8], [6, 6], [6, 6]), &mask));
            for rows in [0, 1, 5, 7, 12] {
                refused("attention", "query", || call(separate([rows, 4], right, right), &mask));
                refused("attention", "key", || call(separate([rows, 4], [rows, 4], [rows, 4]), &mask));
                refused("attention", "key", || call(Qkv::Packed(matrix([rows, 12])), &mask));
            }
            refused("attention", "query", || call(separate([2, 4], right, right), &causal));
            for width in [0, 1, 4, 9, 11, 13, 15] {
                refused("attention", "qkv", || call(Qkv::Packed(matrix([6, width])), &mask));
            }
            let sized = |batch, heads| attention(batch, heads, 0.0).forward(separate(right, right, right), &mask);
            refused("attention", "batch", || sized(0, 2));
            refused("attention", "heads", || sized(2, 0));
            refused("attention", "query", || sized(2, 3));
            refused("attention", if padded { "mask" } else { "key" }, || sized(3, 2));
            refused("attention", "dropout", || attention(2, 2, 1.0).forward(separate(right, right, right), &mask));
        }
        for shape in [[2, 2], [2, 4], [2, 0]] {
            refused("attention", "attention_mask", || Mask::new(3, false, Some(keys(shape)), &device(), ops));
        }
        refused("attention", "seq", || Mask::new(0, true, None, &device(), ops));
    }
    let mask = Mask::new(3, false, None, &device(), Ops::Fused);
    let narrow = matrix([6, 4]).cast(FloatDType::BF16);
    let two_types = Qkv::Separate { query: narrow, key: matrix([6, 4]), value: matrix([6, 4]) };
    refused("attention", "key", || attention(2, 2, 0.0).forward(two_types, &mask));
}

#[test]
fn adamw_asks() {
    let plain = |n: usize| Tensor::<1>::from_data(TensorData::new(vec![0.5f32; n], [n]), &device());
    let update = Update { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, lr: 1e-2, weight_decay: 0.0, step: 1 };
    let with = |value: usize, moments: [usize; 2], grad: usize, kind: usize| {
        let mut parameters = Parameters::default();
        parameters.push(plain(value), moments.map(plain), plain(grad), kind);
        parameters
    };
    assert!(with(6, [6, 6], 6, 0).update(&[update], &plain(1)).take::<1>().is_some());
    for wrong in others(6) {
        refused("adamw", "exp_avg", || with(6, [wrong, 6], 6, 0));
        refused("adamw", "exp_avg_sq", || with(6, [6, wrong], 6, 0));
        refused("adamw", "grad", || with(6, [6, 6], wrong, 0));
    }
    let mut parameters = Parameters::default();
    let [value, turned] = [[2, 3], [3, 2]].map(|shape| Tensor::<2>::ones(shape, &device()));
    refused("adamw", "grad", || parameters.push(value, [plain(6), plain(6)], turned, 0));
    refused("adamw", "kind", || with(6, [6, 6], 6, 1).update(&[update], &plain(1)));
    refused("adamw", "kind", || with(6, [6, 6], 6, 0).update(&[], &plain(1)));
    for wrong in [0, 2] {
        refused("adamw", "scale", || with(6, [6, 6], 6, 0).update(&[update], &plain(wrong)));
    }
    assert_eq!(panics(|| norm(TensorList::default())), "norm: tensors: expected 1 tensor or more, got none");
    let narrow = || TensorList::default().push(plain(6).cast(FloatDType::F16));
    assert_eq!(panics(narrow), "list of tensors: expected F32, got F16");
}
