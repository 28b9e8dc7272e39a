//! Models that cannot be: shapes that do not fit, fields of Hugging Face's `config.json` that Kiln
//! does not honour, and tokenizers that belong to another model.

use serde_json::{Value, json};

use crate::common::place::Place;
use crate::common::{fails, fixture};

/// A copy of an oracle model with `fields` in its `config.json`, in `model/`.
fn model_with(place: &Place, case: &str, fields: &Value) {
    let source = fixture(case).join("model");
    let mut config = crate::common::json(&source.join("config.json"));
    for (name, value) in fields.as_object().unwrap() {
        config[name] = value.clone();
    }
    place.write("model/config.json", config.to_string());
    place.write("model/model.safetensors", std::fs::read(source.join("model.safetensors")).unwrap());
}

const FROM: &[&str] = &["model.from=model"];

#[test]
fn widths_that_heads_do_not_divide() {
    let place = Place::new();
    place.refused("text.toml", &["model.n_head=3"], 2, &["n_embd (8) is not divisible by n_head (3)"]);
    let bert = ["model.kind=bert", "model.hidden_size=10", "model.num_attention_heads=4"];
    place.write(
        "bert.toml",
        "[run]\noutput_dir = \"run\"\n[data]\ntask = \"mlm\"\nformat = \"tokenized\"\ntrain = \"rows.jsonl\"\n",
    );
    place.refused("bert.toml", &bert, 2, &["hidden_size (10) is not divisible by num_attention_heads (4)"]);
}

/// Two fields say which label is which: they agree, or the message names both and the file.
#[test]
fn labels_that_disagree_are_refused_by_both_names() {
    let place = Place::new();
    place.write("batch.json", "{\"input_ids\": [[1]]}");
    let forward =
        ["forward", "model", "--task", "sequence-classification", "--batch", "batch.json", "--out", "out.safetensors"];
    let names = json!({"0": "a", "1": "b", "2": "c"});
    model_with(&place, "bert-classification", &json!({"id2label": names, "label2id": {"a": 0, "b": 2, "c": 1}}));
    let parts = [
        "model/config.json: id2label calls the label 1 \"b\", and label2id gives \"b\" the id 2",
        "leave label2id out",
    ];
    fails(&mut place.kiln(&forward), 3, &parts);
    // The advice, followed.
    model_with(&place, "bert-classification", &json!({"id2label": names, "label2id": null}));
    crate::common::succeeds(&mut place.kiln(&forward));
}

#[test]
fn fields_of_hugging_face_that_are_refused() {
    let place = Place::new();
    for (field, why) in [
        (json!({"add_cross_attention": true}), "cross-attention is not implemented"),
        (json!({"activation_function": "relu"}), "got \"relu\"; other activations are not implemented"),
        (json!({"scale_attn_by_inverse_layer_idx": true}), "scaling attention by the layer index is not implemented"),
        (json!({"is_encoder_decoder": true}), "encoder-decoder models are not implemented"),
        (json!({"pruned_heads": {"0": [1]}}), "pruned heads are not implemented"),
        (json!({"quantization_config": {"bits": 4}}), "quantised weights are not implemented"),
        (json!({"n_embd": "wide"}), "expected a whole number"),
        (json!({"n_layer": -1}), "expected a whole number"),
        (json!({"n_head": 5}), "n_embd (48) is not divisible by n_head (5)"),
        (json!({"problem_type": "ranking"}), "got \"ranking\""),
        (json!({"pad_token_id": 211}), "expected an id below vocab_size (211), got 211"),
        (json!({"model_type": "llama"}), "or \"albert\", got \"llama\""),
        (json!({"model_type": 2}), "model_type: expected a string, got 2"),
    ] {
        model_with(&place, "gpt2-lm", &field);
        let (name, _) = field.as_object().unwrap().iter().next().unwrap();
        let parts = ["model/config.json", name, why];
        place.refused("rows.toml", FROM, 3, &parts);
        fails(&mut place.kiln(&["generate", "model", "--prompt", "a"]), 3, &parts);
    }
    for (field, why) in [
        (
            json!({"position_embedding_type": "relative_key"}),
            "expected \"absolute\", got \"relative_key\": relative positions",
        ),
        (json!({"is_decoder": true}), "a causal encoder is not implemented"),
        (json!({"hidden_act": "silu"}), "got \"silu\"; other activations are not implemented"),
        (json!({"add_cross_attention": true}), "cross-attention is not implemented"),
    ] {
        model_with(&place, "bert-mlm", &field);
        place.write("batch.json", "{\"input_ids\": [[1]]}");
        let forward = ["forward", "model", "--task", "mlm", "--batch", "batch.json", "--out", "out.safetensors"];
        fails(&mut place.kiln(&forward), 3, &["model/config.json", why]);
    }
    place.refused("text.toml", &["model.scale_attn_by_inverse_layer_idx=true"], 2, &["[model]", "by the layer index"]);
    place.refused(
        "text.toml",
        &["model.activation_function=swish"],
        2,
        &["[model]", "activation_function", "got \"swish\""],
    );
}

#[test]
fn model_folders_that_are_no_model() {
    let place = Place::new();
    place.refused("rows.toml", &["model.from=./none"], 3, &["no such file or folder", "none"]);
    place.refused("rows.toml", &["model.from=rows.jsonl"], 3, &["rows.jsonl is a file, expected a folder"]);
    place.write("model/config.json", "{");
    place.refused("rows.toml", FROM, 3, &["model", "has no", "model.safetensors"]);
    place.write("model/model.safetensors", "");
    place.refused("rows.toml", FROM, 3, &["model/config.json: not JSON"]);
    fails(&mut place.kiln(&["generate", "model", "--prompt", "a"]), 3, &["model/config.json", "not JSON"]);
    place.write("model/config.json", b"{\"model_type\": \"gpt2\xff\"}");
    place.refused("rows.toml", FROM, 3, &["model/config.json", "expected UTF-8 text"]);
    fails(&mut place.kiln(&["generate", "model", "--prompt", "a"]), 3, &["model/config.json", "expected UTF-8 text"]);
    place.write("model/config.json", "[]");
    place.refused("rows.toml", FROM, 3, &["model/config.json", "expected a JSON object"]);
    place.write("model/config.json", "{}");
    place.refused("rows.toml", FROM, 3, &["model/config.json", "model_type is missing"]);
    model_with(&place, "bert-mlm", &json!({}));
    place.write("other.toml", "[run]\noutput_dir = \"run\"\n[model]\nkind = \"gpt2\"\nfrom = \"model\"\n[data]\ntask = \"clm\"\nformat = \"tokenized\"\ntrain = \"rows.jsonl\"\n");
    place.refused(
        "other.toml",
        &[],
        2,
        &["model.kind = \"gpt2\", but", "is a bert model", "help: set model.kind = \"bert\""],
    );
    place.refused("rows.toml", &["model.from=org/name"], 3, &["org/name"]); // the tests run without a network
}

#[test]
fn tokenizers_that_do_not_fit_the_model() {
    let place = Place::new();
    let parts =
        ["the tokenizer has 270 tokens, but the model's vocabulary has 100", "help: set model.vocab_size = 270"];
    place.refused("text.toml", &["model.vocab_size=100"], 2, &parts);

    // A tokenizer that exists, with a model that is too small for it.
    place.train("text.toml", &["run.output_dir=made"]);
    place.write("own.toml", crate::common::place::TEXT.replace("train_vocab_size = 270", "from = \"made/model\""));
    place.refused("own.toml", &["model.vocab_size=269"], 2, &["the tokenizer has 270 tokens", "vocabulary has 269"]);
    // Generation: the ids would be outside the embedding.
    let mut config = crate::common::json(&place.path("made/model/config.json"));
    assert_eq!(config["vocab_size"], 270);
    let tokenizer = std::fs::read(place.path("made/model/tokenizer.json")).unwrap();
    model_with(&place, "gpt2-lm", &json!({}));
    place.write("model/tokenizer.json", &tokenizer);
    fails(&mut place.kiln(&["generate", "model", "--prompt", "use mod let"]), 3, &["tokenizer", "211"]);
    config["vocab_size"] = 300.into();
    place.write("made/model/config.json", config.to_string());
    fails(
        &mut place.kiln(&["generate", "made/model", "--prompt", "a"]),
        3,
        &["wte.weight: expected [300, 8], got [270, 8]"],
    );
}

#[test]
fn tokenizers_on_which_the_library_panics_are_one_error() {
    let place = Place::new();
    place.train("text.toml", &["run.output_dir=made", "trainer.max_steps=1"]);
    place.write("own.toml", crate::common::place::TEXT.replace("train_vocab_size = 270", "from = \"made/model\""));
    let whole = crate::common::json(&place.path("made/model/tokenizer.json"));
    // GPT-2's class takes nothing but vocabulary and merges from the file.
    place.write("made/model/tokenizer_config.json", r#"{"tokenizer_class": "PreTrainedTokenizerFast"}"#);
    // Each of them made `kiln` end with 101: where the file is read, and where a text is encoded.
    let template = json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}], "pair": [],
                          "special_tokens": {}});
    let pieces = json!({"type": "FixedLength", "length": 0});
    for (part, spoil) in [("post_processor", template), ("pre_tokenizer", pieces)] {
        let mut spoiled = whole.clone();
        spoiled[part] = spoil.clone();
        place.write("made/model/tokenizer.json", spoiled.to_string());
        let output = place.config("train", "own.toml", &[]).output().unwrap();
        let all = crate::common::text(&output);
        assert_eq!(output.status.code(), Some(3), "{spoil}: {all}");
        let said = ["tokenizer cannot be used: the library `tokenizers` failed on it", "help: a file of the tokenizer"];
        assert!(said.iter().all(|part| all.matches(part).count() == 1) && !all.contains("panicked"), "{spoil}: {all}");
        fails(&mut place.kiln(&["generate", "made/model", "--prompt", "let 5"]), 3, &said);
    }
}

#[test]
fn tokenizers_that_cannot_be_read() {
    let place = Place::new();
    place.write("own.toml", crate::common::place::TEXT.replace("train_vocab_size = 270", "from = \"tokenizer\""));
    place.refused("own.toml", &[], 3, &["tokenizer"]);
    place.write("tokenizer/readme.txt", "");
    place.refused("own.toml", &[], 3, &["tokenizer", "tokenizer.json"]);
    place.write("tokenizer/tokenizer.json", "{\"version\": \"1.0\", \"model\": {");
    place.refused("own.toml", &[], 3, &["tokenizer/tokenizer.json: not a readable tokenizer"]);
    std::fs::remove_file(place.path("tokenizer/tokenizer.json")).unwrap();
    place.write("tokenizer/vocab.json", "{\"a\": 0}");
    place.write("tokenizer/merges.txt", "#version: 0.2\nq z\n");
    place.refused("own.toml", &[], 3, &["tokenizer/vocab.json: not a readable tokenizer"]);
    std::fs::remove_file(place.path("tokenizer/merges.txt")).unwrap();
    place.write("tokenizer/vocab.txt", "a\nb\n");
    place.refused("own.toml", &[], 3, &["tokenizer/vocab.txt", "[UNK] is missing"]);
}
