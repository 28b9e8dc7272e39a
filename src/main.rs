//! k
fn main() {}
