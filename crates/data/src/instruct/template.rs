//! Chat templates: messages with roles become the text that a model was trained on, by the Jinja
//! template of its tokenizer (`chat_template` in `tokenizer_config.json`, or the file
//! `chat_template.jinja`), as `apply_chat_template` of `transformers` renders it: blocks lose the
//! white space around them, values print as in Python, and the functions that templates call are
//! there. What would give another text than Jinja2 is refused.

use std::collections::BTreeMap;
#[cfg(unix)]
use std::ffi::CString;
use std::ops::Range;
use std::path::Path;
use std::time::SystemTime;

use kiln_core::error::{Error, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, Error as JinjaError, ErrorKind, UndefinedBehavior};
use serde_json::Value as Json;

use super::super::tokenizer::Tokenizer;
use super::jinja::{self, Token};
use super::python;
use super::rows::Arguments;
use super::tojson::tojson;

/// A template, compiled, with the special tokens that it names.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// The source as its file has it.
    source: String,
    tokens: Vec<(String, String)>,
    /// Whether it marks the words of the assistant by `{% generation %}`.
    marks_answers: bool,
    /// Whether it writes messages with all of their keys.
    prints_whole: bool,
    /// Whether it joins values by `~`.
    joins: bool,
    /// Whether it asks for the time.
    reads_clock: bool,
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
        jinja::configure(&mut environment);
        environment.add_function("raise_exception", |message: String| -> std::result::Result<Value, JinjaError> {
            Err(JinjaError::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", |format: String| strftime(&format, SystemTime::now()));
        environment.add_filter("tojson", tojson);
        // Jinja2 reads every line break as one of Unix.
        let unix = source.replace("\r\n", "\n").replace('\r', "\n");
        let parts = jinja::code(&unix).into_iter().map(|(range, _)| (range.start, jinja::tokens(&unix[range])));
        let parts = parts.collect::<Vec<_>>();
        for (start, tokens) in &parts {
            if let Some((what, help)) = jinja::unsupported(tokens) {
                let line = unix[..*start].matches('\n').count() + 1;
                return Err(Error::data(format!("{NAME}, line {line}: {what}")).help(help));
            }
        }
        let has = |token: &Token<'_>| parts.iter().any(|(_, tokens)| tokens.contains(token));
        let (joins, reads_clock) = (has(&Token::Sign('~')), has(&Token::Word("strftime_now")));
        let (marked, marks_answers) = with_marks(&unix);
        let prints_whole = ["message | tojson", "message|tojson", "messages | tojson", "messages|tojson"]
            .iter()
            .any(|print| source.contains(print));
        environment.add_template_owned(NAME, marked).map_err(|error| unusable(&error))?;
        Ok(Self {
            environment,
            source: source.into(),
            tokens: tokenizer.roles().to_vec(),
            marks_answers,
            prints_whole,
            joins,
            reads_clock,
        })
    }

    /// The template of `tokenizer`, if it has one: `chat_template.jinja`, else `chat_template` of
    /// `tokenizer_config.json`, of several the one called `default`.
    ///
    /// # Errors
    /// A file that does not hold one.
    pub fn of(tokenizer: &Tokenizer) -> Result<Option<Self>> {
        tokenizer.chat_template()?.map(|source| Self::new(&source, tokenizer)).transpose()
    }

    /// The template of `tokenizer` for conversations with tools, where it has one of its own.
    ///
    /// # Errors
    /// A file that does not hold a template.
    pub fn for_tools(tokenizer: &Tokenizer) -> Result<Option<Self>> {
        tokenizer.chat_template_for_tools()?.map(|source| Self::new(&source, tokenizer)).transpose()
    }

    /// The template in the file `path`.
    ///
    /// # Errors
    /// A file that cannot be read, or holds none.
    pub fn read(path: &Path, tokenizer: &Tokenizer) -> Result<Self> {
        let source = kiln_core::files::read_regular_text(path)
            .map_err(|error| Error::io(format!("read {}", path.display()), &error))?;
        Self::new(&source, tokenizer).map_err(|error| error.at(path.display()))
    }

    /// The special tokens that the template may name, by role.
    pub fn tokens(&self) -> &[(String, String)] {
        &self.tokens
    }

    /// The text of the template.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The text of `messages`; with `for_answer`, what begins an answer follows
    /// (`add_generation_prompt`).
    ///
    /// # Errors
    /// Messages that the template refuses.
    pub fn render(&self, messages: &Json, arguments: &Arguments, for_answer: bool) -> Result<String> {
        let text = self.marked(messages, arguments, for_answer)?;
        Ok(if self.marks_answers { text.replace(MARKS, "") } else { text })
    }

    /// The text that an answer continues: what `user` says, after the words of `system` where there
    /// are any.
    ///
    /// # Errors
    /// Messages that the template refuses.
    pub fn question(&self, system: Option<&str>, user: &str) -> Result<String> {
        let messages = system.map(|system| ("system", system)).into_iter().chain([("user", user)]);
        let messages = messages.map(|(role, content)| serde_json::json!({ "role": role, "content": content }));
        self.render(&messages.collect(), &Arguments::default(), true)
    }

    /// The text of `messages`, and which bytes of it are the words of the assistant: those that the
    /// template marks by `{% generation %}`; of a template without marks, what each message of the
    /// role `assistant` adds to the text of the messages before it and the beginning of an answer.
    ///
    /// # Errors
    /// Messages that the template refuses, and a template that gives a text of some messages with
    /// which the text of more of them does not begin.
    pub fn render_answers(&self, messages: &Json, arguments: &Arguments) -> Result<(String, Vec<Range<usize>>)> {
        if self.marks_answers {
            return Ok(split_marks(&self.marked(messages, arguments, false)?));
        }
        let whole = self.render(messages, arguments, false)?;
        let list = messages.as_array().map(Vec::as_slice).unwrap_or_default();
        let mut answers = Vec::new();
        for (index, message) in list.iter().enumerate() {
            if message.get("role").and_then(Json::as_str) != Some("assistant") {
                continue;
            }
            let before = self.render(&Json::from(&list[..index]), arguments, true)?;
            let after = self.render(&Json::from(&list[..=index]), arguments, false)?;
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

    /// Whether the template names the key `name` of a message anywhere.
    pub fn names(&self, name: &str) -> bool {
        let inner = |c: char| c.is_alphanumeric() || c == '_';
        self.prints_whole || self.source.split(|c| !inner(c)).any(|word| word == name)
    }

    fn marked(&self, messages: &Json, arguments: &Arguments, for_answer: bool) -> Result<String> {
        let messages = normalized(messages);
        if self.joins
            && let Some(number) = odd_number(&messages).or_else(|| odd_number(&arguments.tools))
        {
            return Err(Error::data(format!(
                "the messages have the number {}, and the chat template joins values by ~, which would write it otherwise than Python",
                python::number(number)
            ))
            .help("write the number as a text"));
        }
        let template = self.environment.get_template(NAME).map_err(|error| unusable(&error))?;
        let tokens = self.tokens.iter().map(|(role, token)| (role.clone(), Value::from(token.as_str())));
        let mut given = tokens.collect::<BTreeMap<_, _>>();
        let others = [
            ("messages", Value::from(Serde(messages))),
            ("add_generation_prompt", Value::from(for_answer)),
            ("tools", Value::from(Serde(&arguments.tools))),
            ("documents", Value::from(Serde(&arguments.documents))),
        ];
        given.extend(arguments.variables.iter().map(|(name, value)| (name.clone(), Value::from(Serde(value)))));
        given.extend(others.map(|(name, value)| (name.to_owned(), value)));
        template.render(Value::from(given)).map_err(|error| {
            use ErrorKind::{UnknownFilter, UnknownFunction, UnknownMethod, UnknownTest};
            let words = error.detail().map_or_else(|| error.to_string(), str::to_owned);
            let line = error.line().map_or_else(String::new, |line| format!(", line {line}"));
            if words.contains("% operator on unsupported types string") {
                return Error::data(format!("{NAME}{line}: % after a text, Python's formatting, is not supported: {words}"))
                    .help("write {{ \"%s, %s\" | format(a, b) }} instead of {{ \"%s, %s\" % (a, b) }}: transformers gives the same text");
            }
            if matches!(error.kind(), UnknownFilter | UnknownFunction | UnknownMethod | UnknownTest) {
                return Error::data(format!("{NAME}{line}: {words} in Kiln's Jinja"))
                    .help("write the template without it: data.chat_template_path names another one");
            }
            if error.kind() == ErrorKind::UndefinedError || words.contains("unsupported types undefined") {
                return Error::data(format!("{NAME}{line}: it uses what is not there: {words}"))
                    .help("has every message the keys that the template needs? A key with null is none");
            }
            let refused = Error::data(format!("the chat template refuses the messages: {words}"));
            match std::error::Error::source(&error) {
                Some(advice) => refused.help(advice.to_string()),
                None => refused,
            }
        })
    }

    /// Whether the text depends on the time at which it is written, so that it must not be kept.
    pub fn reads_clock(&self) -> bool {
        self.reads_clock
    }
}

/// The first number of `value` that minijinja joins to a text otherwise than Python.
fn odd_number(value: &Json) -> Option<f64> {
    match value {
        Json::Number(number) if number.is_f64() => {
            number.as_f64().filter(|number| python::is_written_otherwise(*number))
        }
        Json::Array(values) => values.iter().find_map(odd_number),
        Json::Object(keys) => keys.values().find_map(odd_number),
        _ => None,
    }
}

/// The messages as `apply_chat_template` gives them to a template: without keys whose value is
/// null, and with what the assistant thought under each of the names that templates read.
fn normalized(messages: &Json) -> Json {
    let message = |message: &Json| {
        let Json::Object(keys) = message else { return message.clone() };
        let mut keys = keys.clone();
        keys.retain(|_, value| !value.is_null());
        let thought = ["reasoning_content", "thinking", "reasoning"].iter().find_map(|key| keys.get(*key)).cloned();
        let Some(thought) = thought else { return Json::Object(keys) };
        let mut aliased = serde_json::Map::from_iter([("thinking".to_owned(), thought.clone())]);
        aliased.extend(keys);
        aliased.insert("reasoning_content".into(), thought);
        Json::Object(aliased)
    };
    messages.as_array().map_or_else(|| messages.clone(), |list| list.iter().map(message).collect())
}

fn unusable(error: &JinjaError) -> Error {
    let line = error.line().map_or_else(String::new, |line| format!(", line {line}"));
    let words = error.detail().map_or_else(|| error.to_string(), str::to_owned);
    Error::data(format!("{NAME}{line}: expected a Jinja template: {words}"))
}

/// `source` with a mark in place of every `{% generation %}` and `{% endgeneration %}`, which are
/// statements of `transformers`, and whether there are any. White space around them goes as it does
/// around statements. What is set within them, or within `{% set x %}` and `{% filter x %}`, is
/// gone after them, as in Jinja2.
fn with_marks(source: &str) -> (String, bool) {
    let (mut marked, mut end, mut marks_answers) = (String::with_capacity(source.len()), 0, false);
    for (range, is_raw) in jinja::code(source) {
        let statement = &source[range.clone()];
        marked.push_str(&source[end..range.start]);
        end = range.end;
        // A tag that is added beside this one trims what this one would.
        let open = ["{%-", "{%+"].into_iter().find(|open| statement.starts_with(open)).unwrap_or("{%");
        let close = ["-%}", "+%}"].into_iter().find(|close| statement.ends_with(close)).unwrap_or("%}");
        let inner = statement[2..statement.len() - 2].trim_matches(['-', '+']).trim();
        let words = if statement.starts_with("{%") { jinja::tokens(inner) } else { Vec::new() };
        match words.as_slice() {
            [Token::Word("generation")] => {
                marked.push_str(&format!("{open} if true %}}{{{{ '{}' }}}}{{% with {close}", MARKS[0]));
                marks_answers = true;
            }
            [Token::Word("endgeneration")] => {
                marked.push_str(&format!("{open} endwith %}}{{{{ '{}' }}}}{{% endif {close}", MARKS[1]));
            }
            [Token::Word("set"), rest @ ..] if !rest.contains(&Token::Sign('=')) => {
                marked.push_str(&format!("{statement}{{% with {close}"));
            }
            [Token::Word("filter"), ..] => marked.push_str(&format!("{statement}{{% with {close}")),
            [Token::Word("endset" | "endfilter")] => marked.push_str(&format!("{open} endwith %}}{statement}")),
            _ => {
                marked.push_str(statement);
                // Jinja2 keeps the line break behind the beginning of raw text, and minijinja takes
                // one away.
                if is_raw && !statement.ends_with("-%}") && source[end..].starts_with('\n') {
                    marked.push('\n');
                }
            }
        }
    }
    marked.push_str(&source[end..]);
    (marked, marks_answers)
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

/// The local time `now` by the format of Python's `datetime.now().strftime`, which is that of the C
/// library in the locale `C`, but for the microseconds and for the time zone, which
/// `datetime.now()` does not know.
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
    // SAFETY: both pointers are valid for the call; the second is to memory for a `tm`, in which
    // zeros are a valid one.
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
    // Python's own directives. A byte at the end tells a text that is empty from one that has no
    // room.
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
    // SAFETY: `text` has as many bytes as are told, the format ends with a null byte, and `parts`
    // is a whole time.
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
    use crate::messages::messages;

    #[derive(Deserialize)]
    struct Fixture {
        tokens: HashMap<String, String>,
        templates: HashMap<String, String>,
        rows: Vec<Json>,
        cases: Vec<Case>,
        /// The message that expressions see, and the one with numbers that Python writes with
        /// exponents.
        values: Json,
        odd: Json,
        /// A template, its text, and the kind of the error where it has none.
        expressions: Vec<(String, Option<String>, String)>,
        /// Seconds since 1970, microseconds, a format, and the text.
        dates: Vec<(i32, u32, String, String)>,
    }

    #[derive(Deserialize)]
    struct Case {
        template: String,
        row: usize,
        begin: bool,
        text: Option<String>,
        error: Option<String>,
        answers: Option<Vec<(usize, usize)>>,
    }

    /// The messages of a row of the fixture, and its arguments.
    fn arguments(row: &Json) -> (&Json, Arguments) {
        let variables = row["chat_template_kwargs"].as_object().cloned().unwrap_or_default();
        (&row["messages"], Arguments { tools: row["tools"].clone(), documents: row["documents"].clone(), variables })
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
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/chat_templates.json");
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn texts_and_masks_are_those_of_transformers() {
        let fixture = fixture();
        assert!(fixture.templates.len() >= 20 && fixture.cases.len() >= 520);
        let tokenizer = tokenizer(&fixture.tokens, None);
        let mut masks = 0;
        for case in fixture.cases {
            let template = ChatTemplate::new(&fixture.templates[&case.template], &tokenizer).unwrap();
            let (messages, arguments) = arguments(&fixture.rows[case.row]);
            let name = format!("{}: {}", case.template, fixture.rows[case.row]);
            let rendered = template.render(messages, &arguments, case.begin);
            match (&case.text, &case.error) {
                (Some(text), _) => assert_eq!(&rendered.unwrap(), text, "{name}"),
                (None, error) => {
                    let (said, error) = (rendered.expect_err(&name).to_string(), error.clone().unwrap());
                    // The fact alone is compared of Python's own errors.
                    let words = error.strip_prefix("TemplateError: ").unwrap_or_default();
                    assert!(said.contains(words), "{name}: {said} does not say {error}");
                }
            }
            let Some(answers) = case.answers else { continue };
            masks += usize::from(!answers.is_empty());
            let (text, spans) = template.render_answers(messages, &arguments).unwrap();
            assert_eq!(Some(&text), case.text.as_ref());
            let expected = |place| answers.iter().any(|(start, end)| (*start..*end).contains(&place));
            for (place, (byte, c)) in text.char_indices().enumerate() {
                let counts = spans.iter().any(|span| span.contains(&byte));
                assert_eq!(counts, expected(place), "{name}: {c:?} at {place} of {text:?}");
            }
        }
        assert!(masks >= 80, "{masks}");
    }

    /// Each expression has the text of transformers, or is refused.
    #[test]
    fn expressions_have_the_texts_of_transformers_or_none() {
        let fixture = fixture();
        let tokenizer = tokenizer(&fixture.tokens, None);
        let (mut same, mut refused) = (0, Vec::new());
        for (expression, text, error) in &fixture.expressions {
            let message =
                if expression.contains("big") || expression.contains("small") { &fixture.odd } else { &fixture.values };
            let messages = Json::from(vec![message.clone()]);
            let rendered = ChatTemplate::new(expression, &tokenizer)
                .and_then(|template| template.render(&messages, &Arguments::default(), false));
            match (rendered, text) {
                (Ok(rendered), Some(text)) => {
                    assert_eq!(&rendered, text, "{expression}");
                    same += 1;
                }
                (Ok(rendered), None) => {
                    assert!(
                        ACCEPTED.contains(&expression.as_str()),
                        "{expression}: {error}, and Kiln gives {rendered:?}"
                    );
                }
                (Err(error), Some(_)) => refused.push(format!("{expression}: {error}")),
                (Err(_), None) => {}
            }
        }
        assert!(same >= 590 && refused.len() <= 60, "{same} {refused:#?}");
    }

    /// Expressions that Python refuses and Kiln renders: no template that transformers renders has
    /// them.
    const ACCEPTED: [&str; 9] = [
        "{{ 1 < 'a' }}",
        "{{ none < 1 }}",
        "{{ messages[0].nope[:1] }}",
        "{{ messages[0].d|dictsort(by='value') }}",
        "{{ [3, 'a']|sort }}",
        "{{ [none, 1]|sort }}",
        "{{ 1. }}",
        "{% for x in none %}a{% else %}none{% endfor %}",
        "{{ 1 is odd is true }}",
    ];

    #[test]
    fn what_would_be_another_text_than_in_python_is_refused_by_name() {
        let told = messages!();
        let tokenizer = tokenizer(&HashMap::new(), None);
        let messages = serde_json::json!([{ "role": "user", "n": 1e16, "schema": { "items": 3 } }]);
        for template in [
            "{{ messages[0].role }}\n{{ messages[0].schema.items }}",
            "{{ messages[0].role ~ 'x' }}",
            "{{ messages[0].role | safe }}",
            "\n{{ messages[0].role | wordwrap(3) }}",
            "{{ messages[0].content + 'x' }}",
            "{{ messages | map(attribute='role') }}",
        ] {
            let rendered = ChatTemplate::new(template, &tokenizer)
                .and_then(|template| template.render(&messages, &Arguments::default(), false));
            let error = rendered.expect_err(template);
            assert_eq!(error.exit_code(), 3, "{template}: {error}");
            told.add(template, error);
        }
    }

    #[test]
    fn a_template_says_whether_it_depends_on_the_clock() {
        let tokenizer = tokenizer(&HashMap::new(), None);
        for (template, depends) in [
            ("{{ strftime_now('%Y') }}", true),
            ("{% set now = strftime_now %}", true),
            ("{# strftime_now #}{{ 'strftime_now' }}strftime_now", false),
        ] {
            assert_eq!(ChatTemplate::new(template, &tokenizer).unwrap().reads_clock(), depends, "{template}");
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
            let rendered = ChatTemplate::new(template, &tokenizer)
                .unwrap()
                .render(&messages, &Arguments::default(), false)
                .unwrap();
            assert_eq!(rendered, text, "{template}");
        }
    }

    /// The texts of the filter are those of transformers 5.23.
    #[test]
    fn formatting_by_an_operator_names_the_filter_that_does_the_same() {
        let told = messages!();
        let messages = serde_json::json!([{ "role": "user", "content": "a", "n": 7 }]);
        let tokenizer = tokenizer(&HashMap::new(), None);
        let render = |template: &str| {
            ChatTemplate::new(template, &tokenizer).unwrap().render(&messages, &Arguments::default(), false)
        };
        for template in [
            "x\n{{ '%s' % messages[0].role }}",
            "x\n{{ '%s: %d' % (messages[0].role, messages[0].n) }}",
            "{{ messages[0].turn % 2 }}",
        ] {
            let error = render(template).expect_err(template);
            assert_eq!(error.exit_code(), 3, "{template}: {error}");
            told.add(template, error);
        }
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
            let (text, spans) = template.render_answers(messages, &Arguments::default())?;
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
        messages!().refused("the template of Phi 3", answers("Phi 3", &messages));
    }

    #[test]
    fn the_template_is_that_of_the_files() {
        let tokens = HashMap::from([("bos_token".to_owned(), "<s>".to_owned())]);
        let rendered = |template: Json| {
            let template = ChatTemplate::of(&tokenizer(&tokens, Some(&template)))?;
            template
                .map(|template| template.render(&serde_json::json!([{"role": "user"}]), &Arguments::default(), false))
                .transpose()
        };
        let text = "{{ bos_token }}{{ messages[0].role }}";
        assert_eq!(rendered(text.into()).unwrap().unwrap(), "<s>user");
        let named = serde_json::json!([{"name": "tool_use", "template": "x"}, {"name": "default", "template": text}]);
        let tools = ChatTemplate::for_tools(&tokenizer(&tokens, Some(&named))).unwrap().unwrap();
        assert_eq!(tools.render(&serde_json::json!([{"role": "user"}]), &Arguments::default(), false).unwrap(), "x");
        assert!(ChatTemplate::for_tools(&tokenizer(&tokens, Some(&text.into()))).unwrap().is_none());
        assert_eq!(rendered(named).unwrap().unwrap(), "<s>user");
        assert_eq!(rendered(Json::Null).unwrap(), None);
        let told = messages!();
        for template in [Json::from(3), "{% for x in %}".into()] {
            told.refused(&template, rendered(template.clone()));
        }
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
