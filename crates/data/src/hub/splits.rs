//! Datasets by name, as `load_dataset(NAME, CONFIGURATION)` of `datasets` finds their files: the
//! files that the dataset's [card](super::card) names, or the files of a repository that are named
//! after splits, or else the files of its branch `refs/convert/parquet`, which the Hub makes of
//! repositories with scripts. A folder of this machine is read as a repository is, or as
//! [`saved_dataset`] where `datasets` has saved it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kiln_core::error::{Error, Result};
use kiln_core::files::{has_ending, hidden_parts, is_description};
use kiln_core::saved_dataset;
use kiln_core::told::tell_once;
use kiln_core::variables::expand_text;

use super::card::{CARD, Card};
use super::dataset::{is_complete, names_in};
use super::offline_help;
use super::repo::{CachedRepo, Repo, RepoKind, parse_id_as};
use super::settings::HubSettings;
use super::transfer::Session;

/// The branch with a dataset's rows as parquet files, `CONFIGURATION/SPLIT/0000.parquet`.
const PARQUET: &str = "refs/convert/parquet";

/// The configuration of files that belong to none.
const DEFAULT: &str = "default";

/// A part of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// `train`
    Train,
    /// `validation`, also called `valid`, `val` or `dev`.
    Validation,
}

impl Split {
    /// Its names, the first of which is that of `datasets`.
    fn names(self) -> &'static [&'static str] {
        match self {
            Self::Train => &["train"],
            Self::Validation => &["validation", "valid", "val", "dev"],
        }
    }
}

/// Words that tell a split in names of files.
const SPLITS: [&str; 8] = ["train", "validation", "valid", "val", "dev", "test", "training", "testing"];

/// The local files of a split of the dataset `name` (`ID` or `ID@REVISION` on the Hub, or a folder)
/// whose names end as `endings` say, sorted; downloaded if need be, with the settings of the
/// environment. Empty where there is no such split. Without `config` the only configuration is
/// taken, or `default`.
///
/// # Errors
/// `Config` for a name that is none, and a configuration that there is not or that is needed and
/// not given; `Data` for a dataset that does not exist, has no such files, or cannot be reached;
/// `Io` when the cache cannot be written.
pub fn dataset_split(name: &str, config: Option<&str>, split: Split, endings: &[&str]) -> Result<Vec<PathBuf>> {
    dataset_split_with(name, config, split, endings, &HubSettings::from_env()?)
}

/// [`dataset_split`] with settings of one's own.
///
/// # Errors
/// `Config` for a name that is none, and a configuration that there is not or that is needed and
/// not given; `Data` for a dataset that does not exist, has no such files, or cannot be reached;
/// `Io` when the cache cannot be written.
pub fn dataset_split_with(
    name: &str,
    config: Option<&str>,
    split: Split,
    endings: &[&str],
    settings: &HubSettings,
) -> Result<Vec<PathBuf>> {
    let name = expand_text(name)?;
    let folder = Path::new(&name);
    let at_hand = |names: Vec<String>, folder: &Path, card: Option<&Card>| {
        let files = names.iter().map(|name| folder.join(name)).collect::<Vec<_>>();
        card.map_or(Ok(()), |card| card.check_quotes(&files, config, endings)).map(|()| files)
    };
    let of_card = |listing: &[String], card: Option<&Card>| match card {
        None => Ok(choose(listing, config, split, endings)),
        Some(card) => {
            if split == Split::Train {
                card.told().for_each(tell_once);
            }
            card.choose(listing, config, split.names(), endings, &|names| choose(names, None, split, endings))
        }
    };
    if let Some(splits) = saved_dataset::splits(folder)? {
        let saved = split.names().iter().find(|name| splits.iter().any(|split| split == *name));
        return Ok(saved.map(|name| folder.join(name)).into_iter().collect());
    }
    if saved_dataset::files(folder)?.is_some() {
        return Ok(if split == Split::Train { vec![folder.to_owned()] } else { Vec::new() });
    }
    if folder.is_dir() {
        let (listing, card) = (names_in(folder), Card::read(&folder.join(CARD))?);
        return match of_card(&listing, card.as_ref())? {
            Ok(names) => at_hand(names, folder, card.as_ref()),
            Err(configs) => Err(refused(&format!("the folder {name}"), config, &configs, &listing, endings)),
        };
    }
    let repo = parse_id_as(&name, RepoKind::Dataset)?;
    let revisions =
        if name.contains('@') { vec![repo.revision.clone()] } else { vec![repo.revision.clone(), PARQUET.into()] };
    let mut found = Vec::new();
    let mut listed = Vec::new();
    for (number, revision) in revisions.into_iter().enumerate() {
        let repo = Repo { revision, ..repo.clone() };
        let cached = CachedRepo::new(&repo, settings);
        let snapshot = cached.commit().map(|commit| cached.snapshot(&commit));
        // The names of the parts tell whether all are there; which configurations there are only
        // the Hub tells.
        if let Some(snapshot) = &snapshot
            && (settings.offline || config.is_some() && (number > 0 || snapshot.join(CARD).is_file()))
            && let card = Card::read(&snapshot.join(CARD))?
            && let Ok(names) = of_card(&names_in(snapshot), card.as_ref())?
            && is_complete(&names)
            && (settings.offline || !names.is_empty() && names.iter().all(|name| name.contains("-of-")))
        {
            return at_hand(names, snapshot, card.as_ref());
        }
        if settings.offline {
            continue;
        }
        let session = Session::new(&repo, settings, &cached)?;
        let info = match session.info() {
            Ok(info) => info,
            // A repository without that branch.
            Err(_) if number > 0 => continue,
            Err(error) => return Err(error),
        };
        let listing = info.siblings.into_iter().map(|file| file.rfilename).collect::<Vec<_>>();
        let card = if listing.iter().any(|name| name == CARD) {
            session.fetch(&info.sha, CARD)?;
            Card::read(&cached.snapshot(&info.sha).join(CARD))?
        } else {
            None
        };
        match of_card(&listing, card.as_ref())? {
            Ok(names) => {
                for name in &names {
                    session.fetch(&info.sha, name)?;
                }
                // Last, so that an interrupted download leaves the name pointing at the older
                // snapshot.
                let _lock = session.lock("refs")?;
                cached.set_commit(&info.sha)?;
                return at_hand(names, &cached.snapshot(&info.sha), card.as_ref());
            }
            Err(configs) => found.extend(configs),
        }
        listed.extend(listing);
    }
    if settings.offline {
        return Err(Error::data(format!(
            "the dataset `{name}`{} is not in the cache {} and HF_HUB_OFFLINE forbids the network",
            config.map(|config| format!(" with the configuration {config}")).unwrap_or_default(),
            settings.cache.display()
        ))
        .help(offline_help(&repo, settings)));
    }
    found.sort();
    found.dedup();
    let shown = format!("`{}` on {}", repo.name(), settings.shown_endpoint());
    Err(refused(&shown, config, &found, &listed, endings))
}

/// The error of a dataset without the configuration that is wanted.
fn refused(shown: &str, config: Option<&str>, configs: &[String], listed: &[String], endings: &[&str]) -> Error {
    if configs.is_empty() {
        let some = listed.iter().filter(|name| hidden_parts(name) == 0).take(8).cloned().collect::<Vec<_>>().join(", ");
        let endings = endings.iter().map(|ending| format!(".{ending}")).collect::<Vec<_>>().join(", ");
        let error = Error::data(format!("{shown} has no file of a split that ends as data.format says ({endings})"));
        return error.help(format!("it has {some}; set data.format, or name files in data.train"));
    }
    let message = match config {
        Some(config) => format!("{shown} has no configuration {config:?}"),
        None => format!("{shown} has several configurations, and data.dataset_config_name names none"),
    };
    Error::config(message).help(format!("set data.dataset_config_name to one of: {}", configs.join(", ")))
}

/// The names in `listing` of the files of `split` in the configuration that `config` means, sorted;
/// else all configurations.
fn choose(
    listing: &[String],
    config: Option<&str>,
    split: Split,
    endings: &[&str],
) -> std::result::Result<Vec<String>, Vec<String>> {
    let is_data = |name: &&String| {
        let path = Path::new(name);
        has_ending(path, endings) && hidden_parts(name) == 0 && !is_description(path)
    };
    let placed = listing.iter().filter(is_data).map(|name| (place(name), name)).collect::<Vec<_>>();
    let of_splits = placed.iter().filter(|((_, split), _)| SPLITS.iter().any(|word| split.starts_with(word)));
    let configs = of_splits.map(|((config, _), _)| config.clone()).collect::<BTreeSet<_>>();
    let chosen = match config {
        Some(config) => configs.get(config),
        None if configs.len() == 1 => configs.first(),
        None => configs.get(DEFAULT),
    };
    let Some(chosen) = chosen else { return Err(configs.into_iter().collect()) };
    let of = |wanted: &str| {
        let of_split = placed.iter().filter(|((config, split), _)| config == chosen && split == wanted);
        let mut names = of_split.map(|(_, name)| (*name).clone()).collect::<Vec<_>>();
        names.sort();
        names
    };
    Ok(split.names().iter().map(|name| of(name)).find(|names| !names.is_empty()).unwrap_or_default())
}

/// The configuration and the split of the file `name`, by the rules of `datasets`:
/// `CONFIGURATION/SPLIT-00000-of-00001.parquet`, `CONFIGURATION/SPLIT/0000.parquet`,
/// `data/SPLIT-00000-of-00001.parquet`, or a word in the name of the file or its folder.
fn place(name: &str) -> (String, String) {
    let mut folders = name.split('/').collect::<Vec<_>>();
    let file = folders.pop().unwrap_or_default();
    let stem = file.split_once('.').map_or(file, |(stem, _)| stem);
    if folders.first() == Some(&"data") {
        folders.remove(0);
    }
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // `train-00000-of-00002`, `validation_matched-00000-of-00001`
    let sharded = stem.split_once("-of-").map_or(stem, |(first, _)| first);
    let sharded = sharded.rsplit_once('-').filter(|(_, number)| is_number(number)).map(|(split, _)| split);
    let word = |text: &str| {
        let mut words = text.split(|byte: char| "-._ ".contains(byte) || byte.is_ascii_digit());
        words.find(|word| SPLITS.contains(word)).map(str::to_owned)
    };
    let split = sharded.map(str::to_owned).or_else(|| word(stem));
    let split = match split {
        Some(split) => split,
        // The folder is the split.
        None => match folders.pop() {
            Some(folder) => folder.to_owned(),
            None => stem.to_owned(),
        },
    };
    // `train/train-0000.csv`
    if folders.last() == Some(&split.as_str()) {
        folders.pop();
    }
    let config = if folders.is_empty() { DEFAULT.to_owned() } else { folders.join("/") };
    (config, split)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn chosen(listing: &[&str], config: Option<&str>, split: Split) -> std::result::Result<Vec<String>, Vec<String>> {
        let listing = listing.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        choose(&listing, config, split, &["parquet", "csv", "json"])
    }

    #[test]
    fn files_are_told_by_their_names() {
        for (name, config, split) in [
            ("plain_text/train-00000-of-00001.parquet", "plain_text", "train"),
            ("mnli/validation_matched-00000-of-00001.parquet", "mnli", "validation_matched"),
            ("data/train-00000-of-00010-0a1b2c.parquet", "default", "train"),
            ("data/en/train-00000-of-00001.parquet", "en", "train"),
            ("sst2/train/0000.parquet", "sst2", "train"),
            ("default/partial-train/0003.parquet", "default", "partial-train"),
            ("train.csv", "default", "train"),
            ("train-v1.1.json", "default", "train"),
            ("my_test.csv.gz", "default", "test"),
            ("train/a.csv", "default", "train"),
            ("en/dev.csv", "en", "dev"),
            ("dataset_infos.json", "default", "dataset_infos"),
        ] {
            assert_eq!(place(name), (config.to_owned(), split.to_owned()), "{name}");
        }
    }

    #[test]
    fn the_only_configuration_or_default_is_taken() {
        let squad =
            ["README.md", "plain_text/train-00000-of-00001.parquet", "plain_text/validation-00000-of-00001.parquet"];
        assert_eq!(chosen(&squad, None, Split::Train).unwrap(), [squad[1]]);
        assert_eq!(chosen(&squad, Some("plain_text"), Split::Validation).unwrap(), [squad[2]]);
        assert_eq!(chosen(&squad, Some("x"), Split::Train).unwrap_err(), ["plain_text"]);
        let glue = ["sst2/train-00000-of-00001.parquet", "cola/train-00000-of-00001.parquet", "dataset_infos.json"];
        assert_eq!(chosen(&glue, None, Split::Train).unwrap_err(), ["cola", "sst2"]);
        assert_eq!(chosen(&glue, Some("sst2"), Split::Validation).unwrap(), [""; 0]);
        let two = ["train.csv", "other/train.csv", "dev.csv"];
        assert_eq!(chosen(&two, None, Split::Train).unwrap(), ["train.csv"]);
        assert_eq!(chosen(&two, None, Split::Validation).unwrap(), ["dev.csv"]);
        assert!(chosen(&["README.md", "script.py"], None, Split::Train).unwrap_err().is_empty());
    }
}
