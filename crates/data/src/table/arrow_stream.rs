//! Rows of a stream of Arrow (<https://arrow.apache.org/docs/format/Columnar.html>), the form of
//! the files that `datasets.save_to_disk` writes. The crate `arrow-ipc` would read it, and brings
//! eight crates of arrays and computations; what rows need of the format is a few tables of
//! offsets, here with every offset checked.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use half::f16;
use kiln_core::error::{Error, Result};
use kiln_core::files::read_error;
use kiln_core::saved_dataset;

use super::columns::Columns;
use super::features::{self, METADATA, check};
use super::flat_buffers::Table;
use super::row::Rows;
use super::typed::{Record, Value, of_rows};

/// Fields of a schema; of what is deeper or has more, somebody means harm.
const MAX_FIELDS: usize = 1 << 16;
const MAX_DEPTH: usize = 32;

/// The rows of `file`.
pub(super) fn rows(file: &Path, columns: &Columns) -> Result<Rows> {
    let path: Arc<Path> = file.into();
    let mut stream = Stream::open(file)?;
    let names = stream.names();
    let all = names.clone();
    columns.find(&names, file.display())?;
    let wanted = |field: &Field| columns.has(&field.name);
    for field in stream.fields.iter().filter(|field| wanted(field)) {
        field.check(&field.name).map_err(|error| error.at(file.display()))?;
    }
    let class_names = stream.class_names(columns)?;
    let places = (0..names.len()).filter(|at| wanted(&stream.fields[*at])).collect::<Vec<_>>();
    let (mut batch, mut at, mut done) = (None::<Batch>, 0, 0);
    let values = std::iter::from_fn(move || {
        loop {
            if let Some(batch) = batch.as_ref().filter(|batch| at < batch.rows) {
                at += 1;
                let value = |place: usize| batch.value(&stream.fields[place], &batch.columns[place], at - 1);
                let of = |place: &usize| Some((names[*place].clone(), value(*place)?));
                let row = places.iter().map(of).collect::<Option<Record>>();
                return Some(row.ok_or_else(|| damaged(&stream.path, done + at as u64 - 1)));
            }
            done += batch.take().map_or(0, |batch| batch.rows as u64);
            at = 0;
            match stream.batch(done) {
                Ok(Some(next)) => batch = Some(next),
                Ok(None) => return None,
                Err(error) => {
                    stream.is_over = true;
                    return Some(Err(error));
                }
            }
        }
    });
    Ok(of_rows(path, columns.clone(), all, class_names, values))
}

/// The names of the columns of `file`; none where it cannot be read.
pub(super) fn names(file: &Path) -> Vec<String> {
    Stream::open(file).map_or_else(|_| Vec::new(), |stream| stream.names())
}

/// The names of the label's classes in `file`, if it has any: by the `dataset_info.json` beside it,
/// as `load_from_disk` does, else by its own metadata.
pub(super) fn class_names(file: &Path, columns: &Columns) -> Result<Option<Vec<String>>> {
    // What is wrong with the file, the rows tell.
    Stream::open(file).map_or(Ok(None), |stream| stream.class_names(columns))
}

fn damaged(path: &Path, rows: u64) -> Error {
    Error::data(format!("{}: damaged or cut Arrow file: nothing can be read after row {rows}", path.display()))
        .help("make the download or the export again")
}

/// A file of which the schema has been read.
struct Stream {
    path: Arc<Path>,
    file: BufReader<File>,
    fields: Vec<Field>,
    metadata: BTreeMap<String, String>,
    is_over: bool,
}

/// A column by its schema.
struct Field {
    name: String,
    kind: Kind,
    children: Vec<Field>,
}

/// How the values of a column lie in its buffers. A first buffer tells which are null, but for
/// `Null` and some others.
enum Kind {
    Null,
    Bool,
    Integer {
        bytes: usize,
        is_signed: bool,
    },
    Float {
        bytes: usize,
    },
    Decimal {
        bytes: usize,
        scale: usize,
    },
    /// Offsets of 4 or 8 bytes, and bytes.
    Text {
        wide: bool,
    },
    List {
        wide: bool,
    },
    FixedList {
        size: usize,
    },
    Struct,
    /// A type that has no meaning here: its name, and how many buffers it has.
    Other {
        name: &'static str,
        buffers: usize,
    },
}

/// Rows, and the bytes of their columns.
struct Batch {
    rows: usize,
    body: Vec<u8>,
    columns: Vec<Column>,
}

/// A column of a batch: how many values it has, and where its buffers lie in the body.
struct Column {
    len: usize,
    buffers: Vec<Range<usize>>,
    children: Vec<Column>,
}

impl Stream {
    fn open(file: &Path) -> Result<Self> {
        let opened = File::open(file).map_err(|error| read_error(file, &error))?;
        let mut stream = Self {
            path: file.into(),
            file: BufReader::with_capacity(1 << 16, opened),
            fields: Vec::new(),
            metadata: BTreeMap::new(),
            is_over: false,
        };
        let message = stream.message().ok().flatten();
        let schema = message.as_ref().and_then(|message| match Table::root(message)?.byte(1)? {
            1 => Table::root(message)?.table(2),
            _ => None,
        });
        let read = schema.and_then(|schema| {
            let mut left = MAX_FIELDS;
            let fields =
                schema.tables(1)?.map(|field| Field::of(field?, MAX_DEPTH, &mut left)).collect::<Option<_>>()?;
            let metadata = schema.tables(2).into_iter().flatten();
            let metadata = metadata.map(|pair| Some((pair?.text(0)?.to_owned(), pair?.text(1)?.to_owned())));
            // Byte order: 0 is little-endian.
            (schema.short(0).unwrap_or(0) == 0).then_some((fields, metadata.collect::<Option<_>>()?))
        });
        let Some((fields, metadata)) = read else {
            return Err(Error::data(format!("{}: expected a stream of Arrow, got another file", file.display())).help(
                "data.format = \"arrow\" reads the folders that `datasets.save_to_disk` writes; write any other table as parquet",
            ));
        };
        (stream.fields, stream.metadata) = (fields, metadata);
        Ok(stream)
    }

    fn names(&self) -> Vec<String> {
        self.fields.iter().map(|field| field.name.clone()).collect()
    }

    fn class_names(&self, columns: &Columns) -> Result<Option<Vec<String>>> {
        let features = self.path.parent().map(saved_dataset::features).transpose()?.flatten();
        let features = match (features, self.metadata.get(METADATA)) {
            (None, Some(text)) => features::features(&self.path, text)?,
            (features, _) => features,
        };
        let names = features.map(|features| check(columns, &features)).transpose();
        names.map(Option::flatten).map_err(|error| error.at(self.path.display()))
    }

    /// The header of the next message; none at the end.
    fn message(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut length = [0; 4];
        match self.file.read_exact(&mut length) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        if length == [0xff; 4] {
            self.file.read_exact(&mut length)?;
        }
        match i32::from_le_bytes(length) {
            0 => Ok(None),
            length => self.take(i64::from(length)).map(Some),
        }
    }

    /// The next `length` bytes; memory grows with what is there, and not with what is said.
    fn take(&mut self, length: i64) -> io::Result<Vec<u8>> {
        let length = u64::try_from(length).map_err(|_| io::ErrorKind::InvalidData)?;
        let mut bytes = Vec::new();
        if (&mut self.file).take(length).read_to_end(&mut bytes)? as u64 == length {
            Ok(bytes)
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }

    /// The next rows, of which `done` came before; none at the end.
    fn batch(&mut self, done: u64) -> Result<Option<Batch>> {
        let wrong = |stream: &Self, error: io::Error| match error.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => damaged(&stream.path, done),
            _ => read_error(&stream.path, &error),
        };
        while !self.is_over {
            let Some(message) = self.message().map_err(|error| wrong(self, error))? else { break };
            let header =
                Table::root(&message).and_then(|root| Some((root.byte(1)?, root.table(2)?, root.long(3).unwrap_or(0))));
            let (kind, header, length) = header.ok_or_else(|| damaged(&self.path, done))?;
            let body = self.take(length).map_err(|error| wrong(self, error))?;
            // The values of dictionaries, which no column that is read has.
            if kind == 2 {
                continue;
            }
            if let Some(compression) = header.table(3) {
                let codec = if compression.byte(0).unwrap_or(0) == 0 { "lz4" } else { "zstd" };
                return Err(Error::data(format!(
                    "{}: expected uncompressed Arrow, got the codec {codec}",
                    self.path.display()
                ))
                .help("write it with `datasets.save_to_disk`, or as parquet"));
            }
            let batch = (kind == 3).then(|| Batch::of(&header, body, &self.fields)).flatten();
            return batch.ok_or_else(|| damaged(&self.path, done)).map(Some);
        }
        self.is_over = true;
        Ok(None)
    }
}

impl Field {
    fn of(table: Table<'_>, depth: usize, left: &mut usize) -> Option<Self> {
        *left = left.checked_sub(1)?;
        let depth = depth.checked_sub(1)?;
        let children = table.tables(5).into_iter().flatten();
        let children = children.map(|child| Self::of(child?, depth, left)).collect::<Option<Vec<_>>>()?;
        let kind = table.table(3);
        let number = |slot| kind.and_then(|kind| kind.int(slot));
        let other = |name, buffers| Kind::Other { name, buffers };
        let size = |slot| number(slot).and_then(|size| usize::try_from(size).ok());
        let is_dictionary = table.table(4).is_some();
        let kind = match table.byte(2)? {
            _ if is_dictionary => other("dictionary", 2),
            1 => Kind::Null,
            2 => Kind::Integer { bytes: size(0)? / 8, is_signed: kind?.byte(1).unwrap_or(0) != 0 },
            3 => Kind::Float { bytes: [2, 4, 8].get(usize::try_from(kind?.short(0).unwrap_or(0)).ok()?).copied()? },
            4 | 5 => Kind::Text { wide: false },
            6 => Kind::Bool,
            7 if number(2) == Some(256) => other("decimal of 256 bits", 2),
            7 => Kind::Decimal { bytes: size(2).unwrap_or(128) / 8, scale: size(1).unwrap_or(0) },
            8 => other("date", 2),
            9 => other("time of day", 2),
            10 => other("timestamp", 2),
            11 => other("interval", 2),
            12 => Kind::List { wide: false },
            13 => Kind::Struct,
            15 => other("bytes of one size", 2),
            16 => Kind::FixedList { size: size(0)? },
            17 => other("map", 2),
            18 => other("duration", 2),
            19 | 20 => Kind::Text { wide: true },
            21 => Kind::List { wide: true },
            // Unions, views and runs, whose number of buffers differs: `datasets` writes none of
            // them.
            _ => return None,
        };
        let is_sized = match kind {
            Kind::Integer { bytes, .. } => [1, 2, 4, 8].contains(&bytes),
            Kind::Decimal { bytes, scale } => [4, 8, 16].contains(&bytes) && scale < 64,
            Kind::List { .. } | Kind::FixedList { .. } => children.len() == 1,
            _ => true,
        };
        is_sized.then(|| Self { name: table.text(0).unwrap_or_default().to_owned(), kind, children })
    }

    /// Checks that the values of the column `name` have a meaning here.
    fn check(&self, name: &str) -> Result<()> {
        if let Kind::Other { name: kind, .. } = self.kind {
            return Err(Error::data(format!(
                "column {name:?}: expected text or numbers, got values of the type {kind}"
            ))
            .help("write the column as text or as a number"));
        }
        self.children.iter().try_for_each(|child| child.check(name))
    }
}

impl Batch {
    /// The batch that `header` describes, of columns as in `fields`.
    fn of(header: &Table<'_>, body: Vec<u8>, fields: &[Field]) -> Option<Self> {
        let mut nodes = header.pairs(1)?;
        let mut buffers = header.pairs(2)?.map(|(at, len)| {
            let (at, len) = (usize::try_from(at).ok()?, usize::try_from(len).ok()?);
            at.checked_add(len).filter(|end| *end <= body.len()).map(|end| at..end)
        });
        let columns =
            fields.iter().map(|field| Column::of(field, &mut nodes, &mut buffers)).collect::<Option<Vec<_>>>()?;
        drop(buffers);
        let rows = usize::try_from(header.long(0).unwrap_or(0)).ok()?;
        columns.iter().all(|column| column.len == rows).then_some(Self { rows, body, columns })
    }

    fn buffer(&self, column: &Column, number: usize) -> Option<&[u8]> {
        self.body.get(column.buffers.get(number)?.clone())
    }

    /// The value of a column of the type of `field` at `index`; none where its bytes are not there.
    fn value(&self, field: &Field, column: &Column, index: usize) -> Option<Value> {
        let bit = |bytes: &[u8]| Some(bytes.get(index / 8)? >> (index % 8) & 1 == 1);
        if index >= column.len {
            return None;
        }
        let valid = self.buffer(column, 0).unwrap_or_default();
        if !valid.is_empty() && !bit(valid)? {
            return Some(Value::Null);
        }
        let bytes = |size: usize| self.buffer(column, 1)?.get(index.checked_mul(size)?..)?.get(..size);
        let range = |wide: bool| {
            let offset = |index: usize| {
                let size = if wide { 8 } else { 4 };
                let bytes = self.buffer(column, 1)?.get(index.checked_mul(size)?..)?.get(..size)?;
                usize::try_from(whole(bytes, true)?).ok()
            };
            Some(offset(index)?..offset(index + 1)?)
        };
        let list = |range: Range<usize>| {
            let (field, column) = (field.children.first()?, column.children.first()?);
            let range = (range.end <= column.len).then_some(range)?;
            range.map(|index| self.value(field, column, index)).collect::<Option<Vec<_>>>().map(Value::List)
        };
        match field.kind {
            Kind::Null => Some(Value::Null),
            Kind::Bool => bit(self.buffer(column, 1)?).map(Value::Bool),
            Kind::Integer { bytes: size, is_signed } => {
                let number = whole(bytes(size)?, is_signed)?;
                Some(Value::Integer(number))
            }
            Kind::Float { bytes: 2 } => Some(Value::Short(f16::from_le_bytes(bytes(2)?.try_into().ok()?).to_f32())),
            Kind::Float { bytes: 4 } => Some(Value::Short(f32::from_le_bytes(bytes(4)?.try_into().ok()?))),
            Kind::Float { .. } => Some(Value::Number(f64::from_le_bytes(bytes(8)?.try_into().ok()?))),
            Kind::Decimal { bytes: size, scale } => Some(Value::Decimal(digits(whole(bytes(size)?, true)?, scale))),
            Kind::Text { wide } => {
                let text = self.buffer(column, 2)?.get(range(wide)?)?;
                Some(match std::str::from_utf8(text) {
                    Ok(text) => Value::Text(text.to_owned()),
                    Err(_) => Value::Bytes(text.to_vec()),
                })
            }
            Kind::List { wide } => list(range(wide)?),
            Kind::FixedList { size } => {
                let start = index.checked_mul(size)?;
                list(start..start.checked_add(size)?)
            }
            Kind::Struct => {
                let children = field.children.iter().zip(&column.children);
                let of = |(field, column): (&Field, _)| Some((field.name.clone(), self.value(field, column, index)?));
                children.map(of).collect::<Option<Vec<_>>>().map(Value::Object)
            }
            Kind::Other { .. } => None,
        }
    }
}

impl Column {
    /// The next column of a batch, of the type of `field`.
    fn of(
        field: &Field,
        nodes: &mut impl Iterator<Item = (i64, i64)>,
        buffers: &mut impl Iterator<Item = Option<Range<usize>>>,
    ) -> Option<Self> {
        let len = usize::try_from(nodes.next()?.0).ok()?;
        let count = match field.kind {
            Kind::Null => 0,
            Kind::Struct | Kind::FixedList { .. } => 1,
            Kind::Bool | Kind::Integer { .. } | Kind::Float { .. } | Kind::Decimal { .. } | Kind::List { .. } => 2,
            Kind::Text { .. } => 3,
            Kind::Other { buffers, .. } => buffers,
        };
        let own = (0..count).map(|_| buffers.next()?).collect::<Option<_>>()?;
        let children = field.children.iter().map(|child| Self::of(child, nodes, buffers)).collect::<Option<_>>()?;
        Some(Self { len, buffers: own, children })
    }
}

/// The whole number that at most 16 `bytes` are, the lowest first.
fn whole(bytes: &[u8], is_signed: bool) -> Option<i128> {
    let is_negative = is_signed && bytes.last()? >> 7 == 1;
    let mut wide = [if is_negative { 0xff } else { 0 }; 16];
    wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(i128::from_le_bytes(wide))
}

/// `number` with its last `scale` digits after a point.
fn digits(number: i128, scale: usize) -> String {
    let (sign, digits) = (if number < 0 { "-" } else { "" }, number.unsigned_abs().to_string());
    let digits = format!("{digits:0>width$}", width = scale + 1);
    let (whole, part) = digits.split_at(digits.len() - scale);
    if scale == 0 { format!("{sign}{whole}") } else { format!("{sign}{whole}.{part}") }
}
