//! `creel-discovery` by the name of nvidia-smi.

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use creel_discovery::Snapshot;
use creel_discovery::snapshot::{FILE_NAME, Holder};
use simulated_nvml::{Action, Code, Fault};

use crate::formats::{values, xml};
use crate::node::{DISCOVERY, TestNode, text};

/// Longer than the program ever takes.
const PATIENCE: Duration = Duration::from_mins(1);

impl TestNode {
    /// nvidia-smi, with a run and a state directory of the node.
    fn nvidia_smi(&self) -> Command {
        let program = self.path("nvidia-smi");
        if !program.exists() {
            symlink(DISCOVERY, &program).unwrap();
        }
        let mut command = self.command(program.to_str().unwrap());
        command
            .env("CREEL_RUN_DIR", self.path("run"))
            .env("CREEL_AGENT_STATE_DIR", self.path("kept"))
            .env("PATH", "/nowhere")
            .env_remove("CONTAINER_ID");
        command
    }

    fn ask(&self, arguments: &str) -> Output {
        self.nvidia_smi().args(arguments.split_whitespace()).output().unwrap()
    }

    fn answer(&self, arguments: &str) -> String {
        let output = self.ask(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Keeps the node's snapshot in its run directory, as an agent does.
    fn keep(&self) -> Snapshot {
        let mut snapshot = Snapshot::new(self.inventory(), now());
        snapshot.current_for = 3600;
        self.keep_as("run", &snapshot);
        snapshot
    }

    fn keep_as(&self, directory: &str, snapshot: &Snapshot) {
        fs::create_dir_all(self.path(directory)).unwrap();
        snapshot.write(&self.path(directory)).unwrap();
    }
}

fn now() -> u64 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()
}

fn texts<'a>(document: &'a [(String, String)], path: &str) -> Vec<&'a str> {
    values(document, &format!("nvidia_smi_log/gpu/{path}"))
}

const BUS: &str = "--query-gpu=index,pci.bus_id --format=csv,noheader";

#[test]
fn every_question_is_answered_to_the_byte() {
    let node = TestNode::of(&["a100:1,mig=1x3g.20gb+1x1g.5gb", "h200:1"]);
    let inventory = node.inventory();
    let uuid = |unit: usize| inventory.units().nth(unit).unwrap().uuid().unwrap().to_owned();
    let [a100, h200] = [&inventory.gpus[0], &inventory.gpus[1]];
    let [a100_bus, h200_bus] = [a100, h200].map(|gpu| gpu.pci_bus_id.clone().unwrap());
    node.keep();
    assert_eq!(
        node.answer("-L"),
        format!(
            "GPU 0: NVIDIA A100-SXM4-40GB (UUID: {})\n\
             \x20 MIG 3g.20gb     Device  0: (UUID: {})\n\
             \x20 MIG 1g.5gb      Device  1: (UUID: {})\n\
             GPU 1: NVIDIA H200 (UUID: {})\n",
            a100.uuid.as_ref().unwrap(),
            uuid(0),
            uuid(1),
            uuid(2)
        )
    );
    assert_eq!(node.answer(BUS), format!("0, {a100_bus}\n1, {h200_bus}\n"));
    assert_eq!(
        node.answer("--query-gpu=index,pci.bus_id,mig.mode.current --format=csv,noheader"),
        format!("0, {a100_bus}, Enabled\n1, {h200_bus}, Disabled\n")
    );
    assert_eq!(node.answer("--query-gpu=index --format=csv,noheader"), "0\n1\n");
    assert_eq!(
        node.answer("--format=csv --query-gpu=name,memory.total,memory.used,utilization.gpu"),
        "name, memory.total [MiB], memory.used [MiB], utilization.gpu [%]\n\
         NVIDIA A100-SXM4-40GB, 40960 MiB, 0 MiB, [N/A]\n\
         NVIDIA H200, 143771 MiB, 0 MiB, 0 %\n"
    );
    assert_eq!(
        node.answer("--query-gpu=memory.total --format=csv,noheader,nounits"),
        "40960\n143771\n"
    );
    let document = node.answer("-x -q");
    assert_eq!(node.answer("-q -x"), document);
    assert_eq!(text(&node.discover(&["--format", "nvidia-smi"]).stdout), document);
}

#[test]
fn spark_s_own_script_gets_its_addresses() {
    let node = TestNode::of(&["h200:2"]);
    node.keep();
    // As in Spark's getGpusResources.sh.
    let script = "nvidia-smi --query-gpu=index --format=csv,noheader | sed -e ':a' -e 'N' -e'$!ba' -e 's/\\n/\",\"/g'";
    let mut shell = Command::new("/bin/sh");
    let envs = node.nvidia_smi();
    shell.envs(envs.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let directory = node.path("").display().to_string();
    shell.args(["-c", script]).env("PATH", format!("{directory}:/usr/bin:/bin"));
    assert_eq!(text(&shell.output().unwrap().stdout), "0\",\"1\n");
}

#[test]
fn whatever_the_driver_does_the_snapshot_answers() {
    let node = TestNode::of(&["a100:1,mig=3x2g.10gb+1x1g.5gb", "h200:1"]);
    node.keep();
    let document = node.answer("-x -q");
    for fault in [
        Fault::new(None, Action::Hang),
        Fault::new(None, Action::Fail(Code::UNKNOWN)),
        Fault::new(None, Action::Delay(Duration::from_mins(10))),
        Fault::lost(0),
    ] {
        node.node.set_faults(&[fault]).unwrap();
        assert_eq!(node.answer("-x -q"), document);
        assert_eq!(node.answer(BUS).lines().count(), 2);
    }
    fs::write(node.node.library_path().join("libnvidia-ml.so.1"), "no library").unwrap();
    assert_eq!(node.answer("-x -q"), document);
}

#[test]
fn an_old_snapshot_answers_without_what_changes() {
    let node = TestNode::of(&["h200:1"]);
    node.node.set_used(0, None, None, 3 << 20).unwrap();
    let snapshot = node.keep();
    assert!(node.answer("-x -q").contains("<gpu_util>0 %</gpu_util>"));
    node.keep_as("run", &Snapshot { taken_at: 1, current_for: 60, ..snapshot.clone() });
    let old = node.answer("-x -q");
    let document = xml(&old);
    assert_eq!(texts(&document, "utilization/gpu_util"), ["N/A"]);
    assert_eq!(texts(&document, "fb_memory_usage/used"), ["N/A"]);
    assert_eq!(texts(&document, "fb_memory_usage/total"), ["143771 MiB"]);
    assert_eq!(texts(&document, "minor_number"), ["0"]);
    // A clock that was set back.
    node.keep_as("run", &Snapshot { taken_at: u64::MAX, ..snapshot });
    assert_eq!(node.answer("-x -q"), old);
}

#[test]
fn a_damaged_snapshot_is_passed_over() {
    let node = TestNode::of(&["h200:2"]);
    let snapshot = node.keep();
    node.keep_as("kept", &snapshot);
    let document = node.answer("-x -q");
    // Nobody else can tell.
    node.node.set_faults(&[Fault::new(None, Action::Hang)]).unwrap();
    let path = node.path("run").join(FILE_NAME);
    let good = fs::read(&path).unwrap();
    for garbage in [&b""[..], b"{", &[0; 4096], &good[..good.len() - 100], b"{\"schema\":99}"] {
        fs::write(&path, garbage).unwrap();
        let output = node.ask("-x -q");
        assert_eq!(text(&output.stdout), document);
        assert!(text(&output.stderr).contains("snapshot.json"), "{}", text(&output.stderr));
    }
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(node.answer("-x -q"), document);
    fs::remove_dir_all(node.path("run")).unwrap();
    assert_eq!(node.answer("-x -q"), document);
}

#[test]
fn the_driver_is_asked_once_and_its_answer_kept() {
    let node = TestNode::of(&["a100:1,mig=1x3g.20gb", "t4:1"]);
    fs::create_dir(node.path("run")).unwrap();
    let slow = Fault::new(None, Action::Delay(Duration::from_millis(500))).of("nvmlInit_v2");
    node.node.set_faults(&[slow]).unwrap();
    let mut ask = node.nvidia_smi();
    ask.args(["-x", "-q"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let asking: Vec<_> = (0..3).map(|_| ask.spawn().unwrap()).collect();
    for child in asking {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert_eq!(texts(&xml(&text(&output.stdout)), "minor_number"), ["0", "1"]);
    }
    node.node.set_faults(&[Fault::new(None, Action::Hang)]).unwrap();
    assert_eq!(texts(&xml(&node.answer("-x -q")), "minor_number"), ["0", "1"]);
}

#[test]
fn a_driver_that_is_too_slow_answers_the_next_time() {
    let node = TestNode::of(&["h200:16"]);
    let slow = Fault::new(None, Action::Delay(Duration::from_secs(10))).of("nvmlInit_v2");
    node.node.set_faults(&[slow]).unwrap();
    let mut child = node
        .nvidia_smi()
        .args(["-x", "-q"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Both pipes end, though somebody still waits for the driver.
    let (mut stdout, mut stderr) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(9));
    assert_eq!(stdout, "");
    assert!(stderr.contains("did not answer within 8s"), "{stderr}");
    let kept = node.path("kept").join(FILE_NAME);
    let started = Instant::now();
    while !kept.exists() {
        assert!(started.elapsed() < PATIENCE, "the one that was left behind kept nothing");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(texts(&xml(&node.answer("-x -q")), "uuid").len(), 16);
}

#[test]
fn a_driver_that_fails_is_no_document() {
    let node = TestNode::of(&["h200:1"]);
    let fault = Fault::new(None, Action::Fail(Code::UNKNOWN)).of("nvmlInit_v2");
    node.node.set_faults(&[fault]).unwrap();
    let output = node.ask("-x -q");
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(9), String::new()));
    assert!(text(&output.stderr).contains("failed to initialize"), "{}", text(&output.stderr));
    assert!(!node.path("kept").join(FILE_NAME).exists());
}

#[test]
fn a_node_without_a_gpu_is_a_document_without_one() {
    let node = TestNode::of(&["h200:1"]);
    let bare = |arguments: &str| {
        let mut command = node.nvidia_smi();
        command.env("LD_LIBRARY_PATH", "/nowhere").args(arguments.split_whitespace());
        command.output().unwrap()
    };
    let document = text(&bare("-x -q").stdout);
    assert!(document.contains("<attached_gpus>0<") && !document.contains("<gpu "), "{document}");
    let output = bare("-L");
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(6), String::new()));
    assert!(!node.path("kept").join(FILE_NAME).exists());
}

#[test]
fn a_container_is_shown_what_it_holds() {
    let node = TestNode::of(&["a100:1,mig=2x3g.20gb", "h200:2"]);
    let mut snapshot = node.keep();
    let uuids: Vec<_> =
        snapshot.inventory.units().map(|unit| unit.uuid().unwrap().to_owned()).collect();
    let hold = |container: &str, devices: &[usize]| Holder {
        container: container.to_owned(),
        uid: 1000,
        devices: devices.iter().map(|&unit| uuids[unit].clone()).collect(),
    };
    snapshot.holders = vec![hold("container_1", &[1, 3]), hold("container_2", &[2])];
    node.keep_as("run", &snapshot);
    let answer = |container: &str, arguments: &str| {
        let mut command = node.nvidia_smi();
        command.env("CONTAINER_ID", container).args(arguments.split_whitespace());
        text(&command.output().unwrap().stdout)
    };
    assert_eq!(texts(&xml(&answer("container_1", "-x -q")), "uuid"), [&uuids[1], &uuids[3]]);
    assert_eq!(texts(&xml(&answer("container_2", "-x -q")), "uuid"), [&uuids[2]]);
    assert_eq!(answer("container_1", "--query-gpu=index --format=csv,noheader"), "0\n2\n");
    assert_eq!(answer("container_2", "--query-gpu=index --format=csv,noheader"), "1\n");
    let list = answer("container_1", "-L");
    assert_eq!(list.lines().count(), 3, "{list}");
    assert!(list.contains(&uuids[1]) && !list.contains(&uuids[0]), "{list}");
    // Not the node's view.
    assert_eq!(texts(&xml(&node.answer("-x -q")), "uuid").len(), 4);
}

#[test]
fn what_a_container_learns_of_the_driver_is_not_kept() {
    let node = TestNode::of(&["h200:2"]);
    fs::create_dir(node.path("run")).unwrap();
    let mut command = node.nvidia_smi();
    command.env("CONTAINER_ID", "container_1").args(["-x", "-q"]);
    let document = text(&command.output().unwrap().stdout);
    assert_eq!(texts(&xml(&document), "uuid").len(), 2);
    assert!(!node.path("run").join(FILE_NAME).exists() && !node.path("kept").exists());
}

/// The driver's nvidia-smi, for a test.
fn other(directory: &Path) -> PathBuf {
    fs::create_dir_all(directory).unwrap();
    let path = directory.join("nvidia-smi");
    // Written by another process: one that is forked meanwhile by another test would hold it open
    // for writing, and then it can't be started.
    let script = "printf '#!/bin/sh\\necho \"$@\"\\nexit 3\\n' > \"$1\"";
    assert!(Command::new("sh").args(["-c", script, "sh"]).arg(&path).status().unwrap().success());
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn other_questions_are_for_the_driver_s_own() {
    if ["/usr/bin", "/bin", "/usr/local/nvidia/bin"]
        .iter()
        .any(|directory| Path::new(directory).join("nvidia-smi").exists())
    {
        eprintln!("SKIPPED: this node has an nvidia-smi");
        return;
    }
    let node = TestNode::of(&["h200:1"]);
    node.keep();
    other(&node.path("real"));
    let ask = |path: &str, arguments: &[&str]| {
        node.nvidia_smi().env("PATH", path).args(arguments).output().unwrap()
    };
    let [here, real] = [node.path(""), node.path("real")].map(|path| path.display().to_string());
    let both = format!("{here}:relative::{real}");
    for arguments in [&["-q"][..], &[], &["mig", "-lgip"], &["-q", "-x", "-i", "0"]] {
        let output = ask(&both, arguments);
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(text(&output.stdout), arguments.join(" ") + "\n");
    }

    // Only this program, by a link and by a copy: it says so, and doesn't start itself for ever.
    let copy = node.path("copy");
    fs::create_dir(&copy).unwrap();
    let copied = Command::new("cp").arg(DISCOVERY).arg(copy.join("nvidia-smi")).status();
    assert!(copied.unwrap().success());
    for path in [here.clone(), format!("{here}:{}", copy.display()), String::new()] {
        let output = ask(&path, &["-q"]);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(127), String::new()));
        assert!(
            text(&output.stderr).contains("there is no nvidia-smi"),
            "{}",
            text(&output.stderr)
        );
    }
}
