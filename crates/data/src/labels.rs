//! Labels of a table: names or numbers become class ids or values. Which names there are is settled
//! once, by the config, the pretrained model, the features of `datasets` in the file or the
//! training data, in this order; every other label is refused. A cell means the same in every
//! format: text that spells a number or a boolean is one, and blanks around it mean nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kiln_core::error::{Error, Result};
use kiln_core::model_config::Labels;
use serde_json::Value;

use super::table::{Cell, Place, written_list};
use super::{IGNORED, Label};
use crate::task::Task;

/// A column with more distinct values than this, or with a number above it, is no column of
/// classes.
pub const MAX_CLASSES: usize = 1000;

/// Texts that pandas, and `load_dataset` with it, reads as a value that is missing.
pub const MISSING: [&str; 19] = [
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
    "NULL", "NaN", "None", "n/a", "nan", "null",
];

/// Characters without a width, which exports leave in texts.
const INVISIBLE: [char; 6] = ['\u{ad}', '\u{200b}', '\u{200c}', '\u{200d}', '\u{2060}', '\u{feff}'];

/// Ids that say "no label": `datasets` writes the first into splits without labels, and losses of
/// PyTorch ignore the second.
const NO_CLASS: [i128; 2] = [-1, IGNORED as i128];

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
    /// Multi-label targets: for each label, whether the row has it.
    Several(LabelNames),
    /// The number of the right choice.
    Choice,
}

/// How the label column of a table is read.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelReader {
    /// The rule that turns a cell into a label.
    pub rule: LabelRule,
    /// Whether a row without a label is left out, and a word without one ignored; else it is an
    /// error.
    pub skip_unlabeled: bool,
}

impl LabelReader {
    /// The label of a row; none where the row is left out.
    ///
    /// # Errors
    /// A label that [`LabelRule::apply`] refuses; where `skip_unlabeled` is not set, a row or a
    /// word without a label.
    pub fn read(&self, cell: Option<&Cell>) -> Result<Option<Label>> {
        let label = self.rule.apply(cell)?;
        if self.skip_unlabeled {
            return Ok(label);
        }
        match (&self.rule, cell, &label) {
            (_, _, None) => Err(unlabeled(cell.unwrap_or(&Cell::Null), "row")),
            (LabelRule::Tags(names), Some(Cell::List(cells)), Some(Label::Tokens(tags))) if tags.contains(&IGNORED) => {
                let ignored = cells.iter().find(|cell| matches!(names.id(cell), Ok(None)));
                Err(unlabeled(ignored.unwrap_or(&Cell::Null), "word"))
            }
            _ => Ok(label),
        }
    }

    /// Everything that decides what [`read`](Self::read) gives, for the key of a cache.
    pub fn describe(&self) -> String {
        format!("{}, skip {}", self.rule.describe(), self.skip_unlabeled)
    }
}

/// Names of classes, in the order of their ids.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelNames {
    names: Vec<String>,
    /// The ids by the spelling of the names, and by what they mean: `0.0` and `0`, `True` and
    /// `true` mean the same.
    ids: HashMap<String, i32>,
    /// A number that is no name counts as an id: where names were given, and none is a number
    /// itself.
    accepts_ids: bool,
}

/// The distinct values of a label column.
#[derive(Debug, Clone, Default)]
pub struct SeenLabels {
    values: BTreeSet<String>,
    /// The first value that is no class.
    refused: Option<(Place, Cell)>,
    /// The first value that says that there is no label.
    unlabeled: Option<(Place, Cell, &'static str)>,
    /// How often each spelling of "no label" stands in a list.
    missing: BTreeMap<String, u64>,
    /// The first boolean, the first number and the first name.
    kinds: [Option<(Place, String)>; 3],
    /// The first label with blanks around it.
    blanks: Option<(Place, String)>,
    /// The first number that is written as no other program would write it, such as 01.
    respelled: Option<(Place, String)>,
}

/// A cell read as a label, whatever the format of its file.
struct Reading {
    /// One text for all spellings of a value: `1` for `1`, `01` and `1.0`.
    key: String,
    kind: Kind,
}

/// The kind of value that a cell says, in whatever format it stands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Missing,
    Boolean(bool),
    Whole(i128),
    Number(f64),
    Name,
    List,
}

impl Kind {
    pub(crate) fn of(cell: &Cell) -> Self {
        Reading::of(cell).kind
    }
}

impl Reading {
    fn of(cell: &Cell) -> Self {
        let (key, kind) = match cell {
            Cell::Null => (String::new(), Kind::Missing),
            Cell::List(_) => (String::new(), Kind::List),
            Cell::Boolean(value) => (if *value { "True" } else { "False" }.into(), Kind::Boolean(*value)),
            Cell::Integer(number) => (number.to_string(), Kind::Whole(*number)),
            Cell::Number(number) => Self::of_number(*number),
            Cell::Text(text) => Self::of_text(text.trim()),
        };
        Self { key, kind }
    }

    fn of_number(number: f64) -> (String, Kind) {
        // A larger number may have been another one before it was rounded to 64 bits.
        const EXACT: f64 = (1_u64 << 53) as f64;
        match number {
            _ if number.is_nan() => ("NaN".into(), Kind::Missing),
            _ if number.fract() == 0.0 && number.abs() <= EXACT => {
                (format!("{}", number as i128), Kind::Whole(number as i128))
            }
            _ => (number.to_string(), Kind::Number(number)),
        }
    }

    fn of_text(text: &str) -> (String, Kind) {
        if MISSING.contains(&text) {
            return (text.into(), Kind::Missing);
        }
        // `inf` and `infinity` are numbers for Rust, and may be names here.
        if text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first)) {
            if let Ok(number) = text.parse::<i128>() {
                return (number.to_string(), Kind::Whole(number));
            }
            let number = text.parse().ok().filter(|number: &f64| number.is_finite());
            if let Some(number) = number.filter(|_| text.contains(|c: char| c.is_ascii_digit())) {
                return Self::of_number(number);
            }
        }
        match text {
            "True" | "true" | "TRUE" => ("True".into(), Kind::Boolean(true)),
            "False" | "false" | "FALSE" => ("False".into(), Kind::Boolean(false)),
            _ if written_list(text) => (text.into(), Kind::List),
            _ => (text.into(), Kind::Name),
        }
    }
}

impl LabelRule {
    /// The label of a row; none where the cell says that there is none.
    ///
    /// # Errors
    /// A label outside the map, a value that is no number.
    pub fn apply(&self, cell: Option<&Cell>) -> Result<Option<Label>> {
        let Some(cell) = cell else {
            return Ok((*self == Self::Nothing).then_some(Label::None));
        };
        Ok(match (self, cell) {
            (Self::Nothing, _) => Some(Label::None),
            (Self::Classes(names), cell) => names.id(cell)?.map(Label::Class),
            (Self::Values, cell) => value(cell)?.map(Label::Value),
            (Self::Tags(names), Cell::List(cells)) => {
                let tags = cells.iter().map(|cell| Ok(names.id(cell)?.unwrap_or(IGNORED)));
                Some(Label::Tokens(tags.collect::<Result<_>>()?))
            }
            (Self::Several(names), Cell::List(cells)) => {
                let is_number = |cell: &Cell| matches!(Reading::of(cell).kind, Kind::Whole(_) | Kind::Boolean(_));
                // A vector of more labels has one of its numbers twice, which is refused below.
                if names.names.len() == 2 && cells.len() == 2 && cells.iter().all(is_number) {
                    return Err(Error::data("with two labels, a list of two numbers may list both or be a vector of 0 and 1")
                        .help("write the labels by their names, in data.label_names too; a vector belongs in data.format = \"tokenized\""));
                }
                let mut applies = vec![0.0; names.names.len()];
                for cell in cells {
                    let id = names.id(cell)?.ok_or_else(|| {
                        Error::data(format!("{} in the list is no label", shown(cell)))
                            .help("take it out of the list; if it is a class, name all classes in data.label_names")
                    })?;
                    // A row of zeros and ones of three labels and more has one of them twice.
                    if std::mem::replace(&mut applies[id as usize], 1.0) > 0.0 {
                        return Err(Error::data(format!(
                            "the label {:?} stands twice in the list",
                            Reading::of(cell).key
                        ))
                        .help(
                            "a table lists the labels that apply, by name or id; a vector with 0 or 1 for each label \
                             belongs in data.format = \"tokenized\"",
                        ));
                    }
                }
                Some(Label::Multi(applies))
            }
            (Self::Tags(_) | Self::Several(_), other) if Reading::of(other).kind == Kind::Missing => None,
            (Self::Tags(_) | Self::Several(_), other) => return Err(not_list(other)),
            (Self::Choice, cell) => match Reading::of(cell).kind {
                Kind::Missing => None,
                Kind::Whole(number) if NO_CLASS.contains(&number) => None,
                Kind::Whole(number) if (0..=i128::from(i32::MAX)).contains(&number) => {
                    Some(Label::Class(number as i32))
                }
                _ => {
                    let got = shown(cell);
                    return Err(Error::data(format!("expected the number of the right choice, from 0, got {got}"))
                        .help("name the right column with data.label_column"));
                }
            },
        })
    }

    fn describe(&self) -> String {
        let of = |what: &str, names: &LabelNames| format!("{what} {:?}, ids {}", names.names, names.accepts_ids);
        match self {
            Self::Nothing => "nothing".into(),
            Self::Values => "values".into(),
            Self::Classes(names) => of("classes", names),
            Self::Tags(names) => of("tags", names),
            Self::Several(names) => of("several of", names),
            Self::Choice => "choice".into(),
        }
    }
}

impl LabelNames {
    /// Ids in the order of `names`, which somebody has given.
    ///
    /// # Errors
    /// Fewer than two names, or two that mean the same.
    pub fn new(names: Vec<String>) -> Result<Self> {
        check_label_names(&names)?;
        let readings = names.iter().map(|name| Reading::of_text(name.trim())).collect::<Vec<_>>();
        let accepts_ids = !readings.iter().any(|(_, kind)| matches!(kind, Kind::Whole(_) | Kind::Number(_)));
        let one_label = |one: i32, other: usize| {
            let (one, other) = (&names[one as usize], &names[other]);
            Error::config(format!("{one:?} and {other:?} are one label")).help(
                "whole numbers of one value, True and true, and names that blanks alone tell apart are the same; name each \
                 label once",
            )
        };
        let mut ids = HashMap::new();
        for (id, name) in names.iter().enumerate() {
            if let Some(before) = ids.insert(name.trim().to_owned(), id as i32) {
                return Err(one_label(before, id));
            }
        }
        for (id, (key, kind)) in readings.into_iter().enumerate() {
            let of_key = *ids.entry(key).or_insert(id as i32);
            // 3.1 and 3.10 may be numbers of sections, which their spelling alone tells apart.
            if of_key != id as i32 && matches!(kind, Kind::Whole(_) | Kind::Boolean(_)) {
                return Err(one_label(of_key, id));
            }
        }
        Ok(Self { names, ids, accepts_ids })
    }

    /// The names in a model's configuration; none when it has no `id2label`.
    ///
    /// # Errors
    /// Fewer than two names, two that mean the same, and an `id2label` whose ids are not
    /// `0, 1, 2, ...`.
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

    /// The first of `others` that is none of these names.
    pub fn lacks<'a>(&self, others: &'a [String]) -> Option<&'a String> {
        others.iter().find(|other| !self.ids.contains_key(&Reading::of_text(other.trim()).0))
    }

    /// The names as the `config.json` of a model for `task` keeps them.
    pub fn to_model(&self, task: Task) -> Labels {
        let ids = || self.names.iter().enumerate();
        Labels {
            num_labels: None,
            id2label: Some(ids().map(|(id, name)| (id.to_string(), name.as_str().into())).collect()),
            label2id: Some(ids().map(|(id, name)| (name.clone(), id.into())).collect()),
            problem_type: problem_type(task).map(str::to_owned),
        }
    }

    /// The id of the label in `cell`; none where it says that there is no label.
    fn id(&self, cell: &Cell) -> Result<Option<i32>> {
        let Reading { key, kind } = Reading::of(cell);
        let spelled = match cell {
            Cell::Text(text) => self.ids.get(text.trim()),
            _ => None,
        };
        if let Some(id) = spelled.or_else(|| self.ids.get(&key)).filter(|_| !key.is_empty()) {
            return Ok(Some(*id));
        }
        let number = match kind {
            Kind::Whole(number) => Some(number),
            // Where there are two labels, as for a model in Python.
            Kind::Boolean(value) if self.names.len() == 2 => Some(value.into()),
            _ => None,
        };
        match (kind, number) {
            (Kind::Missing, _) => Ok(None),
            (_, Some(number)) if NO_CLASS.contains(&number) => Ok(None),
            (_, Some(id)) if self.accepts_ids && (0..self.names.len() as i128).contains(&id) => Ok(Some(id as i32)),
            (Kind::Number(_) | Kind::List, _) => Err(not_a_class(cell)),
            _ => Err(Error::data(format!("the label {key:?} is outside the map; there are {}", self.listed()))
                .help("correct the row, or give every label in data.label_names")),
        }
    }

    /// The names, the first 20 where there are more.
    pub fn listed(&self) -> String {
        let more = if self.names.len() > 20 { ", ..." } else { "" };
        let names = self.names.iter().take(20).map(|name| format!("{name:?}")).collect::<Vec<_>>();
        names.join(", ") + more
    }
}

impl SeenLabels {
    /// Takes note of the label of the row at `place`.
    pub fn add(&mut self, cell: &Cell, place: &Place) {
        if let Cell::List(cells) = cell {
            return cells.iter().for_each(|cell| match cell {
                Cell::List(_) => self.refuse(cell, place),
                _ => self.add_one(cell, place, true),
            });
        }
        self.add_one(cell, place, false);
    }

    fn add_one(&mut self, cell: &Cell, place: &Place, in_list: bool) {
        let Reading { key, kind } = Reading::of(cell);
        let at = match kind {
            Kind::Number(_) | Kind::List => return self.refuse(cell, place),
            Kind::Missing => None,
            Kind::Whole(number) if NO_CLASS.contains(&number) => None,
            Kind::Boolean(_) => Some(0),
            Kind::Whole(_) => Some(1),
            Kind::Name => Some(2),
        };
        let Some(at) = at else {
            self.unlabeled.get_or_insert_with(|| (place.clone(), cell.clone(), if in_list { "word" } else { "row" }));
            *self.missing.entry(key).or_default() += u64::from(in_list);
            return;
        };
        if let Cell::Text(text) = cell {
            if text.trim() != text {
                self.blanks.get_or_insert_with(|| (place.clone(), text.clone()));
            }
            // Floats of whole numbers are what pandas writes.
            let fraction = text.trim().strip_prefix(&key);
            let is_plain =
                fraction.is_some_and(|rest| rest.strip_prefix('.').unwrap_or(rest).bytes().all(|byte| byte == b'0'));
            if at == 1 && !is_plain {
                self.respelled.get_or_insert_with(|| (place.clone(), text.clone()));
            }
        }
        if !self.values.contains(&key) && self.values.len() <= MAX_CLASSES {
            self.kinds[at].get_or_insert_with(|| (place.clone(), key.clone()));
            self.values.insert(key);
        }
    }

    fn refuse(&mut self, cell: &Cell, place: &Place) {
        self.refused.get_or_insert_with(|| (place.clone(), cell.clone()));
    }

    /// How many of the values are no labels of `names`, and how many there are.
    pub fn outside(&self, names: &LabelNames) -> (usize, usize) {
        let outside = self.values.iter().filter(|value| names.id(&Cell::Text((*value).clone())).is_err());
        (outside.count(), self.values.len())
    }

    /// How many labels in lists say that there is none, where `names` are the names.
    pub fn missing(&self, names: &LabelNames) -> u64 {
        let named = |key: &String| !key.is_empty() && names.ids.contains_key(key);
        self.missing.iter().filter(|(key, _)| !named(key)).map(|(_, count)| count).sum()
    }

    /// The values as names: whole numbers in the order of their size, anything else in alphabetical
    /// order, as `run_glue` sorts them. Labels that say that there is none are passed over where
    /// `skip_unlabeled` is set.
    ///
    /// # Errors
    /// Fewer than two names, more than [`MAX_CLASSES`], or two that mean the same; a value that is
    /// no class; booleans and numbers in one column; where `skip_unlabeled` is not set, a row or a
    /// word without a label.
    pub fn names(&self, skip_unlabeled: bool) -> Result<LabelNames> {
        if let Some((place, cell)) = &self.refused {
            return Err(not_a_class(cell).at(place));
        }
        if let Some((place, cell, what)) = self.unlabeled.as_ref().filter(|_| !skip_unlabeled) {
            return Err(unlabeled(cell, what).at(place));
        }
        if self.values.len() > MAX_CLASSES {
            return Err(Error::data(format!("the label column has more than {MAX_CLASSES} different values"))
                .help("name the right column with data.label_column, or give the labels in data.label_names"));
        }
        if let [Some((at, boolean)), Some((place, number)), _] = &self.kinds {
            return Err(Error::data(format!(
                "{place}: labels are both booleans and numbers: {number} here, {boolean} at {at}"
            ))
            .help("write all labels as booleans or all as numbers"));
        }
        let mut names = self.values.iter().cloned().collect::<Vec<_>>();
        if let Ok(numbers) = names.iter().map(|name| name.parse::<i128>()).collect::<std::result::Result<Vec<_>, _>>() {
            let mut sorted = numbers.into_iter().zip(names).collect::<Vec<_>>();
            sorted.sort();
            names = sorted.into_iter().map(|(_, name)| name).collect();
        }
        // A number that is no name is no id, whatever the names are: nobody has said which id a
        // name has.
        LabelNames::new(names).map(|names| LabelNames { accepts_ids: false, ..names })
    }

    /// Remarks on the labels for the user, one sentence each.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if let Some((place, text)) = &self.blanks {
            remarks.push(format!("{place}: the label {text:?} is read without the blanks around it"));
        }
        if let Some((place, text)) = &self.respelled {
            let key = Reading::of_text(text.trim()).0;
            remarks.push(format!("{place}: the label {text:?} is read as the number {key}"));
        }
        if let [_, Some((number_at, number)), Some((name_at, name))] = &self.kinds {
            remarks.push(format!(
                "{number_at}: the label {number} is a number, and {name:?} at {name_at} is a name; both are names of classes"
            ));
        }
        let mut lower = BTreeMap::new();
        for value in &self.values {
            let seen = value.to_lowercase().replace(INVISIBLE, "");
            if let Some(other) = lower.insert(seen, value) {
                remarks.push(format!(
                    "the labels {other:?} and {value:?} differ in case or in characters that are not seen alone, and are two \
                     classes"
                ));
            }
        }
        remarks
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

/// A cell in a message, a number alike in every format.
fn shown(cell: &Cell) -> String {
    match Reading::of(cell) {
        Reading { key, kind: Kind::Boolean(_) | Kind::Whole(_) | Kind::Number(_) } => key,
        _ => cell.to_string(),
    }
}

/// The error for the `cell` of a row or a word that says that there is no label.
fn unlabeled(cell: &Cell, what: &str) -> Error {
    let message = match cell {
        Cell::Null => format!("the {what} has no label"),
        Cell::Text(text) if text.trim().is_empty() => format!("the {what} has no label"),
        _ => format!("the {what} has no label: {} says that there is none", shown(cell)),
    };
    Error::data(message).help(match cell {
        Cell::Null => "every row needs one; data.skip_unlabeled = true leaves out those without; [] in a list says that no label applies",
        _ => {
            "data.skip_unlabeled = true leaves out such rows and ignores such words; if it is a class, name all classes in \
             data.label_names"
        }
    })
}

/// The error for a cell that no class can be.
fn not_a_class(cell: &Cell) -> Error {
    match cell {
        Cell::List(_) => Error::data(format!("expected one label, got {}", shown(cell)))
            .help("write the label itself, or for several labels set data.task = \"multi-label-classification\""),
        Cell::Text(text) if written_list(text.trim()) => {
            Error::data(format!("expected one label, got a list or an object written as text: {text:?}"))
                .help("write it as a list in JSON lines or parquet, or take its label out into a column")
        }
        _ => Error::data(format!("expected a class, got the number {}", shown(cell))).help(
            "for numbers set data.task = \"regression\"; if each number is a class, name all of them in data.label_names",
        ),
    }
}

fn value(cell: &Cell) -> Result<Option<f32>> {
    let number = match Reading::of(cell).kind {
        Kind::Missing => return Ok(None),
        Kind::Whole(number) => Some(number as f32),
        Kind::Number(number) => Some(number as f32),
        Kind::Boolean(_) | Kind::Name | Kind::List => None,
    };
    match number.filter(|number| number.is_finite()) {
        Some(number) => Ok(Some(number)),
        None => Err(Error::data(format!(
            "expected a finite number as label for the task regression, got {}",
            shown(cell)
        ))
        .help(
            "name the right column with data.label_column; a number is written as 1234.5, with a point and without \
                     other separators",
        )),
    }
}

/// Refuses names of labels that tell nothing apart.
///
/// # Errors
/// Fewer than two names, or one twice.
pub fn check_label_names(names: &[String]) -> Result<()> {
    if names.len() < 2 {
        return Err(Error::config(format!("expected at least two labels, got {names:?}"))
            .help("one label leaves nothing to tell apart; for numbers set data.task = \"regression\""));
    }
    if names.iter().collect::<BTreeSet<_>>().len() < names.len() {
        return Err(Error::config(format!("expected each label once, got {names:?}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::messages::messages;

    fn text(value: &str) -> Cell {
        Cell::Text(value.into())
    }

    fn seen(cells: &[Cell]) -> LabelNames {
        let mut seen = SeenLabels::default();
        cells.iter().for_each(|cell| seen.add(cell, &Place::of_row(1)));
        seen.names(false).unwrap()
    }

    #[test]
    fn names_and_numbers_are_ids() {
        let messages = messages!();
        let rule = LabelRule::Classes(LabelNames::new(vec!["neg".into(), "pos".into()]).unwrap());
        for (cell, id) in [
            (text("pos "), 1),
            (text("0.0"), 0),
            (Cell::Integer(1), 1),
            (Cell::Number(1.0), 1),
            (Cell::Boolean(true), 1),
        ] {
            assert_eq!(rule.apply(Some(&cell)).unwrap(), Some(Label::Class(id)));
        }
        for cell in [text("neutral"), Cell::Integer(2), Cell::Number(0.5)] {
            messages.refused(format!("{cell:?}"), rule.apply(Some(&cell)));
        }
        for none in
            [Cell::Null, Cell::Integer(-1), Cell::Number(-100.0), Cell::Number(f64::NAN), text(" "), text("NULL")]
        {
            assert_eq!(rule.apply(Some(&none)).unwrap(), None, "{none:?}");
        }
    }

    #[test]
    fn the_data_shows_its_labels_in_order() {
        let messages = messages!();
        assert_eq!(seen(&[text("10"), text("2.0"), text("2")]).names(), ["2", "10"]);
        assert_eq!(seen(&[text("b"), text("a"), text("10")]).names(), ["10", "a", "b"]);
        let stars = LabelRule::Classes(seen(&[Cell::Integer(1), Cell::Integer(2)]));
        assert_eq!(stars.apply(Some(&text("1"))).unwrap(), Some(Label::Class(0)));
        assert!(stars.apply(Some(&text("0"))).is_err(), "a number that is no name is no id where names are numbers");
        let mut one = SeenLabels::default();
        one.add(&text("a"), &Place::of_row(1));
        messages.refused("one label", one.names(false));
        let mut many = SeenLabels::default();
        (0..2000).for_each(|i| many.add(&Cell::Integer(i), &Place::of_row(1)));
        messages.refused("2000 labels", many.names(false));
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
        let messages = messages!();
        let rule = LabelRule::Several(LabelNames::new(vec!["a".into(), "b".into(), "c".into()]).unwrap());
        let list = |cells: &[Cell]| rule.apply(Some(&Cell::List(cells.to_vec())));
        assert_eq!(list(&[]).unwrap(), Some(Label::Multi(vec![0.0; 3])));
        assert_eq!(list(&[text("c"), Cell::Integer(0)]).unwrap(), Some(Label::Multi(vec![1.0, 0.0, 1.0])));
        let two = LabelRule::Several(LabelNames::new(vec!["a".into(), "b".into()]).unwrap());
        let two = |cells: &[Cell]| two.apply(Some(&Cell::List(cells.to_vec())));
        assert_eq!(two(&[text("a"), text("b")]).unwrap(), two(&[text("b"), Cell::Integer(0)]).unwrap());
        messages.refused("[0, 1] of two labels", two(&[Cell::Integer(0), Cell::Integer(1)]));
        messages.refused("[0, 1, 0] of three labels", list(&[Cell::Integer(0), Cell::Integer(1), Cell::Integer(0)]));
        for none in [None, Some(&Cell::Null)] {
            let reader = LabelReader { rule: rule.clone(), skip_unlabeled: false };
            messages.refused(format!("{none:?}"), reader.read(none));
            assert_eq!(LabelReader { rule: rule.clone(), skip_unlabeled: true }.read(none).unwrap(), None);
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
        let messages = messages!();
        assert_eq!(LabelRule::Values.apply(Some(&text("2.5"))).unwrap(), Some(Label::Value(2.5)));
        assert_eq!(LabelRule::Values.apply(Some(&Cell::Integer(3))).unwrap(), Some(Label::Value(3.0)));
        for bad in [text("good"), text("1e300"), text("1,000"), Cell::Boolean(true), Cell::Number(f64::INFINITY)] {
            messages.refused(format!("{bad:?}"), LabelRule::Values.apply(Some(&bad)));
        }
    }
}
