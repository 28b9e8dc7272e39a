//! Stdout and stderr: who sees them, their colours and width, and the progress line that other
//! output must not cut in two.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use console::Term;
use indicatif::ProgressBar;
use kiln::distributed::environment;
use kiln_core::error::{Error, Result};
use kiln_core::process;

use crate::{keep_moving, progress_bar};

/// The progress line that is on the terminal, if any.
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Keeps `bar` below everything that is written from now on; none for no bar.
pub(super) fn keep_below(bar: Option<ProgressBar>) {
    *BAR.lock().unwrap_or_else(PoisonError::into_inner) = bar;
}

/// A line on a terminal that says what is done, below everything that is written meanwhile. It is
/// gone with this value.
pub(crate) struct Spinner(ProgressBar);

impl Spinner {
    /// Shows `doing`.
    pub(crate) fn new(doing: &'static str) -> Self {
        let bar = progress_bar("{spinner} {msg}").with_message(doing);
        keep_moving(&bar);
        keep_below(Some(bar.clone()));
        Self(bar)
    }

    /// Shows `doing` from now on.
    pub(crate) fn show(&self, doing: impl Into<Cow<'static, str>>) {
        self.0.set_message(doing);
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        keep_below(None);
        self.0.finish_and_clear();
    }
}

/// Writes with the progress line out of the way. `write` must not come here again.
pub(crate) fn above_bar<T>(write: impl FnOnce() -> T) -> T {
    let bar = BAR.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match bar {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Writes text to stdout that may hold styles. A reader that has gone away (`kiln plan FILE |
/// head`) is no error of ours; a full disk is one.
pub(crate) fn show(text: impl std::fmt::Display) -> Result<()> {
    match above_bar(|| writeln!(std::io::stdout(), "{text}")) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Error::io("write to stdout", &error)),
        _ => Ok(()),
    }
}

/// Whether somebody sees `stream` on a terminal. That of a rank is the launcher's, which may pass
/// it on to a file.
pub(crate) fn is_seen(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && matches!(environment::find(), Ok(None))
}

/// Decides once whether stdout and stderr get colours.
pub(crate) fn settle_colors() {
    let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    // The output of a child that a driver reads has no colours.
    let colors = |is_terminal| !process::is_child() && colored(is_terminal, &variable);
    console::set_colors_enabled(colors(is_seen(&std::io::stdout())));
    console::set_colors_enabled_stderr(colors(is_seen(&std::io::stderr())));
}

/// Whether a stream has colours: never with `NO_COLOR` (<https://no-color.org>), always with
/// `CLICOLOR_FORCE`, else on a terminal that has them, unless `CLICOLOR` is 0
/// (<https://bixense.com/clicolors>).
fn colored(is_terminal: bool, variable: &dyn Fn(&str) -> Option<String>) -> bool {
    let is_set = |name| variable(name).is_some_and(|value| !value.is_empty());
    let is_on = |name| is_set(name) && variable(name).is_none_or(|value| value != "0");
    let has_them = variable("TERM").is_none_or(|term| term != "dumb");
    !is_set("NO_COLOR")
        && (is_on("CLICOLOR_FORCE") || is_terminal && has_them && (!is_set("CLICOLOR") || is_on("CLICOLOR")))
}

/// Columns of the terminal on stdout; none where there is no terminal.
pub(crate) fn width() -> Option<usize> {
    Term::stdout().size_checked().map(|(_, columns)| usize::from(columns)).filter(|columns| *columns > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_follow_the_terminal_and_the_conventions() {
        let with = |is_terminal: bool, set: &[(&str, &str)]| {
            colored(is_terminal, &|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
        };
        assert!(with(true, &[]) && !with(false, &[]));
        assert!(!with(true, &[("NO_COLOR", "1")]) && with(true, &[("NO_COLOR", "")]));
        assert!(with(false, &[("CLICOLOR_FORCE", "1")]) && !with(false, &[("CLICOLOR_FORCE", "0")]));
        assert!(!with(false, &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
        assert!(!with(true, &[("CLICOLOR", "0")]) && with(true, &[("CLICOLOR", "1")]));
        assert!(!with(true, &[("TERM", "dumb")]));
    }
}
