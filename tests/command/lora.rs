//! `[lora]` through the binary: what a run says, saves and continues, how much memory it takes, and
//! what is refused.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::messages::messages;
use crate::common::small_run::{figures, train, write};
use crate::common::{kiln, succeeds, tensors, train_rows};

/// A small run of `task` that has made a base in `base/model`, and a config that puts adapters on
/// it.
fn with_base(folder: &Path, task: &str, lora: &str) {
    write(folder, task);
    let short = ["--set", "trainer.max_steps=2", "--set", "trainer.warmup_steps=0"];
    succeeds(&mut train(folder, "base", &short));
    let config = std::fs::read_to_string(folder.join("config.toml")).unwrap();
    let (before, after) = config.split_once("[model]\n").unwrap();
    let (_, after) = after.split_once("[data]\n").unwrap();
    let config = format!("{before}[model]\nfrom = \"base\"\n[data]\n{after}[lora]\n{lora}\n");
    std::fs::write(folder.join("config.toml"), config).unwrap();
}

const LORA: &str = "r = 2\nalpha = 6\ndropout = 0.2\ntarget_modules = [\"c_attn\", \"mlp.c_proj\"]";

fn bytes(path: PathBuf) -> Vec<u8> {
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn a_run_says_what_learns_and_saves_a_folder_of_peft() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    with_base(folder.path(), "clm", LORA);
    let plan = succeeds(kiln(folder.path()).args(["plan", "config.toml"]));
    // Of two layers: A [16, 2] and B [2, 48], A [64, 2] and B [2, 16].
    assert!(plan.contains("576 learn ("), "{plan}");
    assert!(plan.contains("new LoRA of rank 2 on c_attn, mlp.c_proj; scaled by 3, dropout 0.2"), "{plan}");
    let json = succeeds(kiln(folder.path()).args(["plan", "config.toml", "--json"]));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["model"]["num_trainable"], 576);
    assert_eq!(json["memory"]["values"]["state"], 2 * 576);
    succeeds(&mut train(folder.path(), "run", &[]));
    let model = folder.path().join("run/model");
    let saved = tensors(&model.join("adapter_model.safetensors"));
    assert_eq!(saved.len(), 8, "{:?}", saved.keys());
    let a = &saved["base_model.model.transformer.h.1.mlp.c_proj.lora_A.weight"];
    assert_eq!(a.0, [2, 64]);
    assert!(!model.join("model.safetensors").exists());
    let stated = crate::common::json(&model.join("adapter_config.json"));
    assert_eq!(stated["base_model_name_or_path"], "base/model", "the path is the user's");
    let expected = serde_json::json!({"peft_type": "LORA", "r": 2, "lora_alpha": 6, "task_type": "CAUSAL_LM"});
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&stated[name], value, "{name}");
    }
    // Every command that takes a model takes it, and the base is as it was.
    let eval = |more: &[&str]| succeeds(kiln(folder.path()).args(["eval", "config.toml"]).args(more));
    let loss = |said: &str| said.split_once("'eval_loss': ").unwrap().1.split([',', '}']).next().unwrap().to_owned();
    let adapted = loss(&eval(&["--model", "run/model"]));
    assert_eq!(adapted, loss(&eval(&["--model", "run"])), "a run folder stands for its model");
    assert_ne!(adapted, loss(&eval(&["--model", "base"])));
    succeeds(kiln(folder.path()).args(["merge", "run", "--out", "merged"]));
    let (a, b) = (adapted.parse::<f64>().unwrap(), loss(&eval(&["--model", "merged"])).parse::<f64>().unwrap());
    assert!((a / b - 1.0).abs() < 1e-5, "{a} and {b}");
    assert!(folder.path().join("merged/model.safetensors").is_file());
    messages.fails(kiln(folder.path()).args(["merge", "run", "--out", "merged"]), 2);
    messages.fails(kiln(folder.path()).args(["merge", "base", "--out", "x"]), 2);
    // Training goes on from an adapter without [lora].
    let config = std::fs::read_to_string(folder.path().join("config.toml")).unwrap();
    let on = config.split("[lora]").next().unwrap().replace("from = \"base\"", "from = \"run\"");
    std::fs::write(folder.path().join("on.toml"), &on).unwrap();
    let said = succeeds(kiln(folder.path()).args(["train", "on.toml", "--set", "run.output_dir=on"]));
    assert!(said.contains("from run/model"), "{said}");
    let first = &train_rows(&folder.path().join("on"))[0]["loss"];
    assert_ne!(first, &train_rows(&folder.path().join("run"))[0]["loss"], "it begins where the adapter stands");
    assert_eq!(tensors(&folder.path().join("on/model/adapter_model.safetensors")).len(), 8);
    // The path of the base stays as the user wrote it, and leads there from another working
    // directory.
    for written in ["run/checkpoints/step-000014", "on/model"] {
        let stated = crate::common::json(&folder.path().join(written).join("adapter_config.json"));
        assert_eq!(stated["base_model_name_or_path"], "base/model", "{written}");
    }
    let elsewhere = tempfile::tempdir().unwrap();
    succeeds(kiln(elsewhere.path()).arg("merge").arg(folder.path().join("on")).args(["--out", "merged"]));
    std::fs::rename(folder.path().join("base"), folder.path().join("moved")).unwrap();
    let mut gone = kiln(elsewhere.path());
    gone.arg("merge").arg(folder.path().join("on")).args(["--out", "again"]);
    messages.fails(&mut gone, 3);
    std::fs::rename(folder.path().join("moved"), folder.path().join("base")).unwrap();
    let both = format!("{on}[lora]\nr = 2\n");
    std::fs::write(folder.path().join("both.toml"), both).unwrap();
    messages.fails(kiln(folder.path()).args(["plan", "both.toml"]), 2);
}

#[test]
fn a_stopped_run_goes_on_to_the_bit_and_keeps_its_settings() {
    let messages = messages!();
    for (task, lora, mode) in [
        ("clm", LORA, "native"),
        ("clm", LORA, "compiled"),
        ("sequence-classification", "r = 2\nbias = \"all\"\ndropout = 0.1", "compiled"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        with_base(folder.path(), task, lora);
        let more = ["--compiler", mode];
        succeeds(&mut train(folder.path(), "straight", &more));
        succeeds(&mut train(folder.path(), "stopped", &more));
        // As after a stop between the two checkpoints.
        for gone in ["model", "checkpoints/step-000014"] {
            std::fs::remove_dir_all(folder.path().join("stopped").join(gone)).unwrap();
        }
        let checkpoint = folder.path().join("stopped/checkpoints/step-000007");
        assert!(
            checkpoint.join("adapter_model.safetensors").is_file() && !checkpoint.join("model.safetensors").exists()
        );
        let changed = ["--resume", "--set", "lora.r=3"];
        messages.fails(train(folder.path(), "stopped", &changed), 2);
        succeeds(train(folder.path(), "stopped", &more).arg("--resume"));
        let [straight, stopped] = ["straight", "stopped"].map(|run| folder.path().join(run));
        assert_eq!(figures(&straight), figures(&stopped), "{task}");
        let weights = |run: &Path| bytes(run.join("model/adapter_model.safetensors"));
        assert!(weights(&straight) == weights(&stopped), "{task}");
        let moments = |run: &Path| bytes(run.join("checkpoints/step-000014/optimizer.safetensors"));
        assert!(moments(&straight) == moments(&stopped), "{task}");
    }
}

/// Native and compiled, with blocks computed again and in other types, make the same steps.
#[test]
fn modes_and_precisions_agree() {
    let folder = tempfile::tempdir().unwrap();
    with_base(folder.path(), "clm", "r = 2\ntarget_modules = \"all-linear\"");
    let no_dropout = ["--set", "model.resid_pdrop=0", "--set", "model.embd_pdrop=0", "--set", "model.attn_pdrop=0"];
    let losses = |name: &str, more: &[&str]| {
        succeeds(train(folder.path(), name, &no_dropout).args(more));
        train_rows(&folder.path().join(name)).iter().map(|row| row["loss"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    let native = losses("native", &[]);
    let blocks = losses("blocks", &["--set", "trainer.activation_checkpointing=blocks"]);
    assert_eq!(native, blocks);
    for (name, more, tolerance) in [
        ("compiled", &["--compiler", "compiled"][..], 1e-5),
        ("bf16", &["--precision", "bf16"], 1e-2),
        ("bf16-compiled", &["--precision", "bf16", "--compiler", "compiled"], 1e-2),
        ("f16", &["--precision", "f16"], 1e-2),
    ] {
        let losses = losses(name, more);
        for (a, b) in native.iter().zip(&losses) {
            assert!((a / b - 1.0).abs() < tolerance, "{name}: {native:?} {losses:?}");
        }
    }
    // A difference of the gradients of the adapters has an exit code of its own.
    succeeds(kiln(folder.path()).args(["parity", "config.toml"]).args(no_dropout));
}

/// A frozen base has neither gradients nor moments, and in bf16 no weights in f32.
#[test]
#[cfg(target_os = "linux")] // elsewhere no row has a peak
fn adapters_take_less_memory_than_all_weights() {
    let folder = tempfile::tempdir().unwrap();
    let row = |i: usize| {
        let ids = (0..64).map(|j| ((i * 31 + j * 7) % 499 + 1).to_string()).collect::<Vec<_>>();
        format!("{{\"input_ids\": [{}]}}\n", ids.join(","))
    };
    std::fs::write(folder.path().join("data.jsonl"), (0..12).map(row).collect::<String>()).unwrap();
    let config = |model: &str, lora: &str| {
        format!(
            "[run]\noutput_dir = \"run\"\n[model]\n{model}\n[data]\ntask = \"clm\"\nformat = \"tokenized\"\ntrain = \
             \"data.jsonl\"\n[trainer]\nmax_steps = 3\nlogging_steps = 1\nsave_strategy = \"no\"\n\
             per_device_train_batch_size = 2\n[device]\nkind = \"cpu\"\n{lora}"
        )
    };
    let run = |name: &str, model: &str, lora: &str, more: &[&str]| {
        std::fs::write(folder.path().join("config.toml"), config(model, lora)).unwrap();
        let said = succeeds(train(folder.path(), name, more).args(["--compiler", "compiled"]));
        let line = said.lines().find(|line| line.starts_with("memory ")).unwrap();
        let planned = line.split_whitespace().nth(2).unwrap().parse::<f64>().unwrap();
        let measured = train_rows(&folder.path().join(name)).last().unwrap()["peak_mib"].as_f64().unwrap();
        println!("{name}: planned {planned}, measured {measured}: {line}");
        assert!((planned / measured - 1.0).abs() < 0.25, "{name}: planned {planned}, measured {measured}: {line}");
        measured
    };
    // 29 million parameters: 111 MiB in f32, of which the layers are 108.
    let shape = "kind = \"gpt2\"\nn_layer = 4\nn_embd = 768\nn_head = 12\nn_positions = 64\nvocab_size = 500";
    let full = run("full", shape, "", &[]);
    let adapted = run("adapted", "from = \"full\"", "[lora]\n", &[]);
    let narrow = run("narrow", "from = \"full\"", "[lora]\n", &["--precision", "bf16"]);
    // Gradients and two moments of 108 MiB each are gone; and half of the weights.
    assert!(full - adapted > 290.0, "{full} and {adapted}");
    assert!(adapted - narrow > 30.0, "{adapted} and {narrow}");
    // A table of 29 MiB, which is computed anew for the output or for rows that learn.
    let shape = "kind = \"gpt2\"\nn_layer = 1\nn_embd = 256\nn_head = 4\nn_positions = 64\nvocab_size = 30000";
    run("wide", shape, "", &[]);
    run("output", "from = \"wide\"", "[lora]\ntarget_modules = \"lm_head\"\n", &[]);
    run("rows", "from = \"wide\"", "[lora]\ntrainable_token_indices = [1, 2]\n", &[]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    with_base(folder.path(), "clm", "");
    for set in [
        "lora.r=0",
        "lora.alpha=0",
        "lora.dropout=1",
        "lora.target_modules=query",
        "lora.target_modules=[\"c_attn\", \"ln_f\"]",
        "lora.trainable_token_indices=[]",
        "lora.trainable_token_indices=[1, 1]",
        "lora.trainable_token_indices=[1, 4000]",
        "lora.trainable_token_indices={ lm_head = [1] }",
        "lora.modules_to_save=scores",
        "lora.bias=some",
        "lora.rank=3",
        "lora.rank_pattern={ c_atn = 4 }",
        "lora.alpha_pattern={ \"(\" = 4 }",
        "lora.rank_pattern={ c_attn = 0 }",
        "lora.init_lora_weights=pissa",
        "lora.task_type=SEQ_CLS",
        "trainer.freeze=*",
    ] {
        messages.fails(kiln(folder.path()).args(["train", "config.toml", "--set", set]), 2);
        assert!(!folder.path().join("run").exists(), "{set}");
    }
    let both = ["--set", "lora.use_dora=true", "--set", "lora.lora_bias=true"];
    messages.fails(kiln(folder.path()).args(["train", "config.toml"]).args(both), 2);
    for beside in ["lora.target_modules=wte", "lora.target_modules=lm_head", "lora.modules_to_save=wte"] {
        let both = ["--set", "lora.trainable_token_indices=[1]", "--set", beside];
        messages.fails(kiln(folder.path()).args(["train", "config.toml"]).args(both), 2);
    }
    let both = ["--set", "lora.target_modules=wte", "--set", "lora.lora_bias=true"];
    messages.fails(kiln(folder.path()).args(["train", "config.toml"]).args(both), 2);
    // The base has no head for the task, and its pooler would be random, frozen and lost.
    let other = std::fs::read_to_string(folder.path().join("config.toml")).unwrap();
    let random = other.replace("from = \"base\"", "kind = \"gpt2\"\nvocab_size = 32");
    std::fs::write(folder.path().join("random.toml"), random).unwrap();
    messages.fails(kiln(folder.path()).args(["plan", "random.toml"]), 2);
}

/// The base's own weights are replaced by what an adapter's file has in their place; they would be
/// lost if it were trained on.
#[test]
fn an_adapter_with_weights_of_the_base_is_merged_before_it_is_trained_on() {
    let messages = messages!();
    let asked = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/fixtures/peft/gpt2");
    let folder = tempfile::tempdir().unwrap();
    let rows = "{\"input_ids\": [1, 2, 3, 4]}\n".repeat(4);
    std::fs::write(folder.path().join("data.jsonl"), rows).unwrap();
    let config = |from: &Path| {
        let text = format!(
            "[run]\noutput_dir = \"run\"\n[model]\nfrom = {from:?}\n[data]\ntask = \"clm\"\nformat = \"tokenized\"\n\
             train = \"data.jsonl\"\n[trainer]\nmax_steps = 1\nper_device_train_batch_size = 2\n[device]\nkind = \"cpu\"\n"
        );
        std::fs::write(folder.path().join("config.toml"), text).unwrap();
    };
    config(&asked.join("grown"));
    messages.fails(train(folder.path(), "refused", &[]), 2);
    // The advice, followed.
    succeeds(kiln(folder.path()).arg("merge").arg(asked.join("grown")).args(["--out", "merged"]));
    config(&folder.path().join("merged"));
    succeeds(&mut train(folder.path(), "whole", &[]));
    // Modules that are saved whole learn on.
    config(&asked.join("both"));
    succeeds(&mut train(folder.path(), "on", &[]));
    let saved = tensors(&folder.path().join("on/model/adapter_model.safetensors"));
    let before = tensors(&asked.join("both/adapter_model.safetensors"));
    assert_eq!(saved.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
    for name in ["base_model.model.lm_head.weight", "base_model.model.transformer.wte.weight"] {
        assert_ne!(saved[name].1, before[name].1, "{name} learns");
    }
}

#[test]
fn dora_trains_from_a_base_resumes_and_merges() {
    let folder = tempfile::tempdir().unwrap();
    with_base(folder.path(), "clm", &format!("{LORA}\nuse_dora = true\nrank_pattern = {{ \"mlp.c_proj\" = 3 }}"));
    let plan = succeeds(kiln(folder.path()).args(["plan", "config.toml"]));
    assert!(
        plan.contains("new DoRA of rank 2 on c_attn, mlp.c_proj") && plan.contains("rank 3 for mlp.c_proj"),
        "{plan}"
    );
    succeeds(kiln(folder.path()).args(["parity", "config.toml"]));
    succeeds(kiln(folder.path()).args(["verify-resume", "config.toml"]));
    let few = ["--set", "trainer.max_steps=2", "--set", "trainer.warmup_steps=0"];
    succeeds(&mut train(folder.path(), "run", &few));
    let saved = tensors(&folder.path().join("run/model/adapter_model.safetensors"));
    let name = "base_model.model.transformer.h.0.mlp.c_proj.lora_magnitude_vector";
    let base = &tensors(&folder.path().join("base/model/model.safetensors"))["transformer.h.0.mlp.c_proj.weight"];
    let (shape, lengths) = &saved[name];
    assert_eq!((shape.as_slice(), &base.0), (&[16][..], &vec![64, 16]));
    // Two steps of AdamW away from the lengths of the base's columns.
    let largest = (0..16).map(|column| {
        let length = base.1.iter().skip(column).step_by(16).map(|x| x * x).sum::<f32>().sqrt();
        (lengths[column] - length).abs()
    });
    let largest = largest.fold(0.0f32, f32::max);
    assert!(largest > 0.0 && largest < 0.1, "{largest}");
    let eval = |model: &str| succeeds(kiln(folder.path()).args(["eval", "config.toml", "--model", model]));
    let loss = |said: String| -> f64 {
        said.split_once("'eval_loss': ").unwrap().1.split([',', '}']).next().unwrap().parse().unwrap()
    };
    succeeds(kiln(folder.path()).args(["merge", "run", "--out", "merged"]));
    let (adapted, merged) = (loss(eval("run")), loss(eval("merged")));
    assert!((adapted - merged).abs() < 1e-5 * adapted, "{adapted} and {merged}");
}

/// A new adapter on the embedding and on the output, or rows of the embedding, begin as the base.
#[test]
fn embeddings_outputs_and_rows_learn_from_a_base_resume_and_merge() {
    for (set, learns) in [
        (
            "target_modules = [\"wte\", \"lm_head\", \"c_attn\"]\nlora_dropout = 0.1\nuse_dora = true",
            "wte.lora_embedding_B",
        ),
        ("trainable_token_indices = [3, 5]", "wte.token_adapter.trainable_tokens_delta"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        with_base(folder.path(), "clm", &format!("r = 2\n{set}"));
        let plan = succeeds(kiln(folder.path()).args(["plan", "config.toml"]));
        assert_eq!(plan.contains("beside them learn the rows of 2 tokens"), set.starts_with("trainable"), "{plan}");
        succeeds(kiln(folder.path()).args(["parity", "config.toml"]));
        succeeds(kiln(folder.path()).args(["verify-resume", "config.toml"]));
        let few = ["--set", "trainer.max_steps=2", "--set", "trainer.warmup_steps=0"];
        succeeds(&mut train(folder.path(), "run", &few));
        let saved = tensors(&folder.path().join("run/model/adapter_model.safetensors"));
        let (shape, values) = &saved[&format!("base_model.model.transformer.{learns}")];
        let base = &tensors(&folder.path().join("base/model/model.safetensors"))["transformer.wte.weight"];
        if let [2, width] = shape[..] {
            for (row, token) in [3, 5].into_iter().enumerate() {
                let (now, was) = (&values[row * width..][..width], &base.1[token * width..][..width]);
                let moved = now.iter().zip(was).map(|(now, was)| (now - was).abs()).fold(0.0, f32::max);
                assert!(moved > 0.0 && moved < 0.1, "{token}: {moved}");
            }
        } else {
            assert_eq!(shape[..], [base.0[1], 2]);
        }
        let eval = |model: &str| succeeds(kiln(folder.path()).args(["eval", "config.toml", "--model", model]));
        let loss = |said: String| -> f64 {
            said.split_once("'eval_loss': ").unwrap().1.split([',', '}']).next().unwrap().parse().unwrap()
        };
        succeeds(kiln(folder.path()).args(["merge", "run", "--out", "merged"]));
        let (adapted, merged) = (loss(eval("run")), loss(eval("merged")));
        assert!((adapted - merged).abs() < 1e-5 * adapted, "{adapted} and {merged}");
        let config = crate::common::json(&folder.path().join("merged/config.json"));
        assert_eq!(config["tie_word_embeddings"], set.starts_with("trainable"), "{config}");
    }
}

#[test]
fn an_adapter_that_cannot_be_used_is_refused() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    with_base(folder.path(), "clm", LORA);
    let few = ["--set", "trainer.max_steps=1", "--set", "trainer.warmup_steps=0"];
    succeeds(&mut train(folder.path(), "run", &few));
    let model = folder.path().join("run/model");
    let path = model.join("adapter_config.json");
    let whole: Value = crate::common::json(&path);
    let state = |name: &str, value: Value| {
        let mut stated = whole.clone();
        stated[name] = value;
        std::fs::write(&path, stated.to_string()).unwrap();
    };
    let generate = || {
        let mut command = kiln(folder.path());
        command.args(["generate", "run", "--prompt", "a"]);
        messages.fails(command, 3);
    };
    let refused = |name: &str, value: Value| {
        messages.given("adapter_config.json", &format!("{name}: {value}"));
        state(name, value);
        generate();
    };
    refused("use_dora", true.into());
    refused("peft_type", "IA3".into());
    refused("r", 0.into());
    refused("r", 3.into());
    refused("use_qalora", true.into());
    refused("rank_pattern", serde_json::json!({"c_attn": 4}));
    refused("rank_pattern", serde_json::json!({"c_attn": "4"}));
    refused("alpha_pattern", serde_json::json!({"(": 4}));
    refused("target_modules", serde_json::json!(["query"]));
    refused("target_modules", serde_json::json!(["c_attn"]));
    refused("base_model_name_or_path", "nowhere/at/all".into());
    messages.given("adapter_config.json", "{");
    std::fs::write(&path, "{").unwrap();
    generate();
    std::fs::write(&path, whole.to_string()).unwrap();
    // Another base: narrower.
    write(folder.path(), "clm");
    let narrow = ["--set", "model.n_embd=8", "--set", "trainer.max_steps=1", "--set", "trainer.warmup_steps=0"];
    succeeds(&mut train(folder.path(), "narrow", &narrow));
    refused("base_model_name_or_path", folder.path().join("narrow/model").to_str().unwrap().into());
}
