//! Text to ids and back: a wrapper around the `tokenizers` crate that knows the files Hugging Face
//! folders hold, and learns a byte-level BPE when there is none.

mod assemble;
mod classes;
mod error;
mod files;
mod ids;
mod learn;
mod load;
mod names;
#[cfg(test)]
mod peers;
mod row_encoder;
mod saved;
mod sentence_piece;

pub use classes::CLASSES;
pub use files::{FILES, chat_templates, is_chat_template, read_file, tokenizer_config, tokenizer_files};
pub use ids::Tokenizer;
pub use kiln_core::files::{NamedFile, write_files};
pub use learn::TRAIN_BYTES;
pub(super) use learn::training_text;
pub use names::{CONFIG_NAMES, END_OF_TEXT, JSON_NAMES, SPECIAL_NAMES};
pub use row_encoder::{Encoded, RowEncoder, RowKind};

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::path::Path;

    use kiln_core::model_config::{ModelConfig, ModelType};
    use serde_json::Value;

    use super::*;
    use crate::corpus::Corpus;
    use crate::messages::messages;
    use crate::settings::Documents;
    use crate::table::Row;

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
        let messages = messages!();
        let vocab = r#"{"a": 0, "b": 20000000}"#;
        let whole = format!(r#"{{"version": "1.0", "model": {{"type": "BPE", "vocab": {vocab}, "merges": []}}}}"#);
        for (file, text, beside) in [
            ("tokenizer.json", whole.as_str(), ("README.md", "")),
            ("mine.json", &whole, ("README.md", "")),
            ("vocab.json", vocab, ("merges.txt", "#version: 0.2\n")),
            ("encoder.json", vocab, ("vocab.bpe", "#version: 0.2\n")),
            ("vocab.txt", PIECES, ("added_tokens.json", r#"{"<x>": 9}"#)),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(file);
            fs::write(&path, text).unwrap();
            fs::write(folder.path().join(beside.0), beside.1).unwrap();
            let given = if file == "mine.json" { path.as_path() } else { folder.path() };
            messages.refused(format!("{file}: {text}\n{}: {}", beside.0, beside.1), Tokenizer::load(given));
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
        let messages = messages!();
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
        for text in [
            "[]",
            r#"{"eos_token": 5}"#,
            r#"{"truncation_side": "up"}"#,
            r#"{"added_tokens_decoder": {"99": {"content": "<a>"}}}"#,
            r#"{"tokenizer_class": "BertTokenizer", "do_lower_case": 1}"#,
        ] {
            config(text);
            let error = Tokenizer::load(folder.path()).unwrap_err();
            assert_eq!(error.exit_code(), 3, "{text}: {error}");
            messages.add(text, error);
        }
    }

    #[test]
    fn what_is_no_tokenizer_is_refused() {
        let messages = messages!();
        let folder = tempfile::tempdir().unwrap();
        let refused = |name: &str| {
            let path = folder.path().join(name);
            messages.refused(path.display(), Tokenizer::load(&path));
        };
        refused("");
        refused("none/tokenizer.json");
        for (name, text) in [("vocab.json", "{}"), ("tokenizer.json", "{")] {
            fs::write(folder.path().join(name), text).unwrap();
            messages.given(name, text);
            refused("");
            refused("vocab.json");
        }
    }
}
