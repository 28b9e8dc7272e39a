//! `report.md`: the table in GitHub's form, with the charts as images beside it.

use std::fmt::Write as _;

use kiln_core::error::one_line;

use super::document::Document;
use super::drawing::Chart;

/// The page.
pub(super) fn page(document: &Document, charts: &[Chart]) -> String {
    let mut text = format!("# {}\n\nMade {} by `kiln`.\n\n", escape(&document.title), escape(&document.made_at));
    let mut line = |line: String| writeln!(text, "{line}").expect("writing to a String cannot fail");
    if let Some(answer) = &document.answer {
        line(format!("**{}**\n", escape(&answer.sentence)));
    }
    line(format!("| | {} |", document.labels.iter().map(|label| escape(label)).collect::<Vec<_>>().join(" | ")));
    line(format!("| --- |{}", " ---: |".repeat(document.labels.len())));
    for row in &document.table.rows {
        let cells = row.cells.iter().map(|cell| escape(cell)).collect::<Vec<_>>();
        line(format!("| {} | {} |", row.name, cells.join(" | ")));
    }
    let statements = document.statements.iter().map(|statement| statement.sentence.clone()).collect();
    let first = [(document.statements_title, &statements), ("Conclusions", &document.conclusions)];
    let rest = document.sections.iter().map(|section| (section.title, &section.lines));
    for (title, lines) in first.into_iter().chain(rest).filter(|(_, lines)| !lines.is_empty()) {
        line(format!("\n## {title}\n"));
        lines.iter().for_each(|text| line(format!("- {}", escape(text))));
    }
    line("\n## Charts\n".into());
    charts.iter().for_each(|chart| line(format!("![{}](charts/{}.svg)\n", chart.title, chart.name)));
    text
}

/// Text that means nothing to Markdown (CommonMark and GitHub's additions): no link, image,
/// emphasis, code, formula, table cell or HTML, and at its start no heading or list.
fn escape(text: &str) -> String {
    let text = one_line(text);
    let mut escaped = String::new();
    for (at, character) in text.trim().chars().enumerate() {
        match character {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' | '$' => escaped.extend(['\\', character]),
            '#' | '+' | '-' | '=' if at == 0 => escaped.extend(['\\', character]),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn foreign_text_stays_text() {
        assert_eq!(escape("runs/a, 1.05x (x 2), -3 %"), "runs/a, 1.05x (x 2), -3 %");
        assert_eq!(escape("](javascript:alert(1))![x](y)"), r"\](javascript:alert(1))!\[x\](y)");
        assert_eq!(escape("a|b\n# c `d` **e** __f__ ~~g~~ $h$"), r"a\|b # c \`d\` \*\*e\*\* \_\_f\_\_ \~\~g\~\~ \$h\$");
        assert_eq!(escape("<img src=x onerror=y>&lt;"), "&lt;img src=x onerror=y&gt;&amp;lt;");
        assert_eq!([escape("# a"), escape("- b"), escape("\u{1b}[31m")], [r"\# a", r"\- b", r"\\u001b\[31m"]);
    }
}
