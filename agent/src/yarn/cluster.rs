//! The cluster that this node belongs to, as settings and the Hadoop configuration name it.

use std::path::Path;

use creel_settings::Settings;
use creel_yarn::effective::Effective;
use creel_yarn::plan::{Plan, Wanted};
use creel_yarn::{Directory, Role, Roles};

use super::rest::Addresses;
use super::{conf_dir, nvidia_smi};
use crate::error::Error;

/// The configuration directory that is given, or the one that is found, and what holds in it.
///
/// It reads files, and may run `yarn envvars`: it blocks.
pub fn configuration(
    given: Option<&Path>,
    settings: &Settings,
) -> Result<(Directory, Effective), Error> {
    let directory = Directory::read(&conf_dir::find(given, settings)?.path)?;
    let effective = Effective::of_yarn(&directory, directory.documents());
    Ok((directory, effective))
}

/// What `creel yarn apply` would change for the roles of the setting `yarn.roles`.
///
/// It reads files, and runs `nvidia-smi`: it blocks.
pub fn plan(directory: &Directory, settings: &Settings) -> Result<Plan, Error> {
    let roles: Roles = settings.yarn_roles.parse()?;
    let for_nm = roles.has(Role::NodeManager);
    let wanted = Wanted {
        nvidia_smi: for_nm.then(|| nvidia_smi::ask(nvidia_smi::directory(settings))),
        max_gpus_per_container: Some(settings.yarn_max_gpus_per_container).filter(|max| *max > 0),
        queue: None,
        roles,
    };
    Ok(Plan::make(directory, &wanted, Path::new("/"))?)
}

/// Where the daemons are. Without a configuration, only settings say it, and where nothing does,
/// the NodeManager is where it is by default.
pub fn addresses(settings: &Settings, effective: Option<&Effective>) -> Result<Addresses, Error> {
    Addresses::find(&settings.yarn_resourcemanager_url, &settings.yarn_nodemanager_url, |key| {
        effective.and_then(|effective| effective.get(key))
    })
}
