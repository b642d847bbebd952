//! Where YARN and the node differ, and what to do about it.

use std::collections::{BTreeMap, BTreeSet};

use creel_discovery::nvidia_smi::View;
use creel_discovery::{HealthState, Snapshot, Unit};
use serde::Serialize;

use super::{Said, Seen};
use crate::api;
use crate::yarn::provider::attributes;
use crate::yarn::rest::{GPU, GpuResource, Node};

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// What differs.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

const APPLY_NM: &str = "run creel yarn apply --role nm, then restart the NodeManager";
const APPLY_RM: &str =
    "on the ResourceManager's machine, run creel yarn apply --role rm, then restart it";
const RESTART_NM: &str = "restart the NodeManager: it counts its GPUs when it starts";

/// All of them. What could not be asked is one, and is compared with nothing.
pub fn differences(seen: &Seen) -> Vec<Difference> {
    let mut found = Found::default();
    found.silence(seen);
    if let Ok(node) = &seen.node {
        found.node(node.as_ref(), seen);
    }
    if let Ok(snapshot) = &seen.snapshot {
        let counted = seen.node.as_ref().ok().and_then(Option::as_ref);
        if let Some(node) = counted {
            found.count(node, snapshot);
            found.attributes(node, snapshot);
        }
        found.plugin(seen, snapshot);
        if let Ok(Some(gpus)) = &seen.node_manager_gpus {
            found.shown(gpus, snapshot);
            if let Ok(leases) = &seen.leases {
                found.assignments(gpus, leases, snapshot);
            }
        }
    }
    if let Ok(configuration) = &seen.configuration
        && !configuration.pending.is_empty()
    {
        found.add(
            format!(
                "YARN's files in {} are not as they should be: {}",
                configuration.conf_dir.display(),
                configuration.pending.join("; ")
            ),
            "see creel yarn diff, run creel yarn apply, and restart what it names",
        );
    }
    found.0
}

#[derive(Default)]
struct Found(Vec<Difference>);

impl Found {
    fn add(&mut self, what: impl Into<String>, remedy: impl Into<String>) {
        self.0.push(Difference { what: what.into(), remedy: remedy.into() });
    }

    /// Those who said nothing.
    fn silence(&mut self, seen: &Seen) {
        fn why<T>(said: &Said<T>) -> Option<&String> {
            said.as_ref().err()
        }
        let asked = [
            (
                why(&seen.resource_manager).or(why(&seen.node)),
                "start it, or set yarn.resourcemanager_url",
            ),
            (
                why(&seen.node_manager).or(why(&seen.node_manager_gpus)),
                "start it (its log says why it ended), or set yarn.nodemanager_url",
            ),
            (why(&seen.snapshot), "start the agent: systemctl start creeld"),
            (why(&seen.leases), "start the agent: systemctl start creeld"),
            (why(&seen.configuration), "name the directory with yarn.conf_dir"),
        ];
        for (why, remedy) in asked {
            if let Some(why) = why {
                self.add(why, remedy);
            }
        }
        if seen.snapshot.is_ok() && !seen.snapshot_is_current {
            self.add(
                "the agent has not looked at the GPUs for some time: what is said of them is old",
                "see creel doctor",
            );
        }
    }

    /// The node, as the ResourceManager knows it.
    fn node(&mut self, node: Option<&Node>, seen: &Seen) {
        let Some(node) = node else {
            let id = seen.node_manager.as_ref().ok().and_then(|info| info.id.as_deref());
            return self.add(
                format!(
                    "the ResourceManager does not know this node ({})",
                    id.unwrap_or("its NodeManager has not said its name")
                ),
                "see the NodeManager's log for why it did not register, \
                 and yarn.resourcemanager.resource-tracker.address",
            );
        };
        let report = node.health_report.as_deref().unwrap_or("it says not why").trim();
        match node.state.as_deref() {
            Some("RUNNING" | "NEW") | None => {}
            Some("UNHEALTHY") => self.add(
                format!("no container is started here, for the node is UNHEALTHY: {report}"),
                "mend that; the node is scheduled again when its health script says so",
            ),
            Some("LOST") => self.add(
                "the ResourceManager has lost this node",
                "start the NodeManager, or see why it does not reach the ResourceManager",
            ),
            Some(state) => self.add(
                format!("no container is started here: the node is {state}"),
                "if that is not meant, see the ResourceManager's exclude file and run yarn \
                 rmadmin -refreshNodes",
            ),
        }
    }

    /// The count of GPUs.
    fn count(&mut self, node: &Node, snapshot: &Snapshot) {
        let fit = fit(snapshot);
        let Some(counted) = node.total.gpus() else {
            // What nobody has, nobody misses.
            if !snapshot.inventory.gpus.is_empty() {
                self.add(format!("the ResourceManager does not know {GPU}"), APPLY_RM);
            }
            return;
        };
        if counted > fit {
            let unfit = unfit(snapshot);
            let why = if unfit.is_empty() { String::new() } else { format!(" ({unfit})") };
            let remedy = if snapshot.keep_places {
                "mend or reset the GPU; until then set yarn.update_resource to have the agent lower \
                 the count, for under LinuxContainerExecutor a GPU keeps its place"
            } else {
                "mend or reset the GPU, or restart the NodeManager to count without it; or set \
                 yarn.update_resource to have the agent lower the count"
            };
            self.add(
                format!(
                    "the ResourceManager gives out {counted} of {GPU}, and {fit} are fit for \
                     use{why}: a container may come that gets none"
                ),
                remedy,
            );
        } else if counted < fit && counted > 0 {
            self.add(
                format!(
                    "the ResourceManager gives out {counted} of {GPU}, and {fit} are fit for use"
                ),
                RESTART_NM,
            );
        }
    }

    /// The GPU plugin of the NodeManager.
    fn plugin(&mut self, seen: &Seen, snapshot: &Snapshot) {
        if fit(snapshot) == 0 {
            return;
        }
        let types = seen.node_manager.as_ref().ok().and_then(|info| info.resource_types.as_ref());
        if types.is_some_and(|types| !types.contains(GPU)) {
            self.add(format!("the NodeManager does not know {GPU}"), APPLY_NM);
        } else if matches!(seen.node_manager_gpus, Ok(None)) {
            self.add("the NodeManager's GPU plugin is off, and the node has GPUs", APPLY_NM);
        }
    }

    /// The GPUs that nvidia-smi shows the NodeManager.
    fn shown(&mut self, gpus: &GpuResource, snapshot: &Snapshot) {
        let theirs: Vec<_> = gpus.gpus.iter().filter_map(|gpu| gpu.uuid.as_deref()).collect();
        let ours = uuids(snapshot);
        // Without UUIDs there is nothing to compare; a count alone is the ResourceManager's.
        if !theirs.is_empty() && theirs != ours {
            self.add(
                format!(
                    "nvidia-smi shows the NodeManager {}, and the node has {}",
                    theirs.join(", "),
                    if ours.is_empty() { "no GPU".to_owned() } else { ours.join(", ") }
                ),
                "let yarn.nodemanager.resource-plugins.gpu.path-to-discovery-executables name the \
                 directory of Creel's nvidia-smi (creel yarn apply --role nm), then restart the \
                 NodeManager",
            );
        }
    }

    /// What the NodeManager assigned, beside the leases.
    fn assignments(&mut self, gpus: &GpuResource, leases: &[api::Lease], snapshot: &Snapshot) {
        let uuids = uuids(snapshot);
        let mut assigned: BTreeMap<&str, Vec<Option<&str>>> = BTreeMap::new();
        for gpu in &gpus.assigned {
            let at = gpu.device.index.and_then(|index| uuids.get(index as usize).copied());
            assigned.entry(&gpu.container).or_default().push(at);
        }
        for lease in leases {
            let Some(container) = lease.container.as_deref() else { continue };
            let Some(assigned) = assigned.get(container) else { continue };
            let ours: BTreeSet<_> = lease.devices.iter().map(String::as_str).collect();
            let theirs: Option<BTreeSet<&str>> = assigned.iter().copied().collect();
            let same = match &theirs {
                Some(theirs) => *theirs == ours,
                // Hadoop 3.5 says how many, and not which.
                None => assigned.len() == ours.len(),
            };
            if !same {
                let theirs = theirs.map_or_else(
                    || format!("{} GPUs", assigned.len()),
                    |theirs| theirs.into_iter().collect::<Vec<_>>().join(", "),
                );
                self.add(
                    format!(
                        "YARN assigned {theirs} to {container}, and its lease is of {}",
                        lease.devices.join(", ")
                    ),
                    format!("end the container, or creel lease release {}", lease.id),
                );
            }
        }
    }

    /// The attributes, where the NodeManager has a script for them.
    fn attributes(&mut self, node: &Node, snapshot: &Snapshot) {
        let theirs: BTreeMap<_, _> = node
            .attributes()
            .iter()
            .filter(|attribute| attribute.prefix == "nm.yarn.io")
            .map(|attribute| (attribute.name.as_str(), attribute.value.as_str()))
            .collect();
        let ours = attributes::of(snapshot);
        if !ours.iter().any(|(name, _)| theirs.contains_key(name)) {
            return;
        }
        let differing: Vec<_> = ours
            .iter()
            .filter(|(name, value)| theirs.get(name) != Some(&value.as_str()))
            .map(|(name, value)| {
                let other = theirs.get(name).unwrap_or(&"nothing");
                format!("{name} is {other} there and {value} here")
            })
            .collect();
        if !differing.is_empty() {
            self.add(
                format!("the node's attributes differ: {}", differing.join(", ")),
                "wait for the NodeManager to run the script again \
                 (yarn.nodemanager.node-attributes.provider.fetch-interval-ms, 10 minutes unless \
                 set); if it stays so, let the script be creel yarn node-attributes",
            );
        }
    }
}

/// The UUIDs of the devices that YARN is shown, in their order.
fn uuids(snapshot: &Snapshot) -> Vec<&str> {
    let view = View::of(snapshot, None, |_| false);
    let units = view.gpus.into_iter().flat_map(|seen| {
        let whole = seen.is_whole().then_some(seen.gpu.uuid.as_deref());
        let slices = seen.slices.into_iter().map(|slice| slice.uuid.as_deref());
        whole.into_iter().chain(slices)
    });
    units.map(|uuid| uuid.unwrap_or("a GPU without a UUID")).collect()
}

/// How many devices are fit for use.
pub fn fit(snapshot: &Snapshot) -> u64 {
    snapshot.inventory.units().filter(Unit::usable).count() as u64
}

/// The GPUs that are not, and why.
fn unfit(snapshot: &Snapshot) -> String {
    let gpus = snapshot.inventory.gpus.iter();
    let unfit = gpus.filter(|gpu| gpu.health.state == HealthState::Unhealthy);
    let each = unfit.map(|gpu| format!("GPU {}: {}", gpu.index, gpu.health.reasons.join(", ")));
    each.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use creel_discovery::{Gpu, Health, Inventory};
    use serde_json::json;

    use super::super::Configuration;
    use super::*;
    use crate::yarn::rest::{AssignedGpu, ClusterInfo, GpuDevice, NodeInfo};

    const CONTAINER: &str = "container_1_0001_01_000002";

    fn snapshot(fit: &[bool]) -> Snapshot {
        let gpu = |(fit, index): (&bool, u32)| Gpu {
            index,
            uuid: Some(format!("GPU-{index}")),
            health: if *fit { Health::default() } else { Health::unhealthy("lost".to_owned()) },
            ..Gpu::default()
        };
        let gpus = fit.iter().zip(0..).map(gpu).collect();
        Snapshot::new(Inventory { gpus, ..Inventory::empty() }, 0)
    }

    fn node(gpus: Option<u64>) -> Node {
        let resources = gpus.map(|value| json!({ "name": GPU, "value": value }));
        serde_json::from_value(json!({
            "id": "a:1",
            "state": "RUNNING",
            "totalResource": { "resourceInformations": { "resourceInformation": [resources] } },
        }))
        .unwrap()
    }

    fn shown(uuids: &[&str]) -> GpuResource {
        let gpus = uuids.iter().map(|uuid| crate::yarn::rest::Gpu {
            name: None,
            uuid: Some((*uuid).to_owned()),
            minor: None,
        });
        GpuResource { gpus: gpus.collect(), ..GpuResource::default() }
    }

    fn lease(devices: &[&str]) -> api::Lease {
        serde_json::from_value(json!({
            "id": "l1", "container": CONTAINER, "uid": 0, "devices": devices, "since": 0,
            "source": "x",
        }))
        .unwrap()
    }

    fn assigned(indexes: &[Option<u32>]) -> Vec<AssignedGpu> {
        let device = |index: Option<u32>| GpuDevice { index, minor_number: index };
        let one = |index| AssignedGpu { container: CONTAINER.into(), device: device(index) };
        indexes.iter().copied().map(one).collect()
    }

    /// A node of two GPUs of which all is well.
    fn well() -> Seen {
        Seen {
            resource_manager_urls: vec!["http://rm:8088".to_owned()],
            resource_manager: Ok(ClusterInfo::default()),
            node: Ok(Some(node(Some(2)))),
            node_manager_url: Some("http://nm:8042".to_owned()),
            node_manager: Ok(NodeInfo {
                resource_types: Some("yarn.io/gpu, vcores".to_owned()),
                ..NodeInfo::default()
            }),
            node_manager_gpus: Ok(Some(shown(&["GPU-0", "GPU-1"]))),
            snapshot: Ok(snapshot(&[true, true])),
            snapshot_is_current: true,
            leases: Ok(Vec::new()),
            configuration: Ok(Configuration { conf_dir: "/conf".into(), pending: Vec::new() }),
        }
    }

    /// The one difference.
    fn only(seen: &Seen) -> Difference {
        let mut found = differences(seen);
        assert_eq!(found.len(), 1, "{found:#?}");
        found.remove(0)
    }

    fn check(seen: &Seen, what: &str, remedy: &str) {
        let found = only(seen);
        assert!(found.what.contains(what) && found.remedy.contains(remedy), "{found:#?}");
    }

    #[test]
    fn a_node_that_is_well_and_one_without_gpu_differ_in_nothing() {
        assert_eq!(differences(&well()), []);
        let without = Seen {
            node: Ok(Some(node(None))),
            node_manager_gpus: Ok(None),
            snapshot: Ok(snapshot(&[])),
            ..well()
        };
        assert_eq!(differences(&without), []);
    }

    #[test]
    fn who_says_nothing_is_named_and_the_rest_is_compared() {
        let down = || "can't be reached".to_owned();
        let seen = Seen { resource_manager: Err(down()), node: Err(down()), ..well() };
        check(&seen, "can't be reached", "yarn.resourcemanager_url");
        let seen = Seen { node_manager: Err(down()), node_manager_gpus: Err(down()), ..well() };
        check(&seen, "can't be reached", "yarn.nodemanager_url");
        let nobody = Seen {
            resource_manager: Err(down()),
            node: Err(down()),
            node_manager: Err(down()),
            node_manager_gpus: Err(down()),
            snapshot: Err(down()),
            leases: Err(down()),
            configuration: Err(down()),
            ..well()
        };
        assert_eq!(differences(&nobody).len(), 5);
        check(&Seen { snapshot_is_current: false, ..well() }, "is old", "doctor");
    }

    #[test]
    fn a_lost_gpu_that_yarn_counts_is_named_with_what_to_do() {
        let mut seen = Seen { snapshot: Ok(snapshot(&[true, false])), ..well() };
        seen.node_manager_gpus = Ok(Some(shown(&["GPU-0"])));
        check(&seen, "gives out 2 of yarn.io/gpu, and 1 are fit for use (GPU 1: lost)", "restart");
        let mut kept = snapshot(&[true, false]);
        kept.keep_places = true;
        let seen = Seen { snapshot: Ok(kept), ..well() };
        check(&seen, "gives out 2", "yarn.update_resource");
        let seen = Seen { node: Ok(Some(node(Some(1)))), ..well() };
        check(&seen, "gives out 1 of yarn.io/gpu, and 2 are", "restart the NodeManager");
    }

    #[test]
    fn types_and_plugin_that_are_missing_are_missed_where_they_are() {
        let seen = Seen { node: Ok(Some(node(None))), ..well() };
        check(&seen, "the ResourceManager does not know", "--role rm");
        let off = Seen { node: Ok(Some(node(Some(0)))), node_manager_gpus: Ok(None), ..well() };
        check(&off, "plugin is off", "--role nm");
        let unknown = NodeInfo { resource_types: Some("vcores".to_owned()), ..NodeInfo::default() };
        let seen = Seen { node_manager: Ok(unknown), ..off };
        check(&seen, "the NodeManager does not know", "--role nm");
    }

    #[test]
    fn states_of_the_node() {
        let in_state = |state: &str| {
            let mut node = node(Some(2));
            node.state = Some(state.to_owned());
            node.health_report = Some("ERROR disk\n".to_owned());
            Seen { node: Ok(Some(node)), ..well() }
        };
        check(&in_state("UNHEALTHY"), "ERROR disk", "mend");
        check(&in_state("LOST"), "has lost", "start the NodeManager");
        check(&in_state("DECOMMISSIONED"), "DECOMMISSIONED", "refreshNodes");
        let seen = Seen { node: Ok(None), ..well() };
        check(&seen, "does not know this node", "resource-tracker");
    }

    #[test]
    fn another_nvidia_smi_is_noticed() {
        let seen = Seen { node_manager_gpus: Ok(Some(shown(&["GPU-1", "GPU-0"]))), ..well() };
        check(&seen, "GPU-1, GPU-0", "path-to-discovery-executables");
        let silent = GpuResource::default();
        assert_eq!(differences(&Seen { node_manager_gpus: Ok(Some(silent)), ..well() }), []);
    }

    #[test]
    fn a_lease_is_of_what_yarn_assigned() {
        let with = |indexes: &[Option<u32>], devices: &[&str]| {
            let gpus = GpuResource { assigned: assigned(indexes), ..shown(&["GPU-0", "GPU-1"]) };
            Seen { node_manager_gpus: Ok(Some(gpus)), leases: Ok(vec![lease(devices)]), ..well() }
        };
        assert_eq!(differences(&with(&[Some(1)], &["GPU-1"])), []);
        assert_eq!(differences(&with(&[Some(1), Some(0)], &["GPU-0", "GPU-1"])), []);
        check(&with(&[Some(1)], &["GPU-0"]), "assigned GPU-1 to container_1", "lease release l1");
        // As 3.5 says it.
        assert_eq!(differences(&with(&[None], &["GPU-1"])), []);
        check(&with(&[None, None], &["GPU-1"]), "assigned 2 GPUs", "lease release l1");
    }

    #[test]
    fn attributes_are_compared_where_there_are_any() {
        let with = |name: &str, value: &str| {
            let mut of = serde_json::to_value(json!({ "id": "a:1", "state": "RUNNING" })).unwrap();
            of["totalResource"] = json!({ "resourceInformations": {
                "resourceInformation": { "name": GPU, "value": 2 } } });
            of["nodeAttributesInfo"] = json!({ "nodeAttributeInfo": [
                { "prefix": "nm.yarn.io", "name": name, "value": value } ] });
            Seen { node: Ok(Some(serde_json::from_value(of).unwrap())), ..well() }
        };
        assert_eq!(differences(&with("GPU_COUNT", "2")), []);
        assert_eq!(differences(&with("RACK_COLOUR", "red")), []);
        check(&with("GPU_COUNT", "3"), "GPU_COUNT is 3 there and 2 here", "node-attributes");
    }

    #[test]
    fn files_that_apply_would_change_are_named() {
        let configuration =
            Configuration { conf_dir: "/conf".into(), pending: vec!["yarn-site.xml: x".into()] };
        let seen = Seen { configuration: Ok(configuration), ..well() };
        check(&seen, "/conf are not as they should be: yarn-site.xml: x", "creel yarn apply");
    }
}
