//! A node and a process for each test.
//!
//! cudarc loads one driver in a process, a driver has one node, and an error of a kernel is for
//! good. So a test runs itself again, alone, with its node on the `LD_LIBRARY_PATH`:
//!
//! ```text
//! #[test]
//! fn rows_are_selected() {
//!     alone("[[gpu]]\nmodel = 't4'", |node| {
//!         let context = CudaContext::new(0).unwrap();
//!         …
//!         assert_eq!(log(node, "cuLaunchKernel").len(), 2);
//!     });
//! }
//! ```
//!
//! What is behind the closure in the test is done by the first process alone.

use std::any::type_name_of_val;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use simulated_nvml::node::CUDA_LOG;
use simulated_nvml::{Node, Topology};

/// The node's directory, in a process that is to do the test.
const NODE_VARIABLE: &str = "SIMULATED_GPU_TEST_NODE";
/// With it, a process is not to test but to do the other thing.
const OTHER_VARIABLE: &str = "SIMULATED_GPU_TEST_OTHER";
/// A library that such a process loads first: a sanitizer's.
const PRELOAD_VARIABLE: &str = "SIMULATED_GPU_PRELOAD";
/// What a process says that has found its test.
const STARTED: &str = "the test begins";

/// Runs a test in a process of its own, on a node of this topology (TOML).
pub fn alone(topology: &str, test: impl FnOnce(&Node)) {
    with(topology, &[], test);
}

/// As [`alone`], with variables of the environment.
pub fn with(topology: &str, environment: &[(&str, &str)], test: impl FnOnce(&Node)) {
    passed(&attempt(topology, environment, test));
}

fn passed(output: &Output) {
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
}

/// As [`with`], for a test that may fail: what became of the process.
pub fn attempt(topology: &str, environment: &[(&str, &str)], test: impl FnOnce(&Node)) -> Output {
    let name = name_of(&test);
    attempt_named(name, topology, environment, test)
}

/// As [`with`], for a closure that isn't itself in the test of the name.
pub fn named(name: &str, topology: &str, environment: &[(&str, &str)], test: impl FnOnce(&Node)) {
    passed(&attempt_named(name, topology, environment, test));
}

fn attempt_named(
    name: &str,
    topology: &str,
    environment: &[(&str, &str)],
    test: impl FnOnce(&Node),
) -> Output {
    if let Some(directory) = std::env::var_os(NODE_VARIABLE) {
        println!("{STARTED}");
        test(&Node::open(&PathBuf::from(directory)).expect("a node that was prepared"));
        std::process::exit(0);
    }
    let directory = tempfile::tempdir().expect("a directory for a node");
    let topology = Topology::parse(topology).expect("a topology");
    let node = Node::prepare(directory.path(), &topology).expect("a node");
    let output = again(&node, name).envs(environment.iter().copied()).output();
    let output = output.expect("this program");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(STARTED), "no test {name}: {said}{errors}");
    output
}

/// The name of the test that a closure is in.
pub fn name_of<T>(closure: &T) -> &'static str {
    let name = type_name_of_val(closure);
    let name = name.split_once("::").map_or(name, |(_, name)| name);
    name.split("::{{closure}}").next().unwrap_or(name)
}

/// This program, to run the test of the name alone.
pub fn this_test(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]);
    command
}

/// The same test once more.
fn again(node: &Node, name: &str) -> Command {
    let mut command = this_test(name);
    command.env("LD_LIBRARY_PATH", node.library_path()).env(NODE_VARIABLE, node.directory());
    if let Some(library) = std::env::var_os(PRELOAD_VARIABLE) {
        command.env("LD_PRELOAD", library);
    }
    command
}

/// Another process of the test's node: the test of this name, which asks [`is_other`].
pub fn other(node: &Node, name: &str) -> Command {
    let mut command = again(node, name);
    command.env(OTHER_VARIABLE, "1");
    command
}

/// Whether this process is one that does the test: it needs not prepare what the first one did.
pub fn is_alone() -> bool {
    std::env::var_os(NODE_VARIABLE).is_some()
}

/// Whether this is the other process.
pub fn is_other() -> bool {
    std::env::var_os(OTHER_VARIABLE).is_some()
}

/// The node's log of the calls of one function.
pub fn log(node: &Node, call: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(node.directory().join(CUDA_LOG)).unwrap_or_default();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("an object"));
    lines.filter(|line| line["call"] == call).collect()
}
