//! The chapter of the guide with every key of a config file is made from the sources: the
//! documentation of the fields of the settings in `kiln` and `kiln-core`, and the values of
//! `RunConfig::default()`. With `KILN_WRITE_DOCS=1` the test writes the chapter; without it, a
//! chapter that is stale fails.

use std::collections::BTreeMap;
use std::path::Path;

use kiln::RunConfig;
use kiln::config::{GenerationSection, LoraSection, TrainingArguments, TrainingCompilerConfig};
use kiln_core::schema::unlinked;

const CHAPTER: &str = "src/guide/config_reference.md";

const INTRODUCTION: &str = "\
# Config reference

Which keys does a config file have, which values do they take, and which defaults do they have?

A config file is TOML. Every key stands in one of the sections below; `kiln train FILE --set SECTION.KEY=VALUE` overrides a key
for one run. A key that Kiln does not know is refused with the nearest known one. Keys whose default is not stated are not set.
The plan and `plan.toml` in the run folder show every value that a run takes.

This chapter is generated from the documentation of the config's fields and from their default values, and a test fails when it
is stale.
";

/// A field of a struct.
struct Field {
    name: String,
    doc: String,
    /// The type without `Option`.
    kind: String,
    skipped: bool,
    /// Whether the keys of its struct stand among the others.
    is_flat: bool,
}

/// The values of an enum, as a config writes them, with their documentation.
type Values = Vec<(String, String)>;

/// The structs and enums of the sources, by name.
#[derive(Default)]
struct Sources {
    structs: BTreeMap<String, (String, Vec<Field>)>,
    enums: BTreeMap<String, Values>,
}

/// `usize` of `Option<usize>`, else the last name of the type.
fn kind(of: &str) -> String {
    let inner = of.strip_prefix("Option<").and_then(|inner| inner.strip_suffix('>')).unwrap_or(of);
    let path = inner.split('<').next().unwrap_or_default();
    path.rsplit("::").next().unwrap_or_default().to_owned()
}

/// `QuestionAnswering` as `question-answering`.
fn kebab(name: &str) -> String {
    let parts = name.char_indices().map(|(at, c)| {
        if c.is_uppercase() && at > 0 { format!("-{}", c.to_lowercase()) } else { c.to_lowercase().to_string() }
    });
    parts.collect()
}

impl Sources {
    fn read(files: &[&str]) -> Self {
        let mut sources = Self::default();
        for file in files {
            let text =
                std::fs::read_to_string(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(file)).unwrap();
            sources.add(text.split("#[cfg(test)]\nmod tests {").next().unwrap());
        }
        sources
    }

    /// Takes the structs and the enums of a file as rustfmt writes them: an item a line, with its
    /// documentation above it.
    fn add(&mut self, source: &str) {
        let (mut doc, mut attributes) = (Vec::new(), String::new());
        // The struct or the enum whose lines these are.
        let mut of: Option<(bool, String)> = None;
        // The section of that struct, with a dot behind it, where it is a section of `keys!`.
        let mut section = String::new();
        for line in source.lines().map(str::trim) {
            if let Some(text) = line.strip_prefix("///") {
                doc.push(text.trim());
                continue;
            }
            if line.starts_with("#[") {
                attributes += line;
                continue;
            }
            let about = unlinked(&doc.join(" "));
            let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
            let is_kebab = attributes.contains("rename_all = \"kebab-case\"");
            match (line.split_once(' '), &of) {
                _ if line.starts_with('}') => of = None,
                _ if line.split_once("struct ").is_some_and(|(head, _)| head.starts_with("pub"))
                    && line.ends_with('{') =>
                {
                    let name = name(line.split_once("struct ").unwrap().1);
                    section = line.split('"').nth(1).map_or_else(String::new, |section| format!("{section}."));
                    self.structs.insert(name.clone(), (about, Vec::new()));
                    of = Some((true, name));
                }
                _ if line.starts_with("pub enum ") && is_kebab => of = Some((false, name(&line["pub enum ".len()..]))),
                // An enum of the macro `choices!`: `Name("what") {`.
                (Some((head, _)), None) if head.contains("(\"") && line.ends_with('{') => {
                    of = Some((false, name(line)))
                }
                (_, Some((true, of))) if line.ends_with([',', ';']) && line.contains(": ") => {
                    let line = line.strip_prefix("pub ").unwrap_or(line);
                    let (name, entry) = line.trim_end_matches([',', ';']).split_once(": ").unwrap();
                    // An entry of the macro `keys!` has a default behind the type, and an @ before
                    // another section of the file.
                    let kind_of = entry.split(" = ").next().unwrap();
                    let place = entry.split_once(" @ \"").and_then(|(_, place)| place.split('"').next());
                    let here = place.map_or(Some(name), |place| place.strip_prefix(&section));
                    let skipped = attributes.contains("#[serde(skip)]") || here.is_none();
                    let name = here.unwrap_or(name);
                    let is_flat = attributes.contains("#[serde(flatten)]");
                    let field = Field { name: name.into(), doc: about, kind: kind(kind_of), skipped, is_flat };
                    self.structs.get_mut(of).unwrap().1.push(field);
                }
                (_, Some((false, of))) if !line.is_empty() => {
                    let value = match line.split_once(" = \"") {
                        Some((_, text)) => text.split('"').next().unwrap().to_owned(),
                        None => kebab(line.trim_end_matches(',')),
                    };
                    self.enums.entry(of.clone()).or_default().push((value, about));
                }
                _ => {}
            }
            doc.clear();
            attributes.clear();
        }
    }

    /// The documentation and the fields of the struct `kind`. One of flat structs has the
    /// documentation of the first and the fields of all.
    fn of_struct(&self, kind: &str) -> (&str, Vec<&Field>) {
        let (about, fields) = &self.structs[kind];
        let flat = fields.iter().filter(|field| field.is_flat && self.structs.contains_key(&field.kind));
        let mut flat = flat.map(|field| self.of_struct(&field.kind));
        match flat.next() {
            None => (about, fields.iter().collect()),
            Some((about, first)) => (about, first.into_iter().chain(flat.flat_map(|(_, fields)| fields)).collect()),
        }
    }

    /// The section of the field `of`, whose keys stand in `[section]`, and those of the tables in
    /// it.
    fn section(&self, of: &Field, section: &str, defaults: Option<&toml::Value>, out: &mut String) {
        let (about, fields) = self.of_struct(&of.kind);
        let (title, rest) = about.split_once(". ").unwrap_or((about.trim_end_matches('.'), ""));
        let title = if of.doc.starts_with("`[") { of.doc.trim_end_matches('.') } else { title };
        *out += &format!("\n## {title}\n\n");
        if !rest.is_empty() {
            *out += &format!("{}\n", wrapped(rest, 0));
        }
        let (mut tables, mut keys) = (Vec::new(), Vec::new());
        for field in fields.into_iter().filter(|field| !field.skipped) {
            if self.structs.contains_key(&field.kind) {
                tables.push(field);
            } else {
                keys.push(field);
            }
        }
        if !rest.is_empty() {
            out.push('\n');
        }
        for field in keys {
            self.key(field, defaults.and_then(|table| table.get(&field.name)), out);
        }
        for field in tables {
            let inner = defaults.and_then(|table| table.get(&field.name));
            self.section(field, &format!("{section}.{}", field.name), inner, out);
        }
    }

    fn key(&self, field: &Field, default: Option<&toml::Value>, out: &mut String) {
        let name = if field.name == "fields" { "any other key".to_owned() } else { format!("`{}`", field.name) };
        let default = default.filter(|value| !["\"\"", "[]"].contains(&value.to_string().as_str()));
        let default = default.filter(|_| !field.doc.contains("Required"));
        let doc = without_default(field, default);
        let doc = doc.strip_prefix(&format!("`{}`: ", field.name)).unwrap_or(&doc);
        let takes = match field.kind.as_str() {
            "PathBuf" => "A path. ",
            "String" => "Text. ",
            "usize" | "u64" => "A whole number. ",
            "f64" => "A number. ",
            "bool" => "true or false. ",
            "Interval" => "Steps, a ratio below 1, or text such as `\"1000 samples\"` and `\"2e6 tokens\"`. ",
            _ => "",
        };
        let default = default.map_or_else(String::new, |value| format!(" Default: `{value}`."));
        let takes = if field.name == "fields" { "" } else { takes };
        *out += &format!("{}\n", wrapped(&format!("- **{name}.** {takes}{doc}{default}"), 2));
        for (value, doc) in self.enums.get(&field.kind).into_iter().flatten() {
            *out += &format!("{}\n", wrapped(&format!("  - `\"{value}\"`: {doc}"), 4));
        }
    }

    /// The fields of a model's `config.json`.
    fn fields(&self, name: &str, out: &mut String) {
        for field in self.structs[name].1.iter().filter(|field| !field.skipped) {
            match field.name.as_str() {
                "labels" => self.fields("Labels", out),
                _ => *out += &format!("{}\n", wrapped(&format!("- **`{}`.** {}", field.name, field.doc), 2)),
            }
        }
    }
}

/// The documentation of a field without the sentence about its default, where that says what
/// `default` says. It must not say something else.
fn without_default(field: &Field, default: Option<&toml::Value>) -> String {
    let Some((before, stated)) = field.doc.rsplit_once("Default: ") else { return field.doc.clone() };
    let stated = stated.trim_end_matches('.').replace(['`', '"'], "");
    let Some(default) = default else { return field.doc.clone() };
    let real = default.to_string().replace('"', "");
    let same = match (stated.parse::<f64>(), real.parse::<f64>()) {
        (Ok(stated), Ok(real)) => stated == real,
        _ => stated == real,
    };
    let is_value = !stated.contains([' ', ',', ';']);
    assert!(same || !is_value, "{}: documented default {stated}, real default {real}", field.name);
    if same { before.trim_end().to_owned() } else { field.doc.clone() }
}

/// `text` in lines of at most 110 characters, the later ones indented.
fn wrapped(text: &str, indent: usize) -> String {
    let mut lines = vec![String::new()];
    let lead = text.len() - text.trim_start().len();
    lines[0] += &" ".repeat(lead);
    for word in text.split_whitespace() {
        let line = lines.last_mut().unwrap();
        if line.trim().is_empty() {
            *line += word;
        } else if line.chars().count() + 1 + word.chars().count() <= 110 {
            *line += &format!(" {word}");
        } else {
            lines.push(format!("{}{word}", " ".repeat(indent)));
        }
    }
    lines.join("\n")
}

/// The chapter as the sources have it.
fn chapter() -> String {
    let sources = Sources::read(&[
        "src/config/file.rs",
        "src/config/sections.rs",
        "src/config/lora.rs",
        "crates/train/src/arguments/mod.rs",
        "crates/train/src/arguments/names.rs",
        "crates/train/src/arguments/batch.rs",
        "crates/train/src/arguments/distributed.rs",
        "crates/train/src/engine/settings.rs",
        "crates/train/src/engine/compiler/settings.rs",
        "crates/train/src/optim/arguments.rs",
        "crates/train/src/optim/scheduler.rs",
        "crates/train/src/optim/backward.rs",
        "crates/train/src/optim/loss.rs",
        "crates/data/src/task.rs",
        "crates/data/src/settings.rs",
        "crates/core/src/model_config.rs",
        "crates/core/src/model_config/llama.rs",
        "crates/core/src/dataset/sampler.rs",
        "crates/core/src/dataset/padding.rs",
    ]);
    let compiler = Some(TrainingCompilerConfig::default());
    let defaults = RunConfig {
        trainer: TrainingArguments { compiler, ..TrainingArguments::default() },
        generation: Some(GenerationSection::default()),
        lora: Some(LoraSection::default()),
        ..RunConfig::default()
    };
    let defaults: toml::Value = toml::from_str(&defaults.to_toml().unwrap()).unwrap();

    let mut out = format!("{INTRODUCTION}\n## Above the sections\n\n");
    let fields = sources.structs["RunFile"].1.iter().filter(|field| !field.skipped).collect::<Vec<_>>();
    for field in fields.iter().filter(|field| !sources.structs.contains_key(&field.kind)) {
        sources.key(field, defaults.get(&field.name), &mut out);
    }
    for field in fields.iter().filter(|field| sources.structs.contains_key(&field.kind)) {
        sources.section(field, &field.name, defaults.get(&field.name), &mut out);
        if field.name == "model" {
            let berts = "BERT, RoBERTa, CamemBERT, XLM-RoBERTa, DistilBERT, ELECTRA and ALBERT";
            let llamas = "Llama, Mistral, Qwen 2, Qwen 3 and SmolLM3";
            for (title, name) in [("GPT-2", "Gpt2Config"), (berts, "BertConfig"), (llamas, "LlamaConfig")] {
                out += &format!("\n### Fields of {title} in `[model]`\n\n");
                sources.fields(name, &mut out);
            }
            let mut of_rope = String::new();
            sources.fields("RopeParameters", &mut of_rope);
            out += "\n`rope_parameters` is a table:\n\n";
            of_rope.lines().for_each(|line| out += &format!("  {line}\n"));
        }
    }
    out
}

#[test]
fn the_config_reference_is_what_the_sources_say() {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(CHAPTER);
    let chapter = chapter();
    if std::env::var_os("KILN_WRITE_DOCS").is_some() {
        std::fs::write(&path, &chapter).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(written == chapter, "{CHAPTER} is stale: run this test with KILN_WRITE_DOCS=1");
}
