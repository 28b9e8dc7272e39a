//! The files of a tokenizer as `transformers` knows them: those that came with it, which are saved byte for byte, what they
//! say beside `tokenizer.json`, and those that are written for one that came from no folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kiln_models::{ModelConfig, ModelType};
use serde_json::{Map, Value};
use tokenizers::{AddedToken, NormalizerWrapper, PreTokenizerWrapper, TruncationDirection};

use super::{END_OF_TEXT, Tokenizer};
use crate::base::error::{Error, Result};
use crate::base::files::{read_error, read_regular};

/// A file by its name in the folder, with what is in it.
pub type NamedFile = (String, Arc<[u8]>);

/// `tokenizer_config.json`
pub(super) const CONFIG: &str = "tokenizer_config.json";

/// Every file of a folder that can belong to its tokenizer.
pub(super) const FILES: [&str; 14] = [
    "tokenizer.json",
    CONFIG,
    "special_tokens_map.json",
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
    files: Vec<NamedFile>,
}

impl Origin {
    /// The tokenizer's files in `folder`, without those called `without`: they make another tokenizer than the one chosen.
    pub(super) fn read(folder: &Path, without: &[&str]) -> Result<Self> {
        let files = tokenizer_files(folder)?.into_iter().filter(|(name, _)| !without.contains(&name.as_str()));
        Ok(Self { folder: folder.into(), files: files.collect() })
    }

    /// The same with the text of a `tokenizer.json` that it does not have.
    pub(super) fn with_json(mut self, text: String) -> Self {
        self.files.push(("tokenizer.json".into(), text.into_bytes().into()));
        self
    }

    /// The text of the chat template called `name`; the files of templates go before `tokenizer_config.json`.
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
    fn object(&self, name: &str) -> Result<Map<String, Value>> {
        let Some((_, bytes)) = self.files.iter().find(|(file, _)| file == name) else { return Ok(Map::new()) };
        serde_json::from_slice(bytes).map_err(|error| {
            Error::data(format!("{}: expected a JSON object: {error}", self.folder.join(name).display()))
        })
    }
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

/// Writes `files` into `folder`.
///
/// # Errors
/// The operating system's.
pub fn write_files(folder: &Path, files: &[NamedFile]) -> Result<()> {
    for (name, bytes) in files {
        let path = folder.join(name);
        let above = path.parent().unwrap_or(folder);
        fs::create_dir_all(above)
            .and_then(|()| fs::write(&path, bytes))
            .map_err(|error| Error::io(format!("write {}", path.display()), &error))?;
    }
    Ok(())
}

/// The settings in the files beside `tokenizer.json` on which token ids depend.
#[derive(Debug, Default)]
pub(super) struct Stated {
    /// Tokens that are added to the vocabulary if they are not in it, in order; with their id where one is stated.
    tokens: Vec<(AddedToken, Option<u32>)>,
    /// Tokens by role.
    pub(super) roles: Vec<(&'static str, String)>,
    /// The side that a text which is too long loses.
    pub(super) truncation: Option<TruncationDirection>,
    /// How the tokenizer's class treats case, accents and Chinese characters, if it is BERT's: it ignores what
    /// `tokenizer.json` says of them.
    bert: Option<(bool, Option<bool>, bool)>,
    /// Whether a text begins with a space, if the class is GPT-2's or RoBERTa's.
    prefix_space: Option<bool>,
}

impl Stated {
    /// Reads what stands in the files, as `PreTrainedTokenizerFast` of `transformers` 4.57 does.
    pub(super) fn read(origin: &Origin) -> Result<Self> {
        let config = origin.object(CONFIG)?;
        let bad = |file: &str, what: String| Error::data(format!("{}: {what}", origin.folder.join(file).display()));
        let mut said = Self::default();
        let listed = config.get("added_tokens_decoder").filter(|value| !value.is_null());
        // Since the tokens are listed in tokenizer_config.json, the two older files are not read beside it.
        let older = |name: &str| if listed.is_some() { Ok(Map::new()) } else { origin.object(name) };
        let (map, added) = (older("special_tokens_map.json")?, older("added_tokens.json")?);
        if let Some(listed) = listed {
            let expected = "added_tokens_decoder: expected an object of id = token";
            let listed = listed.as_object().ok_or_else(|| bad(CONFIG, format!("{expected}, got {}", short(listed))))?;
            for (id, value) in listed {
                let id = id.parse().map_err(|_| bad(CONFIG, format!("{expected}, got the id {id:?}")))?;
                let token =
                    token(value, false).map_err(|error| bad(CONFIG, format!("added_tokens_decoder: {error}")))?;
                said.tokens.extend(token.map(|token| (token, Some(id))));
            }
        }
        for (content, id) in &added {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| {
                bad("added_tokens.json", format!("{content:?}: expected the id of a token, got {}", short(id)))
            })?;
            said.tokens.push((AddedToken::from(content.as_str(), false), Some(id)));
        }
        said.tokens.sort_by_key(|(_, id)| *id);
        let mut special = Vec::new();
        let from = |name: &str| match map.get(name) {
            Some(value) => Some(("special_tokens_map.json", value)),
            None => config.get(name).map(|value| (CONFIG, value)),
        };
        for role in ROLES {
            let Some((file, value)) = from(role) else { continue };
            if let Some(token) = token(value, true).map_err(|error| bad(file, format!("{role}: {error}")))? {
                said.roles.push((role, token.content.clone()));
                special.push(token);
            }
        }
        for list in ["additional_special_tokens", "extra_special_tokens"] {
            let Some((file, value)) = from(list) else { continue };
            let values = match value {
                Value::Array(values) => values.iter().collect::<Vec<_>>(),
                Value::Object(values) => values.values().collect(),
                Value::Null => Vec::new(),
                other => return Err(bad(file, format!("{list}: expected a list of tokens, got {}", short(other)))),
            };
            for value in values {
                special.extend(token(value, true).map_err(|error| bad(file, format!("{list}: {error}")))?);
            }
        }
        for (token, _) in &mut said.tokens {
            token.special |= special.iter().any(|special| special.content == token.content);
        }
        special.retain(|special| said.tokens.iter().all(|(token, _)| token.content != special.content));
        said.tokens.extend(special.into_iter().map(|token| (token, None)));
        said.truncation = match config.get("truncation_side") {
            None | Some(Value::Null) => None,
            Some(Value::String(side)) if side == "right" => Some(TruncationDirection::Right),
            Some(Value::String(side)) if side == "left" => Some(TruncationDirection::Left),
            Some(other) => {
                let got = short(other);
                return Err(bad(CONFIG, format!("truncation_side: expected \"left\" or \"right\", got {got}")));
            }
        };
        let flag = |name: &str| match config.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(bad(CONFIG, format!("{name}: expected true or false, got {}", short(other)))),
        };
        let class = match config.is_empty() {
            // Without tokenizer_config.json tokenizer.json alone decides, and what is saved says so.
            true => None,
            false => class(origin)?.as_deref().and_then(Class::of),
        };
        match class {
            Some(Class::Bert | Class::DistilBert) => {
                said.bert = Some((
                    flag("do_lower_case")?.unwrap_or(true),
                    flag("strip_accents")?,
                    flag("tokenize_chinese_chars")?.unwrap_or(true),
                ));
            }
            Some(Class::Gpt2 | Class::Roberta) => {
                said.prefix_space = Some(flag("add_prefix_space")?.unwrap_or(false));
            }
            None => {}
        }
        Ok(said)
    }

    /// Changes `inner` as `transformers` changes what it reads from `tokenizer.json`.
    pub(super) fn apply(&self, inner: &mut tokenizers::Tokenizer) -> Result<()> {
        let failed = |error: tokenizers::Error| Error::data(format!("tokenizer: {error}"));
        if let (Some((lower_case, accents, chinese)), Some(NormalizerWrapper::BertNormalizer(found))) =
            (self.bert, inner.get_normalizer())
        {
            let mut wanted = *found;
            (wanted.lowercase, wanted.strip_accents, wanted.handle_chinese_chars) = (lower_case, accents, chinese);
            inner.with_normalizer(Some(wanted)).map_err(failed)?;
        }
        if let (Some(prefix), Some(PreTokenizerWrapper::ByteLevel(found))) =
            (self.prefix_space, inner.get_pre_tokenizer())
        {
            let wanted = found.add_prefix_space(prefix);
            inner.with_pre_tokenizer(Some(wanted));
        }
        let known = inner.get_added_tokens_decoder();
        for (token, id) in &self.tokens {
            if known.values().any(|known| known.content == token.content) {
                continue;
            }
            inner.add_tokens([token.clone()]).map_err(failed)?;
            let found = inner.token_to_id(&token.content);
            if let (Some(id), Some(found)) = (id, found)
                && *id != found
            {
                return Err(Error::data(format!(
                    "the added token {:?}: expected the id {id} that its file states, but in this vocabulary it has {found}",
                    token.content
                ))
                .help("the files belong to different tokenizers; take them from one folder"));
            }
        }
        Ok(())
    }
}

/// A token as `tokenizer_config.json` writes it: a string, or an object with `content`; none for null.
fn token(value: &Value, special: bool) -> std::result::Result<Option<AddedToken>, String> {
    let object = match value {
        Value::Null => return Ok(None),
        Value::String(content) => return Ok(Some(AddedToken::from(content.as_str(), special))),
        Value::Object(object) => object,
        other => return Err(format!("expected a token, got {}", short(other))),
    };
    let Some(Value::String(content)) = object.get("content") else {
        return Err(format!("expected a token with `content`, got {}", short(value)));
    };
    let flag = |name: &str, default: bool| match object.get(name) {
        None => Ok(default),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(other) => Err(format!("{content:?}: {name}: expected true or false, got {}", short(other))),
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

/// A value for a message.
fn short(value: &Value) -> String {
    let text = value.to_string();
    text.char_indices().nth(60).map_or(text.clone(), |(end, _)| format!("{}...", &text[..end]))
}

/// The classes of `transformers` that Kiln's families have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Gpt2,
    Bert,
    Roberta,
    DistilBert,
}

impl Class {
    const ALL: [Self; 4] = [Self::Gpt2, Self::Bert, Self::Roberta, Self::DistilBert];

    /// The name that both `transformers` 4 and 5 know; 4 takes the class with `Fast` of its own accord.
    fn name(self) -> &'static str {
        match self {
            Self::Gpt2 => "GPT2Tokenizer",
            Self::Bert => "BertTokenizer",
            Self::Roberta => "RobertaTokenizer",
            Self::DistilBert => "DistilBertTokenizer",
        }
    }

    fn of(name: &str) -> Option<Self> {
        let name = name.strip_suffix("Fast").unwrap_or(name);
        match name {
            "ElectraTokenizer" => Some(Self::Bert),
            _ => Self::ALL.into_iter().find(|class| class.name() == name),
        }
    }

    /// None for SentencePiece, where `tokenizer.json` says everything.
    fn of_model(model_type: ModelType) -> Option<Self> {
        match model_type {
            ModelType::Gpt2 | ModelType::GptNeo => Some(Self::Gpt2),
            ModelType::Bert | ModelType::Electra => Some(Self::Bert),
            ModelType::Roberta => Some(Self::Roberta),
            ModelType::DistilBert => Some(Self::DistilBert),
            ModelType::Camembert | ModelType::XlmRoberta | ModelType::Albert => None,
        }
    }

    /// Whether the class gives token types, unless `model_input_names` says otherwise.
    fn has_types(self) -> bool {
        self == Self::Bert
    }

    /// The special tokens that the class has, said or not.
    fn tokens(self) -> &'static [&'static str] {
        match self {
            Self::Gpt2 => &[END_OF_TEXT],
            Self::Bert | Self::DistilBert => &["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
            Self::Roberta => &["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        }
    }
}

/// Whether the class called `name` gives token types, unless `model_input_names` says otherwise; none for one that is not known,
/// as ALBERT's, which does in `transformers` 4 and does not in 5.
fn gives_types(name: &str) -> Option<bool> {
    match name.strip_suffix("Fast").unwrap_or(name) {
        "CamembertTokenizer" | "XLMRobertaTokenizer" => Some(false),
        name => Class::of(name).map(Class::has_types),
    }
}

/// The class that `AutoTokenizer` takes for a folder: `tokenizer_config.json` names it, or the model's `config.json` does.
fn class(origin: &Origin) -> Result<Option<String>> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(String::from);
    if let Some(class) = text(origin.object(CONFIG)?.get("tokenizer_class")) {
        return Ok(Some(class));
    }
    // A config.json that cannot be read is the model's business, not the tokenizer's.
    let Ok(Some((_, bytes))) = read_file(&origin.folder, "config.json") else { return Ok(None) };
    let model: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let by_type = || {
        let found = model.get("model_type").and_then(Value::as_str)?;
        let kind = ModelType::ALL.into_iter().find(|kind| kind.name() == found)?;
        Some(Class::of_model(kind)?.name().to_string())
    };
    Ok(text(model.get("tokenizer_class")).or_else(by_type))
}

impl Tokenizer {
    /// The files with which `transformers` opens this tokenizer in the folder of a model of `config`.
    ///
    /// - One that came from a folder is saved as it came. Where that is not the model's own folder (`model_from`),
    ///   `tokenizer_config.json` also gets the class, if it names none, and the `model_input_names` of the model, if its
    ///   class has others.
    /// - One that did not (it was learned, or read from a single file) gets its family's class, `model_input_names`, its
    ///   special tokens, and the model's positions as `model_max_length`. So does one that came without
    ///   `tokenizer_config.json`.
    ///
    /// # Errors
    /// A tokenizer that cannot be written.
    pub fn files(&self, config: &ModelConfig, model_from: Option<&Path>) -> Result<Vec<NamedFile>> {
        super::guarded(|| {
            let mut files = match &self.origin {
                Some(origin) => origin.files.clone(),
                None => vec![("tokenizer.json".into(), self.to_json()?.into_bytes().into())],
            };
            let is_own = self.origin.as_ref().zip(model_from).is_some_and(|(origin, model)| {
                origin.folder == model
                    || origin
                        .folder
                        .canonicalize()
                        .is_ok_and(|one| model.canonicalize().is_ok_and(|other| one == other))
            });
            let stated = match &self.origin {
                Some(origin) => origin.object(CONFIG)?,
                None => Map::new(),
            };
            let is_there = files.iter().any(|(name, _)| name == CONFIG);
            let described = match (is_there, is_own) {
                (true, true) => return Ok(files),
                (true, false) => self.completed(stated.clone(), config)?,
                (false, _) => self.described(config)?,
            };
            if !is_there || described != stated {
                let text = serde_json::to_string_pretty(&described)
                    .map_err(|error| Error::data(format!("{CONFIG}: {error}")))?;
                files.retain(|(name, _)| name != CONFIG);
                files.push((CONFIG.into(), (text + "\n").into_bytes().into()));
            }
            Ok(files)
        })
    }

    /// `tokenizer_config.json` of a tokenizer from the folder of another model than that of `model`.
    fn completed(&self, mut config: Map<String, Value>, model: &ModelConfig) -> Result<Map<String, Value>> {
        let class = match &self.origin {
            Some(origin) => class(origin)?,
            None => None,
        };
        let described = self.described(model)?;
        if config.get("tokenizer_class").is_none_or(Value::is_null) {
            let own = described.get("tokenizer_class").cloned().unwrap_or_default();
            config.insert("tokenizer_class".into(), class.clone().map_or(own, Value::from));
        }
        let named = config.get("tokenizer_class").and_then(Value::as_str);
        let has_types = match config.get("model_input_names").and_then(Value::as_array) {
            Some(names) => Some(names.iter().any(|name| name == "token_type_ids")),
            None => named.and_then(gives_types),
        };
        if has_types != Some(self.has_types(model)?) {
            config.insert("model_input_names".into(), self.input_names(model)?);
        }
        Ok(config)
    }

    /// `tokenizer_config.json` of a tokenizer that came without.
    fn described(&self, model: &ModelConfig) -> Result<Map<String, Value>> {
        let json = serde_json::to_value(&self.inner).map_err(|error| Error::data(format!("tokenizer: {error}")))?;
        let class = self.class(&json, model.model_type());
        let mut config = Map::new();
        let name = class.map_or("PreTrainedTokenizerFast", Class::name);
        config.insert("tokenizer_class".into(), name.into());
        config.insert("model_max_length".into(), model.max_positions().into());
        config.insert("model_input_names".into(), self.input_names(model)?);
        config.insert("clean_up_tokenization_spaces".into(), false.into());
        let named = [
            ("bos_token", &[END_OF_TEXT, "<s>"][..]),
            ("eos_token", &[END_OF_TEXT, "</s>"]),
            ("unk_token", &["[UNK]", "<unk>", END_OF_TEXT]),
            ("cls_token", &["[CLS]", "<s>"]),
            ("sep_token", &["[SEP]", "</s>"]),
            ("pad_token", &["[PAD]", "<pad>"]),
            ("mask_token", &["[MASK]", "<mask>"]),
        ];
        for (role, tokens) in named {
            let stated = self.roles.iter().find(|(name, _)| *name == role).map(|(_, token)| token.as_str());
            let usual = || tokens.iter().copied().find(|token| self.token_id(token).is_some());
            if let Some(token) = stated.or_else(usual) {
                config.insert(role.into(), token.into());
            }
        }
        let at = |pointer: &str| json.pointer(pointer).cloned().unwrap_or_default();
        match class {
            Some(Class::Bert | Class::DistilBert) => {
                config.insert("do_lower_case".into(), at("/normalizer/lowercase"));
                config.insert("strip_accents".into(), at("/normalizer/strip_accents"));
                config.insert("tokenize_chinese_chars".into(), at("/normalizer/handle_chinese_chars"));
            }
            Some(Class::Gpt2 | Class::Roberta) => {
                config.insert("add_prefix_space".into(), at("/pre_tokenizer/add_prefix_space"));
            }
            None => {}
        }
        Ok(config)
    }

    /// The class that does what this tokenizer (`json` is its `tokenizer.json`) does, in the folder of a model of
    /// `model_type`: a class of a family builds its own pipeline around the vocabulary. None if only
    /// `PreTrainedTokenizerFast`, which keeps all of `tokenizer.json`, does.
    fn class(&self, json: &Value, model_type: ModelType) -> Option<Class> {
        let at = |pointer: &str| json.pointer(pointer).unwrap_or(&Value::Null);
        let kind = |part: &str| at(&format!("/{part}/type")).as_str();
        let off = |pointer: &str| matches!(at(pointer), Value::Null | Value::Bool(false)) || at(pointer) == "";
        let around = self.around().unwrap_or_default();
        let is_between = |first: &str, last: &str| {
            let ids = |token: &str| self.token_id(token).into_iter().collect::<Vec<_>>();
            around == (ids(first), ids(last))
        };
        let class = match (kind("model")?, kind("normalizer"), kind("pre_tokenizer")?) {
            ("WordPiece", Some("BertNormalizer"), "BertPreTokenizer")
                if at("/normalizer/clean_text") == true
                    && at("/model/continuing_subword_prefix") == "##"
                    && at("/model/unk_token") == "[UNK]"
                    && at("/model/max_input_chars_per_word") == 100
                    && is_between("[CLS]", "[SEP]") =>
            {
                if model_type == ModelType::DistilBert {
                    Class::DistilBert
                } else {
                    Class::Bert
                }
            }
            ("BPE", None, "ByteLevel")
                if at("/pre_tokenizer/use_regex") == true
                    && ["dropout", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback"]
                        .iter()
                        .all(|field| off(&format!("/model/{field}")))
                    && off("/model/ignore_merges") =>
            {
                match kind("post_processor") {
                    None | Some("ByteLevel") => Class::Gpt2,
                    Some("TemplateProcessing")
                        if at("/post_processor/special_tokens") == &Value::Object(Map::new()) =>
                    {
                        Class::Gpt2
                    }
                    Some("RobertaProcessing") if is_between("<s>", "</s>") => Class::Roberta,
                    Some(_) => return None,
                }
            }
            _ => return None,
        };
        class.tokens().iter().all(|token| self.token_id(token).is_some()).then_some(class)
    }

    /// Whether the model takes token types that say more than 0: it has several, and pairs of this tokenizer have two.
    fn has_types(&self, model: &ModelConfig) -> Result<bool> {
        if model.type_vocab_size().is_none_or(|types| types < 2) {
            return Ok(false);
        }
        let pair = self.around_pair(super::MARK)?;
        Ok(pair.get_type_ids().iter().any(|kind| *kind > 0))
    }

    /// `model_input_names` of a model.
    fn input_names(&self, model: &ModelConfig) -> Result<Value> {
        let names: &[&str] = match self.has_types(model)? {
            true => &["input_ids", "token_type_ids", "attention_mask"],
            false => &["input_ids", "attention_mask"],
        };
        Ok(names.into())
    }
}
