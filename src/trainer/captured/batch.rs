//! Batches of captured steps: a recording reads the tensors of the batch with which it was made, so later batches are written
//! into these.

use burn::tensor::{Int, Tensor};
use kiln_models::ModelInput;
use kiln_models::ops::in_place::{Written, overwrite, overwrite_bools, overwrite_ints};

use crate::task::{DeviceBatch, Targets};

/// `batch` for a model with autodiff.
pub(super) fn tracked(batch: &DeviceBatch) -> DeviceBatch {
    let ModelInput { input_ids, attention_mask, token_type_ids, last_token } = batch.input.clone();
    let weight = |weight: &Option<Tensor<1>>| weight.clone().map(Tensor::from_inner);
    let ints = |values: &Tensor<1, Int>| Tensor::from_inner(values.clone());
    DeviceBatch {
        input: ModelInput {
            input_ids: Tensor::from_inner(input_ids),
            attention_mask: attention_mask.map(Tensor::from_inner),
            token_type_ids: token_type_ids.map(Tensor::from_inner),
            last_token: last_token.map(Tensor::from_inner),
        },
        targets: batch.targets.as_ref().map(|targets| match targets {
            Targets::Classes { index, weight: w } => Targets::Classes { index: ints(index), weight: weight(w) },
            Targets::Values { values, weight: w } => {
                Targets::Values { values: Tensor::from_inner(values.clone()), weight: weight(w) }
            }
            Targets::Spans { start, end, weight: w } => {
                Targets::Spans { start: ints(start), end: ints(end), weight: weight(w) }
            }
        }),
        ..*batch
    }
}

/// Whether the two have the same parts in the same shapes.
pub(super) fn same_shape(a: &DeviceBatch, b: &DeviceBatch) -> bool {
    let parts = |batch: &DeviceBatch| {
        let weight = match &batch.targets {
            None => None,
            Some(Targets::Classes { weight, .. } | Targets::Values { weight, .. } | Targets::Spans { weight, .. }) => {
                Some(weight.is_some())
            }
        };
        let input = &batch.input;
        (input.input_ids.dims(), input.attention_mask.is_some(), input.token_type_ids.is_some(), weight)
    };
    parts(a) == parts(b)
}

/// Writes `new` to where `target` lies; the two have the [same shape](same_shape).
pub(super) fn write(target: &DeviceBatch, new: DeviceBatch, written: &mut Vec<Written>) {
    let (old, new_input) = (&target.input, new.input);
    written.push(overwrite_ints(&old.input_ids, new_input.input_ids));
    let masks = old.attention_mask.as_ref().zip(new_input.attention_mask);
    written.extend(masks.map(|(old, new)| overwrite_bools(old, new)));
    written
        .extend(old.token_type_ids.as_ref().zip(new_input.token_type_ids).map(|(old, new)| overwrite_ints(old, new)));
    written.extend(old.last_token.as_ref().zip(new_input.last_token).map(|(old, new)| overwrite_ints(old, new)));
    let (mut ints, mut floats) = (Vec::new(), Vec::new());
    match (&target.targets, new.targets) {
        (Some(Targets::Classes { index, weight }), Some(Targets::Classes { index: new, weight: w })) => {
            ints.push((index, new));
            floats.extend(weight.as_ref().zip(w));
        }
        (Some(Targets::Values { values, weight }), Some(Targets::Values { values: new, weight: w })) => {
            floats.push((values, new));
            floats.extend(weight.as_ref().zip(w));
        }
        (Some(Targets::Spans { start, end, weight }), Some(Targets::Spans { start: s, end: e, weight: w })) => {
            ints.extend([(start, s), (end, e)]);
            floats.extend(weight.as_ref().zip(w));
        }
        _ => {} // a batch without labels, or of another task, is not trained on
    }
    written.extend(ints.into_iter().map(|(old, new)| overwrite_ints(old, new)));
    written.extend(floats.into_iter().map(|(old, new)| overwrite(old, new)));
}
