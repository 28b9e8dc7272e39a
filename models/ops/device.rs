//! The table of devices: how the kernels of each take and give operands of matrix products. Devices
//! are compared here and nowhere else.

#[cfg(feature = "compiler")]
use burn::backend::DispatchDevice;
#[cfg(feature = "compiler")]
use burn::tensor::DType;
use burn::tensor::{Device, FloatDType};
#[cfg(feature = "compiler")]
use burn_cubecl::CubeDevice;
#[cfg(feature = "compiler")]
use cubecl::device::WgpuDeviceKind;

use super::fused::Operator;

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceKernels {
    /// Whether fused products take f32, round their operands themselves and give f32. Elsewhere
    /// products take narrow operands and may give narrow results, and the other kernels take and
    /// give them as products do.
    pub(crate) round_operands: bool,
    /// The types in which kernels write, of f32, what a product reads.
    write: &'static [FloatDType],
    /// Whether values lie in the memory of the host, where they are read before a kernel runs, and
    /// a shape that differs from batch to batch costs nothing. Elsewhere reading waits for the
    /// device, and each shape is compiled and recorded.
    pub(crate) are_on_host: bool,
}

const CPU: DeviceKernels =
    DeviceKernels { round_operands: true, write: &[FloatDType::F32, FloatDType::BF16], are_on_host: true };

const OTHERS: DeviceKernels = DeviceKernels {
    round_operands: false,
    write: &[FloatDType::F32, FloatDType::BF16, FloatDType::F16],
    are_on_host: false,
};

impl DeviceKernels {
    /// The row of `device`, with autodiff or without.
    pub(crate) fn on(device: &Device) -> Self {
        if device.clone().without_autodiff() == Device::flex() { CPU } else { OTHERS }
    }

    /// Whether kernels write what a product reads in `dtype`.
    pub(crate) fn write(self, dtype: FloatDType) -> bool {
        self.write.contains(&dtype)
    }

    /// Whether the kernel of `operator` reads the result of a narrow product as it is.
    pub(super) fn reads_narrow(self, operator: Operator) -> bool {
        let reads_products = matches!(
            operator,
            Operator::Linear
                | Operator::Rotary
                | Operator::Attention
                | Operator::Gelu
                | Operator::Swiglu
                | Operator::Dropout
        );
        reads_products && !self.round_operands
    }

    /// The type in which the kernel of `operator` writes a result that is wanted in `dtype`, of
    /// values of the type `of_x`: what reads narrow products writes the type of its values.
    pub(super) fn written(self, operator: Operator, of_x: FloatDType, dtype: FloatDType) -> FloatDType {
        let is_free = of_x == FloatDType::F32 && !self.reads_narrow(operator);
        if is_free && self.write(dtype) { dtype } else { of_x }
    }
}

/// `device` as CubeCL has it, whose kernels run on it; none for the CPU.
#[cfg(feature = "compiler")]
fn cube(device: &Device) -> Option<CubeDevice> {
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::Cube(device) => Some(device.clone()),
        _ => None,
    }
}

/// Whether this build has fused kernels for `device`.
pub(super) fn has_kernels(device: &Device) -> bool {
    #[cfg(feature = "compiler")]
    if cube(device).is_some() {
        return true;
    }
    DeviceKernels::on(device).are_on_host
}

/// Bytes of attention's scores, and of the logits of cross-entropy, that a fused operator has at a
/// time on `device`: a 64th of its memory, 1 GiB at the most, and 256 MiB where it does not tell
/// how much it has, but no more than one of its buffers holds. The scores of one sequence, and the
/// logits of one row, are there in any case. None without fused kernels, and on the CPU, where
/// blocks are smaller.
pub fn bytes_at_a_time(device: &Device) -> Option<u64> {
    #[cfg(feature = "compiler")]
    if let Some(device) = cube(device) {
        return Some(bytes_on(&device));
    }
    let _ = device;
    None
}

/// [`bytes_at_a_time`] on a device with kernels of CubeCL.
#[cfg(feature = "compiler")]
pub(super) fn bytes_on(device: &CubeDevice) -> u64 {
    let client = device.client();
    let memory = &client.properties().memory;
    // On wgpu a page is the longest buffer that a kernel can be given.
    memory.max_memory().map_or(256 << 20, |memory| (memory / 64).min(1 << 30)).min(memory.max_page_size)
}

/// Whether `device` is a CPU that poses as a GPU.
#[cfg(feature = "compiler")]
pub(super) fn is_software(device: &CubeDevice) -> bool {
    matches!(device, CubeDevice::Wgpu(device) if device.kind == WgpuDeviceKind::Cpu)
}

/// Bytes from one row of a matrix to the next in the result of a product on CUDA, for rows of
/// `bytes` each.
pub fn pitched(bytes: u64) -> u64 {
    bytes.next_multiple_of(bytes.next_power_of_two().min(512))
}

/// The sizes of a head for which attention has kernels on tensor cores (`attention/flash`).
#[cfg(feature = "compiler")]
pub(super) const HEAD_DIMS: [usize; 5] = [32, 64, 80, 96, 128];

/// The sizes of a head at which fused attention in bf16 and f16 has no matrix of scores in the
/// memory of `device`. Where scores are not scaled down, as in GPT-Neo, it has one in f16.
pub fn flash_head_dims(device: &Device) -> &'static [usize] {
    #[cfg(feature = "compiler")]
    if [FloatDType::BF16, FloatDType::F16].into_iter().all(|dtype| has_tensor_cores(device, dtype)) {
        return &HEAD_DIMS;
    }
    let _ = device;
    &[]
}

/// Whether `device` multiplies operands in `dtype` on tensor cores that kernels of Kiln's use.
pub(super) fn has_tensor_cores(device: &Device, dtype: FloatDType) -> bool {
    #[cfg(feature = "compiler")]
    if let Some(device) = cube(device) {
        return multiplies(&device, dtype.into());
    }
    let _ = (device, dtype);
    false
}

/// Whether a kernel on `device` may have `buffers` of its own, beside the one of its scalars:
/// WebGPU promises 8 in all, a GPU has more. The CPU's read what they like.
pub(crate) fn binds(device: &Device, buffers: u32) -> bool {
    #[cfg(feature = "compiler")]
    if let Some(device) = cube(device) {
        return buffers < device.client().properties().hardware.max_bindings;
    }
    let _ = (device, buffers);
    true
}

/// Whether `device` has the matrix instruction of tensor cores for operands of `dtype`.
#[cfg(feature = "compiler")]
pub(super) fn multiplies(device: &CubeDevice, dtype: DType) -> bool {
    use cubecl::features::MmaConfig;
    use cubecl::ir::{ElemType, FloatKind};

    let kind = match dtype {
        DType::BF16 => FloatKind::BF16,
        DType::F16 => FloatKind::F16,
        _ => return false,
    };
    let CubeDevice::Cuda(_) = device else {
        return false;
    };
    let [operand, sum] = [kind, FloatKind::F32].map(ElemType::Float);
    let config = MmaConfig { a_type: operand, b_type: operand, cd_type: sum, m: 16, n: 8, k: 16 };
    let client = device.client();
    let properties = client.properties();
    properties.features.matmul.mma.contains(&config) && properties.features.matmul.ldmatrix.contains(&operand)
}
