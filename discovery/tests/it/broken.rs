//! Nodes without a driver, and with one that fails.

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use creel_discovery::Inventory;
use simulated_nvml::{Action, Code, Fault};

use crate::node::{DISCOVERY, TestNode, text};

const FORMATS: [&str; 4] = ["spark", "json", "table", "nvidia-smi"];

#[test]
fn no_driver_is_an_answer() {
    let nowhere = tempfile::tempdir().unwrap();
    for (format, answer) in [
        ("spark", "{\"name\": \"gpu\", \"addresses\":[]}\n"),
        ("table", "no NVIDIA driver\n"),
        ("json", "\"gpus\": []"),
        ("nvidia-smi", "<attached_gpus>0</attached_gpus>"),
    ] {
        let output = Command::new(DISCOVERY)
            .args(["--format", format])
            .env("LD_LIBRARY_PATH", nowhere.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(text(&output.stdout).contains(answer), "{}", text(&output.stdout));
        assert_eq!(
            text(&output.stderr),
            "creel-discovery: no NVIDIA driver: looked for libnvidia-ml.so.1 and libnvidia-ml.so\n"
        );
    }
}

#[test]
fn the_unversioned_name_is_found_too() {
    let node = TestNode::of(&["t4:1"]);
    let lib = node.node.library_path();
    fs::rename(lib.join("libnvidia-ml.so.1"), lib.join("libnvidia-ml.so")).unwrap();
    let inventory = node.inventory();
    assert_eq!(inventory.driver.unwrap().library, "libnvidia-ml.so");
    assert_eq!(inventory.gpus.len(), 1);
}

#[test]
fn a_driver_that_does_not_start_is_an_error_in_its_own_words() {
    let node = TestNode::of(&["h200:2"]);
    for (code, words) in [
        ("DRIVER_NOT_LOADED", "Driver Not Loaded; load the kernel module"),
        ("LIB_RM_VERSION_MISMATCH", "Driver/library version mismatch"),
        ("NO_PERMISSION", "Insufficient Permissions"),
        ("UNKNOWN", "Unknown Error"),
        ("INVALID_STATE", "Invalid State"),
    ] {
        let fault = Fault::new(None, Action::Fail(code.parse().unwrap()));
        node.node.set_faults(&[fault.of("nvmlInit_v2")]).unwrap();
        for format in FORMATS {
            let output = node.discover(&["--format", format]);
            assert_eq!(output.status.code(), Some(1), "{code}");
            assert_eq!(text(&output.stdout), "", "{code}");
            let stderr = text(&output.stderr);
            assert!(stderr.contains(words) && stderr.contains("libnvidia-ml.so.1"), "{stderr}");
            assert_eq!(stderr.lines().count(), 1, "{stderr}");
        }
    }
}

#[test]
fn a_driver_that_can_not_count_its_gpus_is_an_error() {
    let node = TestNode::of(&["h200:2"]);
    let fault = Fault::new(None, Action::Fail(Code::UNKNOWN)).of("nvmlDeviceGetCount_v2");
    node.node.set_faults(&[fault]).unwrap();
    let output = node.discover(&["--format", "spark"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "");
    assert!(text(&output.stderr).contains("count the GPUs"));
}

#[test]
fn a_driver_that_can_not_say_its_versions_still_has_gpus() {
    let node = TestNode::of(&["h200:2"]);
    let fail = |function: &str| Fault::new(None, Action::Fail(Code::UNKNOWN)).of(function);
    node.node
        .set_faults(&[
            fail("nvmlSystemGetDriverVersion"),
            fail("nvmlSystemGetCudaDriverVersion_v2"),
        ])
        .unwrap();
    let inventory = node.inventory();
    assert_eq!(inventory.gpus.len(), 2);
    let driver = inventory.driver.unwrap();
    assert_eq!((driver.version, driver.cuda), (None, None));
    assert_eq!(driver.problems.len(), 2);
}

#[test]
fn a_library_that_is_none_is_an_error() {
    let node = TestNode::of(&["h200:1"]);
    let library = node.node.library_path().join("libnvidia-ml.so.1");
    for garbage in [&b""[..], b"not a library", &[0x7f; 5000]] {
        fs::write(&library, garbage).unwrap();
        let output = node.discover(&["--format", "nvidia-smi"]);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(text(&output.stdout), "");
        assert!(text(&output.stderr).contains("can't be used"), "{}", text(&output.stderr));
    }
}

#[test]
fn a_library_without_its_first_function_is_an_error() {
    let node = TestNode::from_toml("missing_functions = ['nvmlInit_v2']\n[[gpu]]\nmodel = 't4'");
    let output = node.discover(&["--format", "spark"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("nvmlInit_v2"), "{}", text(&output.stderr));
}

#[test]
fn a_hanging_driver_is_an_error_at_the_deadline() {
    let node = TestNode::of(&["h200:2"]);
    for function in ["nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetMemoryInfo_v2"] {
        node.node.set_faults(&[Fault::new(None, Action::Hang).of(function)]).unwrap();
        for format in FORMATS {
            let mut child = node
                .command(DISCOVERY)
                .args(["--format", format, "--deadline", "200ms"])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            // Both pipes end: nothing that hangs holds them.
            let (mut stdout, mut stderr) = (String::new(), String::new());
            child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
            child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
            let status = child.wait().unwrap();
            assert_eq!(status.code(), Some(1), "{function} {format}");
            assert_eq!(stdout, "");
            assert!(stderr.contains("did not answer within 200ms"), "{stderr}");
        }
    }
}

#[test]
fn the_process_that_hangs_ends_with_the_one_that_started_it() {
    let node = TestNode::of(&["h200:1"]);
    node.node.set_faults(&[Fault::new(None, Action::Hang)]).unwrap();
    let mut child = node.command(DISCOVERY).args(["--deadline", "600s"]).spawn().unwrap();
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let grandchild = wait_for(|| {
        let children = fs::read_to_string(&children).ok()?;
        let pid = children.split_whitespace().next()?.to_owned();
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        // Its parent's death is not its own before it has asked for that.
        (command.contains("--in-process") && maps_the_library(&pid)).then_some(pid)
    });
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    wait_for(|| {
        let stat = fs::read_to_string(format!("/proc/{grandchild}/stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    });
}

fn maps_the_library(pid: &str) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.contains("libnvidia-ml.so.1")
}

fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < Duration::from_mins(1), "it never came");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn nobody_who_reads_is_no_crash() {
    let node = TestNode::of(&["h200:8"]);
    let mut child = node
        .command(DISCOVERY)
        .args(["--format", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("Broken pipe"), "{}", text(&output.stderr));
}

#[test]
fn wrong_usage_is_2() {
    for arguments in [
        &["--format", "yaml"][..],
        &["--address", "name"],
        &["--deadline", "0"],
        &["--deadline", "-1s"],
        &["--deadline", "10 parsecs"],
        &["--deadline", "1e300"],
        &["--watch", "--format", "json"],
        &["gpus"],
    ] {
        let output = Command::new(DISCOVERY).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(text(&output.stdout), "");
    }
    for arguments in [["--help"], ["--version"]] {
        assert!(Command::new(DISCOVERY).args(arguments).output().unwrap().status.success());
    }
}

#[test]
fn a_fault_switched_off_is_over() {
    let node = TestNode::of(&["h200:2"]);
    node.node.set_faults(&[Fault::new(None, Action::Fail(Code::UNKNOWN))]).unwrap();
    assert_eq!(node.discover(&[]).status.code(), Some(1));
    node.node.set_faults(&[]).unwrap();
    let Inventory { gpus, .. } = node.inventory();
    assert_eq!(gpus.len(), 2);
}
