//! Other builds: each command of cargo that Kiln and its documents tell is one that this repository
//! has.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::common::{kiln, text};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn table(file: &str) -> toml::Table {
    std::fs::read_to_string(root().join(file)).unwrap().parse().unwrap()
}

/// The packages, by name and folder.
const PACKAGES: [(&str, &str); 7] = [
    ("kiln", "."),
    ("kiln-cli", "crates/cli"),
    ("kiln-core", "crates/core"),
    ("kiln-data", "crates/data"),
    ("kiln-measure", "crates/measure"),
    ("kiln-models", "models"),
    ("kiln-train", "crates/train"),
];

/// The features of a package, and of all with their names before them; without a package, those of
/// the default members.
fn features(package: Option<&str>) -> BTreeSet<String> {
    let of = |folder: &str| {
        let table = table(&format!("{folder}/Cargo.toml"));
        table.get("features").and_then(toml::Value::as_table).into_iter().flat_map(|all| all.keys().cloned()).collect()
    };
    let mut all = BTreeSet::new();
    for (name, folder) in PACKAGES {
        let features: Vec<String> = of(folder);
        all.extend(features.iter().map(|feature| format!("{name}/{feature}")));
        if package.map_or(name == "kiln" || name == "kiln-cli", |package| package == name) {
            all.extend(features);
        }
    }
    all
}

/// The fault of `cargo ARGS`, given its words after `cargo`; none where cargo would take it.
fn fault(words: &[&str]) -> Option<String> {
    let aliases = &table(".cargo/config.toml")["alias"];
    let (command, rest) = words.split_first()?;
    if let Some(alias) = aliases.get(command).and_then(toml::Value::as_str) {
        return fault(&alias.split(' ').chain(rest.iter().copied()).collect::<Vec<_>>());
    }
    if !["build", "check", "clippy", "deny", "doc", "fmt", "install", "run", "test"].contains(command) {
        return Some(format!("there is no `cargo {command}`"));
    }
    let rest = rest.split(|word| *word == "--").next().unwrap_or_default();
    let package = rest.iter().rposition(|word| *word == "-p").and_then(|place| rest.get(place + 1));
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().copied().unwrap_or_default();
        let has = |places: [String; 2]| places.iter().any(|place| root().join(place).is_file());
        let is_right = match *word {
            "--features" => {
                let (value, all) = (value(), features(package.copied()));
                if let Some(unknown) = value.split(',').find(|feature| !all.contains(*feature)) {
                    return Some(format!("there is no feature `{unknown}`"));
                }
                true
            }
            "--path" => table(&format!("{}/Cargo.toml", value())).contains_key("bin"),
            "-p" => {
                let name = value();
                PACKAGES.iter().any(|(package, _)| *package == name)
            }
            "--test" => {
                let name = value();
                has([format!("tests/{name}/main.rs"), format!("models/tests/{name}/main.rs")])
                    || has([format!("tests/{name}.rs"), format!("models/tests/{name}.rs")])
            }
            "--bench" => has([format!("benches/{}.rs", value()), String::new()]),
            "--example" => has([format!("examples/{}.rs", value()), String::new()]),
            "--target-dir" => !value().is_empty(),
            option if option.starts_with('-') => {
                ["--all", "--all-targets", "--lib", "--locked", "--no-deps", "--open", "--release", "--workspace"]
                    .contains(&option)
            }
            // The part of the name of a test, or what `cargo deny` does.
            _ => ["test", "deny"].contains(command),
        };
        if !is_right {
            return Some(format!("`{word}` is wrong"));
        }
    }
    None
}

/// The commands of cargo in code of a document: between backticks, or in a line of a block.
fn told(text: &str) -> Vec<String> {
    let (mut found, mut is_block) = (Vec::new(), false);
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_block = !is_block;
            continue;
        }
        let spans: Vec<&str> = if is_block {
            vec![line.split(" #").next().unwrap_or_default()]
        } else {
            line.split('`').skip(1).step_by(2).collect()
        };
        // Variables of the environment stand before the command.
        let commands = spans.into_iter().filter_map(|span| {
            let words = span.trim().trim_start_matches("$ ").split(' ').filter(|word| !word.is_empty());
            let mut words = words.skip_while(|word| word.contains('=') || word.starts_with('-') || word.ends_with('"'));
            (words.next() == Some("cargo")).then(|| words.collect::<Vec<_>>().join(" "))
        });
        found.extend(commands.filter(|command| !command.is_empty()));
    }
    found
}

fn documents() -> Vec<PathBuf> {
    let mut all = ["README.md", "CONTRIBUTING.md"].map(|name| root().join(name)).to_vec();
    all.extend(PACKAGES.iter().skip(1).map(|(_, folder)| root().join(folder).join("README.md")));
    let guide = std::fs::read_dir(root().join("src/guide")).unwrap().map(|entry| entry.unwrap().path());
    all.extend(guide.filter(|path| path.extension().is_some_and(|ending| ending == "md")));
    all
}

#[test]
fn commands_of_cargo_in_documents() {
    let (mut count, mut found) = (0, Vec::new());
    for path in documents() {
        for command in told(&std::fs::read_to_string(&path).unwrap()) {
            count += 1;
            let fault = fault(&command.split(' ').collect::<Vec<_>>());
            found.extend(fault.map(|fault| format!("{}: cargo {command}: {fault}", path.display())));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(count > 20, "{count} commands are found");
    for wrong in ["build --features cuba", "install --path .", "test --test none", "wgpu-fast", "build --realease"] {
        assert!(fault(&wrong.split(' ').collect::<Vec<_>>()).is_some(), "{wrong}");
    }
}

/// Help that names a build gives the device that was asked for.
#[test]
fn help_that_names_a_build() {
    let folder = super::folder(super::CLASSES);
    for (kind, is_built) in [("wgpu", cfg!(feature = "wgpu")), ("cuda", cfg!(feature = "cuda"))] {
        if is_built {
            continue; // the message belongs to a build without the device
        }
        for args in [&["train", "config.toml"][..], &["generate", "none", "--prompt", "a"]] {
            let mut command = kiln(folder.path());
            match args[0] {
                "train" => command.args(args).args(["--set", &format!("device.kind={kind}")]),
                _ => command.args(args).args(["--device", kind]),
            };
            let said = text(&command.output().unwrap());
            // The command of the README; and the feature, for a program.
            assert!(said.contains(&format!("`.cargo/install-engines {kind}`")), "{said}");
            assert!(said.contains(&format!("with the feature `{kind}`")), "{said}");
            let read = |file: &str| std::fs::read_to_string(root().join(file)).unwrap();
            let script = read(".cargo/install-engines");
            let of_script = script.lines().find_map(|line| line.strip_prefix(&format!("{kind}) features=")));
            let of_script = of_script.and_then(|rest| rest.split(' ').next()).unwrap_or_else(|| panic!("{script}"));
            assert!(read("README.md").contains(".cargo/install-engines wgpu"));
            let table = table("crates/train/Cargo.toml");
            // The feature `push` is of other crates.
            let brings = |feature: &str| table["features"].get(feature)?.as_array().cloned();
            let backend = toml::Value::String(format!("burn/{kind}"));
            let mut features = of_script.split(',').chain([kind]);
            assert!(features.any(|feature| brings(feature).is_some_and(|all| all.contains(&backend))), "{said}");
        }
    }
    // The engines of a device, whose builds help names by an alias.
    for kind in ["wgpu", "cuda"] {
        for (engine, is_compiled) in [("native", false), ("compiled", true)] {
            let alias = format!("{kind}-{engine}");
            assert_eq!(fault(&[&alias]), None);
            let command = table(".cargo/config.toml")["alias"][&alias].as_str().unwrap().to_owned();
            assert!(command.contains(&format!("--features {kind}")), "{command}");
            assert_eq!(command.contains(",compiler "), is_compiled, "{command}");
        }
    }
}
