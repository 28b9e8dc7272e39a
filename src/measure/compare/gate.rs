//! `--gate "speedup>=1.2,loss_delta<=1e-3"`: conditions on the figures of a report, for CI. Parsed before anything runs.

use super::Report;
use crate::base::error::{Error, Result, nearest};

/// The measures that a gate may name, and what they are.
pub const MEASURES: &[(&str, &str)] = &[
    ("speedup", "time of the first arm / time of the second, per example; in a comparison native / compiled"),
    ("speedup_low", "the lower end of its 98 % interval"),
    ("total_speedup", "native / compiled at the compiled batch"),
    ("compiler_share", "the factor of it that the compiler gives at equal batch"),
    ("batch_share", "the factor of it that the larger batch gives"),
    ("time_saved_percent", "(native - compiled) x 100 / native, of the time per example"),
    ("throughput_gained_percent", "(compiled / native - 1) x 100, of the examples per second"),
    ("billable_saved_percent", "(native - compiled) x 100 / native, of the seconds that the whole run is paid for"),
    ("loss_delta", "largest |difference| of the two losses at equal steps"),
    ("peak_memory_ratio", "peak memory of compiled / native"),
    ("break_even_step", "the step from which on compiling has paid for its warm-up"),
    ("model_gflops", "model GFLOP/s of the second arm"),
];

/// One condition.
#[derive(Debug, Clone, PartialEq)]
struct Clause {
    text: String,
    measure: &'static str,
    comparison: &'static str,
    bound: f64,
}

/// The conditions of a gate; all must hold.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Gate(Vec<Clause>);

impl std::str::FromStr for Gate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        text.split(',').map(clause).collect::<Result<_>>().map(Self)
    }
}

fn clause(text: &str) -> Result<Clause> {
    let text = text.trim();
    let form = || {
        Error::config(format!("--gate: expected MEASURE>=NUMBER (or <=, >, <), got {text:?}"))
            .help("for example --gate \"speedup>=1.2,loss_delta<=1e-3\"")
    };
    let comparison = [">=", "<=", ">", "<"].into_iter().find(|sign| text.contains(sign)).ok_or_else(form)?;
    let (name, bound) = text.split_once(comparison).ok_or_else(form)?;
    let (name, bound) = (name.trim(), bound.trim());
    let bound = bound.parse::<f64>().ok().filter(|bound| bound.is_finite()).ok_or_else(form)?;
    let known = MEASURES.iter().map(|(name, _)| *name);
    let Some(measure) = known.clone().find(|known| *known == name) else {
        let near = nearest(name, known.clone()).map_or_else(String::new, |near| format!("did you mean `{near}`? "));
        return Err(Error::config(format!("--gate: unknown measure `{name}`"))
            .help(format!("{near}expected one of {}", known.collect::<Vec<_>>().join(", "))));
    };
    Ok(Clause { text: text.to_owned(), measure, comparison, bound })
}

impl Gate {
    /// Whether all conditions hold of `report`.
    ///
    /// # Errors
    /// Every clause that fails, with what was measured; a measure that the report lacks fails too.
    pub fn check(&self, report: &Report) -> Result<()> {
        let failed = self.0.iter().filter_map(|clause| {
            let value = match report.measure(clause.measure) {
                Ok(value) => value,
                Err(reason) => return Some(format!("{}: {reason}", clause.text)),
            };
            let holds = match clause.comparison {
                ">=" => value >= clause.bound,
                "<=" => value <= clause.bound,
                ">" => value > clause.bound,
                _ => value < clause.bound,
            };
            (!holds).then(|| format!("{}: it is {value:.6}", clause.text))
        });
        let failed = failed.collect::<Vec<_>>();
        if failed.is_empty() {
            return Ok(());
        }
        Err(Error::differs(format!("the gate fails: {}", failed.join("; "))))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn clauses_are_read_and_mistakes_named() {
        let gate: Gate = "speedup>=1.2, loss_delta <= 1e-3".parse().unwrap();
        assert_eq!(gate.0.len(), 2);
        assert_eq!((gate.0[1].measure, gate.0[1].comparison, gate.0[1].bound), ("loss_delta", "<=", 1e-3));
        let message = |text: &str| text.parse::<Gate>().unwrap_err().to_string();
        assert!(message("speedupp>=1").contains("did you mean `speedup`?"));
        assert!(message("throughput>=1").contains("expected one of speedup"));
        for bad in ["", "speedup", "speedup=1", "speedup>=fast", "speedup>=nan", "speedup>=1,,"] {
            assert!(message(bad).contains("expected MEASURE>=NUMBER"), "{bad}");
        }
    }
}
