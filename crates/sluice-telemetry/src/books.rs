//! What became of every span, log record and metric point.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use crate::names::metric::{TELEMETRY_DROPPED, TELEMETRY_EXPORTED};
use crate::page::Page;
use crate::settings::Signal;

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct SignalLabel {
    signal: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DroppedLabel {
    signal: &'static str,
    reason: &'static str,
}

/// Why something was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dropped {
    /// More came than the collector took.
    QueueFull,
    /// The collector was asked until the time was up.
    SendFailed,
    /// The collector did not want it.
    Rejected,
    /// The process ended first.
    Shutdown,
}

impl Dropped {
    pub const ALL: [Self; 4] = [Self::QueueFull, Self::SendFailed, Self::Rejected, Self::Shutdown];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::SendFailed => "send_failed",
            Self::Rejected => "rejected",
            Self::Shutdown => "shutdown",
        }
    }
}

/// The counters, one set per process or agent.
#[derive(Debug)]
pub struct Books {
    exported: Family<SignalLabel, Counter>,
    dropped: Family<DroppedLabel, Counter>,
    signals: [SignalBooks; 3],
}

impl Default for Books {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Debug)]
pub(crate) struct SignalBooks {
    exported: Counter,
    dropped: [Counter; Dropped::ALL.len()],
}

impl Books {
    /// With zeros.
    pub fn new() -> Self {
        let exported = Family::<SignalLabel, Counter>::default();
        let dropped = Family::<DroppedLabel, Counter>::default();
        let signals = [Signal::Traces, Signal::Metrics, Signal::Logs].map(|signal| {
            let signal = signal.as_str();
            SignalBooks {
                exported: exported.get_or_create_owned(&SignalLabel { signal }),
                dropped: Dropped::ALL.map(|reason| {
                    dropped.get_or_create_owned(&DroppedLabel { signal, reason: reason.as_str() })
                }),
            }
        });
        Self { exported, dropped, signals }
    }

    pub(crate) fn register(&self, page: &mut Page) {
        page.register(&TELEMETRY_EXPORTED, self.exported.clone());
        page.register(&TELEMETRY_DROPPED, self.dropped.clone());
    }

    /// Items that a collector accepted.
    pub fn exported(&self, signal: Signal) -> u64 {
        self.signal(signal).exported.get()
    }

    /// Items given up for a reason.
    pub fn dropped(&self, signal: Signal, reason: Dropped) -> u64 {
        self.signal(signal).dropped[reason as usize].get()
    }

    /// Items given up.
    pub fn dropped_in_all(&self, signal: Signal) -> u64 {
        Dropped::ALL.iter().map(|reason| self.dropped(signal, *reason)).sum()
    }

    pub(crate) fn signal(&self, signal: Signal) -> &SignalBooks {
        &self.signals[signal as usize]
    }
}

impl SignalBooks {
    pub(crate) fn exported(&self, items: u64) {
        self.exported.inc_by(items);
    }

    pub(crate) fn dropped(&self, reason: Dropped, items: u64) {
        self.dropped[reason as usize].inc_by(items);
    }
}
