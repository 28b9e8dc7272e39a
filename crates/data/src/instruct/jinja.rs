//! Jinja2 in minijinja: the filters, tests and functions that differ, and the code of a template.

use std::ops::Range;

use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State};

use super::python::{
    Lazy, METHODS_OF_MAPPINGS, METHODS_OF_TEXTS, Result, capitalized, invalid, is_cased, is_space, lazy, lines, method,
    parsed, replace, strip, text, truncated, without_underscores,
};

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
        // A text that is marked as HTML escapes what is added to it, which no text of minijinja
        // does outside of HTML.
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
        // Keys of a mapping are no attributes, and neither Jinja2 nor minijinja has another value
        // with some.
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
    // In Python texts are sequences, mappings have a length and items too, and so has what is not
    // defined.
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

/// Jinja2's filter: words begin behind white space, hyphens and open brackets.
fn filter_title(text: &str) -> String {
    let mut begins = true;
    let mut out = String::new();
    for c in text.chars() {
        if begins {
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
        begins = is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    }
    out
}

/// Words as the pattern `\w+` finds them.
fn words(text: &str) -> usize {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).count()
}

/// The result of the filters `int` and `float` for a value that is no number: their argument
/// `default`, which may be None, or else `otherwise`.
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

/// The filters that yield what minijinja's give as a list. The filters of minijinja are kept under
/// other names.
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

/// The code of a template: what stands between `{{` and `}}`, and between `{%` and `%}`, with
/// these; neither comments nor raw text. The second is whether the block begins raw text.
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

/// The first construct of a template that Kiln would not render as Jinja2 does, if there is any: a
/// clause, and the advice.
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
