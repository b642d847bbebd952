//! Kernels that lack one thing each are found out: the simulator can fail.

use std::fs;
use std::path::PathBuf;

use simulated_cuda::compile::Build;
use simulated_cuda::harness::{attempt, is_alone};

use crate::device::Module;
use crate::kernels;

/// What it lacks, the text in `probe.cu`, what is there instead, and the check that has to fail.
type Mutant = (&'static str, &'static str, &'static str, fn(&Module));

const MUTANTS: &[Mutant] = &[
    ("nothing", "using u32", "using u32", all),
    ("a bounds check", "if (i < n) out[i] =", "out[i] =", kernels::adds),
    (
        "the barrier between a write and another's read",
        "data[at + threadIdx.x];\n  __syncthreads();",
        "data[at + threadIdx.x];",
        kernels::reverses_blocks,
    ),
    (
        "the barrier between a read and another's write",
        "sums[t - step] : 0;\n    __syncthreads();",
        "sums[t - step] : 0;",
        kernels::adds_up_blocks,
    ),
    (
        "the barrier at the end of a round",
        "+= before;\n    __syncthreads();",
        "+= before;",
        kernels::adds_up_blocks,
    ),
    (
        "what shared memory is to begin with",
        "sums[t] = data[blockIdx.x * blockDim.x + t];",
        "if (t) sums[t] = data[blockIdx.x * blockDim.x + t];",
        kernels::adds_up_blocks,
    ),
    ("a retry of a compare-and-swap", "if (seen == old) break;", "break;", kernels::counts),
    (
        "a lane in its mask",
        "__ballot_sync(0x0000ffff, lane % 2)",
        "__ballot_sync(0x00007fff, lane % 2)",
        kernels::exchanges_in_warps,
    ),
];

fn all(module: &Module) {
    kernels::adds(module);
    kernels::reverses_blocks(module);
    kernels::adds_up_blocks(module);
    kernels::counts(module);
    kernels::exchanges_in_warps(module);
}

#[test]
fn every_mutant_is_found_out() {
    let directory = tempfile::tempdir().unwrap();
    let (sources, library) =
        (directory.path().join("kernels"), directory.path().join("kernels.so"));
    fs::create_dir(&sources).unwrap();
    for (number, (lack, old, new, _)) in MUTANTS.iter().enumerate() {
        if !is_alone() {
            let kernels = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").unwrap());
            let text = fs::read_to_string(kernels.join("kernels/probe.cu")).unwrap();
            assert!(text.contains(old), "{lack}: {old}");
            fs::write(sources.join("probe.cu"), text.replacen(old, new, 1)).unwrap();
            let (work, library) = (directory.path().join("work"), library.clone());
            Build { roots: vec![sources.clone()], work, library, sanitize: false }.run().unwrap();
        }
        let number = number.to_string();
        let environment =
            [("SIMULATED_GPU_KERNELS", library.to_str().unwrap()), ("MUTANT", number.as_str())];
        let output = attempt("[[gpu]]\nmodel = 't4'", &environment, |_| {
            let number: usize = std::env::var("MUTANT").unwrap().parse().unwrap();
            let (.., check) = MUTANTS[number];
            check(&Module::load());
        });
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), *lack == "nothing", "without {lack}: {errors}");
    }
}
