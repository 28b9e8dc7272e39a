//! The threads on which operators compute on the CPU: rayon's.

use std::cell::OnceCell;

use rayon::{ThreadPool, ThreadPoolBuilder};

thread_local! {
    /// The pool of which this thread is one; it ends with it.
    static POOL: OnceCell<Option<ThreadPool>> = const { OnceCell::new() };
}

/// Makes this thread one of those that compute the operators that it calls, in a pool of its own with as many threads as rayon has for
/// it (`RAYON_NUM_THREADS`, by default one a core). A thread outside of a pool wakes the others for every part of an operator and
/// sleeps until they have done it. Does nothing on a thread that is one of a pool, and where the system gives no thread.
pub fn compute_here() {
    if rayon::current_thread_index().is_none() {
        let threads = rayon::current_num_threads();
        POOL.with(|pool| {
            pool.get_or_init(|| ThreadPoolBuilder::new().num_threads(threads).use_current_thread().build().ok());
        });
    }
}

#[cfg(test)]
mod tests {
    use rayon::prelude::*;

    use super::compute_here;

    #[test]
    fn a_thread_computes_with_as_many_threads_as_before() {
        let computed = std::thread::spawn(|| {
            let (before, index) = (rayon::current_num_threads(), rayon::current_thread_index());
            assert_eq!(index, None);
            compute_here();
            compute_here();
            assert_eq!((rayon::current_num_threads(), rayon::current_thread_index()), (before, Some(0)));
            (0..1000u64).into_par_iter().map(|i| i * i).sum::<u64>()
        });
        assert_eq!(computed.join().ok(), Some(332_833_500));
        assert_eq!(rayon::current_thread_index(), None);
    }
}
