//! The control plane without Kubernetes: index, compile, publish, the gRPC service
