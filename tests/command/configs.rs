//! Every shipped config is loaded, and the tiny ones are trained from start to end through the
//! binary.

use std::path::{Path, PathBuf};

use crate::common::{kiln, rows, succeeds};
use kiln::RunConfig;

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
