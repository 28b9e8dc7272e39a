//! Updates that may be skipped without the host knowing (f16): what an optimizer computes is kept
//! or thrown away by a verdict on the device, and what depends on the number of updates is looked
//! up there.
//!
//! Bias corrections are not computed on the device but selected from a table of the same f64
//! arithmetic that the plain optimizers do, so that a run without overflows equals one that cannot
//! skip, bit for bit.

use std::collections::HashMap;

use burn::tensor::{Int, Tensor, TensorData};

use super::{AdamConfig, State};
use crate::optim::scaler::Verdict;

/// A verdict with what Adam needs to know of the number of updates.
pub(super) struct Skip<'a> {
    verdict: &'a Verdict,
    tables: &'a mut Tables,
    /// `lr / (1 - beta1^t)` of this update by learning rate, `[1]`.
    rates: HashMap<u64, Tensor<1>>,
    /// `sqrt(1 - beta2^t)` of this update, `[1]`.
    root: Option<Tensor<1>>,
    /// Both, for the learning rate 1, of an update in place; of Adafactor the weights of the past
    /// and of this update.
    told: Option<[Tensor<1>; 2]>,
    /// In an update in place 1 where the parameter at hand has had an update before, else 0, `[1]`.
    #[cfg(feature = "compiler")]
    pub(super) has_begun: Option<Tensor<1>>,
}

/// Bias corrections of the updates from 1 on, up to where they are 1 and stay so, or to the last
/// update that is possible.
#[derive(Debug, Clone, Default)]
pub(super) struct Tables {
    /// `1 - beta1^t`
    first: Vec<f64>,
    /// `sqrt(1 - beta2^t)`
    second: Vec<f64>,
}

impl Tables {
    /// Makes room for update `step`, the last that is possible by now.
    fn extend(&mut self, config: &AdamConfig, step: u64) {
        extend(&mut self.first, step, |t| 1.0 - config.beta1.powf(t));
        extend(&mut self.second, step, |t| (1.0 - config.beta2.powf(t)).sqrt());
    }

    /// `1 / (1 - beta1^t)` and `sqrt(1 - beta2^t)`, `[1]` each, of the update whose number `t`,
    /// `step` at most, is `update`, `[1]`.
    #[cfg(feature = "compiler")]
    pub(super) fn corrections(&mut self, config: &AdamConfig, step: u64, update: &Tensor<1, Int>) -> [Tensor<1>; 2] {
        self.extend(config, step);
        [at(update, self.first.iter().map(|c| 1.0 / c)), at(update, self.second.iter().copied())]
    }
}

fn extend(table: &mut Vec<f64>, step: u64, value: impl Fn(f64) -> f64) {
    while (table.len() as u64) < step && table.last() != Some(&1.0) {
        table.push(value((table.len() + 1) as f64));
    }
}

impl<'a> Skip<'a> {
    pub(super) fn new(verdict: &'a Verdict, tables: &'a mut Tables) -> Self {
        Self {
            verdict,
            tables,
            rates: HashMap::new(),
            root: None,
            told: None,
            #[cfg(feature = "compiler")]
            has_begun: None,
        }
    }

    /// With the numbers that an update in place is told, which are not looked up.
    #[cfg(feature = "compiler")]
    pub(super) fn with_told(verdict: &'a Verdict, tables: &'a mut Tables, told: [Tensor<1>; 2]) -> Self {
        Self { told: Some(told), ..Self::new(verdict, tables) }
    }

    /// The numbers that an update in place is told.
    pub(super) fn told(&self) -> Option<[Tensor<1>; 2]> {
        self.told.clone()
    }

    /// `lr / (1 - beta1^t)` and `sqrt(1 - beta2^t)`, `[1]` each, where `t` is the number of this
    /// update, which is `step` at most.
    pub(super) fn corrections(&mut self, config: &AdamConfig, step: u64, lr: f64) -> [Tensor<1>; 2] {
        if let Some(told) = self.told() {
            return told;
        }
        self.tables.extend(config, step);
        let Self { verdict: Verdict { update, .. }, tables, rates, root, .. } = self;
        let rate = rates.entry(lr.to_bits()).or_insert_with(|| at(update, tables.first.iter().map(|c| lr / c)));
        let root = root.get_or_insert_with(|| at(update, tables.second.iter().copied()));
        [rate.clone(), root.clone()]
    }

    /// True where this is the first update of the parameter that counts, `[n]`: what momentum that
    /// takes the first gradient whole asks.
    pub(super) fn is_first(&self, n: usize) -> Tensor<1, burn::tensor::Bool> {
        let is_first = self.verdict.update.clone().equal_scalar(1);
        #[cfg(feature = "compiler")]
        let is_first = match &self.has_begun {
            Some(has_begun) => is_first.bool_or(has_begun.clone().equal_scalar(0.0)),
            None => is_first,
        };
        is_first.expand([n])
    }

    /// `new` and its state, or `old` and what the state was, by the verdict; `[n]` each. A state
    /// that was not there yet was zero.
    pub(super) fn choose(&self, new: Tensor<1>, old: Tensor<1>, state: &mut State, old_state: State) -> Tensor<1> {
        let mask = self.verdict.overflow.clone().expand(new.dims());
        let mut old_state = old_state.into_iter();
        for value in state.iter_mut() {
            let old = old_state.next().unwrap_or_else(|| value.zeros_like());
            *value = value.clone().mask_where(mask.clone(), old);
        }
        new.mask_where(mask, old)
    }
}

/// The value of the update of number `update`, `[1]`, in a table that begins with update 1 and
/// whose last value holds for all that follow, `[1]`.
fn at(update: &Tensor<1, Int>, table: impl Iterator<Item = f64>) -> Tensor<1> {
    let table = table.map(|value| value as f32).collect::<Vec<_>>();
    let len = table.len();
    let table = Tensor::<1>::from_data(TensorData::new(table, [len]), &update.device());
    table.select(0, update.clone().clamp_max(len as i64) - 1)
}
