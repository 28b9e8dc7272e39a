//! Rotary positions.

use burn::tensor::{FloatDType, Tensor, TensorData};
use kiln_models::Ops;
use kiln_models::ops::rotary::rotary;

use crate::{Input, agrees_with_host, agrees_with_plain, close, input, on_cpu, read, tensor, vector, wide};

/// A sum of two products of order 1 with roundings of 6e-8.
const ROUNDING: f64 = 4e-7;

#[derive(Clone, Copy, Debug)]
struct Case {
    batch: usize,
    seq: usize,
    heads: usize,
    head_dim: usize,
    /// The tables have a row for each row of `x`, not for each of a sequence.
    each_row: bool,
}

impl Case {
    /// Rows of the tables.
    fn positions(&self) -> usize {
        if self.each_row { self.batch * self.seq } else { self.seq }
    }

    /// The angles, in f32 like the tables: of the positions `3, 4, ...` of a model with base 10000.
    fn angles(&self) -> Vec<f32> {
        let half = self.head_dim / 2;
        let angle = |i: usize| (i / half + 3) as f32 / 10_000f32.powf((i % half) as f32 / half as f32);
        (0..self.positions() * half).map(angle).collect()
    }

    /// Cosines or sines of the angles.
    fn table(&self, of: fn(f32) -> f32) -> Input {
        let values = self.angles().into_iter().map(of).collect();
        Input { values, shape: [self.positions(), self.head_dim / 2] }
    }

    fn inputs(&self) -> [Input; 1] {
        [input(self.batch * self.seq, self.heads * self.head_dim, 1.5, 1)]
    }

    fn op(self) -> impl Fn(Vec<Tensor<2>>, Ops) -> Tensor<1> {
        move |mut inputs, ops| {
            let x = inputs.pop().unwrap();
            let [cos, sin] = [f32::cos, f32::sin].map(|of| tensor(&self.table(of), &x.device()));
            vector(rotary(x, cos, sin, self.heads, ops))
        }
    }

    /// `x cos + rotate_half(x) sin`
    fn host(self) -> impl Fn(&[Vec<f64>]) -> Vec<f64> {
        move |values| {
            let (half, width) = (self.head_dim / 2, self.heads * self.head_dim);
            let [cos, sin] = [f32::cos, f32::sin].map(|of| wide(&self.table(of).values));
            let turned = |i: usize| {
                let (row, column) = (i / width, i % self.head_dim);
                let angle = row % self.positions() * half + column % half;
                let other = if column < half { -values[0][i + half] } else { values[0][i - half] };
                values[0][i] * cos[angle] + other * sin[angle]
            };
            (0..values[0].len()).map(turned).collect()
        }
    }
}

fn cases(batch: usize, seq: usize, heads: usize, head_dim: usize) -> [Case; 2] {
    [true, false].map(|each_row| Case { batch, seq, heads, head_dim, each_row })
}

#[test]
fn values_and_gradients() {
    for (batch, seq, heads, head_dim) in [(1, 1, 1, 2), (2, 3, 1, 34), (1, 17, 3, 6), (3, 5, 2, 16), (2, 1, 1, 130)] {
        for case in cases(batch, seq, heads, head_dim) {
            agrees_with_host(&format!("{case:?}"), &case.inputs(), &case.op(), &case.host(), ROUNDING);
            agrees_with_plain(&format!("{case:?}"), &case.inputs(), &case.op(), ROUNDING);
        }
    }
    // Several blocks of rows, which end within a sequence.
    for case in cases(3, 337, 9, 10) {
        agrees_with_plain("blocks", &case.inputs(), &case.op(), ROUNDING);
    }
}

/// The kernel turns heads where they lie; what others hold stays as it is.
#[test]
fn rows_that_others_hold_are_not_written_over() {
    let case = Case { batch: 2, seq: 3, heads: 2, head_dim: 6, each_row: false };
    let device = crate::device();
    let x = tensor(&case.inputs()[0], &device);
    let once = read(case.op()(vec![x.clone()], Ops::Fused));
    assert_eq!(read(x.clone()), case.inputs()[0].values);
    // A view of columns: the heads of a projection of query and key together.
    let twice = Tensor::cat(vec![x.clone(), x], 1).slice([0..6, 12..24]);
    assert_eq!(read(case.op()(vec![twice], Ops::Fused)), once);
}

/// Off the CPU the kernel reads and writes the type of products. Rows of 6 have a pitch on CUDA.
#[test]
fn narrow_values_are_computed_in_f32() {
    for (dtype, rounding) in [(FloatDType::BF16, 2f64.powi(-8)), (FloatDType::F16, 2f64.powi(-11))] {
        if on_cpu() || !crate::device().supports_dtype(dtype) {
            continue;
        }
        let case = Case { batch: 1, seq: 3, heads: 1, head_dim: 6, each_row: false };
        let mut inputs = case.inputs();
        // Numbers of 6 bits are themselves in both types.
        inputs[0].values.iter_mut().for_each(|x| *x = (*x * 16.0).round() / 16.0);
        let op = case.op();
        let narrow = move |inputs: Vec<Tensor<2>>, ops: Ops| {
            let y = op(inputs.into_iter().map(|input| input.cast(dtype)).collect(), ops);
            assert_eq!(y.dtype(), dtype.into());
            y.cast(FloatDType::F32)
        };
        agrees_with_host(&format!("{dtype:?}"), &inputs, &narrow, &case.host(), 2.0 * rounding);
    }
}

/// Scores depend on the distance of two positions alone.
#[test]
fn a_shift_of_both_positions_leaves_the_scores() {
    let (seq, head_dim) = (40, 8);
    let case = Case { batch: 1, seq, heads: 1, head_dim, each_row: false };
    let device = crate::device();
    let row = |seed: u64| {
        let row = input(1, head_dim, 1.0, seed);
        Tensor::<2>::from_data(TensorData::new(row.values, row.shape), &device).repeat(&[seq, 1])
    };
    let turned = |seed| case.op()(vec![row(seed)], Ops::Fused).reshape([seq, head_dim]);
    let scores = read(turned(1).matmul(turned(2).swap_dims(0, 1)));
    let of = |distance: usize| (0..seq - distance).map(|i| scores[i * seq + i + distance]).collect::<Vec<_>>();
    for distance in [0, 1, 17] {
        let scores = of(distance);
        close("scores", &scores, &vec![f64::from(scores[0]); scores.len()], crate::of_products(5e-6));
    }
    assert!((of(0)[0] - of(1)[0]).abs() > 1e-3);
}
