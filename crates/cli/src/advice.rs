//! The way out of a command line that cannot be read, where clap knows none: commands that Kiln
//! runs for itself are never proposed, a config file without a command is one to train, and what is
//! no option of a command may be a key of its config.

use std::ffi::OsString;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};
use kiln::config::settings::keys_called;
use kiln_core::error::nearest;
use kiln_core::process::shell_quoted;

use super::Cli;

/// Options that people expect, and the keys that they are.
const SHORT: [(&str, &str); 5] = [
    ("device", "device.kind"),
    ("model", "model.from"),
    ("lr", "trainer.learning_rate"),
    ("steps", "trainer.max_steps"),
    ("out", "run.output_dir"),
];

/// `told` about the command line `args`, with the proposals of Kiln in place of those of clap.
pub(super) fn advised(mut told: clap::Error, args: &[OsString]) -> clap::Error {
    let root = Cli::command();
    let keeps =
        |command: &&Command| command.get_positionals().any(|arg| arg.is_last_set() || arg.is_trailing_var_arg_set());
    let advice = match told.kind() {
        ErrorKind::InvalidSubcommand => {
            let name = text(&told, ContextKind::InvalidSubcommand);
            // Kinds of `kiln cache` have none that are hidden.
            let is_first = args.get(1).is_some_and(|first| *first == *name);
            is_first.then(|| of_word(&mut told, &root, &name))
        }
        ErrorKind::UnknownArgument => {
            let option = text(&told, ContextKind::InvalidArg);
            // To pass an option on to another command, clap's own advice is right.
            let command = args.get(1).and_then(|name| root.find_subcommand(name)).filter(|it| !keeps(it));
            command.map(|command| command_takes_no(command, &option, args))
        }
        ErrorKind::MissingRequiredArgument if args.get(1).is_some_and(|name| name == "predict") => {
            // The option is missing from clap's list, since --input is required without it.
            let input = told.to_string().contains("--input");
            input.then(|| Some("`--text TEXT` predicts for a text in place of the rows of a file".into()))
        }
        _ => None,
    };
    if let Some(advice) = advice {
        told.remove(ContextKind::Suggested);
        if let Some(advice) = advice {
            told.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![advice.into()]));
        }
    }
    told
}

/// The text that the error `told` has for `kind`.
fn text(told: &clap::Error, kind: ContextKind) -> String {
    match told.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    }
}

/// The advice about `name`, which stands where the name of a command belongs; without one, `told`
/// proposes the nearest command.
fn of_word(told: &mut clap::Error, root: &Command, name: &str) -> Option<String> {
    told.remove(ContextKind::SuggestedSubcommand);
    let path = Path::new(name);
    let word = shell_quoted(name);
    if path.is_dir() {
        return Some(format!("`kiln describe {word}` tells how a run stands"));
    }
    if path.is_file() || path.extension().is_some_and(|ending| ending == "toml") {
        return Some(format!("`kiln train {word}` trains what a config describes"));
    }
    if name == "resume" {
        return Some("`kiln train FILE --resume` continues a run".into());
    }
    let shown = root.get_subcommands().filter(|command| !command.is_hide_set()).map(Command::get_name);
    if let Some(near) = nearest(name, shown) {
        told.insert(ContextKind::SuggestedSubcommand, ContextValue::String(near.to_owned()));
    }
    None
}

/// The advice about `word`, which belongs to the option before it: the value of a key that `--set`
/// is given apart from it, a part of a value with spaces, or a number below zero.
fn of_value(word: &str, args: &[OsString]) -> Option<String> {
    let at = args.iter().skip(2).position(|arg| *arg == *word)? + 2;
    let before = |back: usize| at.checked_sub(back).and_then(|at| args.get(at)).map(|arg| arg.to_string_lossy());
    let last = before(1)?;
    if last.starts_with("--") && !last.contains('=') && word.parse::<f64>().is_ok() {
        return Some(format!("a number below zero stands behind the sign: `{last}={word}`"));
    }
    let key = last.strip_prefix("--set=").or_else(|| before(2).filter(|it| it == "--set").map(|_| &*last))?;
    if key.contains('=') {
        return Some(format!("a value with spaces is quoted: `--set {}`", shell_quoted(&format!("{key} {word}"))));
    }
    let keys = match keys_called(key) {
        keys if keys.is_empty() => vec![key.to_owned()],
        keys => keys,
    };
    let set = keys.iter().map(|key| format!("`--set {}`", shell_quoted(&format!("{key}={word}")))).collect::<Vec<_>>();
    Some(format!("key and value are one word: {}", set.join(" or ")))
}

/// The advice about `option`, which `command` does not have: the key of its config.
fn command_takes_no(command: &Command, option: &str, args: &[OsString]) -> Option<String> {
    if let Some(advice) = of_value(option, args) {
        return Some(advice);
    }
    let of_text = [("predict", "--text"), ("generate", "--prompt")];
    let of_text = of_text.iter().find(|(name, _)| *name == command.get_name() && !option.starts_with('-'));
    if let Some((_, text)) = of_text {
        return Some(format!("a text is given by `{text} {}`", shell_quoted(option)));
    }
    let name =
        option.strip_prefix("--").filter(|_| command.get_arguments().any(|arg| arg.get_long() == Some("set")))?;
    let name = name.replace('-', "_");
    let keys = match SHORT.iter().find(|(short, _)| *short == name) {
        Some((_, key)) => vec![(*key).to_owned()],
        None => keys_called(&name),
    };
    let value = value_of(option, args).unwrap_or_else(|| "VALUE".into());
    let set = keys.iter().map(|key| format!("`--set {}`", shell_quoted(&format!("{key}={value}")))).collect::<Vec<_>>();
    Some(format!("keys of the config are set by {}", set.join(" or "))).filter(|_| !set.is_empty())
}

/// The value that `args` give `option`.
fn value_of(option: &str, args: &[OsString]) -> Option<String> {
    let args = args.iter().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>();
    let (index, arg) = args.iter().enumerate().find(|(_, arg)| arg.split('=').next() == Some(option))?;
    match arg.split_once('=') {
        Some((_, value)) => Some(value.to_owned()),
        None => args.get(index + 1).filter(|value| !value.starts_with("--")).map(ToString::to_string),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn told(args: &[&str]) -> String {
        let args = [&["kiln"], args].concat().into_iter().map(OsString::from).collect::<Vec<_>>();
        advised(Cli::try_parse_from(&args).expect_err("the command line is wrong"), &args).to_string()
    }

    /// Each hidden command with a letter left out, at each place.
    #[test]
    fn commands_that_kiln_runs_for_itself_are_never_proposed() {
        let root = Cli::command();
        let hidden = root.get_subcommands().filter(|command| command.is_hide_set()).map(Command::get_name);
        let hidden = hidden.collect::<Vec<_>>();
        assert!(hidden.contains(&"resume-part") && hidden.contains(&"trial-batch"), "{hidden:?}");
        for name in &hidden {
            for at in 0..name.len() {
                let wrong = format!("{}{}", &name[..at], &name[at + 1..]);
                if root.find_subcommand(&wrong).is_none() {
                    let told = told(&[&wrong]);
                    assert!(hidden.iter().all(|name| !told.contains(&format!("'{name}'"))), "{told}");
                }
            }
        }
    }

    #[test]
    fn a_value_that_stands_apart_from_its_option_is_told_as_such() {
        let text = told(&["plan", "config.toml", "--set", "learning_rate", "5"]);
        assert!(text.contains("key and value are one word: `--set trainer.learning_rate=5`"), "{text}");
        let text = told(&["plan", "config.toml", "--set=a", "5"]);
        assert!(text.contains("key and value are one word: `--set a=5`"), "{text}");
        let text = told(&["plan", "config.toml", "--set", "run.name=a", "b"]);
        assert!(text.contains("a value with spaces is quoted: `--set 'run.name=a b'`"), "{text}");
        let text = told(&["generate", "model", "--prompt", "x", "--top-k", "-1"]);
        assert!(text.contains("a number below zero stands behind the sign: `--top-k=-1`"), "{text}");
        let text = told(&["predict", "model", "a b"]);
        assert!(text.contains("a text is given by `--text 'a b'`"), "{text}");
        let text = told(&["predict", "model"]);
        assert!(text.contains("--input <INPUT>") && text.contains("`--text TEXT` predicts for a text"), "{text}");
        let text = told(&["predict", "--text", "x"]);
        assert!(!text.contains("in place of the rows"), "{text}");
    }

    #[test]
    fn an_option_that_is_no_key_gets_no_wrong_advice() {
        let text = told(&["train", "config.toml", "--zzz"]);
        assert!(text.contains("unexpected argument '--zzz'") && !text.contains("-- --zzz"), "{text}");
        let text = told(&["predict", "model", "--learning-rate", "1"]);
        assert!(!text.contains("--set"), "a command without a config has no keys: {text}");
        let text = told(&["launch", "-n", "2", "--zzz"]);
        assert!(text.contains("'-- --zzz'"), "the command behind -- takes it: {text}");
    }
}
