//! What YARN says of a container: how many GPUs the ResourceManager allotted to it, and, where the
//! NodeManager assigns them itself (LinuxContainerExecutor), which.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use creel_settings::Settings;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::debug;

use crate::yarn::cluster;
use crate::yarn::container_id::ContainerId;
use crate::yarn::rest::{Addresses, GpuResource, NodeManager, ResourceManager};

/// How long one question to a daemon may take. A container waits for it, and YARN's daemons may
/// be down.
const QUESTION: Duration = Duration::from_secs(2);

/// How long what the configuration says is taken to hold.
const FRESH: Duration = Duration::from_mins(1);

/// The value of `yarn.nodemanager.container-executor.class` under which YARN assigns GPUs.
const ASSIGNS: &str = "LinuxContainerExecutor";

/// Asks YARN's daemons.
#[derive(Debug)]
pub(super) struct Yarn {
    settings: watch::Receiver<Arc<Settings>>,
    known: tokio::sync::Mutex<Option<(Instant, Arc<Cluster>)>>,
}

/// What the configuration says.
#[derive(Debug, Default)]
struct Cluster {
    addresses: Addresses,
    assigns: bool,
    /// The NodeManager's local directories; empty: not known.
    local_dirs: Vec<PathBuf>,
}

/// What YARN says of a container's GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Allotment {
    /// How many the ResourceManager allotted.
    pub(super) count: Option<usize>,
    /// Which the NodeManager assigned, by their places in what `nvidia-smi` shows it, with the
    /// minor numbers; absent where it assigns none itself, or does not say which (Hadoop 3.5).
    pub(super) assigned: Option<Vec<(u32, Option<u32>)>>,
}

impl Yarn {
    pub(super) fn new(settings: watch::Receiver<Arc<Settings>>) -> Self {
        Self { settings, known: tokio::sync::Mutex::default() }
    }

    /// What YARN says of a container. Daemons that don't answer say nothing.
    pub(super) async fn allotment(&self, container: &str) -> Allotment {
        let Ok(id) = container.parse::<ContainerId>() else { return Allotment::default() };
        let cluster = self.cluster().await;
        let (count, assigned) = tokio::join!(cluster.count(&id), cluster.assigned(&id));
        Allotment { count, assigned }
    }

    /// Whether the NodeManager's configuration names that local directory; `None` where it is not
    /// known.
    pub(super) async fn has_local_dir(&self, directory: &Path) -> Option<bool> {
        let cluster = self.cluster().await;
        let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let directory = real(directory);
        let known = &cluster.local_dirs;
        (!known.is_empty()).then(|| known.iter().any(|known| real(known) == directory))
    }

    async fn cluster(&self) -> Arc<Cluster> {
        let mut known = self.known.lock().await;
        if let Some((since, cluster)) = &*known
            && since.elapsed() < FRESH
        {
            return Arc::clone(cluster);
        }
        let settings = Arc::clone(&self.settings.borrow());
        let read = tokio::task::spawn_blocking(move || Cluster::read(&settings)).await;
        let cluster = Arc::new(read.unwrap_or_default());
        *known = Some((Instant::now(), Arc::clone(&cluster)));
        cluster
    }
}

impl Cluster {
    /// Reads the configuration. Where there is none, settings may say where the daemons are.
    fn read(settings: &Settings) -> Self {
        let configuration = cluster::configuration(None, settings);
        let effective = configuration
            .inspect_err(|error| debug!("YARN is not asked by its configuration: {error}"))
            .ok()
            .map(|(_, effective)| effective);
        let addresses = cluster::addresses(settings, effective.as_ref())
            .inspect_err(|error| debug!("YARN is not asked: {error}"))
            .unwrap_or_default();
        let value = |key: &str| effective.as_ref().and_then(|effective| effective.get(key));
        let local_dirs = value("yarn.nodemanager.local-dirs").unwrap_or_default();
        let local_dirs = local_dirs.split(',').map(local_dir).filter(|dir| dir.is_absolute());
        let class = value("yarn.nodemanager.container-executor.class").unwrap_or_default();
        Self {
            addresses,
            assigns: class.trim().ends_with(ASSIGNS),
            local_dirs: local_dirs.collect(),
        }
    }

    async fn count(&self, id: &ContainerId) -> Option<usize> {
        let allotted = self.resource_manager()?.container(id).await;
        let allotted = allotted.inspect_err(|error| debug!("{id}: {error}")).ok()??;
        usize::try_from(allotted.gpus()?).ok()
    }

    async fn assigned(&self, id: &ContainerId) -> Option<Vec<(u32, Option<u32>)>> {
        if !self.assigns {
            return None;
        }
        let resource = self.node_manager(id).await?.gpus().await;
        let resource = resource.inspect_err(|error| debug!("{id}: {error}")).ok()??;
        places(&resource, id)
    }

    /// The NodeManager of the container: where the configuration says, or the ResourceManager.
    async fn node_manager(&self, id: &ContainerId) -> Option<NodeManager> {
        if let Some(address) = &self.addresses.node_manager {
            return Some(NodeManager::new(address.clone(), QUESTION));
        }
        let resource_manager = self.resource_manager()?;
        let node = resource_manager.container(id).await.ok()??.node?;
        let address = resource_manager.node(&node).await.ok()??.http_address?;
        Some(NodeManager::new(address.parse().ok()?, QUESTION))
    }

    fn resource_manager(&self) -> Option<ResourceManager> {
        let addresses = &self.addresses.resource_managers;
        (!addresses.is_empty()).then(|| ResourceManager::new(addresses.clone(), QUESTION))
    }
}

/// A directory of `yarn.nodemanager.local-dirs`, which may be a `file:` URL.
fn local_dir(text: &str) -> PathBuf {
    let path = text.trim();
    let path = path.strip_prefix("file:").unwrap_or(path);
    PathBuf::from(path.strip_prefix("//").unwrap_or(path))
}

/// The places of a container's GPUs; `None` where the NodeManager does not say them.
fn places(resource: &GpuResource, id: &ContainerId) -> Option<Vec<(u32, Option<u32>)>> {
    // One that assigns has GPUs to assign, and says which they are.
    let tells =
        !resource.total.is_empty() && resource.total.iter().all(|device| device.index.is_some());
    let assigned = resource.assigned.iter().filter(|gpu| gpu.container == id.as_str());
    tells
        .then(|| {
            assigned
                .map(|gpu| Some((gpu.device.index?, gpu.device.minor_number)))
                .collect::<Option<Vec<_>>>()
        })
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yarn::rest::{AssignedGpu, GpuDevice};

    const ID: &str = "container_1410901177871_0001_01_000002";

    fn device(index: Option<u32>) -> GpuDevice {
        GpuDevice { index, minor_number: index }
    }

    fn resource(total: &[Option<u32>], assigned: &[(Option<u32>, &str)]) -> GpuResource {
        let gpu = |(index, container): &(Option<u32>, &str)| AssignedGpu {
            container: (*container).to_owned(),
            device: device(*index),
        };
        GpuResource {
            total: total.iter().copied().map(device).collect(),
            assigned: assigned.iter().map(gpu).collect(),
            ..GpuResource::default()
        }
    }

    #[test]
    fn local_dirs() {
        for text in ["/data/yarn", " file:///data/yarn", "file:/data/yarn"] {
            assert_eq!(local_dir(text), Path::new("/data/yarn"), "{text}");
        }
    }

    #[test]
    fn which_are_a_containers_where_that_is_said() {
        let id = ID.parse().unwrap();
        let both = [Some(0), Some(1)];
        let held = [(Some(0), "container_1410901177871_0001_01_000003"), (Some(1), ID)];
        assert_eq!(places(&resource(&both, &held), &id), Some(vec![(1, Some(1))]));
        assert_eq!(places(&resource(&both, &held[..1]), &id), Some(vec![]));
        // DefaultContainerExecutor, and Hadoop 3.5.
        assert_eq!(places(&resource(&[], &[]), &id), None);
        assert_eq!(places(&resource(&[None, None], &[(None, ID)]), &id), None);
    }
}
