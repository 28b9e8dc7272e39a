//! Writes files to a repository of models on the Hub: what is to be there, in one commit that names
//! the commit which it follows, and is looked at afterwards. What goes over the network is the
//! crate hf-hub's work, behind the Cargo feature `push`.

use std::path::{Path, PathBuf};

use kiln_core::error::{Error, Result};

use super::HubSettings;
use super::repo::{DEFAULT_REVISION, parse_id};
#[cfg(feature = "push")]
use super::upload::{open, upload};

/// Whether this build can write to the Hub: the Cargo feature `push`.
pub const CAN_PUSH: bool = cfg!(feature = "push");

/// The place of the files on the Hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// `org/name`; or `name`, of the account of the token.
    pub id: String,
    /// The branch, which is made where it is not there. Default: `main`.
    pub revision: Option<String>,
    /// Whether a repository that is made is private. None: the Hub's own default, which an
    /// organization sets for its repositories.
    pub private: Option<bool>,
    /// The commit is proposed as a pull request, and the branch stays as it is.
    pub create_pr: bool,
}

/// A file for the Hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushFile {
    /// Its path in the repository.
    pub name: String,
    /// The file.
    pub path: PathBuf,
}

/// The files that a commit brings.
pub struct Content<'a> {
    /// All that is to be there. Files of the repository that are the same are not sent.
    pub files: Vec<PushFile>,
    /// Says of another file of the repository whether an earlier push has left it and this one
    /// removes it: weights in other shards would be read in the place of the new ones.
    pub removes: &'a dyn Fn(&str) -> bool,
    /// The subject of the commit.
    pub message: String,
}

/// The outcome of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// The page of the repository, or of the pull request.
    pub url: String,
    /// The commit that has the files.
    pub commit: String,
    /// The repository was made for it.
    pub is_new: bool,
    /// Names and bytes of the files that were not there; none where there was nothing to push.
    pub sent: Vec<(String, u64)>,
    /// Names of the files that were removed.
    pub removed: Vec<String>,
}

impl Target {
    /// The branch's name.
    pub fn branch(&self) -> &str {
        self.revision.as_deref().unwrap_or(DEFAULT_REVISION)
    }

    /// The repository and the branch, as an id with a revision is written.
    pub fn name(&self) -> String {
        match self.branch() {
            DEFAULT_REVISION => self.id.clone(),
            branch => format!("{}@{branch}", self.id),
        }
    }

    /// Refuses, without asking the Hub, what cannot be pushed to with `settings`.
    ///
    /// # Errors
    /// `Config` for a build without the feature `push`, an id or a branch that cannot be one, no
    /// token, a login in the endpoint, and a network that is not to be used.
    pub fn check(&self, settings: &HubSettings) -> Result<()> {
        if self.id.contains('@') || parse_id(&self.id).is_err() {
            return Err(Error::config(format!("`{}` is no id of a repository", self.id)).help(
                "an id is org/name or name, made of letters, digits, `-`, `_` and `.`; the branch has an option of its own",
            ));
        }
        if parse_id(&format!("{}@{}", self.id, self.branch())).is_err() {
            return Err(Error::config(format!("`{}` is no name of a branch", self.branch()))
                .help("give the name of a branch, for example main"));
        }
        if !CAN_PUSH {
            return Err(Error::config("this build of kiln cannot write to the Hub: it lacks the Cargo feature `push`")
                .help(format!(
                    "build with it (cargo build --release --features push), or upload the folder with Hugging Face's own \
                     command: hf upload {} FOLDER",
                    self.id
                )));
        }
        if settings.offline {
            return Err(Error::config(format!(
                "HF_HUB_OFFLINE forbids the network, so `{}` cannot be pushed to",
                self.id
            ))
            .help("unset HF_HUB_OFFLINE"));
        }
        if settings.login().is_some() {
            return Err(Error::config("HF_ENDPOINT holds a user name, and a push is signed by a token")
                .help("write the address without it, and set HF_TOKEN"));
        }
        if settings.token.is_none() {
            return Err(
                Error::config(format!("there is no token to push to `{}` with", self.id)).help(needed(&self.id))
            );
        }
        Ok(())
    }
}

/// The token that a push needs.
pub(super) fn needed(id: &str) -> String {
    let owner = id.split_once('/').map_or("your account", |(owner, _)| owner);
    format!(
        "set HF_TOKEN, or log in with `hf auth login`, to a token that may write to the repositories of {owner} \
         (https://huggingface.co/settings/tokens)"
    )
}

/// Brings the files of `content` to `target`: one commit for all of them, none where they are there
/// already. A repository or branch that is not there is made. What is on the Hub in the end is
/// compared by digest, SHA-256 of large files and git's SHA-1 of small ones.
///
/// # Errors
/// The errors of [`Target::check`], files that cannot be read, a Hub that refuses or does not
/// answer in time (by [`HubSettings::timeout`]), a branch that others keep moving, and a signal.
/// What is on the Hub by then is used when the push is asked for again.
pub fn push(target: &Target, content: Content<'_>, settings: &HubSettings) -> Result<Pushed> {
    target.check(settings)?;
    upload(target, content, settings)
}

/// Makes the repository and the branch of `target` where they are not there, so that a token
/// without the right is told of before there is anything to push.
///
/// # Errors
/// The errors of [`push`].
pub fn prepare(target: &Target, settings: &HubSettings) -> Result<()> {
    target.check(settings)?;
    open(target, settings)
}

/// A file of the folder `folder` under the same name.
pub fn file_of(folder: &Path, name: &str) -> PushFile {
    PushFile { name: name.to_owned(), path: folder.join(name) }
}

#[cfg(not(feature = "push"))]
fn upload(_: &Target, _: Content<'_>, _: &HubSettings) -> Result<Pushed> {
    unreachable!("a build without the feature refuses every target")
}

#[cfg(not(feature = "push"))]
fn open(_: &Target, _: &HubSettings) -> Result<()> {
    unreachable!("a build without the feature refuses every target")
}
