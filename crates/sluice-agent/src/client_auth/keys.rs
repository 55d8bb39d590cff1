//! Keys of clients: the files of a folder, in a pod a mounted Secret, one key each.
//!
//! In memory is the SHA-256 of each, which is all that a comparison needs: equal lengths, so that nothing can be learned
//! from how long one takes, and every key is compared whatever the first one said. The files are read again every few
//! seconds: a key that is added works, and one that is removed stops, within that and kubelet's own minute.
//!
//! Edge rules: names that begin with a dot are kubelet's own. A file with less than sixteen characters, or with blanks
//! inside, is no key: nobody who can guess may spend. A folder that cannot be read leaves the keys as they were; one that
//! holds none lets nobody in.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use subtle::{Choice, ConstantTimeEq as _};
use zeroize::Zeroizing;

use crate::trust::digest;

const RELOAD_EVERY: Duration = Duration::from_secs(2);
const MIN_KEY_BYTES: usize = 16;
const MAX_KEY_BYTES: u64 = 4 * 1024;
const MAX_KEYS: usize = 1_024;

/// Why a folder gives no keys.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnusableKeys {
    #[error("SLUICE_CLIENT_KEYS {folder} cannot be read: {error}; mount a Secret there, each of its keys one client's", folder = folder.display())]
    Folder { folder: PathBuf, error: io::Error },
    #[error("SLUICE_CLIENT_KEYS {folder} has more than {MAX_KEYS} files", folder = folder.display())]
    TooMany { folder: PathBuf },
}

/// The keys that are good now.
pub(crate) struct Keys {
    folder: PathBuf,
    known: ArcSwap<Known>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Known {
    /// By the files' names.
    digests: Vec<[u8; 32]>,
    /// Files that are no key.
    refused: Vec<String>,
}

impl Keys {
    /// # Errors
    /// [`UnusableKeys`] when the folder is missing, or has too many files.
    pub(crate) fn load(folder: PathBuf) -> Result<Self, UnusableKeys> {
        let known = read(&folder)?;
        known.tell(&folder);
        Ok(Self { folder, known: ArcSwap::from_pointee(known) })
    }

    pub(crate) fn contain(&self, secret: &[u8]) -> bool {
        let shown = digest(secret);
        let known = self.known.load();
        known.digests.iter().fold(Choice::from(0), |found, key| found | key.ct_eq(&shown)).into()
    }

    pub(crate) fn unready(&self) -> Option<String> {
        let none = self.known.load().digests.is_empty();
        none.then(|| format!("SLUICE_CLIENT_KEYS {} has no key: nobody is let in", self.folder.display()))
    }

    /// Reads the folder again and again.
    pub(crate) async fn follow(self: Arc<Self>) {
        let mut told = None;
        loop {
            tokio::time::sleep(RELOAD_EVERY).await;
            let keys = self.clone();
            let reloaded = tokio::task::spawn_blocking(move || keys.reload()).await;
            let failure = match reloaded {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(error) => Some(error.to_string()),
            };
            if let Some(error) = failure.as_ref().filter(|_| failure != told) {
                tracing::error!(error, "the clients' keys stay as they were");
            }
            told = failure;
        }
    }

    fn reload(&self) -> Result<(), UnusableKeys> {
        let known = read(&self.folder)?;
        if known != **self.known.load() {
            known.tell(&self.folder);
            self.known.store(Arc::new(known));
        }
        Ok(())
    }
}

impl Known {
    fn tell(&self, folder: &Path) {
        let folder = folder.display();
        tracing::info!(%folder, keys = self.digests.len(), "clients' keys in use");
        for file in &self.refused {
            tracing::warn!(%folder, file, "this is no key: write one line of {MIN_KEY_BYTES} to {MAX_KEY_BYTES} visible characters");
        }
    }
}

fn read(folder: &Path) -> Result<Known, UnusableKeys> {
    let unreadable = |error| UnusableKeys::Folder { folder: folder.to_owned(), error };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') {
            names.push(name);
        }
        if names.len() > MAX_KEYS {
            return Err(UnusableKeys::TooMany { folder: folder.to_owned() });
        }
    }
    names.sort();
    let mut known = Known::default();
    for name in names {
        match key(&folder.join(&name)) {
            Ok(Some(digest)) => known.digests.push(digest),
            Ok(None) => known.refused.push(name),
            // Between the listing and now kubelet has swapped the folder: all of it is read again soon.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(unreadable(error)),
        }
    }
    Ok(known)
}

/// `None`: what the file holds is no key.
fn key(path: &Path) -> io::Result<Option<[u8; 32]>> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() || metadata.len() > MAX_KEY_BYTES {
        return Ok(None);
    }
    let content = Zeroizing::new(std::fs::read(path)?);
    let key = content.trim_ascii();
    let good = key.len() >= MIN_KEY_BYTES && key.iter().all(u8::is_ascii_graphic);
    Ok(good.then(|| digest(key)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn each_file_is_one_key_and_what_can_be_guessed_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, content: &str| fs::write(dir.path().join(name), content).unwrap();
        put("one", "key-number-one-of-two\n");
        put("two", "  key-number-two-of-two");
        put("short", "secret");
        put("empty", "");
        put("lines", "key-number-six\nkey-number-seven");
        put("long", &"x".repeat(5_000));
        put("..data", "key-that-is-kubelets-own");
        fs::create_dir(dir.path().join("folder")).unwrap();
        let keys = Keys::load(dir.path().to_owned()).unwrap();
        assert!(keys.contain(b"key-number-one-of-two") && keys.contain(b"key-number-two-of-two"));
        for other in ["", "secret", "key-number-six", "key-that-is-kubelets-own", "key-number-one-of-two\n"] {
            assert!(!keys.contain(other.as_bytes()), "{other}");
        }
        assert_eq!(keys.known.load().refused, ["empty", "folder", "lines", "long", "short"]);
        assert_eq!(keys.unready(), None);
    }

    #[test]
    fn keys_come_and_go_with_their_files_and_stay_when_the_folder_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("keys");
        assert!(matches!(Keys::load(folder.clone()), Err(UnusableKeys::Folder { .. })));
        fs::create_dir(&folder).unwrap();
        let keys = Keys::load(folder.clone()).unwrap();
        assert!(keys.unready().unwrap().contains("nobody is let in"));
        fs::write(folder.join("one"), "key-number-one-of-two").unwrap();
        keys.reload().unwrap();
        assert!(keys.contain(b"key-number-one-of-two"));
        fs::rename(&folder, dir.path().join("away")).unwrap();
        assert!(keys.reload().is_err());
        assert!(keys.contain(b"key-number-one-of-two"));
        fs::create_dir(&folder).unwrap();
        keys.reload().unwrap();
        assert!(!keys.contain(b"key-number-one-of-two"), "an empty folder lets nobody in");
    }

    #[test]
    fn no_key_shows_in_what_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("one"), "canary-key-number-one").unwrap();
        let keys = Keys::load(dir.path().to_owned()).unwrap();
        assert!(!format!("{:?}", keys.known.load()).contains("canary"));
    }
}
