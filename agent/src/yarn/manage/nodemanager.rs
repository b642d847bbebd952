//! Restarting the NodeManager.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use creel_yarn::daemons::Daemon;
use creel_yarn::restart::Due;
use tokio::process::Command;
use tokio::time::timeout;

use crate::error::Error;

/// What systemd may take: a NodeManager waits for its containers' processes.
const PATIENCE: Duration = Duration::from_mins(5);

/// The process of the NodeManager, if it has to be restarted.
pub(super) fn due(due: &[Due]) -> Option<u32> {
    let mut running = due.iter().map(|due| &due.running);
    Some(running.find(|running| running.daemon == Daemon::NodeManager)?.pid)
}

/// Restarts a unit, else that of the process, and gives its name.
pub(super) async fn restart(unit: &str, pid: u32) -> Result<String, Error> {
    let unit = match unit {
        "" => unit_of(Path::new("/proc"), pid).ok_or_else(|| {
            Error::Refused(format!(
                "no unit of systemd started it (pid {pid}): restart it by hand, or name its unit \
                 with yarn.nodemanager_unit"
            ))
        })?,
        unit => unit.to_owned(),
    };
    let mut command = Command::new("systemctl");
    command.args(["restart", &unit]).stdin(Stdio::null()).kill_on_drop(true);
    let failed = |why: &str| Error::Failed(format!("systemctl restart {unit}: {why}"));
    match timeout(PATIENCE, command.output()).await {
        Ok(Ok(output)) if output.status.success() => Ok(unit),
        Ok(Ok(output)) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(failed(&format!("{}: {}", output.status, said.trim())))
        }
        Ok(Err(error)) => Err(failed(&error.to_string())),
        Err(_) => Err(failed("no end within 5 minutes")),
    }
}

/// The service that a process is of, by its control group.
fn unit_of(proc: &Path, pid: u32) -> Option<String> {
    let groups = std::fs::read_to_string(proc.join(pid.to_string()).join("cgroup")).ok()?;
    let unit = |line: &str| {
        let path = line.splitn(3, ':').nth(2)?;
        let rest = path.split_once("/system.slice/")?.1;
        let unit = rest.split('/').find(|part| part.ends_with(".service"))?;
        Some(unit.to_owned())
    };
    groups.lines().find_map(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_that_of_the_control_group() {
        let proc = tempfile::tempdir().unwrap();
        std::fs::create_dir(proc.path().join("7")).unwrap();
        for (groups, unit) in [
            ("0::/system.slice/hadoop-yarn-nodemanager.service\n", Some("hadoop-yarn-nodemanager")),
            ("4:devices:/hadoop-yarn\n1:name=systemd:/system.slice/nm.service/x\n", Some("nm")),
            ("0::/user.slice/user-0.slice/session-1.scope\n", None),
            ("", None),
        ] {
            std::fs::write(proc.path().join("7/cgroup"), groups).unwrap();
            let unit = unit.map(|unit| format!("{unit}.service"));
            assert_eq!(unit_of(proc.path(), 7), unit, "{groups}");
        }
        assert_eq!(unit_of(proc.path(), 8), None);
    }
}
