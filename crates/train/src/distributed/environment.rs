//! The variables by which launchers tell a process its place: Open MPI's mpirun, Hydra (MPICH's and
//! Intel's mpirun), PMIx and SLURM's srun, and those of torchrun.

use std::collections::BTreeMap;

use kiln_core::error::{Error, Result};
use kiln_core::process;
use kiln_core::words::json_words;

/// The variable with a word that nobody else knows, the same for all ranks of a run: who does not
/// say it is sent away.
pub(super) const TOKEN: &str = "KILN_RANKS_TOKEN";

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
    /// The place of a process alone.
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

impl Launcher {
    /// It is an mpirun.
    fn is_mpirun(self) -> bool {
        matches!(self, Self::OpenMpi | Self::Hydra)
    }

    /// How ranks are started otherwise where MPI does not find the world of this launcher.
    pub(super) const fn other_start(self) -> &'static str {
        match self {
            Self::Torchrun => {
                "torchrun starts no MPI, and of its variables alone only a library of MPICH's interface makes a world that knows PMI-1 \
                 (not PMIx alone, as Ubuntu 24.04's): install it on every machine (Debian: `apt-get install libmpich12`; Red Hat: \
                 `dnf install mpich`) or name it by KILN_MPI, or unset RANK and WORLD_SIZE and start with \
                 `kiln launch -n N -- train FILE`, mpirun or srun"
            }
            Self::Slurm => {
                "start with `srun --mpi=pmix` (or pmi2, by what this MPI was built for: `srun --mpi=list`), or with mpirun; KILN_MPI \
                 names another library"
            }
            Self::OpenMpi | Self::Hydra => "the library is not that of this mpirun: KILN_MPI names the right one",
        }
    }
}

/// The variables of a launcher: its kind, rank and size, and rank and size on the machine, which
/// not all of them tell.
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
    /// The variables that tell the place, as in `OMPI_COMM_WORLD_RANK = 1, OMPI_COMM_WORLD_SIZE =
    /// 2`.
    pub variables: String,
    /// Where this process stands.
    pub place: Place,
}

/// The place of this process in a world of more than one; none without a launcher, in a world of
/// one, and in a process that another kiln has started to work for it.
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
        match (variables.contains_key(rank), variables.contains_key(size)) {
            (true, true) => {}
            // The script of a SLURM job has the one, and no place in a world.
            (true, false) | (false, true) if launcher != Launcher::Slurm => {
                let [there, lacks] = if variables.contains_key(rank) { [rank, size] } else { [size, rank] };
                return Err(Error::config(format!("{there} is set and {lacks} is not: expected both, of a launcher"))
                    .help(format!("unset {there} to train in one process")));
            }
            _ => continue,
        }
        let (Some(own), Some(all)) = (number(rank)?, number(size)?) else { continue };
        let told = format!("{rank} = {own}, {size} = {all}");
        if own >= all {
            return Err(Error::config(format!("{told}: expected a rank below the size of the world")));
        }
        let [other_rank, other_size] = LAUNCHERS[4].1;
        // Clusters set the variables of torchrun for each process, or for each machine, on which
        // mpirun then makes a world.
        if let (true, Some(other), Some(of)) =
            (launcher.is_mpirun(), number(other_rank)?, number(other_size)?.filter(|size| *size > 1))
            && (other, of) != (own, all)
        {
            return Err(Error::config(format!(
                "{told} tell of another world than {other_rank} = {other}, {other_size} = {of}"
            ))
            .help(
                "let one mpirun start all ranks, on all machines (`-H`), and unset the variables that are not its own",
            ));
        }
        // torchrun in a step of Slurm makes a world of its own.
        let of_torchrun = number(other_rank)?.zip(number(other_size)?).filter(|(_, size)| *size > 1);
        let starts_mpi = variables.keys().any(|name| name.starts_with("PMI"));
        if let (Launcher::Slurm, Some(world), true) = (launcher, of_torchrun, variables.contains_key("MASTER_ADDR"))
            && (world != (own, all) || !starts_mpi)
        {
            continue;
        }
        if all == 1 {
            return Ok(None);
        }
        // Open MPI ends a process that srun has started so, without a word of Kiln's.
        if launcher == Launcher::Slurm && !starts_mpi {
            return Err(Error::config(format!(
                "{told} tell of {all} ranks, and srun has started no MPI: there is no variable PMIX_.. or PMI_.."
            ))
            .help(launcher.other_start()));
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
    match number("PMIX_RANK")? {
        None => Ok(None),
        Some(rank) => Err(Error::config(format!(
            "PMIX_RANK = {rank} tells of a launcher that does not say how many ranks there are"
        ))
        .help("start with mpirun or `srun --mpi=pmix`, or unset PMIX_RANK to train in one process")),
    }
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

/// The devices that this process may see, as `CUDA_VISIBLE_DEVICES` lists them; nothing where it
/// may see all.
pub(super) fn visible_devices() -> String {
    std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default()
}

/// Whether the lists of visible devices of processes have nothing in common, none of them empty.
pub(super) fn are_disjoint<'a>(lists: impl Iterator<Item = &'a String>) -> bool {
    let mut seen = std::collections::BTreeSet::new();
    lists.flat_map(|list| list.split(',')).all(|device| !device.trim().is_empty() && seen.insert(device.trim()))
}

/// The machines of a SageMaker job (`SM_HOSTS`, a JSON list) and this one among them
/// (`SM_CURRENT_HOST`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    /// All of them.
    pub all: Vec<String>,
    /// This one's place in the list.
    pub own: usize,
}

impl Hosts {
    /// The machines that `SM_HOSTS` and `SM_CURRENT_HOST` name; none where neither is set.
    ///
    /// # Errors
    /// One of them without the other, a list that cannot be read, or that this machine is not in.
    pub fn of_sagemaker() -> Result<Option<Self>> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        match (variable("SM_HOSTS"), variable("SM_CURRENT_HOST")) {
            (Some(hosts), Some(own)) => Self::read(&hosts, &own).map(Some),
            (None, None) => Ok(None),
            (hosts, _) => {
                let [there, lacks] = ["SM_HOSTS", "SM_CURRENT_HOST"];
                let [there, lacks] = if hosts.is_some() { [there, lacks] } else { [lacks, there] };
                Err(Error::config(format!("{there} is set and {lacks} is not: expected both, of a SageMaker job"))
                    .help(format!("unset {there} to train in one process")))
            }
        }
    }

    /// Refuses a process that no launcher has started in a job of several machines: each of them
    /// would make the whole run.
    pub(super) fn check_alone() -> Result<()> {
        let hosts = if process::is_child() { None } else { Self::of_sagemaker()? };
        match hosts.filter(|hosts| hosts.all.len() > 1) {
            None => Ok(()),
            Some(hosts) => Err(Error::config(format!(
                "SM_HOSTS names {} machines ({}), and no launcher has started the ranks of a run on them",
                hosts.all.len(),
                hosts.all.join(", ")
            ))
            .help(format!(
                "start `kiln launch -n N -- train FILE` on {}, or let the platform's mpirun start Kiln (SageMaker: \
                 distribution={{\"mpi\": {{\"enabled\": True}}}})",
                hosts.all[0]
            ))),
        }
    }

    fn read(hosts: &str, own: &str) -> Result<Self> {
        let all: Vec<String> = serde_json::from_str(hosts).map_err(|error| {
            Error::config(format!("SM_HOSTS: expected a JSON list of names, got {hosts:?}: {}", json_words(&error)))
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
        let step = [("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_LOCALID", "1"), ("PMIX_RANK", "1")];
        let slurm = of(&step);
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
    fn srun_tells_the_place_and_starts_pmi_or_pmix() {
        let step =
            [("SLURM_PROCID", "3"), ("SLURM_NTASKS", "4"), ("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_LOCALID", "1")];
        for (more, launcher) in [
            (&[("PMI_FD", "9"), ("PMI_JOBID", "7.0")][..], Launcher::Slurm),
            (&[("PMIX_RANK", "3"), ("PMIX_NAMESPACE", "slurm.pmix.7.0")], Launcher::Slurm),
            (&[("PMI_RANK", "3"), ("PMI_SIZE", "4"), ("PMI_JOBID", "7.0")], Launcher::Hydra),
        ] {
            let found = found(&[&step[..], more].concat()).unwrap().unwrap();
            assert_eq!((found.launcher, found.place.rank, found.place.size), (launcher, 3, 4));
        }
        let error = found(&step).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains("srun --mpi=pmix"), "{error}");
        // torchrun in a step: its own world, of other ranks than the step's, or of as many where
        // srun starts no MPI.
        for (rank, size, more) in [("1", "2", &[][..]), ("1", "8", &[("PMIX_RANK", "3")]), ("3", "4", &[])] {
            let torch = [("RANK", rank), ("WORLD_SIZE", size), ("MASTER_ADDR", "node-0")];
            let found = found(&[&step[..], &torch, more].concat()).unwrap().unwrap();
            assert_eq!((found.launcher, found.place.size.to_string()), (Launcher::Torchrun, size.to_owned()));
        }
        let agree = [("RANK", "3"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "node-0"), ("PMIX_RANK", "3")];
        assert_eq!(found(&[&step[..], &agree].concat()).unwrap().unwrap().launcher, Launcher::Slurm);
        // mpirun in a job starts its helpers by srun, one on each machine; their children are its
        // own.
        let helper = [("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "2")];
        let own = [("OMPI_COMM_WORLD_RANK", "5"), ("OMPI_COMM_WORLD_SIZE", "8")];
        assert_eq!(found(&[helper, own].concat()).unwrap().unwrap().place.size, 8);
    }

    #[test]
    fn devices_of_ones_own_are_disjoint_lists() {
        let disjoint =
            |lists: &[&str]| are_disjoint(lists.iter().map(|list| (*list).to_owned()).collect::<Vec<_>>().iter());
        assert!(disjoint(&["0", "1"]) && disjoint(&["0,1", "2,3"]) && disjoint(&["GPU-a", "GPU-b"]));
        assert!(!disjoint(&["0,1", "0,1"]) && !disjoint(&["", ""]) && !disjoint(&["0", ""]));
    }

    #[test]
    fn nonsense_is_refused() {
        let error = |variables: &[(&str, &str)]| found(variables).unwrap_err();
        let text = error(&[("PMI_RANK", "one"), ("PMI_SIZE", "2")]);
        assert!(text.to_string().starts_with("PMI_RANK: expected a whole number, got \"one\""), "{text}");
        let two_worlds =
            [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2"), ("RANK", "1"), ("WORLD_SIZE", "4")];
        let text = error(&two_worlds);
        assert!(text.to_string().contains("tell of another world than RANK = 1, WORLD_SIZE = 4"), "{text}");
        let text = error(&[("PMIX_RANK", "1"), ("PMIX_NAMESPACE", "prterun-1@1")]);
        assert!(text.to_string().contains("does not say how many ranks there are"), "{text}");
        let text = error(&[("WORLD_SIZE", "2")]);
        assert!(text.to_string().contains("WORLD_SIZE is set and RANK is not"), "{text}");
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
