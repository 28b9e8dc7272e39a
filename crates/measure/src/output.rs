//! The folder of a comparison, and of the runs in it.

use std::fs;
use std::path::{Path, PathBuf};

use kiln::config::{OnExisting, RunConfig};
use kiln::run_folder::checkpoint;
use kiln_core::error::{Error, Result};

/// The entries of a report in the folder of a comparison.
pub(super) const REPORT: &[&str] = &["report.json", "report.md", "report.html", "charts"];

/// The folder of a comparison: `out`, or the run folder of `config` with `ending` behind its name.
///
/// # Errors
/// A folder with anything in it but a comparison, which has the file `report`, that may be
/// replaced.
pub(super) fn folder(out: Option<&Path>, config: &RunConfig, ending: &str, report: &str) -> Result<PathBuf> {
    let out = match out {
        Some(out) => out.to_owned(),
        None => PathBuf::from(format!("{}-{ending}", config.trainer.expanded_output_dir()?.display())),
    };
    check(&out, report, config.trainer.on_existing)?;
    Ok(out)
}

fn check(out: &Path, report: &str, on_existing: OnExisting) -> Result<()> {
    let shown = out.display();
    if out.exists() && !out.is_dir() {
        return Err(Error::config(format!("{shown} exists and is not a folder")).help("name another with --out FOLDER"));
    }
    let is_occupied = fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_some());
    match (is_occupied, out.join(report).exists(), on_existing) {
        (false, ..) | (true, true, OnExisting::Overwrite) => Ok(()),
        (true, true, _) => Err(Error::config(format!("{shown} holds a comparison already"))
            .help("name another folder with --out FOLDER, or set run.on_existing = \"overwrite\" to replace it")),
        (true, false, _) => Err(Error::config(format!("{shown} is not empty and holds no comparison of Kiln's"))
            .help("name another folder with --out FOLDER")),
    }
}

/// Removes the weights of a run that was made to be measured: they say nothing about speed and take
/// most of the room.
pub(super) fn drop_weights(run: &Path) {
    for heavy in ["model", checkpoint::FOLDER] {
        let _ = fs::remove_dir_all(run.join(heavy));
    }
}
