//! The folders that `datasets.save_to_disk` writes: that of a `Dataset` has its files and
//! `state.json`, which lists them in order; that of a `DatasetDict` has a folder for each split and
//! `dataset_dict.json`, which lists the splits.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::files::{is_plain_name, read_json};
use crate::names::{Name, NameTable, Unknown};
use crate::told::tell_once;

/// The file that lists the files of a `Dataset`.
const STATE: &str = "state.json";

/// The file that lists the splits of a `DatasetDict`.
const SPLITS: &str = "dataset_dict.json";

/// The file that describes the rows of a `Dataset`.
const INFO: &str = "dataset_info.json";

/// Names in `state.json`.
pub static SAVED_STATE: NameTable = NameTable {
    file: "state.json",
    source: "datasets 5.2",
    names: &[
        Name::honoured("_data_files", "the files of the rows, in their order"),
        Name::inert("_fingerprint", "it names the content for caches of `datasets`"),
        Name::inert("_format_columns", "the config names the columns that are read"),
        Name::inert("_format_kwargs", "values are read as they are stored"),
        Name::inert("_format_type", "values are read as they are stored"),
        Name::inert("_output_all_columns", "the config names the columns that are read"),
        Name::inert("_split", "the config says what the rows are for"),
        Name::refused(
            "_indices_data_files",
            "the rows stand in another order than in the files: save the dataset with a `datasets` of today",
        ),
        Name::refused(
            "_indices_files",
            "the rows stand in another order than in the files: save the dataset with a `datasets` of today",
        ),
    ],
    unknown: Unknown::Refused,
};

/// Names in `dataset_dict.json`.
pub static SAVED_SPLITS: NameTable = NameTable {
    file: "dataset_dict.json",
    source: "datasets 5.2",
    names: &[Name::honoured("splits", "the folders of the splits")],
    unknown: Unknown::Refused,
};

/// Names in `dataset_info.json`, of which rows need the features.
pub static SAVED_INFO: NameTable = NameTable {
    file: "dataset_info.json",
    source: "datasets 5.2",
    names: &[
        Name::honoured("features", "the names of classes; the types of columns are in the files"),
        Name::inert("builder_name", DESCRIBES),
        Name::inert("citation", DESCRIBES),
        Name::inert("config_name", DESCRIBES),
        Name::inert("dataset_name", DESCRIBES),
        Name::inert("dataset_size", DESCRIBES),
        Name::inert("description", DESCRIBES),
        Name::inert("download_checksums", DESCRIBES),
        Name::inert("download_size", DESCRIBES),
        Name::inert("homepage", DESCRIBES),
        Name::inert("license", DESCRIBES),
        Name::inert("post_processed", DESCRIBES),
        Name::inert("post_processing_size", DESCRIBES),
        Name::inert("size_in_bytes", DESCRIBES),
        Name::inert("splits", DESCRIBES),
        Name::inert("supervised_keys", DESCRIBES),
        Name::inert("task_templates", "older versions name columns of tasks there; the config names them"),
        Name::inert("version", DESCRIBES),
    ],
    unknown: Unknown::Told,
};

const DESCRIBES: &str = "it tells where the rows come from";

/// The files of the saved `Dataset` in `folder`, in order; none where it is no such folder.
///
/// # Errors
/// A `state.json` that cannot be read, names no files beside it, or asks for what is refused.
pub fn files(folder: &Path) -> Result<Option<Vec<PathBuf>>> {
    let Some(state) = read(folder, STATE, &SAVED_STATE)? else { return Ok(None) };
    let entries = state.get("_data_files").and_then(Value::as_array);
    let name = |entry: &Value| Some(entry.get("filename")?.as_str().filter(|name| is_plain_name(name))?.to_owned());
    let names = entries.and_then(|entries| entries.iter().map(name).collect::<Option<Vec<_>>>());
    let Some(names) = names.filter(|names| !names.is_empty()) else {
        return Err(wrong(folder, STATE, "expected `_data_files`, a list of names of files beside it"));
    };
    let files = names.iter().map(|name| folder.join(name)).collect::<Vec<_>>();
    match files.iter().find(|file| !file.is_file()) {
        Some(missing) => Err(wrong(folder, STATE, &format!("it names {}, which is not there", missing.display()))),
        None => Ok(Some(files)),
    }
}

/// The splits of the saved `DatasetDict` in `folder`; none where it is no such folder.
///
/// # Errors
/// A `dataset_dict.json` that cannot be read or names no splits.
pub fn splits(folder: &Path) -> Result<Option<Vec<String>>> {
    let Some(dict) = read(folder, SPLITS, &SAVED_SPLITS)? else { return Ok(None) };
    let splits = dict.get("splits").and_then(Value::as_array);
    let name = |split: &Value| split.as_str().filter(|name| is_plain_name(name)).map(str::to_owned);
    let names = splits.and_then(|splits| splits.iter().map(name).collect());
    names.map(Some).ok_or_else(|| wrong(folder, SPLITS, "expected `splits`, a list of names of folders beside it"))
}

/// The features of the rows in `folder`, by its `dataset_info.json`; none where there is no such
/// file, or where it states none.
///
/// # Errors
/// A file that cannot be read.
pub fn features(folder: &Path) -> Result<Option<Map<String, Value>>> {
    let info = read(folder, INFO, &SAVED_INFO)?;
    Ok(info.and_then(|info| info.get("features")?.as_object().cloned()))
}

/// Whether `datasets.save_to_disk` has written `folder`.
pub fn is_saved(folder: &Path) -> bool {
    folder.join(STATE).is_file() || folder.join(SPLITS).is_file()
}

fn read(folder: &Path, name: &str, table: &NameTable) -> Result<Option<Map<String, Value>>> {
    let path = folder.join(name);
    if !path.is_file() {
        return Ok(None);
    }
    let Value::Object(object) = read_json(&path)? else { return Err(wrong(folder, name, "expected an object")) };
    for line in table.check(&object).map_err(|what| wrong(folder, name, &what))? {
        tell_once(format!("{}: {line}", path.display()));
    }
    Ok(Some(object))
}

fn wrong(folder: &Path, name: &str, what: &str) -> Error {
    Error::data(format!("{}: {what}", folder.join(name).display()))
        .help("save the dataset again with `save_to_disk`, or write it as parquet with `to_parquet`")
}
