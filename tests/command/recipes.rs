//! The recipes of the guide's chapter `other-tools`, with the tools themselves where they are
//! installed (`tests/recipes.py`).

use std::path::Path;
use std::process::Command;

use crate::common::skip::skip;
use crate::common::{kiln, succeeds};

/// Trains a language model for a few steps and returns its folder.
fn model(folder: &Path, name: &str, model: &str, tokenizer: &str, task: &str) -> String {
    let config = format!(
        "[run]\noutput_dir = \"{name}\"\n[model]\n{model}\n[tokenizer]\n{tokenizer}\n[data]\ntask = \"{task}\"\n\
         format = \"text\"\ntrain = \"text.txt\"\nblock_size = 32\n[trainer]\nmax_steps = 3\nlogging_steps = 1\n\
         report_to = \"tensorboard\"\nper_device_train_batch_size = 2\n"
    );
    let text = (0..200).map(|i| format!("the guide of run {i} has the command and the config file\n"));
    std::fs::write(folder.join("text.txt"), text.collect::<String>()).unwrap();
    std::fs::write(folder.join("config.toml"), config).unwrap();
    succeeds(kiln(folder).args(["train", "config.toml"]));
    folder.join(name).join("model").to_string_lossy().into_owned()
}

/// BERT's special tokens, the words of the text, and all letters and digits.
fn vocabulary() -> String {
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].into_iter();
    let words = ["the", "guide", "of", "run", "has", "command", "and", "config", "file"];
    let letters = ('a'..='z').chain('0'..='9').flat_map(|letter| [letter.to_string(), format!("##{letter}")]);
    special.chain(words).map(str::to_owned).chain(letters).map(|piece| piece + "\n").collect()
}

/// Runs one recipe; a tool that is not there is told.
fn recipe(tool: &str) {
    let python = std::env::var("KILN_PYTHON").unwrap_or_else(|_| "python3".into());
    let folder = tempfile::tempdir().unwrap();
    let gpt2 = "kind = \"gpt2\"\nn_layer = 1\nn_head = 2\nn_embd = 16\nn_positions = 64";
    let bert = "kind = \"bert\"\nnum_hidden_layers = 1\nnum_attention_heads = 2\nhidden_size = 16\nintermediate_size = 32\n\
                max_position_embeddings = 64";
    std::fs::create_dir(folder.path().join("words")).unwrap();
    std::fs::write(folder.path().join("words/vocab.txt"), vocabulary()).unwrap();
    std::fs::write(folder.path().join("words/tokenizer_config.json"), r#"{"tokenizer_class": "BertTokenizer"}"#)
        .unwrap();
    let models = [
        model(folder.path(), "gpt2", gpt2, "train_vocab_size = 400", "clm"),
        model(folder.path(), "bert", bert, "from = \"words\"", "mlm"),
    ];
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/recipes.py");
    let mut command = Command::new(&python);
    command.arg(script).arg(tool).args(&models).current_dir(folder.path());
    let Ok(output) = command.env("KILN", env!("CARGO_BIN_EXE_kiln")).output() else {
        return skip!("recipes", "there is no {python}");
    };
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(3) => skip!("recipes", "{}", said.trim()),
        code => assert_eq!(code, Some(0), "{said}{}", String::from_utf8_lossy(&output.stdout)),
    }
}

#[test]
fn llama_cpp_converts() {
    recipe("gguf");
}

#[test]
fn sentence_transformers_embeds() {
    recipe("sentence_transformers");
}

#[test]
fn a_pipeline_writes_what_generate_writes() {
    recipe("pipeline");
}

#[test]
fn optimum_exports_onnx() {
    recipe("onnx");
}

#[test]
fn trackio_imports_the_curves() {
    recipe("trackio");
}

#[test]
fn lm_eval_scores() {
    recipe("lm_eval");
}
