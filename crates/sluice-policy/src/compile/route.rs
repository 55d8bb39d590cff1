//! A `ModelRoute` in core's words, before any policy rules its targets.

use std::sync::Arc;

use sluice_api::ModelRoute;
use sluice_api::route as api;
use sluice_core::policy::{self as core, ModelPattern, ObjectKind, ObjectRef, RoutePolicy, Rules, SecretKey};
use sluice_core::target_id::TargetId;
use sluice_proto::decode;

use super::groups::lane;
use crate::index::{Key, created_ms};

/// What a route says. Its targets have built-in rules; `compile` puts the policies' in their place.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteDraft {
    pub policy: RoutePolicy,
    pub workloads: Option<api::WorkloadSelector>,
    /// Per target the name that it shares its breaker and quota by, where it has one.
    pub dependencies: Vec<Option<Arc<str>>>,
}

/// Why a route cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRoute {
    #[error("{field} is missing: the type {kind} needs it")]
    MissingMember { field: &'static str, kind: &'static str },
    #[error("target {target:?}: {field} is missing: the type {kind} needs it")]
    MissingTargetMember { target: String, field: &'static str, kind: &'static str },
    #[error("target {target:?}: {field} is {value:?}: write a decimal number such as \"2.50\"")]
    Price { target: String, field: &'static str, value: String },
    #[error("{0}")]
    Wire(#[from] decode::InvalidRoute),
}

impl RouteDraft {
    /// Reads a route.
    ///
    /// # Errors
    /// [`InvalidRoute`]: the first thing that cannot be compiled.
    pub fn read(route: &ModelRoute) -> Result<Self, InvalidRoute> {
        let spec = &route.spec;
        let Key { namespace, name } = Key::of(&route.metadata);
        let itself = ObjectRef {
            kind: ObjectKind::ModelRoute,
            namespace: Arc::clone(&namespace),
            name: Arc::clone(&name),
            generation: route.metadata.generation.unwrap_or(0),
        };
        let targets = spec.targets.iter().map(|wire| target(wire, &namespace, &name));
        let targets = targets.collect::<Result<Vec<_>, _>>()?;
        let policy = RoutePolicy {
            created_ms: created_ms(&route.metadata),
            sources: vec![itself],
            models: spec.models.iter().map(|model| ModelPattern::parse(model)).collect(),
            format: format(spec.format, &targets),
            tenant: tenant(spec.tenant.as_ref())?,
            lanes: lanes(spec.lanes.as_ref()),
            degraded: degraded(spec.degraded.as_ref())?,
            other_paths: match spec.other_paths {
                api::OtherPaths::Refuse => core::OtherPaths::Refuse,
                api::OtherPaths::PassThrough => core::OtherPaths::PassThrough,
            },
            target_header: match spec.target_header {
                api::TargetHeader::Ignore => core::TargetHeader::Ignore,
                api::TargetHeader::Allow => core::TargetHeader::Allow,
            },
            targets,
            namespace,
            name,
        };
        // Agents decode exactly this.
        let policy = decode::route(sluice_proto::encode::route(&policy))?;
        let dependencies = spec.targets.iter().map(|target| target.dependency.as_deref());
        Ok(Self {
            policy,
            workloads: spec.workloads.clone(),
            dependencies: dependencies
                .map(|name| name.filter(|name| !name.is_empty()).map(Into::into))
                .collect(),
        })
    }
}

/// What is not written is what the targets speak; where they differ, decoding refuses the others.
fn format(written: Option<api::WireFormat>, targets: &[core::TargetPolicy]) -> core::WireFormat {
    match written {
        Some(api::WireFormat::OpenAi) => core::WireFormat::OpenAi,
        Some(api::WireFormat::Anthropic) => core::WireFormat::Anthropic,
        None => targets.first().map_or(core::WireFormat::OpenAi, |target| target.provider.format()),
    }
}

/// A header's default that is absent is the workload, as an empty default is on the wire.
fn tenant(tenant: Option<&api::Tenant>) -> Result<core::TenantSource, InvalidRoute> {
    Ok(match tenant {
        Some(tenant) if tenant.type_ == api::TenantType::Header => core::TenantSource::Header {
            header: tenant
                .header
                .as_deref()
                .ok_or(InvalidRoute::MissingMember { field: "tenant.header", kind: "Header" })?
                .into(),
            default: tenant.default.as_deref().unwrap_or_default().into(),
        },
        _ => core::TenantSource::Workload,
    })
}

fn lanes(lanes: Option<&api::Lanes>) -> core::LaneChoice {
    let rule = |rule: &api::LaneRule| core::LaneRule {
        header: rule.header.as_str().into(),
        value: rule.value.as_str().into(),
        lane: lane(rule.lane),
    };
    core::LaneChoice {
        default: lanes.map_or(core::Lane::Interactive, |lanes| lane(lanes.default)),
        rules: lanes.map_or_else(Vec::new, |lanes| lanes.rules.iter().map(rule).collect()),
    }
}

fn degraded(degraded: Option<&api::Degraded>) -> Result<core::Degraded, InvalidRoute> {
    let missing = |field, kind| InvalidRoute::MissingMember { field, kind };
    let Some(degraded) = degraded else { return Ok(core::Degraded::Reject) };
    Ok(match degraded.type_ {
        api::DegradedType::Reject => core::Degraded::Reject,
        api::DegradedType::Static => {
            let answer = degraded.static_.as_ref().ok_or_else(|| missing("degraded.static", "Static"))?;
            core::Degraded::Static { text: answer.text.as_str().into() }
        }
        api::DegradedType::Backend => {
            let backend = degraded.backend.as_ref().ok_or_else(|| missing("degraded.backend", "Backend"))?;
            core::Degraded::Backend { endpoint: backend.endpoint.as_str().into() }
        }
    })
}

fn target(target: &api::Target, namespace: &str, route: &str) -> Result<core::TargetPolicy, InvalidRoute> {
    let model = target.model.as_deref().filter(|model| !model.is_empty());
    let own = || format!("{route}/{}", target.name);
    let dependency = target.dependency.clone().filter(|name| !name.is_empty()).unwrap_or_else(own);
    Ok(core::TargetPolicy {
        name: target.name.as_str().into(),
        id: TargetId::of(namespace, &dependency, &target.endpoint, model.unwrap_or_default()),
        provider: match target.provider {
            api::Provider::OpenAi => core::Provider::OpenAi,
            api::Provider::Anthropic => core::Provider::Anthropic,
            api::Provider::AzureOpenAi => core::Provider::AzureOpenAi,
            api::Provider::OpenAiCompatible => core::Provider::OpenAiCompatible,
        },
        endpoint: target.endpoint.as_str().into(),
        model: model.map(Into::into),
        region: target.region.as_deref().unwrap_or_default().into(),
        credential: credential(target)?,
        priority: target.priority,
        weight: target.weight,
        price: target.price.as_ref().map(|amounts| price(target, amounts)).transpose()?,
        rules: Rules::default(),
    })
}

fn credential(target: &api::Target) -> Result<core::Credential, InvalidRoute> {
    Ok(match target.credential.type_ {
        api::CredentialType::None => core::Credential::None,
        api::CredentialType::Passthrough => core::Credential::Passthrough,
        api::CredentialType::SecretRef => {
            let missing = || InvalidRoute::MissingTargetMember {
                target: target.name.clone(),
                field: "credential.secretRef",
                kind: "SecretRef",
            };
            let reference = target.credential.secret_ref.as_ref().ok_or_else(missing)?;
            core::Credential::Secret(SecretKey {
                name: reference.name.as_str().into(),
                key: reference.key.as_str().into(),
            })
        }
    })
}

fn price(target: &api::Target, price: &api::Price) -> Result<core::Price, InvalidRoute> {
    let micros = |field, text: &str| {
        api::money_micros(text).ok_or_else(|| InvalidRoute::Price {
            target: target.name.clone(),
            field,
            value: text.chars().take(64).collect(),
        })
    };
    Ok(core::Price {
        input_per_million_micros: micros("price.inputPerMillion", &price.input_per_million)?,
        output_per_million_micros: micros("price.outputPerMillion", &price.output_per_million)?,
    })
}
