//! `kiln merge`: an adapter taken up into the weights of its base, as a model folder that needs
//! neither.

use std::fs;
use std::path::Path;

use burn::tensor::Device;
use kiln_core::error::{Error, Result, printable};
use kiln_core::files::{read_regular, write_folder};
use kiln_data::tokenizer::{NamedFile, Tokenizer, write_files};
use kiln_models::weights::save;

use super::adapter::{Source, task_of};
use super::model_folder::{ModelFolder, PLAN_TOML, kept_files, plan_of};

/// Writes the model of the adapter `spec` (a folder, a run folder that ended with one, or a Hub
/// id), merged into the weights of its base, to the new folder `target`, which appears when it is
/// whole. Returns the names of its files.
///
/// # Errors
/// A model that is no adapter, a target that exists, files that do not fit, and the operating
/// system's.
pub fn merge(spec: &str, target: &Path) -> Result<Vec<String>> {
    let refused = |what: &str| {
        Err(Error::config(format!("--out {}: {what}", target.display()))
            .help("give the name of a folder that does not exist"))
    };
    if fs::symlink_metadata(target).is_ok() {
        return refused("it exists");
    }
    let source = Source::resolve(spec)?;
    if source.adapter.is_none() {
        return Err(Error::config(format!("{} is a whole model, not an adapter", source.base.display()))
            .help("there is nothing to merge; `kiln merge` takes a folder with adapter_config.json"));
    }
    let (config, _) = source.config()?;
    let mut folder = ModelFolder::open(spec, task_of(&source, &config)?, &Device::flex())?;
    let model = folder.model.merged()?;
    if model.has_vocabulary_output() {
        folder.config.set_tie_word_embeddings(!model.has_own_output());
    }
    let json = serde_json::to_string_pretty(&folder.config.to_json(&model.architecture()))
        .map_err(|error| Error::data(format!("config.json: {error}")))?;
    let mut files: Vec<NamedFile> = vec![("config.json".into(), format!("{}\n", printable(&json)).into_bytes().into())];
    let tokenizer = if Tokenizer::is_in(&folder.path) { &folder.path } else { &folder.base };
    files.extend(kept_files(tokenizer, true)?);
    // `kiln predict` reads rows by it, as the run of the adapter did.
    if let Some(plan) = plan_of(&folder.path) {
        let text = read_regular(&plan).map_err(|error| Error::io(format!("read {}", plan.display()), &error))?;
        files.push((PLAN_TOML.into(), text.into()));
    }

    let target =
        &std::path::absolute(target).map_err(|error| Error::io(format!("write {}", target.display()), &error))?;
    let io = |error: std::io::Error| Error::io(format!("write {}", target.display()), &error);
    let above = target.parent().unwrap_or(target);
    fs::create_dir_all(above).map_err(io)?;
    let aside = tempfile::Builder::new().prefix(".writing-").tempdir_in(above).map_err(io)?.keep();
    let write = || {
        write_files(&aside, &files)?;
        save(&model, &aside)?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(&aside, fs::Permissions::from_mode(0o755)).map_err(io)?;
        }
        Ok(())
    };
    write_folder(&aside, target, write, || Ok(()))?;
    let mut names = files.into_iter().map(|(name, _)| name).chain(["model.safetensors".into()]).collect::<Vec<_>>();
    names.sort();
    Ok(names)
}
