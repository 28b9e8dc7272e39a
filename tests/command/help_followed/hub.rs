//! The Hub: what it lacks, refuses or does not deliver, and a machine without a network.

use std::sync::OnceLock;

use super::Do::{Call, Env, Run, Set, Unset};
use super::{CLASSES, Do, TEXT, TRAIN, all, apply, case, folder, joined, leak};
use crate::common::messages::messages;
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
    all(
        messages!(),
        &[
            // Offline, or without an answer.
            case(CLASSES, on_hub(&[Env("HF_HUB_OFFLINE", "1")]), &[Env("HF_HUB_OFFLINE", "")]),
            case(
                CLASSES,
                joined(
                    &[Run(&["train", "config.toml", "--set", "run.output_dir=base"])],
                    on_hub(&[Env("HF_ENDPOINT", "http://127.0.0.1:9")]),
                ),
                &[Set("model", "{ from = \"base/model\" }")],
            ),
            case(CLASSES, on_hub(&[Env("HF_ENDPOINT", "hub.local")]), joined(&[Env("HF_ENDPOINT", endpoint)], &[])),
            case(CLASSES, on_hub(&[Env("HF_HUB_DOWNLOAD_TIMEOUT", "soon")]), &[Env("HF_HUB_DOWNLOAD_TIMEOUT", "30")]),
            // Names.
            case(
                CLASSES,
                on_hub(&[Set("model", "{ from = \"org/brt\" }")]),
                &[Set("model", "{ from = \"org/bert\" }")],
            ),
            case(
                CLASSES,
                on_hub(&[Set("model", "{ from = \"org/be rt\" }")]),
                &[Set("model", "{ from = \"org/bert\" }")],
            ),
            case(
                CLASSES,
                on_hub(&[Set("model", "{ from = \"org/bert@v9\" }")]),
                &[Set("model", "{ from = \"org/bert@main\" }")],
            ),
            case(CLASSES, on_hub(&[Set("model", "{ from = \"org/bert@v9\" }")]), joined(&[Set("model", commit)], &[])),
            case(
                CLASSES,
                on_hub(&[Set("model", "{ from = \"org/bert@a..b\" }")]),
                &[Set("model", "{ from = \"org/bert@main\" }")],
            ),
            // Access.
            case(
                CLASSES,
                on_hub(&[Call(|| change(|state| state.gated = true))]),
                &[
                    Call(|| change(|state| (state.gated, state.token) = (false, Some("hf_granted".into())))),
                    Env("HF_TOKEN", "hf_granted"),
                ],
            ),
            case(CLASSES, on_hub(&[]), &[Env("HF_TOKEN", "hf_granted")]),
            case(CLASSES, on_hub(&[Env("HF_TOKEN", "hf_expired")]), &[Env("HF_TOKEN", "hf_granted")]),
            case(CLASSES, on_hub(&[Env("HF_TOKEN", "hf_gränted")]), &[Env("HF_TOKEN", "hf_granted")]),
            // What is delivered.
            case(
                CLASSES,
                on_hub(&[Call(|| change(|state| (state.token, state.damage) = (None, true)))]),
                &[Call(|| change(|state| state.damage = false))],
            ),
            case(
                CLASSES,
                on_hub(&[Call(|| change(|state| (state.cuts, state.cut_at) = (1000, 10)))]),
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
                &[Set("model", "{ from = \"org/bert@ffffffffffffffffffffffffffffffffffffffff\" }")],
            ),
        ],
    );
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
    all(
        messages!(),
        &[
            case(TEXT, on_hub(&[DATASET, Set("data.dataset_config_name", "\"fr\"")]), &[ENGLISH]),
            case(TEXT, on_hub(&[DATASET, ENGLISH, Env("HF_HUB_OFFLINE", "1")]), &[Env("HF_HUB_OFFLINE", "")]),
            case(TEXT, on_hub(&[Set("data.dataset_name", "\"org/text\""), ENGLISH]), &[DATASET]),
            case(TEXT, on_hub(&[DATASET, ENGLISH, Unset("data.format")]), &[Set("data.format", "\"text\"")]),
        ],
    );
}
