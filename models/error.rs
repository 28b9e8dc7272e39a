//! What can go wrong with a model: its configuration or its files. Every message says what was expected and what was found.

use std::path::PathBuf;

use crate::config::ModelType;
use crate::heads::Head;

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// A model that cannot be built, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A field of a model configuration that is wrong or that Kiln does not honour.
    #[error("model config: {0}")]
    Config(String),
    /// The family has no such head.
    #[error("{kind} has no {head:?} head; expected {}", kind.heads())]
    NoSuchHead {
        /// The family.
        kind: ModelType,
        /// The head that was asked for.
        head: Head,
    },
    /// A weight file that is missing, malformed or does not fit the model.
    #[error("{}: {problem}", path.display())]
    Weights {
        /// The file or folder.
        path: PathBuf,
        /// What was expected and what was found.
        problem: String,
    },
    /// The operating system refused to read or write.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// "read" or "write"
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}
