//! The histograms of the GenAI semantic conventions, per target.
//!
//! The model is the one that the provider is asked for: the target's own, or else the one that was asked for, as
//! far as the route names it; a name that only fits a pattern counts under the pattern, since requests are not to
//! make series.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use sluice_core::policy::{ModelPattern, TargetPolicy};
use sluice_core::wire::{Operation, Usage};
use sluice_telemetry::Page;
use sluice_telemetry::names::metric as rows;

use super::series::Series;

/// Seconds. Embeddings take tens of milliseconds, reasoning over a long prompt ten minutes; the conventions' own
/// bounds end at 82 s.
const DURATIONS: [f64; 15] =
    [0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 600.0];
/// Seconds. Finer where deadlines and thresholds of slowness lie.
const FIRST_TOKENS: [f64; 15] =
    [0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0];
/// The conventions' own, without the last three: no context is that long.
const TOKENS: [f64; 11] =
    [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262_144.0, 1_048_576.0];

/// A model that no pattern of the route fits: there is none for paths that name no model.
const OTHER: &str = "_other";

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CallLabel {
    name: Arc<str>,
    gen_ai_operation_name: &'static str,
    gen_ai_provider_name: &'static str,
    gen_ai_request_model: Arc<str>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DurationLabel {
    name: Arc<str>,
    gen_ai_operation_name: &'static str,
    gen_ai_provider_name: &'static str,
    gen_ai_request_model: Arc<str>,
    error_type: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TokenLabel {
    name: Arc<str>,
    gen_ai_operation_name: &'static str,
    gen_ai_provider_name: &'static str,
    gen_ai_request_model: Arc<str>,
    gen_ai_token_type: &'static str,
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// The families of all targets.
pub(super) struct CallFamilies {
    duration: Histograms<DurationLabel>,
    first_token: Histograms<CallLabel>,
    tokens: Histograms<TokenLabel>,
}

impl CallFamilies {
    pub(super) fn register(page: &mut Page) -> Self {
        let families = Self {
            duration: Family::new_with_constructor(|| Histogram::new(DURATIONS)),
            first_token: Family::new_with_constructor(|| Histogram::new(FIRST_TOKENS)),
            tokens: Family::new_with_constructor(|| Histogram::new(TOKENS)),
        };
        page.register(&rows::OPERATION_DURATION, families.duration.clone());
        page.register(&rows::TOKEN_USAGE, families.tokens.clone());
        page.register(&rows::TIME_TO_FIRST_CHUNK, families.first_token.clone());
        families
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) took: Duration,
    /// `None`: it ended well.
    pub(crate) error: Option<&'static str>,
    /// As its provider reported it.
    pub(crate) usage: Option<Usage>,
}

/// The calls of one target under one policy.
pub(crate) struct CallMetrics {
    name: Arc<str>,
    provider: &'static str,
    models: Vec<Model>,
    families: Arc<CallFamilies>,
    series: Series,
}

struct Model {
    /// `None`: whatever was asked for.
    asked: Option<ModelPattern>,
    label: Arc<str>,
    /// Made when the first call of the operation comes.
    operations: [OnceLock<Option<Calls>>; Operation::Other as usize + 1],
}

/// What calls that end well touch.
struct Calls {
    duration: Histogram,
    first_token: Histogram,
    input: Histogram,
    output: Histogram,
}

impl Model {
    fn new(asked: Option<ModelPattern>, label: &str) -> Self {
        Self { asked, label: label.into(), operations: [const { OnceLock::new() }; _] }
    }
}

impl CallMetrics {
    pub(super) fn new(
        name: &str,
        policy: &TargetPolicy,
        models: &[ModelPattern],
        families: Arc<CallFamilies>,
    ) -> Self {
        let models = if let Some(own) = &policy.model {
            vec![Model::new(None, own)]
        } else {
            let of_route = models.iter().map(|one| Model::new(Some(one.clone()), &one.to_string()));
            of_route.chain([Model::new(None, OTHER)]).collect()
        };
        let provider = policy.provider.gen_ai_name();
        Self { name: name.into(), provider, models, families, series: Series::new() }
    }

    /// Whether the series of both have the same labels.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.provider == other.provider
            && self.models.iter().map(|model| &model.label).eq(other.models.iter().map(|model| &model.label))
    }

    pub(crate) fn forget(&self) {
        self.series.forget();
    }

    /// The first token of an attempt came. `asked`: the model of the request.
    pub(crate) fn first_token(&self, operation: Operation, asked: &str, ttft: Duration) {
        if let Some(calls) = self.calls(operation, self.model(asked)) {
            calls.first_token.observe(ttft.as_secs_f64());
        }
    }

    /// An attempt ended.
    pub(crate) fn ended(&self, operation: Operation, asked: &str, ended: Ended) {
        let model = self.model(asked);
        let Some(calls) = self.calls(operation, model) else { return };
        let took = ended.took.as_secs_f64();
        match ended.error {
            None => calls.duration.observe(took),
            Some(error) => {
                let label = self.duration_label(operation, model, error);
                if let Some(histogram) = self.series.get(&self.families.duration, &label) {
                    histogram.observe(took);
                }
            }
        }
        if let Some(usage) = ended.usage {
            calls.input.observe(usage.input as f64);
            calls.output.observe(usage.output as f64);
        }
    }

    /// The name itself, then the longest pattern.
    fn model(&self, asked: &str) -> &Model {
        let fits = |model: &&Model| match &model.asked {
            Some(ModelPattern::Exact(name)) => **name == *asked,
            Some(ModelPattern::Prefix(prefix)) => asked.starts_with(&**prefix),
            None => true,
        };
        let rank = |model: &&Model| match &model.asked {
            Some(ModelPattern::Exact(_)) => usize::MAX,
            Some(ModelPattern::Prefix(prefix)) => prefix.len() + 1,
            None => 0,
        };
        self.models.iter().filter(fits).max_by_key(rank).unwrap_or(&self.models[0])
    }

    fn calls<'a>(&'a self, operation: Operation, model: &'a Model) -> Option<&'a Calls> {
        model.operations[operation as usize].get_or_init(|| self.make(operation, model)).as_ref()
    }

    fn make(&self, operation: Operation, model: &Model) -> Option<Calls> {
        let tokens = |gen_ai_token_type| TokenLabel {
            name: self.name.clone(),
            gen_ai_operation_name: operation.gen_ai_name(),
            gen_ai_provider_name: self.provider,
            gen_ai_request_model: model.label.clone(),
            gen_ai_token_type,
        };
        let call = CallLabel {
            name: self.name.clone(),
            gen_ai_operation_name: operation.gen_ai_name(),
            gen_ai_provider_name: self.provider,
            gen_ai_request_model: model.label.clone(),
        };
        let (families, series) = (&self.families, &self.series);
        Some(Calls {
            duration: series.get(&families.duration, &self.duration_label(operation, model, ""))?,
            first_token: series.get(&families.first_token, &call)?,
            input: series.get(&families.tokens, &tokens("input"))?,
            output: series.get(&families.tokens, &tokens("output"))?,
        })
    }

    fn duration_label(&self, operation: Operation, model: &Model, error_type: &'static str) -> DurationLabel {
        DurationLabel {
            name: self.name.clone(),
            gen_ai_operation_name: operation.gen_ai_name(),
            gen_ai_provider_name: self.provider,
            gen_ai_request_model: model.label.clone(),
            error_type,
        }
    }
}
