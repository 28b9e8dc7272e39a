//! Kernels on many tensors in few launches: AdamW's update, the norm over all gradients, and the
//! sum of gradients over micro-batches. A launch takes as many tensors as the device binds buffers;
//! a cube works on a piece of one of them, which it finds by its number.
#![allow(unsafe_code)] // kernels are launched without bounds checks: each says why that is sound
#![allow(clippy::too_many_arguments)] // those of a kernel are its buffers
#![allow(clippy::len_zero)] // a `Sequence` has no `is_empty`

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata, backend_extension};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::{AdamWOp, Inputs, SAMPLED, State};
use crate::ops::cube::rows::cube_sum;
use crate::ops::cube::{Cube, FusedTensor, addresses, buffer, by_cube, element, empty, lanes, own, shaped};
use crate::ops::device::is_software;
use crate::ops::list::TensorList;

impl AdamWOp for Cube {
    fn update(inputs: Inputs<Self>) -> State<Self> {
        updated(inputs, false)
    }

    fn norm(tensors: TensorList<Self>) -> FusedTensor {
        <Self as UpdateKernels>::global_norm(tensors)
    }

    fn sample(tensors: TensorList<Self>) -> FusedTensor {
        <Self as UpdateKernels>::first_values(tensors)
    }
}

/// The parameters and moments of `inputs` after the update, in their own memory if `in_place` says
/// so.
pub(in crate::ops) fn updated(inputs: Inputs<Cube>, in_place: bool) -> State<Cube> {
    let Inputs { state, grads, scale, factors, kinds, copied } = inputs;
    let State { values, exp_avgs, exp_avg_sqs, copies } = state;
    let (values, exp_avgs, exp_avg_sqs, copies) =
        Cube::adamw(values, exp_avgs, exp_avg_sqs, copies, grads, scale, factors, kinds, copied, in_place);
    State { values, exp_avgs, exp_avg_sqs, copies }
}

/// Most tensors of a launch, however many buffers a device binds: a kernel holds the code of each,
/// and CUDA before 12.1 has 4 KiB for all arguments.
const MOST: usize = 64;

/// Most buffers of the tensors of a launch, for the same limit: a pointer of 8 bytes and a length
/// of 4 for each, and 12 bytes of numbers for each tensor.
const MOST_BUFFERS: usize = 4 * MOST;

/// Pieces of a norm at the most: one cube adds up their sums.
const MOST_PIECES: usize = 4096;

/// Some tensors by number.
type Buffers = Sequence<Box<[f32]>>;

/// How many tensors a launch takes that binds `buffers` of each and `others` besides.
fn at_once(x: &CubeTensor, buffers: usize, others: usize) -> usize {
    let bindings = x.client.properties().hardware.max_bindings as usize;
    (bindings.saturating_sub(others) / buffers).clamp(1, MOST.min(MOST_BUFFERS / buffers))
}

/// Which cubes of a launch work on which of its tensors.
struct Pieces {
    /// Elements of every tensor.
    sizes: SequenceArg<usize>,
    /// The first cube of every tensor.
    firsts: SequenceArg<usize>,
    cubes: usize,
}

impl Pieces {
    /// Pieces of `piece` elements.
    fn new(tensors: &[CubeTensor], piece: usize) -> Self {
        let (mut sizes, mut firsts, mut cubes) = (SequenceArg::new(), SequenceArg::new(), 0);
        for tensor in tensors {
            let size = tensor.shape().num_elements();
            sizes.push(size);
            firsts.push(cubes);
            cubes += size.div_ceil(piece);
        }
        Self { sizes, firsts, cubes }
    }
}

fn buffers(tensors: &[CubeTensor]) -> SequenceArg<Box<[f32]>> {
    tensors.iter().map(buffer).collect()
}

/// The tensors of `all` at `places`.
fn at(all: &[CubeTensor], places: &[usize]) -> Vec<CubeTensor> {
    places.iter().map(|place| all[*place].clone()).collect()
}

/// Units of a cube, and elements that each of them takes.
#[derive(Clone, Copy)]
struct Shape {
    units: usize,
    each: usize,
}

impl Shape {
    /// For element-wise work on `tensors`.
    fn new(tensors: &[CubeTensor]) -> Self {
        let x = &tensors[0];
        // A software device masks what a cube does not do instead of jumping over it, so every cube
        // goes through the code of every tensor: once, where a unit's own elements take hundreds of
        // rounds.
        if is_software(&x.device) {
            return Self { units: lanes(x), each: 512 };
        }
        let largest = tensors.iter().map(|tensor| tensor.shape().num_elements()).max().unwrap_or(1);
        let each = 16;
        Self { units: CubeDim::new(&x.client, largest.div_ceil(each)).num_elems() as usize, each }
    }
}

/// The kernels, as operations of a backend.
#[backend_extension(Cube, Fusion)]
pub(in crate::ops) trait UpdateKernels: Backend {
    /// `(values, exp_avgs, exp_avg_sqs, copies)` after an update, in their own memory if `in_place`
    /// says so or nobody else holds them; `scale [1]`, `factors [kinds * 8]`. `copies` are the
    /// values for which `copied` says so, rounded to their type.
    #[fusion(meta = |values, m, v, copies, _grads, _scale, _factors, _kinds, _copied, _in_place| {
        (values.clone(), m.clone(), v.clone(), copies.clone())
    })]
    fn adamw(
        #[extension_type] values: TensorList<Self>,
        #[extension_type] exp_avgs: TensorList<Self>,
        #[extension_type] exp_avg_sqs: TensorList<Self>,
        #[extension_type] copies: TensorList<Self>,
        #[extension_type] grads: TensorList<Self>,
        scale: FloatTensor<Self>,
        factors: FloatTensor<Self>,
        kinds: Vec<usize>,
        copied: Vec<bool>,
        in_place: bool,
    ) -> (TensorList<Self>, TensorList<Self>, TensorList<Self>, TensorList<Self>);

    /// The norm over all elements of all `tensors`, `[1]`.
    #[fusion(meta = |tensors| shaped(&tensors[0], [1]))]
    fn global_norm(#[extension_type] tensors: TensorList<Self>) -> FloatTensor<Self>;

    /// The first [`SAMPLED`] elements of every tensor, one after another; 0 for those that a tensor
    /// does not have.
    #[fusion(meta = |tensors| shaped(&tensors[0], [tensors.len() * SAMPLED]))]
    fn first_values(#[extension_type] tensors: TensorList<Self>) -> FloatTensor<Self>;

    /// `sums * by[0] + values * by[1]` in the memory of `sums`; `by [2]`.
    #[fusion(meta = |sums, _values, _by| sums.clone())]
    fn accumulate(
        #[extension_type] sums: TensorList<Self>,
        #[extension_type] values: TensorList<Self>,
        by: FloatTensor<Self>,
    ) -> TensorList<Self>;
}

impl UpdateKernels for CubeBackend {
    fn adamw(
        values: TensorList<Self>,
        exp_avgs: TensorList<Self>,
        exp_avg_sqs: TensorList<Self>,
        copies: TensorList<Self>,
        grads: TensorList<Self>,
        scale: CubeTensor,
        factors: CubeTensor,
        kinds: Vec<usize>,
        copied: Vec<bool>,
        in_place: bool,
    ) -> (TensorList<Self>, TensorList<Self>, TensorList<Self>, TensorList<Self>) {
        let (scale, factors) = (into_contiguous(scale), into_contiguous(factors));
        let grads = grads.0.into_iter().map(into_contiguous).collect::<Vec<_>>();
        let [values, exp_avgs, exp_avg_sqs] = [values, exp_avgs, exp_avg_sqs]
            .map(|tensors| if in_place { tensors.0 } else { tensors.0.into_iter().map(own).collect() });
        // Nothing of a copy is read.
        let own_copy = |copy: CubeTensor| {
            if in_place || copy.is_contiguous() && copy.can_mut() { copy } else { empty(&copy, copy.shape()) }
        };
        let copies = copies.0.into_iter().map(own_copy).collect::<Vec<_>>();
        assert!(values.iter().chain(&copies).all(CubeTensor::is_contiguous), "weights and copies are row-major");
        let Shape { units, each } = Shape::new(&values);
        let (with, without): (Vec<usize>, Vec<usize>) = (0..values.len()).partition(|place| copied[*place]);
        // The scale, the factors, and what the kernel is told of sizes.
        let [most_with, most_without] = [5, 4].map(|buffers| at_once(&scale, buffers, 3));
        let all_copies = &copies;
        let with = with.chunks(most_with).zip(copies.chunks(most_with));
        let without = without.chunks(most_without).map(|places| (places, &all_copies[..0]));
        for (places, copies) in with.chain(without) {
            let [values, exp_avgs, exp_avg_sqs, grads] =
                [&values, &exp_avgs, &exp_avg_sqs, &grads].map(|all| at(all, places));
            let Pieces { sizes, firsts, cubes } = Pieces::new(&values, units * each);
            let (count, dim) = by_cube(&scale, cubes, units);
            // SAFETY: a value, its moments, its gradient and its copy have the same number of
            // elements, row-major, and a unit touches those below it; `factors` has eight elements
            // for every kind.
            unsafe {
                update_each::launch_unchecked(
                    &scale.client,
                    count,
                    dim,
                    addresses(values.iter().chain(&grads).chain(copies)),
                    buffers(&values),
                    copies.iter().map(buffer).collect(),
                    buffers(&exp_avgs),
                    buffers(&exp_avg_sqs),
                    buffers(&grads),
                    buffer(&scale),
                    buffer(&factors),
                    sizes,
                    firsts,
                    places.iter().map(|place| kinds[*place]).collect(),
                    units,
                    each,
                    element(copies.first().unwrap_or(&scale)),
                );
            }
        }
        let (values, exp_avgs, exp_avg_sqs) = (TensorList(values), TensorList(exp_avgs), TensorList(exp_avg_sqs));
        (values, exp_avgs, exp_avg_sqs, TensorList(copies))
    }

    fn global_norm(tensors: TensorList<Self>) -> CubeTensor {
        let tensors = tensors.0.into_iter().map(into_contiguous).collect::<Vec<_>>();
        let lanes = lanes(&tensors[0]);
        let least = Shape::new(&tensors).each;
        let elements = tensors.iter().map(|tensor| tensor.shape().num_elements()).sum::<usize>();
        let each = elements.div_ceil(MOST_PIECES * lanes).max(least);
        let at_once = at_once(&tensors[0], 1, 2); // the sums, and what the kernel is told of sizes
        let pieces = Pieces::new(&tensors, lanes * each).cubes;
        let sums = empty(&tensors[0], [pieces]);
        let mut before = 0;
        for tensors in tensors.chunks(at_once) {
            let Pieces { sizes, firsts, cubes } = Pieces::new(tensors, lanes * each);
            let (count, dim) = by_cube(&sums, cubes, lanes);
            // SAFETY: units read below the size of a tensor, and `sums` has an element for every
            // piece.
            unsafe {
                squares_of_pieces::launch_unchecked(
                    &sums.client,
                    count,
                    dim,
                    addresses(tensors),
                    buffers(tensors),
                    buffer(&sums),
                    sizes,
                    firsts,
                    before,
                    cubes,
                    each,
                    lanes,
                );
            }
            before += cubes;
        }
        let norm = empty(&sums, [1]);
        let (count, dim) = by_cube(&sums, 1, lanes);
        // SAFETY: units read below `pieces`, which `sums` has, and one writes the one element of
        // `norm`.
        unsafe {
            root_of_sum::launch_unchecked(
                &sums.client,
                count,
                dim,
                addresses([&sums]),
                buffer(&sums),
                buffer(&norm),
                pieces,
                lanes,
            );
        }
        norm
    }

    fn first_values(tensors: TensorList<Self>) -> CubeTensor {
        let tensors = tensors.0.into_iter().map(into_contiguous).collect::<Vec<_>>();
        let sample = empty(&tensors[0], [tensors.len() * SAMPLED]);
        let at_once = at_once(&sample, 1, 2); // the sample, and what the kernel is told of sizes
        for (chunk, tensors) in tensors.chunks(at_once).enumerate() {
            let (count, dim) = by_cube(&sample, 1, SAMPLED);
            // SAFETY: a unit reads an element that its tensor has, and writes its own one of the
            // [`SAMPLED`] that `sample` has for that tensor.
            unsafe {
                first_of_each::launch_unchecked(
                    &sample.client,
                    count,
                    dim,
                    addresses(tensors),
                    buffers(tensors),
                    buffer(&sample),
                    tensors.iter().map(|tensor| tensor.shape().num_elements()).collect(),
                    chunk * at_once * SAMPLED,
                );
            }
        }
        sample
    }

    fn accumulate(sums: TensorList<Self>, values: TensorList<Self>, by: CubeTensor) -> TensorList<Self> {
        let (sums, by) = (sums.0, into_contiguous(by));
        let values = values.0.into_iter().map(into_contiguous).collect::<Vec<_>>();
        assert!(sums.iter().all(CubeTensor::is_contiguous), "sums are row-major");
        let Shape { units, each } = Shape::new(&sums);
        let at_once = at_once(&by, 2, 2); // the factors, and what the kernel is told of sizes
        for (sums, values) in sums.chunks(at_once).zip(values.chunks(at_once)) {
            let Pieces { sizes, firsts, cubes } = Pieces::new(sums, units * each);
            let (count, dim) = by_cube(&by, cubes, units);
            // SAFETY: a sum and its value have the same number of elements, row-major, and a unit
            // touches those below it.
            unsafe {
                accumulate_each::launch_unchecked(
                    &by.client,
                    count,
                    dim,
                    addresses(sums.iter().chain(values)),
                    buffers(sums),
                    buffers(values),
                    buffer(&by),
                    sizes,
                    firsts,
                    units,
                    each,
                );
            }
        }
        TensorList(sums)
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn update_each<C: Float>(
    values: &mut Buffers,
    copies: &mut Sequence<Box<[C]>>,
    exp_avgs: &mut Buffers,
    exp_avg_sqs: &mut Buffers,
    grads: &Buffers,
    scale: &[f32],
    factors: &[f32],
    sizes: &Sequence<usize>,
    firsts: &Sequence<usize>,
    kinds: &Sequence<usize>,
    #[comptime] units: usize,
    #[comptime] each: usize,
    #[define(C)] _of_copies: ElemType,
) {
    let piece = comptime!(units * each);
    let has_copies = comptime!(copies.len() > 0);
    #[unroll]
    for t in 0..values.len() {
        let (size, first) = (sizes[t], firsts[t]);
        if CUBE_POS >= first && CUBE_POS < first + size.div_ceil(piece) {
            let by = kinds[t] * 8;
            let (keep, root, epsilon, rate) = (factors[by], factors[by + 5], factors[by + 6], factors[by + 7]);
            let (beta1, rest1, beta2, rest2) = (factors[by + 1], factors[by + 2], factors[by + 3], factors[by + 4]);
            let start = (CUBE_POS - first) * piece + UNIT_POS as usize;
            for k in 0..each {
                let i = start + k * units;
                if i < size {
                    let grad = grads[t][i] * scale[0];
                    let m = exp_avgs[t][i] * beta1 + grad * rest1;
                    let v = exp_avg_sqs[t][i] * beta2 + grad * grad * rest2;
                    exp_avgs.index_mut(t)[i] = m;
                    exp_avg_sqs.index_mut(t)[i] = v;
                    let value = values[t][i] * keep - m / (v.sqrt() * root + epsilon) * rate;
                    values.index_mut(t)[i] = value;
                    if comptime!(has_copies) {
                        copies.index_mut(t)[i] = C::cast_from(value);
                    }
                }
            }
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn squares_of_pieces(
    tensors: &Buffers,
    sums: &mut [f32],
    sizes: &Sequence<usize>,
    firsts: &Sequence<usize>,
    before: usize,
    cubes: usize,
    each: usize,
    #[comptime] lanes: usize,
) {
    let mut scratch = Shared::<[f32]>::new_slice(lanes);
    let piece = each * lanes;
    let mut sum = 0.0f32;
    #[unroll]
    for t in 0..tensors.len() {
        let (size, first) = (sizes[t], firsts[t]);
        if CUBE_POS >= first && CUBE_POS < first + size.div_ceil(piece) {
            let start = (CUBE_POS - first) * piece;
            let end = min(start + piece, size);
            let mut i = start + UNIT_POS as usize;
            while i < end {
                let value = tensors[t][i];
                sum += value * value;
                i += lanes;
            }
        }
    }
    let sum = cube_sum(sum, &mut scratch, lanes);
    if UNIT_POS == 0 && CUBE_POS < cubes {
        sums[before + CUBE_POS] = sum;
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn first_of_each(tensors: &Buffers, sample: &mut [f32], sizes: &Sequence<usize>, before: usize) {
    let unit = UNIT_POS as usize;
    if CUBE_POS > 0 {
        terminate!();
    }
    #[unroll]
    for t in 0..tensors.len() {
        let mut value = 0.0f32;
        if unit < sizes[t] {
            value = tensors[t][unit];
        }
        sample[before + t * SAMPLED + unit] = value;
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn root_of_sum(sums: &[f32], norm: &mut [f32], n: usize, #[comptime] lanes: usize) {
    let mut scratch = Shared::<[f32]>::new_slice(lanes);
    let mut sum = 0.0f32;
    let mut i = UNIT_POS as usize;
    while i < n {
        sum += sums[i];
        i += lanes;
    }
    let sum = cube_sum(sum, &mut scratch, lanes);
    if UNIT_POS == 0 && CUBE_POS == 0 {
        norm[0] = sum.sqrt();
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn accumulate_each(
    sums: &mut Buffers,
    values: &Buffers,
    by: &[f32],
    sizes: &Sequence<usize>,
    firsts: &Sequence<usize>,
    #[comptime] units: usize,
    #[comptime] each: usize,
) {
    let piece = comptime!(units * each);
    #[unroll]
    for t in 0..sums.len() {
        let (size, first) = (sizes[t], firsts[t]);
        if CUBE_POS >= first && CUBE_POS < first + size.div_ceil(piece) {
            let start = (CUBE_POS - first) * piece + UNIT_POS as usize;
            for k in 0..each {
                let i = start + k * units;
                if i < size {
                    let old = select(by[0] != 0.0f32, sums[t][i] * by[0], 0.0f32);
                    sums.index_mut(t)[i] = select(by[1] != 0.0f32, old + values[t][i] * by[1], old);
                }
            }
        }
    }
}
