//! The comparison of both modes: the losses, gradients and weight changes of the first steps, and
//! how far they may be apart.

use kiln_core::error::{Error, Result};

use super::figures::{Difference, Distance, Limits, compare};
use super::probe::Probe;
use crate::engine::operators;
use crate::engine::settings::Precision;

/// The comparison that was made.
#[derive(Debug, Clone, PartialEq)]
pub struct Parity {
    /// Steps that were made.
    pub steps: usize,
    /// The type in which the models computed, which decides the limits.
    pub precision: Precision,
    /// Whether products of f32 may be in TF32 on the device, which decides the limits too.
    pub in_tf32: bool,
    /// Whether nothing was dropped out in them, since each mode draws masks of its own on the
    /// device.
    pub without_dropout: bool,
    /// Gradients that were compared in each of them.
    pub tensors: usize,
    /// The operators that were fused in the compiled runs.
    pub fused: Vec<String>,
    /// How far two native runs are apart.
    pub noise: Distance,
    /// How far compiled is from native.
    pub distance: Distance,
    /// How far compiled with captured steps is from native, without the gradients; none where no
    /// step is captured.
    pub captured: Option<Distance>,
    /// The differences that were allowed.
    pub limits: Limits,
    /// The first thing that differs; none when both modes compute the same.
    pub difference: Option<Difference>,
}

impl Parity {
    /// The report in lines.
    pub fn lines(&self) -> Vec<String> {
        let Limits { loss, gradient, all_gradients, change } = self.limits;
        let (steps, tensors, precision) = (self.steps, self.tensors, self.precision);
        let in_tf32 = self.in_tf32 && precision == Precision::F32;
        let tf32 = if in_tf32 { " (products in TF32 where such a kernel wins)" } else { "" };
        let dropout = if self.without_dropout { " without dropout" } else { "" };
        let fused = if self.fused.is_empty() { "nothing".into() } else { self.fused.join(", ") };
        let captured = self.captured.map(|Distance { loss, change, .. }| {
            format!("native against captured loss {loss:.1e}, weight change {change:.1e}")
        });
        let mut lines = vec![
            format!(
                "{steps} steps{dropout}, {precision}{tf32}: the loss, {tensors} gradients, every layer's weight change"
            ),
            format!("fused in compiled       {fused}"),
            format!("native against native   {}", self.noise),
            format!("native against compiled {}", self.distance),
        ];
        lines.extend(captured);
        lines.push(format!(
            "allowed                 loss {loss:.1e}, gradient {gradient:.1e} and {all_gradients:.1e} of all, weight \
             change {change:.1e}"
        ));
        lines
    }
}

/// A compiled run as its steps are computed and, where it has them, captured.
pub type Compiled = (Probe, Option<Probe>);

/// Compares native, native again and compiled.
pub fn report(native: &Probe, again: &Probe, (compiled, captured): &Compiled) -> Result<Parity> {
    let tensors = |probe: &Probe| probe.steps.first().map_or(0, |step| step.gradients.len());
    let shape = |probe: &Probe| (probe.precision, probe.steps.len(), tensors(probe));
    let others = [again, compiled].map(shape).into_iter();
    // Gradients of captured steps are not seen.
    let others = others.chain(captured.as_ref().map(|it| (it.precision, it.steps.len(), tensors(native))));
    if let Some(other) = others.into_iter().find(|other| *other != shape(native)) {
        return Err(Error::differs(format!(
            "precision, steps and gradients: native {:?}, another run {other:?}; expected the same",
            shape(native)
        )));
    }
    let limits = Limits::of(native.precision, native.in_tf32);
    let (noise, _) = compare(&native.steps, &again.steps, &limits);
    let limits = limits.above(&noise);
    let (distance, difference) = compare(&native.steps, &compiled.steps, &limits);
    let replayed = captured.as_ref().map(|captured| compare(&native.steps, &captured.steps, &limits));
    let (captured, of_captured) = replayed.map_or((None, None), |(distance, difference)| (Some(distance), difference));
    let of_captured = of_captured
        .map(|difference| Difference { what: format!("{} of captured steps", difference.what), ..difference });
    Ok(Parity {
        steps: native.steps.len(),
        precision: native.precision,
        in_tf32: native.in_tf32,
        without_dropout: !operators::drop_alike(native.device),
        tensors: tensors(native),
        fused: compiled.fused.clone(),
        noise,
        distance,
        captured,
        limits,
        difference: difference.or(of_captured),
    })
}
