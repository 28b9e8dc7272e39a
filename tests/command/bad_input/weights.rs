//! Weight files that are cut short, lie about themselves or belong to another model. Nothing in
//! them is trusted: `train` and `generate` end with the file's name and no run folder is made.

use std::fmt::Display;

use serde_json::{Map, Value, json};

use crate::common::fixture;
use crate::common::messages::messages;
use crate::common::place::Place;

/// A safetensors file with this header and this many bytes of data.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// The header and the data of a real model's file.
fn parts() -> (Map<String, Value>, Vec<u8>) {
    let bytes = std::fs::read(fixture("gpt2-lm").join("model/model.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + length]).unwrap(), bytes[8 + length..].to_vec())
}

fn place() -> Place {
    let place = Place::new();
    let source = fixture("gpt2-lm").join("model");
    place.write("model/config.json", std::fs::read(source.join("config.json")).unwrap());
    place.write("model/model.safetensors", std::fs::read(source.join("model.safetensors")).unwrap());
    place.write(
        "from.toml",
        "[run]\noutput_dir = \"run\"\n[model]\nfrom = \"model\"\n[data]\ntask = \"clm\"\nformat = \"tokenized\"\n\
         train = \"rows.jsonl\"\n[trainer]\nmax_steps = 1\n[device]\nkind = \"cpu\"\n",
    );
    place.write("batch.json", "{\"input_ids\": [[1, 2]]}");
    place
}

/// Refuses weights of `bytes`, of which `told` is told.
fn refused(place: &Place, told: impl Display, bytes: &[u8]) {
    place.write_as("model/model.safetensors", bytes, &told.to_string());
    place.untrained("from.toml", &[], 3);
    let forward = ["forward", "model", "--task", "clm", "--batch", "batch.json", "--out", "out.safetensors"];
    place.fails(place.kiln(&forward), 3);
    assert!(!place.path("out.safetensors").exists());
}

#[test]
fn the_untouched_file_trains() {
    let place = place();
    place.train("from.toml", &[]);
}

#[test]
fn truncated_files() {
    let place = place().recording(messages!());
    let (header, data) = parts();
    let whole = file(&Value::Object(header).to_string(), &data);
    for length in [0, 4, 8, 100, whole.len() / 2, whole.len() - 1] {
        refused(&place, format!("the first {length} bytes"), &whole[..length]);
    }
    refused(&place, "more bytes at the end", &[&whole[..], b"more"].concat());
}

#[test]
fn headers_that_lie() {
    let place = place().recording(messages!());
    let (header, data) = parts();
    // A length beyond the file, beyond what is allowed, beyond a machine word.
    for length in [1 << 20, 1 << 40, u64::MAX, u64::MAX - 7] {
        let mut bytes = file(&Value::Object(header.clone()).to_string(), &data);
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        refused(&place, format!("a header of {length} bytes"), &bytes);
    }
    for header in ["not JSON at all", "[1, 2]", "{\"a\": 3}"] {
        refused(&place, header, &file(header, &data));
    }

    let name = "transformer.wte.weight";
    let offsets = header[name]["data_offsets"].as_array().unwrap();
    let (start, end) = (offsets[0].as_u64().unwrap(), offsets[1].as_u64().unwrap());
    for (key, value) in [
        ("data_offsets", json!([start, end + (1 << 30)])),
        ("data_offsets", json!([end, start])),
        ("data_offsets", json!([0, end - start])),
        ("data_offsets", json!([start, u64::MAX])),
        ("shape", json!([211, 49])),
        ("shape", json!([u64::MAX, u64::MAX])),
        ("shape", json!([-1])),
        ("dtype", json!("F16")),
        ("dtype", json!("F99")),
    ] {
        let mut header = header.clone();
        header[name][key] = value.clone();
        refused(&place, format!("{name}: {key} {value}"), &file(&Value::Object(header).to_string(), &data));
    }
}

#[test]
fn tensors_that_are_missing_misshapen_or_no_numbers() {
    let place = place().recording(messages!());
    let (header, data) = parts();
    let changed = |change: &dyn Fn(&mut Map<String, Value>)| {
        let mut header = header.clone();
        change(&mut header);
        file(&Value::Object(header).to_string(), &data)
    };
    let renamed = changed(&|header| {
        let tensor = header.remove("transformer.h.0.ln_1.weight").unwrap();
        header.insert("transformer.h.0.ln_9.weight".into(), tensor);
    });
    refused(&place, "ln_1.weight of the first block as ln_9.weight", &renamed);
    let reshaped = changed(&|header| header["transformer.h.0.mlp.c_fc.weight"]["shape"] = json!([192, 48]));
    refused(&place, "mlp.c_fc.weight transposed", &reshaped);
    let whole_numbers = changed(&|header| header["transformer.wpe.weight"]["dtype"] = json!("I32"));
    refused(&place, "wpe.weight of whole numbers", &whole_numbers);
    // The config describes another model than the file holds.
    place.write_as("model/model.safetensors", file(&Value::Object(header.clone()).to_string(), &data), "2 blocks");
    place.untrained("from.toml", &["model.n_layer=3"], 3);
    place.untrained("from.toml", &["model.n_positions=128"], 3);
    // Tied weights of which the file holds two versions.
    let mut untied = header.clone();
    let bias = untied["transformer.wte.weight"]["data_offsets"].as_array().unwrap();
    let size = bias[1].as_u64().unwrap() - bias[0].as_u64().unwrap();
    let at = data.len() as u64;
    untied
        .insert("lm_head.weight".into(), json!({"dtype": "F32", "shape": [211, 48], "data_offsets": [at, at + size]}));
    let data = [data, vec![0; size as usize]].concat();
    refused(&place, "another lm_head.weight than wte.weight", &file(&Value::Object(untied).to_string(), &data));
}

#[test]
fn shards_and_pickles_that_lie() {
    let place = place().recording(messages!());
    std::fs::remove_file(place.path("model/model.safetensors")).unwrap();
    let index = |text: &str| {
        place.write("model/model.safetensors.index.json", text);
        place.untrained("from.toml", &[], 3);
    };
    index("{");
    index("{\"weight_map\": 3}");
    index("{\"weight_map\": {\"a\": \"../secret.safetensors\"}}");
    index("{\"weight_map\": {\"a\": \"none.safetensors\"}}");
    let (header, data) = parts();
    place.write("model/one.safetensors", file(&Value::Object(header).to_string(), &data));
    index("{\"weight_map\": {\"a\": \"one.safetensors\"}}");
    std::fs::remove_file(place.path("model/model.safetensors.index.json")).unwrap();
    for bytes in [&b""[..], b"PK\x03\x04", b"hello"] {
        place.write("model/pytorch_model.bin", bytes);
        place.untrained("from.toml", &[], 3);
    }
    place.write("model/pytorch_model.bin", b"\x80\x02}q\x00."); // an empty dictionary
    place.untrained("from.toml", &[], 3);
}

#[test]
fn an_index_of_many_tensors_takes_no_longer_than_reading_it() {
    let place = place().recording(messages!());
    std::fs::remove_file(place.path("model/model.safetensors")).unwrap();
    let names = (0..60_000).map(|i| format!("group_{i}.weight")).collect::<Vec<_>>();
    let tensor = |(i, name): (usize, &String)| {
        (name.clone(), json!({"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]}))
    };
    let header = Value::Object(names.iter().enumerate().map(tensor).collect()).to_string();
    place.write("model/m-1.safetensors", file(&header, &vec![0; 4 * names.len()]));
    let map = |names: &[String]| names.iter().map(|name| (name.clone(), "m-1.safetensors".into())).collect();
    let index = |map| json!({"weight_map": Value::Object(map)}).to_string();
    let begun = std::time::Instant::now();
    place.write("model/model.safetensors.index.json", index(map(&names)));
    place.untrained("from.toml", &[], 3);
    let strange = [names, vec!["elsewhere".to_owned()]].concat();
    place.write("model/model.safetensors.index.json", index(map(&strange)));
    place.untrained("from.toml", &[], 3);
    // Listing all names of the file for each of them took hours.
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
}
