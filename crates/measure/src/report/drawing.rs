//! How a chart is drawn: curves, dots, bars and stacked bars as SVG by plotters, in a sans-serif
//! font of the machine that shows them. Text is large, since a phone shows it at half its size. The
//! values of a place are the `<title>` of a rectangle over it, which browsers show under the
//! pointer.

use std::ops::Range;

use kiln_core::error::{Error, Result, one_line};
use kiln_core::stats::mean;
use kiln_core::words::duration;
use minijinja::HtmlEscape;
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde::Serialize;

use crate::table::{Rows, Table, scientific, significant};

/// A drawn chart.
#[derive(Serialize)]
pub(super) struct Chart {
    /// Name of the files of the chart.
    pub(super) name: &'static str,
    /// Its subject.
    pub(super) title: String,
    /// How to read it.
    pub(super) caption: String,
    /// The name of the first column of its table.
    pub(super) first: String,
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

const WIDTH: u32 = 600;
/// The least height of a drawing, so that cards beside each other are equally high.
const HEIGHT: u32 = 400;
/// plotters divides sizes by 1.24 when it writes SVG: this is 16 pixels.
const TEXT: f64 = 20.0;
const SMALL: f64 = TEXT * 0.9;
const FAMILY: &str = "system-ui, sans-serif";
const INK: RGBColor = RGBColor(27, 31, 36);
const PALE: RGBColor = RGBColor(216, 222, 228);

/// The space beside what is drawn, and above it: that of the title.
const MARGIN: i32 = 16;
const HEAD: i32 = 46;
/// The height of a line of a legend.
const LEGEND_LINE: i32 = 26;
/// The columns of a symbol of a legend, and of a character of its names.
const SYMBOL: i32 = 22;
const CHARACTER: i32 = 9;

/// Colours of series on a light ground and on a dark one, which the colour-blind tell apart (after
/// Okabe & Ito 2008); drawings have the first, and the page replaces them on dark screens. Gray is
/// native, blue compiled and the best.
pub(super) const COLORS: [(RGBColor, RGBColor); 8] = [
    (RGBColor(110, 118, 129), RGBColor(157, 167, 179)),
    (RGBColor(0, 114, 178), RGBColor(88, 166, 255)),
    (RGBColor(213, 94, 0), RGBColor(255, 140, 66)),
    (RGBColor(0, 147, 107), RGBColor(63, 208, 160)),
    (RGBColor(184, 88, 143), RGBColor(240, 154, 198)),
    (RGBColor(176, 122, 0), RGBColor(242, 190, 74)),
    (RGBColor(0, 141, 176), RGBColor(111, 211, 234)),
    (RGBColor(148, 103, 189), RGBColor(194, 155, 240)),
];

/// The colour of series `index`, on a light ground.
pub(super) fn series(index: usize) -> RGBColor {
    COLORS[index % COLORS.len()].0
}

/// A colour as SVG writes it.
pub(super) fn hex(RGBColor(red, green, blue): RGBColor) -> String {
    format!("#{red:02X}{green:02X}{blue:02X}")
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Axes<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Fault = Box<dyn std::error::Error>;

/// Curves of more points are drawn as the mean of as many stretches, in a band from the least to
/// the largest.
const MOST_POINTS: usize = 300;

/// Points that are few enough to be told from one another.
const MOST_DOTS: usize = 40;

/// The largest absolute value that a chart draws. Larger values appear in the chart's table only.
const MOST_DRAWN: f64 = 1e30;

/// The most rows of a chart's table.
const MOST_ROWS: usize = 40;

/// Draws what `chart` says; what that returns lies above all.
fn draw(height: u32, chart: impl FnOnce(&Area) -> std::result::Result<String, Fault>) -> Result<String> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
    let whole = area.fill(&WHITE).map_err(Into::into).and_then(|()| chart(&area));
    let above = whole.and_then(|above| Ok(area.present().map(|()| above)?));
    let above = above.map_err(|error| Error::data(format!("a chart cannot be drawn: {error}")))?;
    drop(area);
    if let Some(end) = svg.rfind("</svg>") {
        svg.insert_str(end, &above);
    }
    Ok(svg.split_off(svg.find("<svg ").map_or(0, |tag| tag + "<svg ".len())))
}

fn write(
    area: &Area,
    text: &str,
    at: (i32, i32),
    size: f64,
    color: &RGBColor,
    align: HPos,
) -> std::result::Result<(), Fault> {
    let style = (FAMILY, size).into_font().color(color).pos(Pos::new(align, VPos::Center));
    Ok(area.draw(&Text::new(one_line(text), at, style))?)
}

/// A rectangle that is not seen and has `said` under the pointer, a line for each.
fn place((x, y): (Range<i32>, Range<i32>), said: &[String]) -> String {
    let said = said.iter().map(|line| HtmlEscape(&one_line(line)).to_string()).collect::<Vec<_>>().join("\n");
    format!(
        "<rect class=\"place\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"#808080\" fill-opacity=\"0\">\
         <title>{said}</title></rect>\n",
        x.start,
        y.start,
        (x.end - x.start).max(1),
        (y.end - y.start).max(1)
    )
}

/// The places of names in a legend of lines under the title, and the number of lines.
fn legend_places<'a>(names: impl Iterator<Item = &'a str>) -> (Vec<(i32, i32)>, i32) {
    let (mut x, mut line) = (MARGIN, 0);
    let places = names.map(|name| {
        let wide = SYMBOL + CHARACTER * (name.chars().count() as i32 + 1) + 6;
        if x > MARGIN && x + wide > WIDTH as i32 - MARGIN {
            (x, line) = (MARGIN, line + 1);
        }
        let place = (x, HEAD + 8 + line * LEGEND_LINE);
        x += wide;
        place
    });
    let places = places.collect::<Vec<_>>();
    let lines = if places.is_empty() { 0 } else { line + 1 };
    (places, lines)
}

/// Writes names with their colours at `places`.
fn legend<'a>(
    area: &Area,
    places: &[(i32, i32)],
    names: impl Iterator<Item = (&'a str, RGBColor)>,
) -> std::result::Result<(), Fault> {
    for ((x, y), (name, color)) in places.iter().zip(names) {
        area.draw(&Rectangle::new([(*x, y - 6), (x + 14, y + 6)], color.filled()))?;
        write(area, name, (x + SYMBOL, *y), SMALL, &INK, HPos::Left)?;
    }
    Ok(())
}

/// Name and title of a chart, and how to read it.
pub(super) struct Named<'a> {
    pub(super) name: &'static str,
    pub(super) title: &'a str,
    pub(super) caption: &'a str,
}

impl Named<'_> {
    fn chart(&self, first: &str, table: Table, drawing: String) -> Chart {
        let Self { name, title, caption } = *self;
        Chart { name, title: title.into(), caption: caption.into(), first: first.into(), table, drawing }
    }

    fn write(&self, area: &Area) -> std::result::Result<(), Fault> {
        write(area, self.title, (MARGIN, 24), TEXT * 1.15, &INK, HPos::Left)
    }
}

/// A bar with the name above it and the figure behind.
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) value: f64,
    /// The ends of its interval, where there is one.
    pub(super) interval: Option<[f64; 2]>,
    pub(super) label: String,
    pub(super) color: RGBColor,
}

/// The least height of a bar with its name.
const BAR: i32 = 64;

/// The height of a drawing with `bars` below `head`, where they begin, and the height of each.
fn bars_height(head: i32, bars: usize) -> (u32, i32, i32) {
    let (room, bars) = (HEIGHT as i32 - head - 10, bars.max(1) as i32);
    let bar = (room / bars).clamp(BAR, 2 * BAR);
    let left = (room - bar * bars).max(0);
    (HEIGHT.max((head + bar * bars + 10) as u32), head + left / 2, bar)
}

/// Lying bars, each under its label and with its figure behind the label; none without bars.
pub(super) fn bar_chart(named: &Named, bars: &[Bar]) -> Result<Option<Chart>> {
    if bars.is_empty() {
        return Ok(None);
    }
    let most = bars.iter().map(|bar| bar.interval.map_or(bar.value, |ends| ends[1].max(bar.value)));
    let most = most.fold(f64::MIN_POSITIVE, f64::max);
    let (height, head, step) = bars_height(HEAD, bars.len());
    let drawing = draw(height, |area| {
        named.write(area)?;
        let mut places = String::new();
        for (index, bar) in bars.iter().enumerate() {
            let top = head + step * index as i32;
            let (begin, end, right) = (top + 28, top + step - 14, WIDTH as i32 - MARGIN);
            let at = |value: f64| MARGIN + (f64::from(right - MARGIN) * value / most) as i32;
            write(area, &bar.name, (MARGIN, top + 12), TEXT, &INK, HPos::Left)?;
            write(area, &bar.label, (right, top + 12), TEXT, &INK, HPos::Right)?;
            area.draw(&Rectangle::new([(MARGIN, begin), (right, end)], PALE.filled()))?;
            area.draw(&Rectangle::new([(MARGIN, begin), (at(bar.value), end)], bar.color.filled()))?;
            let mut said = vec![format!("{}: {}", bar.name, bar.label)];
            if let Some([low, high]) = bar.interval {
                let (middle, half) = ((begin + end) / 2, (end - begin) / 4);
                let parts = [
                    [(at(low), middle), (at(high), middle)],
                    [(at(low), middle - half), (at(low), middle + half)],
                    [(at(high), middle - half), (at(high), middle + half)],
                ];
                for (color, width) in [(WHITE, 6), (INK, 2)] {
                    for line in parts {
                        area.draw(&PathElement::new(line, color.stroke_width(width)))?;
                    }
                }
                said.push(format!("interval {} to {}", significant(low), significant(high)));
            }
            places += &place((MARGIN..right, begin..end), &said);
        }
        Ok(places)
    })?;
    let only = [named.title];
    let mut rows = Rows::new(&only);
    bars.iter().for_each(|bar| rows.add(&bar.name, |_| Some(bar.label.clone())));
    Ok(Some(named.chart("arm", rows.table(|name| name), drawing)))
}

/// A bar of parts.
pub(super) struct Stack {
    pub(super) name: String,
    pub(super) parts: Vec<(&'static str, f64)>,
}

/// A time in `unit`: seconds as they are spelled everywhere, milliseconds with four digits.
fn time(value: f64, unit: &str) -> String {
    if unit == "s" { duration(value) } else { format!("{} {unit}", significant(value)) }
}

/// Lying bars of parts, all with the parts of the first; none where there is no time. The legend of
/// one bar alone has a line for each part, with its figure.
pub(super) fn stacked_chart(named: &Named, unit: &str, stacks: &[Stack]) -> Result<Option<Chart>> {
    let total = |stack: &Stack| stack.parts.iter().map(|part| part.1).sum::<f64>();
    let most = stacks.iter().map(total).fold(0.0, f64::max);
    if !(most > 0.0 && most <= MOST_DRAWN) {
        return Ok(None);
    }
    let parts = &stacks[0].parts;
    let value = |stack: &Stack, index: usize| stack.parts.get(index).map_or(0.0, |part| part.1);
    let has_time = |index: &usize| stacks.iter().any(|stack| value(stack, *index) > 0.0);
    let shown = (0..parts.len()).filter(has_time).collect::<Vec<_>>();
    let told =
        |(name, value): (&str, f64), of: f64| format!("{name} {}, {:.1} %", time(value, unit), value / of * 100.0);
    let names = shown.iter().map(|index| match stacks {
        [one] => told(parts[*index], total(one)),
        _ => parts[*index].0.to_owned(),
    });
    let names = names.collect::<Vec<_>>();
    let (places, lines) = match stacks {
        [_] => ((0..names.len() as i32).map(|at| (MARGIN, HEAD + 8 + at * LEGEND_LINE)).collect(), names.len() as i32),
        _ => legend_places(names.iter().map(String::as_str)),
    };
    let head = HEAD + lines * LEGEND_LINE + 6;
    let (height, head, step) = bars_height(head, stacks.len());
    let drawing = draw(height, |area| {
        named.write(area)?;
        let colors = shown.iter().map(|index| series(index + 1));
        legend(area, &places, names.iter().map(String::as_str).zip(colors))?;
        let mut places = String::new();
        for (row, stack) in stacks.iter().enumerate() {
            let top = head + step * row as i32;
            write(area, &stack.name, (MARGIN, top + 12), TEXT, &INK, HPos::Left)?;
            let sum = if unit == "s" { duration(total(stack)) } else { format!("{:.1} {unit}", total(stack)) };
            write(area, &sum, (WIDTH as i32 - MARGIN, top + 12), TEXT, &INK, HPos::Right)?;
            let mut from = f64::from(MARGIN);
            for (index, part) in stack.parts.iter().enumerate() {
                let to = from + (f64::from(WIDTH) - 2.0 * f64::from(MARGIN)) * part.1 / most;
                let (x, y) = (from as i32..to as i32, top + 28..top + step - 14);
                let corners = [(x.start, y.start), (x.end, y.end)];
                area.draw(&Rectangle::new(corners, series(index + 1).filled()))?;
                if part.1 > 0.0 {
                    places += &place((x, y), &[stack.name.clone(), told(*part, total(stack))]);
                }
                from = to;
            }
        }
        Ok(places)
    })?;
    let mut rows = Rows::new(stacks);
    for (index, (part, _)) in parts.iter().enumerate() {
        rows.add(part, |stack| Some(time(stack.parts.get(index)?.1, unit)));
    }
    Ok(Some(named.chart("part", rows.table(|stack| &stack.name), drawing)))
}

/// The range of values with a margin; never empty.
fn range(values: impl Iterator<Item = f64>, margin: f64) -> Range<f64> {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    // A constant is a line in the middle.
    let least = if high > low { 1e-3 } else { 0.1 };
    let room = ((high - low) * margin).max(high.abs() * least).max(1e-9);
    low - room..high + room
}

/// A point of a curve, and the band around it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    x: f64,
    y: f64,
    low: f64,
    high: f64,
}

impl Point {
    /// A point without a band.
    pub(super) fn at(x: f64, y: f64) -> Self {
        Self { x, y, low: y, high: y }
    }

    /// This point in a band.
    pub(super) fn within(self, low: f64, high: f64) -> Self {
        Self { low, high, ..self }
    }

    fn is_drawn(&self) -> bool {
        [self.x, self.y].iter().all(|value| value.abs() <= MOST_DRAWN)
    }
}

/// A line of a chart.
pub(super) struct Curve {
    name: String,
    color: RGBColor,
    width: u32,
    has_dots: bool,
    /// Its name in the legend; empty where the legend leaves it out.
    legend: String,
    points: Vec<Point>,
}

impl Curve {
    /// A curve of `points`, thinned where they are many, with dots where they are few.
    pub(super) fn new(name: impl Into<String>, color: RGBColor, points: Vec<Point>) -> Self {
        let (name, has_dots) = (name.into(), points.len() <= MOST_DOTS);
        Self { legend: name.clone(), name, color, width: 3, has_dots, points: thinned(points) }
    }

    /// This curve with lines of `width` pixels.
    pub(super) fn wide(self, width: u32) -> Self {
        Self { width, ..self }
    }

    /// This curve under the name `legend` in the legend, which leaves out an empty one.
    pub(super) fn called(self, legend: &str) -> Self {
        Self { legend: legend.into(), ..self }
    }

    /// The steps or seconds of its points.
    pub(super) fn moments(&self) -> impl Iterator<Item = f64> {
        self.points.iter().filter(|point| point.is_drawn()).map(|point| point.x)
    }
}

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

/// The range of the vertical axis.
#[derive(Debug, Clone, Copy)]
pub(super) enum Span {
    /// From the least value to the largest.
    Values,
    /// From zero to the largest value.
    FromZero,
}

/// The horizontal axis of curves.
#[derive(Debug, Clone)]
pub(super) struct Across {
    /// Its name.
    pub(super) name: &'static str,
    /// Its range, where charts share it; else that of the points.
    pub(super) range: Option<Range<f64>>,
}

impl Across {
    /// An axis with the range of what it shows.
    pub(super) fn of(name: &'static str) -> Self {
        Self { name, range: None }
    }

    /// An axis from zero to the last of `moments`, for several charts.
    pub(super) fn shared(name: &'static str, moments: impl Iterator<Item = f64>) -> Self {
        let last = moments.filter(|moment| *moment <= MOST_DRAWN).fold(0.0, f64::max);
        Self { name, range: (last > 0.0).then_some(0.0..last) }
    }
}

/// Curves over an axis; none where there are no two moments with a finite value. `key` names the
/// vertical axis.
pub(super) fn line_chart(
    named: &Named,
    across: &Across,
    key: &str,
    curves: &[Curve],
    up: Span,
) -> Result<Option<Chart>> {
    let curves = curves.iter().filter(|curve| !curve.points.is_empty()).collect::<Vec<_>>();
    let ok = |curve: &&Curve| curve.points.iter().filter(|point| point.is_drawn()).copied().collect::<Vec<_>>();
    let points = curves.iter().flat_map(ok).collect::<Vec<_>>();
    if !points.iter().any(|point| point.x != points[0].x) {
        return Ok(None);
    }
    let own = range(points.iter().map(|point| point.x), 0.0);
    let x = across.range.clone().map_or(own.clone(), |shared| shared.start.min(own.start)..shared.end);
    let values = points.iter().flat_map(|point| [point.low, point.high]).filter(|value| value.abs() <= MOST_DRAWN);
    let y = match up {
        Span::Values => range(values, 0.05),
        Span::FromZero => 0.0..values.fold(f64::MIN_POSITIVE, f64::max) * 1.04,
    };
    // The axis names a curve that is alone.
    let is_alone = matches!(curves[..], [curve] if curve.name == key);
    let shown = curves.iter().filter(|curve| !is_alone && !curve.legend.is_empty());
    let shown = shown.map(|curve| (curve.legend.as_str(), curve.color)).collect::<Vec<_>>();
    let (places, lines) = legend_places(shown.iter().map(|(name, _)| *name));
    let drawing = draw(HEIGHT, |area| {
        named.write(area)?;
        legend(area, &places, shown.into_iter())?;
        let mut chart = axes(area, HEAD + lines * LEGEND_LINE, [across.name, key], [Ticks::Numbers; 2], x, y)?;
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
            chart.draw_series(LineSeries::new(at(), color.stroke_width(curve.width)))?;
        }
        Ok(columns(&chart, across.name, &curves))
    })?;
    Ok(Some(named.chart(across.name, figures(&curves), drawing)))
}

/// A column over the chart for each moment, which reaches half the way to its neighbours, with the
/// values of all curves there.
fn columns(chart: &Axes, x_name: &str, curves: &[&Curve]) -> String {
    let (wide, tall) = chart.plotting_area().get_pixel_range();
    let mut moments = curves.iter().flat_map(|curve| curve.moments()).collect::<Vec<_>>();
    moments.sort_by(f64::total_cmp);
    moments.dedup();
    let at = moments.iter().map(|x| chart.backend_coord(&(*x, 0.0)).0).collect::<Vec<_>>();
    let column = |(index, x): (usize, &f64)| {
        let before = index.checked_sub(1).map_or(wide.start, |before| (at[before] + at[index]) / 2);
        let after = at.get(index + 1).map_or(wide.end, |after| (at[index] + after) / 2);
        let value = |curve: &&&Curve| {
            let Point { y, low, high, .. } = *curve.points.iter().find(|point| point.x.total_cmp(x).is_eq())?;
            let band =
                if low < high { format!(", {} to {}", significant(low), significant(high)) } else { String::new() };
            Some(format!("{} {}{band}", curve.name, significant(y)))
        };
        let head = format!("{x_name} {}", significant(*x));
        let said = std::iter::once(head).chain(curves.iter().filter_map(|curve| value(&curve))).collect::<Vec<_>>();
        place((before..after, tall.clone()), &said)
    };
    moments.iter().enumerate().map(column).collect()
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

/// A dot of a scatter.
pub(super) struct Dot {
    pub(super) name: String,
    /// The value of the key on the horizontal axis, as the config has it, and that of the figure.
    pub(super) x: String,
    pub(super) y: f64,
    /// It is filled; else it is a ring.
    pub(super) is_full: bool,
    /// It is the best, which is larger and in colour.
    pub(super) is_best: bool,
}

/// A logarithmic axis is for values of which the largest is so many times the least.
const WIDE: f64 = 30.0;

/// Dots by the value of a key: a number, on a logarithmic axis where the values reach over several
/// powers of ten, or one of several words. None where the dots have one value.
pub(super) fn scatter(named: &Named, [x_name, y_name]: [&str; 2], dots: &[Dot]) -> Result<Option<Chart>> {
    let dots = dots.iter().filter(|dot| dot.y.abs() <= MOST_DRAWN).collect::<Vec<_>>();
    if dots.iter().all(|dot| dot.x == dots[0].x) {
        return Ok(None);
    }
    let number = |dot: &&Dot| dot.x.replace('_', "").parse::<f64>().ok().filter(|x| x.abs() <= MOST_DRAWN);
    let numbers = dots.iter().map(number).collect::<Option<Vec<_>>>();
    let mut words = dots.iter().map(|dot| dot.x.as_str()).collect::<Vec<_>>();
    words.sort_unstable();
    words.dedup();
    let (ticks, at) = match numbers {
        Some(numbers) => {
            let (least, most) = numbers.iter().fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(*x), b.max(*x)));
            if least > 0.0 && most / least >= WIDE {
                (Ticks::Powers, numbers.iter().map(|x| x.log10()).collect())
            } else {
                (Ticks::Numbers, numbers)
            }
        }
        None => {
            let at = |dot: &&Dot| words.iter().position(|word| *word == dot.x).unwrap_or(0) as f64;
            (Ticks::Words(&words), dots.iter().map(at).collect::<Vec<_>>())
        }
    };
    let x = match ticks {
        Ticks::Words(words) => -0.5..words.len() as f64 - 0.5,
        _ => range(at.iter().copied(), 0.06),
    };
    let y = range(dots.iter().map(|dot| dot.y), 0.08);
    let drawing = draw(HEIGHT, |area| {
        named.write(area)?;
        let mut chart = axes(area, HEAD, [x_name, y_name], [ticks, Ticks::Numbers], x, y)?;
        let (wide, tall) = chart.plotting_area().get_pixel_range();
        let mut places = String::new();
        // The best lies above the others.
        let mut order = dots.iter().zip(&at).collect::<Vec<_>>();
        order.sort_by_key(|(dot, _)| dot.is_best);
        for (dot, x) in order {
            let (color, size) = if dot.is_best { (series(1), 9) } else { (series(0), 6) };
            let style = if dot.is_full { color.filled() } else { color.stroke_width(2) };
            chart.draw_series(std::iter::once(Circle::new((*x, dot.y), size, style)))?;
            let (x, y) = chart.backend_coord(&(*x, dot.y));
            let near = |at: i32, within: &Range<i32>| (at - 12).max(within.start)..(at + 12).min(within.end);
            let said = [dot.name.clone(), format!("{x_name} {}", dot.x), format!("{y_name} {}", significant(dot.y))];
            places += &place((near(x, &wide), near(y, &tall)), &said);
        }
        Ok(places)
    })?;
    let columns = [x_name, y_name];
    let mut rows = Rows::new(&columns);
    for dot in &dots {
        rows.add(&dot.name, |column| Some(if *column == x_name { dot.x.clone() } else { significant(dot.y) }));
    }
    Ok(Some(named.chart("trial", rows.table(|name| name), drawing)))
}

/// The labels of an axis.
#[derive(Debug, Clone, Copy)]
enum Ticks<'a> {
    /// Numbers, as they lie.
    Numbers,
    /// Powers of ten: they lie at their exponents.
    Powers,
    /// Words, which lie at 0, 1, 2, ..
    Words(&'a [&'a str]),
}

impl Ticks<'_> {
    /// The label at `value` of an axis that spans `span`: as many digits as tell labels apart.
    fn label(self, value: f64, span: f64) -> String {
        match self {
            Self::Powers => scientific(format!("{:.1e}", 10f64.powf(value)).parse().unwrap_or(value)),
            Self::Words(words) => {
                let word = (value.fract() == 0.0 && value >= 0.0).then(|| words.get(value as usize)).flatten();
                word.map_or(String::new(), |word| word.trim_matches('"').to_owned())
            }
            Self::Numbers => match span {
                span if span >= 1e8 => format!("{value:.1e}"),
                // Steps of a label that do not add up to 0 exactly.
                span if value.abs() < span * 1e-9 => "0".into(),
                span if span < 1e-2 && value.abs() < 1e-2 => scientific(value),
                span if span >= 20_000.0 => format!("{:.0}k", value / 1e3),
                span => format!("{value:.*}", (0.55 - span.log10()).ceil().clamp(0.0, 8.0) as usize),
            },
        }
    }
}

/// Axes below `head` with their names; the grid has the lines of the labels.
fn axes<'a, 'b>(
    area: &'a Area<'b>,
    head: i32,
    [x_name, y_name]: [&str; 2],
    [x_ticks, y_ticks]: [Ticks; 2],
    x: Range<f64>,
    y: Range<f64>,
) -> std::result::Result<Axes<'a, 'b>, Fault> {
    let (wide, tall) = (x.end - x.start, y.end - y.start);
    let x_labels = match x_ticks {
        Ticks::Words(words) => 2 * words.len() + 1,
        _ => 6,
    };
    let (x_label, y_label) = (|value: &f64| x_ticks.label(*value, wide), |value: &f64| y_ticks.label(*value, tall));
    let mut builder = ChartBuilder::on(area);
    let builder = builder.margin(14).margin_top(head).margin_right(30).x_label_area_size(56).y_label_area_size(84);
    let mut chart = builder.build_cartesian_2d(x, y)?;
    let text = (FAMILY, SMALL).into_font().color(&INK);
    let mut mesh = chart.configure_mesh();
    mesh.x_labels(x_labels).y_labels(6).x_desc(one_line(x_name)).label_style(text.clone()).axis_desc_style(text);
    if !y_name.is_empty() {
        mesh.y_desc(one_line(y_name));
    }
    mesh.light_line_style(TRANSPARENT).bold_line_style(PALE).axis_style(INK);
    if matches!(x_ticks, Ticks::Words(_)) {
        mesh.disable_x_mesh();
    }
    mesh.x_label_formatter(&x_label).y_label_formatter(&y_label).draw()?;
    Ok(chart)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// An element of a drawing: the text of its opening tag, and what stands in it.
    type Element<'a> = (&'a str, &'a str);

    /// The elements `tag` of a drawing.
    fn elements<'a>(chart: &'a Chart, tag: &str) -> Vec<Element<'a>> {
        let open = format!("<{tag} ");
        let pieces = chart.drawing.split(open.as_str()).skip(1);
        pieces
            .map(|piece| piece.split_once('>').unwrap())
            .map(|(head, rest)| (head, rest.split("</").next().unwrap()))
            .collect()
    }

    fn attribute<'a>((head, _): &Element<'a>, name: &str) -> &'a str {
        let (_, after) = head.split_once(&format!("{name}=\"")).unwrap_or_else(|| panic!("{name} in {head}"));
        after.split_once('"').unwrap().0
    }

    fn pixels(element: &Element, name: &str) -> i32 {
        attribute(element, name).parse().unwrap()
    }

    /// The places that say something under the pointer, in pixels (left, top, right, bottom), and
    /// their lines.
    fn places<'a>(chart: &'a Chart) -> Vec<([i32; 4], Vec<&'a str>)> {
        let rects = chart.drawing.split("<rect class=\"place\"").skip(1);
        let place = |rect: &'a str| {
            let (head, rest) = rect.split_once('>').unwrap();
            let [x, y, width, height] =
                ["x", "y", "width", "height"].map(|name| pixels(&(head, ""), &format!(" {name}")));
            let said = rest.strip_prefix("<title>").unwrap().split_once("</title>").unwrap().0;
            ([x, y, x + width, y + height], said.lines().collect())
        };
        rects.map(place).collect()
    }

    /// The labels of the horizontal axis, with their places.
    fn ticks(chart: &Chart) -> Vec<(String, i32)> {
        let low = elements(chart, "text").into_iter().filter(|text| (330..370).contains(&pixels(text, "y")));
        let ticks = low.filter(|text| attribute(text, "text-anchor") == "middle");
        ticks.map(|text| (text.1.trim().to_owned(), pixels(&text, "x"))).collect()
    }

    fn named(title: &str) -> Named<'_> {
        Named { name: "chart", title, caption: "" }
    }

    fn curve(name: &str, color: usize, points: &[(f64, f64)]) -> Curve {
        Curve::new(name, series(color), points.iter().map(|(x, y)| Point::at(*x, *y)).collect())
    }

    fn contrast(a: RGBColor, b: RGBColor) -> f64 {
        // Relative luminance, WCAG 2.2.
        let luminance = |RGBColor(red, green, blue): RGBColor| {
            let linear = [red, green, blue].map(|value| {
                let value = f64::from(value) / 255.0;
                if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
            });
            0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        };
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn colors_are_seen_on_both_grounds() {
        let (light, dark) = (RGBColor(255, 255, 255), RGBColor(13, 17, 23));
        let page = include_str!("report.html");
        assert!(page.contains("--paper: #fff;") && page.contains("--paper: #0d1117;"), "these are the grounds");
        for (on_light, on_dark) in COLORS {
            let found = [contrast(on_light, light), contrast(on_dark, dark)];
            assert!(found[0] >= 3.0 && found[1] >= 6.0, "{on_light:?} {on_dark:?}: {found:?}");
        }
        assert!((contrast(light, RGBColor(0, 0, 0)) - 21.0).abs() < 1e-9);
    }

    #[test]
    fn charts_share_an_axis() {
        let (loss, score) = ([(3.0, 9.0), (60.0, 5.0), (120.0, 4.0)], [(20.0, 0.1), (40.0, 0.7)]);
        let across = Across::shared("step", loss.iter().chain(&score).map(|point| point.0));
        let chart = |key: &str, points: &[(f64, f64)]| {
            line_chart(&named("A"), &across, key, &[curve(key, 1, points)], Span::Values).unwrap().unwrap()
        };
        let (loss, score) = (chart("loss", &loss), chart("score", &score));
        let found = ticks(&loss);
        assert_eq!(found[0].0, "0");
        assert!(found.len() >= 3 && found.windows(2).all(|pair| pair[0].1 < pair[1].1), "{found:?}");
        assert_eq!(ticks(&score), found);
        // Each names its axes by the keys, and needs no legend.
        for (chart, key) in [(&loss, "loss"), (&score, "score")] {
            let texts = elements(chart, "text").iter().map(|text| text.1.trim()).collect::<Vec<_>>();
            assert_eq!(texts.iter().filter(|text| **text == key).count(), 1, "{texts:?}");
            assert_eq!(texts.iter().filter(|text| **text == "step").count(), 1, "{texts:?}");
        }
    }

    #[test]
    fn the_values_of_a_moment_are_under_the_pointer() {
        let curves =
            [curve("loss", 1, &[(10.0, 3.0), (20.0, 2.0)]), curve("eval_<loss>", 2, &[(20.0, 2.5), (40.0, 2.25)])];
        let across = Across::shared("step", [40.0].into_iter());
        let chart = line_chart(&named("Loss"), &across, "", &curves, Span::Values).unwrap().unwrap();
        let places = places(&chart);
        let said = places.iter().map(|(_, said)| said.as_slice()).collect::<Vec<_>>();
        let expected = [
            vec!["step 10", "loss 3"],
            vec!["step 20", "loss 2", "eval_&lt;loss&gt; 2.500"],
            vec!["step 40", "eval_&lt;loss&gt; 2.250"],
        ];
        assert_eq!(said, expected);
        // They lie beside each other, and fill the chart.
        assert!(places.windows(2).all(|pair| pair[0].0[2] == pair[1].0[0]), "{places:?}");
        let (left, right) = (places[0].0[0], places[2].0[2]);
        let at = ticks(&chart);
        assert!((left - at[0].1).abs() <= 1 && (right - at[at.len() - 1].1).abs() <= 1, "{left} {right} {at:?}");
        // The legend lies above all that is drawn.
        let symbols = elements(&chart, "rect").into_iter().filter(|rect| pixels(rect, "width") == 14);
        let symbols = symbols.collect::<Vec<_>>();
        assert_eq!(symbols.iter().map(|rect| attribute(rect, "fill")).collect::<Vec<_>>(), ["#0072B2", "#D55E00"]);
        for rect in symbols {
            assert!(pixels(&rect, "y") + pixels(&rect, "height") < places[0].0[1], "{rect:?} {places:?}");
        }
    }

    #[test]
    fn a_bar_shows_its_interval() {
        let bar = |name: &str, value, interval| Bar {
            name: name.into(),
            value,
            interval,
            label: format!("{value} a second"),
            color: series(1),
        };
        let chart = bar_chart(&named("Speed"), &[bar("a", 100.0, None), bar("b", 150.0, Some([120.0, 200.0]))]);
        let chart = chart.unwrap().unwrap();
        let said = places(&chart).into_iter().map(|(_, said)| said).collect::<Vec<_>>();
        assert_eq!(said, [vec!["a: 100 a second"], vec!["b: 150 a second", "interval 120 to 200"]]);
        let wide = f64::from(WIDTH) - 2.0 * f64::from(MARGIN);
        let at = |value: f64| MARGIN + (wide * value / 200.0) as i32;
        let lines = elements(&chart, "polyline").into_iter().filter(|line| attribute(line, "stroke") == "#1B1F24");
        let xs = |line: Element| {
            let points = attribute(&line, "points").split_whitespace();
            points.map(|point| point.split_once(',').unwrap().0.parse::<i32>().unwrap()).collect::<Vec<_>>()
        };
        let (low, high) = (at(120.0), at(200.0));
        assert_eq!(lines.map(xs).collect::<Vec<_>>(), [[low, high], [low, low], [high, high]]);
        let filled = elements(&chart, "rect").into_iter().filter(|rect| attribute(rect, "fill") == "#0072B2");
        let widths = filled.map(|rect| pixels(&rect, "width")).collect::<Vec<_>>();
        assert_eq!(widths, [at(100.0) - MARGIN, at(150.0) - MARGIN]);
    }

    #[test]
    fn one_stack_says_the_figures_of_its_parts() {
        let parts = vec![("data", 1.0), ("nothing", 0.0), ("forward", 3.0)];
        let chart = stacked_chart(&named("Time"), "ms", &[Stack { name: "a step".into(), parts }]).unwrap().unwrap();
        let texts = elements(&chart, "text").iter().map(|text| text.1.trim()).collect::<Vec<_>>();
        assert_eq!(texts, ["Time", "data 1 ms, 25.0 %", "forward 3 ms, 75.0 %", "a step", "4.0 ms"]);
        let said = places(&chart).into_iter().map(|(_, said)| said).collect::<Vec<_>>();
        assert_eq!(said, [["a step", "data 1 ms, 25.0 %"], ["a step", "forward 3 ms, 75.0 %"]]);
    }

    fn dots(xs: &[&str]) -> Vec<Dot> {
        let dot = |(at, x): (usize, &&str)| Dot {
            name: format!("trial {}", at + 1),
            x: (*x).into(),
            y: at as f64,
            is_full: at != 1,
            is_best: at == 0,
        };
        xs.iter().enumerate().map(dot).collect()
    }

    #[test]
    fn a_scatter_has_a_dot_for_each_trial_and_one_in_colour() {
        let chart = |xs: &[&str]| scatter(&named("Key"), ["a.key", "eval_loss"], &dots(xs)).unwrap();
        let rates = chart(&["1e-2", "0.0001", "1e-3"]).unwrap();
        let circles = elements(&rates, "circle");
        let look = |circle: &Element| (attribute(circle, "r").to_owned(), attribute(circle, "fill").to_owned());
        // The best is drawn last, a ring was stopped early.
        let expected =
            [("6", "none"), ("6", "#6E7681"), ("9", "#0072B2")].map(|(r, fill)| (r.to_owned(), fill.to_owned()));
        assert_eq!(circles.iter().map(look).collect::<Vec<_>>(), expected);
        // Powers of ten lie as far from each other: 1e-4, 1e-3, 1e-2.
        let at = circles.iter().map(|circle| pixels(circle, "cx")).collect::<Vec<_>>();
        assert!(((at[1] - at[0]) - (at[2] - at[1])).abs() <= 1 && at[1] - at[0] > 50, "{at:?}");
        let labels = ticks(&rates).into_iter().map(|(label, _)| label).collect::<Vec<_>>();
        assert!(["1e-4", "1e-3", "1e-2"].iter().all(|power| labels.iter().any(|label| label == power)), "{labels:?}");
        let said = places(&rates).into_iter().map(|(_, said)| said).collect::<Vec<_>>();
        assert_eq!(said[2], ["trial 1", "a.key 1e-2", "eval_loss 0"]);

        let words = chart(&["\"linear\"", "\"cosine\"", "\"linear\""]).unwrap();
        let at = elements(&words, "circle").iter().map(|circle| pixels(circle, "cx")).collect::<Vec<_>>();
        let labels = ticks(&words).into_iter().filter(|(label, _)| !label.is_empty()).collect::<Vec<_>>();
        assert_eq!(labels.iter().map(|(label, _)| label.as_str()).collect::<Vec<_>>(), ["cosine", "linear"]);
        let (cosine, linear) = (labels[0].1, labels[1].1);
        assert_eq!(at, [cosine, linear, linear]);
        assert!(chart(&["0.1", "0.1", "0.1"]).is_none() && chart(&[]).is_none(), "one value tells nothing");
    }
}
