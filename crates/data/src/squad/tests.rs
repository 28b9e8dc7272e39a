//! Windows and scores against the reference implementations (`tests/fixtures/make_squad.py`), the
//! search for spans against trying all of them.
#![allow(clippy::unwrap_used)]

use serde_json::Value;

use super::*;
use crate::tokenizer::Tokenizer;

fn fixture() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/squad.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn question(text: &str, context: &str, answers: Vec<Answer>, version: u64) -> Question {
    let (id, text) = ("q".to_string(), text.to_string());
    Question { id, text, context: context.into(), answers, may_be_unanswerable: version == 2 }
}

fn integers(value: &Value) -> Vec<i64> {
    value.as_array().unwrap().iter().map(|value| value.as_i64().unwrap()).collect()
}

#[test]
fn scores_are_those_of_the_official_scripts() {
    for case in fixture()["scores"].as_array().unwrap() {
        let version = case["version"].as_u64().unwrap();
        let (mut questions, mut predictions) = (Vec::new(), Vec::new());
        for entry in case["questions"].as_array().unwrap() {
            let answers = entry["answers"].as_array().unwrap().iter();
            let answers = answers.map(|text| Answer { text: text.as_str().unwrap().into(), start: 0 });
            questions.push(question("?", "", answers.collect(), version));
            let text = entry["prediction"].as_str().unwrap().to_string();
            predictions.push(Prediction { id: "q".into(), text, span: None, score: 0.0, probability: 1.0 });
        }
        let got = scores(&questions, &predictions);
        let has = got.has_answer.unwrap_or_default();
        let no = got.no_answer.unwrap_or_default();
        for (name, got) in [
            ("exact_match", got.exact_match),
            ("f1", got.f1),
            ("has_exact", has.0),
            ("has_f1", has.1),
            ("no_exact", no.0),
            ("no_f1", no.1),
        ] {
            let Some(expected) = case["expected"][name].as_f64() else { continue };
            // torchmetrics answers in f32.
            assert!((got - expected).abs() < 1e-4, "version {version}, {name}: {got}, expected {expected}");
        }
        assert_eq!(got.has_answer.is_some(), version == 2);
    }
}

#[test]
fn rows_have_the_positions_of_run_qa() {
    let fixture = &fixture()["rows"];
    let folder = tempfile::tempdir().unwrap();
    let vocab = fixture["vocab"].as_array().unwrap().iter().map(|word| format!("{}\n", word.as_str().unwrap()));
    std::fs::write(folder.path().join("vocab.txt"), vocab.collect::<String>()).unwrap();
    let encoder = Tokenizer::load(folder.path()).unwrap().window_encoder(64, 16, true).unwrap();
    let rows = fixture["rows"].as_array().unwrap();
    let lines = rows.iter().map(|row| format!("{row}\n")).collect::<String>();
    for (name, text) in [
        ("rows.json", serde_json::json!({ "version": 2.0, "data": rows }).to_string()),
        ("list.json", fixture["rows"].to_string()),
        ("rows.jsonl", lines),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let questions = read(&[path]).unwrap();
        let got = questions.iter().enumerate().map(|(index, question)| {
            let windows = encoder.windows(index, question).unwrap();
            serde_json::json!([question.id, windows[0].start, windows[0].end])
        });
        assert_eq!(got.collect::<Value>(), fixture["positions"], "{name}");
        assert!(questions.iter().all(|question| question.may_be_unanswerable), "{name}");
    }
}

#[test]
fn offsets_are_moved_past_a_leading_space_once() {
    let folder = tempfile::tempdir().unwrap();
    let vocab = r#"{"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4, "b": 5, "ab": 6, "Ġ": 7, "Ġa": 8, "Ġab": 9}"#;
    std::fs::write(folder.path().join("vocab.json"), vocab).unwrap();
    std::fs::write(folder.path().join("merges.txt"), "#version: 0.2\na b\nĠ a\nĠa b\n").unwrap();
    let encoder = Tokenizer::load(folder.path()).unwrap().window_encoder(20, 4, false).unwrap();
    let answer = Answer { text: "ab".into(), start: 5 };
    let windows = encoder.windows(0, &question("a", "ab a ab", vec![answer], 1)).unwrap();
    // Ids and offsets as `RobertaTokenizerFast` of transformers 4.57 gives them for the same two
    // files.
    assert_eq!(windows[0].input_ids, [0, 4, 2, 2, 6, 8, 7, 6, 2]);
    assert_eq!(windows[0].offsets, [(0, 2), (3, 4), (5, 5), (5, 7)]);
    assert_eq!((windows[0].start, windows[0].end), (7, 7));
}

#[test]
fn windows_are_those_of_the_fast_tokenizer() {
    windows_are_those_of("windows", "right");
}

#[test]
fn windows_of_a_tokenizer_that_cuts_the_left_side() {
    windows_are_those_of("left", "left");
}

fn windows_are_those_of(part: &str, side: &str) {
    let fixture = &fixture()[part];
    let folder = tempfile::tempdir().unwrap();
    let config = format!(r#"{{"tokenizer_class": "BertTokenizer", "truncation_side": "{side}"}}"#);
    std::fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
    let vocab = fixture["vocab"].as_array().unwrap().iter().map(|word| format!("{}\n", word.as_str().unwrap()));
    std::fs::write(folder.path().join("vocab.txt"), vocab.collect::<String>()).unwrap();
    let tokenizer = Tokenizer::load(folder.path()).unwrap();
    let context = fixture["context"].as_str().unwrap();
    for case in fixture["cases"].as_array().unwrap() {
        let (max_length, stride) = (case["max_length"].as_u64().unwrap(), case["stride"].as_u64().unwrap());
        let encoder = tokenizer.window_encoder(max_length as usize, stride as usize, true).unwrap();
        let answers = case["answer"].as_str().map(|text| {
            // The fixture counts characters, as Python does.
            Answer { text: text.into(), start: case["answer_start"].as_u64().unwrap() as usize }
        });
        let question = question(case["question"].as_str().unwrap(), context, answers.into_iter().collect(), 2);
        let windows = encoder.windows(5, &question).unwrap();
        let expected = case["features"].as_array().unwrap();
        assert_eq!(windows.len(), expected.len(), "{case}");
        for (window, expected) in windows.iter().zip(expected) {
            let signed = |ids: &[i32]| ids.iter().copied().map(i64::from).collect::<Vec<_>>();
            assert_eq!(window.question, 5);
            assert_eq!(signed(&window.input_ids), integers(&expected["input_ids"]));
            assert_eq!(signed(window.token_type_ids.as_ref().unwrap()), integers(&expected["token_type_ids"]));
            assert_eq!(window.context_start as u64, expected["context_start"].as_u64().unwrap());
            let offsets = window.offsets.iter().map(|(from, to)| serde_json::json!([from, to])).collect::<Vec<_>>();
            assert_eq!(Value::from(offsets), expected["offsets"]);
            assert_eq!(signed(&[window.start, window.end]), integers(&expected["span"]), "{case}");
        }
    }
}

#[test]
fn a_question_without_room_for_its_context_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("vocab.txt"), "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n").unwrap();
    let tokenizer = Tokenizer::load(folder.path()).unwrap();
    let error = tokenizer.window_encoder(8, 8, true).unwrap_err().to_string();
    assert!(error.contains("data.doc_stride = 8"), "{error}");
    let encoder = tokenizer.window_encoder(8, 2, true).unwrap();
    let error = encoder.windows(0, &question("a a a", "a a a a a a a", Vec::new(), 2)).unwrap_err().to_string();
    assert!(error.contains("question q") && error.contains("too little room"), "{error}");
    assert!(encoder.windows(0, &question("a a", "a a a a a a a", Vec::new(), 2)).unwrap().len() > 1);
}

/// Numbers that look random and never tie.
fn noise(seed: u64, len: usize) -> Vec<f32> {
    let value = |i| (kiln_core::random::seed_for(seed, "noise", i, 0) % 100_003) as f32 / 1e4 - 5.0;
    (0..len as u64).map(value).collect()
}

#[test]
fn the_best_span_is_the_best_of_all() {
    let context = (0..30).map(|i| format!("w{i:02} ")).collect::<String>();
    for seed in 0..40 {
        let version = 1 + seed % 2;
        let questions = [question("?", &context, Vec::new(), version)];
        // Two windows of 20 tokens after 3 tokens of question, overlapping by 10, and one closing
        // token.
        let window = |first: usize| Window {
            question: 0,
            input_ids: vec![1; 24],
            token_type_ids: None,
            context_start: 3,
            offsets: (first..first + 20).map(|word| (word * 4, word * 4 + 3)).collect(),
            start: 0,
            end: 0,
        };
        let windows = [window(0), window(10)];
        let logits = [0, 1]
            .map(|part| SpanLogits { start: noise(seed * 4 + part * 2, 24), end: noise(seed * 4 + part * 2 + 1, 24) });
        let options = SpanOptions {
            n_best_size: 24,
            max_answer_length: 4,
            null_score_diff_threshold: 1.0,
            ..SpanOptions::default()
        };
        let mut best = (f64::NEG_INFINITY, (0, 0));
        let mut none = f64::INFINITY;
        for (window, logits) in windows.iter().zip(&logits) {
            none = none.min(f64::from(logits.start[0]) + f64::from(logits.end[0]));
            for start in 0..20 {
                for end in start..20.min(start + 4) {
                    let score = f64::from(logits.start[3 + start]) + f64::from(logits.end[3 + end]);
                    if score > best.0 {
                        best = (score, (window.offsets[start].0, window.offsets[end].1));
                    }
                }
            }
        }
        let found = &best_answers(&questions, windows, &logits, &options)[0];
        if version == 2 && none - best.0 > 1.0 {
            assert_eq!((found.span, found.text.as_str()), (None, ""));
        } else {
            assert_eq!(found.span, Some(best.1));
            assert_eq!(found.text, context[best.1.0..best.1.1]);
            assert!((found.score - best.0).abs() < 1e-9 && found.probability > 0.0 && found.probability <= 1.0);
        }
    }
}
