//! The verdict on a case: whether its arms learned the same, and only then how their times
//! relate.

use kiln::config::Precision;
use kiln::session::provenance::Provenance;
use kiln_core::error::Result;

use super::report::{BenchArm, CaseReport, Pair};
use crate::loss_parity::Parity;
use crate::stats::ratio_of_medians;

/// Holds the losses of every arm against those of the first that has any, and makes the
/// ratios of times of those that are equal: of everything to `compiled`, and of peers to `native`.
///
/// # Errors
/// A signal.
pub(super) fn judge(report: &mut CaseReport) -> Result<()> {
    let Some(reference) = report.arms.iter().position(|arm| arm.losses().next().is_some()) else {
        return Ok(());
    };
    let kiln = report.arms.iter().filter_map(kiln_provenance).collect::<Vec<_>>();
    let by_mean = kiln.iter().any(|it| it.own_masks);
    let against = &report.arms[reference];
    let checks = report.arms.iter().skip(reference + 1).filter_map(|arm| {
        let losses = [(against.losses().collect(), arm.losses().collect())];
        let precisions = kiln.iter().map(|it| it.precision).chain([Precision::F32]);
        let found = Parity::of(&losses, by_mean, precisions)?;
        Some(Pair { of: arm.name.clone(), against: against.name.clone(), found })
    });
    report.losses = checks.collect();
    let is_equal =
        |name: &str| name == against.name || report.losses.iter().any(|check| check.of == name && check.found.passed);
    let names = report.arms.iter().map(|arm| arm.name.as_str());
    let names = names.filter(|name| is_equal(name)).collect::<Vec<_>>();
    let of_compiled = names.iter().filter(|of| **of != "compiled").map(|of| (*of, "compiled"));
    let of_native = names.iter().filter(|of| !["native", "compiled"].contains(of)).map(|of| (*of, "native"));
    let samples = |name: &str| {
        let found = report.arms.iter().find(|arm| arm.name == name);
        found.filter(|_| is_equal(name)).map(BenchArm::samples)
    };
    let mut ratios = Vec::new();
    for (of, against) in of_compiled.chain(of_native) {
        let Some((left, right)) = samples(of).zip(samples(against)) else { continue };
        let Some(found) = ratio_of_medians(&left, &right, 1)? else { continue };
        ratios.push(Pair { of: of.to_owned(), against: against.to_owned(), found });
    }
    report.ratios = ratios;
    Ok(())
}

/// The time of a step if its arithmetic runs at `gflops`, in ms.
pub(super) fn floor_ms(report: &CaseReport, gflops: f64) -> Option<f64> {
    let provenance = report.arms.iter().find_map(kiln_provenance)?;
    let steps = report.arms.iter().find_map(|arm| arm.rounds.first())?;
    let tokens = steps.iter().map(|step| step.tokens as f64).sum::<f64>() / steps.len() as f64;
    Some(provenance.flops_per_token? * tokens / gflops / 1e6)
}

pub(super) fn kiln_provenance(arm: &BenchArm) -> Option<Provenance> {
    serde_json::from_value(arm.provenance.clone()).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use kiln::trainer::laps::StepTimes;

    fn arm(name: &str, ms: f64, losses: &[f64]) -> BenchArm {
        let step = |(index, loss): (usize, &f64)| StepTimes {
            step: index as u64 + 1,
            step_ms: ms,
            synced: true,
            loss: Some(*loss),
            ..StepTimes::default()
        };
        let rounds = vec![losses.iter().enumerate().map(step).collect(); 2];
        BenchArm { name: name.into(), rounds, ..BenchArm::default() }
    }

    fn judged(arms: Vec<BenchArm>) -> CaseReport {
        let mut report = CaseReport { arms, ..CaseReport::default() };
        judge(&mut report).unwrap();
        report
    }

    #[test]
    fn no_ratio_without_equal_losses() {
        let same = [5.0, 4.5, 4.0];
        let report = judged(vec![
            arm("native", 30.0, &same),
            arm("compiled", 10.0, &[5.0, 4.5001, 4.0]),
            arm("eager", 15.0, &same),
            arm("other", 5.0, &[5.0, 4.6, 4.0]),
            arm("none", 5.0, &[5.0, f64::NAN, 4.0]),
        ]);
        let passed = report.losses.iter().map(|check| check.found.passed).collect::<Vec<_>>();
        assert_eq!(passed, [true, true, false, false]);
        let pairs = report.ratios.iter().map(|it| (it.of.as_str(), it.against.as_str(), it.found.ratio.round()));
        let expected = [("native", "compiled", 3.0), ("eager", "compiled", 2.0), ("eager", "native", 1.0)];
        assert_eq!(pairs.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn one_that_failed_is_left_out() {
        let mut failed = BenchArm { name: "native".into(), ..BenchArm::default() };
        failed.failure = Some("out of memory".into());
        let report = judged(vec![failed, arm("compiled", 10.0, &[1.0]), arm("eager", 20.0, &[1.0])]);
        let ratios = report.ratios.iter().map(|it| it.of.as_str()).collect::<Vec<_>>();
        assert_eq!((report.losses.len(), ratios), (1, vec!["eager"]));
    }
}
