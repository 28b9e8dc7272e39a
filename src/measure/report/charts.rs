//! The charts of a report, drawn as SVG by plotters in a sans-serif font of the machine that shows them. Text is large, since
//! a phone shows them at half their size.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde::Serialize;

use crate::base::error::{Error, Result, one_line};
use crate::measure::compare::{ArmReport, Comparison, LossPoint, Report, Role};
use crate::trainer::laps::Parts;

/// A drawn chart.
#[derive(Serialize)]
pub(super) struct Chart {
    /// Of its files.
    pub(super) name: &'static str,
    /// What it shows.
    pub(super) title: &'static str,
    /// How to read it.
    pub(super) caption: String,
    /// The drawing: an `<svg>` element without the name of its tag, which HTML writes with attributes of its own.
    pub(super) drawing: String,
}

impl Chart {
    /// The drawing as a file.
    pub(super) fn svg(&self) -> String {
        format!("<svg {}", self.drawing)
    }
}

/// Every name that a chart may have.
pub(super) const NAMES: [&str; 7] =
    ["throughput", "loss-steps", "loss-tokens", "loss-seconds", "time-budget", "memory", "batch-scan"];

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
    let fast = bars(&arms, |arm| arm.figures.samples_per_s);
    if !fast.is_empty() {
        let label = |index: usize| {
            let (arm, value) = fast[index];
            format!("{value:.2} samples/s{}", gain(arm, &report.comparisons))
        };
        let drawing = draw(bars_height(fast.len()), |area| bar_chart(area, "Throughput", &fast, &label))?;
        let caption = "Examples a second in the steady state, median. In brackets round((o / n - 1) x 100) against native (of \
                       an arm with a part off: against compiled), where the two are comparable and differ.";
        charts.push(Chart { name: "throughput", title: "Throughput", caption: caption.into(), drawing });
    }
    type Axis = (&'static str, &'static str, &'static str, fn(&LossPoint) -> f64);
    let axes: [Axis; 3] = [
        ("loss-steps", "Loss by steps", "optimizer steps", |point| point.step as f64),
        ("loss-tokens", "Loss by tokens", "tokens", |point| point.tokens),
        ("loss-seconds", "Loss by seconds", "seconds of training", |point| point.seconds),
    ];
    for (name, title, axis, x) in axes {
        // An ablation learns what its arm does, and the points of a sweep are too many.
        let shown = |arm: &&&ArmReport| arm.loss.len() > 1 && !matches!(arm.role, Role::Ablation | Role::Sweep);
        let curves = arms.iter().filter(shown).copied().collect::<Vec<_>>();
        if curves.is_empty() {
            continue;
        }
        let drawing = draw(400, |area| loss_chart(area, title, axis, &curves, x))?;
        let caption = format!(
            "Mean loss of the repeats by {axis}; the bands reach from the least to the largest of their seeds."
        );
        charts.push(Chart { name, title, caption, drawing });
    }
    let budgets = arms.iter().filter(|arm| arm.budget_ms.is_some()).copied().collect::<Vec<_>>();
    if !budgets.is_empty() {
        let drawing = draw(bars_height(budgets.len()) + 60, |area| budget_chart(area, &budgets))?;
        let caption =
            "Milliseconds of a steady step by part, medians; evaluation and saving are spread over the whole run.";
        charts.push(Chart { name: "time-budget", title: "Time of a step", caption: caption.into(), drawing });
    }
    let memory = bars(&arms, |arm| arm.figures.peak_mib);
    if !memory.is_empty() {
        let label = |index: usize| format!("{:.0} MiB", memory[index].1);
        let drawing = draw(bars_height(memory.len()), |area| bar_chart(area, "Peak memory", &memory, &label))?;
        let caption = "The most memory that the process had resident, median of the runs.".into();
        charts.push(Chart { name: "memory", title: "Peak memory", caption, drawing });
    }
    let scan = scan(&arms);
    if !scan.is_empty() {
        let drawing = draw(400, |area| scan_chart(area, &scan))?;
        let caption = "Examples a second by batch, median; one line for each mode and block.".into();
        charts.push(Chart { name: "batch-scan", title: "Batch scan", caption, drawing });
    }
    Ok(charts)
}

/// `(+107%)` as SageMaker's notebook labels its bars: `round((o / n - 1) x 100)`, for an arm that differs from native.
fn gain(arm: &ArmReport, comparisons: &[Comparison]) -> String {
    use crate::measure::compare::verdict::Word;
    let comparison = comparisons.iter().find(|comparison| comparison.arm == arm.name);
    let differs = comparison.filter(|comparison| matches!(comparison.verdict, Word::Faster | Word::Slower));
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

type Bar<'a> = (&'a ArmReport, f64);

fn bars<'a>(arms: &[&'a ArmReport], pick: fn(&ArmReport) -> Option<f64>) -> Vec<Bar<'a>> {
    arms.iter().filter_map(|arm| Some((*arm, pick(arm)?))).collect()
}

const BAR: u32 = 64;
const HEAD: i32 = 50;

fn bars_height(bars: usize) -> u32 {
    HEAD as u32 + BAR * bars as u32 + 10
}

/// Lying bars, each under its label and with its figure behind the label.
fn bar_chart(area: &Area, title: &str, bars: &[Bar], label: &dyn Fn(usize) -> String) -> Drawn {
    write(area, title, (16, 24), TEXT * 1.15, &INK, HPos::Left)?;
    let most = bars.iter().map(|bar| bar.1).fold(f64::MIN_POSITIVE, f64::max);
    for (index, (arm, value)) in bars.iter().enumerate() {
        let top = HEAD + BAR as i32 * index as i32;
        write(area, &arm.name, (16, top + 12), TEXT, &INK, HPos::Left)?;
        write(area, &label(index), (WIDTH as i32 - 16, top + 12), TEXT, &INK, HPos::Right)?;
        let right = 16 + ((f64::from(WIDTH) - 32.0) * value / most) as i32;
        area.draw(&Rectangle::new([(16, top + 28), (WIDTH as i32 - 16, top + 50)], PALE.mix(0.5).filled()))?;
        area.draw(&Rectangle::new([(16, top + 28), (right, top + 50)], color(arm, index).filled()))?;
    }
    Ok(())
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

fn budget_chart(area: &Area, arms: &[&ArmReport]) -> Drawn {
    write(area, "Time of a step", (16, 24), TEXT * 1.15, &INK, HPos::Left)?;
    let parts = |arm: &ArmReport| arm.budget_ms.as_ref().map(Parts::named).unwrap_or_default();
    let total = |arm: &ArmReport| parts(arm).iter().map(|part| part.1).sum::<f64>();
    let most = arms.iter().map(|arm| total(arm)).fold(f64::MIN_POSITIVE, f64::max);
    // Two rows of the legend.
    let (mut x, mut y) = (16, HEAD + 4);
    for (index, (name, _)) in parts(arms[0]).iter().enumerate() {
        let wide = 34 + 11 * name.len() as i32;
        if x + wide > WIDTH as i32 - 10 {
            (x, y) = (16, y + 28);
        }
        area.draw(&Rectangle::new([(x, y - 8), (x + 16, y + 8)], COLORS[(index + 1) % COLORS.len()].filled()))?;
        write(area, name, (x + 22, y), TEXT * 0.9, &INK, HPos::Left)?;
        x += wide;
    }
    for (row, arm) in arms.iter().enumerate() {
        let top = HEAD + 60 + BAR as i32 * row as i32;
        write(area, &arm.name, (16, top + 12), TEXT, &INK, HPos::Left)?;
        write(area, &format!("{:.1} ms", total(arm)), (WIDTH as i32 - 16, top + 12), TEXT, &INK, HPos::Right)?;
        let mut from = 16.0;
        for (index, (_, ms)) in parts(arm).iter().enumerate() {
            let to = from + (f64::from(WIDTH) - 32.0) * ms / most;
            let corners = [(from as i32, top + 28), (to as i32, top + 50)];
            area.draw(&Rectangle::new(corners, COLORS[(index + 1) % COLORS.len()].filled()))?;
            from = to;
        }
    }
    Ok(())
}

/// The span of values with a margin; never empty.
fn span(values: impl Iterator<Item = f64>, margin: f64) -> std::ops::Range<f64> {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    let room = ((high - low) * margin).max(high.abs() * 1e-3).max(1e-9);
    low - room..high + room
}

fn loss_chart(area: &Area, title: &str, axis: &str, arms: &[&ArmReport], x: fn(&LossPoint) -> f64) -> Drawn {
    let points = || arms.iter().flat_map(|arm| &arm.loss);
    let across = span(points().map(x), 0.0);
    let up = span(points().flat_map(|point| [point.low, point.high]).filter(|value| value.is_finite()), 0.05);
    let mut chart = axes(area, title, axis, "loss", across, up)?;
    for (index, arm) in arms.iter().enumerate() {
        let color = color(arm, index);
        let ok = || arm.loss.iter().filter(|point| point.loss.is_finite());
        let upper = ok().map(|point| (x(point), point.high));
        let lower = ok().map(|point| (x(point), point.low)).collect::<Vec<_>>();
        let band = upper.chain(lower.into_iter().rev()).collect::<Vec<_>>();
        chart.draw_series(std::iter::once(Polygon::new(band, color.mix(0.18))))?;
        // Later lines are thinner, so that curves that lie on each other are all seen.
        let width = if index == 0 { 5 } else { 2 };
        let line = LineSeries::new(ok().map(|point| (x(point), point.loss)), color.stroke_width(width));
        legend(&mut chart, line, &arm.name, color)?;
    }
    finish(&mut chart)
}

/// Examples a second by batch, for a mode and block.
type Scan = Vec<(String, Vec<(f64, f64)>)>;

fn scan(arms: &[&ArmReport]) -> Scan {
    let mut lines = Scan::new();
    for arm in arms.iter().filter(|arm| arm.role == Role::Sweep) {
        let (Some(batch), Some(rate)) = (arm.micro_batch, arm.figures.samples_per_s) else { continue };
        let mode = arm.name.split('-').next().unwrap_or_default();
        let name = arm.block.map_or(mode.to_owned(), |block| format!("{mode}, block {block}"));
        let point = (batch as f64, rate);
        match lines.iter_mut().find(|line| line.0 == name) {
            Some(line) => line.1.push(point),
            None => lines.push((name, vec![point])),
        }
    }
    lines.iter_mut().for_each(|line| line.1.sort_by(|a, b| a.0.total_cmp(&b.0)));
    lines
}

fn scan_chart(area: &Area, lines: &Scan) -> Drawn {
    let points = || lines.iter().flat_map(|line| line.1.iter().copied());
    let top = points().map(|point| point.1).fold(0.0, f64::max) * 1.3;
    let mut chart =
        axes(area, "Batch scan", "batch", "samples/s", span(points().map(|point| point.0), 0.05), 0.0..top)?;
    for (index, (name, line)) in lines.iter().enumerate() {
        let color = COLORS[index % COLORS.len()];
        chart.draw_series(line.iter().map(|point| Circle::new(*point, 5, color.filled())))?;
        legend(&mut chart, LineSeries::new(line.iter().copied(), color.stroke_width(3)), name, color)?;
    }
    finish(&mut chart)
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
    let mut builder = ChartBuilder::on(area);
    let builder = builder.margin(14).margin_top(HEAD).margin_right(30).x_label_area_size(56).y_label_area_size(84);
    let mut chart = builder.build_cartesian_2d(across, up)?;
    let text = (FAMILY, TEXT * 0.9).into_font().color(&INK);
    let number = move |value: &f64| match wide {
        wide if wide >= 20_000.0 => format!("{:.0}k", value / 1e3),
        // As many digits as tell the labels of the axis apart.
        wide => format!("{value:.*}", (0.55 - wide.log10()).ceil().clamp(0.0, 6.0) as usize),
    };
    let mut mesh = chart.configure_mesh();
    mesh.x_labels(5).y_labels(6).x_desc(x).y_desc(y).label_style(text.clone()).axis_desc_style(text);
    mesh.light_line_style(TRANSPARENT).bold_line_style(PALE).axis_style(INK);
    let height = move |value: &f64| format!("{value:.*}", if tall >= 50.0 { 0 } else { 2 });
    mesh.x_label_formatter(&number).y_label_formatter(&height).draw()?;
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
