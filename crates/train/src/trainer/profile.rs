//! `trainer.profile_steps`: where the time of some steps goes, as a file of traces that
//! chrome://tracing and Perfetto show. It has the steps, in them the parts ([`Part`]) with those
//! that lie in others, and in these the calls of operators ([`trace`]), all of the thread that
//! trains. On a device that works asynchronously parts and calls end when their work is handed
//! over, and the device is waited for in `sync`.
//!
//! [`Part`]: super::observer::Part

use std::path::Path;
use std::time::Instant;

use kiln_core::error::Result;
use kiln_core::files::write_json;
use kiln_models::ops::trace;
use serde_json::{Value, json};

use super::spans::{Spans, Timed};
use crate::run_folder::TRACE;

/// Steps that are looked at.
#[derive(Debug)]
pub(super) struct Profile {
    /// The first and the last.
    window: [u64; 2],
    /// None before the first.
    seen: Option<Seen>,
}

#[derive(Debug)]
struct Seen {
    /// The number of each, when it began and when it ended.
    steps: Vec<(u64, Instant, Instant)>,
    parts: Vec<Timed>,
    calls: Vec<trace::Timed>,
}

impl Profile {
    pub(super) fn of(window: Option<[u64; 2]>) -> Option<Self> {
        window.map(|window| Self { window, seen: None })
    }

    /// Step `step` begins.
    pub(super) fn begin_step(&self, step: u64, spans: &Spans) {
        if (self.window[0]..=self.window[1]).contains(&step) {
            spans.keep();
            trace::start();
        }
    }

    /// Step `step`, which began at `began`, has ended. After the last one the file is written below
    /// the run folder `folder`; a sentence says so.
    pub(super) fn end_step(
        &mut self,
        step: u64,
        began: Instant,
        spans: &Spans,
        is_last: bool,
        folder: &Path,
    ) -> Result<Option<String>> {
        if !(self.window[0]..=self.window[1]).contains(&step) {
            return Ok(None);
        }
        let seen = self.seen.get_or_insert_with(|| Seen { steps: Vec::new(), parts: Vec::new(), calls: Vec::new() });
        seen.steps.push((step, began, spans.counted_until()));
        seen.parts.extend(spans.take_kept());
        seen.calls.extend(trace::stop());
        if step < self.window[1] && !is_last {
            return Ok(None);
        }
        let path = folder.join(TRACE);
        write_json(&path, &seen.to_json())?;
        let steps = match seen.steps.as_slice() {
            [(one, ..)] => format!("step {one}"),
            steps => format!("steps {} to {step}", steps[0].0),
        };
        Ok(Some(format!("profile of {steps}: {}; chrome://tracing and ui.perfetto.dev show it", path.display())))
    }
}

impl Seen {
    /// The file, by the format of the Trace Event Profiling Tool: complete events, in microseconds.
    fn to_json(&self) -> Value {
        let origin = self.steps[0].1;
        let event = |category: &str, name: &str, began: Instant, ended: Instant, args: Value| {
            // Whole nanoseconds, so that what lies in another event does so in the file.
            let micros = |nanos: u128| nanos as f64 / 1e3;
            let (from, to) = ((began - origin).as_nanos(), (ended - origin).as_nanos());
            json!({
                "name": name, "cat": category, "ph": "X", "ts": micros(from), "dur": micros(to.saturating_sub(from)),
                "pid": 1, "tid": 1, "args": args,
            })
        };
        let steps = self
            .steps
            .iter()
            .map(|(step, began, ended)| event("step", &format!("step {step}"), *began, *ended, json!({})));
        let parts = self.parts.iter().map(|it| event("part", it.part.name(), it.began, it.ended, json!({})));
        let calls = self.calls.iter().map(|it| {
            let pass = if it.is_backward { "backward" } else { "forward" };
            event("operator", it.operator, it.began, it.ended, json!({ "pass": pass }))
        });
        let name = json!({ "name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": { "name": "training" } });
        let events = std::iter::once(name).chain(steps).chain(parts).chain(calls).collect::<Vec<_>>();
        json!({ "displayTimeUnit": "ms", "traceEvents": events })
    }
}
