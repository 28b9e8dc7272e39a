//! The inputs on which a forward pass must and must not depend: causality, padding, the key/value
//! cache, dropout.
#![allow(clippy::unwrap_used)]

use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use kiln_models::{Head, KvCache, Model, ModelConfig, ModelInput, ModelType};
use serde_json::json;

/// Tests run in threads of one process, which share Flex's random state: whoever draws holds this.
static RANDOM: Mutex<()> = Mutex::new(());

fn hold_random() -> MutexGuard<'static, ()> {
    RANDOM.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Equal sums of f32 in another order, of values of order 1.
const ROUNDING: f32 = 2e-6;

fn model(kind: ModelType, head: Head) -> Model {
    let fields = match kind {
        ModelType::Gpt2 => json!({"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 12, "vocab_size": 40}),
        ModelType::GptNeo => json!({"num_layers": 2, "num_heads": 2, "hidden_size": 16, "max_position_embeddings": 12,
            "vocab_size": 40, "window_size": 3, "attention_types": [[["local", "global"], 1]]}),
        ModelType::Electra | ModelType::Albert => {
            json!({"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "embedding_size": 8,
            "intermediate_size": 32, "max_position_embeddings": 12, "vocab_size": 40, "num_labels": 3})
        }
        ModelType::Bert | ModelType::Roberta | ModelType::Camembert | ModelType::XlmRoberta => {
            json!({"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16,
            "intermediate_size": 32, "max_position_embeddings": 12, "vocab_size": 40, "num_labels": 3})
        }
        ModelType::DistilBert => json!({"n_layers": 2, "n_heads": 2, "dim": 16, "hidden_dim": 32,
            "max_position_embeddings": 12, "vocab_size": 40, "num_labels": 3}),
    };
    let mut fields = fields.as_object().unwrap().clone();
    fields.insert("initializer_range".into(), json!(0.3)); // large enough that every token matters
    let device = Device::flex();
    let _held = hold_random();
    device.seed(3);
    let model = Model::new(&ModelConfig::from_fields(kind, &fields).unwrap(), head, &device).unwrap();
    model.forward(input(&[&[1, 2, 3]]), false); // weights are drawn when they are first used
    model
}

fn ids(rows: &[&[i32]]) -> Tensor<2, Int> {
    Tensor::from_data(TensorData::new(rows.concat(), [rows.len(), rows[0].len()]), &Device::flex())
}

fn input(rows: &[&[i32]]) -> ModelInput {
    ModelInput { input_ids: ids(rows), attention_mask: None, token_type_ids: None, position_ids: None }
}

/// Rows padded on the right with `padding` to one length, with their mask.
fn padded(rows: &[&[i32]], padding: i32) -> ModelInput {
    let longest = rows.iter().map(|row| row.len()).max().unwrap();
    let filled = rows.iter().map(|row| {
        let mut row = row.to_vec();
        row.resize(longest, padding);
        row
    });
    let filled = filled.collect::<Vec<_>>();
    let mask = rows.iter().flat_map(|row| (0..longest).map(|i| i < row.len())).collect::<Vec<bool>>();
    let mask = Tensor::<2, Bool>::from_data(TensorData::new(mask, [rows.len(), longest]), &Device::flex());
    let filled = filled.iter().map(Vec::as_slice).collect::<Vec<_>>();
    ModelInput { attention_mask: Some(mask), ..input(&filled) }
}

fn read(logits: Tensor<2>) -> Vec<Vec<f32>> {
    let width = logits.dims()[1];
    logits.try_into_vec_as::<f32>().unwrap().chunks(width).map(<[f32]>::to_vec).collect()
}

fn close(a: &[Vec<f32>], b: &[Vec<f32>]) {
    assert_eq!(a.len(), b.len());
    let worst = a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < ROUNDING, "off by {worst}");
}

#[test]
fn a_later_token_changes_no_earlier_logit() {
    let model = model(ModelType::Gpt2, Head::CausalLm);
    let first = read(model.forward(input(&[&[1, 2, 3, 4, 5, 6]]), false));
    let second = read(model.forward(input(&[&[1, 2, 3, 9, 5, 6]]), false));
    assert_eq!(first[..3], second[..3]);
    for position in 3..6 {
        assert_ne!(first[position], second[position], "position {position} sees token 3");
    }
}

#[test]
fn berts_tokens_see_each_other() {
    let model = model(ModelType::Bert, Head::MaskedLm);
    let first = read(model.forward(input(&[&[1, 2, 3, 4]]), false));
    let second = read(model.forward(input(&[&[1, 2, 3, 9]]), false));
    assert!((0..4).all(|position| first[position] != second[position]));
}

#[test]
fn a_cache_gives_the_logits_of_the_whole_text() {
    for kind in [ModelType::Gpt2, ModelType::GptNeo] {
        cached_in_pieces(kind);
    }
}

fn cached_in_pieces(kind: ModelType) {
    let model = model(kind, Head::CausalLm);
    assert!(model.generates());
    let text = [5, 1, 7, 3, 2, 8, 4];
    let whole = read(model.forward(input(&[&text]), false));
    for cuts in [&[7][..], &[3, 1, 1, 1, 1], &[1, 1, 1, 1, 1, 1, 1], &[2, 3, 2]] {
        let (mut cache, mut start, mut parts) = (KvCache::default(), 0, Vec::new());
        assert!(cache.is_empty());
        for length in cuts {
            let part = &text[start..start + length];
            parts.extend(read(model.forward_cached(ids(&[part]), &mut cache, model.pass(false)).unwrap()));
            start += length;
            assert_eq!(cache.len(), start);
        }
        close(&parts, &whole);
    }
}

#[test]
fn rows_of_other_lengths_have_their_own_logits_from_a_cache() {
    let model = model(ModelType::Gpt2, Head::CausalLm);
    let texts: [&[i32]; 3] = [&[5, 1, 7, 3], &[2], &[4, 9]];
    let more = [[8, 3, 6], [1, 1, 2], [7, 30, 5]];
    let mut alone = Vec::new();
    for (text, more) in texts.iter().zip(more) {
        let mut cache = KvCache::default();
        let mut next = |ids: Tensor<2, Int>| read(model.next_logits(ids, &mut cache, model.pass(false)).unwrap());
        let mut logits = next(ids(&[text]));
        more.iter().for_each(|id| logits.extend(next(ids(&[&[*id]]))));
        let whole = [*text, &more].concat();
        close(&logits, &read(model.forward(input(&[&whole]), false))[text.len() - 1..]);
        alone.push(logits);
    }
    let mut cache = KvCache::left_padded(texts.iter().map(|text| 4 - text.len()).collect());
    let padded = texts.map(|text| [&[0, 0, 0, 0][text.len()..], text].concat());
    let steps = std::iter::once(padded).chain((0..3).map(|at| more.map(|more| vec![more[at]])));
    for (at, step) in steps.enumerate() {
        let step = step.iter().map(Vec::as_slice).collect::<Vec<_>>();
        let logits = read(model.next_logits(ids(&step), &mut cache, model.pass(false)).unwrap());
        for (row, alone) in logits.iter().zip(&alone) {
            close(std::slice::from_ref(row), std::slice::from_ref(&alone[at]));
        }
    }
}

#[test]
fn padding_changes_nothing() {
    let rows: [&[i32]; 3] = [&[1, 2, 3, 4, 5, 6], &[7, 8, 9], &[4, 3, 2, 1]];
    for (kind, head) in [
        (ModelType::Gpt2, Head::CausalLm),
        (ModelType::Gpt2, Head::SequenceClassification),
        (ModelType::GptNeo, Head::CausalLm),
        (ModelType::GptNeo, Head::SequenceClassification),
        (ModelType::Bert, Head::MaskedLm),
        (ModelType::Bert, Head::SequenceClassification),
        (ModelType::Bert, Head::QuestionAnswering),
        (ModelType::Roberta, Head::MaskedLm),
        (ModelType::Roberta, Head::SequenceClassification),
        (ModelType::Electra, Head::MaskedLm),
        (ModelType::Albert, Head::SequenceClassification),
        (ModelType::DistilBert, Head::QuestionAnswering),
        (ModelType::DistilBert, Head::SequenceClassification),
    ] {
        let model = model(kind, head);
        let together = read(model.forward(padded(&rows, 39), false));
        let per_row = together.len() / rows.len();
        for (i, row) in rows.iter().enumerate() {
            let alone = read(model.forward(input(&[row]), false));
            let of_row = &together[i * per_row..][..alone.len()];
            close(of_row, &alone);
        }
    }
}

#[test]
fn dropout_is_for_training_only() {
    for (kind, head) in [
        (ModelType::Gpt2, Head::CausalLm),
        (ModelType::Bert, Head::SequenceClassification),
        (ModelType::Roberta, Head::MaskedLm),
        (ModelType::DistilBert, Head::QuestionAnswering),
    ] {
        let model = model(kind, head);
        let _held = hold_random();
        let run = |train: bool| read(model.forward(input(&[&[1, 2, 3, 4]]), train));
        assert_eq!(run(false), run(false));
        assert_ne!(run(true), run(true), "two draws");
        let seeded = || {
            Device::flex().seed(11);
            run(true)
        };
        assert_eq!(seeded(), seeded());
    }
}
