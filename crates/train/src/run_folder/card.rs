//! The model card in `model/`, which is Kiln's as long as nobody has changed it: its last line has
//! the digest of what stands before it.

use std::fs;
use std::path::Path;

use kiln_core::files::{hex, read_regular};
use sha2::{Digest, Sha256};

/// The file's name.
pub(super) const FILE: &str = "README.md";

/// The beginning of the last line.
const SEAL: &str = "\n<!-- Kiln has written this card and keeps it once it is changed: ";

/// `card` with its last line.
pub(super) fn sealed(card: &str) -> String {
    format!("{card}{SEAL}{} -->\n", hex(&Sha256::digest(card)))
}

/// Whether a card is at `path` that Kiln has not written so.
pub(super) fn is_changed(path: &Path) -> bool {
    let is_own = |found: Vec<u8>| {
        let text = String::from_utf8_lossy(&found);
        text.split_once(SEAL).is_some_and(|(card, _)| sealed(card) == text)
    };
    path.ends_with(FILE) && fs::symlink_metadata(path).is_ok() && !read_regular(path).is_ok_and(is_own)
}
