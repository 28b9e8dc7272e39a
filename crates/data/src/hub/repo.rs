//! A repository of the Hub: its name, its addresses, and its folder in the cache.

use std::path::{Path, PathBuf};

use kiln_core::error::{Error, Result};
use kiln_core::whole_file;
use serde::Deserialize;

use super::HubSettings;

/// The revision that an id without `@revision` means.
pub(super) const DEFAULT_REVISION: &str = "main";

/// The kinds of repositories that Kiln reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RepoKind {
    Model,
    Dataset,
}

/// A repository at a revision.
#[derive(Debug, Clone)]
pub(super) struct Repo {
    /// `name` or `org/name`.
    pub(super) id: String,
    pub(super) kind: RepoKind,
    /// A branch, a tag or a commit.
    pub(super) revision: String,
}

impl Repo {
    /// The path of its page below the Hub's address: `org/name`, `datasets/org/name`.
    pub(super) fn path(&self) -> String {
        match self.kind {
            RepoKind::Model => self.id.clone(),
            RepoKind::Dataset => format!("datasets/{}", self.id),
        }
    }

    /// The path of its description below the Hub's API.
    pub(super) fn api_path(&self) -> String {
        format!("{}s/{}/revision/{}", self.kind(), self.id, self.revision.replace('/', "%2F"))
    }

    /// How messages name it: as the user would write it.
    pub(super) fn name(&self) -> String {
        match self.revision.as_str() {
            DEFAULT_REVISION => self.path(),
            revision => format!("{}@{revision}", self.path()),
        }
    }

    fn kind(&self) -> &'static str {
        match self.kind {
            RepoKind::Model => "model",
            RepoKind::Dataset => "dataset",
        }
    }
}

/// The Hub's description of a revision.
#[derive(Debug, Deserialize)]
pub(super) struct RepoInfo {
    /// Its commit.
    pub(super) sha: String,
    /// Its files.
    pub(super) siblings: Vec<Sibling>,
}

/// A file in the Hub's description of a revision.
#[derive(Debug, Deserialize)]
pub(super) struct Sibling {
    /// Its name relative to the repository.
    pub(super) rfilename: String,
}

/// The part of the cache that belongs to one repository, laid out as huggingface_hub does:
/// `models--org--name/{blobs,refs,snapshots,.no_exist}`.
pub(super) struct CachedRepo<'a> {
    repo: &'a Repo,
    name: String,
    folder: PathBuf,
}

/// The name of a model's folder in print: `org/name` and the commit where it is a snapshot in the
/// Hub's cache, else its path.
pub fn name_of(folder: &Path) -> String {
    let named = snapshot(folder).map(|(id, commit)| format!("{id} (commit {})", &commit[..7]));
    named.unwrap_or_else(|| folder.display().to_string())
}

/// The id of the model in `folder`, where that is a snapshot in the Hub's cache.
pub fn id_of(folder: &Path) -> Option<String> {
    snapshot(folder).map(|(id, _)| id)
}

/// Id and commit of the model in `folder`, where that is a snapshot in the Hub's cache.
fn snapshot(folder: &Path) -> Option<(String, &str)> {
    let mut parts = folder.components().rev().map(|part| part.as_os_str().to_str());
    let (commit, snapshots, repo) = (parts.next()??, parts.next()??, parts.next()??);
    let id = repo.strip_prefix("models--").filter(|_| snapshots == "snapshots" && is_commit(commit))?;
    Some((id.replacen("--", "/", 1), commit))
}

impl<'a> CachedRepo<'a> {
    pub(super) fn new(repo: &'a Repo, settings: &HubSettings) -> Self {
        let name = format!("{}s--{}", repo.kind(), repo.id.replace('/', "--"));
        Self { repo, folder: settings.cache.join(&name), name }
    }

    /// The name of its folder in the cache: `models--org--name`.
    pub(super) fn folder_name(&self) -> &str {
        &self.name
    }

    /// The commit that the revision means according to the cache.
    pub(super) fn commit(&self) -> Option<String> {
        let revision = &self.repo.revision;
        if is_commit(revision) {
            return Some(revision.clone());
        }
        let commit = std::fs::read_to_string(self.ref_path()).ok()?;
        Some(commit.trim().to_string()).filter(|commit| is_commit(commit))
    }

    /// Records what the revision means; a commit means itself. The caller holds the lock.
    pub(super) fn set_commit(&self, commit: &str) -> Result<()> {
        if is_commit(&self.repo.revision) || self.commit().as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.ref_path();
        let write = || {
            std::fs::create_dir_all(path.parent().unwrap_or(&self.folder))?;
            whole_file::write(&path, commit.as_bytes())
        };
        write().map_err(|error| Error::io(format!("write {}", path.display()), &error))
    }

    fn ref_path(&self) -> PathBuf {
        self.folder.join("refs").join(&self.repo.revision)
    }

    /// The folder of the files at a commit, which are links to blobs.
    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// The file with the content that `etag` names.
    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    /// Whether the cache knows the file at this commit: it is there, or is known not to exist on
    /// the Hub.
    pub(super) fn is_settled(&self, commit: &str, name: &str) -> bool {
        self.snapshot(commit).join(name).is_file() || self.absent_path(commit, name).is_file()
    }

    /// Records that the Hub has no such file at this commit (an empty file, as huggingface_hub
    /// does).
    pub(super) fn mark_absent(&self, commit: &str, name: &str) -> Result<()> {
        let path = self.absent_path(commit, name);
        let write = || {
            std::fs::create_dir_all(path.parent().unwrap_or(&self.folder))?;
            std::fs::write(&path, "")
        };
        write().map_err(|error| Error::io(format!("write {}", path.display()), &error))
    }

    fn absent_path(&self, commit: &str, name: &str) -> PathBuf {
        self.folder.join(".no_exist").join(commit).join(name)
    }
}

/// Splits `id[@revision]`.
pub(super) fn split_revision(spec: &str) -> (&str, Option<&str>) {
    match spec.split_once('@') {
        Some((id, revision)) => (id, Some(revision)),
        None => (spec, None),
    }
}

/// Reads `id[@revision]` by the Hub's naming rules (huggingface_hub's `validate_repo_id`, git's for
/// the revision). The names become paths in the cache and parts of URLs, so nothing else may pass.
pub(super) fn parse_id(spec: &str) -> Result<Repo> {
    parse_id_as(spec, RepoKind::Model)
}

/// [`parse_id`] for a repository of some kind.
pub(super) fn parse_id_as(spec: &str, kind: RepoKind) -> Result<Repo> {
    let (id, revision) = split_revision(spec);
    let part_is_valid = |part: &str| {
        (1..=96).contains(&part.len())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
            && !part.starts_with(['-', '.'])
            && !part.ends_with(['-', '.'])
    };
    let valid = id.split('/').all(part_is_valid)
        && id.matches('/').count() <= 1
        && !id.contains("--")
        && !id.contains("..")
        && !id.ends_with(".git");
    if !valid {
        return Err(Error::config(format!("`{id}` is neither an existing path nor an id on the Hugging Face Hub")).help(
            "an id is name or org/name, made of letters, digits, `-`, `_` and `.`, for example openai-community/gpt2",
        ));
    }
    let revision = revision.unwrap_or(DEFAULT_REVISION);
    let revision_is_valid = (1..=200).contains(&revision.len())
        && revision.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./+".contains(&byte))
        && !revision.contains("..")
        && revision.split('/').all(|part| !part.is_empty() && !part.starts_with(['-', '.']) && !part.ends_with('.'));
    if !revision_is_valid {
        return Err(Error::config(format!("`{revision}` in `{spec}` is no revision"))
            .help("after the `@` comes a branch, a tag or a commit, for example gpt2@main"));
    }
    Ok(Repo { id: id.into(), kind, revision: revision.into() })
}

/// Whether this is a full git commit hash.
pub(super) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_called_by_its_id() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let name = |folder: &str| name_of(Path::new(folder));
        let found = name(&format!("/home/a/hub/models--distilbert--distilbert-base--x/snapshots/{commit}"));
        assert_eq!(found, "distilbert/distilbert-base--x (commit 0123456)");
        assert_eq!(name(&format!("hub/models--gpt2/snapshots/{commit}")), "gpt2 (commit 0123456)");
        let id = |folder: &str| id_of(Path::new(folder));
        assert_eq!(id(&format!("hub/models--org--name/snapshots/{commit}")).as_deref(), Some("org/name"));
        assert_eq!(id("models/own"), None);
        for folder in ["models/own", "own", "models--gpt2/snapshots/main", "models--gpt2/models--gpt2"] {
            assert_eq!(name(folder), folder);
        }
    }
}
