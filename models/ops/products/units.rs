//! Which instructions multiply bf16 operands on this CPU, chosen once in a process.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

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

/// As in plans: `amx-bf16: 2 threads`.
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

/// The unit of this process: the fastest that the CPU has and the operating system permits, or the lower one that
/// `KILN_CPU_PRODUCTS` names. `avx512-bf16` is chosen where products of some microseconds have shown that it is faster than f32,
/// which it is not on every CPU that has it.
///
/// # Errors
/// A variable that names no unit, or one that is not permitted here.
pub fn unit() -> Result<Unit> {
    static UNIT: OnceLock<std::result::Result<Unit, String>> = OnceLock::new();
    let unit = UNIT.get_or_init(|| {
        let asked = std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
        let asked = asked.map(|name| name.to_string_lossy().parse::<Unit>()).transpose();
        asked.and_then(choose).map_err(|error| error.to_string())
    });
    unit.clone().map_err(Error::Environment)
}

/// The unit where `asked` is the highest to use.
pub(super) fn choose(asked: Option<Unit>) -> Result<Unit> {
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
        Some(asked) => Ok(asked),
        None if best == Unit::Avx512Bf16 && !avx512_bf16_pays() => Ok(Unit::F32),
        None => Ok(best),
    }
}

/// Whether the CPU has the instructions of `unit` and the operating system permits them.
#[cfg(target_arch = "x86_64")]
fn is_permitted(unit: Unit) -> bool {
    match unit {
        Unit::F32 => true,
        Unit::Avx512Bf16 => {
            super::panels::has_avx512()
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512bf16")
        }
        // Every CPU with AMX has AVX512_BF16, with which operands are packed.
        Unit::AmxBf16 => is_permitted(Unit::Avx512Bf16) && super::tiles::amx::is_permitted(),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn is_permitted(unit: Unit) -> bool {
    unit == Unit::F32
}

/// Whether `VDPBF16PS` multiplies at least 1.25 times as fast as f32 does: on some CPUs it is issued every other cycle and loses
/// (0.6 times), on others it gains almost 2. The distance from both keeps the choice the same in every process.
#[cfg(target_arch = "x86_64")]
fn avx512_bf16_pays() -> bool {
    super::tiles::seconds_of_a_product() * 1.25 < super::fma::seconds_of_a_product()
}

#[cfg(not(target_arch = "x86_64"))]
fn avx512_bf16_pays() -> bool {
    false
}
