//! A simulated node and what runs on it.

use std::path::PathBuf;
use std::process::{Command, Output};

use creel_discovery::Inventory;
use simulated_nvml::{Node, Topology};
use tempfile::TempDir;

/// A node, for as long as the value lives.
pub(crate) struct TestNode {
    pub(crate) node: Node,
    directory: TempDir,
}

impl TestNode {
    /// A node of SPECs.
    pub(crate) fn of(specs: &[&str]) -> Self {
        let mut topology = Topology::default();
        for spec in specs {
            let spec: simulated_nvml::spec::Spec = spec.parse().unwrap();
            topology.append(spec.topology().unwrap());
        }
        Self::new(&topology)
    }

    /// A node of the text of a topology file.
    pub(crate) fn from_toml(text: &str) -> Self {
        Self::new(&Topology::parse(text).unwrap())
    }

    fn new(topology: &Topology) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let node = Node::prepare(directory.path(), topology).unwrap();
        Self { node, directory }
    }

    /// A command that sees this node's driver, and no other.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.node.library_path());
        command
    }

    /// A directory of the node.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs `creel-discovery`.
    pub(crate) fn discover(&self, arguments: &[&str]) -> Output {
        self.command(DISCOVERY).args(arguments).output().unwrap()
    }

    /// The node's inventory.
    pub(crate) fn inventory(&self) -> Inventory {
        let output = self.discover(&["--format", "json"]);
        assert_eq!(text(&output.stderr), "");
        assert!(output.status.success());
        Inventory::from_json(&text(&output.stdout)).unwrap()
    }

    /// The line for Spark.
    pub(crate) fn spark(&self) -> String {
        let output = self.discover(&["--format", "spark"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    }
}

/// The program under test.
pub(crate) const DISCOVERY: &str = env!("CARGO_BIN_EXE_creel-discovery");

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
