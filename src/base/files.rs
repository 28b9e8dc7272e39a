//! Files that are written whole or not at all.

use std::path::Path;

use kiln_models::whole_file;

use crate::base::error::{Error, Result};

/// Writes a file that appears under its name only when it is whole; see [`WholeFile`](kiln_models::WholeFile).
///
/// # Errors
/// The operating system's.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    whole_file::write(path, bytes).map_err(|error| Error::io(format!("write {}", path.display()), &error))
}
