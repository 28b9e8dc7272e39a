//! Compares two computations that should be the same: loss, gradients and weight changes, each
//! tensor by its norm and by its projection onto a fixed vector of random signs, which sees a wrong
//! direction of the right length. All sums are f64 on the host, independent of what is compared.
//!
//! Limits for f32, relative ([`Limits::of`] has those of the narrow types): the loss to 1e-5 and a
//! gradient to 1e-3 of its norm plus 1e-5 of the norm of all gradients (some gradients are 0 but
//! for rounding, such as that of an attention key's bias); the change of a layer's weights to 2e-2
//! of its norm, because Adam divides by the gradient's size and so moves a weight without a
//! gradient as far as any other, in a direction that rounding decides. Where two runs of the same
//! mode differ, ten times that difference is allowed.

use std::collections::BTreeMap;

use crate::engine::settings::Precision;
use crate::reads::read_values;
use burn::module::{ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use kiln_core::error::Result;
use kiln_core::random::seed_for;
use kiln_models::weights::{Depth, StateDict, parameters};
use serde::{Deserialize, Serialize};

/// A tensor in two numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TensorFigures {
    /// Its name, Hugging Face's; of a change: its layer's.
    pub name: String,
    /// L2 norm.
    pub norm: f64,
    /// Sum over its values, each with a sign that its place decides.
    pub projection: f64,
}

impl TensorFigures {
    /// The figures of `values`, which belong to `name`.
    pub fn of(name: String, values: impl IntoIterator<Item = f64>) -> Self {
        let (mut squares, mut projection) = (0.0, 0.0);
        let mut signs = 0;
        for (place, value) in values.into_iter().enumerate() {
            if place % 64 == 0 {
                signs = seed_for(0, "signs", place as u64, 0);
            }
            squares += value * value;
            projection += if signs >> (place % 64) & 1 == 1 { value } else { -value };
        }
        Self { name, norm: squares.sqrt(), projection }
    }
}

/// One optimizer step in figures.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepFigures {
    /// The loss.
    pub loss: f64,
    /// The gradients in the order in which the backward pass reaches them, the head's first.
    pub gradients: Vec<TensorFigures>,
    /// How far the weights have moved, a layer each, from the embeddings to the head.
    pub changes: Vec<TensorFigures>,
}

/// The largest relative difference that is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Difference of the loss, relative to the loss.
    pub loss: f64,
    /// Difference of a gradient, relative to the gradient's norm.
    pub gradient: f64,
    /// Difference of a gradient that is allowed on top, relative to the norm of all gradients.
    pub all_gradients: f64,
    /// Difference of a layer's weight change, relative to the norm of that change.
    pub change: f64,
}

impl Limits {
    /// The limits of f32.
    pub const F32: Self = Self { loss: 1e-5, gradient: 1e-3, all_gradients: 1e-5, change: 2e-2 };

    /// The limits of bf16. Both modes round what goes into a matrix product by up to 2^-8 of itself
    /// and compute the rest in f32, so a difference in f32's last bit turns single roundings round,
    /// by 2^-7, and everything after it has that in it: most of all gradients that are small beside
    /// the others, such as that of an attention's projection. On the CPU the fused attention and
    /// cross-entropy do not round scores and logits, which the plain ones do. (Measured on 6 random
    /// layers of width 128 over 6 steps: loss 4e-5, gradients 4e-2.) A fault of a few per cent
    /// stays unseen: f32 finds those, on the CPU or where nothing is in TF32.
    pub const BF16: Self = Self { loss: 1e-3, gradient: 5e-2, all_gradients: 5e-3, change: 2e-2 };

    /// The limits of f16, where a rounding is 2^-11. (Measured on 6 random layers of width 128 over
    /// 6 steps: loss 2e-5, gradients 1.4e-2.)
    pub const F16: Self = Self { loss: 2e-4, gradient: 2e-2, all_gradients: 1e-3, change: 2e-2 };

    /// The limits for models that compute in `precision`. Those of f32 `in_tf32`, where either mode
    /// may have products of operands that are rounded as f16 is, are f16's. (Measured on 2 layers
    /// of width 48 over 3 steps: loss 7e-6, gradients 4e-3.)
    pub const fn of(precision: Precision, in_tf32: bool) -> Self {
        match precision {
            Precision::Bf16 => Self::BF16,
            Precision::F16 => Self::F16,
            Precision::F32 | Precision::Auto if in_tf32 => Self::F16,
            Precision::F32 | Precision::Auto => Self::F32,
        }
    }

    /// At least ten times what two runs of one mode differ by.
    #[must_use]
    pub fn above(self, noise: &Distance) -> Self {
        Self {
            loss: self.loss.max(10.0 * noise.loss),
            gradient: self.gradient.max(10.0 * noise.beyond),
            change: self.change.max(10.0 * noise.change),
            ..self
        }
    }
}

/// The largest relative differences of two computations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Distance {
    /// Difference of the loss, relative to the loss.
    pub loss: f64,
    /// Difference of a gradient, relative to its norm. Gradients whose norm is within
    /// [`Limits::all_gradients`] of the norm of all are left out, since most of them is rounding.
    pub gradient: f64,
    /// Difference of a gradient, relative to its norm, among those that differ by more than
    /// [`Limits::all_gradients`] of the norm of all, for [`Limits::above`].
    #[serde(default)]
    pub beyond: f64,
    /// Difference of a layer's weight change, relative to the norm of that change.
    pub change: f64,
}

impl std::fmt::Display for Distance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "loss {:.1e}, gradient {:.1e}, weight change {:.1e}", self.loss, self.gradient, self.change)
    }
}

/// The first thing that differs more than it may.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// The step, from 1.
    pub step: usize,
    /// `loss`, `gradient of NAME` or `weight change of LAYER`.
    pub what: String,
    /// Its value, or norm, in both.
    pub values: [f64; 2],
    /// By how much they differ, relative.
    pub relative: f64,
    /// How much was allowed.
    pub limit: f64,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b] = self.values;
        let Self { step, what, relative, limit, .. } = self;
        write!(
            f,
            "step {step}: the {what} is {a:.9e} against {b:.9e}, off by {relative:.1e} where {limit:.1e} is allowed"
        )
    }
}

/// Compares two computations step by step: how far they are apart, and the first thing beyond
/// `limits`. In a step the loss comes first, then the gradients from the head backward, then the
/// weights.
pub fn compare(a: &[StepFigures], b: &[StepFigures], limits: &Limits) -> (Distance, Option<Difference>) {
    let (mut distance, mut first) = (Distance::default(), None);
    for (index, (a, b)) in a.iter().zip(b).enumerate() {
        let mut check = |what: String, values: [f64; 2], error: f64, size: f64, limit: f64, floor: f64| {
            let relative = if error == 0.0 { 0.0 } else { error / size };
            let beyond = !error.is_finite() || error > limit * size + floor;
            if beyond && first.is_none() {
                let limit = limit + if size > 0.0 { floor / size } else { 0.0 };
                first = Some(Difference { step: index + 1, what, values, relative, limit });
            }
            relative
        };
        let loss = check("loss".into(), [a.loss, b.loss], (a.loss - b.loss).abs(), a.loss.abs(), limits.loss, 0.0);
        distance.loss = distance.loss.max(loss);
        let all = [a, b].map(|step| step.gradients.iter().map(|tensor| tensor.norm * tensor.norm).sum::<f64>().sqrt());
        // Where gradients overflow under a loss scale in both, the step is skipped in both, and
        // there is nothing to compare.
        let [a_gradients, b_gradients] =
            [a, b].map(|step| if all.iter().any(|norm| norm.is_finite()) { &step.gradients[..] } else { &[] });
        let all = all.into_iter().find(|norm| norm.is_finite()).unwrap_or(0.0);
        for (a, b) in a_gradients.iter().zip(b_gradients) {
            let error = (a.norm - b.norm).abs().max((a.projection - b.projection).abs());
            let what = format!("gradient of {}", a.name);
            let floor = limits.all_gradients * all;
            let relative = check(what, [a.norm, b.norm], error, a.norm, limits.gradient, floor);
            // The relative error of a value that is 0 up to rounding says nothing.
            if a.norm > floor {
                distance.gradient = distance.gradient.max(relative);
            }
            if error > floor {
                distance.beyond = distance.beyond.max(relative);
            }
        }
        for (a, b) in a.changes.iter().zip(&b.changes) {
            let what = format!("weight change of {}", a.name);
            let relative = check(what, [a.norm, b.norm], (a.norm - b.norm).abs(), a.norm, limits.change, 0.0);
            distance.change = distance.change.max(relative);
        }
    }
    (distance, first)
}

/// The gradients in figures; what has none is left out.
///
/// # Errors
/// The device's.
pub fn gradients<M: StateDict>(model: &M, grads: &GradientsParams) -> Result<Vec<TensorFigures>> {
    let mut values = Values { grads: Some(grads), read: BTreeMap::new(), failed: None };
    model.visit(&mut values);
    let mut values = values.finish()?;
    let named =
        parameters(model).into_iter().filter_map(|parameter| Some((parameter.name, values.remove(&parameter.id)?)));
    let mut figures = named.map(|(name, values)| TensorFigures::of(name, widened(&values))).collect::<Vec<_>>();
    figures.reverse();
    Ok(figures)
}

/// The weights of a model on the host, to be compared with later ones.
pub struct Weights(BTreeMap<ParamId, Vec<f32>>);

impl Weights {
    /// Reads them.
    ///
    /// # Errors
    /// The device's.
    pub fn read<M: StateDict>(model: &M) -> Result<Self> {
        let mut values = Values { grads: None, read: BTreeMap::new(), failed: None };
        model.visit(&mut values);
        values.finish().map(Self)
    }

    /// How far `model` has moved from them, a layer each. From now on they are the weights of
    /// `model`.
    ///
    /// # Errors
    /// The device's.
    pub fn advance<M: StateDict>(&mut self, model: &M) -> Result<Vec<TensorFigures>> {
        let now = Self::read(model)?;
        let mut layers: Vec<(Depth, Vec<f64>)> = Vec::new();
        for parameter in parameters(model) {
            let (Some(before), Some(after)) = (self.0.get(&parameter.id), now.0.get(&parameter.id)) else { continue };
            let moved = widened(after).zip(widened(before)).map(|(after, before)| after - before);
            let depth = parameter.depth();
            match layers.iter_mut().find(|(known, _)| *known == depth) {
                Some((_, all)) => all.extend(moved),
                None => layers.push((depth, moved.collect())),
            }
        }
        let name = |depth: &Depth| match depth {
            Depth::Layer(layer) => format!("layer {layer}"),
            other => format!("{other:?}").to_lowercase(),
        };
        *self = now;
        Ok(layers.into_iter().map(|(depth, moved)| TensorFigures::of(name(&depth), moved)).collect())
    }
}

fn widened(values: &[f32]) -> impl Iterator<Item = f64> {
    values.iter().map(|value| f64::from(*value))
}

/// Reads weights, or their gradients.
struct Values<'a> {
    grads: Option<&'a GradientsParams>,
    read: BTreeMap<ParamId, Vec<f32>>,
    failed: Option<kiln_core::error::Error>,
}

impl Values<'_> {
    fn finish(self) -> Result<BTreeMap<ParamId, Vec<f32>>> {
        match self.failed {
            Some(error) => Err(error),
            None => Ok(self.read),
        }
    }
}

impl ModuleVisitor for Values<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = match self.grads {
            Some(grads) => grads.get::<D>(param.id),
            None => Some(param.val().inner()),
        };
        if let (Some(tensor), None) = (tensor, &self.failed) {
            match read_values(tensor) {
                Ok(values) => drop(self.read.insert(param.id, values)),
                Err(error) => self.failed = Some(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn step(loss: f64, gradients: &[(&str, [f64; 3])]) -> StepFigures {
        let gradients = gradients.iter().map(|(name, values)| TensorFigures::of((*name).into(), *values)).collect();
        StepFigures { loss, gradients, changes: Vec::new() }
    }

    #[test]
    fn the_first_tensor_that_differs_is_named() {
        let right = [step(2.0, &[("head", [1.0, 2.0, 2.0]), ("layer", [3.0, 0.0, 4.0])])];
        assert_eq!(compare(&right, &right, &Limits::F32), (Distance::default(), None));
        // The same length, another direction.
        let turned = [step(2.0, &[("head", [1.0, 2.0, 2.0]), ("layer", [3.0, 0.0, -4.0])])];
        let difference = compare(&right, &turned, &Limits::F32).1.unwrap();
        assert_eq!((difference.what.as_str(), difference.step), ("gradient of layer", 1));
        let shorter = [step(2.0001, &[("head", [1.0, 2.0, 1.0]), ("layer", [3.0, 0.0, 4.0])])];
        assert_eq!(compare(&right, &shorter, &Limits::F32).1.unwrap().what, "loss");
        let overflown = |loss| [step(loss, &[("head", [f64::INFINITY, 0.0, 0.0])])];
        assert_eq!(compare(&overflown(2.0), &overflown(2.0), &Limits::F16).1, None);
        assert!(compare(&overflown(2.0), &right[..1], &Limits::F16).1.unwrap().what.contains("gradient of head"));
        let nan = [step(f64::NAN, &[])];
        assert_eq!(compare(&right, &nan, &Limits::F32).1.unwrap().what, "loss");
    }

    #[test]
    fn noise_widens_the_limits_and_rounding_around_zero_is_none() {
        let a = [step(2.0, &[("head", [1.0, 2.0, 2.0]), ("key.bias", [1e-9, 0.0, 0.0])])];
        let b = [step(2.0, &[("head", [1.0, 2.0, 2.0]), ("key.bias", [-1e-9, 0.0, 0.0])])];
        assert_eq!(compare(&a, &b, &Limits::F32), (Distance::default(), None));
        // Of bf16, whose limit for one gradient of all is large beside most differences.
        let near = [step(2.001, &[("head", [1.0, 2.0, 2.003]), ("key.bias", [-1e-9, 0.0, 0.0])])];
        let (distance, difference) = compare(&a, &near, &Limits::BF16);
        assert!(difference.is_none() && distance.beyond == 0.0, "{difference:?}");
        assert!((1e-4..1e-2).contains(&distance.gradient), "{distance}");
        let noisy = Distance { loss: 1e-4, ..Distance::default() };
        assert_eq!(Limits::F32.above(&noisy), Limits { loss: 1e-3, ..Limits::F32 });
    }
}
