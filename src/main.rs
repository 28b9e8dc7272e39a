//! k
fn main(){}
