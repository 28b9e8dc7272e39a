//! The layers of a config, of which a later one wins over an earlier one.

use std::path::Path;

use kiln_core::complaint::Complaint;
use kiln_core::error::Result;

use super::document::{Document, INCLUDE};
use super::origin::Setting;

impl Document {
    /// Parses `text`, which came from `origin` (a file name, for messages), and lays `hf_args` (the
    /// text and the name of a file of Hugging Face's arguments), `settings` and `overrides`
    /// (`section.key=value`) on top. `file` is the file that it came from, which alone may include
    /// others.
    pub(super) fn layered(
        text: &str,
        origin: &str,
        file: Option<&Path>,
        hf_args: Option<(&str, &str)>,
        settings: &[Setting],
        overrides: &[String],
    ) -> Result<Self> {
        let mut document = match file {
            Some(path) => Self::of_file(text, path)?,
            None => Self::parse(text, origin)?,
        };
        if file.is_none() && !document.includes.is_empty() {
            let complaint = Complaint::new(INCLUDE, "the config of a job and one that is given as a text stand alone");
            return Err(document.locate(complaint.help("write the keys of the included files into it")));
        }
        if let Some((text, origin)) = hf_args {
            document.lay_hf_args(text, origin)?;
        }
        settings.iter().try_for_each(|setting| document.lay_setting(setting))?;
        overrides.iter().enumerate().try_for_each(|(index, text)| document.set(text, index))?;
        document.settle()?;
        document.check_names()?;
        Ok(document)
    }
}
