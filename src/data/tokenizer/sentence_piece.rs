//! Tokenizers of folders that have SentencePiece's model and no `tokenizer.json`, as ALBERT, CamemBERT and XLM-RoBERTa are
//! published: the pipeline that `convert_slow_tokenizer.py` of `transformers` 4.57 makes of it.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::LazyLock;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use prost::Message;
use regex::Regex;
use serde_json::{Value, json};

use super::files::{CONFIG, ROLES, Stated};
use crate::base::error::{Error, Result};
use crate::base::files::{read_error, read_json, read_regular};

/// The names of such files. The first is CamemBERT's and XLM-RoBERTa's, the second ALBERT's.
pub(super) const NAMES: [&str; 3] = ["sentencepiece.bpe.model", "spiece.model", "spm.model"];

/// `sentencepiece_model.proto`, as far as it is read.
#[derive(Message)]
struct Model {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<Piece>,
    #[prost(message, optional, tag = "2")]
    trainer: Option<TrainerSpec>,
    #[prost(message, optional, tag = "3")]
    normalizer: Option<NormalizerSpec>,
}

#[derive(Message)]
struct Piece {
    #[prost(string, optional, tag = "1")]
    piece: Option<String>,
    #[prost(float, optional, tag = "2")]
    score: Option<f32>,
    /// [`CONTROL`], [`USER_DEFINED`] or another.
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
}

/// The kinds of pieces that are matched whole in a text.
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
/// The type of model of these families.
const UNIGRAM: i32 = 1;

#[derive(Message)]
struct TrainerSpec {
    /// [`UNIGRAM`] or another.
    #[prost(int32, optional, tag = "3")]
    model_type: Option<i32>,
    #[prost(int32, optional, tag = "40")]
    unk_id: Option<i32>,
}

#[derive(Message)]
struct NormalizerSpec {
    #[prost(bytes = "vec", optional, tag = "2")]
    precompiled_charsmap: Option<Vec<u8>>,
}

/// The families that Kiln has of such.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    Albert,
    Camembert,
    XlmRoberta,
}

/// Whether the files of `folder` say that a model of SentencePiece in it is that of a family which is read.
pub(super) fn is_known(folder: &Path) -> bool {
    let config = |name: &str| read_json::<Value>(&folder.join(name)).unwrap_or(Value::Null);
    Family::of(&config(CONFIG), &config("config.json")).is_some()
}

/// The text of the `tokenizer.json` that `file`, a model in `folder`, stands for. `said` is what the files beside it say.
///
/// # Errors
/// A file that is no unigram model of SentencePiece; a folder that does not say that its tokenizer is ALBERT's, CamemBERT's or
/// XLM-RoBERTa's.
pub(super) fn converted(folder: &Path, file: &Path, said: &Stated) -> Result<String> {
    let config = |name: &str| -> Result<Value> {
        let path = folder.join(name);
        if path.is_file() { read_json(&path) } else { Ok(Value::Null) }
    };
    let stated = config(CONFIG)?;
    let family = Family::of(&stated, &config("config.json")?).ok_or_else(|| {
        Error::data(format!("{}: the files beside it do not say whose tokenizer it is", file.display())).help(
            "Kiln reads those of ALBERT, CamemBERT and XLM-RoBERTa, by tokenizer_class of tokenizer_config.json or model_type of \
             config.json; save another one as tokenizer.json, by AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) in \
             Python",
        )
    })?;
    let model = read(file)?;
    let vocab = family.vocab(&model.pieces);
    // Of pieces that are there twice the library finds the last.
    let ids = vocab.iter().zip(0_usize..).map(|((piece, _), id)| (piece.as_str(), id)).collect::<HashMap<_, _>>();
    let role = |role: &'static str| {
        let stated = said.roles.iter().find(|(name, _)| *name == role).map(|(_, token)| token.as_str());
        stated.unwrap_or_else(|| family.token(role))
    };
    let added = |token: &str, id: usize, is_special: bool| {
        let is_mask = token == role("mask_token");
        // XLM-RoBERTa's class does not say that its mask is special, and what is not is looked for in the normalised text.
        let normalized = is_mask && family == Family::XlmRoberta;
        json!({
            "id": id, "content": token, "single_word": false, "lstrip": is_mask, "rstrip": false, "normalized": normalized,
            "special": is_special
        })
    };
    let mut tokens = BTreeMap::new();
    for piece in &model.pieces {
        let (Some(name), Some(kind @ (CONTROL | USER_DEFINED))) = (piece.piece.as_deref(), piece.kind) else {
            continue;
        };
        if let Some(id) = ids.get(name) {
            tokens.insert(*id, added(name, *id, kind == CONTROL));
        }
    }
    for name in ROLES.map(role).into_iter().chain(family.additional().iter().copied()) {
        if let Some(id) = ids.get(name) {
            tokens.insert(*id, added(name, *id, true));
        }
    }
    let around = [family.token("cls_token"), family.token("sep_token")];
    let [first, last] = around;
    let special = around
        .map(|token| ids.get(token).map(|id| (token.to_owned(), json!({"id": token, "ids": [id], "tokens": [token]}))));
    let [Some(of_first), Some(of_last)] = special else {
        return Err(damaged(file, &format!("it lacks the piece {first} or {last}")));
    };
    let special = serde_json::Map::from_iter([of_first, of_last]);
    let marker = |token: &str, kind: u8| json!({"SpecialToken": {"id": token, "type_id": kind}});
    let text = |name: &str, kind: u8| json!({"Sequence": {"id": name, "type_id": kind}});
    let single = vec![marker(first, 0), text("A", 0), marker(last, 0)];
    let pair = match family {
        Family::Albert => [&single[..], &[text("B", 1), marker(last, 1)]].concat(),
        Family::Camembert | Family::XlmRoberta => {
            [&single[..], &[marker(last, 0), text("B", 0), marker(last, 0)]].concat()
        }
    };
    let unk_id = match family {
        Family::Albert => model.trainer.as_ref().and_then(|trainer| trainer.unk_id).unwrap_or(0),
        Family::Camembert | Family::XlmRoberta => 3,
    };
    let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": tokens.into_values().collect::<Vec<_>>(),
        "normalizer": {"type": "Sequence", "normalizers": family.normalizers(&stated, model.normalizer)?},
        "pre_tokenizer": metaspace,
        "post_processor": {
            "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special
        },
        "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": unk_id, "vocab": vocab, "byte_fallback": false},
    });
    Ok(tokenizer.to_string())
}

fn damaged(file: &Path, what: &str) -> Error {
    Error::data(format!("{}: expected a model of SentencePiece: {what}", file.display()))
}

/// The model in `file`, with pieces.
fn read(file: &Path) -> Result<Model> {
    let bytes = read_regular(file).map_err(|error| read_error(file, &error))?;
    let model = Model::decode(&bytes[..]).map_err(|error| damaged(file, &error.to_string()))?;
    if model.pieces.is_empty() {
        return Err(damaged(file, "it has no pieces"));
    }
    // They stand after the pieces, so a file that has been cut off between two of these lacks them.
    let Some(trainer) = model.trainer.as_ref().filter(|_| model.normalizer.is_some()) else {
        return Err(
            damaged(file, "it ends before the settings of its trainer and its normalizer").help("load it again")
        );
    };
    if trainer.model_type.unwrap_or(UNIGRAM) != UNIGRAM {
        return Err(damaged(file, "it is not a unigram model, as those of these families are"));
    }
    if let Some(piece) = model.pieces.iter().find(|piece| !piece.score.unwrap_or_default().is_finite()) {
        let (name, score) = (piece.piece.as_deref().unwrap_or_default(), piece.score.unwrap_or_default());
        return Err(damaged(file, &format!("the piece {name:?} has the score {score}")));
    }
    Ok(model)
}

impl Family {
    /// The family by the class of the tokenizer, or else by the type of the model.
    fn of(tokenizer: &Value, model: &Value) -> Option<Self> {
        let name = |value: &Value| value.get("tokenizer_class").and_then(Value::as_str).map(String::from);
        if let Some(class) = name(tokenizer).or_else(|| name(model)) {
            return match class.trim_end_matches("Fast") {
                "AlbertTokenizer" => Some(Self::Albert),
                "CamembertTokenizer" => Some(Self::Camembert),
                "XLMRobertaTokenizer" => Some(Self::XlmRoberta),
                _ => None,
            };
        }
        match model.get("model_type").and_then(Value::as_str)? {
            "albert" => Some(Self::Albert),
            "camembert" => Some(Self::Camembert),
            "xlm-roberta" => Some(Self::XlmRoberta),
            _ => None,
        }
    }

    /// The token of a role unless the files state another.
    fn token(self, role: &str) -> &'static str {
        match (self, role) {
            (_, "pad_token") => "<pad>",
            (_, "unk_token") => "<unk>",
            (Self::Albert, "bos_token" | "cls_token") => "[CLS]",
            (Self::Albert, "mask_token") => "[MASK]",
            (Self::Albert, _) => "[SEP]",
            (_, "bos_token" | "cls_token") => "<s>",
            (_, "mask_token") => "<mask>",
            _ => "</s>",
        }
    }

    /// The tokens that are special and have no role.
    fn additional(self) -> &'static [&'static str] {
        match self {
            Self::Camembert => &["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"],
            Self::Albert | Self::XlmRoberta => &[],
        }
    }

    /// Pieces with their scores, in the order of the ids.
    fn vocab(self, pieces: &[Piece]) -> Vec<(String, f64)> {
        let special =
            |tokens: &[(&str, f64)]| tokens.iter().map(|(token, score)| ((*token).to_owned(), *score)).collect();
        let (mut vocab, skipped): (Vec<_>, _) = match self {
            Self::Albert => (Vec::new(), 0),
            Self::Camembert => {
                let (unused, unknown) = ([("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0)], ("<unk>", 0.0));
                (special(&[&unused[..], &[unknown, ("<unk>NOTUSED", -100.0)]].concat()), 1)
            }
            Self::XlmRoberta => (special(&[("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]), 3),
        };
        let scored = |piece: &Piece| {
            let (name, score) = (piece.piece.clone().unwrap_or_default(), f64::from(piece.score.unwrap_or(0.0)));
            let score = if self == Self::Albert && ends_a_number(&name) { score - 100.0 } else { score };
            (name, score)
        };
        vocab.extend(pieces.iter().skip(skipped).map(scored));
        if self != Self::Albert {
            vocab.push(("<mask>".into(), 0.0));
        }
        vocab
    }

    /// The changes to a text before it is cut into pieces; `stated` is `tokenizer_config.json`.
    fn normalizers(self, stated: &Value, spec: Option<NormalizerSpec>) -> Result<Vec<Value>> {
        let charsmap = spec.and_then(|spec| spec.precompiled_charsmap).filter(|map| !map.is_empty());
        let precompiled =
            charsmap.map(|map| json!({"type": "Precompiled", "precompiled_charsmap": BASE64_STANDARD.encode(map)}));
        let replace =
            |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
        let spaces = |content: &str| replace(json!({"Regex": " {2,}"}), content);
        if self != Self::Albert {
            let strip = json!({"type": "Strip", "strip_left": false, "strip_right": true});
            return Ok(precompiled.into_iter().chain([strip, spaces("▁")]).collect());
        }
        let flag = |name: &str, default: bool| match stated.get(name) {
            None | Some(Value::Null) => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(Error::data(format!("{CONFIG}: {name}: expected true or false, got {other}"))),
        };
        let mut all = ["``", "''"].map(|quotes| replace(json!({"String": quotes}), "\"")).to_vec();
        if !flag("keep_accents", false)? {
            all.extend([json!({"type": "NFKD"}), json!({"type": "StripAccents"})]);
        }
        if flag("do_lower_case", true)? {
            all.push(json!({"type": "Lowercase"}));
        }
        all.extend(precompiled);
        all.push(spaces(" "));
        Ok(all)
    }
}

/// Whether a piece ends with a digit and a comma, which ALBERT keeps apart. Digits are those of Python's `str.isdigit`: decimal ones, and
/// those of Unicode's `Numeric_Type=Digit`, to which fractions and larger numbers do not belong.
fn ends_a_number(piece: &str) -> bool {
    static ENDS: LazyLock<Regex> = LazyLock::new(|| {
        let digits = concat!(
            r"\p{Nd}\u{b2}\u{b3}\u{b9}\u{1369}-\u{1371}\u{19da}\u{2070}\u{2074}-\u{2079}\u{2080}-\u{2089}\u{2460}-\u{2468}",
            r"\u{2474}-\u{247c}\u{2488}-\u{2490}\u{24ea}\u{24f5}-\u{24fd}\u{24ff}\u{2776}-\u{277e}\u{2780}-\u{2788}",
            r"\u{278a}-\u{2792}\u{10a40}-\u{10a43}\u{10e60}-\u{10e68}\u{11052}-\u{1105a}\u{1f100}-\u{1f10a}",
        );
        Regex::new(&format!("[{digits}],$")).expect("a set of characters")
    });
    ENDS.is_match(piece)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use kiln_models::{ModelConfig, ModelType};
    use serde::Deserialize;

    use super::super::{RowKind, Tokenizer, write_files};
    use super::*;
    use crate::data::table::Row;

    #[derive(Deserialize)]
    struct Fixture {
        transformers: String,
        families: BTreeMap<String, Case>,
    }

    #[derive(Deserialize)]
    struct Case {
        model_type: String,
        stated: Value,
        file: String,
        model: String,
        vocab_size: usize,
        texts: Vec<(String, Vec<u32>)>,
        pairs: Vec<(String, String, Vec<u32>, Vec<u8>)>,
        /// Id, content, lstrip, normalized, special.
        added: Vec<(u32, String, bool, bool, bool)>,
    }

    fn fixture() -> Fixture {
        let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/sentencepiece.json"));
        serde_json::from_str(text).unwrap()
    }

    impl Case {
        fn bytes(&self) -> Vec<u8> {
            BASE64_STANDARD.decode(&self.model).unwrap()
        }

        /// A folder as such a model is published.
        fn folder(&self) -> tempfile::TempDir {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join(&self.file), self.bytes()).unwrap();
            let config = json!({"model_type": self.model_type});
            fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
            fs::write(folder.path().join("tokenizer_config.json"), self.stated.to_string()).unwrap();
            folder
        }
    }

    #[test]
    fn ids_are_those_of_the_fast_tokenizers_that_transformers_makes() {
        let fixture = fixture();
        assert!(fixture.transformers.starts_with("4.57") && fixture.families.len() == 4);
        for (name, case) in fixture.families {
            let folder = case.folder();
            let tokenizer = Tokenizer::load(folder.path()).unwrap();
            let added = tokenizer.inner.get_added_tokens_decoder().into_iter().collect::<BTreeMap<_, _>>();
            let flags = |token: tokenizers::AddedToken| (token.content, token.lstrip, token.normalized, token.special);
            let added = added.into_iter().map(|(id, token)| (id, flags(token)));
            let added =
                added.map(|(id, (content, lstrip, normalized, special))| (id, content, lstrip, normalized, special));
            assert_eq!(added.collect::<Vec<_>>(), case.added, "{name}");
            assert_eq!(tokenizer.vocab_size(), case.vocab_size, "{name}");
            for (text, ids) in &case.texts {
                assert_eq!(&tokenizer.encode(text).unwrap(), ids, "{name}: {text:?}");
            }
            let encoder = tokenizer.row_encoder(64, RowKind::Pair, true).unwrap();
            for (first, second, ids, types) in &case.pairs {
                let row = encoder.encode(&[Row::of(first, Some(second))]).unwrap().remove(0);
                assert_eq!((&row.ids, &row.types), (ids, types), "{name}: {first:?}, {second:?}");
            }
            // The file alone stands for its folder, and what a run saves is the same tokenizer with a tokenizer.json.
            let hash = tokenizer.content_hash();
            assert_eq!(Tokenizer::load(&folder.path().join(&case.file)).unwrap().content_hash(), hash, "{name}");
            let kind = ModelType::ALL.into_iter().find(|kind| kind.name() == case.model_type).unwrap();
            let config = ModelConfig::preset(kind, "base").unwrap();
            let saved = tempfile::tempdir().unwrap();
            write_files(saved.path(), &tokenizer.files(&config, Some(folder.path())).unwrap()).unwrap();
            assert_eq!(fs::read(saved.path().join(&case.file)).unwrap(), case.bytes());
            fs::remove_file(saved.path().join(&case.file)).unwrap();
            assert_eq!(Tokenizer::load(saved.path()).unwrap().content_hash(), hash, "{name}");
        }
    }

    /// As `check_number_comma` of transformers 4.57 and 5.23 tells them.
    #[test]
    fn digits_before_a_comma_are_those_of_python() {
        for (piece, is_number) in [
            ("1,", true),
            ("▁1,", true),
            ("²,", true),
            ("٣,", true),
            ("①,", true),
            ("፩,", true),
            ("🄊,", true),
            ("½,", false),
            ("Ⅷ,", false),
            ("⑩,", false),
            ("三,", false),
            ("a,", false),
            ("1", false),
            (",", false),
            ("1,1", false),
        ] {
            assert_eq!(ends_a_number(piece), is_number, "{piece}");
        }
    }

    #[test]
    fn files_that_are_cut_or_of_others_are_refused() {
        let case = fixture().families.remove("xlm-roberta").unwrap();
        let (folder, whole) = (case.folder(), case.bytes());
        let path = folder.path().join(&case.file);
        let refused = |bytes: &[u8], says: &str| {
            fs::write(&path, bytes).unwrap();
            let error = Tokenizer::load(folder.path()).unwrap_err();
            let text = error.to_string();
            assert!(error.exit_code() == 3 && text.starts_with(&path.display().to_string()), "{text}");
            assert!(text.contains(says), "{text}");
        };
        // Each beginning of the file, up to the end of the settings of the normalizer, which is the last that is read.
        (0..whole.len()).step_by(97).chain([whole.len() - 1]).for_each(|end| refused(&whole[..end], ""));
        refused(b"", "it has no pieces");
        refused(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "expected a model of SentencePiece");
        refused(&fs::read(folder.path().join("config.json")).unwrap(), "expected a model of SentencePiece");
        let changed = |change: &dyn Fn(&mut Model)| {
            let mut model = Model::decode(&whole[..]).unwrap();
            change(&mut model);
            model.encode_to_vec()
        };
        refused(&changed(&|model| model.trainer.as_mut().unwrap().model_type = Some(2)), "it is not a unigram model");
        refused(&changed(&|model| model.pieces[9].score = Some(f32::NAN)), "has the score NaN");
        refused(&changed(&|model| model.normalizer = None), "it ends before");
        refused(
            &changed(&|model| model.normalizer.as_mut().unwrap().precompiled_charsmap = Some(vec![1, 2, 3])),
            "precompiled_charsmap",
        );
        fs::write(&path, &whole).unwrap();
        for (name, text, says) in [
            ("config.json", r#"{"model_type": "t5"}"#, "do not say whose tokenizer it is"),
            ("tokenizer_config.json", r#"{"tokenizer_class": "T5Tokenizer"}"#, "do not say whose tokenizer it is"),
            ("tokenizer_config.json", r#"{"tokenizer_class": "AlbertTokenizer"}"#, "it lacks the piece [CLS] or [SEP]"),
        ] {
            fs::write(folder.path().join(name), text).unwrap();
            let error = Tokenizer::load(folder.path()).unwrap_err();
            assert!(error.exit_code() == 3 && error.to_string().contains(says), "{name}: {error}");
        }
    }

    #[test]
    fn a_model_of_another_family_is_no_tokenizer_that_is_read() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("spiece.model"), b"any").unwrap();
        assert!(!Tokenizer::is_in(folder.path()), "nothing says whose it is");
        for (class, is_read) in [("T5Tokenizer", false), ("AlbertTokenizer", true)] {
            fs::write(folder.path().join(CONFIG), format!("{{\"tokenizer_class\": \"{class}\"}}")).unwrap();
            assert_eq!(Tokenizer::is_in(folder.path()), is_read, "{class}");
        }
    }
}
