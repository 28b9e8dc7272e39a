//! The classes of tokenizers that `transformers` has: which of them a folder names, as
//! `AutoTokenizer` decides it, and the pipeline that each builds around its vocabulary. Most
//! classes take vocabulary and merges from `tokenizer.json` and nothing else: normaliser,
//! pre-tokeniser and special tokens follow from the class and `tokenizer_config.json`.

use std::path::Path;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use kiln_core::error::{Error, Result};
use kiln_core::files::{read_json, read_regular_text};
use kiln_core::names::{Answer, Name, NameTable, Unknown};
use serde_json::{Map, Value, json};
use tokenizers::AddedToken;

use super::names::{CONFIG, END_OF_TEXT};

const AS_IT_STANDS: &str = "tokenizer.json is read as it stands";
const BERTS: &str =
    "word pieces between `[CLS]` and `[SEP]`; lower case, accents and Chinese characters by tokenizer_config.json";
const BYTES: &str = "byte-level BPE; a space before the text by add_prefix_space";
const UNIGRAM: &str = "unigram pieces, from tokenizer.json or a model of SentencePiece";
const IN_PYTHON: &str = "its rules are Python code of transformers, which no tokenizer.json holds";
const NO_PLAIN_TEXT: &str = "it reads more than text: boxes, entities, tables or tags";
const NOT_OF_A_FOLDER: &str = "it is a part of other classes and names no tokenizer of a folder";

/// Help where `tokenizer.json`, which `transformers` writes, holds all that the class does.
const WRITE_JSON: &str = "in Python, tokenizer = AutoTokenizer.from_pretrained(FOLDER); tokenizer.save_pretrained(FOLDER) writes \
     tokenizer.json; set tokenizer_class = \"PreTrainedTokenizerFast\" in tokenizer_config.json, and tokenizer.json is read as it \
     stands; `kiln help other-files` lists the classes";

/// Help where no file holds what the class does.
const TOKENISE: &str = "tokenise the data in Python and give it with data.format = \"tokenized\", or take a model with another \
     tokenizer; `kiln help other-files` lists the classes";

/// A class whose pipeline could stand in `tokenizer.json`.
const fn other(name: &'static str) -> Name {
    Name::refused(name, "its pipeline is not implemented").with_help(WRITE_JSON)
}

/// The classes, without the ending `Fast`, which changes nothing.
pub static CLASSES: NameTable = NameTable {
    file: "tokenizer_class",
    source: "transformers 5.24",
    names: &[
        Name::honoured("AlbertTokenizer", UNIGRAM),
        Name::refused("AutoTokenizer", NOT_OF_A_FOLDER),
        Name::honoured("BartTokenizer", BYTES),
        Name::honoured("BarthezTokenizer", UNIGRAM),
        Name::refused("BartphoTokenizer", IN_PYTHON),
        Name::refused("BasicTokenizer", NOT_OF_A_FOLDER),
        Name::refused("BertGenerationTokenizer", IN_PYTHON),
        Name::refused("BertJapaneseTokenizer", IN_PYTHON),
        Name::honoured("BertTokenizer", BERTS),
        Name::refused("BertweetTokenizer", IN_PYTHON),
        Name::honoured("BigBirdTokenizer", UNIGRAM),
        Name::refused("BioGptTokenizer", IN_PYTHON),
        Name::refused("BlenderbotSmallTokenizer", IN_PYTHON),
        other("BlenderbotTokenizer"),
        Name::honoured("BloomTokenizer", AS_IT_STANDS),
        Name::refused("ByT5Tokenizer", IN_PYTHON),
        other("CLIPTokenizer"),
        Name::refused("CTRLTokenizer", IN_PYTHON),
        Name::honoured("CamembertTokenizer", UNIGRAM),
        Name::refused("CanineTokenizer", IN_PYTHON),
        Name::refused("CharacterTokenizer", NOT_OF_A_FOLDER),
        Name::refused("ClvpTokenizer", IN_PYTHON),
        Name::honoured("CodeGenTokenizer", BYTES),
        other("CodeLlamaTokenizer"),
        other("CohereTokenizer"),
        other("ConvBertTokenizer"),
        Name::refused("CpmAntTokenizer", IN_PYTHON),
        Name::refused("CpmTokenizer", IN_PYTHON),
        other("DPRContextEncoderTokenizer"),
        other("DPRQuestionEncoderTokenizer"),
        Name::refused("DPRReaderTokenizer", NO_PLAIN_TEXT),
        Name::honoured("DebertaTokenizer", BYTES),
        Name::honoured("DebertaV2Tokenizer", UNIGRAM),
        Name::refused("DiaTokenizer", IN_PYTHON),
        Name::honoured("DistilBertTokenizer", BERTS),
        Name::honoured("ElectraTokenizer", BERTS),
        Name::refused("EsmTokenizer", IN_PYTHON),
        other("EsmcTokenizer"),
        other("FNetTokenizer"),
        Name::refused("FSMTTokenizer", IN_PYTHON),
        Name::refused("FastSpeech2ConformerTokenizer", IN_PYTHON),
        Name::refused("FlaubertTokenizer", IN_PYTHON),
        Name::refused("FunnelTokenizer", "it gives the first token of a text the type 2, which no model here has"),
        Name::honoured("GPT2Tokenizer", BYTES),
        Name::refused("GPTNeoXJapaneseTokenizer", IN_PYTHON),
        Name::honoured("GPTNeoXTokenizer", BYTES),
        Name::refused("GPTSw3Tokenizer", IN_PYTHON),
        other("GemmaTokenizer"),
        Name::honoured(
            "HerbertTokenizer",
            "BPE over letters, the last of a word with `</w>`, between `<s>` and `</s>`",
        ),
        Name::honoured("LEDTokenizer", BYTES),
        other("LasrTokenizer"),
        Name::refused("LayoutLMv2Tokenizer", NO_PLAIN_TEXT),
        Name::refused("LayoutLMv3Tokenizer", NO_PLAIN_TEXT),
        Name::refused("LayoutXLMTokenizer", NO_PLAIN_TEXT),
        Name::honoured("LlamaTokenizer", "BPE over pieces of text with bytes as fallback, from `tokenizer.json`"),
        Name::refused("LukeTokenizer", NO_PLAIN_TEXT),
        Name::honoured("LxmertTokenizer", BERTS),
        Name::refused("M2M100Tokenizer", IN_PYTHON),
        other("MBart50Tokenizer"),
        other("MBartTokenizer"),
        Name::refused("MLukeTokenizer", NO_PLAIN_TEXT),
        other("MPNetTokenizer"),
        Name::refused("MarianTokenizer", IN_PYTHON),
        Name::refused("MarkupLMTokenizer", NO_PLAIN_TEXT),
        Name::refused("MecabTokenizer", NOT_OF_A_FOLDER),
        Name::refused("MgpstrTokenizer", IN_PYTHON),
        Name::honoured("MobileBertTokenizer", BERTS),
        Name::honoured("MvpTokenizer", BYTES),
        Name::refused("MyT5Tokenizer", IN_PYTHON),
        other("NllbTokenizer"),
        other("NougatTokenizer"),
        Name::honoured("OpenAIGPTTokenizer", "BPE over letters in lower case, the last of a word with `</w>`"),
        Name::refused("PLBartTokenizer", IN_PYTHON),
        Name::refused("ParakeetTokenizer", "it is for speech: of equal tokens in a row one is decoded"),
        other("PegasusTokenizer"),
        Name::refused("PerceiverTokenizer", IN_PYTHON),
        Name::refused("PhobertTokenizer", IN_PYTHON),
        Name::refused("Pop2PianoTokenizer", NO_PLAIN_TEXT),
        Name::honoured("PreTrainedTokenizer", AS_IT_STANDS),
        Name::refused("ProphetNetTokenizer", IN_PYTHON),
        Name::honoured("PythonBackend", AS_IT_STANDS),
        Name::honoured("Qwen2Tokenizer", BYTES),
        other("Qwen3_5Tokenizer"),
        Name::refused("RagTokenizer", NO_PLAIN_TEXT),
        other("ReformerTokenizer"),
        other("RemBertTokenizer"),
        Name::refused("RoCBertTokenizer", IN_PYTHON),
        Name::refused("RoFormerTokenizer", "it cuts Chinese words by jieba"),
        Name::honoured("RobertaTokenizer", BYTES),
        other("SeamlessM4TTokenizer"),
        Name::refused("SentencePieceBackend", IN_PYTHON),
        other("Siglip2Tokenizer"),
        Name::refused("SiglipTokenizer", IN_PYTHON),
        Name::refused("Speech2TextTokenizer", IN_PYTHON),
        Name::refused("SpeechT5Tokenizer", IN_PYTHON),
        Name::refused("SplinterTokenizer", "it puts `[QUESTION]` between two texts"),
        Name::honoured("SqueezeBertTokenizer", BERTS),
        Name::honoured("T5Tokenizer", UNIGRAM),
        Name::refused("TapasTokenizer", NO_PLAIN_TEXT),
        other("Tipsv2Tokenizer"),
        Name::honoured("TokenizersBackend", AS_IT_STANDS),
        Name::refused("UdopTokenizer", NO_PLAIN_TEXT),
        other("VideoPrismTokenizer"),
        Name::refused("VitsTokenizer", IN_PYTHON),
        Name::refused("Wav2Vec2CTCTokenizer", IN_PYTHON),
        Name::refused("Wav2Vec2PhonemeCTCTokenizer", IN_PYTHON),
        other("WhisperTokenizer"),
        Name::refused("WordpieceTokenizer", NOT_OF_A_FOLDER),
        other("XGLMTokenizer"),
        Name::honoured("XLMRobertaTokenizer", UNIGRAM),
        Name::refused("XLMTokenizer", IN_PYTHON),
        Name::refused("XLNetTokenizer", "it puts its special tokens after the text"),
    ],
    unknown: Unknown::Refused,
};

/// A class that is implemented.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Class {
    /// `TokenizersBackend`, which reads `tokenizer.json` as it stands.
    #[default]
    AsItStands,
    Bert,
    DistilBert,
    Gpt2,
    CodeGen,
    GptNeoX,
    Llama,
    Qwen2,
    Roberta,
    Deberta,
    Herbert,
    OpenAiGpt,
    Albert,
    Barthez,
    BigBird,
    Camembert,
    DebertaV2,
    T5,
    XlmRoberta,
}

/// The model of the library `tokenizers` that a class builds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    WordPiece,
    Bpe,
    Unigram,
}

impl Kind {
    /// The name in `tokenizer.json`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::WordPiece => "WordPiece",
            Self::Bpe => "BPE",
            Self::Unigram => "Unigram",
        }
    }

    /// The files from which a class of this kind is read where there is no `tokenizer.json`.
    pub(super) fn files(self) -> &'static str {
        match self {
            Self::WordPiece => "vocab.txt",
            Self::Bpe => "vocab.json with merges.txt",
            Self::Unigram => "sentencepiece.bpe.model, spiece.model or spm.model",
        }
    }
}

/// The post-processor, which puts special tokens around one text and around two.
pub(super) enum Ends {
    /// `post_processor` of `tokenizer.json`; without it, `bos_token` and `eos_token` where
    /// `add_bos_token` and `add_eos_token` ask for them.
    Stated,
    /// `bos_token` and `eos_token` where they are asked for, whatever `tokenizer.json` says.
    Asked,
    /// The post-processor of the class, as `tokenizer.json` writes it.
    Class(Value),
    /// `post_processor` of `tokenizer.json`; without it, that of the class.
    StatedOr(Value),
}

impl Class {
    /// The class called `name`, if it is implemented.
    pub(super) fn of(name: &str) -> Option<Self> {
        Some(match name.strip_suffix("Fast").unwrap_or(name) {
            "AlbertTokenizer" => Self::Albert,
            "BarthezTokenizer" => Self::Barthez,
            "BartTokenizer" | "LEDTokenizer" | "MvpTokenizer" | "RobertaTokenizer" => Self::Roberta,
            "BertTokenizer"
            | "ElectraTokenizer"
            | "LxmertTokenizer"
            | "MobileBertTokenizer"
            | "SqueezeBertTokenizer" => Self::Bert,
            "BigBirdTokenizer" => Self::BigBird,
            "BloomTokenizer" | "PreTrainedTokenizer" | "PythonBackend" | "TokenizersBackend" => Self::AsItStands,
            "CamembertTokenizer" => Self::Camembert,
            "CodeGenTokenizer" => Self::CodeGen,
            "DebertaTokenizer" => Self::Deberta,
            "DebertaV2Tokenizer" => Self::DebertaV2,
            "DistilBertTokenizer" => Self::DistilBert,
            "GPT2Tokenizer" => Self::Gpt2,
            "GPTNeoXTokenizer" => Self::GptNeoX,
            "HerbertTokenizer" => Self::Herbert,
            "LlamaTokenizer" => Self::Llama,
            "OpenAIGPTTokenizer" => Self::OpenAiGpt,
            "Qwen2Tokenizer" => Self::Qwen2,
            "T5Tokenizer" => Self::T5,
            "XLMRobertaTokenizer" => Self::XlmRoberta,
            _ => return None,
        })
    }

    /// The name that both `transformers` 4 and 5 know; 4 takes the class with `Fast` of its own
    /// accord.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::AsItStands => "PreTrainedTokenizerFast",
            Self::Bert => "BertTokenizer",
            Self::DistilBert => "DistilBertTokenizer",
            Self::Gpt2 => "GPT2Tokenizer",
            Self::CodeGen => "CodeGenTokenizer",
            Self::GptNeoX => "GPTNeoXTokenizer",
            Self::Llama => "LlamaTokenizer",
            Self::Qwen2 => "Qwen2Tokenizer",
            Self::Roberta => "RobertaTokenizer",
            Self::Deberta => "DebertaTokenizer",
            Self::Herbert => "HerbertTokenizer",
            Self::OpenAiGpt => "OpenAIGPTTokenizer",
            Self::Albert => "AlbertTokenizer",
            Self::Barthez => "BarthezTokenizer",
            Self::BigBird => "BigBirdTokenizer",
            Self::Camembert => "CamembertTokenizer",
            Self::DebertaV2 => "DebertaV2Tokenizer",
            Self::T5 => "T5Tokenizer",
            Self::XlmRoberta => "XLMRobertaTokenizer",
        }
    }

    /// Whether the class reads other files than `tokenizer.json`. Llama's reads a model of
    /// SentencePiece that Kiln does not.
    pub(super) fn has_other_files(self) -> bool {
        self != Self::Llama
    }

    /// The model that the class builds; none where that is the one of `tokenizer.json`.
    pub(super) fn kind(self) -> Option<Kind> {
        match self {
            Self::AsItStands => None,
            Self::Bert | Self::DistilBert => Some(Kind::WordPiece),
            Self::Gpt2
            | Self::CodeGen
            | Self::GptNeoX
            | Self::Llama
            | Self::Qwen2
            | Self::Roberta
            | Self::Deberta
            | Self::Herbert
            | Self::OpenAiGpt => Some(Kind::Bpe),
            Self::Albert
            | Self::Barthez
            | Self::BigBird
            | Self::Camembert
            | Self::DebertaV2
            | Self::T5
            | Self::XlmRoberta => Some(Kind::Unigram),
        }
    }

    /// Whether the class gives token types, unless `model_input_names` says otherwise; none where
    /// versions of `transformers` differ.
    pub(super) fn has_types(self) -> Option<bool> {
        match self {
            Self::Bert | Self::Deberta | Self::DebertaV2 => Some(true),
            Self::AsItStands | Self::Albert | Self::BigBird => None,
            _ => Some(false),
        }
    }

    /// The tokens by role that the class has, said or not.
    pub(super) fn roles(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::AsItStands => &[],
            Self::Bert | Self::DistilBert => &[
                ("unk_token", "[UNK]"),
                ("sep_token", "[SEP]"),
                ("pad_token", "[PAD]"),
                ("cls_token", "[CLS]"),
                ("mask_token", "[MASK]"),
            ],
            Self::Gpt2 | Self::CodeGen => {
                &[("bos_token", END_OF_TEXT), ("eos_token", END_OF_TEXT), ("unk_token", END_OF_TEXT)]
            }
            Self::GptNeoX => &[
                ("bos_token", END_OF_TEXT),
                ("eos_token", END_OF_TEXT),
                ("unk_token", END_OF_TEXT),
                ("pad_token", "<|padding|>"),
            ],
            Self::Llama => &[("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>")],
            Self::Qwen2 => &[("eos_token", END_OF_TEXT), ("unk_token", END_OF_TEXT), ("pad_token", END_OF_TEXT)],
            Self::Roberta | Self::Barthez | Self::Camembert | Self::XlmRoberta => &[
                ("bos_token", "<s>"),
                ("eos_token", "</s>"),
                ("unk_token", "<unk>"),
                ("sep_token", "</s>"),
                ("pad_token", "<pad>"),
                ("cls_token", "<s>"),
                ("mask_token", "<mask>"),
            ],
            Self::Deberta | Self::DebertaV2 => &[
                ("bos_token", "[CLS]"),
                ("eos_token", "[SEP]"),
                ("unk_token", "[UNK]"),
                ("sep_token", "[SEP]"),
                ("pad_token", "[PAD]"),
                ("cls_token", "[CLS]"),
                ("mask_token", "[MASK]"),
            ],
            Self::Herbert => &[
                ("unk_token", "<unk>"),
                ("sep_token", "</s>"),
                ("pad_token", "<pad>"),
                ("cls_token", "<s>"),
                ("mask_token", "<mask>"),
            ],
            Self::OpenAiGpt => &[("unk_token", "<unk>")],
            Self::Albert => &[
                ("bos_token", "[CLS]"),
                ("eos_token", "[SEP]"),
                ("unk_token", "<unk>"),
                ("sep_token", "[SEP]"),
                ("pad_token", "<pad>"),
                ("cls_token", "[CLS]"),
                ("mask_token", "[MASK]"),
            ],
            Self::BigBird => &[
                ("bos_token", "<s>"),
                ("eos_token", "</s>"),
                ("unk_token", "<unk>"),
                ("sep_token", "[SEP]"),
                ("pad_token", "<pad>"),
                ("cls_token", "[CLS]"),
                ("mask_token", "[MASK]"),
            ],
            Self::T5 => &[("eos_token", "</s>"), ("unk_token", "<unk>"), ("pad_token", "<pad>")],
        }
    }

    /// The token of a role that the files state as a bare text, or that the class has: how it is
    /// looked for in a text. Special tokens are looked for before the text is normalised, but for
    /// those that the constructor of a class makes an `AddedToken` of without saying so.
    pub(super) fn token(self, role: &str, content: &str) -> AddedToken {
        let is_mask = role == "mask_token";
        let token = AddedToken::from(content, true);
        match self {
            Self::BigBird => token.normalized(true).lstrip(is_mask),
            Self::Barthez if is_mask => token.normalized(true).lstrip(true),
            Self::Camembert if is_mask => token.lstrip(true),
            _ => token,
        }
    }

    /// The parts of `tokenizer.json` that the class builds itself: `normalizer`, `pre_tokenizer`
    /// and `decoder`, and the settings of `model`. `charsmap` is the rule of normalisation of a
    /// model of SentencePiece.
    pub(super) fn parts(self, args: &Arguments<'_>, unk_token: Option<&str>, charsmap: Option<&[u8]>) -> Result<Value> {
        let replaced =
            |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
        let sequence = |parts: Vec<Value>| json!({"type": "Sequence", "normalizers": parts});
        let precompiled = charsmap.map(|map| {
            let map = BASE64_STANDARD.encode(map);
            json!({"type": "Precompiled", "precompiled_charsmap": map})
        });
        let byte_level = |prefix: bool, regex: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": regex});
        let model = match self.kind() {
            Some(Kind::WordPiece) => json!({
                "unk_token": unk_token, "continuing_subword_prefix": "##", "max_input_chars_per_word": 100
            }),
            Some(Kind::Bpe) => {
                let is_of_letters = matches!(self, Self::Herbert | Self::OpenAiGpt);
                json!({
                    "dropout": null, "unk_token": unk_token.filter(|_| is_of_letters), "continuing_subword_prefix": null,
                    "end_of_word_suffix": is_of_letters.then_some("</w>"), "fuse_unk": self == Self::Llama,
                    "byte_fallback": self == Self::Llama, "ignore_merges": false
                })
            }
            Some(Kind::Unigram) => json!({"byte_fallback": false}),
            None => return Ok(Value::Null),
        };
        let [normalizer, pre_tokenizer, decoder] = match self {
            Self::Bert | Self::DistilBert => [
                json!({
                    "type": "BertNormalizer", "clean_text": true,
                    "handle_chinese_chars": args.flag("tokenize_chinese_chars")?.unwrap_or(true),
                    "strip_accents": args.flag("strip_accents")?,
                    "lowercase": args.flag("do_lower_case")?.unwrap_or(true)
                }),
                json!({"type": "BertPreTokenizer"}),
                json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
            ],
            Self::Herbert | Self::OpenAiGpt => {
                let is_lower = self == Self::OpenAiGpt;
                let accents = if is_lower { Value::Null } else { false.into() };
                [
                    json!({
                        "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": accents,
                        "lowercase": is_lower
                    }),
                    json!({"type": "BertPreTokenizer"}),
                    json!({"type": "BPEDecoder", "suffix": "</w>"}),
                ]
            }
            Self::Gpt2 | Self::CodeGen | Self::GptNeoX | Self::Roberta | Self::Deberta => {
                let normalizer = if self == Self::GptNeoX { json!({"type": "NFC"}) } else { Value::Null };
                let prefix = args.flag("add_prefix_space")?.unwrap_or(false);
                [normalizer, byte_level(prefix, true), byte_level(false, true)]
            }
            Self::Qwen2 => {
                let split = json!({
                    "type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated", "invert": false
                });
                let prefix = args.flag("add_prefix_space")?.unwrap_or(false);
                [
                    json!({"type": "NFC"}),
                    json!({"type": "Sequence", "pretokenizers": [split, byte_level(prefix, false)]}),
                    byte_level(true, true),
                ]
            }
            Self::Llama => {
                let prefix = args.flag("add_prefix_space")?.unwrap_or(true);
                let scheme = match (prefix, args.flag("legacy")?.unwrap_or(false)) {
                    (false, _) => "never",
                    (true, true) => "always",
                    (true, false) => "first",
                };
                let mut decoders = vec![
                    replaced(json!({"String": "▁"}), " "),
                    json!({"type": "ByteFallback"}),
                    json!({"type": "Fuse"}),
                ];
                decoders.extend(prefix.then(|| json!({"type": "Strip", "content": " ", "start": 1, "stop": 0})));
                [
                    Value::Null,
                    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false}),
                    json!({"type": "Sequence", "decoders": decoders}),
                ]
            }
            Self::Albert
            | Self::Barthez
            | Self::BigBird
            | Self::Camembert
            | Self::DebertaV2
            | Self::T5
            | Self::XlmRoberta => {
                let scheme = if self == Self::T5 || args.flag("add_prefix_space")?.unwrap_or(true) {
                    "always"
                } else if self == Self::DebertaV2 {
                    "first"
                } else {
                    "never"
                };
                let metaspace =
                    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
                let strip = |right: bool| json!({"type": "Strip", "strip_left": false, "strip_right": right});
                let one_line = || {
                    let spaces = replaced(json!({"Regex": r"\s{2,}|[\n\r\t]"}), " ");
                    vec![spaces, json!({"type": "NFC"}), strip(true)]
                };
                let normalizer = match self {
                    Self::Albert => {
                        let mut all = ["``", "''"].map(|quotes| replaced(json!({"String": quotes}), "\"")).to_vec();
                        if !args.flag("keep_accents")?.unwrap_or(false) {
                            all.extend([json!({"type": "NFKD"}), json!({"type": "StripAccents"})]);
                        }
                        if args.flag("do_lower_case")?.unwrap_or(true) {
                            all.push(json!({"type": "Lowercase"}));
                        }
                        all.extend(precompiled);
                        sequence(all)
                    }
                    Self::Barthez => sequence(one_line()),
                    Self::BigBird => sequence(vec![strip(false), replaced(json!({"Regex": " {2,}"}), "▁")]),
                    Self::DebertaV2 => {
                        let lower = args.flag("do_lower_case")?.unwrap_or(false);
                        let lower = lower.then(|| json!({"type": "Lowercase"}));
                        sequence(lower.into_iter().chain(one_line()).collect())
                    }
                    _ => precompiled.unwrap_or_default(),
                };
                let pre_tokenizer = match self {
                    Self::Barthez | Self::BigBird => metaspace.clone(),
                    Self::DebertaV2 => {
                        let cuts = args.flag("split_by_punct")?.unwrap_or(false);
                        let cuts = cuts.then(|| json!({"type": "Punctuation", "behavior": "Isolated"}));
                        let parts = cuts.into_iter().chain([metaspace.clone()]).collect::<Vec<_>>();
                        json!({"type": "Sequence", "pretokenizers": parts})
                    }
                    _ => json!({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]}),
                };
                [normalizer, pre_tokenizer, metaspace]
            }
            Self::AsItStands => return Ok(Value::Null),
        };
        Ok(json!({"model": model, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "decoder": decoder}))
    }

    /// The post-processor of the class. `role` gives a token of a role and its id.
    pub(super) fn ends(
        self,
        args: &Arguments<'_>,
        role: impl Fn(&'static str) -> Result<(String, u32)>,
    ) -> Result<Ends> {
        let template = |single: &str, pair: &str, roles: [&'static str; 2]| -> Result<Value> {
            let mut special = Map::new();
            let [first, last] = roles.map(&role);
            let (first, last) = (first?, last?);
            for (token, id) in [&first, &last] {
                special.insert(token.clone(), json!({"id": token, "ids": [id], "tokens": [token]}));
            }
            let piece = |piece: &str| {
                let (name, kind) = piece.split_at(1);
                let kind = kind.parse::<u8>().unwrap_or(0);
                match name {
                    "<" => json!({"SpecialToken": {"id": first.0, "type_id": kind}}),
                    ">" => json!({"SpecialToken": {"id": last.0, "type_id": kind}}),
                    text => json!({"Sequence": {"id": text, "type_id": kind}}),
                }
            };
            let pieces = |text: &str| text.split(' ').map(piece).collect::<Vec<_>>();
            let (single, pair) = (pieces(single), pieces(pair));
            Ok(json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}))
        };
        let of_bert = || -> Result<Value> {
            let [sep, cls] = [role("sep_token")?, role("cls_token")?];
            Ok(json!({"type": "BertProcessing", "sep": [sep.0, sep.1], "cls": [cls.0, cls.1]}))
        };
        let of_roberta = |roles| template("<0 A0 >0", "<0 A0 >0 >0 B0 >0", roles);
        Ok(match self {
            Self::Bert | Self::DistilBert | Self::BigBird | Self::DebertaV2 => Ends::Class(of_bert()?),
            Self::Albert => Ends::StatedOr(of_bert()?),
            Self::Deberta => Ends::Class(of_roberta(["cls_token", "sep_token"])?),
            Self::Camembert | Self::XlmRoberta => Ends::Class(of_roberta(["bos_token", "eos_token"])?),
            Self::Roberta => {
                let (sep, cls) = (role("sep_token")?, role("cls_token")?);
                let prefix = args.flag("add_prefix_space")?.unwrap_or(false);
                let trim = args.flag("trim_offsets")?.unwrap_or(true);
                Ends::Class(json!({
                    "type": "RobertaProcessing", "sep": [sep.0, sep.1], "cls": [cls.0, cls.1], "trim_offsets": trim,
                    "add_prefix_space": prefix
                }))
            }
            // The ids are written so in the class.
            Self::Herbert => Ends::Class(json!({
                "type": "BertProcessing", "sep": [role("sep_token")?.0, 2], "cls": [role("cls_token")?.0, 0]
            })),
            Self::T5 => Ends::Class(template("A0 >0", "A0 >0 B0 >0", ["eos_token", "eos_token"])?),
            Self::CodeGen => Ends::StatedOr(json!({
                "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true
            })),
            Self::AsItStands | Self::Gpt2 | Self::Llama | Self::Qwen2 | Self::OpenAiGpt | Self::Barthez => Ends::Stated,
            Self::GptNeoX => Ends::Asked,
        })
    }

    /// The place in `vocab`, a list of pieces and scores, of the piece that stands for what is
    /// unknown; `stated` is what the files say.
    pub(super) fn unk_id(self, vocab: &Value, unk_token: &str, stated: Option<usize>) -> usize {
        let at = |score: Option<f64>| {
            let is_it =
                |piece: &Value| piece[0] == *unk_token && score.is_none_or(|score| piece[1].as_f64() == Some(score));
            vocab.as_array().and_then(|pieces| pieces.iter().position(is_it))
        };
        match self {
            Self::T5 => 2,
            Self::Barthez | Self::XlmRoberta => 3,
            Self::Camembert => at(None).unwrap_or(0),
            Self::BigBird => at(Some(0.0)).unwrap_or(100),
            Self::DebertaV2 => at(Some(0.0)).or(stated).unwrap_or(1),
            _ => 1,
        }
    }

    /// The special tokens without a role that the class has where the files state none.
    pub(super) fn further(self, args: &Arguments<'_>) -> Result<Vec<AddedToken>> {
        let tokens = match self {
            Self::Camembert => NOT_USED.map(String::from).to_vec(),
            Self::T5 => extra_ids(args)?,
            _ => Vec::new(),
        };
        Ok(tokens.into_iter().map(|token| AddedToken::from(token, true)).collect())
    }
}

/// The tokens in the place of those that CamemBERT's training had and its pieces have again.
pub(super) const NOT_USED: [&str; 3] = ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"];

/// The further tokens of T5's class, whose number is `extra_ids`.
pub(super) fn extra_ids(args: &Arguments<'_>) -> Result<Vec<String>> {
    let count = match args.0.get("extra_ids") {
        None => 100,
        Some(count) => count
            .as_u64()
            .filter(|count| *count <= 10_000)
            .ok_or_else(|| Error::data(format!("extra_ids: expected a number up to 10,000, got {count}")))?,
    };
    Ok((0..count).map(|id| format!("<extra_id_{id}>")).collect())
}

/// How Qwen2's class cuts a text into words.
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// `tokenizer_config.json` as the arguments of a class.
pub(super) struct Arguments<'a>(pub(super) &'a Map<String, Value>);

impl Arguments<'_> {
    /// A switch; none where it is not set.
    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(Error::data(format!("{name}: expected true or false, got {other}"))),
        }
    }
}

/// The class that a folder names, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) class: Class,
    /// Whether `tokenizer_config.json` or `config.json` names it, and not the type of the model
    /// alone.
    pub(super) is_said: bool,
}

/// Whether `tokenizer.json` of `folder` mentions a step over bytes, by which `AutoTokenizer` knows
/// files that name Llama's class and have another tokenizer.
fn is_byte_level(folder: &Path) -> bool {
    read_regular_text(&folder.join("tokenizer.json")).is_ok_and(|text| text.contains("\"ByteLevel\""))
}

/// The class that `AutoTokenizer` takes for `folder`: `tokenizer_class` of `tokenizer_config.json`,
/// else of `config.json`, else that of the model's type. None where nothing says so.
///
/// # Errors
/// A class that is not implemented; files that are no JSON.
pub(super) fn named(folder: &Path, stated: &Map<String, Value>) -> Result<Option<Named>> {
    // A config.json that cannot be read is the model's business, not the tokenizer's.
    let model = read_json::<Value>(&folder.join("config.json")).unwrap_or(Value::Null);
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(String::from);
    let said = [(CONFIG, text(stated.get("tokenizer_class"))), ("config.json", text(model.get("tokenizer_class")))];
    let Some((file, name)) = said.into_iter().find_map(|(file, name)| Some((file, name?))) else {
        let class = match model.get("model_type").and_then(Value::as_str) {
            Some("gpt2" | "gpt_neo") => Class::Gpt2,
            // DistilBERT's model takes BERT's class.
            Some("bert" | "distilbert" | "electra") => Class::Bert,
            Some("roberta") => Class::Roberta,
            Some("camembert") => Class::Camembert,
            Some("xlm-roberta") => Class::XlmRoberta,
            Some("albert") => Class::Albert,
            Some("qwen2" | "qwen3") => Class::Qwen2,
            _ => return Ok(None),
        };
        return Ok(Some(Named { class, is_said: false }));
    };
    if let Some(class) = Class::of(&name) {
        let class = match (class, model.get("model_type").and_then(Value::as_str)) {
            // Files of Qwen 2 and of Llama 3 name this class, and have a byte-level BPE; those of
            // Mistral are read as they stand whatever they name.
            (Class::Llama, Some("qwen2")) => Class::Qwen2,
            (_, Some("mistral")) => Class::AsItStands,
            (Class::Llama, _) if is_byte_level(folder) => Class::AsItStands,
            (class, _) => class,
        };
        return Ok(Some(Named { class, is_said: true }));
    }
    let place = folder.join(file);
    let (why, help) = match CLASSES.answer(name.strip_suffix("Fast").unwrap_or(&name), &name.as_str().into()) {
        Answer::Refused(entry) | Answer::Told(entry) => (entry.why, entry.help.unwrap_or(TOKENISE)),
        Answer::Taken | Answer::Unknown => ("transformers 5.24 has no such class", WRITE_JSON),
    };
    Err(Error::data(format!(
        "{}: tokenizer_class = {name:?}: expected a class that Kiln implements, since the class decides the ids: {why}",
        place.display()
    ))
    .help(help))
}
