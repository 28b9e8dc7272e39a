//! Makes a [`Report`] of an [`Experiment`] and its run folders, running nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use kiln::trainer::laps::Parts;
use kiln_core::clock;
use kiln_core::error::{Error, Result};
use kiln_core::stats::{mean, median};

use super::derived::{at_equal, common_moments, common_target, derive, seconds_to};
use super::learned::learned;
use super::{ArmReport, ArmRuns, Comparison, Experiment, LossPoint, REPORT_SCHEMA, Report, Role, WholeRun};
use crate::figures::{SpeedFigures, Window, finite};
use crate::loss_parity::Parity;
use crate::measured::MeasuredRun;
use crate::stats::{Samples, ratio_of_medians};
use crate::verdict::Verdict;

/// Settings that may differ between arms without a word: where a run writes, how often it says
/// something, and its seed, which changes from repeat to repeat. The compiler is what is compared.
const FREE: &[&str] = &[
    "run.",
    "compiler.",
    "generation.",
    "trainer.logging_",
    "trainer.report_to",
    "trainer.push_to_hub",
    "trainer.hub_",
    "trainer.eval_",
    "trainer.save_",
    "trainer.max_minutes",
    "trainer.load_best_model_at_end",
    "trainer.seed",
];

/// Keys without a section that change what is learned.
const CHANGE_LOSSES: &[&str] = &["precision", "parameters"];

/// Windows that an arm needs at least.
const WINDOWS: usize = 3;

/// The seed of all draws: the same runs give the same report.
const SEED: u64 = 42;

/// An arm and what its run folders say.
struct MeasuredArm<'a> {
    runs: &'a ArmRuns,
    measured: Vec<MeasuredRun>,
}

/// The report of the experiment whose run folders are under `base`.
///
/// # Errors
/// Runs that are not complete or damaged. Where only the saved plan of a run cannot be read, that
/// is an error of finished runs; of the arms of an experiment, which ran for each other, that one
/// fails.
pub fn analyse(experiment: &Experiment, base: &Path) -> Result<Report> {
    let read =
        |arm: &'_ ArmRuns| arm.runs.iter().map(|run| MeasuredRun::read(&base.join(run))).collect::<Result<Vec<_>>>();
    let is_of_finished_runs = experiment.arms.iter().any(|arm| arm.role == Role::Run);
    let (mut described, mut measured) = (experiment.arms.clone(), Vec::new());
    for arm in &mut described {
        let runs = read(arm)?;
        measured.push(match runs.iter().find_map(|run| run.plan.as_ref().err()) {
            None => runs,
            Some(unreadable) if is_of_finished_runs => return Err(unreadable.error()),
            Some(unreadable) => {
                arm.failure.get_or_insert_with(|| unreadable.failure());
                Vec::new()
            }
        });
    }
    let arms = described.iter().zip(measured).map(|(runs, measured)| MeasuredArm { runs, measured });
    let arms = arms.collect::<Vec<_>>();
    let Some(reference) = arms.first() else {
        return Err(Error::data("there is nothing to report on").help("give at least one run folder"));
    };
    let of_role = |role: Role| arms.iter().find(|arm| arm.runs.role == role);
    let again = of_role(Role::Again);
    let noise = again.map(|again| compare(reference, again, None, None)).transpose()?;
    let others = arms.iter().skip(1).filter(|arm| arm.runs.role != Role::Again);
    // A compiled point of a sweep is compared with the native one that stands before it, and
    // compiled without a part with compiled as a whole.
    let comparisons = others.map(|arm| {
        let earlier = arms.iter().take_while(|other| other.runs.name != arm.runs.name);
        let same = |other: &&MeasuredArm| other.runs.role == Role::Sweep && other.runs.point == arm.runs.point;
        let other = match arm.runs.role {
            Role::Sweep => earlier.into_iter().find(same),
            Role::Ablation => of_role(Role::Compiled),
            _ => None,
        };
        match other {
            Some(other) => compare(other, arm, None, noise.as_ref()),
            None => compare(reference, arm, again, noise.as_ref()),
        }
    });
    let mut comparisons = comparisons.collect::<Result<Vec<_>>>()?;
    let mut reports = arms.iter().map(|arm| describe(arm, experiment)).collect::<Vec<_>>();
    let target = experiment.target_loss.or_else(|| common_target(&reports));
    let moments = common_moments(&reports);
    for report in &mut reports {
        report.seconds_to_target = target.and_then(|target| seconds_to(&report.loss, target));
        report.loss_at_equal = moments.map(|moments| at_equal(&report.loss, moments));
    }
    for comparison in comparisons.iter_mut().filter(|comparison| comparison.speedup.is_some()) {
        let of = |name: &str| {
            let (arm, report) = arms.iter().zip(&reports).find(|(arm, _)| arm.runs.name == name)?;
            // Seconds of finished runs of unlike length say nothing.
            Some((
                experiment.whole.map_or(arm.measured.first()?.samples, |whole| whole.samples),
                report.billable_seconds?,
            ))
        };
        let both = of(&comparison.against).zip(of(&comparison.arm)).filter(|(a, b)| a.0 == b.0);
        comparison.billable_saved_percent = both.map(|(n, o)| (n.1 - o.1) * 100.0 / n.1);
    }
    let derived = derive(&reports, &comparisons, experiment.whole, target, moments);
    Ok(Report {
        schema: REPORT_SCHEMA.into(),
        title: experiment.title.clone(),
        made_at: clock::rfc3339(),
        arms: reports,
        noise,
        comparisons,
        derived,
        whole: experiment.whole,
        gemm_gflops: experiment.gemm_gflops,
        price_per_hour: experiment.price_per_hour,
        notes: notes(experiment, &arms),
    })
}

fn notes(experiment: &Experiment, arms: &[MeasuredArm]) -> Vec<String> {
    let mut notes = experiment.notes.clone();
    let late: u64 = arms.iter().flat_map(|arm| &arm.measured).map(|run| run.late_steps).sum();
    if late > 0 {
        notes.push(format!(
            "{late} steps after the warm-up had a new batch shape, or compiled or tuned kernels; they are in the figures"
        ));
    }
    let is_debug = |run: &MeasuredRun| run.provenance.as_ref().is_some_and(|it| it.build == "debug");
    if arms.iter().flat_map(|arm| &arm.measured).any(is_debug) {
        notes.push("kiln was built without --release: the figures are not those of a release build".into());
    }
    if arms.iter().all(|arm| arm.measured.len() < 2) {
        notes.push("one run an arm: the intervals know how steps differ, not how runs differ".into());
    }
    notes
}

/// The verdict on `arm` against `reference`, whose samples are joined with those of `again` (the
/// same arm, run on the other side of `arm` in time).
fn compare(
    reference: &MeasuredArm,
    arm: &MeasuredArm,
    again: Option<&MeasuredArm>,
    noise: Option<&Comparison>,
) -> Result<Comparison> {
    let differences = differences(reference, arm);
    let is_about = |key: &str, of: &str| if of.ends_with('.') { key.starts_with(of) } else { key == of };
    let changes = |key: &str| arm.runs.changes.iter().chain(&reference.runs.changes).any(|of| is_about(key, of));
    let unlabelled = differences.iter().filter(|(key, _)| !changes(key)).map(|(_, text)| text.as_str());
    let unlabelled = unlabelled.collect::<Vec<_>>();
    // Settings have a point in their names; circumstances, which have none, change no loss beyond
    // rounding.
    let same_losses = reference.runs.point == arm.runs.point
        && !differences.iter().any(|(key, _)| key.contains('.') || CHANGE_LOSSES.contains(&key.as_str()));
    let seeds = |arm: &MeasuredArm| {
        arm.measured.iter().map(|run| run.settings.get("trainer.seed").cloned()).collect::<Vec<_>>()
    };
    let common = reference.measured.len().min(arm.measured.len());
    let same_seeds = seeds(reference)[..common] == seeds(arm)[..common];
    let parity = (same_losses && same_seeds && unlabelled.is_empty())
        .then(|| parity(&reference.measured, &arm.measured))
        .flatten();
    let few = |arm: &MeasuredArm| arm.measured.iter().map(|run| run.steady.len()).sum::<usize>() < WINDOWS;
    let reason = match (&arm.runs.failure, &reference.runs.failure) {
        (Some(failure), _) => Some(format!("{}: {}", arm.runs.name, failure.message)),
        (None, Some(failure)) => Some(format!("{}: {}", reference.runs.name, failure.message)),
        _ if !unlabelled.is_empty() => Some(format!("they differ in {}", unlabelled.join("; "))),
        // Looking at the compiler takes time.
        _ if arm.measured.iter().chain(&reference.measured).any(MeasuredRun::is_debug) => Some("debug".into()),
        _ if arm.measured.iter().any(MeasuredRun::is_unfused) && arm.runs.role != Role::Ablation
            || reference.measured.iter().any(MeasuredRun::is_unfused) =>
        {
            Some("unfused: Burn's fusion was held off, which is neither native nor compiled".into())
        }
        _ if few(arm) || few(reference) => Some(few_windows()),
        _ => parity.as_ref().filter(|parity| !parity.passed).map(|parity| {
            format!(
                "parity failed: the {} differ by {:.1e} relative, the limit is {:.0e}",
                if parity.by_mean { "mean losses" } else { "losses at equal steps" },
                parity.relative,
                parity.limit
            )
        }),
    };
    let of_run = |run: &MeasuredRun| run.steady.iter().map(Window::sample_ms).collect();
    let samples = |arm: &MeasuredArm| arm.measured.iter().map(of_run).collect::<Samples>();
    let mut native = samples(reference);
    for (run, again) in native.iter_mut().zip(again.map(samples).into_iter().flatten()) {
        run.extend(again);
    }
    let speedup = if reason.is_none() { ratio_of_medians(&native, &samples(arm), SEED)? } else { None };
    let noise = noise.and_then(|noise| noise.speedup);
    let finished = arm.measured.first().filter(|_| arm.runs.role == Role::Run);
    let both = finished.zip(reference.measured.first()).map(|(run, other)| [run, other]);
    Ok(Comparison {
        arm: arm.runs.name.clone(),
        against: reference.runs.name.clone(),
        verdict: speedup.map_or(Verdict::NotComparable, |speedup| Verdict::of(speedup, noise)),
        reason: reason.or_else(|| speedup.is_none().then(|| "an arm has no run".into())),
        speedup,
        time_saved_percent: speedup.map(|speedup| (1.0 - 1.0 / speedup.ratio) * 100.0),
        throughput_gained_percent: speedup.map(|speedup| (speedup.ratio - 1.0) * 100.0),
        billable_saved_percent: None,
        learned: both.map(|runs| learned(runs, [&arm.runs.name, &reference.runs.name])),
        parity,
        differences: differences.into_iter().map(|(_, text)| text).collect(),
    })
}

/// Compares what two arms learn repeat by repeat.
fn parity(a: &[MeasuredRun], b: &[MeasuredRun]) -> Option<Parity> {
    let own_masks = |run: &MeasuredRun| run.provenance.as_ref().is_none_or(|it| it.own_masks);
    let losses = |run: &MeasuredRun| run.losses.iter().map(|row| (row.step, row.loss)).collect::<Vec<_>>();
    let repeats = a.iter().zip(b).map(|(a, b)| (losses(a), losses(b))).collect::<Vec<_>>();
    let both = || a.iter().chain(b);
    let precisions = both().filter_map(|run| run.provenance.as_ref().map(|it| it.precision));
    Parity::of(&repeats, both().any(own_masks), precisions)
}

fn few_windows() -> String {
    format!(
        "an arm has fewer than {WINDOWS} steady windows: raise --steps, or set data.padding = \"max_length\" if new batch \
         shapes kept coming"
    )
}

/// Settings and circumstances in which the first runs of two arms differ: key, and a text with both
/// values.
fn differences(a: &MeasuredArm, b: &MeasuredArm) -> Vec<(String, String)> {
    // The arms of a comparison run alternately, whatever the day.
    let is_finished_run = b.runs.role == Role::Run;
    let (Some(a), Some(b)) = (a.measured.first(), b.measured.first()) else { return Vec::new() };
    let keys = a.settings.keys().chain(b.settings.keys()).collect::<BTreeSet<_>>();
    let keys = keys.into_iter().filter(|key| !FREE.iter().any(|free| key.starts_with(free)));
    let circumstances = |run: &MeasuredRun| {
        let of = run.provenance.as_ref();
        let text = |pick: fn(&kiln::session::provenance::Provenance) -> String| of.map(pick);
        BTreeMap::from([
            ("kiln", text(|it| it.kiln.clone())),
            ("commit", text(|it| it.commit.clone().unwrap_or_else(|| "unknown".into()))),
            ("burn", text(|it| it.burn.clone())),
            ("build", text(|it| it.build.clone())),
            ("device", text(|it| it.device.clone())),
            ("driver", text(|it| it.driver.clone().unwrap_or_else(|| "unknown".into()))),
            ("system", text(|it| it.system.clone())),
            ("cpu", text(|it| it.cpu.clone().unwrap_or_default())),
            ("threads", text(|it| it.threads.to_string())),
            ("parameters", text(|it| it.parameters.to_string())),
        ])
    };
    let differs = |key: &str, a: Option<&String>, b: Option<&String>| {
        let shown = |value: Option<&String>| value.map_or("not given".to_owned(), String::clone);
        (a != b).then(|| (key.to_owned(), format!("{key}: {} against {}", shown(a), shown(b))))
    };
    let mut found = keys.filter_map(|key| differs(key, a.settings.get(key), b.settings.get(key))).collect::<Vec<_>>();
    let (left, right) = (circumstances(a), circumstances(b));
    if is_finished_run {
        found.extend(differs("day", Some(&a.day), Some(&b.day)));
    }
    found.extend(left.iter().filter_map(|(key, value)| differs(key, value.as_ref(), right[key].as_ref())));
    found
}

/// The figures of an arm.
fn describe(arm: &MeasuredArm, experiment: &Experiment) -> ArmReport {
    let runs = &arm.measured;
    let provenance = runs.first().and_then(|run| run.provenance.clone());
    let first = runs.first();
    let plan = runs.first().and_then(|run| run.plan.as_ref().ok()?.as_ref());
    let over_runs =
        |pick: &dyn Fn(&MeasuredRun) -> Option<f64>| finite(median(&runs.iter().filter_map(pick).collect::<Vec<_>>()));
    let windows = runs.iter().flat_map(|run| run.steady.iter().copied()).collect::<Vec<_>>();
    let figures = SpeedFigures::of(&windows, over_runs(&|run| run.summary("peak_mib")));
    let of_evaluations = |run: &MeasuredRun| {
        let seconds = run.evaluations.iter().filter_map(|row| row.get("eval_runtime")).collect::<Vec<_>>();
        finite(mean(&seconds))
    };
    let save = |run: &MeasuredRun| {
        finite(median(&run.steps.iter().map(|step| step.save_ms / 1e3).filter(|s| *s > 0.0).collect::<Vec<_>>()))
    };
    let outside = runs.iter().zip(&arm.runs.process_seconds);
    let outside = outside.filter_map(|(run, process)| Some(process - run.summary("train_runtime")?));
    let startup_seconds = finite(median(&outside.map(|seconds| seconds.max(0.0)).collect::<Vec<_>>()));
    let (evaluation_seconds, save_seconds) = (over_runs(&of_evaluations), over_runs(&save));
    let warmups = runs.iter().map(|run| run.warmup.0).collect::<Vec<_>>();
    let flops = provenance.as_ref().and_then(|of| of.flops_per_token);
    let model_gflops = figures.tokens_per_s.zip(flops).map(|(rate, flops)| rate * flops / 1e9);
    let excess = runs.iter().map(|run| run.warmup_excess().unwrap_or(0.0)).collect::<Vec<_>>();
    let overhead = |excess: f64| Some(excess + startup_seconds.unwrap_or(0.0)).filter(|seconds| seconds.is_finite());
    let overhead_seconds_first = excess.first().copied().and_then(overhead);
    let of_whole = |whole: WholeRun| {
        let training = whole.samples as f64 / figures.samples_per_s?;
        Some(
            training
                + overhead_seconds_first?
                + whole.evaluations as f64 * evaluation_seconds.unwrap_or(0.0)
                + whole.saves as f64 * save_seconds.unwrap_or(0.0),
        )
    };
    let billable_seconds = match experiment.whole {
        Some(whole) => of_whole(whole),
        None => first.map(|run| run.seconds),
    };
    let loss = curve(runs);
    let is_of_finished_runs = experiment.arms.iter().any(|arm| arm.role == Role::Run);
    let finished = first.filter(|_| is_of_finished_runs);
    ArmReport {
        name: arm.runs.name.clone(),
        label: arm.runs.label.clone(),
        role: arm.runs.role,
        failure: arm.runs.failure.as_ref().map(|failure| failure.message.clone()),
        micro_batch: plan.map(|plan| plan.train.batch.micro as u64),
        accumulation: plan.map(|plan| plan.train.batch.accumulation as u64),
        learning_rate: plan.map(|plan| plan.train.optimizer.learning_rate.rate),
        block: plan.and_then(|plan| plan.examples.block_size.or(plan.examples.max_length)).map(|length| length as u64),
        repeats: runs.len(),
        step_ms_p50: figures.step_ms.map(|ms| ms.median),
        step_ms_p95: figures.step_ms.map(|ms| ms.p95),
        step_ms_max: figures.step_ms.map(|ms| ms.max),
        budget_ms: figures.parts_ms.map(|parts| budget(parts, experiment.whole, evaluation_seconds, save_seconds)),
        warmup_seconds_first: warmups.first().copied(),
        warmup_seconds_later: finite(median(warmups.get(1..).unwrap_or_default())),
        startup_seconds,
        overhead_seconds_first,
        overhead_seconds_later: overhead(median(excess.get(1..).unwrap_or_default())),
        evaluation_seconds,
        save_seconds,
        model_gflops,
        model_flops_utilization: model_gflops.zip(experiment.gemm_gflops).map(|(rate, peak)| rate / peak),
        evaluations: finished.map_or_else(Vec::new, |run| run.evaluations.clone()),
        evaluation: finished.and_then(|run| run.evaluation.clone()),
        last_loss: loss.last().map(|point| point.loss),
        loss_at_equal: None,
        billable_seconds,
        energy_wh: figures
            .joules_per_sample
            .zip(experiment.whole.map(|whole| whole.samples).or_else(|| first.map(|run| run.samples)))
            .map(|(joules, samples)| joules * samples as f64 / 3600.0),
        cost: billable_seconds.zip(experiment.price_per_hour).map(|(seconds, price)| seconds / 3600.0 * price),
        seconds_to_target: None,
        loss,
        runs: arm.runs.runs.clone(),
        provenance,
        figures,
    }
}

/// `medians` of the parts of a step, with evaluation and saving spread over the steps of the whole
/// run.
fn budget(medians: Parts, whole: Option<WholeRun>, evaluation: Option<f64>, save: Option<f64>) -> Parts {
    let spread = |times: fn(WholeRun) -> u64, seconds: Option<f64>| {
        let whole = whole.filter(|whole| whole.steps > 0);
        whole.zip(seconds).map_or(0.0, |(whole, seconds)| times(whole) as f64 * seconds * 1e3 / whole.steps as f64)
    };
    Parts {
        evaluation: spread(|whole| whole.evaluations, evaluation),
        save: spread(|whole| whole.saves, save),
        ..medians
    }
}

/// The loss at the steps that all runs of an arm have logged.
fn curve(runs: &[MeasuredRun]) -> Vec<LossPoint> {
    let Some((first, others)) = runs.split_first() else { return Vec::new() };
    let points = first.losses.iter().filter_map(|row| {
        let mut rows = vec![*row];
        for run in others {
            rows.push(*run.losses.iter().find(|other| other.step == row.step)?);
        }
        let losses = rows.iter().map(|row| row.loss).collect::<Vec<_>>();
        Some(LossPoint {
            step: row.step,
            tokens: mean(&rows.iter().map(|row| row.tokens as f64).collect::<Vec<_>>()),
            seconds: mean(&rows.iter().map(|row| row.seconds).collect::<Vec<_>>()),
            loss: mean(&losses),
            low: losses.iter().copied().fold(f64::INFINITY, f64::min),
            high: losses.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    });
    points.collect()
}
