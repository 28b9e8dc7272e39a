//! The files with which a tokenizer is saved beside a model: those that came with it, and those
//! that are written for one that came from no folder.

use std::path::Path;

use kiln_core::error::{Error, Result};
use kiln_core::files::NamedFile;
use kiln_core::model_config::{ModelConfig, ModelType};
use serde_json::{Map, Value};

use super::classes::Class;
use super::ids::{MARK, Tokenizer};
use super::names::{CONFIG, END_OF_TEXT};
use crate::guard::guarded;

impl Tokenizer {
    /// The files with which `transformers` opens this tokenizer in the folder of a model of
    /// `config`.
    ///
    /// - One that came from a folder is saved as it came. Where that is not the model's own folder
    ///   (`model_from`), `tokenizer_config.json` also gets the class, if it names none, and the
    ///   `model_input_names` of the model, if its class has others.
    /// - One that did not (it was learned, or read from a single file) gets its family's class,
    ///   `model_input_names`, its special tokens, and the model's positions as `model_max_length`.
    ///   So does one that came without `tokenizer_config.json`.
    ///
    /// # Errors
    /// A tokenizer that cannot be written.
    pub fn files(&self, config: &ModelConfig, model_from: Option<&Path>) -> Result<Vec<NamedFile>> {
        guarded(|| {
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

    /// `tokenizer_config.json` of a tokenizer from the folder of another model than that of
    /// `model`.
    fn completed(&self, mut config: Map<String, Value>, model: &ModelConfig) -> Result<Map<String, Value>> {
        let described = self.described(model)?;
        if config.get("tokenizer_class").is_none_or(Value::is_null) {
            let own = described.get("tokenizer_class").cloned().unwrap_or_default();
            config.insert("tokenizer_class".into(), self.class.map_or(own, |class| class.name().into()));
        }
        let named = config.get("tokenizer_class").and_then(Value::as_str);
        let has_types = match config.get("model_input_names").and_then(Value::as_array) {
            Some(names) => Some(names.iter().any(|name| name == "token_type_ids")),
            None => named.and_then(Class::of).and_then(Class::has_types),
        };
        if has_types != Some(self.has_types(model)?) {
            config.insert("model_input_names".into(), self.input_names(model)?);
        }
        Ok(config)
    }

    /// `tokenizer_config.json` of a tokenizer that came without.
    fn described(&self, model: &ModelConfig) -> Result<Map<String, Value>> {
        let json = serde_json::to_value(&self.inner).map_err(|error| Error::data(format!("tokenizer: {error}")))?;
        let class = self.fitting_class(&json, model.model_type());
        let class = class.or_else(|| self.class.filter(|class| *class != Class::AsItStands));
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
            let stated = self.role(role);
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
            _ => {}
        }
        Ok(config)
    }

    /// The class that does what this tokenizer (`json` is its `tokenizer.json`) does, in the folder
    /// of a model of `model_type`: a class of a family builds its own pipeline around the
    /// vocabulary. None if only `PreTrainedTokenizerFast`, which keeps all of `tokenizer.json`,
    /// does.
    fn fitting_class(&self, json: &Value, model_type: ModelType) -> Option<Class> {
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
        class.roles().iter().all(|(_, token)| self.token_id(token).is_some()).then_some(class)
    }

    /// Whether the model takes token types that say more than 0: it has several, and pairs of this
    /// tokenizer have two.
    fn has_types(&self, model: &ModelConfig) -> Result<bool> {
        if model.type_vocab_size().is_none_or(|types| types < 2) {
            return Ok(false);
        }
        let pair = self.around_pair(MARK)?;
        Ok(pair.get_type_ids().iter().any(|kind| *kind > 0))
    }

    /// `model_input_names` of a model.
    fn input_names(&self, model: &ModelConfig) -> Result<Value> {
        let names: &[&str] = if self.has_types(model)? {
            &["input_ids", "token_type_ids", "attention_mask"]
        } else {
            &["input_ids", "attention_mask"]
        };
        Ok(names.into())
    }
}
