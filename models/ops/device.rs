//! The table of devices: how the kernels of each take and give operands of matrix products. Devices
//! are compared here and nowhere else.

use burn::tensor::{Device, FloatDType};

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
}

/// Bytes from one row of a matrix to the next in the result of a product on CUDA, for rows of
/// `bytes` each.
pub fn pitched(bytes: u64) -> u64 {
    bytes.next_multiple_of(bytes.next_power_of_two().min(512))
}
