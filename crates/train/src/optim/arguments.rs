//! The arguments of the optimizer: its name by Hugging Face's spelling, and those that only some
//! optimizers take (`optim_args`).

use kiln_core::choices;
use kiln_core::complaint::Complaint;
use kiln_core::error::{Error, Result, nearest};
use kiln_core::ranges::{ABOVE_0, FROM_0, FROM_0_TO_1, number};
use kiln_core::values::some_count;
use serde::{Deserialize, Serialize};

choices! {
    /// The optimizer, by Hugging Face's name where it has one.
    OptimizerName("optimizer", unsupported) {
        /// AdamW by PyTorch's formula, decoupled weight decay. `adamw`, `adamw_torch_fused`,
        /// `adamw_torch_xla` and `adamw_torch_npu_fused` (the same formula) are accepted spellings.
        AdamW = "adamw_torch" | "adamw" | "adamw_torch_fused" | "adamw_torch_xla" | "adamw_torch_npu_fused",
        /// Adam by PyTorch's formula: weight decay is added to the gradient.
        Adam = "adam",
        /// Stochastic gradient descent by PyTorch's formula, with momentum if `optim_args` says so.
        Sgd = "sgd",
        /// Adafactor as `transformers` has it: second moments of a matrix as a row and a column.
        Adafactor = "adafactor",
        /// Lion: the sign of an average of gradients. `lion` and `paged_lion_32bit` (the same
        /// optimizer with other memory) are accepted spellings.
        Lion = "lion_32bit" | "lion" | "paged_lion_32bit",
        /// RMSprop by PyTorch's formula: weight decay is added to the gradient.
        RmsProp = "rmsprop",
        /// Adagrad by PyTorch's formula: weight decay is added to the gradient.
        Adagrad = "adagrad",
        /// LAMB: Adam's update, scaled in every tensor to the size of its weights.
        Lamb = "lamb",
        /// Muon for the matrices of the layers, AdamW for everything else.
        Muon = "muon",
    }
}

fn unsupported(given: &str) -> Option<Error> {
    // The rest of transformers.training_args.OptimizerNames, by family.
    const FAMILIES: [&str; 9] =
        ["ademamix", "lion_8bit", "paged_", "rmsprop_", "galore_", "lomo", "adalomo", "grokadamw", "schedule_free_"];
    const SINGLES: [&str; 9] = [
        "adamw_hf",
        "adamw_anyprecision",
        "adamw_torch_4bit",
        "adamw_torch_8bit",
        "adamw_bnb_8bit",
        "adamw_8bit",
        "apollo_adamw",
        "apollo_adamw_layerwise",
        "stable_adamw",
    ];
    if !SINGLES.contains(&given) && !FAMILIES.iter().any(|family| given.starts_with(family)) {
        return None;
    }
    let instead = match given {
        _ if given.contains("lion") => OptimizerName::Lion,
        _ if given.contains("rmsprop") => OptimizerName::RmsProp,
        _ => OptimizerName::AdamW,
    };
    let message = format!("Hugging Face's optimizer `{given}` is not supported by this version");
    Some(Error::config(message).help(format!("use `{instead}`")))
}

impl OptimizerName {
    /// The `adam_*` settings that the optimizer reads.
    pub const fn adam_settings(self) -> &'static [&'static str] {
        match self {
            Self::AdamW | Self::Adam | Self::Lamb | Self::Muon => &["adam_beta1", "adam_beta2", "adam_epsilon"],
            Self::Lion => &["adam_beta1", "adam_beta2"],
            Self::Sgd | Self::Adafactor | Self::RmsProp | Self::Adagrad => &[],
        }
    }

    /// The arguments that the optimizer takes in `optim_args`.
    pub const fn args(self) -> &'static [&'static str] {
        match self {
            Self::AdamW | Self::Adam | Self::Lion | Self::Lamb => &[],
            Self::Sgd => &["momentum", "dampening", "nesterov"],
            Self::RmsProp => &["alpha", "eps", "momentum", "centered"],
            Self::Adagrad => &["lr_decay", "eps"],
            Self::Adafactor => &["scale_parameter", "clip_threshold", "decay_rate", "beta1"],
            Self::Muon => &["momentum", "nesterov", "ns_steps", "adjust_lr_fn"],
        }
    }
}

choices! {
    /// How Muon's learning rate depends on the shape of a matrix of `A` rows and `B` columns
    /// (`torch.optim.Muon`).
    AdjustLr("adjust_lr_fn") {
        /// `sqrt(max(1, A / B))`, Keller Jordan's.
        Original = "original",
        /// `0.2 sqrt(max(A, B))`: updates as large as AdamW's, so that both take the same learning
        /// rate (Moonshot).
        MatchRmsAdamW = "match_rms_adamw",
        /// `sqrt(A / B)`.
        SpectralUnclamped = "spectral_unclamped",
    }
}

kiln_core::keys! {
    /// `[trainer.optim_args]`: arguments of single optimizers, a table or Hugging Face's
    /// `"key=value,key=value"`. [`OptimizerName::args`] says which optimizer takes which; one that
    /// it does not take is refused.
    #[serde(default, deny_unknown_fields)]
    pub struct OptimArgs in "trainer.optim_args" {
        /// Momentum of `sgd` and `rmsprop` (default 0) and `muon` (default 0.95).
        #[serde(skip_serializing_if = "Option::is_none")]
        momentum: Option<f64> = None, Bound, FROM_0_TO_1;
        /// How much of a new gradient `sgd` leaves out of its momentum (default 0).
        #[serde(skip_serializing_if = "Option::is_none")]
        dampening: Option<f64> = None, Bound, number("a number from 0 to 1", 0.0..=1.0);
        /// Nesterov's momentum, of `sgd` (default false) and `muon` (default true).
        #[serde(skip_serializing_if = "Option::is_none")]
        nesterov: Option<bool> = None, Bound;
        /// `adafactor` scales the learning rate by the size of the weights (default false, as in
        /// Hugging Face's Trainer).
        #[serde(skip_serializing_if = "Option::is_none")]
        scale_parameter: Option<bool> = None, Bound;
        /// Largest root mean square of an update of `adafactor`, before the learning rate (default
        /// 1).
        #[serde(skip_serializing_if = "Option::is_none")]
        clip_threshold: Option<f64> = None, Bound, ABOVE_0;
        /// Exponent of the step in `adafactor`'s second-moment decay, below 0 (default -0.8).
        #[serde(skip_serializing_if = "Option::is_none")]
        decay_rate: Option<f64> = None, Bound, number("a number below 0", ..0.0);
        /// Decay of `adafactor`'s first moment (default: it keeps none).
        #[serde(skip_serializing_if = "Option::is_none")]
        beta1: Option<f64> = None, Bound, FROM_0_TO_1;
        /// Newton-Schulz iterations of `muon` (default 5).
        #[serde(deserialize_with = "some_count", skip_serializing_if = "Option::is_none")]
        ns_steps: Option<usize> = None, Bound;
        /// Decay of the average of squares of `rmsprop` (default 0.99).
        #[serde(skip_serializing_if = "Option::is_none")]
        alpha: Option<f64> = None, Bound, FROM_0_TO_1;
        /// Number that `rmsprop` (default 1e-8) and `adagrad` (default 1e-10) add to the root of
        /// squares.
        #[serde(skip_serializing_if = "Option::is_none")]
        eps: Option<f64> = None, Bound, FROM_0;
        /// Whether `rmsprop` subtracts the square of the average gradient (default false).
        #[serde(skip_serializing_if = "Option::is_none")]
        centered: Option<bool> = None, Bound;
        /// The learning rate of `adagrad` is divided by `1 + (step - 1) lr_decay` (default 0).
        #[serde(skip_serializing_if = "Option::is_none")]
        lr_decay: Option<f64> = None, Bound, FROM_0;
        /// How `muon`'s learning rate depends on the shape (default `match_rms_adamw`, since one
        /// `learning_rate` serves Muon and AdamW here; PyTorch's default is `original`).
        #[serde(skip_serializing_if = "Option::is_none")]
        adjust_lr_fn: Option<AdjustLr> = None, Bound;
    }
}

impl OptimArgs {
    /// Whether none is given.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks that the arguments are ones that `optimizer` takes and that their values make sense.
    ///
    /// # Errors
    /// A config error that names the argument.
    pub fn check(&self, optimizer: OptimizerName) -> Result<()> {
        let takes = optimizer.args();
        if let Some(name) = self.given().map(|key| key.field).find(|name| !takes.contains(name)) {
            let list =
                if takes.is_empty() { "it takes none".to_owned() } else { format!("it takes {}", takes.join(", ")) };
            let error = Error::config(format!("the optimizer `{optimizer}` has no argument `{name}`: {list}"));
            return Err(match nearest(name, takes.iter().copied()) {
                Some(near) => error.help(format!("did you mean `{near}`?")),
                None => error.help("remove it, or choose an optimizer that takes it in optim"),
            });
        }
        self.check_ranges().map_err(Complaint::of_an_argument)?;
        if let Some(steps) = self.ns_steps.filter(|steps| !(1..100).contains(steps)) {
            return Err(Error::config(format!("`ns_steps`: expected 1 to 99, got {steps}")));
        }
        let momentum = self.momentum.unwrap_or(0.0);
        if optimizer == OptimizerName::Sgd && self.nesterov == Some(true) {
            if momentum == 0.0 || self.dampening.unwrap_or(0.0) != 0.0 {
                return Err(Error::config("`nesterov` needs a momentum above 0 and no dampening, as in PyTorch")
                    .help("for example optim_args = { momentum = 0.9, nesterov = true }"));
            }
        } else if optimizer == OptimizerName::Sgd && self.dampening.is_some() && momentum == 0.0 {
            return Err(
                Error::config("`dampening` needs a momentum above 0").help("give momentum, or remove dampening")
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_and_synonyms() {
        for value in OptimizerName::ALL {
            assert_eq!(value.as_str().parse::<OptimizerName>().unwrap(), *value);
        }
        for name in ["adamw", "adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_torch_npu_fused"] {
            assert_eq!(name.parse::<OptimizerName>().unwrap(), OptimizerName::AdamW);
        }
        for name in ["lion", "paged_lion_32bit"] {
            assert_eq!(name.parse::<OptimizerName>().unwrap(), OptimizerName::Lion);
        }
        let refused = |name: &str, part: &str| {
            let error = name.parse::<OptimizerName>().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        refused("rmsprop_bnb_8bit", "use `rmsprop`");
        refused("galore_adafactor", "Hugging Face's optimizer `galore_adafactor` is not supported");
        refused("paged_lion_8bit", "use `lion_32bit`");
        refused("adamw_trch", "did you mean `adamw_torch`?");
        refused("mun", "did you mean `muon`?");
    }

    #[test]
    fn arguments_fit_the_optimizer() {
        let check = |name: &str, args: &str| {
            let args: OptimArgs = toml::from_str(&args.replace(',', "\n")).unwrap();
            args.check(name.parse().unwrap()).map_err(|error| error.to_string())
        };
        check("sgd", "momentum=0.9, nesterov=true").unwrap();
        check("sgd", "momentum=0.9,dampening=0.5").unwrap();
        check("adafactor", "scale_parameter=true,decay_rate=-0.7,clip_threshold=2,beta1=0.9").unwrap();
        check("rmsprop", "alpha=0.9,eps=1e-6,momentum=0.5,centered=true").unwrap();
        check("adagrad", "lr_decay=0.01,eps=1e-8").unwrap();
        check("muon", "ns_steps=6,adjust_lr_fn='original',nesterov=false").unwrap();
        for (name, args, part) in [
            ("adamw_torch", "momentum=0.9", "has no argument `momentum`: it takes none"),
            ("sgd", "ns_steps=3", "it takes momentum, dampening, nesterov"),
            ("sgd", "momentum=1.0", "expected a number from 0 to below 1, got 1"),
            ("sgd", "nesterov=true", "needs a momentum above 0"),
            ("sgd", "nesterov=true,momentum=0.9,dampening=0.1", "no dampening"),
            ("sgd", "dampening=0.1", "`dampening` needs a momentum"),
            ("adafactor", "decay_rate=0.8", "expected a number below 0, got 0.8"),
            ("rmsprop", "alpha=1.0", "expected a number from 0 to below 1, got 1"),
            ("rmsprop", "lr_decay=0.1", "it takes alpha, eps, momentum, centered"),
            ("adagrad", "eps=-1.0", "expected a number of 0 or more, got -1"),
            ("muon", "ns_steps=0", "expected 1 to 99, got 0"),
        ] {
            let error = check(name, args).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
