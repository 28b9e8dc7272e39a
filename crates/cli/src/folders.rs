//! `kiln runs`, `kiln describe` and `kiln cache`: what looks at folders that Kiln has written.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use kiln::engine::device;
use kiln::run_folder::runs::{self, Run};
use kiln_core::error::{Error, Result};
use kiln_core::process::shell_quoted;
use kiln_data::cache;

use super::kernel_archive::{self as archive, Manifest};
#[cfg(unix)]
use super::submit::jobs;
use super::terminal::show;
use super::{say, terminal};

#[derive(Debug, Subcommand)]
pub(super) enum CacheCommand {
    /// Show what is kept, how large it is and how long ago it was written
    List,
    /// Remove what is kept; it is made again when it is needed
    Clear,
    /// Pack compiled and tuned kernels into a tar archive, for a machine of the same kind
    Export {
        /// The archive to write
        file: PathBuf,
    },
    /// Take the kernels of an archive that was exported with the same versions, devices and driver
    Import {
        /// The archive
        file: PathBuf,
        /// Replace kernels that are there already
        #[arg(long)]
        replace: bool,
    },
}

pub(super) fn runs(folder: &Path, json: bool) -> Result<()> {
    if !folder.exists() {
        return Err(Error::data(format!("{}: there is no such folder, so there are no runs", folder.display()))
            .help("`kiln runs FOLDER` lists the runs in a folder; `kiln train FILE` makes the first one"));
    }
    // The trials of a search are its runs.
    let trials = folder.join("trials");
    let folder = if folder.join("sweep.json").is_file() && trials.is_dir() { &trials } else { folder };
    let mut runs = runs::list(folder)?;
    #[cfg(unix)]
    for (path, run) in &mut runs {
        if jobs::is_job(path) {
            *run = jobs::run_of_job(path).and_then(|run| run.map_or_else(|| no_run(path), Ok));
        }
    }
    if !json {
        return show(terminal::runs::table(&runs, terminal::width()).trim_end());
    }
    let object = |(path, run): &(PathBuf, Result<Run>)| match run {
        Ok(run) => serde_json::to_value(run).expect("texts and figures are JSON"),
        Err(error) => serde_json::json!({ "run": path.display().to_string(), "error": error.to_string() }),
    };
    say(format!("{:#}", runs.iter().map(object).collect::<serde_json::Value>()))
}

/// The error of a folder without a run.
fn no_run(folder: &Path) -> Result<Run> {
    if folder.is_file() {
        return Err(Error::data(format!("{}: expected the folder of a run, got a file", folder.display()))
            .help("`kiln runs FOLDER` lists the runs in a folder; `kiln plan FILE` describes a config"));
    }
    if folder.join("sweep.json").is_file() {
        let shown = folder.display();
        return Err(Error::data(format!("{shown}: expected the folder of a run, got that of a search")).help(format!(
            "`kiln runs {0}` lists its trials, and `kiln report {0}` compares them",
            shell_quoted(&shown.to_string())
        )));
    }
    if folder.join("experiment.json").is_file() {
        let shown = folder.display();
        return Err(Error::data(format!("{shown}: expected the folder of a run, got that of a comparison")).help(
            format!(
                "`kiln runs {0}/arms` lists its runs, and `kiln report {0}` writes its report again",
                shell_quoted(&shown.to_string())
            ),
        ));
    }
    Err(Error::data(format!("{}: there is no run of Kiln's in this folder", folder.display()))
        .help("`kiln runs FOLDER` lists the runs in a folder"))
}

pub(super) fn describe(folder: &Path, json: bool) -> Result<()> {
    #[cfg(unix)]
    let read = if jobs::is_job(folder) { jobs::run_of_job } else { Run::read };
    #[cfg(not(unix))]
    let read = Run::read;
    let run = if folder.is_file() { no_run(folder)? } else { read(folder)?.map_or_else(|| no_run(folder), Ok)? };
    if json {
        say(serde_json::to_string_pretty(&run).expect("texts and figures are JSON"))
    } else {
        show(terminal::runs::description(&run).trim_end())
    }
}

pub(super) fn cache(command: &CacheCommand) -> Result<()> {
    let folder = cache::folder()?;
    match command {
        CacheCommand::List => {
            let entries = cache::list(&folder)?;
            say(format!("{}: {} entries, {}", folder.display(), entries.len(), cache::size(&entries)))?;
            entries.iter().try_for_each(say)
        }
        CacheCommand::Clear => {
            let removed = cache::clear(&folder)?;
            say(format!("{}: removed {} entries, {}", folder.display(), removed.len(), cache::size(&removed)))
        }
        CacheCommand::Export { file } => {
            moved("exported", &archive::export(&folder, &device::kernel_devices(), file)?)?;
            say(format!("archive: {}", file.display()))
        }
        CacheCommand::Import { file, replace } => {
            moved("imported", &archive::import(file, &folder, &device::kernel_devices(), *replace)?)
        }
    }
}

/// The content of an archive and its origin.
fn moved(how: &str, manifest: &Manifest) -> Result<()> {
    let devices =
        if manifest.devices.is_empty() { "no device but the CPU".into() } else { manifest.devices.join(", ") };
    let driver = manifest.driver.as_deref().unwrap_or("driver unknown");
    say(format!("{how}: kiln {} on Burn {}, {}, {devices}, {driver}", manifest.kiln, manifest.burn, manifest.system))?;
    manifest.files.iter().try_for_each(|file| say(format!("{:>12} bytes  {}", file.bytes, file.name)))
}
