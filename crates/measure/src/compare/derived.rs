//! Figures that follow from the comparisons: shares of the speed-up, the step at which compiling
//! has paid for itself, the ceiling.

use kiln_core::stats::mean;

use super::{ArmReport, Comparison, Derived, LossPoint, Moments, Role, WholeRun};
use crate::verdict::Verdict;

/// Derives them.
pub(super) fn derive(
    arms: &[ArmReport],
    comparisons: &[Comparison],
    whole: Option<WholeRun>,
    target_loss: Option<f64>,
    equal: Option<Moments<f64>>,
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
    // A GPU works while the host goes on, which waits for it where it reads: there that wait is the
    // computing.
    let is_cpu = native.and_then(|arm| arm.provenance.as_ref()).is_none_or(|it| it.device.starts_with("cpu"));
    let compute = budget.map(|b| match (b.forward + b.backward + b.update, is_cpu) {
        (parts, true) => (parts, b.data + b.communicate + b.sync),
        (parts, false) => (parts + b.sync, b.data + b.communicate),
    });
    let pays = |overhead: fn(&ArmReport) -> Option<f64>| {
        let (native, compiled) = (native?, other?);
        // An arm that is not measurably faster pays for nothing.
        let faster = |one: &&Comparison| one.arm == compiled.name && one.verdict == Verdict::Faster;
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
        // The larger batch is worth its name only where its interval lies above the other's
        // estimate.
        let better = measured.speedup?.low > comparison.speedup?.ratio;
        (measured.verdict == Verdict::Faster && better).then_some(large.micro_batch?)
    });
    let at = large.map_or(String::new(), |batch| format!(", {batch} examples at a time"));
    Some(match (comparison.verdict, break_even) {
        (Verdict::Faster, Some(step)) if step <= steps as f64 => format!(
            "this run has {steps} steps and compiling has paid for its start after step {step}: train it compiled{at}"
        ),
        (Verdict::Faster, Some(step)) => {
            format!("this run has {steps} steps and compiling would pay after step {step}: stay native")
        }
        (Verdict::Slower, _) => "compiling makes this run slower: stay native".into(),
        (Verdict::Same, _) => "compiling makes no measurable difference here".into(),
        _ => return None,
    })
}

/// The last moments that all arms have reached.
pub(super) fn common_moments(arms: &[ArmReport]) -> Option<Moments<f64>> {
    let arms = arms.iter().filter(|arm| !matches!(arm.role, Role::Ablation | Role::Sweep));
    let last = arms.filter_map(|arm| arm.loss.last());
    last.map(|point| Moments { steps: point.step as f64, tokens: point.tokens, seconds: point.seconds }).reduce(
        |a, b| Moments {
            steps: a.steps.min(b.steps),
            tokens: a.tokens.min(b.tokens),
            seconds: a.seconds.min(b.seconds),
        },
    )
}

/// The smoothed losses of the last rows up to the moments.
pub(super) fn at_equal(curve: &[LossPoint], moments: Moments<f64>) -> Moments<Option<f64>> {
    let until = |most: f64, of: fn(&LossPoint) -> f64| {
        smoothed(curve).take_while(|(point, _)| of(point) <= most).last().map(|(_, loss)| loss)
    };
    Moments {
        steps: until(moments.steps, |point| point.step as f64),
        tokens: until(moments.tokens, |point| point.tokens),
        seconds: until(moments.seconds, |point| point.seconds),
    }
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
    use crate::stats::Interval;
    use kiln::trainer::laps::Parts;

    fn curve(losses: &[f64], tokens: f64, seconds: f64) -> Vec<LossPoint> {
        let point = |(index, loss): (usize, &f64)| {
            let step = index as f64 + 1.0;
            let (low, high) = (*loss, *loss);
            LossPoint { step: step as u64, tokens: step * tokens, seconds: step * seconds, loss: *loss, low, high }
        };
        losses.iter().enumerate().map(point).collect()
    }

    /// An arm whose steps take so many milliseconds, of which 10 are no computing, and a run so
    /// many seconds more than them.
    fn arm(name: &str, role: Role, step_ms: f64, overhead: [f64; 2]) -> ArmReport {
        ArmReport {
            name: name.into(),
            role,
            micro_batch: Some(32),
            step_ms_p50: Some(step_ms),
            budget_ms: Some(Parts { data: 6.0, sync: 4.0, forward: step_ms - 10.0, ..Parts::default() }),
            overhead_seconds_first: Some(overhead[0]),
            overhead_seconds_later: Some(overhead[1]),
            ..ArmReport::default()
        }
    }

    fn comparison(arm: &str, verdict: Verdict, ratio: f64) -> Comparison {
        Comparison {
            arm: arm.into(),
            against: "native".into(),
            verdict,
            reason: None,
            speedup: Some(Interval { ratio, low: ratio * 0.99, high: ratio * 1.01 }),
            time_saved_percent: None,
            throughput_gained_percent: None,
            billable_saved_percent: None,
            learned: None,
            parity: None,
            differences: Vec::new(),
        }
    }

    #[test]
    fn shares_break_even_and_ceiling_are_those_of_the_formulas() {
        let arms = [
            arm("native", Role::Reference, 100.0, [2.0, 2.0]),
            arm("compiled", Role::Compiled, 50.0, [12.0, 3.0]),
            arm("native-large", Role::NativeLarge, 90.0, [2.0, 2.0]),
            arm("compiled-large", Role::CompiledLarge, 40.0, [12.0, 3.0]),
        ];
        let comparisons = [("compiled", 2.0), ("native-large", 1.25), ("compiled-large", 3.0)]
            .map(|(arm, ratio)| comparison(arm, Verdict::Faster, ratio));
        let whole = |steps| Some(WholeRun { steps, samples: 0, evaluations: 0, saves: 0 });
        let derived = derive(&arms, &comparisons, whole(900), None, None);
        assert_eq!((derived.compiler_share, derived.batch_share), (Some(2.0), Some(1.5)));
        assert_eq!((derived.total_speedup, derived.interaction), (Some(3.0), Some(1.2)));
        // 10 s more at the start, 50 ms less a step; 1 s with what is kept.
        assert_eq!((derived.break_even_step, derived.break_even_step_later), (Some(200.0), Some(20.0)));
        assert_eq!((derived.ceiling, derived.compute_share), (Some(10.0), Some(0.9)));
        let advice = derived.advice.unwrap();
        assert!(advice.contains("after step 200: train it compiled, 32 examples at a time"), "{advice}");
        let advice = derive(&arms, &comparisons, whole(150), None, None).advice.unwrap();
        assert!(advice.contains("150 steps and compiling would pay after step 200: stay native"), "{advice}");
        // An arm that is not measurably faster pays for nothing.
        let same = derive(&arms, &[comparison("compiled", Verdict::Same, 2.0)], whole(900), None, None);
        assert_eq!(same.break_even_step, None);
        assert!(same.advice.unwrap().contains("no measurable difference"));
    }

    #[test]
    fn losses_are_compared_where_all_have_been() {
        // The second arm takes twice the tokens a step, and three times as long.
        let (a, b) = (curve(&[8.0, 6.0, 4.0, 2.0], 10.0, 1.0), curve(&[7.0, 5.0, 3.0], 20.0, 3.0));
        let moments = Moments { steps: 3.0, tokens: 40.0, seconds: 4.0 };
        let (a, b) = (at_equal(&a, moments), at_equal(&b, moments));
        // Means of up to 5 rows.
        assert_eq!((a.steps, a.tokens, a.seconds), (Some(6.0), Some(5.0), Some(5.0)));
        assert_eq!((b.steps, b.tokens, b.seconds), (Some(5.0), Some(6.0), Some(7.0)));
        let early = at_equal(&curve(&[1.0], 1.0, 1.0), Moments { seconds: 0.5, ..moments });
        assert_eq!((early.steps, early.seconds), (Some(1.0), None));
    }

    #[test]
    fn the_target_is_reached_at_the_first_smoothed_row_below_it() {
        let curve = curve(&[8.0, 6.0, 4.0, 2.0], 10.0, 1.5);
        assert_eq!((seconds_to(&curve, 6.0), seconds_to(&curve, 4.9)), (Some(4.5), None));
    }
}
