//! How much of the host's memory the GPU's queries may use.
//!
//! ```text
//!   available / devices ├─ executor.memory ─┤────────── limit ──────────┤ rest ┤
//!                                           ├ overhead ┤ pinned ┤ other ┤
//! ```
//!
//! The overhead is what threads and libraries take and nobody counts.
//!
//! Source: `GpuDeviceManager.scala` of the RAPIDS Accelerator for Apache Spark, where the engine's
//! memory is that of Spark's executor.

use std::fmt;

use creel_settings::{Auto, Settings, Size};

use super::sizing::Mib;

/// The limit's share of what is left beside the engine, in percent.
const SHARE: u64 = 80;

/// The limit is not worked out lower than that, in bytes.
const FLOOR: u64 = 4 << 30;

/// What each task takes that nobody counts, in bytes.
const TASK_OVERHEAD: u64 = 15 << 20;

/// The settings of the host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRules {
    /// `gpu.memory.host_limit`.
    pub limit: Auto<Size>,
    /// `gpu.memory.pinned_pool_size`.
    pub pinned_pool: Size,
    /// `gpu.memory.host_spill_size`.
    pub spill: Auto<Size>,
}

impl From<&Settings> for HostRules {
    fn from(settings: &Settings) -> Self {
        Self {
            limit: settings.gpu_memory_host_limit,
            pinned_pool: settings.gpu_memory_pinned_pool_size,
            spill: settings.gpu_memory_host_spill_size,
        }
    }
}

/// What there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostBytes {
    /// The host's memory that is available, or the cgroup's where that is less, in bytes.
    pub available: u64,
    /// Devices that share it.
    pub devices: u64,
    /// What the engine may use (`executor.memory`), in bytes.
    pub engine: u64,
    /// Tasks at one time.
    pub tasks: u64,
}

/// The host's memory, divided. In bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostBudget {
    /// All of it.
    pub limit: u64,
    /// For threads and libraries.
    pub overhead: u64,
    /// Page-locked.
    pub pinned: u64,
    /// Not page-locked.
    pub pageable: u64,
    /// What spilled batches may take before they go to disk.
    pub spill: u64,
    /// What its operator should know.
    pub warnings: Vec<HostWarning>,
}

/// The host's memory is not divided as the settings want it, or by a guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostWarning {
    /// The limit was worked out to be less than it must be.
    Floor {
        /// What was worked out, in bytes.
        worked_out: u64,
    },
    /// The pinned pool is smaller than the settings want it.
    PinnedLowered {
        /// As the settings want it, in bytes.
        wanted: u64,
        /// As it is, in bytes.
        pinned: u64,
    },
}

impl fmt::Display for HostWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Floor { worked_out } => write!(
                f,
                "only {} MiB of the host's memory are left for the GPU's queries; they get {} MiB \
                 all the same: lower executor.memory, or set gpu.memory.host_limit",
                Mib(*worked_out),
                Mib(FLOOR)
            ),
            Self::PinnedLowered { wanted, pinned } => write!(
                f,
                "gpu.memory.pinned_pool_size ({} MiB) is more than gpu.memory.host_limit allows \
                 beside the overhead: it is lowered to {} MiB",
                Mib(*wanted),
                Mib(*pinned)
            ),
        }
    }
}

impl HostRules {
    /// Divides the host's memory.
    pub fn divide(&self, host: &HostBytes) -> HostBudget {
        let mut warnings = Vec::new();
        let limit = self.limit.given().map_or_else(
            || {
                let left = (host.available / host.devices.max(1)).saturating_sub(host.engine);
                let worked_out = (u128::from(left) * u128::from(SHARE) / 100) as u64;
                if worked_out < FLOOR {
                    warnings.push(HostWarning::Floor { worked_out });
                }
                worked_out.max(FLOOR)
            },
            |size| size.0,
        );
        let overhead = host.tasks.saturating_mul(TASK_OVERHEAD).min(limit);
        let Size(wanted) = self.pinned_pool;
        let pinned = wanted.min(limit - overhead);
        if pinned < wanted {
            warnings.push(HostWarning::PinnedLowered { wanted, pinned });
        }
        let pageable = limit - overhead - pinned;
        let spill = self.spill.given().map_or(pinned.saturating_add(1 << 30), |size| size.0);
        HostBudget { limit, overhead, pinned, pageable, spill: spill.min(pageable), warnings }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;

    fn rules(settings: &[(&str, &str)]) -> HostRules {
        let mut all = Settings::default();
        for (name, value) in settings {
            all.set(name, value).unwrap();
        }
        HostRules::from(&all)
    }

    #[test]
    fn the_limit_is_a_share_of_what_the_engine_leaves() {
        let host = HostBytes { available: 128 * GIB, devices: 2, engine: 24 * GIB, tasks: 8 };
        let budget = rules(&[("gpu.memory.pinned_pool_size", "2g")]).divide(&host);
        let limit = 32 * GIB;
        assert_eq!(
            budget,
            HostBudget {
                limit,
                overhead: 120 * MIB,
                pinned: 2 * GIB,
                pageable: limit - 2 * GIB - 120 * MIB,
                spill: 3 * GIB,
                warnings: vec![],
            }
        );
    }

    #[test]
    fn there_is_a_floor_and_it_is_told() {
        let host = HostBytes { available: 16 * GIB, devices: 1, engine: 12 * GIB, tasks: 0 };
        let budget = rules(&[]).divide(&host);
        assert_eq!(budget.limit, 4 * GIB);
        let said = budget.warnings[0].to_string();
        assert!(said.starts_with("only 3276.7998046875 MiB"), "{said}");
    }

    #[test]
    fn what_is_given_is_taken_and_the_pinned_pool_fits_in_it() {
        let host = HostBytes { available: GIB, devices: 1, engine: GIB, tasks: 4 };
        let settings =
            [("gpu.memory.host_limit", "1g"), ("spark.rapids.memory.pinnedPool.size", "2g")];
        let budget = rules(&settings).divide(&host);
        assert_eq!((budget.pinned, budget.pageable), (GIB - 60 * MIB, 0));
        assert_eq!(budget.spill, 0);
        assert!(budget.warnings[0].to_string().contains("lowered to 964.0 MiB"));
        let budget = rules(&[("gpu.memory.host_limit", "10 MiB")]).divide(&host);
        assert_eq!((budget.overhead, budget.pinned), (10 * MIB, 0));
    }
}
