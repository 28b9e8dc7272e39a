//! Panics of the library `tokenizers`, which files with odd values make it do, as errors.

use kiln_core::caught;
use kiln_core::error::{Error, Result};

/// The result of `work`; its panic as an error, without the panic's own message on stderr. `work`
/// stays on this thread.
///
/// # Errors
/// An error or a panic of `work`.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // Nothing that the panic may have left half-changed is used again: the error ends the work with
    // this tokenizer.
    caught(work).unwrap_or_else(|text| {
        Err(Error::data(format!("the tokenizer cannot be used: the library `tokenizers` failed on it: {text}")).help(
            "a file of the tokenizer has values that do not fit together; take the files from where they came again",
        ))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_panic_is_an_error_and_an_error_stays_what_it_was() {
        assert_eq!(guarded(|| Ok(3)).unwrap(), 3);
        assert_eq!(guarded(|| Err::<(), _>(Error::config("no"))).unwrap_err().exit_code(), 2);
        let error = guarded(|| -> Result<()> { panic!("index {} is\nout of range", 7) }).unwrap_err();
        assert_eq!(error.exit_code(), 3);
        assert!(error.to_string().contains("failed on it: index 7 is out of range\n  help: "), "{error}");
    }
}
