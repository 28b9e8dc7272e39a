//! Tables of text: CSV, TSV, JSON lines and parquet, read row by row in a fixed order, so that a
//! table may be larger than memory. Only the columns that a run names are kept. Nothing here knows
//! tokens or what a label means.
//!
//! - CSV: RFC 4180, fields may stand in double quotes and span lines; the first row names the
//!   columns. A quote that is not closed is an error.
//! - TSV: no quoting, a quote is a character like any other; a row is a line, the first names the
//!   columns.
//! - JSONL: an object a line, or a file that is one list of objects or has it in `data`; every
//!   object must have the columns.
//! - parquet, and the streams of Arrow that `datasets.save_to_disk` writes: columns of strings,
//!   numbers and lists, as JSON nested ones too.
//!
//! Files of text may be archives of gzip or zstd.

mod arrow_stream;
mod columns;
mod delimited;
mod features;
mod flat_buffers;
mod jsonl;
mod parquet_rows;
mod row;
mod typed;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

pub use columns::Columns;
pub use features::FEATURES;
pub(super) use jsonl::{cell, has_rows, malformed};
use kiln_core::error::{Error, ErrorKind, Result};
use kiln_core::files::ending;
use kiln_core::signals;
use row::Rows;
pub(super) use row::written_list;
pub use row::{Cell, Place, Row};

use super::paths;
use super::text_lines::{MAX_ROW_BYTES, too_long};
use crate::cache::mapped::interrupted;
use crate::settings::{DataFormat, Errors};

/// Table files in a fixed order.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    files: Vec<PathBuf>,
    format: DataFormat,
    columns: Columns,
    errors: Errors,
}

/// The names of the columns of the table in `file`, in their order; of JSON lines those of the
/// first row. None where it cannot be read.
pub fn column_names(file: &Path, format: DataFormat) -> Vec<String> {
    match format {
        DataFormat::Csv => delimited::names(file, b','),
        DataFormat::Tsv => delimited::names(file, b'\t'),
        DataFormat::Jsonl => jsonl::names(file),
        DataFormat::Parquet => parquet_rows::names(file),
        DataFormat::Arrow => arrow_stream::names(file),
        DataFormat::Text | DataFormat::Tokenized | DataFormat::Squad => Vec::new(),
    }
}

impl Table {
    /// The table that `patterns` name.
    ///
    /// # Errors
    /// Patterns that [`paths::resolve`] refuses.
    pub fn open(patterns: &[String], format: DataFormat, columns: Columns) -> Result<Self> {
        Ok(Self::of(paths::resolve(patterns, format)?, format, columns))
    }

    /// The table in `files`, of which there is at least one.
    pub fn of(files: Vec<PathBuf>, format: DataFormat, columns: Columns) -> Self {
        Self { files, format, columns, errors: Errors::Strict }
    }

    /// Treats bytes of text files that are not UTF-8 as `errors` says; else they are an error.
    #[must_use]
    pub fn with_errors(self, errors: Errors) -> Self {
        Self { errors, ..self }
    }

    /// How bytes that are not UTF-8 are treated.
    pub fn errors(&self) -> Errors {
        self.errors
    }

    /// The files, for messages.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The columns that are read.
    pub fn columns(&self) -> &Columns {
        &self.columns
    }

    /// The names of the label's classes by the features of `datasets` in the files, in the order of
    /// the ids in the first file that has any; none where no file names them.
    ///
    /// # Errors
    /// A file that cannot be read; features that are refused; two files with other names.
    pub fn class_names(&self) -> Result<Option<Vec<String>>> {
        if !self.columns.class_names || self.columns.label.is_none() {
            return Ok(None);
        }
        let mut first: Option<(&PathBuf, Vec<String>)> = None;
        for file in &self.files {
            let names = match self.format {
                DataFormat::Parquet => parquet_rows::class_names(file, &self.columns)?,
                DataFormat::Arrow => arrow_stream::class_names(file, &self.columns)?,
                _ => None,
            };
            let Some(names) = names else { continue };
            match &first {
                None => first = Some((file, names)),
                // Their order may differ: each file is read by its own names.
                Some((other, before)) if names.iter().collect::<BTreeSet<_>>() != before.iter().collect() => {
                    return Err(Error::data(format!(
                        "{}: the classes of {:?} are {names:?}, but in {} they are {before:?}",
                        file.display(),
                        self.columns.label.as_deref().unwrap_or_default(),
                        other.display(),
                    ))
                    .help("write both files with one ClassLabel, or convert the labels into text"));
                }
                Some(_) => {}
            }
        }
        Ok(first.map(|(_, names)| names))
    }

    /// The rows in order, read as they are asked for. After an error nothing more follows from that
    /// file. A signal is an error.
    pub fn rows(&self) -> impl Iterator<Item = Result<Row>> + Send {
        (0..self.files.len()).flat_map(|file| self.rows_of(file))
    }

    /// The rows of the file numbered `file`; otherwise as [`rows`](Self::rows).
    pub(super) fn rows_of(&self, file: usize) -> Rows {
        let file = &self.files[file];
        let rows = match self.format {
            DataFormat::Csv => delimited::rows(file, b',', &self.columns, self.errors),
            DataFormat::Tsv => delimited::rows(file, b'\t', &self.columns, self.errors),
            DataFormat::Jsonl => jsonl::rows(file, &self.columns, self.errors),
            DataFormat::Parquet => parquet_rows::rows(file, &self.columns),
            DataFormat::Arrow => arrow_stream::rows(file, &self.columns),
            DataFormat::Text | DataFormat::Tokenized | DataFormat::Squad => {
                Err(Error::config(format!("data.format = \"{}\" has no columns", self.format))
                    .help("csv, tsv, jsonl, parquet and arrow have"))
            }
        };
        let rows: Rows = rows.unwrap_or_else(|error| Box::new(std::iter::once(Err(error))));
        // What is wrong at once, of a file whose name says another format, is that.
        let named = ending(file).and_then(|ending| DataFormat::of_table(&ending)).filter(|named| *named != self.format);
        let mut is_first = true;
        let rows = rows.map(move |row| match (row, named.filter(|_| std::mem::take(&mut is_first))) {
            (Err(error), Some(named)) if error.kind() == ErrorKind::Data => Err(error
                .help(format!("the file's name says data.format = \"{named}\": set it where the file is written so"))),
            (row, _) => row,
        });
        Box::new(rows.map(|row| {
            let row = row?;
            match row.texts().map(str::len).sum::<usize>() {
                _ if signals::received().is_some() => Err(interrupted()),
                bytes if bytes > MAX_ROW_BYTES => Err(too_long(&row.place)),
                _ => Ok(row),
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn columns() -> Columns {
        Columns { text: "text".into(), label: Some("label".into()), ..Columns::default() }
    }

    fn read(name: &str, bytes: &[u8], format: DataFormat, columns: Columns) -> Result<Vec<Row>> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(name);
        std::fs::write(&file, bytes).unwrap();
        Table::open(&[file.display().to_string()], format, columns)?.rows().collect()
    }

    fn refused(name: &str, bytes: &[u8], format: DataFormat, parts: &[&str]) {
        let error = read(name, bytes, format, columns()).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }

    fn cells(rows: &[Row]) -> Vec<(&str, &Cell)> {
        rows.iter().map(|row| (row.text.as_str(), row.label.as_ref().unwrap())).collect()
    }

    #[test]
    fn csv_has_quotes_and_tsv_has_none() {
        let csv = "label,text\r\npos,\"one, \"\"two\"\"\nthree\"\nneg,four\n";
        let rows = read("a.csv", csv.as_bytes(), DataFormat::Csv, columns()).unwrap();
        let (pos, neg) = (Cell::Text("pos".into()), Cell::Text("neg".into()));
        assert_eq!(cells(&rows), [("one, \"two\"\nthree", &pos), ("four", &neg)]);
        assert!(rows[1].place.to_string().ends_with("a.csv line 4"), "{}", rows[1].place);
        let tsv = "\u{feff}label\ttext\npos\t\"one\nneg\ta\"b\n";
        let rows = read("a.tsv", tsv.as_bytes(), DataFormat::Tsv, columns()).unwrap();
        assert_eq!(cells(&rows), [("\"one", &pos), ("a\"b", &neg)]);
    }

    #[test]
    fn csv_is_split_as_pandas_splits_it() {
        // `pandas.read_csv(text, keep_default_na=False, dtype=str)`.
        for (text, rows) in [
            ("label,text\n x,y\n", &[(" x", "y")][..]),
            ("label,text\n  \n\nx,y\n", &[("x", "y")]),
            ("label,text\n\"x\" ,y\n", &[("x ", "y")]),
            ("label,text\n\"x\"z\"w\",y\n", &[("xz\"w\"", "y")]),
            ("label,text\r\"x\r\ny\",2\r", &[("x\r\ny", "2")]),
            ("label,text\nx, \nz,\"\"\n", &[("x", " "), ("z", "")]),
            ("\u{feff}\"label\",text\r\n1,2", &[("1", "2")]),
        ] {
            let read = read("a.csv", text.as_bytes(), DataFormat::Csv, columns()).unwrap();
            let expected = rows.iter().map(|(label, text)| (*text, Cell::Text((*label).into()))).collect::<Vec<_>>();
            assert_eq!(cells(&read), expected.iter().map(|(text, cell)| (*text, cell)).collect::<Vec<_>>(), "{text:?}");
        }
        let one = Columns { text: "text".into(), ..Columns::default() };
        let rows = read("a.csv", b"text\n \n\" \"\n\"\"\nx\n", DataFormat::Csv, one).unwrap();
        assert_eq!(rows.iter().map(|row| row.text.as_str()).collect::<Vec<_>>(), [" ", "", "x"]);
    }

    #[test]
    fn lines_are_those_of_an_editor() {
        for end in ["\n", "\r\n", "\r"] {
            let text = "label,text\n\n1,\"a\nb\n\"\n  \n2,c\n3,d\n".replace('\n', end);
            let rows = read("a.csv", text.as_bytes(), DataFormat::Csv, columns()).unwrap();
            let places = rows.iter().map(|row| row.place.number).collect::<Vec<_>>();
            assert_eq!(places, [3, 7, 8], "{end:?}");
            let open = text.replace("2,c", "2,\"c");
            refused("a.csv", open.as_bytes(), DataFormat::Csv, &["a.csv line 7", "column 2", "end of the file"]);
            let open = text.replace("\"a", "\"a\",\"\"");
            refused("a.csv", open.as_bytes(), DataFormat::Csv, &["a.csv line 3", "expected 2 columns", "got 3"]);
            let open = text.replace("2,c", "\"2\n\n\",\"c");
            refused("a.csv", open.as_bytes(), DataFormat::Csv, &["a.csv line 9", "column 2"]);
        }
        let long = format!("label,text\n1,\"a\n{}", "x,y\n".repeat(MAX_ROW_BYTES / 4 + 1));
        refused("a.csv", long.as_bytes(), DataFormat::Csv, &["line 2", "64 MiB", "a quote opens in line 2"]);
    }

    #[test]
    fn files_that_were_joined_are_told_by_their_marks_and_names() {
        let csv = "label,text\n1,a\n\u{feff}2,b\n\u{feff}\"3\",c\n";
        let rows = read("a.csv", csv.as_bytes(), DataFormat::Csv, columns()).unwrap();
        let labels = rows.iter().map(|row| row.label.clone().unwrap()).collect::<Vec<_>>();
        assert_eq!(labels, ["1", "2", "3"].map(|label| Cell::Text(label.into())));
        for second in ["label,text", "\u{feff}label,text", "\"label\",\"text\""] {
            let csv = format!("label,text\r\n1,a\r\n{second}\r\n2,b\r\n");
            refused("a.csv", csv.as_bytes(), DataFormat::Csv, &["line 3", "the column names once more", "one by one"]);
        }
        refused("a.tsv", b"label\ttext\n1\ta\nlabel\ttext\n", DataFormat::Tsv, &["line 3", "once more"]);
        let lines = "{\"text\": \"a\", \"label\": 1}\n\u{feff}{\"text\": \"b\", \"label\": 2}\n\u{feff}\n";
        assert_eq!(read("a.jsonl", lines.as_bytes(), DataFormat::Jsonl, columns()).unwrap().len(), 2);
    }

    #[test]
    fn another_delimiter_is_named() {
        refused("a.csv", b"label\ttext\n1\ta\n", DataFormat::Csv, &["no column", "data.format = \"tsv\""]);
        refused("a.tsv", b"label,text\n1,a\n", DataFormat::Tsv, &["no column", "data.format = \"csv\""]);
        refused("a.csv", b"label;text\n1;a\n", DataFormat::Csv, &["no column", "semicolons"]);
    }

    #[test]
    fn lists_of_rows_are_rows() {
        let rows = |text: &str, format| {
            let rows = read("a.json", text.as_bytes(), format, columns())?;
            let cell = |row: &Row| (row.text.clone(), row.label.clone().unwrap(), row.place.number);
            Ok::<_, Error>(rows.iter().map(cell).collect::<Vec<_>>())
        };
        let expected = [("a]\"}".to_owned(), Cell::Integer(1), 1), ("b".to_owned(), Cell::Integer(2), 2)];
        let (one, two) = (r#"{"text": "a]\"}", "label": 1, "x": [{}]}"#, r#"{"label":2,"text":"b"}"#);
        let indented =
            "[\n {\n  \"text\": \"a]\\\"}\",\n  \"label\": 1\n },\n {\n  \"label\": 2,\n  \"text\": \"b\"\n }\n]\n";
        for text in [
            format!("{one}\n{two}\n"),
            format!("[{one},{two}]"),
            format!("\u{feff} [\n{one}\n,\r\n{two} ]\n"),
            indented.to_owned(),
            format!("{{\"data\": {indented}}}"),
            format!("{{\"version\": {{\"data\": [1]}}, \"data\": [{one},{two}], \"more\": 1}}\n"),
            format!("{{\n \"version\": \"a\",\n \"data\": {indented}\n}}"),
        ] {
            assert_eq!(rows(&text, DataFormat::Jsonl).unwrap(), expected, "{text}");
        }
        // A row that has a list called `data` beside its columns is a row.
        let row = "{\"text\": \"a\", \"label\": 1, \"data\": [{\"text\": \"no\", \"label\": 2}]}";
        assert_eq!(rows(row, DataFormat::Jsonl).unwrap(), [("a".to_owned(), Cell::Integer(1), 1)]);
        // `datasets` calls the column of a list of texts `text`.
        let texts = Columns { text: "text".into(), ..Columns::default() };
        assert_eq!(read("a.json", b"[\"a\", \"b\"]", DataFormat::Jsonl, texts).unwrap()[1].text, "b");
        assert_eq!(rows("[]", DataFormat::Jsonl).unwrap(), []);
        for (text, parts) in [
            (format!("[{one},\n{two}"), ["line 2", "the end of the list"]),
            (format!("[{one},\n]"), ["line 2", "a row after the comma"]),
            (format!("[{one}\n{two}]"), ["line 2", "a comma or the end"]),
            (format!("[{one}]\n{two}"), ["line 2", "nothing after the list"]),
            ("[\n{\"text\": \"a\",\n \"label\": }]".to_owned(), ["row 1", "line 3 column 11"]),
            ("{\n \"text\": \"a\",\n \"label\": 1\n}\n".to_owned(), ["line 1", "not closed"]),
        ] {
            let error = rows(&text, DataFormat::Jsonl).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
        }
    }

    #[test]
    fn numbers_that_json_does_not_have_are_named() {
        let line =
            |label: &str| format!("{{\"text\": \"a NaN \\\"NaN\", \"label\": {label}, \"other\": [NaN, -Infinity]}}\n");
        let rows = read("a.jsonl", (line("1") + &line("-Infinity")).as_bytes(), DataFormat::Jsonl, columns()).unwrap();
        let numbers = [Cell::Integer(1), Cell::Number(f64::NEG_INFINITY)];
        assert_eq!(cells(&rows), [("a NaN \"NaN", &numbers[0]), ("a NaN \"NaN", &numbers[1])]);
        let nan = read("a.json", format!("[{}]", line("NaN")).as_bytes(), DataFormat::Jsonl, columns()).unwrap();
        assert!(matches!(nan[0].label, Some(Cell::Number(number)) if number.is_nan()));
        let jsonl = DataFormat::Jsonl;
        refused("a", b"{\"text\": NaN, \"label\": 1}", jsonl, &["line 1", "expected text, got NaN"]);
        refused("a", b"{\"text\": \"x\", \"label\": nan}", jsonl, &["line 1: malformed JSON: column 25", "\"nan}\""]);
    }

    #[test]
    fn archives_are_read_as_what_they_hold() {
        use std::io::Write;
        let csv = "label,text\npos,one\nneg,two\n";
        let gzip = |text: &str| {
            let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            to.write_all(text.as_bytes()).unwrap();
            to.finish().unwrap()
        };
        let zstd = |text: &str| zstd::encode_all(text.as_bytes(), 0).unwrap();
        let whole = read("a.csv", csv.as_bytes(), DataFormat::Csv, columns()).unwrap();
        // `cat` may have made one archive of several.
        let two = |pack: &dyn Fn(&str) -> Vec<u8>| [pack(&csv[..15]), pack(&csv[15..])].concat();
        for (name, bytes) in [("a.csv.gz", two(&gzip)), ("a.csv.zst", two(&zstd)), ("a.csv", gzip(csv))] {
            let rows = read(name, &bytes, DataFormat::Csv, columns()).unwrap();
            assert_eq!(cells(&rows), cells(&whole), "{name}");
            for end in [bytes.len() - 1, bytes.len() - 9, 12] {
                refused(name, &bytes[..end], DataFormat::Csv, &["a.csv", "damaged or truncated"]);
            }
            if bytes[0] == 0x1f {
                // Gzip has a checksum; zstd only where it is asked for.
                let mut damaged = bytes.clone();
                damaged[bytes.len() - 6] ^= 0x55;
                let error = read(name, &damaged, DataFormat::Csv, columns()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Data, "{name}: {error}");
            }
        }
        refused("a.csv.gz", csv.as_bytes(), DataFormat::Csv, &["a.csv.gz", "no gzip archive"]);
        refused("a.csv.zst", &gzip(csv), DataFormat::Csv, &["a.csv.zst", "no zstd archive"]);
        let line = gzip("{\"text\": \"a\", \"label\": 1}\n");
        assert_eq!(read("a.jsonl.gz", &line, DataFormat::Jsonl, columns()).unwrap().len(), 1);
    }

    #[test]
    fn jsonl_keeps_the_kind_of_a_label() {
        let text = "{\"text\": \"a\", \"label\": 1, \"other\": [1]}\n\n{\"label\": 0.5, \"text\": \"b\"}\n\
                    {\"text\": \"c\", \"label\": \"x\"}\n{\"text\": \"d\", \"label\": true}\n{\"text\": \"e\", \"label\": null}\n";
        let rows = read("a.jsonl", text.as_bytes(), DataFormat::Jsonl, columns()).unwrap();
        let labels = rows.iter().map(|row| row.label.clone().unwrap()).collect::<Vec<_>>();
        let expected = [Cell::Integer(1), Cell::Number(0.5), Cell::Text("x".into()), Cell::Boolean(true), Cell::Null];
        assert_eq!(labels, expected);
        assert!(rows[1].place.to_string().ends_with("line 3"));
    }

    #[test]
    fn pairs_have_two_texts() {
        let pair = Columns { text: "a".into(), text_pair: Some("b".into()), ..Columns::default() };
        let rows = read("a.csv", b"b,a\n2,1\n", DataFormat::Csv, pair).unwrap();
        assert_eq!((rows[0].text.as_str(), rows[0].text_pair.as_deref(), &rows[0].label), ("1", Some("2"), &None));
    }

    #[test]
    fn broken_tables_say_where() {
        for format in [DataFormat::Csv, DataFormat::Tsv] {
            let tab = if format == DataFormat::Csv { "," } else { "\t" };
            let text = |rows: &str| rows.replace('|', tab).into_bytes();
            refused("a", &text("sentence|label\nx|1\n"), format, &["no column \"text\"", "\"sentence\", \"label\""]);
            refused("a", &text("text|label\nx|1\nx\n"), format, &["line 3", "expected 2 columns", "got 1"]);
            refused("a", &text("text|label\nx|1|2\n"), format, &["line 2", "got 3"]);
            refused("a", b"", format, &["expected a first row with column names"]);
            let mut broken = text("text|label\nok|1\nno|1\n");
            let at = broken.windows(2).position(|bytes| bytes == b"no").unwrap();
            broken[at] = 0xff;
            refused("a", &broken, format, &["line 3", "column \"text\"", "UTF-8"]);
        }
        let jsonl = DataFormat::Jsonl;
        refused("a", b"{\"text\": \"x\"}\n{\"text\": \"x\", \"label\": 1}", jsonl, &["line 1", "no column \"label\""]);
        refused("a", b"{\"text\": \"x\", \"label\": 1}\n{\"label\": 1}", jsonl, &["line 2", "no column \"text\""]);
        let rows = read("a", b"{\"text\": \"x\", \"label\": 1}\n{\"text\": \"y\"}", jsonl, columns()).unwrap();
        assert_eq!(cells(&rows), [("x", &Cell::Integer(1)), ("y", &Cell::Null)]);
        refused("a", b"{\"text\": 3, \"label\": 1}", jsonl, &["line 1", "expected text, got 3"]);
        refused("a", b"{\"text\": \"x\", \"label\": [[1]]}", jsonl, &["line 1", "column \"label\"", "got [[1]]"]);
        refused("a", b"{\"text\": ", jsonl, &["line 1", "malformed JSON"]);
        refused("a", b"[1]", jsonl, &["row 1", "expected an object"]);
        refused("a", b"1", jsonl, &["line 1", "expected an object"]);
        refused("a", b"{\"text\": \"\xff\"}", jsonl, &["line 1", "UTF-8"]);
        refused("a", b"no parquet", DataFormat::Parquet, &["not a whole parquet file"]);
    }

    #[test]
    fn a_row_that_is_too_long_is_refused_before_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        // After the first row a hole of the file system of 3 GiB; in CSV it stands in quotes that
        // are not closed.
        let starts = [
            (DataFormat::Csv, "text,label\nx,1\n\"", "line 3"),
            (DataFormat::Csv, "text,", "line 1"),
            (DataFormat::Tsv, "text\tlabel\nx\t1\n", "line 3"),
            (DataFormat::Jsonl, "{\"text\": \"x\", \"label\": 1}\n", "line 2"),
        ];
        for (format, start, place) in starts {
            let path = folder.path().join("a");
            std::fs::write(&path, start).unwrap();
            std::fs::File::options().write(true).open(&path).unwrap().set_len(3 << 30).unwrap();
            let table = Table::open(&[path.display().to_string()], format, columns()).unwrap();
            let error = table.rows().find_map(Result::err).unwrap().to_string();
            assert!(error.contains(place) && error.contains("expected at most 64 MiB"), "{format}: {error}");
        }
    }
}
