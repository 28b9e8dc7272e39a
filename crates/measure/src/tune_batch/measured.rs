//! Sizes that were measured on other machines and ship with Kiln, as data:
//! `configs/measured/sizes.json`, in the form in which `kiln tune-batch` keeps what it finds, every
//! trial included. They are for people to compare with; no run uses them, since another machine has
//! other memory.

use kiln::session::batch_sizes::Stored;

const SIZES: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/sizes.json"));

/// The table.
pub fn table() -> Vec<Stored> {
    serde_json::from_str(SIZES).expect("the shipped table is valid, as its test shows")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use kiln::session::batch_sizes::Outcome;

    #[test]
    fn every_row_has_its_evidence() {
        let table = table();
        assert!(!table.is_empty());
        for row in table {
            let outcome =
                |batch: usize| row.trials.iter().find(|trial| trial.batch == batch).map(|trial| &trial.outcome);
            let Some(Outcome::Fits { peak_mib: Some(peak), .. }) = outcome(row.batch) else {
                panic!("{row} was not run")
            };
            assert!(*peak <= row.budget_mib.unwrap(), "{row}");
            assert!(!row.next_fails || matches!(outcome(row.batch + 1), Some(Outcome::TooLarge(_))), "{row}");
            assert!(row.date.starts_with("20") && row.key.device.contains("threads"), "{row}");
        }
    }
}
