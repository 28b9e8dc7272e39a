//! Environment variables in paths of configs: `${VAR}` and `${VAR:-default}` anywhere, `~` at the
//! beginning. One config then serves several machines.

use std::path::PathBuf;

use crate::error::{Error, Result};

/// Expands a leading `~` (the home folder) and `${VAR}` or `${VAR:-default}` anywhere. A default
/// may contain a `~`.
///
/// # Errors
/// An unset variable without a default, an unclosed `${`, no home folder.
pub fn expand(path: &str) -> Result<PathBuf> {
    expand_text(path).map(PathBuf::from)
}

/// [`expand`] for what may also be an id or an address of the Hub.
///
/// # Errors
/// An unset variable without a default, an unclosed `${`, no home folder.
pub fn expand_text(path: &str) -> Result<String> {
    expand_with(path, &|name| std::env::var(name).ok())
}

/// [`expand_text`] with `variable` in place of the environment.
///
/// # Errors
/// An unset variable without a default, an unclosed `${`, no home folder.
pub fn expand_with(path: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<String> {
    let mut expanded = String::new();
    let mut rest = path;
    while let Some(start) = rest.find("${") {
        let Some(length) = rest[start..].find('}') else {
            return Err(Error::config(format!("path {path:?}: \"${{\" without a closing \"}}\"")));
        };
        expanded.push_str(&rest[..start]);
        let inside = &rest[start + 2..start + length];
        let (name, default) = match inside.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inside, None),
        };
        match (variable(name).filter(|value| !value.is_empty()), default) {
            (Some(value), _) => expanded.push_str(&value),
            (None, Some(default)) => expanded.push_str(&home(default, variable)?),
            (None, None) => {
                return Err(Error::config(format!("path {path:?}: the environment variable {name} is not set"))
                    .help(format!("set it, or give a default: ${{{name}:-...}}")));
            }
        }
        rest = &rest[start + length + 1..];
    }
    expanded.push_str(rest);
    home(&expanded, variable)
}

fn home(path: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<String> {
    let Some(rest) = path.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/')) else {
        return Ok(path.to_string());
    };
    match variable("HOME").or_else(|| std::env::home_dir().map(|home| home.to_string_lossy().into_owned())) {
        Some(home) => Ok(home + rest),
        None => Err(Error::config(format!("path {path:?}: this user has no home folder")).help("write the whole path")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn variable(name: &str) -> Option<String> {
        match name {
            "HOME" => Some("/home/ada".into()),
            "DATA" => Some("/data".into()),
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    #[test]
    fn variables_defaults_and_home() {
        let expand = |path: &str| expand_with(path, &variable).unwrap();
        assert_eq!(expand("~/x"), "/home/ada/x");
        assert_eq!(expand("${DATA}/a-${DATA}"), "/data/a-/data");
        assert_eq!(expand("${CARGO_HOME:-~/.cargo}/registry"), "/home/ada/.cargo/registry");
        assert_eq!(expand("${EMPTY:-b}"), "b");
        assert_eq!(expand("a~b"), "a~b");
        let unset = expand_with("${NOPE}/x", &variable).unwrap_err().to_string();
        assert!(unset.contains("NOPE") && unset.contains("not set"), "{unset}");
        assert!(expand_with("${DATA/x", &variable).is_err());
    }
}
