//! The figures of evaluations of two finished runs side by side, after as many steps and at their
//! ends, where both were evaluated on the same data.

use kiln_core::metrics::Record;
use serde::Serialize;

use crate::measured::MeasuredRun;

/// The evaluations of a run and of the one that it is compared with.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Learned {
    /// Why their figures do not compare; none where they do.
    pub reason: Option<String>,
    /// The last evaluations of both after as many steps; none where that is the end of both.
    pub equal_steps: Option<Evaluated>,
    /// The evaluations of the models that both kept: the last ones, or the best.
    pub end: Option<Evaluated>,
}

/// An evaluation of each of the two.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evaluated {
    /// The optimizer steps that the run had made, and the other one.
    pub steps: [u64; 2],
    /// The figures that both have.
    pub figures: Vec<Figure>,
}

/// A figure of both evaluations.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// Its name in evaluation rows.
    pub name: String,
    /// The value of the run, and of the other one.
    pub values: [f64; 2],
    /// Whether more is better; none where that is not known.
    pub greater_is_better: Option<bool>,
}

impl Learned {
    /// The figures at the end of which it is known whether more is better, in the order in which
    /// they decide: the validation loss first, where losses compare.
    pub fn deciding(&self) -> impl Iterator<Item = &Figure> {
        self.end.iter().flat_map(Evaluated::deciding)
    }
}

impl Figure {
    /// Which of the two is better: 0 or 1; none where they are equal, or where that is not known.
    /// A value that is no number is worse than any.
    pub fn better(&self) -> Option<usize> {
        let [a, b] = self.values;
        match (a.is_nan(), b.is_nan()) {
            (true, true) => None,
            (false, false) if a == b => None,
            (false, false) => self.greater_is_better.map(|greater| usize::from((a > b) != greater)),
            (is_first_nan, _) => self.greater_is_better.map(|_| usize::from(is_first_nan)),
        }
    }
}

impl Evaluated {
    /// The figure that decides, the first of which it is known whether more is better: the
    /// validation loss, where losses compare.
    pub fn decisive(&self) -> Option<&Figure> {
        self.deciding().next()
    }

    /// The figures of which it is known whether more is better.
    fn deciding(&self) -> impl Iterator<Item = &Figure> {
        self.figures.iter().filter(|figure| figure.greater_is_better.is_some())
    }

    fn of(rows: [&Record; 2], has_losses: bool) -> Self {
        let [run, other] = rows;
        let steps = rows.map(|row| row.get("step").unwrap_or(0.0) as u64);
        let figures = figure_names(run).filter(|name| has_losses || *name != LOSS).filter_map(|name| {
            let values = [run.get(name)?, other.get(name)?];
            Some(Figure { name: name.into(), values, greater_is_better: greater_is_better(name) })
        });
        Self { steps, figures: figures.collect() }
    }
}

const LOSS: &str = "eval_loss";

/// The names in a row of an evaluation that are figures: neither its size nor its time.
pub(crate) fn figure_names(row: &Record) -> impl Iterator<Item = &str> {
    const COSTS: [&str; 4] = ["eval_samples", "eval_runtime", "eval_samples_per_second", "eval_steps_per_second"];
    row.fields().map(|(name, _)| name).filter(|name| name.starts_with("eval_") && !COSTS.contains(name))
}

/// Whether more of the figure `name` is better; none for one of a program's own.
pub(crate) fn greater_is_better(name: &str) -> Option<bool> {
    const LESS: [&str; 3] = [LOSS, "eval_perplexity", "eval_mse"];
    const MORE: [&str; 9] = [
        "eval_accuracy",
        "eval_f1",
        "eval_f1_macro",
        "eval_matthews_correlation",
        "eval_pearson",
        "eval_spearmanr",
        "eval_precision",
        "eval_recall",
        "eval_exact_match",
    ];
    if LESS.contains(&name) { Some(false) } else { MORE.contains(&name).then_some(true) }
}

/// The evaluations of `run` and `other`, which their report calls by these names.
pub(super) fn learned([run, other]: [&MeasuredRun; 2], names: [&str; 2]) -> Learned {
    let missing = [run, other].iter().position(|run| run.evaluation.is_none());
    let because = |reason: String| Learned { reason: Some(reason), ..Learned::default() };
    if let Some(missing) = missing {
        return because(format!("{} was not evaluated", names[missing]));
    }
    let (Some(end), Some(end_of_other)) = (&run.evaluation, &other.evaluation) else { return Learned::default() };
    if let Some(reason) = validation_differs(run, other) {
        return because(reason);
    }
    const SMOOTHING: &str = "trainer.label_smoothing_factor";
    let smoothing = [run, other].map(|run| run.settings.get(SMOOTHING).map_or("not given", String::as_str));
    let has_losses = smoothing[0] == smoothing[1];
    let step = |row: &Record| row.get("step");
    let both = run.evaluations.iter().rev().find_map(|row| {
        let same = other.evaluations.iter().rev().find(|of_other| step(of_other) == step(row));
        same.map(|same| [row, same]).filter(|_| step(row).is_some_and(|step| step > 0.0))
    });
    let both = both.filter(|[row, same]| [step(row), step(same)] != [step(end), step(end_of_other)]);
    let end = Evaluated::of([end, end_of_other], has_losses);
    if !has_losses && end.decisive().is_none() {
        let [of_run, of_other] = smoothing;
        let why = format!("{SMOOTHING} {of_run} against {of_other}");
        return because(format!("their losses do not compare ({why}), and they have no score that does"));
    }
    Learned { reason: None, equal_steps: both.map(|rows| Evaluated::of(rows, has_losses)), end: Some(end) }
}

/// Settings of `[data]` that change nothing about the validation data.
const OF_TRAINING: [&str; 8] = [
    "data.sampler",
    "data.padding",
    "data.pad_to_multiple_of",
    "data.buckets",
    "data.streaming",
    "data.shuffle_buffer_size",
    "data.max_train_samples",
    "data.test",
];

/// How the evaluations of two runs were not of the same task on the same data; none where they
/// were. Equal digests say that every token and label is the same. Other ones may come from another
/// tokenizer, whose figures compare where rows have labels, though not where tokens are predicted.
fn validation_differs(a: &MeasuredRun, b: &MeasuredRun) -> Option<String> {
    let setting = |key: &str| [a, b].map(|run| run.settings.get(key).map_or("not given", String::as_str));
    let differs = |key: &str| {
        let [a, b] = setting(key);
        (a != b).then(|| format!("{key} {a} against {b}"))
    };
    let [task, other] = setting("data.task");
    if task != other {
        return Some(format!("their tasks differ: {task} against {other}"));
    }
    let digests = [a, b].map(|run| run.provenance.as_ref()?.validation_sha256.as_ref());
    if digests[0].is_some() && digests[0] == digests[1] {
        return None;
    }
    let (are_known, predicts_tokens) = (digests.iter().all(Option::is_some), ["clm", "mlm"].contains(&task));
    let is_share = |key: &str| setting(key)[0].trim_end_matches('%').parse::<f64>().is_ok();
    let is_drawn = is_share("data.validation");
    let matters = |key: &&String| match key.as_str() {
        "data.train" => is_drawn || setting("data.validation")[0].starts_with("train["),
        "trainer.seed" => is_drawn || task == "mlm",
        "data.max_length" => predicts_tokens,
        "model.from" => predicts_tokens && are_known,
        key if key.starts_with("data.") => !OF_TRAINING.contains(&key),
        key => predicts_tokens && key.starts_with("tokenizer."),
    };
    let keys = a.settings.keys().chain(b.settings.keys().filter(|key| !a.settings.contains_key(*key)));
    let mut found = keys.filter(matters).filter_map(|key| differs(key)).collect::<Vec<_>>();
    let samples = [a, b].map(|run| run.evaluation.as_ref().and_then(|row| row.get("eval_samples")));
    if let ([Some(samples), Some(other)], true) = (samples, samples[0] != samples[1]) {
        found.insert(0, format!("{samples:.0} against {other:.0} examples"));
    }
    let has_tokenizer = |key: &&String| key.starts_with("tokenizer.") || *key == "model.from";
    let reads_otherwise = a.settings.keys().filter(has_tokenizer).any(|key| differs(key).is_some());
    if found.is_empty() && are_known && (predicts_tokens || !reads_otherwise) {
        found.push("another content".into());
    }
    (!found.is_empty()).then(|| format!("their validation data differ: {}", found.join("; ")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use super::*;

    /// A run whose evaluation had these figures.
    fn run(smoothing: &str, figures: &[(&str, f64)]) -> MeasuredRun {
        let row = Record::default().with("step", 7);
        MeasuredRun {
            folder: PathBuf::new(),
            settings: BTreeMap::from([("trainer.label_smoothing_factor".to_string(), smoothing.to_string())]),
            provenance: None,
            steps: Vec::new(),
            steady: Vec::new(),
            warmup: (0.0, 0),
            late_steps: 0,
            losses: Vec::new(),
            samples: 0,
            seconds: 0.0,
            day: String::new(),
            plan: Ok(None),
            summary: Record::default(),
            evaluations: Vec::new(),
            evaluation: Some(figures.iter().fold(row, |row, (name, value)| row.with(name, *value))),
        }
    }

    #[test]
    fn of_runs_with_other_label_smoothing_scores_decide_or_nothing_does() {
        let both = [("eval_loss", 0.5), ("eval_accuracy", 0.9)];
        let deciding = |smoothing: [&str; 2], figures: &[(&str, f64)]| {
            let [a, b] = smoothing.map(|smoothing| run(smoothing, figures));
            let learned = learned([&b, &a], ["b", "a"]);
            let names = learned.deciding().map(|figure| figure.name.clone()).collect::<Vec<_>>();
            (names, learned.reason)
        };
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(deciding(["0.0", "0.0"], &both), (names(&["eval_loss", "eval_accuracy"]), None));
        assert_eq!(deciding(["0.0", "0.1"], &both), (names(&["eval_accuracy"]), None));
        let (none, reason) = deciding(["0.0", "0.1"], &both[..1]);
        assert!(none.is_empty(), "{none:?}");
        let why = "trainer.label_smoothing_factor 0.1 against 0.0";
        let said = format!("their losses do not compare ({why}), and they have no score that does");
        assert_eq!(reason, Some(said));
    }

    fn figure(name: &str, values: [f64; 2]) -> Figure {
        Figure { name: name.into(), values, greater_is_better: greater_is_better(name) }
    }

    #[test]
    fn the_better_figure_is_known_by_its_name() {
        let cases = [
            ("eval_loss", [0.1, 0.2], Some(0)),
            ("eval_loss", [0.2, 0.1], Some(1)),
            ("eval_loss", [0.2, 0.2], None),
            ("eval_loss", [f64::NAN, 0.1], Some(1)),
            ("eval_loss", [0.1, f64::NAN], Some(0)),
            ("eval_loss", [f64::NAN, f64::NAN], None),
            ("eval_accuracy", [0.1, 0.2], Some(1)),
            ("eval_accuracy", [f64::NAN, 0.2], Some(1)),
            ("eval_of_mine", [0.1, 0.2], None),
        ];
        for (name, values, expected) in cases {
            assert_eq!(figure(name, values).better(), expected, "{name} {values:?}");
        }
    }

    #[test]
    fn costs_are_no_figures_and_losses_of_other_smoothing_do_not_decide() {
        let row = |loss: f64, accuracy: f64| {
            let row = Record::default().with("step", 7).with("eval_loss", loss).with("eval_accuracy", accuracy);
            row.with("eval_samples", 5).with("eval_runtime", 1.0)
        };
        let of = |has_losses| Evaluated::of([&row(0.5, 0.9), &row(0.4, 0.8)], has_losses);
        let names = |of: &Evaluated| of.figures.iter().map(|figure| figure.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&of(true)), ["eval_loss", "eval_accuracy"]);
        assert_eq!((of(true).steps, of(true).decisive().and_then(Figure::better)), ([7, 7], Some(1)));
        assert_eq!(names(&of(false)), ["eval_accuracy"]);
        assert_eq!(of(false).decisive().and_then(Figure::better), Some(0));
    }
}
