//! With AddressSanitizer in the kernels, an access is checked to the byte.

use std::path::PathBuf;
use std::process::Command;

use cudarc::driver::result;
use simulated_cuda::compile::Build;
use simulated_cuda::harness::{attempt, is_alone};

use crate::device::{Module, Words, arg};
use crate::kernels;

const T4: &str = "[[gpu]]\nmodel = 't4'";

#[test]
fn an_access_is_checked_to_the_byte() {
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join("kernels.so");
    if !is_alone() {
        let sources = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("kernels");
        let (work, library) = (directory.path().join("work"), library.clone());
        Build { roots: vec![sources], work, library, sanitize: true }.run().unwrap();
    }
    let sanitizer = Command::new("g++").arg("-print-file-name=libasan.so").output().unwrap();
    let sanitizer = String::from_utf8(sanitizer.stdout).unwrap();
    for (case, report) in [
        ("right", None),
        ("beyond an allocation", Some("use-after-poison")),
        ("beyond a pool's", Some("use-after-poison")),
        ("beyond static shared memory", Some("global-buffer-overflow")),
        ("beyond dynamic shared memory", Some("probe.cu")),
    ] {
        let environment = [
            ("SIMULATED_GPU_KERNELS", library.to_str().unwrap()),
            ("LD_PRELOAD", sanitizer.trim()),
            ("ASAN_OPTIONS", "detect_leaks=0"),
            ("CASE", case),
        ];
        let output = attempt(T4, &environment, |_| run(&std::env::var("CASE").unwrap()));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), report.is_none(), "{case}: {errors}");
        assert!(errors.contains(report.unwrap_or_default()), "{case}: {errors}");
    }
}

fn run(case: &str) {
    let module = Module::load();
    match case {
        "right" => {
            kernels::reverses_blocks(&module);
            kernels::adds_up_blocks(&module);
            kernels::exchanges_in_warps(&module);
        }
        "beyond an allocation" => {
            let data = Words::new(&[0_u8; 100]);
            module.run("write_at", (1, 1, 0), &mut [arg(&data.address), arg(&100_i64)]).unwrap();
        }
        "beyond a pool's" => {
            let stream = result::stream::null();
            let address = unsafe { result::malloc_async(stream, 1000) }.unwrap();
            module.run("write_at", (1, 1, 0), &mut [arg(&address), arg(&1000_i64)]).unwrap();
        }
        "beyond static shared memory" | "beyond dynamic shared memory" => {
            let words = Words::new(&[0_u32; 64]);
            // Of 64 words of each; an index from 64 on is of the dynamic ones.
            let index = if case.contains("static") { -1_i32 } else { 64 + 61 };
            let mut arguments = [arg(&words.address), arg(&index)];
            module.run("read_shared_at", (1, 61, 244), &mut arguments).unwrap();
        }
        _ => unreachable!("{case}"),
    }
    result::ctx::synchronize().unwrap();
}
