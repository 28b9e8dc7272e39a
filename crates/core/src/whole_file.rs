//! Files that appear under their name only when they are whole: written aside, brought to disk,
//! renamed. Every file that a user names and every file of a run folder is written this way.
//!
//! A path is taken as the shell's `>` takes it: links are followed, and what is there and is no
//! regular file (a pipe, a device, `/dev/stdout`) is written into, never replaced. A file that is
//! replaced keeps its mode and, where the system allows it, its owner; a new one takes the mode
//! that the umask leaves.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::NamedTempFile;

/// A link that leads to a link is followed this far, as Linux does.
const MAX_LINKS: usize = 40;

/// Files aside that nobody holds are leftovers of killed processes once they are this old.
const STALE: Duration = Duration::from_secs(60);

/// Ends the name of a file that is written aside.
const ASIDE: &str = ".part";

/// A file that is being written. Dropped before [`commit`](Self::commit), it leaves what was there
/// as it was.
#[derive(Debug)]
pub struct WholeFile(Target);

#[derive(Debug)]
enum Target {
    /// A regular file, or nothing yet: renamed to `path` at the end.
    Aside { aside: NamedTempFile, path: PathBuf, is_new: bool },
    /// A pipe or a device, which takes the bytes as they come.
    Direct(File),
}

impl WholeFile {
    /// Begins to write what will be at `path`.
    ///
    /// # Errors
    /// A folder at `path`, a file there that may not be written, and the operating system's.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::begin(path, false)
    }

    /// Begins to write a new file at `path`: a regular file there is never replaced.
    ///
    /// # Errors
    /// A folder at `path`; `AlreadyExists` for a regular file there; a file that may not be
    /// written; an error of the operating system.
    pub fn create_new(path: &Path) -> io::Result<Self> {
        Self::begin(path, true)
    }

    fn begin(path: &Path, is_new: bool) -> io::Result<Self> {
        let path = follow(path)?;
        let found = match fs::metadata(&path) {
            Ok(found) => Some(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if found.as_ref().is_some_and(fs::Metadata::is_dir) {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder, expected the name of a file"));
        }
        if let Some(stream) = own_stream(&path)? {
            return Ok(Self(Target::Direct(stream)));
        }
        if found.is_some() {
            // A rename needs no leave of the file that it replaces; what the owner has made
            // read-only stays.
            let file = OpenOptions::new().write(true).open(&path)?;
            if !found.as_ref().is_some_and(fs::Metadata::is_file) {
                return Ok(Self(Target::Direct(file)));
            }
            if is_new {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let Some(name) = path.file_name() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "expected the name of a file"));
        };
        let prefix = format!(".{}.", name.to_string_lossy());
        remove_stale(folder, &prefix);
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(ASIDE);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // The system takes the umask off.
            builder.permissions(fs::Permissions::from_mode(0o666));
        }
        let aside = builder.tempfile_in(folder).map_err(without_path)?;
        // Tells other processes that this one is alive. File systems without locks lose only the
        // removal of leftovers.
        let _ = aside.as_file().try_lock();
        if let Some(found) = found {
            keep_owner_and_mode(aside.as_file(), &found)?;
        }
        Ok(Self(Target::Aside { aside, path, is_new }))
    }

    /// The file to write to. A pipe or a device can neither be read nor sought in.
    pub fn file(&self) -> &File {
        match &self.0 {
            Target::Aside { aside, .. } => aside.as_file(),
            Target::Direct(file) => file,
        }
    }

    /// Brings the bytes to disk and puts the file where it belongs, in place of what is there.
    ///
    /// # Errors
    /// The operating system's; what was there is then as it was. `AlreadyExists` for a file that
    /// [came](Self::create_new) meanwhile.
    pub fn commit(self) -> io::Result<()> {
        match self.0 {
            Target::Aside { aside, path, is_new } => {
                aside.as_file().sync_all()?;
                let persisted = if is_new { aside.persist_noclobber(path) } else { aside.persist(path) };
                persisted.map(drop).map_err(|error| error.error)
            }
            // Pipes and devices have nothing to bring to disk, and say so by an error.
            Target::Direct(mut file) => file.flush(),
        }
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file().flush()
    }
}

/// Writes `bytes` as the whole content of the file at `path`.
///
/// # Errors
/// A folder at `path`, a file there that may not be written, and errors of the operating system.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = WholeFile::create(path)?;
    file.write_all(bytes)?;
    file.commit()
}

/// Where `path` leads, through links whose end may not exist yet. The open files of a process
/// (`/proc/self/fd/1`) look like links to names, which may be gone or stand for something else:
/// they are left as they are.
fn follow(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        if is_open_file(&path) || !fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink()) {
            return Ok(path);
        }
        let link = fs::read_link(&path)?;
        path = path.parent().unwrap_or(Path::new("")).join(link);
    }
    Err(io::Error::other("too many levels of symbolic links"))
}

/// Whether `path` names an open file of a process.
fn is_open_file(path: &Path) -> bool {
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    folder.is_some_and(|folder| folder.starts_with("/proc") && folder.ends_with("fd") || folder == Path::new("/dev/fd"))
}

/// Standard output or standard error of this process, where `path` names it: another opening of the
/// same file would begin at its start, and write over what is printed.
fn own_stream(path: &Path) -> io::Result<Option<File>> {
    #[cfg(unix)]
    if is_open_file(path) {
        use std::os::fd::AsFd;
        let folder = path.parent().and_then(|folder| folder.canonicalize().ok()).unwrap_or_default();
        let own = Path::new("/proc").join(std::process::id().to_string());
        let is_own = folder == own.join("fd") || folder == Path::new("/dev/fd") || folder.starts_with(own.join("task"));
        let stream = match path.file_name().and_then(|name| name.to_str()) {
            Some("1") if is_own => io::stdout().as_fd().try_clone_to_owned()?,
            Some("2") if is_own => io::stderr().as_fd().try_clone_to_owned()?,
            // Any other open file is appended to, so that nothing in it is overwritten.
            _ => return OpenOptions::new().append(true).open(path).map(Some),
        };
        return Ok(Some(stream.into()));
    }
    #[cfg(not(unix))]
    let _ = path;
    Ok(None)
}

/// Gives the new file what `old` has. The owner can be kept by the superuser alone, the group by
/// its members.
fn keep_owner_and_mode(new: &File, old: &fs::Metadata) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::{MetadataExt, fchown};
        let made = new.metadata()?;
        if made.gid() != old.gid() {
            let _ = fchown(new, None, Some(old.gid()));
        }
        if made.uid() != old.uid() {
            let _ = fchown(new, Some(old.uid()), None);
        }
    }
    // Last, since a change of the owner takes mode bits away.
    new.set_permissions(old.permissions())
}

/// The system's error without the name aside, which nobody has asked for.
fn without_path(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|error| error.source()?.downcast_ref::<io::Error>()?.raw_os_error());
    inner.map_or(error, io::Error::from_raw_os_error)
}

/// Whether the file at `path` is one that is not whole yet, while its process is alive.
pub fn is_being_written(path: &Path) -> bool {
    let locked = |file: File| matches!(file.try_lock(), Err(TryLockError::WouldBlock));
    is_aside(path.file_name(), ".") && File::open(path).is_ok_and(locked)
}

/// Removes from `folder` what killed processes have left of files whose names aside begin with
/// `prefix`. A young file is spared: its process may not hold it yet.
pub fn remove_stale(folder: &Path, prefix: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let old = || entry.metadata().is_ok_and(|found| is_older(&found));
        let unheld = || File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok());
        if is_aside(Some(&entry.file_name()), prefix) && old() && unheld() {
            // Leftovers are in nobody's way: what cannot be removed stays.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether a file of this name is written aside, and begins with `prefix`.
fn is_aside(name: Option<&OsStr>, prefix: &str) -> bool {
    name.and_then(OsStr::to_str).is_some_and(|name| name.starts_with(prefix) && name.ends_with(ASIDE))
}

fn is_older(found: &fs::Metadata) -> bool {
    found.is_file() && found.modified().is_ok_and(|at| at.elapsed().is_ok_and(|since| since > STALE))
}

#[cfg(all(test, unix))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Read;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    /// The mode that a file of this process has by default.
    fn default_mode(folder: &Path) -> u32 {
        let plain = folder.join("plain");
        fs::write(&plain, "").unwrap();
        let found = mode(&plain);
        fs::remove_file(plain).unwrap();
        found
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names = names.by_ref().collect::<Vec<_>>();
        names.sort();
        names
    }

    #[test]
    fn a_new_file_takes_the_umask_and_a_replaced_one_keeps_its_mode() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a");
        write(&path, b"one").unwrap();
        assert_eq!(mode(&path), default_mode(place.path()));
        for kept in [0o640, 0o600, 0o755, 0o666] {
            fs::set_permissions(&path, fs::Permissions::from_mode(kept)).unwrap();
            write(&path, b"two").unwrap();
            assert_eq!((mode(&path), fs::read(&path).unwrap()), (kept, b"two".to_vec()));
        }
        assert_eq!(names(place.path()), ["a"]);
    }

    #[test]
    fn links_are_followed_also_to_what_is_not_there_yet() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::create_dir(at("far")).unwrap();
        symlink("far/real", at("link")).unwrap();
        symlink("link", at("again")).unwrap();
        for text in ["new", "replaced"] {
            write(&at("again"), text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(at("far/real")).unwrap(), text);
            assert!(at("again").is_symlink() && at("link").is_symlink() && !at("far/real").is_symlink());
        }
        symlink("loop", at("loop")).unwrap();
        assert!(write(&at("loop"), b"x").is_err());
        assert_eq!((names(place.path()).len(), names(&at("far"))), (4, vec!["real".to_string()]));
    }

    #[test]
    fn what_is_no_regular_file_is_written_into() {
        let place = tempfile::tempdir().unwrap();
        let pipe = place.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read_to_string(pipe).unwrap()
        });
        write(&pipe, b"through").unwrap();
        assert_eq!(reader.join().unwrap(), "through");
        write(Path::new("/dev/null"), b"away").unwrap();
        assert_eq!(names(place.path()), ["pipe"]);
        for (path, kind) in
            [(place.path(), io::ErrorKind::IsADirectory), (Path::new("/no/such/file"), io::ErrorKind::NotFound)]
        {
            assert_eq!(write(path, b"x").unwrap_err().kind(), kind);
        }
        #[cfg(target_os = "linux")]
        assert_eq!(write(Path::new("/dev/full"), b"x").unwrap_err().kind(), io::ErrorKind::StorageFull);
        let mut device = String::new();
        File::open("/dev/null").unwrap().read_to_string(&mut device).unwrap();
        assert!(device.is_empty() && !fs::symlink_metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn what_is_dropped_leaves_the_old_file_and_killed_writers_leave_nothing_for_long() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a");
        fs::write(&path, "old").unwrap();
        let left = place.path().join(".a.killed.part");
        fs::write(&left, "half").unwrap();
        let mut half = WholeFile::create(&path).unwrap();
        half.write_all(b"half").unwrap();
        assert!(left.exists(), "it may be another process's that has just begun");
        drop(half);
        File::open(&left).unwrap().set_modified(std::time::SystemTime::now() - 2 * STALE).unwrap();
        let alive = File::open(&left).unwrap();
        alive.lock().unwrap();
        drop(WholeFile::create(&path).unwrap());
        assert!(left.exists(), "somebody is writing to it");
        drop(alive);
        drop(WholeFile::create(&path).unwrap());
        assert_eq!((names(place.path()), fs::read(&path).unwrap()), (vec!["a".to_string()], b"old".to_vec()));
        let other = place.path().join("b");
        let late = WholeFile::create_new(&other).unwrap();
        fs::write(&other, "mine").unwrap();
        for refused in [late.commit().unwrap_err(), WholeFile::create_new(&other).unwrap_err()] {
            assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        }
        assert_eq!(
            (fs::read(&other).unwrap(), names(place.path())),
            (b"mine".to_vec(), vec!["a".to_string(), "b".to_string()])
        );
    }
}
