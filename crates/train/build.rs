//! Kiln's build script: tells the program which commit its sources are of (`KILN_COMMIT`, for
//! [`Provenance`] of runs), as far as git knows: twelve digits, with `-modified` where they differ
//! from that commit; `unknown` in a build that is not of a checkout. Nothing else of the build
//! depends on it.
//!
//! [`Provenance`]: src/provenance.rs

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where this package stands in the repository.
const PLACE: &str = "crates/train";

/// The files and folders of the repository that the program is built from.
const SOURCES: [&str; 5] = ["src", "models", "crates", "Cargo.toml", "Cargo.lock"];

fn main() {
    let here = std::env::current_dir().expect("cargo runs build scripts in the folder of their package");
    let top = here.ancestors().nth(Path::new(PLACE).components().count()).unwrap_or(&here);
    // Every change that compiles the crate anew also looks up the commit anew. Crates above this
    // one change without it: builds for tests do not compile it for them, and name the commit of
    // its own last change.
    let is_release = std::env::var("PROFILE").as_deref() == Ok("release");
    let below = ["crates/train", "models", "crates/core", "Cargo.toml", "Cargo.lock"];
    let above = ["src", "crates/data", "crates/measure", "crates/cli"].into_iter().filter(|_| is_release);
    let sources = below.into_iter().chain(above).map(|source| top.join(source));
    for source in sources.filter(|source| source.exists()) {
        println!("cargo::rerun-if-changed={}", source.display());
    }
    println!("cargo::rustc-env=KILN_COMMIT={}", commit(&here, top).unwrap_or_else(|| "unknown".into()));
    // A commit of what is built already changes only its name. Builds that are measured take it up;
    // builds for tests would compile everything again for it.
    if is_release
        && let Some(log) = git(top, &["rev-parse", "--git-path", "logs/HEAD"]).map(|log| top.join(log))
        && log.exists()
    {
        println!("cargo::rerun-if-changed={}", log.display());
    }
}

fn commit(here: &Path, top: &Path) -> Option<String> {
    // A package that lies within somebody else's repository is none of its commits.
    let found = PathBuf::from(git(top, &["rev-parse", "--show-toplevel"])?).canonicalize().ok()?;
    if found != top.canonicalize().ok()? || found.join(PLACE) != here.canonicalize().ok()? {
        return None;
    }
    let commit = git(top, &["rev-parse", "--short=12", "HEAD"])?;
    let mut status = vec!["status", "--porcelain", "--"];
    status.extend(SOURCES);
    Some(if git(top, &status)?.is_empty() { commit } else { format!("{commit}-modified") })
}

/// The output of git in `folder` with these arguments; none where there is no git, or it fails.
fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").current_dir(folder).args(arguments).output().ok();
    let output = output.filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
