//! A plan is a value: the same config and facts have the same plan, what is read back of it is what
//! was written, and it can be derived for a model that is not Kiln's.

use std::path::Path;

use kiln::OpenSession;

use kiln::config::{RunConfig, TrainingArguments};
use kiln::plan::{ModelFacts, RunPlan, TrainPlan};
use kiln::session::Planned;
use kiln::{Error, Result, Session};
use kiln_core::model_config::BertConfig;
use kiln_models::{Model, ModelConfig};
use kiln_train::description::Description;
use kiln_train::optim::loss::LossOptions;
use tempfile::TempDir;

const BERT: &str = "kind = \"bert\"\nnum_hidden_layers = 2\nnum_attention_heads = 1\nhidden_size = 8\n\
                    intermediate_size = 16\nmax_position_embeddings = 16\nvocab_size = 32\n";
const GPT2: &str = "kind = \"gpt2\"\nn_layer = 2\nn_head = 1\nn_embd = 8\nn_positions = 16\n";

/// A config with these lines, on rows of token ids with a class, or on text.
fn config(folder: &Path, model: &str, data: &str, trainer: &str, rest: &str) -> RunConfig {
    let row = |i: usize| format!("{{\"input_ids\": [{}], \"labels\": {}}}\n", vec!["3"; 2 + i % 9].join(","), i % 3);
    std::fs::write(folder.join("rows.jsonl"), (0..40).map(row).collect::<String>()).unwrap();
    std::fs::write(folder.join("text.txt"), "one two three four five six seven. ".repeat(60)).unwrap();
    let at = |name: &str| format!("{:?}", folder.join(name).display().to_string());
    let data = data.replace("ROWS", &at("rows.jsonl")).replace("TEXT", &at("text.txt"));
    let text = format!(
        "[run]\noutput_dir = {}\n[model]\n{model}[data]\n{data}[trainer]\n{trainer}\n[device]\nkind = \"cpu\"\n{rest}",
        at("run")
    );
    RunConfig::parse(&text, "test").unwrap().into()
}

const ROWS: &str = "task = \"sequence-classification\"\nformat = \"tokenized\"\ntrain = ROWS\nvalidation = \"25%\"\n";
const TEXT: &str = "task = \"clm\"\ntrain = TEXT\nblock_size = 8\n";
const LEARNED: &str = "[tokenizer]\ntrain_vocab_size = 270\n";

fn configs(folder: &TempDir) -> Vec<RunConfig> {
    let folder = folder.path();
    let many = "max_steps = 30\nper_device_train_batch_size = 4\ngradient_accumulation_steps = 2\nwarmup_steps = 0.1\n\
                lr_scheduler_type = \"cosine_with_min_lr\"\nlr_scheduler_kwargs = { min_lr_rate = 0.1 }\n\
                layer_wise_lr_decay = 0.9\nfreeze = \"*embeddings*\"\nclass_weights = [1.0, 2.0, 0.3]\n\
                label_smoothing_factor = 0.1\neval_strategy = \"steps\"\neval_steps = \"80 samples\"\n\
                save_strategy = \"best\"\nmetric_for_best_model = \"accuracy\"\nearly_stopping_patience = 3\n\
                optim = \"muon\"\nmax_minutes = 1.5";
    vec![
        config(folder, BERT, &format!("{ROWS}padding = \"buckets\"\n"), many, "[compiler]\n"),
        config(folder, BERT, ROWS, "optim = \"adafactor\"\nlearning_rate = 1e-3", "[compiler]\nenabled = \"auto\"\n"),
        config(folder, GPT2, TEXT, "num_train_epochs = 2.5", &format!("{LEARNED}[generation]\nprompt = \"one\"\n")),
        config(
            folder,
            GPT2,
            TEXT,
            "max_tokens = 1e4\nlearning_rate = 5e-5",
            &format!("{LEARNED}[learning_rate]\nscaling = \"linear\"\nreference_batch = 32\n"),
        ),
    ]
}

#[test]
fn a_plan_is_the_same_value_whenever_it_is_derived_and_after_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    for config in configs(&folder) {
        let config = config.checked().unwrap();
        let session = Session::open(config.clone()).unwrap();
        let plan = session.run_plan().unwrap();
        assert_eq!(RunPlan::derive(&config, &session.run_facts().unwrap()).unwrap(), plan);
        assert_eq!(session.with(|_| {}).unwrap().run_plan().unwrap(), plan);
        let text = serde_json::to_string_pretty(&plan).unwrap();
        let read = serde_json::from_str::<RunPlan>(&text).unwrap();
        assert_eq!(read, plan, "{text}");
        assert_eq!(serde_json::to_string_pretty(&read).unwrap(), text);
        assert_eq!(read.describe(), plan.describe());
        // The config with everything explicit has a plan that does the same.
        let again = Session::open(session.config().unwrap().checked().unwrap()).unwrap();
        assert_eq!(again.config().unwrap(), session.config().unwrap());
        assert_eq!(
            (&again.plan().steps.total, &again.plan().optimizer),
            (&plan.train.steps.total, &plan.train.optimizer)
        );
    }
}

#[test]
fn another_config_on_what_is_open_has_another_plan() {
    let folder = tempfile::tempdir().unwrap();
    let session = Session::open(configs(&folder).remove(0).checked().unwrap()).unwrap();
    let halved = session.with(|trainer| {
        trainer.per_device_train_batch_size = 2.into();
        trainer.gradient_accumulation_steps = 4;
    });
    let halved = halved.unwrap();
    assert_eq!((session.plan().batch.micro, halved.plan().batch.micro), (4, 2), "the first is what it was");
    assert_eq!(halved.plan().steps, session.plan().steps);
    assert_eq!(halved.plan().optimizer, session.plan().optimizer);
    let files = halved.description().unwrap().files;
    let (_, plan_toml) = files.iter().find(|(name, _)| name == "plan.toml").unwrap();
    assert!(String::from_utf8_lossy(plan_toml).contains("\nper_device_train_batch_size = 2\n"));
    let error = session.with(|trainer| trainer.warmup_steps = 31.into()).err().unwrap();
    assert!(error.to_string().contains("warmup_steps"), "{error}");
}

/// No way to a plan passes by the rules that arguments keep by themselves.
#[test]
fn arguments_out_of_range_have_no_plan() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let session = Session::open(configs(&folder).remove(0).checked()?)?;
    let refused = |error: Option<Error>, expected: &str| {
        let error = error.unwrap();
        assert_eq!((error.exit_code(), error.to_string().as_str()), (2, expected));
    };
    let micro = |trainer: &mut TrainingArguments| {
        trainer.per_device_train_batch_size = 0.into();
        trainer.batch.global_batch_size = Some(8);
    };
    refused(session.with(micro).err(), "trainer.per_device_train_batch_size: expected 1 or more, got 0");
    let rate = session.derive(|trainer, _| {
        trainer.learning_rate = f64::NAN;
        Ok(())
    });
    refused(rate.err(), "trainer.learning_rate: expected a finite number, got NaN");
    let arguments = TrainingArguments { weight_decay: -0.1, ..session.arguments().clone() };
    refused(
        arguments.checked().err().map(Error::from),
        "trainer.weight_decay: expected a number of 0 or more, got -0.1",
    );
    let arguments = TrainingArguments { output_dir: "".into(), ..session.arguments().clone() };
    refused(arguments.checked().err().map(Error::from), "run.output_dir: required: the folder that the run writes to");
    Ok(())
}

#[test]
fn a_model_that_is_not_kilns_has_a_plan() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let mut config = configs(&folder).remove(1);
    config.trainer.compiler = None;
    let session = Session::open(config.clone().checked()?)?;
    let bert = BertConfig { num_hidden_layers: 1, hidden_size: 8, num_attention_heads: 1, ..BertConfig::default() };
    let module = Model::new(&ModelConfig::Bert(bert), kiln::config::Task::Mlm.head(), &burn::tensor::Device::flex())?;
    let mut facts = session.facts().clone();
    facts.model = ModelFacts::of("llama", &module);
    let mut arguments = config.arguments();
    let plan = TrainPlan::derive(&arguments.clone().checked()?, &facts)?;
    // The least, since nobody has counted its activations.
    let values = plan.model.num_parameters as u64;
    assert_eq!((plan.known_memory().weights, plan.known_memory().gradients), (4 * values, 4 * values));
    assert!(plan.describe().contains("memory         at least "), "{}", plan.describe());
    // Its file is read where the plans of all runs are read.
    let run = Planned { arguments: &arguments, facts: &facts, plan: &plan };
    let written = Description::of_a_program(run)?.files;
    let read = serde_json::from_slice::<RunPlan>(&written[0].1).unwrap();
    assert_eq!((read.train.model.kind.as_str(), &read.architecture, &read.memory.estimate), ("llama", &None, &None));
    assert_eq!(read.train, plan);
    arguments.label_smoothing_factor = 0.1;
    let error = LossOptions::of_a_program(&arguments).unwrap_err().to_string();
    assert!(error.contains("label_smoothing_factor: this model computes its own loss"), "{error}");
    Ok(())
}

/// A trainer whose world is another one than that of the plan would make other steps than the plan
/// says, on each of the ranks.
#[test]
fn a_plan_for_several_devices_is_not_trained_on_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path(), BERT, ROWS, "max_steps = 2", "");
    config.trainer.devices = kiln::distributed::Devices { count: 2, nodes: 1 };
    let error =
        kiln::Trainer::from_session(Session::open(config.checked().unwrap()).unwrap()).unwrap().train().unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(
        error.to_string().contains("the plan is one for 2 devices, and the trainer's world has 1 device"),
        "{error}"
    );
    assert!(!folder.path().join("run").exists(), "nothing is written");
}
