//! `--gate "speedup>=1.2,loss_delta<=1e-3"`: conditions on the figures of a report, for CI. Parsed
//! before anything runs.

use kiln_core::error::{Error, Result, nearest};

use super::{ArmReport, Report};

/// A figure of a report; none where it was not measured.
type Measure = fn(&Report) -> Option<f64>;

/// The measures that a gate may name. In a comparison the first arm is native and the second
/// compiled.
const MEASURES: &[(&str, Measure)] = &[
    // The time of the first arm / the time of the second, per example.
    ("speedup", |report| Some(report.main()?.speedup?.ratio)),
    // The lower end of its 98 % interval.
    ("speedup_low", |report| Some(report.main()?.speedup?.low)),
    // Native / compiled at the compiled batch: the product of the two that follow.
    ("total_speedup", |report| report.derived.total_speedup),
    // The factor that the compiler gives at equal batch.
    ("compiler_share", |report| report.derived.compiler_share),
    // The factor that the larger batch gives.
    ("batch_share", |report| report.derived.batch_share),
    // (native - compiled) x 100 / native, of the time per example.
    ("time_saved_percent", |report| report.main()?.time_saved_percent),
    // (compiled / native - 1) x 100, of the examples per second.
    ("throughput_gained_percent", |report| report.main()?.throughput_gained_percent),
    // (native - compiled) x 100 / native, of the seconds that the whole run is paid for.
    ("billable_saved_percent", |report| report.main()?.billable_saved_percent),
    // The largest |difference| of the two losses at equal steps.
    ("loss_delta", |report| Some(report.main()?.parity.as_ref()?.max_delta)),
    // Peak memory of compiled / native.
    ("peak_memory_ratio", |report| Some(second(report)?.figures.peak_mib? / report.arms.first()?.figures.peak_mib?)),
    // The step from which on compiling has paid for its warm-up.
    ("break_even_step", |report| report.derived.break_even_step),
    // Model GFLOP/s of the second arm.
    ("model_gflops", |report| second(report)?.model_gflops),
];

/// The second arm.
fn second(report: &Report) -> Option<&ArmReport> {
    let name = &report.main()?.arm;
    report.arms.iter().find(|arm| arm.name == *name)
}

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
        let turned = [("=>", ">="), ("=<", "<=")].into_iter().find(|(wrong, _)| text.contains(wrong));
        let right = turned.map(|(wrong, right)| text.replacen(wrong, right, 1));
        let example = right.as_deref().unwrap_or("speedup>=1.2,loss_delta<=1e-3");
        Error::config(format!("--gate: expected MEASURE>=NUMBER (or <=, >, <), got {text:?}"))
            .help(format!("for example --gate \"{example}\""))
    };
    if ["=>", "=<"].iter().any(|wrong| text.contains(wrong)) {
        return Err(form());
    }
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

impl Clause {
    fn holds(&self, value: f64) -> bool {
        match self.comparison {
            ">=" => value >= self.bound,
            "<=" => value <= self.bound,
            ">" => value > self.bound,
            _ => value < self.bound,
        }
    }

    /// `value`, for which the condition does not hold, with as many digits as show that it does
    /// not: three at least.
    fn shown(&self, value: f64) -> String {
        let mut rounded = (2..17).filter_map(|digits| format!("{value:.digits$e}").parse::<f64>().ok());
        let rounded = rounded.find(|rounded| !self.holds(*rounded)).unwrap_or(value);
        if rounded == 0.0 || (1e-3..1e7).contains(&rounded.abs()) {
            rounded.to_string()
        } else {
            format!("{rounded:e}")
        }
    }
}

impl Gate {
    /// Whether all conditions hold of `report`.
    ///
    /// # Errors
    /// Every clause that fails, with what was measured; a measure that the report lacks fails too.
    pub fn check(&self, report: &Report) -> Result<()> {
        let failed = self.0.iter().filter_map(|clause| {
            let measure = MEASURES.iter().find(|(name, _)| *name == clause.measure);
            let Some(value) = measure.and_then(|(_, measure)| measure(report)) else {
                let reason = match report.main().map(|main| &main.reason) {
                    None => "there is no second arm".into(),
                    Some(None) => "it was not measured here".into(),
                    Some(Some(reason)) => format!("not comparable ({reason})"),
                };
                return Some(format!("{}: {reason}", clause.text));
            };
            (!clause.holds(value)).then(|| format!("{}: it is {}", clause.text, clause.shown(value)))
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
        for (turned, right) in [("speedup=>1", "speedup>=1"), ("loss_delta =< 1e-3", "loss_delta <= 1e-3")] {
            let message = message(turned);
            assert!(
                message.contains("expected MEASURE>=NUMBER") && message.contains(&format!("\"{right}\"")),
                "{message}"
            );
        }
    }

    #[test]
    fn a_figure_is_shown_such_that_it_is_seen_not_to_hold() {
        let shown = |clause: &str, value: f64| clause.parse::<Gate>().unwrap().0[0].shown(value);
        assert_eq!(shown("loss_delta<=1e-9", 6.912_345e-8), "6.91e-8");
        assert_eq!(shown("speedup>=1.2", 1.199_999_6), "1.1999996");
        assert_eq!(shown("speedup>=1.2", 0.987_654), "0.988");
        assert_eq!(shown("break_even_step<100", 100.0), "100");
        assert_eq!(shown("speedup>1", f64::NAN), "NaN");
    }
}
