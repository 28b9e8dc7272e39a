//! Arguments of `TrainingArguments` in a config: a whole file of them laid over the config file,
//! and how those that are no keys of their own come to set keys, by the rules of
//! `TrainingArguments` and Hugging Face's Trainer.

use std::collections::BTreeMap;
use std::path::Path;

use kiln_core::error::{Error, Result, nearest};
use kiln_core::files::{MAX_CONFIG, read_given, without_mark};
use kiln_core::words::{json_words, shortened};
use serde_json::Value as Json;
use toml::{Table, Value};

use super::document::{Document, keys_of};
use super::hugging_face::{ARGUMENTS, SWITCHES, Standing, Switch, argument};
use super::origin::{Place, full_key};
use super::{OptimizerName, scripts};
use crate::arguments::SERVICES;
use kiln_core::complaint::Complaint;

/// The text of a file that `TrainingArguments.to_json_string()` wrote.
///
/// # Errors
/// A config error for a file that is not there or not UTF-8, an io error when the system refuses to
/// read it.
pub(super) fn read(path: &Path) -> Result<String> {
    let at = path.display();
    if path.is_dir() {
        return Err(Error::config(format!("--hf-args {at}: expected a JSON file, got a folder")));
    }
    let bytes = read_given(path, MAX_CONFIG).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => Error::config(format!("--hf-args {at}: expected a JSON file, but {error}")),
        std::io::ErrorKind::NotFound => Error::config(format!("--hf-args {at}: no such file"))
            .help("write it in Python: open(\"args.json\", \"w\").write(training_args.to_json_string())"),
        _ => Error::io(format!("read {at}"), &error),
    })?;
    String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        Error::config(format!("--hf-args {at}: expected UTF-8 text, got other bytes at byte {good}"))
    })
}

impl Document {
    /// Lays the arguments in `text`, a JSON object from the file `origin`, over the config file.
    pub(super) fn lay_hf_args(&mut self, text: &str, origin: &str) -> Result<()> {
        let expected = "expected the JSON object that TrainingArguments.to_json_string() writes";
        let values: serde_json::Map<String, Json> = match serde_json::from_str(without_mark(text)) {
            Ok(Json::Object(values)) => values,
            Ok(other) => return Err(Error::config(format!("{origin}: {expected}, got {}", kind(&other)))),
            Err(error) => return Err(Error::config(format!("{origin}: {expected}: {}", json_words(&error)))),
        };
        let line = |name: &str| {
            let quoted = format!("\"{name}\"");
            text.lines().position(|line| line.trim_start().starts_with(&quoted)).map_or(1, |line| line + 1)
        };
        let is_steps = values.get("logging_strategy").is_none_or(|strategy| strategy == "steps");
        // `default_logdir()` of transformers 4, which nobody has asked for.
        let default_logs = values.get("output_dir").and_then(Json::as_str).map(|at| Path::new(at).join("runs"));
        // Today's names first: an old spelling that is given wins, as it does in TrainingArguments.
        let (today, old): (Vec<_>, Vec<_>) =
            values.into_iter().partition(|(name, _)| !name.starts_with("per_gpu_") && name != "evaluation_strategy");
        let of_scripts = today.iter().chain(&old).filter(|(name, value)| argument(name).is_none() && !value.is_null());
        let of_scripts = of_scripts.filter_map(|(name, _)| scripts::advice(name)).collect::<Vec<_>>();
        let before = (self.table.clone(), self.places.clone());
        for (name, value) in today.into_iter().chain(old) {
            let here = Place::HfArgs(format!("{origin}:{}", line(&name)));
            let Some(known) = argument(&name) else {
                // A private attribute, or one of a later release that is not set.
                if name.starts_with('_') || value.is_null() {
                    self.unused.neutral += 1;
                    continue;
                }
                return Err(unknown(&name, &of_scripts).at(here.at()));
            };
            let value = match (name.as_str(), value) {
                // No clipping, as 0 is.
                ("max_grad_norm", Json::Null) => Json::from(0.0),
                (_, value) if known.standing != Standing::Honoured && known.is_neutral(&value) => {
                    self.unused.neutral += 1;
                    continue;
                }
                (_, Json::Null) => continue,
                ("logging_dir", Json::String(at)) if Path::new(&at).parent() == default_logs.as_deref() => {
                    self.unused.neutral += 1;
                    continue;
                }
                // An integer of TOML is signed with 64 bits, so a larger seed is passed on as text.
                ("seed" | "data_seed", value) if value.is_u64() && !value.is_i64() => value.to_string().into(),
                // Every negative value leaves the length of the run to the epochs.
                ("max_steps", value) if value.as_i64().is_some_and(|steps| steps < 0) => Json::from(-1),
                // Each of these values means the same as no value.
                ("save_total_limit", value) if value.as_i64().is_some_and(|limit| limit <= 0) => continue,
                ("eval_steps", value) if value.as_f64() == Some(0.0) => continue,
                ("logging_steps", value) if !is_steps && value.as_f64() == Some(0.0) => continue,
                ("lr_scheduler_kwargs", Json::String(text)) => serde_json::from_str(&text).map_err(|error| {
                    Error::config(format!(
                        "trainer.lr_scheduler_kwargs: expected JSON, got {text:?}: {}",
                        json_words(&error)
                    ))
                    .at(here.at())
                })?,
                ("report_to", value) => self.without_services(value),
                (_, value) => value,
            };
            let value = toml_of(value).ok_or_else(|| {
                Error::config(format!("trainer.{name}: expected a value that TOML can hold")).at(here.at())
            })?;
            self.places.insert(format!("trainer.{name}"), (here.clone(), None));
            self.lay("trainer", &name, value, here)?;
        }
        self.name_replaced(before, origin);
        Ok(())
    }

    /// Names the keys of before, with their places, that the arguments of `origin` have replaced or
    /// displaced: a whole file of them has the defaults too.
    fn name_replaced(&mut self, (table, places): (Table, BTreeMap<String, (Place, Option<String>)>), origin: &str) {
        let mut files = BTreeMap::<String, Vec<String>>::new();
        let sections = table.iter().filter_map(|(section, keys)| Some((section, keys.as_table()?)));
        for (section, key, value) in
            sections.flat_map(|(section, keys)| keys.iter().map(move |(key, value)| (section, key, value)))
        {
            let now = self.table.get(section).and_then(|keys| keys.get(key));
            if now.is_some_and(|now| now == value || (number(now).is_some() && number(now) == number(value))) {
                continue;
            }
            let file = match places.get(&full_key(section, key)) {
                Some((Place::Included(at, _), _)) => at.clone(),
                _ => self.origin.clone(),
            };
            // The value of a token is a secret.
            let is_secret = key.ends_with("token");
            files.entry(file).or_default().push(match now {
                _ if is_secret => key.clone(),
                Some(now) => format!("{key} = {} ({} in {origin})", shortened(value), shortened(now)),
                None => format!("{key} = {} (left out for what {origin} has)", shortened(value)),
            });
        }
        let lines = files.into_iter().map(|(file, replaced)| format!("of {file}: {}", replaced.join(", ")));
        self.unused.because.extend(lines);
    }

    /// `report_to` without the services that Kiln does not report to, and without MLflow where no
    /// server is named: transformers 4 lists all that are installed.
    fn without_services(&mut self, value: Json) -> Json {
        let names = match value {
            Json::Array(names) => names,
            Json::String(name) => vec![Json::String(name)],
            other => return other,
        };
        let (services, kept): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| {
            let is_silent =
                |name| name == "mlflow" && std::env::var_os("MLFLOW_TRACKING_URI").is_none_or(|uri| uri.is_empty());
            name.as_str().is_some_and(|name| SERVICES.contains(&name) || is_silent(name))
        });
        self.unused.names.extend(services.iter().filter_map(Json::as_str).map(|name| format!("report_to {name}")));
        Json::Array(kept)
    }

    /// Turns arguments that are no keys into keys, by the rules of `TrainingArguments`; takes out
    /// those that have no effect and refuses those that ask for something that Kiln does not have.
    pub(super) fn settle(&mut self) -> Result<()> {
        self.settle_kinds()?;
        self.settle_adafactor()?;
        self.settle_checkpointing();
        for switch in SWITCHES {
            self.settle_switch(switch)?;
        }
        self.settle_full_eval()?;
        self.settle_backend();
        self.settle_resume()?;
        self.settle_warm_up()?;
        self.settle_length();
        self.settle_actions();
        self.settle_leftovers();
        self.settle_hub()?;
        self.take_out()
    }

    /// Reads switches as `HfArgumentParser` does, and refuses values of another kind than the
    /// argument's where no section reads them.
    fn settle_kinds(&mut self) -> Result<()> {
        for argument in ARGUMENTS.iter() {
            let Some(value) = self.trainer(argument.name) else { continue };
            let json = serde_json::to_value(value).unwrap_or_default();
            if let Some(on) = argument.switched(&json) {
                self.section("trainer").insert(argument.name.into(), on.into());
                continue;
            }
            // serde takes a list for the fields of a table in their order; the other one has no
            // field.
            let is_lax = json.is_array() && ["lr_scheduler_kwargs", "optim_args"].contains(&argument.name)
                || argument.name == "auto_find_batch_size";
            if (argument.standing != Standing::Honoured || is_lax) && !argument.takes(&json) {
                let message = format!("expected {}, got {}", argument.kinds(), shortened(value));
                return Err(self.locate(Complaint::new(&format!("trainer.{}", argument.name), message)));
            }
        }
        Ok(())
    }

    /// Adafactor's own learning rate, which Hugging Face's Trainer switches off and Kiln does not
    /// have.
    fn settle_adafactor(&mut self) -> Result<()> {
        let optimizer = self.trainer("optim").and_then(Value::as_str).map(str::parse::<OptimizerName>);
        let is_adafactor = matches!(optimizer, Some(Ok(OptimizerName::Adafactor)))
            || self.trainer("adafactor").and_then(Value::as_bool) == Some(true);
        for name in ["relative_step", "warmup_init"] {
            let args = self.section("trainer").get_mut("optim_args").and_then(Value::as_table_mut);
            let Some(args) = args.filter(|args| is_adafactor && args.contains_key(name)) else { continue };
            let complaint = match args.remove(name) {
                Some(Value::Boolean(false)) | None => continue,
                Some(Value::Boolean(true)) => Complaint::new(
                    &format!("trainer.optim_args.{name}"),
                    "Adafactor's own learning rate is not supported by this version, got true",
                )
                .help("leave it out: the rate is `learning_rate` by `lr_scheduler_type`, as in Hugging Face's Trainer"),
                Some(other) => {
                    let message = format!("expected true or false, got {}", shortened(&other));
                    Complaint::new(&format!("trainer.optim_args.{name}"), message)
                }
            };
            return Err(self.locate(complaint));
        }
        Ok(())
    }

    fn trainer(&self, key: &str) -> Option<&Value> {
        self.table.get("trainer")?.get(key)
    }

    /// Where the key stands that is now called `trainer.key`.
    fn place_of(&self, key: &str) -> Place {
        self.places.get(&format!("trainer.{key}")).map_or(Place::Line(1), |(place, _)| place.clone())
    }

    /// Takes a key out of `[trainer]`.
    fn take(&mut self, key: &str) -> Option<(Value, Place)> {
        let value = self.table.get_mut("trainer")?.as_table_mut()?.remove(key)?;
        Some((value, self.place_of(key)))
    }

    /// Gives a key the value that an argument stands for, unless a later layer has set it. Whether
    /// it did.
    fn give(&mut self, target: (&str, &str), value: Value, argument: &str, place: Place, wins: bool) -> Result<bool> {
        let full = full_key(target.0, target.1);
        if let Some(there) = self.section(target.0).get(target.1).cloned() {
            let (other, spelling) = self.places.get(&full).cloned().unwrap_or((Place::Line(1), None));
            // Two arguments of one layer that state different things, in whatever order.
            let argument = format!("trainer.{argument}");
            let rival = spelling.as_ref().filter(|spelling| **spelling != argument && there != value);
            if let Some(rival) = rival.filter(|_| other.order().0 == place.order().0 && !wins) {
                return Err(self.two_ways(rival, &argument));
            }
            if other.order() > place.order() {
                return Ok(false);
            }
            // A key of Kiln's own beside an argument that stands for it is one too many, also when
            // both say the same.
            let same = there == value && spelling.is_some();
            if other.order() == place.order() && !same && !wins {
                return Err(self.two_ways(&spelling.unwrap_or(full), &argument));
            }
        }
        let there = self.section(target.0).insert(target.1.to_owned(), value.clone());
        if let (Place::HfArgs(at), Some(there)) = (&place, there.filter(|there| *there != value)) {
            self.unused.because.push(format!("{full} = {}: {argument} of {at} wins over it", shortened(&there)));
        }
        self.places.insert(full, (place.clone(), Some(format!("trainer.{argument}"))));
        self.places.entry(target.0.to_owned()).or_insert((place, None));
        Ok(true)
    }

    fn two_ways(&self, first: &str, second: &str) -> Error {
        let message = format!("`{first}` and `{second}` are two ways of stating the same thing");
        self.locate(Complaint::new(second, message).help("keep one of the two"))
    }

    /// `activation_checkpointing` of 5.23 is a switch; Kiln's key of that name has more values.
    fn settle_checkpointing(&mut self) {
        const NAME: &str = "activation_checkpointing";
        let Some(Value::Boolean(on)) = self.trainer(NAME).cloned() else { return };
        if let Some((_, spelling)) = self.places.get_mut(&format!("trainer.{NAME}")) {
            *spelling = Some(format!("trainer.{NAME}"));
        }
        let place = self.place_of(NAME).order();
        // The older spelling of the same switch, in the same place or later, has the last word.
        let older = self.trainer("gradient_checkpointing").is_some()
            && self.place_of("gradient_checkpointing").order() >= place;
        let value = if on { "blocks" } else { "none" };
        if on || !older {
            drop(self.section("trainer").insert(NAME.into(), value.into()))
        } else {
            drop(self.take(NAME))
        }
    }

    fn settle_switch(&mut self, switch: &Switch) -> Result<()> {
        let Switch { name, target, value, wins } = *switch;
        match self.take(name) {
            None | Some((Value::Boolean(false), _)) => Ok(()),
            Some((Value::Boolean(true), place)) => self.give(target, value.into(), name, place, wins).map(drop),
            Some((other, _)) => {
                let key = full_key(target.0, target.1);
                let at = if target.0.is_empty() { format!("{key}, above the sections") } else { key };
                let message = format!("expected true or false, got {}", shortened(&other));
                Err(self.locate(Complaint::new(&format!("trainer.{name}"), message).help(format!("or set {at}"))))
            }
        }
    }

    /// Evaluation in a type of its own, which has no effect beside training in the same one.
    fn settle_full_eval(&mut self) -> Result<()> {
        for (name, precision) in [("bf16_full_eval", "bf16"), ("fp16_full_eval", "f16")] {
            if self.trainer(name).and_then(Value::as_bool) != Some(true) {
                continue;
            }
            let given = self.table.get("precision").and_then(Value::as_str).unwrap_or("f32").to_owned();
            let layer = |place: &Place| place.order().0;
            let full_eval = layer(&self.place_of(name));
            let is_later = self.places.get("precision").is_some_and(|(place, _)| layer(place) > full_eval);
            if given != precision && is_later {
                self.take(name);
                let because =
                    format!("{name} = true: precision = {given:?}, which was given over it, holds for evaluation too");
                self.unused.because.push(because);
                continue;
            }
            if given != precision {
                let message = format!(
                    "evaluation computes as training does, here in `precision = \"{given}\"`, and not in {precision} alone"
                );
                return Err(self.locate(Complaint::new(&format!("trainer.{name}"), message).help(format!(
                    "set precision = \"{precision}\", or leave it out; `kiln eval --precision {precision}` evaluates a trained \
                     model in {precision}"
                ))));
            }
            self.take(name);
            let because = format!("{name} = true: evaluation computes in {precision}, as training does");
            self.unused.because.push(because);
        }
        Ok(())
    }

    /// `gloo`, the usual backend of PyTorch on CPUs: it sums what MPI sums here, and in the memory
    /// of the machine too.
    fn settle_backend(&mut self) {
        let backend = self.table.get_mut("distributed").and_then(|section| section.get_mut("ddp_backend"));
        if let Some(backend) = backend.filter(|backend| backend.as_str() == Some("gloo")) {
            *backend = "mpi".into();
            let because = "ddp_backend = \"gloo\": MPI sums the gradients of Kiln's ranks, in the memory of the machine \
                           as gloo does";
            self.unused.because.push(because.into());
        }
    }

    /// `resume_from_checkpoint`: true, false, or the folder of a checkpoint. It wins over
    /// `overwrite_output_dir`, which only allows a run to write to its folder.
    fn settle_resume(&mut self) -> Result<()> {
        const NAME: &str = "resume_from_checkpoint";
        let Some((value, place)) = self.take(NAME) else { return Ok(()) };
        let path = match &value {
            Value::Boolean(false) => return Ok(()),
            Value::Boolean(true) => None,
            Value::String(text) => match text.as_str() {
                "" | "false" | "False" => return Ok(()),
                "true" | "True" => None,
                path => Some(path.to_owned()),
            },
            other => {
                let message = format!("expected true, false or the folder of a checkpoint, got {}", shortened(other));
                return Err(self.locate(Complaint::new(&format!("trainer.{NAME}"), message)));
            }
        };
        let overwrites = self
            .places
            .get("run.on_existing")
            .is_some_and(|(_, spelling)| spelling.as_deref() == Some("trainer.overwrite_output_dir"));
        let gives = self.give(("run", "on_existing"), "resume".into(), NAME, place.clone(), overwrites)?;
        if let (true, Some(path)) = (gives, path) {
            self.give(("run", NAME), path.into(), NAME, place, false)?;
        }
        Ok(())
    }

    /// `warmup_ratio`, which steps override in a file of arguments; and the schedule `constant`,
    /// for which `get_scheduler` ignores both.
    fn settle_warm_up(&mut self) -> Result<()> {
        let zero = |value: &Value| number(value) == Some(0.0);
        if let Some((value, place)) = self.take("warmup_ratio") {
            let Some(ratio) = number(&value).filter(|ratio| (0.0..=1.0).contains(ratio)) else {
                let message = format!("expected a ratio from 0 to 1, got {}", shortened(&value));
                return Err(self.locate(Complaint::new("trainer.warmup_ratio", message)));
            };
            match self.trainer("warmup_steps").filter(|steps| !zero(steps)).map(shortened) {
                Some(_) if ratio > 0.0 && !place.is_of_a_script() => {
                    return Err(self.two_ways("trainer.warmup_ratio", "trainer.warmup_steps"));
                }
                Some(steps) if ratio > 0.0 => {
                    self.unused.because.push(format!("warmup_ratio = {ratio}: warmup_steps = {steps} wins over it"));
                }
                None if ratio > 0.0 => {
                    self.section("trainer").remove("warmup_steps");
                    // As `warmup_steps`, 1.0 is one step.
                    let steps = if ratio < 1.0 { ratio.into() } else { "100%".into() };
                    self.give(("trainer", "warmup_steps"), steps, "warmup_ratio", place, true)?;
                }
                _ => {}
            }
        }
        let is_constant = self.trainer("lr_scheduler_type").and_then(Value::as_str) == Some("constant");
        if let (true, Some((steps, _))) = (is_constant, is_constant.then(|| self.take("warmup_steps")).flatten())
            && !zero(&steps)
        {
            self.unused.because.push(format!(
                "warmup_steps = {}: the schedule `constant` has no warm-up, in Hugging Face neither; `constant_with_warmup` \
                 has one",
                shortened(&steps)
            ));
        }
        Ok(())
    }

    /// Steps win over epochs.
    fn settle_length(&mut self) {
        let given = |value: Option<&Value>| value.and_then(number).is_some_and(|value| value != -1.0);
        if given(self.trainer("max_steps"))
            && given(self.trainer("num_train_epochs"))
            && let (Some(steps), Some((epochs, _))) =
                (self.trainer("max_steps").map(shortened), self.take("num_train_epochs"))
        {
            let epochs = shortened(&epochs);
            self.unused.because.push(format!("num_train_epochs = {epochs}: max_steps = {steps} wins over it"));
        }
    }

    /// A file of arguments has `do_train = false` when a script calls `trainer.train()` without
    /// asking for the argument, and `do_eval = true` whenever it evaluates during training. Only
    /// what goes beyond that asks for no training.
    fn settle_actions(&mut self) {
        let of_file = |document: &Self, key: &str| match document.place_of(key) {
            Place::HfArgs(_) => document.trainer(key).and_then(Value::as_bool),
            _ => None,
        };
        let [train, eval, predict] = ["do_train", "do_eval", "do_predict"].map(|key| of_file(self, key));
        let strategy = self.trainer("eval_strategy").and_then(Value::as_str).unwrap_or("no").to_owned();
        let (Some(false), Some(eval), Some(false)) = (train, eval, predict) else { return };
        if eval && strategy == "no" {
            return;
        }
        self.take("do_train");
        self.take("do_eval");
        if eval {
            self.unused.because.push(format!(
                "do_train = false: eval_strategy = \"{strategy}\" is for training; --set trainer.do_train=false evaluates \
                 alone"
            ));
        }
    }

    /// Arguments of a file of arguments that others make idle; in a config file somebody wrote them
    /// for a reason.
    fn settle_leftovers(&mut self) {
        let strategy = self.trainer("eval_strategy").and_then(Value::as_str).unwrap_or("no").to_owned();
        let optimizer = self.trainer("optim").and_then(Value::as_str).unwrap_or("adamw").parse::<OptimizerName>();
        let never = if strategy == "no" { &["metric_for_best_model", "greater_is_better"][..] } else { &[] };
        let adam = ["adam_beta1", "adam_beta2", "adam_epsilon"].into_iter();
        let idle = adam.filter(|key| optimizer.as_ref().is_ok_and(|name| !name.adam_settings().contains(key)));
        // A cadence that is switched off stays, so that one key can switch it on.
        for key in ["eval_steps", "eval_delay"] {
            let idle = if key == "eval_steps" { strategy != "steps" } else { strategy == "no" };
            if let Some(value) = self.trainer(key).filter(|value| idle && number(value) != Some(0.0)) {
                self.unused.because.push(format!("{key} = {}: eval_strategy = \"{strategy}\"", shortened(value)));
            }
        }
        for key in never.iter().copied().chain(idle).collect::<Vec<_>>() {
            let json = self.trainer(key).and_then(|value| serde_json::to_value(value).ok()).unwrap_or_default();
            let is_read = argument(key).is_some_and(|argument| argument.takes(&json));
            if is_read && self.place_of(key).is_of_a_script() && self.take(key).is_some() {
                self.unused.names.push(key.into());
            }
        }
        // It has no effect with any value: a run that is out of memory always halves its
        // micro-batch.
        self.take("auto_find_batch_size");
    }

    /// Refuses a token where something is uploaded, which would go by the account of another one;
    /// takes out a `hub_strategy` that Kiln does not have where nothing is.
    fn settle_hub(&mut self) -> Result<()> {
        if self.trainer("push_to_hub").and_then(Value::as_bool) != Some(true) {
            let strategy = self.trainer("hub_strategy").and_then(Value::as_str);
            if strategy == Some("all_checkpoints") && self.take("hub_strategy").is_some() {
                self.unused.names.push("hub_strategy".into());
            }
            return Ok(());
        }
        for name in ["hub_token", "push_to_hub_token"] {
            let json = self.trainer(name).and_then(|value| serde_json::to_value(value).ok()).unwrap_or_default();
            if argument(name).is_some_and(|argument| !argument.is_neutral(&json)) {
                // The message does not have the value, which is a secret.
                let complaint = Complaint::new(&format!("trainer.{name}"), "a token in a config is not used to upload");
                return Err(
                    self.locate(complaint.help("leave it out, and set HF_TOKEN, or log in with `hf auth login`"))
                );
            }
        }
        Ok(())
    }

    /// Takes out what has no effect, and refuses what is not honoured.
    fn take_out(&mut self) -> Result<()> {
        let known = keys_of("trainer").unwrap_or_default();
        let given = self.table.get("trainer").and_then(Value::as_table).into_iter().flatten();
        let others = given.map(|(key, _)| key.clone()).filter(|key| !known.contains(&key.as_str()));
        for key in others.collect::<Vec<_>>() {
            let Some(argument) = argument(&key) else { continue };
            let Some((value, _)) = self.take(&key) else { continue };
            let json = serde_json::to_value(&value).unwrap_or_default();
            if argument.standing == Standing::Refused && !argument.is_neutral(&json) {
                let got = shortened(&value);
                let message = format!("Hugging Face's `{key}` is not supported by this version, got {got}");
                return Err(self.locate(Complaint::new(&format!("trainer.{key}"), message).help(argument.note.clone())));
            }
            self.unused.names.push(key);
        }
        Ok(())
    }
}

fn number(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|value| value as f64))
}

fn kind(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "true or false",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}

/// The complaint about an argument that `TrainingArguments` has not, in a file with the arguments
/// of scripts that `of_scripts` tells of.
fn unknown(name: &str, of_scripts: &[String]) -> Error {
    let error = Error::config(format!("`{name}` is no argument of TrainingArguments, as far as this version knows"));
    if scripts::meaning(name).is_some() {
        return error.help(format!(
            "set the keys that stand for arguments of scripts in the config file, and leave those out: {}",
            of_scripts.join("; ")
        ));
    }
    match nearest(name, ARGUMENTS.iter().map(|argument| argument.name)) {
        Some(near) => {
            error.help(format!("did you mean `{near}`? Kiln's own keys stand in the config file, or in --set"))
        }
        None => error.help("Kiln's own keys stand in the config file, or in --set"),
    }
}

/// A JSON value as TOML, which has no null: such an entry is left out. None for a number beyond 64
/// bits.
pub(super) fn toml_of(value: Json) -> Option<Value> {
    Some(match value {
        Json::Null => return None,
        Json::Bool(value) => Value::Boolean(value),
        Json::Number(value) => match value.as_i64() {
            Some(value) => Value::Integer(value),
            None => Value::Float(value.as_f64().filter(|_| value.is_f64())?),
        },
        Json::String(value) => Value::String(value),
        Json::Array(values) => {
            Value::Array(values.into_iter().filter(|value| !value.is_null()).map(toml_of).collect::<Option<_>>()?)
        }
        Json::Object(values) => {
            let given = values.into_iter().filter(|(_, value)| !value.is_null());
            Value::Table(given.map(|(name, value)| Some((name, toml_of(value)?))).collect::<Option<Table>>()?)
        }
    })
}
