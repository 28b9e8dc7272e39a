//! The sizes of the kernels, their variants, and the devices that have them.

use burn::tensor::DType;
use burn_cubecl::CubeDevice;
use cubecl::features::MmaConfig;
use cubecl::ir::{ElemType, FloatKind};

/// The sizes of a head for which the kernels are made.
pub(super) const HEAD_DIMS: [usize; 5] = [32, 64, 80, 96, 128];
/// Units of a cube: four planes of 32.
pub(super) const UNITS: usize = 128;
/// Queries of a cube, or keys: 16 for each plane.
pub(super) const ROWS: usize = 64;
/// Numbers of 16 bits that a unit loads at once.
pub(super) const LOAD: usize = 8;
/// Numbers that lie side by side in a register of a matrix instruction.
pub(super) const PAIR: usize = 2;
/// Stands for the score of a key that is not seen, as in `transformers`: where no key is seen, all
/// are weighted alike. Not the most negative number itself, which WGSL's compilers may not read.
pub(in crate::ops::attention) const HIDDEN: f32 = -3.0e38;

/// The variant of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::ops) struct Form {
    pub(super) head_dim: usize,
    pub(super) causal: bool,
    pub(super) padded: bool,
    pub(super) drops: bool,
}

impl Form {
    /// Keys that the kernel of the queries' gradient takes at a time: registers for the products of
    /// a long head leave room for few.
    pub(super) fn keys_at_a_time(self) -> usize {
        if self.head_dim <= 64 { 64 } else { 32 }
    }
}

/// The sizes of a head for which `device` has the kernels in bf16 and f16.
pub(in crate::ops) fn head_dims(device: &CubeDevice) -> &'static [usize] {
    let multiplies = [DType::BF16, DType::F16].into_iter().all(|dtype| multiplies(device, dtype));
    if multiplies { &HEAD_DIMS } else { &[] }
}

/// Whether `device` has the matrix instruction of the kernels for operands of `dtype`.
pub(super) fn multiplies(device: &CubeDevice, dtype: DType) -> bool {
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
