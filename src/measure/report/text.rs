//! The report for the terminal: the table, the verdicts, what follows.

use std::fmt::Write as _;

use super::table::{conclusions, differences, rows, sentence};
use crate::base::error::one_line;
use crate::measure::compare::Report;

/// The table with verdicts and conclusions. More arms than fit into `width` columns go into further blocks of the table.
pub fn terminal(report: &Report, width: usize) -> String {
    let mut text = format!("{}\n\n", one_line(&report.title));
    let mut line =
        |line: String| writeln!(text, "{}", one_line(line.trim_end())).expect("writing to a String cannot fail");
    let rows = rows(report);
    let names = report.arms.iter().map(|arm| one_line(&arm.name)).collect::<Vec<_>>();
    let length = |text: &str| text.chars().count();
    let first = rows.iter().map(|row| length(&row.name)).max().unwrap_or(0);
    // A failure is long and is said below.
    let rows = rows.into_iter().filter(|row| row.name != "failed").collect::<Vec<_>>();
    let cell_width =
        |arm: usize| rows.iter().map(|row| length(&row.cells[arm])).max().unwrap_or(0).max(length(&names[arm]));
    let mut arm = 0;
    while arm < names.len() {
        let (begin, mut used) = (arm, first);
        while arm < names.len() && (arm == begin || used + 2 + cell_width(arm) <= width) {
            used += 2 + cell_width(arm);
            arm += 1;
        }
        let padded = |cells: &dyn Fn(usize) -> String| {
            (begin..arm).map(|arm| format!("  {:>1$}", cells(arm), cell_width(arm))).collect::<String>()
        };
        line(format!("{:first$}{}", "", padded(&|arm| names[arm].clone())));
        for row in &rows {
            line(format!("{:<first$}{}", row.name, padded(&|arm| row.cells[arm].clone())));
        }
        line(String::new());
    }
    if let Some(noise) = &report.noise {
        line(format!("noise: {}", sentence(noise)));
    }
    report.comparisons.iter().for_each(|comparison| line(sentence(comparison)));
    for arm in
        report.arms.iter().filter_map(|arm| arm.failure.as_ref().map(|failure| format!("{}: {failure}", arm.name)))
    {
        line(format!("failed: {arm}"));
    }
    line(String::new());
    conclusions(report).into_iter().for_each(&mut line);
    differences(report).into_iter().for_each(|difference| line(format!("Differs: {difference}")));
    report.notes.iter().for_each(|note| line(format!("Note: {note}.")));
    text
}
