//! Means and quantiles of measurements.

/// The middle value; the mean of the two middle ones where there are two. NaN of nothing.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The `q` quantile with linear interpolation (NumPy's default). NaN of nothing.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else { return f64::NAN };
    let at = q * last as f64;
    let (low, high) = (values[at.floor() as usize], values[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

/// The arithmetic mean; NaN of nothing.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quantiles_are_numpys() {
        let values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.0];
        assert_eq!(median(&values), 2.5);
        assert!((quantile(&values, 0.95) - 7.75).abs() < 1e-12);
        assert_eq!(quantile(&[7.0], 0.95), 7.0);
        assert!(median(&[]).is_nan());
    }
}
