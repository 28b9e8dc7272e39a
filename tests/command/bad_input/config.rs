//! Mistakes in the config file and on the command line.

use crate::common::messages::messages;
use crate::common::place::Place;

#[test]
fn unknown_keys_and_sections_get_a_suggestion() {
    let place = Place::new().recording(messages!());
    place.refused_lines("lerning_rate = 1e-3");
    place.refused_lines("[devise]\nkind = \"cpu\"");
    place.refused("text.toml", &["data.blocksize=8"], 2);
    place.refused("text.toml", &["model.n_layers=2"], 2);
    place.refused("text.toml", &["model.zzz=2"], 2);
    place.refused("text.toml", &["trainer.tpu_num_cores=8"], 2);
    place.refused("text.toml", &["precison=bf16"], 2);
    place.refused("text.toml", &["precision=bf61"], 2);
    place.refused("text.toml", &["trainer.fp16=2"], 2);
}

#[test]
fn wrong_types() {
    let place = Place::new().recording(messages!());
    place.refused_lines("logging_steps = \"many\"");
    for set in [
        "trainer.max_steps=2.5",
        "trainer.learning_rate=fast",
        "trainer.eval_on_start=2",
        "data.train=3",
        "model.kind=7",
        "model.n_layer=two",
        "model.n_layer=1.5",
        "model.resid_pdrop=half",
        "run=3",
    ] {
        place.refused("text.toml", &[set], 2);
    }
}

#[test]
fn two_ways_of_stating_the_same_thing() {
    let place = Place::new().recording(messages!());
    place.refused_lines("max_tokens = 9");
    for sets in [
        &["trainer.max_tokens=100", "trainer.max_steps=1"][..],
        &["tokenizer.from=x"],
        &["model.from=x", "model.size=small"],
    ] {
        place.refused("text.toml", sets, 2);
    }
    place.refused_lines("eval_strategy = \"no\"\nevaluation_strategy = \"no\"");
    place.refused_lines("warmup_steps = 1\nwarmup_ratio = 0.1");
    place.refused_lines("use_cpu = true");
    place.refused("text.toml", &["model.n_layer=1", "model.num_hidden_layers=2"], 2);
    place.refused("text.toml", &["model.num_labels=2", "model.id2label={0='a'}"], 2);
}

#[test]
fn files_that_are_no_config() {
    let place = Place::new().recording(messages!());
    place.write("not-toml.toml", "[run]\noutput_dir = runs/x\n");
    place.write("twice.toml", "[run]\na = 1\na = 2\n");
    place.write("latin1.toml", b"[run]\noutput_dir = \"\xe9\"\n");
    place.write("empty.toml", "");
    place.refused("none.toml", &[], 2);
    place.refused("text", &[], 2);
    place.refused("not-toml.toml", &[], 2);
    place.refused("twice.toml", &[], 2);
    place.refused("latin1.toml", &[], 2);
    place.refused("empty.toml", &[], 2);
    place.refused("text.toml", &["max_steps"], 2);
}

#[test]
fn zero_and_negative_sizes() {
    let place = Place::new().recording(messages!());
    for key in [
        "trainer.per_device_train_batch_size",
        "trainer.per_device_eval_batch_size",
        "trainer.gradient_accumulation_steps",
        "trainer.max_steps",
        "trainer.logging_steps",
        "data.block_size",
    ] {
        place.refused("text.toml", &[&format!("{key}=0")], 2);
        if key != "trainer.max_steps" {
            place.refused("text.toml", &[&format!("{key}=-3")], 2);
        }
    }
    place.refused("text.toml", &["data.block_size=1"], 2);
    place.refused("text.toml", &["tokenizer.train_vocab_size=0"], 2);
    for key in ["n_layer", "n_head", "n_embd", "n_positions", "n_inner", "vocab_size"] {
        place.refused("text.toml", &[&format!("model.{key}=0")], 2);
        place.refused("text.toml", &[&format!("model.{key}=-8")], 2);
    }
}

#[test]
fn numbers_that_are_not_finite_or_out_of_range() {
    let place = Place::new().recording(messages!());
    place.refused_lines("learning_rate = nan");
    for set in [
        "trainer.learning_rate=inf",
        "trainer.weight_decay=-inf",
        "trainer.max_minutes=nan",
        "trainer.max_grad_norm=nan",
        "trainer.warmup_steps=nan",
        "model.resid_pdrop=nan",
        "model.layer_norm_epsilon=inf",
        "data.validation=nan",
    ] {
        place.refused("text.toml", &[set], 2);
    }
    for set in [
        "trainer.learning_rate=0",
        "trainer.learning_rate=-1",
        "trainer.adam_beta1=1.0",
        "trainer.max_grad_norm=-1",
        "model.resid_pdrop=1.0",
        "model.attn_pdrop=-0.1",
        "model.layer_norm_epsilon=-1.0",
        "data.validation=150%",
        "trainer.seed=-1",
    ] {
        place.refused("text.toml", &[set], 2);
    }
}

/// Sizes whose products do not fit in a machine word are refused before anything is multiplied or
/// allocated.
#[test]
fn numbers_too_large_to_compute_with() {
    let place = Place::new().recording(messages!());
    let huge = i64::MAX.to_string();
    for key in [
        "trainer.per_device_train_batch_size",
        "trainer.per_device_eval_batch_size",
        "trainer.gradient_accumulation_steps",
        "trainer.max_steps",
    ] {
        place.refused("text.toml", &[&format!("{key}={huge}")], 2);
    }
    place.refused("text.toml", &[&format!("model.n_embd={huge}")], 2);
    place.refused("text.toml", &[&format!("data.block_size={huge}")], 2);
    place.refused("text.toml", &["trainer.max_minutes=1e300"], 2);
    let epochs = ["trainer.max_steps=-1", "trainer.num_train_epochs=1e300"];
    place.refused("text.toml", &epochs, 2);
}

#[test]
fn unknown_names_get_a_suggestion() {
    let place = Place::new().recording(messages!());
    for set in [
        "trainer.lr_scheduler_type=cosin",
        "trainer.optim=adamw_troch",
        "data.task=clmm",
        "data.task=classification",
        "data.task=sequence-clasification",
        "model.kind=gpt3",
        "device.kind=cuda0",
        "trainer.eval_strategy=step",
        "model.size=smal",
        "trainer.optim=rmsprop_bnb",
    ] {
        place.refused("text.toml", &[set], 2);
    }
    let forward = ["forward", "x", "--batch", "b", "--out", "o", "--task", "clmm"];
    place.fails(place.kiln(&forward), 2);
    let generate = ["generate", "x", "--prompt", "a", "--device", "gpux"];
    place.fails(place.kiln(&generate), 2);
}

#[test]
fn warm_up_longer_than_the_run() {
    let place = Place::new().recording(messages!());
    place.refused_lines("warmup_steps = 3");
    // The length of the run follows from the data.
    let epochs = ["trainer.max_steps=-1", "trainer.num_train_epochs=1", "trainer.warmup_steps=6"];
    place.refused("rows.toml", &epochs, 2);
}

#[test]
fn evaluation_and_generation_need_their_inputs() {
    let place = Place::new().recording(messages!());
    place.refused("text.toml", &["trainer.eval_strategy=epoch"], 2);
    place.refused("rows.toml", &["generation.prompt=a"], 2);
    place.refused("text.toml", &["generation.prompt=a", "generation.top_p=1.5"], 2);
    place.refused("text.toml", &["generation.prompt=a", "generation.temperature=-1"], 2);
    let long = format!("generation.prompt={}", "fn let use mod ".repeat(20));
    place.refused("text.toml", &[&long], 2);
}

#[test]
fn values_are_no_tables_and_tables_no_values() {
    let place = Place::new().recording(messages!());
    place.write("precise.toml", format!("precision = \"f32\"\n{}", crate::common::place::TEXT));
    for set in [
        "precision.x=1",
        "precision.x.y=1",
        "precision={x=1}",
        "precision=[1]",
        "precision=1",
        "precision.=1",
        ".precision=1",
        "run.output_dir.x=1",
        "data.train.0=x",
        "data.train.x.y=1",
        "model.kind.x=1",
        "model.n_layer={x=1}",
        "trainer={max_steps=1}",
        "trainer.max_steps.x=1",
        "trainer.max_steps=[1]",
        "trainer.learning_rate={a={b=1}}",
        "trainer.fp16.x=1",
        "trainer.lr_scheduler_kwargs=1",
        "trainer.\"max_steps\"=1",
        "trainer..max_steps=1",
        "trainer.=1",
        "=1",
        ".=1",
        "trainer.été=1",
        "中.x=1",
    ] {
        place.refused("text.toml", &[set], 2);
        place.refused("precise.toml", &[set], 2);
    }
}

#[test]
fn a_section_without_a_name_is_none() {
    let place = Place::new().recording(messages!());
    for keys in ["precision = \"bf16\"", "trainer = 1", "prompt = 1"] {
        place.write("unnamed.toml", format!("[\"\"]\n{keys}\n{}", crate::common::place::TEXT));
        place.refused("unnamed.toml", &[], 2);
        place.refused("unnamed.toml", &["prompt.precision=-1"], 2);
    }
}

#[test]
fn a_hundred_thousand_keys_take_no_longer_than_reading_them() {
    let place = Place::new().recording(messages!());
    let keys = |prefix: &str| (0..100_000).map(|i| format!("{prefix}{i} = {i}\n")).collect::<String>();
    let begun = std::time::Instant::now();
    place.write("trainer.toml", format!("{}{}", crate::common::place::TEXT, keys("unknown_")));
    place.refused("trainer.toml", &[], 2);
    place.write("model.toml", format!("{}[model.extra]\n{}", crate::common::place::TEXT, keys("x.y.a_")));
    place.refused("model.toml", &[], 2);
    place.write("sections.toml", format!("{}{}", keys("top_"), crate::common::place::TEXT));
    place.refused("sections.toml", &[], 2);
    let name = "n".repeat(1_000_000);
    place.write("long.toml", format!("{}{name} = 1\n", crate::common::place::TEXT));
    place.refused("long.toml", &[], 2);
    // Eight processes; looking for every key in all others took a minute each.
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
}
