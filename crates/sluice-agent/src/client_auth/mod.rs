//! Who may spend at a gateway. Beside one application the loopback address is the answer; a gateway is reached by
//! others, and an open gateway is an open purse.
//!
//! A client shows its key or token where its SDK puts API keys, so that an application needs its base URL changed and
//! nothing else: `Authorization: Bearer` (OpenAI), `x-api-key` (Anthropic), `api-key` (Azure). What came there was for
//! this gateway, so it is taken away with every other credential, and a target with `credential: Passthrough` is passed
//! over for want of one. A client that has a provider's key of its own as well shows the gateway's in
//! `x-sluice-client-key`; the other headers then go on to `Passthrough` targets, but never with the gateway's key in them.
//!
//! A refusal is always the same 401, whatever is wrong: missing, unknown, expired, another namespace's. Where nothing can
//! be said of a token now, it is a 503 that asks to come back: an SDK gives up at a 401.

mod keys;
mod reviews;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};

use crate::ask::Unreadable;
use crate::clock::Clock;
use crate::headers::{self, API_KEY, X_API_KEY};

use keys::Keys;
use reviews::Reviews;

/// The audience of clients' ServiceAccount tokens.
pub const AUDIENCE: &str = "sluice-client";
/// The longest key or token that is looked at.
const MAX_CREDENTIAL_BYTES: usize = 16 * 1024;

/// Who is served.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// Everyone who can connect.
    #[default]
    None,
    /// Who knows the content of one of a folder's files.
    Keys { folder: PathBuf },
    /// Pods of these namespaces, by ServiceAccount tokens of audience [`AUDIENCE`].
    Tokens { namespaces: BTreeSet<String>, api_server: ApiServer },
}

/// The API server that reviews tokens, and what this gateway shows there: files, read anew for each review.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiServer {
    /// An https URL without a path.
    pub url: String,
    pub authorities: PathBuf,
    pub token: PathBuf,
}

/// The same at work.
pub(crate) enum Clients {
    Everyone,
    Keys(Arc<Keys>),
    Tokens(Box<Reviews>),
}

/// Why a client is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denied {
    Unauthenticated,
    /// Its token could not be reviewed now.
    Unverified,
}

/// What has become of the caller's own credentials.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum CallersCredential {
    /// As it came: for targets that pass it on.
    #[default]
    Kept,
    /// It was this gateway's.
    Spent,
}

impl From<Denied> for Unreadable {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Unauthenticated => Self::Unauthenticated,
            Denied::Unverified => Self::Unverified,
        }
    }
}

impl Clients {
    /// # Errors
    /// When there are no keys to read, or no API server to ask.
    pub(crate) fn new(auth: ClientAuth, clock: Clock) -> anyhow::Result<Self> {
        Ok(match auth {
            ClientAuth::None => Self::Everyone,
            ClientAuth::Keys { folder } => Self::Keys(Arc::new(Keys::load(folder)?)),
            ClientAuth::Tokens { namespaces, api_server } => {
                Self::Tokens(Box::new(Reviews::new(api_server, namespaces, clock)?))
            }
        })
    }

    /// Lets a request in, and takes what it showed out of its headers.
    pub(crate) async fn admit(&self, headers: &mut HeaderMap) -> Result<CallersCredential, Denied> {
        if matches!(self, Self::Everyone) {
            return Ok(CallersCredential::Kept);
        }
        let shown = Shown::of(headers).ok_or(Denied::Unauthenticated)?;
        let known = match self {
            Self::Everyone => true,
            Self::Keys(keys) => keys.contain(shown.secret()),
            // Boxed: few requests wait for a review, and all would have room for it.
            Self::Tokens(reviews) => Box::pin(reviews.good(shown.secret())).await?,
        };
        if known { Ok(shown.take_from(headers)) } else { Err(Denied::Unauthenticated) }
    }

    /// Keeps up with what changes.
    pub(crate) async fn follow(&self) {
        if let Self::Keys(keys) = self {
            keys.clone().follow().await;
        }
    }

    /// Why nobody can be let in; `None`: some can.
    pub(crate) fn unready(&self) -> Option<String> {
        match self {
            Self::Keys(keys) => keys.unready(),
            Self::Everyone | Self::Tokens(_) => None,
        }
    }
}

/// The credential that a client means for this gateway.
struct Shown {
    header: HeaderName,
    value: HeaderValue,
}

impl Shown {
    /// The first header of these that there is; one that is there twice is none.
    fn of(headers: &HeaderMap) -> Option<Self> {
        let header = [headers::CLIENT_KEY, AUTHORIZATION, X_API_KEY, API_KEY]
            .into_iter()
            .find(|name| headers.contains_key(name))?;
        let mut values = headers.get_all(&header).iter();
        let value = values.next().filter(|_| values.next().is_none())?.clone();
        let shown = Self { header, value };
        let length = shown.secret().len();
        (length > 0 && length <= MAX_CREDENTIAL_BYTES).then_some(shown)
    }

    fn secret(&self) -> &[u8] {
        if self.header == AUTHORIZATION { bearer(&self.value) } else { self.value.as_bytes().trim_ascii() }
    }

    fn take_from(&self, headers: &mut HeaderMap) -> CallersCredential {
        headers.remove(&self.header);
        if self.header != headers::CLIENT_KEY {
            headers::strip_credentials(headers);
            return CallersCredential::Spent;
        }
        for name in [AUTHORIZATION, X_API_KEY, API_KEY] {
            let same = |value: &HeaderValue| {
                value.as_bytes().trim_ascii() == self.secret() || bearer(value) == self.secret()
            };
            if headers.get_all(&name).iter().any(same) {
                headers.remove(&name);
            }
        }
        CallersCredential::Kept
    }
}

/// What is behind `Bearer `, in any case (RFC 9110 § 11.1); empty for another scheme.
fn bearer(value: &HeaderValue) -> &[u8] {
    match value.as_bytes().split_at_checked(7) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => token.trim_ascii(),
        _ => b"",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn shown(pairs: &[(&'static str, &'static str)]) -> Option<String> {
        let shown = Shown::of(&headers(pairs))?;
        Some(String::from_utf8_lossy(shown.secret()).into_owned())
    }

    #[test]
    fn a_key_is_found_where_each_sdk_puts_it() {
        for (pairs, found) in [
            (&[("authorization", "Bearer k")][..], Some("k")),
            (&[("authorization", "bEARER  k ")], Some("k")),
            (&[("x-api-key", "k")], Some("k")),
            (&[("api-key", "k")], Some("k")),
            (&[("x-sluice-client-key", "k"), ("authorization", "Bearer other")], Some("k")),
            (&[("authorization", "Bearer k"), ("x-api-key", "other")], Some("k")),
            (&[], None),
            (&[("authorization", "Basic k")], None),
            (&[("authorization", "Bearer")], None),
            (&[("authorization", "Bearer ")], None),
            (&[("x-api-key", "")], None),
            (&[("x-api-key", "k"), ("x-api-key", "k")], None),
            (&[("cookie", "k")], None),
        ] {
            assert_eq!(shown(pairs).as_deref(), found, "{pairs:?}");
        }
    }

    #[test]
    fn what_was_shown_never_goes_on() {
        let mut sent =
            headers(&[("authorization", "Bearer k"), ("x-api-key", "p"), ("cookie", "c"), ("x-other", "o")]);
        let shown = Shown::of(&sent).unwrap();
        assert_eq!(shown.take_from(&mut sent), CallersCredential::Spent);
        assert_eq!(sent, headers(&[("x-other", "o")]));

        let mut sent = headers(&[
            ("x-sluice-client-key", "k"),
            ("authorization", "Bearer p"),
            ("x-api-key", "k"),
            ("api-key", "Bearer k"),
        ]);
        let shown = Shown::of(&sent).unwrap();
        assert_eq!(shown.take_from(&mut sent), CallersCredential::Kept);
        assert_eq!(
            sent,
            headers(&[("authorization", "Bearer p")]),
            "the provider's own, and no copy of ours"
        );
    }
}
