//! `kiln submit`, `kiln attach` and `kiln stop`: a job from its `job.toml`, run on this machine or
//! written as the request that SageMaker takes, shown again, and stopped.

mod job_file;
pub(crate) mod jobs;
mod local;
mod sagemaker;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use console::measure_text_width;
use job_file::JobFile;
use jobs::{Follower, JobFolder, JobStatus};
use kiln::run_folder::RunStatus;
use kiln_core::error::{Error, Result, nearest, one_line};
use kiln_core::files::{read_error, write_json};
use kiln_core::signals;
use kiln_core::words::duration;

use super::faults::complain;
use super::terminal::{show, significant};
use super::{metrics, say};

#[derive(Debug, Args)]
pub(super) struct SubmitArgs {
    /// The job (TOML)
    file: PathBuf,
    /// Run it on this machine: in its image where Docker or Podman works, else as a process
    #[arg(long, required_unless_present = "sagemaker")]
    local: bool,
    /// Print the request that `aws sagemaker create-training-job --cli-input-json` takes; nothing
    /// is sent
    #[arg(long, conflicts_with = "local")]
    sagemaker: bool,
    /// The job's name, whatever the file says
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The folder of the local jobs
    #[arg(long, value_name = "FOLDER", default_value = "jobs", conflicts_with = "sagemaker")]
    jobs_dir: PathBuf,
    /// Run it as a process although it has an image
    #[arg(long, conflicts_with = "sagemaker")]
    process: bool,
    /// Write the request to this file
    #[arg(long, value_name = "FILE", conflicts_with = "local")]
    out: Option<PathBuf>,
}

// A doc comment would be the help of the commands that have it.
#[derive(Debug, Args)]
pub(super) struct LocalJob {
    /// The job's name
    name: String,
    /// The folder of the local jobs
    #[arg(long, value_name = "FOLDER", default_value = "jobs")]
    jobs_dir: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct AttachArgs {
    #[command(flatten)]
    job: LocalJob,
    /// Show what there is, and do not follow a job that goes on
    #[arg(long)]
    no_wait: bool,
}

pub(super) fn run_submit(args: &SubmitArgs) -> Result<()> {
    let mut job = JobFile::read(&args.file)?;
    if let Some(name) = &args.name {
        job.name.clone_from(name);
    }
    let at = |error: Error| error.at(args.file.display());
    job.told.iter().for_each(|line| tracing::warn!("{}: {line}", args.file.display()));
    if args.sagemaker {
        let request = sagemaker::request(&job).map_err(at)?;
        if job.instance_count > 1 {
            tracing::warn!(
                "instance_count: the {} machines train together, and the image needs MPICH's library for that (libmpich12)",
                job.instance_count
            );
        }
        return match &args.out {
            Some(out) => {
                write_json(out, &request)?;
                say(format!(
                    "wrote {}; next: aws sagemaker create-training-job --cli-input-json file://{0}",
                    out.display()
                ))
            }
            None => say(format!("{request:#}")),
        };
    }
    let (status, code) = local::run(&job, &args.jobs_dir, args.process).map_err(at)?;
    if code != 0 {
        let reason = status.message.as_deref().unwrap_or("it did not complete");
        complain(format!("error: the job {}: {reason}", job.name));
        std::process::exit(code.into());
    }
    Ok(())
}

impl LocalJob {
    /// The job's folder, and how it stands.
    fn find(&self) -> Result<(JobFolder, JobStatus)> {
        let folder = JobFolder::of(&self.jobs_dir, &self.name);
        if let Some(status) = folder.standing()? {
            return Ok((folder, status));
        }
        let names = jobs::names(&self.jobs_dir);
        let error = Error::config(format!("{}: there is no job {:?}", self.jobs_dir.display(), self.name));
        Err(match (nearest(&self.name, names.iter().map(String::as_str)), names.is_empty()) {
            (Some(near), _) => error.help(format!("did you mean `{near}`? There are {}", names.join(", "))),
            (None, false) => error.help(format!("there are {}", names.join(", "))),
            (None, true) => error.help("name the folder of the jobs with --jobs-dir FOLDER"),
        })
    }
}

pub(super) fn run_stop(job: &LocalJob) -> Result<()> {
    let (folder, status) = job.find()?;
    if !folder.is_going_on()? {
        return Err(Error::config(format!("the job {} is not going on: {}", job.name, status.status))
            .help(format!("`kiln attach {}` shows it", job.name)));
    }
    signals::install()?;
    while folder.is_going_on()? {
        if let Some(signal) = signals::received() {
            return Err(signal.error(format_args!("the job {} was asked to stop, and has not ended yet", job.name)));
        }
        // A job that has just begun forgets who asked before.
        folder.ask_to_stop()?;
        std::thread::sleep(Duration::from_millis(100));
    }
    folder.forget_stop();
    describe(&folder.standing()?.unwrap_or(status))
}

pub(super) fn run_attach(args: &AttachArgs) -> Result<()> {
    let (folder, status) = args.job.find()?;
    signals::install()?;
    let mut follower = Follower::new(&folder.log(), 0)?;
    while !args.no_wait && signals::received().is_none() && folder.is_going_on()? {
        follower.print(false)?;
        std::thread::sleep(Duration::from_millis(100));
    }
    let goes_on = folder.is_going_on()?;
    follower.print(!goes_on)?;
    let status = folder.standing()?.unwrap_or(status);
    describe(&status)?;
    metrics_of(&status, &folder)?;
    match signals::received() {
        Some(signal) if goes_on => Err(signal.error(format_args!("the job {} goes on", args.job.name))),
        _ => Ok(()),
    }
}

/// How the job stands.
fn describe(status: &JobStatus) -> Result<()> {
    let code = status.exit_code.map_or(String::new(), |code| format!(", exit code {code}"));
    let secondary =
        if status.status == RunStatus::InProgress { format!(" ({})", status.secondary_status) } else { code };
    let mut lines = vec![
        ("job", status.name.clone()),
        ("status", format!("{}{secondary}", status.status)),
        ("run", format!("{} ({} start{})", status.runner, status.starts, if status.starts == 1 { "" } else { "s" })),
        ("training", format!("{} of {}", duration(status.training_seconds), duration(status.max_run as f64))),
    ];
    if let Some(message) = &status.message {
        lines.insert(2, ("reason", message.clone()));
    }
    show("")?;
    lines.iter().try_for_each(|(name, text)| say(format!("{name:<13}  {text}")))
}

/// The metrics in the job's log, by its own definitions or the shipped ones, a line each.
fn metrics_of(status: &JobStatus, folder: &JobFolder) -> Result<()> {
    let own = serde_json::to_string(&status.metric_definitions).unwrap_or_default();
    let text = if status.metric_definitions.is_empty() { metrics::SHIPPED } else { &own };
    let log = std::fs::read(folder.log()).map_err(|error| read_error(&folder.log(), &error))?;
    let lines = String::from_utf8_lossy(&log).lines().map(str::to_owned).collect::<Vec<_>>();
    let definitions = metrics::definitions(text, "metric_definitions")?;
    let rows = definitions.iter().filter_map(|(definition, regex)| {
        let metric = metrics::take(definition, regex, &lines);
        let values = metric.values.iter().filter_map(|taken| taken.value).collect::<Vec<_>>();
        let (first, last) = (*values.first()?, *values.last()?);
        let (least, most) =
            (values.iter().copied().fold(first, f64::min), values.iter().copied().fold(first, f64::max));
        let [first, last, least, most] = [first, last, least, most].map(significant);
        Some([one_line(&metric.name), values.len().to_string(), first, last, least, most])
    });
    let head = ["METRIC", "VALUES", "FIRST", "LAST", "MIN", "MAX"].map(str::to_owned);
    let rows = std::iter::once(head).chain(rows).collect::<Vec<_>>();
    if rows.len() == 1 {
        return Ok(());
    }
    let widths =
        std::array::from_fn::<_, 6, _>(|at| rows.iter().map(|row| measure_text_width(&row[at])).max().unwrap_or(0));
    say("")?;
    rows.iter().try_for_each(|row| {
        let [name, figures @ ..] = row;
        let space = " ".repeat(widths[0] - measure_text_width(name));
        let figures = figures.iter().zip(&widths[1..]).map(|(figure, width)| format!("  {figure:>width$}"));
        say(format!("{name}{space}{}", figures.collect::<String>()))
    })
}
