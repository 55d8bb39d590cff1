//! The control plane's own authority: made, kept in a Secret, rotated, and published to the namespaces that use it.

mod material;
