//! The cache gives a run the same examples that the run would make anew: every setting and every
//! file that can change an example is changed, one after the other, and a run with a warm cache is
//! compared with one whose cache is empty. The settings are those of the config reference, and the
//! files and the arguments those of Kiln's tables: one that no case changes has to stand in
//! [`CHANGES_NOTHING`] or [`NOT_READ`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use kiln::data::tokenizer::{CONFIG_NAMES, FILES, SPECIAL_NAMES};
use kiln_core::names::{NameTable, Treatment};
use serde_json::{Value, json};

use crate::common::{json as read_json, kiln, rows, succeeds};

/// A file by its name, and its content; none for a file that is not there.
type File = (String, Option<Vec<u8>>);

/// One thing that is different: files, and settings for `--set`.
#[derive(Clone)]
struct Change {
    name: String,
    files: Vec<File>,
    settings: Vec<String>,
}

/// A run by its files, and the changes that are tried one by one. Each has to give another outcome
/// than all others.
struct Case {
    base: Vec<File>,
    changes: Vec<Change>,
}

/// Content of a file.
trait Content {
    fn bytes(self) -> Vec<u8>;
}

impl Content for String {
    fn bytes(self) -> Vec<u8> {
        self.into_bytes()
    }
}

impl Content for &str {
    fn bytes(self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }
}

impl Content for Value {
    fn bytes(self) -> Vec<u8> {
        self.to_string().into_bytes()
    }
}

impl Content for &[u8] {
    fn bytes(self) -> Vec<u8> {
        self.to_vec()
    }
}

fn at(name: &str, content: impl Content) -> File {
    (name.to_owned(), Some(content.bytes()))
}

fn file(name: &str, content: impl Content) -> Change {
    let content = content.bytes();
    let shown = String::from_utf8_lossy(&content).chars().take(300).collect::<String>();
    Change { name: format!("{name}: {shown}"), files: vec![(name.to_owned(), Some(content))], settings: Vec::new() }
}

fn set(settings: &[&str]) -> Change {
    let settings = settings.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
    Change { name: settings.join(", "), files: Vec::new(), settings }
}

fn both(file: Change, settings: &[&str]) -> Change {
    Change { settings: set(settings).settings, name: format!("{} with {settings:?}", file.name), ..file }
}

/// Losses of a run in `folder` with the cache `cache`, and the digest of its training data.
fn outcome(folder: &Path, cache: &str, settings: &[String]) -> [String; 2] {
    let mut command = kiln(folder);
    command.env("KILN_CACHE", folder.join(cache)).args(["train", "config.toml"]);
    for setting in settings {
        command.args(["--set", setting]);
    }
    succeeds(&mut command);
    let run = folder.join("run");
    let losses = rows(&run).iter().map(|row| json!([row["loss"], row["eval_loss"]])).collect::<Vec<_>>();
    let checkpoints = fs::read_dir(run.join("checkpoints")).unwrap().map(|entry| entry.unwrap().path());
    let state = checkpoints.map(|folder| folder.join("state.json")).find(|state| state.is_file()).unwrap();
    let text = read_json(&state).to_string();
    let digest = text.split("content of the training data").nth(1).unwrap().chars().take(80).collect::<String>();
    [json!(losses).to_string(), digest]
}

fn write(folder: &Path, (name, content): &File) {
    let path = folder.join(name);
    match content {
        Some(content) => {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        None => fs::remove_file(path).unwrap(),
    }
}

/// Tries every change of a case, each alone.
fn tried(Case { base, changes }: Case) {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    base.iter().for_each(|file| write(folder, file));
    let first = outcome(folder, "kept", &[]);
    assert_eq!(outcome(folder, "kept", &[]), first, "the cache gives what was kept");
    let mut seen = BTreeMap::from([(first.clone(), "the run without a change".to_owned())]);
    let mut silent = Vec::new();
    for (index, change) in changes.into_iter().enumerate() {
        change.files.iter().for_each(|file| write(folder, file));
        let kept = outcome(folder, "kept", &change.settings);
        let fresh = outcome(folder, &format!("fresh-{index}"), &change.settings);
        assert_eq!(kept, fresh, "{}: another outcome from the cache than without", change.name);
        if let Some(other) = seen.insert(fresh, change.name.clone()) {
            silent.push(format!("{}\n  gives what this gives: {other}", change.name));
        }
        for (name, content) in change.files {
            match base.iter().find(|(other, _)| *other == name) {
                Some(before) => write(folder, before),
                None if content.is_some() => fs::remove_file(folder.join(name)).unwrap(),
                None => {}
            }
        }
    }
    assert_eq!(outcome(folder, "kept", &[]), first, "as it was again");
    assert!(silent.is_empty(), "{}", silent.join("\n"));
}

fn config(model: &str, data: &str, trainer: &str) -> String {
    format!(
        "[run]\noutput_dir = \"run\"\non_existing = \"overwrite\"\n[model]\n{model}\n[tokenizer]\nfrom = \"tok\"\n[data]\n{data}\n\
         sampler = \"sequential\"\n[trainer]\nmax_steps = 1\nlogging_steps = 1\nlearning_rate = 1e-9\n{trainer}\n[device]\nkind = \"cpu\"\n"
    )
}

const GPT2: &str = "kind = \"gpt2\"\nn_layer = 1\nn_head = 1\nn_embd = 8\nn_positions = 48\nvocab_size = 300\nresid_pdrop = 0.0\n\
                    embd_pdrop = 0.0\nattn_pdrop = 0.0\ninitializer_range = 0.5";
const NEO: &str = "kind = \"gpt_neo\"\nnum_layers = 1\nnum_heads = 1\nhidden_size = 8\nmax_position_embeddings = 48\nvocab_size = 300\n\
                   resid_dropout = 0.0\nembed_dropout = 0.0\nattention_dropout = 0.0\ninitializer_range = 0.5\n\
                   attention_types = [[[\"local\"], 1]]";
const BERT: &str = "kind = \"bert\"\nnum_hidden_layers = 1\nnum_attention_heads = 1\nhidden_size = 8\nintermediate_size = 8\n\
                    max_position_embeddings = 48\nvocab_size = 100\nhidden_dropout_prob = 0.0\nattention_probs_dropout_prob = 0.0\n\
                    initializer_range = 0.5";

/// A byte-level BPE with four special tokens and the merge of `pair`.
fn byte_level(pair: [&str; 2]) -> Value {
    let special = ["<|endoftext|>", "<one>", "<two>", "<three>"];
    let printable = ('!'..='~').chain('¡'..='¬').chain('®'..='ÿ');
    let bytes = printable.chain((0x100..0x144).filter_map(char::from_u32)).map(String::from);
    let tokens = special.map(String::from).into_iter().chain(bytes).chain([pair.concat()]);
    let vocab = tokens.zip(0..).map(|(token, id)| (token, Value::from(id))).collect::<serde_json::Map<_, _>>();
    let added = special.iter().zip(0..).map(|(token, id)| {
        json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})
    });
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(), "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": [pair]}
    })
}

/// `tokenizer_config.json` of GPT-2's class with `more` over it.
fn gpt2_tokenizer(more: Value) -> String {
    let mut config = json!({"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>",
                            "unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config.to_string()
}

const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }}\
                        {{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{{ unk_token }}{{ pad_token }}{{ image_token }}{% endif %}{% endfor %}";

const CHAT: &str = "task = \"clm\"\nformat = \"jsonl\"\ntrain = \"rows.jsonl\"\nvalidation = \"rows.jsonl\"\nmessages_column = \"messages\"";

fn conversations() -> Case {
    let rows = |word: &str| {
        let messages =
            json!([{"role": "user", "content": word}, {"role": "assistant", "content": "yes, the end of it"}]);
        let row = json!({"messages": messages, "other": [{"role": "assistant", "content": "other"}],
                         "tools": [{"type": "function", "function": {"name": "look"}}]});
        let short =
            json!({"messages": [{"role": "assistant", "content": "no"}], "other": [{"role": "user", "content": "x"}]});
        format!("{row}\n{short}\n")
    };
    let further = CONFIG_NAMES.names.iter().filter(|name| name.why.starts_with("a further special token of this"));
    let further = further.map(|name| name.name).filter(|name| *name != "model_specific_special_tokens");
    let further = further.collect::<Vec<_>>();
    let template = TEMPLATE.to_owned() + &further.iter().map(|name| format!("{{{{ {name} }}}}-")).collect::<String>();
    let base = vec![
        at("config.toml", config(GPT2, CHAT, "do_eval = true")),
        at("rows.jsonl", rows("hi")),
        at("other.jsonl", rows("ho")),
        at("other.jinja", template.replace("m.role }}: ", "m.role }}= ")),
        at("tok/tokenizer.json", byte_level(["t", "h"])),
        at("tok/tokenizer_config.json", gpt2_tokenizer(json!({}))),
        at("tok/chat_template.jinja", template.clone()),
    ];
    let tokenizer = |more: Value| file("tok/tokenizer_config.json", gpt2_tokenizer(more));
    let mut changes = vec![
        file("rows.jsonl", rows("ha")),
        file("tok/chat_template.jinja", template.replace("m.role }}: ", "m.role }}; ")),
        file("tok/additional_chat_templates/tool_use.jinja", format!("{{{{ tools }}}}{template}")),
        file("tok/additional_chat_templates/tool_use.jinja", format!("{{{{ tools | length }}}}{template}")),
        file("tok/tokenizer.json", byte_level(["h", "e"])),
        file("tok/special_tokens_map.json", json!({"bos_token": "<three>", "pad_token": "<two>"})),
        file("tok/special_tokens_map.json", json!({"unk_token": "<three>", "eos_token": "<two>"})),
        file("tok/special_tokens_map.json", json!({"extra_special_tokens": ["of it"]})),
        file("tok/special_tokens_map.json", json!({"additional_special_tokens": ["end of"]})),
        file("tok/added_tokens.json", json!({"end": 261})),
        tokenizer(json!({"bos_token": "<one>"})),
        tokenizer(json!({"bos_token": "<two>"})),
        tokenizer(json!({"eos_token": "<one>"})),
        tokenizer(json!({"unk_token": "<one>"})),
        tokenizer(json!({"pad_token": "<two>"})),
        tokenizer(json!({"image_token": "<three>"})),
        tokenizer(json!({"extra_special_tokens": {"image_token": "<one>"}})),
        tokenizer(json!({"model_specific_special_tokens": {"image_token": "<two>"}})),
        tokenizer(json!({"extra_special_tokens": ["the"]})),
        tokenizer(json!({"split_special_tokens": true})),
        tokenizer(json!({"add_prefix_space": true})),
        tokenizer(json!({"tokenizer_class": "OpenAIGPTTokenizer"})),
        tokenizer(json!({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": null})),
    ];
    changes.extend(further.iter().map(|name| {
        let mut more = json!({});
        more[*name] = json!("<three>");
        tokenizer(more)
    }));
    // Without a file of its own the template is that of tokenizer_config.json.
    let without_file = |template: &str| {
        let config = tokenizer(json!({"chat_template": template}));
        Change { files: [config.files, vec![("tok/chat_template.jinja".into(), None)]].concat(), ..config }
    };
    changes.push(without_file("{{ messages[0].content }}."));
    changes.push(without_file("{{ messages[0].content }}:"));
    changes.extend(
        [
            "data.messages_column = \"other\"",
            "data.chat_template_path = \"other.jinja\"",
            "data.assistant_only_loss = true",
            "data.max_length = 20",
            "data.train = \"other.jsonl\"",
            "data.validation = \"other.jsonl\"",
            "data.train = [\"rows.jsonl\", \"other.jsonl\"]",
            "data.validation = [\"rows.jsonl\", \"other.jsonl\"]",
            "data.max_train_samples = 1",
            "data.max_eval_samples = 1",
            "data.packing = true",
            "model.n_positions = 16",
        ]
        .map(|value| set(&[value])),
    );
    let other = file("other.jinja", template.replace("m.role }}: ", "m.role }}? "));
    changes.push(both(other, &["data.chat_template_path = \"other.jinja\""]));
    Case { base, changes }
}

fn prompts() -> Case {
    let row = |prompt: Value, completion: Value| {
        json!({"prompt": prompt, "completion": completion, "ask": "why", "reply": "so it is"}).to_string() + "\n"
    };
    let turn = |role: &str, content: &str| json!([{"role": role, "content": content}]);
    let texts = |end: &str| row(json!("the cat "), json!("sat")) + &row(json!("the dog "), json!(end));
    let turns = row(turn("user", "the cat"), turn("assistant", "sat"));
    let data = "task = \"clm\"\nformat = \"jsonl\"\ntrain = \"rows.jsonl\"\nvalidation = \"rows.jsonl\"\n\
                completion_column = \"completion\"";
    let base = vec![
        at("config.toml", config(GPT2, data, "do_eval = true")),
        at("rows.jsonl", texts("ran")),
        at("other.jsonl", texts("hid")),
        at("rows.csv", "prompt,completion\nthe cat,sat\nthe dog,lay"),
        at("tok/tokenizer.json", byte_level(["t", "h"])),
        at("tok/tokenizer_config.json", gpt2_tokenizer(json!({}))),
        at("tok/chat_template.jinja", TEMPLATE),
    ];
    let csv = ["data.format = \"csv\"", "data.train = \"rows.csv\"", "data.validation = \"rows.csv\""];
    let mut changes = vec![
        file("rows.jsonl", texts("lay")),
        file("rows.jsonl", turns.clone()),
        Change {
            files: vec![
                at("rows.jsonl", turns.clone()),
                at("tok/chat_template.jinja", TEMPLATE.replace("}}: ", "}}= ")),
            ],
            ..file("rows.jsonl", turns)
        },
        file("tok/tokenizer.json", byte_level(["h", "e"])),
        file("tok/tokenizer_config.json", gpt2_tokenizer(json!({"eos_token": "<one>"}))),
        set(&csv),
        both(file("rows.csv", "prompt,completion\nthe cat,sat\nthe dog,ran"), &csv),
    ];
    changes.extend(
        [
            "data.prompt_column = \"ask\"",
            "data.completion_column = \"reply\"",
            "data.completion_only_loss = false",
            "data.max_length = 9",
            "data.packing = true",
            "data.train = \"other.jsonl\"",
            "data.validation = \"other.jsonl\"",
        ]
        .map(|value| set(&[value])),
    );
    Case { base, changes }
}

fn texts() -> Case {
    let data = "task = \"clm\"\nformat = \"text\"\ntrain = \"a.txt\"\nvalidation = \"b.txt\"\nblock_size = 8";
    let vocab = |token: &str| {
        let mut vocab = byte_level(["t", "h"])["model"]["vocab"].clone();
        let tokens = vocab.as_object_mut().unwrap();
        let id = tokens.remove("th").unwrap();
        tokens.insert(token.into(), id);
        vocab
    };
    let base = vec![
        at("config.toml", config(GPT2, data, "do_eval = true")),
        at("a.txt", "the cat\n\nthe hat\n".repeat(9)),
        at("b.txt", "the bat\n\nthe mat\n".repeat(9)),
        at("rows.csv", "text,other\nthe cat in the hat,the rat\nand the bat on the mat,the ham\n"),
        at("tok/tokenizer.json", byte_level(["t", "h"])),
        at("tok/tokenizer_config.json", gpt2_tokenizer(json!({}))),
        at("other/tokenizer.json", byte_level(["c", "a"])),
        at("bytes/vocab.json", vocab("th")),
        at("bytes/merges.txt", "#version: 0.2\nt h\n"),
        at("bytes/tokenizer_config.json", json!({"tokenizer_class": "GPT2Tokenizer"})),
    ];
    let bytes = ["tokenizer.from = \"bytes\""];
    let csv = ["data.format = \"csv\"", "data.train = \"rows.csv\"", "data.validation = \"rows.csv\""];
    let replace = ["data.errors = \"replace\""];
    let of_csv = |more: &'static str| set(&[&csv[..], &[more]].concat());
    // Ids of two tokens change places, and so a text has others.
    let turned =
        vocab("th").to_string().replace("\"a\":", "\"?\":").replace("\"e\":", "\"a\":").replace("\"?\":", "\"e\":");
    let changes = vec![
        file("a.txt", "the rat\n\nthe hat\n".repeat(9)),
        file("b.txt", "the rat\n\nthe hat\n".repeat(9)),
        file("tok/tokenizer.json", byte_level(["h", "e"])),
        file("tok/tokenizer_config.json", gpt2_tokenizer(json!({"eos_token": "<one>"}))),
        file("tok/tokenizer_config.json", gpt2_tokenizer(json!({"add_prefix_space": true}))),
        file("tok/tokenizer_config.json", gpt2_tokenizer(json!({"additional_special_tokens": ["the"]}))),
        set(&["data.block_size = 9"]),
        set(&["data.documents = \"line\""]),
        set(&["data.documents = \"row\""]),
        set(&["data.documents = \"row_with_break\""]),
        set(&["data.document_end = \"none\""]),
        set(&["data.train = \"b.txt\""]),
        set(&["data.train = [\"a.txt\", \"b.txt\"]"]),
        set(&["data.train = [\"b.txt\", \"a.txt\"]"]),
        set(&["data.validation = \"a.txt\""]),
        set(&["data.validation = \"40%\"", "data.documents = \"line\""]),
        set(&["data.validation = \"20%\"", "data.documents = \"line\""]),
        set(&["data.validation = \"40%\"", "data.documents = \"line\"", "trainer.seed = 7"]),
        set(&["data.validation = \"train[:40%]\"", "data.documents = \"line\""]),
        set(&["tokenizer.from = \"other\""]),
        both(file("bytes/vocab.json", turned.as_str()), &bytes),
        both(file("bytes/merges.txt", "#version: 0.2\n"), &bytes),
        set(&csv),
        of_csv("data.text_column = \"other\""),
        of_csv("data.document_end = \"eos\""),
        both(file("a.txt", &b"the \xff\n\nthe hat\n".repeat(9)[..]), &replace),
        both(
            file("rows.csv", &b"text,other\nthe c\xe4t in the hat,the rat\nand the bat,the ham\n"[..]),
            &[&csv[..], &replace].concat(),
        ),
        set(&["data.validation = \"40%\""]),
    ];
    Case { base, changes }
}

fn masked_texts() -> Case {
    let data = "task = \"mlm\"\nformat = \"text\"\ntrain = \"a.txt\"\nvalidation = \"a.txt\"\nblock_size = 12";
    let text = |word: &str| format!("the film is good and {word} films are not. ").repeat(20);
    let base = vec![
        at("config.toml", config(BERT, data, "do_eval = true")),
        at("a.txt", text("thee")),
        at("tok/vocab.txt", word_pieces("gute film the")),
        at("tok/tokenizer_config.json", bert_tokenizer(json!({}))),
    ];
    let changes = vec![
        file("a.txt", text("many")),
        set(&["data.mlm_probability = 0.3"]),
        set(&["data.whole_word_mask = true"]),
        set(&["trainer.seed = 3"]),
        set(&["data.block_size = 14"]),
        file("tok/vocab.txt", word_pieces("gute the film")),
        file("tok/tokenizer_config.json", bert_tokenizer(json!({"mask_token": "[SEP]"}))),
        file("tok/special_tokens_map.json", json!({"mask_token": "[UNK]", "sep_token": "[CLS]"})),
    ];
    Case { base, changes }
}

fn learned_tokenizers() -> Case {
    let data = "task = \"clm\"\nformat = \"text\"\ntrain = \"a.txt\"\nvalidation = \"b.txt\"\nblock_size = 8";
    let config = config(&GPT2.replace("vocab_size = 300\n", ""), data, "do_eval = true");
    let base = vec![
        at("config.toml", config.replace("from = \"tok\"", "train_vocab_size = 261")),
        at("a.txt", "the cat and a hen\nthe hat and an owl\n".repeat(9)),
        at("b.txt", "the bat\nthe mat\n".repeat(9)),
    ];
    let changes = vec![
        file("a.txt", "the rat and a pig\nthe hat and an elk\n".repeat(9)),
        file("b.txt", "the rat\nthe hat\n".repeat(9)),
        set(&["tokenizer.train_vocab_size = 262"]),
        set(&["tokenizer.train_vocab_size = 264"]),
        set(&["data.documents = \"line\""]),
        set(&["data.train = [\"a.txt\", \"b.txt\"]"]),
        set(&["data.validation = \"50%\"", "data.documents = \"line\""]),
        set(&["data.validation = \"50%\"", "data.documents = \"line\"", "trainer.seed = 5"]),
        // A run without a size takes the vocabulary of its tokenizer, and one with a size has rows
        // to spare.
        set(&["model.vocab_size = 270"]),
    ];
    Case { base, changes }
}

/// `vocab.txt` of BERT's word pieces, `words` after the special tokens.
fn word_pieces(words: &str) -> String {
    let letters = ('a'..='z').map(String::from).chain(('a'..='z').map(|letter| format!("##{letter}")));
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].map(String::from).into_iter();
    let all = special.chain(words.split(' ').map(str::to_owned)).chain(letters);
    all.map(|piece| piece + "\n").collect()
}

fn bert_tokenizer(more: Value) -> String {
    let mut config = json!({"tokenizer_class": "BertTokenizer"});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config.to_string()
}

const CLASSES: &str = "task = \"sequence-classification\"\nformat = \"csv\"\ntrain = \"rows.csv\"\nvalidation = \"rows.csv\"\n\
                       text_column = \"a\"\nlabel_column = \"label\"";

fn rows_of_tables() -> Case {
    let table = |first: &str| {
        let rows =
            ["die Öfen 中文,gut,good,bad,1\nSchlecht [end]", "rain,weg,bad,good,0.5\nnett", "so,ja,good,none,2\n"];
        format!("a,b,c,label,other,score\n{first},{}", rows.join(","))
    };
    // The last row has no label.
    let unlabeled = |label: &str| table("Sehr gute Filme") + &format!("nichts,x,y,{label},bad,3\n");
    let base = vec![
        at("config.toml", config(BERT, CLASSES, "do_eval = true")),
        at("rows.csv", table("Sehr gute Filme")),
        at("other.csv", table("Gute Filme")),
        at("rows.tsv", table("Alte Filme").replace(',', "\t")),
        at("tok/vocab.txt", word_pieces("gute film the")),
        at("tok/tokenizer_config.json", bert_tokenizer(json!({}))),
    ];
    let tokenizer = |more: Value| file("tok/tokenizer_config.json", bert_tokenizer(more));
    let regression = ["data.task = \"regression\"", "data.label_column = \"score\""];
    let (names, skip) = ("data.label_names = [\"good\", \"bad\", \"-1\"]", "data.skip_unlabeled = true");
    let changes = vec![
        file("rows.csv", table("Nette Filme")),
        file("rows.csv", table("Sehr gute Filme").replace("gut,good", "gut,bad").replace("weg,bad", "weg,good")),
        file("tok/vocab.txt", word_pieces("film gute the")),
        file("tok/added_tokens.json", json!({"[end]": 60})),
        file("tok/special_tokens_map.json", json!({"cls_token": "[MASK]"})),
        tokenizer(json!({"do_lower_case": false})),
        tokenizer(json!({"strip_accents": false, "do_lower_case": false, "unk_token": "[MASK]"})),
        set(&["data.text_column = \"b\""]),
        both(tokenizer(json!({"strip_accents": false})), &["data.text_column = \"b\""]),
        both(tokenizer(json!({"tokenize_chinese_chars": false})), &["data.text_column = \"b\""]),
        tokenizer(json!({"truncation_side": "left", "cls_token": "[PAD]"})),
        both(tokenizer(json!({"truncation_side": "left"})), &["data.max_length = 7"]),
        tokenizer(json!({"sep_token": "[MASK]"})),
        tokenizer(json!({"added_tokens_decoder": {"60": {"content": "Filme", "special": false, "normalized": false}}})),
        tokenizer(json!({"additional_special_tokens": ["gut"]})),
        set(&["data.text_column = \"c\""]),
        set(&["data.text_pair_column = \"b\""]),
        set(&["data.label_column = \"other\""]),
        set(&["data.label_names = [\"good\", \"bad\", \"none\"]"]),
        set(&["data.label_names = [\"good\", \"bad\"]"]),
        set(&["data.train = \"other.csv\""]),
        set(&["data.validation = \"other.csv\""]),
        set(&["data.train = [\"rows.csv\", \"other.csv\"]"]),
        set(&["data.train = [\"other.csv\", \"rows.csv\"]"]),
        set(&["data.format = \"tsv\"", "data.train = \"rows.tsv\"", "data.validation = \"rows.tsv\""]),
        set(&["data.max_length = 5"]),
        set(&["model.max_position_embeddings = 6"]),
        set(&["model.type_vocab_size = 1", "data.text_pair_column = \"b\""]),
        set(&["data.text_pair_column = \"b\"", "data.max_length = 9"]),
        set(&["model.id2label = {\"0\" = \"good\", \"1\" = \"bad\", \"2\" = \"none\", \"3\" = \"other\"}"]),
        set(&["model.kind = \"roberta\"", "model.max_position_embeddings = 50"]),
        set(&regression),
        both(file("rows.csv", table("Sehr gute Filme").replace("0.5", "0.25")), &regression),
        both(file("rows.csv", table("Sehr gute Filme").replace("ja,good", "ja,")), &[skip]),
        both(file("rows.csv", unlabeled("-1")), &[names]),
        both(file("rows.csv", unlabeled("-1").replace("gut,good", "gut,bad")), &[names, skip]),
    ];
    Case { base, changes }
}

/// Rows in JSON lines of three tasks that a list or several columns make.
fn rows_of_lists() -> Case {
    let row = |tags: Value, labels: Value, choice: Value, first: &str| {
        json!({"tokens": ["The", "Öfen"], "tags": tags, "others": ["O", "B"], "labels": labels, "choice": choice,
               "text": "the film", "intro": "it", "one": first, "two": "good or bad", "three": "neither"})
        .to_string()
            + "\n"
    };
    let rows = |tag: &str, label: &str, choice: u32, first: &str| {
        row(json!([tag, "O"]), json!([label, "b"]), json!(choice), first)
            + &row(json!(["O", "B"]), json!(["a", "c"]), json!(1), "ever")
    };
    let whole = rows("B", "c", 0, "good");
    let data = "task = \"token-classification\"\nformat = \"jsonl\"\ntrain = \"rows.jsonl\"\nvalidation = \"rows.jsonl\"\n\
                label_column = \"tags\"";
    let base = vec![
        at("config.toml", config(BERT, data, "do_eval = true")),
        at("rows.jsonl", whole.as_str()),
        at("tok/vocab.txt", word_pieces("gute film the")),
        at("tok/tokenizer_config.json", bert_tokenizer(json!({}))),
    ];
    let choices = [
        "data.task = \"multiple-choice\"",
        "data.text_column = \"text\"",
        "data.label_column = \"choice\"",
        "data.choice_columns = [\"one\", \"two\"]",
    ];
    let several =
        ["data.task = \"multi-label-classification\"", "data.text_column = \"text\"", "data.label_column = \"labels\""];
    let with = |first: &[&str], more: &[&str]| set(&[first, more].concat());
    let vocab = || file("tok/vocab.txt", word_pieces("the film gute"));
    let missing = |tag: Value| whole.replacen("[\"B\",\"O\"]", &json!([tag, "O"]).to_string(), 1);
    let (skip, names) = ("data.skip_unlabeled = true", "data.label_names = [\"O\", \"B\", \"-100\"]");
    let changes = vec![
        file("rows.jsonl", rows("O", "c", 0, "good")),
        vocab(),
        set(&["data.label_column = \"others\""]),
        set(&["data.label_names = [\"O\", \"B\"]"]),
        set(&["data.label_names = [\"O\", \"B\", \"X\"]"]),
        set(&["data.max_length = 3"]),
        both(file("rows.jsonl", missing(Value::Null)), &[skip]),
        both(file("rows.jsonl", missing(json!(-100))), &[names]),
        set(&choices),
        both(file("rows.jsonl", rows("B", "c", 1, "good")), &choices),
        both(file("rows.jsonl", rows("B", "c", 0, "best")), &choices),
        both(vocab(), &choices),
        with(&choices, &["data.choice_columns = [\"two\", \"one\"]"]),
        with(&choices, &["data.choice_columns = [\"one\", \"two\", \"three\"]"]),
        with(&choices, &["data.text_pair_column = \"intro\""]),
        with(&choices, &["data.max_length = 6"]),
        with(&choices, &["model.type_vocab_size = 1"]),
        both(file("rows.jsonl", whole.replacen("\"choice\":0", "\"choice\":-1", 1)), &[&choices[..], &[skip]].concat()),
        set(&several),
        both(file("rows.jsonl", rows("B", "a", 0, "good")), &several),
        with(&several, &["data.label_names = [\"b\", \"c\", \"a\"]"]),
        both(file("rows.jsonl", whole.replacen("[\"c\",\"b\"]", "null", 1)), &[&several[..], &[skip]].concat()),
    ];
    Case { base, changes }
}

/// GPT-2 reads the class at the last token before the padding.
fn classes_of_gpt2() -> Case {
    let table = |first: &str| format!("a,b,label\n{first},so,x\nthe cat,no,y\nthe hat in the rain,ja,x\n");
    let base = vec![
        at("config.toml", config(GPT2, CLASSES, "do_eval = true")),
        at("rows.csv", table("the rat")),
        at("tok/tokenizer.json", byte_level(["t", "h"])),
        at("tok/tokenizer_config.json", gpt2_tokenizer(json!({}))),
    ];
    let tokenizer = |more: Value| file("tok/tokenizer_config.json", gpt2_tokenizer(more));
    let changes = vec![
        file("rows.csv", table("the ram")),
        file("rows.csv", table("the rat<one>")),
        // A row that ends with the padding ends before it.
        both(file("rows.csv", table("the rat<one>")), &["model.pad_token_id = 1"]),
        Change {
            files: vec![
                at("rows.csv", table("the rat<two>")),
                at("tok/tokenizer_config.json", gpt2_tokenizer(json!({"pad_token": "<two>"}))),
            ],
            ..file("rows.csv", "<two> is the padding")
        },
        file("rows.csv", table("the rat<two>")),
        file("tok/tokenizer.json", byte_level(["c", "a"])),
        tokenizer(json!({"add_prefix_space": true})),
        set(&["data.text_pair_column = \"b\""]),
        set(&["data.max_length = 3"]),
        both(tokenizer(json!({"truncation_side": "left"})), &["data.max_length = 3"]),
        set(&["data.label_names = [\"y\", \"x\"]"]),
    ];
    Case { base, changes }
}

/// GPT-Neo has other names for its shape.
fn classes_of_neo() -> Case {
    let mut case = classes_of_gpt2();
    case.base[0] = at("config.toml", config(NEO, CLASSES, "do_eval = true"));
    Case { changes: vec![file("rows.csv", "a,label\nthe ram,x\nthe cat,y\n"), set(&["data.max_length = 3"])], ..case }
}

fn tokenized_rows() -> Case {
    let row = |ids: [u32; 4], more: Value| {
        let mut row = json!({"input_ids": ids});
        row.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        format!("{row}\n{}\n", row.to_string().replace('7', "8"))
    };
    let ids = [5, 6, 7, 9];
    let data = "task = \"clm\"\nformat = \"tokenized\"\ntrain = \"rows.jsonl\"\nvalidation = \"rows.jsonl\"";
    let classes = row(ids, json!({"labels": 1}));
    let spans = |end: u32| row(ids, json!({"start_positions": 1, "end_positions": end}));
    let choices = |right: u32| format!("{}\n", json!({"input_ids": [ids, [5, 6, 6, 9]], "labels": right}));
    let of = |task: &str, rows: String| both(file("rows.jsonl", rows), &[&format!("data.task = {task:?}")]);
    let without = |model: &str| config(model, data, "do_eval = true").replace("[tokenizer]\nfrom = \"tok\"\n", "");
    let base = vec![
        at("config.toml", without(GPT2)),
        at("rows.jsonl", row(ids, json!({}))),
        at("other.jsonl", row([5, 5, 7, 9], json!({}))),
        at("list.json", json!([{"input_ids": ids}, {"input_ids": [4, 4, 4]}])),
    ];
    let bert = |change: Change| Change {
        files: [change.files, vec![at("config.toml", without(BERT))]].concat(),
        name: format!("BERT: {}", change.name),
        ..change
    };
    let changes = vec![
        file("rows.jsonl", row([5, 6, 7, 8], json!({}))),
        file("rows.jsonl", row(ids, json!({"labels": [-100, 6, 7, 9]}))),
        file("rows.jsonl", row(ids, json!({"labels": [-100, -100, 7, 9]}))),
        file("rows.jsonl", row(ids, json!({"attention_mask": [1, 1, 1, 0]}))),
        file("rows.jsonl", row(ids, json!({"position_ids": [0, 1, 0, 1]}))),
        set(&["data.train = \"other.jsonl\""]),
        set(&["data.validation = \"other.jsonl\""]),
        set(&["data.train = [\"rows.jsonl\", \"other.jsonl\"]"]),
        set(&["data.train = \"list.json\""]),
        set(&["data.max_train_samples = 1"]),
        set(&["data.max_eval_samples = 1"]),
        set(&["data.validation = \"50%\""]),
        of("sequence-classification", classes.clone()),
        of("sequence-classification", row(ids, json!({"labels": 0}))),
        both(
            file("rows.jsonl", classes.as_str()),
            &["data.task = \"sequence-classification\"", "model.num_labels = 3"],
        ),
        bert(of("sequence-classification", row(ids, json!({"labels": 0, "token_type_ids": [0, 0, 1, 1]})))),
        bert(of("sequence-classification", row(ids, json!({"labels": 0, "token_type_ids": [0, 1, 1, 1]})))),
        bert(of("regression", row(ids, json!({"labels": 0.7})))),
        bert(of("regression", row(ids, json!({"labels": 1.7})))),
        bert(of("multi-label-classification", row(ids, json!({"labels": [0, 1, 1]})))),
        bert(of("multi-label-classification", row(ids, json!({"labels": [1, 0, 1]})))),
        bert(of("token-classification", row(ids, json!({"labels": [0, 1, 1, -100]})))),
        bert(of("token-classification", row(ids, json!({"labels": [0, 1, -100, -100]})))),
        bert(of("mlm", row(ids, json!({"labels": [-100, 1, -100, 2]})))),
        bert(of("question-answering", spans(2))),
        bert(of("question-answering", spans(3))),
        bert(of("multiple-choice", choices(0))),
        bert(of("multiple-choice", choices(1))),
    ];
    Case { base, changes }
}

fn windows_of_questions() -> Case {
    let context = "the cat sat on a mat and the dog sat on a hat, all day long";
    let question = |id: &str, answer: &str| {
        let answers = json!([{"text": answer, "answer_start": context.find(answer).unwrap()}]);
        json!({"id": id, "question": "who sat there", "answers": answers})
    };
    let rows = |answer: &str| {
        let questions = json!([question("1", answer), question("2", "cat")]);
        json!({"version": "1.1", "data": [{"title": "", "paragraphs": [{"context": context, "qas": questions}]}]})
    };
    let lines = |answer: &str| {
        let line = |id: &str, answer: &str| {
            let mut question = question(id, answer);
            question["context"] = json!(context);
            format!("{question}\n")
        };
        line("1", answer) + &line("2", "cat")
    };
    let data = "task = \"question-answering\"\nformat = \"squad\"\ntrain = \"q.json\"\nvalidation = \"q.json\"\nmax_length = 24\n\
                doc_stride = 4";
    let base = vec![
        at("config.toml", config(BERT, data, "do_eval = true")),
        at("q.json", rows("dog")),
        at("other.json", rows("hat")),
        at("q.jsonl", lines("day")),
        at("tok/vocab.txt", word_pieces("cat sat mat")),
        at("tok/tokenizer_config.json", bert_tokenizer(json!({}))),
    ];
    let tokenizer = |more: Value| file("tok/tokenizer_config.json", bert_tokenizer(more));
    let mut unanswered = rows("dog");
    unanswered["version"] = json!("2.0");
    unanswered["data"][0]["paragraphs"][0]["qas"][0]["answers"] = json!([]);
    let mut asked = rows("dog");
    asked["data"][0]["paragraphs"][0]["qas"][0]["question"] = json!("what sat there");
    let changes = vec![
        file("q.json", rows("mat")),
        file("q.json", unanswered),
        file("q.json", asked),
        file("tok/vocab.txt", word_pieces("cat mat sat")),
        tokenizer(json!({"sep_token": "[MASK]"})),
        tokenizer(json!({"additional_special_tokens": ["sat on"]})),
        set(&["data.max_length = 28"]),
        set(&["data.doc_stride = 6"]),
        set(&["data.train = \"other.json\""]),
        set(&["data.train = [\"q.json\", \"other.json\"]"]),
        set(&["data.train = \"q.jsonl\""]),
        both(file("q.jsonl", lines("long")), &["data.train = \"q.jsonl\""]),
        set(&["data.max_train_samples = 1"]),
        set(&["model.type_vocab_size = 1"]),
    ];
    Case { base, changes }
}

/// A tokenizer of `fixtures/tokenizer_classes.json` in the folder `to`.
fn tokenizer_of(name: &str, to: &str) -> Vec<File> {
    let fixture: Value = serde_json::from_str(include_str!("../fixtures/tokenizer_classes.json")).unwrap();
    let case = fixture["cases"].as_array().unwrap().iter().find(|case| case["name"] == name).unwrap();
    let files = case["folder"].as_object().unwrap().iter().map(|(file, key)| {
        let content = match &fixture["files"][key.as_str().unwrap()] {
            Value::String(model) if file.ends_with(".model") => BASE64_STANDARD.decode(model).unwrap(),
            Value::String(text) => text.clone().into_bytes(),
            object @ Value::Object(_) => object.to_string().into_bytes(),
            other => panic!("{name}: {file}: {other}"),
        };
        (format!("{to}/{file}"), Some(content))
    });
    files.collect()
}

/// Arguments and files that belong to one class of tokenizers or to a few.
fn classes_of_tokenizers() -> Case {
    let text = "It rains on the CHÂTEAU, the dog. quoted <extra_id_0> <extra_id_2> sat; at";
    let mut base = vec![
        at("config.toml", config(&BERT.replace("vocab_size = 100", "vocab_size = 400"), CLASSES, "do_eval = true")),
        at("rows.csv", format!("a,label\n\"{text}\",x\nthe hat,y\n")),
        at("answers.json", {
            let answers = json!([{"text": " rains", "answer_start": 2}]);
            json!({"data": [{"context": text, "id": 1, "question": "what", "answers": answers}]})
        }),
    ];
    let of = |class: &str, to: &str| {
        let files = tokenizer_of(class, to);
        files.into_iter().filter(|(name, _)| !name.ends_with("/config.json")).collect::<Vec<_>>()
    };
    base.extend(of("AlbertTokenizer, its own files", "tok"));
    base.extend(of("DebertaV2Tokenizer, as saved", "pieces"));
    for (class, to) in [
        ("T5Tokenizer", "t5"),
        ("DebertaV2Tokenizer", "deberta"),
        ("RobertaTokenizer", "roberta"),
        ("CamembertTokenizer", "camembert"),
        ("Qwen2Tokenizer", "qwen"),
    ] {
        base.extend(of(&format!("{class}, its own files"), to));
    }
    // The letter t is another one.
    let rescored = |name: &str| {
        let (_, content) = base.iter().find(|(other, _)| other == name).unwrap();
        let mut content = content.clone().unwrap();
        let piece = content.windows(4).position(|bytes| bytes == b"\x0a\x01t\x15").unwrap();
        content[piece + 2] = b'~';
        file(name, &content[..])
    };
    let argument = |class: &str, to: &str, more: Value| {
        let mut config = json!({"tokenizer_class": class});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let set: &[&str] = if to == "tok" { &[] } else { &[&format!("tokenizer.from = {to:?}")] };
        both(file(&format!("{to}/tokenizer_config.json"), config), set)
    };
    let questions = [
        "data.task = \"question-answering\"",
        "data.format = \"squad\"",
        "data.train = \"answers.json\"",
        "data.validation = \"answers.json\"",
        "tokenizer.from = \"roberta\"",
    ];
    let of_questions = |change: Change| {
        let config = String::from_utf8(base[0].1.clone().unwrap()).unwrap();
        let config = config.replace("text_column = \"a\"\nlabel_column = \"label\"", "");
        Change { files: [change.files, vec![at("config.toml", config)]].concat(), ..change }
    };
    let changes = vec![
        rescored("tok/spiece.model"),
        argument("AlbertTokenizer", "tok", json!({"keep_accents": true})),
        argument("AlbertTokenizer", "tok", json!({"do_lower_case": false})),
        set(&["tokenizer.from = \"t5\""]),
        argument("T5Tokenizer", "t5", json!({"extra_ids": 2})),
        set(&["tokenizer.from = \"deberta\""]),
        both(rescored("deberta/spm.model"), &["tokenizer.from = \"deberta\""]),
        argument("DebertaV2Tokenizer", "deberta", json!({"split_by_punct": true})),
        argument("DebertaV2Tokenizer", "pieces", json!({"unk_token": "<none>"})),
        argument("DebertaV2Tokenizer", "pieces", json!({"unk_token": "<none>", "unk_id": 4})),
        set(&["tokenizer.from = \"camembert\""]),
        both(rescored("camembert/sentencepiece.bpe.model"), &["tokenizer.from = \"camembert\""]),
        set(&["tokenizer.from = \"qwen\""]),
        argument("Qwen2Tokenizer", "qwen", json!({"add_bos_token": true, "bos_token": "t"})),
        argument("Qwen2Tokenizer", "qwen", json!({"add_eos_token": true, "eos_token": "h"})),
        of_questions(set(&questions)),
        of_questions(both(
            file(
                "roberta/tokenizer_config.json",
                json!({"tokenizer_class": "RobertaTokenizer", "trim_offsets": false}),
            ),
            &questions,
        )),
    ];
    Case { base, changes }
}

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/fixtures").join(name)).unwrap()
}

/// Parquet with ClassLabel in its metadata.
fn classes_in_parquet() -> Case {
    let data =
        "task = \"sequence-classification\"\nformat = \"parquet\"\ntrain = \"a.parquet\"\nvalidation = \"a.parquet\"";
    let base = vec![
        at("config.toml", config(BERT, data, "do_eval = true")),
        at("a.parquet", &fixture("labels/classes.parquet")[..]),
        at("b.parquet", &fixture("labels/other_order.parquet")[..]),
        at("none.parquet", &fixture("labels/unlabeled.parquet")[..]),
        at("tok/vocab.txt", word_pieces("good film play")),
        at("tok/tokenizer_config.json", bert_tokenizer(json!({}))),
    ];
    // Both files have the same names in their rows, and each has ids of its own for them.
    let only_first =
        ["data.train = \"b.parquet\"", "data.validation = \"b.parquet\"", "data.label_names = [\"neg\", \"pos\"]"];
    let tags = "data.task = \"token-classification\"";
    let changes = vec![
        file("a.parquet", &fixture("labels/other_order.parquet")[..]),
        set(&["data.label_names = [\"neg\", \"pos\", \"none\"]"]),
        set(&[&only_first[..2], &["data.label_names = [\"neg\", \"none\", \"pos\"]"]].concat()),
        set(&["data.train = [\"a.parquet\", \"b.parquet\"]"]),
        set(&["data.train = [\"a.parquet\", \"none.parquet\"]", "data.label_names = [\"neg\", \"pos\", \"-1\"]"]),
        set(&[tags]),
        set(&[tags, "data.label_names = [\"B-PER\", \"O\"]"]),
    ];
    Case { base, changes }
}

/// Folders of `datasets.save_to_disk`.
fn saved_datasets() -> Case {
    let data = "task = \"sequence-classification\"\ndataset_name = \"saved\"";
    let mut base = vec![
        at("config.toml", config(BERT, data, "do_eval = true")),
        at("tok/vocab.txt", word_pieces("good film play")),
        at("tok/tokenizer_config.json", bert_tokenizer(json!({}))),
    ];
    for name in [
        "dataset_dict.json",
        "train/state.json",
        "train/dataset_info.json",
        "train/data-00000-of-00002.arrow",
        "train/data-00001-of-00002.arrow",
        "validation/state.json",
        "validation/dataset_info.json",
        "validation/data-00000-of-00001.arrow",
    ] {
        base.push(at(&format!("saved/{name}"), &fixture(&format!("files/saved/{name}"))[..]));
    }
    let text = |name: &str| String::from_utf8(fixture(&format!("files/saved/{name}"))).unwrap();
    let changed = |name: &str, from: &str, to: &str| {
        let before = text(name);
        assert!(before.contains(from), "{name}");
        file(&format!("saved/{name}"), before.replace(from, to))
    };
    let state = |files: &[&str]| {
        let mut state: Value = serde_json::from_str(&text("train/state.json")).unwrap();
        state["_data_files"] = files.iter().map(|file| json!({"filename": file})).collect();
        file("saved/train/state.json", state)
    };
    let [first, second] = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"];
    let down_up = "data.label_names = [\"down\", \"up\", \"left\"]";
    let mut turned = changed("train/dataset_info.json", "\"down\",", "\"left\",");
    turned.settings = vec![down_up.into()];
    let changes = vec![
        state(&[second, first]),
        state(&[first]),
        state(&[second]),
        set(&[down_up]),
        turned,
        both(changed("validation/dataset_info.json", "\"down\",", "\"left\","), &[down_up]),
        file("saved/train/data-00000-of-00002.arrow", &fixture("files/saved/validation/data-00000-of-00001.arrow")[..]),
        file("saved/validation/data-00000-of-00001.arrow", &fixture("files/saved/train/data-00000-of-00002.arrow")[..]),
        set(&["data.task = \"regression\"", "data.label_column = \"double\"", "data.skip_unlabeled = true"]),
    ];
    Case { base, changes }
}

/// A folder with a dataset card.
fn dataset_cards() -> Case {
    let card = |train: &str, held: &str, more: &str| {
        let split = |name: &str, path: &str| format!("  - split: {name}\n    path: {path}\n");
        let splits = split("train", train) + &split("validation", held);
        format!("---\nconfigs:\n- config_name: one\n  default: true\n  data_files:\n{splits}{more}---\n")
    };
    let other = "- config_name: two\n  data_files: c.csv\n";
    let data = "task = \"sequence-classification\"\nformat = \"csv\"\ndataset_name = \"hub\"";
    let table = |word: &str| format!("text,label\na {word} film,x\na play,y\n");
    let base = vec![
        at("config.toml", config(BERT, data, "do_eval = true")),
        at("hub/a.csv", table("good")),
        at("hub/b.csv", table("bad")),
        at("hub/c.csv", table("long")),
        at("hub/README.md", card("a.csv", "b.csv", other)),
        at("tok/vocab.txt", word_pieces("good film play")),
        at("tok/tokenizer_config.json", bert_tokenizer(json!({}))),
    ];
    let two = ["data.dataset_config_name = \"two\"", "data.validation = \"hub/b.csv\""];
    let changes = vec![
        file("hub/README.md", card("b.csv", "b.csv", other)),
        file("hub/README.md", card("a.csv", "c.csv", other)),
        file("hub/README.md", card("[a.csv, c.csv]", "b.csv", other)),
        file("hub/README.md", card("[c.csv, a.csv]", "b.csv", other)),
        file("hub/a.csv", table("short")),
        file("hub/b.csv", table("short")),
        set(&two),
        both(file("hub/README.md", card("a.csv", "b.csv", "- config_name: two\n  data_files: [b.csv, a.csv]\n")), &two),
        set(&["data.validation = \"hub/a.csv\""]),
        Change {
            files: ["a.csv", "b.csv", "README.md"]
                .map(|name| {
                    let of = if name == "README.md" { card("b.csv", "a.csv", other) } else { table(name) };
                    at(&format!("other/{name}"), of)
                })
                .to_vec(),
            ..set(&["data.dataset_name = \"other\""])
        },
    ];
    Case { base, changes }
}

/// Data that are read as they are needed, of which the validation data alone are kept.
fn streams() -> Case {
    let data = format!("{CLASSES}\nlabel_names = [\"good\", \"bad\"]\nstreaming = true");
    let table = |first: &str| format!("a,b,label\n{first},so,good\nnett,weg,bad\nrain,ja,good\nfein,nein,bad\n");
    let base = vec![
        at("config.toml", config(BERT, &data, "do_eval = true\nper_device_train_batch_size = 2")),
        at("rows.csv", table("gute Filme")),
        at("other.csv", table("alte Filme")),
        at("rows.jsonl", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"yes\"}]}\n"),
        at("tok/vocab.txt", word_pieces("gute film the")),
        at("tok/tokenizer_config.json", bert_tokenizer(json!({}))),
    ];
    let random = "data.sampler = \"random\"";
    let changes = vec![
        file("rows.csv", table("neue Filme")),
        file("tok/vocab.txt", word_pieces("film gute the")),
        file("tok/tokenizer_config.json", bert_tokenizer(json!({"cls_token": "[MASK]"}))),
        set(&["data.train = \"other.csv\""]),
        set(&["data.train = [\"other.csv\", \"rows.csv\"]"]),
        set(&["data.validation = \"other.csv\""]),
        set(&["data.label_names = [\"bad\", \"good\"]"]),
        set(&["data.text_column = \"b\""]),
        set(&["data.text_pair_column = \"b\""]),
        set(&["data.max_length = 4"]),
        set(&["data.streaming = false"]),
        set(&[random]),
        set(&[random, "data.shuffle_buffer_size = 2"]),
        both(file("rows.csv", table("gute Filme").replace("so,good", "so,")), &["data.skip_unlabeled = true"]),
        both(
            file("rows.csv", table("gute Filme").replace("so,good", "so,-1")),
            &["data.label_names = [\"good\", \"bad\", \"-1\"]"],
        ),
    ];
    Case { base, changes }
}

/// A trained model with its tokenizer.
fn pretrained() -> Case {
    let table = |labels: [&str; 2]| format!("a,label\ngute filme,{}\nder film,{}\n", labels[0], labels[1]);
    let mut base = vec![
        at("config.toml", config(BERT, CLASSES, "")),
        at("rows.csv", table(["x", "y"])),
        at("tok/vocab.txt", word_pieces("gute film the")),
        at("tok/tokenizer_config.json", bert_tokenizer(json!({}))),
    ];
    let place = tempfile::tempdir().unwrap();
    base.iter().for_each(|file| write(place.path(), file));
    outcome(place.path(), "cache", &[]);
    let model = fs::read_dir(place.path().join("run/model")).unwrap().map(|entry| entry.unwrap());
    let model = model.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()));
    let model = model.collect::<BTreeMap<_, _>>();
    let from = config("from = \"pre\"", CLASSES, "do_eval = true").replace("[tokenizer]\nfrom = \"tok\"\n", "");
    base[0] = at("config.toml", from);
    for folder in ["pre", "other"] {
        base.extend(model.iter().map(|(name, content)| at(&format!("{folder}/{name}"), &content[..])));
    }
    let of_other = base.iter_mut().find(|(name, _)| name == "other/vocab.txt").unwrap();
    *of_other = at("other/vocab.txt", word_pieces("film gute the"));
    let larger =
        word_pieces(&format!("gute film the{}", (0..60).map(|word| format!(" filme{word}")).collect::<String>()));
    base.push(at("larger/vocab.txt", larger + "filme\n"));
    let mut config: Value = serde_json::from_slice(&model["config.json"]).unwrap();
    (config["id2label"], config["label2id"]) = (json!({"0": "y", "1": "x"}), json!({"y": 0, "x": 1}));
    let changes = vec![
        file("pre/config.json", config),
        file("pre/vocab.txt", word_pieces("gute the film")),
        file("pre/tokenizer_config.json", bert_tokenizer(json!({"sep_token": "[MASK]"}))),
        set(&["model.from = \"other\""]),
        set(&["model.id2label = {\"0\" = \"y\", \"1\" = \"x\"}", "data.max_length = 3"]),
        set(&["tokenizer.from = \"larger\"", "model.resize_token_embeddings = true"]),
        both(file("rows.csv", table(["up", "down"]) + "mehr,left\n"), &["model.ignore_mismatched_sizes = true"]),
    ];
    Case { base, changes }
}

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        const CASES: &[(&str, fn() -> Case)] = &[$((stringify!($name), $name)),*];

        mod from_the_cache {
            $(#[test]
            fn $name() {
                super::tried(super::$name());
            })*
        }
    };
}

cases!(
    conversations,
    prompts,
    texts,
    masked_texts,
    learned_tokenizers,
    rows_of_tables,
    rows_of_lists,
    classes_of_gpt2,
    classes_of_neo,
    tokenized_rows,
    windows_of_questions,
    classes_of_tokenizers,
    classes_in_parquet,
    saved_datasets,
    dataset_cards,
    streams,
    pretrained,
);

/// Settings that change no example, with the case in which each is tried, further settings that it
/// needs, and the reason. Without a case no run of these can have it.
type Inert = (&'static str, &'static str, &'static [&'static str], &'static str);

const SHAPE: &str = "it is the shape of the weights or of what is computed from an example";
const BATCH: &str = "rows are padded and put in order when they are in a batch";
const FOUND: &str = "it is about the answers that are looked for in what the model says of a window";

const CHANGES_NOTHING: &[Inert] = &[
    ("data.padding = \"max_length\"", "rows_of_tables", &[], BATCH),
    ("data.sampler = \"random\"", "rows_of_tables", &[], BATCH),
    ("data.test = \"other.csv\"", "", &[], "rows that are predicted are encoded then, and are not kept"),
    ("data.n_best_size = 2", "windows_of_questions", &[], FOUND),
    ("data.max_answer_length = 2", "windows_of_questions", &[], FOUND),
    ("data.null_score_diff_threshold = 2.0", "windows_of_questions", &[], FOUND),
    ("data.version_2_with_negative = true", "windows_of_questions", &[], FOUND),
    ("model.size = \"base\"", "rows_of_tables", &[], SHAPE),
    ("model.pad_to_multiple_of = 64", "pretrained", &["model.resize_token_embeddings = true"], SHAPE),
    ("model.n_embd = 16", "classes_of_gpt2", &[], SHAPE),
    ("model.n_layer = 2", "classes_of_gpt2", &[], SHAPE),
    ("model.n_head = 2", "classes_of_gpt2", &[], SHAPE),
    ("model.n_inner = 16", "classes_of_gpt2", &[], SHAPE),
    ("model.activation_function = \"gelu\"", "classes_of_gpt2", &[], SHAPE),
    ("model.resid_pdrop = 0.5", "classes_of_gpt2", &[], SHAPE),
    ("model.embd_pdrop = 0.5", "classes_of_gpt2", &[], SHAPE),
    ("model.attn_pdrop = 0.5", "classes_of_gpt2", &[], SHAPE),
    ("model.layer_norm_epsilon = 1e-3", "classes_of_gpt2", &[], SHAPE),
    ("model.scale_attn_weights = false", "classes_of_gpt2", &[], SHAPE),
    ("model.window_size = 4", "classes_of_neo", &[], SHAPE),
    ("model.attention_types = [[[\"global\"], 1]]", "classes_of_neo", &[], SHAPE),
    ("model.initializer_range = 0.1", "classes_of_gpt2", &[], SHAPE),
    ("model.embedding_size = 4", "rows_of_tables", &["model.kind = \"electra\""], SHAPE),
    ("model.hidden_size = 16", "rows_of_tables", &[], SHAPE),
    ("model.num_hidden_layers = 2", "rows_of_tables", &[], SHAPE),
    ("model.num_attention_heads = 2", "rows_of_tables", &[], SHAPE),
    ("model.intermediate_size = 16", "rows_of_tables", &[], SHAPE),
    ("model.hidden_act = \"gelu_new\"", "rows_of_tables", &[], SHAPE),
    ("model.hidden_dropout_prob = 0.5", "rows_of_tables", &[], SHAPE),
    ("model.attention_probs_dropout_prob = 0.5", "rows_of_tables", &[], SHAPE),
    ("model.classifier_dropout = 0.5", "rows_of_tables", &[], SHAPE),
    ("model.qa_dropout = 0.5", "", &[], SHAPE),
    ("model.layer_norm_eps = 1e-3", "rows_of_tables", &[], SHAPE),
    ("model.tie_word_embeddings = false", "rows_of_tables", &[], SHAPE),
    ("model.problem_type = \"single_label_classification\"", "rows_of_tables", &[], SHAPE),
    (
        "model.label2id = {\"good\" = 0, \"bad\" = 1}",
        "",
        &[],
        "ids have their names in id2label, with which it has to agree",
    ),
];

/// Files of a tokenizer and arguments in them that change no example, and why.
const NOT_READ: &[(&str, &str)] = &[
    ("chat_template.json", "it is kept with a model and belongs to processors of pictures and sound"),
    ("sentencepiece.model", "it is kept with a model; the classes that read it are refused"),
    ("tokenizer.model", "it is kept with a model; the classes that read it are refused"),
    ("clean_up_tokenization_spaces", "it is about decoded text"),
    ("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", "it is about decoded text"),
];

fn key(setting: &str) -> String {
    setting.split('=').next().unwrap().trim().to_owned()
}

#[test]
fn every_setting_and_file_is_tried_or_changes_nothing() {
    let (mut settings, mut names) = (BTreeSet::new(), BTreeSet::new());
    for (_, case) in CASES {
        let Case { base, changes } = case();
        for change in changes {
            settings.extend(change.settings.iter().map(|setting| key(setting)));
            for (path, content) in &change.files {
                let file = path.rsplit('/').next().unwrap().to_owned();
                let object = |content: &Option<Vec<u8>>| -> Value {
                    content.as_ref().and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or_default()
                };
                if ["tokenizer_config.json", "special_tokens_map.json"].contains(&file.as_str()) {
                    let before = base.iter().find(|(name, _)| name == path).map(|(_, content)| object(content));
                    let of_file = object(content);
                    let changed = of_file.as_object().unwrap().iter().filter(|(name, value)| {
                        before.as_ref().is_none_or(|before| before.get(name.as_str()) != Some(*value))
                    });
                    names.extend(changed.map(|(name, _)| format!("{file}: {name}")));
                }
                names.insert(file);
            }
        }
    }
    let mut section = "";
    let reference = include_str!("../../src/guide/config_reference.md").lines().filter_map(|line| {
        if let Some(title) = line.strip_prefix("## ") {
            section = title.strip_prefix("`[").and_then(|title| title.split(']').next()).unwrap_or_default();
        }
        let name = line.strip_prefix("- **`")?.split('`').next()?;
        ["data", "tokenizer", "model"].contains(&section).then(|| format!("{section}.{name}"))
    });
    let reference = reference.collect::<BTreeSet<_>>();
    assert!(reference.len() > 70 && reference.contains("data.train"), "{reference:?}");
    let inert = CHANGES_NOTHING.iter().map(|(setting, ..)| key(setting)).collect::<BTreeSet<_>>();
    let neither = reference.iter().filter(|key| !settings.contains(*key) && !inert.contains(*key));
    assert_eq!(
        neither.collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "these settings are neither tried nor named as harmless"
    );
    assert_eq!(inert.difference(&reference).collect::<Vec<_>>(), Vec::<&String>::new(), "these are no settings");

    let honoured = |table: &'static NameTable| {
        let names = table.names.iter().filter(|name| matches!(name.treatment, Treatment::Honoured));
        names.map(|name| (name.name, format!("{}: {}", table.file, name.name)))
    };
    let files = FILES.iter().map(|name| (*name, (*name).to_owned()));
    for (name, shown) in files.chain(honoured(&CONFIG_NAMES)).chain(honoured(&SPECIAL_NAMES)) {
        let harmless = NOT_READ.iter().any(|(other, _)| *other == name);
        // Roles stand in both files: those of one that have a change of their own speak for the
        // other.
        let tried = names.contains(&shown)
            || shown.starts_with(SPECIAL_NAMES.file) && names.contains(&format!("{}: {name}", CONFIG_NAMES.file));
        assert!(tried != harmless, "{shown}: tried {tried}, named as harmless {harmless}");
    }
}

#[test]
fn what_changes_nothing_gives_the_same_examples() {
    for (name, case) in CASES {
        let place = tempfile::tempdir().unwrap();
        let all = CHANGES_NOTHING.iter().filter(|inert| inert.1 == *name);
        all.clone().take(1).flat_map(|_| case().base).for_each(|file| write(place.path(), &file));
        let mut digests = BTreeMap::new();
        for (setting, _, needed, why) in all {
            let needed = needed.iter().map(|needed| (*needed).to_owned()).collect::<Vec<_>>();
            let without = digests
                .entry(needed.clone())
                .or_insert_with_key(|needed| outcome(place.path(), "kept", needed)[1].clone());
            let with = [needed, vec![(*setting).to_owned()]].concat();
            assert_eq!(outcome(place.path(), "kept", &with)[1], *without, "{setting}, of which is said: {why}");
        }
    }
}

#[test]
fn what_depends_on_the_clock_is_not_kept() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let data = "task = \"clm\"\nformat = \"jsonl\"\ntrain = \"rows.jsonl\"\nmessages_column = \"messages\"";
    let row = json!({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]});
    for (name, content) in [
        ("config.toml", config(GPT2, data, "")),
        ("rows.jsonl", row.to_string() + "\n"),
        ("tok/tokenizer.json", byte_level(["t", "h"]).to_string()),
        ("tok/tokenizer_config.json", gpt2_tokenizer(json!({}))),
        ("tok/chat_template.jinja", format!("{{{{ strftime_now('%Y %f') }}}}{TEMPLATE}")),
    ] {
        write(folder, &at(name, content));
    }
    let runs = (0..3).map(|_| outcome(folder, "kept", &[])).collect::<BTreeSet<_>>();
    assert_eq!(runs.len(), 3, "each run has the microseconds of its own");
    assert!(!folder.join("kept/rows").exists() || fs::read_dir(folder.join("kept/rows")).unwrap().next().is_none());
}
