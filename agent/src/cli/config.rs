//! `creel config`: the settings, without an agent.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use creel_settings::{Loaded, SETTINGS, Setting, Settings, Sources};
use serde::Serialize;

use super::{human, stdout};
use crate::api;
use crate::error::Error;

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Show every setting: its value and where that came from
    List,
    /// Print the value of a setting
    Get {
        /// The setting, as executor.memory
        name: String,
        /// Print where the value came from too: default, file and line, environment variable
        #[arg(long)]
        origin: bool,
    },
    /// Say what is wrong with the settings, all of it
    Check {
        /// The settings file [default: that of --config]
        file: Option<PathBuf>,
    },
    /// Print the default settings file
    Default,
}

/// A setting in force, as JSON.
#[derive(Debug, Serialize)]
struct InForce {
    name: &'static str,
    value: String,
    default: &'static str,
    origin: String,
    kind: &'static str,
    unit: &'static str,
    expects: String,
    scope: &'static str,
    help: &'static str,
}

impl InForce {
    fn of(setting: &'static Setting, loaded: &Loaded) -> Self {
        Self {
            name: setting.name,
            value: loaded.settings.get(setting.name).unwrap_or_default(),
            default: setting.default,
            origin: loaded.origin(setting.name).to_string(),
            kind: setting.kind.name(),
            unit: setting.kind.unit(),
            expects: setting.kind.to_string(),
            scope: setting.scope.name(),
            help: setting.help,
        }
    }
}

#[derive(Debug, Serialize)]
struct List {
    schema: u32,
    settings: Vec<InForce>,
}

#[derive(Debug, Serialize)]
struct Get {
    schema: u32,
    #[serde(flatten)]
    setting: InForce,
}

#[derive(Debug, Serialize)]
struct Check {
    schema: u32,
    /// The file that was read; `null` where there is none.
    file: Option<String>,
    errors: Vec<String>,
}

pub(crate) fn run(action: &Action, config: Option<PathBuf>, json: bool) -> Result<(), Error> {
    match action {
        Action::List => list(&load(config)?, json),
        Action::Get { name, origin } => get(name, &load(config)?, *origin, json),
        Action::Check { file } => check(file.clone().or(config), json),
        Action::Default => stdout::write(creel_settings::default_file().as_bytes()),
    }
}

fn load(config: Option<PathBuf>) -> Result<Loaded, Error> {
    Ok(Settings::load(&Sources::of_process(config, Vec::new()))?)
}

fn list(loaded: &Loaded, json: bool) -> Result<(), Error> {
    let settings: Vec<_> = SETTINGS.iter().map(|setting| InForce::of(setting, loaded)).collect();
    if json {
        return stdout::json(&List { schema: api::SCHEMA, settings });
    }
    let mut table = human::table(&["NAME", "VALUE", "FROM"]);
    for setting in settings {
        table.add_row([setting.name, &setting.value, &setting.origin]);
    }
    stdout::table(&table)
}

fn get(name: &str, loaded: &Loaded, origin: bool, json: bool) -> Result<(), Error> {
    let Some(setting) = creel_settings::find(name) else {
        let unknown = Settings::default().set(name, "").expect_err("no such setting");
        return Err(Error::NotFound(unknown.to_string()));
    };
    let setting = InForce::of(setting, loaded);
    if json {
        stdout::json(&Get { schema: api::SCHEMA, setting })
    } else if origin {
        stdout::write(format!("{}\n{}\n", setting.value, setting.origin).as_bytes())
    } else {
        stdout::write(format!("{}\n", setting.value).as_bytes())
    }
}

fn check(file: Option<PathBuf>, json: bool) -> Result<(), Error> {
    let sources = Sources::of_process(file, Vec::new());
    let result = Settings::load(&sources);
    if json {
        let errors = result.as_ref().err().map_or(&[][..], creel_settings::Error::each);
        stdout::json(&Check {
            schema: api::SCHEMA,
            file: sources.file.as_deref().map(|file| file.display().to_string()),
            errors: errors.iter().map(ToString::to_string).collect(),
        })?;
    }
    result?;
    if json {
        return Ok(());
    }
    let what = sources
        .file
        .as_deref()
        .map_or("no settings file, all defaults".into(), Path::to_string_lossy);
    stdout::write(format!("{what}: no mistakes\n").as_bytes())
}
