//! Loading models by Hub id, against a Hub on 127.0.0.1: the cache's layout, what is asked of the
//! network and what is not, and every way in which it can fail.

pub mod server;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kiln::ErrorKind;
use kiln::data::hub::{HubSettings, Split, Wanted, dataset_files_with, dataset_split_with, resolve_with};
use server::{COMMIT, COMMIT_V1, Hub};

const ID: &str = "org/tiny";

fn weights() -> Vec<u8> {
    (0..200_000u32).flat_map(|n| (n.wrapping_mul(2654435761)).to_le_bytes()).collect()
}

fn start() -> Hub {
    let weights = weights();
    Hub::start(
        ID,
        &[
            ("config.json", b"{\"a\": 1}"),
            ("model.safetensors", &weights),
            ("tokenizer.json", b"{}"),
            ("README.md", b"#"),
        ],
    )
}

fn settings(hub: &Hub, home: &Path) -> HubSettings {
    HubSettings {
        cache: home.join("hub"),
        endpoint: hub.endpoint.clone(),
        token: None,
        offline: false,
        timeout: Duration::from_secs(5),
        progress: false,
    }
}

fn fails(spec: &str, settings: &HubSettings) -> String {
    let error = resolve_with(spec, &Wanted::MODEL, settings).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Data, "{error}");
    assert!(error.to_string().contains("help:"), "{error}");
    error.to_string()
}

/// Every path below a folder, sorted.
fn tree(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(tree(&path));
        }
        found.push(path);
    }
    found.sort();
    found
}

#[test]
fn a_model_is_downloaded_into_the_standard_cache_once() {
    let (hub, home) = (start(), tempfile::tempdir().unwrap());
    let settings = settings(&hub, home.path());
    let folder = resolve_with(ID, &Wanted::MODEL, &settings).unwrap();

    let repo = home.path().join("hub/models--org--tiny");
    assert_eq!(folder, repo.join("snapshots").join(COMMIT));
    assert_eq!(std::fs::read_to_string(repo.join("refs/main")).unwrap(), COMMIT);
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), weights());
    assert_eq!(std::fs::read(folder.join("config.json")).unwrap(), b"{\"a\": 1}");
    assert!(folder.join("tokenizer.json").is_file());
    assert!(!folder.join("README.md").exists(), "only what is wanted is taken");
    let blob = Path::new("../../blobs").join(server::sha256(&weights()));
    assert_eq!(std::fs::read_link(folder.join("model.safetensors")).unwrap(), blob);
    assert!(!tree(home.path()).iter().any(|path| path.to_string_lossy().ends_with(".incomplete")));
    assert!(repo.join(".no_exist").join(COMMIT).join("vocab.txt").is_file());
    assert!(hub.requests().iter().all(|seen| seen.authorization.is_none()));

    let asked = hub.requests().len();
    assert_eq!(resolve_with(ID, &Wanted::MODEL, &settings).unwrap(), folder);
    assert_eq!(resolve_with(ID, &Wanted::TOKENIZER, &settings).unwrap(), folder);
    assert_eq!(hub.requests().len(), asked, "the second time needs no network");

    let offline = HubSettings { offline: true, endpoint: "http://127.0.0.1:1".to_string(), ..settings };
    assert_eq!(resolve_with(ID, &Wanted::MODEL, &offline).unwrap(), folder);
}

#[test]
fn offline_nothing_is_asked() {
    let (hub, home) = (start(), tempfile::tempdir().unwrap());
    let offline = HubSettings { offline: true, ..settings(&hub, home.path()) };
    let message = fails(ID, &offline);
    for part in ["`org/tiny`", "HF_HUB_OFFLINE", "hf download org/tiny", offline.cache.to_str().unwrap()] {
        assert!(message.contains(part), "{part} in {message}");
    }
    assert!(hub.requests().is_empty());
    assert!(tree(home.path()).is_empty(), "a refused look-up leaves nothing behind");

    // In the cache, but without weights: says so.
    let online = HubSettings { offline: false, ..offline.clone() };
    resolve_with(ID, &Wanted::TOKENIZER, &online).unwrap();
    let message = fails(ID, &offline);
    assert!(message.contains("no model.safetensors, nor "), "{message}");
}

#[test]
fn what_the_cache_does_not_know_is_asked_for() {
    let (hub, home) = (start(), tempfile::tempdir().unwrap());
    let settings = settings(&hub, home.path());
    let without_tokenizer = Wanted { optional: &[], ..Wanted::MODEL };
    let folder = resolve_with(ID, &without_tokenizer, &settings).unwrap();
    assert!(!folder.join("tokenizer.json").exists());
    resolve_with(ID, &Wanted::MODEL, &settings).unwrap();
    assert!(folder.join("tokenizer.json").is_file());
}

#[test]
fn revisions_are_branches_tags_and_commits() {
    let (hub, home) = (start(), tempfile::tempdir().unwrap());
    let settings = settings(&hub, home.path());
    let repo = home.path().join("hub/models--org--tiny");
    let load = |revision: &str| resolve_with(&format!("{ID}@{revision}"), &Wanted::MODEL, &settings).unwrap();

    let folder = load("v1");
    assert_eq!(folder, repo.join("snapshots").join(COMMIT_V1));
    assert_eq!(std::fs::read(folder.join("config.json")).unwrap(), br#"{"version": 1}"#);
    assert_eq!(std::fs::read_to_string(repo.join("refs/v1")).unwrap(), COMMIT_V1);

    let before = hub.requests().len();
    assert_eq!(load("refs/pr/1"), repo.join("snapshots").join(COMMIT));
    assert_eq!(std::fs::read_to_string(repo.join("refs/refs/pr/1")).unwrap(), COMMIT);
    let sent = hub.requests()[before..].iter().filter(|seen| seen.storage).count();
    assert_eq!(sent, 0, "the weights are the same blob and are not sent again");

    let before = hub.requests().len();
    assert_eq!(load(COMMIT_V1), folder);
    assert_eq!(hub.requests().len(), before, "a commit in the cache needs no network");
    assert!(!repo.join("refs").join(COMMIT_V1).exists());

    let message = fails("org/tiny@v9", &settings);
    assert!(message.contains("no revision `v9`"), "{message}");
}

#[test]
fn the_token_goes_to_the_hub_and_nowhere_else() {
    let (hub, home) = (start(), tempfile::tempdir().unwrap());
    hub.change(|state| state.token = Some("hf_secret".to_string()));
    let mut settings = settings(&hub, home.path());

    let message = fails(ID, &settings);
    assert!(
        message.contains("does not exist") && message.contains("private") && message.contains("HF_TOKEN"),
        "{message}"
    );

    settings.token = Some("hf_wrong".to_string());
    let message = fails(ID, &settings);
    assert!(message.contains("refuses access") && !message.contains("hf_wrong"), "{message}");

    settings.token = Some("hf_secret".to_string());
    resolve_with(ID, &Wanted::MODEL, &settings).unwrap();
    let storage: Vec<_> = hub.requests().into_iter().filter(|seen| seen.storage).collect();
    assert!(!storage.is_empty() && storage.iter().all(|seen| seen.authorization.is_none()), "{storage:?}");
}

#[test]
fn what_the_hub_refuses_is_named() {
    let (hub, home) = (start(), tempfile::tempdir().unwrap());
    let settings = settings(&hub, home.path());
    let message = fails("org/other", &settings);
    assert!(message.contains("`org/other` does not exist on http://127.0.0.1"), "{message}");

    hub.change(|state| state.gated = true);
    let message = fails(ID, &settings);
    assert!(message.contains("gated") && message.contains("HF_TOKEN"), "{message}");
    hub.change(|state| state.gated = false);

    hub.change(|state| {
        let files = state.commits.get_mut(COMMIT).unwrap();
        files.remove("model.safetensors");
        files.insert("tf_model.h5".to_string(), vec![0]);
    });
    let message = fails(ID, &settings);
    assert!(message.contains("has no model.safetensors") && message.contains("pytorch_model.bin"), "{message}");
    assert!(!home.path().join("hub/models--org--tiny/refs").exists());
}

#[test]
fn a_hub_that_cannot_be_reached_is_an_error_soon() {
    let home = tempfile::tempdir().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let refusing = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (endpoint, cause) in [
        (format!("http://{refusing}"), "refused"),
        (format!("http://{}", silent.local_addr().unwrap()), "no answer within 300ms"),
        // No server has this name (RFC 2606); how the look-up fails depends on the machine.
        ("http://hub.invalid".to_string(), ""),
    ] {
        let settings = HubSettings {
            cache: home.path().join("hub"),
            endpoint: endpoint.clone(),
            token: None,
            offline: false,
            timeout: Duration::from_millis(300),
            progress: false,
        };
        let start = Instant::now();
        let message = fails("org/tiny@v1", &settings);
        assert!(start.elapsed() < Duration::from_secs(10), "{endpoint} took {:?}", start.elapsed());
        for part in ["`org/tiny@v1`", &endpoint, cause, "hf download org/tiny --revision v1", "HF_HUB_OFFLINE=1"] {
            assert!(message.contains(part), "{part} in {message}");
        }
    }
}

#[test]
fn a_transfer_that_breaks_off_is_resumed() {
    let (hub, home) = (start(), tempfile::tempdir().unwrap());
    hub.change(|state| (state.cuts, state.cut_at) = (2, 300_000));
    let folder = resolve_with(ID, &Wanted::MODEL, &settings(&hub, home.path())).unwrap();
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), weights());
    let ranges: Vec<_> = hub.requests().into_iter().filter(|seen| seen.storage).map(|seen| seen.range).collect();
    let range = |start: u32| Some(format!("bytes={start}-"));
    assert_eq!(ranges, [None, range(300_000), range(600_000)]);
}

#[test]
fn a_short_file_is_never_taken_for_whole() {
    for hide_length in [false, true] {
        let (hub, home) = (start(), tempfile::tempdir().unwrap());
        let settings = settings(&hub, home.path());
        hub.change(|state| (state.cuts, state.cut_at, state.hide_length) = (3, 1000, hide_length));
        let message = fails(ID, &settings);
        assert!(message.contains("model.safetensors") && message.contains("3000 of 800000 bytes"), "{message}");

        let repo = home.path().join("hub/models--org--tiny");
        let blob = repo.join("blobs").join(server::sha256(&weights()));
        assert!(!blob.exists() && blob.with_extension("incomplete").exists());
        assert!(!repo.join("snapshots").join(COMMIT).join("model.safetensors").exists());
        assert!(!repo.join("refs").exists());
        let offline = HubSettings { offline: true, ..settings.clone() };
        fails(ID, &offline);

        // The next run goes on where this one ended.
        let folder = resolve_with(ID, &Wanted::MODEL, &settings).unwrap();
        assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), weights());
        assert!(!hub.requests().last().unwrap().storage);
        assert!(hub.requests().iter().any(|seen| seen.range.as_deref() == Some("bytes=3000-")));
    }
}

#[test]
fn a_transfer_that_hangs_is_given_up() {
    let (hub, home) = (start(), tempfile::tempdir().unwrap());
    hub.change(|state| (state.cuts, state.cut_at, state.hang) = (3, 1000, true));
    let settings = HubSettings { timeout: Duration::from_millis(300), ..settings(&hub, home.path()) };
    let start = Instant::now();
    let message = fails(ID, &settings);
    assert!(message.contains("3000 of 800000 bytes") && message.contains("no answer within 300ms"), "{message}");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn a_left_over_part_does_not_get_in_the_way() {
    let whole = weights();
    let mut wrong = whole[..5000].to_vec();
    wrong[17] ^= 1;
    let too_long = [whole.clone(), vec![0; 10]].concat();
    for part in [whole.clone(), wrong, too_long] {
        let (hub, home) = (start(), tempfile::tempdir().unwrap());
        let blobs = home.path().join("hub/models--org--tiny/blobs");
        std::fs::create_dir_all(&blobs).unwrap();
        std::fs::write(blobs.join(format!("{}.incomplete", server::sha256(&whole))), &part).unwrap();
        let folder = resolve_with(ID, &Wanted::MODEL, &settings(&hub, home.path())).unwrap();
        assert!(std::fs::read(folder.join("model.safetensors")).unwrap() == whole, "part of {} bytes", part.len());
    }
}

#[test]
fn a_damaged_file_is_refused() {
    let (hub, home) = (start(), tempfile::tempdir().unwrap());
    hub.change(|state| state.damage = true);
    let message = fails(ID, &settings(&hub, home.path()));
    assert!(message.contains("model.safetensors") && message.contains("SHA-256"), "{message}");
    assert!(!home.path().join("hub/models--org--tiny/blobs").join(server::sha256(&weights())).exists());
}

#[test]
fn an_interrupted_update_keeps_the_older_snapshot() {
    let (hub, home) = (start(), tempfile::tempdir().unwrap());
    let settings = settings(&hub, home.path());
    let without_tokenizer = Wanted { optional: &[], ..Wanted::MODEL };
    let older = resolve_with(ID, &without_tokenizer, &settings).unwrap();
    // The branch moves on to other weights, and their transfer fails.
    hub.change(|state| {
        let mut files = state.commits[COMMIT].clone();
        files.insert("model.safetensors".to_string(), vec![7; 5000]);
        let next = "f".repeat(40);
        state.commits.insert(next.clone(), files);
        state.revisions.insert("main".to_string(), next);
        (state.cuts, state.cut_at) = (3, 100);
    });
    fails(ID, &settings);
    let offline = HubSettings { offline: true, ..settings };
    assert_eq!(resolve_with(ID, &Wanted::MODEL, &offline).unwrap(), older);
}

#[test]
fn sharded_weights_come_with_all_their_shards() {
    let index = br#"{"metadata": {}, "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
    let (first, second) = (vec![1; 4000], vec![2; 3000]);
    let hub = Hub::start(
        ID,
        &[
            ("config.json", b"{}"),
            ("model.safetensors.index.json", index),
            ("model-00001-of-00002.safetensors", &first),
            ("model-00002-of-00002.safetensors", &second),
        ],
    );
    let home = tempfile::tempdir().unwrap();
    let settings = settings(&hub, home.path());
    let folder = resolve_with(ID, &Wanted::MODEL, &settings).unwrap();
    assert_eq!(std::fs::read(folder.join("model-00001-of-00002.safetensors")).unwrap(), first);
    assert_eq!(std::fs::read(folder.join("model-00002-of-00002.safetensors")).unwrap(), second);

    // A shard that is gone from the cache is fetched again; offline it is missed.
    std::fs::remove_file(folder.join("model-00002-of-00002.safetensors")).unwrap();
    let offline = HubSettings { offline: true, ..settings.clone() };
    assert!(fails(ID, &offline).contains("model-00002-of-00002.safetensors"));
    resolve_with(ID, &Wanted::MODEL, &settings).unwrap();
    assert!(folder.join("model-00002-of-00002.safetensors").is_file());

    let other = tempfile::tempdir().unwrap();
    hub.change(|state| drop(state.commits.get_mut(COMMIT).unwrap().remove("model-00002-of-00002.safetensors")));
    let message = fails(ID, &HubSettings { cache: other.path().join("hub"), ..settings });
    assert!(message.contains("no file model-00002-of-00002.safetensors"), "{message}");
    assert!(!other.path().join("hub/models--org--tiny/refs").exists());
}

#[test]
fn an_answer_that_is_not_the_hubs_is_refused() {
    let (hub, home) = (start(), tempfile::tempdir().unwrap());
    hub.change(|state| {
        let files = state.commits[COMMIT].clone();
        state.commits.insert("../../../evil".to_string(), files);
        state.revisions.insert("main".to_string(), "../../../evil".to_string());
    });
    let message = fails(ID, &settings(&hub, home.path()));
    assert!(message.contains("is not the Hub's"), "{message}");
    assert!(tree(home.path()).is_empty());
}

#[test]
fn many_processes_may_load_at_once() {
    let (hub, home) = (start(), tempfile::tempdir().unwrap());
    let settings = settings(&hub, home.path());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| resolve_with(ID, &Wanted::MODEL, &settings).unwrap());
        }
    });
    let sent = hub.requests().iter().filter(|seen| seen.storage && seen.method == "GET").count();
    assert_eq!(sent, 1, "the weights are sent once");
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let (hub, home) = (start(), tempfile::tempdir().unwrap());
    let settings = settings(&hub, home.path());
    std::fs::write(&settings.cache, "a file where the folder should be").unwrap();
    let error = resolve_with(ID, &Wanted::MODEL, &settings).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("models--org--tiny"), "{error}");
}

#[test]
fn the_files_of_a_dataset_are_downloaded_once_and_found_offline() {
    let (part, home) = (weights(), tempfile::tempdir().unwrap());
    let hub = Hub::start(
        ID,
        &[
            ("README.md", b"#"),
            ("sst2/train-00000-of-00002.parquet", &part),
            ("sst2/train-00001-of-00002.parquet", b"second"),
            ("sst2/validation-00000-of-00001.parquet", b"third"),
            ("plain/test.jsonl", b"{}"),
        ],
    );
    hub.change(|state| state.is_dataset = true);
    let settings = settings(&hub, home.path());
    let address = "hf://datasets/org/tiny/sst2/train";
    let files = dataset_files_with(address, &settings).unwrap();
    let snapshot = home.path().join("hub/datasets--org--tiny/snapshots").join(COMMIT);
    let expected = ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"];
    assert_eq!(files, expected.map(|name| snapshot.join("sst2").join(name)));
    assert_eq!(std::fs::read(&files[0]).unwrap(), part);
    assert_eq!(std::fs::read(&files[1]).unwrap(), b"second");
    assert!(!snapshot.join("README.md").exists() && !snapshot.join("plain").exists(), "only what is wanted is taken");
    assert_eq!(dataset_files_with("hf://datasets/org/tiny@v1/plain/*.jsonl", &settings).unwrap().len(), 1);

    let asked = hub.requests().len();
    let offline = HubSettings { offline: true, ..settings.clone() };
    assert_eq!(dataset_files_with(address, &settings).unwrap(), files);
    assert_eq!(dataset_files_with(address, &offline).unwrap(), files);
    assert_eq!(hub.requests().len(), asked, "the second time needs no network");

    let error = |address: &str, settings: &HubSettings| {
        let error = dataset_files_with(address, settings).unwrap_err();
        assert!(error.to_string().contains("help:"), "{error}");
        error.to_string()
    };
    let missing = error("hf://datasets/org/tiny/sst2/test", &settings);
    assert!(missing.contains("has no file sst2/test") && missing.contains("plain/test.jsonl"), "{missing}");
    let missing = error("hf://datasets/org/tiny/sst2/validation", &offline);
    assert!(missing.contains("HF_HUB_OFFLINE") && missing.contains("--repo-type dataset"), "{missing}");
    // A part that is gone from the cache is not passed over in silence.
    std::fs::remove_file(&files[1]).unwrap();
    assert!(error(address, &offline).contains("HF_HUB_OFFLINE"));
    assert_eq!(dataset_files_with(address, &settings).unwrap(), files);
    assert!(files[1].is_file());
}

#[test]
fn a_dataset_is_found_by_its_name_and_configuration() {
    let home = tempfile::tempdir().unwrap();
    let hub = Hub::start(
        ID,
        &[
            ("README.md", b"#"),
            ("cola/train-00000-of-00001.parquet", b"cola"),
            ("sst2/train-00000-of-00002.parquet", b"first"),
            ("sst2/train-00001-of-00002.parquet", b"second"),
            ("sst2/dev-00000-of-00001.parquet", b"third"),
        ],
    );
    hub.change(|state| state.is_dataset = true);
    let settings = settings(&hub, home.path());
    let split = |config: Option<&str>, split: Split, settings: &HubSettings| {
        dataset_split_with(ID, config, split, &["parquet"], settings)
    };
    let files = split(Some("sst2"), Split::Train, &settings).unwrap();
    let read = |files: &[PathBuf]| files.iter().map(|file| std::fs::read(file).unwrap()).collect::<Vec<_>>();
    assert_eq!(read(&files), [&b"first"[..], b"second"]);
    assert_eq!(read(&split(Some("sst2"), Split::Validation, &settings).unwrap()), [b"third"]);
    assert!(split(Some("cola"), Split::Validation, &settings).unwrap().is_empty());
    for (config, part) in [(None, "data.dataset_config_name names none"), (Some("qqp"), "no configuration \"qqp\"")] {
        let error = split(config, Split::Train, &settings).unwrap_err();
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains(part), "{error}");
        assert!(error.to_string().contains("cola, sst2"), "{error}");
    }
    let asked = hub.requests().len();
    assert_eq!(split(Some("sst2"), Split::Train, &settings).unwrap(), files);
    assert_eq!(hub.requests().len(), asked, "all parts are there, as their names say");
    let offline = HubSettings { offline: true, ..settings.clone() };
    assert_eq!(split(Some("sst2"), Split::Train, &offline).unwrap(), files);
    let error = split(Some("cola"), Split::Train, &offline).unwrap_err().to_string();
    assert!(error.contains("configuration cola is not in the cache") && error.contains("HF_HUB_OFFLINE"), "{error}");
}

#[test]
fn a_dataset_of_a_script_is_read_from_its_parquet_branch() {
    const CONVERTED: &str = "fedcba98765432100123456789abcdeffedcba98";
    let home = tempfile::tempdir().unwrap();
    let hub = Hub::start(ID, &[("README.md", b"#"), ("tiny.py", b"import datasets")]);
    hub.change(|state| {
        state.is_dataset = true;
        state.revisions.insert("refs/convert/parquet".into(), CONVERTED.into());
        let files = [("en/train/0000.parquet", "a"), ("en/train/0001.parquet", "b"), ("de/train/0000.parquet", "c")];
        let files = files.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()));
        state.commits.insert(CONVERTED.into(), files.into());
    });
    let settings = settings(&hub, home.path());
    let split = |config, settings| dataset_split_with(ID, config, Split::Train, &["parquet"], settings);
    let files = split(Some("en"), &settings).unwrap();
    let folder = home.path().join("hub/datasets--org--tiny/snapshots").join(CONVERTED).join("en/train");
    assert_eq!(files, ["0000.parquet", "0001.parquet"].map(|name| folder.join(name)));
    let offline = HubSettings { offline: true, ..settings.clone() };
    assert_eq!(split(Some("en"), &offline).unwrap(), files);
    assert!(split(None, &settings).unwrap_err().to_string().contains("one of: de, en"));
    // Without that branch there is nothing to read.
    hub.change(|state| {
        state.revisions.remove("refs/convert/parquet");
    });
    let error = split(Some("en"), &settings).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Data);
    assert!(error.to_string().contains("no file of a split") && error.to_string().contains("tiny.py"), "{error}");
}

#[test]
fn a_run_names_its_dataset_as_scripts_do() {
    let home = tempfile::tempdir().unwrap();
    let rows =
        |count: usize| (0..count).map(|row| format!("{{\"text\": \"a text of row {row}\"}}\n")).collect::<String>();
    let (train, validation) = (rows(40), rows(8));
    let hub = Hub::start(ID, &[("en/train.jsonl", train.as_bytes()), ("en/validation.jsonl", validation.as_bytes())]);
    hub.change(|state| state.is_dataset = true);
    let plan = |data: &str| {
        let config = format!(
            "[run]\noutput_dir = \"run\"\n[model]\nkind = \"gpt2\"\nn_layer = 1\nn_embd = 16\nn_head = 2\nn_positions = 16\n\
             [data]\ntask = \"clm\"\nformat = \"jsonl\"\n{data}\n[tokenizer]\ntrain_vocab_size = 260\n\
             [trainer]\neval_strategy = \"epoch\"\n"
        );
        std::fs::write(home.path().join("c.toml"), config).unwrap();
        let mut command = assert_cmd::Command::cargo_bin("kiln").unwrap();
        command.current_dir(home.path()).env("KILN_CACHE", home.path().join("cache")).env("HF_HOME", home.path());
        command.env("HF_ENDPOINT", &hub.endpoint).env_remove("HF_HUB_CACHE").env_remove("HF_HUB_OFFLINE");
        command.args(["plan", "c.toml", "--json"]).output().unwrap()
    };
    let output = plan("dataset_name = \"org/tiny\"");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    let plan_of: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert!(plan_of["data"]["validation_examples"].as_u64() > Some(0), "{stdout}");
    for (data, part) in [
        ("dataset_name = \"org/tiny\"\ndataset_config_name = \"de\"", "one of: en"),
        ("dataset_name = \"org/tiny\"\ntrain = \"a.txt\"", "two ways of stating"),
        ("train = \"a.txt\"\ndataset_config_name = \"de\"", "without data.dataset_name"),
    ] {
        let output = plan(data);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && stderr.contains(part), "{stderr}");
    }
}

/// A listing of whoever stands between, with a file that is there to be downloaded.
#[test]
fn a_listing_reaches_nothing_outside_of_its_snapshot() {
    let home = tempfile::tempdir().unwrap();
    let private = home.path().join("private.csv");
    let row = b"text,label\nsecret,1\n";
    std::fs::write(&private, row).unwrap();
    let absolute = private.display().to_string();
    let snapshot = format!("hub/datasets--org--tiny/snapshots/{COMMIT}");
    let up = "../".repeat(snapshot.matches('/').count() + 1) + "private.csv";
    let names = [
        absolute.as_str(),
        up.as_str(),
        "a/../../x.csv",
        "./x.csv",
        "a//x.csv",
        "",
        "a\\..\\x.csv",
        "C:x.csv",
        "a\0.csv",
        "a\u{1b}[31m.csv",
        "a\n.csv",
    ];
    for name in names {
        let hub = Hub::start(ID, &[("a.csv", b"text\nx\n"), (name, b"evil\n")]);
        hub.change(|state| state.is_dataset = true);
        let settings = settings(&hub, home.path());
        for pattern in ["**", "**/*.csv", "a.csv"] {
            let error = dataset_files_with(&format!("hf://datasets/org/tiny/{pattern}"), &settings).unwrap_err();
            let shown = error.to_string();
            assert_eq!(error.kind(), ErrorKind::Data, "{name:?}: {shown}");
            assert!(shown.contains("is not the Hub's") && shown.contains(&format!("{name:?}")), "{name:?}: {shown}");
        }
        hub.change(|state| state.is_dataset = false);
        assert!(fails(ID, &settings).contains("is not the Hub's"));
        assert_eq!(tree(home.path()), std::slice::from_ref(&private), "{name:?}");
        assert_eq!(std::fs::read(&private).unwrap(), row);
    }
}

#[test]
fn names_are_written_as_urls_write_them() {
    let (hub, home) = (Hub::start(ID, &[("a%20b.csv", b"text\nx\n")]), tempfile::tempdir().unwrap());
    hub.change(|state| (state.is_dataset, state.listed) = (true, Some(vec!["a b.csv".into()])));
    let files = dataset_files_with("hf://datasets/org/tiny/*.csv", &settings(&hub, home.path())).unwrap();
    assert!(files[0].ends_with("a b.csv") && std::fs::read(&files[0]).unwrap() == b"text\nx\n");
}

#[test]
fn an_index_of_shards_reaches_nothing_outside() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("private.safetensors"), "mine").unwrap();
    for shard in ["../../../../private.safetensors", "/etc/hostname", "..", "a/b.safetensors"] {
        let index = serde_json::json!({ "weight_map": { "a": shard } }).to_string();
        let files: &[(&str, &[u8])] = &[("config.json", b"{}"), ("model.safetensors.index.json", index.as_bytes())];
        let hub = Hub::start(ID, files);
        let error = resolve_with(ID, &Wanted::MODEL, &settings(&hub, home.path())).unwrap_err();
        assert!(error.to_string().contains("name of a file beside the index"), "{error}");
        assert!(!hub.requests().iter().any(|seen| seen.path.contains("private") || seen.path.contains("hostname")));
    }
    assert_eq!(std::fs::read(home.path().join("private.safetensors")).unwrap(), b"mine");
}

/// A byte now and then keeps every wait short; the whole has to come in a time that has an end.
#[test]
fn a_server_that_drips_is_given_up() {
    for part in ["/revision/", "/resolve", "model.safetensors"] {
        let (hub, home) = (start(), tempfile::tempdir().unwrap());
        hub.change(|state| state.drips = Some(part));
        let settings = HubSettings { timeout: Duration::from_millis(500), ..settings(&hub, home.path()) };
        let start = Instant::now();
        let message = fails(ID, &settings);
        assert!(message.contains("no answer within 500ms") || message.contains("too slow"), "{part}: {message}");
        assert!(start.elapsed() < Duration::from_secs(60), "{part} took {:?}", start.elapsed());
    }
}

#[test]
fn a_body_that_drips_is_given_up() {
    let (hub, home) = (start(), tempfile::tempdir().unwrap());
    // The head comes at once, and then a byte every 50 ms.
    let storage = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", storage.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in storage.incoming() {
            std::thread::spawn(move || {
                use std::io::{Read, Write};
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 800000\r\n\r\n");
                while stream.write_all(b"{").is_ok() {
                    std::thread::sleep(Duration::from_millis(50));
                }
            });
        }
    });
    let settings = HubSettings { timeout: Duration::from_millis(300), endpoint, ..settings(&hub, home.path()) };
    let start = Instant::now();
    let message = fails(ID, &settings);
    assert!(message.contains("too slow"), "{message}");
    // The whole body would take 11 hours; the attempts alone take 2 s on a machine that is not
    // busy.
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

#[test]
fn the_password_of_the_endpoint_is_sent_to_the_hub_and_never_shown() {
    let (hub, home) = (start(), tempfile::tempdir().unwrap());
    let address = hub.endpoint.strip_prefix("http://").unwrap();
    let with = |login: &str| HubSettings {
        endpoint: format!("http://{login}@{address}"),
        token: Some("hf_secret".into()),
        ..settings(&hub, home.path())
    };
    hub.change(|state| state.login = Some("dTpwQHNz".into())); // u:p@ss
    for (id, login) in [("org/other", "u:p%40ss"), (ID, "u:wr0ng")] {
        let message = fails(id, &with(login));
        assert!(message.contains(address), "{message}");
        for secret in ["p%40ss", "p@ss", "wr0ng", "u:"] {
            assert!(!message.contains(secret), "{message}");
        }
    }
    hub.change(|state| drop(state.commits.get_mut(COMMIT).unwrap().remove("config.json")));
    let message = fails(ID, &with("u:p%40ss"));
    assert!(message.contains("has no config.json") && !message.contains("p%40ss"), "{message}");
    hub.change(|state| drop(state.commits.get_mut(COMMIT).unwrap().insert("config.json".into(), b"{}".to_vec())));
    resolve_with(ID, &Wanted::MODEL, &with("u:p%40ss")).unwrap();
    let storage = hub.requests().into_iter().filter(|seen| seen.storage).collect::<Vec<_>>();
    assert!(!storage.is_empty() && storage.iter().all(|seen| seen.authorization.is_none()), "{storage:?}");
}

/// `kiln init` asks the Hub whether there is such a model; where nobody answers, it says so.
#[test]
fn a_new_config_names_a_model_that_exists() {
    let gpt2 = br#"{"model_type": "gpt2", "n_layer": 1}"#;
    let hub = Hub::start(ID, &[("config.json", gpt2), ("model.safetensors", &weights()), ("tokenizer.json", b"{}")]);
    let home = tempfile::tempdir().unwrap();
    let init = |task: &str, model: &str, offline: bool| {
        let mut command = crate::common::kiln(home.path());
        command.args(["init", task, model, "--out", "new.toml"]).env("HF_ENDPOINT", &hub.endpoint);
        command.env("HF_HUB_OFFLINE", if offline { "1" } else { "0" }).env("NO_PROXY", "127.0.0.1");
        command
    };
    let new = home.path().join("new.toml");
    let refused = |task: &str, model: &str, code: i32, parts: &[&str]| {
        crate::common::fails(&mut init(task, model, false), code, parts);
        assert!(!new.exists(), "{model}");
    };
    // Offline it cannot be known.
    let output = init("clm", "nosuch/model", true).output().unwrap();
    let said = crate::common::text(&output);
    assert!(output.status.success() && said.contains("warning: nosuch/model is not checked: `nosuch/model` is not in"));
    assert!(hub.requests().is_empty() && new.exists());
    std::fs::remove_file(&new).unwrap();

    refused("clm", "nosuch/model", 3, &["`nosuch/model` does not exist on http://127.0.0.1", "check the id"]);
    refused("clm", "org/tiny@v9", 3, &["no revision `v9`"]);
    refused("clm", "no/such/folder", 3, &["no such file or folder: no/such/folder"]);
    refused("clm", "./nosuch", 3, &["no such file or folder"]);
    refused("clm", "no such model", 2, &["neither an existing path nor an id"]);
    // The kind of a model is read from its configuration, not from its name.
    refused("mlm", ID, 2, &["org/tiny is a gpt2 model", "clm, sequence-classification"]);
    crate::common::succeeds(&mut init("clm", ID, false));
    assert!(std::fs::read_to_string(&new).unwrap().contains("from = \"org/tiny\""));
    assert!(!tree(home.path()).iter().any(|path| path.ends_with("model.safetensors")), "the weights wait");
    std::fs::remove_file(&new).unwrap();
    // From the cache now.
    crate::common::succeeds(&mut init("clm", ID, true));
    std::fs::remove_file(&new).unwrap();

    // Nobody answers at that address: it is as if there were no network.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut nobody = init("clm", "nosuch/model", false);
    let output = nobody.env("HF_ENDPOINT", format!("http://127.0.0.1:{port}")).output().unwrap();
    let said = crate::common::text(&output);
    assert!(output.status.success() && said.contains("is not checked: cannot load `nosuch/model`"), "{said}");
    assert!(new.exists());
}
