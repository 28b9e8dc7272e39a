//! The records that CubeCL wrote into the kernel cache while a run with `compiler.debug` went on:
//! the choices that tuning made, with the candidates it tried and their times, and the kernels it
//! compiled or found there. Compiled engine only.
//!
//! CubeCL keeps the records of a process that changed the cache and no others: one that found
//! everything leaves none.

use std::time::{Duration, SystemTime};

use cubecl_environment::persistence::Database;
use cubecl_environment::records::{self, Record, Records, Stamped};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The records of this run, told from those of other processes by a label.
#[derive(Debug)]
pub(crate) struct Session {
    label: String,
}

/// A choice between kernels: `TuneRecord` of cubecl-runtime, the fields that are used.
#[derive(Debug, Deserialize)]
struct Tune {
    table: String,
    entry: Entry,
    winner: usize,
    trials: Vec<Trial>,
    wall: Duration,
    #[serde(default)]
    plan: Vec<Candidate>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    key: Value,
}

#[derive(Debug, Deserialize)]
struct Trial {
    name: String,
    wall: Duration,
}

#[derive(Debug, Deserialize)]
struct Candidate {
    name: String,
    index: usize,
}

impl Record for Tune {
    const KIND: &'static str = "autotune";
}

/// A kernel on its way to the device: `CompilationRecord` of cubecl-server, the fields that are
/// used.
#[derive(Debug, Deserialize)]
struct Compilation {
    kernel: String,
    outcome: Outcome,
    duration: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum Outcome {
    Compiled,
    Loaded,
    /// Found under another name.
    Rekeyed,
}

impl Record for Compilation {
    const KIND: &'static str = "compilation";
}

impl Session {
    /// Labels what is recorded from now on.
    pub(crate) fn start() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let label = format!("kiln {} {}", std::process::id(), since.as_nanos());
        records::label(&label);
        Self { label }
    }

    /// The records since then; null where the cache cannot be read.
    pub(crate) fn read(&self) -> Value {
        let Some(database) = Database::open_active() else { return Value::Null };
        let records = Records::new(&database);
        let labelled = |label: &Option<String>| label.as_ref() == Some(&self.label);
        let own = records.sessions().into_iter().find(|session| labelled(&session.label)).map(|session| session.id);
        fn of<R: Record + DeserializeOwned>(records: Records<'_>, own: Option<records::SessionId>) -> Vec<R> {
            let all = records.read::<R>().into_iter();
            all.filter(|Stamped { stamp, .. }| Some(stamp.session) == own)
                .map(|Stamped { record, .. }| record)
                .collect()
        }
        summary(of(records, own), of(records, own))
    }
}

fn summary(mut tunings: Vec<Tune>, compilations: Vec<Compilation>) -> Value {
    tunings.sort_by_key(|tuning| std::cmp::Reverse(tuning.wall));
    let compiled = compilations.iter().filter(|kernel| kernel.outcome == Outcome::Compiled).count();
    let found = compilations.len() - compiled;
    let seconds = |all: &mut dyn Iterator<Item = Duration>| all.sum::<Duration>().as_secs_f64();
    json!({
        "tune_seconds": seconds(&mut tunings.iter().map(|tuning| tuning.wall)),
        "tunings": tunings.iter().map(choice).collect::<Value>(),
        "compiled": compiled,
        "found": found,
        "hit_rate": (!compilations.is_empty()).then(|| found as f64 / compilations.len() as f64),
        "compile_seconds": seconds(&mut compilations.iter().map(|kernel| kernel.duration)),
        "kernels": compilations.iter().map(|Compilation { kernel, outcome, duration }| json!({
            "kernel": kernel,
            "compiled": *outcome == Outcome::Compiled,
            "seconds": duration.as_secs_f64(),
        })).collect::<Value>(),
    })
}

fn choice(tuning: &Tune) -> Value {
    let winner = tuning.plan.iter().find(|candidate| candidate.index == tuning.winner);
    json!({
        // `.../burn_cubecl-kernel-matmul-tune-base`: the operation stands last.
        "of": tuning.table.rsplit('/').next(),
        "key": tuning.entry.key,
        "winner": winner.map_or_else(|| format!("candidate {}", tuning.winner), |candidate| candidate.name.clone()),
        "seconds": tuning.wall.as_secs_f64(),
        // One that was given up before it ran has no time.
        "tried": tuning.trials.iter().filter(|trial| !trial.wall.is_zero()).map(|Trial { name, wall }| json!({
            "candidate": name,
            "seconds": wall.as_secs_f64(),
        })).collect::<Value>(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn hits_are_what_was_not_compiled_and_the_longest_choice_is_first() {
        let kernel =
            |outcome: &str| json!({ "kernel": "k", "outcome": outcome, "duration": { "secs": 1, "nanos": 0 } });
        let tune = |winner: usize, secs: u64| {
            json!({
                "table": "0.11/device/matmul", "entry": { "key": { "m": 8 }, "checksum": "c" }, "winner": winner,
                "trials": [
                    { "name": "tiled", "wall": { "secs": secs, "nanos": 0 } },
                    { "name": "naive", "wall": { "secs": 0, "nanos": 0 } },
                ],
                "wall": { "secs": secs, "nanos": 0 }, "plan": [{ "name": "tiled", "index": 3 }],
            })
        };
        let tunings = serde_json::from_value(json!([tune(3, 1), tune(4, 2)])).unwrap();
        let kernels = ["Compiled", "Loaded", "Rekeyed", "Loaded"].map(kernel);
        let found = summary(tunings, serde_json::from_value(json!(kernels)).unwrap());
        assert_eq!((&found["compiled"], &found["found"], &found["hit_rate"]), (&json!(1), &json!(3), &json!(0.75)));
        assert_eq!((&found["tune_seconds"], &found["compile_seconds"]), (&json!(3.0), &json!(4.0)));
        assert_eq!(
            (&found["tunings"][0]["winner"], &found["tunings"][1]["winner"]),
            (&json!("candidate 4"), &json!("tiled"))
        );
        assert_eq!(found["tunings"][1]["of"], "matmul");
        assert_eq!(found["tunings"][1]["tried"], json!([{ "candidate": "tiled", "seconds": 1.0 }]));
        assert_eq!(summary(Vec::new(), Vec::new())["hit_rate"], Value::Null);
    }
}
