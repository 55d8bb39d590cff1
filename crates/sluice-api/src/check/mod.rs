//! Manifests in, typed resources or problems out.
