//! Rows with labels, of tables and of tokens, and questions.

use serde_json::{Value, json};

use super::tokenizers::{bert_tokenizer, byte_level, gpt2_tokenizer, word_pieces};
use super::{BERT, CLASSES, Case, Change, GPT2, LLAMA, NEO, at, both, config, file, set};

pub(super) fn rows_of_tables() -> Case {
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
pub(super) fn rows_of_lists() -> Case {
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
pub(super) fn classes_of_gpt2() -> Case {
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
pub(super) fn classes_of_neo() -> Case {
    let mut case = classes_of_gpt2();
    case.base[0] = at("config.toml", config(NEO, CLASSES, "do_eval = true"));
    Case { changes: vec![file("rows.csv", "a,label\nthe ram,x\nthe cat,y\n"), set(&["data.max_length = 3"])], ..case }
}

/// Llama and its variants have fields that no other family has.
pub(super) fn classes_of_llama() -> Case {
    let mut case = classes_of_gpt2();
    case.base[0] = at("config.toml", config(LLAMA, CLASSES, "do_eval = true"));
    Case { changes: vec![file("rows.csv", "a,label\nthe ram,x\nthe cat,y\n"), set(&["data.max_length = 3"])], ..case }
}

pub(super) fn tokenized_rows() -> Case {
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

pub(super) fn windows_of_questions() -> Case {
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
