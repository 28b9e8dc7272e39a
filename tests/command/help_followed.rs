//! Help leads somewhere: for each mistake here the advice of the message is carried out as it stands, and the next answer is
//! success, or the refusal of a later stage. A message that names a key, a command or a file as the remedy belongs into these tables.

use std::path::Path;
use std::process::Command;

use Do::{Args, Env, Remove, Run, Set, Unset, Write};

use crate::common::{kiln, text};

/// What a user does to the config, the files, the command or the environment.
#[derive(Clone, Copy)]
enum Do {
    /// Sets `section.key` to a value of TOML.
    Set(&'static str, &'static str),
    /// Leaves out `section.key`, or the section.
    Unset(&'static str),
    /// Writes a file, in folders that are made.
    Write(&'static str, &'static str),
    /// Removes a file or a folder.
    Remove(&'static str),
    /// Runs another command, which succeeds.
    Run(&'static [&'static str]),
    /// Gives the command these arguments; without, it is `kiln plan config.toml`.
    Args(&'static [&'static str]),
    /// Sets a variable of the environment of the command.
    Env(&'static str, &'static str),
}

/// The command that trains.
const TRAIN: Do = Args(&["train", "config.toml"]);

/// A mistake, what the message says of it and of the remedy, and the remedy carried out.
struct Case {
    base: &'static str,
    mistake: &'static [Do],
    says: &'static [&'static str],
    advice: &'static [Do],
    /// The beginning of a later refusal; empty for success.
    then: &'static str,
}

/// A case that ends well.
const fn case(
    base: &'static str,
    mistake: &'static [Do],
    says: &'static [&'static str],
    advice: &'static [Do],
) -> Case {
    Case { base, mistake, says, advice, then: "" }
}

/// A classifier of rows.
const CLASSES: &str = r#"
[run]
output_dir = "run"
[model]
kind = "bert"
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 16
max_position_embeddings = 16
[data]
task = "sequence-classification"
format = "csv"
train = ["rows.csv"]
[tokenizer]
from = "words/vocab.txt"
[trainer]
max_steps = 2
per_device_train_batch_size = 4
[device]
kind = "cpu"
"#;

/// A language model on text, with a tokenizer of its own.
const TEXT: &str = r#"
[run]
output_dir = "run"
[model]
kind = "gpt2"
n_layer = 1
n_head = 2
n_embd = 8
n_positions = 16
[data]
task = "clm"
train = ["text.txt"]
block_size = 8
[tokenizer]
train_vocab_size = 270
[trainer]
max_steps = 2
per_device_train_batch_size = 4
[device]
kind = "cpu"
"#;

/// Questions about contexts.
const ANSWERS: &str = r#"
[run]
output_dir = "run"
[model]
kind = "bert"
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 16
max_position_embeddings = 32
[data]
task = "question-answering"
format = "squad"
train = ["squad.json"]
[tokenizer]
from = "words/vocab.txt"
[trainer]
max_steps = 2
per_device_train_batch_size = 4
[device]
kind = "cpu"
"#;

const WORDS: &str = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\ngood\nbad\nfilm\nplay\nwhere\nis\nthe\ncat\nin\nbox\n";

const ROWS: &str = "text,label\na good film,praise\na bad film,blame\ngood play,praise\nbad play,blame\n\
                    the good film,praise\nthe bad play,blame\n";

const SQUAD: &str = r#"{"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": "the cat is in the box", "qas":
    [{"id": "q0", "question": "where is the cat", "answers": [{"text": "box", "answer_start": 18}]}]}]}]}"#;

fn folder(base: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| apply(folder.path(), &Write(leak(name), leak(text)));
    write("config.toml", base);
    write("words/vocab.txt", WORDS);
    write("rows.csv", ROWS);
    write("squad.json", SQUAD);
    write("text.txt", &"the cat is in the box and the film is a good play\n".repeat(40));
    folder
}

fn leak(text: &str) -> &'static str {
    Box::leak(text.to_owned().into_boxed_str())
}

/// Changes the folder as `change` says; what changes the command changes nothing here.
fn apply(folder: &Path, change: &Do) {
    let config = folder.join("config.toml");
    let edited = |key: &str, value: Option<toml::Value>| {
        let mut all = std::fs::read_to_string(&config).unwrap().parse::<toml::Table>().unwrap();
        let (section, key) = key.split_once('.').map_or((None, key), |(section, key)| (Some(section), key));
        let table = match section {
            Some(section) => {
                let section = all.entry(section).or_insert_with(|| toml::Value::Table(toml::Table::new()));
                section.as_table_mut().unwrap()
            }
            None => &mut all,
        };
        match value {
            Some(value) => drop(table.insert(key.into(), value)),
            None => drop(table.remove(key)),
        }
        std::fs::write(&config, toml::to_string(&all).unwrap()).unwrap();
    };
    match *change {
        Set(key, value) => {
            let value = format!("value = {value}").parse::<toml::Table>().unwrap()["value"].clone();
            edited(key, Some(value));
        }
        Unset(key) => edited(key, None),
        Write(name, text) => {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Remove(name) => {
            let path = folder.join(name);
            match path.is_dir() {
                true => std::fs::remove_dir_all(path).unwrap(),
                false => std::fs::remove_file(path).unwrap(),
            }
        }
        Run(args) => {
            let output = kiln(folder).args(args).output().unwrap();
            assert!(output.status.success(), "{args:?}: {}", text(&output));
        }
        Args(_) | Env(..) => {}
    }
}

/// The command after `changes`.
fn command(folder: &Path, changes: &[Do]) -> Command {
    let mut command = kiln(folder);
    let args = changes.iter().rev().find_map(|change| if let Args(args) = change { Some(*args) } else { None });
    command.args(args.unwrap_or(&["plan", "config.toml"]));
    for change in changes {
        if let Env(name, value) = change {
            match value.is_empty() {
                true => command.env_remove(name),
                false => command.env(name, value),
            };
        }
    }
    command
}

/// What does not go as the case says; none where all does.
fn failure(case: &Case) -> Option<String> {
    let folder = folder(case.base);
    let folder = folder.path();
    case.mistake.iter().for_each(|change| apply(folder, change));
    let output = command(folder, case.mistake).output().unwrap();
    let first = text(&output);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let lacks = |said: &str| case.says.iter().find(|part| !said.contains(**part)).copied();
    if output.status.success() || lacks(&stderr).is_some() {
        return Some(format!("expected {:?} of {:?}\n{first}", lacks(&stderr), case.says));
    }
    case.advice.iter().for_each(|change| apply(folder, change));
    let output = command(folder, &[case.mistake, case.advice].concat()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let goes_on = match case.then {
        "" => output.status.success(),
        then => stderr.contains(then) && lacks(&stderr).is_some(),
    };
    (!goes_on).then(|| format!("{first}\nand after the advice\n{}", text(&output)))
}

fn all(cases: &[Case]) {
    let failures = cases.iter().filter_map(failure).collect::<Vec<_>>();
    assert!(failures.is_empty(), "{} of {}:\n\n{}", failures.len(), cases.len(), failures.join("\n----\n"));
}

#[test]
fn keys_of_the_config() {
    all(&[
        case(
            TEXT,
            &[Set("trainer.learnig_rate", "1e-3")],
            &["did you mean `learning_rate`?"],
            &[Unset("trainer.learnig_rate"), Set("trainer.learning_rate", "1e-3")],
        ),
        case(
            TEXT,
            &[Set("trainr.seed", "1")],
            &["did you mean [trainer]?"],
            &[Unset("trainr"), Set("trainer.seed", "1")],
        ),
        case(TEXT, &[Unset("data.task")], &["add task under [data]: one of clm"], &[Set("data.task", "\"clm\"")]),
        case(
            TEXT,
            &[Args(&["plan", "config.toml", "--set", "learning_rate=1e-3"])],
            &["for example --set trainer.learning_rate=1e-3"],
            &[Args(&["plan", "config.toml", "--set", "trainer.learning_rate=1e-3"])],
        ),
        case(
            TEXT,
            &[Args(&["plan", "config.toml", "--set", "precision.kind=f32"])],
            &["write --set precision=VALUE"],
            &[Args(&["plan", "config.toml", "--set", "precision=f32"])],
        ),
        case(
            TEXT,
            &[Set("trainer.warmup_steps", "20")],
            &["lower warmup_steps, or give it as a ratio below 1"],
            &[Set("trainer.warmup_steps", "0.5")],
        ),
        case(
            TEXT,
            &[Set("learning_rate.scaling", "\"linear\"")],
            &["set it to the batch that trainer.learning_rate was chosen for, for example 32"],
            &[Set("learning_rate.reference_batch", "32")],
        ),
        case(
            TEXT,
            &[Set("batch.global_batch_size", "6")],
            &["set trainer.per_device_train_batch_size = 3, or batch.global_batch_size = 8"],
            &[Set("trainer.per_device_train_batch_size", "3")],
        ),
        case(
            TEXT,
            &[Set("batch.global_batch_size", "6")],
            &["set trainer.per_device_train_batch_size = 3, or batch.global_batch_size = 8"],
            &[Set("batch.global_batch_size", "8")],
        ),
        case(
            TEXT,
            &[Set("batch.global_batch_size", "8"), Set("trainer.gradient_accumulation_steps", "3")],
            &["leave trainer.gradient_accumulation_steps out"],
            &[Unset("trainer.gradient_accumulation_steps")],
        ),
        case(
            CLASSES,
            &[
                Set("data.validation", "\"40%\""),
                Set("trainer.eval_strategy", "\"epoch\""),
                Set("trainer.save_strategy", "\"steps\""),
                Set("trainer.load_best_model_at_end", "true"),
            ],
            &["set trainer.save_strategy = \"best\" or \"epoch\""],
            &[Set("trainer.save_strategy", "\"best\"")],
        ),
        case(
            CLASSES,
            &[Set("trainer.early_stopping_threshold", "0.1")],
            &["set trainer.early_stopping_patience, or remove it"],
            &[Unset("trainer.early_stopping_threshold")],
        ),
        case(
            CLASSES,
            &[Set("trainer.eval_strategy", "\"epoch\"")],
            &["set data.validation"],
            &[Set("data.validation", "\"20%\"")],
        ),
        case(
            CLASSES,
            &[
                Set("trainer.metric_for_best_model", "\"acuracy\""),
                Set("data.validation", "\"20%\""),
                Set("trainer.eval_strategy", "\"epoch\""),
            ],
            &["did you mean `accuracy`?"],
            &[Set("trainer.metric_for_best_model", "\"accuracy\"")],
        ),
        case(
            TEXT,
            &[Set("trainer.optim", "\"adamw_bnb_8bit\"")],
            &["use `adamw_torch`"],
            &[Set("trainer.optim", "\"adamw_torch\"")],
        ),
        case(
            TEXT,
            &[Set("trainer.lr_scheduler_type", "\"reduce_lr_on_plateau\"")],
            &["use `cosine` or `warmup_stable_decay`"],
            &[Set("trainer.lr_scheduler_type", "\"cosine\"")],
        ),
        case(
            TEXT,
            &[Set("trainer.lr_scheduler_type", "\"cosine_with_min_lr\"")],
            &["lr_scheduler_kwargs = { min_lr_rate = 0.1 }"],
            &[Set("trainer.lr_scheduler_kwargs", "{ min_lr_rate = 0.1 }")],
        ),
        case(
            TEXT,
            &[Set("trainer.lr_scheduler_type", "\"reduce_lr_on_plateau\"")],
            &["use `cosine` or `warmup_stable_decay`"],
            &[
                Set("trainer.lr_scheduler_type", "\"warmup_stable_decay\""),
                Set("trainer.lr_scheduler_kwargs", "{ num_decay_steps = 1 }"),
            ],
        ),
        case(
            TEXT,
            &[Set("trainer.optim", "\"sgd\""), Set("trainer.optim_args", "{ nesterov = true }")],
            &["optim_args = { momentum = 0.9, nesterov = true }"],
            &[Set("trainer.optim_args", "{ momentum = 0.9, nesterov = true }")],
        ),
        case(
            TEXT,
            &[Set("trainer.report_to", "\"wandb\"")],
            &["or use \"tensorboard\""],
            &[Set("trainer.report_to", "\"tensorboard\"")],
        ),
        case(TEXT, &[Set("precision", "\"fp8\"")], &["use f32, bf16, f16 or auto"], &[Set("precision", "\"bf16\"")]),
        case(
            TEXT,
            &[Set("trainer.freeze", "[\"nothing.*\"]")],
            &["patterns are of whole Hugging Face names with * and ?; the model has "],
            &[Set("trainer.freeze", "[\"transformer.h.0.*\"]")],
        ),
        case(
            TEXT,
            &[
                Set("generation.prompt", "\"the\""),
                Set("data.task", "\"mlm\""),
                Unset("tokenizer.train_vocab_size"),
                Set("tokenizer.from", "\"words\""),
                Set(
                    "model",
                    "{ kind = \"bert\", hidden_size = 16, num_hidden_layers = 1, num_attention_heads = 2, intermediate_size = 16 }",
                ),
            ],
            &["generation", "remove [generation]"],
            &[Unset("generation")],
        ),
        case(
            CLASSES,
            &[Set("trainer.class_weights", "{ praise = 2.0 }")],
            &["no weight for the label `blame`", "give one for each of"],
            &[Set("trainer.class_weights", "{ praise = 2.0, blame = 1.0 }")],
        ),
        case(
            CLASSES,
            &[Set("trainer.do_predict", "true")],
            &["set data.test to a file"],
            &[Set("data.test", "\"rows.csv\"")],
        ),
        case(
            CLASSES,
            &[Set("data.train", "[\"${KILN_NO_SUCH}/rows.csv\"]")],
            &["set it, or give a default: ${KILN_NO_SUCH:-...}"],
            &[Set("data.train", "[\"${KILN_NO_SUCH:-.}/rows.csv\"]")],
        ),
        case(CLASSES, &[Set("lora.r", "4")], &["set model.from, or remove [lora]"], &[Unset("lora")]),
    ]);
}

#[test]
fn data_and_labels() {
    all(&[
        case(
            CLASSES,
            &[Write("rows.csv", "review,label\na good film,praise\na bad film,blame\n")],
            &["there is no column \"text\"", "name the columns with data.text_column"],
            &[Set("data.text_column", "\"review\"")],
        ),
        case(
            CLASSES,
            &[Write("rows.csv", "text,label\na good film,praise\na film, bad,blame\n")],
            &["a CSV field that holds a comma stands in double quotes"],
            &[Write("rows.csv", "text,label\na good film,praise\n\"a film, bad\",blame\n")],
        ),
        case(
            CLASSES,
            &[Set("data.label_names", "[\"praise\", \"scorn\"]")],
            &["the label \"blame\" is outside the map", "give every label in data.label_names"],
            &[Set("data.label_names", "[\"praise\", \"scorn\", \"blame\"]")],
        ),
        case(
            CLASSES,
            &[Set("model.num_labels", "3")],
            &["leave model.num_labels out, or give every label in data.label_names"],
            &[Unset("model.num_labels")],
        ),
        case(
            CLASSES,
            &[Set("model.num_labels", "3")],
            &["leave model.num_labels out, or give every label in data.label_names"],
            &[Set("data.label_names", "[\"praise\", \"blame\", \"other\"]")],
        ),
        case(
            CLASSES,
            &[
                Set("data.format", "\"jsonl\""),
                Set("data.train", "[\"rows.jsonl\"]"),
                Write(
                    "rows.jsonl",
                    "{\"text\": \"a film\", \"label\": 0.5}\n{\"text\": \"a play\", \"label\": 1.25}\n",
                ),
            ],
            &["set data.task = \"regression\""],
            &[Set("data.task", "\"regression\"")],
        ),
        case(
            CLASSES,
            &[
                Set("data.format", "\"jsonl\""),
                Set("data.train", "[\"rows.jsonl\"]"),
                Write(
                    "rows.jsonl",
                    "{\"text\": \"a film\", \"label\": [\"a\"]}\n{\"text\": \"a play\", \"label\": [\"a\", \"b\"]}\n",
                ),
            ],
            &["for several labels set data.task = \"multi-label-classification\""],
            &[Set("data.task", "\"multi-label-classification\"")],
        ),
        case(
            CLASSES,
            &[Set("data.task", "\"multiple-choice\"")],
            &["data.choice_columns", "as in choice_columns = [\"ending0\", \"ending1\", \"ending2\", \"ending3\"]"],
            &[
                Write("rows.csv", "text,ending0,ending1,label\na,good,bad,0\nthe,film,play,1\n"),
                Set("data.choice_columns", "[\"ending0\", \"ending1\"]"),
            ],
        ),
        case(
            CLASSES,
            &[Set("data.max_length", "99")],
            &["set data.max_length to at most 16"],
            &[Set("data.max_length", "16")],
        ),
        case(
            CLASSES,
            &[Set("data.streaming", "true"), Unset("trainer.max_steps")],
            &["set trainer.max_steps"],
            &[Set("trainer.max_steps", "2"), Set("data.label_names", "[\"praise\", \"blame\"]")],
        ),
        case(
            CLASSES,
            &[Set("data.streaming", "true")],
            &["give them in data.label_names, in the order of their ids"],
            &[Set("data.label_names", "[\"praise\", \"blame\"]")],
        ),
        case(
            CLASSES,
            &[Set("data.format", "\"text\"")],
            &["use `csv`, `tsv`, `jsonl` or `parquet` with a label column"],
            &[Set("data.format", "\"csv\"")],
        ),
        case(
            CLASSES,
            &[Set("data.train", "[\"*.tsv\"]")],
            &["the glob matches no file", "`**` matches folders of any depth"],
            &[Set("data.train", "[\"**/*.csv\"]")],
        ),
        case(
            CLASSES,
            &[Set("data.train", "\"words\"")],
            &["the folder has no file that ends as the format `csv` does"],
            &[Write("words/rows.csv", ROWS)],
        ),
        case(
            TEXT,
            &[Set("data.block_size", "17")],
            &["set data.block_size = 16, or raise the model's n_positions"],
            &[Set("data.block_size", "16")],
        ),
        case(
            TEXT,
            &[Set("data.block_size", "17")],
            &["set data.block_size = 16, or raise the model's n_positions"],
            &[Set("model.n_positions", "17")],
        ),
        // The field of another family has another name.
        case(
            TEXT,
            &[
                Set("data.task", "\"mlm\""),
                Unset("tokenizer.train_vocab_size"),
                Set("tokenizer.from", "\"words\""),
                Set(
                    "model",
                    "{ kind = \"bert\", hidden_size = 16, num_hidden_layers = 1, num_attention_heads = 2, intermediate_size = 16, max_position_embeddings = 16 }",
                ),
                Set("data.block_size", "17"),
            ],
            &["or raise the model's max_position_embeddings"],
            &[Set("model.max_position_embeddings", "17")],
        ),
        case(
            TEXT,
            &[
                Write("text.txt", "the cat is"),
                Set("data.block_size", "16"),
                Unset("tokenizer.train_vocab_size"),
                Set("tokenizer.from", "\"words\""),
            ],
            &["add text, or set data.block_size to at most "],
            &[Set("data.block_size", "3")],
        ),
        case(
            TEXT,
            &[Set("data.validation", "\"20%\"")],
            &["name validation files instead, set data.documents = \"line\", or split the text into more files"],
            &[Set("data.documents", "\"line\"")],
        ),
        case(
            TEXT,
            &[
                Set("data.format", "\"csv\""),
                Set("data.train", "[\"rows.csv\"]"),
                Unset("tokenizer.train_vocab_size"),
                Set("model.vocab_size", "32"),
            ],
            &["expected `from` or (with the format `text`) `train_vocab_size`, got neither"],
            &[Set("tokenizer.from", "\"words\"")],
        ),
        case(
            TEXT,
            &[Set("tokenizer.train_vocab_size", "5000")],
            &["the training text yields only ", "or train on more text"],
            &[Set("tokenizer.train_vocab_size", "280")],
        ),
        case(
            TEXT,
            &[
                Set("data.format", "\"jsonl\""),
                Set("data.train", "[\"chat.jsonl\"]"),
                Unset("data.block_size"),
                Set("data.messages_column", "\"messages\""),
                Unset("tokenizer.train_vocab_size"),
                Set("tokenizer.from", "\"words\""),
                Write("chat.jsonl", "{\"question\": \"where\", \"answer\": \"box\"}\n"),
                Set("trainer.per_device_train_batch_size", "1"),
            ],
            &[
                "there is no column \"messages\"",
                "data.messages_column, or with data.prompt_column and data.completion_column",
            ],
            &[
                Unset("data.messages_column"),
                Set("data.prompt_column", "\"question\""),
                Set("data.completion_column", "\"answer\""),
            ],
        ),
        case(
            CLASSES,
            &[
                Set("data.format", "\"jsonl\""),
                Set("data.train", "[\"rows.json\"]"),
                Write(
                    "rows.json",
                    r#"[{"text": "a good film", "label": {"choices": ["praise"]}}, {"text": "a bad film", "label": {"choices": ["blame"]}}]"#,
                ),
            ],
            &["got {\"choices\":[\"praise\"]}", "into columns of their own; Label Studio's exports JSON-MIN and CSV"],
            &[Write(
                "rows.json",
                r#"[{"text": "a good film", "label": "praise"}, {"text": "a bad film", "label": "blame"}]"#,
            )],
        ),
        case(
            CLASSES,
            &[
                Set("data.format", "\"jsonl\""),
                Set("data.train", "[\"rows.jsonl\"]"),
                Write("rows.jsonl", "{\"text\": \"the cat\", \"label\": [[4, 7, \"ANIMAL\"]]}\n"),
            ],
            &["got [[4,7,\"ANIMAL\"]]", "write a list of words, and beside it a list with a label for each word"],
            &[
                Set("data.task", "\"token-classification\""),
                Set("data.text_column", "\"text\""),
                Set("data.label_column", "\"label\""),
                Write("rows.jsonl", "{\"text\": [\"the\", \"cat\"], \"label\": [\"O\", \"ANIMAL\"]}\n"),
                Set("trainer.per_device_train_batch_size", "1"),
            ],
        ),
        case(
            TEXT,
            &[Set("data.messages_column", "\"messages\"")],
            &["it belongs to `clm` on `jsonl`, `parquet`, `csv` or `tsv`"],
            &[Unset("data.messages_column")],
        ),
        case(
            TEXT,
            &[
                Set("data.format", "\"jsonl\""),
                Set("data.train", "[\"chat.jsonl\"]"),
                Unset("data.block_size"),
                Set("data.messages_column", "\"messages\""),
                Unset("tokenizer.train_vocab_size"),
                Set("tokenizer.from", "\"words\""),
                Write(
                    "chat.jsonl",
                    "{\"messages\": [{\"role\": \"user\", \"content\": \"where\"}, {\"role\": \"assistant\", \"content\": \"box\"}]}\n",
                ),
            ],
            &["name a Jinja template with data.chat_template_path"],
            &[
                Write("chat.jinja", "{% for m in messages %}{{ m.content }} {% endfor %}"),
                Set("data.chat_template_path", "\"chat.jinja\""),
                Set("trainer.per_device_train_batch_size", "1"),
            ],
        ),
        case(
            ANSWERS,
            &[Write(
                "squad.json",
                r#"{"version": "1.1", "data": [{"paragraphs": [{"context": "the cat", "qas": [{"id": "a", "question": "where", "answers": []}]}]}]}"#,
            )],
            &["it has no answer", "are marked `\"is_impossible\": true`"],
            &[Write(
                "squad.json",
                r#"{"version": "1.1", "data": [{"paragraphs": [{"context": "the cat", "qas": [{"id": "a", "question": "where", "answers": [], "is_impossible": true}]}]}]}"#,
            )],
        ),
        case(
            ANSWERS,
            &[Set("data.doc_stride", "12"), Set("data.max_length", "12")],
            &["expected less than data.max_length = 12"],
            &[Set("data.doc_stride", "3")],
        ),
        case(
            ANSWERS,
            &[Set("data.max_length", "10"), Set("data.doc_stride", "4")],
            &["raise data.max_length or lower data.doc_stride"],
            &[Set("data.max_length", "16")],
        ),
        case(
            ANSWERS,
            &[Set("data.max_length", "10"), Set("data.doc_stride", "4")],
            &["raise data.max_length or lower data.doc_stride"],
            &[Set("data.doc_stride", "1")],
        ),
    ]);
}

#[test]
fn tokenizers_models_and_weights() {
    let trained = &[Run(&["train", "config.toml", "--set", "run.output_dir=base"])];
    let with = |more: &[Do]| -> &'static [Do] { Box::leak([trained, more].concat().into_boxed_slice()) };
    all(&[
        case(
            TEXT,
            &[
                Set("data.task", "\"mlm\""),
                Set(
                    "model",
                    "{ kind = \"bert\", hidden_size = 16, num_hidden_layers = 1, num_attention_heads = 2, intermediate_size = 16 }",
                ),
            ],
            &["use the tokenizer of a masked language model, such as BERT's"],
            &[Unset("tokenizer.train_vocab_size"), Set("tokenizer.from", "\"words\"")],
        ),
        case(
            CLASSES,
            &[Unset("tokenizer.from")],
            &["expected `from` or (with the format `text`) `train_vocab_size`, got neither"],
            &[Set("tokenizer.from", "\"words\"")],
        ),
        case(
            TEXT,
            &[
                Unset("tokenizer.train_vocab_size"),
                Set("tokenizer.from", "\"bpe\""),
                Write("bpe/vocab.json", "{\"a\": 0, \"b\": 1}"),
            ],
            &["nor vocab.json + merges.txt", "a tokenizer folder holds tokenizer.json or vocab.json + merges.txt"],
            &[Write("bpe/merges.txt", "#version: 0.2\n"), Set("data.document_end", "\"none\"")],
        ),
        case(
            TEXT,
            &[
                Unset("tokenizer.train_vocab_size"),
                Set("tokenizer.from", "\"bpe\""),
                Write("bpe/vocab.json", "{\"a\": 0, \"b\": 1}"),
                Write("bpe/merges.txt", "#version: 0.2\n"),
            ],
            &["set data.document_end = \"none\", so that documents run on"],
            &[Set("data.document_end", "\"none\"")],
        ),
        case(
            CLASSES,
            with(&[Set("model", "{ kind = \"gpt2\", from = \"base/model\" }")]),
            &["set model.kind = \"bert\" or leave it out"],
            &[Set("model.kind", "\"bert\"")],
        ),
        case(
            CLASSES,
            with(&[Set("model", "{ from = \"base/model/config.json\" }")]),
            &["give the folder that holds the file"],
            &[Set("model", "{ from = \"base/model\" }")],
        ),
        case(
            CLASSES,
            with(&[Set("model", "{ from = \"base/modle\" }")]),
            &["write base/modle@main"],
            &[Set("model", "{ from = \"base/model\" }")],
        ),
        Case {
            base: CLASSES,
            mistake: with(&[Set("model", "{ from = \"base/modle\" }")]),
            says: &["to load it from the Hub, write base/modle@main"],
            advice: &[Set("model", "{ from = \"base/modle@main\" }")],
            then: "HF_HUB_OFFLINE forbids the network",
        },
        // What the Hub has, on a machine without a network.
        case(
            CLASSES,
            with(&[Set("model", "{ from = \"someone/bert\" }"), Set("data.label_names", "[\"blame\", \"praise\"]")]),
            &["run `hf download someone/bert --local-dir FOLDER`, copy FOLDER here and give"],
            &[Set("model", "{ from = \"base/model\" }")],
        ),
        Case {
            base: CLASSES,
            mistake: &[
                Set("model", "{ from = \"someone/bert\" }"),
                Env("HF_HUB_OFFLINE", ""),
                Env("HF_ENDPOINT", "hub.local"),
            ],
            says: &["for example HF_ENDPOINT=https://huggingface.co"],
            advice: &[Env("HF_ENDPOINT", "http://127.0.0.1:9")],
            then: "at http://127.0.0.1:9",
        },
        case(
            CLASSES,
            with(&[Args(&["predict", "base", "--input", "rows.csv", "--task", "regression"])]),
            &["choose the task that the model was trained for"],
            &[Args(&["predict", "base", "--input", "rows.csv", "--task", "sequence-classification"])],
        ),
        case(
            CLASSES,
            with(&[Args(&["predict", "base", "--input", "rows.csv", "--task", "question-answering"])]),
            &["choose the task it was trained for"],
            &[Args(&["predict", "base", "--input", "rows.csv"])],
        ),
        case(
            CLASSES,
            with(&[
                Set("model", "{ from = \"base/model\" }"),
                Write(
                    "base/model/config.json",
                    r#"{"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 16}"#,
                ),
            ]),
            &["model_type is missing", "add \"model_type\": \"bert\" to config.json"],
            &[Write(
                "base/model/config.json",
                r#"{"model_type": "bert", "vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 16}"#,
            )],
        ),
        case(
            CLASSES,
            with(&[
                Write("rows.data", ROWS),
                Remove("base/plan.toml"),
                Args(&["predict", "base", "--input", "rows.data"]),
            ]),
            &["give --format csv, tsv, jsonl, parquet, arrow or squad"],
            &[Args(&["predict", "base", "--input", "rows.data", "--format", "csv"])],
        ),
        case(
            CLASSES,
            with(&[Write("base/plan.toml", "[data]\n"), Args(&["predict", "base", "--input", "rows.csv"])]),
            &["plan.toml away) rows are read by the arguments alone"],
            &[Remove("base/plan.toml")],
        ),
        case(
            CLASSES,
            with(&[Write("new.csv", "review\na film\n"), Args(&["predict", "base", "--input", "new.csv"])]),
            &["name the columns with --text-column and --text-pair-column"],
            &[Args(&["predict", "base", "--input", "new.csv", "--text-column", "review"])],
        ),
        case(
            CLASSES,
            with(&[Args(&["predict", "base", "--input", "rows.csv", "--max-length", "17"])]),
            &["give --max-length to at most 16"],
            &[Args(&["predict", "base", "--input", "rows.csv", "--max-length", "16"])],
        ),
        case(
            TEXT,
            with(&[Args(&["predict", "base", "--input", "rows.csv"])]),
            &["`kiln generate` continues a text"],
            &[Args(&["generate", "base", "--prompt", "the cat", "--max-new-tokens", "2"])],
        ),
        case(
            CLASSES,
            &[Args(&["eval", "config.toml", "--set", "data.validation=40%"])],
            &["train first, or name the folder: --model MODEL_DIR"],
            &[Run(&["train", "config.toml"])],
        ),
        case(
            CLASSES,
            with(&[Args(&["eval", "base"])]),
            &["--set data.validation=10%"],
            &[Args(&["eval", "base", "--set", "data.validation=40%"])],
        ),
        case(
            CLASSES,
            with(&[Args(&["eval", "words"])]),
            &["name the config file, and the model by --model"],
            &[Args(&["eval", "config.toml", "--model", "base/model", "--set", "data.validation=40%"])],
        ),
        case(
            CLASSES,
            with(&[Args(&["merge", "base", "--out", "words"])]),
            &["give the name of a folder that does not exist"],
            &[
                Set("model", "{ from = \"base/model\" }"),
                Set("lora.r", "2"),
                Run(&["train", "config.toml", "--set", "run.output_dir=tuned"]),
                Args(&["merge", "tuned", "--out", "merged"]),
            ],
        ),
        case(
            CLASSES,
            with(&[Args(&["export", ".", "--tar", "model.tar.gz"])]),
            &["give the model/ folder of a finished run, or the run folder itself"],
            &[Args(&["export", "base", "--tar", "model.tar.gz"])],
        ),
        case(
            CLASSES,
            with(&[Args(&["export", "base", "--tar", "base/model/model.tar.gz"])]),
            &["write it beside the folder"],
            &[Args(&["export", "base", "--tar", "base/model.tar.gz"])],
        ),
    ]);
}

#[test]
fn run_folders_and_continuations() {
    let trained = &[Run(&["train", "config.toml", "--set", "trainer.save_steps=1"])];
    let with = |more: &[Do]| -> &'static [Do] { Box::leak([trained, more].concat().into_boxed_slice()) };
    let exists = &[
        "set run.output_dir to another folder, --resume to continue the run in it, or run.on_existing = \"overwrite\"",
    ];
    all(&[
        case(CLASSES, with(&[TRAIN]), exists, &[Set("run.output_dir", "\"other\"")]),
        case(CLASSES, with(&[TRAIN]), exists, &[Args(&["train", "config.toml", "--resume"])]),
        case(CLASSES, with(&[TRAIN]), exists, &[Set("run.on_existing", "\"overwrite\"")]),
        case(
            CLASSES,
            with(&[Set("trainer.learning_rate", "0.5"), Args(&["train", "config.toml", "--resume"])]),
            &["set the rest back, or start a new run (run.output_dir, or run.on_existing = \"overwrite\")"],
            &[Unset("trainer.learning_rate")],
        ),
        case(
            CLASSES,
            with(&[Set("trainer.learning_rate", "0.5"), Args(&["train", "config.toml", "--resume"])]),
            &["model.from begins one with these weights"],
            &[Set("model", "{ from = \"run/model\" }"), Set("run.output_dir", "\"other\"")],
        ),
        case(
            CLASSES,
            with(&[Set("run.resume_from_checkpoint", "\"run/checkpoints/step-000001\""), TRAIN]),
            &["set run.on_existing = \"resume\""],
            &[Set("run.on_existing", "\"resume\"")],
        ),
        case(
            CLASSES,
            with(&[Args(&["train", "config.toml", "--resume-from", "run/model"])]),
            &["run.resume_from_checkpoint", "expected a checkpoint of this run"],
            &[Args(&["train", "config.toml", "--resume-from", "run/checkpoints/step-000001"])],
        ),
        case(
            CLASSES,
            &[
                Run(&["train", "config.toml", "--set", "trainer.save_strategy=no"]),
                Args(&["train", "config.toml", "--resume", "--set", "trainer.max_steps=4"]),
            ],
            &[
                "no whole checkpoint to continue from",
                "to train on from its weights, set model.from; else set run.output_dir",
            ],
            &[
                Set("model", "{ from = \"run/model\" }"),
                Args(&["train", "config.toml", "--set", "run.output_dir=other"]),
            ],
        ),
        case(
            CLASSES,
            &[Set("run.output_dir", "\"rows.csv\""), TRAIN],
            &["set run.output_dir to a folder that does not exist"],
            &[Set("run.output_dir", "\"other\"")],
        ),
        case(
            CLASSES,
            &[Set("run.output_dir", "\"rows.csv/run\""), TRAIN],
            &["set run.output_dir to a folder that does not exist"],
            &[Set("run.output_dir", "\"new/run\"")],
        ),
        case(
            CLASSES,
            with(&[Args(&["describe", "words"])]),
            &["`kiln runs FOLDER` lists the runs in a folder"],
            &[Args(&["runs", "."])],
        ),
        case(
            CLASSES,
            &[Args(&[
                "init",
                "sequence-classification",
                "bert-base-uncased",
                "--out",
                "config.toml",
                "--train",
                "rows.csv",
            ])],
            &["give the name of a file that does not exist: --out FILE"],
            &[Args(&[
                "init",
                "sequence-classification",
                "bert-base-uncased",
                "--out",
                "new.toml",
                "--train",
                "rows.csv",
            ])],
        ),
        case(
            CLASSES,
            &[
                Write("rows.data", ROWS),
                Args(&["init", "sequence-classification", "bert-base-uncased", "--train", "rows.data"]),
            ],
            &["rename the file to .csv, .tsv, .jsonl or .parquet"],
            &[Args(&["init", "sequence-classification", "bert-base-uncased", "--train", "rows.csv"])],
        ),
        case(
            CLASSES,
            with(&[
                Write("regex.json", "[{\"Name\": \"loss\", \"Regex\": \"'loss': [0-9.]+\"}]"),
                Args(&["metrics", "run", "--definitions", "regex.json"]),
            ]),
            &["put the number in parentheses: 'loss': ([0-9.]+)"],
            &[Write("regex.json", "[{\"Name\": \"loss\", \"Regex\": \"'loss': ([0-9.]+)\"}]")],
        ),
    ]);
}

#[test]
fn modes_devices_and_processes() {
    all(&[
        case(
            CLASSES,
            &[Set("compiler", "{ enabled = true, fusion = \"on\" }")],
            &["set it to \"auto\" or leave it out"],
            &[Unset("compiler.fusion")],
        ),
        case(
            CLASSES,
            &[Set("compiler", "{ enabled = true, graph = \"on\" }")],
            &["compiler.graph"],
            &[Set("compiler.graph", "\"auto\"")],
        ),
        case(
            CLASSES,
            &[Args(&["train", "config.toml", "--unfused"])],
            &["--compiler compiled --unfused"],
            &[Args(&["train", "config.toml", "--compiler", "compiled", "--unfused"])],
        ),
        case(
            CLASSES,
            &[Set("device.kind", "\"cuda\""), TRAIN],
            &["or set device.kind = \"cpu\""],
            &[Set("device.kind", "\"cpu\"")],
        ),
        case(
            CLASSES,
            &[Set("device.index", "7"), TRAIN],
            &["`kiln devices` lists what this build and this machine offer"],
            &[Args(&["devices"])],
        ),
        case(CLASSES, &[TRAIN, Env("RANK", "0")], &["unset RANK to train in one process"], &[Env("RANK", "")]),
        case(
            CLASSES,
            &[TRAIN, Env("OMPI_COMM_WORLD_RANK", "zero"), Env("OMPI_COMM_WORLD_SIZE", "2")],
            &["unset it to train in one process"],
            &[Env("OMPI_COMM_WORLD_RANK", ""), Env("OMPI_COMM_WORLD_SIZE", "")],
        ),
        case(
            CLASSES,
            &[Set("trainer.per_device_train_batch_size", "\"auto\""), Set("compiler.enabled", "\"auto\""), TRAIN],
            &["set one of the two"],
            &[Set("trainer.per_device_train_batch_size", "4")],
        ),
        case(
            CLASSES,
            &[Args(&["sweep", "config.toml"])],
            &["the section [sweep] is missing", "[sweep.parameters] with \"trainer.learning_rate\" = [1e-4, 1e-3]"],
            &[Set("sweep", "{ parameters = { \"trainer.learning_rate\" = [1e-4, 1e-3] } }")],
        ),
        case(CLASSES, &[Args(&["help", "clasifier"])], &["did you mean", "`kiln help` lists both"], &[Args(&["help"])]),
    ]);
}

#[test]
fn settings_that_need_one_another() {
    let train = &[Run(&["train", "config.toml", "--set", "run.output_dir=base"])];
    let with = |more: &[Do]| -> &'static [Do] { Box::leak([train, more].concat().into_boxed_slice()) };
    let tokenized: &[Do] = Box::leak(Box::new([
        Unset("tokenizer.train_vocab_size"),
        Write("rows.jsonl", "{\"input_ids\": [1, 2, 3]}\n{\"input_ids\": [3, 2]}\n"),
        Set("data.train", "[\"rows.jsonl\"]"),
        Set("data.format", "\"tokenized\""),
        Unset("data.block_size"),
        Set("model.vocab_size", "16"),
    ]));
    let of_tokens = |more: &[Do]| -> &'static [Do] { Box::leak([tokenized, more].concat().into_boxed_slice()) };
    all(&[
        case(
            CLASSES,
            &[
                Write("rows.csv", "text,label\na film,praise\n"),
                Set("data.label_names", "[\"praise\", \"blame\"]"),
                Set("data.validation", "0.5"),
            ],
            &["row cannot be split", "name a validation file"],
            &[Set("data.validation", "[\"rows.csv\"]")],
        ),
        case(
            ANSWERS,
            &[Set("data.validation", "0.5")],
            &["cannot be split", "name validation files instead"],
            &[Set("data.validation", "[\"squad.json\"]")],
        ),
        case(
            CLASSES,
            &[
                Set("trainer.do_train", "false"),
                Set("trainer.do_predict", "true"),
                Set("data.test", "\"rows.csv\""),
                TRAIN,
            ],
            &["set model.from, or train first"],
            &[Run(&["train", "config.toml", "--set", "trainer.do_train=true"])],
        ),
        case(
            CLASSES,
            &[
                Set("data.task", "\"regression\""),
                Write("rows.csv", "text,label\na,1.5\nthe,2\n"),
                Set("trainer.label_smoothing_factor", "0.1"),
            ],
            &["remove it"],
            &[Unset("trainer.label_smoothing_factor")],
        ),
        case(
            TEXT,
            of_tokens(&[Set("generation.prompt", "\"the\"")]),
            &["set tokenizer.from"],
            &[Set("tokenizer.from", "\"words\"")],
        ),
        case(
            CLASSES,
            &[
                Set("data.validation", "\"40%\""),
                Set(
                    "trainer",
                    "{ max_steps = 6, per_device_train_batch_size = 2, eval_strategy = \"steps\", eval_steps = 2, save_strategy = \"steps\", save_steps = 3, load_best_model_at_end = true }",
                ),
            ],
            &["set trainer.save_steps to a multiple of 2, or trainer.save_strategy = \"best\""],
            &[Set("trainer.save_steps", "4")],
        ),
        case(
            CLASSES,
            &[Set("trainer.dataloader_drop_last", "true"), Set("trainer.per_device_train_batch_size", "64")],
            &["lower trainer.per_device_train_batch_size or set trainer.dataloader_drop_last = false"],
            &[Set("trainer.per_device_train_batch_size", "4")],
        ),
        case(
            CLASSES,
            &[Set("trainer.dataloader_drop_last", "true"), Set("trainer.per_device_train_batch_size", "64")],
            &["or set trainer.dataloader_drop_last = false"],
            &[Set("trainer.dataloader_drop_last", "false")],
        ),
        case(
            CLASSES,
            &[Set("trainer.freeze_layers", "9")],
            &["freeze fewer layers"],
            &[Set("trainer.freeze_layers", "1")],
        ),
        case(
            CLASSES,
            &[Set("trainer.freeze", "[\"*\"]")],
            &["or name fewer tensors (trainer.freeze)"],
            &[Set("trainer.freeze", "[\"bert.*\"]")],
        ),
        case(
            CLASSES,
            &[
                Set("data.streaming", "true"),
                Set("data.label_names", "[\"praise\", \"blame\"]"),
                Set("data.sampler", "\"group_by_length\""),
            ],
            &["set data.sampler = \"random\""],
            &[Set("data.sampler", "\"random\"")],
        ),
        case(
            CLASSES,
            &[
                Set("data.streaming", "true"),
                Set("data.label_names", "[\"praise\", \"blame\"]"),
                Set("data.padding", "\"buckets\""),
            ],
            &["set data.padding = \"longest\" or \"max_length\""],
            &[Set("data.padding", "\"max_length\"")],
        ),
        case(
            CLASSES,
            &[Set("data.shuffle_buffer_size", "7")],
            &["without streaming, `sampler = \"random\"` shuffles all examples"],
            &[Unset("data.shuffle_buffer_size"), Set("data.sampler", "\"random\"")],
        ),
        case(
            CLASSES,
            &[Set("precision", "\"f16\""), Set("trainer.optim", "\"adafactor\""), TRAIN],
            &["use another optimizer, such as adamw_torch; or precision = \"bf16\""],
            &[Set("trainer.optim", "\"adamw_torch\"")],
        ),
        case(
            CLASSES,
            &[Set("precision", "\"f16\""), Set("trainer.optim", "\"adafactor\""), TRAIN],
            &["use another optimizer, such as adamw_torch; or precision = \"bf16\""],
            &[Set("precision", "\"bf16\"")],
        ),
        case(
            CLASSES,
            with(&[
                Set("model", "{ from = \"base/model\" }"),
                Set("lora.r", "2"),
                Run(&["train", "config.toml", "--set", "run.output_dir=tuned"]),
                Set("model", "{ from = \"tuned/model\" }"),
                TRAIN,
            ]),
            &["leave [lora] out to train that adapter on; or merge it into its base first (kiln merge) for a new one"],
            &[Unset("lora")],
        ),
        case(
            CLASSES,
            with(&[
                Set("model", "{ from = \"base/model\" }"),
                Set("lora.r", "2"),
                Run(&["train", "config.toml", "--set", "run.output_dir=tuned"]),
                Set("model", "{ from = \"tuned/model\" }"),
                TRAIN,
            ]),
            &["or merge it into its base first (kiln merge) for a new one"],
            &[Run(&["merge", "tuned", "--out", "merged"]), Set("model", "{ from = \"merged\" }")],
        ),
        case(
            CLASSES,
            with(&[Args(&["generate", "base", "--prompt", "a"])]),
            &["bert has no head for it", "bert has mlm, sequence-classification"],
            &[Args(&["predict", "base", "--input", "rows.csv", "--task", "sequence-classification"])],
        ),
        case(
            CLASSES,
            &[Env("KILN_CACHE", "rows.csv/cache")],
            &["set KILN_CACHE to a folder that can be written and has room"],
            &[Env("KILN_CACHE", "cache")],
        ),
        case(
            CLASSES,
            &[Args(&["plan", "config.toml", "--hf-args", "args.json"])],
            &["write it in Python: open(\"args.json\", \"w\").write(training_args.to_json_string())"],
            &[Write("args.json", "{\"learning_rate\": 1e-4, \"num_train_epochs\": 1}")],
        ),
        case(
            TEXT,
            &[
                Set("data.messages_column", "\"messages\""),
                Set("data.format", "\"csv\""),
                Set("data.train", "[\"rows.csv\"]"),
                Unset("data.block_size"),
                Unset("tokenizer.train_vocab_size"),
                Set("tokenizer.from", "\"words\""),
            ],
            &["use `jsonl` or `parquet`"],
            &[
                Set("data.format", "\"jsonl\""),
                Set("data.train", "[\"chat.jsonl\"]"),
                Set("trainer.per_device_train_batch_size", "1"),
                Write(
                    "chat.jsonl",
                    "{\"messages\": [{\"role\": \"user\", \"content\": \"where\"}, {\"role\": \"assistant\", \"content\": \"box\"}]}\n",
                ),
                Write("chat.jinja", "{% for m in messages %}{{ m.content }} {% endfor %}"),
                Set("data.chat_template_path", "\"chat.jinja\""),
            ],
        ),
    ]);
}
