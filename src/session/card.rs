//! The model card of a run: `README.md` in its `model/`, with the front matter that Hugging Face's
//! Hub reads. Reference: <https://huggingface.co/docs/hub/model-cards>.

use std::fmt::Write;
use std::path::Path;

use kiln_core::error::one_line;
use kiln_core::metrics::Record;
use kiln_core::variables::expand_text;
use kiln_data::hub;
use kiln_data::labels::label_names;
use kiln_models::ModelConfig;
use kiln_train::description::Outcome;
use serde_json::Value;

use crate::config::{DataFormat, RunConfig, Task, Validation};
use crate::plan::RunPlan;
use crate::task::ModelTask;

/// The rows of a curve, of which a longer run has more.
const MOST_ROWS: usize = 24;

/// The files, datasets and labels that are named.
const MOST_NAMES: usize = 8;

/// The card of the run of `config` with the plan `plan`.
pub(super) fn card(
    config: &RunConfig,
    plan: &RunPlan,
    task: &dyn ModelTask,
    model: &ModelConfig,
    run: &Outcome<'_>,
) -> String {
    let is_adapter = plan.architecture.as_ref().is_some_and(|architecture| architecture.lora.is_some());
    let name = plan.train.run.name.clone().unwrap_or_else(|| last_part(&plan.train.run.output_dir));
    let from = plan.architecture.as_ref().and_then(|architecture| architecture.from.as_deref());
    let base = from.and_then(hub::id_of);
    let base = base.as_deref();
    let figures = figures(task, run.evaluation);
    let mut card = String::new();
    front_matter(&mut card, config, task, is_adapter, &name, base, &figures);
    let kind = model.model_type().name();
    let what = if is_adapter { "LoRA adapters on a" } else { "A" };
    let origin = match (from, base) {
        (_, Some(base)) => format!("trained from [{base}](https://huggingface.co/{base})"),
        (Some(from), None) => format!("trained from the folder {}", plain(&folder_name(from))),
        (None, None) => "trained from random weights".into(),
    };
    let _ = write!(
        card,
        "\n# {}\n\n{what} {kind} model for {}, {origin} by Kiln {}.\n",
        plain(&name),
        task.pipeline_tag().replace('-', " "),
        env!("CARGO_PKG_VERSION")
    );
    evaluation(&mut card, config, plan, run, &figures);
    training(&mut card, config, plan, run);
    curves(&mut card, run.rows, &figures);
    usage(&mut card, config, task, is_adapter);
    card
}

/// The last part of a path, which names no folder of a machine.
fn last_part(path: &Path) -> String {
    path.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}

/// The name of the model's folder `path`; of one in a run folder, that of the run.
fn folder_name(path: &Path) -> String {
    match path.parent() {
        Some(run) if path.ends_with("model") && run.file_name().is_some() => last_part(run),
        _ => last_part(path),
    }
}

/// Foreign text in a line of Markdown.
fn plain(text: &str) -> String {
    one_line(text).replace('<', "&lt;").replace('|', "\\|").replace('`', "'")
}

/// An id of the Hub without its revision.
fn id(spec: &str) -> String {
    spec.split_once('@').map_or(spec, |(id, _)| id).to_owned()
}

/// The name of the Hub's dataset that `pattern` reads, and else the file's name; with whether it is
/// on the Hub.
fn dataset(pattern: &str) -> (String, bool) {
    match pattern.strip_prefix("hf://datasets/") {
        Some(rest) => (id(&rest.split('/').take(2).collect::<Vec<_>>().join("/")), true),
        None => (last_part(Path::new(pattern)), false),
    }
}

/// The dataset that `data.dataset_name` names, an id of the Hub or a folder; with whether it is on
/// the Hub.
fn named_dataset(name: &str) -> (String, bool) {
    let folder = expand_text(name).unwrap_or_else(|_| name.to_owned());
    if hub::is_local(&folder) { (last_part(Path::new(&folder)), false) } else { (id(&folder), true) }
}

/// The datasets that the run was trained on, each once.
fn datasets(config: &RunConfig) -> Vec<(String, bool)> {
    let mut names = config.data.train.iter().map(|pattern| dataset(pattern)).collect::<Vec<_>>();
    names.extend(config.data.dataset_name.iter().map(|name| named_dataset(name)));
    names.sort();
    names.dedup();
    names
}

/// The figures of the evaluation without their `eval_`, in the task's order.
fn figures(task: &dyn ModelTask, evaluation: Option<&Record>) -> Vec<(&'static str, f64)> {
    let Some(row) = evaluation else { return Vec::new() };
    let value = |name: &'static str| Some((name, row.get(&format!("eval_{name}"))?));
    task.figures().iter().filter_map(|name| value(name)).collect()
}

/// A text in JSON's quotes, which are YAML's too but for the control characters that JSON leaves.
fn quoted(text: &str) -> String {
    let is_left = |c: char| c.is_control();
    Value::from(text)
        .to_string()
        .chars()
        .map(|c| if is_left(c) { format!("\\u{:04x}", u32::from(c)) } else { c.into() })
        .collect()
}

fn front_matter(
    card: &mut String,
    config: &RunConfig,
    task: &dyn ModelTask,
    is_adapter: bool,
    name: &str,
    base: Option<&str>,
    figures: &[(&str, f64)],
) {
    let datasets = datasets(config);
    let mut line = |text: std::fmt::Arguments<'_>| _ = writeln!(card, "{text}");
    line(format_args!("---\nlibrary_name: {}", if is_adapter { "peft" } else { "transformers" }));
    if let Some(base) = base {
        line(format_args!("base_model: {}", quoted(base)));
        line(format_args!("base_model_relation: {}", if is_adapter { "adapter" } else { "finetune" }));
    }
    line(format_args!("pipeline_tag: {}\ntags:\n- kiln", task.pipeline_tag()));
    if is_adapter {
        line(format_args!("- lora"));
    }
    let on_hub = datasets.iter().filter(|(_, is_on_hub)| *is_on_hub).collect::<Vec<_>>();
    if !on_hub.is_empty() {
        line(format_args!("datasets:"));
        on_hub.iter().for_each(|(name, _)| line(format_args!("- {}", quoted(name))));
    }
    // Losses are told as results, and are no metrics of the Hub.
    let metrics = figures.iter().filter(|(name, value)| *name != "loss" && value.is_finite()).collect::<Vec<_>>();
    if !metrics.is_empty() {
        line(format_args!("metrics:"));
        metrics.iter().for_each(|(name, _)| line(format_args!("- {name}")));
        let validation = match &config.data.validation {
            Some(Validation::Files(files)) => files.iter().map(|file| dataset(file)).collect(),
            _ => datasets.clone(),
        };
        let (data, is_on_hub) = match &validation[..] {
            [one] => one.clone(),
            several => (format!("{} files", several.len()), false),
        };
        let kind = if is_on_hub { data.clone() } else { config.data.format.to_string() };
        line(format_args!(
            "model-index:\n- name: {}\n  results:\n  - task:\n      type: {}\n    dataset:\n      name: {}\n      type: {}\n    metrics:",
            quoted(name),
            task.pipeline_tag(),
            quoted(&data),
            quoted(&kind)
        ));
        for (name, value) in metrics {
            line(format_args!("    - type: {name}\n      value: {value}"));
        }
    }
    line(format_args!("---"));
}

fn evaluation(card: &mut String, config: &RunConfig, plan: &RunPlan, run: &Outcome<'_>, figures: &[(&str, f64)]) {
    let Some(row) = run.evaluation.filter(|_| !figures.is_empty()) else { return };
    let step = row.get("step").map_or_else(String::new, |step| format!(" after step {step}"));
    let rows = plan.train.data.validation_examples;
    let rows = rows.map_or_else(String::new, |rows| format!(" on {rows} examples"));
    let held_out = match config.data.validation {
        Some(Validation::Share(_) | Validation::First(_)) => ", which were held out of the training data",
        _ => "",
    };
    let _ = write!(
        card,
        "\n## Evaluation\n\nThe model was evaluated{step}{rows}{held_out}.\n\n| figure | value |\n| --- | --- |\n"
    );
    for (name, value) in figures {
        let _ = writeln!(card, "| {name} | {value:.4} |");
    }
}

/// The first of `names`, and how many more there are.
fn named_few(names: Vec<String>) -> String {
    let more = names.len().saturating_sub(MOST_NAMES);
    let mut named = names.into_iter().take(MOST_NAMES).collect::<Vec<_>>().join(", ");
    if more > 0 {
        named += &format!(", and {more} more");
    }
    named
}

fn training(card: &mut String, config: &RunConfig, plan: &RunPlan, run: &Outcome<'_>) {
    let train = &plan.train;
    let named = named_few(datasets(config).into_iter().map(|(name, _)| name).collect());
    let seconds = run.summary.get("train_runtime").map_or_else(String::new, |seconds| format!("{seconds:.0} s"));
    let labels = plan.architecture.as_ref().filter(|architecture| architecture.task.has_label_names());
    let labels = labels.and_then(|architecture| label_names(architecture.config.labels()).ok()).unwrap_or_default();
    let labels = named_few(labels);
    let settings = [
        ("data", named),
        ("examples", train.data.train_examples.to_string()),
        ("labels", labels),
        ("steps", run.summary.get("step").map_or(train.steps.total as f64, |step| step).to_string()),
        ("epochs", run.summary.get("epoch").map_or_else(String::new, |epoch| format!("{epoch:.2}"))),
        ("examples in a step", train.batch.global.to_string()),
        ("optimizer", train.optimizer.name.to_string()),
        ("learning rate", format!("{:e}", train.optimizer.learning_rate.rate)),
        ("schedule", train.optimizer.schedule.describe()),
        ("precision", train.engine.precision.precision.to_string()),
        ("mode", train.engine.mode.to_string()),
        ("device", train.engine.device.describe()),
        ("seed", train.run.seed.to_string()),
        ("duration", seconds),
    ];
    card.push_str("\n## Training\n\n| setting | value |\n| --- | --- |\n");
    for (name, value) in settings.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = writeln!(card, "| {name} | {} |", plain(value));
    }
}

/// The rows with an evaluation, each with the loss of training before it.
fn curves(card: &mut String, rows: &[Record], figures: &[(&str, f64)]) {
    let mut loss = None;
    let mut lines = Vec::new();
    for row in rows {
        loss = row.get("loss").or(loss);
        if let Some(step) = row.get("step").filter(|_| row.get("eval_loss").is_some()) {
            let values = figures.iter().map(|(name, _)| row.get(&format!("eval_{name}")));
            let cells = [loss].into_iter().chain(values);
            let cells = cells.map(|value| value.map_or_else(String::new, |value| format!("{value:.4}")));
            lines.push(format!("| {step} | {} |", cells.collect::<Vec<_>>().join(" | ")));
        }
    }
    if lines.len() < 2 {
        return;
    }
    let names = figures.iter().map(|(name, _)| format!("validation {name}")).collect::<Vec<_>>().join(" | ");
    let _ =
        write!(card, "\n### Curves\n\n| step | training loss | {names} |\n|{}\n", " --- |".repeat(figures.len() + 2));
    // The last one is always there.
    let every = lines.len().div_ceil(MOST_ROWS);
    let last = lines.len() - 1;
    for (_, line) in lines.iter().enumerate().filter(|(index, _)| (last - index) % every == 0) {
        let _ = writeln!(card, "{line}");
    }
}

fn usage(card: &mut String, config: &RunConfig, task: &dyn ModelTask, is_adapter: bool) {
    // PEFT has no class for every head, and transformers no pipeline for every task.
    let loads = match (is_adapter, task.peft_class()) {
        (true, None) => "from peft import PeftModel  # PeftModel.from_pretrained(base, folder)".to_owned(),
        (true, Some(class)) => {
            format!("from peft import {class}\n\nmodel = {class}.from_pretrained(\"model\")  # this folder")
        }
        (false, _) if task.kind() == Task::MultipleChoice => "from transformers import AutoModelForMultipleChoice\n\n\
             model = AutoModelForMultipleChoice.from_pretrained(\"model\")  # this folder"
            .to_owned(),
        (false, _) => {
            let tag = task.pipeline_tag();
            format!("from transformers import pipeline\n\npipe = pipeline(\"{tag}\", model=\"model\")  # this folder")
        }
    };
    let rows = match config.data.format {
        DataFormat::Csv | DataFormat::Tsv | DataFormat::Parquet => config.data.format.to_string(),
        _ => "jsonl".into(),
    };
    let command = match task.kind() {
        Task::Clm => "kiln generate model --prompt \"Once upon a time\"".to_owned(),
        _ => format!("kiln predict model --input rows.{rows}"),
    };
    let _ = write!(
        card,
        "\n## Use\n\n```python\n{loads}\n```\n\n```sh\n{command}\n```\n\n`plan.toml` in the folder of the run has every setting.\n"
    );
}
