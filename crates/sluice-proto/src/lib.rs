//! The protocol between control plane and agents: total encoding from, validating decoding into, core's types
