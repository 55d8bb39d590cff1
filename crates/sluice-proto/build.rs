//! Compiles `proto/` with a protobuf compiler in Rust: no protoc on the machine.
#![allow(clippy::print_stdout, reason = "how a build script speaks to cargo")]

use std::error::Error;
use std::path::Path;

use tonic_prost_build::manual;

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
    // The same service with messages that are encoded before they are sent: see src/sent.rs.
    let stream = manual::Method::builder()
        .name("stream")
        .route_name("Stream")
        .input_type("crate::v1::AgentMessage")
        .output_type("crate::sent::ControllerMessage")
        .codec_path("tonic_prost::ProstCodec")
        .client_streaming()
        .server_streaming()
        .build();
    let service =
        manual::Service::builder().name("PolicyDiscovery").package("sluice.v1").method(stream).build();
    let folder = Path::new(&std::env::var("OUT_DIR")?).join("sent");
    std::fs::create_dir_all(&folder)?;
    manual::Builder::new().build_client(false).out_dir(folder).compile(&[service]);
    Ok(())
}
