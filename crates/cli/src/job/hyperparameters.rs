//! The hyperparameters of a job as settings of Kiln's config. A name is looked up in this order, so
//! that each has one meaning: a whole key (`trainer.learning_rate`); a name of Kiln's own, of
//! Hugging Face's scripts or of SageMaker (`scripts`); `precision`; a key of `[trainer]` or an
//! argument of `TrainingArguments` that does something; a key of `[data]`, of `[model]`, of
//! `[tokenizer]`; any other argument of `TrainingArguments`. All that is not known or cannot be
//! read is refused together.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kiln::config::Task;
use kiln::config::scripts::{Means, NAMES, meaning};
use kiln::config::settings::{self, PRECISION, Setting};
use kiln_core::error::{Error, Result, nearest, one_line};
use kiln_core::words::shortened;
use serde_json::Value as Json;
use toml::Table;

use super::contract::Contract;
use super::scripts::{self, DATASETS, GLUE, Glue, Script};

/// The hyperparameters, read.
#[derive(Debug, Default)]
pub(super) struct Hyperparameters {
    /// The settings that they give.
    pub(super) settings: Vec<Setting>,
    /// A line for each that changes nothing.
    pub(super) left: Vec<String>,
    /// The price of an hour of the machine.
    pub(super) price: Option<f64>,
    /// The script whose rules hold for what is left open.
    pub(super) script: Option<Script>,
    /// The processes that are asked for.
    pub(super) ranks: Asked,
    /// The task of GLUE.
    pub(super) glue: Option<&'static Glue>,
}

/// The processes that hyperparameters ask for.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// So many on each machine, and what says so.
    pub(super) per_machine: Option<(usize, String)>,
    /// One for each GPU, by this name.
    pub(super) switch: Option<&'static str>,
}

/// Sections whose keys may stand without the section's name, in the order in which they are looked
/// through.
const BARE: [&str; 4] = ["trainer", "data", "model", "tokenizer"];

/// Where `name` leads.
enum Target {
    Key(String),
    Means(Means),
}

/// The config file that `contract` names by the hyperparameter `kiln_config`, or the only one in
/// its channels; none without.
///
/// # Errors
/// A file that is not there; several in the channels.
pub(super) fn base(contract: &Contract) -> Result<Option<PathBuf>> {
    let named = contract.hyperparameters.iter().find(|(name, _)| name == "kiln_config");
    if let Some(name) = named.and_then(|(_, value)| text(value)) {
        let path = contract.expand(&contract.relocated(&name))?;
        // In the folder of a channel, or where the job's code lies.
        let folders = contract.channels.iter().map(|channel| channel.path.clone());
        let folders = folders.chain([contract.root.join("code"), contract.root.join("input/config")]);
        let found =
            std::iter::once(path.clone()).chain(folders.map(|folder| folder.join(&path))).find(|path| path.is_file());
        return found.map(Some).ok_or_else(|| {
            Error::config(format!("hyperparameter kiln_config = {}: no such file", shown("kiln_config", &name.into())))
                .help("give the name of a file in a channel, or a whole path")
        });
    }
    let mut found = Vec::new();
    for channel in &contract.channels {
        let is_config = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "toml") && path.is_file();
        let inner = std::fs::read_dir(&channel.path).into_iter().flatten().flatten().map(|entry| entry.path());
        found.extend(std::iter::once(channel.path.clone()).chain(inner).filter(is_config));
    }
    found.sort();
    match found.len() {
        0 | 1 => Ok(found.pop()),
        _ => {
            let names = found.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
            Err(Error::config(format!("the channels hold {} configs: {names}", found.len()))
                .help("name the one that is meant by the hyperparameter kiln_config"))
        }
    }
}

/// Reads the hyperparameters of `contract` for a job whose config file is the table `base`.
///
/// # Errors
/// One config error with all hyperparameters that are not known or cannot be read.
pub(super) fn read(contract: &Contract, base: &Table) -> Result<Hyperparameters> {
    let mut reader = Reader {
        base,
        found: Hyperparameters::default(),
        refused: Vec::new(),
        set_by: BTreeMap::new(),
        more: BTreeMap::new(),
    };
    for (name, value) in &contract.hyperparameters {
        reader.take(name, value);
    }
    reader.settle();
    let Reader { mut found, refused, .. } = reader;
    if !refused.is_empty() {
        let count = match refused.len() {
            1 => "a hyperparameter".to_owned(),
            count => format!("{count} hyperparameters"),
        };
        return Err(Error::config(format!("{count} cannot be taken:\n  {}", refused.join("\n  "))).help(
            "a hyperparameter is a key of Kiln's config (`kiln help config_reference`) or an argument of Hugging Face's scripts",
        ));
    }
    for setting in &mut found.settings {
        relocate(&mut setting.value, contract);
    }
    Ok(found)
}

/// Writes the paths in `value` as they are under the root of the job.
pub(super) fn relocate(value: &mut toml::Value, contract: &Contract) {
    match value {
        toml::Value::String(text) => *text = contract.relocated(text),
        toml::Value::Array(values) => values.iter_mut().for_each(|value| relocate(value, contract)),
        toml::Value::Table(table) => table.iter_mut().for_each(|(_, value)| relocate(value, contract)),
        _ => {}
    }
}

struct Reader<'a> {
    base: &'a Table,
    found: Hyperparameters,
    /// A line for each that cannot be taken.
    refused: Vec<String>,
    /// The hyperparameter that sets a key.
    set_by: BTreeMap<String, String>,
    /// The hyperparameters that are read together with others, by name.
    more: BTreeMap<String, Json>,
}

impl Reader<'_> {
    fn take(&mut self, name: &str, value: &Json) {
        match target(name) {
            Some(Target::Key(path)) => self.set(name, value, &path),
            Some(Target::Means(Means::Key(path))) => self.set(name, value, path),
            Some(Target::Means(Means::Nothing(why))) => self.leave(name, value, why),
            Some(Target::Means(Means::Off(help))) => match flag(value) {
                _ if is_null(value) => {}
                Some(false) => {}
                Some(true) => self.refuse(name, value, &format!("not supported; {help}")),
                None => self.refuse(name, value, "expected true or false"),
            },
            Some(Target::Means(Means::More(_))) => drop(self.more.insert(name.to_owned(), value.clone())),
            None => {
                let known = known();
                let near = nearest(name, known.iter().map(String::as_str));
                let near = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
                self.refuse(name, value, &format!("unknown{near}"));
            }
        }
    }

    fn refuse(&mut self, name: &str, value: &Json, why: &str) {
        self.refused.push(format!("{} = {}: {why}", one_line(name), shown(name, value)));
    }

    fn leave(&mut self, name: &str, value: &Json, why: &str) {
        self.found.left.push(format!("{} = {}: no effect: {why}", one_line(name), shown(name, value)));
    }

    /// Sets the key `path` to `value`, which the hyperparameter `name` gives.
    fn set(&mut self, name: &str, value: &Json, path: &str) {
        let origin = format!("hyperparameter {} = {}", one_line(name), shown(name, value));
        match Setting::read(path, value, &origin) {
            Ok(None) => {}
            Ok(Some(setting)) => match self.set_by.insert(path.to_owned(), name.to_owned()) {
                Some(other) => {
                    let message = format!("`{}` sets the same key, {path}; keep one of the two", one_line(&other));
                    self.refuse(name, value, &message);
                }
                None => self.found.settings.push(setting),
            },
            Err(error) => {
                let text = error.to_string().replace("\n  help: ", "; ");
                let text =
                    text.strip_prefix(&origin).and_then(|text| text.strip_prefix(": ")).unwrap_or(&text).to_owned();
                self.refuse(name, value, &text);
            }
        }
    }

    /// Whether a hyperparameter or the config file sets the key `section.key`.
    fn is_set(&self, section: &str, key: &str) -> bool {
        self.set_by.contains_key(&format!("{section}.{key}")) || settings::value_in(self.base, section, key).is_some()
    }

    /// Takes out a hyperparameter that is read with others; null is as good as not given.
    fn more(&mut self, name: &str) -> Option<Json> {
        self.more.remove(name).filter(|value| !is_null(value))
    }

    /// Reads what has a meaning beside others only.
    fn settle(&mut self) {
        self.more("kiln_config");
        self.price();
        self.limit();
        self.compiler();
        self.scripts();
        self.dataset();
        self.script();
        self.model();
        self.data();
        self.swag();
        self.devices();
    }

    /// The columns of SWAG, which run_swag.py reads.
    fn swag(&mut self) {
        if self.found.script != Some(Script::Swag) || self.task() != Some(Task::MultipleChoice) {
            return;
        }
        let choices = (0..4).map(|choice| format!("ending{choice}")).collect::<Vec<_>>();
        let columns = [
            ("text_column", toml::Value::from("sent1")),
            ("text_pair_column", "sent2".into()),
            ("choice_columns", choices.into()),
        ];
        // Where one is named, the rows are not SWAG's.
        if columns.iter().all(|(key, _)| !self.is_set("data", key)) {
            let columns = columns.map(|(key, value)| Setting::new(&format!("data.{key}"), value, "run_swag.py"));
            self.found.settings.extend(columns);
        }
    }

    fn price(&mut self) {
        let Some(value) = self.more("price_per_hour") else { return };
        match text(&value).and_then(|text| super::price(&text).ok()) {
            Some(price) => self.found.price = Some(price),
            None => self.refuse("price_per_hour", &value, "expected a number that is not negative"),
        }
    }

    /// `max_run`: seconds, as in SageMaker's stopping condition.
    fn limit(&mut self) {
        let Some(value) = self.more("max_run") else { return };
        match text(&value)
            .and_then(|text| text.parse::<f64>().ok())
            .filter(|seconds| seconds.is_finite() && *seconds > 0.0)
        {
            Some(seconds) => self.set("max_run", &(seconds / 60.0).into(), "trainer.max_minutes"),
            None => self.refuse("max_run", &value, "expected a number of seconds above 0"),
        }
    }

    fn compiler(&mut self) {
        const ENABLED: &str = "sagemaker_training_compiler_enabled";
        const DEBUG: &str = "sagemaker_training_compiler_debug_mode";
        let [enabled, debug] = [ENABLED, DEBUG].map(|name| {
            let value = self.more(name)?;
            let on = flag(&value);
            if on.is_none() {
                self.refuse(name, &value, "expected true or false");
            }
            on.map(|on| (on, value))
        });
        if let Some((_, value)) = &enabled {
            self.set(ENABLED, value, "compiler.enabled");
        }
        match (debug, enabled) {
            (Some((_, value)), Some((true, _))) => self.set(DEBUG, &value, "compiler.debug"),
            (Some((true, value)), _) => self.leave(DEBUG, &value, "the training compiler is not enabled"),
            _ => {}
        }
    }

    /// The script, which the job's program or what that starts tells.
    fn scripts(&mut self) {
        for name in ["training_script", "sagemaker_program"] {
            let Some(value) = self.more.get(name).filter(|value| !is_null(value)).cloned() else { continue };
            match (text(&value).as_deref().and_then(Script::of), self.found.script) {
                (Some(script), None) => self.found.script = Some(script),
                (Some(script), Some(other)) if script != other => {
                    self.refuse(name, &value, &format!("training_script names {}; keep one of the two", other.file()));
                }
                _ => {}
            }
        }
    }

    /// The task, where no dataset tells it.
    fn script(&mut self) {
        let regression = self.more("do_regression").and_then(|value| {
            let on = flag(&value);
            if on.is_none() {
                self.refuse("do_regression", &value, "expected true or false");
            }
            on
        });
        for name in ["training_script", "sagemaker_program"] {
            let Some(value) = self.more(name) else { continue };
            match text(&value).as_deref().and_then(Script::of) {
                Some(_) if self.set_by.contains_key("data.task") => {}
                // Told, so that the labels of the data do not tell it.
                Some(Script::Classification) if regression.is_some() => {
                    let task = if regression == Some(true) { "regression" } else { "sequence-classification" };
                    self.set("do_regression", &task.into(), "data.task");
                }
                Some(script) => self.set(name, &script.task().name().into(), "data.task"),
                None if name == "sagemaker_program" && self.found.script.is_some() => {}
                None => self.leave(name, &value, "it names no script whose task is known; `task` says it"),
            }
        }
        if regression == Some(true) && !self.set_by.contains_key("data.task") {
            self.set("do_regression", &"regression".into(), "data.task");
        }
    }

    /// The task, once all that tells it is read.
    fn task(&self) -> Option<Task> {
        let set = self.found.settings.iter().find(|setting| setting.path == ["data", "task"]);
        let value = set.map(|setting| &setting.value).or_else(|| settings::value_in(self.base, "data", "task"))?;
        Task::from_name(value.as_str()?).ok()
    }

    /// `dataset_name` and GLUE's `task_name`: the splits of a dataset on the Hub.
    fn dataset(&mut self) {
        let [name, config, glue, train, validation, test] = [
            "dataset_name",
            "dataset_config_name",
            "task_name",
            "train_split_name",
            "validation_split_name",
            "test_split_name",
        ]
        .map(|name| self.more(name));
        if let Some(value) = &test {
            self.leave("test_split_name", value, "`data.test` names the file whose rows are predicted");
        }
        let glue = match glue {
            Some(value) => match text(&value).map(|name| name.to_lowercase()) {
                Some(name) if Glue::of(&name).is_some() => Some((name, value)),
                // run_ner.py's task, which its labels are called after.
                Some(name) if self.is_for(Task::TokenClassification) && ["ner", "pos", "chunk"].contains(&&*name) => {
                    if !self.is_set("data", "label_column") {
                        self.set("task_name", &format!("{name}_tags").into(), "data.label_column");
                    }
                    None
                }
                Some(name) if !self.is_for(Task::SequenceClassification) && Task::from_name(&name).is_ok() => {
                    return self.set("task_name", &value, "data.task");
                }
                _ => {
                    let tasks = GLUE.iter().map(|glue| glue.task).collect::<Vec<_>>().join(", ");
                    return self.refuse("task_name", &value, &format!("expected a task of GLUE: {tasks}"));
                }
            },
            None => None,
        };
        let (dataset, config_text) = (name.as_ref().and_then(text), config.as_ref().and_then(text));
        let is_glue = |name: &str| ["glue", "nyu-mll/glue"].contains(&name);
        let of_glue = match (&glue, dataset.as_deref(), config_text.as_deref()) {
            (Some((task, value)), ..) => Some((task.clone(), "task_name", value.clone())),
            (None, Some(name), Some(task)) if is_glue(name) => {
                Some((task.to_owned(), "dataset_config_name", config.clone().unwrap_or_default()))
            }
            _ => None,
        };
        if let Some((task, given, value)) = of_glue {
            let Some(glue) = Glue::of(&task) else {
                return self.refuse(given, &value, "not a task of GLUE that has labels for training");
            };
            if !self.set_by.contains_key("data.task") {
                self.set(given, &glue.learns().name().into(), "data.task");
            }
            self.found.glue = Some(glue);
            if !self.set_by.contains_key("data.train") {
                let (validation, test) = glue.splits();
                let at = format!("nyu-mll/glue/{}", glue.task);
                self.splits(given, &value, &at, ("train", validation), glue.text);
                if self.predicts() && !self.is_set("data", "test") {
                    let origin = format!("hyperparameter {given} = {}", shown(given, &value));
                    let address = format!("hf://datasets/{at}/{test}");
                    self.found.settings.push(Setting::new("data.test", address, &origin));
                }
                if glue.task == "mnli" {
                    self.found.left.push(format!(
                        "{given} = mnli: run_glue.py evaluates and predicts the mismatched rows too; afterwards `kiln eval CONFIG --set \
                         data.validation=hf://datasets/{at}/validation_mismatched` evaluates them"
                    ));
                }
            } else if given == "task_name" {
                let files = "train_file is read, with the columns and labels of the task; run_glue.py reads GLUE from the Hub instead";
                self.found.left.push(format!("task_name = {}: {files}", shown(given, &value)));
            }
            return;
        }
        let Some((name, value)) = dataset.zip(name) else {
            if let Some(config) = config {
                self.refuse("dataset_config_name", &config, "there is no dataset_name");
            }
            return;
        };
        let known = DATASETS.iter().find(|known| known.names.contains(&name.as_str()));
        let Some(id) = known.map(|known| known.names[0]).or(Some(name.as_str()).filter(|name| name.contains('/')))
        else {
            let names = DATASETS.iter().filter_map(|known| known.names.get(1)).copied().collect::<Vec<_>>().join(", ");
            let why = format!("expected ORG/NAME as on the Hub, or one of {names}, glue");
            return self.refuse("dataset_name", &value, &why);
        };
        if known.is_none() && (name.matches('/').count() > 1 || name.starts_with(['/', '.'])) {
            let why = "expected ORG/NAME as on the Hub; train_file, or a channel, names files";
            return self.refuse("dataset_name", &value, why);
        }
        let of_text = |value: &Option<Json>| value.as_ref().and_then(text);
        if known.is_none_or(|known| known.text.is_empty()) && train.is_none() && validation.is_none() {
            self.set("dataset_name", &id.into(), "data.dataset_name");
            if let Some(config) = config {
                self.set("dataset_config_name", &config, "data.dataset_config_name");
            }
            return;
        }
        let config = config_text.or(known.map(|known| known.config.to_owned())).unwrap_or_else(|| "default".into());
        let train = of_text(&train).unwrap_or_else(|| "train".into());
        let validation =
            of_text(&validation).unwrap_or_else(|| known.map_or("validation", |known| known.validation).to_owned());
        let columns = known.map_or(&[][..], |known| known.text);
        self.splits("dataset_name", &value, &format!("{id}/{config}"), (&train, &validation), columns);
    }

    /// Whether the job is for `task`, as far as is known before the script's own task is set.
    fn is_for(&self, task: Task) -> bool {
        self.task().or(self.found.script.map(Script::task)) == Some(task)
    }

    /// Whether rows are to be predicted.
    fn predicts(&self) -> bool {
        let given = self.found.settings.iter().find(|setting| setting.path == ["trainer", "do_predict"]);
        let value = given.map(|setting| &setting.value).or(settings::value_in(self.base, "trainer", "do_predict"));
        value.and_then(toml::Value::as_bool) == Some(true)
    }

    /// Sets the data of two splits, and the columns of their text, where they are not set.
    fn splits(&mut self, name: &str, value: &Json, at: &str, (train, validation): (&str, &str), columns: &[&str]) {
        let origin = format!("hyperparameter {} = {}", one_line(name), shown(name, value));
        let address = |split: &str| format!("hf://datasets/{at}/{split}");
        let mut settings =
            vec![("train", address(train)), ("validation", address(validation)), ("format", "parquet".to_owned())];
        if columns != ["text"] {
            settings.extend(
                ["text_column", "text_pair_column"].into_iter().zip(columns.iter().map(|name| (*name).to_owned())),
            );
        }
        for (key, text) in settings {
            let path = format!("data.{key}");
            let percentage = key == "validation" && self.more.contains_key("validation_split_percentage");
            let is_column = key.ends_with("column") && self.is_set("data", key);
            if !self.set_by.contains_key(&path) && !percentage && !is_column {
                self.found.settings.push(Setting::new(&path, text, &origin));
                self.set_by.insert(path, name.to_owned());
            }
        }
    }

    fn model(&mut self) {
        if let Some(value) = self.more("model_revision") {
            let from = self.found.settings.iter_mut().find(|setting| setting.path == ["model", "from"]);
            match (text(&value), from) {
                // The default of the scripts.
                (Some(revision), None) if revision == "main" => {}
                (Some(revision), Some(setting)) => {
                    if let toml::Value::String(id) = &mut setting.value {
                        let is_path = id.starts_with(['/', '.', '~', '$']);
                        if !is_path && !id.contains('@') && revision != "main" {
                            *id = format!("{id}@{revision}");
                        }
                    }
                }
                _ => self.refuse("model_revision", &value, "there is no model_name_or_path that has revisions"),
            }
        }
        if let Some(value) = self.more("config_name") {
            let same = self.found.settings.iter().any(|setting| {
                setting.path == ["model", "from"] && setting.value.as_str().map(str::to_owned) == text(&value)
            });
            if !same {
                let why = "a shape without weights is given by `kind`, `size` and fields such as `n_layer`";
                self.refuse("config_name", &value, why);
            }
        }
        if let Some(value) = self.more("config_overrides") {
            for part in text(&value).unwrap_or_default().split(',').filter(|part| !part.trim().is_empty()) {
                match part.split_once('=') {
                    Some((key, text)) if settings::is_model_field(key.trim()) => {
                        self.set("config_overrides", &text.trim().into(), &format!("model.{}", key.trim()));
                    }
                    Some((key, _)) => {
                        self.refuse("config_overrides", &value, &format!("no model has a field `{}`", one_line(key)));
                    }
                    None => self.refuse("config_overrides", &value, "expected NAME=VALUE,NAME=VALUE"),
                }
            }
        }
        for name in ["dtype", "torch_dtype"] {
            let Some(value) = self.more(name) else { continue };
            match text(&value).as_deref() {
                Some("auto" | "float32" | "fp32") => self.leave(name, &value, "parameters are in f32"),
                _ => self.refuse(name, &value, "parameters are in f32; `precision` is the type of matrix products"),
            }
        }
    }

    fn data(&mut self) {
        let task = self.task();
        let joins = matches!(task, Some(Task::Clm | Task::Mlm));
        if let Some(value) = self.more("max_seq_length") {
            self.set("max_seq_length", &value, if joins { "data.block_size" } else { "data.max_length" });
        }
        if let Some(value) = self.more("pad_to_max_length") {
            match flag(&value) {
                Some(_) if joins => self.leave("pad_to_max_length", &value, "rows are joined to blocks of one length"),
                Some(true) => self.set("pad_to_max_length", &"max_length".into(), "data.padding"),
                Some(false) => self.set("pad_to_max_length", &"longest".into(), "data.padding"),
                None => self.refuse("pad_to_max_length", &value, "expected true or false"),
            }
        }
        if let Some(value) = self.more("validation_split_percentage") {
            let share =
                text(&value).and_then(|text| text.parse::<f64>().ok()).filter(|share| *share > 0.0 && *share < 100.0);
            match share {
                Some(_) if self.is_set("data", "validation") => {
                    self.leave("validation_split_percentage", &value, "there are validation data");
                }
                Some(share) => {
                    let is_script = matches!(self.found.script, Some(Script::Clm | Script::Mlm));
                    let first = if is_script { format!("train[:{share}%]") } else { format!("{share}%") };
                    self.set("validation_split_percentage", &first.into(), "data.validation");
                }
                None => self.refuse("validation_split_percentage", &value, "expected a percentage between 0 and 100"),
            }
        }
        if let Some(value) = self.more("keep_linebreaks") {
            match flag(&value) {
                None => self.refuse("keep_linebreaks", &value, "expected true or false"),
                Some(false) if self.found.script != Some(Script::Clm) => {
                    self.refuse("keep_linebreaks", &value, "not supported; `documents = row` leaves line breaks out");
                }
                Some(_) => {}
            }
        }
        let delimiter = self.more("text_column_delimiter");
        if let Some(value) = self.more("text_column_names") {
            let names = text(&value).unwrap_or_default();
            let names = names.split(',').map(str::trim).filter(|name| !name.is_empty()).collect::<Vec<_>>();
            match names[..] {
                [one] => self.set("text_column_names", &one.into(), "data.text_column"),
                [_, _] if self.found.script == Some(Script::Classification) => {
                    let delimiter = delimiter.as_ref().and_then(text).unwrap_or_else(|| " ".into());
                    let why = format!(
                        "run_classification.py joins the columns to one text with {delimiter:?} between them, and Kiln does not: write one \
                         column, or name a pair by text_column and text_pair_column"
                    );
                    self.refuse("text_column_names", &value, &why);
                }
                [one, two] => {
                    self.set("text_column_names", &one.into(), "data.text_column");
                    self.set("text_column_names", &two.into(), "data.text_pair_column");
                }
                _ => self.refuse("text_column_names", &value, "expected one column, or two with a comma between them"),
            }
        }
        for name in ["max_predict_samples", "max_test_samples"] {
            let Some(value) = self.more(name) else { continue };
            if !self.predicts() {
                self.leave(name, &value, "no rows are predicted");
            } else {
                self.refuse(name, &value, "not supported; `data.test` names the file whose rows are all predicted");
            }
        }
    }

    /// The processes of each machine, as far as they are asked for.
    fn devices(&mut self) {
        let mut number = |name: &str, least: i64| {
            let value = self.more(name)?;
            let number = text(&value).and_then(|text| text.trim().parse::<i64>().ok());
            // TrainingArguments writes -1 for a number that it has not looked for.
            match number.filter(|number| *number >= least || (name.ends_with("n_gpu") && *number == -1)) {
                Some(number) => usize::try_from(number).ok().map(|number| (number, name.to_owned(), value)),
                None => {
                    self.refuse(name, &value, "expected a number of GPUs");
                    None
                }
            }
        };
        let gpus = ["n_gpus", "num_gpus", "n_gpu", "_n_gpu"].map(|name| number(name, 0));
        let processes = number("sagemaker_mpi_num_of_processes_per_host", 1);
        let mut gpus = gpus.into_iter().flatten();
        if let Some((first, by, _)) = gpus.next() {
            for (other, name, value) in gpus.filter(|(other, ..)| *other != first) {
                self.refuse(&name, &value, &format!("`{by}` gives another number than {other}: {first}"));
            }
            self.found.ranks.per_machine = Some((first.max(1), format!("{by} = {first}")));
        }
        for name in scripts::DISTRIBUTIONS {
            let Some(value) = self.more(name) else { continue };
            match flag(&value) {
                Some(true) if name == scripts::MPI && self.found.ranks.per_machine.is_none() => {
                    let (count, _, _) = processes.clone().unwrap_or((1, String::new(), Json::Null));
                    self.found.ranks.per_machine = Some((count, format!("{name}, {count} processes per host")));
                }
                Some(true) => self.found.ranks.switch = Some(name),
                Some(false) => {}
                None => self.refuse(name, &value, "expected true or false"),
            }
        }
    }
}

/// The meaning of `name`; none for a name that is not known.
fn target(name: &str) -> Option<Target> {
    let of_a_job = scripts::NAMES.iter().find(|(known, _)| *known == name).map(|(_, means)| *means);
    if let Some(means) = of_a_job.or_else(|| meaning(name)) {
        return Some(Target::Means(means));
    }
    if name.starts_with("sagemaker_") {
        let is_misspelt = name.starts_with("sagemaker_training_compiler");
        return (!is_misspelt).then_some(Target::Means(Means::Nothing(scripts::OTHERS_OF_THE_PLATFORM)));
    }
    if name == PRECISION {
        return Some(Target::Key(name.to_owned()));
    }
    if let Some((section, key)) = name.split_once('.') {
        let top = key.split('.').next().unwrap_or(key);
        let is_known = match section {
            "model" => settings::is_model_field(key) || is_key(section, key),
            "trainer" => settings::argument_has_effect(key).is_some() || is_key(section, top),
            _ => is_key(section, top),
        };
        return is_known.then(|| Target::Key(name.to_owned()));
    }
    let of_trainer = settings::argument_has_effect(name);
    if of_trainer == Some(true) {
        return Some(Target::Key(format!("trainer.{name}")));
    }
    let section = BARE.into_iter().find(|section| is_key(section, name));
    let section = section.or_else(|| ALIASES.contains(&name).then_some("model"));
    let section = section.or_else(|| of_trainer.map(|_| "trainer"))?;
    Some(Target::Key(format!("{section}.{name}")))
}

/// Hugging Face's generic names of sizes, which families call otherwise; they are fields of
/// `[model]` too.
const ALIASES: [&str; 4] = ["hidden_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers"];

fn is_key(section: &str, key: &str) -> bool {
    settings::keys_of(section).is_some_and(|keys| keys.iter().any(|known| known == key))
}

/// Every name that may be meant by one that is not known.
fn known() -> Vec<String> {
    let sections = settings::sections();
    let keys = sections.iter().flat_map(|section| {
        settings::keys_of(section).unwrap_or_default().into_iter().flat_map(move |key| {
            let whole = format!("{section}.{key}");
            [BARE.contains(section).then_some(key), Some(whole)]
        })
    });
    let names = scripts::NAMES.iter().chain(NAMES).map(|(name, _)| (*name).to_owned());
    let arguments = settings::arguments().map(str::to_owned);
    names.chain(arguments).chain([PRECISION.to_owned()]).chain(keys.flatten()).collect()
}

/// A value as it was given, cut when it is long; secrets are not shown.
fn shown(name: &str, value: &Json) -> String {
    if name.contains("token") && !name.contains("tokenizer") && !name.contains("tokens") {
        return "...".into();
    }
    shortened(&one_line(&value.to_string()))
}

/// The text of a value; one that is a text in JSON's quotes is that text. None for null.
fn text(value: &Json) -> Option<String> {
    match value {
        Json::Null => None,
        Json::String(text) => match serde_json::from_str::<Json>(text.trim()) {
            Ok(Json::String(inner)) => Some(inner),
            _ => Some(text.clone()).filter(|_| !is_null(value)),
        },
        other => Some(other.to_string()),
    }
}

/// Whether a value asks for nothing.
fn is_null(value: &Json) -> bool {
    value.is_null() || value.as_str().is_some_and(|text| ["null", "None"].contains(&text.trim()))
}

/// A switch in the spellings of `HfArgumentParser`.
pub(super) fn flag(value: &Json) -> Option<bool> {
    match text(value)?.trim().to_ascii_lowercase().as_str() {
        "true" | "yes" | "t" | "y" | "1" => Some(true),
        "false" | "no" | "f" | "n" | "0" => Some(false),
        _ => None,
    }
}
