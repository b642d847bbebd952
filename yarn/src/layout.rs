//! Where a machine has Hadoop's configuration directory.
//!
//! | distribution | directory |
//! |---|---|
//! | Bigtop, and all that take its packages | `/etc/hadoop/conf`, a link of the alternatives system |
//! | Amazon EMR | `/etc/hadoop/conf` |
//! | Tencent EMR | `/usr/local/service/hadoop/etc/hadoop` |
//! | Apache's archive | `etc/hadoop` where it was unpacked: `HADOOP_HOME` |
//!
//! What the environment says comes first, and in the order of Hadoop's own scripts: the
//! deprecated `YARN_CONF_DIR`, where it is set, replaces `HADOOP_CONF_DIR` (hadoop-config.sh).

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::Error;

/// Directories where distributions have it.
const USUAL: [&str; 4] = [
    "/etc/hadoop/conf",
    "/usr/local/service/hadoop/etc/hadoop",
    "/usr/local/hadoop/etc/hadoop",
    "/opt/hadoop/etc/hadoop",
];

/// A directory without any of these is no configuration of Hadoop.
const SIGNS: [&str; 3] = ["yarn-site.xml", "core-site.xml", "capacity-scheduler.xml"];

/// Hadoop's configuration directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfDir {
    /// The directory, as it was found: it may be a link.
    pub path: PathBuf,
    /// Who named it.
    pub origin: Origin,
}

/// Who named a configuration directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Whoever asks.
    Given,
    /// An environment variable.
    Variable(&'static str),
    /// It is where distributions have it.
    Usual,
    /// `yarn envvars`.
    Envvars,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given => f.write_str("as given"),
            Self::Variable(name) => write!(f, "from {name}"),
            Self::Usual => f.write_str("where it usually is"),
            Self::Envvars => f.write_str("from yarn envvars"),
        }
    }
}

/// What to look at for the directory.
pub struct Search<'a> {
    /// The directory that was asked for; nothing else is looked at then.
    pub given: Option<&'a Path>,
    /// The value of an environment variable.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// Below this are the usual directories: `/`.
    pub root: &'a Path,
    /// What `yarn envvars` prints, if there is a `yarn` that does; it is asked last.
    pub envvars: &'a dyn Fn() -> Option<String>,
}

impl Search<'_> {
    /// Finds the directory.
    ///
    /// # Errors
    ///
    /// [`Error::NotConfDir`] where the one that is given, or that the environment names, is none,
    /// and [`Error::NoConfDir`] where none is found.
    pub fn find(&self) -> Result<ConfDir, Error> {
        if let Some(path) = self.given {
            return existing(path.to_owned(), Origin::Given);
        }
        for name in ["YARN_CONF_DIR", "HADOOP_CONF_DIR"] {
            if let Some(path) = (self.variable)(name).filter(|path| !path.is_empty()) {
                return existing(path.into(), Origin::Variable(name));
            }
        }
        for name in ["HADOOP_YARN_HOME", "HADOOP_HOME"] {
            let home = (self.variable)(name).filter(|path| !path.is_empty());
            if let Some(path) = home.map(|home| Path::new(&home).join("etc/hadoop"))
                && is_conf_dir(&path)
            {
                return Ok(ConfDir { path, origin: Origin::Variable(name) });
            }
        }
        let usual = USUAL.iter().map(|path| self.root.join(path.trim_start_matches('/')));
        if let Some(path) = usual.clone().find(|path| is_conf_dir(path)) {
            return Ok(ConfDir { path, origin: Origin::Usual });
        }
        if let Some(path) = (self.envvars)().as_deref().and_then(named_in) {
            return existing(path, Origin::Envvars);
        }
        Err(Error::NoConfDir { tried: usual.collect() })
    }
}

fn existing(path: PathBuf, origin: Origin) -> Result<ConfDir, Error> {
    if is_conf_dir(&path) {
        Ok(ConfDir { path, origin })
    } else {
        Err(Error::NotConfDir { path, origin })
    }
}

fn is_conf_dir(path: &Path) -> bool {
    SIGNS.iter().any(|name| path.join(name).is_file())
}

/// The directory in the output of `yarn envvars`: lines such as `HADOOP_CONF_DIR='/etc/hadoop/conf'`.
fn named_in(envvars: &str) -> Option<PathBuf> {
    let value = |line: &str| {
        let quoted = line.trim().strip_prefix("HADOOP_CONF_DIR=")?;
        Some(quoted.trim_matches(['\'', '"']).to_owned())
    };
    envvars.lines().find_map(value).filter(|path| path.starts_with('/')).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf_dir(root: &Path, path: &str) -> PathBuf {
        let path = root.join(path);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("yarn-site.xml"), "<configuration/>").unwrap();
        path
    }

    fn find(root: &Path, variables: &[(&str, &Path)], envvars: &str) -> Result<ConfDir, Error> {
        let variable = |name: &str| {
            let of_name = variables.iter().find(|(known, _)| *known == name);
            of_name.map(|(_, path)| path.as_os_str().to_owned())
        };
        let envvars = || Some(envvars.to_owned());
        Search { given: None, variable: &variable, root, envvars: &envvars }.find()
    }

    #[test]
    fn the_environment_comes_first_and_the_usual_places_next() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let asked = conf_dir(root, "asked");
        let envvars = format!("JAVA_HOME='/j'\nHADOOP_CONF_DIR='{}'\n", asked.display());
        assert_eq!(find(root, &[], &envvars).unwrap().origin, Origin::Envvars);

        let tencent = conf_dir(root, "usr/local/service/hadoop/etc/hadoop");
        assert_eq!(find(root, &[], &envvars).unwrap().path, tencent);
        let bigtop = conf_dir(root, "etc/hadoop/conf.dist");
        std::os::unix::fs::symlink(&bigtop, root.join("etc/hadoop/conf")).unwrap();
        let found = find(root, &[], &envvars).unwrap();
        assert_eq!(found, ConfDir { path: root.join("etc/hadoop/conf"), origin: Origin::Usual });

        let home = root.join("home");
        let in_home = conf_dir(root, "home/etc/hadoop");
        let found = find(root, &[("HADOOP_HOME", &home)], "").unwrap();
        assert_eq!(found, ConfDir { path: in_home, origin: Origin::Variable("HADOOP_HOME") });

        let variables = [("HADOOP_CONF_DIR", &*bigtop), ("YARN_CONF_DIR", &*tencent)];
        let found = find(root, &variables, "").unwrap();
        assert_eq!(found, ConfDir { path: tencent, origin: Origin::Variable("YARN_CONF_DIR") });
    }

    #[test]
    fn a_directory_that_is_named_and_is_none_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        conf_dir(root.path(), "etc/hadoop/conf");
        let variables = [("HADOOP_CONF_DIR", root.path())];
        let error = find(root.path(), &variables, "").unwrap_err();
        assert!(error.to_string().contains("HADOOP_CONF_DIR"), "{error}");
    }

    #[test]
    fn no_directory_is_an_error_that_names_the_usual_ones() {
        let root = tempfile::tempdir().unwrap();
        for envvars in ["", "HADOOP_CONF_DIR=''", "no such command"] {
            let error = find(root.path(), &[], envvars).unwrap_err();
            assert!(error.to_string().contains("etc/hadoop/conf"), "{error}");
        }
    }
}
