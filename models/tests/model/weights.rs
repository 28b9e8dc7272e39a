//! Weights in and out: names of every head against checkpoints that `transformers` wrote,
//! byte-exact round trips, and what loading reports or refuses.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use kiln_models::weights::{LoadReport, NamedTensor, load, parameters, save, write_safetensors};
use kiln_models::{Head, Model, ModelConfig};
use safetensors::SafeTensors;

fn fixture(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/oracle").join(case).join("model")
}

/// Name -> shape and bytes.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

fn read(folder: &Path) -> Tensors {
    let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    file.tensors().into_iter().map(|(name, view)| (name, (view.shape().to_vec(), view.data().to_vec()))).collect()
}

fn write(folder: &Path, tensors: &Tensors) {
    let tensors = tensors.iter().map(|(name, (shape, bytes))| NamedTensor {
        name: name.clone(),
        shape: shape.clone(),
        data: bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
    });
    write_safetensors(&folder.join("model.safetensors"), &tensors.collect::<Vec<_>>()).unwrap();
}

fn model(case: &str, head: Head) -> Model {
    let (config, _) =
        ModelConfig::from_json(&std::fs::read_to_string(fixture(case).join("config.json")).unwrap()).unwrap();
    Model::new(&config, head, &Device::flex()).unwrap()
}

/// Loads the fixture's tensors, changed, and gives the report and what is saved from the model
/// then.
fn changed(case: &str, head: Head, change: impl FnOnce(&mut Tensors)) -> Result<(LoadReport, Tensors), String> {
    let folder = tempfile::tempdir().unwrap();
    let mut tensors = read(&fixture(case));
    change(&mut tensors);
    write(folder.path(), &tensors);
    let (model, report) = load(model(case, head), folder.path()).map_err(|error| error.to_string())?;
    let out = tempfile::tempdir().unwrap();
    save(&model, out.path()).unwrap();
    Ok((report, read(out.path())))
}

fn renamed(tensors: &mut Tensors, rename: impl Fn(&str) -> String) {
    *tensors = std::mem::take(tensors).into_iter().map(|(name, tensor)| (rename(&name), tensor)).collect();
}

const HEADS: [(&str, Head); 12] = [
    ("gpt2-lm", Head::CausalLm),
    ("gpt2-classification", Head::SequenceClassification),
    ("bert-mlm", Head::MaskedLm),
    ("bert-classification", Head::SequenceClassification),
    ("bert-regression", Head::SequenceClassification),
    ("bert-qa", Head::QuestionAnswering),
    ("roberta-mlm", Head::MaskedLm),
    ("roberta-classification", Head::SequenceClassification),
    ("roberta-qa", Head::QuestionAnswering),
    ("distilbert-mlm", Head::MaskedLm),
    ("distilbert-classification", Head::SequenceClassification),
    ("distilbert-qa", Head::QuestionAnswering),
];

#[test]
fn names_and_shapes_of_every_head_are_those_of_transformers() {
    for (case, head) in HEADS {
        let mut found = parameters(&model(case, head)).into_iter().map(|p| (p.name, p.shape)).collect::<Vec<_>>();
        found.sort();
        let expected = read(&fixture(case)).into_iter().map(|(name, (shape, _))| (name, shape)).collect::<Vec<_>>();
        assert_eq!(found, expected, "{case}");
    }
}

#[test]
fn what_is_loaded_and_saved_is_the_same_byte_for_byte() {
    for (case, head) in HEADS {
        let original = read(&fixture(case));
        let (report, saved) = changed(case, head, |_| ()).unwrap();
        assert_eq!(report, LoadReport { loaded: original.len(), ..LoadReport::default() }, "{case}");
        assert!(saved == original, "{case}: other bytes");
    }
}

#[test]
fn older_and_shorter_names_load_the_same() {
    let (gpt2, bert) = (read(&fixture("gpt2-lm")), read(&fixture("bert-mlm")));
    let bare = |tensors: &mut Tensors| renamed(tensors, |name| name.trim_start_matches("transformer.").to_string());
    assert!(changed("gpt2-lm", Head::CausalLm, bare).unwrap().1 == gpt2);
    let bare = |tensors: &mut Tensors| renamed(tensors, |name| name.trim_start_matches("bert.").to_string());
    assert!(changed("bert-mlm", Head::MaskedLm, bare).unwrap().1 == bert);
    let old =
        |name: &str| name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
    assert!(changed("bert-mlm", Head::MaskedLm, |tensors| renamed(tensors, old)).unwrap().1 == bert);
}

#[test]
fn a_head_of_which_nothing_is_there_is_new() {
    let without = |tensors: &mut Tensors| tensors.retain(|name, _| !name.starts_with("classifier."));
    let (report, _) = changed("bert-classification", Head::SequenceClassification, without).unwrap();
    assert_eq!(report.new, ["classifier.weight", "classifier.bias"]);
    assert_eq!(report.lines(), ["new, not in the checkpoint: classifier.* (2 tensors)"]);
    // Half a head is a damaged file.
    let half = |tensors: &mut Tensors| drop(tensors.remove("classifier.bias"));
    let error = changed("bert-classification", Head::SequenceClassification, half).unwrap_err();
    assert!(error.contains("1 of 41 tensors missing (classifier.bias)"), "{error}");
    let body = |tensors: &mut Tensors| drop(tensors.remove("bert.pooler.dense.bias"));
    let error = changed("bert-classification", Head::SequenceClassification, body).unwrap_err();
    assert!(error.contains("bert.pooler.dense.bias"), "{error}");
}

#[test]
fn tensors_that_nothing_uses_are_listed_and_buffers_are_not() {
    let add = |tensors: &mut Tensors| {
        let one = (vec![1], 1f32.to_le_bytes().to_vec());
        for name in ["cls.seq_relationship.bias", "transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"] {
            tensors.insert(name.into(), one.clone());
        }
    };
    let (report, _) = changed("gpt2-lm", Head::CausalLm, add).unwrap();
    assert_eq!(report.unused, ["cls.seq_relationship.bias"]);
    assert_eq!(report.lines(), ["in the checkpoint, unused: cls.* (1 tensor)"]);
}

#[test]
fn tied_tensors_may_be_there_twice_if_they_are_equal() {
    let twice = |tensors: &mut Tensors| {
        let words = tensors["transformer.wte.weight"].clone();
        tensors.insert("lm_head.weight".into(), words);
    };
    let (report, saved) = changed("gpt2-lm", Head::CausalLm, twice).unwrap();
    assert!(report.unused.is_empty() && !saved.contains_key("lm_head.weight"));
    let elsewhere = |tensors: &mut Tensors| {
        renamed(tensors, |name| if name == "transformer.wte.weight" { "lm_head.weight".into() } else { name.into() });
    };
    assert!(changed("gpt2-lm", Head::CausalLm, elsewhere).unwrap().1 == saved);
    let differs = |tensors: &mut Tensors| {
        twice(tensors);
        tensors.get_mut("lm_head.weight").unwrap().1[0] ^= 1;
    };
    let error = changed("gpt2-lm", Head::CausalLm, differs).unwrap_err();
    assert!(error.contains("lm_head.weight differs from transformer.wte.weight"), "{error}");
    assert!(error.contains("set tie_word_embeddings to false"), "{error}");
}

#[test]
fn shards_are_read_through_their_index() {
    let folder = tempfile::tempdir().unwrap();
    let tensors = read(&fixture("gpt2-lm"));
    let mut map = serde_json::Map::new();
    for (shard, odd) in [("model-00001-of-00002.safetensors", true), ("model-00002-of-00002.safetensors", false)] {
        let part = tensors
            .iter()
            .enumerate()
            .filter(|(i, _)| (i % 2 == 1) == odd)
            .map(|(_, (name, tensor))| (name.clone(), tensor.clone()));
        write(folder.path(), &part.inspect(|(name, _)| drop(map.insert(name.clone(), shard.into()))).collect());
        std::fs::rename(folder.path().join("model.safetensors"), folder.path().join(shard)).unwrap();
    }
    let index = serde_json::json!({"metadata": {}, "weight_map": map});
    std::fs::write(folder.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    let (model, report) = load(model("gpt2-lm", Head::CausalLm), folder.path()).unwrap();
    assert_eq!(report.loaded, tensors.len());
    let out = tempfile::tempdir().unwrap();
    save(&model, out.path()).unwrap();
    assert!(read(out.path()) == tensors);
}

#[test]
fn shapes_that_do_not_fit_are_listed() {
    let reshape = |tensors: &mut Tensors| tensors.get_mut("transformer.wpe.weight").unwrap().0 = vec![48, 64];
    let error = changed("gpt2-lm", Head::CausalLm, reshape).unwrap_err();
    assert!(error.contains("1 of another shape (transformer.wpe.weight: expected [64, 48], got [48, 64])"), "{error}");
    let empty = tempfile::tempdir().unwrap();
    let error = load(model("gpt2-lm", Head::CausalLm), empty.path()).unwrap_err().to_string();
    assert!(error.contains("no weights found; expected one of model.safetensors"), "{error}");
}
