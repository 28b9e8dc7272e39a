//! Figures and texts of a line: four significant digits, passes over the data, and text that fits.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use console::truncate_str;
use kiln_core::error::one_line;
use kiln_core::metrics::Value;

/// `text` on one line of at most `width` columns, without anything that has power over a terminal.
pub(crate) fn fitted(text: &str, width: Option<usize>) -> String {
    let line = one_line(text);
    width.map_or_else(|| line.clone(), |width| truncate_str(&line, width, "…").into_owned())
}

/// A number with four significant digits: `3.142`, `1234`, `5.000e-5`, `nan`.
pub(crate) fn significant(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}").to_lowercase();
    }
    let scientific = format!("{value:.3e}");
    let exponent = scientific.split_once('e').and_then(|(_, exponent)| exponent.parse::<i32>().ok());
    match exponent {
        Some(exponent @ -2..=3) => format!("{value:.*}", (3 - exponent).unsigned_abs() as usize),
        _ => scientific,
    }
}

/// A value of a row with four significant digits; counts are exact.
pub(super) fn figure(value: &Value) -> String {
    match value {
        Value::Count(count) => count.to_string(),
        Value::Real(real) => significant(*real),
        Value::Missing => "-".into(),
    }
}

/// A rate with four significant digits and a decimal prefix: `12.35k`.
pub(super) fn rate(value: f64) -> String {
    let scales = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match scales.into_iter().find(|(scale, _)| value.is_finite() && value >= *scale) {
        Some((scale, prefix)) => significant(value / scale) + prefix,
        None => significant(value),
    }
}

/// An amount of memory, given in MiB.
pub(super) fn memory(mib: f64) -> String {
    if mib < 1024.0 { format!("{} MiB", significant(mib)) } else { format!("{} GiB", significant(mib / 1024.0)) }
}

/// Passes over the data: small ones without an exponent, to four places and two digits at least.
pub(super) fn epochs(value: f64) -> String {
    match value.log10().floor() {
        tens @ -15.0..-1.0 => format!("{value:.0$}", (1.0 - tens).max(4.0) as usize),
        _ => significant(value),
    }
}

/// A moment, given in seconds since 1970, to the minute: `2026-01-31 09:30Z`; nothing for what no
/// calendar has.
pub(super) fn moment(seconds: f64) -> Option<String> {
    const YEAR_10000: f64 = 253_402_300_800.0;
    let since = Some(seconds).filter(|seconds| (0.0..YEAR_10000 - 1.0).contains(seconds))?;
    let at: SystemTime = UNIX_EPOCH + Duration::from_secs(since as u64);
    let text = humantime::format_rfc3339_seconds(at).to_string();
    Some(format!("{} {}Z", &text[..10], &text[11..16]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_four_significant_digits() {
        let values =
            [3.14259, 0.999_96, 12.3456, 1234.4, 99_999.0, 5e-5, 0.012_346, -2.5, 0.0, f64::NAN, f64::NEG_INFINITY];
        let expected =
            ["3.143", "1.000", "12.35", "1234", "1.000e5", "5.000e-5", "0.01235", "-2.500", "0", "nan", "-inf"];
        assert_eq!(values.map(significant), expected);
        assert_eq!([12_345.0, 2.5e6, 12.0, f64::NAN].map(rate), ["12.35k", "2.500M", "12.00", "nan"]);
        assert_eq!([812.3, 2048.0].map(memory), ["812.3 MiB", "2.000 GiB"]);
        let passes = [1.482e-3, 5.927e-3, 0.034_66, 0.1429, 1.2e-5, 0.0, 3.0, 17_640.0, f64::NAN].map(epochs);
        assert_eq!(passes, ["0.0015", "0.0059", "0.0347", "0.1429", "0.000012", "0", "3.000", "1.764e4", "nan"]);
    }

    #[test]
    fn a_moment_that_no_calendar_has_is_none() {
        assert_eq!(moment(1.0e9).as_deref(), Some("2001-09-09 01:46Z"));
        assert_eq!([-1.0, f64::NAN, 1e300, 253_402_300_800.0].map(moment), [None, None, None, None]);
    }

    #[test]
    fn foreign_text_stays_on_its_line_and_has_no_power() {
        assert_eq!(fitted("a\nb\u{1b}[2J", None), r"a b\u001b[2J");
        assert_eq!(fitted("日本語日本語", Some(7)), "日本語…");
    }
}
