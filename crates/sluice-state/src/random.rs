//! The one place of this crate that makes random numbers: seeded, so that a run can be replayed.

use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sluice_core::admission::Nonce;

pub(crate) struct Random(Mutex<SmallRng>);

impl Random {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(Mutex::new(SmallRng::seed_from_u64(seed)))
    }

    pub(crate) fn nonce(&self) -> Nonce {
        Nonce(self.0.lock().random())
    }

    /// In [0, 1).
    pub(crate) fn fraction(&self) -> f64 {
        self.0.lock().random()
    }

    /// Anything up to `most`.
    pub(crate) fn up_to(&self, most: Duration) -> Duration {
        most.mul_f64(self.0.lock().random::<f64>())
    }
}
