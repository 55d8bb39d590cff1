//! Routes and targets.

use std::sync::Arc;

use sluice_core::policy::{
    Credential, Degraded, Lane, LaneChoice, LaneRule, ModelPattern, ObjectKind, ObjectRef, OtherPaths, Price,
    Provider, RoutePolicy, SecretKey, TargetHeader, TargetPolicy, TenantSource, WireFormat,
};
use sluice_core::target_id::TargetId;

use super::field::excerpt;
use super::{Field, InvalidField, InvalidRoute, InvalidTarget, name, present, rules, text};
use crate::bounds;
use crate::enums::WireEnum as _;
use crate::v1;

pub(super) fn route(route: v1::RoutePolicy) -> Result<RoutePolicy, InvalidRoute> {
    let namespace = name(route.namespace, "namespace")?;
    let route_name = name(route.name, "name")?;
    let created_ms = Field("createdMs").within_u64(route.created_ms, 0..=bounds::EXACT_INTEGER)?;
    let sources = sources(route.sources, &namespace, &route_name)?;
    let models = models(route.models)?;
    let format = WireFormat::read(route.format, "format")?;
    let tenant = tenant(present(route.tenant, "tenant")?)?;
    let lanes = lanes(present(route.lanes, "lanes")?)?;
    let degraded = degraded(present(route.degraded, "degraded")?)?;
    let other_paths = OtherPaths::read(route.other_paths, "otherPaths")?;
    let target_header = TargetHeader::read(route.target_header, "targetHeader")?;
    let targets = targets(route.targets, format)?;
    Ok(RoutePolicy {
        namespace,
        name: route_name,
        created_ms,
        sources,
        models,
        format,
        tenant,
        lanes,
        degraded,
        other_paths,
        target_header,
        targets,
    })
}

fn sources(
    sources: Vec<v1::ObjectRef>,
    namespace: &str,
    route_name: &str,
) -> Result<Vec<ObjectRef>, InvalidRoute> {
    let sources: Vec<ObjectRef> = Field("sources")
        .entries(sources, 1..=bounds::SOURCES)?
        .into_iter()
        .map(object)
        .collect::<Result<_, _>>()?;
    let first = &sources[0];
    let is_route = first.kind == ObjectKind::ModelRoute
        && first.namespace.as_ref() == namespace
        && first.name.as_ref() == route_name;
    if is_route {
        Ok(sources)
    } else {
        Err(InvalidRoute::Source {
            found: excerpt(&first.to_string()),
            namespace: excerpt(namespace),
            name: excerpt(route_name),
        })
    }
}

pub(super) fn object(object: v1::ObjectRef) -> Result<ObjectRef, InvalidField> {
    let generation = u64::try_from(object.generation)
        .map_err(|_| Field("generation").malformed(&object.generation.to_string(), "a positive number"))?;
    Field("generation").within_u64(generation, 0..=bounds::EXACT_INTEGER)?;
    Ok(ObjectRef {
        kind: ObjectKind::read(object.kind, "kind")?,
        namespace: name(object.namespace, "namespace")?,
        name: name(object.name, "name")?,
        generation: object.generation,
    })
}

fn models(models: Vec<String>) -> Result<Vec<ModelPattern>, InvalidField> {
    let models = Field("models").entries(models, 1..=bounds::MODELS)?;
    Field("models").distinct(models.iter().map(String::as_str))?;
    models.into_iter().map(|model| name(model, "models").map(|model| ModelPattern::parse(&model))).collect()
}

fn tenant(tenant: v1::TenantSource) -> Result<TenantSource, InvalidField> {
    use v1::tenant_source::Source;
    match present(tenant.source, "tenant.type")? {
        Source::Workload(_) => Ok(TenantSource::Workload),
        Source::Header(header) => Ok(TenantSource::Header {
            header: Field("tenant.header").header(header.name)?,
            default: text(header.default, "tenant.default", bounds::NAME_BYTES)?,
        }),
    }
}

fn lanes(lanes: v1::LaneChoice) -> Result<LaneChoice, InvalidField> {
    let rule = |rule: v1::LaneRule| {
        Ok(LaneRule {
            header: Field("lanes.rules.header").header(rule.header)?,
            value: text(rule.value, "lanes.rules.value", bounds::NAME_BYTES)?,
            lane: Lane::read(rule.lane, "lanes.rules.lane")?,
        })
    };
    Ok(LaneChoice {
        default: Lane::read(lanes.default, "lanes.default")?,
        rules: Field("lanes.rules")
            .entries(lanes.rules, 0..=bounds::LANE_RULES)?
            .into_iter()
            .map(rule)
            .collect::<Result<_, InvalidField>>()?,
    })
}

fn degraded(degraded: v1::Degraded) -> Result<Degraded, InvalidField> {
    use v1::degraded::Answer;
    match present(degraded.answer, "degraded.type")? {
        Answer::Reject(_) => Ok(Degraded::Reject),
        Answer::Static(answer) => {
            Ok(Degraded::Static { text: text(answer.text, "degraded.static.text", bounds::STATIC_BYTES)? })
        }
        Answer::Backend(backend) => {
            Ok(Degraded::Backend { endpoint: Field("degraded.backend.endpoint").endpoint(backend.endpoint)? })
        }
    }
}

fn targets(targets: Vec<v1::TargetPolicy>, format: WireFormat) -> Result<Vec<TargetPolicy>, InvalidRoute> {
    let targets = Field("targets").entries(targets, 1..=bounds::TARGETS)?;
    Field("targets.name").distinct(targets.iter().map(|target| target.name.as_str()))?;
    targets
        .into_iter()
        .map(|wire| {
            let name = excerpt(&wire.name);
            target(wire, format).map_err(|reason| InvalidRoute::Target { name, reason })
        })
        .collect()
}

fn target(target: v1::TargetPolicy, format: WireFormat) -> Result<TargetPolicy, InvalidTarget> {
    let provider = Provider::read(target.provider, "provider")?;
    if provider.format() != format {
        return Err(InvalidTarget::Field(InvalidField::Contradiction {
            field: "provider",
            other: "format",
            fix: "every target of a route must speak the route's format",
        }));
    }
    let model: Option<Arc<str>> = target.model.map(|model| name(model, "model")).transpose()?;
    Ok(TargetPolicy {
        name: name(target.name, "name")?,
        id: TargetId::parse(&target.id)
            .map_err(|id| Field("id").malformed(&id, "26 characters of lower-case base32"))?,
        provider,
        endpoint: Field("endpoint").endpoint(target.endpoint)?,
        model,
        region: text(target.region, "region", bounds::NAME_BYTES)?,
        credential: credential(present(target.credential, "credential")?)?,
        priority: Field("priority").count(target.priority)?,
        weight: Field("weight").count(target.weight)?,
        price: target.price.map(price).transpose()?,
        rules: rules::rules(present(target.rules, "rules")?)?,
    })
}

fn credential(credential: v1::Credential) -> Result<Credential, InvalidField> {
    use v1::credential::Source;
    match present(credential.source, "credential.type")? {
        Source::Secret(key) => Ok(Credential::Secret(secret_key(key)?)),
        Source::Passthrough(_) => Ok(Credential::Passthrough),
        Source::None(_) => Ok(Credential::None),
    }
}

pub(crate) fn secret_key(key: v1::SecretKey) -> Result<SecretKey, InvalidField> {
    Ok(SecretKey {
        name: name(key.name, "credential.secretRef.name")?,
        key: name(key.key, "credential.secretRef.key")?,
    })
}

fn price(price: v1::Price) -> Result<Price, InvalidField> {
    let bound = 0..=bounds::PRICE_MICROS;
    Ok(Price {
        input_per_million_micros: Field("price.inputPerMillion")
            .within_u64(price.input_per_million_micros, bound.clone())?,
        output_per_million_micros: Field("price.outputPerMillion")
            .within_u64(price.output_per_million_micros, bound)?,
    })
}
