//! Datasets on the Hugging Face Hub: `hf://datasets/ID[@REVISION]/PATH`, the form of
//! huggingface_hub's file system, where PATH is a file, a glob, or a configuration and a split
//! (`default/train`), whose parquet or JSON files are then taken. They are kept in the same cache
//! as models.

use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern};
use kiln_core::error::{Error, Result};
use kiln_core::files::hidden_parts;

use super::offline_help;
use super::repo::{CachedRepo, Repo, RepoKind, parse_id_as};
use super::settings::HubSettings;
use super::transfer::Session;

/// The beginning of an address of a dataset.
const SCHEME: &str = "hf://datasets/";

/// Whether `pattern` is an address of files on the Hub.
pub fn is_dataset(pattern: &str) -> bool {
    pattern.starts_with("hf://")
}

/// The local files of the address `pattern`, sorted by name; downloaded if need be, with the
/// settings of the environment.
///
/// # Errors
/// `Config` for an address that is none; `Data` for a dataset, revision or file that does not exist
/// or cannot be reached; `Io` when the cache cannot be written.
pub fn dataset_files(pattern: &str) -> Result<Vec<PathBuf>> {
    dataset_files_with(pattern, &HubSettings::from_env()?)
}

/// [`dataset_files`] with settings of one's own.
///
/// # Errors
/// `Config` for an address that is none; `Data` for a dataset, revision or file that does not exist
/// or cannot be reached; `Io` when the cache cannot be written.
pub fn dataset_files_with(pattern: &str, settings: &HubSettings) -> Result<Vec<PathBuf>> {
    let (repo, path) = parse(pattern)?;
    let patterns = patterns_of(&path, pattern)?;
    let cached = CachedRepo::new(&repo, settings);
    if let Some(commit) = cached.commit() {
        let snapshot = cached.snapshot(&commit);
        let names = choose(&patterns, &names_in(&snapshot));
        // A glob may match more on the Hub than the cache has, unless the names say how many parts
        // there are.
        let literal = matches!(&patterns[..], [only] if !only.as_str().contains(['*', '?', '[']));
        let numbered = names.iter().all(|name| name.contains("-of-"));
        if !names.is_empty() && is_complete(&names) && (settings.offline || literal || numbered) {
            if settings.offline && !literal && !numbered {
                tracing::warn!("{pattern}: offline, so only the {} file(s) in the cache are used", names.len());
            }
            return Ok(names.iter().map(|name| snapshot.join(name)).collect());
        }
    }
    if settings.offline {
        return Err(Error::data(format!(
            "`{pattern}` is not in the cache {} and HF_HUB_OFFLINE forbids the network",
            settings.cache.display()
        ))
        .help(offline_help(&repo, settings)));
    }
    let session = Session::new(&repo, settings, &cached)?;
    let info = session.info()?;
    let on_hub = info.siblings.into_iter().map(|file| file.rfilename).collect::<Vec<_>>();
    let names = choose(&patterns, &on_hub);
    if names.is_empty() {
        let some = on_hub.iter().filter(|name| hidden_parts(name) == 0).take(8).cloned().collect::<Vec<_>>();
        return Err(Error::data(format!("`{}` on {} has no file {path}", repo.name(), settings.shown_endpoint()))
            .help(format!("it has {}", some.join(", "))));
    }
    for name in &names {
        session.fetch(&info.sha, name)?;
    }
    // Last, so that an interrupted download leaves the name pointing at the older snapshot.
    let _lock = session.lock("refs")?;
    cached.set_commit(&info.sha)?;
    Ok(names.iter().map(|name| cached.snapshot(&info.sha).join(name)).collect())
}

/// `hf://datasets/ID[@REVISION]/PATH` as a repository and a path in it. The id has one or two
/// parts, and one with two is tried first: `hf://datasets/org/name/train.csv`.
fn parse(pattern: &str) -> Result<(Repo, String)> {
    let wrong = |what: &str| {
        Error::config(format!("{pattern:?}: {what}")).help(
            "write hf://datasets/ORG/NAME[@REVISION]/PATH, where PATH is a file, a glob, or CONFIGURATION/SPLIT, for example \
             hf://datasets/nyu-mll/glue/sst2/train",
        )
    };
    let rest = pattern.strip_prefix(SCHEME).ok_or_else(|| wrong("only datasets are read from there"))?;
    let mut parts = rest.splitn(3, '/');
    let (Some(org), Some(name), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(wrong("expected an id and a path"));
    };
    if path.is_empty() || path.split('/').any(|part| part.is_empty() || part == "..") {
        return Err(wrong("expected a path after the id"));
    }
    Ok((parse_id_as(&format!("{org}/{name}"), RepoKind::Dataset)?, path.to_string()))
}

/// The globs that `path` stands for, the first of which that matches counts.
fn patterns_of(path: &str, shown: &str) -> Result<Vec<Pattern>> {
    let last = path.rsplit('/').next().unwrap_or(path);
    let globs = if last.contains(['.', '*', '?', '[']) {
        vec![path.to_string()]
    } else {
        let (config, split) = path.rsplit_once('/').unwrap_or(("default", path));
        let mut stems = vec![format!("{config}/{split}-*"), format!("{config}/{split}/*"), format!("{config}/{split}")];
        if config == "default" {
            stems.extend([format!("data/{split}-*"), format!("data/{split}"), split.to_string()]);
        }
        let endings =
            ["parquet", "jsonl", "json", "csv", "tsv", "jsonl.gz", "json.gz", "csv.gz", "jsonl.zst", "json.zst"];
        stems.iter().flat_map(|stem| endings.map(|ending| format!("{stem}.{ending}"))).collect()
    };
    let compile = |glob: String| {
        Pattern::new(&glob).map_err(|error| Error::config(format!("{shown:?}: not a valid glob: {error}")))
    };
    globs.into_iter().map(compile).collect()
}

/// The names that the first matching pattern has, sorted.
fn choose(patterns: &[Pattern], names: &[String]) -> Vec<String> {
    let options = MatchOptions { require_literal_separator: true, ..MatchOptions::default() };
    let of = |pattern: &Pattern| {
        // What is hidden has to be named.
        let is_asked = |name: &&String| hidden_parts(name) == hidden_parts(pattern.as_str());
        let matching = names.iter().filter(|name| pattern.matches_with(name, options)).filter(is_asked);
        let mut found = matching.cloned().collect::<Vec<_>>();
        found.sort();
        found
    };
    patterns.iter().map(of).find(|found| !found.is_empty()).unwrap_or_default()
}

/// Whether no part of a file in parts (`train-00000-of-00003.parquet`) is missing: a download may
/// have been interrupted.
pub(super) fn is_complete(names: &[String]) -> bool {
    names.iter().all(|name| {
        let Some((head, tail)) = name.split_once("-of-") else { return true };
        let digits = tail.chars().take_while(char::is_ascii_digit).count();
        let (count, Some(stem)) = (tail[..digits].parse::<usize>(), head.rsplit_once('-').map(|(stem, _)| stem)) else {
            return true;
        };
        let same = |other: &&String| other.starts_with(&format!("{stem}-")) && other.contains(&format!("-of-{tail}"));
        count.is_ok_and(|count| names.iter().filter(same).count() == count)
    })
}

/// The names of all files below `folder`, with `/` between folders.
pub(super) fn names_in(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![(folder.to_path_buf(), String::new())];
    while let Some((folder, prefix)) = pending.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            // Follows links: the files of a snapshot are links to blobs, and a link to nothing is
            // no file.
            match entry.path() {
                path if path.is_dir() => pending.push((path, name + "/")),
                path if path.is_file() => found.push(name),
                _ => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn chosen(path: &str, names: &[&str]) -> Vec<String> {
        let names = names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        choose(&patterns_of(path, path).unwrap(), &names)
    }

    #[test]
    fn addresses() {
        let (repo, path) = parse("hf://datasets/nyu-mll/glue@v1/sst2/train").unwrap();
        assert_eq!(
            (repo.path().as_str(), repo.revision.as_str(), path.as_str()),
            ("datasets/nyu-mll/glue", "v1", "sst2/train")
        );
        for wrong in ["hf://models/a/b/c", "hf://datasets/a/b", "hf://datasets/a/b/", "hf://datasets/a/b/../c"] {
            assert!(parse(wrong).unwrap_err().to_string().contains("hf://datasets/ORG/NAME"), "{wrong}");
        }
    }

    #[test]
    fn a_configuration_and_a_split_are_its_files() {
        let glue = ["README.md", "sst2/train-00000-of-00001.parquet", "sst2/validation-00000-of-00001.parquet"];
        assert_eq!(chosen("sst2/train", &glue), ["sst2/train-00000-of-00001.parquet"]);
        assert_eq!(chosen("default/train", &["data/train-0.parquet", "train.csv"]), ["data/train-0.parquet"]);
        assert_eq!(chosen("train", &["train.jsonl", "test.jsonl"]), ["train.jsonl"]);
        assert_eq!(chosen("a/b/train", &["a/b/train/1.parquet", "a/b/train/0.parquet"]).len(), 2);
        assert_eq!(chosen("*.csv", &["a.csv", "b/c.csv", "._a.csv"]), ["a.csv"]);
        let hidden = ["__MACOSX/a.csv", ".git/a.csv", ".x/.a.csv"];
        assert_eq!(chosen("*/*.csv", &hidden), [""; 0]);
        assert_eq!(chosen("__*/*.csv", &hidden), [hidden[0]]);
        assert_eq!(chosen(".git/a.csv", &hidden), [hidden[1]]);
        assert_eq!(chosen("sst2/test", &glue), [""; 0]);
    }

    #[test]
    fn parts_that_are_missing_show() {
        let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        assert!(is_complete(&names(&["a/train-00000-of-00002.parquet", "a/train-00001-of-00002.parquet"])));
        assert!(!is_complete(&names(&["a/train-00001-of-00002.parquet"])));
        assert!(is_complete(&names(&["train.jsonl"])));
    }
}
