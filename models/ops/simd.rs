//! Vector arithmetic for the CPU kernels: functions compiled once per instruction set and chosen at
//! run time, an exponential, the normal distribution function, and sums and maxima of rows. No libm
//! call per element.
//!
//! The loops are plain Rust that the compiler vectorises; [`vectorised!`] compiles them for
//! AVX-512, for AVX2 with FMA, for NEON and for the baseline, and `pulp` picks one. Only the other
//! files of `ops` use this.

use std::sync::OnceLock;

/// Running sums and maxima are kept in this many lanes: two AVX-512 registers, which hides the
/// latency of an addition.
pub(super) const LANES: usize = 32;

/// The instruction set, looked up once.
pub(super) fn arch() -> pulp::Arch {
    static ARCH: OnceLock<pulp::Arch> = OnceLock::new();
    *ARCH.get_or_init(pulp::Arch::new)
}

/// Defines a function whose body is compiled for every instruction set. The body sees the constant
/// `FMA`: whether fused multiply-add is an instruction here. Where it is not, `f32::mul_add` would
/// be a libm call.
///
/// The call goes through a type of its own because a closure's `FnOnce` shim cannot be told to be
/// inlined, and a body that is not inlined is compiled for the baseline.
macro_rules! vectorised {
    ($(#[$attr:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        $crate::ops::simd::vectorised! { $(#[$attr])* $vis fn $name($($arg: $ty),*) -> () $body }
    };
    ($(#[$attr:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty $body:block) => {
        $(#[$attr])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name($($arg: $ty),*) -> $ret {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn body<const FMA: bool>($($arg: $ty),*) -> $ret $body
            struct Call<A>(A);
            impl pulp::WithSimd for Call<($($ty,)*)> {
                type Output = $ret;
                #[inline(always)]
                fn with_simd<S: pulp::Simd>(self, _: S) -> $ret {
                    let Call(($($arg,)*)) = self;
                    if S::IS_SCALAR { body::<false>($($arg),*) } else { body::<true>($($arg),*) }
                }
            }
            $crate::ops::simd::arch().dispatch(Call(($($arg,)*)))
        }
    };
}
pub(super) use vectorised;

/// `a * b + c`
#[inline(always)]
pub(super) fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// `e^x` within 2 units in the last place for `-87.3 <= x <= 88.3`; 0 below, `e^88.3` above, NaN
/// for NaN.
///
/// `x = n ln 2 + r` with `|r| <= ln(2) / 2`: a Taylor polynomial of degree 7 for `e^r` (its
/// remainder is below 6e-9) and `n` added to the exponent's bits. `ln 2` is split in two so that
/// the reduction does not round (Cody & Waite 1980).
#[inline(always)]
pub(super) fn exp<const FMA: bool>(x: f32) -> f32 {
    const LOWEST: f32 = -87.3;
    const HIGHEST: f32 = 88.3;
    /// Adding 1.5 * 2^23 rounds to a whole number, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let clamped = if x < LOWEST { LOWEST } else { x };
    let clamped = if clamped > HIGHEST { HIGHEST } else { clamped };
    let rounded = fma::<FMA>(clamped, std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = fma::<FMA>(n, -0.693_359_4, clamped);
    let r = fma::<FMA>(n, 2.121_944_4e-4, r);
    let mut p = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = fma::<FMA>(p, r, coefficient);
    }
    let power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    if x < LOWEST { 0.0 } else { p * power }
}

/// The standard normal distribution function and its density, `(P(X <= x), e^(-x^2 / 2) / sqrt(2
/// pi))`. The first is within 1e-6 relative of the truth while it is above 1e-30 (so `0.5 (1 +
/// erf(x / sqrt 2))` keeps its precision in the left tail).
///
/// `erfc(z) = e^(-z^2) t Q(t)` with `t = 1 / (1 + z / 2)`, the form of Abramowitz & Stegun 7.1.26;
/// `Q` is a minimax polynomial of degree 8 fitted on `0 <= z <= 14` with a relative error of 4.5e-8
/// (2e-7 in f32).
#[inline(always)]
pub(super) fn normal_cdf_pdf<const FMA: bool>(x: f32) -> (f32, f32) {
    const Q: [f32; 8] = [
        0.286_124_75,
        -0.490_407_85,
        0.281_734_82,
        -0.029_149_467,
        0.203_752_86,
        0.242_834_99,
        0.282_412_1,
        0.282_084_35,
    ];
    let magnitude = x.abs();
    let t = 1.0 / fma::<FMA>(magnitude, 0.5 * std::f32::consts::FRAC_1_SQRT_2, 1.0);
    let mut q = -0.059_386_633;
    for coefficient in Q {
        q = fma::<FMA>(q, t, coefficient);
    }
    let e = exp::<FMA>(-0.5 * x * x);
    let tail = 0.5 * e * (t * q);
    let cdf = if x < 0.0 { tail } else { 1.0 - tail };
    (cdf, e * 0.398_942_3)
}

/// Sum of `f` over `x`.
#[inline(always)]
pub(super) fn sum(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += f(*x);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += f(*x);
    }
    total(lanes)
}

/// Sum of `f` over the pairs of `x` and `y`, which are equally long.
#[inline(always)]
pub(super) fn sum_pairs(x: &[f32], y: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let (y_chunks, y_rest) = y.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for (chunk, y_chunk) in chunks.iter().zip(y_chunks) {
        for ((lane, x), y) in lanes.iter_mut().zip(chunk).zip(y_chunk) {
            *lane += f(*x, *y);
        }
    }
    for ((lane, x), y) in lanes.iter_mut().zip(rest).zip(y_rest) {
        *lane += f(*x, *y);
    }
    total(lanes)
}

/// The largest of `x`; the lowest finite number for none.
#[inline(always)]
pub(super) fn max(x: &[f32]) -> f32 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut lanes = [f32::MIN; LANES];
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = if *x > *lane { *x } else { *lane };
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = if *x > *lane { *x } else { *lane };
    }
    lanes.into_iter().fold(f32::MIN, |a, b| if b > a { b } else { a })
}

/// Replaces every `x` by `e^(x - shift)` and returns their sum.
#[inline(always)]
pub(super) fn exp_shifted<const FMA: bool>(x: &mut [f32], shift: f32) -> f32 {
    let (chunks, rest) = x.as_chunks_mut::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *x = exp::<FMA>(*x - shift);
            *lane += *x;
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *x = exp::<FMA>(*x - shift);
        *lane += *x;
    }
    total(lanes)
}

/// Sum of the lanes, pairwise.
#[inline(always)]
fn total(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    vectorised! {
        fn exps(x: &mut [f32]) {
            for x in x {
                *x = exp::<FMA>(*x);
            }
        }
    }

    vectorised! {
        fn sums(x: &[f32]) -> (f32, f32, f32) {
            (sum(x, |x| x * x), sum_pairs(x, x, |x, y| x * y), max(x))
        }
    }

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let inputs = (-87_299..88_300).map(|i| i as f32 * 1e-3).collect::<Vec<_>>();
        let mut outputs = inputs.clone();
        exps(&mut outputs);
        for (x, y) in inputs.iter().zip(&outputs) {
            let expected = f64::from(*x).exp();
            let off = (f64::from(*y) / expected - 1.0).abs();
            assert!(off < 2.4e-7, "exp({x}) = {y}, expected {expected}");
            assert!((f64::from(exp::<false>(*x)) / expected - 1.0).abs() < 3e-7, "without FMA, exp({x})");
        }
    }

    #[test]
    fn exp_at_the_ends() {
        let mut x = [-87.4, -1e30, f32::NEG_INFINITY, f32::MIN, 0.0, -0.0, f32::NAN, f32::INFINITY];
        exps(&mut x);
        assert_eq!(x[..6], [0.0, 0.0, 0.0, 0.0, 1.0, 1.0]);
        assert!(x[6].is_nan());
        assert!(x[7].is_finite() && x[7] > 1e38);
    }

    #[test]
    fn sums_and_maxima_of_any_length() {
        for n in [0, 1, 2, 31, 32, 33, 63, 64, 65, 127, 1009] {
            let x = (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.1).collect::<Vec<_>>();
            let expected = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>();
            let (a, b, largest) = sums(&x);
            // Sums of up to 1009 positive terms in 32 lanes: about 36 roundings of 6e-8 each.
            for value in [a, b] {
                assert!((f64::from(value) - expected).abs() <= 3e-6 * expected, "{n}: {value} against {expected}");
            }
            assert_eq!(largest, x.iter().copied().fold(f32::MIN, f32::max));
        }
    }
}
