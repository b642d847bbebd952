//! Builds the kernels that the simulated driver runs: the product's, and those of its own tests.

use std::env;
use std::path::PathBuf;

#[path = "src/compile.rs"]
#[allow(unreachable_pub, reason = "it is public in the library")]
mod compile;

fn main() {
    let directory = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    // Beside all builds of the profile, for the objects are the same for each: target/debug.
    let profile = out.ancestors().nth(3).expect("target/PROFILE/build/PACKAGE/out");
    let work = profile.join("kernel-objects");
    let product = directory.join("../../../executor-runtime/kernels");
    let own = directory.join("kernels");
    let roots = [product, own].into_iter().filter(|root| root.exists()).collect::<Vec<_>>();
    for watched in &roots {
        println!("cargo::rerun-if-changed={}", watched.display());
    }
    // The script is built anew with its own sources, and the shim is one of them.
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CXX");
    let library = out.join("kernels.so");
    let build = compile::Build { roots, work, library, sanitize: false };
    if let Err(error) = build.run() {
        for line in error.lines() {
            println!("cargo::error={line}");
        }
    }
}
