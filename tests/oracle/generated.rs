//! Texts that a cache of keys and values writes greedily, against those of `generate` of
//! `transformers` (made by tests/fixtures/make_llama.py).

use burn::tensor::{Device, Int, Tensor, TensorData};
use kiln_models::weights::load;
use kiln_models::{Head, KvCache, Model, ModelConfig, Ops};
use serde_json::Value;

use crate::common::{fixture, json};

/// The tokens of a list.
fn tokens(value: &Value) -> Vec<i32> {
    value.as_array().unwrap().iter().map(|token| token.as_i64().unwrap() as i32).collect()
}

#[test]
fn llama_and_its_variants_write_what_transformers_writes() {
    let device = Device::flex();
    for variant in ["llama", "mistral", "qwen2", "qwen3", "smollm3"] {
        let case = fixture(&format!("{variant}-lm"));
        let config = std::fs::read_to_string(case.join("model/config.json")).unwrap();
        let config = ModelConfig::from_json(&config).unwrap().0;
        let model = Model::new(&config, Head::CausalLm, &device).unwrap();
        let (model, report) = load(model, &case.join("model")).unwrap();
        assert!(report.new.is_empty() && report.unused.is_empty(), "{variant}: {report:?}");
        for ops in [Ops::Plain, Ops::fused(&device).unwrap()] {
            let model = model.clone().with_ops(ops);
            for text in json(&case.join("generated.json")).as_array().unwrap() {
                let (mut cache, mut next, mut made) = (KvCache::default(), tokens(&text["prompt"]), Vec::new());
                let expected = tokens(&text["follows"]);
                while made.len() < expected.len() {
                    let count = next.len();
                    let ids = Tensor::<2, Int>::from_data(TensorData::new(next, [1, count]), &device);
                    let logits = model.next_logits(ids, &mut cache, model.pass(false)).unwrap();
                    let best = logits.argmax(1).into_data().iter::<i64>().next().unwrap() as i32;
                    made.push(best);
                    next = vec![best];
                }
                assert_eq!(made, expected, "{variant} {ops:?}");
            }
        }
    }
}
