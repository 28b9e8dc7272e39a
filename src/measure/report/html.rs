//! `report.html`: one file with its style and its charts in it, so that it opens anywhere, without a network and without
//! scripts. On narrow screens a row of the table becomes a card.

use std::fmt::Write as _;

use super::charts::Chart;
use super::table::{conclusions, differences, provenance, rows, sentence};
use crate::base::error::one_line;
use crate::measure::compare::Report;
use crate::measure::compare::verdict::Word;

const STYLE: &str = "\
:root{color-scheme:light}*{box-sizing:border-box}\
body{margin:0 auto;max-width:76rem;padding:1rem;font:16px/1.5 system-ui,sans-serif;color:#1b1f24;background:#fff}\
h1{font-size:1.5rem;margin:.3rem 0;overflow-wrap:anywhere}h2{font-size:1.15rem;margin:1.8rem 0 .5rem}\
.meta{color:#57606a;margin:0 0 1rem}ul{padding-left:1.2rem;margin:.3rem 0}li{margin:.25rem 0;overflow-wrap:anywhere}\
.verdicts{list-style:none;padding:0}.verdicts li{border-left:.4rem solid #8c959f;padding:.35rem .7rem;background:#f6f8fa}\
.verdicts .faster{border-color:#1a7f37}.verdicts .slower{border-color:#cf222e}.verdicts .not{border-color:#9a6700}\
table{border-collapse:collapse;width:100%;table-layout:fixed;margin-bottom:1.2rem;font-variant-numeric:tabular-nums}\
th,td{padding:.3rem .6rem;border-bottom:1px solid #d0d7de;text-align:right;vertical-align:top;overflow-wrap:anywhere}\
th:first-child{text-align:left;font-weight:500;width:13rem}thead th{border-bottom:2px solid #57606a;font-weight:600}\
th.part{padding-left:1.6rem;color:#57606a}\
.charts{columns:2 26rem;column-gap:1rem}\
figure{margin:0 0 1rem;border:1px solid #d0d7de;border-radius:.4rem;padding:.5rem;break-inside:avoid}\
figure svg{width:100%;height:auto;display:block}figcaption{font-size:.9rem;color:#57606a;padding:.3rem}\
@media screen and (max-width:640px){thead{display:none}tr,th:first-child,td{display:block;width:auto}\
tr{border-bottom:1px solid #d0d7de;padding:.4rem 0}th,td{border:0;padding:.1rem .2rem}th.part{padding-left:.2rem}\
td{display:flex;justify-content:space-between;gap:1rem}td::before{content:attr(data-arm);color:#57606a;text-align:left}}\
@page{margin:14mm}\
@media print{body{max-width:none;font-size:9.5pt;line-height:1.35;padding:0;print-color-adjust:exact;\
-webkit-print-color-adjust:exact}h1{font-size:15pt}h2{font-size:11.5pt;margin:1.1rem 0 .3rem;break-after:avoid}\
th,td{padding:.14rem .4rem}th:first-child{width:11rem}\
table,li,figure{break-inside:avoid}\
.charts{columns:2;column-gap:.6rem}figure{margin-bottom:.6rem}figcaption{font-size:8pt;padding:.1rem .3rem}\
.small{font-size:8pt}}";

/// Arms that stand side by side in a table: as many as a sheet of paper has room for. More go into further tables.
const ARMS: usize = 5;

/// The page.
pub(super) fn page(report: &Report, charts: &[Chart]) -> String {
    let mut text = String::new();
    let mut put = |part: String| writeln!(text, "{part}").expect("writing to a String cannot fail");
    let title = escape(&report.title);
    put(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<link rel=\"icon\" href=\"data:,\">\n<title>Kiln: {title}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n<p class=\"meta\">Kiln's report of {}.</p>",
        escape(&report.made_at)
    ));
    put("<h2>Verdicts</h2>\n<ul class=\"verdicts\">".into());
    let sentences = report.comparisons.iter().map(|comparison| (comparison, sentence(comparison)));
    let noise = report.noise.iter().map(|noise| (noise, format!("noise: {}", sentence(noise))));
    for (comparison, sentence) in sentences.chain(noise) {
        let class = match comparison.verdict {
            Word::Faster => "faster",
            Word::Slower => "slower",
            Word::Same => "same",
            Word::NotComparable => "not",
        };
        put(format!("<li class=\"{class}\">{}</li>", escape(&sentence)));
    }
    put("</ul>".into());
    list(&mut put, "What follows", &conclusions(report));
    put("<h2>Charts</h2>\n<div class=\"charts\">".into());
    for chart in charts {
        // The title stands in the chart, so the caption says how to read it.
        let svg = inline(&chart.svg, chart.title);
        put(format!("<figure>{svg}<figcaption>{}</figcaption></figure>", escape(&chart.caption)));
    }
    put("</div>\n<h2>Figures</h2>".into());
    let rows = rows(report);
    for (block, arms) in report.arms.chunks(ARMS).enumerate() {
        put("<table>\n<thead><tr><th></th>".into());
        arms.iter().for_each(|arm| put(format!("<th>{}</th>", escape(&arm.label))));
        put("</tr></thead>\n<tbody>".into());
        for row in &rows {
            let class = if row.name.starts_with(' ') { " class=\"part\"" } else { "" };
            let cells = row.cells.iter().skip(block * ARMS).zip(arms);
            let cells =
                cells.map(|(cell, arm)| format!("<td data-arm=\"{}\">{}</td>", escape(&arm.name), escape(cell)));
            put(format!("<tr><th{class}>{}</th>{}</tr>", row.name.trim(), cells.collect::<String>()));
        }
        put("</tbody>\n</table>".into());
    }
    list(&mut put, "Differences of the arms", &differences(report));
    list(&mut put, "Notes", &report.notes);
    list(&mut put, "Provenance", &provenance(report));
    let folders = report.arms.iter().map(|arm| {
        let runs = arm.runs.iter().map(|run| run.display().to_string()).collect::<Vec<_>>();
        format!("{}: {}", arm.name, if runs.is_empty() { "none".into() } else { runs.join(", ") })
    });
    list(&mut put, RAW, &folders.collect::<Vec<_>>());
    put("</main>\n</body>\n</html>".into());
    text
}

/// Lists that few read: small on paper.
const SMALL: [&str; 2] = ["Provenance", RAW];

const RAW: &str = "Raw samples: metrics.jsonl and steps.jsonl in";

fn list(put: &mut impl FnMut(String), title: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let class = if SMALL.contains(&title) { " class=\"small\"" } else { "" };
    put(format!("<h2>{title}</h2>\n<ul{class}>"));
    lines.iter().for_each(|line| put(format!("<li>{}</li>", escape(line))));
    put("</ul>".into());
}

/// The `<svg>` element alone, named for who cannot see it.
fn inline(svg: &str, title: &str) -> String {
    let element = svg.find("<svg").map_or(svg, |start| &svg[start..]);
    element.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{}\" ", escape(title)), 1)
}

fn escape(text: &str) -> String {
    one_line(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
