//! From text to a checked table: parses TOML, remembers on which line every key stands, lays values
//! from elsewhere on top, puts older spellings under their present names and refuses keys that no
//! section has. The resulting table is given to serde.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::LazyLock;

use kiln_core::complaint::Complaint;
use kiln_core::error::{Error, ErrorKind, Result, nearest, printable};
use kiln_core::words::shortened;
use serde::de::{DeserializeOwned, Deserializer, Visitor};
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::file::RunFile;
use super::hugging_face::place;
use super::origin::{Place, Setting, full_key};
use super::scripts;
use super::settings::keys_called;
use super::toml_words::{plain_words, toml_error};
use super::{
    BatchArguments, DataArguments, DataSection, DeviceArguments, DistributedArguments, GenerationSection,
    LearningRateScaling, LoraSection, OptimArgs, RunConfig, RunSection, SchedulerKwargs, TokenizerSection,
    TrainingArguments, TrainingCompilerConfig,
};

/// Keys that stand above the sections. In code their section is called "".
const TOP_LEVEL: [&str; 2] = ["precision", INCLUDE];

/// The key above the sections that names the files which a config file includes.
pub(super) const INCLUDE: &str = "include";

/// A config as a table under present names, with the place where each key was written.
pub(crate) struct Document {
    pub(super) origin: String,
    /// The sections and their keys.
    pub(crate) table: Table,
    /// By full key: where it was written and, if it was another spelling, how.
    pub(super) places: BTreeMap<String, (Place, Option<String>)>,
    /// Settings that have no effect.
    pub(super) unused: Unused,
    /// The files that its own file includes, as it names them.
    pub(super) includes: Vec<String>,
    /// All included files, in the order in which they are laid on one another.
    pub(super) included: Vec<String>,
}

/// The settings of a config that change nothing, for people.
#[derive(Debug, Default)]
pub(super) struct Unused {
    /// Arguments without effect, as they are named.
    pub(super) names: Vec<String>,
    /// So many more of an `--hf-args` file ask for nothing.
    pub(super) neutral: usize,
    /// Settings that others override, each with the reason.
    pub(super) because: Vec<String>,
}

impl Unused {
    /// The lines of a plan.
    pub(super) fn lines(self) -> Vec<String> {
        let mut named = self.names.join(", ");
        if self.neutral > 0 {
            let more = if named.is_empty() { "" } else { "; and " };
            let are = if self.neutral == 1 { "argument that asks" } else { "arguments that ask" };
            named += &format!("{more}{} {are} for nothing", self.neutral);
        }
        Some(named).filter(|named| !named.is_empty()).into_iter().chain(self.because).collect()
    }
}

/// Keys of `[trainer]` that state one thing: one that is given in a later layer takes the place of
/// the others.
const RIVALS: [&[&str]; 2] = [&["max_steps", "num_train_epochs", "max_tokens"], &["warmup_steps", "warmup_ratio"]];

impl Document {
    /// Parses `text`, which came from `origin` (a file name, for messages).
    pub(super) fn parse(text: &str, origin: &str) -> Result<Self> {
        let lines = Self::lines(text).map_err(|error| {
            toml_error(origin, text, &error)
                .help("the file is TOML: [section], then key = value; text values stand in quotes")
        })?;
        // The remaining mistakes are numbers.
        let written: Table = text.parse().map_err(|error: toml::de::Error| {
            toml_error(origin, text, &error)
                .help(format!("TOML's whole numbers end at {}; a seed above stands in quotes", i64::MAX))
        })?;
        let mut document = Self {
            origin: origin.to_owned(),
            table: Table::new(),
            places: BTreeMap::new(),
            unused: Unused::default(),
            includes: Vec::new(),
            included: Vec::new(),
        };
        for (section, value) in written {
            if section == INCLUDE {
                let line = Place::Line(lines.get(&section).copied().unwrap_or(1));
                document.places.insert(section, (line, None));
                document.includes = names(&value).map_err(|complaint| document.locate(complaint))?;
                continue;
            }
            if TOP_LEVEL.contains(&section.as_str()) {
                document.insert_written("", &section, value, &lines)?;
                continue;
            }
            let line = Place::Line(lines.get(&section).copied().unwrap_or(1));
            document.places.insert(section.clone(), (line, None));
            let keys = match value {
                _ if !sections().contains(&section.as_str()) => return Err(document.locate(unknown_section(&section))),
                Value::Table(keys) => keys,
                value => {
                    let message = format!("expected a section [{section}], got {}", shortened(&value));
                    let complaint = Complaint::new(&section, message);
                    let key = format!("trainer.{section}");
                    let is_key = TrainingArguments::KEYS.iter().any(|known| known.name == key);
                    let complaint = if is_key { complaint.help(format!("`{key}` is a key")) } else { complaint };
                    return Err(document.locate(complaint));
                }
            };
            document.table.entry(section.as_str()).or_insert_with(|| Value::Table(Table::new()));
            for (key, value) in keys {
                document.insert_written(&section, &key, value, &lines)?;
            }
        }
        Ok(document)
    }

    /// Lays the value of a setting on top.
    pub(super) fn lay_setting(&mut self, setting: &Setting) -> Result<()> {
        let path = setting.path.iter().map(String::as_str).collect::<Vec<_>>();
        self.lay_path(&path, setting.value.clone(), &Place::Setting(setting.origin.clone()))
    }

    /// Takes a key from the file; two spellings of the same key there are refused.
    fn insert_written(
        &mut self,
        section: &str,
        key: &str,
        value: Value,
        lines: &BTreeMap<String, usize>,
    ) -> Result<()> {
        let written = full_key(section, key);
        let prefix = format!("{written}.");
        let nested = lines.range(prefix.clone()..).take_while(|(nested, _)| nested.starts_with(&prefix));
        self.places.extend(nested.map(|(nested, line)| (nested.clone(), (Place::Line(*line), None))));
        let here = Place::Line(lines.get(&written).copied().unwrap_or(1));
        // If another spelling of this very key came first, its record stays: the message below
        // names both.
        self.places.entry(written.clone()).or_insert((here.clone(), None));
        let (section, key, value) = place(section, key, value).map_err(|complaint| self.locate(complaint))?;
        let full = full_key(section, key);
        if self.section(section).contains_key(key) {
            let first = self.places.get(&full).and_then(|(_, spelling)| spelling.clone()).unwrap_or(full);
            self.places.insert(written.clone(), (here, None));
            let message = format!("`{first}` and `{written}` are two ways of stating the same thing");
            return Err(self.locate(Complaint::new(&written, message).help("keep one of the two lines")));
        }
        self.section(section).insert(key.to_owned(), value);
        if full != written {
            self.places.insert(full, (here, Some(written)));
        }
        Ok(())
    }

    /// Lays one `section.key=value` on top. The value is TOML; what is not valid TOML is a string.
    pub(super) fn set(&mut self, text: &str, index: usize) -> Result<()> {
        let malformed = || {
            let error = Error::config(format!("--set {text}: expected section.key=value"));
            let (name, value) = text.split_once('=').unwrap_or((text, "VALUE"));
            error.help(match (&keys_called(name.trim())[..], scripts::advice(name.trim())) {
                ([], Some(advice)) => advice,
                ([], None) => "for example --set trainer.learning_rate=1e-3".into(),
                (keys, _) => {
                    let set = keys.iter().map(|key| format!("--set {key}={value}")).collect::<Vec<_>>();
                    format!("write {}", set.join(", or "))
                }
            })
        };
        let (path, value) = text.split_once('=').ok_or_else(malformed)?;
        // With spaces around the sign, as in a file, they belong to neither side.
        let value = if path.ends_with(' ') { value.trim() } else { value };
        let path: Vec<&str> = path.split('.').map(str::trim).collect();
        match path.as_slice() {
            [key] if *key == INCLUDE => {
                let complaint = Complaint::new(key, "a config file includes others, and nothing else does");
                return Err(Error::from(complaint.help("write it into the file")).at(format_args!("--set {text}")));
            }
            [key] if TOP_LEVEL.contains(key) => {}
            [key, ..] if TOP_LEVEL.contains(key) => {
                let complaint = Complaint::new(key, "expected a value, got keys under it");
                return Err(
                    Error::from(complaint.help(format!("write --set {key}=VALUE"))).at(format_args!("--set {text}"))
                );
            }
            [_, _, ..] if !path.iter().any(|part| part.is_empty()) => {}
            _ => return Err(malformed()),
        }
        let value = match value.trim().parse::<Value>() {
            // No key takes a date, so a name such as runs/2025-01-31 without its quotes is a
            // string.
            Ok(Value::Datetime(_)) | Err(_) => Value::String(value.to_owned()),
            Ok(value) => value,
        };
        self.lay_path(&path, value, &Place::Override(text.to_owned(), index))
    }

    /// Lays the value of a key on top: `[key]` above the sections, `[section, key]`, or a key in
    /// the tables of a key.
    fn lay_path(&mut self, path: &[&str], value: Value, origin: &Place) -> Result<()> {
        self.places.insert(path.join("."), (origin.clone(), None));
        let section = match path {
            [key] => return self.lay("", key, value, origin.clone()),
            [section, ..] => *section,
            [] => unreachable!("a setting has a name"),
        };
        self.places.entry(section.to_owned()).or_insert((origin.clone(), None));
        if let [section, key] = path {
            return self.lay(section, key, value, origin.clone());
        }
        // A table that only these keys make was given here, too.
        for depth in 2..path.len() {
            let above = path[..depth].join(".");
            self.places.entry(above).or_insert((origin.clone(), None));
        }
        let mut target = self.section(section);
        for (depth, part) in path.iter().enumerate().take(path.len() - 1).skip(1) {
            let entry = target.entry(*part).or_insert_with(|| Value::Table(Table::new()));
            let Value::Table(inner) = entry else {
                return Err(Error::config(format!(
                    "{}: {} is {}, not a table",
                    origin.at(),
                    path[..=depth].join("."),
                    shortened(entry)
                )));
            };
            target = inner;
        }
        target.insert(path[path.len() - 1].to_owned(), value);
        Ok(())
    }

    /// Sets a key to a value that wins over the one that is there, under the key's present name.
    pub(super) fn lay(&mut self, section: &str, key: &str, value: Value, origin: Place) -> Result<()> {
        let written = full_key(section, key);
        let (section, key, value) = place(section, key, value).map_err(|complaint| self.locate(complaint))?;
        let full = full_key(section, key);
        // The value replaces the earlier table under this key, so the places of that table's keys
        // are forgotten.
        self.places.retain(|place, _| !place.starts_with(&format!("{full}.")));
        self.displace_rivals(&full, &value, &origin);
        self.section(section).insert(key.to_owned(), value);
        let spelling = (full != written).then_some(written);
        self.places.insert(full, (origin.clone(), spelling));
        self.places.entry(section.to_owned()).or_insert((origin, None));
        Ok(())
    }

    /// A length of the run that is given on top takes the place of the one below, in whatever unit
    /// that one is; -1 gives none. So does a warm-up.
    pub(super) fn displace_rivals(&mut self, key: &str, value: &Value, origin: &Place) {
        let key = key.strip_prefix("trainer.").unwrap_or_default();
        let number = value.as_float().or_else(|| value.as_integer().map(|value| value as f64));
        let gives_none = number == Some(-1.0) || (key == "warmup_ratio" && number == Some(0.0));
        let Some(rivals) = RIVALS.iter().find(|rivals| rivals.contains(&key)).filter(|_| !gives_none) else { return };
        for name in rivals.iter().filter(|name| **name != key) {
            let other = format!("trainer.{name}");
            if self.places.get(&other).is_some_and(|(place, _)| place.order().0 < origin.order().0) {
                self.section("trainer").remove(*name);
                self.places.remove(&other);
            }
        }
    }

    pub(super) fn section(&mut self, name: &str) -> &mut Table {
        if name.is_empty() {
            return &mut self.table;
        }
        let section = self.table.entry(name).or_insert_with(|| Value::Table(Table::new()));
        section.as_table_mut().expect("every entry of the document is made as a table")
    }

    /// Refuses sections and keys that do not exist.
    pub(super) fn check_names(&self) -> Result<()> {
        for (section, keys) in &self.table {
            let known = match section.as_str() {
                // Every other key of [model] is a field of the model's own config.
                "model" => continue,
                key if TOP_LEVEL.contains(&key) => continue,
                name => keys_of(name).ok_or_else(|| self.locate(unknown_section(name)))?,
            };
            for (key, value) in keys.as_table().into_iter().flatten() {
                let full = format!("{section}.{key}");
                if !known.contains(&key.as_str()) {
                    return Err(self.locate(unknown_key(section, key, known)));
                }
                let known = match full.as_str() {
                    "trainer.lr_scheduler_kwargs" => field_names::<SchedulerKwargs>(),
                    "trainer.optim_args" => field_names::<OptimArgs>(),
                    _ => continue,
                };
                let unknown =
                    value.as_table().and_then(|args| args.keys().find(|name| !known.contains(&name.as_str())));
                if let Some(name) = unknown {
                    return Err(self.locate(unknown_key(&full, name, known)));
                }
            }
        }
        Ok(())
    }

    /// Reads the table into the config, naming key, expectation and value where it does not fit.
    pub(crate) fn read(&self) -> Result<RunConfig> {
        let Some(data) = self.table.get("data").filter(|data| data.get("task").is_some()) else {
            let complaint = Complaint::new("data.task", "required, and not given");
            let tasks = crate::config::Task::ALL.map(|task| task.to_string()).join(", ");
            return Err(self.locate(complaint.help(format!("add task under [data]: one of {tasks}"))));
        };
        let file = self.values::<RunFile>("", Value::Table(self.table.clone()))?;
        Ok(file.config(self.values("data", data.clone())?))
    }

    /// Reads `values`, which stand in `section`.
    fn values<T: DeserializeOwned>(&self, section: &str, values: Value) -> Result<T> {
        serde_path_to_error::deserialize(values).map_err(|error| {
            let key = full_key(section, &error.path().to_string());
            let error = Error::of_text(ErrorKind::Config, &plain_words(error.inner().message()));
            self.locate(Complaint::of(&key, error))
        })
    }

    /// Says where the key of a complaint was written: the nearest place on the way up from the key
    /// to its section.
    pub(crate) fn locate(&self, complaint: Complaint) -> Error {
        let mut key = complaint.key.as_str();
        let place = loop {
            match (self.places.get(key), key.rsplit_once(['.', '['])) {
                (Some(place), _) => break Some(place),
                (None, Some((parent, _))) => key = parent,
                (None, None) => break None,
            }
        };
        let at = match place {
            Some((Place::Line(line), _)) => format!("{}:{line}", self.origin),
            Some((place, _)) => place.at(),
            None => self.origin.clone(),
        };
        let spelling = place.and_then(|(_, spelling)| spelling.as_ref()).filter(|spelling| **spelling != complaint.key);
        let mut complaint = complaint;
        if let Some(spelling) = spelling {
            complaint.key = format!("{} (written as {spelling})", complaint.key);
        }
        Error::from(complaint).at(at)
    }

    /// The line of every key in `text`, by full key.
    fn lines(text: &str) -> std::result::Result<BTreeMap<String, usize>, toml::de::Error> {
        fn walk(ends: &[usize], prefix: &str, table: &DeTable<'_>, lines: &mut BTreeMap<String, usize>) {
            for (key, value) in table {
                let full = format!("{prefix}{}", key.get_ref());
                let start = Spanned::span(key).start;
                if let DeValue::Table(inner) = value.get_ref() {
                    walk(ends, &format!("{full}."), inner, lines);
                }
                lines.insert(full, ends.partition_point(|end| *end < start) + 1);
            }
        }
        let ends = text.match_indices('\n').map(|(end, _)| end).collect::<Vec<_>>();
        let mut lines = BTreeMap::new();
        walk(&ends, "", DeTable::parse(text)?.get_ref(), &mut lines);
        Ok(lines)
    }
}

/// The TOML `text`, in which characters with power over a terminal are escaped ([`printable`]): as
/// strings hold them, they stand as they are, also in literal strings, which have no escapes.
pub(super) fn escaped(mut text: String) -> std::result::Result<String, toml::de::Error> {
    fn walk(value: &Spanned<DeValue<'_>>, found: &mut Vec<(Range<usize>, String)>) {
        match value.get_ref() {
            DeValue::String(content) => found.push((value.span(), content.to_string())),
            DeValue::Array(values) => values.iter().for_each(|value| walk(value, found)),
            DeValue::Table(table) => walk_table(table, found),
            _ => {}
        }
    }
    fn walk_table(table: &DeTable<'_>, found: &mut Vec<(Range<usize>, String)>) {
        for (key, value) in table {
            found.push((key.span(), key.get_ref().to_string()));
            walk(value, found);
        }
    }
    if let Cow::Borrowed(_) = printable(&text) {
        return Ok(text);
    }
    let mut found = Vec::new();
    walk_table(DeTable::parse(&text)?.get_ref(), &mut found);
    found.retain(|(span, _)| matches!(printable(&text[span.clone()]), Cow::Owned(_)));
    found.sort_by_key(|(span, _)| span.start);
    found.dedup();
    for (span, content) in found.into_iter().rev() {
        text.replace_range(span, &quoted(&content));
    }
    Ok(text)
}

/// `text` as a string of TOML, without power over a terminal ([`printable`]).
pub fn quoted(text: &str) -> String {
    // JSON's escapes are TOML's too.
    printable(&serde_json::Value::from(text).to_string()).into_owned()
}

/// Reads the value of [`INCLUDE`]: the name of a file, or a list of names.
pub(super) fn names(value: &Value) -> std::result::Result<Vec<String>, Complaint> {
    let name = |value: &Value| value.as_str().filter(|name| !name.is_empty()).map(str::to_owned);
    let names = match value {
        Value::Array(values) => values.iter().map(name).collect::<Option<Vec<_>>>(),
        value => name(value).map(|name| vec![name]),
    };
    names.ok_or_else(|| {
        Complaint::new(INCLUDE, format!("expected the name of a file or a list of names, got {}", shortened(value)))
    })
}

/// The names of all sections, in the order of a config file.
pub fn sections() -> Vec<&'static str> {
    field_names::<RunFile>().iter().copied().filter(|name| !TOP_LEVEL.contains(name)).collect()
}

/// The keys of `[trainer]`: the arguments that have no other place in a config file.
static KEYS_OF_TRAINER: LazyLock<Vec<&str>> =
    LazyLock::new(|| TrainingArguments::KEYS.iter().filter_map(|key| key.name.strip_prefix("trainer.")).collect());

/// The keys of `[data]`.
static KEYS_OF_DATA: LazyLock<Vec<&str>> =
    LazyLock::new(|| [field_names::<DataSection>(), field_names::<DataArguments>()].concat());

/// The keys of `[section]`; none for `[model]`, whose fields the models know, and for a section
/// that does not exist.
pub(super) fn keys_of(section: &str) -> Option<&'static [&'static str]> {
    Some(match section {
        "run" => field_names::<RunSection>(),
        "data" => &KEYS_OF_DATA,
        "tokenizer" => field_names::<TokenizerSection>(),
        "trainer" => &KEYS_OF_TRAINER,
        "batch" => field_names::<BatchArguments>(),
        "learning_rate" => field_names::<LearningRateScaling>(),
        "device" => field_names::<DeviceArguments>(),
        "distributed" => field_names::<DistributedArguments>(),
        "compiler" => field_names::<TrainingCompilerConfig>(),
        "generation" => field_names::<GenerationSection>(),
        "lora" => field_names::<LoraSection>(),
        _ => return None,
    })
}

fn unknown_section(name: &str) -> Complaint {
    if name == "sweep" {
        return Complaint::new(name, "a search over keys, whose file is for `kiln sweep`, is no config of one run")
            .help("run `kiln sweep FILE`, or keep the config in a file of its own, which sweep.config names");
    }
    let list: Vec<String> = sections().iter().map(|section| format!("[{section}]")).collect();
    let complaint = Complaint::new(name, "unknown section or top-level key");
    match nearest(name, sections().into_iter().chain(TOP_LEVEL)) {
        Some(near) if TOP_LEVEL.contains(&near) => complaint.help(format!("did you mean `{near}`?")),
        Some(near) => complaint.help(format!("did you mean [{near}]? Known sections: {}", list.join(", "))),
        None => complaint.help(format!("known sections: {}", list.join(", "))),
    }
}

/// The complaint about a key that `section` does not have: the nearest known name and the list. For
/// `[model]`, whose further keys only the models know, the caller gives that list.
pub(super) fn unknown_key(section: &str, key: &str, known: &[&str]) -> Complaint {
    let complaint = Complaint::new(&format!("{section}.{key}"), "unknown key");
    if let Some(advice) = scripts::advice(key) {
        return complaint.help(advice);
    }
    let list = if known.len() <= LISTED {
        format!("[{section}] has {}", known.join(", "))
    } else {
        format!("`kiln help config-reference` lists the keys of [{section}]")
    };
    match nearest(key, known.iter().copied()) {
        Some(near) => complaint.help(format!("did you mean `{near}`? {list}")),
        None => complaint.help(list),
    }
}

/// A message lists so many keys at most: the advice would drown in more.
const LISTED: usize = 16;

/// The names of a struct's fields as serde knows them, so that the list of keys is the struct
/// itself.
pub fn field_names<T: DeserializeOwned>() -> &'static [&'static str] {
    struct Names<'a>(&'a mut &'static [&'static str]);

    impl<'de> Deserializer<'de> for Names<'_> {
        type Error = serde::de::value::Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> std::result::Result<V::Value, Self::Error> {
            Err(serde::de::Error::custom("only the names of a struct are read"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> std::result::Result<V::Value, Self::Error> {
            *self.0 = fields;
            self.deserialize_any(visitor)
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
            seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    let mut names: &'static [&'static str] = &[];
    // The result is an error by construction: the names are all that is wanted.
    let _ = T::deserialize(Names(&mut names));
    names
}
