//! Imports go down only: a module uses modules that stand before it in the order in which data flows, and none that stand
//! after it. The order stands here and nowhere else; `src/lib.rs` and `models/lib.rs` list their modules in it.

use std::fs;
use std::path::{Path, PathBuf};

/// The modules of `src`, lowest first.
const KILN: [&str; 17] = [
    "base",
    "config",
    "hub",
    "cache",
    "data",
    "task",
    "engine",
    "precision",
    "optim",
    "plan",
    "session",
    "inference",
    "trainer",
    "proof",
    "measure",
    "guide",
    "cli",
];

/// The modules of `models`, lowest first.
const MODELS: [&str; 12] =
    ["error", "whole_file", "ops", "copies", "compute", "config", "layers", "rows", "gpt2", "bert", "weights", "model"];

/// Every Rust file below `folder`.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// The source without comments, text in quotes and tests.
fn code(source: &str) -> String {
    let source = source.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = source.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.map(|line| line.split('"').step_by(2).collect::<String>() + "\n").collect()
}

/// The first names of the paths from the root of the crate in `code`: `crate::NAME`, and each of `crate::{NAME, NAME::..}`.
fn imported(code: &str) -> Vec<String> {
    let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut found = Vec::new();
    for path in code.split("crate::").skip(1) {
        let Some(list) = path.strip_prefix('{') else {
            found.push(name(path));
            continue;
        };
        let (mut depth, mut item) = (0, String::new());
        for c in list.chars() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => found.push(name(std::mem::take(&mut item).trim())),
                _ => {}
            }
            if depth == 0 && c != ',' {
                item.push(c);
            }
        }
        found.push(name(item.trim()));
    }
    found
}

/// The imports that go up, as `FILE: MODULE -> MODULE`, and the modules that the order does not name.
fn against(root: &Path, order: &[&str]) -> Vec<String> {
    let (mut wrong, mut all) = (Vec::new(), Vec::new());
    files(root, &mut all);
    let rank = |module: &str| order.iter().position(|known| *known == module);
    for path in all {
        let inside = path.strip_prefix(root).unwrap();
        let parts = inside.iter().map(|part| part.to_str().unwrap().trim_end_matches(".rs")).collect::<Vec<_>>();
        if ["lib", "main"].contains(&parts[0]) || parts.iter().any(|part| ["tests", "benches", "target"].contains(part))
        {
            continue;
        }
        let Some(own) = rank(parts[0]) else {
            wrong.push(format!("{}: the order does not name the module {}", path.display(), parts[0]));
            continue;
        };
        for name in imported(&code(&fs::read_to_string(&path).unwrap())) {
            if rank(&name).is_some_and(|other| other > own) {
                wrong.push(format!("{}: {} -> {name}", path.display(), parts[0]));
            }
        }
    }
    wrong
}

#[test]
fn imports_go_down() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let wrong = [against(&root.join("src"), &KILN), against(&root.join("models"), &MODELS)].concat();
    assert!(wrong.is_empty(), "imports that go up:\n{}", wrong.join("\n"));
}

#[test]
fn the_crates_list_their_modules_in_this_order() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (file, order) in [("src/lib.rs", &KILN[..]), ("models/lib.rs", &MODELS[..])] {
        let text = fs::read_to_string(root.join(file)).unwrap();
        let modules = text.lines().filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod "));
        let modules = modules.map(|line| line.trim_end_matches(';')).collect::<Vec<_>>();
        assert_eq!(modules, order, "{file}");
    }
}

#[test]
fn an_import_that_goes_up_is_found() {
    let names = imported(&code(
        "use crate::plan::{a, b};\n// crate::cli::x\nuse crate::{base::error, trainer::{Trainer, y}, proof};\n\
         fn f() { crate::measure::g(\"crate::hub::h\") }\n#[cfg(test)]\nmod tests { use crate::cli; }",
    ));
    assert_eq!(names, ["plan", "base", "trainer", "proof", "measure"]);
}
