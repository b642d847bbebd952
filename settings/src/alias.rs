//! Names that other software has for settings of ours, so that its users can keep theirs.

/// Settings of the RAPIDS Accelerator for Apache Spark, and ours that mean the same.
///
/// Source: its configuration guide. Defaults are ours: an alias is a name and nothing else.
pub static ALIASES: &[(&str, &str)] = &[
    ("spark.rapids.memory.gpu.allocFraction", "gpu.memory.alloc_fraction"),
    ("spark.rapids.memory.gpu.allocSize", "gpu.memory.alloc_size"),
    ("spark.rapids.memory.gpu.debug", "gpu.memory.debug"),
    ("spark.rapids.memory.gpu.maxAllocFraction", "gpu.memory.max_alloc_fraction"),
    ("spark.rapids.memory.gpu.minAllocFraction", "gpu.memory.min_alloc_fraction"),
    ("spark.rapids.memory.gpu.pool", "gpu.memory.pool"),
    ("spark.rapids.memory.gpu.reserve", "gpu.memory.reserve"),
    ("spark.rapids.memory.host.offHeapLimit.size", "gpu.memory.host_limit"),
    ("spark.rapids.memory.host.spillStorageSize", "gpu.memory.host_spill_size"),
    ("spark.rapids.memory.pinnedPool.size", "gpu.memory.pinned_pool_size"),
    ("spark.rapids.sql.batchSizeBytes", "gpu.batch_bytes"),
    ("spark.rapids.sql.concurrentGpuTasks", "gpu.concurrent_tasks"),
    ("spark.rapids.sql.explain", "gpu.explain"),
];

/// Our name of a setting, be it given by that or by an alias. SQL makes its names lower case, so an
/// alias is known whatever the case.
pub(crate) fn canonical(name: &str) -> &str {
    let alias = ALIASES.iter().find(|(alias, _)| alias.eq_ignore_ascii_case(name));
    alias.map_or(name, |(_, ours)| ours)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;
    use crate::{Error, SETTINGS, Settings, file, find};

    #[test]
    fn each_alias_is_of_a_setting_and_of_one_alone() {
        let aliases: BTreeSet<_> = ALIASES.iter().map(|(alias, _)| alias).collect();
        assert_eq!(aliases.len(), ALIASES.len());
        for (alias, name) in ALIASES {
            assert_eq!(find(alias).map(|setting| setting.name), Some(*name), "{alias}");
            assert!(SETTINGS.iter().all(|setting| setting.name != *alias));
        }
    }

    #[test]
    fn an_alias_is_taken_wherever_a_name_is() {
        let mut settings = Settings::default();
        settings.set("spark.rapids.memory.gpu.allocFraction", "0.5").unwrap();
        assert_eq!(settings.get("gpu.memory.alloc_fraction").as_deref(), Some("0.5"));
        settings.set_session("spark.rapids.sql.batchsizebytes", "1g").unwrap();
        assert_eq!(settings.get("gpu.batch_bytes").as_deref(), Some("1 GiB"));
        let text = "[spark.rapids.memory]\ngpu.pool = \"ARENA\"\ngpu.reserve = 1073741824\n";
        let (set, errors) = file::apply(text, Path::new("creel.toml"), &mut settings);
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(set.len(), 2);
        assert_eq!(settings.get("gpu.memory.reserve").as_deref(), Some("1 GiB"));
        assert_eq!(settings.get("gpu.memory.pool").as_deref(), Some("ARENA"));
        // What goes to an executor has our names alone.
        assert!(settings.to_map().keys().all(|name| name.starts_with("gpu.")));

        let error = settings.set_session("spark.rapids.memory.gpu.reserve", "0").unwrap_err();
        assert!(matches!(error, Error::OperatorOnly("gpu.memory.reserve")), "{error}");
        let error = settings.set("spark.rapids.memory.gpu.pool", "arena").unwrap_err().to_string();
        assert!(error.contains("gpu.memory.pool") && error.contains("ARENA"), "{error}");
    }
}
