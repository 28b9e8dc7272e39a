//! Errors of the library `tokenizers` in the words of Kiln's own messages.

use kiln_core::error::Error;
use kiln_core::words::{json_words, serde_words};

pub(super) fn failed(error: tokenizers::Error) -> Error {
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

pub(super) fn unreadable(error: tokenizers::Error) -> Error {
    Error::data(format!("not a readable tokenizer: {}", words_of(&error)))
}
