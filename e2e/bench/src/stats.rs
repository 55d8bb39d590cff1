//! Percentiles and medians.

use std::time::Duration;

/// By nearest rank; zero of nothing.
pub fn percentile(samples: &mut [Duration], percent: f64) -> Duration {
    if samples.is_empty() {
        return Duration::ZERO;
    }
    samples.sort_unstable();
    let rank = (samples.len() as f64 * percent / 100.0).ceil() as usize;
    samples[rank.clamp(1, samples.len()) - 1]
}

/// Of the values that are there.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

pub fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks() {
        let mut hundred: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&mut hundred, 50.0), Duration::from_millis(50));
        assert_eq!(percentile(&mut hundred, 99.0), Duration::from_millis(99));
        assert_eq!(percentile(&mut [], 50.0), Duration::ZERO);
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0]), Some(2.5));
        assert_eq!(median([]), None);
    }
}
