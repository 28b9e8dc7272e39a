//! `kiln runs`, `kiln describe` and `kiln cache`: what looks at folders that Kiln has written.

use std::path::Path;

use clap::Subcommand;

use super::say;
use crate::error::Result;
use crate::{cache, runs};

#[derive(Debug, Subcommand)]
pub(super) enum CacheCommand {
    /// Show what is kept, how large it is and how long ago it was written
    List,
    /// Remove what is kept; it is made again when it is needed
    Clear,
}

pub(super) fn runs(folder: &Path) -> Result<()> {
    say(runs::table(&runs::list(folder)?).trim_end())
}

pub(super) fn describe(run: &Path) -> Result<()> {
    say(runs::describe(run)?.trim_end())
}

pub(super) fn cache(command: &CacheCommand) -> Result<()> {
    let folder = cache::folder()?;
    match command {
        CacheCommand::List => {
            let entries = cache::list(&folder)?;
            say(format!("{}: {} entries, {}", folder.display(), entries.len(), cache::size(&entries)))?;
            entries.iter().try_for_each(say)
        }
        CacheCommand::Clear => {
            let removed = cache::clear(&folder)?;
            say(format!("{}: removed {} entries, {}", folder.display(), removed.len(), cache::size(&removed)))
        }
    }
}
