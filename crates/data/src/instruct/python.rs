//! Python's texts of values, its methods and its values that are made as they are asked for, in
//! which minijinja differs from the Jinja2 of `transformers`. What neither of them has, or Kiln
//! cannot write as Python does, is an error that names it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};

pub(super) type Result<T, E = Error> = std::result::Result<T, E>;

pub(super) fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// `str(value)`.
pub(super) fn text(value: &Value) -> Result<String> {
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_owned()),
        _ => {
            let mut out = String::new();
            repr(value, &mut out)?;
            Ok(out)
        }
    }
}

/// `repr(value)`.
fn repr(value: &Value, out: &mut String) -> Result<()> {
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
        ValueKind::Number => out.push_str(&number(f64::try_from(value.clone())?)),
        ValueKind::String => quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable if lazy(value).is_none() => {
            // A group of `groupby` is a tuple with names.
            let is_tuple = value.downcast_object_ref::<Tuple>().is_some() || !value.get_attr("grouper")?.is_undefined();
            let (open, close) = if is_tuple { ('(', ')') } else { ('[', ']') };
            out.push(open);
            let mut count = 0;
            for item in value.try_iter()? {
                if count > 0 {
                    out.push_str(", ");
                }
                repr(&item, out)?;
                count += 1;
            }
            if is_tuple && count == 1 {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                repr(&key, out)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, out)?;
            }
            out.push('}');
        }
        _ if lazy(value).is_some_and(|lazy| lazy.text.is_some()) => out.push_str(&value.to_string()),
        kind => {
            return Err(invalid(format!(
                "a value of the kind {kind} has no text: Python writes its type or its address"
            ))
            .with_source(Unwritten));
        }
    }
    Ok(())
}

/// The reason of an error about a value without a text.
#[derive(Debug)]
struct Unwritten;

impl std::fmt::Display for Unwritten {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("write the items of the value, or `| list` behind it")
    }
}

impl std::error::Error for Unwritten {}

fn quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => {
                let code = u32::from(c);
                out.push_str(&match code {
                    0..=0xff => format!("\\x{code:02x}"),
                    0x100..=0xffff => format!("\\u{code:04x}"),
                    _ => format!("\\U{code:08x}"),
                });
            }
        }
    }
    out.push(quote);
}

/// `str.isprintable`, by the same categories of Unicode: Rust escapes the same characters in texts,
/// but for marks at their beginning.
fn is_printable(c: char) -> bool {
    matches!(c, ' '..='~') || !c.is_control() && !format!("a{c}").escape_debug().to_string().contains("\\u{")
}

/// A number as Python's `repr` writes it: the shortest digits, with an exponent below 1e-4 and from
/// 1e16 on.
pub(super) fn number(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let shortest = format!("{number:e}");
    let (digits, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        -4..16 => format!("{number:?}"),
        exponent => format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()),
    }
}

/// Whether minijinja writes a number otherwise than Python where it joins values itself, as `~`
/// does.
pub(super) fn is_written_otherwise(of: f64) -> bool {
    let python = number(of);
    python.contains(['e', 'n'])
}

/// `str.isspace` of a character.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// `str.strip`, `lstrip` and `rstrip`.
pub(super) fn strip<'a>(text: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let goes = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if left { text.trim_start_matches(goes) } else { text };
    if right { text.trim_end_matches(goes) } else { text }
}

pub(super) fn replace(text: &str, old: &str, new: &str, count: Option<i64>) -> String {
    match count.map(usize::try_from) {
        Some(Ok(count)) => text.replacen(old, new, count),
        _ => text.replace(old, new),
    }
}

/// The title case of a first letter.
fn title_of(c: char) -> String {
    let upper = c.to_uppercase().collect::<String>();
    let mut letters = upper.chars();
    // ß begins a word as Ss.
    let first = letters.next().map(String::from).unwrap_or_default();
    first + &letters.flat_map(char::to_lowercase).collect::<String>()
}

pub(super) fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| title_of(first) + &chars.as_str().to_lowercase())
}

/// `str.title`: letters behind others are small.
fn title(text: &str) -> String {
    let mut after_letter = false;
    let mut out = String::new();
    for c in text.chars() {
        let is_letter = c.is_lowercase() || c.is_uppercase();
        if after_letter {
            out.extend(c.to_lowercase());
        } else {
            out.push_str(&title_of(c));
        }
        after_letter = is_letter;
    }
    out
}

/// Whether a text has letters of a case and none of the other.
pub(super) fn is_cased(text: &str, of: fn(char) -> bool, other: fn(char) -> bool) -> bool {
    text.contains(of) && !text.contains(other)
}

/// `str.splitlines`.
pub(super) fn lines(text: &str, with_ends: bool) -> Vec<&str> {
    let (mut lines, mut begin) = (Vec::new(), 0);
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if !matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}') {
            continue;
        }
        let mut end = at + c.len_utf8();
        if c == '\r' && chars.next_if(|(_, c)| *c == '\n').is_some() {
            end += 1;
        }
        lines.push(&text[begin..if with_ends { end } else { at }]);
        begin = end;
    }
    if begin < text.len() {
        lines.push(&text[begin..]);
    }
    lines
}

/// `str.split` and `rsplit`; at most `most` cuts.
fn split<'a>(text: &'a str, separator: Option<&str>, most: Option<usize>, from_right: bool) -> Vec<&'a str> {
    let most = most.map_or(usize::MAX, |most| most.saturating_add(1));
    let mut parts = match (separator, from_right) {
        (Some(separator), false) => return text.splitn(most, separator).collect(),
        (Some(separator), true) => text.rsplitn(most, separator).collect::<Vec<_>>(),
        (None, _) => {
            let (mut rest, mut parts) = (strip(text, None, !from_right, from_right), Vec::new());
            while !rest.is_empty() {
                let cut = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
                let Some(cut) = cut.filter(|_| parts.len() + 1 < most) else {
                    parts.push(rest);
                    break;
                };
                let (before, after) = rest.split_at(cut);
                let after_cut = &after[after.chars().next().map_or(0, char::len_utf8)..];
                if from_right {
                    parts.push(after_cut);
                    rest = strip(before, None, false, true);
                } else {
                    parts.push(before);
                    rest = strip(after_cut, None, true, false);
                }
            }
            parts.retain(|part| !part.is_empty());
            parts
        }
    };
    if from_right {
        parts.reverse();
    }
    parts
}

/// A number without its fraction; none of what is no finite number.
pub(super) fn truncated(number: f64) -> Option<Value> {
    // 2^100 is less than the largest integer.
    (number.abs() < 1.267_650_6e30).then(|| Value::from(number.trunc() as i128))
}

/// Digits whose underscores stand between two of them.
pub(super) fn without_underscores(digits: &str) -> Option<String> {
    let wrong = digits.starts_with('_') || digits.ends_with('_') || digits.contains("__");
    (!wrong).then(|| digits.replace('_', ""))
}

/// `float(text)`.
pub(super) fn parsed(text: &str) -> Option<f64> {
    let text = strip(text, None, true, true);
    without_underscores(text)?.parse().ok()
}

/// Values that Python makes as they are asked for (a generator, a range, a view of a dictionary),
/// and that minijinja gives as a list.
#[derive(Debug)]
pub(super) struct Lazy {
    pub(super) values: Vec<Value>,
    /// The next value of a generator: it is read once, and true even where it is empty.
    pub(super) next: Option<AtomicUsize>,
    /// Whether it has an item for each number, as a range.
    pub(super) is_sequence: bool,
    /// The text that Python renders for the object; none where it is an address, as for a
    /// generator.
    pub(super) text: Option<String>,
}

impl Lazy {
    pub(super) fn generator(values: Vec<Value>) -> Value {
        Value::from_object(Self { values, next: Some(AtomicUsize::new(0)), is_sequence: false, text: None })
    }
}

impl Object for Lazy {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        // A generator has no items that a number names.
        if self.next.is_some() { ObjectRepr::Plain } else { ObjectRepr::Iterable }
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let index = key.as_i64().filter(|_| self.is_sequence)?;
        let len = i64::try_from(self.values.len()).unwrap_or(i64::MAX);
        self.values.get(usize::try_from(if index < 0 { index + len } else { index }).ok()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        if self.next.is_none() {
            return Enumerator::Values(self.values.clone());
        }
        let this = self.clone();
        let next = move || this.next.as_ref().map(|next| next.fetch_add(1, Ordering::Relaxed));
        let (this, done) = (self.clone(), self.next.as_ref().map_or(0, |next| next.load(Ordering::Relaxed)));
        let left = self.values.len().saturating_sub(done);
        Enumerator::Iter(Box::new(
            (0..left).map(move |_| next().and_then(|next| this.values.get(next)).cloned().unwrap_or_default()),
        ))
    }

    fn is_true(self: &Arc<Self>) -> bool {
        self.next.is_some() || !self.values.is_empty()
    }

    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text.as_deref().unwrap_or("<generator object>"))
    }
}

pub(super) fn lazy(value: &Value) -> Option<&Lazy> {
    value.downcast_object_ref()
}

/// Methods of Python's dictionaries: `.NAME` is the method, also where a key has that name.
pub(super) const METHODS_OF_MAPPINGS: [&str; 11] =
    ["clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"];

/// Methods of texts that are no likely names of keys.
pub(super) const METHODS_OF_TEXTS: [&str; 9] =
    ["strip", "lstrip", "rstrip", "split", "splitlines", "upper", "lower", "startswith", "endswith"];

/// The methods of texts, lists and dictionaries that minijinja's own lack or do otherwise; then its
/// own.
pub(super) fn method(state: &mut State<'_, '_>, value: &Value, name: &str, arguments: &[Value]) -> Result<Value> {
    let found = match value.kind() {
        ValueKind::String => method_of_text(value.as_str().unwrap_or_default(), name, arguments)?,
        ValueKind::Map if name == "copy" => Some(value.clone()),
        ValueKind::Map if matches!(name, "keys" | "values" | "items") => {
            let view = minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments)?;
            let values = view.try_iter()?.collect::<Vec<_>>();
            let text = format!("dict_{name}({})", text(&Value::from(values.clone()))?);
            Some(Value::from_object(Lazy { values, next: None, is_sequence: false, text: Some(text) }))
        }
        ValueKind::Seq if name == "index" => {
            let (of,): (Value,) = from_args(arguments)?;
            let place = value.try_iter()?.position(|item| item == of);
            Some(Value::from(place.ok_or_else(|| invalid(format!("{of} is not in the list")))?))
        }
        _ => None,
    };
    match found {
        Some(found) => Ok(found),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments),
    }
}

fn method_of_text(of: &str, name: &str, arguments: &[Value]) -> Result<Option<Value>> {
    let list = |parts: Vec<&str>| parts.into_iter().map(Value::from).collect::<Value>();
    Ok(Some(match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(arguments)?;
            Value::from(strip(of, chars, name != "rstrip", name != "lstrip"))
        }
        "split" | "rsplit" => {
            let (separator, most, options): (Option<&str>, Option<i64>, Kwargs) = from_args(arguments)?;
            let separator = separator.or(options.get("sep")?);
            let most = most.or(options.get("maxsplit")?).and_then(|most| usize::try_from(most).ok());
            options.assert_all_used()?;
            if separator == Some("") {
                return Err(invalid("empty separator".into()));
            }
            list(split(of, separator, most, name == "rsplit"))
        }
        "splitlines" => {
            let (with_ends, options): (Option<bool>, Kwargs) = from_args(arguments)?;
            let with_ends = with_ends.or(options.get("keepends")?).unwrap_or(false);
            options.assert_all_used()?;
            list(lines(of, with_ends))
        }
        "title" => {
            let () = from_args(arguments)?;
            Value::from(title(of))
        }
        "capitalize" => {
            let () = from_args(arguments)?;
            Value::from(capitalized(of))
        }
        "isalpha" | "isalnum" | "isdigit" | "isnumeric" | "isdecimal" if !of.is_ascii() => {
            return Err(invalid(format!("the method {name} of a text beyond ASCII is not supported")));
        }
        "isdecimal" => {
            let () = from_args(arguments)?;
            Value::from(!of.is_empty() && of.chars().all(|c| c.is_ascii_digit()))
        }
        "isspace" => {
            let () = from_args(arguments)?;
            Value::from(!of.is_empty() && of.chars().all(is_space))
        }
        "join" => {
            let (values,): (Value,) = from_args(arguments)?;
            let parts = values.try_iter()?.map(|value| match value.as_str() {
                Some(text) => Ok(text.to_owned()),
                None => Err(invalid(format!("join: expected texts, got {value:?}: write `values | join`"))),
            });
            Value::from(parts.collect::<Result<Vec<_>>>()?.join(of))
        }
        "removeprefix" => {
            let (start,): (&str,) = from_args(arguments)?;
            Value::from(of.strip_prefix(start).unwrap_or(of))
        }
        "removesuffix" => {
            let (end,): (&str,) = from_args(arguments)?;
            Value::from(of.strip_suffix(end).unwrap_or(of))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            if separator.is_empty() {
                return Err(invalid("empty separator".into()));
            }
            let parts = match (name, of.split_once(separator), of.rsplit_once(separator)) {
                ("partition", Some((before, after)), _) | ("rpartition", _, Some((before, after))) => {
                    [before, separator, after]
                }
                ("partition", ..) => [of, "", ""],
                _ => ["", "", of],
            };
            Value::from(Tuple::new(parts.map(Value::from).to_vec()))
        }
        "index" => {
            let (part,): (&str,) = from_args(arguments)?;
            let at = of.find(part).ok_or_else(|| invalid("substring not found".into()))?;
            Value::from(of[..at].chars().count())
        }
        "startswith" | "endswith" => {
            let (part,): (Value,) = from_args(arguments)?;
            let holds = |part: &Value| match part.as_str() {
                Some(part) if name == "startswith" => Ok(of.starts_with(part)),
                Some(part) => Ok(of.ends_with(part)),
                None => Err(invalid(format!("{name}: expected a text or a tuple of texts, got {part:?}"))),
            };
            match part.downcast_object_ref::<Tuple>() {
                Some(_) => {
                    let each = part.try_iter()?.map(|part| holds(&part)).collect::<Result<Vec<_>>>()?;
                    Value::from(each.into_iter().any(|holds| holds))
                }
                None => Value::from(holds(&part)?),
            }
        }
        "zfill" => {
            let (width,): (usize,) = from_args(arguments)?;
            let (sign, digits) = of.split_at(usize::from(of.starts_with(['+', '-'])));
            let zeros = width.saturating_sub(of.chars().count());
            Value::from(format!("{sign}{}{digits}", "0".repeat(zeros)))
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (usize, Option<char>) = from_args(arguments)?;
            let (fill, missing) = (fill.unwrap_or(' '), width.saturating_sub(of.chars().count()));
            let left = match name {
                "ljust" => 0,
                "rjust" => missing,
                // CPython puts the odd one to the left where the width is odd.
                _ => missing / 2 + (missing & width & 1),
            };
            let pad = |count| std::iter::repeat_n(fill, count).collect::<String>();
            Value::from(format!("{}{of}{}", pad(left), pad(missing - left)))
        }
        _ => return Ok(None),
    }))
}
