//! Questions at a terminal, on stderr.

use console::Term;
use kiln_core::error::{Error, Result, printable};

/// The answer to `question`; an empty one is `usual`, where there is one.
///
/// # Errors
/// A terminal that cannot be written or read, and the end of its input.
pub(super) fn answer(term: &Term, question: &str, usual: Option<&str>) -> Result<String> {
    let failed = |error: std::io::Error| Error::io("ask at the terminal", &error);
    let shown = usual.filter(|usual| !usual.is_empty()).map_or(String::new(), |usual| format!(" [{usual}]"));
    loop {
        term.write_str(&format!("{question}{shown}: ")).map_err(failed)?;
        let mut line = String::new();
        if std::io::stdin().read_line(&mut line).map_err(failed)? == 0 {
            return Err(Error::config("the input has ended before the last question was answered"));
        }
        match (line.trim(), usual) {
            ("", Some(usual)) => return Ok(usual.to_owned()),
            ("", None) => {}
            (line, _) => return Ok(line.to_owned()),
        }
    }
}

/// The value that `read` makes of `given`, else of an answer to `question`, which is asked until
/// `read` takes the answer.
///
/// # Errors
/// A terminal that cannot be written or read, the end of its input, and an error of `read` for
/// `given`.
pub(super) fn until_read<T>(
    term: &Term,
    (question, usual): (&str, Option<&str>),
    given: Option<&str>,
    read: impl Fn(&str) -> Result<T>,
) -> Result<T> {
    if let Some(given) = given {
        return read(given);
    }
    loop {
        match read(&answer(term, question, usual)?) {
            Ok(value) => return Ok(value),
            Err(error) => tell(term, &error)?,
        }
    }
}

/// Says why an answer was not taken.
///
/// # Errors
/// A terminal that cannot be written.
pub(super) fn tell(term: &Term, error: &Error) -> Result<()> {
    term.write_line(&printable(&error.to_string())).map_err(|error| Error::io("write to the terminal", &error))
}
