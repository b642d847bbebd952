//! A configuration directory for a test.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use creel_yarn::answer::{Answer, Gpu};
use creel_yarn::daemons;
use creel_yarn::files::{self, Undone};
use creel_yarn::plan::NvidiaSmi;
use creel_yarn::{Directory, Error, Plan, Roles, Wanted};
use tempfile::TempDir;

/// A directory that goes with its owner, and a machine without anything beside it.
pub(crate) struct Site {
    temporary: TempDir,
}

impl Site {
    pub(crate) fn of(files: &[(&str, &[u8])]) -> Self {
        let site = Self { temporary: tempfile::tempdir().unwrap() };
        std::fs::create_dir_all(site.conf()).unwrap();
        for (name, content) in files {
            site.write(name, content);
        }
        site
    }

    /// A copy of a fixture.
    pub(crate) fn like(fixture: &str) -> Self {
        let crate_dir = std::env::var("CARGO_MANIFEST_DIR").unwrap();
        let fixture = Path::new(&crate_dir).join("tests/fixtures").join(fixture);
        let site = Self::of(&[]);
        for (name, content) in tree(&fixture) {
            site.write(&name, &content);
        }
        site
    }

    pub(crate) fn conf(&self) -> PathBuf {
        self.temporary.path().join("conf")
    }

    /// The root of the machine: nothing is there.
    pub(crate) fn root(&self) -> PathBuf {
        self.temporary.path().join("root")
    }

    pub(crate) fn write(&self, name: &str, content: &[u8]) {
        let path = self.conf().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.conf().join(name)).unwrap()
    }

    /// Everything in it.
    pub(crate) fn content(&self) -> BTreeMap<String, Vec<u8>> {
        tree(&self.conf())
    }

    pub(crate) fn directory(&self) -> Result<Directory, Error> {
        Directory::read(&self.conf())
    }

    pub(crate) fn plan(&self, wanted: &Wanted) -> Result<Plan, Error> {
        Plan::make(&self.directory()?, wanted, &self.root())
    }

    pub(crate) fn diff(&self, wanted: &Wanted) -> Result<String, Error> {
        Ok(files::diff(&self.directory()?, &self.plan(wanted)?))
    }

    pub(crate) fn apply(&self, wanted: &Wanted) -> Result<Plan, Error> {
        let directory = self.directory()?;
        let plan = Plan::make(&directory, wanted, &self.root())?;
        let running = daemons::running(&self.root(), &self.conf());
        files::apply(&directory, &plan, &running)?;
        Ok(plan)
    }

    pub(crate) fn undo(&self, roles: &str) -> Result<Undone, Error> {
        files::undo(&self.conf(), &roles.parse().unwrap(), &self.root())
    }
}

/// What a node with GPUs wants.
pub(crate) fn wanted(roles: &str, gpus: usize) -> Wanted {
    let gpu = |minor| Gpu { minor: Some(minor), utilization: true };
    let gpus = (0..).take(gpus).map(gpu).collect();
    Wanted {
        roles: roles.parse::<Roles>().unwrap(),
        nvidia_smi: Some(NvidiaSmi {
            directory: "/usr/libexec/creel/yarn".into(),
            answer: Ok(Answer { gpus }),
        }),
        max_gpus_per_container: None,
        queue: None,
    }
}

fn tree(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                found.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    found
}
