//! Which GPUs a control group of the `devices` controller (v1) keeps its processes from.
//!
//! YARN's LinuxContainerExecutor denies a container the GPUs that are not its own, and no file of
//! the group tells which: what is denied is an exception to `a *:* rwm`, and `devices.list` shows
//! exceptions from "nothing" only (Linux, Documentation/admin-guide/cgroup-v1/devices.rst). So a
//! process has to be in the group and try.

use std::fs;
use std::io;
use std::path::Path;

use rustix::fs::Access;
use rustix::io::Errno;

/// Moves this process into a group, for good, by the group's `cgroup.procs`.
pub fn join(procs: &Path) -> io::Result<()> {
    // 0 stands for who writes.
    fs::write(procs, "0")
}

/// Those of the minor numbers whose device in `devices` (`/dev`), `nvidia<minor>`, the group of
/// this process denies it.
///
/// Nothing is opened: that starts a GPU up, and may take seconds. access(2) asks the controller
/// too (Linux, `inode_permission`), which answers EPERM; a device that is not there, or has no
/// driver (ENXIO when it is opened), is not denied.
pub fn denied(devices: &Path, minors: &[u32]) -> Vec<u32> {
    let is_denied = |minor: &u32| {
        let device = devices.join(format!("nvidia{minor}"));
        let answer = rustix::fs::access(device, Access::READ_OK | Access::WRITE_OK);
        answer == Err(Errno::PERM)
    };
    minors.iter().copied().filter(is_denied).collect()
}
