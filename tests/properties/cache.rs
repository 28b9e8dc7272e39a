//! Entries of the cache of which bytes are others: a run with them is the run without, or says why
//! not.

use std::path::PathBuf;
use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::sample::Index;

use crate::common::place::Place;
use crate::common::small_run::{copy, figures};
use crate::edits::{edited, edits};
use crate::{behaves, cases, snapshot};

/// Configs whose runs fill the cache with each kind of entry: text with a tokenizer that is
/// learned, and rows of ids.
const CONFIGS: [&str; 2] = ["text.toml", "rows.toml"];

/// A run of each config, with the cache that it left.
static FILLED: LazyLock<Place> = LazyLock::new(|| {
    let place = Place::new();
    for config in CONFIGS {
        place.train(config, &[&format!("run.output_dir=of-{config}")]);
    }
    place
});

/// The files of the cache.
fn files() -> Vec<PathBuf> {
    let cache = FILLED.path("kiln-cache");
    snapshot(&cache, &[]).into_keys().map(|path| path.strip_prefix(&cache).unwrap().to_path_buf()).collect()
}

proptest! {
    #![proptest_config(cases(10))]

    #[test]
    fn a_damaged_entry_is_never_taken(damages in prop::collection::vec((any::<Index>(), edits()), 1..3)) {
        let place = Place::new();
        copy(&FILLED.path("kiln-cache"), &place.path("kiln-cache"));
        let files = files();
        for (file, edits) in &damages {
            let path = place.path("kiln-cache").join(&files[file.index(files.len())]);
            let bytes = std::fs::read(&path).unwrap();
            std::fs::write(&path, edited(&bytes, edits)).unwrap();
        }
        for config in CONFIGS {
            let before = snapshot(&place.path("."), &["run", "kiln-cache"]);
            let mut run = place.config("train", config, &["run.on_existing=overwrite"]);
            let (code, said) = behaves(&mut run, &[0, 3])?;
            prop_assert_eq!(snapshot(&place.path("."), &["run", "kiln-cache"]), before);
            if code == 0 {
                let (got, expected) = (figures(&place.path("run")), figures(&FILLED.path(&format!("of-{config}"))));
                prop_assert_eq!(got, expected, "{}", said);
            }
        }
    }
}

#[test]
fn the_untouched_ones_are_taken() {
    assert!(files().len() >= 3, "{:?}", files());
}
