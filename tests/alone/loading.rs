//! The memory of loading weights: the model's own, and where it keeps them in another type than
//! f32 that of one tensor on its way.

use burn::tensor::{Device, FloatDType, bf16, f16};
use kiln_models::weights::{LoadOptions, Narrow, Parameter, load_with, parameters, save};
use kiln_models::{Head, Model, ModelConfig, ModelType};
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};
use serde_json::json;

use crate::counting::{live, peak_of};

/// Bytes that do not grow with the model: a part of a file, headers and names.
const BESIDES: isize = 3 << 20;

#[test]
fn weights_are_loaded_with_one_tensor_at_most_beside_the_model() {
    if crate::ran_alone(module_path!(), "weights_are_loaded_with_one_tensor_at_most_beside_the_model") {
        return;
    }
    // An embedding and an output of 16 MiB, which come first and last, and weights of 4 MiB, which
    // files hold transposed.
    let fields = json!({
        "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 3, "num_attention_heads": 8,
        "num_key_value_heads": 2, "vocab_size": 8192,
    });
    let config = ModelConfig::from_fields(ModelType::Llama, fields.as_object().unwrap()).unwrap();
    let device = Device::flex();
    let model = || Model::new(&config, Head::CausalLm, &device).unwrap();
    let folder = tempfile::tempdir().unwrap();
    save(&model(), folder.path()).unwrap();
    let all = parameters(&model());
    let of =
        |bytes: fn(&Parameter) -> usize| all.iter().map(|it| it.num_elements() * bytes(it)).sum::<usize>() as isize;
    let is_narrow = |it: &Parameter| it.in_linear;
    let narrow: Narrow<'_> = (FloatDType::BF16, &is_narrow);
    let wide: Narrow<'_> = (FloatDType::F32, &is_narrow);
    let largest = 4 * 512 * 2048;
    for (narrow, values, beside) in [(wide, of(|_| 4), 0), (narrow, of(|it| if it.in_linear { 2 } else { 4 }), largest)]
    {
        let (empty, before) = (model(), live());
        let options = LoadOptions { narrow, ..LoadOptions::default() };
        let mut loaded = None;
        let peak = peak_of(|| loaded = Some(load_with(empty, folder.path(), options).unwrap())) - before;
        assert!(
            (values..values + beside + BESIDES).contains(&peak),
            "{peak} bytes at the peak, of {values} that the model has"
        );
        let kept = live() - before;
        assert!((values..values + BESIDES).contains(&kept), "{kept} bytes are kept, of {values} that the model has");
    }
}

/// Tensors that are read by parts, as they stand and turned, have the values of the file in each of
/// its types: also where a part ends.
#[test]
fn values_are_whole_across_the_parts_of_a_file() {
    // Tables and layers above 512 KiB, also of two bytes a value, and of odd numbers of rows.
    let fields = json!({
        "hidden_size": 272, "intermediate_size": 1037, "num_hidden_layers": 1, "num_attention_heads": 8,
        "num_key_value_heads": 2, "vocab_size": 1031, "tie_word_embeddings": true,
    });
    let config = ModelConfig::from_fields(ModelType::Llama, fields.as_object().unwrap()).unwrap();
    let model = || Model::new(&config, Head::CausalLm, &Device::flex()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    save(&model(), folder.path()).unwrap();
    let file = folder.path().join("model.safetensors");
    let saved = std::fs::read(&file).unwrap();
    let saved = SafeTensors::deserialize(&saved).unwrap().tensors();
    let values = |data: &[u8]| data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<_>>();
    type Write = fn(f32) -> (Vec<u8>, f32);
    let kinds: [(Dtype, Write); 3] = [
        (Dtype::F32, |value| (value.to_le_bytes().to_vec(), value)),
        (Dtype::BF16, |value| {
            let value = bf16::from_f32(value);
            (value.to_le_bytes().to_vec(), value.to_f32())
        }),
        (Dtype::F16, |value| {
            let value = f16::from_f32(value);
            (value.to_le_bytes().to_vec(), value.to_f32())
        }),
    ];
    for (kind, write) in kinds {
        let written = saved.iter().map(|(name, view)| {
            let (bytes, values): (Vec<_>, Vec<_>) = values(view.data()).into_iter().map(write).unzip();
            (name, view.shape().to_vec(), bytes.concat(), values)
        });
        let written = written.collect::<Vec<_>>();
        let views = written
            .iter()
            .map(|(name, shape, bytes, _)| (name.as_str(), TensorView::new(kind, shape.clone(), bytes).unwrap()));
        std::fs::write(&file, serialize(views, None).unwrap()).unwrap();
        let (loaded, _) = load_with(model(), folder.path(), LoadOptions::default()).unwrap();
        let other = tempfile::tempdir().unwrap();
        save(&loaded, other.path()).unwrap();
        let bytes = std::fs::read(other.path().join("model.safetensors")).unwrap();
        let again = SafeTensors::deserialize(&bytes).unwrap();
        for (name, shape, _, expected) in &written {
            let view = again.tensor(name).unwrap();
            assert_eq!((view.dtype(), view.shape()), (Dtype::F32, &shape[..]), "{name}");
            let found = values(view.data());
            let differs =
                found.iter().zip(expected).position(|(found, expected)| found.to_bits() != expected.to_bits());
            assert_eq!((found.len(), differs), (expected.len(), None), "{kind:?} {name}");
        }
    }
}
