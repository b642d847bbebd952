//! Errors as they happen.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use creel_discovery::event::XidEvent;
use simulated_nvml::{Action, Code, Fault};

use crate::node::{DISCOVERY, TestNode, text};

fn watch(node: &TestNode) -> (Child, BufReader<ChildStdout>) {
    let mut child = node
        .command(DISCOVERY)
        .arg("--watch")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    (child, lines)
}

/// Raises an Xid until it is seen: the watcher may not listen yet.
fn raise_and_read(node: &TestNode, gpu: u32, xid: u64, lines: &mut impl BufRead) -> XidEvent {
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while stopped.recv_timeout(Duration::from_millis(50)).is_err() {
                node.node.raise_xid(gpu, xid).unwrap();
            }
        });
        loop {
            let mut line = String::new();
            assert_ne!(lines.read_line(&mut line).unwrap(), 0, "it ended");
            let event: XidEvent = serde_json::from_str(&line).unwrap();
            if event.xid == Some(xid) {
                stop.send(()).unwrap();
                return event;
            }
        }
    })
}

#[test]
fn xids_come_as_lines_until_standard_input_ends() {
    let node = TestNode::of(&["h200:2"]);
    let gpus = node.inventory().gpus;
    let (mut child, mut lines) = watch(&node);
    let event = raise_and_read(&node, 1, 79, &mut lines);
    assert_eq!(event.uuid, gpus[1].uuid);
    assert_eq!(event.pci_bus_id, gpus[1].pci_bus_id);
    assert!(event.time > 1_600_000_000);
    // A GPU that is lost says no more who it is.
    node.node.set_faults(&[Fault::lost(0)]).unwrap();
    assert_eq!(raise_and_read(&node, 0, 48, &mut lines).uuid, gpus[0].uuid);
    drop(child.stdin.take());
    lines.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_lost_gpu_does_not_silence_the_others() {
    let node = TestNode::of(&["h200:2"]);
    let (mut child, mut lines) = watch(&node);
    raise_and_read(&node, 0, 13, &mut lines);
    let wait = Fault::new(None, Action::Fail(Code::GPU_IS_LOST)).of("nvmlEventSetWait_v2");
    node.node.set_faults(&[wait]).unwrap();
    node.node.raise_xid(0, 79).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    node.node.set_faults(&[Fault::lost(0)]).unwrap();
    raise_and_read(&node, 1, 31, &mut lines);
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn where_nothing_can_be_watched_that_is_said() {
    let node = TestNode::from_toml(
        "missing_functions = ['nvmlDeviceGetSupportedEventTypes']\n[[gpu]]\nmodel = 't4'",
    );
    let (mut child, _lines) = watch(&node);
    let _open = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stderr).contains("reports errors"), "{}", text(&output.stderr));
}

#[test]
fn a_driver_that_fails_is_an_error() {
    let node = TestNode::of(&["t4:1"]);
    let fault = Fault::new(None, Action::Fail(Code::LIB_RM_VERSION_MISMATCH)).of("nvmlInit_v2");
    node.node.set_faults(&[fault]).unwrap();
    let (mut child, _lines) = watch(&node);
    let _open = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("version mismatch"), "{}", text(&output.stderr));
}
