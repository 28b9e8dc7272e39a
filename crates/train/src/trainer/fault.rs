//! Handles the end of a run by a fault: its suspect checkpoints are marked, so that a resumed run
//! begins at the last good one, and `fault/` in the run folder holds what somebody needs to look
//! into it or to report it.

use std::fs;
use std::path::Path;

use kiln_core::error::{Error, ErrorKind, Result};
use kiln_core::files::write_json;
use serde_json::json;

use super::debug;
use super::run::Training;
use crate::engine::compiler;
#[cfg(feature = "compiler")]
use crate::engine::compiler::records::Session;
use crate::engine::handover::Engine;
use crate::plan::TrainPlan;
use crate::provenance;
use crate::run_folder::{FAULT, RUN_LOG, RunFolder, checkpoint};

/// Whether a run that ends with `error` may have computed nonsense before it.
fn is_fault(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NonFinite | ErrorKind::Device | ErrorKind::Differs)
}

/// Marks checkpoints and writes the bundle, if `error` is a fault, and returns a sentence that says
/// so. A failure meanwhile is only a warning, because the fault itself is the error to report.
pub(super) fn report(plan: &TrainPlan, folder: &RunFolder, run: &mut Training, error: &Error) -> Option<String> {
    if !is_fault(error) {
        return None;
    }
    let complain = |result: Result<()>| {
        if let Err(error) = result {
            tracing::warn!("{error}");
        }
    };
    complain(run.saver.wait());
    let first = run.guard.first_suspect();
    let mut suspect = Vec::new();
    match checkpoint::list(&folder.checkpoints()) {
        Err(error) => complain(Err(error)),
        Ok(all) => {
            for (step, path) in all.into_iter().filter(|(step, _)| *step >= first) {
                complain(checkpoint::mark_suspect(&path, &error.to_string()));
                suspect.push(step);
            }
        }
    }
    complain(write_bundle(plan, folder, run, error, first, &suspect));
    let marked = match suspect[..] {
        [] => "no checkpoint is suspect".into(),
        _ => format!("checkpoints from step {first} on are marked as suspect: {suspect:?}"),
    };
    Some(format!("what happened is in {}; {marked}", folder.path().join(FAULT).display()))
}

fn write_bundle(
    plan: &TrainPlan,
    folder: &RunFolder,
    run: &Training,
    error: &Error,
    first: u64,
    suspect: &[u64],
) -> Result<()> {
    let target = folder.path().join(FAULT);
    let io = |path: &Path, error: &std::io::Error| Error::io(format!("write {}", path.display()), error);
    const REPORT: &str = "report.json";
    // The run of a program has no config.
    let planned = if folder.path().join("plan.toml").is_file() { "plan.toml" } else { crate::plan::FILE };
    let copied = [planned, "metrics.jsonl", compiler::decision::FILE, provenance::FILE, RUN_LOG];
    folder.manifest.list(copied.iter().chain(&[REPORT]).map(|name| Path::new(FAULT).join(name)))?;
    fs::create_dir_all(&target).map_err(|error| io(&target, &error))?;
    #[cfg(feature = "compiler")]
    let tunings = run.tunings.as_ref().map(Session::read);
    #[cfg(not(feature = "compiler"))]
    let tunings = serde_json::Value::Null;
    let report = json!({
        "error": error.to_string(),
        "exit_code": error.exit_code(),
        "step": run.progress.step,
        "first_suspect_step": first,
        "suspect_checkpoints": suspect,
        "panics": run.guard.panics(),
        "shapes": run.shapes.to_json(),
        "device": {
            "kind": plan.engine.device.kind.as_str(),
            "name": plan.engine.device.name,
            "engine": Engine::this(),
            "active": plan.engine.parts,
        },
        "choices": debug::choices(plan),
        "tunings": tunings,
        "data_position": run.position,
        "seed": plan.run.seed,
        "kiln_version": env!("CARGO_PKG_VERSION"),
    });
    write_json(&target.join(REPORT), &report)?;
    for name in copied {
        let from = folder.path().join(name);
        // The copy of a pipe would wait for its end.
        if from.is_file() {
            fs::copy(&from, target.join(name)).map_err(|error| io(&target.join(name), &error))?;
        }
    }
    Ok(())
}
