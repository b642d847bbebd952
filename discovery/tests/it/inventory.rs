//! What is found on a node.

use creel_discovery::inventory::{ComputeMode, Memory, NvLinkPeerKind, Process, ProcessKind};
use creel_discovery::{HealthState, Inventory};
use simulated_nvml::model::MODELS;
use simulated_nvml::{Action, Code, Fault};

use crate::node::TestNode;

const MIB: u64 = 1 << 20;

#[test]
fn every_model_is_what_it_is() {
    let specs: Vec<_> = MODELS.iter().map(|model| format!("{}:1", model.key)).collect();
    let specs: Vec<_> = specs.iter().map(String::as_str).collect();
    let inventory = TestNode::of(&specs).inventory();
    assert_eq!(inventory.gpus.len(), MODELS.len());
    for ((gpu, model), index) in inventory.gpus.iter().zip(MODELS).zip(0..) {
        assert_eq!(gpu.index, index);
        assert_eq!(gpu.minor, Some(index));
        assert_eq!(gpu.name.as_deref(), Some(model.name));
        assert_eq!(
            gpu.memory,
            Memory {
                total: Some(model.memory),
                reserved: Some(model.memory_reserved),
                used: Some(0),
                free: Some(model.memory - model.memory_reserved),
            }
        );
        let (major, minor) = model.compute_capability;
        assert_eq!(gpu.compute_capability, Some(format!("{major}.{minor}")));
        assert_eq!(gpu.mig.enabled, (!model.mig.is_empty()).then_some(false), "{}", model.key);
        assert_eq!(gpu.compute_mode, Some(ComputeMode::Default));
        assert_eq!(gpu.utilization.gpu, Some(0));
        assert_eq!(gpu.temperature.slowdown, Some(model.temperature.1));
        assert_eq!(gpu.power.limit, Some(model.power_limit * 1000));
        assert_eq!(gpu.ecc.enabled, Some(true));
        assert_eq!(gpu.ecc.remapped_rows.is_some(), model.compute_capability >= (8, 0));
        assert_eq!(gpu.processes, Some(Vec::new()));
        assert_eq!(gpu.health.state, HealthState::Healthy);
        assert_eq!(gpu.problems, []);
        assert!(gpu.uuid.as_ref().unwrap().starts_with("GPU-"));
    }
    let driver = inventory.driver.unwrap();
    assert_eq!(driver.library, "libnvidia-ml.so.1");
    assert_eq!(driver.version.as_deref(), Some("580.95.05"));
    assert_eq!(driver.cuda.as_deref(), Some("13.0"));
    assert_eq!(driver.nvml.as_deref(), Some("13.580.95.05"));
}

#[test]
fn slices_are_found_beside_whole_gpus() {
    let node = TestNode::of(&["a100:1,mig=3x2g.10gb+1x1g.5gb", "h200:1"]);
    let inventory = node.inventory();
    let mig = &inventory.gpus[0].mig;
    assert_eq!(mig.enabled, Some(true));
    let slices: Vec<_> = mig
        .slices
        .iter()
        .map(|slice| {
            assert!(slice.uuid.as_ref().unwrap().starts_with("MIG-"));
            (
                slice.index,
                slice.profile.as_deref().unwrap(),
                slice.gpu_instance.unwrap(),
                slice.compute_instance.unwrap(),
                slice.multiprocessors.unwrap(),
                slice.memory.total.unwrap() / MIB,
            )
        })
        .collect();
    assert_eq!(
        slices,
        [
            (0, "2g.10gb", 3, 0, 28, 9984),
            (1, "2g.10gb", 4, 0, 28, 9984),
            (2, "2g.10gb", 5, 0, 28, 9984),
            (3, "1g.5gb", 13, 0, 14, 4864),
        ]
    );
    // The driver doesn't say how busy a GPU with MIG is.
    assert_eq!(inventory.gpus[0].utilization.gpu, None);
    assert_eq!(inventory.gpus[0].problems, []);
    assert_eq!(inventory.gpus[1].mig.enabled, Some(false));
    assert_eq!(
        node.spark(),
        "{\"name\": \"gpu\", \"addresses\":[\"0\",\"1\",\"2\",\"3\",\"4\"]}\n"
    );
}

#[test]
fn a_gpu_with_mig_on_and_no_slice_is_nothing_to_give() {
    let node = TestNode::of(&["a100:1,mig=", "h200:1"]);
    assert_eq!(node.inventory().gpus.len(), 2);
    assert_eq!(node.spark(), "{\"name\": \"gpu\", \"addresses\":[\"0\"]}\n");
}

#[test]
fn the_order_is_that_of_pci() {
    let node = TestNode::from_toml(
        "
        [[gpu]]
        model = 'h200'
        pci_bus_id = '00000001:01:00.0'
        [[gpu]]
        model = 't4'
        pci_bus_id = '00000000:C1:00.0'
        [[gpu]]
        model = 'a10'
        pci_bus_id = '00000000:0A:00.0'
        ",
    );
    let gpus = node.inventory().gpus;
    let found: Vec<_> = gpus
        .iter()
        .map(|gpu| (gpu.index, gpu.pci_bus_id.as_deref().unwrap(), gpu.minor.unwrap()))
        .collect();
    assert_eq!(
        found,
        [(0, "00000000:0A:00.0", 2), (1, "00000000:C1:00.0", 1), (2, "00000001:01:00.0", 0)]
    );
}

#[test]
fn what_the_topology_says_is_found() {
    let node = TestNode::from_toml(
        "
        driver_version = '525.147.05'
        cuda_version = '12.0'
        [[gpu]]
        model = 'rtx6000'
        memory = { total_mib = 24220.3125, used_mib = 701 }
        numa_node = 3
        utilization = [23, 5]
        temperature = 61
        power = 211
        compute_mode = 'exclusive_process'
        ecc = { corrected = 5, uncorrected = 1 }
        [[gpu]]
        model = 'a10'
        ecc = { off = true, remapped_rows = 2, remap_pending = true }
        ",
    );
    let inventory = node.inventory();
    let driver = inventory.driver.as_ref().unwrap();
    assert_eq!(driver.version.as_deref(), Some("525.147.05"));
    assert_eq!(driver.cuda.as_deref(), Some("12.0"));
    let gpu = &inventory.gpus[0];
    // 24220.3125 MiB, 701 MiB, 23519.3125 MiB
    assert_eq!(gpu.memory.total, Some(25_396_838_400));
    assert_eq!(gpu.memory.used, Some(701 * MIB));
    assert_eq!(gpu.memory.free, Some(24_661_786_624));
    assert_eq!(gpu.numa_node, Some(3));
    assert_eq!((gpu.utilization.gpu, gpu.utilization.memory), (Some(23), Some(5)));
    assert_eq!(gpu.temperature.gpu, Some(61));
    assert_eq!(gpu.power.draw, Some(211_000));
    assert_eq!(gpu.compute_mode, Some(ComputeMode::ExclusiveProcess));
    assert_eq!((gpu.ecc.corrected, gpu.ecc.uncorrected), (Some(5), Some(1)));
    assert_eq!(gpu.ecc.remapped_rows, None);
    let other = &inventory.gpus[1];
    assert_eq!(other.numa_node, None);
    assert_eq!(other.ecc.enabled, Some(false));
    assert_eq!(other.ecc.corrected, None);
    assert!(other.ecc.remapped_rows.as_ref().unwrap().pending);
    assert_eq!(other.health.state, HealthState::Healthy);
}

#[test]
fn a_row_that_could_not_be_replaced_makes_a_gpu_unfit() {
    let node =
        TestNode::from_toml("[[gpu]]\nmodel = 'h100'\ncount = 1\necc = { remap_failed = true }");
    assert_eq!(node.inventory().gpus[0].health.state, HealthState::Unhealthy);
    assert_eq!(node.spark(), "{\"name\": \"gpu\", \"addresses\":[]}\n");
}

#[test]
fn nvlinks_lead_to_gpus_or_switches() {
    let peers = |spec: &str| {
        let node = TestNode::of(&[spec]);
        let gpu = node.inventory().gpus.swap_remove(0);
        let peers = gpu.nvlink.unwrap();
        let count = |kind| {
            let links = peers.iter().filter(|peer| peer.kind == Some(kind)).map(|peer| peer.links);
            links.sum::<u32>()
        };
        (peers.len(), count(NvLinkPeerKind::Gpu), count(NvLinkPeerKind::Switch))
    };
    assert_eq!(peers("t4:2"), (0, 0, 0));
    assert_eq!(peers("v100:3"), (2, 6, 0));
    assert_eq!(peers("h200:8"), (4, 0, 18));
    assert_eq!(peers("h200:1"), (0, 0, 0));
}

#[test]
fn processes_and_their_memory_are_seen_as_they_come_and_go() {
    let node = TestNode::of(&["a100:1,mig=2x3g.20gb", "h200:1"]);
    let own = std::process::id();
    node.node.set_used(1, None, Some(own), 300 * MIB).unwrap();
    node.node.set_used(1, None, None, 100 * MIB).unwrap();
    node.node.set_used(0, Some(1), Some(own), 50 * MIB).unwrap();
    let inventory = node.inventory();
    assert_eq!(inventory.gpus[1].memory.used, Some(400 * MIB));
    let process = |memory, gpu_instance| Process {
        pid: own,
        kind: ProcessKind::Compute,
        memory: Some(memory),
        gpu_instance,
        compute_instance: gpu_instance.map(|_| 0),
    };
    assert_eq!(inventory.gpus[1].processes, Some(vec![process(300 * MIB, None)]));
    assert_eq!(inventory.gpus[0].processes, Some(vec![process(50 * MIB, Some(2))]));
    assert_eq!(inventory.gpus[0].memory.used, Some(50 * MIB));
    let slices = &inventory.gpus[0].mig.slices;
    assert_eq!((slices[0].memory.used, slices[1].memory.used), (Some(0), Some(50 * MIB)));
    node.node.set_used(1, None, Some(own), 0).unwrap();
    assert_eq!(node.inventory().gpus[1].memory.used, Some(100 * MIB));
}

#[test]
fn an_old_library_lacks_values_not_gpus() {
    let node = TestNode::from_toml(
        "
        driver_version = '418.87.00'
        cuda_version = '10.1'
        missing_functions = [
            'nvmlDeviceGetMemoryInfo_v2', 'nvmlDeviceGetComputeRunningProcesses_v3',
            'nvmlDeviceGetGraphicsRunningProcesses_v3', 'nvmlDeviceGetMigMode',
            'nvmlDeviceGetRemappedRows', 'nvmlDeviceGetMemoryAffinity',
            'nvmlDeviceGetNvLinkRemoteDeviceType', 'nvmlDeviceGetPowerUsage',
        ]
        [[gpu]]
        model = 'v100'
        count = 2
        numa_node = 1
        ",
    );
    node.node.set_used(0, None, Some(std::process::id()), MIB).unwrap();
    let inventory = node.inventory();
    let gpu = &inventory.gpus[0];
    assert_eq!(gpu.problems, []);
    assert_eq!(gpu.health.state, HealthState::Healthy);
    // What is reserved counts as used there.
    let total = gpu.memory.total.unwrap();
    assert_eq!(total, 16384 * MIB);
    assert_eq!(gpu.memory.reserved, None);
    assert_eq!(gpu.memory.used, Some(224 * MIB));
    assert_eq!(gpu.memory.free, Some(total - 224 * MIB));
    assert_eq!(gpu.processes.as_ref().unwrap().len(), 1);
    assert_eq!(gpu.mig.enabled, None);
    assert_eq!(gpu.ecc.remapped_rows, None);
    assert_eq!(gpu.numa_node, None);
    assert_eq!(gpu.power.draw, None);
    let peers = gpu.nvlink.as_ref().unwrap();
    assert_eq!((peers.len(), peers[0].kind, peers[0].links), (1, None, 6));
}

#[test]
fn an_error_of_one_gpu_is_its_own() {
    let node = TestNode::of(&["h200:3"]);
    let healthy = node.inventory();
    node.node
        .set_faults(&[
            Fault::new(Some(1), Action::Fail(Code::UNKNOWN)).of("nvmlDeviceGetPowerUsage"),
            Fault::new(Some(1), Action::Fail(Code::UNKNOWN)).of("nvmlDeviceGetName"),
        ])
        .unwrap();
    let inventory = node.inventory();
    assert_eq!(inventory.gpus[0], healthy.gpus[0]);
    assert_eq!(inventory.gpus[2], healthy.gpus[2]);
    let gpu = &inventory.gpus[1];
    let problems: Vec<_> = gpu.problems.iter().map(|problem| problem.what.as_str()).collect();
    assert_eq!(problems, ["name", "power"]);
    assert_eq!((gpu.name.as_ref(), gpu.power.draw), (None, None));
    assert_eq!(gpu.uuid, healthy.gpus[1].uuid);
    assert_eq!(gpu.memory, healthy.gpus[1].memory);
    assert_eq!(gpu.health.state, HealthState::Healthy);
}

fn assert_second_is_lost(inventory: &Inventory) {
    let states: Vec<_> = inventory.gpus.iter().map(|gpu| gpu.health.state).collect();
    assert_eq!(states, [HealthState::Healthy, HealthState::Unhealthy, HealthState::Healthy]);
    let lost = &inventory.gpus[1];
    assert_eq!(lost.index, 1);
    assert_eq!(lost.health.reasons, ["GPU is lost"]);
    assert_eq!(lost.problems.len(), 1, "{:?}", lost.problems);
    assert_eq!(lost.memory, Memory::default());
}

#[test]
fn a_lost_gpu_keeps_its_place_and_is_not_offered() {
    let node = TestNode::of(&["h200:3"]);
    let healthy = node.inventory();
    node.node.set_faults(&[Fault::lost(1)]).unwrap();
    let inventory = node.inventory();
    assert_second_is_lost(&inventory);
    assert_eq!(inventory.gpus[0], healthy.gpus[0]);
    assert_eq!(inventory.gpus[2], healthy.gpus[2]);
    assert_eq!(node.spark(), "{\"name\": \"gpu\", \"addresses\":[\"0\",\"2\"]}\n");
    node.node.set_faults(&[]).unwrap();
    assert_eq!(node.inventory(), healthy);
}

#[test]
fn a_lost_gpu_without_a_handle_is_listed_too() {
    let node = TestNode::of(&["h200:3"]);
    let lost = Fault::lost(1).of("nvmlDeviceGetHandleByIndex_v2");
    node.node.set_faults(&[lost]).unwrap();
    assert_second_is_lost(&node.inventory());
}

#[test]
fn a_gpu_that_is_lost_midway_keeps_what_is_known() {
    let node = TestNode::of(&["h200:3"]);
    let healthy = node.inventory();
    let lost = |function: &str| Fault::lost(1).of(function);
    node.node
        .set_faults(&[lost("nvmlDeviceGetMemoryInfo_v2"), lost("nvmlDeviceGetTemperature")])
        .unwrap();
    let inventory = node.inventory();
    assert_second_is_lost(&inventory);
    assert_eq!(inventory.gpus[1].uuid, healthy.gpus[1].uuid);
    assert_eq!(inventory.gpus[1].pci_bus_id, healthy.gpus[1].pci_bus_id);
}

#[test]
fn a_gpu_that_may_not_be_opened_is_not_counted() {
    let node = TestNode::of(&["h200:2"]);
    let fault = Fault::new(Some(0), Action::Fail("NO_PERMISSION".parse().unwrap()));
    node.node.set_faults(&[fault.of("nvmlDeviceGetHandleByIndex_v2")]).unwrap();
    // As in a container that has the other one alone: to CUDA that is number 0.
    let inventory = node.inventory();
    assert_eq!(inventory.gpus.len(), 1);
    assert_eq!((inventory.gpus[0].index, inventory.gpus[0].minor), (0, Some(1)));
    assert_eq!(inventory.driver.unwrap().problems.len(), 1);
    assert_eq!(node.spark(), "{\"name\": \"gpu\", \"addresses\":[\"0\"]}\n");
}

#[test]
fn a_gpu_that_gives_no_handle_is_not_offered() {
    let node = TestNode::of(&["h200:2"]);
    let fault = Fault::new(Some(0), Action::Fail("IRQ_ISSUE".parse().unwrap()));
    node.node.set_faults(&[fault.of("nvmlDeviceGetHandleByIndex_v2")]).unwrap();
    let inventory = node.inventory();
    assert_eq!(inventory.gpus.len(), 2);
    assert_eq!(inventory.gpus[0].health.state, HealthState::Unhealthy);
    assert_eq!(node.spark(), "{\"name\": \"gpu\", \"addresses\":[\"1\"]}\n");
}

#[test]
fn a_driver_without_a_gpu_has_none() {
    let node = TestNode::from_toml("driver_version = '535.216.01'");
    let inventory = node.inventory();
    assert_eq!(inventory.gpus, []);
    assert_eq!(inventory.driver.unwrap().version.as_deref(), Some("535.216.01"));
    assert_eq!(node.spark(), "{\"name\": \"gpu\", \"addresses\":[]}\n");
}

#[test]
fn slow_calls_are_waited_for() {
    let node = TestNode::of(&["h200:1"]);
    let fault = Fault::new(Some(0), Action::Delay(std::time::Duration::from_secs(2)));
    node.node.set_faults(&[fault.of("nvmlDeviceGetName")]).unwrap();
    assert_eq!(node.inventory().gpus[0].name.as_deref(), Some("NVIDIA H200"));
}
