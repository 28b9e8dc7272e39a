//! Imports go down only: a module uses modules that stand before it in the order in which data
//! flows, and none that stand after it. The order stands here and nowhere else; the roots of the
//! crates list their modules in it.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The crates of which modules are ordered: folder and modules, lowest first. Walls between crates
/// are their manifests.
const CRATES: [(&str, &[&str]); 4] = [
    ("src", &["config", "task", "plan", "session", "inference", "entry", "prelude", "guide"]),
    (
        "crates/train/src",
        &[
            "build_info",
            "reads",
            "distributed",
            "engine",
            "optim",
            "arguments",
            "plan",
            "confusion",
            "description",
            "task",
            "evaluation",
            "session",
            "provenance",
            "trainer",
            "trial",
            "prelude",
        ],
    ),
    (
        "models",
        &[
            "error", "ops", "copies", "compute", "lora", "layers", "rows", "kv_cache", "gpt2", "bert", "weights",
            "model",
        ],
    ),
    (
        "crates/core/src",
        &[
            "words",
            "signal",
            "error",
            "signals",
            "choices",
            "complaint",
            "values",
            "names",
            "whole_file",
            "panics",
            "caught",
            "clock",
            "cache",
            "device_error",
            "files",
            "host",
            "metrics",
            "process",
            "random",
            "told",
            "saved_dataset",
            "stats",
            "variables",
            "dataset",
            "model_config",
        ],
    ),
];

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

/// The source without comments, text in quotes and the tests at its end; the declaration of a file
/// of tests hides nothing.
fn code(source: &str) -> String {
    let mut parts = source.split("#[cfg(test)]\nmod ");
    let mut code = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.find([';', '{']) {
            Some(end) if part[end..].starts_with(';') => code.push_str(&part[end + 1..]),
            _ => break,
        }
    }
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.map(|line| line.split('"').step_by(2).collect::<String>() + "\n").collect()
}

/// The identifier at the beginning of `text`.
fn name(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// The first names of the list of paths that begins after a `{`: `a` and `b` of `a, b::{c, d}}`.
fn names_of_list(list: &str) -> Vec<String> {
    let (mut depth, mut item, mut found) = (0, String::new(), Vec::new());
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
    found
}

/// The first names of the paths from the root of the crate in `code`, which stands `depth` modules
/// below the root: `crate::NAME`, each of `crate::{NAME, NAME::..}`, and the same behind as many
/// `super::` as lead to the root.
fn imported(code: &str, depth: usize) -> Vec<String> {
    let root = "super::".repeat(depth);
    let mut found = Vec::new();
    for path in code.split("crate::").skip(1).chain(code.split(&root).skip(1)) {
        match path.strip_prefix('{') {
            Some(list) => found.extend(names_of_list(list)),
            None => found.push(name(path)),
        }
    }
    found
}

/// The names that the root of a crate exports again, each with its module: `Trainer` is of
/// `trainer`.
fn handed_on(root: &str) -> HashMap<String, String> {
    let mut found = HashMap::new();
    for path in root.lines().filter_map(|line| line.strip_prefix("pub use ")) {
        let names = match path.split_once('{') {
            Some((_, list)) => names_of_list(list),
            None => vec![name(path.rsplit("::").next().unwrap_or_default())],
        };
        found.extend(names.into_iter().map(|item| (item, name(path))));
    }
    found
}

/// The imports that go up, as `FILE: MODULE -> MODULE`, and the modules that the order does not
/// name.
fn against(root: &Path, order: &[&str]) -> Vec<String> {
    let (mut wrong, mut all) = (Vec::new(), Vec::new());
    files(root, &mut all);
    let rank = |module: &str| order.iter().position(|known| *known == module);
    let handed_on = handed_on(&fs::read_to_string(root.join("lib.rs")).unwrap());
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
        let depth = parts.len() - usize::from(parts.last() == Some(&"mod"));
        for name in imported(&code(&fs::read_to_string(&path).unwrap()), depth) {
            let module = handed_on.get(&name).unwrap_or(&name);
            if rank(module).is_some_and(|other| other > own) {
                wrong.push(format!("{}: {} -> {module}", path.display(), parts[0]));
            }
        }
    }
    wrong
}

#[test]
fn imports_go_down() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let wrong = CRATES.map(|(folder, order)| against(&root.join(folder), order)).concat();
    assert!(wrong.is_empty(), "imports that go up:\n{}", wrong.join("\n"));
}

/// Rooms of crates without an order: the Hub and the cache know no files of data, and the proofs no
/// measurements.
#[test]
fn rooms_use_nothing_beside_them() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    for (room, may) in [
        ("crates/data/src/hub", &["hub", "cache"][..]),
        ("crates/data/src/cache", &["cache", "store"]),
        ("crates/measure/src/proof", &["proof"]),
    ] {
        let mut all = Vec::new();
        files(&root.join(room), &mut all);
        assert!(!all.is_empty(), "no files in {room}");
        for path in all {
            let used = imported(&code(&fs::read_to_string(&path).unwrap()), 2);
            let wrong = used.into_iter().filter(|name| !may.contains(&name.as_str())).collect::<Vec<_>>();
            assert!(wrong.is_empty(), "{} uses {wrong:?}", path.display());
        }
    }
}

#[test]
fn the_crates_list_their_modules_in_this_order() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    for (folder, order) in CRATES {
        let text = fs::read_to_string(root.join(folder).join("lib.rs")).unwrap();
        let modules = text.lines().filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod "));
        let modules = modules.map(|line| line.trim_end_matches(';')).collect::<Vec<_>>();
        assert_eq!(modules, order, "{folder}");
    }
}

#[test]
fn an_import_that_goes_up_is_found() {
    let names = |source: &str, depth| imported(&code(source), depth);
    let source = "use crate::plan::{a, b};\n// crate::cli::x\nuse crate::{base::error, trainer::{Trainer, y}, proof};\n\
                  #[cfg(test)]\nmod more;\n\
                  fn f() { crate::measure::g(\"crate::hub::h\") }\n#[cfg(test)]\nmod tests { use crate::cli; }";
    assert_eq!(names(source, 1), ["plan", "base", "trainer", "proof", "measure"]);
    let source = "use super::own;\nuse super::super::{plan, cli::x};\nfn f() { super::super::hub::g() }";
    assert_eq!(names(source, 2), ["plan", "cli", "hub"]);
    let root = "pub use base::error::{Error, Result};\npub use trainer::Trainer;\n";
    let handed_on = handed_on(root);
    assert_eq!((handed_on["Result"].as_str(), handed_on["Trainer"].as_str()), ("base", "trainer"));
}
