//! A Hugging Face Hub on 127.0.0.1 that is written to: repositories, branches, the modes of files,
//! commits as lines of JSON on a parent, LFS by plain PUT and by Xet, listings with digests. It
//! refuses a request that the Hub would refuse, and one with a wrong size, digest or sample. Of Xet
//! it has what new files need: it looks among the chunks that have come for those that follow one
//! another and have the digest of the commit; it knows neither deduplication nor what shards say.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The token that may write.
pub const TOKEN: &str = "hf_secretOfTheTest";

/// The content of a file, and whether it lies in the Hub's storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub bytes: Vec<u8>,
    pub is_lfs: bool,
}

type Files = BTreeMap<String, Stored>;

/// A repository: the commits of its branches, and the files of each commit.
#[derive(Debug, Clone, Default)]
pub struct Repository {
    pub is_private: bool,
    pub branches: BTreeMap<String, String>,
    pub commits: BTreeMap<String, Files>,
    /// The subjects of the commits on top of the first one.
    pub subjects: Vec<String>,
}

/// A fault of the requests whose first line contains a text.
#[derive(Debug, Clone)]
pub enum Fault {
    /// This status and message.
    Status(u16, &'static str),
    /// No answer.
    Silence,
    /// It is done, and the answer is lost.
    Lost,
    /// Somebody else commits first.
    Overtaken,
    /// Somebody else asks for the same first.
    Twice,
}

#[derive(Default)]
pub struct State {
    pub repositories: BTreeMap<String, Repository>,
    pub fault: Option<(&'static str, Fault)>,
    /// There is storage by plain PUT alone.
    pub without_xet: bool,
    /// The mode and size of each path that the last preupload has told.
    modes: BTreeMap<String, (bool, u64)>,
    /// The content of storage, by SHA-256.
    objects: BTreeMap<String, Vec<u8>>,
    /// The chunks of all xorbs, in the order in which they have come.
    chunks: Vec<Vec<u8>>,
    /// Every request: method and path, and a body that is no file.
    pub requests: Vec<(String, String)>,
}

pub struct Hub {
    pub endpoint: String,
    pub state: Arc<Mutex<State>>,
}

struct Request {
    method: String,
    path: String,
    query: String,
    authorization: Option<String>,
    content_type: String,
    body: Vec<u8>,
}

struct Reply(u16, Vec<String>, Vec<u8>);

impl Reply {
    fn json(value: &Value) -> Self {
        Self(200, vec!["Content-Type: application/json".into()], value.to_string().into_bytes())
    }

    fn error(status: u16, code: &str, message: &str) -> Self {
        let headers = vec![format!("X-Error-Code: {code}"), format!("X-Error-Message: {message}")];
        Self(status, headers, json!({ "error": message }).to_string().into_bytes())
    }
}

impl Hub {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State::default()));
        let (seen, address) = (state.clone(), endpoint.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (seen, address) = (seen.clone(), address.clone());
                std::thread::spawn(move || serve(stream.unwrap(), &seen, &address));
            }
        });
        Self { endpoint, state }
    }

    pub fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    /// The repository `id`.
    pub fn repository(&self, id: &str) -> Repository {
        self.state.lock().unwrap().repositories[id].clone()
    }

    /// The files at the head of a branch.
    pub fn files(&self, id: &str, branch: &str) -> Files {
        let repository = self.repository(id);
        repository.commits[&repository.branches[branch]].clone()
    }

    /// The requests since the last call whose first line contains `part`.
    pub fn take(&self, part: &str) -> Vec<(String, String)> {
        let requests = std::mem::take(&mut self.state.lock().unwrap().requests);
        requests.into_iter().filter(|(line, _)| line.contains(part)).collect()
    }
}

fn serve(mut stream: TcpStream, state: &Mutex<State>, address: &str) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Some(request) = read(&mut reader) {
        let line = format!("{} {}{}", request.method, request.path, request.query);
        let is_file = request.path.starts_with("/cas/") || request.path.starts_with("/put/");
        let shown = if is_file { String::new() } else { String::from_utf8_lossy(&request.body).into_owned() };
        let fault = {
            let mut state = state.lock().unwrap();
            state.requests.push((line.clone(), shown));
            state.fault.clone().filter(|(part, _)| line.contains(part)).map(|(_, fault)| fault)
        };
        let reply = match fault {
            Some(Fault::Silence) => return std::thread::sleep(Duration::from_secs(60)),
            Some(Fault::Status(status, message)) => Reply::error(status, "", message),
            Some(Fault::Lost) => {
                answer(&mut state.lock().unwrap(), &request, address);
                return;
            }
            Some(Fault::Overtaken) => {
                let mut state = state.lock().unwrap();
                state.fault = None;
                for repository in state.repositories.values_mut() {
                    let files = repository.commits[&repository.branches["main"]].clone();
                    commit(repository, "main", files, "Another one");
                }
                answer(&mut state, &request, address)
            }
            Some(Fault::Twice) => {
                let mut state = state.lock().unwrap();
                answer(&mut state, &request, address);
                answer(&mut state, &request, address)
            }
            None => answer(&mut state.lock().unwrap(), &request, address),
        };
        let Reply(status, headers, body) = reply;
        let mut head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n", body.len());
        headers.iter().for_each(|header| head += &format!("{header}\r\n"));
        if stream.write_all(format!("{head}\r\n").as_bytes()).and_then(|()| stream.write_all(&body)).is_err() {
            return;
        }
    }
}

fn read(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut parts = line.split(' ');
    let (method, target) = (parts.next()?.to_owned(), parts.next()?.to_owned());
    let (path, query) = target.split_at(target.find('?').unwrap_or(target.len()));
    let mut headers = BTreeMap::new();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let mut body = Vec::new();
    if headers.get("transfer-encoding").is_some_and(|encoding| encoding == "chunked") {
        loop {
            let mut size = String::new();
            reader.read_line(&mut size).ok()?;
            let size = usize::from_str_radix(size.trim(), 16).ok()?;
            let start = body.len();
            body.resize(start + size, 0);
            reader.read_exact(&mut body[start..]).ok()?;
            reader.read_line(&mut String::new()).ok()?;
            if size == 0 {
                break;
            }
        }
    } else {
        body.resize(headers.get("content-length").map_or(0, |length| length.parse().unwrap()), 0);
        reader.read_exact(&mut body).ok()?;
    }
    Some(Request {
        method,
        path: path.replace("%2F", "/"),
        query: query.to_owned(),
        authorization: headers.remove("authorization"),
        content_type: headers.remove("content-type").unwrap_or_default(),
        body,
    })
}

pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Git's digest of a file.
pub fn blob(bytes: &[u8]) -> String {
    let mut digest = sha1::Sha1::new();
    digest.update(format!("blob {}\0", bytes.len()));
    digest.update(bytes);
    hex(&digest.finalize())
}

fn commit(repository: &mut Repository, branch: &str, files: Files, subject: &str) -> String {
    let name = sha256(format!("{branch}{subject}{}", repository.commits.len()).as_bytes())[..40].to_owned();
    repository.commits.insert(name.clone(), files);
    repository.branches.insert(branch.to_owned(), name.clone());
    repository.subjects.push(subject.to_owned());
    name
}

fn answer(state: &mut State, request: &Request, address: &str) -> Reply {
    let Request { method, path, .. } = request;
    if let Some(rest) = path.strip_prefix("/cas/") {
        assert_eq!(request.authorization.as_deref(), Some("Bearer of-xet"), "the Hub's token is not the storage's");
        return storage(state, method, rest, &request.body);
    }
    if let Some(digest) = path.strip_prefix("/put/") {
        assert_eq!(request.authorization, None, "storage is no place for the token");
        assert_eq!(sha256(&request.body), digest);
        state.objects.insert(digest.to_owned(), request.body.clone());
        return Reply(200, vec!["ETag: \"1\"".into()], Vec::new());
    }
    if request.authorization.as_deref() != Some(&format!("Bearer {TOKEN}")) {
        return Reply::error(401, "", "Invalid username or password.");
    }
    let body = || serde_json::from_slice::<Value>(&request.body).unwrap();
    match (method.as_str(), path.as_str()) {
        ("POST", "/api/validate-yaml") => return Reply::json(&json!({ "errors": [], "warnings": [] })),
        ("GET", "/api/whoami-v2") => return Reply::json(&json!({ "type": "user", "name": "me" })),
        ("POST", "/api/repos/create") => {
            let body = body();
            // Without it a repository is one of models.
            assert!(matches!(body["type"].as_str(), Some("model") | None), "{body}");
            let name = body["name"].as_str().unwrap();
            let id = format!("{}/{name}", body["organization"].as_str().unwrap_or("me"));
            if state.repositories.contains_key(&id) {
                return Reply::error(409, "", "You already created this model repo");
            }
            // Clients of 2026 say `visibility`, those before them and hf-hub `private`.
            let is_private = body["private"] == true || body["visibility"] == "private";
            let mut repository = Repository { is_private, ..Repository::default() };
            let attributes = Stored { bytes: b"*.safetensors filter=lfs\n".to_vec(), is_lfs: false };
            commit(&mut repository, "main", [(".gitattributes".to_owned(), attributes)].into(), "initial commit");
            repository.subjects.clear();
            state.repositories.insert(id.clone(), repository);
            return Reply::json(&json!({ "url": format!("{address}/{id}"), "name": id }));
        }
        _ => {}
    }
    if let Some(id) = path.strip_prefix('/').and_then(|path| path.strip_suffix(".git/info/lfs/objects/batch")) {
        return batch(state, id, &body(), address);
    }
    let Some(rest) = path.strip_prefix("/api/models/") else { return Reply::error(404, "", "no such address") };
    let mut parts = rest.splitn(4, '/');
    let id = [parts.next(), parts.next()].map(Option::unwrap_or_default).join("/");
    let (action, revision) = (parts.next().unwrap_or("revision"), parts.next().unwrap_or("main"));
    let Some(repository) = state.repositories.get_mut(&id) else {
        return Reply::error(404, "RepoNotFound", "Repository not found");
    };
    let found = repository.branches.get(revision).cloned();
    let found = found.or_else(|| repository.commits.contains_key(revision).then(|| revision.to_owned()));
    if (method.as_str(), action) == ("POST", "branch") {
        if repository.branches.contains_key(revision) {
            return Reply::error(409, "", "Reference already exists");
        }
        let start = body()["startingPoint"].as_str().unwrap().to_owned();
        repository.branches.insert(revision.to_owned(), start);
        return Reply::json(&json!({}));
    }
    let Some(head) = found else { return Reply::error(404, "RevisionNotFound", "Invalid rev id") };
    match (method.as_str(), action) {
        ("GET", "revision") => Reply::json(&json!({ "id": id, "sha": head, "siblings": [] })),
        ("GET", "tree") => Reply::json(&listing(&repository.commits[&head])),
        ("POST", "preupload") => preupload(state, &body()),
        ("GET", "xet-write-token") => Reply::json(
            &json!({ "accessToken": "of-xet", "exp": 4_000_000_000u64, "casUrl": format!("{address}/cas") }),
        ),
        ("POST", "commit") => {
            assert_eq!(request.content_type, "application/x-ndjson");
            let is_proposed = request.query.contains("create_pr=1");
            match committed(state, &id, revision, &head, is_proposed, &request.body) {
                Ok(made) => {
                    let url = format!("{address}/{id}/commit/{made}");
                    let proposed = is_proposed.then(|| format!("{address}/{id}/discussions/1"));
                    Reply::json(&json!({
                        "success": true, "commitOid": made, "commitUrl": url, "hookOutput": "", "pullRequestUrl": proposed,
                    }))
                }
                Err(refused) => refused,
            }
        }
        _ => Reply::error(404, "", "no such address"),
    }
}

fn listing(files: &Files) -> Value {
    let entry = |(path, file): (&String, &Stored)| {
        let size = file.bytes.len();
        if file.is_lfs {
            let sha256 = sha256(&file.bytes);
            let pointer =
                format!("version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n").into_bytes();
            // The Hub has `oid` in its listing, and hf-hub reads `sha256`.
            json!({
                "type": "file", "path": path, "size": size, "oid": blob(&pointer),
                "lfs": { "oid": sha256, "size": size, "pointerSize": pointer.len() },
            })
        } else {
            json!({ "type": "file", "path": path, "size": size, "oid": blob(&file.bytes) })
        }
    };
    files.iter().map(entry).collect()
}

fn preupload(state: &mut State, body: &Value) -> Reply {
    let files = body["files"].as_array().unwrap();
    state.modes.clear();
    let mut answers = Vec::new();
    for file in files {
        let (path, size) = (file["path"].as_str().unwrap(), file["size"].as_u64().unwrap());
        let sample = BASE64_STANDARD.decode(file["sample"].as_str().unwrap()).unwrap();
        assert_eq!(sample.len() as u64, size.min(512), "{path}: a sample has the first 512 bytes");
        let is_lfs = path.ends_with(".safetensors");
        state.modes.insert(path.to_owned(), (is_lfs, size));
        let mode = if is_lfs { "lfs" } else { "regular" };
        answers.push(json!({ "path": path, "uploadMode": mode, "shouldIgnore": false, "oid": null }));
    }
    Reply::json(&json!({ "files": answers, "commitOid": null }))
}

fn batch(state: &State, id: &str, body: &Value, address: &str) -> Reply {
    assert!(state.repositories.contains_key(id), "{id}");
    assert_eq!((&body["operation"], &body["hash_algo"]), (&json!("upload"), &json!("sha256")));
    let takes_xet = body["transfers"].as_array().unwrap().contains(&json!("xet")) && !state.without_xet;
    let object = |object: &Value| {
        let (oid, size) = (object["oid"].as_str().unwrap(), object["size"].as_u64().unwrap());
        assert_eq!(oid.len(), 64);
        if takes_xet || state.objects.contains_key(oid) {
            return json!({ "oid": oid, "size": size });
        }
        json!({ "oid": oid, "size": size, "authenticated": true,
                "actions": { "upload": { "href": format!("{address}/put/{oid}"), "header": {} } } })
    };
    let objects = body["objects"].as_array().unwrap().iter().map(object).collect::<Vec<_>>();
    let mut reply = Reply::json(&json!({ "transfer": if takes_xet { "xet" } else { "basic" }, "objects": objects }));
    reply.1 = vec!["Content-Type: application/vnd.git-lfs+json".into()];
    reply
}

/// Xet's storage, as far as one new file needs it.
fn storage(state: &mut State, method: &str, path: &str, body: &[u8]) -> Reply {
    match (method, path.split('/').collect::<Vec<_>>().as_slice()) {
        ("POST", ["v1", "xorbs", "default", _]) => {
            let mut rest = body;
            // A chunk: version 0, bytes (3), compression, bytes when it is decompressed (3).
            while let [0, a, b, c, compression, _, _, _, data @ ..] = rest {
                assert_eq!(*compression, 0, "HF_XET_XORB_COMPRESSION_POLICY is none");
                let (chunk, after) = data.split_at(u32::from_le_bytes([*a, *b, *c, 0]) as usize);
                state.chunks.push(chunk.to_vec());
                rest = after;
            }
            Reply::json(&json!({ "was_inserted": true }))
        }
        ("POST", ["v1", "shards"]) => Reply::json(&json!({ "result": 1 })),
        // No chunk is known, there are no grants, and shards are taken in the first way.
        _ => Reply::error(404, "", "not there"),
    }
}

/// The chunks that follow one another and are the file with this digest.
fn of_chunks(chunks: &[Vec<u8>], oid: &str) -> Option<Vec<u8>> {
    (0..chunks.len()).find_map(|start| {
        let mut digest = Sha256::new();
        (start..chunks.len()).find_map(|end| {
            digest.update(&chunks[end]);
            (hex(&digest.clone().finalize()) == oid).then(|| chunks[start..=end].concat())
        })
    })
}

fn committed(
    state: &mut State,
    id: &str,
    branch: &str,
    head: &str,
    is_proposed: bool,
    body: &[u8],
) -> Result<String, Reply> {
    let repository = state.repositories.get_mut(id).unwrap();
    let mut files = repository.commits[head].clone();
    let mut subject = None;
    let text = std::str::from_utf8(body).unwrap();
    for line in text.lines() {
        let line = serde_json::from_str::<Value>(line).unwrap();
        let value = &line["value"];
        let path = || value["path"].as_str().unwrap().to_owned();
        match line["key"].as_str().unwrap() {
            "header" => {
                assert!(subject.is_none() && value["description"].is_string(), "{line}");
                subject = value["summary"].as_str().map(str::to_owned);
                if value["parentCommit"].as_str().is_some_and(|parent| parent != head) {
                    return Err(Reply::error(412, "", "A commit has happened since. Please refresh and try again."));
                }
            }
            "file" => {
                assert_eq!(value["encoding"], "base64");
                let bytes = BASE64_STANDARD.decode(value["content"].as_str().unwrap()).unwrap();
                assert_eq!(state.modes[&path()], (false, bytes.len() as u64), "{}", path());
                files.insert(path(), Stored { bytes, is_lfs: false });
            }
            "lfsFile" => {
                assert_eq!(value["algo"], "sha256");
                let oid = value["oid"].as_str().unwrap();
                let Some(bytes) = state.objects.get(oid).cloned().or_else(|| of_chunks(&state.chunks, oid)) else {
                    return Err(Reply::error(400, "", "an LFS object is not there"));
                };
                assert_eq!(state.modes[&path()], (true, bytes.len() as u64), "{}", path());
                // Clients without Xet leave the size out of some releases.
                assert_eq!(value["size"].as_u64(), Some(bytes.len() as u64));
                files.insert(path(), Stored { bytes, is_lfs: true });
            }
            "deletedFile" => assert!(files.remove(&path()).is_some(), "{} is not there", path()),
            key => panic!("no such line of a commit: {key}"),
        }
    }
    let subject = subject.filter(|subject| !subject.is_empty()).expect("a commit has a subject");
    let branch = if is_proposed { "refs/pr/1" } else { branch };
    Ok(commit(repository, branch, files, &subject))
}
