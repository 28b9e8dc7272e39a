//! A file of the cache that is memory-mapped: how it is written as a stream and comes to be whole or not at all, and how it
//! is told from a damaged one. What stands in it is the business of the stores that keep ids of a corpus, rows of a table,
//! tokenized rows and windows.
//!
//! Layout, little-endian: the header, which is eight bytes that name the kind and its version, `N` numbers (u64), the digest of
//! the body, the key under which the file is kept, and SHA-256 of all that; then the body, which is what the store writes and
//! then its index.
//!
//! A file of the cache is used when its header and its body match their digests and its name is its key; any other is made
//! again. The whole body is checked when it is opened: that reads less than what the key is made of, which is the source.

use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use memmap2::Mmap;
use sha2::{Digest, Sha256};
use tokenizers::parallelism::MaybeParallelIterator;

use crate::base::error::{Error, Result};
use crate::base::signals;

/// A kind of file, in one version of its layout.
pub(crate) struct Kind<const N: usize> {
    /// What the file begins with.
    pub magic: &'static [u8; 8],
    /// What messages call it.
    pub name: &'static str,
}

impl<const N: usize> Kind<N> {
    /// Bytes before the body.
    pub const HEADER: usize = Self::CONTENT + 64;

    /// Bytes of the header that tell what the file holds: all but its key and the header's own digest.
    const CONTENT: usize = 8 + 8 * N + 32;

    /// What `open` makes of the file that `folder` keeps under `key`, with the ending `extension`. `fill` writes it first where
    /// there is none or a damaged one, and returns the numbers of the header.
    ///
    /// # Errors
    /// Those of `fill`, after which nothing is left of the file; a cache that cannot be written; a signal.
    pub fn build_or_open<T>(
        &self,
        folder: &Path,
        key: &Key,
        extension: &str,
        open: impl Fn(&Path) -> Result<T>,
        fill: impl FnOnce(&mut Writer<'_>) -> Result<[u64; N]>,
    ) -> Result<T> {
        let path = folder.join(format!("{}.{extension}", hex(key)));
        if path.is_file() {
            match open(&path) {
                Ok(store) => return Ok(store),
                Err(error) if signals::received().is_some() => return Err(error),
                // A damaged cache is no reason to fail: what it was made of is still there.
                Err(error) => tracing::warn!("{error}; it is made again"),
            }
        }
        let io = |error: io::Error| cache_error(folder, &error);
        fs::create_dir_all(folder).map_err(io)?;
        remove_abandoned(folder);
        let aside = shared_temporary(folder).map_err(io)?;
        self.write(aside.as_file(), key, folder, &io, fill)?;
        aside.as_file().sync_all().map_err(io)?;
        aside.persist(&path).map_err(|error| io(error.error))?;
        open(&path)
    }

    /// Writes a file of this kind to `file`, which is empty, with help from `folder` for the index; `io` makes errors of the
    /// system's.
    ///
    /// # Errors
    /// Those of `fill` and of the system.
    pub fn write(
        &self,
        mut file: &File,
        key: &Key,
        folder: &Path,
        io: &dyn Fn(io::Error) -> Error,
        fill: impl FnOnce(&mut Writer<'_>) -> Result<[u64; N]>,
    ) -> Result<()> {
        file.seek(SeekFrom::Start(Self::HEADER as u64)).map_err(io)?;
        let body = Body { file, digest: BodyDigest::default() };
        let mut writer = Writer { body: BufWriter::with_capacity(BLOCK, body), index: None, folder, io };
        let numbers = fill(&mut writer)?;
        let Writer { mut body, index, .. } = writer;
        if let Some(index) = index {
            let mut index = index.into_inner().map_err(|error| io(error.into_error()))?;
            index.rewind().and_then(|()| io::copy(&mut index, &mut body)).map_err(io)?;
        }
        let body = body.into_inner().map_err(|error| io(error.into_error()))?;
        let mut header = self.magic.to_vec();
        header.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        header.extend(body.digest.finish());
        header.extend(key);
        header.extend(Sha256::digest(&header));
        file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(&header)).map_err(io)
    }

    /// Maps the file at `path`, whose name is its key.
    ///
    /// # Errors
    /// A file that cannot be read, is none of this kind, has another key, or does not match its digests; a signal.
    pub fn open(&self, path: &Path) -> Result<Mapped<N>> {
        let mapped = self.map(&File::open(path).map_err(|error| read_error(path, &error))?, path)?;
        let key = hex(&mapped.map[Self::CONTENT..Self::CONTENT + 32]);
        match path.file_stem().is_some_and(|stem| stem == key.as_str()) {
            true => Ok(mapped),
            false => Err(damaged(path, format!("it holds the {} {key}", self.name))),
        }
    }

    /// Maps `file`, which messages call `path`.
    ///
    /// # Errors
    /// As [`open`](Self::open), of any key.
    pub fn map(&self, file: &File, path: &Path) -> Result<Mapped<N>> {
        // SAFETY: the map is read-only, and the file was put in place whole; nothing of Kiln's writes to it again. As with
        // every mapped file, whoever truncates it from outside stops this process.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(file) }.map_err(|error| read_error(path, &error))?;
        if map.len() < Self::HEADER || &map[..8] != self.magic {
            return Err(damaged(path, format!("not a {} of this version", self.name)));
        }
        let (header, body) = map.split_at(Self::HEADER);
        let (hashed, hash) = header.split_at(Self::HEADER - 32);
        if Sha256::digest(hashed)[..] != *hash {
            return Err(damaged(path, "damaged header"));
        }
        if digest_of(body)? != header[Self::CONTENT - 32..Self::CONTENT] {
            return Err(damaged(path, format!("damaged: its {} bytes are not those that were written", body.len())));
        }
        let numbers = std::array::from_fn(|number| u64_at(&map, 8 + 8 * number));
        Ok(Mapped { map, numbers })
    }
}

/// A mapped file; dereferences to what follows its header.
#[derive(Debug)]
pub(crate) struct Mapped<const N: usize> {
    map: Mmap,
    /// The numbers of its header.
    pub numbers: [u64; N],
}

impl<const N: usize> Mapped<N> {
    /// SHA-256 of what the file holds, whatever key it is kept under.
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(&self.map[..Kind::<N>::CONTENT]).into()
    }

    /// Fails unless `bytes` follow the header; none stands for more than there can be.
    ///
    /// # Errors
    /// A file of another size.
    pub fn has_bytes(&self, bytes: Option<u64>, path: &Path) -> Result<()> {
        match bytes.and_then(|bytes| bytes.checked_add(Kind::<N>::HEADER as u64)) {
            Some(bytes) if bytes == self.map.len() as u64 => Ok(()),
            Some(bytes) => Err(damaged(path, format!("expected {bytes} bytes, got {}", self.map.len()))),
            None => Err(damaged(path, format!("a header that cannot be: {:?}", self.numbers))),
        }
    }
}

impl<const N: usize> Deref for Mapped<N> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map[Kind::<N>::HEADER..]
    }
}

/// Takes the bytes of a store one after another.
pub(crate) struct Writer<'a> {
    body: BufWriter<Body<'a>>,
    /// What comes after everything else. Until then it is in a file of its own, so that memory does not grow with it.
    index: Option<BufWriter<File>>,
    folder: &'a Path,
    io: &'a dyn Fn(io::Error) -> Error,
}

impl Writer<'_> {
    /// Writes `bytes`.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.body.write_all(bytes).map_err(self.io)
    }

    /// Adds `bytes` to the index.
    ///
    /// # Errors
    /// The system's.
    pub fn index(&mut self, bytes: &[u8]) -> Result<()> {
        let index = match &mut self.index {
            Some(index) => index,
            none => none.insert(BufWriter::new(tempfile::tempfile_in(self.folder).map_err(self.io)?)),
        };
        index.write_all(bytes).map_err(self.io)
    }
}

/// The body of a file that is being written.
struct Body<'a> {
    file: &'a File,
    digest: BodyDigest,
}

impl Write for Body<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.digest.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The digest of a body is SHA-256 over the SHA-256 of each of its blocks of this many bytes, so that all cores can check it.
const BLOCK: usize = 1 << 20;

/// The digest of a body whose bytes come one after another.
#[derive(Default)]
struct BodyDigest {
    block: Sha256,
    /// Bytes of the block so far.
    filled: usize,
    blocks: Sha256,
}

impl BodyDigest {
    fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (some, rest) = bytes.split_at(bytes.len().min(BLOCK - self.filled));
            self.block.update(some);
            self.filled += some.len();
            if self.filled == BLOCK {
                self.blocks.update(self.block.finalize_reset());
                self.filled = 0;
            }
            bytes = rest;
        }
    }

    fn finish(mut self) -> [u8; 32] {
        if self.filled > 0 {
            self.blocks.update(self.block.finalize());
        }
        self.blocks.finalize().into()
    }
}

/// The digest of a whole body, on all cores.
///
/// # Errors
/// A signal, since a large body takes long.
fn digest_of(body: &[u8]) -> Result<[u8; 32]> {
    let mut blocks = Sha256::new();
    for some in body.chunks(64 * BLOCK) {
        if signals::received().is_some() {
            return Err(interrupted());
        }
        let digests = some.chunks(BLOCK).collect::<Vec<_>>().into_maybe_par_iter();
        for digest in digests.map(Sha256::digest).collect::<Vec<_>>() {
            blocks.update(digest);
        }
    }
    Ok(blocks.finalize().into())
}

/// A temporary file in `folder` that other users may read as far as the umask allows, and that is known to be in use as long
/// as this process lives.
fn shared_temporary(folder: &Path) -> io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let file = builder.prefix(TEMPORARY).tempfile_in(folder)?;
    // The lock ends with the process, however that ends. Where a file system has no locks, nothing tells an unfinished file.
    let _ = file.as_file().try_lock();
    Ok(file)
}

/// What the name of a file begins with that is not whole yet.
const TEMPORARY: &str = ".tmp";

/// Whether the file at `path` is not whole yet and a process writes to it.
pub(crate) fn is_being_written(path: &Path) -> bool {
    let locked = |file: File| matches!(file.try_lock(), Err(TryLockError::WouldBlock));
    is_temporary(path) && File::open(path).is_ok_and(locked)
}

fn is_temporary(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(TEMPORARY))
}

/// Removes what killed processes have left in `folder`. A young file is spared: it may not have its lock yet.
fn remove_abandoned(folder: &Path) {
    const YOUNG: Duration = Duration::from_secs(60);
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let age = || fs::metadata(&path).and_then(|metadata| metadata.modified()).ok()?.elapsed().ok();
        if is_temporary(&path) && age().is_some_and(|age| age > YOUNG) && !is_being_written(&path) {
            // It is in nobody's way: what cannot be removed stays.
            let _ = fs::remove_file(&path);
        }
    }
}

/// The u32 at byte `at`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].as_chunks().0[0])
}

/// The u64 at byte `at`.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].as_chunks().0[0])
}

/// Token ids of `width` bytes each: 2 or 4.
pub(crate) fn ids(bytes: &[u8], width: usize) -> Vec<i32> {
    match width {
        2 => bytes.as_chunks().0.iter().map(|id| i32::from(u16::from_le_bytes(*id))).collect(),
        _ => bytes.as_chunks().0.iter().map(|id| i32::from_le_bytes(*id)).collect(),
    }
}

/// The error for a file at `path` that cannot be used, and why.
pub(crate) fn damaged(path: &Path, what: impl std::fmt::Display) -> Error {
    Error::data(format!("{}: {what}", path.display()))
}

/// The error for a cache that cannot be written.
pub(crate) fn cache_error(folder: &Path, error: &io::Error) -> Error {
    Error::io(format!("write the cache {}", folder.display()), error)
        .help("set KILN_CACHE to a folder that can be written and has room")
}

/// The error for a store that somebody has asked to leave.
pub(crate) fn interrupted() -> Error {
    const MESSAGE: &str = "tokenising was interrupted";
    let error = signals::received().map_or_else(|| Error::data(MESSAGE), |signal| signal.error(MESSAGE));
    error.help("nothing was kept")
}

fn read_error(path: &Path, error: &io::Error) -> Error {
    Error::io(format!("read {}", path.display()), error)
}

/// Adds the content of `files` to a key.
///
/// # Errors
/// A file that cannot be read; a signal, since much takes long.
pub(crate) fn hash_files(hash: &mut Sha256, files: &[PathBuf]) -> Result<()> {
    let mut buffer = vec![0; 1 << 18];
    for path in files {
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

/// What a file of the cache depends on, as SHA-256.
pub(crate) type Key = [u8; 32];

/// A key as the name of a file.
pub(crate) fn hex(key: &[u8]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Files that are read twice, first for the key and then for what is kept under it: what changed in between would be kept
/// under a key that is not its own.
pub(crate) struct Sources<'a> {
    files: &'a [PathBuf],
    stamps: Vec<Stamp>,
}

/// What changes when a file changes: size, inode and times.
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

    const KIND: Kind<1> = Kind { magic: b"KILNTEST", name: "test" };

    /// Opens or makes the file of `key` with `bytes`; what it holds, and whether it was made.
    fn kept(folder: &Path, key: &Key, bytes: &[u8]) -> (Vec<u8>, bool) {
        let mut made = false;
        let mapped = KIND.build_or_open(
            folder,
            key,
            "test",
            |path| KIND.open(path),
            |writer| {
                made = true;
                let (body, index) = bytes.split_at(bytes.len() / 2);
                body.chunks(7919).try_for_each(|some| writer.write(some))?;
                writer.index(index)?;
                Ok([bytes.len() as u64])
            },
        );
        (mapped.unwrap().to_vec(), made)
    }

    fn content() -> Vec<u8> {
        (0..2 * BLOCK + 4321).map(|i| (i * i / 7) as u8).collect()
    }

    #[test]
    fn every_damaged_byte_is_found_and_the_file_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let (key, content) = ([7; 32], content());
        let path = folder.path().join(format!("{}.test", hex(&key)));
        assert_eq!(kept(folder.path(), &key, &content), (content.clone(), true));
        assert!(!kept(folder.path(), &key, &content).1, "it is found again");
        let whole = fs::read(&path).unwrap();
        let header = Kind::<1>::HEADER;
        for at in [0, 8, 16, 50, 80, header, header + BLOCK - 1, header + BLOCK, whole.len() - 1] {
            let mut flipped = whole.clone();
            flipped[at] ^= 4;
            fs::write(&path, &flipped).unwrap();
            assert_eq!(kept(folder.path(), &key, &content), (content.clone(), true), "byte {at}");
        }
        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(kept(folder.path(), &key, &content), (content, true), "cut short");
        assert!(fs::read(&path).unwrap() == whole);
    }

    #[test]
    fn another_entry_under_the_name_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = |key: &Key| folder.path().join(format!("{}.test", hex(key)));
        kept(folder.path(), &[1; 32], b"one");
        kept(folder.path(), &[2; 32], b"two");
        fs::copy(path(&[1; 32]), path(&[2; 32])).unwrap();
        assert!(KIND.open(&path(&[2; 32])).unwrap_err().to_string().contains("it holds the test 0101"));
        assert_eq!(kept(folder.path(), &[2; 32], b"two"), (b"two".to_vec(), true));
    }

    #[test]
    fn equal_content_has_an_equal_digest_under_any_key() {
        let folder = tempfile::tempdir().unwrap();
        let digest = |key: Key, bytes: &[u8]| {
            kept(folder.path(), &key, bytes);
            KIND.open(&folder.path().join(format!("{}.test", hex(&key)))).unwrap().digest()
        };
        assert_eq!(digest([1; 32], &content()), digest([2; 32], &content()));
        assert_ne!(digest([3; 32], b"three"), digest([4; 32], b"four"));
        // What is checked block by block is what was written as a stream.
        for len in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1] {
            let mut stream = BodyDigest::default();
            content()[..len].chunks(1000).for_each(|some| stream.update(some));
            assert_eq!(stream.finish(), digest_of(&content()[..len]).unwrap(), "{len}");
        }
    }

    #[test]
    #[cfg(unix)]
    fn a_file_has_the_mode_that_the_umask_leaves() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        kept(folder.path(), &[1; 32], b"one");
        fs::write(folder.path().join("plain"), "").unwrap();
        let modes = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().permissions());
        let modes = modes.map(|permissions| format!("{:o}", permissions.mode())).collect::<Vec<_>>();
        assert_eq!(modes[0], modes[1]);
    }

    #[test]
    fn what_a_killed_process_left_goes_and_what_is_written_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (left, young) = (folder.path().join(".tmpleft"), folder.path().join(".tmpyoung"));
        fs::write(&young, "").unwrap();
        let old = SystemTime::now() - Duration::from_secs(100);
        fs::write(&left, "").unwrap();
        File::options().write(true).open(&left).unwrap().set_modified(old).unwrap();
        let live = shared_temporary(folder.path()).unwrap();
        live.as_file().set_modified(old).unwrap();
        assert!(is_being_written(live.path()) && !is_being_written(&left));
        remove_abandoned(folder.path());
        assert_eq!((left.exists(), young.exists(), live.path().exists()), (false, true, true));
    }

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
