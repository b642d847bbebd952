//! The settings: each is declared here, and nowhere else.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::alias::canonical;
use crate::auto::Auto;
use crate::choice::{
    GpuExplain, GpuMode, KeepLostGpus, LogFormat, MigMinor, PoolDebug, PoolKind, PoolSizing,
    Unleased,
};
use crate::error::Error;
use crate::fraction::Fraction;
use crate::load::Origin;
use crate::memory::Memory;
use crate::size::Size;
use crate::value::{Kind, Value};

/// Who may change a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The operator of the node alone.
    Node,
    /// Any client too, for its session.
    Session,
}

impl Scope {
    /// The scope's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Session => "session",
        }
    }
}

/// A setting, as it was declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name, as `executor.memory`.
    pub name: &'static str,
    /// What its value is.
    pub kind: Kind,
    /// Its default, as text.
    pub default: &'static str,
    /// Who may change it.
    pub scope: Scope,
    /// What it is for, in one line.
    pub help: &'static str,
}

impl Setting {
    /// The environment variable that sets it: `CREEL_EXECUTOR_MEMORY` sets `executor.memory`.
    pub fn variable(&self) -> String {
        format!("CREEL_{}", self.name.replace('.', "_").to_uppercase())
    }
}

/// Declares settings, each as
/// `/// help` newline `Scope "name" field: Type = "default"`, and for an integer what it counts
/// and its range: `, "rows" in 1..=10`, for a duration its least, if it has one: `, at least 1 ms`.
macro_rules! settings {
    ($(
        #[doc = $help:literal]
        $scope:ident $name:literal $field:ident: $type:ty = $default:literal
            $(, $unit:literal in $min:literal..=$max:literal)? $(, at least $least:literal ms)?;
    )+) => {
        /// The value of every setting.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Settings {
            $(#[doc = $help] pub $field: $type,)+
        }

        /// Every setting, in the order of their declaration: those of a table are neighbours.
        pub static SETTINGS: &[Setting] = &[$(Setting {
            name: $name,
            kind: settings!(@kind $type $(, $unit in $min..=$max)? $(, at least $least ms)?),
            default: $default,
            scope: Scope::$scope,
            help: $help.trim_ascii(),
        },)+];

        impl Default for Settings {
            fn default() -> Self {
                Self {
                    $($field: Value::parse(
                        $default,
                        &settings!(@kind $type $(, $unit in $min..=$max)? $(, at least $least ms)?),
                    ).expect("a test takes every default"),)+
                }
            }
        }

        impl Settings {
            /// The value of a setting as text in the form that [`Settings::set`] takes; `None` if
            /// there is no such setting.
            pub fn get(&self, name: &str) -> Option<String> {
                match name {
                    $($name => Some(self.$field.text()),)+
                    _ => None,
                }
            }

            /// Sets a declared setting; `None`, and nothing changes, where the text is not of its
            /// kind.
            fn assign(&mut self, setting: &Setting, text: &str) -> Option<()> {
                match setting.name {
                    $($name => self.$field = Value::parse(text, &setting.kind)?,)+
                    name => unreachable!("{name} is in SETTINGS and not in Settings"),
                }
                Some(())
            }
        }

        #[cfg(test)]
        const FIELDS: &[(&str, &str)] = &[$(($name, stringify!($field)),)+];
    };
    (@kind $type:ty) => { <$type as Value>::KIND };
    (@kind $type:ty, $unit:literal in $min:literal..=$max:literal) => {
        Kind::Integer { unit: $unit, min: $min, max: $max }
    };
    (@kind $type:ty, at least $least:literal ms) => {
        Kind::Duration { min: Duration::from_millis($least) }
    };
}

settings! {
    /// Group whose members manage the agent, besides root and the agent's own user.
    Node "agent.group" agent_group: String = "creel";
    /// How the agent writes its log.
    Node "agent.log_format" agent_log_format: LogFormat = "human";
    /// What is logged: a level, or directives as `info,creel_agent=debug`.
    Node "agent.log_level" agent_log_level: String = "info";
    /// How long running queries may take to end when the agent stops.
    Node "agent.drain_timeout" agent_drain_timeout: Duration = "30s";
    /// Where the agent keeps what outlives it; empty means /var/lib/creel, or for others than root $XDG_STATE_HOME/creel or ~/.local/state/creel.
    Node "agent.state_dir" agent_state_dir: PathBuf = "";
    /// Connections to the executors at one time; one user may have three quarters of them.
    Node "agent.max_attachments" agent_max_attachments: usize = "4096", "connections" in 1..=1_000_000;

    /// How long the driver may take to say what GPUs there are; with 16 of them, some take half a minute.
    Node "discovery.deadline" discovery_deadline: Duration = "1m", at least 100 ms;
    /// How often the agent looks at the GPUs again.
    Node "discovery.interval" discovery_interval: Duration = "30s", at least 1000 ms;

    /// Memory of an executor's queries; a percentage is of the node's or the cgroup's memory.
    Node "executor.memory" executor_memory: Memory = "60%";
    /// Threads of an executor; 0 means one for each core.
    Node "executor.threads" executor_threads: usize = "0", "threads" in 0..=4096;
    /// Where executors spill; empty means `spill` in the cache directory.
    Node "executor.spill_dir" executor_spill_dir: PathBuf = "";
    /// What an executor may spill at one time.
    Node "executor.spill_max_bytes" executor_spill_max_bytes: Size = "100 GiB";
    /// How long an executor without connections is kept.
    Node "executor.idle_timeout" executor_idle_timeout: Duration = "5m";
    /// How long an executor may take to start.
    Node "executor.start_timeout" executor_start_timeout: Duration = "30s", at least 100 ms;

    /// Whether a user who is in no container may use a GPU that nobody holds.
    Node "gpu.unleased" gpu_unleased: Unleased = "deny";
    /// Whether queries run on the GPU: on, as far as they can; off, not at all; explain_only, not at all, but EXPLAIN says what would; required, or they are refused.
    Session "gpu.mode" gpu_mode: GpuMode = "on";
    /// What EXPLAIN and the log say of a plan and the GPU: NONE, what is NOT_ON_GPU and why, or ALL.
    Session "gpu.explain" gpu_explain: GpuExplain = "NOT_ON_GPU";
    /// Rows from which on a part of a plan is worth the GPU, by its inputs' statistics; 0 means always.
    Session "gpu.min_rows" gpu_min_rows: usize = "100000", "rows" in 0..=1_000_000_000_000;
    /// Bytes of a batch on the GPU, about; smaller ones are put together before they go there.
    Session "gpu.batch_bytes" gpu_batch_bytes: Size = "512 MiB";
    /// Tasks of all queries that may use a GPU at one time; 0 means as many as the memory of those measured allows.
    Node "gpu.concurrent_tasks" gpu_concurrent_tasks: usize = "0", "tasks" in 0..=1024;

    /// Who hands out the GPU's memory: ARENA and DEFAULT are pools of ours, ASYNC is the driver's pool, NONE is the driver for each buffer.
    Node "gpu.memory.pool" gpu_memory_pool: PoolKind = "ASYNC";
    /// Rules of the pool's size: current has one size, a share of the free memory; classic a first and a largest, shares of all memory.
    Node "gpu.memory.sizing" gpu_memory_sizing: PoolSizing = "current";
    /// The pool's share of the GPU's memory, at first; auto is 1 by current rules, 0.9 by classic ones.
    Node "gpu.memory.alloc_fraction" gpu_memory_alloc_fraction: Auto<Fraction> = "auto";
    /// The pool's share of all memory of the GPU, at the most.
    Node "gpu.memory.max_alloc_fraction" gpu_memory_max_alloc_fraction: Fraction = "1";
    /// The pool's share of all memory of the GPU, at the least; with less there is no pool. Current rules only.
    Node "gpu.memory.min_alloc_fraction" gpu_memory_min_alloc_fraction: Fraction = "0.25";
    /// Memory of the GPU that is left to the driver and kernels; auto is 640 MiB by current rules, 1 GiB by classic ones.
    Node "gpu.memory.reserve" gpu_memory_reserve: Auto<Size> = "auto";
    /// The pool's size, whatever the fractions say; auto leaves it to them. Current rules only.
    Node "gpu.memory.alloc_size" gpu_memory_alloc_size: Auto<Size> = "auto";
    /// Where each allocation and free of the GPU's memory is logged, as CSV.
    Node "gpu.memory.debug" gpu_memory_debug: PoolDebug = "NONE";
    /// What one attachment may hold of the GPU's pool; a percentage is of the pool.
    Node "gpu.memory.attachment_quota" gpu_memory_attachment_quota: Memory = "100%";
    /// How long a query may wait for memory of the GPU that others hold.
    Node "gpu.memory.wait_timeout" gpu_memory_wait_timeout: Duration = "5m";
    /// Page-locked memory of the host for copies to and from the GPU.
    Node "gpu.memory.pinned_pool_size" gpu_memory_pinned_pool_size: Size = "256 MiB";
    /// Memory of the host for the GPU's queries, page-locked and not; auto is a share of what is free.
    Node "gpu.memory.host_limit" gpu_memory_host_limit: Auto<Size> = "auto";
    /// What batches that left the GPU may take of that before they go to disk; auto is the pinned pool and 1 GiB.
    Node "gpu.memory.host_spill_size" gpu_memory_host_spill_size: Auto<Size> = "auto";

    /// Rows of a batch, at the most.
    Session "sql.batch_size" sql_batch_size: usize = "8192", "rows" in 1..=1_048_576;
    /// Parts that a query is cut into to run at once; 0 means as many as executor.threads.
    Session "sql.target_partitions" sql_target_partitions: usize = "0", "partitions" in 0..=4096;
    /// Length of an SQL text, at the most; more than 4 MiB is never allowed.
    Node "sql.max_statement_bytes" sql_max_statement_bytes: Size = "2 MiB";
    /// How deep a statement may nest; a chain of OR or UNION is as deep as it is long.
    Node "sql.max_depth" sql_max_depth: usize = "2000", "levels" in 50..=100_000;

    /// Whether the agent keeps YARN's configuration files as GPUs need them.
    Node "yarn.manage" yarn_manage: bool = "false";
    /// Hadoop's configuration directory; empty means that it is looked for.
    Node "yarn.conf_dir" yarn_conf_dir: PathBuf = "";
    /// Roles whose entries the agent keeps: rm, nm, client or all, separated by commas.
    Node "yarn.roles" yarn_roles: String = "nm,client";
    /// Directory of the nvidia-smi that NodeManagers ask; empty means the one that came with the agent.
    Node "yarn.nvidia_smi_dir" yarn_nvidia_smi_dir: PathBuf = "";
    /// Whether a GPU that is unfit for use keeps its place in what YARN is shown; auto: with LinuxContainerExecutor, which knows GPUs by their place.
    Node "yarn.keep_lost_gpus" yarn_keep_lost_gpus: KeepLostGpus = "auto";
    /// Minor number that YARN is given for a MIG slice: its GPU's, or its GPU instance's below /dev/nvidia-caps, for isolation by control groups.
    Node "yarn.mig_minor" yarn_mig_minor: MigMinor = "gpu";
    /// GPUs that a container may ask for, in the whole cluster; 0 leaves that to YARN.
    Node "yarn.max_gpus_per_container" yarn_max_gpus_per_container: usize = "0", "GPUs" in 0..=1024;
    /// Whether the agent restarts the NodeManager when its files have changed.
    Node "yarn.restart_nodemanager" yarn_restart_nodemanager: bool = "false";
    /// The NodeManager's systemd unit; empty means that it is looked for.
    Node "yarn.nodemanager_unit" yarn_nodemanager_unit: String = "";
    /// Whether the agent tells the ResourceManager when fewer GPUs are fit for use.
    Node "yarn.update_resource" yarn_update_resource: bool = "false";
    /// Web address of the ResourceManager, as http://rm:8088, or several with commas between them; empty means that of yarn-site.xml.
    Node "yarn.resourcemanager_url" yarn_resourcemanager_url: String = "";
    /// Web address of this node's NodeManager, as http://localhost:8042; empty means that of yarn-site.xml.
    Node "yarn.nodemanager_url" yarn_nodemanager_url: String = "";
}

/// The setting of that name, or of that alias ([`crate::alias`]).
pub fn find(name: &str) -> Option<&'static Setting> {
    let name = canonical(name);
    SETTINGS.iter().find(|setting| setting.name == name)
}

/// The known name that is most like this one, if any is.
pub(crate) fn nearest(name: &str) -> Option<&'static str> {
    const LIKE_ENOUGH: f64 = 0.6;
    // The right key in the wrong table, or in none, is nearly right.
    const OTHER_TABLE: f64 = 0.9;
    let likeness = |known: &str| {
        let keys = strsim::normalized_damerau_levenshtein(key(name), key(known));
        f64::max(strsim::normalized_damerau_levenshtein(name, known), keys * OTHER_TABLE)
    };
    SETTINGS
        .iter()
        .map(|setting| (likeness(setting.name), setting.name))
        .filter(|(likeness, _)| *likeness >= LIKE_ENOUGH)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, name)| name)
}

fn key(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(_, key)| key)
}

impl Settings {
    /// Sets a setting by its name from text, as it stands in `creel.toml` without its quotes.
    ///
    /// An error leaves everything as it was.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), Error> {
        self.set_from(None, name, text).map(|_| ())
    }

    /// Sets a setting for a client's session: one of [`Scope::Session`] only. The name may have
    /// the prefix `creel.`.
    ///
    /// An error leaves everything as it was.
    pub fn set_session(&mut self, name: &str, text: &str) -> Result<(), Error> {
        let name = name.strip_prefix("creel.").unwrap_or(name);
        match find(name) {
            Some(setting) if setting.scope == Scope::Node => Err(Error::OperatorOnly(setting.name)),
            _ => self.set(name, text),
        }
    }

    pub(crate) fn set_from(
        &mut self,
        at: Option<Origin>,
        name: &str,
        text: &str,
    ) -> Result<&'static Setting, Error> {
        let Some(setting) = find(name) else {
            return Err(Error::Unknown { at, name: name.to_owned(), nearest: nearest(name) });
        };
        match self.assign(setting, text) {
            Some(()) => Ok(setting),
            None => Err(Error::Value {
                at,
                name: setting.name,
                text: text.to_owned(),
                expected: setting.kind,
            }),
        }
    }

    /// The settings that don't have their default, as text by name: what an executor is given.
    pub fn to_map(&self) -> BTreeMap<String, String> {
        SETTINGS
            .iter()
            .filter_map(|setting| Some((setting, self.get(setting.name)?)))
            .filter(|(setting, text)| text != setting.default)
            .map(|(setting, text)| (setting.name.to_owned(), text))
            .collect()
    }

    /// The settings of a map that [`Settings::to_map`] made; what it does not name has its
    /// default. The error names all that is wrong.
    pub fn from_map(map: &BTreeMap<String, String>) -> Result<Self, Error> {
        let mut settings = Self::default();
        let errors = map.iter().filter_map(|(name, text)| settings.set(name, text).err()).collect();
        Error::of(errors)?;
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_default_is_taken_and_is_in_canonical_form() {
        let defaults = Settings::default();
        for setting in SETTINGS {
            assert_eq!(
                defaults.get(setting.name).as_deref(),
                Some(setting.default),
                "{}",
                setting.name
            );
            Settings::default().set(setting.name, setting.default).unwrap();
        }
        assert!(defaults.to_map().is_empty());
    }

    #[test]
    fn names_are_well_formed() {
        for (name, field) in FIELDS {
            assert_eq!(name.replace('.', "_"), *field);
            assert!(name.contains('.'), "{name} has no table");
            assert!(
                name.bytes().all(|b| b.is_ascii_lowercase() || b"._0123456789".contains(&b)),
                "{name}"
            );
            let table = format!("{name}.");
            assert!(
                !SETTINGS.iter().any(|other| other.name.starts_with(&table)),
                "{name} is a table too"
            );
        }
        let variables: BTreeSet<_> = SETTINGS.iter().map(Setting::variable).collect();
        assert_eq!(variables.len(), SETTINGS.len());
        assert!(variables.contains("CREEL_EXECUTOR_SPILL_MAX_BYTES"));
    }

    #[test]
    fn every_help_is_a_sentence() {
        for setting in SETTINGS {
            assert!(setting.help.ends_with('.') && setting.help.len() > 10, "{}", setting.name);
        }
    }

    #[test]
    fn set_and_get() {
        let mut settings = Settings::default();
        settings.set("executor.memory", "4g").unwrap();
        settings.set("gpu.unleased", "allow").unwrap();
        assert_eq!(settings.executor_memory, Memory::Bytes(Size(4 << 30)));
        assert_eq!(settings.get("executor.memory").as_deref(), Some("4 GiB"));
        assert_eq!(settings.gpu_unleased, Unleased::Allow);
        assert_eq!(settings.get("executor.memroy"), None);
        let map = settings.to_map();
        assert_eq!(map.len(), 2);
        assert_eq!(Settings::from_map(&map).unwrap(), settings);
    }

    #[test]
    fn an_error_changes_nothing_and_says_what_was_expected() {
        let mut settings = Settings::default();
        let error = settings.set("sql.batch_size", "0").unwrap_err().to_string();
        assert_eq!(
            error,
            r#"sql.batch_size can't be "0": expected a number of rows from 1 to 1048576"#
        );
        let error = settings.set("agent.log_format", "xml").unwrap_err().to_string();
        assert_eq!(
            error,
            r#"agent.log_format can't be "xml": expected one of human, json, journald"#
        );
        let error = settings.set("discovery.interval", "0s").unwrap_err().to_string();
        assert_eq!(
            error,
            r#"discovery.interval can't be "0s": expected a duration such as "500ms", "30s" or "1h 30m", at least "1s""#
        );
        assert_eq!(settings, Settings::default());
    }

    #[test]
    fn the_nearest_name() {
        for (given, known) in [
            ("executor.memroy", Some("executor.memory")),
            ("exceutor.memory", Some("executor.memory")),
            ("agent.memory", Some("executor.memory")),
            ("memory", Some("executor.memory")),
            ("sql.batchsize", Some("sql.batch_size")),
            ("zzz", None),
            ("", None),
        ] {
            assert_eq!(nearest(given), known, "{given}");
        }
    }

    #[test]
    fn a_session_changes_only_what_is_a_sessions() {
        let mut settings = Settings::default();
        settings.set_session("creel.sql.batch_size", "100").unwrap();
        settings.set_session("sql.target_partitions", "3").unwrap();
        assert_eq!((settings.sql_batch_size, settings.sql_target_partitions), (100, 3));
        let error = settings.set_session("creel.executor.memory", "1 TiB").unwrap_err();
        assert!(matches!(error, Error::OperatorOnly("executor.memory")), "{error}");
        let error = settings.set_session("sql.batch_sise", "1").unwrap_err();
        assert!(error.to_string().contains("sql.batch_size"), "{error}");
        assert_eq!(settings.executor_memory, Memory::Percent(60));
    }

    #[test]
    fn from_map_names_all_that_is_wrong() {
        let map = [("executor.threads", "-1"), ("no.such", "1"), ("sql.batch_size", "7")];
        let map = map.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
        assert_eq!(Settings::from_map(&map).unwrap_err().each().len(), 2);
    }

    proptest! {
        #[test]
        fn what_is_accepted_round_trips(
            setting in prop::sample::select(SETTINGS),
            text in prop_oneof![".{0,20}", "[0-9]{1,20}[ %a-zA-Z]{0,5}", "/.{0,20}"],
        ) {
            let mut settings = Settings::default();
            if settings.set(setting.name, &text).is_ok() {
                let mut again = Settings::default();
                again.set(setting.name, &settings.get(setting.name).unwrap()).unwrap();
                prop_assert_eq!(&again, &settings);
                prop_assert_eq!(&Settings::from_map(&settings.to_map()).unwrap(), &settings);
            }
        }
    }
}
