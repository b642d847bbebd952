//! Becoming the user that is served.
//!
//! The agent is root on a real node and starts its executors as root. Each gives that up before
//! it does anything else, so the kernel decides what its queries may read.

use std::io;

use nix::unistd::{Gid, Uid, getuid, setgroups, setresgid, setresuid};

use crate::error::{ExecutorError, Result};

/// A user as the kernel knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl Identity {
    /// Makes this process that user's, for good. Call it before there are threads or files.
    pub fn assume(&self) -> Result<()> {
        let failed = |errno: nix::Error| ExecutorError::Privileges {
            uid: self.uid,
            source: io::Error::from(errno),
        };
        let groups: Vec<Gid> = self.groups.iter().copied().map(Gid::from_raw).collect();
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        // The order matters: without root the groups can't be changed any more.
        setgroups(&groups).map_err(failed)?;
        setresgid(gid, gid, gid).map_err(failed)?;
        setresuid(uid, uid, uid).map_err(failed)?;
        if getuid() == uid { Ok(()) } else { Err(failed(nix::Error::EPERM)) }
    }
}
