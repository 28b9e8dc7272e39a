//! The confusion matrix of a classification. The formulas are those of scikit-learn.

use kiln_core::error::one_line;
use serde::Serialize;
use serde_json::json;

/// Precision, recall and F1 of a class or of several, and how many rows have the label.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Scores {
    /// The share of the predictions of the class that are right.
    pub precision: f64,
    /// The share of the rows with the label that are found.
    pub recall: f64,
    /// The harmonic mean of both.
    pub f1: f64,
    /// Rows with the label.
    pub support: u64,
}

/// How often each class was predicted for each class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confusion {
    num_labels: usize,
    /// `[expected * num_labels + predicted]`
    counts: Vec<u64>,
}

impl Confusion {
    /// Counts pairs of expected and predicted classes.
    ///
    /// # Panics
    /// A class that is not below `num_labels`: it would count as another one.
    pub fn new(num_labels: usize, pairs: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let mut counts = vec![0; num_labels * num_labels];
        for (expected, predicted) in pairs {
            assert!(
                expected < num_labels && predicted < num_labels,
                "expected classes below {num_labels}, got {expected} and {predicted}"
            );
            counts[expected * num_labels + predicted] += 1;
        }
        Self { num_labels, counts }
    }

    /// How many classes there are.
    pub fn num_labels(&self) -> usize {
        self.num_labels
    }

    /// How often `predicted` was predicted for `expected`.
    pub fn count(&self, expected: usize, predicted: usize) -> u64 {
        self.counts[expected * self.num_labels + predicted]
    }

    fn expected(&self, class: usize) -> u64 {
        (0..self.num_labels).map(|predicted| self.count(class, predicted)).sum()
    }

    fn predicted(&self, class: usize) -> u64 {
        (0..self.num_labels).map(|expected| self.count(expected, class)).sum()
    }

    /// The classes that occur among labels or predictions; averages leave the others out.
    pub fn occurring(&self) -> impl Iterator<Item = usize> {
        (0..self.num_labels).filter(|class| self.expected(*class) + self.predicted(*class) > 0)
    }

    /// The scores of `class`; 0 where one is 0 / 0.
    pub fn scores(&self, class: usize) -> Scores {
        let (expected, predicted) = (self.expected(class), self.predicted(class));
        let share = |part: u64, of: u64| if of == 0 { 0.0 } else { part as f64 / of as f64 };
        let right = self.count(class, class);
        Scores {
            precision: share(right, predicted),
            recall: share(right, expected),
            f1: share(2 * right, expected + predicted),
            support: expected,
        }
    }

    /// The mean of the scores over the classes that [occur](Self::occurring)
    /// (`average="macro"`).
    pub fn macro_average(&self) -> Scores {
        self.average(&|_| 1.0)
    }

    /// The mean of the scores over the classes, each with the weight of its support
    /// (`average="weighted"`).
    pub fn weighted_average(&self) -> Scores {
        self.average(&|scores| scores.support as f64)
    }

    fn average(&self, weight: &dyn Fn(&Scores) -> f64) -> Scores {
        let (mut sum, mut of_all) = (Scores::default(), 0.0);
        for scores in self.occurring().map(|class| self.scores(class)) {
            let weight = weight(&scores);
            sum.precision += scores.precision * weight;
            sum.recall += scores.recall * weight;
            sum.f1 += scores.f1 * weight;
            sum.support += scores.support;
            of_all += weight;
        }
        let mean = |sum: f64| if of_all == 0.0 { 0.0 } else { sum / of_all };
        Scores { precision: mean(sum.precision), recall: mean(sum.recall), f1: mean(sum.f1), ..sum }
    }

    /// F1, the harmonic mean of precision and recall: of class 1 for two labels
    /// (`average="binary"`), else the [macro average](Self::macro_average).
    pub fn f1(&self) -> f64 {
        if self.num_labels == 2 { self.scores(1).f1 } else { self.macro_average().f1 }
    }

    /// The matrix and the scores as a table for people, of classes called `names`, with what has to
    /// be known to read them.
    pub fn lines(&self, names: &[String]) -> Vec<String> {
        let classes = || 0..self.num_labels;
        let name = |class: usize| one_line(&class_name(names, class));
        let width = classes().map(|class| name(class).chars().count()).max().unwrap_or(0);
        let line = |first: &str, cells: Vec<String>, width: usize, cell_width: usize| {
            let cells = cells.iter().map(|cell| format!("  {cell:>cell_width$}")).collect::<String>();
            format!("{first:<width$}{cells}")
        };
        let of_matrix = width.max("label".len());
        let of_matrix = |first: &str, cells| line(first, cells, of_matrix, of_matrix);
        let mut lines =
            vec!["confusion matrix: a row for each label of the data (the truth), a column for each prediction".into()];
        lines.push(of_matrix("label", classes().map(name).collect()));
        lines.extend(classes().map(|expected| {
            let counts = classes().map(|predicted| self.count(expected, predicted).to_string());
            of_matrix(&name(expected), counts.collect())
        }));

        let width = width.max("weighted average".len());
        let of_scores = |first: &str, Scores { precision, recall, f1, support }: Scores| {
            let shares = [precision, recall, f1].map(|share| format!("{share:.4}"));
            line(first, shares.into_iter().chain([support.to_string()]).collect(), width, "precision".len())
        };
        let head = ["precision", "recall", "f1", "support"].map(String::from);
        lines.push(line("label", head.to_vec(), width, "precision".len()));
        lines.extend(self.occurring().map(|class| of_scores(&name(class), self.scores(class))));
        lines.push(of_scores("macro average", self.macro_average()));
        lines.push(of_scores("weighted average", self.weighted_average()));

        let is_missing = |class: &usize| self.expected(*class) + self.predicted(*class) == 0;
        for (what, classes) in [
            (
                "never predicted, so that the precision is 0 / 0, shown as 0",
                self.occurring().filter(|class| self.predicted(*class) == 0).collect::<Vec<_>>(),
            ),
            (
                "the label of no row, so that the recall is 0 / 0, shown as 0",
                self.occurring().filter(|class| self.expected(*class) == 0).collect(),
            ),
            (
                "neither the label of a row nor predicted, so left out of the averages",
                classes().filter(is_missing).collect(),
            ),
        ] {
            if !classes.is_empty() {
                lines.push(format!("{what}: {}", classes.into_iter().map(name).collect::<Vec<_>>().join(", ")));
            }
        }
        lines.push(match self.num_labels {
            2 => format!("eval_f1 is the f1 of {}, the second of two labels", name(1)),
            _ => "eval_f1 is the f1 of the macro average".into(),
        });
        lines
    }

    /// The scores of the classes called `names` for programs, with their averages.
    pub fn to_json(&self, names: &[String]) -> serde_json::Value {
        let classes = self.occurring().map(|class| {
            let Scores { precision, recall, f1, support } = self.scores(class);
            let label = class_name(names, class);
            json!({ "label": label, "precision": precision, "recall": recall, "f1": f1, "support": support })
        });
        json!({
            "classes": classes.collect::<Vec<_>>(),
            "macro_average": self.macro_average(),
            "weighted_average": self.weighted_average(),
        })
    }

    /// Matthews' correlation coefficient for any number of classes (Gorodkin 2004); 0 where labels
    /// or predictions are all of one class, as in scikit-learn.
    pub fn matthews_correlation(&self) -> f64 {
        let classes = || 0..self.num_labels;
        let total = self.counts.iter().sum::<u64>() as f64;
        let right = classes().map(|class| self.count(class, class)).sum::<u64>() as f64;
        let product = |a: &dyn Fn(usize) -> u64, b: &dyn Fn(usize) -> u64| -> f64 {
            classes().map(|class| a(class) as f64 * b(class) as f64).sum()
        };
        let (expected, predicted) = (|class| self.expected(class), |class| self.predicted(class));
        let covariance = right * total - product(&expected, &predicted);
        let of_expected = total * total - product(&expected, &expected);
        let of_predicted = total * total - product(&predicted, &predicted);
        let scale = (of_expected * of_predicted).sqrt();
        if scale == 0.0 { 0.0 } else { covariance / scale }
    }
}

/// The name of `class` among `names`; that of `transformers` where nobody has named it.
pub fn class_name(names: &[String], class: usize) -> String {
    names.get(class).cloned().unwrap_or_else(|| format!("LABEL_{class}"))
}
