//! JSON as Python's `json.dumps` writes it.

use minijinja::value::{Kwargs, Value, ValueKind};

use super::python::{Result, invalid, lazy, number};

/// The filter `tojson` of `transformers`: `json.dumps` with its `ensure_ascii`, `indent`,
/// `separators` and `sort_keys`.
pub(super) fn tojson(
    value: &Value,
    ascii: Option<bool>,
    indent: Option<Value>,
    separators: Option<Vec<String>>,
    options: Kwargs,
) -> Result<String> {
    let indent = indent.or(options.get("indent")?);
    let indent = match indent {
        None => None,
        Some(indent) => match indent.as_str() {
            Some(text) => Some(text.to_owned()),
            None => Some(" ".repeat(usize::try_from(indent)?)),
        },
    };
    let separators = separators.or(options.get("separators")?);
    let of_items = if indent.is_some() { "," } else { ", " };
    let dump = Dump {
        indent,
        is_ascii: ascii.or(options.get("ensure_ascii")?).unwrap_or(false),
        sorts: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        separators: match separators.as_deref() {
            None => [of_items.into(), ": ".into()],
            Some([items, keys]) => [items.clone(), keys.clone()],
            Some(_) => return Err(invalid("tojson: expected two separators".into())),
        },
    };
    options.assert_all_used()?;
    let mut text = String::new();
    dump.write(value, 0, &mut text)?;
    Ok(text)
}

/// Python's form of JSON.
struct Dump {
    /// The indentation for one level of depth; none for JSON in one line.
    indent: Option<String>,
    /// Whether other characters than ASCII's are escaped.
    is_ascii: bool,
    /// Whether keys stand in order.
    sorts: bool,
    /// Between items, and between a key and its value.
    separators: [String; 2],
}

impl Dump {
    fn write(&self, value: &Value, depth: usize, text: &mut String) -> Result<()> {
        let scalar = match value.kind() {
            ValueKind::None => Some("null".to_owned()),
            ValueKind::Bool => Some(value.is_true().to_string()),
            ValueKind::Number => Some(Self::number(value)?),
            ValueKind::String => Some(self.quoted(value.as_str().unwrap_or_default())),
            _ => None,
        };
        if let Some(scalar) = scalar {
            text.push_str(&scalar);
            return Ok(());
        }
        let mut keys = None;
        let (open, close) = match value.kind() {
            ValueKind::Seq | ValueKind::Iterable if lazy(value).is_none() => ('[', ']'),
            ValueKind::Map => {
                keys = Some(value.try_iter()?.map(|key| Ok((Self::key(&key)?, key))).collect::<Result<Vec<_>>>()?);
                ('{', '}')
            }
            kind => return Err(invalid(format!("tojson: a value of the kind {kind} is no JSON"))),
        };
        let items = match &mut keys {
            None => value.try_iter()?.collect::<Vec<_>>(),
            Some(keys) => {
                if self.sorts {
                    keys.sort_by(|(one, _), (other, _)| one.cmp(other));
                }
                keys.iter().map(|(_, key)| value.get_item(key)).collect::<Result<_>>()?
            }
        };
        let line = |depth: usize, text: &mut String| {
            if let Some(indent) = &self.indent {
                text.push('\n');
                text.push_str(&indent.repeat(depth));
            }
        };
        text.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                text.push_str(&self.separators[0]);
            }
            line(depth + 1, text);
            if let Some((key, _)) = keys.as_ref().map(|keys| &keys[index]) {
                text.push_str(&self.quoted(key));
                text.push_str(&self.separators[1]);
            }
            self.write(item, depth + 1, text)?;
        }
        if !items.is_empty() {
            line(depth, text);
        }
        text.push(close);
        Ok(())
    }

    fn number(value: &Value) -> Result<String> {
        if value.is_integer() {
            return Ok(value.to_string());
        }
        let python = number(f64::try_from(value.clone())?);
        Ok(match python.as_str() {
            "nan" => "NaN".into(),
            "inf" => "Infinity".into(),
            "-inf" => "-Infinity".into(),
            _ => python,
        })
    }

    fn key(key: &Value) -> Result<String> {
        match key.kind() {
            ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
            ValueKind::Number => Self::number(key),
            ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.into()),
            ValueKind::None => Ok("null".into()),
            kind => Err(invalid(format!("tojson: a key of the kind {kind} is no JSON"))),
        }
    }

    fn quoted(&self, of: &str) -> String {
        let json = serde_json::Value::from(of).to_string();
        if !self.is_ascii || json.is_ascii() {
            return json;
        }
        let escaped = |c: char| {
            if c.is_ascii() {
                c.to_string()
            } else {
                c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
            }
        };
        json.chars().map(escaped).collect()
    }
}
