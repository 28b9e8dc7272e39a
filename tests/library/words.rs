//! The prose of comments: each one names its subject, and none is wider than a page.

use std::fs;
use std::path::{Path, PathBuf};

/// A documentation comment that opens with one of these words has its noun in another item.
const OPENINGS: [&str; 6] = ["As ", "Of ", "Those ", "That ", "The same ", "What "];

/// Columns of a comment that stands on a line of its own.
const WIDTH: usize = 100;

/// The folders of the repository that have code.
pub(crate) const FOLDERS: [&str; 6] = ["src", "models", "crates", "tests", "examples", "benches"];

/// The files below `folder` whose names end so.
pub(crate) fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let found = |path: PathBuf| {
        if path.is_dir() {
            return files(&path, ending);
        }
        Vec::from_iter(path.extension().is_some_and(|is| is == ending).then_some(path))
    };
    fs::read_dir(folder).unwrap().flat_map(|entry| found(entry.unwrap().path())).collect()
}

/// The documentation that a line holds, without its mark; none of another line.
fn documentation(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
    (!text.starts_with('/')).then(|| text.trim())
}

/// The lines of `source` that break a rule, with their numbers from 1.
fn faults(source: &str) -> Vec<(usize, &'static str)> {
    let (mut found, mut is_code, mut is_opening) = (Vec::new(), false, true);
    for (index, line) in source.lines().enumerate() {
        let text = documentation(line);
        if text.is_some_and(|text| text.starts_with("```")) {
            is_code = !is_code;
        } else if text.is_none() {
            is_code = false;
        }
        if is_opening && !is_code && text.is_some_and(|text| OPENINGS.iter().any(|word| text.starts_with(word))) {
            found.push((index + 1, "it opens with a word that stands for a noun of another item"));
        }
        if !is_code && line.trim_start().starts_with("//") && line.chars().count() > WIDTH {
            found.push((index + 1, "it has more than 100 columns"));
        }
        // A section, such as `# Errors`, opens anew.
        is_opening = text.is_none_or(|text| text.starts_with("# "));
    }
    found
}

#[test]
fn comments_name_their_subject_and_are_no_wider_than_a_page() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let sources = FOLDERS.iter().flat_map(|folder| files(&root.join(folder), "rs")).collect::<Vec<_>>();
    assert!(sources.len() > 400, "{} files", sources.len());
    let mut found = Vec::new();
    for path in sources {
        let faults = faults(&fs::read_to_string(&path).unwrap());
        found.extend(faults.iter().map(|(line, what)| format!("{}:{line}: {what}", path.display())));
    }
    assert!(found.is_empty(), "{} comments:\n{}", found.len(), found.join("\n"));
}

#[test]
fn a_comment_that_breaks_a_rule_is_found() {
    let wide = format!("// {}", "wide ".repeat(20));
    let source = format!(
        "/// Of the norm.\n/// As it was.\nfn a() {{}}\n/// A sum.\n///\n/// # Errors\n/// As [`a`].\n{wide}\n/// ```\n/// {wide}\n/// ```\n"
    );
    assert_eq!(faults(&source).iter().map(|(line, _)| *line).collect::<Vec<_>>(), [1, 7, 8]);
}
