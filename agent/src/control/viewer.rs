//! Who asks the control API, and what they may see.

use nix::unistd::Group;

use crate::peer::Peer;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Viewer {
    uid: u32,
    manages: bool,
}

impl Viewer {
    /// The peer of a connection. Root, the agent's own user and members of `group` manage.
    pub(super) async fn of(peer: &Peer, group: String) -> Self {
        let own = rustix::process::geteuid().as_raw();
        let manages = peer.uid == 0 || peer.uid == own || {
            // The group database may be on the network.
            let gid = tokio::task::spawn_blocking(move || Group::from_name(&group)).await;
            let gid = gid.ok().and_then(Result::ok).flatten().map(|group| group.gid.as_raw());
            gid.is_some_and(|gid| peer.gid == gid || peer.groups.contains(&gid))
        };
        Self { uid: peer.uid, manages }
    }

    /// Whether what belongs to that user may be seen, and managed.
    pub(super) fn sees(self, uid: u32) -> bool {
        self.manages || self.uid == uid
    }

    /// Whether what is not theirs may be managed.
    pub(super) fn manages(self) -> bool {
        self.manages
    }

    /// Who it is, as a query's client is told.
    pub(super) fn uid(self) -> u32 {
        self.uid
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    async fn manages(uid: u32, gid: u32, groups: &[u32], group: &str) -> bool {
        let peer = Peer {
            uid,
            gid,
            pid: 1,
            groups: groups.to_vec(),
            cwd: None,
            container: Ok(None),
            lineage: Vec::new(),
            pidfd: OwnedFd::from(std::fs::File::open("/dev/null").unwrap()),
        };
        Viewer::of(&peer, group.to_owned()).await.sees(uid + 1)
    }

    #[tokio::test]
    async fn root_the_agent_and_the_group_manage() {
        let own = rustix::process::geteuid().as_raw();
        assert!(manages(0, 0, &[], "no-such-group").await);
        assert!(manages(own, 77, &[], "no-such-group").await);
        assert!(!manages(54_321, 77, &[78], "no-such-group").await);
        assert!(manages(54_321, 77, &[0], "root").await);
        assert!(manages(54_321, 0, &[], "root").await);
        assert!(!manages(54_321, 77, &[78], "root").await);
    }

    #[test]
    fn everybody_sees_their_own() {
        let viewer = Viewer { uid: 7, manages: false };
        assert!(viewer.sees(7) && !viewer.sees(8));
    }
}
