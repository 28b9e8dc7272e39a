//! `kiln sweep`: a search over keys of a config, told as it goes.

use std::path::{Path, PathBuf};

use clap::Args;
use kiln::config::CompilerMode;
use kiln::run_folder::PAGE;
use kiln_core::error::Result;
use kiln_core::process::this_program;
use kiln_measure::report;
use kiln_measure::sweep::space::Modes;
use kiln_measure::sweep::{Options, Sweep, run};

use super::compare::width;
use super::say;
use super::training::Layers;

#[derive(Debug, Args)]
pub(super) struct SweepArgs {
    /// The file with the section [sweep]; its other sections, or the file that sweep.config names,
    /// are the config
    file: PathBuf,
    #[command(flatten)]
    layers: Layers,
    /// The folder of the search; sweep.output_dir, else runs/NAME-sweep, when it is left out
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// native, compiled or both; what [sweep] and [compiler] say when it is left out
    #[arg(long, conflicts_with = "compiler")]
    mode: Option<Modes>,
}

pub(super) fn run_sweep(args: &SweepArgs) -> Result<()> {
    let of_mode = args.layers.compiler.map(|mode| match mode {
        CompilerMode::Native => Modes::Native,
        CompilerMode::Compiled => Modes::Compiled,
        CompilerMode::Auto => Modes::Both,
    });
    let options = Options {
        file: args.file.clone(),
        hf_args: args.layers.hf_args.clone(),
        set: args.layers.overrides(),
        out: args.out.clone(),
        mode: args.mode.or(of_mode),
        program: this_program()?,
    };
    let (sweep, out, error) = run(&options, &mut |line| say(line))?;
    match error {
        None => show(&sweep, &out),
        Some(error) => report::write_sweep(&sweep, &out, 0).and(Err(error)),
    }
}

/// Shows the search, and writes its page into the folder `out`.
pub(super) fn show(sweep: &Sweep, out: &Path) -> Result<()> {
    say("")?;
    say(report::write_sweep(sweep, out, width())?.trim_end())?;
    say(format!("report: {}", out.join(PAGE).display()))
}
