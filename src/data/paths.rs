//! Paths as configs write them: `~`, `${VAR}` and `${VAR:-default}` are expanded, globs (`*`, `**`, `?`, `[..]`) become the
//! files that match, in a fixed order.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::error::{Error, Result};

/// Expands a leading `~` (the home folder) and `${VAR}` or `${VAR:-default}` anywhere. A default may contain a `~`.
///
/// # Errors
/// An unset variable without a default, an unclosed `${`, no home folder.
pub fn expand(path: &str) -> Result<PathBuf> {
    expand_with(path, &|name| std::env::var(name).ok())
}

fn expand_with(path: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<PathBuf> {
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
    Ok(PathBuf::from(home(&expanded, variable)?))
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

/// The files that `patterns` name: sorted within each pattern, each file once, at its first place.
///
/// # Errors
/// A pattern that matches nothing, a file that does not exist, a folder, an invalid glob.
pub fn resolve(patterns: &[String]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut seen = BTreeSet::new();
    for pattern in patterns {
        for file in matching(pattern)? {
            // `a.txt` and `./a.txt` are one file.
            if seen.insert(file.canonicalize().unwrap_or_else(|_| file.clone())) {
                files.push(file);
            }
        }
    }
    match files.is_empty() {
        true => Err(Error::config("expected at least one file, got an empty list")),
        false => Ok(files),
    }
}

fn matching(pattern: &str) -> Result<Vec<PathBuf>> {
    let path = expand(pattern)?;
    let shown = match path.to_string_lossy() {
        expanded if expanded == pattern => format!("{pattern:?}"),
        expanded => format!("{pattern:?} (that is {expanded})"),
    };
    if path.is_dir() {
        return Err(Error::config(format!("{shown}: expected a file or a glob, got a folder"))
            .help(format!("name its files, for example \"{pattern}/**/*.txt\"")));
    }
    if path.is_file() {
        return Ok(vec![path]);
    }
    let expanded = path.to_string_lossy().into_owned();
    if !expanded.contains(['*', '?', '[']) {
        return Err(Error::config(format!("{shown}: no such file")).help("paths are relative to where kiln is started"));
    }
    let found = glob::glob(&expanded).map_err(|error| Error::config(format!("{shown}: not a valid glob: {error}")))?;
    let mut files = Vec::new();
    for entry in found {
        let file = entry.map_err(|error| Error::io(format!("read {}", error.path().display()), error.error()))?;
        if file.is_file() {
            files.push(file);
        }
    }
    match files.is_empty() {
        true => Err(Error::config(format!("{shown}: the glob matches no file"))
            .help("paths are relative to where kiln is started; `**` matches folders of any depth")),
        false => Ok(files),
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
        assert_eq!(expand("~/x"), PathBuf::from("/home/ada/x"));
        assert_eq!(expand("${DATA}/a-${DATA}"), PathBuf::from("/data/a-/data"));
        assert_eq!(expand("${CARGO_HOME:-~/.cargo}/registry"), PathBuf::from("/home/ada/.cargo/registry"));
        assert_eq!(expand("${EMPTY:-b}"), PathBuf::from("b"));
        assert_eq!(expand("a~b"), PathBuf::from("a~b"));
        let unset = expand_with("${NOPE}/x", &variable).unwrap_err().to_string();
        assert!(unset.contains("NOPE") && unset.contains("not set"), "{unset}");
        assert!(expand_with("${DATA/x", &variable).is_err());
    }

    #[test]
    fn globs_are_sorted_and_deduplicated() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("deep")).unwrap();
        for name in ["b.txt", "a.txt", "deep/c.txt", "x.md"] {
            std::fs::write(folder.path().join(name), name).unwrap();
        }
        let root = folder.path().display();
        let names = |patterns: &[String]| -> Vec<String> {
            let files = resolve(patterns).unwrap();
            files.iter().map(|f| f.strip_prefix(folder.path()).unwrap().display().to_string()).collect()
        };
        assert_eq!(names(&[format!("{root}/**/*.txt")]), ["a.txt", "b.txt", "deep/c.txt"]);
        assert_eq!(names(&[format!("{root}/b.txt"), format!("{root}/*.txt")]), ["b.txt", "a.txt"]);
        assert_eq!(names(&[format!("{root}/a.txt"), format!("{root}/deep/../a.txt")]), ["a.txt"]);
        for (pattern, says) in [
            (format!("{root}/*.rs"), "matches no file"),
            (format!("{root}/none.txt"), "no such file"),
            (format!("{root}/deep"), "got a folder"),
            (format!("{root}/[a"), "not a valid glob"),
        ] {
            let error = resolve(&[pattern]).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        assert!(resolve(&[]).is_err());
    }
}
