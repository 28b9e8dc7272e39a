//! The variants of BERT and Llama through the binary: trained from `model.kind` with fields of
//! their own, and from a folder that transformers wrote; what is saved has their names. Their
//! logits are tested in `tests/oracle/forward.rs`.

use std::path::Path;

use crate::common::messages::messages;
use crate::common::{fixture, json, kiln, succeeds, tensors};

const ROBERTA: &str = "kind = \"roberta\"\nnum_hidden_layers = 1\nnum_attention_heads = 2\nhidden_size = 8\n\
                       intermediate_size = 16\nmax_position_embeddings = 10\ntype_vocab_size = 1\nvocab_size = 131\n";
const ELECTRA: &str = "kind = \"electra\"\nnum_hidden_layers = 1\nnum_attention_heads = 2\nhidden_size = 8\n\
                       embedding_size = 4\nintermediate_size = 16\nmax_position_embeddings = 8\nvocab_size = 131\n";
const DISTILBERT: &str = "kind = \"distilbert\"\nn_layers = 1\nn_heads = 2\ndim = 8\nhidden_dim = 16\n\
                          max_position_embeddings = 8\nvocab_size = 131\n";

/// A variant of Llama.
fn llama(kind: &str, more: &str) -> String {
    format!(
        "kind = \"{kind}\"\nnum_hidden_layers = 2\nnum_attention_heads = 4\nnum_key_value_heads = 2\nhidden_size = 8\n\
         intermediate_size = 12\nmax_position_embeddings = 8\nvocab_size = 131\npad_token_id = 0\nnum_labels = 3\n{more}"
    )
}

fn train(folder: &Path, model: &str, task: &str) -> std::process::Command {
    let row = |i: usize| match task {
        "mlm" => format!("{{\"input_ids\": [5, {}, 7, 8], \"labels\": [-100, 9, -100, 3]}}\n", 9 + i),
        "clm" => format!("{{\"input_ids\": [5, {}, 7, 8]}}\n", 9 + i),
        "token-classification" => format!("{{\"input_ids\": [5, {}, 7, 8], \"labels\": [0, 2, -100, 1]}}\n", 9 + i),
        _ => format!("{{\"input_ids\": [5, {}, 7, 8], \"labels\": {}}}\n", 9 + i, i % 3),
    };
    std::fs::write(folder.join("data.jsonl"), (0..12).map(row).collect::<String>()).unwrap();
    let config = format!(
        "[run]\noutput_dir = \"run\"\non_existing = \"overwrite\"\n[model]\n{model}\n[data]\ntask = \"{task}\"\nformat = \
         \"tokenized\"\ntrain = \"data.jsonl\"\n[trainer]\nmax_steps = 2\n[device]\nkind = \"cpu\"\n"
    );
    std::fs::write(folder.join("config.toml"), config).unwrap();
    let mut command = kiln(folder);
    command.args(["train", "config.toml"]);
    command
}

#[test]
fn variants_are_trained_and_saved_under_their_own_names() {
    let folder = tempfile::tempdir().unwrap();
    let from = |case: &str| format!("from = {:?}", fixture(case).join("model"));
    for (model, task, kind, architecture, tensor) in [
        (ROBERTA.to_string(), "mlm", "roberta", "RobertaForMaskedLM", "lm_head.layer_norm.weight"),
        (DISTILBERT.to_string(), "mlm", "distilbert", "DistilBertForMaskedLM", "vocab_transform.weight"),
        (ROBERTA.replace("roberta", "camembert"), "mlm", "camembert", "CamembertForMaskedLM", "lm_head.dense.weight"),
        (ROBERTA.replace("roberta", "xlm-roberta"), "mlm", "xlm-roberta", "XLMRobertaForMaskedLM", "lm_head.bias"),
        (
            "kind = \"gpt_neo\"\nnum_layers = 2\nnum_heads = 2\nhidden_size = 8\nmax_position_embeddings = 8\nvocab_size = 131\n\
             attention_types = [[[\"global\", \"local\"], 1]]\nwindow_size = 2\nnum_labels = 3"
                .into(),
            "sequence-classification",
            "gpt_neo",
            "GPTNeoForSequenceClassification",
            "transformer.h.1.attn.attention.q_proj.weight",
        ),
        (ELECTRA.into(), "mlm", "electra", "ElectraForMaskedLM", "generator_predictions.dense.weight"),
        (
            ELECTRA.replace("electra", "albert"),
            "mlm",
            "albert",
            "AlbertForMaskedLM",
            "albert.encoder.albert_layer_groups.0.albert_layers.0.full_layer_layer_norm.weight",
        ),
        (
            format!("{}\nnum_labels = 3", from("albert-mlm")),
            "sequence-classification",
            "albert",
            "AlbertForSequenceClassification",
            "albert.pooler.weight",
        ),
        (
            format!("{}\nnum_labels = 3", from("electra-mlm")),
            "sequence-classification",
            "electra",
            "ElectraForSequenceClassification",
            "classifier.out_proj.weight",
        ),
        (
            format!("{DISTILBERT}num_labels = 3"),
            "sequence-classification",
            "distilbert",
            "DistilBertForSequenceClassification",
            "pre_classifier.weight",
        ),
        (llama("llama", ""), "clm", "llama", "LlamaForCausalLM", "lm_head.weight"),
        (llama("mistral", "sliding_window = 2"), "clm", "mistral", "MistralForCausalLM", "model.norm.weight"),
        (
            llama("qwen2", "tie_word_embeddings = true"),
            "clm",
            "qwen2",
            "Qwen2ForCausalLM",
            "model.layers.1.self_attn.k_proj.bias",
        ),
        (
            llama("qwen3", "head_dim = 6"),
            "sequence-classification",
            "qwen3",
            "Qwen3ForSequenceClassification",
            "model.layers.0.self_attn.q_norm.weight",
        ),
        (
            llama("smollm3", "no_rope_layer_interval = 2"),
            "token-classification",
            "smollm3",
            "SmolLM3ForTokenClassification",
            "score.bias",
        ),
        // Another head than the folder's.
        (
            format!("{}\nnum_labels = 3\npad_token_id = 0", from("qwen2-lm")),
            "sequence-classification",
            "qwen2",
            "Qwen2ForSequenceClassification",
            "score.weight",
        ),
        (from("roberta-mlm"), "mlm", "roberta", "RobertaForMaskedLM", "roberta.embeddings.LayerNorm.weight"),
        // Another head than the folder's: it is new, and the folder's is left out.
        (
            format!("{}\nnum_labels = 3", from("roberta-mlm")),
            "sequence-classification",
            "roberta",
            "RobertaForSequenceClassification",
            "classifier.out_proj.weight",
        ),
        (
            from("distilbert-classification"),
            "sequence-classification",
            "distilbert",
            "DistilBertForSequenceClassification",
            "distilbert.transformer.layer.0.ffn.lin1.weight",
        ),
    ] {
        succeeds(&mut train(folder.path(), &model, task));
        let saved = folder.path().join("run/model");
        let config = json(&saved.join("config.json"));
        assert_eq!((&config["model_type"], &config["architectures"][0]), (&kind.into(), &architecture.into()));
        let weights = tensors(&saved.join("model.safetensors"));
        assert!(weights.contains_key(tensor), "{tensor} is not in {:?}", weights.keys());
        let without = ["distilbert", "gpt_neo", "llama", "mistral", "qwen2", "qwen3", "smollm3"];
        assert_eq!(weights.keys().any(|name| name.contains("token_type")), !without.contains(&kind));
    }
}

/// The default padding of SmolLM3 is no id of a small vocabulary, and the end of a text is to be
/// learnt.
#[test]
fn a_new_smollm3_takes_the_vocabulary_and_the_padding_of_its_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("train.txt"), "one two three four five six\n".repeat(40)).unwrap();
    let model = llama("smollm3", "").replace("vocab_size = 131\npad_token_id = 0\n", "");
    let config = format!(
        "[run]\noutput_dir = \"run\"\n[model]\n{model}\n[data]\ntask = \"clm\"\ntrain = [\"train.txt\"]\ndocuments = \
         \"line\"\nblock_size = 8\n[tokenizer]\ntrain_vocab_size = 270\n[trainer]\nmax_steps = 1\n[device]\nkind = \"cpu\"\n"
    );
    std::fs::write(folder.path().join("config.toml"), config).unwrap();
    succeeds(kiln(folder.path()).args(["train", "config.toml"]));
    let saved = json(&folder.path().join("run/model/config.json"));
    assert!(saved["vocab_size"].as_u64().unwrap() <= 270 && saved["pad_token_id"].is_null(), "{saved}");
}

#[test]
fn fields_of_another_family_are_refused() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    let model = format!("{DISTILBERT}type_vocab_size = 2");
    messages.fails(train(folder.path(), &model, "mlm"), 2);
    let model = ROBERTA.replace("max_position_embeddings = 10", "max_position_embeddings = 5");
    messages.fails(train(folder.path(), &model, "mlm"), 3);
    let model = ROBERTA.replace("roberta", "roburta");
    messages.fails(train(folder.path(), &model, "mlm"), 2);
}
