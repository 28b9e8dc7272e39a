//! Arguments of `TrainingArguments` in `[trainer]` and in files of them: what they set, what wins
//! over what, and what is listed as having no effect.
#![allow(clippy::unwrap_used)]

use serde_json::{Value as Json, json};

use super::*;

/// A config file with `lines` in `[trainer]`, the arguments `args` over it, and `overrides` over
/// both.
fn laid(lines: &str, args: &Json, overrides: &[&str]) -> Result<RunConfig> {
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    let args = serde_json::to_string_pretty(args).unwrap();
    from_text(&format!("{SMALL}{lines}\n"), "a.toml", Some((&args, "args.json")), &overrides)
}

impl Refused {
    /// A file of these arguments.
    fn args(&self, args: Json) {
        self.add(&args, laid("", &args, &[]));
    }
}

fn fixture(release: &str, case: &str) -> Json {
    let path = format!("{}/tests/fixtures/training_arguments_{release}.json", env!("CARGO_MANIFEST_DIR"));
    let all: Json = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    all["cases"][case].clone()
}

/// A plan names what the arguments have taken the place of: lengths that they displace too, once
/// for two spellings, and no value of a token.
#[test]
fn what_arguments_replace_is_named() {
    let replaced = |lines: &str, args: Json| {
        let no_effect = laid(lines, &args, &[]).unwrap().trainer.no_effect;
        no_effect.into_iter().filter(|line| line.starts_with("of a.toml: ")).collect::<Vec<_>>()
    };
    assert_eq!(
        replaced("max_tokens = 1000", json!({ "num_train_epochs": 3.0 })),
        ["of a.toml: max_tokens = 1000 (left out for what args.json has)"]
    );
    assert_eq!(
        replaced("num_train_epochs = 5", json!({ "max_steps": 100, "num_train_epochs": 3.0 })),
        ["of a.toml: num_train_epochs = 5 (3.0 in args.json)"]
    );
    let sizes = json!({ "per_device_train_batch_size": 8, "per_gpu_train_batch_size": 4 });
    assert_eq!(replaced("", sizes.clone()), [""; 0]);
    assert_eq!(
        replaced("per_device_train_batch_size = 16", sizes),
        ["of a.toml: per_device_train_batch_size = 16 (4 in args.json)"]
    );
    assert_eq!(replaced("weight_decay = 0", json!({ "weight_decay": 0.0 })), [""; 0]);
    let tokens = replaced("hub_token = \"hf_A\"", json!({ "hub_token": "hf_B" }));
    assert_eq!(tokens, ["of a.toml: hub_token"]);
}

/// A precision that is given over the arguments holds for evaluation too.
#[test]
fn evaluation_follows_a_precision_that_is_given_over_the_arguments() {
    let args = json!({ "bf16": true, "bf16_full_eval": true });
    let config = laid("", &args, &["precision=f32"]).unwrap();
    assert_eq!(config.trainer.precision, Precision::F32);
    let no_effect = &config.trainer.no_effect;
    assert!(
        no_effect.iter().any(|line| line.starts_with("bf16_full_eval = true: precision = \"f32\"")),
        "{no_effect:?}"
    );
    assert_eq!(laid("", &args, &[]).unwrap().trainer.precision, Precision::Bf16);
    // Without one it would be a type of its own.
    assert!(laid("", &json!({ "bf16_full_eval": true }), &[]).is_err());
}

#[test]
fn neutral_and_harmless_values_are_taken_and_listed() {
    let config = parse(
        "push_to_hub = false\nhub_always_push = true\ndisable_tqdm = true\nremove_unused_columns = false\ndataloader_num_workers = 4\n\
         ddp_find_unused_parameters = false\nddp_timeout = 60\nlocal_rank = -1\nfsdp = \"\"\ntf32 = true\n\
         accelerator_config = { split_batches = false }",
    )
    .unwrap();
    assert_eq!(
        config.trainer.no_effect,
        ["hub_always_push, disable_tqdm, remove_unused_columns, dataloader_num_workers, ddp_find_unused_parameters, \
          ddp_timeout, local_rank, fsdp, tf32, accelerator_config"]
    );
    let no_effect = config.trainer.no_effect.clone();
    assert_eq!(config.trainer, TrainingArguments { no_effect, ..parse("").unwrap().trainer });
    assert!(parse("").unwrap().trainer.no_effect.is_empty());
    // An override may take back an argument of the file that would be refused.
    assert!(
        from_text(
            &format!("{SMALL}fsdp = \"full_shard\"\nbf16 = true\n"),
            "a.toml",
            None,
            &["trainer.fsdp=".into(), "trainer.bf16=false".into()],
        )
        .is_ok_and(|config| config.trainer.precision == Precision::F32)
    );
}

#[test]
fn arguments_that_set_other_keys() {
    let config = parse(
        "overwrite_output_dir = true\nrun_name = \"first try\"\ntorch_compile = true\nfp16 = true\n\
         gradient_checkpointing = true\nlogging_strategy = \"epoch\"\neval_delay = 2\neval_strategy = \"epoch\"\n\
         save_only_model = true\nauto_find_batch_size = true\nfull_determinism = true\nlog_level = \"warning\"\n\
         do_train = true\ndo_eval = true",
    )
    .unwrap();
    assert_eq!(
        (config.trainer.on_existing, config.trainer.run_name.as_deref()),
        (OnExisting::Overwrite, Some("first try"))
    );
    assert_eq!((config.trainer.compiler_mode(), config.trainer.precision), (CompilerMode::Compiled, Precision::F16));
    let trainer = &config.trainer;
    assert_eq!(trainer.activation_checkpointing, ActivationCheckpointing::Blocks);
    assert_eq!((trainer.logging_strategy, trainer.eval_delay), (LoggingStrategy::Epoch, 2.0));
    assert_eq!(trainer.log_level, LogLevel::Warning);
    assert!(trainer.save_only_model && trainer.full_determinism && trainer.do_train && trainer.do_eval);
    assert!(config.trainer.no_effect.is_empty(), "{:?}", config.trainer.no_effect);
    let read = RunConfig::parse(&config.to_toml().unwrap(), "written").unwrap();
    assert_eq!(read.trainer.do_eval, config.trainer.do_eval);

    let text = SMALL.replace("output_dir = \"runs/x\"\n", "");
    let config = RunConfig::parse(&format!("{text}output_dir = \"here\"\n"), "a.toml").unwrap();
    assert_eq!(config.trainer.output_dir, Path::new("here"));

    let of = |line: &str| parse(line).unwrap();
    let checkpointing = |line: &str| of(line).trainer.activation_checkpointing;
    assert_eq!(checkpointing("activation_checkpointing = true"), ActivationCheckpointing::Blocks);
    assert_eq!(checkpointing("activation_checkpointing = false"), ActivationCheckpointing::None);
    assert_eq!(checkpointing("activation_checkpointing = \"balanced\""), ActivationCheckpointing::Balanced);
    assert_eq!(
        checkpointing("activation_checkpointing = false\ngradient_checkpointing = true"),
        ActivationCheckpointing::Blocks
    );
    let over = laid("activation_checkpointing = \"blocks\"", &json!({}), &["trainer.activation_checkpointing=false"]);
    assert_eq!(over.unwrap().trainer.activation_checkpointing, ActivationCheckpointing::None);

    let resume = |line: &str| {
        let run = of(line).trainer;
        (run.on_existing, run.resume_from_checkpoint)
    };
    assert_eq!(resume("resume_from_checkpoint = true"), (OnExisting::Resume, None));
    assert_eq!(resume("resume_from_checkpoint = false"), (OnExisting::Fail, None));
    let path = "runs/x/checkpoints/step-000004";
    let expected = (OnExisting::Resume, Some(path.into()));
    assert_eq!(resume(&format!("overwrite_output_dir = true\nresume_from_checkpoint = \"{path}\"")), expected);
    assert_eq!(of("torch_compile = true\n[compiler]\ndebug = true").trainer.compiler_mode(), CompilerMode::Compiled);
    let both = "activation_checkpointing = true\ngradient_checkpointing = true";
    assert_eq!(checkpointing(both), ActivationCheckpointing::Blocks);
    assert_eq!(of("torch_compile = false\n[compiler]\ndebug = true").trainer.compiler_mode(), CompilerMode::Compiled);
}

#[test]
fn what_wins_is_what_wins_in_hugging_face() {
    let refused = Refused(messages!());
    let config = parse("max_steps = 5\nnum_train_epochs = 3.0").unwrap();
    assert_eq!(config.trainer.length(), RunLength::Steps(5));
    assert_eq!(config.trainer.no_effect, ["num_train_epochs = 3.0: max_steps = 5 wins over it"]);

    let config = laid("", &json!({ "warmup_ratio": 0.1, "warmup_steps": 3 }), &[]).unwrap();
    assert_eq!(config.trainer.warmup_steps, Interval::Steps(3));
    assert_eq!(config.trainer.no_effect, ["warmup_ratio = 0.1: warmup_steps = 3 wins over it"]);
    assert_eq!(parse("warmup_ratio = 0.1\nwarmup_steps = 0").unwrap().trainer.warmup_steps, Interval::Ratio(0.1));
    let over = |over: &str| laid("warmup_steps = 3", &json!({}), &[over]).unwrap().trainer.warmup_steps;
    assert_eq!(over("trainer.warmup_ratio=0.2"), Interval::Ratio(0.2));
    assert_eq!(over("trainer.warmup_ratio=0"), Interval::Steps(3));

    // All of the run, in transformers 4.57; as `warmup_steps`, 1.0 is one step.
    assert_eq!(parse("warmup_ratio = 1.0").unwrap().trainer.warmup_steps, Interval::Ratio(1.0));
    assert_eq!(parse("warmup_steps = 1.0").unwrap().trainer.warmup_steps, Interval::Steps(1));
    refused.lines(&["warmup_ratio = 1.5"]);

    let idle = |lines: &str| parse(lines).unwrap().trainer.no_effect;
    assert_eq!(idle("eval_strategy = \"no\"\neval_steps = 5"), ["eval_steps = 5: eval_strategy = \"no\""]);
    assert_eq!(idle("eval_steps = 5\neval_delay = 2").len(), 2);
    assert_eq!(laid("", &json!({ "max_steps": -2 }), &[]).unwrap().trainer.max_steps, None);

    for warm_up in ["warmup_steps = 10", "warmup_ratio = 0.5"] {
        let config = parse(&format!("lr_scheduler_type = \"constant\"\n{warm_up}")).unwrap();
        assert_eq!(config.trainer.warmup_steps, Interval::Steps(0));
        assert!(
            config.trainer.no_effect[0].contains("the schedule `constant` has no warm-up"),
            "{:?}",
            config.trainer.no_effect
        );
    }
}

#[test]
fn adafactor_has_no_learning_rate_of_its_own() {
    let refused = Refused(messages!());
    let of = |args: &str| parse(&format!("optim = \"adafactor\"\noptim_args = {args}"));
    let plain = parse("optim = \"adafactor\"\noptim_args.scale_parameter = false").unwrap().trainer;
    for args in [
        "\"scale_parameter=False,relative_step=False,warmup_init=False\"",
        "{ scale_parameter = false, relative_step = false, warmup_init = false }",
    ] {
        assert_eq!(of(args).unwrap().trainer, plain);
    }
    let args = json!({ "adafactor": true, "optim_args": "scale_parameter=False, relative_step=False" });
    assert_eq!(laid("", &args, &[]).unwrap().trainer, plain);
    for args in ["\"relative_step=True\"", "{ warmup_init = true }", "{ relative_step = \"maybe\" }"] {
        refused.add(format!("optim_args = {args}"), of(args));
    }
    refused.lines(&["optim = \"sgd\"\noptim_args.relative_step = false"]);
}

/// No value of another kind passes for any argument, neither in a config file nor in a file of
/// arguments.
#[test]
fn a_value_of_another_kind_is_refused_whatever_the_argument() {
    let refused = Refused(messages!());
    let wrong = |kind: &str| match kind {
        "bool" => vec![json!("maybe"), json!(2), json!(0.5), json!([true]), json!({ "a": 1 })],
        "int" => vec![json!("four"), json!(0.5), json!(true), json!([1]), json!({ "a": 1 })],
        "float" => vec![json!("fast"), json!(true), json!([0.5]), json!({ "a": 1 })],
        "str" => vec![json!(2.5), json!([1]), json!({ "a": 1 })],
        "dict" => vec![json!(2.5), json!(true), json!([1])],
        _ => vec![json!(2.5), json!([1])],
    };
    // By the default value, or by what the argument is in the table where that is none.
    for argument in hugging_face::ARGUMENTS.iter() {
        let kind = match argument.kinds().as_str() {
            "true or false" => "bool",
            "a whole number" => "int",
            "a number" | "a number, or text" => "float",
            "text" | "text or a list of texts" => "str",
            "a table" | "a table, or text" => "dict",
            _ => "any",
        };
        for value in wrong(kind) {
            let name = argument.name;
            let file = laid("", &json!({ name: value }), &[]);
            let text = if name == "output_dir" { SMALL.replace("output_dir = \"runs/x\"\n", "") } else { SMALL.into() };
            let line = format!("{name} = {}", toml::Value::try_from(&value).unwrap());
            let config = RunConfig::parse(&format!("{text}{line}\n"), "a.toml");
            for (origin, read) in [("args.json", file), ("a.toml", config.map(RunConfig::from))] {
                let error =
                    read.map(|config| config.trainer.no_effect).expect_err(&format!("{name} = {value} in {origin}"));
                assert_eq!(error.exit_code(), 2, "{name} = {value}: {error}");
                assert!(error.to_string().contains("expected") || error.to_string().contains("unknown"), "{error}");
            }
        }
    }
    refused.lines(&["auto_find_batch_size = \"maybe\"", "dataloader_num_workers = \"4\""]);
    refused.args(json!({ "optim": "sgd", "adam_beta1": "x" }));
}

/// The kinds of the table are those that the defaults of both releases have.
#[test]
fn every_default_is_of_its_arguments_kind() {
    for release in ["5.23", "4.57"] {
        for (name, value) in fixture(release, "defaults").as_object().unwrap() {
            let argument = hugging_face::argument(name).unwrap();
            assert!(argument.takes(value), "{name} = {value}: {}", argument.kinds());
        }
    }
}

#[test]
fn switches_are_read_as_hf_argument_parser_reads_them() {
    let refused = Refused(messages!());
    for off in [json!(false), json!(0), json!("false"), json!("False"), json!("no"), json!("0"), json!("f")] {
        let config = laid("", &json!({ "fp16_full_eval": off, "fp16": off, "logging_first_step": off }), &[]).unwrap();
        assert_eq!((config.trainer.precision, config.trainer.logging_first_step), (Precision::F32, false));
        assert_eq!(config.trainer.no_effect, ["1 argument that asks for nothing"]);
    }
    for on in [json!(true), json!(1), json!("true"), json!("Yes"), json!("1"), json!("y")] {
        let config = laid("", &json!({ "bf16": on, "logging_first_step": on, "disable_tqdm": on }), &[]).unwrap();
        assert_eq!((config.trainer.precision, config.trainer.logging_first_step), (Precision::Bf16, true));
        refused.args(json!({ "fp16_full_eval": on }));
    }
    for off in [json!(false), json!(null), json!(""), json!({})] {
        assert_eq!(laid("", &json!({ "deepspeed": off }), &[]).unwrap().trainer.no_effect.len(), 1);
    }
    refused.args(json!({ "deepspeed": "ds.json" }));
}

#[test]
fn seeds_have_64_bits() {
    let refused = Refused(messages!());
    let most = u64::MAX;
    let config = laid("", &json!({ "seed": most, "data_seed": most - 1 }), &[]).unwrap();
    assert_eq!((config.trainer.seed, config.trainer.data_seed), (most, Some(most - 1)));
    let read = RunConfig::parse(&config.to_toml().unwrap(), "plan.toml").unwrap();
    assert_eq!((read.trainer.seed, read.trainer.data_seed), (most, Some(most - 1)));
    assert_eq!(with(&[&format!("trainer.seed={most}")]).unwrap().trainer.seed, most);
    assert_eq!(parse(&format!("seed = \"{most}\"")).unwrap().trainer.seed, most);
    refused.set(&["trainer.seed=18446744073709551616", "trainer.seed=-1"]);
}

#[test]
fn whole_files_of_both_releases() {
    for release in ["5.23", "4.57"] {
        let config =
            laid("max_steps = 9\nlearning_rate = 1e-3\nsave_total_limit = 2", &fixture(release, "defaults"), &[]);
        let config = config.unwrap();
        let defaults = TrainingArguments {
            num_train_epochs: Some(3.0),
            logging_steps: Some(500.into()),
            // Null asks for nothing.
            save_total_limit: Some(2),
            no_effect: config.trainer.no_effect.clone(),
            ..TrainingArguments::new("out")
        };
        assert_eq!(config.trainer, defaults, "{release}");
        assert_eq!(config.trainer.output_dir, Path::new("out"));
        let [neutral, replaced] = &config.trainer.no_effect[..] else { panic!("{:?}", config.trainer.no_effect) };
        assert!(neutral.ends_with("arguments that ask for nothing"), "{neutral}");
        // Defaults in a whole file win over the config file too.
        assert_eq!(
            replaced,
            "of a.toml: output_dir = \"runs/x\" (\"out\" in args.json), max_steps = 9 (-1 in args.json), learning_rate = 0.001 \
             (0.00005 in args.json)"
        );
        assert!(!config.trainer.no_effect[0].contains(','), "{:?}", config.trainer.no_effect);

        let config = laid("", &fixture(release, "run_glue"), &["data.task=clm"]).unwrap();
        let trainer = &config.trainer;
        assert_eq!((trainer.length(), trainer.learning_rate), (RunLength::Epochs(2.0), 2e-5));
        assert_eq!(trainer.warmup_steps, Interval::Ratio(0.06));
        assert_eq!((trainer.eval_strategy, trainer.save_strategy), (EvalStrategy::Epoch, SaveStrategy::Epoch));
        assert_eq!(
            (config.trainer.sampler, config.trainer.run_name.as_deref()),
            (Sampler::GroupByLength, Some("glue"))
        );
        assert_eq!(trainer.report_to, [Integration::TensorBoard]);
        assert!(trainer.do_train && trainer.do_eval && trainer.load_best_model_at_end);
        for name in ["dataloader_num_workers", "ddp_find_unused_parameters", "label_names"] {
            assert!(config.trainer.no_effect[0].contains(name), "{:?}", config.trainer.no_effect);
        }

        let config = laid("num_train_epochs = 7", &fixture(release, "run_clm"), &["trainer.seed=9"]).unwrap();
        let trainer = &config.trainer;
        assert_eq!((trainer.length(), trainer.seed, trainer.data_seed()), (RunLength::Steps(6), 9, 8));
        assert_eq!(trainer.lr_scheduler_type, SchedulerType::CosineWithMinLr);
        assert_eq!(trainer.lr_scheduler_kwargs.min_lr_rate, Some(0.1));
        assert_eq!(trainer.activation_checkpointing, ActivationCheckpointing::Blocks);
        assert_eq!(
            (config.trainer.device.kind, trainer.save_only_model, trainer.do_train),
            (DeviceKind::Cpu, true, true)
        );
        assert!(
            config.trainer.no_effect.iter().any(|line| line.contains("num_train_epochs = 3.0: max_steps = 6 wins"))
        );
        assert!(config.trainer.no_effect.iter().any(|line| line.contains("do_train = false: eval_strategy")));
    }
}

#[test]
fn one_argument_of_a_file_at_a_time() {
    let of = |args: Json| laid("", &args, &[]).unwrap();
    // Without training only where something else is asked for, or nothing but that is said.
    let [train, eval, predict] = ["do_train", "do_eval", "do_predict"];
    assert!(of(json!({ train: false, eval: false, predict: false })).trainer.do_train);
    assert!(of(json!({ train: false, eval: true, predict: false, "eval_strategy": "epoch" })).trainer.do_train);
    assert!(!of(json!({ train: false, eval: true, predict: false, "eval_strategy": "no" })).trainer.do_train);
    assert!(!of(json!({ train: false })).trainer.do_train);
    let over = laid("", &fixture("5.23", "defaults"), &["trainer.do_train=false"]).unwrap();
    assert!(!over.trainer.do_train);

    // Named by the user; the default of transformers 4 is not.
    let logs = |at: &str| of(json!({ "output_dir": "out", "logging_dir": at })).trainer.no_effect;
    let replaced = "of a.toml: output_dir = \"runs/x\" (\"out\" in args.json)";
    assert_eq!(logs("logs"), ["logging_dir", replaced]);
    assert_eq!(logs("out/runs/Jan01_00-00-00_host"), ["1 argument that asks for nothing", replaced]);

    let config = of(json!({ "report_to": ["tensorboard", "wandb"] }));
    assert_eq!(config.trainer.report_to, [Integration::TensorBoard]);
    assert_eq!(config.trainer.no_effect, ["report_to wandb"]);
    for (report_to, boards) in [(json!("none"), 0), (json!("all"), 1), (json!([]), 0), (json!(["all"]), 1)] {
        assert_eq!(of(json!({ "report_to": report_to })).trainer.report_to.len(), boards);
    }
    assert_eq!(of(json!({ "max_grad_norm": null })).trainer.max_grad_norm, 0.0);
    assert_eq!(of(json!({ "save_total_limit": 0 })).trainer.save_total_limit, None);
    assert_eq!(of(json!({ "eval_strategy": "steps", "eval_steps": 0 })).trainer.eval_steps, None);
    let quiet = of(json!({ "logging_strategy": "no", "logging_steps": 0 })).trainer;
    assert_eq!((quiet.logging_strategy, quiet.logging_steps), (LoggingStrategy::No, None));
    let kwargs =
        of(json!({ "lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": "{\"power\": 2, \"lr_end\": null}" }));
    assert_eq!(kwargs.trainer.lr_scheduler_kwargs, SchedulerKwargs { power: Some(2.0), ..Default::default() });
    let unused =
        of(json!({ "optim": "sgd", "adam_beta1": 0.8, "metric_for_best_model": "loss", "greater_is_better": false }));
    assert_eq!(unused.trainer.no_effect, ["metric_for_best_model, greater_is_better, adam_beta1"]);
    assert_eq!(of(json!({ "adafactor": true, "optim": "adamw_torch_fused" })).trainer.optim, OptimizerName::Adafactor);
    let old =
        of(json!({ "evaluation_strategy": "epoch", "eval_strategy": "no", "per_gpu_train_batch_size": 3 })).trainer;
    assert_eq!((old.eval_strategy, old.per_device_train_batch_size), (EvalStrategy::Epoch, 3.into()));
    assert!(
        of(json!({ "_n_gpu": 1, "_frozen": true, "an_argument_of_tomorrow": null })).trainer.no_effect[0]
            .starts_with("3 ")
    );
    let config = laid("overwrite_output_dir = true", &json!({ "overwrite_output_dir": false }), &[]).unwrap();
    assert_eq!(config.trainer.on_existing, OnExisting::Fail);
    // An override wins over the file of arguments, which wins over the config file.
    let three = laid(
        "learning_rate = 1\nweight_decay = 1",
        &json!({ "learning_rate": 2, "weight_decay": 2 }),
        &["trainer.learning_rate=3"],
    );
    let trainer = three.unwrap().trainer;
    assert_eq!((trainer.learning_rate, trainer.weight_decay), (3.0, 2.0));
    let precision = laid("", &json!({ "bf16": true }), &["precision=f32"]).unwrap().trainer.precision;
    assert_eq!(precision, Precision::F32);
}

#[test]
fn files_that_are_refused() {
    let refused = Refused(messages!());
    for args in [
        json!({ "seed": 1, "lerning_rate": 1e-3 }),
        json!({ "seed": 1, "push_to_hub_organization": "org" }),
        json!({ "learning_rate": "fast" }),
        json!({ "fp16": true, "bf16": true }),
        json!({ "lr_scheduler_kwargs": "{power}" }),
        json!({ "seed": 2.0_f64.powi(64) }),
        json!({ "max_steps": u64::MAX }),
        json!({ "max_steps": 0 }),
        json!([1]),
    ] {
        refused.args(args);
    }
    let cut = "{\"seed\": 1,\n";
    refused.add(cut, from_text(SMALL, "a.toml", Some((cut, "args.json")), &[]));
    let missing = "no/args.json";
    refused.add(missing, RunConfig::load_layers("Cargo.toml", Some(Path::new(missing)), &[], |_| Ok(())));
}
