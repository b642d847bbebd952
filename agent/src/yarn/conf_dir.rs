//! Where this machine has Hadoop's configuration directory.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use creel_discovery::deadline;
use creel_settings::Settings;
use creel_yarn::layout::{ConfDir, Search};

use crate::error::Error;

/// `yarn envvars` is a shell script that starts nothing.
const ENVVARS_DEADLINE: Duration = Duration::from_secs(10);

/// The directory that is given, else that of the setting `yarn.conf_dir`, else the one that is
/// found.
pub fn find(given: Option<&Path>, settings: &Settings) -> Result<ConfDir, Error> {
    search(given, settings, &envvars)
}

/// As [`find`] without one that is given, and without starting anything: for every now and then.
pub fn find_at_once(settings: &Settings) -> Result<ConfDir, Error> {
    search(None, settings, &|| None)
}

fn search(
    given: Option<&Path>,
    settings: &Settings,
    envvars: &dyn Fn() -> Option<String>,
) -> Result<ConfDir, Error> {
    let configured = Some(&settings.yarn_conf_dir).filter(|path| !path.as_os_str().is_empty());
    let search = Search {
        given: given.or(configured.map(PathBuf::as_path)),
        variable: &|name| std::env::var_os(name),
        root: Path::new("/"),
        envvars,
    };
    Ok(search.find()?)
}

fn envvars() -> Option<String> {
    let output = deadline::run(Command::new("yarn").arg("envvars"), ENVVARS_DEADLINE).ok()?;
    String::from_utf8(output.stdout).ok()
}
