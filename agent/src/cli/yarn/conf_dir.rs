//! `creel yarn conf-dir`, and the option `--conf-dir` of all of `creel yarn`.

use std::path::PathBuf;

use creel_settings::{Settings, Sources};
use creel_yarn::layout::ConfDir;
use serde::Serialize;

use crate::api;
use crate::cli::stdout;
use crate::error::Error;
use crate::yarn::conf_dir;

/// Which configuration directory.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Hadoop's configuration directory [default: the setting yarn.conf_dir, else YARN_CONF_DIR,
    /// HADOOP_CONF_DIR, etc/hadoop of HADOOP_HOME, the usual places, and what `yarn envvars` says]
    #[arg(long, value_name = "DIR")]
    conf_dir: Option<PathBuf>,
}

impl Arguments {
    /// The one of the command line.
    pub(crate) fn given(&self) -> Option<PathBuf> {
        self.conf_dir.clone()
    }

    /// Finds the directory.
    pub(crate) fn find(&self, settings: &Settings) -> Result<ConfDir, Error> {
        conf_dir::find(self.conf_dir.as_deref(), settings)
    }
}

#[derive(Serialize)]
struct Answer {
    schema: u32,
    conf_dir: String,
    origin: String,
}

pub(super) fn run(arguments: &Arguments, config: Option<PathBuf>, json: bool) -> Result<(), Error> {
    let settings = Settings::load(&Sources::of_process(config, Vec::new()))?.settings;
    let found = arguments.find(&settings)?;
    if json {
        return stdout::json(&Answer {
            schema: api::SCHEMA,
            conf_dir: found.path.display().to_string(),
            origin: found.origin.to_string(),
        });
    }
    stdout::write(format!("{} ({})\n", found.path.display(), found.origin).as_bytes())
}
