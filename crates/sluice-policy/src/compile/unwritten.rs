//! Values that a policy leaves unwritten and that another value bears on.
//!
//! A policy is refused for contradictions between what it says, never for one with what it does not say: an
//! unwritten value is its default or, where that contradicts a written one, the nearest value that fits. So these
//! defaults are not in the schema; an API server would store them beside the written values, and they would
//! contradict a later edit.

use std::cmp::Reverse;
use std::time::Duration;

use sluice_api::policy as api;
use sluice_api::route::Lane;
use sluice_core::defaults;
use sluice_core::units::millis;

/// The default, or the least of the written values where that is less.
pub(super) fn at_most<T: Ord>(default: T, written: impl IntoIterator<Item = Option<T>>) -> T {
    written.into_iter().flatten().fold(default, T::min)
}

/// The default, or the greatest of the written values where that is more.
pub(super) fn at_least<T: Ord>(default: T, written: impl IntoIterator<Item = Option<T>>) -> T {
    written.into_iter().flatten().fold(default, T::max)
}

/// Where a limiter begins and what it stays between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LimitRange {
    pub(super) initial: u32,
    pub(super) min: u32,
    pub(super) max: u32,
}

impl LimitRange {
    pub(super) fn of(initial: Option<u32>, min: Option<u32>, max: Option<u32>) -> Self {
        use defaults::concurrency as d;
        Self {
            initial: initial.unwrap_or_else(|| at_least(at_most(d::INITIAL, [max]), [min])),
            min: min.unwrap_or_else(|| at_most(d::MIN, [initial, max])),
            max: max.unwrap_or_else(|| at_least(d::MAX, [initial, min])),
        }
    }
}

/// Span and buckets of a window in time: the buckets divide the span into whole milliseconds.
pub(super) fn time_window(window: &api::TimeWindow) -> (Duration, u32) {
    use defaults::breaker as d;
    let span = window.span.map(|span| span.0);
    let buckets = window.buckets.unwrap_or_else(|| span.map_or(d::WINDOW_BUCKETS, buckets_of));
    (span.unwrap_or_else(|| span_of(buckets)), buckets)
}

/// The number nearest to the default that divides a span into buckets of 10 ms at least; of two, the larger.
fn buckets_of(span: Duration) -> u32 {
    let span = millis(span);
    let fits = |buckets: &u32| span.is_multiple_of((*buckets).into()) && span >= u64::from(*buckets) * 10;
    let distance = |buckets: &u32| (buckets.abs_diff(defaults::breaker::WINDOW_BUCKETS), Reverse(*buckets));
    (1..=16).filter(fits).min_by_key(distance).unwrap_or(1)
}

/// The span nearest to the default that the buckets divide; of two, the shorter.
fn span_of(buckets: u32) -> Duration {
    let default = millis(defaults::breaker::WINDOW);
    // Zero buckets are refused when the rules are decoded.
    let buckets = u64::from(buckets.max(1));
    let (below, rest) = (default - default % buckets, default % buckets);
    Duration::from_millis(if rest * 2 > buckets { below + buckets } else { below })
}

/// A lane's share in percent: as written or built in; where the written shares leave less than the built-in ones of
/// the other lanes, these divide what is left in their proportions, rounded down.
pub(super) fn lane_share(queue: &api::Queue, lane: Lane) -> u32 {
    let written = |lane: Lane| queue.lanes.iter().find(|queue| queue.name == lane)?.share_percent;
    let built_in = api::built_in_share(lane);
    written(lane).unwrap_or_else(|| {
        let left = 100_u32.saturating_sub(Lane::ALL.iter().filter_map(|lane| written(*lane)).sum());
        let unwritten = Lane::ALL.iter().filter(|lane| written(**lane).is_none());
        let wanted: u32 = unwritten.map(|lane| api::built_in_share(*lane)).sum();
        if wanted <= left { built_in } else { built_in * left / wanted }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limiter_begins_between_its_bounds() {
        for (written, range) in [
            ((None, None, None), (32, 4, 512)),
            ((None, None, Some(8)), (8, 4, 8)),
            ((None, None, Some(2)), (2, 2, 2)),
            ((None, Some(50), None), (50, 50, 512)),
            ((None, Some(1_000), None), (1_000, 1_000, 1_000)),
            ((Some(2), None, None), (2, 2, 512)),
            ((Some(1_000), None, None), (1_000, 4, 1_000)),
            ((None, Some(1), Some(3)), (3, 1, 3)),
        ] {
            let LimitRange { initial, min, max } = LimitRange::of(written.0, written.1, written.2);
            assert_eq!((initial, min, max), range, "{written:?}");
        }
    }

    #[test]
    fn buckets_divide_the_span() {
        let window = |span: Option<u64>, buckets| {
            let span = span.map(|span| Duration::from_millis(span).into());
            let (span, buckets) = time_window(&api::TimeWindow { span, buckets });
            (millis(span), buckets)
        };
        assert_eq!(window(None, None), (60_000, 10));
        assert_eq!(window(Some(100), None), (100, 10));
        assert_eq!(window(Some(101), None), (101, 1), "a prime");
        assert_eq!(window(Some(30_003), None), (30_003, 3));
        assert_eq!(window(Some(9_999), None), (9_999, 11), "9 is as near and coarser");
        assert_eq!(window(None, Some(7)), (59_997, 7));
        assert_eq!(window(None, Some(11)), (60_005, 11));
        assert_eq!(window(None, Some(13)), (59_995, 13));
    }

    #[test]
    fn lanes_divide_what_is_left() {
        use Lane::{Agent, Background, Interactive};
        let shares = |written: &[(Lane, u32)]| {
            let lanes = written
                .iter()
                .map(|(lane, share)| api::LaneQueue {
                    share_percent: Some(*share),
                    ..api::LaneQueue::built_in(*lane)
                })
                .collect();
            let queue = api::Queue { lanes };
            [Interactive, Agent, Background].map(|lane| lane_share(&queue, lane))
        };
        assert_eq!(shares(&[]), [60, 30, 10]);
        assert_eq!(shares(&[(Interactive, 50)]), [50, 30, 10]);
        assert_eq!(shares(&[(Interactive, 80)]), [80, 15, 5]);
        assert_eq!(shares(&[(Interactive, 99)]), [99, 0, 0]);
        assert_eq!(shares(&[(Background, 100)]), [0, 0, 100]);
        assert_eq!(shares(&[(Agent, 45), (Background, 45)]), [10, 45, 45]);
    }
}
