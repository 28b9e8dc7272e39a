//! From gradients to new weights: the learning rate of a step, what is done to gradients, and the update itself.

pub mod adamw;
pub mod gradient;
pub mod schedule;
