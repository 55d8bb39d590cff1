//! The keys of the embedded home: strings and small hashes with expiry.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Keys beyond which calls fail with `OOM`: some 100 MiB.
pub const MAX_KEYS: usize = 200_000;

/// Expired keys collected per call, at most.
const COLLECTED_PER_CALL: usize = 16;

static EMPTY: Fields = Vec::new();

/// Fields and values.
pub(super) type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// What a key holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored {
    Text(Vec<u8>),
    /// In the order in which the fields were first written. The scripts' hashes have at most eight fields,
    /// so a scan is quicker than hashing.
    Hash(Vec<(Vec<u8>, Vec<u8>)>),
}

#[derive(Debug)]
struct Entry {
    value: Stored,
    expires_ms: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Keyspace {
    entries: HashMap<Vec<u8>, Entry>,
    /// When something may be collected. An entry whose expiry has moved since is skipped.
    expiries: BinaryHeap<Reverse<(u64, Vec<u8>)>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WrongType;

impl Keyspace {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Drops a few of the keys that have expired.
    pub(super) fn collect(&mut self, now_ms: u64) {
        for _ in 0..COLLECTED_PER_CALL {
            match self.expiries.peek() {
                Some(Reverse((at, _))) if *at <= now_ms => {}
                _ => return,
            }
            let Some(Reverse((_, key))) = self.expiries.pop() else { return };
            match self.entries.get(&key).and_then(|entry| entry.expires_ms) {
                Some(at) if at <= now_ms => {
                    self.entries.remove(&key);
                }
                // Its expiry was moved: one reminder per key stays in the heap.
                Some(at) => self.expiries.push(Reverse((at, key))),
                None => {}
            }
        }
    }

    pub(super) fn get(&self, key: &[u8], now_ms: u64) -> Option<&Stored> {
        let entry = self.entries.get(key)?;
        (entry.expires_ms.is_none_or(|at| now_ms < at)).then_some(&entry.value)
    }

    pub(super) fn text(&self, key: &[u8], now_ms: u64) -> Result<Option<&[u8]>, WrongType> {
        match self.get(key, now_ms) {
            None => Ok(None),
            Some(Stored::Text(text)) => Ok(Some(text)),
            Some(Stored::Hash(_)) => Err(WrongType),
        }
    }

    pub(super) fn hash(&self, key: &[u8], now_ms: u64) -> Result<&Fields, WrongType> {
        match self.get(key, now_ms) {
            None => Ok(&EMPTY),
            Some(Stored::Hash(fields)) => Ok(fields),
            Some(Stored::Text(_)) => Err(WrongType),
        }
    }

    /// SET with PX (`Some`), or with KEEPTTL (`None`).
    pub(super) fn set_text(&mut self, key: &[u8], text: Vec<u8>, ttl_ms: Option<u64>, now_ms: u64) {
        let kept = self.live(key, now_ms).and_then(|entry| entry.expires_ms);
        let expires_ms = ttl_ms.map(|ttl| now_ms.saturating_add(ttl)).or(kept);
        self.insert(key, Entry { value: Stored::Text(text), expires_ms });
        if ttl_ms.is_some() {
            self.remind(key, kept, expires_ms);
        }
    }

    pub(super) fn set_fields<'a>(
        &mut self,
        key: &[u8],
        pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        now_ms: u64,
    ) -> Result<usize, WrongType> {
        if self.live(key, now_ms).is_none() {
            self.insert(key, Entry { value: Stored::Hash(Vec::new()), expires_ms: None });
        }
        let Some(Entry { value: Stored::Hash(fields), .. }) = self.entries.get_mut(key) else {
            return Err(WrongType);
        };
        let mut added = 0;
        for (field, value) in pairs {
            if let Some((_, old)) = fields.iter_mut().find(|(name, _)| name == field) {
                old.clear();
                old.extend_from_slice(value);
            } else {
                fields.push((field.to_vec(), value.to_vec()));
                added += 1;
            }
        }
        Ok(added)
    }

    pub(super) fn expire(&mut self, key: &[u8], ttl_ms: u64, now_ms: u64) -> bool {
        let expires_ms = now_ms.saturating_add(ttl_ms);
        let Some(entry) = self.live(key, now_ms) else { return false };
        let before = entry.expires_ms.replace(expires_ms);
        self.remind(key, before, Some(expires_ms));
        true
    }

    pub(super) fn replace(&mut self, key: &[u8], value: Option<Stored>) {
        match value {
            Some(value) => self.insert(key, Entry { value, expires_ms: None }),
            None => {
                self.entries.remove(key);
            }
        }
    }

    fn insert(&mut self, key: &[u8], entry: Entry) {
        match self.entries.get_mut(key) {
            Some(slot) => *slot = entry,
            None => {
                self.entries.insert(key.to_vec(), entry);
            }
        }
    }

    fn live(&mut self, key: &[u8], now_ms: u64) -> Option<&mut Entry> {
        self.entries.get_mut(key).filter(|entry| entry.expires_ms.is_none_or(|at| now_ms < at))
    }

    /// Puts a key into the heap, unless it is there already for no later a time.
    fn remind(&mut self, key: &[u8], before: Option<u64>, at: Option<u64>) {
        if let Some(at) = at
            && before.is_none_or(|before| at < before)
        {
            self.expiries.push(Reverse((at, key.to_vec())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expired_keys_are_gone_and_then_collected() {
        let mut space = Keyspace::default();
        space.set_text(b"a", b"1".to_vec(), Some(10), 100);
        assert_eq!(space.text(b"a", 109), Ok(Some(&b"1"[..])));
        assert_eq!(space.text(b"a", 110), Ok(None));
        assert_eq!(space.len(), 1);
        space.collect(110);
        assert_eq!(space.len(), 0);
    }

    #[test]
    fn an_expiry_that_moved_keeps_the_key() {
        let mut space = Keyspace::default();
        space.set_text(b"a", b"1".to_vec(), Some(10), 100);
        assert!(space.expire(b"a", 100, 105));
        space.collect(150);
        assert_eq!(space.text(b"a", 150), Ok(Some(&b"1"[..])));
        space.collect(205);
        assert_eq!(space.len(), 0);
        assert!(space.expiries.is_empty(), "no reminder is left behind");
    }

    #[test]
    fn keepttl_keeps_it_and_a_shorter_one_is_collected_in_time() {
        let mut space = Keyspace::default();
        space.set_text(b"a", b"1".to_vec(), Some(1_000), 0);
        space.set_text(b"a", b"2".to_vec(), None, 10);
        assert_eq!(space.text(b"a", 999), Ok(Some(&b"2"[..])));
        space.set_text(b"a", b"3".to_vec(), Some(5), 20);
        space.collect(25);
        assert_eq!(space.len(), 0);
    }

    #[test]
    fn a_wrong_type_is_an_error_and_changes_nothing() {
        let mut space = Keyspace::default();
        space.set_text(b"a", b"1".to_vec(), None, 0);
        assert_eq!(space.hash(b"a", 0), Err(WrongType));
        assert_eq!(space.set_fields(b"a", [(&b"f"[..], &b"v"[..])].into_iter(), 0), Err(WrongType));
        assert_eq!(space.text(b"a", 0), Ok(Some(&b"1"[..])));
    }
}
