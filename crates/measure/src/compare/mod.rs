//! `kiln compare` and `kiln report`: is it worth compiling this run, on this machine, with this
//! data, and at what batch? [`run`](mod@run) makes the runs, each in a process of its own;
//! [`crate::measured`] reads finished ones; [`analyse`](mod@analyse) makes a [`Report`] of them;
//! [`crate::report`] shows it. An [`Experiment`], kept as `experiment.json`, holds the facts that a
//! report needs beyond the run folders, so that the report can be made again without running
//! anything.

pub mod ablation;
pub mod analyse;
pub mod arms;
mod derived;
mod learned;
pub mod gate;
mod record;
mod repeat;
pub mod run;
pub mod saved;

pub use gate::Gate;
pub use learned::{Evaluated, Figure, Learned};
pub(crate) use learned::{figure_names, greater_is_better};
pub use record::{
    ArmReport, ArmRuns, Comparison, Derived, EXPERIMENT_SCHEMA, Experiment, LossPoint, Moments, REPORT_SCHEMA, Report,
    Role, WholeRun,
};
