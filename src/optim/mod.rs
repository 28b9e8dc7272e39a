//! The optimizer's side of a step: the learning rate of every step.

pub mod schedule;
