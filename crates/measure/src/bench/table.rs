//! A case of a benchmark for the terminal.

use super::report::{CaseReport, UnitPeak};
use crate::table::Rows;

/// `report` as text: a table of the arms, the losses, the ratios, the operators.
pub fn terminal(report: &CaseReport) -> String {
    let mut rows = Rows::new(&report.arms);
    rows.number("batch", 0, |it| (it.batch > 0).then_some(it.batch as f64));
    rows.number("step ms, median", 1, |it| Some(it.step_ms?.median));
    rows.number("  p10", 1, |it| Some(it.step_ms?.p10));
    rows.number("  p90", 1, |it| Some(it.step_ms?.p90));
    rows.number("  data", 2, |it| Some(it.parts_ms?.data));
    rows.number("  forward", 1, |it| Some(it.parts_ms?.forward));
    rows.number("  backward", 1, |it| Some(it.parts_ms?.backward));
    rows.number("  communicate", 1, |it| it.parts_ms.map(|parts| parts.communicate).filter(|ms| *ms > 0.0));
    rows.number("  update", 1, |it| Some(it.parts_ms?.update));
    rows.number("  sync and log", 2, |it| Some(it.parts_ms?.sync));
    rows.number("tokens/s", 0, |it| it.figures.tokens_per_s);
    rows.number("samples/s", 1, |it| it.figures.samples_per_s);
    rows.number("peak memory MiB", 0, |it| it.figures.peak_mib);
    rows.number("padding %", 1, |it| it.padding.map(|share| share * 100.0));
    rows.number("start to first step s", 2, |it| it.first_step_seconds);
    if !report.operators.is_empty() {
        rows.heading("forward + backward ms, median");
    }
    for operator in &report.operators {
        let median = |of: &str| operator.ms.iter().find(|(name, _)| name == of).map(|(_, ms)| ms.median);
        rows.number(&format!("  {} {}", operator.name, operator.shape), 2, |it| median(&it.name));
        if let Some(gflop) = operator.gflop {
            let rate = |of: &str| Some(gflop / median(of)? * 1e3);
            rows.number("    GFLOP/s", 0, |it| rate(&it.name));
            if let Some(peak) = &report.peak {
                rows.number("    % of the peak", 0, |it| Some(rate(&it.name)? / peak.gflops * 100.0));
            }
        }
    }
    let mut lines = vec![format!("{}: {}", report.name, report.about)];
    lines.extend(rows.table(|it| &it.name).blocks(usize::MAX).concat());
    for arm in &report.arms {
        lines.extend(arm.failure.iter().map(|failure| format!("{} failed: {failure}", arm.name)));
    }
    if let Some(floor) = report.gemm_floor_ms {
        lines.push(format!("{floor:.1} ms is what the step's arithmetic takes at the rate of a large matrix product"));
    }
    if let Some(UnitPeak { unit, gflops }) = &report.peak {
        lines.push(format!("the peak of products is {gflops:.0} GFLOP/s here ({unit})"));
    }
    for check in &report.losses {
        let what = if check.found.passed { "equal" } else { "NOT EQUAL, no ratio" };
        lines.push(format!(
            "losses of {} against {}: {what}; {:.1e} relative over {} steps, {:.0e} is allowed",
            check.of, check.against, check.found.relative, check.found.losses, check.found.limit
        ));
    }
    for ratio in &report.ratios {
        // Two rounds tell next to nothing about how much rounds differ.
        let interval = if report.rounds > 2 {
            format!(" ({:.2} to {:.2})", ratio.found.low, ratio.found.high)
        } else {
            String::new()
        };
        lines.push(format!("{} / {}: {:.2}{interval}", ratio.of, ratio.against, ratio.found.ratio));
    }
    lines.join("\n") + "\n"
}
