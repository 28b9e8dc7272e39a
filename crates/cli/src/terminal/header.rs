//! The header of a run in the table: five lines of its plan, and a sixth where there are labels.

use std::fmt::Write as _;

use console::style;

use super::figures::fitted;
use kiln::config::CompilerMode;
use kiln::plan::{RunPlan, TrainPlan};
use kiln_core::words::thousands;

/// Columns of a line's name and the space after it.
const NAME: usize = 8;

/// Model, data, labels, batch, steps, and device with mode of `plan`: a line of at most `width`
/// columns each.
pub(super) fn header(plan: &RunPlan, width: Option<usize>) -> String {
    let TrainPlan { model, data, batch, steps, engine, .. } = &plan.train;
    let architecture = plan.architecture.as_ref();
    let task = architecture.map_or(String::new(), |it| format!(" for {}", it.task));
    let from = architecture.map_or_else(|| "random weights".into(), |it| it.origin());
    let validation = data.validation_examples.map_or("none".into(), |examples| thousands(examples as u64));
    let mode = match engine.mode {
        CompilerMode::Auto => "a trial chooses the mode".into(),
        mode => format!("{mode} mode"),
    };
    let counts = &plan.examples.counts;
    let labels = architecture.and_then(|it| counts.describe_labels(it.task)).map(|labels| ("", labels));
    let cut = match counts.train.map_or(0, |rows| rows.cut) {
        0 => String::new(),
        cut => format!(", {} cut", thousands(cut)),
    };
    let first = [
        ("model", format!("{}{task}, {} parameters, from {from}", model.kind, thousands(model.num_parameters as u64),)),
        (
            "data",
            format!(
                "{} examples{cut}, {} tokens; validation {validation}",
                thousands(data.train_examples as u64),
                thousands(data.train_tokens)
            ),
        ),
    ];
    let last = [
        (
            "batch",
            format!("{}, up to {} tokens/step", batch.arithmetic(), thousands((batch.global * batch.seq_len) as u64)),
        ),
        ("steps", format!("{} ({}), {} an epoch", thousands(steps.total as u64), steps.because, steps.per_epoch)),
        ("device", format!("{}, {mode}, {}", engine.device.describe(), engine.precision.describe())),
    ];
    let mut text = String::new();
    for (name, value) in first.into_iter().chain(labels).chain(last) {
        let value = fitted(&value, width.map(|width| width.saturating_sub(NAME)));
        let name = style(format!("{name:<NAME$}")).bold();
        writeln!(text, "{name}{value}").expect("writing to a String cannot fail");
    }
    text
}
