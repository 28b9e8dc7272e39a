//! Examples of a run as they train, for people: text, token ids, segments, and what of them the
//! loss counts.

use std::fmt::Write as _;

use kiln_core::error::{Result, one_line};
use kiln_core::words::thousands;
use kiln_data::labels::label_names;
use kiln_data::tokenizer::Tokenizer;
use kiln_data::{Example, IGNORED, Label};

use super::Session;
use crate::config::Task;

/// The first `count` training examples of `session` as the first epoch has them, a line for each
/// token. Those of a stream are read as they are needed, so the data are not read to their end.
///
/// # Errors
/// Data that cannot be read, and tokens that the tokenizer cannot decode.
pub fn samples(session: &Session, count: usize) -> Result<String> {
    let (task, train) = (&session.task, session.train());
    let labels = task.model_config.labels();
    let kind = task.task.kind();
    let names = if kind.has_label_names() { label_names(labels)? } else { Vec::new() };
    let shown = Shown { task: kind, names: &names, tokenizer: task.tokenizer.as_deref() };
    let count = count.min(train.len());
    let mut text = String::new();
    for index in 0..count {
        let example = train.get(index, 0)?;
        let tokens = thousands(example.input_ids.len() as u64);
        let what = shown.label(&example);
        let end = if index + 1 < count { "\n" } else { "" };
        let body = shown.sequences(&example)?;
        write!(text, "sample {} of {count}: {tokens} tokens, {what}\n{body}{end}", index + 1)
            .expect("writing to a String cannot fail");
    }
    Ok(text.trim_end().to_owned())
}

/// The words in which examples are shown.
struct Shown<'a> {
    task: Task,
    /// The names of the labels, where they have names.
    names: &'a [String],
    tokenizer: Option<&'a Tokenizer>,
}

impl Shown<'_> {
    /// The label of `example`.
    fn label(&self, example: &Example) -> String {
        match &example.label {
            Label::None => "no label".into(),
            Label::Class(class) => format!("label {} (id {class})", self.name(*class)),
            Label::Value(value) => format!("label {value}"),
            Label::Multi(applies) => {
                let names =
                    (0..).zip(applies).filter(|(_, applies)| **applies > 0.0).map(|(class, _)| self.name(class));
                match names.collect::<Vec<_>>().join(", ") {
                    none if none.is_empty() => "no label applies".into(),
                    names => format!("labels {names}"),
                }
            }
            Label::Choice { answer, .. } => format!("choice {answer} is right"),
            Label::Span { start: 0, end: 0 } => "no answer".into(),
            Label::Span { start, end } => format!("the answer is at positions {start} to {end}"),
            Label::Tokens(labels) => {
                let counted = (0..labels.len()).filter(|at| self.is_counted(labels, *at)).count();
                format!("of which the loss counts {}", thousands(counted as u64))
            }
        }
    }

    /// Whether the loss counts the label at position `at`. Of a causal model nothing predicts the
    /// first token.
    fn is_counted(&self, labels: &[i32], at: usize) -> bool {
        labels[at] != IGNORED && (at > 0 || self.task != Task::Clm)
    }

    fn name(&self, class: i32) -> String {
        let name = usize::try_from(class).ok().and_then(|class| self.names.get(class));
        name.map_or_else(|| class.to_string(), |name| format!("{name:?}"))
    }

    /// The token of `id`, as the vocabulary writes it, or the id where there is no tokenizer.
    fn token(&self, id: i32) -> String {
        let token = u32::try_from(id).ok().and_then(|id| self.tokenizer?.token(id));
        match token.map(|token| one_line(&token)) {
            Some(token) if token.is_empty() || token.contains(' ') => format!("{token:?}"),
            Some(token) => token,
            None => id.to_string(),
        }
    }

    /// The sequences of `example`: one, or the choices.
    fn sequences(&self, example: &Example) -> Result<String> {
        let mut text = String::new();
        for (number, sequence) in example.sequences().iter().enumerate() {
            if matches!(example.label, Label::Choice { .. }) {
                writeln!(text, "  choice {number}").expect("writing to a String cannot fail");
            }
            if let Some(tokenizer) = self.tokenizer {
                let ids = sequence.input_ids.iter().map(|id| *id as u32).collect::<Vec<_>>();
                let decoded = one_line(&tokenizer.decode_with_special(&ids)?);
                writeln!(text, "  text: {decoded}").expect("writing to a String cannot fail");
            }
            text += &aligned(&self.columns(sequence));
        }
        Ok(text)
    }

    /// A column for each property of the tokens of `sequence`, under its name.
    fn columns(&self, sequence: &Example) -> Vec<Vec<String>> {
        let ids = &sequence.input_ids;
        let column = |name: &str, value: &dyn Fn(usize) -> String| {
            std::iter::once(name.to_owned()).chain((0..ids.len()).map(value)).collect::<Vec<_>>()
        };
        let positions = sequence.position_ids.as_ref();
        let mut columns = vec![
            column("position", &|at| positions.map_or(at.to_string(), |positions| positions[at].to_string())),
            column("id", &|at| ids[at].to_string()),
        ];
        columns.extend(self.tokenizer.map(|_| column("token", &|at| self.token(ids[at]))));
        columns.extend(sequence.token_type_ids.as_ref().map(|types| column("segment", &|at| types[at].to_string())));
        columns.extend(
            sequence
                .attention_mask
                .as_ref()
                .map(|mask| column("attended", &|at| if mask[at] { "yes" } else { "no" }.into())),
        );
        let not_counted = || "-".to_owned();
        match &sequence.label {
            Label::Tokens(labels) => columns.push(column("loss", &|at| match labels[at] {
                _ if !self.is_counted(labels, at) => not_counted(),
                label if self.task == Task::TokenClassification => self.name(label),
                label if self.task == Task::Clm && label == ids[at] => "counted".into(),
                label => format!("predicts {}", self.token(label)),
            })),
            Label::Span { start, end } => columns.push(column("loss", &|at| {
                let is = |place: &i32| usize::try_from(*place).is_ok_and(|place| place == at);
                match (is(start), is(end)) {
                    (true, true) => "start and end".into(),
                    (true, false) => "start".into(),
                    (false, true) => "end".into(),
                    (false, false) => not_counted(),
                }
            })),
            _ => {}
        }
        columns
    }
}

/// The lines of a table with these `columns`, each as wide as its longest value.
fn aligned(columns: &[Vec<String>]) -> String {
    let widths = columns.iter().map(|column| column.iter().map(|value| value.chars().count()).max().unwrap_or(0));
    let widths = widths.collect::<Vec<_>>();
    let rows = columns.first().map_or(0, Vec::len);
    let line = |row: usize| {
        let values = columns.iter().zip(&widths).map(|(column, width)| format!("{:<width$}", column[row]));
        format!("  {}", values.collect::<Vec<_>>().join("  ")).trim_end().to_owned() + "\n"
    };
    (0..rows).map(line).collect()
}
