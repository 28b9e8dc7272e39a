//! A report as a document: what its text, its Markdown and its HTML show, each in its own form. The table has a row for every
//! measure and a cell for every participant; a row that no participant has is left out.

use serde::Serialize;

use crate::base::error::one_line;
use crate::measure::compare::verdict::Word;
use crate::measure::compare::{ArmReport, Comparison, Moments, Report, Role};
use crate::session::provenance::Provenance;

/// A measure with one cell a participant; a heading has none.
#[derive(Serialize)]
pub(crate) struct Row {
    pub(super) name: String,
    /// It is a part of the measure above it.
    pub(super) is_part: bool,
    pub(super) cells: Vec<String>,
}

/// What a cell shows where a participant has nothing.
const NOTHING: &str = "-";

/// The rows of participants.
pub(crate) struct Rows<'a, P> {
    participants: &'a [P],
    rows: Vec<Row>,
}

impl<'a, P> Rows<'a, P> {
    /// No rows yet.
    pub(crate) fn new(participants: &'a [P]) -> Self {
        Self { participants, rows: Vec::new() }
    }

    /// Adds a row of `cell`, unless it is empty; the name of a part begins with a space.
    pub(crate) fn add(&mut self, name: &str, cell: impl Fn(&P) -> Option<String>) {
        let cells = self.participants.iter().map(cell).collect::<Vec<_>>();
        if cells.iter().any(Option::is_some) {
            self.push(name, cells.into_iter().map(|cell| cell.unwrap_or_else(|| NOTHING.into())).collect());
        }
    }

    /// Adds a row of numbers with so many digits after the point.
    pub(crate) fn number(&mut self, name: &str, digits: usize, pick: impl Fn(&P) -> Option<f64>) {
        self.add(name, |participant| pick(participant).map(|value| fixed(value, digits)));
    }

    /// Adds a line above the rows that follow.
    pub(crate) fn heading(&mut self, name: &str) {
        self.push(name, Vec::new());
    }

    fn push(&mut self, name: &str, cells: Vec<String>) {
        self.rows.push(Row { name: name.trim().into(), is_part: name.starts_with(' '), cells });
    }

    /// The table of the rows; `name` tells the short name of a participant.
    pub(crate) fn table(self, name: impl Fn(&P) -> &str) -> Table {
        Table { names: self.participants.iter().map(|it| one_line(name(it))).collect(), rows: self.rows }
    }
}

/// Rows under the names of the participants.
#[derive(Serialize)]
pub(crate) struct Table {
    pub(super) names: Vec<String>,
    pub(super) rows: Vec<Row>,
}

impl Table {
    /// The lines of the table. More participants than fit into `width` columns go into further blocks.
    pub(crate) fn blocks(&self, width: usize) -> Vec<Vec<String>> {
        let length = |text: &String| text.chars().count();
        let full = || self.rows.iter().filter(|row| !row.cells.is_empty());
        let indent = |row: &Row| if row.is_part { 2 } else { 0 };
        let first = full().map(|row| indent(row) + length(&row.name)).max().unwrap_or(0);
        let wide = |at: usize| full().map(|row| length(&row.cells[at])).max().unwrap_or(0).max(length(&self.names[at]));
        let widths = (0..self.names.len()).map(wide).collect::<Vec<_>>();
        let (mut blocks, mut end) = (Vec::new(), 0);
        while end < widths.len() {
            let (begin, mut used) = (end, first);
            while end < widths.len() && (end == begin || used + 2 + widths[end] <= width) {
                used += 2 + widths[end];
                end += 1;
            }
            let line = |name: &str, cells: &[String]| {
                let cells = cells.iter().zip(&widths).skip(begin).take(end - begin);
                let cells = cells.map(|(cell, width)| format!("  {cell:>0$}", *width)).collect::<String>();
                one_line(format!("{name:<first$}{cells}").trim_end())
            };
            let head = line("", &self.names);
            let rows = self.rows.iter().map(|row| line(&format!("{:1$}{2}", "", indent(row), row.name), &row.cells));
            blocks.push(std::iter::once(head).chain(rows).collect());
        }
        blocks
    }
}

/// A comparison in a sentence.
#[derive(Serialize)]
pub(super) struct Verdict {
    pub(super) word: Word,
    pub(super) sentence: String,
}

/// A report of arms.
#[derive(Serialize)]
pub(super) struct Document<'a> {
    pub(super) title: &'a str,
    pub(super) made_at: &'a str,
    /// What each arm is.
    pub(super) labels: Vec<&'a str>,
    pub(super) table: Table,
    /// Of every comparison.
    pub(super) verdicts: Vec<Verdict>,
    /// Of the reference against itself.
    pub(super) noise: Option<Verdict>,
    /// Arms that failed, and why.
    pub(super) failures: Vec<String>,
    pub(super) conclusions: Vec<String>,
    pub(super) differences: Vec<String>,
    pub(super) notes: &'a [String],
    pub(super) provenance: Vec<String>,
    /// Where the raw samples of each arm are.
    pub(super) folders: Vec<String>,
}

impl<'a> Document<'a> {
    pub(super) fn of(report: &'a Report) -> Self {
        let failures = report.arms.iter().filter_map(|arm| Some(format!("{}: {}", arm.name, arm.failure.as_ref()?)));
        let folders = report.arms.iter().map(|arm| {
            let runs = arm.runs.iter().map(|run| run.display().to_string()).collect::<Vec<_>>();
            format!("{}: {}", arm.name, if runs.is_empty() { "none".into() } else { runs.join(", ") })
        });
        let verdict = |of: &Comparison, who| Verdict { word: of.verdict, sentence: format!("{who}{}", sentence(of)) };
        Self {
            title: &report.title,
            made_at: &report.made_at,
            labels: report.arms.iter().map(|arm| arm.label.as_str()).collect(),
            table: table(report),
            verdicts: report.comparisons.iter().map(|comparison| verdict(comparison, "")).collect(),
            noise: report.noise.as_ref().map(|noise| verdict(noise, "noise: ")),
            failures: failures.collect(),
            conclusions: conclusions(report),
            differences: differences(report),
            notes: &report.notes,
            provenance: provenance(report),
            folders: folders.collect(),
        }
    }
}

/// Every row that has something.
fn table(report: &Report) -> Table {
    let mut rows = Rows::new(&report.arms);
    let equal = report.derived.equal;
    let moment = |pick: fn(&Moments<f64>) -> f64| equal.as_ref().map_or(0.0, pick);
    let at = |pick: fn(&Moments<Option<f64>>) -> Option<f64>| {
        move |arm: &ArmReport| arm.loss_at_equal.as_ref().and_then(pick)
    };
    rows.add("batch", |arm| match (arm.micro_batch?, arm.accumulation.unwrap_or(1)) {
        (micro, 1) => Some(micro.to_string()),
        (micro, accumulation) => Some(format!("{micro} x {accumulation}")),
    });
    rows.add("learning rate, peak", |arm| arm.learning_rate.map(scientific));
    rows.number("block", 0, |arm| arm.block.map(|block| block as f64));
    rows.add("runs, windows", |arm| Some(format!("{}, {}", arm.repeats, arm.figures.windows)));
    rows.add("failed", |arm| arm.failure.clone());
    rows.number("samples/s", 2, |arm| arm.figures.samples_per_s);
    rows.number("tokens/s", 0, |arm| arm.figures.tokens_per_s);
    rows.number("step ms, median", 1, |arm| arm.step_ms_p50);
    rows.number("step ms, p95", 1, |arm| arm.step_ms_p95);
    rows.number("step ms, max", 1, |arm| arm.step_ms_max);
    rows.number("  data wait", 1, |arm| Some(arm.budget_ms?.data));
    rows.number("  forward", 1, |arm| Some(arm.budget_ms?.forward));
    rows.number("  backward", 1, |arm| Some(arm.budget_ms?.backward));
    rows.number("  update", 1, |arm| Some(arm.budget_ms?.update));
    rows.number("  sync and log", 1, |arm| Some(arm.budget_ms?.sync));
    rows.number("  evaluation, spread", 1, |arm| Some(arm.budget_ms?.evaluation));
    rows.number("  saving, spread", 1, |arm| Some(arm.budget_ms?.save));
    rows.number("warm-up s, first run", 2, |arm| arm.warmup_seconds_first);
    rows.number("warm-up s, later runs", 2, |arm| arm.warmup_seconds_later);
    rows.number("start and end s", 2, |arm| arm.startup_seconds);
    rows.number("peak memory MiB", 0, |arm| arm.figures.peak_mib);
    rows.number("kernel launches a step", 0, |arm| arm.figures.kernel_launches_per_step);
    rows.number("device reads a step", 1, |arm| arm.figures.device_reads_per_step);
    rows.number("model GFLOP/s", 1, |arm| arm.model_gflops);
    rows.add("of the GEMM peak", |arm| Some(format!("{:.1} %", arm.model_flops_utilization? * 100.0)));
    rows.number("last loss", 4, |arm| arm.last_loss);
    rows.number(&format!("  at step {}", moment(|at| at.steps)), 4, at(|at| at.steps));
    rows.number(&format!("  at {} tokens", fixed(moment(|at| at.tokens), 0)), 4, at(|at| at.tokens));
    rows.number(&format!("  at {:.1} s", moment(|at| at.seconds)), 4, at(|at| at.seconds));
    rows.number("s to the target loss", 1, |arm| arm.seconds_to_target);
    rows.number("billable s, whole run", 0, |arm| arm.billable_seconds);
    rows.number("cost, whole run", 4, |arm| arm.cost);
    rows.table(|arm| &arm.name)
}

/// A comparison in a sentence.
fn sentence(comparison: &Comparison) -> String {
    let Comparison { arm, against, verdict, .. } = comparison;
    let subject = format!("{arm} against {against}");
    match (verdict, comparison.speedup) {
        (Word::NotComparable, _) | (_, None) => {
            format!("{subject}: {verdict} ({})", comparison.reason.as_deref().unwrap_or("no reason is known"))
        }
        (verdict, Some(speedup)) => format!(
            "{subject}: {verdict}; {:.3}x, 98 % interval {:.3} to {:.3}{}",
            speedup.ratio,
            speedup.low,
            speedup.high,
            match verdict {
                Word::Same => String::new(),
                _ => format!(
                    "; time saved {:.1} %, throughput gained {:.1} %{}",
                    comparison.time_saved_percent.unwrap_or(0.0),
                    comparison.throughput_gained_percent.unwrap_or(0.0),
                    comparison
                        .billable_saved_percent
                        .map_or(String::new(), |saved| format!(", billable seconds saved {saved:.1} %"))
                ),
            }
        ),
    }
}

/// What follows from the comparisons, a line each.
fn conclusions(report: &Report) -> Vec<String> {
    let derived = &report.derived;
    let mut lines = Vec::new();
    if let Some(advice) = &derived.advice {
        lines.push(format!("Advice: {advice}."));
    }
    if let (Some(total), Some(compiler), Some(batch)) =
        (derived.total_speedup, derived.compiler_share, derived.batch_share)
    {
        lines.push(format!("Speed-up {total:.3} = compiler {compiler:.3} x batch {batch:.3}{}.", in_the_noise(report)));
    }
    if let (Some(native), Some(interaction)) = (derived.native_batch_share, derived.interaction) {
        lines.push(format!("The larger batch alone gives native {native:.3}; interaction {interaction:.3}."));
    }
    if let Some(step) = derived.break_even_step {
        let later =
            derived.break_even_step_later.map_or(String::new(), |step| format!(" ({step:.0} with warm caches)"));
        lines.push(format!("Break-even: compiling has paid for its start after step {step:.0}{later}."));
    }
    if let (Some(ceiling), Some(share)) = (derived.ceiling, derived.compute_share) {
        let ceiling = if ceiling > 100.0 { "100x and more".into() } else { format!("{ceiling:.1}x") };
        lines.push(format!(
            "Ceiling: {:.1} % of the native step is forward, backward and update, so a compiler that took no time at all \
             would give {ceiling} at this batch.",
            share * 100.0
        ));
    }
    let checked = report.comparisons.iter().filter_map(|comparison| Some((comparison, comparison.parity.as_ref()?)));
    // Ablations and sweeps are many, and worth a word each only where they fail.
    let is_extra = |arm: &str| {
        let arm = report.arms.iter().find(|other| other.name == arm);
        arm.is_some_and(|arm| matches!(arm.role, Role::Ablation | Role::Sweep))
    };
    let (mut extra, mut largest) = (0, 0.0f64);
    for (comparison, parity) in checked {
        if parity.passed && is_extra(&comparison.arm) {
            (extra, largest) = (extra + 1, largest.max(parity.relative));
            continue;
        }
        lines.push(format!(
            "Loss parity, {} against {}: {} of {} losses differ by {:.1e} relative at most, limit {:.0e}: {}.",
            comparison.arm,
            comparison.against,
            if parity.by_mean { "the means" } else { "each" },
            parity.losses,
            parity.relative,
            parity.limit,
            if parity.passed { "passed" } else { "failed" }
        ));
    }
    if extra > 0 {
        lines.push(format!(
            "Loss parity of {extra} arms of ablation and sweep: passed, they differ by {largest:.1e} relative at most."
        ));
    }
    if let Some(target) = derived.target_loss {
        lines.push(format!("Target loss: {target:.4} (smoothed over 5 log rows)."));
    }
    if let Some(gemm) = report.gemm_gflops {
        lines.push(format!(
            "The device reaches {gemm:.0} GFLOP/s in a product of 2048 x 2048 f32 matrices. Model FLOP: 6 x weights that \
             multiply + 12 x layers x width x length a token."
        ));
    }
    lines
}

/// What is said of a product of which a factor, or the whole, is not measurable.
fn in_the_noise(report: &Report) -> String {
    let of = |role: Role| report.arms.iter().find(|arm| arm.role == role);
    let same = |role: Role| {
        let arm = of(role)?;
        let comparison = report.comparisons.iter().find(|comparison| comparison.arm == arm.name)?;
        (comparison.verdict == Word::Same).then_some(match role {
            Role::Compiled => "the compiler's share",
            _ => "the whole",
        })
    };
    let same = [Role::Compiled, Role::CompiledLarge].into_iter().filter_map(same).collect::<Vec<_>>();
    if same.is_empty() { String::new() } else { format!("; {} is within the noise", same.join(" and ")) }
}

/// Labelled differences of the arms, a line each.
fn differences(report: &Report) -> Vec<String> {
    let of = |comparison: &Comparison| {
        let pair = format!("{} against {}", comparison.against, comparison.arm);
        comparison.differences.iter().map(move |difference| format!("{pair}: {difference}")).collect::<Vec<_>>()
    };
    report.comparisons.iter().flat_map(of).collect()
}

/// Machine and program, for provenance: a line for what all arms share, and one for each arm.
fn provenance(report: &Report) -> Vec<String> {
    let shared = |it: &Provenance| {
        let memory = it.memory_mib.map_or(String::new(), |mib| format!(", {:.0} GiB", mib / 1024.0));
        format!(
            "kiln {}, commit {} ({} build), Burn {}; {}{}; {}, {} threads{memory}; {}",
            it.kiln,
            it.commit.as_deref().unwrap_or("unknown"),
            it.build,
            it.burn,
            it.device,
            match &it.driver {
                Some(driver) => format!(", driver {driver}"),
                None if it.device.starts_with("cpu") => String::new(),
                None => ", driver unknown".into(),
            },
            it.cpu.as_deref().unwrap_or("processor unknown"),
            it.threads,
            it.system,
        )
    };
    let own = |it: &Provenance| {
        let fused = match &it.fused_operators {
            Some(fused) if !fused.is_empty() => format!("fused {}", fused.join(", ")),
            None if it.fused_ops => "fused operators".into(),
            _ => "no fused operators".into(),
        };
        format!("{} with {fused}; config {}", it.mode, it.config_sha256.get(..12).unwrap_or_default())
    };
    let mut all = report.arms.iter().filter_map(|arm| arm.provenance.as_ref()).map(shared).collect::<Vec<_>>();
    all.dedup();
    let one = (all.len() == 1).then(|| all.remove(0));
    let each = report.arms.iter().map(|arm| match (&arm.provenance, &one) {
        (None, _) if arm.failure.is_some() => format!("{}: it has no run", arm.name),
        (None, _) => format!("{}: unknown, the run was made by an earlier Kiln", arm.name),
        (Some(it), Some(_)) => format!("{}: {}", arm.name, own(it)),
        (Some(it), None) => format!("{}: {}; {}", arm.name, own(it), shared(it)),
    });
    one.iter().cloned().chain(each).collect()
}

/// `5e-5`, `3.90625e-5`: no more digits than it has, and no more than 8.
fn scientific(value: f64) -> String {
    format!("{value:.7e}").parse::<f64>().map_or_else(|_| format!("{value:e}"), |rounded| format!("{rounded:e}"))
}

/// A number with so many digits after the point, thousands grouped where there are none.
fn fixed(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    if digits > 0 || value.abs() < 10_000.0 {
        return text;
    }
    let (sign, digits) = text.strip_prefix('-').map_or(("", text.as_str()), |rest| ("-", rest));
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect::<Vec<_>>();
    format!("{sign}{}", groups.join(","))
}

#[cfg(test)]
mod tests {
    use super::{Rows, fixed, scientific};

    #[test]
    fn a_table_that_is_too_wide_is_cut_into_blocks() {
        let mut rows = Rows::new(&[("one", Some(1.0)), ("two", None), ("three", Some(3.0))]);
        rows.number("step", 1, |it| it.1);
        rows.number("nothing", 1, |_| None);
        rows.heading("a heading is long");
        let table = rows.table(|it| it.0);
        let all = ["      one  two  three", "step  1.0    -    3.0", "a heading is long"];
        assert_eq!(table.blocks(21), [all]);
        let cut = [["      one  two", "step  1.0    -", all[2]], ["      three", "step    3.0", all[2]]];
        assert_eq!(table.blocks(20), cut);
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(fixed(1234.567, 1), "1234.6");
        assert_eq!(fixed(1_234_567.0, 0), "1,234,567");
        assert_eq!(fixed(-12_345.4, 0), "-12,345");
        assert_eq!(fixed(9999.0, 0), "9999");
        assert_eq!([5e-5, 4.062_500_000_000_000_5e-5, 0.003].map(scientific), ["5e-5", "4.0625e-5", "3e-3"]);
    }
}
