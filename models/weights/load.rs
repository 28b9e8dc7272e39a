//! Fits a checkpoint to a model: finds each parameter under its current, older or unprefixed name, checks its shape, and
//! says what was missing, unused or mis-shaped.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use burn::module::{ModuleMapper, Param, ParamId};
use burn::tensor::{Tensor, TensorData};

use super::files::{Checkpoint, Values};
use super::names::{Parameter, StateDict, parameters};
use crate::error::{Error, Result};

/// Prefixes of the tensors of a head. A head of which a checkpoint holds no tensor at all is new and keeps its random
/// weights; anything else that is missing is an error.
const HEADS: &[&str] = &[
    "score.",
    "classifier.",
    "qa_outputs.",
    "cls.",
    "bert.pooler.",
    "lm_head.",
    "pre_classifier.",
    "vocab_transform.",
    "vocab_layer_norm.",
    "vocab_projector.",
];

/// Body prefixes that a checkpoint of the bare body leaves out.
const BODIES: &[&str] = &["transformer.", "bert.", "roberta.", "distilbert."];

/// `(our name, the name of the same tensor elsewhere in the file)`: tied weights that files may hold under either name.
const TIED: &[(&str, &str)] = &[
    ("transformer.wte.weight", "lm_head.weight"),
    ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
    ("cls.predictions.bias", "cls.predictions.decoder.bias"),
    ("roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight"),
    ("lm_head.bias", "lm_head.decoder.bias"),
    ("distilbert.embeddings.word_embeddings.weight", "vocab_projector.weight"),
];

/// Older names of LayerNorm's parameters.
const OLD_NORM: &[(&str, &str)] = &[("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")];

/// Constant buffers that older files carry: the causal mask and the position numbers.
const BUFFERS: &[&str] = &[".attn.bias", ".attn.masked_bias", "embeddings.position_ids"];

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

/// Loads the weights of the Hugging Face folder `folder` into `model`.
///
/// # Errors
/// A missing tensor outside a new head, a tensor of another shape, a tied pair with two different values, a file that
/// does not hold what its header says; the message lists them all.
pub fn load<M: StateDict>(model: M, folder: &Path) -> Result<(M, LoadReport)> {
    let checkpoint = Checkpoint::open(folder)?;
    let wanted = parameters(&model);
    let sources = wanted.iter().map(|parameter| find(&checkpoint, &parameter.name)).collect::<Vec<_>>();

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
    report.unused = unused(&checkpoint, &sources);
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

    let mut values = HashMap::new();
    for (parameter, source) in wanted.iter().zip(sources) {
        let Some(source) = source else { continue };
        let read = checkpoint.read(&source)?;
        check_tied(&checkpoint, parameter, &source, &read)?;
        values.insert(parameter.id, if parameter.transposed { transposed(read) } else { read });
    }
    report.loaded = values.len();
    Ok((model.map(&mut Fill { values }), report))
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

struct Fill {
    values: HashMap<ParamId, Values>,
}

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(values) = self.values.remove(&param.id) else { return param };
        let device = param.lazy_device();
        let tensor = Tensor::from_data(TensorData::new(values.data, values.shape), &device);
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
