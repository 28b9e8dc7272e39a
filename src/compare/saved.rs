//! A report of runs that are finished already: a comparison's folder, or any run folders, also of different days and
//! machines. Nothing is run.

use std::fs;
use std::path::{Path, PathBuf};

use super::analyse::analyse;
use super::run::FILE;
use super::{ArmRuns, EXPERIMENT_SCHEMA, Experiment, Report, Role};
use crate::error::{Error, Result};

/// The report of the comparison in the one folder given, or of the runs given, the first of which the others are compared
/// with; and the folder of the comparison.
///
/// # Errors
/// Runs that are not complete or damaged, a comparison of another version, nothing to compare with.
pub fn report(
    runs: &[PathBuf],
    price_per_hour: Option<f64>,
    target_loss: Option<f64>,
) -> Result<(Report, Option<PathBuf>)> {
    if let [folder] = runs {
        let file = folder.join(FILE);
        if !file.exists() {
            let shown = folder.display();
            return Err(Error::data(format!("{shown} is no comparison: it has no {FILE}"))
                .help("give the folder of a comparison, or at least two run folders"));
        }
        let mut experiment = read(&file)?;
        experiment.price_per_hour = price_per_hour.or(experiment.price_per_hour);
        experiment.target_loss = target_loss.or(experiment.target_loss);
        return Ok((analyse(&experiment, folder)?, Some(folder.clone())));
    }
    let shown = runs.iter().map(|run| run.display().to_string()).collect::<Vec<_>>();
    let arms = runs.iter().zip(&shown).enumerate().map(|(index, (run, shown))| {
        let name = run.file_name().map_or_else(|| shown.clone(), |name| name.to_string_lossy().into_owned());
        // Two runs may have the same name in different folders.
        let twice = runs.iter().filter(|other| other.file_name() == run.file_name()).count() > 1;
        ArmRuns {
            name: if twice { shown.clone() } else { name },
            label: shown.clone(),
            role: if index == 0 { Role::Reference } else { Role::Run },
            changes: Vec::new(),
            point: None,
            runs: vec![run.clone()],
            process_seconds: Vec::new(),
            failure: None,
        }
    });
    let experiment = Experiment {
        schema: EXPERIMENT_SCHEMA.into(),
        title: shown.join(", "),
        arms: arms.collect(),
        whole: None,
        gemm_gflops: None,
        price_per_hour,
        target_loss,
        notes: vec!["finished runs, not run alternately: the machine may have been another one, or busier".into()],
    };
    Ok((analyse(&experiment, Path::new(""))?, None))
}

fn read(path: &Path) -> Result<Experiment> {
    let shown = path.display();
    let text = fs::read_to_string(path).map_err(|error| Error::io(format!("read {shown}"), &error))?;
    let damaged = |error: serde_json::Error| Error::data(format!("{shown}: {error}"));
    let value: serde_json::Value = serde_json::from_str(&text).map_err(damaged)?;
    let schema = value.get("schema").and_then(serde_json::Value::as_str).unwrap_or("none");
    if schema != EXPERIMENT_SCHEMA {
        return Err(Error::data(format!("{shown}: expected the schema {EXPERIMENT_SCHEMA}, got {schema}"))
            .help("another version of kiln made this comparison; make it again"));
    }
    serde_json::from_value(value).map_err(damaged)
}
