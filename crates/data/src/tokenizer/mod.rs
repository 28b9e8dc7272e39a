//! Text to ids and back: a wrapper around the `tokenizers` crate that knows the files Hugging Face
//! folders hold, and learns a byte-level BPE when there is none.

mod assemble;
mod classes;
mod files;
#[cfg(test)]
mod mutations;
mod names;
#[cfg(test)]
mod peers;
mod row_encoder;
mod sentence_piece;

use std::ops::Range;
use std::path::Path;

use assemble::{Pieces, assembled, complete};
use base64::prelude::{BASE64_STANDARD, Engine as _};
pub use classes::CLASSES;
use classes::{Class, Kind};
pub use files::{FILES, chat_templates, read_file, tokenizer_config, tokenizer_files};
use files::{Origin, Stated};
use kiln_core::error::{Error, ErrorKind, Result};
pub use kiln_core::files::{NamedFile, write_files};
use kiln_core::files::{read_error, read_regular_text};
use kiln_core::told::tell_once;
use kiln_core::words::{json_words, serde_words};
pub use names::{CONFIG_NAMES, END_OF_TEXT, JSON_NAMES, SPECIAL_NAMES};
pub use row_encoder::{Encoded, RowEncoder, RowKind};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::models::{ModelWrapper, TrainerWrapper};
use tokenizers::parallelism::MaybeParallelIterator;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Encoding, Token, TruncationDirection};

use super::corpus::Corpus;
use super::guard::guarded;
use crate::squad::WindowEncoder;

/// Merges are learned from at most this much text, drawn from the corpus in a seeded order: what a
/// vocabulary needs to know of a language fits in it, and memory stays bounded whatever the corpus.
pub const TRAIN_BYTES: usize = 16 << 20;

/// The text that a vocabulary is learned from, in pieces: [`TRAIN_BYTES`] at the most.
pub(super) fn training_text(corpus: &Corpus, seed: u64) -> impl Iterator<Item = Result<String>> + Send {
    let mut left = TRAIN_BYTES;
    corpus.sample(TRAIN_BYTES as u64, seed, TRAIN_PIECE).map_while(move |piece| {
        let text = piece.map(|piece| {
            let mut text = piece.text;
            text.truncate(text.floor_char_boundary(left));
            text
        });
        let is_over = left == 0;
        left -= text.as_ref().map_or(0, String::len);
        (!is_over).then_some(text)
    })
}

/// Text is read in pieces of this many bytes while the vocabulary is learned.
const TRAIN_PIECE: usize = 64 << 10;

/// A tokenizer.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    hash: [u8; 32],
    /// The folder that it came from with its files; none if it was learned or read from a file of
    /// another name.
    origin: Option<Origin>,
    /// The class that its files name.
    class: Option<Class>,
    /// Tokens by role, as the files state them or the class has them.
    roles: Vec<(String, String)>,
    /// The side that a text which is too long loses.
    truncation: TruncationDirection,
    /// Whether the text of ids loses spaces before punctuation.
    cleans_up: bool,
    /// Settings of its files that Kiln does not follow, one line each.
    notes: Vec<String>,
}

impl Tokenizer {
    /// Whether `folder` holds files that [`load`](Self::load) reads.
    pub fn is_in(folder: &Path) -> bool {
        let has = |name: &str| folder.join(name).is_file();
        has("tokenizer.json")
            || has("vocab.txt")
            || (has("vocab.json") && has("merges.txt"))
            || (has("encoder.json") && has("vocab.bpe"))
            || sentence_piece::NAMES.into_iter().any(has)
    }

    /// Whether the files of `folder` are those of a class of tokenizers that is implemented.
    pub fn is_read(folder: &Path) -> bool {
        let named = || -> Result<bool> {
            let named = classes::named(folder, &tokenizer_config(folder)?)?;
            Ok(named.is_some() || !sentence_piece::NAMES.into_iter().any(|name| folder.join(name).is_file()))
        };
        Self::is_in(folder) && named().unwrap_or(false)
    }

    /// Reads a folder with `tokenizer.json`, `vocab.json` and `merges.txt` (or OpenAI's names,
    /// `encoder.json` and `vocab.bpe`), `vocab.txt`, or a model of SentencePiece; or one such file.
    /// The class that `tokenizer_config.json` or `config.json` names builds its pipeline around the
    /// vocabulary, with the settings and tokens of the files beside it, so that ids are those of
    /// `transformers`' `AutoTokenizer`. What the files say and Kiln does not follow is told once.
    ///
    /// # Errors
    /// None of these files, one that cannot be read, or a class that is not implemented.
    pub fn load(path: &Path) -> Result<Self> {
        let loaded = guarded(|| Self::read(path)).map_err(|error| match error.kind() {
            ErrorKind::Data if !error.to_string().starts_with(&path.display().to_string()) => error.at(path.display()),
            _ => error,
        })?;
        for note in &loaded.notes {
            tell_once(format!("{}: {note}", path.display()));
        }
        Ok(loaded)
    }

    fn read(path: &Path) -> Result<Self> {
        let (folder, file) = if path.is_dir() {
            (path, None)
        } else {
            (path.parent().unwrap_or(Path::new(".")), path.file_name().and_then(|name| name.to_str()))
        };
        let find = |name: &str| {
            let there = folder.join(name);
            (file.is_none_or(|file| file == name) && there.is_file()).then_some(there)
        };
        if let Some(found) = find("tokenizer.json") {
            let origin = Origin::read(folder, &[])?;
            return Self::whole(&found, origin).map_err(|error| error.at(found.display()));
        }
        // The class decides which of several vocabularies is read.
        let named = classes::named(folder, &tokenizer_config(folder)?)?.map(|named| named.class);
        let reads = |kind: Kind| named.is_none_or(|class| class.kind() == Some(kind));
        for (vocab, merges) in [("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")] {
            // Under OpenAI's names `transformers` does not find them, so they are written anew.
            let known = vocab == "vocab.json";
            let (vocab, merges) = (folder.join(vocab), folder.join(merges));
            let given = |path: &Path| file.is_none_or(|file| path.file_name().is_some_and(|name| name == file));
            if reads(Kind::Bpe) && vocab.is_file() && merges.is_file() && (given(&vocab) || given(&merges)) {
                let read = BPE::read_file(&vocab.to_string_lossy(), &merges.to_string_lossy());
                let (pieces, merges) = read.map_err(|error| unreadable(error).at(vocab.display()))?;
                let has = |token: &str| pieces.contains_key(token);
                let usual = if has(END_OF_TEXT) || !has("<s>") || !has("</s>") { Class::Gpt2 } else { Class::Roberta };
                let pieces = Pieces { vocab: json!(pieces), merges: json!(merges), ..Pieces::default() };
                let origin = Origin::read(folder, &["tokenizer.json", "vocab.txt"])?;
                let mut said = Stated::read(&origin, None, usual)?;
                let inner = assembled(&mut said, pieces).map_err(|error| error.at(vocab.display()))?;
                return Self::wrap(inner, known.then_some(origin), said).map_err(|error| error.at(vocab.display()));
            }
        }
        if let Some(found) = find("vocab.txt").filter(|_| reads(Kind::WordPiece)) {
            let origin = Origin::read(folder, &["tokenizer.json", "vocab.json", "merges.txt"])?;
            let mut said = Stated::read(&origin, None, Class::Bert)?;
            let pieces = WordPiece::read_file(&found.to_string_lossy());
            let pieces = pieces.map_err(|error| unreadable(error).at(found.display()))?;
            let needed = ["unk_token", "cls_token", "sep_token"].into_iter().filter_map(|role| said.role(role));
            if let Some(token) = needed.into_iter().find(|token| !pieces.contains_key(*token)) {
                let found = found.display();
                return Err(Error::data(format!("{found}: expected BERT's word pieces, but {token} is missing")));
            }
            let inner = assembled(&mut said, Pieces { vocab: json!(pieces), ..Pieces::default() });
            let inner = inner.map_err(|error| error.at(found.display()))?;
            return Self::wrap(inner, Some(origin), said).map_err(|error| error.at(found.display()));
        }
        if let Some(found) = sentence_piece::NAMES.into_iter().find_map(find).filter(|_| reads(Kind::Unigram)) {
            if named.is_none() {
                return Err(Error::data(format!(
                    "{}: the files beside it do not say whose tokenizer it is",
                    found.display()
                ))
                .help(
                    "name the class of the tokenizer as tokenizer_class in tokenizer_config.json, or save it as tokenizer.json, by \
                     AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) in Python",
                ));
            }
            let origin = Origin::read(folder, &["tokenizer.json", "vocab.json", "merges.txt", "vocab.txt"])?;
            let mut said = Stated::read(&origin, None, Class::AsItStands)?;
            let pieces = sentence_piece::pieces(said.class, &found, &said)?;
            let inner = assembled(&mut said, pieces).map_err(|error| error.at(found.display()))?;
            // With it the folder of a trained model is opened also where SentencePiece is not
            // installed.
            let text = inner.to_string(false).map_err(failed)?;
            let wrapped = Self::wrap(inner, Some(origin.with_json(text)), said);
            return wrapped.map_err(|error| error.at(found.display()));
        }
        for (vocab, merges) in [("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")] {
            for (there, missing) in [(vocab, merges), (merges, vocab)] {
                if find(there).is_some() && !folder.join(missing).is_file() && reads(Kind::Bpe) {
                    let there = folder.join(there);
                    return Err(Error::data(format!("{}: {missing} is missing beside it", there.display()))
                        .help("a byte-level BPE is a vocabulary and its merges: both files are needed"));
                }
            }
        }
        if let Some(file) = file.filter(|file| file.ends_with(".json") && folder.join(file).is_file()) {
            let found = folder.join(file);
            let inner = tokenizers::Tokenizer::from_file(&found).map_err(unreadable);
            let wrapped = inner.and_then(|inner| Self::wrap(inner, None, Stated::default()));
            return wrapped.map_err(|error| error.at(found.display()));
        }
        Err(match named {
            Some(class) => {
                let files = class.kind().map_or(String::new(), |kind| format!(" or {}", kind.files()));
                let name = class.name();
                Error::data(format!("{}: no tokenizer found: {name} needs tokenizer.json{files}", path.display())).help(
                    "tokenizer_config.json or config.json names this class, by tokenizer_class or model_type; put its files there, or \
                     name the class of those that are there as tokenizer_class",
                )
            }
            None => Error::data(format!("{}: no tokenizer found", path.display())).help(
                "expected tokenizer.json, vocab.json with merges.txt, vocab.txt, sentencepiece.bpe.model or spiece.model",
            ),
        })
    }

    /// The tokenizer whose `tokenizer.json` is `found`, among the files `origin`.
    fn whole(found: &Path, origin: Origin) -> Result<Self> {
        let text = read_regular_text(found).map_err(|error| read_error(found, &error))?;
        let mut json: Value = serde_json::from_str(&text).map_err(|error| unreadable(error.into()))?;
        let mut said = Stated::read(&origin, Some(&json), Class::AsItStands)?;
        if let Some(object) = json.as_object() {
            said.check_json(object)?;
        }
        let Some(kind) = said.class.kind() else {
            let mut inner = text.parse::<tokenizers::Tokenizer>().map_err(unreadable)?;
            complete(&mut inner, &mut said, Vec::new(), true)?;
            return Self::wrap(inner, Some(origin), said);
        };
        let model = json.get("model");
        let found = model.and_then(|model| model.get("type")).and_then(Value::as_str);
        if let Some(found) = found.filter(|found| *found != kind.name()) {
            let class = said.class.name();
            return Err(Error::data(format!(
                "model.type = {found:?}, but {class}, the class that tokenizer_config.json or config.json names, has the model {}",
                kind.name()
            ))
            .help(
                "if tokenizer.json is to be read as it stands, set tokenizer_class = \"PreTrainedTokenizerFast\" in tokenizer_config.json; \
                 otherwise take the files from one folder",
            ));
        }
        let charsmap = |part: &Value| {
            let map = part.get("precompiled_charsmap")?.as_str()?;
            BASE64_STANDARD.decode(map).ok()
        };
        let normalizer = json.get("normalizer");
        let parts = normalizer.and_then(|part| part.get("normalizers")?.as_array()).map_or(&[][..], Vec::as_slice);
        let pieces = Pieces {
            charsmap: normalizer.and_then(charsmap).or_else(|| parts.iter().find_map(charsmap)),
            vocab: json.pointer_mut("/model/vocab").map(Value::take).unwrap_or_default(),
            merges: json.pointer_mut("/model/merges").map(Value::take).unwrap_or_default(),
            post_processor: json.get_mut("post_processor").map(Value::take).unwrap_or_default(),
            is_whole: true,
            ..Pieces::default()
        };
        let inner = assembled(&mut said, pieces)?;
        Self::wrap(inner, Some(origin), said)
    }

    /// Learns a byte-level BPE (Radford et al. 2019) of `vocab_size` tokens from `corpus`: 256
    /// bytes, end-of-text (id 0), and merges. Deterministic for a seed. The vocabulary is smaller
    /// when the text does not yield as many merges.
    ///
    /// # Errors
    /// Text that cannot be read; fewer than 257 tokens asked for.
    pub fn train_bpe(corpus: &Corpus, vocab_size: usize, seed: u64) -> Result<Self> {
        if vocab_size < 257 {
            return Err(Error::config(format!("tokenizer.train_vocab_size: expected at least 257, got {vocab_size}"))
                .help("256 bytes and end-of-text are always in it"));
        }
        let mut trainer = BpeTrainerBuilder::new()
            .vocab_size(vocab_size)
            .show_progress(false)
            .special_tokens(vec![AddedToken::from(END_OF_TEXT, true)])
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .build();
        // Read as it is counted, never all at once. A failure ends the text, and is told when the
        // counting is over.
        let mut failed = None;
        let texts = training_text(corpus, seed).map_while(|text| text.map_err(|error| failed = Some(error)).ok());
        let mut inner = tokenizers::Tokenizer::new(BPE::default());
        inner.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
        inner.with_decoder(Some(ByteLevel::new(false, true, true)));
        let mut wrapped = TrainerWrapper::BpeTrainer(std::mem::take(&mut trainer));
        let learned = inner.train(&mut wrapped, texts).map(drop);
        failed.map_or(Ok(()), Err)?;
        learned.map_err(|error| Error::data(format!("learning the tokenizer failed: {error}")))?;
        Self::wrap(inner, None, Stated::default())
    }

    /// Reads the text of a `tokenizer.json`.
    ///
    /// # Errors
    /// Text that is none.
    pub fn from_json(json: &str) -> Result<Self> {
        let inner = guarded(|| json.parse::<tokenizers::Tokenizer>().map_err(failed));
        Self::wrap(inner?, None, Stated::default())
    }

    /// The tokenizer `inner`, to which everything that `said` states has been added.
    fn wrap(mut inner: tokenizers::Tokenizer, origin: Option<Origin>, said: Stated) -> Result<Self> {
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
    fn role(&self, role: &str) -> Option<&str> {
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
    fn around_pair(&self, mark: u32) -> Result<Encoding> {
        guarded(|| self.inner.post_process(marked(mark, 0), Some(marked(mark, 1)), true).map_err(failed))
    }

    /// Cuts questions and their contexts into windows; see [`WindowEncoder::new`].
    ///
    /// # Errors
    /// A stride that leaves nothing new for a window.
    pub fn window_encoder(&self, max_length: usize, doc_stride: usize, token_types: bool) -> Result<WindowEncoder> {
        WindowEncoder::new(&self.inner, self.hash, max_length, doc_stride, self.truncation, token_types)
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
const MARK: u32 = u32::MAX;

/// The largest vocabulary that `ModelConfig` takes.
const MAX_VOCAB_SIZE: usize = 1 << 24;

/// A text of the one id `mark`, of the token type `kind`.
fn marked(mark: u32, kind: u32) -> Encoding {
    Encoding::from_tokens(vec![Token::new(mark, "a".into(), (0, 1))], kind)
}

fn failed(error: tokenizers::Error) -> Error {
    Error::data(format!("tokenizer: {}", words_of(&error)))
}

/// The message of an error of the library `tokenizers`, in the words of Kiln's own messages.
fn words_of(error: &tokenizers::Error) -> String {
    let said = error.to_string();
    let Some(error) = error.downcast_ref::<serde_json::Error>() else {
        return match error.downcast_ref::<std::io::Error>() {
            Some(error) if error.kind() == std::io::ErrorKind::InvalidData => "expected UTF-8 text".to_owned(),
            _ => serde_words(&said, "an object"),
        };
    };
    // The library tries one kind of part after the other, and names the Rust type that holds them.
    let name = said.split_once("untagged enum ").and_then(|(_, name)| name.split_whitespace().next());
    let part =
        name.map(|name| ["Wrapper", "Untagged", "Helper"].iter().fold(name, |name, end| name.trim_end_matches(end)));
    match part {
        Some("Model") => "model: expected BPE, WordPiece, WordLevel or Unigram with what belongs to it".to_owned(),
        Some(part) => format!("{}: expected a kind and a form that the library knows", part.to_lowercase()),
        None if said.starts_with("Model missing") => "the field `model` is missing".to_owned(),
        None => json_words(error),
    }
}

fn vocab_size(inner: &tokenizers::Tokenizer) -> usize {
    // An added token may give a token of the vocabulary another id, and the text still has the
    // first one.
    let of_text = inner.get_vocab(false).into_values().max();
    let added = inner.get_added_tokens_decoder().into_keys().max();
    of_text.max(added).map_or(0, |id| id as usize + 1)
}

fn unreadable(error: tokenizers::Error) -> Error {
    Error::data(format!("not a readable tokenizer: {}", words_of(&error)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::table::Row;
    use std::fs;

    use kiln_core::model_config::{ModelConfig, ModelType};

    use super::files::FILES;
    use super::*;
    use crate::settings::Documents;

    /// Writes the folder of a model of `size` as a run does, which was trained from the folder
    /// `from`, if any.
    fn save(tokenizer: &Tokenizer, kind: ModelType, size: &str, from: Option<&Path>, folder: &Path) -> Value {
        let model = ModelConfig::preset(kind, size).unwrap();
        write_files(folder, &tokenizer.files(&model, from).unwrap()).unwrap();
        let text = fs::read(folder.join("tokenizer_config.json")).unwrap_or(b"null".to_vec());
        serde_json::from_slice(&text).unwrap()
    }

    fn corpus(folder: &tempfile::TempDir) -> Corpus {
        let text = "fn main() { println!(\"hällo wörld 你好\"); }\n".repeat(20);
        fs::write(folder.path().join("a.rs"), text).unwrap();
        Corpus::open(&[format!("{}/a.rs", folder.path().display())], Documents::File).unwrap()
    }

    #[test]
    fn a_learned_bpe_is_lossless_deterministic_and_survives_saving() {
        let folder = tempfile::tempdir().unwrap();
        let corpus = corpus(&folder);
        let tokenizer = Tokenizer::train_bpe(&corpus, 290, 1).unwrap();
        assert_eq!(tokenizer.vocab_size(), 290);
        assert_eq!(tokenizer.eot_id(), Some(0));
        let text = "fn other() { /* never seen: ü 你 🦀 */ }";
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(tokenizer.decode(&ids).unwrap(), text);
        assert!(ids.len() < text.len());
        assert_eq!(Tokenizer::train_bpe(&corpus, 290, 1).unwrap().content_hash(), tokenizer.content_hash());
        let said = save(&tokenizer, ModelType::Gpt2, "small", None, folder.path());
        let expected = serde_json::json!({
            "tokenizer_class": "GPT2Tokenizer", "model_max_length": 1024, "model_input_names": ["input_ids", "attention_mask"],
            "clean_up_tokenization_spaces": false, "bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT, "unk_token": END_OF_TEXT,
            "add_prefix_space": false
        });
        assert_eq!(said, expected);
        assert!(Tokenizer::is_in(folder.path()));
        let loaded = Tokenizer::load(folder.path()).unwrap();
        assert_eq!(loaded.encode(text).unwrap(), ids);
        assert_eq!(loaded.content_hash(), tokenizer.content_hash());
        assert!(Tokenizer::train_bpe(&corpus, 100, 1).is_err());
    }

    #[test]
    fn word_pieces_get_berts_pipeline() {
        let folder = tempfile::tempdir().unwrap();
        let pieces = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\nwor\n##ld\n";
        fs::write(folder.path().join("vocab.txt"), pieces).unwrap();
        let ids = |folder: &Path| Tokenizer::load(folder).unwrap().encode("Hello world !").unwrap();
        assert_eq!(ids(folder.path()), [2, 5, 6, 7, 1, 3]);
        let tokenizer = Tokenizer::load(folder.path()).unwrap();
        assert_eq!(tokenizer.around().unwrap(), (vec![2], vec![3]));
        assert_eq!(tokenizer.encode_pieces(&["Hello", " world !"]).unwrap(), [vec![5], vec![6, 7, 1]]);
        assert_eq!(tokenizer.encode_batch(&["Hello".into()]).unwrap(), [[2, 5, 3]]);
        fs::write(folder.path().join("tokenizer_config.json"), "{\"do_lower_case\": false}").unwrap();
        assert_eq!(ids(folder.path()), [2, 1, 6, 7, 1, 3]);
        fs::write(folder.path().join("vocab.txt"), "hello\n").unwrap();
        assert!(Tokenizer::load(folder.path()).unwrap_err().to_string().contains("[UNK] is missing"));
    }

    #[test]
    fn of_a_long_text_the_side_that_the_files_name_is_cut() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("vocab.txt"), PIECES).unwrap();
        // Longer than the 32 bytes a token that are looked at first.
        let text = "hello ".repeat(200) + "world hello" + &" world".repeat(200) + " hello";
        let ids = |side: &str| {
            let config = format!(r#"{{"truncation_side": "{side}"}}"#);
            fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
            let tokenizer = Tokenizer::load(folder.path()).unwrap();
            let row = Row::of(&text, None);
            tokenizer.row_encoder(6, RowKind::Single, false).unwrap().encode(&[row]).unwrap().remove(0).ids
        };
        assert_eq!(ids("right"), [2, 5, 5, 5, 5, 3]);
        assert_eq!(ids("left"), [2, 7, 6, 7, 5, 3]);
    }

    #[test]
    fn openais_file_names_work() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("encoder.json"), r#"{"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}"#).unwrap();
        fs::write(folder.path().join("vocab.bpe"), "#version: 0.2\na b\n").unwrap();
        let tokenizer = Tokenizer::load(folder.path()).unwrap();
        assert_eq!(tokenizer.encode("abb<|endoftext|>").unwrap(), [2, 1, 3]);
        assert_eq!(tokenizer.vocab_size(), 4);
        assert_eq!(tokenizer.around().unwrap(), (vec![], vec![]));
        // Either file names both.
        for name in ["encoder.json", "vocab.bpe"] {
            assert_eq!(Tokenizer::load(&folder.path().join(name)).unwrap().content_hash(), tokenizer.content_hash());
        }
    }

    #[test]
    fn ids_that_cannot_be_are_refused_with_their_file() {
        let vocab = r#"{"a": 0, "b": 20000000}"#;
        let whole = format!(r#"{{"version": "1.0", "model": {{"type": "BPE", "vocab": {vocab}, "merges": []}}}}"#);
        let large = "the largest id is 20000000";
        for (file, text, beside, said) in [
            ("tokenizer.json", whole.as_str(), ("README.md", ""), large),
            ("mine.json", &whole, ("README.md", ""), large),
            ("vocab.json", vocab, ("merges.txt", "#version: 0.2\n"), large),
            ("encoder.json", vocab, ("vocab.bpe", "#version: 0.2\n"), large),
            ("vocab.txt", PIECES, ("added_tokens.json", r#"{"<x>": 9}"#), "expected the id 9"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(file);
            fs::write(&path, text).unwrap();
            fs::write(folder.path().join(beside.0), beside.1).unwrap();
            let given = if file == "mine.json" { path.as_path() } else { folder.path() };
            let error = Tokenizer::load(given).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{}: ", path.display())) && error.contains(said), "{error}");
            assert_eq!(error.matches(file).count(), 1, "{error}");
        }
    }

    #[test]
    fn robertas_files_get_robertas_pipeline() {
        let folder = tempfile::tempdir().unwrap();
        let vocab =
            r#"{"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4, "b": 5, "ab": 6, "Ġ": 7, "Ġa": 8, "<mask>": 9}"#;
        fs::write(folder.path().join("vocab.json"), vocab).unwrap();
        fs::write(folder.path().join("merges.txt"), "#version: 0.2\na b\nĠ a\n").unwrap();
        let tokenizer = Tokenizer::load(folder.path()).unwrap();
        // As transformers 5.23 reads the same two files.
        assert_eq!(tokenizer.encode("ab a <mask> b").unwrap(), [0, 6, 8, 7, 9, 7, 5, 2]);
        assert_eq!(tokenizer.around().unwrap(), (vec![0], vec![2]));
        let config = save(&tokenizer, ModelType::Roberta, "base", None, folder.path());
        for (role, token) in [
            ("tokenizer_class", "RobertaTokenizer"),
            ("cls_token", "<s>"),
            ("sep_token", "</s>"),
            ("pad_token", "<pad>"),
            ("mask_token", "<mask>"),
        ] {
            assert_eq!(config[role], token);
        }
        assert_eq!(config["model_max_length"], 512);
    }

    /// Every file under `folder` with what is in it.
    fn contents(folder: &Path) -> std::collections::BTreeMap<String, Vec<u8>> {
        let names = FILES.iter().map(ToString::to_string).chain(chat_templates(folder));
        names.filter_map(|name| Some((name.clone(), fs::read(folder.join(name)).ok()?))).collect()
    }

    const PIECES: &str = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\nwor\n##ld\n";

    #[test]
    fn what_came_from_a_folder_is_saved_as_it_came() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let config =
            "{\n \"tokenizer_class\":\"BertTokenizer\",  \"padding_side\": \"left\", \"model_max_length\": 77}";
        for (name, text) in [
            ("vocab.txt", PIECES),
            ("tokenizer_config.json", config),
            ("special_tokens_map.json", "{ \"mask_token\": \"[MASK]\" }"),
            ("added_tokens.json", "{\"<x>\": 8}"),
            ("chat_template.jinja", "{{ messages }}"),
            ("additional_chat_templates/tools.jinja", "{{ tools }}"),
            ("tokenizer.model", "sentencepiece"),
            ("readme.md", "not a tokenizer's"),
        ] {
            write_files(from.path(), &[(name.into(), text.as_bytes().into())]).unwrap();
        }
        let tokenizer = Tokenizer::load(from.path()).unwrap();
        assert_eq!(tokenizer.encode("hello <x>").unwrap(), [2, 5, 8, 3], "the added token is one");
        for (folder, own) in [("own", Some(from.path())), ("new", None)] {
            save(&tokenizer, ModelType::Bert, "base", own, &to.path().join(folder));
            assert_eq!(contents(&to.path().join(folder)), contents(from.path()), "{folder}");
            assert!(!to.path().join(folder).join("readme.md").exists());
        }
        // Saved again from there, nothing has changed either.
        let again = Tokenizer::load(&to.path().join("own")).unwrap();
        assert_eq!(again.content_hash(), tokenizer.content_hash());
        save(&again, ModelType::Bert, "base", None, &to.path().join("again"));
        assert_eq!(contents(&to.path().join("again")), contents(from.path()));
        // A model of another family names what it takes, and the rest stays.
        let said = save(&tokenizer, ModelType::DistilBert, "base", None, &to.path().join("distilbert"));
        assert_eq!(said["model_input_names"], serde_json::json!(["input_ids", "attention_mask"]));
        assert_eq!((&said["tokenizer_class"], &said["model_max_length"]), (&"BertTokenizer".into(), &77.into()));
        let (mut other, mut same) = (contents(&to.path().join("distilbert")), contents(from.path()));
        other.remove("tokenizer_config.json");
        same.remove("tokenizer_config.json");
        assert_eq!(other, same);
        // In the model's own folder it stays even so: transformers read it like this before.
        save(&tokenizer, ModelType::DistilBert, "base", Some(from.path()), &to.path().join("distilbert-own"));
        assert_eq!(contents(&to.path().join("distilbert-own")), contents(from.path()));
    }

    #[test]
    fn a_vocabulary_alone_gets_the_class_of_the_model() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(from.path().join("vocab.txt"), PIECES).unwrap();
        let tokenizer = Tokenizer::load(&from.path().join("vocab.txt")).unwrap();
        let bert = save(&tokenizer, ModelType::Bert, "base", None, to.path());
        assert_eq!(bert["tokenizer_class"], "BertTokenizer");
        assert_eq!(bert["model_input_names"], serde_json::json!(["input_ids", "token_type_ids", "attention_mask"]));
        assert_eq!((&bert["do_lower_case"], &bert["mask_token"]), (&true.into(), &"[MASK]".into()));
        let distilbert = save(&tokenizer, ModelType::DistilBert, "base", None, to.path());
        assert_eq!(distilbert["tokenizer_class"], "DistilBertTokenizer");
        assert_eq!(distilbert["model_input_names"], serde_json::json!(["input_ids", "attention_mask"]));
        // A pipeline that no class of the family has is kept whole.
        let mut json: Value = serde_json::from_str(&tokenizer.to_json().unwrap()).unwrap();
        json["pre_tokenizer"] = serde_json::json!({"type": "Whitespace"});
        fs::remove_file(from.path().join("vocab.txt")).unwrap();
        fs::write(from.path().join("tokenizer.json"), json.to_string()).unwrap();
        let odd = save(&Tokenizer::load(from.path()).unwrap(), ModelType::Bert, "base", None, to.path());
        assert_eq!(odd["tokenizer_class"], "PreTrainedTokenizerFast");
        assert_eq!(odd["model_input_names"], bert["model_input_names"]);
    }

    #[test]
    fn the_files_beside_tokenizer_json_decide_ids_as_in_transformers() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("vocab.txt"), PIECES).unwrap();
        let json = Tokenizer::load(folder.path()).unwrap().to_json().unwrap();
        fs::write(folder.path().join("tokenizer.json"), json).unwrap();
        let config = |text: &str| fs::write(folder.path().join("tokenizer_config.json"), text).unwrap();
        // Ids as transformers 4.57 gives them for the same files.
        config(
            r#"{"tokenizer_class": "BertTokenizer", "do_lower_case": false, "truncation_side": "left",
                "additional_special_tokens": ["<e>"], "eos_token": "<end>",
                "added_tokens_decoder": {"8": {"content": "<a>", "special": false, "normalized": true}}}"#,
        );
        let tokenizer = Tokenizer::load(folder.path()).unwrap();
        assert_eq!(tokenizer.encode("Hello hello <a><e> <end>").unwrap(), [2, 1, 5, 8, 10, 9, 3]);
        assert_eq!((tokenizer.eot_id(), tokenizer.vocab_size()), (Some(9), 11));
        let cut = tokenizer
            .row_encoder(4, RowKind::Single, false)
            .unwrap()
            .encode(&[Row::of("hello world hello", None)])
            .unwrap();
        assert_eq!(cut[0].ids, [2, 7, 5, 3], "the beginning is cut off");
        // Up to the first 8 tokens, which end with a word, the shorter text has one more.
        let pair = Row::of(&("hello ".repeat(7) + "world"), Some(&"hello ".repeat(30)));
        config("{}");
        let whole = Tokenizer::load(folder.path()).unwrap();
        let cut = whole.row_encoder(8, RowKind::Pair, true).unwrap().encode(&[pair]).unwrap();
        assert_eq!((cut[0].ids.len(), cut[0].types.iter().filter(|kind| **kind == 1).count()), (8, 4), "{cut:?}");
        let plain = tokenizer.content_hash();
        config(r#"{"tokenizer_class": "BertTokenizer", "do_lower_case": false, "additional_special_tokens": ["<e>"]}"#);
        assert_ne!(Tokenizer::load(folder.path()).unwrap().content_hash(), plain);
        for (text, says) in [
            ("[]", "tokenizer_config.json: expected a JSON object"),
            (r#"{"eos_token": 5}"#, "tokenizer_config.json: eos_token: expected a token, got 5"),
            (r#"{"truncation_side": "up"}"#, "truncation_side: expected \"left\" or \"right\""),
            (r#"{"added_tokens_decoder": {"99": {"content": "<a>"}}}"#, "expected the id 99"),
            (
                r#"{"tokenizer_class": "BertTokenizer", "do_lower_case": 1}"#,
                "do_lower_case: expected true or false, got 1",
            ),
        ] {
            config(text);
            let error = Tokenizer::load(folder.path()).unwrap_err();
            assert!(error.exit_code() == 3 && error.to_string().contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_no_tokenizer_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Tokenizer::load(folder.path()).unwrap_err().to_string().contains("no tokenizer found"));
        let missing = Tokenizer::load(&folder.path().join("none/tokenizer.json")).unwrap_err().to_string();
        assert!(missing.contains("no tokenizer found") && missing.contains("vocab.txt"), "{missing}");
        fs::write(folder.path().join("vocab.json"), "{}").unwrap();
        for path in [folder.path().to_path_buf(), folder.path().join("vocab.json")] {
            let half = Tokenizer::load(&path).unwrap_err().to_string();
            assert!(half.contains("merges.txt is missing"), "{half}");
        }
        fs::write(folder.path().join("tokenizer.json"), "{").unwrap();
        assert!(Tokenizer::load(folder.path()).unwrap_err().to_string().contains("not a readable tokenizer"));
    }
}
