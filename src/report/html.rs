//! `report.html`: one file with its style and its charts in it, so that it opens anywhere, without a network and without
//! scripts. On narrow screens a row of the table becomes a card. The template is the file `report.html` beside this one.

use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, UndefinedBehavior, escape_formatter};
use serde::Serialize;

use super::charts::Chart;
use super::table::{conclusions, differences, provenance, rows, sentence};
use crate::compare::Report;
use crate::compare::verdict::Word;
use crate::error::{Error, Result, one_line};

const TEMPLATE: &str = include_str!("report.html");

/// Arms that stand side by side in a table: as many as a sheet of paper has room for. More go into further tables.
const ARMS: usize = 5;

/// The values of the template.
#[derive(Serialize)]
struct Page<'a> {
    title: &'a str,
    made_at: &'a str,
    verdicts: Vec<Verdict>,
    conclusions: Vec<String>,
    charts: Vec<Figure<'a>>,
    tables: Vec<Table<'a>>,
    lists: Vec<List>,
}

#[derive(Serialize)]
struct Verdict {
    class: &'static str,
    sentence: String,
}

#[derive(Serialize)]
struct Figure<'a> {
    title: &'a str,
    caption: &'a str,
    /// The `<svg>` element behind the name of its tag.
    drawing: &'a str,
}

#[derive(Serialize)]
struct Table<'a> {
    labels: Vec<&'a str>,
    rows: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    is_part: bool,
    cells: Vec<Cell<'a>>,
}

#[derive(Serialize)]
struct Cell<'a> {
    arm: &'a str,
    text: &'a str,
}

#[derive(Serialize)]
struct List {
    title: &'static str,
    /// Few read it, so it is small on paper.
    is_small: bool,
    lines: Vec<String>,
}

/// The page.
///
/// # Errors
/// A template that does not fit its values.
pub(super) fn page(report: &Report, charts: &[Chart]) -> Result<String> {
    let sentences = report.comparisons.iter().map(|comparison| (comparison.verdict, sentence(comparison)));
    let noise = report.noise.iter().map(|noise| (noise.verdict, format!("noise: {}", sentence(noise))));
    let verdicts = sentences.chain(noise).map(|(word, sentence)| Verdict { class: class(word), sentence });
    let charts = charts.iter().map(|chart| Figure {
        title: chart.title,
        caption: &chart.caption,
        drawing: chart.svg.split_once("<svg ").map_or("", |(_, drawing)| drawing),
    });
    let rows = rows(report);
    let tables = report.arms.chunks(ARMS).enumerate().map(|(block, arms)| Table {
        labels: arms.iter().map(|arm| arm.label.as_str()).collect(),
        rows: rows
            .iter()
            .map(|row| Row {
                name: row.name.trim(),
                is_part: row.name.starts_with(' '),
                cells: row
                    .cells
                    .iter()
                    .skip(block * ARMS)
                    .zip(arms)
                    .map(|(text, arm)| Cell { arm: &arm.name, text })
                    .collect(),
            })
            .collect(),
    });
    let folders = report.arms.iter().map(|arm| {
        let runs = arm.runs.iter().map(|run| run.display().to_string()).collect::<Vec<_>>();
        format!("{}: {}", arm.name, if runs.is_empty() { "none".into() } else { runs.join(", ") })
    });
    let list = |title, is_small, lines| List { title, is_small, lines };
    render(&Page {
        title: &report.title,
        made_at: &report.made_at,
        verdicts: verdicts.collect(),
        conclusions: conclusions(report),
        charts: charts.collect(),
        tables: tables.collect(),
        lists: vec![
            list("Differences of the arms", false, differences(report)),
            list("Notes", false, report.notes.clone()),
            list("Provenance", true, provenance(report)),
            list("Raw samples: metrics.jsonl and steps.jsonl in", true, folders.collect()),
        ],
    })
}

/// The class of a verdict in the style sheet.
fn class(word: Word) -> &'static str {
    match word {
        Word::Faster => "faster",
        Word::Slower => "slower",
        Word::Same => "same",
        Word::NotComparable => "not",
    }
}

/// Fills the template. Every value but a drawing is made one line of printable characters and escaped for HTML.
fn render(page: &Page) -> Result<String> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_formatter(|out, state, value| match value.as_str() {
        Some(text) if !value.is_safe() => escape_formatter(out, state, &Value::from(one_line(text))),
        _ => escape_formatter(out, state, value),
    });
    let rendered = environment.render_str(TEMPLATE, Serde(page));
    rendered.map_err(|error| Error::data(format!("report.html: {error}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_value_but_a_drawing_is_escaped() {
        const HOSTILE: &str = "<b>\"&'\u{1b}[31m\n";
        const SHOWN: &str = "&lt;b&gt;&quot;&amp;&#x27;\\u001b[31m ";
        let page = Page {
            title: HOSTILE,
            made_at: HOSTILE,
            verdicts: vec![Verdict { class: "not", sentence: HOSTILE.into() }],
            conclusions: vec![HOSTILE.into()],
            charts: vec![Figure { title: HOSTILE, caption: HOSTILE, drawing: "width=\"1\"><g/></svg>" }],
            tables: vec![Table {
                labels: vec![HOSTILE],
                rows: vec![Row { name: HOSTILE, is_part: true, cells: vec![Cell { arm: HOSTILE, text: HOSTILE }] }],
            }],
            lists: vec![
                List { title: "Notes", is_small: false, lines: vec![HOSTILE.into()] },
                List { title: "Nothing", is_small: true, lines: Vec::new() },
            ],
        };
        let text = render(&page).unwrap();
        assert!(!text.contains("<b>") && !text.contains('\u{1b}'), "{text}");
        assert_eq!(text.matches(SHOWN).count(), 12, "{text}");
        assert!(text.contains(&format!("<svg role=\"img\" aria-label=\"{SHOWN}\" width=\"1\"><g/></svg>")), "{text}");
        assert!(text.contains(&format!("<th class=\"part\">{SHOWN}</th><td data-arm=\"{SHOWN}\">{SHOWN}</td></tr>")));
        assert!(text.contains("<h2>Notes</h2>\n<ul>\n<li>") && !text.contains("Nothing"), "{text}");
    }
}
