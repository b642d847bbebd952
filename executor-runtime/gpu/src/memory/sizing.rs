//! How large a GPU's pool is.
//!
//! Two sets of rules, both known to users of the RAPIDS Accelerator for Apache Spark, whose
//! settings mean the same here:
//!
//! ```text
//!  classic   total ├──────── initial ────────┤── grows ──┤ maximum ├─ reserve ─┤
//!            initial = alloc_fraction · total            maximum = max_alloc_fraction · total - reserve
//!
//!  current   total ├─ others ─┤──────────── pool ─────────────┤─── reserve ────┤
//!            pool = alloc_fraction · (free - reserve)      min_alloc_fraction · total ≤ pool
//! ```
//!
//! Every size is rounded down to 512 bytes. Sizes are told in MiB, after dropping what is less
//! than a KiB, so that they are multiples of 1/1024.
//!
//! Source: `GpuDeviceManager.scala` of the RAPIDS Accelerator, classic as in its version 0.4,
//! current as in 21.12 and later.

use std::fmt;

use creel_settings::{Auto, Fraction, PoolKind, PoolSizing, Settings, Size};

use super::error::{MemoryError, Process};

/// Sizes of pools are multiples of it.
const SIZE_ALIGNMENT: u64 = 512;

/// What an integrated GPU may take of the memory that it shares with the host.
const INTEGRATED_FRACTION: f64 = 0.6;

/// The settings that say how large the pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizingRules {
    /// `gpu.memory.sizing`.
    pub sizing: PoolSizing,
    /// `gpu.memory.pool`.
    pub pool: PoolKind,
    /// `gpu.memory.alloc_fraction`.
    pub alloc_fraction: Auto<Fraction>,
    /// `gpu.memory.max_alloc_fraction`.
    pub max_alloc_fraction: Fraction,
    /// `gpu.memory.min_alloc_fraction`.
    pub min_alloc_fraction: Fraction,
    /// `gpu.memory.reserve`.
    pub reserve: Auto<Size>,
    /// `gpu.memory.alloc_size`.
    pub alloc_size: Auto<Size>,
}

impl From<&Settings> for SizingRules {
    fn from(settings: &Settings) -> Self {
        Self {
            sizing: settings.gpu_memory_sizing,
            pool: settings.gpu_memory_pool,
            alloc_fraction: settings.gpu_memory_alloc_fraction,
            max_alloc_fraction: settings.gpu_memory_max_alloc_fraction,
            min_alloc_fraction: settings.gpu_memory_min_alloc_fraction,
            reserve: settings.gpu_memory_reserve,
            alloc_size: settings.gpu_memory_alloc_size,
        }
    }
}

/// A device's memory, as the driver tells it (`cuMemGetInfo`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceBytes {
    /// All, in bytes.
    pub total: u64,
    /// What nobody has, in bytes.
    pub free: u64,
    /// Whether the memory is the host's (`CU_DEVICE_ATTRIBUTE_INTEGRATED`).
    pub integrated: bool,
    /// Who is known to hold the rest, for the message when it is too much.
    pub holders: Vec<Process>,
}

/// How large a pool is.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolSize {
    /// By which rules.
    pub sizing: PoolSizing,
    /// Of which kind.
    pub pool: PoolKind,
    /// What it takes at its start, in bytes.
    pub initial: u64,
    /// What it may take, in bytes; 0 is no pool, and no limit of ours.
    pub maximum: u64,
    /// What its operator should know.
    pub warnings: Vec<SizingWarning>,
}

/// A pool that is not as large as the settings want it.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SizingWarning {
    /// There is less free memory than the pool's first size.
    #[error(
        "the pool's initial size of {} MiB is more than the {} MiB that are free",
        Mib(*initial), Mib(*free)
    )]
    LargerThanFree {
        /// The first size, in bytes.
        initial: u64,
        /// What is free, in bytes.
        free: u64,
    },
    /// The pool's first size leaves less than the reserve.
    #[error(
        "the pool's initial size of {} MiB is more than its maximum without the reserve, {} MiB: \
         it is lowered to that",
        Mib(*initial), Mib(*maximum)
    )]
    LargerThanMaximum {
        /// The first size, in bytes.
        initial: u64,
        /// The largest size, in bytes.
        maximum: u64,
    },
    /// The pool would take some of the reserve.
    #[error(
        "a pool of {} MiB does not leave the {} MiB of gpu.memory.reserve: it is lowered to {} MiB",
        Mib(*pool), Mib(*reserve), Mib(*lowered)
    )]
    NoRoomForReserve {
        /// The size wanted, in bytes.
        pool: u64,
        /// The reserve, in bytes.
        reserve: u64,
        /// The size given, in bytes.
        lowered: u64,
    },
}

impl fmt::Display for PoolSize {
    /// One line for the log; sizes in MiB.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = creel_settings::Value::text(&self.pool);
        let (initial, maximum) = (Mib(self.initial), Mib(self.maximum));
        match self.sizing {
            PoolSizing::Classic => write!(
                f,
                "memory pool {kind}, initial size = {initial} MiB, maximum size = {maximum} MiB"
            ),
            PoolSizing::Current => write!(f, "memory pool {kind}, size = {initial} MiB"),
        }
    }
}

/// Bytes, shown in MiB.
pub struct Mib(pub u64);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", (self.0 / 1024) as f64 / 1024.0)
    }
}

fn truncate(bytes: u64) -> u64 {
    bytes & !(SIZE_ALIGNMENT - 1)
}

impl SizingRules {
    /// The size of the pool of a device. The error says which setting can't be met and why.
    pub fn size(&self, device: &DeviceBytes) -> Result<PoolSize, MemoryError> {
        match self.sizing {
            PoolSizing::Classic => self.classic(device),
            PoolSizing::Current => self.current(device),
        }
    }

    fn classic(&self, device: &DeviceBytes) -> Result<PoolSize, MemoryError> {
        let alloc = self.alloc_fraction.given().unwrap_or_else(|| fraction(0.9));
        let reserve = self.reserve.given().map_or(1 << 30, |size| size.0);
        let mut warnings = Vec::new();

        let mut initial = truncate(alloc.of(device.total));
        if initial > device.free {
            warnings.push(SizingWarning::LargerThanFree { initial, free: device.free });
        }
        let maximum = truncate(self.max_alloc_fraction.of(device.total));
        if maximum < initial {
            return Err(MemoryError::FractionsCross {
                alloc: alloc.get(),
                maximum: self.max_alloc_fraction.get(),
            });
        }
        let maximum = self.without_reserve(maximum, reserve)?;
        if initial > maximum {
            warnings.push(SizingWarning::LargerThanMaximum { initial, maximum });
            initial = maximum;
        }
        let maximum = if self.pool == PoolKind::None { 0 } else { maximum };
        Ok(PoolSize { sizing: self.sizing, pool: self.pool, initial, maximum, warnings })
    }

    fn current(&self, device: &DeviceBytes) -> Result<PoolSize, MemoryError> {
        let sized = |bytes, warnings| PoolSize {
            sizing: self.sizing,
            pool: self.pool,
            initial: bytes,
            maximum: if self.pool == PoolKind::None { 0 } else { bytes },
            warnings,
        };
        if let Some(size) = self.alloc_size.given() {
            return Ok(sized(truncate(size.0), Vec::new()));
        }
        let alloc = self.alloc_fraction.given().unwrap_or_else(|| fraction(1.0));
        let reserve = self.reserve.given().map_or(640 << 20, |size| size.0);

        let total = if device.integrated {
            fraction(INTEGRATED_FRACTION).of(device.total)
        } else {
            device.total
        };
        let free = device.free.min(total);
        let minimum = truncate(self.min_alloc_fraction.of(total));
        let maximum = truncate(self.max_alloc_fraction.of(total));
        // Less than nothing is nothing: both are below any minimum but 0.
        let mut pool = truncate(alloc.of(free.saturating_sub(reserve)));
        if pool < minimum || free < reserve {
            return Err(MemoryError::PoolTooSmall {
                pool,
                free,
                reserve,
                alloc: alloc.get(),
                minimum,
                total,
                min_alloc: self.min_alloc_fraction.get(),
                holders: device.holders.clone(),
            });
        }
        if pool > maximum {
            return Err(MemoryError::PoolTooLarge {
                pool,
                free,
                reserve,
                alloc: alloc.get(),
                maximum,
                total,
                max_alloc: self.max_alloc_fraction.get(),
            });
        }
        let adjusted = self.without_reserve(maximum, reserve)?;
        let mut warnings = Vec::new();
        if pool > adjusted {
            warnings.push(SizingWarning::NoRoomForReserve { pool, reserve, lowered: adjusted });
            pool = adjusted;
        }
        Ok(sized(pool, warnings))
    }

    fn without_reserve(&self, maximum: u64, reserve: u64) -> Result<u64, MemoryError> {
        if reserve >= maximum {
            return Err(MemoryError::ReserveTooLarge {
                reserve,
                maximum,
                max_alloc: self.max_alloc_fraction.get(),
            });
        }
        Ok(truncate(maximum - reserve))
    }
}

fn fraction(value: f64) -> Fraction {
    Fraction::new(value).expect("a constant from 0 to 1")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Quadro RTX 6000 whose driver tells 24220.3125 MiB, with 701 MiB in use.
    fn rtx6000() -> DeviceBytes {
        DeviceBytes {
            total: 25_396_838_400,
            free: 25_396_838_400 - (701 << 20),
            ..DeviceBytes::default()
        }
    }

    fn rules(settings: &[(&str, &str)]) -> SizingRules {
        let mut all = Settings::default();
        for (name, value) in settings {
            all.set(name, value).unwrap();
        }
        SizingRules::from(&all)
    }

    /// What was observed with version 0.4 of the RAPIDS Accelerator on such a GPU, under its own
    /// names of the settings.
    #[test]
    fn classic_sizes_to_the_last_digit() {
        const CLASSIC: (&str, &str) = ("gpu.memory.sizing", "classic");
        const POOL: &str = "spark.rapids.memory.gpu.pool";
        const FRACTION: &str = "spark.rapids.memory.gpu.allocFraction";
        const RESERVE: &str = "spark.rapids.memory.gpu.reserve";
        let free = "the pool's initial size of 23978.109375 MiB is more than the 23519.3125 MiB that are free";
        let lowered = |to| {
            format!(
                "the pool's initial size of 23978.109375 MiB is more than its maximum without the \
                 reserve, {to} MiB: it is lowered to that"
            )
        };
        for (case, settings, line, warnings) in [
            (
                "a: the defaults",
                vec![(POOL, "ARENA")],
                "memory pool ARENA, initial size = 21798.28125 MiB, maximum size = 23196.3125 MiB",
                vec![],
            ),
            (
                "a: the same, given",
                vec![(POOL, "ARENA"), (FRACTION, "0.9"), (RESERVE, "1073741824")],
                "memory pool ARENA, initial size = 21798.28125 MiB, maximum size = 23196.3125 MiB",
                vec![],
            ),
            (
                "b: more at first",
                vec![(POOL, "ARENA"), (FRACTION, "0.99"), (RESERVE, "1073741824")],
                "memory pool ARENA, initial size = 23196.3125 MiB, maximum size = 23196.3125 MiB",
                vec![free.to_owned(), lowered("23196.3125")],
            ),
            (
                "c: more in reserve",
                vec![(POOL, "ARENA"), (FRACTION, "0.99"), (RESERVE, "2147483648")],
                "memory pool ARENA, initial size = 22172.3125 MiB, maximum size = 22172.3125 MiB",
                vec![free.to_owned(), lowered("22172.3125")],
            ),
            (
                "d: no pool",
                vec![(POOL, "NONE")],
                "memory pool NONE, initial size = 21798.28125 MiB, maximum size = 0.0 MiB",
                vec![],
            ),
            (
                "e: a log changes nothing",
                vec![(POOL, "ARENA"), ("spark.rapids.memory.gpu.debug", "STDOUT")],
                "memory pool ARENA, initial size = 21798.28125 MiB, maximum size = 23196.3125 MiB",
                vec![],
            ),
        ] {
            let settings = [vec![CLASSIC], settings].concat();
            let size = rules(&settings).size(&rtx6000()).unwrap();
            assert_eq!(size.to_string(), line, "{case}");
            let said: Vec<_> = size.warnings.iter().map(ToString::to_string).collect();
            assert_eq!(said, warnings, "{case}");
        }
        assert_eq!(Mib(rtx6000().total).to_string(), "24220.3125");
        assert_eq!(Mib(rtx6000().free).to_string(), "23519.3125");
    }

    #[test]
    fn classic_settings_that_contradict_each_other() {
        let classic = ("gpu.memory.sizing", "classic");
        let error = rules(&[classic, ("gpu.memory.max_alloc_fraction", "0.5")])
            .size(&rtx6000())
            .unwrap_err()
            .to_string();
        assert!(error.contains("max_alloc_fraction = 0.5") && error.contains("0.9"), "{error}");
        let error = rules(&[classic, ("gpu.memory.reserve", "24g")]).size(&rtx6000()).unwrap_err();
        assert!(matches!(error, MemoryError::ReserveTooLarge { .. }), "{error}");
    }

    #[test]
    fn current_is_one_size_of_what_is_free() {
        let size = rules(&[("gpu.memory.pool", "ARENA")]).size(&rtx6000()).unwrap();
        // 23519.3125 - 640
        assert_eq!(size.to_string(), "memory pool ARENA, size = 22879.3125 MiB");
        assert_eq!(size.initial, size.maximum);
        assert!(size.warnings.is_empty());

        let size = rules(&[("gpu.memory.alloc_fraction", "0.5")]).size(&rtx6000()).unwrap();
        assert_eq!(Mib(size.maximum).to_string(), "11439.65625");

        let none = rules(&[("gpu.memory.pool", "NONE")]).size(&rtx6000()).unwrap();
        assert_eq!((Mib(none.initial).to_string().as_str(), none.maximum), ("22879.3125", 0));

        let given = rules(&[("gpu.memory.alloc_size", "1000001")]).size(&rtx6000()).unwrap();
        assert_eq!(given.maximum, 999_936);
    }

    #[test]
    fn current_lowers_the_pool_for_the_reserve() {
        // All is free and the largest share is 90 %: the reserve must fit in that too.
        let device = DeviceBytes { total: 10 << 30, free: 10 << 30, ..DeviceBytes::default() };
        let settings = [
            ("gpu.memory.alloc_fraction", "0.9"),
            ("gpu.memory.max_alloc_fraction", "0.9"),
            ("gpu.memory.reserve", "1g"),
        ];
        let size = rules(&settings).size(&device).unwrap();
        assert_eq!(size.maximum, 8 << 30);
        assert_eq!(
            size.warnings[0].to_string(),
            "a pool of 8294.3994140625 MiB does not leave the 1024.0 MiB of gpu.memory.reserve: \
             it is lowered to 8192.0 MiB"
        );
    }

    #[test]
    fn an_integrated_gpu_shares() {
        let device = DeviceBytes {
            total: 10 << 30,
            free: 9 << 30,
            integrated: true,
            ..DeviceBytes::default()
        };
        let size = rules(&[("gpu.memory.reserve", "1g")]).size(&device).unwrap();
        assert_eq!(size.maximum, 5 << 30);
    }

    #[test]
    fn a_gpu_that_others_fill_is_told_with_their_names() {
        let device = DeviceBytes {
            total: 24 << 30,
            free: 3 << 30,
            integrated: false,
            holders: vec![
                Process { pid: 4711, name: "python".into(), bytes: Some(20 << 30) },
                Process { pid: 12, name: "Xorg".into(), bytes: None },
            ],
        };
        let error = rules(&[]).size(&device).unwrap_err().to_string();
        for part in [
            "2432.0 MiB",
            "3072.0 MiB",
            "6144.0 MiB",
            "python (pid 4711, 20480.0 MiB)",
            "Xorg (pid 12)",
            "gpu.memory.min_alloc_fraction",
        ] {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
        // Less free than the reserve, and no least: still no pool.
        let device = DeviceBytes { free: 1 << 20, ..device };
        let error = rules(&[("gpu.memory.min_alloc_fraction", "0")]).size(&device).unwrap_err();
        assert!(matches!(error, MemoryError::PoolTooSmall { pool: 0, .. }), "{error}");
    }

    #[test]
    fn current_refuses_more_than_the_largest_share() {
        let error = rules(&[("gpu.memory.max_alloc_fraction", "0.5")]).size(&rtx6000());
        assert!(matches!(error, Err(MemoryError::PoolTooLarge { .. })), "{error:?}");
        let settings = [
            ("gpu.memory.max_alloc_fraction", "0.1"),
            ("gpu.memory.min_alloc_fraction", "0"),
            ("gpu.memory.reserve", "20g"),
            ("gpu.memory.alloc_fraction", "0.1"),
        ];
        let error = rules(&settings).size(&rtx6000());
        assert!(matches!(error, Err(MemoryError::ReserveTooLarge { .. })), "{error:?}");
    }
}
