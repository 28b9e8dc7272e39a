//! The page of a search: a table of the trials, the best first, their curves, each key against the
//! figure, and what compiling saved.

use super::document::{Document, Section, Statement, Tone};
use crate::sweep::{Rung, Sweep, Trial};
use crate::table::{Rows, Table, fixed};
use kiln::config::CompilerMode;
use kiln::run_folder::runs::repeat_command;
use kiln_core::words::duration;

/// The search as a document; `made_at` is the moment at which it is made, RFC 3339.
pub(super) fn document(sweep: &Sweep, made_at: String) -> Document {
    let ranked = sweep.ranked();
    let best = ranked.first().and_then(|trial| Some((trial, trial.last()?)));
    let equal = sweep.best();
    let answer = best.map(|(trial, Rung { step, value, .. })| match &equal[..] {
        [_, _, ..] => {
            let (metric, count, of) = (&sweep.metric, equal.len(), sweep.trials.len());
            let numbers = equal.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
            let sentence =
                format!("No single best: {count} of {of} trials are equal, {metric} {value:.6}: trials {numbers}.");
            Statement::new(Tone::Plain, sentence)
        }
        _ => {
            let sentence = format!(
                "Best: trial {}: {}: {} {value:.6} after {step} steps.",
                trial.number,
                trial.described(),
                sweep.metric
            );
            Statement::new(Tone::Good, sentence)
        }
    });
    let again = best.and_then(|(trial, _)| trial.arms.first()).and_then(|arm| repeat_command(&arm.run));
    let failures = sweep.trials.iter().filter_map(|trial| {
        Some(format!("trial {}: {}: {}", trial.number, trial.described(), trial.failure()?.message))
    });
    let folders = ranked.iter().flat_map(|trial| &trial.arms).map(|arm| arm.run.display().to_string());
    let others = sweep.trials.iter().filter(|trial| trial.last().is_none() && trial.failure().is_none()).count();
    let notes = (others > 0).then(|| format!("{others} trials have not begun"));
    let table = table(sweep, &ranked);
    Document {
        title: format!("{}: {} trials", sweep.title, sweep.trials.len()),
        made_at,
        answer,
        statements: sweep.seconds_of_modes().map(saved).into_iter().collect(),
        statements_title: "Native and compiled",
        failures: failures.collect(),
        conclusions: Vec::new(),
        labels: table.names.iter().map(|name| short(name, &table.names).to_owned()).collect(),
        is_list: true,
        table,
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
        (Tone::Good, format!("compiling saved {} ({share:.1} %) over the whole search", duration(difference)))
    } else {
        (Tone::Bad, format!("compiling cost {} ({:.1} %) over the whole search", duration(-difference), -share))
    };
    Statement::new(tone, format!("{what}: {} compiled, {} native.", duration(compiled), duration(native)))
}

/// A name without its section, unless another of `all` is the same without its own.
fn short<'a>(name: &'a str, all: &[String]) -> &'a str {
    let last = |name: &'a str| name.rsplit_once('.').map_or(name, |(_, last)| last);
    let is_alone = all.iter().filter(|other| other.rsplit('.').next() == Some(last(name))).count() == 1;
    if is_alone { last(name) } else { name }
}

/// A row for each trial.
fn table(sweep: &Sweep, ranked: &[&Trial]) -> Table {
    type Cell<'a> = Box<dyn Fn(&Trial) -> Option<String> + 'a>;
    let mut columns = Vec::<(String, Cell)>::new();
    let keys = sweep.trials.first().into_iter().flat_map(|trial| trial.parameters.keys());
    columns.extend(keys.map(|key| (key.clone(), Box::new(|trial: &Trial| trial.parameters.get(key).cloned()) as Cell)));
    let value = |value: f64| fixed(value, 6);
    columns.push((sweep.metric.clone(), Box::new(move |trial| Some(value(trial.last()?.value)))));
    if sweep.modes.len() > 1 {
        let of =
            |trial: &Trial| trial.arms.iter().find(|arm| arm.mode == CompilerMode::Compiled)?.rungs.last().copied();
        columns.push((format!("{}, compiled", sweep.metric), Box::new(move |trial| Some(value(of(trial)?.value)))));
    }
    columns.push(("steps".into(), Box::new(|trial| Some(trial.last()?.step.to_string()))));
    let end = |trial: &Trial| if trial.is_complete() { "complete" } else { "stopped early" };
    columns.push(("end".into(), Box::new(move |trial| Some(end(trial).into()))));
    for mode in &sweep.modes {
        columns.push((format!("seconds, {mode}"), Box::new(|trial| Some(fixed(trial.seconds(*mode)?, 1)))));
    }
    let mut rows = Rows::new(&columns);
    for trial in ranked {
        rows.add(&format!("trial {}", trial.number), |(_, cell)| cell(trial));
    }
    rows.table(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_short_where_it_is_alone() {
        let all = ["trainer.learning_rate", "model.dropout", "lora.dropout", "steps"].map(str::to_owned);
        let short = all.each_ref().map(|name| short(name, &all));
        assert_eq!(short, ["learning_rate", "model.dropout", "lora.dropout", "steps"]);
    }
}
