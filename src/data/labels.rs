//! Labels of a table: names or numbers become class ids or values. Which names there are is settled once, by the config,
//! the pretrained model or the training data, in this order; every other label is refused.

use std::collections::{BTreeSet, HashMap};

use kiln_models::config::Labels;
use serde_json::Value;

use super::Label;
use super::table::Cell;
use crate::base::error::{Error, Result};
use crate::config::{Task, check_label_names};

/// A column with more distinct values than this, or with a number above it, is no column of classes.
pub const MAX_CLASSES: usize = 1000;

/// The labels that the label column of a table becomes.
#[derive(Debug, Clone, PartialEq)]
pub enum LabelRule {
    /// There is none.
    Nothing,
    /// Class ids.
    Classes(LabelNames),
    /// Numbers.
    Values,
    /// One class id for each word.
    Tags(LabelNames),
    /// Of every label, whether it is among those of the row.
    Several(LabelNames),
    /// The number of the right choice.
    Choice,
}

/// Names of classes, in the order of their ids.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelNames {
    names: Vec<String>,
    ids: HashMap<String, i32>,
    /// A number that is no name counts as an id; not where names are numbers themselves.
    accepts_ids: bool,
}

/// The distinct values of a label column.
#[derive(Debug, Clone, Default)]
pub struct SeenLabels {
    values: BTreeSet<String>,
}

impl LabelRule {
    /// The label of a row.
    ///
    /// # Errors
    /// A row without a label, a label outside the map, a value that is no number.
    pub fn apply(&self, cell: Option<&Cell>) -> Result<Label> {
        match (self, cell) {
            (Self::Nothing, _) => Ok(Label::None),
            (Self::Several(_), None | Some(Cell::Null)) => {
                Err(Error::data("the row has no label").help("write [] where none of the labels applies"))
            }
            (_, None | Some(Cell::Null)) => {
                Err(Error::data("the row has no label").help("every row needs one; leave out those without"))
            }
            (Self::Classes(names), Some(cell)) => names.id(cell).map(Label::Class),
            (Self::Values, Some(cell)) => value(cell).map(Label::Value),
            (Self::Tags(names), Some(Cell::List(cells))) => {
                Ok(Label::Tokens(cells.iter().map(|cell| names.id(cell)).collect::<Result<_>>()?))
            }
            (Self::Tags(_), Some(other)) => Err(not_list(other)),
            (Self::Several(names), Some(Cell::List(cells))) => {
                let mut applies = vec![0.0; names.names.len()];
                for cell in cells {
                    // A row of zeros and ones of three labels and more has one of them twice.
                    if std::mem::replace(&mut applies[names.id(cell)? as usize], 1.0) > 0.0 {
                        return Err(Error::data(format!("the label {:?} stands twice in the list", name_of(cell)?)).help(
                            "a table lists the labels that apply, by name or id; a vector with 0 or 1 for each label \
                             belongs in data.format = \"tokenized\"",
                        ));
                    }
                }
                Ok(Label::Multi(applies))
            }
            (Self::Several(_), Some(other)) => Err(not_list(other)),
            (Self::Choice, Some(cell)) => {
                let number = match cell {
                    Cell::Integer(number) => i32::try_from(*number).ok(),
                    Cell::Text(text) => text.trim().parse().ok(),
                    _ => None,
                };
                number.map(Label::Class).ok_or_else(|| {
                    Error::data(format!("expected the number of the right choice, from 0, got {}", shown(cell)))
                        .help("name the right column with data.label_column")
                })
            }
        }
    }

    /// Everything that decides what [`apply`](Self::apply) gives, for the key of a cache.
    pub fn describe(&self) -> String {
        match self {
            Self::Nothing => "nothing".into(),
            Self::Values => "values".into(),
            Self::Classes(names) => format!("classes {:?}", names.names),
            Self::Tags(names) => format!("tags {:?}", names.names),
            Self::Several(names) => format!("several of {:?}", names.names),
            Self::Choice => "choice".into(),
        }
    }
}

impl LabelNames {
    /// Ids in the order of `names`.
    ///
    /// # Errors
    /// Fewer than two names, or one twice.
    pub fn new(names: Vec<String>) -> Result<Self> {
        check_label_names(&names)?;
        let ids = names.iter().cloned().zip(0..).collect::<HashMap<_, _>>();
        let accepts_ids = names.iter().all(|name| name.parse::<i64>().is_err());
        Ok(Self { names, ids, accepts_ids })
    }

    /// The names in a model's configuration; none when it has no `id2label`.
    ///
    /// # Errors
    /// As [`new`](Self::new), and an `id2label` whose ids are not `0, 1, 2, ...`.
    pub fn of_model(labels: &Labels) -> Result<Option<Self>> {
        if labels.id2label.is_none() {
            return Ok(None);
        }
        Self::new(label_names(labels)?).map(Some)
    }

    /// The names, in the order of their ids.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// As the `config.json` of a model for `task` keeps them.
    pub fn to_model(&self, task: Task) -> Labels {
        let ids = || self.names.iter().enumerate();
        Labels {
            num_labels: None,
            id2label: Some(ids().map(|(id, name)| (id.to_string(), name.as_str().into())).collect()),
            label2id: Some(ids().map(|(id, name)| (name.clone(), id.into())).collect()),
            problem_type: problem_type(task).map(str::to_owned),
        }
    }

    fn id(&self, cell: &Cell) -> Result<i32> {
        let name = name_of(cell)?;
        if let Some(id) = self.ids.get(&name) {
            return Ok(*id);
        }
        match name.parse::<i32>() {
            Ok(id) if self.accepts_ids && (0..self.names.len() as i32).contains(&id) => Ok(id),
            _ => Err(Error::data(format!("the label {name:?} is outside the map; there are {}", self.listed()))
                .help("correct the row, or give every label in data.label_names")),
        }
    }

    fn listed(&self) -> String {
        let more = if self.names.len() > 20 { ", ..." } else { "" };
        let names = self.names.iter().take(20).map(|name| format!("{name:?}")).collect::<Vec<_>>();
        names.join(", ") + more
    }
}

impl SeenLabels {
    /// Takes note of a label.
    ///
    /// # Errors
    /// A number that is not whole; more distinct values than classes can be.
    pub fn add(&mut self, cell: &Cell) -> Result<()> {
        if let Cell::List(cells) = cell {
            return cells.iter().try_for_each(|cell| self.add(cell));
        }
        if *cell == Cell::Null {
            return Ok(());
        }
        let name = name_of(cell)?;
        if !self.values.contains(&name) {
            self.values.insert(name);
        }
        if self.values.len() > MAX_CLASSES {
            return Err(Error::data(format!("the label column has more than {MAX_CLASSES} different values"))
                .help("name the right column with data.label_column, or give the labels in data.label_names"));
        }
        Ok(())
    }

    /// The values as names: whole numbers in the order of their size, anything else in alphabetical order, as `run_glue`
    /// sorts them.
    ///
    /// # Errors
    /// As [`LabelNames::new`].
    pub fn names(&self) -> Result<LabelNames> {
        let mut names = self.values.iter().cloned().collect::<Vec<_>>();
        if let Ok(numbers) = names.iter().map(|name| name.parse::<i64>()).collect::<std::result::Result<Vec<_>, _>>() {
            let mut sorted = numbers.into_iter().zip(names).collect::<Vec<_>>();
            sorted.sort();
            names = sorted.into_iter().map(|(_, name)| name).collect();
        }
        LabelNames::new(names)
    }
}

/// The names of a model's labels, as its `config.json` has them, else `LABEL_0`, `LABEL_1`, ...
///
/// # Errors
/// An `id2label` whose ids are not `0, 1, 2, ...`.
pub fn label_names(labels: &Labels) -> Result<Vec<String>> {
    let Some(map) = &labels.id2label else {
        return Ok((0..labels.num_labels()).map(|class| format!("LABEL_{class}")).collect());
    };
    let name = |id: usize| match map.get(&id.to_string()) {
        Some(Value::String(name)) => Ok(name.clone()),
        _ => Err(Error::data(format!("config.json id2label: expected a name for the id {id}"))),
    };
    (0..map.len()).map(name).collect()
}

/// `problem_type` of the `config.json` of a model for `task`, where `transformers` reads one.
pub fn problem_type(task: Task) -> Option<&'static str> {
    match task {
        Task::SequenceClassification => Some("single_label_classification"),
        Task::MultiLabelClassification => Some("multi_label_classification"),
        Task::Regression => Some("regression"),
        _ => None,
    }
}

fn not_list(cell: &Cell) -> Error {
    Error::data(format!("expected a list of labels, got {}", shown(cell)))
        .help("a column with lists is in JSON lines or parquet; name it with data.label_column")
}

/// A cell in a message.
fn shown(cell: &Cell) -> String {
    match cell {
        Cell::Text(text) => format!("{text:?}"),
        Cell::Integer(number) => number.to_string(),
        Cell::Number(number) => number.to_string(),
        Cell::Null => "nothing".into(),
        Cell::List(cells) => format!("a list of {}", cells.len()),
    }
}

fn name_of(cell: &Cell) -> Result<String> {
    match cell {
        Cell::List(_) => Err(Error::data(format!("expected one label, got {}", shown(cell)))
            .help("for several labels set data.task = \"multi-label-classification\"")),
        Cell::Null => Err(Error::data("the row has no label")),
        Cell::Text(text) => Ok(text.clone()),
        Cell::Integer(integer) => Ok(integer.to_string()),
        Cell::Number(number) if number.fract() == 0.0 && number.abs() < 1e15 => Ok((*number as i64).to_string()),
        Cell::Number(number) => Err(Error::data(format!("expected a class, got the number {number}"))
            .help("for numbers set data.task = \"regression\"")),
    }
}

fn value(cell: &Cell) -> Result<f32> {
    let number = match cell {
        Cell::Integer(integer) => Some(*integer as f64),
        Cell::Number(number) => Some(*number),
        Cell::Text(text) => text.trim().parse::<f64>().ok(),
        Cell::Null | Cell::List(_) => None,
    };
    number.map(|number| number as f32).filter(|number| number.is_finite()).ok_or_else(|| {
        Error::data(format!("expected a finite number as label for the task regression, got {}", shown(cell)))
            .help("name the right column with data.label_column")
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn text(value: &str) -> Cell {
        Cell::Text(value.into())
    }

    fn seen(cells: &[Cell]) -> LabelNames {
        let mut seen = SeenLabels::default();
        cells.iter().for_each(|cell| seen.add(cell).unwrap());
        seen.names().unwrap()
    }

    #[test]
    fn names_and_numbers_are_ids() {
        let rule = LabelRule::Classes(LabelNames::new(vec!["neg".into(), "pos".into()]).unwrap());
        for (cell, id) in [(text("pos"), 1), (text("0"), 0), (Cell::Integer(1), 1), (Cell::Number(1.0), 1)] {
            assert_eq!(rule.apply(Some(&cell)).unwrap(), Label::Class(id));
        }
        for (cell, says) in [
            (text("neutral"), "\"neutral\" is outside the map; there are \"neg\", \"pos\""),
            (Cell::Integer(2), "\"2\" is outside the map"),
            (Cell::Integer(-1), "\"-1\" is outside the map"),
            (Cell::Number(0.5), "got the number 0.5"),
            (Cell::Null, "no label"),
        ] {
            let error = rule.apply(Some(&cell)).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn the_data_shows_its_labels_in_order() {
        assert_eq!(seen(&[text("10"), text("2"), Cell::Null, text("2")]).names(), ["2", "10"]);
        assert_eq!(seen(&[text("b"), text("a"), text("10")]).names(), ["10", "a", "b"]);
        let stars = LabelRule::Classes(seen(&[Cell::Integer(1), Cell::Integer(2)]));
        assert_eq!(stars.apply(Some(&text("1"))).unwrap(), Label::Class(0));
        assert!(stars.apply(Some(&text("0"))).is_err(), "a number that is no name is no id where names are numbers");
        let mut one = SeenLabels::default();
        one.add(&text("a")).unwrap();
        assert!(one.names().unwrap_err().to_string().contains("at least two labels"));
        let mut many = SeenLabels::default();
        assert!((0..2000).any(|i| many.add(&Cell::Integer(i)).is_err()));
    }

    #[test]
    fn the_map_goes_to_the_model_and_back() {
        let names = LabelNames::new(vec!["neg".into(), "pos".into()]).unwrap();
        let model = names.to_model(Task::SequenceClassification);
        assert_eq!(model.num_labels(), 2);
        assert_eq!(model.label2id.as_ref().unwrap()["pos"], 1);
        assert_eq!(LabelNames::of_model(&model).unwrap(), Some(names));
        assert!(LabelNames::new(vec!["a".into(), "a".into()]).is_err());
    }

    #[test]
    fn a_list_names_each_label_that_applies_once() {
        let rule = LabelRule::Several(LabelNames::new(vec!["a".into(), "b".into(), "c".into()]).unwrap());
        let list = |cells: &[Cell]| rule.apply(Some(&Cell::List(cells.to_vec())));
        assert_eq!(list(&[]).unwrap(), Label::Multi(vec![0.0; 3]));
        assert_eq!(list(&[text("c"), Cell::Integer(0)]).unwrap(), Label::Multi(vec![1.0, 0.0, 1.0]));
        let error = list(&[Cell::Integer(0), Cell::Integer(1), Cell::Integer(0)]).unwrap_err().to_string();
        assert!(error.contains("\"0\" stands twice") && error.contains("\"tokenized\""), "{error}");
        for none in [None, Some(&Cell::Null)] {
            let error = rule.apply(none).unwrap_err().to_string();
            assert!(error.contains("the row has no label") && error.contains("write []"), "{error}");
        }
    }

    #[test]
    fn ids_without_a_name_are_refused() {
        let labels = |text: &str| Labels { id2label: serde_json::from_str(text).unwrap(), ..Labels::default() };
        assert_eq!(label_names(&labels("null")).unwrap(), ["LABEL_0", "LABEL_1"]);
        let error = label_names(&labels(r#"{"0": "a", "2": "b"}"#)).unwrap_err().to_string();
        assert!(error.contains("id2label: expected a name for the id 1"), "{error}");
    }

    #[test]
    fn values_are_numbers() {
        assert_eq!(LabelRule::Values.apply(Some(&text("2.5"))).unwrap(), Label::Value(2.5));
        assert_eq!(LabelRule::Values.apply(Some(&Cell::Integer(3))).unwrap(), Label::Value(3.0));
        for bad in [text("good"), text("nan"), text("")] {
            assert!(LabelRule::Values.apply(Some(&bad)).unwrap_err().to_string().contains("finite number"));
        }
    }
}
