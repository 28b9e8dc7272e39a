//! How many kernels a device was given, counted by CubeCL's own observer and, of what is replayed,
//! as it was recorded; and which of them came up for the first time. On the CPU an operation is a
//! call and nothing is launched. Counting begins with `watch`: it takes a lock for every launch, so
//! only runs whose steps are measured pay for it.

use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use gpu::{NewKernels, watch};

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

#[cfg(any(feature = "wgpu", feature = "cuda", feature = "compiler"))]
mod gpu {
    use std::collections::HashSet;
    use std::sync::{Arc, Once};

    use burn::cubecl::launched::LaunchedKernels;
    use burn::cubecl::logging::{LaunchObservation, LaunchObserver};

    struct Counter;

    impl LaunchObserver for Counter {
        fn launched(&self, _kernel: &'static str) {
            super::add(1);
        }
    }

    /// From now on launches are counted, until the process ends.
    pub(crate) fn watch() {
        static WATCHED: Once = Once::new();
        // Dropping the observation would end it.
        WATCHED.call_once(|| std::mem::forget(LaunchObservation::new(Arc::new(Counter))));
    }

    /// Kernels that are launched for the first time since it was made, on any thread: each was
    /// compiled, read from the kernel cache or tried by a tuning. A kernel is one with all that it
    /// was specialised for, such as a type or a tile.
    #[derive(Debug)]
    pub(crate) struct NewKernels {
        open: LaunchedKernels,
        /// By CubeCL's stable hash.
        known: HashSet<u128>,
    }

    impl NewKernels {
        /// Knows none.
        pub(crate) fn start() -> Self {
            Self { open: LaunchedKernels::new(), known: HashSet::new() }
        }

        /// How many came up since this was last asked.
        pub(crate) fn count(&mut self) -> u64 {
            let launched = std::mem::replace(&mut self.open, LaunchedKernels::new()).finish();
            launched.into_iter().filter(|kernel| self.known.insert(*kernel)).count() as u64
        }
    }
}

/// The CPU's: nothing is launched.
#[cfg(not(any(feature = "wgpu", feature = "cuda", feature = "compiler")))]
mod gpu {
    pub(crate) fn watch() {}

    #[derive(Debug)]
    pub(crate) struct NewKernels;

    impl NewKernels {
        pub(crate) fn start() -> Self {
            Self
        }

        pub(crate) fn count(&mut self) -> u64 {
            0
        }
    }
}
