//! Waiting for what is to come true.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// For what a cluster does by itself: pods that start, endpoints that change. Generous: the machine may be busy.
pub const PATIENCE: Duration = Duration::from_mins(2);
/// By when a status tells the truth.
pub const TRUTH: Duration = Duration::from_secs(15);

const BETWEEN: Duration = Duration::from_millis(250);
/// One look; what hangs longer is looked at again.
const LOOK: Duration = Duration::from_secs(30);

/// Looks until it succeeds, and gives what it found.
///
/// # Errors
/// The last look's error, when none has succeeded in time.
pub async fn eventually<T>(
    within: Duration,
    what: impl std::fmt::Display,
    look: impl AsyncFn() -> Result<T>,
) -> Result<T> {
    let began = Instant::now();
    loop {
        let looked = tokio::time::timeout(LOOK, look()).await;
        match looked.unwrap_or_else(|_| Err(anyhow::anyhow!("a look took longer than {LOOK:?}"))) {
            Ok(found) => return Ok(found),
            Err(error) if began.elapsed() >= within => {
                return Err(error).with_context(|| format!("not within {within:?}: {what}"));
            }
            Err(_) => tokio::time::sleep(BETWEEN).await,
        }
    }
}

/// Looks over and over for as long as it is to stay true.
///
/// # Errors
/// The first look's error.
pub async fn throughout(
    during: Duration,
    what: impl std::fmt::Display,
    look: impl AsyncFn() -> Result<()>,
) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < during {
        look().await.with_context(|| format!("no longer, after {:?}: {what}", began.elapsed()))?;
        tokio::time::sleep(BETWEEN).await;
    }
    Ok(())
}
