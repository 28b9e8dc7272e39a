//! Files that are written whole or not at all.

use std::path::Path;

use kiln_models::whole_file;

use crate::base::error::{Error, Result};

/// The content of the regular file at `path`: a pipe or a device, which may have no end, is refused.
///
/// # Errors
/// The operating system's; anything but a regular file.
pub fn read_regular(path: &Path) -> std::io::Result<Vec<u8>> {
    match std::fs::metadata(path)?.is_file() {
        true => std::fs::read(path),
        false => Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is no regular file")),
    }
}

/// [`read_regular`] of text.
///
/// # Errors
/// As there, and text that is not UTF-8.
pub fn read_regular_text(path: &Path) -> std::io::Result<String> {
    String::from_utf8(read_regular(path)?)
        .map_err(|_| std::io::Error::new(std::io::ErrorKind::InvalidData, "stream did not contain valid UTF-8"))
}

/// Writes a file that appears under its name only when it is whole; see [`WholeFile`](kiln_models::WholeFile).
///
/// # Errors
/// The operating system's.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    whole_file::write(path, bytes).map_err(|error| Error::io(format!("write {}", path.display()), &error))
}
