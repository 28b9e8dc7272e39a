//! Which files of a run folder are Kiln's. The file `.lock`, which Kiln makes before anything else
//! in the folder and locks while a run writes, lists them, one path a line; a path is listed before
//! its file appears. So a folder whose `.lock` begins with [`HEAD`] is known to be a run's, and
//! everything in it that is not listed is somebody else's: it is never overwritten or removed.
//!
//! Checkpoints come and go and TensorBoard's files have a time in their names; there a `*` stands
//! for the part that varies.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kiln_core::error::{Error, Result};
use kiln_core::files::{free_beside, set_aside_damaged, write_whole};

use super::names::{COMPILER, EVENT_FILES, FAULT, TENSORBOARD, is_event_file};
use super::{card, checkpoint};

/// The locked file of a run folder.
pub const LOCK: &str = ".lock";

/// The first line of the file.
const HEAD: &str = "Kiln's run folder: the files that Kiln has written here, locked while a run writes.";

/// The folder of the trained model, in the run folder.
pub const MODEL: &str = "model";

/// The folders of a run folder that Kiln writes files to.
const FOLDERS: [&str; 5] = [MODEL, checkpoint::FOLDER, COMPILER, FAULT, TENSORBOARD];

/// The content of `.lock` of a folder.
#[derive(Debug, PartialEq, Eq)]
pub enum Listed {
    /// There is none, or it is empty: Kiln had not begun to write, or an older Kiln wrote, which
    /// kept no list.
    Nothing,
    /// It is no file of Kiln's.
    Foreign,
    /// The files that Kiln has written; without the last line's end the rest of the list may be
    /// lost.
    Files { files: BTreeSet<String>, is_ended: bool },
}

/// The list of a folder that this process has locked. The lock ends with the process, however that
/// ends.
#[derive(Debug)]
pub struct Manifest {
    folder: PathBuf,
    file: File,
    listed: Mutex<BTreeSet<String>>,
}

impl Listed {
    /// The list of the run folder `folder`.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(LOCK);
        match fs::symlink_metadata(&path) {
            Err(_) => Ok(Self::Nothing),
            Ok(found) if !found.is_file() => Ok(Self::Foreign),
            Ok(_) => {
                let text = fs::read(&path).map_err(|error| Error::io(format!("read {}", path.display()), &error))?;
                Ok(Self::parse(&text))
            }
        }
    }

    fn parse(text: &[u8]) -> Self {
        if text.is_empty() || (text.len() <= HEAD.len() && HEAD.as_bytes().starts_with(text)) {
            return Self::Nothing; // the process was killed in its first line
        }
        let is_ended = text.ends_with(b"\n");
        let text = String::from_utf8_lossy(text);
        // A process that was killed may have left half a line at the end.
        let mut lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        match lines.next() {
            Some(HEAD) => Self::Files { files: lines.map(str::to_owned).collect(), is_ended },
            _ => Self::Foreign,
        }
    }
}

impl Manifest {
    /// Gives a `.lock` in the run folder `folder` that is no regular file, and can be neither
    /// locked nor written, another name.
    ///
    /// # Errors
    /// The operating system's.
    pub fn make_way(folder: &Path) -> Result<()> {
        let path = folder.join(LOCK);
        if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_file()) {
            let aside = set_aside_damaged(&path)?;
            tracing::warn!("{}, which is no regular file, is now {}", path.display(), aside.display());
        }
        Ok(())
    }

    /// Locks the run folder `folder` for this process.
    ///
    /// # Errors
    /// Another process that has locked it; the operating system's.
    pub fn lock(folder: &Path) -> Result<Self> {
        let path = folder.join(LOCK);
        let io = |error: &std::io::Error| {
            Error::io(format!("lock {}", path.display()), error).help("run.output_dir must be a writable folder")
        };
        let file = File::options().create(true).read(true).append(true).open(&path).map_err(|error| io(&error))?;
        // `kiln describe` holds the lock for an instant to see whether it is free.
        for _ in 0..5 {
            match file.try_lock() {
                Ok(()) => return Ok(Self { folder: folder.into(), file, listed: Mutex::default() }),
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(20)),
                Err(TryLockError::Error(error)) => return Err(io(&error)),
            }
        }
        Err(Error::config(format!("run.output_dir: another process is writing to {}", folder.display()))
            .help("wait until that run ends, or set run.output_dir to another folder"))
    }

    fn io(&self, error: &std::io::Error) -> Error {
        Error::io(format!("write {}", self.folder.join(LOCK).display()), error)
    }

    /// Reads what is listed, or begins the list. From now on the folder is known to be a run's.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open(&self) -> Result<()> {
        let mut text = Vec::new();
        (&self.file).read_to_end(&mut text).map_err(|error| self.io(&error))?;
        match Listed::parse(&text) {
            Listed::Files { files, .. } => {
                let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                self.file.set_len(whole as u64).map_err(|error| self.io(&error))?;
                *self.listed.lock().unwrap_or_else(PoisonError::into_inner) = files;
                Ok(())
            }
            Listed::Nothing => self.restart(),
            Listed::Foreign => {
                // The lock is this file's, so that its content is copied and not its name taken.
                write_whole(&free_beside(&self.folder.join(LOCK), "damaged"), &text)?;
                self.restart()
            }
        }
    }

    /// Empties the list.
    ///
    /// # Errors
    /// The operating system's.
    pub fn restart(&self) -> Result<()> {
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        listed.clear();
        let begun = self.file.set_len(0).and_then(|()| (&self.file).write_all(format!("{HEAD}\n").as_bytes()));
        begun.and_then(|()| self.file.sync_all()).map_err(|error| self.io(&error))
    }

    /// Lists the files at `paths`, relative to the run folder, before they appear.
    ///
    /// # Errors
    /// The operating system's.
    pub fn list(&self, paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<()> {
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lines = String::new();
        for key in paths.into_iter().filter_map(|path| key(path.as_ref())) {
            if listed.insert(key.clone()) {
                lines += &(key + "\n");
            }
        }
        (&self.file).write_all(lines.as_bytes()).map_err(|error| self.io(&error))
    }

    /// The folder that stands for every checkpoint in the list.
    pub fn any_checkpoint() -> PathBuf {
        Path::new(checkpoint::FOLDER).join("*")
    }

    /// Whether Kiln writes files of this name into checkpoints.
    pub fn has_in_checkpoints(&self, name: &Path) -> bool {
        self.has(&Self::any_checkpoint().join(name))
    }

    /// Whether Kiln has written the file at `path`, relative to the run folder.
    pub fn has(&self, path: &Path) -> bool {
        let listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        key(path).is_some_and(|key| listed.contains(&key))
    }

    /// Removes every file that is listed, and the folders that are empty then; what else is in
    /// Kiln's folders, relative to the run folder.
    ///
    /// # Errors
    /// A file that cannot be removed.
    pub fn remove_listed(&self) -> Result<Vec<PathBuf>> {
        let mut kept = Vec::new();
        self.remove_in(Path::new(""), &mut kept)?;
        kept.sort();
        Ok(kept)
    }

    fn remove_in(&self, inside: &Path, kept: &mut Vec<PathBuf>) -> Result<()> {
        let folder = self.folder.join(inside);
        let io = |path: &Path, error: &std::io::Error| Error::io(format!("remove {}", path.display()), error);
        for entry in fs::read_dir(&folder).map_err(|error| io(&folder, &error))? {
            let entry = entry.map_err(|error| io(&folder, &error))?;
            let path = inside.join(entry.file_name());
            let is_folder = entry.file_type().map_err(|error| io(&entry.path(), &error))?.is_dir();
            // Other folders of the user's may be large and are none of Kiln's business; links are
            // not followed.
            let is_searched = is_folder && FOLDERS.iter().any(|known| path.starts_with(known));
            if is_searched {
                self.remove_in(&path, kept)?;
                let left = fs::read_dir(entry.path()).is_ok_and(|mut entries| entries.next().is_some());
                if !left {
                    fs::remove_dir(entry.path()).map_err(|error| io(&entry.path(), &error))?;
                }
            } else if !is_folder && self.has(&path) && !card::is_changed(&entry.path()) {
                fs::remove_file(entry.path()).map_err(|error| io(&entry.path(), &error))?;
            } else if !inside.as_os_str().is_empty() {
                kept.push(path);
            }
        }
        Ok(())
    }

    /// Removes what a process that was killed had not finished writing: files whose name says that
    /// one of Kiln's writers made them, and folders of models and checkpoints that were written
    /// aside.
    ///
    /// # Errors
    /// A file that cannot be removed.
    pub fn remove_unfinished(&self) -> Result<()> {
        checkpoint::remove_unfinished(&self.folder.join(checkpoint::FOLDER))?;
        let listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        for inside in ["", COMPILER, FAULT].map(Path::new) {
            for entry in fs::read_dir(self.folder.join(inside)).into_iter().flatten().flatten() {
                let (path, name) = (entry.path(), inside.join(entry.file_name()));
                let removed = match entry.file_type() {
                    Ok(kind) if kind.is_dir() && is_model_aside(&name) => fs::remove_dir_all(&path),
                    Ok(kind) if kind.is_file() && is_unfinished(&name, &listed) => fs::remove_file(&path),
                    _ => Ok(()),
                };
                removed.map_err(|error| Error::io(format!("remove {}", path.display()), &error))?;
            }
        }
        Ok(())
    }

    /// Whether the folder holds nothing but the beginning of a run: no checkpoint, no model, no
    /// row, and no file of somebody else.
    pub fn is_only_begun(folder: &Path, listed: &BTreeSet<String>) -> bool {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let is_own = |path: &Path| is_unfinished(path, listed) || key(path).is_some_and(|key| listed.contains(&key));
        entries.filter(|entry| entry.file_name() != LOCK).all(|entry| {
            let (path, name) = (entry.path(), PathBuf::from(entry.file_name()));
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let is_empty = fs::metadata(&path).is_ok_and(|found| found.len() == 0);
                let has_rows = name.as_os_str() == "metrics.jsonl" && !is_empty;
                return !has_rows && is_own(&name);
            }
            let inner = |known: &dyn Fn(&Path) -> bool| {
                fs::read_dir(&path).into_iter().flatten().flatten().all(|entry| known(&name.join(entry.file_name())))
            };
            match name.to_str() {
                Some(checkpoint::FOLDER) => inner(&checkpoint::is_unfinished),
                Some(name) if FOLDERS.contains(&name) && name != MODEL => inner(&is_own),
                _ => is_model_aside(&name),
            }
        })
    }
}

/// How a file is listed; none for a path that is not UTF-8, which no file of Kiln's has.
fn key(path: &Path) -> Option<String> {
    let parts = path.iter().map(|part| part.to_str()).collect::<Option<Vec<_>>>()?;
    Some(match parts[..] {
        [checkpoint::FOLDER, folder, ref inside @ ..] if checkpoint::is_own(folder) && !inside.is_empty() => {
            format!("{}/*/{}", checkpoint::FOLDER, inside.join("/"))
        }
        [TENSORBOARD, name] if is_event_file(name) => {
            format!("{}/{}", TENSORBOARD, EVENT_FILES)
        }
        _ => parts.join("/"),
    })
}

/// Whether the file at `path`, relative to the run folder, is one of those that are `listed`,
/// written aside before it had its name.
fn is_unfinished(path: &Path, listed: &BTreeSet<String>) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let aside = name.strip_prefix('.').and_then(|name| name.strip_suffix(".part")).unwrap_or_default();
    // `.plan.toml.a1B2c3.part`
    let whole = aside.rsplit_once('.').filter(|(_, random)| is_random(random, "")).map_or(aside, |(whole, _)| whole);
    !whole.is_empty() && key(&path.with_file_name(whole)).is_some_and(|key| listed.contains(&key))
}

/// How the folder's name begins that a model is written to, before it is `model/`.
pub const MODEL_ASIDE: &str = ".model-";

fn is_model_aside(path: &Path) -> bool {
    is_random(path.file_name().and_then(|name| name.to_str()).unwrap_or_default(), MODEL_ASIDE)
}

/// Whether `name` is one of those that `tempfile` makes: `prefix` and six letters or digits.
fn is_random(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix)
        .is_some_and(|random| random.len() == 6 && random.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn listed(text: &str) -> Listed {
        Listed::parse(text.as_bytes())
    }

    fn files(names: &[&str]) -> Listed {
        Listed::Files { files: names.iter().map(|name| (*name).into()).collect(), is_ended: true }
    }

    #[test]
    fn copies_of_checkpoints_are_the_users() {
        let is_own = |path: &str| key(Path::new(path)).is_some_and(|key| key.contains('*'));
        assert!(is_own("checkpoints/step-000004/state.json") && is_own("checkpoints/.writing-step-000004/state.json"));
        for path in ["my-best", "step-000006.kept-1", "step-4", ".superseded-mine", ".writing-mine"] {
            assert!(!is_own(&format!("checkpoints/{path}/state.json")), "{path}");
        }
    }

    #[test]
    fn half_a_line_counts_nothing() {
        for cut in 0..=HEAD.len() {
            assert_eq!(listed(&HEAD[..cut]), Listed::Nothing);
        }
        assert_eq!(listed(&format!("{HEAD}\n")), files(&[]));
        assert_eq!(listed(&format!("{HEAD}\na\nb/c\n")), files(&["a", "b/c"]));
        let cut = listed(&format!("{HEAD}\na\nd"));
        assert_eq!(cut, Listed::Files { files: ["a".to_owned()].into(), is_ended: false });
        assert_eq!(listed("pid 4711\n"), Listed::Foreign);
    }

    #[test]
    fn only_what_is_listed_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        };
        let manifest = Manifest::lock(folder.path()).unwrap();
        manifest.open().unwrap();
        let own = ["plan.toml", "model/config.json", "fault/report.json", "checkpoints/step-000003/state.json"];
        manifest.list(own).unwrap();
        manifest.list(["plan.toml"]).unwrap();
        let mine = ["notes.txt", "data/plan.toml", "model/README.md", "checkpoints/keep.txt", "fault/a/b"];
        own.iter().chain(&mine).for_each(|path| write(path));
        write("checkpoints/step-000007/state.json");
        drop(manifest);

        let manifest = Manifest::lock(folder.path()).unwrap();
        manifest.open().unwrap();
        assert_eq!(manifest.listed.lock().unwrap().len(), 4);
        let kept = manifest.remove_listed().unwrap();
        assert_eq!(kept, ["checkpoints/keep.txt", "fault/a/b", "model/README.md"].map(PathBuf::from));
        for path in mine {
            assert!(folder.path().join(path).exists(), "{path}");
        }
        for path in own {
            assert!(!folder.path().join(path).exists(), "{path}");
        }
        assert!(!folder.path().join("checkpoints/step-000007").exists());
    }

    #[cfg(unix)]
    #[test]
    fn links_are_not_followed() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(other.path().join("config.json"), "x").unwrap();
        let manifest = Manifest::lock(folder.path()).unwrap();
        manifest.open().unwrap();
        manifest.list(["model/config.json"]).unwrap();
        std::os::unix::fs::symlink(other.path(), folder.path().join("model")).unwrap();
        manifest.remove_listed().unwrap();
        assert!(other.path().join("config.json").exists() && folder.path().join("model").exists());
    }

    #[test]
    fn a_beginning_is_told_from_work() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let listed = ["plan.toml", "metrics.jsonl"].map(String::from).into();
        let is_begun = || Manifest::is_only_begun(folder.path(), &listed);
        fs::write(at("plan.toml"), "x").unwrap();
        fs::write(at(".plan.toml.a1B2c3.part"), "x").unwrap();
        fs::write(at("metrics.jsonl"), "").unwrap();
        fs::create_dir_all(at("checkpoints/.writing-step-000001")).unwrap();
        fs::create_dir(at(".model-aB3dE6")).unwrap();
        assert!(is_begun());
        fs::write(at("metrics.jsonl"), "{}\n").unwrap();
        assert!(!is_begun());
        fs::write(at("metrics.jsonl"), "").unwrap();
        fs::create_dir(at("checkpoints/step-000001")).unwrap();
        assert!(!is_begun());
        fs::remove_dir(at("checkpoints/step-000001")).unwrap();
        fs::write(at("notes.txt"), "mine").unwrap();
        assert!(!is_begun());
        fs::remove_file(at("notes.txt")).unwrap();
        assert!(is_begun());
        fs::create_dir(at("model")).unwrap();
        assert!(!is_begun());
    }
}
