//! Runs of several ranks: `kiln launch` with the mpirun that is installed. Without one their tests
//! say so and pass; `KILN_MPIRUN` names another.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::kiln;
use super::skip::skip;
use super::small_run::{figures, train, write};

/// The mpirun of this machine. Without one the test is skipped: none.
pub fn mpirun() -> Option<PathBuf> {
    let named = std::env::var_os("KILN_MPIRUN").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        named.or_else(|| std::env::split_paths(&path).map(|folder| folder.join("mpirun")).find(|it| it.is_file()));
    if found.is_none() {
        skip!("mpi", "no mpirun: install openmpi-bin, or name one with KILN_MPIRUN");
    }
    found
}

/// A folder with the config of a run, and the mpirun that starts its ranks.
pub struct Launcher {
    pub mpirun: PathBuf,
    place: TempDir,
}

impl Launcher {
    /// For the small run of `task`.
    pub fn of(task: &str) -> Option<Self> {
        Self::in_folder(|| {
            let place = tempfile::tempdir().unwrap();
            write(place.path(), task);
            place
        })
    }

    /// For what `prepare` makes.
    pub fn in_folder(prepare: impl FnOnce() -> TempDir) -> Option<Self> {
        mpirun().map(|mpirun| Self { mpirun, place: prepare() })
    }

    pub fn folder(&self) -> &Path {
        self.place.path()
    }

    /// `kiln launch -n RANKS -- COMMAND`
    pub fn start(&self, ranks: usize, command: &[&str]) -> Command {
        let mut launch = kiln(self.folder());
        launch
            .args(["launch", "-n", &ranks.to_string(), "--mpirun", self.mpirun.to_str().unwrap(), "--"])
            .args(command);
        // Some machines have more ranks here than cores.
        launch.env("RAYON_NUM_THREADS", "1");
        launch
    }

    /// The run by `ranks` ranks into the folder `run`.
    pub fn launch(&self, ranks: usize, run: &str, more: &[&str]) -> Command {
        let output = format!("run.output_dir={run}");
        self.start(ranks, &[&["train", "config.toml", "--set", &output], more].concat())
    }

    /// The run by one process, without a launcher.
    pub fn alone(&self, run: &str, more: &[&str]) -> Command {
        train(self.folder(), run, more)
    }

    /// The run by `ranks` ranks, or without a launcher by a single one.
    pub fn run(&self, ranks: usize, run: &str, more: &[&str]) -> Command {
        if ranks == 1 { self.alone(run, more) } else { self.launch(ranks, run, more) }
    }

    /// The content of a file of the folder.
    pub fn bytes(&self, file: &str) -> Vec<u8> {
        std::fs::read(self.folder().join(file)).unwrap()
    }

    /// Two runs of the folder are the [`same`].
    #[track_caller]
    pub fn same(&self, a: &str, b: &str) {
        same(self.folder(), a, b);
    }
}

/// Weights, moments, rows and evaluations of two runs in `folder` are the same bits.
#[track_caller]
pub fn same(folder: &Path, a: &str, b: &str) {
    assert_eq!(figures(&folder.join(a)), figures(&folder.join(b)));
    for file in ["model/model.safetensors", "checkpoints/step-000014/optimizer.safetensors"] {
        let bytes = |run: &str| std::fs::read(folder.join(run).join(file)).unwrap();
        assert!(bytes(a) == bytes(b), "{a} and {b} differ in {file}");
    }
}

/// The setting of so many micro-batches of a device.
pub fn accumulate(times: usize) -> [String; 2] {
    ["--set".into(), format!("trainer.gradient_accumulation_steps={times}")]
}

/// Arguments as `&str`.
pub fn all<'a>(parts: &'a [String], more: &[&'a str]) -> Vec<&'a str> {
    parts.iter().map(String::as_str).chain(more.iter().copied()).collect()
}
