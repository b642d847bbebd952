//! The `nvidia-smi` that NodeManagers are pointed at.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use creel_discovery::deadline;
use creel_settings::Settings;
use creel_yarn::answer::{self, Answer, Refusal};
use creel_yarn::plan::NvidiaSmi;

/// Where a package has it, in a directory of its own.
const PACKAGED: &str = "/usr/libexec/creel/yarn";
const NAME: &str = "nvidia-smi";
/// How long the NodeManager waits for it (Hadoop, `NvidiaBinaryHelper`).
const DEADLINE: Duration = Duration::from_secs(10);

/// The directory of the setting `yarn.nvidia_smi_dir`, else the agent's own directory where
/// `nvidia-smi` is `creel-discovery` by another name, else the package's.
pub fn directory(settings: &Settings) -> PathBuf {
    let configured = &settings.yarn_nvidia_smi_dir;
    if !configured.as_os_str().is_empty() {
        return configured.clone();
    }
    let program = std::env::current_exe().ok();
    let beside = program.as_deref().and_then(Path::parent).filter(|directory| is_ours(directory));
    beside.map_or_else(|| PACKAGED.into(), Path::to_owned)
}

/// Whether the `nvidia-smi` of a directory is the `creel-discovery` beside it. In `/usr/bin`, it is
/// the driver's.
fn is_ours(directory: &Path) -> bool {
    let file = |name: &str| {
        let about = std::fs::metadata(directory.join(name)).ok()?;
        Some((about.dev(), about.ino()))
    };
    file(NAME).is_some() && file(NAME) == file("creel-discovery")
}

/// Runs it as the NodeManager does, once.
pub fn ask(directory: PathBuf) -> NvidiaSmi {
    let answer = run(&directory.join(NAME));
    NvidiaSmi { directory, answer }
}

fn run(program: &Path) -> Result<Answer, Refusal> {
    let output = deadline::run(Command::new(program).args(["-x", "-q"]), DEADLINE)
        .map_err(|error| Refusal(error.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Refusal(format!("{}: {}", output.status, said.trim())));
    }
    answer::read(&output.stdout)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn program(directory: &Path, script: &str) {
        let path = directory.join(NAME);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn it_is_asked_as_yarn_asks() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        program(path, r#"[ "$*" = "-x -q" ] && echo "<nvidia_smi_log><gpu/></nvidia_smi_log>""#);
        assert_eq!(ask(path.to_owned()).answer.unwrap().gpus.len(), 1);
        program(path, "echo 'no driver' >&2; exit 9");
        let refusal = ask(path.to_owned()).answer.unwrap_err();
        assert!(refusal.0.contains('9') && refusal.0.contains("no driver"), "{refusal}");
        let none = path.join("none");
        assert!(ask(none).answer.is_err());
    }

    #[test]
    fn the_drivers_own_is_not_taken_for_ours() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        program(path, "");
        assert!(!is_ours(path));
        std::fs::write(path.join("creel-discovery"), "").unwrap();
        assert!(!is_ours(path));
        std::fs::remove_file(path.join(NAME)).unwrap();
        std::os::unix::fs::symlink("creel-discovery", path.join(NAME)).unwrap();
        assert!(is_ours(path));
    }
}
