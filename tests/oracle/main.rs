//! Kiln against numbers of `transformers` and of its Trainer, which `fixtures/oracle` holds. With
//! `KILN_TEST_DEVICE=wgpu` the same numbers are asked of that device.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod forward;
mod generated;
mod lora;
mod trainer;
