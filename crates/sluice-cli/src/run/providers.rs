//! Scripted providers at the loopback addresses that the routes name, so that a run needs nobody else.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use sluice_core::policy::RoutePolicy;
use sluice_provider::{Provider, Scenario};
use tokio::net::TcpListener;

use super::feed::Playing;
use crate::clock;
use crate::view::Phases;

/// What a provider plays when no scenario says otherwise.
const HEALTHY: &str = include_str!("../../../../e2e/manifests/scenarios/healthy.yaml");

pub(super) struct Providers {
    servers: Vec<Provider>,
    playing: Option<Playing>,
    skipped: Vec<String>,
}

impl Providers {
    /// One provider per address; those of the targets of first priority play the scenario, all others are well.
    pub(super) async fn start(
        routes: &[Arc<RoutePolicy>],
        directory: &Path,
        scenario: Option<&str>,
    ) -> anyhow::Result<Self> {
        let script = scenario.map(|name| read(directory, name)).transpose()?;
        let healthy = Scenario::from_yaml(HEALTHY).context("the built-in scenario")?;
        let addresses = addresses(routes);
        anyhow::ensure!(
            !addresses.is_empty(),
            "--provider: no target has an http endpoint at a loopback address; name one such as http://127.0.0.1:9001/v1"
        );
        anyhow::ensure!(
            script.is_none() || addresses.values().any(|first| *first),
            "--scenario: no target of first priority has an http endpoint at a loopback address, where it could be played"
        );
        let mut servers = Vec::new();
        for (address, first) in addresses {
            let listener = TcpListener::bind(address).await.with_context(|| {
                format!(
                    "--provider: cannot listen on {address}, the endpoint of a target; \
                     end what uses it, or give the target another endpoint"
                )
            })?;
            let plays = script.as_ref().map(|script| &script.plays).filter(|_| first);
            servers.push(Provider::serve(listener, plays.unwrap_or(&healthy).clone())?);
        }
        let phases = script.and_then(|script| Phases::of(&script.name, &script.plays));
        Ok(Self {
            servers,
            playing: phases.map(|phases| Playing { phases, since: clock::now() }),
            skipped: not_played(routes),
        })
    }

    /// Endpoints of this machine at which no provider is played, and why, for people.
    pub(super) fn not_played(&self) -> &[String] {
        &self.skipped
    }

    pub(super) fn phases(&self) -> Option<Playing> {
        self.playing.clone()
    }

    pub(super) async fn shutdown(self) {
        for server in &self.servers {
            server.shutdown().await;
        }
    }
}

/// The loopback addresses of all targets, and whether a target of its route's first priority is there.
fn addresses(routes: &[Arc<RoutePolicy>]) -> BTreeMap<SocketAddr, bool> {
    let mut found = BTreeMap::new();
    for route in routes {
        let first = route.targets.iter().map(|target| target.priority).min();
        for target in &route.targets {
            if let Some(address) = loopback(&target.endpoint) {
                *found.entry(address).or_insert(false) |= Some(target.priority) == first;
            }
        }
    }
    found
}

/// A scripted provider has no certificate that an agent would trust, so it speaks http alone.
fn not_played(routes: &[Arc<RoutePolicy>]) -> Vec<String> {
    let targets = routes.iter().flat_map(|route| route.targets.iter().map(move |target| (route, target)));
    let of_tls = targets.filter(|(_, target)| is_tls_loopback(&target.endpoint));
    of_tls
        .map(|(route, target)| {
            format!(
                "{}/{}: {} is not played, as scripted providers speak http: write http://, or serve it yourself",
                route.name, target.name, target.endpoint
            )
        })
        .collect()
}

fn is_tls_loopback(endpoint: &str) -> bool {
    let plain = endpoint.strip_prefix("https://").map(|rest| format!("http://{rest}"));
    plain.is_some_and(|plain| loopback(&plain).is_some())
}

/// Where an http endpoint of this machine listens.
fn loopback(endpoint: &str) -> Option<SocketAddr> {
    let uri = endpoint.parse::<http::Uri>().ok().filter(|uri| uri.scheme_str() == Some("http"))?;
    let authority = uri.authority()?;
    let host = if authority.host() == "localhost" { "127.0.0.1" } else { authority.host() };
    let address = SocketAddr::new(host.trim_matches(['[', ']']).parse().ok()?, authority.port_u16()?);
    super::is_loopback(address.ip()).then_some(address)
}

/// A scenario of the user's choice.
struct Script {
    /// The file's name without its end.
    name: String,
    plays: Scenario,
}

/// By its file, or by its name in the folder `scenarios` beside the manifests' directory.
fn read(directory: &Path, name: &str) -> anyhow::Result<Script> {
    let folder = directory.join("..").join("scenarios");
    let named = folder.join(format!("{name}.yaml"));
    let path = if Path::new(name).is_file() { Path::new(name) } else { &named };
    anyhow::ensure!(
        path.is_file(),
        "--scenario {name}: neither a file nor a name in {}; {}",
        folder.display(),
        choices(&folder)
    );
    let plays = Scenario::from_file(path)
        .map_err(|error| anyhow::anyhow!("--scenario {}: {error}", path.display()))?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    Ok(Script { name: stem.into_owned(), plays })
}

fn choices(folder: &Path) -> String {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let scenarios = files.filter(|file| file.extension().is_some_and(|end| end == "yaml"));
    let mut names: Vec<String> =
        scenarios.filter_map(|file| Some(file.file_stem()?.to_string_lossy().into_owned())).collect();
    names.sort();
    if names.is_empty() {
        "there are none: name a file".to_owned()
    } else {
        format!("there are: {}", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_at_this_machine_is_played_and_https_is_not() {
        for (endpoint, played, told) in [
            ("http://127.0.0.1:9001/v1", true, false),
            ("http://localhost:9001/v1", true, false),
            ("http://[::1]:9001/v1", true, false),
            ("https://127.0.0.1:9001/v1", false, true),
            ("https://localhost:9001/v1", false, true),
            ("https://[::1]:9001/v1", false, true),
            ("http://127.0.0.1/v1", false, false),
            ("https://models.example/v1", false, false),
            ("http://192.0.2.1:80/v1", false, false),
        ] {
            assert_eq!(
                (loopback(endpoint).is_some(), is_tls_loopback(endpoint)),
                (played, told),
                "{endpoint}"
            );
        }
    }
}
