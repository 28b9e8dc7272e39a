//! Products of packed panels: what is packed when and by whom, and which block of the result is
//! whose task.

use std::cell::RefCell;
use std::sync::OnceLock;

use half::{bf16, f16};
use rayon::prelude::*;

use super::blocks::{Beside, Panels, Target, even};
use super::destination::{Destination, Finish, Output, Shared};
use super::matrix::{Factor, Matrix, Rounding};
use super::pack::{self, Buffer, Exact, F32_STEP, Part, Side, ToBf16, ToF16, View, Wide, has_avx512};
use super::units::{self, Unit};
use super::whole::{Kept, Whole};
use super::{amx, fma, tiles};

/// The kernel, and with it the form of the panels.
#[derive(Clone, Copy)]
pub(super) enum Method {
    /// Panels of f32.
    F32,
    /// Tiles of bf16.
    Tiles {
        kernel: tiles::Kernel,
        /// Whether it needs tiles to be configured.
        is_amx: bool,
    },
}

impl Method {
    /// The method for a product of `a` and `b`, on all `threads` or on one: that of the factor that
    /// is packed, if one is; none for the `gemm` crate's.
    ///
    /// # Panics
    /// Where the environment asks for a unit that is not permitted, which
    /// [`Ops::fused`](crate::Ops::fused) refuses.
    pub(super) fn of(a: Factor<'_>, b: Factor<'_>, rounding: Rounding, threads: bool) -> Option<Self> {
        if let Some(whole) = [a, b].into_iter().find_map(Factor::whole) {
            return Some(whole.method);
        }
        let unit = unit_of(a, b, rounding);
        let ((rows, inner), (_, cols)) = (a.size(), b.size());
        // In f32 the crate is faster where neither factor is packed, but for the gradient of a
        // weight with more rows than columns, such as a vocabulary's, and for a right factor that
        // lies transposed, whose packing takes it milliseconds however few rows there are.
        let is_tall_gradient = rows > cols && !inner_is_contiguous(a, Side::Left);
        let is_faster = threads && (is_tall_gradient || inner_is_contiguous(b, Side::Right));
        Self::on(unit).filter(|_| (rounding != Rounding::F32 || is_faster) && inner > 0)
    }

    /// The method of `unit`; none where it is the `gemm` crate's.
    pub(super) fn on(unit: Unit) -> Option<Self> {
        match unit {
            Unit::F32 => has_avx512().then_some(Self::F32),
            Unit::Avx512Bf16 | Unit::AmxBf16 => {
                Some(Self::Tiles { kernel: tiles::kernel(unit), is_amx: unit == Unit::AmxBf16 })
            }
        }
    }

    /// Whether its panels are made of all `factors`: tiles are not made of f16.
    pub(super) fn takes(self, factors: &[Factor<'_>]) -> bool {
        !self.is_of_tiles() || !factors.iter().any(|factor| matches!(factor, Factor::F16(_)))
    }

    fn is_of_tiles(self) -> bool {
        matches!(self, Self::Tiles { .. })
    }

    /// Rows and columns of a block of the result.
    pub(super) fn block(self) -> [usize; 2] {
        match self {
            Self::F32 => [fma::ROWS, fma::COLS],
            Self::Tiles { .. } => [pack::TILES; 2],
        }
    }

    /// How much of the inner dimension a step has.
    pub(super) fn step(self) -> usize {
        match self {
            Self::F32 => F32_STEP,
            Self::Tiles { .. } => pack::TILE_STEP,
        }
    }

    /// Bytes of a step of a panel of each factor.
    pub(super) fn bytes(self) -> [usize; 2] {
        match self {
            Self::F32 => fma::STEP_BYTES,
            Self::Tiles { .. } => [pack::TILE_BYTES; 2],
        }
    }

    /// Steps that a task packs of its own factor at once: at most so many.
    fn steps_at_once(self) -> usize {
        match self {
            Self::F32 => fma::INNER,
            Self::Tiles { .. } => usize::MAX,
        }
    }

    /// # Safety
    /// `part` must lie within `factor`, its panels within the memory at `to`, which starts at a
    /// cache line.
    unsafe fn pack(self, factor: Factor<'_>, rounding: Rounding, side: Side, part: Part, to: *mut u8, stride: usize) {
        // SAFETY: the caller's promise; the method's instructions have been asked of the CPU.
        unsafe {
            match (self, factor, rounding) {
                (Self::F32, Factor::F32(x), Rounding::F32) => wide::<Exact>(view(x, side), side, part, to, stride),
                (Self::F32, Factor::F32(x), Rounding::Bf16) => wide::<ToBf16>(view(x, side), side, part, to, stride),
                (Self::F32, Factor::F32(x), Rounding::F16) => wide::<ToF16>(view(x, side), side, part, to, stride),
                (Self::F32, Factor::Bf16(x), _) => wide::<bf16>(view(x, side), side, part, to, stride),
                (Self::F32, Factor::F16(x), _) => wide::<f16>(view(x, side), side, part, to, stride),
                (Self::Tiles { .. }, Factor::F32(x), _) => pack::pack_tiles(view(x, side), side, part, to, stride),
                (Self::Tiles { .. }, Factor::Bf16(x), _) => pack::pack_tiles(view(x, side), side, part, to, stride),
                (Self::Tiles { .. }, Factor::F16(_), _) => unreachable!("`Method::of` gives f16 panels of f32"),
                (_, Factor::Packed(_), _) => unreachable!("`multiply` takes whole panels as they are"),
            }
        }
    }

    /// # Safety
    /// The panels must have `steps` steps, the blocks of the target that they give must be this
    /// call's alone, and the method must have been asked of the CPU. The panels of `beside` must be
    /// of factors with as many rows and columns as the target.
    unsafe fn run(self, target: &Target, [a, b]: [Panels; 2], steps: usize, is_first: bool, beside: Option<Beside>) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::F32 => fma::run(target, a, b, steps, is_first, beside),
                Self::Tiles { kernel, is_amx } => {
                    let _tiles = is_amx.then(|| amx::Tiles::configured());
                    tiles::run(kernel, target, a, b, steps, is_first, beside);
                }
            }
        }
    }

    /// The product of `a` and `b` over all steps of the inner dimension, by tiles, with each block
    /// given to `finish`.
    ///
    /// # Safety
    /// The panels must have `steps` steps, at least one, and the method must have been asked of the
    /// CPU.
    unsafe fn finish(self, size: (usize, usize), a: Panels, b: Panels, steps: usize, finish: &Finish<'_>) {
        let Self::Tiles { kernel, is_amx } = self else { unreachable!("`finished` is called for tiles") };
        // SAFETY: the caller's promise.
        unsafe {
            let _tiles = is_amx.then(|| amx::Tiles::configured());
            tiles::finish(kernel, size, a, b, steps, finish);
        }
    }
}

/// The unit that multiplies `a` and `b`, of which neither is packed.
///
/// # Panics
/// Where the environment asks for a unit that is not permitted, which
/// [`Ops::fused`](crate::Ops::fused) refuses.
pub(super) fn unit_of(a: Factor<'_>, b: Factor<'_>, rounding: Rounding) -> Unit {
    let is_f16 = |factor| matches!(factor, Factor::F16(_));
    match rounding {
        Rounding::Bf16 if !is_f16(a) && !is_f16(b) => units::unit().unwrap_or_else(|error| panic!("{error}")),
        _ => Unit::F32,
    }
}

/// Whether elements that follow each other in the inner dimension are neighbours in memory, and not
/// those of the outer one.
pub(super) fn inner_is_contiguous(factor: Factor<'_>, side: Side) -> bool {
    let outer_step = match factor {
        Factor::F32(x) => view(x, side).outer_step,
        Factor::Bf16(x) => view(x, side).outer_step,
        Factor::F16(x) => view(x, side).outer_step,
        Factor::Packed(_) => return true,
    };
    outer_step != 1
}

pub(super) fn view<T>(matrix: Matrix<'_, T>, side: Side) -> View<T> {
    let Matrix { data, rows, cols, row_stride, col_stride } = matrix;
    let at = data.as_ptr();
    match side {
        Side::Left => View { at, outer: rows, outer_step: row_stride, inner_step: col_stride },
        Side::Right => View { at, outer: cols, outer_step: col_stride, inner_step: row_stride },
    }
}

/// # Safety
/// `part` must lie within `view`, its panels within the memory at `to`; and the CPU must have
/// AVX-512 (F and BW).
unsafe fn wide<E: Wide>(view: View<E::Of>, side: Side, part: Part, to: *mut u8, stride: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match side {
            Side::Left => pack::pack_f32::<E, { fma::ROWS }>(view, part, to, stride),
            Side::Right => pack::pack_f32::<E, { fma::COLS }>(view, part, to, stride),
        }
    }
}

thread_local! {
    /// The panels that a thread packs for its own task.
    static OWN: RefCell<Buffer> = const { RefCell::new(Buffer::new()) };
    /// The panels that all tasks of a product share, kept by the thread that calls it.
    static SHARED: RefCell<Buffer> = const { RefCell::new(Buffer::new()) };
    /// The panels of a left factor of several products, kept by the thread that calls for them.
    static LEFT: RefCell<Buffer> = const { RefCell::new(Buffer::new()) };
    /// The panels of both factors of a product that is added to another one.
    static BESIDE: RefCell<[Buffer; 2]> = const { RefCell::new([Buffer::new(), Buffer::new()]) };
}

/// Bytes that one task packs at once, at most: a part of the second-level cache.
const OWN_BYTES: usize = 768 << 10;
/// Bytes that are packed for all tasks at once, about.
const SHARED_BYTES: usize = 4 << 20;
/// Bytes of a left factor that is packed for several products at once, at most: they stay with the
/// thread.
const LEFT_BYTES: usize = 32 << 20;
/// Rows, or columns, of a task, at most.
const TASK: usize = 528;

/// Calls `f` for each number below `n`, over all threads if it is `parallel`.
fn for_each(parallel: bool, n: usize, f: impl Fn(usize) + Send + Sync) {
    if parallel { (0..n).into_par_iter().with_max_len(1).for_each(f) } else { (0..n).for_each(f) }
}

/// `a b` to `out`, over all threads if it is `parallel`, and to that the product of the factors
/// `beside`.
///
/// # Safety
/// The rows of the product at `out` must be valid for writing and accessed by nobody else
/// meanwhile; for [`Output::Add`] they must be initialised. `method` must have been asked of the
/// CPU. The inner dimension must not be 0. The product `beside` must be of the size of `a b`.
pub(super) unsafe fn multiply(
    method: Method,
    out: Destination,
    [a, b]: [Factor<'_>; 2],
    into: Output<'_>,
    beside: Option<[Factor<'_>; 2]>,
    rounding: Rounding,
    parallel: bool,
) {
    let packed = beside.map(|[c, d]| {
        let [left, right] = BESIDE.replace([Buffer::new(), Buffer::new()]);
        // SAFETY (both): the caller's promise.
        let left = unsafe { whole(method, c, rounding, Side::Left, left, parallel) };
        [left, unsafe { whole(method, d, rounding, Side::Right, right, parallel) }]
    });
    let beside = packed.as_ref().map(|[a, b]| {
        let [a, b] = [a.whole(), b.whole()];
        Beside { a: a.panels(), b: b.panels(), steps: a.steps() }
    });
    let ((rows, inner), (_, cols)) = (a.size(), b.size());
    let block = method.block();
    let mut bias = Vec::new();
    if let Output::Bias(values) = into {
        bias.extend_from_slice(values);
        bias.resize(cols.next_multiple_of(block[1]), 0.0);
    }
    let bias = if bias.is_empty() { std::ptr::null() } else { bias.as_ptr() };
    let target = Target { out, rows, cols, add: matches!(into, Output::Add), bias };
    let cut = Cut::new(method, a, b, parallel);
    let steps = inner.div_ceil(method.step());
    let piece = match cut.whole(cut.shared) {
        Some(_) => steps,
        None => even(steps, (SHARED_BYTES / (cut.panels[cut.shared] * method.bytes()[cut.shared])).max(fma::INNER)),
    };
    let at_once = even(piece, method.steps_at_once().min((OWN_BYTES / (cut.width * method.bytes()[cut.own])).max(1)));
    // SAFETY: the caller's promise; every task has its own rows or columns of the result, and the
    // first steps write all of it.
    unsafe {
        cut.run(rounding, steps, piece, at_once, |a, b, (t0, t1)| {
            method.run(&target, [a, b], t1 - t0, t0 == 0, beside.filter(|_| t1 == steps));
        });
    }
    if let Some(packed) = packed {
        BESIDE.set(packed.map(Kept::into_memory));
    }
}

/// `a b`, of which each block is given to `finish`, over all threads if it is `parallel`. No sum is
/// stored before it is complete.
///
/// # Safety
/// `method`, which is of tiles, must have been asked of the CPU. The inner dimension must not be 0.
pub(super) unsafe fn finished(
    method: Method,
    a: Factor<'_>,
    b: Factor<'_>,
    rounding: Rounding,
    parallel: bool,
    finish: &Finish<'_>,
) {
    let ((rows, inner), (_, cols)) = (a.size(), b.size());
    let mut cut = Cut::new(method, a, b, parallel);
    let steps = inner.div_ceil(method.step());
    cut.narrow((OWN_BYTES / (steps * method.bytes()[cut.own])).max(1));
    // SAFETY: the caller's promise; the steps are all that there are.
    unsafe { cut.run(rounding, steps, steps, steps, |a, b, _| method.finish((rows, cols), a, b, steps, finish)) };
}

/// How a product is divided: the factor with the larger outer dimension is cut into tasks, each of
/// which packs its own part; the other one is packed before, by all threads, whole or in pieces of
/// the inner dimension.
struct Cut<'a> {
    method: Method,
    factors: [(Factor<'a>, Side); 2],
    /// Panels of each factor.
    panels: [usize; 2],
    /// Which factor is cut, and which is shared.
    own: usize,
    shared: usize,
    /// Panels of a task.
    width: usize,
    parallel: bool,
}

impl<'a> Cut<'a> {
    fn new(method: Method, a: Factor<'a>, b: Factor<'a>, parallel: bool) -> Self {
        let ((rows, _), (_, cols), block) = (a.size(), b.size(), method.block());
        let panels = [rows.div_ceil(block[0]), cols.div_ceil(block[1])];
        for (factor, side) in [(a, Side::Left), (b, Side::Right)] {
            let is_right =
                factor.whole().is_none_or(|it| it.side == side && it.method.is_of_tiles() == method.is_of_tiles());
            assert!(is_right, "packed panels of the other factor or of another method");
        }
        let (own, shared) = if rows >= cols { (0, 1) } else { (1, 0) };
        let mut cut =
            Self { method, factors: [(a, Side::Left), (b, Side::Right)], panels, own, shared, width: 0, parallel };
        cut.narrow(TASK / block[own]);
        cut
    }

    /// Gives each task `most` panels at most.
    fn narrow(&mut self, most: usize) {
        let threads = if self.parallel { rayon::current_num_threads() } else { 1 };
        let most = if self.width == 0 { most } else { most.min(self.width) };
        let tasks = self.panels[self.own].div_ceil(most).next_multiple_of(threads);
        self.width = self.panels[self.own].div_ceil(tasks);
    }

    /// The panels of a factor, where all of them are there.
    fn whole(&self, factor: usize) -> Option<Whole<'a>> {
        self.factors[factor].0.whole()
    }

    /// Calls `run` with panels of both factors for steps of the inner dimension, until all products
    /// of theirs were given: `piece` of the `steps` are packed for all tasks at once, `at_once` of
    /// these by a task for itself.
    ///
    /// # Safety
    /// The method must have been asked of the CPU, and the factors must have so many steps.
    unsafe fn run(
        &self,
        rounding: Rounding,
        steps: usize,
        piece: usize,
        at_once: usize,
        run: impl Fn(Panels, Panels, (usize, usize)) + Sync,
    ) {
        let Self { method, factors, panels, own, shared, width, parallel } = *self;
        let (step, bytes, inner) = (method.step(), method.bytes(), factors[0].0.size().1);
        // Taken, not borrowed: while this thread waits, it may run a task that calls for another
        // product.
        let mut buffer = SHARED.replace(Buffer::new());
        let (packed, stride) = match self.whole(shared) {
            Some(whole) => (whole.at, whole.stride),
            None => {
                let stride = piece * bytes[shared];
                (Shared(buffer.at_least(panels[shared] * stride)), stride)
            }
        };
        for s0 in (0..steps).step_by(piece) {
            let s1 = (s0 + piece).min(steps);
            let at = |s: usize| (s * step).min(inner);
            if self.whole(shared).is_none() {
                let (factor, side) = factors[shared];
                // SAFETY: the steps lie within the factor, and the buffer holds all its panels of
                // them.
                unsafe { pack_all(method, factor, rounding, side, (s0, s1), packed, stride, parallel) };
            }
            for_each(parallel, panels[own].div_ceil(width), |task| {
                let (p0, p1) = (task * width, ((task + 1) * width).min(panels[own]));
                let mut buffer = OWN.replace(Buffer::new());
                for t0 in (s0..s1).step_by(at_once) {
                    let t1 = (t0 + at_once).min(s1);
                    // SAFETY: the part lies within the factor and fits the buffer, as whole panels
                    // hold all steps.
                    let (at_own, stride_own) = unsafe {
                        match self.whole(own) {
                            Some(whole) => {
                                (whole.at.at(p0 * whole.stride + t0 * bytes[own]).cast_const(), whole.stride)
                            }
                            None => {
                                let stride_own = (t1 - t0) * bytes[own];
                                let to = buffer.at_least((p1 - p0) * stride_own);
                                let (factor, side) = factors[own];
                                let part = Part { panels: (p0, p1), inner: (at(t0), at(t1)) };
                                method.pack(factor, rounding, side, part, to, stride_own);
                                (to.cast_const(), stride_own)
                            }
                        }
                    };
                    let own_panels = Panels { at: at_own, stride: stride_own, first: p0, count: p1 - p0 };
                    // SAFETY: the steps are packed there.
                    let at = unsafe { packed.at((t0 - s0) * bytes[shared]).cast_const() };
                    let shared_panels = Panels { at, stride, first: 0, count: panels[shared] };
                    let (a, b) = if own == 0 { (own_panels, shared_panels) } else { (shared_panels, own_panels) };
                    run(a, b, (t0, t1));
                }
                OWN.set(buffer);
            });
        }
        SHARED.set(buffer);
    }
}

/// The steps from `s0` to `s1` of all panels of `factor` to `to`, where panels are `stride` bytes
/// apart, in blocks of about 128 KiB that are long in the direction in which the factor is
/// contiguous; by all threads if it is `parallel`.
///
/// # Safety
/// The steps must lie within `factor`, their panels within the memory at `to`, which starts at a
/// cache line; and `method` must have been asked of the CPU.
#[allow(clippy::too_many_arguments)]
unsafe fn pack_all(
    method: Method,
    factor: Factor<'_>,
    rounding: Rounding,
    side: Side,
    (s0, s1): (usize, usize),
    to: Shared<u8>,
    stride: usize,
    parallel: bool,
) {
    const BYTES: usize = 131_072;
    let (inner, outer) = match (side, factor.size()) {
        (Side::Left, (rows, inner)) => (inner, rows),
        (Side::Right, (inner, cols)) => (inner, cols),
    };
    let place = side.place();
    let (panels, step, bytes) = (outer.div_ceil(method.block()[place]), method.step(), method.bytes()[place]);
    let at = |s: usize| (s * step).min(inner);
    let (across, down) = if inner_is_contiguous(factor, side) {
        ((BYTES / ((s1 - s0) * bytes)).max(1), s1 - s0)
    } else {
        (32, (BYTES / (32 * bytes)).max(1))
    };
    let columns = panels.div_ceil(across);
    for_each(parallel, columns * (s1 - s0).div_ceil(down), |block| {
        let (p, s) = (block % columns * across, s0 + block / columns * down);
        let part = Part { panels: (p, (p + across).min(panels)), inner: (at(s), at((s + down).min(s1))) };
        // SAFETY: within the factor, and each block writes its own part of the memory.
        unsafe { method.pack(factor, rounding, side, part, to.at(p * stride + (s - s0) * bytes), stride) };
    });
}

/// All panels of `matrix` in `memory`, by all threads where it is large and `parallel` is set.
///
/// # Safety
/// `method` must have been asked of the CPU.
pub(super) unsafe fn whole(
    method: Method,
    matrix: Factor<'_>,
    rounding: Rounding,
    side: Side,
    memory: Buffer,
    parallel: bool,
) -> Kept {
    let (outer, inner) = match (side, matrix.size()) {
        (Side::Left, (rows, inner)) => (rows, inner),
        (Side::Right, (inner, cols)) => (cols, inner),
    };
    let kept = Kept::new(method, side, (outer, inner), memory);
    let parallel = parallel && inner * outer >= PACK_PARALLEL_FROM;
    let Whole { at, stride, .. } = kept.whole();
    // SAFETY: the memory holds all panels; the caller's promise.
    unsafe { pack_all(method, matrix, rounding, side, (0, kept.whole().steps()), at, stride, parallel) };
    kept
}

/// Calls `f` with `x`, the left factor of the products with each of `others`, as
/// [`with_left`](super::with_left) says.
pub(super) fn with_left<R>(
    x: Factor<'_>,
    others: [Factor<'_>; 2],
    rounding: Rounding,
    f: impl FnOnce(Factor<'_>) -> R,
) -> R {
    let of_others = others.map(|other| Method::of(x, other, rounding, true));
    let [Some(method), Some(other)] = of_others else { return f(x) };
    let (rows, inner) = x.size();
    let bytes = rows.div_ceil(method.block()[0]) * inner.div_ceil(method.step()) * method.bytes()[0];
    let is_packed = x.whole().is_some() || rows == 0;
    let is_like = method.is_of_tiles() == other.is_of_tiles();
    if rounding == Rounding::F32 || is_packed || !is_like || bytes > LEFT_BYTES {
        return f(x);
    }
    // SAFETY: the methods of products have been asked of the CPU.
    let kept = unsafe { whole(method, x, rounding, Side::Left, LEFT.replace(Buffer::new()), true) };
    let result = f(Factor::Packed(kept.whole()));
    LEFT.set(kept.into_memory());
    result
}

/// Elements from which a matrix is packed by all threads.
const PACK_PARALLEL_FROM: usize = 1 << 16;

/// The panels of `matrix` in `kept`, where they are put if they are not there, for products with
/// operands rounded to `rounding`; none where those have no tiles of bf16.
///
/// # Panics
/// For a matrix of another size than the one whose panels are there.
pub(super) fn packed<'a>(kept: &'a OnceLock<Kept>, matrix: Factor<'_>, rounding: Rounding) -> Option<Whole<'a>> {
    let ((inner, cols), is_narrow) = (matrix.size(), matches!(matrix, Factor::F32(_) | Factor::Bf16(_)));
    if rounding != Rounding::Bf16 || !is_narrow || inner == 0 || cols == 0 {
        return None;
    }
    let method = Method::on(units::unit().ok()?).filter(|method| method.is_of_tiles())?;
    let kept = match kept.get() {
        Some(kept) => kept,
        None => {
            // Not within `get_or_init`: a thread that waits for others may run a task that asks for
            // the same panels. SAFETY: the unit of the process is permitted.
            let made = unsafe { whole(method, matrix, rounding, Side::Right, Buffer::new(), true) };
            kept.get_or_init(|| made)
        }
    };
    assert_eq!(kept.whole().size(), matrix.size(), "packed panels of another matrix");
    Some(kept.whole())
}

/// All panels of `matrix`, the right factor of products on this thread with operands rounded to
/// `rounding`, in the memory of `kept`; none where such products have no panels.
///
/// # Panics
/// Where the environment asks for a unit that is not permitted, which
/// [`Ops::fused`](crate::Ops::fused) refuses.
pub(super) fn repacked(kept: Option<Kept>, matrix: Factor<'_>, rounding: Rounding) -> Option<Kept> {
    let (inner, cols) = matrix.size();
    let method = Method::on(unit_of(matrix, matrix, rounding)).filter(|_| inner > 0 && cols > 0)?;
    let memory = kept.map_or(Buffer::new(), Kept::into_memory);
    // SAFETY: the unit of the process is permitted, or the CPU has AVX-512.
    Some(unsafe { whole(method, matrix, rounding, Side::Right, memory, false) })
}

/// `x b` to `out` on this thread, of `x` as it is, where `b` has panels of f32, which a kernel
/// multiplies by factors as they lie in memory; whether it has. The sums are those of [`multiply`].
///
/// # Panics
/// For factors that do not fit, and as [`Matrix::assert_rows_in_fours`] does.
///
/// # Safety
/// The rows of the product at `out` must be valid for writing and accessed by nobody else
/// meanwhile; with `add` they must be initialised.
pub(super) unsafe fn multiply_as_it_lies(out: Destination, x: Matrix<'_>, b: Factor<'_>, add: bool) -> bool {
    let Some(panels) = b.whole().filter(|b| matches!(b.method, Method::F32) && b.side == Side::Right) else {
        return false;
    };
    let (inner, cols) = panels.size();
    assert_eq!(x.cols, inner, "inner dimensions of a product");
    let target = Target { out, rows: x.rows, cols, add, bias: std::ptr::null() };
    x.assert_rows_in_fours();
    // SAFETY: the caller's promise; the sizes have been checked, the rows of `x` among them, and
    // the panels of f32 say that the CPU has AVX-512.
    unsafe { fma::run_as_it_lies(&target, view(x, Side::Left), inner, panels.panels()) };
    true
}
