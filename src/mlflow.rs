//! The rows of a run on an MLflow server (`trainer.report_to = "mlflow"`), by MLflow's REST API 2.0
//! (<https://mlflow.org/docs/latest/api_reference/rest-api.html>) and the environment variables of
//! `transformers`' `MLflowCallback`.
//!
//! A thread of its own sends: a server that is slow, silent or gone holds up no step and ends no
//! run. `mlflow.json` in the run folder names the run on the server, which a run that is resumed
//! goes on with.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use kiln_core::clock;
use kiln_core::error::{Error, Result, one_line};
use kiln_core::files::{read_json_if_there, write_json};
use kiln_core::metrics::{Record, Value as Figure};
use kiln_core::signals;
use kiln_train::TrainingTask;
use kiln_train::arguments::Integration;
use kiln_train::plan::TrainPlan;
use kiln_train::run_folder::MLFLOW;
use kiln_train::trainer::{Callback, Control, Progress, Trainer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// MLflow's limits for one request (`mlflow.utils.validation`).
const MAX_METRICS: usize = 1000;
const MAX_PARAMS: usize = 100;
/// Bytes of a parameter's value.
const MAX_PARAM: usize = 6000;
/// A complete run waits so long for a server that has not taken all rows yet.
const LAST_WORD: Duration = Duration::from_secs(10);
/// A run that is stopped or fails waits so long: who stops it may not wait longer.
const PARTING: Duration = Duration::from_secs(3);
/// The time between the first attempt to reach a server and the second, which doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest time between two attempts to reach a server.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Rows are forgotten, oldest first, while a server cannot be reached: some hours of logging.
const MAX_WAITING: usize = 100_000;
/// Bytes of an answer that are read.
const MAX_ANSWER: u64 = 1 << 20;

/// `trainer` with the reporters to services that its plan names: MLflow, by the environment.
///
/// # Errors
/// A plan that reports to MLflow, and an environment that does not say where or how.
pub fn with_reporters<T: TrainingTask>(trainer: Trainer<T>) -> Result<Trainer<T>> {
    if !trainer.plan().logging.report_to.contains(&Integration::Mlflow) {
        return Ok(trainer);
    }
    let reporter = Mlflow::from_environment()?;
    Ok(trainer.with_callback(reporter))
}

/// A callback that sends rows to an MLflow server.
///
/// It ends the run on the server when it is dropped, which the Trainer does when a training has
/// ended and its status is written.
pub struct Mlflow {
    settings: Option<Settings>,
    sending: Option<Sending>,
    is_complete: bool,
}

/// The thread that sends, and the way to it.
struct Sending {
    messages: Sender<Message>,
    /// Says what the server lacks, when the thread ends.
    ended: Receiver<Lacking>,
}

enum Message {
    Row(Vec<Metric>),
    /// MLflow's status of a run that ends, and how long it waits for the server.
    End(&'static str, Duration),
}

/// The rest that the server does not have.
#[derive(Debug, Clone, Copy, Default)]
struct Lacking {
    figures: usize,
    /// It does not know how the run has ended.
    end: bool,
}

/// One figure, as MLflow's `Metric`.
#[derive(Serialize)]
struct Metric {
    key: String,
    /// A number, or protobuf's text of one that JSON does not have.
    value: Value,
    /// Milliseconds since 1970.
    timestamp: u64,
    step: u64,
}

/// The settings of the environment.
struct Settings {
    /// The address of the server, without a slash at its end.
    uri: String,
    experiment: Option<String>,
    experiment_id: Option<String>,
    /// A run of the server to go on with.
    run_id: Option<String>,
    tags: Map<String, Value>,
    max_params: usize,
    authorization: Option<String>,
    timeout: Duration,
}

/// `mlflow.json`
#[derive(Serialize, Deserialize)]
struct ServerRun {
    tracking_uri: String,
    run_id: String,
}

impl Mlflow {
    /// The reporter that the environment describes: `MLFLOW_TRACKING_URI` (needed),
    /// `MLFLOW_EXPERIMENT_NAME` or `MLFLOW_EXPERIMENT_ID`, `MLFLOW_RUN_ID`, `MLFLOW_TAGS`,
    /// `MLFLOW_MAX_LOG_PARAMS`, `MLFLOW_TRACKING_USERNAME` with `MLFLOW_TRACKING_PASSWORD` or
    /// `MLFLOW_TRACKING_TOKEN`, `MLFLOW_HTTP_REQUEST_TIMEOUT` (seconds).
    ///
    /// # Errors
    /// A variable that is missing, malformed, or asks for something that this reporter does not do.
    pub fn from_environment() -> Result<Self> {
        let settings = Settings::new(&|name| std::env::var(name).ok().filter(|value| !value.is_empty()))?;
        Ok(Self { settings: Some(settings), sending: None, is_complete: false })
    }

    fn send(&self, progress: &Progress, row: &Record) {
        let Some(sending) = &self.sending else { return };
        let timestamp = milliseconds();
        let metric = |(name, figure): (&str, &Figure)| {
            let value = match figure {
                Figure::Count(count) => json!(count),
                Figure::Real(real) if real.is_nan() => json!("NaN"),
                Figure::Real(real) if real.is_infinite() => json!(if *real > 0.0 { "Infinity" } else { "-Infinity" }),
                Figure::Real(real) => json!(real),
                Figure::Missing => return None,
            };
            // The step is the axis.
            (name != "step").then(|| Metric { key: sanitized(name), value, timestamp, step: progress.step })
        };
        // A thread that has ended has said why.
        let _ = sending.messages.send(Message::Row(row.fields().filter_map(metric).collect()));
    }

    fn end(&mut self, status: &'static str, limit: Duration) {
        let Some(Sending { messages, ended }) = self.sending.take() else { return };
        let _ = messages.send(Message::End(status, limit));
        let rest = "metrics.jsonl has every row";
        match ended.recv_timeout(limit) {
            Ok(Lacking { figures: 0, end: false }) => {}
            Ok(Lacking { figures: 0, end: true }) => tracing::warn!("MLflow does not know that the run has ended"),
            Ok(Lacking { figures, .. }) => tracing::warn!("MLflow does not have {figures} figures of this run: {rest}"),
            Err(RecvTimeoutError::Timeout) => {
                tracing::warn!("the MLflow server has not taken the last figures within {} s: {rest}", limit.as_secs())
            }
            Err(RecvTimeoutError::Disconnected) => {
                tracing::warn!("the thread that reports to MLflow has failed: {rest}");
            }
        }
    }
}

impl<M> Callback<M> for Mlflow {
    fn reports_to(&self) -> Option<Integration> {
        Some(Integration::Mlflow)
    }

    fn on_train_begin(&mut self, plan: &TrainPlan) {
        // A run that goes on after it ran out of memory begins again.
        let Some(settings) = self.settings.take() else { return };
        let folder = match plan.run.expanded_output_dir() {
            Ok(folder) => folder,
            Err(error) => return tracing::warn!("{error}"),
        };
        let name = plan.run.name.clone().or_else(|| Some(folder.file_name()?.to_string_lossy().into_owned()));
        let (messages, received) = mpsc::channel();
        let (finished, ended) = mpsc::channel();
        let params = params(&folder, settings.max_params);
        let sender = RunOnServer::new(settings, folder, name, params);
        let started = std::thread::Builder::new().name("mlflow".into()).spawn(move || {
            let _ = finished.send(sender.run(&received));
        });
        match started {
            Ok(_) => self.sending = Some(Sending { messages, ended }),
            Err(error) => tracing::warn!("no thread to report to MLflow: {error}"),
        }
    }

    fn on_log(&mut self, progress: &Progress, row: &Record) {
        self.send(progress, row);
    }

    fn on_evaluate(&mut self, progress: &Progress, row: &Record, _control: &mut Control) {
        self.send(progress, row);
    }

    fn on_train_end(&mut self, progress: &Progress, summary: &Record) {
        self.send(progress, summary);
        self.is_complete = true;
    }
}

impl Drop for Mlflow {
    fn drop(&mut self) {
        match (self.is_complete, signals::received()) {
            (true, _) => self.end("FINISHED", LAST_WORD),
            (false, Some(_)) => self.end("KILLED", PARTING),
            (false, None) => self.end("FAILED", PARTING),
        }
    }
}

impl Settings {
    fn new(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        const URI: &str = "MLFLOW_TRACKING_URI";
        let server = "set MLFLOW_TRACKING_URI to the address of an MLflow server, such as http://127.0.0.1:5000 \
                      (`mlflow server` starts one)";
        let refused = |message: String| Error::config(format!("trainer.report_to = \"mlflow\": {message}"));
        let uri = variable(URI).ok_or_else(|| refused(format!("{URI} is not set")).help(server))?;
        if uri.contains('@') {
            return Err(refused(format!("{URI}: it holds a user and a password"))
                .help("set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead"));
        }
        let parsed = uri.parse::<ureq::http::Uri>().ok();
        let is_address = parsed.as_ref().is_some_and(|parsed| {
            matches!(parsed.scheme_str(), Some("http" | "https")) && parsed.host().is_some_and(|host| !host.is_empty())
        });
        if !is_address {
            return Err(refused(format!("{URI}: expected http://HOST:PORT or https://HOST, got {uri:?}")).help(server));
        }
        let is_on = |name: &str| {
            variable(name).is_some_and(|value| !matches!(value.to_ascii_lowercase().as_str(), "0" | "false" | "no"))
        };
        for name in ["MLFLOW_TRACKING_INSECURE_TLS", "MLFLOW_TRACKING_AWS_SIGV4"] {
            if is_on(name) {
                return Err(refused(format!("{name} is not supported")).help(format!("unset {name}")));
            }
        }
        if is_on("DISABLE_MLFLOW_INTEGRATION") {
            return Err(refused("DISABLE_MLFLOW_INTEGRATION forbids it".into())
                .help("unset DISABLE_MLFLOW_INTEGRATION, or leave mlflow out of trainer.report_to"));
        }
        for name in ["MLFLOW_TRACKING_SERVER_CERT_PATH", "MLFLOW_TRACKING_CLIENT_CERT_PATH", "MLFLOW_TRACKING_AUTH"] {
            if variable(name).is_some() {
                return Err(refused(format!("{name} is not supported")).help(format!("unset {name}")));
            }
        }
        for name in ["HF_MLFLOW_LOG_ARTIFACTS", "MLFLOW_NESTED_RUN"] {
            if is_on(name) {
                tracing::warn!("{name} has no effect: Kiln sends figures and parameters, to a run of their own");
            }
        }
        let count = |name: &str, default: usize| match variable(name) {
            None => Ok(default),
            Some(given) => given.parse::<usize>().map_err(|_| {
                refused(format!("{name}: expected a whole number, got {given:?}"))
                    .help(format!("set {name} to a whole number, or unset it"))
            }),
        };
        let tags = match variable("MLFLOW_TAGS") {
            None => Map::new(),
            Some(given) => serde_json::from_str(&given).map_err(|_| {
                refused(format!("MLFLOW_TAGS: expected a JSON object, got {given:?}"))
                    .help("write it as MLFLOW_TAGS='{\"stage\": \"test\"}'")
            })?,
        };
        let [user, password] = ["MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"];
        let authorization = match (variable(user), variable(password)) {
            (Some(user), Some(password)) => {
                Some(format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}"))))
            }
            (None, None) => variable("MLFLOW_TRACKING_TOKEN").map(|token| format!("Bearer {token}")),
            (one, _) => {
                let (set, missing) = if one.is_some() { (user, password) } else { (password, user) };
                return Err(refused(format!("{set} is set, and {missing} is not")).help("set both or none"));
            }
        };
        Ok(Self {
            uri: uri.trim_end_matches('/').to_owned(),
            experiment: variable("MLFLOW_EXPERIMENT_NAME"),
            experiment_id: variable("MLFLOW_EXPERIMENT_ID"),
            run_id: variable("MLFLOW_RUN_ID"),
            tags,
            max_params: count("MLFLOW_MAX_LOG_PARAMS", usize::MAX)?,
            authorization,
            timeout: Duration::from_secs(count("MLFLOW_HTTP_REQUEST_TIMEOUT", 120)?.max(1) as u64),
        })
    }
}

/// The thread's side: a run of the server, and the figures that it does not have yet.
struct RunOnServer {
    settings: Settings,
    agent: ureq::Agent,
    folder: PathBuf,
    name: Option<String>,
    params: Vec<(String, String)>,
    run_id: Option<String>,
    waiting: VecDeque<Metric>,
    /// Figures that were forgotten.
    lost: usize,
}

/// Why a request brought nothing.
enum Failure {
    /// Another attempt may succeed.
    Passing(String),
    /// The server does not want it: its error code and words.
    Refused(String, String),
}

impl Failure {
    fn words(&self) -> String {
        match self {
            Self::Passing(words) => words.clone(),
            Self::Refused(code, words) => format!("{code}: {words}"),
        }
    }
}

impl RunOnServer {
    fn new(settings: Settings, folder: PathBuf, name: Option<String>, params: Vec<(String, String)>) -> Self {
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(settings.timeout))
            .http_status_as_error(false)
            .user_agent(concat!("kiln/", env!("CARGO_PKG_VERSION")))
            .build()
            .into();
        Self { settings, agent, folder, name, params, run_id: None, waiting: VecDeque::new(), lost: 0 }
    }

    /// Sends what comes until the run ends.
    fn run(mut self, received: &Receiver<Message>) -> Lacking {
        let (mut end, mut next, mut pause, mut has_failed) = (None, Instant::now(), FIRST_PAUSE, false);
        loop {
            match end {
                None => end = self.receive(received, next).map(|(status, limit)| (status, Instant::now() + limit)),
                // The last attempts, as long as the run waits.
                Some(_) => std::thread::sleep(next.saturating_duration_since(Instant::now())),
            }
            if end.is_none() && Instant::now() < next {
                continue;
            }
            let sent = self.send().and_then(|()| match end {
                Some((status, _)) => self.update(status),
                None => Ok(()),
            });
            let Err(failure) = sent else {
                if end.is_some() {
                    return Lacking { figures: self.lost, end: false };
                }
                if has_failed {
                    tracing::warn!("the MLflow server {} answers again", self.settings.uri);
                }
                (pause, has_failed) = (FIRST_PAUSE, false);
                continue;
            };
            let is_refused = matches!(failure, Failure::Refused(..));
            if !has_failed || is_refused {
                let rest = "the run goes on, and metrics.jsonl has every row";
                tracing::warn!("MLflow at {}: {}; {rest}", self.settings.uri, failure.words());
            }
            if is_refused {
                let later = if end.is_some() { 0 } else { count_rest(received) };
                return Lacking { figures: self.lost + self.waiting.len() + later, end: true };
            }
            has_failed = true;
            // A run that ends does not wait as long between attempts as one that goes on.
            next = Instant::now() + if end.is_some() { FIRST_PAUSE } else { pause };
            if end.is_some_and(|(_, deadline)| next >= deadline) {
                return Lacking { figures: self.lost + self.waiting.len(), end: true };
            }
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// Takes the messages that are there, and waits for one until `next` where figures wait to be
    /// sent again, or as long as it takes where none do. Returns how the run ends, once it does.
    fn receive(&mut self, received: &Receiver<Message>, next: Instant) -> Option<(&'static str, Duration)> {
        let first = if self.waiting.is_empty() && self.run_id.is_some() && self.params.is_empty() {
            received.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            received.recv_timeout(next.saturating_duration_since(Instant::now()))
        };
        let others = std::iter::repeat_with(|| received.try_recv().map_err(|_| RecvTimeoutError::Timeout));
        for message in std::iter::once(first).chain(others) {
            match message {
                Ok(Message::Row(row)) => self.waiting.extend(row),
                Ok(Message::End(status, limit)) => return Some((status, limit)),
                Err(RecvTimeoutError::Disconnected) => return Some(("FAILED", PARTING)),
                Err(RecvTimeoutError::Timeout) => break,
            }
        }
        let surplus = self.waiting.len().saturating_sub(MAX_WAITING);
        self.waiting.drain(..surplus);
        self.lost += surplus;
        None
    }

    /// Sends the settings and all figures that wait, to a run that is begun where there is none
    /// yet.
    fn send(&mut self) -> std::result::Result<(), Failure> {
        let run_id = match &self.run_id {
            Some(run_id) => run_id.clone(),
            None => self.begin()?,
        };
        while !self.params.is_empty() {
            let count = self.params.len().min(MAX_PARAMS);
            let params = self.params[..count].iter().map(|(key, value)| json!({ "key": key, "value": value }));
            let params = params.collect::<Vec<_>>();
            match self.post("runs/log-batch", &json!({ "run_id": run_id, "params": params })) {
                Err(failure @ Failure::Refused(..)) => {
                    tracing::warn!("MLflow does not take the settings of the run: {}", failure.words());
                    self.params.clear();
                }
                answer => answer.map(|_| drop(self.params.drain(..count)))?,
            }
        }
        while !self.waiting.is_empty() {
            let count = self.waiting.len().min(MAX_METRICS);
            let metrics = self.waiting.iter().take(count).collect::<Vec<_>>();
            self.post("runs/log-batch", &json!({ "run_id": run_id, "metrics": metrics }))?;
            self.waiting.drain(..count);
        }
        Ok(())
    }

    /// The run of the environment, the one that an earlier process of this run has begun, or a new
    /// one of the experiment.
    fn begin(&mut self) -> std::result::Result<String, Failure> {
        let (file, uri) = (self.folder.join(MLFLOW), self.settings.uri.clone());
        let earlier = read_json_if_there::<ServerRun>(&file).unwrap_or_else(|error| {
            tracing::warn!("{error}: the run is a new one on the MLflow server");
            None
        });
        let earlier = earlier.filter(|run| run.tracking_uri == uri).map(|run| run.run_id);
        if let Some(run_id) = self.settings.run_id.clone().or(earlier) {
            match self.post("runs/update", &json!({ "run_id": run_id, "status": "RUNNING" })) {
                Ok(_) => {
                    // Its settings are those that the first process has sent.
                    self.params.clear();
                    self.run_id = Some(run_id.clone());
                    return Ok(run_id);
                }
                Err(Failure::Refused(code, words)) if self.settings.run_id.is_some() => {
                    return Err(Failure::Refused(code, format!("{words} (MLFLOW_RUN_ID; unset it for a new run)")));
                }
                // Somebody has deleted it there: for good, or so that it can be restored.
                Err(Failure::Refused(code, _))
                    if matches!(code.as_str(), "RESOURCE_DOES_NOT_EXIST" | "INVALID_PARAMETER_VALUE") => {}
                Err(failure) => return Err(failure),
            }
        }
        let experiment = self.experiment()?;
        let user = std::env::var("USER").unwrap_or_else(|_| "unknown".into());
        let source = [("mlflow.source.name", "kiln"), ("mlflow.source.type", "LOCAL"), ("mlflow.user", &user)];
        let mut tags = source.map(|(key, value)| json!({ "key": key, "value": value })).to_vec();
        tags.extend(self.settings.tags.iter().map(|(key, value)| json!({ "key": key, "value": text(value) })));
        let answer = self.post(
            "runs/create",
            &json!({ "experiment_id": experiment, "run_name": self.name, "start_time": milliseconds(), "tags": tags }),
        )?;
        let run_id = self.field(&answer, "/run/info/run_id")?;
        self.run_id = Some(run_id.clone());
        if let Err(error) = write_json(&file, &ServerRun { tracking_uri: uri, run_id: run_id.clone() }) {
            tracing::warn!("{error}: the run is a new one on the MLflow server when it is resumed");
        }
        Ok(run_id)
    }

    /// The id of the experiment, which is made where the server does not have it.
    fn experiment(&self) -> std::result::Result<String, Failure> {
        let Some(name) = &self.settings.experiment else {
            return Ok(self.settings.experiment_id.clone().unwrap_or_else(|| "0".into()));
        };
        let url = self.url("experiments/get-by-name");
        let asked = self.authorized(self.agent.get(url)).query("experiment_name", name).call();
        match answer(asked) {
            Ok(found) => self.field(&found, "/experiment/experiment_id"),
            Err(Failure::Refused(code, _)) if code == "RESOURCE_DOES_NOT_EXIST" => {
                let made = self.post("experiments/create", &json!({ "name": name }))?;
                self.field(&made, "/experiment_id")
            }
            Err(failure) => Err(failure),
        }
    }

    fn update(&self, status: &str) -> std::result::Result<(), Failure> {
        let update = json!({ "run_id": self.run_id, "status": status, "end_time": milliseconds() });
        self.post("runs/update", &update).map(drop)
    }

    fn field(&self, answer: &Value, pointer: &str) -> std::result::Result<String, Failure> {
        answer.pointer(pointer).and_then(Value::as_str).map(str::to_owned).ok_or_else(|| {
            Failure::Refused(
                "an answer that is not MLflow's".into(),
                format!("it has no {}", pointer.replace('/', " ").trim()),
            )
        })
    }

    fn post(&self, method: &str, body: &Value) -> std::result::Result<Value, Failure> {
        let request = self.authorized(self.agent.post(self.url(method)));
        answer(request.content_type("application/json").send(body.to_string()))
    }

    fn url(&self, method: &str) -> String {
        format!("{}/api/2.0/mlflow/{method}", self.settings.uri)
    }

    fn authorized<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.settings.authorization {
            Some(authorization) => request.header("Authorization", authorization),
            None => request,
        }
    }
}

/// The JSON of an answer.
fn answer(
    answered: std::result::Result<ureq::http::Response<ureq::Body>, ureq::Error>,
) -> std::result::Result<Value, Failure> {
    let mut answered = answered.map_err(|error| Failure::Passing(one_line(&error.to_string())))?;
    let status = answered.status().as_u16();
    let read = answered.body_mut().with_config().limit(MAX_ANSWER).read_to_string();
    let text = read.map_err(|error| Failure::Passing(one_line(&error.to_string())))?;
    let json = serde_json::from_str::<Value>(&text).ok();
    let of = |name: &str| json.as_ref()?.get(name)?.as_str().map(one_line);
    match status {
        200..300 => {
            json.ok_or_else(|| Failure::Refused("an answer that is not MLflow's".into(), "it is no JSON".into()))
        }
        408 | 429 | 500.. => Err(Failure::Passing(of("message").unwrap_or_else(|| format!("HTTP {status}")))),
        _ => {
            let words = of("message").unwrap_or_else(|| match status {
                401 | 403 => format!(
                    "HTTP {status}: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
                ),
                _ => format!("HTTP {status}"),
            });
            Err(Failure::Refused(of("error_code").unwrap_or_else(|| "refused".into()), words))
        }
    }
}

/// The figures that come after nothing is sent any more, until the run ends.
fn count_rest(received: &Receiver<Message>) -> usize {
    let count = |message| match message {
        Message::Row(row) => Some(row.len()),
        Message::End(..) => None,
    };
    received.iter().map_while(count).sum()
}

/// The settings of the run as parameters: the keys of `plan.toml`, or of `plan.json` for a task
/// that has no config file, with dots between their parts.
fn params(folder: &Path, most: usize) -> Vec<(String, String)> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let planned = read("plan.toml").and_then(|text| toml::from_str::<Value>(&text).ok());
    let planned = planned.or_else(|| serde_json::from_str(&read("plan.json")?).ok()).unwrap_or_default();
    let mut params = Vec::new();
    flatten(String::new(), &planned, &mut params);
    params.truncate(most);
    params
}

fn flatten(name: String, value: &Value, params: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(field, value)| {
            let name = if name.is_empty() { field.clone() } else { format!("{name}.{field}") };
            flatten(name, value, params);
        }),
        Value::Null => {}
        value => {
            let text = text(value);
            if text.len() <= MAX_PARAM {
                params.push((sanitized(&name), text));
            }
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// `name` with MLflow's characters alone (`MLflowCallback.on_log`).
fn sanitized(name: &str) -> String {
    let is_known = |c: char| c.is_ascii_alphanumeric() || "_-. :/".contains(c);
    name.chars().map(|c| if is_known(c) { c } else { '_' }).collect()
}

fn milliseconds() -> u64 {
    (clock::seconds() * 1e3) as u64
}
