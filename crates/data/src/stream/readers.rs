//! Examples as they are read from text and from tables, from any place on.

use std::collections::VecDeque;
use std::sync::Arc;

use kiln_core::error::Result;
use sha2::{Digest as _, Sha256};

use super::{Examples, Made, Mark};
use crate::corpus::Corpus;
use crate::settings::Errors;
use crate::table::{Row, Table};
use crate::text_chunks::{PIECE_BYTES, Unit, cut};
use crate::tokenizer::Tokenizer;
use crate::tokens::ends;
use crate::utf8::tell_streamed;
use crate::{Example, Label};

/// Documents go to the tokenizer in groups of about this many bytes.
const GROUP_BYTES: usize = 1 << 20;

/// And in groups of at most so many.
const GROUP: usize = 1024;

/// Blocks of `block_size` tokens of `corpus`, as [`Blocks`](crate::blocks::Blocks) cuts them.
///
/// # Errors
/// A tokenizer without an end-of-text that the corpus asks for.
pub fn blocks(corpus: Corpus, tokenizer: Arc<Tokenizer>, block_size: usize) -> Result<Made> {
    let (before, after) = ends(&tokenizer, &corpus)?;
    let mut settings = Sha256::new_with_prefix("blocks");
    settings.update(tokenizer.content_hash());
    settings.update(format!("{block_size} {}\n", corpus.describe()));
    let files = corpus.files().to_vec();
    let corpus = Arc::new(corpus);
    let around = Arc::new((before, after));
    let source = move |mark: Mark| -> Examples {
        Box::new(BlockReader {
            corpus: corpus.clone(),
            tokenizer: tokenizer.clone(),
            around: around.clone(),
            block_size,
            file: mark.file,
            from: mark.at,
            skip: mark.skip as usize,
            documents: None,
            tokens: VecDeque::new(),
            units: VecDeque::new(),
            is_over: false,
        })
    };
    Ok(Made { source: Box::new(source), files, settings, longest: block_size, is_exact: true })
}

/// Cuts the tokens of a corpus into blocks.
struct BlockReader {
    corpus: Arc<Corpus>,
    tokenizer: Arc<Tokenizer>,
    /// The tokens before and after each document.
    around: Arc<(Vec<u32>, Vec<u32>)>,
    block_size: usize,
    /// The file that is read, or comes next.
    file: usize,
    /// Where reading begins in it.
    from: u64,
    /// Tokens of the first unit that are left out.
    skip: usize,
    documents: Option<Box<dyn Iterator<Item = Result<Unit>> + Send>>,
    /// Tokens of no block yet.
    tokens: VecDeque<i32>,
    /// The units that they come from: file, place, tokens that are in blocks, and tokens that are
    /// not.
    units: VecDeque<(usize, u64, u64, usize)>,
    is_over: bool,
}

impl BlockReader {
    /// Reads a group of units; false at the end.
    fn fill(&mut self) -> Result<bool> {
        let (mut group, mut bytes) = (Vec::new(), 0);
        while bytes < GROUP_BYTES && group.len() < GROUP && self.file < self.corpus.files().len() {
            let documents = match &mut self.documents {
                Some(documents) => documents,
                None => self.documents.insert(self.corpus.units(self.file, std::mem::take(&mut self.from))?),
            };
            match documents.next() {
                Some(unit) => {
                    let unit = unit?;
                    if unit.2.replaced > 0 {
                        tell_streamed(&self.corpus.files()[self.file]);
                    }
                    bytes += unit.2.text.len().max(1);
                    group.push((self.file, unit));
                }
                None => (self.file, self.documents) = (self.file + 1, None),
            }
        }
        let is_any = !group.is_empty();
        let pieces = group.into_iter().flat_map(|(file, (at, starts, chunk))| {
            let mut is_first = true;
            cut(Ok(chunk), PIECE_BYTES).map(move |piece| {
                let begins = std::mem::take(&mut is_first);
                piece.map(|piece| (file, at, begins, starts && begins, piece))
            })
        });
        let pieces = pieces.collect::<Result<Vec<_>>>()?;
        let texts = pieces.iter().map(|(.., piece)| piece.text.as_str()).collect::<Vec<_>>();
        for ((file, at, begins, starts, piece), ids) in pieces.iter().zip(self.tokenizer.encode_pieces(&texts)?) {
            let before = if *starts { &self.around.0[..] } else { &[] };
            let after = if piece.ends_document { &self.around.1[..] } else { &[] };
            if *begins {
                self.units.push_back((*file, *at, 0, 0));
            }
            let unit = self.units.back_mut().expect("the first piece of a unit has added it");
            for id in before.iter().chain(&ids).chain(after) {
                match self.skip {
                    0 => {
                        self.tokens.push_back(*id as i32);
                        unit.3 += 1;
                    }
                    _ => {
                        self.skip -= 1;
                        unit.2 += 1;
                    }
                }
            }
        }
        Ok(is_any)
    }

    /// The next block, of tokens that are there.
    fn block(&mut self) -> (Mark, Example) {
        while self.units.front().is_some_and(|unit| unit.3 == 0) {
            self.units.pop_front();
        }
        let (file, at, skip, _) = *self.units.front().expect("the tokens of a block come from a unit");
        let input_ids = self.tokens.drain(..self.block_size).collect::<Vec<_>>();
        let mut left = self.block_size;
        for unit in &mut self.units {
            let taken = unit.3.min(left);
            (unit.2, unit.3, left) = (unit.2 + taken as u64, unit.3 - taken, left - taken);
            if left == 0 {
                break;
            }
        }
        let label = Label::Tokens(input_ids.clone());
        let example = Example { input_ids, attention_mask: None, token_type_ids: None, position_ids: None, label };
        (Mark { file, at, skip }, example)
    }
}

impl Iterator for BlockReader {
    type Item = Result<(Mark, Example)>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.tokens.len() < self.block_size && !self.is_over {
            match self.fill() {
                Ok(is_any) => self.is_over = !is_any,
                Err(error) => {
                    (self.is_over, self.tokens) = (true, VecDeque::new());
                    return Some(Err(error));
                }
            }
        }
        (self.tokens.len() >= self.block_size).then(|| Ok(self.block()))
    }
}

/// Makes examples of a group of rows; none of a row that is left out.
pub type Encode = dyn Fn(&[Row]) -> Result<Vec<Option<Example>>> + Send + Sync;

/// The rows of `table`, which `encode` makes examples of at most `longest` tokens of. `settings` is
/// a hash of what decides them, besides the rows.
pub fn rows(table: Table, encode: Box<Encode>, longest: usize, mut settings: Sha256) -> Made {
    settings.update(format!("rows {:?} {longest}\n", table.columns()));
    if table.errors() == Errors::Replace {
        settings.update("errors replaced\n");
    }
    let files = table.files().to_vec();
    let (table, encode): (Arc<Table>, Arc<Encode>) = (Arc::new(table), encode.into());
    let source = move |mark: Mark| -> Examples {
        Box::new(RowReader {
            table: table.clone(),
            encode: encode.clone(),
            file: mark.file,
            at: mark.at,
            rows: None,
            ready: VecDeque::new(),
        })
    };
    Made { source: Box::new(source), files, settings, longest, is_exact: false }
}

/// Makes examples of the rows of a table.
struct RowReader {
    table: Arc<Table>,
    encode: Arc<Encode>,
    file: usize,
    /// Rows of the file that are read.
    at: u64,
    rows: Option<Box<dyn Iterator<Item = Result<Row>> + Send>>,
    ready: VecDeque<(Mark, Example)>,
}

impl RowReader {
    /// Reads a group of rows; false at the end.
    fn fill(&mut self) -> Result<bool> {
        let (mut group, mut marks, mut bytes) = (Vec::new(), Vec::new(), 0);
        while bytes < GROUP_BYTES && group.len() < GROUP && self.file < self.table.files().len() {
            let rows = match &mut self.rows {
                Some(rows) => rows,
                None => {
                    let mut rows = self.table.rows_of(self.file);
                    for _ in 0..self.at {
                        rows.next().transpose()?;
                    }
                    self.rows.insert(rows)
                }
            };
            match rows.next() {
                Some(row) => {
                    let row = row?;
                    if row.replaced > 0 {
                        tell_streamed(&self.table.files()[self.file]);
                    }
                    bytes += row.texts().map(str::len).sum::<usize>();
                    marks.push(Mark { file: self.file, at: self.at, skip: 0 });
                    group.push(row);
                    self.at += 1;
                }
                None => (self.file, self.at, self.rows) = (self.file + 1, 0, None),
            }
        }
        let examples = (self.encode)(&group)?;
        let ready = marks.into_iter().zip(examples).filter_map(|(mark, example)| Some((mark, example?)));
        self.ready.extend(ready);
        Ok(!group.is_empty())
    }
}

impl Iterator for RowReader {
    type Item = Result<(Mark, Example)>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() {
            match self.fill() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    self.file = self.table.files().len();
                    return Some(Err(error));
                }
            }
        }
        self.ready.pop_front().map(Ok)
    }
}
