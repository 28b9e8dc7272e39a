//! Panics of the library `tokenizers`, which files with odd values make it do, as errors.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use crate::base::error::{Error, Result};

thread_local! {
    /// Whether this thread is at work under [`guarded`], which reports its panics.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

static HOOK: Once = Once::new();

/// What `work` gives; its panic as an error, without the panic's own message on stderr. `work` stays on this thread.
///
/// # Errors
/// Those of `work`; its panic.
pub fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !GUARDED.try_with(Cell::get).unwrap_or(false) {
                before(info);
            }
        }));
    });
    let outer = GUARDED.replace(true);
    // Nothing that the panic may have left half-changed is used again: the error ends the work with this tokenizer.
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(outer);
    done.unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into());
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
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
        let nested = guarded(|| {
            let inner = guarded(|| -> Result<()> { panic!("index {} is\nout of range", 7) }).unwrap_err();
            assert!(GUARDED.get(), "the outer guard holds");
            Err::<(), _>(inner)
        });
        let error = nested.unwrap_err();
        assert_eq!(error.exit_code(), 3);
        assert!(error.to_string().contains("failed on it: index 7 is out of range\n  help: "), "{error}");
        assert!(!GUARDED.get());
    }
}
