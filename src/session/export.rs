//! `kiln export`: a model folder as one `model.tar.gz`, the form in which model registries and
//! SageMaker take models: the files of the folder at the root of the archive.

use std::fs::{self, File};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use kiln_core::error::{Error, Result};
use kiln_core::whole_file::WholeFile;
use kiln_data::tokenizer::chat_templates;

/// Packs the files of `model` (a model folder, or a run folder with `model/` in it) into the
/// gzipped tar archive `target`. The archive appears under its name when it is whole; the same
/// files give the same bytes. Returns names and sizes in bytes of what is in it.
///
/// # Errors
/// A folder without `config.json`, a target that exists, and the operating system's.
pub fn export(model: &Path, target: &Path) -> Result<Vec<(String, u64)>> {
    let inner = model.join("model");
    let folder = if !model.join("config.json").is_file() && inner.is_dir() { &inner } else { model };
    if !folder.join("config.json").is_file() {
        return Err(Error::data(format!("{}: expected a model folder, found no config.json in it", folder.display()))
            .help("give the model/ folder of a finished run, or the run folder itself"));
    }
    write_archive(folder, files(folder)?, target)
}

/// Packs all files below `folder` into the gzipped tar archive `target`, as [`export`] does.
///
/// # Errors
/// A target that exists, and the operating system's.
pub fn pack(folder: &Path, target: &Path) -> Result<Vec<(String, u64)>> {
    let mut names = Vec::new();
    let mut rest = vec![folder.to_path_buf()];
    while let Some(inner) = rest.pop() {
        let read = |error: std::io::Error| Error::io(format!("read {}", inner.display()), &error);
        for entry in fs::read_dir(&inner).map_err(read)? {
            let path = entry.map_err(read)?.path();
            match path.strip_prefix(folder) {
                Ok(_) if path.is_dir() && !path.is_symlink() => rest.push(path),
                Ok(name) if path.is_file() => names.push(name.to_string_lossy().into_owned()),
                _ => {}
            }
        }
    }
    names.sort();
    write_archive(folder, names, target)
}

/// Packs the files `names` of `folder`.
fn write_archive(folder: &Path, names: Vec<String>, target: &Path) -> Result<Vec<(String, u64)>> {
    let above = target.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let io = |error: std::io::Error| Error::io(format!("write {}", target.display()), &error);
    if above.canonicalize().ok().is_some_and(|above| folder.canonicalize().is_ok_and(|folder| folder == above)) {
        return Err(Error::config(format!(
            "--tar {}: the archive would lie in the folder that it packs",
            target.display()
        ))
        .help("write it beside the folder"));
    }
    let shown = target;
    let target = WholeFile::create_new(target).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => Error::config(format!("--tar {}: the file exists", shown.display()))
            .help("give the name of a file that does not exist"),
        _ => io(error),
    })?;
    let mut archive = tar::Builder::new(GzEncoder::new(target.file(), Compression::default()));
    // Times and owners say nothing of the model, and would make two archives of one model differ.
    archive.mode(tar::HeaderMode::Deterministic);
    let mut packed = Vec::new();
    for name in names {
        let path = folder.join(&name);
        let io = |error: std::io::Error| Error::io(format!("pack {} into {}", path.display(), shown.display()), &error);
        let mut file = File::open(&path).map_err(io)?;
        packed.push((name.clone(), file.metadata().map_err(io)?.len()));
        archive.append_file(name, &mut file).map_err(io)?;
    }
    archive.into_inner().and_then(GzEncoder::finish).map_err(io)?;
    target.commit().map_err(io)?;
    Ok(packed)
}

/// The names of the plain files of `folder`, and of the tokenizer's chat templates in the folder of
/// their own.
fn files(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).map_err(|error| Error::io(format!("read {}", folder.display()), &error))?;
    let files = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file());
    let mut names = files
        .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .chain(chat_templates(folder))
        .collect::<Vec<_>>();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Read;

    use super::*;

    #[test]
    fn an_archive_holds_the_files_and_is_the_same_every_time() {
        let place = tempfile::tempdir().unwrap();
        let (model, target) = (place.path().join("run/model"), place.path().join("model.tar.gz"));
        fs::create_dir_all(&model).unwrap();
        fs::write(model.join("config.json"), "{}").unwrap();
        fs::write(model.join("model.safetensors"), vec![7u8; 5000]).unwrap();
        let packed = export(&place.path().join("run"), &target).unwrap();
        assert_eq!(packed, [("config.json".into(), 2), ("model.safetensors".into(), 5000)]);
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(File::open(&target).unwrap()));
        let read = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            (entry.path().unwrap().display().to_string(), bytes)
        });
        let read = read.collect::<Vec<_>>();
        assert_eq!(read, [("config.json".into(), b"{}".to_vec()), ("model.safetensors".into(), vec![7u8; 5000])]);
        let again = place.path().join("again.tar.gz");
        export(&model, &again).unwrap();
        assert!(fs::read(&again).unwrap() == fs::read(&target).unwrap());
        assert!(export(&model, &target).unwrap_err().to_string().contains("the file exists"));
        assert!(
            export(&model, &model.join("x.tar.gz")).unwrap_err().to_string().contains("in the folder that it packs")
        );
        let tree = place.path().join("tree.tar.gz");
        let all = pack(&place.path().join("run"), &tree).unwrap();
        assert_eq!(all, [("model/config.json".into(), 2), ("model/model.safetensors".into(), 5000)]);
        fs::remove_file(tree).unwrap();
        assert!(export(place.path(), &place.path().join("x")).unwrap_err().to_string().contains("no config.json"));
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 3, "nothing half-written is left");
    }
}
