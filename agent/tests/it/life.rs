//! The life of the agent itself.

use std::fs;
use std::io::Write;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::Command;

use rustix::process::Signal;

use crate::node::{Node, eventually, line, rest};

fn fails(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_second_agent_says_who_is_the_first() {
    let node = Node::new();
    let agent = node.start();
    let error = fails(&mut node.command());
    assert!(error.contains(&format!("process {}", agent.pid())), "{error}");
    agent.get("/v1/status");
}

#[test]
fn an_agent_that_was_killed_blocks_nobody_and_leaves_no_orphan() {
    let node = Node::new();
    let agent = node.start();
    let mut client = agent.attach();
    let executor = agent.executor_pid();
    agent.signal(Signal::KILL);
    agent.wait();
    eventually("its executor has ended", || {
        rustix::process::test_kill_process(executor).is_err()
            || fs::read_to_string(format!("/proc/{}/stat", executor.as_raw_nonzero()))
                .is_ok_and(|stat| stat.contains(") Z "))
    });
    assert_eq!(rest(&mut client), "");
    assert!(node.path("run/creel.sock").exists(), "a stale socket");

    let agent = node.start();
    let _client = agent.attach();
    assert_eq!(fs::read_dir(node.path("spill")).unwrap().count(), 1, "leftovers are swept");
}

#[test]
fn a_run_directory_that_is_too_long_or_cannot_be_made_is_named() {
    let node = Node::new();
    let long = node.path(&"x".repeat(100));
    let error = fails(node.command().arg("--run-dir").arg(&long).env_remove("CREEL_RUN_DIR"));
    assert!(error.contains("107") && error.contains("--run-dir"), "{error}");
    let file = node.path("discovery");
    let error = fails(node.command().arg("--run-dir").arg(file.join("run")));
    assert!(error.contains(file.to_str().unwrap()), "{error}");
}

#[test]
fn mistakes_in_settings_are_all_told() {
    let node = Node::new();
    let file = node.path("creel.toml");
    fs::write(&file, "[agent]\nmax_attachmints = 1\ndrain_timeout = 7\n").unwrap();
    let error = fails(node.command().arg("--config").arg(&file).args(["--set", "a.b=1"]));
    assert!(error.lines().all(|line| line.starts_with("creeld: ")), "{error}");
    assert!(error.contains(":2:") && error.contains("a.b"), "{error}");
}

#[test]
fn sighup_reads_the_settings_again_and_keeps_the_old_ones_if_they_are_wrong() {
    let node = Node::new();
    let file = node.path("creel.toml");
    fs::write(&file, "[agent]\nmax_attachments = 100\n").unwrap();
    let agent = node.start_with(&["--config", file.to_str().unwrap()]);
    let _first = agent.attach();
    drop(agent.attach());
    eventually("one connection is open", || agent.attachments().len() == 1);

    fs::write(&file, "[agent]\nmax_attachments = 1\n").unwrap();
    agent.signal(Signal::HUP);
    eventually("they are read again", || agent.log().contains("read again"));
    assert_eq!(agent.call().0, tonic::Code::ResourceExhausted as u32);

    fs::write(&file, "[agent]\nmax_attachments = 0\nno_such = 1\n").unwrap();
    agent.signal(Signal::HUP);
    eventually("both mistakes are told", || {
        agent.log().matches("the settings stay as they were").count() == 2
    });
    assert_eq!(agent.call().0, tonic::Code::ResourceExhausted as u32);
}

#[test]
fn sigterm_lets_executors_end_what_they_do() {
    let node = Node::new();
    let agent = node.start();
    let mut client = agent.attach();
    let socket = agent.socket("creel.sock");
    agent.signal(Signal::TERM);
    assert_eq!(line(&mut client), "drained: the agent stops");
    assert!(agent.wait().success());
    assert!(UnixStream::connect(socket).is_err());
    assert!(!node.path("run/creel.sock").exists() && !node.path("run/agent.sock").exists());
    assert_eq!(fs::read_dir(node.path("spill")).unwrap().count(), 0);
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let node = Node::with_executor("stubborn");
    let agent = node.start_with(&["--set", "agent.drain_timeout=1h"]);
    let mut client = agent.attach();
    agent.signal(Signal::INT);
    eventually("it drains", || agent.log().contains("draining for"));
    assert_eq!(agent.get("/v1/status")["agent"]["ready"], false);
    agent.signal(Signal::TERM);
    assert!(agent.wait().success());
    assert_eq!(rest(&mut client), "");
}

#[test]
fn systemd_is_told() {
    let node = Node::new();
    let path = node.path("notify");
    let systemd = UnixDatagram::bind(&path).unwrap();
    systemd.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    let told = |what: &str| {
        let mut buffer = [0; 4096];
        loop {
            let length = systemd.recv(&mut buffer).unwrap();
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if text.lines().any(|line| line == what) {
                return text;
            }
        }
    };
    let mut command = node.command();
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "200000");
    let agent = node.start_command(command);
    told("READY=1");
    told("WATCHDOG=1");
    told("WATCHDOG=1");
    agent.signal(Signal::HUP);
    assert!(told("RELOADING=1").contains("MONOTONIC_USEC="));
    told("READY=1");
    agent.signal(Signal::TERM);
    told("STOPPING=1");
    assert!(agent.wait().success());
}

#[test]
fn the_log_can_be_json() {
    let node = Node::new();
    let agent = node.start_with(&["--log-format", "json"]);
    let mut client = agent.attach();
    client.write_all(b"fail\n").unwrap();
    rest(&mut client);
    for line in agent.log().lines() {
        serde_json::from_str::<serde_json::Value>(line).expect(line);
    }
}
