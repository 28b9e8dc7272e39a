//! How many kernels a device was given, counted by CubeCL's own observer and, of what is replayed, as it was recorded. On the
//! CPU an operation is a call and nothing is launched. Counting begins with `watch`: it takes a lock for every launch, so
//! only runs whose steps are measured pay for it.

use std::sync::atomic::{AtomicU64, Ordering};

static LAUNCHES: AtomicU64 = AtomicU64::new(0);

/// Kernels launched in this process while they were counted.
pub fn kernel_launches() -> u64 {
    LAUNCHES.load(Ordering::Relaxed)
}

/// Counts `launches` more.
#[cfg(any(feature = "wgpu", feature = "cuda", feature = "compiler"))]
pub(crate) fn add(launches: u64) {
    LAUNCHES.fetch_add(launches, Ordering::Relaxed);
}

/// From now on launches are counted, until the process ends.
pub(crate) fn watch() {
    #[cfg(any(feature = "wgpu", feature = "cuda", feature = "compiler"))]
    gpu::watch();
}

#[cfg(any(feature = "wgpu", feature = "cuda", feature = "compiler"))]
mod gpu {
    use std::sync::{Arc, Once};

    use burn::cubecl::logging::{LaunchObservation, LaunchObserver};

    struct Counter;

    impl LaunchObserver for Counter {
        fn launched(&self, _kernel: &'static str) {
            super::add(1);
        }
    }

    pub(super) fn watch() {
        static WATCHED: Once = Once::new();
        // Dropping the observation would end it.
        WATCHED.call_once(|| std::mem::forget(LaunchObservation::new(Arc::new(Counter))));
    }
}
