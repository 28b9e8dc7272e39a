//! The protocol between an arm and its driver, in lines: the driver writes `run N` to the arm's
//! stdin, and the arm answers on stdout with a line of JSON once it has made N steps, with the
//! times of all of them where the driver is a benchmark. Its first line, a [`Hello`], comes unasked
//! when it is ready. At `end` it makes one more step, its last, and says no more; a peer may just
//! end. Input that ends without that says that the driver is gone. Everything that an arm has to
//! tell people goes to stderr. An arm that fails writes `{"error": {"exit_code": .., "message":
//! ".."}}` to the file that the variable `KILN_ANSWER` names, and ends with that exit code of
//! Kiln's; a line on stderr that begins with `error: ` does too. Any program that speaks it can
//! take part (`--peer`): `benches/pytorch/worker.py` does.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::operators::OperatorTimes;
use kiln::trainer::laps::StepTimes;

/// The driver's last line.
pub use kiln_core::process::END;

/// The first line of an arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// Program, versions and machine: Kiln's [`Provenance`](kiln::session::provenance::Provenance),
    /// or what a peer says of itself.
    pub provenance: Value,
    /// Rows of a batch.
    pub batch: usize,
    /// Optimizer steps that it can make.
    pub total_steps: u64,
    /// Share of positions that is padding, where the arm knows it.
    #[serde(default)]
    pub padding: Option<f64>,
}

/// The answer to `run N`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// The steps.
    #[serde(default)]
    pub steps: Vec<StepTimes>,
    /// The times of single operators, from an arm that measures them instead of steps.
    #[serde(default)]
    pub operators: Vec<OperatorTimes>,
    /// The most memory so far, in MiB: resident on the CPU, of the device's pools on a GPU.
    pub peak_mib: Option<f64>,
}
