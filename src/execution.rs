//! Where a run executes: finds the device that the config names, seeds it, reads values back from it (and counts the
//! reads, since a read in the middle of a step stalls the device), and knows how much memory the process has used.

use std::collections::BTreeMap;
use std::panic::{self, Location};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use burn::tensor::{Device, DeviceType, Tensor};

use kiln_models::Ops;

use crate::config::{CompilerMode, DeviceKind, FusedOps, Switch, TrainingCompilerConfig};
use crate::engine::{self, Engine};
use crate::error::{Error, Result, says_out_of_memory};
use crate::host;

/// The version of Burn, as `Cargo.toml` pins it.
pub const BURN_VERSION: &str = "0.22.1";

/// A device of this machine that this build can use.
#[derive(Debug, Clone)]
pub struct Available {
    /// The kind, as it is written in configs.
    pub kind: DeviceKind,
    /// The index among the devices of that kind.
    pub index: usize,
    /// Burn's name of it.
    pub name: String,
    /// The device.
    pub device: Device,
    /// It is a processor that pretends to be a GPU (a software Vulkan driver); `auto` does not choose it.
    pub is_software: bool,
}

/// Every device that this build and this machine offer, best first: CUDA, wgpu, CPU.
pub fn available() -> Vec<Available> {
    let mut devices = Vec::new();
    #[cfg(feature = "cuda")]
    devices.extend(enumerate(DeviceKind::Cuda, DeviceType::Cuda));
    #[cfg(feature = "wgpu")]
    devices.extend(enumerate(DeviceKind::Wgpu, DeviceType::Wgpu));
    devices.extend(enumerate(DeviceKind::Cpu, DeviceType::Flex));
    devices
}

/// Asks Burn for the devices of one kind. A missing driver makes the runtimes panic; here that means "none".
fn enumerate(kind: DeviceKind, device_type: DeviceType) -> Vec<Available> {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let found = panic::catch_unwind(|| Device::enumerate(device_type).into_vec()).unwrap_or_default();
    panic::set_hook(hook);
    let described = found.into_iter().enumerate().map(|(index, device)| {
        let name = format!("{device:?}").trim_start_matches("Device<").trim_end_matches('>').to_string();
        let is_software = kind == DeviceKind::Wgpu && name.contains("Cpu");
        Available { kind, index, name, device, is_software }
    });
    described.collect()
}

/// The device that `kind` and `index` name.
///
/// # Errors
/// A kind that this build lacks (with the build command), a kind or an index that this machine lacks.
pub fn select(kind: DeviceKind, index: usize) -> Result<Available> {
    let built = match kind {
        DeviceKind::Auto | DeviceKind::Cpu => true,
        DeviceKind::Wgpu => cfg!(feature = "wgpu"),
        DeviceKind::Cuda => cfg!(feature = "cuda"),
    };
    if !built {
        return Err(Error::config(format!("device.kind = \"{kind}\": this build of kiln has no {kind} support"))
            .help(format!("build it with `cargo build --release --features {kind}`, or set device.kind = \"cpu\"")));
    }
    let mut devices = available();
    if kind == DeviceKind::Auto {
        devices.retain(|device| !device.is_software);
        let best = devices.first().map(|device| device.kind);
        devices.retain(|device| Some(device.kind) == best);
    } else {
        devices.retain(|device| device.kind == kind);
    }
    let found = devices.len();
    devices.into_iter().nth(index).ok_or_else(|| {
        Error::config(match found {
            0 => format!("device.kind = \"{kind}\": this machine has no such device, or its driver is missing"),
            _ => format!("device.index = {index}: this machine has {found} {kind} device(s), numbered from 0"),
        })
        .help("`kiln devices` lists what this build and this machine offer")
    })
}

/// In which form the models compute under `compiler` on `device`.
///
/// # Errors
/// A compiler that is asked for what the device or this build lacks.
pub fn ops(compiler: Option<&TrainingCompilerConfig>, device: &Available) -> Result<Ops> {
    engine::settings(compiler, device.kind)?;
    let wanted = Engine::wanted(compiler);
    if device.kind != DeviceKind::Cpu && wanted != Engine::this() {
        let (this, kind) = (Engine::this(), device.kind);
        let feature = if wanted == Engine::Compiled { "with" } else { "without" };
        return Err(Error::config(format!(
            "compiler.enabled = {}: this build is the {this} engine, and on {kind} the mode is the build's",
            wanted == Engine::Compiled
        ))
        .help(format!(
            "the command `kiln` changes engines by itself; a program is built {feature} the feature `compiler`"
        )));
    }
    // With "auto", too, the native engine has nothing fused for a GPU.
    let is_native = device.kind != DeviceKind::Cpu && wanted == Engine::Native;
    let Some(compiler) = compiler.filter(|compiler| compiler.enabled != CompilerMode::Native && !is_native) else {
        return Ok(Ops::Plain);
    };
    let fused = || {
        Ops::fused(&device.device).map_err(|error| {
            Error::config(format!("compiler.fused_ops: {error}")).help("set compiler.fused_ops = \"auto\"")
        })
    };
    match (&compiler.fused_ops, device.kind) {
        (FusedOps::All(Switch::Off), _) => Ok(Ops::Plain),
        // The kernels compile for CUDA, but no CUDA device has shown yet that they compute what the composition does.
        (FusedOps::All(Switch::Auto), DeviceKind::Cuda) => Ok(Ops::Plain),
        (FusedOps::All(Switch::Auto | Switch::On), _) => fused(),
        (FusedOps::Only(operators), _) => Ok(fused()?.only(operators.iter().copied())),
    }
}

static READS: AtomicU64 = AtomicU64::new(0);

/// How often each place of the program has read.
static SITES: Mutex<BTreeMap<Site, u64>> = Mutex::new(BTreeMap::new());

/// File and line.
type Site = (&'static str, u32);

/// How many times values have been read back from a device since the process started.
pub fn device_reads() -> u64 {
    READS.load(Ordering::Relaxed)
}

/// Reads from a device by the place of the program that asked for them, up to one moment or between two.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceReads(BTreeMap<Site, u64>);

impl DeviceReads {
    /// All since the process started.
    pub fn now() -> Self {
        Self(SITES.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Those of them that `earlier` does not have.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let more = self.0.iter().map(|(site, count)| (*site, count - earlier.0.get(site).copied().unwrap_or(0)));
        Self(more.filter(|(_, count)| *count > 0).collect())
    }

    /// How many there are.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// `FILE:LINE` and count of every place, most reads first.
    pub fn sites(&self) -> Vec<(String, u64)> {
        let mut sites =
            self.0.iter().map(|((file, line), count)| (format!("{file}:{line}"), *count)).collect::<Vec<_>>();
        sites.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        sites
    }
}

impl std::fmt::Display for DeviceReads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sites = self.sites().into_iter().map(|(site, count)| format!("{count} by {site}"));
        write!(f, "{} device reads: {}", self.total(), sites.collect::<Vec<_>>().join(", "))
    }
}

fn count_read(site: &'static Location<'static>) {
    READS.fetch_add(1, Ordering::Relaxed);
    *SITES.lock().unwrap_or_else(PoisonError::into_inner).entry((site.file(), site.line())).or_insert(0) += 1;
}

/// Reads scalars back in one transfer, in order. Every read of a run goes through here or [`read_values`], so that reads can
/// be counted, by their caller; on the CPU alone, where it is no transfer, the model looks at a mask besides.
///
/// # Errors
/// What the device reports: execution errors surface when a value is read.
#[track_caller]
pub fn read_scalars(values: Vec<Tensor<1>>) -> Result<Vec<f64>> {
    if values.is_empty() {
        return Ok(Vec::new());
    }
    count_read(Location::caller());
    let together = Tensor::cat(values.into_iter().map(without_autodiff).collect(), 0);
    let values = together.try_into_vec_as::<f32>().map_err(|error| device_error(&error))?;
    Ok(values.into_iter().map(f64::from).collect())
}

/// Reads all of one tensor back, in row-major order.
///
/// # Errors
/// As [`read_scalars`].
#[track_caller]
pub fn read_values<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>> {
    count_read(Location::caller());
    tensor.try_into_vec_as::<f32>().map_err(|error| device_error(&error))
}

fn without_autodiff(tensor: Tensor<1>) -> Tensor<1> {
    if tensor.is_autodiff() { tensor.inner() } else { tensor }
}

fn device_error(error: &dyn std::fmt::Display) -> Error {
    let text = error.to_string();
    if says_out_of_memory(&text) {
        Error::out_of_memory(format!("the device ran out of memory: {text}"))
            .help("lower trainer.per_device_train_batch_size and raise trainer.gradient_accumulation_steps by as much")
    } else {
        Error::device(format!("the device failed: {text}"))
    }
}

/// A seed for one use of randomness, independent of the others: `purpose` names the use, `step` and `part` the place in
/// the run. Nothing of a generator's state needs to be saved: the seed of any moment can be computed again.
/// (SplitMix64's output function, Steele, Lea & Flood 2014, as the mixer.)
pub fn seed_for(run_seed: u64, purpose: &str, step: u64, part: u64) -> u64 {
    let mix = |value: u64| {
        let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    let purpose = purpose.bytes().fold(0, |hash, byte| mix(hash ^ u64::from(byte)));
    [purpose, step, part].into_iter().fold(mix(run_seed), |hash, value| mix(hash ^ value))
}

/// A hash as a number from 0 to below 1, with the 53 bits that an f64 has room for.
pub fn uniform(hash: u64) -> f64 {
    (hash >> 11) as f64 / (1u64 << 53) as f64
}

/// Memory in MiB at one moment; none where neither the device nor the system tells.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryUse {
    /// The most there has been: on the CPU what the process had resident. On a GPU the same as `reserved_mib`, since its
    /// pools keep no peak of their own; they do not shrink by themselves, so the largest of several moments is one.
    pub peak_mib: Option<f64>,
    /// What is taken from the system now: on a GPU by the device's pools, on the CPU by the process.
    pub reserved_mib: Option<f64>,
}

/// The memory in use on `device`.
pub fn memory_use(device: &Device) -> MemoryUse {
    match device.memory_pool_usage() {
        Some(usage) => {
            let reserved = Some(usage.bytes_reserved as f64 / f64::from(1 << 20));
            MemoryUse { peak_mib: reserved, reserved_mib: reserved }
        }
        None => MemoryUse { peak_mib: host::peak_mib(), reserved_mib: host::resident_mib() },
    }
}

/// Gives the system what the pools of `device` hold and nothing uses. A tensor that is dropped lives until the device comes to
/// it, and Burn's fusion hands the request on at once, past what is queued: so what is on its way is waited for.
pub fn release_memory(device: &Device) {
    // A device that has failed says so where its values are read.
    let _ = device.sync();
    device.memory_cleanup();
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn seeds_differ_by_every_argument() {
        let all = [
            seed_for(1, "dropout", 0, 0),
            seed_for(2, "dropout", 0, 0),
            seed_for(1, "init", 0, 0),
            seed_for(1, "dropout", 1, 0),
            seed_for(1, "dropout", 0, 1),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b));
        }
        assert_eq!(seed_for(1, "dropout", 3, 4), seed_for(1, "dropout", 3, 4));
    }

    #[test]
    fn burns_version_is_the_pinned_one() {
        assert!(include_str!("../Cargo.toml").contains(&format!("burn = {{ version = \"={BURN_VERSION}\"")));
    }

    #[test]
    fn reads_are_counted_and_in_order() {
        let device = Device::flex();
        let before = device_reads();
        let values = [1.0f32, 2.0, 3.0].map(|value| Tensor::<1>::from_floats([value], &device)).to_vec();
        assert_eq!(read_scalars(values).unwrap(), [1.0, 2.0, 3.0]);
        assert!(device_reads() > before);
        let (before, line) = (DeviceReads::now(), line!() + 1);
        read_scalars(vec![Tensor::from_floats([1.0f32], &device)]).unwrap();
        let here = (format!("{}:{line}", file!()), 1);
        assert!(DeviceReads::now().since(&before).sites().contains(&here));
    }

    #[test]
    fn a_poisoned_device_is_no_lack_of_memory() {
        let kind = |text: &str| device_error(&text).exit_code();
        assert_eq!(kind("The device is poisoned\nCaused by:\n  CUDA_ERROR_ILLEGAL_ADDRESS: illegal memory access"), 7);
        assert_eq!(kind("CUDA_ERROR_OUT_OF_MEMORY: out of memory"), 4);
        assert_eq!(kind("a launch failed"), 7);
    }

    #[test]
    fn a_cpu_is_always_there_and_a_second_is_refused() {
        assert_eq!(select(DeviceKind::Cpu, 0).unwrap().kind, DeviceKind::Cpu);
        let error = select(DeviceKind::Cpu, 7).unwrap_err().to_string();
        assert!(error.contains("device.index = 7"), "{error}");
    }
}
