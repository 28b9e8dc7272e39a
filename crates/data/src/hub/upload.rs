//! The transfer of a push, by hf-hub: the repository and its branch, what it lacks, a commit on its
//! head, and a look at what has come of it. Large files go to the Hub's storage Xet, by hf-hub and
//! its hf-xet; a Hub that takes them in no other way than in the body of a commit is refused.

use std::collections::HashMap;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use hf_hub::progress::{ProgressEvent, ProgressHandler, UploadEvent};
use hf_hub::repository::{CommitOperation, RepoTreeEntry};
use hf_hub::{HFClientSync, HFError, HFRepositorySync, RepoTypeModel, split_id};
use indicatif::{ProgressBar, ProgressStyle};
use kiln_core::error::{Error, Result, one_line};
use kiln_core::files::hex;
use kiln_core::signals::Signal;
use kiln_core::{panics, signals};
use serde::Deserialize;
use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::HubSettings;
use super::push::{Content, PushFile, Pushed, Target, needed};
use super::repo::is_commit;

/// A request is sent again so often where the Hub has trouble of its own.
const RETRIES: usize = 1;
/// The pause before that, which is drawn from 0 to twice this.
const PAUSE: Duration = Duration::from_millis(500);
/// A commit may be silent so many times as long as the Hub's other answers: the Hub checks all of
/// its files first.
const COMMIT_PATIENCE: u32 = 6;
/// A commit is made so often at most, where others commit first or the Hub says when to come again.
const COMMITS: usize = 3;
/// The longest pause that the Hub may ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A head is looked at so often for a commit whose answer is lost.
const LOOKS: usize = 3;
/// Bytes in a second at which the body of a commit is taken to go out at least: the answer comes
/// after it.
const SLOWEST: u64 = 64 << 10;
/// Storage may be silent so many times as long as the Hub: it takes pieces of 64 MB, and looks at a
/// whole upload before it answers.
const STORAGE_PATIENCE: u32 = 30;
/// The Hub takes no larger file in the body of a commit.
const MOST_INLINE: u64 = 10 << 20;
const EVERY: Duration = Duration::from_millis(50);

type Repository = HFRepositorySync<RepoTypeModel>;

/// A message of the thread that pushes to the one that waits for it.
enum Message<T> {
    /// Bytes that are done, and all.
    Sent(u64, u64),
    /// No bytes are under way.
    Asking,
    Done(Result<T>),
}

/// Size and digests of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Digests {
    size: u64,
    /// The digest of a file in the Hub's storage.
    sha256: String,
    /// Git's, of a file in the repository itself.
    blob: String,
    /// Git's, of the pointer that is in the repository for a file in storage: the listing has it,
    /// and hf-hub does not read the SHA-256 there (`lfs.oid`).
    pointer: String,
}

impl Digests {
    fn of(path: &Path) -> Result<Self> {
        let io = |error: std::io::Error| Error::io(format!("read {}", path.display()), &error);
        let mut file = std::fs::File::open(path).map_err(io)?;
        let size = file.metadata().map_err(io)?.len();
        let (mut sha256, mut blob) = (Sha256::new(), Sha1::new());
        blob.update(format!("blob {size}\0"));
        let mut buffer = vec![0; 1 << 20];
        loop {
            if let Some(signal) = signals::received() {
                return Err(signal.error(format_args!("stopped before anything was sent, at {}", path.display())));
            }
            match file.read(&mut buffer).map_err(io)? {
                0 => break,
                read => {
                    sha256.update(&buffer[..read]);
                    blob.update(&buffer[..read]);
                }
            }
        }
        let sha256 = hex(&sha256.finalize());
        // https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
        let pointer = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n");
        let pointer = Sha1::digest(format!("blob {}\0{pointer}", pointer.len()));
        Ok(Self { size, sha256, blob: hex(&blob.finalize()), pointer: hex(&pointer) })
    }

    /// Whether `there`, an entry of the Hub's listing, has this content.
    fn is(&self, there: &Listed) -> bool {
        self.size == there.size
            && match &there.storage {
                Some(Some(sha256)) => *sha256 == self.sha256,
                Some(None) => there.oid == self.pointer,
                None => there.oid == self.blob,
            }
    }
}

/// A file of the Hub's listing.
struct Listed {
    size: u64,
    oid: String,
    /// The file lies in storage, with this SHA-256 where the listing says it.
    storage: Option<Option<String>>,
}

pub(super) fn open(target: &Target, settings: &HubSettings) -> Result<()> {
    attended(target, settings, None, |hub, _| hub.head().map(drop))
}

pub(super) fn upload(target: &Target, content: Content<'_>, settings: &HubSettings) -> Result<Pushed> {
    let mut files = Vec::with_capacity(content.files.len());
    for file in content.files {
        files.push((Digests::of(&file.path)?, file));
    }
    let (mut is_new, mut commits) = (false, 0);
    loop {
        let (head, listed) = attended(target, settings, None, |hub, _| {
            let head = hub.head()?;
            let listed = hub.list(&head.id, &head.commit)?;
            Ok((head, listed))
        })?;
        is_new |= head.is_new;
        let sent = lacking(&files, &listed).cloned().collect::<Vec<_>>();
        let is_kept = |name: &str| files.iter().any(|(_, file)| file.name == name);
        let removed = listed.into_keys().filter(|name| (content.removes)(name) && !is_kept(name));
        let mut removed = removed.collect::<Vec<_>>();
        removed.sort();
        if sent.is_empty() && removed.is_empty() {
            let url = head.page(settings);
            return Ok(Pushed { url, commit: head.commit, is_new, sent: Vec::new(), removed });
        }
        let commit = Commit { head, files: files.clone(), sent, removed, message: content.message.clone() };
        let attempt = attended(target, settings, Some(commit.inline()), move |hub, tell| hub.commit(commit, tell))?;
        commits += 1;
        match attempt {
            Attempt::Made(pushed) => return Ok(Pushed { is_new, ..pushed }),
            Attempt::Refused(_, error) if commits == COMMITS => return Err(error),
            Attempt::Refused(pause, _) => wait(pause, target)?,
        }
    }
}

/// Waits, unless a signal comes.
fn wait(pause: Duration, target: &Target) -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < pause {
        if let Some(signal) = signals::received() {
            return Err(stopped(signal, target));
        }
        thread::sleep(EVERY);
    }
    Ok(())
}

fn stopped(signal: Signal, target: &Target) -> Error {
    signal.error(format_args!(
        "stopped the push to `{}`: what was sent is not sent again when it is repeated",
        target.name()
    ))
}

/// The outcome of a commit.
enum Attempt {
    Made(Pushed),
    /// It may be made after this pause, on the head of then.
    Refused(Duration, Error),
}

/// The ones of `files` that are not in `listed`.
fn lacking<'a>(
    files: &'a [(Digests, PushFile)],
    listed: &'a HashMap<String, Listed>,
) -> impl Iterator<Item = &'a (Digests, PushFile)> {
    files.iter().filter(|(digests, file)| !listed.get(&file.name).is_some_and(|there| digests.is(there)))
}

/// A commit that is to be made.
struct Commit {
    head: Head,
    /// All that is to be there then, with what is there already.
    files: Vec<(Digests, PushFile)>,
    sent: Vec<(Digests, PushFile)>,
    removed: Vec<String>,
    message: String,
}

impl Commit {
    /// The most bytes of files that its body may have: a larger file goes to storage.
    fn inline(&self) -> u64 {
        self.sent.iter().map(|(digests, _)| digests.size).filter(|size| *size <= MOST_INLINE).sum()
    }

    /// The largest file that is too large for its body.
    fn large(&self) -> Option<&(Digests, PushFile)> {
        self.sent.iter().filter(|(digests, _)| digests.size > MOST_INLINE).max_by_key(|(digests, _)| digests.size)
    }
}

/// Does `work` with the Hub in a thread of its own, which is left behind where a signal comes or
/// the storage falls silent. Draws how far it has come. Work that makes a commit names the bytes of
/// files that the body of the commit has at most.
fn attended<T: Send + 'static>(
    target: &Target,
    settings: &HubSettings,
    commit: Option<u64>,
    work: impl FnOnce(&Hub, &Sender<Message<T>>) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (tell, messages) = mpsc::channel();
    let hub = Hub::new(target, settings, commit)?;
    let thread = thread::Builder::new().name("push".into()).spawn(move || {
        let done = catch_unwind(AssertUnwindSafe(|| work(&hub, &tell)));
        let done = done.unwrap_or_else(|payload| Err(Error::panicked("the upload", &panics::message(&*payload))));
        // Who waits for it may have left.
        let _ = tell.send(Message::Done(done));
    });
    thread.map_err(|error| Error::start("the thread that uploads", &error))?;
    let bar = if settings.progress { bar() } else { ProgressBar::hidden() };
    let limit = settings.timeout * STORAGE_PATIENCE;
    let mut moved: Option<(u64, Instant)> = None;
    let done = loop {
        match messages.recv_timeout(EVERY) {
            Ok(Message::Done(done)) => break done,
            Ok(Message::Asking) => moved = None,
            Ok(Message::Sent(bytes, all)) => {
                bar.set_length(all);
                bar.set_position(bytes.min(all));
                if moved.is_none_or(|(before, _)| before != bytes) {
                    moved = Some((bytes, Instant::now()));
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break Err(Error::panicked("the upload", "it ended without a word")),
        }
        if let Some(signal) = signals::received() {
            break Err(stopped(signal, target));
        }
        if moved.is_some_and(|(_, since)| since.elapsed() > limit) {
            break Err(Error::data(format!(
                "the storage of {} has taken nothing of `{}` for {limit:?}",
                settings.shown_endpoint(),
                target.name()
            ))
            .help(AGAIN));
        }
    };
    bar.finish_and_clear();
    done
}

const AGAIN: &str = "run the command again: what the Hub has by now is not sent again; HF_HUB_DOWNLOAD_TIMEOUT sets how \
                     many seconds it may be silent";

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("pushing [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} ({eta})");
    let bar = ProgressBar::new(0);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Passes on how much is sent.
struct Handler<T>(Sender<Message<T>>);

impl<T: Send> ProgressHandler for Handler<T> {
    fn on_progress(&self, event: &ProgressEvent) {
        let message = match event {
            // What is read, cut and compared counts as well as what goes out.
            ProgressEvent::Upload(UploadEvent::Progress {
                bytes_completed,
                total_bytes,
                transfer_bytes_completed,
                transfer_bytes,
                ..
            }) => Message::Sent(bytes_completed + transfer_bytes_completed, total_bytes + transfer_bytes),
            _ => Message::Asking,
        };
        let _ = self.0.send(message);
    }
}

/// The head of a branch.
struct Head {
    /// `owner/name`
    id: String,
    commit: String,
    is_new: bool,
}

impl Head {
    fn page(&self, settings: &HubSettings) -> String {
        format!("{}/{}", settings.shown_endpoint(), self.id)
    }
}

/// The Hub, for one target.
struct Hub {
    target: Target,
    settings: HubSettings,
    /// How long it may be silent.
    patience: Duration,
    client: HFClientSync,
}

impl Hub {
    /// A client for questions, or for a `commit` with so many bytes of files at most.
    fn new(target: &Target, settings: &HubSettings, commit: Option<u64>) -> Result<Self> {
        let patience = match commit {
            None => settings.timeout,
            // Base64 makes four bytes of three.
            Some(inline) => settings.timeout * COMMIT_PATIENCE + Duration::from_secs(inline / 3 * 4 / SLOWEST),
        };
        // A commit that is sent again would be another pull request, and a branch refuses it.
        let retries = if commit.is_some() && target.create_pr { 0 } else { RETRIES };
        let endpoint = settings.shown_endpoint();
        let failed = |error: String| {
            Error::data(format!("no client for {endpoint}: {error}")).help(
                "TLS takes the certificates of the system (Debian's package ca-certificates), or those that SSL_CERT_FILE \
                 names",
            )
        };
        // The token stays with the host that it is for.
        let same_host = reqwest::redirect::Policy::custom(|attempt| {
            let is_same = attempt.previous().first().is_some_and(|first| first.origin() == attempt.url().origin());
            if is_same && attempt.previous().len() <= 5 { attempt.follow() } else { attempt.stop() }
        });
        let client = reqwest::Client::builder()
            .connect_timeout(settings.timeout)
            .read_timeout(patience)
            .redirect(same_host)
            .user_agent(concat!("kiln/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| failed(words(&error)))?;
        let builder = hf_hub::HFClient::builder()
            .endpoint(&endpoint)
            .token(settings.token.as_deref().unwrap_or_default())
            .client(client)
            .cache_dir(&settings.cache)
            .cache_enabled(false)
            .retry_max_attempts(retries)
            .retry_base_delay(PAUSE);
        let client = builder.build_sync().map_err(|error| failed(words(&error)))?;
        Ok(Self { target: target.clone(), settings: settings.clone(), patience, client })
    }

    fn repository(&self, id: &str) -> Repository {
        let (owner, name) = split_id(id);
        self.client.model(owner, name)
    }

    /// The head of the branch. A repository and a branch that are not there are made.
    fn head(&self) -> Result<Head> {
        let id = match self.target.id.contains('/') {
            true => self.target.id.clone(),
            false => {
                let user = self.client.whoami().send().map_err(|error| self.failed(&error))?;
                format!("{}/{}", user.username, self.target.id)
            }
        };
        let repository = self.repository(&id);
        let mut is_new = false;
        let main = match self.commit_of(&repository, None) {
            Err(HFError::RepoNotFound { .. }) => {
                self.create(&id)?;
                is_new = true;
                self.commit_of(&repository, None)
            }
            found => found,
        };
        let main = main.map_err(|error| self.failed(&error))?;
        let commit = match &self.target.revision {
            None => main,
            Some(branch) => {
                let found = self.commit_of(&repository, Some(branch));
                let is_missing = |error: &HFError| match error {
                    HFError::RevisionNotFound { .. } => true,
                    HFError::RepoNotFound { context, .. } => context
                        .as_ref()
                        .is_some_and(|context| context.error_code.as_deref() == Some("RevisionNotFound")),
                    _ => false,
                };
                match found {
                    Err(error) if is_missing(&error) => {
                        match repository.create_branch().branch(branch).revision(main.clone()).send() {
                            Ok(_) => main,
                            // Another process has made it meanwhile.
                            Err(HFError::Conflict { .. }) => {
                                self.commit_of(&repository, Some(branch)).map_err(|error| self.failed(&error))?
                            }
                            Err(error) => return Err(self.failed(&error)),
                        }
                    }
                    found => found.map_err(|error| self.failed(&error))?,
                }
            }
        };
        Ok(Head { id, commit, is_new })
    }

    fn commit_of(&self, repository: &Repository, revision: Option<&str>) -> std::result::Result<String, HFError> {
        let info = repository.info().maybe_revision(revision).send()?;
        let commit = info.sha.unwrap_or_default();
        if is_commit(&commit) { Ok(commit) } else { Err(HFError::Other(format!("{commit:?} is no commit"))) }
    }

    /// The files of the repository `id` at `commit`.
    fn list(&self, id: &str, commit: &str) -> Result<HashMap<String, Listed>> {
        let entries = self.repository(id).list_tree().revision(commit).recursive(true).send();
        let files = entries.map_err(|error| self.failed(&error))?.into_iter().filter_map(|entry| match entry {
            RepoTreeEntry::File { oid, size, path, lfs, .. } => {
                let size = lfs.as_ref().and_then(|lfs| lfs.size).unwrap_or(size);
                Some((path, Listed { size, oid, storage: lfs.map(|lfs| lfs.sha256) }))
            }
            RepoTreeEntry::Directory { .. } => None,
        });
        Ok(files.collect())
    }

    /// Makes the repository `id`. hf-hub would have it public where nobody says whether it is
    /// private, and the Hub has it as its owner's settings say then.
    fn create(&self, id: &str) -> Result<()> {
        let (owner, name) = split_id(id);
        let mut body = json!({ "name": name, "organization": owner, "type": "model" });
        if let Some(private) = self.target.private {
            body["private"] = private.into();
        }
        let mut left = RETRIES;
        loop {
            let failed = match self.post("/api/repos/create", "application/json", &body) {
                // Another process may make it at the same time.
                Ok((409, _)) => return Ok(()),
                Ok((status, _)) if (200..300).contains(&status) => return Ok(()),
                Ok((status, answer)) => {
                    let said = serde_json::from_slice::<Value>(&answer).unwrap_or_default();
                    let failed = self.refused(status, said.get("error").and_then(Value::as_str));
                    if status != 429 && status < 500 {
                        return Err(failed);
                    }
                    failed
                }
                Err(ureq::Error::Timeout(_)) => self.unanswered(&self.silence()),
                Err(error) => self.unanswered(&self.clean(&words(&error))),
            };
            if left == 0 {
                return Err(failed);
            }
            left -= 1;
            thread::sleep(PAUSE);
        }
    }

    /// Makes `commit`, and looks whether all of its files are there then.
    fn commit(&self, commit: Commit, tell: &Sender<Message<Attempt>>) -> Result<Attempt> {
        if let Some((digests, file)) = commit.large()
            && !self.takes_xet(&commit.head.id, digests)?
        {
            return Err(Error::data(format!(
                "{} does not take {} ({} bytes): it has no Xet, the storage of huggingface.co for large files",
                self.settings.shown_endpoint(),
                file.name,
                digests.size
            ))
            .help("upload the folder with Hugging Face's own command, which knows other storage: hf upload"));
        }
        let Commit { head, files, sent, removed, message } = commit;
        let adds = sent.iter().map(|(_, file)| CommitOperation::add_file(&file.name, &file.path));
        let made = self
            .repository(&head.id)
            .create_commit()
            .operations(adds.chain(removed.iter().map(CommitOperation::delete)).collect())
            .commit_message(message)
            .revision(self.target.branch())
            .create_pr(self.target.create_pr)
            .parent_commit(head.commit.clone())
            .progress(Handler(tell.clone()))
            .send();
        let _ = tell.send(Message::Asking);
        let (made, url) = match made {
            Ok(info) => {
                let made = info.commit_oid.filter(|commit| is_commit(commit)).ok_or_else(|| {
                    Error::data(format!("{} names no commit", self.settings.shown_endpoint()))
                        .help("check HF_ENDPOINT and the proxy")
                })?;
                let page = head.page(&self.settings);
                // The Hub calls it `pullRequestUrl`, which hf-hub does not read.
                let proposed = || self.target.create_pr.then(|| format!("{page}/discussions"));
                (made, info.pr_url.or_else(proposed).unwrap_or(page))
            }
            // The answer may be lost, and the commit made: then the head has the files.
            Err(error) => match self.made_unheard(&head, &files, &removed, &error) {
                Some(made) => (made, head.page(&self.settings)),
                None => {
                    let failed = self.failed(&error);
                    let again = format!("{}/discussions", head.page(&self.settings));
                    return match pause_before_another(&error) {
                        Some(pause) => Ok(Attempt::Refused(pause, failed)),
                        None if self.target.create_pr && is_unheard(&error) => Err(failed.help(format!(
                            "look at {again} first: the pull request may be there; if it is not, run the command again"
                        ))),
                        None => Err(failed),
                    };
                }
            },
        };
        let listed = self.list(&head.id, &made)?;
        let other = lacking(&files, &listed).next();
        let other =
            other.map(|(_, file)| format!("{} of `{}` is another file on the Hub than here", file.name, head.id));
        let stays = || {
            let name = removed.iter().find(|name| listed.contains_key(*name))?;
            Some(format!("{name} of `{}` is still on the Hub", head.id))
        };
        if let Some(what) = other.or_else(stays) {
            return Err(Error::data(format!("{what}, after the commit {made}"))
                .help("run the command again; if it stays so, a file has changed meanwhile, or a proxy alters files"));
        }
        let sent = sent.into_iter().map(|(digests, file)| (file.name, digests.size)).collect();
        Ok(Attempt::Made(Pushed { url, commit: made, is_new: head.is_new, sent, removed }))
    }

    /// The commit after `head` that has `files` and none of `removed`, if the branch has one after
    /// this error. The Hub may still be making it.
    fn made_unheard(
        &self,
        head: &Head,
        files: &[(Digests, PushFile)],
        removed: &[String],
        error: &HFError,
    ) -> Option<String> {
        if self.target.create_pr {
            return None;
        }
        let repository = self.repository(&head.id);
        for look in 0..if is_unheard(error) { LOOKS } else { 1 } {
            if look > 0 {
                thread::sleep(self.settings.timeout.min(2 * PAUSE));
            }
            let now = self.commit_of(&repository, self.target.revision.as_deref()).ok()?;
            if now != head.commit {
                let listed = self.list(&head.id, &now).ok()?;
                let is_made =
                    lacking(files, &listed).next().is_none() && !removed.iter().any(|name| listed.contains_key(name));
                return is_made.then_some(now);
            }
        }
        None
    }

    /// Status and body of the Hub's answer to `body`, which is sent to `path` by no means of
    /// hf-hub.
    fn post(&self, path: &str, kind: &str, body: &Value) -> std::result::Result<(u16, Vec<u8>), ureq::Error> {
        let timeout = Some(self.settings.timeout);
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .timeout_global(timeout.map(|timeout| timeout * 2))
            .timeout_connect(timeout)
            .timeout_recv_response(timeout)
            .http_status_as_error(false)
            .max_redirects(0)
            .build()
            .into();
        let token = self.settings.token.as_deref().unwrap_or_default();
        let mut answer = agent
            .post(format!("{}{path}", self.settings.shown_endpoint()))
            .header("Authorization", format!("Bearer {token}"))
            .header("Accept", kind)
            .header("Content-Type", kind)
            .send(body.to_string().as_bytes())?;
        let body = answer.body_mut().with_config().limit(1 << 20).read_to_vec().unwrap_or_default();
        Ok((answer.status().as_u16(), body))
    }

    /// Whether the Hub takes a large file by Xet. hf-hub would put it into the body of the commit
    /// otherwise, in memory several times.
    fn takes_xet(&self, id: &str, file: &Digests) -> Result<bool> {
        #[derive(Deserialize)]
        struct Answer {
            transfer: Option<String>,
        }
        let body = json!({
            "operation": "upload",
            "transfers": ["basic", "multipart", "xet"],
            "objects": [{ "oid": file.sha256, "size": file.size }],
            "hash_algo": "sha256",
            "ref": { "name": self.target.branch() },
        });
        let path = format!("/{id}.git/info/lfs/objects/batch");
        // A Hub that does not answer to this is told of by the commit.
        match self.post(&path, "application/vnd.git-lfs+json", &body) {
            Ok((200..300, answer)) => {
                Ok(serde_json::from_slice::<Answer>(&answer)
                    .is_ok_and(|answer| answer.transfer.as_deref() == Some("xet")))
            }
            Ok(_) | Err(_) => Ok(true),
        }
    }

    /// The failure of a request, in words.
    fn failed(&self, error: &HFError) -> Error {
        if let Some((status, said)) = status_of(error) {
            return self.refused(status, said);
        }
        match error {
            HFError::Request { source, .. } if source.is_timeout() => self.unanswered(&self.silence()),
            HFError::Request { source, .. } => self.unanswered(&self.clean(&words(source))),
            HFError::Io(error) => Error::io(format!("push to `{}`", self.target.name()), error),
            error => self.unanswered(&self.clean(&words(error))),
        }
    }

    fn silence(&self) -> String {
        format!("no answer within {:?}", self.patience)
    }

    /// A line of `text` without the token: the Hub may say what it was sent.
    fn clean(&self, text: &str) -> String {
        let token = self.settings.token.as_deref().unwrap_or_default();
        one_line(&if token.is_empty() { text.to_owned() } else { text.replace(token, "TOKEN") })
    }

    /// The failure of a request that the Hub does not answer.
    fn unanswered(&self, why: &str) -> Error {
        let (name, endpoint) = (self.target.name(), self.settings.shown_endpoint());
        Error::data(format!("cannot push to `{name}` at {endpoint}: {why}")).help(AGAIN)
    }

    /// The failure of a request that the Hub answers with `status`.
    fn refused(&self, status: u16, said: Option<&str>) -> Error {
        let (name, endpoint) = (self.target.name(), self.settings.shown_endpoint());
        let said = said.map_or_else(String::new, |said| format!(": {}", self.clean(said)));
        match status {
            401 => Error::data(format!(
                "{endpoint} does not take the token with which `{name}` is pushed to (HTTP status 401){said}"
            ))
            .help(needed(&self.target.id)),
            403 => Error::data(format!("the token may not write to `{name}` on {endpoint} (HTTP status 403){said}"))
                .help(needed(&self.target.id)),
            404 => Error::data(format!("`{name}` is not there on {endpoint} (HTTP status 404){said}"))
                .help(needed(&self.target.id)),
            409 | 412 => Error::data(format!(
                "`{name}` has got another commit while this one was made (HTTP status {status}){said}"
            ))
            .help("run the command again: the next commit follows that one, and what the Hub has is not sent again"),
            429 => Error::data(format!("{endpoint} takes nothing for now: too many requests (HTTP status 429)"))
                .help("wait, then run the command again: what the Hub has by now is not sent again"),
            _ => {
                Error::data(format!("{endpoint} refuses the push to `{name}`: HTTP status {status}{said}")).help(AGAIN)
            }
        }
    }
}

/// Whether the Hub may have done what it was asked to before this error.
fn is_unheard(error: &HFError) -> bool {
    matches!(error, HFError::Request { .. }) || status_of(error).is_some_and(|(status, _)| status >= 500)
}

/// The pause after which another commit may do what one with this error did not: on the head of
/// somebody else, or when the Hub says.
fn pause_before_another(error: &HFError) -> Option<Duration> {
    match error {
        HFError::RateLimited { retry_after, .. } => retry_after.filter(|pause| *pause <= LONGEST_PAUSE),
        error => status_of(error).is_some_and(|(status, _)| matches!(status, 409 | 412)).then_some(PAUSE),
    }
}

/// The HTTP status of an error, and what the Hub says of it.
fn status_of(error: &HFError) -> Option<(u16, Option<&str>)> {
    match error {
        HFError::Http { context }
        | HFError::AuthRequired { context }
        | HFError::Forbidden { context }
        | HFError::Conflict { context }
        | HFError::RateLimited { context, .. }
        | HFError::RepoNotFound { context: Some(context), .. }
        | HFError::RevisionNotFound { context: Some(context), .. }
        | HFError::EntryNotFound { context: Some(context), .. } => {
            Some((context.status.as_u16(), context.server_message.as_deref()))
        }
        _ => None,
    }
}

/// An error and those that caused it.
fn words(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !words.contains(&text) {
            words += &format!(": {text}");
        }
        cause = error.source();
    }
    words
}
