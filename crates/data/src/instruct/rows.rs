//! Rows of conversations as other programs write them: the messages, in OpenAI's form or
//! ShareGPT's, and the columns beside them that are arguments of `apply_chat_template`.

use kiln_core::error::{Error, Result, expected};
use kiln_core::names::{Answer, Name, NameTable, Unknown};
use serde_json::{Map, Value, json};

/// The columns of a row of conversations or instructions, besides those that the config names.
pub static COLUMNS: NameTable = NameTable {
    file: "columns of chat rows",
    source: "trl 1.16",
    names: &[
        Name::told("messages", "it is learned where data.messages_column names it"),
        Name::told("conversations", "it is learned where data.messages_column names it"),
        Name::told("prompt", "it is learned where data.prompt_column names it"),
        Name::told("completion", "it is learned where data.completion_column names it"),
        Name::told("text", "it is learned where data.text_column names it, without data.messages_column"),
        Name::told("chosen", "Kiln learns no preferences; it is learned where data.messages_column names it"),
        Name::told("rejected", "Kiln learns no preferences"),
        Name::only(
            "label",
            || json!(true),
            "TRL's trainer of judged completions learns to avoid those with another label",
        ),
        Name::honoured("tools", "`tools` of `apply_chat_template`: a list, or its JSON as a text"),
        Name::honoured("documents", "`documents` of `apply_chat_template`"),
        Name::honoured("chat_template_kwargs", "variables of the chat template"),
        Name::honoured("system", "the first message, where the row has no system message, as in axolotl"),
        Name::refused("functions", "OpenAI's former name of tools: write them as tools"),
        Name::inert("parallel_tool_calls", "it belongs to the generation of answers"),
        Name::refused("image", NO_MEDIA),
        Name::refused("images", NO_MEDIA),
        Name::refused("video", NO_MEDIA),
        Name::refused("videos", NO_MEDIA),
        Name::refused("audio", NO_MEDIA),
        Name::refused("audios", NO_MEDIA),
        Name::refused("input_ids", TOKENS),
        Name::refused("labels", TOKENS),
        Name::refused("attention_mask", TOKENS),
        Name::refused("completion_mask", TOKENS),
        Name::refused("assistant_masks", TOKENS),
        Name::refused("position_ids", TOKENS),
        Name::refused("seq_lengths", TOKENS),
    ],
    unknown: Unknown::Told,
};

/// The keys of a message. The chat template gets all of them; a refused one is refused where the
/// template does not name it.
pub static MESSAGE: NameTable = NameTable {
    file: "messages of chat rows",
    source: "openai 3.57",
    names: &[
        Name::honoured("role", "the chat template gets it"),
        Name::honoured("content", "the chat template gets it: a text, or a list of parts of text"),
        Name::honoured("tool_calls", "the chat template gets it"),
        Name::honoured("tool_call_id", "the chat template gets it"),
        Name::honoured("name", "the chat template gets it"),
        Name::honoured("reasoning_content", "the chat template gets it, as `thinking` too"),
        Name::honoured("thinking", "the chat template gets it, as `reasoning_content` too"),
        Name::honoured("reasoning", "the chat template gets it, as `reasoning_content` and `thinking` too"),
        Name::honoured("from", "the role in ShareGPT's form: human, user, gpt, assistant, system or tool"),
        Name::honoured("value", "the content in ShareGPT's form"),
        Name::honoured("weight", "with data.assistant_only_loss the loss leaves out an answer of weight 0"),
        Name::honoured("train", "with data.assistant_only_loss the loss leaves out an answer with `false`"),
        Name::honoured("training", "with data.assistant_only_loss the loss leaves out an answer with `false`"),
        Name::refused("train_detail", "axolotl's parts of a message with and without a loss are not implemented"),
        Name::refused("training_detail", "axolotl's parts of a message with and without a loss are not implemented"),
        Name::refused("function_call", "OpenAI's former name of a tool call: write it as tool_calls"),
        Name::refused("refusal", "write the refusal as content"),
        Name::refused("images", NO_MEDIA),
        Name::refused("audio", NO_MEDIA),
        Name::inert("annotations", "it cites the sources of an answer"),
    ],
    unknown: Unknown::Told,
};

const NO_MEDIA: &str = "Kiln learns from text alone";
const TOKENS: &str = "rows of tokens are data.format = \"tokenized\"";

/// The arguments of `apply_chat_template` besides the messages.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Arguments {
    /// The functions that an answer may call; null where there are none.
    pub tools: Value,
    /// The documents that an answer may cite; null where there are none.
    pub documents: Value,
    /// Further variables of the template.
    pub variables: Map<String, Value>,
}

/// The columns of a row besides its messages.
#[derive(Debug, Default)]
pub struct Beside {
    /// The arguments of the template.
    pub arguments: Arguments,
    /// The system message that precedes the others.
    pub system: Option<String>,
    /// Lines that have to be told about the columns.
    pub told: Vec<String>,
}

impl Beside {
    /// Reads the columns of a row that are not the one with the messages.
    ///
    /// # Errors
    /// A column that Kiln refuses, or an argument of another form.
    pub fn read(mut columns: Map<String, Value>) -> Result<Self> {
        let mut told = Vec::new();
        columns.retain(|name, value| match COLUMNS.answer(name, value) {
            Answer::Taken => true,
            Answer::Told(entry) => {
                told.push(format!("the column {name} is not learned: {}", entry.why));
                false
            }
            // An empty list of pictures is none.
            Answer::Refused(entry) => !entry.is_refused() || value.as_array().is_none_or(|values| !values.is_empty()),
            Answer::Unknown => {
                told.push(format!("the column {name} is not learned"));
                false
            }
        });
        COLUMNS.check(&columns).map_err(|error| {
            Error::data(format!("column {}", error)).help("leave the column out, or the rows that have it")
        })?;
        let mut take = |name: &str| columns.remove(name).unwrap_or_default();
        let mut arguments = Arguments {
            tools: of_objects("column tools", from_text("column tools", take("tools"))?)?,
            documents: of_objects("column documents", from_text("column documents", take("documents"))?)?,
            variables: match from_text("column chat_template_kwargs", take("chat_template_kwargs"))? {
                Value::Null => Map::new(),
                Value::Object(variables) => variables,
                other => return Err(expected("column chat_template_kwargs", "an object", &other)),
            },
        };
        let system = match take("system") {
            Value::Null => None,
            Value::String(system) if system.is_empty() => {
                told.push("the column system is empty in a row, which has no system message then".into());
                None
            }
            Value::String(system) => Some(system),
            other => return Err(expected("column system", "a text", &other)),
        };
        for (name, place) in [("tools", &mut arguments.tools), ("documents", &mut arguments.documents)] {
            if let Some(value) = arguments.variables.shift_remove(name) {
                *place = of_objects(&format!("chat_template_kwargs.{name}"), value)?;
            }
        }
        if let Some(name) = PARAMETERS.iter().find(|name| arguments.variables.contains_key(**name)) {
            return Err(Error::data(format!("chat_template_kwargs.{name}: expected a variable of the chat template"))
                .help(format!("{name} is a parameter of apply_chat_template that Kiln sets itself: leave it out")));
        }
        Ok(Self { arguments, system, told })
    }

    /// Whether the row has anything that a chat template would write.
    pub fn is_for_a_template(&self) -> bool {
        self.system.is_some() || self.arguments != Arguments::default()
    }
}

/// The parameters of `apply_chat_template` that are no variables of a template.
const PARAMETERS: [&str; 14] = [
    "messages",
    "conversation",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "tokenize",
    "sanitize_control_tokens",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs",
];

/// A value, or what its text is as JSON: CSV has no lists, and TRL reads `tools` from a text too.
fn from_text(place: &str, value: Value) -> Result<Value> {
    match value {
        Value::String(text) if text.is_empty() => Ok(Value::Null),
        Value::String(text) => serde_json::from_str(&text).map_err(|_| expected(place, "JSON", &Value::String(text))),
        value => Ok(value),
    }
}

fn of_objects(place: &str, value: Value) -> Result<Value> {
    match &value {
        Value::Null => Ok(value),
        Value::Array(values) if values.iter().all(Value::is_object) => Ok(value),
        _ => Err(expected(place, "a list of objects", &value)),
    }
}

/// A message, ready for a template.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Its keys but those whose value is null.
    pub keys: Map<String, Value>,
    /// Whether it counts in the loss, where it says so itself.
    pub counts: Option<bool>,
}

impl Message {
    /// Whether the assistant wrote it.
    pub fn is_answer(&self) -> bool {
        self.keys["role"] == "assistant"
    }
}

/// The messages of `value`, and what has to be told of their keys; `is_named` says whether the chat
/// template names a key.
///
/// # Errors
/// Anything but a list of messages that each have a role and a content or tool calls, with the
/// number of the message.
pub fn messages(value: &Value, is_named: impl Fn(&str) -> bool) -> Result<(Vec<Message>, Vec<String>)> {
    let list = match value {
        Value::Array(list) if !list.is_empty() => list,
        Value::String(_) => {
            return Err(
                expected("messages", "a list of messages", value).help("write the list itself, not its JSON as a text")
            );
        }
        _ => return Err(expected("messages", "a list of messages, each with role and content", value)),
    };
    let mut told = Vec::new();
    let read = list.iter().enumerate().map(|(index, value)| {
        let at = |error: Error| error.at(format_args!("message {}", index + 1));
        let message = message(value).map_err(at)?;
        let mut others = message.keys.clone();
        others.retain(|key, _| !is_named(key));
        let unread = others.keys().filter(|key| MESSAGE.get(key).is_none() || LEARNED.contains(&key.as_str()));
        told.extend(
            unread.map(|key| format!("the key {key} of messages is not learned: the chat template does not name it")),
        );
        others.retain(|key, _| MESSAGE.get(key).is_some());
        MESSAGE.check(&others).map_err(|error| at(Error::data(error)))?;
        Ok(message)
    });
    let read = read.collect::<Result<Vec<_>>>()?;
    Ok((read, told))
}

fn message(value: &Value) -> Result<Message> {
    let Value::Object(object) = value else {
        return Err(expected("it", "an object with role and content", value));
    };
    let mut keys = object.clone();
    keys.retain(|_, value| !value.is_null());
    let shown = |keys: &Map<String, Value>| {
        let names = keys.keys().map(|key| format!("{key:?}")).collect::<Vec<_>>();
        if names.is_empty() { "no keys".to_owned() } else { format!("the keys {}", names.join(", ")) }
    };
    if keys.contains_key("from") || keys.contains_key("value") {
        share_gpt(&mut keys)?;
    }
    match keys.get("role") {
        Some(Value::String(role)) if !role.is_empty() => {}
        None => {
            return Err(Error::data(format!("expected a role, got {}", shown(&keys)))
                .help("a message is {\"role\": \"user\", \"content\": \"..\"}"));
        }
        Some(other) => return Err(expected("role", "a text", other)),
    }
    match keys.get("content") {
        Some(Value::String(_) | Value::Object(_)) => {}
        Some(Value::Array(parts)) => parts.iter().enumerate().try_for_each(|(index, part)| {
            let place = format!("part {} of content", index + 1);
            match part.get("type").and_then(Value::as_str) {
                _ if !part.is_object() && !part.is_string() => Err(expected(&place, "a part with type and text", part)),
                Some(kind) if MEDIA.contains(&kind) => {
                    Err(Error::data(format!("{place}: expected text, got {kind:?}: {NO_MEDIA}"))
                        .help("leave the row out"))
                }
                _ => Ok(()),
            }
        })?,
        Some(other) => return Err(expected("content", "a text or a list of parts", other)),
        None if keys.contains_key("tool_calls") => {}
        None => {
            return Err(Error::data(format!("expected a content or tool_calls, got {}", shown(&keys))).help(
                "a message is {\"role\": \"user\", \"content\": \"..\"}; one that says nothing has \"content\": \"\"",
            ));
        }
    }
    let counts = counts(&keys)?;
    Ok(Message { keys, counts })
}

/// Keys whose texts are lost where a template does not name them.
const LEARNED: [&str; 6] = ["tool_calls", "tool_call_id", "name", "reasoning_content", "thinking", "reasoning"];

/// Kinds of parts of a content that are no text.
const MEDIA: [&str; 8] =
    ["image", "image_url", "input_image", "video", "video_url", "audio", "audio_url", "input_audio"];

/// Turns `from` and `value` into role and content, with the roles of axolotl.
fn share_gpt(keys: &mut Map<String, Value>) -> Result<()> {
    for (of, to) in [("from", "role"), ("value", "content")] {
        if keys.contains_key(of) && keys.contains_key(to) {
            return Err(Error::data(format!("{of} and {to} are two names of one thing, and the message has both"))
                .help(format!("leave {of} out")));
        }
    }
    let renamed = std::mem::take(keys).into_iter().map(|(key, value)| match key.as_str() {
        "value" => Ok(("content".to_owned(), value)),
        "from" => {
            let role = match value.as_str() {
                Some("human" | "user") => "user",
                Some("gpt" | "assistant") => "assistant",
                Some("system") => "system",
                Some("tool") => "tool",
                _ => {
                    return Err(expected("from", "human, user, gpt, assistant, system or tool", &value)
                        .help("write such messages with role and content, in the roles that the chat template knows"));
                }
            };
            Ok(("role".to_owned(), Value::from(role)))
        }
        _ => Ok((key, value)),
    });
    *keys = renamed.collect::<Result<_>>()?;
    Ok(())
}

/// Whether a message says that it counts in the loss: OpenAI's and axolotl's `weight`, and
/// axolotl's flags.
fn counts(keys: &Map<String, Value>) -> Result<Option<bool>> {
    let mut counts = None;
    for key in ["weight", "train", "training"] {
        let Some(value) = keys.get(key) else { continue };
        let this = match value {
            Value::Bool(value) => *value,
            Value::Number(number) if number.as_f64() == Some(0.0) => false,
            Value::Number(number) if number.as_f64() == Some(1.0) => true,
            other => return Err(expected(key, "0 or 1, false or true", other)),
        };
        if counts.is_some_and(|counts| counts != this) {
            return Err(Error::data(format!("{key} = {value} contradicts the flag before it")));
        }
        counts = Some(this);
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::messages::messages;

    fn read(value: &Value) -> Result<Vec<Message>> {
        messages(value, |_| true).map(|(messages, _)| messages)
    }

    #[test]
    fn a_message_has_a_role_and_says_something() {
        let told = messages!();
        let ok = json!([{"role": "user", "content": ""}, {"role": "assistant", "content": null, "tool_calls": [], "x": null}]);
        let keys = read(&ok).unwrap().into_iter().map(|message| Value::Object(message.keys)).collect::<Vec<_>>();
        assert_eq!(keys, [json!({"role": "user", "content": ""}), json!({"role": "assistant", "tool_calls": []})]);
        for value in [
            json!([]),
            json!("[]"),
            json!([{"role": "user", "content": "a"}, 3]),
            json!([{"content": "a"}]),
            json!([{"role": null, "content": null}]),
            json!([{"role": 3, "content": "a"}]),
            json!([{"role": "user"}]),
            json!([{"role": "user", "content": 3}]),
            json!([{"role": "user", "content": [{"type": "image"}]}]),
            json!([{"role": "user", "content": "a", "weight": 0.5}]),
        ] {
            told.refused(&value, read(&value));
        }
    }

    #[test]
    fn share_gpt_has_the_roles_of_axolotl() {
        let told = messages!();
        let of = |from: &str| json!([{"from": from, "value": "a"}]);
        for (from, role) in
            [("human", "user"), ("gpt", "assistant"), ("system", "system"), ("tool", "tool"), ("user", "user")]
        {
            let read = read(&of(from)).unwrap();
            assert_eq!(Value::Object(read[0].keys.clone()), json!({"role": role, "content": "a"}));
        }
        for value in [of("observation"), json!([{"from": "human", "role": "user", "content": "a"}])] {
            told.refused(&value, read(&value));
        }
    }

    #[test]
    fn keys_that_a_template_does_not_name_are_told_or_refused() {
        let told = messages!();
        let of = |message: &Value| messages(&json!([message]), |key| ["role", "content"].contains(&key));
        let (_, notes) = of(&json!({"role": "user", "content": "a", "id": 3, "name": "Bo"})).unwrap();
        let line = |key: &str| format!("the key {key} of messages is not learned: the chat template does not name it");
        assert_eq!(notes, [line("id"), line("name")]);
        let call = json!({"role": "assistant", "content": "a", "function_call": {}});
        told.refused(&call, of(&call));
    }

    #[test]
    fn columns_beside_the_messages_are_arguments_or_refused() {
        let told = messages!();
        let read = |columns: Value| Beside::read(columns.as_object().unwrap().clone());
        let tools = json!([{"type": "function"}]);
        for given in [tools.clone(), Value::from(tools.to_string())] {
            let beside =
                read(json!({"tools": given, "chat_template_kwargs": {"a": 1}, "images": [], "id": null})).unwrap();
            assert_eq!(beside.arguments.tools, tools);
            assert_eq!(Value::Object(beside.arguments.variables), json!({"a": 1}));
            assert_eq!(beside.told, ["the column id is not learned"]);
        }
        let empty = read(json!({"system": ""})).unwrap();
        assert_eq!((empty.system, empty.told.len()), (None, 1));
        let inner = read(json!({"tools": null, "chat_template_kwargs": {"documents": [{"text": "a"}]}})).unwrap();
        assert_eq!(inner.arguments.documents, json!([{"text": "a"}]));
        for columns in [
            json!({"images": ["a.png"]}),
            json!({"assistant_masks": [1]}),
            json!({"label": false}),
            json!({"tools": [3]}),
            json!({"tools": "x"}),
            json!({"chat_template_kwargs": {"tokenize": false}}),
        ] {
            told.refused(&columns, read(columns.clone()));
        }
    }
}
