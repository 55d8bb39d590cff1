//! CEL rules of the schema (`x-kubernetes-validations`).
//!
//! A message reads `<what is wrong>; <what to do>`: the offline check shows the two parts apart, an API
//! server shows them together with the path of the field. Rules may rely on defaults, as an API server
//! applies them first. Every string, list and map is bounded in the schema, which is what keeps the
//! estimated cost of a rule below the API server's limit.

use std::time::Duration;

use serde_json::{Value, json};
use sluice_core::units::format_duration;

/// Lengths and counts that many fields share.
pub(crate) mod bounds {
    /// A DNS label.
    pub(crate) const LABEL: u32 = 63;
    /// A DNS subdomain, and everything that is named like one.
    pub(crate) const NAME: u32 = 253;
    pub(crate) const HEADER: u32 = 128;
    pub(crate) const URL: u32 = 512;
    /// Pattern of a DNS label.
    pub(crate) const LABEL_PATTERN: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
    /// Pattern of a DNS subdomain.
    pub(crate) const NAME_PATTERN: &str = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$";
    /// Pattern of a key of a Secret.
    pub(crate) const KEY_PATTERN: &str = "^[-._a-zA-Z0-9]+$";
    /// Pattern of a header's name.
    pub(crate) const HEADER_PATTERN: &str = "^[A-Za-z0-9][-A-Za-z0-9_]*$";
    /// Pattern of an amount of money: at most six digits on either side of the point.
    pub(crate) const MONEY_PATTERN: &str = "^[0-9]{1,6}([.][0-9]{1,6})?$";
    pub(crate) const MONEY: u32 = 13;
    /// Tokens of one minute or one bucket. In milli-tokens, which is what the shared state counts in, this
    /// is below 2^50: sums and products with percentages stay exact in a double.
    pub(crate) const TOKENS: u64 = 1_000_000_000_000;
}

/// One rule of an object; `field` is the member that an error points at, empty for the object itself.
pub(crate) fn rule(field: &str, expression: impl Into<String>, message: impl Into<String>) -> Value {
    let (expression, message) = (expression.into(), message.into());
    if field.is_empty() {
        json!({ "rule": expression, "message": message })
    } else {
        json!({ "rule": expression, "message": message, "fieldPath": format!(".{field}") })
    }
}

/// A duration that is always there lies between two others, both included.
pub(crate) fn between(field: &str, min: Duration, max: Duration) -> Value {
    let (min, max) = (format_duration(min), format_duration(max));
    rule(
        field,
        format!("duration(self.{field}) >= duration('{min}') && duration(self.{field}) <= duration('{max}')"),
        format!("{field} must be between {min} and {max}; choose a duration in that range"),
    )
}

/// Like [`between`] for a field that may be absent.
pub(crate) fn optional_between(field: &str, min: Duration, max: Duration) -> Value {
    let mut rule = between(field, min, max);
    if let Some(Value::String(expression)) = rule.get_mut("rule") {
        *expression = format!("!has(self.{field}) || ({expression})");
    }
    rule
}

/// One duration is at most another, where both are written; `field` is the one that an error points at.
///
/// A value that is not written never contradicts: it gives way, when the policy is compiled. So neither of the two
/// has a default in the schema, where it would look like something written, and would stay when the other changes.
pub(crate) fn not_longer(shorter: &str, longer: &str, field: &str, message: &str) -> Value {
    let order = format!("duration(self.{shorter}) <= duration(self.{longer})");
    rule(field, format!("{} || {order}", unwritten(&[shorter, longer])), message)
}

/// Whether one of the fields is absent.
pub(crate) fn unwritten(fields: &[&str]) -> String {
    fields.iter().map(|field| format!("!has(self.{field})")).collect::<Vec<_>>().join(" || ")
}

/// A union: `type` names the one member that is present. `members` are pairs of a value of `type` and the
/// member it needs; `None`: it has none.
pub(crate) fn union(members: &[(&str, Option<&str>)]) -> Vec<Value> {
    members
        .iter()
        .filter_map(|(value, member)| member.map(|member| (value, member)))
        .map(|(value, member)| {
            rule(
                "type",
                format!("(self.type == '{value}') == has(self.{member})"),
                format!(
                    "{member} belongs to type {value} and to no other; set {member} if and only if type is {value}"
                ),
            )
        })
        .collect()
}

/// What a base URL must be. Split so that each message says what is wrong with this one.
pub(crate) fn endpoint(field: &str) -> Vec<Value> {
    vec![
        rule(
            field,
            format!("self.{field}.matches('^https?://[^/?#]+')"),
            format!("{field} must be an http or https URL; write it such as https://api.openai.com/v1"),
        ),
        rule(
            field,
            format!("!self.{field}.matches('^[^/]*//[^/]*@')"),
            format!("{field} must not contain credentials; put them into a Secret and name it in credential"),
        ),
        rule(
            field,
            format!("!self.{field}.matches('[?#[:space:]]')"),
            format!("{field} must not contain a query, a fragment or white space; end it with the path"),
        ),
        rule(
            field,
            format!("!self.{field}.endsWith('/')"),
            format!("{field} must not end with a slash; remove it"),
        ),
    ]
}

/// A header whose value becomes a name in metrics and logs must not be one that carries a credential.
pub(crate) fn not_a_credential_header(field: &str) -> Value {
    rule(
        field,
        format!(
            "!has(self.{field}) || !(self.{field}.lowerAscii() in ['authorization', 'proxy-authorization', \
             'x-api-key', 'api-key', 'cookie'])"
        ),
        format!("{field} must not be a header that carries credentials; choose another header"),
    )
}
