//! The last good policies in a folder, so that a restarted agent serves before it has heard of any control plane.
//!
//! Why in memory alone: they hold the keys of providers. A folder on a disk is refused, whatever mounted it (in a pod:
//! an `emptyDir` of medium `Memory`).
//!
//! A file is written beside the old one and takes its place at once, readable by this user only; a kill in between
//! leaves the old one. What changes while one is written is in the next. What cannot be used is told once and
//! ignored: the next push replaces it. What cannot be written leaves the old file, which may then be older than what the
//! agent serves from; after a restart the first push mends that.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sluice_proto::apply::{Applied, PolicySet};
use sluice_proto::report::Rejection;
use sluice_proto::saved::{self, InvalidSave, TooLarge};
use tokio::sync::watch;
use zeroize::Zeroizing;

const NAME: &str = "policies";
const NEW: &str = "policies.new";
/// Where the kernel lists what is mounted.
const MOUNTS: &str = "/proc/self/mountinfo";

/// The folder of one agent.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    path: PathBuf,
    namespace: Arc<str>,
}

/// Why a folder keeps nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnusableFolder {
    #[error("SLUICE_SNAPSHOT {path} cannot be used: {error}", path = path.display())]
    Unreachable { path: PathBuf, error: io::Error },
    #[error(
        "SLUICE_SNAPSHOT {path} is on {filesystem}, where keys of providers would outlive the pod: mount an emptyDir of medium Memory there",
        path = path.display()
    )]
    NotInMemory { path: PathBuf, filesystem: String },
}

#[derive(Debug, thiserror::Error)]
enum Unwritten {
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    #[error("{0}")]
    Io(#[from] io::Error),
}

#[derive(Debug, thiserror::Error)]
enum Unread {
    #[error(transparent)]
    Invalid(#[from] InvalidSave),
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("it is larger than {} bytes", saved::MAX_BYTES)]
    TooLarge,
}

impl Folder {
    /// # Errors
    /// [`UnusableFolder`] when it does not exist, or is not in memory.
    pub(crate) fn open(path: &Path, namespace: &str) -> Result<Self, UnusableFolder> {
        let unreachable = |error| UnusableFolder::Unreachable { path: path.to_owned(), error };
        let real = path.canonicalize().map_err(unreachable)?;
        let mounts = fs::read_to_string(MOUNTS).map_err(unreachable)?;
        let filesystem = filesystem(&mounts, &real).unwrap_or("an unknown filesystem");
        if !matches!(filesystem, "tmpfs" | "ramfs") {
            let (path, filesystem) = (path.to_owned(), filesystem.to_owned());
            return Err(UnusableFolder::NotInMemory { path, filesystem });
        }
        Ok(Self { path: real, namespace: namespace.into() })
    }

    /// What was written before, if it can be used.
    pub(crate) fn read(&self) -> Option<(Applied, Vec<Rejection>)> {
        let path = self.path.join(NAME);
        match self.try_read(&path) {
            Ok(read) => Some(read),
            Err(Unread::Io(error)) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the snapshot is not used: the next push replaces it");
                None
            }
        }
    }

    fn try_read(&self, path: &Path) -> Result<(Applied, Vec<Rejection>), Unread> {
        let file = File::open(path)?;
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        if length > saved::MAX_BYTES {
            return Err(Unread::TooLarge);
        }
        // One more than there should be, so that it never grows, which would leave a copy behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(length + 1));
        file.take(length as u64 + 1).read_to_end(&mut bytes)?;
        Ok(saved::decode(&self.namespace, &bytes)?)
    }

    fn write(&self, set: &PolicySet) -> Result<(), Unwritten> {
        let bytes = saved::encode(&self.namespace, set)?;
        let new = self.path.join(NEW);
        // Left by a kill: it may be another's mode, so it is made anew.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        let written = file.write_all(&bytes).and_then(|()| fs::rename(&new, self.path.join(NAME)));
        if written.is_err() {
            // The room that it takes is better free.
            let _ = fs::remove_file(&new);
        }
        Ok(written?)
    }
}

/// Writes each set that comes, or the newest of those that came meanwhile, for as long as the agent lives.
pub(crate) async fn keep(folder: Folder, mut sets: watch::Receiver<Arc<PolicySet>>) {
    let mut told = None;
    while sets.changed().await.is_ok() {
        let set = sets.borrow_and_update().clone();
        let folder = folder.clone();
        let written = tokio::task::spawn_blocking(move || folder.write(&set)).await;
        let failure = match written {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(error) = failure.as_ref().filter(|_| failure != told) {
            tracing::warn!(error, "the snapshot is not written: a restart begins with an older one, or none");
        }
        told = failure;
    }
}

/// The type of the file system that a path is on, by the longest mount point; of several on one, the last rules.
///
/// A line of proc_pid_mountinfo(5): `36 35 98:0 /root /mount/point options optional… - type source options`.
fn filesystem<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    let mounted = mounts.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let point = unescaped(before.split(' ').nth(4)?);
        let kind = after.split(' ').next()?;
        path.starts_with(&point).then(|| (Path::new(&point).components().count(), kind))
    });
    mounted.max_by_key(|(depth, _)| *depth).map(|(_, kind)| kind)
}

/// Blanks and the like are written as three octal digits.
fn unescaped(point: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(point.to_owned(), |point, (escaped, plain)| point.replace(escaped, plain))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const TYPICAL: &str = "\
1 0 0:30 / / rw,relatime - overlay overlay rw
2 1 0:31 / /var/run/sluice/state rw,relatime shared:1 - tmpfs tmpfs rw,size=16384k
3 1 8:1 /pods/x /var/run/sluice/token ro - ext4 /dev/sda1 rw
4 1 0:32 / /with\\040blank rw - ramfs none rw
5 1 8:1 / /twice rw - tmpfs tmpfs rw
6 1 8:1 / /twice rw - xfs /dev/sdb rw";

    #[test]
    fn the_longest_mount_point_tells_what_a_folder_is_on() {
        for (path, found) in [
            ("/var/run/sluice/state", "tmpfs"),
            ("/var/run/sluice/state/deeper", "tmpfs"),
            ("/var/run/sluice/state-of-another", "overlay"),
            ("/var/run/sluice/token", "ext4"),
            ("/with blank/x", "ramfs"),
            ("/twice", "xfs"),
            ("/", "overlay"),
        ] {
            assert_eq!(filesystem(TYPICAL, Path::new(path)), Some(found), "{path}");
        }
        assert_eq!(filesystem("nonsense\n", Path::new("/")), None);
    }

    /// Not `Folder::open`: tests may run where temporary files are on a disk.
    fn folder() -> (tempfile::TempDir, Folder) {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder { path: dir.path().to_owned(), namespace: "team".into() };
        (dir, folder)
    }

    fn version(version: &str) -> PolicySet {
        PolicySet { version: version.into(), ..PolicySet::default() }
    }

    #[test]
    fn a_file_is_replaced_whole_and_is_for_this_user_alone() {
        let (dir, folder) = folder();
        assert!(folder.read().is_none());
        fs::write(dir.path().join(NEW), "left by a kill").unwrap();
        for name in ["v1", "v2"] {
            folder.write(&version(name)).unwrap();
            assert_eq!(&*folder.read().unwrap().0.current().version, name);
        }
        assert!(!dir.path().join(NEW).exists());
        let mode = fs::metadata(dir.path().join(NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn what_cannot_be_used_is_ignored() {
        let (dir, folder) = folder();
        folder.write(&version("v1")).unwrap();
        let path = dir.path().join(NAME);
        let whole = fs::read(&path).unwrap();
        let oversized = vec![0; saved::MAX_BYTES + 1];
        for bytes in [&whole[..whole.len() - 1], &[][..], b"garbage", &oversized] {
            fs::write(&path, bytes).unwrap();
            assert!(folder.read().is_none());
        }
        fs::write(&path, &whole).unwrap();
        assert!(folder.read().is_some());
        let other = Folder { namespace: "other".into(), ..folder };
        assert!(other.read().is_none());
    }

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let (dir, folder) = folder();
        folder.write(&version("v1")).unwrap();
        fs::create_dir(dir.path().join(NEW)).unwrap();
        assert!(matches!(folder.write(&version("v2")), Err(Unwritten::Io(_))));
        assert_eq!(&*folder.read().unwrap().0.current().version, "v1");
    }

    #[test]
    fn a_folder_on_a_disk_keeps_nothing() {
        let missing = Folder::open(Path::new("/does/not/exist"), "team").unwrap_err();
        assert!(missing.to_string().contains("/does/not/exist"), "{missing}");
        let error = Folder::open(Path::new("/proc/self"), "team").unwrap_err();
        assert!(matches!(&error, UnusableFolder::NotInMemory { filesystem, .. } if filesystem == "proc"));
        assert!(error.to_string().contains("medium Memory"), "{error}");
    }
}
