//! The charts of a report, drawn as SVG by plotters in a sans-serif font of the machine that shows
//! them. Text is large, since a phone shows them at half their size.

use kiln::trainer::laps::{Parts, StepTimes};
use kiln_core::error::{Error, Result, one_line};
use kiln_core::metrics::Record;
use kiln_core::stats::mean;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde::Serialize;

use super::run::Run;
use crate::compare::{ArmReport, Comparison, LossPoint, Report, Role};
use crate::sweep::Sweep;
use crate::table::{Rows, Table, significant};
use crate::verdict::Verdict;

/// A drawn chart.
#[derive(Serialize)]
pub(super) struct Chart {
    /// Name of the files of the chart.
    pub(super) name: &'static str,
    /// Its subject.
    pub(super) title: &'static str,
    /// How to read it.
    pub(super) caption: String,
    /// The name of the first column of its table.
    pub(super) first: &'static str,
    /// Its figures, for whoever does not see the drawing.
    pub(super) table: Table,
    /// The drawing: an `<svg>` element without the name of its tag, which HTML writes with
    /// attributes of its own.
    pub(super) drawing: String,
}

impl Chart {
    /// The drawing as a file.
    pub(super) fn svg(&self) -> String {
        format!("<svg {}", self.drawing)
    }
}

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

const WIDTH: u32 = 600;
/// plotters divides sizes by 1.24 when it writes SVG: this is 16 pixels.
const TEXT: f64 = 20.0;
const FAMILY: &str = "system-ui, sans-serif";
const INK: RGBColor = RGBColor(27, 31, 36);
const PALE: RGBColor = RGBColor(216, 222, 228);

/// Gray is native, blue compiled; colours that the colour-blind tell apart (Okabe & Ito 2008).
const COLORS: [RGBColor; 8] = [
    RGBColor(110, 118, 129),
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(148, 103, 189),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

/// Every chart that the report has figures for.
pub(super) fn all(report: &Report) -> Result<Vec<Chart>> {
    let arms = report.arms.iter().filter(|arm| arm.role != Role::Again).collect::<Vec<_>>();
    let mut charts = Vec::new();
    let validation = |(index, arm): (usize, &&ArmReport)| {
        let at = |row: &Record| Some((row.get("step")?, row.get("eval_loss")?));
        let points = arm.evaluations.iter().filter_map(at).map(|(x, y)| Point { x, y, low: y, high: y });
        let (name, color, points) = (arm.name.clone(), color(arm, index), points.collect::<Vec<_>>());
        Curve { name, color, width: 3, has_dots: points.len() <= MOST_DOTS, points: thinned(points) }
    };
    charts.extend(line_chart(
        ("validation-loss", "Validation loss"),
        "Loss on the validation data by optimizer steps.",
        ["optimizer steps", "validation loss"],
        &arms.iter().enumerate().map(validation).collect::<Vec<_>>(),
        Span::Values,
    )?);
    let throughput = |arm: &ArmReport| {
        let value = arm.figures.samples_per_s?;
        Some((value, format!("{value:.2} samples/s{}", gain(arm, &report.comparisons))))
    };
    charts.extend(bar_chart(
        ("throughput", "Throughput"),
        "Median of the examples a second in the steady state. In brackets: the change against native, or of an arm with a part \
         off against compiled, where a difference could be measured.",
        &bars(&arms, throughput),
    )?);
    type Axis = (&'static str, &'static str, &'static str, fn(&LossPoint) -> f64);
    let axes: [Axis; 3] = [
        ("loss-steps", "Loss by steps", "optimizer steps", |point| point.step as f64),
        ("loss-tokens", "Loss by tokens", "tokens", |point| point.tokens),
        ("loss-seconds", "Loss by seconds", "seconds of training", |point| point.seconds),
    ];
    for (name, title, axis, x) in axes {
        // An ablation learns what its arm does, and the points of a sweep are too many.
        let shown = |arm: &&&ArmReport| arm.loss.len() > 1 && !matches!(arm.role, Role::Ablation | Role::Sweep);
        let curve = |(index, arm): (usize, &&ArmReport)| Curve {
            name: arm.name.clone(),
            color: color(arm, index),
            // Later lines are thinner, so that curves that lie on each other are all seen.
            width: if index == 0 { 5 } else { 2 },
            has_dots: false,
            points: arm.loss.iter().map(|it| Point { x: x(it), y: it.loss, low: it.low, high: it.high }).collect(),
        };
        let curves = arms.iter().filter(shown).enumerate().map(curve).collect::<Vec<_>>();
        let caption = format!(
            "Mean loss of the repeats by {axis}; the bands reach from the least to the largest of their seeds."
        );
        charts.extend(line_chart((name, title), &caption, [axis, "loss"], &curves, Span::Values)?);
    }
    let stacks = arms
        .iter()
        .filter_map(|arm| Some(Stack { name: arm.name.clone(), parts: arm.budget_ms.as_ref()?.named().to_vec() }));
    charts.extend(stacked_chart(
        ("time-budget", "Time of a step"),
        "Milliseconds of a steady step by part, medians; evaluation and saving are spread over the whole run.",
        "ms",
        &stacks.collect::<Vec<_>>(),
    )?);
    let memory = |arm: &ArmReport| arm.figures.peak_mib.map(|value| (value, format!("{value:.0} MiB")));
    charts.extend(bar_chart(
        ("memory", "Peak memory"),
        "The most memory that the process had resident, median of the runs.",
        &bars(&arms, memory),
    )?);
    let caption = "Examples a second by batch, median; one line for each mode and block.";
    charts.extend(line_chart(
        ("batch-scan", "Batch scan"),
        caption,
        ["batch", "samples/s"],
        &scan(&arms),
        Span::FromZero,
    )?);
    Ok(charts)
}

/// The charts of one run, by optimizer steps and by seconds of training.
pub(super) fn of_run(run: &Run) -> Result<Vec<Chart>> {
    let mut charts = Vec::new();
    let curve = |name: &str, index: usize, points: Vec<Point>| Curve {
        name: name.into(),
        color: COLORS[index % COLORS.len()],
        width: 3,
        has_dots: points.len() <= MOST_DOTS,
        points: thinned(points),
    };
    let of = |key: &str, seconds: bool| {
        let at = |(row, since): &(Record, f64)| {
            let y = row.get(key)?;
            Some(Point { x: if seconds { *since } else { row.get("step")? }, y, low: y, high: y })
        };
        run.timed_rows.iter().filter_map(at).collect::<Vec<_>>()
    };
    const STEPS: &str = "optimizer steps";
    const SECONDS: &str = "seconds of training";
    let curves = [curve("training", 1, of("loss", false)), curve("validation", 2, of("eval_loss", false))];
    let caption = "Mean loss of the steps between two log rows, and loss on the validation data.";
    charts.extend(line_chart(("loss", "Loss"), caption, [STEPS, "loss"], &curves, Span::Values)?);
    let scores = run.score_names();
    let scores = scores.iter().enumerate();
    let scores = scores.map(|(index, key)| curve(key.trim_start_matches("eval_"), index + 1, of(key, false)));
    let caption = "Scores on the validation data.";
    charts.extend(line_chart(
        ("scores", "Scores"),
        caption,
        [STEPS, "score"],
        &scores.collect::<Vec<_>>(),
        Span::Values,
    )?);
    type One = (&'static str, &'static str, &'static str, &'static str, bool, Span);
    let ones: [One; 3] = [
        ("learning_rate", "learning-rate", "Learning rate", "Of the last step before a log row.", false, Span::Values),
        (
            "grad_norm",
            "gradient-norm",
            "Gradient norm",
            "L2 norm of all gradients, before clipping.",
            false,
            Span::FromZero,
        ),
        (
            "tokens_per_s",
            "tokens",
            "Throughput",
            "Attended tokens a second, between two log rows.",
            true,
            Span::FromZero,
        ),
    ];
    for (key, name, title, caption, is_by_time, span) in ones {
        let curves = [curve(title, 1, of(key, is_by_time))];
        let y = if key == "tokens_per_s" { "tokens/s" } else { title };
        let axes = [if is_by_time { SECONDS } else { STEPS }, y];
        charts.extend(line_chart((name, title), caption, axes, &curves, span)?);
    }
    let curves = [curve("peak", 2, of("peak_mib", true)), curve("reserved", 1, of("reserved_mib", true))];
    let caption = "Memory in MiB: the most so far, and what the device's allocator or the process holds at a log row.";
    charts.extend(line_chart(("memory", "Memory"), caption, [SECONDS, "MiB"], &curves, Span::FromZero)?);
    if !run.steps.is_empty() {
        let point =
            |step: &StepTimes| Point { x: step.step as f64, y: step.step_ms, low: step.step_ms, high: step.step_ms };
        let curves = [curve("Step time", 1, run.steps.iter().map(point).collect())];
        let caption = "Milliseconds of a step, without evaluation and saving.";
        charts.extend(line_chart(("step-time", "Step time"), caption, [STEPS, "ms"], &curves, Span::FromZero)?);
        let parts = Parts::over(&run.steps.iter().map(StepTimes::parts).collect::<Vec<_>>(), mean).named().to_vec();
        let stack = Stack { name: "mean step".into(), parts };
        let caption = if run.is_cpu() {
            "Milliseconds of a step by part, means over all steps; evaluation and saving are spread over them."
        } else {
            "Milliseconds of a step by part, means over all steps; evaluation and saving are spread over them. The device is \
             waited for in \"sync\"."
        };
        charts.extend(stacked_chart(("time-step", "Time of a step"), caption, "ms", &[stack])?);
    }
    let stack = Stack { name: "the run".into(), parts: run.seconds_by_part() };
    let caption = "Seconds by part up to the last log row: waiting for data, training, evaluating and saving.";
    charts.extend(stacked_chart(("time-run", "Time of the run"), caption, "s", &[stack])?);
    Ok(charts)
}

/// The charts of a search: the figure of its trials by step, the best first, as many as there are
/// colours.
pub(super) fn of_sweep(sweep: &Sweep) -> Result<Vec<Chart>> {
    let ranked = sweep.ranked().into_iter().filter_map(|trial| Some((trial, trial.arms.first()?)));
    let mut curves = Vec::new();
    for (color, (trial, arm)) in COLORS.into_iter().zip(ranked) {
        // A run that was removed has no curve.
        let rows = if arm.run.is_dir() { kiln_core::metrics::read(&arm.run)? } else { Vec::new() };
        let at = |row: &Record| {
            let (x, y) = (row.get("step")?, row.get(&sweep.metric)?);
            Some(Point { x, y, low: y, high: y })
        };
        let points = rows.iter().filter_map(at).collect::<Vec<_>>();
        let (name, has_dots) = (format!("trial {}", trial.number), points.len() <= MOST_DOTS);
        curves.push(Curve { name, color, width: 3, has_dots, points: thinned(points) });
    }
    let caption = "The figure by which trials are ranked, of the best of them.";
    let axes = ["optimizer steps", "figure"];
    Ok(line_chart(("trials", "Trials"), caption, axes, &curves, Span::Values)?.into_iter().collect())
}

/// Curves of more points are drawn as the mean of as many stretches, in a band from the least to
/// the largest.
const MOST_POINTS: usize = 300;

/// Points that are few enough to be told from one another.
const MOST_DOTS: usize = 40;

/// The largest absolute value that a chart draws. Larger values appear in the chart's table only.
const MOST_DRAWN: f64 = 1e30;

/// The most rows of a chart's table.
const MOST_ROWS: usize = 40;

fn thinned(points: Vec<Point>) -> Vec<Point> {
    let stretch = points.len().div_ceil(MOST_POINTS).max(1);
    if stretch == 1 {
        return points;
    }
    let one = |all: &[Point]| {
        let finite = all.iter().filter(|point| point.y.is_finite()).collect::<Vec<_>>();
        let (low, high) =
            finite.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), it| (low.min(it.y), high.max(it.y)));
        // A mean of nothing is NaN, as is what it stands for.
        let y = mean(&finite.iter().map(|point| point.y).collect::<Vec<_>>());
        Point { x: all[all.len() - 1].x, y, low, high }
    };
    points.chunks(stretch).map(one).collect()
}

/// `(+107%)` as SageMaker's notebook labels its bars: `round((o / n - 1) x 100)`, for an arm that
/// differs from native.
fn gain(arm: &ArmReport, comparisons: &[Comparison]) -> String {
    let comparison = comparisons.iter().find(|comparison| comparison.arm == arm.name);
    let differs = comparison.filter(|comparison| matches!(comparison.verdict, Verdict::Faster | Verdict::Slower));
    differs
        .and_then(|comparison| comparison.throughput_gained_percent)
        .map_or(String::new(), |gain| format!(" ({gain:+.0}%)"))
}

fn draw(height: u32, chart: impl FnOnce(&Area) -> Drawn) -> Result<String> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
    let drawn = area.fill(&WHITE).map_err(Into::into).and_then(|()| chart(&area)).and_then(|()| Ok(area.present()?));
    drawn.map_err(|error| Error::data(format!("a chart cannot be drawn: {error}")))?;
    drop(area);
    Ok(svg.split_off(svg.find("<svg ").map_or(0, |tag| tag + "<svg ".len())))
}

fn write(area: &Area, text: &str, at: (i32, i32), size: f64, color: &RGBColor, align: HPos) -> Drawn {
    let style = (FAMILY, size).into_font().color(color).pos(Pos::new(align, VPos::Center));
    Ok(area.draw(&Text::new(one_line(text), at, style))?)
}

/// A bar with the name above it and the figure behind.
struct Bar {
    name: String,
    value: f64,
    label: String,
    color: RGBColor,
}

fn bars(arms: &[&ArmReport], pick: impl Fn(&ArmReport) -> Option<(f64, String)>) -> Vec<Bar> {
    let bar = |(index, arm): (usize, &&ArmReport)| {
        let (value, label) = pick(arm)?;
        Some(Bar { name: arm.name.clone(), value, label, color: color(arm, index) })
    };
    arms.iter().enumerate().filter_map(bar).collect()
}

const BAR: u32 = 64;
const HEAD: i32 = 50;

/// The shares of a line chart's height that stay free above its curves: of the rim and of each line
/// of the legend, and at most.
const LEGEND_HEAD: f64 = 0.04;
const LEGEND_LINE: f64 = 0.1;
const MOST_FREE: f64 = 0.5;

fn bars_height(bars: usize) -> u32 {
    HEAD as u32 + BAR * bars as u32 + 10
}

/// Name and title of a chart.
type Named = (&'static str, &'static str);

/// Lying bars, each under its label and with its figure behind the label; none without bars.
fn bar_chart((name, title): Named, caption: &str, bars: &[Bar]) -> Result<Option<Chart>> {
    if bars.is_empty() {
        return Ok(None);
    }
    let most = bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
    let drawing = draw(bars_height(bars.len()), |area| {
        write(area, title, (16, 24), TEXT * 1.15, &INK, HPos::Left)?;
        for (index, bar) in bars.iter().enumerate() {
            let top = HEAD + BAR as i32 * index as i32;
            write(area, &bar.name, (16, top + 12), TEXT, &INK, HPos::Left)?;
            write(area, &bar.label, (WIDTH as i32 - 16, top + 12), TEXT, &INK, HPos::Right)?;
            let right = 16 + ((f64::from(WIDTH) - 32.0) * bar.value / most) as i32;
            area.draw(&Rectangle::new([(16, top + 28), (WIDTH as i32 - 16, top + 50)], PALE.filled()))?;
            area.draw(&Rectangle::new([(16, top + 28), (right, top + 50)], bar.color.filled()))?;
        }
        Ok(())
    })?;
    let only = [title];
    let mut rows = Rows::new(&only);
    bars.iter().for_each(|bar| rows.add(&bar.name, |_| Some(bar.label.clone())));
    Ok(Some(Chart { name, title, caption: caption.into(), first: "arm", table: rows.table(|name| name), drawing }))
}

fn color(arm: &ArmReport, index: usize) -> RGBColor {
    match arm.role {
        Role::Reference => COLORS[0],
        Role::Compiled => COLORS[1],
        Role::Ablation => COLORS[6],
        Role::Sweep => COLORS[usize::from(arm.name.starts_with("compiled"))],
        _ => COLORS[index % COLORS.len()],
    }
}

/// A bar of parts.
struct Stack {
    name: String,
    parts: Vec<(&'static str, f64)>,
}

/// Lying bars of parts, all with the parts of the first; none where there is no time.
fn stacked_chart((name, title): Named, caption: &str, unit: &str, stacks: &[Stack]) -> Result<Option<Chart>> {
    let total = |stack: &Stack| stack.parts.iter().map(|part| part.1).sum::<f64>();
    let most = stacks.iter().map(total).fold(0.0, f64::max);
    if !(most > 0.0 && most <= MOST_DRAWN) {
        return Ok(None);
    }
    let drawing = draw(bars_height(stacks.len()) + 60, |area| {
        write(area, title, (16, 24), TEXT * 1.15, &INK, HPos::Left)?;
        // Two rows of the legend.
        let (mut x, mut y) = (16, HEAD + 4);
        for (index, (name, _)) in stacks[0].parts.iter().enumerate() {
            let wide = 34 + 11 * name.len() as i32;
            if x + wide > WIDTH as i32 - 10 {
                (x, y) = (16, y + 28);
            }
            area.draw(&Rectangle::new([(x, y - 8), (x + 16, y + 8)], COLORS[(index + 1) % COLORS.len()].filled()))?;
            write(area, name, (x + 22, y), TEXT * 0.9, &INK, HPos::Left)?;
            x += wide;
        }
        for (row, stack) in stacks.iter().enumerate() {
            let top = HEAD + 60 + BAR as i32 * row as i32;
            write(area, &stack.name, (16, top + 12), TEXT, &INK, HPos::Left)?;
            let sum = format!("{:.1} {unit}", total(stack));
            write(area, &sum, (WIDTH as i32 - 16, top + 12), TEXT, &INK, HPos::Right)?;
            let mut from = 16.0;
            for (index, (_, part)) in stack.parts.iter().enumerate() {
                let to = from + (f64::from(WIDTH) - 32.0) * part / most;
                let corners = [(from as i32, top + 28), (to as i32, top + 50)];
                area.draw(&Rectangle::new(corners, COLORS[(index + 1) % COLORS.len()].filled()))?;
                from = to;
            }
        }
        Ok(())
    })?;
    let mut rows = Rows::new(stacks);
    for (index, (part, _)) in stacks[0].parts.iter().enumerate() {
        rows.add(part, |stack| Some(format!("{} {unit}", significant(stack.parts.get(index)?.1))));
    }
    let table = rows.table(|stack| &stack.name);
    Ok(Some(Chart { name, title, caption: caption.into(), first: "part", table, drawing }))
}

/// The span of values with a margin; never empty.
fn span(values: impl Iterator<Item = f64>, margin: f64) -> std::ops::Range<f64> {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    // A constant is a line in the middle.
    let least = if high > low { 1e-3 } else { 0.1 };
    let room = ((high - low) * margin).max(high.abs() * least).max(1e-9);
    low - room..high + room
}

/// A point of a curve, and the band around it.
#[derive(Debug, Clone, Copy)]
struct Point {
    x: f64,
    y: f64,
    low: f64,
    high: f64,
}

/// A line of a chart.
struct Curve {
    name: String,
    color: RGBColor,
    width: u32,
    has_dots: bool,
    points: Vec<Point>,
}

/// The range of the vertical axis.
#[derive(Debug, Clone, Copy)]
enum Span {
    /// From the least value to the largest.
    Values,
    /// From zero to the largest value.
    FromZero,
}

/// Curves over an axis; none where there are no two moments with a finite value.
fn line_chart(
    (name, title): Named,
    caption: &str,
    axes_names: [&'static str; 2],
    curves: &[Curve],
    up: Span,
) -> Result<Option<Chart>> {
    let curves = curves.iter().filter(|curve| !curve.points.is_empty()).collect::<Vec<_>>();
    let is_drawn = |point: &&Point| [point.x, point.y].iter().all(|value| value.abs() <= MOST_DRAWN);
    let ok = |curve: &&Curve| curve.points.iter().filter(is_drawn).copied().collect::<Vec<_>>();
    let points = curves.iter().flat_map(ok).collect::<Vec<_>>();
    if !points.iter().any(|point| point.x != points[0].x) {
        return Ok(None);
    }
    let across = span(points.iter().map(|point| point.x), 0.0);
    let values = points.iter().flat_map(|point| [point.low, point.high]).filter(|value| value.abs() <= MOST_DRAWN);
    // The title names a curve that is alone.
    let has_legend = !matches!(curves[..], [curve] if curve.name == title);
    let free = if has_legend { LEGEND_HEAD + LEGEND_LINE * curves.len() as f64 } else { LEGEND_HEAD };
    let span = match up {
        Span::Values => span(values, 0.05),
        Span::FromZero => 0.0..values.fold(f64::MIN_POSITIVE, f64::max),
    };
    let up = span.start..span.start + (span.end - span.start) / (1.0 - free.min(MOST_FREE));
    let drawing = draw(400, |area| {
        let mut chart = axes(area, title, axes_names[0], axes_names[1], across, up)?;
        for curve in &curves {
            let (color, points) = (curve.color, ok(curve));
            if points.iter().any(|point| point.low < point.high) {
                let upper = points.iter().map(|point| (point.x, point.high));
                let lower = points.iter().rev().map(|point| (point.x, point.low));
                let band = upper.chain(lower).collect::<Vec<_>>();
                chart.draw_series(std::iter::once(Polygon::new(band, color.mix(0.18))))?;
            }
            let at = || points.iter().map(|point| (point.x, point.y));
            if curve.has_dots {
                chart.draw_series(at().map(|point| Circle::new(point, 4, color.filled())))?;
            }
            let line = LineSeries::new(at(), color.stroke_width(curve.width));
            legend(&mut chart, line, &curve.name, color)?;
        }
        if has_legend { finish(&mut chart) } else { Ok(()) }
    })?;
    let table = figures(&curves);
    Ok(Some(Chart { name, title, caption: caption.into(), first: axes_names[0], table, drawing }))
}

/// The figures of curves: a column for each, and a row for each moment, or for some of them where
/// they are many.
fn figures(curves: &[&Curve]) -> Table {
    let mut moments = curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.x)).collect::<Vec<_>>();
    moments.sort_by(f64::total_cmp);
    moments.dedup();
    let every = moments.len().div_ceil(MOST_ROWS).max(1);
    let last = moments.len().saturating_sub(1);
    let shown = moments.iter().enumerate().filter(|(index, _)| index % every == every - 1 || *index == last);
    let mut rows = Rows::new(curves);
    for (_, x) in shown {
        rows.add(&significant(*x), |curve| {
            let found = curve.points.iter().find(|point| point.x.total_cmp(x).is_eq())?;
            Some(significant(found.y))
        });
    }
    rows.table(|curve| &curve.name)
}

fn scan(arms: &[&ArmReport]) -> Vec<Curve> {
    let mut lines = Vec::<Curve>::new();
    for arm in arms.iter().filter(|arm| arm.role == Role::Sweep) {
        let (Some(batch), Some(rate)) = (arm.micro_batch, arm.figures.samples_per_s) else { continue };
        let mode = arm.name.split('-').next().unwrap_or_default();
        let name = arm.block.map_or(mode.to_owned(), |block| format!("{mode}, block {block}"));
        let point = Point { x: batch as f64, y: rate, low: rate, high: rate };
        let color = COLORS[lines.len() % COLORS.len()];
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Curve { name, color, width: 3, has_dots: true, points: vec![point] }),
        }
    }
    lines.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.x.total_cmp(&b.x)));
    lines
}

type Axes<'a, 'b> = ChartContext<
    'a,
    SVGBackend<'b>,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

fn axes<'a, 'b>(
    area: &'a Area<'b>,
    title: &str,
    x: &str,
    y: &str,
    across: std::ops::Range<f64>,
    up: std::ops::Range<f64>,
) -> std::result::Result<Axes<'a, 'b>, Box<dyn std::error::Error>> {
    write(area, title, (16, 24), TEXT * 1.15, &INK, HPos::Left)?;
    let (wide, tall) = (across.end - across.start, up.end - up.start);
    // As many digits as tell the labels of an axis apart.
    let number = |span: f64| {
        move |value: &f64| match span {
            span if span >= 1e8 => format!("{value:.1e}"),
            // Rates of learning: their zeros would reach into the name of the axis.
            span if span < 1e-3 && *value == 0.0 => "0".to_owned(),
            span if span < 1e-3 && value.abs() < 1e-2 => format!("{value:.1e}"),
            span if span >= 20_000.0 => format!("{:.0}k", value / 1e3),
            span => format!("{value:.*}", (0.55 - span.log10()).ceil().clamp(0.0, 8.0) as usize),
        }
    };
    let (x_label, y_label) = (number(wide), number(tall));
    let mut builder = ChartBuilder::on(area);
    let builder = builder.margin(14).margin_top(HEAD).margin_right(30).x_label_area_size(56).y_label_area_size(84);
    let mut chart = builder.build_cartesian_2d(across, up)?;
    let text = (FAMILY, TEXT * 0.9).into_font().color(&INK);
    let mut mesh = chart.configure_mesh();
    mesh.x_labels(5).y_labels(6).x_desc(x).y_desc(y).label_style(text.clone()).axis_desc_style(text);
    mesh.light_line_style(TRANSPARENT).bold_line_style(PALE).axis_style(INK);
    mesh.x_label_formatter(&x_label).y_label_formatter(&y_label).draw()?;
    Ok(chart)
}

fn legend<'b>(
    chart: &mut Axes<'_, 'b>,
    line: LineSeries<SVGBackend<'b>, (f64, f64)>,
    name: &str,
    color: RGBColor,
) -> Drawn {
    let drawn = chart.draw_series(line)?.label(one_line(name));
    drawn.legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], color.stroke_width(4)));
    Ok(())
}

fn finish<'a, 'b: 'a>(chart: &mut Axes<'a, 'b>) -> Drawn {
    let text = (FAMILY, TEXT * 0.9).into_font().color(&INK);
    let mut labels = chart.configure_series_labels();
    labels.background_style(WHITE.mix(0.8)).border_style(PALE).label_font(text).legend_area_size(34);
    Ok(labels.position(SeriesLabelPosition::UpperRight).draw()?)
}
