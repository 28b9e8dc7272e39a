//! `kiln help`: the help of a command, or a chapter of the guide as text for a terminal; `kiln help
//! --man` and `kiln completions`: the same command line as man pages and for shells.

use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use kiln::guide::{CHAPTERS, Chapter};
use kiln_core::error::{Error, Result, nearest};
use kiln_core::files::write_whole;

use super::{Cli, say};

/// Tables of the guide that are wider become lists.
const WIDTH: usize = 100;

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
        return say(text(chapter.text).trim_end());
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

/// A chapter as text: headings are underlined, code is indented, links are their words, and tables
/// are aligned or, where they are wide, lists.
fn text(markdown: &str) -> String {
    let (mut out, mut lines) = (String::new(), markdown.lines().peekable());
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            for code in lines.by_ref().take_while(|code| !code.starts_with("```")) {
                // Lines that only make a sample compile.
                if !(language.starts_with("rust") && (code == "#" || code.starts_with("# "))) {
                    out += &format!("    {code}\n");
                }
            }
            continue;
        }
        if line.starts_with('|') {
            let mut rows = vec![cells(line)];
            while let Some(row) = lines.next_if(|line| line.starts_with('|')) {
                rows.push(cells(row));
            }
            out += &table(&rows);
            continue;
        }
        let is_comment = line.starts_with("<!--");
        let is_link = line.starts_with('[') && line.contains("]: ");
        if is_comment || is_link {
            continue;
        }
        let hashes = line.len() - line.trim_start_matches('#').len();
        match line[hashes..].strip_prefix(' ') {
            Some(title) if hashes > 0 => {
                let rule = if hashes == 1 { "=" } else { "-" };
                out += &format!("{}\n{}\n", words(title), rule.repeat(words(title).chars().count()));
            }
            _ => out += &format!("{}\n", words(line)),
        }
    }
    out
}

/// The cells of a line of a table.
fn cells(line: &str) -> Vec<String> {
    let inside = line.trim().trim_start_matches('|').trim_end_matches('|').replace("\\|", "\u{0}");
    inside.split('|').map(|cell| words(cell.trim()).replace('\u{0}', "|")).collect()
}

/// `rows`, of which the first are the names of the columns and a rule.
fn table(rows: &[Vec<String>]) -> String {
    let body = rows.iter().enumerate().filter(|(index, _)| *index != 1).map(|(_, row)| row).collect::<Vec<_>>();
    let columns = body.iter().map(|row| row.len()).max().unwrap_or_default();
    let length = |row: &Vec<String>, column: usize| row.get(column).map_or(0, |cell| cell.chars().count());
    let widths = (0..columns).map(|column| body.iter().map(|row| length(row, column)).max().unwrap_or_default());
    let widths = widths.collect::<Vec<_>>();
    if widths.iter().sum::<usize>() + 2 * columns <= WIDTH {
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
        format!("- {name}\n{}", rest.map(|line| format!("    {line}\n")).collect::<String>())
    };
    body.iter().skip(1).map(item).collect()
}

/// A line without the targets of links and the marks of emphasis.
fn words(line: &str) -> String {
    let (mut out, mut rest) = (String::new(), line);
    while let Some((before, after)) = rest.split_once('[') {
        let Some((inside, behind)) = after.split_once(']') else { break };
        // Brackets within code stay.
        if before.matches('`').count() % 2 == 1 {
            out += &format!("{before}[");
            rest = after;
            continue;
        }
        out += before;
        out += inside;
        rest = match behind.strip_prefix('(').and_then(|target| target.split_once(')')) {
            Some((_, behind)) => behind,
            None => behind,
        };
    }
    (out + rest).replace("**", "")
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
        assert_eq!(text(markdown), expected);
        let wide = format!("| a | b |\n| - | - |\n| one | {} |\n", "x".repeat(WIDTH));
        assert_eq!(text(&wide), format!("- one\n    b: {}\n", "x".repeat(WIDTH)));
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
