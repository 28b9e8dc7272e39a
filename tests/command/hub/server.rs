//! A Hugging Face Hub on 127.0.0.1, as far as loading a model needs one: revision info, HEAD and
//! GET with ranges, ETag and X-Repo-Commit, the relative redirect of small files and the redirect
//! of large ones to a storage server. It can fail in the ways that the real one does. Used by the
//! tests of `kiln::data::hub` only.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha2::{Digest, Sha256};

/// The commit of `main` unless a test moves it.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// The commit of the tag `v1`.
pub const COMMIT_V1: &str = "89abcdef0123456789abcdef0123456789abcdef";

/// Files of at least this many bytes are handed over to the storage server.
const LARGE: usize = 1000;

type Files = BTreeMap<String, Vec<u8>>;

/// The files of the server and its behaviour.
#[derive(Default)]
pub struct State {
    pub id: String,
    /// It serves a dataset, whose paths differ from a model's.
    pub is_dataset: bool,
    pub revisions: BTreeMap<String, String>,
    pub commits: BTreeMap<String, Files>,
    /// Requests without this token get 401, as for a private repository.
    pub token: Option<String>,
    /// Everyone gets 403 with the Hub's code for gated repositories.
    pub gated: bool,
    /// The next so many bodies from storage end after `cut_at` bytes.
    pub cuts: usize,
    pub cut_at: usize,
    /// A body that was cut is not closed either: the connection hangs.
    pub hang: bool,
    /// Storage does not announce a length and closes early: only the announced size can tell.
    pub hide_length: bool,
    /// Flips a byte of what storage sends.
    pub damage: bool,
    /// Names of files that are listed in the place of the true ones.
    pub listed: Option<Vec<String>>,
    /// The requests whose path contains this get their answer a byte every 50 ms.
    pub drips: Option<&'static str>,
    /// Requests without this user and password (in base64) get 401.
    pub login: Option<String>,
    /// Every request so far.
    pub requests: Vec<Seen>,
}

/// One request.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub authorization: Option<String>,
    pub range: Option<String>,
    pub storage: bool,
}

/// The running server.
pub struct Hub {
    pub endpoint: String,
    pub state: Arc<Mutex<State>>,
}

impl Hub {
    /// Serves `id` with `files` as `main`, and a config of its own as the tag `v1`.
    pub fn start(id: &str, files: &[(&str, &[u8])]) -> Self {
        let files: Files = files.iter().map(|(name, bytes)| (name.to_string(), bytes.to_vec())).collect();
        let mut older = files.clone();
        older.insert("config.json".to_string(), br#"{"version": 1}"#.to_vec());
        let state = State {
            id: id.to_string(),
            revisions: [("main", COMMIT), ("refs/pr/1", COMMIT), ("v1", COMMIT_V1)]
                .map(|(name, commit)| (name.to_string(), commit.to_string()))
                .into(),
            commits: [(COMMIT.to_string(), files), (COMMIT_V1.to_string(), older)].into(),
            ..State::default()
        };
        let state = Arc::new(Mutex::new(state));
        let storage = serve(state.clone(), None);
        let endpoint = serve(state.clone(), Some(storage));
        Self { endpoint, state }
    }

    pub fn requests(&self) -> Vec<Seen> {
        self.state.lock().unwrap().requests.clone()
    }

    pub fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }
}

/// Listens on a free port; with the address of a storage server it is the Hub, without one it is
/// that server.
fn serve(state: Arc<Mutex<State>>, storage: Option<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (state, storage) = (state.clone(), storage.clone());
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let seen = read_request(&stream, storage.is_none());
                state.lock().unwrap().requests.push(seen.clone());
                let reply = match &storage {
                    Some(storage) => hub_reply(&state.lock().unwrap(), &seen, storage),
                    None => storage_reply(&mut state.lock().unwrap(), &seen),
                };
                // The client may have hung up, which is its right.
                let drips = state.lock().unwrap().drips.is_some_and(|part| seen.path.contains(part));
                for piece in reply.chunks(if drips { 1 } else { reply.len() }) {
                    if stream.write_all(piece).is_err() {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(if drips { 50 } else { 0 }));
                }
                if storage.is_none() && state.lock().unwrap().hang {
                    std::thread::sleep(Duration::from_secs(5));
                }
            });
        }
    });
    address
}

fn read_request(stream: &TcpStream, storage: bool) -> Seen {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    let mut parts = first.split(' ').map(str::to_string);
    let (method, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let headers: BTreeMap<String, String> = lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_once(": ").map(|(key, value)| (key.to_lowercase(), value.to_string())))
        .collect();
    let header = |key: &str| headers.get(key).cloned();
    assert_eq!(header("accept-encoding").as_deref(), Some("identity"), "a compressed answer has no ranges");
    Seen { method, path, authorization: header("authorization"), range: header("range"), storage }
}

fn hub_reply(state: &State, seen: &Seen, storage: &str) -> Vec<u8> {
    if state.gated {
        return answer("403 Forbidden", &["X-Error-Code: GatedRepo"], b"", seen);
    }
    let token = state.token.as_ref().map(|token| format!("Bearer {token}"));
    let expected = state.login.as_ref().map(|login| format!("Basic {login}")).or(token);
    if expected.is_some() && seen.authorization != expected {
        return answer("401 Unauthorized", &["X-Error-Code: RepoNotFound"], b"Invalid username or password.", seen);
    }
    let id = &state.id;
    let (kind, folder) = if state.is_dataset { ("datasets", "/datasets") } else { ("models", "") };
    if let Some(revision) = seen.path.strip_prefix(&format!("/api/{kind}/{id}/revision/")) {
        let revision = revision.replace("%2F", "/");
        let commit =
            state.revisions.get(&revision).or_else(|| state.commits.contains_key(&revision).then_some(&revision));
        let Some(commit) = commit else {
            return answer("404 Not Found", &["X-Error-Code: RevisionNotFound"], b"", seen);
        };
        let names = state.listed.clone().unwrap_or_else(|| state.commits[commit].keys().cloned().collect());
        let names: Vec<_> = names.iter().map(|name| serde_json::json!({ "rfilename": name })).collect();
        let body = serde_json::json!({ "id": id, "sha": commit, "siblings": names }).to_string();
        return answer("200 OK", &["Content-Type: application/json"], body.as_bytes(), seen);
    }
    let cached = format!("/api/resolve-cache/{kind}/{id}/");
    let direct = format!("{folder}/{id}/resolve/");
    let rest = seen.path.strip_prefix(&cached).or_else(|| seen.path.strip_prefix(&direct));
    let Some((commit, name)) = rest.and_then(|rest| rest.split_once('/')) else {
        return answer("404 Not Found", &["X-Error-Code: RepoNotFound"], b"", seen);
    };
    let Some(bytes) = state.commits.get(commit).and_then(|files| files.get(name)) else {
        return answer("404 Not Found", &["X-Error-Code: EntryNotFound"], b"", seen);
    };
    let commit_header = format!("X-Repo-Commit: {commit}");
    if bytes.len() >= LARGE {
        let headers = [
            format!("Location: {storage}/{commit}/{name}"),
            format!("X-Linked-ETag: \"{}\"", sha256(bytes)),
            format!("X-Linked-Size: {}", bytes.len()),
            commit_header,
        ];
        answer("302 Found", &headers, b"moved to storage", seen)
    } else if !seen.path.starts_with("/api/") {
        let headers = [format!("Location: {cached}{commit}/{name}"), commit_header];
        answer("307 Temporary Redirect", &headers, b"moved", seen)
    } else {
        let headers = [format!("ETag: W/\"{}\"", &sha256(bytes)[..40]), commit_header];
        answer("200 OK", &headers, bytes, seen)
    }
}

fn storage_reply(state: &mut State, seen: &Seen) -> Vec<u8> {
    let found = seen.path[1..].split_once('/').and_then(|(commit, name)| state.commits.get(commit)?.get(name).cloned());
    let Some(mut bytes) = found else {
        return answer("404 Not Found", &["X-Storage: yes"], b"", seen);
    };
    if state.damage {
        bytes[LARGE / 2] ^= 1;
    }
    let total = bytes.len();
    let start = seen.range.as_ref().map(|range| range["bytes=".len()..range.len() - 1].parse::<usize>().unwrap());
    let (status, range) = match start {
        Some(start) if start >= total => {
            return answer("416 Range Not Satisfiable", &[format!("Content-Range: bytes */{total}")], b"", seen);
        }
        Some(start) => ("206 Partial Content", format!("Content-Range: bytes {start}-{}/{total}", total - 1)),
        None => ("200 OK", "Accept-Ranges: bytes".to_string()),
    };
    let body = &bytes[start.unwrap_or(0)..];
    let mut reply = answer(status, &[range], body, seen);
    if state.hide_length {
        let text = String::from_utf8_lossy(&reply[..reply.len() - body.len()]).to_string();
        let head: String = text.split_inclusive("\r\n").filter(|line| !line.starts_with("Content-Length")).collect();
        reply = [head.as_bytes(), body].concat();
    }
    if state.cuts > 0 {
        state.cuts -= 1;
        let head = reply.len() - body.len();
        reply.truncate(head + state.cut_at.min(body.len() - 1));
    }
    reply
}

fn answer(status: &str, headers: &[impl AsRef<str>], body: &[u8], seen: &Seen) -> Vec<u8> {
    let mut reply = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    for header in headers {
        reply.push_str(header.as_ref());
        reply.push_str("\r\n");
    }
    reply.push_str("\r\n");
    let body = if seen.method == "HEAD" { &[] } else { body };
    [reply.as_bytes(), body].concat()
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
