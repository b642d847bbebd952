//! Whether this node's YARN can be read and asked, and which isolation of GPUs its configuration
//! makes.

use std::path::Path;
use std::time::Duration;

use creel_settings::Settings;
use creel_yarn::effective::Effective;
use creel_yarn::isolation;

use super::Finding;
use crate::error::Error;
use crate::yarn::cluster;
use crate::yarn::rest::{Addresses, GPU, NodeManager, ResourceManager};

const CHECK: &str = "yarn";

/// Looks at the configuration directory of this node, if it has one, and asks the daemons that it
/// names; each may take so long.
pub(super) async fn check(
    root: &Path,
    conf_dir: Option<&Path>,
    settings: &Settings,
    has_gpu: bool,
    patience: Duration,
) -> Vec<Finding> {
    let Some(conf_dir) = conf_dir else {
        return vec![Finding::ok(CHECK, "no configuration of Hadoop is here: no node of YARN")];
    };
    let effective = match cluster::configuration(Some(conf_dir), settings) {
        Ok((_, effective)) => effective,
        Err(error) => {
            let remedy = "mend it: YARN's daemons stop at it too";
            return vec![Finding::error(CHECK, error.to_string(), remedy)];
        }
    };
    let mut findings = Vec::new();
    if has_gpu {
        findings.extend(isolation(root, conf_dir, &effective));
    }
    match cluster::addresses(settings, Some(&effective)) {
        Ok(addresses) => findings.extend(daemons(addresses, patience).await),
        Err(error) => findings.push(unreachable(&error)),
    }
    findings
}

fn isolation(root: &Path, conf_dir: &Path, effective: &Effective) -> Vec<Finding> {
    const REMEDY: &str = "what has to be is in docs/yarn.md, Isolation; then creel yarn apply";
    let found = isolation::examine(effective, conf_dir, root);
    // Without the plugin, it stands in nobody's way yet.
    let plugin = effective.list("yarn.nodemanager.resource-plugins").iter().any(|name| name == GPU);
    let finding = if plugin { Finding::error } else { Finding::warning };
    if found.obstacles.is_empty() {
        return vec![Finding::ok(CHECK, found.summary)];
    }
    found.obstacles.into_iter().map(|obstacle| finding(CHECK, obstacle, REMEDY)).collect()
}

async fn daemons(addresses: Addresses, patience: Duration) -> Vec<Finding> {
    let Addresses { resource_managers, node_manager } = addresses;
    let rm = ResourceManager::new(resource_managers, patience);
    let nm = async {
        match node_manager {
            Some(address) => Some(NodeManager::new(address, patience).info().await),
            // Its port is its own choice, which the ResourceManager knows.
            None => None,
        }
    };
    let (rm, nm) = tokio::join!(rm.info(), nm);
    let version = |name: &str, version: Option<String>| {
        let version = version.map(|version| format!(" ({version})")).unwrap_or_default();
        Finding::ok(CHECK, format!("the {name}{version} answers"))
    };
    let rm = rm.map_or_else(
        |error| unreachable(&error),
        |info| version("ResourceManager", info.resource_manager_version),
    );
    let nm = nm.map(|nm| {
        nm.map_or_else(
            |error| unreachable(&error),
            |info| version("NodeManager", info.node_manager_version),
        )
    });
    [rm].into_iter().chain(nm).collect()
}

fn unreachable(error: &Error) -> Finding {
    let remedy = "start it, or say where it is with yarn.resourcemanager_url and \
                  yarn.nodemanager_url; creel yarn status says more";
    Finding::warning(CHECK, error.to_string(), remedy)
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::super::tests::write;
    use super::*;

    /// More than any check here needs.
    const PATIENCE: Duration = Duration::from_mins(1);

    async fn found(directory: &Path, site: &str, has_gpu: bool) -> Vec<Finding> {
        write(directory, "conf/yarn-site.xml", site);
        let conf = directory.join("conf");
        check(directory, Some(&conf), &Settings::default(), has_gpu, PATIENCE).await
    }

    fn property(name: &str, value: &str) -> String {
        format!("<property><name>yarn.{name}</name><value>{value}</value></property>")
    }

    /// Daemons at ports that nobody listens on.
    fn nowhere() -> String {
        let port = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        property("resourcemanager.webapp.address", &port().to_string())
            + &property("nodemanager.webapp.address", &port().to_string())
    }

    fn site(properties: &str) -> String {
        format!("<configuration>{properties}</configuration>")
    }

    #[tokio::test]
    async fn a_node_without_hadoop_is_well_and_one_that_can_not_be_read_is_not() {
        let none = check(Path::new("/"), None, &Settings::default(), true, PATIENCE).await;
        assert_eq!((none.len(), none[0].state), (1, State::Ok));
        let directory = tempfile::tempdir().unwrap();
        let broken = found(directory.path(), "<configuration>", true).await;
        assert_eq!((broken.len(), broken[0].state), (1, State::Error));
        assert!(broken[0].what.contains("yarn-site.xml"), "{broken:?}");
    }

    #[tokio::test]
    async fn daemons_that_are_down_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let down = found(directory.path(), &site(&nowhere()), false).await;
        assert_eq!(down.len(), 2, "{down:#?}");
        for (finding, name) in down.iter().zip(["ResourceManager", "NodeManager"]) {
            assert_eq!(finding.state, State::Warning);
            assert!(finding.what.contains(name), "{finding:?}");
        }
    }

    #[tokio::test]
    async fn isolation_that_the_machine_does_not_give_is_an_error_once_the_plugin_is_on() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "sys/fs/cgroup/cgroup.controllers", "");
        let lce = property(
            "nodemanager.container-executor.class",
            "org.apache.hadoop.yarn.server.nodemanager.LinuxContainerExecutor",
        );
        let without = found(directory.path(), &site(&(nowhere() + &lce)), true).await;
        assert!(without.iter().all(|finding| finding.state == State::Warning), "{without:#?}");
        let plugin = property("nodemanager.resource-plugins", GPU);
        let with = found(directory.path(), &site(&(nowhere() + &lce + &plugin)), true).await;
        assert!(with.iter().any(|finding| finding.state == State::Error), "{with:#?}");
        let default = found(directory.path(), &site(&(nowhere() + &plugin)), true).await;
        assert_eq!(default[0].state, State::Ok, "{default:#?}");
    }
}
