//! What a container's control group keeps it from, where YARN's LinuxContainerExecutor assigns
//! GPUs by the `devices` controller (v1).
//!
//! What the container itself says of it does not count: another one's GPU would be had for the
//! asking. So the agent, which is root then, sends a process of its own into the group to look.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tracing::warn;

use crate::peer::CGROUPS;
use crate::programs;

/// How long the look may take: it opens nothing.
const LOOK: Duration = Duration::from_secs(5);

/// Which of the GPUs with these minor numbers a group denies; `None` where that can't be told.
pub(super) async fn denied(group: &str, minors: &[u32]) -> Option<Vec<u32>> {
    if !rustix::process::geteuid().is_root() || minors.is_empty() {
        return None;
    }
    let group = Path::new(CGROUPS).join("devices").join(group.trim_start_matches('/'));
    let list: Vec<_> = minors.iter().map(u32::to_string).collect();
    let look = Command::new(programs::find("creel-discovery", "CREEL_DISCOVERY"))
        .arg("--denied-in")
        .arg(group.join("cgroup.procs"))
        .args(["--minors", &list.join(",")])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = match tokio::time::timeout(LOOK, look).await {
        Ok(Ok(output)) if output.status.success() => output,
        Ok(Ok(output)) => {
            warn!("{}", String::from_utf8_lossy(&output.stderr).trim());
            return None;
        }
        Ok(Err(error)) => {
            warn!("cannot look into {}: {error}", group.display());
            return None;
        }
        Err(_) => {
            warn!("no answer from within {} in {LOOK:?}", group.display());
            return None;
        }
    };
    serde_json::from_slice(&output.stdout).ok()
}
