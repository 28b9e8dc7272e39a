//! Config files that are right, and every way in which one can be wrong.
#![allow(clippy::unwrap_used)]

use super::hugging_face::{PLACED, UNSUPPORTED};
use super::*;
use crate::task::Task;

/// The example of the contract, word for word.
const EXAMPLE: &str = r#"
[run]
output_dir = "runs/quickstart"
on_existing = "fail"                 # fail | resume | overwrite
[model]
kind = "gpt2"                        # gpt2 | bert
# from = "path-or-hub-id"            # a pretrained folder; or size = "small"; or explicit Hugging Face config fields:
n_layer = 4
n_head = 4
n_embd = 256
[data]
task = "clm"
format = "text"
train = ["${CARGO_HOME:-~/.cargo}/registry/src/*/burn-*/**/*.rs"]
validation = "2%"
block_size = 128
sampler = "random"
[tokenizer]
train_vocab_size = 4096
[trainer]
max_steps = 300
per_device_train_batch_size = 8
gradient_accumulation_steps = 1
learning_rate = 1e-3
lr_scheduler_type = "cosine"
warmup_steps = 20
weight_decay = 0.1
max_grad_norm = 1.0
logging_steps = 10
eval_strategy = "steps"
eval_steps = 100
seed = 42
[device]
kind = "auto"
"#;

/// The shortest file that runs; [trainer] comes last so that tests can add keys to it.
const SMALL: &str = r#"[run]
output_dir = "runs/x"
[model]
kind = "gpt2"
[data]
task = "clm"
train = "a.txt"
validation = "b.txt"
[tokenizer]
train_vocab_size = 300
[trainer]
"#;

fn parse(lines: &str) -> Result<RunConfig> {
    RunConfig::parse(&format!("{SMALL}{lines}\n"), "a.toml")
}

fn with(overrides: &[&str]) -> Result<RunConfig> {
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    RunConfig::from_text(SMALL, "a.toml", None, &overrides)
}

fn refused(result: Result<RunConfig>, parts: &[&str]) {
    let error = result.expect_err("must be refused");
    assert_eq!(error.exit_code(), 2, "{error}");
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
}

#[test]
fn the_example_of_the_contract() {
    let config = RunConfig::parse(EXAMPLE, "example").unwrap();
    assert_eq!(config.run, RunSection { output_dir: "runs/quickstart".into(), on_existing: OnExisting::Fail });
    assert_eq!(config.model.kind, Some(ModelKind::Gpt2));
    assert_eq!(config.model.fields.keys().collect::<Vec<_>>(), ["n_layer", "n_head", "n_embd"]);
    assert_eq!(config.model.fields["n_embd"].as_integer(), Some(256));
    assert_eq!(config.data.task, Task::Clm);
    assert_eq!(config.data.train, ["${CARGO_HOME:-~/.cargo}/registry/src/*/burn-*/**/*.rs"]);
    assert_eq!(config.data.validation, Some(Validation::Share(0.02)));
    assert_eq!(config.data.block_size, Some(128));
    assert_eq!(config.tokenizer, TokenizerSection::train(4096));
    let expected = TrainerSection {
        max_steps: Some(300),
        learning_rate: 1e-3,
        lr_scheduler_type: SchedulerType::Cosine,
        warmup_steps: 20.into(),
        weight_decay: 0.1,
        logging_steps: Some(10.into()),
        eval_strategy: EvalStrategy::Steps,
        eval_steps: Some(100.into()),
        ..TrainerSection::default()
    };
    assert_eq!(config.trainer, expected);
    assert_eq!(config.device, DeviceSection { kind: DeviceKind::Auto, index: 0 });
    assert_eq!(config.generation, None);
}

#[test]
fn defaults_are_hugging_faces() {
    let config = parse("").unwrap();
    let trainer = &config.trainer;
    assert_eq!((trainer.per_device_train_batch_size, trainer.per_device_eval_batch_size), (8, 8));
    assert_eq!(trainer.length(), RunLength::Epochs(3.0));
    assert_eq!((trainer.learning_rate, trainer.weight_decay, trainer.max_grad_norm), (5e-5, 0.0, 1.0));
    assert_eq!((trainer.adam_beta1, trainer.adam_beta2, trainer.adam_epsilon), (0.9, 0.999, 1e-8));
    assert_eq!((trainer.lr_scheduler_type, trainer.warmup_steps), (SchedulerType::Linear, StepsOrRatio::Steps(0)));
    assert_eq!((trainer.seed, trainer.data_seed(), trainer.eval_strategy), (42, 42, EvalStrategy::No));
    assert_eq!((config.run.on_existing, config.data.sampler), (OnExisting::Fail, Sampler::Random));
    assert_eq!((config.data.format, config.device.kind), (DataFormat::Text, DeviceKind::Auto));
}

#[test]
fn what_is_written_reads_back_equal() {
    let long =
        "max_steps = 9\nlr_scheduler_type = \"polynomial\"\nwarmup_steps = 0.25\nmax_minutes = 1.5\ndata_seed = 7
lr_scheduler_kwargs = { power = 2, lr_end = 0.0 }
[device]\nkind = \"cpu\"\n[generation]\nprompt = \"fn main\"\ntop_p = 0.9";
    for config in [RunConfig::parse(EXAMPLE, "example").unwrap(), parse(long).unwrap()] {
        let text = config.to_toml().unwrap();
        assert_eq!(RunConfig::parse(&text, "written").unwrap(), config, "{text}");
    }
    let text = parse("").unwrap().to_toml().unwrap();
    for default in
        ["num_train_epochs = 3.0", "learning_rate = 0.00005", "adam_beta2 = 0.999", "kind = \"auto\"", "index = 0"]
    {
        assert!(text.contains(default), "no {default} in {text}");
    }
    assert_eq!(RunConfig::parse(&text, "written").unwrap().trainer.length(), RunLength::Epochs(3.0));
}

#[test]
fn numbers_may_be_written_either_way() {
    let trainer = parse("max_steps = 1e3\nlearning_rate = 1\nseed = 7.0").unwrap().trainer;
    assert_eq!((trainer.max_steps, trainer.learning_rate, trainer.seed), (Some(1000), 1.0, 7));
    let trainer = parse("max_steps = -1\nnum_train_epochs = 2").unwrap().trainer;
    assert_eq!((trainer.max_steps, trainer.length()), (None, RunLength::Epochs(2.0)));
    assert_eq!(parse("max_tokens = 1e9\nmax_minutes = 10").unwrap().trainer.length(), RunLength::Tokens(1_000_000_000));
    refused(parse("max_steps = 1.5"), &["a.toml:12: trainer.max_steps: expected a whole number", "`1.5`"]);
    refused(parse("max_steps = -2"), &["trainer.max_steps: expected a whole number, or -1 for none, got integer `-2`"]);
}

#[test]
fn older_spellings() {
    let config = parse(
        "evaluation_strategy = \"epoch\"\nwarmup_ratio = 0.1\nper_gpu_train_batch_size = 4\nper_gpu_eval_batch_size = 5\n\
         use_cpu = true\ntrain_sampling_strategy = \"sequential\"",
    )
    .unwrap();
    assert_eq!(config.trainer.eval_strategy, EvalStrategy::Epoch);
    assert_eq!(config.trainer.warmup_steps, StepsOrRatio::Ratio(0.1));
    assert_eq!((config.trainer.per_device_train_batch_size, config.trainer.per_device_eval_batch_size), (4, 5));
    assert_eq!((config.device.kind, config.data.sampler), (DeviceKind::Cpu, Sampler::Sequential));
    assert_eq!(parse("no_cuda = false").unwrap().device.kind, DeviceKind::Auto);
    assert_eq!(parse("warmup_ratio = 0").unwrap().trainer.warmup_steps, StepsOrRatio::Steps(0));
    refused(
        parse("evaluation_strategy = \"sometimes\""),
        &[
            "a.toml:12: trainer.eval_strategy (written as trainer.evaluation_strategy): unknown evaluation strategy `sometimes`",
        ],
    );
    refused(
        parse("warmup_ratio = 1.0"),
        &["a.toml:12: trainer.warmup_ratio: expected a ratio from 0 to below 1, got 1"],
    );
    refused(parse("no_cuda = \"yes\""), &["trainer.no_cuda: expected true or false, got \"yes\""]);
    refused(parse("train_sampling_strategy = \"group_by_length\""), &["`group_by_length` is not supported"]);
}

#[test]
fn two_spellings_of_one_thing() {
    refused(
        parse("eval_strategy = \"no\"\nevaluation_strategy = \"no\""),
        &[
            "a.toml:13",
            "`trainer.eval_strategy` and `trainer.evaluation_strategy` are two ways of stating the same thing",
        ],
    );
    refused(
        parse("warmup_ratio = 0.1\nwarmup_steps = 3"),
        &["`trainer.warmup_ratio` and `trainer.warmup_steps` are two ways"],
    );
    refused(parse("use_cpu = true\n[device]\nkind = \"cpu\""), &["`trainer.use_cpu` and `device.kind` are two ways"]);
}

#[test]
fn two_ways_of_stating_the_same_thing() {
    let two = "are two ways of stating the same thing";
    refused(parse("max_steps = 3\nnum_train_epochs = 1"), &["`trainer.max_steps` and `trainer.num_train_epochs`", two]);
    refused(parse("max_tokens = 3\nnum_train_epochs = 1"), &["a.toml:12: trainer.max_tokens", two]);
    refused(with(&["model.from=x", "model.size=small"]), &["`model.from` and `model.size`", two]);
    refused(with(&["tokenizer.from=x"]), &["`tokenizer.from` and `tokenizer.train_vocab_size`", two]);
    assert!(with(&["model.size=small", "model.n_layer=3"]).is_ok());
    assert!(with(&["model.from=x", "model.n_layer=3"]).is_ok());
}

#[test]
fn unknown_keys_and_sections() {
    refused(
        parse("seed = 1\nlerning_rate = 1"),
        &[
            "a.toml:13: trainer.lerning_rate: unknown key",
            "did you mean `learning_rate`?",
            "[trainer] has max_steps, num_train_epochs",
        ],
    );
    refused(
        parse("[devise]\nkind = \"cpu\""),
        &["a.toml:12: devise: unknown section", "did you mean [device]?", "[generation]"],
    );
    refused(parse("[compiler]\nenabled = true"), &["compiler: unknown section", "known sections: [run], [model]"]);
    refused(
        RunConfig::parse("precision = \"bf16\"", "a.toml"),
        &["a.toml:1: precision: unknown section or top-level key"],
    );
    refused(RunConfig::parse("run = 3", "a.toml"), &["a.toml:1: run: expected a section [run], got 3"]);
    refused(parse("[device]\nkinds = \"cpu\""), &["a.toml:13: device.kinds", "did you mean `kind`?"]);
    refused(
        parse("lr_scheduler_kwargs = { pwer = 2 }"),
        &["trainer.lr_scheduler_kwargs.pwer: unknown key", "did you mean `power`?"],
    );
    refused(RunConfig::parse("[run]\noutput = 1", "a.toml"), &["a.toml:2: run.output: unknown key", "`output_dir`"]);
    refused(RunConfig::parse("[tokenizer]\nvocab = 1", "a.toml"), &["[tokenizer] has from, train_vocab_size"]);
    refused(RunConfig::parse("[data]\ntext_column = 1", "a.toml"), &["data.text_column: unknown key"]);
    refused(RunConfig::parse("[generation]\nprompts = 1", "a.toml"), &["did you mean `prompt`?"]);
    let models = unknown_key("model", "n_layers", &["n_layer", "n_head"]).to_string();
    assert!(models.contains("model.n_layers: unknown key") && models.contains("did you mean `n_layer`?"), "{models}");
}

#[test]
fn hugging_face_arguments_that_are_not_honoured() {
    for (key, part) in [
        ("fp16 = true", "f32"),
        ("bf16 = false", "f32"),
        ("save_steps = 500", "run.output_dir/model"),
        ("report_to = \"wandb\"", "metrics.jsonl"),
        ("deepspeed = \"ds.json\"", "one device"),
        ("push_to_hub = true", "upload"),
        ("group_by_length = true", "data.sampler"),
        ("overwrite_output_dir = true", "run.on_existing"),
        ("output_dir = \"x\"", "run.output_dir"),
        ("gradient_checkpointing = true", "gradient_accumulation_steps"),
        ("dataloader_num_workers = 4", "its own process"),
    ] {
        let name = key.split(' ').next().unwrap();
        refused(parse(key), &[&format!("Hugging Face's `{name}` is not supported by this version"), "a.toml:12", part]);
    }
    let mut names: Vec<&str> = UNSUPPORTED.iter().flat_map(|(names, _)| *names).copied().chain(PLACED).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "an argument is listed twice");
    for name in names {
        assert!(parse(&format!("{name} = \"a word\"")).is_err(), "{name} is honoured and refused at once");
    }
}

#[test]
fn wrong_types() {
    refused(
        parse("max_steps = \"many\""),
        &["a.toml:12: trainer.max_steps: expected a whole number", "got string \"many\""],
    );
    refused(parse("learning_rate = \"fast\""), &["trainer.learning_rate: expected a number, got string \"fast\""]);
    refused(parse("learning_rate = true"), &["trainer.learning_rate: expected a number, got boolean `true`"]);
    refused(parse("eval_on_start = 1"), &["trainer.eval_on_start: expected true or false, got integer `1`"]);
    refused(parse("seed = [1]"), &["trainer.seed: expected a whole number that is not negative, got a list"]);
    refused(parse("lr_scheduler_type = 3"), &["trainer.lr_scheduler_type: expected a string, got integer `3`"]);
    refused(parse("lr_scheduler_kwargs = 3"), &["trainer.lr_scheduler_kwargs: expected a table, got integer `3`"]);
    refused(
        parse("lr_scheduler_kwargs.power = \"two\""),
        &["a.toml:12: trainer.lr_scheduler_kwargs.power: expected a number"],
    );
    refused(with(&["model.kind=3"]), &["--set model.kind=3: model.kind: expected a string, got integer `3`"]);
    refused(with(&["data.train=3"]), &["data.train: expected a string or a list of strings, got integer `3`"]);
    refused(with(&["data.train=[1]"]), &["data.train", "expected a string, got integer `1`"]);
    refused(with(&["data.validation=2"]), &["data.validation: expected files, or a share", "got integer `2`"]);
    refused(with(&["run.output_dir=3"]), &["run.output_dir: expected", "got integer `3`"]);
}

#[test]
fn unknown_names() {
    refused(
        parse("lr_scheduler_type = \"cosin\""),
        &[
            "a.toml:12: trainer.lr_scheduler_type: unknown learning-rate schedule `cosin`",
            "help: did you mean `cosine`?",
        ],
    );
    refused(
        parse("lr_scheduler_type = \"reduce_lr_on_plateau\""),
        &["trainer.lr_scheduler_type", "function of the step alone"],
    );
    refused(parse("optim = \"adamw_troch\""), &["trainer.optim: unknown optimizer", "did you mean `adamw_torch`?"]);
    refused(parse("optim = \"adafactor\""), &["trainer.optim: Hugging Face's optimizer `adafactor` is not supported"]);
    refused(
        with(&["data.task=clmm"]),
        &["data.task: unknown task `clmm`", "did you mean `clm`?", "sequence-classification"],
    );
    refused(with(&["model.kind=gpt3"]), &["model.kind: unknown model kind `gpt3`", "did you mean `gpt2`?"]);
    refused(
        with(&["data.format=csv"]),
        &["data.format: `csv` is not available: this version reads `text` and `tokenized`"],
    );
    refused(with(&["run.on_existing=resume"]), &["run.on_existing: `resume` is not available"]);
    refused(
        with(&["device.kind=gpu"]),
        &["device.kind: unknown device kind `gpu`: expected one of auto, cpu, wgpu, cuda"],
    );
}

#[test]
fn numbers_out_of_range() {
    for (line, expected) in [
        ("learning_rate = nan", "trainer.learning_rate: expected a finite number, got NaN"),
        ("weight_decay = inf", "trainer.weight_decay: expected a finite number, got inf"),
        ("lr_scheduler_kwargs.power = -inf", "trainer.lr_scheduler_kwargs.power: expected a finite number"),
        ("learning_rate = 0", "trainer.learning_rate: expected a number above 0, got 0"),
        ("learning_rate = -1e-3", "trainer.learning_rate: expected a number above 0, got -0.001"),
        ("weight_decay = -0.1", "trainer.weight_decay: expected a number of 0 or more, got -0.1"),
        ("adam_beta1 = 1.0", "trainer.adam_beta1: expected a number from 0 to below 1, got 1"),
        ("adam_beta2 = -0.1", "trainer.adam_beta2: expected a number from 0 to below 1, got -0.1"),
        ("adam_epsilon = 0.0", "trainer.adam_epsilon: expected a number above 0, got 0"),
        ("max_grad_norm = -1", "trainer.max_grad_norm: expected a number of 0 or more"),
        ("num_train_epochs = 0", "trainer.num_train_epochs: expected a number above 0, got 0"),
        ("max_minutes = 0", "trainer.max_minutes: expected a number above 0, got 0"),
        ("max_steps = 0", "trainer.max_steps: expected 1 or more, got 0"),
        ("max_tokens = 0", "trainer.max_tokens: expected 1 or more, got 0"),
        ("per_device_train_batch_size = 0", "trainer.per_device_train_batch_size: expected 1 or more, got 0"),
        ("per_device_eval_batch_size = 0", "trainer.per_device_eval_batch_size: expected 1 or more, got 0"),
        ("gradient_accumulation_steps = 0", "trainer.gradient_accumulation_steps: expected 1 or more, got 0"),
        ("per_device_train_batch_size = -8", "expected a whole number that is not negative, got integer `-8`"),
        ("logging_steps = 0", "trainer.logging_steps: expected 1 or more, got 0"),
        ("warmup_steps = -1", "trainer.warmup_steps: expected a whole number of steps, or a ratio between 0 and 1"),
        ("max_steps = 10\nwarmup_steps = 11", "the warm-up of 11 steps is longer than the run of 10 steps"),
        ("lr_scheduler_type = \"constant\"\nwarmup_steps = 0.1", "the schedule `constant` has no warm-up"),
        ("lr_scheduler_kwargs.power = 2", "the schedule `linear` has no argument `power`"),
    ] {
        refused(parse(line), &["a.toml:1", expected]);
    }
    refused(with(&["model.dropout=nan"]), &["--set model.dropout=nan: model.dropout: expected a finite number"]);
}

#[test]
fn data_tokenizer_evaluation_and_generation_must_fit() {
    refused(with(&["data.block_size=0"]), &["data.block_size: expected 1 or more, got 0"]);
    refused(with(&["data.block_size=1"]), &["data.block_size: expected 2 or more, got 1"]);
    refused(with(&["data.train=[]"]), &["data.train: required"]);
    refused(with(&["data.train="]), &["data.train: expected a name or path, got an empty string"]);
    refused(with(&["data.validation=[]"]), &["data.validation: expected files or a share, got an empty list"]);
    refused(with(&["data.validation=150%"]), &["data.validation: expected a share", "150%"]);
    refused(with(&["data.task=regression"]), &["data.format: `text` holds no labels for the task regression"]);
    refused(with(&["tokenizer.train_vocab_size=256"]), &["expected more than the 256 bytes", "got 256"]);
    refused(
        with(&["data.format=tokenized"]),
        &["tokenizer.train_vocab_size: there is no text to learn a tokenizer from"],
    );
    let none = "[run]\noutput_dir = \"x\"\n[model]\nkind = \"gpt2\"\n[data]\ntask = \"clm\"\ntrain = \"a\"\n";
    refused(
        RunConfig::parse(none, "a.toml"),
        &["tokenizer: text needs a tokenizer: expected `from` or `train_vocab_size`"],
    );
    refused(
        RunConfig::parse(&format!("{none}format = \"tokenized\"\n[generation]\nprompt = \"a\""), "a.toml"),
        &["a.toml:9: generation: writing text needs a tokenizer"],
    );
    refused(
        RunConfig::parse(&format!("{none}[tokenizer]\nfrom = \"t\"\n[trainer]\neval_strategy = \"epoch\""), "a.toml"),
        &["a.toml:11: trainer.eval_strategy: `epoch` needs validation data", "data.validation"],
    );
    refused(
        RunConfig::parse(&format!("{none}[tokenizer]\nfrom = \"t\"\n[trainer]\neval_on_start = true"), "a.toml"),
        &["trainer.eval_on_start: needs validation data"],
    );
    refused(parse("eval_steps = 5"), &["trainer.eval_steps: has no effect with eval_strategy = \"no\""]);
    refused(with(&["data.task=mlm", "generation.prompt=a"]), &["generation: only a causal language model writes text"]);
    refused(parse("[generation]"), &["generation.prompt: required"]);
    for (set, expected) in [
        ("generation.max_new_tokens=0", "expected 1 or more, got 0"),
        ("generation.temperature=-1", "expected a number of 0 or more, got -1"),
        ("generation.top_p=0", "expected a number above 0 and at most 1, got 0"),
        ("generation.top_p=1.5", "expected a number above 0 and at most 1, got 1.5"),
    ] {
        refused(with(&["generation.prompt=a", set]), &[&format!("--set {set}: "), expected]);
    }
    let generation = with(&["generation.prompt=fn main"]).unwrap().generation.unwrap();
    assert_eq!(generation, GenerationSection::new("fn main"));
}

#[test]
fn what_is_required() {
    refused(RunConfig::parse("", "a.toml"), &["a.toml: data.task: required", "one of clm, mlm"]);
    refused(RunConfig::parse("[data]\ntask = \"clm\"", "a.toml"), &["run.output_dir: required"]);
    refused(
        RunConfig::parse("[data]\ntask = \"clm\"\n[run]\noutput_dir = \"x\"", "a.toml"),
        &["model: expected `kind`"],
    );
    refused(with(&["model.from="]), &["model.from: expected a name or path, got an empty string"]);
}

#[test]
fn overrides() {
    let config = with(&[
        "trainer.max_steps=10",
        "trainer.max_steps = 20",
        "trainer.optim = adamw",
        "trainer.lr_scheduler_type=polynomial",
        "trainer.lr_scheduler_kwargs.power=2",
        "trainer.lr_scheduler_kwargs.lr_end=1e-6",
        "data.train=[\"a b.txt\", \"c=d.txt\"]",
        "data.validation=2%",
        "run.output_dir=2025-01-31",
        "device.kind=cpu",
        "model.n_layer=2",
        "trainer.evaluation_strategy=epoch",
    ])
    .unwrap();
    assert_eq!(config.trainer.max_steps, Some(20));
    assert_eq!(
        config.trainer.lr_scheduler_kwargs,
        SchedulerKwargs { power: Some(2.0), lr_end: Some(1e-6), ..Default::default() }
    );
    assert_eq!(config.data.train, ["a b.txt", "c=d.txt"]);
    assert_eq!(config.data.validation, Some(Validation::Share(0.02)));
    assert_eq!(config.run.output_dir, Path::new("2025-01-31"));
    assert_eq!((config.device.kind, config.trainer.eval_strategy), (DeviceKind::Cpu, EvalStrategy::Epoch));
    assert_eq!(config.model.fields["n_layer"].as_integer(), Some(2));
    let table = with(&["trainer.lr_scheduler_type=cosine", "trainer.lr_scheduler_kwargs={num_cycles=2}"]).unwrap();
    assert_eq!(table.trainer.lr_scheduler_kwargs.num_cycles, Some(2.0));
}

#[test]
fn overrides_that_are_refused() {
    for bad in ["trainer.max_steps", "max_steps=3", "=3", ".=3", "trainer.=3", ".max_steps=3"] {
        refused(with(&[bad]), &["expected section.key=value"]);
    }
    refused(
        with(&["trainer.max_step=3"]),
        &["--set trainer.max_step=3: trainer.max_step: unknown key", "did you mean `max_steps`?"],
    );
    refused(with(&["trainr.max_steps=3"]), &["--set", "trainr: unknown section", "did you mean [trainer]?"]);
    refused(with(&["trainer.seed.x=3"]), &["trainer.seed"]);
    refused(with(&["data.task.x=3"]), &["data.task is \"clm\", not a table"]);
    refused(
        with(&["trainer.lr_scheduler_kwargs.pow=3"]),
        &["--set trainer.lr_scheduler_kwargs.pow=3", "unknown key", "did you mean `power`?"],
    );
    refused(with(&["trainer.max_steps=x\ny=1"]), &["trainer.max_steps: expected a whole number"]);
    refused(with(&["trainer.learning_rate=inf"]), &["--set trainer.learning_rate=inf", "expected a finite number"]);
}

#[test]
fn files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.toml");
    std::fs::write(&path, SMALL.replace("output_dir = \"runs/x\"\n", "")).unwrap();
    assert_eq!(RunConfig::load(&path).unwrap().run.output_dir, Path::new("runs/small"));
    let set = RunConfig::load_with(&path, &["run.output_dir=elsewhere".into()]).unwrap();
    assert_eq!(set.run.output_dir, Path::new("elsewhere"));

    refused(RunConfig::load(folder.path().join("smal.toml")), &["smal.toml: no such config file", "small.toml"]);
    refused(RunConfig::load(folder.path()), &["expected a config file, got a folder", "small.toml"]);
    refused(
        RunConfig::load("no/such/folder/a.toml"),
        &["no such config file", "there is no .toml file in no/such/folder"],
    );
    std::fs::write(&path, b"[run]\noutput_dir = \"caf\xe9\"\n").unwrap();
    refused(RunConfig::load(&path), &["small.toml:2: expected UTF-8 text, got other bytes at byte 23"]);
}

#[test]
fn text_that_is_not_toml() {
    assert!(RunConfig::parse(&format!("\u{feff}{}", SMALL.replace('\n', "\r\n")), "a.toml").is_ok());
    refused(
        RunConfig::parse("[run]\noutput_dir = runs/x\n", "a.toml"),
        &["a.toml: ", "line 2, column", "output_dir = runs/x"],
    );
    refused(RunConfig::parse("[run]\na = 1\na = 2\n", "a.toml"), &["a.toml: ", "line 3", "duplicate key"]);
    refused(RunConfig::parse("{\"run\": {}}", "a.json"), &["a.json: ", "the file is TOML"]);
}

#[test]
fn the_builder_checks_like_a_file() {
    let builder = || {
        RunConfig::builder("runs/x")
            .model(ModelSection::new(ModelKind::Gpt2).with_size("small").with("n_layer", 2))
            .data(DataSection::tokenized(Task::Clm, ["a.jsonl"]))
    };
    let config = builder().device(DeviceKind::Cpu).on_existing(OnExisting::Overwrite).build().unwrap();
    assert_eq!(config.model.fields["n_layer"].as_integer(), Some(2));
    assert_eq!(RunConfig::parse(&config.to_toml().unwrap(), "x").unwrap().model, config.model);
    let trainer = TrainerSection { learning_rate: f64::NAN, ..Default::default() };
    refused(builder().trainer(trainer).build(), &["trainer.learning_rate: expected a finite number, got NaN"]);
    let trainer = TrainerSection { warmup_steps: StepsOrRatio::Ratio(1.5), ..Default::default() };
    refused(builder().trainer(trainer).build(), &["trainer.warmup_steps: expected a ratio between 0 and 1, got 1.5"]);
    let trainer = TrainerSection { seed: u64::MAX, ..Default::default() };
    refused(builder().trainer(trainer).build(), &["trainer.seed: expected at most"]);
    refused(builder().tokenizer(TokenizerSection::train(4096)).build(), &["no text to learn a tokenizer from"]);
    let config =
        RunConfig::builder("x").model(ModelSection::from_pretrained("gpt2")).data(DataSection::text(Task::Clm, ["a"]));
    let config =
        config.tokenizer(TokenizerSection::from_pretrained("t")).generation(GenerationSection::new("a")).build();
    assert!(config.is_ok());
}
