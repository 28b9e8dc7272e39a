//! Where a model or a tokenizer comes from: turns the "path-or-hub-id" of a config file or command
//! line into a local folder. A folder that exists wins; anything else is `id[@revision]` on the
//! Hugging Face Hub, downloaded once into the standard cache, where Hugging Face's own tools find
//! it too. [`push`](fn@push) writes to the Hub. It looks at names and sizes only: what the files
//! hold is for the model and tokenizer loaders, which are its users.

mod card;
mod dataset;
mod push;
mod repo;
mod settings;
mod splits;
mod transfer;
#[cfg(feature = "push")]
mod upload;
mod wanted;
mod yaml;

use std::path::{Path, PathBuf};

pub use card::{CARD_CONFIG, DATASET_CARD, has_card};
pub use dataset::{dataset_files, dataset_files_with, is_dataset};
use kiln_core::error::{Error, Result, nearest};
use kiln_core::variables::expand_text;
pub use push::{CAN_PUSH, Content, PushFile, Pushed, Target, file_of, prepare, push};
use repo::{CachedRepo, DEFAULT_REVISION, Repo, RepoInfo, RepoKind, parse_id, split_revision};
pub use repo::{id_of, name_of};
pub use settings::HubSettings;
pub use splits::{Split, dataset_split, dataset_split_with};
use transfer::{Session, Unanswered};
pub use wanted::{Wanted, shards};

/// The local folder (or, where `wanted` accepts one, file) that `spec` names, downloaded from the
/// Hub if need be, with the settings of the environment (see [`HubSettings::from_env`]).
///
/// `spec` is, in this order, once its variables are expanded ([`variables`](kiln_core::variables)):
/// an existing path; something that can only be a path, which is then an error as it does not
/// exist; or `name`, `org/name`, `name@revision`, `org/name@revision` on the Hub, where the
/// revision is a branch, a tag or a commit (default: main). A revision that the cache holds in full
/// is taken from there without asking the Hub, so a branch that has moved is seen only once its
/// snapshot is deleted or a commit is named.
///
/// # Errors
/// `Config` for an id that cannot be one and for bad settings; `Data` when the path, repository,
/// revision or a file does not exist, is not accessible, cannot be reached, or when the network is
/// off and the cache lacks it; `Io` when the cache cannot be written.
pub fn resolve(spec: &str, wanted: &Wanted) -> Result<PathBuf> {
    let spec = &expand_text(spec)?;
    match local(spec, wanted)? {
        Some(path) => Ok(path),
        None => from_hub(&parse_id(spec)?, wanted, &HubSettings::from_env()?),
    }
}

/// [`resolve`] with settings of one's own instead of the environment's.
///
/// # Errors
/// `Config` for an id that cannot be one and for bad settings; `Data` when the path, repository,
/// revision or a file does not exist, is not accessible, cannot be reached, or when the network is
/// off and the cache lacks it; `Io` when the cache cannot be written.
pub fn resolve_with(spec: &str, wanted: &Wanted, settings: &HubSettings) -> Result<PathBuf> {
    let spec = &expand_text(spec)?;
    match local(spec, wanted)? {
        Some(path) => Ok(path),
        None => from_hub(&parse_id(spec)?, wanted, settings),
    }
}

/// Whether `spec` names something on this machine and not an id of the Hub.
pub fn is_local(spec: &str) -> bool {
    settings::expand_home(spec).exists()
}

/// Whether `spec` has the form of an id of the Hub, `org/name` or `name`, perhaps with a revision.
pub fn is_id(spec: &str) -> bool {
    parse_id(spec).is_ok()
}

/// The path if `spec` names something on this machine, none if it has to be a Hub id.
fn local(spec: &str, wanted: &Wanted) -> Result<Option<PathBuf>> {
    let path = PathBuf::from(spec);
    if spec.is_empty() {
        return Err(Error::config(format!("the path or Hub id of the {} is empty", wanted.what)));
    }
    if path.is_dir() {
        return match wanted.missing_in(&path)? {
            None => Ok(Some(path)),
            // A run folder stands for the model that it ended with.
            Some(_) if wanted.missing_in(&path.join("model")).is_ok_and(|missing| missing.is_none()) => {
                Ok(Some(path.join("model")))
            }
            Some(missing) => {
                let newest =
                    newest_checkpoint(&path).filter(|newest| wanted.missing_in(newest).is_ok_and(|it| it.is_none()));
                let help = match newest {
                    // A run that has not come to its end.
                    Some(newest) => {
                        format!("the run in it has no model/ yet; its newest checkpoint is {}", newest.display())
                    }
                    None => format!("{} folder holds {}", wanted.named(), wanted.describe()),
                };
                Err(Error::data(format!("the folder {} has no {missing}", path.display())).help(help))
            }
        };
    }
    if path.exists() {
        return if wanted.accepts_file {
            Ok(Some(path))
        } else {
            let help = if path.extension().is_some_and(|ending| ending == "toml") {
                "give the run folder of the config, its run.output_dir"
            } else {
                "give the folder that holds the file"
            };
            Err(Error::data(format!("{} is a file, expected a folder with {}", path.display(), wanted.describe()))
                .help(help))
        };
    }
    let parent_exists = path.parent().is_some_and(|parent| !parent.as_os_str().is_empty() && parent.is_dir());
    let marked = spec.starts_with(['.', '/', '~']) || spec.ends_with('/') || spec.contains('\\');
    let (id, revision) = split_revision(spec);
    if marked || id.matches('/').count() > 1 {
        let near = near_folder(&path).map_or_else(String::new, |near| format!("did you mean {near}? "));
        return Err(Error::data(format!("no such file or folder: {}", path.display()))
            .help(format!("{near}an id on the Hugging Face Hub is written name, org/name or org/name@revision")));
    }
    if parent_exists && revision.is_none() {
        let parent = path.parent().unwrap_or(Path::new(".")).display();
        let near = near_folder(&path).map_or_else(String::new, |near| format!("did you mean {near}? "));
        return Err(Error::data(format!("no such file or folder: {}", path.display())).help(format!(
            "{near}the folder {parent} exists, so this reads as a path; to load it from the Hub, write {spec}@main"
        )));
    }
    Ok(None)
}

/// The newest of the checkpoints of the run in `folder`; none for another folder.
fn newest_checkpoint(folder: &Path) -> Option<PathBuf> {
    let checkpoints = folder.join("checkpoints");
    let names =
        std::fs::read_dir(&checkpoints).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    // The names end in the step, with zeroes before it where it is short.
    let newest = names.filter(|name| name.starts_with("step-")).max_by_key(|name| (name.len(), name.clone()))?;
    Some(checkpoints.join(newest))
}

/// The snapshot folder of `repo`, from the cache if it is complete there, else from the Hub.
fn from_hub(repo: &Repo, wanted: &Wanted, settings: &HubSettings) -> Result<PathBuf> {
    let cached = CachedRepo::new(repo, settings);
    let commit = cached.commit();
    let lacking = match &commit {
        Some(commit) => wanted.missing_in(&cached.snapshot(commit))?,
        None => Some("snapshot of this revision".to_string()),
    };
    if let (Some(commit), None) = (&commit, &lacking)
        && (settings.offline || wanted.optional.iter().all(|name| cached.is_settled(commit, name)))
    {
        return Ok(cached.snapshot(commit));
    }
    if settings.offline {
        let lacking = lacking.unwrap_or_default();
        let name = repo.name();
        return Err(Error::data(format!(
            "`{name}` is not in the cache {} (no {lacking}) and HF_HUB_OFFLINE forbids the network",
            settings.cache.display()
        ))
        .help(offline_help(repo, settings)));
    }

    let session = Session::new(repo, settings, &cached)?;
    let info = session.info()?;
    let on_hub = |name: &str| info.siblings.iter().any(|file| file.rfilename == name);
    let chosen = choose(repo, wanted, settings, &info)?;
    let snapshot = cached.snapshot(&info.sha);
    for name in chosen {
        session.fetch(&info.sha, name)?;
        for shard in shards(&snapshot, name)? {
            session.fetch(&info.sha, &shard)?;
        }
    }
    for name in wanted.optional {
        if !on_hub(name) {
            cached.mark_absent(&info.sha, name)?;
        }
    }
    // Last, so that an interrupted download leaves the name pointing at the older, complete
    // snapshot.
    let _lock = session.lock("refs")?;
    cached.set_commit(&info.sha)?;
    Ok(snapshot)
}

/// The files to take of those that the repository lists.
fn choose(repo: &Repo, wanted: &Wanted, settings: &HubSettings, info: &RepoInfo) -> Result<Vec<&'static str>> {
    let on_hub = |name: &str| info.siblings.iter().any(|file| file.rfilename == name);
    wanted.choose(&on_hub).map_err(|missing| {
        Error::data(format!("`{}` on {} has no {missing}", repo.name(), settings.shown_endpoint())).help(format!(
            "{} repository holds {}",
            wanted.named(),
            wanted.describe()
        ))
    })
}

/// A model that is named but not loaded yet.
pub enum Glimpse {
    /// The folder with its configuration.
    Config(PathBuf),
    /// It is not on this machine, and the Hub does not answer, for this reason.
    Unknown(Error),
}

/// Looks at the model that `spec` names, without its weights.
///
/// # Errors
/// An error with which loading the model would end too. A Hub that is not to be asked or does not
/// answer is no error but [`Glimpse::Unknown`].
pub fn glimpse(spec: &str, settings: &HubSettings) -> Result<Glimpse> {
    const CONFIG: Wanted =
        Wanted { what: "model", required: &["config.json"], one_of: &[], optional: &[], accepts_file: false };
    let spec = &expand_text(spec)?;
    if let Some(folder) = local(spec, &Wanted::MODEL)? {
        return Ok(Glimpse::Config(folder));
    }
    let repo = parse_id(spec)?;
    let missing = match from_hub(&repo, &CONFIG, &HubSettings { offline: true, ..settings.clone() }) {
        Ok(folder) => return Ok(Glimpse::Config(folder)),
        Err(missing) => missing,
    };
    if settings.offline {
        return Ok(Glimpse::Unknown(missing));
    }
    let cached = CachedRepo::new(&repo, settings);
    let session = Session::new(&repo, settings, &cached)?;
    match session.ask() {
        Ok(answer) => choose(&repo, &Wanted::MODEL, settings, &session.read_info(answer)?)?,
        Err(Unanswered(error)) => return Ok(Glimpse::Unknown(error)),
    };
    from_hub(&repo, &CONFIG, settings).map(Glimpse::Config)
}

/// Models of the Hub that a slip in a name may mean: by the name of the family, and by their own.
const USUAL: [(&str, &str); 7] = [
    ("gpt2", "openai-community/gpt2"),
    ("distilgpt2", "distilbert/distilgpt2"),
    ("bert", "google-bert/bert-base-uncased"),
    ("roberta", "FacebookAI/roberta-base"),
    ("distilbert", "distilbert/distilbert-base-uncased"),
    ("electra", "google/electra-small-discriminator"),
    ("albert", "albert/albert-base-v2"),
];

/// The model whose name is nearest to `spec`, which names none that could be found: a folder beside
/// it, or for a name alone a model that many use.
pub fn near_model(spec: &str) -> Option<String> {
    if let Some(near) = near_folder(Path::new(spec)) {
        return Some(near);
    }
    let own = |id: &'static str| id.rsplit('/').next().unwrap_or(id);
    if spec.contains(['/', '@']) || USUAL.iter().any(|(_, id)| own(id) == spec) {
        return None;
    }
    let near = nearest(spec, USUAL.iter().flat_map(|(family, id)| [*family, own(id)]))?;
    USUAL.iter().find(|(family, id)| *family == near || own(id) == near).map(|(_, id)| (*id).to_owned())
}

/// The folder beside `path` whose name is nearest to its name.
fn near_folder(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_string_lossy();
    let parent = path.parent()?;
    let place = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let folders = std::fs::read_dir(place).ok()?.flatten().filter(|entry| entry.path().is_dir());
    let mut names = folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>();
    names.sort();
    let near = nearest(&name, names.iter().map(String::as_str).filter(|other| *other != name))?;
    Some(parent.join(near).display().to_string())
}

/// How to do without the network, for error messages.
fn offline_help(repo: &Repo, settings: &HubSettings) -> String {
    let id = match repo.kind {
        RepoKind::Dataset => format!("{} --repo-type dataset", repo.id),
        RepoKind::Model => repo.id.clone(),
    };
    let revision = match repo.revision.as_str() {
        DEFAULT_REVISION => String::new(),
        revision => format!(" --revision {revision}"),
    };
    format!(
        "offline: where there is a network, run `hf download {id}{revision} --local-dir FOLDER`, copy FOLDER here and give \
         its path instead of the id; or fill the cache {} the same way (without --local-dir) and set HF_HUB_OFFLINE=1",
        settings.cache.display()
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::messages::messages;

    #[test]
    fn ids_are_read_as_the_hub_writes_them() {
        for (spec, id, revision) in [
            ("gpt2", "gpt2", "main"),
            ("openai-community/gpt2", "openai-community/gpt2", "main"),
            ("bert-base-uncased@v1.0", "bert-base-uncased", "v1.0"),
            ("org/na_me.v2@refs/pr/5", "org/na_me.v2", "refs/pr/5"),
        ] {
            let repo = parse_id(spec).unwrap();
            assert_eq!((repo.path().as_str(), repo.revision.as_str()), (id, revision));
        }
    }

    #[test]
    fn what_cannot_be_an_id_is_refused() {
        let long = "x".repeat(97);
        for spec in ["a b", "a//b", "a/b/c", "-a", "a.", "a--b", "a..b", "a.git", "ü", "a:b", "/a", long.as_str()] {
            let error = parse_id(spec).err().unwrap_or_else(|| panic!("{spec} passed"));
            assert_eq!(error.kind(), kiln_core::error::ErrorKind::Config, "{spec}");
        }
        for revision in ["", "..", "a..b", "/a", "a/", "a b", "a~1", "-x", "a@b", ".hidden", "a/../../b"] {
            assert!(parse_id(&format!("gpt2@{revision}")).is_err(), "revision {revision} passed");
        }
    }

    #[test]
    fn what_can_only_be_a_path_is_not_looked_for_on_the_hub() {
        let messages = messages!();
        let here = tempfile::tempdir().unwrap();
        let existing_parent = here.path().join("nothing");
        for spec in [
            "./gpt2",
            "../gpt2",
            "/no/where",
            "~/no-such-folder-of-kiln",
            "a/b/c",
            "gpt2/",
            existing_parent.to_str().unwrap(),
        ] {
            messages.refused(spec, local(spec, &Wanted::MODEL));
        }
        // `src` exists in the package root, where tests run.
        messages.refused("src/no-such-model", local("src/no-such-model", &Wanted::MODEL));
        assert_eq!(local("src/no-such-model@main", &Wanted::MODEL).unwrap(), None);
        assert_eq!(local("openai-community/gpt2", &Wanted::MODEL).unwrap(), None);
        messages.refused("an empty name", local("", &Wanted::MODEL));
    }

    #[test]
    fn a_slip_in_a_name_is_told_with_the_nearest_model() {
        let here = tempfile::tempdir().unwrap();
        std::fs::create_dir(here.path().join("bert-small")).unwrap();
        let near = here.path().join("bert-small").display().to_string();
        let slip = here.path().join("bert-smal").display().to_string();
        assert_eq!(near_model(&slip), Some(near.clone()));
        let told = local(&slip, &Wanted::MODEL).unwrap_err().to_string();
        assert!(told.contains(&format!("help: did you mean {near}? an id on the")), "{told}");
        assert_eq!(near_model("brt").as_deref(), Some("google-bert/bert-base-uncased"));
        assert_eq!(near_model("gtp2").as_deref(), Some("openai-community/gpt2"));
        for right in ["gpt2", "bert-base-uncased", "org/brt", "zzz"] {
            assert_eq!(near_model(right), None, "{right}");
        }
    }

    #[test]
    fn a_local_folder_wins_and_is_checked() {
        let messages = messages!();
        let folder = tempfile::tempdir().unwrap();
        let spec = folder.path().to_str().unwrap();
        messages.refused("an empty folder", local(spec, &Wanted::MODEL));
        std::fs::write(folder.path().join("config.json"), "{}").unwrap();
        messages.refused("config.json alone", local(spec, &Wanted::MODEL));
        std::fs::write(folder.path().join("pytorch_model.bin"), "x").unwrap();
        assert_eq!(local(spec, &Wanted::MODEL).unwrap().unwrap(), folder.path());

        let file = folder.path().join("config.json");
        let file = file.to_str().unwrap();
        messages.refused(file, local(file, &Wanted::MODEL));
        assert_eq!(local(file, &Wanted::TOKENIZER).unwrap().unwrap().to_str().unwrap(), file);
        // People take for a model: a config, and the folder of a run that was stopped.
        let config = folder.path().join("run.toml");
        std::fs::write(&config, "").unwrap();
        messages.refused("run.toml", local(config.to_str().unwrap(), &Wanted::MODEL));
        let run = folder.path().join("run");
        for step in ["step-000009", "step-000010", ".step-000011.part"] {
            let checkpoint = run.join("checkpoints").join(step);
            std::fs::create_dir_all(&checkpoint).unwrap();
            for name in ["config.json", "model.safetensors"] {
                std::fs::write(checkpoint.join(name), "").unwrap();
            }
        }
        messages.refused("run", local(run.to_str().unwrap(), &Wanted::MODEL));
    }
}
