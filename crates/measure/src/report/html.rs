//! `report.html`: one file with its style and its charts in it, so that it opens anywhere, without
//! a network and without scripts. On narrow screens a row of the table becomes a card. The template
//! is the file `report.html` beside this one.

use kiln_core::error::{Error, Result, one_line};
use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, UndefinedBehavior, escape_formatter};
use serde::Serialize;

use super::document::Document;
use super::drawing::{COLORS, Chart, hex};

const TEMPLATE: &str = include_str!("report.html");

/// By this a page of Kiln's is known.
pub(super) const MARK: &str = "<meta name=\"generator\" content=\"kiln\">";

/// Arms that stand side by side in a table: as many as a sheet of paper has room for. More go into
/// further tables.
const ARMS: usize = 5;

/// The values of the template.
#[derive(Serialize)]
struct Page<'a> {
    #[serde(flatten)]
    document: &'a Document,
    charts: &'a [Chart],
    mark: &'static str,
    /// The arms of each table: the first of them, and the first of the next table.
    blocks: Vec<(usize, usize)>,
    /// The colours of series: that of the drawings, and that on a dark screen.
    colors: Vec<(String, String)>,
}

/// The page.
///
/// # Errors
/// A template that does not fit its values.
pub(super) fn page(document: &Document, charts: &[Chart]) -> Result<String> {
    let columns = document.labels.len();
    let most = if document.is_list { columns.max(1) } else { ARMS };
    let blocks = (0..columns).step_by(most).map(|begin| (begin, begin + most)).collect();
    let colors = COLORS.map(|(light, dark)| (hex(light), hex(dark))).to_vec();
    render(&Page { document, charts, mark: MARK, blocks, colors })
}

/// Fills the template. Every value but a drawing is made one line of printable characters and
/// escaped for HTML.
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
    use crate::report::document::{Matrix, Section, Statement, Tone};
    use crate::table::{Row, Table};

    #[test]
    fn every_value_but_a_drawing_is_escaped() {
        const HOSTILE: &str = "<b>\"&'\u{1b}[31m\n";
        const SHOWN: &str = "&lt;b&gt;&quot;&amp;&#x27;\\u001b[31m ";
        let hostile = || vec![HOSTILE.to_owned()];
        let table =
            || Table { names: hostile(), rows: vec![Row { name: HOSTILE.into(), is_part: true, cells: hostile() }] };
        let document = Document {
            title: HOSTILE.into(),
            made_at: HOSTILE.into(),
            answer: Some(Statement::new(Tone::Good, HOSTILE)),
            statements: vec![Statement::new(Tone::Doubtful, HOSTILE)],
            statements_title: "Verdicts",
            failures: Vec::new(),
            conclusions: hostile(),
            // Of one arm the table is another.
            labels: [hostile(), hostile()].concat(),
            is_list: false,
            table: table(),
            matrix: Some(Matrix {
                caption: HOSTILE.into(),
                labels: hostile(),
                rows: vec![(HOSTILE.into(), vec![(1, 100)])],
            }),
            sections: vec![
                Section::list("Notes", hostile(), Some("")),
                Section::list("Provenance", Vec::new(), None),
                Section::text("Plan", hostile(), true),
                Section::text("Samples", hostile(), false),
            ],
        };
        let drawing = "width=\"1\"><g/></svg>".into();
        let charts = [Chart {
            name: "",
            title: HOSTILE.into(),
            caption: HOSTILE.into(),
            first: HOSTILE.into(),
            table: table(),
            drawing,
        }];
        let text = page(&document, &charts).unwrap();
        assert!(!text.contains("<b>") && !text.contains('\u{1b}'), "{text}");
        assert_eq!(text.matches(SHOWN).count(), 24, "{text}");
        assert!(text.contains(&format!("<svg role=\"img\" aria-label=\"{SHOWN}\" width=\"1\"><g/></svg>")), "{text}");
        assert!(text.contains(&format!(
            "<th scope=\"row\" class=\"part\">{SHOWN}</th><td data-arm=\"{SHOWN}\">{SHOWN}</td></tr>"
        )));
        assert!(text.contains("<h2>Notes</h2>\n<ul>\n<li>") && !text.contains("Provenance"), "{text}");
    }
}
