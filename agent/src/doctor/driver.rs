//! Whether the NVIDIA driver is there, answers, and is new enough.

use std::io::ErrorKind;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use serde::Deserialize;
use tokio::process::Command;

use super::Finding;

const CHECK: &str = "driver";

/// The oldest driver branch that loads Creel's kernels (PTX 8.0).
const FLOOR: u32 = 525;

/// The child keeps the deadline itself; this much later it is taken to hang.
const GRACE: Duration = Duration::from_secs(2);

/// What was found, and whether there is a GPU.
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) has_gpu: bool,
    pub(super) findings: Vec<Finding>,
}

/// What of the inventory counts here.
#[derive(Debug, Default, Deserialize)]
struct Inventory {
    driver: Option<String>,
    #[serde(default)]
    gpus: Vec<serde::de::IgnoredAny>,
}

/// Asks `creel-discovery`, as the agent does: a driver can hang for good, and take its caller
/// with it.
pub(super) async fn check(discovery: &Path, deadline: Duration) -> Driver {
    let output = Command::new(discovery)
        .args(["--format", "json", "--deadline"])
        .arg(format!("{}ms", deadline.as_millis()))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let found = match tokio::time::timeout(deadline + GRACE, output).await {
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
        Ok((gpus, finding)) => Driver { has_gpu: gpus > 0, findings: vec![finding] },
        Err(finding) => Driver { has_gpu: false, findings: vec![finding] },
    }
}

fn hanging(deadline: Duration) -> Finding {
    Finding::error(
        CHECK,
        format!("the driver did not answer within {deadline:?}"),
        "look for NVRM and Xid in the kernel's log (dmesg), and restart the node",
    )
}

fn judge(output: &Output) -> Result<(usize, Finding), Finding> {
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim().trim_start_matches("creel-discovery: ");
    if !output.status.success() {
        return Err(Finding::error(
            CHECK,
            format!("the driver does not work: {said}"),
            "load the kernel module of the installed driver (modprobe nvidia), or restart the node after an update",
        ));
    }
    let inventory: Inventory = serde_json::from_slice(&output.stdout).map_err(|error| {
        Finding::error(
            CHECK,
            format!("creel-discovery's answer can't be read: {error}"),
            "install creel and creel-discovery of one version",
        )
    })?;
    let gpus = inventory.gpus.len();
    let Some(version) = inventory.driver else {
        let why = if said.is_empty() { "there is no NVIDIA driver" } else { said };
        return Ok((gpus, Finding::ok(CHECK, format!("{why}; queries run on the processors"))));
    };
    let branch: Option<u32> = version.split('.').next().and_then(|branch| branch.parse().ok());
    let finding = match branch {
        Some(branch) if branch < FLOOR => Finding::error(
            CHECK,
            format!("driver {version} is too old: GPUs need R{FLOOR} or later"),
            format!("install an NVIDIA driver of branch R{FLOOR} or later"),
        ),
        Some(_) => Finding::ok(CHECK, format!("driver {version}, {gpus} GPUs")),
        None => Finding::warning(
            CHECK,
            format!("driver {version:?} has no version that can be read"),
            format!("see that it is of branch R{FLOOR} or later"),
        ),
    };
    Ok((gpus, finding))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::State;
    use super::super::tests::write;
    use super::*;

    /// What is found with a `creel-discovery` that is that shell script.
    async fn found(script: &str) -> Driver {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "creel-discovery", &format!("#!/bin/sh\n{script}\n"));
        let path = directory.path().join("creel-discovery");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        check(&path, Duration::from_secs(60)).await
    }

    async fn finding(script: &str) -> Finding {
        found(script).await.findings.remove(0)
    }

    #[tokio::test]
    async fn no_driver_is_well() {
        let finding =
            finding(r#"echo 'creel-discovery: no libnvidia-ml.so.1' >&2; echo '{"gpus":[]}'"#)
                .await;
        assert_eq!(finding.state, State::Ok);
        assert_eq!(finding.what, "no libnvidia-ml.so.1; queries run on the processors");
    }

    #[tokio::test]
    async fn a_driver_is_measured_by_the_floor() {
        let driver = found(r#"echo '{"driver":"570.86.15","gpus":[{"index":0},{}]}'"#).await;
        assert!(driver.has_gpu);
        assert_eq!(driver.findings[0].what, "driver 570.86.15, 2 GPUs");
        let old = finding(r#"echo '{"driver":"470.42","gpus":[{}]}'"#).await;
        assert_eq!(old.state, State::Error);
        assert!(old.what.contains("R525"), "{old:?}");
        let odd = finding(r#"echo '{"driver":"unknown","gpus":[]}'"#).await;
        assert_eq!(odd.state, State::Warning);
    }

    #[tokio::test]
    async fn a_broken_driver_is_an_error_in_its_own_words() {
        let finding = finding("echo 'Driver/library version mismatch' >&2; exit 1").await;
        assert_eq!(finding.state, State::Error);
        assert!(finding.what.contains("version mismatch"), "{finding:?}");
    }

    #[tokio::test]
    async fn a_driver_that_hangs_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "creel-discovery", "#!/bin/sh\nexec sleep 1000\n");
        let path = directory.path().join("creel-discovery");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        tokio::time::pause();
        let finding = check(&path, Duration::from_millis(50)).await.findings.remove(0);
        assert_eq!(finding.state, State::Error);
        assert!(finding.what.contains("did not answer"), "{finding:?}");
    }

    #[tokio::test]
    async fn nobody_to_ask_and_nonsense_are_told() {
        let missing =
            check(Path::new("/nonexistent/creel-discovery"), Duration::from_secs(1)).await;
        assert_eq!(missing.findings[0].state, State::Warning);
        assert_eq!(finding("echo hello").await.state, State::Error);
    }
}
