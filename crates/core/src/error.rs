//! The one error type of the library: a kind that decides the exit code, a message that says what
//! was expected and what was found, and a help line that says what to do. The binary prints it;
//! nothing in the library prints or panics.

use std::borrow::Cow;
use std::fmt;

use crate::signal::Signal;

/// The kind of failure that an [`Error`] is. Scripts can branch on it through the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A setting, a command line or a combination of them that cannot be run.
    Config,
    /// Input that cannot be used: missing, unreadable or malformed data, model or tokenizer files.
    Data,
    /// Memory ran out on the host or on the device.
    OutOfMemory,
    /// The loss or the gradients stopped being numbers.
    NonFinite,
    /// Two things that have to be the same are not.
    Differs,
    /// The device failed and this process can no longer use it.
    Device,
    /// The operating system refused to read or write.
    Io,
    /// A signal asked the process to stop.
    Interrupted(Signal),
}

impl ErrorKind {
    /// The exit code of a process that fails in this way: 1 io, 2 config, 3 data, 4 out of memory,
    /// 5 non-finite, 6 a comparison that failed, 7 device, and 128 + its number for a signal.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Io => 1,
            Self::Config => 2,
            Self::Data => 3,
            Self::OutOfMemory => 4,
            Self::NonFinite => 5,
            Self::Differs => 6,
            Self::Device => 7,
            Self::Interrupted(signal) => signal.exit_code(),
        }
    }

    /// The kind with this exit code, if there is one: the inverse of
    /// [`exit_code`](Self::exit_code).
    pub fn of_exit_code(code: i32) -> Option<Self> {
        let kinds =
            [Self::Io, Self::Config, Self::Data, Self::OutOfMemory, Self::NonFinite, Self::Differs, Self::Device];
        let signals = Signal::ALL.iter().copied().map(Self::Interrupted);
        kinds.into_iter().chain(signals).find(|kind| i32::from(kind.exit_code()) == code)
    }
}

/// An error with what happened, what to do about it, and a kind. Its `Debug`, which Rust prints of
/// the error that `main` returns, is its text for people.
pub struct Error {
    kind: ErrorKind,
    message: String,
    help: Option<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// Result with Kiln's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), help: None, source: None }
    }

    /// A setting that cannot be run; `message` names the key, what is expected and what was given.
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Config, message)
    }

    /// Input that cannot be used; `message` names the file and the place in it.
    pub fn data(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Data, message)
    }

    /// Memory ran out.
    pub fn out_of_memory(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::OutOfMemory, message)
    }

    /// A loss or gradient that is not a finite number.
    pub fn non_finite(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NonFinite, message)
    }

    /// A comparison that failed; `message` says what was compared and the first differences.
    pub fn differs(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Differs, message)
    }

    /// The device failed.
    pub fn device(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Device, message)
    }

    /// A signal stopped the work; `message` says how far it came.
    pub fn interrupted(signal: Signal, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Interrupted(signal), message)
    }

    /// The operating system refused `action` (for example "write runs/a/plan.toml"), for lack of
    /// memory where it says so; or it did not, and what a file holds is not what it should hold,
    /// such as text that is not UTF-8.
    pub fn io(action: impl fmt::Display, error: &std::io::Error) -> Self {
        let kind = match error.kind() {
            std::io::ErrorKind::InvalidData => ErrorKind::Data,
            std::io::ErrorKind::OutOfMemory => ErrorKind::OutOfMemory,
            _ => ErrorKind::Io,
        };
        let said = match error.to_string() {
            said if said == "stream did not contain valid UTF-8" => "expected UTF-8 text".to_owned(),
            said => said,
        };
        // An error of the operating system is its number; another one has no copy.
        let source = error.raw_os_error().map(std::io::Error::from_raw_os_error);
        let refused = Self::new(kind, format!("cannot {action}: {said}")).caused_by(source);
        if kind == ErrorKind::OutOfMemory { refused.help(NO_MEMORY) } else { refused }
    }

    /// Names the error of a library or of the system that this one follows from; the message says
    /// it already.
    #[must_use]
    pub fn caused_by<E: std::error::Error + Send + Sync + 'static>(mut self, source: Option<E>) -> Self {
        self.source = source.map(|source| Box::new(source) as _);
        self
    }

    /// The operating system refused to start `what`, a thread or a process: for lack of memory, or
    /// because the limit of the user's or the container's tasks is reached, where it says so.
    pub fn start(what: impl fmt::Display, error: &std::io::Error) -> Self {
        let refused = Self::io(format_args!("start {what}"), error);
        match error.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::OutOfMemory => {
                refused.into_kind(ErrorKind::OutOfMemory).help(NO_THREAD)
            }
            _ => refused,
        }
    }

    /// Code has panicked at `place`, with the words `message`. A lack of memory or of threads is
    /// told from a defect.
    pub fn panicked(place: impl fmt::Display, message: &str) -> Self {
        if says_no_thread(message) {
            return Self::out_of_memory(format!("{place}: the system refuses another thread")).help(NO_THREAD);
        }
        let kind = if says_out_of_memory(message) { ErrorKind::OutOfMemory } else { ErrorKind::Device };
        Self::new(kind, format!("{place} panicked: {message}"))
    }

    /// A failure of `kind` that another process has reported.
    pub fn of_kind(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::new(kind, message)
    }

    /// A failure of `kind` of which only the text is left, as [`Display`](fmt::Display) wrote it:
    /// another process has printed it, or it has passed through serde.
    pub fn of_text(kind: ErrorKind, text: &str) -> Self {
        match text.split_once(HELP) {
            Some((message, help)) => Self::new(kind, message).help(help),
            None => Self::new(kind, text),
        }
    }

    /// This error with `kind` in place of its own kind.
    #[must_use]
    pub fn into_kind(self, kind: ErrorKind) -> Self {
        Self { kind, ..self }
    }

    /// Adds the line that says what to do.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Prefixes the message with where it happened, for example a file name.
    #[must_use]
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// Calls settings by the names under which they were given: each of `names` is (what messages
    /// say, what the user wrote).
    #[must_use]
    pub fn in_terms_of(mut self, names: &[(&str, &str)]) -> Self {
        for (ours, theirs) in names {
            self.message = self.message.replace(ours, theirs);
            self.help = self.help.map(|help| help.replace(ours, theirs));
        }
        self
    }

    /// The kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The message, without the help.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The line that says what to do.
    pub fn help_line(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// The remedy of a user for the refusal of the operating system that this error follows from;
    /// none where nothing is known to help.
    pub fn remedy(&self) -> Option<&'static str> {
        use std::io::ErrorKind::{FileTooLarge, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        let refused = self.source.as_ref()?.downcast_ref::<std::io::Error>()?;
        match refused.kind() {
            StorageFull | QuotaExceeded => Some("make room there"),
            PermissionDenied | ReadOnlyFilesystem => Some("fix its permissions"),
            FileTooLarge => Some("raise the limit of the size of files (`ulimit -f`)"),
            _ => None,
        }
    }

    /// The exit code of the process that fails with this error: that of its kind.
    pub fn exit_code(&self) -> u8 {
        self.kind.exit_code()
    }
}

impl Signal {
    /// The error that ends the work which it stopped; `message` says how far that work came.
    pub fn error(self, message: impl fmt::Display) -> Error {
        Error::interrupted(self, format!("{}: {message}", self.name()))
    }
}

/// Stands between message and help in the text of an error.
const HELP: &str = "\n  help: ";

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.help {
            Some(help) => write!(f, "{HELP}{help}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// The advice of an error that ends a run which can be continued. `Trainer::train` of `kiln-train`,
/// which knows the run folder, puts the command itself in its place.
pub const CONTINUE: &str = "continue with `kiln train FILE --resume`";

/// The advice where the system refuses a mapping or a buffer.
const NO_MEMORY: &str = "raise the limit of memory (`ulimit -v`, a container's) or end other programs";
const NO_THREAD: &str = "raise the limit of tasks (`ulimit -u`, a container's pids limit) or of memory (`ulimit -v`)";

/// Whether `words` of a panic say that the system refuses another thread.
pub fn says_no_thread(words: &str) -> bool {
    ["failed to spawn thread", "ThreadPoolBuildError"].iter().any(|refusal| words.contains(refusal))
}

/// Whether the words of a driver, of an allocator or of another program say that memory ran out. A
/// failed access to memory is another matter: it poisons a device.
pub fn says_out_of_memory(words: &str) -> bool {
    const PHRASES: [&str; 10] = [
        "out of memory",
        "out_of_memory",
        "outofmemory",
        "out of device memory",
        "not enough memory",
        "memory allocation of", // Rust's allocator
        "can't allocate",
        "cannot allocate",
        "failed to allocate",
        "unable to reserve pinned memory", // CubeCL's, of the host's memory for copies
    ];
    let words = words.to_lowercase();
    !words.contains("poison") && PHRASES.iter().any(|phrase| words.contains(phrase))
}

/// The candidate nearest to `given`, for "did you mean" hints; none if nothing is close.
pub fn nearest<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Comparing takes the product of the two lengths, and nothing that long is a slip in a name.
    const LONGEST: usize = 100;
    if given.len() > LONGEST {
        return None;
    }
    candidates
        .into_iter()
        .map(|candidate| {
            // Jaro and Winkler think little of one slip in a short name: `cvs` for `csv`. The name
            // itself is nearer: what is wrong then stands beside it, such as the ending of a file.
            let score = match strsim::osa_distance(given, candidate) {
                _ if given.eq_ignore_ascii_case(candidate) => 2.0,
                1 if candidate.len() > 2 => 1.0,
                _ => strsim::jaro_winkler(given, candidate),
            };
            (score, candidate)
        })
        .filter(|(score, _)| *score > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// `text` without power over what shows it: control characters and those that change the direction
/// of writing become `\u001b`, as JSON writes them, so that a line of JSON stays the same value.
/// Line feeds and tabs stay. Names of files, values in files and answers of servers may hold
/// anything; all that Kiln prints passes through here.
pub fn printable(text: &str) -> Cow<'_, str> {
    replaced(text, |character| !matches!(character, '\n' | '\t') && has_power(character))
}

/// [`printable`] in one line: of foreign text in a table, a list or a comment, which another line
/// would break.
pub fn one_line(text: &str) -> String {
    let spaced = text.replace(['\n', '\r', '\t', '\u{2028}', '\u{2029}'], " ");
    replaced(&spaced, has_power).into_owned()
}

fn replaced(text: &str, is_replaced: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_replaced) {
        return text.into();
    }
    let escape = |character: char| {
        if is_replaced(character) { format!("\\u{:04x}", u32::from(character)) } else { character.into() }
    };
    text.chars().map(escape).collect::<String>().into()
}

/// Controls (C0, DEL, C1), and what reorders or breaks a line (UAX #9, explicit formatting
/// characters and marks).
fn has_power(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The error of a value `got` of a data file, which stands at `place`, where `what` is expected.
pub fn expected(place: &str, what: &str, got: &serde_json::Value) -> Error {
    Error::data(match got {
        serde_json::Value::Null => format!("{place}: expected {what}, and there is none"),
        got => format!("{place}: expected {what}, got {}", crate::words::shortened(got)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_printed_has_power_over_the_terminal() {
        let hostile = "a\u{1b}]0;t\u{7}b\u{9b}31m\r\u{202e}gpj\u{2066}\0\u{7f}";
        let shown = printable(hostile);
        assert_eq!(shown, r"a\u001b]0;t\u0007b\u009b31m\u000d\u202egpj\u2066\u0000\u007f");
        assert_eq!(printable("two\n\tlines, größer 日本 🦀"), "two\n\tlines, größer 日本 🦀");
        assert_eq!(one_line("a\nb\tc\r\u{1b}[2J"), r"a b c \u001b[2J");
        let json = serde_json::json!({ "answer": hostile }).to_string();
        let read = serde_json::from_str::<serde_json::Value>(&printable(&json));
        assert_eq!(read.expect("still JSON")["answer"], hostile);
    }

    #[test]
    fn the_nearest_name_is_the_name_itself_then_one_with_a_slip() {
        assert_eq!(nearest("lm", ["classes", "lm", "lma"]), Some("lm"));
        assert_eq!(nearest("cvs", ["vs", "csv"]), Some("csv"));
        assert_eq!(nearest("other", ["csv", "tsv"]), None);
    }

    #[test]
    fn an_exit_code_stands_for_its_kind() {
        for code in (1..=7).chain([129, 130, 143]) {
            let kind = ErrorKind::of_exit_code(code).map(|kind| i32::from(kind.exit_code()));
            assert_eq!(kind, Some(code));
        }
        assert_eq!([0, 8, 101, 127, 256, -1].map(ErrorKind::of_exit_code), [None; 6]);
    }

    #[test]
    fn a_main_function_prints_the_text_for_people() {
        let error = Error::config("run.output_dir: it exists").help("name another folder");
        assert_eq!(format!("{error:?}"), "run.output_dir: it exists\n  help: name another folder");
    }

    #[cfg(unix)]
    #[test]
    fn the_remedy_is_that_of_the_refusal() {
        let of = |code: i32| Error::io("write x", &std::io::Error::from_raw_os_error(code)).at("run").remedy();
        assert_eq!([libc::ENOSPC, libc::EDQUOT].map(of), [Some("make room there"); 2]);
        assert_eq!([libc::EACCES, libc::EPERM, libc::EROFS].map(of), [Some("fix its permissions"); 3]);
        assert!(of(libc::EFBIG).is_some_and(|remedy| remedy.contains("ulimit -f")));
        assert_eq!([libc::EIO, libc::ENOENT].map(of), [None; 2], "no room would help");
        assert_eq!(Error::data("x").remedy(), None);
    }

    #[test]
    fn an_error_is_read_back_from_its_text() {
        let errors = [Error::data("a: b"), Error::config("two\n  lines").help("look\n  here")];
        for error in errors {
            let read = Error::of_text(error.kind(), &error.to_string());
            assert_eq!((read.kind, &read.message, &read.help), (error.kind, &error.message, &error.help));
        }
    }

    #[test]
    fn an_error_of_the_system_is_the_source() {
        let missing = std::io::Error::from_raw_os_error(2);
        let error = Error::io("read a file", &missing);
        let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<std::io::Error>());
        assert_eq!(source.map(std::io::Error::kind), Some(std::io::ErrorKind::NotFound));
        assert!(std::error::Error::source(&Error::data("a")).is_none());
    }

    #[test]
    fn a_lack_of_memory_is_no_defect() {
        let io = |kind: std::io::ErrorKind| Error::io("map a file", &kind.into()).exit_code();
        assert_eq!((io(std::io::ErrorKind::OutOfMemory), io(std::io::ErrorKind::NotFound)), (4, 1));
        // A mapping that is refused names the limit to raise.
        let said = Error::io("map a file", &std::io::Error::from_raw_os_error(12)).to_string();
        assert!(said.contains("ulimit -v"), "{said}");
        let panicked = |message: &str| Error::panicked("a step", message).exit_code();
        let pool = "The global thread pool has not been initialized.: ThreadPoolBuildError { kind: IOError(..) }";
        assert_eq!((panicked(pool), panicked("CUDA_ERROR_OUT_OF_MEMORY"), panicked("index 7")), (4, 4, 7));
    }
}
