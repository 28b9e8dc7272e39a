//! The variables by which launchers tell a process its place: Open MPI's mpirun, Hydra (MPICH's and Intel's mpirun), PMIx and
//! SLURM's srun, and those of torchrun.

use std::collections::BTreeMap;

use crate::base::error::{Error, Result};
use crate::base::process;

/// The place of a process among those of its launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its number, from 0.
    pub rank: usize,
    /// How many there are.
    pub size: usize,
    /// Its number on its machine, from 0.
    pub local_rank: usize,
    /// How many its machine has.
    pub local_size: usize,
}

impl Place {
    /// That of a process alone.
    pub const ALONE: Self = Self { rank: 0, size: 1, local_rank: 0, local_size: 1 };
}

/// A kind of launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// Open MPI's mpirun.
    OpenMpi,
    /// mpirun of MPICH and of what is made of it.
    Hydra,
    /// srun.
    Slurm,
    /// torchrun, or a cluster that sets its variables.
    Torchrun,
}

/// The variables of a launcher: its kind, rank and size, and rank and size on the machine, which not all of them tell.
const LAUNCHERS: [(Launcher, [&str; 2], [&str; 2]); 5] = [
    (
        Launcher::OpenMpi,
        ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
        ["OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"],
    ),
    (Launcher::Hydra, ["PMI_RANK", "PMI_SIZE"], ["MPI_LOCALRANKID", "MPI_LOCALNRANKS"]),
    // SLURM_NTASKS is also set in a batch script, which is no task of a step.
    (Launcher::Slurm, ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS"], ["SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"]),
    (Launcher::Slurm, ["PMIX_RANK", "SLURM_STEP_NUM_TASKS"], ["SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"]),
    (Launcher::Torchrun, ["RANK", "WORLD_SIZE"], ["LOCAL_RANK", "LOCAL_WORLD_SIZE"]),
];

/// The place of this process in the world, as its launcher has told it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Which it is.
    pub launcher: Launcher,
    /// The variables that tell the place, as in `OMPI_COMM_WORLD_RANK = 1, OMPI_COMM_WORLD_SIZE = 2`.
    pub variables: String,
    /// Where this process stands.
    pub place: Place,
}

/// The place of this process in a world of more than one; none without a launcher, in a world of one, and in a process that
/// another kiln has started to work for it.
///
/// # Errors
/// Variables that are no numbers, or contradict one another.
pub fn find() -> Result<Option<Found>> {
    if process::is_child() {
        return Ok(None);
    }
    let variables = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    found_in(&variables.filter_map(|(name, value)| Some((name, value.into_string().ok()?))).collect())
}

fn found_in(variables: &BTreeMap<String, String>) -> Result<Option<Found>> {
    let number = |name: &str| match variables.get(name) {
        None => Ok(None),
        Some(text) => text.trim().parse::<usize>().map(Some).map_err(|_| {
            Error::config(format!("{name}: expected a whole number, got {text:?}"))
                .help("a launcher (mpirun, srun, kiln launch) sets it; unset it to train in one process")
        }),
    };
    for (launcher, [rank, size], [local_rank, local_size]) in LAUNCHERS {
        if !variables.contains_key(rank) || !variables.contains_key(size) {
            continue;
        }
        let (Some(own), Some(all)) = (number(rank)?, number(size)?) else { continue };
        let told = format!("{rank} = {own}, {size} = {all}");
        if own >= all {
            return Err(Error::config(format!("{told}: expected a rank below the size of the world")));
        }
        if all == 1 {
            return Ok(None);
        }
        let local = |name| number(name).ok().flatten();
        let place = Place {
            rank: own,
            size: all,
            local_rank: local(local_rank).unwrap_or(0),
            local_size: local(local_size).unwrap_or(1),
        };
        return Ok(Some(Found { launcher, variables: told, place }));
    }
    Ok(None)
}

/// The name of this machine.
pub(super) fn host() -> String {
    let name = name_of_machine();
    if name.is_empty() { "localhost".into() } else { name }
}

#[cfg(unix)]
fn name_of_machine() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

#[cfg(not(unix))]
fn name_of_machine() -> String {
    String::new()
}

/// The machines of a SageMaker job (`SM_HOSTS`, a JSON list) and this one among them (`SM_CURRENT_HOST`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    /// All of them.
    pub all: Vec<String>,
    /// This one's place in the list.
    pub own: usize,
}

impl Hosts {
    /// As the variables tell; none where they are not set.
    ///
    /// # Errors
    /// A list that cannot be read, or that this machine is not in.
    pub fn of_sagemaker() -> Result<Option<Self>> {
        let variable = |name: &str| std::env::var(name).ok();
        let (Some(hosts), Some(own)) = (variable("SM_HOSTS"), variable("SM_CURRENT_HOST")) else { return Ok(None) };
        Self::read(&hosts, &own).map(Some)
    }

    fn read(hosts: &str, own: &str) -> Result<Self> {
        let all: Vec<String> = serde_json::from_str(hosts).map_err(|error| {
            Error::config(format!("SM_HOSTS: expected a JSON list of names, got {hosts:?}: {error}"))
        })?;
        match all.iter().position(|host| host == own) {
            Some(own) => Ok(Self { all, own }),
            None => Err(Error::config(format!("SM_CURRENT_HOST: {own:?} is none of SM_HOSTS = {hosts}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Result<Option<Found>> {
        found_in(&variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn launchers_tell_the_same_place() {
        let place = Place { rank: 1, size: 4, local_rank: 1, local_size: 2 };
        let of = |variables: &[(&str, &str)]| found(variables).unwrap().unwrap();
        let open_mpi = of(&[
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ]);
        assert_eq!((open_mpi.launcher, open_mpi.place), (Launcher::OpenMpi, place));
        let hydra = of(&[("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2")]);
        assert_eq!((hydra.launcher, hydra.place), (Launcher::Hydra, place));
        let slurm = of(&[("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_LOCALID", "1")]);
        assert_eq!((slurm.launcher, slurm.place.rank, slurm.place.size), (Launcher::Slurm, 1, 4));
        let torch = of(&[("RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")]);
        assert_eq!((torch.launcher, torch.place), (Launcher::Torchrun, place));
        assert_eq!(torch.variables, "RANK = 1, WORLD_SIZE = 4");
    }

    #[test]
    fn no_launcher_and_one_process_are_no_world() {
        assert_eq!(found(&[]).unwrap(), None);
        assert_eq!(found(&[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")]).unwrap(), None);
        assert_eq!(found(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]).unwrap(), None, "a batch script");
    }

    #[test]
    fn nonsense_is_refused() {
        let error = |variables: &[(&str, &str)]| found(variables).unwrap_err();
        let text = error(&[("PMI_RANK", "one"), ("PMI_SIZE", "2")]);
        assert!(text.to_string().starts_with("PMI_RANK: expected a whole number, got \"one\""), "{text}");
        let text = error(&[("RANK", "2"), ("WORLD_SIZE", "2")]);
        assert!(text.to_string().contains("RANK = 2, WORLD_SIZE = 2"), "{text}");
        assert_eq!(text.exit_code(), 2);
    }

    #[test]
    fn sagemaker_names_its_machines() {
        let hosts = Hosts::read("[\"algo-1\",\"algo-2\"]", "algo-2").unwrap();
        assert_eq!((hosts.all.len(), hosts.own), (2, 1));
        assert_eq!(Hosts::read("algo-1", "algo-1").unwrap_err().exit_code(), 2);
        assert_eq!(Hosts::read("[\"algo-1\"]", "algo-3").unwrap_err().exit_code(), 2);
    }
}
