//! Dataset cards: the front matter of a dataset's `README.md`, whose section `configs` says which
//! files belong to which configuration and split. It comes before the names of files, as in
//! `datasets.load_dataset`.

use std::io::BufRead as _;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern};
use kiln_core::error::{Error, Result};
use kiln_core::files::{
    Decoded, MAX_CONFIG, has_ending, hidden_parts, is_description, read_error, read_given, without_mark,
};
use kiln_core::names::{Name, NameTable, Unknown};
use serde_json::{Map, Value, json};

use super::yaml;
/// The name of a card in its repository or folder.
pub(super) const CARD: &str = "README.md";

/// Keys of the front matter.
pub static DATASET_CARD: NameTable = NameTable {
    file: "README.md of a dataset",
    source: "huggingface_hub 2.4",
    names: &[
        Name::honoured("configs", "the files of each configuration and split"),
        Name::told(
            "dataset_info",
            "columns have the types of the files; classes without names in the files get theirs from data.label_names",
        ),
        Name::inert("annotations_creators", DESCRIBES),
        Name::inert("arxiv", DESCRIBES),
        Name::inert("config_names", "`configs` names them with their files"),
        Name::inert("language", DESCRIBES),
        Name::inert("language_creators", DESCRIBES),
        Name::inert("license", DESCRIBES),
        Name::inert("license_link", DESCRIBES),
        Name::inert("license_name", DESCRIBES),
        Name::inert("multilinguality", DESCRIBES),
        Name::inert("paperswithcode_id", DESCRIBES),
        Name::inert("pretty_name", DESCRIBES),
        Name::inert("size_categories", DESCRIBES),
        Name::inert("source_datasets", DESCRIBES),
        Name::inert("tags", DESCRIBES),
        Name::inert("task_categories", DESCRIBES),
        Name::inert("task_ids", DESCRIBES),
        Name::inert("thumbnail", DESCRIBES),
        Name::inert("train-eval-index", "how the Hub evaluates models on it"),
        Name::inert("train_eval_index", "how the Hub evaluates models on it"),
        Name::inert("viewer", "how the Hub shows it"),
    ],
    unknown: Unknown::Told,
};

const DESCRIBES: &str = "it describes the dataset to people";
const SPEED: &str = "it changes how fast `datasets` reads";
const PARSED: &str = "tables are read as pandas reads them by default";

/// Keys of an entry of `configs`: those of `datasets` and the arguments of its readers, which
/// change the rows.
pub static CARD_CONFIG: NameTable = NameTable {
    file: "configs in README.md of a dataset",
    source: "datasets 5.2",
    names: &[
        Name::honoured("config_name", "the name that data.dataset_config_name takes"),
        Name::honoured("data_files", "the files of each split"),
        Name::honoured("data_dir", "the folder in which the files are looked for"),
        Name::honoured("default", "the configuration that is taken where none is named"),
        Name::honoured(
            "sep",
            "a comma belongs to data.format = \"csv\" and a tab to \"tsv\", which has no fields in quotes",
        ),
        Name::honoured("delimiter", "another name of sep"),
        Name::inert("name", "config_name is its name in a card"),
        Name::inert("description", DESCRIBES),
        Name::inert("version", DESCRIBES),
        Name::inert("drop_labels", "it is about folders of pictures and sounds"),
        Name::inert("drop_metadata", "it is about folders of pictures and sounds"),
        Name::told("features", "columns have the types of the files"),
        Name::inert("use_threads", SPEED),
        Name::inert("block_size", SPEED),
        Name::inert("chunksize", SPEED),
        Name::inert("batch_size", SPEED),
        Name::inert("memory_map", SPEED),
        Name::inert("fragment_scan_options", SPEED),
        Name::inert("engine", SPEED),
        Name::inert("verbose", "pandas has dropped it"),
        Name::inert("mangle_dupe_cols", "pandas has dropped it"),
        Name::inert("prefix", "pandas has dropped it"),
        Name::inert("columns", "data.text_column and its neighbours name the columns"),
        Name::inert("usecols", "data.text_column and its neighbours name the columns"),
        Name::inert("newlines_in_values", "a value of JSON may hold line feeds"),
        Name::inert("on_mixed_types", "values keep their types"),
        Name::inert("parse_agent_traces", "a file of traces has no columns of rows"),
        Name::only("header", || json!("infer"), PARSED),
        Name::refused("names", PARSED),
        Name::refused("column_names", PARSED),
        Name::refused("index_col", PARSED),
        Name::refused("converters", PARSED),
        Name::refused("true_values", PARSED),
        Name::refused("false_values", PARSED),
        Name::only("skipinitialspace", || json!(false), PARSED),
        Name::refused("skiprows", PARSED),
        Name::refused("nrows", PARSED),
        Name::refused("na_values", PARSED),
        Name::only("keep_default_na", || json!(true), PARSED),
        Name::only("na_filter", || json!(true), PARSED),
        Name::only("skip_blank_lines", || json!(true), PARSED),
        Name::refused("thousands", PARSED),
        Name::only("decimal", || json!("."), PARSED),
        Name::refused("lineterminator", PARSED),
        Name::only("quotechar", || json!("\""), PARSED),
        Name::honoured(
            "quoting",
            "0; with tabs 3, which reads quotes as text, and where it is 0 a field that begins with a quote is refused",
        ),
        Name::refused("escapechar", PARSED),
        Name::refused("comment", PARSED),
        Name::only("encoding", || json!("utf-8"), "files are UTF-8"),
        Name::only("encoding_errors", || json!("strict"), "files are UTF-8"),
        Name::refused("dialect", PARSED),
        Name::only("error_bad_lines", || json!(true), PARSED),
        Name::only("warn_bad_lines", || json!(true), PARSED),
        Name::only("skipfooter", || json!(0), PARSED),
        Name::only("doublequote", || json!(true), PARSED),
        Name::refused("float_precision", PARSED),
        Name::only("on_bad_lines", || json!("error"), PARSED),
        Name::refused("date_format", PARSED),
        Name::only("field", || json!("data"), "rows are the file or its `data`"),
        Name::refused("filters", "rows are all those of the files"),
        Name::only("on_bad_files", || json!("error"), "a damaged file is an error"),
        Name::only("keep_linebreaks", || json!(false), "a document is a line without its end"),
        Name::only("sample_by", || json!("line"), "data.documents says what a document is"),
    ],
    unknown: Unknown::Told,
};

/// The configurations that a dataset card lists, with the files of their splits.
pub(super) struct Card {
    /// Where it stands, for messages.
    shown: String,
    configs: Vec<Config>,
    /// Settings of the card that are not followed, one line each.
    told: Vec<String>,
}

struct Config {
    name: String,
    /// The patterns of each split; none where names of files tell.
    splits: Option<Vec<(String, Vec<String>)>>,
    data_dir: String,
    is_default: bool,
    separator: Option<String>,
    /// Whether quotes are text, as `quoting: 3` says.
    keeps_quotes: bool,
}

/// Whether the card of the dataset in `folder` says which of its files belong to which split.
///
/// # Errors
/// A card that cannot be read, and one that does not say which files to take.
pub fn has_card(folder: &Path) -> Result<bool> {
    Card::read(&folder.join(CARD)).map(|card| card.is_some())
}

/// The files of a split, or all configurations where none is chosen.
pub(super) type Choice = std::result::Result<Vec<String>, Vec<String>>;

impl Card {
    /// The card at `path`; none where there is no such file, or it says nothing of files.
    ///
    /// # Errors
    /// A section `configs` that `datasets` would refuse, or that asks for what Kiln does not do.
    pub(super) fn read(path: &Path) -> Result<Option<Self>> {
        if !path.is_file() {
            return Ok(None);
        }
        let bytes = read_given(path, MAX_CONFIG).map_err(|error| read_error(path, &error))?;
        Self::parse(&String::from_utf8_lossy(&bytes), &path.display().to_string())
    }

    fn parse(text: &str, shown: &str) -> Result<Option<Self>> {
        let Some(front) = front_matter(text) else { return Ok(None) };
        let wrong = |line: Option<usize>, what: &str| {
            let line = line.map_or(String::new(), |line| format!(" line {line}"));
            Error::data(format!("{shown}{line}: {what}"))
                .help("correct the front matter of the card, or name files in data.train instead of data.dataset_name")
        };
        let value = yaml::read(front).map_err(|(line, what)| wrong(Some(line + 1), &what))?;
        let Value::Object(mut card) = value else { return Ok(None) };
        let info = card.shift_remove("dataset_info");
        let Some(configs) = card.get("configs").filter(|configs| !configs.is_null()) else { return Ok(None) };
        let Some(configs) = configs.as_array() else {
            return Err(wrong(None, &format!("configs: expected a list of configurations, got {configs}")));
        };
        let mut told = DATASET_CARD.check(&card).map_err(|what| wrong(None, &what))?;
        // A long section of types for people says nothing where it has no classes.
        if info.is_some_and(|info| info.to_string().contains("\"class_label\"")) {
            told.push(
                "the names of classes in dataset_info are not followed where the files have none: data.label_names gives them"
                    .into(),
            );
        }
        let configs = configs.iter().map(|config| {
            let config =
                config.as_object().ok_or_else(|| format!("expected an entry with config_name, got {config}"))?;
            told.extend(CARD_CONFIG.check(config)?);
            Config::of(config)
        });
        let configs = configs.collect::<std::result::Result<Vec<_>, String>>();
        let configs = configs.map_err(|what| wrong(None, &format!("configs: {what}")))?;
        Ok((!configs.is_empty()).then(|| Self { shown: shown.to_owned(), configs, told }))
    }

    /// The lines about what is not followed.
    pub(super) fn told(&self) -> impl Iterator<Item = String> + '_ {
        self.told.iter().map(|line| format!("{}: {line}", self.shown))
    }

    fn names(&self) -> Vec<String> {
        self.configs.iter().map(|config| config.name.clone()).collect()
    }

    /// The configuration that `config` means; none where there is no such one, or several of which
    /// none is the default.
    fn chosen(&self, config: Option<&str>) -> Result<Option<&Config>> {
        let is_only = self.configs.len() == 1;
        let defaults = self.configs.iter().filter(|config| is_only || config.is_default || config.name == "default");
        match config {
            Some(wanted) => Ok(self.configs.iter().find(|config| config.name == wanted)),
            None => match defaults.collect::<Vec<_>>()[..] {
                [one] => Ok(Some(one)),
                [] => Ok(None),
                [one, other, ..] => {
                    let both = format!("{:?} and {:?} are both the default configuration", one.name, other.name);
                    Err(Error::data(format!("{}: configs: {both}", self.shown))
                        .help(format!("set data.dataset_config_name to one of: {}", self.names().join(", "))))
                }
            },
        }
    }

    /// Refuses `files` of tabs in which a field begins with a quote, unless the configuration that
    /// `config` means says that quotes are text: pandas takes them off, and Kiln does not.
    ///
    /// # Errors
    /// Such a field, with its line; a file that cannot be read.
    pub(super) fn check_quotes(&self, files: &[PathBuf], config: Option<&str>, endings: &[&str]) -> Result<()> {
        let Some(chosen) = self.chosen(config)?.filter(|chosen| endings == ["tsv"] && !chosen.keeps_quotes) else {
            return Ok(());
        };
        for file in files {
            let line = quoted_line(file).map_err(|error| read_error(file, &error))?;
            if let Some(line) = line {
                return Err(Error::data(format!(
                    "{} line {line}: a field begins with a quote, which `datasets` takes off with the card's configuration {:?}, and \
                     Kiln does not",
                    file.display(),
                    chosen.name
                ))
                .help(
                    "where quotes are part of the text, state `quoting: 3` in the card, or name the files in data.train; else \
                     write the files as csv, with commas",
                ));
            }
        }
        Ok(())
    }

    /// The names in `listing` of the files of the split that one of `names` is, in the
    /// configuration that `config` means; where the card leaves the files to their names, those
    /// that `by_names` finds among the names below the configuration's folder.
    ///
    /// # Errors
    /// Two configurations that are both the default; a pattern that matches no file; files that do
    /// not end as `endings` say.
    pub(super) fn choose(
        &self,
        listing: &[String],
        config: Option<&str>,
        names: &[&str],
        endings: &[&str],
        by_names: &dyn Fn(&[String]) -> Choice,
    ) -> Result<Choice> {
        let Some(chosen) = self.chosen(config)? else { return Ok(Err(self.names())) };
        chosen.check_format(&self.shown, endings)?;
        let below = |name: &String| match chosen.data_dir.as_str() {
            "" => Some(name.clone()),
            folder => name.strip_prefix(folder)?.strip_prefix('/').map(str::to_owned),
        };
        let inner = listing.iter().filter_map(below).collect::<Vec<_>>();
        let whole = |names: Vec<String>| match chosen.data_dir.as_str() {
            "" => names,
            folder => names.into_iter().map(|name| format!("{folder}/{name}")).collect(),
        };
        let Some(splits) = &chosen.splits else { return Ok(by_names(&inner).map(whole)) };
        let split = names.iter().find_map(|name| splits.iter().find(|(split, _)| split == name));
        let Some((split, patterns)) = split else { return Ok(Ok(Vec::new())) };
        let mut found = Vec::new();
        for pattern in patterns {
            let place = format!("{}: configs: {:?}, split {split}: {pattern:?}", self.shown, chosen.name);
            let glob = Pattern::new(pattern.trim_start_matches("./"));
            let glob = glob.map_err(|error| Error::data(format!("{place}: not a valid glob: {error}")))?;
            let options = MatchOptions { require_literal_separator: true, ..MatchOptions::default() };
            let is_asked = |name: &&String| {
                let file = name.rsplit('/').next().unwrap_or(name);
                let is_data = !is_description(Path::new(name)) || pattern.ends_with(file);
                is_data && hidden_parts(name) == hidden_parts(pattern.trim_start_matches("./"))
            };
            let mut matching =
                inner.iter().filter(|name| glob.matches_with(name, options)).filter(is_asked).collect::<Vec<_>>();
            if matching.is_empty() {
                return Err(Error::data(format!("{place}: expected files, found none"))
                    .help("correct the card, or name files in data.train instead of data.dataset_name"));
            }
            matching.sort();
            found.extend(matching.into_iter().filter(|name| !found.contains(*name)).cloned().collect::<Vec<_>>());
        }
        let wanted = found.iter().filter(|name| has_ending(Path::new(name), endings)).cloned().collect::<Vec<_>>();
        if wanted.is_empty() {
            let endings = endings.iter().map(|ending| format!(".{ending}")).collect::<Vec<_>>().join(", ");
            let message = format!(
                "{}: configs: {:?}: the files of the split {split} do not end as data.format says ({endings})",
                self.shown, chosen.name
            );
            return Err(Error::config(message).help(format!("set data.format to that of {}", found[0])));
        }
        Ok(Ok(whole(wanted)))
    }
}

impl Config {
    fn of(config: &Map<String, Value>) -> std::result::Result<Self, String> {
        let text = |name: &str| match config.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => Err(format!("{name}: expected text, got {other}")),
        };
        let name = text("config_name")?.ok_or_else(|| "expected config_name in each entry, found none".to_owned())?;
        let of = |what: String| format!("{name:?}: {what}");
        let splits = config.get("data_files").filter(|files| !files.is_null()).map(splits).transpose().map_err(of)?;
        let data_dir = text("data_dir")?.unwrap_or_default();
        let data_dir = data_dir.trim_start_matches("./").trim_matches('/').to_owned();
        let is_default = config.get("default").and_then(Value::as_bool).unwrap_or(false);
        let separator = text("delimiter")?.or(text("sep")?);
        let keeps_quotes = match config.get("quoting").unwrap_or(&Value::Null) {
            Value::Null => false,
            quoting if quoting == 0 => false,
            quoting if quoting == 3 => true,
            quoting => return Err(format!("quoting: expected 0, or 3 with tabs, got {quoting}")),
        };
        Ok(Self { splits, data_dir, is_default, separator, keeps_quotes, name })
    }

    /// Whether files of the format with `endings` are written as the configuration of the card
    /// `shown` says.
    fn check_format(&self, shown: &str, endings: &[&str]) -> Result<()> {
        if self.keeps_quotes && endings != ["tsv"] {
            return Err(Error::data(format!("{shown}: quoting: expected 0, got 3: {PARSED}"))
                .help("where the columns stand between tabs, set data.format = \"tsv\"; else correct the card"));
        }
        let Some(separator) = self.separator.as_deref().filter(|_| endings == ["csv"] || endings == ["tsv"]) else {
            return Ok(());
        };
        if !["\t", ","].contains(&separator) {
            return Err(Error::data(format!("{shown}: sep: expected a comma or a tab, got {separator:?}"))
                .help("write the files with one of them between columns, and name them in data.train"));
        }
        let wanted = if separator == "\t" { "tsv" } else { "csv" };
        if endings == [wanted] {
            Ok(())
        } else {
            Err(Error::config(format!("{shown}: sep = {separator:?} is not that of data.format"))
                .help(format!("set data.format = \"{wanted}\", and name the files in data.train")))
        }
    }
}

/// The patterns of each split by a card's `data_files`: a pattern or a list of them, which are the
/// split `train`, or a list of splits with their paths.
fn splits(files: &Value) -> std::result::Result<Vec<(String, Vec<String>)>, String> {
    let wrong = || {
        format!(
            "data_files: expected a path, a list of paths, or a list of entries with the keys split and path, got {files}"
        )
    };
    let patterns = |value: &Value| -> Option<Vec<String>> {
        let one = |value: &Value| value.as_str().map(str::to_owned);
        value.as_array().map_or_else(|| Some(vec![one(value)?]), |list| list.iter().map(one).collect())
    };
    let train = |patterns| vec![("train".to_owned(), patterns)];
    let entries = match files.as_array() {
        Some(entries) if entries.iter().any(Value::is_object) => entries,
        _ => return patterns(files).map(train).ok_or_else(wrong),
    };
    let mut splits = Vec::<(String, Vec<String>)>::new();
    for entry in entries {
        let keys = entry.as_object().filter(|entry| entry.len() == 2);
        let split = keys.and_then(|keys| keys.get("split")?.as_str());
        let paths = keys.and_then(|keys| patterns(keys.get("path")?));
        let (Some(split), Some(paths)) = (split, paths) else { return Err(wrong()) };
        if splits.iter().any(|(other, _)| other == split) {
            return Err(format!("data_files: the split {split:?} stands twice"));
        }
        splits.push((split.to_owned(), paths));
    }
    Ok(splits)
}

/// The line of `file` in which a field between tabs begins with a quote; none where there is no
/// such field.
fn quoted_line(file: &Path) -> std::io::Result<Option<u64>> {
    let mut file = BufReader::new(Decoded::open(file)?);
    let (mut line, mut before) = (1, b'\n');
    loop {
        let bytes = file.fill_buf()?;
        if bytes.is_empty() {
            return Ok(None);
        }
        for &byte in bytes {
            if byte == b'"' && b"\t\r\n".contains(&before) {
                return Ok(Some(line));
            }
            // `\r\n` is one end.
            line += u64::from(byte == b'\r' || byte == b'\n' && before != b'\r');
            before = byte;
        }
        let taken = bytes.len();
        file.consume(taken);
    }
}

/// The text between the first line and the next one that are `---`.
fn front_matter(text: &str) -> Option<&str> {
    let front = without_mark(text).strip_prefix("---")?.trim_start_matches([' ', '\r']).strip_prefix('\n')?;
    let mut at = 0;
    for line in front.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return Some(&front[..at]);
        }
        at += line.len();
    }
    None
}
