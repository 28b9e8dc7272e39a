//! Training and validation data on their way from files to examples.

use std::sync::Arc;

use kiln_core::error::Result;
use kiln_data::Dataset;
use kiln_data::subset::Subset;

use crate::config::{RunConfig, Validation};

/// The purpose for which inputs are opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// A run: on its training data, with evaluations on its validation data.
    Training,
    /// An evaluation alone. Training data is opened only where it has to be: validation data is a
    /// share of it, or there is no other.
    Evaluation,
}

/// Which part of the training data is validation data.
#[derive(Debug, Clone, Copy)]
pub(super) enum Held {
    /// This share, between 0 and 1, drawn by the seed.
    Share(f64),
    /// The first rows, this percentage of them.
    First(f64),
}

impl Held {
    /// The validation data's share of the training data, between 0 and 1, where the config allows
    /// no other form.
    pub(super) fn share(self) -> f64 {
        match self {
            Self::Share(share) => share,
            Self::First(percent) => percent / 100.0,
        }
    }
}

/// Training and validation data, in one of the forms that they have on their way from files to
/// examples. At least one of the two is there.
#[derive(Clone)]
pub struct Splits<D> {
    /// Training data; none for an evaluation that needs none.
    pub train: Option<D>,
    /// Validation data, if any.
    pub validation: Option<D>,
}

impl<D> Splits<D> {
    /// The files that `config` names, each list of them opened by `open`. A share of the training
    /// data is still in it: [`split`](Self::split) splits it off.
    pub(super) fn open(config: &RunConfig, used: Use, mut open: impl FnMut(&[String]) -> Result<D>) -> Result<Self> {
        let data = &config.data;
        let mut open = |key: &str, patterns: &[String]| open(patterns).map_err(|error| error.at(key));
        Ok(match (&data.validation, used) {
            (Some(Validation::Files(patterns)), Use::Evaluation) => {
                Self { train: None, validation: Some(open("data.validation", patterns)?) }
            }
            (Some(Validation::Files(patterns)), Use::Training) => {
                let train = open("data.train", &data.train)?;
                Self { train: Some(train), validation: Some(open("data.validation", patterns)?) }
            }
            (None | Some(Validation::Share(_) | Validation::First(_)), _) => {
                Self { train: Some(open("data.train", &data.train)?), validation: None }
            }
        })
    }

    /// The training data `train`, which are read as they are needed, and the validation files that
    /// `config` names, opened by `open`.
    pub(super) fn streamed(config: &RunConfig, train: D, mut open: impl FnMut(&[String]) -> Result<D>) -> Result<Self> {
        let validation = match &config.data.validation {
            Some(Validation::Files(patterns)) => Some(open(patterns).map_err(|error| error.at("data.validation"))?),
            Some(Validation::Share(_) | Validation::First(_)) | None => None,
        };
        Ok(Self { train: Some(train), validation })
    }

    /// With the share of the training data that `config` asks for as validation data, split off by
    /// `split`; any other as it is.
    pub(super) fn split(
        self,
        config: &RunConfig,
        used: Use,
        split: impl FnOnce(D, Held) -> Result<(D, D)>,
    ) -> Result<Self> {
        let held = match config.data.validation {
            Some(Validation::Share(share)) => Some(Held::Share(share)),
            Some(Validation::First(percent)) => Some(Held::First(percent)),
            Some(Validation::Files(_)) | None => None,
        };
        match (held, self.train) {
            (Some(held), Some(all)) => {
                let (train, validation) = split(all, held)?;
                Ok(Self { train: (used == Use::Training).then_some(train), validation: Some(validation) })
            }
            (_, train) => Ok(Self { train, ..self }),
        }
    }

    /// With what `change` makes of each; its errors name the key of the config.
    pub(super) fn map<E>(self, mut change: impl FnMut(D) -> Result<E>) -> Result<Splits<E>> {
        let mut change = |key: &str, data: Option<D>| data.map(&mut change).transpose().map_err(|error| error.at(key));
        Ok(Splits { train: change("data.train", self.train)?, validation: change("data.validation", self.validation)? })
    }

    /// The data that says what an input does not state, such as the labels: the training data, or
    /// else the validation data, with its key.
    pub(super) fn first(&self) -> (&'static str, &D) {
        let train = self.train.as_ref().map(|data| ("data.train", data));
        let first = train.or(self.validation.as_ref().map(|data| ("data.validation", data)));
        first.expect("`open` opens one of the two, and no step drops both")
    }
}

impl Splits<Arc<dyn Dataset>> {
    /// With a share of the rows of the training data, drawn by the seed, as validation data where
    /// `config` asks for it.
    pub(super) fn split_rows(self, config: &RunConfig, used: Use) -> Result<Self> {
        self.split(config, used, |rows, held| {
            let (train, validation) = match held {
                Held::Share(share) => Subset::split(rows, share, config.trainer.seed)?,
                Held::First(percent) => Subset::split_first(rows, percent)?,
            };
            Ok((Arc::new(train) as Arc<dyn Dataset>, Arc::new(validation) as Arc<dyn Dataset>))
        })
    }
}
