//! Ranks that are started with the variables of torchrun alone, and meet by a library of MPICH's
//! interface.
#![cfg(target_os = "linux")]

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::common::ranks::{accumulate, all, same};
use crate::common::skip::skip;
use crate::common::small_run::{train, write};
use crate::common::{fails, succeeds};

/// The first of `libraries` that the loader knows. Without one the test is skipped: none.
pub(crate) fn library(libraries: &[&'static str]) -> Option<&'static str> {
    let known = ["ldconfig", "/sbin/ldconfig"].iter().find_map(|program| Command::new(program).arg("-p").output().ok());
    let known = known.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let found = libraries.iter().find(|name| known.contains(&format!("{name} ")));
    if found.is_none() {
        let (need, package) = if libraries == MPICH { ("mpich", "libmpich12") } else { ("openmpi", "libopenmpi3") };
        skip!(need, "the loader knows none of {libraries:?}: install {package}");
    }
    found.copied()
}

/// A port that was free.
pub(crate) fn port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
}

/// The rank `rank` of two, into the folder `run`.
fn rank(folder: &Path, library: &str, rank: usize, port: &str, run: &str, more: &[&str]) -> Command {
    let mut command = train(folder, run, more);
    command.envs([
        ("RANK", &*rank.to_string()),
        ("LOCAL_RANK", &rank.to_string()),
        ("WORLD_SIZE", "2"),
        ("LOCAL_WORLD_SIZE", "2"),
    ]);
    command.envs([
        ("MASTER_ADDR", "localhost"),
        ("MASTER_PORT", port),
        ("KILN_MPI", library),
        ("RAYON_NUM_THREADS", "1"),
    ]);
    command
}

/// Both ranks, and the files to which they talk.
fn start(folder: &Path, library: &str, run: &str, more: [&[&str]; 2]) -> [Child; 2] {
    let port = port();
    [0, 1].map(|number| {
        let mut command = rank(folder, library, number, &port, run, more[number]);
        let said = std::fs::File::create(folder.join(format!("said-{number}"))).unwrap();
        command.stdout(said.try_clone().unwrap()).stderr(said).spawn().unwrap()
    })
}

fn said(folder: &Path, rank: usize) -> String {
    std::fs::read_to_string(folder.join(format!("said-{rank}"))).unwrap()
}

/// The exit code of a process that ends within `seconds`.
pub(crate) fn code_within(seconds: u64, mut child: Child) -> Option<i32> {
    let asked = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if asked.elapsed() > Duration::from_secs(seconds) {
            let _ = child.kill();
            panic!("it has not ended within {seconds} s");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) const MPICH: [&str; 2] = ["libmpich.so.12", "libmpi.so.12"];

#[test]
fn the_variables_of_torchrun_make_a_world() {
    let Some(library) = library(&MPICH) else { return };
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    write(folder, "clm");
    succeeds(&mut train(folder, "one", &all(&accumulate(2), &[])));
    let accumulate = accumulate(1);
    let more = all(&accumulate, &[]);
    let ranks = start(folder, library, "two", [&more, &more]);
    assert_eq!(ranks.map(|rank| code_within(120, rank)), [Some(0); 2], "{} {}", said(folder, 0), said(folder, 1));
    assert!(said(folder, 0).contains(&format!("2 ranks by {library}")), "{}", said(folder, 0));
    assert_eq!(said(folder, 1), "", "rank 0 alone talks");
    same(folder, "one", "two");
}

/// A rank that is killed ends the other one, and the run continues; one that ends by an error ends
/// the other with its exit code.
#[test]
fn a_rank_ends_with_the_other() {
    let Some(library) = library(&MPICH) else { return };
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    write(folder, "clm");
    let steps =
        ["--set", "trainer.max_steps=400", "--set", "trainer.save_steps=1", "--set", "batch.global_batch_size=6"];
    let steps = all(&accumulate(1), &steps).into_iter().map(str::to_owned).collect::<Vec<_>>();
    for victim in [1, 0] {
        let run = format!("run-{victim}");
        let more = all(&steps, &[]);
        let mut ranks = start(folder, library, &run, [&more, &more]);
        let asked = Instant::now();
        let checkpoints = folder.join(&run).join("checkpoints");
        let is_saved = || {
            let mut names =
                std::fs::read_dir(&checkpoints).into_iter().flatten().flatten().map(|entry| entry.file_name());
            names.any(|name| name.to_string_lossy().starts_with("step-"))
        };
        while !is_saved() {
            assert!(asked.elapsed() < Duration::from_secs(60), "no step was saved: {}", said(folder, 0));
            std::thread::sleep(Duration::from_millis(20));
        }
        ranks[victim].kill().unwrap();
        let [zero, one] = ranks;
        let other = if victim == 0 { one } else { zero };
        assert_eq!(code_within(10, other), Some(7), "{} {}", said(folder, 0), said(folder, 1));
        if victim == 1 {
            assert!(said(folder, 0).contains("error: rank 1 is gone"), "{}", said(folder, 0));
        }
        let output = succeeds(&mut train(folder, &run, &all(&steps, &["--resume", "--stop-after", "1"])));
        assert!(output.contains("continuing after step"), "{output}");
    }
    let more = all(&steps, &[]);
    let missing = all(&steps, &["--set", "data.train=missing.jsonl"]);
    let ranks = start(folder, library, "missing", [&more, &missing]);
    assert_eq!(ranks.map(|rank| code_within(60, rank)), [Some(2); 2], "{} {}", said(folder, 0), said(folder, 1));
}

/// A rank that fails in its config, its arguments or its library has met nobody, and ends the other
/// at once all the same; where both fail, rank 0 says it first.
#[test]
fn a_rank_that_fails_before_the_meeting_ends_the_other() {
    let Some(library) = library(&MPICH) else { return };
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    write(folder, "clm");
    let ends = |ranks: [Child; 2]| ranks.map(|rank| code_within(60, rank));
    let faults = [(&["--set", "trainer.no_such_key=1"][..], "no_such_key"), (&["--no-such-flag"], "--no-such-flag")];
    for (fault, name) in faults {
        for victim in [0, 1] {
            let more = [0, 1].map(|rank| if rank == victim { fault } else { &[] });
            let codes = ends(start(folder, library, "run", more));
            let [own, other] = [victim, 1 - victim].map(|rank| said(folder, rank));
            assert_eq!(codes, [Some(2); 2], "{own} {other}");
            assert!(own.contains(name), "{own}");
            assert!(other.contains(&format!("error: rank {victim} has ended the run with exit code 2")), "{other}");
        }
        let codes = ends(start(folder, library, "run", [fault; 2]));
        assert_eq!(codes, [Some(2); 2], "{} {}", said(folder, 0), said(folder, 1));
        assert!([0, 1].iter().all(|rank| !said(folder, *rank).contains("has ended the run")), "{}", said(folder, 1));
    }
    let port = port();
    let ranks = [library, "libmissing.so"].into_iter().enumerate();
    let mut ranks = ranks.map(|(number, library)| rank(folder, library, number, &port, "run", &[]));
    let mut spawn = || ranks.next().unwrap().stderr(std::process::Stdio::null()).spawn().unwrap();
    assert_eq!(ends([spawn(), spawn()]), [Some(2); 2]);
    assert!(!folder.join("run").exists());
}

#[test]
fn ranks_that_cannot_meet_are_refused_and_nothing_is_written() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    write(folder, "clm");
    if let Some(library) = library(&MPICH) {
        let mut nowhere = rank(folder, library, 0, "0", "run", &[]);
        fails(&mut nowhere, 2, &["MASTER_PORT: expected a port from 1 to 65535, got \"0\""]);
        fails(nowhere.env_remove("MASTER_PORT"), 2, &["RANK and WORLD_SIZE are set and MASTER_PORT is not"]);
        let mut alone = rank(folder, library, 1, &port(), "run", &[]);
        fails(
            alone.env("KILN_MPI_TIMEOUT", "2"),
            7,
            &["rank 0 has not answered at localhost", "for 2 s", "MASTER_ADDR"],
        );
    }
    if let Some(library) = library(&["libmpi.so.40"]) {
        let parts = ["RANK = 0, WORLD_SIZE = 2 tell of 2 ranks", "makes no world", "libmpich12", "kiln launch -n N"];
        fails(&mut rank(folder, library, 0, &port(), "run", &[]), 2, &parts);
    }
    assert!(!folder.join("run").exists());
}
