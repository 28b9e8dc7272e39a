//! The labels and the rows of the data in a plan: how often each label stands there, how many rows
//! are cut, and how many have no text. Nothing here is read anew: the rows are encoded already.

use kiln_core::dataset::Label;
use kiln_core::error::Result;
use kiln_core::words::thousands;
use kiln_data::Dataset;
use kiln_data::labels::MAX_CLASSES;
use kiln_data::rows::RowStore;
use serde::{Deserialize, Serialize};

use crate::config::Task;

/// A line lists so many labels; of more it lists the most frequent and the rarest ones.
const LISTED: usize = 8;

/// How many rows have a label; for token classification how many words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelCount {
    /// The name of the label.
    pub name: String,
    /// In the training data; none where they are read as they are needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train: Option<u64>,
    /// In the validation data; none where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<u64>,
}

/// How many rows of a table there are, how many of them are cut to `data.max_length`, and how many
/// have no text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowCounts {
    /// All rows.
    pub rows: u64,
    /// The rows that are cut.
    pub cut: u64,
    /// The rows without a text.
    pub blank: u64,
}

/// Labels and rows of the data of a run, counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelledRows {
    /// The labels, in the order of their ids; none for a task without named labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<LabelCount>,
    /// The rows of the training data, where they come from a table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train: Option<RowCounts>,
    /// The rows of the validation data, where they come from a table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<RowCounts>,
}

impl LabelledRows {
    /// Counts the rows of `train` and of `validation`, whose labels are called `names`; labels
    /// without a name, and more of them than [`MAX_CLASSES`], are not counted.
    ///
    /// # Errors
    /// Data that cannot be read.
    pub fn count(names: &[String], train: &dyn Dataset, validation: Option<&dyn Dataset>) -> Result<Self> {
        let names = if names.len() <= MAX_CLASSES { names } else { &[] };
        let of_train = counts(train, names.len())?;
        let of_validation = validation.map(|data| counts(data, names.len())).transpose()?;
        let labels = names.iter().enumerate().map(|(id, name)| LabelCount {
            name: name.clone(),
            train: of_train.as_ref().map(|counts| counts[id]),
            validation: of_validation.as_ref().and_then(|counts| Some(counts.as_ref()?[id])),
        });
        Ok(Self { labels: labels.collect(), train: rows(train), validation: validation.and_then(rows) })
    }

    /// Whether there is nothing to say.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The labels with their counts for `task`, the most frequent ones first; none where there are
    /// no labels.
    pub fn describe_labels(&self, task: Task) -> Option<String> {
        let (first, of) = (self.labels.first()?, if task == Task::TokenClassification { "words" } else { "rows" });
        let mut labels = self.labels.iter().collect::<Vec<_>>();
        labels.sort_by_key(|label| std::cmp::Reverse(label.train));
        let shown = |label: &&LabelCount| match (label.train, label.validation) {
            (Some(train), Some(validation)) => {
                format!("{}: {} ({})", label.name, thousands(train), thousands(validation))
            }
            (Some(train), None) => format!("{}: {}", label.name, thousands(train)),
            (None, _) => label.name.clone(),
        };
        let listed = match labels.len() {
            0..=LISTED => labels.iter().map(shown).collect::<Vec<_>>(),
            many => {
                let most = labels[..LISTED - 3].iter().map(shown);
                most.chain(["..".to_owned()]).chain(labels[many - 2..].iter().map(shown)).collect()
            }
        };
        let listed = listed.join(", ");
        let (count, noun) = (labels.len(), if labels.len() == 1 { "label" } else { "labels" });
        Some(match (first.train, first.validation) {
            (Some(_), Some(_)) => format!("{count} {noun} with training (validation) {of}: {listed}"),
            (Some(_), None) => format!("{count} {noun} with {of}: {listed}"),
            (None, _) => {
                format!("{count} {noun}: {listed}; not counted, since the training data are read as they are needed")
            }
        })
    }

    /// How many rows are cut to `max_length` tokens, and how many have no text.
    pub fn describe_rows(&self, max_length: Option<usize>) -> Vec<String> {
        let Some(train) = self.train else { return Vec::new() };
        let line = |count: fn(&RowCounts) -> u64, one: &str, several: &str| {
            let (of_train, of_validation) =
                (count(&train), self.validation.as_ref().map(|rows| (count(rows), rows.rows)));
            if of_train + of_validation.map_or(0, |(count, _)| count) == 0 {
                return None;
            }
            let said = if of_train == 1 { one } else { several };
            let validation = of_validation
                .map(|(count, rows)| format!(" (validation: {} of {})", thousands(count), thousands(rows)));
            let of = thousands(train.rows);
            Some(format!("{} of {of} rows {said}{}", thousands(of_train), validation.unwrap_or_default()))
        };
        let tokens = max_length.unwrap_or_default();
        let cut = |verb: &str| format!("{verb} cut to {tokens} tokens");
        [line(|rows| rows.cut, &cut("is"), &cut("are")), line(|rows| rows.blank, "has no text", "have no text")]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Mistakes that the counts show, one sentence each: a column that is none of classes, labels
    /// of which nothing can be learned, and labels of which no evaluation tells.
    pub fn warnings(&self, task: Task, is_table: bool) -> Vec<String> {
        let named = |has: &dyn Fn(&LabelCount) -> bool| {
            self.labels.iter().filter(|label| has(label)).map(|label| label.name.as_str()).collect::<Vec<_>>()
        };
        let single = named(&|label| label.train == Some(1));
        let of = if task == Task::TokenClassification { "word" } else { "row" };
        let count = self.labels.len();
        if task == Task::SequenceClassification && count > 2 && 2 * single.len() > count {
            let help = if is_table {
                "; if they are no classes, name the column with the classes in data.label_column"
            } else {
                ""
            };
            return vec![format!(
                "data.train: {} of {count} labels have one row each, of which nothing can be learned{help}",
                single.len()
            )];
        }
        let lacking = named(&|label| label.train == Some(0));
        let untested = named(&|label| label.train.is_none_or(|count| count > 0) && label.validation == Some(0));
        [
            said("data.train", &single, &format!("one {of}"), ""),
            said("data.train", &lacking, &format!("no {of}"), ""),
            said("data.validation", &untested, &format!("no {of}"), ", so no score tells how well it is learned"),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// `key: the label "a" has ..`; none where no label has.
fn said(key: &str, labels: &[&str], has: &str, so: &str) -> Option<String> {
    let quoted = labels.iter().take(LISTED).map(|label| format!("{label:?}")).collect::<Vec<_>>().join(", ");
    let each = if has.starts_with("one") { " each" } else { "" };
    let so = if labels.len() > 1 { so.replace("it is", "they are") } else { so.to_owned() };
    match labels.len() {
        0 => None,
        1 => Some(format!("{key}: the label {quoted} has {has}{so}")),
        2..=LISTED => Some(format!("{key}: the labels {quoted} have {has}{each}{so}")),
        many => Some(format!("{key}: {many} labels have {has}{each}, {quoted} among them{so}")),
    }
}

/// How often each of so many `labels` stands in `data`; none where the data are read as they are
/// needed.
fn counts(data: &dyn Dataset, labels: usize) -> Result<Option<Vec<u64>>> {
    if data.stream().is_some() {
        return Ok(None);
    }
    let mut counts = vec![0; labels];
    let mut add = |class: i32| {
        // The ignored label is below 0.
        if let Some(count) = usize::try_from(class).ok().and_then(|class| counts.get_mut(class)) {
            *count += 1;
        }
    };
    let examples = if labels == 0 { 0 } else { data.len() };
    for index in 0..examples {
        let label = match RowStore::of(data, index) {
            Some((rows, row)) => rows.label(row),
            None => data.get(index, 0)?.label,
        };
        match label {
            Label::Class(class) => add(class),
            Label::Tokens(tags) => tags.into_iter().for_each(&mut add),
            Label::Multi(applies) => {
                (0..).zip(applies).filter(|(_, applies)| *applies > 0.0).for_each(|(class, _)| add(class));
            }
            Label::None | Label::Value(_) | Label::Choice { .. } | Label::Span { .. } => {}
        }
    }
    Ok(Some(counts))
}

/// The rows of `data`; none where they are none of a table.
fn rows(data: &dyn Dataset) -> Option<RowCounts> {
    RowStore::of(data, 0)?;
    let rows = (0..data.len()).filter_map(|index| RowStore::of(data, index));
    Some(rows.fold(RowCounts::default(), |counts, (rows, row)| RowCounts {
        rows: counts.rows + 1,
        cut: counts.cut + u64::from(rows.is_cut(row)),
        blank: counts.blank + u64::from(rows.is_blank(row)),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(labels: &[(&str, u64, Option<u64>)]) -> LabelledRows {
        let label = |(name, train, validation): &(&str, u64, Option<u64>)| LabelCount {
            name: (*name).into(),
            train: Some(*train),
            validation: *validation,
        };
        LabelledRows { labels: labels.iter().map(label).collect(), ..LabelledRows::default() }
    }

    #[test]
    fn labels_stand_in_the_order_of_their_counts() {
        let few = counted(&[("legal", 2, Some(1)), ("billing", 1_200, Some(30)), ("other", 98, Some(0))]);
        assert_eq!(
            few.describe_labels(Task::SequenceClassification).as_deref(),
            Some("3 labels with training (validation) rows: billing: 1,200 (30), other: 98 (0), legal: 2 (1)")
        );
        let names = (0..12).map(|id| format!("l{id}")).collect::<Vec<_>>();
        let many = names.iter().zip(10_u64..).map(|(name, count)| (name.as_str(), count, None)).collect::<Vec<_>>();
        assert_eq!(
            counted(&many).describe_labels(Task::TokenClassification).as_deref(),
            Some("12 labels with words: l11: 21, l10: 20, l9: 19, l8: 18, l7: 17, .., l1: 11, l0: 10")
        );
        assert_eq!(LabelledRows::default().describe_labels(Task::Regression), None);
    }

    #[test]
    fn rows_that_are_cut_or_blank_are_said() {
        let rows = |cut, blank| Some(RowCounts { rows: 54, cut, blank });
        let counted = |train, validation| LabelledRows { train, validation, ..LabelledRows::default() };
        assert_eq!(
            counted(rows(20, 1), rows(0, 3)).describe_rows(Some(128)),
            [
                "20 of 54 rows are cut to 128 tokens (validation: 0 of 54)",
                "1 of 54 rows has no text (validation: 3 of 54)"
            ]
        );
        assert_eq!(counted(rows(1, 0), None).describe_rows(Some(9)), ["1 of 54 rows is cut to 9 tokens"]);
        assert!(counted(rows(0, 0), rows(0, 0)).describe_rows(Some(9)).is_empty());
    }

    #[test]
    fn mistakes_are_told() {
        let told = |labels: &[(&str, u64, Option<u64>)]| counted(labels).warnings(Task::SequenceClassification, true);
        assert_eq!(told(&[("a", 3, Some(1)), ("b", 2, Some(1))]), Vec::<String>::new());
        assert_eq!(
            told(&[("1", 1, Some(0)), ("2", 1, Some(0)), ("3", 2, Some(0))]),
            [
                "data.train: 2 of 3 labels have one row each, of which nothing can be learned; if they are no classes, name the column \
              with the classes in data.label_column"
            ]
        );
        assert_eq!(
            told(&[("a", 9, Some(0)), ("b", 1, Some(0)), ("c", 0, Some(0)), ("d", 9, Some(9))]),
            [
                "data.train: the label \"b\" has one row",
                "data.train: the label \"c\" has no row",
                "data.validation: the labels \"a\", \"b\" have no row, so no score tells how well they are learned"
            ]
        );
        assert_eq!(
            told(&[("a", 9, Some(0)), ("b", 9, Some(9))]),
            ["data.validation: the label \"a\" has no row, so no score tells how well it is learned"]
        );
    }
}
