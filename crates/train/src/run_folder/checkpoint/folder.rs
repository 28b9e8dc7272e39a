//! The folder of a run's checkpoints: names, order, and what becomes of those that the run leaves
//! behind.

use std::fs;
use std::path::{Path, PathBuf};

use kiln_core::error::{Error, Result};
use kiln_core::files::{free_beside, read_regular, write_folder, write_whole};
use kiln_models::weights::{ADAPTER_FILE, MODEL_FILE as MODEL};

use super::{DIGEST, OPTIMIZER, STATE, SUSPECT};

/// How the names of folders begin that are being written or removed.
const ASIDE: &str = ".writing-";
/// How the names of checkpoints begin that the run has left behind.
const SUPERSEDED: &str = ".superseded-";

/// Whether Kiln writes files of that name, relative to a checkpoint's folder, into checkpoints of
/// the run.
pub type IsOwn<'a> = &'a dyn Fn(&Path) -> bool;

/// Writes the checkpoint of step `step`, whose files besides [`STATE`] and [`DIGEST`] `fill` writes
/// and names; see [`Snapshot::write`].
pub(super) fn write_aside(
    checkpoints: &Path,
    step: u64,
    list: &dyn Fn(&[&str]) -> Result<()>,
    is_own: IsOwn<'_>,
    fill: impl FnOnce(&Path) -> Result<Vec<String>>,
) -> Result<PathBuf> {
    let target = checkpoints.join(name(step));
    let io = |error: &std::io::Error| Error::io(format!("write {}", target.display()), error);
    let aside = checkpoints.join(format!("{ASIDE}{}", name(step)));
    fs::create_dir_all(checkpoints).map_err(|error| io(&error))?;
    remove_folder(&aside).map_err(|error| io(&error))?;
    fs::create_dir(&aside).map_err(|error| io(&error))?;
    let write = || {
        let files = fill(&aside)?;
        list(&files.iter().map(String::as_str).chain([STATE, DIGEST, SUSPECT]).collect::<Vec<_>>())
    };
    let make_way = || make_way(checkpoints, &target, is_own).map_err(|error| io(&error));
    write_folder(&aside, &target, write, make_way).map(|()| target)
}

/// Why a checkpoint is suspect; none when it is not.
pub(super) fn suspicion(checkpoint: &Path) -> Option<String> {
    let file = checkpoint.join(SUSPECT);
    fs::symlink_metadata(&file).ok()?;
    let why = read_regular(&file).unwrap_or_default();
    Some(String::from_utf8_lossy(&why).lines().next().unwrap_or_default().to_owned())
}

/// `step-000123`
pub fn name(step: u64) -> String {
    format!("step-{step:06}")
}

/// Whether `folder` is the name of a checkpoint, or of one that is being written or has been left
/// behind.
pub fn is_own(folder: &str) -> bool {
    let bare = [ASIDE, SUPERSEDED].into_iter().find_map(|prefix| folder.strip_prefix(prefix)).unwrap_or(folder);
    step_of(bare).is_some()
}

/// The step of the checkpoint that is called `given`.
fn step_of(given: &str) -> Option<u64> {
    let step = given.strip_prefix("step-").and_then(|digits| digits.parse::<u64>().ok());
    step.filter(|step| name(*step) == given)
}

/// The checkpoints in the folder `checkpoints`, whole or not, oldest first.
///
/// # Errors
/// A folder that cannot be read.
pub fn list(checkpoints: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let mut found = entries(checkpoints)?;
    found.retain(|(_, path)| is_checkpoint(path));
    Ok(found)
}

/// Whether the folder at `path` holds a file of a checkpoint's.
fn is_checkpoint(path: &Path) -> bool {
    [STATE, DIGEST, MODEL, ADAPTER_FILE, OPTIMIZER].iter().any(|file| path.join(file).exists())
}

/// All entries of the folder that have the name of a checkpoint, oldest first.
pub(super) fn entries(checkpoints: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let entries = match fs::read_dir(checkpoints) {
        Ok(entries) => entries,
        Err(_) if fs::symlink_metadata(checkpoints).is_err() => return Ok(Vec::new()),
        // A pipe, a file, or a link that leads nowhere or to itself.
        Err(_) if !checkpoints.is_dir() => {
            return Err(Error::data(format!(
                "{}: expected a folder with checkpoints, got something else",
                checkpoints.display()
            ))
            .help("remove it, or put the folder back"));
        }
        Err(error) => return Err(Error::io(format!("read {}", checkpoints.display()), &error)),
    };
    let mut found = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let given = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(step) = step_of(given) {
            found.push((step, path));
        }
    }
    found.sort();
    Ok(found)
}

/// Marks a checkpoint as one that a fault may have spoiled: no run continues from it.
///
/// # Errors
/// The operating system's.
pub fn mark_suspect(checkpoint: &Path, why: &str) -> Result<()> {
    write_whole(&checkpoint.join(SUSPECT), format!("{why}\n").as_bytes())
}

/// Renames what a run that continues after step `step` leaves behind: every checkpoint after that
/// step, and every suspect one. They are removed when the run has saved its next checkpoint
/// ([`remove_superseded`]); until then nothing is lost.
///
/// # Errors
/// A folder that cannot be renamed.
pub fn supersede(checkpoints: &Path, step: u64, is_own: IsOwn<'_>) -> Result<()> {
    for (of, path) in list(checkpoints)? {
        if of > step || suspicion(&path).is_some() {
            set_aside(checkpoints, &path, is_own)
                .map_err(|error| Error::io(format!("rename {}", path.display()), &error))?;
        }
    }
    Ok(())
}

fn set_aside(checkpoints: &Path, path: &Path, is_own: IsOwn<'_>) -> std::io::Result<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = checkpoints.join(format!("{SUPERSEDED}{name}"));
    remove_own(&aside, is_own)?;
    fs::rename(path, &aside)?;
    Ok(aside)
}

/// Removes the checkpoint that [`set_aside`] has renamed to `aside`. Files that are not Kiln's
/// stay, and the folder with them gets a name that no run takes for a checkpoint.
fn remove_own(aside: &Path, is_own: IsOwn<'_>) -> std::io::Result<()> {
    match fs::symlink_metadata(aside) {
        Err(_) => return Ok(()),
        // Of a link, what it leads to is elsewhere and stays.
        Ok(found) if !found.is_dir() => return fs::remove_file(aside),
        Ok(_) => {}
    }
    remove_own_below(aside, Path::new(""), is_own)?;
    if fs::read_dir(aside)?.next().is_none() {
        return fs::remove_dir(aside);
    }
    let name = aside.file_name().unwrap_or_default().to_string_lossy();
    let name = name.strip_prefix(SUPERSEDED).unwrap_or(&name);
    let kept = free_beside(&aside.with_file_name(name), "kept");
    fs::rename(aside, &kept)?;
    tracing::warn!(
        "the checkpoint {name} is removed, and what Kiln has not written in it is kept in {}",
        kept.display()
    );
    Ok(())
}

/// Removes Kiln's files in the folder `inside` of `folder`; whether there was one.
fn remove_own_below(folder: &Path, inside: &Path, is_own: IsOwn<'_>) -> std::io::Result<bool> {
    let mut found = false;
    for entry in fs::read_dir(folder.join(inside))? {
        let entry = entry?;
        let name = inside.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            if remove_own_below(folder, &name, is_own)? && fs::read_dir(entry.path())?.next().is_none() {
                fs::remove_dir(entry.path())?;
            }
        } else if is_own(&name) {
            fs::remove_file(entry.path())?;
            found = true;
        }
    }
    Ok(found)
}

/// Frees the name `target` for a checkpoint: one of that step is superseded, and anything else is
/// not Kiln's and is kept under another name.
fn make_way(checkpoints: &Path, target: &Path, is_own: IsOwn<'_>) -> std::io::Result<()> {
    if is_checkpoint(target) {
        return set_aside(checkpoints, target, is_own).map(drop);
    }
    if fs::symlink_metadata(target).is_err() {
        return Ok(());
    }
    keep(target, target)
}

/// Renames the file at `from`, which is not Kiln's, to `to`, or to a name beside it where that is
/// taken.
pub fn keep(from: &Path, to: &Path) -> std::io::Result<()> {
    let is_free = fs::symlink_metadata(to).is_err();
    let free = if is_free { to.to_owned() } else { free_beside(to, "kept") };
    if !is_free {
        tracing::warn!("{}, which Kiln has not written, is now {}", to.display(), free.display());
    }
    fs::rename(from, free)
}

/// Removes the checkpoints that [`supersede`] has renamed. One that cannot be removed is in
/// nobody's way: it is said.
pub fn remove_superseded(checkpoints: &Path, is_own: IsOwn<'_>) {
    for path in hidden(checkpoints, SUPERSEDED) {
        if let Err(error) = remove_own(&path, is_own) {
            tracing::warn!("cannot remove {}: {error}", path.display());
        }
    }
}

/// Removes the oldest checkpoints beyond `limit` (`rotate_checkpoints`), but not the one of step
/// `keep`, nor the newest one up to step `good`, and never the newest of all. Suspect ones do not
/// count.
///
/// # Errors
/// A folder that cannot be removed.
pub fn rotate(checkpoints: &Path, limit: usize, keep: Option<u64>, good: u64, is_own: IsOwn<'_>) -> Result<()> {
    let mut all = list(checkpoints)?;
    all.retain(|(_, path)| suspicion(path).is_none());
    let excess = all.len().saturating_sub(limit.max(1));
    let newest = all.last().map(|(step, _)| *step);
    let good = all.iter().map(|(step, _)| *step).rfind(|step| *step <= good);
    let kept = [keep, good, newest];
    let removable = all.iter().filter(|(step, _)| !kept.contains(&Some(*step)));
    for (_, path) in removable.take(excess) {
        // Renamed first: a folder that is half removed must not look like a checkpoint.
        let removed = set_aside(checkpoints, path, is_own).and_then(|aside| remove_own(&aside, is_own));
        removed.map_err(|error| Error::io(format!("remove {}", path.display()), &error))?;
    }
    Ok(())
}

/// Removes what a process that was killed had not finished writing.
///
/// # Errors
/// A folder that cannot be removed.
pub fn remove_unfinished(checkpoints: &Path) -> Result<()> {
    for path in hidden(checkpoints, ASIDE) {
        remove_folder(&path).map_err(|error| Error::io(format!("remove {}", path.display()), &error))?;
    }
    Ok(())
}

/// Whether `path` is one that [`remove_unfinished`] removes.
pub fn is_unfinished(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.to_string_lossy().strip_prefix(ASIDE).is_some_and(|name| step_of(name).is_some()))
}

/// The entries of the folder `checkpoints` under the name of a checkpoint with `prefix` before it.
fn hidden(checkpoints: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(checkpoints).into_iter().flatten().flatten();
    let is_own = |name: &str| name.strip_prefix(prefix).is_some_and(|name| step_of(name).is_some());
    let found = entries.filter(|entry| is_own(&entry.file_name().to_string_lossy()));
    found.map(|entry| entry.path()).collect()
}

fn remove_folder(path: &Path) -> std::io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
