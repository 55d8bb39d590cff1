# Every target is one gate or one thing to try; CI runs the same targets.
#
#   make run      serve the quickstart on this machine: no Redis, no Kubernetes
#   make test     everything, installing what it needs
#
# `make help` lists the rest.

SHELL := bash
CARGO ?= cargo
SCENARIO ?=
CLUSTER ?= kind
PROFILE ?= dev
KEEP ?=
TESTS ?=
ARGS ?=

.PHONY: help run brownout test test-deps fmt fmt-check lint deny advisories arrows generate check-generated chart-test images e2e bench

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -t -s "$$(printf '\t')"

run: ## Serve e2e/manifests/quickstart with a scripted provider; make run SCENARIO=brownout plays an incident
	$(CARGO) run -q -p sluice-cli --bin sluice -- run -f e2e/manifests/quickstart --provider $(if $(SCENARIO),--scenario $(SCENARIO)) $(ARGS)

test-deps: ## Install what the tests need: redis-server, the OpenAI and Anthropic SDKs
	e2e/bin/test-deps

test: test-deps ## Run every test
	e2e/bin/test

fmt: ## Format
	$(CARGO) fmt --all

fmt-check: ## Fail on unformatted code
	$(CARGO) fmt --all --check

lint: ## Clippy, warnings denied
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

deny: ## Licences, sources, bans
	e2e/bin/cargo-tool cargo-deny 0.20 -- deny --locked --log-level error check bans licenses sources

advisories: ## Known vulnerabilities (fetches the advisory database)
	e2e/bin/cargo-tool cargo-deny 0.20 -- deny check advisories

arrows: ## Which crate may depend on which
	$(CARGO) test -q -p sluice-testkit --test arrows

generate: ## Write crds/, docs/api.md, docs/metrics.md, the tables of docs/telemetry.md and docs/agent.md, what of charts/ is made from these, and the suite's lock file
	$(CARGO) run -q -p sluice-api --bin crdgen -- crds docs/api.md
	$(CARGO) run -q -p sluice-telemetry --bin telemetry-docs -- docs/metrics.md docs/telemetry.md
	$(CARGO) run -q -p sluice-agent --bin agent-docs -- docs/agent.md
	charts/bin/generate
	$(CARGO) metadata --format-version 1 --manifest-path e2e/suite/Cargo.toml >/dev/null

check-generated: ## Fail when what `make generate` writes is stale
	$(CARGO) run -q -p sluice-api --bin crdgen -- --check crds docs/api.md
	$(CARGO) run -q -p sluice-telemetry --bin telemetry-docs -- --check docs/metrics.md docs/telemetry.md
	$(CARGO) run -q -p sluice-agent --bin agent-docs -- --check docs/agent.md
	charts/bin/generate --check
	$(CARGO) metadata --locked --format-version 1 --manifest-path e2e/suite/Cargo.toml >/dev/null

chart-test: ## What the charts render and refuse; with a KUBECONFIG also what its API server says of it (dry run)
	e2e/bin/chart-test

images: ## Programs and images for the end-to-end tests, from packages alone; PROFILE=release for what is shipped
	e2e/bin/images

e2e: ## The tests on a real cluster, made and taken away: CLUSTER=kind|single PROFILE=dev|release KEEP=1 TESTS=name
	CLUSTER=$(CLUSTER) PROFILE=$(PROFILE) KEEP=$(KEEP) TESTS=$(TESTS) e2e/bin/e2e

bench: ## Side-by-side measurements with nginx and Envoy; not a gate
	e2e/bench/run
