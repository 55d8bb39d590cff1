//! What a replica is told at its start.

/// One replica's settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// Its own namespace, where the Lease is.
    pub namespace: String,
    /// Its own pod: the holder's name in the Lease.
    pub pod: String,
    /// The Lease.
    pub lease: String,
    /// Namespaces whose Secrets may be read.
    pub secret_namespaces: Vec<String>,
    /// Every namespace's.
    pub all_secrets: bool,
}
