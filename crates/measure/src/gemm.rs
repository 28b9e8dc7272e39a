//! The rate that the device reaches in a large matrix product, with which model FLOP/s are
//! compared.

use std::time::Instant;

use burn::tensor::{Device, Distribution, Tensor};
use kiln::reads::read_scalars;
use kiln_core::error::Result;
use kiln_core::signals;

const SIZE: usize = 2048;
const REPEATS: usize = 8;

/// The best of some products of two f32 matrices of 2048 x 2048, in GFLOP/s.
///
/// # Errors
/// The device's, and a signal.
pub fn gflops(device: &Device) -> Result<f64> {
    let device = device.clone();
    signals::leaving(move || measure(&device))
        .unwrap_or_else(|signal| Err(signal.error("stopped while the device's matrix products were measured")))
}

fn measure(device: &Device) -> Result<f64> {
    let random = || Tensor::<2>::random([SIZE, SIZE], Distribution::Uniform(-1.0, 1.0), device);
    let (a, b) = (random(), random());
    let mut best = f64::INFINITY;
    for repeat in 0..=REPEATS {
        let start = Instant::now();
        let product = a.clone().matmul(b.clone());
        // Reading one value waits for the product and moves next to nothing.
        read_scalars(vec![product.slice([0..1, 0..1]).reshape([1])])?;
        if repeat > 0 {
            best = best.min(start.elapsed().as_secs_f64());
        }
    }
    Ok(2.0 * (SIZE as f64).powi(3) / best / 1e9)
}
