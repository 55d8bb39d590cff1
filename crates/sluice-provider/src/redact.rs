//! Credentials are never kept: what is remembered of them is a fingerprint, enough to tell two apart.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use http::{HeaderMap, Uri};

const SECRET_HEADERS: [&str; 8] = [
    "authorization",
    "proxy-authorization",
    "x-api-key",
    "api-key",
    "x-goog-api-key",
    "cookie",
    "set-cookie",
    "x-amz-security-token",
];
const SECRET_PARAMETERS: [&str; 5] = ["key", "api_key", "api-key", "access_token", "sig"];

/// What [`crate::Call::headers`] shows in place of a credential: `redacted:` and 16 hex digits, the same for the
/// same value (with its scheme, as in `Bearer sk-…`). It tells keys apart and protects none that can be guessed.
pub fn fingerprint(value: &str) -> String {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    format!("redacted:{:016x}", hasher.finish())
}

/// Headers as they are remembered.
pub(crate) fn headers(map: &HeaderMap) -> BTreeMap<String, String> {
    let mut kept: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in map {
        let value = String::from_utf8_lossy(value.as_bytes());
        let value =
            if SECRET_HEADERS.contains(&name.as_str()) { fingerprint(&value) } else { value.into_owned() };
        kept.entry(name.as_str().to_owned())
            .and_modify(|before| {
                before.push_str(", ");
                before.push_str(&value);
            })
            .or_insert(value);
    }
    kept
}

/// Path and query as they are remembered.
pub(crate) fn path(uri: &Uri) -> String {
    let Some(query) = uri.query() else { return uri.path().to_owned() };
    let parts: Vec<String> = query
        .split('&')
        .map(|part| match part.split_once('=') {
            Some((name, value)) if SECRET_PARAMETERS.contains(&name) => {
                format!("{name}={}", fingerprint(value))
            }
            _ => part.to_owned(),
        })
        .collect();
    format!("{}?{}", uri.path(), parts.join("&"))
}

#[cfg(test)]
mod tests {
    use super::{fingerprint, headers, path};
    use http::HeaderMap;

    #[test]
    fn credentials_leave_a_fingerprint_only() {
        let mut map = HeaderMap::new();
        map.insert("authorization", "Bearer sk-secret".parse().unwrap());
        map.insert("x-api-key", "sk-other".parse().unwrap());
        map.append("x-many", "a".parse().unwrap());
        map.append("x-many", "b".parse().unwrap());
        let kept = headers(&map);
        assert_eq!(kept["authorization"], fingerprint("Bearer sk-secret"));
        assert_ne!(kept["authorization"], kept["x-api-key"]);
        assert_eq!(kept["x-many"], "a, b");
        assert!(!format!("{kept:?}").contains("sk-"));
        let kept = path(&"/v1/x?key=AIza&alt=sse".parse().unwrap());
        assert_eq!(kept, format!("/v1/x?key={}&alt=sse", fingerprint("AIza")));
    }
}
