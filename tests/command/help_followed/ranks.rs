//! Launchers, MPI and ranks.

use super::Do::{Args, Env, Run, Set};
use super::{CLASSES, Do, TRAIN, all, case, joined, leak, unrecorded};
use crate::common::messages::messages;
use crate::common::ranks::mpirun;
use crate::torchrun::{library, port};

/// `kiln launch -n 2`
const LAUNCH: Do = Args(&["launch", "-n", "2", "--", "train", "config.toml"]);

/// The environment in which Open MPI starts ranks on any machine.
const OPEN_MPI: [Do; 4] = [
    Env("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    Env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    Env("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    Env("RAYON_NUM_THREADS", "1"),
];

#[test]
fn variables_of_launchers() {
    all(
        messages!(),
        &[
            case(CLASSES, &[TRAIN, Env("PMIX_RANK", "0")], &[Env("PMIX_RANK", "")]),
            case(CLASSES, &[TRAIN, Env("SM_HOSTS", "[\"algo-1\",\"algo-2\"]")], &[Env("SM_HOSTS", "")]),
            case(
                CLASSES,
                &[
                    Run(&["train", "config.toml"]),
                    Args(&["runs", "."]),
                    Env("OMPI_COMM_WORLD_RANK", "0"),
                    Env("OMPI_COMM_WORLD_SIZE", "2"),
                ],
                &[Env("OMPI_COMM_WORLD_RANK", ""), Env("OMPI_COMM_WORLD_SIZE", "")],
            ),
            case(
                CLASSES,
                &[
                    Args(&[
                        "launch",
                        "--nnodes",
                        "1",
                        "--node-rank",
                        "0",
                        "--master-addr",
                        "localhost",
                        "--",
                        "train",
                        "config.toml",
                    ]),
                    Env("MASTER_PORT", "first"),
                ],
                &[Env("MASTER_PORT", "")],
            ),
            case(
                CLASSES,
                &[
                    Args(&[
                        "launch",
                        "--nnodes",
                        "1",
                        "--node-rank",
                        "0",
                        "--master-addr",
                        "localhost",
                        "--",
                        "train",
                        "config.toml",
                    ]),
                    Env("MASTER_PORT", "first"),
                ],
                &[Args(&[
                    "launch",
                    "--nnodes",
                    "1",
                    "--node-rank",
                    "0",
                    "--master-addr",
                    "localhost",
                    "--master-port",
                    "29517",
                    "--",
                    "train",
                    "config.toml",
                ])],
            ),
            case(
                CLASSES,
                &[Args(&[
                    "launch",
                    "--nnodes",
                    "1",
                    "--node-rank",
                    "1",
                    "--master-addr",
                    "localhost",
                    "--",
                    "train",
                    "config.toml",
                ])],
                &[Args(&[
                    "launch",
                    "--nnodes",
                    "1",
                    "--node-rank",
                    "0",
                    "--master-addr",
                    "localhost",
                    "--",
                    "train",
                    "config.toml",
                ])],
            ),
        ],
    );
}

#[test]
fn launchers_and_libraries() {
    if mpirun().is_none() {
        return;
    }
    let with = |more: &[Do]| joined(&OPEN_MPI, more);
    let port = Env("MASTER_PORT", leak(&port()));
    let mut cases = vec![
        case(
            CLASSES,
            with(&[Args(&["launch", "-n", "2", "--mpirun", "no-mpirun", "--", "train", "config.toml"])]),
            &[Args(&["launch", "-n", "2", "--mpirun", "mpirun", "--", "train", "config.toml"])],
        )
        .saying(&["cannot start no-mpirun", "or name it: `kiln launch --mpirun PROGRAM`"]),
        case(
            CLASSES,
            with(&[Args(&["launch", "-n", "2", "--mpirun", "false", "--", "train", "config.toml"])]),
            &[Args(&["launch", "-n", "2", "--mpirun", "mpirun", "--", "train", "config.toml"])],
        )
        .saying(&["expected the mpirun of Open MPI or MPICH", "or name it: `kiln launch --mpirun PROGRAM`"]),
        case(CLASSES, with(&[Args(&["launch", "--", "train", "config.toml"])]), &[LAUNCH])
            .saying(&["expected the number of processes", "as in `kiln launch -n 2 -- train FILE`"]),
        case(
            CLASSES,
            with(&[Args(&["launch", "-n", "0", "--", "train", "config.toml"])]),
            &[Args(&["launch", "-n", "1", "--", "train", "config.toml"])],
        )
        .saying(&["expected a number of ranks that 1 machines share evenly", "help: -n 1"]),
        case(CLASSES, with(&[LAUNCH, Set("batch.global_batch_size", "9")]), &[Set("batch.global_batch_size", "16")])
            .saying(&["is no multiple of", "set batch.global_batch_size = 16"]),
        // A launcher within a launcher, and no launcher.
        case(
            CLASSES,
            with(&[Args(&["mpirun", "-n", "2", "kiln", "launch", "-n", "2", "--", "train", "config.toml"])]),
            &[Args(&["mpirun", "-n", "2", "kiln", "train", "config.toml"])],
        )
        .saying(&[
            "has started this process already",
            "leave `launch -n N --` out: mpirun and srun start `kiln train FILE`",
        ]),
        case(
            CLASSES,
            with(&[LAUNCH, Env("RANK", "0"), Env("WORLD_SIZE", "2")]),
            &[Env("RANK", ""), Env("WORLD_SIZE", "")],
        )
        .saying(&[
            "RANK = 0, WORLD_SIZE = 2 has started this process already",
            "where no launcher has set these variables, unset them",
        ]),
        case(
            CLASSES,
            with(&[LAUNCH, Set("distributed.ddp_backend", "\"nccl\"")]),
            &[Set("distributed.ddp_backend", "\"mpi\"")],
        )
        .saying(&["this run computes on cpu", "leave it out, or set it to \"mpi\""]),
        case(
            CLASSES,
            with(&[TRAIN, Env("SLURM_PROCID", "0"), Env("SLURM_STEP_NUM_TASKS", "2")]),
            &[Args(&["mpirun", "-n", "2", "kiln", "train", "config.toml"])],
        )
        .saying(&["srun has started no MPI", "or with mpirun"]),
        // The library.
        case(CLASSES, with(&[LAUNCH, Env("KILN_MPI", "/nowhere/libmpi.so.40")]), &[Env("KILN_MPI", "")])
            .saying(&["KILN_MPI = \"/nowhere/libmpi.so.40\" cannot be loaded", "`apt-get install openmpi-bin`"]),
    ];
    if let Some(library) = library(&["libmpi.so.40"]) {
        let right = joined(&[Env("KILN_MPI", library)], &[]);
        let torchrun = &[
            TRAIN,
            Env("RANK", "0"),
            Env("WORLD_SIZE", "2"),
            Env("MASTER_ADDR", "localhost"),
            port,
            Env("KILN_MPI", library),
        ];
        cases.extend([
            case(CLASSES, with(&[LAUNCH, Env("KILN_MPI", "/nowhere/libmpi.so.40")]), right)
                .saying(&["or name its library: KILN_MPI=/path/to/libmpi.so.40"]),
            case(CLASSES, with(&[LAUNCH, Env("KILN_MPI", "libc.so.6")]), right)
                .saying(&["libc.so.6 has no MPI_Init_thread", "KILN_MPI names the library, as in KILN_MPI=/usr/lib/"]),
            case(CLASSES, with(torchrun), &[LAUNCH, Env("RANK", ""), Env("WORLD_SIZE", "")]).saying(&[
                "makes no world",
                "or unset RANK and WORLD_SIZE and start with `kiln launch -n N -- train FILE`",
            ]),
        ]);
    }
    unrecorded(&cases);
}
