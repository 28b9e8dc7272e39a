//! Data that is missing, empty, malformed or does not fit the model.

use serde_json::json;

use crate::common::place::Place;
use crate::common::{fails, fixture, succeeds};

#[test]
fn no_such_file_and_a_glob_that_matches_nothing() {
    let place = Place::new();
    place.refused("text.toml", &["data.train=none.txt"], 2, &["data.train", "\"none.txt\": no such file", "help: "]);
    place.refused(
        "text.toml",
        &["data.train=none/*.txt"],
        2,
        &["data.train", "\"none/*.txt\"", "matches no file", "help: "],
    );
    place.refused("text.toml", &["data.train=text/["], 2, &["data.train", "text/[", "not a valid glob"]);
    place.refused(
        "text.toml",
        &["data.train=text", "data.format=csv"],
        2,
        &["data.train", "the folder has no file that ends as the format `csv` does", "it holds 0.txt"],
    );
    place.refused(
        "text.toml",
        &["data.train=${KILN_NOT_SET}/a"],
        2,
        &["KILN_NOT_SET is not set", "${KILN_NOT_SET:-...}"],
    );
    place.refused("text.toml", &["data.train=[]"], 2, &["data.train: required"]);
    place.refused("text.toml", &["data.validation=[\"none.txt\"]"], 2, &["data.validation", "no such file"]);
    place.refused("rows.toml", &["data.train=none.jsonl"], 2, &["data.train", "no such file"]);
}

#[test]
fn text_that_is_empty_or_no_text() {
    let place = Place::new();
    place.write("empty.txt", "");
    place.write("latin1.txt", b"na\xefve caf\xe9");
    place.write("utf16.txt", b"\xff\xfeh\0i\0");
    place.write("blank.txt", " \n");
    place.refused("text.toml", &["data.train=empty.txt"], 3, &["empty.txt", "expected text, got nothing"]);
    place.refused(
        "text.toml",
        &["data.train=latin1.txt"],
        3,
        &["latin1.txt", "expected UTF-8", "0xef at offset 2", "help: "],
    );
    place.refused(
        "text.toml",
        &["data.train=utf16.txt"],
        3,
        &["utf16.txt", "expected UTF-8", "got UTF-16 (little-endian"],
    );
    place.refused("text.toml", &["data.train=blank.txt"], 3, &["blank.txt", "expected text, got only white space"]);
    place.refused("text.toml", &["data.validation=[\"latin1.txt\"]"], 3, &["latin1.txt", "expected UTF-8"]);
    place.refused("text.toml", &["data.validation=[\"empty.txt\"]"], 3, &["data.validation", "got nothing"]);
    place.refused(
        "text.toml",
        &["data.train=text/0.txt", "data.validation=10%"],
        3,
        &["1 document(s) cannot be split", "help: "],
    );
}

#[test]
fn rows_that_would_take_all_memory() {
    let place = Place::new();
    let with_hole = |name: &str, start: &str| {
        place.write(name, start);
        std::fs::File::options().write(true).open(place.path(name)).unwrap().set_len(3 << 30).unwrap();
    };
    // A line of 3 GB, most of it a hole of the file system.
    for (format, start, line) in [("csv", "text\nx\n", 3), ("tsv", "text\nx\n", 3), ("jsonl", "{\"text\": \"x\"}\n", 2)]
    {
        with_hole("long", start);
        let set = [format!("data.format={format}"), "data.train=long".into()];
        let parts = [format!("long line {line}: expected at most 64 MiB, got more")];
        place.refused("text.toml", &set.each_ref().map(String::as_str), 3, &parts.each_ref().map(String::as_str));
    }
    with_hole("long", "x\n");
    place.refused(
        "text.toml",
        &["data.train=long", "data.documents=line"],
        3,
        &["long line 2: expected at most 64 MiB"],
    );
    with_hole("long", "{\"input_ids\": [1, 2]}\n");
    place.refused("rows.toml", &["data.train=long"], 3, &["long line 2: expected at most 64 MiB"]);
    // A class that would need a head of 2,147,483,648 rows.
    let classes =
        |label: &str| format!("{{\"input_ids\": [1], \"labels\": 1}}\n{{\"input_ids\": [2], \"labels\": {label}}}\n");
    place.write("classes.jsonl", classes("2147483647"));
    let set = ["data.train=classes.jsonl", "data.task=sequence-classification", "model.pad_token_id=0"];
    place.refused("rows.toml", &set, 3, &["classes.jsonl line 2: labels: expected 0 to 999, got 2147483647", "help: "]);
    let stated = [&set[..], &["model.num_labels=2147483648"]].concat();
    place.refused("rows.toml", &stated, 2, &["model.num_labels: expected at most 1000000, got 2147483648"]);
}

#[test]
fn an_id_that_is_not_in_the_vocabulary() {
    let place = Place::new();
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
        let says =
            format!("the token \"<|endoftext|>\" with the id {id} around a text, but its vocabulary has 270 ids");
        match code {
            None => drop(succeeds(&mut place.config("plan", "other.toml", &[]))),
            Some(code) => place.refused("other.toml", &[], code, &["other/tokenizer.json", &says]),
        }
    }
    tokenizer["post_processor"] = serde_json::Value::Null;
    tokenizer["added_tokens"].as_array_mut().unwrap().push(serde_json::json!({
        "id": 270, "content": "<extra>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": true,
    }));
    place.write("other/tokenizer.json", tokenizer.to_string());
    let parts = ["the tokenizer has 271 tokens, but the model's vocabulary has 270", "\"<extra>\" has the id 270"];
    place.refused("other.toml", &["model.vocab_size=270"], 2, &parts);
}

#[test]
#[cfg(target_os = "linux")]
fn files_whose_names_are_not_utf8() {
    use std::os::unix::ffi::OsStrExt;
    let place = Place::new();
    let tokens = || {
        let plan = succeeds(&mut place.config("plan", "text.toml", &[]));
        plan.lines().find(|line| line.starts_with("data ")).unwrap().to_string()
    };
    let before = tokens();
    let name = std::ffi::OsStr::from_bytes(b"na\xefve.txt");
    std::fs::copy(place.path("text/0.txt"), place.path("text").join(name)).unwrap();
    assert_ne!(tokens(), before, "the file is read");
    std::fs::write(place.path("text").join(name), b"\xff").unwrap();
    place.refused("text.toml", &[], 3, &["text/na\u{fffd}ve.txt: expected UTF-8 text"]);
}

#[test]
fn fewer_tokens_than_one_block() {
    let place = Place::new();
    let sets = ["data.validation=[\"short.txt\"]", "model.n_positions=64", "data.block_size=64"];
    place.write("short.txt", "let");
    place.refused("text.toml", &sets, 3, &["fewer than one block of 64", "data.block_size"]);
    let sets = ["model.n_positions=100000", "data.block_size=100000"];
    place.refused("text.toml", &sets, 3, &["fewer than one block of 100000", "help: add text, or set data.block_size"]);
}

#[test]
fn block_size_above_the_positions() {
    let place = Place::new();
    let parts = ["data.block_size = 17", "the model has 16 positions", "help: set data.block_size = 16"];
    place.refused("text.toml", &["data.block_size=17"], 2, &parts);
    place.write("long.jsonl", format!("{{\"input_ids\": {:?}}}", [1; 17]));
    place.refused("rows.toml", &["data.train=long.jsonl"], 3, &["long.jsonl line 1", "17 tokens", "16 positions"]);
}

#[test]
fn a_vocabulary_that_the_text_does_not_yield() {
    let place = Place::new();
    let parts = ["tokenizer.train_vocab_size = 50000", "yields only", "help: set tokenizer.train_vocab_size = "];
    place.refused("text.toml", &["tokenizer.train_vocab_size=50000"], 3, &parts);
}

#[test]
fn tokenized_rows_that_are_malformed() {
    let place = Place::new();
    let bad = |rows: &str, parts: &[&str]| {
        place.write("bad.jsonl", rows);
        let parts = [&["bad.jsonl"], parts].concat();
        place.refused("rows.toml", &["data.train=bad.jsonl"], 3, &parts);
    };
    bad("", &["expected rows, got none"]);
    bad("[]", &["expected rows, got none"]);
    bad("{\"input_ids\": [1, 2]}\n{\"input_ids\": [1,", &["line 2", "malformed JSON"]);
    bad("[{\"input_ids\": [1, 2]}", &["malformed JSON"]);
    bad(
        "{\n\"input_ids\": [1, 2]\n}",
        &["line 1: malformed JSON", "help: a file has a row on every line, or one JSON array"],
    );
    bad("{\"input_ids\": [1, 2], \"labels\": [-100, -100]}", &["every label of the rows is -100", "help: "]);
    bad("{\"input_ids\": [1, 2], \"label\": 1}", &["line 1", "unknown field `label`", "help: "]);
    bad("{\"input_ids\": 3}", &["line 1: input_ids: expected a list, got integer `3`", "help: a row has"]);
    bad("{\"input_ids\": [1.5]}", &["line 1: input_ids[0]: expected a whole number", "1.5"]);
    bad("{\"labels\": [1]}", &["line 1", "input_ids"]);
    bad("3", &["line 1: expected an object with input_ids, got 3"]);
    bad("{\"input_ids\": []}", &["line 1", "expected at least one token, got none"]);
    bad("{\"input_ids\": [1, 2], \"attention_mask\": [1]}", &["attention_mask", "expected 2 values", "got 1"]);
    bad("{\"input_ids\": [1, 2], \"attention_mask\": [1, 2]}", &["attention_mask", "expected 0 or 1, got 2"]);
    bad("{\"input_ids\": [1, 2], \"attention_mask\": [0, 0]}", &["attention_mask", "at least one attended"]);
    bad("{\"input_ids\": [1, 2], \"labels\": [1]}", &["labels", "expected 2 values", "got 1"]);
    bad("{\"input_ids\": [1, 2], \"labels\": 1}", &["labels", "expected a list of token ids"]);
    bad("{\"input_ids\": [1, 2], \"token_type_ids\": [0, 0]}", &["token_type_ids", "no token types"]);
    for (bytes, at) in
        [(&b"{\"input_ids\": [1]}\n{\"input_ids\": [\xff]}"[..], "34"), (b"[{\"input_ids\": [\xff]}]", "16")]
    {
        place.write("bad.jsonl", bytes);
        let parts = ["bad.jsonl: expected UTF-8 text, got the byte 0xff at offset ", at, "help: "];
        place.refused("rows.toml", &["data.train=bad.jsonl"], 3, &parts);
    }
    place.write("bad.jsonl", "");
    let empty = ["data.validation: bad.jsonl: expected rows, got none"];
    place.refused("rows.toml", &["data.validation=[\"bad.jsonl\"]"], 3, &empty);
    // Nothing of all this is in the cache but the rows that are right.
    assert!(place.listing("kiln-cache/tokenized").iter().all(|name| name.ends_with(".rows")));
    assert_eq!(place.listing("kiln-cache/tokenized").len(), 3);
}

#[test]
fn token_ids_and_labels_out_of_range() {
    let place = Place::new();
    let bad = |sets: &[&str], row: &str, parts: &[&str]| {
        place.write("bad.jsonl", format!("{{\"input_ids\": [1, 2, 3], \"labels\": [1, 2, 3]}}\n{row}"));
        if sets.contains(&"model.kind=bert") || sets.iter().any(|set| set.contains("classification")) {
            place.write("bad.jsonl", row);
        }
        let sets = [&["data.train=bad.jsonl"], sets].concat();
        place.refused("rows.toml", &sets, 3, &[&["bad.jsonl line"], parts].concat());
    };
    bad(&[], "{\"input_ids\": [1, 32]}", &["line 2: input_ids[1]: expected 0 to 31, got 32", "help: "]);
    bad(&[], "{\"input_ids\": [1, -1]}", &["input_ids[1]: expected 0 to 31, got -1"]);
    bad(&[], "{\"input_ids\": [99999999999]}", &["input_ids: expected a 32-bit number, got 99999999999"]);
    bad(
        &[],
        "{\"input_ids\": [1, 2], \"labels\": [1, 32]}",
        &["labels[1]: expected 0 to 31 (or -100, ignored), got 32"],
    );
    bad(&[], "{\"input_ids\": [1, 2], \"labels\": [-1, 2]}", &["labels[0]: expected 0 to 31", "got -1"]);
    let classes = ["data.task=sequence-classification", "model.num_labels=2"];
    bad(&classes, "{\"input_ids\": [1, 2], \"labels\": 2}", &["labels: expected 0 to 1, got 2"]);
    bad(&classes, "{\"input_ids\": [1, 2], \"labels\": -1}", &["labels: expected 0 to 1, got -1"]);
    bad(&classes, "{\"input_ids\": [1, 2], \"labels\": 0.5}", &["labels: expected a whole number", "0.5"]);
    place.write("bad.jsonl", "{\"input_ids\": [1, 2]}");
    place.refused(
        "rows.toml",
        &[&["data.train=bad.jsonl"], &classes[..]].concat(),
        3,
        &["no labels", "add the column labels"],
    );
}

#[test]
fn rows_of_berts_tasks() {
    let place = Place::new();
    let rows = "[run]\noutput_dir = \"run\"\n[model]\nkind = \"bert\"\nvocab_size = 32\nhidden_size = 8\nnum_hidden_layers = 1\n\
                num_attention_heads = 2\nintermediate_size = 16\nmax_position_embeddings = 16\n[data]\nformat = \"tokenized\"\n\
                train = \"bad.jsonl\"\ntask = ";
    let bad = |task: &str, row: &str, parts: &[&str]| {
        place.write("bert.toml", format!("{rows}{task:?}\n"));
        place.write("bad.jsonl", row);
        place.refused("bert.toml", &[], 3, &[&["bad.jsonl"], parts].concat());
    };
    bad("question-answering", "{\"input_ids\": [1], \"start_positions\": 0}", &["expected both, got one"]);
    bad(
        "question-answering",
        "{\"input_ids\": [1], \"start_positions\": 1, \"end_positions\": 1}",
        &["start_positions: expected 0 to 0, got 1"],
    );
    bad(
        "question-answering",
        "{\"input_ids\": [1, 2], \"start_positions\": 1, \"end_positions\": 0}",
        &["end_positions: expected at least start_positions (1), got 0"],
    );
    bad("question-answering", "{\"input_ids\": [1], \"labels\": 1}", &["start_positions and end_positions instead"]);
    bad("regression", "{\"input_ids\": [1], \"labels\": \"high\"}", &["labels: expected a finite number", "\"high\""]);
    bad("regression", "{\"input_ids\": [1], \"labels\": 1e300}", &["labels: expected a finite number"]);
    bad("regression", "{\"input_ids\": [1], \"labels\": NaN}", &["malformed JSON"]);
    bad("mlm", "{\"input_ids\": [1]}", &["the rows have no labels"]);
    bad(
        "mlm",
        "{\"input_ids\": [1], \"labels\": [1], \"token_type_ids\": [2]}",
        &["token_type_ids: expected 0 to 1, got 2"],
    );
    place.write("bert.toml", format!("{rows}\"clm\"\n"));
    place.write("bad.jsonl", "{\"input_ids\": [1, 2]}");
    place.refused("bert.toml", &[], 2, &["bert has no head for it"]);
}

#[test]
fn forward_and_generate_refuse_the_same() {
    let place = Place::new();
    let model = fixture("bert-classification").join("model");
    let model = model.to_str().unwrap();
    let forward = |batch: &str| {
        place.write("batch.json", batch);
        let task = "sequence-classification";
        place.kiln(&["forward", model, "--task", task, "--batch", "batch.json", "--out", "out.safetensors"])
    };
    for (batch, code, parts) in [
        (
            "{\"input_ids\": [[1, 211]], \"labels\": [0]}",
            3,
            ["batch.json row 1: input_ids[1]", "expected 0 to 210, got 211"],
        ),
        ("{\"input_ids\": [[1, 2]], \"labels\": [3]}", 3, ["batch.json row 1: labels", "expected 0 to 2, got 3"]),
        (
            "{\"input_ids\": [[1, 2]], \"labels\": [0, 1]}",
            3,
            ["batch.json: labels", "expected 1 rows, as input_ids has, got 2"],
        ),
        ("{\"input_ids\": []}", 3, ["batch.json: input_ids", "expected a list of rows"]),
        ("[1]", 3, ["batch.json", "expected an object of columns"]),
        (
            "{\"input_ids\": [[1, 2], [1]], \"attention_mask\": [[1, 1], [1, 1]]}",
            3,
            ["batch.json row 2: attention_mask", "expected 1 values"],
        ),
    ] {
        fails(&mut forward(batch), code, &parts);
    }
    let missing = ["forward", model, "--task", "regression", "--batch", "none.json", "--out", "out.safetensors"];
    fails(&mut place.kiln(&missing), 3, &["regression predicts one number, but the model has 3 labels"]);
    let missing =
        ["forward", model, "--task", "sequence-classification", "--batch", "none.json", "--out", "out.safetensors"];
    fails(&mut place.kiln(&missing), 1, &["cannot read none.json"]);
    assert!(!place.path("out.safetensors").exists());

    fails(&mut place.kiln(&["generate", model, "--prompt", "a"]), 2, &["bert has no head for it"]);
    let model = fixture("gpt2-lm").join("model");
    let model = model.to_str().unwrap();
    fails(&mut place.kiln(&["generate", model, "--prompt", "a"]), 3, &["no tokenizer found", "needs tokenizer.json"]);
    fails(
        &mut place.kiln(&["generate", "no/such/model", "--prompt", "a"]),
        3,
        &["no such file or folder: no/such/model"],
    );
    place.train("text.toml", &[]);
    for (args, code, part) in [
        (["--prompt", ""], 3, "the prompt has no tokens"),
        (["--prompt=a", "--temperature=-1"], 2, "temperature: expected a number >= 0, got -1"),
        (["--prompt=a", "--temperature=nan"], 2, "temperature: expected a number >= 0, got NaN"),
        (["--prompt=a", "--top-p=0"], 2, "top_p: expected a number in (0, 1], got 0"),
        (["--prompt=a", "--max-new-tokens=0"], 2, "max_new_tokens: expected at least 1, got 0"),
        (
            ["--prompt=one two three four five six seven eight nine ten eleven", "--seed=1"],
            3,
            "the model has 16 positions",
        ),
    ] {
        let mut command = place.kiln(&["generate", "run/model"]);
        fails(command.args(args), code, &[part]);
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
    let place = Place::new();
    // Nobody can make a folder in /sys, not even the administrator, who may write in spite of
    // permissions.
    for file in ["text.toml", "rows.toml"] {
        let mut train = place.config("train", file, &[]);
        fails(train.env("KILN_CACHE", "/sys/kiln-cache"), 1, &["cannot write the cache /sys/kiln-cache", "KILN_CACHE"]);
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
