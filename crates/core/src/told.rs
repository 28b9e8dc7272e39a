//! Lines that a process says once, however often it reads the file that they are about.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Says `line`, unless this process has said it before: a file may be read several times.
pub fn tell_once(line: String) {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if told.insert(line.clone()) {
        tracing::warn!("{line}");
    }
}
