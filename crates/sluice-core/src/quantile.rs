//! A quantile of a stream of durations that forgets: what "slow" means relative to a target's own past.
//!
//! A histogram whose buckets grow by a constant factor, so that every quantile has the same relative error
//! (DDSketch; Masson, Rim and Lee, VLDB 2019), and whose counts decay by half per half-life, done by weighing
//! new samples more (forward decay; Cormode et al., ICDE 2009). About one kilobyte, no allocation per sample.
//!
//! Only samples of the healthy state belong in it (the breaker closed and not ramping); otherwise an outage would
//! teach that slow is normal. The caller sees to that.

use std::time::Duration;

/// Each bucket is a tenth wider than the one before: an error of at most ±5 %.
const GROWTH: f64 = 1.1;
/// From 1 ms to about 30 minutes.
const BUCKETS: usize = 152;
/// Below so many samples (decayed) there is no answer.
const SAMPLES_MIN: f64 = 20.0;
/// Weights are brought back to size when they reach this.
const RESCALE: f64 = 1e100;

/// A decaying histogram. `now` is the time since any fixed moment.
#[derive(Debug, Clone)]
pub struct DecayingHistogram {
    half_life: Duration,
    /// Weights are relative to this moment.
    landmark: Duration,
    weights: Box<[f64; BUCKETS]>,
    total: f64,
}

impl DecayingHistogram {
    /// Ten minutes suit the agent: longer than a burst, shorter than a day's rhythm.
    pub const HALF_LIFE: Duration = Duration::from_mins(10);

    #[must_use]
    pub fn new(half_life: Duration) -> Self {
        Self {
            half_life: half_life.max(Duration::from_millis(1)),
            landmark: Duration::ZERO,
            weights: Box::new([0.0; BUCKETS]),
            total: 0.0,
        }
    }

    pub fn record(&mut self, now: Duration, value: Duration) {
        let mut weight = self.weight(now);
        if weight > RESCALE {
            for old in self.weights.iter_mut() {
                *old /= weight;
            }
            self.total /= weight;
            self.landmark = now;
            weight = 1.0;
        }
        self.weights[bucket(value)] += weight;
        self.total += weight;
    }

    /// The value below which `percent` of the decayed samples lie; `None` while there are too few.
    #[must_use]
    pub fn percentile(&self, now: Duration, percent: u32) -> Option<Duration> {
        if (self.total / self.weight(now)).round() < SAMPLES_MIN {
            return None;
        }
        let wanted = self.total * f64::from(percent.min(100)) / 100.0;
        let mut seen = 0.0;
        let found = self.weights.iter().position(|weight| {
            seen += weight;
            *weight > 0.0 && seen >= wanted * (1.0 - 1e-12)
        })?;
        Some(middle(found))
    }

    /// What a sample of now weighs. A clock that steps back behind the landmark weighs less, never below zero.
    fn weight(&self, now: Duration) -> f64 {
        let age = now.as_secs_f64() - self.landmark.as_secs_f64();
        (age / self.half_life.as_secs_f64()).exp2().min(f64::MAX / 1e9)
    }
}

fn bucket(value: Duration) -> usize {
    let ms = value.as_secs_f64() * 1_000.0;
    let index = if ms <= 1.0 { 0.0 } else { (ms.ln() / GROWTH.ln()).ceil() };
    (index as usize).min(BUCKETS - 1)
}

fn middle(bucket: usize) -> Duration {
    let upper = GROWTH.powi(i32::try_from(bucket).unwrap_or(i32::MAX));
    Duration::from_secs_f64(upper * 2.0 / (1.0 + GROWTH) / 1_000.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn too_few_samples_say_nothing() {
        let mut histogram = DecayingHistogram::new(secs(600));
        for _ in 0..19 {
            histogram.record(secs(0), ms(500));
        }
        assert_eq!(histogram.percentile(secs(0), 95), None);
        histogram.record(secs(0), ms(500));
        assert!(histogram.percentile(secs(0), 95).is_some());
        assert_eq!(histogram.percentile(secs(600), 95), None, "half of them are forgotten");
    }

    #[test]
    fn it_forgets() {
        let mut histogram = DecayingHistogram::new(secs(600));
        for i in 0..1_000 {
            histogram.record(ms(i), ms(4_000));
        }
        for i in 0..1_000 {
            histogram.record(secs(6_000 + i), ms(500));
        }
        let p95 = histogram.percentile(secs(7_000), 95).unwrap();
        assert!(p95 < ms(600), "{p95:?}");
    }

    #[test]
    fn years_do_not_overflow_it() {
        let mut histogram = DecayingHistogram::new(secs(1));
        for i in 0..10_000 {
            histogram.record(secs(i * 100_000), ms(500));
            for _ in 0..30 {
                histogram.record(secs(i * 100_000), ms(500));
            }
        }
        let now = secs(9_999 * 100_000);
        assert!(histogram.percentile(now, 95).is_some_and(|p95| p95 > ms(400) && p95 < ms(600)));
    }

    proptest! {
        #[test]
        fn it_is_within_five_percent(mut values in prop::collection::vec(2..600_000_u64, 20..400), percent in 1..100_u32) {
            let mut histogram = DecayingHistogram::new(secs(600));
            for value in &values {
                histogram.record(secs(5), ms(*value));
            }
            values.sort_unstable();
            let rank = (values.len() * percent as usize).div_ceil(100).max(1);
            let exact = values[rank - 1] as f64;
            let got = histogram.percentile(secs(5), percent).unwrap().as_secs_f64() * 1_000.0;
            prop_assert!((got / exact - 1.0).abs() < 0.051, "{got} for {exact}");
        }
    }
}
