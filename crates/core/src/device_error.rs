//! Errors of devices, whose words are Burn's, CubeCL's or a driver's.

use crate::error::{CONTINUE, Error, says_out_of_memory};
use crate::panics;

/// The error of a device that has failed with these words of Burn's or of a driver's. Where a
/// thread of the device has panicked by an error of the driver, what fails afterwards follows from
/// it, and that is the cause.
pub fn device_error(error: &dyn std::fmt::Display) -> Error {
    let text = error.to_string();
    let cause = panics::of_driver().map_or_else(|| cause(&text), |panic| cause(&panic.message));
    if cause.contains(NO_TILE) {
        Error::config(format!("the device cannot compute this model's matrix products: {cause}"))
            .help("the native engine takes one kernel for all devices: --compiler compiled tries others, and precision = \"f32\" needs less")
    } else if says_out_of_memory(&text) {
        Error::out_of_memory(format!("the device ran out of memory: {cause}"))
            .help("lower trainer.per_device_train_batch_size and raise trainer.gradient_accumulation_steps by as much")
    } else {
        Error::device(format!("the device failed: {cause}"))
            .help(format!("its memory is lost; {CONTINUE}, and with --compiler native if it comes back"))
    }
}

/// A matrix product whose tiles do not fit the device: without autotune Burn takes one kernel,
/// whose tiles in f16 and bf16 have 68 KiB, and capabilities up to 7.5 have 48 or 64.
const NO_TILE: &str = "Shared memory budget exceeded";

/// How Burn begins to say that weights could not be read from the device.
const IN_WEIGHTS: &str = "Failed to access TensorData storage: ";

/// The error of the device, if these words of a failure to write weights say that they could not be
/// read from it.
pub fn unread_weights(text: &str) -> Option<Error> {
    text.contains(IN_WEIGHTS).then(|| device_error(&text))
}

/// The innermost cause that an error of CubeCL's names, in one line. Its text has a line for every
/// layer that the error passed, "Caused by:" between them, and backtraces.
fn cause(text: &str) -> String {
    const FRAMES: [&str; 6] = ["Caused by", "Backtrace", "No backtrace", "Asked at", "skipped `", "("];
    let is_frame = |line: &str| {
        FRAMES.iter().any(|begin| line.starts_with(begin))
            || line.starts_with("at ")
            || line.split_once(": ").is_some_and(|(number, _)| number.parse::<u32>().is_ok())
    };
    let text = text.split_once(IN_WEIGHTS).map_or(text, |(_, text)| text);
    let text = text.trim_start_matches("called `Result::unwrap()` on an `Err` value: ");
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !is_frame(line));
    let first = lines.next().unwrap_or_default();
    match lines.next_back() {
        // "An error happened during execution" says nothing more.
        Some(last) if first.contains("poison") => format!("{first}: {last}"),
        Some(last) => last.to_owned(),
        None => first.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_error_of_a_device_is_its_innermost_cause() {
        let text = "An error happened during execution\nCaused by:\n  Several failures at once\nCaused by:\n  The bytes were \
                    never written (failure #1)\n  skipped `Fuse`: it needed memory\n  (2 older)\nCaused by:\n  An IO error \
                    happened\nCaused by:\n  out of device memory allocating 8 bytes\nNo backtrace available\nAsked at:\n  0: main\n  at a.rs";
        let error = device_error(&text);
        assert_eq!(error.message(), "the device ran out of memory: out of device memory allocating 8 bytes");
        assert_eq!((error.exit_code(), cause("one line")), (4, "one line".into()));
        let tiles = "Unable to launch matmul because a required feature is unavailable: Shared memory budget exceeded: kernel \
                     requests 69632 bytes, hardware allows 49152 bytes per cube.";
        let error = device_error(&tiles);
        assert_eq!(error.exit_code(), 2);
        assert!(
            error.to_string().contains("hardware allows 49152") && error.to_string().contains("--compiler compiled"),
            "{error}"
        );
        let poisoned = "The device is poisoned\nCaused by:\n  cuLaunchKernel failed with status 700\nBacktrace:";
        assert_eq!(cause(poisoned), "The device is poisoned: cuLaunchKernel failed with status 700");
    }

    #[test]
    fn a_poisoned_device_is_no_lack_of_memory() {
        let kind = |text: &str| device_error(&text).exit_code();
        assert_eq!(kind("The device is poisoned\nCaused by:\n  CUDA_ERROR_ILLEGAL_ADDRESS: illegal memory access"), 7);
        assert_eq!(kind("CUDA_ERROR_OUT_OF_MEMORY: out of memory"), 4);
        assert_eq!(kind("a launch failed"), 7);
    }
}
