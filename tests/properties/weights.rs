//! Weight files: headers that lie, indexes of shards, pickles, and the `config.json` beside them.

use std::path::Path;
use std::sync::LazyLock;

use burn::tensor::Device;
use kiln_models::weights::load;
use kiln_models::{Head, Model, ModelConfig};
use proptest::prelude::*;
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::cases;
use crate::common::fixture;
use crate::edits::{edited, edits};

struct Whole {
    config: String,
    weights: Vec<u8>,
}

static WHOLE: LazyLock<Whole> = LazyLock::new(|| {
    let folder = fixture("gpt2-lm").join("model");
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    Whole { config, weights: std::fs::read(folder.join("model.safetensors")).unwrap() }
});

/// Loads the weights in `folder`: a model or an error that says something.
fn loads(folder: &Path) -> Result<bool, TestCaseError> {
    let (config, _) = ModelConfig::from_json(&WHOLE.config).unwrap();
    let model = Model::new(&config, Head::CausalLm, &Device::flex()).unwrap();
    match load(model, folder) {
        Ok((_, report)) => {
            prop_assert!(report.loaded > 0);
            prop_assert!(report.lines().len() < 20);
            Ok(true)
        }
        Err(error) => {
            let said = error.to_string();
            prop_assert!(!said.trim().is_empty() && !said.trim_end().ends_with(':'), "{said}");
            Ok(false)
        }
    }
}

/// The header and what follows it.
fn parts() -> (&'static [u8], &'static [u8]) {
    let length = u64::from_le_bytes(WHOLE.weights[..8].try_into().unwrap()) as usize;
    WHOLE.weights[8..].split_at(length)
}

/// A pickle as PyTorch's `save` writes it, but for the archive around it: names, types, shapes and
/// strides of two tensors.
fn pickle() -> Vec<u8> {
    let tensor = |name: &str, key: &str, size: u8| {
        let text = |text: &str| [&b"X"[..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
        let mut bytes = text(name);
        bytes.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        bytes.extend([text("storage"), b"ctorch\nFloatStorage\n".to_vec(), text(key), text("cpu")].concat());
        bytes.extend([b'K', size, b't', b'Q', b'K', 0]);
        bytes.extend([b'K', size, 0x85, b'K', 1, 0x85, 0x89]);
        bytes.extend(b"ccollections\nOrderedDict\n)RtR");
        bytes
    };
    [
        b"\x80\x02}(".to_vec(),
        tensor("transformer.wte.weight", "0", 4),
        tensor("transformer.wpe.weight", "1", 2),
        b"u.".to_vec(),
    ]
    .concat()
}

/// An uncompressed ZIP archive.
fn zip(files: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in files {
        let mut hash = flate2::Crc::new();
        hash.update(content);
        let mut fields = Vec::new();
        fields.extend([20u16, 0, 0, 0, 0].iter().flat_map(|field| field.to_le_bytes()));
        let sizes = [hash.sum(), content.len() as u32, content.len() as u32];
        fields.extend(sizes.iter().flat_map(|field| field.to_le_bytes()));
        fields.extend([name.len() as u16, 0].iter().flat_map(|field| field.to_le_bytes()));
        let at = bytes.len() as u32;
        bytes.extend([&b"PK\x03\x04"[..], &fields, name.as_bytes(), content].concat());
        directory.extend([&b"PK\x01\x02\x14\0"[..], &fields, &[0; 10], &at.to_le_bytes(), name.as_bytes()].concat());
    }
    let (at, count) = (bytes.len() as u32, files.len() as u16);
    bytes.extend(&directory);
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    bytes.extend([count.to_le_bytes(), count.to_le_bytes()].concat());
    bytes.extend([(directory.len() as u32).to_le_bytes(), at.to_le_bytes()].concat());
    bytes.extend([0, 0]);
    bytes
}

fn pytorch(pickle: &[u8]) -> Vec<u8> {
    let (four, two) = ([0u8; 16], [0u8; 8]);
    zip(&[
        ("archive/data.pkl", pickle),
        ("archive/byteorder", b"little"),
        ("archive/data/0", &four),
        ("archive/data/1", &two),
        ("archive/version", b"3\n"),
    ])
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn headers_that_lie(edits in edits(), tells_length in any::<bool>()) {
        let (header, data) = parts();
        let header = edited(header, &edits);
        let length = if tells_length { header.len() } else { parts().0.len() };
        let folder = tempfile::tempdir().unwrap();
        let bytes = [&(length as u64).to_le_bytes()[..], &header, data].concat();
        std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        loads(folder.path())?;
    }

    #[test]
    fn bytes_of_safetensors_are_others(edits in edits()) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("model.safetensors"), edited(&WHOLE.weights, &edits)).unwrap();
        loads(folder.path())?;
    }

    #[test]
    fn indexes(edits in edits(), pytorch in any::<bool>()) {
        let ending = if pytorch { "bin" } else { "safetensors" };
        let stem = if pytorch { "pytorch_model" } else { "model" };
        let names = SafeTensors::deserialize(&WHOLE.weights).unwrap();
        let shard = format!("{stem}-00001-of-00001.{ending}");
        let map = names.names().into_iter().map(|name| (name.to_owned(), Value::from(shard.clone())));
        let index = json!({"metadata": {"total_size": 1}, "weight_map": Value::Object(map.collect())}).to_string();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("outside"), b"secret").unwrap();
        std::fs::write(folder.path().join(shard), &WHOLE.weights).unwrap();
        let index = edited(index.as_bytes(), &edits);
        std::fs::write(folder.path().join(format!("{stem}.{ending}.index.json")), index).unwrap();
        loads(folder.path())?;
    }

    #[test]
    fn pickles(edits in edits(), inside in any::<bool>()) {
        let bytes = if inside { pytorch(&edited(&pickle(), &edits)) } else { edited(&pytorch(&pickle()), &edits) };
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("pytorch_model.bin"), bytes).unwrap();
        prop_assert!(!loads(folder.path())?, "two tensors are no model");
    }

    #[test]
    fn configs_of_models(edits in edits()) {
        if let Ok(text) = String::from_utf8(edited(WHOLE.config.as_bytes(), &edits)) {
            match ModelConfig::from_json(&text) {
                Ok((config, _)) => prop_assert!(config.vocab_size() > 0),
                Err(error) => prop_assert!(!error.to_string().trim().is_empty()),
            }
        }
    }
}

#[test]
fn whole_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.safetensors"), &WHOLE.weights).unwrap();
    assert!(loads(folder.path()).unwrap());
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("pytorch_model.bin"), pytorch(&pickle())).unwrap();
    let (config, _) = ModelConfig::from_json(&WHOLE.config).unwrap();
    let model = Model::new(&config, Head::CausalLm, &Device::flex()).unwrap();
    let said = load(model, folder.path()).unwrap_err().to_string();
    assert!(said.contains("do not fit the model") && said.contains("transformer.wte.weight"), "{said}");
}
