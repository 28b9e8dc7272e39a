//! How products are timed.

use std::time::Instant;

/// Is given the operations of a product, and the product.
pub(super) type Count<'a> = dyn FnMut(usize, &mut dyn FnMut()) + 'a;

/// Seconds of a call of `f`: the quickest of some.
pub(super) fn quickest(mut f: impl FnMut()) -> f64 {
    const CALLS: u32 = 8;
    let mut quickest = f64::INFINITY;
    for _ in 0..24 {
        let start = Instant::now();
        for _ in 0..CALLS {
            f();
        }
        quickest = quickest.min(start.elapsed().as_secs_f64() / f64::from(CALLS));
    }
    quickest
}
