//! The user that an executor becomes, as the node's user database has it.

use std::ffi::CString;
use std::io;
use std::path::PathBuf;

use nix::unistd::{Gid, Uid, User};

/// A user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    /// User id.
    pub(super) uid: u32,
    /// Primary group.
    pub(super) gid: u32,
    /// Supplementary groups.
    pub(super) groups: Vec<u32>,
    /// Home directory; `/` for a user without one.
    pub(super) home: PathBuf,
}

impl Account {
    /// Looks a user up. One that the database doesn't have has the group `gid` alone.
    ///
    /// Blocks: the database may be on the network.
    pub(super) fn look_up(uid: u32, gid: u32) -> io::Result<Self> {
        let Some(user) = User::from_uid(Uid::from_raw(uid))? else {
            return Ok(Self { uid, gid, groups: Vec::new(), home: PathBuf::from("/") });
        };
        let name = CString::new(user.name)?;
        let groups = nix::unistd::getgrouplist(&name, user.gid)?;
        Ok(Self {
            uid,
            gid: user.gid.as_raw(),
            groups: groups.into_iter().map(Gid::as_raw).collect(),
            home: user.dir,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known() {
        let root = Account::look_up(0, 7).unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(root.groups.contains(&0));
        assert!(root.home.is_absolute());
    }

    #[test]
    fn a_number_without_a_name_has_its_group_alone() {
        let nobody = Account::look_up(3_999_999_999, 7).unwrap();
        assert_eq!((nobody.gid, nobody.groups), (7, Vec::new()));
    }
}
