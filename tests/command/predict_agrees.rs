//! One model gives one answer: `kiln predict` of a run, of its model folder, of its checkpoint and
//! of what `kiln merge` makes of it, `trainer.do_predict`, `kiln eval` and the run's page agree row
//! by row, whatever settings the run has.

use std::path::Path;

use crate::common::messages::messages;
use crate::common::{json, kiln, rows, succeeds, text};
use serde_json::{Value, json};

const WORDS: &str =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\ngood\nbad\nfilm\nplay\nwhere\nis\nthe\ncat\ndog\nin\nbox\ntree\nand\n";

/// A folder with a config of `task` on rows in `format`, whose keys of `[data]` and `[trainer]` are
/// given besides.
fn folder(task: &str, format: &str, validation: &str, data: &str, trainer: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let ending = if format == "squad" { "json" } else { format };
    let config = format!(
        "precision = \"bf16\"\n[run]\noutput_dir = \"run\"\n[model]\nkind = \"bert\"\nhidden_size = 32\n\
         initializer_range = 0.4\nnum_hidden_layers = 1\nnum_attention_heads = 2\nintermediate_size = 64\n\
         max_position_embeddings = 40\n[data]\ntask = \"{task}\"\nformat = \"{format}\"\ntrain = \"validation.{ending}\"\n\
         validation = \"validation.{ending}\"\ntest = \"validation.{ending}\"\n{data}\n[tokenizer]\nfrom = \"vocab.txt\"\n\
         [trainer]\nmax_steps = 3\nper_device_train_batch_size = 4\nper_device_eval_batch_size = 3\nlearning_rate = 1e-3\n\
         eval_strategy = \"epoch\"\nsave_steps = 3\ndo_predict = true\n{trainer}\n[device]\nkind = \"cpu\"\n"
    );
    std::fs::write(folder.path().join("config.toml"), config).unwrap();
    std::fs::write(folder.path().join("vocab.txt"), WORDS).unwrap();
    std::fs::write(folder.path().join(format!("validation.{ending}")), validation).unwrap();
    folder
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn predicted(folder: &Path, model: &str, args: &[&str]) -> Vec<Value> {
    lines(&succeeds(kiln(folder).args(["predict", "--compiler", "native", model, "--device", "cpu"]).args(args)))
}

/// Whether the page of a run shows the figure of its last evaluation, with four digits.
fn is_on(page: &str, figure: &str, value: &Value) -> bool {
    let name = match figure {
        "eval_samples" => "validation examples".into(),
        _ => format!("validation {}", figure.trim_start_matches("eval_").replace('_', " ")),
    };
    let value = value.as_f64().unwrap();
    let shown = match value {
        _ if value.fract() == 0.0 => format!("{value}"),
        _ => format!("{value:.*}", (3.0 - value.abs().log10().floor()) as usize),
    };
    page.match_indices(&name).any(|(at, _)| page[at..].chars().take(120).collect::<String>().contains(&shown))
}

/// Trains, and returns the answers of `do_predict`, the last evaluation of the run, and the answers
/// for the arguments `other`. Asserts that all ways to the model give these answers, and `kiln
/// eval` the figures of the run, which its page shows.
fn agreed(folder: &Path, input: &str, other: &[&str]) -> (Vec<Value>, Value, Vec<Value>) {
    succeeds(kiln(folder).args(["train", "config.toml"]));
    let answers = lines(&std::fs::read_to_string(folder.join("run/predict_results.jsonl")).unwrap());
    assert!(answers.len() >= 8);
    for model in ["run", "run/model", "run/checkpoints/step-000003"] {
        assert_eq!(predicted(folder, model, &["--input", input]), answers, "{model}");
    }
    let row = rows(&folder.join("run")).into_iter().rfind(|row| row.get("eval_loss").is_some()).unwrap();
    let page = std::fs::read_to_string(folder.join("run/report.html")).unwrap();
    succeeds(kiln(folder).args(["eval", "--compiler", "native", "run", "--out", "eval.json"]));
    for (figure, value) in json(&folder.join("eval.json")).as_object().unwrap() {
        if figure == "classification_report" {
            continue; // of the evaluation alone
        }
        let measured = ["runtime", "samples_per_second", "steps_per_second"];
        if !measured.iter().any(|name| figure.ends_with(name)) {
            assert_eq!(row[figure], *value, "{figure}");
            assert!(is_on(&page, figure, value), "{figure} = {value} is not on the page");
        }
    }
    // A run that was moved is the same run.
    std::fs::rename(folder.join("run"), folder.join("moved")).unwrap();
    assert_eq!(predicted(folder, "moved", &["--input", input]), answers);
    succeeds(kiln(folder).args(["eval", "--compiler", "native", "moved", "--out", "moved.json"]));
    assert_eq!(json(&folder.join("moved.json"))["eval_loss"], row["eval_loss"]);
    let others = predicted(folder, "moved", &[&["--input", input], other].concat());
    assert_ne!(others, answers, "a flag overrides the run: {other:?}");
    // A table names its columns, however many rows it has.
    let csv = |input: &str| {
        let mut command = kiln(folder);
        command.args(["predict", "--compiler", "native", "moved", "--input", input, "--out", "table.csv"]);
        let said = succeeds(&mut command);
        (said, std::fs::read_to_string(folder.join("table.csv")).unwrap())
    };
    // SQuAD's JSON without a question is refused.
    if input.ends_with(".jsonl") {
        let (_, table) = csv(input);
        let names = table.lines().next().unwrap();
        std::fs::write(folder.join("none.jsonl"), "").unwrap();
        let (said, table) = csv("none.jsonl");
        assert!(said.contains("wrote 0 predictions") && table == format!("{names}\n"), "{said}{table}");
    }
    // The model alone knows nothing of the run.
    std::fs::rename(folder.join("moved/model"), folder.join("alone")).unwrap();
    std::fs::rename(folder.join("moved"), folder.join("run")).unwrap();
    (answers, row, others)
}

/// Texts of two columns, longer than the run reads, so that the right answer depends on where they
/// are cut.
fn pair(i: usize) -> (String, String) {
    let words = ["good", "bad", "film", "play", "cat", "dog", "box", "tree"];
    let text =
        |from: usize, len: usize| (0..len).map(|j| words[(from * 5 + j * j + j) % 8]).collect::<Vec<_>>().join(" ");
    (text(i, 5 + i % 7), text(i + 3, 4 + i % 5))
}

/// Rows of JSON with `message`, `reply` and the label that `label` gives.
fn table(label: impl Fn(usize) -> Value) -> String {
    let row = |i: usize| {
        let (message, reply) = pair(i);
        json!({ "text": "the", "message": message, "reply": reply, "topic": label(i) }).to_string() + "\n"
    };
    (0..11).map(row).collect()
}

const COLUMNS: &str =
    "text_column = \"message\"\ntext_pair_column = \"reply\"\nlabel_column = \"topic\"\nmax_length = 9";

/// The share of `answers` for which `is_right` holds, as an evaluation has it: a count by a count
/// in f64.
fn share(answers: &[Value], is_right: impl Fn(usize, &Value) -> bool) -> f64 {
    let right = answers.iter().enumerate().filter(|(i, answer)| is_right(*i, answer)).count();
    right as f64 / answers.len() as f64
}

/// The accuracy of `row` is `share`; a number that is read from a file may differ in its last
/// digit.
#[track_caller]
fn is_share(row: &Value, share: f64) {
    let accuracy = row["eval_accuracy"].as_f64().unwrap();
    assert!((accuracy - share).abs() < 1e-15, "{accuracy} against {share}");
}

#[test]
fn classes_of_pairs() {
    let topic = |i: usize| ["praise", "blame", "other"][i % 3];
    let folder = folder("sequence-classification", "jsonl", &table(|i| topic(i).into()), COLUMNS, "");
    let (answers, row, _) = agreed(folder.path(), "validation.jsonl", &["--max-length", "40"]);
    is_share(&row, share(&answers, |i, answer| answer["label"] == topic(i)));
    let matrix = json(&folder.path().join("run/confusion_matrix.json"));
    let labels = matrix["labels"].as_array().unwrap();
    for (a, label) in labels.iter().enumerate() {
        for (b, predicted) in labels.iter().enumerate() {
            let count = (0..11).filter(|i| topic(*i) == label && answers[*i]["label"] == *predicted).count();
            assert_eq!(matrix["counts"][a][b], count, "{label} as {predicted}");
        }
    }
    // What was taken is said in one line, and not twice.
    let mut told = kiln(folder.path());
    told.args([
        "predict",
        "--compiler",
        "native",
        "run/checkpoints/step-000003",
        "--input",
        "validation.jsonl",
        "--max-length",
        "12",
    ]);
    let said = text(&told.args(["--precision", "f32"]).output().unwrap());
    let line =
        "run/plan.toml: text_column = \"message\", text_pair_column = \"reply\", per_device_eval_batch_size = 3\n";
    assert!(said.contains(line), "{said}");
    // Columns that are named are another table's: none of the run's stays beside them.
    let one = predicted(
        folder.path(),
        "run/checkpoints/step-000003",
        &["--input", "validation.jsonl", "--text-column", "text"],
    );
    assert!(one.iter().all(|answer| answer["probabilities"] == one[0]["probabilities"]));
}

#[test]
fn numbers_of_pairs() {
    let folder = folder("regression", "jsonl", &table(|i| json!(i as f64 / 4.0)), COLUMNS, "");
    let (answers, row, _) = agreed(folder.path(), "validation.jsonl", &["--precision", "f32"]);
    let squares =
        answers.iter().enumerate().map(|(i, answer)| (answer["value"].as_f64().unwrap() - i as f64 / 4.0).powi(2));
    let mse = squares.sum::<f64>() / 11.0;
    // Predictions are printed as f32 are, to the bit.
    assert!((row["eval_mse"].as_f64().unwrap() - mse).abs() < 1e-9 * mse, "{row}: {mse}");
}

#[test]
fn several_labels_of_a_text() {
    let applies = |i: usize| ["a", "b", "c"].into_iter().enumerate().filter(move |(j, _)| (i >> j) & 1 == 1);
    let list = |i: usize| applies(i).map(|(_, name)| name).collect::<Vec<_>>();
    let folder = folder("multi-label-classification", "jsonl", &table(|i| json!(list(i))), COLUMNS, "");
    let (answers, row, _) = agreed(folder.path(), "validation.jsonl", &["--max-length", "40"]);
    is_share(&row, share(&answers, |i, answer| answer["labels"] == json!(list(i))));
}

#[test]
fn labels_of_words() {
    let tag = |i: usize, j: usize| ["O", "B-PET", "I-PET"][(i + j) % 3];
    let words = |i: usize| pair(i).0.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let row = |i: usize| {
        let tags = (0..words(i).len()).map(|j| tag(i, j)).collect::<Vec<_>>();
        json!({ "words": words(i), "tags": tags }).to_string() + "\n"
    };
    let columns = "text_column = \"words\"\nlabel_column = \"tags\"\nmax_length = 8";
    let folder = folder("token-classification", "jsonl", &(0..11).map(row).collect::<String>(), columns, "");
    let (answers, row, whole) = agreed(folder.path(), "validation.jsonl", &["--max-length", "40"]);
    let words = answers.iter().enumerate().flat_map(|(i, answer)| {
        let labels = answer["labels"].as_array().unwrap().iter().enumerate();
        labels.filter(|(_, label)| !label.is_null()).map(move |(j, label)| label == tag(i, j))
    });
    let words = words.collect::<Vec<_>>();
    let right = words.iter().filter(|is_right| **is_right).count();
    assert_eq!(row["eval_accuracy"], right as f64 / words.len() as f64);
    let cut =
        |answers: &[Value]| answers.iter().any(|answer| answer["labels"].as_array().unwrap().contains(&Value::Null));
    assert!(cut(&answers) && !cut(&whole));
}

#[test]
fn choices() {
    let row = |i: usize| {
        let (text, other) = pair(i);
        json!({ "ask": text, "start": other, "a": "good film", "b": pair(i + 1).1, "c": "dog", "right": i % 3 })
            .to_string()
            + "\n"
    };
    let columns = "text_column = \"ask\"\ntext_pair_column = \"start\"\nlabel_column = \"right\"\n\
                   choice_columns = [\"a\", \"b\", \"c\"]\nmax_length = 10";
    let folder = folder("multiple-choice", "jsonl", &(0..11).map(row).collect::<String>(), columns, "");
    let (answers, row, _) = agreed(folder.path(), "validation.jsonl", &["--choice-columns", "c,b"]);
    assert_eq!(row["eval_accuracy"], share(&answers, |i, answer| answer["choice"] == i % 3));
}

/// Questions about contexts of several windows; every third has no answer where `negative`.
fn squad(negative: bool) -> Value {
    let paragraph = |i: usize| {
        let (animal, place) = (["cat", "dog"][i % 2], ["box", "tree"][i / 2 % 2]);
        let context = format!("{} and the {animal} is in the {place} and {}", pair(i).0, pair(i + 1).0);
        let start = context.find(&format!("{place} and")).unwrap();
        let mut qas = json!({ "id": format!("q{i}"), "question": format!("where is the {animal}") });
        qas["answers"] = json!([{ "text": place, "answer_start": start }]);
        if negative {
            qas["is_impossible"] = json!(i.is_multiple_of(3));
        }
        json!({ "context": context, "qas": [qas] })
    };
    let paragraphs = (0..10).map(paragraph).collect::<Vec<_>>();
    json!({ "version": if negative { "v2.0" } else { "1.1" }, "data": [{ "title": "t", "paragraphs": paragraphs }] })
}

const WINDOWS: &str = "max_length = 16\ndoc_stride = 5\nn_best_size = 4\nmax_answer_length = 3\n";

/// The exact matches in percent, which are those of whole answers without articles.
fn exact(answers: &[Value], negative: bool) -> f64 {
    let right = |i: usize, answer: &Value| {
        let expected = if negative && i.is_multiple_of(3) { "" } else { ["box", "tree"][i / 2 % 2] };
        let words = answer["answer"].as_str().unwrap().split(' ').filter(|word| !["the", "a"].contains(word));
        words.collect::<Vec<_>>().join(" ") == expected
    };
    100.0 * share(answers, right)
}

#[test]
fn answers() {
    let messages = messages!();
    let folder = folder("question-answering", "squad", &squad(false).to_string(), WINDOWS, "");
    let (answers, row, long) =
        agreed(folder.path(), "validation.json", &["--max-answer-length", "30", "--n-best-size", "20"]);
    assert_eq!(row["eval_exact_match"], exact(&answers, false));
    let longest = |answers: &[Value]| {
        let words = answers.iter().map(|answer| answer["answer"].as_str().unwrap().split(' ').count());
        words.max().unwrap()
    };
    assert!(longest(&answers) <= 3 && longest(&long) > 3, "{answers:?} {long:?}");
    // Rows that are no SQuAD are read by their columns, in the windows of the run.
    let rows = squad(false)["data"][0]["paragraphs"].as_array().unwrap().clone();
    let rows = rows.iter().map(|row| json!({ "q": row["qas"][0]["question"], "c": row["context"] }).to_string() + "\n");
    std::fs::write(folder.path().join("new.jsonl"), rows.collect::<String>()).unwrap();
    let columns = ["--input", "new.jsonl", "--text-column", "q", "--text-pair-column", "c"];
    let of_table = predicted(folder.path(), "run/checkpoints/step-000003", &columns);
    for (answer, of_row) in answers.iter().zip(of_table) {
        assert_eq!((&answer["answer"], &answer["score"]), (&of_row["answer"], &of_row["score"]));
    }
    let predict = |args: &[&str], code| {
        let model = ["predict", "--compiler", "native", "run/checkpoints/step-000003", "--input", "validation.json"];
        messages.fails(kiln(folder.path()).args(model).args(args), code);
    };
    predict(&["--max-length", "41"], 2);
    predict(&["--doc-stride", "16"], 2);
    predict(&["--n-best-size", "0"], 2);
}

#[test]
fn answers_and_none() {
    let windows = format!("{}null_score_diff_threshold = -6.0", WINDOWS.replace("= 4", "= 12"));
    let folder = folder("question-answering", "squad", &squad(true).to_string(), &windows, "");
    let (answers, row, given) = agreed(folder.path(), "validation.json", &["--null-score-diff-threshold=-100"]);
    assert_eq!(row["eval_exact_match"], exact(&answers, true));
    assert!(given.iter().all(|answer| answer["answer"] == ""), "{given:?}");
    // A table of questions says nothing of answers that are none; the run does.
    let rows = squad(true)["data"][0]["paragraphs"].as_array().unwrap().clone();
    let rows = rows.iter().map(|row| json!({ "q": row["qas"][0]["question"], "c": row["context"] }).to_string() + "\n");
    std::fs::write(folder.path().join("new.jsonl"), rows.collect::<String>()).unwrap();
    let columns = ["--input", "new.jsonl", "--text-column", "q", "--text-pair-column", "c"];
    let texts = |found: &[Value]| found.iter().map(|answer| answer["answer"].clone()).collect::<Vec<_>>();
    let model = "run/checkpoints/step-000003";
    assert_eq!(texts(&predicted(folder.path(), model, &columns)), texts(&answers));
    let always = predicted(folder.path(), model, &[&columns[..], &["--version-2-with-negative=false"]].concat());
    let none = |found: &[Value]| found.iter().filter(|answer| answer["answer"] == "").count();
    assert!(none(&always) == 0 && (1..10).contains(&none(&answers)), "{answers:?} {always:?}");
}

/// An adapter's run, its folder, and the model that it is merged into.
#[test]
fn adapters_and_merged_models() {
    let topic = |i: usize| ["praise", "blame"][i % 2];
    let folder = folder("sequence-classification", "jsonl", &table(|i| topic(i).into()), COLUMNS, "");
    let base = ["--set", "run.output_dir=base", "--set", "trainer.do_predict=false", "--set", "precision=f32"];
    let train = |args: &[&str]| succeeds(kiln(folder.path()).args(["train", "config.toml"]).args(args));
    let unset = |config: &str| config.replace("test = \"validation.jsonl\"\n", "");
    let config = std::fs::read_to_string(folder.path().join("config.toml")).unwrap();
    std::fs::write(folder.path().join("config.toml"), unset(&config)).unwrap();
    train(&base);
    let section = config.find("[model]").unwrap()..config.find("[data]").unwrap();
    let mut lora = config.clone();
    lora.replace_range(section, "[model]\nfrom = \"base/model\"\n[lora]\nr = 4\n");
    std::fs::write(folder.path().join("config.toml"), lora.replace("precision = \"bf16\"", "precision = \"f32\""))
        .unwrap();
    train(&[]);
    let answers = lines(&std::fs::read_to_string(folder.path().join("run/predict_results.jsonl")).unwrap());
    succeeds(kiln(folder.path()).args(["merge", "run", "--out", "merged"]));
    for model in ["run", "run/model", "run/checkpoints/step-000003"] {
        assert_eq!(predicted(folder.path(), model, &["--input", "validation.jsonl"]), answers, "{model}");
    }
    let merged = predicted(folder.path(), "merged", &["--input", "validation.jsonl"]);
    assert_eq!(merged.len(), answers.len());
    for (merged, answer) in merged.iter().zip(&answers) {
        assert_eq!(merged["label"], answer["label"]);
        // f32: the sum of two products and the product of a sum round differently.
        assert!((merged["score"].as_f64().unwrap() - answer["score"].as_f64().unwrap()).abs() < 1e-5);
    }
    // A file of this name above a model that stands alone is none of a run's.
    std::fs::create_dir(folder.path().join("own")).unwrap();
    std::fs::rename(folder.path().join("merged"), folder.path().join("own/merged")).unwrap();
    std::fs::remove_file(folder.path().join("own/merged/plan.toml")).unwrap();
    std::fs::write(folder.path().join("own/plan.toml"), "what = [").unwrap();
    assert_eq!(
        predicted(
            folder.path(),
            "own/merged",
            &["--input", "validation.jsonl", "--text-column", "message", "--text-pair-column", "reply"]
        )
        .len(),
        answers.len()
    );
    std::fs::rename(folder.path().join("own/merged"), folder.path().join("merged")).unwrap();
    let eval = |args: &[&str]| succeeds(kiln(folder.path()).args(["eval", "--compiler", "native", "run"]).args(args));
    let accuracy = format!("'eval_accuracy': {:?}", share(&answers, |i, answer| answer["label"] == topic(i)));
    assert!(
        eval(&[]).contains(&accuracy[..20]) && eval(&["--model", "merged"]).contains(&accuracy[..20]),
        "{accuracy}"
    );
}

/// The evaluations of language models agree. A text without a mask has none to fill; one that is
/// scored has a loss.
#[test]
fn language_models() {
    let messages = messages!();
    for (task, model) in [
        ("clm", "kind = \"gpt2\"\nn_layer = 1\nn_head = 2\nn_embd = 32\nn_positions = 40"),
        (
            "mlm",
            "kind = \"bert\"\nhidden_size = 32\nnum_hidden_layers = 1\nnum_attention_heads = 2\nintermediate_size = 64",
        ),
    ] {
        let folder = folder(task, "jsonl", &table(|_| json!("x")), "text_column = \"message\"\nblock_size = 8", "");
        let config = std::fs::read_to_string(folder.path().join("config.toml")).unwrap();
        let section = config.find("[model]").unwrap()..config.find("[data]").unwrap();
        let mut config = config.replace("test = \"validation.jsonl\"\n", "").replace("do_predict = true\n", "");
        config.replace_range(section, &format!("[model]\n{model}\n"));
        std::fs::write(folder.path().join("config.toml"), config).unwrap();
        succeeds(kiln(folder.path()).args(["train", "config.toml"]));
        let row = rows(&folder.path().join("run")).into_iter().rfind(|row| row.get("eval_loss").is_some()).unwrap();
        let page = std::fs::read_to_string(folder.path().join("run/report.html")).unwrap();
        succeeds(kiln(folder.path()).args(["eval", "--compiler", "native", "run", "--out", "eval.json"]));
        let again = json(&folder.path().join("eval.json"));
        for figure in ["eval_loss", "eval_perplexity", "eval_accuracy", "eval_samples"] {
            assert_eq!(row[figure], again[figure], "{task}: {figure}");
            assert!(is_on(&page, figure, &row[figure]), "{task}: {figure}");
        }
        match task {
            "clm" => {
                let scores = predicted(folder.path(), "run", &["--input", "validation.jsonl"]);
                for score in &scores {
                    let [loss, perplexity] = ["loss", "perplexity"].map(|name| score[name].as_f64().unwrap());
                    assert!((perplexity - loss.exp()).abs() < 1e-12 * perplexity, "{score}");
                }
                let rows = std::fs::read_to_string(folder.path().join("validation.jsonl")).unwrap();
                assert_eq!(scores.len(), rows.lines().count());
            }
            _ => {
                let refused = ["predict", "--compiler", "native", "run", "--input", "validation.jsonl"];
                messages.fails(kiln(folder.path()).args(refused), 3);
                let cut = ["predict", "run", "--text", "a good film where [MASK] is", "--max-length", "5"];
                messages.fails(kiln(folder.path()).args(cut), 3);
                messages.fails(kiln(folder.path()).args(["predict", "run", "--text", "a [MASK]", "--top-k", "0"]), 2);
                messages.fails(kiln(folder.path()).args(["predict", "run", "--text", "a [MASK]", "--top-k", "900"]), 2);
            }
        }
    }
}

/// `tests/fixtures/make_pipelines.py` asks transformers.
#[test]
fn predictions_are_those_of_the_pipelines() {
    let peer = json(&Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/fixtures/pipelines.json"));
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let list = |value: &Value| value.as_array().unwrap().clone();
    let texts = list(&peer["rows"]);
    let written = |name: &str, rows: Vec<Value>| {
        std::fs::write(at.join(name), rows.iter().map(|row| row.to_string() + "\n").collect::<String>()).unwrap();
    };
    let [a, b, c] = ["the cat", "a dog", "in the tree and the box"];
    let row = |text: &Value| json!({ "text": text, "question": "where is the cat", "a": a, "b": b, "c": c });
    written("rows.jsonl", texts.iter().map(row).collect());
    for case in [
        "bert-classification",
        "bert-regression",
        "distilbert-multi-label",
        "bert-choice",
        "lora-bert-qa",
        "bert-mlm",
        "distilbert-mlm",
    ] {
        let model = crate::common::fixture(case).join("model");
        std::fs::create_dir(at.join(case)).unwrap();
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(model.join(file), at.join(case).join(file)).unwrap();
        }
        let mut words = list(&peer["words"]).iter().map(|word| word.as_str().unwrap().to_owned()).collect::<Vec<_>>();
        let size = json(&model.join("config.json"))["vocab_size"].as_u64().unwrap() as usize;
        words.extend((0..size - words.len()).map(|i| format!("[unused{i}]")));
        std::fs::write(at.join(case).join("vocab.txt"), words.join("\n") + "\n").unwrap();
    }
    std::fs::create_dir(at.join("gpt2-lm")).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(crate::common::fixture("gpt2-lm").join("model").join(file), at.join("gpt2-lm").join(file))
            .unwrap();
    }
    std::fs::write(at.join("gpt2-lm/tokenizer.json"), peer["tokenizer"].as_str().unwrap()).unwrap();
    let class = json!({ "tokenizer_class": "PreTrainedTokenizerFast" });
    std::fs::write(at.join("gpt2-lm/tokenizer_config.json"), class.to_string()).unwrap();
    written("masked.jsonl", list(&peer["masked"]).iter().map(|text| json!({ "text": text })).collect());
    // Sums in f32 in another order: some roundings of logits and probabilities of order 1.
    let near = |ours: &Value, theirs: &Value| {
        let (ours, theirs) = (ours.as_f64().unwrap(), theirs.as_f64().unwrap());
        assert!((ours - theirs).abs() < 1e-5, "{ours} against {theirs}");
    };
    let rows = ["--input", "rows.jsonl", "--max-length", "12"];
    for case in ["bert-classification", "distilbert-multi-label"] {
        for (ours, theirs) in predicted(at, case, &rows).iter().zip(list(&peer[case])) {
            assert_eq!(ours["probabilities"].as_object().unwrap().len(), list(&theirs).len());
            list(&theirs)
                .iter()
                .for_each(|it| near(&ours["probabilities"][it["label"].as_str().unwrap()], &it["score"]));
        }
    }
    for (ours, theirs) in predicted(at, "bert-regression", &rows).iter().zip(list(&peer["bert-regression"])) {
        near(&ours["value"], &theirs[0]["score"]);
    }
    let choices = predicted(at, "bert-choice", &[&rows[..], &["--choice-columns", "a,b,c"]].concat());
    for (ours, theirs) in choices.iter().zip(list(&peer["bert-choice"])) {
        assert_eq!(ours["choice"], theirs["choice"]);
        list(&ours["probabilities"]).iter().zip(list(&theirs["probabilities"])).for_each(|(a, b)| near(a, &b));
    }
    for case in ["bert-mlm", "distilbert-mlm"] {
        let ours = predicted(at, case, &["--input", "masked.jsonl", "--top-k", "3"]);
        assert_eq!(ours.len(), 3);
        for (ours, theirs) in ours.iter().zip(list(&peer[case])) {
            let (ours, theirs) = (list(&ours["masks"]), list(&theirs));
            assert_eq!(ours.len(), theirs.len());
            for (ours, theirs) in ours.iter().flat_map(list).zip(theirs.iter().flat_map(list)) {
                assert_eq!((&ours["token"], &ours["token_str"]), (&theirs["token"], &theirs["token_str"]), "{case}");
                near(&ours["score"], &theirs["score"]);
            }
        }
    }
    for (ours, theirs) in predicted(at, "gpt2-lm", &["--input", "rows.jsonl"]).iter().zip(list(&peer["gpt2-lm"])) {
        assert_eq!(ours["tokens"], theirs["tokens"]);
        near(&ours["loss"], &theirs["loss"]);
    }
    let one = predicted(at, "gpt2-lm", &["--text", "cat"]);
    assert_eq!(one, [json!({ "index": 0, "tokens": 0, "loss": null, "perplexity": null })]);
    for case in list(&peer["bert-qa"]) {
        let of = |name: &str| case["settings"][name].to_string();
        let flags = ["max_length", "stride", "n_best", "max_answer", "threshold", "negative"];
        let names = ["max-length", "doc-stride", "n-best-size", "max-answer-length", "null-score-diff-threshold"];
        let names = names.into_iter().chain(["version-2-with-negative"]);
        let flags = names.zip(flags).map(|(name, key)| format!("--{name}={}", of(key))).collect::<Vec<_>>();
        let columns = ["--input", "rows.jsonl", "--text-column", "question", "--text-pair-column", "text"];
        let args = columns.into_iter().chain(flags.iter().map(String::as_str)).collect::<Vec<_>>();
        for (ours, theirs) in predicted(at, "lora-bert-qa", &args).iter().zip(list(&case["answers"])) {
            assert_eq!(ours["answer"], theirs["answer"]);
            near(&ours["score"], &theirs["score"]);
        }
    }
}
