//! A snapshot is written by a test of its name: what a test that is gone has left is found.

use std::path::{Path, PathBuf};

use crate::words::{FOLDERS, files};

#[test]
fn every_snapshot_has_its_test() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let code = FOLDERS.iter().flat_map(|folder| files(&root.join(folder), "rs"));
    let code = code.map(|path| std::fs::read_to_string(path).unwrap()).filter(|text| text.contains("messages!()"));
    let code = code.collect::<String>();
    let test = |path: &PathBuf| format!("fn {}() {{\n", path.file_stem().unwrap().display());
    let snapshots = files(&root.join("tests/snapshots"), "txt");
    let left = snapshots.iter().filter(|path| !code.contains(&test(path))).collect::<Vec<_>>();
    assert!(snapshots.len() > 50 && left.is_empty(), "{} snapshots, without a test: {left:?}", snapshots.len());
}
