//! Compiles `proto/` with a protobuf compiler in Rust: no protoc on the machine.
#![allow(clippy::print_stdout, reason = "how a build script speaks to cargo")]

use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    // Read when it runs: cargo may run a script that another checkout has built.
    let root = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo:rerun-if-changed={}", root.display());
    let descriptors = protox::compile(["sluice/v1/discovery.proto", "sluice/v1/replica.proto"], [root])?;
    tonic_prost_build::configure()
        // Ordered maps: the same content always has the same bytes, and so the same version.
        .btree_map(".")
        // Its Debug is written by hand, without the value.
        .skip_debug([".sluice.v1.Secret"])
        .compile_fds(descriptors)?;
    Ok(())
}
