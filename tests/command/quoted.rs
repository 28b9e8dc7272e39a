//! README and guide say what is true: every `console` block is run and its output compared, every
//! `toml` block is planned, and every command in an `sh` block is one that the command line takes.
//!
//! A block is compared with its figures left out: numbers may be any, `...` in a line stands for
//! any text, and a line of `...` for any lines. As in trycmd, `? CODE` after a command is its exit
//! code. The blocks of a page run one after the other in one folder, which holds the configs of the
//! repository, a little text, a table, and a small model in the place of the Hub's.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use kiln_measure::sweep::space::SweepSection;
use snapbox::Assert;
use snapbox::assert::DEFAULT_ACTION_ENV;

use crate::common::{fixture, kiln};

/// Commands whose settings are others here: the first words of the command, and the arguments that
/// are added to it.
const OTHERWISE: &[(&str, &str)] = &[
    (
        "kiln train configs/quickstart.toml",
        "--log-format table --set trainer.max_steps=4 --set trainer.warmup_steps=1 --set trainer.logging_steps=2 --set trainer.eval_steps=4 \
         --set model.n_embd=32 --set tokenizer.train_vocab_size=400 --set generation.max_new_tokens=5",
    ),
    // The small model in the place of the Hub's has to learn.
    ("kiln train reviews.toml", "--set trainer.learning_rate=1e-2 --set trainer.num_train_epochs=15"),
];

/// A block of a page.
struct Block {
    language: String,
    line: usize,
    text: String,
}

/// A command of a `console` block.
struct Quoted {
    command: String,
    code: i32,
    output: String,
}

/// The folder in which the blocks of a page run.
struct Sandbox {
    folder: tempfile::TempDir,
}

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn blocks(page: &str) -> Vec<Block> {
    let (mut found, mut lines) = (Vec::new(), page.lines().enumerate());
    while let Some((line, text)) = lines.next() {
        let Some(language) = text.strip_prefix("```") else { continue };
        let inside = lines.by_ref().map(|(_, text)| text).take_while(|text| *text != "```");
        let text = inside.fold(String::new(), |all, line| all + line + "\n");
        found.push(Block { language: language.to_owned(), line: line + 1, text });
    }
    found
}

fn quoted(block: &str) -> Vec<Quoted> {
    let mut found: Vec<Quoted> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), found.last_mut()) {
            (Some(command), _) => {
                let command = command.replace("cargo run --release -- ", "kiln ");
                found.push(Quoted { command, code: 0, output: String::new() });
            }
            (None, Some(last)) => match line.strip_prefix("? ") {
                Some(code) => last.code = code.parse().unwrap(),
                None => writeln!(last.output, "{line}").unwrap(),
            },
            (None, None) => panic!("a console block begins with a command: {line}"),
        }
    }
    found
}

/// `output` with `[..]` in the place of numbers and of `...` within a line.
fn without_figures(output: &str) -> String {
    let line = |line: &str| {
        if line == "..." {
            return line.to_owned();
        }
        let words = line.split(|c: char| !c.is_ascii_hexdigit()).filter(|word| word.len() >= 32);
        let line = words.fold(line.to_owned(), |line, digest| line.replace(digest, "..."));
        let (mut out, mut chars, mut before) = (String::new(), line.chars().peekable(), ' ');
        while let Some(c) = chars.next() {
            if !c.is_ascii_digit() || before.is_alphanumeric() || before == '_' {
                out.push(c);
                before = c;
                continue;
            }
            let mut number = c.to_string();
            while let Some(next) = chars.next_if(|next| {
                next.is_ascii_alphanumeric() || ".,".contains(*next) || ("+-".contains(*next) && number.ends_with('e'))
            }) {
                number.push(next);
            }
            out += "[..]";
            // Marks at the end belong to the sentence.
            let marks = &number[number.trim_end_matches(['.', ',']).len()..];
            out += marks;
            before = marks.chars().last().unwrap_or('0');
        }
        let mut out = out.replace("...", "[..]").replace("-[..]", "[..]");
        for twice in ["[..][..]", "[..] [..]"] {
            while out.contains(twice) {
                out = out.replace(twice, "[..]");
            }
        }
        out
    };
    output.lines().map(|text| line(text) + "\n").collect()
}

/// `text` without the spaces that only align columns, whose width depends on the figures.
fn unaligned(text: &str) -> String {
    let line = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n";
    text.trim_end().lines().map(line).collect::<String>().trim_end().to_owned()
}

impl Sandbox {
    fn new() -> Self {
        let sandbox = Self { folder: tempfile::tempdir().unwrap() };
        for folder in ["configs", "src/config", "models", "tests/fixtures/oracle/trainer-bert-classification"] {
            for entry in std::fs::read_dir(repository().join(folder)).unwrap() {
                let path = entry.unwrap().path();
                if path.is_file() {
                    sandbox.write(path.strip_prefix(repository()).unwrap(), std::fs::read(&path).unwrap());
                }
            }
        }
        // Stands in for the sources of crates that cargo keeps on the disk.
        let sources = std::fs::read_to_string(repository().join("src/config/hugging_face.rs")).unwrap();
        (0..8).for_each(|n| {
            sandbox.write(format!("cargo-home/registry/src/index/burn-1.0.0/src/{n}.rs"), &sources[n * 1000..]);
        });
        sandbox.write_table();
        sandbox.write_models();
        sandbox.write("args.json", r#"{"learning_rate": 0.001, "per_device_train_batch_size": 4, "seed": 7}"#);
        sandbox.write("batch.json", r#"{"input_ids": [[1, 2, 3, 4, 5, 6]], "labels": [[1, 2, 3, 4, 5, 6]]}"#);
        std::fs::create_dir(sandbox.path("bin")).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_kiln"), sandbox.path("bin/kiln")).unwrap();
        sandbox
    }

    fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    /// The reviews of the chapter on classifiers, and the choices and conversations of the one on
    /// data formats.
    fn write_table(&self) {
        let (mut rows, mut unlabelled) = ("text,label\n".to_owned(), "text\n".to_owned());
        for n in 0..40 {
            let (word, label) = if n % 2 == 0 { ("warm", "good") } else { ("dull", "bad") };
            let text = format!("\"A {word} film, and {n} more words.\"");
            writeln!(rows, "{text},{label}").unwrap();
            if n < 2 {
                writeln!(unlabelled, "{text}").unwrap();
            }
        }
        self.write("reviews.csv", &rows);
        self.write("held-out.csv", &rows);
        self.write("new.csv", &unlabelled);
        let choices = "a warm film,a dull film,a film,more words";
        self.write(
            "swag/train.csv",
            format!(
                "sent1,sent2,ending0,ending1,ending2,ending3,label\n{}",
                format!("A film.,It is,{choices},2\n").repeat(8)
            ),
        );
        let talk = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
        self.write("conversations.jsonl", format!("{talk}\n").repeat(8));
        self.write("chat_template.jinja", "{% for message in messages %}{{ message.content }}\n{% endfor %}");
    }

    /// The model of a fixture in the cache of Hugging Face under `id`; its folder there.
    fn write_cached(&self, id: &str, fixture_of_model: &str) -> PathBuf {
        let repo = Path::new("hf-home/hub").join(format!("models--{}", id.replace('/', "--")));
        let commit = "12040accade4e8a0f71eabdb258fecc2e7e948be";
        let snapshot = repo.join("snapshots").join(commit);
        self.write(repo.join("refs/main"), commit);
        let model = fixture(fixture_of_model).join("model");
        for file in ["config.json", "model.safetensors"] {
            self.write(snapshot.join(file), std::fs::read(model.join(file)).unwrap());
        }
        snapshot
    }

    /// A small DistilBERT and a small GPT-2 in the cache of Hugging Face, by the names of those on
    /// the Hub.
    fn write_models(&self) {
        let snapshot = self.write_cached("openai-community/gpt2", "generate-gpt2");
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            let tokenizer = repository().join("tests/fixtures/run_clm/gpt2").join(file);
            self.write(snapshot.join(file), std::fs::read(tokenizer).unwrap());
        }
        let snapshot = self.write_cached("distilbert/distilbert-base-uncased", "distilbert-mlm");
        let model = fixture("distilbert-mlm").join("model");
        let config: serde_json::Value =
            serde_json::from_slice(&std::fs::read(model.join("config.json")).unwrap()).unwrap();
        let size = config["vocab_size"].as_u64().unwrap() as usize;
        let words = [
            "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "warm", "dull", "film", "and", "more", "words", ",", ".",
        ];
        let all = words.iter().map(|word| (*word).to_owned()).chain((0..).map(|n| format!("##{n}")));
        self.write(snapshot.join("vocab.txt"), all.take(size).collect::<Vec<_>>().join("\n"));
        self.write(
            snapshot.join("tokenizer_config.json"),
            r#"{"tokenizer_class": "DistilBertTokenizer", "do_lower_case": true}"#,
        );
    }

    /// `command` in a shell of this folder.
    fn command(&self, command: &str) -> Command {
        let settings = kiln(self.folder.path());
        let mut shell = Command::new("sh");
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        shell.args(["-c", &format!("exec 2>&1\n{command}")]).current_dir(self.folder.path()).env("PATH", path);
        shell.envs(settings.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.env("CARGO_HOME", self.path("cargo-home"));
        shell
    }

    /// Runs the commands of a block and compares what they print.
    fn runs(&self, page: &str, block: &Block) {
        for Quoted { command, code, output } in quoted(&block.text) {
            let more = OTHERWISE.iter().find(|(start, _)| command.starts_with(start)).map_or("", |(_, more)| more);
            let ran = self.command(&format!("{command} {more}")).output().unwrap();
            let cache = self.path("kiln-cache").display().to_string();
            let actual = String::from_utf8(ran.stdout).unwrap().replace(&cache, "/home/ann/.cache/kiln");
            let place = format!("{page}:{}: {command}", block.line);
            assert_eq!(ran.status.code(), Some(code), "{place}\n{actual}");
            let assert = Assert::new().action_env(DEFAULT_ACTION_ENV);
            if let Err(difference) = assert.try_eq(
                Some(&place),
                unaligned(&actual).into(),
                without_figures(&unaligned(&output)).trim_end().into(),
            ) {
                panic!("{place}\n{difference}\n--- printed ---\n{actual}");
            }
        }
    }

    /// Plans a config; a part of one is laid over the smallest config of the repository.
    fn plans(&self, page: &str, block: &Block) {
        let mut config: toml::Table =
            block.text.parse().unwrap_or_else(|error| panic!("{page}:{}: {error}", block.line));
        if let Some(section) = config.remove("sweep") {
            let section: SweepSection =
                section.try_into().unwrap_or_else(|error| panic!("{page}:{}: {error}", block.line));
            section.parameters_of_trials().unwrap_or_else(|error| panic!("{page}:{}: {error}", block.line));
        }
        let has_task = config.get("data").is_some_and(|data| data.get("task").is_some());
        if !has_task {
            let mut base: toml::Table =
                std::fs::read_to_string(self.path("configs/tiny-gpt2.toml")).unwrap().parse().unwrap();
            for (name, value) in std::mem::take(&mut config) {
                match (base.get_mut(&name).and_then(toml::Value::as_table_mut), value) {
                    (Some(section), toml::Value::Table(keys)) => section.extend(keys),
                    (_, value) => _ = base.insert(name, value),
                }
            }
            if block.text.contains("global_batch_size") {
                base["trainer"].as_table_mut().unwrap().remove("gradient_accumulation_steps");
            }
            config = base;
        }
        self.write("quoted.toml", toml::to_string(&config).unwrap());
        let out = self.command("kiln plan quoted.toml").output().unwrap();
        assert!(out.status.success(), "{page}:{}\n{}", block.line, String::from_utf8_lossy(&out.stdout));
    }
}

/// The words of a command, of which some stand in double quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (part, is_quoted) in line.split('"').zip([false, true].into_iter().cycle()) {
        match part {
            _ if is_quoted => words.push(part.to_owned()),
            part => words.extend(part.split_whitespace().map(str::to_owned)),
        }
    }
    words
}

/// Every block of a page.
fn check(page: &str) {
    let text = std::fs::read_to_string(repository().join(page)).unwrap();
    let sandbox = Sandbox::new();
    for block in blocks(&text) {
        match block.language.as_str() {
            "console" => sandbox.runs(page, &block),
            "toml" => sandbox.plans(page, &block),
            "sh" => {
                for line in
                    block.text.lines().filter(|line| line.starts_with("kiln ") || line.starts_with("srun kiln "))
                {
                    let line = line.split(" # ").next().unwrap().trim_start_matches("srun ");
                    kiln_cli::Cli::try_parse_from(words(line))
                        .unwrap_or_else(|error| panic!("{page}:{}: {error}", block.line));
                }
            }
            _ => {}
        }
    }
}

macro_rules! pages {
    ($($name:ident: $page:literal),+ $(,)?) => {
        $(#[test]
        fn $name() {
            check($page);
        })+

        /// Every page of the guide is among these.
        #[test]
        fn every_page_is_checked() {
            let pages = [$($page),+];
            for entry in std::fs::read_dir(repository().join("src/guide")).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                let is_page = name.ends_with(".md") && name != "links.md";
                let page = format!("src/guide/{name}");
                assert!(!is_page || pages.contains(&page.as_str()), "{page} is not checked");
            }
        }
    };
}

pages! {
    readme: "README.md",
    first_run: "src/guide/first_run.md",
    classifier: "src/guide/classifier.md",
    pre_training: "src/guide/pre_training.md",
    chat: "src/guide/chat.md",
    data_formats: "src/guide/data_formats.md",
    other_files: "src/guide/other_files.md",
    config_reference: "src/guide/config_reference.md",
    compiler_switch: "src/guide/compiler_switch.md",
    comparing: "src/guide/comparing.md",
    batch_and_learning_rate: "src/guide/batch_and_learning_rate.md",
    precision: "src/guide/precision.md",
    checkpoints_and_faults: "src/guide/checkpoints_and_faults.md",
    jobs: "src/guide/jobs.md",
    own_model: "src/guide/own_model.md",
    operators: "src/guide/operators.md",
    numbers: "src/guide/numbers.md",
    from_hugging_face: "src/guide/from_hugging_face.md",
    from_burn_train: "src/guide/from_burn_train.md",
    other_tools: "src/guide/other_tools.md",
    glossary: "src/guide/glossary.md",
}

#[test]
fn help_prints_commands_and_chapters() {
    let sandbox = Sandbox::new();
    let says = |command: &str, code: i32, parts: &[&str]| {
        let out = sandbox.command(command).output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        assert_eq!(out.status.code(), Some(code), "{command}\n{text}");
        parts.iter().for_each(|part| assert!(text.contains(part), "{command}: no {part:?} in\n{text}"));
        text
    };
    let all = says("kiln help", 0, &["Usage: kiln <COMMAND>", "tune-batch", "Chapters of the guide", "first-run"]);
    assert_eq!(all, says("kiln --help", 0, &[]));
    assert_eq!(says("kiln help train", 0, &["Usage: kiln train", "--resume"]), says("kiln train --help", 0, &[]));
    says("kiln help cache export", 0, &["Usage: kiln cache export"]);
    let chapter =
        says("kiln help first-run", 0, &["First run\n=========\n", "    $ kiln plan configs/tiny-gpt2.toml\n"]);
    assert!(!chapter.contains("```") && !chapter.contains("]("), "{chapter}");
    says("kiln help fist-run", 2, &["error: help: \"fist-run\" is neither", "did you mean `first-run`?"]);
    says("kiln help cache exprt", 2, &["error: "]);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = says(&format!("kiln completions {shell}"), 0, &["tune-batch"]);
        assert!(!script.contains("trial-batch"), "{shell} completes a hidden command");
    }
    says("kiln help --man man", 0, &["man pages to man"]);
    let page = std::fs::read_to_string(sandbox.path("man/kiln-cache-export.1")).unwrap();
    assert!(page.contains(".TH kiln-cache-export 1") && sandbox.path("man/kiln.1").is_file(), "{page}");
    assert!(!sandbox.path("man/kiln-trial-batch.1").exists());
}
