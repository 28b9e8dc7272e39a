//! The use of a trained model, through the binary: `kiln eval` and `kiln predict`, for labels,
//! numbers and answers.

use std::path::Path;

use crate::common::messages::messages;
use crate::common::place::Place;
use crate::common::{fails, json, kiln, rows, succeeds};
use serde_json::{Value, json};

const WORDS: &str =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\ngood\nbad\nfilm\nplay\nwhere\nis\nthe\ncat\ndog\nin\nbox\ntree\n";

/// A folder with a config of `task` and `format`, word pieces, and nothing to train on yet.
fn folder(task: &str, format: &str, max_steps: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "[run]\noutput_dir = \"run\"\n[model]\nkind = \"bert\"\nhidden_size = 32\ninitializer_range = 0.2\n\
         num_hidden_layers = 1\nnum_attention_heads = 2\nintermediate_size = 64\nmax_position_embeddings = 24\n\
         hidden_dropout_prob = 0.0\nattention_probs_dropout_prob = 0.0\n[data]\ntask = \"{task}\"\nformat = \"{format}\"\n\
         train = [\"train.{0}\"]\nvalidation = [\"validation.{0}\"]\n[tokenizer]\nfrom = \"vocab.txt\"\n[trainer]\n\
         max_steps = {max_steps}\nper_device_train_batch_size = 4\nlearning_rate = 1e-2\neval_strategy = \"epoch\"\n[device]\n\
         kind = \"cpu\"\n",
        if format == "squad" { "json" } else { format }
    );
    std::fs::write(folder.path().join("config.toml"), config).unwrap();
    std::fs::write(folder.path().join("vocab.txt"), WORDS).unwrap();
    folder
}

fn predictions(folder: &Path, args: &[&str]) -> Vec<Value> {
    let stdout = succeeds(kiln(folder).args(["predict", "--compiler", "native", "run/model"]).args(args));
    stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The last evaluation row of the run, and what `kiln eval` says of its model.
fn evaluations(folder: &Path) -> (Value, Value) {
    let row = rows(&folder.join("run")).into_iter().rfind(|row| row.get("eval_loss").is_some()).unwrap();
    let stdout = succeeds(kiln(folder).args(["eval", "--compiler", "native", "config.toml", "--out", "eval.json"]));
    assert!(stdout.contains("'eval_loss': "), "{stdout}");
    (row, json(&folder.join("eval.json")))
}

fn same(row: &Value, again: &Value, names: &[&str]) {
    for name in names {
        assert_eq!(row[name], again[name], "{name}: {row} and {again}");
    }
}

#[test]
fn labels() {
    let messages = messages!();
    let folder = folder("sequence-classification", "csv", 60);
    let text = |i: usize| (["good", "bad"][i % 2], ["film", "play", "film film"][i % 3]);
    let rows = |label: bool| {
        let rows = (0..12).map(|i| {
            let (word, thing) = text(i);
            if label {
                format!("a {word} {thing},{}\n", ["praise", "blame"][i % 2])
            } else {
                format!("a {word} {thing}\n")
            }
        });
        if label { "text,label\n" } else { "text\n" }.to_string() + &rows.collect::<String>()
    };
    for (name, label) in [("train.csv", true), ("validation.csv", true), ("new.csv", false)] {
        std::fs::write(folder.path().join(name), rows(label)).unwrap();
    }
    succeeds(kiln(folder.path()).args(["train", "config.toml"]));
    let (row, again) = evaluations(folder.path());
    same(&row, &again, &["eval_loss", "eval_accuracy", "eval_f1", "eval_samples"]);
    assert_eq!(again["eval_accuracy"], json!(1.0));
    let matrix = succeeds(kiln(folder.path()).args(["eval", "--compiler", "native", "config.toml"]));
    let cells = matrix.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect::<Vec<_>>();
    assert!(cells.contains(&vec!["blame", "6", "0"]) && cells.contains(&vec!["praise", "0", "6"]), "{matrix}");
    assert!(
        matrix.starts_with(
            "confusion matrix: a row for each label of the data (the truth), a column for each prediction\n"
        )
    );
    assert!(cells.contains(&vec!["praise", "1.0000", "1.0000", "1.0000", "6"]), "{matrix}");
    assert!(matrix.contains("\neval_f1 is the f1 of praise, the second of two labels\n"), "{matrix}");

    // All rows are of one label: those of the other have no support.
    std::fs::write(folder.path().join("one.csv"), "text,label\na good film,praise\na bad film,praise\n").unwrap();
    let of_one = ["eval", "config.toml", "--set", "data.validation=one.csv", "--out", "one.json"];
    let said = succeeds(kiln(folder.path()).args(of_one));
    assert!(said.contains("\nthe label of no row, so that the recall is 0 / 0, shown as 0: blame\n"), "{said}");
    // `classification_report(["praise"] * 2, ["praise", "blame"], output_dict=True,
    // zero_division=0)`.
    let found = json(&folder.path().join("one.json"));
    let scores = |precision: f64, recall: f64, f1: f64, support: u64| json!({ "precision": precision, "recall": recall, "f1": f1, "support": support });
    let [mut blame, mut praise] = [scores(0.0, 0.0, 0.0, 0), scores(1.0, 0.5, 2.0 / 3.0, 2)];
    (blame["label"], praise["label"]) = ("blame".into(), "praise".into());
    let report = &found["classification_report"];
    assert_eq!(report["classes"], json!([blame, praise]), "{found}");
    assert_eq!(report["macro_average"], scores(0.5, 0.25, 1.0 / 3.0, 2));
    assert_eq!(report["weighted_average"], scores(1.0, 0.5, 2.0 / 3.0, 2));
    assert_eq!(found["eval_f1"], json!(2.0 / 3.0));

    // Batches of 5: the last is smaller, and the order is that of the rows.
    let task = ["--task", "sequence-classification", "--input", "new.csv", "--batch-size", "5"];
    let found = predictions(folder.path(), &task);
    assert_eq!(found.len(), 12);
    for (i, prediction) in found.iter().enumerate() {
        assert_eq!((&prediction["index"], &prediction["label"]), (&json!(i), &json!(["praise", "blame"][i % 2])));
        let probabilities = prediction["probabilities"].as_object().unwrap();
        let total = probabilities.values().map(|value| value.as_f64().unwrap()).sum::<f64>();
        assert!((total - 1.0).abs() < 1e-12 && probabilities.len() == 2, "{prediction}");
        assert_eq!(prediction["score"], probabilities[prediction["label"].as_str().unwrap()]);
    }
    // The model says what it was trained for, and its run which column was read.
    assert_eq!(predictions(folder.path(), &task[2..]), found);
    let stdout = succeeds(
        kiln(folder.path()).args(["predict", "--compiler", "native", "run/model", "--out", "out.jsonl"]).args(task),
    );
    assert!(stdout.contains("wrote 12 predictions to out.jsonl"), "{stdout}");
    let lines = std::fs::read_to_string(folder.path().join("out.jsonl")).unwrap();
    assert_eq!(lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>(), found);

    #[cfg(target_os = "linux")]
    {
        // Written into what is no regular file, through links, and with the mode that was there.
        use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
        let predict = |out: &str| {
            succeeds(
                kiln(folder.path()).args(["predict", "--compiler", "native", "run/model", "--out", out]).args(task),
            );
        };
        let at = |name: &str| folder.path().join(name);
        std::fs::set_permissions(at("out.jsonl"), std::fs::Permissions::from_mode(0o640)).unwrap();
        symlink("out.jsonl", at("link.jsonl")).unwrap();
        predict("link.jsonl");
        let found = std::fs::metadata(at("out.jsonl")).unwrap();
        assert!(at("link.jsonl").is_symlink() && found.permissions().mode() & 0o7777 == 0o640);
        assert_eq!(std::fs::read_to_string(at("out.jsonl")).unwrap(), lines);
        predict("/dev/null");
        assert!(std::fs::symlink_metadata("/dev/null").unwrap().file_type().is_char_device());
        let full = ["predict", "--compiler", "native", "run/model", "--out", "/dev/full"];
        fails(kiln(folder.path()).args(full).args(task), 1, &["cannot write /dev/full: No space left"]);
    }

    // The run is asked how it read its rows.
    let plan = std::fs::read_to_string(folder.path().join("run/plan.toml")).unwrap();
    std::fs::write(folder.path().join("run/plan.toml"), "no plan").unwrap();
    messages.fails(kiln(folder.path()).args(["predict", "--compiler", "native", "run/model"]).args(task), 2);
    std::fs::remove_file(folder.path().join("run/plan.toml")).unwrap();
    assert_eq!(predictions(folder.path(), &[&task[..], &["--text-column", "text"]].concat()), found);
    std::fs::write(folder.path().join("run/plan.toml"), plan).unwrap();

    let predict = |args: &[&str], code| {
        messages.fails(kiln(folder.path()).args(["predict", "--compiler", "native", "run/model"]).args(args), code);
    };
    predict(&["--task", "regression", "--input", "new.csv"], 3);
    predict(&["--task", "question-answering", "--input", "new.csv"], 3);
    predict(&["--task", "sequence-classification", "--input", "none.csv"], 2);
    predict(&["--task", "sequence-classification", "--input", "config.toml"], 3);
    let column = ["--task", "sequence-classification", "--input", "new.csv", "--text-column", "words"];
    predict(&column, 3);
    let short = ["--task", "sequence-classification", "--input", "new.csv", "--max-length", "1"];
    predict(&short, 2);
    // A run folder stands for the model that it ended with.
    let by_run = succeeds(kiln(folder.path()).args(["predict", "--compiler", "native", "run"]).args(task));
    assert_eq!(by_run.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>(), found);
    // To evaluate, the training data need not be here any more.
    std::fs::remove_file(folder.path().join("train.csv")).unwrap();
    let alone = succeeds(kiln(folder.path()).args(["eval", "--compiler", "native", "config.toml"]));
    assert!(alone.contains("'eval_accuracy': 1.0") && alone.contains("'eval_samples': 12"), "{alone}");
    // Nor does it matter how a run would train: validation data is not made into batches of
    // training.
    for training in ["dataloader_drop_last=true", "per_device_train_batch_size=auto"] {
        let mut eval = kiln(folder.path());
        eval.args(["eval", "--compiler", "native", "config.toml", "--set", "batch.scaling=grow"]);
        eval.args(["--set", "trainer.per_device_train_batch_size=64"]);
        let found = succeeds(eval.args(["--set", &format!("trainer.{training}")]));
        assert!(found.contains("'eval_accuracy': 1.0") && found.contains("'eval_samples': 12"), "{training}: {found}");
    }
    messages.fails(kiln(folder.path()).args(["eval", "--compiler", "native", "config.toml", "--model", "none"]), 3);
}

#[test]
fn numbers() {
    let messages = messages!();
    let folder = folder("regression", "jsonl", 40);
    let row = |i: usize| format!("{{\"text\": \"a {} film\", \"label\": {}}}\n", ["good", "bad"][i % 2], 1 - i % 2);
    for name in ["train.jsonl", "validation.jsonl"] {
        std::fs::write(folder.path().join(name), (0..8).map(row).collect::<String>()).unwrap();
    }
    succeeds(kiln(folder.path()).args(["train", "config.toml"]));
    let (row, again) = evaluations(folder.path());
    same(&row, &again, &["eval_loss", "eval_mse", "eval_pearson", "eval_spearmanr"]);
    let found = predictions(folder.path(), &["--input", "validation.jsonl"]);
    assert_eq!(found, predictions(folder.path(), &["--task", "regression", "--input", "validation.jsonl"]));
    let squares = found.iter().enumerate().map(|(i, prediction)| {
        assert_eq!(prediction["index"], json!(i));
        (prediction["value"].as_f64().unwrap() - (1 - i % 2) as f64).powi(2)
    });
    let mse = squares.sum::<f64>() / 8.0;
    // f32 rounding of errors of order 1.
    assert!((mse - again["eval_mse"].as_f64().unwrap()).abs() < 1e-5, "{mse}: {again}");

    // A column that is called as what other tasks predict stays one column of the table.
    let shares = [json!({ "x": 1 }), json!({ "y": 2 })];
    let rows = shares.iter().map(|shares| json!({ "text": "a good film", "probabilities": shares }).to_string() + "\n");
    std::fs::write(folder.path().join("new.jsonl"), rows.collect::<String>()).unwrap();
    let keep = ["--input", "new.jsonl", "--keep", "probabilities"];
    for (prediction, shares) in predictions(folder.path(), &keep).iter().zip(&shares) {
        assert_eq!((&prediction["input_probabilities"], &prediction["probabilities"]), (shares, &Value::Null));
    }
    predict_csv(folder.path(), &keep);
    let csv = std::fs::read_to_string(folder.path().join("out.csv")).unwrap();
    let lines = csv.lines().collect::<Vec<_>>();
    assert_eq!((lines.len(), lines[0]), (3, "index,input_probabilities,value"), "{csv}");
    assert!(lines[1].starts_with("0,\"{\"\"x\"\":1}\",") && lines[2].starts_with("1,\"{\"\"y\"\":2}\","), "{csv}");
    std::fs::write(folder.path().join("new.jsonl"), "{\"text\": \"a good film\"}\n").unwrap();
    let missing = ["predict", "run", "--input", "new.jsonl", "--keep", "k"];
    messages.fails(kiln(folder.path()).args(missing), 3);
}

/// Writes predictions to `out.csv`.
fn predict_csv(folder: &Path, args: &[&str]) {
    succeeds(kiln(folder).args(["predict", "--compiler", "native", "run/model", "--out", "out.csv"]).args(args));
}

#[test]
fn the_columns_are_those_of_the_run() {
    let messages = messages!();
    let folder = folder("sequence-classification", "csv", 1);
    let rows = "id,message,topic\n1,a good film,praise\n2,a bad play,blame\n";
    for name in ["train.csv", "validation.csv", "new.csv"] {
        std::fs::write(folder.path().join(name), rows).unwrap();
    }
    let columns = ["--set", "data.text_column=message", "--set", "data.label_column=topic"];
    succeeds(kiln(folder.path()).args(["train", "config.toml"]).args(columns));
    let predict = |model: &str, args: &[&str]| {
        let mut command = kiln(folder.path());
        command.args(["predict", "--compiler", "native", model, "--input", "new.csv"]).args(args);
        command
    };
    let found = succeeds(&mut predict("run", &[]));
    assert_eq!(found.lines().count(), 2);
    assert_eq!(succeeds(&mut predict("run/model", &[])), found);
    messages.fails(predict("run", &["--text-column", "text"]), 3);
    // A model that stands alone says nothing about columns.
    std::fs::rename(folder.path().join("run/model"), folder.path().join("alone")).unwrap();
    messages.fails(predict("alone", &[]), 3);
    assert_eq!(succeeds(&mut predict("alone", &["--text-column", "message"])), found);
    // JSON is SQuAD's for questions alone, and a folder that `datasets` saved is known by what it
    // holds.
    let list = json!([{"message": "a good film"}, {"message": "a bad play"}]);
    std::fs::write(folder.path().join("new.json"), list.to_string()).unwrap();
    let input = |input: &str, column: &str| {
        let mut command = kiln(folder.path());
        command.args(["predict", "--compiler", "native", "alone", "--input", input, "--text-column", column]);
        command
    };
    assert_eq!(succeeds(&mut input("new.json", "message")), found);
    let saved = concat!(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."), "/tests/fixtures/files/saved");
    let split = format!("{saved}/validation");
    let rows = succeeds(&mut input(&split, "text"));
    assert_eq!(succeeds(input(&split, "text").args(["--format", "arrow"])), rows);
    messages.fails(input(&split, "text").args(["--format", "csv"]), 2);
}

/// Answers in a file for a spreadsheet, with columns of the input, and texts from the command line
/// and from standard input.
#[test]
fn rows_and_answers_come_and_go_as_people_have_them() {
    let messages = messages!();
    let folder = folder("sequence-classification", "csv", 20);
    let rows = "id,text,label\n7,\"a good, film\",praise\n8,a bad play,blame\n";
    for name in ["train.csv", "validation.csv", "new.csv"] {
        std::fs::write(folder.path().join(name), rows).unwrap();
    }
    succeeds(kiln(folder.path()).args(["train", "config.toml"]));
    let predict = |args: &[&str]| {
        let mut command = kiln(folder.path());
        command.args(["predict", "run"]).args(args);
        command
    };
    let from = |text: &str, args: &[&str]| {
        use std::io::Write;
        let mut command = predict(&[&["--input", "-"], args].concat());
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        crate::common::ended(child)
    };
    let found = predictions_of(&mut predict(&["--input", "new.csv"]));
    let with = predictions_of(&mut predict(&["--input", "new.csv", "--keep", "id,text,label"]));
    for (with, (plain, (id, text, label))) in
        with.iter().zip(found.iter().zip([("7", "a good, film", "praise"), ("8", "a bad play", "blame")]))
    {
        let mut expected = plain.clone();
        (expected["id"], expected["text"], expected["input_label"]) = (id.into(), text.into(), label.into());
        assert_eq!(*with, expected);
    }
    let out = ["--input", "new.csv", "--keep", "id,text", "--out", "out.csv"];
    assert!(succeeds(&mut predict(&out)).contains("wrote 2 predictions to out.csv"));
    let csv = std::fs::read_to_string(folder.path().join("out.csv")).unwrap();
    // The digits as they are written: a parser may round them.
    let written = succeeds(&mut predict(&["--input", "new.csv"]));
    let line = |index: usize, id: &str, text: &str| {
        let row = written.lines().filter(|line| line.starts_with('{')).nth(index).unwrap();
        let digits = |name: &str| {
            let (_, value) = row.split_once(&format!("\"{name}\":")).unwrap();
            value.split([',', '}']).next().unwrap().trim().to_owned()
        };
        let label = found[index]["label"].as_str().unwrap();
        format!("{index},{id},{text},{label},{},{},{}\n", digits("score"), digits("blame"), digits("praise"))
    };
    let names = "index,id,text,label,score,probabilities.blame,probabilities.praise\n";
    assert_eq!(csv, names.to_owned() + &line(0, "7", "\"a good, film\"") + &line(1, "8", "a bad play"));
    messages.fails(predict(&["--input", "new.csv", "--keep", "none"]), 3);

    assert_eq!(succeeds(&mut predict(&["--input", "new.csv", "--out", "-"])), written);
    assert!(!folder.path().join("-").exists());

    // Names that are taken, and a column that is named twice.
    let labelled =
        "text,label,input_label,probabilities.blame\n\"a good, film\",one,two,three\na bad play,one,two,three\n";
    std::fs::write(folder.path().join("taken.csv"), labelled).unwrap();
    let keep = "label,input_label,label,probabilities.blame";
    let mut expected = found.clone();
    for row in &mut expected {
        (row["input_input_label"], row["input_label"]) = ("one".into(), "two".into());
        row["input_probabilities.blame"] = "three".into();
    }
    assert_eq!(predictions_of(&mut predict(&["--input", "taken.csv", "--keep", keep])), expected);
    succeeds(&mut predict(&["--input", "taken.csv", "--keep", keep, "--out", "taken-out.csv"]));
    let csv = std::fs::read_to_string(folder.path().join("taken-out.csv")).unwrap();
    let names = "index,input_input_label,input_label,input_probabilities.blame,label,score,probabilities.blame,";
    assert!(csv.starts_with(names) && csv.contains("\n0,one,two,three,"), "{csv}");

    // Bytes that are not UTF-8 are treated as in the run, in lines of text too.
    let errors = ["--set", "data.errors=replace", "--set", "run.output_dir=replacing"];
    succeeds(kiln(folder.path()).args(["train", "config.toml"]).args(errors));
    std::fs::write(folder.path().join("new.txt"), b"a good\xff film\n\na bad play\n").unwrap();
    let lines = ["--input", "new.txt", "--format", "text"];
    let replacing = |args: &[&str]| predictions_of(kiln(folder.path()).args(["predict", "replacing"]).args(args));
    let texts = ["--text", "a good\u{fffd} film", "--text", "a bad play"];
    assert_eq!(replacing(&lines), replacing(&texts));
    messages.fails(predict(&lines), 3);

    // Texts in place of a file.
    let texts = ["--text", "a good, film", "--text", "a bad play"];
    assert_eq!(predictions_of(&mut predict(&texts)), found);
    let lines = |output: std::process::Output| {
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect::<Vec<Value>>()
    };
    assert_eq!(lines(from(rows, &["--format", "csv"])), found);
    assert_eq!(lines(from("a good, film\na bad play\n", &["--format", "text"])), found);
    assert_eq!(
        lines(from("{\"text\": \"a good, film\"}\n{\"text\": \"a bad play\"}\n", &["--format", "jsonl"])),
        found
    );
    let broken = from("id,text\n7\n", &["--format", "csv"]);
    let said = crate::common::text(&broken);
    assert_eq!(broken.status.code(), Some(3), "{said}");
    assert!(said.contains("standard input line 2: expected 2 columns"), "{said}");
    messages.fails(predict(&[&texts[..], &["--text-pair", "a film"]].concat()), 2);
    messages.fails(predict(&[]), 2);
}

/// The tokenizer of a language model adds no token to a text without one.
#[test]
fn a_text_without_a_token_is_refused_or_left_out() {
    let place = Place::new().recording(messages!());
    place.train("text.toml", &[]);
    place.write("new.csv", "id,text\n1,fn1 let2\n2,\n3,use3 mod4\n");
    let predict = |args: &[&str]| place.kiln(&[&["predict", "run", "--input", "new.csv"], args].concat());
    place.fails(predict(&[]), 3);
    for more in [&["--batch-size", "1"][..], &[]] {
        let output = predict(&[&["--skip-empty", "--keep", "id, text"], more].concat()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && said.contains("1 row has no token and is left out"), "{said}");
        let found = String::from_utf8(output.stdout).unwrap();
        let found = found.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect::<Vec<_>>();
        let named = found.iter().map(|row| (row["index"].as_u64().unwrap(), row["id"].as_str().unwrap()));
        assert_eq!(named.collect::<Vec<_>>(), [(0, "1"), (2, "3")]);
        assert_eq!(found[1]["text"], "use3 mod4");
    }
    place.fails(predict(&["--out", "new.xlsx"]), 2);
    // Standard input is named, and not the file that holds it meanwhile.
    place.write("latin1", b"caf\xe9\n");
    let mut lines = place.kiln(&["predict", "run", "--input", "-", "--format", "text"]);
    lines.stdin(std::fs::File::open(place.path("latin1")).unwrap());
    place.fails(lines, 3);
}

/// A table with four digits for people.
#[cfg(unix)]
#[test]
fn answers_on_a_terminal_are_a_table() {
    let folder = folder("sequence-classification", "csv", 2);
    for name in ["train.csv", "validation.csv"] {
        std::fs::write(folder.path().join(name), "text,label\na good film,praise\na bad play,blame\n").unwrap();
    }
    succeeds(kiln(folder.path()).args(["train", "config.toml"]));
    let found = predictions(folder.path(), &["--text", "a bad play"]);
    let mut command = kiln(folder.path());
    let mut pty = crate::common::pty::Pty::start(command.args(["predict", "run", "--text", "a bad play"]), 140, 20);
    let (status, shown) = (pty.ended(), pty.text());
    assert!(status.success(), "{shown}");
    let rows = shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect::<Vec<_>>();
    let names = vec!["index", "label", "score", "probabilities.blame", "probabilities.praise"];
    let at = rows.iter().position(|row| *row == names).unwrap_or_else(|| panic!("{shown}"));
    let of = &found[0];
    let digits = |value: &Value| format!("{:.4}", value.as_f64().unwrap());
    let cells = [
        "0".into(),
        of["label"].as_str().unwrap().to_owned(),
        digits(&of["score"]),
        digits(&of["probabilities"]["blame"]),
        digits(&of["probabilities"]["praise"]),
    ];
    assert_eq!(rows[at + 1], cells, "{shown}");
}

fn predictions_of(command: &mut std::process::Command) -> Vec<Value> {
    succeeds(command).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Contexts in which one of two animals sits in one of two places; the answer is the place.
fn squad(questions: usize) -> Value {
    let paragraph = |i: usize| {
        let (animal, place) = (["cat", "dog"][i % 2], ["box", "tree"][i / 2 % 2]);
        let context = format!("the {animal} is in the {place}");
        let answer = json!({ "text": place, "answer_start": context.find(place).unwrap() });
        let qas = json!([{ "id": format!("q{i}"), "question": format!("where is the {animal}"), "answers": [answer] }]);
        json!({ "context": context, "qas": qas })
    };
    json!({ "version": "1.1", "data": [{ "title": "t", "paragraphs": (0..questions).map(paragraph).collect::<Vec<_>>() }] })
}

#[test]
fn answers() {
    let messages = messages!();
    let folder = folder("question-answering", "squad", 60);
    let write = |name: &str, value: &Value| std::fs::write(folder.path().join(name), value.to_string()).unwrap();
    write("train.json", &squad(12));
    write("validation.json", &squad(4));
    succeeds(kiln(folder.path()).args(["train", "config.toml"]));
    let (row, again) = evaluations(folder.path());
    same(&row, &again, &["eval_loss", "eval_exact_match", "eval_f1"]);
    assert_eq!((&again["eval_exact_match"], &again["eval_f1"]), (&json!(100.0), &json!(100.0)), "{again}");

    let found = predictions(folder.path(), &["--input", "validation.json"]);
    for (i, prediction) in found.iter().enumerate() {
        let place = ["box", "tree"][i / 2 % 2];
        assert_eq!((&prediction["id"], &prediction["answer"]), (&json!(format!("q{i}")), &json!(place)));
        assert_eq!(prediction["end"].as_u64().unwrap() - prediction["start"].as_u64().unwrap(), place.len() as u64);
    }
    // The same questions from a table.
    let rows = squad(4)["data"][0]["paragraphs"].as_array().unwrap().clone();
    let rows = rows.iter().map(|row| json!({ "q": row["qas"][0]["question"], "c": row["context"] }).to_string() + "\n");
    std::fs::write(folder.path().join("new.jsonl"), rows.collect::<String>()).unwrap();
    let columns = ["--text-column", "q", "--text-pair-column", "c"];
    let args = [&["--task", "question-answering", "--input", "new.jsonl"][..], &columns].concat();
    let from_table = predictions(folder.path(), &args);
    let texts = |found: &[Value]| found.iter().map(|prediction| prediction["answer"].clone()).collect::<Vec<_>>();
    assert_eq!(texts(&from_table), texts(&found));
    let with = predictions(folder.path(), &[&args[..], &["--keep", "q"]].concat());
    assert_eq!((&with[1]["q"], texts(&with)), (&json!("where is the dog"), texts(&found)));
    let one = ["--text", "where is the dog", "--text-pair", "the dog is in the box"];
    assert_eq!(texts(&predictions(folder.path(), &one)), texts(&found)[1..2]);
    messages.fails(kiln(folder.path()).args(["predict", "run"]).args(&one[..2]), 2);
    messages.fails(kiln(folder.path()).args(["predict", "run", "--skip-empty"]).args(one), 2);

    let mut lying = squad(2);
    lying["data"][0]["paragraphs"][1]["qas"][0]["answers"][0]["answer_start"] = json!(3);
    write("train.json", &lying);
    let mut train = kiln(folder.path());
    train.args(["train", "config.toml", "--set", "run.output_dir=other"]);
    messages.fails(&mut train, 3);
    assert!(!folder.path().join("other").exists());
}

/// Names of labels come from the data and may hold anything: files state them in escapes, and they
/// stay the same names.
#[test]
fn names_of_labels_have_no_power_over_the_terminal() {
    const HOSTILE: &str = "praise\u{202e}\u{9b}2J";
    let folder = folder("sequence-classification", "csv", 2);
    let rows = (0..12).map(|i| format!("a good film,{}\n", [HOSTILE, "blame"][i % 2])).collect::<String>();
    for file in ["train.csv", "validation.csv"] {
        std::fs::write(folder.path().join(file), format!("text,label\n{rows}")).unwrap();
    }
    succeeds(kiln(folder.path()).args(["train", "config.toml"]));
    let args = ["--input", "train.csv", "--task", "sequence-classification"];
    succeeds(
        kiln(folder.path())
            .args(["predict", "--compiler", "native", "run/model"])
            .args(args)
            .args(["--out", "run/predictions.jsonl"]),
    );
    let names = [
        "model/config.json",
        "checkpoints/step-000002/config.json",
        "checkpoints/step-000002/state.json",
        "plan.toml",
        "plan.json",
        "predictions.jsonl",
    ];
    for name in names {
        let text = std::fs::read_to_string(folder.path().join("run").join(name)).unwrap();
        assert!(!text.contains(['\u{202e}', '\u{9b}']), "{name}: {text}");
    }
    let model = json(&folder.path().join("run/model/config.json"));
    assert!(model["id2label"].as_object().unwrap().values().any(|label| label == HOSTILE), "{model}");
    for prediction in predictions(folder.path(), &args) {
        assert!(prediction["probabilities"].get(HOSTILE).is_some(), "{prediction}");
    }
    let eval = succeeds(kiln(folder.path()).args(["eval", "--compiler", "native", "config.toml"]));
    assert!(eval.contains("'eval_loss': "), "{eval}");
    succeeds(kiln(folder.path()).args(["train", "run/plan.toml", "--resume"]));
}

/// Trains on `train` in JSON lines, evaluates, and predicts the same rows without their labels.
fn trained(task: &str, columns: &str, train: &[Value]) -> (tempfile::TempDir, Value, Vec<Value>) {
    let folder = folder(task, "jsonl", 120);
    let config = std::fs::read_to_string(folder.path().join("config.toml")).unwrap();
    let config = config.replace("[tokenizer]", &format!("{columns}\n[tokenizer]"));
    std::fs::write(folder.path().join("config.toml"), config).unwrap();
    let lines = |rows: &[Value]| rows.iter().map(|row| format!("{row}\n")).collect::<String>();
    std::fs::write(folder.path().join("train.jsonl"), lines(train)).unwrap();
    std::fs::write(folder.path().join("validation.jsonl"), lines(train)).unwrap();
    let new = train.iter().map(|row| {
        let mut row = row.clone();
        for label in ["label", "ner_tags"] {
            row.as_object_mut().unwrap().remove(label);
        }
        row
    });
    std::fs::write(folder.path().join("new.jsonl"), lines(&new.collect::<Vec<_>>())).unwrap();
    succeeds(kiln(folder.path()).args(["train", "config.toml"]));
    let (row, again) = evaluations(folder.path());
    same(&row, &again, &["eval_loss", "eval_accuracy", "eval_samples"]);
    let found = predictions(folder.path(), &["--input", "new.jsonl", "--batch-size", "5"]);
    assert_eq!(found.len(), train.len());
    (folder, again, found)
}

#[test]
fn labels_of_words() {
    let messages = messages!();
    let rows = (0..12).map(|i| {
        let (word, tag) = [("cat", "B-PET"), ("dog", "B-PET"), ("box", "O")][i % 3];
        json!({ "tokens": ["the", word, "aa", "is"], "ner_tags": ["O", tag, if i % 3 < 2 { "I-PET" } else { "O" }, "O"] })
    });
    let rows = rows.collect::<Vec<_>>();
    let (folder, evaluation, found) = trained("token-classification", "", &rows);
    for figure in ["eval_accuracy", "eval_precision", "eval_recall", "eval_f1"] {
        assert_eq!(evaluation[figure], json!(1.0), "{figure}");
    }
    for (prediction, row) in found.iter().zip(&rows) {
        assert_eq!(prediction["labels"], row["ner_tags"]);
        assert!(prediction["scores"].as_array().unwrap().iter().all(|score| score.as_f64().unwrap() > 0.5));
    }
    let config = json(&folder.path().join("run/model/config.json"));
    assert_eq!(config["architectures"], json!(["BertForTokenClassification"]));
    assert_eq!(config["id2label"], json!({ "0": "B-PET", "1": "I-PET", "2": "O" }));
    // Words beyond the maximum length have no label.
    let cut = predictions(folder.path(), &["--input", "new.jsonl", "--max-length", "4"]);
    assert_eq!(cut[0]["labels"].as_array().unwrap().iter().filter(|label| label.is_null()).count(), 2);
    // The same words from CSV, where they are separated by spaces, train the same model.
    let csv = rows.iter().map(|row| {
        let list = |name: &str| {
            row[name].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect::<Vec<_>>().join(" ")
        };
        format!("{},{}\n", list("tokens"), list("ner_tags"))
    });
    std::fs::write(folder.path().join("train.csv"), format!("tokens,ner_tags\n{}", csv.collect::<String>())).unwrap();
    let set = ["train", "config.toml", "--set", "data.format=csv", "--set", "data.train=[\"train.csv\"]"];
    let set = [&set[..], &["--set", "data.validation=[\"train.csv\"]", "--set", "run.output_dir=csv"]].concat();
    succeeds(kiln(folder.path()).args(set));
    let bytes = |run: &str| std::fs::read(folder.path().join(run).join("model/model.safetensors")).unwrap();
    assert!(bytes("run") == bytes("csv"));
    for row in [
        json!({ "tokens": ["the", "cat"], "ner_tags": ["O"] }),
        json!({ "tokens": "the cat", "ner_tags": ["O"] }),
        json!({ "tokens": ["the"], "ner_tags": "O" }),
        json!({ "tokens": [], "ner_tags": [] }),
    ] {
        std::fs::write(folder.path().join("train.jsonl"), format!("{}\n{row}\n", rows[0])).unwrap();
        messages.given("line 2 of train.jsonl", &row.to_string());
        messages.fails(kiln(folder.path()).args(["plan", "config.toml"]), 3);
    }
}

#[test]
fn tags_without_names_have_no_figures_of_entities() {
    let messages = messages!();
    let folder = folder("token-classification", "jsonl", 2);
    let rows = (0..8).map(|i| json!({ "tokens": ["the", "cat"], "ner_tags": [0, 1 + i % 2] }).to_string() + "\n");
    let rows = rows.collect::<String>();
    for file in ["train.jsonl", "validation.jsonl"] {
        std::fs::write(folder.path().join(file), &rows).unwrap();
    }
    let said = |args: &[&str]| {
        let output = kiln(folder.path()).args(["train", "config.toml"]).args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).matches("no label has the form of a tag").count()
    };
    assert_eq!(said(&[]), 1);
    let (row, again) = evaluations(folder.path());
    same(&row, &again, &["eval_loss", "eval_accuracy"]);
    assert!(
        ["precision", "recall", "f1"].iter().all(|figure| again.get(format!("eval_{figure}")).is_none()),
        "{again}"
    );
    let best =
        ["train", "config.toml", "--set", "trainer.metric_for_best_model=f1", "--set", "run.on_existing=overwrite"];
    messages.fails(kiln(folder.path()).args(best), 2);
    let named = "data.label_names=[\"O\", \"B-PET\", \"I-PET\"]";
    assert_eq!(said(&["--set", named, "--set", "run.on_existing=overwrite"]), 0);
}

#[test]
fn several_labels() {
    let messages = messages!();
    let rows = (0..12).map(|i| {
        let words = [("cat", i % 2 == 0), ("dog", i % 3 == 0), ("box", i % 4 < 2)];
        let named = words.iter().filter(|(_, is_there)| *is_there).map(|(word, _)| *word).collect::<Vec<_>>();
        json!({ "text": format!("the {}", named.join(" ")), "label": named })
    });
    let rows = rows.collect::<Vec<_>>();
    let (folder, evaluation, found) = trained("multi-label-classification", "", &rows);
    let sorted =
        |list: &Value| list.as_array().unwrap().iter().map(Value::to_string).collect::<std::collections::BTreeSet<_>>();
    let pairs = found.iter().zip(&rows);
    let right = pairs.filter(|(prediction, row)| sorted(&prediction["labels"]) == sorted(&row["label"])).count();
    assert_eq!(evaluation["eval_accuracy"], json!(right as f64 / 12.0));
    assert!(right >= 10 && evaluation["eval_f1"].as_f64().unwrap() > 0.9, "{evaluation}");
    assert!(found.iter().all(|prediction| prediction["probabilities"].as_object().unwrap().len() == 3));
    let config = json(&folder.path().join("run/model/config.json"));
    assert_eq!(config["problem_type"], "multi_label_classification");
    for label in [json!("cat"), json!([0, 1, 0]), json!(null)] {
        let bad = json!({ "text": "the", "label": label });
        std::fs::write(folder.path().join("train.jsonl"), format!("{}\n{bad}\n", rows[0])).unwrap();
        messages.given("line 2 of train.jsonl", &bad.to_string());
        let named = ["plan", "config.toml", "--set", "data.label_names=[\"cat\", \"dog\", \"box\"]"];
        messages.fails(kiln(folder.path()).args(named), 3);
    }
}

#[test]
fn choices() {
    let messages = messages!();
    let columns = "text_pair_column = \"start\"\nchoice_columns = [\"a\", \"b\", \"c\"]";
    let rows = (0..12).map(|i| {
        let mut endings = ["box", "tree", "play"];
        endings[i % 3] = "cat";
        json!({ "text": "where is", "start": "the", "a": endings[0], "b": endings[1], "c": endings[2], "label": i % 3 })
    });
    let rows = rows.collect::<Vec<_>>();
    let (folder, evaluation, found) = trained("multiple-choice", columns, &rows);
    assert_eq!(evaluation["eval_accuracy"], json!(1.0));
    for (prediction, row) in found.iter().zip(&rows) {
        assert_eq!(prediction["choice"], row["label"]);
        let total =
            prediction["probabilities"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).sum::<f64>();
        assert!((total - 1.0).abs() < 1e-9);
    }
    let mut wrong = rows[0].clone();
    wrong["label"] = json!(3);
    std::fs::write(folder.path().join("train.jsonl"), format!("{wrong}\n")).unwrap();
    messages.fails(kiln(folder.path()).args(["plan", "config.toml"]), 3);
    let lone = ["plan", "config.toml", "--set", "data.choice_columns=[\"a\"]"];
    messages.fails(kiln(folder.path()).args(lone), 2);
}
