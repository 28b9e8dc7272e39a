//! The run folder: `plan.toml`, `metrics.jsonl`, and at the end `model/` in Hugging Face's form. A folder that belongs to
//! another run is refused, and `model/` appears only when all of it is written.

use std::fs;
use std::path::{Path, PathBuf};

use kiln_models::Model;
use kiln_models::weights::save;

use crate::config::{OnExisting, RunConfig};
use crate::error::{Error, Result};
use crate::metrics::MetricsFile;
use crate::model_folder::architecture;
use crate::plan::RunPlan;

/// What a run writes into its folder; `overwrite` removes these and nothing else.
const ENTRIES: &[&str] = &["plan.toml", "metrics.jsonl", "model"];

/// An open run folder.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    /// `metrics.jsonl`
    pub metrics: MetricsFile,
}

impl RunFolder {
    /// Checks that the run may write to its folder, before time is spent on anything else.
    ///
    /// # Errors
    /// A folder that exists (unless `run.on_existing` allows it), or a path that is not a folder.
    pub fn check(config: &RunConfig) -> Result<PathBuf> {
        let path = config.output_dir()?;
        if path.exists() && !path.is_dir() {
            return Err(Error::config(format!("run.output_dir: {} exists and is not a folder", path.display()))
                .help("set run.output_dir to a folder that does not exist"));
        }
        let above = path.ancestors().skip(1).find(|above| above.exists());
        if let Some(above) = above.filter(|above| !above.is_dir()) {
            let (above, path) = (above.display(), path.display());
            return Err(Error::config(format!(
                "run.output_dir: {above} is not a folder, so {path} cannot be made in it"
            ))
            .help("set run.output_dir to a folder that does not exist"));
        }
        let used = ENTRIES.iter().any(|entry| path.join(entry).exists());
        let occupied = fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_some());
        match config.run.on_existing {
            OnExisting::Fail if occupied => {
                Err(Error::config(format!("run.output_dir: {} exists and is not empty", path.display())).help(
                    "set run.output_dir to another folder, or run.on_existing = \"overwrite\" to replace the run in it",
                ))
            }
            OnExisting::Overwrite if occupied && !used => Err(Error::config(format!(
                "run.on_existing = \"overwrite\": {} holds no run of Kiln's, so nothing in it is replaced",
                path.display()
            ))
            .help("set run.output_dir to another folder")),
            _ => Ok(path),
        }
    }

    /// Makes the folder and writes `plan.toml`.
    ///
    /// # Errors
    /// As [`check`](Self::check), and the operating system's.
    pub fn create(plan: &RunPlan) -> Result<Self> {
        let path = Self::check(&plan.config)?;
        let io = |action: &str, path: &Path, error: &std::io::Error| {
            Error::io(format!("{action} {}", path.display()), error).help("run.output_dir must be a writable folder")
        };
        if plan.config.run.on_existing == OnExisting::Overwrite {
            for entry in ENTRIES.iter().map(|entry| path.join(entry)).filter(|entry| entry.exists()) {
                let removed = if entry.is_dir() { fs::remove_dir_all(&entry) } else { fs::remove_file(&entry) };
                removed.map_err(|error| io("remove", &entry, &error))?;
            }
        }
        fs::create_dir_all(&path).map_err(|error| io("create", &path, &error))?;
        write_whole(&path.join("plan.toml"), plan.to_toml()?.as_bytes())?;
        let metrics = MetricsFile::open(&path)?;
        Ok(Self { path, metrics })
    }

    /// Writes `model/`: weights, `config.json`, and the tokenizer where there is one. It is written aside and renamed.
    ///
    /// # Errors
    /// The operating system's; no `model/` is left behind then.
    pub fn write_model(&self, model: &Model, plan: &RunPlan) -> Result<PathBuf> {
        let target = self.path.join("model");
        match write_aside(&self.path, &target, model, plan) {
            Ok(()) => Ok(target),
            Err(error) => {
                Err(error.at(target.display()).help("make room there, or fix its permissions, and run again"))
            }
        }
    }
}

fn write_aside(run: &Path, target: &Path, model: &Model, plan: &RunPlan) -> Result<()> {
    let io = |error: std::io::Error| Error::io(format!("write {}", target.display()), &error);
    let aside = tempfile::Builder::new().prefix(".model-").tempdir_in(run).map_err(io)?;
    let config = serde_json::to_string_pretty(&plan.model_config.to_json(architecture(model)))
        .map_err(|error| Error::data(format!("config.json: {error}")))?;
    write_whole(&aside.path().join("config.json"), (config + "\n").as_bytes())?;
    if let Some(tokenizer) = &plan.tokenizer {
        tokenizer.save(aside.path())?;
    }
    save(model, aside.path())?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(aside.path(), fs::Permissions::from_mode(0o755)).map_err(io)?;
    }
    fs::rename(aside.path(), target).map_err(io)?;
    let _renamed = aside.keep(); // nothing is left under the temporary name to delete
    Ok(())
}

/// Writes a file that appears under its name only when it is whole.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let error = |error: &std::io::Error| Error::io(format!("write {}", path.display()), error);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let aside = folder.join(format!(".{}.part", path.file_name().unwrap_or_default().to_string_lossy()));
    let write = || -> std::io::Result<()> {
        fs::write(&aside, bytes)?;
        fs::File::open(&aside)?.sync_all()?;
        fs::rename(&aside, path)
    };
    write().map_err(|cause| {
        let _ = fs::remove_file(&aside);
        error(&cause)
    })
}
