//! The control plane's own authority: made, kept in a Secret, rotated, and published to those who trust it.
//!
//! | module | what it does |
//! |---|---|
//! | [`material`] | what there is and what is due: pure |
//! | [`keeper`] | keeps the Secret, whichever replica is first |
//! | [`bundles`] | the ConfigMap in each namespace that uses it |
//! | [`webhooks`] | what the API server trusts when it calls the webhook |
//! | [`pauses`] | how often these two write |
//!
//! Every replica may do what is due to the Secret: each write names the version that it replaces, so of two who try,
//! one succeeds and the other adopts what that one made. What is published is written by the holder of the Lease.

pub(crate) mod bundles;
pub(crate) mod keeper;
pub(crate) mod material;
mod pauses;
pub(crate) mod webhooks;

use std::sync::Arc;
use std::time::Duration;

pub use material::Lives;

use crate::connections::Shown;
use crate::metrics::ControllerMetrics;
use keeper::Adopted;

/// Name of the Secret, and of the ConfigMap in each namespace.
pub(crate) const NAME: &str = "sluice-ca";
/// The ConfigMap's key with all trusted authorities, PEM.
pub(crate) const BUNDLE_KEY: &str = "ca.crt";

/// An API server that does not answer a write is given this long: the connection may be dead without a word.
const WRITE_WITHIN: Duration = Duration::from_secs(10);

/// Shows new connections the newest serving certificate. Ends with the keeper.
pub(crate) async fn show(mut adopted: Adopted, shown: Arc<Shown>, metrics: Arc<ControllerMetrics>) {
    loop {
        let newest = adopted.borrow_and_update().clone();
        if let Some(material) = newest {
            metrics.adopted(&material);
            let serving = material.serving();
            if let Some(Err(error)) = serving.map(|serving| shown.show(&serving.certificate, &serving.key)) {
                tracing::error!(
                    error = format!("{error:#}"),
                    "the new certificate can't be used: the one before is shown on"
                );
            }
        }
        if adopted.changed().await.is_err() {
            return;
        }
    }
}
