//! The values of a text in YAML, such as the front matter of a dataset card.

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value};

/// Nesting of a value; of what is deeper, somebody means harm.
const MAX_DEPTH: usize = 32;

/// The value that is written as YAML in `text`, or the line and what is wrong there. Aliases, of
/// which a few bytes can make any amount of memory, are not read.
pub(super) fn read(text: &str) -> Result<Value, (usize, String)> {
    let mut parser = Parser::new_from_str(text);
    let mut line = 1;
    loop {
        match next(&mut parser, &mut line)? {
            Event::StreamEnd => return Ok(Value::Null),
            Event::StreamStart | Event::DocumentStart(_) | Event::Nothing => {}
            event => return node(&mut parser, event, &mut line, MAX_DEPTH),
        }
    }
}

type Events<'a> = Parser<'a, saphyr_parser::StrInput<'a>>;

fn next<'a>(parser: &mut Events<'a>, line: &mut usize) -> Result<Event<'a>, (usize, String)> {
    match parser.next_event() {
        Some(Ok((event, span))) => {
            *line = span.start.line();
            Ok(event)
        }
        Some(Err(error)) => Err((error.marker().line(), format!("malformed YAML: {}", error.info()))),
        None => Ok(Event::StreamEnd),
    }
}

fn node<'a>(
    parser: &mut Events<'a>,
    event: Event<'a>,
    line: &mut usize,
    depth: usize,
) -> Result<Value, (usize, String)> {
    let Some(depth) = depth.checked_sub(1) else { return Err((*line, "it is nested too deeply".into())) };
    match event {
        Event::Scalar(text, ScalarStyle::Plain, _, None) => Ok(plain(&text)),
        Event::Scalar(text, ..) => Ok(Value::String(text.into_owned())),
        Event::SequenceStart(..) => {
            let mut list = Vec::new();
            loop {
                match next(parser, line)? {
                    Event::SequenceEnd => return Ok(Value::Array(list)),
                    event => list.push(node(parser, event, line, depth)?),
                }
            }
        }
        Event::MappingStart(..) => {
            let mut map = Map::new();
            loop {
                let key = match next(parser, line)? {
                    Event::MappingEnd => return Ok(Value::Object(map)),
                    event => node(parser, event, line, depth)?,
                };
                let key = key.as_str().map_or_else(|| key.to_string(), str::to_owned);
                let event = next(parser, line)?;
                let value = node(parser, event, line, depth)?;
                if map.insert(key.clone(), value).is_some() {
                    return Err((*line, format!("the key {key:?} stands twice")));
                }
            }
        }
        Event::Alias(_) => Err((*line, "expected values, got an alias (`*name`)".into())),
        _ => Err((*line, "malformed YAML: expected a value".into())),
    }
}

/// A value without quotes, by the rules of YAML 1.1, which Python's reader follows.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        _ => {}
    }
    let lower = text.to_ascii_lowercase();
    let is_word = [lower.as_str(), &text.to_ascii_uppercase()].contains(&text)
        || text.get(1..).is_some_and(|rest| rest == &lower[1..]);
    match lower.as_str() {
        "true" | "yes" | "on" if is_word => return Value::Bool(true),
        "false" | "no" | "off" if is_word => return Value::Bool(false),
        _ => {}
    }
    if let Ok(number) = text.parse::<i64>() {
        return number.into();
    }
    let is_number = text.contains('.') && text.bytes().all(|byte| b"+-.0123456789eE".contains(&byte));
    match text.parse::<f64>() {
        Ok(number) if is_number => number.into(),
        _ => Value::String(text.to_owned()),
    }
}
