//! JSON Schema of settings, draft 7, made from their entries. Its words are those that draft 4
//! reads alike, since editors of TOML do: no `const`, and no number behind `exclusiveMinimum`.

use std::path::PathBuf;

pub use serde_json::Value;
use serde_json::json;

/// A type of settings.
pub trait Schema {
    /// The schema of the values that a config file may give: an object.
    fn schema() -> Value;
}

/// The schema of whole numbers that are not negative. A float with a whole value is one.
pub fn whole() -> Value {
    json!({ "type": "number", "multipleOf": 1, "minimum": 0 })
}

impl Schema for bool {
    fn schema() -> Value {
        json!({ "type": "boolean" })
    }
}

impl Schema for usize {
    fn schema() -> Value {
        whole()
    }
}

impl Schema for u64 {
    fn schema() -> Value {
        whole()
    }
}

impl Schema for f64 {
    fn schema() -> Value {
        json!({ "type": "number" })
    }
}

impl Schema for String {
    fn schema() -> Value {
        json!({ "type": "string" })
    }
}

impl Schema for PathBuf {
    fn schema() -> Value {
        String::schema()
    }
}

impl<T: Schema> Schema for Option<T> {
    fn schema() -> Value {
        T::schema()
    }
}

impl<T: Schema> Schema for Vec<T> {
    /// A list of one may be written without brackets.
    fn schema() -> Value {
        let item = T::schema();
        json!({ "anyOf": [item, { "type": "array", "items": item }] })
    }
}

impl<T: Schema, const N: usize> Schema for [T; N] {
    fn schema() -> Value {
        json!({ "type": "array", "items": T::schema(), "minItems": N, "maxItems": N })
    }
}

/// The schema of a choice among `names`, each with its documentation, or among other spellings of
/// them.
pub fn choice(names: &[(&str, &str)], spellings: &[&str]) -> Value {
    let all = names.iter().map(|(name, _)| *name).chain(spellings.iter().copied()).collect::<Vec<_>>();
    let lines = names.iter().map(|(name, about)| format!("- `\"{name}\"`: {}", unlinked(about))).collect::<Vec<_>>();
    json!({ "enum": all, "description": lines.join("\n") })
}

/// The schema of a section, which `about` documents. Each of its `keys` has a name with a section,
/// documentation and a schema; those of other sections are left out.
pub fn of_section<'a>(about: &str, section: &str, keys: impl Iterator<Item = (&'a str, &'a str, Value)>) -> Value {
    let prefix = format!("{section}.");
    let own = keys.filter_map(|(name, about, schema)| {
        Some((name.strip_prefix(&prefix)?.to_owned(), with_documentation(schema, about)))
    });
    json!({
        "type": "object",
        "description": unlinked(about),
        "properties": own.collect::<serde_json::Map<_, _>>(),
        "additionalProperties": false,
    })
}

/// `schema` with the documentation `about` above that of its choices.
fn with_documentation(mut schema: Value, about: &str) -> Value {
    let choices = schema.get("description").and_then(Value::as_str).map(|choices| format!("\n\n{choices}"));
    schema["description"] = (unlinked(about) + &choices.unwrap_or_default()).into();
    schema
}

/// The text of an attribute, where it is documentation.
#[macro_export]
macro_rules! about {
    (doc = $text:literal) => {
        $text
    };
    ($($other:tt)*) => {
        ""
    };
}

/// `text` with the words of links in place of the links. Sections such as `[run]` stand in code and
/// stay.
pub fn unlinked(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text.trim());
    while let Some((before, after)) = rest.split_once('[') {
        out += before;
        let is_code = out.matches('`').count() % 2 == 1;
        match after.split_once(']') {
            Some((words, behind)) if !is_code => {
                out += words;
                let target = behind.strip_prefix('(').and_then(|target| target.split_once(')'));
                rest = target.map_or(behind, |(_, behind)| behind);
            }
            _ => {
                out.push('[');
                rest = after;
            }
        }
    }
    out + rest
}
