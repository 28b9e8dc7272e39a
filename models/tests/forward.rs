//! The inputs on which a forward pass must and must not depend: causality, padding, the key/value
//! cache, dropout.
#![allow(clippy::unwrap_used)]

use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Bool, Device, FloatDType, Int, Tensor, TensorData};
use kiln_models::layers::EmbeddingNoise;
use kiln_models::lora::{LoraConfig, LoraInit};
use kiln_models::{Compute, Head, KvCache, Model, ModelConfig, ModelInput, ModelType, Ops};
use serde_json::json;

/// Tests run in threads of one process, which share Flex's random state: whoever draws holds this.
static RANDOM: Mutex<()> = Mutex::new(());

fn hold_random() -> MutexGuard<'static, ()> {
    RANDOM.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Equal sums of f32 in another order, of values of order 1.
const ROUNDING: f32 = 2e-6;

/// A config of `kind`, with transformers' names.
fn fields(kind: ModelType) -> serde_json::Map<String, serde_json::Value> {
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
        ModelType::Llama | ModelType::Mistral | ModelType::Qwen2 | ModelType::Qwen3 | ModelType::SmolLm3 => {
            json!({"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 16,
            "intermediate_size": 24, "max_position_embeddings": 12, "vocab_size": 40, "num_labels": 3,
            "pad_token_id": null})
        }
        ModelType::DistilBert => json!({"n_layers": 2, "n_heads": 2, "dim": 16, "hidden_dim": 32,
            "max_position_embeddings": 12, "vocab_size": 40, "num_labels": 3}),
    };
    let mut fields = fields.as_object().unwrap().clone();
    let more = match kind {
        ModelType::Mistral => json!({"sliding_window": 3}),
        ModelType::Qwen2 => json!({"use_sliding_window": true, "sliding_window": 3, "max_window_layers": 1}),
        ModelType::Qwen3 => json!({"head_dim": 6}),
        ModelType::SmolLm3 => json!({"no_rope_layer_interval": 2, "use_sliding_window": true, "sliding_window": 4}),
        _ => json!({}),
    };
    fields.extend(more.as_object().unwrap().clone());
    fields.insert("initializer_range".into(), json!(0.3)); // large enough that every token matters
    fields
}

fn model(kind: ModelType, head: Head) -> Model {
    let device = Device::flex();
    let _held = hold_random();
    device.seed(3);
    let model = Model::new(&ModelConfig::from_fields(kind, &fields(kind)).unwrap(), head, &device).unwrap();
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
    use ModelType::{Gpt2, GptNeo, Llama, Mistral, Qwen2, Qwen3, SmolLm3};
    for kind in [Gpt2, GptNeo, Llama, Mistral, Qwen2, Qwen3, SmolLm3] {
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
    for kind in [ModelType::Gpt2, ModelType::Llama, ModelType::Mistral, ModelType::SmolLm3] {
        cached_together(kind);
    }
}

fn cached_together(kind: ModelType) {
    let model = model(kind, Head::CausalLm);
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
        (ModelType::Llama, Head::CausalLm),
        (ModelType::Mistral, Head::CausalLm),
        (ModelType::Qwen2, Head::SequenceClassification),
        (ModelType::Qwen3, Head::TokenClassification),
        (ModelType::SmolLm3, Head::CausalLm),
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

/// The probabilities of dropout that a config of `kind` has.
fn dropouts(kind: ModelType) -> &'static [&'static str] {
    match kind {
        ModelType::Gpt2 => &["resid_pdrop", "embd_pdrop", "attn_pdrop"],
        ModelType::GptNeo => &["resid_dropout", "embed_dropout", "attention_dropout"],
        ModelType::DistilBert => &["dropout", "attention_dropout", "seq_classif_dropout", "qa_dropout"],
        kind if kind.llama_variant().is_some() => &["attention_dropout"],
        _ => &["hidden_dropout_prob", "attention_probs_dropout_prob"],
    }
}

struct Gradients<'a>(&'a GradientsParams, Vec<Vec<f32>>);

impl ModuleVisitor for Gradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.1.extend(self.0.get::<D>(param.id).map(|gradient| gradient.try_into_vec_as::<f32>().unwrap()));
    }
}

/// The logits of `model` in training, with the masks of one seed, and the gradients of the sum of
/// their squares.
fn trained(model: &Model, input: &ModelInput) -> (Vec<f32>, Vec<Vec<f32>>) {
    Device::flex().seed(23);
    let logits = model.forward(input.clone(), true);
    let grads = GradientsParams::from_grads(logits.clone().powf_scalar(2.0).sum().backward(), model);
    let mut gradients = Gradients(&grads, Vec::new());
    model.visit(&mut gradients);
    (logits.try_into_vec_as::<f32>().unwrap(), gradients.1)
}

/// The largest difference of two lists, by the largest of their numbers.
fn relative(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let largest = b.iter().fold(1e-12f32, |most, x| most.max(x.abs()));
    a.iter().zip(b).fold(0.0f32, |most, (a, b)| most.max((a - b).abs())) / largest
}

/// Both forms of every family, with rows of padding, gaps, packed documents and adapters.
#[test]
fn both_forms_drop_the_same_elements() {
    use ModelType::{Albert, Bert, DistilBert, Electra, Gpt2, GptNeo, Llama, Mistral, Qwen2, Qwen3, Roberta, SmolLm3};
    let _held = hold_random();
    let device = Device::flex().autodiff();
    let rows: [&[i32]; 3] = [&[1, 2, 3, 4, 5, 6], &[7, 8, 9], &[4, 3, 2, 1]];
    let mut gaps = input(&[&[1, 2, 3, 4, 5], &[6, 7, 8, 9, 10]]);
    let mask = |mask: [bool; 10]| Some(Tensor::<2, Bool>::from_data(TensorData::new(mask.to_vec(), [2, 5]), &device));
    gaps.attention_mask = mask([true, true, false, true, false, true, true, true, false, false]);
    let hidden = mask([false, true, true, true, true, true, true, false, false, false]);
    let first_hidden = ModelInput { attention_mask: hidden, ..gaps.clone() };
    let positions = Tensor::from_data(TensorData::new([0, 1, 2, 0, 1, 0, 1, 0, 1, 2].to_vec(), [2, 5]), &device);
    let documents = ModelInput { attention_mask: None, position_ids: Some(positions), ..gaps.clone() };
    let inputs = [padded(&rows, 39), gaps, first_hidden, input(&[&[1, 2, 3, 4]])];
    let cases = [
        (Gpt2, Head::CausalLm),
        (Gpt2, Head::SequenceClassification),
        (GptNeo, Head::CausalLm),
        (Bert, Head::MaskedLm),
        (Bert, Head::SequenceClassification),
        (Bert, Head::MultipleChoice),
        (Bert, Head::TokenClassification),
        (Bert, Head::QuestionAnswering),
        (Roberta, Head::SequenceClassification),
        (Electra, Head::SequenceClassification),
        (Albert, Head::SequenceClassification),
        (DistilBert, Head::SequenceClassification),
        (DistilBert, Head::QuestionAnswering),
        (Llama, Head::CausalLm),
        (Mistral, Head::CausalLm),
        (Qwen2, Head::SequenceClassification),
        (Qwen3, Head::TokenClassification),
        (SmolLm3, Head::CausalLm),
    ];
    for (kind, head) in cases {
        let target_modules = match kind {
            Gpt2 => ["c_attn", "c_proj"],
            DistilBert => ["q_lin", "v_lin"],
            GptNeo => ["q_proj", "c_fc"],
            Albert => ["embedding_hidden_mapping_in", "value"],
            Electra => ["embeddings_project", "key"],
            Llama | Mistral | Qwen2 | Qwen3 | SmolLm3 => ["k_proj", "down_proj"],
            _ => ["value", "dense"],
        };
        let adapters = LoraConfig {
            lora_dropout: 0.3,
            target_modules: target_modules.map(String::from).to_vec(),
            init_lora_weights: LoraInit::Random,
            ..LoraConfig::default()
        };
        let mut fields = fields(kind);
        for name in dropouts(kind) {
            fields.insert((*name).into(), json!(0.3));
        }
        let config = ModelConfig::from_fields(kind, &fields).unwrap();
        device.seed(3);
        let whole = Model::new(&config, head, &device).unwrap();
        whole.forward(input(&[&[1, 2, 3]]), false); // weights are drawn when they are first used
        let with = |adapters: &LoraConfig| {
            let adapted = whole.clone().with_lora(adapters).unwrap().with_begun_adapters();
            adapted.forward(input(&[&[1, 2, 3]]), false);
            adapted
        };
        let adapted = with(&adapters);
        let dora = with(&LoraConfig { use_dora: true, ..adapters });
        let documents = config.is_decoder().then_some(&documents);
        for (plain, input) in [&whole, &adapted, &dora].iter().flat_map(|model| {
            let model = *model;
            inputs.iter().chain(documents).map(move |input| (model, input))
        }) {
            let fused = plain.clone().with_ops(Ops::fused(&device).unwrap());
            let (expected, expected_gradients) = trained(plain, input);
            let (logits, gradients) = trained(&fused, input);
            let place = format!("{kind} {head:?} {input:?}");
            let without = plain.forward(input.clone(), false).try_into_vec_as::<f32>().unwrap();
            assert!(relative(&expected, &without) > 1e-2, "nothing was dropped: {place}");
            // A few dozen sums in another order; one element dropped otherwise is some 1e-2.
            assert!(relative(&logits, &expected) < 1e-5, "{place}: {}", relative(&logits, &expected));
            let [all, all_expected] = [gradients, expected_gradients].map(|gradients| gradients.concat());
            assert!(relative(&all, &all_expected) < 2e-5, "{place}: {}", relative(&all, &all_expected));
        }
    }
}

/// The noise of NEFTune against transformers' hook (`neftune_post_forward_hook`):
/// `zeros.uniform_(-m, m)` with `m = alpha / sqrt(seq * width)`, in training alone.
#[test]
fn noise_on_the_token_embedding_is_even_within_its_bound_and_absent_in_evaluation() {
    let (alpha, rows) = (5.0, (0..64).map(|row| (0..12).map(|i| (row * 7 + i) % 40).collect::<Vec<i32>>()));
    let rows = rows.collect::<Vec<_>>();
    let rows = input(&rows.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let bound = alpha / (12.0f64 * 16.0).sqrt();
    let mut fields = fields(ModelType::Gpt2);
    fields.insert("embd_pdrop".into(), json!(0.0));
    let config = ModelConfig::from_fields(ModelType::Gpt2, &fields).unwrap();
    let device = Device::flex();
    let held = hold_random();
    device.seed(3);
    let plain = Model::new(&config, Head::CausalLm, &device).unwrap();
    plain.forward(input(&[&[1, 2, 3]]), false);
    let noisy = |ops: Ops| {
        let compute = Compute::new(ops, FloatDType::F32);
        plain.clone().with_compute(compute).with_embedding_noise(EmbeddingNoise(Some(alpha)))
    };
    let embedded = |model: &Model, train: bool, seed: u64| {
        device.seed(seed);
        let pass = model.pass(train);
        model.embed(&rows, &model.rows(&rows, pass), pass).try_into_vec_as::<f32>().unwrap()
    };
    let without = embedded(&plain, true, 1);
    let with = embedded(&noisy(Ops::Plain), true, 1);
    let noise = with.iter().zip(&without).map(|(with, without)| f64::from(with - without)).collect::<Vec<_>>();
    let count = noise.len() as f64;
    let mean = noise.iter().sum::<f64>() / count;
    let variance = noise.iter().map(|x| x * x).sum::<f64>() / count;
    let largest = noise.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
    // 12,288 draws: the largest lies within 1e-3 of the bound but for one in 4e5, the mean within
    // five and the variance within four of their standard deviations. Sums round at 1e-7.
    assert!(largest <= bound + 1e-6 && largest > 0.999 * bound, "{largest}, {bound}");
    assert!(mean.abs() < 5.0 * bound / (3.0 * count).sqrt(), "{mean}");
    let expected = bound * bound / 3.0;
    assert!((variance - expected).abs() < 4.0 * bound * bound * (4.0 / 45.0 / count).sqrt(), "{variance}, {expected}");
    assert_eq!(with, embedded(&noisy(Ops::Fused), true, 1), "both modes add the same");
    assert_ne!(with, embedded(&noisy(Ops::Plain), true, 2), "another seed");
    assert_eq!(without, embedded(&noisy(Ops::Plain), false, 1), "evaluation");
    drop(held);
    // BERT's embeddings go on to a LayerNorm.
    let bert = model(ModelType::Bert, Head::MaskedLm);
    let held = hold_random();
    let noisy = bert.clone().with_embedding_noise(EmbeddingNoise(Some(alpha)));
    assert_ne!(embedded(&bert, true, 1), embedded(&noisy, true, 1));
    assert_eq!(embedded(&bert, false, 1), embedded(&noisy, false, 1));
    drop(held);
}
