//! The arguments that the run of a program cannot have: each is about a feature of Kiln's own
//! tasks that the task of a program may lack.

use kiln_core::complaint::{Checked, Complaint};
use kiln_core::dataset::PaddingStrategy;

use super::{Samples, TrainBatchSize, TrainingArguments};

/// A feature that a run may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Feature {
    /// The data, the stages and the search for a batch size of `kiln train`.
    Command,
    /// Batches that are padded as the plan says.
    Padding,
    /// Texts that the model writes.
    Samples,
    /// A loss and a token embedding that Kiln knows.
    Loss,
}

/// A mistake, and the advice against it.
type Reason = (&'static str, &'static str);

const NO_EFFECT: Reason = ("has no effect on a run whose model, data and loss the program brings along", "remove it");
const OWN_LOSS: Reason = ("this model computes its own loss", "remove it, or make it part of that loss");
const UNKNOWN_MODEL: Reason = ("\"auto\" is for models that Kiln knows", "set a number");
const UNKNOWN_EMBEDDING: Reason =
    ("Kiln does not know the token embedding of this model", "remove it, or let the model add noise of its own");

/// A key, its feature, whether it is given, and why it is refused without the feature.
type Refusal = (&'static str, Feature, fn(&TrainingArguments) -> bool, Reason);

const REFUSALS: [Refusal; 10] = [
    ("trainer.do_predict", Feature::Command, |it| it.do_predict, NO_EFFECT),
    ("trainer.do_train", Feature::Command, |it| !it.do_train, NO_EFFECT),
    ("data.test", Feature::Command, |it| it.test.is_some(), NO_EFFECT),
    ("data.padding", Feature::Padding, |it| it.padding != PaddingStrategy::Longest, NO_EFFECT),
    ("data.pad_to_multiple_of", Feature::Padding, |it| it.pad_to_multiple_of.is_some(), NO_EFFECT),
    ("generation", Feature::Samples, |it| it.samples != Samples::Never, NO_EFFECT),
    (
        "trainer.per_device_train_batch_size",
        Feature::Command,
        |it| it.per_device_train_batch_size == TrainBatchSize::Auto,
        UNKNOWN_MODEL,
    ),
    ("trainer.neftune_noise_alpha", Feature::Loss, |it| it.neftune_noise_alpha.is_some(), UNKNOWN_EMBEDDING),
    ("trainer.label_smoothing_factor", Feature::Loss, |it| it.label_smoothing_factor > 0.0, OWN_LOSS),
    ("trainer.class_weights", Feature::Loss, |it| it.class_weights.is_some(), OWN_LOSS),
];

impl TrainingArguments {
    /// Refuses arguments about features that the run `lacks`.
    ///
    /// # Errors
    /// The first of them, with its key.
    pub(crate) fn check_without(&self, lacks: impl Fn(Feature) -> bool) -> Checked {
        match REFUSALS.iter().find(|(_, feature, is_given, _)| lacks(*feature) && is_given(self)) {
            Some((key, _, _, (message, help))) => Err(Complaint::new(key, *message).help(*help)),
            None => Ok(()),
        }
    }
}
