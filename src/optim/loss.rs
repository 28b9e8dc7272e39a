//! How the losses of micro-batches become the loss of an optimizer step.

use kiln_core::choices;

choices! {
    /// How the losses of the micro-batches of an optimizer step become its loss, in the tasks in
    /// which `transformers` takes the mean of each micro-batch.
    Accumulation("accumulation") {
        /// One sum over all micro-batches, divided once: how a step is cut makes no difference.
        Exact = "exact",
        /// The loss of the Trainer of `transformers` 5.24; see
        /// [`Reduction`](crate::task::Reduction). Its divisor of GPT-2's language model counts the
        /// first label of each row too, which nothing predicts.
        Transformers = "transformers",
    }
}
