//! Which daemon has to be restarted for a change, and in which order.
//!
//! The ResourceManager comes first: to one that does not know the resource type, a NodeManager's
//! GPUs are nothing (`ResourcePBImpl` passes over unknown types), until it registers again.

use std::fmt;
use std::path::Path;

use serde::Serialize;

use crate::daemons::{self, Daemon, Running};
use crate::files;
use crate::plan::Change;
use crate::{Error, Role};

/// Something that has to be done for a change to take effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Restart {
    /// What has to be restarted.
    pub what: What,
    /// Those that run on this machine.
    pub running: Vec<Running>,
}

/// What takes note of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// The scheduler, which can read its queues anew.
    RefreshQueues,
    /// The ResourceManager; with high availability, all of them.
    ResourceManager,
    /// The NodeManager of this machine.
    NodeManager,
    /// Applications that start from now on.
    Applications,
}

impl fmt::Display for Restart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            What::RefreshQueues => f.write_str("yarn rmadmin -refreshQueues"),
            What::ResourceManager => {
                f.write_str("restart the ResourceManager, the standby first where there are two")
            }
            What::NodeManager => f.write_str("restart the NodeManager of this machine"),
            What::Applications => {
                return f
                    .write_str("nothing for clients: applications that start from now on know it");
            }
        }?;
        let pids: Vec<_> = self.running.iter().map(|running| running.pid.to_string()).collect();
        if pids.is_empty() { Ok(()) } else { write!(f, " (pid {})", pids.join(", ")) }
    }
}

/// What changes ask for, in the order in which it is to be done, with the daemons that run on the
/// machine below a root (`/`) with that configuration directory.
pub fn needed(changes: &[Change], conf_dir: &Path, root: &Path) -> Vec<Restart> {
    let all_running = daemons::running(root, conf_dir);
    let mut restarts = Vec::new();
    for (daemon, role, what) in [
        (Daemon::ResourceManager, Role::ResourceManager, What::ResourceManager),
        (Daemon::NodeManager, Role::NodeManager, What::NodeManager),
    ] {
        let of_daemon = all_running.iter().filter(|running| running.daemon == daemon);
        let running: Vec<_> = of_daemon.cloned().collect();
        // Whoever runs here reads these files, whatever role they were changed for.
        let there = |change: &&Change| change.roles.has(role) || !running.is_empty();
        if changes.iter().filter(there).any(|change| concerns(change, daemon)) {
            restarts.push(Restart { what, running });
        } else if daemon == Daemon::ResourceManager && changes.iter().any(is_queue) {
            restarts.push(Restart { what: What::RefreshQueues, running });
        }
    }
    if changes.iter().any(|change| change.roles.has(Role::Client) && !is_queue(change)) {
        restarts.push(Restart { what: What::Applications, running: Vec::new() });
    }
    restarts
}

/// A daemon that started before an entry was written that it reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Due {
    /// The daemon.
    pub running: Running,
    /// The entries that it does not know.
    pub keys: Vec<String>,
    /// When the last of them was written, in seconds since the Unix epoch.
    pub since: u64,
}

/// The daemons that have to be restarted for what is recorded of a directory, of those that run on
/// the machine below a root (`/`), in the order in which that is to be done.
///
/// # Errors
///
/// Where there is a record that can't be read.
pub fn due(conf_dir: &Path, root: &Path) -> Result<Vec<Due>, Error> {
    let Some(record) = files::recorded(conf_dir)? else { return Ok(Vec::new()) };
    let all: Vec<_> = record.files.iter().flat_map(|written| &written.changes).collect();
    let due = daemons::running(root, conf_dir).into_iter().filter_map(|running| {
        let unknown: Vec<_> = all
            .iter()
            .filter(|made| made.since > running.started && concerns(&made.change, running.daemon))
            .collect();
        let since = unknown.iter().map(|made| made.since).max()?;
        let keys = unknown.iter().map(|made| made.change.key.clone()).collect();
        Some(Due { running, keys, since })
    });
    Ok(due.collect())
}

/// Whether a daemon reads an entry, and only when it starts.
fn concerns(change: &Change, daemon: Daemon) -> bool {
    match daemon {
        Daemon::ResourceManager => {
            !is_queue(change) && !change.key.starts_with("yarn.nodemanager.")
        }
        Daemon::NodeManager => !change.key.starts_with("yarn.scheduler.capacity."),
    }
}

/// Whether the scheduler reads it when it is told to.
fn is_queue(change: &Change) -> bool {
    change.key.contains(".accessible-node-labels")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Roles;
    use crate::directory::File;
    use crate::plan::How;

    fn change(key: &str, roles: Roles) -> Change {
        Change {
            file: File::YarnSite,
            key: key.to_owned(),
            before: None,
            value: String::new(),
            how: How::Added { item: None },
            roles,
            reason: String::new(),
        }
    }

    #[test]
    fn the_resourcemanager_comes_first() {
        let root = tempfile::tempdir().unwrap();
        let order = |changes: &[Change]| {
            needed(changes, root.path(), root.path())
                .into_iter()
                .map(|each| each.what)
                .collect::<Vec<_>>()
        };
        let types = change("yarn.resource-types", Roles::all());
        let plugin = change("yarn.nodemanager.resource-plugins", [Role::NodeManager].into());
        let label = change(
            "yarn.scheduler.capacity.root.accessible-node-labels.gpu.capacity",
            [Role::ResourceManager].into(),
        );
        assert_eq!(
            order(&[plugin.clone(), types, label.clone()]),
            [What::ResourceManager, What::NodeManager, What::Applications]
        );
        assert_eq!(order(&[plugin]), [What::NodeManager]);
        assert_eq!(order(&[label]), [What::RefreshQueues]);
        assert_eq!(order(&[]), []);
    }
}
