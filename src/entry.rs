//! The way from a config file to a trainer.

use std::path::Path;

use kiln_core::error::Result;
use kiln_train::trainer::PrinterCallback;

use crate::config::RunConfig;
use crate::session::{OpenSession, Session, TransformerTask};
use crate::{mlflow, push};

/// A trainer of the run that a config file describes.
pub trait FromConfig: Sized {
    /// Reads and opens the config file `path`. Rows are printed ([`PrinterCallback`]).
    ///
    /// # Errors
    /// A config or inputs that cannot be used, and an error of the trial where the mode is `auto`.
    fn from_config(path: impl AsRef<Path>) -> Result<Self>;
}

impl FromConfig for kiln_train::Trainer<TransformerTask> {
    fn from_config(path: impl AsRef<Path>) -> Result<Self> {
        let trainer = Self::from_session(Session::open(RunConfig::load(path)?)?)?;
        push::with_push(mlflow::with_reporters(trainer.with_callback(PrinterCallback::default()))?)
    }
}
