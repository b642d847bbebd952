//! The product's kernels are built in.

use std::ffi::CString;
use std::path::PathBuf;

use cudarc::driver::{CudaContext, result};
use simulated_cuda::harness::alone;

use crate::device::load;

/// Each PTX that is checked in loads, and each of its kernels has a source with the same arguments.
#[test]
fn each_kernel_of_the_product_can_be_launched() {
    alone("[[gpu]]\nmodel = 'v100'", |_| {
        let _context = CudaContext::new(0).unwrap();
        let manifest = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").unwrap());
        let directory = manifest.join("../../../executor-runtime/kernels/ptx");
        let mut kernels = 0;
        for file in std::fs::read_dir(directory).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_none_or(|kind| kind != "ptx") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let module = load(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            for entry in text.split(".visible .entry ").skip(1) {
                let name = entry.split('(').next().unwrap().trim();
                let function =
                    unsafe { result::module::get_function(module, CString::new(name).unwrap()) };
                assert!(function.is_ok(), "{}: {name}: {function:?}", path.display());
                kernels += 1;
            }
        }
        assert!(kernels >= 10, "{kernels}");
    });
}
