//! Metrics of predictions, computed on the host in f64 from all predictions of a dataset. The
//! formulas are those of scikit-learn and SciPy, which `run_glue` reports, and of seqeval, which
//! `run_ner` reports; `tests/fixtures/make_scores.py` makes the values the tests compare with.

use std::collections::BTreeSet;

use kiln_data::IGNORED;

/// The figures of entities.
pub const ENTITY_FIGURES: [&str; 3] = ["precision", "recall", "f1"];

/// Counts of entities that stand in rows of tags: a name that begins at a word, ends at one and has
/// a type. They are found as seqeval does by default, which is the rule of CoNLL's `conlleval`: an
/// entity begins at `B-`, or where the type changes; tags of the schemes IOB1, IOB2, IOE and IOBES
/// are understood.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entities {
    expected: u64,
    predicted: u64,
    right: u64,
}

impl Entities {
    /// Adds the tags of a row, by their places in `names`, without those whose expected label is
    /// ignored.
    pub fn add(&mut self, names: &[String], expected: &[i32], predicted: &[f64]) {
        let (mut of_expected, mut of_predicted) = (Vec::new(), Vec::new());
        let name = |class: usize| names.get(class).map_or("O", String::as_str);
        for (expected, predicted) in expected.iter().zip(predicted).filter(|(expected, _)| **expected != IGNORED) {
            of_expected.push(name(*expected as usize));
            of_predicted.push(name(*predicted as usize));
        }
        let (expected, predicted) = (entities(&of_expected), entities(&of_predicted));
        self.right += expected.intersection(&predicted).count() as u64;
        self.expected += expected.len() as u64;
        self.predicted += predicted.len() as u64;
    }

    /// Precision, recall and F1 over the entities of all types together; 0 where it is 0 / 0.
    pub fn scores(&self) -> Vec<(&'static str, f64)> {
        let share = |of: u64| if of == 0 { 0.0 } else { self.right as f64 / of as f64 };
        let (precision, recall) = (share(self.predicted), share(self.expected));
        let f1 = if precision + recall == 0.0 { 0.0 } else { 2.0 * precision * recall / (precision + recall) };
        ENTITY_FIGURES.into_iter().zip([precision, recall, f1]).collect()
    }
}

/// Whether one of `names` is the tag of an entity: `B-`, `I-`, `E-`, `L-`, `S-` or `U-` and a type,
/// or the letter alone.
pub fn are_tags(names: &[String]) -> bool {
    names.iter().any(|name| {
        let (kind, kind_of) = name.split_once('-').unwrap_or((name, "_"));
        ["B", "I", "E", "L", "S", "U"].contains(&kind) && !kind_of.is_empty()
    })
}

/// The entities of a row of tags: type, first and last place.
fn entities<'a>(tags: &[&'a str]) -> BTreeSet<(&'a str, usize, usize)> {
    let parts = |tag: &'a str| {
        let mut chars = tag.chars();
        let kind = chars.next().unwrap_or('O');
        let rest = chars.as_str();
        // The type stands behind the first hyphen of the rest; a tag without a type has the type
        // `_`.
        let name = rest.split_once('-').map_or(rest, |(_, name)| name);
        (kind, if name.is_empty() { "_" } else { name })
    };
    let (mut found, mut before, mut start) = (BTreeSet::new(), ('O', ""), 0);
    for (place, (kind, name)) in tags.iter().map(|tag| parts(tag)).chain([('O', "_")]).enumerate() {
        let other = before.1 != name;
        let ends = matches!((before.0, kind), ('E' | 'S', _) | ('B' | 'I', 'B' | 'S' | 'O'))
            || (!matches!(before.0, 'O' | '.') && other);
        let begins = matches!((before.0, kind), (_, 'B' | 'S') | ('E' | 'S' | 'O', 'E' | 'I'))
            || (!matches!(kind, 'O' | '.') && other);
        if ends {
            found.insert((before.1, start, place - 1));
        }
        if begins {
            start = place;
        }
        before = (kind, name);
    }
    found
}

/// For rows of `num_labels` labels that apply or do not: the share of rows that are right in all
/// labels (`accuracy`), F1 over all labels together (`f1`, `average="micro"`) and the mean of the
/// labels' F1 (`f1_macro`); 0 where it is 0 / 0.
pub fn several_labels(expected: &[bool], predicted: &[bool], num_labels: usize) -> Vec<(&'static str, f64)> {
    let rows = expected.chunks(num_labels).zip(predicted.chunks(num_labels));
    let right = rows.clone().filter(|(expected, predicted)| expected == predicted).count();
    // Of each label how often it was rightly predicted, and how often it was expected or predicted.
    let mut counts = vec![(0u64, 0u64); num_labels];
    for (label, (expected, predicted)) in rows.flat_map(|(a, b)| a.iter().zip(b)).enumerate() {
        let (both, either) = &mut counts[label % num_labels];
        *both += u64::from(*expected && *predicted);
        *either += u64::from(*expected) + u64::from(*predicted);
    }
    let f1 = |(both, either): (u64, u64)| if either == 0 { 0.0 } else { 2.0 * both as f64 / either as f64 };
    let all = counts.iter().fold((0, 0), |sum, label| (sum.0 + label.0, sum.1 + label.1));
    let of_labels = counts.iter().map(|label| f1(*label)).sum::<f64>();
    vec![
        ("accuracy", right as f64 * num_labels as f64 / expected.len() as f64),
        ("f1", f1(all)),
        ("f1_macro", of_labels / num_labels as f64),
    ]
}

/// Mean of the squared differences.
pub fn mean_squared_error(expected: &[f64], predicted: &[f64]) -> f64 {
    expected.iter().zip(predicted).map(|(a, b)| (a - b).powi(2)).sum::<f64>() / expected.len() as f64
}

/// Pearson's correlation; NaN where one side is constant, as in SciPy.
pub fn pearson(a: &[f64], b: &[f64]) -> f64 {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let (mut both, mut of_a, mut of_b) = (0.0, 0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        both += (a - mean_a) * (b - mean_b);
        of_a += (a - mean_a).powi(2);
        of_b += (b - mean_b).powi(2);
    }
    if of_a == 0.0 || of_b == 0.0 { f64::NAN } else { (both / (of_a.sqrt() * of_b.sqrt())).clamp(-1.0, 1.0) }
}

/// Spearman's correlation: Pearson's of the ranks, equal values sharing the mean of theirs.
pub fn spearman(a: &[f64], b: &[f64]) -> f64 {
    pearson(&ranks(a), &ranks(b))
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order = (0..values.len()).collect::<Vec<_>>();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut done = 0;
    for equal in order.chunk_by(|a, b| values[*a] == values[*b]) {
        let rank = done as f64 + (equal.len() as f64 + 1.0) / 2.0;
        equal.iter().for_each(|index| ranks[*index] = rank);
        done += equal.len();
    }
    ranks
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use kiln_train::confusion::{Confusion, Scores};

    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize)]
    struct Fixture {
        classes: Vec<Classes>,
        values: Vec<Values>,
        tags: Vec<Tags>,
        several: Vec<Several>,
    }

    #[derive(Deserialize)]
    struct Tags {
        names: Vec<String>,
        expected: Vec<Vec<i32>>,
        predicted: Vec<Vec<f64>>,
        precision: f64,
        recall: f64,
        f1: f64,
    }

    #[derive(Deserialize)]
    struct Several {
        expected: Vec<Vec<bool>>,
        predicted: Vec<Vec<bool>>,
        accuracy: f64,
        f1: f64,
        f1_macro: f64,
    }

    #[derive(Deserialize)]
    struct Classes {
        num_labels: usize,
        expected: Vec<usize>,
        predicted: Vec<usize>,
        f1: f64,
        matthews_correlation: f64,
        /// `classification_report`: the scores of each class that occurs, and their averages.
        report: serde_json::Value,
    }

    #[derive(Deserialize)]
    struct Values {
        expected: Vec<f64>,
        predicted: Vec<f64>,
        mse: f64,
        pearson: f64,
        spearmanr: f64,
    }

    /// Both sides are a few sums in f64.
    fn near(got: f64, expected: f64) {
        assert!((got - expected).abs() < 1e-12, "{got} against {expected}");
    }

    #[test]
    fn scores_are_those_of_scikit_learn_scipy_and_seqeval() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/scores.json");
        let fixture: Fixture = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert!(fixture.classes.len() >= 5 && fixture.values.len() >= 3);
        for case in fixture.classes {
            let confusion = Confusion::new(case.num_labels, case.expected.into_iter().zip(case.predicted));
            near(confusion.f1(), case.f1);
            near(confusion.matthews_correlation(), case.matthews_correlation);
            let mut known = 0;
            let mut same = |name: &str, Scores { precision, recall, f1, support }: Scores| {
                let expected = case.report[name].as_object().unwrap_or_else(|| panic!("{name}: {}", case.report));
                for (figure, got) in [("precision", precision), ("recall", recall), ("f1-score", f1)] {
                    near(got, expected[figure].as_f64().unwrap());
                }
                assert_eq!(support as f64, expected["support"].as_f64().unwrap());
                known += 1;
            };
            confusion.occurring().for_each(|class| same(&class.to_string(), confusion.scores(class)));
            same("macro avg", confusion.macro_average());
            same("weighted avg", confusion.weighted_average());
            // The last is the accuracy.
            assert_eq!(known + 1, case.report.as_object().unwrap().len());
        }
        assert!(fixture.tags.len() >= 5 && fixture.several.len() >= 3);
        for case in fixture.tags {
            let mut entities = Entities::default();
            let rows = case.expected.iter().zip(&case.predicted);
            rows.for_each(|(expected, predicted)| entities.add(&case.names, expected, predicted));
            let expected = [case.precision, case.recall, case.f1];
            entities.scores().iter().zip(expected).for_each(|((_, got), expected)| near(*got, expected));
        }
        for case in fixture.several {
            let num_labels = case.expected[0].len();
            let got = several_labels(&case.expected.concat(), &case.predicted.concat(), num_labels);
            let expected = [case.accuracy, case.f1, case.f1_macro];
            got.iter().zip(expected).for_each(|((_, got), expected)| near(*got, expected));
        }
        for case in fixture.values {
            near(mean_squared_error(&case.expected, &case.predicted), case.mse);
            near(pearson(&case.expected, &case.predicted), case.pearson);
            near(spearman(&case.expected, &case.predicted), case.spearmanr);
        }
    }

    #[test]
    fn tags_are_known_by_their_form() {
        let are = |names: &[&str]| are_tags(&names.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert!(are(&["O", "B-PER"]) && are(&["O", "U-LOC"]) && are(&["O", "I"]));
        assert!(!are(&["0", "1", "2"]) && !are(&["LABEL_0", "LABEL_1"]) && !are(&["O", "NOUN", "B-"]));
    }

    #[test]
    fn a_constant_side_has_no_correlation() {
        assert!(pearson(&[1.0, 1.0], &[1.0, 2.0]).is_nan());
        assert_eq!(Confusion::new(2, [(0, 0), (1, 0)]).matthews_correlation(), 0.0);
    }

    #[test]
    #[should_panic(expected = "expected classes below 2, got 0 and 2")]
    fn a_class_that_there_is_not_counts_as_no_other() {
        Confusion::new(2, [(1, 0), (0, 2)]);
    }
}
