//! The masks of the plain form on the CPU: element for element those of the fused kernels, from the
//! same counter ([`Keep`]), so that both forms of a model drop the same elements.

use rayon::prelude::*;

use super::{Keep, KeepRow};
use crate::ops::flex;
use crate::ops::simd::vectorised;

/// The numbers of the rows of a batch where the fused form does not compute every row in its place:
/// it leaves out padding, computes each packed document as a sequence, and in the last layer of a
/// classifier the first tokens alone. The plain form computes all rows in their places and gives
/// them these numbers.
#[derive(Debug, Clone)]
pub struct RowNumbers(Vec<Option<Number>>);

/// The number of a row.
#[derive(Debug, Clone, Copy)]
struct Number {
    /// The number of the first row of its sequence.
    start: usize,
    /// How many rows of its sequence have numbers.
    len: usize,
    /// How many of them come before it.
    index: usize,
}

impl RowNumbers {
    /// The rows of sequences of `lens` rows, one after the other, of which the fused form computes
    /// those for whose places among all rows `is_computed` is true.
    pub fn new(lens: impl IntoIterator<Item = usize>, is_computed: impl Fn(usize) -> bool) -> Self {
        let (mut numbers, mut start) = (Vec::new(), 0);
        for rows in lens {
            let places = numbers.len()..numbers.len() + rows;
            let len = places.clone().filter(|place| is_computed(*place)).count();
            let mut index = 0;
            for place in places {
                let computed = is_computed(place);
                numbers.push(computed.then_some(Number { start, len, index }));
                index += usize::from(computed);
            }
            start += len;
        }
        Self(numbers)
    }
}

/// The numbers of the rows of one layer.
#[derive(Debug, Clone, Copy)]
pub struct Numbered<'a> {
    /// The numbers of the queries of attention, and of the rows of every other operator.
    pub rows: &'a RowNumbers,
    /// The numbers of the keys of attention.
    pub keys: &'a RowNumbers,
}

/// The factors of a tensor of `shape`, row-major: rows `[n, features]`, or the weights of attention
/// `[batch, heads, queries, keys]`. A row without a number keeps its elements, unscaled.
pub(super) fn factors(keep: Keep, shape: &[usize], numbers: Option<Numbered<'_>>) -> Vec<f32> {
    let width = shape.last().map_or(1, |width| (*width).max(1));
    let columns = match (numbers, shape) {
        (Some(numbers), [_, _, _, _]) => {
            numbers.keys.0.iter().map(|key| key.map_or(0, |key| key.index as u32)).collect::<Vec<_>>()
        }
        _ => (0..width as u32).collect(),
    };
    // The number of a row, and the columns of its elements.
    let numbered = |row: usize| match (numbers, shape) {
        (Some(Numbered { rows, .. }), &[_, heads, queries, _]) => {
            let (sequence, head, query) = (row / (heads * queries), row / queries % heads, row % queries);
            let number = rows.0[sequence * queries + query];
            let number = number.map(|Number { start, len, index }| heads * start + head * len + index);
            (number, &columns[sequence * width..][..width])
        }
        (Some(Numbered { rows, .. }), _) => (rows.0[row].map(|number| number.start + number.index), &*columns),
        (None, _) => (Some(row), &*columns),
    };
    let mut factors = vec![1.0; shape.iter().product()];
    let block = flex::block_rows(width);
    factors.par_chunks_mut(block * width).enumerate().for_each(|(i, factors)| {
        for (row, factors) in factors.chunks_exact_mut(width).enumerate() {
            if let (Some(number), columns) = numbered(i * block + row) {
                fill(factors, columns, keep.row(number));
            }
        }
    });
    factors
}

/// Numbers from `-bound` to `bound` for a matrix of `shape`, row-major.
pub(super) fn uniform(keep: Keep, [rows, width]: [usize; 2], bound: f32) -> Vec<f32> {
    let mut numbers = vec![0.0; rows * width];
    let block = flex::block_rows(width);
    numbers.par_chunks_mut(block * width).enumerate().for_each(|(i, numbers)| {
        for (row, numbers) in numbers.chunks_exact_mut(width).enumerate() {
            spread(numbers, keep.row(i * block + row), bound);
        }
    });
    numbers
}

vectorised! {
    fn spread(numbers: &mut [f32], keep: KeepRow, bound: f32) {
        for (column, number) in (0..).zip(numbers) {
            *number = bound * keep.uniform(column);
        }
    }
}

vectorised! {
    fn fill(factors: &mut [f32], columns: &[u32], keep: KeepRow) {
        for (factor, column) in factors.iter_mut().zip(columns) {
            *factor = keep.factor(*column);
        }
    }
}
