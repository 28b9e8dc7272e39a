//! `kiln forward`, `kiln generate`, `kiln merge` and `kiln export`, and the device of a command
//! that takes a model folder.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

use burn::tensor::Device;
use clap::Args;
use kiln::config::{
    CompilerMode, DeviceKind, GenerateOptions, GenerationSection, Precision, Task, TrainingCompilerConfig,
};
use kiln::engine::device;
use kiln::engine::precision::PrecisionPlan;
use kiln::inference::forward::forward_to_file;
use kiln::push::{folder_of, lines, push_model};
use kiln::session::export::export;
use kiln::session::generation_config;
use kiln::session::merge::merge;
use kiln::session::model_folder::ModelFolder;
use kiln::task::generate::Generator;
use kiln_core::error::{Error, Result, printable};
use kiln_core::files::read_regular_text;
use kiln_core::process::shell_quoted;
use kiln_core::signals;
use kiln_data::hub::{HubSettings, Target};
use kiln_data::instruct::template::ChatTemplate;
use kiln_data::tokenized::{Limits, read_batch};
use kiln_data::tokenizer::Tokenizer;
use kiln_measure::engines;
use kiln_models::{Compute, Copies};
use serde_json::json;

use super::{finite, say};

#[derive(Debug, Args)]
pub(super) struct DeviceArgs {
    /// auto, cpu, wgpu or cuda
    #[arg(long, default_value = "auto")]
    device: String,
    /// Which device of that kind, from 0
    #[arg(long, default_value_t = 0)]
    device_index: usize,
    /// native, compiled, or auto: compiled where the device has it. When it is left out, `forward`
    /// computes natively, as the reference does, and `generate` and `predict` with auto
    #[arg(long, value_name = "MODE")]
    compiler: Option<CompilerMode>,
    /// f32, bf16, f16 or auto; f32 when it is left out, and for `predict` that of the run
    #[arg(long)]
    pub(super) precision: Option<Precision>,
}

#[derive(Debug, Args)]
pub(super) struct ForwardArgs {
    /// A model folder in Hugging Face's form, a run folder, or a Hub id
    model: String,
    /// JSON with input_ids, attention_mask, token_type_ids and labels as nested lists
    #[arg(long)]
    batch: PathBuf,
    /// clm, mlm, sequence-classification, multi-label-classification, regression,
    /// token-classification, multiple-choice or question-answering
    #[arg(long)]
    task: String,
    /// The safetensors file to write
    #[arg(long)]
    out: PathBuf,
    /// Also write grad.<tensor name> of the loss
    #[arg(long)]
    gradients: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

#[derive(Debug, Args)]
pub(super) struct GenerateArgs {
    /// A model folder in Hugging Face's form, a run folder, or a Hub id
    model: String,
    /// The text to continue; given again, another one
    #[arg(long, required_unless_present = "prompts")]
    prompt: Vec<String>,
    /// A file with a prompt on every line; lines without a character are skipped, and `index`
    /// counts the prompts
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// A prompt is what a user says: the model's chat template lays it out, and the answer alone
    /// is written
    #[arg(long)]
    chat: bool,
    /// The words of the role `system` before what the user says
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// Write a line of JSON for every prompt: index, prompt, text, token_ids (the new ones).
    /// Several prompts and those of --prompts are always written so
    #[arg(long)]
    json: bool,
    /// Prompts that are continued together
    #[arg(long, default_value_t = 8)]
    batch_size: usize,
    /// At most this many tokens
    #[arg(long, help = stated("At most this many tokens", GenerationSection::default().max_new_tokens))]
    max_new_tokens: Option<usize>,
    /// 0 takes the most likely token every time
    #[arg(long, allow_negative_numbers = true, help = stated("0 takes the most likely token every time", GenerationSection::default().temperature))]
    temperature: Option<f64>,
    /// Keep only the K most likely tokens; 0 keeps all
    #[arg(long, help = stated("Keep only the K most likely tokens; 0 keeps all", GenerationSection::default().top_k))]
    top_k: Option<usize>,
    /// Keep the most likely tokens that reach probability P together
    #[arg(long, allow_negative_numbers = true, help = stated("Keep the most likely tokens that reach probability P together", GenerationSection::default().top_p))]
    top_p: Option<f64>,
    /// Above 1, tokens that the text has become less likely
    #[arg(long, allow_negative_numbers = true, help = stated("Above 1, tokens that the text has become less likely", GenerationSection::default().repetition_penalty))]
    repetition_penalty: Option<f64>,
    /// No sequence of N tokens comes twice; 0 allows all
    #[arg(long, value_name = "N", help = stated("No sequence of N tokens comes twice; 0 allows all", GenerationSection::default().no_repeat_ngram_size))]
    no_repeat_ngram_size: Option<usize>,
    /// No end of the text before so many tokens
    #[arg(long, help = stated("No end of the text before so many tokens", GenerationSection::default().min_new_tokens))]
    min_new_tokens: Option<usize>,
    /// Stop after this text, which is written; given again, another one
    #[arg(long, value_name = "TEXT")]
    stop_strings: Vec<String>,
    /// Seed of the draws; every prompt draws as if it were alone
    #[arg(long, default_value_t = GenerationSection::default().seed)]
    seed: u64,
    #[command(flatten)]
    device: DeviceArgs,
}

#[derive(Debug, Args)]
pub(super) struct MergeArgs {
    /// A PEFT folder with an adapter, a run folder whose model/ is one, or a Hub id
    adapter: String,
    /// The folder to write
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    /// A model folder in Hugging Face's form, or a run folder, whose model/ is taken
    model: PathBuf,
    /// The archive to write, as a rule model.tar.gz
    #[arg(long, value_name = "FILE")]
    tar: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct PushArgs {
    /// A run folder, whose model/ is taken, or the folder of a model, an adapter or a checkpoint
    run: PathBuf,
    /// The repository: org/name, or name for the account of the token. It is made where it is not
    /// there
    #[arg(value_name = "ORG/NAME")]
    id: String,
    /// Make the repository private, where it is made
    #[arg(long)]
    private: bool,
    /// Make the repository public, where it is made. Neither of the two: as the Hub has it, by the
    /// settings of an organization
    #[arg(long, conflicts_with = "private")]
    public: bool,
    /// The branch; it is made where it is not there
    #[arg(long, value_name = "BRANCH")]
    revision: Option<String>,
    /// Propose the files as a pull request, and leave the branch as it is
    #[arg(long)]
    create_pr: bool,
}

/// The device, and in which form and which type the model computes there: in `mode` and in
/// `precision` where the arguments name none.
pub(super) fn device(args: &DeviceArgs, mode: CompilerMode, precision: Precision) -> Result<(Device, Compute)> {
    let kind = args.device.parse::<DeviceKind>().map_err(|error| error.at("--device"))?;
    let compiler =
        TrainingCompilerConfig { enabled: args.compiler.unwrap_or(mode), ..TrainingCompilerConfig::default() };
    engines::hand_over(Some(&compiler), kind)?;
    let found = device::select(kind, args.device_index)?;
    let facts = found.facts();
    let ops = device::ops(Some(&compiler), &facts)?;
    let precision = PrecisionPlan::new(args.precision.unwrap_or(precision), &facts, ops)?;
    Ok((found.device, Compute::new(precision.ops(ops, facts.kind), precision.dtype())))
}

pub(super) fn run_forward(args: &ForwardArgs) -> Result<()> {
    let task = Task::from_name(&args.task)?;
    let (device, compute) = device(&args.device, CompilerMode::Native, Precision::F32)?;
    let device = if args.gradients { device.autodiff() } else { device };
    let folder = ModelFolder::open(&args.model, task, &device)?.with_compute(compute);
    folder.notes.iter().try_for_each(say)?;
    let batch = read_batch(&args.batch, task, &Limits::of(&folder.config, task))?;
    let out = forward_to_file(&folder, task, &batch, args.gradients, &device, &args.out)?;
    for tensor in out.iter().filter(|tensor| !tensor.name.starts_with("grad.")) {
        match tensor.data[..] {
            [value] => say(format!("{}: {value}", tensor.name))?,
            _ => say(format!("{}: {:?}", tensor.name, tensor.shape))?,
        }
    }
    say(format!("wrote {} tensors to {}", out.len(), args.out.display()))?;
    let loss = out.iter().find(|tensor| tensor.name == "loss").map_or(0.0, |tensor| f64::from(tensor.data[0]));
    finite("the loss of the batch", loss)
}

/// The help of an argument whose default a model may state.
fn stated(help: &str, default: impl std::fmt::Display) -> String {
    format!("{help} [default: the model's generation_config.json, else {default}]")
}

impl GenerateArgs {
    /// The texts to continue.
    fn prompts(&self) -> Result<Vec<String>> {
        let mut prompts = self.prompt.clone();
        if let Some(path) = &self.prompts {
            let text =
                read_regular_text(path).map_err(|error| Error::io(format!("read {}", path.display()), &error))?;
            let lines = text.lines().map(str::to_owned).filter(|line| !line.is_empty());
            prompts.extend(lines);
        }
        if prompts.is_empty() {
            return Err(Error::data("--prompts: the file has no line with text; expected a prompt on every line"));
        }
        Ok(prompts)
    }

    /// The token ids of each of `prompts`, which a chat template has laid out where one is asked
    /// for.
    fn ids(&self, prompts: &[String], tokenizer: &Tokenizer) -> Result<Vec<Vec<u32>>> {
        if !self.chat {
            return prompts.iter().map(|prompt| tokenizer.encode(prompt)).collect();
        }
        let template = ChatTemplate::of(tokenizer)?.ok_or_else(|| {
            Error::config("--chat: the model's tokenizer has no chat template")
                .help("leave out --chat to continue the text as it is")
                .at(&self.model)
        })?;
        let laid_out = |prompt: &String| template.question(self.system.as_deref(), prompt);
        let texts = prompts.iter().map(laid_out).collect::<Result<Vec<_>>>()?;
        // The template writes the special tokens itself.
        tokenizer.encode_pieces(&texts.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The text that is written before the continuation of `prompt`.
    fn head<'a>(&self, prompt: &'a str) -> &'a str {
        if self.chat { "" } else { prompt }
    }

    /// The settings: those of the command line, else those of `defaults`.
    fn options(&self, defaults: GenerateOptions) -> GenerateOptions {
        let max_new_tokens = self.max_new_tokens.unwrap_or(defaults.max_new_tokens);
        GenerateOptions {
            max_new_tokens,
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            seed: self.seed,
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            no_repeat_ngram_size: self.no_repeat_ngram_size.unwrap_or(defaults.no_repeat_ngram_size),
            // A model's own least number yields to the largest that is asked for.
            min_new_tokens: self.min_new_tokens.unwrap_or(defaults.min_new_tokens.min(max_new_tokens)),
            stop: defaults.stop,
            stop_strings: if self.stop_strings.is_empty() { defaults.stop_strings } else { self.stop_strings.clone() },
        }
    }
}

pub(super) fn run_generate(args: &GenerateArgs) -> Result<()> {
    if args.batch_size == 0 {
        return Err(Error::config("--batch-size: expected 1 or more, got 0"));
    }
    let prompts = args.prompts()?;
    let (device, compute) = device(&args.device, CompilerMode::Auto, Precision::F32)?;
    let folder = ModelFolder::open_frozen(&args.model, Task::Clm, &device, compute).map_err(|error| {
        if !error.message().ends_with("has no head for it") {
            return error;
        }
        error.at(&args.model).help(format!(
            "`kiln generate` continues a text with a model such as GPT-2; `kiln predict {}` predicts with this one",
            shell_quoted(&args.model)
        ))
    })?;
    let tokenizer = folder.tokenizer()?;
    let (defaults, unused) = generation_config::defaults(&folder, &tokenizer)?;
    unused.iter().for_each(|line| tracing::warn!("{line}"));
    let options = args.options(defaults);
    let (model, config, copies) = (&folder.model, &folder.config, Copies::of_frozen());
    let generator = Generator { model, config, device: &device, tokenizer: Some(&tokenizer), copies: &copies };
    let ids = args.ids(&prompts, &tokenizer)?;
    match &prompts[..] {
        [prompt] if !args.json && args.prompts.is_none() => {
            streamed(&generator, &tokenizer, args.head(prompt), ids, &options)
        }
        prompts => {
            let together = prompts.chunks(args.batch_size).zip(ids.chunks(args.batch_size));
            let mut index = 0;
            for (prompts, ids) in together {
                let continued = generator.generate(ids, &options, |_, _| ControlFlow::Continue(()))?;
                for ((prompt, ids), tokens) in prompts.iter().zip(ids).zip(continued) {
                    tell_full(&generator, &options, ids.len(), tokens.len());
                    let text = format!("{}{}", args.head(prompt), tokenizer.decode(&tokens)?);
                    say(json!({ "index": index, "prompt": prompt, "text": text, "token_ids": tokens }))?;
                    index += 1;
                }
            }
            Ok(())
        }
    }
}

/// Writes `prompt` and the continuation of its `ids`, the only ones, as it comes.
fn streamed(
    generator: &Generator<'_>,
    tokenizer: &Tokenizer,
    prompt: &str,
    ids: Vec<Vec<u32>>,
    options: &GenerateOptions,
) -> Result<()> {
    // Nothing is shown before the first token, so that what is refused leaves no half line.
    let (mut text, mut failed) = (TextStream { tokenizer, tokens: Vec::new(), context: 0, shown: 0 }, None);
    let length = ids.iter().map(Vec::len).sum();
    generator.generate(&ids, options, |_, token| {
        let head = if text.tokens.is_empty() { prompt } else { "" };
        text.push(token).and_then(|text| stream(&format!("{head}{text}"))).unwrap_or_else(|error| {
            failed = Some(error);
            ControlFlow::Break(())
        })
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    let head = if text.tokens.is_empty() { prompt } else { "" };
    stream(&format!("{head}{}\n", text.rest()?)).map(drop)?;
    tell_full(generator, options, length, text.tokens.len());
    Ok(())
}

/// Tells of a text that ended since the model has no more positions, where `new` tokens follow a
/// prompt of `prompt` tokens.
fn tell_full(generator: &Generator<'_>, options: &GenerateOptions, prompt: usize, new: usize) {
    let positions = generator.config.max_positions();
    if prompt + new > positions && new < options.max_new_tokens {
        tracing::warn!(
            "the text ends after {new} of max_new_tokens = {} tokens: the model has {positions} positions, and the prompt takes \
             {prompt}",
            options.max_new_tokens
        );
    }
}

/// The text of tokens that come one by one. A token may end in the middle of a character: text is
/// shown as far as it is whole. The text of a few tokens depends on those before them (a space at
/// the beginning), so the last ones that were shown are decoded again with the new ones, and no
/// more of them.
struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    tokens: Vec<u32>,
    /// The first token that is decoded.
    context: usize,
    /// How many tokens have been shown.
    shown: usize,
}

/// The tokens that may stay unshown.
const UNSHOWN: usize = 8;

impl TextStream<'_> {
    /// The text that `token` makes whole.
    fn push(&mut self, token: u32) -> Result<String> {
        self.tokens.push(token);
        let (text, count) = (self.rest()?, self.tokens.len());
        if !text.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(if text.is_empty() { text } else { self.show(text, count) });
        }
        if count - self.shown <= UNSHOWN {
            return Ok(String::new());
        }
        // A model that has learned little writes many tokens that are no characters. A character
        // has four bytes at most, so all tokens but the last three are decided; special tokens,
        // which have no text, do not count.
        let has_text =
            |index: &usize| self.tokenizer.decode(&self.tokens[*index..=*index]).is_ok_and(|text| !text.is_empty());
        let Some(decided) = (self.shown + 1..count).rev().filter(has_text).nth(2) else {
            return Ok(String::new());
        };
        let first = self.text(decided)?;
        Ok(if text.starts_with(&first) { self.show(first, decided) } else { String::new() })
    }

    /// The text that has not been shown.
    fn rest(&self) -> Result<String> {
        self.text(self.tokens.len())
    }

    fn text(&self, end: usize) -> Result<String> {
        new_text(self.tokenizer, &self.tokens[self.context..end], self.shown - self.context)
    }

    /// Counts the tokens before `end`, which have `text`, as shown.
    fn show(&mut self, text: String, end: usize) -> String {
        (self.context, self.shown) = (self.shown, end);
        text
    }
}

/// The text that `tokens` have beyond that of their first `known`.
fn new_text(tokenizer: &Tokenizer, tokens: &[u32], known: usize) -> Result<String> {
    let (before, text) = (tokenizer.decode(&tokens[..known])?, tokenizer.decode(tokens)?);
    Ok(text.get(before.len()..).unwrap_or_default().to_owned())
}

/// Writes text as it comes, to a terminal without control characters; breaks when the reader has
/// gone away.
fn stream(text: &str) -> Result<ControlFlow<()>> {
    let mut out = std::io::stdout();
    let text = if out.is_terminal() { printable(text) } else { text.into() };
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(error) => Err(Error::io("write to stdout", &error)),
    }
}

pub(super) fn run_merge(args: &MergeArgs) -> Result<()> {
    let written = merge(&args.adapter, &args.out)?;
    say(format!("wrote {} to {}", written.join(", "), args.out.display()))
}

pub(super) fn run_export(args: &ExportArgs) -> Result<()> {
    let exported = export(&args.model, &args.tar)?;
    exported.iter().try_for_each(|(name, bytes)| say(format!("{bytes:>12}  {name}")))?;
    say(format!("wrote {}", args.tar.display()))
}

pub(super) fn run_push(args: &PushArgs) -> Result<()> {
    let PushArgs { run, id, private, public, revision, create_pr } = args;
    let private = (*private || *public).then_some(*private);
    let target = Target { id: id.clone(), revision: revision.clone(), private, create_pr: *create_pr };
    let settings = HubSettings::from_env()?;
    target.check(&settings)?;
    let folder = folder_of(run)?;
    signals::install()?;
    let (pushed, others) = push_model(&folder, &target, "Upload by kiln push", &settings)?;
    if !others.is_empty() {
        say(format!("left out, since no model needs it: {}", others.join(", ")))?;
    }
    lines(&pushed).iter().try_for_each(say)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Generate {
        #[command(flatten)]
        args: GenerateArgs,
    }

    /// Also where the tokens are bytes of no characters, of which no more than a few wait to be
    /// shown.
    #[test]
    fn text_that_is_shown_as_it_comes_is_the_text_of_all_tokens() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/run_clm/gpt2");
        let tokenizer = Tokenizer::load(Path::new(folder)).unwrap();
        let mut ids = tokenizer.encode("Ärger 日本語 🦀🐕! the").unwrap();
        let random = |i: u64| kiln_core::random::uniform(kiln_core::random::seed_for(1, "ids", i, 0));
        ids.extend((0..600).map(|i| (random(i) * 260.0) as u32));
        ids.extend(tokenizer.encode("🦀 日本 a").unwrap());
        ids.extend(vec![ids[1]; 200]);
        let mut text = TextStream { tokenizer: &tokenizer, tokens: Vec::new(), context: 0, shown: 0 };
        let mut shown = String::new();
        for id in &ids {
            shown.push_str(&text.push(*id).unwrap());
            assert!(text.tokens.len() - text.shown <= UNSHOWN + 3);
        }
        shown.push_str(&text.rest().unwrap());
        assert_eq!(shown, tokenizer.decode(&ids).unwrap());
    }

    /// Special tokens have no text, wherever they stand.
    #[test]
    fn special_tokens_within_a_character_lose_nothing_of_it() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/run_clm/gpt2");
        let tokenizer = Tokenizer::load(Path::new(folder)).unwrap();
        let [first, second, third] = tokenizer.encode("日").unwrap()[..] else {
            panic!("a token for each of three bytes")
        };
        let end_of_text = 0;
        let mut ids = vec![first; 12];
        ids.extend([first, second, end_of_text, end_of_text, end_of_text, third]);
        let mut text = TextStream { tokenizer: &tokenizer, tokens: Vec::new(), context: 0, shown: 0 };
        let mut shown = ids.iter().map(|id| text.push(*id).unwrap()).collect::<String>();
        shown.push_str(&text.rest().unwrap());
        assert!(shown.ends_with('日'), "{shown}");
        assert_eq!(shown, tokenizer.decode(&ids).unwrap());
    }

    #[test]
    fn the_command_line_overrides_the_model_which_overrides_the_defaults_of_a_run() {
        let args = Generate::try_parse_from(["generate", "model", "--prompt", "a", "--top-k", "3"]).unwrap().args;
        let section = GenerationSection { temperature: 0.5, ..GenerationSection::default() };
        let options = args.options(GenerateOptions::of(&section, vec![7]));
        assert_eq!(options, GenerateOptions { top_k: 3, ..GenerateOptions::of(&section, vec![7]) });
        let section = GenerationSection { min_new_tokens: 10, ..GenerationSection::default() };
        let least = |args: &[&str]| {
            let args = Generate::try_parse_from([&["generate", "model", "--prompt", "a"], args].concat()).unwrap().args;
            args.options(GenerateOptions::of(&section, vec![7])).min_new_tokens
        };
        assert_eq!((least(&["--max-new-tokens", "5"]), least(&[])), (5, 10), "the model's own number yields");
        assert_eq!(least(&["--max-new-tokens", "5", "--min-new-tokens", "6"]), 6, "and that of the user is refused");
        let default = GenerationSection::default();
        assert_eq!((default.top_k, default.top_p, default.temperature), (50, 1.0, 1.0));
    }
}
