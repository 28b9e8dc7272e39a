//! What follows from the comparisons: shares of the speed-up, the step at which compiling has paid for itself, the ceiling.

use serde::Serialize;

use super::stats::mean;
use super::verdict::Word;
use super::{ArmReport, AtEqual, Comparison, LossPoint, Role, WholeRun};

/// Figures that are none where an arm is missing or must not be compared.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Derived {
    /// Native at the native batch / compiled at the compiled batch, time per example: `compiler_share x batch_share`.
    pub total_speedup: Option<f64>,
    /// Compiled against native at the native batch.
    pub compiler_share: Option<f64>,
    /// Compiled at the compiled batch against compiled at the native batch.
    pub batch_share: Option<f64>,
    /// Native at the compiled batch against native at the native batch: what the batch alone gives.
    pub native_batch_share: Option<f64>,
    /// `batch_share / native_batch_share`: above 1 the compiler gains from the batch more than native does.
    pub interaction: Option<f64>,
    /// Steps after which the compiled run is ahead: what it takes more beside its steady steps in the first run, nothing
    /// tuned, over what a step takes less. None when it is not measurably faster.
    pub break_even_step: Option<f64>,
    /// The same with what earlier runs have tuned.
    pub break_even_step_later: Option<f64>,
    /// The most that any compiler could give at this batch: `step / (step - forward - backward - update)` (Amdahl).
    pub ceiling: Option<f64>,
    /// Share of the native step that a compiler works on: forward, backward and update.
    pub compute_share: Option<f64>,
    /// The loss that the arms' seconds to the target are about.
    pub target_loss: Option<f64>,
    /// The last step, token count and second that the arms of the comparison (not those of ablations and sweeps) have all
    /// reached: where their losses are compared.
    pub equal: Option<AtEqual>,
    /// One sentence for whoever decides.
    pub advice: Option<String>,
}

/// Derives them.
pub(super) fn derive(
    arms: &[ArmReport],
    comparisons: &[Comparison],
    whole: Option<WholeRun>,
    target_loss: Option<f64>,
    equal: Option<AtEqual>,
) -> Derived {
    let speedup = |role: Role| {
        let arm = arms.iter().find(|arm| arm.role == role)?;
        comparisons.iter().find(|comparison| comparison.arm == arm.name)?.speedup.map(|speedup| speedup.ratio)
    };
    let (compiled, large) = (speedup(Role::Compiled), speedup(Role::CompiledLarge));
    let native_batch_share = speedup(Role::NativeLarge);
    let batch_share = compiled.zip(large).map(|(compiled, large)| large / compiled);
    let native = arms.iter().find(|arm| arm.role == Role::Reference);
    let other = arms.iter().find(|arm| arm.role == Role::Compiled);
    let budget = native.and_then(|arm| arm.budget_ms.as_ref());
    let compute = budget.map(|b| (b.forward + b.backward + b.update, b.data + b.sync));
    let pays = |overhead: fn(&ArmReport) -> Option<f64>| {
        let (native, compiled) = (native?, other?);
        // What is not measurably faster pays for nothing.
        let faster = |one: &&Comparison| one.arm == compiled.name && one.verdict == Word::Faster;
        comparisons.iter().find(faster)?;
        let gain = (native.step_ms_p50? - compiled.step_ms_p50?) / 1e3;
        let extra = overhead(compiled)? - overhead(native)?;
        match (gain > 0.0, extra > 0.0) {
            (true, true) => Some((extra / gain).ceil()),
            (true, false) => Some(0.0),
            (false, _) => None,
        }
    };
    let break_even_step = pays(|arm| arm.overhead_seconds_first);
    Derived {
        total_speedup: large,
        compiler_share: compiled,
        batch_share,
        native_batch_share,
        interaction: batch_share.zip(native_batch_share).map(|(compiled, native)| compiled / native),
        break_even_step,
        break_even_step_later: pays(|arm| arm.overhead_seconds_later.or(arm.overhead_seconds_first)),
        ceiling: compute.map(|(compute, rest)| (compute + rest) / rest.max(1e-9)),
        compute_share: compute.map(|(compute, rest)| compute / (compute + rest)),
        target_loss,
        equal,
        advice: advice(comparisons, arms, break_even_step, whole),
    }
}

fn advice(
    comparisons: &[Comparison],
    arms: &[ArmReport],
    break_even: Option<f64>,
    whole: Option<WholeRun>,
) -> Option<String> {
    let arm = arms.iter().find(|arm| arm.role == Role::Compiled)?;
    let comparison = comparisons.iter().find(|comparison| comparison.arm == arm.name)?;
    let steps = whole?.steps;
    let large = arms.iter().find(|arm| arm.role == Role::CompiledLarge).and_then(|large| {
        let measured = comparisons.iter().find(|comparison| comparison.arm == large.name)?;
        // The larger batch is worth its name only where its interval lies above the other's estimate.
        let better = measured.speedup?.low > comparison.speedup?.ratio;
        (measured.verdict == Word::Faster && better).then_some(large.micro_batch?)
    });
    let at = large.map_or(String::new(), |batch| format!(", {batch} examples at a time"));
    Some(match (comparison.verdict, break_even) {
        (Word::Faster, Some(step)) if step <= steps as f64 => format!(
            "this run has {steps} steps and compiling has paid for its start after step {step}: train it compiled{at}"
        ),
        (Word::Faster, Some(step)) => {
            format!("this run has {steps} steps and compiling would pay after step {step}: stay native")
        }
        (Word::Slower, _) => "compiling makes this run slower: stay native".into(),
        (Word::Same, _) => "compiling makes no measurable difference here".into(),
        _ => return None,
    })
}

/// The last moments that all arms have reached.
pub(super) fn common_moments(arms: &[ArmReport]) -> Option<AtEqual> {
    let arms = arms.iter().filter(|arm| !matches!(arm.role, Role::Ablation | Role::Sweep));
    let last = arms.filter_map(|arm| arm.loss.last());
    last.map(|point| AtEqual { steps: point.step as f64, tokens: point.tokens, seconds: point.seconds }).reduce(
        |a, b| AtEqual {
            steps: a.steps.min(b.steps),
            tokens: a.tokens.min(b.tokens),
            seconds: a.seconds.min(b.seconds),
        },
    )
}

/// The smoothed losses of the last rows up to the moments; none where there is no row before one of them.
pub(super) fn at_equal(curve: &[LossPoint], moments: AtEqual) -> Option<AtEqual> {
    let until = |most: f64, of: fn(&LossPoint) -> f64| {
        smoothed(curve).take_while(|(point, _)| of(point) <= most).last().map(|(_, loss)| loss)
    };
    Some(AtEqual {
        steps: until(moments.steps, |point| point.step as f64)?,
        tokens: until(moments.tokens, |point| point.tokens)?,
        seconds: until(moments.seconds, |point| point.seconds)?,
    })
}

/// Rows over which the loss is smoothed before it is held against a target.
const SMOOTHED: usize = 5;

fn smoothed(curve: &[LossPoint]) -> impl Iterator<Item = (LossPoint, f64)> + '_ {
    (0..curve.len()).map(move |end| {
        let rows = &curve[(end + 1).saturating_sub(SMOOTHED)..=end];
        (curve[end], mean(&rows.iter().map(|point| point.loss).collect::<Vec<_>>()))
    })
}

/// The loss that every arm has reached: the highest of their least smoothed losses.
pub(super) fn common_target(arms: &[ArmReport]) -> Option<f64> {
    let least = arms.iter().filter(|arm| !arm.loss.is_empty());
    let least = least.map(|arm| smoothed(&arm.loss).map(|(_, loss)| loss).fold(f64::INFINITY, f64::min));
    least.reduce(f64::max).filter(|loss| loss.is_finite())
}

pub(super) fn seconds_to(curve: &[LossPoint], target: f64) -> Option<f64> {
    smoothed(curve).find(|(_, loss)| *loss <= target).map(|(point, _)| point.seconds)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn curve(losses: &[f64], tokens: f64, seconds: f64) -> Vec<LossPoint> {
        let point = |(index, loss): (usize, &f64)| {
            let step = index as f64 + 1.0;
            let (low, high) = (*loss, *loss);
            LossPoint { step: step as u64, tokens: step * tokens, seconds: step * seconds, loss: *loss, low, high }
        };
        losses.iter().enumerate().map(point).collect()
    }

    #[test]
    fn losses_are_compared_where_all_have_been() {
        // The second arm takes twice the tokens a step, and three times as long.
        let (a, b) = (curve(&[8.0, 6.0, 4.0, 2.0], 10.0, 1.0), curve(&[7.0, 5.0, 3.0], 20.0, 3.0));
        let moments = AtEqual { steps: 3.0, tokens: 40.0, seconds: 4.0 };
        let (a, b) = (at_equal(&a, moments).unwrap(), at_equal(&b, moments).unwrap());
        // Means of up to 5 rows.
        assert_eq!((a.steps, a.tokens, a.seconds), (6.0, 5.0, 5.0));
        assert_eq!((b.steps, b.tokens, b.seconds), (5.0, 6.0, 7.0));
        let early = AtEqual { seconds: 0.5, ..moments };
        assert!(at_equal(&curve(&[1.0], 1.0, 1.0), early).is_none());
    }

    #[test]
    fn the_target_is_reached_at_the_first_smoothed_row_below_it() {
        let curve = curve(&[8.0, 6.0, 4.0, 2.0], 10.0, 1.5);
        assert_eq!((seconds_to(&curve, 6.0), seconds_to(&curve, 4.9)), (Some(4.5), None));
    }
}
