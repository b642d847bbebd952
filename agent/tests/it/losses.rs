//! Executors that lose their GPU.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};
use tonic::Code;

use crate::node::{Agent, Node, eventually, line, manifest_dir, python, rest};

/// A node where anybody may use GPUs, once they are known.
fn start(node: &Node) -> Agent<'_> {
    let agent = node.start_with(&["--set", "gpu.unleased=allow"]);
    eventually("the GPUs are known", || agent.socket("gpu/0.sock").exists());
    agent
}

fn connect(agent: &Agent<'_>, socket: &str) -> UnixStream {
    let mut stream = UnixStream::connect(agent.socket(socket)).unwrap();
    assert_eq!(line(&mut stream), "hello", "{}", agent.log());
    stream
}

/// Has the executor behind a socket lose its GPU, and gives what its client is told.
fn lose(agent: &Agent<'_>, socket: &str) -> String {
    let mut client = connect(agent, socket);
    client.write_all(b"lose\n").unwrap();
    assert_eq!(line(&mut client), "lost");
    rest(&mut client)
}

fn health(agent: &Agent<'_>, gpu: usize) -> Value {
    agent.get("/v1/gpus")["gpus"][gpu]["health"].clone()
}

fn stdout(output: Output) -> String {
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_gpu_that_was_lost_once_is_served_by_another_executor_at_once() {
    let node = Node::new();
    node.gpus(1);
    let agent = start(&node);
    let mut other = connect(&agent, "gpu/0.sock");
    let before = agent.executor_pid();
    for round in 1..=2 {
        let told = lose(&agent, "gpu/0.sock");
        assert!(told.contains("its GPU failed: CUDA_ERROR_ILLEGAL_ADDRESS"), "{told:?}");
        let _next = connect(&agent, "gpu/0.sock");
        let executor = agent.executors()[0].clone();
        assert_eq!((&executor["state"], &executor["restarts"]), (&json!("running"), &json!(round)));
        let last = executor["last_error"].as_str().unwrap();
        assert_eq!(last, "its GPU failed: CUDA_ERROR_ILLEGAL_ADDRESS");
    }
    assert!(rest(&mut other).contains("its GPU failed"));
    assert_ne!(agent.executor_pid(), before);
    assert_eq!(health(&agent, 0)["state"], "healthy");
}

#[test]
fn a_gpu_that_is_lost_again_and_again_is_left_alone() {
    let node = Node::new();
    node.gpus(2);
    let agent = start(&node);
    let mut holder = agent.creel(&["run", "--gpus", "1", "sleep", "600"]).spawn().unwrap();
    eventually("it has GPU-0", || agent.leases().len() == 1);
    for _ in 0..3 {
        lose(&agent, "gpu/1.sock");
    }
    let health = health(&agent, 1);
    assert_eq!(health["state"], "unhealthy");
    let reason = health["reasons"][0].as_str().unwrap();
    assert!(
        reason.contains("3 times") && reason.contains("CUDA_ERROR_ILLEGAL_ADDRESS"),
        "{reason}"
    );
    assert!(stdout(agent.creel(&["gpus"]).output().unwrap()).contains(reason));

    let (code, message) = agent.call_at("gpu/1.sock");
    assert_eq!(code, Code::Unavailable as u32);
    assert!(message.contains("unfit for use"), "{message}");
    let _on_cpu = agent.attach();
    assert!(agent.executors().iter().any(|executor| executor["device"] == "cpu"));
    let full = agent.creel(&["run", "--wait", "0s", "true"]).output().unwrap();
    assert_eq!(full.status.code(), Some(6));
    let text = String::from_utf8_lossy(&full.stderr).into_owned();
    assert!(text.contains("1 (GPU-1) unfit for use: its executors lost it"), "{text}");
    let doctor = stdout(agent.creel(&["doctor"]).output().unwrap());
    assert!(doctor.contains("GPU 1 (GPU-1) is unfit for use: its executors lost it"), "{doctor}");
    assert!(doctor.contains("dmesg") && !doctor.contains("GPU 0 (GPU-0)"), "{doctor}");
    holder.kill().unwrap();
    holder.wait().unwrap();
}

#[test]
fn who_holds_a_gpu_that_is_left_alone_is_told_why() {
    let node = Node::new();
    node.gpus(1);
    let agent = node.start();
    let peer = Path::new(&manifest_dir()).join("tests/it/peer.py");
    let lose = format!(
        "echo lose | {} {} {} {} request",
        python().display(),
        peer.display(),
        rustix::process::geteuid().as_raw(),
        agent.socket("creel.sock").display()
    );
    let script =
        format!("{lose}; {lose}; {lose}; exec {} sql -c 'SELECT 1'", env!("CARGO_BIN_EXE_creel"));
    let holder = agent
        .creel(&["run", "--", "sh", "-c", &script])
        .env("CREEL_RUN_DIR", node.path("run"))
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&holder.stderr);
    assert!(told.contains("GPU-0 is unfit for use: its executors lost it 3 times"), "{told}");
    assert!(told.contains("creel doctor"), "{told}");
    let executor = agent.executors()[0].clone();
    assert_eq!((&executor["state"], &executor["restarts"]), (&json!("failed"), &json!(2)));
}

#[test]
fn an_executor_that_lost_its_gpu_and_stays_is_killed() {
    let node = Node::with_executor("stubborn");
    node.gpus(1);
    let agent = start(&node);
    let told = lose(&agent, "gpu/0.sock");
    assert!(told.contains("its GPU failed"), "{told:?}");
    let executor = agent.executors()[0].clone();
    assert_eq!((&executor["state"], &executor["pid"]), (&json!("failed"), &Value::Null));
}
