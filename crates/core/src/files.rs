//! Files that are written whole or not at all, and checksums of files.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result, printable};
use crate::whole_file;
use crate::words::json_words;

/// No config that people write or programs generate is longer, in bytes.
pub const MAX_CONFIG: u64 = 16 << 20;

thread_local! {
    /// This thread is reading a file whole.
    static READS: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is reading a file whole: a lack of memory for it is then an error that names
/// the file.
pub fn may_lack_memory() -> bool {
    // A thread whose locals are gone reads no file.
    READS.try_with(Cell::get).unwrap_or(false)
}

fn reading<T>(read: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    READS.set(true);
    let content = read();
    READS.set(false);
    content
}

/// The content of the regular file at `path`: a pipe or a device, which may have no end, is
/// refused.
///
/// # Errors
/// The operating system's; anything but a regular file.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    if std::fs::metadata(path)?.is_file() {
        reading(|| std::fs::read(path))
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "it is no regular file"))
    }
}

/// The byte-order mark: at the start of a file it says that the file is UTF-8 and is no part of the
/// text.
pub const MARK: char = '\u{feff}';

/// [`MARK`] in UTF-8.
pub const MARK_BYTES: [u8; MARK.len_utf8()] = [0xef, 0xbb, 0xbf];

/// The `text` of a file without the byte-order mark at its start.
pub fn without_mark(text: &str) -> &str {
    text.strip_prefix(MARK).unwrap_or(text)
}

/// The encoding that the byte at `offset` of a text tells when it is none of UTF-8: those of the
/// byte-order mark in UTF-16.
pub fn utf16(offset: usize, byte: u8) -> Option<&'static str> {
    match (offset, byte) {
        (0, 0xff) => Some("UTF-16 (little-endian, by its byte-order mark)"),
        (0, 0xfe) => Some("UTF-16 (big-endian, by its byte-order mark)"),
        _ => None,
    }
}

/// How a file in UTF-16 becomes one in UTF-8.
pub const FROM_UTF16: &str =
    "convert it: `iconv -f UTF-16 -t UTF-8 FILE > NEW`, or save it as UTF-8 (in Excel, as \"CSV UTF-8\")";

/// [`read_regular`] of text.
///
/// # Errors
/// An error of the operating system; anything but a regular file; text that is not UTF-8.
pub fn read_regular_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read_regular(path)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "stream did not contain valid UTF-8"))
}

/// The error for a file or folder at `path` that cannot be read.
pub fn read_error(path: &Path, error: &io::Error) -> Error {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<FileKind>()) {
        Some(kind) => Error::data(format!("{}: expected text, got {}", path.display(), kind.what)).help(kind.help),
        None => Error::io(format!("read {}", path.display()), error),
    }
}

/// A kind of file that is no text, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileKind {
    /// The kind in words, for messages.
    pub what: &'static str,
    /// The advice for a file of this kind.
    pub help: &'static str,
}

impl std::fmt::Display for FileKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.what)
    }
}

impl std::error::Error for FileKind {}

/// Endings of names of files that hold data. A page of HTML of such a name is a download that went
/// wrong; of another name it may be what is to be learned.
const DATA_ENDINGS: [&str; 9] = ["txt", "text", "raw", "tokens", "csv", "tsv", "json", "jsonl", "ndjson"];

impl FileKind {
    /// So many bytes at the beginning of a file tell its kind.
    const HEAD: usize = 512;

    /// The kind of the file at `path` that begins with `head`; none for text, and for bytes of
    /// which nothing is known.
    pub fn of(path: &Path, head: &[u8]) -> Option<Self> {
        let of = |what, help| Some(Self { what, help });
        let is_lfs = head.starts_with(b"version https://git-lfs.github.com/spec/");
        match head {
            [b'P', b'K', 3 | 5, 4 | 6, ..] => of(
                "a zip archive",
                "unpack it with `unzip` and name the files in it; save a workbook (.xlsx) as CSV in UTF-8",
            ),
            [b'P', b'A', b'R', b'1', ..] => of("a Parquet file", "set data.format = \"parquet\""),
            [b'%', b'P', b'D', b'F', b'-', ..] => {
                of("a PDF document", "write its text to a .txt file, for example with `pdftotext`")
            }
            [b'A', b'R', b'R', b'O', b'W', b'1', ..] => {
                of("a Feather file", "write it as Parquet, with `pandas.read_feather(FILE).to_parquet(NEW)`")
            }
            [0xff, 0xff, 0xff, 0xff, ..] => {
                of("a stream of Arrow, as `datasets.save_to_disk` writes it", "set data.format = \"arrow\"")
            }
            [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd, ..] => of(
                "an archive within an archive",
                "unpack it once with `gunzip` or `unzstd`, and name what that leaves",
            ),
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, ..] => {
                of("a bzip2 archive", "unpack it with `bunzip2`, or compress it with gzip or zstd")
            }
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
                of("an xz archive", "unpack it with `unxz`, or compress it with gzip or zstd")
            }
            [b'7', b'z', 0xbc, 0xaf, 0x27, 0x1c, ..] => {
                of("a 7z archive", "unpack it with `7z x` and name the files in it")
            }
            [0xd0, 0xcf, 0x11, 0xe0, 0xa1, 0xb1, 0x1a, 0xe1, ..] => {
                of("a document of Microsoft Office", "save a workbook as CSV in UTF-8, and a document as .txt")
            }
            _ if head.starts_with(b"SQLite format 3\0") => {
                of("an SQLite database", "write the table as CSV, for example with `sqlite3 -csv -header`")
            }
            _ if head.get(257..262) == Some(b"ustar") => {
                of("a tar archive", "unpack it with `tar -xf` and name the files in it")
            }
            _ if is_lfs => of(
                "a Git LFS pointer, which stands for a file that was not downloaded",
                "run `git lfs pull` in its repository, or download the file itself",
            ),
            _ if is_html(head) && ending(path).is_none_or(|ending| DATA_ENDINGS.contains(&&*ending)) => of(
                "a page of HTML, as a download gives that needs a login or another address",
                "download the file itself (on the Hub its address has /resolve/, not /blob/); HTML that is to be learned is named .html",
            ),
            _ => None,
        }
    }

    /// The kind of the file at `path`, which is not text by its name; none as for [`of`](Self::of).
    pub fn at(path: &Path) -> Option<Self> {
        let mut head = Vec::new();
        File::open(path).ok()?.take(Self::HEAD as u64).read_to_end(&mut head).ok()?;
        Self::of(path, &head)
    }
}

fn is_html(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head).to_ascii_lowercase();
    let text = without_mark(&text).trim_start();
    text.starts_with("<!doctype html") || text.starts_with("<html")
}

/// A file of text as it is read: what an archive of gzip or zstd holds, and any other file as it
/// is. An archive is known by its first bytes, which no UTF-8 text has, whatever its name. Damage
/// is an error of the kind `InvalidData`.
pub struct Decoded {
    inner: Box<dyn Read + Send>,
    /// The name of the compression, if there is one.
    archive: Option<&'static str>,
}

impl Decoded {
    /// Opens the file at `path` at byte `at` of what it holds.
    ///
    /// # Errors
    /// An error of [`open`](Self::open) or of the operating system, and damage before byte `at`.
    pub fn open_at(path: &Path, at: u64) -> io::Result<Self> {
        let mut opened = Self::open(path)?;
        if opened.archive.is_some() {
            io::copy(&mut (&mut opened).take(at), &mut io::sink())?;
        } else if at > 0 {
            let mut file = File::open(path)?;
            file.seek(SeekFrom::Start(at))?;
            opened.inner = Box::new(file);
        }
        Ok(opened)
    }

    /// Opens the file at `path`.
    ///
    /// # Errors
    /// The operating system's; a name that ends in `.gz` or `.zst` of a file that is no such
    /// archive; a [`FileKind`] that is no text.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let mut first = Vec::new();
        (&mut file).take(4).read_to_end(&mut first)?;
        let named = compression(path);
        let archive = match &first[..] {
            [0x1f, 0x8b, ..] => Some(GZIP),
            [0x28, 0xb5, 0x2f, 0xfd] => Some(ZSTD),
            // A frame that zstd skips; as text, these bytes are possible.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18] if named == Some(ZSTD) => Some(ZSTD),
            _ => None,
        };
        if let Some(named) = named.filter(|named| archive != Some(named)) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("no {named} archive, as its name says")));
        }
        let whole = io::Cursor::new(first).chain(file);
        let inner: Box<dyn Read + Send> = match archive {
            // `cat` may have joined several.
            Some(GZIP) => Box::new(flate2::bufread::MultiGzDecoder::new(BufReader::with_capacity(BLOCK, whole))),
            Some(_) => Box::new(zstd::Decoder::with_buffer(BufReader::with_capacity(BLOCK, whole))?),
            None => Box::new(whole),
        };
        let mut opened = Self { inner, archive };
        let mut head = Vec::new();
        (&mut opened).take(FileKind::HEAD as u64).read_to_end(&mut head)?;
        if let Some(kind) = FileKind::of(path, &head) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, kind));
        }
        opened.inner = Box::new(io::Cursor::new(head).chain(opened.inner));
        Ok(opened)
    }
}

impl Read for Decoded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.inner.read(buffer).map_err(|error| match self.archive {
            Some(archive) if error.raw_os_error().is_none() && error.kind() != io::ErrorKind::Interrupted => {
                io::Error::new(io::ErrorKind::InvalidData, format!("damaged or truncated {archive} archive"))
            }
            _ => error,
        })
    }
}

/// Compressed bytes are read in blocks of this size.
const BLOCK: usize = 1 << 17;

const GZIP: &str = "gzip";

const ZSTD: &str = "zstd";

/// The compression that the name of a file states.
fn compression(path: &Path) -> Option<&'static str> {
    match path.extension()?.to_string_lossy().to_ascii_lowercase().as_str() {
        "gz" => Some(GZIP),
        "zst" => Some(ZSTD),
        _ => None,
    }
}

/// The ending of the name of the file at `path` that tells how it is written, in lower case: `csv`
/// also of `a.CSV.gz`.
pub fn ending(path: &Path) -> Option<String> {
    let name = if compression(path).is_some() { path.file_stem().map(Path::new)? } else { path };
    name.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase())
}

/// Whether the [`ending`] of the file at `path` is one of `endings`.
pub fn has_ending(path: &Path, endings: &[&str]) -> bool {
    ending(path).is_some_and(|ending| endings.contains(&&*ending))
}

/// Whether folders and patterns pass over an entry with this name: files and folders that begin
/// with a dot (`.git`, `._train.csv`, `.ipynb_checkpoints`), and folders that begin with two
/// underscores (`__MACOSX`, `__pycache__`), as `datasets` does.
pub fn is_hidden(name: &str, is_folder: bool) -> bool {
    name.starts_with('.') && !matches!(name, "." | "..") || is_folder && name.starts_with("__")
}

/// How many parts of `path`, which has `/` between folders, are hidden ([`is_hidden`]).
pub fn hidden_parts(path: &str) -> usize {
    let last = path.split('/').count() - 1;
    path.split('/').enumerate().filter(|(at, part)| is_hidden(part, *at < last)).count()
}

/// Whether the file at `path` lies beside data and holds none of them by its name, so that
/// `datasets` passes over it.
pub fn is_description(path: &Path) -> bool {
    const NAMES: [&str; 6] =
        ["README.md", "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"];
    path.file_name().is_some_and(|name| NAMES.iter().any(|known| name == *known))
}

/// The content of the file at `path`, which a user has named and which may be a pipe (`<(command)`,
/// `/dev/stdin`), of at most `most` bytes: a device may have no end.
///
/// # Errors
/// The operating system's; a file that is longer (`InvalidData`).
pub fn read_given(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut file = File::open(path)?.take(most + 1);
    reading(|| file.read_to_end(&mut bytes))?;
    if bytes.len() as u64 > most {
        let what = format!("it has more than {} MiB", most >> 20);
        Err(io::Error::new(io::ErrorKind::InvalidData, what))
    } else {
        Ok(bytes)
    }
}

/// Writes the folder `target` whole or not at all: `write` fills the folder `aside` on the same
/// file system, `make_way` frees the name, and `aside` takes it. `aside` is gone in any case.
///
/// # Errors
/// An error of `write`, of `make_way` or of the operating system. `target` is no incomplete folder
/// then: it is as it was, as `make_way` left it, or whole.
pub fn write_folder(
    aside: &Path,
    target: &Path,
    write: impl FnOnce() -> Result<()>,
    make_way: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let io = |error: io::Error| Error::io(format!("write {}", target.display()), &error);
    let written = write().and_then(|()| {
        sync_folder(aside).map_err(io)?;
        make_way()?;
        std::fs::rename(aside, target).map_err(io)?;
        target.parent().map_or(Ok(()), sync_folder).map_err(io)
    });
    if written.is_err() {
        let _ = std::fs::remove_dir_all(aside); // the error tells more than a folder that stays
    }
    written
}

/// Brings a folder's entries to disk, where the system can.
///
/// # Errors
/// The operating system's.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}

/// The first free name of `path.ENDING-1`, `path.ENDING-2` and so on.
pub fn free_beside(path: &Path, ending: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut names = (1u64..).map(|number| path.with_file_name(format!("{name}.{ending}-{number}")));
    names.find(|path| std::fs::symlink_metadata(path).is_err()).unwrap_or_else(|| path.to_owned())
}

/// Gives what stands at `path` and is damaged another name beside it, so that a whole file can take
/// its place and nothing is lost; the other name.
///
/// # Errors
/// The operating system's.
pub fn set_aside_damaged(path: &Path) -> Result<PathBuf> {
    let aside = free_beside(path, "damaged");
    std::fs::rename(path, &aside).map_err(|error| Error::io(format!("rename {}", path.display()), &error))?;
    Ok(aside)
}

/// Whether something stands at `path` that no file can be written to: a pipe, a device, a folder, a
/// link that leads to itself or into a folder that does not exist.
pub fn is_blocked(path: &Path) -> bool {
    match std::fs::metadata(path) {
        Ok(found) => !found.is_file(),
        Err(error) if error.kind() != io::ErrorKind::NotFound => true,
        Err(_) => std::fs::read_link(path).is_ok_and(|link| {
            let target = path.parent().unwrap_or(Path::new("")).join(link);
            !target.parent().is_some_and(|above| above.as_os_str().is_empty() || above.is_dir()) || is_blocked(&target)
        }),
    }
}

/// Bytes in lower-case hexadecimal digits, as checksums are written.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How many bytes the file at `path` has, and their SHA-256 in hexadecimal digits.
///
/// # Errors
/// The operating system's.
pub fn sha256(path: &Path) -> io::Result<(u64, String)> {
    let mut hash = Sha256::new();
    let bytes = io::copy(&mut File::open(path)?, &mut hash)?;
    Ok((bytes, hex(&hash.finalize())))
}

/// Writes a file that appears under its name only when it is whole; see
/// [`WholeFile`](crate::whole_file::WholeFile).
///
/// # Errors
/// The operating system's.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    whole_file::write(path, bytes).map_err(|error| Error::io(format!("write {}", path.display()), &error))
}

/// A file by its name in a folder, with what is in it.
pub type NamedFile = (String, Arc<[u8]>);

/// Writes `files` into `folder`, and makes the folders that their names have.
///
/// # Errors
/// The operating system's.
pub fn write_files(folder: &Path, files: &[NamedFile]) -> Result<()> {
    for (name, bytes) in files {
        let path = folder.join(name);
        let above = path.parent().unwrap_or(folder);
        std::fs::create_dir_all(above)
            .and_then(|()| std::fs::write(&path, bytes))
            .map_err(|error| Error::io(format!("write {}", path.display()), &error))?;
    }
    Ok(())
}

/// Writes `value` as indented JSON that ends with a line feed, in which names and texts of the
/// user's have no power over the terminal that shows the file; see [`write_whole`] and
/// [`printable`].
///
/// # Errors
/// The operating system's; a value that JSON does not have.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    write_whole(path, json_text(value).map_err(|error| malformed(path, &error))?.as_bytes())
}

/// The text of a file with `value` as [`write_json`] writes it.
///
/// # Errors
/// A value that JSON does not have.
pub fn json_text(value: &impl Serialize) -> serde_json::Result<String> {
    Ok(format!("{}\n", printable(&serde_json::to_string_pretty(value)?)))
}

/// Reads a value that is kept as JSON.
///
/// # Errors
/// The operating system's; text that is not the JSON of such a value.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = read_regular(path).map_err(|error| Error::io(format!("read {}", path.display()), &error))?;
    serde_json::from_slice(&text).map_err(|error| malformed(path, &error))
}

/// [`read_json`], or none where there is no file at `path`.
///
/// # Errors
/// A file that cannot be read, and text that is not the JSON of such a value.
pub fn read_json_if_there<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    match read_regular(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(format!("read {}", path.display()), &error)),
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| malformed(path, &error)),
    }
}

/// The error of the file at `path` that is not the JSON of its value.
pub fn malformed(path: &Path, error: &serde_json::Error) -> Error {
    Error::data(format!("{}: {}", path.display(), json_words(error)))
}

/// Whether `name` is one plain component of a path, which stays in the folder that it is joined to
/// on every system: not empty, no `.` or `..`, no separator, no drive, no control character. For
/// names that come from files and servers.
pub fn is_plain_name(name: &str) -> bool {
    let has_drive =
        name.as_bytes().first().is_some_and(u8::is_ascii_alphabetic) && name.as_bytes().get(1) == Some(&b':');
    !matches!(name, "" | "." | "..") && !has_drive && !name.contains(|c: char| c == '/' || c == '\\' || c.is_control())
}
