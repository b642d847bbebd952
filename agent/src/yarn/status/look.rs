//! Asking everybody, at once.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use creel_settings::Settings;
use creel_yarn::Directory;
use creel_yarn::effective::Effective;
use creel_yarn::plan::{Change, Plan};

use super::{Configuration, Said, Seen};
use crate::client::Client;
use crate::error::Error;
use crate::run_dir::RunDir;
use crate::yarn::rest::{Addresses, GpuResource, Node, NodeInfo, NodeManager, ResourceManager};
use crate::yarn::{cluster, provider};
use crate::{api, clock};

/// What a daemon of YARN may take for an answer.
const DAEMON: Duration = Duration::from_secs(5);
/// What the agent may take.
const AGENT: Duration = Duration::from_secs(3);
/// What reading the configuration may take, with `yarn envvars` and `nvidia-smi`.
const CONFIGURATION: Duration = Duration::from_secs(25);

/// Asks everybody about this node. It takes no longer than the deadlines of those that hang.
///
/// `conf_dir` and `run_dir` are those of the command line.
pub async fn look(
    settings: &Arc<Settings>,
    conf_dir: Option<PathBuf>,
    run_dir: Option<PathBuf>,
) -> Seen {
    let read = configuration(Arc::clone(settings), conf_dir);
    let ((configuration, effective), leases) = tokio::join!(read, leases(run_dir.clone()));
    let snapshot = provider::snapshot(run_dir).map_err(said);
    let snapshot_is_current =
        snapshot.as_ref().is_ok_and(|snapshot| snapshot.is_current(clock::now()));
    let seen = Seen {
        resource_manager_urls: Vec::new(),
        resource_manager: Err(String::new()),
        node: Err(String::new()),
        node_manager_url: None,
        node_manager: Err(String::new()),
        node_manager_gpus: Err(String::new()),
        snapshot,
        snapshot_is_current,
        leases,
        configuration,
    };
    match cluster::addresses(settings, effective.as_ref()) {
        Ok(addresses) => daemons(addresses, seen).await,
        Err(error) => {
            let error = error.to_string();
            Seen {
                resource_manager: Err(error.clone()),
                node: Err(error.clone()),
                node_manager: Err(error.clone()),
                node_manager_gpus: Err(error),
                ..seen
            }
        }
    }
}

/// Where the NodeManager is, what it says of itself, and of GPUs.
type NodeManagerSaid = (String, Said<NodeInfo>, Said<Option<GpuResource>>);

async fn daemons(addresses: Addresses, seen: Seen) -> Seen {
    let Addresses { resource_managers, node_manager } = addresses;
    let resource_manager_urls = resource_managers.iter().map(ToString::to_string).collect();
    let rm = ResourceManager::new(resource_managers, DAEMON);
    let known = async {
        match node_manager {
            Some(address) => Ok(address),
            // It chose its port itself.
            None => match nodes_of_this_machine(&rm).await?.as_slice() {
                [node] => node.http_address.as_deref().unwrap_or_default().parse(),
                _ => Err(Error::YarnAddressUnknown {
                    daemon: "NodeManager",
                    setting: "yarn.nodemanager_url",
                    key: "yarn.nodemanager.webapp.address",
                }),
            },
        }
    };
    let (info, nm) = tokio::join!(rm.info(), async {
        let nm = NodeManager::new(known.await.map_err(said)?, DAEMON);
        let (info, gpus) = tokio::join!(nm.info(), nm.gpus());
        Ok((nm.address().to_string(), info.map_err(said), gpus.map_err(said)))
    });
    let nm: Said<NodeManagerSaid> = nm;
    let (node_manager_url, node_manager, node_manager_gpus) = match nm {
        Ok((url, info, gpus)) => (Some(url), info, gpus),
        Err(error) => (None, Err(error.clone()), Err(error)),
    };
    let node = match &info {
        Ok(_) => node(&rm, node_manager.as_ref().ok()).await.map_err(said),
        Err(error) => Err(error.to_string()),
    };
    Seen {
        resource_manager_urls,
        resource_manager: info.map_err(said),
        node,
        node_manager_url,
        node_manager,
        node_manager_gpus,
        ..seen
    }
}

/// This node as the ResourceManager knows it: by the name that the NodeManager gives itself, or, if
/// it says none, by this machine's.
async fn node(rm: &ResourceManager, info: Option<&NodeInfo>) -> Result<Option<Node>, Error> {
    if let Some(id) = info.and_then(|info| info.id.as_deref()) {
        return rm.node(id).await;
    }
    let mut nodes = nodes_of_this_machine(rm).await?;
    Ok(if nodes.len() == 1 { nodes.pop() } else { None })
}

async fn nodes_of_this_machine(rm: &ResourceManager) -> Result<Vec<Node>, Error> {
    let uname = rustix::system::uname();
    let name = uname.nodename().to_string_lossy();
    let short = |name: &str| name.split('.').next().map(str::to_ascii_lowercase);
    let nodes = rm.nodes().await?.into_iter();
    let ours = nodes.filter(|node| node.node_host_name.as_deref().and_then(short) == short(&name));
    Ok(ours.collect())
}

/// The configuration, and its values also where it can't be told what `apply` would change.
async fn configuration(
    settings: Arc<Settings>,
    conf_dir: Option<PathBuf>,
) -> (Said<Configuration>, Option<Effective>) {
    let read = tokio::task::spawn_blocking(move || {
        match cluster::configuration(conf_dir.as_deref(), &settings) {
            Ok((directory, effective)) => {
                let plan = cluster::plan(&directory, &settings).map_err(said);
                (plan.map(|plan| told(&directory, &plan)), Some(effective))
            }
            Err(error) => (Err(said(error)), None),
        }
    });
    match tokio::time::timeout(CONFIGURATION, read).await {
        Ok(Ok(read)) => read,
        Ok(Err(error)) => (Err(error.to_string()), None),
        Err(_) => (Err("YARN's configuration files could not be read in time".to_owned()), None),
    }
}

fn told(directory: &Directory, plan: &Plan) -> Configuration {
    let change =
        |change: &Change| format!("{} = {} ({})", change.key, change.value, change.file.name());
    Configuration {
        conf_dir: directory.path().to_owned(),
        pending: plan.changes.iter().map(change).collect(),
    }
}

async fn leases(run_dir: Option<PathBuf>) -> Said<Vec<api::Lease>> {
    let client = Client::new(&RunDir::resolve(run_dir).map_err(said)?);
    let answer = tokio::time::timeout(AGENT, client.get("/v1/leases"));
    let answer = answer.await.map_err(|_| "the agent gives no answer".to_owned())?;
    let leases: api::Leases = answer.and_then(|answer| answer.parse()).map_err(said)?;
    Ok(leases.leases)
}

/// An error as what somebody said instead of an answer.
#[expect(clippy::needless_pass_by_value, reason = "it is what map_err takes")]
fn said(error: Error) -> String {
    error.to_string()
}
