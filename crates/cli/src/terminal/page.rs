//! The page of `kiln watch`: what is known of runs, drawn into whatever room there is.

use std::time::Duration;

use kiln::run_folder::{RunStatus, Status};
use kiln_core::error::one_line;
use kiln_core::metrics::Record;
use kiln_core::words::duration;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, Paragraph};

use super::figures::{memory, rate, significant};
use super::follow::{Followed, FollowedRank};
use super::rows;

/// The contents of the page.
pub(super) struct Page {
    /// The folder, as it was named.
    pub(super) title: String,
    pub(super) runs: Vec<Followed>,
    /// Lines to show while there is no log.
    pub(super) said: Vec<String>,
    /// Colours are wanted.
    pub(super) has_colors: bool,
}

/// Colours of curves: the n-th run has the n-th, and starts over after the last. Terminals have
/// them all.
const COLORS: [Color; 6] = [Color::Cyan, Color::Yellow, Color::Magenta, Color::Green, Color::Blue, Color::Red];

/// Points of a curve; a longer one is thinned out by means.
const POINTS: usize = 600;

/// A rank of a run that goes on has said nothing for so long when that is told.
const SILENT: Duration = Duration::from_secs(30);

/// A narrower page has no room for the times by part beside the rows.
const WIDE: u16 = 96;

/// Figures beyond it are drawn at it: differences of finite numbers have to be finite.
const FARTHEST: f64 = 1e100;

/// A figure of the rows: its name there and for people, and how it is written.
type Figure = (&'static str, &'static str, fn(f64) -> String);

const LOSS: Figure = ("loss", "loss", significant);
const VALIDATION: Figure = ("eval_loss", "validation", significant);
const FIGURES: [Figure; 4] = [
    ("learning_rate", "lr", significant),
    ("grad_norm", "grad norm", significant),
    ("tokens_per_s", "tokens/s", rate),
    ("peak_mib", "memory", memory),
];

/// The rooms of the page; one that is empty is not drawn.
struct Rooms {
    head: Rect,
    loss: Rect,
    figures: [Rect; 4],
    parts: Rect,
    log: Rect,
    foot: Rect,
}

impl Rooms {
    /// `head` lines at the top, one at the foot, and between them the curves, the figures and the
    /// log, as far as there is room.
    fn of(area: Rect, head: u16, has_parts: bool) -> Self {
        let is_small = area.height < 18 || area.width < 60;
        let (figures, log) = match (is_small, area.height) {
            (true, _) => (1, u16::from(area.height >= 10)),
            (false, ..28) => (5, 6),
            (false, _) => (7, area.height / 4),
        };
        let [head, loss, figures, low, foot] = Layout::vertical([
            Constraint::Length(head),
            Constraint::Min(3),
            Constraint::Length(figures),
            Constraint::Length(log),
            Constraint::Length(1),
        ])
        .areas(area);
        let wide = if has_parts && !is_small && area.width >= WIDE { 26 } else { 0 };
        let [parts, log] = Layout::horizontal([Constraint::Length(wide), Constraint::Min(1)]).areas(low);
        Self { head, loss, figures: Layout::horizontal([Constraint::Fill(1); 4]).areas(figures), parts, log, foot }
    }
}

impl Page {
    /// Reads what is new; the folders of `since` and later only.
    pub(super) fn read(&mut self, since: Option<f64>) {
        for run in &mut self.runs {
            run.read();
            if let Some(since) = since {
                run.forget_before(since);
            }
        }
    }

    fn color(&self, color: Color) -> Style {
        if self.has_colors { Style::new().fg(color) } else { Style::new() }
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let head = self.head();
        let most = (frame.area().height / 3).max(2);
        let lines = u16::try_from(head.len()).unwrap_or(most).min(most);
        let parts = self.runs.first().filter(|_| self.runs.len() == 1).and_then(Followed::parts);
        let rooms = Rooms::of(frame.area(), lines, parts.is_some());
        frame.render_widget(Paragraph::new(head), rooms.head);
        self.curves(frame, rooms.loss, &[LOSS, VALIDATION]);
        for (figure, room) in FIGURES.into_iter().zip(rooms.figures) {
            match room.height {
                0..=2 => frame.render_widget(Paragraph::new(self.latest(&figure)), room),
                _ => self.curves(frame, room, &[figure]),
            }
        }
        if let Some(parts) = parts {
            let block = self.block("ms a step");
            let named = parts.named().into_iter().filter(|(_, ms)| *ms > 0.0);
            let lines = named.map(|(name, ms)| Line::raw(format!("{name:<11}{:>10}", significant(ms))));
            frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()).block(block), rooms.parts);
        }
        self.log(frame, rooms.log);
        let foot = "q or Ctrl-C leaves the page; the run is not touched";
        frame.render_widget(Paragraph::new(foot).style(Style::new().add_modifier(Modifier::DIM)), rooms.foot);
    }

    fn block<'a>(&self, title: impl Into<Line<'a>>) -> Block<'a> {
        let dim = Style::new().add_modifier(Modifier::DIM);
        Block::bordered().border_style(dim).title(title.into().style(Style::new().add_modifier(Modifier::BOLD)))
    }

    /// The folder and how its run stands, in lines; of several runs, a line for each.
    fn head(&self) -> Vec<Line<'static>> {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let title = Span::styled(one_line(&self.title), bold);
        if let [run] = self.runs.as_slice() {
            let mut first = vec![title, Span::raw("  ")];
            first.extend(self.standing(run, Style::new()));
            let mut lines = vec![Line::from(first)];
            let known = run.known();
            lines.extend(known.map(|status| Line::raw(learned(run, status).trim_start().to_owned())));
            lines.extend(known.and_then(|status| status.message.as_deref()).map(|why| Line::raw(one_line(why))));
            lines.extend(run.ranks.iter().map(|(number, rank)| self.rank(run, *number, rank)));
            return lines;
        }
        let mut lines = vec![Line::from(title)];
        lines.extend(self.runs.iter().enumerate().map(|(at, run)| {
            let mut spans =
                vec![Span::styled(format!("{}  ", one_line(&run.name)), self.color(COLORS[at % COLORS.len()]))];
            spans.extend(self.standing(run, Style::new()));
            spans.extend(run.known().map(|status| Span::raw(learned(run, status))));
            Line::from(spans)
        }));
        lines
    }

    /// How the rank `number` of `run` stands: the last line of its log, and for how long it has
    /// said nothing.
    fn rank(&self, run: &Followed, number: usize, rank: &FollowedRank) -> Line<'static> {
        let mut spans = vec![Span::styled(format!("rank {number}  "), self.color(COLORS[number % COLORS.len()]))];
        let silence = rank.silence();
        if run.goes_on() && silence >= SILENT {
            let text = format!("silent for {}  ", duration(silence.as_secs_f64()));
            spans.push(Span::styled(text, self.color(Color::Yellow)));
        }
        spans.push(Span::raw(one_line(&rank.last)));
        Line::from(spans)
    }

    /// How far `run` is.
    fn standing(&self, run: &Followed, plain: Style) -> Vec<Span<'static>> {
        let status = match &run.status {
            None => return vec![Span::styled("has not begun", self.color(Color::Yellow))],
            Some(Err(error)) => return vec![Span::styled(one_line(&error.to_string()), self.color(Color::Red))],
            Some(Ok(status)) => status,
        };
        let color = match status.status {
            RunStatus::InProgress => Color::Green,
            RunStatus::Completed => Color::Cyan,
            RunStatus::Stopped => Color::Yellow,
            RunStatus::Failed => Color::Red,
        };
        let (step, total) = (run.step(), status.total_steps);
        let percent = if total == 0 { 100.0 } else { (step as f64 / total as f64 * 100.0).min(100.0) };
        let mut text = format!("  step {step}/{total}, {percent:.0} %, {}", duration(status.seconds));
        if let Some(left) = run.seconds_left() {
            text += &format!(", {} left", duration(left));
        }
        vec![Span::styled(status.status.to_string(), self.color(color)), Span::styled(text, plain)]
    }

    /// The last value of a figure, of the first run that has one.
    fn latest(&self, (key, name, form): &Figure) -> Line<'static> {
        let last = self.runs.iter().find_map(|run| run.points(key).last().copied());
        Line::raw(format!("{name} {}", last.map_or("-".into(), |(_, value)| form(value))))
    }

    /// The curves of `figures` of all runs.
    fn curves(&self, frame: &mut Frame<'_>, room: Rect, figures: &[Figure]) {
        let mut curves = Vec::new();
        let (mut title, mut broken) = (Vec::new(), 0);
        let is_one = self.runs.len() == 1;
        for (run_at, run) in self.runs.iter().enumerate() {
            for (figure_at, (key, name, form)) in figures.iter().enumerate() {
                let all = run.points(key);
                let points = all.iter().copied().filter(|(_, value)| value.is_finite()).collect::<Vec<_>>();
                broken += all.len() - points.len();
                let style = self.color(COLORS[(if is_one { figure_at } else { run_at }) % COLORS.len()]);
                if is_one && let Some((_, last)) = all.last() {
                    title.push(Span::styled(format!("{name} {}  ", form(*last)), style));
                }
                if !points.is_empty() {
                    let marker = if self.has_colors || figure_at == 0 { Marker::Braille } else { Marker::Dot };
                    curves.push((thinned(&points), style, marker));
                }
            }
        }
        if title.is_empty() {
            title.push(Span::raw(figures.iter().map(|(_, name, _)| *name).collect::<Vec<_>>().join(", ")));
        }
        if broken > 0 {
            title.push(Span::styled(format!(" {broken} not finite"), self.color(Color::Red)));
        }
        let block = self.block(Line::from(title));
        let all = || curves.iter().flat_map(|(points, ..)| points);
        let Some(y) = bounds(all().map(|point| point.1)) else {
            frame.render_widget(Paragraph::new("no figures yet").block(block), room);
            return;
        };
        // To the last planned step, so that the picture tells how far the run is.
        let planned = self.runs.iter().filter_map(|run| Some(run.known()?.total_steps as f64));
        let x = [0.0, planned.chain(all().map(|point| point.0)).fold(1.0, f64::max)];
        let datasets = curves.iter().map(|(points, style, marker)| {
            Dataset::default().data(points).style(*style).marker(*marker).graph_type(GraphType::Line)
        });
        // A few points are seen as dots, one alone too.
        let few = curves.iter().filter(|(points, ..)| points.len() * 8 <= usize::from(room.width));
        let dots = few.map(|(points, style, _)| Dataset::default().data(points).style(*style).marker(Marker::Dot));
        let form = figures.first().map_or(significant as fn(f64) -> String, |figure| figure.2);
        let mut chart = Chart::new(datasets.chain(dots).collect()).block(block).legend_position(None);
        chart = if room.height >= 7 && room.width >= 30 {
            let steps = marks(x, if room.width < 60 { 2 } else { 4 }).into_iter().map(|step| format!("{step:.0}"));
            let values = marks(y, if room.height < 12 { 2 } else { 4 }).into_iter().map(form);
            let (x_axis, y_axis) = (Axis::default().bounds(x), Axis::default().bounds(y));
            chart.x_axis(x_axis.labels(steps)).y_axis(y_axis.labels(values))
        } else {
            chart.x_axis(Axis::default().bounds(x)).y_axis(Axis::default().bounds(y))
        };
        frame.render_widget(chart, room);
    }

    /// The end of the log, with rows in columns; of several runs that of the first that goes on.
    fn log(&self, frame: &mut Frame<'_>, room: Rect) {
        let run = self.runs.iter().find(|run| run.goes_on() && !run.log.is_empty()).or(self.runs.first());
        let lines = run.map(|run| run.log.iter().map(String::as_str).collect::<Vec<_>>()).unwrap_or_default();
        let lines = if lines.is_empty() { self.said.iter().map(String::as_str).collect() } else { lines };
        let (block, height) = match room.height {
            0..=2 => (Block::new(), room.height),
            height => (self.block("log"), height - 2),
        };
        let lines = lines.into_iter().filter_map(|line| self.log_line(line)).collect::<Vec<_>>();
        let last = |count: u16| &lines[lines.len().saturating_sub(usize::from(count))..];
        // The names of the columns stay where there is a row below them.
        let mut shown = last(height);
        let mut text = Vec::new();
        if height >= 3 && shown.iter().any(|(_, is_row)| *is_row) {
            shown = last(height - 1);
            text.push(Line::styled(rows::names(), Style::new().add_modifier(Modifier::BOLD)));
        }
        text.extend(shown.iter().map(|(line, _)| line.clone()));
        frame.render_widget(Paragraph::new(text).block(block), room);
    }

    /// A line of the log as the page has it, and whether it is a row in columns. Other lines have
    /// the time of the day; the block of figures at the end, which the rows have, is left out.
    fn log_line(&self, line: &str) -> Option<(Line<'static>, bool)> {
        let told = without_time(line);
        let row = Record::from_dict(told);
        let colored = |row: &Record, loss: &str, text: String, color: Option<Color>| {
            let is_broken = row.get(loss).is_some_and(|loss| !loss.is_finite());
            let color = if is_broken { Some(Color::Red) } else { color };
            Line::styled(one_line(&text), color.map_or(Style::new(), |color| self.color(color)))
        };
        match row {
            Some(row) if row.get("train_runtime").is_some() => {
                let text = console::strip_ansi_codes(&rows::summary(&row)).into_owned();
                Some((Line::raw(one_line(&text)), false))
            }
            Some(row) if row.get("eval_loss").is_some() => {
                Some((colored(&row, "eval_loss", rows::evaluation(&row), Some(COLORS[1])), true))
            }
            Some(row) if row.get("step").is_some() => Some((colored(&row, "loss", rows::training(&row), None), true)),
            _ if told.ends_with(" metrics *****") || (told.starts_with("  ") && told.contains(" = ")) => None,
            // The date and the second are of no help here.
            _ => Some((Line::raw(one_line(without_date(line))), false)),
        }
    }
}

/// The losses of `run`, or of the model that it has kept, and what is trained.
fn learned(run: &Followed, status: &Status) -> String {
    let latest = |name: &str| run.points(name).last().map(|(_, value)| *value);
    let mut text = latest("loss").map_or(String::new(), |loss| format!("  loss {}", significant(loss)));
    text += &match &status.best_model {
        Some(best) => {
            let value = run.evaluation().and_then(|row| row.get(&best.metric));
            let value = value.map_or(String::new(), |value| format!(": {} {}", best.metric, significant(value)));
            format!("  model of step {}, the best{value}", best.step)
        }
        None => latest("eval_loss").map_or(String::new(), |loss| format!("  validation {}", significant(loss))),
    };
    text + "  " + &one_line(&status.model)
}

/// The ends of an axis and what lies between them, in so many equal parts.
fn marks([from, to]: [f64; 2], parts: u32) -> Vec<f64> {
    (0..=parts).map(|at| from + (to - from) * f64::from(at) / f64::from(parts)).collect()
}

/// A line of `run.log` from the time of the day on.
fn without_date(line: &str) -> &str {
    if without_time(line) == line { line } else { line.get(11..).unwrap_or(line) }
}

/// A line of `run.log` without its time.
fn without_time(line: &str) -> &str {
    let is_stamped = line.get(10..11) == Some("T") && line.get(19..21) == Some("Z ");
    if is_stamped { line.get(21..).unwrap_or(line) } else { line }
}

/// The least and the greatest value, with some room where they are the same; none of nothing.
fn bounds(values: impl Iterator<Item = f64>) -> Option<[f64; 2]> {
    let [least, greatest] = values
        .fold([f64::INFINITY, f64::NEG_INFINITY], |[least, greatest], value| [least.min(value), greatest.max(value)]);
    match greatest - least {
        span if span > 0.0 => Some([least, greatest]),
        0.0 => {
            let room = if least == 0.0 { 1.0 } else { least.abs() * 0.1 };
            Some([least - room, greatest + room])
        }
        _ => None,
    }
}

/// At most [`POINTS`] points, each the mean of neighbours; the last one stays as it is.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let near = |value: f64| value.clamp(-FARTHEST, FARTHEST);
    let chunk = points.len().div_ceil(POINTS).max(1);
    let mean = |points: &[(f64, f64)]| {
        let sum = points.iter().fold((0.0, 0.0), |sum, (x, y)| (sum.0 + near(*x), sum.1 + near(*y)));
        (sum.0 / points.len() as f64, sum.1 / points.len() as f64)
    };
    let mut thin = points.chunks(chunk).map(mean).collect::<Vec<_>>();
    if let (Some(last), Some((x, y)), true) = (thin.last_mut(), points.last(), chunk > 1) {
        *last = (near(*x), near(*y));
    }
    thin
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    const HOSTILE: &str = "\u{1b}]0;evil\u{7}\u{9b}31m\u{202e}gpj";

    /// Writes a run folder with these rows.
    fn run(folder: &Path, status: &str, message: Option<&str>, rows: &[String]) {
        std::fs::create_dir_all(folder).unwrap();
        let status = serde_json::json!({
            "status": status, "message": message, "name": HOSTILE, "model": format!("gpt2{HOSTILE} clm"), "step": 3,
            "total_steps": 300, "started_at": 1e9, "written_at": 1e9, "seconds_before": 0.0, "seconds": 83.0,
        });
        std::fs::write(folder.join("status.json"), status.to_string()).unwrap();
        std::fs::write(folder.join("metrics.jsonl"), rows.iter().map(|row| format!("{row}\n")).collect::<String>())
            .unwrap();
        std::fs::write(
            folder.join("run.log"),
            format!("2026-11-22T20:28:53Z saving {HOSTILE}\n2026-11-22T20:28:54Z the last\n"),
        )
        .unwrap();
    }

    fn row(step: u64, loss: &str) -> String {
        format!(
            "{{\"step\": {step}, \"loss\": {loss}, \"grad_norm\": 1.5, \"learning_rate\": 5e-5, \"tokens_per_s\": 12345.0, \"peak_mib\": 812.3}}"
        )
    }

    /// The lines of the page of `folder` on a terminal of that size.
    fn drawn(folder: &Path, (width, height): (u16, u16)) -> Vec<String> {
        let runs = super::super::follow::runs_in(folder);
        let runs = runs.into_iter().map(|(name, path)| Followed::new(name, &path)).collect();
        let mut page = Page { title: format!("runs/{HOSTILE}"), runs, said: vec![], has_colors: true };
        page.read(None);
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| page.draw(frame)).unwrap();
        let cells = terminal.backend().buffer().content.chunks(usize::from(width));
        let lines = cells.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
        let lines = lines.collect::<Vec<_>>();
        assert!(!lines.concat().chars().any(|c| c.is_control() || c == '\u{202e}'), "{lines:?}");
        lines
    }

    const SIZES: [(u16, u16); 3] = [(80, 24), (40, 12), (200, 60)];

    #[test]
    fn a_run_fits_every_terminal() {
        let folder = tempfile::tempdir().unwrap();
        let mut rows = (1..=250).map(|step| row(step, &format!("{}", 8.0 / step as f64 + 1.0))).collect::<Vec<_>>();
        rows.push("{\"step\": 250, \"eval_loss\": 1.25, \"eval_accuracy\": 0.5}".into());
        run(folder.path(), "Stopped", Some("SIGTERM: stopped after step 250"), &rows);
        for size in SIZES {
            let text = drawn(folder.path(), size).join("\n");
            assert!(text.contains("Stopped") || size.0 < 80, "{text}");
            for part in ["loss 1.032", "validation 1.250"] {
                assert!(text.contains(part), "{part} at {size:?} in\n{text}");
            }
            let has_curve = text.chars().filter(|c| ('\u{2801}'..='\u{28ff}').contains(c)).count();
            assert!(has_curve > 10, "a curve at {size:?}:\n{text}");
            if size.0 >= 80 {
                for part in [
                    "step 250/300, 83 %, 1m 23s",
                    "SIGTERM: stopped",
                    "lr 5.000e-5",
                    "grad norm 1.500",
                    "12.35k",
                    "812.3 MiB",
                ] {
                    assert!(text.contains(part), "{part} at {size:?} in\n{text}");
                }
                assert!(text.contains("20:28:54Z the last") && !text.contains("2026-11-22"), "{text}");
            }
        }
        // Any size at all is drawn.
        for size in [(1, 1), (2, 3), (10, 2), (60, 18), (300, 5)] {
            drawn(folder.path(), size);
        }
    }

    #[test]
    fn the_axis_ends_with_the_plan_and_rows_are_in_columns() {
        let folder = tempfile::tempdir().unwrap();
        let evaluation = "{\"step\": 30, \"eval_loss\": 2.5, \"eval_accuracy\": 0.5}".to_owned();
        run(folder.path(), "InProgress", None, &[row(15, "4.0"), row(30, "3.0"), evaluation.clone()]);
        let stamped = |line: &str| format!("2026-11-22T20:28:55Z {line}\n");
        let dicts = [row(15, "4.0"), row(30, "nan"), evaluation].map(|row| stamped(&row.replace('"', "'")));
        let rest = ["***** eval metrics *****", "  eval_loss = 2.5", "saving x"].map(stamped);
        std::fs::write(folder.path().join("run.log"), dicts.concat() + &rest.concat()).unwrap();
        let lines = drawn(folder.path(), (80, 30));
        let text = lines.join("\n");
        // The last of 300 steps is at the right end, and a tenth of the width has a curve.
        let axis = lines.iter().find(|line| line.contains("300│")).unwrap();
        assert!(["0 ", " 75 ", " 150 ", " 225 "].iter().all(|mark| axis.contains(mark)), "{text}");
        let is_dot = |c: char| ('\u{2801}'..='\u{28ff}').contains(&c) || c == '•';
        let top = lines.iter().take_while(|line| *line != axis);
        let farthest =
            top.filter_map(|line| line.chars().enumerate().filter(|(_, c)| is_dot(*c)).last()).map(|(at, _)| at);
        assert!(farthest.max().is_some_and(|at| (8..25).contains(&at)), "{text}");
        let at =
            |part: &str| lines.iter().position(|line| line.contains(part)).unwrap_or_else(|| panic!("{part}:\n{text}"));
        let first = at("    step   epoch      loss  val loss learn rate tokens/s    memory");
        let rows = [
            "      15             4.000             5.000e-5   12.35k 812.3 MiB",
            "      30               nan             5.000e-5   12.35k 812.3 MiB",
            "      30                       2.500  accuracy 0.5000",
            "20:28:55Z saving x",
        ];
        assert_eq!(rows.map(at), [first + 1, first + 2, first + 3, first + 4], "{text}");
        assert!(!text.contains("metrics *****") && !text.contains("eval_loss = ") && !text.contains("{'"), "{text}");
    }

    #[test]
    fn the_model_that_was_kept_is_in_the_headline() {
        let folder = tempfile::tempdir().unwrap();
        let evaluation = |step: u64, loss: f64| format!("{{\"step\": {step}, \"eval_loss\": {loss}}}");
        run(folder.path(), "Completed", None, &[row(1, "3.0"), evaluation(1, 2.5), row(3, "2.0"), evaluation(3, 2.75)]);
        assert!(drawn(folder.path(), (80, 24))[1].starts_with("loss 2.000  validation 2.750  gpt2"));
        let status = std::fs::read_to_string(folder.path().join("status.json")).unwrap();
        let status = status.replacen('{', "{\"best_model\": {\"step\": 1, \"metric\": \"eval_loss\"}, ", 1);
        std::fs::write(folder.path().join("status.json"), status).unwrap();
        let lines = drawn(folder.path(), (80, 24));
        assert!(lines[1].starts_with("loss 2.000  model of step 1, the best: eval_loss 2.500  gpt2"), "{lines:#?}");
    }

    #[test]
    fn each_rank_has_a_line_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        run(folder.path(), "InProgress", None, &[row(1, "3.0"), row(2, "2.0")]);
        let log = |rank: usize, text: &str| {
            std::fs::create_dir_all(folder.path().join("ranks")).unwrap();
            let path = folder.path().join(format!("ranks/{rank}.log"));
            std::fs::write(&path, text).unwrap();
            std::fs::File::open(path).unwrap()
        };
        log(1, &format!("first\n{{'loss': 2.5, {HOSTILE}}}\n\n"));
        let since = std::time::SystemTime::now() - Duration::from_secs(60);
        log(2, "the last of 2\n").set_modified(since).unwrap();
        // That of a start of the run before this one, which had more ranks.
        log(3, "of yesterday\n").set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1000)).unwrap();
        log(4, "").set_modified(std::time::SystemTime::now()).unwrap();
        std::fs::write(folder.path().join("ranks/notes.log"), "somebody's own\n").unwrap();
        let lines = drawn(folder.path(), (120, 30));
        let of = |rank: usize| lines.iter().find(|line| line.starts_with(&format!("rank {rank}  "))).cloned();
        assert!(of(1).unwrap().contains("rank 1  {'loss': 2.5"), "{lines:#?}");
        let second = of(2).unwrap();
        assert!(second.contains("silent for 1m") && second.contains("  the last of 2"), "{lines:#?}");
        assert!(of(3).is_none() && of(4).is_some(), "{lines:#?}");
        assert!(!lines.concat().contains("somebody"), "{lines:#?}");
    }

    #[test]
    fn an_empty_run_and_one_that_has_not_begun_say_so() {
        let folder = tempfile::tempdir().unwrap();
        for size in SIZES {
            let text = drawn(folder.path(), size).join("\n");
            assert!(text.contains("no figures yet"), "{text}");
        }
        run(folder.path(), "InProgress", None, &[]);
        for size in SIZES {
            assert!(drawn(folder.path(), size).join("\n").contains("no figures yet"));
        }
        std::fs::write(folder.path().join("status.json"), "{\"status\": 1").unwrap();
        assert!(drawn(folder.path(), (200, 60)).join("\n").contains("status.json"));
    }

    #[test]
    fn what_is_no_number_is_counted_and_the_rest_is_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let losses = ["3.0", "1e308", "-1e308", "NaN", "Infinity", "2.0"];
        let rows = losses.iter().enumerate().map(|(at, loss)| row(at as u64 + 1, loss)).collect::<Vec<_>>();
        run(folder.path(), "Failed", Some(&format!("step 4: the loss is NaN {HOSTILE}")), &rows);
        for size in SIZES {
            let text = drawn(folder.path(), size).join("\n");
            assert!(text.contains("2 not finite"), "{text}");
        }
        let all_broken = (1..9).map(|step| row(step, "NaN")).collect::<Vec<_>>();
        run(folder.path(), "Failed", None, &all_broken);
        let text = drawn(folder.path(), (80, 24)).join("\n");
        assert!(text.contains("8 not finite") && text.contains("no figures yet"), "{text}");
    }

    #[test]
    fn a_comparison_shows_the_last_repeat_of_every_arm() {
        let folder = tempfile::tempdir().unwrap();
        for (arm, repeat, loss) in
            [("native", 1, "9.0"), ("native", 2, "2.5"), ("native", 10, "2.25"), ("compiled", 1, "2.75")]
        {
            let run_folder = folder.path().join(format!("arms/{arm}/repeat-{repeat}"));
            run(&run_folder, "Completed", None, &[row(1, "3.0"), row(2, loss)]);
        }
        let lines = drawn(folder.path(), (200, 60));
        let line = |name: &str| {
            lines.iter().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{lines:#?}")).clone()
        };
        assert!(line("native").contains("loss 2.250") && line("compiled").contains("loss 2.750"), "{lines:#?}");
    }

    #[test]
    fn times_by_part_are_shown_where_they_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        run(folder.path(), "Completed", None, &[row(1, "3.0"), row(2, "2.0")]);
        let step = "{\"step\": 1, \"samples\": 1, \"tokens\": 1, \"step_ms\": 30.0, \"data_ms\": 1.0, \"forward_ms\": 12.5, \
            \"backward_ms\": 10.0, \"update_ms\": 5.0, \"sync_ms\": 1.5, \"synced\": true}\n";
        std::fs::write(folder.path().join("steps.jsonl"), step.repeat(3)).unwrap();
        let text = drawn(folder.path(), (200, 60)).join("\n");
        assert!(text.contains("ms a step") && text.contains("forward") && text.contains("12.50"), "{text}");
    }

    #[test]
    fn curves_are_thinned_to_means_and_end_where_they_end() {
        let points = (0..6001).map(|at| (f64::from(at), 1.0)).collect::<Vec<_>>();
        let thin = thinned(&points);
        assert!(thin.len() <= POINTS && thin.last() == Some(&(6000.0, 1.0)));
        assert_eq!(thinned(&points[..3]), points[..3]);
        assert_eq!((bounds([].into_iter()), bounds([2.0].into_iter())), (None, Some([1.8, 2.2])));
    }
}
