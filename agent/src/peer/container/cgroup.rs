//! A container's name by its control group.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::is_container_id;
use crate::peer::proc::Proc;

/// A control group that YARN made for a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// The container.
    pub(super) id: String,
    /// The group of the `devices` controller (v1), if that one is a container's.
    pub(super) devices: Option<String>,
}

/// The container by whose name a control group of this process goes, unless the user could have
/// made the group.
pub(super) fn name(proc: &Proc, cgroups: &Path, pid: i32, uid: u32) -> Option<Group> {
    let groups = proc.cgroups(pid).ok()?;
    let mut found: Option<Group> = None;
    for group in groups {
        let Some((path, id)) = container(&group.path) else { continue };
        if !is_by_another(cgroups, &group.controllers, path, uid) {
            continue;
        }
        let group_of = found.get_or_insert_with(|| Group { id: id.to_owned(), devices: None });
        if group.controllers.split(',').any(|controller| controller == "devices") {
            group_of.devices = Some(path.to_owned());
        }
    }
    found
}

/// The part of a path that ends with a container's name, and the name.
fn container(path: &str) -> Option<(&str, &str)> {
    let mut end = 0;
    for name in path.split('/') {
        // Below its own manager a user makes what groups they like.
        if name.starts_with("user@") {
            return None;
        }
        end += name.len();
        if is_container_id(name) {
            return Some((&path[..end], name));
        }
        end += 1;
    }
    None
}

/// Whether a group's directory is there, and is not the user's own. Root makes any group, and is
/// trusted with all.
fn is_by_another(cgroups: &Path, controllers: &str, path: &str, uid: u32) -> bool {
    let path = path.trim_start_matches('/');
    // v2 is mounted here, or beside v1 in `unified`; of v1, a mount that serves several
    // controllers goes by the name of all of them.
    let controllers = controllers.trim_start_matches("name=");
    let places = [cgroups.join(controllers), cgroups.join("unified")];
    places
        .iter()
        .find_map(|place| place.join(path).symlink_metadata().ok())
        .is_some_and(|directory| uid == 0 || directory.uid() != uid)
}
