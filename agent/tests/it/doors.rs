//! The sockets, and which device they lead to.

use std::os::unix::net::UnixStream;

use tonic::Code;

use crate::node::{Agent, Node, Peer, eventually, line, rest};

#[test]
fn every_gpu_has_a_socket_while_it_is_there() {
    let node = Node::new();
    node.gpus(2);
    let stale = node.path("run/gpu/7.sock");
    std::fs::create_dir_all(stale.parent().unwrap()).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    let agent = node.start_with(&["--set", "discovery.interval=1s"]);
    let there = |name: &str| agent.socket(name).exists();
    eventually("both have one", || there("gpu/0.sock") && there("gpu/1.sock"));
    assert!(!stale.exists());
    node.gpus(1);
    eventually("the second is gone", || !there("gpu/1.sock"));
    assert!(there("gpu/0.sock"));
    node.gpus(2);
    eventually("and is back", || there("gpu/1.sock"));
    let run = node.path("run");
    agent.signal(rustix::process::Signal::TERM);
    assert!(agent.wait().success());
    assert_eq!(std::fs::read_dir(run.join("gpu")).unwrap().count(), 0);
}

#[test]
fn without_a_lease_a_gpu_is_closed() {
    let node = Node::new();
    node.gpus(1);
    let agent = node.start();
    eventually("it has a socket", || agent.socket("gpu/0.sock").exists());
    let (code, message) = agent.call_at("gpu/0.sock");
    assert_eq!(code, Code::PermissionDenied as u32);
    assert!(message.contains("gpu.unleased is deny") && message.contains("GPU-0"), "{message}");
    let uid = rustix::process::geteuid().as_raw();
    let _client = agent.attach();
    assert_eq!(agent.executors()[0]["id"], format!("cpu-{uid}"));
}

#[test]
fn where_it_is_allowed_what_nobody_holds_is_open() {
    let node = Node::new();
    node.gpus(2);
    let agent = node.start_with(&["--set", "gpu.unleased=allow"]);
    eventually("they have sockets", || agent.socket("gpu/1.sock").exists());
    let _one = agent.attach();
    let mut two = UnixStream::connect(agent.socket("gpu/1.sock")).unwrap();
    assert_eq!(line(&mut two), "hello");
    let devices: Vec<_> =
        agent.executors().iter().map(|executor| executor["device"].clone()).collect();
    assert_eq!(devices, ["GPU-0", "GPU-1"]);
    let executor = agent.attachments()[1]["executor"].clone();
    assert_eq!(executor, format!("GPU-1-{}", rustix::process::geteuid().as_raw()));
}

/// A client under `creel run`: it says what it was greeted with, and stays.
fn leased_client(agent: &Agent<'_>, socket: &str) -> Peer {
    let uid = rustix::process::geteuid().as_raw();
    agent.peer_below(&[env!("CARGO_BIN_EXE_creel"), "run", "--"], uid, socket, "hold")
}

#[test]
fn a_lease_leads_to_its_gpu_and_keeps_others_out() {
    let node = Node::new();
    node.gpus(2);
    let agent = node.start();
    eventually("they have sockets", || agent.socket("gpu/1.sock").exists());
    let mut holder = leased_client(&agent, "creel.sock");
    assert_eq!(line(&mut holder.stdout), "hello");
    let devices = |agent: &Agent<'_>| -> Vec<String> {
        let executors = agent.executors();
        executors.iter().map(|executor| executor["device"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(devices(&agent), ["GPU-0"]);
    let mut other = leased_client(&agent, "gpu/1.sock");
    assert_eq!(line(&mut other.stdout), "hello");
    assert_eq!(devices(&agent), ["GPU-0", "GPU-1"]);

    let (code, message) = agent.call_at("gpu/0.sock");
    assert_eq!(code, Code::PermissionDenied as u32);
    let holder_pid = holder.child.id();
    assert!(message.contains(&format!("held by process {holder_pid} of user")), "{message}");

    drop(holder);
    eventually("its executor left the GPU", || devices(&agent) == ["GPU-1"]);
}

#[test]
fn a_borrowed_gpu_stays_with_the_user_who_leases_it_and_is_left_with_the_lease() {
    let node = Node::new();
    node.gpus(1);
    let agent = node.start_with(&["--set", "gpu.unleased=allow"]);
    eventually("it is known", || agent.socket("gpu/0.sock").exists());
    let mut borrower = agent.attach();
    assert_eq!(agent.executors()[0]["device"], "GPU-0");
    let mut holder = leased_client(&agent, "creel.sock");
    assert_eq!(line(&mut holder.stdout), "hello");
    assert_eq!(agent.attachments().len(), 2);
    drop(holder);
    let end = rest(&mut borrower);
    assert!(end.contains("on GPU-0 has ended"), "{end:?}");
    eventually("the executor is gone", || agent.executors().is_empty());
}
