//! Every way in which a config file can be wrong, and the message it gets.
#![allow(clippy::unwrap_used)]

use super::*;

#[test]
fn two_spellings_of_one_thing() {
    let refused = Refused(messages!());
    refused.lines(&[
        "eval_strategy = \"no\"\nevaluation_strategy = \"no\"",
        "warmup_ratio = 0.1\nwarmup_steps = 3",
        "use_cpu = true\n[device]\nkind = \"cpu\"",
        "fp16 = true\nbf16 = true",
        "ddp_backend = \"nccl\"\n[distributed]\noptimizer_sharding = true",
    ]);
}

#[test]
fn two_ways_of_stating_the_same_thing() {
    let refused = Refused(messages!());
    refused.lines(&["max_tokens = 3\nnum_train_epochs = 1"]);
    refused.together(&["model.from=x", "model.size=small"]);
    refused.together(&["trainer.fp16=true", "trainer.bf16=true"]);
    refused.together(&["trainer.bf16=true", "trainer.fp16=true"]);
    refused.set(&["tokenizer.from=x"]);
    let back = parse("num_train_epochs = 3.0\n[device]").map(|config| config.to_toml().unwrap()).unwrap();
    // A length given on top takes the place of the file's, unless it is given twice on top.
    let over = |sets: &[&str]| {
        let sets = sets.iter().map(|set| (*set).to_owned()).collect::<Vec<_>>();
        from_text(&back, "plan.toml", None, &sets)
    };
    assert_eq!(over(&["trainer.max_steps=5"]).unwrap().trainer.length(), RunLength::Steps(5));
    assert_eq!(over(&["trainer.max_tokens=5"]).unwrap().trainer.length(), RunLength::Tokens(5));
    assert_eq!(over(&["trainer.max_steps=-1"]).unwrap().trainer.length(), RunLength::Epochs(3.0));
    refused.add(
        "--set trainer.max_tokens=5 --set trainer.max_steps=5",
        over(&["trainer.max_tokens=5", "trainer.max_steps=5"]),
    );
    assert!(with(&["model.size=small", "model.n_layer=3"]).is_ok());
    assert!(with(&["model.from=x", "model.n_layer=3"]).is_ok());
}

#[test]
fn unknown_keys_and_sections() {
    let refused = Refused(messages!());
    refused.lines(&[
        "seed = 1\nlerning_rate = 1",
        "[devise]\nkind = \"cpu\"",
        "[quantizer]\nenabled = true",
        "[compiler]\nenabled = \"yes\"",
        "[compiler]\nfused_ops = [\"gellu\"]",
        "[compiler]\nenable = true",
    ]);
    refused.file(&["precison = \"bf16\"", "run = 3", "learning_rate = 1e-3"]);
    refused.lines(&["[device]\nkinds = \"cpu\"", "lr_scheduler_kwargs = { pwer = 2 }"]);
    refused.file(&["[run]\noutput = 1", "[tokenizer]\nvocab = 1", "[data]\nwords = 1", "[generation]\nprompts = 1"]);
    refused.add(
        "n_layers, of n_layer and n_head",
        Result::<()>::Err(document::unknown_key("model", "n_layers", &["n_layer", "n_head"]).into()),
    );
}

#[test]
fn hugging_face_arguments_that_are_not_honoured() {
    let refused = Refused(messages!());
    refused.lines(&[
        "fp16_full_eval = true",
        "bf16 = true\nfp16_full_eval = true",
        "deepspeed = \"ds.json\"",
        "fsdp = \"full_shard\"",
        "push_to_hub = true\nhub_strategy = \"all_checkpoints\"",
        "push_to_hub = true\nhub_token = \"hf_ofAnotherAccount\"",
        "local_rank = 1",
        "n_gpu = 4",
        "neftune_noise_alpha = -5",
        "optim_target_modules = \"all-linear\"",
        "tpu_num_cores = 8",
        "half_precision_backend = \"apex\"",
    ]);
    refused.lines(&[
        "report_to = \"wandb\"",
        "report_to = [\"tensorbord\"]",
        "resume_from_checkpoint = 3",
        "overwrite_output_dir = 2",
        "do_predict = true",
    ]);
    refused.set(&["data.test=t.csv"]);
    refused.together(&["data.test=t.csv", "trainer.do_predict=true"]);
    let without = SMALL.replace("validation = \"b.txt\"\n", "");
    refused.file(&["do_eval = true", "do_train = false"].map(|line| format!("{without}{line}")));
    refused.lines(&["run_name = \"\"", "run_name = \"a\\u001bb\""]);
}

#[test]
fn saving_and_the_best_model() {
    let refused = Refused(messages!());
    refused.lines(&[
        "load_best_model_at_end = true",
        "save_strategy = \"best\"",
        "early_stopping_patience = 3",
        "metric_for_best_model = \"loss\"",
        "greater_is_better = true",
        "early_stopping_patience = 0",
        "early_stopping_threshold = 0.1",
        "early_stopping_threshold = -0.1",
        "save_total_limit = 0",
        "save_steps = 0",
        "save_strategy = \"step\"",
    ]);
    let best = |lines: &str| parse(&format!("load_best_model_at_end = true\n{lines}"));
    refused.add("load_best_model_at_end = true\neval_strategy = \"epoch\"", best("eval_strategy = \"epoch\""));
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
    let refused = Refused(messages!());
    refused.lines(&[
        "max_steps = \"many\"",
        "learning_rate = \"fast\"",
        "learning_rate = \"2e-5\"",
        "learning_rate = true",
        "eval_on_start = 2",
        "seed = [1]",
        "lr_scheduler_type = 3",
        "lr_scheduler_kwargs = 3",
        "lr_scheduler_kwargs.power = \"two\"",
    ]);
    refused.set(&["model.kind=3", "data.train=3", "data.train=[1]", "data.validation=2", "run.output_dir=3"]);
}

#[test]
fn unknown_names() {
    let refused = Refused(messages!());
    refused.lines(&[
        "lr_scheduler_type = \"cosin\"",
        "lr_scheduler_type = \"reduce_lr_on_plateau\"",
        "optim = \"adamw_troch\"",
        "optim = \"rmsprop_bnb\"",
        "optim = \"sgd\"\noptim_args.momentm = 0.9",
        "optim_args = \"momentum\"",
        "adafactor = 2",
    ]);
    refused.set(&[
        "data.task=clmm",
        "data.task=classification",
        "model.kind=gpt3",
        "data.format=cvs",
        "run.on_existing=resum",
        "device.kind=gpu",
    ]);
}

#[test]
fn tables() {
    let refused = Refused(messages!());
    let table = |more: &[&str]| {
        let base = ["data.format=csv", "data.task=sequence-classification", "tokenizer.train_vocab_size=300"];
        with(&[&base[..], more].concat())
    };
    let refuse = |more: &[&str]| refused.add(more.join(" "), table(more));
    refuse(&[]);
    refuse(&["data.task=question-answering"]);
    table(&["data.task=clm", "data.block_size=8", "data.text_column=body"]).unwrap();
    refuse(&["data.task=clm", "data.label_column=y"]);
    refuse(&["data.task=mlm", "data.max_length=8"]);
    refused.set(&["data.max_length=64", "data.label_column=y"]);
    for set in [
        "data.label_names=[\"a\"]",
        "data.label_names=[\"a\", \"a\"]",
        "data.max_length=0",
        "data.block_size=8",
        "data.text_column=''",
    ] {
        refuse(&[set]);
    }
}

#[test]
fn documents_masking_padding_and_limits() {
    let refused = Refused(messages!());
    refused.set(&["data.documents=paragraph"]);
    refused.together(&["data.documents=line", "data.format=tokenized"]);
    refused.set(&["data.document_end=eot"]);
    refused.together(&["data.document_end=eos", "data.format=tokenized"]);
    refused.set(&["data.errors=ignore"]);
    refused.together(&["data.errors=replace", "data.format=tokenized"]);
    refused.set(&["data.mlm_probability=0.2", "data.whole_word_mask=true"]);
    refused.together(&["data.task=mlm", "data.format=tokenized", "data.whole_word_mask=true"]);
    for share in ["0", "1.5", "-0.1"] {
        refused.together(&["data.task=mlm", &format!("data.mlm_probability={share}")]);
    }
    refused.set(&[
        "data.padding=do_not_pad",
        "data.padding=bucket",
        "data.max_train_samples=0",
        "data.max_eval_samples=0",
        "data.pad_to_multiple_of=0",
        "data.buckets=8",
    ]);
    for buckets in ["0", "65", "[]", "[0, 8]", "[16, 8]", "eight"] {
        refused.together(&["data.padding=buckets", &format!("data.buckets={buckets}")]);
    }
    refused.together(&["data.padding=buckets", "data.pad_to_multiple_of=8", "data.buckets=[8, 12]"]);
}

#[test]
fn numbers_out_of_range() {
    let refused = Refused(messages!());
    refused.lines(&[
        "learning_rate = nan",
        "weight_decay = inf",
        "lr_scheduler_kwargs.power = -inf",
        "learning_rate = 0",
        "learning_rate = -1e-3",
        "weight_decay = -0.1",
        "adam_beta1 = 1.0",
        "adam_beta2 = -0.1",
        "adam_epsilon = 0.0",
        "max_grad_norm = -1",
        "optim = \"sgd\"\nadam_beta1 = 0.8",
        "optim = \"lion\"\nadam_epsilon = 1e-6",
        "label_smoothing_factor = 1.0",
        "class_weights = [1, 0]",
        "freeze = ['a', '']",
        "freeze_layers = -1",
        "layer_wise_lr_decay = 0",
        "num_train_epochs = 0",
        "num_train_epochs = -1",
        "max_minutes = 0",
        "max_steps = 0",
        "max_tokens = 0",
        "per_device_train_batch_size = 0",
        "per_device_eval_batch_size = 0",
        "gradient_accumulation_steps = 0",
        "per_device_train_batch_size = -8",
        "logging_steps = 0",
        "warmup_steps = -1",
        "max_steps = 10\nwarmup_steps = 11",
        "eval_delay = -1",
        "lr_scheduler_kwargs.power = 2",
    ]);
    refused.set(&["model.dropout=nan"]);
}

#[test]
fn data_tokenizer_evaluation_and_generation_must_fit() {
    let refused = Refused(messages!());
    refused.set(&[
        "data.block_size=0",
        "data.block_size=1",
        "data.train=[]",
        "data.train=",
        "data.validation=[]",
        "data.validation=150%",
        "data.task=regression",
        "tokenizer.train_vocab_size=256",
        "data.format=tokenized",
    ]);
    let none = "[run]\noutput_dir = \"x\"\n[model]\nkind = \"gpt2\"\n[data]\ntask = \"clm\"\ntrain = \"a\"\n";
    let more = [
        "",
        "format = \"tokenized\"\n[generation]\nprompt = \"a\"",
        "[tokenizer]\nfrom = \"t\"\n[trainer]\neval_strategy = \"epoch\"",
        "[tokenizer]\nfrom = \"t\"\n[trainer]\neval_on_start = true",
    ];
    refused.file(&more.map(|more| format!("{none}{more}")));
    // A cadence for evaluation that is switched off is kept, as in Hugging Face, so that one key
    // can switch it.
    assert!(parse("eval_steps = 5").is_ok());
    refused.together(&["data.task=mlm", "generation.prompt=a"]);
    refused.lines(&["[generation]"]);
    for set in
        ["generation.max_new_tokens=0", "generation.temperature=-1", "generation.top_p=0", "generation.top_p=1.5"]
    {
        refused.together(&["generation.prompt=a", set]);
    }
    let generation = with(&["generation.prompt=fn main"]).unwrap().generation.unwrap();
    assert_eq!(generation, GenerationSection::new("fn main"));
}

#[test]
fn what_is_required() {
    let refused = Refused(messages!());
    refused.file(&["", "[data]\ntask = \"clm\"", "[data]\ntask = \"clm\"\n[run]\noutput_dir = \"x\""]);
    refused.set(&["model.from="]);
}

#[test]
fn overrides_that_are_refused() {
    let refused = Refused(messages!());
    refused.set(&["trainer.max_steps", "max_steps=3", "=3", ".=3", "trainer.=3", ".max_steps=3"]);
    refused.set(&[
        "trainer.max_step=3",
        "trainr.max_steps=3",
        "trainer.seed.x=3",
        "data.task.x=3",
        "trainer.lr_scheduler_kwargs.pow=3",
        "trainer.max_steps=x\ny=1",
        "trainer.learning_rate=inf",
    ]);
}

#[test]
fn text_that_is_not_toml() {
    let refused = Refused(messages!());
    assert!(RunConfig::parse(&format!("\u{feff}{}", SMALL.replace('\n', "\r\n")), "a.toml").is_ok());
    refused.file(&["[run]\noutput_dir = runs/x\n", "[run]\na = 1\na = 2\n"]);
    let json = "{\"run\": {}}";
    refused.add(json, RunConfig::parse(json, "a.json"));
}

/// Keys of `[data]` belong to two structs, and a mistake in one of either has its line.
#[test]
fn a_mistake_in_the_data_has_its_line() {
    let refused = Refused(messages!());
    for line in [
        "sampler = \"randm\"",
        "padding = 3",
        "pad_to_multiple_of = \"eight\"",
        "pad_to_multiple_of = 0",
        "buckets = { number = 4 }",
        "buckets = 4",
        "test = 1",
        "samplr = \"random\"",
        "block_size = \"long\"",
    ] {
        let text = SMALL.replace("task = \"clm\"", &format!("task = \"clm\"\n{line}"));
        refused.add(line, RunConfig::parse(&text, "a.toml"));
    }
}
