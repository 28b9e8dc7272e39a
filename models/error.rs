//! Errors of a model's configuration and of its files. Every message says what was expected and what was found.

use std::path::PathBuf;

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// The argument by which `transformers` accepts weights of other sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowedBy {
    /// `ignore_mismatched_sizes`: the head is new.
    IgnoreMismatchedSizes,
    /// `resize_token_embeddings`: the vocabulary is larger.
    ResizeTokenEmbeddings,
}

/// A model that cannot be built, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A field of a model configuration that is wrong or that Kiln does not honour.
    #[error("model config: {0}")]
    Config(String),
    /// A file of another program that asks for what Kiln does not compute.
    #[error("{what}")]
    NotComputed {
        /// The name and the value, and the reason.
        what: String,
        /// What the user can do.
        help: &'static str,
    },
    /// An environment variable that is wrong, or asks for what this machine lacks.
    #[error("{0}")]
    Environment(String),
    /// The family has no such head.
    #[error("the task {task}: {model_type} has no head for it; it has heads for {tasks}")]
    NoSuchHead {
        /// The family, Hugging Face's `model_type`.
        model_type: &'static str,
        /// The task that the head is for.
        task: &'static str,
        /// The tasks that the family has heads for.
        tasks: &'static str,
    },
    /// A weight file that is missing, malformed or does not fit the model.
    #[error("{}: {problem}", path.display())]
    Weights {
        /// The file or folder.
        path: PathBuf,
        /// The expectation, and what was found instead.
        problem: String,
    },
    /// Weights of which some tensors have another size than those of the model, as `transformers` accepts them where it is asked
    /// to.
    #[error("{}: {problem}", path.display())]
    OtherSizes {
        /// The folder.
        path: PathBuf,
        /// The expectation, and what was found instead.
        problem: String,
        /// What asks to accept them.
        allowed_by: AllowedBy,
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
