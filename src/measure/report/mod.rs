//! Shows a [`Report`] as one document in several forms: a table for the terminal, `report.json`, `report.md`, `report.html` (one file that needs no network) and
//! the charts as SVG. It decides nothing: verdicts and figures are the report's.

mod charts;
pub(crate) mod document;
mod html;
mod markdown;
mod text;

use std::path::Path;

use crate::base::error::{Error, Result};
use crate::base::files::{write_json, write_whole};
use crate::measure::compare::Report;

use document::Document;

/// What [`write()`] leaves in a folder.
pub const ENTRIES: &[&str] = &["report.json", "report.md", "report.html", "charts"];

/// The report for a terminal of `width` columns.
pub fn terminal(report: &Report, width: usize) -> String {
    text::page(Document::of(report), width)
}

/// Writes the report into the folder `out`: `report.json`, `report.md`, `report.html` and `charts/*.svg`.
///
/// # Errors
/// The operating system's.
pub fn write(report: &Report, out: &Path) -> Result<()> {
    let io = |error: &std::io::Error| Error::io(format!("write into {}", out.display()), error);
    let folder = out.join("charts");
    let charts = charts::all(report)?;
    std::fs::create_dir_all(&folder).map_err(|error| io(&error))?;
    // Charts of an earlier report would contradict this one; earlier versions of Kiln drew PNG, too.
    for name in charts::NAMES {
        for ending in ["svg", "png"] {
            match std::fs::remove_file(folder.join(format!("{name}.{ending}"))) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io(&error)),
                _ => {}
            }
        }
    }
    for chart in &charts {
        write_whole(&folder.join(format!("{}.svg", chart.name)), chart.svg().as_bytes())?;
    }
    write_json(&out.join("report.json"), report)?;
    let document = Document::of(report);
    write_whole(&out.join("report.md"), markdown::page(&document, &charts).as_bytes())?;
    write_whole(&out.join("report.html"), html::page(&document, &charts)?.as_bytes())
}
