//! `trainer.report_to = "mlflow"` against a server on 127.0.0.1 that answers as MLflow's REST API
//! 2.0 does, well and badly, and against MLflow's own server where Python has it.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::messages::messages;
use crate::common::skip::skip;
use crate::common::small_run::{train, write};
use crate::common::{fails, json as read_json, rows, succeeds};

/// How the server answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Well,
    /// It takes connections and says nothing.
    Silent,
    /// The first requests get 503.
    Busy(usize),
    /// It asks for a password.
    Closed,
    /// It does not know the run of another process.
    Forgetful,
}

/// A request: method and path, `Authorization`, body.
#[derive(Debug, Clone)]
struct Request {
    line: String,
    authorization: Option<String>,
    body: Value,
}

struct Server {
    address: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, seen) = (stream.unwrap(), seen.clone());
                std::thread::spawn(move || serve(stream, manner, &seen));
            }
        });
        Self { address, requests }
    }

    fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// The bodies of the requests to `path`.
    fn bodies(&self, path: &str) -> Vec<Value> {
        self.requests().into_iter().filter(|request| request.line.contains(path)).map(|request| request.body).collect()
    }

    /// Every figure that was sent: name, step, value.
    fn figures(&self) -> Vec<(String, u64, Value)> {
        let metrics = |body: Value| body["metrics"].as_array().cloned().unwrap_or_default();
        let of = |metric: Value| {
            let name = metric["key"].as_str().unwrap().to_owned();
            assert!(metric["timestamp"].as_u64().unwrap() > 1_700_000_000_000, "{metric}");
            (name, metric["step"].as_u64().unwrap(), metric["value"].clone())
        };
        self.bodies("runs/log-batch").into_iter().flat_map(metrics).map(of).collect()
    }
}

/// Answers the requests of one connection.
fn serve(mut stream: TcpStream, manner: Manner, seen: &Mutex<Vec<Request>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Some(request) = read_request(&mut reader) {
        let line = request.line.clone();
        let count = {
            let mut seen = seen.lock().unwrap();
            seen.push(request);
            seen.len()
        };
        let unknown = json!({ "error_code": "RESOURCE_DOES_NOT_EXIST", "message": "there is none" });
        let (status, body) = match manner {
            Manner::Silent => return std::thread::sleep(Duration::from_secs(120)),
            Manner::Busy(first) if count <= first => (503, json!({})),
            Manner::Closed => (401, json!("You are not authenticated.")),
            Manner::Forgetful if line.contains("runs/update") && count == 1 => (404, unknown),
            _ if line.contains("get-by-name") => (404, unknown),
            _ if line.contains("experiments/create") => (200, json!({ "experiment_id": "7" })),
            _ if line.contains("runs/create") => (200, json!({ "run": { "info": { "run_id": "abc123" } } })),
            _ => (200, json!({})),
        };
        let body = body.to_string();
        let head =
            format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
        if stream.write_all((head + &body).as_bytes()).is_err() {
            return;
        }
    }
}

fn read_request(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let (mut length, mut authorization) = (0, None);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim().split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap(),
            "authorization" => authorization = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() };
    Some(Request { line: line.trim().to_owned(), authorization, body })
}

/// A training that reports to the server at `address`.
fn reporting(folder: &Path, address: &str, more: &[&str]) -> Command {
    let mut command = train(folder, "run", &[&["--set", "trainer.report_to=mlflow"], more].concat());
    for name in
        ["MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID", "MLFLOW_RUN_ID", "MLFLOW_TAGS", "MLFLOW_TRACKING_TOKEN"]
    {
        command.env_remove(name);
    }
    command.env("MLFLOW_TRACKING_URI", address);
    command
}

#[test]
fn every_figure_of_a_run_is_sent_once_with_its_step_and_the_settings_beside_them() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let server = Server::start(Manner::Well);
    let mut command = reporting(folder.path(), &server.address, &[]);
    command.env("MLFLOW_EXPERIMENT_NAME", "small").env("MLFLOW_TAGS", r#"{"stage": "test", "try": 2}"#);
    command.env("MLFLOW_TRACKING_USERNAME", "ada").env("MLFLOW_TRACKING_PASSWORD", "secret");
    succeeds(&mut command);

    let requests = server.requests();
    assert!(requests.iter().all(|request| request.authorization.as_deref() == Some("Basic YWRhOnNlY3JldA==")));
    assert!(requests[0].line.starts_with("GET /api/2.0/mlflow/experiments/get-by-name?experiment_name=small "));
    assert_eq!(server.bodies("experiments/create"), [json!({ "name": "small" })]);
    let created = &server.bodies("runs/create")[0];
    assert_eq!((&created["experiment_id"], &created["run_name"]), (&json!("7"), &json!("run")));
    for tag in [json!({ "key": "stage", "value": "test" }), json!({ "key": "try", "value": "2" })] {
        assert!(created["tags"].as_array().unwrap().contains(&tag), "{created}");
    }
    let params = server
        .bodies("runs/log-batch")
        .into_iter()
        .flat_map(|body| body["params"].as_array().cloned().unwrap_or_default());
    let params = params.collect::<Vec<_>>();
    for (key, value) in [("trainer.learning_rate", "0.001"), ("trainer.max_steps", "14"), ("model.kind", "gpt2")] {
        assert!(params.contains(&json!({ "key": key, "value": value })), "{params:?}");
    }
    // Exactly the rows of metrics.jsonl; the last one is the summary.
    let mut expected = Vec::new();
    for row in rows(&folder.path().join("run")) {
        let step = row["step"].as_u64().unwrap_or(14);
        let figures = row.as_object().unwrap().iter().filter(|(name, value)| *name != "step" && value.is_number());
        expected.extend(figures.map(|(name, value)| (name.clone(), step, value.clone())));
    }
    assert!(expected.iter().any(|(name, step, _)| name == "eval_loss" && *step == 3), "{expected:?}");
    let key = |(name, step, value): &(String, u64, Value)| (*step, name.clone(), value.to_string());
    let (mut sent, mut expected) =
        (server.figures().iter().map(key).collect::<Vec<_>>(), expected.iter().map(key).collect::<Vec<_>>());
    sent.sort();
    expected.sort();
    assert_eq!(sent, expected);
    let updates = server.bodies("runs/update");
    assert_eq!(
        (updates.len(), &updates[0]["status"], &updates[0]["run_id"]),
        (1, &json!("FINISHED"), &json!("abc123"))
    );
    let known = read_json(&folder.path().join("run/mlflow.json"));
    assert_eq!(known, json!({ "tracking_uri": server.address, "run_id": "abc123" }));
}

#[test]
fn a_stopped_run_goes_on_in_its_run_on_the_server() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let server = Server::start(Manner::Well);
    succeeds(&mut reporting(folder.path(), &server.address, &["--stop-after", "7"]));
    succeeds(&mut reporting(folder.path(), &server.address, &["--resume"]));
    assert_eq!(server.bodies("runs/create").len(), 1);
    let statuses = server.bodies("runs/update").iter().map(|body| body["status"].clone()).collect::<Vec<_>>();
    assert_eq!(statuses, ["FINISHED", "RUNNING", "FINISHED"]);
    assert!(server.figures().iter().any(|(name, step, _)| name == "loss" && *step == 14));

    // Begun anew, it is a new run there; one that the server has lost is one as well.
    succeeds(&mut reporting(folder.path(), &server.address, &["--set", "run.on_existing=overwrite"]));
    assert_eq!(server.bodies("runs/create").len(), 2);
    let other = Server::start(Manner::Forgetful);
    let known = json!({ "tracking_uri": other.address, "run_id": "gone" }).to_string();
    std::fs::write(folder.path().join("run/mlflow.json"), known).unwrap();
    std::fs::remove_dir_all(folder.path().join("run/checkpoints/step-000014")).unwrap();
    std::fs::remove_dir_all(folder.path().join("run/model")).unwrap();
    succeeds(&mut reporting(folder.path(), &other.address, &["--resume"]));
    assert_eq!(
        (other.bodies("runs/update")[0]["run_id"].clone(), other.bodies("runs/create").len()),
        (json!("gone"), 1)
    );
}

#[test]
fn a_server_that_fails_ends_no_run() {
    let messages = messages!();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let plain = succeeds(&mut train(folder.path(), "plain", &[]));
    assert!(plain.contains("'step': 14"), "{plain}");
    let weights = |run: &str| std::fs::read(folder.path().join(run).join("model/model.safetensors")).unwrap();
    for (manner, figures, words) in [
        (Manner::Busy(1), true, "HTTP 503"),
        (Manner::Closed, false, "MLFLOW_TRACKING_USERNAME"),
        (Manner::Silent, false, "timeout"),
    ] {
        let server = Server::start(manner);
        let mut command = reporting(folder.path(), &server.address, &["--set", "run.on_existing=overwrite"]);
        let output = command.env("MLFLOW_HTTP_REQUEST_TIMEOUT", "1").output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{manner:?}: {stderr}");
        assert!(stderr.contains(words) && stderr.contains("metrics.jsonl has"), "{manner:?}: {stderr}");
        assert_eq!(!server.figures().is_empty() && !stderr.contains("does not have"), figures, "{manner:?}: {stderr}");
        assert!(weights("run") == weights("plain"), "{manner:?}");
    }
    // A port at which nobody listens, and an environment that does not say where.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = reporting(folder.path(), &format!("http://{nobody}"), &["--set", "run.on_existing=overwrite"]);
    let output = command.output().unwrap();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stderr).contains("MLflow at"), "{output:?}");
    for (name, value) in [
        ("MLFLOW_TRACKING_URI", ""),
        ("MLFLOW_TRACKING_URI", "sqlite:///runs.db"),
        ("MLFLOW_TRACKING_URI", "http://ada:secret@127.0.0.1:5000"),
        ("MLFLOW_TRACKING_URI", "ada:secret@127.0.0.1:5000"),
        ("MLFLOW_TRACKING_USERNAME", "ada"),
        ("MLFLOW_TAGS", "stage=test"),
        ("MLFLOW_MAX_LOG_PARAMS", "many"),
        ("MLFLOW_TRACKING_INSECURE_TLS", "true"),
        ("MLFLOW_TRACKING_AUTH", "plugin"),
        ("DISABLE_MLFLOW_INTEGRATION", "TRUE"),
    ] {
        let mut command = reporting(folder.path(), "http://127.0.0.1:9", &["--set", "run.output_dir=never"]);
        command.env(name, value);
        messages.fails(command, 2);
        assert!(!folder.path().join("never").exists());
    }
    fails(&mut train(folder.path(), "never", &["--set", "trainer.report_to=mlfow"]), 2, &["did you mean `mlflow`?"]);
}

/// MLflow's own server, which ends with the test.
struct Real(Child);

impl Drop for Real {
    fn drop(&mut self) {
        // The server's workers are in its group.
        let _ = Command::new("kill").args(["--", &format!("-{}", self.0.id())]).status();
        let _ = self.0.wait();
    }
}

#[test]
fn mlflows_own_server_has_the_rows() {
    let python = std::env::var("KILN_PYTHON").unwrap_or_else(|_| "python3".into());
    let has_mlflow = Command::new(&python).args(["-c", "import mlflow.server"]).output();
    if !has_mlflow.is_ok_and(|output| output.status.success()) {
        return skip!("mlflow", "{python} has no mlflow: pip install mlflow");
    }
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let store = format!("sqlite:///{}/runs.db", folder.path().display());
    let mut server = Command::new(&python);
    server.args(["-m", "mlflow", "server", "--port", &port, "--backend-store-uri", &store, "--workers", "1"]);
    server.current_dir(folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
    std::os::unix::process::CommandExt::process_group(&mut server, 0);
    let _server = Real(server.spawn().unwrap());
    let begun = Instant::now();
    while TcpStream::connect(format!("127.0.0.1:{port}")).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(120), "MLflow's server does not begin");
        std::thread::sleep(Duration::from_millis(200));
    }
    let address = format!("http://127.0.0.1:{port}");
    let mut command = reporting(folder.path(), &address, &["--set", "run.name=first"]);
    succeeds(command.env("MLFLOW_EXPERIMENT_NAME", "small").env("MLFLOW_TAGS", r#"{"stage": "test"}"#));
    let script = "import json, mlflow\n\
                  client = mlflow.MlflowClient()\n\
                  experiment = client.get_experiment_by_name('small').experiment_id\n\
                  run, = client.search_runs([experiment])\n\
                  history = client.get_metric_history(run.info.run_id, 'loss')\n\
                  print(json.dumps([run.info.status, run.info.run_name, run.data.tags['stage'], run.data.params['trainer.max_steps'],\n\
                  [[metric.step, metric.value] for metric in history]]))\n";
    let read = Command::new(&python).args(["-c", script]).env("MLFLOW_TRACKING_URI", &address).output().unwrap();
    let read = serde_json::from_slice::<Value>(&read.stdout).unwrap_or_else(|_| panic!("{read:?}"));
    assert_eq!(read.as_array().unwrap()[..4], [json!("FINISHED"), json!("first"), json!("test"), json!("14")]);
    let losses = rows(&folder.path().join("run"));
    let losses = losses.iter().filter(|row| row["loss"].is_number() && row["step"].is_number());
    let losses = losses.map(|row| json!([row["step"], row["loss"]])).collect::<Vec<_>>();
    assert_eq!(losses.len(), 14);
    assert_eq!(read[4], Value::Array(losses));
}
