//! Real control groups of the `devices` controller, and devices of NVIDIA's number without a GPU.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::node::{DISCOVERY, text};

const CONTROLLER: &str = "/sys/fs/cgroup/devices";

/// A group that goes with this.
struct Group(PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// A group, unless this machine has none of v1 or this user may not make one; says so.
fn group(name: &str) -> Option<Group> {
    let path = Path::new(CONTROLLER).join(format!("creel-{name}-{}", std::process::id()));
    match fs::create_dir(&path) {
        Ok(()) => Some(Group(path)),
        Err(error) => {
            eprintln!("SKIPPED {name}: no control group can be made in {CONTROLLER}: {error}");
            None
        }
    }
}

/// Whether devices of NVIDIA's major number can be made there.
fn devices(directory: &Path, minors: &[u32]) -> bool {
    minors.iter().all(|minor| {
        let path = directory.join(format!("nvidia{minor}"));
        let made = Command::new("mknod").arg(path).args(["c", "195", &minor.to_string()]).status();
        made.is_ok_and(|status| status.success())
    })
}

#[test]
fn what_a_group_denies_is_told_from_what_has_no_driver() {
    let Some(group) = group("denies") else { return };
    let directory = tempfile::tempdir().unwrap();
    if !devices(directory.path(), &[0, 1, 2]) {
        return eprintln!("SKIPPED: no device can be made here");
    }
    let open = fs::File::open(directory.path().join("nvidia0")).unwrap_err();
    assert_eq!(open.raw_os_error(), Some(6), "ENXIO: there is no driver ({open})");
    for minor in [0, 2] {
        fs::write(group.0.join("devices.deny"), format!("c 195:{minor} rwm")).unwrap();
    }
    let output = Command::new(DISCOVERY)
        .arg("--denied-in")
        .arg(group.0.join("cgroup.procs"))
        .args(["--minors", "0,1,2,3", "--devices"])
        .arg(directory.path())
        .output()
        .unwrap();
    assert_eq!(text(&output.stdout), "[0,2]\n", "{}", text(&output.stderr));
    let list = fs::read_to_string(group.0.join("devices.list")).unwrap();
    assert_eq!(list, "a *:* rwm\n", "it does not tell");
}

#[test]
fn a_group_that_is_gone_is_an_error() {
    let output = Command::new(DISCOVERY)
        .args(["--denied-in", "/nowhere/cgroup.procs", "--minors", "0"])
        .output()
        .unwrap();
    assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(1), true));
    assert!(text(&output.stderr).contains("/nowhere"), "{}", text(&output.stderr));
}
