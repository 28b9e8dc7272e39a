//! Reads a tokenizer from the files of a folder.

use std::path::Path;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use kiln_core::error::{Error, ErrorKind, Result};
use kiln_core::files::{read_error, read_regular_text};
use kiln_core::told::tell_once;
use serde_json::{Value, json};
use tokenizers::models::bpe::BPE;
use tokenizers::models::wordpiece::WordPiece;

use super::assemble::{Pieces, assembled, complete};
use super::classes::{Class, Kind, named};
use super::error::{failed, unreadable};
use super::files::{Origin, Stated, tokenizer_config};
use super::ids::Tokenizer;
use super::names::END_OF_TEXT;
use super::sentence_piece;
use crate::guard::guarded;

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
            let named = named(folder, &tokenizer_config(folder)?)?;
            Ok(match named {
                Some(named) => named.class.has_other_files() || folder.join("tokenizer.json").is_file(),
                None => !sentence_piece::NAMES.into_iter().any(|name| folder.join(name).is_file()),
            })
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
        let named = named(folder, &tokenizer_config(folder)?)?.map(|named| named.class);
        let reads = |kind: Kind| named.is_none_or(|class| class.kind() == Some(kind) && class.has_other_files());
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
                let kind = class.kind().filter(|_| class.has_other_files());
                let files = kind.map_or(String::new(), |kind| format!(" or {}", kind.files()));
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
}
