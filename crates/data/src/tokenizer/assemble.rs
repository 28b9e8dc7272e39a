//! The pipeline of a class around its vocabulary: the `tokenizer.json` that the class would write,
//! with the tokens of the files.

use kiln_core::error::{Error, Result};
use serde_json::{Value, json};
use tokenizers::AddedToken;
use tokenizers::processors::PostProcessorWrapper;

use super::classes::{Ends, Kind};
use super::error::unreadable;
use super::files::Stated;
use super::names::{CONFIG, SPECIAL};
use crate::guard::guarded;

/// The parts from the files around which a class builds its pipeline.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    /// The vocabulary, as `tokenizer.json` writes it.
    pub(super) vocab: Value,
    /// The merges of a BPE, likewise.
    pub(super) merges: Value,
    /// `post_processor` of `tokenizer.json`, which puts special tokens around texts.
    pub(super) post_processor: Value,
    /// The id that stands for what is unknown, by a model of SentencePiece.
    pub(super) unk_id: Option<usize>,
    /// The rule of normalisation of a model of SentencePiece.
    pub(super) charsmap: Option<Vec<u8>>,
    /// Special tokens without a role.
    pub(super) further: Option<Vec<AddedToken>>,
    /// Whether they come from a `tokenizer.json`.
    pub(super) is_whole: bool,
}

/// The pipeline that the class of `said` builds around `pieces`.
pub(super) fn assembled(said: &mut Stated, pieces: Pieces) -> Result<tokenizers::Tokenizer> {
    let class = said.class;
    let Pieces { vocab, merges, post_processor, unk_id, charsmap, further, is_whole } = pieces;
    if further.is_some() && !said.config.get("extra_special_tokens").is_some_and(Value::is_array) {
        said.further = further;
    }
    let args = said.arguments();
    let further = class.further(&args)?;
    let mut json = class.parts(&args, said.role("unk_token"), charsmap.as_deref())?;
    let stated = unk_id.or_else(|| args.0.get("unk_id")?.as_u64()?.try_into().ok());
    let unk_id = class.unk_id(&vocab, said.role("unk_token").unwrap_or_default(), stated);
    let takes_unk = match class.kind() {
        Some(Kind::WordPiece) => true,
        Some(Kind::Bpe) => json.pointer("/model/unk_token").is_some_and(Value::is_string),
        _ => false,
    };
    let lacks_unk = match said.role("unk_token") {
        Some(unk) if takes_unk => vocab.get(unk).is_none(),
        _ => vocab.as_array().is_some_and(|pieces| pieces.len() <= unk_id),
    };
    if lacks_unk {
        let unk = said.role("unk_token").unwrap_or_default();
        return Err(Error::data(format!(
            "unk_token = {unk:?}: expected a token of this vocabulary, as {CONFIG}, {SPECIAL} or the class {} names it",
            class.name()
        ))
        .help("correct unk_token, or take the files from one folder"));
    }
    let parts = [("type", class.kind().map_or(Value::Null, |kind| kind.name().into())), ("vocab", vocab)];
    for (name, value) in parts {
        json["model"][name] = value;
    }
    match class.kind() {
        Some(Kind::Bpe) => json["model"]["merges"] = merges,
        Some(Kind::Unigram) => json["model"]["unk_id"] = unk_id.into(),
        _ => {}
    }
    for (name, value) in [("version", "1.0".into()), ("added_tokens", json!([])), ("post_processor", post_processor)] {
        json[name] = value;
    }
    let mut inner = guarded(|| json.to_string().parse::<tokenizers::Tokenizer>().map_err(unreadable))?;
    complete(&mut inner, said, further, is_whole)?;
    Ok(inner)
}

/// Adds the tokens of `said` to `inner` and puts around texts what its class puts there.
/// `is_whole`: it comes from a `tokenizer.json`, beside which `add_bos_token` and `add_eos_token`
/// do not count.
pub(super) fn complete(
    inner: &mut tokenizers::Tokenizer,
    said: &mut Stated,
    further: Vec<AddedToken>,
    is_whole: bool,
) -> Result<()> {
    said.add_tokens(inner, further)?;
    let args = said.arguments();
    let role = |name: &'static str| -> Result<(String, u32)> {
        let token = said.role(name).ok_or_else(|| {
            Error::data(format!("{name}: expected a token, which {} puts beside a text, got null", said.class.name()))
        })?;
        let id = inner.token_to_id(token).or_else(|| inner.token_to_id(said.role("unk_token")?));
        let id = id.ok_or_else(|| Error::data(format!("{name} = {token:?}: the vocabulary has no such token")))?;
        Ok((token.to_owned(), id))
    };
    let is_asked = !is_whole && ["add_bos_token", "add_eos_token"].iter().any(|name| args.0.contains_key(*name));
    let is_stated = inner.get_post_processor().is_some();
    let around = match said.class.ends(&args, role)? {
        Ends::Class(value) => value,
        Ends::StatedOr(value) if !is_stated && !is_asked => value,
        Ends::Stated | Ends::StatedOr(_) if is_stated && !is_asked => return Ok(()),
        Ends::Asked | Ends::Stated | Ends::StatedOr(_) => {
            let asked = |name: &str, token: &'static str| -> Result<Option<(String, u32)>> {
                let is_asked = !is_whole && args.flag(name)?.unwrap_or(false) && said.role(token).is_some();
                is_asked.then(|| role(token)).transpose()
            };
            let [bos, eos] = [asked("add_bos_token", "bos_token")?, asked("add_eos_token", "eos_token")?];
            if bos.is_none() && eos.is_none() {
                inner.with_post_processor(None::<PostProcessorWrapper>);
                return Ok(());
            }
            let text = |name: &str, kind: u8| {
                let token = |token: &Option<(String, u32)>| {
                    token.as_ref().map(|(token, _)| json!({"SpecialToken": {"id": token, "type_id": kind}}))
                };
                let text = json!({"Sequence": {"id": name, "type_id": kind}});
                token(&bos).into_iter().chain([text]).chain(token(&eos)).collect::<Vec<_>>()
            };
            let special = bos.iter().chain(&eos);
            let special =
                special.map(|(token, id)| (token.clone(), json!({"id": token, "ids": [id], "tokens": [token]})));
            let pair = [text("A", 0), text("B", 1)].concat();
            json!({
                "type": "TemplateProcessing", "single": text("A", 0), "pair": pair,
                "special_tokens": special.collect::<serde_json::Map<_, _>>()
            })
        }
    };
    let around: PostProcessorWrapper =
        serde_json::from_value(around).map_err(|error| Error::data(format!("post_processor: {error}")))?;
    inner.with_post_processor(Some(around));
    Ok(())
}
