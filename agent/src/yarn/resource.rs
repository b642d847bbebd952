//! Telling the ResourceManager that fewer GPUs are fit for use (`yarn.update_resource`).
//!
//! A NodeManager counts its GPUs when it starts, and never again; so one that is lost later is given
//! out for as long as it runs, to containers that find none. `yarn rmadmin -updateNodeResource`
//! changes the count that the ResourceManager gives out. (Its web service for the same,
//! `POST /ws/v1/cluster/nodes/{id}/resource`, reads memory and processors alone, and sets every
//! other resource to 0.)
//!
//! ```text
//!   every look at the GPUs ─▶ fit for use: 1 ─┐
//!   ResourceManager ────────▶ given out:   2 ─┴▶ decide ─▶ yarn rmadmin -updateNodeResource ID …=1
//! ```
//!
//! The count is raised again when GPUs come back, as far as it was lowered and no farther: an
//! operator may have a reason for a low one. What it was is in a file of the state directory, and
//! forgotten when the NodeManager starts anew, for it has counted anew then.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use creel_discovery::{Snapshot, deadline};
use creel_settings::Settings;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tracing::{info, warn};

use super::cluster;
use super::rest::{Addresses, GPU, Node, NodeInfo, NodeManager, ResourceManager};
use super::status::fit;
use crate::error::Error;
use crate::gpus::Gpus;

/// What a daemon may take for an answer.
const DAEMON: Duration = Duration::from_secs(5);
/// What `yarn rmadmin` may take: it starts a Java machine.
const RMADMIN: Duration = Duration::from_mins(1);
/// Between two looks at the ResourceManager's count, at the least.
const REST: Duration = Duration::from_secs(5);
/// The file, in the state directory.
const FILE_NAME: &str = "yarn-resource.json";

/// A count that was lowered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Lowered {
    /// The node's id.
    node: String,
    /// When its NodeManager started, in milliseconds since the Unix epoch.
    started: Option<u64>,
    /// What it was.
    from: u64,
}

/// Keeps the ResourceManager's count at what is fit for use, while the setting says so; never
/// returns.
pub async fn keep(settings: watch::Receiver<Arc<Settings>>, gpus: Gpus, state_dir: PathBuf) {
    let file = state_dir.join(FILE_NAME);
    let mut looked = gpus.looked();
    let mut complaint = None;
    while looked.next().await {
        let settings = Arc::clone(&settings.borrow());
        let Some(snapshot) = gpus.shown().filter(|_| settings.yarn_update_resource) else {
            continue;
        };
        // It has written what went wrong before.
        let failed = update(settings, &snapshot, &file).await.err().map(|error| error.to_string());
        if let Some(why) = failed.as_ref().filter(|_| failed != complaint) {
            warn!("the ResourceManager's count of GPUs is not kept: {why}");
        }
        complaint = failed;
        tokio::time::sleep(REST).await;
    }
}

async fn update(settings: Arc<Settings>, snapshot: &Snapshot, file: &Path) -> Result<(), Error> {
    let read = tokio::task::spawn_blocking(move || -> Result<_, Error> {
        let found = cluster::configuration(None, &settings);
        let effective = found.as_ref().ok().map(|(_, effective)| effective);
        let addresses = cluster::addresses(&settings, effective)?;
        Ok((addresses, found.ok().map(|(directory, _)| directory.path().to_owned())))
    });
    let (addresses, conf_dir) = read.await.map_err(|error| Error::Failed(error.to_string()))??;
    let Addresses { resource_managers, node_manager } = addresses;
    let address = node_manager.ok_or(Error::YarnAddressUnknown {
        daemon: "NodeManager",
        setting: "yarn.nodemanager_url",
        key: "yarn.nodemanager.webapp.address",
    })?;
    let nm = NodeManager::new(address, DAEMON);
    let info = nm.info().await?;
    let Some(id) = &info.id else { return Ok(()) };
    let rm = ResourceManager::new(resource_managers, DAEMON);
    // One that the ResourceManager does not know, or that is not in use, needs no count.
    let Some(node) = rm.node(id).await? else { return Ok(()) };
    if node.state.as_deref() != Some("RUNNING") {
        return Ok(());
    }
    // Under LinuxContainerExecutor it can give no more than it counted itself.
    let own = nm.gpus().await.ok().flatten().map_or(0, |gpus| gpus.total.len() as u64);
    let fit = if own == 0 { fit(snapshot) } else { fit(snapshot).min(own) };

    let lowered = read_file(file).filter(|lowered| is_of(lowered, &node, &info));
    let Some((count, lowered)) = decide(&node, &info, fit, lowered) else { return Ok(()) };
    let resources = resources(&node, count)?;
    // Before, so that a count that is lowered can always be raised.
    write_file(file, lowered.as_ref())?;
    let before = node.total.gpus().unwrap_or_default();
    rmadmin(conf_dir, node.id.clone(), resources).await?;
    info!(
        node = node.id,
        "the ResourceManager gives out {count} GPUs of this node now, not {before}"
    );
    Ok(())
}

/// The count to set, and what to remember of it; `None`: it is right.
fn decide(
    node: &Node,
    info: &NodeInfo,
    fit: u64,
    lowered: Option<Lowered>,
) -> Option<(u64, Option<Lowered>)> {
    let counted = node.total.gpus()?;
    let from = lowered.map(|lowered| lowered.from);
    let target = fit.min(from.unwrap_or(counted).max(counted));
    if target == counted {
        return None;
    }
    let from = from.unwrap_or(counted).max(counted);
    let lowered = Lowered { node: node.id.clone(), started: info.started, from };
    Some((target, (target < from).then_some(lowered)))
}

fn is_of(lowered: &Lowered, node: &Node, info: &NodeInfo) -> bool {
    lowered.node == node.id && lowered.started == info.started
}

/// All that the node has, with another count of GPUs, as `yarn rmadmin` takes it: what is left out
/// becomes 0, and memory without its unit is refused.
fn resources(node: &Node, gpus: u64) -> Result<String, Error> {
    let amounts = node.total.amounts().iter().map(|amount| {
        let value = if amount.name == GPU { Some(gpus) } else { amount.value };
        let value = value.ok_or_else(|| {
            Error::Failed(format!(
                "the ResourceManager does not say how much {} the node has, and it would be lost",
                amount.name
            ))
        })?;
        Ok(format!("{}={value}{}", amount.name, amount.units))
    });
    Ok(amounts.collect::<Result<Vec<_>, Error>>()?.join(","))
}

async fn rmadmin(conf_dir: Option<PathBuf>, node: String, resources: String) -> Result<(), Error> {
    let run = tokio::task::spawn_blocking(move || {
        let mut command = Command::new("yarn");
        command.args(["rmadmin", "-updateNodeResource", &node, &resources]);
        if let Some(conf_dir) = conf_dir {
            command.env("HADOOP_CONF_DIR", &conf_dir).env("YARN_CONF_DIR", &conf_dir);
        }
        deadline::run(&mut command, RMADMIN)
    });
    let output = run.await.map_err(|error| Error::Failed(error.to_string()))?;
    let output = output.map_err(|error| Error::Failed(format!("yarn rmadmin: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    // Its own words, and not those of Java's logging before nor of its usage after.
    let said = stderr.lines().find(|line| line.starts_with("updateNodeResource:"));
    let said = said.or(stderr.lines().last()).unwrap_or_default();
    Err(Error::Failed(format!("yarn rmadmin -updateNodeResource ({}): {said}", output.status)))
}

/// What was lowered. A file that can't be understood says nothing: the count is not raised then.
fn read_file(file: &Path) -> Option<Lowered> {
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

fn write_file(file: &Path, lowered: Option<&Lowered>) -> Result<(), Error> {
    let new = file.with_extension("new");
    let write = || match lowered {
        Some(lowered) => {
            std::fs::write(&new, serde_json::to_vec(lowered)?)?;
            std::fs::rename(&new, file)
        }
        None => std::fs::remove_file(file).or_else(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        }),
    };
    write().map_err(|source| Error::StateDir { path: file.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(amounts: &serde_json::Value) -> Node {
        serde_json::from_value(json!({
            "id": "a:1",
            "totalResource": { "resourceInformations": { "resourceInformation": amounts } },
        }))
        .unwrap()
    }

    fn with_gpus(count: u64) -> Node {
        node(&json!([
            { "name": "memory-mb", "value": 4096, "units": "Mi" },
            { "name": "vcores", "value": 8, "units": "" },
            { "name": "yarn.io/gpu", "value": count, "units": "" },
        ]))
    }

    fn lowered(from: u64) -> Lowered {
        Lowered { node: "a:1".to_owned(), started: Some(7), from }
    }

    #[test]
    fn it_is_lowered_to_what_is_fit_and_raised_as_far_as_it_was() {
        let info = NodeInfo { started: Some(7), ..NodeInfo::default() };
        for (counted, fit, before, then) in [
            (2, 2, None, None),
            // Not by us.
            (1, 2, None, None),
            (2, 1, None, Some((1, Some(2)))),
            (1, 0, Some(2), Some((0, Some(2)))),
            (1, 1, Some(2), None),
            (0, 1, Some(2), Some((1, Some(2)))),
            (1, 2, Some(2), Some((2, None))),
            (1, 4, Some(2), Some((2, None))),
            // Somebody else raised it.
            (4, 3, Some(2), Some((3, Some(4)))),
        ] {
            let found = decide(&with_gpus(counted), &info, fit, before.map(lowered));
            let found = found.map(|(count, lowered)| (count, lowered.map(|lowered| lowered.from)));
            assert_eq!(found, then, "{counted} {fit} {before:?}");
        }
        // A ResourceManager that does not know the type.
        assert_eq!(decide(&node(&json!([])), &info, 2, None), None);
    }

    #[test]
    fn what_was_lowered_is_of_one_run_of_one_node_manager() {
        let info = NodeInfo { started: Some(7), ..NodeInfo::default() };
        assert!(is_of(&lowered(2), &with_gpus(1), &info));
        assert!(!is_of(&lowered(2), &with_gpus(1), &NodeInfo::default()));
    }

    #[test]
    fn nothing_else_changes() {
        let text = resources(&with_gpus(2), 1).unwrap();
        assert_eq!(text, "memory-mb=4096Mi,vcores=8,yarn.io/gpu=1");
        let silent =
            node(&json!([{ "name": "memory-mb", "value": -1 }, { "name": GPU, "value": 2 }]));
        assert!(resources(&silent, 1).unwrap_err().to_string().contains("memory-mb"));
    }

    #[test]
    fn what_was_lowered_is_remembered() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(FILE_NAME);
        assert_eq!(read_file(&file), None);
        write_file(&file, Some(&lowered(2))).unwrap();
        assert_eq!(read_file(&file), Some(lowered(2)));
        write_file(&file, None).unwrap();
        write_file(&file, None).unwrap();
        assert_eq!(read_file(&file), None);
        std::fs::write(&file, "{").unwrap();
        assert_eq!(read_file(&file), None);
    }
}
