//! The doctor: looks for what is wrong on a node, and says what to do about it.
//!
//! It needs no agent, asks nobody but the kernel, the driver, the agent's socket and YARN's
//! daemons, and changes nothing. Each file holds one kind of check; [`Node`] is all that they look at, so that a test
//! can show them any node.

mod cgroup;
mod disk;
mod driver;
mod gpus;
mod limits;
mod mig;
mod programs;
mod run_dir;
mod settings;
mod sockets;
mod yarn;

use std::path::PathBuf;
use std::time::Duration;

use creel_settings::{Loaded, Settings, Sources};
use serde::Serialize;

use crate::error::Error;
use crate::run_dir::RunDir;
use crate::yarn::{conf_dir, executor};

/// See [`Node::patience`].
const PATIENCE: Duration = Duration::from_secs(3);

/// How a finding is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// All is well.
    Ok,
    /// It works, but not as well as it could, or not for long.
    Warning,
    /// It does not work.
    Error,
}

impl State {
    /// The state's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check.
    pub check: &'static str,
    /// How it is to be taken.
    pub state: State,
    /// What is so.
    pub what: String,
    /// What to do; absent where nothing need be done.
    pub remedy: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, what: impl Into<String>) -> Self {
        Self { check, state: State::Ok, what: what.into(), remedy: None }
    }

    fn warning(check: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, state: State::Warning, what: what.into(), remedy: Some(remedy.into()) }
    }

    fn error(check: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, state: State::Error, what: what.into(), remedy: Some(remedy.into()) }
    }
}

/// The node that is looked at.
#[derive(Debug)]
pub struct Node {
    /// Where `/proc` and `/sys` are: `/`.
    pub root: PathBuf,
    /// The user that looks.
    pub uid: u32,
    /// The run directory, or why there is none.
    pub run_dir: Result<RunDir, Error>,
    /// What settings are read from.
    pub sources: Sources,
    /// Where executors spill by default.
    pub spill_dir: PathBuf,
    /// `creel-discovery`.
    pub discovery: PathBuf,
    /// `creel-executor`.
    pub executor: PathBuf,
    /// Finds Hadoop's configuration directory, if there is one.
    pub conf_dir: fn(&Settings) -> Option<PathBuf>,
    /// How long the agent or a daemon of YARN may take to answer, and `creel-discovery` beyond its own deadline.
    pub patience: Duration,
}

impl Node {
    /// This node, as this process sees it, with the run directory and settings file of its flags.
    pub fn of_process(run_dir: Option<PathBuf>, config: Option<PathBuf>) -> Self {
        Self {
            root: "/".into(),
            uid: rustix::process::geteuid().as_raw(),
            run_dir: RunDir::find(run_dir),
            sources: Sources::of_process(config, Vec::new()),
            spill_dir: crate::executors::spill_base(&Settings::default()),
            discovery: crate::programs::find("creel-discovery", "CREEL_DISCOVERY"),
            executor: crate::programs::find("creel-executor", "CREEL_EXECUTOR"),
            conf_dir: |settings| Some(conf_dir::find(None, settings).ok()?.path),
            patience: PATIENCE,
        }
    }
}

/// Runs every check. What settings say is read with defaults where they are wrong.
pub async fn examine(node: &Node) -> Vec<Finding> {
    let (settings, mut findings) = settings::check(&node.sources);
    let Loaded { settings, .. } = settings;
    let driver = driver::check(node, settings.discovery_deadline).await;
    let has_gpu = !driver.gpus.is_empty();
    findings.extend(driver.findings);
    findings.extend(programs::check(node));
    findings.extend(run_dir::check(node));
    let sockets = sockets::check(node).await;
    findings.extend(sockets.findings);
    if sockets.agent.is_some() {
        findings.extend(gpus::check(node, &driver.gpus).await);
    }
    findings.extend(limits::check(&node.root, sockets.agent, &settings, has_gpu));
    findings.push(cgroup::check(&node.root, has_gpu));
    findings.push(disk::check(node, &settings));
    let conf_dir = (node.conf_dir)(&settings);
    let looked_in = conf_dir.clone();
    let by_place = executor::knows_gpus_by_place(|| looked_in).await == Some(true);
    findings.extend(mig::check(&node.root, &driver.gpus, settings.yarn_mig_minor, by_place));
    let patience = node.patience;
    findings
        .extend(yarn::check(&node.root, conf_dir.as_deref(), &settings, has_gpu, patience).await);
    findings
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A node whose every path is in a directory, without anything on it.
    pub(super) fn node(directory: &Path) -> Node {
        Node {
            root: directory.join("root"),
            uid: rustix::process::geteuid().as_raw(),
            run_dir: RunDir::resolve(Some(directory.join("run"))),
            sources: Sources::default(),
            spill_dir: directory.join("cache/spill"),
            discovery: directory.join("creel-discovery"),
            executor: directory.join("creel-executor"),
            conf_dir: |_| None,
            patience: Duration::from_mins(1),
        }
    }

    /// Writes a file below a directory, and the directories above it.
    pub(super) fn write(directory: &Path, path: &str, text: &str) {
        let path = directory.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[tokio::test]
    async fn every_check_says_something_of_a_bare_node_and_what_is_wrong_has_a_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let findings = examine(&node(directory.path())).await;
        for check in [
            "settings",
            "driver",
            "programs",
            "run directory",
            "sockets",
            "memory",
            "open files",
            "cgroup",
            "disk",
            "yarn",
        ] {
            assert!(
                findings.iter().any(|finding| finding.check == check),
                "{check}: {findings:#?}"
            );
        }
        for finding in findings {
            assert_eq!(finding.remedy.is_some(), finding.state != State::Ok, "{finding:?}");
        }
    }
}
