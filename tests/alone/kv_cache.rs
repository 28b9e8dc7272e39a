//! A key/value cache is written in place: a token costs what it computes, and not a copy of what
//! was seen.

use burn::tensor::{Device, Int, Tensor, TensorData};
use kiln_models::{Head, KvCache, Model, ModelConfig, ModelType};
use serde_json::json;

use crate::counting::allocated;

#[test]
fn a_token_copies_nothing_of_what_was_seen() {
    if crate::ran_alone(module_path!(), "a_token_copies_nothing_of_what_was_seen") {
        return;
    }
    let (layers, width) = (4, 256);
    let fields = json!({"n_layer": layers, "n_head": 4, "n_embd": width, "n_positions": 512, "vocab_size": 32});
    let config = ModelConfig::from_fields(ModelType::Gpt2, fields.as_object().unwrap()).unwrap();
    let device = Device::flex();
    let model = Model::new(&config, Head::CausalLm, &device).unwrap();
    let mut cache = KvCache::default();
    let ids = |count: usize| Tensor::<2, Int>::from_data(TensorData::new(vec![1; count], [1, count]), &device);
    let mut bytes = Vec::new();
    model.next_logits(ids(10), &mut cache, model.pass(false)).unwrap();
    while cache.len() < 500 {
        let before = allocated();
        model.next_logits(ids(1), &mut cache, model.pass(false)).unwrap();
        bytes.push((cache.len(), cache.capacity(), allocated() - before));
    }
    // Places are doubled, from 64 on.
    let grown = bytes.windows(2).filter(|pair| pair[0].1 != pair[1].1).map(|pair| pair[1].0).collect::<Vec<_>>();
    assert_eq!(grown, [65, 129, 257]);
    // Between two doublings a token allocates its own activations, and the scores of each head: no
    // keys and values.
    let of = |len: usize| bytes.iter().find(|token| token.0 == len).unwrap().2;
    let seen = (layers * 2 * width * 4 * (490 - 300)) as isize;
    let more = of(490) - of(300);
    assert!(more < seen / 10, "190 tokens more to see cost {more} bytes more, of {seen} that they have in the cache");
}
