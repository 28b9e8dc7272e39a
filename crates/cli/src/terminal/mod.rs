//! Output for people at a terminal and for programs that read it: the format of the rows of a run,
//! colours, figures with four significant digits, and the progress line that other output must not
//! cut in two.

mod figures;
#[cfg(unix)]
mod follow;
mod header;
mod pace;
#[cfg(unix)]
mod page;
mod rows;
pub(super) mod runs;
mod streams;
mod talk;
#[cfg(unix)]
pub(super) mod watch;

pub(super) use figures::fitted;
#[cfg(unix)]
pub(super) use figures::significant;
pub(super) use rows::Printer;
pub(super) use streams::{Spinner, above_bar, is_seen, settle_colors, show, width};
pub(super) use talk::{LogFormat, Talk};
