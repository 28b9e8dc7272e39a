//! Which instructions multiply bf16 operands on this CPU, chosen once in a process.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use burn::tensor::FloatDType;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The environment variable that names a lower unit than the best one: for comparisons and tests.
pub const VARIABLE: &str = "KILN_CPU_PRODUCTS";

/// The instructions that multiply bf16 operands, the slowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Products in f32 of operands that were rounded to bf16.
    F32,
    /// `VDPBF16PS` of AVX512_BF16: pairs of products, sums in f32.
    Avx512Bf16,
    /// `TDPBF16PS` of AMX: products of tiles of 16 x 32 and 32 x 16, sums in f32.
    AmxBf16,
}

impl Unit {
    const ALL: [Self; 3] = [Self::AmxBf16, Self::Avx512Bf16, Self::F32];

    /// The name in [`VARIABLE`] and in plans.
    pub fn name(self) -> &'static str {
        match self {
            Self::AmxBf16 => "amx-bf16",
            Self::Avx512Bf16 => "avx512-bf16",
            Self::F32 => "f32",
        }
    }

    /// Whether bf16 operands are multiplied faster than f32 ones.
    pub fn is_faster_than_f32(self) -> bool {
        self != Self::F32
    }
}

/// The unit and its number of threads, for plans: `amx-bf16: 2 threads`.
impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads = rayon::current_num_threads();
        write!(f, "{}: {threads} thread{}", self.name(), if threads == 1 { "" } else { "s" })
    }
}

impl FromStr for Unit {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|unit| unit.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Error::Environment(format!("{VARIABLE}={name}: expected one of {names}; unset it for the fastest"))
        })
    }
}

/// The unit of this process: the fastest that the CPU has and the operating system permits, or the
/// lower one that `KILN_CPU_PRODUCTS` names. `avx512-bf16` is chosen where products of some
/// microseconds have shown that it is faster than f32, which it is not on every CPU that has it.
///
/// # Errors
/// A variable that names no unit, or one that is not permitted here.
pub fn unit() -> Result<Unit> {
    chosen().map(|(unit, _)| unit)
}

/// The instructions for bf16 that this CPU has and that were measured to be no faster than f32, so
/// that [`unit()`] is f32; none where the CPU has none, and where `KILN_CPU_PRODUCTS` has chosen.
///
/// # Errors
/// A `KILN_CPU_PRODUCTS` that names no unit, or one that is not permitted here.
pub fn slower_unit() -> Result<Option<Unit>> {
    chosen().map(|(_, slower)| slower)
}

fn chosen() -> Result<(Unit, Option<Unit>)> {
    static CHOSEN: OnceLock<std::result::Result<(Unit, Option<Unit>), String>> = OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| {
        let asked = std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
        let asked = asked.map(|name| name.to_string_lossy().parse::<Unit>()).transpose();
        asked.and_then(choose).map_err(|error| error.to_string())
    });
    chosen.clone().map_err(Error::Environment)
}

/// The unit where `asked` is the highest to use, and a faster one that was measured to be slower.
pub(super) fn choose(asked: Option<Unit>) -> Result<(Unit, Option<Unit>)> {
    let limit = asked.unwrap_or(Unit::AmxBf16);
    // No unit above the limit is looked at, so none is asked for of the operating system.
    let best =
        Unit::ALL.into_iter().filter(|unit| *unit <= limit).find(|unit| is_permitted(*unit)).unwrap_or(Unit::F32);
    match asked {
        Some(asked) if asked > best => Err(Error::Environment(format!(
            "{VARIABLE}={}: this CPU lacks it, or the operating system does not permit it; the highest here is {}: unset the \
             variable for the fastest",
            asked.name(),
            best.name()
        ))),
        Some(asked) => Ok((asked, None)),
        None if best == Unit::Avx512Bf16 && !avx512_bf16_pays() => Ok((Unit::F32, Some(best))),
        None => Ok((best, None)),
    }
}

/// Whether the CPU has the instructions of `unit` and the operating system permits them.
#[cfg(target_arch = "x86_64")]
fn is_permitted(unit: Unit) -> bool {
    match unit {
        Unit::F32 => true,
        Unit::Avx512Bf16 => {
            super::pack::has_avx512() && is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512bf16")
        }
        // Every CPU with AMX has AVX512_BF16, with which operands are packed.
        Unit::AmxBf16 => is_permitted(Unit::Avx512Bf16) && super::amx::is_permitted(),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn is_permitted(unit: Unit) -> bool {
    unit == Unit::F32
}

/// The instructions that multiply operands of `dtype` in fused operators on this CPU, and the most
/// that they reach on all threads together, in GFLOP/s: of operands that stay in the first-level
/// caches, nothing of them packed.
///
/// # Errors
/// A `KILN_CPU_PRODUCTS` that names no unit, or one that is not permitted here.
pub fn peak_gflops(dtype: FloatDType) -> Result<(Unit, f64)> {
    let unit = if dtype == FloatDType::BF16 { unit()? } else { Unit::F32 };
    // The threads begin a little apart, and two of them may share a core: the best window of some
    // has all of them at work.
    let rate = |_: rayon::BroadcastContext<'_>| operations_a_second(unit);
    let rates = (0..WINDOWS).map(|_| rayon::broadcast(rate).into_iter().sum::<f64>());
    Ok((unit, rates.fold(0.0, f64::max) / 1e9))
}

/// Windows of [`WINDOW`] in which [`peak_gflops`] counts products.
const WINDOWS: usize = 3;
const WINDOW: Duration = Duration::from_millis(20);

/// Operations a second of this thread over one [`WINDOW`].
fn operations_a_second(unit: Unit) -> f64 {
    let mut rate = 0.0;
    let mut count = |operations: usize, product: &mut dyn FnMut()| {
        let (start, mut products) = (Instant::now(), 0);
        while start.elapsed() < WINDOW {
            (0..64).for_each(|_| product());
            products += 64;
        }
        rate = (products * operations) as f64 / start.elapsed().as_secs_f64();
    };
    #[cfg(target_arch = "x86_64")]
    match unit {
        Unit::F32 if !super::pack::has_avx512() => count(lanes::OPERATIONS, &mut lanes::product()),
        // The unit of the process is permitted, and f32 has been asked of the CPU.
        Unit::F32 => super::fma::with_product(&mut count),
        Unit::Avx512Bf16 | Unit::AmxBf16 => super::tiles::with_product(unit, &mut count),
    }
    #[cfg(not(target_arch = "x86_64"))]
    count(lanes::OPERATIONS, &mut lanes::product());
    rate
}

/// Fused multiply-adds of registers, on a CPU without a kernel of its own here.
mod lanes {
    use crate::ops::simd::{fma, vectorised};

    /// 12 registers of AVX2: enough to hide the latency of an instruction, few enough to stay
    /// registers.
    const LANES: usize = 96;
    const STEPS: usize = 256;
    /// An addition and a multiplication a lane and step.
    pub(super) const OPERATIONS: usize = 2 * LANES * STEPS;

    pub(super) fn product() -> impl FnMut() {
        let mut sums = [0.0f32; LANES];
        move || {
            steps(&mut sums, std::hint::black_box(0.5), std::hint::black_box(1.0));
            std::hint::black_box(&mut sums);
        }
    }

    vectorised! {
        fn steps(sums: &mut [f32; LANES], a: f32, b: f32) {
            let mut lanes = *sums;
            for _ in 0..STEPS {
                for lane in &mut lanes {
                    *lane = fma::<FMA>(*lane, a, b);
                }
            }
            *sums = lanes;
        }
    }
}

/// Whether `VDPBF16PS` multiplies at least 1.25 times as fast as f32 does: on some CPUs it is
/// issued every other cycle and loses (0.6 times), on others it gains almost 2. The distance from
/// both keeps the choice the same in every process.
#[cfg(target_arch = "x86_64")]
fn avx512_bf16_pays() -> bool {
    let seconds = |with_product: fn(&mut super::timing::Count<'_>)| {
        let mut seconds = f64::INFINITY;
        with_product(&mut |operations, product| seconds = super::timing::quickest(product) / operations as f64);
        seconds
    };
    seconds(|count| super::tiles::with_product(Unit::Avx512Bf16, count)) * 1.25 < seconds(super::fma::with_product)
}

#[cfg(not(target_arch = "x86_64"))]
fn avx512_bf16_pays() -> bool {
    false
}
