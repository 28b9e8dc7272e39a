//! Tokenizers of folders that have SentencePiece's model and no `tokenizer.json`, as ALBERT,
//! CamemBERT and XLM-RoBERTa are published: the vocabulary that `convert_slow_tokenizer.py` of
//! `transformers` 5.24 makes of it.

use std::path::Path;

use kiln_core::error::{Error, Result};
use kiln_core::files::{read_error, read_regular};
use prost::Message;
use serde_json::{Value, json};
use tokenizers::AddedToken;

use super::assemble::Pieces;
use super::classes::{Class, NOT_USED, extra_ids};
use super::files::{Stated, text_of};

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

/// The pieces that `convert_from_spm` of `transformers` 5.24 makes for `class` from `file`, a model
/// of SentencePiece. `said` is what the files beside it say.
///
/// # Errors
/// A file that is no unigram model of SentencePiece.
pub(super) fn pieces(class: Class, file: &Path, said: &Stated) -> Result<Pieces> {
    let model = read(file)?;
    let own = model.pieces.iter().map(|piece| (piece.piece.as_deref().unwrap_or_default(), piece.score.unwrap_or(0.0)));
    // The classes whose models were trained by fairseq put tokens of their own before the pieces.
    let role = |name: &str, usual: &str| match said.config.get(name) {
        // Python's text of a token that is null.
        Some(Value::Null) => "None".to_owned(),
        stated => stated.and_then(text_of).unwrap_or(usual).to_owned(),
    };
    let [pad, unk] = [role("pad_token", "<pad>"), role("unk_token", "<unk>")];
    let (before, skipped): (Vec<(String, f32)>, usize) = match class {
        Class::Camembert => {
            let [first, last, unknown] = NOT_USED.map(String::from);
            (vec![(first, 0.0), (pad, 0.0), (last, 0.0), (unk, 0.0), (unknown, -100.0)], 1)
        }
        Class::XlmRoberta => {
            let [bos, eos] = [role("bos_token", "<s>"), role("eos_token", "</s>")];
            (vec![(bos, 0.0), (pad, 0.0), (eos, 0.0), (unk, 0.0)], 3)
        }
        _ => (Vec::new(), 0),
    };
    let mask = matches!(class, Class::Camembert | Class::XlmRoberta).then(|| role("mask_token", "<mask>"));
    let extra = if class == Class::T5 { extra_ids(&said.arguments())? } else { Vec::new() };
    let vocab = before.into_iter().chain(own.skip(skipped).map(|(piece, score)| (piece.to_owned(), score)));
    let after = mask.into_iter().chain(extra.iter().rev().cloned()).map(|token| (token, 0.0));
    let vocab = vocab.chain(after).map(|(piece, score)| json!([piece, f64::from(score)])).collect();
    let mut further = Vec::new();
    for piece in &model.pieces {
        if let (Some(name), Some(kind @ (CONTROL | USER_DEFINED))) = (piece.piece.as_deref(), piece.kind) {
            further.push(AddedToken::from(name, kind == CONTROL).normalized(false));
        }
    }
    if !further.iter().any(|token| token.content.contains("<extra_id_")) {
        further.extend(extra.iter().map(|token| AddedToken::from(token.as_str(), true)));
    }
    Ok(Pieces {
        vocab: Value::Array(vocab),
        unk_id: model.trainer.and_then(|trainer| trainer.unk_id).and_then(|id| usize::try_from(id).ok()),
        charsmap: model.normalizer.and_then(|spec| spec.precompiled_charsmap).filter(|map| !map.is_empty()),
        further: Some(further),
        ..Pieces::default()
    })
}

fn damaged(file: &Path, what: &str) -> Error {
    Error::data(format!("{}: expected a model of SentencePiece: {what}", file.display()))
}

/// The model in `file`, with pieces.
fn read(file: &Path) -> Result<Model> {
    let bytes = read_regular(file).map_err(|error| read_error(file, &error))?;
    let model = Model::decode(&bytes[..]).map_err(|_| damaged(file, "its bytes are no Protocol Buffers message"))?;
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;
    use std::fs;

    use base64::prelude::{BASE64_STANDARD, Engine as _};
    use kiln_core::model_config::{ModelConfig, ModelType};
    use serde::Deserialize;

    use super::super::names::CONFIG;
    use super::super::{RowKind, Tokenizer, write_files};
    use super::*;
    use crate::table::Row;

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
        let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/sentencepiece.json"));
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
    fn ids_are_those_of_auto_tokenizer() {
        let fixture = fixture();
        assert!(fixture.transformers.starts_with("5.24") && fixture.families.len() == 4);
        for (name, case) in fixture.families {
            let folder = case.folder();
            let tokenizer = Tokenizer::load(folder.path()).unwrap();
            let added = tokenizer.inner.get_added_tokens_decoder().into_iter().collect::<BTreeMap<_, _>>();
            let flags = |token: AddedToken| (token.content, token.lstrip, token.normalized, token.special);
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
            // The file alone stands for its folder, and what a run saves is the same tokenizer with
            // a tokenizer.json.
            let hash = tokenizer.content_hash();
            assert_eq!(Tokenizer::load(&folder.path().join(&case.file)).unwrap().content_hash(), hash, "{name}");
            let kind = ModelType::ALL.into_iter().find(|kind| kind.name() == case.model_type).unwrap();
            let config = ModelConfig::preset(kind, "base").unwrap();
            let saved = tempfile::tempdir().unwrap();
            write_files(saved.path(), &tokenizer.files(&config, Some(folder.path())).unwrap()).unwrap();
            assert_eq!(fs::read(saved.path().join(&case.file)).unwrap(), case.bytes());
            fs::remove_file(saved.path().join(&case.file)).unwrap();
            let again = Tokenizer::load(saved.path()).unwrap();
            // CamemBERT's class takes the tokens that are not used for special ones where it reads
            // a tokenizer.json, and only there.
            for (text, ids) in case.texts.iter().filter(|(text, _)| !text.contains("NOTUSED")) {
                assert_eq!(&again.encode(text).unwrap(), ids, "{name}: {text:?}");
            }
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
        // Each beginning of the file, up to the end of the settings of the normalizer, which is the
        // last that is read.
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
            (
                "tokenizer_config.json",
                r#"{"tokenizer_class": "LlamaTokenizer"}"#,
                "LlamaTokenizer needs tokenizer.json",
            ),
            (
                "tokenizer_config.json",
                r#"{"tokenizer_class": "BertTokenizer"}"#,
                "BertTokenizer needs tokenizer.json or vocab.txt",
            ),
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
        assert!(!Tokenizer::is_read(folder.path()), "nothing says whose it is");
        for (class, is_read) in [("LlamaTokenizer", false), ("AlbertTokenizer", true)] {
            fs::write(folder.path().join(CONFIG), format!("{{\"tokenizer_class\": \"{class}\"}}")).unwrap();
            assert_eq!(Tokenizer::is_read(folder.path()), is_read, "{class}");
        }
    }
}
