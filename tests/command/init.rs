//! `kiln init`: what it writes is planned and trained, and what is not named is asked for.

use std::path::Path;

use serde_json::json;

use crate::common::messages::messages;
use crate::common::{kiln, rows, succeeds};

/// A small GPT-2 with its tokenizer in `run/model` of `folder`.
fn with_model(folder: &Path) {
    let text = (0..60).map(|i| format!("line {i} tells of boats and of weather {i}\n")).collect::<String>();
    std::fs::write(folder.join("corpus.txt"), text).unwrap();
    let config = "[run]\noutput_dir = \"run\"\n[model]\nkind = \"gpt2\"\nn_layer = 1\nn_head = 2\nn_embd = 16\n\
                  n_positions = 64\n[data]\ntask = \"clm\"\ntrain = \"corpus.txt\"\nblock_size = 8\n[tokenizer]\n\
                  train_vocab_size = 300\n[trainer]\nmax_steps = 1\nwarmup_steps = 0\n[device]\nkind = \"cpu\"\n";
    std::fs::write(folder.join("config.toml"), config).unwrap();
    succeeds(kiln(folder).args(["train", "config.toml"]));
}

#[test]
fn a_config_for_little_text_trains() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    with_model(folder.path());
    let line = "the small boat left the harbour in the morning\n";
    std::fs::create_dir(folder.path().join("files")).unwrap();
    for name in ["a", "b", "c"] {
        std::fs::write(folder.path().join(format!("files/{name}.txt")), line.repeat(2)).unwrap();
    }
    std::fs::write(folder.path().join("little.txt"), line.repeat(12)).unwrap();
    std::fs::write(folder.path().join("table.csv"), format!("text\n{}", line.repeat(12))).unwrap();
    for (name, data) in [("lines", "little.txt"), ("files", "files/*.txt"), ("rows", "table.csv")] {
        let config = format!("{name}.toml");
        let said = succeeds(kiln(folder.path()).args(["init", "clm", "run/model", "--train", data, "--out", &config]));
        assert!(said.contains(&format!("`kiln plan {config}`, then `kiln train {config}`")), "{said}");
        succeeds(kiln(folder.path()).args(["train", &config, "--set", "trainer.max_steps=1"]));
        // The folder has the name of the config, and there was text to evaluate on.
        let rows = rows(&folder.path().join("runs").join(name));
        assert!(rows.iter().any(|row| row["eval_loss"].is_number()), "{name}: {rows:?}");
    }
    // Validation files of one's own are not divided, and as little text as they have makes short
    // samples too.
    std::fs::write(folder.path().join("held-out.txt"), line.repeat(2)).unwrap();
    let args =
        ["init", "clm", "run/model", "--train", "little.txt", "--validation", "held-out.txt", "--out", "own.toml"];
    succeeds(kiln(folder.path()).args(args));
    succeeds(kiln(folder.path()).args(["plan", "own.toml"]));
    std::fs::write(folder.path().join("nothing.txt"), "one two three\n").unwrap();
    let args = ["init", "clm", "run/model", "--train", "nothing.txt", "--out", "nothing.toml"];
    messages.fails(kiln(folder.path()).args(args), 3);
    assert!(!folder.path().join("nothing.toml").exists());
}

#[test]
fn a_config_for_conversations_trains() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    with_model(folder.path());
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let template = "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}";
    write("run/model/chat_template.jinja", template);
    let row = |column: &str, index: usize| {
        let said = |role: &str, content: String| json!({"role": role, "content": content});
        let both = [said("user", format!("line {index}")), said("assistant", format!("tells of weather {index}"))];
        format!("{}\n", json!({column: both}))
    };
    let rows_of = |column: &str| (0..40).map(|index| row(column, index)).collect::<String>();
    write("answers.jsonl", &rows_of("messages"));
    write("shared.jsonl", &rows_of("conversations"));
    write("other.jsonl", &rows_of("dialogue"));
    write("text.csv", "messages\nhello\n");
    let init = |args: &[&str]| {
        let mut command = kiln(folder.path());
        command.args(["init", "chat"]).args(args);
        command
    };
    let said = succeeds(&mut init(&["run/model", "--train", "answers.jsonl"]));
    assert!(said.contains("`kiln plan chat.toml`, then `kiln train chat.toml`"), "{said}");
    succeeds(kiln(folder.path()).args(["train", "chat.toml", "--set", "trainer.max_steps=1"]));
    let run = folder.path().join("runs/chat");
    assert!(rows(&run).iter().any(|row| row["eval_loss"].is_number()), "answers to evaluate on");
    assert!(run.join("model/adapter_config.json").is_file(), "LoRA");
    let written = |args: &[&str], name: &str| {
        succeeds(init(args).args(["--out", name]));
        std::fs::read_to_string(folder.path().join(name)).unwrap()
    };
    let text = written(&["run/model", "--train", "shared.jsonl", "--validation", "10%"], "shared.toml");
    assert!(text.contains("messages_column = \"conversations\"") && text.contains("validation = \"10%\""), "{text}");
    assert!(text.contains("max_length = 64 "), "the model has no more positions: {text}");
    let text = written(&["run/model", "--train", "other.jsonl", "--text-column", "dialogue"], "named.toml");
    assert!(text.contains("messages_column = \"dialogue\""), "{text}");
    let text = written(&["run/model"], "later.toml");
    assert!(text.contains("train = \"data/conversations.jsonl\""), "{text}");
    messages.fails(init(&["run/model", "--train", "other.jsonl", "--out", "new.toml"]), 3);
    messages.fails(init(&["run/model", "--train", "text.csv", "--out", "new.toml"]), 2);
    messages.fails(init(&["random", "--out", "new.toml"]), 2);
}

#[test]
fn a_config_for_choices_names_the_columns_of_the_file() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    std::fs::create_dir(&model).unwrap();
    std::fs::write(model.join("config.json"), r#"{"model_type": "bert"}"#).unwrap();
    std::fs::write(model.join("model.safetensors"), "").unwrap();
    std::fs::write(folder.path().join("own.csv"), "question,a,b,c,answer\nwhere,in,on,at,0\n").unwrap();
    let swag = "sent1,sent2,ending0,ending1,ending2,ending3,label\nwhere,it,in,on,at,by,0\n";
    std::fs::write(folder.path().join("swag.csv"), swag).unwrap();
    let init = |args: &[&str]| {
        let mut command = kiln(folder.path());
        command.args(["init", "multiple-choice", "model", "--train"]).args(args);
        command
    };
    let written = |args: &[&str], name: &str| {
        succeeds(init(args).args(["--out", name]));
        std::fs::read_to_string(folder.path().join(name)).unwrap()
    };
    let own = ["own.csv", "--text-column", "question", "--choice-columns", "a,b,c", "--label-column", "answer"];
    let text = written(&own, "own.toml");
    assert!(text.contains("choice_columns = [\"a\", \"b\", \"c\"]") && !text.contains("sent2"), "{text}");
    let text = written(&["swag.csv"], "swag.toml");
    assert!(text.contains("text_pair_column = \"sent2\"") && text.contains("\"ending3\"]"), "{text}");
    messages.fails(init(&["own.csv", "--text-column", "question"]), 3);
    messages.fails(init(&["own.csv", "--choice-columns", "a"]), 2);
}

/// The content of a file tells its format, and errors of a table advise arguments of `kiln init`.
#[test]
fn rows_of_json_are_a_table_and_advice_names_arguments() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    std::fs::create_dir(folder.path().join("model")).unwrap();
    write("model/config.json", r#"{"model_type": "bert"}"#);
    write("model/model.safetensors", "");
    write("rows.json", r#"[{"text": "good", "mood": "up"}, {"text": "bad", "mood": "down"}]"#);
    write("tokens.json", r#"[{"input_ids": [1, 2], "labels": 0}]"#);
    write("semicolons.csv", "text;label\ngood;up\n");
    write("tabs.csv", "text\tlabel\ngood\tup\n");
    let init = |args: &[&str]| {
        let mut command = kiln(folder.path());
        command.args(["init", "sequence-classification", "model", "--train"]).args(args);
        command
    };
    let written = |args: &[&str], name: &str| {
        succeeds(init(args).args(["--out", name]));
        std::fs::read_to_string(folder.path().join(name)).unwrap()
    };
    let text = written(&["rows.json", "--label-column", "mood"], "rows.toml");
    assert!(text.contains("format = \"jsonl\"") && text.contains("label_column = \"mood\""), "{text}");
    assert!(written(&["tokens.json"], "tokens.toml").contains("format = \"tokenized\""));
    let saved = concat!(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."), "/tests/fixtures/files/saved/train");
    assert!(written(&[saved], "saved.toml").contains("format = \"arrow\""));
    messages.fails(init(&["rows.json"]), 3);
    messages.fails(init(&["semicolons.csv"]), 3);
    messages.fails(init(&["tabs.csv"]), 3);
}

#[test]
fn random_weights_need_no_model_and_slips_are_told() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    let text = (0..60).map(|i| format!("line {i} tells of boats and of weather {i}\n")).collect::<String>();
    std::fs::write(folder.path().join("corpus.txt"), text.repeat(4)).unwrap();
    std::fs::write(folder.path().join("table.csv"), format!("text\n{}", text.repeat(4))).unwrap();
    let init = |args: &[&str]| {
        let mut command = kiln(folder.path());
        command.arg("init").args(args);
        command
    };
    succeeds(&mut init(&["clm", "random", "--train", "corpus.txt", "--out", "new.toml"]));
    let sets = ["trainer.max_steps=1", "tokenizer.train_vocab_size=300", "model.n_layer=1", "device.kind=cpu"];
    let mut train = kiln(folder.path());
    succeeds(train.args(["train", "new.toml"]).args(sets.iter().flat_map(|set| ["--set", set])));
    let rows = rows(&folder.path().join("runs/new"));
    assert!(rows.iter().any(|row| row["eval_loss"].is_number()), "{rows:?}");
    messages.fails(init(&["clm", "random", "--train", "table.csv", "--out", "other.toml"]), 2);
    messages.fails(init(&["regression", "random", "--out", "other.toml"]), 2);
    for share in ["5", "0.07"] {
        let validation = ["--validation", share, "--out", "other.toml"];
        messages.fails(init(&[&["clm", "random", "--train", "corpus.txt"][..], &validation].concat()), 2);
    }
    // A file that is there is told before a model is looked for.
    messages.fails(init(&["clm", "./nowhere", "--out", "new.toml"]), 2);
    // A slip in a path names the folder beside it.
    messages.fails(init(&["clm", "runs/nwe", "--out", "other.toml"]), 3);
}

#[test]
fn without_a_terminal_nobody_is_asked() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    for args in [&["init"][..], &["init", "sequence-classification"]] {
        messages.fails(kiln(folder.path()).args(args), 2);
    }
}

#[cfg(unix)]
#[test]
fn a_terminal_is_asked_until_the_answers_are_valid() {
    use crate::common::pty::Pty;

    let folder = tempfile::tempdir().unwrap();
    with_model(folder.path());
    let messages = (0..8).map(|i| format!("{i},message {i},{}\n", ["good", "bad"][i % 2])).collect::<String>();
    std::fs::write(folder.path().join("tickets.csv"), format!("id,message,topic\n{messages}")).unwrap();
    // A file that is there ends it before the first question but that for the task.
    std::fs::write(folder.path().join("clm.toml"), "").unwrap();
    let mut pty = Pty::start(kiln(folder.path()).arg("init"), 100, 30);
    pty.wait_for("question-answering: ");
    pty.press("clm\n");
    assert_eq!(pty.ended().code(), Some(2), "{}", pty.text());
    assert!(pty.text().contains("clm.toml: there is a file of this name") && !pty.text().contains("Pretrained"));
    let mut pty = Pty::start(kiln(folder.path()).args(["init", "--out", "topics.toml"]), 100, 30);
    for (question, answer) in [
        ("question-answering: ", "classification"),
        ("unknown task \"classification\"", "sequence-classification"),
        ("[distilbert/distilbert-base-uncased]: ", "./nosuch"),
        ("no such file or folder: ./nosuch", "run/model"),
        ("later in the config: ", "nosuch.csv"),
        ("no such file\r\n", "tickets.csv"),
        ("there are \"id\", \"message\", \"topic\"", "message"),
        ("Column with the label (id, message, topic): ", "subject"),
        ("there is no column \"subject\"", ""),
        ("Column with the label (id, message, topic) [subject]: ", "topic"),
    ] {
        pty.wait_for(question);
        pty.press(&format!("{answer}\n"));
    }
    assert!(pty.ended().success(), "{}", pty.text());
    let written = std::fs::read_to_string(folder.path().join("topics.toml")).unwrap();
    for line in [
        "from = \"run/model\"",
        "text_column = \"message\"",
        "label_column = \"topic\"",
        "output_dir = \"runs/topics\"",
    ] {
        assert!(written.contains(line), "{line} in {written}");
    }
    succeeds(kiln(folder.path()).args(["plan", "topics.toml"]));
}

#[test]
fn the_schema_lies_beside_the_config_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let text = (0..60).map(|i| format!("line {i} tells of boats and of weather {i}\n")).collect::<String>();
    std::fs::write(folder.path().join("corpus.txt"), text.repeat(4)).unwrap();
    let init = |name: &str| {
        succeeds(kiln(folder.path()).args(["init", "clm", "random", "--train", "corpus.txt", "--out", name]));
        std::fs::read_to_string(folder.path().join(name)).unwrap()
    };
    let written = || std::fs::read_to_string(folder.path().join("kiln.schema.json")).unwrap();
    assert_eq!(init("first.toml").lines().next(), Some("#:schema ./kiln.schema.json"));
    assert_eq!(written(), succeeds(kiln(folder.path()).arg("schema")));
    // It may belong to other config files by now.
    std::fs::write(folder.path().join("kiln.schema.json"), "{}").unwrap();
    init("second.toml");
    assert_eq!(written(), "{}");
}
