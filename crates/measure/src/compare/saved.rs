//! A report of runs that are finished already: a comparison's folder, or any run folders, also of
//! different days and machines. Nothing is run.

use std::path::{Path, PathBuf};

use kiln_core::error::{Error, Result};
use kiln_core::files::read_json;
use kiln_core::words::json_words;

use super::analyse::analyse;
use super::run::FILE;
use super::{ArmRuns, EXPERIMENT_SCHEMA, Experiment, Report, Role};

/// In what finished runs may differ without more ado: how they were trained, and by which program.
/// It is labelled; what they learned from, the model and the machine are not among it.
const LABELLED: &[&str] =
    &["trainer.", "batch.", "learning_rate.", "kiln", "commit", "burn", "driver", "system", "day"];

/// The report of the comparison in the one folder given, or of the runs given, the first of which
/// the others are compared with; and the folder of the comparison. Finished runs may also differ in
/// `about` (`section.key`, or `device`, `cpu`, `threads`, `build`, `precision`, ...).
///
/// # Errors
/// Runs that are not complete or damaged, a comparison of another version, nothing to compare with.
pub fn report(
    runs: &[PathBuf],
    about: &[String],
    price_per_hour: Option<f64>,
    target_loss: Option<f64>,
) -> Result<(Report, Option<PathBuf>)> {
    if let [folder] = runs {
        if let Some(about) = about.first() {
            return Err(Error::config(format!("--about {about}: a comparison knows what it is about"))
                .help("--about is for finished runs, of which at least two are given"));
        }
        let file = folder.join(FILE);
        if !file.exists() {
            let shown = folder.display();
            if !folder.exists() {
                let message = format!("{shown}: expected the folder of a run or a comparison, found nothing");
                return Err(Error::data(message).help("`kiln runs FOLDER` lists the runs in a folder"));
            }
            return Err(Error::data(format!(
                "{shown} is neither a run nor a comparison: it has no status.json and no {FILE}"
            ))
            .help("give a run folder, the folder of a comparison, or at least two run folders"));
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
            changes: LABELLED.iter().map(|key| (*key).to_owned()).chain(about.iter().cloned()).collect(),
            point: None,
            runs: vec![run.clone()],
            process_seconds: Vec::new(),
            failure: None,
        }
    });
    let experiment = Experiment {
        schema: EXPERIMENT_SCHEMA.into(),
        is_complete: true,
        title: shown.join(", "),
        arms: arms.collect(),
        whole: None,
        gemm_gflops: None,
        price_per_hour,
        target_loss,
        notes: vec!["finished runs, not run alternately: the machine may have been another one, or busier".into()],
    };
    let report = analyse(&experiment, Path::new(""))?;
    let differences = || report.comparisons.iter().flat_map(|comparison| &comparison.differences);
    for about in about {
        let key = if about.ends_with('.') { about.clone() } else { format!("{about}: ") };
        if !differences().any(|difference| difference.starts_with(&key)) {
            let keys = differences().filter_map(|difference| Some(difference.split_once(": ")?.0));
            let keys = keys.collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ");
            let keys = if keys.is_empty() { "nothing".into() } else { keys };
            return Err(Error::config(format!("--about {about}: the runs do not differ in it"))
                .help(format!("they differ in {keys}")));
        }
    }
    Ok((report, None))
}

fn read(path: &Path) -> Result<Experiment> {
    let shown = path.display();
    let value: serde_json::Value = read_json(path)?;
    let schema = value.get("schema").and_then(serde_json::Value::as_str).unwrap_or("none");
    if schema != EXPERIMENT_SCHEMA {
        return Err(Error::data(format!("{shown}: expected the schema {EXPERIMENT_SCHEMA}, got {schema}"))
            .help("another version of kiln made this comparison; make it again"));
    }
    let experiment = serde_json::from_value::<Experiment>(value);
    let experiment = experiment.map_err(|error| Error::data(format!("{shown}: {}", json_words(&error))))?;
    if !experiment.is_complete {
        return Err(Error::data(format!("{shown}: the comparison did not come to its end, or is still going on"))
            .help("make it again; run.on_existing = \"overwrite\" replaces it"));
    }
    Ok(experiment)
}
