//! Which credentials can be used. A target whose Secret cannot be used stays in its route and is passed over by
//! the agents until the Secret comes: no new version is needed for that.
//!
//! A Secret that cannot be *read* now says nothing of the value that agents have of it, which may be the only one that
//! works: its keys are held, and agents keep what they have. What is known to be missing or unusable is withdrawn. So is
//! what the control plane was told not to look at, since nobody would hear of its end.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use sluice_api::ModelRoute;
use sluice_api::conditions::reason;
use sluice_core::policy::{Credential, RoutePolicy, SecretKey, SecretValue};
use sluice_proto::bounds;

use super::NamespacePolicies;
use crate::index::{Index, Key, RouteEntry, SecretsUnreadable};

/// One version of one key of a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretVersion {
    pub uid: Arc<str>,
    pub resource_version: Arc<str>,
    pub value: SecretValue,
}

/// Why a target has no credential, or none that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unresolved {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// Why a key has no value.
struct Problem {
    reason: &'static str,
    what: String,
    /// Agents that have a value keep it.
    held: bool,
}

/// A target's name and the key that it names.
pub(super) type Named = (Arc<str>, SecretKey);

/// The keys that a compiled route names.
pub(super) fn named_by(route: &RoutePolicy) -> Vec<Named> {
    let named = |target: &sluice_core::policy::TargetPolicy| match &target.credential {
        Credential::Secret(key) => Some((Arc::clone(&target.name), key.clone())),
        Credential::Passthrough | Credential::None => None,
    };
    route.targets.iter().filter_map(named).collect()
}

/// The keys that the newest version of a route names which cannot be compiled.
pub(super) fn named_by_newest(entry: &RouteEntry) -> Vec<Named> {
    let parsed = entry.newest.iter().flat_map(|route| named_in(route));
    let unread = entry.unread.iter().flat_map(|unread| &unread.secret_keys);
    parsed.chain(unread.map(|key| ("?".into(), key.clone()))).collect()
}

fn named_in(route: &ModelRoute) -> Vec<Named> {
    let named = |target: &sluice_api::route::Target| {
        let reference = target.credential.secret_ref.as_ref()?;
        let key = SecretKey { name: reference.name.as_str().into(), key: reference.key.as_str().into() };
        Some((target.name.as_str().into(), key))
    };
    route.spec.targets.iter().filter_map(named).collect()
}

/// Looks up Secrets; what agents get of them goes into `out`, the rest is said.
pub(super) fn resolve(
    index: &Index,
    namespace: &Arc<str>,
    named: &[Named],
    out: &mut NamespacePolicies,
) -> Vec<Unresolved> {
    let mut unresolved = Vec::new();
    for (target, key) in named {
        let Problem { reason, what, held } = match look_up(index, namespace, key) {
            Ok(version) => {
                out.secrets.insert(key.clone(), version);
                continue;
            }
            Err(problem) => problem,
        };
        let target = &**target;
        let message = if held {
            out.held_secrets.insert(key.clone());
            format!("target {target:?} is passed over by agents that have no value of it yet: {what}")
        } else {
            format!("target {target:?} is passed over: {what}")
        };
        unresolved.push(Unresolved { reason, message });
    }
    unresolved
}

fn look_up(index: &Index, namespace: &Arc<str>, key: &SecretKey) -> Result<SecretVersion, Problem> {
    let of = Key { namespace: Arc::clone(namespace), name: Arc::clone(&key.name) };
    let not_readable = |what, held| Problem { reason: reason::SECRET_NOT_READABLE, what, held };
    let unusable = |reason, what| Problem { reason, what, held: false };
    if let Some(why) = index.secrets_unreadable(namespace) {
        return Err(not_readable(unreadable(&of, why), why == SecretsUnreadable::Forbidden));
    }
    let Some(secret) = index.secret(&of) else {
        if let Some(why) = index.failed_secret(&of) {
            return Err(not_readable(format!("Secret {of} can't be read yet: {why}"), true));
        }
        return Err(unusable(reason::SECRET_NOT_FOUND, format!("Secret {of} does not exist: create it")));
    };
    let Some(value) = value(secret, &key.key) else {
        let what = format!("Secret {of} has no key {:?}: add it", &*key.key);
        return Err(unusable(reason::SECRET_KEY_NOT_FOUND, what));
    };
    if let Some(fault) = fault(&value) {
        let what = format!("key {:?} of Secret {of} {fault}", &*key.key);
        return Err(unusable(reason::SECRET_INVALID, what));
    }
    let text = |text: &Option<String>| text.as_deref().unwrap_or_default().into();
    Ok(SecretVersion {
        uid: text(&secret.metadata.uid),
        resource_version: text(&secret.metadata.resource_version),
        value: SecretValue::new(value),
    })
}

fn unreadable(secret: &Key, why: SecretsUnreadable) -> String {
    let Key { namespace, .. } = secret;
    match why {
        SecretsUnreadable::NotWatched => format!(
            "Secret {secret} is in a namespace that the controller may not read Secrets of: add {namespace} to the \
             chart's watchNamespaces"
        ),
        SecretsUnreadable::Forbidden => format!(
            "Secret {secret} can't be read: the controller has no right to list, watch and get Secrets of namespace \
             {namespace}; give it a Role there, as the chart's watchNamespaces does"
        ),
    }
}

/// `stringData` rules over `data`, as when an API server takes a manifest.
fn value(secret: &Secret, key: &str) -> Option<Vec<u8>> {
    let text =
        secret.string_data.as_ref().and_then(|data| data.get(key)).map(|text| text.as_bytes().to_vec());
    text.or_else(|| secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.clone()))
}

/// Why a value cannot be sent as a header, without showing any of it.
fn fault(value: &[u8]) -> Option<&'static str> {
    if value.is_empty() {
        Some("is empty: give it a value")
    } else if value.len() > bounds::SECRET_BYTES {
        Some("is longer than 64 KiB: give it the credential alone")
    } else if value.ends_with(b"\n") {
        Some("ends with a line break: write it without one, as printf does")
    } else if !value.iter().all(|byte| (b' '..=b'~').contains(byte)) {
        Some("has characters that no header can carry: use visible ASCII")
    } else {
        None
    }
}
