//! What request bodies may take in memory together. A body is kept whole until its exchange ends, for retries
//! and failover, so their sum needs a bound besides the bound on each.

use std::sync::Arc;

use http_body::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::ask::Unreadable;

/// Per agent.
const TOTAL_KIB: usize = 256 * 1024;
/// What a body whose length is not announced starts with, and grows by.
const STEP_KIB: u32 = 1024;

pub(crate) struct BodyRooms(Arc<Semaphore>);

/// One body's share; given back when its exchange ends.
pub(crate) struct BodyRoom {
    rooms: Arc<Semaphore>,
    share: OwnedSemaphorePermit,
}

impl BodyRoom {
    /// Makes room for a body that turns out to be `bytes` long.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), Unreadable> {
        while self.share.num_permits() * 1024 < bytes && self.share.num_permits() < TOTAL_KIB {
            let step = STEP_KIB.min(u32::try_from(TOTAL_KIB - self.share.num_permits()).unwrap_or(STEP_KIB));
            let more = self.rooms.clone().try_acquire_many_owned(step).map_err(|_| Unreadable::NoRoom)?;
            self.share.merge(more);
        }
        Ok(())
    }
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
            None => STEP_KIB,
        };
        // A body that alone is larger than the whole room is refused by its own limit.
        let kib = kib.min(TOTAL_KIB as u32);
        let share = self.0.clone().try_acquire_many_owned(kib).map_err(|_| Unreadable::NoRoom)?;
        Ok(Some(BodyRoom { rooms: self.0.clone(), share }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Empty;

    #[test]
    fn a_body_of_unknown_length_takes_what_it_needs() {
        let rooms = BodyRooms::default();
        let share = rooms.0.clone().try_acquire_many_owned(STEP_KIB).unwrap();
        let mut room = BodyRoom { rooms: rooms.0.clone(), share };
        room.grow_to(3 * 1024 * 1024 + 1).unwrap();
        assert_eq!(rooms.0.available_permits(), TOTAL_KIB - 4 * 1024);
        let rest = rooms.0.clone().try_acquire_many_owned((TOTAL_KIB - 4 * 1024) as u32).unwrap();
        assert!(room.grow_to(5 * 1024 * 1024).is_err());
        drop((room, rest));
        assert_eq!(rooms.0.available_permits(), TOTAL_KIB);
        assert!(rooms.take(&Empty::<bytes::Bytes>::new()).unwrap().is_none());
    }
}
