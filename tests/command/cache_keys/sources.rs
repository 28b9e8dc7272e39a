//! Where rows and models come from: parquet with class names, saved datasets, dataset cards,
//! streams, and pretrained folders.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::tokenizers::{bert_tokenizer, word_pieces};
use super::{BERT, CLASSES, Case, Change, at, both, config, file, outcome, set, write};

pub(super) fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/fixtures").join(name)).unwrap()
}

/// Parquet with ClassLabel in its metadata.
pub(super) fn classes_in_parquet() -> Case {
    let data =
        "task = \"sequence-classification\"\nformat = \"parquet\"\ntrain = \"a.parquet\"\nvalidation = \"a.parquet\"";
    let base = vec![
        at("config.toml", config(BERT, data, "do_eval = true")),
        at("a.parquet", &fixture("labels/classes.parquet")[..]),
        at("b.parquet", &fixture("labels/other_order.parquet")[..]),
        at("none.parquet", &fixture("labels/unlabeled.parquet")[..]),
        at("tok/vocab.txt", word_pieces("good film play")),
        at("tok/tokenizer_config.json", bert_tokenizer(json!({}))),
    ];
    // Both files have the same names in their rows, and each has ids of its own for them.
    let only_first =
        ["data.train = \"b.parquet\"", "data.validation = \"b.parquet\"", "data.label_names = [\"neg\", \"pos\"]"];
    let tags = "data.task = \"token-classification\"";
    let changes = vec![
        file("a.parquet", &fixture("labels/other_order.parquet")[..]),
        set(&["data.label_names = [\"neg\", \"pos\", \"none\"]"]),
        set(&[&only_first[..2], &["data.label_names = [\"neg\", \"none\", \"pos\"]"]].concat()),
        set(&["data.train = [\"a.parquet\", \"b.parquet\"]"]),
        set(&["data.train = [\"a.parquet\", \"none.parquet\"]", "data.label_names = [\"neg\", \"pos\", \"-1\"]"]),
        set(&[tags]),
        set(&[tags, "data.label_names = [\"B-PER\", \"O\"]"]),
    ];
    Case { base, changes }
}

/// Folders of `datasets.save_to_disk`.
pub(super) fn saved_datasets() -> Case {
    let data = "task = \"sequence-classification\"\ndataset_name = \"saved\"";
    let mut base = vec![
        at("config.toml", config(BERT, data, "do_eval = true")),
        at("tok/vocab.txt", word_pieces("good film play")),
        at("tok/tokenizer_config.json", bert_tokenizer(json!({}))),
    ];
    for name in [
        "dataset_dict.json",
        "train/state.json",
        "train/dataset_info.json",
        "train/data-00000-of-00002.arrow",
        "train/data-00001-of-00002.arrow",
        "validation/state.json",
        "validation/dataset_info.json",
        "validation/data-00000-of-00001.arrow",
    ] {
        base.push(at(&format!("saved/{name}"), &fixture(&format!("files/saved/{name}"))[..]));
    }
    let text = |name: &str| String::from_utf8(fixture(&format!("files/saved/{name}"))).unwrap();
    let changed = |name: &str, from: &str, to: &str| {
        let before = text(name);
        assert!(before.contains(from), "{name}");
        file(&format!("saved/{name}"), before.replace(from, to))
    };
    let state = |files: &[&str]| {
        let mut state: Value = serde_json::from_str(&text("train/state.json")).unwrap();
        state["_data_files"] = files.iter().map(|file| json!({"filename": file})).collect();
        file("saved/train/state.json", state)
    };
    let [first, second] = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"];
    let down_up = "data.label_names = [\"down\", \"up\", \"left\"]";
    let mut turned = changed("train/dataset_info.json", "\"down\",", "\"left\",");
    turned.settings = vec![down_up.into()];
    let changes = vec![
        state(&[second, first]),
        state(&[first]),
        state(&[second]),
        set(&[down_up]),
        turned,
        both(changed("validation/dataset_info.json", "\"down\",", "\"left\","), &[down_up]),
        file("saved/train/data-00000-of-00002.arrow", &fixture("files/saved/validation/data-00000-of-00001.arrow")[..]),
        file("saved/validation/data-00000-of-00001.arrow", &fixture("files/saved/train/data-00000-of-00002.arrow")[..]),
        set(&["data.task = \"regression\"", "data.label_column = \"double\"", "data.skip_unlabeled = true"]),
    ];
    Case { base, changes }
}

/// A folder with a dataset card.
pub(super) fn dataset_cards() -> Case {
    let card = |train: &str, held: &str, more: &str| {
        let split = |name: &str, path: &str| format!("  - split: {name}\n    path: {path}\n");
        let splits = split("train", train) + &split("validation", held);
        format!("---\nconfigs:\n- config_name: one\n  default: true\n  data_files:\n{splits}{more}---\n")
    };
    let other = "- config_name: two\n  data_files: c.csv\n";
    let data = "task = \"sequence-classification\"\nformat = \"csv\"\ndataset_name = \"hub\"";
    let table = |word: &str| format!("text,label\na {word} film,x\na play,y\n");
    let base = vec![
        at("config.toml", config(BERT, data, "do_eval = true")),
        at("hub/a.csv", table("good")),
        at("hub/b.csv", table("bad")),
        at("hub/c.csv", table("long")),
        at("hub/README.md", card("a.csv", "b.csv", other)),
        at("tok/vocab.txt", word_pieces("good film play")),
        at("tok/tokenizer_config.json", bert_tokenizer(json!({}))),
    ];
    let two = ["data.dataset_config_name = \"two\"", "data.validation = \"hub/b.csv\""];
    let changes = vec![
        file("hub/README.md", card("b.csv", "b.csv", other)),
        file("hub/README.md", card("a.csv", "c.csv", other)),
        file("hub/README.md", card("[a.csv, c.csv]", "b.csv", other)),
        file("hub/README.md", card("[c.csv, a.csv]", "b.csv", other)),
        file("hub/a.csv", table("short")),
        file("hub/b.csv", table("short")),
        set(&two),
        both(file("hub/README.md", card("a.csv", "b.csv", "- config_name: two\n  data_files: [b.csv, a.csv]\n")), &two),
        set(&["data.validation = \"hub/a.csv\""]),
        Change {
            files: ["a.csv", "b.csv", "README.md"]
                .map(|name| {
                    let of = if name == "README.md" { card("b.csv", "a.csv", other) } else { table(name) };
                    at(&format!("other/{name}"), of)
                })
                .to_vec(),
            ..set(&["data.dataset_name = \"other\""])
        },
    ];
    Case { base, changes }
}

/// Data that are read as they are needed, of which the validation data alone are kept.
pub(super) fn streams() -> Case {
    let data = format!("{CLASSES}\nlabel_names = [\"good\", \"bad\"]\nstreaming = true");
    let table = |first: &str| format!("a,b,label\n{first},so,good\nnett,weg,bad\nrain,ja,good\nfein,nein,bad\n");
    let base = vec![
        at("config.toml", config(BERT, &data, "do_eval = true\nper_device_train_batch_size = 2")),
        at("rows.csv", table("gute Filme")),
        at("other.csv", table("alte Filme")),
        at("rows.jsonl", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"yes\"}]}\n"),
        at("tok/vocab.txt", word_pieces("gute film the")),
        at("tok/tokenizer_config.json", bert_tokenizer(json!({}))),
    ];
    let random = "data.sampler = \"random\"";
    let changes = vec![
        file("rows.csv", table("neue Filme")),
        file("tok/vocab.txt", word_pieces("film gute the")),
        file("tok/tokenizer_config.json", bert_tokenizer(json!({"cls_token": "[MASK]"}))),
        set(&["data.train = \"other.csv\""]),
        set(&["data.train = [\"other.csv\", \"rows.csv\"]"]),
        set(&["data.validation = \"other.csv\""]),
        set(&["data.label_names = [\"bad\", \"good\"]"]),
        set(&["data.text_column = \"b\""]),
        set(&["data.text_pair_column = \"b\""]),
        set(&["data.max_length = 4"]),
        set(&["data.streaming = false"]),
        set(&[random]),
        set(&[random, "data.shuffle_buffer_size = 2"]),
        both(file("rows.csv", table("gute Filme").replace("so,good", "so,")), &["data.skip_unlabeled = true"]),
        both(
            file("rows.csv", table("gute Filme").replace("so,good", "so,-1")),
            &["data.label_names = [\"good\", \"bad\", \"-1\"]"],
        ),
    ];
    Case { base, changes }
}

/// A trained model with its tokenizer.
pub(super) fn pretrained() -> Case {
    let table = |labels: [&str; 2]| format!("a,label\ngute filme,{}\nder film,{}\n", labels[0], labels[1]);
    let mut base = vec![
        at("config.toml", config(BERT, CLASSES, "")),
        at("rows.csv", table(["x", "y"])),
        at("tok/vocab.txt", word_pieces("gute film the")),
        at("tok/tokenizer_config.json", bert_tokenizer(json!({}))),
    ];
    let place = tempfile::tempdir().unwrap();
    base.iter().for_each(|file| write(place.path(), file));
    outcome(place.path(), "cache", &[]);
    let model = fs::read_dir(place.path().join("run/model")).unwrap().map(|entry| entry.unwrap());
    let model = model.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()));
    let model = model.collect::<BTreeMap<_, _>>();
    let from = config("from = \"pre\"", CLASSES, "do_eval = true").replace("[tokenizer]\nfrom = \"tok\"\n", "");
    base[0] = at("config.toml", from);
    for folder in ["pre", "other"] {
        base.extend(model.iter().map(|(name, content)| at(&format!("{folder}/{name}"), &content[..])));
    }
    let of_other = base.iter_mut().find(|(name, _)| name == "other/vocab.txt").unwrap();
    *of_other = at("other/vocab.txt", word_pieces("film gute the"));
    let larger =
        word_pieces(&format!("gute film the{}", (0..60).map(|word| format!(" filme{word}")).collect::<String>()));
    base.push(at("larger/vocab.txt", larger + "filme\n"));
    let mut config: Value = serde_json::from_slice(&model["config.json"]).unwrap();
    (config["id2label"], config["label2id"]) = (json!({"0": "y", "1": "x"}), json!({"y": 0, "x": 1}));
    let changes = vec![
        file("pre/config.json", config),
        file("pre/vocab.txt", word_pieces("gute the film")),
        file("pre/tokenizer_config.json", bert_tokenizer(json!({"sep_token": "[MASK]"}))),
        set(&["model.from = \"other\""]),
        set(&["model.id2label = {\"0\" = \"y\", \"1\" = \"x\"}", "data.max_length = 3"]),
        set(&["tokenizer.from = \"larger\"", "model.resize_token_embeddings = true"]),
        both(file("rows.csv", table(["up", "down"]) + "mehr,left\n"), &["model.ignore_mismatched_sizes = true"]),
    ];
    Case { base, changes }
}
