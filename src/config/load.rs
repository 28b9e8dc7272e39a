//! Reads a config from a file or a text and writes it as one.

use std::path::{Path, PathBuf};

use kiln_core::error::{Error, Result, nearest};
use kiln_core::files::{FROM_UTF16, MAX_CONFIG, read_given, utf16, without_mark};
use kiln_data::settings::DataFormat;
use kiln_data::task::Task;

use super::check::{CheckedConfig, finite};
use super::document::{Document, escaped};
use super::hf_args;
use super::origin::Setting;
use super::run_config::RunConfig;
use crate::arguments::RunLength;

impl RunConfig {
    /// Reads and checks a config file.
    ///
    /// # Errors
    /// A config error for a file that is missing, not UTF-8 or not TOML, an unknown key, a wrong
    /// type or a value that makes no sense; an io error when the system refuses to read it.
    pub fn load(path: impl AsRef<Path>) -> Result<CheckedConfig> {
        Self::load_with(path, &[])
    }

    /// [`load`](Self::load) with `section.key=value` overrides laid on top, later ones over earlier
    /// ones. The value is TOML, so lists and tables work; what is not valid TOML is a string.
    ///
    /// # Errors
    /// A config error for a file that is missing, not UTF-8 or not TOML, an unknown key, a wrong
    /// type, a value that makes no sense or an override of another form; an io error when the
    /// system refuses to read the file.
    pub fn load_with(path: impl AsRef<Path>, overrides: &[String]) -> Result<CheckedConfig> {
        Self::load_layers(path, None, overrides, |_| Ok(()))
    }

    /// [`load_with`](Self::load_with) with the file `hf_args`, which
    /// `TrainingArguments.to_json_string()` wrote, laid over the config file and under the
    /// overrides, and with `change` made to the config before it is checked.
    /// [`hugging_face_arguments`](super::hugging_face_arguments) says what becomes of each
    /// argument; one that is null asks for nothing.
    ///
    /// # Errors
    /// Any error of [`load_with`](Self::load_with) and of `change`; a config error for a file that
    /// is no JSON object, that has a name which `TrainingArguments` has not, or that asks for
    /// something that Kiln does not have.
    pub fn load_layers(
        path: impl AsRef<Path>,
        hf_args: Option<&Path>,
        overrides: &[String],
        change: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<CheckedConfig> {
        let path = path.as_ref();
        let text = read(path)?;
        let args =
            hf_args.map(|path| hf_args::read(path).map(|text| (text, path.display().to_string()))).transpose()?;
        let args = args.as_ref().map(|(text, origin)| (text.as_str(), origin.as_str()));
        let document = Document::layered(&text, &path.display().to_string(), Some(path), args, &[], overrides)?;
        Self::of_document(document, Some(path), change)
    }

    /// Reads and checks a config from text. `origin` stands for the file name in messages; there is
    /// no file, so `run.output_dir` must be given.
    ///
    /// # Errors
    /// A config error for text that is not TOML, an unknown key, a wrong type or a value that makes
    /// no sense.
    pub fn parse(text: &str, origin: &str) -> Result<CheckedConfig> {
        Self::with_settings(text, origin, &[])
    }

    /// The config in `text`, a file called `origin`, with `settings` laid over it. There may be no
    /// file: no text then.
    ///
    /// # Errors
    /// Text that is not TOML, an unknown key, a wrong type or a value that makes no sense; an error
    /// about a setting names its origin.
    pub fn with_settings(text: &str, origin: &str, settings: &[Setting]) -> Result<CheckedConfig> {
        Self::of_document(Document::layered(text, origin, None, None, settings, &[])?, None, |_| Ok(()))
    }

    /// The config as a file: every key that has a value, defaults included. Reading it gives an
    /// equal config.
    ///
    /// # Errors
    /// A config error for a value that TOML cannot hold.
    pub fn to_toml(&self) -> Result<String> {
        let mut explicit = self.clone();
        if let RunLength::Epochs(epochs) = self.trainer.length() {
            explicit.trainer.num_train_epochs = Some(epochs);
        }
        let bad =
            |error: &dyn std::fmt::Display| Error::config(format!("this config cannot be written as TOML: {error}"));
        let text = toml::to_string(&explicit).map_err(|error| bad(&error))?;
        escaped(text).map_err(|error| bad(&error))
    }

    /// The config in `document`, which came from `file`, with `change` made to it.
    pub(super) fn of_document(
        mut document: Document,
        file: Option<&Path>,
        change: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<CheckedConfig> {
        let mut config = document.read()?;
        if let Some(stem) = file.and_then(Path::file_stem)
            && document.table.get("run").and_then(|run| run.get("output_dir")).is_none()
        {
            config.trainer.output_dir = Path::new("runs").join(stem);
        }
        if config.data.dataset_name.is_some()
            && document.table.get("data").and_then(|data| data.get("format")).is_none()
        {
            let is_answering = config.data.task == Task::QuestionAnswering;
            config.data.format = if is_answering {
                DataFormat::Squad
            } else if config.data.is_saved_dataset() {
                DataFormat::Arrow
            } else {
                DataFormat::Parquet
            };
        }
        config.trainer.no_effect = std::mem::take(&mut document.unused).lines();
        config.included = std::mem::take(&mut document.included);
        change(&mut config)?;
        let finite = document.table.iter().try_for_each(|(name, value)| finite(name, value));
        finite.and_then(|()| config.checked()).map_err(|complaint| document.locate(complaint))
    }
}

/// Reads a config file as text.
///
/// # Errors
/// A config error for a file that is missing, a folder, too long or not UTF-8; the operating
/// system's.
pub fn read(path: &Path) -> Result<String> {
    let shown = path.display();
    if path.is_dir() {
        return Err(with_neighbours(
            Error::config(format!("{shown}: expected a config file, got a folder")),
            path,
            path,
        ));
    }
    let bytes = read_given(path, MAX_CONFIG).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => Error::config(format!("{shown}: expected a config file, but {error}")),
        std::io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            with_neighbours(Error::config(format!("{shown}: no such config file")), folder, path)
        }
        _ => Error::io(format!("read {shown}"), &error),
    })?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..good].iter().filter(|byte| **byte == b'\n').count() + 1;
        let got = utf16(good, error.as_bytes()[good]);
        let help = if got.is_some() { FROM_UTF16 } else { "save the file as UTF-8" };
        let got = got.map_or_else(|| format!("other bytes at byte {good}"), str::to_owned);
        Error::config(format!("{shown}:{line}: expected UTF-8 text, got {got}")).help(help)
    })?;
    Ok(without_mark(&text).to_owned())
}

/// Adds the config files of `folder` and of `configs/` in it as help, and the one whose name is
/// nearest to that of `wanted`.
fn with_neighbours(error: Error, folder: &Path, wanted: &Path) -> Error {
    let entries = [folder.to_path_buf(), folder.join("configs")].map(|folder| std::fs::read_dir(folder).into_iter());
    let entries = entries.into_iter().flatten().flatten().flatten().map(|entry| entry.path());
    let others = ["Cargo.toml", "rustfmt.toml", "clippy.toml"];
    let is_config = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "toml")
            && !others.iter().any(|other| path.ends_with(other))
    };
    let mut files: Vec<String> = entries.filter(is_config).map(|path| path.display().to_string()).collect();
    files.sort();
    // Without the ending, which all of them share.
    let stem = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let stems = files.iter().map(|file| stem(Path::new(file))).collect::<Vec<_>>();
    let near = nearest(&stem(wanted), stems.iter().map(String::as_str));
    let near = near.and_then(|near| files.iter().find(|file| stem(Path::new(file)) == near));
    let near = near.map_or_else(String::new, |near| format!("did you mean {near}? "));
    match files.len() {
        0 => error.help(format!("there is no .toml file in {}", folder.display())),
        count if count > 12 => error.help(format!("{near}there are {count} .toml files in {}", folder.display())),
        _ => error.help(format!("{near}there are {}", files.join(", "))),
    }
}
