//! `creel yarn status` where daemons hang, lie, or are not there.

use std::process::Command;

use serde_json::Value;

use crate::web::{Behaviour, Web, json, recorded, response};

/// The exit code and the answer, with these daemons and nothing else.
fn status(resource_manager: &str, node_manager: &str) -> (Option<i32>, Value) {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_creel"))
        .args(["--json", "yarn", "status", "--conf-dir"])
        .arg(directory.path())
        .arg("--run-dir")
        .arg(directory.path())
        .env("CREEL_YARN_RESOURCEMANAGER_URL", resource_manager)
        .env("CREEL_YARN_NODEMANAGER_URL", node_manager)
        .env("CREEL_YARN_ROLES", "client")
        .output()
        .unwrap();
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap())
}

fn differences(answer: &Value) -> String {
    answer["differences"].to_string()
}

#[test]
fn what_hangs_or_lies_is_named_and_the_rest_is_told() {
    let node_manager = || {
        Web::start(|path| match path {
            "/ws/v1/node/info" => json(&recorded("3.5.0", "nm-info.json")),
            "/ws/v1/node/resources/yarn.io%2Fgpu" => json(&recorded("3.5.0", "nm-gpu.json")),
            _ => response("500 Oh", "", ""),
        })
    };
    for (behaviour, words) in [
        (Behaviour::Hang, "no whole answer within"),
        (Behaviour::Endless, "more than"),
        (json("<html>"), "can't be read"),
        (response("401 Unauthorized", "", ""), "Kerberos"),
    ] {
        let (rm, nm) = (Web::that(behaviour), node_manager());
        let (code, answer) = status(&rm.address, &nm.address);
        assert_eq!(code, Some(1));
        let differences = differences(&answer);
        assert!(differences.contains(words), "{words}: {differences}");
        assert_eq!(answer["nodemanager"]["version"], "3.5.0");
        assert_eq!(answer["gpus"]["nodemanager"], 2);
        assert_eq!(answer["node"], Value::Null);
    }
}

#[test]
fn what_is_not_there_is_null_and_what_is_wrong_said() {
    let (code, answer) = status("https://rm:8090", "");
    assert_eq!(code, Some(1));
    assert!(differences(&answer).contains("HTTPS"), "{answer}");
    assert!(differences(&answer).contains("no snapshot of the GPUs"), "{answer}");
    assert_eq!(answer["gpus"]["fit"], Value::Null);
    assert_eq!(answer["leases"], Value::Null);
}
