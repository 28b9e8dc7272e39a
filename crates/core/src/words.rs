//! Messages of serde, JSON and safetensors in the words of Kiln's own: where, what was expected and
//! what was found.

use std::fmt;
use std::time::Duration;

/// The fault of a text that is no JSON, or of JSON that is no such value: `line 3, column 5: ..`,
/// without a place where the value was in memory.
pub fn json_words(error: &serde_json::Error) -> String {
    let words = json_words_in_line(error);
    match (error.line(), error.column()) {
        (0, _) => words,
        (line, 0) => format!("line {line}: {words}"),
        (line, _) => format!("line {line}, {words}"),
    }
}

/// [`json_words`] of a text in one line, whose place the caller knows: `column 5: ..`.
pub fn json_words_in_line(error: &serde_json::Error) -> String {
    let said = error.to_string();
    let words = match error.line() {
        0 => &said,
        _ => said.rsplit_once(" at line ").map_or(said.as_str(), |(words, _)| words),
    };
    let words = serde_words(words, "an object");
    match error.column() {
        0 => words,
        column => format!("column {column}: {words}"),
    }
}

/// serde's `message`, which names types in Rust's words, and that of its JSON parser; `map` is what
/// the format calls keys with values.
pub fn serde_words(message: &str, map: &str) -> String {
    let between = |start: &str| message.strip_prefix(start);
    if let Some((got, expected)) = between("invalid type: ")
        .or_else(|| between("invalid value: "))
        .and_then(|text| text.rsplit_once(", expected "))
    {
        let expected = expected_words(expected, map);
        let quoted = got.strip_prefix("string \"").and_then(|text| text.strip_suffix('"'));
        let is_number = expected.contains("number") && quoted.is_some_and(|text| text.parse::<f64>().is_ok());
        let advice = if is_number { "; leave out the quotes" } else { "" };
        return format!("expected {expected}, got {}{advice}", found_words(got, map));
    }
    if let Some((got, expected)) = between("invalid length ").and_then(|text| text.split_once(", expected ")) {
        return format!("expected {}, got {got} elements", expected_words(expected, map));
    }
    if let Some(name) = between("missing field ") {
        return format!("the field {name} is missing");
    }
    if let Some(name) = between("duplicate field ") {
        return format!("the field {name} stands twice");
    }
    if let Some((name, expected)) = between("unknown variant ").and_then(|text| text.split_once(", ")) {
        return format!("unknown name {name}: {expected}");
    }
    if let Some(inside) = between("EOF while parsing ") {
        let inside = match inside {
            "a value" => "before a value",
            "an object" => "within an object",
            "a list" => "within a list",
            _ => "within a text",
        };
        return format!("the JSON ends {inside}");
    }
    let words = match message {
        "expected value" => "expected a value: a text in double quotes, a number, true, false, null, [..] or {..}",
        "expected ident" => "expected true, false or null, got another word",
        "key must be a string" => "expected a key in double quotes",
        "trailing comma" => "expected no comma before a closing bracket",
        "trailing characters" => "expected the end, got more after the value",
        "invalid escape" => "a text has a \\ before a character that has no meaning after it",
        "invalid number" => "expected a number as JSON writes it, such as -0.5 or 1e-3",
        "number out of range" => "the number is out of range",
        "recursion limit exceeded" => "values are nested deeper than 127 levels",
        "lone leading surrogate in hex escape" | "unexpected end of hex escape" | "invalid unicode code point" => {
            "an escape \\u.. in a text is no character"
        }
        _ if message.starts_with("control character") => {
            "a text has a line break or another control character, which JSON writes as \\n or \\u000a"
        }
        _ if message.starts_with("data did not match any variant") => {
            "the value has none of the forms that are expected"
        }
        other => other,
    };
    words.to_owned()
}

fn expected_words<'a>(expected: &'a str, map: &'a str) -> &'a str {
    match expected {
        "f64" | "f32" => "a number",
        "i64" | "i32" => "a whole number",
        "usize" | "u64" | "u32" | "u16" | "u8" => "a whole number that is not negative",
        "a sequence" => "a list",
        "a map" => map,
        "a boolean" => "true or false",
        "string" => "a string",
        "path string" => "a path in quotes",
        "any valid TOML value" => "a whole number of at most 64 bits",
        _ if expected.starts_with("struct ") => map,
        _ if expected.starts_with("enum ") || expected.starts_with("variant ") => "one of the known names",
        _ if expected.starts_with("tuple ") || expected.starts_with("a tuple ") => "a list",
        other => other,
    }
}

fn found_words<'a>(found: &'a str, map: &'a str) -> &'a str {
    match found {
        "sequence" => "a list",
        "map" => map,
        "unit value" => "null",
        other => other.trim_end_matches(" as i128").trim_end_matches(" as u128"),
    }
}

/// `value` in a message, of which a long one is cut.
pub fn shortened(value: &impl fmt::Display) -> String {
    const LONGEST: usize = 80;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// `1234567` as `1,234,567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

/// A length of time in the one spelling of all output: `4.213s`, `12s`, `1h 2m 3s`.
pub fn duration(seconds: f64) -> String {
    match Duration::try_from_secs_f64(seconds.round()) {
        Ok(whole) if seconds >= 10.0 => humantime::format_duration(whole).to_string(),
        _ if seconds.abs() < 10.0 => {
            format!("{}s", format!("{seconds:.3}").trim_end_matches('0').trim_end_matches('.'))
        }
        _ => format!("{seconds:.3e}s"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Value {
        count: usize,
        #[serde(default)]
        list: Vec<f32>,
        either: Option<Either>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(untagged)]
    #[allow(dead_code)]
    enum Either {
        Number(f64),
        Flag(bool),
    }

    #[test]
    fn messages_say_where_and_what_without_words_of_rust() {
        for (text, words) in [
            ("", "line 1: the JSON ends before a value"),
            ("{\"count\": 1", "line 1, column 11: the JSON ends within an object"),
            ("{\"count\": 1,}", "line 1, column 13: expected no comma before a closing bracket"),
            (
                "{\"count\": \"3\"}",
                "line 1, column 13: expected a whole number that is not negative, got string \"3\"; leave out the quotes",
            ),
            ("{\n\"count\": -1}", "line 2, column 11: expected a whole number that is not negative, got integer `-1`"),
            ("{\"count\": x}", "line 1, column 11: expected a value: a text in double quotes, a number"),
            ("{\"count\": 1} x", "line 1, column 14: expected the end, got more after the value"),
            ("{count: 1}", "line 1, column 2: expected a key in double quotes"),
            ("{\"list\": []}", "line 1, column 12: the field `count` is missing"),
            ("{\"count\": 1, \"count\": 2}", "the field `count` stands twice"),
            ("{\"count\": [], \"list\": 2}", "expected a whole number that is not negative, got a list"),
            ("{\"count\": 1, \"list\": {}}", "expected a list, got an object"),
            ("{\"count\": 1, \"either\": \"x\"}", "the value has none of the forms that are expected"),
            ("{\"count\": 1, \"count\n", "a text has a line break or another control character"),
            ("[]", "expected "),
        ] {
            let error = serde_json::from_str::<Value>(text).unwrap_err();
            let said = json_words(&error);
            assert!(said.contains(words), "{text}: {said}");
            for rust in ["EOF", "invalid type", "missing field", "untagged", "usize", "struct", "sequence"] {
                assert!(!said.contains(rust), "{text}: {said}");
            }
        }
        let value = serde_json::json!({ "count": "x" });
        let said = json_words(&serde_json::from_value::<Value>(value).unwrap_err());
        assert_eq!(said, "expected a whole number that is not negative, got string \"x\"");
    }

    #[test]
    fn durations_read_well() {
        let shown = ["0s", "0.051s", "1.5s", "4s", "9.999s", "12s", "1m 23s", "2h 5m 5s", "infs", "NaNs"];
        let seconds = [0.0, 0.0512, 1.5, 4.0, 9.9988, 11.6, 83.4, 7505.0, f64::INFINITY, f64::NAN];
        assert_eq!(seconds.map(duration), shown);
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
    }
}
