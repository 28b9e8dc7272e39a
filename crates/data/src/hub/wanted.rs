//! Which files make a model or a tokenizer: what must be there, what may be, and which sets can
//! stand for one another. The same rules are applied to a local folder, a cached snapshot and the
//! listing of a repository on the Hub.

use std::collections::BTreeSet;
use std::path::Path;

use kiln_core::error::{Error, Result};
use kiln_core::files::{is_plain_name, read_json};
use kiln_core::words::shortened;

/// The files that a caller of [`resolve`](super::resolve) needs.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Their common name, for messages: "model", "tokenizer".
    pub what: &'static str,
    /// Files without which the folder is of no use.
    pub required: &'static [&'static str],
    /// Sets of files of which one is needed, best first; empty if there is no choice. A file that
    /// ends in `.index.json` brings the shards that its `weight_map` names.
    pub one_of: &'static [&'static [&'static str]],
    /// Files that are taken along where they exist.
    pub optional: &'static [&'static str],
    /// Whether a path to one single file will do instead of a folder.
    pub accepts_file: bool,
}

impl Wanted {
    /// A pretrained model: `config.json`, weights (safetensors before PyTorch's pickle, whole or
    /// sharded), and the tokenizer where the repository has one.
    pub const MODEL: Self = Self {
        what: "model",
        required: &["config.json"],
        one_of: &[
            &["model.safetensors"],
            &["model.safetensors.index.json"],
            &["pytorch_model.bin"],
            &["pytorch_model.bin.index.json"],
        ],
        optional: &[
            "tokenizer.json",
            "tokenizer_config.json",
            "vocab.json",
            "merges.txt",
            "vocab.txt",
            "sentencepiece.bpe.model",
            "spiece.model",
            "spm.model",
            "special_tokens_map.json",
            "added_tokens.json",
            "chat_template.jinja",
            "generation_config.json",
        ],
        accepts_file: false,
    };

    /// An adapter of PEFT's on a model that it names, with the tokenizer where the repository has
    /// one.
    pub const ADAPTER: Self = Self {
        what: "adapter",
        required: &["adapter_config.json"],
        one_of: &[&["adapter_model.safetensors"], &["adapter_model.bin"]],
        optional: &[
            "config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "vocab.json",
            "merges.txt",
            "vocab.txt",
            "sentencepiece.bpe.model",
            "spiece.model",
            "spm.model",
            "special_tokens_map.json",
            "added_tokens.json",
            "chat_template.jinja",
            "generation_config.json",
        ],
        accepts_file: false,
    };

    /// A tokenizer: `tokenizer.json`, or the byte-level BPE's `vocab.json` and `merges.txt`, or
    /// WordPiece's `vocab.txt`, or a model of SentencePiece. A single file will do.
    pub const TOKENIZER: Self = Self {
        what: "tokenizer",
        required: &[],
        one_of: &[
            &["tokenizer.json"],
            &["vocab.json", "merges.txt"],
            &["vocab.txt"],
            &["sentencepiece.bpe.model"],
            &["spiece.model"],
            &["spm.model"],
        ],
        // The model's config.json names the tokenizer's class where tokenizer_config.json does not.
        optional: &[
            "tokenizer_config.json",
            "special_tokens_map.json",
            "added_tokens.json",
            "chat_template.jinja",
            "config.json",
        ],
        accepts_file: true,
    };

    /// The files in words, for messages.
    pub(super) fn describe(&self) -> String {
        let sets: Vec<String> = self.one_of.iter().map(|set| set.join(" + ")).collect();
        let mut parts: Vec<String> = self.required.iter().map(|name| name.to_string()).collect();
        match sets.as_slice() {
            [] => {}
            [only] => parts.push(only.clone()),
            several => parts.push(several.join(" or ")),
        }
        parts.join(" and ")
    }

    /// With its article, as in "an adapter".
    pub(super) fn named(&self) -> String {
        let article = if self.what.starts_with('a') { "an" } else { "a" };
        format!("{article} {}", self.what)
    }

    /// The files that a folder lacks, in words; none if it is complete. A shard that an index names
    /// counts.
    pub(super) fn missing_in(&self, folder: &Path) -> Result<Option<String>> {
        let present = |name: &str| folder.join(name).is_file();
        let chosen = match self.choose(&present) {
            Ok(chosen) => chosen,
            Err(missing) => return Ok(Some(missing)),
        };
        for index in chosen {
            if let Some(shard) = shards(folder, index)?.into_iter().find(|shard| !present(shard)) {
                return Ok(Some(format!("{shard}, which {index} names")));
            }
        }
        Ok(None)
    }

    /// The files to take from a place where `present` says which exist, or in words what is
    /// missing. Shards are not among them: their names are known only once the index is there.
    pub(super) fn choose(&self, present: &impl Fn(&str) -> bool) -> std::result::Result<Vec<&'static str>, String> {
        if let Some(missing) = self.required.iter().find(|name| !present(name)) {
            return Err(missing.to_string());
        }
        let mut chosen = self.required.to_vec();
        if !self.one_of.is_empty() {
            let Some(set) = self.one_of.iter().find(|set| set.iter().all(|name| present(name))) else {
                let sets: Vec<String> = self.one_of.iter().map(|set| set.join(" + ")).collect();
                return Err(sets.join(", nor "));
            };
            chosen.extend_from_slice(set);
        }
        for name in self.optional {
            if present(name) && !chosen.contains(name) {
                chosen.push(name);
            }
        }
        Ok(chosen)
    }
}

/// The shards that `folder/name` lists if it is an index of sharded weights, else nothing.
///
/// # Errors
/// An index that is none, and names that lead out of the folder.
pub fn shards(folder: &Path, name: &str) -> Result<BTreeSet<String>> {
    if !name.ends_with(".index.json") {
        return Ok(BTreeSet::new());
    }
    let path = folder.join(name);
    let index: serde_json::Value = read_json(&path)?;
    let bad = |what: &str, got: Option<&serde_json::Value>| {
        let got = got.map_or_else(|| "nothing".to_string(), shortened);
        Error::data(format!("{}: {what}, got {got}", path.display()))
    };
    let map = index.get("weight_map");
    let Some(files) = map.and_then(serde_json::Value::as_object).filter(|files| !files.is_empty()) else {
        return Err(bad("expected `weight_map`, an object of tensor name = name of a file beside the index", map));
    };
    // Names come from a file that may be anybody's: nothing outside of the folder may be read for
    // them, or written.
    let name = |(tensor, file): (&String, &serde_json::Value)| match file.as_str().filter(|name| is_plain_name(name)) {
        Some(name) => Ok(name.to_string()),
        None => Err(bad(&format!("weight_map.{tensor}: expected the name of a file beside the index"), Some(file))),
    };
    files.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn safetensors_come_before_pickles() {
        let all = |_: &str| true;
        let chosen = Wanted::MODEL.choose(&all).unwrap();
        assert_eq!(chosen[..2], ["config.json", "model.safetensors"]);
        assert!(!chosen.contains(&"pytorch_model.bin"));
        let old = |name: &str| ["config.json", "pytorch_model.bin", "vocab.txt"].contains(&name);
        assert_eq!(Wanted::MODEL.choose(&old).unwrap(), ["config.json", "pytorch_model.bin", "vocab.txt"]);
        let half = |name: &str| name == "vocab.json";
        assert!(Wanted::TOKENIZER.choose(&half).unwrap_err().contains("vocab.json + merges.txt"));
    }

    #[test]
    fn a_missing_shard_is_missed() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("config.json", "{}");
        write("model.safetensors.index.json", r#"{"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}"#);
        write("m-1.safetensors", "x");
        let missing = Wanted::MODEL.missing_in(folder.path()).unwrap().unwrap();
        assert!(missing.starts_with("m-2.safetensors"), "{missing}");
        write("m-2.safetensors", "x");
        assert_eq!(Wanted::MODEL.missing_in(folder.path()).unwrap(), None);
    }

    #[test]
    fn an_index_cannot_lead_out_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        for file in ["../../etc/passwd", "/etc/passwd", "..", ".", "", "a/b", "a\\b", "C:x", "a\0", "a\n"] {
            let index = serde_json::json!({ "weight_map": { "a": file } });
            std::fs::write(folder.path().join("x.index.json"), index.to_string()).unwrap();
            assert!(shards(folder.path(), "x.index.json").is_err(), "{file} passed");
        }
        for broken in ["{", "[]", "{}", r#"{"weight_map": {}}"#, r#"{"weight_map": {"a": 1}}"#] {
            std::fs::write(folder.path().join("x.index.json"), broken).unwrap();
            assert!(shards(folder.path(), "x.index.json").is_err(), "{broken} passed");
        }
    }
}
