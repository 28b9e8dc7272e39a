//! The contract between a training platform and the container of a job, as Amazon SageMaker has it:
//! hyperparameters, channels of data and machines under `/opt/ml/input`, results under
//! `/opt/ml/{model,checkpoints,output}`, all of it said again by `SM_*` variables. Another root
//! than `/opt/ml` is as good.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use kiln_core::error::{Error, Result};
use kiln_core::files::{MAX_CONFIG, read_given};
use kiln_core::variables::expand_with;
use kiln_core::words::json_words;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value as Json;

/// The root in a container.
pub(super) const ROOT: &str = "/opt/ml";

/// The beginning of the variable that names the folder of a channel.
const CHANNEL: &str = "SM_CHANNEL_";

/// A folder (or a file) of input data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Channel {
    pub(super) name: String,
    pub(super) path: PathBuf,
}

impl Channel {
    /// The variable that names its path.
    pub(super) fn variable(&self) -> String {
        format!("{CHANNEL}{}", self.name.to_uppercase())
    }

    /// Its path in a config: the same on every machine.
    pub(super) fn in_config(&self) -> String {
        format!("${{{}}}", self.variable())
    }

    /// Whether the text of a config names it so, with a value for where it is not set or without.
    pub(super) fn is_named_in(&self, text: &str) -> bool {
        text.contains(&self.in_config()) || text.contains(&format!("${{{}:-", self.variable()))
    }
}

/// The inputs of a job and the places of its results.
#[derive(Debug)]
pub(super) struct Contract {
    pub(super) root: PathBuf,
    /// Names and values, as they were given, each name once.
    pub(super) hyperparameters: Vec<(String, Json)>,
    pub(super) channels: Vec<Channel>,
    /// The machines of the job, sorted, so that each has the same list.
    pub(super) hosts: Vec<String>,
    /// The name of this one.
    current_host: Option<String>,
    /// The GPUs of this one, and what says so.
    pub(super) gpus: Option<(usize, String)>,
    /// All of them are this one: they talk by its loopback interface, as those of a local job do.
    pub(super) is_local: bool,
    /// The folder of the trained model.
    pub(super) model: PathBuf,
    /// The folder of all other results.
    pub(super) output: PathBuf,
    /// The folder that outlives a machine.
    pub(super) checkpoints: PathBuf,
}

/// The file that says why a job failed.
pub(super) fn failure(root: &Path) -> PathBuf {
    root.join("output/failure")
}

impl Contract {
    /// Reads what lies under `root`, an absolute path, and in `variables`, those whose names begin
    /// with `SM_`. A variable wins over the place under the root, and a file of hyperparameters
    /// over variables.
    ///
    /// # Errors
    /// A root that is no folder; a file of the contract that cannot be read.
    pub(super) fn read(root: &Path, variables: &BTreeMap<String, String>) -> Result<Self> {
        if !root.is_dir() {
            return Err(Error::config(format!("--root {}: no such folder", root.display())).help(format!(
                "a job finds its input under {ROOT}/input; give the folder that stands for {ROOT} with --root"
            )));
        }
        let config = root.join("input/config");
        let folder = |name: &str, below: &str| variables.get(name).map_or_else(|| root.join(below), PathBuf::from);
        let hyperparameters = match read::<Pairs>(&config.join("hyperparameters.json"))? {
            Some(pairs) => pairs.each_once(&config.join("hyperparameters.json"))?,
            None => hyperparameters_of(variables)?,
        };
        let mut channels = BTreeMap::new();
        let input = config.join("inputdataconfig.json");
        for (name, channel) in
            read::<Pairs>(&input)?.map(|pairs| pairs.each_once(&input)).transpose()?.unwrap_or_default()
        {
            let mode = channel.get("TrainingInputMode").and_then(Json::as_str);
            if mode == Some("Pipe") {
                return Err(Error::config(format!(
                    "{}: the channel {name} has TrainingInputMode \"Pipe\": a pipe is read once, and data are read more \
                     than once",
                    input.display()
                ))
                .help("use \"File\" or \"FastFile\""));
            }
            channels.insert(name.to_uppercase(), Channel { path: root.join("input/data").join(&name), name });
        }
        for entry in std::fs::read_dir(root.join("input/data")).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with('.') {
                let channel = Channel { path: entry.path(), name };
                channels.entry(channel.name.to_uppercase()).or_insert(channel);
            }
        }
        for (name, path) in variables.iter().filter(|(_, path)| !path.is_empty()) {
            let Some(name) = name.strip_prefix(CHANNEL) else { continue };
            channels
                .entry(name.to_owned())
                .or_insert_with(|| Channel { name: name.to_lowercase(), path: path.into() })
                .path = path.into();
        }
        let Resources { mut hosts, current_host, current_instance_type, network_interface_name: network } =
            resources(&config.join("resourceconfig.json"), variables)?;
        hosts.sort();
        let gpus = gpus(variables, current_instance_type.as_deref())?;
        Ok(Self {
            hyperparameters,
            channels: channels.into_values().collect(),
            hosts,
            current_host,
            gpus,
            is_local: network.as_deref() == Some(LOOPBACK),
            model: folder("SM_MODEL_DIR", "model"),
            output: folder("SM_OUTPUT_DATA_DIR", "output/data"),
            checkpoints: root.join("checkpoints"),
            root: root.into(),
        })
    }

    /// Adds the hyperparameters that the command line gives to those of the platform.
    ///
    /// # Errors
    /// An argument that is none of a script's, and one that contradicts a hyperparameter.
    pub(super) fn add(&mut self, arguments: &[String]) -> Result<()> {
        let arguments = match arguments {
            [word, rest @ ..] if word == "train" => rest,
            all => all,
        };
        for (name, value) in of_arguments(arguments)? {
            // A platform may say all of them twice, here as texts.
            let text = |value: &Json| {
                value.as_str().map_or_else(|| value.to_string(), |text| text.trim_matches('"').to_owned())
            };
            match self.hyperparameters.iter().find(|(other, _)| *other == name) {
                Some((_, given)) if text(given).eq_ignore_ascii_case(&text(&value)) => {}
                Some((_, given)) => {
                    return Err(Error::config(format!(
                        "--{name} {}: the hyperparameters of the job have {name} = {given}",
                        text(&value)
                    ))
                    .help("keep one of the two"));
                }
                None => self.hyperparameters.push((name, value)),
            }
        }
        Ok(())
    }

    /// The number of this machine among those of the job.
    ///
    /// # Errors
    /// A job of several machines that does not tell which one this is.
    pub(super) fn own(&self) -> Result<usize> {
        if self.hosts.len() < 2 || self.is_local {
            return Ok(0);
        }
        let own = self.current_host.as_ref().and_then(|own| self.hosts.iter().position(|host| host == own));
        own.ok_or_else(|| {
            let current = self.current_host.as_deref().unwrap_or("nothing");
            Error::config(format!(
                "the job has {} machines ({}), and current_host of resourceconfig.json (or SM_CURRENT_HOST) names {current}",
                self.hosts.len(),
                self.hosts.join(", ")
            ))
            .help("give the name of this machine, as it is in the list of hosts")
        })
    }

    /// The channel that is called one of `names`.
    pub(super) fn channel(&self, names: &[&str]) -> Option<&Channel> {
        names.iter().find_map(|name| self.channels.iter().find(|channel| channel.name.eq_ignore_ascii_case(name)))
    }

    /// The variables that a process of the job has, so that a config may name them.
    pub(super) fn variables(&self) -> Vec<(String, PathBuf)> {
        let channels = self.channels.iter().map(|channel| (channel.variable(), channel.path.clone()));
        let folders = [
            ("SM_MODEL_DIR", self.model.clone()),
            ("SM_OUTPUT_DATA_DIR", self.output.clone()),
            ("SM_INPUT_DIR", self.root.join("input")),
        ];
        channels.chain(folders.map(|(name, path)| (name.to_owned(), path))).collect()
    }

    /// Expands the variables in `path`, those of the job first.
    ///
    /// # Errors
    /// An unset variable without a default, an unclosed `${`, no home folder.
    pub(super) fn expand(&self, path: &str) -> Result<PathBuf> {
        let own = self.variables();
        let variable = |name: &str| {
            let own = own.iter().find(|(own, _)| own == name).map(|(_, path)| path.display().to_string());
            own.or_else(|| std::env::var(name).ok())
        };
        expand_with(path, &variable).map(PathBuf::from)
    }

    /// The path that `path` means under this root: scripts and configs say `/opt/ml/..`. In a
    /// channel it is written with the channel's variable, so that it is the same text on every
    /// machine.
    pub(super) fn relocated(&self, path: &str) -> String {
        let Some(inner) = path.strip_prefix(ROOT).filter(|_| self.root != Path::new(ROOT)) else {
            return path.to_owned();
        };
        if !inner.is_empty() && !inner.starts_with('/') {
            return path.to_owned();
        }
        let in_channel = inner.strip_prefix("/input/data/").and_then(|rest| {
            let (name, rest) = rest.split_once('/').unwrap_or((rest, ""));
            let channel = self.channels.iter().find(|channel| channel.name == name)?;
            Some(if rest.is_empty() { channel.in_config() } else { format!("{}/{rest}", channel.in_config()) })
        });
        in_channel.unwrap_or_else(|| format!("{}{inner}", self.root.display()))
    }
}

/// The JSON in the file `path`; none where there is no such file.
fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let at = path.display();
    let bytes = match read_given(path, MAX_CONFIG) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            return Err(Error::config(format!("{at}: {error}")));
        }
        Err(error) => return Err(Error::io(format!("read {at}"), &error)),
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| Error::config(format!("{at}: {}", json_words(&error))))
}

/// Hyperparameters as SageMaker's training toolkit puts them into variables.
fn hyperparameters_of(variables: &BTreeMap<String, String>) -> Result<Vec<(String, Json)>> {
    let mut all = Vec::new();
    for name in ["SM_HPS", "SM_FRAMEWORK_PARAMS"] {
        let Some(text) = variables.get(name).filter(|text| !text.is_empty()) else { continue };
        let pairs: Pairs =
            serde_json::from_str(text).map_err(|error| Error::config(format!("{name}: {}", json_words(&error))))?;
        all.extend(pairs.each_once(Path::new(name))?);
    }
    if all.is_empty() {
        let one = variables.iter().filter_map(|(name, text)| Some((name.strip_prefix("SM_HP_")?, text)));
        all.extend(one.map(|(name, text)| (name.to_lowercase(), Json::String(text.clone()))));
    }
    Ok(all)
}

/// Hyperparameters as a script of Hugging Face's takes them on its command line: `--name value`,
/// `--name=value`, `--name` for true, `--name a b` for a list, or one JSON file with all of them.
fn of_arguments(arguments: &[String]) -> Result<Vec<(String, Json)>> {
    if let [file] = arguments
        && file.ends_with(".json")
        && !file.starts_with("--")
    {
        return of_file(file);
    }
    let mut all = Vec::<(String, Vec<&str>)>::new();
    for argument in arguments {
        match (argument.strip_prefix("--"), all.last_mut()) {
            (Some(name), _) if !name.is_empty() => {
                let (name, value) = name.split_once('=').map_or((name, None), |(name, value)| (name, Some(value)));
                if all.iter().any(|(other, _)| other == name) {
                    return Err(Error::config(format!("--{name} is there twice")).help("keep one of the two"));
                }
                all.push((name.to_owned(), value.into_iter().collect()));
            }
            (None, Some((_, values))) => values.push(argument),
            _ => {
                return Err(Error::config(format!(
                    "kiln job: {argument:?}: expected a hyperparameter, as in --learning_rate 5e-5"
                ))
                .help("values follow the names of their hyperparameters"));
            }
        }
    }
    let value = |values: Vec<&str>| match values[..] {
        [] => Json::Bool(true),
        [one] => one.into(),
        _ => Json::from(values),
    };
    let (files, named): (Vec<_>, Vec<_>) = all.into_iter().partition(|(name, _)| name.replace('-', "_") == "hf_args");
    let mut read = named.into_iter().map(|(name, values)| (name, value(values))).collect::<Vec<_>>();
    for (name, values) in files {
        let [file] = values[..] else {
            return Err(Error::config(format!("--{name}: expected one JSON file, got {}", values.len())));
        };
        // Arguments beside the file win over it, as with `kiln train`.
        let of_file = of_file(file)?.into_iter().filter(|(name, _)| !read.iter().any(|(given, _)| given == name));
        read.extend(of_file.collect::<Vec<_>>());
    }
    Ok(read)
}

/// The hyperparameters in the JSON file `file`.
fn of_file(file: &str) -> Result<Vec<(String, Json)>> {
    let path = Path::new(file);
    let pairs = read::<Pairs>(path)?
        .ok_or_else(|| Error::config(format!("{file}: no such file")).help("give a JSON file of hyperparameters"))?;
    pairs.each_once(path)
}

/// The network interface by which the machines of a job on one machine talk.
pub(crate) const LOOPBACK: &str = "lo";

/// The machines, and the network interface between them.
#[derive(Default, Deserialize)]
struct Resources {
    #[serde(default)]
    hosts: Vec<String>,
    current_host: Option<String>,
    current_instance_type: Option<String>,
    network_interface_name: Option<String>,
}

/// The GPUs of this machine, as `SM_NUM_GPUS` or the type of an instance tells.
fn gpus(variables: &BTreeMap<String, String>, machine: Option<&str>) -> Result<Option<(usize, String)>> {
    if let Some(text) = variables.get("SM_NUM_GPUS").filter(|text| !text.is_empty()) {
        let number = text.trim().parse().map_err(|_| {
            Error::config(format!("SM_NUM_GPUS: expected a number of GPUs, got {text:?}"))
                .help("unset it or correct it")
        })?;
        return Ok(Some((number, format!("SM_NUM_GPUS = {number}"))));
    }
    Ok(machine.and_then(|machine| gpus_of(machine).map(|number| (number, format!("{machine} has {number} GPUs")))))
}

/// The GPUs of SageMaker's instances that have any, by the type's name.
fn gpus_of(machine: &str) -> Option<usize> {
    let (family, size) = machine.strip_prefix("ml.")?.split_once('.')?;
    Some(match (family, size) {
        ("p2", "8xlarge") | ("p3", "16xlarge") | ("p3dn" | "p4d" | "p4de", "24xlarge") => 8,
        ("p5" | "p5e" | "p5en" | "g5" | "g6" | "g6e", "48xlarge") | ("g4dn", "metal") => 8,
        ("p2", "16xlarge") => 16,
        ("p3", "8xlarge") | ("g4dn" | "g5" | "g6" | "g6e", "12xlarge") | ("g5" | "g6" | "g6e", "24xlarge") => 4,
        ("p2" | "p3" | "p5" | "g4dn" | "g5" | "g6" | "g6e", _) => 1,
        _ => return None,
    })
}

fn resources(path: &Path, variables: &BTreeMap<String, String>) -> Result<Resources> {
    if let Some(resources) = read::<Resources>(path)? {
        return Ok(resources);
    }
    let variable = |name: &str| variables.get(name).filter(|text| !text.is_empty());
    let hosts = variable("SM_HOSTS").map(|text| serde_json::from_str(text));
    let hosts = hosts.transpose().map_err(|error| Error::config(format!("SM_HOSTS: {}", json_words(&error))))?;
    Ok(Resources {
        hosts: hosts.unwrap_or_default(),
        current_host: variable("SM_CURRENT_HOST").cloned(),
        current_instance_type: variable("SM_CURRENT_INSTANCE_TYPE").cloned(),
        network_interface_name: variable("SM_NETWORK_INTERFACE_NAME").cloned(),
    })
}

/// The entries of a JSON object in their order, names that are there twice included.
struct Pairs(Vec<(String, Json)>);

impl Pairs {
    /// The entries of the object in `file`.
    fn each_once(self, file: &Path) -> Result<Vec<(String, Json)>> {
        for (index, (name, value)) in self.0.iter().enumerate() {
            if let Some((_, first)) = self.0[..index].iter().find(|(other, _)| other == name) {
                let message = format!("{}: `{name}` is there twice, as {first} and as {value}", file.display());
                return Err(Error::config(message).help("keep one of the two"));
            }
        }
        Ok(self.0)
    }
}

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::gpus_of;

    #[test]
    fn instances_have_their_gpus() {
        for (machine, gpus) in [
            ("ml.p3.2xlarge", Some(1)),
            ("ml.p3.8xlarge", Some(4)),
            ("ml.p3.16xlarge", Some(8)),
            ("ml.p4d.24xlarge", Some(8)),
            ("ml.g4dn.12xlarge", Some(4)),
            ("ml.g5.16xlarge", Some(1)),
            ("ml.g5.48xlarge", Some(8)),
            ("ml.c5.4xlarge", None),
            ("local_gpu", None),
        ] {
            assert_eq!(gpus_of(machine), gpus, "{machine}");
        }
    }
}
