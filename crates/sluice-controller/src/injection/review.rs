//! What the API server asks of a webhook, and the answer (`admission.k8s.io/v1`).
//!
//! Why not kube's own types: those read the whole body into a tree first (old object, options and all), at many times
//! its size. Here the object stays text until the rest was read, so that also an object that cannot be read is allowed,
//! and answered with the question's uid.

use data_encoding::BASE64;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::pod::Add;

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// A question.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Request<'a> {
    pub(crate) uid: String,
    #[serde(default)]
    pub(crate) namespace: String,
    pub(crate) operation: String,
    #[serde(default)]
    pub(crate) sub_resource: Option<String>,
    #[serde(default)]
    pub(crate) dry_run: Option<bool>,
    #[serde(borrow, default)]
    pub(crate) object: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    api_version: String,
    kind: String,
    #[serde(borrow)]
    request: Option<Request<'a>>,
}

/// It is no question that could be answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidReview {
    #[error("the body is no AdmissionReview: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the body is a {kind} of {api_version}: send an AdmissionReview of admission.k8s.io/v1")]
    Version { kind: String, api_version: String },
    #[error("the AdmissionReview has no request")]
    NoRequest,
}

pub(crate) fn read(body: &[u8]) -> Result<Request<'_>, InvalidReview> {
    let review: Review<'_> = serde_json::from_slice(body)?;
    if (review.api_version.as_str(), review.kind.as_str()) != (API_VERSION, KIND) {
        let Review { kind, api_version, .. } = review;
        return Err(InvalidReview::Version { kind, api_version });
    }
    review.request.ok_or(InvalidReview::NoRequest)
}

/// An answer: always that it is allowed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Answer {
    api_version: &'static str,
    kind: &'static str,
    response: Response,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    uid: String,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    /// The patch's JSON in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

impl Answer {
    /// An empty patch changes nothing.
    pub(crate) fn new(uid: String, patch: &[Add], warnings: Vec<String>) -> serde_json::Result<Self> {
        let patch = if patch.is_empty() { None } else { Some(BASE64.encode(&serde_json::to_vec(patch)?)) };
        let patch_type = patch.is_some().then_some("JSONPatch");
        let response = Response { uid, allowed: true, patch_type, patch, warnings };
        Ok(Self { api_version: API_VERSION, kind: KIND, response })
    }
}
