//! The events that Burn's fusion and CubeCL report while a run with `compiler.debug` goes on,
//! counted by Burn's own observers: the blocks of operations that became one kernel and the
//! operations that ran alone, and the kernels that were launched. This module exists in the
//! compiled engine only, and only [`crate::trainer::debug`] uses it. [`super::records`] reads from
//! the kernel cache which kernels were tuned and compiled meanwhile.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::backend::fusion::custom::OperationIr;
use burn::backend::fusion::observer::{BlockOperations, FusionObservation, FusionObserver};
use burn::cubecl::logging::{LaunchObservation, LaunchObserver};
use burn::tensor::Device;
use serde_json::{Value, json};

use super::records::Session;
use crate::engine::launches;

/// Observers at work; they count until [`finish`](Self::finish).
#[derive(Debug)]
pub(crate) struct Observed {
    blocks: Arc<Blocks>,
    kernels: Arc<Kernels>,
    records: Session,
    // Dropping them ends the counting.
    _fusion: FusionObservation,
    _launches: LaunchObservation,
}

impl Observed {
    /// Counts from now on.
    pub(crate) fn start() -> Self {
        let (blocks, kernels) = (Arc::<Blocks>::default(), Arc::<Kernels>::default());
        let (_fusion, _launches) = (FusionObservation::new(blocks.clone()), LaunchObservation::new(kernels.clone()));
        Self { blocks, kernels, records: Session::start(), _fusion, _launches }
    }

    /// The counts, once all work that was queued on `device` has run.
    pub(crate) fn finish(self, device: &Device) -> Value {
        // A device that failed has nothing more to say; what it did before counts.
        let _ = device.sync();
        let blocks = lock(&self.blocks.0);
        let total = |fused: bool, by: fn(usize) -> u64| -> u64 {
            blocks.iter().filter(|(names, _)| (names.len() > 1) == fused).map(|(names, n)| n * by(names.len())).sum()
        };
        let list = blocks.iter().map(|(names, times)| json!({ "operations": names, "times": times }));
        let kernels = lock(&self.kernels.0);
        json!({
            "fused_blocks": total(true, |_| 1),
            "fused_operations": total(true, |operations| operations as u64),
            "single_operations": total(false, |_| 1),
            "blocks": list.collect::<Value>(),
            "launches": kernels.values().sum::<u64>(),
            "distinct_kernels": kernels.len(),
            "kernels": kernels.iter().map(|(name, times)| json!({ "kernel": name, "times": times })).collect::<Value>(),
            "cache": self.records.read(),
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often each sequence of operations ran as one block.
#[derive(Debug, Default)]
struct Blocks(Mutex<BTreeMap<Vec<String>, u64>>);

impl FusionObserver for Blocks {
    fn registered(&self, _operation: &OperationIr) {}

    fn block_starts(&self, block: BlockOperations<'_>) {
        let names = block.iter().filter_map(name).collect::<Vec<_>>();
        if !names.is_empty() {
            *lock(&self.0).entry(names).or_insert(0) += 1;
        }
    }

    fn block_ran(&self) {}
}

/// How often each kernel was launched.
#[derive(Debug, Default)]
struct Kernels(Mutex<BTreeMap<&'static str, u64>>);

impl LaunchObserver for Kernels {
    fn launched(&self, kernel: &'static str) {
        launches::add(1); // there is one observer at a time
        *lock(&self.0).entry(kernel).or_insert(0) += 1;
    }
}

/// A short name of an operation, such as `Add`; none for the end of a tensor, which computes
/// nothing.
fn name(operation: &OperationIr) -> Option<String> {
    match operation {
        OperationIr::Drop(_) => None,
        OperationIr::Custom(custom) => Some(custom.id.clone()),
        other => {
            // `NumericFloat(F32, Add(BinaryOpIr {..`: the operation is what stands before the last
            // bracket.
            let mut start = Start(String::new());
            let _ = write!(start, "{other:?}");
            let before = start.0.split(" {").next().unwrap_or_default();
            let path = before.split(['(', ',']).map(str::trim).filter(|word| !word.is_empty()).collect::<Vec<_>>();
            let at = path.len().saturating_sub(2);
            path.get(at).map(|word| (*word).to_owned())
        }
    }
}

/// The start of a text: the rest is not written.
struct Start(String);

impl Write for Start {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.push_str(text);
        if self.0.len() > 64 { Err(std::fmt::Error) } else { Ok(()) }
    }
}
