//! A case of a benchmark for the terminal.

use std::fmt::Write as _;

use super::report::{CaseReport, ContestantReport};

/// What a cell shows where a contestant has nothing.
const NOTHING: &str = "-";

/// `report` as text: a table of the contestants, the losses, the ratios, the operators.
pub fn terminal(report: &CaseReport) -> String {
    let names = report.contestants.iter().map(|contestant| contestant.name.as_str()).collect::<Vec<_>>();
    let mut lines = vec![
        (format!("{}: {}", report.name, report.about), None),
        (String::new(), Some(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())),
    ];
    let mut row = |name: &str, digits: usize, pick: &dyn Fn(&ContestantReport) -> Option<f64>| {
        let cells = report.contestants.iter().map(|contestant| cell(pick(contestant), digits)).collect::<Vec<_>>();
        if cells.iter().any(|cell| cell != NOTHING) {
            lines.push((name.into(), Some(cells)));
        }
    };
    row("batch", 0, &|it| (it.batch > 0).then_some(it.batch as f64));
    row("step ms, median", 1, &|it| it.step_ms.map(|ms| ms.median));
    row("  p10", 1, &|it| it.step_ms.map(|ms| ms.p10));
    row("  p90", 1, &|it| it.step_ms.map(|ms| ms.p90));
    row("  data", 2, &|it| it.parts_ms.map(|ms| ms.data));
    row("  forward", 1, &|it| it.parts_ms.map(|ms| ms.forward));
    row("  backward", 1, &|it| it.parts_ms.map(|ms| ms.backward));
    row("  update", 1, &|it| it.parts_ms.map(|ms| ms.update));
    row("  sync and log", 2, &|it| it.parts_ms.map(|ms| ms.sync));
    row("tokens/s", 0, &|it| it.tokens_per_s);
    row("samples/s", 1, &|it| it.samples_per_s);
    row("peak memory MiB", 0, &|it| it.peak_mib);
    row("padding %", 1, &|it| it.padding.map(|share| share * 100.0));
    row("start to first step s", 2, &|it| it.first_step_seconds);
    if !report.operators.is_empty() {
        lines.push(("forward + backward ms, median".into(), None));
    }
    for operator in &report.operators {
        let of = |name: &str| operator.ms.iter().find(|(of, _)| of == name).map(|(_, ms)| ms.median);
        let cells = names.iter().map(|name| cell(of(name), 2)).collect();
        lines.push((format!("  {} {}", operator.name, operator.shape), Some(cells)));
    }
    let first = lines.iter().filter(|line| line.1.is_some()).map(|line| line.0.len()).max().unwrap_or(0);
    let width = |column: usize| lines.iter().filter_map(|line| Some(line.1.as_ref()?[column].len())).max().unwrap_or(0);
    let widths = (0..names.len()).map(width).collect::<Vec<_>>();
    let mut text = String::new();
    let mut say = |line: &str| writeln!(text, "{}", line.trim_end()).expect("writing to a String cannot fail");
    for (name, cells) in &lines {
        match cells {
            None => say(name),
            Some(cells) => {
                let cells = cells.iter().zip(&widths).map(|(cell, width)| format!("  {cell:>0$}", *width));
                say(&format!("{name:<first$}{}", cells.collect::<String>()));
            }
        }
    }
    for contestant in &report.contestants {
        if let Some(failure) = &contestant.failure {
            say(&format!("{} failed: {failure}", contestant.name));
        }
    }
    if let Some(floor) = report.gemm_floor_ms {
        say(&format!("{floor:.1} ms is what the step's arithmetic takes at the rate of a large matrix product"));
    }
    for check in &report.losses {
        let what = if check.passed { "equal" } else { "NOT EQUAL, no ratio" };
        say(&format!(
            "losses of {} against {}: {what}; {:.1e} relative over {} steps, {:.0e} is allowed",
            check.of, check.against, check.relative, check.losses, check.limit
        ));
    }
    for ratio in &report.ratios {
        // Two rounds tell next to nothing about how much rounds differ.
        let interval =
            if report.rounds > 2 { format!(" ({:.2} to {:.2})", ratio.low, ratio.high) } else { String::new() };
        say(&format!("{} / {}: {:.2}{interval}", ratio.of, ratio.against, ratio.ratio));
    }
    text
}

fn cell(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| NOTHING.into(), |value| format!("{value:.digits$}"))
}
