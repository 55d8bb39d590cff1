//! Notices that a directory's manifests changed.
//!
//! The system's notifications come at once, but not always: a directory that was replaced by another one is no
//! longer watched, links lead out of it, network file systems tell nothing, queues overflow, and a machine has
//! only so many watches. So names, sizes and times are compared every [`LOOK_EVERY`] as well.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use sluice_policy::files::MAX_FILES;
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

/// Editors and shells write a file in several steps; they are one edit once nothing happened for this long…
const QUIET: Duration = Duration::from_millis(50);
/// …or after this long, as something may write all the time.
const QUIET_WITHIN: Duration = Duration::from_millis(500);
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Follow {
    path: PathBuf,
    look: Interval,
    seen: Option<Stamp>,
    events: mpsc::Receiver<()>,
    /// Keeps the channel open while nothing is watched.
    sender: mpsc::Sender<()>,
    watcher: Option<RecommendedWatcher>,
}

impl Follow {
    /// Every change after this is noticed.
    pub(super) fn start(path: PathBuf) -> Self {
        let (sender, events) = mpsc::channel(1);
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let watcher = watch(&path, sender.clone());
        Self { seen: Stamp::of(&path), path, look, events, sender, watcher }
    }

    /// Returns when something changed, and then nothing for a moment. May be dropped and called again.
    pub(super) async fn changed(&mut self) {
        loop {
            let told = tokio::select! {
                told = self.events.recv() => told.is_some(),
                _ = self.look.tick() => false,
            };
            if told {
                self.quiet().await;
            }
            let mut now = self.stamp().await;
            let directory = |stamp: &Option<Stamp>| stamp.as_ref().map(|stamp| stamp.directory);
            if directory(&now) != directory(&self.seen) {
                self.watcher = watch(&self.path, self.sender.clone());
                // A directory that was just made is about to be filled.
                self.quiet().await;
                now = self.stamp().await;
            }
            let before = std::mem::replace(&mut self.seen, now);
            // Two edits within the file system's tick have one stamp, so notifications count without.
            if told || before != self.seen {
                return;
            }
        }
    }

    async fn quiet(&mut self) {
        let quiet = async { while timeout(QUIET, self.events.recv()).await.is_ok() {} };
        let _ = timeout(QUIET_WITHIN, quiet).await;
    }

    async fn stamp(&self) -> Option<Stamp> {
        let path = self.path.clone();
        tokio::task::spawn_blocking(move || Stamp::of(&path)).await.unwrap_or_default()
    }
}

/// `None`: it cannot be watched, and is looked at only.
fn watch(path: &Path, sender: mpsc::Sender<()>) -> Option<RecommendedWatcher> {
    let told = move |event: notify::Result<notify::Event>| {
        // Our own reading is no change. A full channel says already that there is one.
        if event.is_ok_and(|event| !event.kind.is_access()) {
            let _ = sender.try_send(());
        }
    };
    let watching = notify::recommended_watcher(told).and_then(|mut watcher| {
        watcher.watch(path, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    });
    watching
        .inspect_err(
            |error| tracing::warn!(%error, "no notifications of edits: they are looked for every second"),
        )
        .ok()
}

/// What differs when a manifest does.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    /// Device and number: another directory under the same name is another one.
    directory: (u64, u64),
    files: BTreeMap<OsString, Option<FileStamp>>,
}

type FileStamp = (u64, u64, u64, (i64, i64), (i64, i64));

impl Stamp {
    /// `None`: there is no directory to read.
    fn of(path: &Path) -> Option<Self> {
        let directory = std::fs::metadata(path).ok()?;
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(path).ok()?.flatten() {
            let file = entry.path();
            let manifest = file.extension().is_some_and(|end| end == "yaml" || end == "yml");
            if manifest && files.len() <= MAX_FILES {
                files.insert(entry.file_name(), std::fs::metadata(&file).ok().as_ref().map(file_stamp));
            }
        }
        Some(Self { directory: (directory.dev(), directory.ino()), files })
    }
}

fn file_stamp(file: &Metadata) -> FileStamp {
    let modified = (file.mtime(), file.mtime_nsec());
    (file.dev(), file.ino(), file.len(), modified, (file.ctime(), file.ctime_nsec()))
}
