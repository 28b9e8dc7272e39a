//! Attention without a stored score matrix.

use burn::tensor::{Bool, FloatDType, Tensor, TensorData};
use kiln_models::Ops;
use kiln_models::ops::attention::{Attention, Mask, Qkv};
use kiln_models::ops::dropout::DropoutRng;

use crate::skip::skip;
use crate::{
    Input, agrees_with_host, agrees_with_plain, close, generator, input, noise, of_products, read, run, tensor, vector,
    weights, wide,
};

/// Sums of up to a hundred products of order 1, an exponential and a division, each with a rounding
/// of 6e-8.
const ROUNDING: f64 = 4e-6;

#[derive(Clone, Copy)]
struct Case {
    batch: usize,
    heads: usize,
    /// Heads of queries that share a head of keys.
    group: usize,
    seq: usize,
    /// Queries of a sequence: `seq`, or 1.
    queries: usize,
    head_dim: usize,
    causal: bool,
    /// How many keys of each sequence are padding, on the right (`>= 0`) or the left.
    padding: Option<isize>,
    packed: bool,
}

impl Case {
    fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Columns of keys, and of values.
    fn kv_width(&self) -> usize {
        self.width() / self.group
    }

    fn scale(&self) -> f64 {
        1.0 / (self.head_dim as f64).sqrt()
    }

    /// True = attend; sequence `i` has `i` keys of padding more than the first.
    fn keys(&self) -> Option<Vec<bool>> {
        let padding = self.padding?;
        let key = |i: usize| {
            let (sequence, key) = ((i / self.seq) as isize, (i % self.seq) as isize);
            if padding >= 0 { key < self.seq as isize - padding - sequence } else { key >= -padding + sequence }
        };
        Some((0..self.batch * self.seq).map(key).collect())
    }

    fn inputs(&self) -> Vec<Input> {
        let rows = self.batch * self.seq;
        if self.packed {
            vec![input(rows, 3 * self.width(), 1.5, 1)]
        } else {
            let queries = input(self.batch * self.queries, self.width(), 1.5, 1);
            vec![queries, input(rows, self.kv_width(), 1.5, 2), input(rows, self.kv_width(), 1.5, 3)]
        }
    }

    fn op(self, dropout: f64) -> impl Fn(Vec<Tensor<2>>, Ops) -> Tensor<1> {
        self.op_in(FloatDType::F32, dropout)
    }

    fn op_in(self, products: FloatDType, dropout: f64) -> impl Fn(Vec<Tensor<2>>, Ops) -> Tensor<1> {
        move |inputs, ops| {
            let device = inputs[0].device();
            let keys = self
                .keys()
                .map(|keys| Tensor::<2, Bool>::from_data(TensorData::new(keys, [self.batch, self.seq]), &device));
            let mask = Mask::new(self.seq, self.causal, keys, &device, ops);
            let mut inputs = inputs.into_iter();
            let qkv = if self.packed {
                Qkv::Packed(inputs.next().unwrap())
            } else {
                let [query, key, value] = [0, 1, 2].map(|_| inputs.next().unwrap());
                Qkv::Separate { query, key, value }
            };
            let attention = Attention {
                batch: self.batch,
                heads: self.heads,
                scale: self.scale(),
                dropout,
                rng: DropoutRng::of(dropout > 0.0),
                products,
            };
            vector(attention.forward(qkv, &mask))
        }
    }

    /// Attention in f64; `factor` is what dropout multiplies weight `((sequence, head), row, key)`
    /// by.
    fn host(self, factor: impl Fn(usize, usize, usize) -> f64) -> impl Fn(&[Vec<f64>]) -> Vec<f64> {
        move |values| self.in_f64(values, &factor, None).0
    }

    /// Attention in f64, and for the gradient `dout` of the result that of every input, by the
    /// chain rule: no derivatives by differences, which take a call for every number.
    fn in_f64(
        self,
        values: &[Vec<f64>],
        factor: impl Fn(usize, usize, usize) -> f64,
        dout: Option<&[f64]>,
    ) -> (Vec<f64>, Vec<Vec<f64>>) {
        let (d, width) = (self.head_dim, self.width());
        // Where the numbers of a head begin in a row of the queries, the keys or the values.
        let at = |which: usize, row: usize, head: usize| {
            let column = if which == 0 { head * d } else { head / self.group * d };
            match (self.packed, which) {
                (true, _) => (0, row * 3 * width + which * width + column),
                (false, 0) => (0, row * width + column),
                (false, _) => (which, row * self.kv_width() + column),
            }
        };
        let part = |place: (usize, usize)| &values[place.0][place.1..place.1 + d];
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let add = |to: &mut [f64], by: f64, from: &[f64]| to.iter_mut().zip(from).for_each(|(to, x)| *to += by * x);
        let keys = self.keys();
        let mut out = vec![0.0; self.batch * self.queries * width];
        let mut gradients = values.iter().map(|values| vec![0.0; values.len()]).collect::<Vec<_>>();
        let rows = |b: usize| (0..self.heads).flat_map(move |h| (0..self.queries).map(move |i| (b, h, i)));
        for (b, h, i) in (0..self.batch).flat_map(rows) {
            let sees = |j: usize| (!self.causal || j <= i) && keys.as_ref().is_none_or(|k| k[b * self.seq + j]);
            let row = b * self.queries + i;
            let place = at(0, row, h);
            let query = part(place);
            let none = (0..self.seq).all(|j| !sees(j));
            let weight = |j: usize| match (none, sees(j)) {
                (true, _) => 1.0,
                (false, true) => (self.scale() * dot(query, part(at(1, b * self.seq + j, h)))).exp(),
                (false, false) => 0.0,
            };
            let weights = (0..self.seq).map(weight).collect::<Vec<_>>();
            let total = weights.iter().sum::<f64>();
            let factors = (0..self.seq).map(|j| factor(b * self.heads + h, i, j)).collect::<Vec<_>>();
            let of_row = row * width + h * d..row * width + (h + 1) * d;
            for (j, (weight, factor)) in weights.iter().zip(&factors).enumerate() {
                add(&mut out[of_row.clone()], weight / total * factor, part(at(2, b * self.seq + j, h)));
            }
            let Some(dout) = dout.map(|dout| &dout[of_row.clone()]) else { continue };
            let delta = dot(&out[of_row], dout);
            for (j, (weight, factor)) in weights.iter().zip(&factors).enumerate() {
                let [key, value] = [1, 2].map(|which| at(which, b * self.seq + j, h));
                let weight = weight / total;
                let of_score = match none {
                    true => 0.0, // the scores are constants
                    false => self.scale() * weight * (factor * dot(dout, part(value)) - delta),
                };
                add(&mut gradients[value.0][value.1..value.1 + d], weight * factor, dout);
                add(&mut gradients[place.0][place.1..place.1 + d], of_score, part(key));
                add(&mut gradients[key.0][key.1..key.1 + d], of_score, query);
            }
        }
        (out, gradients)
    }
}

fn cases(batch: usize, heads: usize, seq: usize, head_dim: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for packed in [true, false] {
        for causal in [true, false] {
            for padding in [None, Some(0), Some(1), Some(-1), Some(seq as isize)] {
                let case = Case { batch, heads, group: 1, seq, queries: seq, head_dim, causal, padding, packed };
                cases.push(case);
                if !packed && !causal {
                    cases.push(Case { queries: 1, ..case });
                }
            }
        }
    }
    cases
}

/// Cases of `kv_heads` heads of keys, each of which `group` heads of queries read.
fn grouped([batch, kv_heads, group]: [usize; 3], seq: usize, head_dim: usize) -> Vec<Case> {
    let cases = few(batch, kv_heads * group, seq, head_dim).into_iter().filter(|case| !case.packed);
    cases.map(|case| Case { group, ..case }).collect()
}

/// [`cases`] without some of the paddings off the CPU: a device that is software tunes the products
/// of every layout for seconds.
fn few(batch: usize, heads: usize, seq: usize, head_dim: usize) -> Vec<Case> {
    let paddings = [None, Some(1), Some(seq as isize)];
    let is_one = |case: &Case| crate::on_cpu() || paddings.contains(&case.padding);
    cases(batch, heads, seq, head_dim).into_iter().filter(is_one).collect()
}

fn name(case: &Case) -> String {
    let Case { batch, heads, group, seq, queries, head_dim, causal, padding, packed } = case;
    let sizes = format!("[{batch}, {heads} / {group}, {seq}, {head_dim}], {queries} queries");
    format!("{sizes}, causal {causal}, padding {padding:?}, packed {packed}")
}

#[test]
fn values_and_gradients() {
    for (batch, heads, seq, head_dim) in [(1, 1, 1, 1), (2, 1, 2, 3), (1, 2, 5, 4), (2, 3, 7, 5)] {
        for case in cases(batch, heads, seq, head_dim) {
            agrees_with_host(&name(&case), &case.inputs(), &case.op(0.0), &case.host(|_, _, _| 1.0), ROUNDING);
            agrees_with_plain(&name(&case), &case.inputs(), &case.op(0.0), ROUNDING);
        }
    }
}

#[test]
fn heads_that_share_keys() {
    for (sizes, seq, head_dim) in [([1, 1, 2], 1, 1), ([2, 1, 3], 5, 3), ([1, 2, 2], 7, 4), ([2, 2, 3], 3, 2)] {
        for case in grouped(sizes, seq, head_dim) {
            agrees_with_host(&name(&case), &case.inputs(), &case.op(0.0), &case.host(|_, _, _| 1.0), ROUNDING);
            agrees_with_plain(&name(&case), &case.inputs(), &case.op(0.0), ROUNDING);
        }
    }
    for (sizes, seq, head_dim) in [([2, 1, 3], 131, 17), ([1, 2, 4], 65, 63)] {
        for case in grouped(sizes, seq, head_dim) {
            agrees_with_plain(&name(&case), &case.inputs(), &case.op(0.0), 1e-5);
        }
    }
}

/// Heads that share keys compute what they do with a copy of the keys for each of them.
#[test]
fn shared_keys_are_those_of_a_copy_for_each_head() {
    for case in [grouped([2, 3, 2], 7, 5), grouped([2, 3, 2], 101, 5)].concat() {
        let (d, width) = (case.head_dim, case.width());
        let repeated = move |inputs: Vec<Tensor<2>>, ops: Ops| {
            let each = |x: &Tensor<2>| {
                let rows = x.dims()[0];
                x.clone().reshape([rows, 3, 1, d]).expand([rows, 3, 2, d]).reshape([rows, width])
            };
            let inputs = vec![inputs[0].clone(), each(&inputs[1]), each(&inputs[2])];
            Case { group: 1, ..case }.op(0.0)(inputs, ops)
        };
        let (expected, of_copies) = run(&case.inputs(), &repeated, Ops::Fused);
        let (got, gradients) = run(&case.inputs(), &case.op(0.0), Ops::Fused);
        close(&name(&case), &got, &wide(&expected), of_products(ROUNDING));
        for (got, expected) in gradients.iter().zip(&of_copies) {
            close(&name(&case), got, &wide(expected), of_products(ROUNDING));
        }
    }
}

#[test]
fn several_blocks_of_rows() {
    // A block has 96 rows, or 64 where there are more than 1,024 keys: 131 rows are two blocks, of
    // which the second has 35, 300 are four and 1,030 are 17. Rows of padding on the left that see
    // nothing lie in the first block. More than 1,536 keys have blocks of 32 rows.
    let long = [(1, 1, 1030, 3), (1, 1, 1541, 2)].into_iter().filter(|_| crate::on_cpu());
    for (batch, heads, seq, head_dim) in [(2, 2, 131, 8), (1, 1, 300, 17)].into_iter().chain(long) {
        let of = if seq < 1000 { cases } else { few };
        for mut case in of(batch, heads, seq, head_dim) {
            case.padding = case.padding.map(|padding| padding * 20);
            agrees_with_plain(&name(&case), &case.inputs(), &case.op(0.0), 1e-5);
        }
    }
}

/// On the CPU the operands of products are rounded to bf16 in a run of that type, and to nothing in
/// one of f16.
#[test]
fn operands_of_products_are_rounded_to_bf16() {
    if !crate::on_cpu() {
        return skip!("cpu", "on other devices than the CPU operands have the type of the inputs");
    }
    for (batch, heads, seq, head_dim) in [(1, 1, 1, 1), (2, 3, 7, 5), (1, 2, 131, 8), (1, 1, 300, 17)] {
        let shared = grouped([batch, heads, 2], seq, head_dim);
        for case in cases(batch, heads, seq, head_dim).into_iter().chain(shared) {
            let mut inputs = case.inputs();
            let values = inputs.iter_mut().flat_map(|input| &mut input.values);
            values.for_each(|x| *x = half::bf16::from_f32(*x).to_f32());
            let of = |dtype| run(&inputs, &case.op_in(dtype, 0.0), Ops::Fused);
            let [(exact, gradients), half, (rounded, of_rounded)] =
                [FloatDType::F32, FloatDType::F16, FloatDType::BF16].map(of);
            let name = name(&case);
            assert_eq!((&exact, &gradients), (&half.0, &half.1), "{name}: f16");
            // Weights and gradients of scores are rounded by up to 2^-8 of themselves, and so is
            // the gradient of the result; what is smaller than the largest by cancellation has the
            // error of the terms.
            close(&format!("{name}: value"), &rounded, &wide(&exact), 1.0 / 256.0);
            for (i, (rounded, exact)) in of_rounded.iter().zip(&gradients).enumerate() {
                close(&format!("{name}: gradient {i}"), rounded, &wide(exact), 4.0 / 256.0);
            }
            assert!(seq == 1 || of_rounded != gradients, "{name}: nothing was rounded");
        }
    }
}

#[test]
fn large_scores_do_not_overflow() {
    for case in [few(2, 2, 7, 5), few(1, 2, 101, 5)].concat() {
        let mut inputs = case.inputs();
        inputs.iter_mut().flat_map(|input| &mut input.values).for_each(|x| *x *= 30.0);
        // Scores of order 2000 are rounded to 1e-4, which their exponential carries over.
        agrees_with_plain(&name(&case), &inputs, &case.op(0.0), 1e-3);
    }
}

/// GPT-Neo does not scale its scores: 4 x 200 x 200 is beyond f16.
#[test]
fn scores_beyond_f16_are_computed_in_f32() {
    let device = crate::device();
    if !device.supports_dtype(FloatDType::F16) {
        return skip!("f16", "the device has no f16");
    }
    let tensor = |values: [f32; 8]| Tensor::<1>::from_floats(values, &device).reshape([2, 4]).cast(FloatDType::F16);
    for ops in [Ops::Plain, Ops::Fused] {
        let query = tensor([200.0; 8]);
        let key = tensor([200.0, 200.0, 200.0, 200.0, 200.0, 200.0, 200.0, 199.0]);
        let value = tensor([1.0, 2.0, 3.0, 4.0, 9.0, 9.0, 9.0, 9.0]);
        let mask = Mask::new(2, false, None, &device, ops);
        let attention =
            Attention { batch: 1, heads: 1, scale: 1.0, dropout: 0.0, rng: DropoutRng::Off, products: FloatDType::F32 };
        let result = attention.forward(Qkv::Separate { query, key, value }, &mask);
        assert_eq!(result.dtype(), FloatDType::F16.into());
        // The first key has a score that is larger by 200.
        assert_eq!(read(result.cast(FloatDType::F32)), [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0], "{ops:?}");
    }
}

/// Two of the three sequences have their scores at a time: for a device of little memory
/// (`FAKE_CUDA_MEMORY=64M`), since others have so many that this takes minutes.
#[test]
fn a_batch_of_more_scores_than_exist_at_a_time() {
    let Some(bytes) = kiln_models::ops::bytes_at_a_time(&crate::device()).filter(|bytes| *bytes <= 4 << 20) else {
        return skip!("little-memory", "the device has much memory: FAKE_CUDA_MEMORY=64M makes an emulated one small");
    };
    let (batch, seq) = (3, (bytes as f64 / size_of::<f32>() as f64 / 2.5).sqrt() as usize | 1);
    for (causal, padding) in [(true, None), (false, Some(3))] {
        let case = Case { batch, heads: 1, group: 1, seq, queries: seq, head_dim: 3, causal, padding, packed: false };
        let one_by_one = |inputs: Vec<Tensor<2>>, ops: Ops| {
            let one = |i: usize| {
                let part = inputs.iter().map(|input| input.clone().slice(i * seq..(i + 1) * seq)).collect();
                let padding = case.padding.map(|padding| padding + i as isize);
                Case { batch: 1, padding, ..case }.op(0.0)(part, ops)
            };
            Tensor::cat((0..batch).map(one).collect(), 0)
        };
        let (expected, gradients) = run(&case.inputs(), &one_by_one, Ops::Fused);
        let (got, of_batch) = run(&case.inputs(), &case.op(0.0), Ops::Fused);
        close(&name(&case), &got, &wide(&expected), of_products(1e-5));
        for (got, expected) in of_batch.iter().zip(&gradients) {
            close(&name(&case), got, &wide(expected), of_products(1e-5));
        }
    }
}

#[test]
fn dropout_has_one_mask_forward_and_backward() {
    let _alone = generator();
    for (seq, queries, group) in [(5, 5, 1), (5, 1, 1), (5, 5, 3), (13, 13, 3)] {
        dropout_of(seq, queries, group);
    }
}

/// With all scores equal and values that are the unit matrix, the result is the mask itself.
fn dropout_of(seq: usize, queries: usize, group: usize) {
    let (batch, heads, p, seed) = (2, 3, 0.4, 23);
    let (causal, padding, packed) = (false, None, false);
    let case = Case { batch, heads, group, seq, queries, head_dim: seq, causal, padding, packed };
    let rows = batch * seq;
    let zeros = |rows, width| Input { values: vec![0.0; rows * width], shape: [rows, width] };
    let width = case.kv_width();
    let unit = |i: usize| f32::from(u8::from((i / width) % seq == i % seq));
    let units = Input { values: (0..rows * width).map(unit).collect(), shape: [rows, width] };
    let op = case.op(p);
    let seeded = move |inputs: Vec<Tensor<2>>, ops: Ops| {
        crate::device().seed(seed);
        op(inputs, ops)
    };
    let device = crate::device();
    let probe = [zeros(batch * queries, case.width()), zeros(rows, width), units];
    let probe = probe.map(|input| tensor(&input, &device)).to_vec();
    let mask = read(seeded(probe, Ops::Fused)); // [batch, queries, heads, seq] / seq
    let factor = |head: usize, row: usize, key: usize| {
        let (sequence, head) = (head / heads, head % heads);
        let kept = mask[((sequence * queries + row) * heads + head) * seq + key] != 0.0;
        f64::from(u8::from(kept)) / (1.0 - p)
    };
    let kept = mask.iter().filter(|m| **m != 0.0).count() as f64 / mask.len() as f64;
    let three_deviations = 3.0 * (0.4 * 0.6 / mask.len() as f64).sqrt();
    assert!((kept - 0.6).abs() < three_deviations, "{kept} of {}", mask.len());
    let rounding = of_products(1e-6);
    assert!(mask.iter().all(|m| *m == 0.0 || (f64::from(*m) * seq as f64 * 0.6 - 1.0).abs() < rounding));
    for causal in [false, true].into_iter().filter(|causal| !causal || queries == seq) {
        let case = Case { causal, ..case };
        let op = case.op(p);
        let seeded = move |inputs: Vec<Tensor<2>>, ops: Ops| {
            crate::device().seed(seed);
            op(inputs, ops)
        };
        agrees_with_host("dropout", &case.inputs(), &seeded, &case.host(factor), of_products(ROUNDING));
    }
}

#[test]
fn narrow_operands_round_the_results_alone() {
    // bf16 and f16 round to 8 and 11 bits: half a unit in the last place of the result, and of the
    // gradient that comes in. On a GPU scores and weights are rounded too, to go through matrix
    // products.
    for (dtype, rounding) in [(FloatDType::BF16, 2f64.powi(-8)), (FloatDType::F16, 2f64.powi(-11))] {
        if !crate::device().supports_dtype(dtype) {
            continue; // WGSL has no bf16
        }
        let cases = if crate::on_cpu() { [cases(2, 3, 7, 4), cases(1, 2, 5, 5)].concat() } else { few(2, 3, 7, 5) };
        let cases = [cases, grouped([1, 2, 2], 5, 4), grouped([1, 1, 2], 13, 3)].concat();
        for case in cases {
            let mut inputs = case.inputs();
            // Numbers of 6 bits are themselves in both types.
            inputs.iter_mut().flat_map(|input| &mut input.values).for_each(|x| *x = (*x * 16.0).round() / 16.0);
            let op = case.op(0.0);
            let narrow = move |inputs: Vec<Tensor<2>>, ops: Ops| {
                let inputs = inputs.into_iter().map(|input| input.cast(dtype)).collect();
                let out = op(inputs, ops);
                assert_eq!(out.dtype(), dtype.into());
                out.cast(FloatDType::F32)
            };
            let tolerance = if crate::on_cpu() { 1.5 } else { 4.0 } * rounding;
            agrees_with_host(
                &format!("{dtype:?} {}", name(&case)),
                &inputs,
                &narrow,
                &case.host(|_, _, _| 1.0),
                tolerance,
            );
        }
    }
}

#[test]
fn a_mask_is_not_seen_where_it_does_not_belong() {
    // The last key of the last sequence must not reach any other sequence's rows, nor a number that
    // is none an earlier block.
    let no_number = crate::on_cpu().then(|| (101, vec![f32::NAN; 24]));
    for (seq, replaced) in [(7, noise(24, 77)), (101, noise(24, 77))].into_iter().chain(no_number) {
        let (causal, padding, packed) = (true, None, true);
        let case = Case { batch: 3, heads: 2, group: 1, seq, queries: seq, head_dim: 4, causal, padding, packed };
        let inputs = case.inputs();
        let (before, _) = run(&inputs, &case.op(0.0), Ops::Fused);
        let mut changed = inputs.clone();
        let last = changed[0].values.len() - 3 * case.width();
        changed[0].values[last..].copy_from_slice(&replaced);
        let (after, _) = run(&changed, &case.op(0.0), Ops::Fused);
        let rows = if replaced[0].is_nan() { seq - 96 } else { 1 };
        let same = before.len() - rows * case.width();
        close("earlier rows", &after[..same], &wide(&before[..same]), 0.0);
        assert_ne!(before[same..], after[same..]);
    }
}

/// A thread that has packed the keys of one call does not take them for those of another one of the
/// same sizes, in either direction.
#[test]
fn calls_of_one_size_have_their_own_keys() {
    let case = grouped([2, 1, 2], 31, 4)[0];
    let other = case.inputs().into_iter().map(|input| Input { values: noise(input.values.len(), 91), ..input });
    let calls = [case.inputs(), other.collect()];
    for inputs in calls.iter().cycle().take(4) {
        agrees_with_plain(&name(&case), inputs, &case.op(0.0), 1e-5);
    }
}

/// The gradients of the reference are the derivatives of its values.
#[test]
fn gradients_of_the_reference() {
    let factor = |head: usize, row: usize, key: usize| ((head * 7 + row * 5 + key * 3) % 4) as f64 / 2.0;
    for case in cases(2, 2, 3, 2).into_iter().chain(grouped([1, 2, 2], 3, 2)) {
        let mut values = case.inputs().iter().map(|input| wide(&input.values)).collect::<Vec<_>>();
        let dout = wide(&weights(case.batch * case.queries * case.width()));
        let (_, gradients) = case.in_f64(&values, factor, Some(&dout));
        let scalar = |values: &[Vec<f64>]| {
            let (out, _) = case.in_f64(values, factor, None);
            out.iter().zip(&dout).map(|(y, w)| y * w).sum::<f64>()
        };
        for (i, gradients) in gradients.iter().enumerate() {
            for (j, gradient) in gradients.iter().enumerate() {
                let x = values[i][j];
                values[i][j] = x + 1e-5;
                let above = scalar(&values);
                values[i][j] = x - 1e-5;
                let below = scalar(&values);
                values[i][j] = x;
                let expected = (above - below) / 2e-5;
                assert!((gradient - expected).abs() < 1e-8, "{}: {gradient} against {expected}", name(&case));
            }
        }
    }
}

/// The types of the kernels on tensor cores, and the rounding of a number in each.
const NARROW: [(FloatDType, f64); 2] = [(FloatDType::BF16, 1.0 / 256.0), (FloatDType::F16, 1.0 / 2048.0)];

/// Whether the device is one with tensor cores, in whose types sizes of a head of 32 to 128 have
/// kernels of their own.
fn has_tensor_cores() -> bool {
    matches!(std::env::var("KILN_TEST_DEVICE").as_deref(), Ok("cuda"))
}

/// The values of a call, and the gradients of its inputs.
type Found = (Vec<f32>, Vec<Vec<f32>>);

/// A call in `dtype`, whose inputs are numbers that the type holds: `(values, gradients)`, twice
/// the same to the last bit.
fn in_dtype(case: Case, dtype: FloatDType, dropout: f64, seed: u64) -> (Vec<Input>, Found) {
    let mut inputs = case.inputs();
    inputs.iter_mut().flat_map(|input| &mut input.values).for_each(|x| *x = (*x * 16.0).round() / 16.0);
    let op = case.op(dropout);
    let narrow = move |inputs: Vec<Tensor<2>>, ops: Ops| {
        if dropout > 0.0 {
            crate::device().seed(seed);
        }
        let out = op(inputs.into_iter().map(|input| input.cast(dtype)).collect(), ops);
        assert_eq!(out.dtype(), dtype.into());
        out.cast(FloatDType::F32)
    };
    let found = run(&inputs, &narrow, Ops::Fused);
    assert!(found == run(&inputs, &narrow, Ops::Fused), "{dtype:?} {}: two calls differ", name(&case));
    (inputs, found)
}

/// Values and gradients of `case` in `dtype` are those of f64 with dropout's factors `factor`.
///
/// The weights of a row, at most 1 and 1 in all, are rounded on their way into the second product,
/// the gradients of scores into the third, and the results and the incoming gradient once each:
/// four roundings of half a unit of the largest, and the sum of many smaller ones.
fn agrees_with_f64(
    case: Case,
    dtype: FloatDType,
    rounding: f64,
    dropout: f64,
    factor: impl Fn(usize, usize, usize) -> f64,
) {
    let (inputs, (out, gradients)) = in_dtype(case, dtype, dropout, 29);
    let values = inputs.iter().map(|input| wide(&input.values)).collect::<Vec<_>>();
    let (expected, of_inputs) = case.in_f64(&values, factor, Some(&wide(&weights(out.len()))));
    let what = format!("{dtype:?}, dropout {dropout}, {}", name(&case));
    close(&what, &out, &expected, 2.0 * rounding);
    for (i, (gradient, expected)) in gradients.iter().zip(&of_inputs).enumerate() {
        close(&format!("{what}: gradient {i}"), gradient, expected, 4.0 * rounding);
    }
}

fn flash(heads: usize, seq: usize, head_dim: usize, causal: bool, padding: Option<isize>) -> Case {
    Case { batch: 2, heads, group: 1, seq, queries: seq, head_dim, causal, padding, packed: true }
}

/// Tiles are of 64 queries and 64 or 32 keys: sizes around them, with padding that leaves some
/// queries without a key, on the left of a causal mask and where all is padding.
#[test]
fn tiles_of_any_number_of_tokens() {
    if !has_tensor_cores() {
        return skip!("cuda", "the kernels are for tensor cores of CUDA devices");
    }
    for seq in [1, 17, 63, 64, 65, 129] {
        for causal in [true, false] {
            for padding in [None, Some(seq as isize / 3), Some(-(seq as isize) / 3 - 1)] {
                agrees_with_f64(flash(1, seq, 64, causal, padding), FloatDType::BF16, 1.0 / 256.0, 0.0, |_, _, _| 1.0);
            }
        }
    }
}

#[test]
fn heads_of_every_size_on_tensor_cores() {
    if !has_tensor_cores() {
        return skip!("cuda", "the kernels are for tensor cores of CUDA devices");
    }
    let head_dims = kiln_models::ops::flash_head_dims(&crate::device());
    assert_eq!(head_dims, [32, 64, 80, 96, 128], "plans are told other sizes");
    for (i, &head_dim) in head_dims.iter().enumerate() {
        let (dtype, rounding) = NARROW[(i + 1) % 2];
        agrees_with_f64(flash(3, 67, head_dim, true, None), dtype, rounding, 0.0, |_, _, _| 1.0);
    }
}

/// Query, key and value apart: heads that share keys, and one query a sequence.
#[test]
fn query_key_and_value_apart_on_tensor_cores() {
    if !has_tensor_cores() {
        return skip!("cuda", "the kernels are for tensor cores of CUDA devices");
    }
    let [causal, full] = [true, false].map(|causal| Case { packed: false, ..flash(6, 70, 64, causal, None) });
    for case in [Case { group: 3, ..causal }, Case { group: 2, ..full }, Case { queries: 1, ..full }] {
        agrees_with_f64(case, FloatDType::BF16, 1.0 / 256.0, 0.0, |_, _, _| 1.0);
    }
}

/// The masks of dropout are those of the kernels for f32, which depend on row and column alone.
#[test]
fn dropout_on_tensor_cores_has_the_masks_of_f32() {
    if !has_tensor_cores() {
        return skip!("cuda", "the kernels are for tensor cores of CUDA devices");
    }
    let _alone = generator();
    let p = 0.1;
    for (seq, causal) in [(65, true), (129, false)] {
        let case = Case { packed: false, group: 2, ..flash(4, seq, 64, causal, None) };
        let (d, rows, kv_width) = (case.head_dim, case.batch * seq, case.kv_width());
        // With all scores equal a result is the sum of the values of the keys that are kept: those
        // of 64 keys are the rows of the unit matrix.
        let kept = (0..seq.div_ceil(d)).map(|part| {
            let unit = |i: usize| f32::from(u8::from((i / kv_width) % seq == part * d + i % d));
            let values = (0..rows * kv_width).map(unit).collect();
            let zeros = |width| Input { values: vec![0.0; rows * width], shape: [rows, width] };
            let probe = [zeros(case.width()), zeros(kv_width), Input { values, shape: [rows, kv_width] }];
            let probe = probe.map(|input| tensor(&input, &crate::device())).to_vec();
            crate::device().seed(29);
            read(Case { causal: false, ..case }.op(p)(probe, Ops::Fused))
        });
        let kept = kept.collect::<Vec<_>>();
        let factor = |head: usize, row: usize, key: usize| {
            let (sequence, head) = (head / case.heads, head % case.heads);
            let at = ((sequence * seq + row) * case.heads + head) * d + key % d;
            f64::from(u8::from(kept[key / d][at] != 0.0)) / (1.0 - p)
        };
        agrees_with_f64(case, FloatDType::BF16, 1.0 / 256.0, p, factor);
    }
}

/// A query that is a part of wider rows, which begin in the middle of 16 bytes.
#[test]
fn rows_that_are_not_aligned() {
    if !has_tensor_cores() {
        return skip!("cuda", "the kernels are for tensor cores of CUDA devices");
    }
    let case = Case { packed: false, ..flash(2, 33, 64, true, None) };
    let (inputs, (expected, gradients)) = in_dtype(case, FloatDType::BF16, 0.0, 0);
    let shifted = move |inputs: Vec<Tensor<2>>, ops: Ops| {
        let within = |x: Tensor<2>| {
            let [rows, width] = x.dims();
            let zeros = Tensor::zeros([rows, 1], &x.device());
            let wider = Tensor::cat(vec![zeros, x], 1).cast(FloatDType::BF16);
            wider.slice([0..rows, 1..width + 1])
        };
        case.op(0.0)(inputs.into_iter().map(within).collect(), ops).cast(FloatDType::F32)
    };
    let (got, of_inputs) = run(&inputs, &shifted, Ops::Fused);
    assert_eq!((got, of_inputs), (expected, gradients));
}

/// A long row, of some heads' worth of tiles, in both types.
#[test]
fn a_thousand_tokens_on_tensor_cores() {
    if !has_tensor_cores() {
        return skip!("cuda", "the kernels are for tensor cores of CUDA devices");
    }
    for (dtype, rounding) in NARROW {
        let case = Case { batch: 1, ..flash(1, 1000, 64, true, None) };
        agrees_with_f64(case, dtype, rounding, 0.0, |_, _, _| 1.0);
    }
}
