//! `kiln job` with the scripts of `transformers`: what they make of columns, labels, lengths and
//! splits where nothing says it. The stored answers are those of `fixtures/make_scripts.py`.
#![cfg(unix)]

use serde_json::{Value, json};

use crate::common::json as read_json;
use crate::common::messages::messages;
use crate::job::Root;

fn stored() -> Value {
    read_json(std::path::Path::new(concat!(
        concat!(env!("CARGO_MANIFEST_DIR"), "/../.."),
        "/tests/fixtures/scripts.json"
    )))
}

/// The hyperparameters of a small model, which trains one step, and those of `more`.
fn small(kind: &str, more: &Value) -> Value {
    let tokenizer = format!("{}/tests/fixtures/run_clm/{kind}", concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut all = match kind {
        "gpt2" => json!({"kind": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 32}),
        _ => json!({
            "kind": "bert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
            "max_position_embeddings": 200,
        }),
    };
    let common = json!({
        "tokenizer_name": tokenizer, "max_steps": 1, "per_device_train_batch_size": 2, "use_cpu": true, "do_eval": true,
        "save_strategy": "no",
    });
    for part in [&common, more] {
        all.as_object_mut().unwrap().extend(part.as_object().unwrap().clone());
    }
    all
}

/// The names of a list of JSON, and those of a list of TOML.
fn names(value: &Value) -> Vec<&str> {
    value.as_array().map_or_else(Vec::new, |names| names.iter().map(|name| name.as_str().unwrap()).collect())
}

/// The run's model has the labels and the problem of `case`, its config the columns, and its plan
/// the rows.
fn check(root: &Root, case: &Value, what: &str) -> toml::Table {
    let config = root.config();
    let columns = ["text_column", "text_pair_column"].iter().filter_map(|key| config["data"].get(*key)?.as_str());
    assert_eq!(columns.collect::<Vec<_>>(), names(&case["columns"]), "{what}");
    let model = read_json(&root.path("model/config.json"));
    assert_eq!(model["problem_type"], case["problem_type"], "{what}");
    let id2label = model["id2label"].as_object().unwrap();
    assert_eq!(id2label.len() as u64, case["num_labels"].as_u64().unwrap(), "{what}");
    if case["labels"].is_array() {
        assert_eq!(
            id2label.values().map(|name| name.as_str().unwrap()).collect::<Vec<_>>(),
            names(&case["labels"]),
            "{what}"
        );
    }
    let plan = read_json(&root.path("output/data/plan.json"));
    assert_eq!(plan["data"]["train_examples"], case["rows"], "{what}: {}", plan["data"]);
    // max_seq_length is 128 and pad_to_max_length true where they are left out.
    assert_eq!(
        (config["data"]["max_length"].as_integer(), config["data"]["padding"].as_str()),
        (Some(128), Some("max_length"))
    );
    config
}

#[test]
fn run_glue_trains_every_task_of_glue() {
    let stored = stored();
    let cases = stored["glue"].as_array().unwrap();
    assert_eq!(cases.len(), 9);
    for case in cases {
        let task = case["task"].as_str().unwrap();
        let root = Root::new();
        root.write("input/data/train/rows.csv", case["csv"].as_str().unwrap());
        let file = "/opt/ml/input/data/train/rows.csv";
        root.hyperparameters(&small(
            "bert",
            &json!({
                "sagemaker_program": "run_glue.py", "task_name": task, "train_file": file, "validation_file": file,
            }),
        ));
        let said = root.succeeds();
        assert!(said.contains("train_file is read, with the columns and labels of the task"), "{said}");
        check(&root, case, task);
        // The figures of the task's metric.
        let figure = match task {
            "cola" => "eval_matthews_correlation",
            "stsb" => "'eval_pearson': ",
            _ => "eval_accuracy",
        };
        assert!(said.contains(figure), "{task}: {said}");
        // From the Hub, which is not there: the splits of the task, also the one that is predicted.
        root.hyperparameters(&small(
            "bert",
            &json!({
                "training_script": "run_glue.py", "task_name": task.to_uppercase(), "do_predict": true,
            }),
        ));
        root.fails(3, &[]);
        let config = root.config();
        let data = &config["data"];
        assert_eq!(data["task"].as_str() == Some("regression"), task == "stsb");
        for (key, split) in [("train", "train"), ("validation", case["validation"].as_str().unwrap())] {
            assert_eq!(data[key][0].as_str().unwrap(), format!("hf://datasets/nyu-mll/glue/{task}/{split}"));
        }
        let test = case["test"].as_str().unwrap();
        assert_eq!(data["test"].as_str().unwrap(), format!("hf://datasets/nyu-mll/glue/{task}/{test}"));
    }
}

#[test]
fn files_of_ones_own_tell_columns_labels_and_the_problem() {
    for case in stored()["files"].as_array().unwrap() {
        let (file, script) = (case["file"].as_str().unwrap(), case["script"].as_str().unwrap());
        let what = format!("{file} with {script}");
        let root = Root::new();
        for channel in ["train", "validation"] {
            root.write(&format!("input/data/{channel}/{file}"), case["text"].as_str().unwrap());
        }
        root.hyperparameters(&small("bert", &json!({"training_script": script})));
        root.succeeds();
        check(&root, case, &what);
    }
}

#[test]
fn what_a_script_does_and_kiln_does_not_is_refused_by_name() {
    let messages = messages!();
    let root = Root::new();
    root.write("input/data/train/a.csv", "a,b,label\none,two,0\nthree,four,-1\n");
    let refused = |more: Value, code: i32| {
        root.hyperparameters(&small("bert", &more));
        root.refused(&messages, code);
    };
    refused(json!({"training_script": "run_glue.py", "do_eval": false}), 3);
    let joined = json!({"training_script": "run_classification.py", "text_column_names": "a,b", "text_column_delimiter": "\"; \""});
    refused(joined, 2);
    refused(json!({"training_script": "run_mlm.py", "line_by_line": true}), 2);
    refused(json!({"training_script": "run_mlm.py", "keep_linebreaks": false}), 2);
    refused(json!({"training_script": "run_ner.py", "label_all_tokens": true}), 2);
    refused(json!({"training_script": "run_glue.py", "task_name": "ax"}), 2);
    refused(json!({"training_script": "run_glue.py", "sagemaker_program": "run_ner.py"}), 2);
    // A model that was trained on MNLI with another order of the labels.
    let model = json!({
        "model_type": "bert", "vocab_size": 81, "id2label": {"0": "CONTRADICTION", "1": "NEUTRAL", "2": "ENTAILMENT"},
        "label2id": {"CONTRADICTION": 0, "NEUTRAL": 1, "ENTAILMENT": 2},
    });
    root.write("input/data/model/config.json", model.to_string());
    let mut all = small("bert", &json!({"training_script": "run_glue.py", "task_name": "mnli"}));
    all.as_object_mut()
        .unwrap()
        .retain(|name, _| !name.ends_with("size") && !name.starts_with("num_") && name != "kind");
    root.hyperparameters(&all);
    root.refused(&messages, 2);
}

#[test]
fn run_clm_and_run_mlm_read_lines_and_evaluate_on_the_first_of_them() {
    let messages = messages!();
    for case in stored()["texts"].as_array().unwrap() {
        let script = case["script"].as_str().unwrap();
        let root = Root::new();
        root.write("input/data/train/a.txt", case["text"].as_str().unwrap());
        let kind = if script == "run_clm.py" { "gpt2" } else { "bert" };
        let length = if script == "run_clm.py" { "block_size" } else { "max_seq_length" };
        let mut more = json!({"training_script": script, length: case["block_size"]});
        if script == "run_clm.py" {
            more["keep_linebreaks"] = case["keep_linebreaks"].clone();
        }
        root.hyperparameters(&small(kind, &more));
        root.succeeds();
        let data = read_json(&root.path("output/data/plan.json"))["data"].clone();
        for split in ["train", "validation"] {
            assert_eq!(
                data[format!("{split}_examples")],
                case[split]["blocks"],
                "{script} {}: {split}: {data}",
                case["keep_linebreaks"]
            );
        }
    }
    // The share of hyperparameters, and one that leaves nothing.
    for case in stored()["splits"].as_array().unwrap() {
        let rows = case["rows"].as_u64().unwrap();
        let root = Root::new();
        let lines = (0..rows).map(|_| json!({"words": "line of a text"}).to_string() + "\n");
        root.write("input/data/train/a.json", lines.collect::<String>());
        let more = json!({
            "training_script": "run_clm.py", "block_size": 4, "validation_split_percentage": case["percent"],
        });
        root.hyperparameters(&small("gpt2", &more));
        root.succeeds();
        let config = root.config();
        assert_eq!(
            config["data"]["text_column"].as_str(),
            Some("words"),
            "the first column, where none is called text"
        );
        assert_eq!(config["data"]["validation"].as_str().unwrap(), format!("train[:{}%]", case["percent"]));
        // Every row has as many tokens.
        let data = read_json(&root.path("output/data/plan.json"))["data"].clone();
        let examples = |split: &str| data[format!("{split}_examples")].as_f64().unwrap();
        let share = examples("validation") / (examples("validation") + examples("train"));
        let expected = case["validation"].as_f64().unwrap() / rows as f64;
        assert!((share - expected).abs() < 0.6 / rows as f64, "{case}: {share} and not {expected}");
    }
    let root = Root::new();
    root.write("input/data/train/a.txt", "one\ntwo\n");
    root.hyperparameters(&small("gpt2", &json!({"training_script": "run_clm.py"})));
    root.refused(&messages, 3);
}

#[test]
fn other_scripts_have_lengths_and_columns_of_their_own() {
    // run_qa.py: windows of 384 tokens, of which this model reads 200, padded to that length.
    let root = Root::new();
    let answer = json!({"text": "a river", "answer_start": 13});
    let question = json!({"id": "1", "question": "the river", "answers": [answer]});
    let squad =
        json!({"data": [{"title": "a", "paragraphs": [{"context": "the river is a river", "qas": [question]}]}]});
    for channel in ["train", "validation"] {
        root.write(&format!("input/data/{channel}/a.json"), squad.to_string());
    }
    root.hyperparameters(&small("bert", &json!({"training_script": "run_qa.py"})));
    root.succeeds();
    let data = root.config()["data"].clone();
    assert_eq!((data["max_length"].as_integer(), data["padding"].as_str()), (Some(200), Some("max_length")));
    // run_ner.py: no padding to a length, and the first two columns where none has the usual name.
    let root = Root::new();
    root.write("input/data/train/a.json", "{\"words\": [\"the\", \"river\"], \"kinds\": [\"O\", \"B\"]}\n");
    root.hyperparameters(&small("bert", &json!({"training_script": "run_ner.py", "do_eval": false})));
    root.succeeds();
    let data = root.config()["data"].clone();
    assert_eq!((data["text_column"].as_str(), data["label_column"].as_str()), (Some("words"), Some("kinds")));
    assert_eq!((data.get("max_length"), data["padding"].as_str()), (None, Some("longest")));
    // run_swag.py.
    let root = Root::new();
    let endings = (0..4).map(|ending| format!("ending{ending}")).collect::<Vec<_>>().join(",");
    root.write("input/data/train/a.csv", format!("sent1,sent2,{endings},label\nthe river,it,is,was,lake,snow,2\n"));
    root.hyperparameters(&small("bert", &json!({"training_script": "run_swag.py", "do_eval": false})));
    root.succeeds();
    let data = root.config()["data"].clone();
    assert_eq!((data["task"].as_str(), data["text_pair_column"].as_str()), (Some("multiple-choice"), Some("sent2")));
    // What is given is more than the model reads: the scripts take what it reads, and say so.
    let root = Root::new();
    root.write("input/data/train/a.csv", "sentence,label\nthe river,0\na lake,1\n");
    root.hyperparameters(&small(
        "bert",
        &json!({"training_script": "run_glue.py", "max_seq_length": 512, "do_eval": false}),
    ));
    let said = root.succeeds();
    assert!(said.contains("data.max_length = 512: run_glue.py takes 200"), "{said}");
    assert_eq!(root.config()["data"]["max_length"].as_integer(), Some(200));
}
