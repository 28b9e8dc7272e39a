//! The cache, which Kiln keeps between runs: tokenizers, text, tables and tokenized rows, sizes of
//! batches that were found, and the compiled engine's kernels with what tuning has found.
//! Everything in it can be made again.

pub mod mapped;
pub(crate) mod sources;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fmt, fs};

use indicatif::HumanBytes;
pub use kiln_core::cache::{BATCH_SIZES, KERNELS, ROWS, TOKENIZED, TOKENIZERS, TOKENS, WINDOWS, folder, folder_of};
use kiln_core::error::{Error, Result};
use kiln_core::whole_file::is_being_written;

/// A file of the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its path in the cache.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// How long ago it was written; zero when the clock went back since.
    pub age: Duration,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let age = Duration::from_secs(self.age.as_secs());
        let bytes = HumanBytes(self.bytes).to_string();
        write!(f, "{bytes:>12}  {}  written {} ago", self.name, humantime::format_duration(age))
    }
}

/// The size of `entries` together, for people.
pub fn size(entries: &[Entry]) -> String {
    HumanBytes(entries.iter().map(|entry| entry.bytes).sum()).to_string()
}

/// The files of the cache in `folder`, by name; none when there is no such folder.
///
/// # Errors
/// A folder that cannot be read.
pub fn list(folder: &Path) -> Result<Vec<Entry>> {
    let kept = files(folder)?.into_iter().filter_map(|(kind, path)| {
        let io = |error: std::io::Error| Error::io(format!("read {}", path.display()), &error);
        let metadata = match fs::metadata(&path) {
            // It was there a moment ago: another process has removed it, or has given it its name.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            metadata => metadata.and_then(|metadata| Ok((metadata.len(), metadata.modified()?))).map_err(io),
        };
        Some(metadata.map(|(bytes, modified)| {
            let age = SystemTime::now().duration_since(modified).unwrap_or_default();
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            Entry { name: format!("{kind}/{file}"), bytes, age }
        }))
    });
    kept.collect()
}

/// Removes the files that [`list`] shows, but for those that another process is writing, and
/// returns the removed ones. A run that has a removed file open can still read it.
///
/// # Errors
/// A file that cannot be removed.
pub fn clear(folder: &Path) -> Result<Vec<Entry>> {
    let mut removed = Vec::new();
    for entry in list(folder)? {
        let path = folder.join(&entry.name);
        if is_being_written(&path) {
            continue;
        }
        match fs::remove_file(&path) {
            Ok(()) => removed.push(entry),
            // Others may clear the cache too, or finish what they wrote.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io(format!("remove {}", path.display()), &error)),
        }
    }
    Ok(removed)
}

/// Kind and path of every file, of kinds that Kiln writes: `KILN_CACHE` may name a folder with
/// other things in it.
fn files(folder: &Path) -> Result<Vec<(&'static str, PathBuf)>> {
    let mut found = Vec::new();
    for kind in KINDS {
        let folder = folder.join(kind);
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            entries => entries.map_err(|error| Error::io(format!("read {}", folder.display()), &error))?,
        };
        found.extend(
            entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).map(|path| (*kind, path)),
        );
    }
    found.sort();
    Ok(found)
}

/// The folders of the cache.
const KINDS: &[&str] = &[BATCH_SIZES, KERNELS, ROWS, TOKENIZED, TOKENIZERS, TOKENS, WINDOWS];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_listed_is_what_is_cleared() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(list(&place.path().join("none")).unwrap(), []);
        fs::create_dir(place.path().join(TOKENS)).unwrap();
        fs::write(place.path().join("tokens/b.tokens"), [0; 2048]).unwrap();
        fs::write(place.path().join("tokens/a.tokens"), [0; 10]).unwrap();
        fs::write(place.path().join("mine.txt"), "not Kiln's").unwrap();
        let entries = list(place.path()).unwrap();
        assert_eq!(
            entries.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>(),
            ["tokens/a.tokens", "tokens/b.tokens"]
        );
        assert_eq!(size(&entries), "2.01 KiB");
        assert!(entries[1].to_string().contains("2.00 KiB  tokens/b.tokens  written"), "{}", entries[1]);
        assert_eq!(clear(place.path()).unwrap().len(), 2);
        assert_eq!(list(place.path()).unwrap(), []);
        assert!(place.path().join("mine.txt").exists());
    }

    #[test]
    fn what_is_being_written_is_not_cleared() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join(TOKENS)).unwrap();
        let [live, left] = ["tokens/.a.live.part", "tokens/.a.left.part"].map(|name| place.path().join(name));
        fs::write(&left, "of a process that was killed").unwrap();
        let file = fs::File::create(&live).unwrap();
        file.lock().unwrap();
        assert_eq!(clear(place.path()).unwrap().len(), 1);
        assert_eq!((live.exists(), left.exists()), (true, false));
        drop(file);
        assert_eq!(clear(place.path()).unwrap().len(), 1);
    }
}
