//! `include`: config files that stand below the file that names them. A key that the file does not
//! give has the value that the last included file with it gives.

use std::path::{Path, PathBuf};

use kiln_core::complaint::Complaint;
use kiln_core::error::{Error, Result};
use kiln_core::variables::expand;
use toml::{Table, Value};

use super::document::{Document, INCLUDE, names};
use super::load::read;
use super::origin::{MOST_INCLUDED, Place, full_key};

/// A file that is being read, as it was named and as the system knows it.
type Open = (PathBuf, PathBuf);

impl Document {
    /// The document of `text`, the file `path`, over those of the files that it includes.
    pub(super) fn of_file(text: &str, path: &Path) -> Result<Self> {
        let mut included = Vec::new();
        let open = vec![(path.to_owned(), path.canonicalize().unwrap_or_else(|_| path.to_owned()))];
        let document = Self::over_its_includes(Self::parse(text, &path.display().to_string())?, &open, &mut included)?;
        Ok(Self { included, ..document })
    }

    /// This document of the last file of `open` over the files that it includes, whose names are
    /// added to `included` in the order in which they stand.
    fn over_its_includes(self, open: &[Open], included: &mut Vec<String>) -> Result<Self> {
        if self.includes.is_empty() {
            return Ok(self);
        }
        let folder = open.last().and_then(|(path, _)| path.parent()).unwrap_or(Path::new(""));
        let mut base = Self::parse("", &self.origin)?;
        for name in &self.includes {
            let refused = |message: String| self.locate(Complaint::new(INCLUDE, message));
            let path = folder.join(expand(name).map_err(|error| self.locate(Complaint::of(INCLUDE, error)))?);
            let text = read(&path).map_err(|error| self.locate(Complaint::of(INCLUDE, error)))?;
            let known = path.canonicalize().map_err(|error| refused(format!("{}: {error}", path.display())))?;
            if let Some(first) = open.iter().position(|(_, other)| *other == known) {
                let way = open[first..].iter().map(|(path, _)| path).chain([&path]);
                let way = way.map(|path| path.display().to_string()).collect::<Vec<_>>().join(" -> ");
                return Err(refused(format!("a file includes itself: {way}")));
            }
            let document = Self::parse(&text, &path.display().to_string())?;
            let document = document.over_its_includes(&[open, &[(path.clone(), known)]].concat(), included)?;
            if included.len() == MOST_INCLUDED {
                return Err(refused(format!("expected at most {MOST_INCLUDED} files in all")));
            }
            included.push(path.display().to_string());
            base.lay_document(document.into_included(included.len()));
        }
        base.lay_document(self);
        Ok(base)
    }

    /// This document as that of the included file of this number.
    fn into_included(mut self, number: usize) -> Self {
        for (place, _) in self.places.values_mut() {
            if let Place::Line(line) = place {
                *place = Place::Included(format!("{}:{line}", self.origin), number);
            }
        }
        self
    }

    /// Lays the keys of `upper` on top, each with its whole value.
    fn lay_document(&mut self, upper: Self) {
        let mut lay = |section: &str, key: &str, value: &Value| {
            let full = full_key(section, key);
            let below = format!("{full}.");
            self.places.retain(|place, _| !place.starts_with(&below));
            if let Some((origin, _)) = upper.places.get(&full) {
                self.displace_rivals(&full, value, origin);
            }
            self.section(section).insert(key.to_owned(), value.clone());
        };
        for (section, value) in &upper.table {
            match value {
                Value::Table(keys) => keys.iter().for_each(|(key, value)| lay(section, key, value)),
                value => lay("", section, value),
            }
        }
        // A section without keys says something too.
        for section in upper.table.iter().filter(|(_, value)| value.is_table()).map(|(section, _)| section) {
            self.section(section);
        }
        self.places.extend(upper.places);
    }
}

/// The config `text` of the file `path`, as it may stand in another folder: the files that it
/// includes are named from the root. Text that is not TOML stays as it is, for whoever reads it to
/// say so.
///
/// # Errors
/// An `include` that names no files, and a folder that the system does not know.
pub fn movable(text: String, path: &Path) -> Result<String> {
    let Ok(mut table) = text.parse::<Table>() else { return Ok(text) };
    let Some(names) = table.get(INCLUDE).map(names).transpose().map_err(Error::from)? else { return Ok(text) };
    let folder = path.parent().unwrap_or(Path::new(""));
    let absolute = |name: String| -> Result<Value> {
        let path = std::path::absolute(folder.join(expand(&name)?));
        let path = path.map_err(|error| Error::io("find the current folder", &error))?;
        Ok(path.display().to_string().into())
    };
    let names = names.into_iter().map(absolute).collect::<Result<Vec<_>>>()?;
    table.insert(INCLUDE.to_owned(), names.into());
    toml::to_string(&table).map_err(|error| Error::config(format!("{}: {error}", path.display())))
}
