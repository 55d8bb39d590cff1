//! Who calls, before it is known who that is.
//!
//! Why: everyone who reaches the port can open connections and streams; only who shows a credential is an agent. So what
//! is held for agents is taken once a stream is authenticated, and what is held before that is little, short, and shared
//! out by address: callers without a credential are in one another's way, and in nobody else's.
//!
//! Mechanics: a listener makes a [`Caller`] for each connection and gives it to the connection's requests
//! (`Connected::ConnectInfo`). The services say when a stream of it is authenticated and when that ends; the listener
//! sees how many there are, and closes a connection that has had none for too long.
//!
//! An address is not a pod: pods on the host's network, or behind a proxy of their node, share one. Authenticated streams
//! are therefore never counted by address.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tonic::Request;

/// A connection, as its requests know it.
#[derive(Debug, Clone)]
pub struct Caller {
    address: Option<SocketAddr>,
    /// Its streams that are authenticated.
    served: Arc<watch::Sender<usize>>,
}

impl Caller {
    #[must_use]
    pub fn new(address: Option<SocketAddr>) -> Self {
        Self { address, served: Arc::new(watch::Sender::new(0)) }
    }

    /// Of a listener that makes none, a request's caller is known by its address alone.
    pub(crate) fn of<T>(request: &Request<T>) -> Self {
        let made = request.extensions().get::<Self>().cloned();
        made.unwrap_or_else(|| Self::new(request.remote_addr()))
    }

    #[must_use]
    pub const fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// How many streams are authenticated, now and from now on.
    #[must_use]
    pub fn served(&self) -> watch::Receiver<usize> {
        self.served.subscribe()
    }

    /// A stream is authenticated, until this is dropped.
    #[must_use]
    pub fn serve(&self) -> Served {
        self.served.send_modify(|streams| *streams += 1);
        Served(Arc::clone(&self.served))
    }
}

/// An authenticated stream of a connection.
#[derive(Debug)]
pub struct Served(Arc<watch::Sender<usize>>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.send_modify(|streams| *streams -= 1);
    }
}

/// Places for those who have not shown yet who they are.
#[derive(Debug)]
pub struct Places {
    /// By address.
    taken: Mutex<BTreeMap<Option<IpAddr>, usize>>,
    most: usize,
    most_per_address: usize,
}

impl Places {
    /// So many at once, of which one address gets only so many.
    #[must_use]
    pub const fn new(most: usize, most_per_address: usize) -> Self {
        Self { taken: Mutex::new(BTreeMap::new()), most, most_per_address }
    }

    /// `None`: there is none for this address now.
    pub fn take(self: &Arc<Self>, address: Option<SocketAddr>) -> Option<Place> {
        let address = address.map(|address| address.ip().to_canonical());
        let mut taken = self.lock();
        let all: usize = taken.values().sum();
        let of_address = taken.get(&address).copied().unwrap_or_default();
        if all >= self.most || of_address >= self.most_per_address {
            return None;
        }
        taken.insert(address, of_address + 1);
        Some(Place { of: Arc::clone(self), address })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Option<IpAddr>, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place, until it is dropped.
#[derive(Debug)]
pub struct Place {
    of: Arc<Places>,
    address: Option<IpAddr>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.of.lock();
        if let Some(of_address) = taken.get_mut(&self.address) {
            *of_address -= 1;
            if *of_address == 0 {
                taken.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(ip: &str) -> SocketAddr {
        SocketAddr::new(ip.parse().unwrap(), 1)
    }

    #[test]
    fn one_address_gets_its_share_and_all_get_no_more_than_there_is() {
        let places = Arc::new(Places::new(3, 2));
        let take = |ip: &str| places.take(Some(address(ip)));
        let first = take("10.0.0.1").unwrap();
        let _second = take("::ffff:10.0.0.1").unwrap();
        assert!(take("10.0.0.1").is_none(), "its share is taken, however it is written");
        let third = take("10.0.0.2").unwrap();
        assert!(take("10.0.0.3").is_none() && places.take(None).is_none(), "there are three");
        drop(third);
        assert!(places.take(None).is_some());
        drop(first);
        assert!(take("10.0.0.1").is_some());
        assert_eq!(places.lock().len(), 1, "who has none is forgotten");
    }

    #[test]
    fn a_connection_knows_its_authenticated_streams() {
        let caller = Caller::new(Some(address("10.0.0.1")));
        let mut request = Request::new(());
        request.extensions_mut().insert(caller.clone());
        let served = caller.served();
        let (one, other) = (Caller::of(&request).serve(), Caller::of(&request).serve());
        assert_eq!(*served.borrow(), 2);
        drop(one);
        assert_eq!(*served.borrow(), 1);
        drop(other);
        assert_eq!(*served.borrow(), 0);
        assert_eq!(Caller::of(&Request::new(())).address(), None);
    }
}
