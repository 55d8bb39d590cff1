//! The one place of this crate that makes random numbers: seeded, so that a run can be replayed.

use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sha2::{Digest, Sha256};
use sluice_core::admission::Nonce;

pub(crate) struct Random(Mutex<SmallRng>);

impl Random {
    /// Agents with one seed and different names draw differently: nonces must not repeat in a fleet.
    pub(crate) fn seeded(agent: &str, seed: u64) -> Self {
        let mut hash = Sha256::new();
        hash.update(seed.to_be_bytes());
        hash.update(agent.as_bytes());
        Self(Mutex::new(SmallRng::from_seed(hash.finalize().into())))
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
