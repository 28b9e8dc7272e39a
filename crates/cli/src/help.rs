//! `kiln help`: the help of a command, or a chapter of the guide as text for a terminal; `kiln help
//! --man` and `kiln completions`: the same command line as man pages and for shells.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use clap::{Args, Command, CommandFactory, Subcommand};
use clap_complete::Shell;
use clap_mangen::Man;
use kiln::guide::{CHAPTERS, Chapter};
use kiln_core::error::{Error, Result, nearest};
use kiln_core::files::write_whole;
use kiln_core::signals;

use super::{Cli, say, terminal};

/// Columns where nobody looks at a terminal. Tables of the guide that are wider than a page become
/// lists.
const WIDTH: usize = 100;

/// The most columns of prose: longer lines are hard to read.
const MOST: usize = 120;

/// The commands by what they are for.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Train", &["init", "schema", "plan", "train", "launch", "sweep", "tune-batch", "pretune"]),
    ("Look at runs", &["runs", "describe", "watch", "report", "metrics"]),
    ("Use a model", &["eval", "predict", "generate", "forward", "merge", "export", "push"]),
    ("Compare and check", &["compare", "bench", "parity", "bisect", "verify-resume"]),
    ("Jobs", &["job", "submit", "attach", "stop"]),
    ("This machine", &["doctor", "devices", "cache", "help", "completions"]),
];

#[derive(Debug, Args)]
pub(super) struct HelpArgs {
    /// A command, or a chapter of the guide
    topic: Vec<String>,
    /// Write the man pages of all commands into this folder
    #[arg(long, value_name = "FOLDER", conflicts_with = "topic")]
    man: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct CompletionArgs {
    /// The shell that is to complete the commands of kiln
    shell: Shell,
}

pub(super) fn run_help(args: &HelpArgs) -> Result<()> {
    let mut root = Cli::command();
    root.build();
    if let Some(folder) = &args.man {
        return man_pages(folder);
    }
    let Some(first) = args.topic.first() else { return say(help_of(&mut root)) };
    if let [name] = &args.topic[..]
        && let Some(chapter) = CHAPTERS.iter().find(|chapter| chapter.name() == *name)
    {
        return paged(text(chapter.text, terminal::width().unwrap_or(WIDTH).min(MOST)).trim_end());
    }
    let mut command = &mut root;
    for name in &args.topic {
        command = match command.find_subcommand_mut(name) {
            Some(found) => found,
            None => return Err(unknown(first)),
        };
    }
    say(help_of(command))
}

/// The help of a command as `--help` prints it, which is the long one where there is something
/// longer to say.
fn help_of(command: &mut Command) -> String {
    let explains = |arg: &clap::Arg| {
        arg.get_long_help().is_some() || arg.get_possible_values().iter().any(|value| value.get_help().is_some())
    };
    let is_long = command.get_long_about().is_some() || command.get_arguments().any(explains);
    let help = if is_long { command.render_long_help() } else { command.render_help() };
    help.to_string().trim_end().to_owned()
}

pub(super) fn run_completions(args: &CompletionArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut shown(), "kiln", &mut script);
    say(String::from_utf8_lossy(&script).trim_end())
}

/// Prints `text`; where it is longer than the screen by `PAGER`, else by `less`, if there is one.
fn paged(text: &str) -> Result<()> {
    let rows = console::Term::stdout().size_checked().map_or(usize::MAX, |(rows, _)| usize::from(rows));
    if !terminal::is_seen(&std::io::stdout()) || text.lines().count() < rows {
        return say(text);
    }
    let asked = std::env::var("PAGER").unwrap_or_else(|_| "less".into());
    let mut words = asked.split_whitespace();
    let Some(program) = words.next() else { return say(text) };
    let mut pager = std::process::Command::new(program);
    // Git's settings: leave what fits, pass colours on, keep the text on the screen.
    let pager = pager.args(words).env("LESS", std::env::var_os("LESS").unwrap_or_else(|| "FRX".into()));
    // Ctrl-C is the pager's.
    signals::install()?;
    let Ok(mut child) = pager.stdin(Stdio::piped()).spawn() else { return say(text) };
    if let Some(mut pipe) = child.stdin.take() {
        // A reader who leaves early has read enough.
        _ = writeln!(pipe, "{text}");
    }
    child.wait().map_err(|error| Error::io(format!("wait for {program}"), &error))?;
    Ok(())
}

/// The form of `kiln --help`: the commands by [`GROUPS`].
pub(super) fn template() -> String {
    let commands = super::Command::augment_subcommands(Command::new("kiln"));
    let mut out = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    let width = terminal::width().unwrap_or(WIDTH).min(MOST);
    for (title, names) in GROUPS {
        out += &format!("\n{title}:\n");
        for command in names.iter().filter_map(|name| commands.find_subcommand(name)) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let name = format!("  {:<15}", command.get_name());
            wrap(&mut out, &name, &format!("{:17}", ""), &about, width);
        }
    }
    out + "\nOptions:\n{options}{after-help}"
}

/// The chapters with their titles, for the end of `kiln --help`.
pub(super) fn chapters() -> String {
    let names = CHAPTERS.iter().map(Chapter::name).collect::<Vec<_>>();
    let width = names.iter().map(String::len).max().unwrap_or_default();
    let lines = names.iter().zip(CHAPTERS).map(|(name, chapter)| format!("  {name:width$}  {}", chapter.title()));
    format!("Chapters of the guide (kiln help CHAPTER):\n{}", lines.collect::<Vec<_>>().join("\n"))
}

fn unknown(topic: &str) -> Error {
    let commands = shown();
    let commands = commands.get_subcommands().map(|command| command.get_name().to_owned()).collect::<Vec<_>>();
    let chapters = CHAPTERS.iter().map(Chapter::name).collect::<Vec<_>>();
    let names = commands.iter().chain(&chapters).map(String::as_str);
    let near = nearest(topic, names).map_or_else(String::new, |near| format!("did you mean `{near}`? "));
    Error::config(format!("help: {topic:?} is neither a command nor a chapter"))
        .help(format!("{near}`kiln help` lists both"))
}

/// The command line without the commands that Kiln runs for itself.
fn shown() -> Command {
    let root = Cli::command();
    let commands = root.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect::<Vec<_>>();
    Command::new("kiln")
        .version(env!("CARGO_PKG_VERSION"))
        .about(root.get_about().cloned().unwrap_or_default())
        .after_help(chapters())
        .disable_help_subcommand(true)
        .subcommands(commands)
}

/// Writes `kiln.1` and a page for every command into `folder`.
fn man_pages(folder: &Path) -> Result<()> {
    let io = |error: &std::io::Error| Error::io(format!("write into {}", folder.display()), error);
    std::fs::create_dir_all(folder).map_err(|error| io(&error))?;
    let mut root = shown();
    root.build();
    let mut pages = Vec::new();
    collect(root, &mut pages);
    for (name, page) in &pages {
        let mut bytes = Vec::new();
        page.render(&mut bytes).map_err(|error| io(&error))?;
        write_whole(&folder.join(name), &bytes)?;
    }
    say(format!("wrote {} man pages to {}; read one with `man -l {1}/kiln.1`", pages.len(), folder.display()))
}

fn collect(command: Command, pages: &mut Vec<(String, Man)>) {
    command.get_subcommands().cloned().for_each(|inner| collect(inner, pages));
    let page = Man::new(command);
    pages.push((page.get_filename(), page));
}

/// A chapter as text of at most `width` columns: headings are underlined, code is indented, links
/// are their words, paragraphs and items of lists are filled, and tables are aligned or, where they
/// are wide, lists.
fn text(markdown: &str, width: usize) -> String {
    let (mut out, mut lines) = (String::new(), markdown.lines().peekable());
    // The paragraph or item at hand, and the columns before its text.
    let (mut paragraph, mut first) = (String::new(), String::new());
    while let Some(line) = lines.next() {
        let is_comment = line.starts_with("<!--") && line.ends_with("-->");
        let is_link = line.starts_with('[') && line.contains("]: ");
        if is_comment || is_link {
            continue;
        }
        let is_item = marker(line).is_some();
        let hashes = line.len() - line.trim_start_matches('#').len();
        let title = line[hashes..].strip_prefix(' ').filter(|_| hashes > 0);
        let is_prose = !line.is_empty() && !line.starts_with("```") && !line.starts_with('|') && title.is_none();
        if is_prose && !is_item {
            if !paragraph.is_empty() {
                paragraph.push(' ');
            }
            paragraph += line.trim_start();
            continue;
        }
        fill(&mut out, &mut first, &mut paragraph, width);
        if let Some(found) = marker(line) {
            first = line[..found].to_owned();
            line[found..].clone_into(&mut paragraph);
        } else if let Some(language) = line.strip_prefix("```") {
            for code in lines.by_ref().take_while(|code| !code.starts_with("```")) {
                // Lines that only make a sample compile.
                if !(language.starts_with("rust") && (code == "#" || code.starts_with("# "))) {
                    out += &format!("    {code}\n");
                }
            }
        } else if line.starts_with('|') {
            let mut rows = vec![cells(line)];
            while let Some(row) = lines.next_if(|line| line.starts_with('|')) {
                rows.push(cells(row));
            }
            out += &table(&rows, width);
        } else if let Some(title) = title {
            let rule = if hashes == 1 { "=" } else { "-" };
            let title = words(title);
            wrap(&mut out, "", "", &title, width);
            out += &format!("{}\n", rule.repeat(title.chars().count().min(width)));
        } else {
            out.push('\n');
        }
    }
    fill(&mut out, &mut first, &mut paragraph, width);
    out
}

/// The length of what begins an item of a list, with the columns before it: `- `, `12. `.
fn marker(line: &str) -> Option<usize> {
    let item = line.trim_start();
    let number = item.trim_start_matches(|c: char| c.is_ascii_digit());
    let (mark, rest) = if number.len() < item.len() { (". ", number) } else { ("- ", item) };
    let text = rest.strip_prefix(mark)?;
    Some(line.len() - text.len())
}

/// Appends the paragraph to `out`, if there is one: `first` before its first line, and as many
/// blanks before the others.
fn fill(out: &mut String, first: &mut String, paragraph: &mut String, width: usize) {
    let (first, paragraph) = (std::mem::take(first), std::mem::take(paragraph));
    if !paragraph.is_empty() {
        wrap(out, &first, &" ".repeat(first.len()), &words(&paragraph), width);
    }
}

/// Appends the words of `text` in lines of at most `width` columns, where no word is longer;
/// `first` stands before the first line, `rest` before the others.
fn wrap(out: &mut String, first: &str, rest: &str, text: &str, width: usize) {
    let mut line = first.to_owned();
    let mut is_begun = false;
    for word in text.split_whitespace() {
        if is_begun && line.chars().count() + 1 + word.chars().count() > width {
            *out += &format!("{line}\n");
            (line, is_begun) = (rest.to_owned(), false);
        }
        if is_begun {
            line.push(' ');
        }
        line += word;
        is_begun = true;
    }
    *out += &format!("{line}\n");
}

/// The cells of a line of a table.
fn cells(line: &str) -> Vec<String> {
    let inside = line.trim().trim_start_matches('|').trim_end_matches('|').replace("\\|", "\u{0}");
    inside.split('|').map(|cell| words(cell.trim()).replace('\u{0}', "|")).collect()
}

/// `rows`, of which the first are the names of the columns and a rule: aligned, or a list where
/// lines would be longer than `width`.
fn table(rows: &[Vec<String>], width: usize) -> String {
    let body = rows.iter().enumerate().filter(|(index, _)| *index != 1).map(|(_, row)| row).collect::<Vec<_>>();
    let columns = body.iter().map(|row| row.len()).max().unwrap_or_default();
    let length = |row: &Vec<String>, column: usize| row.get(column).map_or(0, |cell| cell.chars().count());
    let widths = (0..columns).map(|column| body.iter().map(|row| length(row, column)).max().unwrap_or_default());
    let widths = widths.collect::<Vec<_>>();
    if widths.iter().sum::<usize>() + 2 * columns <= width {
        let line = |row: &&Vec<String>| {
            let padded = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            format!("  {}\n", padded.collect::<Vec<_>>().join("  ")).replace(" \n", "\n")
        };
        return body.iter().map(line).collect();
    }
    let names = body.first().copied().cloned().unwrap_or_default();
    let item = |row: &&Vec<String>| {
        let rest = row.iter().zip(&names).skip(1).filter(|(cell, _)| !cell.is_empty());
        let rest = rest.map(|(cell, name)| if name.is_empty() { cell.clone() } else { format!("{name}: {cell}") });
        let name = row.first().cloned().unwrap_or_default();
        let mut item = String::new();
        wrap(&mut item, "- ", "  ", &name, width);
        rest.for_each(|line| wrap(&mut item, "    ", "    ", &line, width));
        item
    };
    body.iter().skip(1).map(item).collect()
}

/// `text` without the targets of links and the marks of emphasis. Code stays as it is.
fn words(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(['`', '[', '*']) {
        out += &rest[..at];
        rest = &rest[at..];
        let code = code_span(rest);
        let link = rest.strip_prefix('[').and_then(|after| Some((after, closing(after)?)));
        if code > 0 {
            out += &rest[..code];
            rest = &rest[code..];
        } else if let Some((after, end)) = link {
            out += &words(&after[..end]);
            rest = &after[end + 1..];
            for (open, close) in [('(', ')'), ('[', ']')] {
                let target = rest.strip_prefix(open).and_then(|target| target.split_once(close));
                rest = target.map_or(rest, |(_, behind)| behind);
            }
        } else if let Some(behind) = rest.strip_prefix("**") {
            rest = behind;
        } else {
            out += &rest[..1];
            rest = &rest[1..];
        }
    }
    out + rest
}

/// The bytes of the code span that `text` begins with, its backticks included; 0 without one.
fn code_span(text: &str) -> usize {
    let ticks = text.len() - text.trim_start_matches('`').len();
    let mut rest = &text[ticks..];
    while let Some(at) = rest.find('`').filter(|_| ticks > 0) {
        let run = &rest[at..];
        let length = run.len() - run.trim_start_matches('`').len();
        rest = &run[length..];
        if length == ticks {
            return text.len() - rest.len();
        }
    }
    0
}

/// The place of the bracket that ends the one before `text`, of which code has none.
fn closing(text: &str) -> Option<usize> {
    let (mut at, mut depth) = (0, 0);
    while let Some(found) = text[at..].find(['`', '[', ']']) {
        at += found;
        match &text[at..=at] {
            "]" if depth == 0 => return Some(at),
            "]" => depth -= 1,
            "[" => depth += 1,
            _ => at += code_span(&text[at..]).saturating_sub(1),
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Subcommand;

    use super::*;

    #[test]
    fn markdown_becomes_text() {
        let markdown = "# Title\n\nSee [a page](https://x.y) and [other], `[run]` and **bold**.\n\n```rust\n# hidden\n\
                        let x = 1;\n```\n\n| a | b |\n| --- | --- |\n| `x` | 12 |\n\n[other]: other.md\n";
        let expected =
            "Title\n=====\n\nSee a page and other, `[run]` and bold.\n\n    let x = 1;\n\n  a    b\n  `x`  12\n\n";
        assert_eq!(text(markdown, WIDTH), expected);
        let wide = format!("| a | b |\n| - | - |\n| one | {} |\n", "x".repeat(WIDTH));
        assert_eq!(text(&wide, WIDTH), format!("- one\n    b:\n    {}\n", "x".repeat(WIDTH)));
    }

    /// Every code span of the prose of a chapter is in its text, white space apart.
    #[test]
    fn code_stays_as_it_is() {
        assert_eq!(
            words("[`a[0]`](b::c) or `[0, 2]`, `**`, ``a`b`` and **`[]`**, [x][y], * [z"),
            "`a[0]` or `[0, 2]`, `**`, ``a`b`` and `[]`, x, * [z"
        );
        for chapter in CHAPTERS {
            let shown = text(chapter.text, 10_000);
            let mut is_code = false;
            let mut prose = chapter.text.lines().filter(|line| {
                is_code ^= line.starts_with("```");
                let is_target = line.starts_with('[') && line.contains("]: ");
                !(is_code || is_target || line.starts_with(['`', '|']))
            });
            let prose = prose.by_ref().map(|line| format!("{}\n", line.trim_start())).collect::<String>();
            let mut rest = &prose[..];
            let mut spans = 0;
            while let Some(at) = rest.find('`') {
                let length = code_span(&rest[at..]).max(1);
                let span = rest[at..at + length].replace('\n', " ");
                assert!(length == 1 || shown.contains(&span), "{}: {span}", chapter.name());
                spans += usize::from(length > 1);
                rest = &rest[at + length..];
            }
            assert!(spans > 0, "{}", chapter.name());
        }
    }

    #[test]
    fn prose_is_filled_to_the_width() {
        let markdown = "one two three\nfour\n\n1. five six seven eight nine\n   ten\n2. eleven\n\n- a\n  - b `c\n  d` efg hij\nend\n";
        let expected = "one two three\nfour\n\n1. five six\n   seven eight\n   nine ten\n2. eleven\n\n- a\n  - b `c d`\n    efg hij\n    end\n";
        assert_eq!(text(markdown, 14), expected);
        for chapter in CHAPTERS {
            let narrow = text(chapter.text, 80);
            // Code and words such as addresses stay whole.
            let long = narrow.lines().filter(|line| !line.starts_with("    ") && line.chars().count() > 80);
            let broken = long.filter(|line| line.trim().contains(' ')).collect::<Vec<_>>();
            assert_eq!(broken, [""; 0], "{}", chapter.name());
            // Tables have another form where they are wide.
            let prose = chapter.text.lines().filter(|line| !line.starts_with('|')).map(|line| format!("{line}\n"));
            let prose = prose.collect::<String>();
            let words = |width: usize| text(&prose, width).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            let marks = |word: &String| word.trim_matches(['=', '-']).is_empty();
            let told = |width: usize| words(width).into_iter().filter(|word| !marks(word)).collect::<Vec<_>>();
            assert_eq!(told(40), told(10_000), "{}", chapter.name());
        }
    }

    #[test]
    fn every_command_is_in_one_group() {
        let mut grouped = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect::<Vec<_>>();
        grouped.sort_unstable();
        let shown = shown();
        let mut commands = shown.get_subcommands().map(Command::get_name).collect::<Vec<_>>();
        commands.sort_unstable();
        assert_eq!(grouped, commands);
    }

    #[test]
    fn chapters_and_commands_have_different_names() {
        let commands = super::super::Command::augment_subcommands(Command::new("kiln"));
        for chapter in CHAPTERS {
            assert!(commands.get_subcommands().all(|command| command.get_name() != chapter.name()), "{chapter:?}");
            let question = chapter.text.lines().find(|line| line.contains('?'));
            assert!(chapter.text.starts_with("# ") && question.is_some(), "{}: no title or question", chapter.name());
        }
    }
}
