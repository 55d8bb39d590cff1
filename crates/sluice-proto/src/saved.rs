//! The last good policies as a file: what a restarted agent serves from until it hears of the control plane.
//!
//! Why an envelope around the snapshot: a file outlives what a message cannot (a full volume, a kill in mid-write,
//! another build, a folder of another namespace), and protobuf reads most garbage as something. A reader takes exactly
//! what a writer of this format wrote for this namespace, and refuses everything else: an agent without policies says
//! so and waits, one with wrong policies does harm.
//!
//! Layout, lengths and numbers big-endian:
//!
//! | bytes | |
//! |---|---|
//! | 8 | `SLUICEPS` |
//! | 2 | the format, [`FORMAT`]; a reader refuses any other |
//! | 2 + n | the agent's namespace |
//! | 2 + n | the features that the policies need (see [`crate::feature`]), separated by commas |
//! | 4 + n | a `Snapshot` message, with the secrets |
//! | 32 | SHA-256 of all before: against accidents, not against an adversary, who would not need the file |
//!
//! Features, because a container's image can be changed in place: an older build would drop the fields that it does not
//! know in silence, and enforce less than their author wrote.

use std::collections::BTreeSet;

use prost::Message as _;
use sha2::{Digest as _, Sha256};
use sluice_core::policy::SecretKey;
use zeroize::Zeroizing;

use crate::apply::{Applied, PolicySet, Secret, encode_withheld};
use crate::feature::{self, Feature};
use crate::report::Rejection;
use crate::{encode, v1};

/// The newest format, and the only one so far.
pub const FORMAT: u16 = 1;
/// Largest file. While a new one is written the old one is still there, and the agent's volume has room for 16 MiB.
pub const MAX_BYTES: usize = 7 * 1024 * 1024;

const MAGIC: &[u8; 8] = b"SLUICEPS";
const HASH_BYTES: usize = 32;

/// More than a file may hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the policies take {bytes} bytes and at most {MAX_BYTES} are kept: use fewer routes per namespace")]
pub struct TooLarge {
    pub bytes: usize,
}

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidSave {
    #[error("it is no snapshot of policies")]
    Foreign,
    #[error("it has format {found} and this build reads {FORMAT}")]
    OtherFormat { found: u16 },
    #[error("it is damaged: its length or its checksum is wrong")]
    Damaged,
    #[error("it is of namespace {found:?} and this agent is in {expected:?}")]
    OtherNamespace { found: String, expected: String },
    #[error("its policies need {feature:?}, which this build does not know")]
    UnknownFeature { feature: String },
    #[error("its policies cannot be read: {0}")]
    Undecodable(#[from] prost::DecodeError),
}

/// Writes what an agent serves from. It holds secrets: it may go to a memory-backed volume, and nowhere else.
///
/// # Errors
/// [`TooLarge`].
pub fn encode(namespace: &str, set: &PolicySet) -> Result<Zeroizing<Vec<u8>>, TooLarge> {
    let snapshot = snapshot(set);
    let features: Vec<&str> = features(set).into_iter().map(Feature::as_str).collect();
    let features = features.join(",");
    let message_bytes = snapshot.encoded_len();
    let bytes = MAGIC.len() + 2 + 2 + namespace.len() + 2 + features.len() + 4 + message_bytes + HASH_BYTES;
    if bytes > MAX_BYTES {
        return Err(TooLarge { bytes });
    }
    // To its size at once: growing would leave copies of secrets behind.
    let mut file = Zeroizing::new(Vec::with_capacity(bytes));
    file.extend_from_slice(MAGIC);
    file.extend_from_slice(&FORMAT.to_be_bytes());
    for text in [namespace, &features] {
        file.extend_from_slice(&(text.len() as u16).to_be_bytes());
        file.extend_from_slice(text.as_bytes());
    }
    file.extend_from_slice(&(message_bytes as u32).to_be_bytes());
    file.extend_from_slice(&Zeroizing::new(snapshot.encode_to_vec()));
    let hash = Sha256::digest(&*file);
    file.extend_from_slice(&hash);
    Ok(file)
}

/// Reads what [`encode`] wrote for the same namespace. Single routes that this build refuses are left out and named.
///
/// # Errors
/// [`InvalidSave`] for any other bytes.
pub fn decode(namespace: &str, file: &[u8]) -> Result<(Applied, Vec<Rejection>), InvalidSave> {
    let mut rest = Reader(file);
    if rest.take(MAGIC.len()).ok() != Some(MAGIC) {
        return Err(InvalidSave::Foreign);
    }
    let found = u16::from_be_bytes(rest.array()?);
    if found != FORMAT {
        return Err(InvalidSave::OtherFormat { found });
    }
    let (sealed, hash) = file.split_last_chunk::<HASH_BYTES>().ok_or(InvalidSave::Damaged)?;
    if Sha256::digest(sealed)[..] != hash[..] {
        return Err(InvalidSave::Damaged);
    }
    let found = rest.text()?;
    if found != namespace {
        return Err(InvalidSave::OtherNamespace { found: found.to_owned(), expected: namespace.to_owned() });
    }
    let unknown = rest.text()?.split(',').find(|name| !name.is_empty() && Feature::parse(name).is_none());
    if let Some(feature) = unknown {
        return Err(InvalidSave::UnknownFeature { feature: feature.to_owned() });
    }
    let length = u32::from_be_bytes(rest.array()?) as usize;
    let message = rest.take(length)?;
    if rest.0.len() != HASH_BYTES {
        return Err(InvalidSave::Damaged);
    }
    applied(namespace, v1::Snapshot::decode(message)?)
}

fn applied(namespace: &str, snapshot: v1::Snapshot) -> Result<(Applied, Vec<Rejection>), InvalidSave> {
    // Nobody writes either: an agent has a version before it has anything to write, and gets its namespace alone.
    if snapshot.version.is_empty() {
        return Err(InvalidSave::Damaged);
    }
    if let Some(route) = snapshot.routes.iter().find(|route| route.namespace != namespace) {
        let (found, expected) = (route.namespace.clone(), namespace.to_owned());
        return Err(InvalidSave::OtherNamespace { found, expected });
    }
    let mut applied = Applied::new();
    let (_, ack) = applied.apply(snapshot);
    Ok((applied, ack.rejected))
}

fn snapshot(set: &PolicySet) -> v1::Snapshot {
    let secret = |(key, secret): (&SecretKey, &Secret)| v1::Secret {
        key: Some(encode::secret_key(key)),
        uid: secret.uid.to_string(),
        resource_version: secret.resource_version.to_string(),
        value: secret.value.expose().to_vec(),
    };
    v1::Snapshot {
        version: set.version.to_string(),
        nonce: String::new(),
        routes: set.routes.iter().map(|route| encode::route(route)).collect(),
        // In a file every route is a last good one: there is nothing left to hold it against.
        held: Vec::new(),
        withheld: set.withheld.iter().map(|(route, feature)| encode_withheld(route, feature)).collect(),
        // Values that are kept because they are held are values like all others here.
        secrets: Some(v1::SecretSet {
            secrets: set.secrets.iter().map(secret).collect(),
            ..v1::SecretSet::default()
        }),
        agents: Some(v1::AgentCounts {
            by_target_id: set.agents.iter().map(|(id, count)| (id.to_string(), *count)).collect(),
        }),
    }
}

/// What a reader must know to enforce all of it.
fn features(set: &PolicySet) -> BTreeSet<Feature> {
    let nothing = BTreeSet::new();
    set.routes.iter().flat_map(|route| feature::withhold(&mut (**route).clone(), &nothing)).collect()
}

/// What is left of a file.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], InvalidSave> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(InvalidSave::Damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], InvalidSave> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(InvalidSave::Damaged)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn text(&mut self) -> Result<&'a str, InvalidSave> {
        let length = u16::from_be_bytes(self.array()?);
        std::str::from_utf8(self.take(length.into())?).map_err(|_| InvalidSave::Damaged)
    }
}
