//! The threads on which operators compute on the CPU: rayon's.

use std::cell::OnceCell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use burn::tensor::Device;
use rayon::{ThreadBuilder, ThreadPool, ThreadPoolBuilder};

use super::device::DeviceKernels;

/// Whether a thread of this process is one of a pool of its own.
static TAKEN: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The pool of which this thread is one; it ends with it.
    static POOL: OnceCell<Own> = const { OnceCell::new() };
}

/// The pool of a thread, and the right to have one.
struct Own {
    _pool: Option<ThreadPool>,
}

impl Drop for Own {
    fn drop(&mut self) {
        TAKEN.store(false, Ordering::Release);
    }
}

/// Makes this thread, until it ends, one of those that compute the operators that it calls, in a
/// pool of its own with as many threads as rayon has for it (`RAYON_NUM_THREADS`, by default one a
/// core). A thread outside of a pool wakes the others for every part of an operator and sleeps
/// until they have done it. Does nothing where `device` computes on threads of its own, where rayon
/// has one thread, on a thread that is one of a pool, while another thread of the process has its
/// pool, and where the system gives no threads.
///
/// A job that this thread gives to `rayon::spawn` from then on runs when another thread of its pool
/// takes it.
pub fn compute_here(device: &Device) {
    let threads = rayon::current_num_threads();
    let is_host = DeviceKernels::on(device).are_on_host;
    if is_host && threads > 1 && rayon::current_thread_index().is_none() && !TAKEN.swap(true, Ordering::Acquire) {
        POOL.with(|own| drop(own.set(Own { _pool: pool(threads).ok() })));
    }
}

/// A pool of this thread and others. The others are there before it is made, since rayon does not
/// let go of a thread for which it cannot start all others.
fn pool(threads: usize) -> io::Result<ThreadPool> {
    let start = |index: usize| {
        let (sender, receiver) = mpsc::channel::<ThreadBuilder>();
        let work = move || {
            if let Ok(thread) = receiver.recv() {
                thread.run();
            }
        };
        std::thread::Builder::new().name(format!("kiln-compute-{index}")).spawn(work).map(|_| sender)
    };
    let mut others = (1..threads).map(start).collect::<io::Result<Vec<_>>>()?.into_iter();
    let hand_over = |thread| {
        let other = others.next().ok_or_else(|| io::Error::other("more threads than were asked for"))?;
        other.send(thread).map_err(|_| io::Error::other("a thread has ended"))
    };
    let pool = ThreadPoolBuilder::new().num_threads(threads).use_current_thread();
    pool.spawn_handler(hand_over).build().map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use rayon::prelude::*;

    use super::compute_here;

    fn places() -> (usize, Option<usize>) {
        (rayon::current_num_threads(), rayon::current_thread_index())
    }

    #[test]
    fn one_thread_at_a_time_computes_with_as_many_as_before() {
        for _ in 0..2 {
            let computed = std::thread::spawn(|| {
                let (before, index) = places();
                assert_eq!(index, None);
                compute_here(&Device::flex());
                compute_here(&Device::flex());
                assert_eq!(places(), (before, (before > 1).then_some(0)));
                let other = std::thread::spawn(|| {
                    compute_here(&Device::flex());
                    places()
                });
                assert_eq!(other.join().unwrap_or_default(), (before, if before > 1 { None } else { index }));
                let all = rayon::broadcast(|context| context.index()).len();
                assert_eq!(all, before);
                (0..1000u64).into_par_iter().map(|i| i * i).sum::<u64>()
            });
            assert_eq!(computed.join().ok(), Some(332_833_500));
            assert_eq!(rayon::current_thread_index(), None);
        }
    }
}
