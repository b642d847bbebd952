//! Connections and what becomes of them.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::net::UnixStream;

use creel_discovery::inventory::{Process, ProcessKind};
use serde_json::{Value, json};

use crate::node::{Node, eventually, is_root, line, rest};

#[test]
fn an_executor_starts_when_somebody_connects_and_one_is_enough() {
    let node = Node::new();
    let agent = node.start();
    assert!(agent.executors().is_empty());
    let clients: Vec<_> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..20).map(|_| scope.spawn(|| agent.attach())).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let executors = agent.executors();
    assert_eq!(executors.len(), 1);
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(executors[0]["id"], format!("cpu-{uid}"));
    assert_eq!(executors[0]["state"], "running");
    assert_eq!(executors[0]["memory"]["limit"], 100);
    let attachments = agent.attachments();
    assert_eq!(attachments.len(), clients.len());
    assert_eq!(attachments[0]["pid"], std::process::id());
    assert_eq!(attachments[0]["bytes_sent"], 7);
    drop(clients);
    eventually("all connections are gone", || agent.attachments().is_empty());
}

#[test]
fn an_executor_is_told_who_else_is_on_its_gpu() {
    let node = Node::new();
    let pid = std::process::id();
    node.gpus_but(2, |gpu| {
        let process = Process {
            pid,
            kind: ProcessKind::Compute,
            memory: Some(701 << 20),
            gpu_instance: None,
            compute_instance: None,
        };
        gpu.processes = Some(if gpu.index == 1 { vec![process] } else { Vec::new() });
    });
    let agent = node.start_with(&["--set", "gpu.unleased=allow"]);
    let around = |socket: &str| -> Value {
        eventually("there is such a socket", || agent.socket(socket).exists());
        let mut client = UnixStream::connect(agent.socket(socket)).unwrap();
        client.write_all(b"around\n").unwrap();
        assert_eq!(line(&mut client), "hello", "{}", agent.log());
        serde_json::from_str(&line(&mut client)).unwrap()
    };
    let told = around("gpu/1.sock");
    let holder = &told["holders"][0];
    assert_eq!((&told["gpus"], &holder["pid"]), (&json!(2), &json!(pid)));
    assert_eq!(holder["bytes"], 701 << 20);
    assert!(holder["name"].as_str().is_some_and(|name| !name.is_empty()), "{told}");
    assert_eq!(around("gpu/0.sock"), json!({ "gpus": 2, "holders": [] }));

    let node = Node::new();
    let agent = node.start();
    let mut client = agent.attach();
    client.write_all(b"around\n").unwrap();
    assert_eq!(line(&mut client), r#"{"gpus": 0, "holders": []}"#);
}

#[test]
fn what_an_executor_prints_is_the_agents_output_where_allocations_are_to_be_seen_there() {
    for (setting, printed) in [("STDOUT", "an allocation\n"), ("STDERR", ""), ("NONE", "")] {
        let node = Node::new();
        let path = node.path("stdout");
        let mut command = node.command();
        command.args(["--set", &format!("gpu.memory.debug={setting}")]);
        command.stdout(File::create(&path).unwrap());
        let agent = node.start_command(command);
        let _client = agent.attach();
        assert_eq!(fs::read_to_string(&path).unwrap(), printed, "{setting}");
    }
}

#[test]
fn thousands_of_connections_leave_nothing_behind() {
    let node = Node::new();
    let agent = node.start();
    let come_and_go = |times: usize| {
        for _ in 0..times {
            drop(agent.attach());
        }
        eventually("all connections are gone", || agent.attachments().is_empty());
    };
    come_and_go(500);
    let (descriptors, resident) = (agent.descriptors(), agent.resident_kib());
    come_and_go(2000);
    eventually("all descriptors are closed", || agent.descriptors() <= descriptors);
    let grown = agent.resident_kib().saturating_sub(resident);
    assert!(grown < 2048, "{grown} KiB more, before: {resident} KiB");
}

#[test]
fn an_attachment_ends_with_its_process_though_a_child_holds_the_socket() {
    let node = Node::new();
    let agent = node.start();
    let own = rustix::process::geteuid().as_raw();
    let mut peer = agent.peer(own, "creel.sock", "fork");
    assert_eq!(line(&mut peer.stdout), "hello");
    assert_eq!(agent.attachments()[0]["pid"], peer.child.id());
    peer.child.kill().unwrap();
    assert_eq!(line(&mut peer.stdout), "the child sees the end");
    eventually("the attachment is gone", || agent.attachments().is_empty());
}

#[test]
fn an_idle_executor_ends_and_comes_back() {
    let node = Node::new();
    let agent = node.start_with(&["--set", "executor.idle_timeout=100ms"]);
    drop(agent.attach());
    eventually("the executor is gone", || agent.executors().is_empty());
    eventually("its spill directory too", || {
        std::fs::read_dir(node.path("spill")).unwrap().count() == 0
    });
    let _client = agent.attach();
    assert_eq!(agent.executors()[0]["restarts"], 0);
    assert_eq!(agent.executors()[0]["last_error"], serde_json::Value::Null);
}

#[test]
fn a_limit_is_a_limit() {
    let node = Node::new();
    let agent = node.start_with(&["--set", "agent.max_attachments=2"]);
    let first = agent.attach();
    let _second = agent.attach();
    let (code, message) = agent.call();
    assert_eq!(code, tonic::Code::ResourceExhausted as u32);
    assert!(message.contains("agent.max_attachments"), "{message}");
    drop(first);
    eventually("a place is free", || agent.attachments().len() == 1);
    agent.attach();
}

#[test]
fn one_user_leaves_places_to_others() {
    if !is_root("one_user_leaves_places_to_others") {
        return;
    }
    let node = Node::new();
    let agent = node.start_with(&["--set", "agent.max_attachments=4"]);
    let _own: Vec<_> = (0..3).map(|_| agent.attach()).collect();
    let (code, message) = agent.call();
    assert_eq!(code, tonic::Code::ResourceExhausted as u32);
    assert!(message.contains("3 of one user"), "{message}");
    let mut theirs = agent.peer(54_321, "creel.sock", "hold");
    assert_eq!(line(&mut theirs.stdout), "hello");
}

#[test]
fn an_executor_is_its_user() {
    if !is_root("an_executor_is_its_user") {
        return;
    }
    let node = Node::new();
    let agent = node.start();
    let mut peer = agent.peer(54_321, "creel.sock", "hold");
    assert_eq!(line(&mut peer.stdout), "hello");
    let mut own = agent.attach();
    own.write_all(b"whoami\n").unwrap();
    assert!(line(&mut own).starts_with("[[0, 0, 0], [0, 0, 0]"));

    let executors = agent.executors();
    assert_eq!(executors.len(), 2);
    let theirs = executors.iter().find(|executor| executor["id"] == "cpu-54321").unwrap();
    let open = std::fs::read_dir(format!("/proc/{}/fd", theirs["pid"])).unwrap();
    let open: Vec<_> = open
        .map(|entry| entry.unwrap().path().read_link().unwrap().display().to_string())
        .filter(|what| !what.starts_with("pipe:") && what != "/dev/null")
        .collect();
    assert_eq!(open.len(), 4, "its channel, twice, epoll and a connection: {open:?}");
    let status = std::fs::read_to_string(format!("/proc/{}/status", theirs["pid"])).unwrap();
    assert!(status.contains("Uid:\t54321\t54321\t54321\t54321"), "{status}");
    assert!(status.contains("Gid:\t54321\t54321\t54321\t54321"), "{status}");
    assert!(status.contains("Groups:\t \n") || status.contains("Groups:\t54321 \n"), "{status}");
}

#[test]
fn an_agent_without_root_tells_others_why_it_does_not_serve_them() {
    if !is_root("an_agent_without_root_tells_others_why_it_does_not_serve_them") {
        return;
    }
    let node = Node::new();
    let agent = node.start_as(54_321);
    let (code, message) = agent.call();
    assert_eq!(code, tonic::Code::PermissionDenied as u32);
    assert!(message.contains("user 54321") && message.contains("root"), "{message}");
    assert!(agent.executors().is_empty());
}

#[test]
fn what_one_client_does_is_nothing_to_another() {
    let node = Node::new();
    let agent = node.start();
    let mut client = agent.attach();
    let _silent: Vec<UnixStream> = (0..100).map(|_| agent.connect()).collect();
    for _ in 0..50 {
        let mut garbage = agent.connect();
        let _ = garbage.write_all(&[0xff; 10_000]);
        let mut control = UnixStream::connect(agent.socket("agent.sock")).unwrap();
        let _ = control.write_all(&[0xff; 10_000]);
        let _ = control.write_all(b"\r\n\r\n");
    }
    client.write_all(b"query q1\n").unwrap();
    assert_eq!(line(&mut client), "runs");
    assert_eq!(agent.get("/v1/queries")["queries"][0]["id"], "q1");
}

#[test]
fn many_half_open_control_connections_of_one_user_leave_room_for_others() {
    if !is_root("many_half_open_control_connections_of_one_user_leave_room_for_others") {
        return;
    }
    let node = Node::new();
    let agent = node.start();
    let mut open: Vec<UnixStream> =
        (0..200).map(|_| UnixStream::connect(agent.socket("agent.sock")).unwrap()).collect();
    assert_eq!(agent.request_as(54_321, "GET", "/v1/version").0, 200);
    assert!(rest(open.last_mut().unwrap()).contains("too many connections"));
}

#[test]
fn a_connection_to_an_executor_that_says_it_cannot_start_is_told() {
    let node = Node::with_executor("refuses");
    let agent = node.start();
    let (code, message) = agent.call();
    assert_eq!(code, tonic::Code::Unavailable as u32);
    assert!(message.contains("it is not in the mood"), "{message}");
    let executor = &agent.executors()[0];
    assert_eq!(executor["state"], "failed");
    assert_eq!(executor["last_error"], "it is not in the mood");
}

#[test]
fn a_start_takes_no_longer_than_it_may() {
    let node = Node::with_executor("silent");
    let agent = node.start_with(&["--set", "executor.start_timeout=300ms"]);
    let (code, message) = agent.call();
    assert_eq!(code, tonic::Code::Unavailable as u32);
    assert!(message.contains("executor.start_timeout"), "{message}");
    eventually("its spill directory is gone", || {
        std::fs::read_dir(node.path("spill")).unwrap().count() == 0
    });
}

#[test]
fn the_end_of_a_connection_reaches_the_client() {
    let node = Node::new();
    let agent = node.start();
    let mut client = agent.attach();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(rest(&mut client), "");
    eventually("the attachment is gone", || agent.attachments().is_empty());
}
