//! Whether the NVIDIA driver is there, answers, and is new enough.

use std::io::ErrorKind;
use std::process::{Output, Stdio};
use std::time::Duration;

use creel_discovery::{Gpu, HealthState, Inventory};
use tokio::process::Command;

use super::{Finding, Node};

const CHECK: &str = "driver";

/// The oldest driver branch that loads Creel's kernels (PTX 8.0).
const FLOOR: u32 = 525;

/// An answer of `creel-discovery`, and what it says of the driver.
struct Judged {
    inventory: Inventory,
    finding: Finding,
}

/// What was found.
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) gpus: Vec<Gpu>,
    pub(super) findings: Vec<Finding>,
}

/// Asks `creel-discovery`, as the agent does: a driver can hang for good, and take its caller
/// with it.
pub(super) async fn check(node: &Node, deadline: Duration) -> Driver {
    let discovery = &node.discovery;
    let output = Command::new(discovery)
        .args(["--format", "json", "--deadline"])
        .arg(format!("{}ms", deadline.as_millis()))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let found = match tokio::time::timeout(deadline + node.patience, output).await {
        Ok(Ok(output)) => judge(&output),
        Ok(Err(error)) if error.kind() == ErrorKind::NotFound => Err(Finding::warning(
            CHECK,
            format!("nobody can ask the driver: there is no {}", discovery.display()),
            "install creel-discovery",
        )),
        Ok(Err(error)) => Err(Finding::error(
            CHECK,
            format!("{} can't be started: {error}", discovery.display()),
            "install it anew",
        )),
        Err(_) => Err(hanging(deadline)),
    };
    match found {
        Ok(inventory) => {
            let unfit = inventory.inventory.gpus.iter().filter_map(health);
            let findings = [inventory.finding].into_iter().chain(unfit).collect();
            Driver { gpus: inventory.inventory.gpus, findings }
        }
        Err(finding) => Driver { gpus: Vec::new(), findings: vec![finding] },
    }
}

fn hanging(deadline: Duration) -> Finding {
    Finding::error(
        CHECK,
        format!("the driver did not answer within {deadline:?}"),
        "look for NVRM and Xid in the kernel's log (dmesg), and restart the node",
    )
}

/// The inventory that was printed, or what kept it from being so.
fn judge(output: &Output) -> Result<Judged, Finding> {
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim().trim_start_matches("creel-discovery: ");
    if !output.status.success() {
        return Err(Finding::error(
            CHECK,
            format!("the driver does not work: {said}"),
            "load the kernel module of the installed driver (modprobe nvidia), or restart the node after an update",
        ));
    }
    let stdout = String::from_utf8_lossy(&output.stdout);
    let inventory = Inventory::from_json(&stdout).map_err(|error| {
        Finding::error(
            CHECK,
            format!("creel-discovery's answer can't be read: {error}"),
            "install creel and creel-discovery of one version",
        )
    })?;
    let finding = version(&inventory, said);
    Ok(Judged { inventory, finding })
}

fn version(inventory: &Inventory, said: &str) -> Finding {
    let Some(driver) = &inventory.driver else {
        let why = if said.is_empty() { "no NVIDIA driver" } else { said };
        return Finding::ok(CHECK, format!("{why}; queries run on the processors"));
    };
    let version = driver.version.as_deref().unwrap_or("of unknown version");
    let branch: Option<u32> = version.split('.').next().and_then(|branch| branch.parse().ok());
    match branch {
        Some(branch) if branch < FLOOR => Finding::error(
            CHECK,
            format!("driver {version} is too old: GPUs need R{FLOOR} or later"),
            format!("install an NVIDIA driver of branch R{FLOOR} or later"),
        ),
        Some(_) => Finding::ok(CHECK, format!("driver {version}, GPUs: {}", inventory.gpus.len())),
        None => Finding::warning(
            CHECK,
            format!("driver {version}: whether it is R{FLOOR} or later can't be told"),
            format!("see that it is of branch R{FLOOR} or later"),
        ),
    }
}

/// What is wrong with a GPU that is unfit for use.
fn health(gpu: &Gpu) -> Option<Finding> {
    if gpu.health.state == HealthState::Healthy {
        return None;
    }
    let name = gpu.uuid.as_deref().or(gpu.pci_bus_id.as_deref()).unwrap_or("without a UUID");
    Some(Finding::error(
        "gpu",
        format!("GPU {} ({name}) is unfit for use: {}", gpu.index, gpu.health.reasons.join(", ")),
        format!(
            "take work off it and reset it (nvidia-smi --gpu-reset -i {}), or restart the node; if it comes back, have \
             it repaired",
            gpu.index
        ),
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::State;
    use super::super::tests::{node, write};
    use super::*;

    /// A node with a `creel-discovery` that is that shell script.
    fn with(script: &str) -> (tempfile::TempDir, Node) {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "creel-discovery", &format!("#!/bin/sh\n{script}\n"));
        let node = node(directory.path());
        std::fs::set_permissions(&node.discovery, PermissionsExt::from_mode(0o755)).unwrap();
        (directory, node)
    }

    async fn found(script: &str) -> Driver {
        let (_directory, node) = with(script);
        check(&node, Duration::from_secs(1)).await
    }

    async fn finding(script: &str) -> Finding {
        found(script).await.findings.remove(0)
    }

    fn gpu(index: u32) -> Gpu {
        Gpu { index, uuid: Some(format!("GPU-{index}")), ..Gpu::default() }
    }

    /// A script that prints the inventory of a driver of that version.
    fn printing(version: Option<&str>, gpus: Vec<Gpu>) -> String {
        let driver = creel_discovery::inventory::Driver {
            library: "libnvidia-ml.so.1".into(),
            version: version.map(Into::into),
            cuda: None,
            nvml: None,
            problems: Vec::new(),
        };
        let inventory = Inventory { schema: 1, driver: Some(driver), gpus };
        format!("cat <<'.'\n{}\n.", serde_json::to_string(&inventory).unwrap())
    }

    #[tokio::test]
    async fn no_driver_is_well() {
        let none =
            serde_json::to_string(&Inventory { schema: 1, driver: None, gpus: vec![] }).unwrap();
        let script = format!("echo 'creel-discovery: no libnvidia-ml.so.1' >&2; echo '{none}'");
        let finding = finding(&script).await;
        assert_eq!(finding.state, State::Ok);
        assert_eq!(finding.what, "no libnvidia-ml.so.1; queries run on the processors");
    }

    #[tokio::test]
    async fn a_driver_is_measured_by_the_floor() {
        let driver = found(&printing(Some("570.86.15"), vec![gpu(0), gpu(1)])).await;
        assert!(!driver.gpus.is_empty());
        assert_eq!(driver.findings.len(), 1);
        assert_eq!(driver.findings[0].what, "driver 570.86.15, GPUs: 2");
        let old = finding(&printing(Some("470.42"), vec![gpu(0)])).await;
        assert_eq!(old.state, State::Error);
        assert!(old.what.contains("R525"), "{old:?}");
        for odd in [Some("unknown"), None] {
            assert_eq!(finding(&printing(odd, vec![])).await.state, State::Warning);
        }
    }

    #[tokio::test]
    async fn an_unfit_gpu_is_an_error() {
        let mut lost = gpu(1);
        lost.health.add("GPU is lost".into());
        let driver = found(&printing(Some("570.1"), vec![gpu(0), lost])).await;
        assert_eq!(driver.findings.len(), 2);
        assert_eq!(driver.findings[1].state, State::Error);
        assert_eq!(driver.findings[1].what, "GPU 1 (GPU-1) is unfit for use: GPU is lost");
    }

    #[tokio::test]
    async fn a_broken_driver_is_an_error_in_its_own_words() {
        let finding = finding("echo 'Driver/library version mismatch' >&2; exit 1").await;
        assert_eq!(finding.state, State::Error);
        assert!(finding.what.contains("version mismatch"), "{finding:?}");
    }

    #[tokio::test]
    async fn a_driver_that_hangs_is_an_error() {
        let (_directory, mut node) = with("exec sleep 1000");
        node.patience = Duration::from_millis(50);
        let finding = check(&node, Duration::ZERO).await.findings.remove(0);
        assert_eq!(finding.state, State::Error);
        assert!(finding.what.contains("did not answer"), "{finding:?}");
    }

    #[tokio::test]
    async fn nobody_to_ask_and_nonsense_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let missing = check(&node(directory.path()), Duration::from_secs(1)).await;
        assert_eq!(missing.findings[0].state, State::Warning);
        assert_eq!(finding("echo hello").await.state, State::Error);
        let newer = finding(r#"echo '{"schema":2,"driver":null,"gpus":[]}'"#).await;
        assert!(newer.what.contains("schema"), "{newer:?}");
        assert_eq!(newer.state, State::Error);
    }
}
