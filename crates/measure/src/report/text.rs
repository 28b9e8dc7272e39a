//! The report for the terminal: the table, the verdicts, what follows.

use kiln_core::error::one_line;

use super::document::Document;

/// The page, whose table is cut into blocks of `width` columns.
pub(super) fn page(mut document: Document, width: usize) -> String {
    let mut text = String::new();
    let mut line = |line: &str| text.extend([one_line(line.trim_end()).as_str(), "\n"]);
    line(&document.title);
    line("");
    if let Some(answer) = &document.answer {
        line(&answer.sentence);
        line("");
    }
    // A failure is long and is said below.
    document.table.rows.retain(|row| row.name != "failed");
    for block in document.table.blocks(width) {
        block.iter().for_each(|row| line(row));
        line("");
    }
    if let Some(matrix) = &document.matrix {
        line(&matrix.caption);
        matrix.table().blocks(width).iter().flatten().for_each(|row| line(row));
        line("");
    }
    document.statements.iter().for_each(|statement| line(&statement.sentence));
    document.failures.iter().for_each(|failure| line(&format!("failed: {failure}")));
    line("");
    document.conclusions.iter().for_each(|conclusion| line(conclusion));
    for section in &document.sections {
        let Some(start) = section.in_terminal else { continue };
        section.lines.iter().for_each(|it| line(&format!("{start}{it}")));
    }
    text
}
