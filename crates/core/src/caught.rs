//! Turns panics of libraries into errors: some panic on damaged files, or where a driver is
//! missing.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use super::panics;

thread_local! {
    /// Whether this thread is at work under [`caught`], which reports its panics.
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
}

static HOOK: Once = Once::new();

/// The result of `work`, which stays on this thread; the words of its panic, on one line, where it
/// panics. Nothing that a panic may have left half-changed may be used again.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !CAUGHT.try_with(Cell::get).unwrap_or(false) {
                before(info);
            }
        }));
    });
    let outer = CAUGHT.replace(true);
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    CAUGHT.set(outer);
    done.map_err(|payload| panics::message(&*payload).split_whitespace().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_its_words_and_a_result_stays_what_it_was() {
        assert_eq!(caught(|| 3), Ok(3));
        let nested = caught(|| {
            let inner = caught(|| panic!("index {} is\nout of range", 7));
            assert!(CAUGHT.get(), "the outer one holds");
            inner
        });
        assert_eq!(nested, Ok(Err::<(), _>("index 7 is out of range".to_owned())));
        assert!(!CAUGHT.get());
    }
}
