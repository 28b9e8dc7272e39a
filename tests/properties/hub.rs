//! Listings of a Hub that wants to write elsewhere: whatever a repository calls its files, they lie
//! below its snapshot.

use std::path::{Component, Path};
use std::time::Duration;

use kiln::data::hub::{HubSettings, Wanted, dataset_files_with, resolve_with};
use proptest::prelude::*;

use crate::server::Hub;
use crate::{cases, is_said, snapshot};

/// Names of files: good ones, and those that lead out of a folder. `HOME` stands for the folder
/// above the cache.
fn name() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec![
        "..",
        ".",
        "",
        "data",
        "train",
        "train-00000-of-00001.parquet",
        "a.csv",
        "b.jsonl",
        "secret.csv",
        "outside",
        "model.safetensors",
        "config.json",
        "..\\..",
        "C:",
        "refs",
        "main",
        "blobs",
        "é",
        "a%2e%2e",
        "%2e%2e",
        "a\u{1b}[31m.csv",
        "a?b.csv",
        "a#b.csv",
        "...",
        "-rf",
        "~",
        "$HOME",
        "con",
        "a\\b.csv",
        "\u{202e}gnp.csv",
    ]);
    let path = prop::collection::vec(part, 1..6).prop_map(|parts| parts.join("/"));
    prop_oneof![
        6 => path,
        1 => prop::sample::select(vec![
            "HOME/secret.csv", "HOME/outside/a.csv", "../../../../secret.csv", "../../../../../secret.csv",
            "data/../../../../../secret.csv", "../../refs/main", "../other/a.csv", "/etc/passwd", "..", "data/..",
        ]).prop_map(str::to_owned),
        1 => "[a-z./\\\\]{0,20}",
    ]
}

fn settings(hub: &Hub, home: &Path) -> HubSettings {
    HubSettings {
        cache: home.join("hub"),
        endpoint: hub.endpoint.clone(),
        token: None,
        offline: false,
        timeout: Duration::from_secs(2),
        progress: false,
    }
}

/// A place with files that are nobody's business, and a Hub whose repository has `names`.
fn place(names: &[String], is_dataset: bool) -> (tempfile::TempDir, Hub) {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("outside")).unwrap();
    for name in ["secret.csv", "outside/a.csv"] {
        std::fs::write(home.path().join(name), "text,label\nmine,1\n").unwrap();
    }
    let at = home.path().display().to_string();
    let files = names.iter().map(|name| (name.replace("HOME", &at), b"text,label\ntheirs,0\n".to_vec()));
    let hub = Hub::start("org/tiny", &[]);
    let files = files.collect();
    hub.change(|state| {
        state.is_dataset = is_dataset;
        let commit = state.revisions["main"].clone();
        state.commits.insert(commit, files);
    });
    (home, hub)
}

/// Where every link below `folder` leads is below it too.
fn stays_inside(folder: &Path) -> Result<(), TestCaseError> {
    if !folder.exists() {
        return Ok(());
    }
    let folder = folder.canonicalize().unwrap();
    for path in snapshot(&folder, &[]).into_keys() {
        let target = path.canonicalize();
        prop_assert!(target.as_ref().is_ok_and(|target| target.starts_with(&folder)), "{path:?} leads to {target:?}");
    }
    Ok(())
}

/// `path` is a file of the snapshot and has no part that leads anywhere.
fn is_of_the_snapshot(path: &Path, home: &Path) -> Result<(), TestCaseError> {
    let rest = path.strip_prefix(home.join("hub"));
    let plain = rest.is_ok_and(|rest| rest.components().all(|part| matches!(part, Component::Normal(_))));
    prop_assert!(plain, "{path:?} is not in the cache");
    let text = std::fs::read_to_string(path);
    prop_assert!(text.as_ref().is_ok_and(|text| text.contains("theirs")), "{path:?} is not the Hub's: {text:?}");
    Ok(())
}

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn datasets(
        names in prop::collection::vec(name(), 1..5),
        pattern in prop::sample::select(vec!["**", "**/*", "**/*.csv", "*", "train", "data/train", "*/*/*", "[!a]*", "?*"]),
    ) {
        let (home, hub) = place(&names, true);
        let before = snapshot(home.path(), &["hub"]);
        match dataset_files_with(&format!("hf://datasets/org/tiny/{pattern}"), &settings(&hub, home.path())) {
            Ok(paths) => paths.iter().try_for_each(|path| is_of_the_snapshot(path, home.path()))?,
            Err(error) => is_said(&error)?,
        }
        prop_assert_eq!(snapshot(home.path(), &["hub"]), before);
        stays_inside(&home.path().join("hub"))?;
        // Offline, the files in the cache are found as they were with the Hub.
        let offline = HubSettings { offline: true, ..settings(&hub, home.path()) };
        match dataset_files_with(&format!("hf://datasets/org/tiny/{pattern}"), &offline) {
            Ok(paths) => paths.iter().try_for_each(|path| is_of_the_snapshot(path, home.path()))?,
            Err(error) => is_said(&error)?,
        }
    }

    #[test]
    fn models(shards in prop::collection::vec(name(), 1..4)) {
        let names = ["config.json", "model.safetensors.index.json"].map(str::to_owned);
        let (home, hub) = place(&[&names[..], &shards[..]].concat(), false);
        let at = home.path().display().to_string();
        let map = shards.iter().enumerate().map(|(i, name)| (format!("t{i}"), name.replace("HOME", &at).into()));
        let index = serde_json::json!({"weight_map": serde_json::Value::Object(map.collect())}).to_string();
        hub.change(|state| {
            let commit = state.revisions["main"].clone();
            state.commits.get_mut(&commit).unwrap().insert(names[1].clone(), index.into_bytes());
        });
        let before = snapshot(home.path(), &["hub"]);
        if let Err(error) = resolve_with("org/tiny", &Wanted::MODEL, &settings(&hub, home.path())) {
            is_said(&error)?;
        }
        prop_assert_eq!(snapshot(home.path(), &["hub"]), before);
        stays_inside(&home.path().join("hub"))?;
    }
}
