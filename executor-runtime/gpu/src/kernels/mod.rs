//! The kernels: PTX that the driver compiles for the chip that is there.
//!
//! `scripts/build-kernels` makes it from `executor-runtime/kernels`, whose sources say what each
//! kernel does and what it is to be given; `docs/kernels.md` is the guide. PTX 8.0 for compute_70
//! loads in every driver from R525 on, on every chip from Volta on.

pub mod column;

/// A file of kernels, loaded as one module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Module {
    /// The source's name without its ending.
    pub name: &'static str,
    /// What the driver compiles.
    pub ptx: &'static str,
    /// The kernels in it, in the order of the alphabet. No two modules have one of the same name.
    pub entries: &'static [&'static str],
}

macro_rules! modules {
    ($($(#[$doc:meta])* $constant:ident = $name:literal: $($entry:literal)*;)*) => {
        $(
            $(#[$doc])*
            pub const $constant: Module = Module {
                name: $name,
                ptx: include_str!(concat!("../../../kernels/ptx/", $name, ".ptx")),
                entries: &[$($entry),*],
            };
        )*

        /// All of them.
        pub const MODULES: &[Module] = &[$($constant),*];
    };
}

modules! {
    /// Aggregates of groups, in registers, shared or global memory.
    AGGREGATE = "aggregate":
        "count_few" "count_global" "count_shared"
        "max_few" "max_global" "max_shared"
        "min_few" "min_global" "min_shared"
        "sum_i128_few" "sum_i128_global" "sum_i128_shared"
        "sum_i64_few" "sum_i64_global" "sum_i64_shared";
    /// Columns from the states of aggregates.
    FINISH = "finish": "counts_finish" "extreme_rows" "extremes_finish";
    /// Sums of floats that don't depend on the order of rows.
    FLOAT_SUM = "float_sum":
        "exponents_global" "exponents_shared"
        "sum_f64_few" "sum_f64_finish" "sum_f64_global" "sum_f64_shared" "sum_f64_total";
    /// Rows by their keys.
    GROUP = "group": "group_ids" "group_insert" "group_leaders" "group_number";
    /// The interpreter of programs.
    EVALUATE = "evaluate": "evaluate";
    /// Rows that a predicate selects.
    FILTER = "filter": "filter_count" "filter_rows";
    /// Rows by their indices, and bitmaps put together.
    GATHER = "gather":
        "append_bits"
        "gather_128" "gather_16" "gather_32" "gather_64" "gather_8" "gather_bits" "gather_texts"
        "text_bytes" "text_lengths";
    /// Hashes of keys.
    HASH = "hash": "hash_rows";
    /// Prefix sums.
    SCAN = "scan": "scan_offsets" "scan_reduce" "scan_spine";
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn manifest() -> toml::Table {
        let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("run by cargo"));
        let path = here.join("../kernels/ptx/manifest.toml");
        let text = std::fs::read_to_string(&path).expect("the manifest");
        text.parse().expect("TOML")
    }

    #[test]
    fn modules_are_those_of_the_manifest() {
        let manifest = manifest();
        let built = manifest["module"].as_array().expect("modules");
        let built: Vec<(&str, Vec<&str>)> = built
            .iter()
            .map(|module| {
                let entries = module["entries"].as_array().expect("entries");
                let entries = entries.iter().filter_map(|entry| entry.as_str()).collect();
                (module["name"].as_str().expect("a name"), entries)
            })
            .collect();
        let ours: Vec<(&str, Vec<&str>)> =
            MODULES.iter().map(|module| (module.name, module.entries.to_vec())).collect();
        assert_eq!(ours, built);
    }

    #[test]
    fn every_supported_driver_and_chip_takes_the_ptx() {
        for module in MODULES {
            assert!(module.ptx.contains("\n.version 8.0\n"), "{}", module.name);
            assert!(module.ptx.contains("\n.target sm_70\n"), "{}", module.name);
        }
    }
}
