//! YARN's files, which the agent keeps.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::node::{Node, eventually};

const SITE: &str = "<configuration>\n  <!-- of the cluster manager -->\n</configuration>\n";

/// Makes the `nvidia-smi` of a node show so many GPUs.
fn nvidia_smi(node: &Node, gpus: usize) {
    let answer = format!("<nvidia_smi_log>{}</nvidia_smi_log>", "<gpu/>".repeat(gpus));
    let (path, next) = (node.path("smi/nvidia-smi"), node.path("smi/next"));
    fs::create_dir_all(node.path("smi")).unwrap();
    fs::write(&next, format!("#!/bin/sh\necho '{answer}'\n")).unwrap();
    fs::set_permissions(&next, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(next, path).unwrap();
}

#[test]
fn they_are_kept_when_gpus_appear_and_when_others_write_them() {
    let node = Node::new();
    nvidia_smi(&node, 0);
    let site = node.path("conf/yarn-site.xml");
    fs::create_dir(node.path("conf")).unwrap();
    fs::write(&site, SITE).unwrap();
    let directory = |name: &str, path: &str| format!("{name}={}", node.path(path).display());
    let conf_dir = directory("yarn.conf_dir", "conf");
    let nvidia_smi_dir = directory("yarn.nvidia_smi_dir", "smi");
    let mut arguments = vec!["--set", "yarn.manage=true", "--set", "discovery.interval=1s"];
    arguments.extend(["--set", &conf_dir, "--set", &nvidia_smi_dir]);
    let _agent = node.start_with(&arguments);

    let has = |path: &str, text: &str| {
        fs::read_to_string(node.path(path)).is_ok_and(|content| content.contains(text))
    };
    eventually("the resource type is there", || has("conf/resource-types.xml", "yarn.io/gpu"));
    assert_eq!(fs::read_to_string(&site).unwrap(), SITE, "without GPUs, the plugin stays off");

    nvidia_smi(&node, 2);
    node.gpus(2);
    eventually("the plugin is on", || has("conf/yarn-site.xml", "yarn.io/gpu"));
    assert!(has("conf/yarn-site.xml", "of the cluster manager"));

    fs::write(&site, SITE.replace("of the", "written anew by the")).unwrap();
    eventually("the entries are back", || has("conf/yarn-site.xml", "yarn.io/gpu"));
    assert!(has("conf/yarn-site.xml", "written anew by the"));
}
