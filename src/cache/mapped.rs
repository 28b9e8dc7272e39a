//! A file of the cache that is memory-mapped: how it is written as a stream and comes to be whole or not at all, and how it
//! is told from a damaged one. What stands in it is the business of the stores that keep ids of a corpus, rows of a table,
//! tokenized rows and windows.
//!
//! Layout, little-endian: eight bytes that name the kind and its version, `N` numbers (u64), SHA-256 of both; then what the
//! store writes, and then its index.

use std::fs::{self, File};
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Deref;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::signals;

/// A kind of file, in one version of its layout.
pub(crate) struct Kind<const N: usize> {
    /// What the file begins with.
    pub magic: &'static [u8; 8],
    /// What messages call it.
    pub name: &'static str,
}

impl<const N: usize> Kind<N> {
    /// Bytes before those of the store.
    pub const HEADER: usize = 8 + 8 * N + 32;

    /// What `open` makes of the file at `path`, which `fill` writes first where there is none or a damaged one. `fill`
    /// returns the numbers of the header.
    ///
    /// # Errors
    /// Those of `fill`, after which nothing is left of the file; a cache that cannot be written.
    pub fn build_or_open<T>(
        &self,
        path: &Path,
        open: impl Fn(&Path) -> Result<T>,
        fill: impl FnOnce(&mut Writer<'_>) -> Result<[u64; N]>,
    ) -> Result<T> {
        if path.is_file() {
            match open(path) {
                Ok(store) => return Ok(store),
                // A damaged cache is no reason to fail: what it was made of is still there.
                Err(error) => eprintln!("warning: {error}; tokenising again"),
            }
        }
        let folder = path.parent().unwrap_or(Path::new("."));
        let io = |error: std::io::Error| cache_error(folder, &error);
        fs::create_dir_all(folder).map_err(io)?;
        let aside = tempfile::NamedTempFile::new_in(folder).map_err(io)?;
        self.write(aside.as_file(), folder, &io, fill)?;
        aside.as_file().sync_all().map_err(io)?;
        aside.persist(path).map_err(|error| io(error.error))?;
        open(path)
    }

    /// Writes a file of this kind to `file`, with help from `folder` for the index; `io` makes errors of the system's.
    ///
    /// # Errors
    /// Those of `fill` and of the system.
    pub fn write(
        &self,
        file: &File,
        folder: &Path,
        io: &dyn Fn(std::io::Error) -> Error,
        fill: impl FnOnce(&mut Writer<'_>) -> Result<[u64; N]>,
    ) -> Result<()> {
        let mut writer = Writer { file: BufWriter::with_capacity(1 << 20, file), index: None, folder, io };
        writer.write(&vec![0; Self::HEADER])?;
        let numbers = fill(&mut writer)?;
        let Writer { mut file, index, .. } = writer;
        if let Some(index) = index {
            let mut index = index.into_inner().map_err(|error| io(error.into_error()))?;
            index.rewind().and_then(|()| std::io::copy(&mut index, &mut file)).map_err(io)?;
        }
        let mut header = self.magic.to_vec();
        header.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        header.extend(Sha256::digest(&header));
        file.seek(SeekFrom::Start(0)).map_err(io)?;
        file.write_all(&header).and_then(|()| file.flush()).map_err(io)
    }

    /// Maps the file at `path`.
    ///
    /// # Errors
    /// A file that cannot be read, is none of this kind, or whose header does not match its checksum.
    pub fn open(&self, path: &Path) -> Result<Mapped<N>> {
        self.map(&File::open(path).map_err(|error| read_error(path, &error))?, path)
    }

    /// Maps `file`, which messages call `path`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn map(&self, file: &File, path: &Path) -> Result<Mapped<N>> {
        // SAFETY: the map is read-only, and the file was put in place whole; nothing of Kiln's writes to it again. As with
        // every mapped file, whoever truncates it from outside stops this process.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(file) }.map_err(|error| read_error(path, &error))?;
        if map.len() < Self::HEADER || &map[..8] != self.magic {
            return Err(damaged(path, format!("not a {} of this version", self.name)));
        }
        let (hashed, hash) = map[..Self::HEADER].split_at(8 + 8 * N);
        if Sha256::digest(hashed)[..] != *hash {
            return Err(damaged(path, "damaged header"));
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
    file: BufWriter<&'a File>,
    /// What comes after everything else. Until then it is in a file of its own, so that memory does not grow with it.
    index: Option<BufWriter<File>>,
    folder: &'a Path,
    io: &'a dyn Fn(std::io::Error) -> Error,
}

impl Writer<'_> {
    /// Writes `bytes`.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(self.io)
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
pub(crate) fn cache_error(folder: &Path, error: &std::io::Error) -> Error {
    Error::io(format!("write the cache {}", folder.display()), error)
        .help("set KILN_CACHE to a folder that can be written and has room")
}

/// The error for a store that somebody has asked to leave.
pub(crate) fn interrupted() -> Error {
    Error::data("tokenising was interrupted").help("nothing was kept")
}

fn read_error(path: &Path, error: &std::io::Error) -> Error {
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
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(read_error(path, &error)),
            }
        }
        // The length after the content tells files apart: "ab" + "c" is not "a" + "bc".
        hash.update(len.to_le_bytes());
    }
    Ok(())
}

/// A key as the name of a file.
pub(crate) fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
