//! Configurations: presets against the published parameter counts, Hugging Face's fields and
//! aliases, and refusals.

use burn::tensor::Device;
use kiln_models::weights::parameters;
use kiln_models::{Head, Model, ModelConfig, ModelType, RopeParameters};
use serde_json::{Map, Value, json};

fn map(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn from_fields(kind: ModelType, fields: Value) -> kiln_core::Result<ModelConfig> {
    ModelConfig::from_fields(kind, &map(fields))
}

fn refused<T: std::fmt::Debug, E: std::fmt::Display + std::fmt::Debug>(result: Result<T, E>, part: &str) {
    let error = result.unwrap_err().to_string();
    assert!(error.contains(part), "{part:?} is not in {error}");
}

/// From shapes alone: no weight is drawn.
#[test]
fn presets_have_the_published_number_of_parameters() {
    for (kind, size, head, count) in [
        (ModelType::Gpt2, "small", Head::CausalLm, 124_439_808),
        (ModelType::Gpt2, "medium", Head::CausalLm, 354_823_168),
        (ModelType::Gpt2, "large", Head::CausalLm, 774_030_080),
        (ModelType::Gpt2, "xl", Head::CausalLm, 1_557_611_200),
        (ModelType::Gpt2, "distil", Head::CausalLm, 81_912_576),
        // bert-base-uncased with pooler has 109,482,240; the classifier of two labels adds 2 *
        // 768 + 2.
        (ModelType::Bert, "base", Head::SequenceClassification, 109_482_240 + 1538),
        (ModelType::Bert, "large", Head::SequenceClassification, 335_141_888 + 2050),
        // RobertaForSequenceClassification and DistilBertForSequenceClassification of two labels.
        (ModelType::Roberta, "base", Head::SequenceClassification, 124_647_170),
        (ModelType::Roberta, "large", Head::SequenceClassification, 355_361_794),
        (ModelType::DistilBert, "base", Head::SequenceClassification, 66_955_010),
        (ModelType::DistilBert, "base-cased", Head::SequenceClassification, 65_783_042),
        (ModelType::GptNeo, "125m", Head::CausalLm, 125_198_592),
        (ModelType::Camembert, "base", Head::SequenceClassification, 110_623_490),
        (ModelType::Camembert, "large", Head::SequenceClassification, 336_663_554),
        (ModelType::XlmRoberta, "base", Head::SequenceClassification, 278_045_186),
        (ModelType::XlmRoberta, "large", Head::SequenceClassification, 559_892_482),
        (ModelType::Electra, "small", Head::SequenceClassification, 13_549_314),
        (ModelType::Electra, "base", Head::SequenceClassification, 109_483_778),
        (ModelType::Electra, "large", Head::SequenceClassification, 335_143_938),
        (ModelType::Albert, "base", Head::SequenceClassification, 11_685_122),
        (ModelType::Albert, "large", Head::SequenceClassification, 17_686_018),
        (ModelType::Albert, "xlarge", Head::SequenceClassification, 58_728_962),
        (ModelType::Albert, "xxlarge", Head::SequenceClassification, 222_603_778),
        (ModelType::Llama, "smollm2-135m", Head::CausalLm, 134_515_008),
        (ModelType::Llama, "smollm2-360m", Head::CausalLm, 361_821_120),
        (ModelType::Llama, "smollm2-1.7b", Head::CausalLm, 1_711_376_384),
        (ModelType::Llama, "tinyllama-1.1b", Head::CausalLm, 1_100_048_384),
        (ModelType::Llama, "llama2-7b", Head::CausalLm, 6_738_415_616),
        (ModelType::Llama, "llama3.2-1b", Head::CausalLm, 1_235_814_400),
        (ModelType::Llama, "llama3.2-3b", Head::CausalLm, 3_212_749_824),
        (ModelType::Llama, "llama3.1-8b", Head::CausalLm, 8_030_261_248),
        (ModelType::Mistral, "7b", Head::CausalLm, 7_248_023_552),
        (ModelType::Qwen2, "0.5b", Head::CausalLm, 494_032_768),
        (ModelType::Qwen2, "1.5b", Head::CausalLm, 1_543_714_304),
        (ModelType::Qwen2, "3b", Head::CausalLm, 3_085_938_688),
        (ModelType::Qwen2, "7b", Head::CausalLm, 7_615_616_512),
        (ModelType::Qwen3, "0.6b", Head::CausalLm, 596_049_920),
        (ModelType::Qwen3, "1.7b", Head::CausalLm, 1_720_574_976),
        (ModelType::Qwen3, "4b", Head::CausalLm, 4_022_468_096),
        (ModelType::Qwen3, "8b", Head::CausalLm, 8_190_735_360),
        (ModelType::SmolLm3, "3b", Head::CausalLm, 3_075_098_624),
    ] {
        let config = ModelConfig::preset(kind, size).unwrap();
        let model = Model::new(&config, head, &Device::flex()).unwrap();
        let found: usize = parameters(&model).iter().map(|parameter| parameter.num_elements()).sum();
        assert_eq!(found, count, "{kind} {size}");
    }
    refused(ModelConfig::preset(ModelType::Gpt2, "base"), "expected one of distil, small, medium, large, xl");
}

#[test]
fn fields_and_their_generic_names() {
    let by_alias =
        json!({"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3, "max_position_embeddings": 9});
    let by_name = json!({"n_embd": 32, "n_head": 4, "n_layer": 3, "n_positions": 9});
    let config = from_fields(ModelType::Gpt2, by_alias).unwrap();
    assert_eq!(config, from_fields(ModelType::Gpt2, by_name).unwrap());
    assert_eq!((config.shape(), config.max_positions()), ((32, 3, 4, 128), 9));
    let wide = config.with_fields(&map(json!({"n_inner": 50}))).unwrap();
    assert_eq!(wide.shape(), (32, 3, 4, 50), "explicit fields lie on top of what was there");
    refused(from_fields(ModelType::Gpt2, json!({"n_layer": 1, "num_hidden_layers": 2})), "two ways");
    let by_alias = json!({"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3, "hidden_dim": 64});
    let by_name = json!({"dim": 32, "n_heads": 4, "n_layers": 3, "hidden_dim": 64});
    let config = from_fields(ModelType::DistilBert, by_alias).unwrap();
    assert_eq!(config, from_fields(ModelType::DistilBert, by_name).unwrap());
    assert_eq!((config.shape(), config.type_vocab_size()), ((32, 3, 4, 64), None));
    refused(from_fields(ModelType::DistilBert, json!({"dim": 32, "hidden_size": 64})), "two ways");
    // RoBERTa's table has a row for padding and one before it.
    let config = from_fields(ModelType::Roberta, json!({"max_position_embeddings": 20})).unwrap();
    assert_eq!((config.max_positions(), config.pad_token_id()), (18, Some(1)));
}

#[test]
fn a_number_of_labels_replaces_the_labels_that_were_there() {
    let base =
        r#"{"model_type": "bert", "id2label": {"0": "a", "1": "b", "2": "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}"#;
    let (base, _) = ModelConfig::from_json(base).unwrap();
    assert_eq!(base.labels().num_labels(), 3);
    let five = base.clone().with_fields(&map(json!({"num_labels": 5}))).unwrap();
    assert_eq!(five.labels().num_labels(), 5);
    refused(base.with_fields(&map(json!({"num_labels": 1, "id2label": {"0": "x"}}))), "two ways");
}

/// `transformers` goes by the list, and Kiln by what it was written out from.
#[test]
fn the_layers_of_gpt_neo_are_stated_once_or_alike() {
    let read = |fields: Value| {
        let mut all = json!({"model_type": "gpt_neo", "hidden_size": 8, "num_layers": 2, "num_heads": 2});
        all.as_object_mut().unwrap().extend(map(fields));
        ModelConfig::from_json(&all.to_string()).map(|(config, _)| config)
    };
    let types = json!([[["global", "local"], 1]]);
    let layers = json!(["global", "local"]);
    let config = read(json!({"attention_types": types, "attention_layers": layers})).unwrap();
    assert_eq!(config.to_json("")["attention_layers"], layers);
    let changed = config.with_fields(&map(json!({"attention_types": [[["local"], 2]]}))).unwrap();
    assert_eq!(changed.to_json("")["attention_layers"], json!(["local", "local"]));
    let other = json!({"attention_types": types, "attention_layers": ["local", "local"]});
    refused(read(other), "attention_types says that attention_layers are [\"global\",\"local\"], and the file says");
}

/// Where two fields say which label is which, they agree or both are named.
#[test]
fn labels_are_stated_once_or_alike() {
    let opened = |fields: Value, head: Head| {
        let mut all = json!({"model_type": "bert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2});
        all.as_object_mut().unwrap().extend(map(fields));
        let (config, _) = ModelConfig::from_json(&all.to_string())?;
        Model::new(&config, head, &Device::flex()).map(|_| config.labels().num_labels())
    };
    let names = json!({"0": "no", "1": "yes"});
    for (fields, labels) in [
        (json!({"id2label": names, "label2id": {"no": 0, "yes": 1}, "num_labels": 2}), 2),
        (json!({"id2label": names, "label2id": null}), 2),
        (json!({"num_labels": 3}), 3),
    ] {
        assert_eq!(opened(fields, Head::SequenceClassification).unwrap(), labels);
    }
    for (fields, part) in [
        (
            json!({"id2label": names, "label2id": {"no": 1, "yes": 0}}),
            "id2label calls the label 0 \"no\", and label2id gives \"no\" the id 1",
        ),
        (
            json!({"id2label": names, "label2id": {"no": 0}}),
            "id2label calls the label 1 \"yes\", and label2id gives \"yes\" no id",
        ),
        (
            json!({"id2label": names, "label2id": {"no": 0, "yes": 1, "perhaps": 2}}),
            "label2id gives \"perhaps\" the id 2",
        ),
        (
            json!({"id2label": {"0": "no", "2": "yes"}}),
            "expected a name for each id from 0 to 1, got none for 1; it has 0, 2",
        ),
        (json!({"id2label": {"1": "no", "2": "yes"}}), "got none for 0; it has 1, 2"),
        (json!({"id2label": {"0": "no", "00": "yes"}}), "got none for 1; it has 0, 00"),
    ] {
        for head in [Head::SequenceClassification, Head::TokenClassification] {
            refused(opened(fields.clone(), head), part);
        }
        // A head without labels does not read them.
        opened(fields, Head::MaskedLm).unwrap();
    }
    let two = json!({"id2label": names, "num_labels": 3});
    refused(opened(two, Head::MaskedLm), "num_labels is 3 and id2label names 2");
}

#[test]
fn a_file_is_read_and_written_back() {
    let text = r#"{"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 8, "n_inner": null, "eos_token_id": 5,
        "scale_attn_by_inverse_layer_idx": false, "summary_type": "cls_index", "invented": 3}"#;
    let (config, unknown) = ModelConfig::from_json(text).unwrap();
    assert_eq!(unknown, ["invented"]);
    assert_eq!((config.shape(), config.eos_token_ids()), ((8, 1, 2, 32), vec![5]));
    let written = config.to_json("GPT2LMHeadModel");
    assert_eq!(
        (&written["architectures"][0], &written["summary_type"]),
        (&json!("GPT2LMHeadModel"), &json!("cls_index"))
    );
    let (again, _) = ModelConfig::from_json(&written.to_string()).unwrap();
    assert_eq!(again.honoured_json(), config.honoured_json());
}

#[test]
fn ids_that_end_a_text_are_ids() {
    let read = |fields: Value| {
        let mut all = json!({"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 131});
        all.as_object_mut().unwrap().extend(map(fields));
        ModelConfig::from_json(&all.to_string()).map(|(config, _)| config)
    };
    for (eos, expected) in [
        (json!(null), vec![]),
        (json!(130), vec![130]),
        (json!([7, 130]), vec![7, 130]),
        // transformers writes this id into the file of a small model without one of its own: no
        // token of the vocabulary has it.
        (json!(50256), vec![50256]),
    ] {
        assert_eq!(read(json!({"eos_token_id": eos})).unwrap().eos_token_ids(), expected, "{eos}");
    }
    assert_eq!(read(json!({"vocab_size": 50257, "eos_token_id": 50256})).unwrap().eos_token_ids(), [50256]);
    for eos in [json!(131), json!(4_294_967_301u64), json!(-1), json!(1.5), json!("5"), json!([5, 131]), json!([[5]])] {
        refused(read(json!({"eos_token_id": eos})), "eos_token_id: expected ids below vocab_size (131), got ");
    }
    // An encoder generates nothing, but what is no id at all is a mistake there too.
    let bert = |eos: Value| {
        let text = json!({"model_type": "bert", "vocab_size": 20, "eos_token_id": eos}).to_string();
        ModelConfig::from_json(&text).map(|(config, _)| config)
    };
    assert_eq!(bert(json!(102)).unwrap().eos_token_ids(), [102]);
    refused(bert(json!(4_294_967_301u64)), "eos_token_id: expected ids of tokens");
}

#[test]
fn what_kiln_does_not_compute_is_refused() {
    for (kind, fields, part) in [
        (ModelType::Gpt2, json!({"activation_function": "relu"}), "activation_function: expected \"gelu_new\""),
        (ModelType::Gpt2, json!({"scale_attn_by_inverse_layer_idx": true}), "by the layer index is not implemented"),
        (ModelType::Gpt2, json!({"add_cross_attention": true}), "cross-attention is not implemented"),
        (ModelType::Gpt2, json!({"tie_word_embeddings": 1}), "tie_word_embeddings: expected true or false, got 1"),
        (ModelType::Bert, json!({"position_embedding_type": "relative_key"}), "relative positions are not implemented"),
        (ModelType::Bert, json!({"is_decoder": true}), "a causal encoder is not implemented"),
        (ModelType::Bert, json!({"hidden_act": "swish"}), "got \"swish\""),
        (ModelType::Roberta, json!({"max_position_embeddings": 2}), "expected more than pad_token_id + 1 = 2"),
        (ModelType::Roberta, json!({"pad_token_id": null}), "roberta counts its positions from it"),
        (ModelType::XlmRoberta, json!({"pad_token_id": null}), "xlm-roberta counts its positions from it"),
        (ModelType::DistilBert, json!({"sinusoidal_pos_embds": true}), "sinusoidal positions are not implemented"),
        (ModelType::DistilBert, json!({"dim": 10, "n_heads": 3}), "dim (10) is not divisible by n_heads (3)"),
        (ModelType::Gpt2, json!({"n_layers": 3}), "did you mean \"n_layer\"?"),
        (ModelType::Gpt2, json!({"n_head": 5}), "n_embd (768) is not divisible by n_head (5)"),
        (ModelType::Gpt2, json!({"n_embd": 0}), "n_embd: expected a positive number, got 0"),
        (ModelType::Gpt2, json!({"n_embd": -8}), "n_embd: expected a whole number that is not negative, got -8"),
        (ModelType::Gpt2, json!({"n_embd": "8"}), "n_embd: expected a whole number that is not negative, got \"8\""),
        (ModelType::Gpt2, json!({"n_embd": i64::MAX}), "n_embd: expected at most 1048576"),
        (ModelType::DistilBert, json!({"n_layers": i64::MAX}), "n_layers: expected at most 4096"),
        (ModelType::Gpt2, json!({"scale_attn_weights": 1}), "scale_attn_weights: expected true or false, got 1"),
        (ModelType::Gpt2, json!({"resid_pdrop": 1.0}), "resid_pdrop: expected a number in [0, 1), got 1"),
        (ModelType::Bert, json!({"pad_token_id": 40_000}), "pad_token_id: expected an id below vocab_size (30522)"),
        (ModelType::Bert, json!({"num_labels": 0}), "num_labels: expected at least 1, got 0"),
    ] {
        refused(from_fields(kind, fields), part);
    }
    refused(ModelConfig::from_json("{").map(|(config, _)| config), "not JSON");
    refused(ModelConfig::from_json("{}").map(|(config, _)| config), "model_type is missing");
    refused(ModelConfig::from_json(r#"{"model_type": "t5"}"#).map(|(config, _)| config), "got \"t5\"");
}

/// The rotary frequencies of `config` with `fields` on top.
fn changed_rope(config: ModelConfig, fields: Value) -> RopeParameters {
    match config.with_fields(&map(fields)).unwrap() {
        ModelConfig::Llama(config) => config.rope_parameters,
        other => panic!("{other:?}"),
    }
}

/// The rotary frequencies of a config of `kind`.
fn rope(kind: ModelType, fields: Value) -> RopeParameters {
    let ModelConfig::Llama(config) = from_fields(kind, fields).unwrap() else { panic!("{kind} is a variant of Llama") };
    config.rope_parameters
}

#[test]
fn rotary_frequencies_have_two_spellings() {
    let theta = |fields: Value| rope(ModelType::Llama, fields).rope_theta;
    assert_eq!((theta(json!({})), theta(json!({"rope_theta": 5e5}))), (1e4, 5e5));
    assert_eq!(theta(json!({"rope_theta": 5e5, "rope_scaling": null})), 5e5);
    assert_eq!(rope(ModelType::SmolLm3, json!({})).rope_theta, 2e6);
    // The object's own base stands before the one beside it, as in transformers.
    assert_eq!(theta(json!({"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": 3}})), 3.0);
    let old = json!({"rope_theta": 7, "rope_scaling": {"type": "linear", "factor": 2}});
    let new = json!({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0}});
    assert_eq!(rope(ModelType::Mistral, old), rope(ModelType::Mistral, new.clone()));
    // Explicit fields lie on top of what was there.
    let config = from_fields(ModelType::Qwen2, new).unwrap();
    let changed = changed_rope(config.clone(), json!({"rope_theta": 9}));
    assert_eq!((changed.rope_type.as_str(), changed.factor, changed.rope_theta), ("linear", Some(2.0), 9.0));
    // A null takes the scaling away and leaves the base.
    let plain = changed_rope(config, json!({"rope_scaling": null}));
    assert_eq!((plain.rope_type.as_str(), plain.factor, plain.rope_theta), ("default", None, 7.0));
    // What is set later is no sequence of the pre-training.
    let yarn = json!({"max_position_embeddings": 64, "rope_scaling": {"type": "yarn", "factor": 2, "truncate": null}});
    let yarn = changed_rope(from_fields(ModelType::Qwen3, yarn).unwrap(), json!({"max_position_embeddings": 128}));
    assert_eq!((yarn.original_max_position_embeddings, yarn.truncate), (Some(64), Some(false)));

    let refused = |fields: Value, part: &str| refused(from_fields(ModelType::Llama, fields), part);
    let scaling = |value: Value| json!({"rope_scaling": value});
    refused(scaling(json!({"type": "dynamic", "factor": 2})), "got \"dynamic\"; other scalings of positions");
    refused(scaling(json!({"rope_type": "longrope"})), "got \"longrope\"");
    refused(scaling(json!({"rope_type": "yarn"})), "factor is missing, which the rope_type \"yarn\" needs");
    refused(
        scaling(json!({"rope_type": "default", "partial_rotary_factor": 0.5})),
        "partial_rotary_factor: expected 1.0, got 0.5",
    );
    refused(json!({"partial_rotary_factor": 0.25}), "on a part of each head are not implemented");
    refused(
        scaling(json!({"rope_type": "default", "long_factor": [1]})),
        "rope_parameters: expected one of `rope_type`",
    );
    refused(scaling(json!("linear")), "rope_scaling: expected an object with rope_type, got \"linear\"");
    refused(json!({"rope_scaling": {}, "rope_parameters": {}}), "two ways");
    refused(scaling(json!({"factor": 8.0})), "the rope_type \"default\" does not read factor");
    let linear = json!({"type": "linear", "factor": 8.0, "beta_fast": 32});
    refused(scaling(linear), "the rope_type \"linear\" does not read beta_fast");
    let llama3 = json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4});
    refused(scaling(llama3), "high_freq_factor: expected a number above low_freq_factor (4), got 4");
}

/// The widths of a variant of Llama: of a head, and the number of heads of keys and values.
fn head_widths(config: kiln_core::Result<ModelConfig>) -> (usize, usize) {
    let ModelConfig::Llama(config) = config.unwrap() else { panic!("a variant of Llama") };
    (config.head_dim(), config.kv_heads())
}

#[test]
fn the_width_of_a_head_stays_where_it_is_stated_and_follows_where_it_is_not() {
    let small = json!({"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 4});
    let on = |config: ModelConfig| head_widths(config.with_fields(&map(small.clone())));
    assert_eq!(on(from_fields(ModelType::Qwen3, json!({})).unwrap()), (128, 4));
    assert_eq!(on(from_fields(ModelType::Qwen2, json!({})).unwrap()), (32, 4));
    // Llama 2 7B as transformers writes it, with numbers that follow from others.
    let file = json!({"model_type": "llama", "head_dim": 128, "num_key_value_heads": 32}).to_string();
    let (file, _) = ModelConfig::from_json(&file).unwrap();
    assert_eq!(on(file.clone()), (128, 4));
    refused(
        file.with_fields(&map(json!({"num_attention_heads": 16}))),
        "num_attention_heads (16) is not divisible by num_key_value_heads (32)",
    );
    // The width of a head that is stated may be the quotient, rounded down.
    let uneven = json!({"hidden_size": 10, "num_attention_heads": 4, "head_dim": 2, "num_key_value_heads": 4});
    assert_eq!(head_widths(from_fields(ModelType::Qwen3, uneven.clone())), (2, 4));
    refused(from_fields(ModelType::Llama, uneven), "hidden_size (10) is not divisible by num_attention_heads (4)");
}

#[test]
fn windows_and_layers_without_positions() {
    let layers = |kind: ModelType, fields: Value| {
        let mut all = json!({"num_hidden_layers": 4});
        all.as_object_mut().unwrap().extend(map(fields));
        match from_fields(kind, all).unwrap() {
            ModelConfig::Llama(config) => (config.window(), config.layers_are_local()),
            other => panic!("{other:?}"),
        }
    };
    let (t, f) = (true, false);
    assert_eq!(layers(ModelType::Llama, json!({})), (None, vec![f; 4]));
    assert_eq!(layers(ModelType::Mistral, json!({})), (Some(4096), vec![t; 4]));
    assert_eq!(layers(ModelType::Mistral, json!({"sliding_window": null})), (None, vec![f; 4]));
    assert_eq!(layers(ModelType::Qwen2, json!({"sliding_window": 9})), (None, vec![f; 4]));
    let late = json!({"use_sliding_window": true, "max_window_layers": 3});
    assert_eq!(layers(ModelType::Qwen3, late), (Some(4096), vec![f, f, f, t]));
    let types = ["full_attention", "sliding_attention", "full_attention", "full_attention"];
    let stated = json!({"use_sliding_window": true, "sliding_window": 5, "layer_types": types});
    assert_eq!(layers(ModelType::Qwen2, stated), (Some(5), vec![f, t, f, f]));
    let smol = json!({"use_sliding_window": true, "sliding_window": 5, "no_rope_layers": [1, 0, 0, 1]});
    assert_eq!(layers(ModelType::SmolLm3, smol), (Some(5), vec![f, t, t, f]));

    refused(from_fields(ModelType::Llama, json!({"sliding_window": 5})), "sliding_window: expected null, got 5");
    let types = json!({"num_hidden_layers": 1, "layer_types": ["sliding_attention"]});
    refused(from_fields(ModelType::Qwen2, types), "expected no \"sliding_attention\" without a window");
    refused(
        from_fields(ModelType::SmolLm3, json!({"no_rope_layers": [1]})),
        "expected as many as num_hidden_layers (36)",
    );
    refused(
        from_fields(ModelType::Qwen3, json!({"num_key_value_heads": 5})),
        "is not divisible by num_key_value_heads",
    );
    refused(
        from_fields(ModelType::Llama, json!({"hidden_act": "gelu"})),
        "hidden_act: expected \"silu\", got \"gelu\"",
    );
    refused(from_fields(ModelType::Llama, json!({"head_dim": 7})), "head_dim: expected an even number");
    refused(from_fields(ModelType::Mistral, json!({"hidden_size": 12})), "hidden_size (12) is not divisible");
}

#[test]
fn a_config_of_llama_is_read_as_it_was_written() {
    for (kind, size) in [
        (ModelType::Llama, "llama3.2-1b"),
        (ModelType::Mistral, "7b"),
        (ModelType::Qwen2, "0.5b"),
        (ModelType::Qwen3, "0.6b"),
        (ModelType::SmolLm3, "3b"),
    ] {
        let config = ModelConfig::preset(kind, size).unwrap().with_fields(&Map::new()).unwrap();
        let json = config.to_json("");
        let (again, unknown) = ModelConfig::from_json(&json.to_string()).unwrap();
        assert_eq!((again.to_json(""), unknown), (json.clone(), Vec::new()), "{kind}");
        let ModelConfig::Llama(config) = config else { panic!("{kind} is a variant of Llama") };
        assert_eq!(json["head_dim"], config.head_dim());
        assert_eq!(json["num_key_value_heads"], config.kv_heads());
    }
}
