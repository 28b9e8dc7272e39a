//! An entry of the cache that is memory-mapped: a file that is written as a stream, appears under
//! its key only when it is whole, and is checked whole when it is opened. The content is the
//! business of those who keep it: [examples](crate::store) and learned tokenizers.
//!
//! Layout, little-endian: eight bytes that name the kind and its version, SHA-256 of the body, the
//! key under which the entry is kept, and SHA-256 of these three; then the body.
//!
//! An entry is used when its header and its body match their digests and its key is the one asked
//! for. Any other entry (damaged, foreign, of another version) is built again, with a notice.
//! Checking reads less than the source from which the key is computed.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::ops::Deref;
use std::path::Path;

use kiln_core::error::{Error, Result};
use kiln_core::files::{hex, read_error};
use kiln_core::signals;
use kiln_core::whole_file::{WholeFile, remove_stale};
use memmap2::Mmap;
use sha2::{Digest, Sha256};
use tokenizers::parallelism::MaybeParallelIterator;

/// Everything on which an entry of the cache depends, as SHA-256.
pub(crate) type Key = [u8; 32];

/// A kind of entry, in one version of its content.
pub(crate) struct Kind {
    /// The first bytes of the file.
    pub magic: &'static [u8; 8],
    /// Its name in messages.
    pub name: &'static str,
    /// The ending of the file's name.
    pub extension: &'static str,
}

/// Bytes before the body.
const HEADER: usize = 8 + 3 * 32;

impl Kind {
    /// The value that `open` gives for the entry that `folder` keeps under `key`. If there is no
    /// such entry or an unusable one, `fill` writes it first.
    ///
    /// # Errors
    /// An error of `fill` or of `open`, after which nothing is left of the entry; a cache that
    /// cannot be written; a signal.
    pub fn build_or_open<T>(
        &self,
        folder: &Path,
        key: &Key,
        open: impl Fn(Mapped, &Path) -> Result<T>,
        fill: impl FnOnce(&mut Body<'_>) -> Result<()>,
    ) -> Result<T> {
        let path = folder.join(format!("{}.{}", hex(key), self.extension));
        make_way(&path)?;
        if path.is_file() {
            let kept = File::open(&path).map_err(|error| read_error(&path, &error));
            match kept.and_then(|file| open(self.map(&file, key, &path)?, &path)) {
                Ok(store) => return Ok(store),
                Err(error) if signals::received().is_some() => return Err(error),
                // A damaged cache is no reason to fail: what it was made of is still there.
                Err(error) => tracing::warn!("{error}; it is made again"),
            }
        }
        let io = |error: io::Error| cache_error(folder, &error);
        fs::create_dir_all(folder).map_err(io)?;
        remove_stale(folder, ".");
        // Whoever may write to the folder may replace the entries of others, and the file of
        // another may not be writable.
        let _ = fs::remove_file(&path);
        let whole = WholeFile::create(&path).map_err(io)?;
        self.write(whole.file(), key, &io, fill)?;
        let store = open(self.map(whole.file(), key, &path)?, &path)?;
        whole.commit().map_err(io)?;
        Ok(store)
    }

    /// A mapped file that nobody else sees and that goes away with the last map of it.
    ///
    /// # Errors
    /// An error of `fill` or of the operating system; a signal.
    pub fn temporary(&self, fill: impl FnOnce(&mut Body<'_>) -> Result<()>) -> Result<Mapped> {
        const KEY: Key = [0; 32];
        let io = |error: io::Error| Error::io("write a temporary file", &error);
        let file = tempfile::tempfile().map_err(io)?;
        self.write(&file, &KEY, &io, fill)?;
        self.map(&file, &KEY, Path::new("a temporary file"))
    }

    /// Writes an entry of this kind to `file`, which is empty; `io` makes errors of the system's.
    fn write(
        &self,
        mut file: &File,
        key: &Key,
        io: &dyn Fn(io::Error) -> Error,
        fill: impl FnOnce(&mut Body<'_>) -> Result<()>,
    ) -> Result<()> {
        file.seek(SeekFrom::Start(HEADER as u64)).map_err(io)?;
        let mut body =
            Body { file: BufWriter::with_capacity(BLOCK, Hashed { file, digest: BodyDigest::default() }), len: 0, io };
        fill(&mut body)?;
        let body = body.file.into_inner().map_err(|error| io(error.into_error()))?;
        let mut header = self.magic.to_vec();
        header.extend(body.digest.finish());
        header.extend(key);
        header.extend(Sha256::digest(&header));
        file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(&header)).map_err(io)
    }

    /// Maps `file`, which is the entry of `key` and which messages call `path`.
    ///
    /// # Errors
    /// A file that cannot be mapped, is of another kind or version, has another key, or does not
    /// match its digests; a signal.
    fn map(&self, file: &File, key: &Key, path: &Path) -> Result<Mapped> {
        // SAFETY: the map is read-only, and nothing of Kiln's writes to the file again: it is whole
        // here, or in place already. As with every mapped file, whoever truncates it from outside
        // stops this process.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(file) }.map_err(|error| read_error(path, &error))?;
        if map.len() < HEADER || &map[..8] != self.magic {
            return Err(damaged(path, format!("not a {} of this version", self.name)));
        }
        let (header, body) = map.split_at(HEADER);
        let (hashed, hash) = header.split_at(HEADER - 32);
        if Sha256::digest(hashed)[..] != *hash {
            return Err(damaged(path, "damaged header"));
        }
        let (of_body, found) = hashed[8..].split_at(32);
        if found != key {
            return Err(damaged(path, format!("it holds the {} {}", self.name, hex(found))));
        }
        if digest_of(body)? != of_body {
            return Err(damaged(path, format!("damaged: its {} bytes are not those that were written", body.len())));
        }
        Ok(Mapped(map))
    }
}

/// A mapped entry; dereferences to its body.
#[derive(Debug)]
pub(crate) struct Mapped(Mmap);

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0[HEADER..]
    }
}

/// The body of an entry that is being written.
pub(crate) struct Body<'a> {
    file: BufWriter<Hashed<'a>>,
    len: u64,
    io: &'a dyn Fn(io::Error) -> Error,
}

impl Body<'_> {
    /// Appends `bytes`.
    ///
    /// # Errors
    /// The operating system's.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.len += bytes.len() as u64;
        self.file.write_all(bytes).map_err(self.io)
    }

    /// Bytes so far.
    pub fn len(&self) -> u64 {
        self.len
    }
}

/// A file with the digest of what is written to it.
struct Hashed<'a> {
    file: &'a File,
    digest: BodyDigest,
}

impl Write for Hashed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.digest.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The digest of a body is SHA-256 over the SHA-256 of each of its blocks of this many bytes, so
/// that all cores can check it.
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

/// Removes an empty folder that stands where a file of the cache belongs.
///
/// # Errors
/// A folder that something is in: it is not the cache's.
pub fn make_way(path: &Path) -> Result<()> {
    let is_folder = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir());
    if is_folder && fs::remove_dir(path).is_err() {
        return Err(
            damaged(path, "expected a file of the cache, got a folder").help("move it away: nothing of Kiln's made it")
        );
    }
    Ok(())
}

/// The error for a file at `path` that cannot be used, and why.
pub(crate) fn damaged(path: &Path, what: impl std::fmt::Display) -> Error {
    Error::data(format!("{}: {what}", path.display()))
}

/// The error for a cache that cannot be written.
fn cache_error(folder: &Path, error: &io::Error) -> Error {
    Error::io(format!("write the cache {}", folder.display()), error)
        .help("set KILN_CACHE to a folder that can be written and has room")
}

/// The error for an entry whose building was stopped.
pub(crate) fn interrupted() -> Error {
    const MESSAGE: &str = "tokenising was interrupted";
    let error = signals::received().map_or_else(|| Error::data(MESSAGE), |signal| signal.error(MESSAGE));
    error.help("nothing was kept")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::{Duration, SystemTime};

    use super::*;

    const KIND: Kind = Kind { magic: b"KILNTEST", name: "test", extension: "test" };

    /// Opens or makes the entry of `key` with `bytes`; its content, and whether it was made.
    fn kept(folder: &Path, key: &Key, bytes: &[u8]) -> (Vec<u8>, bool) {
        let mut made = false;
        let mapped = KIND.build_or_open(
            folder,
            key,
            |mapped, _| Ok(mapped),
            |body| {
                made = true;
                bytes.chunks(7919).try_for_each(|some| body.write(some))
            },
        );
        (mapped.unwrap().to_vec(), made)
    }

    fn path(folder: &Path, key: &Key) -> std::path::PathBuf {
        folder.join(format!("{}.test", hex(key)))
    }

    fn content() -> Vec<u8> {
        (0..2 * BLOCK + 4321).map(|i| (i * i / 7) as u8).collect()
    }

    #[test]
    fn every_damaged_byte_is_found_and_the_file_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let (key, content) = ([7; 32], content());
        let path = path(folder.path(), &key);
        assert_eq!(kept(folder.path(), &key, &content), (content.clone(), true));
        assert!(!kept(folder.path(), &key, &content).1, "it is found again");
        let whole = fs::read(&path).unwrap();
        for at in [0, 8, 16, 50, 80, HEADER, HEADER + BLOCK - 1, HEADER + BLOCK, whole.len() - 1] {
            let mut flipped = whole.clone();
            flipped[at] ^= 4;
            fs::write(&path, &flipped).unwrap();
            assert_eq!(kept(folder.path(), &key, &content), (content.clone(), true), "byte {at}");
        }
        for short in [0, 8, HEADER - 1, whole.len() - 1] {
            fs::write(&path, &whole[..short]).unwrap();
            assert_eq!(kept(folder.path(), &key, &content), (content.clone(), true), "cut to {short}");
        }
        assert!(fs::read(&path).unwrap() == whole);
    }

    #[test]
    fn a_folder_in_the_place_of_a_file_makes_way_when_it_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(format!("{}.test", hex(&[1; 32])));
        fs::create_dir(&path).unwrap();
        assert_eq!(kept(folder.path(), &[1; 32], b"one"), (b"one".to_vec(), true));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("mine"), "").unwrap();
        let error = KIND.build_or_open(folder.path(), &[1; 32], |mapped, _| Ok(mapped), |_| Ok(())).unwrap_err();
        assert_eq!(error.exit_code(), 3);
        assert!(error.to_string().contains("expected a file of the cache, got a folder"), "{error}");
        assert!(path.join("mine").exists());
    }

    #[test]
    fn another_entry_under_the_name_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let [one, two] = [[1; 32], [2; 32]];
        kept(folder.path(), &one, b"one");
        kept(folder.path(), &two, b"two");
        fs::copy(path(folder.path(), &one), path(folder.path(), &two)).unwrap();
        let file = File::open(path(folder.path(), &two)).unwrap();
        let error = KIND.map(&file, &two, Path::new("two")).unwrap_err().to_string();
        assert!(error.contains("it holds the test 0101"), "{error}");
        assert_eq!(kept(folder.path(), &two, b"two"), (b"two".to_vec(), true));
        // Of another version, with a header that is right.
        let other = Kind { magic: b"KILNTES0", ..KIND };
        fs::remove_file(path(folder.path(), &two)).unwrap();
        other.build_or_open(folder.path(), &two, |mapped, _| Ok(mapped), |body| body.write(b"old")).unwrap();
        assert_eq!(kept(folder.path(), &two, b"two"), (b"two".to_vec(), true));
    }

    #[test]
    fn the_digest_of_a_stream_is_that_of_its_blocks() {
        for len in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1] {
            let mut stream = BodyDigest::default();
            content()[..len].chunks(1000).for_each(|some| stream.update(some));
            assert_eq!(stream.finish(), digest_of(&content()[..len]).unwrap(), "{len}");
        }
    }

    #[test]
    fn a_content_that_cannot_be_opened_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let refuse = |_, path: &Path| Err::<(), _>(damaged(path, "no content"));
        let error = KIND.build_or_open(folder.path(), &[1; 32], refuse, |body| body.write(b"one")).unwrap_err();
        assert!(error.to_string().contains("no content"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn two_that_build_an_entry_at_once_both_have_it() {
        let folder = tempfile::tempdir().unwrap();
        let build = |second: bool| {
            let fill = |body: &mut Body<'_>| {
                body.write(b"con")?;
                if second {
                    assert_eq!(kept(folder.path(), &[1; 32], b"content"), (b"content".to_vec(), true));
                }
                body.write(b"tent")
            };
            KIND.build_or_open(folder.path(), &[1; 32], |mapped, _| Ok(mapped.to_vec()), fill).unwrap()
        };
        assert_eq!(build(true), b"content");
        assert_eq!(kept(folder.path(), &[1; 32], b"content"), (b"content".to_vec(), false));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
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
    fn the_next_entry_removes_what_killed_processes_left() {
        let folder = tempfile::tempdir().unwrap();
        let [left, young, live] =
            [".a.left.part", ".a.young.part", ".b.live.part"].map(|name| folder.path().join(name));
        let old = SystemTime::now() - Duration::from_secs(100);
        for path in [&left, &young, &live] {
            fs::write(path, "").unwrap();
        }
        let held = File::options().write(true).open(&live).unwrap();
        held.lock().unwrap();
        held.set_modified(old).unwrap();
        File::options().write(true).open(&left).unwrap().set_modified(old).unwrap();
        kept(folder.path(), &[1; 32], b"one");
        assert_eq!((left.exists(), young.exists(), live.exists()), (false, true, true));
    }
}
