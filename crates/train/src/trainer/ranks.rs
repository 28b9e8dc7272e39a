//! A run of several ranks: rank 0 has the run folder and alone writes there. The others train the
//! same steps in a temporary folder each, which their session names, and into which rank 0 sends
//! what continues the run. So no file system has to be shared, and on one that is nobody is in
//! another's way.

use std::path::{Path, PathBuf};

use kiln_core::dataset::loader::Share;
use kiln_core::error::{Error, Result};
use kiln_core::files::{read_regular, write_whole};
use kiln_core::metrics;
use kiln_core::words::thousands;
use serde::{Deserialize, Serialize};

use super::setup::{Purpose, Trainer};
use super::state::TrainState;
#[cfg(feature = "cuda")]
use crate::arguments::DdpBackend;
use crate::distributed::{Shard, World, weights_checksum};
use crate::provenance::Provenance;
use crate::run_folder::{
    Beginning, Promise, RunFolder,
    checkpoint::{self, Checkpoint},
};
use crate::task::TrainingTask;

/// The state of the run folder that rank 0 has opened, told to the others.
#[derive(Debug, Serialize, Deserialize)]
struct Opened {
    promise: Promise,
    /// The run is complete: there is nothing to do.
    is_complete: bool,
    /// The step and the files of the checkpoint from which the run goes on.
    checkpoint: Option<(u64, Vec<PathBuf>)>,
}

impl<T: TrainingTask> Trainer<T> {
    /// Trains together with the other ranks of `world`, each of which has this trainer. The plan is
    /// one for as many devices ([`devices`](crate::TrainingArguments::devices)), or else the run is
    /// refused where it begins.
    #[must_use]
    pub fn with_world(mut self, world: World) -> Self {
        if world.is_shared() && self.session.plan().distributed.optimizer_sharding {
            let TrainState { model, optimizer, .. } = &mut self.state;
            *optimizer = optimizer.clone().with_shard(Shard::of(model, &world));
        }
        self.world = world;
        self
    }

    /// Refuses a plan for another number of devices than there are ranks. A rehearsal may make the
    /// steps of all in one process.
    pub(super) fn check_world(&self) -> Result<()> {
        let (planned, ranks) = (self.session.plan().batch.devices, self.world.size());
        if planned.count == ranks || (ranks == 1 && self.purpose != Purpose::Train) {
            return Ok(());
        }
        Err(Error::config(format!(
            "the plan is one for {planned}, and the trainer's world has {}",
            self.world.devices()
        ))
        .help("set TrainingArguments::devices = world.devices(), and give the trainer the same world"))
    }

    /// Has NCCL sum the gradients of CUDA devices, where the plan has it so.
    #[cfg(feature = "cuda")]
    pub(super) fn connect_devices(&mut self) -> Result<()> {
        let plan = self.session.plan();
        let (shared, device) = (plan.distributed, &plan.engine.device);
        if self.world.is_shared() && shared.backend(device.kind) == DdpBackend::Nccl {
            self.world = self.world.clone().with_nccl(device.index)?;
        }
        Ok(())
    }

    /// The turns of this rank's loader.
    pub(super) fn share(&self) -> Share {
        Share { turn: self.world.rank(), of: self.world.size() }
    }

    /// The run folder, and the checkpoint to go on from.
    fn create_folder(&self) -> Result<(RunFolder, Option<Checkpoint>)> {
        let session = &self.session;
        RunFolder::create(session.plan(), || {
            Ok(Beginning {
                promise: Promise::of(session)?,
                provenance: Provenance::of(session)?,
                files: session.description()?.files,
                task: session.task.task_name().map(str::to_owned),
            })
        })
    }

    /// Opens the run folder, and finds the checkpoint to go on from: rank 0 that of the run, the
    /// others one of their own, with what rank 0 has found. None on the other ranks where the run
    /// is complete.
    pub(super) fn open_folder(&self) -> Result<Option<(RunFolder, Option<Checkpoint>)>> {
        let world = &self.world;
        if !world.is_shared() {
            return self.create_folder().map(Some);
        }
        let own = if world.is_root() { Some(self.create_folder()?) } else { None };
        let opened = world.made_by_root(|| {
            let (folder, checkpoint) = own.as_ref().expect("rank 0 has opened it");
            let files = |found: &Checkpoint| {
                let mut files = found.state.files.keys().map(PathBuf::from).collect::<Vec<_>>();
                files.extend([checkpoint::STATE, checkpoint::DIGEST].map(PathBuf::from));
                (found.state.step, files)
            };
            Ok(Opened {
                promise: folder.promise.clone(),
                is_complete: folder.complete.is_some(),
                checkpoint: checkpoint.as_ref().map(files),
            })
        })?;
        if opened.is_complete {
            return Ok(own);
        }
        let path = self.session.plan().run.expanded_output_dir()?;
        if let Some((step, files)) = &opened.checkpoint {
            let target = path.join(checkpoint::FOLDER).join(checkpoint::name(*step));
            let found = own.as_ref().and_then(|(_, found)| found.as_ref());
            let source = found.map_or(&*target, |found| &*found.path);
            for file in files {
                self.send(&source.join(file), &target.join(file))?;
            }
            self.send(&path.join(metrics::FILE), &path.join(metrics::FILE))?;
        }
        match own {
            Some(own) => Ok(Some(own)),
            None => {
                let (folder, checkpoint) = self.create_folder()?;
                opened.promise.is_that_of(&folder.promise, world.rank())?;
                Ok(Some((folder, checkpoint)))
            }
        }
    }

    /// Rank 0 reads `source`, and the others write it to `target`.
    fn send(&self, source: &Path, target: &Path) -> Result<()> {
        let io = |action: &str, path: &Path, error: &std::io::Error| {
            Error::io(format!("{action} {}", path.display()), error)
        };
        let mut bytes = if self.world.is_root() {
            read_regular(source).map_err(|error| io("read", source, &error))?
        } else {
            Vec::new()
        };
        self.world.broadcast(&mut bytes)?;
        if self.world.is_root() {
            return Ok(());
        }
        let folder = target.parent().unwrap_or(target);
        std::fs::create_dir_all(folder).map_err(|error| io("create", folder, &error))?;
        write_whole(target, &bytes)
    }

    /// Says how much of the optimizer's state each rank has, by its tensors.
    pub(super) fn tell_moments(&mut self) {
        if self.world.is_shared() {
            let values = self.state.optimizer.state_values() as u64;
            let mib = values as f64 * 4.0 / f64::from(1 << 20);
            self.notice(&format!("the optimizer of this rank holds {} values, {mib:.1} MiB", thousands(values)));
        }
    }

    /// Whether all ranks have the same weights, which every one of them has computed for itself.
    pub(super) fn check_ranks(&self, step: u64) -> Result<()> {
        if !self.world.is_shared() {
            return Ok(());
        }
        let own = weights_checksum(&self.state.model)?;
        let all = self.world.gather(&[f64::from(own)])?;
        match all.iter().position(|other| *other != all[0]) {
            None => Ok(()),
            Some(rank) => Err(Error::device(format!(
                "step {step}: the weights of rank {rank} differ from those of rank 0, and nothing is saved of them"
            ))
            .help("a device computes wrongly, or the machines have processors that add in another order; continue from the \
                   newest checkpoint on machines of one kind")),
        }
    }
}
