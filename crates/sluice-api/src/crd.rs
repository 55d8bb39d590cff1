//! The CRDs as an API server takes them.
