//! The bytes in the memory pools of the device during a run.

use std::fmt::Write;

use serde_json::Value;

use crate::common::skip::skip;
use crate::common::small_run::write;
use crate::common::{succeeds, train_rows};
use crate::{MODE, ONE_SHAPE, device, on_device};

/// Rows of the validation, all in one batch of 8 tokens each, and the vocabulary: logits of 64 MiB.
const EVALUATED: usize = 256;
const VOCABULARY: usize = 8192;

/// MiB by which the pools may differ before and after an evaluation: a page of theirs.
const A_PAGE: f64 = 8.0;

/// An evaluation of batches that are far larger than the training's leaves nothing taken from the
/// device.
#[test]
fn an_evaluation_gives_its_memory_back() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let rows = (0..EVALUATED).fold(String::new(), |mut rows, i| {
        writeln!(rows, "{{\"input_ids\": [{}, 2, 3, 4, 5, 6, 7, 8]}}", i % 29).unwrap();
        rows
    });
    std::fs::write(folder.path().join("validation.jsonl"), rows).unwrap();
    let (batch, vocabulary) =
        (format!("trainer.per_device_eval_batch_size={EVALUATED}"), format!("model.vocab_size={VOCABULARY}"));
    let sets = [
        "data.validation=validation.jsonl",
        &batch,
        &vocabulary,
        "trainer.gradient_accumulation_steps=1",
        "trainer.eval_steps=4",
        "trainer.save_strategy=no",
    ];
    let mut command = on_device(folder.path(), "run", &ONE_SHAPE);
    succeeds(command.args(sets.map(|set| ["--set", set]).concat()));
    let rows = train_rows(&folder.path().join("run"));
    let reserved = rows.iter().map(|row| row["reserved_mib"].as_f64().unwrap()).collect::<Vec<_>>();
    println!("{reserved:?}");
    // Evaluations follow steps 4, 8 and 12.
    let before = reserved[3];
    assert!(before > 0.0, "{reserved:?}");
    for (step, reserved) in (1..).zip(&reserved).skip(4) {
        assert!(reserved - before < A_PAGE, "step {step}: {reserved} MiB, {before} before the first evaluation");
    }
}

/// On tensor cores attention has no matrix of scores, whose bytes would grow with the heads.
#[test]
fn scores_count_where_attention_has_them() {
    if device() != "cuda" || MODE != "compiled" {
        return skip!("cuda", "the kernels are for tensor cores of CUDA devices, compiled");
    }
    let activations = |heads: usize| {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "clm");
        let heads = format!("model.n_head={heads}");
        let more = [
            "precision=bf16",
            "model.n_embd=64",
            "trainer.max_steps=1",
            "trainer.warmup_steps=0",
            "trainer.save_strategy=no",
        ];
        let sets = [&[&*heads][..], &more].concat();
        let mut command = on_device(folder.path(), "run", &ONE_SHAPE);
        succeeds(command.args(sets.iter().flat_map(|set| ["--set", set])));
        let plan = std::fs::read_to_string(folder.path().join("run/plan.json")).unwrap();
        let plan: Value = serde_json::from_str(&plan).unwrap();
        plan["memory"]["estimate"]["activations"].as_u64().unwrap()
    };
    // Heads of 64, 32 and 16 numbers: the kernels have none of 16.
    let found = [1, 2, 4].map(activations);
    println!("{found:?}");
    assert_eq!(found[0], found[1], "scores on tensor cores");
    assert!(found[2] > found[1], "no scores apart from tensor cores: {found:?}");
}
