//! The versions that this program was built of.

/// The version of Burn, as `Cargo.toml` pins it.
pub const BURN_VERSION: &str = "0.22.1";

/// The commit that this build was made of, as far as git knew when it was built: twelve digits,
/// `-modified` behind them where the sources differed from it, or `unknown`.
pub const COMMIT: &str = env!("KILN_COMMIT");

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn burns_version_is_the_pinned_one() {
        assert!(include_str!("../../../Cargo.toml").contains(&format!("burn = {{ version = \"={BURN_VERSION}\"")));
    }
}
