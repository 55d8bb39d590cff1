//! What request bodies may take in memory together. A body is kept whole until its exchange ends, for retries
//! and failover, so their sum needs a bound besides the bound on each.

use std::sync::Arc;

use http_body::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::ask::Unreadable;

/// Per agent.
const TOTAL_KIB: usize = 256 * 1024;
/// Assumed of a body whose length is not announced.
const UNKNOWN_KIB: u32 = 1024;

pub(crate) struct BodyRooms(Arc<Semaphore>);

/// One body's share; given back when its exchange ends.
pub(crate) struct BodyRoom {
    _share: OwnedSemaphorePermit,
}

impl Default for BodyRooms {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(TOTAL_KIB)))
    }
}

impl BodyRooms {
    pub(crate) fn take(&self, body: &impl Body) -> Result<Option<BodyRoom>, Unreadable> {
        let size = body.size_hint();
        let kib = match size.exact() {
            Some(0) => return Ok(None),
            Some(bytes) => u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX),
            None => UNKNOWN_KIB,
        };
        // A body that alone is larger than the whole room is refused by its own limit.
        let kib = kib.min(TOTAL_KIB as u32);
        let share = self.0.clone().try_acquire_many_owned(kib).map_err(|_| Unreadable::NoRoom)?;
        Ok(Some(BodyRoom { _share: share }))
    }
}
