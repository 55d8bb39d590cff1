//! What the API server trusts when it calls our webhook: `caBundle` of the MutatingWebhookConfiguration.
//!
//! The chart renders none, so neither a client-side nor a server-side upgrade takes ours away: we apply that one field,
//! under our own name, to every webhook of the configuration, and only when it differs.

use std::collections::BTreeMap;
use std::time::Duration;

use data_encoding::BASE64;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::WRITE_WITHIN;
use super::keeper::Adopted;
use super::pauses::Pauses;
use crate::clock;
use crate::lease::{Tenure, holds, within_tenure};
use crate::mirror::{Mirrored, mirror};
use crate::status::FIELD_MANAGER;
use crate::watch;

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
        let only = watch::config().fields(&format!("metadata.name={name}"));
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
            let written = tokio::time::timeout(WRITE_WITHIN, written);
            let configuration = &self.name;
            match within_tenure(&self.tenure, written).await {
                Some(Ok(Ok(_))) => tracing::info!(configuration, "the API server trusts the webhook"),
                Some(Ok(Err(error))) => {
                    tracing::warn!(configuration, %error, "caBundle was not written: it is tried again");
                }
                Some(Err(_)) => {
                    tracing::warn!(configuration, "caBundle was not written in time: it is tried again");
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
    use tokio::task::JoinSet;

    use super::*;
    use crate::api_server::{ApiServer, Fault};
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

    /// What it shows is followed for as long as the set lives.
    fn writer(server: &ApiServer, tenure: Tenure) -> (Keeper, TrustWriter, JoinSet<()>) {
        let clock = Arc::new(|| 1_800_000_000);
        let (keeper, adopted) =
            Keeper::new(server.client(), "sluice-system", "sluice-controller", Lives::default(), clock);
        let (writer, watch) = TrustWriter::new(server.client(), "sluice-injector", adopted, tenure);
        let mut tasks = JoinSet::new();
        tasks.spawn(watch);
        (keeper, writer, tasks)
    }

    #[tokio::test]
    async fn the_api_server_is_told_whom_to_trust_and_only_when_that_differs() {
        let server = ApiServer::default();
        let (_tenure, tenure) = tokio::sync::watch::channel(None);
        let (keeper, writer, _tasks) = writer(&server, tenure);
        let mut seen = writer.seen.clone();
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

    #[tokio::test(start_paused = true)]
    async fn a_write_that_nobody_answers_is_given_up_and_tried_again() {
        const CONFIGURATIONS: &str = "apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
        let server = ApiServer::default();
        let (_tenure, tenure) = tokio::sync::watch::channel(Some(clock::now() + Duration::from_hours(1)));
        let (keeper, writer, mut tasks) = writer(&server, tenure);
        keeper.look().await.unwrap();
        server.put(CONFIGURATIONS, json!(configuration()));
        server.spoil(CONFIGURATIONS, Fault::Vanishes);
        tasks.spawn(writer.run());
        while server.faults_met() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        server.mend(CONFIGURATIONS);
        let trusted = async {
            let trusts = |object: &Value| object["webhooks"][0]["clientConfig"]["caBundle"].is_string();
            while !server.get(CONFIGURATIONS, "", "sluice-injector").as_ref().is_some_and(trusts) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(2 * WRITE_WITHIN, trusted).await.unwrap();
    }
}
