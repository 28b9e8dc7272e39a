//! `report.md`: the table in GitHub's form, with the charts as images beside it.

use std::fmt::Write as _;

use super::charts::Chart;
use super::table::{conclusions, differences, provenance, rows, sentence};
use crate::compare::Report;

/// The page.
pub(super) fn page(report: &Report, charts: &[Chart]) -> String {
    let mut text = format!("# {}\n\nMade {} by `kiln`.\n\n", escape(&report.title), report.made_at);
    let mut line = |line: String| writeln!(text, "{line}").expect("writing to a String cannot fail");
    let cells = |cells: &[String]| cells.iter().map(|cell| escape(cell)).collect::<Vec<_>>().join(" | ");
    let labels = report.arms.iter().map(|arm| arm.label.clone()).collect::<Vec<_>>();
    line(format!("| | {} |", cells(&labels)));
    line(format!("| --- |{}", " ---: |".repeat(labels.len())));
    rows(report).iter().for_each(|row| line(format!("| {} | {} |", row.name.trim(), cells(&row.cells))));
    line("\n## Verdicts\n".into());
    let noise = report.noise.iter().map(|noise| format!("noise: {}", sentence(noise)));
    noise.chain(report.comparisons.iter().map(sentence)).for_each(|verdict| line(format!("- {}", escape(&verdict))));
    let sections = [
        ("What follows", conclusions(report)),
        ("Differences", differences(report)),
        ("Notes", report.notes.clone()),
        ("Provenance", provenance(report)),
    ];
    for (title, lines) in sections.into_iter().filter(|(_, lines)| !lines.is_empty()) {
        line(format!("\n## {title}\n"));
        lines.iter().for_each(|text| line(format!("- {}", escape(text))));
    }
    line("\n## Charts\n".into());
    charts.iter().for_each(|chart| line(format!("![{}](charts/{}.svg)\n", chart.title, chart.name)));
    text
}

fn escape(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ").replace('<', "&lt;")
}
