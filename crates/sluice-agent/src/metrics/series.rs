//! The series of one target: each that is made is remembered, so that none stays when the target goes, and none
//! comes back by an exchange that still runs.

use std::fmt::Debug;
use std::hash::Hash;

use parking_lot::Mutex;
use prometheus_client::metrics::family::{Family, MetricConstructor};

type Removal = Box<dyn Fn() + Send + Sync>;

/// `None`: the target is forgotten.
pub(super) struct Series(Mutex<Option<Vec<Removal>>>);

impl Series {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Some(Vec::new())))
    }

    /// A series of a family; `None`: the target is forgotten.
    pub(super) fn get<L, M, C>(&self, family: &Family<L, M, C>, label: &L) -> Option<M>
    where
        L: Clone + Hash + Eq + Debug + Send + Sync + 'static,
        M: Clone + Send + Sync + 'static,
        C: MetricConstructor<M> + Clone + Send + Sync + 'static,
    {
        let mut made = self.0.lock();
        let made = made.as_mut()?;
        if let Some(known) = family.get(label).map(|known| known.clone()) {
            return Some(known);
        }
        let series = family.get_or_create_owned(label);
        let (family, label) = (family.clone(), label.clone());
        made.push(Box::new(move || {
            family.remove(&label);
        }));
        Some(series)
    }

    pub(super) fn forget(&self) {
        for remove in self.0.lock().take().into_iter().flatten() {
            remove();
        }
    }
}
