//! Fits a checkpoint to a model: finds each parameter under its current, older or unprefixed name,
//! checks its shape, and says what was missing, unused or mis-shaped.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use burn::module::{ModuleMapper, Param, ParamId};
use burn::tensor::{FloatDType, Tensor, TensorData};

use super::files::{Checkpoint, Values};
use super::names::{Parameter, StateDict, parameters};
use super::save::MODEL_FILE;
use crate::error::{AllowedBy, Error, Result};
use crate::lora::{PREFIX, is_of_adapter};

/// Prefixes of the tensors of a head. A head of which a checkpoint holds no tensor at all is new
/// and keeps its random weights; anything else that is missing is an error.
const HEADS: &[&str] = &[
    "score.",
    "classifier.",
    "qa_outputs.",
    "cls.",
    "bert.pooler.",
    "roberta.pooler.",
    "lm_head.",
    "pre_classifier.",
    "vocab_transform.",
    "vocab_layer_norm.",
    "vocab_projector.",
    "generator_predictions.",
    "generator_lm_head.",
    "predictions.",
    "albert.pooler.",
];

/// Body prefixes that a checkpoint of the bare body leaves out.
const BODIES: &[&str] = &["transformer.", "model.", "bert.", "roberta.", "distilbert.", "electra.", "albert."];

/// `(our name, the name of the same tensor elsewhere in the file)`: tied weights that files may
/// hold under either name.
const TIED: &[(&str, &str)] = &[
    ("transformer.wte.weight", "lm_head.weight"),
    ("model.embed_tokens.weight", "lm_head.weight"),
    ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
    ("cls.predictions.bias", "cls.predictions.decoder.bias"),
    ("roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight"),
    ("lm_head.bias", "lm_head.decoder.bias"),
    ("distilbert.embeddings.word_embeddings.weight", "vocab_projector.weight"),
    ("electra.embeddings.word_embeddings.weight", "generator_lm_head.weight"),
    ("albert.embeddings.word_embeddings.weight", "predictions.decoder.weight"),
    ("predictions.bias", "predictions.decoder.bias"),
];

/// Older names of LayerNorm's parameters.
const OLD_NORM: &[(&str, &str)] = &[("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")];

/// The ends of the names of parameters with a row for each token of the vocabulary.
const VOCABULARY: &[&str] = &[
    "wte.weight",
    "embed_tokens.weight",
    "word_embeddings.weight",
    "lm_head.weight",
    "decoder.weight",
    "decoder.bias",
    "vocab_projector.weight",
    "generator_lm_head.weight",
    "cls.predictions.bias",
    "lm_head.bias",
    "vocab_projector.bias",
    "generator_lm_head.bias",
    "predictions.bias",
];

/// Constant buffers that older files carry: the causal mask, and the numbers and frequencies of
/// positions.
const BUFFERS: &[&str] = &[
    ".attn.bias",
    ".attn.masked_bias",
    ".attn.attention.bias",
    ".attn.attention.masked_bias",
    "embeddings.position_ids",
    ".rotary_emb.inv_freq",
];

/// The result of loading weights.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoadReport {
    /// How many parameters came from the checkpoint.
    pub loaded: usize,
    /// Parameters of a new head, which keep their random weights.
    pub new: Vec<String>,
    /// Parameters of a head that keep their random weights because the checkpoint has them with
    /// other shapes.
    pub mismatched: Vec<Misshaped>,
    /// Parameters of the vocabulary that have more rows than in the checkpoint.
    pub resized: Vec<Misshaped>,
    /// Tensors of the checkpoint that the model has no use for.
    pub unused: Vec<String>,
    /// Tensors of the base, which learn nothing, whose values an adapter's file replaces.
    pub replaced: Vec<String>,
}

/// A parameter that has another shape in the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misshaped {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its shape in the checkpoint.
    pub was: Vec<usize>,
}

/// Differences between a checkpoint and a model that are allowed. The names are those of
/// `transformers`.
#[derive(Clone, Copy)]
pub struct LoadOptions<'a> {
    /// The parameters that are kept in another type than f32: frozen weights that do nothing but
    /// multiply.
    pub narrow: Narrow<'a>,
    /// Tensors of a head that have another shape in the checkpoint keep the random weights of the
    /// model. In `transformers` this holds for all tensors.
    pub ignore_mismatched_sizes: bool,
    /// The vocabulary may be larger than that of the checkpoint. The new rows of the embedding are
    /// the mean of the old ones, to which `transformers` adds noise with 1e-9 of their covariance
    /// (`mean_resizing`); new entries of a bias are 0.
    pub resize_token_embeddings: bool,
}

impl Default for LoadOptions<'_> {
    fn default() -> Self {
        Self { narrow: ALL_WIDE, ignore_mismatched_sizes: false, resize_token_embeddings: false }
    }
}

/// Loads the weights of the Hugging Face folder `folder` into `model`. Adapters, which such a
/// folder does not have, stay as they are.
///
/// # Errors
/// A missing tensor outside a new head, a tensor of another shape, a tied pair with two different
/// values, a file that does not hold what its header says; the message lists them all.
pub fn load<M: StateDict>(model: M, folder: &Path) -> Result<(M, LoadReport)> {
    load_with(model, folder, LoadOptions::default())
}

/// Loads the weights of the Hugging Face folder `folder` into `model`, with the differences that
/// `options` allow. Adapters stay as they are.
///
/// # Errors
/// A missing tensor outside a new head, a tensor of another shape that `options` do not allow, a
/// tied pair with two different values, a file that does not hold what its header says; the message
/// lists them all.
pub fn load_with<M: StateDict>(model: M, folder: &Path, options: LoadOptions<'_>) -> Result<(M, LoadReport)> {
    let wanted = parameters(&model).into_iter().filter(|parameter| !is_of_adapter(&parameter.name)).collect();
    let ties = model.base_is_tied();
    load_wanted(model, &Checkpoint::open(folder)?, wanted, options, &|_| ties)
}

/// Loads the base in `base` and the adapter on it in `adapter` into `model`, which has the adapter,
/// as [`load_with`] and [`load_saved`] do. The base's own tensors may have another shape where the
/// adapter's file has the model's, as after tokens were added.
///
/// # Errors
/// The errors of these two.
pub fn load_adapted<M: StateDict>(
    model: M,
    base: &Path,
    adapter: &Path,
    narrow: Narrow<'_>,
) -> Result<(M, LoadReport)> {
    let (whole, saved) = (Checkpoint::open(base)?, Checkpoint::open_adapter(adapter)?);
    let ties = model.base_is_tied();
    let of_base = parameters(&model).into_iter().filter(|parameter| !is_of_adapter(&parameter.name));
    let in_adapter = in_adapter(&model, &saved).into_iter().map(|parameter| parameter.id).collect::<Vec<_>>();
    let (wanted, other): (Vec<_>, Vec<_>) = of_base.partition(|parameter| {
        let shape = find(&whole, &parameter.name, &|_| ties).and_then(|source| whole.shape(&source));
        !in_adapter.contains(&parameter.id) || shape.is_none_or(|shape| shape == parameter.shape)
    });
    let (model, mut report) =
        load_wanted(model, &whole, wanted, LoadOptions { narrow, ..LoadOptions::default() }, &|_| ties)?;
    report
        .unused
        .retain(|name| !other.iter().any(|parameter| find(&whole, &parameter.name, &|_| ties).as_ref() == Some(name)));
    let (model, of_adapter) = load_saved(model, adapter)?;
    let in_adapter = parameters(&model).into_iter().filter(|parameter| in_adapter.contains(&parameter.id));
    let held = in_adapter.map(|parameter| parameter.name).collect::<Vec<_>>();
    report.new.retain(|name| !held.contains(name));
    let loaded = report.loaded + of_adapter.loaded;
    // `peft` writes the base's own values beside an adapter on the output.
    let is_other = |name: &String| {
        let values = |checkpoint: &Checkpoint, name: &str| {
            find(checkpoint, name, &|_| ties)
                .and_then(|source| checkpoint.read(&source, false).ok())
                .map(|values| values.data)
        };
        values(&whole, name) != values(&saved, &format!("{PREFIX}{name}"))
    };
    let replaced = of_adapter.replaced.into_iter().filter(is_other).collect();
    Ok((model, LoadReport { loaded, replaced, ..report }))
}

/// The parameters whose values the file of an adapter holds, under their names there: those that
/// are saved with it, and others of the base, which `peft` writes when an embedding was resized or
/// `save_embedding_layers` is on, and which it reads into the base.
fn in_adapter<M: StateDict>(model: &M, saved: &Checkpoint) -> Vec<Parameter> {
    let all = parameters(model);
    let is_alias = not_a_parameter(&all);
    let held = |parameter: &Parameter| {
        let of_base =
            || Some(format!("{PREFIX}{}", parameter.name)).filter(|name| find(saved, name, &is_alias).is_some());
        let name = parameter.saved_as.clone().or_else(of_base)?;
        Some(Parameter { name, ..parameter.clone() })
    };
    all.iter().filter_map(held).collect()
}

/// Whether the tensor of this name is none of `parameters`, so that it can only stand for the one
/// that it is tied to.
fn not_a_parameter(parameters: &[Parameter]) -> impl Fn(&str) -> bool + use<> {
    let names = parameters.iter().map(|parameter| parameter.name.clone()).collect::<BTreeSet<_>>();
    move |name| !names.contains(name.strip_prefix(PREFIX).unwrap_or(name))
}

/// A type, and whether a parameter is kept in it.
pub type Narrow<'a> = (FloatDType, &'a dyn Fn(&Parameter) -> bool);

/// Every parameter in f32.
pub const ALL_WIDE: Narrow<'static> = (FloatDType::F32, &|_| false);

/// Loads what was saved of a model like `model` into it: all weights, or its adapters with what
/// learnt beside them.
///
/// # Errors
/// A missing tensor outside a new head, a tensor of another shape, a tied pair with two different
/// values, a file that does not hold what its header says, and tensors in the file that the model
/// does not have.
pub fn load_saved<M: StateDict>(model: M, folder: impl AsRef<Path>) -> Result<(M, LoadReport)> {
    let folder = folder.as_ref();
    if model.file() == MODEL_FILE {
        return load(model, folder);
    }
    let checkpoint = Checkpoint::open_adapter(folder)?;
    let wanted = in_adapter(&model, &checkpoint);
    let is_alias = not_a_parameter(&parameters(&model));
    let of_base = wanted.iter().filter(|parameter| parameter.saved_as.is_none());
    let replaced = of_base.map(|parameter| parameter.name.replacen(PREFIX, "", 1)).collect();
    let (model, mut report) = load_wanted(model, &checkpoint, wanted, LoadOptions::default(), &is_alias)?;
    report.replaced = replaced;
    // With `bias = "all"`, `peft` writes the biases of modules that are saved whole two times more,
    // under names of its wrapper.
    let is_wrapper = |name: &String| [".modules_to_save.", ".original_module."].iter().any(|part| name.contains(part));
    let unused = report.unused.iter().filter(|name| !is_wrapper(name)).cloned().collect::<Vec<_>>();
    match unused.as_slice() {
        [] => Ok((model, LoadReport { unused, ..report })),
        unused => Err(Error::Weights {
            path: folder.into(),
            problem: format!(
                "the adapter does not fit the model, which has no place for {} of its tensors{}",
                unused.len(),
                listed(unused)
            ),
        }),
    }
}

fn load_wanted<M: StateDict>(
    model: M,
    checkpoint: &Checkpoint,
    wanted: Vec<Parameter>,
    options: LoadOptions<'_>,
    is_alias: &dyn Fn(&str) -> bool,
) -> Result<(M, LoadReport)> {
    let folder = &checkpoint.folder;
    let mut sources = wanted.iter().map(|parameter| find(checkpoint, &parameter.name, is_alias)).collect::<Vec<_>>();

    let mut report = LoadReport::default();
    let (mut missing, mut misshaped) = (Vec::new(), Vec::new());
    for (parameter, source) in wanted.iter().zip(&sources) {
        match source.as_ref().map(|source| (source, checkpoint.shape(source).unwrap_or_default())) {
            None if head_is_new(&parameter.name, &wanted, &sources) => report.new.push(parameter.name.clone()),
            None => missing.push(parameter.name.clone()),
            Some((_, shape)) if shape == parameter.shape => {}
            Some((source, was)) => {
                let (name, shape) = (parameter.name.clone(), parameter.shape.clone());
                let found = Misshaped { name, shape, was };
                if options.resize_token_embeddings && found.is_larger_vocabulary() {
                    report.resized.push(found);
                } else if options.ignore_mismatched_sizes && found.is_of_head() {
                    report.mismatched.push(found);
                } else {
                    misshaped.push((source.clone(), found));
                }
            }
        }
    }
    report.unused = unused(checkpoint, &sources, is_alias);
    if !missing.is_empty() || !misshaped.is_empty() {
        let shapes =
            misshaped.iter().map(|(source, it)| format!("{source}: expected {:?}, got {:?}", it.shape, it.was));
        let problem = format!(
            "the weights do not fit the model: {} of {} tensors missing{}; {} of another shape{}; {} unused{}",
            missing.len(),
            wanted.len(),
            listed(&missing),
            misshaped.len(),
            listed(&shapes.collect::<Vec<_>>()),
            report.unused.len(),
            listed(&report.unused),
        );
        let all = |is: fn(&Misshaped) -> bool| missing.is_empty() && misshaped.iter().all(|(_, found)| is(found));
        let path = folder.into();
        return Err(if all(Misshaped::is_larger_vocabulary) {
            Error::OtherSizes { path, problem, allowed_by: AllowedBy::ResizeTokenEmbeddings }
        } else if all(Misshaped::is_of_head) {
            Error::OtherSizes { path, problem, allowed_by: AllowedBy::IgnoreMismatchedSizes }
        } else {
            Error::Weights { path, problem }
        });
    }
    // The model's own random weights stay in their place.
    for (parameter, source) in wanted.iter().zip(&mut sources) {
        if report.mismatched.iter().any(|found| found.name == parameter.name) {
            *source = None;
        }
    }

    let found = wanted.into_iter().zip(sources).filter_map(|(parameter, source)| {
        let source = source?;
        Some((parameter.id, (parameter, source)))
    });
    let mut fill = Fill { checkpoint, found: found.collect(), narrow: options.narrow, is_alias, failed: None };
    report.loaded = fill.found.len();
    let model = model.map(&mut fill);
    match fill.failed {
        Some(error) => Err(error),
        None => Ok((model, report)),
    }
}

/// The other names of the tensor `name` where `transformers` ties two: one for each family that
/// calls a tensor so.
fn tied_to(name: &str) -> impl Iterator<Item = String> {
    let (prefix, bare) = name.strip_prefix(PREFIX).map_or(("", name), |bare| (PREFIX, bare));
    let others = TIED.iter().filter_map(move |(one, other)| match bare {
        _ if *one == bare => Some(*other),
        _ if *other == bare => Some(*one),
        _ => None,
    });
    others.map(move |other| format!("{prefix}{other}"))
}

/// The name under which the checkpoint holds the parameter `name`; `is_alias` says whether a tensor
/// of another name may stand for it.
fn find(checkpoint: &Checkpoint, name: &str, is_alias: &dyn Fn(&str) -> bool) -> Option<String> {
    let mut spellings = vec![name.to_string()];
    spellings.extend(tied_to(name).filter(|other| is_alias(other)));
    for (new, old) in OLD_NORM {
        if let Some(stem) = name.strip_suffix(new) {
            spellings.push(format!("{stem}{old}"));
        }
    }
    // Where `peft` wraps a layer, its own tensors were once saved as if it did not.
    spellings.extend(name.contains(".base_layer.").then(|| name.replace(".base_layer.", ".")));
    let wrapped = |spelling: &String| {
        let (module, tensor) = spelling.strip_prefix(PREFIX)?.rsplit_once('.')?;
        Some(format!("{PREFIX}{module}.base_layer.{tensor}"))
    };
    spellings.extend(spellings.iter().filter_map(wrapped).collect::<Vec<_>>());
    let bare = spellings
        .clone()
        .into_iter()
        .filter_map(|spelling| BODIES.iter().find_map(|body| spelling.strip_prefix(body)).map(String::from));
    spellings.extend(bare);
    spellings.into_iter().find(|spelling| checkpoint.contains(spelling))
}

/// Whether `name` belongs to a head of which the checkpoint holds nothing.
fn head_is_new(name: &str, wanted: &[Parameter], sources: &[Option<String>]) -> bool {
    let Some(head) = HEADS.iter().find(|head| name.starts_with(**head)) else { return false };
    let of_head = wanted.iter().zip(sources).filter(|(parameter, _)| parameter.name.starts_with(head));
    of_head.into_iter().all(|(_, source)| source.is_none())
}

fn unused(checkpoint: &Checkpoint, sources: &[Option<String>], is_alias: &dyn Fn(&str) -> bool) -> Vec<String> {
    let used: BTreeSet<&String> = sources.iter().flatten().collect();
    // A head with an output of its own computes with the bias of that, and files hold the other one
    // too.
    let tied = |name: &String| {
        let name = &name.replace(".base_layer.", ".");
        tied_to(name).filter(|_| is_alias(name) || name.ends_with("bias")).any(|other| {
            let is_other = |used: &str| used == other || other.ends_with(&format!(".{used}"));
            used.iter().any(|used| is_other(&used.replace(".base_layer.", ".")))
        })
    };
    let names = checkpoint.names().filter(|name| !used.contains(name) && !tied(name));
    names.filter(|name| !BUFFERS.iter().any(|buffer| name.ends_with(buffer))).cloned().collect()
}

/// A file that holds both names of a tied tensor must hold the same values under both.
fn check_tied(
    checkpoint: &Checkpoint,
    parameter: &Parameter,
    source: &str,
    read: &Values,
    is_alias: &dyn Fn(&str) -> bool,
) -> Result<()> {
    let mut others = tied_to(&parameter.name).filter(|other| other != source && is_alias(other));
    let Some(other) = others.find(|other| checkpoint.contains(other)) else { return Ok(()) };
    let values = checkpoint.read(&other, parameter.transposed)?;
    if values.shape == read.shape && values.data == read.data {
        Ok(())
    } else {
        Err(Error::Weights {
            path: checkpoint.folder.clone(),
            problem: format!(
                "{other} differs from {source}; expected the same values, since the output of the model is its embedding; set \
                 tie_word_embeddings to false in config.json for an output of its own"
            ),
        })
    }
}

/// `values` with as many `rows`: those that are missing are the mean of those that are there, or of
/// a bias 0 in a model that `is_tied`, which is what `transformers` leaves of them when it ties the
/// bias of the output again.
fn with_rows(mut values: Values, rows: usize, is_tied: bool) -> Values {
    let had = values.shape.first().copied().unwrap_or(rows);
    if had >= rows || had == 0 {
        return values;
    }
    if values.shape.len() == 1 && is_tied {
        values.data.resize(rows, 0.0);
        values.shape[0] = rows;
        return values;
    }
    let width = values.data.len() / had;
    let mut mean = vec![0.0; width];
    for row in values.data.chunks(width) {
        mean.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
    }
    let mean = mean.into_iter().map(|sum| (sum / had as f64) as f32).collect::<Vec<_>>();
    // A vector that grows by itself has twice the space.
    values.data.reserve_exact((rows - had) * width);
    values.data.extend((had..rows).flat_map(|_| &mean));
    values.shape[0] = rows;
    values
}

impl Misshaped {
    /// Whether it is a parameter of the vocabulary that has more rows than in the checkpoint, and
    /// is otherwise the same.
    fn is_larger_vocabulary(&self) -> bool {
        let is_of_vocabulary = VOCABULARY.iter().any(|end| self.name.ends_with(end));
        match (&self.shape[..], &self.was[..]) {
            ([rows, width @ ..], [had, was @ ..]) => is_of_vocabulary && *had > 0 && rows > had && width == was,
            _ => false,
        }
    }

    /// Whether it belongs to a head, and not to the vocabulary.
    fn is_of_head(&self) -> bool {
        let is_of_vocabulary = VOCABULARY.iter().any(|end| self.name.ends_with(end));
        let name = self.name.strip_prefix(PREFIX).unwrap_or(&self.name);
        !is_of_vocabulary && HEADS.iter().any(|head| name.starts_with(head))
    }

    /// `classifier.weight [3, 16] -> [2, 16]`
    fn shown(&self) -> String {
        format!("{} {:?} -> {:?}", self.name.escape_debug(), self.was, self.shape)
    }
}

/// Names in a message: whoever wrote the file says how many there are.
const SHOWN: usize = 6;

/// ` (a, b, c and 12 more)`
fn listed(names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => format!(" ({shown})"),
        more => format!(" ({shown} and {more} more)"),
    }
}

/// Puts the values of a checkpoint into a model, a tensor at a time.
struct Fill<'a> {
    checkpoint: &'a Checkpoint,
    /// The parameters that it holds, with their names there.
    found: HashMap<ParamId, (Parameter, String)>,
    narrow: Narrow<'a>,
    is_alias: &'a dyn Fn(&str) -> bool,
    failed: Option<Error>,
}

impl Fill<'_> {
    fn values(&self, parameter: &Parameter, source: &str) -> Result<Values> {
        let read = self.checkpoint.read(source, parameter.transposed)?;
        check_tied(self.checkpoint, parameter, source, &read, self.is_alias)?;
        Ok(if parameter.transposed {
            read
        } else {
            // In a model that is tied each of the two names may stand for the other.
            let is_tied = (self.is_alias)(source);
            with_rows(read, parameter.shape.first().copied().unwrap_or_default(), is_tied)
        })
    }
}

impl ModuleMapper for Fill<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some((parameter, source)) = self.found.remove(&param.id).filter(|_| self.failed.is_none()) else {
            return param;
        };
        let values = match self.values(&parameter, &source) {
            Ok(values) => values,
            Err(error) => {
                self.failed = Some(error);
                return param;
            }
        };
        let device = param.lazy_device();
        let tensor = Tensor::<D>::from_data(TensorData::new(values.data, values.shape), &device);
        let (dtype, is_narrow) = self.narrow;
        let tensor = if dtype != FloatDType::F32 && is_narrow(&parameter) { tensor.cast(dtype) } else { tensor };
        Param::initialized(param.id, tensor.set_require_grad(device.is_autodiff()))
    }
}

impl LoadReport {
    /// The parameters that keep their random weights.
    pub fn random(&self) -> impl Iterator<Item = &String> {
        self.new.iter().chain(self.mismatched.iter().map(|found| &found.name))
    }

    /// A line for the tensors of other sizes of each kind, and one line per group of names: `in the
    /// checkpoint, unused: cls.* (7 tensors)`, and one for all groups behind the first few. Empty
    /// when all fitted.
    pub fn lines(&self) -> Vec<String> {
        let tensors = |count: usize| format!("{count} tensor{}", if count == 1 { "" } else { "s" });
        let mut lines = Vec::new();
        for (kind, found) in [
            ("new, of another size in the checkpoint", &self.mismatched),
            ("resized for more tokens than in the checkpoint", &self.resized),
        ] {
            let shown = found.iter().map(Misshaped::shown).collect::<Vec<_>>();
            lines.extend((!shown.is_empty()).then(|| format!("{kind}: {}", shown.join(", "))));
        }
        for (kind, names) in [("new, not in the checkpoint", &self.new), ("in the checkpoint, unused", &self.unused)] {
            let mut groups = BTreeMap::<&str, usize>::new();
            for name in names {
                *groups.entry(name.split('.').next().unwrap_or(name)).or_default() += 1;
            }
            let shown = groups.iter().take(SHOWN);
            lines.extend(
                shown.map(|(group, count)| format!("{kind}: {}.* ({})", group.escape_debug(), tensors(*count))),
            );
            if groups.len() > SHOWN {
                let rest = groups.values().skip(SHOWN).sum();
                lines.push(format!("{kind}: {} more groups of names ({})", groups.len() - SHOWN, tensors(rest)));
            }
        }
        lines
    }
}
