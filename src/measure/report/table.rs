//! The rows that every form of a report shows: a measure, and what each arm has of it. A row that no arm has is left out.

use crate::measure::compare::verdict::Word;
use crate::measure::compare::{ArmReport, AtEqual, Comparison, LossAtEqual, Report, Role};
use crate::session::provenance::Provenance;

/// A measure with one cell an arm.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) cells: Vec<String>,
}

/// What a cell shows where an arm has nothing.
const NOTHING: &str = "-";

/// Every row that has something.
pub(super) fn rows(report: &Report) -> Vec<Row> {
    let row = |name: &str, cell: &dyn Fn(&ArmReport) -> Option<String>| {
        let cells = report.arms.iter().map(cell).collect::<Vec<_>>();
        let found = cells.iter().any(Option::is_some);
        found.then(|| Row {
            name: name.into(),
            cells: cells.into_iter().map(|cell| cell.unwrap_or_else(|| NOTHING.into())).collect(),
        })
    };
    let number = |name: &str, digits: usize, pick: &dyn Fn(&ArmReport) -> Option<f64>| {
        row(name, &|arm| pick(arm).map(|value| fixed(value, digits)))
    };
    let part = |name: &str, index: usize| {
        row(name, &|arm| arm.budget_ms.as_ref().map(|budget| fixed(budget.named()[index].1, 1)))
    };
    let equal = report.derived.equal;
    let moment = |pick: fn(&AtEqual) -> f64| equal.as_ref().map_or(0.0, pick);
    let at = |pick: fn(&LossAtEqual) -> Option<f64>| move |arm: &ArmReport| arm.loss_at_equal.as_ref().and_then(pick);
    let rows = [
        row("batch", &|arm| match (arm.micro_batch?, arm.accumulation.unwrap_or(1)) {
            (micro, 1) => Some(micro.to_string()),
            (micro, accumulation) => Some(format!("{micro} x {accumulation}")),
        }),
        row("learning rate, peak", &|arm| arm.learning_rate.map(scientific)),
        number("block", 0, &|arm| arm.block.map(|block| block as f64)),
        row("runs, windows", &|arm| Some(format!("{}, {}", arm.repeats, arm.windows))),
        row("failed", &|arm| arm.failure.clone()),
        number("samples/s", 2, &|arm| arm.samples_per_s),
        number("tokens/s", 0, &|arm| arm.tokens_per_s),
        number("step ms, median", 1, &|arm| arm.step_ms_p50),
        number("step ms, p95", 1, &|arm| arm.step_ms_p95),
        number("step ms, max", 1, &|arm| arm.step_ms_max),
        part("  data wait", 0),
        part("  forward", 1),
        part("  backward", 2),
        part("  update", 3),
        part("  sync and log", 4),
        part("  evaluation, spread", 5),
        part("  saving, spread", 6),
        number("warm-up s, first run", 2, &|arm| arm.warmup_seconds_first),
        number("warm-up s, later runs", 2, &|arm| arm.warmup_seconds_later),
        number("start and end s", 2, &|arm| arm.startup_seconds),
        number("peak memory MiB", 0, &|arm| arm.peak_mib),
        number("kernel launches a step", 0, &|arm| arm.kernel_launches_per_step),
        number("device reads a step", 1, &|arm| arm.device_reads_per_step),
        number("model GFLOP/s", 1, &|arm| arm.model_gflops),
        row("of the GEMM peak", &|arm| Some(format!("{:.1} %", arm.model_flops_utilization? * 100.0))),
        number("last loss", 4, &|arm| arm.last_loss),
        number(&format!("  at step {}", moment(|at| at.steps)), 4, &at(|at| at.steps)),
        number(&format!("  at {} tokens", fixed(moment(|at| at.tokens), 0)), 4, &at(|at| at.tokens)),
        number(&format!("  at {:.1} s", moment(|at| at.seconds)), 4, &at(|at| at.seconds)),
        number("s to the target loss", 1, &|arm| arm.seconds_to_target),
        number("billable s, whole run", 0, &|arm| arm.billable_seconds),
        number("cost, whole run", 4, &|arm| arm.cost),
    ];
    rows.into_iter().flatten().collect()
}

/// A comparison in a sentence.
pub(super) fn sentence(comparison: &Comparison) -> String {
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
pub(super) fn conclusions(report: &Report) -> Vec<String> {
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
pub(super) fn differences(report: &Report) -> Vec<String> {
    let of = |comparison: &Comparison| {
        let pair = format!("{} against {}", comparison.against, comparison.arm);
        comparison.differences.iter().map(move |difference| format!("{pair}: {difference}")).collect::<Vec<_>>()
    };
    report.comparisons.iter().flat_map(of).collect()
}

/// Machine and program, for provenance: a line for what all arms share, and one for each arm.
pub(super) fn provenance(report: &Report) -> Vec<String> {
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
pub(super) fn fixed(value: f64, digits: usize) -> String {
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
    use super::{fixed, scientific};

    #[test]
    fn numbers_read_well() {
        assert_eq!(fixed(1234.567, 1), "1234.6");
        assert_eq!(fixed(1_234_567.0, 0), "1,234,567");
        assert_eq!(fixed(-12_345.4, 0), "-12,345");
        assert_eq!(fixed(9999.0, 0), "9999");
        assert_eq!([5e-5, 4.062_500_000_000_000_5e-5, 0.003].map(scientific), ["5e-5", "4.0625e-5", "3e-3"]);
    }
}
