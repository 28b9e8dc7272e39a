//! A tokenizer: text to ids and back.

use std::ops::Range;

use kiln_core::error::{Error, Result};
use sha2::{Digest, Sha256};
use tokenizers::models::ModelWrapper;
use tokenizers::parallelism::MaybeParallelIterator;
use tokenizers::{Encoding, Token, TruncationDirection};

use super::classes::Class;
use super::error::failed;
use super::files::{Origin, Stated};
use super::names::END_OF_TEXT;
use crate::guard::guarded;

/// A tokenizer.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    pub(crate) inner: tokenizers::Tokenizer,
    pub(super) hash: [u8; 32],
    /// The folder that it came from with its files; none if it was learned or read from a file of
    /// another name.
    pub(super) origin: Option<Origin>,
    /// The class that its files name.
    pub(super) class: Option<Class>,
    /// Tokens by role, as the files state them or the class has them.
    pub(super) roles: Vec<(String, String)>,
    /// The side that a text which is too long loses.
    pub(crate) truncation: TruncationDirection,
    /// Whether the text of ids loses spaces before punctuation.
    cleans_up: bool,
    /// Settings of its files that Kiln does not follow, one line each.
    pub(super) notes: Vec<String>,
}

impl Tokenizer {
    /// Reads the text of a `tokenizer.json`.
    ///
    /// # Errors
    /// Text that is none.
    pub fn from_json(json: &str) -> Result<Self> {
        let inner = guarded(|| json.parse::<tokenizers::Tokenizer>().map_err(failed));
        Self::wrap(inner?, None, Stated::default())
    }

    /// The tokenizer `inner`, to which everything that `said` states has been added.
    pub(super) fn wrap(mut inner: tokenizers::Tokenizer, origin: Option<Origin>, said: Stated) -> Result<Self> {
        // Lengths are the collator's business; a file that truncates or pads would do it behind its
        // back.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(failed)?;
        let args = said.arguments();
        inner.set_encode_special_tokens(args.flag("split_special_tokens")?.unwrap_or(false));
        let is_bpe = matches!(inner.get_model(), ModelWrapper::BPE(_));
        let cleans_bpe = args.flag("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output")?;
        let cleans_up =
            args.flag("clean_up_tokenization_spaces")? == Some(true) && (!is_bpe || cleans_bpe == Some(true));
        let json = inner.to_string(false).map_err(failed)?;
        let (roles, truncation) = (said.roles(), said.truncation);
        let class = said.named.map(|named| named.class);
        let mut wrapped = Self { hash: [0; 32], inner, origin, class, roles, truncation, cleans_up, notes: said.told };
        wrapped.check_ids()?;
        let eot_id = wrapped.eot_id();
        // Every field is named, so that a new one is not forgotten: `inner` is in `json`, roles are
        // the business of templates, the rest says nothing of ids.
        let Self { hash, inner, origin: _, class: _, roles: _, truncation, cleans_up: _, notes: _ } = &mut wrapped;
        let mut all = Sha256::new();
        all.update(json.as_bytes());
        all.update(format!("{eot_id:?} ends documents, {truncation:?} is cut"));
        if inner.get_encode_special_tokens() {
            all.update("special tokens are text");
        }
        *hash = all.finalize().into();
        Ok(wrapped)
    }

    /// Refuses ids that no model has, and those of special tokens that the vocabulary has not.
    fn check_ids(&self) -> Result<()> {
        let size = self.vocab_size();
        if size == 0 {
            return Err(
                Error::data("expected tokens with their ids, got none").help("take the file from where it came again")
            );
        }
        if size > MAX_VOCAB_SIZE {
            return Err(Error::data(format!(
                "the largest id is {}; a model has at most {MAX_VOCAB_SIZE} tokens",
                size - 1
            ))
            .help("an id in a file of the tokenizer is wrong"));
        }
        // Special tokens are those that stay the same around other texts.
        let around = |mark| -> Result<Vec<(u32, String)>> {
            let one = guarded(|| self.inner.post_process(marked(mark, 0), None, true).map_err(failed))?;
            let tokens = [one, self.around_pair(mark)?].into_iter().flat_map(|encoding| {
                let tokens = encoding.get_ids().iter().copied().zip(encoding.get_tokens().iter().cloned());
                tokens.collect::<Vec<_>>()
            });
            Ok(tokens.collect())
        };
        let mut special = around(MARK)?.into_iter().zip(around(MARK - 1)?).filter(|(one, other)| one.0 == other.0);
        match special.find(|((id, _), _)| *id as usize >= size) {
            Some(((id, token), _)) => Err(Error::data(format!(
                "post_processor: it puts the token {token:?} with the id {id} around a text, but its vocabulary has {size} ids"
            ))
            .help("the post_processor must name ids of the vocabulary or of added_tokens")),
            None => Ok(()),
        }
    }

    /// The ids of `text`, with the special tokens that the tokenizer adds.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        guarded(|| Ok(self.inner.encode_fast(text, true).map_err(failed)?.get_ids().to_vec()))
    }

    /// The ids of several texts, on all cores.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn encode_batch(&self, texts: &[String]) -> Result<Vec<Vec<u32>>> {
        texts.into_maybe_par_iter().map(|text| self.encode(text)).collect()
    }

    /// The ids of parts of documents, on all cores, without the special tokens that go around a
    /// document; see [`around`](Self::around).
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn encode_pieces(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>> {
        // Only the ids are kept: an `Encoding` takes some thirty times their memory.
        let ids = texts
            .into_maybe_par_iter()
            .map(|text| guarded(|| Ok(self.inner.encode_fast(*text, false).map_err(failed)?.get_ids().to_vec())));
        ids.collect()
    }

    /// The ids of `text` without the special tokens that go around a text, and the bytes of it that
    /// each stands for.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn encode_with_offsets(&self, text: &str) -> Result<(Vec<u32>, Vec<Range<usize>>)> {
        guarded(|| {
            let encoding = self.inner.encode(text, false).map_err(failed)?;
            let places = encoding.get_offsets().iter().map(|(start, end)| *start..*end).collect();
            Ok((encoding.get_ids().to_vec(), places))
        })
    }

    /// The special tokens by role, such as `eos_token`, as the files state them.
    pub fn roles(&self) -> &[(String, String)] {
        &self.roles
    }

    /// The token of a role.
    pub(super) fn role(&self, role: &str) -> Option<&str> {
        self.roles.iter().find(|(name, _)| name == role).map(|(_, token)| token.as_str())
    }

    /// The text of the chat template in its files: `chat_template.jinja`, else `chat_template` of
    /// `tokenizer_config.json`, of several the one called `default`. None where there is none.
    ///
    /// # Errors
    /// A file that holds something else.
    pub fn chat_template(&self) -> Result<Option<String>> {
        self.origin.as_ref().map_or(Ok(None), |origin| origin.chat_template("default"))
    }

    /// The text of the template for conversations with tools, of a tokenizer with several:
    /// `tool_use`, as in `transformers`.
    ///
    /// # Errors
    /// A file that holds something else.
    pub fn chat_template_for_tools(&self) -> Result<Option<String>> {
        self.origin.as_ref().map_or(Ok(None), |origin| origin.chat_template("tool_use"))
    }

    /// The special tokens that [`encode`](Self::encode) puts before and after a text: none for
    /// GPT-2, `[CLS]` and `[SEP]` for BERT.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn around(&self) -> Result<(Vec<u32>, Vec<u32>)> {
        let all = guarded(|| self.inner.post_process(marked(MARK, 0), None, true).map_err(failed))?;
        let mut sides = all.get_ids().splitn(2, |id| *id == MARK).map(<[u32]>::to_vec);
        Ok((sides.next().unwrap_or_default(), sides.next().unwrap_or_default()))
    }

    /// A pair, each of whose texts is the one id `mark`, with the special tokens around it.
    pub(super) fn around_pair(&self, mark: u32) -> Result<Encoding> {
        guarded(|| self.inner.post_process(marked(mark, 0), Some(marked(mark, 1)), true).map_err(failed))
    }

    /// The text of `ids` without special tokens, as `transformers`' pipelines show it; a character
    /// that is cut in the middle shows as U+FFFD.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.text_of(ids, true)
    }

    /// The text of `ids` with special tokens.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn decode_with_special(&self, ids: &[u32]) -> Result<String> {
        self.text_of(ids, false)
    }

    fn text_of(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        // Some decoders of the library expect at least one token.
        if ids.is_empty() {
            return Ok(String::new());
        }
        let text = guarded(|| self.inner.decode(ids, skip_special).map_err(failed))?;
        // The changes are those of `clean_up_tokenization` in `transformers`.
        const CHANGES: [(&str, &str); 10] = [
            (" .", "."),
            (" ?", "?"),
            (" !", "!"),
            (" ,", ","),
            (" ' ", "'"),
            (" n't", "n't"),
            (" 'm", "'m"),
            (" 's", "'s"),
            (" 've", "'ve"),
            (" 're", "'re"),
        ];
        let changes = if self.cleans_up { &CHANGES[..] } else { &[] };
        Ok(changes.iter().fold(text, |text, (from, to)| text.replace(from, to)))
    }

    /// Number of ids, added tokens included: one more than the largest id.
    pub fn vocab_size(&self) -> usize {
        vocab_size(&self.inner)
    }

    /// The id of the first of `roles` that the files state, else of the first of the `usual` tokens
    /// that exists.
    fn role_id(&self, roles: &[&str], usual: &[&str]) -> Option<u32> {
        let mut tokens = roles.iter().filter_map(|role| self.role(role)).chain(usual.iter().copied());
        tokens.find_map(|token| self.token_id(token))
    }

    /// The id that stands for a masked token: the `mask_token` of the files, or `[MASK]` or
    /// `<mask>`.
    pub fn mask_id(&self) -> Option<u32> {
        self.role_id(&["mask_token"], &["[MASK]", "<mask>"])
    }

    /// The id of padding: the `pad_token` of the files, or `[PAD]` or `<pad>`.
    pub fn pad_id(&self) -> Option<u32> {
        self.role_id(&["pad_token"], &["[PAD]", "<pad>"])
    }

    /// The ids of special tokens, which are no text.
    pub fn special_ids(&self) -> Vec<u32> {
        let added = self.inner.get_added_tokens_decoder();
        added.into_iter().filter_map(|(id, token)| token.special.then_some(id)).collect()
    }

    /// Whether each id continues the word of the id before it; none for a model whose pieces do not
    /// tell.
    pub fn continuations(&self) -> Option<Vec<bool>> {
        // Word pieces mark what continues a word, byte-level BPE marks the space (or line end, or
        // tab) before one, SentencePiece the space.
        let continues: fn(&str) -> bool = match self.inner.get_model() {
            ModelWrapper::WordPiece(_) => |token| token.starts_with("##"),
            ModelWrapper::BPE(_) => |token| !token.starts_with(['Ġ', 'Ċ', 'ĉ']),
            ModelWrapper::Unigram(_) => |token| !token.starts_with('▁'),
            _ => return None,
        };
        let mut all = vec![false; self.vocab_size()];
        for (token, id) in self.inner.get_vocab(false) {
            all[id as usize] = continues(&token);
        }
        Some(all)
    }

    /// The id of a token.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The token of an id, as the vocabulary writes it; none for an id that it lacks.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The id that ends a document: the `eos_token` or else `sep_token` of the files, or
    /// `<|endoftext|>`, `</s>` or `[SEP]`, the first that exists.
    pub fn eot_id(&self) -> Option<u32> {
        self.role_id(&["eos_token", "sep_token"], &[END_OF_TEXT, "</s>", "[SEP]"])
    }

    /// SHA-256 of everything that decides the ids.
    pub fn content_hash(&self) -> [u8; 32] {
        self.hash
    }

    /// `tokenizer.json`.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn to_json(&self) -> Result<String> {
        self.inner.to_string(true).map_err(failed)
    }
}

/// An id that stands for a text while the special tokens around it are asked for.
pub(super) const MARK: u32 = u32::MAX;

/// The largest vocabulary that `ModelConfig` takes.
const MAX_VOCAB_SIZE: usize = 1 << 24;

/// A text of the one id `mark`, of the token type `kind`.
fn marked(mark: u32, kind: u32) -> Encoding {
    Encoding::from_tokens(vec![Token::new(mark, "a".into(), (0, 1))], kind)
}

pub(super) fn vocab_size(inner: &tokenizers::Tokenizer) -> usize {
    // An added token may give a token of the vocabulary another id, and the text still has the
    // first one.
    let of_text = inner.get_vocab(false).into_values().max();
    let added = inner.get_added_tokens_decoder().into_keys().max();
    of_text.max(added).map_or(0, |id| id as usize + 1)
}
