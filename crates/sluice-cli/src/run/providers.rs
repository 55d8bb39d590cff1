//! Scripted providers at the loopback addresses that the routes name, so that a run needs nobody else.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use sluice_core::policy::RoutePolicy;
use sluice_provider::{Provider, Scenario};
use tokio::net::TcpListener;

use super::feed::Playing;
use crate::clock;
use crate::view::Phases;

/// What a provider plays when no scenario says otherwise.
const HEALTHY: &str = "default: {ttft: 300ms, perToken: 20ms, jitterPercent: 20, tokens: 40}";

pub(super) struct Providers {
    providers: Vec<Provider>,
    playing: Option<Playing>,
}

impl Providers {
    /// One provider per address; the first target of the first route plays the scenario, all others are well.
    pub(super) async fn start(
        routes: &[Arc<RoutePolicy>],
        directory: &Path,
        scenario: Option<&str>,
    ) -> anyhow::Result<Self> {
        let script = scenario.map(|name| read(directory, name)).transpose()?;
        let healthy = Scenario::from_yaml(HEALTHY).context("the built-in scenario")?;
        let mut providers = Vec::new();
        let mut playing = None;
        for (address, first) in addresses(routes) {
            let listener = TcpListener::bind(address).await.with_context(|| {
                format!("{address}: a route names it and --provider plays it, but it is in use")
            })?;
            let plays = script.as_ref().filter(|_| first);
            if let (Some(name), Some(scenario)) = (scenario, plays) {
                let name = Path::new(name).file_stem().map_or(name.into(), |stem| stem.to_string_lossy());
                let phases = Phases::of(&name, scenario);
                playing = phases.map(|phases| Playing { phases, since: clock::now() });
            }
            providers.push(Provider::serve(listener, plays.unwrap_or(&healthy).clone())?);
        }
        anyhow::ensure!(
            !providers.is_empty(),
            "--provider: no target has an endpoint at a loopback address, such as http://127.0.0.1:9001/v1"
        );
        Ok(Self { providers, playing })
    }

    pub(super) fn phases(&self) -> Option<Playing> {
        self.playing.clone()
    }

    pub(super) async fn shutdown(self) {
        for provider in &self.providers {
            provider.shutdown().await;
        }
    }
}

/// The loopback addresses of all targets, and which of them is the first target's.
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

fn loopback(endpoint: &str) -> Option<SocketAddr> {
    let authority = endpoint.parse::<http::Uri>().ok()?.authority()?.clone();
    let host = if authority.host() == "localhost" { "127.0.0.1" } else { authority.host() };
    let address = SocketAddr::new(host.trim_matches(['[', ']']).parse().ok()?, authority.port_u16()?);
    super::is_loopback(address.ip()).then_some(address)
}

/// A scenario by its file, or by its name in the folder `scenarios` beside the manifests' directory.
fn read(directory: &Path, name: &str) -> anyhow::Result<Scenario> {
    let named = directory.join("..").join("scenarios").join(format!("{name}.yaml"));
    let path = if Path::new(name).is_file() { PathBuf::from(name) } else { named };
    let text = std::fs::read_to_string(&path).with_context(|| {
        format!("--scenario {name}: neither a file nor {}{}", path.display(), others(&path))
    })?;
    Scenario::from_yaml(&text).with_context(|| format!("--scenario {}", path.display()))
}

/// The scenarios that are there.
fn others(path: &Path) -> String {
    let Some(entries) = path.parent().and_then(|folder| std::fs::read_dir(folder).ok()) else {
        return String::new();
    };
    let mut names: Vec<String> = entries
        .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_string_lossy().into_owned()))
        .collect();
    names.sort();
    format!("; there are: {}", names.join(", "))
}
