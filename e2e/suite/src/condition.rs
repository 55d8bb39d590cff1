//! What an object's status says.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// A condition, as far as tests look at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub status: String,
    pub reason: String,
    pub message: String,
}

/// A condition of a route, or of a policy with its first ancestor, about the newest generation.
///
/// # Errors
/// When there is none yet, or it is about an older generation.
pub fn of(object: &Value, type_: &str) -> Result<Condition> {
    let status = &object["status"];
    let conditions = if status["ancestors"].is_array() {
        &status["ancestors"][0]["conditions"]
    } else {
        &status["conditions"]
    };
    let found = conditions.as_array().into_iter().flatten().find(|condition| condition["type"] == type_);
    let found = found.with_context(|| format!("no condition {type_}: {status}"))?;
    let generation = &object["metadata"]["generation"];
    ensure!(
        found["observedGeneration"] == *generation,
        "{type_} is not about generation {generation}: {found}"
    );
    let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
    Ok(Condition { status: text("status"), reason: text("reason"), message: text("message") })
}

/// Whether a condition has this status and this reason.
///
/// # Errors
/// When it has another one, or is missing.
pub fn is(object: &Value, type_: &str, status: &str, reason: &str) -> Result<Condition> {
    let condition = of(object, type_)?;
    let seen = (condition.status.as_str(), condition.reason.as_str());
    ensure!(seen == (status, reason), "{type_} is {condition:?}, to be {status}/{reason}");
    Ok(condition)
}

/// The state of a target's breaker in a route's status.
///
/// # Errors
/// When the status has no such target yet.
pub fn breaker<'a>(route: &'a Value, target: &str) -> Result<&'a Value> {
    let targets = route["status"]["targets"].as_array().into_iter().flatten();
    let found = targets.into_iter().find(|status| status["name"] == target);
    Ok(&found.with_context(|| format!("no target {target}: {}", route["status"]))?["breaker"])
}
