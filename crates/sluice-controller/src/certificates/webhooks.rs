//! What the API server trusts when it calls our webhook: `caBundle` of the MutatingWebhookConfiguration.
//!
//! The chart renders none, so neither a client-side nor a server-side upgrade takes ours away: we apply that one field,
//! under our own name, to every webhook of the configuration, and only when it differs.

use std::collections::BTreeMap;
use std::time::Duration;

use data_encoding::BASE64;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::keeper::Adopted;
use super::pauses::Pauses;
use crate::clock;
use crate::lease::{Tenure, holds, within_tenure};
use crate::mirror::{Mirrored, mirror};
use crate::status::FIELD_MANAGER;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Webhooks by name, and what the API server trusts of each.
type Trusts = BTreeMap<String, Vec<u8>>;

/// Writes it, while this replica holds the lease.
pub(crate) struct TrustWriter {
    configurations: Api<MutatingWebhookConfiguration>,
    name: String,
    seen: Mirrored<Trusts>,
    adopted: Adopted,
    tenure: Tenure,
}

impl TrustWriter {
    /// The future is to be run beside it.
    pub(crate) fn new(
        client: Client,
        name: &str,
        adopted: Adopted,
        tenure: Tenure,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let configurations = Api::<MutatingWebhookConfiguration>::all(client);
        let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let (watch, seen) = mirror(configurations.clone(), only, read);
        (Self { configurations, name: name.to_owned(), seen, adopted, tenure }, watch)
    }

    /// Runs until it is dropped.
    pub(crate) async fn run(self) {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut pauses = Pauses::default();
        loop {
            look.tick().await;
            let now = clock::now();
            if pauses.rests(&(), now) {
                continue;
            }
            let Some(patch) = self.due().filter(|_| holds(&self.tenure, now)) else { continue };
            pauses.wrote((), now);
            let parameters = PatchParams::apply(FIELD_MANAGER).force();
            let patch = Patch::Apply(&patch);
            let written = self.configurations.patch(&self.name, &parameters, &patch);
            match within_tenure(&self.tenure, written).await {
                Some(Ok(_)) => tracing::info!(configuration = self.name, "the API server trusts the webhook"),
                Some(Err(error)) => {
                    tracing::warn!(configuration = self.name, %error, "caBundle was not written: it is tried again");
                }
                None => {}
            }
        }
    }

    /// What is to be applied; `None`: nothing differs, or there is nothing to compare yet.
    fn due(&self) -> Option<Value> {
        let bundle = self.adopted.borrow().as_ref()?.bundle();
        let mirror = self.seen.borrow();
        let (_, trusts) = mirror.present()?.iter().find(|(key, _)| *key.name == *self.name)?;
        let differs = trusts.values().any(|trusted| trusted != bundle.as_bytes());
        differs.then(|| patch(&self.name, trusts.keys(), &bundle))
    }
}

fn read(configuration: &MutatingWebhookConfiguration) -> Trusts {
    let webhooks = configuration.webhooks.iter().flatten();
    let trusts = webhooks.map(|webhook| {
        let bundle = webhook.client_config.ca_bundle.as_ref().map(|bundle| bundle.0.clone());
        (webhook.name.clone(), bundle.unwrap_or_default())
    });
    trusts.collect()
}

/// All webhooks: one that is left out would lose what was applied to it before.
fn patch<'a>(name: &str, webhooks: impl Iterator<Item = &'a String>, bundle: &str) -> Value {
    let bundle = BASE64.encode(bundle.as_bytes());
    let webhooks: Vec<Value> =
        webhooks.map(|webhook| json!({ "name": webhook, "clientConfig": { "caBundle": bundle } })).collect();
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": name },
        "webhooks": webhooks,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube::api::PostParams;

    use super::*;
    use crate::api_server::ApiServer;
    use crate::certificates::keeper::Keeper;
    use crate::certificates::material::Lives;

    fn configuration() -> MutatingWebhookConfiguration {
        let webhook = |name: &str| {
            json!({"name": name, "sideEffects": "NoneOnDryRun", "admissionReviewVersions": ["v1"],
                "clientConfig": {"service": {"name": "sluice-controller", "namespace": "sluice-system"}}})
        };
        serde_json::from_value(json!({
            "metadata": {"name": "sluice-injector"},
            "webhooks": [webhook("inject.sluice.dev"), webhook("inject-pod.sluice.dev")],
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn the_api_server_is_told_whom_to_trust_and_only_when_that_differs() {
        let server = ApiServer::default();
        let (keeper, adopted) = Keeper::new(
            server.client(),
            "sluice-system",
            "sluice-controller",
            Lives::default(),
            Arc::new(|| 1_800_000_000),
        );
        let (_tenure, tenure) = tokio::sync::watch::channel(None);
        let (writer, watch) = TrustWriter::new(server.client(), "sluice-injector", adopted, tenure);
        let mut seen = writer.seen.clone();
        let _watch = tokio::spawn(watch);
        seen.wait_for(|mirror| mirror.present().is_some()).await.unwrap();
        assert_eq!(writer.due(), None, "neither a certificate nor a configuration");
        keeper.look().await.unwrap();
        assert_eq!(writer.due(), None, "no configuration");
        let configurations = Api::<MutatingWebhookConfiguration>::all(server.client());
        configurations.create(&PostParams::default(), &configuration()).await.unwrap();
        seen.wait_for(|mirror| mirror.present().is_some_and(|present| !present.is_empty())).await.unwrap();
        let patch = writer.due().unwrap();
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        configurations.patch("sluice-injector", &parameters, &Patch::Apply(&patch)).await.unwrap();
        let bundle = writer.adopted.borrow().as_ref().unwrap().bundle();
        let now = configurations.get("sluice-injector").await.unwrap();
        assert_eq!(read(&now).len(), 2);
        assert!(read(&now).values().all(|trusted| trusted == bundle.as_bytes()));
        assert!(now.webhooks.iter().flatten().all(|webhook| webhook.client_config.service.is_some()));
        seen.wait_for(|mirror| mirror.present().unwrap().values().all(|trusts| *trusts == read(&now)))
            .await
            .unwrap();
        assert_eq!(writer.due(), None);
    }
}
