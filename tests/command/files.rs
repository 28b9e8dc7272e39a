//! Files of other programs beside what pandas and `datasets` read from them
//! (`tests/fixtures/files.json`, written by `make_files.py`): awkward CSV and JSON, hidden files,
//! dataset cards, saved datasets, types and codecs of parquet.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kiln::Result;
use kiln::config::DataFormat;
use kiln::data::hub::{Split, dataset_split};
use kiln::data::paths;
use kiln::data::table::{Cell, Columns, Row, Table};
use serde_json::Value;

use crate::common::messages::messages;
use crate::common::{json, kiln, rows as metrics, succeeds};
use crate::tables::{folder, train};

fn answers(kind: &str) -> Value {
    let text = include_str!("../fixtures/files.json");
    serde_json::from_str::<Value>(text).unwrap()[kind].take()
}

fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/fixtures/files").join(name)
}

fn columns(text: &str, label: Option<&str>) -> Columns {
    Columns { text: text.into(), label: label.map(str::to_owned), ..Columns::default() }
}

fn rows(file: &Path, format: DataFormat, columns: Columns) -> Result<Vec<Row>> {
    Table::open(&[file.display().to_string()], format, columns)?.rows().collect()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

#[test]
fn csv_is_split_as_pandas_splits_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.csv");
    for (name, case) in answers("csv").as_object().unwrap() {
        fs::write(&file, case["text"].as_str().unwrap()).unwrap();
        let read = rows(&file, DataFormat::Csv, columns("text", Some("label")));
        if let Some(line) = case.get("open_quote_in_line") {
            let error = read.unwrap_err().to_string();
            assert!(error.contains(&format!("a.csv line {line}: expected the quote")), "{name}: {error}");
            continue;
        }
        let read = read.unwrap().into_iter().map(|row| match row.label {
            Some(Cell::Text(label)) => vec![row.text, label],
            other => panic!("{name}: {other:?}"),
        });
        let expected = case["rows"].as_array().unwrap().iter().map(texts).collect::<Vec<_>>();
        assert_eq!(read.collect::<Vec<_>>(), expected, "{name}");
    }
}

#[test]
fn json_is_read_as_datasets_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.json");
    for (name, case) in answers("json").as_object().unwrap() {
        fs::write(&file, case["text"].as_str().unwrap()).unwrap();
        for row in [0, 1] {
            let expected = &case["rows"][row];
            let label = (!expected[1].is_null()).then_some("label");
            let read = rows(&file, DataFormat::Jsonl, columns("text", label)).unwrap();
            assert_eq!(read.len(), 2, "{name}");
            assert_eq!(read[row].text, expected[0].as_str().unwrap(), "{name}");
            let label = expected[1].as_i64().map(|label| Cell::Integer(label.into()));
            assert_eq!(read[row].label, label, "{name}");
        }
    }
}

#[test]
fn patterns_find_what_datasets_finds() {
    let folder = tempfile::tempdir().unwrap();
    let answers = answers("globs");
    let write = |name: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "text\na\n").unwrap();
    };
    texts(&answers["tree"]).iter().for_each(|name| write(name));
    for (pattern, expected) in answers["patterns"].as_object().unwrap() {
        let found = paths::resolve(&[folder.path().join(pattern).display().to_string()], DataFormat::Csv).unwrap();
        let name = |file: &PathBuf| file.strip_prefix(folder.path()).unwrap().display().to_string();
        assert_eq!(found.iter().map(name).collect::<Vec<_>>(), texts(expected), "{pattern}");
    }
}

/// The first text of each file of a split.
fn found(folder: &Path, config: Option<&str>, split: Split) -> Result<Vec<String>> {
    let files = dataset_split(folder.to_str().unwrap(), config, split, &["csv"])?;
    let text = |file: &PathBuf| Ok(rows(file, DataFormat::Csv, columns("text", None))?.remove(0).text);
    files.iter().map(text).collect()
}

fn with_card(files: &[String], card: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in files {
        let path = folder.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("text,label\n{file},x\n")).unwrap();
    }
    fs::write(folder.path().join("README.md"), card).unwrap();
    folder
}

#[test]
fn a_dataset_card_names_the_files_that_datasets_reads() {
    for (name, case) in answers("cards").as_object().unwrap() {
        let folder = with_card(&texts(&case["files"]), case["card"].as_str().unwrap());
        let config = case["config"].as_str();
        match case.get("splits") {
            None => {
                let error = found(folder.path(), config, Split::Train).unwrap_err().to_string();
                assert!(error.contains("README.md") || error.contains("data.dataset_config_name"), "{name}: {error}");
                assert!(error.contains("help: "), "{name}: {error}");
            }
            Some(splits) => {
                for (split, key) in [(Split::Train, "train"), (Split::Validation, "validation")] {
                    let expected = splits.get(key).map(texts).unwrap_or_default();
                    assert_eq!(found(folder.path(), config, split).unwrap(), expected, "{name}: {key}");
                }
            }
        }
    }
}

#[test]
fn what_a_card_asks_for_beyond_files_is_told_or_refused() {
    let files = ["a.csv".to_owned()];
    let one = "---\nconfigs:\n- config_name: a\n  data_files: a.csv\n";
    for (rest, part) in [
        ("  skiprows: 1\n", "skiprows: expected null, got 1"),
        ("  sep: ;\n", "sep: expected a comma or a tab, got \";\""),
        ("  sep: \"\\t\"\n", "set data.format = \"tsv\""),
        ("  header: 0\n", "configs: header: expected \"infer\", got 0"),
        ("  config_name: b\n", "line 5: the key \"config_name\" stands twice"),
        ("x: &x [1, 2]\ny: *x\n", "line 6: expected values, got an alias"),
        ("x: [1\n", "malformed YAML"),
        (&format!("x: {}\n", "[".repeat(200)), "README.md line"),
    ] {
        let folder = with_card(&files, &format!("{one}{rest}---\n"));
        let error = found(folder.path(), None, Split::Train).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("help: "), "{rest}: {error}");
    }
    let inert = "  sep: \",\"\n  skiprows: null\n  drop_labels: true\n  header: infer\n";
    let folder = with_card(&files, &format!("\u{feff}{one}{inert}---\n"));
    assert_eq!(found(folder.path(), None, Split::Train).unwrap(), files);
}

#[test]
fn saved_datasets_have_the_rows_of_load_from_disk() {
    let answers = answers("saved");
    for (split, kind) in [("train", Split::Train), ("validation", Split::Validation)] {
        let expected = answers[split].as_array().unwrap();
        let all = fixture("saved");
        let files = dataset_split(all.to_str().unwrap(), None, kind, &["arrow"]).unwrap();
        assert_eq!(files, [all.join(split)]);
        let read = |columns| rows(&files[0], DataFormat::Arrow, columns).unwrap();
        let named = Columns { class_names: true, ..columns("text", Some("label")) };
        for (row, expected) in read(named).iter().zip(expected) {
            assert_eq!(row.text, expected["text"].as_str().unwrap());
            let name = ["down", "up"][expected["label"].as_u64().unwrap() as usize];
            assert_eq!(row.label, Some(Cell::Text(name.into())));
        }
        for name in ["half", "double", "wide", "small", "digits", "flag"] {
            let read = read(columns("text", Some(name)));
            assert_eq!(read.len(), expected.len());
            for (row, expected) in read.into_iter().zip(expected) {
                let number = match &expected[name] {
                    Value::String(digits) => Some(digits.parse::<f64>().unwrap()),
                    Value::Bool(flag) => Some(f64::from(u8::from(*flag))),
                    other => other.as_f64(),
                };
                let got = match row.label.unwrap() {
                    Cell::Null => None,
                    Cell::Integer(number) => Some(number as f64),
                    Cell::Number(number) => Some(number),
                    Cell::Boolean(flag) => Some(f64::from(u8::from(flag))),
                    other => panic!("{name}: {other:?}"),
                };
                assert_eq!(got, number, "{name}");
            }
        }
        let words = Columns { words: true, class_names: true, ..columns("tokens", Some("tags")) };
        for (row, expected) in read(words).iter().zip(expected) {
            assert_eq!(row.parts, texts(&expected["tokens"]));
            let tag = |tag: &Value| Cell::Text(["O", "B-X"][tag.as_u64().unwrap() as usize].into());
            let tags = expected["tags"].as_array().unwrap().iter().map(tag).collect();
            assert_eq!(row.label, Some(Cell::List(tags)));
        }
        for (row, expected) in read(Columns { json: true, ..columns("messages", None) }).iter().zip(expected) {
            assert_eq!(serde_json::from_str::<Value>(&row.text).unwrap(), expected["messages"]);
        }
        let error = rows(&files[0], DataFormat::Arrow, columns("when", None)).unwrap_err().to_string();
        assert!(error.contains("column \"when\"") && error.contains("the type timestamp"), "{error}");
    }
}

#[test]
fn a_saved_dataset_trains_by_its_folder_and_by_its_splits() {
    let messages = messages!();
    let folder = folder();
    let path = folder.path();
    let saved = fixture("saved");
    let losses = |set: &[&str]| {
        succeeds(&mut train(path, &[set, &["trainer.max_steps=3", "trainer.per_device_train_batch_size=2"]].concat()));
        let rows = metrics(&path.join("run"));
        rows.iter().filter_map(|row| row["loss"].as_f64().or(row["eval_loss"].as_f64())).collect::<Vec<_>>()
    };
    let of = |key: &str, part: &str| format!("data.{key}={:?}", [saved.join(part).display().to_string()]);
    let splits = losses(&["data.format=arrow", &of("train", "train"), &of("validation", "validation")]);
    assert_eq!(json(&path.join("run/model/config.json"))["id2label"], serde_json::json!({"0": "down", "1": "up"}));
    // The help of each refusal leads to a run.
    let refused = |set: &[&str], code| messages.fails(train(path, set), code);
    refused(&["data.format=arrow", &of("train", "")], 2);
    refused(&["data.format=csv", &of("train", "train")], 2);
    let cut = path.join("cut.arrow");
    let whole = fs::read(saved.join("train/data-00000-of-00002.arrow")).unwrap();
    for size in [whole.len() - 200, 40] {
        fs::write(&cut, &whole[..size]).unwrap();
        refused(&["data.format=arrow", "data.train=[\"cut.arrow\"]"], 3);
    }
    leave_out(path, &["train = ", "validation = ", "format = "]);
    let named = format!("data.dataset_name={:?}", saved.display().to_string());
    assert_eq!(losses(&[&named]), splits);
    let plan = fs::read_to_string(path.join("run/plan.toml")).unwrap();
    assert!(plan.lines().any(|line| line == "format = \"arrow\""), "{plan}");
    assert_eq!(losses(&[&named, "data.format=arrow"]), splits);
    for format in ["csv", "parquet"] {
        let stated = format!("data.format={format}");
        refused(&[&named, &stated], 2);
    }
}

#[test]
fn a_name_in_dataset_info_that_nobody_knows_is_told_once() {
    let folder = folder();
    let path = folder.path();
    let saved = path.join("saved");
    fs::create_dir(&saved).unwrap();
    for entry in fs::read_dir(fixture("saved/train")).unwrap() {
        let file = entry.unwrap().path();
        fs::copy(&file, saved.join(file.file_name().unwrap())).unwrap();
    }
    let info = saved.join("dataset_info.json");
    let mut object = json(&info);
    object["tomorrow"] = 1.into();
    fs::write(&info, object.to_string()).unwrap();
    leave_out(path, &["validation = ", "eval_strategy = "]);
    let said = warnings(&mut train(path, &["data.format=arrow", "data.train=[\"saved\"]", "trainer.max_steps=1"]));
    assert_eq!(said.matches("dataset_info.json: tomorrow is not known and not followed").count(), 1, "{said}");
}

/// The stderr of a command that succeeds.
fn warnings(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    said
}

/// Leaves out the lines of the config in the folder `path` that begin with one of `keys`.
fn leave_out(path: &Path, keys: &[&str]) {
    let config = fs::read_to_string(path.join("config.toml")).unwrap();
    let config = config.lines().filter(|line| keys.iter().all(|key| !line.starts_with(key)));
    fs::write(path.join("config.toml"), config.collect::<Vec<_>>().join("\n")).unwrap();
}

#[test]
fn a_folder_with_a_card_is_trained_on_by_its_splits() {
    let messages = messages!();
    let folder = folder();
    let path = folder.path();
    fs::create_dir(path.join("hub")).unwrap();
    for (from, name) in [("train", "train"), ("validation", "validation"), ("validation", "test")] {
        fs::copy(path.join(format!("{from}.csv")), path.join(format!("hub/{name}.csv"))).unwrap();
    }
    let card = "---\nconfigs:\n- config_name: a\n  sparkle: 1\n  data_files:\n  - split: train\n    path: train.csv\n  \
                - split: test\n    path: test.csv\n  - split: validation\n    path: validation.csv\n---\n";
    fs::write(path.join("hub/README.md"), card).unwrap();
    let whole = ["data.train=[\"hub\"]", "trainer.max_steps=1"];
    messages.fails(train(path, &whole), 2);
    // Both ways out lead to a run, and a README without `configs` divides nothing.
    succeeds(&mut train(path, &["data.train=[\"hub/train.csv\"]", "trainer.max_steps=1"]));
    let plan = || json(&path.join("run/plan.json"))["data"]["train_examples"].as_u64();
    assert_eq!(plan(), Some(12));
    fs::write(path.join("hub/README.md"), "---\nlicense: mit\n---\n# Films\n").unwrap();
    succeeds(&mut train(path, &whole));
    assert_eq!(plan(), Some(36));
    fs::write(path.join("hub/README.md"), card).unwrap();
    leave_out(path, &["train = ", "validation = "]);
    let said = warnings(kiln(path).args(["plan", "config.toml", "--set", "data.dataset_name=hub"]));
    assert_eq!(said.matches("sparkle is not known").count(), 1, "{said}");
}

#[test]
fn quotes_of_a_table_with_tabs_are_refused_or_told() {
    let folder = folder();
    let path = folder.path();
    let table = "label\ttext\r\npraise\ta \"good\" film\r\nblame\t\"a bad film\"\r\npraise\t\"a good film\"\r\n";
    fs::write(path.join("a.tsv"), table).unwrap();
    let split = |rest: &str, ending: &str| {
        let card = format!("---\nconfigs:\n- config_name: a\n  data_files: \"a.*\"\n{rest}---\n");
        fs::write(path.join("README.md"), card).unwrap();
        dataset_split(path.to_str().unwrap(), None, Split::Train, &[ending])
    };
    for (rest, ending, part) in [
        ("  sep: \"\\t\"\n", "tsv", "a.tsv line 3: a field begins with a quote"),
        ("", "tsv", "state `quoting: 3` in the card"),
        ("  quoting: 1\n", "tsv", "quoting: expected 0, or 3 with tabs, got 1"),
        ("  quoting: 3\n", "csv", "quoting: expected 0, got 3"),
    ] {
        let error = split(rest, ending).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("help: "), "{rest}: {error}");
    }
    assert_eq!(split("  sep: \"\\t\"\n  quoting: 3\n", "tsv").unwrap(), [path.join("a.tsv")]);
    let set = ["data.format=tsv", "data.train=[\"a.tsv\"]", "data.validation=[\"a.tsv\"]", "trainer.max_steps=1"];
    let said = warnings(&mut train(path, &set));
    assert_eq!(said.matches("a.tsv line 3: column \"text\" stands in quotes").count(), 1, "{said}");
    assert_eq!(said.matches("stands in quotes").count(), 1, "{said}");
}

#[test]
fn parquet_has_the_values_of_pandas_in_every_type_and_codec() {
    for (name, expected) in answers("parquet").as_object().unwrap() {
        let expected = expected.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect::<Vec<_>>();
        for file in ["lz4.parquet", "brotli.parquet", "decimals.parquet"] {
            if file == "decimals.parquet" && !["decimal64", "decimal128"].contains(&name.as_str()) {
                continue;
            }
            let read = rows(&fixture(file), DataFormat::Parquet, columns("text", Some(name))).unwrap();
            let number = |row: &Row| match row.label.as_ref().unwrap() {
                Cell::Integer(number) => *number as f64,
                Cell::Number(number) => *number,
                other => panic!("{name}: {other:?}"),
            };
            assert_eq!(read.iter().map(number).collect::<Vec<_>>(), expected, "{file}: {name}");
        }
    }
    for (file, name, kind) in [
        ("lz4.parquet", "when", "timestamp"),
        ("lz4.parquet", "day", "date"),
        ("lz4.parquet", "clock", "time of day"),
        ("int96.parquet", "when", "timestamp"),
    ] {
        let error = rows(&fixture(file), DataFormat::Parquet, columns("text", Some(name))).unwrap_err().to_string();
        assert!(error.contains(&format!("column {name:?}")) && error.contains(kind), "{error}");
        assert!(error.contains("astype(str)") && !error.contains("damaged"), "{error}");
    }
}

/// A tar archive with one file.
fn tar(name: &str, text: &str) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.set_size(text.len() as u64);
    header.set_mode(0o644);
    let mut archive = tar::Builder::new(Vec::new());
    archive.append_data(&mut header, name, text.as_bytes()).unwrap();
    archive.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    to.write_all(bytes).unwrap();
    to.finish().unwrap()
}

#[test]
fn a_file_of_another_kind_is_refused_by_its_kind() {
    let messages = messages!();
    let folder = folder();
    let path = folder.path();
    let csv = "text,label\na good film,praise\na bad film,blame\n";
    let page = "\n<!DOCTYPE html>\n<html><body>Sign in</body></html>\n".to_owned() + &"a good film\n".repeat(50);
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n";
    let kinds: [(&str, Vec<u8>); 7] = [
        ("page", page.clone().into()),
        ("pointer", pointer.into()),
        ("pdf", b"%PDF-1.4\n1 0 obj\n".to_vec()),
        ("zip", b"PK\x03\x04 and more".to_vec()),
        ("tar", gzip(&tar("a.csv", csv))),
        ("twice", gzip(&gzip(csv.as_bytes()))),
        ("columns", fs::read(fixture("lz4.parquet")).unwrap()),
    ];
    let text = |name: &str| {
        ["data.task=mlm", "data.format=text", "data.validation=none", &format!("data.train=[{name:?}]")]
            .map(str::to_owned)
    };
    for (name, bytes) in kinds {
        for ending in ["txt", "csv", "jsonl"] {
            let name = format!("{name}.{ending}");
            fs::write(path.join(&name), &bytes).unwrap();
            let set = match ending {
                "txt" => text(&name).to_vec(),
                format => vec![format!("data.format={format}"), format!("data.train=[{name:?}]")],
            };
            let set = set.iter().map(String::as_str).collect::<Vec<_>>();
            messages.fails(train(path, &set), 3);
        }
    }
}

#[test]
fn a_table_is_not_learned_as_text_and_its_name_is_believed() {
    let messages = messages!();
    let folder = folder();
    let path = folder.path();
    fs::write(path.join("rows.json"), "[{\"text\": \"a good film\"}]").unwrap();
    fs::write(path.join("settings.json"), format!("{{\"films\": \"{}\"}}", "a good film ".repeat(60))).unwrap();
    fs::write(path.join("commas.txt"), "a good film, a bad play\n".repeat(60)).unwrap();
    let run = |name: &str, format: &str| {
        let set = [
            format!("data.format={format}"),
            format!("data.train=[{name:?}]"),
            "data.task=mlm".to_owned(),
            format!("data.validation=[{name:?}]"),
        ];
        // So high a share that every batch has a token to predict.
        let more = ["trainer.max_steps=1", "data.block_size=8", "trainer.eval_strategy=no", "data.mlm_probability=0.9"];
        train(path, &set.iter().map(String::as_str).chain(more).collect::<Vec<_>>())
    };
    for (name, format) in [("train.csv", "csv"), ("train.tsv", "tsv"), ("train.jsonl", "jsonl"), ("rows.json", "jsonl")]
    {
        messages.fails(run(name, "text"), 2);
        if name.starts_with("train") {
            succeeds(&mut run(name, format));
        }
    }
    for name in ["commas.txt", "settings.json"] {
        succeeds(&mut run(name, "text"));
    }
    // The name of a file and data.format disagree, and the file cannot be read: both are named.
    for (format, name) in [("jsonl", "train.csv"), ("parquet", "train.csv")] {
        let set =
            [format!("data.format={format}"), format!("data.train=[{name:?}]"), "data.validation=\"25%\"".to_owned()];
        messages.fails(train(path, &set.each_ref().map(String::as_str)), 3);
    }
}
