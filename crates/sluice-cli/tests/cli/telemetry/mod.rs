//! What a run tells Prometheus, Jaeger and any collector: the built binary, real backends.

mod incident;
mod markers;
mod metrics;
mod settings;
mod traces;
