//! A table of figures: a row for every measure and a cell for every arm. A row that no arm has is
//! left out.

use kiln_core::error::one_line;
use serde::Serialize;

/// A measure with one cell an arm; a heading has none.
#[derive(Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// It is a part of the measure above it.
    pub(crate) is_part: bool,
    pub(crate) cells: Vec<String>,
}

/// The text of a cell where an arm has no value.
const NOTHING: &str = "-";

/// The rows of arms, or of other things that stand side by side.
pub(crate) struct Rows<'a, P> {
    arms: &'a [P],
    rows: Vec<Row>,
}

impl<'a, P> Rows<'a, P> {
    /// No rows yet.
    pub(crate) fn new(arms: &'a [P]) -> Self {
        Self { arms, rows: Vec::new() }
    }

    /// Adds a row of `cell`, unless it is empty; the name of a part begins with a space.
    pub(crate) fn add(&mut self, name: &str, cell: impl Fn(&P) -> Option<String>) {
        let cells = self.arms.iter().map(cell).collect::<Vec<_>>();
        if cells.iter().any(Option::is_some) {
            self.push(name, cells.into_iter().map(|cell| cell.unwrap_or_else(|| NOTHING.into())).collect());
        }
    }

    /// Adds a row of numbers with so many digits after the point.
    pub(crate) fn number(&mut self, name: &str, digits: usize, pick: impl Fn(&P) -> Option<f64>) {
        self.add(name, |arm| pick(arm).map(|value| fixed(value, digits)));
    }

    /// Adds a line above the rows that follow.
    pub(crate) fn heading(&mut self, name: &str) {
        self.push(name, Vec::new());
    }

    fn push(&mut self, name: &str, cells: Vec<String>) {
        self.rows.push(Row { name: name.trim().into(), is_part: name.starts_with(' '), cells });
    }

    /// The table of the rows; `name` tells the short name of an arm.
    pub(crate) fn table(self, name: impl Fn(&P) -> &str) -> Table {
        Table { names: self.arms.iter().map(|it| one_line(name(it))).collect(), rows: self.rows }
    }
}

/// Rows under the names of the arms.
#[derive(Serialize)]
pub(crate) struct Table {
    pub(crate) names: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

impl Table {
    /// The lines of the table. More arms than fit into `width` columns go into further
    /// blocks.
    pub(crate) fn blocks(&self, width: usize) -> Vec<Vec<String>> {
        let length = |text: &String| text.chars().count();
        let full = || self.rows.iter().filter(|row| !row.cells.is_empty());
        let indent = |row: &Row| if row.is_part { 2 } else { 0 };
        let first = full().map(|row| indent(row) + length(&row.name)).max().unwrap_or(0);
        let wide = |at: usize| full().map(|row| length(&row.cells[at])).max().unwrap_or(0).max(length(&self.names[at]));
        let widths = (0..self.names.len()).map(wide).collect::<Vec<_>>();
        let (mut blocks, mut end) = (Vec::new(), 0);
        while end < widths.len() {
            let (begin, mut used) = (end, first);
            while end < widths.len() && (end == begin || used + 2 + widths[end] <= width) {
                used += 2 + widths[end];
                end += 1;
            }
            let line = |name: &str, cells: &[String]| {
                let cells = cells.iter().zip(&widths).skip(begin).take(end - begin);
                let cells = cells.map(|(cell, width)| format!("  {cell:>0$}", *width)).collect::<String>();
                one_line(format!("{name:<first$}{cells}").trim_end())
            };
            let head = line("", &self.names);
            let rows = self.rows.iter().map(|row| line(&format!("{:1$}{2}", "", indent(row), row.name), &row.cells));
            blocks.push(std::iter::once(head).chain(rows).collect());
        }
        blocks
    }
}

/// A column of a list: its name, digits after the point, and the number of an item.
pub(crate) type Column<T> = (&'static str, usize, fn(&T) -> Option<f64>);

/// The lines of a table with a row for each of `items`, which `name` names, and these columns.
pub(crate) fn list<T>(items: &[T], name: impl Fn(&T) -> String, columns: &[Column<T>]) -> Vec<String> {
    let mut rows = Rows::new(columns);
    for item in items {
        rows.add(&name(item), |(_, digits, number)| number(item).map(|number| fixed(number, *digits)));
    }
    rows.table(|(name, ..)| name).blocks(usize::MAX).concat()
}

/// `5e-5`, `3.90625e-5`: no more digits than it has, and no more than 8.
pub(crate) fn scientific(value: f64) -> String {
    format!("{value:.7e}").parse::<f64>().map_or_else(|_| format!("{value:e}"), |rounded| format!("{rounded:e}"))
}

/// A number with four significant digits, whole ones as they are, and an exponent where it would be
/// long.
pub(crate) fn significant(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() => {
            if value.is_nan() {
                "NaN".into()
            } else {
                value.to_string()
            }
        }
        size if value.fract() == 0.0 && size < 1e15 => fixed(value, 0),
        size if size >= 1e4 => fixed(value, 0),
        size if size >= 1e-3 => format!("{value:.*}", (3.0 - size.log10().floor()) as usize),
        _ => format!("{value:.3e}"),
    }
}

/// A number with so many digits after the point, thousands grouped where there are none.
pub(crate) fn fixed(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    if digits > 0 || value.abs() < 10_000.0 {
        return text;
    }
    let (sign, digits) = text.strip_prefix('-').map_or(("", text.as_str()), |rest| ("-", rest));
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect::<Vec<_>>();
    format!("{sign}{}", groups.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_too_wide_is_cut_into_blocks() {
        let mut rows = Rows::new(&[("one", Some(1.0)), ("two", None), ("three", Some(3.0))]);
        rows.number("step", 1, |it| it.1);
        rows.number("nothing", 1, |_| None);
        rows.heading("a heading is long");
        let table = rows.table(|it| it.0);
        let all = ["      one  two  three", "step  1.0    -    3.0", "a heading is long"];
        assert_eq!(table.blocks(21), [all]);
        let cut = [["      one  two", "step  1.0    -", all[2]], ["      three", "step    3.0", all[2]]];
        assert_eq!(table.blocks(20), cut);
    }

    #[test]
    fn a_list_has_a_row_for_each_item() {
        let columns: [Column<[f64; 2]>; 2] =
            [("ms", 1, |it| Some(it[0])), ("bytes", 0, |it| Some(it[1]).filter(|n| *n > 0.0))];
        let lines = list(&[[1.5, 4096.0], [10.25, 0.0]], |it| format!("{:.0} of", it[0]), &columns);
        assert_eq!(lines, ["         ms  bytes", "2 of    1.5   4096", "10 of  10.2      -"]);
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(fixed(1234.567, 1), "1234.6");
        assert_eq!(fixed(1_234_567.0, 0), "1,234,567");
        assert_eq!(fixed(-12_345.4, 0), "-12,345");
        assert_eq!(fixed(9999.0, 0), "9999");
        let all = [20.0, 5.6290815, 0.00290953, 66.4378, 38532.2, 2.278837e-5, f64::NAN, f64::INFINITY, 0.0, 1e-30];
        let shown = ["20", "5.629", "0.002910", "66.44", "38,532", "2.279e-5", "NaN", "inf", "0", "1.000e-30"];
        assert_eq!(all.map(significant), shown);
        assert_eq!([5e-5, 4.062_500_000_000_000_5e-5, 0.003].map(scientific), ["5e-5", "4.0625e-5", "3e-3"]);
    }
}
