//! The memory of loading weights: the model's own, and where it keeps them in another type than
//! f32 that of one tensor on its way.

use burn::tensor::{Device, FloatDType};
use kiln_models::weights::{LoadOptions, Narrow, Parameter, load_with, parameters, save};
use kiln_models::{Head, Model, ModelConfig, ModelType};
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
