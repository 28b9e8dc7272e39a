//! The folder of the cache, which Kiln keeps between runs, and the names of the folders in it.

use std::path::PathBuf;

use crate::error::{Error, Result};

/// Kiln's cache: `$KILN_CACHE`, else `$XDG_CACHE_HOME/kiln`, else `~/.cache/kiln`.
///
/// # Errors
/// None of them can be told.
pub fn folder() -> Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = variable("KILN_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|folder| folder.join("kiln")))
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache/kiln")));
    folder.ok_or_else(|| Error::config("no folder for the cache").help("set the environment variable KILN_CACHE"))
}

/// The folder of the cache that holds what is of kind `kind`, such as [`TOKENS`].
///
/// # Errors
/// An environment that tells no folder for the cache.
pub fn folder_of(kind: &str) -> Result<PathBuf> {
    Ok(folder()?.join(kind))
}

/// Token ids of a corpus.
pub const TOKENS: &str = "tokens";

/// Tokenizers that were learned.
pub const TOKENIZERS: &str = "tokenizers";

/// Encoded rows of a table.
pub const ROWS: &str = "rows";

/// Rows that came tokenized.
pub const TOKENIZED: &str = "tokenized";

/// Windows of SQuAD's contexts.
pub const WINDOWS: &str = "windows";

/// The compiled engine's cache for wgpu and CUDA: compiled kernels and what tuning has found.
pub const KERNELS: &str = "kernels";

/// Sizes that `kiln tune-batch` has found.
pub const BATCH_SIZES: &str = "batch-sizes";
