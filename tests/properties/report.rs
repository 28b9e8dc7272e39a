//! Run folders that Kiln did not write: `kiln runs`, `kiln describe` and `kiln report` of a folder
//! with any name and damaged files.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;

use crate::common::small_run::{copy, train, write};
use crate::common::{kiln, succeeds};
use crate::edits::{edited, edits};
use crate::{behaves, cases, printable, snapshot};

/// A finished run.
static RUN: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    succeeds(&mut train(folder.path(), "run", &[]));
    folder
});

const FILES: [&str; 5] = ["status.json", "metrics.jsonl", "provenance.json", "plan.toml", "plan.json"];

/// Names of folders as the system allows them.
fn folder_name() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => Just("run".to_owned()),
        2 => prop::sample::select(vec![
            "a\u{1b}]0;title\u{7}b", "\u{1b}[2Jcleared", "x](javascript:alert(1))", "<script>alert(1)</script>", "a|b", "line\nbreak",
            "-rf", "a\rb", "`id`", "$(id)", "\u{202e}gnp", "\u{9b}31m", "a\tb", "\"quoted\"", "&amp;",
        ]).prop_map(str::to_owned),
        1 => "[^/\0]{1,12}".prop_filter("no place of its own", |name| name != "." && name != ".."),
    ]
}

/// The commands that only look: they change nothing.
fn looked_at(place: &Path, run: &OsStr) -> Result<(), TestCaseError> {
    let before = snapshot(place, &[]);
    behaves(kiln(place).args(["runs", "."]), &[0, 1, 3])?;
    behaves(kiln(place).arg("describe").arg(Path::new(".").join(run)), &[0, 1, 3])?;
    prop_assert_eq!(snapshot(place, &[]), before);
    Ok(())
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn a_damaged_run_is_told(name in folder_name(), file in prop::sample::select(&FILES[..]), edits in edits()) {
        let place = tempfile::tempdir().unwrap();
        let run = place.path().join(&name);
        copy(&RUN.path().join("run"), &run);
        let bytes = std::fs::read(run.join(file)).unwrap();
        std::fs::write(run.join(file), edited(&bytes, &edits)).unwrap();
        looked_at(place.path(), name.as_ref())?;
    }

    #[test]
    fn one_broken_run_hides_no_other(file in prop::sample::select(&FILES[..]), edits in edits()) {
        let place = tempfile::tempdir().unwrap();
        for name in ["broken", "good"] {
            copy(&RUN.path().join("run"), &place.path().join(name));
        }
        let path = place.path().join("broken").join(file);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, edited(&bytes, &edits)).unwrap();
        let (_, said) = behaves(kiln(place.path()).args(["runs", "."]), &[0])?;
        prop_assert!(said.lines().any(|line| line.contains("good") && line.contains("Completed")), "{said}");
    }

    #[test]
    fn a_report_of_damaged_runs(name in folder_name(), file in prop::sample::select(&FILES[..]), edits in edits()) {
        let place = tempfile::tempdir().unwrap();
        let run = place.path().join(&name);
        copy(&RUN.path().join("run"), &run);
        copy(&RUN.path().join("run"), &place.path().join("other"));
        let bytes = std::fs::read(run.join(file)).unwrap();
        std::fs::write(run.join(file), edited(&bytes, &edits)).unwrap();
        let before = snapshot(place.path(), &["out"]);
        let mut report = kiln(place.path());
        report.args(["report", "other"]).arg(Path::new(".").join(&name)).args(["--out", "out"]);
        let (code, _) = behaves(&mut report, &[0, 1, 2, 3, 6])?;
        prop_assert_eq!(snapshot(place.path(), &["out"]), before);
        let out = place.path().join("out");
        if code == 0 {
            for (path, bytes) in snapshot(&out, &[]) {
                let text = String::from_utf8_lossy(&bytes);
                if path.extension().is_some_and(|extension| extension == "md" || extension == "html") {
                    printable(&text)?;
                    // In Markdown an escaped bracket ends no link, and in HTML no bracket does.
                    let is_link = |text: &str| text.replace(r"\]", "").contains("](javascript:");
                    let is_powerful = path.extension().is_some_and(|extension| extension == "md") && is_link(&text);
                    prop_assert!(!text.contains("<script>alert") && !is_powerful, "{path:?}: {text}");
                }
            }
        }
    }
}
