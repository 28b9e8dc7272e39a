//! One table for each kind of file that another program wrote: what Kiln does with every name in
//! it. A name is honoured, changes nothing, is told in one line, or is refused; a name that is
//! missing from the table is never taken as harmless.

use serde_json::{Map, Value};

use crate::words::shortened;

/// The result of a check; the error is a message that begins with the name.
type Checked<T> = Result<T, String>;

/// The treatment of a name in a file that another program wrote.
#[derive(Debug, Clone, Copy)]
pub enum Treatment {
    /// Kiln does what the value says.
    Honoured,
    /// No value changes what Kiln computes.
    Inert,
    /// Kiln goes on without it and says so in one line.
    Told,
    /// This value computes what Kiln computes; with another one Kiln goes on and says so in one
    /// line. Null counts as not set.
    ToldUnless(fn() -> Value),
    /// This value computes what Kiln computes; every other one is refused. Null counts as not set.
    Only(fn() -> Value),
    /// Every value but null is refused.
    Refused,
}

/// A name of a file, and what Kiln does with it.
#[derive(Debug, Clone, Copy)]
pub struct Name {
    /// The name, by the other program's spelling.
    pub name: &'static str,
    /// The treatment of the name.
    pub treatment: Treatment,
    /// The reason, for messages and the guide: a clause without a full stop.
    pub why: &'static str,
    /// The advice for a name that is refused, where it depends on the name.
    pub help: Option<&'static str>,
}

impl Name {
    /// A name whose value Kiln follows; `why` says by what means.
    pub const fn honoured(name: &'static str, why: &'static str) -> Self {
        Self::of(name, Treatment::Honoured, why)
    }

    /// A name that changes nothing here.
    pub const fn inert(name: &'static str, why: &'static str) -> Self {
        Self::of(name, Treatment::Inert, why)
    }

    /// A name that Kiln tells of and does not follow.
    pub const fn told(name: &'static str, why: &'static str) -> Self {
        Self::of(name, Treatment::Told, why)
    }

    /// A name that Kiln tells of where it has another value than `value`, and does not follow.
    pub const fn told_unless(name: &'static str, value: fn() -> Value, why: &'static str) -> Self {
        Self::of(name, Treatment::ToldUnless(value), why)
    }

    /// A name that has one possible value.
    pub const fn only(name: &'static str, value: fn() -> Value, why: &'static str) -> Self {
        Self::of(name, Treatment::Only(value), why)
    }

    /// Whether the file may state one value at most.
    pub const fn has_one_value(&self) -> bool {
        matches!(self.treatment, Treatment::Only(_) | Treatment::Refused)
    }

    /// Whether the file must not state it.
    pub const fn is_refused(&self) -> bool {
        matches!(self.treatment, Treatment::Refused)
    }

    /// A name that must not be there.
    pub const fn refused(name: &'static str, why: &'static str) -> Self {
        Self::of(name, Treatment::Refused, why)
    }

    /// The entry with `help` for whoever has such a file.
    pub const fn with_help(self, help: &'static str) -> Self {
        Self { help: Some(help), ..self }
    }

    const fn of(name: &'static str, treatment: Treatment, why: &'static str) -> Self {
        Self { name, treatment, why, help: None }
    }
}

/// The treatment of a name that is in no table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// It says in one line that it does not follow the name.
    Told,
    /// It refuses the file.
    Refused,
}

/// The answer of a table for a name with its value.
#[derive(Debug, Clone, Copy)]
pub enum Answer {
    /// Kiln follows the value, or the value changes nothing.
    Taken,
    /// Kiln goes on without it and says so.
    Told(&'static Name),
    /// Kiln refuses the file.
    Refused(&'static Name),
    /// The table does not have the name; [`NameTable::unknown`] says what happens.
    Unknown,
}

/// The names of one kind of file.
#[derive(Debug, Clone, Copy)]
pub struct NameTable {
    /// The file: `adapter_config.json`.
    pub file: &'static str,
    /// The program that defines the names, with the version whose names the table was held against:
    /// `peft 0.21`.
    pub source: &'static str,
    /// Every name.
    pub names: &'static [Name],
    /// The treatment of a name that is missing from `names`.
    pub unknown: Unknown,
}

impl NameTable {
    /// The entry of `name`.
    pub fn get(&self, name: &str) -> Option<&'static Name> {
        self.names.iter().find(|entry| entry.name == name)
    }

    /// The treatment of the name `name` with `value`. Null counts as not set.
    pub fn answer(&self, name: &str, value: &Value) -> Answer {
        let Some(entry) = self.get(name) else { return Answer::Unknown };
        match entry.treatment {
            Treatment::Honoured | Treatment::Inert => Answer::Taken,
            _ if value.is_null() => Answer::Taken,
            Treatment::ToldUnless(of_kiln) | Treatment::Only(of_kiln) if is_same(value, &of_kiln()) => Answer::Taken,
            Treatment::Told | Treatment::ToldUnless(_) => Answer::Told(entry),
            Treatment::Only(_) | Treatment::Refused => Answer::Refused(entry),
        }
    }

    /// Checks every name of `object` and returns what has to be told, one line each.
    ///
    /// # Errors
    /// The first name or value that Kiln refuses. The message begins with the name; the caller puts
    /// the path before it.
    pub fn check(&self, object: &Map<String, Value>) -> Checked<Vec<String>> {
        let told = object.iter().filter_map(|(name, value)| self.check_one(name, value).transpose());
        told.collect()
    }

    /// Checks the name `name` with `value`, and returns the line that has to be told, if there is
    /// one.
    ///
    /// # Errors
    /// A name or value that Kiln refuses. The message begins with the name; the caller puts the
    /// path before it.
    pub fn check_one(&self, name: &str, value: &Value) -> Checked<Option<String>> {
        match self.answer(name, value) {
            Answer::Taken => Ok(None),
            Answer::Told(Name { why, .. }) => Ok(Some(format!("{name} = {} is not followed: {why}", shortened(value)))),
            Answer::Refused(Name { treatment, why, .. }) => {
                let expected = if let Treatment::Only(only) = treatment { only() } else { Value::Null };
                Err(format!("{name}: expected {expected}, got {}: {why}", shortened(value)))
            }
            Answer::Unknown => match self.unknown {
                Unknown::Told => Ok(Some(format!("{name} is not known and not followed"))),
                Unknown::Refused if value.is_null() => Ok(None),
                Unknown::Refused => Err(self.not_known(name, value)),
            },
        }
    }

    fn not_known(&self, name: &str, value: &Value) -> String {
        let near = self.names.iter().map(|entry| (strsim::jaro_winkler(name, entry.name), entry.name));
        let near = near.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(score, _)| *score > 0.85);
        let near = near.map_or_else(String::new, |(_, near)| format!("; did the writer mean {near}?"));
        format!(
            "{name} = {}: expected a name of {}, got one that Kiln does not know{near}",
            shortened(value),
            self.source
        )
    }

    /// The table as Markdown, for the guide.
    pub fn markdown(&self) -> String {
        let mut out = format!("| name in `{}` | Kiln | why |\n| --- | --- | --- |\n", self.file);
        for Name { name, treatment, why, .. } in self.names {
            let does = match treatment {
                Treatment::Honoured => "honoured".to_owned(),
                Treatment::Inert => "no effect".to_owned(),
                Treatment::Told => "told, not followed".to_owned(),
                Treatment::ToldUnless(value) => format!("told, not followed, unless `{}`", value()),
                Treatment::Only(only) => format!("only `{}`", only()),
                Treatment::Refused => "refused".to_owned(),
            };
            out += &format!("| `{name}` | {does} | {} |\n", why.replace('|', "\\|"));
        }
        let unknown = match self.unknown {
            Unknown::Told => "told, not followed",
            Unknown::Refused => "refused",
        };
        out + &format!("| any other name | {unknown} | Kiln does not know what it changes |\n")
    }
}

/// Whether two values are one: 1 and 1.0 are.
fn is_same(one: &Value, other: &Value) -> bool {
    one == other || one.as_f64().is_some_and(|one| Some(one) == other.as_f64())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TABLE: NameTable = NameTable {
        file: "x.json",
        source: "peer 1.0",
        names: &[
            Name::honoured("rank", "the rank"),
            Name::inert("version", "identity"),
            Name::told("speed", "Kiln has one speed"),
            Name::only("mode", || json!("plain"), "no other mode is implemented"),
            Name::told_unless("beams", || json!(1), "Kiln has one beam"),
            Name::refused("extra", "extras are not implemented"),
        ],
        unknown: Unknown::Refused,
    };

    fn check(value: Value) -> Result<Vec<String>, String> {
        TABLE.check(value.as_object().expect("an object"))
    }

    #[test]
    fn names_are_honoured_told_or_refused() {
        let told = check(json!({
            "rank": 1, "version": 2, "speed": 3, "mode": "plain", "beams": 1.0, "extra": null, "new": null
        }));
        assert_eq!(told, Ok(vec!["speed = 3 is not followed: Kiln has one speed".to_owned()]));
        assert_eq!(check(json!({"beams": 2})), Ok(vec!["beams = 2 is not followed: Kiln has one beam".to_owned()]));
        for (value, words) in [
            (json!({"mode": "odd"}), "mode: expected \"plain\", got \"odd\": no other mode is implemented"),
            (json!({"extra": 1}), "extra: expected null, got 1: extras are not implemented"),
            (json!({"versio": 1}), "did the writer mean version?"),
        ] {
            let error = check(value).expect_err("it is refused");
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_tolerant_table_tells_of_an_unknown_name() {
        let table = NameTable { unknown: Unknown::Told, ..TABLE };
        let value = json!({"new": 1});
        let told = table.check(value.as_object().expect("an object")).expect("it is not refused");
        assert_eq!(told, ["new is not known and not followed"]);
    }
}
