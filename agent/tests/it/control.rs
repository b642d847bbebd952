//! The control API.

use std::io::Write;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::node::{Node, eventually, is_root, line};

#[test]
fn the_node_in_numbers() {
    let node = Node::new();
    let agent = node.start();
    let mut client = agent.attach();
    client.write_all(b"query q1\n").unwrap();
    line(&mut client);
    let status = agent.get("/v1/status");
    assert_eq!(status["schema"], 1);
    assert_eq!(status["agent"]["pid"], agent.pid());
    assert_eq!(status["agent"]["ready"], true);
    assert_eq!(status["agent"]["gpu_error"], Value::Null);
    for (what, count) in
        [("gpus", 0), ("executors", 1), ("attachments", 1), ("leases", 0), ("queries", 1)]
    {
        assert_eq!(status[what], count, "{what}");
    }
    assert_eq!(agent.get("/v1/version")["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(agent.get("/v1/gpus")["gpus"], json!([]));
    assert_eq!(agent.get("/v1/leases")["leases"], json!([]));
}

#[test]
fn a_snapshot_that_can_not_be_kept_is_said_and_all_else_goes_on() {
    let node = Node::new();
    let in_the_way = node.path("run/snapshot.json/x");
    std::fs::create_dir_all(&in_the_way).unwrap();
    let agent = node.start();
    let error = || agent.get("/v1/status")["agent"]["snapshot_error"].clone();
    eventually("the agent says so", || error().is_string());
    assert!(error().as_str().unwrap().contains("run/snapshot.json"), "{}", error());
    assert!(agent.log().contains("old snapshot"), "{}", agent.log());
    let copy = std::fs::read_to_string(node.path("state/snapshot.json")).unwrap();
    assert!(copy.contains("\"gpus\":[]"), "{copy}");
    let mut client = agent.attach();
    client.write_all(b"query q1\n").unwrap();
    line(&mut client);
}

#[test]
fn what_is_not_there_and_what_is_not_allowed() {
    let node = Node::new();
    let agent = node.start();
    assert_eq!(agent.request("GET", "/v2/status").0, 404);
    assert_eq!(agent.request("POST", "/v1/status").0, 405);
    assert_eq!(agent.request("GET", "/v1/queries/q1").0, 405);
    let (status, failure) = agent.request("DELETE", "/v1/queries/q1");
    assert_eq!((status, &failure["schema"]), (404, &1.into()));
    assert!(failure["error"].as_str().unwrap().contains("q1"), "{failure}");
}

#[test]
fn what_an_executor_has_of_its_gpu_is_shown() {
    let node = Node::new();
    node.gpus(2);
    let agent = node.start_with(&["--set", "gpu.unleased=allow"]);
    eventually("the GPUs are known", || agent.socket("gpu/1.sock").exists());
    let _on_gpu = agent.attach();
    let gpu = agent.executors()[0]["gpu"].clone();
    assert_eq!(gpu["pool"]["largest_free"], 600);
    assert_eq!(gpu["ledger"]["pinned"], json!({"limit": 900, "used": 30, "peak": 40}));
    assert_eq!((&gpu["semaphore"]["tasks"], &gpu["spill"]["disk"]), (&json!(2), &json!(0)));
    let gpus = agent.get("/v1/gpus")["gpus"].clone();
    let pool = json!({"kind": "ARENA", "limit": 1000, "live": 20, "peak": 50, "taken": 700});
    assert_eq!((&gpus[0]["pool"], &gpus[1]["pool"]), (&pool, &Value::Null));
    let shown = agent.creel(&["executors"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("ARENA: 20 B of 1000 B in use, 50 B at the most"), "{shown}");
}

#[test]
fn a_query_is_cancelled() {
    let node = Node::new();
    let agent = node.start();
    let mut client = agent.attach();
    client.write_all(b"query q1\n").unwrap();
    line(&mut client);
    assert_eq!(agent.request("DELETE", "/v1/queries/q1").0, 200);
    assert_eq!(agent.get("/v1/queries")["queries"], json!([]));
}

#[test]
fn users_see_their_own_and_managers_see_all() {
    if !is_root("users_see_their_own_and_managers_see_all") {
        return;
    }
    let node = Node::new();
    let agent = node.start();
    let mut own = agent.attach();
    own.write_all(b"query q1\n").unwrap();
    line(&mut own);
    let mut theirs = agent.peer(54_321, "creel.sock", "hold");
    line(&mut theirs.stdout);
    assert_eq!(agent.attachments().len(), 2);

    for what in ["executors", "attachments"] {
        let (status, body) = agent.request_as(54_321, "GET", &format!("/v1/{what}"));
        assert_eq!(status, 200);
        let seen = body[what].as_array().unwrap();
        assert_eq!((seen.len(), &seen[0]["uid"]), (1, &54_321.into()), "{body}");
    }
    assert_eq!(agent.request_as(54_321, "GET", "/v1/queries").1["queries"], json!([]));
    assert_eq!(agent.request_as(54_321, "GET", "/v1/status").1["attachments"], 1);
    assert_eq!(agent.request_as(54_321, "DELETE", "/v1/queries/q1").0, 403);
    assert_eq!(agent.request_as(54_321, "DELETE", "/v1/queries/q2").0, 404);
    assert_eq!(agent.get("/v1/queries")["queries"][0]["id"], "q1", "it runs on");
}

#[test]
fn an_executor_that_hangs_hangs_nobody_who_asks() {
    let node = Node::new();
    let agent = node.start();
    let _client = agent.attach();
    let pid = agent.executor_pid();
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    let executor = &agent.executors()[0];
    assert_eq!(executor["state"], "running");
    assert_eq!(executor["memory"], Value::Null);
    assert_eq!(agent.attachments().len(), 1);
    rustix::process::kill_process(pid, Signal::CONT).unwrap();
    eventually("it answers again", || !agent.executors()[0]["memory"].is_null());
}
