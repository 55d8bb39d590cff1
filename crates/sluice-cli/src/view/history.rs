//! What a target did, second by second, for the graphs.
//!
//! All graphs of a screen share one time axis, so that cause and effect stand one above the other. A column
//! holds a whole number of seconds and begins at a multiple of it: a column that is complete never changes
//! again, and the picture moves instead of shimmering.

use std::collections::VecDeque;
use std::time::Duration;

use super::fleet::{Status, Target};

/// Ten minutes: as far back as the widest screen shows.
const SECONDS_KEPT: usize = 600;

/// One second, or the seconds of one column together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Column {
    /// Attempts admitted.
    pub admitted: u64,
    /// `None`: no attempt in this time.
    pub ttft_p50_ms: Option<u64>,
    pub ttft_p95_ms: Option<u64>,
    /// The worst in this time.
    pub status: Status,
}

#[derive(Debug, Clone, Default)]
pub struct History {
    seconds: VecDeque<Column>,
    /// The second of the last one, since the start.
    newest: u64,
    attempts: u64,
}

impl History {
    /// Takes in how the target stands at a time. Times never go back.
    pub fn record(&mut self, at: Duration, target: &Target) {
        let second = at.as_secs();
        if self.seconds.is_empty() {
            self.seconds.push_back(Column { status: target.status, ..Column::default() });
            self.newest = second;
            self.attempts = target.attempts;
        }
        while self.newest < second {
            // A second without a sample was like the one before it, as far as anyone knows.
            let status = self.seconds.back().map_or(target.status, |last| last.status);
            self.newest += 1;
            let status = if self.newest == second { target.status } else { status };
            self.seconds.push_back(Column { status, ..Column::default() });
            if self.seconds.len() > SECONDS_KEPT {
                self.seconds.pop_front();
            }
        }
        // A restarted agent counts from zero again.
        let admitted = target.attempts.saturating_sub(self.attempts);
        self.attempts = target.attempts;
        if let Some(now) = self.seconds.back_mut() {
            now.admitted += admitted;
            now.status = now.status.max(target.status);
            if now.admitted > 0 {
                now.ttft_p50_ms = now.ttft_p50_ms.max(target.ttft_p50_ms);
                now.ttft_p95_ms = now.ttft_p95_ms.max(target.ttft_p95_ms);
            }
        }
    }

    /// The last columns of `seconds_each`, oldest first, at most `width`; `admitted` is per second. The second
    /// that is not over yet is left out: half a second's calls look like half the rate.
    #[must_use]
    pub fn columns(&self, width: usize, seconds_each: u64) -> Vec<Column> {
        let mut columns: Vec<(u64, u64, Column)> = Vec::with_capacity(width.min(SECONDS_KEPT));
        for (back, second) in self.seconds.iter().rev().enumerate().skip(1) {
            let number = (self.newest - back as u64) / seconds_each;
            let full = columns.len() == width;
            match columns.last_mut() {
                Some((last, seconds, column)) if *last == number => {
                    *seconds += 1;
                    column.join(second);
                }
                _ if full => break,
                _ => columns.push((number, 1, *second)),
            }
        }
        columns
            .into_iter()
            .rev()
            .map(|(_, seconds, column)| Column { admitted: column.admitted.div_ceil(seconds), ..column })
            .collect()
    }
}

impl Column {
    fn join(&mut self, other: &Self) {
        self.admitted += other.admitted;
        self.ttft_p50_ms = self.ttft_p50_ms.max(other.ttft_p50_ms);
        self.ttft_p95_ms = self.ttft_p95_ms.max(other.ttft_p95_ms);
        self.status = self.status.max(other.status);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(attempts: u64, status: Status, ttft: u64) -> Target {
        Target { attempts, status, ttft_p95_ms: Some(ttft), ..Target::default() }
    }

    fn record(history: &mut History, at_ms: u64, target: &Target) {
        history.record(Duration::from_millis(at_ms), target);
    }

    #[test]
    fn a_second_adds_up_and_keeps_the_worst() {
        let mut history = History::default();
        record(&mut history, 0, &seen(0, Status::Closed, 0));
        record(&mut history, 400, &seen(5, Status::Open, 300));
        record(&mut history, 900, &seen(9, Status::Closed, 200));
        record(&mut history, 1_400, &seen(9, Status::Closed, 200));
        record(&mut history, 2_000, &seen(90, Status::Open, 200));
        let columns = history.columns(80, 1);
        assert_eq!(columns.len(), 2);
        assert_eq!(
            (columns[0].admitted, columns[0].status, columns[0].ttft_p95_ms),
            (9, Status::Open, Some(300))
        );
        assert_eq!(columns[1].ttft_p95_ms, None, "no attempt, no time to first token");
    }

    #[test]
    fn complete_columns_stay_as_they_are() {
        let mut history = History::default();
        for second in 0..7 {
            record(&mut history, second * 1_000, &seen(second * second, Status::Closed, 0));
        }
        let before = history.columns(10, 2);
        record(&mut history, 7_000, &seen(100, Status::Open, 0));
        record(&mut history, 8_000, &seen(200, Status::Open, 0));
        let after = history.columns(10, 2);
        assert_eq!(after[..3], before[..3]);
        assert_eq!(after.len(), 4);
        assert_eq!(before[2].admitted, 8, "7 and 9; the seventh second is not over");
    }

    #[test]
    fn a_gap_without_samples_keeps_the_state() {
        let mut history = History::default();
        record(&mut history, 0, &seen(0, Status::Open, 0));
        record(&mut history, 5_000, &seen(0, Status::Closed, 0));
        record(&mut history, 6_000, &seen(0, Status::Closed, 0));
        let states: Vec<Status> = history.columns(10, 1).iter().map(|column| column.status).collect();
        assert_eq!(states[..5], [Status::Open; 5]);
        assert_eq!(states[5], Status::Closed);
    }

    #[test]
    fn it_is_bounded_and_survives_a_counter_that_restarts() {
        let mut history = History::default();
        for second in 0..2_000 {
            record(&mut history, second * 1_000, &seen(second % 100, Status::Closed, 0));
        }
        let columns = history.columns(10_000, 1);
        assert_eq!(columns.len(), SECONDS_KEPT - 1);
        assert!(columns.iter().all(|column| column.admitted <= 1));
    }
}
