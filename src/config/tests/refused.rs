//! Every way in which a config file can be wrong, and the message it gets.
#![allow(clippy::unwrap_used)]

use super::*;

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
    refused(
        parse("use_cpu = true\n[device]\nkind = \"cpu\""),
        &["a.toml:12", "`device.kind` and `trainer.use_cpu` are two ways"],
    );
    refused(parse("fp16 = true\nbf16 = true"), &["`trainer.fp16` and `trainer.bf16` are two ways"]);
    refused(
        parse("ddp_backend = \"nccl\"\n[distributed]\noptimizer_sharding = true"),
        &["distributed.ddp_backend", "set it to \"mpi\", or the other key to false"],
    );
}

#[test]
fn two_ways_of_stating_the_same_thing() {
    let two = "are two ways of stating the same thing";
    refused(parse("max_tokens = 3\nnum_train_epochs = 1"), &["a.toml:12: trainer.max_tokens", two]);
    refused(with(&["model.from=x", "model.size=small"]), &["`model.from` and `model.size`", two]);
    refused(with(&["tokenizer.from=x"]), &["`tokenizer.from` and `tokenizer.train_vocab_size`", two]);
    let back = parse("num_train_epochs = 3.0\n[device]").map(|config| config.to_toml().unwrap()).unwrap();
    // A length given on top takes the place of the file's, unless it is given twice on top.
    let over = |sets: &[&str]| {
        let sets = sets.iter().map(|set| (*set).to_owned()).collect::<Vec<_>>();
        RunConfig::from_text(&back, "plan.toml", None, None, &[], &sets)
    };
    assert_eq!(over(&["trainer.max_steps=5"]).unwrap().trainer.length(), RunLength::Steps(5));
    assert_eq!(over(&["trainer.max_tokens=5"]).unwrap().trainer.length(), RunLength::Tokens(5));
    assert_eq!(over(&["trainer.max_steps=-1"]).unwrap().trainer.length(), RunLength::Epochs(3.0));
    refused(over(&["trainer.max_tokens=5", "trainer.max_steps=5"]), &[two, "-1 takes one back"]);
    let set = |length: &str| vec!["trainer.max_steps=5".to_owned(), length.to_owned()];
    let config =
        RunConfig::from_text(&back, "plan.toml", None, None, &[], &set("trainer.num_train_epochs=-1")).unwrap();
    assert_eq!(config.trainer.length(), RunLength::Steps(5));
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
    refused(parse("[quantizer]\nenabled = true"), &["quantizer: unknown section", "known sections: [run], [model]"]);
    refused(
        parse("[compiler]\nenabled = \"yes\""),
        &["a.toml:13: compiler.enabled", "unknown compiler `yes`: expected one of native, compiled, auto"],
    );
    refused(
        parse("[compiler]\nfused_ops = [\"gellu\"]"),
        &["a.toml:13: compiler.fused_ops", "unknown operator `gellu`", "did you mean `gelu`?"],
    );
    refused(
        parse("[compiler]\nenable = true"),
        &["a.toml:13: compiler.enable: unknown key", "did you mean `enabled`?"],
    );
    refused(
        RunConfig::parse("precison = \"bf16\"", "a.toml"),
        &["a.toml:1: precison: unknown section or top-level key", "did you mean `precision`?"],
    );
    refused(RunConfig::parse("run = 3", "a.toml"), &["a.toml:1: run: expected a section [run], got 3"]);
    refused(parse("[device]\nkinds = \"cpu\""), &["a.toml:13: device.kinds", "did you mean `kind`?"]);
    refused(
        parse("lr_scheduler_kwargs = { pwer = 2 }"),
        &["trainer.lr_scheduler_kwargs.pwer: unknown key", "did you mean `power`?"],
    );
    refused(RunConfig::parse("[run]\noutput = 1", "a.toml"), &["a.toml:2: run.output: unknown key", "`output_dir`"]);
    refused(RunConfig::parse("[tokenizer]\nvocab = 1", "a.toml"), &["[tokenizer] has from, train_vocab_size"]);
    refused(RunConfig::parse("[data]\nwords = 1", "a.toml"), &["data.words: unknown key"]);
    refused(RunConfig::parse("[generation]\nprompts = 1", "a.toml"), &["did you mean `prompt`?"]);
    let models = unknown_key("model", "n_layers", &["n_layer", "n_head"]).to_string();
    assert!(models.contains("model.n_layers: unknown key") && models.contains("did you mean `n_layer`?"), "{models}");
}

#[test]
fn hugging_face_arguments_that_are_not_honoured() {
    for (key, part) in [
        ("fp16_full_eval = true", "evaluation computes as training does"),
        ("deepspeed = \"ds.json\"", "the whole model in each"),
        ("fsdp = \"full_shard\"", "the whole model in each"),
        ("push_to_hub = true", "upload"),
        ("local_rank = 1", "the whole model in each"),
        ("n_gpu = 4", "kiln launch -n N"),
        ("neftune_noise_alpha = 5", "no noise"),
        ("optim_target_modules = \"all-linear\"", "GaLore"),
        ("tpu_num_cores = 8", "device.kind"),
        ("half_precision_backend = \"apex\"", "precision"),
    ] {
        let name = key.split(' ').next().unwrap();
        refused(parse(key), &[&format!("Hugging Face's `{name}` is not supported by this version"), "a.toml:12", part]);
    }
    refused(parse("report_to = \"wandb\""), &["integration `wandb` is not supported", "metrics.jsonl"]);
    refused(parse("report_to = [\"tensorbord\"]"), &["did you mean `tensorboard`?"]);
    refused(parse("resume_from_checkpoint = 3"), &["expected true, false or the folder of a checkpoint, got 3"]);
    refused(parse("overwrite_output_dir = 2"), &["expected true or false, got 2", "run.on_existing"]);
    refused(parse("do_predict = true"), &["trainer.do_predict: needs rows to predict", "data.test"]);
    refused(with(&["data.test=t.csv"]), &["data.test: its rows are predicted with trainer.do_predict"]);
    refused(with(&["data.test=t.csv", "trainer.do_predict=true"]), &["the task clm has no prediction for a row"]);
    let without = SMALL.replace("validation = \"b.txt\"\n", "");
    for (line, part) in [("do_eval = true", "needs validation data"), ("do_train = false", "there is only evaluation")]
    {
        refused(RunConfig::parse(&format!("{without}{line}\n"), "a.toml"), &["a.toml:11", part, "data.validation"]);
    }
    refused(parse("run_name = \"\""), &["run.name (written as trainer.run_name): expected a name"]);
    refused(parse("run_name = \"a\\u001bb\""), &["without control characters"]);
}

#[test]
fn saving_and_the_best_model() {
    let never = "the best model is found by evaluating";
    refused(parse("load_best_model_at_end = true"), &["trainer.load_best_model_at_end", never]);
    refused(parse("save_strategy = \"best\""), &["trainer.save_strategy", never]);
    refused(parse("early_stopping_patience = 3"), &["trainer.early_stopping_patience", never]);
    refused(parse("metric_for_best_model = \"loss\""), &["trainer.metric_for_best_model", never]);
    refused(parse("greater_is_better = true"), &["trainer.greater_is_better", never]);
    refused(parse("early_stopping_patience = 0"), &["early_stopping_patience: expected 1 or more"]);
    refused(parse("early_stopping_threshold = 0.1"), &["says nothing without early_stopping_patience"]);
    refused(parse("early_stopping_threshold = -0.1"), &["expected a number of 0 or more"]);
    refused(parse("save_total_limit = 0"), &["save_total_limit: expected 1 or more"]);
    refused(parse("save_steps = 0"), &["save_steps: expected 1 or more"]);
    refused(parse("save_strategy = \"step\""), &["did you mean `steps`?"]);
    let best = |lines: &str| parse(&format!("load_best_model_at_end = true\n{lines}"));
    refused(best("eval_strategy = \"epoch\""), &["saves by `steps` and evaluates by `epoch`", "or \"epoch\""]);
    assert!(best("eval_strategy = \"steps\"\neval_steps = 250").is_ok());
    assert!(best("eval_strategy = \"epoch\"\nsave_strategy = \"epoch\"").is_ok());
    assert!(best("eval_strategy = \"steps\"\neval_steps = 300\nsave_strategy = \"best\"").is_ok());
    let metric = |name: &str| {
        let lines = format!("eval_strategy = \"epoch\"\nmetric_for_best_model = \"{name}\"");
        let trainer = parse(&lines).unwrap().trainer;
        (trainer.best_metric(), trainer.best_is_greatest())
    };
    assert_eq!(metric("accuracy"), ("eval_accuracy".to_owned(), true));
    assert_eq!(metric("eval_loss"), ("eval_loss".to_owned(), false));
}

#[test]
fn wrong_types() {
    refused(
        parse("max_steps = \"many\""),
        &["a.toml:12: trainer.max_steps: expected a whole number", "got string \"many\""],
    );
    refused(parse("learning_rate = \"fast\""), &["trainer.learning_rate: expected a number, got string \"fast\""]);
    refused(parse("learning_rate = true"), &["trainer.learning_rate: expected a number, got boolean `true`"]);
    refused(parse("eval_on_start = 2"), &["trainer.eval_on_start: expected true or false, got integer `2`"]);
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
    refused(parse("optim = \"rmsprop\""), &["trainer.optim: Hugging Face's optimizer `rmsprop` is not supported"]);
    refused(
        parse("optim = \"sgd\"\noptim_args.momentm = 0.9"),
        &["a.toml:13: trainer.optim_args.momentm: unknown key", "did you mean `momentum`?"],
    );
    refused(parse("optim_args = \"momentum\""), &["a.toml:12: trainer.optim_args: expected key=value, got `momentum`"]);
    refused(parse("adafactor = 2"), &["trainer.adafactor: expected true or false, got 2"]);
    refused(
        with(&["data.task=clmm"]),
        &["data.task: unknown task `clmm`", "did you mean `clm`?", "sequence-classification"],
    );
    refused(with(&["model.kind=gpt3"]), &["model.kind: unknown model kind `gpt3`", "did you mean `gpt2`?"]);
    refused(with(&["data.format=cvs"]), &["data.format: unknown data format `cvs`", "did you mean `csv`?"]);
    refused(with(&["run.on_existing=resum"]), &["run.on_existing", "did you mean `resume`?"]);
    refused(
        with(&["device.kind=gpu"]),
        &["device.kind: unknown device kind `gpu`: expected one of auto, cpu, wgpu, cuda"],
    );
}

#[test]
fn tables() {
    let table = |more: &[&str]| {
        let base = ["data.format=csv", "data.task=sequence-classification", "tokenizer.train_vocab_size=300"];
        with(&[&base[..], more].concat())
    };
    refused(table(&[]), &["tokenizer.train_vocab_size: a tokenizer is learned from `text`"]);
    refused(table(&["data.task=question-answering"]), &["data.format: `csv` is not available for the task question-"]);
    table(&["data.task=clm", "data.block_size=8", "data.text_column=body"]).unwrap();
    refused(table(&["data.task=clm", "data.label_column=y"]), &["data.label_column: has no effect with the task clm"]);
    refused(table(&["data.task=mlm", "data.max_length=8"]), &["data.max_length: has no effect", "data.block_size"]);
    refused(with(&["data.max_length=64"]), &["data.max_length: has no effect with format = \"text\""]);
    refused(with(&["data.label_column=y"]), &["data.label_column: has no effect"]);
    for (set, expected) in [
        ("data.label_names=[\"a\"]", "data.label_names: expected at least two labels"),
        ("data.label_names=[\"a\", \"a\"]", "data.label_names: expected each label once"),
        ("data.max_length=0", "data.max_length: expected 1 or more"),
        ("data.block_size=8", "rows of a table are not packed"),
        ("data.text_column=''", "data.text_column: expected a name"),
    ] {
        refused(table(&[set]), &[expected]);
    }
}

#[test]
fn documents_masking_padding_and_limits() {
    refused(with(&["data.documents=paragraph"]), &["data.documents: unknown kind of document `paragraph`"]);
    refused(with(&["data.documents=line", "data.format=tokenized"]), &["data.documents: has no effect with format"]);
    refused(
        with(&["data.document_end=eot"]),
        &["data.document_end: unknown end of a document `eot`", "auto, eos, none"],
    );
    refused(with(&["data.document_end=eos", "data.format=tokenized"]), &["data.document_end: has no effect with task"]);
    refused(with(&["data.mlm_probability=0.2"]), &["data.mlm_probability: has no effect with the task clm"]);
    refused(with(&["data.whole_word_mask=true"]), &["data.whole_word_mask: has no effect with the task clm"]);
    let tokenized = ["data.task=mlm", "data.format=tokenized", "data.whole_word_mask=true"];
    refused(with(&tokenized), &["data.whole_word_mask: has no effect with format = \"tokenized\""]);
    for share in ["0", "1.5", "-0.1"] {
        let share = format!("data.mlm_probability={share}");
        refused(with(&["data.task=mlm", &share]), &["data.mlm_probability: expected a share above 0 and at most 1"]);
    }
    refused(with(&["data.padding=do_not_pad"]), &["data.padding: `do_not_pad` is not available"]);
    refused(with(&["data.padding=bucket"]), &["did you mean `buckets`?"]);
    refused(with(&["data.max_train_samples=0"]), &["data.max_train_samples: expected 1 or more, got 0"]);
    refused(with(&["data.max_eval_samples=0"]), &["data.max_eval_samples: expected 1 or more, got 0"]);
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
        ("optim = \"sgd\"\nadam_beta1 = 0.8", "trainer.adam_beta1: the optimizer `sgd` does not use it, got 0.8"),
        ("optim = \"lion\"\nadam_epsilon = 1e-6", "trainer.adam_epsilon: the optimizer `lion_32bit` does not use it"),
        ("label_smoothing_factor = 1.0", "trainer.label_smoothing_factor: expected a number from 0 to below 1, got 1"),
        ("class_weights = [1, 0]", "trainer.class_weights: expected numbers above 0, got 0"),
        ("freeze = ['a', '']", "trainer.freeze: expected a name or path, got an empty string"),
        ("freeze_layers = -1", "trainer.freeze_layers: expected a whole number that is not negative"),
        ("layer_wise_lr_decay = 0", "trainer.layer_wise_lr_decay: expected a number above 0 and at most 1, got 0"),
        ("num_train_epochs = 0", "trainer.num_train_epochs: expected a number above 0, got 0"),
        ("max_minutes = 0", "trainer.max_minutes: expected a number above 0, got 0"),
        ("max_steps = 0", "trainer.max_steps: expected 1 or more, got 0"),
        ("max_tokens = 0", "trainer.max_tokens: expected 1 or more, got 0"),
        ("per_device_train_batch_size = 0", "trainer.per_device_train_batch_size: expected 1 or more, got 0"),
        ("per_device_eval_batch_size = 0", "trainer.per_device_eval_batch_size: expected 1 or more, got 0"),
        ("gradient_accumulation_steps = 0", "trainer.gradient_accumulation_steps: expected 1 or more, got 0"),
        (
            "per_device_train_batch_size = -8",
            "expected a whole number that is not negative, or \"auto\", got integer `-8`",
        ),
        ("logging_steps = 0", "trainer.logging_steps: expected 1 or more, got 0"),
        ("warmup_steps = -1", "trainer.warmup_steps: expected a whole number of steps, a ratio between 0 and 1"),
        ("max_steps = 10\nwarmup_steps = 11", "the warm-up of 11 steps is longer than the run of 10 steps"),
        ("eval_delay = -1", "trainer.eval_delay: expected a number of 0 or more, got -1"),
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
        &["tokenizer: text needs a tokenizer: expected `from` or (with the format `text`) `train_vocab_size`"],
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
    // A cadence for evaluation that is switched off is kept, as in Hugging Face, so that one key
    // can switch it.
    assert!(parse("eval_steps = 5").is_ok());
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
fn text_that_is_not_toml() {
    assert!(RunConfig::parse(&format!("\u{feff}{}", SMALL.replace('\n', "\r\n")), "a.toml").is_ok());
    refused(
        RunConfig::parse("[run]\noutput_dir = runs/x\n", "a.toml"),
        &["a.toml:2: string values must be quoted", "in \"output_dir = runs/x\""],
    );
    refused(RunConfig::parse("[run]\na = 1\na = 2\n", "a.toml"), &["a.toml:3: duplicate key, in \"a = 2\""]);
    refused(RunConfig::parse("{\"run\": {}}", "a.json"), &["a.json:1: ", "the file is TOML"]);
}
