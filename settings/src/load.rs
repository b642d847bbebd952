//! The sources of settings, one over the other: `creel.toml`, the environment, flags.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::declaration::{SETTINGS, Settings};
use crate::error::Error;
use crate::file;

/// The settings file of a node; it need not exist.
pub const DEFAULT_FILE: &str = "/etc/creel/creel.toml";

/// Where a value came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The declaration.
    #[default]
    Default,
    /// A settings file.
    File {
        /// The file.
        path: PathBuf,
        /// The line in it, from 1.
        line: usize,
    },
    /// An environment variable.
    Environment(String),
    /// A flag.
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => write!(f, "default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(variable) => write!(f, "{variable}"),
            Self::Flag => write!(f, "--set"),
        }
    }
}

/// What settings are read from; each overrides those before it.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The settings file, which must exist.
    pub file: Option<PathBuf>,
    /// Environment variables. [`crate::Setting::variable`] names those that count.
    pub environment: Vec<(OsString, OsString)>,
    /// Names and values from the command line.
    pub flags: Vec<(String, String)>,
}

impl Sources {
    /// The sources of this process: the file that it was given, else [`DEFAULT_FILE`] if there is
    /// one; its environment; the flags that it was given.
    pub fn of_process(file: Option<PathBuf>, flags: Vec<(String, String)>) -> Self {
        // A file that can't be looked at is there: reading it says why it can't.
        let default =
            || Path::new(DEFAULT_FILE).try_exists().unwrap_or(true).then(|| DEFAULT_FILE.into());
        Self { file: file.or_else(default), environment: std::env::vars_os().collect(), flags }
    }
}

/// Settings, and where each came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The values.
    pub settings: Settings,
    origins: BTreeMap<&'static str, Origin>,
}

impl Loaded {
    /// Where the value of a setting came from.
    pub fn origin(&self, name: &str) -> Origin {
        self.origins.get(name).cloned().unwrap_or_default()
    }
}

impl Settings {
    /// Reads all sources. The error names everything that is wrong in any of them.
    pub fn load(sources: &Sources) -> Result<Loaded, Error> {
        let Loaded { mut settings, mut origins } = Loaded::default();
        let mut errors = Vec::new();

        if let Some(path) = &sources.file {
            match std::fs::read_to_string(path) {
                Ok(text) => {
                    let (set, mistakes) = file::apply(&text, path, &mut settings);
                    origins.extend(set.into_iter().map(|(setting, origin)| (setting.name, origin)));
                    errors.extend(mistakes);
                }
                Err(source) => errors.push(Error::Unreadable { path: path.clone(), source }),
            }
        }

        for setting in SETTINGS {
            let variable = setting.variable();
            let Some((_, text)) = sources.environment.iter().find(|(name, _)| *name == *variable)
            else {
                continue;
            };
            let origin = Origin::Environment(variable);
            match settings.set_from(Some(origin.clone()), setting.name, &text.to_string_lossy()) {
                Ok(setting) => drop(origins.insert(setting.name, origin)),
                Err(error) => errors.push(error),
            }
        }

        for (name, text) in &sources.flags {
            match settings.set_from(Some(Origin::Flag), name, text) {
                Ok(setting) => drop(origins.insert(setting.name, Origin::Flag)),
                Err(error) => errors.push(error),
            }
        }

        Error::of(errors)?;
        Ok(Loaded { settings, origins })
    }
}

/// Splits `NAME=VALUE`, the form of a `--set` flag.
pub fn assignment(text: &str) -> Result<(String, String), Error> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err(Error::Assignment(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs<T: From<&'static str>>(pairs: &[(&'static str, &'static str)]) -> Vec<(T, T)> {
        pairs.iter().map(|(name, text)| (T::from(*name), T::from(*text))).collect()
    }

    fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("creel.toml");
        std::fs::write(&path, text).unwrap();
        (directory, path)
    }

    #[test]
    fn flags_over_environment_over_file_over_default() {
        let (_directory, path) =
            written("[executor]\nthreads = 1\nidle_timeout = \"1s\"\n[agent]\ngroup = \"a\"\n");
        let loaded = Settings::load(&Sources {
            file: Some(path.clone()),
            environment: pairs(&[
                ("CREEL_EXECUTOR_THREADS", "2"),
                ("CREEL_AGENT_GROUP", "b"),
                ("CREEL_RUN_DIR", "/run/creel"),
                ("PATH", "/bin"),
            ]),
            flags: pairs(&[("executor.threads", "3")]),
        })
        .unwrap();
        assert_eq!(
            (loaded.settings.executor_threads, loaded.settings.agent_group.as_str()),
            (3, "b")
        );
        assert_eq!(loaded.origin("executor.threads"), Origin::Flag);
        assert_eq!(loaded.origin("agent.group").to_string(), "CREEL_AGENT_GROUP");
        assert_eq!(
            loaded.origin("executor.idle_timeout").to_string(),
            format!("{}:3", path.display())
        );
        assert_eq!(loaded.origin("sql.batch_size"), Origin::Default);
    }

    #[test]
    fn the_mistakes_of_all_sources_are_reported() {
        let (_directory, path) = written("x = 1\n");
        let error = Settings::load(&Sources {
            file: Some(path),
            environment: pairs(&[("CREEL_EXECUTOR_THREADS", "many")]),
            flags: pairs(&[("executor.memory", "200%"), ("memory", "1")]),
        })
        .unwrap_err();
        let lines: Vec<_> = error.each().iter().map(ToString::to_string).collect();
        assert_eq!(lines.len(), 4);
        assert!(lines[0].contains("creel.toml:1: unknown setting \"x\""), "{error}");
        assert!(
            lines[1].starts_with("CREEL_EXECUTOR_THREADS: executor.threads can't be \"many\""),
            "{error}"
        );
        assert!(lines[2].starts_with("--set: executor.memory can't be \"200%\""), "{error}");
        assert!(lines[3].ends_with("did you mean \"executor.memory\"?"), "{error}");
    }

    #[test]
    fn a_file_that_is_not_there_or_not_text_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("creel.toml");
        let load = || Settings::load(&Sources { file: Some(path.clone()), ..Sources::default() });
        assert!(
            matches!(load().unwrap_err(), Error::Unreadable { path: named, .. } if named == path)
        );
        std::fs::write(&path, b"a = \"\xff\"").unwrap();
        assert!(load().unwrap_err().to_string().contains("UTF-8"));
    }

    #[test]
    fn assignments() {
        let pair = |name: &str, text: &str| Some((name.to_owned(), text.to_owned()));
        assert_eq!(assignment("a.b=c=d").ok(), pair("a.b", "c=d"));
        assert_eq!(assignment("a.b = 4 GiB").ok(), pair("a.b", "4 GiB"));
        assert_eq!(assignment("a.b=").ok(), pair("a.b", ""));
        assert!(assignment("a.b").is_err() && assignment("=c").is_err());
    }
}
