//! Which route serves a model's name: exact before the longest prefix before the oldest route.
//!
//! A lookup costs one hash of the name plus one per distinct prefix length; the index is built once per
//! snapshot. Formats are apart: an OpenAI client and an Anthropic client may ask for the same name.

use std::collections::HashMap;
use std::sync::Arc;

use crate::policy::{ModelPattern, RoutePolicy, WireFormat};

/// The routes of one snapshot.
#[derive(Debug, Clone, Default)]
pub struct RouteIndex {
    routes: Vec<Arc<RoutePolicy>>,
    openai: Patterns,
    anthropic: Patterns,
}

/// The patterns of one format, with the place of the route that owns each.
#[derive(Debug, Clone, Default)]
struct Patterns {
    exact: HashMap<Arc<str>, usize>,
    prefixes: HashMap<Arc<str>, usize>,
    /// Distinct lengths of prefixes in bytes, longest first.
    prefix_lengths: Vec<usize>,
}

impl Patterns {
    fn claim(&mut self, pattern: &ModelPattern, position: usize) {
        let (map, text) = match pattern {
            ModelPattern::Exact(name) => (&mut self.exact, name),
            ModelPattern::Prefix(prefix) => (&mut self.prefixes, prefix),
        };
        map.entry(text.clone()).or_insert(position);
    }

    fn sort_lengths(&mut self) {
        self.prefix_lengths = self.prefixes.keys().map(|prefix| prefix.len()).collect();
        self.prefix_lengths.sort_unstable_by(|a, b| b.cmp(a));
        self.prefix_lengths.dedup();
    }

    fn find(&self, model: &str) -> Option<usize> {
        self.exact.get(model).copied().or_else(|| {
            self.prefix_lengths
                .iter()
                // `get` and not an index: a length may fall inside a character of this name.
                .filter_map(|length| model.get(..*length))
                .find_map(|prefix| self.prefixes.get(prefix).copied())
        })
    }
}

impl RouteIndex {
    #[must_use]
    pub fn new(mut routes: Vec<Arc<RoutePolicy>>) -> Self {
        // Oldest first, so that the first to claim a pattern keeps it. Equal times: by name, as Kubernetes does.
        routes.sort_by(|a, b| {
            (a.created_ms, &a.namespace, &a.name).cmp(&(b.created_ms, &b.namespace, &b.name))
        });
        let (mut openai, mut anthropic) = (Patterns::default(), Patterns::default());
        for (position, route) in routes.iter().enumerate() {
            let patterns = match route.format {
                WireFormat::OpenAi => &mut openai,
                WireFormat::Anthropic => &mut anthropic,
            };
            for pattern in &route.models {
                patterns.claim(pattern, position);
            }
        }
        openai.sort_lengths();
        anthropic.sort_lengths();
        Self { routes, openai, anthropic }
    }

    const fn patterns(&self, format: WireFormat) -> &Patterns {
        match format {
            WireFormat::OpenAi => &self.openai,
            WireFormat::Anthropic => &self.anthropic,
        }
    }

    /// The place in [`Self::routes`] of the route that serves a model's name.
    #[must_use]
    pub fn position(&self, format: WireFormat, model: &str) -> Option<usize> {
        self.patterns(format).find(model)
    }

    /// The route of a model's name.
    #[must_use]
    pub fn find(&self, format: WireFormat, model: &str) -> Option<&Arc<RoutePolicy>> {
        self.routes.get(self.patterns(format).find(model)?)
    }

    /// The oldest route of a format, for paths that name no model.
    #[must_use]
    pub fn oldest(&self, format: WireFormat) -> Option<&Arc<RoutePolicy>> {
        self.routes.iter().find(|route| route.format == format)
    }

    /// The names that clients of a format may ask for, sorted: those that routes name whole. What a prefix stands
    /// for nobody knows.
    #[must_use]
    pub fn names(&self, format: WireFormat) -> Vec<&str> {
        let mut names: Vec<&str> = self.patterns(format).exact.keys().map(|name| &**name).collect();
        names.sort_unstable();
        names
    }

    /// Oldest first.
    #[must_use]
    pub fn routes(&self) -> &[Arc<RoutePolicy>] {
        &self.routes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Degraded, Lane, LaneChoice, OtherPaths, TargetHeader, TenantSource};

    fn route(name: &str, created_ms: u64, format: WireFormat, models: &[&str]) -> Arc<RoutePolicy> {
        Arc::new(RoutePolicy {
            namespace: "ns".into(),
            name: name.into(),
            created_ms,
            sources: Vec::new(),
            models: models.iter().map(|text| ModelPattern::parse(text)).collect(),
            format,
            tenant: TenantSource::Workload,
            lanes: LaneChoice { default: Lane::Interactive, rules: Vec::new() },
            degraded: Degraded::Reject,
            other_paths: OtherPaths::Refuse,
            target_header: TargetHeader::Ignore,
            targets: Vec::new(),
        })
    }

    #[test]
    fn exact_then_longest_prefix_then_oldest() {
        use WireFormat::{Anthropic, OpenAi};
        let index = RouteIndex::new(vec![
            route("young", 20, OpenAi, &["gpt-4o", "chat-*"]),
            route("old", 10, OpenAi, &["chat-*", "gpt-*"]),
            route("long", 30, OpenAi, &["chat-fast-*"]),
            route("all", 5, OpenAi, &["*"]),
            route("claude", 1, Anthropic, &["claude-*", "gpt-4o"]),
            route("twin-b", 20, OpenAi, &["twin"]),
            route("twin-a", 20, OpenAi, &["twin"]),
        ]);
        for (format, model, name) in [
            (OpenAi, "gpt-4o", Some("young")),
            (OpenAi, "gpt-4o-mini", Some("old")),
            (OpenAi, "chat-x", Some("old")),
            (OpenAi, "chat-", Some("old")),
            (OpenAi, "chat-fast-x", Some("long")),
            (OpenAi, "whatever", Some("all")),
            (OpenAi, "", Some("all")),
            (OpenAi, "twin", Some("twin-a")),
            (Anthropic, "gpt-4o", Some("claude")),
            (Anthropic, "claude-opus", Some("claude")),
            (Anthropic, "chat-x", None),
            (OpenAi, "çhat-fast-x", Some("all")),
        ] {
            assert_eq!(index.find(format, model).map(|route| &*route.name), name, "{model}");
        }
        assert_eq!(index.names(OpenAi), ["gpt-4o", "twin"]);
        assert_eq!(index.oldest(Anthropic).map(|route| &*route.name), Some("claude"));
        assert!(RouteIndex::default().find(OpenAi, "x").is_none());
    }
}
