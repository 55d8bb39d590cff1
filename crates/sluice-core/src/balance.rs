//! The order in which targets are asked, and which are passed over.
//!
//! Lower priority first; within one priority a random order in which a target comes first with probability in
//! proportion to `weight / (in flight + 1)`: weights share the load, and load shifts it away from a target that
//! is slow to answer (Envoy's weighted least-request has the same form). The random order is Efraimidis and
//! Spirakis' weighted sample without replacement (2006): sort by −ln(u)/w. Weight 0 comes behind all others of its
//! priority.
//!
//! What is known to refuse (open, paused, full) is passed over here without being asked; what only the shared
//! state knows shows when it is asked, and then the next in the order comes.

use crate::admission::Draw;

/// A target as far as choosing goes.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    pub name: &'a str,
    pub priority: u32,
    pub weight: u32,
    pub in_flight: u32,
    /// Why it can't be asked now; `None`: it can.
    pub closed: Option<PassedOver>,
}

/// Why a target is not asked, or was asked in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PassedOver {
    /// Its breaker is open.
    Open,
    /// Half-open, and all probes are out.
    ProbesBusy,
    /// It closed lately and lets only part of the load in.
    Ramping,
    /// The provider asked everyone to wait.
    Paused,
    TokensExhausted,
    RequestsExhausted,
    /// Its concurrency limit is full beyond the deadline.
    LimiterFull,
    /// The request is larger than its quota can ever hold.
    NeverFits,
    /// Its credential is missing.
    NoCredential,
    /// It failed in this exchange.
    Tried,
    /// Adaptive throttling refused the request.
    Throttled,
    /// The shared state is away and the policy fails closed.
    StoreUnavailable,
    /// The caller named another.
    NotNamed,
}

impl PassedOver {
    /// The word in metrics, logs and errors.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::ProbesBusy => "probes-busy",
            Self::Ramping => "ramping",
            Self::Paused => "paused",
            Self::TokensExhausted => "tokens-exhausted",
            Self::RequestsExhausted => "requests-exhausted",
            Self::LimiterFull => "limiter-full",
            Self::NeverFits => "never-fits",
            Self::NoCredential => "no-credential",
            Self::Tried => "tried",
            Self::Throttled => "throttled",
            Self::StoreUnavailable => "store-unavailable",
            Self::NotNamed => "not-named",
        }
    }
}

/// Indices into the candidates.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Order {
    /// To be asked, in this order.
    pub ask: Vec<usize>,
    pub passed_over: Vec<(usize, PassedOver)>,
}

/// Orders the targets of a route. `named`: the one that `x-sluice-target` names, where the route allows it; nobody else
/// is asked then, and an unknown name asks nobody.
#[must_use]
pub fn order(candidates: &[Candidate<'_>], named: Option<&str>, draw: Draw) -> Order {
    let mut order = Order::default();
    let mut keyed: Vec<(u32, bool, f64, usize)> = Vec::with_capacity(candidates.len());
    for (index, candidate) in candidates.iter().enumerate() {
        let not_named = named.is_some_and(|name| name != candidate.name).then_some(PassedOver::NotNamed);
        if let Some(why) = not_named.or(candidate.closed) {
            order.passed_over.push((index, why));
            continue;
        }
        let load = f64::from(candidate.in_flight) + 1.0;
        let last_resort = candidate.weight == 0;
        let weight = if last_resort { 1.0 } else { f64::from(candidate.weight) } / load;
        let key = -uniform(draw, index).ln() / weight;
        keyed.push((candidate.priority, last_resort, key, index));
    }
    keyed.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)).then(a.2.total_cmp(&b.2)).then(a.3.cmp(&b.3)));
    order.ask = keyed.into_iter().map(|(.., index)| index).collect();
    order
}

/// One draw makes a number in (0, 1) for each candidate: SplitMix64's finalizer over both.
fn uniform(draw: Draw, index: usize) -> f64 {
    let mut z = (u64::from(draw.get()) << 32 | index as u64).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    ((z >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn target(name: &str, priority: u32, weight: u32, in_flight: u32) -> Candidate<'_> {
        Candidate { name, priority, weight, in_flight, closed: None }
    }

    /// How often each candidate comes first over many draws, in percent.
    fn shares(candidates: &[Candidate<'_>]) -> Vec<u32> {
        let mut first = vec![0_u32; candidates.len()];
        let draws = 20_000;
        for i in 0..draws {
            first[order(candidates, None, Draw::new(i * 104_729)).ask[0]] += 1;
        }
        first.into_iter().map(|count| (count * 100 + draws / 2) / draws).collect()
    }

    fn near(got: &[u32], want: &[u32]) {
        assert!(got.iter().zip(want).all(|(g, w)| g.abs_diff(*w) <= 2), "{got:?} is not near {want:?}");
    }

    #[test]
    fn priority_rules() {
        let targets = [target("b", 1, 100, 0), target("a", 0, 1, 500)];
        for draw in 0..100 {
            assert_eq!(order(&targets, None, Draw::new(draw)).ask, [1, 0]);
        }
    }

    #[test]
    fn weights_share_the_load() {
        near(&shares(&[target("a", 0, 3, 0), target("b", 0, 1, 0)]), &[75, 25]);
        near(&shares(&[target("a", 0, 1, 0), target("b", 0, 1, 0), target("c", 0, 2, 0)]), &[25, 25, 50]);
    }

    #[test]
    fn load_shifts_it() {
        near(&shares(&[target("a", 0, 1, 9), target("b", 0, 1, 0)]), &[9, 91]);
    }

    #[test]
    fn weight_zero_is_the_last_resort() {
        let targets = [target("z", 0, 0, 0), target("a", 0, 1, 1_000), target("next", 1, 1, 0)];
        for draw in 0..100 {
            assert_eq!(order(&targets, None, Draw::new(draw)).ask, [1, 0, 2]);
        }
    }

    #[test]
    fn closed_targets_are_passed_over_with_their_reason() {
        let targets =
            [Candidate { closed: Some(PassedOver::Open), ..target("a", 0, 1, 0) }, target("b", 1, 1, 0)];
        let got = order(&targets, None, Draw::new(1));
        assert_eq!((got.ask, got.passed_over), (vec![1], vec![(0, PassedOver::Open)]));
    }

    #[test]
    fn a_named_target_is_the_only_one() {
        let targets = [target("a", 0, 1, 0), target("b", 1, 1, 0)];
        assert_eq!(order(&targets, Some("b"), Draw::new(1)).ask, [1]);
        assert_eq!(order(&targets, Some("x"), Draw::new(1)).ask, [] as [usize; 0]);
    }

    proptest! {
        #[test]
        fn everyone_is_asked_or_passed_over_once(
            specs in prop::collection::vec((0..3_u32, 0..5_u32, 0..50_u32, any::<bool>()), 0..12), draw in any::<u32>()
        ) {
            let candidates: Vec<_> = specs.iter().map(|&(priority, weight, in_flight, open)| Candidate {
                closed: open.then_some(PassedOver::Open), ..target("t", priority, weight, in_flight)
            }).collect();
            let got = order(&candidates, None, Draw::new(draw));
            let mut all: Vec<usize> = got.ask.iter().copied().chain(got.passed_over.iter().map(|(i, _)| *i)).collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..candidates.len()).collect::<Vec<_>>());
            prop_assert!(got.ask.windows(2).all(|w| candidates[w[0]].priority <= candidates[w[1]].priority));
        }
    }
}
