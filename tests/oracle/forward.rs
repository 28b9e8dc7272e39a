//! `kiln forward` against `transformers`: logits, loss and every gradient of the oracle cases
//! (made by tests/fixtures/make_extra_oracle.py and its like; float32, no dropout).

use serde_json::json;

use crate::common::{device, fails, fixture, kiln, kiln_on_device, l2, relative_l2, succeeds, tensors};

/// Logits are sums of a few dozen products of order 1, so f32 rounding leaves them equal to about
/// 1e-6; 1e-4 is the project's promise. Losses are means of them; gradients pass through two layers
/// more.
const LOGITS_ABSOLUTE: f32 = 1e-4;
const LOSS_RELATIVE: f32 = 1e-5;
const GRADIENT_RELATIVE: f64 = 1e-3;
/// Gradients that are zero in exact arithmetic (a key's bias shifts all scores of a row alike) are
/// rounding noise on both sides; their norm stays below this, against norms of 1e-3 and more of all
/// others.
const GRADIENT_ZERO: f64 = 1e-6;

fn check(case: &str, task: &str) {
    for compiler in ["native", "compiled"] {
        check_mode(case, task, compiler);
    }
}

fn check_mode(case: &str, task: &str, compiler: &str) {
    let folder = tempfile::tempdir().unwrap();
    let (case, out) = (fixture(case), folder.path().join("out.safetensors"));
    let mut command = kiln_on_device(folder.path());
    command.arg("forward").arg(case.join("model")).arg("--batch").arg(case.join("batch.json"));
    command.args(["--device", &device(), "--compiler", compiler, "--task", task, "--gradients", "--out"]);
    succeeds(command.arg(&out));
    let (got, expected) = (tensors(&out), tensors(&case.join("expected.safetensors")));
    assert_eq!(got.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, (shape, values)) in &expected {
        let (got_shape, got) = &got[name];
        assert_eq!(got_shape, shape, "{name}");
        if name == "loss" {
            assert!((got[0] / values[0] - 1.0).abs() < LOSS_RELATIVE, "loss {} against {}", got[0], values[0]);
        } else if name.ends_with("logits") {
            let worst = got.iter().zip(values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < LOGITS_ABSOLUTE, "{name}: off by {worst}");
        } else if l2(values.iter().map(|v| f64::from(*v))) < GRADIENT_ZERO {
            assert!(l2(got.iter().map(|v| f64::from(*v))) < GRADIENT_ZERO, "{name}: expected zero");
        } else {
            let off = relative_l2(got, values);
            assert!(off < GRADIENT_RELATIVE, "{name}: off by {off}");
        }
    }
}

#[test]
fn gpt2_lm() {
    check("gpt2-lm", "clm");
}

#[test]
fn gpt2_lm_padded() {
    check("gpt2-lm-padded", "clm");
}

#[test]
fn gpt2_lm_packed() {
    check("gpt2-lm-packed", "clm");
}

#[test]
fn bert_mlm() {
    check("bert-mlm", "mlm");
}

#[test]
fn bert_classification() {
    check("bert-classification", "sequence-classification");
}

#[test]
fn bert_regression() {
    check("bert-regression", "regression");
}

#[test]
fn bert_qa() {
    check("bert-qa", "question-answering");
}

#[test]
fn gpt2_classification_reads_the_last_valid_token() {
    check("gpt2-classification", "sequence-classification");
}

#[test]
fn gpt2_with_a_feed_forward_width_of_its_own() {
    check("gpt2-n-inner", "clm");
}

#[test]
fn bert_with_another_epsilon_and_more_token_types() {
    check("bert-eps-types", "mlm");
}

#[test]
fn roberta_mlm_counts_positions_over_tokens() {
    check("roberta-mlm", "mlm");
}

#[test]
fn roberta_classification() {
    check("roberta-classification", "sequence-classification");
}

#[test]
fn roberta_qa() {
    check("roberta-qa", "question-answering");
}

#[test]
fn distilbert_mlm() {
    check("distilbert-mlm", "mlm");
}

#[test]
fn distilbert_classification() {
    check("distilbert-classification", "sequence-classification");
}

#[test]
fn distilbert_qa() {
    check("distilbert-qa", "question-answering");
}

#[test]
fn bert_token() {
    check("bert-token", "token-classification");
}

#[test]
fn bert_multi_label() {
    check("bert-multi-label", "multi-label-classification");
}

#[test]
fn bert_choice() {
    check("bert-choice", "multiple-choice");
}

#[test]
fn roberta_token() {
    check("roberta-token", "token-classification");
}

#[test]
fn roberta_multi_label() {
    check("roberta-multi-label", "multi-label-classification");
}

#[test]
fn roberta_choice() {
    check("roberta-choice", "multiple-choice");
}

#[test]
fn distilbert_token() {
    check("distilbert-token", "token-classification");
}

#[test]
fn distilbert_multi_label() {
    check("distilbert-multi-label", "multi-label-classification");
}

#[test]
fn distilbert_choice() {
    check("distilbert-choice", "multiple-choice");
}

#[test]
fn camembert_mlm() {
    check("camembert-mlm", "mlm");
}

#[test]
fn xlm_roberta_classification() {
    check("xlm-roberta-classification", "sequence-classification");
}

#[test]
fn electra_mlm() {
    check("electra-mlm", "mlm");
    check("electra-equal", "mlm");
}

#[test]
fn electra_classification() {
    check("electra-classification", "sequence-classification");
}

#[test]
fn electra_choice() {
    check("electra-choice", "multiple-choice");
}

#[test]
fn electra_qa() {
    check("electra-qa", "question-answering");
}

#[test]
fn albert_mlm_adds_the_gradients_of_one_layer() {
    check("albert-mlm", "mlm");
}

#[test]
fn albert_classification() {
    check("albert-classification", "sequence-classification");
}

#[test]
fn albert_qa() {
    check("albert-qa", "question-answering");
}

#[test]
fn gpt_neo_lm_sees_the_last_tokens_in_local_layers() {
    check("gpt-neo-lm", "clm");
}

#[test]
fn gpt_neo_classification() {
    check("gpt-neo-classification", "sequence-classification");
}

#[test]
fn rows_padded_on_the_left() {
    check("gpt2-lm-left-padded", "clm");
    check("gpt-neo-lm-left-padded", "clm");
}

/// Rows that end with the padding id, begin with it, or have no other token; and one row without
/// such an id.
#[test]
fn the_token_that_a_classifier_reads() {
    check("gpt2-classification-reads", "sequence-classification");
    check("gpt-neo-classification-reads", "sequence-classification");
    check("gpt2-classification-one", "sequence-classification");
}

#[test]
fn llama_lm_shares_heads_of_keys() {
    check("llama-lm", "clm");
    check("llama-lm-left-padded", "clm");
}

#[test]
fn llama_lm_packed() {
    check("llama-lm-packed", "clm");
}

#[test]
fn llama_lm_with_scaled_positions() {
    check("llama-linear-lm", "clm");
    check("llama-yarn-lm", "clm");
    check("llama-yarn-scaled-lm", "clm");
}

#[test]
fn mistral_lm_sees_the_last_tokens() {
    check("mistral-lm", "clm");
}

#[test]
fn qwen2_lm_has_biases_and_a_window_in_late_layers() {
    check("qwen2-lm", "clm");
}

#[test]
fn qwen3_lm_normalises_its_heads() {
    check("qwen3-lm", "clm");
}

#[test]
fn smollm3_lm_has_layers_without_positions() {
    check("smollm3-lm", "clm");
}

#[test]
fn heads_on_llama() {
    check("llama-classification", "sequence-classification");
    check("qwen2-classification-reads", "sequence-classification");
    check("mistral-multi-label", "multi-label-classification");
    check("llama-token", "token-classification");
}

#[test]
fn variants_of_bert_refuse_what_they_do_not_have() {
    let folder = tempfile::tempdir().unwrap();
    let forward = |case: &str, batch: serde_json::Value, task: &str| {
        std::fs::write(folder.path().join("batch.json"), batch.to_string()).unwrap();
        let mut command = kiln(folder.path());
        command.arg("forward").arg(fixture(case).join("model"));
        command.args(["--batch", "batch.json", "--out", "out.safetensors", "--task", task]);
        command
    };
    let types = json!({"input_ids": [[5, 6]], "token_type_ids": [[0, 1]]});
    fails(&mut forward("distilbert-mlm", types, "mlm"), 3, &["token_type_ids"]);
    // 20 rows in the table, of which two are padding's and the one before it.
    let long = json!({"input_ids": [vec![7; 19]]});
    fails(&mut forward("roberta-mlm", long, "mlm"), 3, &["18"]);
    let short = json!({"input_ids": [[5, 6]]});
    fails(&mut forward("roberta-qa", short, "mlm"), 3, &["no head", "lm_head.bias"]);
}

#[test]
fn bad_input_is_one_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("gpt2-lm").join("model");
    let forward = |model: &std::path::Path, batch: &str, task: &str| {
        std::fs::write(folder.path().join("batch.json"), batch).unwrap();
        let mut command = kiln(folder.path());
        command.arg("forward").arg(model).args(["--batch", "batch.json", "--out", "out.safetensors", "--task", task]);
        command
    };
    let batch = r#"{"input_ids": [[1, 2, 3]]}"#;
    fails(&mut forward(&model, batch, "clmm"), 2, &["unknown task", "did you mean \"clm\"?"]);
    fails(&mut forward(&model, batch, "mlm"), 2, &["gpt2 has no head for it"]);
    fails(&mut forward(&model, batch, "sequence-classification"), 3, &["no head", "score.weight"]);
    fails(
        &mut forward(&model, r#"{"input_ids": [[1, 999]]}"#, "clm"),
        3,
        &["input_ids[1]", "expected 0 to 210, got 999"],
    );
    fails(&mut forward(&model, "{", "clm"), 3, &["malformed JSON"]);
    fails(forward(&model, r#"{"input_ids": [[1]], "labels": [[-100]]}"#, "clm").arg("--gradients"), 3, &["no label"]);
    fails(&mut forward(&folder.path().join("none"), batch, "clm"), 3, &["no such file or folder", "none"]);
    assert!(!folder.path().join("out.safetensors").exists());
}

/// A model whose weights hold NaN: what was computed is written and shown, and the exit code says
/// that it is worth nothing.
#[test]
fn a_loss_that_is_no_number() {
    let folder = tempfile::tempdir().unwrap();
    let case = fixture("gpt2-lm");
    let model = folder.path().join("model");
    std::fs::create_dir(&model).unwrap();
    std::fs::copy(case.join("model/config.json"), model.join("config.json")).unwrap();
    let mut bytes = std::fs::read(case.join("model/model.safetensors")).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[header..].fill(0xff); // NaN, in every weight
    std::fs::write(model.join("model.safetensors"), bytes).unwrap();

    let mut command = kiln(folder.path());
    command.args(["forward", "model", "--task", "clm", "--out", "out.safetensors", "--batch"]);
    fails(
        command.arg(case.join("batch.json")),
        5,
        &["the loss of the batch is NaN; expected a finite number", "help: "],
    );
    assert!(tensors(&folder.path().join("out.safetensors"))["loss"].1[0].is_nan());

    std::fs::write(folder.path().join("rows.jsonl"), "{\"input_ids\": [1, 2, 3, 4]}\n".repeat(3)).unwrap();
    let config = "[run]\noutput_dir = \"run\"\n[model]\nkind = \"gpt2\"\n[data]\ntask = \"clm\"\nformat = \"tokenized\"\n\
                  train = \"rows.jsonl\"\nvalidation = \"rows.jsonl\"\n[device]\nkind = \"cpu\"\n";
    std::fs::write(folder.path().join("config.toml"), config).unwrap();
    let mut command = kiln(folder.path());
    command.args(["eval", "config.toml", "--model", "model", "--out", "eval.json"]);
    let output = command.output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("'eval_loss': nan"), "{}", crate::common::text(&output));
    fails(&mut command, 5, &["eval_loss is NaN; expected a finite number"]);
    assert!(std::fs::read_to_string(folder.path().join("eval.json")).unwrap().contains("\"eval_loss\": NaN"));
}
