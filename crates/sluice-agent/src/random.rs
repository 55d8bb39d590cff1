//! The one place in the agent that makes randomness: seeded, and the seed is logged, so that a run can be
//! replayed.

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use sluice_core::admission::{Draw, Nonce};

/// A seeded source shared by all exchanges of an agent. A draw costs a few nanoseconds under an
/// uncontended lock.
pub(crate) struct Random(Mutex<SmallRng>);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Mutex::new(SmallRng::seed_from_u64(seed)))
    }

    /// Two agents must not draw the same nonces: each is seeded by the system unless told otherwise.
    pub(crate) fn system_seed() -> u64 {
        SmallRng::from_os_rng().next_u64()
    }

    pub(crate) fn draw(&self) -> Draw {
        Draw::new(self.0.lock().random())
    }

    pub(crate) fn nonce(&self) -> Nonce {
        Nonce(self.0.lock().random())
    }

    pub(crate) fn id(&self) -> u64 {
        self.0.lock().random()
    }
}
