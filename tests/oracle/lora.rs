//! Adapters of `peft` (made by tests/fixtures/make_lora.py and make_peft.py): `kiln forward` on its
//! folders, `kiln merge`, and `kiln train` against `transformers`' Trainer with `peft`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::common::skip::skip;
use crate::common::{device, fixture, json, kiln_on_device, l2, relative_l2, succeeds, tensors, train_rows};

/// Logits of models two layers deep: the promise is 1e-5.
const LOGITS_ABSOLUTE: f32 = 1e-5;
const LOSS_RELATIVE: f32 = 1e-5;
const GRADIENT_RELATIVE: f64 = 1e-4;
/// A key's bias shifts all scores of a row alike, so its gradient is rounding.
const GRADIENT_ZERO: f64 = 1e-6;

/// The outputs of `kiln forward` on `model`, the gradients among them where `expected` has any, are
/// those of the case.
fn check_forward(case: &str, model: &Path, task: &str, compiler: &str, with_gradients: bool) {
    let (folder, case) = (tempfile::tempdir().unwrap(), fixture(case));
    let out = folder.path().join("out.safetensors");
    let mut command = kiln_on_device(folder.path());
    command.arg("forward").arg(model).arg("--batch").arg(case.join("batch.json"));
    command.args(["--device", &device(), "--compiler", compiler, "--task", task, "--gradients", "--out"]);
    succeeds(command.arg(&out));
    let (got, expected) = (tensors(&out), tensors(&case.join("expected.safetensors")));
    let (mut logits, mut adapters) = (0, 0);
    for (name, (shape, values)) in &expected {
        if name.starts_with("grad.") && !with_gradients {
            continue;
        }
        let (got_shape, got) = &got[name];
        assert_eq!(got_shape, shape, "{name}");
        if name == "loss" {
            assert!((got[0] / values[0] - 1.0).abs() < LOSS_RELATIVE, "loss {} against {}", got[0], values[0]);
        } else if name.ends_with("logits") {
            logits += 1;
            let worst = got.iter().zip(values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < LOGITS_ABSOLUTE, "{name}: off by {worst}");
        } else if l2(values.iter().map(|v| f64::from(*v))) < GRADIENT_ZERO {
            assert!(l2(got.iter().map(|v| f64::from(*v))) < GRADIENT_ZERO, "{name}: expected zero");
        } else {
            adapters += usize::from(name.contains(".lora_"));
            let off = relative_l2(got, values);
            assert!(off < GRADIENT_RELATIVE, "{name}: off by {off}");
        }
    }
    assert!(logits > 0 && (adapters >= 4 || !with_gradients), "{logits} {adapters}");
}

fn check(case: &str, task: &str) {
    let adapter = fixture(case).join("adapter");
    for compiler in ["native", "compiled"] {
        check_forward(case, &adapter, task, compiler, true);
    }
    let folder = tempfile::tempdir().unwrap();
    let merged = folder.path().join("merged");
    let said = succeeds(kiln_on_device(folder.path()).arg("merge").arg(&adapter).arg("--out").arg(&merged));
    assert!(said.contains("config.json, model.safetensors"), "{said}");
    let base = tensors(&fixture(case).join("model/model.safetensors"));
    let tensors = tensors(&merged.join("model.safetensors"));
    // An adapter on one of a tied pair has given it an output of its own.
    let outputs = ["lm_head.", "decoder.", "vocab_projector.", "generator_lm_head."];
    let is_expected = |name: &String| base.contains_key(name) || outputs.iter().any(|output| name.contains(output));
    assert!(tensors.keys().all(is_expected), "{:?}", tensors.keys());
    check_forward(case, &merged, task, "native", false);
}

#[test]
fn gpt2_lm() {
    check("lora-gpt2-lm", "clm");
}

#[test]
fn gpt2_classification() {
    check("lora-gpt2-classification", "sequence-classification");
}

#[test]
fn bert_classification_with_every_linear_layer_and_all_biases() {
    check("lora-bert-classification", "sequence-classification");
}

#[test]
fn roberta_classification() {
    check("lora-roberta-classification", "sequence-classification");
}

#[test]
fn distilbert_classification() {
    check("lora-distilbert-classification", "sequence-classification");
}

#[test]
fn electra_classification() {
    check("lora-electra-classification", "sequence-classification");
}

#[test]
fn gpt_neo_lm() {
    check("lora-gpt-neo-lm", "clm");
}

#[test]
fn albert_classification_has_one_adapter_for_all_layers() {
    check("lora-albert-classification", "sequence-classification");
}

#[test]
fn llama_lm() {
    check("lora-llama-lm", "clm");
}

#[test]
fn qwen3_classification_with_every_linear_layer() {
    check("lora-qwen3-classification", "sequence-classification");
}

#[test]
fn bert_qa_with_targets_by_a_pattern() {
    check("lora-bert-qa", "question-answering");
}

#[test]
fn bert_mlm_without_a_task_type() {
    check("lora-bert-mlm", "mlm");
}

/// Kiln trains the adapter on as the Trainer does, and saves what `peft` saves.
fn check_training(case: &str, task: &str, compiler: &str) {
    let (folder, case) = (tempfile::tempdir().unwrap(), fixture(case));
    let mut config = format!(
        "[run]\noutput_dir = \"run\"\n[model]\nfrom = {:?}\n[data]\ntask = \"{task}\"\nformat = \"tokenized\"\n\
         train = [{:?}]\nsampler = \"sequential\"\n[trainer]\naccumulation = \"transformers\"\n",
        case.join("adapter"),
        case.join("data.json")
    );
    for (name, value) in json(&case.join("args.json")).as_object().unwrap() {
        config += &format!("{name} = {value}\n");
    }
    config += &format!("[device]\nkind = \"{}\"\n", device());
    std::fs::write(folder.path().join("config.toml"), config).unwrap();
    succeeds(kiln_on_device(folder.path()).args(["train", "config.toml", "--compiler", compiler]));
    let run = folder.path().join("run");
    let (got, expected) = (train_rows(&run), json(&case.join("history.json")));
    let expected = expected.as_array().unwrap();
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        for (name, tolerance) in [("learning_rate", 1e-9), ("loss", 1e-4), ("grad_norm", 1e-3)] {
            let (a, b) = (got[name].as_f64().unwrap(), expected[name].as_f64().unwrap());
            assert!((a - b).abs() <= tolerance * b.abs().max(1e-2), "{name}: {got} against {expected}");
        }
    }
    let saved = tensors(&run.join("model/adapter_model.safetensors"));
    let expected = tensors(&case.join("final.safetensors"));
    assert_eq!(saved.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, (shape, values)) in &expected {
        assert_eq!(&saved[name].0, shape, "{name}");
        let off = relative_l2(&saved[name].1, values);
        assert!(off < 1e-3, "{name}: off by {off}");
    }
    assert!(!run.join("model/model.safetensors").exists());
}

#[test]
fn ranks_and_scales_by_pattern_and_a_bias_of_the_second_matrix() {
    check("lora-gpt2-patterns", "clm");
}

#[test]
fn gpt2_embeddings_and_the_tied_output() {
    check("lora-gpt2-embedding", "clm");
    check("lora-gpt2-output", "clm");
    check("lora-gpt2-both-dora", "clm");
}

#[test]
fn embeddings_and_the_output_of_masked_language_models() {
    for family in ["bert", "roberta", "distilbert", "electra", "albert"] {
        check(&format!("lora-{family}-mlm-embeddings"), "mlm");
    }
}

#[test]
fn rows_of_the_embedding_that_learn_alone() {
    check("lora-gpt2-tokens", "clm");
    check("lora-gpt2-untied-tokens", "clm");
    check("lora-bert-tokens", "sequence-classification");
}

#[test]
fn embeddings_outputs_and_rows_train_as_with_the_trainer() {
    for compiler in ["native", "compiled"] {
        check_training("trainer-lora-gpt2-both", "clm", compiler);
        check_training("trainer-lora-bert-mlm-embedding", "mlm", compiler);
        check_training("trainer-lora-gpt2-tokens", "clm", compiler);
    }
}

#[test]
fn dora() {
    check("lora-gpt2-dora", "clm");
    check("lora-bert-dora", "sequence-classification");
}

#[test]
fn dora_trains_as_with_the_trainer() {
    for compiler in ["native", "compiled"] {
        check_training("trainer-lora-bert-dora", "sequence-classification", compiler);
        check_training("trainer-lora-gpt2-bias", "clm", compiler);
    }
}

#[test]
fn gpt2_lm_trains_as_with_the_trainer() {
    for compiler in ["native", "compiled"] {
        check_training("trainer-lora-gpt2-lm", "clm", compiler);
    }
}

#[test]
fn llama_lm_trains_as_with_the_trainer() {
    for compiler in ["native", "compiled"] {
        check_training("trainer-lora-llama-lm", "clm", compiler);
    }
}

#[test]
fn bert_classification_trains_as_with_the_trainer() {
    for compiler in ["native", "compiled"] {
        check_training("trainer-lora-bert-classification", "sequence-classification", compiler);
    }
}

/// A Python that has `peft`: `KILN_PYTHON`, or the system's.
fn python() -> Option<String> {
    let python = std::env::var("KILN_PYTHON").unwrap_or_else(|_| "python3".into());
    let found = Command::new(&python).args(["-c", "import peft, transformers, torch"]).output();
    found.is_ok_and(|output| output.status.success()).then_some(python)
}

#[test]
fn peft_opens_what_kiln_saves() {
    let Some(python) = python() else {
        return skip!("python", "no Python with peft, transformers and torch: name one with KILN_PYTHON");
    };
    let folder = tempfile::tempdir().unwrap();
    let script = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/peft_roundtrip.py");
    let oracle = fixture("lora-gpt2-lm").parent().unwrap().to_owned();
    let output =
        Command::new(python).arg(script).arg(env!("CARGO_BIN_EXE_kiln")).arg(oracle).arg(folder.path()).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", crate::common::text(&output));
}

/// A folder of what `tests/fixtures/make_peft.py` asked PEFT.
fn asked(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/fixtures/peft").join(name)
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

/// `kiln forward` of the model or adapter `model` on the batch of the folder `asked`.
fn forward(folder: &Path, asked: &Path, model: &Path, task: &str) -> Command {
    let mut command = kiln_on_device(folder);
    command.arg("forward").arg(model).arg("--batch").arg(asked.join("batch.json"));
    command.args(["--device", &device(), "--task", task, "--out", "out.safetensors"]);
    command
}

/// How far the logits that [`forward`] left in `folder` are from `expected`.
fn off(folder: &Path, expected: &[f32]) -> f32 {
    let logits = &tensors(&folder.join("out.safetensors"))["logits"].1;
    assert_eq!(logits.len(), expected.len());
    logits.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Whatever `adapter_config.json` says, Kiln computes what `PeftModel.from_pretrained` computes, or
/// refuses the name.
#[test]
fn every_field_of_an_adapter_computes_as_in_peft_or_is_refused_by_name() {
    let asked = asked("fields");
    let folder = tempfile::tempdir().unwrap();
    let adapter = folder.path().join("adapter");
    std::fs::create_dir(&adapter).unwrap();
    std::fs::copy(asked.join("adapter/adapter_model.safetensors"), adapter.join("adapter_model.safetensors")).unwrap();
    let mut stated = json(&asked.join("adapter/adapter_config.json"));
    stated["base_model_name_or_path"] = asked.join("base").to_str().unwrap().into();
    let mut computed = Vec::new();
    for answer in json(&asked.join("answers.json")).as_array().unwrap() {
        let (name, value) = answer["change"].as_object().unwrap().iter().next().unwrap();
        let mut changed = stated.clone();
        changed[name] = value.clone();
        std::fs::write(adapter.join("adapter_config.json"), changed.to_string()).unwrap();
        let mut command = forward(folder.path(), &asked, &adapter, "sequence-classification");
        let output = command.output().unwrap();
        let said = crate::common::text(&output);
        if output.status.success() {
            let expected = answer.get("logits").map(numbers);
            let expected = expected.unwrap_or_else(|| panic!("{name} = {value}: peft opens no such adapter"));
            assert!(off(folder.path(), &expected) < LOGITS_ABSOLUTE, "{name} = {value}: other logits than peft's");
            computed.push(format!("{name} = {value}"));
        } else if ["r", "modules_to_save", "rank_pattern", "lora_bias", "use_dora", "trainable_token_indices"]
            .contains(&name.as_str())
        {
            // The tensors do not fit, and the message names those.
            assert!(output.status.code() == Some(3) && said.contains("the weights do not fit"), "{name}: {said}");
        } else {
            assert!(output.status.code() == Some(3) && said.contains(name.as_str()), "{name} = {value}: {said}");
        }
    }
    // These are not refused for safety's sake.
    for wanted in [
        "init_lora_weights = \"orthogonal\"",
        "init_lora_weights = \"eva\"",
        "init_lora_weights = \"GAUSSIAN\"",
        "fan_in_fan_out = true",
        "lora_alpha = 16",
        "use_rslora = true",
        "alpha_pattern = {\"query\":4}",
        "modules_to_save = null",
        "target_modules = \".*(query|value)\"",
        "ensure_weight_tying = true",
        "megatron_core = \"x\"",
    ] {
        assert!(computed.iter().any(|change| change == wanted), "{wanted} is refused");
    }
}

/// Adapters that PEFT has begun in each of its ways; for those that changed the base, the two ways
/// out that the refusal names.
#[test]
fn adapters_that_began_otherwise_compute_as_in_peft_or_are_refused() {
    let asked = asked("begun");
    let folder = tempfile::tempdir().unwrap();
    for answer in json(&asked.join("answers.json")).as_array().unwrap() {
        let name = answer["adapter"].as_str().unwrap();
        let mut command = forward(folder.path(), &asked, &asked.join(name), "sequence-classification");
        if matches!(name, "pissa" | "olora") {
            let stated = format!("init_lora_weights = \"{name}\"");
            let ways = ["merge_and_unload", "path_initial_model_for_weight_conversion"];
            crate::common::fails(&mut command, 3, &["adapter_config.json", &stated, ways[0], ways[1]]);
        } else {
            succeeds(&mut command);
            assert!(off(folder.path(), &numbers(&answer["logits"])) < LOGITS_ABSOLUTE, "{name}");
        }
    }
}

/// An embedding or an output that is saved with an adapter, and a base that got tokens before it,
/// compute as in `PeftModel.from_pretrained`, merged too.
#[test]
fn saved_embeddings_and_new_tokens_compute_as_in_peft() {
    for family in ["gpt2", "gpt_neo", "bert", "roberta", "distilbert", "electra", "albert"] {
        let (asked, task) = (asked(family), if family.starts_with("gpt") { "clm" } else { "mlm" });
        let folder = tempfile::tempdir().unwrap();
        for answer in json(&asked.join("answers.json")).as_array().unwrap() {
            let (name, expected) = (answer["adapter"].as_str().unwrap(), numbers(&answer["logits"]));
            let adapter = asked.join(name);
            succeeds(&mut forward(folder.path(), &asked, &adapter, task));
            let worst = off(folder.path(), &expected);
            assert!(worst < LOGITS_ABSOLUTE, "{family} {name}: off by {worst}");
            if adapter.join("adapter_config.json").is_file() {
                let merged = folder.path().join(format!("merged-{name}"));
                succeeds(kiln_on_device(folder.path()).arg("merge").arg(&adapter).arg("--out").arg(&merged));
                succeeds(&mut forward(folder.path(), &asked, &merged, task));
                let worst = off(folder.path(), &expected);
                assert!(worst < LOGITS_ABSOLUTE, "{family} {name}, merged: off by {worst}");
            }
        }
    }
}
