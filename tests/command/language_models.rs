//! Language models from text by line and from tables, masked language modelling, and the shapes of
//! batches, through the binary.

use std::path::Path;
use std::process::Command;

use crate::common::messages::messages;
use crate::common::{json, kiln, rows, succeeds, train_rows};
use kiln::config::DataFormat;
use kiln::data::Dataset;
use kiln::data::blocks::Blocks;
use kiln::data::corpus::Corpus;
use kiln::data::table::{Columns, Table};
use kiln::data::tokenizer::Tokenizer;
use kiln::data::tokens::TokenStore;
use serde_json::{Value, json};

/// A model without dropout, so that runs that must agree can be compared.
const BERT: &str = r#"
[run]
output_dir = "run"
on_existing = "overwrite"
[model]
kind = "bert"
hidden_size = 32
initializer_range = 0.2                 # so small a model needs larger weights to begin with
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 32
max_position_embeddings = 16
hidden_dropout_prob = 0.0
attention_probs_dropout_prob = 0.0
[data]
task = "mlm"
train = ["train.txt"]
validation = ["validation.txt"]
documents = "line"
block_size = 16
[tokenizer]
from = "vocab.txt"
[trainer]
max_steps = 60
per_device_train_batch_size = 8
learning_rate = 1e-2
eval_strategy = "epoch"
logging_steps = 1
[device]
kind = "cpu"
"#;

const GPT2: &str = r#"
[run]
output_dir = "run"
on_existing = "overwrite"
[model]
kind = "gpt2"
n_layer = 1
n_head = 2
n_embd = 8
n_positions = 16
[data]
task = "clm"
train = ["train.txt"]
documents = "line"
[tokenizer]
train_vocab_size = 270
[trainer]
max_steps = 5
per_device_train_batch_size = 3
learning_rate = 1e-2
logging_steps = 1
[device]
kind = "cpu"
"#;

/// Sentences of which every second word follows from the one before.
fn sentences(first: usize, count: usize) -> Vec<String> {
    let pairs = ["good film", "bad play", "long book", "short song"];
    (first..first + count).map(|i| [0, 1, 2].map(|j| pairs[(i * 7 + j * 5 + i / 4) % 4]).join(" ")).collect()
}

/// A folder with text by line, the same as tables, and a config of each family.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
    write("bert.toml", BERT.into());
    write("gpt2.toml", GPT2.into());
    let vocab = "[PAD] [UNK] [CLS] [SEP] [MASK] good film bad play long book short song ##s";
    write("vocab.txt", vocab.replace(' ', "\n"));
    for (name, first) in [("train", 0), ("validation", 1000)] {
        let lines = sentences(first, 90);
        write(&format!("{name}.txt"), lines.join("\n\n") + "\n");
        write(&format!("{name}.csv"), format!("n,text\n0,{}\n", lines.join("\n1,")));
        let objects = lines.iter().map(|line| format!("{{\"text\": {line:?}}}\n"));
        write(&format!("{name}.jsonl"), objects.collect());
    }
    folder
}

fn command(folder: &Path, verb: &str, config: &str, set: &[&str]) -> Command {
    let mut command = kiln(folder);
    command.args([verb, config]);
    command.args(set.iter().flat_map(|set| ["--set", set]));
    command
}

fn train(folder: &Path, config: &str, set: &[&str]) -> String {
    succeeds(&mut command(folder, "train", config, set))
}

fn losses(folder: &Path) -> Vec<f64> {
    train_rows(&folder.join("run")).iter().map(|row| row["loss"].as_f64().unwrap()).collect()
}

fn evaluation(folder: &Path) -> Value {
    rows(&folder.join("run")).into_iter().rfind(|row| row.get("eval_loss").is_some()).unwrap()
}

#[test]
fn masked_words_are_learned_from_lines() {
    let folder = folder();
    train(folder.path(), "bert.toml", &["data.whole_word_mask=true", "trainer.max_steps=400"]);
    let evaluation = evaluation(folder.path());
    // Each word is told by its neighbour, unless that is masked too (15 %); by chance one in eight
    // is right.
    assert!(evaluation["eval_accuracy"].as_f64().unwrap() > 0.8, "{evaluation}");
    let (loss, perplexity) =
        (evaluation["eval_loss"].as_f64().unwrap(), evaluation["eval_perplexity"].as_f64().unwrap());
    assert!((perplexity - loss.exp()).abs() < 1e-9 * perplexity);
    let losses = losses(folder.path());
    assert!(losses[390..].iter().sum::<f64>() < 0.4 * losses[..10].iter().sum::<f64>(), "{losses:?}");
    assert_eq!(json(&folder.path().join("run/model/config.json"))["architectures"][0], "BertForMaskedLM");
}

/// Bytes that are not UTF-8 are read as Python reads them with `errors="replace"`, and counted.
#[test]
fn bytes_that_are_not_utf8_are_replaced_and_counted() {
    let messages = messages!();
    let folder = folder();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    let latin1 =
        |text: &str| text.replace("long book", "l\u{f6}ng b\u{f6}ok").chars().map(|c| c as u8).collect::<Vec<_>>();
    let replaced = |text: &str| text.replace("long book", "l\u{fffd}ng b\u{fffd}ok");
    let set = ["data.errors=replace", "trainer.max_steps=2"];
    for (format, more) in [
        ("text", &["data.documents=file", "data.block_size=8"][..]),
        ("text", &["data.documents=line"]),
        ("csv", &["data.documents=file"]),
        ("jsonl", &["data.documents=file"]),
    ] {
        let file = if format == "text" { "train.txt".to_owned() } else { format!("train.{format}") };
        let whole = std::fs::read_to_string(folder.path().join(&file)).unwrap();
        let count = 2 * whole.matches("long book").count();
        assert!(count > 20, "{file}");
        let name = format!("data.train={}", file.replace("train", "latin1"));
        let (file, ending) = (file.replace("train", "latin1"), format!("data.format={format}"));
        let set = [&[&*ending, &*name], &set[..], more].concat();
        let strict = [&[&*ending, &*name, "trainer.max_steps=2"][..], more].concat();
        let run = |set: &[&str]| {
            let done = command(folder.path(), "train", "gpt2.toml", set).output().unwrap();
            assert!(done.status.success(), "{set:?}: {}", String::from_utf8_lossy(&done.stderr));
            std::fs::remove_dir_all(folder.path().join("run")).unwrap();
            [done.stdout, done.stderr].map(|text| String::from_utf8(text).unwrap())
        };
        // The examples are those of the text that Python reads.
        let digest = |set: &[&str]| {
            train(folder.path(), "gpt2.toml", set);
            let losses = losses(folder.path());
            std::fs::remove_dir_all(folder.path().join("run")).unwrap();
            losses
        };
        write(&file, replaced(&whole).as_bytes());
        let expected = digest(&strict);
        write(&file, &latin1(&whole));
        messages.fails(command(folder.path(), "train", "gpt2.toml", &strict), 3);
        assert_eq!(digest(&set), expected, "{set:?}");
        // From the cache, too.
        let said = format!("{count} sequences of bytes that are not UTF-8 are read as U+FFFD");
        let [says, warns] = run(&set);
        assert!(says.contains(&format!("errors = \"replace\": {said}")), "{said}: {says}");
        assert!(warns.contains(&format!("{file}: {said} (data.errors")), "{said}: {warns}");
        // A stream has the same examples, and does not count.
        let ordered = ["data.sampler=sequential"];
        let streamed = [&set[..], &["data.streaming=true"], &ordered].concat();
        let stream = |set: &[&str]| digest(&[set, &["tokenizer.train_vocab_size=270"]].concat());
        assert_eq!(stream(&streamed), stream(&[&set[..], &ordered].concat()), "{set:?}");
        let [says, warns] = run(&streamed);
        assert!(says.contains("and not counted while streaming") && warns.contains("and not counted"), "{says}{warns}");
    }
}

#[test]
fn one_file_is_split_at_a_block() {
    let folder = folder();
    let file = ["data.documents=file", "data.block_size=8"];
    let planned = |set: &[&str]| -> Value {
        let plan = succeeds(command(folder.path(), "plan", "gpt2.toml", &[&file, set].concat()).arg("--json"));
        serde_json::from_str::<Value>(&plan).unwrap()["data"].clone()
    };
    let count = |data: &Value, key: &str| data[key].as_u64().unwrap();
    let all = count(&planned(&[]), "train_examples");
    for (share, percent) in [("20%", 0.2), ("0.015", 0.015)] {
        let data = planned(&[&format!("data.validation={share}")]);
        let last = (all as f64 * percent).round() as u64;
        assert_eq!((count(&data, "train_examples"), count(&data, "validation_examples")), (all - last, last));
        let said = format!(
            "; the last {} % of the blocks of the one file are the validation data, and the tokenizer is learned from all \
             of it",
            percent * 100.0
        );
        assert!(data["documents"].as_str().unwrap().ends_with(&said), "{data}");
    }
    // Two files are split by documents: one is left for each side.
    std::fs::copy(folder.path().join("train.txt"), folder.path().join("again.txt")).unwrap();
    let two = planned(&["data.train=[\"train.txt\", \"again.txt\"]", "data.validation=0.1"]);
    assert_eq!((count(&two, "train_examples"), count(&two, "validation_examples")), (all, all));
    assert!(!two["documents"].as_str().unwrap().contains("blocks"), "{two}");
    // An evaluation of the model has the blocks of the run, and learns no tokenizer.
    let set = [&file[..], &["data.validation=0.2", "trainer.eval_strategy=epoch"]].concat();
    train(folder.path(), "gpt2.toml", &set);
    let says = succeeds(&mut command(folder.path(), "eval", "gpt2.toml", &set));
    let loss = evaluation(folder.path())["eval_loss"].as_f64().unwrap();
    let said = says.split_once("'eval_loss': ").unwrap().1.split([',', '}']).next().unwrap().parse::<f64>().unwrap();
    // `kiln eval` computes compiled, the run native: sums in another order.
    assert!((said / loss - 1.0).abs() < 1e-6, "{loss}: {says}");
}

#[test]
fn a_resumed_run_masks_alike() {
    let folder = folder();
    // Two steps an epoch, and the stop is in the middle of the second.
    let set = ["trainer.per_device_train_batch_size=24", "data.mlm_probability=0.4", "trainer.max_steps=6"];
    succeeds(&mut command(folder.path(), "verify-resume", "bert.toml", &set));
    train(folder.path(), "bert.toml", &set);
    let first = losses(folder.path());
    train(folder.path(), "bert.toml", &set);
    assert_eq!(losses(folder.path()), first);
}

#[test]
fn tables_give_what_lines_give() {
    let folder = folder();
    for config in ["bert.toml", "gpt2.toml"] {
        train(folder.path(), config, &["trainer.max_steps=5"]);
        let of_lines = losses(folder.path());
        for format in ["csv", "jsonl"] {
            let set = [
                format!("data.format={format}"),
                format!("data.train=[\"train.{format}\"]"),
                format!("data.validation=[\"validation.{format}\"]"),
                "data.documents=file".into(),
                "data.document_end=eos".into(),
                "trainer.max_steps=5".into(),
            ];
            // A tokenizer is learned from what is drawn of the text: all of it, in the same order.
            train(folder.path(), config, &set.each_ref().map(String::as_str));
            assert_eq!(losses(folder.path()), of_lines, "{config} {format}");
        }
    }
}

/// See `fixtures/make_run_clm.py`.
#[test]
fn rows_of_a_table_are_joined_as_run_clm_and_run_mlm_join_them() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let fixture = root.join("tests/fixtures/run_clm");
    let expected = json(&fixture.join("blocks.json"));
    let block_size = expected["block_size"].as_u64().unwrap() as usize;
    let cache = tempfile::tempdir().unwrap();
    let columns = Columns { text: "text".into(), ..Columns::default() };
    let rows = Table::open(&[fixture.join("rows.jsonl").display().to_string()], DataFormat::Jsonl, columns).unwrap();
    for (config, task, tokenizer) in
        [("gpt2-wikitext103.toml", "clm", "gpt2"), ("bert-mlm-wikitext.toml", "mlm", "bert")]
    {
        let data = kiln::RunConfig::load(root.join("configs").join(config)).unwrap().data.clone();
        assert!(data.format.is_table() && data.task.to_string() == task, "{config}");
        let tokenizer = Tokenizer::load(&fixture.join(tokenizer)).unwrap();
        let blocks = |ends: bool| {
            let corpus = Corpus::of_table(rows.clone()).unwrap().with_ends(ends);
            let mut go_on = |_| std::ops::ControlFlow::Continue(());
            let store = TokenStore::build_or_open(cache.path(), &corpus, &tokenizer, &mut go_on).unwrap();
            let blocks = Blocks::new(store, block_size).unwrap();
            let ids = (0..blocks.len()).map(|index| blocks.get(index, 0).unwrap().input_ids);
            serde_json::to_value(ids.collect::<Vec<_>>()).unwrap()
        };
        assert!(blocks(data.marks_ends()) == expected[task], "{config}: the blocks differ");
        // BERT's [SEP] ends a row already; of GPT-2's ids every end-of-text is one more.
        assert_eq!(blocks(true) == expected[task], task == "mlm", "{config}");
    }
}

#[test]
fn what_follows_a_document_is_stated_and_can_be_chosen() {
    let folder = folder();
    let plan = |set: &[&str]| succeeds(&mut command(folder.path(), "plan", "gpt2.toml", set));
    let csv = ["data.format=csv", "data.documents=file", "data.train=[\"train.csv\"]"];
    let of_csv = |end: &'static str| plan(&[&csv[..], &[end]].concat());
    let tokens = |plan: &str| {
        let line = plan.lines().find(|line| line.starts_with("data ")).unwrap();
        line.split_whitespace().nth(1).unwrap().replace(',', "").parse::<usize>().unwrap()
    };
    let (auto, eos, none) =
        (of_csv("data.document_end=auto"), of_csv("data.document_end=eos"), of_csv("data.document_end=none"));
    assert!(auto.contains("rows are joined without end-of-text, as run_clm.py joins rows"), "{auto}");
    assert!(eos.contains("a row is a document, and end-of-text follows each"), "{eos}");
    assert!(plan(&[]).contains("a line is a document, and end-of-text follows each"));
    assert_eq!(tokens(&auto), tokens(&none));
    assert_eq!(tokens(&eos), tokens(&plan(&[])), "lines keep their end-of-text");
    assert!(tokens(&none) < tokens(&eos));
    assert_eq!(tokens(&plan(&["data.document_end=none"])), tokens(&none));
}

#[test]
fn lines_are_documents() {
    let folder = folder();
    let tokens = |set: &[&str]| {
        let plan = succeeds(&mut command(folder.path(), "plan", "bert.toml", set));
        let line = plan.lines().find(|line| line.starts_with("data ")).unwrap().to_string();
        let number = line.split_whitespace().nth(1).unwrap().replace(',', "");
        number.parse::<usize>().unwrap()
    };
    // 90 lines of 6 words with [CLS] and [SEP] each; as one document only one of either. Blocks
    // of 16.
    assert_eq!(tokens(&[]), 90 * 8 / 16);
    assert_eq!(tokens(&["data.documents=file"]), (90 * 6 + 2) / 16);
    let share = ["data.validation=\"20%\""];
    let rest = tokens(&share);
    assert!((30..=42).contains(&rest), "{rest} of 45 blocks were left for training");
}

#[test]
fn what_padding_costs_is_printed_and_changes_nothing() {
    let folder = folder();
    let path = folder.path();
    let table = |name: &str| {
        let mut csv = "text,label\n".to_string();
        for i in 0..23 {
            let words = sentences(i, 1)[0].split(' ').cycle().take(2 + i % 9).collect::<Vec<_>>().join(" ");
            csv += &format!("{words},{}\n", i % 3);
        }
        std::fs::write(path.join(name), csv).unwrap();
    };
    table("rows.csv");
    let base = [
        "data.format=csv",
        "data.train=[\"rows.csv\"]",
        "data.validation=[\"rows.csv\"]",
        "trainer.max_steps=9",
        "data.max_length=14",
    ];
    let config = BERT.replace("block_size = 16\n", "").replace("documents = \"line\"\n", "");
    std::fs::write(path.join("rows.toml"), config).unwrap();
    for task in ["sequence-classification", "regression"] {
        let mut expected = None;
        for (padding, more, says) in [
            ("longest", "", "longest: to the longest row of a batch;"),
            (
                "longest",
                "data.pad_to_multiple_of=8",
                "longest: to the longest row of a batch, rounded up to a multiple of 8;",
            ),
            ("max_length", "", "max_length: to 14 tokens"),
            ("max_length", "data.pad_to_multiple_of=8", "max_length: to 16 tokens"),
            ("buckets", "", "buckets: to "),
            ("buckets", "data.buckets=1", "buckets: to 14 tokens"),
            ("buckets", "data.buckets=[6, 9]", "buckets: to 6, 9, 14 tokens"),
        ] {
            let (task, strategy) = (format!("data.task={task}"), format!("data.padding={padding}"));
            let mut set = [&base[..], &[&task, &strategy]].concat();
            set.extend(Some(more).filter(|more| !more.is_empty()));
            let stdout = train(path, "rows.toml", &set);
            let line = stdout.lines().find(|line| line.starts_with("padding ")).unwrap();
            assert!(line.contains(says) && line.contains("% of positions are padding"), "{line}");
            if padding == "max_length" {
                assert!(line.ends_with("1 shape"), "{line}");
            }
            let rows = rows(&path.join("run"));
            let evaluation = evaluation(path);
            assert_eq!(evaluation["eval_samples"], 23);
            assert_eq!(rows.last().unwrap()["samples"], 69, "three passes over 23 rows");
            let figures = losses(path).into_iter().chain([evaluation["eval_loss"].as_f64().unwrap()]);
            let figures = figures.collect::<Vec<_>>();
            let expected = expected.get_or_insert_with(|| figures.clone());
            // Padding enters no sum; only the order of f32 additions differs, over nine steps of
            // learning.
            for (a, b) in expected.iter().zip(&figures) {
                assert!((a - b).abs() < 1e-4 * a.abs().max(1.0), "{task} {padding} {more}: {expected:?} {figures:?}");
            }
        }
    }
}

#[test]
fn limits_and_trial_runs() {
    let folder = folder();
    let path = folder.path();
    train(path, "bert.toml", &["data.max_train_samples=10", "data.max_eval_samples=3", "trainer.max_steps=4"]);
    assert_eq!(evaluation(path)["eval_samples"], 3);
    assert_eq!(rows(&path.join("run")).last().unwrap()["samples"], 20, "8 + 2 blocks an epoch");
    // Masks are drawn anew in each epoch; what repeats is the text.
    train(path, "bert.toml", &["trainer.overfit_one_batch=true", "trainer.max_steps=3"]);
    assert_eq!(rows(&path.join("run")).last().unwrap()["epoch"], 3.0);
    let set = ["trainer.overfit_one_batch=true", "trainer.max_steps=100", "trainer.learning_rate=3e-2"];
    train(path, "gpt2.toml", &set);
    let of = losses(path);
    assert!(of[99] < 0.3 * of[0], "one batch was not learned by heart: {of:?}");
    let stdout = train(path, "bert.toml", &["trainer.fast_dev_run=true"]);
    assert!(stdout.contains("1 (fast_dev_run)"), "{stdout}");
    assert_eq!((losses(path).len(), &evaluation(path)["eval_samples"]), (1, &Value::from(8)));
}

#[test]
fn the_share_of_waiting_for_data_is_in_every_row() {
    let folder = folder();
    train(folder.path(), "gpt2.toml", &[]);
    for row in train_rows(&folder.path().join("run")) {
        assert!((0.0..=1.0).contains(&row["data_wait"].as_f64().unwrap()), "{row}");
    }
}

#[test]
fn what_cannot_be_masked_is_refused() {
    let messages = messages!();
    let folder = folder();
    let path = folder.path();
    let refused = |config: &str, set: &[&str], code: i32| {
        messages.fails(command(path, "train", config, set), code);
        assert!(!path.join("run").exists());
    };
    refused("gpt2.toml", &["data.task=mlm"], 2);
    refused("bert.toml", &["data.task=clm"], 2);
    let csv = ["data.format=csv", "data.documents=file", "data.train=[\"train.csv\"]", "data.text_column=body"];
    refused("bert.toml", &csv, 3);
    std::fs::write(path.join("blank.txt"), "\n \n").unwrap();
    refused("bert.toml", &["data.validation=[\"blank.txt\"]"], 3);
    std::fs::write(path.join("broken.txt"), b"good film\nbad \xff\n").unwrap();
    refused("bert.toml", &["data.validation=[\"broken.txt\"]"], 3);
}

/// Prompts with completions and the same as conversations, and a template of the ChatML form.
fn with_instructions(folder: &Path) {
    let lines = |first: usize, count: usize| {
        let row = |i: usize| {
            let (prompt, completion) = (sentences(i, 1).remove(0), sentences(i + 1, 1).remove(0));
            let completion = completion.split(' ').take(1 + i % 4).collect::<Vec<_>>().join(" ");
            json!({
                "prompt": format!("{prompt} "),
                "completion": completion,
                "messages": [{ "role": "user", "content": prompt }, { "role": "assistant", "content": completion }]
            })
        };
        (first..first + count).map(|i| format!("{}\n", row(i))).collect::<String>()
    };
    std::fs::write(folder.join("train.jsonl"), lines(0, 24)).unwrap();
    std::fs::write(folder.join("validation.jsonl"), lines(100, 12)).unwrap();
    let template = "{% for message in messages %}<{{ message.role }}>{{ message.content }}</>{% endfor %}\
                    {% if add_generation_prompt %}<assistant>{% endif %}";
    std::fs::write(folder.join("template.jinja"), template).unwrap();
}

const INSTRUCTIONS: [&str; 8] = [
    "data.format=jsonl",
    "data.train=[\"train.jsonl\"]",
    "data.validation=[\"validation.jsonl\"]",
    "data.documents=file",
    "model.n_positions=128",
    "model.resid_pdrop=0.0",
    "model.embd_pdrop=0.0",
    "model.attn_pdrop=0.0",
];

/// A tokenizer of bytes in the folder `tokenizer`.
fn with_tokenizer(folder: &Path) {
    let set = ["run.output_dir=first", "trainer.max_steps=1"];
    succeeds(&mut command(folder, "train", "gpt2.toml", &set));
    std::fs::rename(folder.join("first/model"), folder.join("tokenizer")).unwrap();
    let config = std::fs::read_to_string(folder.join("gpt2.toml")).unwrap();
    let config = config.replace("train_vocab_size = 270", "from = \"tokenizer\"").replace("documents = \"line\"\n", "");
    std::fs::write(folder.join("gpt2.toml"), config).unwrap();
}

fn eval_loss(folder: &Path, run: &str) -> f64 {
    let all = rows(&folder.join(run));
    all.iter().rfind(|row| row.get("eval_loss").is_some()).unwrap()["eval_loss"].as_f64().unwrap()
}

#[test]
fn packed_instructions_have_the_losses_that_they_have_alone() {
    let told = messages!();
    let folder = folder();
    let folder = folder.path();
    with_instructions(folder);
    with_tokenizer(folder);
    let run = |name: &str, verb: &str, more: &[&str]| {
        let output = format!("run.output_dir={name}");
        let always =
            ["trainer.eval_strategy=epoch", "trainer.max_steps=1", "trainer.per_device_train_batch_size=24", &output];
        command(folder, verb, "gpt2.toml", &[&INSTRUCTIONS[..], &always, more].concat())
    };
    let completions = ["data.completion_column=completion"];
    let messages =
        ["data.messages_column=messages", "data.chat_template_path=template.jinja", "data.assistant_only_loss=true"];
    // The first token of each row has a label, but nothing before it predicts it.
    let whole = ["data.completion_column=completion", "data.completion_only_loss=false"];
    for (kind, keys) in [("completions", &completions[..]), ("messages", &messages), ("whole", &whole)] {
        let mut losses = Vec::new();
        for mode in ["native", "compiled"] {
            for packing in ["false", "true"] {
                let name = format!("{kind}-{mode}-{packing}");
                let packing = format!("data.packing={packing}");
                let length = ["data.max_length=96", packing.as_str()];
                succeeds(run(&name, "train", &[keys, &length].concat()).args(["--compiler", mode]));
                let row = &train_rows(&folder.join(&name))[0];
                let of_row = |name: &str| row[name].as_f64().unwrap();
                losses.push([eval_loss(folder, &name), of_row("loss"), of_row("grad_norm")]);
            }
        }
        for other in &losses[1..] {
            // The same sums in another order, of numbers of order 5.
            let off = other.iter().zip(&losses[0]).map(|(a, b)| (a / b - 1.0).abs()).fold(0.0, f64::max);
            assert!(off < 1e-5, "{kind}: {losses:?}");
        }
    }
    let kept = std::fs::read_to_string(folder.join("messages-native-true/model/chat_template.jinja")).unwrap();
    assert_eq!(kept, std::fs::read_to_string(folder.join("template.jinja")).unwrap());
    // Without the prompts the loss counts less, and so it is another.
    succeeds(&mut run("all", "train", &["data.completion_column=completion", "data.completion_only_loss=false"]));
    assert!((eval_loss(folder, "all") / eval_loss(folder, "completions-native-false") - 1.0).abs() > 1e-4);
    for (keys, code) in [
        (&["data.messages_column=messages"][..], 3),
        (&["data.packing=true"], 2),
        (&["data.completion_column=answer"], 3),
        (&["data.messages_column=prompt", "data.chat_template_path=template.jinja"], 3),
        (&["data.completion_column=completion", "data.max_length=4"], 3),
        (&["data.completion_column=completion", "data.block_size=16"], 2),
    ] {
        told.fails(run("refused", "plan", keys), code);
    }
}

/// Rows of OpenAI's form, of ShareGPT's, with keys that are null and with the system message in a
/// column are one conversation.
#[test]
fn forms_of_chat_rows_have_one_loss_or_are_refused() {
    let told = messages!();
    let folder = folder();
    let folder = folder.path();
    with_instructions(folder);
    with_tokenizer(folder);
    let write = |rows: &[Value]| {
        let text = rows.iter().map(|row| format!("{row}\n")).collect::<String>();
        std::fs::write(folder.join("validation.jsonl"), text).unwrap();
    };
    let template = "{% for m in messages %}<{{ m.role }}>{% if 'content' in m %}{{ m.content }}{% endif %}\
                    {% if m.tool_calls is defined %}{{ m.tool_calls | tojson }}{% endif %}</>{% endfor %}\
                    {% if tools %}{{ tools | tojson }}{% endif %}{% if documents %}{{ documents[0].text }}{% endif %}{{ style }}";
    std::fs::write(folder.join("template.jinja"), template).unwrap();
    let keys =
        ["data.messages_column=messages", "data.chat_template_path=template.jinja", "data.assistant_only_loss=true"];
    let run = |name: &str, verb: &str, more: &[&str]| {
        let output = format!("run.output_dir={name}");
        let always = ["trainer.eval_strategy=epoch", "trainer.max_steps=1", &output];
        command(folder, verb, "gpt2.toml", &[&INSTRUCTIONS[..], &keys, &always, more].concat())
    };
    let said = |command: &mut Command| {
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        said
    };
    let (system, user, answer) = ("Be brief.", "Where?", "In Rome.");
    let messages = json!([
        { "role": "system", "content": system }, { "role": "user", "content": user }, { "role": "assistant", "content": answer }
    ]);
    let turns = json!([{ "from": "human", "value": user }, { "from": "gpt", "value": answer, "weight": 1 }]);
    let nulls = json!([
        { "role": "system", "content": system, "tool_calls": null, "name": null },
        { "role": "user", "content": user, "tool_calls": null }, { "role": "assistant", "content": answer, "tool_calls": null }
    ]);
    let mut losses = Vec::new();
    for (name, row) in [
        ("openai", json!({ "messages": messages })),
        ("sharegpt", json!({ "messages": turns, "system": system, "id": 7, "images": [] })),
        ("nulls", json!({ "messages": nulls, "tools": null, "documents": null, "system": null })),
    ] {
        write(&[row]);
        let said = said(&mut run(name, "train", &[]));
        assert_eq!(said.contains("the column id is not learned"), name == "sharegpt", "{said}");
        losses.push(eval_loss(folder, name));
    }
    assert!(losses.iter().all(|loss| *loss == losses[0]), "{losses:?}");
    // A row that does not count has no loss; the other one is left.
    let left_out = json!([{ "role": "user", "content": "x" }, { "role": "assistant", "content": "y", "weight": 0 }]);
    write(&[json!({ "messages": messages }), json!({ "messages": left_out })]);
    succeeds(&mut run("weights", "train", &[]));
    assert_eq!(eval_loss(folder, "weights"), losses[0]);
    // Arguments of the template that follow the answer are no part of the loss, unless all is.
    let whole = ["data.assistant_only_loss=false"];
    let mut losses = Vec::new();
    for (name, more) in [
        ("plain", json!({})),
        ("tools", json!({ "tools": [{ "type": "function" }] })),
        ("documents", json!({ "documents": [{ "text": "Rome is a city." }] })),
        ("variables", json!({ "chat_template_kwargs": { "style": "short" } })),
    ] {
        let mut row = json!({ "messages": messages });
        row.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        write(&[row]);
        succeeds(&mut run(name, "train", &whole));
        losses.push(eval_loss(folder, name));
    }
    losses.sort_by(f64::total_cmp);
    losses.dedup();
    assert_eq!(losses.len(), 4, "{losses:?}");
    let refused = |row: Value, more: &[&str]| {
        told.given("line 2 of the rows", &row.to_string());
        write(&[json!({ "messages": messages }), row]);
        told.fails(run("refused", "plan", more), 3);
    };
    let image = json!([{ "role": "user", "content": [{ "type": "image" }] }]);
    refused(json!({ "messages": [{ "role": "user" }] }), &[]);
    refused(json!({ "messages": messages, "images": ["a.png"] }), &[]);
    refused(json!({ "messages": messages, "system": "Be long." }), &[]);
    refused(json!({ "messages": image }), &[]);
    refused(json!({ "messages": left_out }), &whole);
    refused(json!({ "messages": messages, "input_ids": [1] }), &[]);
    // What a template writes of the time is not kept.
    let cached = || std::fs::read_dir(folder.join("kiln-cache/rows")).map_or(0, Iterator::count);
    write(&[json!({ "messages": messages })]);
    let before = cached();
    std::fs::write(folder.join("template.jinja"), format!("{template}{{{{ strftime_now('%Y') }}}}")).unwrap();
    let said = said(&mut run("clock", "train", &whole));
    assert!(said.contains("the chat template writes the time"), "{said}");
    assert_eq!(cached(), before);
}
