//! Pretrained models whose head, label names or vocabulary are not those of the data: what is
//! refused with which help, what the run that follows the help does, and what its folder says.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::messages::messages;
use crate::common::{fixture, json as read, kiln, succeeds, tensors};

const SHAPE: &str = "kind = \"bert\"\nhidden_size = 16\nnum_hidden_layers = 1\nnum_attention_heads = 2\nintermediate_size = 32\n\
                     max_position_embeddings = 16\nhidden_dropout_prob = 0.0\nattention_probs_dropout_prob = 0.0\n";

/// A folder with word pieces and data of every task, and a trained classifier of the labels `x`,
/// `y` and `z` in `three`.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\ncalm\nloud\nsong\n");
    write("three.csv", &format!("text,label\n{}", "a calm song,x\na loud song,y\na song,z\n".repeat(3)));
    write("two.csv", &format!("text,label\n{}", "a calm song,up\na loud song,down\n".repeat(4)));
    write("numbers.csv", &format!("text,label\n{}", "a calm song,0.5\na loud song,1.5\n".repeat(4)));
    let words = json!({"tokens": ["a", "calm", "song"], "ner_tags": ["O", "B-MOOD", "O"]});
    write("words.jsonl", &format!("{words}\n").repeat(4));
    write("choices.csv", &format!("text,one,two,label\n{}", "a song,calm,loud,1\n".repeat(4)));
    let question = json!({"id": "1", "question": "a song", "answers": [{"text": "calm", "answer_start": 2}]});
    write(
        "squad.json",
        &json!({"data": [{"paragraphs": [{"context": "a calm song", "qas": [question]}]}]}).to_string(),
    );
    write("new.toml", &config(SHAPE).replace("[trainer]", "[tokenizer]\nfrom = \"vocab.txt\"\n[trainer]"));
    succeeds(&mut train(folder.path(), "new.toml", "three-run", &["data.train=three.csv"]));
    std::fs::rename(folder.path().join("three-run/model"), folder.path().join("three")).unwrap();
    folder
}

/// A config that trains a classifier on a table for a step in which no weight changes: the learning
/// rate begins at 0.
fn config(model: &str) -> String {
    format!(
        "[model]\n{model}[data]\ntask = \"sequence-classification\"\nformat = \"csv\"\n[trainer]\nmax_steps = 1\n\
         warmup_steps = 1\nper_device_train_batch_size = 2\nsave_strategy = \"no\"\n[device]\nkind = \"cpu\"\n"
    )
}

fn train(folder: &Path, config: &str, run: &str, set: &[&str]) -> Command {
    let mut command = kiln(folder);
    command.args(["train", config, "--set", &format!("run.output_dir={run}")]);
    for set in set {
        command.args(["--set", set]);
    }
    command
}

/// The training of a model from the folder `from`.
fn tune(folder: &Path, from: &str, run: &str, set: &[&str]) -> Command {
    std::fs::write(folder.join("from.toml"), config(&format!("from = {from:?}\n"))).unwrap();
    train(folder, "from.toml", run, set)
}

/// A task, its data, further keys, a part of what is told, and `id2label` and `problem_type` of
/// what is written.
type Case<'a> = (&'a str, &'a str, &'a [&'a str], &'a str, Value, Value);

const NEW_HEAD: &str = "model.ignore_mismatched_sizes=true";

#[test]
fn a_head_of_another_size_is_replaced_when_the_config_says_so() {
    let messages = messages!();
    let folder = folder();
    let path = folder.path();
    let two = "data.train=two.csv";
    messages.fails(tune(path, "three", "refused", &[two]), 3);
    let names = "data.label_names=[\"down\", \"up\"]";
    messages.fails(tune(path, "three", "refused", &[two, names]), 3);
    assert!(!path.join("refused/model").exists());

    let (squad, choices) = ("data.format=squad", "data.choice_columns=[\"one\", \"two\"]");
    let cases: [Case<'_>; 5] = [
        (
            "sequence-classification",
            two,
            &[],
            "classifier.weight [3, 16] -> [2, 16]",
            json!({"0": "down", "1": "up"}),
            json!("single_label_classification"),
        ),
        (
            "regression",
            "data.train=numbers.csv",
            &[],
            "classifier.weight [3, 16] -> [1, 16]",
            json!({"0": "LABEL_0"}),
            json!("regression"),
        ),
        (
            "token-classification",
            "data.train=words.jsonl",
            &["data.format=jsonl"],
            "classifier.bias [3] -> [2]",
            json!({"0": "B-MOOD", "1": "O"}),
            Value::Null,
        ),
        (
            "multiple-choice",
            "data.train=choices.csv",
            &[choices],
            "classifier.weight [3, 16] -> [1, 16]",
            json!({"0": "x", "1": "y", "2": "z"}),
            Value::Null,
        ),
        // A head of other names is new in any case. Three labels would make `transformers` expect
        // three logits.
        ("question-answering", "data.train=squad.json", &[squad], "qa_outputs.* (2 tensors)", Value::Null, Value::Null),
    ];
    let before = tensors(&path.join("three/model.safetensors"));
    for (task, data, set, told, names, problem) in cases {
        let task = format!("data.task={task}");
        let set = [&[data, task.as_str(), NEW_HEAD], set].concat();
        let text = succeeds(&mut tune(path, "three", &task, &set));
        assert!(text.contains(told), "{task}: expected {told:?} in\n{text}");
        let config = read(&path.join(&task).join("model/config.json"));
        assert_eq!(config.get("id2label").cloned().unwrap_or_default(), names, "{task}");
        if task != "data.task=multiple-choice" {
            assert_eq!(config.get("problem_type").cloned().unwrap_or_default(), problem, "{task}");
        }
        let after = tensors(&path.join(&task).join("model/model.safetensors"));
        let body = "bert.encoder.layer.0.attention.self.query.weight";
        assert_eq!(after[body], before[body], "{task}: the body is the pretrained one");
        if let Some(head) = after.get("classifier.weight") {
            assert!(head.1.iter().any(|value| *value != 0.0), "{task}: the new head is random");
        }
    }
    // And back: one number becomes two classes.
    let number = "data.task=regression/model";
    messages.fails(tune(path, number, "refused", &[two]), 3);
    succeeds(&mut tune(path, number, "back", &[two, NEW_HEAD]));
    let config = read(&path.join("back/model/config.json"));
    assert_eq!(config["problem_type"], "single_label_classification");
    // The key changes nothing where everything fits.
    let text = succeeds(&mut tune(path, "three", "same", &["data.train=three.csv", NEW_HEAD]));
    assert!(!text.contains("of another size"), "{text}");
    assert_eq!(tensors(&path.join("same/model/model.safetensors")), before);
    messages.fails(train(path, "new.toml", "refused", &[two, NEW_HEAD]), 2);
}

/// The ids of rows and of outputs are those of one list of names, whoever gives it.
#[test]
fn an_evaluation_has_a_name_for_each_output() {
    let messages = messages!();
    let folder = folder();
    let path = folder.path();
    let rows = |name: &str, labels: &[&str]| {
        let rows = labels.iter().map(|label| format!("a calm song,{label}\n")).collect::<String>();
        std::fs::write(path.join(name), format!("text,label\n{rows}")).unwrap();
    };
    let eval = |model: &str, data: &str, set: &[&str]| {
        let train_data = format!("data.train={data}");
        let mut command = train(path, "new.toml", "nothing", &[&[train_data.as_str()], set].concat());
        command.args(["--set", &format!("data.validation={data}"), "--model", model]);
        let args = command.get_args().map(|arg| if arg == "train" { "eval".into() } else { arg.to_owned() });
        let mut eval = kiln(path);
        eval.args(args.collect::<Vec<_>>());
        eval
    };
    // Labels that are some of the model's are read by its names, in whatever order the config has
    // them.
    rows("some.csv", &["z", "x"]);
    let own = succeeds(&mut eval("three", "some.csv", &[]));
    let matrix = |text: &str| text.lines().take(5).map(str::to_owned).collect::<Vec<_>>();
    assert!(matrix(&own)[1].split_whitespace().eq(["label", "x", "y", "z"]), "{own}");
    let named = succeeds(&mut eval("three", "some.csv", &["data.label_names=[\"z\", \"x\"]"]));
    assert_eq!(matrix(&named), matrix(&own));

    messages.fails(eval("three", "two.csv", &[]), 3);
    let names = "data.label_names=[\"up\", \"other\", \"down\"]";
    let text = succeeds(&mut eval("three", "two.csv", &[names]));
    assert!(matrix(&text)[1].split_whitespace().eq(["label", "up", "other", "down"]), "{text}");

    // Nobody has named the outputs of this one.
    let unnamed = path.join("unnamed");
    std::fs::create_dir(&unnamed).unwrap();
    for file in std::fs::read_dir(path.join("three")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), unnamed.join(file.file_name())).unwrap();
    }
    let name = |names: [&str; 3]| {
        let mut config = read(&unnamed.join("config.json"));
        let ids = || names.iter().enumerate();
        config["id2label"] =
            ids().map(|(id, name)| (id.to_string(), json!(name))).collect::<serde_json::Map<_, _>>().into();
        config["label2id"] =
            ids().map(|(id, name)| ((*name).to_owned(), json!(id))).collect::<serde_json::Map<_, _>>().into();
        std::fs::write(unnamed.join("config.json"), config.to_string()).unwrap();
    };
    name(["LABEL_0", "LABEL_1", "LABEL_2"]);
    messages.fails(eval("unnamed", "two.csv", &[]), 3);
    succeeds(&mut eval("unnamed", "two.csv", &[names]));
    rows("four.csv", &["a", "b", "c", "d"]);
    messages.fails(eval("unnamed", "four.csv", &[]), 3);
    name(["up", "other", "down"]);
    assert_eq!(matrix(&succeeds(&mut eval("unnamed", "two.csv", &[]))), matrix(&text));
}

/// Adapters keep the new head with them, and the base as it is.
#[test]
fn adapters_with_a_head_of_another_size_are_opened_again() {
    let messages = messages!();
    let folder = folder();
    let path = folder.path();
    let set = ["data.train=two.csv", NEW_HEAD, "lora.r=2"];
    succeeds(&mut tune(path, "three", "adapter", &set));
    std::fs::write(path.join("in.csv"), "text\na calm song\n").unwrap();
    let predict =
        |model: &str| succeeds(kiln(path).args(["predict", "--compiler", "native", model, "--input", "in.csv"]));
    let text = predict("adapter/model");
    let line: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(line["probabilities"].as_object().unwrap().keys().collect::<Vec<_>>(), ["down", "up"], "{text}");
    succeeds(kiln(path).args(["merge", "adapter/model", "--out", "merged"]));
    assert_eq!(predict("merged"), text);
    // Their head keeps its size, and what comes of merging them takes another.
    let three = ["data.train=three.csv", NEW_HEAD];
    messages.fails(tune(path, "adapter/model", "refused", &three), 3);
    succeeds(&mut tune(path, "merged", "again", &three));
}

/// `peft` saves no pooler with the adapter of a classifier, and a masked language model has none
/// that it could be read from.
#[test]
fn an_adapter_whose_pooler_is_nowhere_is_told_so() {
    let messages = messages!();
    let folder = folder();
    let path = folder.path();
    succeeds(&mut tune(path, "three", "adapter", &["data.train=three.csv", "lora.r=2"]));
    let base = path.join("three/model.safetensors");
    let mut weights = tensors(&base);
    weights.retain(|name, _| !name.contains("pooler") && !name.starts_with("classifier."));
    let weights =
        weights.into_iter().map(|(name, (shape, data))| kiln_models::weights::NamedTensor { name, shape, data });
    kiln_models::weights::write_safetensors(&base, &weights.collect::<Vec<_>>()).unwrap();
    std::fs::write(path.join("in.csv"), "text\na calm song\n").unwrap();
    messages.fails(tune(path, "adapter/model", "refused", &["data.train=three.csv"]), 3);
    for args in [&["predict", "adapter/model", "--input", "in.csv"][..], &["merge", "adapter/model", "--out", "merged"]]
    {
        messages.fails(kiln(path).args(args), 3);
    }
    let set = ["data.train=three.csv", "lora.r=2", "lora.modules_to_save=[\"classifier\", \"pooler\"]"];
    succeeds(&mut tune(path, "three", "with-pooler", &set));
    succeeds(kiln(path).args(["predict", "with-pooler/model", "--input", "in.csv"]));
}

#[test]
fn names_that_transformers_gives_by_default_do_not_stand_in_the_way() {
    let folder = folder();
    let path = folder.path();
    for count in 1..4 {
        let labels = (0..count).map(|id| (id.to_string(), format!("LABEL_{id}"))).collect::<Vec<_>>();
        let from = format!("default-{count}");
        std::fs::create_dir(path.join(&from)).unwrap();
        let mut config = read(&path.join("three/config.json"));
        config["id2label"] =
            labels.iter().map(|(id, name)| (id.clone(), json!(name))).collect::<serde_json::Map<_, _>>().into();
        config["label2id"] = labels
            .iter()
            .map(|(id, name)| (name.clone(), json!(id.parse::<u32>().unwrap())))
            .collect::<serde_json::Map<_, _>>()
            .into();
        std::fs::write(path.join(&from).join("config.json"), config.to_string()).unwrap();
        std::fs::copy(path.join("vocab.txt"), path.join(&from).join("vocab.txt")).unwrap();
        // A language model has no head that could be of another size.
        let (mut weights, body) =
            (tensors(&path.join("three/model.safetensors")), path.join(&from).join("model.safetensors"));
        weights.retain(|name, _| !name.starts_with("classifier."));
        let weights =
            weights.into_iter().map(|(name, (shape, data))| kiln_models::weights::NamedTensor { name, shape, data });
        kiln_models::weights::write_safetensors(&body, &weights.collect::<Vec<_>>()).unwrap();
        let run = format!("run-{count}");
        succeeds(&mut tune(path, &from, &run, &["data.train=two.csv"]));
        let config = read(&path.join(&run).join("model/config.json"));
        assert_eq!(config["id2label"], json!({"0": "down", "1": "up"}), "{count} default names");
        assert_eq!(config["label2id"], json!({"down": 0, "up": 1}), "{count} default names");
    }
}

/// `transformers` adds noise to the mean of the old rows that has 1e-9 of their covariance, so a
/// standard deviation of 3.2e-5 times theirs, which is 0.2 here.
const NOISE: f32 = 8.0 * 3.2e-5 * 0.2;

#[test]
fn an_embedding_grows_to_the_rows_that_transformers_gives_it() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let row = json!({"input_ids": [5, 54, 7, 52], "labels": [5, 54, 7, 52]});
    std::fs::write(path.join("rows.jsonl"), format!("{row}\n").repeat(4)).unwrap();
    std::fs::write(path.join("batch.json"), r#"{"input_ids": [[5, 54, 7, 52]]}"#).unwrap();
    for (case, task) in [("resized-gpt2", "clm"), ("resized-bert-mlm", "mlm"), ("resized-bert-untied", "mlm")] {
        let from = fixture(case).join("model");
        let (task, from) = (format!("data.task={task}"), from.to_str().unwrap());
        let always = ["data.format=tokenized", "data.train=rows.jsonl", "model.vocab_size=56", &task];
        messages.fails(tune(path, from, "refused", &always), 3);
        let text =
            succeeds(&mut tune(path, from, case, &[&always[..], &["model.resize_token_embeddings=true"]].concat()));
        assert!(text.contains("resized for more tokens than in the checkpoint: "), "{text}");
        assert!(text.contains(" [53, 16] -> [56, 16]"), "{text}");
        let model = path.join(case).join("model");
        assert_eq!(read(&model.join("config.json"))["vocab_size"], 56);
        let (got, before) =
            (tensors(&model.join("model.safetensors")), tensors(&fixture(case).join("model/model.safetensors")));
        for (name, (shape, expected)) in tensors(&fixture(case).join("resized.safetensors")) {
            let (got_shape, got) = &got[&name];
            let old = &before[&name].1;
            assert_eq!((got_shape, &got[..old.len()]), (&shape, &old[..]), "{name}: the old rows stay");
            let off = got.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off < NOISE, "{case}: {name}: off by {off}");
        }
        // What it wrote is opened without the key, and takes the new ids.
        let task = task.strip_prefix("data.task=").unwrap();
        let mut forward = kiln(path);
        forward.arg("forward").arg(&model).args(["--task", task, "--batch", "batch.json", "--out", "out.safetensors"]);
        succeeds(&mut forward);
    }
}

#[test]
fn a_tokenizer_that_is_larger_than_the_vocabulary() {
    let messages = messages!();
    let folder = folder();
    let path = folder.path();
    std::fs::create_dir(path.join("larger")).unwrap();
    std::fs::write(
        path.join("larger/vocab.txt"),
        std::fs::read_to_string(path.join("vocab.txt")).unwrap() + "tune\nnoise\n",
    )
    .unwrap();
    let data = ["data.train=three.csv", "tokenizer.from=larger"];
    messages.fails(tune(path, "three", "refused", &data), 2);
    let grows = "model.resize_token_embeddings=true";
    for (run, multiple, size) in [("exactly", &[][..], 11), ("by-eights", &["model.pad_to_multiple_of=8"], 16)] {
        succeeds(&mut tune(path, "three", run, &[&data[..], &[grows], multiple].concat()));
        assert_eq!(read(&path.join(run).join("model/config.json"))["vocab_size"], size);
        let (shape, _) =
            &tensors(&path.join(run).join("model/model.safetensors"))["bert.embeddings.word_embeddings.weight"];
        assert_eq!(shape, &[size, 16]);
        // The folder has the larger tokenizer, and trains on as it is.
        succeeds(&mut tune(path, &format!("{run}/model"), &format!("{run}-on"), &["data.train=three.csv"]));
    }
    messages.fails(tune(path, "three", "refused", &[&data[..], &[grows, "lora.r=2"]].concat()), 2);
    succeeds(&mut tune(path, "exactly/model", "then-adapters", &["data.train=three.csv", "lora.r=2"]));
    messages.fails(tune(path, "three", "refused", &["data.train=three.csv", "model.pad_to_multiple_of=8"]), 2);
}

/// Without an id of padding `transformers` reads the last token of a row, and refuses several rows.
#[test]
fn a_classifier_that_cannot_know_padding() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let row = json!({"input_ids": [5, 6, 0], "attention_mask": [1, 1, 0], "labels": 1});
    std::fs::write(path.join("rows.jsonl"), format!("{row}\n").repeat(4)).unwrap();
    std::fs::write(path.join("batch.json"), r#"{"input_ids": [[5, 6, 0]], "attention_mask": [[1, 1, 0]]}"#).unwrap();
    let from = fixture("gpt2-classification-one").join("model");
    let mut forward = kiln(path);
    forward.arg("forward").arg(&from).args([
        "--task",
        "sequence-classification",
        "--batch",
        "batch.json",
        "--out",
        "out",
    ]);
    messages.fails(&mut forward, 3);
    // Its head is none of a language model, which would have every weight that it reads.
    let mut other = kiln(path);
    let arguments = ["--task", "clm", "--batch", "batch.json", "--out", "out"];
    messages.fails(other.arg("forward").arg(&from).args(arguments), 3);
    let set = ["data.format=tokenized", "data.train=rows.jsonl"];
    messages.fails(tune(path, from.to_str().unwrap(), "refused", &set), 3);
    succeeds(&mut tune(path, from.to_str().unwrap(), "run", &[&set[..], &["model.pad_token_id=0"]].concat()));
    assert_eq!(read(&path.join("run/model/config.json"))["pad_token_id"], 0);
}

/// `padding_idx` of an embedding is the `pad_token_id` with which it was made: the Trainer of
/// `transformers` sets that of the tokenizer afterwards, so that the row learns where texts have
/// it.
#[test]
fn the_padding_of_a_tokenizer_learns_in_a_classifier_of_llama_and_that_of_config_json_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let train = |config: &str, sets: &[&str]| {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        succeeds(kiln(folder.path()).args(["train", config]).args(sets));
    };
    write("corpus.txt", &"a calm song and a loud song\n".repeat(40));
    write(
        "lm.toml",
        "[run]\noutput_dir = \"lm\"\n[model]\nkind = \"llama\"\nhidden_size = 16\nintermediate_size = 24\nnum_hidden_layers = \
         1\nnum_attention_heads = 2\nmax_position_embeddings = 32\n[data]\ntask = \"clm\"\ntrain = \"corpus.txt\"\n\
         block_size = 8\n[tokenizer]\ntrain_vocab_size = 270\n[trainer]\nmax_steps = 1\nwarmup_steps = 0\n[device]\n\
         kind = \"cpu\"\n",
    );
    train("lm.toml", &[]);
    let base = read(&folder.path().join("lm/model/config.json"));
    assert_eq!(base["pad_token_id"], Value::Null, "a tokenizer that pads with its end of text");
    let padding = base["eos_token_id"].as_u64().unwrap() as usize;
    write("rows.csv", &format!("text,label\n{}", "a calm <|endoftext|> song,up\na loud song,down\n".repeat(4)));
    write(
        "classes.toml",
        "[run]\noutput_dir = \"first\"\n[model]\nfrom = \"lm/model\"\n[data]\ntask = \"sequence-classification\"\n\
         format = \"csv\"\ntrain = \"rows.csv\"\n[trainer]\nmax_steps = 2\nwarmup_steps = 0\nweight_decay = 0.0\n\
         learning_rate = 0.01\nper_device_train_batch_size = 4\n[device]\nkind = \"cpu\"\n",
    );
    let row = |model: &str| {
        let all = tensors(&folder.path().join(model).join("model.safetensors"));
        all["model.embed_tokens.weight"].1[padding * 16..][..16].to_vec()
    };
    train("classes.toml", &[]);
    assert_ne!(row("lm/model"), row("first/model"), "the row of the token learns");
    assert_eq!(read(&folder.path().join("first/model/config.json"))["pad_token_id"], padding);
    train("classes.toml", &["run.output_dir=second", "model.from=first/model"]);
    assert_eq!(row("first/model"), row("second/model"), "config.json has the id");
}
