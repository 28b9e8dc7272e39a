//! Root mean square normalisation, by the kernels of layer normalisation.

use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};
use burn::tensor::FloatDType;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

use super::{Inputs, RmsNormKernel, Saved};
use crate::ops::cube::{Cube, FusedTensor, shaped};
use crate::ops::layer_norm::HandsOn;
use crate::ops::layer_norm::cube::{backward, normalised};

impl RmsNormKernel for Cube {
    fn forward(Inputs { x, weight, epsilon, dtype, .. }: Inputs<Self>) -> (FusedTensor, Saved<FusedTensor>) {
        let (y, reciprocals) = Self::rms(x.clone(), weight.clone(), epsilon as f32, dtype);
        (y, Saved { x, weight, reciprocals })
    }

    fn backward(saved: Saved<FusedTensor>, dy: FusedTensor, added: Option<FusedTensor>) -> [FusedTensor; 2] {
        let Saved { x, weight, reciprocals } = saved;
        let (adds, added) = (added.is_some(), added.unwrap_or_else(|| x.clone())); // else not read
        let (dx, dweight) = Self::rms_backward(x, weight, reciprocals, dy, added, adds);
        [dx, dweight]
    }
}

/// The kernels, as operations of a backend: `x` is `[rows, width]`, `weight` is `[width]`.
#[backend_extension(Cube, Fusion)]
pub(in crate::ops) trait RmsKernels: Backend {
    /// `(y, statistics)`: the normalised rows in `dtype`, and 0 and the reciprocal root of the mean
    /// square of each, `[rows, 2]`.
    #[fusion(meta = |x, _weight, _epsilon, dtype| {
        (TensorSpec::new(x.shape.clone(), (*dtype).into()), shaped(x, [x.shape[0], 2]))
    })]
    fn rms(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        epsilon: f32,
        dtype: FloatDType,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// `(dx, dweight)` of [`rms`](Self::rms), `dy` being in the type of its result or in f32 and
    /// `dx` with `added`, if it `adds` that.
    #[fusion(meta = |x, weight, _statistics, _dy, _added, _adds| (x.clone(), weight.clone()))]
    fn rms_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        added: FloatTensor<Self>,
        adds: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl RmsKernels for CubeBackend {
    fn rms(x: CubeTensor, weight: CubeTensor, epsilon: f32, dtype: FloatDType) -> (CubeTensor, CubeTensor) {
        let (y, _, _, reciprocals) = normalised(x, None, weight, None, epsilon, dtype, false);
        (y, reciprocals)
    }

    fn rms_backward(
        x: CubeTensor,
        weight: CubeTensor,
        statistics: CubeTensor,
        dy: CubeTensor,
        added: CubeTensor,
        adds: bool,
    ) -> (CubeTensor, CubeTensor) {
        let added = adds.then_some((added, HandsOn::Sum));
        let (dx, _, [dweight, ..]) = backward(x, weight, statistics, dy, added, false, None);
        (dx, dweight)
    }
}
