//! Models and their layers: configs, values and gradients, narrow types, rows that are left out,
//! weights in and out. A test that draws random numbers twice and compares them stands in
//! `forward.rs`, a process of its own: the generator is the process's.
#![allow(clippy::unwrap_used)]

mod config;
mod layers;
mod precision;
mod rows;
mod weights;
