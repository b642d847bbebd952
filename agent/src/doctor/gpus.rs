//! Which GPUs and MIG slices the agent doesn't use, though the driver finds nothing wrong with them:
//! it has seen errors of theirs as they happened, and how its executors fared.

use creel_discovery::{Gpu, HealthState};

use super::{Finding, Node};
use crate::api;
use crate::client::Client;

/// Asks the agent. `driver` is what the driver says, which is not said again.
pub(super) async fn check(node: &Node, driver: &[Gpu]) -> Vec<Finding> {
    let Ok(run_dir) = &node.run_dir else { return Vec::new() };
    let client = Client::new(run_dir);
    let answer = tokio::time::timeout(node.patience, client.get("/v1/gpus")).await;
    let gpus = answer.ok().and_then(Result::ok).and_then(|answer| answer.parse::<api::Gpus>().ok());
    // Why the agent can't say it is found elsewhere.
    gpus.map_or_else(Vec::new, |gpus| judge(&gpus, driver))
}

fn judge(gpus: &api::Gpus, driver: &[Gpu]) -> Vec<Finding> {
    gpus.gpus.iter().flat_map(|gpu| unfit(gpu, driver)).collect()
}

/// What is wrong with a GPU, and with its slices.
fn unfit(gpu: &api::Gpu, driver: &[Gpu]) -> Vec<Finding> {
    let said = driver.iter().find(|said| said.uuid == gpu.uuid);
    let is_new = |reason: &&String| said.is_none_or(|said| !said.health.reasons.contains(*reason));
    let finding = |what: &str, uuid: Option<&String>, health: &api::Health| {
        let reasons: Vec<_> = health.reasons.iter().filter(is_new).cloned().collect();
        let is_well = health.state == HealthState::Healthy || reasons.is_empty();
        (!is_well).then(|| {
            let uuid = uuid.map_or("without a UUID", String::as_str);
            let reasons = reasons.join(", ");
            Finding::error(
                "gpu",
                format!("{what} ({uuid}) is unfit for use: {reasons}"),
                remedy(gpu),
            )
        })
    };
    let whole = finding(&format!("GPU {}", gpu.index), gpu.uuid.as_ref(), &gpu.health);
    let slices = gpu.mig.slices.iter().filter_map(|slice| {
        let what = format!("MIG slice {}:{}", gpu.index, slice.index);
        finding(&what, slice.uuid.as_ref(), &slice.health)
    });
    whole.into_iter().chain(slices).collect()
}

fn remedy(gpu: &api::Gpu) -> String {
    format!(
        "look for NVRM and Xid in the kernel's log (dmesg); take work off the GPU, reset it \
         (nvidia-smi --gpu-reset -i {}) and start the agent again (systemctl restart creeld), \
         which forgets its errors; if they come back, have it repaired",
        gpu.index
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::node;
    use super::*;

    fn gpu(index: u32, reasons: &[&str]) -> api::Gpu {
        let mut health = api::Health::default();
        for reason in reasons {
            health.add((*reason).to_owned());
        }
        api::Gpu {
            index,
            uuid: Some(format!("GPU-{index}")),
            minor: None,
            pci_bus_id: None,
            name: None,
            memory: api::GpuMemory::default(),
            pool: None,
            driver: None,
            cuda: None,
            mig: api::Mig::default(),
            health,
            lease: None,
        }
    }

    #[test]
    fn what_the_agent_alone_knows_is_told() {
        let mut cut = gpu(2, &[]);
        cut.mig.slices = vec![api::MigSlice {
            index: 1,
            uuid: Some("MIG-1".to_owned()),
            profile: None,
            memory_total: None,
            pool: None,
            health: api::Health::unhealthy("its executors lost it 3 times".to_owned()),
            lease: None,
        }];
        let gpus = vec![gpu(0, &["lost", "Xid 48"]), gpu(1, &["lost"]), cut];
        let lost = |index| Gpu {
            index,
            uuid: Some(format!("GPU-{index}")),
            health: api::Health::unhealthy("lost".to_owned()),
            ..Gpu::default()
        };
        let findings = judge(&api::Gpus { schema: 1, gpus }, &[lost(0), lost(1)]);
        let what: Vec<_> = findings.iter().map(|finding| finding.what.as_str()).collect();
        assert_eq!(
            what,
            [
                "GPU 0 (GPU-0) is unfit for use: Xid 48",
                "MIG slice 2:1 (MIG-1) is unfit for use: its executors lost it 3 times",
            ]
        );
        let remedy = findings[1].remedy.as_deref().unwrap();
        assert!(remedy.contains("dmesg") && remedy.contains("--gpu-reset -i 2"), "{remedy}");
    }

    #[tokio::test]
    async fn without_an_agent_there_is_nothing_to_say() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(check(&node(directory.path()), &[]).await, []);
    }
}
