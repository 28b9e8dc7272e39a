//! Rows that no output depends on are not computed: padding, and in the last layer all tokens but
//! the first. A fused BERT that classifies gives the logits and the gradients of the plain one,
//! which computes every row.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Bool, Device, FloatDType, Int, Tensor, TensorData};
use kiln_models::{Compute, Head, Model, ModelConfig, ModelInput, ModelType, Operator, Ops};
use serde_json::json;

const WIDTH: usize = 16;

fn model(kind: ModelType, head: Head, device: &Device) -> Model {
    let fields = match kind {
        ModelType::DistilBert => json!({"n_layers": 2, "n_heads": 2, "dim": WIDTH, "hidden_dim": 32,
            "max_position_embeddings": 12, "vocab_size": 40, "num_labels": 3, "dropout": 0.0, "attention_dropout": 0.0,
            "seq_classif_dropout": 0.0}),
        ModelType::Albert => json!({"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": WIDTH,
            "embedding_size": 8, "intermediate_size": 32, "max_position_embeddings": 12, "vocab_size": 40, "num_labels": 3,
            "classifier_dropout_prob": 0.0}),
        _ => json!({"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": WIDTH, "intermediate_size": 32,
            "max_position_embeddings": 12, "vocab_size": 40, "num_labels": 3, "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0}),
    };
    let mut fields = fields.as_object().unwrap().clone();
    fields.insert("initializer_range".into(), json!(0.3)); // large enough that every token matters
    device.seed(3);
    let model = Model::new(&ModelConfig::from_fields(kind, &fields).unwrap(), head, device).unwrap();
    model.forward(input(&[&[true; 3]]), false); // its weights are drawn when they are first used
    model
}

/// Rows of 3 tokens and more with this mask.
fn input(mask: &[&[bool]]) -> ModelInput {
    let (rows, seq) = (mask.len(), mask[0].len());
    let ids = (0..rows * seq).map(|i| (i * 7 % 37) as i32 + 2).collect::<Vec<_>>();
    let device = Device::flex();
    let mask = Tensor::<2, Bool>::from_data(TensorData::new(mask.concat(), [rows, seq]), &device);
    let input_ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [rows, seq]), &device);
    ModelInput { input_ids, attention_mask: Some(mask), token_type_ids: None, position_ids: None }
}

struct Gradients<'a>(&'a GradientsParams, Vec<Vec<f32>>);

impl ModuleVisitor for Gradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.0.get::<D>(param.id) {
            self.1.push(gradient.into_data().try_to_vec().unwrap());
        }
    }
}

/// Logits, how many rows go through each layer and out of the last, and the gradients of all
/// parameters.
fn computed(model: &Model, input: &ModelInput) -> (Vec<f32>, [usize; 3], Vec<Vec<f32>>) {
    let pass = model.pass(true);
    let rows = model.rows(input, pass);
    let embedded = model.embed(input, &rows, pass);
    let first = model.block(0, embedded.clone(), &rows, pass);
    let last = model.block(1, first.clone(), &rows, pass);
    let rows = [embedded, first, last].map(|x| x.dims()[0]);
    let logits = model.forward(input.clone(), true);
    let grads = GradientsParams::from_grads((logits.clone().powf_scalar(2.0)).sum().backward(), model);
    let mut gradients = Gradients(&grads, Vec::new());
    model.visit(&mut gradients);
    (logits.into_data().try_to_vec().unwrap(), rows, gradients.1)
}

fn relative_l2(a: &[f32], b: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let size = norm(&mut b.iter().map(|x| f64::from(*x)));
    norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(a - b))) / size.max(1e-12)
}

#[test]
fn what_is_left_out_changes_nothing() {
    let (t, f) = (true, false);
    let masks: [(&[&[bool]], usize); 5] = [
        // Padding on the right, one token, none, and a gap in the middle.
        (&[&[t, t, f, f, f], &[t, f, f, f, f], &[t, t, t, t, t]], 8),
        (&[&[t, t, f, t, f], &[t, t, t, f, f]], 6),
        (&[&[t, f, f]], 1),
        // Nothing to leave out.
        (&[&[t, t, t], &[t, t, t]], 6),
        // A first token that is masked is read: all rows stay.
        (&[&[f, t, t, t], &[t, t, f, f]], 8),
    ];
    for kind in [ModelType::Bert, ModelType::Roberta, ModelType::DistilBert, ModelType::Electra, ModelType::Albert] {
        let device = Device::flex().autodiff();
        let plain = model(kind, Head::SequenceClassification, &device);
        let fused = plain.clone().with_ops(Ops::fused(&device).unwrap());
        for (mask, tokens) in masks {
            agrees(&plain, &fused, &input(mask), [tokens, tokens, mask.len()]);
        }
        let unmasked = ModelInput { attention_mask: None, ..input(&[&[t; 4], &[t; 4]]) };
        agrees(&plain, &fused, &unmasked, [8, 8, 2]);
        agrees(&plain, &fused, &input(&[&[t, t, t, f]]), [3, 3, 1]);

        // Attention alone, and everything else: the first leaves out, the second computes all.
        let (attention, others) = Operator::ALL.into_iter().partition::<Vec<_>, _>(|op| *op == Operator::Attention);
        let [attention, others] =
            [attention, others].map(|ops| plain.clone().with_ops(Ops::fused(&device).unwrap().only(ops)));
        agrees(&plain, &attention, &input(masks[0].0), [8, 8, 3]);
        agrees(&plain, &others, &input(masks[0].0), [15; 3]);
    }
}

/// Both give the same logits and gradients; the fused one computes so many rows.
#[track_caller]
fn agrees(plain: &Model, fused: &Model, input: &ModelInput, expected_rows: [usize; 3]) {
    let [batch, seq] = input.input_ids.dims();
    let (expected, all, expected_gradients) = computed(plain, input);
    let (logits, rows, gradients) = computed(fused, input);
    assert_eq!((all, rows), ([batch * seq; 3], expected_rows), "{input:?}");
    // Sums in another order over 2 layers: some 2^-24 of each of a few dozen terms.
    assert!(relative_l2(&logits, &expected) < 1e-5, "{input:?}");
    assert_eq!(gradients.len(), expected_gradients.len());
    let largest = expected_gradients.iter().flatten().fold(0.0f32, |most, x| most.max(x.abs()));
    for (gradient, expected) in gradients.iter().zip(&expected_gradients) {
        // Of a key's bias the gradient is 0, and what rounding leaves of it compares with nothing.
        let size = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let is_none = size < 1e-5 * largest && gradient.iter().all(|x| x.abs() < 1e-4 * largest);
        assert!(is_none || relative_l2(gradient, expected) < 1e-4, "{input:?}");
    }
}

#[test]
fn narrow_types_leave_out_the_same() {
    let device = Device::flex().autodiff();
    let plain = model(ModelType::Bert, Head::SequenceClassification, &device);
    let input = input(&[&[true, true, false, true, false], &[true, true, true, false, false]]);
    let (exact, _, exact_gradients) = computed(&plain, &input);
    for (dtype, rounding) in [(FloatDType::BF16, 2f64.powi(-8)), (FloatDType::F16, 2f64.powi(-11))] {
        let compute = Compute::new(Ops::fused(&device).unwrap(), dtype);
        let (logits, rows, gradients) = computed(&plain.clone().with_compute(compute), &input);
        assert_eq!(rows, [6, 6, 2], "{dtype:?}");
        // A few roundings one after the other.
        assert!(relative_l2(&logits, &exact) < 8.0 * rounding, "{dtype:?}");
        let [all, all_exact] = [&gradients, &exact_gradients].map(|gradients| gradients.concat());
        assert!(relative_l2(&all, &all_exact) < 16.0 * rounding, "{dtype:?}: {}", relative_l2(&all, &all_exact));
    }
}

#[test]
fn heads_that_read_every_token_keep_every_row() {
    let device = Device::flex().autodiff();
    for head in [Head::MaskedLm, Head::QuestionAnswering] {
        let model = model(ModelType::Bert, head, &device).with_ops(Ops::fused(&device).unwrap());
        let (_, rows, _) = computed(&model, &input(&[&[true, true, false, false], &[true; 4]]));
        assert_eq!(rows, [8; 3], "{head:?}");
    }
}

/// A row with a mask beside a row of several documents: each has the logits and the gradients that
/// it has alone.
#[test]
fn a_mask_beside_several_documents_hides_what_it_hides_alone() {
    let (t, f) = (true, false);
    let device = Device::flex().autodiff();
    let sizes = json!({"n_layer": 2, "n_head": 2, "n_embd": WIDTH, "n_positions": 12, "vocab_size": 40, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0, "initializer_range": 0.3});
    let neo = json!({"num_layers": 2, "num_heads": 2, "hidden_size": WIDTH, "max_position_embeddings": 12, "vocab_size": 40,
        "window_size": 2, "attention_types": [[["global", "local"], 1]], "resid_dropout": 0.0, "embed_dropout": 0.0,
        "attention_dropout": 0.0, "initializer_range": 0.3});
    let mut wide = neo.clone();
    wide["window_size"] = json!(3); // as long as the longest document
    for (kind, fields) in [(ModelType::Gpt2, sizes), (ModelType::GptNeo, neo), (ModelType::GptNeo, wide)] {
        device.seed(3);
        let config = ModelConfig::from_fields(kind, fields.as_object().unwrap()).unwrap();
        let plain = Model::new(&config, Head::CausalLm, &device).unwrap();
        plain.forward(input(&[&[t; 3]]), false);
        let mut of_documents = Vec::new();
        for model in [plain.clone(), plain.with_ops(Ops::fused(&device).unwrap())] {
            for mask in [[t, f, t, t, f, f], [f, f, t, t, t, t], [t, t, t, f, f, f], [f; 6]] {
                let both = input(&[&[t; 6], &mask]);
                let row = |index: usize| {
                    let ids = both.input_ids.clone().slice([index..index + 1, 0..6]);
                    let mask = both.attention_mask.clone().map(|mask| mask.slice([index..index + 1, 0..6]));
                    ModelInput { input_ids: ids, attention_mask: mask, ..both.clone() }
                };
                let positions = |of: &[i32]| {
                    let rows = of.len() / 6;
                    Some(Tensor::<2, Int>::from_data(TensorData::new(of.to_vec(), [rows, 6]), &Device::flex()))
                };
                let packed = [0, 1, 2, 0, 1, 0];
                let alone = ModelInput { position_ids: positions(&packed), ..row(0) };
                let together = positions(&[packed, [0, 1, 2, 3, 4, 5]].concat());
                let (logits, _, gradients) = computed(&model, &ModelInput { position_ids: together, ..both.clone() });
                let (first, _, of_first) = computed(&model, &alone);
                of_documents.push(first.clone());
                // A query that sees no key attends as in transformers where positions are given,
                // and evenly without.
                let sees_all = mask[0] && kind == ModelType::Gpt2;
                let second =
                    ModelInput { position_ids: positions(&[0, 1, 2, 3, 4, 5]).filter(|_| !sees_all), ..row(1) };
                let (second, _, of_second) = computed(&model, &second);
                let apart = relative_l2(&logits, &[first, second].concat());
                assert!(apart < 1e-5, "{kind} {mask:?}: {apart}");
                for (gradient, expected) in gradients.iter().zip(of_first.iter().zip(&of_second)) {
                    let expected = expected.0.iter().zip(expected.1).map(|(a, b)| a + b).collect::<Vec<_>>();
                    // Of a key's bias the gradient is 0 but for rounding.
                    let size = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                    assert!(size < 1e-2 || relative_l2(gradient, &expected) < 1e-4, "{kind} {mask:?}");
                }
            }
        }
        let [plain, .., fused] = &of_documents[..] else { panic!("{}", of_documents.len()) };
        assert!(relative_l2(fused, plain) < 1e-5, "{kind}: {}", relative_l2(fused, plain));
    }
}
