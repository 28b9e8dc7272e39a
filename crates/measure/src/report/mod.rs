//! Shows a [`Report`] of arms, or one run, as one document in several forms: a table for the
//! terminal, `report.json`, `report.md`, `report.html` (one file that needs no network) and the
//! charts as SVG. It decides nothing: verdicts and figures are the report's.

mod charts;
pub(crate) mod document;
mod drawing;
mod html;
mod markdown;
pub mod run;
mod sweep;
mod text;

use std::path::Path;

use document::Document;
use kiln::run_folder::PAGE;
use kiln_core::clock;
use kiln_core::error::{Error, Result};
use kiln_core::files::{read_regular_text, write_json, write_whole};
use run::RunPage;

use crate::compare::Report;
use crate::sweep::Sweep;

/// The report for a terminal of `width` columns.
pub fn terminal(report: &Report, width: usize) -> String {
    text::page(Document::of(report), width)
}

/// Writes the report into the folder `out`: `report.json`, `report.md`, `report.html` and
/// `charts/*.svg`.
///
/// # Errors
/// The operating system's.
pub fn write(report: &Report, out: &Path) -> Result<()> {
    let io = |error: &std::io::Error| Error::io(format!("write into {}", out.display()), error);
    let folder = out.join("charts");
    let charts = charts::all(report)?;
    std::fs::create_dir_all(&folder).map_err(|error| io(&error))?;
    // Charts of an earlier report would contradict this one; earlier versions of Kiln drew PNG,
    // too.
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
    write_whole(&out.join(PAGE), html::page(&document, &charts)?.as_bytes())
}

/// The page of the run in `folder`, as [`Trainer::with_page`](kiln::Trainer::with_page) takes it:
/// `report.html` in the folder.
///
/// # Errors
/// A folder without a run, a `report.html` there that is not Kiln's, the operating system's.
pub fn page_of_run(folder: &Path) -> Result<()> {
    let run =
        RunPage::read(folder)?.ok_or_else(|| Error::data(format!("{}: there is no run in it", folder.display())))?;
    write_run(&run, folder, 0).map(|_| ())
}

/// Writes the page of `run` into the folder `out`; what a terminal of `width` columns shows of it.
///
/// # Errors
/// A `report.html` in `out` that is not Kiln's, the operating system's.
pub fn write_run(run: &RunPage, out: &Path, width: usize) -> Result<String> {
    write_page(run.document(clock::rfc3339()), &charts::of_run(run)?, out, width)
}

/// Writes the page of `sweep` into the folder `out`; what a terminal of `width` columns shows of
/// it.
///
/// # Errors
/// A `report.html` in `out` that is not Kiln's, the operating system's.
pub fn write_sweep(sweep: &Sweep, out: &Path, width: usize) -> Result<String> {
    write_page(sweep::document(sweep, clock::rfc3339()), &charts::of_sweep(sweep)?, out, width)
}

fn write_page(document: Document, charts: &[drawing::Chart], out: &Path, width: usize) -> Result<String> {
    let path = out.join(PAGE);
    let is_taken = std::fs::symlink_metadata(&path).is_ok();
    if is_taken && !read_regular_text(&path).is_ok_and(|text| text.contains(html::MARK)) {
        return Err(Error::config(format!("{} is there, and Kiln has not written it", path.display()))
            .help("name another folder for the page: --out FOLDER"));
    }
    let page = html::page(&document, charts)?;
    std::fs::create_dir_all(out).map_err(|error| Error::io(format!("create {}", out.display()), &error))?;
    write_whole(&path, page.as_bytes())?;
    Ok(text::page(document, width))
}
