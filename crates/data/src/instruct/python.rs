//! Python in Jinja: the filters, methods and texts of values in which minijinja differs from the Jinja2 of `transformers`. What
//! neither of them has, or Kiln cannot write as Python does, is an error that names it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::value::{
    Enumerator, Kwargs, Object, ObjectRepr, Rest, Tuple, Value, ValueKind, ValueOrKwargs, from_args,
};
use minijinja::{Environment, Error, ErrorKind, State};

type Result<T, E = Error> = std::result::Result<T, E>;

/// Makes `environment` compute as Jinja2 does in `transformers`.
pub(super) fn configure(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(method);
    environment.set_formatter(|out, _, value| out.write_str(&text(value)?).map_err(Error::from));
    // Filters, tests and functions of minijinja alone.
    for name in ["lines", "split", "zip", "chain", "bool", "pprint"] {
        environment.remove_filter(name);
    }
    for name in ["startingwith", "endingwith", "containing", "safe"] {
        environment.remove_test(name);
    }
    environment.remove_global("debug");
    for name in ["e", "escape", "safe", "forceescape"] {
        // A text that is marked as HTML escapes what is added to it, which no text of minijinja does outside of HTML.
        environment.add_filter(name, move |_: Value| -> Result<Value> {
            Err(invalid(format!("the filter {name} is not supported: a chat template writes no HTML")))
        });
    }
    environment.add_filter("upper", |value: &Value| Ok::<_, Error>(text(value)?.to_uppercase()));
    environment.add_filter("lower", |value: &Value| Ok::<_, Error>(text(value)?.to_lowercase()));
    environment.add_filter("capitalize", |value: &Value| Ok::<_, Error>(capitalized(&text(value)?)));
    environment.add_filter("title", |value: &Value| Ok::<_, Error>(filter_title(&text(value)?)));
    environment.add_filter("string", |value: &Value| text(value));
    environment.add_filter("trim", |value: &Value, chars: Option<String>| {
        Ok::<_, Error>(strip(&text(value)?, chars.as_deref(), true, true).to_owned())
    });
    environment.add_filter("replace", |value: &Value, old: &Value, new: &Value, count: Option<i64>| {
        Ok::<_, Error>(replace(&text(value)?, &text(old)?, &text(new)?, count))
    });
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_filter("wordcount", |value: &Value| Ok::<_, Error>(words(&text(value)?)));
    environment.add_filter("indent", indent);
    environment.add_filter("join", join);
    environment.add_filter("attr", |value: &Value, name: String| match value.kind() {
        // Keys of a mapping are no attributes, and neither Jinja2 nor minijinja has another value with some.
        ValueKind::Map if !METHODS_OF_MAPPINGS.contains(&name.as_str()) => Ok(Value::UNDEFINED),
        _ => Err(invalid(format!("the filter attr of {name:?} is not supported: write value[{name:?}]"))),
    });
    environment.add_filter("list", |state: &State<'_, '_>, value: Value| match value.kind() {
        ValueKind::None => Err(invalid("None is not iterable".into())),
        _ => minijinja::filters::list(state, value),
    });
    generators(environment);
    for name in ["length", "count"] {
        environment.add_filter(name, |value: &Value| match lazy(value) {
            Some(Lazy { next: Some(_), .. }) => {
                Err(invalid("a generator has no length: write `| list | length`".into()))
            }
            _ => minijinja::filters::length(value),
        });
    }
    environment.add_function("range", |low: i64, high: Option<i64>, step: Option<i64>| {
        let (low, high) = high.map_or((0, low), |high| (low, high));
        let step = step.unwrap_or(1);
        let (from, to) = if step > 0 { (low, high) } else { (high, low) };
        let len = match step.unsigned_abs() {
            0 => return Err(invalid("range: the step must not be 0".into())),
            step => to.saturating_sub(from).max(0).unsigned_abs().div_ceil(step),
        };
        // The sandbox of Jinja2 allows no more.
        if len > 100_000 {
            return Err(invalid(format!("range: expected at most 100000 numbers, got {len}")));
        }
        let values = (0..len as i64).map(|index| Value::from(low + index * step)).collect();
        let text = if step == 1 { format!("range({low}, {high})") } else { format!("range({low}, {high}, {step})") };
        Ok(Value::from_object(Lazy { values, next: None, is_sequence: true, text: Some(text) }))
    });
    // In Python texts are sequences, mappings have a length and items too, and so has what is not defined.
    let has_items = |value: &Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), Seq | Map | Iterable | String | Undefined) || lazy(value).is_some()
    };
    environment
        .add_test("sequence", move |value: &Value| has_items(value) && lazy(value).is_none_or(|lazy| lazy.is_sequence));
    environment.add_test("iterable", move |value: &Value| has_items(value));
    environment.add_test("upper", |value: &Value| {
        Ok::<_, Error>(is_cased(&text(value)?, char::is_uppercase, char::is_lowercase))
    });
    environment.add_test("lower", |value: &Value| {
        Ok::<_, Error>(is_cased(&text(value)?, char::is_lowercase, char::is_uppercase))
    });
}

fn invalid(message: String) -> Error {
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

/// `str.isprintable`, by the same categories of Unicode: Rust escapes the same characters in texts, but for marks at their beginning.
fn is_printable(c: char) -> bool {
    matches!(c, ' '..='~') || !c.is_control() && !format!("a{c}").escape_debug().to_string().contains("\\u{")
}

/// A number as Python's `repr` writes it: the shortest digits, with an exponent below 1e-4 and from 1e16 on.
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

/// Whether minijinja writes a number otherwise than Python where it joins values itself, as `~` does.
pub(super) fn is_written_otherwise(of: f64) -> bool {
    let python = number(of);
    python.contains(['e', 'n'])
}

/// `str.isspace` of a character.
fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// `str.strip`, `lstrip` and `rstrip`.
fn strip<'a>(text: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let goes = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if left { text.trim_start_matches(goes) } else { text };
    if right { text.trim_end_matches(goes) } else { text }
}

fn replace(text: &str, old: &str, new: &str, count: Option<i64>) -> String {
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

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| title_of(first) + &chars.as_str().to_lowercase())
}

/// `str.title`: letters behind others are small.
fn title(text: &str) -> String {
    let mut after_letter = false;
    let mut out = String::new();
    for c in text.chars() {
        let is_letter = c.is_lowercase() || c.is_uppercase();
        match after_letter {
            true => out.extend(c.to_lowercase()),
            false => out.push_str(&title_of(c)),
        }
        after_letter = is_letter;
    }
    out
}

/// Jinja2's filter: words begin behind white space, hyphens and open brackets.
fn filter_title(text: &str) -> String {
    let mut begins = true;
    let mut out = String::new();
    for c in text.chars() {
        match begins {
            true => out.extend(c.to_uppercase()),
            false => out.extend(c.to_lowercase()),
        }
        begins = is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    }
    out
}

/// Whether a text has letters of a case and none of the other.
fn is_cased(text: &str, of: fn(char) -> bool, other: fn(char) -> bool) -> bool {
    text.contains(of) && !text.contains(other)
}

/// Words as the pattern `\w+` finds them.
fn words(text: &str) -> usize {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).count()
}

/// `str.splitlines`.
fn lines(text: &str, with_ends: bool) -> Vec<&str> {
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

/// What `int` and `float` give where there is no number; it may be None.
fn default(given: &[Value], options: &Kwargs, otherwise: Value) -> Result<Value> {
    match given.first() {
        Some(default) => Ok(default.clone()),
        None if options.has("default") => options.get("default"),
        None => Ok(otherwise),
    }
}

/// The filter `int`.
fn int(value: &Value, options: Rest<ValueOrKwargs>) -> Result<Value> {
    let options = options.into_values();
    let (given, options): (&[Value], Kwargs) = from_args(&options)?;
    let default = default(given, &options, Value::from(0))?;
    let base = given.get(1).map(|base| u32::try_from(base.clone())).transpose()?;
    let base = base.or(options.get("base")?).unwrap_or(10);
    options.assert_all_used()?;
    let Some(text) = value.as_str() else {
        return match value.kind() {
            ValueKind::Bool => Ok(Value::from(i32::from(value.is_true()))),
            ValueKind::Number if value.is_integer() => Ok(value.clone()),
            ValueKind::Number => Ok(truncated(f64::try_from(value.clone())?).unwrap_or(default)),
            ValueKind::Undefined => Err(Error::from(ErrorKind::UndefinedError)),
            _ => Ok(default),
        };
    };
    let text = strip(text, None, true, true);
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefix = match base {
        16 => ["0x", "0X"],
        8 => ["0o", "0O"],
        2 => ["0b", "0B"],
        _ => ["", ""],
    };
    let digits = prefix.iter().find_map(|prefix| digits.strip_prefix(prefix)).unwrap_or(digits);
    if (2..=36).contains(&base)
        && digits.is_ascii()
        && !digits.starts_with(['+', '-'])
        && let Some(digits) = without_underscores(digits)
        && let Ok(number) = i128::from_str_radix(&digits, base)
    {
        return Ok(Value::from(sign * number));
    }
    Ok(parsed(text).and_then(truncated).unwrap_or(default))
}

/// A number without its fraction; none of what is no finite number.
fn truncated(number: f64) -> Option<Value> {
    // 2^100 is less than the largest integer.
    (number.abs() < 1.267_650_6e30).then(|| Value::from(number.trunc() as i128))
}

/// Digits whose underscores stand between two of them.
fn without_underscores(digits: &str) -> Option<String> {
    let wrong = digits.starts_with('_') || digits.ends_with('_') || digits.contains("__");
    (!wrong).then(|| digits.replace('_', ""))
}

/// `float(text)`.
fn parsed(text: &str) -> Option<f64> {
    let text = strip(text, None, true, true);
    without_underscores(text)?.parse().ok()
}

/// The filter `float`.
fn float(value: &Value, options: Rest<ValueOrKwargs>) -> Result<Value> {
    let options = options.into_values();
    let (given, options): (&[Value], Kwargs) = from_args(&options)?;
    let default = default(given, &options, Value::from(0.0))?;
    options.assert_all_used()?;
    match value.kind() {
        ValueKind::Undefined => Err(Error::from(ErrorKind::UndefinedError)),
        ValueKind::Bool => Ok(Value::from(f64::from(u8::from(value.is_true())))),
        ValueKind::Number => Ok(Value::from(f64::try_from(value.clone())?)),
        ValueKind::String => Ok(parsed(value.as_str().unwrap_or_default()).map_or(default, Value::from)),
        _ => Ok(default),
    }
}

/// The filter `indent`.
fn indent(
    value: &Value,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<String> {
    let width = width.or(options.get("width")?).unwrap_or_else(|| Value::from(4));
    let first = first.or(options.get("first")?).unwrap_or(false);
    let blank = blank.or(options.get("blank")?).unwrap_or(false);
    options.assert_all_used()?;
    let by = match width.as_str() {
        Some(by) => by.to_owned(),
        None => " ".repeat(usize::try_from(width)?),
    };
    let text = text(value)? + "\n";
    let mut out = String::new();
    for (index, line) in lines(&text, false).into_iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        if index == 0 && first || index > 0 && (blank || !line.is_empty()) {
            out.push_str(&by);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// The filter `join`.
fn join(
    state: &mut State<'_, '_>,
    value: Value,
    between: Option<Value>,
    attribute: Option<Value>,
    options: Kwargs,
) -> Result<String> {
    let between = between.or(options.get("d")?).map_or_else(|| Ok(String::new()), |between| text(&between))?;
    let attribute = attribute.or(options.get("attribute")?);
    options.assert_all_used()?;
    let value = match (attribute, value.kind()) {
        (_, ValueKind::None) => return Err(invalid("None is not iterable".into())),
        (_, ValueKind::Undefined) => return Ok(String::new()),
        (Some(attribute), _) => {
            let options = Kwargs::from_iter([("attribute", attribute)]);
            state.apply_filter("map", &[value, Value::from(options)])?
        }
        (None, _) => value,
    };
    Ok(value.try_iter()?.map(|value| text(&value)).collect::<Result<Vec<_>>>()?.join(&between))
}

/// What Python makes as it is asked for, and minijinja gives as a list.
#[derive(Debug)]
struct Lazy {
    values: Vec<Value>,
    /// The next value of a generator: it is read once, and true even where it is empty.
    next: Option<AtomicUsize>,
    /// Whether it has an item for each number, as a range.
    is_sequence: bool,
    /// What Python writes of it, if that is no address.
    text: Option<String>,
}

impl Lazy {
    fn generator(values: Vec<Value>) -> Value {
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

fn lazy(value: &Value) -> Option<&Lazy> {
    value.downcast_object_ref()
}

/// The filters that yield what minijinja's give as a list. The filters of minijinja are kept under other names.
fn generators(environment: &mut Environment<'static>) {
    use minijinja::filters::{batch, items, map, reject, rejectattr, reverse, select, selectattr, slice, unique};
    environment.add_filter("list of map", map);
    environment.add_filter("list of select", select);
    environment.add_filter("list of reject", reject);
    environment.add_filter("list of selectattr", selectattr);
    environment.add_filter("list of rejectattr", rejectattr);
    environment.add_filter("list of unique", unique);
    environment.add_filter("list of batch", batch);
    environment.add_filter("list of slice", slice);
    environment.add_filter("list of items", items);
    environment.add_filter("list of reverse", reverse);
    for (name, of) in [
        ("map", "list of map"),
        ("select", "list of select"),
        ("reject", "list of reject"),
        ("selectattr", "list of selectattr"),
        ("rejectattr", "list of rejectattr"),
        ("unique", "list of unique"),
        ("batch", "list of batch"),
        ("slice", "list of slice"),
        ("items", "list of items"),
        ("reverse", "list of reverse"),
    ] {
        environment.add_filter(name, move |state: &mut State<'_, '_>, arguments: Rest<ValueOrKwargs>| {
            let values = state.apply_filter(of, &arguments.into_values())?;
            match values.kind() {
                // A text backwards is one.
                ValueKind::String => Ok(values),
                _ => Ok(Lazy::generator(values.try_iter()?.collect())),
            }
        });
    }
}

/// Methods of Python's dictionaries: `.NAME` is the method, also where a key has that name.
pub(super) const METHODS_OF_MAPPINGS: [&str; 11] =
    ["clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"];

/// Methods of texts that are no likely names of keys.
const METHODS_OF_TEXTS: [&str; 9] =
    ["strip", "lstrip", "rstrip", "split", "splitlines", "upper", "lower", "startswith", "endswith"];

/// The methods of texts, lists and dictionaries that minijinja's own lack or do otherwise; then its own.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, arguments: &[Value]) -> Result<Value> {
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

/// The filter `tojson` of `transformers`: `json.dumps` with its `ensure_ascii`, `indent`, `separators` and `sort_keys`.
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
    /// What a line begins with, once for each depth.
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
        let escaped = |c: char| match c.is_ascii() {
            true => c.to_string(),
            false => c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
        };
        json.chars().map(escaped).collect()
    }
}

/// The code of a template: what stands between `{{` and `}}`, and between `{%` and `%}`, with these; neither comments nor raw text.
/// The second is whether the block begins raw text.
pub(super) fn code(source: &str) -> Vec<(Range<usize>, bool)> {
    let mut code = Vec::new();
    let mut at = 0;
    while let Some(start) = source[at..].find('{').map(|found| at + found) {
        let close = match source.as_bytes().get(start + 1) {
            Some(b'{') => "}}",
            Some(b'%') => "%}",
            Some(b'#') => {
                at = source[start..].find("#}").map_or(source.len(), |end| start + end + 2);
                continue;
            }
            _ => {
                at = start + 1;
                continue;
            }
        };
        let inner = &source[start + 2..];
        let mut quote = None;
        let mut chars = inner.char_indices();
        let mut end = None;
        while let Some((place, c)) = chars.next() {
            match quote {
                Some(_) if c == '\\' => {
                    chars.next();
                }
                Some(open) if c == open => quote = None,
                Some(_) => {}
                None if c == '\'' || c == '"' => quote = Some(c),
                None if inner[place..].starts_with(close) => {
                    end = Some(start + 2 + place + 2);
                    break;
                }
                None => {}
            }
        }
        let Some(end) = end else { break };
        let is_raw = close == "%}" && source[start + 2..end - 2].trim_matches(['-', '+']).trim() == "raw";
        code.push((start..end, is_raw));
        at = end;
        if is_raw {
            let rest = &source[end..];
            let ends = rest
                .match_indices("{%")
                .find(|(place, _)| rest[place + 2..].trim_start_matches(['-', '+']).trim_start().starts_with("endraw"));
            at = ends.map_or(source.len(), |(place, _)| end + place);
            at = source[at..].find("%}").map_or(source.len(), |close| at + close + 2);
        }
    }
    code
}

/// A word, a text or an operator of the code of a template.
#[derive(Debug, PartialEq)]
pub(super) enum Token<'a> {
    Word(&'a str),
    Text(&'a str),
    Sign(char),
}

/// The parts of a piece of code.
pub(super) fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = code;
    while let Some(c) = rest.chars().next() {
        let len = match c {
            '\'' | '"' => {
                let mut escaped = false;
                let end = rest[1..].find(|other| {
                    let ends = other == c && !escaped;
                    escaped = other == '\\' && !escaped;
                    ends
                });
                let end = end.map_or(rest.len(), |end| end + 2);
                tokens.push(Token::Text(&rest[..end]));
                end
            }
            c if c.is_alphanumeric() || c == '_' => {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                tokens.push(Token::Word(&rest[..end]));
                end
            }
            c => {
                if !c.is_whitespace() {
                    tokens.push(Token::Sign(c));
                }
                c.len_utf8()
            }
        };
        rest = &rest[len..];
    }
    tokens
}

/// What a template writes that Kiln would not write as Jinja2 does, if there is any: a clause, and the advice.
pub(super) fn unsupported(tokens: &[Token<'_>]) -> Option<(String, String)> {
    for (index, token) in tokens.iter().enumerate() {
        let before = index.checked_sub(1).map(|index| &tokens[index]);
        let after = tokens.get(index + 1);
        match token {
            Token::Word(name)
                if before == Some(&Token::Sign('.'))
                    && after != Some(&Token::Sign('('))
                    && METHODS_OF_MAPPINGS.contains(name) =>
            {
                return Some((
                    format!(".{name} is the method of a dictionary in Jinja2, also where a key is called so"),
                    format!("write [\"{name}\"] for the key, and .{name}() for the method"),
                ));
            }
            Token::Word(name)
                if before == Some(&Token::Sign('.'))
                    && after != Some(&Token::Sign('('))
                    && METHODS_OF_TEXTS.contains(name) =>
            {
                return Some((format!("the method .{name} is not called"), format!("write .{name}()")));
            }
            Token::Word(name @ ("lipsum" | "cycler" | "joiner" | "self"))
                if before != Some(&Token::Sign('.')) && after != Some(&Token::Sign('=')) =>
            {
                return Some((format!("{name} of Jinja2 is not supported"), "write the template without it".into()));
            }
            Token::Word("autoescape") if index < 4 && matches!(before, Some(Token::Sign('%' | '-' | '+'))) => {
                return Some(("autoescape is not supported".into(), "a chat template writes no HTML".into()));
            }
            Token::Text(text) => {
                let mut chars = text.chars();
                while let Some(c) = chars.next() {
                    let next = if c == '\\' { chars.next() } else { None };
                    let what = match next {
                        Some('\n') => "a backslash at the end of a line".to_owned(),
                        Some(c @ ('a' | 'v' | 'N' | 'U' | '/')) => format!("the escape \\{c}"),
                        _ => continue,
                    };
                    return Some((
                        format!("{what} in a text is not supported"),
                        "write the character itself, or \\uXXXX".into(),
                    ));
                }
            }
            _ => {}
        }
    }
    None
}
