//! Whether to ask again, and when.
//!
//! One layer retries: this one. Four brakes keep retries from adding to an outage; an exchange retries only
//! when every one that its policy switches on lets it:
//! - [`backoff`]: exponential with full jitter (M. Brooker, "Exponential Backoff And Jitter", AWS 2015):
//!   uniform in [0, min(max, base·2ⁿ)), which spreads a herd best for the least total work;
//! - [`Budget`]: retries at most a share of first attempts over a sliding window (Finagle's and Linkerd's
//!   retry budget), and never less than a minimum, so that a quiet agent can retry at all;
//! - [`RetryThrottle`]: gRPC's retry throttling (gRFC A6): a failure takes a token, a success gives a
//!   fraction back, retries stop at half;
//! - [`AdaptiveThrottle`]: client-side throttling of *new* requests (Google, "Site Reliability Engineering",
//!   ch. 21): refuse with probability max(0, (requests − K·accepts) / (requests + 1)).
//!
//! `now` is the time since any fixed moment; a clock that stands still or steps back grants nothing.

use std::time::Duration;

use crate::admission::Draw;
use crate::policy::Throttling;

/// How long to wait before the next attempt: full jitter below an exponentially growing ceiling, but never less
/// than what the provider asked for. `retries` counts those made before; 0 before the first.
#[must_use]
pub fn backoff(
    base: Duration,
    max: Duration,
    retries: u32,
    pushback: Option<Duration>,
    draw: Draw,
) -> Duration {
    let ceiling = base.saturating_mul(1_u32.checked_shl(retries.min(31)).unwrap_or(u32::MAX)).min(max);
    let jittered = ceiling.mul_f64(fraction(draw));
    // Jitter on top of the provider's time, so that those who were told the same do not come together.
    pushback.map_or(jittered, |pushback| pushback.saturating_add(jittered.min(base)))
}

fn fraction(draw: Draw) -> f64 {
    f64::from(draw.get()) / f64::from(Draw::BOUND)
}

/// Counts over a sliding window of equal slices.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Window<const N: usize> {
    slice: Duration,
    /// Number of the newest slice since the fixed moment.
    newest: u64,
    counts: [[u64; 2]; N],
}

impl<const N: usize> Window<N> {
    fn new(span: Duration) -> Self {
        let slices = u32::try_from(N).unwrap_or(1).max(1);
        Self { slice: (span / slices).max(Duration::from_millis(1)), newest: 0, counts: [[0; 2]; N] }
    }

    /// Moves on to `now` and returns the newest slice's counts.
    fn advance(&mut self, now: Duration) -> &mut [u64; 2] {
        let slice = u64::try_from(now.as_nanos() / self.slice.as_nanos().max(1)).unwrap_or(u64::MAX);
        let steps = slice.saturating_sub(self.newest);
        for step in 1..=steps.min(N as u64) {
            let index = (self.newest.saturating_add(step) % N as u64) as usize;
            self.counts[index] = [0; 2];
        }
        // Slices that were jumped over are those of a whole turn: all are cleared above.
        self.newest = self.newest.max(slice);
        let index = (self.newest % N as u64) as usize;
        &mut self.counts[index]
    }

    /// Since the beginning of the oldest slice that has counted anything; zero when none has.
    fn counted_for(&self, now: Duration) -> Duration {
        let oldest = self.newest.saturating_sub(N as u64 - 1);
        let counted = |slice: &u64| self.counts[(slice % N as u64) as usize] != [0; 2];
        let Some(slice) = (oldest..=self.newest).find(counted) else { return Duration::ZERO };
        let began = self.slice.saturating_mul(u32::try_from(slice).unwrap_or(u32::MAX));
        now.saturating_sub(began)
    }

    fn sums(&self) -> [u64; 2] {
        self.counts.iter().fold([0; 2], |sum, [a, b]| [sum[0] + a, sum[1] + b])
    }
}

/// The retry budget of one agent and one target.
#[derive(Debug, Clone)]
pub struct Budget {
    percent: u32,
    minimum: u64,
    /// First attempts and retries.
    window: Window<10>,
}

impl Budget {
    /// Defaults of `percent`, `minimum` and `span`: [`crate::defaults::retries`].
    #[must_use]
    pub fn new(percent: u32, minimum: u32, span: Duration) -> Self {
        Self { percent, minimum: u64::from(minimum), window: Window::new(span) }
    }

    pub fn on_first_attempt(&mut self, now: Duration) {
        self.window.advance(now)[0] += 1;
    }

    /// Takes one retry from the budget; `false`: there is none to take.
    pub fn try_retry(&mut self, now: Duration) -> bool {
        self.window.advance(now);
        let [first, retries] = self.window.sums();
        let allowed = (first * u64::from(self.percent) / 100).max(self.minimum);
        if retries >= allowed {
            return false;
        }
        self.window.advance(now)[1] += 1;
        true
    }

    /// Retries per first attempt in the window, for the metric.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        let [first, retries] = self.window.sums();
        if first == 0 { 0.0 } else { retries as f64 / first as f64 }
    }

    /// Takes over another percentage; what was counted stays.
    pub fn set_percent(&mut self, percent: u32) {
        self.percent = percent;
    }
}

/// gRPC's retry throttling; in hundredths of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryThrottle {
    rules: Throttling,
    hundredths: u64,
}

impl RetryThrottle {
    #[must_use]
    pub fn new(rules: Throttling) -> Self {
        Self { rules, hundredths: Self::full(rules) }
    }

    fn full(rules: Throttling) -> u64 {
        u64::from(rules.max_tokens) * 100
    }

    pub fn on_success(&mut self) {
        let more = self.hundredths.saturating_add(u64::from(self.rules.token_ratio_percent));
        self.hundredths = more.min(Self::full(self.rules));
    }

    /// A failure that may be retried, whether it is or not.
    pub fn on_failure(&mut self) {
        self.hundredths = self.hundredths.saturating_sub(100);
    }

    /// Retries are allowed above half.
    #[must_use]
    pub fn allows(&self) -> bool {
        self.hundredths > Self::full(self.rules) / 2
    }
}

/// Adaptive throttling of new requests.
#[derive(Debug, Clone)]
pub struct AdaptiveThrottle {
    /// K in percent.
    k_percent: u32,
    /// Requests and accepts; the book's two minutes.
    window: Window<12>,
}

impl AdaptiveThrottle {
    pub const WINDOW: Duration = Duration::from_mins(2);

    /// `k_percent`: 200 lets twice as many requests out as are accepted; lower is stricter, below 100 never.
    #[must_use]
    pub fn new(k_percent: u32) -> Self {
        Self { k_percent: k_percent.max(100), window: Window::new(Self::WINDOW) }
    }

    /// Decides on a new request and counts it, refused or not: refusals are requests too, or the probability
    /// would swing.
    pub fn admits(&mut self, now: Duration, draw: Draw) -> bool {
        let probability = self.refusal_probability(now);
        self.window.advance(now)[0] += 1;
        fraction(draw) >= probability
    }

    /// The provider answered; a 429 or an error of its own is no acceptance.
    pub fn on_accept(&mut self, now: Duration) {
        self.window.advance(now)[1] += 1;
    }

    /// When another request can be expected to be let through: the formula lets `1 + K·accepts` of those that are
    /// counted through, so one in every such part of the time they came in. At most the window.
    pub fn expected_wait(&mut self, now: Duration) -> Duration {
        self.window.advance(now);
        let [_, accepts] = self.window.sums();
        let let_through = 1 + accepts.saturating_mul(u64::from(self.k_percent)) / 100;
        let let_through = u32::try_from(let_through).unwrap_or(u32::MAX);
        (self.window.counted_for(now) / let_through).min(Self::WINDOW)
    }

    #[must_use]
    pub fn refusal_probability(&mut self, now: Duration) -> f64 {
        self.window.advance(now);
        let [requests, accepts] = self.window.sums();
        let k = f64::from(self.k_percent) / 100.0;
        ((requests as f64 - k * accepts as f64) / (requests as f64 + 1.0)).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn backoff_grows_to_its_ceiling() {
        let top = Draw::new(Draw::BOUND - 1);
        for (retries, ceiling) in [(0, 250), (1, 500), (2, 1_000), (5, 8_000), (9, 8_000), (200, 8_000)] {
            let wait = backoff(ms(250), ms(8_000), retries, None, top);
            assert!(wait <= ms(ceiling) && wait > ms(ceiling - 1), "{retries}: {wait:?}");
        }
        assert_eq!(backoff(ms(250), ms(8_000), 3, None, Draw::new(0)), Duration::ZERO);
    }

    #[test]
    fn the_providers_time_is_a_floor() {
        for draw in [0, Draw::BOUND / 2, Draw::BOUND - 1] {
            let wait = backoff(ms(250), ms(8_000), 5, Some(ms(3_000)), Draw::new(draw));
            assert!((ms(3_000)..=ms(3_250)).contains(&wait), "{wait:?}");
        }
    }

    #[test]
    fn a_quiet_agent_may_retry_once_per_window() {
        let mut budget = Budget::new(10, 1, ms(10_000));
        budget.on_first_attempt(ms(0));
        assert!(budget.try_retry(ms(1)));
        assert!(!budget.try_retry(ms(2)));
        assert!(!budget.try_retry(ms(9_999)));
        assert!(budget.try_retry(ms(10_000)));
        assert!(budget.try_retry(ms(100_000_000)));
    }

    #[test]
    fn ten_percent_at_500_a_second() {
        let mut budget = Budget::new(10, 1, ms(10_000));
        let mut retries = 0;
        for i in 0..30_000_u64 {
            let now = ms(i * 2);
            budget.on_first_attempt(now);
            retries += u64::from(budget.try_retry(now));
            retries += u64::from(budget.try_retry(now));
        }
        assert!((2_900..=3_001).contains(&retries), "{retries}");
        assert!(budget.ratio() <= 0.1);
    }

    #[test]
    fn zero_percent_leaves_the_minimum_and_zero_minimum_nothing() {
        let mut budget = Budget::new(0, 0, ms(10_000));
        budget.on_first_attempt(ms(0));
        assert!(!budget.try_retry(ms(0)));
    }

    #[test]
    fn grpc_throttling_stops_at_half() {
        let mut throttle = RetryThrottle::new(Throttling { max_tokens: 10, token_ratio_percent: 10 });
        for _ in 0..4 {
            throttle.on_failure();
            assert!(throttle.allows());
        }
        throttle.on_failure();
        assert!(!throttle.allows(), "5 of 10 is half");
        throttle.on_success();
        assert!(throttle.allows());
        for _ in 0..1_000 {
            throttle.on_success();
        }
        for _ in 0..100 {
            throttle.on_failure();
        }
        assert!(!throttle.allows());
    }

    #[test]
    fn adaptive_throttling_follows_the_formula() {
        let mut throttle = AdaptiveThrottle::new(200);
        for _ in 0..100 {
            assert!(throttle.admits(ms(0), Draw::new(0)) || throttle.refusal_probability(ms(0)) > 0.0);
        }
        let p = throttle.refusal_probability(ms(0));
        assert!((p - 100.0 / 101.0).abs() < 1e-9, "{p}");
        for _ in 0..50 {
            throttle.on_accept(ms(0));
        }
        assert!(throttle.refusal_probability(ms(0)).abs() < 1e-9, "half are accepted and K is 2");
        assert!(throttle.refusal_probability(ms(500_000)).abs() < 1e-9, "forgotten after two minutes");
    }

    #[test]
    fn a_throttled_request_is_told_when_one_goes_through() {
        let mut throttle = AdaptiveThrottle::new(200);
        assert_eq!(throttle.expected_wait(ms(20_000)), Duration::ZERO, "nothing is refused");
        for _ in 0..100 {
            throttle.admits(ms(20_000), Draw::new(0));
        }
        assert_eq!(throttle.expected_wait(ms(24_000)), ms(4_000), "nothing is accepted: one in all the time");
        for _ in 0..2 {
            throttle.on_accept(ms(24_000));
        }
        assert_eq!(
            throttle.expected_wait(ms(25_000)),
            ms(1_000),
            "two accepts let five through in five seconds"
        );
        assert!(throttle.expected_wait(ms(130_000)) <= AdaptiveThrottle::WINDOW);
        assert_eq!(throttle.expected_wait(ms(900_000)), Duration::ZERO, "all is forgotten");
    }

    proptest! {
        #[test]
        fn the_budget_holds_in_every_window(steps in prop::collection::vec((0..400_u64, 0..3_usize), 1..400)) {
            let span = 10_000;
            let mut budget = Budget::new(10, 1, ms(span));
            let (mut now, mut firsts, mut retries) = (0, Vec::new(), Vec::new());
            for (step, wanted) in steps {
                now += step;
                budget.on_first_attempt(ms(now));
                firsts.push(now);
                // A slice is a tenth: the window that is counted is between 9 and 10 slices long.
                let recent = |all: &[u64], span: u64| all.iter().filter(|at| now - **at < span).count();
                for _ in 0..wanted {
                    if budget.try_retry(ms(now)) {
                        retries.push(now);
                        let bound = (recent(&firsts, span) / 10).max(1);
                        prop_assert!(recent(&retries, span - span / 10) <= bound);
                    }
                }
            }
        }

        #[test]
        fn a_clock_that_steps_back_is_survived(nows in prop::collection::vec(0..u64::MAX / 2, 1..50)) {
            let mut budget = Budget::new(10, 1, ms(10_000));
            let mut throttle = AdaptiveThrottle::new(200);
            for now in nows {
                budget.on_first_attempt(ms(now));
                budget.try_retry(ms(now));
                let p = throttle.refusal_probability(ms(now));
                prop_assert!((0.0..=1.0).contains(&p));
            }
        }
    }
}
