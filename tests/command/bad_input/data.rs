//! Data that is missing, empty, malformed or does not fit the model.

use serde_json::json;

use crate::common::messages::messages;
use crate::common::place::Place;
use crate::common::{fixture, succeeds};

#[test]
fn no_such_file_and_a_glob_that_matches_nothing() {
    let place = Place::new().recording(messages!());
    place.refused("text.toml", &["data.train=none.txt"], 2);
    place.refused("text.toml", &["data.train=none/*.txt"], 2);
    place.refused("text.toml", &["data.train=text/["], 2);
    place.refused("text.toml", &["data.train=text", "data.format=csv"], 2);
    place.refused("text.toml", &["data.train=${KILN_NOT_SET}/a"], 2);
    place.refused("text.toml", &["data.train=[]"], 2);
    place.refused("text.toml", &["data.validation=[\"none.txt\"]"], 2);
    place.refused("rows.toml", &["data.train=none.jsonl"], 2);
}

#[test]
fn text_that_is_empty_or_no_text() {
    let place = Place::new().recording(messages!());
    place.write("empty.txt", "");
    place.write("latin1.txt", b"na\xefve caf\xe9");
    place.write("utf16.txt", b"\xff\xfeh\0i\0");
    place.write("blank.txt", " \n");
    place.refused("text.toml", &["data.train=empty.txt"], 3);
    place.refused("text.toml", &["data.train=latin1.txt"], 3);
    place.refused("text.toml", &["data.train=utf16.txt"], 3);
    place.refused("text.toml", &["data.train=blank.txt"], 3);
    place.refused("text.toml", &["data.validation=[\"latin1.txt\"]"], 3);
    place.refused("text.toml", &["data.train=utf16.txt", "data.errors=replace"], 3);
    place.refused("text.toml", &["data.format=parquet", "data.errors=replace"], 2);
    place.refused("text.toml", &["data.validation=[\"empty.txt\"]"], 3);
}

#[test]
fn rows_that_would_take_all_memory() {
    let place = Place::new().recording(messages!());
    let with_hole = |name: &str, start: &str| {
        place.write(name, start);
        std::fs::File::options().write(true).open(place.path(name)).unwrap().set_len(3 << 30).unwrap();
    };
    // A line of 3 GB, most of it a hole of the file system.
    for (format, start) in [("csv", "text\nx\n"), ("tsv", "text\nx\n"), ("jsonl", "{\"text\": \"x\"}\n")] {
        with_hole("long", start);
        place.refused("text.toml", &[&format!("data.format={format}"), "data.train=long"], 3);
    }
    with_hole("long", "x\n");
    place.refused("text.toml", &["data.train=long", "data.documents=line"], 3);
    with_hole("long", "{\"input_ids\": [1, 2]}\n");
    place.refused("rows.toml", &["data.train=long"], 3);
    // A class that would need a head of 2,147,483,648 rows.
    let classes =
        |label: &str| format!("{{\"input_ids\": [1], \"labels\": 1}}\n{{\"input_ids\": [2], \"labels\": {label}}}\n");
    place.write("classes.jsonl", classes("2147483647"));
    let set = ["data.train=classes.jsonl", "data.task=sequence-classification", "model.pad_token_id=0"];
    place.refused("rows.toml", &set, 3);
    let stated = [&set[..], &["model.num_labels=2147483648"]].concat();
    place.refused("rows.toml", &stated, 2);
}

#[test]
fn an_id_that_is_not_in_the_vocabulary() {
    let place = Place::new().recording(messages!());
    place.train("text.toml", &[]);
    let tokenizer = std::fs::read_to_string(place.path("run/model/tokenizer.json")).unwrap();
    let mut tokenizer: serde_json::Value = serde_json::from_str(&tokenizer).unwrap();
    std::fs::remove_dir_all(place.path("run")).unwrap();
    // 65541 is 5 in 16 bits.
    let around = |id: u32| serde_json::json!({"type": "BertProcessing", "sep": ["<|endoftext|>", id], "cls": ["<|endoftext|>", 0]});
    for (id, code) in [(5, None), (269, None), (270, Some(3)), (65541, Some(3))] {
        tokenizer["post_processor"] = around(id);
        place.write("other/tokenizer.json", tokenizer.to_string());
        let text = crate::common::place::TEXT.replace("train_vocab_size = 270", "from = \"other\"");
        place.write("other.toml", text);
        match code {
            None => drop(succeeds(&mut place.config("plan", "other.toml", &[]))),
            Some(code) => place.refused("other.toml", &[], code),
        }
    }
    tokenizer["post_processor"] = serde_json::Value::Null;
    tokenizer["added_tokens"].as_array_mut().unwrap().push(serde_json::json!({
        "id": 270, "content": "<extra>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": true,
    }));
    place.write("other/tokenizer.json", tokenizer.to_string());
    place.refused("other.toml", &["model.vocab_size=270"], 2);
}

#[test]
#[cfg(target_os = "linux")]
fn files_whose_names_are_not_utf8() {
    use std::os::unix::ffi::OsStrExt;
    let place = Place::new().recording(messages!());
    let tokens = || {
        let plan = succeeds(&mut place.config("plan", "text.toml", &[]));
        plan.lines().find(|line| line.starts_with("data ")).unwrap().to_string()
    };
    let before = tokens();
    let name = std::ffi::OsStr::from_bytes(b"na\xefve.txt");
    std::fs::copy(place.path("text/0.txt"), place.path("text").join(name)).unwrap();
    assert_ne!(tokens(), before, "the file is read");
    std::fs::write(place.path("text").join(name), b"\xff").unwrap();
    place.refused("text.toml", &[], 3);
}

#[test]
fn fewer_tokens_than_one_block() {
    let place = Place::new().recording(messages!());
    let sets = ["data.validation=[\"short.txt\"]", "model.n_positions=64", "data.block_size=64"];
    place.write("short.txt", "let");
    place.refused("text.toml", &sets, 3);
    let sets = ["model.n_positions=100000", "data.block_size=100000"];
    place.refused("text.toml", &sets, 3);
}

#[test]
fn block_size_above_the_positions() {
    let place = Place::new().recording(messages!());
    place.refused("text.toml", &["data.block_size=17"], 2);
    place.write("long.jsonl", format!("{{\"input_ids\": {:?}}}", [1; 17]));
    place.refused("rows.toml", &["data.train=long.jsonl"], 3);
}

#[test]
fn a_vocabulary_that_the_text_does_not_yield() {
    let place = Place::new().recording(messages!());
    place.refused("text.toml", &["tokenizer.train_vocab_size=50000"], 3);
}

#[test]
fn tokenized_rows_that_are_malformed() {
    let place = Place::new().recording(messages!());
    for rows in [
        "",
        "[]",
        "{\"input_ids\": [1, 2]}\n{\"input_ids\": [1,",
        "[{\"input_ids\": [1, 2]}",
        "{\n\"input_ids\": [1, 2]\n}",
        "{\"input_ids\": [1, 2], \"labels\": [-100, -100]}",
        "{\"input_ids\": [1, 2], \"label\": 1}",
        "{\"input_ids\": 3}",
        "{\"input_ids\": [1.5]}",
        "{\"labels\": [1]}",
        "3",
        "{\"input_ids\": []}",
        "{\"input_ids\": [1, 2], \"attention_mask\": [1]}",
        "{\"input_ids\": [1, 2], \"attention_mask\": [1, 2]}",
        "{\"input_ids\": [1, 2], \"attention_mask\": [0, 0]}",
        "{\"input_ids\": [1, 2], \"labels\": [1]}",
        "{\"input_ids\": [1, 2], \"labels\": 1}",
        "{\"input_ids\": [1, 2], \"token_type_ids\": [0, 0]}",
    ] {
        place.write("bad.jsonl", rows);
        place.refused("rows.toml", &["data.train=bad.jsonl"], 3);
    }
    for bytes in [&b"{\"input_ids\": [1]}\n{\"input_ids\": [\xff]}"[..], b"[{\"input_ids\": [\xff]}]"] {
        place.write("bad.jsonl", bytes);
        place.refused("rows.toml", &["data.train=bad.jsonl"], 3);
    }
    place.write("bad.jsonl", "");
    place.refused("rows.toml", &["data.validation=[\"bad.jsonl\"]"], 3);
    // Nothing of all this is in the cache but the rows that are right.
    assert!(place.listing("kiln-cache/tokenized").iter().all(|name| name.ends_with(".rows")));
    assert_eq!(place.listing("kiln-cache/tokenized").len(), 3);
}

#[test]
fn token_ids_and_labels_out_of_range() {
    let place = Place::new().recording(messages!());
    let bad = |sets: &[&str], row: &str| {
        place.write("bad.jsonl", format!("{{\"input_ids\": [1, 2, 3], \"labels\": [1, 2, 3]}}\n{row}"));
        if sets.contains(&"model.kind=bert") || sets.iter().any(|set| set.contains("classification")) {
            place.write("bad.jsonl", row);
        }
        let sets = [&["data.train=bad.jsonl"], sets].concat();
        place.refused("rows.toml", &sets, 3);
    };
    bad(&[], "{\"input_ids\": [1, 32]}");
    bad(&[], "{\"input_ids\": [1, -1]}");
    bad(&[], "{\"input_ids\": [99999999999]}");
    bad(&[], "{\"input_ids\": [1, 2], \"labels\": [1, 32]}");
    bad(&[], "{\"input_ids\": [1, 2], \"labels\": [-1, 2]}");
    let classes = ["data.task=sequence-classification", "model.num_labels=2"];
    bad(&classes, "{\"input_ids\": [1, 2], \"labels\": 2}");
    bad(&classes, "{\"input_ids\": [1, 2], \"labels\": -1}");
    bad(&classes, "{\"input_ids\": [1, 2], \"labels\": 0.5}");
    place.write("bad.jsonl", "{\"input_ids\": [1, 2]}");
    place.refused("rows.toml", &[&["data.train=bad.jsonl"], &classes[..]].concat(), 3);
}

#[test]
fn rows_of_berts_tasks() {
    let place = Place::new().recording(messages!());
    let rows = "[run]\noutput_dir = \"run\"\n[model]\nkind = \"bert\"\nvocab_size = 32\nhidden_size = 8\nnum_hidden_layers = 1\n\
                num_attention_heads = 2\nintermediate_size = 16\nmax_position_embeddings = 16\n[data]\nformat = \"tokenized\"\n\
                train = \"bad.jsonl\"\ntask = ";
    let bad = |task: &str, row: &str| {
        place.write("bert.toml", format!("{rows}{task:?}\n"));
        place.write("bad.jsonl", row);
        place.refused("bert.toml", &[], 3);
    };
    bad("question-answering", "{\"input_ids\": [1], \"start_positions\": 0}");
    bad("question-answering", "{\"input_ids\": [1], \"start_positions\": 1, \"end_positions\": 1}");
    bad("question-answering", "{\"input_ids\": [1, 2], \"start_positions\": 1, \"end_positions\": 0}");
    bad("question-answering", "{\"input_ids\": [1], \"labels\": 1}");
    bad("regression", "{\"input_ids\": [1], \"labels\": \"high\"}");
    bad("regression", "{\"input_ids\": [1], \"labels\": 1e300}");
    bad("regression", "{\"input_ids\": [1], \"labels\": NaN}");
    bad("mlm", "{\"input_ids\": [1]}");
    bad("mlm", "{\"input_ids\": [1], \"labels\": [1], \"token_type_ids\": [2]}");
    place.write("bert.toml", format!("{rows}\"clm\"\n"));
    place.write("bad.jsonl", "{\"input_ids\": [1, 2]}");
    place.refused("bert.toml", &[], 2);
}

#[test]
fn forward_and_generate_refuse_the_same() {
    let place = Place::new().recording(messages!());
    let model = fixture("bert-classification").join("model");
    let model = model.to_str().unwrap();
    let forward = |batch: &str| {
        place.write("batch.json", batch);
        let task = "sequence-classification";
        place.kiln(&["forward", model, "--task", task, "--batch", "batch.json", "--out", "out.safetensors"])
    };
    for batch in [
        "{\"input_ids\": [[1, 211]], \"labels\": [0]}",
        "{\"input_ids\": [[1, 2]], \"labels\": [3]}",
        "{\"input_ids\": [[1, 2]], \"labels\": [0, 1]}",
        "{\"input_ids\": []}",
        "[1]",
        "{\"input_ids\": [[1, 2], [1]], \"attention_mask\": [[1, 1], [1, 1]]}",
    ] {
        place.fails(forward(batch), 3);
    }
    let missing = ["forward", model, "--task", "regression", "--batch", "none.json", "--out", "out.safetensors"];
    place.fails(place.kiln(&missing), 3);
    let missing =
        ["forward", model, "--task", "sequence-classification", "--batch", "none.json", "--out", "out.safetensors"];
    place.fails(place.kiln(&missing), 1);
    assert!(!place.path("out.safetensors").exists());

    place.fails(place.kiln(&["generate", model, "--prompt", "a"]), 2);
    let model = fixture("gpt2-lm").join("model");
    let model = model.to_str().unwrap();
    place.fails(place.kiln(&["generate", model, "--prompt", "a"]), 3);
    place.fails(place.kiln(&["generate", "no/such/model", "--prompt", "a"]), 3);
    place.train("text.toml", &[]);
    for (args, code) in [
        (["--prompt", ""], 3),
        (["--prompt=a", "--temperature=-1"], 2),
        (["--prompt=a", "--temperature=nan"], 2),
        (["--prompt=a", "--top-p=0"], 2),
        (["--prompt=a", "--max-new-tokens=0"], 2),
        (["--prompt=one two three four five six seven eight nine ten eleven", "--seed=1"], 3),
    ] {
        let mut command = place.kiln(&["generate", "run/model"]);
        place.fails(command.args(args), code);
    }
}

/// A classifier on `table.csv` and a model of question answering on `squad.json`, with the words of
/// `vocab.txt`.
fn tables_and_questions(place: &Place) {
    place.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nred\nblue\nwhere\nis\nthe\nhouse\n");
    let rows = (0..12).map(|i| format!("{},{}\n", ["red", "blue red", "the blue house"][i % 3], i % 2));
    place.write("table.csv", format!("text,label\n{}", rows.collect::<String>()));
    let question = |i: usize| {
        let answers = json!([{ "text": "red", "answer_start": 13 }]);
        let asked = json!([{ "id": i.to_string(), "question": "where is the house", "answers": answers }]);
        json!({ "context": format!("the house is red {}", "the blue ".repeat(i)), "qas": asked })
    };
    let paragraphs = (0..8).map(question).collect::<Vec<_>>();
    let squad = json!({ "version": "1.1", "data": [{ "title": "t", "paragraphs": paragraphs }] });
    place.write("squad.json", squad.to_string());
    for (name, data) in [
        ("table", "task = \"sequence-classification\"\nformat = \"csv\"\ntrain = \"table.csv\""),
        (
            "squad",
            "task = \"question-answering\"\nformat = \"squad\"\ntrain = \"squad.json\"\nmax_length = 14\ndoc_stride = 2",
        ),
    ] {
        let config = format!(
            "[run]\noutput_dir = \"run\"\n[model]\nkind = \"bert\"\nnum_hidden_layers = 1\nnum_attention_heads = 2\n\
             hidden_size = 8\nintermediate_size = 16\nmax_position_embeddings = 16\n[data]\n{data}\n[tokenizer]\nfrom = \
             \"vocab.txt\"\n[device]\nkind = \"cpu\"\n[trainer]\nper_device_train_batch_size = 4\nmax_steps = 2\n"
        );
        place.write(&format!("{name}.toml"), config);
    }
}

/// Every kind of entry that is kept of data is exchanged for something else.
#[test]
fn a_cache_that_was_tampered_with_is_made_again() {
    let place = Place::new();
    let train = |config: &str| {
        let set = ["run.on_existing=overwrite", "trainer.logging_steps=1"];
        let output = place.config("train", config, &set).output().unwrap();
        assert!(output.status.success(), "{}", crate::common::text(&output));
        let stderr = String::from_utf8(output.stderr).unwrap();
        let losses =
            crate::common::train_rows(&place.path("run")).iter().map(|row| row["loss"].as_f64()).collect::<Vec<_>>();
        (losses, stderr.contains("it is made again"))
    };
    tables_and_questions(&place);
    let before = ["text.toml", "rows.toml", "table.toml", "squad.toml"].map(|config| train(config).0);
    for (kind, config, before) in [
        ("tokens", "text.toml", &before[0]),
        ("tokenizers", "text.toml", &before[0]),
        ("tokenized", "rows.toml", &before[1]),
        ("rows", "table.toml", &before[2]),
        ("windows", "squad.toml", &before[3]),
    ] {
        let folder = format!("kiln-cache/{kind}");
        let path = place.path(&folder).join(&place.listing(&folder)[0]);
        let whole = std::fs::read(&path).unwrap();
        let losses = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            train(config)
        };
        for at in [whole.len() / 3, whole.len() / 2, whole.len() - 1] {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            assert_eq!(losses(&flipped), (before.clone(), true), "{kind} byte {at}");
            assert!(std::fs::read(&path).unwrap() == whole, "{kind}");
        }
        assert_eq!(losses(&whole), (before.clone(), false), "{kind}");
    }
    // The ids of another text under the name of this one.
    let first = place.listing("kiln-cache/tokens");
    place.write("text/0.txt", "mod use let fn ".repeat(50));
    let (before, _) = train("text.toml");
    let second = place.listing("kiln-cache/tokens").into_iter().find(|name| *name != first[0]).unwrap();
    let [first, second] = [&first[0], &second].map(|name| place.path("kiln-cache/tokens").join(name));
    let kept = std::fs::read(&second).unwrap();
    std::fs::copy(first, &second).unwrap();
    assert_eq!(train("text.toml"), (before, true));
    assert!(std::fs::read(second).unwrap() == kept);
}

/// A run that needs nothing new in the cache succeeds with a cache that is read only; a run that
/// has to write into it is refused before it does anything.
#[cfg(target_os = "linux")]
#[test]
fn a_cache_that_cannot_be_written() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new().recording(messages!());
    // Nobody can make a folder in /sys, not even the administrator, who may write in spite of
    // permissions.
    for file in ["text.toml", "rows.toml"] {
        let mut train = place.config("train", file, &[]);
        place.fails(train.env("KILN_CACHE", "/sys/kiln-cache"), 1);
        assert!(!place.path("run").exists());
        succeeds(&mut place.config("plan", file, &[]));
    }
    let folders = ["kiln-cache/tokens", "kiln-cache/tokenized", "kiln-cache"];
    for folder in folders {
        std::fs::set_permissions(place.path(folder), std::fs::Permissions::from_mode(0o555)).unwrap();
    }
    for file in ["text.toml", "rows.toml"] {
        let run = format!("run.output_dir=run-{file}");
        succeeds(&mut place.config("train", file, &["trainer.save_strategy=no", &run]));
    }
    for folder in folders {
        std::fs::set_permissions(place.path(folder), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
}
