//! `kiln bench`, and the hidden `kiln worker` that it and `kiln compare` run in processes of their
//! own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use kiln::config::Precision;
use kiln::distributed::World;
use kiln_core::error::{Error, Result};
use kiln_core::files::write_json;
use kiln_core::signals;
use kiln_measure::bench::report::SCHEMA;
use kiln_measure::bench::run::{Options, Peer, Subject, Variant, run};
use kiln_measure::bench::suite::Suite;
use kiln_measure::bench::table;
use kiln_measure::collectives;
use kiln_measure::engines;
use kiln_measure::interleaved::worker;

use super::training::{ConfigArgs, Layers, open};
use super::{say, time};

#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    /// The config file (TOML) of the run to measure
    #[arg(required_unless_present_any = ["suite", "collectives"], conflicts_with = "suite")]
    file: Option<PathBuf>,
    #[command(flatten)]
    layers: Layers,
    /// Measure fixed models on synthetic tokens instead: smoke, cpu, llama, gpu or gpu-tiny
    #[arg(long, value_name = "NAME", conflicts_with_all = ["set", "hf_args"])]
    suite: Option<String>,
    /// Measure the exchanges of ranks instead, from 1 KiB to 64 MiB, as in kiln launch -n 2 --
    /// bench --collectives
    #[arg(
        long,
        conflicts_with_all = [
            "file", "set", "hf_args", "compiler", "precision", "suite", "warmup", "rounds", "steps", "variants", "peers",
            "time_limit",
        ]
    )]
    pub(super) collectives: bool,
    /// Only these cases of the suite
    #[arg(long = "case", value_name = "NAME", requires = "suite")]
    cases: Vec<String>,
    /// Steps of each arm that are not counted; the suite's, or 3 (20 on a GPU), when it is
    /// left out
    #[arg(long, value_name = "N")]
    warmup: Option<usize>,
    /// Turns of each arm
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Optimizer steps of a turn; the first is left out of the figures
    #[arg(long, value_name = "N")]
    steps: Option<usize>,
    /// Repeats of single operators in every round; 0 leaves them out
    #[arg(long, value_name = "N", default_value_t = 3)]
    operators: usize,
    /// Another arm: the compiled mode with another setting, as in
    /// fused=compiler.fused_ops=on
    #[arg(long = "variant", value_name = "NAME=SECTION.KEY=VALUE")]
    variants: Vec<Variant>,
    /// Another arm: a program that speaks the protocol of benches/pytorch/worker.py
    #[arg(long = "peer", value_name = "NAME=COMMAND")]
    peers: Vec<Peer>,
    /// Begin no further case after this time: 90s, 25m
    #[arg(long, value_name = "TIME", value_parser = time)]
    time_limit: Option<Duration>,
    /// An arm that is silent for so long has failed: 90s, 25m
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = time)]
    answer_within: Duration,
    /// The JSON file to write; bench-NAME.json when it is left out
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct WorkerArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Measure single operators instead of steps
    #[arg(long)]
    operators: bool,
    /// Write a model at the end, as any run does
    #[arg(long)]
    model: bool,
}

pub(super) fn run_worker(args: &WorkerArgs) -> Result<()> {
    let config = args.config.load()?;
    engines::hand_over(config.trainer.compiler.as_ref(), config.trainer.device.kind)?;
    let session = open(config)?;
    if args.operators { worker::serve_operators(&session) } else { worker::serve_steps(session, args.model) }
}

pub(super) fn run_bench(args: &BenchArgs) -> Result<()> {
    signals::install()?;
    if args.collectives {
        return bench_collectives(args.out.as_deref().unwrap_or(Path::new("bench-collectives.json")));
    }
    args.layers.refuse_compiler("native and compiled are measured side by side")?;
    let precision = args.layers.precision;
    if precision == Some(Precision::Auto) {
        return Err(Error::config("--precision: expected f32, bf16 or f16, got auto"));
    }
    let (subject, name) = match (&args.file, &args.suite) {
        (_, Some(name)) => {
            let suite = Suite::named(name)?.only(&args.cases)?;
            let suite = precision.into_iter().fold(suite, Suite::in_precision);
            (Subject::Suite { name: name.clone(), suite }, name.clone())
        }
        (Some(file), None) => {
            let config = Box::new(args.layers.load(file, |_| Ok(()))?.into());
            let stem = file.file_stem().map_or_else(|| "run".into(), |stem| stem.to_string_lossy().into_owned());
            (Subject::Config { title: file.display().to_string(), config }, stem)
        }
        (None, None) => return Err(Error::config("expected a config file or --suite NAME")),
    };
    let mut names =
        args.variants.iter().map(|it| &it.name).chain(args.peers.iter().map(|it| &it.name)).collect::<Vec<_>>();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Error::config(format!("--peer, --variant: two are called `{}`", pair[0])).help("name them apart"));
    }
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from(format!("bench-{name}.json")));
    check(&out, SCHEMA)?;
    let options = Options {
        subject,
        warmup: args.warmup,
        rounds: args.rounds,
        steps: args.steps,
        operators: args.operators,
        variants: args.variants.clone(),
        peers: args.peers.clone(),
        out: out.clone(),
        time_limit: args.time_limit,
        answer_within: args.answer_within,
    };
    let (report, error) = run(&options, &mut |case| say(table::terminal(case)))?;
    report.notes.iter().try_for_each(|note| say(format!("note: {note}")))?;
    say(format!("result: {}", out.display()))?;
    error.map_or(Ok(()), Err)
}

/// Measures the exchanges of the world that this process is a part of; rank 0 tells and writes the
/// figures.
fn bench_collectives(out: &Path) -> Result<()> {
    let world = World::join()?;
    if !world.is_shared() {
        return Err(Error::config("kiln bench --collectives: expected several ranks, got this process alone")
            .help("kiln launch -n 2 -- bench --collectives"));
    }
    if world.is_root() {
        check(out, collectives::SCHEMA)?;
    }
    let is_root = world.is_root();
    let found = collectives::measure(&world, &mut |line| if is_root { say(line) } else { Ok(()) })?;
    if !is_root {
        return Ok(());
    }
    write_json(out, &found)?;
    say(found.table())?;
    say(format!("result: {}", out.display()))
}

/// Refuses to replace a file that is no benchmark of the form `schema`.
fn check(out: &Path, schema: &str) -> Result<()> {
    if !out.is_file() {
        return Ok(()); // a pipe or a device has nothing to lose
    }
    let schema = format!("\"schema\": \"{schema}\"");
    match std::fs::read(out) {
        Ok(bytes) if !String::from_utf8_lossy(&bytes).contains(&schema) => {
            Err(Error::config(format!("{} is there and is no benchmark of Kiln's", out.display()))
                .help("name another file with --out FILE"))
        }
        _ => Ok(()), // what cannot be read will be told when it is written
    }
}
