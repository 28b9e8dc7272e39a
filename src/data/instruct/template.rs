//! Chat templates: messages with roles become the text that a model was trained on, by the Jinja template of its tokenizer
//! (`chat_template` in `tokenizer_config.json`, or the file `chat_template.jinja`), as `apply_chat_template` of `transformers`
//! renders it: blocks lose the white space around them, values print as in Python, and the functions that templates call are
//! there.

use std::collections::BTreeMap;
#[cfg(unix)]
use std::ffi::CString;
use std::ops::Range;
use std::path::Path;
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error as JinjaError, ErrorKind, UndefinedBehavior};
use serde_json::Value as Json;

use super::super::tokenizer::Tokenizer;
use crate::base::error::{Error, Result};

/// A template, compiled, with the special tokens that it names.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// As it stands in its file.
    source: String,
    tokens: Vec<(&'static str, String)>,
    /// Whether it marks the words of the assistant by `{% generation %}`.
    marks_answers: bool,
}

/// Characters of the private use area that stand where a generation block begins and ends.
const MARKS: [char; 2] = ['\u{f8f0}', '\u{f8f1}'];

const NAME: &str = "chat_template";

impl ChatTemplate {
    /// The template `source` with the special tokens of `tokenizer`.
    ///
    /// # Errors
    /// Text that is no template.
    pub fn new(source: &str, tokenizer: &Tokenizer) -> Result<Self> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.expect("the delimiters are Jinja's"));
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(|out, state, value| match value.kind() {
            ValueKind::None => out.write_str("None").map_err(JinjaError::from),
            ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" }).map_err(JinjaError::from),
            ValueKind::Number if !value.is_integer() => {
                out.write_str(&python_float(f64::try_from(value.clone())?)).map_err(JinjaError::from)
            }
            _ => minijinja::escape_formatter(out, state, value),
        });
        environment.add_function("raise_exception", |message: String| -> std::result::Result<Value, JinjaError> {
            Err(JinjaError::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", |format: String| strftime(&format, SystemTime::now()));
        environment.add_filter("tojson", tojson);
        // In Python texts are sequences, and mappings have a length and items too.
        let has_items = |value: &Value| {
            matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable | ValueKind::String)
        };
        environment.add_test("sequence", move |value: &Value| has_items(value));
        environment.add_test("iterable", move |value: &Value| has_items(value));
        let marked = with_marks(source);
        let marks_answers = marked != source;
        environment.add_template_owned(NAME, marked).map_err(|error| unusable(&error))?;
        Ok(Self { environment, source: source.into(), tokens: tokenizer.roles().to_vec(), marks_answers })
    }

    /// The template of `tokenizer`, if it has one: `chat_template.jinja`, else `chat_template` of `tokenizer_config.json`, of
    /// several the one called `default`.
    ///
    /// # Errors
    /// A file that does not hold one.
    pub fn of(tokenizer: &Tokenizer) -> Result<Option<Self>> {
        tokenizer.chat_template()?.map(|source| Self::new(&source, tokenizer)).transpose()
    }

    /// The template in the file `path`.
    ///
    /// # Errors
    /// A file that cannot be read, or holds none.
    pub fn read(path: &Path, tokenizer: &Tokenizer) -> Result<Self> {
        let source = crate::base::files::read_regular_text(path)
            .map_err(|error| Error::io(format!("read {}", path.display()), &error))?;
        Self::new(&source, tokenizer).map_err(|error| error.at(path.display()))
    }

    /// The text of the template.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The text of `messages`; with `for_answer`, what begins an answer follows (`add_generation_prompt`).
    ///
    /// # Errors
    /// Messages that the template refuses.
    pub fn render(&self, messages: &Json, for_answer: bool) -> Result<String> {
        let text = self.marked(messages, for_answer)?;
        Ok(if self.marks_answers { text.replace(MARKS, "") } else { text })
    }

    /// The text of `messages`, and which bytes of it are the words of the assistant: those that the template marks by `{%
    /// generation %}`; of a template without marks, what each message of the role `assistant` adds to the text of the messages
    /// before it and the beginning of an answer.
    ///
    /// # Errors
    /// Messages that the template refuses, and a template that gives a text of some messages with which the text of more of them
    /// does not begin.
    pub fn render_answers(&self, messages: &Json) -> Result<(String, Vec<Range<usize>>)> {
        if self.marks_answers {
            return Ok(split_marks(&self.marked(messages, false)?));
        }
        let whole = self.render(messages, false)?;
        let list = messages.as_array().map(Vec::as_slice).unwrap_or_default();
        let mut answers = Vec::new();
        for (index, message) in list.iter().enumerate() {
            if message.get("role").and_then(Json::as_str) != Some("assistant") {
                continue;
            }
            let before = self.render(&Json::from(&list[..index]), true)?;
            let after = self.render(&Json::from(&list[..=index]), false)?;
            if !whole.starts_with(&after) || !after.starts_with(&before) {
                return Err(Error::data(format!(
                    "message {}: the chat template does not write the messages one after the other, so its answers cannot be \
                     told from the rest",
                    index + 1
                ))
                .help("put {% generation %} and {% endgeneration %} around the answer in the template, or set \
                       data.assistant_only_loss = false"));
            }
            answers.push(before.len()..after.len());
        }
        Ok((whole, answers))
    }

    fn marked(&self, messages: &Json, for_answer: bool) -> Result<String> {
        let template = self.environment.get_template(NAME).map_err(|error| unusable(&error))?;
        let tokens = self.tokens.iter().map(|(role, token)| ((*role).to_owned(), Value::from(token.as_str())));
        let mut given = tokens.collect::<BTreeMap<_, _>>();
        let others = [
            ("messages", Value::from(Serde(messages))),
            ("add_generation_prompt", Value::from(for_answer)),
            ("tools", Value::from(())),
            ("documents", Value::from(())),
        ];
        given.extend(others.map(|(name, value)| (name.to_owned(), value)));
        template.render(Value::from(given)).map_err(|error| {
            let words = error.detail().map_or_else(|| error.to_string(), str::to_owned);
            if words.contains("% operator on unsupported types string") {
                let line = error.line().map_or_else(String::new, |line| format!(", line {line}"));
                return Error::data(format!("{NAME}{line}: % after a text, Python's formatting, is not supported: {words}"))
                    .help("write {{ \"%s, %s\" | format(a, b) }} instead of {{ \"%s, %s\" % (a, b) }}: transformers gives the same text");
            }
            Error::data(format!("the chat template refuses the messages: {words}"))
        })
    }
}

fn unusable(error: &JinjaError) -> Error {
    let line = error.line().map_or_else(String::new, |line| format!(", line {line}"));
    let words = error.detail().map_or_else(|| error.to_string(), str::to_owned);
    Error::data(format!("{NAME}{line}: expected a Jinja template: {words}"))
}

/// `source` with a mark in place of every `{% generation %}` and `{% endgeneration %}`, which are statements of `transformers`.
/// White space around them goes as it does around statements.
fn with_marks(source: &str) -> String {
    let mut marked = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start..].find("%}").map(|end| end + 2) else { break };
        let statement = &rest[start..start + len];
        let inner = statement[2..len - 2].trim_matches(['-', '+']).trim();
        let mark = match inner {
            "generation" => MARKS[0],
            "endgeneration" => MARKS[1],
            _ => {
                marked.push_str(&rest[..start + len]);
                rest = &rest[start + len..];
                continue;
            }
        };
        // A statement that does nothing trims as this one would, and the mark stands where it was.
        let (open, close) = (statement.starts_with("{%-"), statement.ends_with("-%}"));
        marked.push_str(&rest[..start]);
        marked.push_str(if open { "{%- set _ = 0 %}" } else { "{% set _ = 0 %}" });
        marked.push_str(&format!("{{{{ '{mark}' }}}}"));
        marked.push_str(if close { "{% set _ = 0 -%}" } else { "{% set _ = 0 %}" });
        rest = &rest[start + len..];
    }
    marked.push_str(rest);
    marked
}

/// The text without marks, and the bytes between each pair of them.
fn split_marks(text: &str) -> (String, Vec<Range<usize>>) {
    let (mut plain, mut spans, mut begin) = (String::with_capacity(text.len()), Vec::new(), 0);
    for c in text.chars() {
        match MARKS.iter().position(|mark| *mark == c) {
            Some(0) => begin = plain.len(),
            Some(_) => spans.push(begin..plain.len()),
            None => plain.push(c),
        }
    }
    (plain, spans)
}

/// `json.dumps(value, ensure_ascii=False)` with the options of `transformers`' filter: `ensure_ascii`, `indent`, `separators` and
/// `sort_keys`.
fn tojson(value: Value, options: Kwargs) -> std::result::Result<Value, JinjaError> {
    let indent = options.get::<Option<usize>>("indent")?;
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    let of_items = if indent.is_some() { "," } else { ", " };
    let dump = Dump {
        indent,
        is_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sorts: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        separators: match separators.as_deref() {
            None => [of_items.into(), ": ".into()],
            Some([items, keys]) => [items.clone(), keys.clone()],
            Some(_) => {
                return Err(JinjaError::new(ErrorKind::InvalidOperation, "tojson: expected two separators"));
            }
        },
    };
    options.assert_all_used()?;
    let json = serde_json::to_value(&value)
        .map_err(|error| JinjaError::new(ErrorKind::InvalidOperation, format!("tojson: {error}")))?;
    let mut text = String::new();
    dump.write(&json, 0, &mut text);
    Ok(Value::from(text))
}

/// Python's form of JSON.
struct Dump {
    indent: Option<usize>,
    /// Whether other characters than ASCII's are escaped.
    is_ascii: bool,
    /// Whether keys stand in order.
    sorts: bool,
    /// Between items, and between a key and its value.
    separators: [String; 2],
}

impl Dump {
    fn write(&self, json: &Json, depth: usize, text: &mut String) {
        let line = |depth: usize, text: &mut String| {
            if let Some(indent) = self.indent {
                text.push('\n');
                text.extend(std::iter::repeat_n(' ', indent * depth));
            }
        };
        let (open, close, len) = match json {
            Json::Array(values) => ('[', ']', values.len()),
            Json::Object(object) => ('{', '}', object.len()),
            Json::Number(number) if number.is_f64() => {
                return text.push_str(&python_float(number.as_f64().unwrap_or(f64::NAN)));
            }
            other => return text.push_str(&self.escaped(other.to_string())),
        };
        text.push(open);
        let mut keys =
            json.as_object().into_iter().flatten().map(|(key, value)| (Some(key), value)).collect::<Vec<_>>();
        if self.sorts {
            keys.sort_by_key(|(key, _)| *key);
        }
        let values = json.as_array().into_iter().flatten().map(|value| (None, value));
        for (index, (key, value)) in keys.into_iter().chain(values).enumerate() {
            if index > 0 {
                text.push_str(&self.separators[0]);
            }
            line(depth + 1, text);
            if let Some(key) = key {
                text.push_str(&self.escaped(Json::from(key.as_str()).to_string()));
                text.push_str(&self.separators[1]);
            }
            self.write(value, depth + 1, text);
        }
        if len > 0 {
            line(depth, text);
        }
        text.push(close);
    }

    fn escaped(&self, text: String) -> String {
        if !self.is_ascii || text.is_ascii() {
            return text;
        }
        let escape = |c: char| match c.is_ascii() {
            true => c.to_string(),
            false => c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
        };
        text.chars().map(escape).collect()
    }
}

/// A number as Python's `repr` writes it: the shortest digits, with an exponent below 1e-4 and from 1e16 on.
fn python_float(number: f64) -> String {
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

/// The local time `now` by the format of Python's `datetime.now().strftime`, which is that of the C library in the locale `C`, but
/// for the microseconds and for the time zone, which `datetime.now()` does not know.
#[cfg(unix)]
fn strftime(format: &str, now: SystemTime) -> std::result::Result<String, JinjaError> {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = libc::time_t::try_from(since.as_secs()).unwrap_or(libc::time_t::MAX);
    formatted(format, &local_time(seconds)?, since.subsec_micros())
}

#[cfg(not(unix))]
fn strftime(_format: &str, _now: SystemTime) -> std::result::Result<String, JinjaError> {
    Err(no_time())
}

fn no_time() -> JinjaError {
    JinjaError::new(ErrorKind::InvalidOperation, "strftime_now: the local time is not known on this system")
}

/// The parts of a time, `seconds` after 1970, where this machine is.
#[cfg(unix)]
#[allow(unsafe_code)]
fn local_time(seconds: libc::time_t) -> std::result::Result<libc::tm, JinjaError> {
    let mut parts = std::mem::MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both pointers are valid for the call; the second is to memory for a `tm`, in which zeros are a valid one.
    unsafe {
        if libc::localtime_r(&seconds, parts.as_mut_ptr()).is_null() {
            return Err(no_time());
        }
        Ok(parts.assume_init())
    }
}

/// The time `parts` by `format`.
#[cfg(unix)]
#[allow(unsafe_code)]
fn formatted(format: &str, parts: &libc::tm, microseconds: u32) -> std::result::Result<String, JinjaError> {
    // Python's own directives. A byte at the end tells a text that is empty from one that has no room.
    let mut own = String::with_capacity(format.len() + 1);
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        match (c, if c == '%' { chars.next() } else { None }) {
            ('%', Some('f')) => own.push_str(&format!("{microseconds:06}")),
            ('%', Some('z' | 'Z')) => {}
            ('%', Some(other)) => own.extend(['%', other]),
            (c, _) => own.push(c),
        }
    }
    own.push('.');
    let own = CString::new(own)
        .map_err(|_| JinjaError::new(ErrorKind::InvalidOperation, "strftime_now: the format has a null character"))?;
    // As much as Python allows for.
    let mut text = vec![0u8; 256 * own.as_bytes().len()];
    // SAFETY: `text` has as many bytes as are told, the format ends with a null byte, and `parts` is a whole time.
    let len = unsafe { libc::strftime(text.as_mut_ptr().cast(), text.len(), own.as_ptr(), parts) };
    text.truncate(len.checked_sub(1).ok_or_else(no_time)?);
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Fixture {
        tokens: HashMap<String, String>,
        templates: HashMap<String, String>,
        cases: Vec<Case>,
        /// Seconds since 1970, microseconds, a format, and the text.
        dates: Vec<(i32, u32, String, String)>,
    }

    #[derive(Deserialize)]
    struct Case {
        template: String,
        messages: Json,
        add_generation_prompt: bool,
        text: Option<String>,
        error: Option<String>,
        answers: Option<Vec<(usize, usize)>>,
    }

    /// A tokenizer with `tokens` and the chat template `template` in its files.
    fn tokenizer(tokens: &HashMap<String, String>, template: Option<&Json>) -> Tokenizer {
        let folder = tempfile::tempdir().unwrap();
        let mut config = serde_json::to_value(tokens).unwrap();
        if let Some(template) = template {
            config["chat_template"] = template.clone();
        }
        let vocab = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n<s>\n</s>\n<unk>\n<pad>\n";
        std::fs::write(folder.path().join("vocab.txt"), vocab).unwrap();
        std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        Tokenizer::load(folder.path()).unwrap()
    }

    fn fixture() -> Fixture {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/chat_templates.json");
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn texts_are_those_of_transformers() {
        let fixture = fixture();
        assert!(fixture.templates.len() >= 14 && fixture.cases.len() >= 160);
        let tokenizer = tokenizer(&fixture.tokens, None);
        for case in fixture.cases {
            let template = ChatTemplate::new(&fixture.templates[&case.template], &tokenizer).unwrap();
            let name = format!("{}: {}", case.template, case.messages);
            let rendered = template.render(&case.messages, case.add_generation_prompt);
            match (&case.text, &case.error) {
                (Some(text), _) => assert_eq!(&rendered.unwrap(), text, "{name}"),
                (None, error) => {
                    let (said, error) = (rendered.expect_err(&name).to_string(), error.clone().unwrap());
                    assert!(said.contains(&error), "{name}: {said} does not say {error}");
                }
            }
            let Some(answers) = case.answers else { continue };
            let (text, spans) = template.render_answers(&case.messages).unwrap();
            assert_eq!(Some(&text), case.text.as_ref());
            let expected = answers.iter().map(|(start, end)| text.chars().skip(*start).take(end - start).collect());
            let got = spans.iter().map(|span| text[span.clone()].to_owned());
            assert_eq!(got.collect::<Vec<_>>(), expected.collect::<Vec<String>>(), "{name}");
        }
    }

    /// The texts are those of transformers 5.23.
    #[test]
    fn values_are_written_as_python_writes_them() {
        let messages = serde_json::json!([
            { "role": "user", "content": "a", "x": { "b": 1.0, "a": 1e16, "é": [1e-5, 0.0001, -2.5e20, "日🦀"] } }
        ]);
        let tokenizer = tokenizer(&HashMap::new(), None);
        for (template, text) in [
            (
                "{{ messages[0].content is sequence }} {{ messages is sequence }} {{ messages[0] is sequence }} \
                 {{ 3 is sequence }} {{ 'a' is iterable }}",
                "True True True False True",
            ),
            (
                "{{ messages[0].x.b }} {{ messages[0].x.a }} {{ messages[0].x['é'][0] }} {{ messages[0].x['é'][1] }} \
                 {{ messages[0].x['é'][2] }}",
                "1.0 1e+16 1e-05 0.0001 -2.5e+20",
            ),
            ("{{ messages[0].x | tojson }}", r#"{"b": 1.0, "a": 1e+16, "é": [1e-05, 0.0001, -2.5e+20, "日🦀"]}"#),
            (
                "{{ messages[0].x | tojson(sort_keys=true, separators=[',', ':']) }}",
                r#"{"a":1e+16,"b":1.0,"é":[1e-05,0.0001,-2.5e+20,"日🦀"]}"#,
            ),
            (
                "{{ messages[0].x | tojson(ensure_ascii=true, indent=2) }}",
                "{\n  \"b\": 1.0,\n  \"a\": 1e+16,\n  \"\\u00e9\": [\n    1e-05,\n    0.0001,\n    -2.5e+20,\n    \
                 \"\\u65e5\\ud83e\\udd80\"\n  ]\n}",
            ),
        ] {
            let rendered = ChatTemplate::new(template, &tokenizer).unwrap().render(&messages, false).unwrap();
            assert_eq!(rendered, text, "{template}");
        }
    }

    /// The texts of the filter are those of transformers 5.23.
    #[test]
    fn formatting_by_an_operator_names_the_filter_that_does_the_same() {
        let messages = serde_json::json!([{ "role": "user", "content": "a", "n": 7 }]);
        let tokenizer = tokenizer(&HashMap::new(), None);
        let render = |template: &str| ChatTemplate::new(template, &tokenizer).unwrap().render(&messages, false);
        for template in ["{{ '%s' % messages[0].role }}", "{{ '%s: %d' % (messages[0].role, messages[0].n) }}"] {
            let error = render(&format!("x\n{template}")).unwrap_err();
            let said = error.to_string();
            assert!(error.exit_code() == 3 && said.contains("line 2: % after a text"), "{said}");
        }
        let of_nothing = render("{{ messages[0].turn % 2 }}").unwrap_err().to_string();
        assert!(of_nothing.contains("refuses the messages") && !of_nothing.contains("after a text"), "{of_nothing}");
        for (template, text) in [
            ("{{ '%s: %03d, %.2f %%' | format(messages[0].role, messages[0].n, 1.5) }}", "user: 007, 1.50 %"),
            ("{{ '%s %s %s' | format(true, none, 0.5) }}", "True None 0.5"),
            ("{{ messages[0].n % 4 }}", "3"),
        ] {
            assert_eq!(render(template).unwrap(), text, "{template}");
        }
    }

    #[test]
    fn answers_of_a_template_without_marks_are_what_assistants_add() {
        let fixture = fixture();
        let tokenizer = tokenizer(&fixture.tokens, None);
        let answers = |name: &str, messages: &Json| {
            let template = ChatTemplate::new(&fixture.templates[name], &tokenizer).unwrap();
            let (text, spans) = template.render_answers(messages)?;
            Ok::<_, Error>(spans.iter().map(|span| text[span.clone()].to_owned()).collect::<Vec<_>>())
        };
        let messages = serde_json::json!([
            { "role": "user", "content": "a" },
            { "role": "assistant", "content": "b" },
            { "role": "user", "content": "c" },
            { "role": "assistant", "content": "d" },
        ]);
        assert_eq!(answers("ChatML", &messages).unwrap(), ["b<|im_end|>\n", "d<|im_end|>\n"]);
        assert_eq!(answers("Mistral", &messages).unwrap(), ["b</s>", "d</s>"]);
        // Its end-of-text stands behind the last message alone.
        let error = answers("Phi 3", &messages).unwrap_err().to_string();
        assert!(error.contains("message 2") && error.contains("one after the other"), "{error}");
    }

    #[test]
    fn the_template_is_that_of_the_files() {
        let tokens = HashMap::from([("bos_token".to_owned(), "<s>".to_owned())]);
        let rendered = |template: Json| {
            let template = ChatTemplate::of(&tokenizer(&tokens, Some(&template)))?;
            template.map(|template| template.render(&serde_json::json!([{"role": "user"}]), false)).transpose()
        };
        let text = "{{ bos_token }}{{ messages[0].role }}";
        assert_eq!(rendered(text.into()).unwrap().unwrap(), "<s>user");
        let named = serde_json::json!([{"name": "tool_use", "template": "x"}, {"name": "default", "template": text}]);
        assert_eq!(rendered(named).unwrap().unwrap(), "<s>user");
        assert_eq!(rendered(Json::Null).unwrap(), None);
        assert!(rendered(3.into()).unwrap_err().to_string().contains("chat_template: expected a text"));
        let broken = rendered("{% for x in %}".into()).unwrap_err().to_string();
        assert!(broken.contains("line 1: expected a Jinja template"), "{broken}");
    }

    /// The texts are those of Python's `datetime` (tests/fixtures/make_chat_templates.py).
    #[test]
    fn dates_are_pythons() {
        let cases = fixture().dates;
        assert!(cases.len() >= 20);
        for (seconds, microseconds, format, text) in cases {
            let seconds = libc::time_t::from(seconds);
            let mut parts = std::mem::MaybeUninit::<libc::tm>::zeroed();
            #[allow(unsafe_code)]
            // SAFETY: as in `local_time`.
            let parts = unsafe {
                assert!(!libc::gmtime_r(&seconds, parts.as_mut_ptr()).is_null());
                parts.assume_init()
            };
            assert_eq!(formatted(&format, &parts, microseconds).unwrap(), text, "{format}");
        }
        assert!(formatted("a\0b", &local_time(0).unwrap(), 0).is_err());
        let year = strftime("%Y", SystemTime::now()).unwrap();
        assert!(year.len() == 4 && year.as_str() >= "2025", "{year}");
    }
}
