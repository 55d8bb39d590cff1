//! When calls are due, and what they ask.
//!
//! Gaps are exponential, as those of many users who don't know of each other: now and then several calls come at
//! once, which is what queues and limits are for. They are cut at four times the mean, so that a quiet spell
//! is not taken for an incident.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Gaps beyond this many means are cut.
const LONGEST_GAP: f64 = 4.0;

const PROMPTS: [&str; 4] = [
    "Where is my order? It should have come on Monday.",
    "Summarise the last three messages of this ticket in two sentences, for a colleague who takes over.",
    "Write a friendly answer that says we are looking into it.",
    "Which of our plans fits a team of twelve that needs single sign-on and an audit log, and what does it cost per year?",
];

/// An endless sequence of calls; the same for the same seed.
#[derive(Debug)]
pub struct Schedule {
    random: SmallRng,
    mean_gap: f64,
    plain_percent: u32,
}

/// A call, and how long after the one before it is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Next {
    pub gap: Duration,
    pub ask: Ask,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    pub stream: bool,
    pub prompt: &'static str,
    pub max_tokens: u32,
}

impl Schedule {
    /// `per_second` is taken as at least one call in ten seconds.
    #[must_use]
    pub fn new(seed: u64, per_second: f64, plain_percent: u32) -> Self {
        Self { random: SmallRng::seed_from_u64(seed), mean_gap: 1.0 / per_second.max(0.1), plain_percent }
    }

    pub fn next_call(&mut self) -> Next {
        // 1 - x is in (0, 1]: its logarithm is finite.
        let exponential = -(1.0 - self.random.random::<f64>()).ln();
        let ask = Ask {
            stream: self.random.random_range(0..100) >= self.plain_percent,
            prompt: PROMPTS[self.random.random_range(0..PROMPTS.len())],
            max_tokens: [64, 128, 256, 512][self.random.random_range(0..4)],
        };
        Next { gap: Duration::from_secs_f64(exponential.min(LONGEST_GAP) * self.mean_gap), ask }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(seed: u64, count: usize) -> Vec<Next> {
        let mut schedule = Schedule::new(seed, 12.0, 15);
        (0..count).map(|_| schedule.next_call()).collect()
    }

    #[test]
    fn the_seed_decides_all() {
        assert_eq!(calls(7, 50), calls(7, 50));
        assert_ne!(calls(7, 50), calls(8, 50));
    }

    #[test]
    fn rate_and_share_are_what_was_asked_for() {
        let calls = calls(1, 20_000);
        let seconds: f64 = calls.iter().map(|call| call.gap.as_secs_f64()).sum();
        // Cutting at four means takes 1.8 % off the mean: e^-4.
        let rate = calls.len() as f64 / seconds;
        assert!((11.8..12.8).contains(&rate), "{rate}");
        let plain = calls.iter().filter(|call| !call.ask.stream).count();
        assert!((2_800..3_200).contains(&plain), "{plain}");
        assert!(calls.iter().all(|call| call.gap.as_secs_f64() <= LONGEST_GAP / 12.0 + 1e-6));
    }
}
