//! Imports go down only: a module uses modules that stand before it in the order in which data
//! flows, and none that stand after it. The order stands here and nowhere else; the roots of the
//! crates list their modules in it.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The crates of which modules are ordered: folder and modules, lowest first. Walls between crates
/// are their manifests.
const CRATES: [(&str, &[&str]); 5] = [
    ("src", &["config", "task", "plan", "session", "inference", "mlflow", "push", "entry", "prelude", "guide"]),
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
            "run_folder",
            "trainer",
            "trial",
            "prelude",
        ],
    ),
    ("models", &["error", "ops", "lora", "layers", "rows", "kv_cache", "gpt2", "bert", "llama", "weights", "model"]),
    (
        "crates/core/src",
        &[
            "words",
            "signal",
            "error",
            "signals",
            "schema",
            "choices",
            "complaint",
            "ranges",
            "keys",
            "values",
            "names",
            "whole_file",
            "panics",
            "caught",
            "clock",
            "cache",
            "device_error",
            "energy",
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
    (
        "crates/measure/src",
        &[
            "runner",
            "engines",
            "proof",
            "stats",
            "verdict",
            "figures",
            "loss_parity",
            "gemm",
            "operators",
            "output",
            "table",
            "collectives",
            "measured",
            "interleaved",
            "tune_batch",
            "compare",
            "bench",
            "scaling",
            "sweep",
            "report",
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
        // Helpers of tests come last, each with its path.
        let modules = text.split("#[path").next().into_iter().flat_map(str::lines);
        let modules = modules.filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod "));
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

/// The crates whose files are in no circle of more than [`CIRCLE`].
const FOLDERS: [&str; 7] =
    ["src", "crates/cli/src", "crates/core/src", "crates/data/src", "crates/measure/src", "crates/train/src", "models"];

/// A circle of so many files can still be read as one.
const CIRCLE: usize = 3;

/// A module by its names from the root of the crate, which has none.
type Module = Vec<String>;

/// The modules of the crate in `root`, each with its code. Unit tests in files of their own are
/// left out.
fn modules(root: &Path) -> HashMap<Module, String> {
    let mut all = Vec::new();
    files(root, &mut all);
    let found = all.into_iter().filter_map(|path| {
        let inside = path.strip_prefix(root).unwrap().with_extension("");
        let names = inside.iter().map(|part| part.to_str().unwrap().to_owned());
        let names = names.filter(|name| !["lib", "main", "mod"].contains(&name.as_str())).collect::<Module>();
        let is_test = names.iter().any(|name| ["tests", "benches", "target"].contains(&name.as_str()));
        (!is_test).then(|| (names, code(&fs::read_to_string(&path).unwrap())))
    });
    found.collect()
}

/// The paths of `text`, which begins with a path: several where it ends in a list.
fn paths(text: &str) -> Vec<Module> {
    let first = name(text);
    if let Some(list) = text.strip_prefix('{') {
        let (mut depth, mut begin, mut found) = (0usize, 0, Vec::new());
        for (at, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' | '}' if depth == 0 => {
                    found.extend(paths(list[begin..at].trim()));
                    begin = at + 1;
                    if c == '}' {
                        break;
                    }
                }
                _ => {}
            }
        }
        return found;
    }
    let rest = text[first.len()..].strip_prefix("::").filter(|_| !first.is_empty());
    let rest = rest.map_or_else(|| vec![Module::new()], paths);
    let begun = (!first.is_empty() && first != "self").then_some(first);
    rest.into_iter().map(|path| begun.iter().cloned().chain(path).collect()).collect()
}

/// The paths into the crate that `code`, of `module`, names, each from the root.
fn named(code: &str, module: &Module, all: &HashMap<Module, String>) -> Vec<Module> {
    let mut found = Vec::new();
    let mut before = ' ';
    for (at, c) in code.char_indices() {
        let begins = c.is_alphabetic() && !(before.is_alphanumeric() || "_:".contains(before));
        before = c;
        if !begins {
            continue;
        }
        let (mut base, mut rest) = (module.clone(), &code[at..]);
        let first = name(rest);
        match first.as_str() {
            "crate" => base.clear(),
            "self" => {}
            "super" => {
                while let Some(above) = rest.strip_prefix("super::") {
                    base.pop();
                    rest = above;
                }
            }
            _ if all.contains_key(&[&base[..], std::slice::from_ref(&first)].concat()) => {}
            _ => continue,
        }
        let rest = rest.strip_prefix("crate::").or_else(|| rest.strip_prefix("self::")).unwrap_or(rest);
        // The name of a module by itself may be that of a variable.
        if first == "super" || code[at + first.len()..].starts_with("::") {
            found.extend(paths(rest).into_iter().map(|path| [&base[..], &path].concat()));
        }
    }
    found
}

/// The module in which the item at `path` stands; what a module exports again stands where it comes
/// from.
fn place(path: &[String], all: &HashMap<Module, String>, exports: &HashMap<Module, Module>) -> Module {
    let mut at = Module::new();
    for name in path {
        let next = [&at[..], std::slice::from_ref(name)].concat();
        match exports.get(&next) {
            Some(from) => at.clone_from(from),
            None if all.contains_key(&next) => at = next,
            None => break,
        }
    }
    at
}

/// The modules that call a method on `self`, or by `Self`, which another module gives the type,
/// each with that one. A call on another value is not seen, since its type is not known here.
fn calls(all: &HashMap<Module, String>) -> Vec<(&Module, &Module)> {
    // Blocks of methods: the type, the module, whether the methods are the type's own and no
    // trait's, and the code.
    let blocks = all.iter().flat_map(|(module, code)| {
        code.split("\nimpl").skip(1).filter_map(move |block| {
            let (head, body) = block.split_once('{')?;
            let (is_own, head) = head.rsplit_once(" for ").map_or((true, head), |(_, type_)| (false, type_));
            let generics = head.strip_prefix('<').map_or(0, |rest| rest.find("> ").map_or(0, |end| end + 2));
            Some((name(head[generics..].trim_start()), module, is_own, body.split("\n}").next()?))
        })
    });
    let blocks = blocks.collect::<Vec<_>>();
    let declares = |module: &Module, type_: &str| {
        let follows = |code: &str, word: &str| code.split(word).skip(1).any(|rest| name(rest) == type_);
        ["struct ", "enum "].iter().any(|word| follows(&all[module], word))
    };
    let mut found = Vec::new();
    for (type_, caller, _, body) in &blocks {
        let called = body.split("self.").chain(body.split("Self::")).map(name).collect::<HashSet<_>>();
        for (_, module, _, body) in blocks.iter().filter(|(other, _, is_own, _)| *is_own && other == type_) {
            // Types of one name are different where each module declares its own.
            let is_other = module != caller && !(declares(module, type_) && declares(caller, type_));
            if is_other && body.split("fn ").skip(1).any(|method| called.contains(&name(method))) {
                found.push((*caller, *module));
            }
        }
    }
    found
}

/// The circles of a crate of such modules: files each of which uses each other one, perhaps by way
/// of others; `calls` are those by methods.
fn circles(all: &HashMap<Module, String>, calls: &[(&Module, &Module)]) -> Vec<Vec<String>> {
    let (mut exports, mut uses) = (HashMap::new(), HashMap::<&Module, Vec<Module>>::new());
    for (module, code) in all {
        let (mut own, mut exported) = (String::new(), String::new());
        for (index, part) in code.split("use ").enumerate() {
            // A statement that begins with `pub` exports what it names again.
            let is_export =
                own.trim_end().rsplit(['\n', ';', '}']).next().is_some_and(|it| it.trim().starts_with("pub"));
            let end = if index > 0 && is_export { part.find(';').unwrap_or(part.len()) } else { 0 };
            exported.extend([&part[..end], ";"]);
            own.extend([if index > 0 && end == 0 { "use " } else { "" }, &part[end..]]);
        }
        let mut used = named(&own, module, all);
        let words = own.split(|c: char| !c.is_alphanumeric() && c != '_').collect::<HashSet<_>>();
        for path in named(&exported, module, all) {
            let from = place(&path, all, &HashMap::new());
            let Some(name) = path.last() else { continue };
            exports.insert(module.iter().chain([name]).cloned().collect::<Module>(), from);
            // A module that needs a name itself imports it by its export.
            used.extend(words.contains(name.as_str()).then_some(path));
        }
        uses.insert(module, used);
    }
    let used = |module: &Module| {
        let places = uses[module].iter().map(|path| place(path, all, &exports));
        places.filter(|other| other != module && !other.is_empty()).collect::<Vec<_>>()
    };
    let direct = all.keys().map(|module| {
        let called = calls.iter().filter(|(caller, _)| *caller == module).map(|(_, other)| (*other).clone());
        (module, used(module).into_iter().chain(called).collect::<Vec<_>>())
    });
    let direct = direct.collect::<HashMap<_, _>>();
    let reached = |from: &Module| {
        let (mut found, mut left) = (Vec::<&Module>::new(), direct[from].iter().collect::<Vec<_>>());
        while let Some(module) = left.pop() {
            if !found.contains(&module) {
                found.push(module);
                left.extend(&direct[module]);
            }
        }
        found
    };
    let reached = all.keys().map(|module| (module, reached(module))).collect::<HashMap<_, _>>();
    let mut circles = Vec::new();
    for (module, others) in &reached {
        let circle = others.iter().filter(|other| reached[*other].contains(module));
        let mut circle = circle.map(|module| module.join("::")).collect::<Vec<_>>();
        circle.sort_unstable();
        if circle.len() > 1 && !circles.contains(&circle) {
            circles.push(circle);
        }
    }
    circles.sort();
    circles
}

#[test]
fn files_are_in_no_large_circle() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let large = FOLDERS.iter().flat_map(|crate_| {
        let all = modules(&root.join(crate_));
        let large = circles(&all, &calls(&all)).into_iter().filter(|circle| circle.len() > CIRCLE);
        large.map(move |circle| format!("{crate_}: {}", circle.join(", ")))
    });
    let large = large.collect::<Vec<_>>();
    assert!(large.is_empty(), "files that use each other in a circle:\n{}", large.join("\n"));
}

#[test]
fn a_circle_is_found() {
    let found = |sources: &[(&[&str], &str)]| {
        let module = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Module>();
        let all = sources.iter().map(|(names, source)| (module(names), code(source))).collect();
        circles(&all, &calls(&all))
    };
    let root: (&[&str], &str) = (&[], "pub mod a;\npub mod b;\npub use b::Item;");
    let (c, d): ([&str; 2], [&str; 2]) = (["a", "c"], ["a", "d"]);
    let line = [root, (&["a"], "mod c;\npub use c::C;"), (&c, "use crate::Item;"), (&["b"], "struct Item;")];
    assert!(found(&line).is_empty());
    // By a list, by an export of the root, by `super`, in a path between the lines, and by an
    // export that its module uses itself.
    let round = [root, (&["a"], ""), (&c, "use crate::{Item, x::{y}};"), (&["b"], "use crate::{z, a::{self, c::C}};")];
    assert_eq!(found(&round), [["a::c", "b"]]);
    let above =
        [root, (&["a"], "fn f() { d::f() }"), (&c, "use super::d::f;"), (&d, "use super::c::f;\nuse super::A;")];
    assert_eq!(found(&above), [["a", "a::c", "a::d"]]);
    let own = [root, (&["a"], "pub use c::C;\nstruct A(C);"), (&c, "use super::A;")];
    assert_eq!(found(&own), [["a", "a::c"]]);
    // By a method that stands in another file than its type.
    let methods = [
        root,
        (&["a"], "struct A;\nimpl<T: X<Y>> A<T> {\n    fn f(&self) { self.g() }\n}"),
        (&["b"], "use crate::a::A;\nimpl<T: X<Y>> A<T> {\n    fn g(&self) {}\n}"),
    ];
    assert_eq!(found(&methods), [["a", "b"]]);
}
