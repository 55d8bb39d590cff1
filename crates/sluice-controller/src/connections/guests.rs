//! Connections of nobody who is known: how many there may be, and for how long.
//!
//! A connection of which no stream is authenticated is its address's guest. An address has so many of them, and each is
//! closed after a while. That goes for the handshake, and again when the last authenticated stream has ended: a
//! credential is good for the streams that it may open, and not for connections without one.
//!
//! Connections with an authenticated stream are not counted by address: pods on the host's network, behind a proxy of their
//! node or behind NAT share one, however many they are.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use sluice_policy::callers::{Caller, Place, Places};

/// Of one address. A hundred pods that share one and come at once are known within seconds, each being a guest for as
/// long as a handshake and a review of its token take; who finds no place comes again.
const PER_ADDRESS: usize = 64;
/// An agent sends its hello at once; that and the review take some seconds at worst.
const WITHIN: Duration = Duration::from_mins(1);

/// Whom a listener takes in.
#[derive(Debug)]
pub(crate) struct Guests {
    places: Arc<Places>,
    within: Duration,
}

impl Default for Guests {
    fn default() -> Self {
        Self::new(PER_ADDRESS, WITHIN)
    }
}

impl Guests {
    pub(super) fn new(per_address: usize, within: Duration) -> Self {
        Self { places: Arc::new(Places::new(usize::MAX, per_address)), within }
    }

    /// `None`: its address has as many as it gets.
    pub(super) fn take_in(&self, caller: Caller) -> Option<Stay> {
        let place = self.places.take(caller.address())?;
        Some(Stay::On(Box::pin(stay(caller, self.places.clone(), place, self.within))))
    }
}

/// For how long a connection may stay.
pub(super) enum Stay {
    On(Pin<Box<dyn Future<Output = ()> + Send>>),
    Over,
}

impl Stay {
    /// Whether it is over. Until then the task is woken when it may be.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Self::On(on) = self {
            std::task::ready!(on.as_mut().poll(context));
            *self = Self::Over;
        }
        Poll::Ready(())
    }
}

/// Ends when the connection has been a guest for too long, or its address has no place for one more.
async fn stay(caller: Caller, places: Arc<Places>, first: Place, within: Duration) {
    let (mut served, mut place) = (caller.served(), Some(first));
    while let Some(guest) = place {
        // What counts the streams lives as long as the caller.
        if tokio::time::timeout(within, served.wait_for(|streams| *streams > 0)).await.is_err() {
            return;
        }
        drop(guest);
        let _ = served.wait_for(|streams| *streams == 0).await;
        place = places.take(caller.address());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[tokio::test(start_paused = true)]
    async fn one_that_stays_unknown_is_let_go_and_one_that_is_known_stays() {
        let guests = Guests::new(1, Duration::from_mins(1));
        let take_in = |caller: &Caller| {
            let mut stay = guests.take_in(caller.clone())?;
            Some(Box::pin(std::future::poll_fn(move |context| stay.poll(context))))
        };
        let started = clock::now();
        take_in(&Caller::new(None)).unwrap().await;
        assert_eq!(clock::now() - started, guests.within);

        let known = Caller::new(None);
        let (mut staying, stream) = (take_in(&known).unwrap(), known.serve());
        assert!(take_in(&Caller::new(None)).is_none(), "it has the only place");
        let an_hour = Duration::from_hours(1);
        assert!(tokio::time::timeout(an_hour, &mut staying).await.is_err(), "as long as its stream");
        let another = take_in(&Caller::new(None)).unwrap();
        let again = known.serve();
        drop(stream);
        assert!(tokio::time::timeout(an_hour, &mut staying).await.is_err(), "as long as its last stream");
        drop(another);
        let started = clock::now();
        drop(again);
        (&mut staying).await;
        assert_eq!(clock::now() - started, guests.within, "a guest again, for as long as any");

        let (mut staying, stream) = (take_in(&known).unwrap(), known.serve());
        assert!(tokio::time::timeout(an_hour, &mut staying).await.is_err());
        let _another = take_in(&Caller::new(None)).unwrap();
        let started = clock::now();
        drop(stream);
        staying.await;
        assert_eq!(clock::now(), started, "there is no place for it");
    }
}
