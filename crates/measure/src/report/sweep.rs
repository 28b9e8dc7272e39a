//! The page of a search: the trials side by side, the best first, their curves, and what compiling
//! saved.

use super::document::{Document, Section, Statement, Tone};
use crate::sweep::{Rung, Sweep, Trial};
use crate::table::{Rows, Table};
use kiln::config::CompilerMode;
use kiln::trainer::runs::repeat_command;

/// The search as a document; `made_at` is the moment at which it is made, RFC 3339.
pub(super) fn document(sweep: &Sweep, made_at: String) -> Document {
    let ranked = sweep.ranked();
    let best = ranked.first().and_then(|trial| Some((trial, trial.last()?)));
    let answer = best.map(|(trial, Rung { step, value, .. })| {
        let sentence = format!(
            "Best: trial {}: {}: {} {value:.6} after {step} steps.",
            trial.number,
            trial.described(),
            sweep.metric
        );
        Statement::new(Tone::Good, sentence)
    });
    let again = best.and_then(|(trial, _)| trial.arms.first()).and_then(|arm| repeat_command(&arm.run));
    let failures = sweep.trials.iter().filter_map(|trial| {
        Some(format!("trial {}: {}: {}", trial.number, trial.described(), trial.failure()?.message))
    });
    let folders = ranked.iter().flat_map(|trial| &trial.arms).map(|arm| arm.run.display().to_string());
    let others = sweep.trials.iter().filter(|trial| trial.last().is_none() && trial.failure().is_none()).count();
    let notes = (others > 0).then(|| format!("{others} trials have not begun"));
    Document {
        title: format!("{}: {} trials", sweep.title, sweep.trials.len()),
        made_at,
        answer,
        statements: sweep.seconds_of_modes().map(saved).into_iter().collect(),
        statements_title: "Native and compiled",
        failures: failures.collect(),
        conclusions: Vec::new(),
        labels: ranked.iter().map(|trial| format!("trial {}", trial.number)).collect(),
        table: table(sweep, &ranked),
        matrix: None,
        sections: vec![
            Section::list("The best again", again.into_iter().collect(), Some("Again: ")),
            Section::list("Notes", notes.into_iter().collect(), Some("Note: ")),
            Section::list("Run folders", folders.collect(), None),
        ],
    }
}

/// The time that compiling saved over the whole search, from the seconds of the runs in both modes.
fn saved((native, compiled): (f64, f64)) -> Statement {
    let (difference, share) = (native - compiled, (native - compiled) / native * 100.0);
    let (tone, what) = if difference >= 0.0 {
        (Tone::Good, format!("compiling saved {difference:.1} s ({share:.1} %) over the whole search"))
    } else {
        (Tone::Bad, format!("compiling cost {:.1} s ({:.1} %) over the whole search", -difference, -share))
    };
    Statement::new(tone, format!("{what}: {compiled:.1} s compiled, {native:.1} s native."))
}

fn table(sweep: &Sweep, ranked: &[&Trial]) -> Table {
    let names = ranked.iter().map(|trial| (trial.number.to_string(), *trial)).collect::<Vec<_>>();
    let mut rows = Rows::new(&names);
    let keys = sweep.trials.first().into_iter().flat_map(|trial| trial.parameters.keys());
    for key in keys {
        rows.add(key, |(_, trial)| trial.parameters.get(key).cloned());
    }
    rows.number(&sweep.metric, 6, |(_, trial)| Some(trial.last()?.value));
    if sweep.modes.len() > 1 {
        let of = |mode: CompilerMode| {
            move |trial: &Trial| Some(trial.arms.iter().find(|arm| arm.mode == mode)?.rungs.last()?.value)
        };
        rows.number("  compiled", 6, |(_, trial)| of(CompilerMode::Compiled)(trial));
    }
    rows.number("steps", 0, |(_, trial)| Some(trial.last()?.step as f64));
    rows.add("end", |(_, trial)| Some(if trial.is_complete() { "complete" } else { "stopped early" }.into()));
    for mode in &sweep.modes {
        rows.number(&format!("seconds, {mode}"), 1, |(_, trial)| trial.seconds(*mode));
    }
    rows.table(|(name, _)| name)
}
