//! Fits a checkpoint to a model: finds each parameter under its current, older or unprefixed name, checks its shape, and
//! says what was missing, unused or mis-shaped.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use burn::module::{ModuleMapper, Param, ParamId};
use burn::tensor::{FloatDType, Tensor, TensorData};

use super::files::{Checkpoint, Values};
use super::names::{Parameter, StateDict, parameters};
use super::save::MODEL_FILE;
use crate::error::{Error, Result};
use crate::lora::is_of_adapter;

/// Prefixes of the tensors of a head. A head of which a checkpoint holds no tensor at all is new and keeps its random
/// weights; anything else that is missing is an error.
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
const BODIES: &[&str] = &["transformer.", "bert.", "roberta.", "distilbert.", "electra.", "albert."];

/// `(our name, the name of the same tensor elsewhere in the file)`: tied weights that files may hold under either name.
const TIED: &[(&str, &str)] = &[
    ("transformer.wte.weight", "lm_head.weight"),
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

/// Constant buffers that older files carry: the causal mask and the position numbers.
const BUFFERS: &[&str] = &[
    ".attn.bias",
    ".attn.masked_bias",
    ".attn.attention.bias",
    ".attn.attention.masked_bias",
    "embeddings.position_ids",
];

/// The result of loading weights.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoadReport {
    /// How many parameters came from the checkpoint.
    pub loaded: usize,
    /// Parameters of a new head, which keep their random weights.
    pub new: Vec<String>,
    /// Tensors of the checkpoint that the model has no use for.
    pub unused: Vec<String>,
}

/// Loads the weights of the Hugging Face folder `folder` into `model`. Adapters, which such a folder does not have, stay as they
/// are.
///
/// # Errors
/// A missing tensor outside a new head, a tensor of another shape, a tied pair with two different values, a file that
/// does not hold what its header says; the message lists them all.
pub fn load<M: StateDict>(model: M, folder: &Path) -> Result<(M, LoadReport)> {
    load_narrow(model, folder, ALL_WIDE)
}

/// As [`load`], with the parameters that `narrow` chooses in its type, where all others are f32: for frozen weights that do
/// nothing but multiply.
///
/// # Errors
/// As [`load`].
pub fn load_narrow<M: StateDict>(model: M, folder: &Path, narrow: Narrow<'_>) -> Result<(M, LoadReport)> {
    let wanted = parameters(&model).into_iter().filter(|parameter| !is_of_adapter(&parameter.name)).collect();
    load_wanted(model, &Checkpoint::open(folder)?, wanted, narrow)
}

/// A type, and whether a parameter is kept in it.
pub type Narrow<'a> = (FloatDType, &'a dyn Fn(&Parameter) -> bool);

const ALL_WIDE: Narrow<'static> = (FloatDType::F32, &|_| false);

/// Loads what was saved of a model like `model` into it: all weights, or its adapters with what learnt beside them.
///
/// # Errors
/// As [`load`], and tensors in the file that the model does not have.
pub fn load_saved<M: StateDict>(model: M, folder: &Path) -> Result<(M, LoadReport)> {
    if model.file() == MODEL_FILE {
        return load(model, folder);
    }
    let saved = |parameter: Parameter| {
        let name = parameter.saved_as.clone()?;
        Some(Parameter { name, ..parameter })
    };
    let wanted = parameters(&model).into_iter().filter_map(saved).collect();
    let (model, report) = load_wanted(model, &Checkpoint::open_adapter(folder)?, wanted, ALL_WIDE)?;
    // With `bias = "all"`, `peft` writes the biases of modules that are saved whole two times more, under names of its wrapper.
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
    narrow: Narrow<'_>,
) -> Result<(M, LoadReport)> {
    let folder = &checkpoint.folder;
    let sources = wanted.iter().map(|parameter| find(checkpoint, &parameter.name)).collect::<Vec<_>>();

    let mut report = LoadReport::default();
    let (mut missing, mut misshaped) = (Vec::new(), Vec::new());
    for (parameter, source) in wanted.iter().zip(&sources) {
        match source.as_ref().map(|source| (source, checkpoint.shape(source).unwrap_or_default())) {
            None if head_is_new(&parameter.name, &wanted, &sources) => report.new.push(parameter.name.clone()),
            None => missing.push(parameter.name.clone()),
            Some((_, shape)) if shape == parameter.shape => {}
            Some((source, shape)) => {
                misshaped.push(format!("{source}: expected {:?}, got {shape:?}", parameter.shape));
            }
        }
    }
    report.unused = unused(checkpoint, &sources);
    if !missing.is_empty() || !misshaped.is_empty() {
        return Err(Error::Weights {
            path: folder.into(),
            problem: format!(
                "the weights do not fit the model: {} of {} tensors missing{}; {} of another shape{}; {} unused{}",
                missing.len(),
                wanted.len(),
                listed(&missing),
                misshaped.len(),
                listed(&misshaped),
                report.unused.len(),
                listed(&report.unused),
            ),
        });
    }

    let found = wanted.into_iter().zip(sources).filter_map(|(parameter, source)| {
        let source = source?;
        Some((parameter.id, (parameter, source)))
    });
    let mut fill = Fill { checkpoint, found: found.collect(), narrow, failed: None };
    report.loaded = fill.found.len();
    let model = model.map(&mut fill);
    match fill.failed {
        Some(error) => Err(error),
        None => Ok((model, report)),
    }
}

/// The name under which the checkpoint holds the parameter `name`.
fn find(checkpoint: &Checkpoint, name: &str) -> Option<String> {
    let mut spellings = vec![name.to_string()];
    spellings.extend(TIED.iter().filter(|(ours, _)| *ours == name).map(|(_, elsewhere)| (*elsewhere).to_string()));
    for (new, old) in OLD_NORM {
        if let Some(stem) = name.strip_suffix(new) {
            spellings.push(format!("{stem}{old}"));
        }
    }
    // Where `peft` wraps a layer, its own tensors were once saved as if it did not.
    spellings.extend(name.contains(".base_layer.").then(|| name.replace(".base_layer.", ".")));
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

fn unused(checkpoint: &Checkpoint, sources: &[Option<String>]) -> Vec<String> {
    let used: BTreeSet<&String> = sources.iter().flatten().collect();
    let tied = |name: &str| {
        TIED.iter().any(|(ours, elsewhere)| {
            *elsewhere == name && used.iter().any(|used| *used == ours || ours.ends_with(&format!(".{used}")))
        })
    };
    let names = checkpoint.names().filter(|name| !used.contains(name) && !tied(name));
    names.filter(|name| !BUFFERS.iter().any(|buffer| name.ends_with(buffer))).cloned().collect()
}

/// A file that holds both names of a tied tensor must hold the same values under both.
fn check_tied(checkpoint: &Checkpoint, parameter: &Parameter, source: &str, read: &Values) -> Result<()> {
    for (ours, elsewhere) in TIED {
        if *ours == parameter.name && *elsewhere != source && checkpoint.contains(elsewhere) {
            let other = checkpoint.read(elsewhere)?;
            if other.shape != read.shape || other.data != read.data {
                return Err(Error::Weights {
                    path: checkpoint.folder.clone(),
                    problem: format!(
                        "{elsewhere} differs from {source}; expected the same values, since Kiln's output embedding is \
                         the input embedding"
                    ),
                });
            }
        }
    }
    Ok(())
}

/// `[rows, columns]` turned into `[columns, rows]`.
fn transposed(values: Values) -> Values {
    let [rows, columns] = values.shape[..] else {
        unreachable!("only two-dimensional weights are marked as transposed, and shapes were compared");
    };
    let mut data = Vec::with_capacity(values.data.len());
    for column in 0..columns {
        data.extend((0..rows).map(|row| values.data[row * columns + column]));
    }
    Values { shape: vec![columns, rows], data }
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
    failed: Option<Error>,
}

impl Fill<'_> {
    fn values(&self, parameter: &Parameter, source: &str) -> Result<Values> {
        let read = self.checkpoint.read(source)?;
        check_tied(self.checkpoint, parameter, source, &read)?;
        Ok(if parameter.transposed { transposed(read) } else { read })
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

/// Groups a report's names by their first segment, for a short printed summary.
impl LoadReport {
    /// One line per group of names: `in the checkpoint, unused: cls.* (7 tensors)`, and one for all groups behind the first few.
    /// Empty when all fitted.
    pub fn lines(&self) -> Vec<String> {
        let tensors = |count: usize| format!("{count} tensor{}", if count == 1 { "" } else { "s" });
        let mut lines = Vec::new();
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
