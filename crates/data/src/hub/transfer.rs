//! Talks to the Hub: what a revision holds, and one file at a time into the cache. A file enters
//! the cache under its own name only when every byte is there (length, and SHA-256 where the Hub
//! gives it); until then it is `*.incomplete`.
//!
//! The transfer is Kiln's own because the crate hf-hub 1.0.0, by which Kiln writes to the Hub
//! ([`super::push`]), reads with less care: a HEAD waits for ever on a host that does not answer, a
//! transfer that broke off begins anew (its issue 196), neither length nor digest is checked before
//! a file gets its name, the page of an HTTP error is taken for the file, names of the listing and
//! ETags become paths unchecked, and there is no `HF_HUB_OFFLINE`.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use indicatif::{ProgressBar, ProgressStyle};
use kiln_core::error::{Error, Result, one_line};
use kiln_core::files::{is_plain_name, sha256};
use kiln_core::words::json_words;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use ureq::http::{Method, Request, Response, StatusCode, Uri};

use super::repo::{CachedRepo, Repo, RepoInfo, is_commit};
use super::{HubSettings, offline_help};

/// Redirects are followed this far: renamed repository, cached file, storage.
const MAX_REDIRECTS: usize = 5;
/// How often a transfer is taken up again after it broke off.
const MAX_ATTEMPTS: u32 = 3;
/// A body that is slower over [`HubSettings::timeout`] is given up: a model would take weeks.
const MIN_BYTES_PER_SECOND: f64 = 1024.0;
/// The list of a repository's files: 100 bytes for each of half a million.
const MAX_LISTING: u64 = 50 << 20;
/// The characters that are percent-encoded in a URL's path.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A repository on the Hub, and the settings to reach it with.
pub(super) struct Session<'a> {
    repo: &'a Repo,
    settings: &'a HubSettings,
    cached: &'a CachedRepo<'a>,
    agent: ureq::Agent,
    /// The address of the Hub, without user name and password.
    endpoint: String,
    origin: Uri,
    /// The user's token, which is sent to the Hub and nowhere else.
    authorization: Option<String>,
}

/// The Hub's answer about a file before it is sent.
struct FileInfo {
    /// Names the content: SHA-256 of a large file, git's hash of a small one.
    etag: String,
    /// Bytes.
    size: u64,
}

/// The Hub gave no answer, or none to the question.
pub(super) struct Unanswered(pub(super) Error);

impl From<Unanswered> for Error {
    fn from(unanswered: Unanswered) -> Self {
        unanswered.0
    }
}

/// Why an attempt to receive a file ended early.
enum Interrupted {
    /// The connection: worth another attempt.
    Transfer(String),
    /// Anything else.
    Final(Error),
}

impl<'a> Session<'a> {
    pub(super) fn new(repo: &'a Repo, settings: &'a HubSettings, cached: &'a CachedRepo<'a>) -> Result<Self> {
        let config = ureq::Agent::config_builder()
            .timeout_resolve(Some(settings.timeout))
            .timeout_connect(Some(settings.timeout))
            .timeout_send_request(Some(settings.timeout))
            .timeout_recv_response(Some(settings.timeout))
            .timeout_per_read(Some(settings.timeout))
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("kiln/", env!("CARGO_PKG_VERSION")))
            .build();
        let endpoint = settings.shown_endpoint();
        let origin = Uri::try_from(&endpoint)
            .map_err(|error| Error::config(format!("`{endpoint}` is no address of a Hub: {error}")))?;
        let authorization = match (settings.login(), &settings.token) {
            (Some(login), _) => {
                let login = percent_decode_str(login).collect::<Vec<_>>();
                Some(format!("Basic {}", BASE64_STANDARD.encode(login)))
            }
            (None, token) => token.as_ref().map(|token| format!("Bearer {token}")),
        };
        Ok(Self { repo, settings, cached, agent: config.into(), endpoint, origin, authorization })
    }

    /// The commit that the revision means now, and the names of its files.
    pub(super) fn info(&self) -> Result<RepoInfo> {
        self.read_info(self.ask()?)
    }

    /// Asks the Hub about the revision. Too many requests and trouble of the server's own are no
    /// answers.
    pub(super) fn ask(&self) -> std::result::Result<Response<ureq::Body>, Unanswered> {
        let reply = self.send(Method::GET, &self.info_url(), 0).map_err(Unanswered)?;
        match reply.status().as_u16() {
            429 | 500.. => self.check(&reply, None).map_err(Unanswered).map(|()| reply),
            _ => Ok(reply),
        }
    }

    fn info_url(&self) -> String {
        format!("{}/api/{}", self.endpoint, self.repo.api_path())
    }

    /// [`info`](Self::info) out of the answer of [`ask`](Self::ask).
    pub(super) fn read_info(&self, reply: Response<ureq::Body>) -> Result<RepoInfo> {
        let url = self.info_url();
        self.check(&reply, None)?;
        let unexpected = |what: String| {
            Error::data(format!("the answer of {url} is not the Hub's: {what}")).help("check HF_ENDPOINT and the proxy")
        };
        let mut text = Vec::new();
        let read = Paced::new(reply, self.settings.timeout).take(MAX_LISTING + 1).read_to_end(&mut text);
        read.map_err(|error| self.unreachable(&reason(&error.into(), self.settings)))?;
        if text.len() as u64 > MAX_LISTING {
            return Err(unexpected(format!("it is longer than {MAX_LISTING} bytes")));
        }
        let info: RepoInfo = serde_json::from_slice(&text).map_err(|error| unexpected(json_words(&error)))?;
        if !is_commit(&info.sha) {
            return Err(unexpected(format!("{:?} is no commit", info.sha)));
        }
        // Names become paths of the cache: whoever answers for the Hub must not reach anything
        // else.
        match info.siblings.iter().find(|file| !file.rfilename.split('/').all(is_plain_name)) {
            None => Ok(info),
            Some(file) => Err(unexpected(format!("it lists {:?}, which is no path in a repository", file.rfilename))),
        }
    }

    /// Makes sure that the snapshot of `commit` holds the file.
    pub(super) fn fetch(&self, commit: &str, name: &str) -> Result<()> {
        let pointer = self.cached.snapshot(commit).join(name);
        if pointer.is_file() {
            return Ok(());
        }
        let path = utf8_percent_encode(name, IN_PATH);
        let url = format!("{}/{}/resolve/{commit}/{path}", self.endpoint, self.repo.path());
        let info = self.file_info(&url, name)?;
        let blob = self.cached.blob(&info.etag);
        let blobs = blob.parent().unwrap_or(&self.settings.cache);
        std::fs::create_dir_all(blobs).map_err(|error| Error::io(format!("create {}", blobs.display()), &error))?;
        let _lock = self.lock(&info.etag)?;
        // Another process may have finished the same file while this one waited for the lock.
        if blob.metadata().map(|found| found.len()).ok() != Some(info.size) {
            self.download(&url, &blob, &info, name)?;
        }
        link(&blob, &pointer, name)
    }

    /// Asks for a file's etag and size. The answer before the redirect to storage is the one that
    /// knows them.
    fn file_info(&self, url: &str, name: &str) -> Result<FileInfo> {
        let reply = self.send(Method::HEAD, url, 0)?;
        self.check(&reply, Some(name))?;
        let header = |key: &str| reply.headers().get(key).and_then(|value| value.to_str().ok());
        let etag = header("x-linked-etag").or_else(|| header("etag")).unwrap_or_default();
        let etag = etag.trim_start_matches("W/").trim_matches('"');
        let size = header("x-linked-size").or_else(|| header("content-length")).and_then(|size| size.parse().ok());
        // The etag becomes a file name.
        let is_name =
            (1..=200).contains(&etag.len()) && etag.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        match (is_name, size) {
            (true, Some(size)) => Ok(FileInfo { etag: etag.to_string(), size }),
            _ => Err(Error::data(format!("the answer of {url} is not the Hub's: it lacks the etag or the size"))
                .help("check HF_ENDPOINT and the proxy")),
        }
    }

    /// Brings the whole file to `blob`, resuming what an earlier attempt left.
    fn download(&self, url: &str, blob: &Path, info: &FileInfo, name: &str) -> Result<()> {
        let partial = beside(blob, "incomplete");
        let bar = self.progress_bar(info.size, name);
        // Only what can be checked afterwards is resumed; the other files are small.
        let is_sha256 = info.etag.len() == 64 && info.etag.bytes().all(|byte| byte.is_ascii_hexdigit());
        for attempt in 1.. {
            let found = partial.metadata().map_or(0, |found| found.len());
            let start = if is_sha256 && found <= info.size { found } else { 0 };
            match self.receive(url, &partial, start, info.size, name, &bar) {
                Ok(()) => {}
                Err(Interrupted::Transfer(_)) if attempt < MAX_ATTEMPTS => {
                    std::thread::sleep(Duration::from_millis(200) * attempt);
                    continue;
                }
                Err(Interrupted::Transfer(reason)) => {
                    let found = partial.metadata().map_or(0, |found| found.len());
                    let whole = info.size;
                    return Err(Error::data(format!(
                        "{name} of `{}` broke off after {found} of {whole} bytes, {attempt} times: {reason}",
                        self.repo.name()
                    ))
                    .help("run the command again to go on; nothing incomplete is used"));
                }
                Err(Interrupted::Final(error)) => return Err(error),
            }
            let digest = || sha256(&partial).map_err(|error| Error::io(format!("read {}", partial.display()), &error));
            if !is_sha256 || digest()?.1 == info.etag.to_ascii_lowercase() {
                break;
            }
            let _ = std::fs::remove_file(&partial);
            if attempt == MAX_ATTEMPTS {
                return Err(Error::data(format!("{name} of `{}` arrived damaged (SHA-256 differs)", self.repo.name()))
                    .help("run the command again; if it stays so, the server or a proxy alters files"));
            }
        }
        bar.finish_and_clear();
        std::fs::rename(&partial, blob).map_err(|error| Error::io(format!("write {}", blob.display()), &error))
    }

    /// One attempt: from byte `start` to the end of the file, flushed to the disk.
    fn receive(
        &self,
        url: &str,
        partial: &Path,
        start: u64,
        size: u64,
        name: &str,
        bar: &ProgressBar,
    ) -> std::result::Result<(), Interrupted> {
        let write_error = |error| Interrupted::Final(Error::io(format!("write {}", partial.display()), &error));
        if start == size && partial.exists() {
            return Ok(());
        }
        let reply = self.send(Method::GET, url, start).map_err(Interrupted::Final)?;
        let range = reply.headers().get("content-range").and_then(|value| value.to_str().ok());
        let resumed = reply.status() == StatusCode::PARTIAL_CONTENT
            && range.is_some_and(|range| range.starts_with(&format!("bytes {start}-")));
        if !resumed {
            if start > 0 && reply.status() != StatusCode::OK {
                // The part cannot be continued (416 and its like): start over.
                let _ = std::fs::remove_file(partial);
                return Err(Interrupted::Transfer(format!("cannot resume, HTTP status {}", reply.status().as_u16())));
            }
            self.check(&reply, Some(name)).map_err(Interrupted::Final)?;
        }
        let mut file = OpenOptions::new()
            .create(true)
            .write(true)
            .append(resumed)
            .truncate(!resumed)
            .open(partial)
            .map_err(write_error)?;
        let mut received = if resumed { start } else { 0 };
        bar.set_position(received);
        let mut body = Paced::new(reply, self.settings.timeout);
        let mut buffer = vec![0; 1 << 16];
        loop {
            let count = body
                .read(&mut buffer)
                .map_err(|error| Interrupted::Transfer(reason(&ureq::Error::from(error), self.settings)))?;
            if count == 0 {
                break;
            }
            file.write_all(&buffer[..count]).map_err(write_error)?;
            received += count as u64;
            bar.set_position(received);
            if received > size {
                break;
            }
        }
        if received != size {
            drop(file);
            if received > size {
                let _ = std::fs::remove_file(partial);
            }
            return Err(Interrupted::Transfer(format!("expected {size} bytes, got {received}")));
        }
        file.sync_all().map_err(write_error)
    }

    /// Sends a request and follows redirects. The token goes to the Hub's own origin only. A HEAD
    /// stops where the Hub hands over to another server.
    fn send(&self, method: Method, url: &str, start: u64) -> Result<Response<ureq::Body>> {
        let parse = |url: &str| {
            Uri::try_from(url).map_err(|error| Error::data(format!("the Hub redirects to `{url}`: {error}")))
        };
        let mut url = parse(url)?;
        for _ in 0..=MAX_REDIRECTS {
            // Identity: a compressed answer has neither the file's length nor its byte ranges.
            let mut request = Request::builder().method(&method).uri(&url).header("Accept-Encoding", "identity");
            if start > 0 {
                request = request.header("Range", format!("bytes={start}-"));
            }
            if let Some(authorization) = &self.authorization
                && same_origin(&url, &self.origin)
            {
                request = request.header("Authorization", authorization);
            }
            let request = request.body(()).map_err(|error| self.unreachable(&error.to_string()))?;
            let reply = self.agent.run(request).map_err(|error| self.unreachable(&reason(&error, self.settings)))?;
            let location = reply.headers().get("location").and_then(|value| value.to_str().ok());
            let Some(location) = location.filter(|_| reply.status().is_redirection()) else {
                return Ok(reply);
            };
            let next = if location.starts_with('/') {
                parse(&format!(
                    "{}://{}{location}",
                    url.scheme_str().unwrap_or("https"),
                    url.authority().map_or("", |authority| authority.as_str())
                ))?
            } else {
                parse(location)?
            };
            if method == Method::HEAD && !same_origin(&next, &url) {
                return Ok(reply);
            }
            if drops_https(&url, &next) {
                let to = next.host().unwrap_or("another address");
                return Err(self.unreachable(&format!("it redirects from https to {to} without https")));
            }
            url = next;
        }
        Err(self.unreachable(&format!("more than {MAX_REDIRECTS} redirects")))
    }

    /// Turns an HTTP status into an error that says whose fault it is; `file` if the request was
    /// for one.
    fn check(&self, reply: &Response<ureq::Body>, file: Option<&str>) -> Result<()> {
        let status = reply.status();
        // A HEAD ends at the redirect to storage, which is an answer.
        if status.is_success() || status.is_redirection() {
            return Ok(());
        }
        let header = |key: &str| reply.headers().get(key).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let (code, endpoint) = (header("x-error-code"), &self.endpoint);
        let (id, name, revision) = (self.repo.path(), self.repo.name(), self.repo.revision.as_str());
        let offline = offline_help(self.repo, self.settings);
        let has_token = self.settings.token.is_some();
        Err(match (status.as_u16(), code) {
            (401 | 403, "GatedRepo") => Error::data(format!("`{id}` on {endpoint} is gated: access has to be granted"))
                .help(format!("accept its terms on {endpoint}/{id}, then set HF_TOKEN to a token of that account")),
            (401 | 403, _) if has_token => Error::data(format!(
                "{endpoint} refuses access to `{name}` (HTTP status {status}) with the token given"
            ))
            .help("check the id, and that HF_TOKEN is valid and may read this repository"),
            (401 | 403, _) => Error::data(format!(
                "`{name}` does not exist on {endpoint}, or is private or gated (HTTP status {status})"
            ))
            .help("check the id; for a private or gated repository set HF_TOKEN"),
            (404, "RevisionNotFound") => Error::data(format!("`{id}` on {endpoint} has no revision `{revision}`"))
                .help("give a branch, a tag or a full commit hash after the `@`"),
            (404, _) if file.is_some() => {
                Error::data(format!("`{name}` on {endpoint} has no file {}", file.unwrap_or_default()))
                    .help("the repository is incomplete; choose another revision with id@revision")
            }
            (404, _) => Error::data(format!("`{id}` does not exist on {endpoint}"))
                .help("check the id, for example openai-community/gpt2; a private repository needs HF_TOKEN"),
            (429, _) => {
                Error::data(format!("{endpoint} refuses `{name}` for now: too many requests (HTTP status 429)"))
                    .help(format!("wait, or set HF_TOKEN; {offline}"))
            }
            _ => Error::data(format!("{endpoint} cannot deliver `{name}`: HTTP status {status}"))
                .help(format!("try again later; {offline}")),
        })
    }

    fn unreachable(&self, reason: &str) -> Error {
        let (name, endpoint) = (self.repo.name(), &self.endpoint);
        Error::data(format!("cannot load `{name}` from the Hugging Face Hub at {endpoint}: {reason}"))
            .help(offline_help(self.repo, self.settings))
    }

    /// Keeps other processes and threads, huggingface_hub's among them, from writing the same
    /// thing; ends with the value or the process.
    pub(super) fn lock(&self, name: &str) -> Result<File> {
        let folder = self.settings.cache.join(".locks").join(self.cached.folder_name());
        let path = folder.join(format!("{name}.lock"));
        let lock = || {
            std::fs::create_dir_all(&folder)?;
            let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
            file.lock()?;
            Ok(file)
        };
        lock().map_err(|error| Error::io(format!("lock {}", path.display()), &error))
    }

    fn progress_bar(&self, size: u64, name: &str) -> ProgressBar {
        if !self.settings.progress {
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template("{msg} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} ({eta})");
        let bar = ProgressBar::new(size).with_message(one_line(name));
        match style {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        }
    }
}

/// The failure of a transfer, in words.
fn reason(error: &ureq::Error, settings: &HubSettings) -> String {
    match error {
        ureq::Error::HostNotFound => "the host name cannot be resolved".to_string(),
        ureq::Error::Timeout(stage) => format!("no answer within {:?} ({stage})", settings.timeout),
        ureq::Error::Io(error) => error.to_string(),
        other => other.to_string(),
    }
}

/// Whether whoever listens on the way could read and change what comes from `to`, but not what came
/// from `from`.
fn drops_https(from: &Uri, to: &Uri) -> bool {
    from.scheme_str() == Some("https") && to.scheme_str() != Some("https")
}

fn same_origin(a: &Uri, b: &Uri) -> bool {
    a.scheme() == b.scheme() && a.authority() == b.authority()
}

/// `path` with a further extension.
pub(super) fn beside(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    PathBuf::from(name)
}

/// A body that comes fast enough: what stops is seen by the client, what drips is seen here.
struct Paced {
    body: ureq::BodyReader<'static>,
    /// Over how long the rate is taken.
    window: Duration,
    since: Instant,
    bytes: u64,
}

impl Paced {
    fn new(reply: Response<ureq::Body>, window: Duration) -> Self {
        Self { body: reply.into_body().into_reader(), window, since: Instant::now(), bytes: 0 }
    }
}

impl Read for Paced {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.body.read(buffer)?;
        self.bytes += read as u64;
        let elapsed = self.since.elapsed();
        if read > 0 && elapsed >= self.window {
            if (self.bytes as f64) < MIN_BYTES_PER_SECOND * elapsed.as_secs_f64() {
                let what = format!("only {} bytes in {elapsed:.1?}, which is too slow to ever end", self.bytes);
                return Err(std::io::Error::other(what));
            }
            (self.since, self.bytes) = (Instant::now(), 0);
        }
        Ok(read)
    }
}

/// Makes the snapshot's file point at the blob, as huggingface_hub does: a relative link, so that
/// the cache can be moved; a copy where the file system has no links.
fn link(blob: &Path, pointer: &Path, name: &str) -> Result<()> {
    if pointer.is_file() {
        return Ok(());
    }
    let make = || {
        std::fs::create_dir_all(pointer.parent().unwrap_or(blob))?;
        if pointer.is_symlink() {
            // Its blob was deleted.
            std::fs::remove_file(pointer)?;
        }
        #[cfg(unix)]
        if let Some(blob) = blob.file_name() {
            // Up from the snapshot to the repository's folder, and one more for each folder in the
            // name.
            let target = "../".repeat(2 + name.matches('/').count()) + "blobs";
            if std::os::unix::fs::symlink(Path::new(&target).join(blob), pointer).is_ok() {
                return Ok(());
            }
        }
        let aside = beside(pointer, "incomplete");
        std::fs::copy(blob, &aside)?;
        std::fs::rename(&aside, pointer)
    };
    make().map_err(|error| Error::io(format!("write {}", pointer.display()), &error))
}

#[cfg(test)]
mod tests {
    use super::{Uri, drops_https};

    #[test]
    fn a_redirect_never_leaves_https() {
        let drops = |from: &'static str, to: &'static str| drops_https(&Uri::from_static(from), &Uri::from_static(to));
        assert!(drops("https://hub/a", "http://hub/a") && drops("https://hub/a", "/a"));
        assert!(!drops("https://hub/a", "https://storage/a") && !drops("http://hub/a", "http://storage/a"));
    }
}
