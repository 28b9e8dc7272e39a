//! Data as they come: archives of gzip and zstd, and training data that are read as they are
//! needed.

use std::io::Write;
use std::path::Path;

use crate::common::messages::messages;
use crate::common::place::Place;
use crate::common::{succeeds, train_rows};

fn losses(run: &Path) -> Vec<String> {
    train_rows(run).iter().map(|row| row["loss"].to_string()).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    to.write_all(bytes).unwrap();
    to.finish().unwrap()
}

const EVERY_STEP: &str = "trainer.logging_steps=1";

#[test]
fn archives_train_as_what_they_hold() {
    let place = Place::new().recording(messages!());
    place.train("text.toml", &[EVERY_STEP]);
    let whole = losses(&place.path("run"));
    for document in 0..6 {
        let bytes = std::fs::read(place.path(&format!("text/{document}.txt"))).unwrap();
        let packed = if document % 2 == 0 { gzip(&bytes) } else { zstd::encode_all(&bytes[..], 0).unwrap() };
        let ending = ["gz", "zst"][document % 2];
        place.write(&format!("packed/{document}.txt.{ending}"), packed);
    }
    // As a folder.
    place.train("text.toml", &[EVERY_STEP, "data.train=\"packed\"", "run.output_dir=\"other\""]);
    assert_eq!(losses(&place.path("other")), whole);
    let rows = std::fs::read(place.path("rows.jsonl")).unwrap();
    place.train("rows.toml", &[EVERY_STEP, "run.output_dir=\"rows\""]);
    place.write("rows.jsonl.gz", gzip(&rows));
    place.train("rows.toml", &[EVERY_STEP, "data.train=\"rows.jsonl.gz\"", "run.output_dir=\"packed-rows\""]);
    assert_eq!(losses(&place.path("packed-rows")), losses(&place.path("rows")));

    std::fs::remove_dir_all(place.path("run")).unwrap();
    let packed = std::fs::read(place.path("packed/0.txt.gz")).unwrap();
    for (name, bytes) in [("cut.txt.gz", &packed[..packed.len() - 5]), ("plain.txt.gz", b"plain text")] {
        place.write(name, bytes);
        place.untrained("text.toml", &[&format!("data.train={name:?}")], 3);
    }
    place.write("cut.jsonl.gz", &gzip(&rows)[..30]);
    place.untrained("rows.toml", &["data.train=\"cut.jsonl.gz\""], 3);
}

#[test]
fn in_order_a_stream_trains_as_kept_data_do_and_keeps_nothing() {
    let place = Place::new();
    let steps = ["trainer.max_steps=5", EVERY_STEP, "data.sampler=\"sequential\""];
    place.train("text.toml", &steps);
    let kept = losses(&place.path("run"));
    let cache = place.path("cache");
    let streamed = [&steps[..], &["data.streaming=true", "run.output_dir=\"streamed\""]].concat();
    let said = succeeds(place.config("train", "text.toml", &streamed).env("KILN_CACHE", &cache));
    assert!(said.contains("streaming: read in order"), "{said}");
    assert_eq!(losses(&place.path("streamed")), kept);
    assert!(!cache.join("tokens").exists() && cache.join("tokenizers").exists());
}

/// A run of 7 steps has the same losses and weights when it is continued from its checkpoint of
/// step 3.
fn continues_exactly(place: &Place, file: &str, sets: &[&str]) {
    let sets = [sets, &["trainer.max_steps=7", "trainer.save_steps=3", "trainer.save_strategy=\"steps\"", EVERY_STEP]]
        .concat();
    place.train(file, &sets);
    let whole = losses(&place.path("run"));
    let model = |run: &str| std::fs::read(place.path(run).join("model/model.safetensors")).unwrap();
    let from = ["run.resume_from_checkpoint=\"run/checkpoints/step-000003\"", "run.on_existing=\"resume\""];
    let resumed = [&sets[..], &from, &["run.output_dir=\"resumed\""]].concat();
    let said = place.train(file, &resumed);
    assert!(said.contains("continuing after step 3"), "{said}");
    assert_eq!(losses(&place.path("resumed")), whole);
    assert!(model("run") == model("resumed"), "the weights differ");
    let state = crate::common::json(&place.path("run/checkpoints/step-000006/state.json"));
    let position = &state["position"];
    assert_eq!((position["epoch"].as_u64(), position["index"].as_u64()), (Some(0), state["samples"].as_u64()));
    assert_eq!(state["stream"]["index"], state["samples"], "{state}");
    assert!(state["stream"]["buffer"].as_str().is_some_and(|buffer| !buffer.is_empty()), "{state}");
    // A longer run goes on with the next examples.
    let longer = [&sets[..], &["trainer.max_steps=9", "trainer.lr_scheduler_type=\"constant\""]].concat();
    place.train(file, &[&longer[..], &["run.output_dir=\"longer\""]].concat());
    let short = [&longer[..], &["trainer.max_steps=7", "run.output_dir=\"short\""]].concat();
    place.train(file, &short);
    let on = [&longer[..], &["run.output_dir=\"short\"", "run.on_existing=\"resume\""]].concat();
    place.train(file, &on);
    assert_eq!(losses(&place.path("short")), losses(&place.path("longer")));
}

#[test]
fn a_stream_of_text_continues_exactly() {
    // A pass has some 60 blocks: 7 steps of 12 go round.
    let sets = ["data.streaming=true", "data.shuffle_buffer_size=9", "trainer.per_device_train_batch_size=12"];
    continues_exactly(&Place::new(), "text.toml", &sets);
}

fn classifier() -> Place {
    let place = Place::new();
    let pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "film", "play"];
    place.write("tokenizer/vocab.txt", pieces.join("\n"));
    let row = |i: usize| {
        let (word, label) = [("good", "praise"), ("bad", "blame")][i % 2];
        format!("{{\"text\": \"a {word} {}\", \"label\": \"{label}\"}}\n", ["film", "play", "film film"][i % 3])
    };
    place.write("labelled.jsonl", (0..22).map(row).collect::<String>());
    place.write("held.jsonl", (0..6).map(row).collect::<String>());
    place.write(
        "classifier.toml",
        "[run]\noutput_dir = \"run\"\n[model]\nkind = \"bert\"\nnum_hidden_layers = 1\nhidden_size = 8\nnum_attention_heads = 2\n\
         intermediate_size = 16\nmax_position_embeddings = 16\n[data]\ntask = \"sequence-classification\"\nformat = \"jsonl\"\n\
         train = \"labelled.jsonl\"\nvalidation = \"held.jsonl\"\nlabel_names = [\"blame\", \"praise\"]\n[tokenizer]\n\
         from = \"tokenizer\"\n[device]\nkind = \"cpu\"\n[trainer]\nper_device_train_batch_size = 4\nmax_steps = 4\n\
         eval_strategy = \"epoch\"\n",
    );
    place
}

#[test]
fn a_stream_of_rows_continues_exactly_and_in_order_is_what_is_kept() {
    let place = classifier();
    continues_exactly(&place, "classifier.toml", &["data.streaming=true", "data.shuffle_buffer_size=5"]);
    let steps = [EVERY_STEP, "data.sampler=\"sequential\"", "run.on_existing=\"overwrite\""];
    place.train("classifier.toml", &steps);
    let kept = losses(&place.path("run"));
    place.train("classifier.toml", &[&steps[..], &["data.streaming=true"]].concat());
    assert_eq!(losses(&place.path("run")), kept);
}

#[test]
fn changed_files_and_settings_that_a_stream_cannot_have_are_refused() {
    let place = classifier().recording(messages!());
    let stream = "data.streaming=true";
    for (file, set) in [
        ("text.toml", "trainer.max_steps=-1"),
        ("text.toml", "data.validation=\"10%\""),
        ("text.toml", "data.sampler=\"group_by_length\""),
        ("text.toml", "data.max_train_samples=8"),
        ("text.toml", "data.shuffle_buffer_size=0"),
        ("rows.toml", "data.padding=\"longest\""),
        ("classifier.toml", "data.padding=\"buckets\""),
    ] {
        place.refused(file, &[stream, set], 2);
    }
    place.refused("text.toml", &["data.shuffle_buffer_size=8"], 2);
    let text = std::fs::read_to_string(place.path("classifier.toml")).unwrap();
    place.write("unnamed.toml", text.replace("label_names = [\"blame\", \"praise\"]\n", ""));
    place.refused("unnamed.toml", &[stream], 2);

    let saved = [stream, "trainer.save_steps=1", "trainer.save_strategy=\"steps\"", "trainer.max_steps=2"];
    place.train("text.toml", &saved);
    let file = place.path("text/5.txt");
    let other = std::fs::read_to_string(&file).unwrap().replace("mod3", "mod4");
    std::fs::write(&file, other).unwrap();
    let on = [&saved[..], &["run.on_existing=\"resume\"", "trainer.max_steps=3"]].concat();
    place.fails(place.config("train", "text.toml", &on), 2);
}
