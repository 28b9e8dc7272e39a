//! The Hub: what it lacks, refuses or does not deliver, and a machine without a network.

use std::sync::OnceLock;

use super::Do::{Call, Env, Run, Set, Unset};
use super::{CLASSES, Do, TEXT, TRAIN, all, apply, case, folder, joined, leak};
use crate::hub::server::{COMMIT, Hub, State};

/// A Hub with the model `org/bert`: a classifier that was trained on the same rows.
fn hub() -> &'static Hub {
    static HUB: OnceLock<Hub> = OnceLock::new();
    HUB.get_or_init(|| {
        let folder = folder(CLASSES);
        apply(folder.path(), &Run(&["train", "config.toml"]));
        let files = std::fs::read_dir(folder.path().join("run/model")).unwrap().map(|entry| entry.unwrap());
        let files = files
            .filter(|entry| entry.path().is_file())
            .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()));
        let files = files.collect::<Vec<_>>();
        let files = files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect::<Vec<_>>();
        Hub::start("org/bert", &files)
    })
}

fn change(change: impl FnOnce(&mut State)) {
    hub().change(change);
}

/// Training on a model of the Hub, with `more`.
fn on_hub(more: &[Do]) -> &'static [Do] {
    let endpoint = leak(&hub().endpoint);
    let model = Set("model", "{ from = \"org/bert\" }");
    joined(&[Unset("tokenizer"), model, Env("HF_HUB_OFFLINE", ""), Env("HF_ENDPOINT", endpoint), TRAIN], more)
}

/// One test, since the cases change the one Hub.
#[test]
fn models_of_the_hub() {
    let endpoint = leak(&hub().endpoint);
    let commit = leak(&format!("{{ from = \"org/bert@{COMMIT}\" }}"));
    all(&[
        // Offline, or without an answer.
        case(
            CLASSES,
            on_hub(&[Env("HF_HUB_OFFLINE", "1")]),
            &["HF_HUB_OFFLINE forbids the network", "hf download org/bert --local-dir FOLDER"],
            &[Env("HF_HUB_OFFLINE", "")],
        ),
        case(
            CLASSES,
            joined(
                &[Run(&["train", "config.toml", "--set", "run.output_dir=base"])],
                on_hub(&[Env("HF_ENDPOINT", "http://127.0.0.1:9")]),
            ),
            &["at http://127.0.0.1:9", "hf download org/bert --local-dir FOLDER", "give its path instead of the id"],
            &[Set("model", "{ from = \"base/model\" }")],
        ),
        case(
            CLASSES,
            on_hub(&[Env("HF_ENDPOINT", "hub.local")]),
            &["for example HF_ENDPOINT=https://huggingface.co"],
            joined(&[Env("HF_ENDPOINT", endpoint)], &[]),
        ),
        case(
            CLASSES,
            on_hub(&[Env("HF_HUB_DOWNLOAD_TIMEOUT", "soon")]),
            &["for example HF_HUB_DOWNLOAD_TIMEOUT=30"],
            &[Env("HF_HUB_DOWNLOAD_TIMEOUT", "30")],
        ),
        // Names.
        case(
            CLASSES,
            on_hub(&[Set("model", "{ from = \"org/brt\" }")]),
            &["`org/brt` does not exist on http://127.0.0.1", "check the id"],
            &[Set("model", "{ from = \"org/bert\" }")],
        ),
        case(
            CLASSES,
            on_hub(&[Set("model", "{ from = \"org/be rt\" }")]),
            &["an id is name or org/name, made of letters, digits, `-`, `_` and `.`"],
            &[Set("model", "{ from = \"org/bert\" }")],
        ),
        case(
            CLASSES,
            on_hub(&[Set("model", "{ from = \"org/bert@v9\" }")]),
            &["has no revision `v9`", "give a branch, a tag or a full commit hash after the `@`"],
            &[Set("model", "{ from = \"org/bert@main\" }")],
        ),
        case(
            CLASSES,
            on_hub(&[Set("model", "{ from = \"org/bert@v9\" }")]),
            &["give a branch, a tag or a full commit hash after the `@`"],
            joined(&[Set("model", commit)], &[]),
        ),
        case(
            CLASSES,
            on_hub(&[Set("model", "{ from = \"org/bert@a..b\" }")]),
            &["`a..b` in `org/bert@a..b` is no revision", "a branch, a tag or a commit, for example gpt2@main"],
            &[Set("model", "{ from = \"org/bert@main\" }")],
        ),
        // Access.
        case(
            CLASSES,
            on_hub(&[Call(|| change(|state| state.gated = true))]),
            &["`org/bert` on http://127.0.0.1", "is gated", "/org/bert, then set HF_TOKEN to a token of that account"],
            &[
                Call(|| change(|state| (state.gated, state.token) = (false, Some("hf_granted".into())))),
                Env("HF_TOKEN", "hf_granted"),
            ],
        ),
        case(
            CLASSES,
            on_hub(&[]),
            &["does not exist on http://127.0.0.1", "for a private or gated repository set HF_TOKEN"],
            &[Env("HF_TOKEN", "hf_granted")],
        ),
        case(
            CLASSES,
            on_hub(&[Env("HF_TOKEN", "hf_expired")]),
            &["refuses access to `org/bert`", "HF_TOKEN is valid and may read this repository"],
            &[Env("HF_TOKEN", "hf_granted")],
        ),
        case(
            CLASSES,
            on_hub(&[Env("HF_TOKEN", "hf_gränted")]),
            &["characters that no token has", "a token looks like hf_..."],
            &[Env("HF_TOKEN", "hf_granted")],
        ),
        // What is delivered.
        case(
            CLASSES,
            on_hub(&[Call(|| change(|state| (state.token, state.damage) = (None, true)))]),
            &["run the command again; if it stays so, the server or a proxy alters files"],
            &[Call(|| change(|state| state.damage = false))],
        ),
        case(
            CLASSES,
            on_hub(&[Call(|| change(|state| (state.cuts, state.cut_at) = (1000, 10)))]),
            &["run the command again to go on; nothing incomplete is used"],
            &[Call(|| change(|state| state.cuts = 0))],
        ),
        case(
            CLASSES,
            on_hub(&[Call(|| {
                change(|state| {
                    let whole = state.commits[COMMIT].clone();
                    state.listed = Some(whole.keys().cloned().collect());
                    state.commits.insert("f".repeat(40), whole);
                    state.commits.get_mut(COMMIT).unwrap().remove("model.safetensors");
                })
            })]),
            &["has no file model.safetensors", "choose another revision with id@revision"],
            &[Set("model", "{ from = \"org/bert@ffffffffffffffffffffffffffffffffffffffff\" }")],
        ),
    ]);
}

#[test]
fn datasets_of_the_hub() {
    let text = "the cat is in the box and the film is a good play\n".repeat(40);
    let hub = Hub::start("org/texts", &[("en/train.txt", text.as_bytes()), ("de/train.txt", text.as_bytes())]);
    hub.change(|state| state.is_dataset = true);
    let endpoint = leak(&hub.endpoint);
    let on_hub = |more: &[Do]| {
        joined(
            &[
                Env("HF_HUB_OFFLINE", ""),
                Env("HF_ENDPOINT", endpoint),
                Unset("data.train"),
                Set("data.format", "\"text\""),
                TRAIN,
            ],
            more,
        )
    };
    const DATASET: Do = Set("data.dataset_name", "\"org/texts\"");
    const ENGLISH: Do = Set("data.dataset_config_name", "\"en\"");
    all(&[
        case(
            TEXT,
            on_hub(&[DATASET, Set("data.dataset_config_name", "\"fr\"")]),
            &["set data.dataset_config_name to one of: ", "en"],
            &[ENGLISH],
        ),
        case(
            TEXT,
            on_hub(&[DATASET, ENGLISH, Env("HF_HUB_OFFLINE", "1")]),
            &["HF_HUB_OFFLINE forbids the network", "hf download org/texts --repo-type dataset --local-dir FOLDER"],
            &[Env("HF_HUB_OFFLINE", "")],
        ),
        case(
            TEXT,
            on_hub(&[Set("data.dataset_name", "\"org/text\""), ENGLISH]),
            &["does not exist on http://127.0.0.1", "check the id"],
            &[DATASET],
        ),
        case(
            TEXT,
            on_hub(&[DATASET, ENGLISH, Unset("data.format")]),
            &["it has de/train.txt, en/train.txt; set data.format"],
            &[Set("data.format", "\"text\"")],
        ),
    ]);
}
