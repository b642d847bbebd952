//! Which daemon has to be restarted for a change, and in which order.
//!
//! The ResourceManager comes first: to one that does not know the resource type, a NodeManager's
//! GPUs are nothing (`ResourcePBImpl` passes over unknown types), until it registers again.

use std::fmt;
use std::path::Path;

use serde::Serialize;

use crate::Role;
use crate::daemons::{self, Daemon, Running};
use crate::plan::Change;

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
    let is_queue = |change: &Change| change.key.contains(".accessible-node-labels");
    let needs = |role| changes.iter().any(|c| !is_queue(c) && c.roles.has(role));
    let running = daemons::running(root, conf_dir);
    let of = |daemon| running.iter().filter(|each| each.daemon == daemon).cloned().collect();
    let mut restarts = Vec::new();
    if needs(Role::ResourceManager) {
        let running = of(Daemon::ResourceManager);
        restarts.push(Restart { what: What::ResourceManager, running });
    } else if changes.iter().any(is_queue) {
        restarts.push(Restart { what: What::RefreshQueues, running: Vec::new() });
    }
    if needs(Role::NodeManager) {
        let running = of(Daemon::NodeManager);
        restarts.push(Restart { what: What::NodeManager, running });
    }
    if needs(Role::Client) {
        restarts.push(Restart { what: What::Applications, running: Vec::new() });
    }
    restarts
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
