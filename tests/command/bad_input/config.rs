//! Mistakes in the config file and on the command line.

use crate::common::fails;
use crate::common::place::Place;

#[test]
fn unknown_keys_and_sections_get_a_suggestion() {
    let place = Place::new();
    place.refused_lines(
        "lerning_rate = 1e-3",
        &["bad.toml:", "trainer.lerning_rate: unknown key", "did you mean `learning_rate`?"],
    );
    place.refused_lines("[devise]\nkind = \"cpu\"", &["devise: unknown section", "did you mean [device]?"]);
    place.refused(
        "text.toml",
        &["data.blocksize=8"],
        2,
        &["data.blocksize: unknown key", "did you mean `block_size`?"],
    );
    place.refused("text.toml", &["model.n_layers=2"], 2, &["n_layers", "unknown", "did you mean \"n_layer\"?"]);
    place.refused("text.toml", &["model.zzz=2"], 2, &["unknown field \"zzz\" for gpt2", "Known fields: vocab_size"]);
    place.refused("text.toml", &["trainer.push_to_hub=true"], 2, &["`push_to_hub` is not supported", "upload"]);
    place.refused("text.toml", &["precison=bf16"], 2, &["expected section.key=value"]);
    place.refused("text.toml", &["precision=bf61"], 2, &["precision: unknown precision", "did you mean `bf16`?"]);
    place.refused("text.toml", &["trainer.fp16=2"], 2, &["trainer.fp16: expected true or false"]);
}

#[test]
fn wrong_types() {
    let place = Place::new();
    place.refused_lines(
        "logging_steps = \"many\"",
        &["bad.toml:", "trainer.logging_steps: expected a whole number", "\"many\""],
    );
    for (set, parts) in [
        ("trainer.max_steps=2.5", ["trainer.max_steps: expected a whole number", "2.5"]),
        ("trainer.learning_rate=fast", ["trainer.learning_rate: expected a number", "\"fast\""]),
        ("trainer.eval_on_start=2", ["trainer.eval_on_start: expected true or false", "`2`"]),
        ("data.train=3", ["data.train: expected a string or a list of strings", "`3`"]),
        ("model.kind=7", ["model.kind: expected a string", "`7`"]),
        ("model.n_layer=two", ["[model]: n_layer: expected a whole number", "\"two\""]),
        ("model.n_layer=1.5", ["[model]: n_layer: expected a whole number", "1.5"]),
        ("model.resid_pdrop=half", ["[model]: resid_pdrop: expected a number", "\"half\""]),
        ("run=3", ["run", "3"]),
    ] {
        place.refused("text.toml", &[set], 2, &parts);
    }
}

#[test]
fn two_ways_of_stating_the_same_thing() {
    let place = Place::new();
    let two = "are two ways of stating the same thing";
    place.refused_lines("max_tokens = 9", &["`trainer.max_steps` and `trainer.max_tokens`", two, "help: "]);
    for (sets, pair) in [
        (&["trainer.max_tokens=100", "trainer.max_steps=1"][..], "`trainer.max_steps`"),
        (&["tokenizer.from=x"], "`tokenizer.from` and `tokenizer.train_vocab_size`"),
        (&["model.from=x", "model.size=small"], "`model.from` and `model.size`"),
    ] {
        place.refused("text.toml", sets, 2, &[pair, two]);
    }
    place
        .refused_lines("eval_strategy = \"no\"\nevaluation_strategy = \"no\"", &["`trainer.evaluation_strategy`", two]);
    place.refused_lines("warmup_steps = 1\nwarmup_ratio = 0.1", &["`trainer.warmup_steps`", two]);
    place.refused_lines("use_cpu = true", &["`device.kind` and `trainer.use_cpu`", two]);
    place.refused(
        "text.toml",
        &["model.n_layer=1", "model.num_hidden_layers=2"],
        2,
        &["n_layer", "num_hidden_layers", two],
    );
    place.refused("text.toml", &["model.num_labels=2", "model.id2label={0='a'}"], 2, &["num_labels", "id2label", two]);
}

#[test]
fn files_that_are_no_config() {
    let place = Place::new();
    place.write("not-toml.toml", "[run]\noutput_dir = runs/x\n");
    place.write("twice.toml", "[run]\na = 1\na = 2\n");
    place.write("latin1.toml", b"[run]\noutput_dir = \"\xe9\"\n");
    place.write("empty.toml", "");
    place.refused("none.toml", &[], 2, &["none.toml"]);
    place.refused("text", &[], 2, &["text"]);
    place.refused("not-toml.toml", &[], 2, &["not-toml.toml:2", "output_dir = runs/x"]);
    place.refused("twice.toml", &[], 2, &["twice.toml:3", "duplicate key"]);
    place.refused("latin1.toml", &[], 2, &["latin1.toml", "UTF-8"]);
    place.refused("empty.toml", &[], 2, &["empty.toml", "data.task: required"]);
    place.refused("text.toml", &["max_steps"], 2, &["max_steps", "expected section.key=value"]);
}

#[test]
fn zero_and_negative_sizes() {
    let place = Place::new();
    for (key, least) in [
        ("trainer.per_device_train_batch_size", 1),
        ("trainer.per_device_eval_batch_size", 1),
        ("trainer.gradient_accumulation_steps", 1),
        ("trainer.max_steps", 1),
        ("trainer.logging_steps", 1),
        ("data.block_size", 1),
    ] {
        place.refused("text.toml", &[&format!("{key}=0")], 2, &[key, &format!("expected {least} or more, got 0")]);
        if key != "trainer.max_steps" {
            place.refused("text.toml", &[&format!("{key}=-3")], 2, &[key, "expected a whole number", "-3"]);
        }
    }
    place.refused("text.toml", &["data.block_size=1"], 2, &["data.block_size", "expected 2 or more, got 1"]);
    place.refused(
        "text.toml",
        &["tokenizer.train_vocab_size=0"],
        2,
        &["tokenizer.train_vocab_size", "256 bytes", "got 0"],
    );
    for key in ["n_layer", "n_head", "n_embd", "n_positions", "n_inner", "vocab_size"] {
        place.refused("text.toml", &[&format!("model.{key}=0")], 2, &[key, "expected a positive number, got 0"]);
        place.refused("text.toml", &[&format!("model.{key}=-8")], 2, &[key, "expected a whole number", "-8"]);
    }
}

#[test]
fn numbers_that_are_not_finite_or_out_of_range() {
    let place = Place::new();
    place.refused_lines("learning_rate = nan", &["trainer.learning_rate: expected a finite number, got NaN"]);
    for (set, key) in [
        ("trainer.learning_rate=inf", "trainer.learning_rate"),
        ("trainer.weight_decay=-inf", "trainer.weight_decay"),
        ("trainer.max_minutes=nan", "trainer.max_minutes"),
        ("trainer.max_grad_norm=nan", "trainer.max_grad_norm"),
        ("trainer.warmup_steps=nan", "trainer.warmup_steps"),
        ("model.resid_pdrop=nan", "model.resid_pdrop"),
        ("model.layer_norm_epsilon=inf", "model.layer_norm_epsilon"),
        ("data.validation=nan", "data.validation"),
    ] {
        place.refused("text.toml", &[set], 2, &[key, "expected", "got"]);
    }
    for (set, expected) in [
        ("trainer.learning_rate=0", "expected a number above 0, got 0"),
        ("trainer.learning_rate=-1", "expected a number above 0, got -1"),
        ("trainer.adam_beta1=1.0", "expected a number from 0 to below 1, got 1"),
        ("trainer.max_grad_norm=-1", "expected a number of 0 or more"),
        ("model.resid_pdrop=1.0", "resid_pdrop: expected a number in [0, 1), got 1"),
        ("model.attn_pdrop=-0.1", "attn_pdrop: expected a number in [0, 1), got -0.1"),
        ("model.layer_norm_epsilon=-1.0", "layer_norm_epsilon: expected a number in [0, 1), got -1"),
        ("data.validation=150%", "expected a share"),
        ("trainer.seed=-1", "expected a whole number"),
    ] {
        place.refused("text.toml", &[set], 2, &[expected]);
    }
}

/// Sizes whose products do not fit in a machine word are refused before anything is multiplied or
/// allocated.
#[test]
fn numbers_too_large_to_compute_with() {
    let place = Place::new();
    let huge = i64::MAX.to_string();
    for key in [
        "trainer.per_device_train_batch_size",
        "trainer.per_device_eval_batch_size",
        "trainer.gradient_accumulation_steps",
        "trainer.max_steps",
    ] {
        place.refused("text.toml", &[&format!("{key}={huge}")], 2, &[key, "expected at most", &huge]);
    }
    place.refused("text.toml", &[&format!("model.n_embd={huge}")], 2, &["n_embd: expected at most", &huge]);
    place.refused("text.toml", &[&format!("data.block_size={huge}")], 2, &["data.block_size", "16 positions"]);
    place.refused("text.toml", &["trainer.max_minutes=1e300"], 2, &["trainer.max_minutes", "expected at most"]);
    let epochs = ["trainer.max_steps=-1", "trainer.num_train_epochs=1e300"];
    place.refused("text.toml", &epochs, 2, &["trainer.num_train_epochs", "expected at most"]);
}

#[test]
fn unknown_names_get_a_suggestion() {
    let place = Place::new();
    for (set, parts) in [
        ("trainer.lr_scheduler_type=cosin", ["unknown learning-rate schedule `cosin`", "did you mean `cosine`?"]),
        ("trainer.optim=adamw_troch", ["unknown optimizer", "did you mean `adamw_torch`?"]),
        ("data.task=clmm", ["unknown task `clmm`", "did you mean `clm`?"]),
        ("data.task=sequence-clasification", ["unknown task", "did you mean `sequence-classification`?"]),
        ("model.kind=gpt3", ["unknown model kind `gpt3`", "did you mean `gpt2`?"]),
        ("device.kind=cuda0", ["unknown device kind `cuda0`", "did you mean `cuda`?"]),
        ("trainer.eval_strategy=step", ["trainer.eval_strategy", "did you mean `steps`?"]),
        ("model.size=smal", ["size", "expected one of distil, small, medium, large, xl"]),
        ("trainer.optim=rmsprop", ["trainer.optim", "`rmsprop` is not supported"]),
    ] {
        place.refused("text.toml", &[set], 2, &parts);
    }
    let forward = ["forward", "x", "--batch", "b", "--out", "o", "--task", "clmm"];
    fails(&mut place.kiln(&forward), 2, &["unknown task", "did you mean \"clm\"?"]);
    let generate = ["generate", "x", "--prompt", "a", "--device", "gpux"];
    fails(&mut place.kiln(&generate), 2, &["--device", "unknown device kind `gpux`"]);
}

#[test]
fn warm_up_longer_than_the_run() {
    let place = Place::new();
    let longer = "the warm-up of 3 steps is longer than the run of 2 steps";
    place.refused_lines("warmup_steps = 3", &["bad.toml:", "trainer.warmup_steps", longer, "help: lower warmup_steps"]);
    // The length of the run follows from the data.
    let epochs = ["trainer.max_steps=-1", "trainer.num_train_epochs=1", "trainer.warmup_steps=6"];
    place.refused("rows.toml", &epochs, 2, &["[trainer]", "the warm-up of 6 steps is longer than the run of 5 steps"]);
}

#[test]
fn evaluation_and_generation_need_their_inputs() {
    let place = Place::new();
    place.refused(
        "text.toml",
        &["trainer.eval_strategy=epoch"],
        2,
        &["trainer.eval_strategy", "needs validation data", "data.validation"],
    );
    place.refused("rows.toml", &["generation.prompt=a"], 2, &["generation", "needs a tokenizer"]);
    place.refused("text.toml", &["generation.prompt=a", "generation.top_p=1.5"], 2, &["generation.top_p", "got 1.5"]);
    place.refused(
        "text.toml",
        &["generation.prompt=a", "generation.temperature=-1"],
        2,
        &["generation.temperature", "got -1"],
    );
    let long = format!("generation.prompt={}", "fn let use mod ".repeat(20));
    place.refused("text.toml", &[&long], 2, &["generation.prompt", "16 positions"]);
}

#[test]
fn values_are_no_tables_and_tables_no_values() {
    let place = Place::new();
    place.write("precise.toml", format!("precision = \"f32\"\n{}", crate::common::place::TEXT));
    for file in ["text.toml", "precise.toml"] {
        for (set, parts) in [
            ("precision.x=1", &["--set precision.x=1: precision: expected a value, got keys under it"][..]),
            ("precision.x.y=1", &["precision: expected a value, got keys under it", "write --set precision=VALUE"]),
            ("precision={x=1}", &["--set precision={x=1}: precision: expected"]),
            ("precision=[1]", &["precision: expected"]),
            ("precision=1", &["precision: expected"]),
            ("precision.=1", &["precision"]),
            (".precision=1", &["expected section.key=value"]),
            ("run.output_dir.x=1", &["run.output_dir is \"run\", not a table"]),
            ("data.train.0=x", &["data.train is [\"text/*.txt\"], not a table"]),
            ("data.train.x.y=1", &["not a table"]),
            ("model.kind.x=1", &["model.kind is \"gpt2\", not a table"]),
            ("model.n_layer={x=1}", &["n_layer", "expected a whole number"]),
            ("trainer={max_steps=1}", &["expected section.key=value"]),
            ("trainer.max_steps.x=1", &["trainer.max_steps is 2, not a table"]),
            ("trainer.max_steps=[1]", &["trainer.max_steps: expected a whole number"]),
            ("trainer.learning_rate={a={b=1}}", &["trainer.learning_rate: expected a number, got a table"]),
            ("trainer.fp16.x=1", &["--set trainer.fp16.x=1: trainer.fp16: expected true or false, got { x = 1 }"]),
            ("trainer.lr_scheduler_kwargs=1", &["trainer.lr_scheduler_kwargs"]),
            ("trainer.\"max_steps\"=1", &["trainer.\"max_steps\": unknown key"]),
            ("trainer..max_steps=1", &["expected section.key=value"]),
            ("trainer.=1", &["expected section.key=value"]),
            ("=1", &["expected section.key=value"]),
            (".=1", &["expected section.key=value"]),
            ("trainer.été=1", &["trainer.été: unknown key"]),
            ("中.x=1", &["中: unknown section"]),
        ] {
            place.refused(file, &[set], 2, parts);
        }
    }
}

#[test]
fn a_section_without_a_name_is_none() {
    let place = Place::new();
    for keys in ["precision = \"bf16\"", "trainer = 1", "prompt = 1"] {
        place.write("unnamed.toml", format!("[\"\"]\n{keys}\n{}", crate::common::place::TEXT));
        let said = &["unnamed.toml:1: \"\": unknown section or top-level key"];
        place.refused("unnamed.toml", &[], 2, said);
        place.refused("unnamed.toml", &["prompt.precision=-1"], 2, said);
    }
}

#[test]
fn a_hundred_thousand_keys_take_no_longer_than_reading_them() {
    let place = Place::new();
    let keys = |prefix: &str| (0..100_000).map(|i| format!("{prefix}{i} = {i}\n")).collect::<String>();
    let begun = std::time::Instant::now();
    place.write("trainer.toml", format!("{}{}", crate::common::place::TEXT, keys("unknown_")));
    place.refused("trainer.toml", &[], 2, &["trainer.toml:21: trainer.unknown_0: unknown key"]);
    place.write("model.toml", format!("{}[model.extra]\n{}", crate::common::place::TEXT, keys("x.y.a_")));
    place.refused("model.toml", &[], 2, &["extra"]);
    place.write("sections.toml", format!("{}{}", keys("top_"), crate::common::place::TEXT));
    place.refused("sections.toml", &[], 2, &["sections.toml:1: top_0: unknown section or top-level key"]);
    let name = "n".repeat(1_000_000);
    place.write("long.toml", format!("{}{name} = 1\n", crate::common::place::TEXT));
    place.refused("long.toml", &[], 2, &["unknown key"]);
    // Eight processes; looking for every key in all others took a minute each.
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
}
