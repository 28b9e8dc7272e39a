//! The files of a tokenizer as `transformers` knows them: those that came with it, which are saved
//! byte for byte, and what they say beside `tokenizer.json`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use kiln_core::error::{Error, Result};
use kiln_core::files::{NamedFile, read_error, read_regular};
use kiln_core::words::{json_words, shortened};
use serde_json::{Map, Value};
use tokenizers::{AddedToken, TruncationDirection};

use super::classes::{Arguments, Class, Named, named};
use super::names::{CONFIG, CONFIG_NAMES, JSON_NAMES, SPECIAL, SPECIAL_NAMES};

/// Every file of a folder that can belong to its tokenizer.
pub const FILES: [&str; 14] = [
    "tokenizer.json",
    CONFIG,
    SPECIAL,
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
    "spiece.model",
    "spm.model",
    "tokenizer.model",
];

/// The folder of further chat templates, `NAME.jinja`.
const CHAT_TEMPLATES: &str = "additional_chat_templates";

/// The tokens with a role, by `transformers`' names.
pub(super) const ROLES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Where a tokenizer came from.
#[derive(Debug, Clone)]
pub(super) struct Origin {
    /// The folder.
    pub(super) folder: PathBuf,
    /// Its files.
    pub(super) files: Vec<NamedFile>,
}

impl Origin {
    /// The tokenizer's files in `folder`, without those called `without`: they make another
    /// tokenizer than the one chosen.
    pub(super) fn read(folder: &Path, without: &[&str]) -> Result<Self> {
        let files = tokenizer_files(folder)?.into_iter().filter(|(name, _)| !without.contains(&name.as_str()));
        Ok(Self { folder: folder.into(), files: files.collect() })
    }

    /// Adds the text of a `tokenizer.json`, which the folder does not have.
    pub(super) fn with_json(mut self, text: String) -> Self {
        self.files.push(("tokenizer.json".into(), text.into_bytes().into()));
        self
    }

    /// The text of the chat template called `name`; the files of templates go before
    /// `tokenizer_config.json`.
    pub(super) fn chat_template(&self, name: &str) -> Result<Option<String>> {
        let is_default = name == "default";
        let is_template = |file: &str| file == "chat_template.jinja" || file.starts_with(CHAT_TEMPLATES);
        if self.files.iter().any(|(file, _)| is_template(file) && (!is_default || file == "chat_template.jinja")) {
            let wanted =
                if is_default { "chat_template.jinja".to_owned() } else { format!("{CHAT_TEMPLATES}/{name}.jinja") };
            let Some((file, bytes)) = self.files.iter().find(|(file, _)| *file == wanted) else { return Ok(None) };
            let text = String::from_utf8(bytes.to_vec())
                .map_err(|error| Error::data(format!("{}: {error}", self.folder.join(file).display())))?;
            return Ok(Some(text));
        }
        let bad = || {
            let place = self.folder.join(CONFIG);
            Error::data(format!("{}: chat_template: expected a text, or a list of name and template", place.display()))
        };
        match self.object(CONFIG)?.get("chat_template") {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(template)) => Ok(is_default.then(|| template.clone())),
            Some(Value::Array(named)) => {
                let entry = named.iter().find(|entry| entry.get("name").is_some_and(|other| other == name));
                let Some(entry) = entry else { return Ok(None) };
                entry.get("template").and_then(Value::as_str).map(|text| Some(text.to_owned())).ok_or_else(bad)
            }
            Some(_) => Err(bad()),
        }
    }

    /// One of the files as a JSON object; an empty one if it is not there.
    pub(super) fn object(&self, name: &str) -> Result<Map<String, Value>> {
        let Some((_, bytes)) = self.files.iter().find(|(file, _)| file == name) else { return Ok(Map::new()) };
        object(&self.folder.join(name), bytes)
    }
}

/// The `tokenizer_config.json` of `folder`; an empty object if it is not there.
///
/// # Errors
/// A file that cannot be read or is no JSON object.
pub fn tokenizer_config(folder: &Path) -> Result<Map<String, Value>> {
    read_file(folder, CONFIG)?.map_or_else(|| Ok(Map::new()), |(name, bytes)| object(&folder.join(name), &bytes))
}

/// The JSON object in the `bytes` of the file at `path`.
fn object(path: &Path, bytes: &[u8]) -> Result<Map<String, Value>> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::data(format!("{}: expected a JSON object: {}", path.display(), json_words(&error))))
}

/// The files in `folder` that belong to its tokenizer, of whatever kind that is.
///
/// # Errors
/// A file that cannot be read.
pub fn tokenizer_files(folder: &Path) -> Result<Vec<NamedFile>> {
    let mut names = FILES.map(String::from).to_vec();
    names.extend(chat_templates(folder));
    let there = names.into_iter().filter_map(|name| read_file(folder, &name).transpose());
    there.collect()
}

/// The chat templates in a folder of their own in `folder`, by their names from there.
pub fn chat_templates(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder.join(CHAT_TEMPLATES)).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names = names.filter(|name| name.ends_with(".jinja")).collect::<Vec<_>>();
    names.sort();
    names.iter().map(|name| format!("{CHAT_TEMPLATES}/{name}")).collect()
}

/// Whether `name` is that of a file of [`chat_templates`].
pub fn is_chat_template(name: &str) -> bool {
    let rest = name.strip_prefix(CHAT_TEMPLATES).and_then(|rest| rest.strip_prefix('/'));
    rest.is_some_and(|rest| rest.ends_with(".jinja") && !rest.contains('/'))
}

/// The file `name` of `folder`; none if it is not there.
///
/// # Errors
/// A file that cannot be read.
pub fn read_file(folder: &Path, name: &str) -> Result<Option<NamedFile>> {
    let path = folder.join(name);
    if !path.is_file() {
        return Ok(None);
    }
    let bytes = read_regular(&path).map_err(|error| read_error(&path, &error))?;
    Ok(Some((name.into(), bytes.into())))
}

/// A special token of a role.
#[derive(Debug, Clone, PartialEq)]
struct Role {
    name: String,
    token: AddedToken,
}

/// The settings in the files of a tokenizer on which token ids depend, as `AutoTokenizer` of
/// `transformers` 5.24 takes them together.
#[derive(Debug, Default)]
pub(super) struct Stated {
    /// `tokenizer_config.json`, with `special_tokens_map.json` over it where that counts.
    pub(super) config: Map<String, Value>,
    /// The class that the files name.
    pub(super) named: Option<Named>,
    /// The class by which they are read.
    pub(super) class: Class,
    /// Tokens that the files list with their ids.
    listed: BTreeMap<u32, AddedToken>,
    /// Ids of the listed tokens that come from `tokenizer.json`: the library gives new ids where
    /// its vocabulary has others.
    of_json: HashSet<u32>,
    /// Special tokens by role.
    roles: Vec<Role>,
    /// Special tokens without a role; none where the files state none, and the class may have its
    /// own.
    pub(super) further: Option<Vec<AddedToken>>,
    /// The side that a text which is too long loses.
    pub(super) truncation: TruncationDirection,
    /// Settings that Kiln does not follow, one line each.
    pub(super) told: Vec<String>,
}

impl Stated {
    /// Reads what stands in the files; `json` is `tokenizer.json`, if that is read, and `usual` the
    /// class where the files name none.
    pub(super) fn read(origin: &Origin, json: Option<&Value>, usual: Class) -> Result<Self> {
        let bad = |file: &str, what: String| Error::data(format!("{}: {what}", origin.folder.join(file).display()));
        let mut config = origin.object(CONFIG)?;
        let told = CONFIG_NAMES.check(&without_tokens(&config)).map_err(|error| bad(CONFIG, error))?;
        let told = told.into_iter().map(|told| format!("{CONFIG}: {told}")).collect();
        let named = named(&origin.folder, &config)?;
        let mut said = Self { named, class: named.map_or(usual, |named| named.class), told, ..Self::default() };
        if is_empty(config.get("extra_special_tokens"))
            && let Some(further) = config.remove("additional_special_tokens")
        {
            config.insert("extra_special_tokens".into(), further);
        }
        // Of the file that a value stands in, for messages.
        let mut file_of = HashMap::new();
        match config.get("added_tokens_decoder").filter(|value| !value.is_null()) {
            // Since the tokens are listed in tokenizer_config.json, neither the two older files nor
            // the tokens of tokenizer.json are read beside it.
            Some(listed) => {
                let expected = "added_tokens_decoder: expected an object of id = token";
                let listed =
                    listed.as_object().ok_or_else(|| bad(CONFIG, format!("{expected}, got {}", shortened(listed))))?;
                for (id, value) in listed {
                    let id = id.parse().map_err(|_| bad(CONFIG, format!("{expected}, got the id {id:?}")))?;
                    let token =
                        token(value, false).map_err(|error| bad(CONFIG, format!("added_tokens_decoder: {error}")))?;
                    said.listed.extend(token.map(|token| (id, token)));
                }
            }
            None => {
                let map = origin.object(SPECIAL)?;
                let told = SPECIAL_NAMES.check(&without_tokens(&map)).map_err(|error| bad(SPECIAL, error))?;
                said.told.extend(told.into_iter().map(|told| format!("{SPECIAL}: {told}")));
                for (name, value) in map {
                    let value = match (config.get(&name), value) {
                        (Some(Value::Array(before)), Value::Array(after)) if name == "extra_special_tokens" => {
                            let more = after.into_iter().filter(|token| !before.contains(token));
                            before.iter().cloned().chain(more.collect::<Vec<_>>()).collect()
                        }
                        (_, value) => value,
                    };
                    config.insert(name.clone(), value);
                    file_of.insert(name, SPECIAL);
                }
            }
        }
        said.config = config;
        let file_of = |name: &str| file_of.get(name).copied().unwrap_or(CONFIG);
        said.further = said.read_further().map_err(|(name, error)| bad(file_of(name), error))?;
        if said.config.get("added_tokens_decoder").is_none_or(Value::is_null) {
            let added = origin.object("added_tokens.json")?;
            let is_special = |content: &str| {
                let role = |role: &&str| said.config.get(*role).is_some_and(|value| text_of(value) == Some(content));
                ROLES.iter().any(role) || said.further.iter().flatten().any(|further| further.content == content)
            };
            for (content, id) in &added {
                let id = id.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| {
                    bad("added_tokens.json", format!("{content:?}: expected the id of a token, got {}", shortened(id)))
                })?;
                let token = AddedToken::from(content.as_str(), is_special(content));
                if let Some(other) = said.listed.insert(id, token) {
                    let what = format!("the tokens {:?} and {content:?} have the id {id}", other.content);
                    return Err(bad("added_tokens.json", what));
                }
            }
            for value in json.and_then(|json| json.get("added_tokens")).and_then(Value::as_array).into_iter().flatten()
            {
                let id = value.get("id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
                let token =
                    token(value, false).map_err(|error| bad("tokenizer.json", format!("added_tokens: {error}")))?;
                said.of_json.extend(id);
                said.listed.extend(id.zip(token));
            }
        }
        said.read_roles(json).map_err(|(name, error)| bad(file_of(&name), error))?;
        let of_json = json.and_then(|json| json.pointer("/truncation/direction")).and_then(Value::as_str);
        said.truncation = match said.config.get("truncation_side") {
            None | Some(Value::Null) if of_json == Some("Left") => TruncationDirection::Left,
            None | Some(Value::Null) => TruncationDirection::Right,
            Some(Value::String(side)) if side == "right" => TruncationDirection::Right,
            Some(Value::String(side)) if side == "left" => TruncationDirection::Left,
            Some(other) => {
                let got = shortened(other);
                return Err(bad(CONFIG, format!("truncation_side: expected \"left\" or \"right\", got {got}")));
            }
        };
        Ok(said)
    }

    /// Notes the names of `json`, a `tokenizer.json`, that Kiln does not know.
    ///
    /// # Errors
    /// A name or value that is refused.
    pub(super) fn check_json(&mut self, json: &Map<String, Value>) -> Result<()> {
        let told = JSON_NAMES.check(json).map_err(Error::data)?;
        self.told.extend(told.into_iter().map(|told| format!("tokenizer.json: {told}")));
        Ok(())
    }

    /// The special tokens without a role that the files list; none where they list none.
    fn read_further(&self) -> std::result::Result<Option<Vec<AddedToken>>, (&'static str, String)> {
        let lists = ["extra_special_tokens", "additional_special_tokens"];
        let Some((name, values)) = lists.into_iter().find_map(|name| Some((name, self.config.get(name)?))) else {
            return Ok(None);
        };
        match values {
            Value::Array(values) => {
                let tokens = values.iter().filter_map(|value| token(value, value.is_string()).transpose());
                let tokens = tokens.collect::<std::result::Result<Vec<_>, _>>();
                tokens.map(Some).map_err(|error| (name, format!("{name}: {error}")))
            }
            // These have names: they are roles.
            Value::Object(_) | Value::Null => Ok(None),
            other => Err((name, format!("{name}: expected a list of tokens, got {}", shortened(other)))),
        }
    }

    /// The tokens by role: those that the files state, else those of the class; then the roles that
    /// only this tokenizer has.
    fn read_roles(&mut self, json: Option<&Value>) -> std::result::Result<(), (String, String)> {
        let class = self.class;
        let listed = |content: &str| self.listed.values().find(|token| token.content == content).cloned();
        let stated = |name: &str, value: &Value| -> std::result::Result<Option<Role>, (String, String)> {
            let found = token(value, true).map_err(|error| (name.to_owned(), format!("{name}: {error}")))?;
            Ok(found.map(|found| {
                let bare = || if value.is_string() { class.token(name, &found.content) } else { found.clone() };
                Role { name: name.to_owned(), token: listed(&found.content).unwrap_or_else(bare) }
            }))
        };
        // The classes that do not say themselves that they have none.
        let takes_padding = matches!(class, Class::AsItStands | Class::Llama | Class::OpenAiGpt);
        let mut roles = Vec::new();
        for name in ROLES {
            if let Some(value) = self.config.get(name) {
                roles.extend(stated(name, value)?);
                continue;
            }
            let own = class.roles().iter().find(|(role, _)| *role == name).map(|(_, token)| *token);
            let padding = || json?.pointer("/padding/pad_token")?.as_str();
            let own = own.or_else(|| if name == "pad_token" && takes_padding { padding() } else { None });
            roles.extend(own.map(|own| Role { name: name.into(), token: class.token(name, own) }));
        }
        let is_token = |value: &Value| value.is_string() || value.get("content").is_some();
        let named = self
            .config
            .iter()
            .filter(|(name, value)| name.ends_with("_token") && !ROLES.contains(&name.as_str()) && is_token(value));
        let lists = ["extra_special_tokens", "model_specific_special_tokens"];
        let of_lists = lists.iter().filter_map(|name| self.config.get(*name)?.as_object()).flatten();
        for (name, value) in named.chain(of_lists) {
            let role = stated(name, value)?;
            roles.retain(|other: &Role| other.name != *name);
            roles.extend(role);
        }
        self.roles = roles;
        Ok(())
    }

    /// The tokens by role.
    pub(super) fn roles(&self) -> Vec<(String, String)> {
        self.roles.iter().map(|role| (role.name.clone(), role.token.content.clone())).collect()
    }

    /// The token of a role.
    pub(super) fn role(&self, name: &str) -> Option<&str> {
        self.roles.iter().find(|role| role.name == name).map(|role| role.token.content.as_str())
    }

    /// `tokenizer_config.json` as the arguments of the class.
    pub(super) fn arguments(&self) -> Arguments<'_> {
        Arguments(&self.config)
    }

    /// Adds the tokens of the files and of the class to `inner`, as the constructor of
    /// `TokenizersBackend` adds them. `own` are the special tokens without a role that the class
    /// has where the files state none. A class that the files do not name has those of its tokens
    /// that the vocabulary has.
    pub(super) fn add_tokens(&mut self, inner: &mut tokenizers::Tokenizer, own: Vec<AddedToken>) -> Result<()> {
        if !self.named.is_some_and(|named| named.is_said) {
            let is_stated = |role: &Role| self.config.contains_key(&role.name);
            self.roles.retain(|role| is_stated(role) || inner.token_to_id(&role.token.content).is_some());
        }
        let known = inner.get_added_tokens_decoder();
        let is_known = |token: &AddedToken| known.values().any(|known| is_same(known, token));
        let mut added = self.listed.values().filter(|token| !is_known(token)).cloned().collect::<Vec<_>>();
        let there = known.values().chain(&added).map(|token| token.content.clone()).collect::<HashSet<_>>();
        let further = self.further.as_ref().unwrap_or(&own);
        // Of two tokens with one content the later one counts.
        let more = self.roles.iter().map(|role| &role.token).chain(further);
        added.extend(more.filter(|token| !there.contains(&token.content)).cloned());
        for token in &mut added {
            token.special |= self.roles.iter().any(|role| role.token.content == token.content);
        }
        inner.add_tokens(added).map_err(|error| Error::data(format!("tokenizer: {error}")))?;
        for (id, token) in self.listed.iter().filter(|(id, _)| !self.of_json.contains(id)) {
            if let Some(found) = inner.token_to_id(&token.content).filter(|found| found != id) {
                let is_decoder = !self.config.get("added_tokens_decoder").is_none_or(Value::is_null);
                let file = if is_decoder { CONFIG } else { "added_tokens.json" };
                return Err(Error::data(format!(
                    "the added token {:?}: expected the id {id} that {file} states, but in this vocabulary it has {found}",
                    token.content
                ))
                .help("the files belong to different tokenizers; take them from one folder"));
            }
        }
        Ok(())
    }
}

/// Whether two tokens are equal in all that the library tells apart.
fn is_same(one: &AddedToken, other: &AddedToken) -> bool {
    let flags = |token: &AddedToken| [token.single_word, token.lstrip, token.rstrip, token.normalized, token.special];
    one.content == other.content && flags(one) == flags(other)
}

/// Whether a list of tokens states none.
fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Array(values)) => values.is_empty(),
        Some(Value::Object(values)) => values.is_empty(),
        Some(_) => false,
    }
}

/// The text of a token as a file writes it.
pub(super) fn text_of(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// `object` without the special tokens that only this tokenizer has: each may have a name of its
/// own that ends with `_token`.
fn without_tokens(object: &Map<String, Value>) -> Map<String, Value> {
    let is_own = |name: &str, value: &Value| name.ends_with("_token") && text_of(value).is_some();
    object
        .iter()
        .filter(|(name, value)| !is_own(name, value))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// A token as `tokenizer_config.json` writes it: a string, or an object with `content`; none for
/// null.
fn token(value: &Value, special: bool) -> std::result::Result<Option<AddedToken>, String> {
    let object = match value {
        Value::Null => return Ok(None),
        Value::String(content) => return Ok(Some(AddedToken::from(content.as_str(), special))),
        Value::Object(object) => object,
        other => return Err(format!("expected a token, got {}", shortened(other))),
    };
    let Some(Value::String(content)) = object.get("content") else {
        return Err(format!("expected a token with `content`, got {}", shortened(value)));
    };
    let flag = |name: &str, default: bool| match object.get(name) {
        None => Ok(default),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(other) => Err(format!("{content:?}: {name}: expected true or false, got {}", shortened(other))),
    };
    let special = flag("special", special)? || special;
    Ok(Some(AddedToken {
        content: content.clone(),
        single_word: flag("single_word", false)?,
        lstrip: flag("lstrip", false)?,
        rstrip: flag("rstrip", false)?,
        normalized: flag("normalized", !special)?,
        special,
    }))
}
