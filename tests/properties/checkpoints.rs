//! Checkpoints of which bytes are others: the run continues as it would have, from an older one if
//! need be, or says why not.

use std::path::PathBuf;
use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::sample::Index;

use crate::common::small_run::{copy, figures, train, write};
use crate::common::succeeds;
use crate::edits::{edited, edits};
use crate::{behaves, cases, snapshot};

/// `run`: a finished run. `crashed`: the same one when it had come to step 8, with its checkpoints
/// after steps 4 and 8.
static RUNS: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "clm");
    succeeds(&mut train(folder.path(), "run", &["--set", "trainer.save_steps=4"]));
    let crashed = folder.path().join("crashed");
    copy(&folder.path().join("run"), &crashed);
    std::fs::remove_dir_all(crashed.join("model")).unwrap();
    for entry in std::fs::read_dir(crashed.join("checkpoints")).unwrap() {
        let path = entry.unwrap().path();
        if !path.ends_with("step-000004") && !path.ends_with("step-000008") {
            std::fs::remove_dir_all(path).unwrap();
        }
    }
    folder
});

/// The files of the checkpoints.
fn files() -> Vec<PathBuf> {
    let crashed = RUNS.path().join("crashed");
    let files = snapshot(&crashed.join("checkpoints"), &[]).into_keys();
    files.map(|path| path.strip_prefix(&crashed).unwrap().to_path_buf()).collect()
}

proptest! {
    #![proptest_config(cases(10))]

    #[test]
    fn a_damaged_checkpoint_is_never_continued(damages in prop::collection::vec((any::<Index>(), edits()), 1..3)) {
        let place = tempfile::tempdir().unwrap();
        write(place.path(), "clm");
        let run = place.path().join("crashed");
        copy(&RUNS.path().join("crashed"), &run);
        let files = files();
        for (file, edits) in &damages {
            let path = run.join(&files[file.index(files.len())]);
            let bytes = std::fs::read(&path).unwrap();
            std::fs::write(&path, edited(&bytes, edits)).unwrap();
        }
        let before = snapshot(place.path(), &["crashed", "kiln-cache"]);
        let mut resume = train(place.path(), "crashed", &["--resume", "--set", "trainer.save_steps=4"]);
        let (code, said) = behaves(&mut resume, &[0, 2, 3])?;
        prop_assert_eq!(snapshot(place.path(), &["crashed", "kiln-cache"]), before);
        if code == 0 {
            let whole = RUNS.path().join("run");
            prop_assert_eq!(figures(&run), figures(&whole), "{}", said);
            let weights = |run: PathBuf| std::fs::read(run.join("model/model.safetensors")).unwrap();
            prop_assert!(weights(run) == weights(whole), "other weights\n{said}");
        }
    }
}

#[test]
fn the_untouched_ones_continue() {
    let place = tempfile::tempdir().unwrap();
    write(place.path(), "clm");
    let run = place.path().join("crashed");
    copy(&RUNS.path().join("crashed"), &run);
    let said = succeeds(&mut train(place.path(), "crashed", &["--resume", "--set", "trainer.save_steps=4"]));
    assert!(said.contains("continuing after step 8 from"), "{said}");
    assert_eq!(figures(&run), figures(&RUNS.path().join("run")));
    assert!(files().len() >= 6, "{:?}", files());
}
