//! Paths as configs write them: files of datasets on the Hub (`hf://datasets/..`) are downloaded, `~`, `${VAR}` and
//! `${VAR:-default}` are expanded, globs (`*`, `**`, `?`, `[..]`) become the files that match, in a fixed order.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

use glob::{MatchOptions, Pattern};

use crate::base::error::{Error, Result};
use crate::base::files::read_error;
use crate::hub;

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
    if hub::is_dataset(pattern) {
        return hub::dataset_files(pattern);
    }
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
        if path.exists() {
            return Err(Error::config(format!("{shown}: expected a regular file, got a pipe or a device"))
                .help("data are read more than once: write them to a file"));
        }
        return Err(Error::config(format!("{shown}: no such file")).help("paths are relative to where kiln is started"));
    }
    let invalid = |error: glob::PatternError| Error::config(format!("{shown}: not a valid glob: {error}"));
    // The pattern as a whole shows what is wrong with `a**` or `[a`.
    Pattern::new(&expanded).map_err(invalid)?;
    let parts = path.components().map(|part| match part {
        Component::Normal(name) if name == "**" => Ok(Part::Folders),
        Component::Normal(name) => match name.to_string_lossy() {
            pattern if pattern.contains(['*', '?', '[']) => Pattern::new(&pattern).map(Part::Pattern),
            _ => Ok(Part::Name(name.into())),
        },
        other => Ok(Part::Name(other.as_os_str().into())),
    });
    let parts = parts.collect::<std::result::Result<Vec<_>, _>>().map_err(invalid)?;
    let mut files = Vec::new();
    walk(PathBuf::new(), &parts, &mut files)?;
    files.sort();
    // `**/**` comes to a file in several ways.
    files.dedup();
    match files.is_empty() {
        true => Err(Error::config(format!("{shown}: the glob matches no file"))
            .help("paths are relative to where kiln is started; `**` matches folders of any depth")),
        false => Ok(files),
    }
}

/// A component of a glob.
enum Part {
    /// A name as it is.
    Name(OsString),
    /// A pattern for a name.
    Pattern(Pattern),
    /// `**`: any number of folders, none included.
    Folders,
}

/// Adds the files below `folder` that `parts` name. The `glob` crate's own walk leaves out names that are not UTF-8; here they
/// are matched with U+FFFD in place of what is no text.
fn walk(folder: PathBuf, parts: &[Part], files: &mut Vec<PathBuf>) -> Result<()> {
    let Some((part, rest)) = parts.split_first() else {
        if folder.is_file() {
            files.push(folder);
        }
        return Ok(());
    };
    match part {
        Part::Name(name) => walk(folder.join(name), rest, files),
        Part::Pattern(pattern) => {
            for name in names(&folder)? {
                if pattern.matches_with(&name.to_string_lossy(), MatchOptions::new()) {
                    walk(folder.join(name), rest, files)?;
                }
            }
            Ok(())
        }
        Part::Folders => {
            walk(folder.clone(), rest, files)?;
            for name in names(&folder)? {
                let inner = folder.join(name);
                if inner.is_dir() && !goes_round(&inner) {
                    walk(inner, parts, files)?;
                }
            }
            Ok(())
        }
    }
}

/// Whether `folder` is a link to a folder in which it stands itself.
fn goes_round(folder: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    let above = folder.parent().map(|above| if above.as_os_str().is_empty() { Path::new(".") } else { above });
    let is_within = || Some(real(above?)?.starts_with(real(folder)?));
    folder.is_symlink() && is_within().unwrap_or(true)
}

/// The entries of `folder`; none where there is no such folder.
fn names(folder: &Path) -> Result<Vec<OsString>> {
    let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    if !here.is_dir() {
        return Ok(Vec::new());
    }
    let io = |error: std::io::Error| read_error(here, &error);
    fs::read_dir(here).map_err(io)?.map(|entry| entry.map(|entry| entry.file_name()).map_err(io)).collect()
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
        fs::create_dir(folder.path().join("deep")).unwrap();
        for name in ["b.txt", "a.txt", "deep/c.txt", "x.md"] {
            fs::write(folder.path().join(name), name).unwrap();
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

    #[test]
    fn a_glob_gives_what_the_glob_crate_gives() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.txt", "a.txt", "A.TXT", ".hidden.txt", "x/y/c.txt", "x/.h/d.txt", "x/e.txt", "x[1]/f.txt"] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
        #[cfg(unix)]
        std::os::unix::fs::symlink(folder.path().join("x[1]"), folder.path().join("x/link")).unwrap();
        let root = folder.path().display();
        for pattern in [
            "*.txt",
            "?.txt",
            "[ab].txt",
            "[!a].*",
            "**/*.txt",
            "**",
            "x/**",
            "*/*.txt",
            "x/*/*.txt",
            "**/y/*",
            "x/../*.txt",
            "x[[]1]/*",
            "**/link/*.txt",
            "*/link/f*",
            "**/**/c.txt",
            "nothing*/a",
        ] {
            let pattern = format!("{root}/{pattern}");
            let mut theirs = glob::glob(&pattern).unwrap().map(|path| path.unwrap()).collect::<Vec<_>>();
            theirs.retain(|path| path.is_file());
            theirs.dedup();
            assert_eq!(matching(&pattern).unwrap_or_default(), theirs, "{pattern}");
        }
        #[cfg(unix)]
        {
            let all = || matching(&format!("{root}/**/*.txt")).unwrap();
            let before = all();
            std::os::unix::fs::symlink(folder.path(), folder.path().join("x/round")).unwrap();
            assert_eq!(all(), before, "a link that goes round is not followed");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn names_that_are_not_utf8_are_found() {
        use std::os::unix::ffi::OsStrExt;
        let folder = tempfile::tempdir().unwrap();
        let latin1 = std::ffi::OsStr::from_bytes(b"caf\xe9");
        fs::create_dir(folder.path().join(latin1)).unwrap();
        let inner = folder.path().join(latin1).join("a.txt");
        let outer = folder.path().join(std::ffi::OsStr::from_bytes(b"na\xefve.txt"));
        fs::write(&inner, "inner").unwrap();
        fs::write(&outer, "outer").unwrap();
        let found = resolve(&[format!("{}/**/*.txt", folder.path().display())]).unwrap();
        assert_eq!(found, [inner, outer]);
    }
}
