//! The report for the terminal: the table, the verdicts, what follows.

use super::document::Document;
use crate::base::error::one_line;

/// The page, whose table is cut into blocks of `width` columns.
pub(super) fn page(mut document: Document, width: usize) -> String {
    let mut text = String::new();
    let mut line = |line: &str| text.extend([one_line(line.trim_end()).as_str(), "\n"]);
    line(document.title);
    line("");
    // A failure is long and is said below.
    document.table.rows.retain(|row| row.name != "failed");
    for block in document.table.blocks(width) {
        block.iter().for_each(|row| line(row));
        line("");
    }
    document.noise.iter().chain(&document.verdicts).for_each(|verdict| line(&verdict.sentence));
    document.failures.iter().for_each(|failure| line(&format!("failed: {failure}")));
    line("");
    document.conclusions.iter().for_each(|conclusion| line(conclusion));
    document.differences.iter().for_each(|difference| line(&format!("Differs: {difference}")));
    document.notes.iter().for_each(|note| line(&format!("Note: {note}.")));
    text
}
