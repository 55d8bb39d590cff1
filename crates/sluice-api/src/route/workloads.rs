//! Which pods' agents get a route.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::enums::string_enum;
use crate::rule::{bounds, rule};

/// Selects pods by their labels; all of it must match.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadSelector {
    /// Labels that a pod must have with these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "label_map")]
    pub match_labels: BTreeMap<String, String>,

    /// Further requirements on labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub match_expressions: Vec<LabelRequirement>,
}

fn label_map(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": { "type": "string", "maxLength": bounds::LABEL },
    })
}

impl WorkloadSelector {
    /// Whether a pod with these labels is selected.
    #[must_use]
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| requirement.holds(labels))
    }
}

/// One requirement on a label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = requirement_rules()))]
pub struct LabelRequirement {
    /// The label's key.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,

    /// `In` and `NotIn` compare with `values`; `Exists` and `DoesNotExist` take none.
    pub operator: LabelOperator,

    /// Values to compare with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = bounds::LABEL)))]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub values: Vec<String>,
}

fn requirement_rules() -> Vec<serde_json::Value> {
    vec![rule(
        "values",
        "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
        "values belong to the operators In and NotIn and to no other; add values, or use Exists or DoesNotExist without",
    )]
}

impl LabelRequirement {
    /// As in a Kubernetes LabelSelector: `NotIn` holds for a pod without the label.
    fn holds(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            LabelOperator::In => value.is_some_and(|value| self.values.contains(value)),
            LabelOperator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            LabelOperator::Exists => value.is_some(),
            LabelOperator::DoesNotExist => value.is_none(),
        }
    }
}

string_enum! {
    /// How a label is compared.
    pub enum LabelOperator {
        In = "In",
        NotIn = "NotIn",
        Exists = "Exists",
        DoesNotExist = "DoesNotExist",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_selects_as_kubernetes_does() {
        let labels =
            BTreeMap::from([("app".to_owned(), "chat".to_owned()), ("tier".to_owned(), "web".to_owned())]);
        let requirement = |key: &str, operator, values: &[&str]| WorkloadSelector {
            match_expressions: vec![LabelRequirement {
                key: key.to_owned(),
                operator,
                values: values.iter().map(|value| (*value).to_owned()).collect(),
            }],
            ..WorkloadSelector::default()
        };
        let matching = |key: &str, value: &str| WorkloadSelector {
            match_labels: BTreeMap::from([(key.to_owned(), value.to_owned())]),
            ..WorkloadSelector::default()
        };
        for (selector, selected) in [
            (WorkloadSelector::default(), true),
            (matching("app", "chat"), true),
            (matching("app", "search"), false),
            (matching("zone", "a"), false),
            (requirement("app", LabelOperator::In, &["chat", "search"]), true),
            (requirement("zone", LabelOperator::In, &["a"]), false),
            (requirement("app", LabelOperator::NotIn, &["chat"]), false),
            (requirement("zone", LabelOperator::NotIn, &["a"]), true),
            (requirement("app", LabelOperator::Exists, &[]), true),
            (requirement("zone", LabelOperator::Exists, &[]), false),
            (requirement("app", LabelOperator::DoesNotExist, &[]), false),
            (requirement("zone", LabelOperator::DoesNotExist, &[]), true),
        ] {
            assert_eq!(selector.selects(&labels), selected, "{selector:?}");
        }
    }
}
