//! A build with the Cargo feature `push` writes to the Hub, and says why where it cannot.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::server::{Fault, Hub, Stored, TOKEN, blob, sha256};
use crate::common::messages::messages;
use crate::common::skip::skip;
use crate::common::small_run::{train, write};
use crate::common::{fails, kiln, succeeds, text};

const ID: &str = "org/tiny";

/// Bytes that nothing makes smaller.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        // SplitMix64.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)).to_le_bytes()
    };
    (0..bytes.div_ceil(8)).flat_map(|_| next()).take(bytes).collect()
}

/// A folder with the files of a model, and one that is none of them.
fn model(folder: &Path) -> PathBuf {
    let model = folder.join("a model");
    fs::create_dir_all(&model).unwrap();
    for name in ["config.json", "generation_config.json", "tokenizer.json", "README.md", "notes.txt"] {
        fs::write(model.join(name), format!("the content of {name}\n")).unwrap();
    }
    fs::write(model.join("model.safetensors"), noise(300_001, 1)).unwrap();
    model
}

const OWN: [&str; 5] = ["README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json"];

/// The index of two shards.
fn index() -> String {
    let shard = |part: usize| format!("model-0000{part}-of-00002.safetensors");
    json!({ "metadata": { "total_size": 180_000 }, "weight_map": { "a": shard(1), "b": shard(2) } }).to_string()
}

/// Puts a file of an earlier time into the repository.
fn leave(hub: &Hub, name: &str) {
    hub.change(|state| {
        let repository = state.repositories.get_mut(ID).unwrap();
        let head = repository.branches["main"].clone();
        let file = Stored { bytes: b"of an earlier time".to_vec(), is_lfs: false };
        repository.commits.get_mut(&head).unwrap().insert(name.to_owned(), file);
    });
}

/// `command`, which finds `hub` by the environment.
fn with<'a>(command: &'a mut Command, hub: &Hub) -> &'a mut Command {
    command.env("HF_ENDPOINT", &hub.endpoint).env("HF_TOKEN", TOKEN).env("HF_HUB_OFFLINE", "0");
    command.env("HF_HUB_DOWNLOAD_TIMEOUT", "20").env("HF_XET_XORB_COMPRESSION_POLICY", "none")
}

fn push(hub: &Hub, run: &Path, args: &[&str]) -> Command {
    let mut command = kiln(run.parent().unwrap());
    with(command.arg("push").arg(run).args(args), hub);
    command
}

/// The lines of the commits that were made of late.
fn commits(hub: &Hub) -> Vec<Vec<Value>> {
    let lines = |(_, body): (String, String)| body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    hub.take("/commit/").into_iter().map(lines).collect()
}

#[test]
fn what_cannot_be_pushed_is_refused_before_the_hub_is_asked() {
    let messages = messages!();
    let hub = Hub::start();
    let folder = tempfile::tempdir().unwrap();
    let refused = |args: &[&str], code: i32, set: &[(&str, &str)]| {
        let mut command = push(&hub, &folder.path().join("run"), args);
        set.iter().for_each(|(name, value)| _ = command.env(name, value));
        let set = set.iter().map(|(name, value)| format!("{name}={value} ")).collect::<String>();
        let said = fails(&mut command, code, &["help:"]).replace(folder.path().to_str().unwrap(), "FOLDER");
        messages.add(format!("{set}kiln push run {}", args.join(" ")), said);
    };
    refused(&["a/b/c"], 2, &[]);
    refused(&["org/tiny@main"], 2, &[]);
    refused(&[ID, "--revision", "a..b"], 2, &[]);
    refused(&[ID], 2, &[("HF_TOKEN", "")]);
    refused(&["tiny"], 2, &[("HF_TOKEN", "")]);
    refused(&[ID], 2, &[("HF_HUB_OFFLINE", "1")]);
    refused(&[ID], 2, &[("HF_ENDPOINT", "http://a:b@127.0.0.1:1")]);
    refused(&[ID], 3, &[]);
    fs::create_dir(folder.path().join("run")).unwrap();
    refused(&[ID], 3, &[]);
    fs::write(folder.path().join("run/config.json"), "{}").unwrap();
    refused(&[ID], 3, &[]);
    // A part of the shards is no model, with their index and without it.
    fs::write(folder.path().join("run/model-00001-of-00002.safetensors"), "").unwrap();
    refused(&[ID], 3, &[]);
    fs::write(folder.path().join("run/model.safetensors.index.json"), index()).unwrap();
    refused(&[ID], 3, &[]);
    assert!(hub.take("").is_empty());
}

#[test]
fn a_model_is_pushed_in_one_commit_and_what_is_there_is_not_sent_again() {
    let messages = messages!();
    let hub = Hub::start();
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let say = |what: &str, output: &str| messages.add(what, output.replace(&hub.endpoint, "HUB"));

    say("the first time", &succeeds(&mut push(&hub, &model, &[ID, "--private"])));
    assert!(hub.repository(ID).is_private);
    assert_eq!(hub.repository(ID).subjects, ["Upload by kiln push"]);
    let files = hub.files(ID, "main");
    assert_eq!(files.keys().collect::<Vec<_>>(), [".gitattributes"].iter().chain(&OWN).collect::<Vec<_>>());
    for name in OWN {
        assert!(files[name].bytes == fs::read(model.join(name)).unwrap(), "{name}");
        assert_eq!(files[name].is_lfs, name == "model.safetensors", "{name}");
    }
    let made = commits(&hub);
    assert_eq!(made.len(), 1);
    assert!(made[0][0]["value"]["parentCommit"].is_string(), "a commit names the one that it follows");

    say("again", &succeeds(&mut push(&hub, &model, &[ID])));
    assert!(hub.take("POST").is_empty(), "nothing is sent");

    fs::write(model.join("README.md"), "another card\n").unwrap();
    say("another card", &succeeds(&mut push(&hub, &model, &[ID])));
    let made = commits(&hub);
    let sent = made[0][1..].iter().map(|line| line["value"]["path"].as_str().unwrap()).collect::<Vec<_>>();
    assert_eq!(sent, ["README.md"]);

    // Weights in shards take the place of the one file, which would be read instead of them.
    fs::remove_file(model.join("model.safetensors")).unwrap();
    for part in 1..=2 {
        fs::write(model.join(format!("model-0000{part}-of-00002.safetensors")), noise(90_000, 6 + part)).unwrap();
    }
    fs::write(model.join("model.safetensors.index.json"), index()).unwrap();
    say("in shards", &succeeds(&mut push(&hub, &model, &[ID])));
    let files = hub.files(ID, "main");
    assert!(!files.contains_key("model.safetensors") && files.contains_key(".gitattributes"));
    assert!(files["model-00002-of-00002.safetensors"].bytes == noise(90_000, 8));
}

#[test]
fn files_that_would_be_read_with_another_model_are_removed() {
    let hub = Hub::start();
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    succeeds(&mut push(&hub, &model, &[ID]));
    let stale = ["added_tokens.json", "additional_chat_templates/rag.jinja", "chat_template.jinja"];
    let kept = ["notes.md", "examples/chat_template.jinja", "last-checkpoint/state.json", "pytorch_model.bin"];
    stale.iter().chain(&kept).for_each(|name| leave(&hub, name));
    fs::remove_file(model.join("generation_config.json")).unwrap();
    let output = succeeds(&mut push(&hub, &model, &[ID]));
    let files = hub.files(ID, "main");
    for name in stale.iter().chain(&["generation_config.json"]) {
        assert!(!files.contains_key(*name) && output.contains(name), "{name}: {output}");
    }
    assert!(kept.iter().all(|name| files.contains_key(*name)), "{:?}", files.keys());
    // A model without a tokenizer leaves the one that is there.
    fs::remove_file(model.join("tokenizer.json")).unwrap();
    succeeds(&mut push(&hub, &model, &[ID]));
    assert!(hub.files(ID, "main").contains_key("tokenizer.json"));
}

#[test]
fn a_commit_that_only_removes_follows_another_one() {
    let hub = Hub::start();
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    succeeds(&mut push(&hub, &model, &[ID]));
    leave(&hub, "model-00001-of-00002.safetensors");
    hub.change(|state| state.fault = Some(("/commit/", Fault::Overtaken)));
    let output = succeeds(&mut push(&hub, &model, &[ID]));
    assert!(output.contains("removed what the model has no more: model-00001-of-00002.safetensors"), "{output}");
    assert!(!hub.files(ID, "main").contains_key("model-00001-of-00002.safetensors"));
    assert_eq!(hub.repository(ID).subjects, ["Upload by kiln push", "Another one", "Upload by kiln push"]);
}

#[test]
fn the_owners_settings_say_whether_a_repository_is_private() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    for (args, said) in [(&[][..], Value::Null), (&["--private"][..], json!(true)), (&["--public"][..], json!(false))] {
        let hub = Hub::start();
        succeeds(&mut push(&hub, &model, &[&[ID][..], args].concat()));
        let made = hub.take("/repos/create");
        let body = serde_json::from_str::<Value>(&made[0].1).unwrap();
        assert_eq!((made.len(), body.get("private").cloned().unwrap_or_default()), (1, said), "{body}");
        assert_eq!(body.as_object().unwrap().contains_key("private"), !args.is_empty(), "{body}");
    }
}

#[test]
fn a_branch_is_made_and_a_pull_request_leaves_it() {
    let hub = Hub::start();
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    // A name alone is one of the account's.
    succeeds(&mut push(&hub, &model, &["tiny", "--revision", "try/one"]));
    let repository = hub.repository("me/tiny");
    assert!(!repository.is_private);
    assert_eq!(hub.files("me/tiny", "main").len(), 1);
    assert_eq!(hub.files("me/tiny", "try/one").len(), 1 + OWN.len());

    let output = succeeds(&mut push(&hub, &model, &["me/tiny", "--create-pr"]));
    assert!(output.contains("/me/tiny/discussions"), "{output}");
    assert_eq!(hub.files("me/tiny", "main").len(), 1);
    assert_eq!(hub.files("me/tiny", "refs/pr/1").len(), 1 + OWN.len());
}

#[test]
fn a_hub_that_refuses_is_told_and_asking_again_works() {
    let messages = messages!();
    let hub = Hub::start();
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let refused = |what: &str, fault: Option<(&'static str, Fault)>, token: &str| {
        hub.change(|state| state.fault = fault);
        let mut command = push(&hub, &model, &[ID]);
        let said = fails(command.env("HF_TOKEN", token), 3, &["help:"]);
        assert!(!said.contains(TOKEN) && !said.contains("hf_other"), "{said}");
        messages.add(what, said.replace(&hub.endpoint, "HUB"));
        hub.change(|state| state.fault = None);
    };
    refused("an unknown token", None, "hf_other");
    let denied = "You don't have the rights to create a model under the namespace \"org\" with hf_secretOfTheTest";
    refused("no right to make it", Some(("/repos/create", Fault::Status(403, denied))), TOKEN);
    refused("no right to write", Some(("/preupload/", Fault::Status(403, "Forbidden"))), TOKEN);
    hub.take("");
    refused("a conflict", Some(("/commit/", Fault::Status(409, "Conflict"))), TOKEN);
    assert_eq!(commits(&hub).len(), 3, "it is tried on the head of then");
    refused("too much", Some(("/commit/", Fault::Status(429, "Too many"))), TOKEN);
    refused("trouble", Some(("/commit/", Fault::Status(503, "Unavailable"))), TOKEN);
    refused("storage that refuses", Some(("/cas/v1/shards", Fault::Status(403, "Forbidden"))), TOKEN);
    assert!(!hub.files(ID, "main").contains_key("config.json"), "there is no half of a commit");
    succeeds(&mut push(&hub, &model, &[ID]));
    assert_eq!(hub.files(ID, "main").len(), 1 + OWN.len());
}

#[test]
fn a_lost_answer_to_a_commit_is_no_failure() {
    let hub = Hub::start();
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    hub.change(|state| state.fault = Some(("/commit/", Fault::Lost)));
    let output = succeeds(&mut push(&hub, &model, &[ID]));
    assert!(output.contains("pushed 5 files"), "{output}");
    assert_eq!(hub.repository(ID).subjects.len(), 1, "and the commit is not made twice");
    // A pull request cannot be told from one of somebody else.
    fs::write(model.join("README.md"), "another card\n").unwrap();
    hub.take("");
    fails(&mut push(&hub, &model, &[ID, "--create-pr"]), 3, &["help:", "/org/tiny/discussions first"]);
    assert_eq!(commits(&hub).len(), 1, "and is not made twice");
}

#[test]
fn a_branch_that_is_made_meanwhile_is_taken() {
    let hub = Hub::start();
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    hub.change(|state| state.fault = Some(("/branch/", Fault::Twice)));
    succeeds(&mut push(&hub, &model, &[ID, "--revision", "trial"]));
    assert_eq!(hub.files(ID, "trial").len(), 1 + OWN.len());
}

#[test]
fn a_silent_hub_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    for place in ["/api/models/", "/repos/create", "/preupload/", "/commit/", "/cas/v1/xorbs", "a large file"] {
        let hub = Hub::start();
        // The time for the body of a commit is not that for a file which goes to storage.
        let (bytes, place) = if place == "a large file" { ((10 << 20) + 1, "/commit/") } else { (300_001, place) };
        fs::write(model.join("model.safetensors"), noise(bytes, 1)).unwrap();
        hub.change(|state| state.fault = Some((place, Fault::Silence)));
        let begun = Instant::now();
        let mut command = push(&hub, &model, &[ID]);
        let said = fails(command.env("HF_HUB_DOWNLOAD_TIMEOUT", "0.3"), 3, &["help:"]);
        assert!(said.contains("no answer within") || said.contains("has taken nothing"), "{place}: {said}");
        // Requests are repeated once, a commit is waited for 6 times and storage 30 times as long,
        // and the head is looked at three times: 10 s with a margin for a busy machine.
        assert!(begun.elapsed() < Duration::from_secs(40), "{place}: {:?}", begun.elapsed());
    }
}

#[cfg(unix)]
#[test]
fn a_signal_ends_a_push() {
    let hub = Hub::start();
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    hub.change(|state| state.fault = Some(("/commit/", Fault::Silence)));
    let mut command = push(&hub, &model, &[ID]);
    let child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while hub.state.lock().unwrap().requests.iter().all(|(line, _)| !line.contains("/commit/")) {
        assert!(Instant::now() < deadline, "no commit is sent");
        std::thread::sleep(Duration::from_millis(20));
    }
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let output = crate::common::ended(child);
    assert_eq!(output.status.code(), Some(130), "{}", text(&output));
    assert!(text(&output).contains("stopped the push to `org/tiny`"), "{}", text(&output));
}

#[test]
fn a_hub_without_xet_gets_no_large_file() {
    let hub = Hub::start();
    hub.change(|state| state.without_xet = true);
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    fs::write(model.join("model.safetensors"), vec![7; 11 << 20]).unwrap();
    let parts = ["does not take model.safetensors (11534336 bytes)", "hf upload"];
    fails(&mut push(&hub, &model, &[ID]), 3, &parts);
    assert!(commits(&hub).is_empty());
}

#[test]
fn an_adapter_and_a_model_take_each_others_place() {
    let hub = Hub::start();
    let folder = tempfile::tempdir().unwrap();
    succeeds(&mut push(&hub, &model(folder.path()), &[ID]));
    let adapter = folder.path().join("adapter");
    fs::create_dir(&adapter).unwrap();
    let config = json!({ "base_model_name_or_path": folder.path().join("a model") }).to_string();
    fs::write(adapter.join("adapter_config.json"), config).unwrap();
    fs::write(adapter.join("adapter_model.safetensors"), noise(70_000, 3)).unwrap();
    leave(&hub, "pytorch_model-00001-of-00002.bin");
    // Kiln would read the model that is there in the place of the adapter.
    let output = push(&hub, &adapter, &[ID]).output().unwrap();
    let said = text(&output);
    assert!(output.status.success() && said.contains("is a path of this machine"), "{said}");
    let files = hub.files(ID, "main");
    assert!(files["adapter_model.safetensors"].bytes == noise(70_000, 3));
    for name in ["model.safetensors", "pytorch_model-00001-of-00002.bin"] {
        assert!(!files.contains_key(name), "{name}");
    }
    // transformers would read the adapter that is there on the base that it names.
    leave(&hub, "adapter_model.bin");
    let output = succeeds(&mut push(&hub, &folder.path().join("a model"), &[ID]));
    assert!(!output.contains("is a path of this machine"), "{output}");
    let files = hub.files(ID, "main");
    assert!(files.contains_key("model.safetensors") && files.keys().all(|name| !name.starts_with("adapter_")));
    // An adapter whose base is on the Hub is told nothing of it.
    fs::write(adapter.join("adapter_config.json"), json!({ "base_model_name_or_path": "org/base" }).to_string())
        .unwrap();
    let output = push(&hub, &adapter, &[ID]).output().unwrap();
    assert!(output.status.success() && !text(&output).contains("is a path"), "{}", text(&output));
}

/// The settings of a run that is uploaded.
fn uploaded(strategy: &str) -> Vec<String> {
    let strategy = format!("trainer.hub_strategy={strategy}");
    ["trainer.push_to_hub=true", "trainer.hub_model_id=org/tiny", "trainer.hub_private_repo=true", &strategy]
        .iter()
        .flat_map(|set| ["--set".to_owned(), (*set).to_owned()])
        .collect()
}

#[test]
fn a_run_uploads_its_checkpoints_and_goes_on_from_one_elsewhere() {
    let hub = Hub::start();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let set = uploaded("checkpoint");
    let set = set.iter().map(String::as_str).collect::<Vec<_>>();
    let mut command = train(folder.path(), "run", &set);
    let output = with(&mut command, &hub).output().unwrap();
    let said = text(&output);
    assert!(output.status.success() && said.contains(&format!("hub: {}/org/tiny (commit ", hub.endpoint)), "{said}");
    assert!(!said.contains(TOKEN));
    let log = fs::read_to_string(folder.path().join("run/run.log")).unwrap();
    assert!(log.contains("/org/tiny (commit "), "{log}");
    let repository = hub.repository(ID);
    assert!(repository.is_private);
    // The checkpoint of step 7 may be left out, the newest one may not.
    let subjects = &repository.subjects;
    assert_eq!(subjects[subjects.len() - 2..], ["Training in progress, step 14", "End of training"]);
    assert!(!folder.path().join("run/.hub").exists());
    let files = hub.files(ID, "main");
    for name in ["README.md", "config.json", "model.safetensors"] {
        assert!(files[name].bytes == fs::read(folder.path().join("run/model").join(name)).unwrap(), "{name}");
    }
    let is_known = |name: &str| {
        matches!(name, ".gitattributes" | "README.md" | "config.json" | "generation_config.json" | "model.safetensors")
    };
    let known = |name: &&String| is_known(name) || name.starts_with("last-checkpoint/");
    assert_eq!(files.keys().filter(known).count(), files.len(), "{:?}", files.keys());

    let there = folder.path().join("there/last-checkpoint");
    fs::create_dir_all(&there).unwrap();
    for (name, file) in files.iter().filter_map(|(name, file)| Some((name.strip_prefix("last-checkpoint/")?, file))) {
        fs::write(there.join(name), &file.bytes).unwrap();
    }
    let resumed = ["--resume-from", there.to_str().unwrap()];
    succeeds(&mut train(folder.path(), "elsewhere", &resumed));
    let weights = |run: &str| fs::read(folder.path().join(run).join("model/model.safetensors")).unwrap();
    assert!(weights("elsewhere") == weights("run"));

    // The plan tells of it.
    let plan = fs::read_to_string(folder.path().join("run/plan.toml")).unwrap();
    assert!(plan.contains("push_to_hub = true"), "{plan}");
}

#[test]
fn a_checkpoint_that_the_run_removes_is_uploaded() {
    let hub = Hub::start();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let set = uploaded("checkpoint");
    let mut set = set.iter().map(String::as_str).collect::<Vec<_>>();
    set.extend(["--set", "trainer.save_steps=1", "--set", "trainer.save_total_limit=1"]);
    let output = with(&mut train(folder.path(), "run", &set), &hub).output().unwrap();
    let said = text(&output);
    assert!(output.status.success() && !said.contains("is not on the Hub"), "{said}");
    let files = hub.files(ID, "main");
    let state = serde_json::from_slice::<Value>(&files["last-checkpoint/state.json"].bytes).unwrap();
    assert_eq!(state["step"], 14);
    // A run that uploads no checkpoint leaves none of another one's.
    let set = uploaded("end");
    let set = set.iter().map(String::as_str).collect::<Vec<_>>();
    succeeds(with(&mut train(folder.path(), "other", &set), &hub));
    assert!(hub.files(ID, "main").keys().all(|name| !name.starts_with("last-checkpoint/")));
}

#[test]
fn a_failed_upload_is_told_and_ends_no_run() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let faults =
        [("refuses", Fault::Status(403, "Forbidden"), "may not write"), ("silent", Fault::Silence, "no answer")];
    for (run, fault, why) in faults {
        let hub = Hub::start();
        hub.change(|state| state.fault = Some(("/api/", fault)));
        let set = uploaded("end");
        let set = set.iter().map(String::as_str).collect::<Vec<_>>();
        let mut command = train(folder.path(), run, &set);
        let output = with(&mut command, &hub).env("HF_HUB_DOWNLOAD_TIMEOUT", "0.2").output().unwrap();
        let said = text(&output);
        assert!(output.status.success(), "{said}");
        for part in
            ["the model is not on the Hub", why, "the run goes on", &format!("kiln push {run} org/tiny --private")]
        {
            assert!(said.contains(part), "{part}: {said}");
        }
        // It can be uploaded afterwards, also by the run itself, which has nothing else to do.
        hub.change(|state| state.fault = None);
        if run == "silent" {
            let set = [&set[..], &["--resume"]].concat();
            let output = with(&mut train(folder.path(), run, &set), &hub).output().unwrap();
            assert!(output.status.success(), "{}", text(&output));
            assert_eq!(hub.repository(ID).subjects, ["End of training"]);
        }
        succeeds(&mut push(&hub, &folder.path().join(run), &[ID]));
        assert!(hub.files(ID, "main").contains_key("model.safetensors"));
    }
    // A run that has not come to its end has no model yet, or an older one.
    let status = folder.path().join("silent/status.json");
    let text = fs::read_to_string(&status).unwrap();
    fs::write(&status, text.replace("\"Completed\"", "\"Stopped\"")).unwrap();
    let parts = ["has not come to its end: Stopped after step 14 of 14", "checkpoints/step-000014"];
    fails(&mut push(&Hub::start(), &folder.path().join("silent"), &[ID]), 3, &parts);
}

/// The requests of huggingface_hub for the same files, of a repository that is private or is what
/// its owner's settings say.
const ORACLE: &str = r#"
import os, sys
from huggingface_hub import CommitOperationAdd, HfApi
api = HfApi(endpoint=os.environ["HF_ENDPOINT"], token=os.environ["HF_TOKEN"])
private, folder, names = sys.argv[1], sys.argv[2], sys.argv[3:]
api.create_repo("org/tiny", private=True if private == "--private" else None, exist_ok=True)
head = api.model_info("org/tiny").sha
files = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=os.path.join(folder, name)) for name in names]
api.create_commit("org/tiny", files, commit_message="Upload by kiln push", parent_commit=head)
listed = {file.path: file for file in api.list_repo_tree("org/tiny", recursive=True)}
print(listed["model.safetensors"].lfs.sha256, listed["README.md"].blob_id)
"#;

#[test]
fn the_requests_are_those_of_huggingface_hub() {
    let python = std::env::var("KILN_PYTHON").unwrap_or_else(|_| "python3".into());
    let has = Command::new(&python).args(["-c", "import huggingface_hub"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        return skip!("python", "{python} has no huggingface_hub (KILN_PYTHON names another one)");
    }
    ["--private", ""].iter().for_each(|private| compare_requests(&python, private));
}

fn compare_requests(python: &str, private: &str) {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let (ours, theirs) = (Hub::start(), Hub::start());
    let args = [ID, private];
    let mut command = push(&ours, &model, if private.is_empty() { &args[..1] } else { &args });
    // With this hf-xet reports nothing, as the guide says.
    succeeds(command.env("HF_HUB_DISABLE_TELEMETRY", "1"));
    let mut command = Command::new(python);
    command.args(["-c", ORACLE, private]).arg(&model).args(OWN).env("HF_HOME", folder.path().join("python"));
    command.env("HF_HUB_DISABLE_XET", "1").env("HF_HUB_DISABLE_TELEMETRY", "1");
    let digests = succeeds(with(&mut command, &theirs));
    let read = |name: &str| fs::read(model.join(name)).unwrap();
    assert_eq!(digests.trim(), format!("{} {}", sha256(&read("model.safetensors")), blob(&read("README.md"))));
    assert_eq!(ours.files(ID, "main"), theirs.files(ID, "main"));
    for hub in [&ours, &theirs] {
        assert_eq!(hub.repository(ID).is_private, !private.is_empty());
    }

    let requests = |hub: &Hub| {
        let all = hub.take("POST").into_iter();
        let sorted = |value: &Value, key: &str| -> Value {
            let mut rows = value.as_array().unwrap().clone();
            rows.sort_by_key(|row| row.pointer(key).map(ToString::to_string));
            rows.into()
        };
        let read = |(line, body): (String, String)| {
            if line.contains("/commit/") {
                let lines = body.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect::<Value>();
                return Some((line, sorted(&lines, "/value/path")));
            }
            let mut body = serde_json::from_str::<Value>(&body).ok()?;
            if line.contains("/preupload/") {
                body["files"] = sorted(&body["files"], "/path");
            }
            Some((line, body))
        };
        let is_compared = |line: &str| !["/put/", "/cas/", "/validate-yaml"].iter().any(|part| line.contains(part));
        all.filter(|(line, _)| is_compared(line)).filter_map(read).collect::<BTreeMap<_, _>>()
    };
    let (mut ours, mut theirs) = (requests(&ours), requests(&theirs));
    // The transfers that a client offers, of which the server chooses, differ without Xet; models
    // are the kind of repository that needs no name. huggingface_hub asks the Hub before a commit
    // whether it can read the front matter of the card.
    let batch = format!("POST /{ID}.git/info/lfs/objects/batch");
    let create = "POST /api/repos/create".to_owned();
    for requests in [&mut ours, &mut theirs] {
        requests.get_mut(&batch).unwrap()["transfers"] = json!([]);
        let create = requests.get_mut(&create).unwrap().as_object_mut().unwrap();
        create.remove("type");
        if let Some(visibility) = create.remove("visibility") {
            create.insert("private".into(), (visibility == "private").into());
        }
    }
    for (line, body) in &theirs {
        assert_eq!(ours.get(line), Some(body), "{line}");
    }
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
}
