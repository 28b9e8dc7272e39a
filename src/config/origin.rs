//! Where a key of a config was given: a line of the file, an argument of Hugging Face's, a setting
//! from elsewhere, an override.

use toml::Value;

/// `section.key`, or the key alone when it stands above the sections.
pub(super) fn full_key(section: &str, key: &str) -> String {
    if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") }
}

/// A config has at most so many included files.
pub(super) const MOST_INCLUDED: usize = 64;

/// Where a key was written. Later layers win: included files in their order, the file, Hugging
/// Face's arguments or settings from elsewhere, overrides.
#[derive(Clone)]
pub(super) enum Place {
    /// A line of a file that the config file includes, and the number of that file.
    Included(String, usize),
    /// A line of the config file.
    Line(usize),
    /// A file of Hugging Face's arguments, with the line.
    HfArgs(String),
    /// A setting from outside of any file, as it is called there.
    Setting(String),
    /// An override, and its number among them.
    Override(String, usize),
}

impl Place {
    /// The layer, and within the overrides the place.
    pub(super) fn order(&self) -> (usize, usize) {
        const FILE: usize = MOST_INCLUDED + 1;
        match self {
            Self::Included(_, number) => (*number, 0),
            Self::Line(_) => (FILE, 0),
            Self::HfArgs(_) | Self::Setting(_) => (FILE + 1, 0),
            Self::Override(_, index) => (FILE + 2, *index),
        }
    }

    /// Whether it is where Hugging Face's scripts take their arguments from: what others make idle
    /// is no mistake there.
    pub(super) fn is_of_a_script(&self) -> bool {
        matches!(self, Self::HfArgs(_) | Self::Setting(_))
    }

    /// For a message, where it is not the config file.
    pub(super) fn at(&self) -> String {
        match self {
            Self::Line(line) => line.to_string(),
            Self::Included(at, _) | Self::HfArgs(at) | Self::Setting(at) => at.clone(),
            Self::Override(text, _) => format!("--set {text}"),
        }
    }
}

/// A key of the config with its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// The key: `[key]` above the sections, `[section, key]`, or a key in the table of a key.
    pub path: Vec<String>,
    /// The value.
    pub value: Value,
    /// The place that gives the value, for messages.
    pub origin: String,
}

impl Setting {
    /// The value of the key `path`, as `origin` gives it.
    pub fn new(path: &str, value: impl Into<Value>, origin: &str) -> Self {
        Self { path: path.split('.').map(str::to_owned).collect(), value: value.into(), origin: origin.to_owned() }
    }
}
