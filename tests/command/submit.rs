//! `kiln submit` and `kiln attach`: the request for SageMaker, checked by botocore where that is
//! installed, and jobs on this machine, of kiln itself and of a program that stands for it.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::skip::skip;
use crate::common::{fails, kiln, small_run, succeeds, text};

/// A job that SageMaker would take.
const JOB: &str = r#"
name = "gpt2-compiled"
image_uri = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/kiln:0.1-cuda"
role = "arn:aws:iam::123456789012:role/service-role/KilnTraining"
output_path = "s3://bucket/kiln/output"
instance_type = "ml.p3.2xlarge"
volume_size = 50
max_run = 3600
use_spot_instances = true
max_wait = 7200
checkpoint_s3_uri = "s3://bucket/kiln/checkpoints"

[hyperparameters]
model_name_or_path = "gpt2"
per_device_train_batch_size = 20
learning_rate = 5e-5
do_train = true
blocks = [128, 512]

[compiler]

[channels]
train = "s3://bucket/wikitext/train"
config = { s3 = "s3://bucket/configs", local = "configs", distribution = "FullyReplicated", content_type = "text/plain" }

[environment]
HF_HUB_OFFLINE = "1"

[tags]
project = "kiln"

[[metric_definitions]]
name = "train_loss"
regex = "'loss': ([0-9.]+)"
"#;

fn submit(folder: &Path, job: &str, arguments: &[&str]) -> Command {
    fs::write(folder.join("job.toml"), job).unwrap();
    let mut command = kiln(folder);
    command.args(["submit", "job.toml"]).args(arguments);
    command
}

/// The stdout and stderr of a command that ends with `code`.
fn ends(command: &mut Command, code: i32) -> (String, String) {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{command:?}\n{}", text(&output));
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn the_request_for_sagemaker_has_the_fields_of_its_api() {
    let folder = tempfile::tempdir().unwrap();
    let request: Value = serde_json::from_str(&succeeds(&mut submit(folder.path(), JOB, &["--sagemaker"]))).unwrap();
    assert_eq!(
        request,
        json!({
            "TrainingJobName": "gpt2-compiled",
            "HyperParameters": {
                "model_name_or_path": "gpt2", "per_device_train_batch_size": "20", "learning_rate": "5e-5",
                "do_train": "true", "blocks": "[128,512]", "sagemaker_training_compiler_enabled": "true",
                "sagemaker_training_compiler_debug_mode": "false" },
            "AlgorithmSpecification": {
                "TrainingImage": "123456789012.dkr.ecr.eu-west-1.amazonaws.com/kiln:0.1-cuda", "TrainingInputMode": "File",
                "MetricDefinitions": [{ "Name": "train_loss", "Regex": "'loss': ([0-9.]+)" }] },
            "RoleArn": "arn:aws:iam::123456789012:role/service-role/KilnTraining",
            "InputDataConfig": [
                { "ChannelName": "train", "DataSource": { "S3DataSource": { "S3DataType": "S3Prefix",
                    "S3Uri": "s3://bucket/wikitext/train", "S3DataDistributionType": "FullyReplicated" } } },
                { "ChannelName": "config", "DataSource": { "S3DataSource": { "S3DataType": "S3Prefix",
                    "S3Uri": "s3://bucket/configs", "S3DataDistributionType": "FullyReplicated" } },
                  "ContentType": "text/plain" }],
            "OutputDataConfig": { "S3OutputPath": "s3://bucket/kiln/output" },
            "ResourceConfig": { "InstanceType": "ml.p3.2xlarge", "InstanceCount": 1, "VolumeSizeInGB": 50 },
            "EnableManagedSpotTraining": true,
            "StoppingCondition": { "MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 7200 },
            "CheckpointConfig": { "S3Uri": "s3://bucket/kiln/checkpoints", "LocalPath": "/opt/ml/checkpoints" },
            "Environment": { "HF_HUB_OFFLINE": "1" },
            "Tags": [{ "Key": "project", "Value": "kiln" }] })
    );
    let out = ["--sagemaker", "--out", "request.json"];
    succeeds(&mut submit(folder.path(), JOB, &out));
    let written: Value = serde_json::from_slice(&fs::read(folder.path().join("request.json")).unwrap()).unwrap();
    assert_eq!(written, request);
}

/// The API's own shape says the same, by the model of it that botocore ships: names, types,
/// lengths, patterns and enumerations.
#[test]
fn botocore_takes_the_request() {
    const CHECK: &str = r#"
import json, re, sys
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator
model = ServiceModel(Loader().load_service_model("sagemaker", "service-2"), "sagemaker")
shape = model.operation_model("CreateTrainingJob").input_shape
wrong = []
def check(shape, value, at):
    if shape.type_name == "structure":
        for name, inner in value.items():
            check(shape.members[name], inner, at + "." + name)
    elif shape.type_name == "list":
        for inner in value:
            check(shape.member, inner, at + "[]")
    elif shape.type_name == "map":
        for name, inner in value.items():
            check(shape.key, name, at + " key")
            check(shape.value, inner, at + "." + name)
    limits = shape.metadata
    size = len(value) if hasattr(value, "__len__") else value
    if "max" in limits and size > limits["max"] or "min" in limits and size < limits["min"]:
        wrong.append(f"{at}: {size} is not within {limits}")
    if "enum" in limits and value not in limits["enum"]:
        wrong.append(f"{at}: {value} is none of the API's")
    pattern = model._service_description["shapes"][shape.name].get("pattern")
    # Classes of characters as Java has them.
    for java, python in [("\\p{L}", "\\w"), ("\\p{Z}", "\\s"), ("\\p{N}", "\\d")]:
        pattern = pattern and pattern.replace(java, python)
    if pattern and not re.fullmatch(pattern, value):
        wrong.append(f"{at}: {value!r} does not match {pattern}")
for path in sys.argv[1:]:
    request = json.load(open(path))
    report = ParamValidator().validate(request, shape)
    if report.has_errors():
        wrong.append(report.generate_report())
    check(shape, request, "request")
print("\n".join(wrong))
sys.exit(bool(wrong))
"#;
    let python = std::env::var("KILN_PYTHON").unwrap_or_else(|_| "python3".into());
    let pythons = [python.as_str(), "python3", "/usr/bin/python3"];
    let has_botocore = |python: &&&str| {
        let asked = Command::new(python).args(["-c", "import botocore"]).stderr(Stdio::null()).status();
        asked.is_ok_and(|status| status.success())
    };
    let Some(python) = pythons.iter().find(has_botocore) else {
        return skip!("botocore", "{python} has no botocore: pip install botocore, or name another with KILN_PYTHON");
    };
    let folder = tempfile::tempdir().unwrap();
    // The largest and strangest that Kiln lets pass, and the smallest.
    let mut largest = JOB.replace("name = \"gpt2-compiled\"", &format!("name = \"{}\"", "a-1".repeat(21)));
    let many = |number: usize, line: &dyn Fn(usize) -> String| (0..number).map(line).collect::<String>();
    largest =
        largest.replace("[compiler]", &(many(93, &|at| format!("h{at} = \"{}\"\n", "ä".repeat(2500))) + "[compiler]"));
    largest = largest.replace(
        "[environment]",
        &(many(18, &|at| format!("c.-_{at} = \"s3://b\"\n")).replace("c.-_", "c-_") + "[environment]"),
    );
    largest += &many(39, &|at| format!("[[metric_definitions]]\nname = \"m{at}\"\nregex = '{}'\n", "(.)".repeat(166)));
    let smallest = "role = \"arn:aws-cn:iam::123456789012:role/a\"\nimage = \"i\"\noutput_path = \"s3://b\"\ninstance_type = \"ml.m5.large\"";
    let jobs = [("one", JOB), ("largest", &largest), ("smallest", smallest)];
    let written = jobs.map(|(name, job)| {
        let out = format!("{name}.json");
        succeeds(&mut submit(folder.path(), job, &["--sagemaker", "--out", &out]));
        folder.path().join(out)
    });
    let checked = Command::new(python).args(["-c", CHECK]).args(&written).output().unwrap();
    assert!(checked.status.success(), "{}", text(&checked));
    // The check itself sees what is wrong.
    let mut request: Value = serde_json::from_slice(&fs::read(&written[0]).unwrap()).unwrap();
    request["TrainingJobName"] = json!("a_b");
    request["Nothing"] = json!(1);
    fs::write(&written[0], request.to_string()).unwrap();
    let checked = Command::new(python).args(["-c", CHECK]).arg(&written[0]).output().unwrap();
    assert!(!checked.status.success());
}

#[test]
fn all_that_sagemaker_would_refuse_is_said_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let metrics = "[[metric_definitions]]\nname = \"m\"\nregex = \"(x)\"\n".repeat(41);
    let hyperparameters = (0..101).map(|at| format!("h{at} = 1\n")).collect::<String>();
    let channels = (0..20).map(|at| format!("c{at} = \"s3://b/c\"\n")).collect::<String>();
    let job = format!(
        "name = \"-my_job\"\nrole = \"me\"\ninstance_type = \"p3\"\ninstance_count = 0\nuse_spot_instances = true\nmax_run = 100\n\
         max_wait = 99\noutput_path = \"out\"\ninput_mode = \"Pipe\"\n[hyperparameters]\nlong = \"{}\"\n\
         sagemaker_training_compiler_enabled = \"false\"\n{hyperparameters}[compiler]\n[channels]\n{channels}\
         \"a b\" = \"s3://b\"\nhere = \"data\"\n[environment]\n1A = \"x\"\n{metrics}",
        "x".repeat(2501)
    );
    let (_, error) = ends(&mut submit(folder.path(), &job, &["--sagemaker"]), 2);
    for part in [
        "job.toml: SageMaker would refuse the job, for 18 reasons:",
        "name: expected up to 63 letters, digits and `-`",
        "image_uri: required",
        "role: expected arn:aws:iam::ACCOUNT:role/NAME",
        "role: expected 20 to 2048 characters, got 2",
        "output_path: expected an address such as s3://BUCKET/FOLDER, got \"out\"",
        "input_mode: expected File or FastFile, got \"Pipe\"",
        "instance_type: expected a machine of SageMaker's such as ml.g5.xlarge, got \"p3\"",
        "instance_count: expected 1 or more, got 0",
        "max_wait: expected max_run (100) or more seconds, got 99",
        "checkpoint_s3_uri: required with use_spot_instances",
        "metric_definitions: expected 1 to 40 definitions, got 41",
        "hyperparameters: expected up to 100, got 105",
        "hyperparameters.long: expected 0 to 2500 characters, got 2501",
        "hyperparameters.sagemaker_training_compiler_enabled: [compiler] gives it, too",
        "channels: expected up to 20, got 22",
        "channels.a b: expected a name of 1 to 64 letters",
        "channels.here: data is on this machine: copy it to S3",
        "environment.1A: expected a name of letters, digits and `_`, no digit first",
    ] {
        assert!(error.contains(part), "{part}\nis not in\n{error}");
    }
    let (_, error) = ends(&mut submit(folder.path(), "instance_typ = \"ml.m5.large\"", &["--sagemaker"]), 2);
    assert!(
        error.contains("job.toml: instance_typ: unknown key") && error.contains("did you mean `instance_type`?"),
        "{error}"
    );
    let (_, error) = ends(&mut submit(folder.path(), "max_run = \"1h\"", &["--sagemaker"]), 2);
    assert!(error.contains("job.toml: max_run: expected "), "{error}");
}

/// A job that is run by the shell script `script`, which is given `job --root ROOT` as kiln is.
fn scripted(folder: &Path, script: &str, more: &str) {
    fs::write(folder.join("program"), format!("#!/bin/sh\nroot=$3\n{script}\n")).unwrap();
    fs::set_permissions(folder.join("program"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(folder.join("job.toml"), format!("binary = \"{}/program\"\n{more}", folder.display())).unwrap();
}

fn run(folder: &Path, more: &[&str]) -> Command {
    let mut command = kiln(folder);
    command.args(["submit", "job.toml", "--local"]).args(more);
    command
}

fn status(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("jobs/job/status.json")).unwrap()).unwrap()
}

#[test]
fn a_local_job_finds_what_a_container_finds() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::create_dir(folder.join("texts")).unwrap();
    fs::write(folder.join("texts/a.txt"), "aaa\n").unwrap();
    fs::write(folder.join("one.toml"), "bbb\n").unwrap();
    let script = r#"
cd "$root" && cat input/config/*.json && cat input/data/train/a.txt input/data/config/one.toml
echo "name $TRAINING_JOB_NAME own $OWN channel ${SM_CHANNEL_TRAIN:-unset}" >&2
echo x > model/config.json; echo y > output/data/figures.txt; echo kept >> checkpoints/step"#;
    let keys = "[hyperparameters]\nlearning_rate = 5e-5\nname = \"a b\"\nflag = false\n[compiler]\ndebug = true\n[environment]\nOWN = 7\n\
                [channels]\ntrain = \"texts\"\nconfig = \"${PLACE}/one.toml\"\n";
    scripted(folder, script, keys);
    let mut command = run(folder, &[]);
    let done = succeeds(command.env("SM_CHANNEL_TRAIN", "/elsewhere").env("PLACE", folder));
    for part in [
        "Starting - Starting the training job job\n",
        "Downloading - Preparing the input: train from ",
        "Training - Training in progress as a process of ",
        "\"sagemaker_training_compiler_enabled\": \"true\"",
        "\"sagemaker_training_compiler_debug_mode\": \"true\"",
        "\"learning_rate\": \"5e-5\"",
        "\"name\": \"a b\"",
        "\"flag\": \"false\"",
        "\"TrainingInputMode\": \"File\"",
        "\"current_host\": \"algo-1\"",
        "aaa\nbbb\n",
        "name job own 7 channel unset\n",
        "Uploading - Uploading the results to jobs/job/output\n",
        "Completed - Training job completed\n",
    ] {
        assert!(done.contains(part), "{part}\nis not in\n{done}");
    }
    for archive in ["model.tar.gz", "output.tar.gz"] {
        assert!(folder.join("jobs/job/output").join(archive).is_file(), "{archive}");
    }
    let now = status(folder);
    assert_eq!((&now["status"], &now["exit_code"], &now["starts"]), (&json!("Completed"), &json!(0), &json!(1)));
    let states =
        now["transitions"].as_array().unwrap().iter().map(|one| one["status"].as_str().unwrap()).collect::<Vec<_>>();
    assert_eq!(states, ["Starting", "Downloading", "Training", "Uploading", "Completed"]);

    let (_, again) = ends(run(folder, &[]).env("PLACE", folder), 2);
    assert!(again.contains("the job job is complete") && again.contains("--name NAME"), "{again}");
    succeeds(run(folder, &["--name", "other", "--jobs-dir", "more"]).env("PLACE", folder));
    let shown = succeeds(kiln(folder).args(["attach", "job"]));
    assert!(shown.contains("aaa\nbbb\n") && shown.contains("status         Completed, exit code 0"), "{shown}");
    let (_, error) = ends(kiln(folder).args(["attach", "jub"]), 2);
    assert!(error.contains("there is no job \"jub\"") && error.contains("did you mean `job`?"), "{error}");
}

#[test]
fn a_failed_job_says_why_and_has_its_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    scripted(folder, "echo 'no such column: labels' > $root/output/failure; exit 3", "");
    let (done, error) = ends(&mut run(folder, &[]), 3);
    assert!(done.contains("Failed - no such column: labels\n"), "{done}");
    assert!(error.contains("error: the job job: no such column: labels\n"), "{error}");
    let now = status(folder);
    assert_eq!((&now["status"], &now["exit_code"]), (&json!("Failed"), &json!(3)));
    scripted(folder, "echo all; echo 'Error: no runtime'; echo; exit 126", "");
    fails(
        &mut run(folder, &["--name", "last"]),
        126,
        &["error: the job last: the job ended with exit code 126: Error: no runtime"],
    );
    // It can be tried again, and then has nothing of the first time.
    scripted(folder, "test ! -e $root/output/failure", "");
    succeeds(&mut run(folder, &[]));
    assert_eq!(status(folder)["starts"], 2);
    scripted(folder, "true", "binary2 = 1");
    fails(&mut run(folder, &["--name", "x"]), 2, &["binary2: unknown key", "did you mean `binary`?"]);
}

#[test]
fn a_local_job_is_refused_with_all_reasons() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    scripted(
        folder,
        "true",
        "instance_count = 0\nmax_run = 0\n[channels]\ntrain = \"nowhere\"\nfar = \"s3://b/c\"\nTrain = \".\"",
    );
    let (_, error) = ends(&mut run(folder, &["--name", "a/b"]), 2);
    for part in [
        "name: expected up to 63 letters",
        "instance_count: the job is run in as many processes of this machine, expected 1 to 64, got 0",
        "max_run: expected 1 or more seconds, got 0",
        "channels.Train: train has the same variable, SM_CHANNEL_TRAIN; rename one",
    ] {
        assert!(error.contains(part), "{part}\nis not in\n{error}");
    }
    assert!(!folder.join("jobs").exists(), "nothing is made for a job that is refused");
    scripted(folder, "true", "[channels]\ntrain = \"nowhere\"\nfar = \"s3://b/c\"");
    let (_, error) = ends(&mut run(folder, &[]), 2);
    for part in ["channels.train: cannot read ", "nowhere", "channels.far: s3://b/c is not on this machine"] {
        assert!(error.contains(part), "{part}\nis not in\n{error}");
    }
    fs::create_dir_all(folder.join("jobs/job")).unwrap();
    fs::write(folder.join("jobs/job/mine"), "").unwrap();
    scripted(folder, "true", "");
    let (_, error) = ends(&mut run(folder, &[]), 2);
    assert!(error.contains("holds no job of Kiln's"), "{error}");
}

#[test]
fn a_signal_reaches_the_job_and_time_is_counted_over_its_starts() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let script = "trap 'echo saving; exit 143' TERM\necho begun\nwhile :; do sleep 0.05; done";
    scripted(folder, script, "max_run = 8");
    let mut launcher = run(folder, &[]).stdout(Stdio::null()).spawn().unwrap();
    let log = || fs::read_to_string(folder.join("jobs/job/log.txt")).unwrap_or_default();
    let since = Instant::now();
    while !log().contains("begun") {
        assert!(since.elapsed() < Duration::from_secs(60), "{}", log());
        std::thread::sleep(Duration::from_millis(10));
    }
    let (_, error) = ends(&mut run(folder, &[]), 2);
    assert!(error.contains("the job job is going on"), "{error}");
    let shown = succeeds(kiln(folder).args(["attach", "job", "--no-wait"]));
    assert!(shown.contains("begun\n") && shown.contains("status         InProgress (Training)"), "{shown}");
    assert!(Command::new("kill").args(["-TERM", &launcher.id().to_string()]).status().unwrap().success());
    assert_eq!(launcher.wait().unwrap().code(), Some(143));
    let first = status(folder);
    assert_eq!((&first["status"], &first["exit_code"]), (&json!("Stopped"), &json!(143)));
    assert!(log().contains("saving\n") && log().contains("Stopped - SIGTERM: submit the job again"), "{}", log());

    // A launcher that is killed leaves a job that stops, and the seconds that it has counted.
    let stopped = first["training_seconds"].as_f64().unwrap();
    let mut launcher = run(folder, &[]).stdout(Stdio::null()).spawn().unwrap();
    while status(folder)["training_seconds"].as_f64().unwrap() <= stopped {
        std::thread::sleep(Duration::from_millis(10));
    }
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    let since = Instant::now();
    while log().matches("saving\n").count() < 2 {
        assert!(since.elapsed() < Duration::from_secs(60), "{}", log());
        std::thread::sleep(Duration::from_millis(10));
    }
    let shown = succeeds(kiln(folder).args(["attach", "job"]));
    assert!(shown.contains("Failed") && shown.contains("the process that ran it was killed"), "{shown}");
    let first = status(folder);

    let before = first["training_seconds"].as_f64().unwrap();
    fails(&mut run(folder, &[]), 143, &["MaxRuntimeExceeded: the 8 s of max_run are over"]);
    let second = status(folder);
    let trained = second["training_seconds"].as_f64().unwrap();
    assert_eq!((&second["status"], &second["starts"]), (&json!("Stopped"), &json!(3)));
    // A job without a run is told by what its launcher knows.
    let shown = succeeds(kiln(folder).args(["describe", "jobs/job"]));
    assert!(shown.contains("Stopped\n") && shown.contains("MaxRuntimeExceeded: the 8 s"), "{shown}");
    assert!(before < trained && trained >= 8.0, "{before} {trained}");
    let (_, error) = ends(&mut run(folder, &[]), 2);
    assert!(error.contains("max_run: the 3 starts of the job job have used its 8 s"), "{error}");
}

#[test]
fn a_job_is_stopped_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    scripted(folder, "trap 'echo saving; exit 143' TERM\necho begun\nwhile :; do sleep 0.05; done", "");
    let launcher = run(folder, &[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let log = || fs::read_to_string(folder.join("jobs/job/log.txt")).unwrap_or_default();
    let since = Instant::now();
    while !log().contains("begun") {
        assert!(since.elapsed() < Duration::from_secs(60), "{}", log());
        std::thread::sleep(Duration::from_millis(10));
    }
    let (_, error) = ends(kiln(folder).args(["stop", "jub"]), 2);
    assert!(error.contains("there is no job \"jub\"") && error.contains("did you mean `job`?"), "{error}");
    let shown = succeeds(kiln(folder).args(["stop", "job"]));
    assert!(
        shown.contains("status         Stopped, exit code 143") && shown.contains("submit the job again"),
        "{shown}"
    );
    assert_eq!(crate::common::ended(launcher).status.code(), Some(143));
    assert!(log().contains("saving\n"), "{}", log());
    let (_, error) = ends(kiln(folder).args(["stop", "job"]), 2);
    assert!(error.contains("the job job is not going on: Stopped"), "{error}");
    // The next start is not stopped by what was asked of this one.
    scripted(folder, "echo whole", "");
    succeeds(&mut run(folder, &[]));
    assert_eq!(status(folder)["status"], "Completed");
}

const CONFIG: &str = r#"
[model]
kind = "gpt2"
n_layer = 1
n_head = 1
n_embd = 16
n_positions = 16
[data]
task = "clm"
format = "text"
train = ["${SM_CHANNEL_TRAIN}/*.txt"]
block_size = 16
[tokenizer]
train_vocab_size = 300
[trainer]
max_steps = 300
per_device_train_batch_size = 4
logging_steps = 5
save_strategy = "no"
"#;

/// The spot machine that is taken away: SIGTERM, a checkpoint, and the same job again.
#[test]
fn a_job_that_is_stopped_continues_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let make = |path: &str, content: &str| {
        fs::create_dir_all(folder.join(path).parent().unwrap()).unwrap();
        fs::write(folder.join(path), content).unwrap();
    };
    make("config/gpt2.toml", CONFIG);
    make("texts/a.txt", &(0..400).map(|at| format!("line {at} of {}\n", at * at)).collect::<String>());
    make(
        "job.toml",
        "use_spot_instances = true\nmax_run = 600\nmax_wait = 900\n[hyperparameters]\nlearning_rate = \"1e-3\"\n\
         [channels]\nconfig = \"config\"\ntrain = \"texts\"\n",
    );
    let done = succeeds(&mut run(folder, &["--name", "straight"]));
    assert!(done.contains("'train_loss'") && done.contains("Training seconds: "), "{done}");
    let mut launcher = run(folder, &[]).stdout(Stdio::null()).spawn().unwrap();
    let log = || fs::read_to_string(folder.join("jobs/job/log.txt")).unwrap_or_default();
    let since = Instant::now();
    while !log().contains("'loss'") {
        assert!(since.elapsed() < Duration::from_secs(120), "{}", log());
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(Command::new("kill").args(["-INT", &launcher.id().to_string()]).status().unwrap().success());
    assert_eq!(launcher.wait().unwrap().code(), Some(130), "{}", log());
    assert_eq!(status(folder)["status"], "Stopped");
    // Its run stands as the job does; the job continues it, not a command on the run.
    let shown = succeeds(kiln(folder).args(["describe", "jobs/job"]));
    for part in ["Stopped\n", "SIGINT: submit the job again", "gpt2 clm\n", " of 300\n", "last row"] {
        assert!(shown.contains(part), "{part}\nis not in\n{shown}");
    }
    assert!(!shown.contains("--resume"), "{shown}");
    let stopped = succeeds(&mut run(folder, &[]));
    assert!(stopped.contains("\nManaged Spot Training savings: 0.0%\n"), "{stopped}");
    let listed = succeeds(kiln(folder).args(["runs", "jobs"]));
    assert_eq!(listed.matches("Completed  300/300").count(), 2, "{listed}");
    assert!(!listed.contains("Unreadable"), "{listed}");
    let model = |job: &str| fs::read(folder.join("jobs").join(job).join("opt/ml/model/model.safetensors")).unwrap();
    assert!(model("job") == model("straight"), "the final weights differ");
    let shown = succeeds(kiln(folder).args(["attach", "job"]));
    for part in
        ["Completed, exit code 0", "process (2 starts)", "METRIC", "\nloss  ", "\ntrain_loss  ", "\ntraining_seconds  "]
    {
        assert!(shown.contains(part), "{part}\nis not in\n{shown}");
    }

    // A limit of time that the run itself knows.
    make("job.toml", "[hyperparameters]\nmax_minutes = 0.0001\n[channels]\nconfig = \"config\"\ntrain = \"texts\"\n");
    let done = succeeds(&mut run(folder, &["--name", "short"]));
    assert!(done.contains("Stopped - stopped after step ") && done.contains("max_minutes is over"), "{done}");
    make("job.toml", "[hyperparameters]\nlearning_rat = \"1\"\n[channels]\nconfig = \"config\"\ntrain = \"texts\"\n");
    fails(&mut run(folder, &["--name", "wrong"]), 2, &["error: the job wrong: ", "learning_rat"]);
}

/// The requests beside the example's jobs are what the jobs say; `KILN_WRITE_DOCS=1` writes them.
#[test]
fn the_examples_have_their_requests() {
    let repository = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    for mode in ["native", "compiled"] {
        let folder = tempfile::tempdir().unwrap();
        let written = folder.path().join("request.json");
        let mut command = kiln(folder.path());
        command.current_dir(repository).args([
            "submit",
            &format!("examples/sagemaker/{mode}.toml"),
            "--sagemaker",
            "--out",
        ]);
        succeeds(command.arg(&written));
        let kept = repository.join(format!("examples/sagemaker/{mode}.json"));
        if std::env::var_os("KILN_WRITE_DOCS").is_some() {
            fs::copy(&written, &kept).unwrap();
        }
        assert_eq!(fs::read_to_string(&written).unwrap(), fs::read_to_string(&kept).unwrap(), "{}", kept.display());
    }
}

/// A job of two machines is run in two processes of this one.
#[test]
fn a_local_job_of_two_instances_trains_in_two_ranks() {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|folder| folder.join("mpirun").is_file()) {
        return skip!("mpi", "no mpirun in PATH: install openmpi-bin");
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let config = small_run::write(folder, "sequence-classification");
    fs::create_dir(folder.join("data")).unwrap();
    fs::rename(folder.join("data.jsonl"), folder.join("data/data.jsonl")).unwrap();
    let text =
        fs::read_to_string(&config).unwrap().replace("train = \"data.jsonl\"", "train = \"/opt/ml/input/data/train\"");
    fs::create_dir(folder.join("configs")).unwrap();
    fs::write(folder.join("configs/run.toml"), text).unwrap();
    let job = "name = \"two\"\ninstance_count = 2\n[channels]\ntrain = { local = \"data\" }\nconfig = { local = \"configs\" }\n";
    let mut command = submit(folder, job, &["--local", "--process"]);
    command.env("RAYON_NUM_THREADS", "1");
    let said = succeeds(&mut command);
    assert!(said.contains("12 = 3 x 2 micro-batches x 2 devices") && said.contains("Completed"), "{said}");
    assert!(folder.join("jobs/two/opt/ml/model/model.safetensors").is_file());
    assert!(folder.join("jobs/two/opt/ml/checkpoints/run/ranks/1.log").is_file());
}

/// Names of SageMaker's estimators: handed over, told, or refused.
#[test]
fn names_of_the_estimators_are_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let estimator = "entry_point = \"run_glue.py\"\nbase_job_name = \"glue\"\ntransformers_version = \"4.17\"\ndisable_profiler = true\n\
                     distribution = { smdistributed = { dataparallel = { enabled = true } } }\n";
    let of = |job: &str| JOB.replace("name = \"gpt2-compiled\"\n", job);
    let (request, said) = ends(&mut submit(folder, &of(estimator), &["--sagemaker"]), 0);
    let request: Value = serde_json::from_str(&request).unwrap();
    let hyperparameters = &request["HyperParameters"];
    assert_eq!(request["TrainingJobName"], "glue");
    assert_eq!(hyperparameters["sagemaker_program"], "run_glue.py");
    assert_eq!(hyperparameters["sagemaker_distributed_dataparallel_enabled"], "true");
    for part in [
        "transformers_version = \"4.17\": no effect: image_uri, or binary, names",
        "disable_profiler = true: no effect",
    ] {
        assert!(said.contains(part), "{said}");
    }
    let mpi = "name = \"mpi\"\ndistribution = { mpi = { enabled = true, processes_per_host = 2 } }\n";
    let (request, _) = ends(&mut submit(folder, &of(mpi), &["--sagemaker"]), 0);
    let request: Value = serde_json::from_str(&request).unwrap();
    assert_eq!(request["HyperParameters"]["sagemaker_mpi_num_of_processes_per_host"], "2");
    for (job, part) in [
        ("file_system_id = \"fs-1\"\n", "file_system_id: not supported"),
        ("distribution = { smdistributed = { modelparallel = {} } }\n", "every device has the whole model"),
        ("distribution = { horovod = {} }\n", "horovod: expected smdistributed, torch_distributed"),
    ] {
        let (_, said) = ends(&mut submit(folder, &of(job), &["--sagemaker"]), 2);
        assert!(said.contains(part), "{said}");
    }
}
