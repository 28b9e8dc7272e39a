//! The time of day, as files and pages have it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970.
pub fn seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// The second that it is now, in UTC: `2026-11-23T02:39:00Z` (RFC 3339).
pub fn rfc3339() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}
