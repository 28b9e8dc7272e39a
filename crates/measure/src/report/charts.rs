//! Which charts a report has, and what they show.

use kiln::trainer::laps::{Parts, StepTimes};
use kiln_core::error::Result;
use kiln_core::metrics::Record;
use kiln_core::stats::mean;
use plotters::style::RGBColor;

use super::drawing::{
    Across, Bar, Chart, Curve, Dot, Named, Point, Span, Stack, bar_chart, line_chart, scatter, series, stacked_chart,
};
use super::run::RunPage;
use crate::compare::{ArmReport, Comparison, LossPoint, Report, Role};
use crate::sweep::{Sweep, Trial};
use crate::verdict::Verdict;

/// Every name that a chart of a comparison may have.
pub(super) const NAMES: [&str; 8] = [
    "throughput",
    "validation-loss",
    "loss-steps",
    "loss-tokens",
    "loss-seconds",
    "time-budget",
    "memory",
    "batch-scan",
];

/// The horizontal axis of whatever is drawn by optimizer steps.
const STEP: &str = "step";

/// The key of the loss on the validation data.
const EVAL_LOSS: &str = "eval_loss";

/// Every chart that the report has figures for.
pub(super) fn all(report: &Report) -> Result<Vec<Chart>> {
    let arms = report.arms.iter().filter(|arm| arm.role != Role::Again).collect::<Vec<_>>();
    let mut charts = Vec::new();
    let validation = |(index, arm): (usize, &&ArmReport)| {
        let at = |row: &Record| Some(Point::at(row.get("step")?, row.get(EVAL_LOSS)?));
        Curve::new(arm.name.clone(), color(arm, index), arm.evaluations.iter().filter_map(at).collect())
    };
    let validation = arms.iter().enumerate().map(validation).collect::<Vec<_>>();
    // An ablation learns what its arm does, and the points of a sweep are too many.
    let learns = |arm: &&&ArmReport| arm.loss.len() > 1 && !matches!(arm.role, Role::Ablation | Role::Sweep);
    let learning = arms.iter().filter(learns).collect::<Vec<_>>();
    let logged = learning.iter().flat_map(|arm| &arm.loss).map(|point| point.step as f64);
    let steps = Across::shared(STEP, validation.iter().flat_map(Curve::moments).chain(logged));
    let named = Named {
        name: "validation-loss",
        title: "Validation loss",
        caption: "Loss on the validation data by optimizer steps.",
    };
    charts.extend(line_chart(&named, &steps, EVAL_LOSS, &validation, Span::Values)?);
    let named = Named {
        name: "throughput",
        title: "Throughput",
        caption: "Median of the examples a second in the steady state. In brackets: the change against native, or of an arm \
                  with a part off against compiled, where a difference could be measured; the line at the end of a bar is \
                  its 98 % interval.",
    };
    let throughput = |(index, arm): (usize, &&ArmReport)| {
        let value = arm.figures.samples_per_s?;
        let comparison = report.comparisons.iter().find(|comparison| comparison.arm == arm.name);
        let speedup = comparison.and_then(|comparison| comparison.speedup);
        let interval = speedup.map(|it| [it.low, it.high].map(|end| value * end / it.ratio));
        let label = format!("{value:.2} samples/s{}", comparison.map_or(String::new(), gain));
        Some(Bar { name: arm.name.clone(), value, interval, label, color: color(arm, index) })
    };
    charts.extend(bar_chart(&named, &arms.iter().enumerate().filter_map(throughput).collect::<Vec<_>>())?);
    type Axis = (&'static str, &'static str, Across, fn(&LossPoint) -> f64);
    let axes: [Axis; 3] = [
        ("loss-steps", "Loss by steps", steps, |point| point.step as f64),
        ("loss-tokens", "Loss by tokens", Across::of("tokens"), |point| point.tokens),
        ("loss-seconds", "Loss by seconds", Across::of("seconds of training"), |point| point.seconds),
    ];
    // Where every step has as many tokens, this is the picture by steps once more.
    let is_by_steps = |pair: &[&&ArmReport]| {
        let [a, b] = [&pair[0].loss, &pair[1].loss];
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.step == b.step && a.tokens == b.tokens)
    };
    let has_tokens = !learning.windows(2).all(is_by_steps);
    for (name, title, across, x) in axes.into_iter().filter(|axis| has_tokens || axis.0 != "loss-tokens") {
        let curve = |(index, arm): (usize, &&&ArmReport)| {
            let at = |it: &LossPoint| Point::at(x(it), it.loss).within(it.low, it.high);
            // Later lines are thinner, so that curves that lie on each other are all seen.
            let width = if index == 0 { 5 } else { 2 };
            Curve::new(arm.name.clone(), color(arm, index), arm.loss.iter().map(at).collect()).wide(width)
        };
        let curves = learning.iter().enumerate().map(curve).collect::<Vec<_>>();
        let caption = "Mean loss of the repeats; the bands reach from the least to the largest of their seeds.";
        charts.extend(line_chart(&Named { name, title, caption }, &across, "loss", &curves, Span::Values)?);
    }
    let stacks = arms
        .iter()
        .filter_map(|arm| Some(Stack { name: arm.name.clone(), parts: arm.budget_ms.as_ref()?.named().to_vec() }));
    let named = Named {
        name: "time-budget",
        title: "Time of a step",
        caption: "Milliseconds of a steady step by part, medians; evaluation and saving are spread over the whole run.",
    };
    charts.extend(stacked_chart(&named, "ms", &stacks.collect::<Vec<_>>())?);
    let named = Named {
        name: "memory",
        title: "Peak memory",
        caption: "The most memory that the process had resident, median of the runs.",
    };
    let memory = |(index, arm): (usize, &&ArmReport)| {
        let value = arm.figures.peak_mib?;
        let label = format!("{value:.0} MiB");
        Some(Bar { name: arm.name.clone(), value, interval: None, label, color: color(arm, index) })
    };
    charts.extend(bar_chart(&named, &arms.iter().enumerate().filter_map(memory).collect::<Vec<_>>())?);
    let named = Named {
        name: "batch-scan",
        title: "Batch scan",
        caption: "Examples a second by batch, median; one line for each mode and block.",
    };
    charts.extend(line_chart(&named, &Across::of("batch"), "samples/s", &scan(&arms), Span::FromZero)?);
    Ok(charts)
}

/// The charts of one run; those by optimizer steps have one axis.
pub(super) fn of_run(run: &RunPage) -> Result<Vec<Chart>> {
    let mut charts = Vec::new();
    let of = |key: &str, index: usize| {
        let at = |(row, _): &(Record, f64)| Some(Point::at(row.get("step")?, row.get(key)?));
        Curve::new(key, series(index), run.timed_rows.iter().filter_map(at).collect())
    };
    let logged = run.timed_rows.iter().filter_map(|(row, _)| row.get("step"));
    let across = Across::shared(STEP, logged.chain(run.steps.iter().map(|step| step.step as f64)));
    let scores = run.score_names();
    let scores = scores.iter().enumerate().map(|(index, key)| of(key, index + 1)).collect::<Vec<_>>();
    let score = if let [score] = &run.score_names()[..] { score } else { "" };
    let lines = [
        (
            ("loss", "Loss", "loss: mean of the steps between two log rows; eval_loss: on the validation data."),
            "loss",
            vec![of("loss", 1), of(EVAL_LOSS, 2)],
            Span::Values,
        ),
        (("scores", "Scores", "Scores on the validation data."), score, scores, Span::Values),
        (
            ("learning-rate", "Learning rate", "Learning rate of the last step before a log row."),
            "learning_rate",
            vec![of("learning_rate", 1)],
            Span::Values,
        ),
        (
            ("gradient-norm", "Gradient norm", "L2 norm of all gradients, before clipping."),
            "grad_norm",
            vec![of("grad_norm", 1)],
            Span::FromZero,
        ),
        (
            ("tokens", "Throughput", "Tokens a second without padding, between two log rows."),
            "tokens_per_s",
            vec![of("tokens_per_s", 1)],
            Span::FromZero,
        ),
        (
            (
                "memory",
                "Memory",
                "peak_mib: the most so far; reserved_mib: what the device's allocator or the process holds at a log row.",
            ),
            "MiB",
            vec![of("peak_mib", 2).wide(5), of("reserved_mib", 1)],
            Span::FromZero,
        ),
        (
            ("step-time", "Step time", "Milliseconds of a step, without evaluation and saving."),
            "step_ms",
            vec![Curve::new(
                "step_ms",
                series(1),
                run.steps.iter().map(|step| Point::at(step.step as f64, step.step_ms)).collect(),
            )],
            Span::FromZero,
        ),
    ];
    for ((name, title, caption), key, curves, up) in lines {
        charts.extend(line_chart(&Named { name, title, caption }, &across, key, &curves, up)?);
    }
    if !run.steps.is_empty() {
        let parts = Parts::over(&run.steps.iter().map(StepTimes::parts).collect::<Vec<_>>(), mean).named().to_vec();
        let caption = if run.is_cpu() {
            "Milliseconds of a step by part, means over all steps; evaluation and saving are spread over them."
        } else {
            "Milliseconds of a step by part, means over all steps; evaluation and saving are spread over them. The device is \
             waited for in \"sync\"."
        };
        let named = Named { name: "time-step", title: "Time of a step", caption };
        charts.extend(stacked_chart(&named, "ms", &[Stack { name: "mean step".into(), parts }])?);
    }
    let named = Named {
        name: "time-run",
        title: "Time of the run",
        caption: &format!(
            "Seconds by part up to the last log row: waiting for data, training, evaluating and saving{}.",
            run.of_last_start()
        ),
    };
    charts.extend(stacked_chart(&named, "s", &[Stack { name: "the run".into(), parts: run.seconds_by_part() }])?);
    Ok(charts)
}

/// The charts of a search: the figure of its trials by step, and the last figure of each by each
/// key. The best trial is in colour.
pub(super) fn of_sweep(sweep: &Sweep) -> Result<Vec<Chart>> {
    let ranked = sweep.ranked();
    let name = |trial: &Trial| format!("trial {}", trial.number);
    let best = sweep.best().len();
    let called = if best == 1 { "the best" } else { "equal" };
    // The best lies above the others, of which one stands for all in the legend.
    let mut curves = Vec::new();
    for (place, trial) in ranked.iter().enumerate().rev() {
        let points = sweep.curve(trial)?.into_iter().map(|(step, value)| Point::at(step, value)).collect();
        curves.push(match place {
            place if place < best => {
                Curve::new(name(trial), series(1), points).wide(4).called(&format!("{}, {called}", name(trial)))
            }
            _ => Curve::new(name(trial), series(0), points).wide(2).called(if place == best { "others" } else { "" }),
        });
    }
    let named = Named {
        name: "trials",
        title: "Trials",
        caption: "The figure by which trials are ranked, by steps; the best trial is in colour, or all that are equally good. A \
                  trial that was stopped early ends at its rung.",
    };
    let mut charts = Vec::new();
    let across = Across::shared(STEP, curves.iter().flat_map(Curve::moments));
    charts.extend(line_chart(&named, &across, &sweep.metric, &curves, Span::Values)?);
    let caption = "Each trial by this key and its last figure; the best is in colour, and a ring was stopped early.";
    let keys = sweep.trials.first().into_iter().flat_map(|trial| trial.parameters.keys());
    for key in keys {
        let dot = |(place, trial): (usize, &&Trial)| {
            Some(Dot {
                name: name(trial),
                x: trial.parameters.get(key)?.clone(),
                y: trial.last()?.value,
                is_full: trial.is_complete(),
                is_best: place < best,
            })
        };
        let dots = ranked.iter().enumerate().filter_map(dot).collect::<Vec<_>>();
        charts.extend(scatter(&Named { name: "parameter", title: key, caption }, [key, &sweep.metric], &dots)?);
    }
    Ok(charts)
}

/// `(+107%)` as SageMaker's notebook labels its bars: `round((o / n - 1) x 100)`, for an arm that
/// differs from native and ran by turns with it.
fn gain(comparison: &Comparison) -> String {
    let differs = matches!(comparison.verdict, Verdict::Faster | Verdict::Slower) && comparison.learned.is_none();
    let gain = comparison.throughput_gained_percent.filter(|_| differs);
    gain.map_or(String::new(), |gain| format!(" ({gain:+.0}%)"))
}

fn color(arm: &ArmReport, index: usize) -> RGBColor {
    match arm.role {
        Role::Reference => series(0),
        Role::Compiled => series(1),
        Role::Ablation => series(6),
        Role::Sweep => series(usize::from(arm.name.starts_with("compiled"))),
        _ => series(index),
    }
}

/// The speed by batch: a curve for each mode and block.
fn scan(arms: &[&ArmReport]) -> Vec<Curve> {
    let mut lines = Vec::<(String, Vec<(f64, f64)>)>::new();
    for arm in arms.iter().filter(|arm| arm.role == Role::Sweep) {
        let (Some(batch), Some(rate)) = (arm.micro_batch, arm.figures.samples_per_s) else { continue };
        let mode = arm.name.split('-').next().unwrap_or_default();
        let name = arm.block.map_or(mode.to_owned(), |block| format!("{mode}, block {block}"));
        match lines.iter_mut().find(|line| line.0 == name) {
            Some((_, points)) => points.push((batch as f64, rate)),
            None => lines.push((name, vec![(batch as f64, rate)])),
        }
    }
    let curve = |(index, (name, mut points)): (usize, (String, Vec<(f64, f64)>))| {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Curve::new(name, series(index), points.into_iter().map(|(x, y)| Point::at(x, y)).collect())
    };
    lines.into_iter().enumerate().map(curve).collect()
}
