//! Errors of a model's configuration and of its files. Every message says what was expected and
//! what was found.

use std::path::PathBuf;

use kiln_core::device_error::unread_weights;

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
    /// A model configuration or a file of another program that is wrong, or asks for what Kiln does
    /// not compute.
    #[error(transparent)]
    Config(#[from] kiln_core::Error),
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
    /// A target of adapters that no layer has.
    #[error("target_modules: the model has no layer called {target:?}; it has {known}")]
    NoSuchTarget {
        /// The target.
        target: String,
        /// The layers that the model has.
        known: String,
    },
    /// A weight file that is missing, malformed or does not fit the model.
    #[error("{}: {problem}", path.display())]
    Weights {
        /// The file or folder.
        path: PathBuf,
        /// The expectation, and what was found instead.
        problem: String,
    },
    /// Weights of which some tensors have another size than those of the model, as `transformers`
    /// accepts them where it is asked to.
    #[error("{}: {problem}", path.display())]
    OtherSizes {
        /// The folder.
        path: PathBuf,
        /// The expectation, and what was found instead.
        problem: String,
        /// The argument of `transformers` that accepts tensors of other sizes.
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

impl From<Error> for kiln_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Config(error) => error,
            Error::NoSuchHead { model_type, task, tasks } => {
                Self::config(format!("the task {task}: {model_type} has no head for it"))
                    .help(format!("{model_type} has {tasks}"))
            }
            Error::NoSuchTarget { .. } => Self::config(error.to_string()),
            Error::Io { action, path, source } => {
                Self::io(format_args!("{action} {}", path.display()), &source)
            }
            Error::OtherSizes { allowed_by, .. } => Self::data(error.to_string()).help(match allowed_by {
                AllowedBy::ResizeTokenEmbeddings => {
                    "set model.resize_token_embeddings = true to append rows to the embedding of the pretrained model, or leave \
                     model.vocab_size out"
                }
                AllowedBy::IgnoreMismatchedSizes => {
                    "set model.ignore_mismatched_sizes = true to replace this head by a new one with random weights, or choose \
                     the task and the labels (data.label_names) that it was trained for"
                }
            }),
            error => unread_weights(&error.to_string()).unwrap_or_else(|| Self::data(error.to_string())),
        }
    }
}
