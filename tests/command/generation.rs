//! Text that a language model writes: `kiln generate` against `transformers`, several prompts at
//! once, the settings of a model folder, and samples on the way of a run.

use std::path::Path;

use serde_json::{Value, json};

use crate::common::messages::messages;
use crate::common::place::Place;
use crate::common::small_run::copy;
use crate::common::{fixture, json, kiln, kiln_on_device, succeeds, text};

/// The model of `fixtures/make_generation.py` with its tokenizer.
fn model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixture("generate-gpt2").join("model"), &folder.path().join("model"));
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        let from =
            Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/fixtures/run_clm/gpt2").join(file);
        std::fs::copy(from, folder.path().join("model").join(file)).unwrap();
    }
    folder
}

/// The lines of `kiln generate model --json` with `args`.
fn generated(folder: &Path, args: &[&str]) -> Vec<Value> {
    let out = succeeds(kiln_on_device(folder).args(["generate", "model", "--json"]).args(args));
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn greedy_texts_are_those_of_transformers_token_by_token_alone_and_together() {
    let folder = model();
    let cases = json(&fixture("generate-gpt2").join("cases.json"));
    let prompts =
        cases["prompts"].as_array().unwrap().iter().map(|prompt| prompt.as_str().unwrap()).collect::<Vec<_>>();
    for case in cases["cases"].as_array().unwrap() {
        let mut settings = vec!["--temperature".to_owned(), "0".into()];
        for (key, value) in case["settings"].as_object().unwrap() {
            let values = value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
            for value in values {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                settings.extend([format!("--{}", key.replace('_', "-")), text]);
            }
        }
        let settings = settings.iter().map(String::as_str).collect::<Vec<_>>();
        let asked = prompts.iter().flat_map(|prompt| ["--prompt", prompt]).collect::<Vec<_>>();
        for mode in ["native", "compiled"] {
            let together = generated(folder.path(), &[&settings[..], &asked, &["--compiler", mode]].concat());
            let tokens = together.iter().map(|line| line["token_ids"].clone()).collect::<Vec<_>>();
            assert_eq!(Value::from(tokens), case["tokens"], "{mode} {}", case["settings"]);
        }
        let alone = generated(folder.path(), &[&settings[..], &["--prompt", prompts[1]]].concat());
        assert_eq!(alone[0]["token_ids"], case["tokens"][1], "{}", case["settings"]);
    }
}

#[test]
fn a_text_that_ends_at_the_last_position_is_told() {
    let folder = model();
    let positions = json(&folder.path().join("model/config.json"))["n_positions"].as_u64().unwrap();
    let said = |args: &[&str]| {
        let output = kiln_on_device(folder.path()).args(["generate", "model", "--prompt", "a"]).args(args).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", text(&output));
        String::from_utf8(output.stderr).unwrap()
    };
    let forever = ["--max-new-tokens", "5000", "--temperature", "0", "--min-new-tokens", "5000"];
    for more in [&[][..], &["--json"]] {
        let told = said(&[&forever[..], more].concat());
        let parts = ["of max_new_tokens = 5000 tokens".to_owned(), format!("the model has {positions} positions")];
        assert!(parts.iter().all(|part| told.contains(part.as_str())), "{told}");
    }
    assert!(!said(&["--max-new-tokens", "3", "--min-new-tokens", "3"]).contains("positions"));
}

#[test]
fn each_prompt_is_continued_as_if_it_were_alone() {
    let messages = messages!();
    let folder = model();
    std::fs::write(folder.path().join("prompts.txt"), "the cat\na\n\nWhen the first of them came to the house,\n")
        .unwrap();
    for batch_size in ["1", "2", "8"] {
        let sampled = ["--prompts", "prompts.txt", "--seed", "5", "--max-new-tokens", "90", "--batch-size", batch_size];
        let together = generated(folder.path(), &sampled);
        assert_eq!(together.len(), 3);
        for (index, line) in together.iter().enumerate() {
            let prompt = line["prompt"].as_str().unwrap();
            let alone = generated(folder.path(), &["--prompt", prompt, "--seed", "5", "--max-new-tokens", "90"]);
            assert_eq!((&line["index"], &line["text"]), (&json!(index), &alone[0]["text"]), "{batch_size}");
            assert_eq!(line["token_ids"], alone[0]["token_ids"]);
            assert!(line["text"].as_str().unwrap().starts_with(prompt));
        }
    }
    // A file with one prompt is written as one with several.
    std::fs::write(folder.path().join("one.txt"), "a\n").unwrap();
    let out = succeeds(kiln(folder.path()).args(["generate", "model", "--prompts", "one.txt", "--temperature", "0"]));
    assert_eq!(
        serde_json::from_str::<Value>(&out).unwrap(),
        generated(folder.path(), &["--prompt", "a", "--temperature", "0"])[0]
    );
    // The text of one prompt, which is written as it comes, is the same.
    let streamed = succeeds(kiln(folder.path()).args(["generate", "model", "--prompt", "a", "--temperature", "0"]));
    let line = generated(folder.path(), &["--prompt", "a", "--temperature", "0"]);
    assert_eq!(streamed.trim_end_matches('\n'), line[0]["text"].as_str().unwrap().trim_end_matches('\n'));
    let refused = |args: &[&str]| {
        messages.fails(kiln(folder.path()).args(["generate", "model", "--prompt", "a"]).args(args), 2);
    };
    refused(&["--batch-size", "0"]);
    refused(&["--repetition-penalty", "0"]);
    refused(&["--repetition-penalty", "inf"]);
    refused(&["--min-new-tokens", "200"]);
}

#[test]
fn a_model_folder_states_how_it_generates() {
    let messages = messages!();
    let folder = model();
    let path = folder.path().join("model/generation_config.json");
    let state = |more: Value| {
        let mut keys = json(&path);
        keys.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        std::fs::write(&path, keys.to_string()).unwrap();
    };
    let greedy = generated(folder.path(), &["--prompt", "a", "--temperature", "0", "--max-new-tokens", "12"]);
    state(json!({"do_sample": false, "max_new_tokens": 12}));
    assert_eq!(generated(folder.path(), &["--prompt", "a"]), greedy);
    // The command line comes first.
    let shorter = generated(folder.path(), &["--prompt", "a", "--max-new-tokens", "3"]);
    assert_eq!(shorter[0]["token_ids"].as_array().unwrap()[..], greedy[0]["token_ids"].as_array().unwrap()[..3]);
    state(json!({"repetition_penalty": 1.7}));
    let penalised = ["--prompt", "a", "--temperature", "0", "--max-new-tokens", "12", "--repetition-penalty", "1.7"];
    let stated = generated(folder.path(), &["--prompt", "a"]);
    assert_eq!(stated, generated(folder.path(), &penalised));
    assert_ne!(stated, greedy);
    // A key with another effect in transformers is said; a value that cannot be is refused.
    state(json!({"num_beams": 4, "min_p": 0.0, "max_time": 60, "min_new_tokens": 10}));
    let output = kiln(folder.path()).args(["generate", "model", "--prompt", "a"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && said.contains("num_beams = 4 is not followed") && !said.contains("min_p"),
        "{said}"
    );
    assert!(said.contains("max_time = 60 is not followed") && !said.contains("min_new_tokens"), "{said}");
    let shorter = generated(folder.path(), &["--prompt", "a", "--max-new-tokens", "3"]);
    assert_eq!(shorter[0]["token_ids"].as_array().unwrap().len(), 3, "the model's least number yields");
    state(json!({"top_k": "many"}));
    messages.fails(kiln(folder.path()).args(["generate", "model", "--prompt", "a"]), 3);
}

#[test]
fn a_special_token_is_a_stop_string_too() {
    let folder = model();
    let greedy = ["--prompt", "a", "--temperature", "0", "--max-new-tokens", "12"];
    let all = generated(folder.path(), &greedy)[0]["token_ids"].as_array().unwrap().clone();
    // The first new token of several letters becomes a special one.
    let path = folder.path().join("model/tokenizer.json");
    let mut tokenizer = json(&path);
    let vocab = tokenizer["model"]["vocab"].as_object().unwrap();
    let named = |id: u64| vocab.iter().find(|(_, it)| it.as_u64() == Some(id)).unwrap().0.clone();
    let word = |name: &String| name.len() > 1 && name.bytes().all(|byte| byte.is_ascii_alphabetic());
    let (id, name) =
        all.iter().map(|id| (id.clone(), named(id.as_u64().unwrap()))).find(|(_, name)| word(name)).unwrap();
    let added = json!({"id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
                       "normalized": false, "special": true});
    tokenizer["added_tokens"].as_array_mut().unwrap().push(added);
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    let line = &generated(folder.path(), &[&greedy[..], &["--stop-strings", &name]].concat())[0];
    let first = all.iter().position(|it| *it == id).unwrap();
    assert_eq!(line["token_ids"].as_array().unwrap()[..], all[..=first], "{line}");
}

/// The lines of `samples.jsonl` of `run`: step, prompt and text.
fn samples_of(place: &Place, run: &str) -> Vec<(u64, String, String)> {
    let text = std::fs::read_to_string(place.path(run).join("samples.jsonl")).unwrap();
    let line = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| line[key].as_str().unwrap().to_owned();
        (line["step"].as_u64().unwrap(), text("prompt"), text("text"))
    };
    text.lines().map(line).collect()
}

fn samples(place: &Place) -> Vec<(u64, String, String)> {
    samples_of(place, "run")
}

#[test]
fn a_run_writes_samples_on_its_way_and_its_losses_are_those_of_a_run_without() {
    let place = Place::new();
    let steps = ["trainer.max_steps=7", "trainer.learning_rate=0.02", "trainer.logging_steps=1"];
    let sampling = ["generation.prompt=[\"let\", \"fn main\"]", "generation.max_new_tokens=6", "generation.every=2"];
    let losses = |place: &Place| {
        let rows = crate::common::train_rows(&place.path("run"));
        rows.iter().map(|row| row["loss"].to_string()).collect::<Vec<_>>()
    };
    place.train("text.toml", &steps);
    let without = losses(&place);
    // The model that the run writes says where its texts end.
    let stated = json(&place.path("run/model/generation_config.json"));
    assert_eq!(stated["_from_model_config"], true);
    assert!(stated["eos_token_id"].is_u64(), "{stated}");
    let all = [&steps[..], &sampling, &["run.on_existing=overwrite"]].concat();
    let stdout = place.train("text.toml", &all);
    assert!(
        stdout.contains("--- sample after step 2 ---\nlet") && stdout.contains("--- sample ---\nfn main"),
        "{stdout}"
    );
    assert_eq!(losses(&place), without);
    let whole = samples(&place);
    let at = whole.iter().map(|(step, prompt, _)| (*step, &prompt[..])).collect::<Vec<_>>();
    assert_eq!(at, [2, 4, 6, 7].map(|step| [(step, "let"), (step, "fn main")]).concat());
    assert!(whole.iter().all(|(_, prompt, text)| text.starts_with(&prompt[..])));

    // A run that is continued has the samples of one that was not.
    let saved = [&all[..], &["trainer.save_steps=3", "trainer.save_strategy=steps"]].concat();
    place.train("text.toml", &saved);
    let resume = [
        &all[..all.len() - 1],
        &["run.on_existing=resume", "trainer.save_steps=3", "trainer.save_strategy=steps"],
        &["run.resume_from_checkpoint=run/checkpoints/step-000003"],
    ]
    .concat();
    // So has one that continues it in a folder of its own.
    place.train("text.toml", &[&resume[..], &["run.output_dir=other"]].concat());
    assert_eq!(samples_of(&place, "other"), whole);
    // The samples after step 3 are made again.
    let file = place.path("run/samples.jsonl");
    let old = |(step, prompt, text): &(u64, String, String)| {
        let text = if *step > 3 { "old" } else { &text[..] };
        json!({"step": step, "prompt": prompt, "text": text}).to_string() + "\n"
    };
    std::fs::write(&file, whole.iter().map(old).collect::<String>()).unwrap();
    assert_ne!(samples(&place), whole);
    place.train("text.toml", &resume);
    assert_eq!(samples(&place), whole);
}

#[cfg(unix)]
#[test]
fn a_sample_that_a_signal_cuts_short_is_not_written() {
    let place = Place::new();
    // So many that they take seconds.
    let prompts = format!("generation.prompt={}", json!(vec!["let"; 2000]));
    let sets = ["trainer.max_steps=5", "trainer.logging_steps=1", "generation.every=2", &prompts];
    let mut command = place.config("train", "text.toml", &sets);
    let child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let rows = || std::fs::read_to_string(place.path("run/metrics.jsonl")).unwrap_or_default().lines().count();
    let started = std::time::Instant::now();
    while rows() < 2 && started.elapsed().as_secs() < 100 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let said = text(&output);
    assert!(output.status.code() == Some(130) && said.contains("stopped after step 2 of 5"), "{said}");
    assert!(!said.contains("sample after step") && !place.path("run/samples.jsonl").exists(), "{said}");
    // The run that goes on makes it up.
    let sets = [sets[0], sets[1], sets[2], "generation.prompt=\"let\"", "run.on_existing=\"resume\""];
    place.train("text.toml", &sets);
    assert_eq!(samples(&place).iter().map(|(step, ..)| *step).collect::<Vec<_>>(), [2, 4, 5]);
}

#[test]
fn a_question_is_laid_out_by_the_chat_template_and_the_answer_alone_is_written() {
    let messages = messages!();
    let folder = model();
    let ask = ["--chat", "--system", "Be kind.", "--prompt", "the cat", "--temperature", "0", "--max-new-tokens", "9"];
    messages.fails(kiln(folder.path()).args(["generate", "model"]).args(ask), 2);
    messages.fails(kiln(folder.path()).args(["generate", "model", "--system", "Be kind.", "--prompt", "a"]), 2);
    let template = "{% for message in messages %}{% if message.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}\
                    {{ message.role }}: {{ message.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";
    std::fs::write(folder.path().join("model/chat_template.jinja"), template).unwrap();
    let answer = &generated(folder.path(), &ask)[0];
    let laid_out = "system: Be kind.\nuser: the cat\nassistant:";
    let whole = &generated(folder.path(), &["--prompt", laid_out, "--temperature", "0", "--max-new-tokens", "9"])[0];
    assert_eq!(answer["token_ids"], whole["token_ids"]);
    assert_eq!(answer["prompt"], "the cat");
    assert_eq!(format!("{laid_out}{}", answer["text"].as_str().unwrap()), whole["text"]);
    let streamed = succeeds(kiln(folder.path()).args(["generate", "model"]).args(ask));
    assert_eq!(streamed.trim_end_matches('\n'), answer["text"].as_str().unwrap().trim_end_matches('\n'));
}
