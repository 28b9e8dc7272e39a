//! The section `[sweep]` of a file, and the trials that follow from it: all combinations of a grid,
//! or draws from ranges. The same section has the same trials.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kiln::config::CompilerMode;
use kiln_core::error::{Error, Result};
use kiln_core::random::{seed_for, uniform};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

/// `[sweep]`: a search over keys of a config.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepSection {
    /// The config file whose keys are searched. Default: the other sections of this file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<PathBuf>,
    /// The folder of the search. Default: `runs/NAME-sweep` for a file `NAME.toml`, and
    /// `runs/sweep` for `sweep.toml`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_dir: Option<PathBuf>,
    /// `grid` tries every combination, `random` draws `trials` of them. Default: `grid`.
    #[serde(default)]
    pub method: Method,
    /// How many trials `random` draws. Required there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trials: Option<usize>,
    /// Seed of the draws. Default: 42.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// The figure of `metrics.jsonl` by which trials are ranked: the last one that a trial has.
    /// Default: `eval_loss` where the config has validation data, else `loss`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// `minimize` or `maximize`. Default: `minimize` for a metric whose name ends in `loss` or
    /// `perplexity`, else `maximize`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,
    /// `native`, `compiled`, or `both`: every trial in both modes. Default: what `[compiler]` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Modes>,
    /// The search space: keys of the config, each a list of values, `{ values = [...] }`, or `{
    /// min, max, log }`. A range whose ends are whole numbers has whole numbers. Required.
    #[serde(default)]
    pub parameters: Table,
    /// Successive halving. Left out: every trial is trained to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asha: Option<Asha>,
}

fn default_seed() -> u64 {
    42
}

/// How combinations are chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// All.
    #[default]
    Grid,
    /// At random.
    Random,
}

/// Which figure is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// The smaller one.
    Minimize,
    /// The larger one.
    Maximize,
}

/// The modes in which a trial is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Modes {
    /// Native alone.
    Native,
    /// Compiled alone.
    Compiled,
    /// Both.
    Both,
}

impl std::str::FromStr for Modes {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let all = [("native", Self::Native), ("compiled", Self::Compiled), ("both", Self::Both)];
        let found = all.into_iter().find_map(|(name, modes)| (name == text).then_some(modes));
        found.ok_or_else(|| Error::config(format!("expected native, compiled or both, got {text}")))
    }
}

impl Modes {
    /// The modes, one after the other.
    pub fn list(self) -> Vec<CompilerMode> {
        match self {
            Self::Native => vec![CompilerMode::Native],
            Self::Compiled => vec![CompilerMode::Compiled],
            Self::Both => vec![CompilerMode::Native, CompilerMode::Compiled],
        }
    }
}

/// `[sweep.asha]`: successive halving (Li et al. 2020, "A System for Massively Parallel
/// Hyperparameter Tuning"). Trials stop after `min_steps`, and again after `reduction_factor` times
/// as many each time; of the trials at such a rung, the best of every `reduction_factor` go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asha {
    /// Optimizer steps of the first rung. Required.
    pub min_steps: u64,
    /// Default: 3.
    #[serde(default = "default_factor")]
    pub reduction_factor: u64,
}

fn default_factor() -> u64 {
    3
}

impl Asha {
    /// The steps of rung `rung`, from 0.
    pub fn steps(self, rung: usize) -> u64 {
        let factor = self.reduction_factor.checked_pow(u32::try_from(rung).unwrap_or(u32::MAX));
        factor.and_then(|factor| self.min_steps.checked_mul(factor)).unwrap_or(u64::MAX)
    }
}

/// The keys of a trial with their values, as they are written in TOML.
pub type Parameters = BTreeMap<String, String>;

/// More trials than anybody has the time for.
const MOST_TRIALS: usize = 10_000;

/// Keys that a search sets for its runs, and the setting of the search that decides them.
pub(super) const SET_BY_THE_SEARCH: [(&str, &str); 3] = [
    ("compiler.enabled", "set sweep.mode to native, compiled or both"),
    ("run.output_dir", "set sweep.output_dir, or --out"),
    ("run.on_existing", "a search that is started again goes on by itself"),
];

/// The values that a key may have.
enum Choice {
    Values(Vec<Value>),
    Range { min: f64, max: f64, is_log: bool, is_whole: bool },
}

impl SweepSection {
    /// The trials.
    ///
    /// # Errors
    /// A section that describes none, or too many.
    pub fn parameters_of_trials(&self) -> Result<Vec<Parameters>> {
        let mut choices = Vec::new();
        collect("", &self.parameters, &mut choices)?;
        if choices.is_empty() {
            return Err(Error::config("sweep.parameters: required: the keys to search")
                .help("for example: [sweep.parameters] \"trainer.learning_rate\" = [1e-4, 1e-3]"));
        }
        for (key, help) in SET_BY_THE_SEARCH {
            if choices.iter().any(|(searched, _)| searched.as_str() == key) {
                return Err(
                    Error::config(format!("sweep.parameters: {key}: a search sets it for each of its runs")).help(help)
                );
            }
        }
        if let Some(asha) = self.asha
            && (asha.min_steps == 0 || asha.reduction_factor < 2)
        {
            return Err(Error::config(
                "sweep.asha: expected min_steps of 1 or more and a reduction_factor of 2 or more",
            ));
        }
        match (self.method, self.trials) {
            (Method::Grid, Some(_)) => Err(Error::config("sweep.trials: a grid has as many trials as combinations")
                .help("leave it out, or set sweep.method = \"random\"")),
            (Method::Grid, None) => grid(&choices),
            (Method::Random, trials) => match trials.unwrap_or(0) {
                0 => Err(Error::config("sweep.trials: required for method = \"random\": 1 or more")),
                trials if trials > MOST_TRIALS => {
                    Err(Error::config(format!("sweep.trials: expected at most {MOST_TRIALS}, got {trials}")))
                }
                trials => Ok((0..trials).map(|trial| drawn(&choices, self.seed, trial as u64)).collect()),
            },
        }
    }
}

/// The keys below `table`, which may be written dotted or as tables.
fn collect(prefix: &str, table: &Table, choices: &mut Vec<(String, Choice)>) -> Result<()> {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        let bad = |what: String| {
            Error::config(format!("sweep.parameters: {key}: {what}"))
                .help("give a list of values, { values = [...] }, or { min = 1e-5, max = 1e-2, log = true }")
        };
        match value {
            Value::Array(values) => choices.push((key.clone(), listed(values).map_err(bad)?)),
            Value::Table(inner) if ["values", "min", "max"].iter().any(|name| inner.contains_key(*name)) => {
                choices.push((key.clone(), choice(inner).map_err(bad)?));
            }
            Value::Table(inner) => collect(&key, inner, choices)?,
            other => return Err(bad(format!("expected what it may be, got {other}"))),
        }
    }
    Ok(())
}

fn listed(values: &[Value]) -> std::result::Result<Choice, String> {
    if values.is_empty() { Err("the list is empty".into()) } else { Ok(Choice::Values(values.to_vec())) }
}

fn choice(table: &Table) -> std::result::Result<Choice, String> {
    let known = ["values", "min", "max", "log"];
    if let Some(name) = table.keys().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("unknown key {name}"));
    }
    if let Some(values) = table.get("values") {
        return match (values.as_array(), table.len()) {
            (Some(values), 1) => listed(values),
            _ => Err("expected `values` to be a list, without other keys".into()),
        };
    }
    let number = |name: &str| {
        let value =
            table.get(name).and_then(|value| value.as_float().or_else(|| value.as_integer().map(|it| it as f64)));
        value.filter(|value| value.is_finite()).ok_or_else(|| format!("expected a number as `{name}`"))
    };
    let (min, max) = (number("min")?, number("max")?);
    let is_log = match table.get("log") {
        None => false,
        Some(value) => value.as_bool().ok_or("expected true or false as `log`")?,
    };
    if min > max || (is_log && min <= 0.0) {
        return Err(format!("expected min <= max{}, got {min} and {max}", if is_log { " and min > 0" } else { "" }));
    }
    let is_whole = ["min", "max"].iter().all(|name| table.get(*name).is_some_and(Value::is_integer));
    Ok(Choice::Range { min, max, is_log, is_whole })
}

/// A value as TOML has it, large and small numbers with an exponent.
fn literal(value: &Value) -> String {
    match value {
        Value::Float(number) => format!("{number:?}"),
        other => other.to_string(),
    }
}

fn grid(choices: &[(String, Choice)]) -> Result<Vec<Parameters>> {
    let mut trials = vec![Parameters::new()];
    for (key, choice) in choices {
        let Choice::Values(values) = choice else {
            return Err(Error::config(format!("sweep.parameters: {key}: a grid needs values, and this is a range"))
                .help("list the values, or set sweep.method = \"random\""));
        };
        if trials.len() * values.len() > MOST_TRIALS {
            return Err(Error::config(format!("sweep.parameters: the grid has more than {MOST_TRIALS} trials"))
                .help("set sweep.method = \"random\" and sweep.trials"));
        }
        let with = |trial: &Parameters, value: &Value| {
            let mut trial = trial.clone();
            trial.insert(key.clone(), literal(value));
            trial
        };
        trials =
            trials.iter().flat_map(|trial| values.iter().map(|value| with(trial, value)).collect::<Vec<_>>()).collect();
    }
    Ok(trials)
}

fn drawn(choices: &[(String, Choice)], seed: u64, trial: u64) -> Parameters {
    let value = |(place, (key, choice)): (usize, &(String, Choice))| {
        let draw = uniform(seed_for(seed, "sweep", trial, place as u64));
        let value = match choice {
            Choice::Values(values) => values[(draw * values.len() as f64) as usize].clone(),
            Choice::Range { min, max, is_log, is_whole } => {
                // A whole number has the stretch up to the next one.
                let max = if *is_whole { max + 1.0 } else { *max };
                let number =
                    if *is_log { (min.ln() + draw * (max.ln() - min.ln())).exp() } else { min + draw * (max - min) };
                if *is_whole {
                    Value::Integer((number.floor() as i64).clamp(*min as i64, max as i64 - 1))
                } else {
                    // Nobody reads more digits.
                    Value::Float(format!("{:.5e}", number.clamp(*min, max)).parse().unwrap_or(number))
                }
            }
        };
        (key.clone(), literal(&value))
    };
    choices.iter().enumerate().map(value).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn trials(text: &str) -> Result<Vec<Parameters>> {
        toml::from_str::<SweepSection>(text).unwrap().parameters_of_trials()
    }

    #[test]
    fn a_grid_has_every_combination_however_its_keys_are_written() {
        let written = [
            "[parameters]\n\"a.b\" = [1, 2]\n\"c.d\" = { values = [\"x\", true] }",
            "[parameters]\na.b = [1, 2]\nc.d.values = [\"x\", true]",
        ];
        for text in written {
            let trials = trials(text).unwrap();
            let shown = trials.iter().map(|trial| format!("{}/{}", trial["a.b"], trial["c.d"])).collect::<Vec<_>>();
            assert_eq!(shown, ["1/\"x\"", "1/true", "2/\"x\"", "2/true"]);
        }
    }

    #[test]
    fn draws_stay_in_their_ranges_and_follow_from_the_seed() {
        let text = |seed: u64| {
            format!(
                "method = \"random\"\ntrials = 400\nseed = {seed}\n[parameters]\nlr = {{ min = 1e-4, max = 1.0, log = true }}\n\
                 n = {{ min = 1, max = 3 }}\nd = {{ min = 0.0, max = 0.5 }}\nv = [\"a\", \"b\"]"
            )
        };
        let all = trials(&text(1)).unwrap();
        assert_eq!(all, trials(&text(1)).unwrap());
        assert_ne!(all, trials(&text(2)).unwrap());
        let numbers = |key: &str| all.iter().map(|trial| trial[key].parse::<f64>().unwrap()).collect::<Vec<_>>();
        // Half of the draws on a logarithmic scale are below the geometric mean: 4 standard
        // deviations of 400 are 40.
        let below = numbers("lr").iter().filter(|rate| (1e-4..1e-2).contains(*rate)).count();
        assert!(
            numbers("lr").iter().all(|rate| (1e-4..=1.0).contains(rate)) && (160..=240).contains(&below),
            "{below}"
        );
        for whole in [1.0, 2.0, 3.0] {
            assert!(numbers("n").iter().filter(|n| **n == whole).count() > 90);
        }
        assert!(numbers("d").iter().all(|d| (0.0..=0.5).contains(d)));
        assert!(all.iter().any(|trial| trial["v"] == "\"a\"") && all.iter().any(|trial| trial["v"] == "\"b\""));
    }

    #[test]
    fn what_describes_no_search_is_refused() {
        for (text, part) in [
            ("", "sweep.parameters: required"),
            ("trials = 3\n[parameters]\na = [1]", "a grid has as many trials"),
            ("method = \"random\"\n[parameters]\na = [1]", "sweep.trials: required"),
            ("[parameters]\na = 3", "expected what it may be, got 3"),
            ("[parameters]\na = []", "a: the list is empty"),
            ("[parameters]\na = { min = 1, max = 2 }", "a grid needs values"),
            ("[parameters]\na.b = { min = 2, max = 1 }", "a.b: expected min <= max, got 2 and 1"),
            ("[parameters]\na = { min = 0, max = 1, log = true }", "min > 0"),
            ("[parameters]\na = { min = 0, max = 1, step = 2 }", "unknown key step"),
            ("[parameters]\na = [1]\n[asha]\nmin_steps = 0", "sweep.asha: expected min_steps of 1 or more"),
        ] {
            let error = trials(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
