//! `scripts/getGpusResources.sh`, alone in a directory as Spark's `--files` puts it there.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::node::{DISCOVERY, TestNode, text};

const LINE: &str = "{\"name\": \"gpu\", \"addresses\":[\"0\",\"1\"]}\n";

/// The crate's directory, asked for when the test runs: one target directory may serve several
/// clones, and what was compiled in one of them must not look into another.
fn manifest_dir() -> std::ffi::OsString {
    std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs the tests")
}

fn shipped(directory: &Path) -> PathBuf {
    let script = Path::new(&manifest_dir()).join("../scripts/getGpusResources.sh");
    let copy = directory.join("getGpusResources.sh");
    fs::copy(script, &copy).unwrap();
    copy
}

fn run(mut command: Command, node: &TestNode) -> Output {
    command.env("LD_LIBRARY_PATH", node.node.library_path()).output().unwrap()
}

#[test]
fn the_binary_is_found_where_it_may_be() {
    let node = TestNode::of(&["h200:2"]);
    let directory = tempfile::tempdir().unwrap();
    let script = shipped(directory.path());

    let mut by_variable = Command::new(&script);
    by_variable.env("CREEL_DISCOVERY", DISCOVERY);
    assert_eq!(text(&run(by_variable, &node).stdout), LINE);

    let mut by_path = Command::new(&script);
    let beside = Path::new(DISCOVERY).parent().unwrap().display();
    by_path.env("PATH", format!("/usr/bin:/bin:{beside}"));
    assert_eq!(text(&run(by_path, &node).stdout), LINE);

    symlink(DISCOVERY, directory.path().join("creel-discovery")).unwrap();
    let mut by_place = Command::new(&script);
    by_place.env("PATH", "/usr/bin:/bin").current_dir("/");
    assert_eq!(text(&run(by_place, &node).stdout), LINE);
}

#[test]
fn uuids_are_asked_for_by_argument_or_variable() {
    let node = TestNode::of(&["a100:1,mig=1x3g.20gb", "h200:1"]);
    let directory = tempfile::tempdir().unwrap();
    let script = shipped(directory.path());
    let inventory = node.inventory();
    let uuids: Vec<_> = inventory.units().map(|unit| unit.uuid().unwrap()).collect();
    let line = format!("{{\"name\": \"gpu\", \"addresses\":[\"{}\"]}}\n", uuids.join("\",\""));
    assert!(uuids[0].starts_with("MIG-") && uuids[1].starts_with("GPU-"), "{uuids:?}");

    let mut by_argument = Command::new(&script);
    by_argument.env("CREEL_DISCOVERY", DISCOVERY).args(["--address", "uuid"]);
    assert_eq!(text(&run(by_argument, &node).stdout), line);
    let mut by_variable = Command::new(&script);
    by_variable.env("CREEL_DISCOVERY", DISCOVERY).env("CREEL_ADDRESS", "uuid");
    assert_eq!(text(&run(by_variable, &node).stdout), line);
}

#[test]
fn what_to_install_is_said() {
    let node = TestNode::of(&["h200:2"]);
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(shipped(directory.path()));
    command.env("PATH", "/usr/bin:/bin");
    let output = run(command, &node);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "");
    assert!(text(&output.stderr).contains("install the package creel"), "{}", text(&output.stderr));
}

#[test]
fn a_wrong_variable_is_an_error() {
    let node = TestNode::of(&["h200:2"]);
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(shipped(directory.path()));
    command.env("CREEL_DISCOVERY", "/nowhere/creel-discovery");
    let output = run(command, &node);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("/nowhere"), "{}", text(&output.stderr));
}
