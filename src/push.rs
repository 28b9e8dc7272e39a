//! The files of a run that go to the Hub (`kiln push`, `trainer.push_to_hub`): those of the folder
//! of the model that are the model's, and with `hub_strategy = "checkpoint"` the last checkpoint,
//! whose `state.json` has the settings of the run with the paths in them. Never data or logs, and
//! plans and states of an optimizer with that checkpoint alone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kiln_core::error::{Error, Result};
use kiln_core::files::read_json;
use kiln_core::process::shell_quoted;
use kiln_core::signals;
use kiln_core::words::thousands;
use kiln_data::hub::{self, Content, HubSettings, PushFile, Pushed, Target, file_of};
use kiln_data::tokenizer;
use kiln_models::weights::{ADAPTER_FILE, MODEL_FILE};
use kiln_train::TrainingTask;
use kiln_train::arguments::{HubStrategy, TrainingArguments};
use kiln_train::plan::{PushPlan, TrainPlan};
use kiln_train::run_folder::checkpoint::{self, Checkpoint};
use kiln_train::run_folder::{RunStatus, Status};
use kiln_train::trainer::run_log::RunLog;
use kiln_train::trainer::{Callback, Progress, Trainer};
use serde_json::Value;

use crate::session::adapter::ADAPTER_CONFIG;

/// The folder of the last checkpoint in the repository, as `transformers` names it.
pub const LAST_CHECKPOINT: &str = "last-checkpoint";

const CONFIG: &str = "config.json";
const GENERATION_CONFIG: &str = "generation_config.json";
const INDEX: &str = "model.safetensors.index.json";

/// The files of a model besides weights and tokenizer.
const MODEL_FILES: [&str; 4] = ["README.md", ADAPTER_CONFIG, CONFIG, GENERATION_CONFIG];

/// The folder in a run folder of the files of a checkpoint that is on its way, which stay there
/// when the run removes the checkpoint.
const ON_ITS_WAY: &str = ".hub";

const WAIT: Duration = Duration::from_millis(50);

/// Whether `name` is that of a file with the weights of a model: whole, in shards, or their index.
fn is_weights(name: &str) -> bool {
    let numbers = |part: &str| part.len() == 5 && part.bytes().all(|byte| byte.is_ascii_digit());
    let shard = name.strip_prefix("model-").and_then(|rest| rest.strip_suffix(".safetensors"));
    name == MODEL_FILE
        || name == INDEX
        || shard.and_then(|rest| rest.split_once("-of-")).is_some_and(|(one, all)| numbers(one) && numbers(all))
}

/// Whether `name` is that of a file with the weights of a model by PyTorch, or their index.
fn is_pickle(name: &str) -> bool {
    let rest = name.strip_prefix("pytorch_model").filter(|rest| !rest.contains('/'));
    rest.is_some_and(|rest| rest.ends_with(".bin") || rest == ".bin.index.json")
}

/// The names of the files with the weights in `folder`: the one file, which is read before others,
/// or the index and the shards that it names; none where there is neither.
fn weights_of(folder: &Path) -> Result<Vec<String>> {
    if folder.join(MODEL_FILE).is_file() {
        return Ok(vec![MODEL_FILE.to_owned()]);
    }
    if !folder.join(INDEX).is_file() {
        return Ok(Vec::new());
    }
    let shards = hub::shards(folder, INDEX)?;
    let missing = shards.iter().filter(|name| !folder.join(name).is_file()).cloned().collect::<Vec<_>>();
    if !missing.is_empty() {
        return Err(Error::data(format!(
            "{}: {INDEX} names weights that are not there: {}",
            folder.display(),
            missing.join(", ")
        ))
        .help("bring the missing files into the folder: a model without them cannot be read"));
    }
    Ok(shards.into_iter().chain([INDEX.to_owned()]).collect())
}

/// The files of the model or adapter in `folder` that belong to it, and the names of the others.
///
/// # Errors
/// A folder without weights or configuration, or with a part of the shards, and the operating
/// system's.
pub fn model_files(folder: &Path) -> Result<(Vec<PushFile>, Vec<String>)> {
    let entries = fs::read_dir(folder).map_err(|error| Error::io(format!("read {}", folder.display()), &error))?;
    let mut names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect::<Vec<_>>();
    names.sort();
    let weights = weights_of(folder)?;
    let is_own = |name: &String| {
        weights.contains(name)
            || name == ADAPTER_FILE
            || MODEL_FILES.contains(&name.as_str())
            || tokenizer::FILES.contains(&name.as_str())
    };
    let (own, others) = names.into_iter().partition::<Vec<_>, _>(|name| is_own(name) && folder.join(name).is_file());
    let has = |name: &str| own.iter().any(|own| own == name);
    let is_model = !weights.is_empty() && has(CONFIG);
    let is_adapter = has(ADAPTER_FILE) && has(ADAPTER_CONFIG);
    if !(is_model || is_adapter) {
        let shards = others.iter().filter(|name| is_weights(name)).cloned().collect::<Vec<_>>();
        return Err(Error::data(format!(
            "{}: expected a model folder with {CONFIG} and {MODEL_FILE}, or an adapter's with {ADAPTER_CONFIG} and \
             {ADAPTER_FILE}, got {}{}",
            folder.display(),
            if own.is_empty() { "none of them".to_owned() } else { own.join(", ") },
            if shards.is_empty() { String::new() } else { format!("; {} without {INDEX}", shards.join(", ")) }
        ))
        .help("name the folder of a finished run, or its model/"));
    }
    let mut files = own.iter().map(|name| file_of(folder, name)).collect::<Vec<_>>();
    files.extend(tokenizer::chat_templates(folder).iter().map(|name| file_of(folder, name)));
    let is_folder_of_templates = |name: &String| files.iter().any(|file| file.name.starts_with(&format!("{name}/")));
    let others = others.into_iter().filter(|name| !is_folder_of_templates(name)).collect();
    Ok((files, others))
}

/// The files of the checkpoint in `folder`, as [`LAST_CHECKPOINT`].
fn checkpoint_files(folder: &Path) -> Result<Vec<PushFile>> {
    let named = Checkpoint::open(folder)?.state.files;
    let names = named.keys().map(String::as_str).chain([checkpoint::STATE, checkpoint::DIGEST]);
    let file = |name: &str| PushFile { name: format!("{LAST_CHECKPOINT}/{name}"), path: folder.join(name) };
    Ok(names.map(file).collect())
}

/// The folder of the model that `run` names: a run folder, whose `model/` it is, or itself.
///
/// # Errors
/// A folder that is not there, and a run that has not come to its end.
pub fn folder_of(run: &Path) -> Result<PathBuf> {
    if !run.is_dir() {
        return Err(Error::data(format!("{}: there is no such folder", run.display()))
            .help("name a run folder, or the folder of a model"));
    }
    let Some(status) = Status::read(run)? else { return Ok(run.to_owned()) };
    let model = run.join("model");
    if status.status == RunStatus::Completed && model.is_dir() {
        return Ok(model);
    }
    let (step, total) = (status.step, status.total_steps);
    let error = Error::data(format!(
        "{}: the run has not come to its end: {} after step {step} of {total}",
        run.display(),
        status.status
    ));
    let checkpoints = checkpoint::list(&run.join(checkpoint::FOLDER))?;
    let newest = checkpoints.last().map(|(_, path)| path.clone()).or_else(|| model.is_dir().then_some(model));
    Err(match newest {
        Some(folder) => error.help(format!(
            "finish it (kiln train {} --resume), or push what there is: {}",
            shell_quoted(&run.display().to_string()),
            folder.display()
        )),
        None => error.help("push it when it is finished"),
    })
}

/// Brings the model or adapter in `folder` to `target`; says also which files of the folder are
/// none of the model's and stay.
///
/// # Errors
/// A folder that is no model's, and those of [`hub::push`](fn@hub::push).
pub fn push_model(
    folder: &Path,
    target: &Target,
    message: &str,
    settings: &HubSettings,
) -> Result<(Pushed, Vec<String>)> {
    push(folder, target, message, settings, false)
}

/// [`push_model`], which removes the checkpoint of an earlier run as well where it
/// `ends_checkpoint`.
fn push(
    folder: &Path,
    target: &Target,
    message: &str,
    settings: &HubSettings,
    ends_checkpoint: bool,
) -> Result<(Pushed, Vec<String>)> {
    let (files, others) = model_files(folder)?;
    if let Some(base) = local_base(folder) {
        tracing::warn!(
            "{}: base_model_name_or_path = {base:?} is a path of this machine, where others do not find the base of the \
             adapter; set it to the Hub id of the base",
            folder.join(ADAPTER_CONFIG).display()
        );
    }
    push_files(files, target, message, settings, ends_checkpoint).map(|pushed| (pushed, others))
}

/// The base that the adapter in `folder` names by a path of this machine.
fn local_base(folder: &Path) -> Option<String> {
    let config = read_json::<Value>(&folder.join(ADAPTER_CONFIG)).ok()?;
    let base = config.get("base_model_name_or_path")?.as_str()?;
    (hub::is_local(base) || !hub::is_id(base)).then(|| base.to_owned())
}

/// Brings `files` to `target`, and removes what an earlier model or checkpoint has left there that
/// would be read in the place of these, or with them; a checkpoint also where this
/// `ends_checkpoint`.
fn push_files(
    files: Vec<PushFile>,
    target: &Target,
    message: &str,
    settings: &HubSettings,
    ends_checkpoint: bool,
) -> Result<Pushed> {
    let has = |is: &dyn Fn(&str) -> bool| files.iter().any(|file| is(&file.name));
    let folder = format!("{LAST_CHECKPOINT}/");
    let is_model = has(&is_weights);
    let is_adapter = has(&|name| name == ADAPTER_FILE);
    let is_of_tokenizer = |name: &str| tokenizer::FILES.contains(&name) || tokenizer::is_chat_template(name);
    let has_tokenizer = has(&is_of_tokenizer);
    let ends_checkpoint = ends_checkpoint || has(&|name| name.starts_with(&folder));
    // Of an adapter and the weights of a model, transformers reads the adapter and Kiln the model.
    let is_of_adapter = |name: &str| [ADAPTER_CONFIG, ADAPTER_FILE, "adapter_model.bin"].contains(&name);
    let removes = |name: &str| {
        is_model && (is_weights(name) || name == GENERATION_CONFIG || has_tokenizer && is_of_tokenizer(name))
            || is_model && !is_adapter && is_of_adapter(name)
            || is_adapter && !is_model && (is_weights(name) || is_pickle(name))
            || ends_checkpoint && name.starts_with(&folder)
    };
    hub::push(target, Content { files, removes: &removes, message: message.to_owned() }, settings)
}

/// The lines about a push, for people.
pub fn lines(pushed: &Pushed) -> Vec<String> {
    let Pushed { url, commit, is_new, sent, removed } = pushed;
    let mut lines = Vec::new();
    if *is_new {
        lines.push("made the repository".to_owned());
    }
    if sent.is_empty() && removed.is_empty() {
        lines.push(format!("nothing to push: {url} has these files (commit {commit})"));
        return lines;
    }
    let bytes = sent.iter().map(|(_, bytes)| bytes).sum::<u64>();
    let names = sent.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    if !sent.is_empty() {
        let files = if sent.len() == 1 { "1 file" } else { &format!("{} files", sent.len()) };
        lines.push(format!("pushed {files}, {} bytes: {names}", thousands(bytes)));
    }
    if !removed.is_empty() {
        lines.push(format!("removed what the model has no more: {}", removed.join(", ")));
    }
    lines.push(format!("hub: {url} (commit {commit})"));
    lines
}

fn target_of(plan: &PushPlan) -> Target {
    Target { id: plan.id.clone(), revision: plan.revision.clone(), private: plan.private, create_pr: false }
}

/// Refuses a run that is to be uploaded, where it cannot be, without asking the Hub.
///
/// # Errors
/// A run folder without a name to call the repository by, and those of [`Target::check`].
pub fn check(trainer: &TrainingArguments) -> Result<()> {
    let Some(plan) = PushPlan::of(trainer) else { return Ok(()) };
    settings(&plan).map(drop)
}

/// The settings of the environment, where a push by `plan` can be made with them.
fn settings(plan: &PushPlan) -> Result<HubSettings> {
    if plan.id.is_empty() {
        return Err(Error::config("trainer.push_to_hub: the run folder has no name to call the repository by")
            .help("set trainer.hub_model_id"));
    }
    let settings = HubSettings::from_env()?;
    target_of(plan).check(&settings).map_err(|error| error.at("trainer.push_to_hub"))?;
    Ok(settings)
}

/// `trainer` with what uploads its model, where its plan asks for that.
///
/// # Errors
/// The errors of [`check`].
pub fn with_push<T: TrainingTask>(trainer: Trainer<T>) -> Result<Trainer<T>> {
    let Some(plan) = trainer.plan().saving.push.clone() else { return Ok(trainer) };
    let settings = settings(&plan)?;
    let informs = trainer.plan().run.log_level.informs();
    Ok(trainer.with_callback(Pusher { plan, settings, informs, saves: None, thread: None }))
}

/// A callback that uploads checkpoints while the run goes on, and its model when it has ended.
struct Pusher {
    plan: PushPlan,
    settings: HubSettings,
    /// Says of an upload that goes well, too.
    informs: bool,
    /// The checkpoints that are to be uploaded.
    saves: Option<Sender<(u64, PathBuf)>>,
    thread: Option<JoinHandle<()>>,
}

impl<M> Callback<M> for Pusher {
    fn pushes_to_hub(&self) -> bool {
        true
    }

    fn on_train_begin(&mut self, _plan: &TrainPlan) {
        // A run that goes on after it ran out of memory begins again.
        if self.thread.is_some() {
            return;
        }
        let (saves, received) = mpsc::channel();
        // Bars would go through the rows of the run.
        let settings = HubSettings { progress: false, ..self.settings.clone() };
        let plan = self.plan.clone();
        let thread = thread::Builder::new().name("hub".into()).spawn(move || {
            let target = target_of(&plan);
            if let Err(error) = hub::prepare(&target, &settings).or_else(unless_stopped) {
                tracing::warn!("{error}");
                tracing::warn!("the run goes on; the upload is tried again when there is something to upload");
            }
            upload_saves(&plan, &target, &settings, &received);
        });
        match thread {
            Ok(thread) => (self.saves, self.thread) = (Some(saves), Some(thread)),
            Err(error) => tracing::warn!("no thread to upload checkpoints: {error}"),
        }
    }

    fn on_save(&mut self, progress: &Progress, checkpoint: &Path) {
        let Some(saves) = &self.saves else { return };
        if self.plan.strategy != HubStrategy::End {
            // A thread that has ended has said why.
            let _ = saves.send((progress.step, checkpoint.to_owned()));
        }
    }

    fn on_run_end(&mut self, folder: &Path) -> Vec<String> {
        self.saves = None;
        while let Some(thread) = &self.thread
            && !thread.is_finished()
            && signals::received().is_none()
        {
            thread::sleep(WAIT);
        }
        // A process that was killed may have left it.
        let _ = fs::remove_dir_all(folder.join(ON_ITS_WAY));
        let model = folder.join("model");
        let target = target_of(&self.plan);
        // A checkpoint that is there is another run's.
        let ends_checkpoint = self.plan.strategy != HubStrategy::Checkpoint;
        match push(&model, &target, "End of training", &self.settings, ends_checkpoint) {
            Ok((pushed, _)) => {
                for line in lines(&pushed) {
                    RunLog::new(folder).say(&line);
                    if self.informs {
                        tracing::info!("{line}");
                    }
                }
                Vec::new()
            }
            Err(error) => vec![
                format!("the model is not on the Hub: {error}"),
                format!("the run is complete; to upload it: {}", again(folder, &self.plan)),
            ],
        }
    }
}

/// The command that uploads the run in `folder`.
fn again(folder: &Path, plan: &PushPlan) -> String {
    let folder = folder.display().to_string();
    let mut command = format!("kiln push {} {}", shell_quoted(&folder), plan.id);
    command.extend(plan.private.map(|private| if private { " --private" } else { " --public" }));
    command.extend(plan.revision.iter().map(|branch| format!(" --revision {branch}")));
    command
}

/// Keeps an error, unless a signal that ends the run is the reason.
fn unless_stopped(error: Error) -> Result<()> {
    if signals::received().is_some() { Ok(()) } else { Err(error) }
}

/// Uploads the checkpoints that come by `saves` until there are no more: after one that was on its
/// way the newest of those that have come meanwhile.
fn upload_saves(plan: &PushPlan, target: &Target, settings: &HubSettings, saves: &Receiver<(u64, PathBuf)>) {
    while let Ok(mut save) = saves.recv() {
        // The folder of a checkpoint appears when it is whole: before another one is written, and
        // before the run ends.
        let has_ended = loop {
            match saves.try_recv() {
                Ok(newer) => save = newer,
                Err(TryRecvError::Disconnected) => break true,
                Err(TryRecvError::Empty) if save.1.is_dir() || signals::received().is_some() => break false,
                Err(TryRecvError::Empty) => thread::sleep(WAIT),
            }
        };
        // The model of the run itself follows, and is as new.
        let is_superseded = has_ended && plan.strategy != HubStrategy::Checkpoint;
        let (step, folder) = save;
        if is_superseded || !folder.is_dir() || signals::received().is_some() {
            continue;
        }
        match upload_checkpoint(plan, target, settings, step, &folder).or_else(unless_stopped) {
            // A run that keeps few checkpoints may have removed it for a newer one, which is next.
            Err(error) if folder.is_dir() => {
                tracing::warn!("the checkpoint of step {step} is not on the Hub, and the run goes on: {error}");
            }
            Ok(()) | Err(_) => {}
        }
    }
}

/// Uploads the checkpoint in `folder`, of which the run may remove the files meanwhile.
fn upload_checkpoint(plan: &PushPlan, target: &Target, settings: &HubSettings, step: u64, folder: &Path) -> Result<()> {
    let run = folder.parent().and_then(Path::parent).unwrap_or(folder);
    let kept = run.join(ON_ITS_WAY);
    let remove = || _ = fs::remove_dir_all(&kept);
    // A process that was killed may have left it.
    remove();
    let pushed = keep(folder, &kept)
        .map_err(|error| Error::io(format!("keep the files of {}", folder.display()), &error))
        .and_then(|()| {
            let (mut files, _) = model_files(&kept)?;
            if plan.strategy == HubStrategy::Checkpoint {
                files.extend(checkpoint_files(&kept)?);
            }
            push_files(files, target, &format!("Training in progress, step {step}"), settings, false).map(drop)
        });
    remove();
    pushed
}

/// Makes the files of the folder `from` those of `to` as well, by links where the system has them.
fn keep(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            keep(&path, &target)?;
        } else if fs::hard_link(&path, &target).is_err() {
            fs::copy(&path, &target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn files_of_a_model_are_taken_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        };
        assert!(model_files(folder.path()).unwrap_err().to_string().contains("got none of them"));
        let own = [
            "README.md",
            "additional_chat_templates/tool.jinja",
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
            "tokenizer_config.json",
        ];
        let others = ["model-1-of-2.safetensors", "notes.txt", "optimizer.safetensors", "plan.toml", "state.json"];
        own.iter().chain(&others).for_each(|name| write(name));
        let index = |names: &[&str]| {
            let map = names.iter().map(|name| (format!("of {name}"), Value::from(*name)));
            let map = map.collect::<serde_json::Map<_, _>>();
            fs::write(folder.path().join(INDEX), serde_json::json!({ "weight_map": map }).to_string()).unwrap();
        };
        // A shard that is missing is told of, and without an index shards are no model.
        index(&["model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors", own[5]]);
        let error = model_files(folder.path()).unwrap_err().to_string();
        assert!(error.contains("not there: model-00001-of-00003.safetensors, model-00003"), "{error}");
        fs::remove_file(folder.path().join(INDEX)).unwrap();
        let error = model_files(folder.path()).unwrap_err().to_string();
        assert!(error.contains("model-00002-of-00002.safetensors without model.safetensors.index.json"), "{error}");
        index(&own[5..7]);
        let (files, rest) = model_files(folder.path()).unwrap();
        let mut names = files.iter().map(|file| file.name.as_str()).collect::<Vec<_>>();
        names.sort_unstable();
        assert_eq!(names, own);
        let is_index = |file: &PushFile| file.name == INDEX;
        assert!(files.iter().all(|file| is_index(file) || fs::read_to_string(&file.path).unwrap() == file.name));
        assert_eq!(rest, others);
        // The one file is read before shards, which an earlier save has left.
        write(MODEL_FILE);
        let (files, rest) = model_files(folder.path()).unwrap();
        assert!(!files.iter().any(|file| file.name.contains("-of-") || is_index(file)));
        assert!(rest.iter().any(|name| name == own[5]) && rest.iter().any(|name| name == INDEX));
        fs::remove_file(folder.path().join("config.json")).unwrap();
        assert!(model_files(folder.path()).is_err(), "weights alone are no model");
        write("adapter_config.json");
        write(ADAPTER_FILE);
        assert!(model_files(folder.path()).is_ok());
    }

    #[test]
    fn only_names_of_weights_are_taken_for_weights() {
        for name in ["model.safetensors", "model-00001-of-00010.safetensors", "model.safetensors.index.json"] {
            assert!(is_weights(name), "{name}");
        }
        for name in
            ["adapter_model.safetensors", "model-a.safetensors", "model-1-of-2.safetensors", "x/model.safetensors"]
        {
            assert!(!is_weights(name), "{name}");
        }
    }
}
