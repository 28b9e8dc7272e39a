//! The optimizer of a run over all parameters of a model. State lives on the device in f32, flat,
//! keyed by parameter; it leaves and enters under Hugging Face's parameter names, so that a
//! checkpoint can hold it.

use std::collections::{BTreeMap, HashMap};

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, TensorData};
use kiln_core::error::{Error, Result};
use kiln_models::weights::{Depth, NamedTensor, Parameter, StateDict, parameters};
use kiln_models::{Copies, Ops};
use serde::{Deserialize, Serialize};

use super::State;
use super::adafactor::AdafactorConfig;
use super::adagrad::{self, AdagradConfig};
use super::adam::{self, AdamConfig};
use super::groups::ParameterGroups;
use super::lion::{self, LionConfig};
use super::muon::{self, MuonConfig};
use super::own::OwnOptimizer;
use super::rmsprop::RmsPropConfig;
use super::sgd::{self, SgdConfig};
use super::skip::{Skip, Tables};
use super::step::Step;
use crate::distributed::Shard;
use crate::engine::precision::PrecisionPlan;
use crate::optim::arguments::AdjustLr;
use crate::optim::scaler::Verdict;
use crate::reads::read_values;

/// Which optimizer, with what it is told once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerConfig {
    /// `torch.optim.AdamW`
    AdamW(AdamConfig),
    /// `torch.optim.Adam`
    Adam(AdamConfig),
    /// `torch.optim.SGD`
    Sgd(SgdConfig),
    /// `transformers.optimization.Adafactor`
    Adafactor(AdafactorConfig),
    /// Lion
    Lion(LionConfig),
    /// `torch.optim.RMSprop`
    #[serde(rename = "rmsprop")]
    RmsProp(RmsPropConfig),
    /// `torch.optim.Adagrad`
    Adagrad(AdagradConfig),
    /// LAMB
    Lamb(AdamConfig),
    /// `torch.optim.Muon` for the matrices of the layers, AdamW for the rest
    Muon(MuonConfig),
    /// One that a program brings along.
    Own(OwnOptimizer),
}

impl Default for OptimizerConfig {
    /// AdamW.
    fn default() -> Self {
        Self::AdamW(AdamConfig::default())
    }
}

impl OptimizerConfig {
    /// Refuses a precision whose steps may be skipped where this optimizer, called `name`, cannot
    /// skip one.
    ///
    /// # Errors
    /// f16 with an optimizer whose update cannot be skipped on the device.
    pub fn check_precision(&self, precision: &PrecisionPlan, name: &str) -> Result<()> {
        if !precision.scales_loss() || self.can_skip() {
            return Ok(());
        }
        Err(Error::config(format!(
            "precision = \"f16\" with trainer.optim = \"{name}\": a step whose gradients overflow is skipped on the device, \
             which this optimizer cannot do"
        ))
        .help("use another optimizer, such as adamw_torch; or precision = \"bf16\", which needs no loss scale"))
    }

    /// Whether the update of a value needs its own gradient and moments alone.
    pub fn is_element_wise(&self) -> bool {
        matches!(
            self,
            Self::AdamW(_) | Self::Adam(_) | Self::Sgd(_) | Self::Lion(_) | Self::RmsProp(_) | Self::Adagrad(_)
        )
    }

    /// Refuses to divide this optimizer, called `name`, among devices where the update of a value
    /// needs more than its own gradient.
    ///
    /// # Errors
    /// `distributed.optimizer_sharding` with an optimizer that is not element-wise.
    pub fn check_sharding(&self, name: &str) -> Result<()> {
        let needs = match self {
            _ if self.is_element_wise() => return Ok(()),
            Self::Adafactor(_) => "the rows and columns of a whole matrix",
            Self::Lamb(_) => "the norms of a whole parameter",
            Self::Muon(_) => "a whole matrix",
            _ => "a whole parameter",
        };
        Err(Error::config(format!(
            "distributed.optimizer_sharding = true with trainer.optim = \"{name}\": its update needs {needs}, and a device has \
             a part of it"
        ))
        .help("use an element-wise optimizer (adamw_torch, adam, sgd, lion, rmsprop, adagrad), or distributed.optimizer_sharding = false"))
    }

    /// Names and sizes of what is kept for `parameter`, in the order in which the optimizer keeps
    /// it.
    pub fn state(&self, parameter: &Parameter) -> Vec<(&'static str, usize)> {
        let n = parameter.num_elements();
        let moments = || adam::STATE.map(|name| (name, n)).to_vec();
        match self {
            Self::AdamW(_) | Self::Adam(_) | Self::Lamb(_) => moments(),
            Self::Sgd(config) if config.momentum == 0.0 => Vec::new(),
            Self::Sgd(_) => vec![(sgd::STATE, n)],
            Self::Adafactor(config) => config.state(&own_shape(parameter)),
            Self::Lion(_) => vec![(lion::STATE, n)],
            Self::RmsProp(config) => config.state().into_iter().map(|name| (name, n)).collect(),
            Self::Adagrad(_) => vec![(adagrad::STATE, n)],
            Self::Muon(_) if is_layer_matrix(parameter) => vec![(muon::STATE, n)],
            Self::Muon(_) => moments(),
            Self::Own(own) => own.state().iter().map(|name| (*name, n)).collect(),
        }
    }

    /// Whether an update can be skipped on the device; see [`Optimizer::step_unless`].
    pub fn can_skip(&self) -> bool {
        // The decay rate of Adafactor and the learning rate of Adagrad with a decay are functions
        // of the number of updates, and a program's rule may have one.
        match self {
            Self::Adafactor(_) | Self::Own(_) => false,
            Self::Adagrad(config) => config.lr_decay == 0.0,
            _ => true,
        }
    }

    /// Whether an update can be made in place, as captured steps make it: a weight moves by the
    /// learning rate times something that does not depend on it.
    pub fn can_be_in_place(&self) -> bool {
        self.never_in_place().is_none()
    }

    /// Why an update cannot be made in place; none where it can.
    pub fn never_in_place(&self) -> Option<&'static str> {
        match self {
            Self::Adafactor(config) if config.beta1.is_some() => {
                Some("the first moment of adafactor (beta1) has the learning rate in it")
            }
            Self::Adagrad(config) if config.lr_decay != 0.0 => {
                Some("the learning rate of adagrad with lr_decay depends on the number of updates")
            }
            Self::Own(_) => Some("the program brings an optimizer of its own"),
            _ => None,
        }
    }

    /// The hyperparameters in words, for the plan.
    pub fn describe(&self) -> String {
        let adam = |c: &AdamConfig| format!("betas ({}, {}), epsilon {}", c.beta1, c.beta2, c.epsilon);
        let nesterov = |on: bool| if on { ", Nesterov" } else { "" };
        match self {
            Self::AdamW(c) | Self::Adam(c) | Self::Lamb(c) => adam(c),
            Self::Lion(c) => format!("betas ({}, {})", c.beta1, c.beta2),
            Self::RmsProp(c) => format!(
                "alpha {}, epsilon {}, momentum {}{}",
                c.alpha,
                c.epsilon,
                c.momentum,
                if c.centered { ", centred" } else { "" }
            ),
            Self::Adagrad(c) => format!("lr_decay {}, epsilon {}", c.lr_decay, c.epsilon),
            Self::Sgd(c) => format!("momentum {}, dampening {}{}", c.momentum, c.dampening, nesterov(c.nesterov)),
            Self::Adafactor(c) => format!(
                "decay rate {}, clip threshold {}, beta1 {}{}",
                c.decay_rate,
                c.clip_threshold,
                c.beta1.map_or("none".into(), |beta1| beta1.to_string()),
                if c.scale_parameter { ", rate scaled by the weights" } else { "" }
            ),
            Self::Muon(c) => format!(
                "momentum {}{}, {} Newton-Schulz steps, rate {}; AdamW for embeddings, head, norms and biases: {}",
                c.momentum,
                nesterov(c.nesterov),
                c.ns_steps,
                match c.adjust_lr {
                    AdjustLr::Original => "x sqrt(max(1, rows / columns))",
                    AdjustLr::MatchRmsAdamW => "x 0.2 sqrt(max(rows, columns))",
                    AdjustLr::SpectralUnclamped => "x sqrt(rows / columns)",
                },
                adam(&c.adamw)
            ),
            Self::Own(own) => own.name().into(),
        }
    }
}

/// The shape of a parameter as Kiln lays it out.
fn own_shape(parameter: &Parameter) -> Vec<usize> {
    let mut shape = parameter.shape.clone();
    if parameter.transposed {
        shape.reverse();
    }
    shape
}

/// The error about a state of `parameter` that is not `expected`.
fn does_not_fit(parameter: &Parameter, expected: &[(&str, usize)]) -> Error {
    let expected = expected.iter().map(|(name, n)| format!("{name} with {n} values")).collect::<Vec<_>>();
    let expected = if expected.is_empty() { "none".into() } else { expected.join(" and ") };
    Error::data(format!("the optimizer's state of {} does not fit: expected {expected}", parameter.name))
}

/// Whether Muon takes it.
fn is_layer_matrix(parameter: &Parameter) -> bool {
    parameter.shape.len() == 2 && matches!(parameter.depth(), Depth::Layer(_))
}

/// The optimizer with its state.
#[derive(Debug, Clone)]
pub struct Optimizer {
    pub(super) config: OptimizerConfig,
    /// How many updates have been made.
    pub(super) step: u64,
    pub(super) groups: HashMap<ParamId, Group>,
    pub(super) state: BTreeMap<ParamId, State>,
    /// The part of the parameters whose state is here; none for all.
    shard: Option<Shard>,
    /// In which form AdamW's update computes.
    pub(super) ops: Ops,
    /// Bias corrections by number of updates, where the device counts them.
    pub(super) tables: Tables,
    copies: Copies,
}

/// The settings of one parameter.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) weight_decay: f64,
    pub(super) lr_factor: f64,
    pub(super) hf_shape: Vec<usize>,
    pub(super) is_layer_matrix: bool,
    /// Tensors of its state.
    #[cfg(feature = "compiler")]
    pub(super) num_state: usize,
}

impl Optimizer {
    /// An optimizer for `model`, without state yet. Which parameters learn is the model's own:
    /// those with a gradient.
    pub fn new<M: StateDict>(config: OptimizerConfig, groups: &ParameterGroups, model: &M) -> Self {
        let group = |parameter: Parameter| {
            let group = Group {
                weight_decay: groups.weight_decay(&parameter),
                lr_factor: groups.lr_factor(&parameter),
                is_layer_matrix: is_layer_matrix(&parameter),
                #[cfg(feature = "compiler")]
                num_state: config.state(&parameter).len(),
                hf_shape: parameter.shape,
            };
            (parameter.id, group)
        };
        let groups = parameters(model).into_iter().map(group).collect();
        Self {
            config,
            step: 0,
            groups,
            state: BTreeMap::new(),
            shard: None,
            ops: Ops::Plain,
            tables: Tables::default(),
            copies: Copies::default(),
        }
    }

    /// This optimizer, computing in the form `ops`: with [`Ops::Fused`] AdamW updates a parameter
    /// in one pass over it, its gradient and its moments. The other optimizers have one form.
    #[must_use]
    pub fn with_ops(mut self, ops: Ops) -> Self {
        self.ops = ops;
        self
    }

    /// This optimizer for the part `shard` of the parameters, before it has a state. It updates
    /// what [`Shard::cut`] gives it, and its moments are those of that part.
    #[must_use]
    pub fn with_shard(mut self, shard: Shard) -> Self {
        self.shard = Some(shard);
        self
    }

    /// The part of the parameters that is updated here; none for all.
    pub fn shard(&self) -> Option<&Shard> {
        self.shard.as_ref()
    }

    /// How many values the state has here: those of its tensors, f32 each.
    pub fn state_values(&self) -> usize {
        self.state.values().flatten().map(|tensor| tensor.shape().num_elements()).sum()
    }

    /// Copies of the model's weights in the type of its matrix products, for whoever computes with
    /// it ([`Pass::with_copies`](kiln_models::Pass::with_copies)): a step then casts a weight once,
    /// however often it is used. An update forgets those of the weights that it changes, unless
    /// AdamW's kernel for many parameters writes them too; whoever changes the weights otherwise
    /// clears them.
    pub fn copies(&self) -> &Copies {
        &self.copies
    }

    /// One update with learning rate `lr`. `scale`, `[1]`, multiplies every gradient: it carries
    /// the division by the loss count and the clipping, so that neither needs a pass of its own or
    /// a value on the host.
    #[must_use]
    pub fn step<M: Module>(&mut self, model: M, grads: GradientsParams, scale: &Tensor<1>, lr: f64) -> M {
        self.begin_step();
        Step::new(self, grads, scale, lr, None).make(model)
    }

    /// Counts an update. One of a part of the parameters leaves their copies behind, and other
    /// ranks change the rest.
    fn begin_step(&mut self) {
        self.step += 1;
        if self.shard.is_some() {
            self.copies.clear();
        } else {
            self.copies.forget_uses();
        }
    }

    /// Counts an update that is not made.
    pub fn pass_over(&mut self) {
        self.step += 1;
        self.copies.forget_uses();
    }

    /// [`step`](Self::step), unless `verdict` says that the gradients overflowed: then weights and
    /// state stay what they were. Nothing is read from the device to know it. Without an overflow
    /// the results are those of `step`, bit for bit. In the plain form whatever
    /// [`with_ops`](Self::with_ops) says. For an optimizer that [can
    /// skip](OptimizerConfig::can_skip); in another one skipped updates go on counting.
    #[must_use]
    pub fn step_unless<M: Module>(
        &mut self,
        verdict: &Verdict,
        model: M,
        grads: GradientsParams,
        scale: &Tensor<1>,
        lr: f64,
    ) -> M {
        self.begin_step();
        let mut tables = std::mem::take(&mut self.tables);
        let skip = Skip::new(verdict, &mut tables);
        let model = Step::new(self, grads, scale, lr, Some(skip)).make(model);
        self.tables = tables;
        model
    }

    /// The state on the host, `NAME.exp_avg` and the like, flat in Kiln's own layout, `[n]`, for
    /// every parameter that has been updated. The number of updates is the caller's to keep. Of an
    /// optimizer that is divided among ranks all of them call it, and rank 0 gets the state of all;
    /// the others get values of no length.
    ///
    /// # Errors
    /// The device's, when a value cannot be read, and MPI's.
    pub fn export<M: StateDict>(&self, model: &M) -> Result<Vec<NamedTensor>> {
        let parameters = parameters(model);
        let mut has_state = parameters.iter().map(|it| self.state.contains_key(&it.id)).collect::<Vec<_>>();
        if let Some(shard) = &self.shard {
            has_state = shard.any(&has_state)?;
        }
        let mut tensors = Vec::new();
        for parameter in parameters.iter().zip(has_state).filter_map(|(parameter, has)| has.then_some(parameter)) {
            let (state, expected) = (self.state.get(&parameter.id), self.config.state(parameter));
            let fits = |state: &State| {
                let sizes = state.iter().map(|tensor| tensor.shape().num_elements());
                sizes.eq(expected.iter().map(|(_, n)| *n))
            };
            // A program's rule may leave others than those that it names.
            if self.shard.is_none() && !state.is_none_or(fits) {
                return Err(does_not_fit(parameter, &expected).help(
                    "UpdateRule::update leaves the tensors that UpdateRule::state names, each as large as the parameter",
                ));
            }
            for (index, (ending, n)) in expected.into_iter().enumerate() {
                let own = state.and_then(|state| state.get(index));
                let own = own.map_or_else(|| Ok(Vec::new()), |tensor| read_values(tensor.clone()))?;
                let data = match &self.shard {
                    Some(shard) => shard.join_at_root(parameter.id, &own)?,
                    None => own,
                };
                tensors.push(NamedTensor { name: format!("{}.{ending}", parameter.name), shape: vec![n], data });
            }
        }
        Ok(tensors)
    }

    /// Puts back what [`export`](Self::export) gave after `step` updates of a model of the same
    /// shape by the same optimizer, divided or not. One that is divided among ranks takes its part
    /// of it.
    ///
    /// # Errors
    /// Names or sizes that are not the model's, or a part of a parameter's state without the rest;
    /// the state is then as it was.
    pub fn import<M: StateDict>(
        &mut self,
        model: &M,
        step: u64,
        tensors: Vec<NamedTensor>,
        device: &Device,
    ) -> Result<()> {
        let mut given = tensors.into_iter().map(|tensor| (tensor.name, tensor.data)).collect::<BTreeMap<_, _>>();
        let mut state = BTreeMap::new();
        for parameter in parameters(model) {
            let expected = self.config.state(&parameter);
            let found = expected.iter().map(|(ending, _)| given.remove(&format!("{}.{ending}", parameter.name)));
            let found = found.collect::<Vec<_>>();
            if found.iter().all(Option::is_none) {
                continue; // it has not been updated yet, or never is
            }
            let tensor = |(values, (_, n)): (Option<Vec<f32>>, &(&str, usize))| {
                let mut values = values.filter(|values| values.len() == *n)?;
                if let Some(shard) = &self.shard {
                    values = values[shard.own(parameter.id)].to_vec();
                }
                let n = values.len();
                Some(Tensor::from_data(TensorData::new(values, [n]), device))
            };
            let Some(tensors) = found.into_iter().zip(&expected).map(tensor).collect::<Option<State>>() else {
                return Err(does_not_fit(&parameter, &expected));
            };
            if self.shard.as_ref().is_none_or(|shard| !shard.own(parameter.id).is_empty()) {
                state.insert(parameter.id, tensors);
            }
        }
        if let Some(name) = given.keys().next() {
            return Err(Error::data(format!("the optimizer's state has {name}, which the model does not have")));
        }
        (self.step, self.state) = (step, state);
        self.copies.clear();
        Ok(())
    }
}
