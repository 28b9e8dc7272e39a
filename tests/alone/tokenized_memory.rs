//! Tokenized rows are on disk, not in memory: what lives after they are opened, counted by this
//! binary's own allocator, does not grow with their number, and neither does what lives while they
//! are read.

use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::Path;

use crate::counting::live;
use kiln::config::Task;
use kiln::data::Dataset;
use kiln::data::tokenized::TokenizedData;

/// Bytes that live with `rows` rows of 64 tokens open, and the most that did whenever progress was
/// told.
fn lives(folder: &Path, name: &str, rows: usize) -> (isize, isize) {
    let file = folder.join(name);
    let mut text = String::new();
    for row in 0..rows {
        let between = ["[", ",\n"][usize::from(row > 0)];
        let between = if name.ends_with(".jsonl") { ["", "\n"][usize::from(row > 0)] } else { between };
        let ids = (0..64).map(|at| (row * 31 + at) % 50_000).collect::<Vec<_>>();
        write!(text, "{between}{{\"input_ids\": {ids:?}, \"labels\": {ids:?}}}").unwrap();
    }
    text.push_str(if name.ends_with(".jsonl") { "\n" } else { "]" });
    std::fs::write(&file, &text).unwrap();
    drop(text);
    let files = [file];
    let before = live();
    let mut most = 0;
    let mut progress = |_| {
        most = most.max(live() - before);
        ControlFlow::Continue(())
    };
    let data = TokenizedData::open(&folder.join("cache"), &files, Task::Mlm, &mut progress).unwrap();
    let open = live() - before;
    assert_eq!((data.len(), data.num_tokens()), (rows, rows as u64 * 64));
    (open, most)
}

#[test]
fn memory_does_not_grow_with_the_rows() {
    if crate::ran_alone(module_path!(), "memory_does_not_grow_with_the_rows") {
        return;
    }
    // The threads that compute digests belong to the process, and would be counted with the file
    // that starts them.
    tokenizers::parallelism::set_parallelism(false);
    let folder = tempfile::tempdir().unwrap();
    // The first store that a process opens makes what the process keeps.
    lives(folder.path(), "first.jsonl", 10);
    for name in ["a.jsonl", "a.json"] {
        let (few_open, few_read) = lives(folder.path(), name, 1_500);
        let (many_open, many_read) = lives(folder.path(), name, 4_500);
        println!("{name}: open {few_open} and {many_open} bytes, while reading {few_read} and {many_read}");
        // Both are larger than any buffer. The names of files are of one length, so the same is the
        // same.
        assert_eq!(few_open, many_open, "{name}");
        assert!(many_open < 10_000, "{name}: {many_open}");
        assert!(many_read < 2 * few_read && many_read < 3 << 20, "{name}: {few_read}, then {many_read}");
    }
}
