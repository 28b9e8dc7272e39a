//! Config files that are right, and what is read from them.
#![allow(clippy::unwrap_used)]

use kiln_models::Operator;

use super::*;
use crate::config::Task;

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

#[test]
fn the_example_of_the_contract() {
    let config = RunConfig::parse(EXAMPLE, "example").unwrap();
    assert_eq!(config.trainer.output_dir, Path::new("runs/quickstart"));
    assert_eq!((config.trainer.on_existing, &config.trainer.run_name), (OnExisting::Fail, &None));
    assert_eq!(config.model.kind, Some(ModelKind::Gpt2));
    assert_eq!(config.model.fields.keys().collect::<Vec<_>>(), ["n_layer", "n_head", "n_embd"]);
    assert_eq!(config.model.fields["n_embd"].as_integer(), Some(256));
    assert_eq!(config.data.task, Task::Clm);
    assert_eq!(config.data.train, ["${CARGO_HOME:-~/.cargo}/registry/src/*/burn-*/**/*.rs"]);
    assert_eq!(config.data.validation, Some(Validation::Share(0.02)));
    assert_eq!(config.data.block_size, Some(128));
    assert_eq!(config.tokenizer, TokenizerSection::train(4096));
    let expected = TrainingArguments {
        max_steps: Some(300),
        learning_rate: 1e-3,
        lr_scheduler_type: SchedulerType::Cosine,
        warmup_steps: 20.into(),
        weight_decay: 0.1,
        logging_steps: Some(10.into()),
        eval_strategy: EvalStrategy::Steps,
        eval_steps: Some(100.into()),
        ..TrainingArguments::new("runs/quickstart")
    };
    assert_eq!(config.trainer, expected);
    assert_eq!(config.trainer.device, DeviceArguments { kind: DeviceKind::Auto, index: 0 });
    assert_eq!(config.generation, None);
}

#[test]
fn defaults_are_hugging_faces() {
    let config = parse("").unwrap();
    let trainer = &config.trainer;
    assert_eq!((trainer.per_device_train_batch_size, trainer.per_device_eval_batch_size), (8.into(), 8));
    assert_eq!(trainer.length(), RunLength::Epochs(3.0));
    assert_eq!((trainer.learning_rate, trainer.weight_decay, trainer.max_grad_norm), (5e-5, 0.0, 1.0));
    assert_eq!((trainer.adam_beta1, trainer.adam_beta2, trainer.adam_epsilon), (0.9, 0.999, 1e-8));
    assert_eq!((trainer.lr_scheduler_type, trainer.warmup_steps), (SchedulerType::Linear, Interval::Steps(0)));
    assert_eq!((trainer.seed, trainer.data_seed(), trainer.eval_strategy), (42, 42, EvalStrategy::No));
    assert_eq!((config.trainer.on_existing, config.trainer.sampler), (OnExisting::Fail, Sampler::Random));
    assert_eq!((config.data.format, config.trainer.device.kind), (DataFormat::Text, DeviceKind::Auto));
}

/// Each entry says what a resumed run may do with its key, and `plan.toml` writes it there.
#[test]
fn every_key_of_the_trainer_is_in_its_table() {
    let keys = settings::keys_of("trainer").unwrap();
    let known = field_names::<TrainingArguments>();
    assert!(keys.iter().all(|key| known.contains(&key.as_str())), "{keys:?}");
    let written = toml::Table::try_from(TrainingArguments { output_dir: "a".into(), ..Default::default() }).unwrap();
    assert!(written.keys().all(|key| keys.contains(key)), "{written}");
    assert!(!keys.contains(&"output_dir".to_owned()), "{keys:?}");
}

#[test]
fn a_compiler_section_switches_it_on() {
    assert_eq!(parse("").unwrap().trainer.compiler, None);
    let of = |section: &str| parse(section).unwrap().trainer.compiler.unwrap();
    assert_eq!(of("[compiler]"), TrainingCompilerConfig::default());
    assert_eq!(
        of("[compiler]\nenabled = false\nfused_ops = \"on\""),
        TrainingCompilerConfig {
            enabled: CompilerMode::Native,
            fused_ops: Switch::On.into(),
            ..TrainingCompilerConfig::default()
        }
    );
    let all = "[compiler]\nfusion = \"off\"\nautotune = \"extensive\"\ngraph = \"on\"";
    let (fusion, graph) = (Switch::Off, Switch::On);
    let expected = TrainingCompilerConfig {
        fusion,
        autotune: AutotuneLevel::Extensive,
        graph,
        ..TrainingCompilerConfig::default()
    };
    assert_eq!(of(all), expected);
    let mut config = parse("[compiler]\nfused_ops = \"off\"").unwrap();
    config.trainer.set_compiler(CompilerMode::Native);
    assert_eq!(
        config.trainer.compiler,
        Some(TrainingCompilerConfig {
            enabled: CompilerMode::Native,
            fused_ops: Switch::Off.into(),
            ..TrainingCompilerConfig::default()
        })
    );
    let mut config = parse("").unwrap();
    config.trainer.set_compiler(CompilerMode::Compiled);
    assert_eq!(config.trainer.compiler, Some(TrainingCompilerConfig::default()));
    config.trainer.set_compiler(CompilerMode::Auto);
    assert_eq!(config.trainer.compiler_mode(), CompilerMode::Auto);
    let some = of("[compiler]\nenabled = \"auto\"\nfused_ops = [\"gelu\", \"attention\"]");
    assert_eq!(some.enabled, CompilerMode::Auto);
    assert_eq!(some.fused_ops, FusedOps::Only(vec![Operator::Gelu, Operator::Attention]));
}

#[test]
fn what_is_written_reads_back_equal() {
    let long =
        "max_steps = 9\nlr_scheduler_type = \"polynomial\"\nwarmup_steps = 0.25\nmax_minutes = 1.5\ndata_seed = 7
lr_scheduler_kwargs = { power = 2, lr_end = 0.0 }
optim = \"muon\"\noptim_args = \"ns_steps=4,adjust_lr_fn=original\"\nfreeze = \"*wte*\"\nfreeze_layers = 1
layer_wise_lr_decay = 0.9\nlabel_smoothing_factor = 0.1\nclass_weights = [1, 2.5]
[device]\nkind = \"cpu\"\n[generation]\nprompt = \"fn main\"\ntop_p = 0.9\n[compiler]\nenabled = \"auto\"\nfused_ops = [\"gelu\"]";
    for config in [from_text(EXAMPLE, "example", None, &[]).unwrap(), parse(long).unwrap()] {
        let text = config.to_toml().unwrap();
        assert_eq!(from_text(&text, "written", None, &[]).unwrap(), config, "{text}");
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
    let refused = Refused(messages!());
    let trainer = parse("max_steps = 1e3\nlearning_rate = 1\nseed = 7.0").unwrap().trainer;
    assert_eq!((trainer.max_steps, trainer.learning_rate, trainer.seed), (Some(1000), 1.0, 7));
    let trainer = parse("max_steps = -1\nnum_train_epochs = 2").unwrap().trainer;
    assert_eq!((trainer.max_steps, trainer.length()), (None, RunLength::Epochs(2.0)));
    assert_eq!(parse("max_tokens = 1e9\nmax_minutes = 10").unwrap().trainer.length(), RunLength::Tokens(1_000_000_000));
    refused.lines(&["max_steps = 1.5", "max_steps = -2"]);
}

#[test]
fn older_spellings() {
    let refused = Refused(messages!());
    let config = parse(
        "evaluation_strategy = \"epoch\"\nwarmup_ratio = 0.1\nper_gpu_train_batch_size = 4\nper_gpu_eval_batch_size = 5\n\
         use_cpu = true\ntrain_sampling_strategy = \"sequential\"",
    )
    .unwrap();
    assert_eq!(config.trainer.eval_strategy, EvalStrategy::Epoch);
    assert_eq!(config.trainer.warmup_steps, Interval::Ratio(0.1));
    assert_eq!((config.trainer.per_device_train_batch_size, config.trainer.per_device_eval_batch_size), (4.into(), 5));
    assert_eq!((config.trainer.device.kind, config.trainer.sampler), (DeviceKind::Cpu, Sampler::Sequential));
    assert_eq!(parse("adafactor = true").unwrap().trainer.optim, OptimizerName::Adafactor);
    assert_eq!(parse("adafactor = false").unwrap().trainer.optim, OptimizerName::AdamW);
    for written in ["\"momentum=0.9, nesterov=True\"", "{ momentum = 0.9, nesterov = true }"] {
        let trainer = parse(&format!("optim = \"sgd\"\noptim_args = {written}")).unwrap().trainer;
        let args = OptimArgs { momentum: Some(0.9), nesterov: Some(true), ..Default::default() };
        assert_eq!((trainer.optim, trainer.optim_args), (OptimizerName::Sgd, args));
    }
    assert_eq!(parse("ddp_backend = \"mpi\"").unwrap().trainer.distributed.ddp_backend, Some(DdpBackend::Mpi));
    let gloo = parse("ddp_backend = \"gloo\"").unwrap().trainer;
    assert_eq!(gloo.distributed.ddp_backend, Some(DdpBackend::Mpi));
    assert_eq!(gloo.no_effect.len(), 1, "{:?}", gloo.no_effect);
    assert!(gloo.no_effect[0].starts_with("ddp_backend = \"gloo\": MPI sums"), "{:?}", gloo.no_effect);
    refused.lines(&["ddp_backend = \"ccl\""]);
    for (given, name, precision) in
        [("bf16 = true", "bf16_full_eval", Precision::Bf16), ("fp16 = true", "fp16_full_eval", Precision::F16)]
    {
        let trainer = parse(&format!("{given}\n{name} = true")).unwrap().trainer;
        assert_eq!(trainer.precision, precision);
        assert!(trainer.no_effect[0].starts_with(&format!("{name} = true: evaluation")), "{:?}", trainer.no_effect);
        assert_eq!(parse(&format!("{given}\n{name} = false")).unwrap().trainer.no_effect, [name]);
    }
    assert_eq!(parse("no_cuda = false").unwrap().trainer.device.kind, DeviceKind::Auto);
    assert_eq!(parse("warmup_ratio = 0").unwrap().trainer.warmup_steps, Interval::Steps(0));
    refused.lines(&["evaluation_strategy = \"sometimes\"", "warmup_ratio = 1.1", "no_cuda = \"maybe\""]);
    for written in ["train_sampling_strategy = \"group_by_length\"", "group_by_length = true"] {
        assert_eq!(parse(written).unwrap().trainer.sampler, Sampler::GroupByLength);
    }
    assert_eq!(parse("group_by_length = false").unwrap().trainer.sampler, Sampler::Random);
    refused.lines(&["group_by_length = 2"]);
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
    assert_eq!(config.trainer.output_dir, Path::new("2025-01-31"));
    assert_eq!((config.trainer.device.kind, config.trainer.eval_strategy), (DeviceKind::Cpu, EvalStrategy::Epoch));
    assert_eq!(config.model.fields["n_layer"].as_integer(), Some(2));
    let table = with(&["trainer.lr_scheduler_type=cosine", "trainer.lr_scheduler_kwargs={num_cycles=2}"]).unwrap();
    assert_eq!(table.trainer.lr_scheduler_kwargs.num_cycles, Some(2.0));
}

#[test]
fn files() {
    let folder = tempfile::tempdir().unwrap();
    let refused = Refused(messages!());
    let path = folder.path().join("small.toml");
    std::fs::write(&path, SMALL.replace("output_dir = \"runs/x\"\n", "")).unwrap();
    assert_eq!(RunConfig::load(&path).unwrap().trainer.output_dir, Path::new("runs/small"));
    let set = RunConfig::load_with(&path, &["run.output_dir=elsewhere".into()]).unwrap();
    assert_eq!(set.trainer.output_dir, Path::new("elsewhere"));

    for path in [folder.path().join("smal.toml"), folder.path().into(), "no/such/folder/a.toml".into()] {
        refused.add(path.display(), RunConfig::load(&path));
    }
    std::fs::write(&path, b"[run]\noutput_dir = \"caf\xe9\"\n").unwrap();
    refused.add("output_dir in Latin-1", RunConfig::load(&path));
}

#[test]
fn the_builder_checks_like_a_file() {
    let refused = Refused(messages!());
    let run = || TrainingArguments::new("runs/x");
    let of = |arguments: TrainingArguments| {
        RunConfig::builder(arguments)
            .model(ModelSection::new(ModelKind::Gpt2).with_size("small").with("n_layer", 2))
            .data(DataSection::tokenized(Task::Clm, ["a.jsonl"]))
    };
    let config = of(TrainingArguments { on_existing: OnExisting::Overwrite, ..run() }).build().unwrap();
    assert_eq!(config.model.fields["n_layer"].as_integer(), Some(2));
    assert_eq!(RunConfig::parse(&config.to_toml().unwrap(), "x").unwrap().model, config.model);
    // `sampler` and `test` stand in [data] of a file.
    let (sampler, test) = (Sampler::Sequential, Some("t.csv".to_owned()));
    let data = DataSection { format: DataFormat::Csv, ..DataSection::text(Task::SequenceClassification, ["a.csv"]) };
    let builder = of(TrainingArguments { max_steps: Some(1), sampler, test, do_predict: true, ..run() }).data(data);
    let config = builder.tokenizer(TokenizerSection::from_pretrained("t")).build().unwrap();
    let written = config.to_toml().unwrap();
    let data = &toml::from_str::<toml::Table>(&written).unwrap()["data"];
    assert_eq!((data["sampler"].as_str(), data["test"].as_str()), (Some("sequential"), Some("t.csv")));
    assert_eq!(RunConfig::parse(&written, "x").unwrap().trainer, config.trainer);
    refused.add("weight_decay: -1 afterwards", config.with(|config| config.trainer.weight_decay = -1.0));
    let trainer = TrainingArguments { learning_rate: f64::NAN, ..run() };
    refused.add("learning_rate: NaN", of(trainer).build());
    let trainer = TrainingArguments { warmup_steps: Interval::Ratio(1.5), ..run() };
    refused.add("warmup_steps: 1.5", of(trainer).build());
    let trainer = TrainingArguments { seed: u64::MAX, max_tokens: Some(u64::MAX), ..run() };
    refused.add("max_tokens: the largest u64", of(trainer).build());
    let samples = TrainingArguments { samples: Samples::AtEnd, ..run() };
    refused.add("samples in the arguments", of(samples).build());
    refused.add("a tokenizer to learn", of(run()).tokenizer(TokenizerSection::train(4096)).build());
    let config = RunConfig::builder(run())
        .model(ModelSection::from_pretrained("gpt2"))
        .data(DataSection::text(Task::Clm, ["a"]));
    let config =
        config.tokenizer(TokenizerSection::from_pretrained("t")).generation(GenerationSection::new("a")).build();
    assert!(config.is_ok());
}

/// Names of files and values of a table may hold any characters. A config that is written with them
/// contains no control sequence of a terminal, and reads back as the same config.
#[test]
fn what_is_written_reads_back_and_has_no_power() {
    for hostile in
        ["a\u{85}\u{9b}31m\u{202e}b", "it's \\ \"\u{202e}", "'''\u{7f}\u{1b}[2J\n\t\u{2066}", "\\u0041\u{200f}\\"]
    {
        let mut config = parse("").unwrap();
        config.trainer.output_dir = hostile.into();
        config.data.train = vec![hostile.into(), "plain".into(), hostile.into()];
        let text = config.to_toml().unwrap();
        assert_eq!(text.lines().map(kiln_core::error::printable).collect::<Vec<_>>().join("\n") + "\n", text);
        let read = RunConfig::parse(&text, "plan.toml").unwrap();
        assert_eq!(
            (&read.trainer.output_dir, &read.data.train),
            (&config.trainer.output_dir, &config.data.train),
            "{text}"
        );
    }
}

/// A section whose keys are not known would be refused as a hyperparameter of a job.
#[test]
fn the_keys_of_every_section_are_known() {
    for section in settings::sections() {
        assert!(settings::keys_of(section).is_some_and(|keys| !keys.is_empty()), "{section}");
    }
}
