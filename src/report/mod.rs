//! Shows a [`Report`]: a table for the terminal, `report.json`, `report.md`, `report.html` (one file that needs no network) and
//! the charts as SVG. It decides nothing: verdicts and figures are the report's.

mod charts;
mod html;
mod markdown;
mod table;
mod text;

use std::path::Path;

use crate::compare::Report;
use crate::error::{Error, Result};
use crate::trainer::write_whole;

pub use text::terminal;

/// What [`write()`] leaves in a folder.
pub const ENTRIES: &[&str] = &["report.json", "report.md", "report.html", "charts"];

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
        write_whole(&folder.join(format!("{}.svg", chart.name)), chart.svg.as_bytes())?;
    }
    let json = serde_json::to_string_pretty(report).map_err(|error| Error::data(format!("report.json: {error}")))?;
    write_whole(&out.join("report.json"), (json + "\n").as_bytes())?;
    write_whole(&out.join("report.md"), markdown::page(report, &charts).as_bytes())?;
    write_whole(&out.join("report.html"), html::page(report, &charts)?.as_bytes())
}
