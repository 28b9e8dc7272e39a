//! The layers of a config, of which a later one wins over an earlier one.

use kiln_core::error::Result;

use super::document::Document;
use super::origin::Setting;

impl Document {
    /// Parses `text`, which came from `origin` (a file name, for messages), and lays `hf_args` (the
    /// text and the name of a file of Hugging Face's arguments), `settings` and `overrides`
    /// (`section.key=value`) on top.
    pub(super) fn layered(
        text: &str,
        origin: &str,
        hf_args: Option<(&str, &str)>,
        settings: &[Setting],
        overrides: &[String],
    ) -> Result<Self> {
        let mut document = Self::parse(text, origin)?;
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
