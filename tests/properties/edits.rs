//! Damage to files: flipped bytes, missing ends, pieces that are removed, repeated or replaced, and
//! values of another type, values that are too large, and text with control characters.

use proptest::prelude::*;
use proptest::sample::Index;

/// One thing that happens to a file. Places are found in the file as it is then.
#[derive(Debug, Clone)]
pub enum Edit {
    /// A bit.
    Flip(Index, u8),
    /// The file ends here.
    Cut(Index),
    /// So many bytes are gone.
    Remove(Index, usize),
    /// Bytes that were not there.
    Insert(Index, Vec<u8>),
    /// So many bytes of the first place stand at the second too.
    Copy(Index, Index, usize),
    /// The word, number or quoted text at this place is another.
    Token(Index, &'static str),
}

/// Values as no program would write them, for JSON, TOML and tables alike.
pub const TOKENS: [&str; 28] = [
    "-1",
    "0",
    "1",
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551616",
    "1e308",
    "1e999",
    "-0.0",
    "0.1",
    "NaN",
    "null",
    "true",
    "\"\"",
    "[]",
    "{}",
    "[[[[]]]]",
    "\"\\u001b[31mred\"",
    "\"\\u0000\"",
    "\"../../outside\"",
    "\"/etc/passwd\"",
    "\"](javascript:alert(1))\"",
    "\"<script>\"",
    "\"\\ud800\"",
    "\"\u{202e}gnp\"",
    "\"é\u{301}中🦀\"",
    "\n",
];

fn edit() -> impl Strategy<Value = Edit> {
    let place = any::<Index>;
    prop_oneof![
        3 => (place(), 0u8..8).prop_map(|(at, bit)| Edit::Flip(at, bit)),
        1 => place().prop_map(Edit::Cut),
        1 => (place(), 1usize..40).prop_map(|(at, n)| Edit::Remove(at, n)),
        1 => (place(), prop::collection::vec(any::<u8>(), 1..12)).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        1 => (place(), place(), 1usize..60).prop_map(|(from, to, n)| Edit::Copy(from, to, n)),
        4 => (place(), prop::sample::select(&TOKENS[..])).prop_map(|(at, token)| Edit::Token(at, token)),
    ]
}

/// One to three things that happen.
pub fn edits() -> impl Strategy<Value = Vec<Edit>> {
    prop::collection::vec(edit(), 1..4)
}

/// `bytes` after `edits`.
pub fn edited(bytes: &[u8], edits: &[Edit]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for edit in edits {
        if bytes.is_empty() {
            break;
        }
        let len = bytes.len();
        match edit {
            Edit::Flip(at, bit) => bytes[at.index(len)] ^= 1 << bit,
            Edit::Cut(at) => bytes.truncate(at.index(len)),
            Edit::Remove(at, n) => drop(bytes.drain(at.index(len)..(at.index(len) + n).min(len))),
            Edit::Insert(at, new) => drop(bytes.splice(at.index(len)..at.index(len), new.iter().copied())),
            Edit::Copy(from, to, n) => {
                let piece = bytes[from.index(len)..(from.index(len) + n).min(len)].to_vec();
                bytes.splice(to.index(len)..to.index(len), piece);
            }
            Edit::Token(at, token) => drop(bytes.splice(token_at(&bytes, at.index(len)), token.bytes())),
        }
    }
    bytes
}

/// The quoted text or the run of letters and digits at `at`, or behind it.
fn token_at(bytes: &[u8], at: usize) -> std::ops::Range<usize> {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+' | b'_');
    let from = bytes[at..].iter().position(is_part).map_or(at, |skipped| at + skipped);
    let start = bytes[..from].iter().rposition(|byte| !is_part(byte)).map_or(0, |before| before + 1);
    let end = bytes[from..].iter().position(|byte| !is_part(byte)).map_or(bytes.len(), |len| from + len);
    match (start.checked_sub(1).map(|before| bytes[before]), bytes.get(end)) {
        (Some(b'"'), Some(b'"')) => start - 1..end + 1,
        _ => start..end,
    }
}
