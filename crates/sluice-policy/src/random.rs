//! The one place that makes random numbers; decisions take them as arguments. The seed is logged, so that a
//! run can be replayed.

use std::sync::{Mutex, PoisonError};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _, TryRngCore as _};
use sluice_core::admission::Draw;

/// A seeded generator.
#[derive(Debug)]
pub struct Random(Mutex<StdRng>);

impl Random {
    /// The same numbers for the same seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self(Mutex::new(StdRng::seed_from_u64(seed)))
    }

    /// A seed of the operating system's.
    ///
    /// # Errors
    /// What the operating system says when it has no randomness.
    pub fn from_system() -> std::io::Result<Self> {
        let seed = rand::rngs::OsRng.try_next_u64().map_err(std::io::Error::other)?;
        tracing::info!(seed, "random numbers of the policy service");
        Ok(Self::seeded(seed))
    }

    pub(crate) fn draw(&self) -> Draw {
        Draw::new(self.0.lock().unwrap_or_else(PoisonError::into_inner).random())
    }

    /// Names one answer on a stream. No secret hangs on it.
    pub(crate) fn nonce(&self) -> String {
        format!("{:032x}", self.0.lock().unwrap_or_else(PoisonError::into_inner).random::<u128>())
    }
}
