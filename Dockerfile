# syntax=docker/dockerfile:1
# The image of controller, agent and command line: three programs, the C library, CA certificates. No shell, not root, and it
# runs with a read-only root. Pods name the program: there is no entrypoint. For hosts that reach no registry,
# e2e/images/build.sh makes the same from packages.
ARG RUST=1.95.0

FROM rust:${RUST}-slim-bookworm AS build
# LuaJIT (the scripts, outside Redis), jemalloc and ring are C.
RUN apt-get update && apt-get install -y --no-install-recommends gcc g++ make libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin sluice --bin sluice-agent --bin sluice-controller \
 && mkdir -p /out && cp target/release/sluice target/release/sluice-agent target/release/sluice-controller /out/ \
 && strip /out/*

# glibc, libgcc, CA certificates and the user nonroot (65532); nothing that could be run.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /out/ /usr/local/bin/
USER 65532:65532
WORKDIR /
ENTRYPOINT []
CMD ["/usr/local/bin/sluice", "--help"]
