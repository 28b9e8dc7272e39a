//! The request with which a job is started on SageMaker, as `aws sagemaker create-training-job
//! --cli-input-json` takes it, checked against the limits and patterns of the API's shape
//! `CreateTrainingJobRequest`. Nothing is sent.

use kiln_core::error::{Error, Result};
use serde_json::{Map, Value, json};

use super::job_file::{CHECKPOINTS, JobFile, is_address, text_of};

/// The request.
///
/// # Errors
/// All of what the API would refuse, in one message.
pub(super) fn request(job: &JobFile) -> Result<Value> {
    let mut wrong = Wrong::default();
    let hyperparameters = job.hyperparameters();
    let definitions = job.metric_definitions().unwrap_or_else(|error| {
        wrong.add(error.message().to_owned());
        Vec::new()
    });
    let channels = job.channels().unwrap_or_else(|found| {
        wrong.0.extend(found);
        Vec::new()
    });
    name(job, &mut wrong);
    times(job, &mut wrong);

    let mut algorithm = Map::new();
    if let Some(image) = wrong.required("image_uri", &job.image_uri, "the container's address in ECR") {
        wrong.text("image_uri", image, 1, 255);
        algorithm.insert("TrainingImage".into(), json!(image));
    }
    wrong.one_of("input_mode", &job.input_mode, &["File", "FastFile"]);
    algorithm.insert("TrainingInputMode".into(), json!(job.input_mode));
    if !definitions.is_empty() {
        algorithm.insert("MetricDefinitions".into(), json!(definitions));
    }

    let mut request = Map::new();
    let mut put = |name: &str, value: Value| request.insert(name.into(), value);
    put("TrainingJobName", json!(job.name));
    wrong.count("hyperparameters", hyperparameters.len(), 100);
    for twice in job.given_twice() {
        wrong.add(format!("hyperparameters.{twice}: [compiler] gives it, too; remove one"));
    }
    for (name, value) in &hyperparameters {
        wrong.text(&format!("hyperparameters: the name {name:?}"), name, 1, 256);
        wrong.text(&format!("hyperparameters.{name}"), value, 0, 2500);
    }
    if !hyperparameters.is_empty() {
        let all = hyperparameters.iter().map(|(name, value)| (name.clone(), json!(value)));
        put("HyperParameters", all.collect());
    }
    put("AlgorithmSpecification", algorithm.into());
    if let Some(role) = wrong.required("role", &job.role, "the ARN of the role of the job") {
        if !is_role(role) {
            wrong.add(format!(
                "role: expected arn:aws:iam::ACCOUNT:role/NAME with an account of 12 digits, got {role:?}"
            ));
        }
        wrong.text("role", role, 20, 2048);
        put("RoleArn", json!(role));
    }
    wrong.count("channels", channels.len(), 20);
    let mut inputs = Vec::new();
    for (name, channel) in &channels {
        let at = format!("channels.{name}");
        if !is_channel(name) {
            wrong.add(format!("{at}: expected a name of 1 to 64 letters, digits, `.`, `-` and `_`"));
        }
        let Some(uri) = &channel.s3 else {
            let local = channel.local.as_deref().unwrap_or_default();
            wrong
                .add(format!("{at}: {local} is on this machine: copy it to S3 and name its address, s3 = \"s3://..\""));
            continue;
        };
        wrong.address(&at, uri);
        let distribution = channel.distribution.as_deref().unwrap_or("FullyReplicated");
        wrong.one_of(&format!("{at}.distribution"), distribution, &["FullyReplicated", "ShardedByS3Key"]);
        let mut input = json!({ "ChannelName": name, "DataSource": { "S3DataSource": {
            "S3DataType": "S3Prefix", "S3Uri": uri, "S3DataDistributionType": distribution } } });
        if let Some(kind) = &channel.content_type {
            wrong.text(&format!("{at}.content_type"), kind, 0, 256);
            input["ContentType"] = json!(kind);
        }
        if let Some(compression) = &channel.compression {
            wrong.one_of(&format!("{at}.compression"), compression, &["None", "Gzip"]);
            input["CompressionType"] = json!(compression);
        }
        if let Some(mode) = &channel.input_mode {
            wrong.one_of(&format!("{at}.input_mode"), mode, &["File", "FastFile"]);
            input["InputMode"] = json!(mode);
        }
        inputs.push(input);
    }
    if !inputs.is_empty() {
        put("InputDataConfig", inputs.into());
    }
    if let Some(output) = wrong.required("output_path", &job.output_path, "where the model goes, s3://..") {
        wrong.address("output_path", output);
        put("OutputDataConfig", json!({ "S3OutputPath": output }));
    }
    if let Some(machine) = wrong.required("instance_type", &job.instance_type, "such as \"ml.g5.xlarge\"")
        && !is_machine(machine)
    {
        wrong.add(format!("instance_type: expected a machine of SageMaker's such as ml.g5.xlarge, got {machine:?}"));
    }
    for (name, given) in [("instance_count", job.instance_count), ("volume_size", job.volume_size)] {
        if !(1..=i64::from(i32::MAX)).contains(&given) {
            wrong.add(format!("{name}: expected 1 or more, got {given}"));
        }
    }
    put(
        "ResourceConfig",
        json!({ "InstanceType": job.instance_type, "InstanceCount": job.instance_count, "VolumeSizeInGB": job.volume_size }),
    );
    let mut stopping = json!({ "MaxRuntimeInSeconds": job.max_run });
    if job.use_spot_instances {
        put("EnableManagedSpotTraining", json!(true));
        stopping["MaxWaitTimeInSeconds"] = json!(job.max_wait.unwrap_or(job.max_run));
    }
    put("StoppingCondition", stopping);
    if let Some(uri) = &job.checkpoint_s3_uri {
        wrong.address("checkpoint_s3_uri", uri);
        put("CheckpointConfig", json!({ "S3Uri": uri, "LocalPath": CHECKPOINTS }));
    } else if job.use_spot_instances {
        wrong.add(
            "checkpoint_s3_uri: required with use_spot_instances: a job whose machine is taken away continues from there".into(),
        );
    }
    wrong.count("environment", job.environment.len(), 100);
    for (name, value) in &job.environment {
        if !is_variable(name) || name.len() > 512 {
            wrong.add(format!("environment.{name}: expected a name of letters, digits and `_`, no digit first"));
        }
        let text = text_of(value);
        if text.chars().count() > 512 {
            wrong.add(format!("environment.{name}: expected up to 512 characters, got {}", text.chars().count()));
        }
    }
    if !job.environment.is_empty() {
        put("Environment", job.environment.iter().map(|(name, value)| (name.clone(), json!(text_of(value)))).collect());
    }
    wrong.count("tags", job.tags.len(), 50);
    for (name, value) in &job.tags {
        let value = text_of(value);
        for (what, text, least, most) in [("the name", name, 1, 128), ("the value", &value, 0, 256)] {
            wrong.text(&format!("tags.{name}: {what}"), text, least, most);
            if let Some(other) =
                text.chars().find(|&c| !(c.is_alphanumeric() || c.is_whitespace() || "_.:/=+-@".contains(c)))
            {
                wrong.add(format!(
                    "tags.{name}: {what} has {other:?}; letters, digits, spaces and _.:/=+-@ are allowed"
                ));
            }
        }
    }
    if !job.tags.is_empty() {
        put("Tags", job.tags.iter().map(|(name, value)| json!({ "Key": name, "Value": text_of(value) })).collect());
    }
    wrong.into_result("SageMaker would refuse the job")?;
    Ok(request.into())
}

/// Adds the mistakes in the job's name, which is also that of its folder.
pub(super) fn name(job: &JobFile, wrong: &mut Wrong) {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let fits = job.name.len() <= 63 && job.name.chars().all(is_plain);
    if !(fits && ends(job.name.chars().next()) && ends(job.name.chars().last())) {
        wrong.add(format!(
            "name: expected up to 63 letters, digits and `-`, with a letter or digit first and last, got {:?}",
            job.name
        ));
    }
}

/// Adds the mistakes in the times.
pub(super) fn times(job: &JobFile, wrong: &mut Wrong) {
    let most = i64::from(i32::MAX);
    if !(1..=most).contains(&job.max_run) {
        wrong.add(format!("max_run: expected 1 or more seconds, got {}", job.max_run));
    }
    match job.max_wait {
        Some(_) if !job.use_spot_instances => {
            wrong.add("max_wait: has no effect without use_spot_instances = true; remove it".into());
        }
        Some(wait) if wait < job.max_run || wait > most => {
            wrong.add(format!("max_wait: expected max_run ({}) or more seconds, got {wait}", job.max_run));
        }
        None if job.use_spot_instances => {
            wrong.add(
                "max_wait: required with use_spot_instances: seconds of training and of waiting for a machine".into(),
            );
        }
        _ => {}
    }
}

/// All mistakes in a job.
#[derive(Debug, Default)]
pub(super) struct Wrong(pub(super) Vec<String>);

impl Wrong {
    pub(super) fn add(&mut self, complaint: String) {
        self.0.push(complaint);
    }

    fn required<'a>(&mut self, key: &str, given: &'a Option<String>, what: &str) -> Option<&'a String> {
        if given.is_none() {
            self.add(format!("{key}: required: {what}"));
        }
        given.as_ref()
    }

    /// One line of `least` to `most` characters.
    fn text(&mut self, what: &str, text: &str, least: usize, most: usize) {
        let length = text.chars().count();
        if !(least..=most).contains(&length) {
            self.add(format!("{what}: expected {least} to {most} characters, got {length}"));
        } else if text.contains(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']) {
            self.add(format!("{what}: expected one line, got a line feed"));
        }
    }

    pub(super) fn count(&mut self, what: &str, number: usize, most: usize) {
        if number > most {
            self.add(format!("{what}: expected up to {most}, got {number}"));
        }
    }

    fn one_of(&mut self, what: &str, given: &str, known: &[&str]) {
        if !known.contains(&given) {
            self.add(format!("{what}: expected {}, got {given:?}", known.join(" or ")));
        }
    }

    fn address(&mut self, what: &str, given: &str) {
        let place = given.split_once("://").map_or("", |(_, place)| place);
        if !is_address(given) || place.is_empty() || place.starts_with('/') {
            self.add(format!("{what}: expected an address such as s3://BUCKET/FOLDER, got {given:?}"));
        }
        self.text(what, given, 1, 1024);
    }

    /// # Errors
    /// A config error with every complaint, if there is one.
    pub(super) fn into_result(self, what: &str) -> Result<()> {
        match &self.0[..] {
            [] => Ok(()),
            [one] => Err(Error::config(one.clone())),
            all => Err(Error::config(format!("{what}, for {} reasons:\n  - {}", all.len(), all.join("\n  - ")))),
        }
    }
}

/// `arn:aws[a-z\-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+`
fn is_role(text: &str) -> bool {
    let Some((partition, rest)) = text.strip_prefix("arn:aws").and_then(|rest| rest.split_once(":iam::")) else {
        return false;
    };
    let Some((account, path)) = rest.split_once(":role") else { return false };
    let path = path.strip_prefix('/').unwrap_or(path);
    partition.chars().all(|c| c.is_ascii_lowercase() || c == '-')
        && account.len() == 12
        && account.chars().all(|c| c.is_ascii_digit())
        && !path.is_empty()
        && path.chars().all(|c| c.is_ascii_alphanumeric() || "_+=,.@-/".contains(c))
}

/// `[A-Za-z0-9\.\-_]+`, up to 64.
pub(super) fn is_channel(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c))
}

fn is_machine(text: &str) -> bool {
    let parts = text.split('.').collect::<Vec<_>>();
    let plain =
        |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    matches!(parts[..], ["ml", family, size] if plain(family) && plain(size))
}

/// `[a-zA-Z_][a-zA-Z0-9_]*`
pub(super) fn is_variable(name: &str) -> bool {
    let mut characters = name.chars();
    characters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && characters.all(|c| c.is_ascii_alphanumeric() || c == '_')
}
