//! The files of which an entry of the cache is made: their content in its key, and whether they
//! stayed what they were.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use kiln_core::error::{Error, Result};
use kiln_core::files::read_error;
use kiln_core::signals;
use sha2::{Digest, Sha256};

use super::mapped::interrupted;

/// Files that are read twice, first for the key and then for what is kept under it: what changed in
/// between would be kept under a key that is not its own.
pub(crate) struct Sources<'a> {
    files: &'a [PathBuf],
    stamps: Vec<Stamp>,
}

/// Properties of a file that change with its content: size, inode and times.
#[derive(PartialEq)]
struct Stamp {
    bytes: u64,
    changed: SystemTime,
    #[cfg(unix)]
    inode: (u64, u64),
}

impl<'a> Sources<'a> {
    /// `files` as they are before they are read for the first time.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn of(files: &'a [PathBuf]) -> Result<Self> {
        // Within a tick of the system's clock a second change has the time of the first.
        const TICK: Duration = Duration::from_millis(20);
        let stamps = || files.iter().map(|file| Stamp::of(file)).collect::<Result<Vec<_>>>();
        let mut now = stamps()?;
        if now.iter().any(|stamp| stamp.changed.elapsed().is_ok_and(|age| age < TICK)) {
            thread::sleep(TICK);
            now = stamps()?;
        }
        Ok(Self { files, stamps: now })
    }

    /// Adds the content of the files to the hash of a key.
    ///
    /// # Errors
    /// A file that cannot be read; a signal, since much takes long.
    pub fn hash_into(&self, hash: &mut Sha256) -> Result<()> {
        let mut buffer = vec![0; 1 << 18];
        for path in self.files {
            let mut file = File::open(path).map_err(|error| read_error(path, &error))?;
            let mut len = 0u64;
            loop {
                if signals::received().is_some() {
                    return Err(interrupted());
                }
                match file.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(read) => {
                        hash.update(&buffer[..read]);
                        len += read as u64;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(read_error(path, &error)),
                }
            }
            // The length after the content tells files apart: "ab" + "c" is not "a" + "bc".
            hash.update(len.to_le_bytes());
        }
        Ok(())
    }

    /// Fails unless the files still are what they were.
    ///
    /// # Errors
    /// A file that has changed, or that cannot be read any more.
    pub fn are_unchanged(&self) -> Result<()> {
        for (file, stamp) in self.files.iter().zip(&self.stamps) {
            if Stamp::of(file)? != *stamp {
                return Err(changed(file));
            }
        }
        Ok(())
    }
}

impl Stamp {
    fn of(file: &Path) -> Result<Self> {
        let metadata = fs::metadata(file).map_err(|error| read_error(file, &error))?;
        #[cfg(unix)]
        use std::os::unix::fs::MetadataExt;
        // The time of the last change of the file's node cannot be set, as that of its content can.
        #[cfg(unix)]
        let changed = {
            let since = Duration::new(metadata.ctime().max(0) as u64, metadata.ctime_nsec() as u32);
            SystemTime::UNIX_EPOCH + since
        };
        #[cfg(not(unix))]
        let changed = metadata.modified().map_err(|error| read_error(file, &error))?;
        Ok(Self {
            bytes: metadata.len(),
            changed,
            #[cfg(unix)]
            inode: (metadata.dev(), metadata.ino()),
        })
    }
}

/// The error for a file of which the second reading differs from the first.
pub(crate) fn changed(file: &Path) -> Error {
    Error::data(format!("{}: the file changed while it was read", file.display()))
        .help("nothing was kept of it; start again when nothing writes to it")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_that_changes_between_two_readings_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["a", "b"].map(|name| folder.path().join(name));
        for change in [
            (|file: &Path| fs::write(file, "other").unwrap()) as fn(&Path),
            // As long as it was, and with the time that it had.
            |file: &Path| {
                let time = fs::metadata(file).unwrap().modified().unwrap();
                fs::write(file, "TEXT").unwrap();
                File::options().write(true).open(file).unwrap().set_modified(time).unwrap();
            },
            |file: &Path| {
                fs::write(file.with_extension("new"), "text").unwrap();
                fs::rename(file.with_extension("new"), file).unwrap();
            },
        ] {
            files.iter().for_each(|file| fs::write(file, "text").unwrap());
            let sources = Sources::of(&files).unwrap();
            sources.are_unchanged().unwrap();
            change(&files[1]);
            let error = sources.are_unchanged().unwrap_err().to_string();
            assert!(error.contains("b: the file changed while it was read"), "{error}");
        }
    }
}
