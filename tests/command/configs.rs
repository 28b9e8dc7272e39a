//! Every shipped config is loaded, and the tiny ones are trained from start to end through the
//! binary.

use std::path::{Path, PathBuf};

use crate::common::{kiln, rows, succeeds};
use kiln::RunConfig;
use kiln::config::CompilerMode;

fn shipped() -> Vec<PathBuf> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("configs");
    let mut files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    assert!(files.len() >= 3, "{files:?}");
    files
}

#[test]
fn every_shipped_config_loads() {
    for file in shipped() {
        RunConfig::load(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
}

#[test]
fn every_shipped_config_has_the_switch_in_plain_sight() {
    for file in shipped() {
        let text = std::fs::read_to_string(&file).unwrap();
        let switch = text.split("\n[compiler]\n").nth(1).and_then(|section| section.lines().next()).unwrap_or_default();
        assert!(switch.starts_with("enabled = false ") && switch.contains("# true: "), "{}: {switch}", file.display());
        // The default, so that the section changes nothing else.
        let without = text.replace(&format!("[compiler]\n{switch}\n"), "");
        let read = |text: &String| RunConfig::from(RunConfig::parse(text, "config.toml").unwrap());
        let [with, mut without] = [&text, &without].map(read);
        assert_eq!((without.trainer.compiler.take(), with.trainer.compiler_mode()), (None, CompilerMode::Native));
        without.trainer.compiler.clone_from(&with.trainer.compiler);
        assert_eq!(with, without, "{}", file.display());
    }
}

#[test]
fn the_section_of_the_switch_leaves_the_plan_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let planned = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        let mut command = kiln(folder.path());
        command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).arg("plan").arg(file);
        let plan =
            succeeds(command.args(["--json", "--set", "run.output_dir=runs/of-a-test", "--set", "run.name=test"]));
        let mut plan = serde_json::from_str::<serde_json::Value>(&plan).unwrap();
        // The memory of the process that plans.
        plan["memory"] = plan["memory"].is_object().into();
        plan
    };
    for file in shipped().iter().filter(|file| file.file_name().unwrap().to_string_lossy().starts_with("tiny-")) {
        let with = std::fs::read_to_string(file).unwrap();
        let at = with.find("[compiler]\n").unwrap();
        let without = with[..at].to_owned() + with[at..].splitn(3, '\n').nth(2).unwrap();
        assert_eq!(planned("with.toml", &with), planned("without.toml", &without), "{}", file.display());
    }
}

#[test]
fn the_tiny_configs_train() {
    for file in shipped().iter().filter(|file| file.file_name().unwrap().to_string_lossy().starts_with("tiny-")) {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        let mut command = kiln(folder.path());
        // Their data is named relative to the checkout.
        command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).arg("train").arg(file);
        let stdout = succeeds(command.arg("--set").arg(format!("run.output_dir={}", run.display())));
        assert!(stdout.contains("'train_runtime': "), "{stdout}");
        let rows = rows(&run);
        let losses = rows.iter().filter_map(|row| row["loss"].as_f64()).collect::<Vec<_>>();
        assert!(losses.len() > 2 && losses.last() < losses.first(), "{}: {losses:?}", file.display());
        assert!(rows.iter().any(|row| row["eval_loss"].as_f64().is_some_and(f64::is_finite)));
        assert!(run.join("model/model.safetensors").is_file() && run.join("model/config.json").is_file());
    }
}
