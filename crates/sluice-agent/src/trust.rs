//! Files that kubelet, or whoever mounts them, replaces while the agent runs: authorities and tokens.
//!
//! They are read anew each time they are needed, since that is seldom: nothing is kept that could be out of date. A file
//! may not be there yet (the ConfigMap of a namespace may be younger than its first pod), so a missing one is told
//! apart from a bad one.

use std::io;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncReadExt as _;
use zeroize::Zeroizing;

/// A bundle of many authorities is well below.
const MAX_BUNDLE_BYTES: usize = 1024 * 1024;
/// The longest token that the control plane looks at.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// Why a file gives nothing. `variable`: what named the file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileFault {
    #[error("{variable} {path} does not exist yet: it is waited for", path = path.display())]
    Missing { variable: &'static str, path: PathBuf },
    #[error("{variable} {path} cannot be read: {error}", path = path.display())]
    Unreadable { variable: &'static str, path: PathBuf, error: io::Error },
    #[error("{variable} {path} is larger than {max} bytes", path = path.display())]
    TooLarge { variable: &'static str, path: PathBuf, max: usize },
    #[error("{variable} {path} has no certificate: put one or more in it, in PEM", path = path.display())]
    NoCertificate { variable: &'static str, path: PathBuf },
    #[error("{variable} {path} is no token: one line of visible characters", path = path.display())]
    NoToken { variable: &'static str, path: PathBuf },
}

/// The authorities of a PEM file, one or more.
pub(crate) async fn authorities(variable: &'static str, path: &Path) -> Result<RootCertStore, FileFault> {
    let pem = read(variable, path, MAX_BUNDLE_BYTES).await?;
    let mut store = RootCertStore::empty();
    // What is no certificate of an authority is passed over, as long as one is left.
    store.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok));
    if store.is_empty() {
        return Err(FileFault::NoCertificate { variable, path: path.to_owned() });
    }
    Ok(store)
}

/// A token, as it goes behind `Bearer `.
pub(crate) async fn token(variable: &'static str, path: &Path) -> Result<Zeroizing<String>, FileFault> {
    let bytes = read(variable, path, MAX_TOKEN_BYTES).await?;
    let token = bytes.trim_ascii();
    if token.is_empty() || !token.iter().all(u8::is_ascii_graphic) {
        return Err(FileFault::NoToken { variable, path: path.to_owned() });
    }
    Ok(Zeroizing::new(token.iter().copied().map(char::from).collect()))
}

/// A whole file, in memory that is wiped.
pub(crate) async fn read(
    variable: &'static str,
    path: &Path,
    max: usize,
) -> Result<Zeroizing<Vec<u8>>, FileFault> {
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => FileFault::Missing { variable, path: path.to_owned() },
        _ => FileFault::Unreadable { variable, path: path.to_owned(), error },
    };
    let file = tokio::fs::File::open(path).await.map_err(unreadable)?;
    let length = file.metadata().await.map_err(unreadable)?.len();
    let too_large = || FileFault::TooLarge { variable, path: path.to_owned(), max };
    let length = usize::try_from(length).ok().filter(|length| *length <= max).ok_or_else(too_large)?;
    // One more than there should be, so that it never grows, which would leave a copy behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(length + 1));
    file.take(length as u64 + 1).read_to_end(&mut bytes).await.map_err(unreadable)?;
    if bytes.len() > length {
        return Err(FileFault::Unreadable {
            variable,
            path: path.to_owned(),
            error: io::Error::other("it grows while it is read"),
        });
    }
    Ok(bytes)
}

/// For seeing that a file has changed.
pub(crate) fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}
