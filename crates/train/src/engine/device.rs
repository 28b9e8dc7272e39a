//! The device on which a run computes: finds the one that the config names, says what it computes
//! in, and how much of its memory is in use.

use burn::tensor::{Device, DeviceType, FloatDType, Tensor};
use kiln_core::error::{Error, Result};
use kiln_core::{caught, host};
use kiln_models::Ops;
use kiln_models::ops::{
    self,
    products::{self, Unit},
};
use serde::{Deserialize, Serialize};

use crate::distributed::World;
use crate::engine::compiler::settings::TrainingCompilerConfig;
use crate::engine::handover::Engine;
use crate::engine::settings::{CompilerMode, DeviceKind, Precision};
use crate::engine::{handover, operators};
use crate::reads::read_scalars;

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
    /// It is a processor that pretends to be a GPU (a software Vulkan driver); `auto` does not
    /// choose it.
    pub is_software: bool,
}

/// The facts of a device that a plan follows from; nothing here touches the device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFacts {
    /// The kind, as it is written in configs.
    pub kind: DeviceKind,
    /// The index among the devices of that kind.
    pub index: usize,
    /// Burn's name of it.
    pub name: String,
    /// The narrow types in which it computes.
    pub narrow: Vec<Precision>,
    /// Why this build has no fused operators for it; none where it has them.
    pub not_fused: Option<String>,
    /// The unit that multiplies bf16 operands in fused operators on a CPU; none on another device.
    #[serde(default)]
    pub bf16_products: Option<Unit>,
    /// The engine of the build that found it.
    #[serde(default = "Engine::this")]
    pub engine: Engine,
    /// Bytes that a fused operator's scores or logits have at a time (`ops::bytes_at_a_time`).
    #[serde(default)]
    pub bytes_at_a_time: Option<u64>,
    /// Sizes of a head whose fused attention in bf16 and f16 has no scores
    /// (`ops::flash_head_dims`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flash_head_dims: Vec<usize>,
}

impl DeviceFacts {
    /// The engine that computes a run of `mode` here: on a GPU that of the build, since each is a
    /// program of its own.
    pub fn engine_of(&self, mode: CompilerMode) -> Engine {
        match (mode, self.kind) {
            (CompilerMode::Native, DeviceKind::Cpu) => Engine::Native,
            (CompilerMode::Native, _) => self.engine,
            (CompilerMode::Compiled | CompilerMode::Auto, _) => Engine::Compiled,
        }
    }

    /// Whether the device computes in `precision`.
    pub fn computes_in(&self, precision: Precision) -> bool {
        precision == Precision::F32 || self.narrow.contains(&precision)
    }

    /// Whether kernels may multiply f32 in TF32, whose operands have 10 bits behind the first:
    /// CUDA's from compute capability 8.0 on, as bf16 is.
    pub fn has_tf32(&self) -> bool {
        self.kind == DeviceKind::Cuda && self.computes_in(Precision::Bf16)
    }

    /// `cpu 0 (Flex)`
    pub fn describe(&self) -> String {
        format!("{} {} ({})", self.kind, self.index, self.name)
    }
}

impl Available {
    /// Its facts. Asks the device in which types it computes.
    pub fn facts(&self) -> DeviceFacts {
        let types = [(Precision::Bf16, FloatDType::BF16), (Precision::F16, FloatDType::F16)];
        let has =
            |dtype: FloatDType| self.device.supports_dtype(dtype) && (dtype != FloatDType::BF16 || self.has_bf16());
        let narrow = types.into_iter().filter(|(_, dtype)| has(*dtype));
        let narrow = narrow.map(|(precision, _)| precision).collect();
        let not_fused = Ops::fused(&self.device).err().map(|error| error.to_string());
        // An environment that asks for another unit than there is has been refused with the choice
        // of the device.
        let bf16_products = (self.kind == DeviceKind::Cpu).then(|| products::unit().ok()).flatten();
        DeviceFacts {
            kind: self.kind,
            index: self.index,
            name: self.name.clone(),
            narrow,
            not_fused,
            bf16_products,
            engine: Engine::this(),
            bytes_at_a_time: ops::bytes_at_a_time(&self.device),
            flash_head_dims: ops::flash_head_dims(&self.device).to_vec(),
        }
    }
}

impl Available {
    fn has_bf16(&self) -> bool {
        #[cfg(feature = "cuda")]
        if self.kind == DeviceKind::Cuda {
            return crate::engine::cuda::Installation::check(self.index).is_ok_and(|found| found.computes_in_bf16());
        }
        true
    }

    /// Looks at what the device needs besides itself: driver, compiler and headers of CUDA, and the
    /// CPU's instructions for products of bf16. Says what there is; nothing where nothing is
    /// needed.
    ///
    /// # Errors
    /// Something that is missing or does not fit the device, and `KILN_CPU_PRODUCTS` where the CPU
    /// lacks what it asks for.
    pub fn check(&self) -> Result<Option<String>> {
        #[cfg(feature = "cuda")]
        if self.kind == DeviceKind::Cuda {
            return crate::engine::cuda::Installation::check(self.index).map(|found| Some(found.to_string()));
        }
        if self.kind == DeviceKind::Cpu {
            let unit = products::unit().map_err(|error| Error::config(error.to_string()))?;
            return Ok(Some(format!("products of bf16 in fused operators by {unit}")));
        }
        Ok(None)
    }
}

/// Computes one value on `device` and reads it back, which is where a device that cannot compute
/// says so: what measures kernels, as autotune does, may go on for ever on a device on which every
/// launch fails.
///
/// # Errors
/// The device's.
pub fn probe(device: &Device) -> Result<()> {
    read_scalars(vec![Tensor::<1>::ones([1], device) + 1.0]).map(drop)
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

/// Kind and name of every device that kernels are compiled for; the CPU has none.
pub fn kernel_devices() -> Vec<String> {
    let devices = available().into_iter().filter(|device| device.kind != DeviceKind::Cpu);
    devices.map(|device| format!("{} {}", device.kind, device.name)).collect()
}

/// Asks Burn for the devices of one kind. A missing driver makes the runtimes panic; here that
/// means "none".
fn enumerate(kind: DeviceKind, device_type: DeviceType) -> Vec<Available> {
    let found = caught(|| Device::enumerate(device_type).into_vec()).unwrap_or_default();
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
/// A kind that this build lacks (with the build command), a kind or an index that this machine
/// lacks.
pub fn select(kind: DeviceKind, index: usize) -> Result<Available> {
    let built = match kind {
        DeviceKind::Auto | DeviceKind::Cpu => true,
        DeviceKind::Wgpu => cfg!(feature = "wgpu"),
        DeviceKind::Cuda => cfg!(feature = "cuda"),
    };
    if !built {
        return Err(Error::config(format!("device.kind = \"{kind}\": this build of kiln has no {kind} support"))
            .help(format!(
                "build it in a checkout with `.cargo/install-engines {kind}` (a program: with the feature `{kind}`), or set \
                 device.kind = \"cpu\""
            )));
    }
    let devices = of_kind(kind);
    let found = devices.len();
    #[cfg(feature = "cuda")]
    if kind == DeviceKind::Cuda && found == 0 {
        crate::engine::cuda::start_driver()?;
    }
    let chosen = devices.into_iter().nth(index).ok_or_else(|| {
        Error::config(match found {
            0 => format!("device.kind = \"{kind}\": this machine has no such device, or its driver is missing"),
            _ => format!("device.index = {index}: this machine has {found} {kind} device(s), numbered from 0"),
        })
        .help("`kiln devices` lists what this build and this machine offer")
    })?;
    // A slower device is taken where it is asked for, and not because a faster one lacks something.
    chosen.check().map_err(|error| match kind {
        DeviceKind::Auto => error
            .at(format_args!("device.kind = \"auto\" takes {} here", chosen.kind))
            .in_terms_of(&[(&format!("device.kind = \"{}\": ", chosen.kind), "")]),
        _ => error,
    })?;
    Ok(chosen)
}

/// The devices among which an index chooses where a config names `kind`.
fn of_kind(kind: DeviceKind) -> Vec<Available> {
    let mut devices = available();
    if kind == DeviceKind::Auto {
        devices.retain(|device| !device.is_software);
        let best = devices.first().map(|device| device.kind);
        devices.retain(|device| Some(device.kind) == best);
    } else {
        devices.retain(|device| device.kind == kind);
    }
    devices
}

/// The index of the device of this process of `world`, where the config names the kind `kind` and
/// the index `first`: the processes of a machine take the devices from there on, in their order. A
/// processor is shared by all of them.
///
/// # Errors
/// Fewer devices than processes.
pub fn index_of_rank(kind: DeviceKind, first: usize, world: &World) -> Result<usize> {
    let devices = of_kind(kind);
    let is_shared = devices.get(first).is_none_or(|device| device.kind == DeviceKind::Cpu || device.is_software);
    if is_shared || world.sees_own_devices() {
        return Ok(first);
    }
    let left = devices.len() - first;
    index_of(first, left, (world.local_rank(), world.local_size()))
        .map_err(|error| error.at(format_args!("device.kind = \"{}\", device.index = {first}", devices[first].kind)))
}

/// The index of the `rank`-th of `ranks` processes where there are `left` devices from index
/// `first` on.
fn index_of(first: usize, left: usize, (rank, ranks): (usize, usize)) -> Result<usize> {
    if left < ranks {
        return Err(Error::config(format!(
            "{ranks} ranks of this machine need a device each, and there {} {left} from index {first} on",
            if left == 1 { "is" } else { "are" }
        ))
        .help(format!(
            "start {left} on this machine, or let the launcher give each rank devices of its own (CUDA_VISIBLE_DEVICES); \
             `kiln devices` lists them"
        )));
    }
    Ok(first + rank)
}

/// In which form the models compute under `compiler` on `device` in f32; a narrow type may leave
/// fewer operators fused ([`operators`]).
///
/// # Errors
/// A compiler that is asked for what the device or this build lacks.
pub fn ops(compiler: Option<&TrainingCompilerConfig>, device: &DeviceFacts) -> Result<Ops> {
    handover::settings(compiler, device.kind)?;
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
    let fused = || match &device.not_fused {
        None => Ok(Ops::Fused),
        Some(why) => Err(Error::config(format!("compiler.fused_ops: {why}")).help("set compiler.fused_ops = \"auto\"")),
    };
    match operators::fused(&compiler.fused_ops, device.kind, FloatDType::F32) {
        operators if operators.is_empty() => Ok(Ops::Plain),
        operators => Ok(fused()?.only(operators)),
    }
}

/// Memory in MiB at one moment; none where neither the device nor the system tells.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryUse {
    /// The most there has been: on the CPU what the process had resident. On a GPU the same as
    /// `reserved_mib`, since its pools keep no peak of their own; they do not shrink by themselves,
    /// so the largest of several moments is one.
    pub peak_mib: Option<f64>,
    /// The memory that is taken from the system now: on a GPU by the device's pools, on the CPU by
    /// the process.
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

/// Gives the system what the pools of `device` hold and nothing uses. A tensor that is dropped
/// lives until the device comes to it, and Burn's fusion hands the request on at once, past what is
/// queued: so what is on its way is waited for.
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
    fn a_cpu_is_always_there_and_a_second_is_refused() {
        assert_eq!(select(DeviceKind::Cpu, 0).unwrap().kind, DeviceKind::Cpu);
        let error = select(DeviceKind::Cpu, 7).unwrap_err().to_string();
        assert!(error.contains("device.index = 7"), "{error}");
    }

    #[test]
    fn the_ranks_of_a_machine_have_a_device_each() {
        let of = |first, left, ranks| {
            (0..ranks).map(|rank| index_of(first, left, (rank, ranks))).collect::<Result<Vec<_>>>()
        };
        assert_eq!(of(0, 2, 2).unwrap(), [0, 1]);
        assert_eq!(of(2, 6, 4).unwrap(), [2, 3, 4, 5]);
        let error = of(1, 1, 2).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        let text = error.to_string();
        assert!(text.contains("2 ranks of this machine need a device each, and there is 1 from index 1 on"), "{text}");
        assert_eq!(index_of_rank(DeviceKind::Cpu, 0, &World::alone()).unwrap(), 0);
    }
}
