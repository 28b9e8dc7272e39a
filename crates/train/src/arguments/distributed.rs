//! How the devices of a run share its work.

use kiln_core::choices;
use serde::{Deserialize, Serialize};

use crate::engine::settings::DeviceKind;

choices! {
    /// The library that sums the gradients of several devices.
    DdpBackend("ddp_backend") {
        /// NVIDIA's NCCL, on the devices themselves, which are CUDA's.
        Nccl = "nccl",
        /// MPI, in the memory of the machine.
        Mpi = "mpi",
    }
}

kiln_core::keys! {
    /// `[distributed]`: how the devices of a run share its work. A run on one device does all of
    /// it, whatever stands here.
    #[derive(Copy, Eq)]
    #[serde(default, deny_unknown_fields)]
    pub struct DistributedArguments in "distributed" {
        /// Divides the optimizer among the devices (ZeRO, stage 1): each has the moments of an
        /// equal part of the parameters, updates that part and hands it to the others; otherwise
        /// each has all moments. On the CPU the run computes the same to the bit, on a GPU up to
        /// rounding, and its checkpoints are the same. With an element-wise optimizer (AdamW, Adam,
        /// SGD, Lion, RMSprop, Adagrad); steps are not captured. Default: false.
        optimizer_sharding: bool = false, Free;
        /// Sums the gradients of a block over the devices while the backward pass computes those of
        /// the blocks before it; otherwise all are summed after the backward pass. On the CPU the
        /// run computes the same to the bit, on a GPU up to rounding. Not with
        /// `optimizer_sharding`; steps are not captured. Default: false.
        overlap_communication: bool = false, Free;
        /// The library that sums the gradients of the devices. Left out: `nccl` on CUDA, `mpi`
        /// elsewhere and where one of the keys above is true.
        ddp_backend: Option<DdpBackend> = None, Free;
    }
}

impl DistributedArguments {
    /// The library that sums the gradients of devices of this kind.
    pub fn backend(&self, kind: DeviceKind) -> DdpBackend {
        let by_default = if kind != DeviceKind::Cuda || self.optimizer_sharding || self.overlap_communication {
            DdpBackend::Mpi
        } else {
            DdpBackend::Nccl
        };
        self.ddp_backend.unwrap_or(by_default)
    }
}
