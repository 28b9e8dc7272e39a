//! Models that cannot be: shapes that do not fit, fields of Hugging Face's `config.json` that Kiln
//! does not honour, and tokenizers that belong to another model.

use serde_json::{Value, json};

use crate::common::fixture;
use crate::common::messages::messages;
use crate::common::place::Place;

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
    let place = Place::new().recording(messages!());
    place.refused("text.toml", &["model.n_head=3"], 2);
    let bert = ["model.kind=bert", "model.hidden_size=10", "model.num_attention_heads=4"];
    place.write(
        "bert.toml",
        "[run]\noutput_dir = \"run\"\n[data]\ntask = \"mlm\"\nformat = \"tokenized\"\ntrain = \"rows.jsonl\"\n",
    );
    place.refused("bert.toml", &bert, 2);
}

/// Two fields say which label is which: they agree, or the message names both and the file.
#[test]
fn labels_that_disagree_are_refused_by_both_names() {
    let place = Place::new().recording(messages!());
    place.write("batch.json", "{\"input_ids\": [[1]]}");
    let forward =
        ["forward", "model", "--task", "sequence-classification", "--batch", "batch.json", "--out", "out.safetensors"];
    let names = json!({"0": "a", "1": "b", "2": "c"});
    model_with(&place, "bert-classification", &json!({"id2label": names, "label2id": {"a": 0, "b": 2, "c": 1}}));
    place.fails(place.kiln(&forward), 3);
    // The advice, followed.
    model_with(&place, "bert-classification", &json!({"id2label": names, "label2id": null}));
    crate::common::succeeds(&mut place.kiln(&forward));
}

#[test]
fn fields_of_hugging_face_that_are_refused() {
    let place = Place::new().recording(messages!());
    for field in [
        json!({"add_cross_attention": true}),
        json!({"activation_function": "relu"}),
        json!({"scale_attn_by_inverse_layer_idx": true}),
        json!({"is_encoder_decoder": true}),
        json!({"pruned_heads": {"0": [1]}}),
        json!({"quantization_config": {"bits": 4}}),
        json!({"n_embd": "wide"}),
        json!({"n_layer": -1}),
        json!({"n_head": 5}),
        json!({"problem_type": "ranking"}),
        json!({"pad_token_id": 211}),
        json!({"model_type": "gemma"}),
        json!({"model_type": 2}),
    ] {
        model_with(&place, "gpt2-lm", &field);
        place.refused("rows.toml", FROM, 3);
        place.fails(place.kiln(&["generate", "model", "--prompt", "a"]), 3);
    }
    for field in [
        json!({"position_embedding_type": "relative_key"}),
        json!({"is_decoder": true}),
        json!({"hidden_act": "silu"}),
        json!({"add_cross_attention": true}),
    ] {
        model_with(&place, "bert-mlm", &field);
        place.write("batch.json", "{\"input_ids\": [[1]]}");
        let forward = ["forward", "model", "--task", "mlm", "--batch", "batch.json", "--out", "out.safetensors"];
        place.fails(place.kiln(&forward), 3);
    }
    place.refused("text.toml", &["model.scale_attn_by_inverse_layer_idx=true"], 2);
    place.refused("text.toml", &["model.activation_function=swish"], 2);
}

#[test]
fn model_folders_that_are_no_model() {
    let place = Place::new().recording(messages!());
    place.refused("rows.toml", &["model.from=./none"], 3);
    place.refused("rows.toml", &["model.from=rows.jsonl"], 3);
    place.write("model/config.json", "{");
    place.refused("rows.toml", FROM, 3);
    place.write("model/model.safetensors", "");
    place.refused("rows.toml", FROM, 3);
    place.fails(place.kiln(&["generate", "model", "--prompt", "a"]), 3);
    place.write("model/config.json", b"{\"model_type\": \"gpt2\xff\"}");
    place.refused("rows.toml", FROM, 3);
    place.fails(place.kiln(&["generate", "model", "--prompt", "a"]), 3);
    place.write("model/config.json", "[]");
    place.refused("rows.toml", FROM, 3);
    place.write("model/config.json", "{}");
    place.refused("rows.toml", FROM, 3);
    model_with(&place, "bert-mlm", &json!({}));
    place.write("other.toml", "[run]\noutput_dir = \"run\"\n[model]\nkind = \"gpt2\"\nfrom = \"model\"\n[data]\ntask = \"clm\"\nformat = \"tokenized\"\ntrain = \"rows.jsonl\"\n");
    place.refused("other.toml", &[], 2);
    place.refused("rows.toml", &["model.from=org/name"], 3); // the tests run without a network
}

#[test]
fn tokenizers_that_do_not_fit_the_model() {
    let place = Place::new().recording(messages!());
    place.refused("text.toml", &["model.vocab_size=100"], 2);

    // A tokenizer that exists, with a model that is too small for it.
    place.train("text.toml", &["run.output_dir=made"]);
    place.write("own.toml", crate::common::place::TEXT.replace("train_vocab_size = 270", "from = \"made/model\""));
    place.refused("own.toml", &["model.vocab_size=269"], 2);
    // Generation: the ids would be outside the embedding.
    let mut config = crate::common::json(&place.path("made/model/config.json"));
    assert_eq!(config["vocab_size"], 270);
    let tokenizer = std::fs::read(place.path("made/model/tokenizer.json")).unwrap();
    model_with(&place, "gpt2-lm", &json!({}));
    place.write("model/tokenizer.json", &tokenizer);
    place.fails(place.kiln(&["generate", "model", "--prompt", "use mod let"]), 3);
    config["vocab_size"] = 300.into();
    place.write("made/model/config.json", config.to_string());
    place.fails(place.kiln(&["generate", "made/model", "--prompt", "a"]), 3);
}

#[test]
fn tokenizers_on_which_the_library_panics_are_one_error() {
    let place = Place::new().recording(messages!());
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
        place.untrained("own.toml", &[], 3);
        place.fails(place.kiln(&["generate", "made/model", "--prompt", "let 5"]), 3);
    }
}

#[test]
fn tokenizers_that_cannot_be_read() {
    let place = Place::new().recording(messages!());
    place.write("own.toml", crate::common::place::TEXT.replace("train_vocab_size = 270", "from = \"tokenizer\""));
    place.refused("own.toml", &[], 3);
    place.write("tokenizer/readme.txt", "");
    place.refused("own.toml", &[], 3);
    place.write("tokenizer/tokenizer.json", "{\"version\": \"1.0\", \"model\": {");
    place.refused("own.toml", &[], 3);
    std::fs::remove_file(place.path("tokenizer/tokenizer.json")).unwrap();
    place.write("tokenizer/vocab.json", "{\"a\": 0}");
    place.write("tokenizer/merges.txt", "#version: 0.2\nq z\n");
    place.refused("own.toml", &[], 3);
    std::fs::remove_file(place.path("tokenizer/merges.txt")).unwrap();
    place.write("tokenizer/vocab.txt", "a\nb\n");
    place.refused("own.toml", &[], 3);
}
