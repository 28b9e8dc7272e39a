//! Paths as configs write them: variables are expanded ([`variables`](kiln_core::variables)), files
//! of datasets on the Hub (`hf://datasets/..`) are downloaded, globs (`*`, `**`, `?`, `[..]`)
//! become the files that match and folders the files in them that are written in the format of the
//! data, in a fixed order. What is hidden is read only where a name or a pattern says so, as in
//! `datasets`.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Component, Path, PathBuf};

use glob::{MatchOptions, Pattern};
use kiln_core::error::{Error, Result, nearest};
use kiln_core::files::{ending, has_ending, is_description, is_hidden, read_error};
use kiln_core::saved_dataset;
use kiln_core::variables::expand_text;

use crate::hub;
use crate::settings::DataFormat;

/// The files that `patterns` name: sorted within each pattern, each file once, at its first place.
/// A folder stands for all files below it whose names end as those of `format` do.
///
/// # Errors
/// A pattern that matches nothing, a file that does not exist, a folder without such a file, an
/// invalid glob, an unset variable.
pub fn resolve(patterns: &[String], format: DataFormat) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut seen = BTreeSet::new();
    for pattern in patterns {
        for file in matching(pattern, format)? {
            // `a.txt` and `./a.txt` are one file.
            if seen.insert(file.canonicalize().unwrap_or_else(|_| file.clone())) {
                files.push(file);
            }
        }
    }
    if files.is_empty() { Err(Error::config("expected at least one file, got an empty list")) } else { Ok(files) }
}

/// The path beside `path` that is nearest to it: one of its name whose ending is near, else one of
/// its ending whose name is near.
fn near(path: &Path) -> Option<String> {
    type Part = fn(&Path) -> Option<&OsStr>;
    let text = |part: Part, path: &Path| part(path).unwrap_or_default().to_string_lossy().into_owned();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let beside = fs::read_dir(folder).ok()?.flatten().map(|entry| path.with_file_name(entry.file_name()));
    let beside = beside.collect::<BTreeSet<_>>();
    let nearest_by = |differs: Part, shared: Part| {
        let alike = beside.iter().filter(|other| shared(other) == shared(path)).collect::<Vec<_>>();
        let parts = alike.iter().map(|other| text(differs, other)).collect::<Vec<_>>();
        let near = nearest(&text(differs, path), parts.iter().map(String::as_str))?;
        alike.into_iter().find(|other| text(differs, other) == near)
    };
    let near = nearest_by(Path::extension, Path::file_stem).or_else(|| nearest_by(Path::file_stem, Path::extension))?;
    Some(near.display().to_string())
}

fn matching(pattern: &str, format: DataFormat) -> Result<Vec<PathBuf>> {
    let path = expand_text(pattern)?;
    if hub::is_dataset(&path) {
        return hub::dataset_files(&path);
    }
    let path = PathBuf::from(path);
    let shown = match path.to_string_lossy() {
        expanded if expanded == pattern => format!("{pattern:?}"),
        expanded => format!("{pattern:?} (that is {expanded})"),
    };
    if path.is_dir() {
        return in_folder(&path, format).map_err(|error| error.at(shown));
    }
    if path.is_file() {
        return Ok(vec![path]);
    }
    let expanded = path.to_string_lossy().into_owned();
    if !expanded.contains(['*', '?', '[']) {
        if path.exists() {
            return Err(Error::config(format!("{shown}: expected a regular file, got a pipe or a device"))
                .help("data are read more than once: write them to a file"));
        }
        if let Err(error) = path.metadata()
            && error.kind() == std::io::ErrorKind::PermissionDenied
        {
            return Err(Error::io(format!("read {shown}"), &error));
        }
        let near = near(&path).map_or_else(String::new, |near| format!("did you mean {near}? "));
        return Err(Error::config(format!("{shown}: no such file"))
            .help(format!("{near}paths are relative to where kiln is started")));
    }
    let invalid = |error: glob::PatternError| Error::config(format!("{shown}: not a valid glob: {error}"));
    // The pattern as a whole shows what is wrong with `a**` or `[a`.
    Pattern::new(&expanded).map_err(invalid)?;
    let parts = path.components().map(|part| match part {
        Component::Normal(name) if name == "**" => Ok(Part::Folders),
        Component::Normal(name) => match name.to_string_lossy() {
            pattern if pattern.contains(['*', '?', '[']) => Pattern::new(&pattern).map(Part::Pattern),
            _ => Ok(Part::Name(name.into())),
        },
        other => Ok(Part::Name(other.as_os_str().into())),
    });
    let parts = parts.collect::<std::result::Result<Vec<_>, _>>().map_err(invalid)?;
    let mut files = Vec::new();
    walk(PathBuf::new(), &parts, &mut files)?;
    files.sort();
    // `**/**` comes to a file in several ways.
    files.dedup();
    if files.is_empty() {
        Err(Error::config(format!("{shown}: the glob matches no file"))
            .help("paths are relative to where kiln is started; `**` matches folders of any depth"))
    } else {
        Ok(files)
    }
}

/// The format that the ending of the file `path` names, or those of all files in the folder `path`;
/// JSON and parquet are SQuAD's where the task is question answering. None where no ending tells.
///
/// # Errors
/// A folder with files of several formats.
pub fn format_of(path: &Path, is_answering: bool) -> Result<Option<DataFormat>> {
    let mut all = Vec::new();
    if path.is_dir() {
        visible(path, &mut all)?;
    } else {
        all.push(path.to_path_buf());
    }
    let endings = all.iter().filter_map(|file| ending(file)).collect::<BTreeSet<_>>();
    let format = |ending: &String| match ending.as_str() {
        ending if is_answering && DataFormat::Squad.endings().contains(&ending) => Some(DataFormat::Squad),
        ending => {
            let tables = DataFormat::ALL.iter().copied().filter(|format| format.is_table());
            let mut formats = tables.chain([DataFormat::Text]);
            formats.find(|format| format.endings().contains(&ending))
        }
    };
    let mut formats = endings.iter().filter_map(format).collect::<Vec<_>>();
    formats.dedup();
    match formats[..] {
        [] => Ok(None),
        [format] => Ok(Some(format)),
        _ => {
            let names = formats.iter().map(|format| format.as_str()).collect::<Vec<_>>().join(", ");
            Err(Error::config(format!("{}: files of several formats: {names}", path.display()))
                .help("set data.format to the one that is to be read"))
        }
    }
}

/// All files below `folder` but hidden ones and those that describe a dataset of `datasets` to it,
/// sorted.
fn visible(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    walk(folder.into(), &[Part::Folders, Part::Pattern(Pattern::new("*").expect("`*` is a pattern"))], files)?;
    files.retain(|file| !is_description(file));
    files.sort();
    files.dedup();
    Ok(())
}

/// The files below `folder` in `format`, by the endings of their names. Hidden ones are passed
/// over.
fn in_folder(folder: &Path, format: DataFormat) -> Result<Vec<PathBuf>> {
    if format.endings().contains(&"arrow") {
        if let Some(splits) = saved_dataset::splits(folder)? {
            let first = folder.join(splits.first().map_or("train", String::as_str));
            return Err(Error::config(format!("the folder holds the splits {} of a saved dataset", splits.join(", ")))
                .help(format!("name one of them, such as {:?}, or the folder in data.dataset_name", first.display())));
        }
        if let Some(files) = saved_dataset::files(folder)? {
            return Ok(files);
        }
    }
    if hub::has_card(folder)? {
        return Err(Error::config(
            "the folder is a dataset whose card, `configs` in README.md, divides its files into splits",
        )
        .help("name the folder in data.dataset_name, which takes its splits, or the files of one split"));
    }
    let mut all = Vec::new();
    visible(folder, &mut all)?;
    let is_wanted = |file: &&PathBuf| has_ending(file, format.endings());
    let files = all.iter().filter(is_wanted).cloned().collect::<Vec<_>>();
    if !files.is_empty() {
        return Ok(files);
    }
    let endings = format.endings().iter().map(|ending| format!(".{ending}")).collect::<Vec<_>>().join(", ");
    let some = all.iter().take(4).filter_map(|file| file.strip_prefix(folder).ok());
    let some = some.map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ");
    let has = if some.is_empty() { "it holds no file".to_owned() } else { format!("it holds {some}") };
    if saved_dataset::is_saved(folder) {
        return Err(Error::config("the folder is one that `datasets.save_to_disk` has written")
            .help("set data.format = \"arrow\""));
    }
    Err(Error::config(format!("the folder has no file that ends as the format `{format}` does ({endings})"))
        .help(format!("{has}; name the files of a folder with a glob, such as \"{}/**/*\"", folder.display())))
}

/// A component of a glob.
enum Part {
    /// A name as it is.
    Name(OsString),
    /// A pattern for a name.
    Pattern(Pattern),
    /// `**`: any number of folders, none included.
    Folders,
}

/// Adds the files below `folder` that `parts` name. The `glob` crate's own walk leaves out names
/// that are not UTF-8; here they are matched with U+FFFD in place of what is no text. A pattern
/// names what is hidden by the character that hides it: `.*`, `__*/a`.
fn walk(folder: PathBuf, parts: &[Part], files: &mut Vec<PathBuf>) -> Result<()> {
    let Some((part, rest)) = parts.split_first() else {
        if folder.is_file() {
            files.push(folder);
        }
        return Ok(());
    };
    match part {
        Part::Name(name) => walk(folder.join(name), rest, files),
        Part::Pattern(pattern) => {
            for name in names(&folder)? {
                let text = name.to_string_lossy();
                let is_named = |mark| text.starts_with(mark) && pattern.as_str().starts_with(mark);
                let is_passed = is_hidden(&text, !rest.is_empty()) && !is_named(".") && !is_named("__");
                if !is_passed && pattern.matches_with(&text, MatchOptions::new()) {
                    walk(folder.join(&name), rest, files)?;
                }
            }
            Ok(())
        }
        Part::Folders => {
            walk(folder.clone(), rest, files)?;
            for name in names(&folder)? {
                let is_passed = is_hidden(&name.to_string_lossy(), true);
                let inner = folder.join(name);
                if !is_passed && inner.is_dir() && !goes_round(&inner) {
                    walk(inner, parts, files)?;
                }
            }
            Ok(())
        }
    }
}

/// Whether `folder` is a link to a folder in which it stands itself.
fn goes_round(folder: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    let above = folder.parent().map(|above| if above.as_os_str().is_empty() { Path::new(".") } else { above });
    let is_within = || Some(real(above?)?.starts_with(real(folder)?));
    folder.is_symlink() && is_within().unwrap_or(true)
}

/// The entries of `folder`; none where there is no such folder.
fn names(folder: &Path) -> Result<Vec<OsString>> {
    let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    if !here.is_dir() {
        return Ok(Vec::new());
    }
    let io = |error: std::io::Error| read_error(here, &error);
    fs::read_dir(here).map_err(io)?.map(|entry| entry.map(|entry| entry.file_name()).map_err(io)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn globs_are_sorted_and_deduplicated() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("deep")).unwrap();
        for name in ["b.txt", "a.txt", "deep/c.txt", "x.md"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        let root = folder.path().display();
        let names = |patterns: &[String]| -> Vec<String> {
            let files = resolve(patterns, DataFormat::Text).unwrap();
            files.iter().map(|f| f.strip_prefix(folder.path()).unwrap().display().to_string()).collect()
        };
        assert_eq!(names(&[format!("{root}/**/*.txt")]), ["a.txt", "b.txt", "deep/c.txt"]);
        assert_eq!(names(&[format!("{root}/b.txt"), format!("{root}/*.txt")]), ["b.txt", "a.txt"]);
        assert_eq!(names(&[format!("{root}/a.txt"), format!("{root}/deep/../a.txt")]), ["a.txt"]);
        for (pattern, says) in [
            (format!("{root}/*.rs"), "matches no file"),
            (format!("{root}/none.txt"), "no such file"),
            (format!("{root}/deep"), "no file that ends as the format `jsonl` does"),
            (format!("{root}/[a"), "not a valid glob"),
        ] {
            let error = resolve(&[pattern], DataFormat::Jsonl).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        assert!(resolve(&[], DataFormat::Text).is_err());
    }

    #[test]
    fn a_slip_in_a_name_gets_the_file_that_is_there() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("tickets.csv"), "a\n").unwrap();
        let help = |name: &str| {
            let path = folder.path().join(name).display().to_string();
            resolve(&[path], DataFormat::Csv).unwrap_err().help_line().unwrap().to_owned()
        };
        let near = format!("did you mean {}? ", folder.path().join("tickets.csv").display());
        assert!(help("tikets.csv").starts_with(&near), "{}", help("tikets.csv"));
        assert!(help("tickets.cvs").starts_with(&near), "{}", help("tickets.cvs"));
        assert!(!help("other.csv").contains("did you mean") && !help("tickets.parquet").contains("did you mean"));
    }

    #[test]
    fn a_folder_is_its_files_of_the_format() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for name in ["b.csv", "a.CSV", "x/c.csv", ".cache/d.csv", ".e.csv", "f.csv.bak", "notes.txt", "g"] {
            fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            fs::write(root.join(name), name).unwrap();
        }
        let all = |format| resolve(&[root.display().to_string()], format);
        assert_eq!(all(DataFormat::Csv).unwrap(), ["a.CSV", "b.csv", "x/c.csv"].map(|name| root.join(name)));
        assert_eq!(all(DataFormat::Text).unwrap(), [root.join("notes.txt")]);
        let error = all(DataFormat::Parquet).unwrap_err().to_string();
        assert!(error.contains("(.parquet)") && error.contains("it holds a.CSV, b.csv"), "{error}");
    }

    #[test]
    fn a_glob_gives_what_the_glob_crate_gives() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.txt", "a.txt", "A.TXT", ".hidden.txt", "x/y/c.txt", "x/.h/d.txt", "x/e.txt", "x[1]/f.txt"] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
        #[cfg(unix)]
        std::os::unix::fs::symlink(folder.path().join("x[1]"), folder.path().join("x/link")).unwrap();
        let root = folder.path().display();
        for pattern in [
            "*.txt",
            "?.txt",
            "[ab].txt",
            "[!a].*",
            "**/*.txt",
            "**",
            "x/**",
            "*/*.txt",
            "x/*/*.txt",
            "**/y/*",
            "x/../*.txt",
            "x[[]1]/*",
            "**/link/*.txt",
            "*/link/f*",
            "**/**/c.txt",
            "nothing*/a",
            "x/.h/*",
        ] {
            let pattern = format!("{root}/{pattern}");
            let options = MatchOptions { require_literal_leading_dot: true, ..MatchOptions::new() };
            let theirs = glob::glob_with(&pattern, options).unwrap();
            let mut theirs = theirs.map(|path| path.unwrap()).collect::<Vec<_>>();
            theirs.retain(|path| path.is_file());
            theirs.dedup();
            assert_eq!(matching(&pattern, DataFormat::Text).unwrap_or_default(), theirs, "{pattern}");
        }
        #[cfg(unix)]
        {
            let all = || matching(&format!("{root}/**/*.txt"), DataFormat::Text).unwrap();
            let before = all();
            std::os::unix::fs::symlink(folder.path(), folder.path().join("x/round")).unwrap();
            assert_eq!(all(), before, "a link that goes round is not followed");
        }
    }

    #[test]
    fn what_is_hidden_is_read_where_it_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let hidden =
            ["._a.csv", ".git/a.csv", ".ipynb_checkpoints/a-checkpoint.csv", "__MACOSX/a.csv", "x/__MACOSX/.b.csv"];
        for name in ["a.csv", "x/b.csv", "x/__init__.csv"].iter().chain(&hidden) {
            fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            fs::write(root.join(name), name).unwrap();
        }
        let found = |pattern: &str| {
            let files = resolve(&[root.join(pattern).display().to_string()], DataFormat::Csv).unwrap();
            let name = |file: &PathBuf| file.strip_prefix(root).unwrap().display().to_string();
            files.iter().map(name).collect::<Vec<_>>()
        };
        // `datasets.data_files.resolve_pattern` finds the same.
        for pattern in ["", "**/*", "**/*.csv"] {
            assert_eq!(found(pattern), ["a.csv", "x/__init__.csv", "x/b.csv"], "{pattern}");
        }
        assert_eq!(found("*.csv"), ["a.csv"]);
        assert_eq!(found("*/b.csv"), ["x/b.csv"]);
        for name in hidden {
            assert_eq!(found(name), [name]);
        }
        assert_eq!(found("._*"), ["._a.csv"]);
        assert_eq!(found("**/._a.csv"), ["._a.csv"]);
        assert_eq!(found("__*/*"), ["__MACOSX/a.csv"]);
        assert_eq!(found("**/__MACOSX/.*"), ["x/__MACOSX/.b.csv"]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn names_that_are_not_utf8_are_found() {
        use std::os::unix::ffi::OsStrExt;
        let folder = tempfile::tempdir().unwrap();
        let latin1 = OsStr::from_bytes(b"caf\xe9");
        fs::create_dir(folder.path().join(latin1)).unwrap();
        let inner = folder.path().join(latin1).join("a.txt");
        let outer = folder.path().join(OsStr::from_bytes(b"na\xefve.txt"));
        fs::write(&inner, "inner").unwrap();
        fs::write(&outer, "outer").unwrap();
        let found = resolve(&[format!("{}/**/*.txt", folder.path().display())], DataFormat::Text).unwrap();
        assert_eq!(found, [inner, outer]);
    }
}
