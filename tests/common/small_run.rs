//! A tiny run of every task with everything that a resumed run could get wrong, and what is
//! compared of two runs.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::{kiln, rows};

/// Figures that measure time or memory: they differ from run to run.
const MEASURED: [&str; 16] = [
    "data_wait",
    "step_ms",
    "communicate_ms",
    "steady_communicate_ms",
    "tokens_per_s",
    "peak_mib",
    "reserved_mib",
    "eval_runtime",
    "eval_samples_per_second",
    "eval_steps_per_second",
    "train_runtime",
    "train_samples_per_second",
    "train_steps_per_second",
    "steady_step_ms",
    "steady_tokens_per_second",
    "warmup_seconds",
];

/// 25 rows of 3 to 6 tokens, labelled for `task`.
fn data(task: &str) -> String {
    let row = |i: usize| {
        let ids = (0..3 + i % 4).map(|j| (i * 7 + j * 3) % 29 + 1).collect::<Vec<_>>();
        let mut row = json!({ "input_ids": ids });
        match task {
            "clm" => {}
            "mlm" => {
                let labels = ids.iter().enumerate().map(|(j, id)| if j % 2 == 0 { *id as i64 } else { -100 });
                row["labels"] = labels.collect();
            }
            "sequence-classification" => row["labels"] = json!(i % 3),
            "token-classification" => {
                row["labels"] =
                    ids.iter().enumerate().map(|(j, id)| if j % 2 == 0 { *id as i64 % 3 } else { -100 }).collect();
            }
            "multi-label-classification" => row["labels"] = json!([i % 2, (i / 2) % 2, 1]),
            "multiple-choice" => row = json!({ "input_ids": [ids, [i % 29, 3], [4]], "labels": i % 3 }),
            "regression" => row["labels"] = json!(i as f64 / 7.0),
            _ => {
                row["start_positions"] = json!(i % 3);
                row["end_positions"] = json!(2);
            }
        }
        row.to_string() + "\n"
    };
    (0..25).map(row).collect()
}

/// A config with everything that a resumed run could get wrong: dropout, accumulation, a random
/// order, epochs with a smaller last batch, a schedule and a warm-up.
pub fn write(folder: &Path, task: &str) -> PathBuf {
    std::fs::write(folder.join("data.jsonl"), data(task)).unwrap();
    let model = match task {
        "clm" => "kind = \"gpt2\"\nn_layer = 2\nn_head = 2\nn_embd = 16\nn_positions = 8",
        _ => {
            "kind = \"bert\"\nnum_hidden_layers = 2\nnum_attention_heads = 2\nhidden_size = 16\nintermediate_size = 32\n\
             max_position_embeddings = 8"
        }
    };
    let config = format!(
        "[run]\noutput_dir = \"run\"\n[model]\n{model}\nvocab_size = 32\n[data]\ntask = \"{task}\"\nformat = \
         \"tokenized\"\ntrain = \"data.jsonl\"\nvalidation = \"20%\"\nsampler = \"random\"\n[trainer]\nmax_steps = 14\n\
         per_device_train_batch_size = 3\ngradient_accumulation_steps = 2\nlearning_rate = 1e-3\nwarmup_steps = 3\n\
         weight_decay = 0.1\nlogging_steps = 1\neval_strategy = \"steps\"\neval_steps = 3\nsave_steps = 7\n[device]\n\
         kind = \"cpu\"\n"
    );
    let path = folder.join("config.toml");
    std::fs::write(&path, config).unwrap();
    path
}

/// Writes the run of [`write`] for `clm` with rows of 150 steps of 3 (see [`SPIKE`]), of which only
/// those of step 140 have tokens above 19.
#[allow(dead_code)]
pub fn write_with_a_spike(folder: &Path) {
    let row = |i: usize| {
        let id =
            |j: usize| if i / 3 == 139 { (i * 5 + j * j * 7) % 11 + 20 } else { (i * 3 + j) % 5 + 1 + (i % 7) / 6 };
        format!("{{\"input_ids\": {:?}}}\n", (0..6).map(id).collect::<Vec<_>>())
    };
    let config = write(folder, "clm");
    std::fs::write(folder.join("data.jsonl"), (0..450).map(row).collect::<String>()).unwrap();
    std::fs::write(folder.join("other.jsonl"), (0..6).map(row).collect::<String>()).unwrap();
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("\"20%\"", "\"other.jsonl\"")).unwrap();
}

/// The settings of such a run.
#[allow(dead_code)]
pub const SPIKE: [&str; 4] = [
    "data.sampler=sequential",
    "trainer.max_steps=145",
    "trainer.gradient_accumulation_steps=1",
    "trainer.learning_rate=5e-3",
];

pub fn train(folder: &Path, run: &str, more: &[&str]) -> Command {
    let mut command = kiln(folder);
    command.args(["train", "config.toml", "--set", &format!("run.output_dir={run}")]).args(more);
    command
}

pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
        let target = to.join(entry.file_name().unwrap());
        if entry.is_dir() {
            copy(&entry, &target);
        } else {
            assert!(std::fs::copy(&entry, &target).is_ok());
        }
    }
}

/// Makes a checkpoint's `state.json` whole again after a test has changed it.
pub fn seal(checkpoint: &Path) {
    use sha2::Digest;
    let state = std::fs::read(checkpoint.join("state.json")).unwrap();
    let digest = sha2::Sha256::digest(state).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    std::fs::write(checkpoint.join("state.sha256"), format!("{digest}  state.json\n")).unwrap();
}

/// Rows without what is measured.
pub fn figures(run: &Path) -> Vec<Value> {
    let mut rows = rows(run);
    for row in &mut rows {
        row.as_object_mut()
            .unwrap()
            .retain(|name, _| !MEASURED.contains(&name.as_str()) && !name.ends_with("_seconds"));
    }
    rows
}
