//! What of a run goes to the Hub (`kiln push`, `trainer.push_to_hub`): the files of the model's
//! folder that are the model's, and with `hub_strategy = "checkpoint"` the last checkpoint. Never
//! data, logs, plans or, besides that checkpoint's, states of an optimizer.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kiln_core::error::{Error, Result};
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

/// The folder of the last checkpoint in the repository, as `transformers` names it.
pub const LAST_CHECKPOINT: &str = "last-checkpoint";

/// The files of a model besides weights and tokenizer.
const MODEL_FILES: [&str; 4] = ["README.md", "adapter_config.json", "config.json", "generation_config.json"];

const WAIT: Duration = Duration::from_millis(50);

/// Whether `name` is that of a file with the weights of a model: whole, in shards, or their index.
fn is_weights(name: &str) -> bool {
    let numbers = |part: &str| part.len() == 5 && part.bytes().all(|byte| byte.is_ascii_digit());
    let shard = name.strip_prefix("model-").and_then(|rest| rest.strip_suffix(".safetensors"));
    name == MODEL_FILE
        || name == "model.safetensors.index.json"
        || shard.and_then(|rest| rest.split_once("-of-")).is_some_and(|(one, all)| numbers(one) && numbers(all))
}

/// The files of the model or adapter in `folder` that belong to it, and the names of the others.
///
/// # Errors
/// A folder without weights or configuration, and the operating system's.
pub fn model_files(folder: &Path) -> Result<(Vec<PushFile>, Vec<String>)> {
    let entries = fs::read_dir(folder).map_err(|error| Error::io(format!("read {}", folder.display()), &error))?;
    let mut names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect::<Vec<_>>();
    names.sort();
    let is_own = |name: &str| {
        is_weights(name) || name == ADAPTER_FILE || MODEL_FILES.contains(&name) || tokenizer::FILES.contains(&name)
    };
    let (own, others) = names.into_iter().partition::<Vec<_>, _>(|name| is_own(name) && folder.join(name).is_file());
    let has = |name: &str| own.iter().any(|own| own == name);
    let is_model = own.iter().any(|name| is_weights(name)) && has("config.json");
    if !is_model && !(has(ADAPTER_FILE) && has("adapter_config.json")) {
        return Err(Error::data(format!(
            "{}: expected a model folder with config.json and model.safetensors, or an adapter's with adapter_config.json \
             and {ADAPTER_FILE}, got {}",
            folder.display(),
            if own.is_empty() { "none of them".to_owned() } else { own.join(", ") }
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
    let (files, others) = model_files(folder)?;
    push_files(files, target, message, settings).map(|pushed| (pushed, others))
}

/// Brings `files` to `target`, and removes what an earlier model or checkpoint has left there that
/// would be read in the place of these.
fn push_files(files: Vec<PushFile>, target: &Target, message: &str, settings: &HubSettings) -> Result<Pushed> {
    let is_model = files.iter().any(|file| is_weights(&file.name));
    let folder = format!("{LAST_CHECKPOINT}/");
    let has_checkpoint = files.iter().any(|file| file.name.starts_with(&folder));
    let removes = |name: &str| is_model && is_weights(name) || has_checkpoint && name.starts_with(&folder);
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
/// Those of [`Target::check`].
pub fn check(trainer: &TrainingArguments) -> Result<()> {
    let Some(plan) = PushPlan::of(trainer) else { return Ok(()) };
    settings(&plan).map(drop)
}

/// The settings of the environment, where a push by `plan` can be made with them.
fn settings(plan: &PushPlan) -> Result<HubSettings> {
    let settings = HubSettings::from_env()?;
    target_of(plan).check(&settings).map_err(|error| error.at("trainer.push_to_hub"))?;
    Ok(settings)
}

/// `trainer` with what uploads its model, where its plan asks for that.
///
/// # Errors
/// Those of [`check`].
pub fn with_push<T: TrainingTask>(trainer: Trainer<T>) -> Result<Trainer<T>> {
    let Some(plan) = trainer.plan().saving.push.clone() else { return Ok(trainer) };
    let settings = settings(&plan)?;
    let informs = trainer.plan().run.log_level.informs();
    Ok(trainer.with_callback(Pusher { plan, settings, informs, saves: None, is_busy: Arc::default(), thread: None }))
}

/// A callback that uploads checkpoints while the run goes on, and its model when it has ended.
struct Pusher {
    plan: PushPlan,
    settings: HubSettings,
    /// What goes well is said, too.
    informs: bool,
    /// The checkpoints that are to be uploaded.
    saves: Option<Sender<(u64, PathBuf)>>,
    is_busy: Arc<AtomicBool>,
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
        let (plan, is_busy) = (self.plan.clone(), self.is_busy.clone());
        let thread = thread::Builder::new().name("hub".into()).spawn(move || {
            let target = target_of(&plan);
            if let Err(error) = hub::prepare(&target, &settings).or_else(unless_stopped) {
                tracing::warn!("{error}");
                tracing::warn!("the run goes on; the upload is tried again when there is something to upload");
            }
            upload_saves(&plan, &target, &settings, &received, &is_busy);
        });
        match thread {
            Ok(thread) => (self.saves, self.thread) = (Some(saves), Some(thread)),
            Err(error) => tracing::warn!("no thread to upload checkpoints: {error}"),
        }
    }

    fn on_save(&mut self, progress: &Progress, checkpoint: &Path) {
        let Some(saves) = &self.saves else { return };
        if self.plan.strategy != HubStrategy::End && !self.is_busy.swap(true, Ordering::SeqCst) {
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
        let model = folder.join("model");
        let target = target_of(&self.plan);
        match push_model(&model, &target, "End of training", &self.settings) {
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
    command.extend(plan.private.then_some(" --private"));
    command.extend(plan.revision.iter().map(|branch| format!(" --revision {branch}")));
    command
}

/// Keeps an error, unless a signal that ends the run is the reason.
fn unless_stopped(error: Error) -> Result<()> {
    if signals::received().is_some() { Ok(()) } else { Err(error) }
}

/// Uploads the checkpoints that come by `saves`, each when it is written, until there are no more.
fn upload_saves(
    plan: &PushPlan,
    target: &Target,
    settings: &HubSettings,
    saves: &Receiver<(u64, PathBuf)>,
    is_busy: &AtomicBool,
) {
    // The folder of a checkpoint appears when it is whole: before another one is written, and
    // before the run ends.
    while let Ok((step, folder)) = saves.recv() {
        while !folder.is_dir() && signals::received().is_none() {
            match saves.recv_timeout(WAIT) {
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) | Ok(_) => {}
            }
        }
        if folder.is_dir() && signals::received().is_none() {
            let pushed = model_files(&folder).and_then(|(mut files, _)| {
                if plan.strategy == HubStrategy::Checkpoint {
                    files.extend(checkpoint_files(&folder)?);
                }
                push_files(files, target, &format!("Training in progress, step {step}"), settings).map(drop)
            });
            if let Err(error) = pushed.or_else(unless_stopped) {
                tracing::warn!("the checkpoint of step {step} is not on the Hub, and the run goes on: {error}");
            }
        }
        is_busy.store(false, Ordering::SeqCst);
    }
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
        let (files, rest) = model_files(folder.path()).unwrap();
        let mut names = files.iter().map(|file| file.name.as_str()).collect::<Vec<_>>();
        names.sort_unstable();
        assert_eq!(names, own);
        assert!(files.iter().all(|file| fs::read_to_string(&file.path).unwrap() == file.name));
        assert_eq!(rest, others);
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
