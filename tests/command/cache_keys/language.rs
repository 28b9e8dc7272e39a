//! Texts, prompts and conversations of language models.

use kiln::data::tokenizer::CONFIG_NAMES;
use serde_json::{Value, json};

use super::tokenizers::{bert_tokenizer, byte_level, gpt2_tokenizer, word_pieces};
use super::{BERT, Case, Change, GPT2, at, both, config, file, set};

pub(super) const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }}\
                        {{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{{ unk_token }}{{ pad_token }}{{ image_token }}{% endif %}{% endfor %}";

const CHAT: &str = "task = \"clm\"\nformat = \"jsonl\"\ntrain = \"rows.jsonl\"\nvalidation = \"rows.jsonl\"\nmessages_column = \"messages\"";

pub(super) fn conversations() -> Case {
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

pub(super) fn prompts() -> Case {
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

pub(super) fn texts() -> Case {
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

pub(super) fn masked_texts() -> Case {
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
